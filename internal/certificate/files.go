package certificate

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// maxFile is the largest file, in bytes: the authorities that browsers trust take a quarter of it.
const maxFile = 1 << 20

// protocols are those that a client can choose from, by ALPN.
var protocols = []string{"h2", "http/1.1"}

// An identity is the parsed contents of the files.
type identity struct {
	files  *contents
	leaf   *x509.Certificate
	config *tls.Config
	roots  *x509.CertPool // nil: clients need no certificate

	mu       sync.RWMutex
	verified map[fingerprint]verification // certificates that VerifyClient has found valid
}

// errorf returns an error about the file, which begins with its setting.
func (f File) errorf(format string, args ...any) error {
	return fmt.Errorf("%s: %w", f.Setting, fmt.Errorf(format, args...))
}

// read returns the contents of the file.
func (f File) read() ([]byte, error) {
	file, err := os.Open(f.Path)
	if err != nil {
		return nil, f.errorf("%w", err)
	}
	defer func() { _ = file.Close() }()
	content, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err != nil {
		return nil, f.errorf("%w", err)
	}
	if len(content) > maxFile {
		return nil, f.errorf("%s holds more than %d bytes, more than certificates need", f.Path, maxFile)
	}
	return content, nil
}

// certificates returns the certificates in the content of a file, at least one.
func (f File) certificates(content []byte) ([]*x509.Certificate, error) {
	var found []*x509.Certificate
	for {
		var block *pem.Block
		if block, content = pem.Decode(content); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, f.errorf("certificate %d in %s cannot be read: %w", len(found)+1, f.Path, err)
		}
		found = append(found, cert)
	}
	if len(found) == 0 {
		return nil, f.errorf("%s has no certificate; it takes PEM, which begins with -----BEGIN CERTIFICATE-----", f.Path)
	}
	return found, nil
}

// parse makes an identity of the files.
func (r *Reloader) parse(files *contents) (*identity, error) {
	chain, err := r.cfg.Cert.certificates(files.cert)
	if err != nil {
		return nil, err
	}
	leaf := chain[0]
	switch now := r.cfg.Now(); {
	case now.After(leaf.NotAfter):
		return nil, r.cfg.Cert.errorf("the certificate in %s expired on %s", r.cfg.Cert.Path, leaf.NotAfter.UTC().Format(time.RFC3339))
	case now.Before(leaf.NotBefore):
		return nil, r.cfg.Cert.errorf("the certificate in %s is not valid before %s; is the clock of this machine right?",
			r.cfg.Cert.Path, leaf.NotBefore.UTC().Format(time.RFC3339))
	}
	pair, err := r.pair(files)
	if err != nil {
		return nil, err
	}
	id := &identity{files: files, leaf: leaf, config: &tls.Config{
		MinVersion:   tls.VersionTLS12,
		NextProtos:   protocols,
		Certificates: []tls.Certificate{pair},
	}}
	if r.cfg.ClientCA.Path == "" {
		return id, nil
	}
	authorities, err := r.cfg.ClientCA.certificates(files.clientCA)
	if err != nil {
		return nil, err
	}
	id.roots, id.verified = x509.NewCertPool(), map[fingerprint]verification{}
	for _, authority := range authorities {
		id.roots.AddCert(authority)
	}
	// Whether the certificate is good is left to VerifyClient: the handshake could only break off, and nobody could read why.
	id.config.ClientAuth, id.config.ClientCAs = tls.RequestClientCert, id.roots
	return id, nil
}

// pair returns the certificate with its key. The certificate was found to be readable.
func (r *Reloader) pair(files *contents) (tls.Certificate, error) {
	cert, key := r.cfg.Cert, r.cfg.Key
	pair, err := tls.X509KeyPair(files.cert, files.key)
	switch {
	case err == nil:
		return pair, nil
	case bytes.Contains(files.key, []byte("ENCRYPTED")):
		return pair, key.errorf("the key in %s is encrypted; it must be stored without a passphrase", key.Path)
	case !bytes.Contains(files.key, []byte("PRIVATE KEY-----")):
		return pair, key.errorf("%s has no private key; it takes PEM, which has -----BEGIN PRIVATE KEY-----", key.Path)
	}
	if ownErr := checkPrivateKey(files.key); ownErr != nil {
		return pair, key.errorf("the private key in %s cannot be read: %w", key.Path, ownErr)
	}
	return pair, key.errorf("the key in %s does not belong to the certificate in %s (%s)", key.Path, cert.Path, cert.Setting)
}

// checkPrivateKey returns why the first private key in content, in any of the forms that tls.X509KeyPair takes, cannot be read.
func checkPrivateKey(content []byte) error {
	for {
		var block *pem.Block
		if block, content = pem.Decode(content); block == nil {
			return errors.New("the PEM is broken")
		}
		_, pkcs8 := x509.ParsePKCS8PrivateKey(block.Bytes)
		_, pkcs1 := x509.ParsePKCS1PrivateKey(block.Bytes)
		_, sec1 := x509.ParseECPrivateKey(block.Bytes)
		switch {
		case pkcs8 == nil, pkcs1 == nil, sec1 == nil:
			return nil
		case block.Type == "PRIVATE KEY":
			return pkcs8
		case block.Type == "RSA PRIVATE KEY":
			return pkcs1
		case block.Type == "EC PRIVATE KEY":
			return sec1
		}
	}
}

// names returns the names and addresses that the certificate is for.
func (id *identity) names() []string {
	names := append([]string{}, id.leaf.DNSNames...)
	for _, ip := range id.leaf.IPAddresses {
		names = append(names, ip.String())
	}
	return names
}
