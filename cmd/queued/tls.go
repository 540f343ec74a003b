package main

import (
	"cmp"
	"context"
	"strings"

	"github.com/rs/zerolog"

	"github.com/queued/queued/internal/certificate"
)

// openCertificate reads the certificate of these settings, and has it read again when it changes, until close is called. Without the
// settings there is none, and close does nothing.
func (s *frontSettings) openCertificate(ctx context.Context, reader *settingsReader, logger zerolog.Logger) (cert *certificate.Reloader, closeCert func(), err error) {
	switch {
	case s.TLSCert != "" && s.TLSKey == "":
		return nil, nil, usagef("%s: a certificate needs its private key; set %s, too", reader.name("tls-cert"), envName("tls-key"))
	case s.TLSCert == "" && s.TLSKey != "":
		return nil, nil, usagef("%s: a private key needs its certificate; set %s, too", reader.name("tls-key"), envName("tls-cert"))
	case s.TLSCert == "" && s.TLSClientCA != "":
		return nil, nil, usagef("%s: client certificates need TLS; set %s and %s, too", reader.name("tls-client-ca"), envName("tls-cert"), envName("tls-key"))
	case s.TLSCert == "":
		return nil, func() {}, nil
	}
	cert, err = certificate.Open(certificate.Config{
		Cert:     certificate.File{Setting: reader.name("tls-cert"), Path: s.TLSCert},
		Key:      certificate.File{Setting: reader.name("tls-key"), Path: s.TLSKey},
		ClientCA: certificate.File{Setting: reader.name("tls-client-ca"), Path: s.TLSClientCA},
		Logger:   logger,
	})
	if err != nil {
		return nil, nil, usagef("%s", err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // also while the server shuts down
	watching := start(func() error { return cert.Run(ctx) })
	return cert, func() {
		cancel()
		<-watching.done
	}, nil
}

// aboutCertificate says in the welcome what callers need to know about a certificate.
func aboutCertificate(cert *certificate.Reloader, needsClient bool) string {
	text := "  The certificate is for " + cmp.Or(strings.Join(cert.Names(), ", "), "no host") + ". If curl does not trust it: curl --cacert FILE\n"
	if needsClient {
		text += "  Callers must show a client certificate: curl --cert FILE --key FILE\n"
	}
	return text
}
