// Package certtest makes certificates for tests.
package certtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// An Authority signs certificates.
type Authority struct {
	tb   testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// A Request describes a certificate to make. Hosts make it one for a server, no Hosts one for a client.
type Request struct {
	Name      string
	Hosts     []string
	NotBefore time.Time // zero: an hour ago
	NotAfter  time.Time // zero: in an hour
}

// New returns an authority of its own.
func New(tb testing.TB, name string) *Authority {
	tb.Helper()
	return sign(tb, nil, name)
}

// Intermediate returns an authority that a has signed.
func (a *Authority) Intermediate(name string) *Authority {
	a.tb.Helper()
	return sign(a.tb, a, name)
}

func sign(tb testing.TB, parent *Authority, name string) *Authority {
	tb.Helper()
	template := template(tb, Request{Name: name})
	template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	a := &Authority{tb: tb, cert: template, key: newKey(tb)}
	if parent == nil {
		parent = a
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent.cert, &a.key.PublicKey, parent.key)
	if err == nil {
		a.cert, err = x509.ParseCertificate(der)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return a
}

// Issue returns a certificate and its private key, in PEM.
func (a *Authority) Issue(req Request) (cert, key []byte) {
	a.tb.Helper()
	template, private := template(a.tb, req), newKey(a.tb)
	template.KeyUsage, template.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	for _, host := range req.Hosts {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &private.PublicKey, a.key)
	if err != nil {
		a.tb.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		a.tb.Fatal(err)
	}
	return encode("CERTIFICATE", der), encode("PRIVATE KEY", pkcs8)
}

// PEM returns the authority's own certificate.
func (a *Authority) PEM() []byte { return encode("CERTIFICATE", a.cert.Raw) }

// Pool returns a pool of the authority alone.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// Write writes a file into a directory, in place of the one that is there, and returns its path. Readers see the old content or the new one.
func Write(tb testing.TB, dir, name string, content []byte) string {
	tb.Helper()
	path := filepath.Join(dir, name)
	err := os.WriteFile(path+".new", content, 0o600)
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return path
}

func template(tb testing.TB, req Request) *x509.Certificate {
	tb.Helper()
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		tb.Fatal(err)
	}
	if req.NotBefore.IsZero() {
		req.NotBefore = time.Now().Add(-time.Hour)
	}
	if req.NotAfter.IsZero() {
		req.NotAfter = time.Now().Add(time.Hour)
	}
	return &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: req.Name}, NotBefore: req.NotBefore, NotAfter: req.NotAfter}
}

func newKey(tb testing.TB) *ecdsa.PrivateKey {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return key
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
