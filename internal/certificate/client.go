package certificate

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"
)

// maxVerified bounds the certificates whose verification is remembered.
const maxVerified = 10_000

// A fingerprint is the SHA-256 of a certificate.
type fingerprint [sha256.Size]byte

// A verification says that a certificate is good.
type verification struct {
	subject string
	until   time.Time // the first end of a certificate on the way to the authority
}

// ErrNoClientCertificate is the error of VerifyClient for a client that has shown none.
var ErrNoClientCertificate = errors.New("this server answers only clients that show a certificate signed by its client CA")

// VerifyClient returns the subject of the certificate that a client has shown, such as "CN=mailer,O=Example". It fails with a text for the
// client when there is no certificate, or none that the current client CA has signed for clients and that is valid now. So a
// connection that was opened before the client CA changed is judged by the new one. Without a client CA it returns nothing.
func (r *Reloader) VerifyClient(state *tls.ConnectionState) (subject string, err error) {
	id := r.current.Load()
	if id.roots == nil {
		return "", nil
	}
	if state == nil || len(state.PeerCertificates) == 0 {
		return "", ErrNoClientCertificate
	}
	now := r.cfg.Now()
	leaf := state.PeerCertificates[0]
	hash := fingerprint(sha256.Sum256(leaf.Raw))
	if known, ok := id.lookUp(hash); ok && !now.After(known.until) {
		return known.subject, nil
	}
	// A verification takes a signature's time, too long for each request of a connection.
	options := x509.VerifyOptions{
		Roots: id.roots, Intermediates: x509.NewCertPool(), CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, intermediate := range state.PeerCertificates[1:] {
		options.Intermediates.AddCert(intermediate)
	}
	chains, err := leaf.Verify(options)
	if err != nil {
		return "", fmt.Errorf("the certificate of %q is refused: %w", leaf.Subject.String(), err)
	}
	found := verification{subject: leaf.Subject.String(), until: leaf.NotAfter}
	for _, cert := range chains[0] {
		if cert.NotAfter.Before(found.until) {
			found.until = cert.NotAfter
		}
	}
	id.remember(hash, found)
	return found.subject, nil
}

func (id *identity) lookUp(hash fingerprint) (verification, bool) {
	id.mu.RLock()
	defer id.mu.RUnlock()
	known, ok := id.verified[hash]
	return known, ok
}

func (id *identity) remember(hash fingerprint, found verification) {
	id.mu.Lock()
	defer id.mu.Unlock()
	if len(id.verified) >= maxVerified { // all begin anew, which costs each a signature
		clear(id.verified)
	}
	id.verified[hash] = found
}
