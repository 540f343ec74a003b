package cli

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/queued/queued/client"
)

// address is the URL of a server, and the key and certificates for it. They are settings of the program, with a variable each. [UseContext] sets those
// that neither flags nor variables set.
type address struct {
	URL       string `group:"Server:" type:"server-url" default:"http://127.0.0.1:8080"`
	Key       string `group:"Server:" type:"secret"`
	KeyFile   string `group:"Server:" type:"path"`
	CACert    string `group:"Server:" name:"cacert" type:"path"`
	Cert      string `group:"Server:" type:"path"`
	ClientKey string `group:"Server:" type:"path"`
	Context   string `group:"Server:" type:"context" context:""`

	env *Env
}

// AfterApply is called by kong.
func (a *address) AfterApply(env *Env) error {
	a.env = env
	return nil
}

// connection is how to reach a server.
type connection struct {
	address  `embed:""`
	Timeout  time.Duration  `group:"Server:" default:"30s" min:"1ms" help:"How long one try of a call may take, besides the time it asks the server to wait (default 30s)."`
	RetryFor *time.Duration `group:"Server:" placeholder:"DURATION" min:"0s" help:"How long to go on trying while the server cannot be reached or is overloaded (default 30s; without the flag a command gives up at once where no server listens on this machine)."`
	Cell     *int           `group:"Server:" placeholder:"NUMBER" help:"Behind a gateway, the number of the cell to call: without it the gateway chooses, and what several cells have a part of is put together of theirs."`
}

// server is a connection and the format of the answers. Every command that calls a server embeds it.
type server struct {
	connection `embed:""`
	output     `embed:""`
}

// output is the format of the answers.
type output struct {
	Output string `group:"Server:" short:"o" placeholder:"FORMAT" enum:"auto,table,json,jsonl" default:"auto" help:"How to write the answer: table, json (one document), jsonl (an object a line), or auto: table on a terminal, else jsonl."`
}

// client returns a client for the server. Close it. While the server does not answer, standard error says so.
func (s *connection) client() (*client.Client, error) {
	p := patience{limit: client.DefaultRetryFor}
	if s.RetryFor != nil {
		p = patience{limit: *s.RetryFor, isGiven: true}
	}
	return s.connect(client.Config{Timeout: s.Timeout, RetryFor: cmp.Or(p.limit, -1)}, p) // which is none for package client
}

// connect returns a client as address.connect does, of the cell that the flags name, if they do.
func (s *connection) connect(cfg client.Config, p patience) (*client.Client, error) {
	if s.Cell != nil && (*s.Cell < 0 || *s.Cell > maxCell) {
		return nil, usagef("--cell: %d is no number of a cell, which is 0 to %d", *s.Cell, maxCell)
	}
	conn, err := s.address.connect(cfg, p)
	if err == nil && s.Cell != nil {
		conn = conn.Cell(*s.Cell)
	}
	return conn, err
}

// maxCell is the highest number of a cell.
const maxCell = 255

// client returns a client with the time limits of package client. Close it.
func (a *address) client() (*client.Client, error) { return a.connect(client.Config{}, patience{}) }

// connect returns a client. With some patience, it says on standard error that the server does not answer.
func (a *address) connect(cfg client.Config, p patience) (*client.Client, error) {
	transport, err := a.transport()
	if err != nil {
		return nil, err
	}
	cfg.URL, cfg.Key, cfg.UserAgent = a.URL, a.Key, "queued-cli"
	cfg.HTTPClient = &http.Client{Transport: transport}
	if p.limit > 0 && a.env != nil {
		a.env.status.open(a.env)
		cfg.HTTPClient.Transport = &patientTransport{
			base: transport, status: &a.env.status, patience: p, server: serverOf(a.URL) + " (" + a.env.origin() + ")",
		}
	}
	c, err := client.New(cfg)
	if err != nil {
		return nil, usagef("%s", strings.TrimPrefix(err.Error(), "client: "))
	}
	return c, nil
}

// showAnswer makes a call to a server and shows its answer.
func showAnswer[T any](env *Env, s *server, fields func(T) [][2]string, call func(*client.Client) (T, error)) error {
	conn, err := s.client()
	if err != nil {
		return err
	}
	defer conn.Close()
	answer, err := call(conn)
	if err != nil {
		return err
	}
	return show(env, s.Output, answer, fields)
}

// origin says where the URL of the server comes from, or can come from.
func (e *Env) origin() string { return cmp.Or(e.serverFrom, "--url, $QUEUED_URL") }

// transport returns the standard transport of net/http, with the certificates of the flags.
func (a *address) transport() (*http.Transport, error) {
	transport := new(http.Transport)
	if standard, ok := http.DefaultTransport.(*http.Transport); ok {
		transport = standard.Clone()
	}
	transport.MaxIdleConns, transport.MaxIdleConnsPerHost = 0, 100 // all of them lead to one host
	cfg, err := a.tlsConfig()
	if cfg != nil {
		transport.TLSClientConfig = cfg
	}
	return transport, err
}

// tlsConfig returns the TLS settings that the flags say; nil: the standard ones.
func (a *address) tlsConfig() (*tls.Config, error) {
	switch given := cmp.Or(a.CACert, a.Cert, a.ClientKey); {
	case given == "":
		return nil, nil
	case !strings.HasPrefix(strings.ToLower(a.URL), "https:"):
		return nil, usagef("--cacert, --cert and --client-key are for https, and the server is %s; want its URL with https", a.URL)
	case a.Cert == "" && a.ClientKey != "":
		return nil, usagef("--client-key needs --cert, the certificate that the key is of")
	case a.Cert != "" && a.ClientKey == "":
		return nil, usagef("--cert needs --client-key, the private key of the certificate")
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if a.CACert != "" {
		text, err := os.ReadFile(a.CACert)
		if err != nil {
			return nil, usagef("--cacert: %s", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(text) {
			return nil, usagef("--cacert: %s has no certificate; want certificates of authorities in PEM, which begin with -----BEGIN CERTIFICATE-----", a.CACert)
		}
	}
	if a.Cert != "" {
		if _, err := a.clientCertificate(); err != nil {
			return nil, usagef("%s", err)
		}
		// Read again for each connection, so that a command that runs for long takes a new certificate.
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return a.clientCertificate() }
	}
	return cfg, nil
}

// clientCertificate returns the certificate that proves to the server who calls.
func (a *address) clientCertificate() (*tls.Certificate, error) {
	cert, err := os.ReadFile(a.Cert)
	if err != nil {
		return nil, fmt.Errorf("--cert: %w", err)
	}
	key, err := os.ReadFile(a.ClientKey)
	if err != nil {
		return nil, fmt.Errorf("--client-key: %w", err)
	}
	for _, file := range []struct {
		flag, path, end, wants string
		text                   []byte
	}{
		{"--cert", a.Cert, "CERTIFICATE", "a certificate", cert},
		{"--client-key", a.ClientKey, "PRIVATE KEY", "a private key", key},
	} {
		switch kind := pemKind(file.text, file.end); {
		case kind == "":
			return nil, fmt.Errorf("%s: %s has none; want %s in PEM, which begins with -----BEGIN", file.flag, file.path, file.wants)
		case strings.Contains(kind, "ENCRYPTED"):
			return nil, fmt.Errorf("%s: the key in %s is encrypted; want one that is not, such as `openssl pkey -in %s` prints", file.flag, file.path, file.path)
		}
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("--cert %s, --client-key %s: %s", a.Cert, a.ClientKey, strings.TrimPrefix(err.Error(), "tls: "))
	}
	return &pair, nil
}

// pemKind returns the type of the first block in PEM whose type has the end; empty: there is none. An encrypted key of the old form counts as
// ENCRYPTED.
func pemKind(text []byte, end string) string {
	for {
		var block *pem.Block
		if block, text = pem.Decode(bytes.TrimSpace(text)); block == nil {
			return ""
		}
		if strings.HasSuffix(block.Type, end) {
			if block.Headers["DEK-Info"] != "" {
				return "ENCRYPTED " + block.Type
			}
			return block.Type
		}
	}
}

// adviceOnTLS returns advice about a connection that failed because of TLS; empty: it is not about that.
func adviceOnTLS(err error) string {
	var hostname x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, new(x509.UnknownAuthorityError)):
		return "--cacert FILE ($QUEUED_CACERT) names the authority of the certificate, if it is one of your own"
	case errors.As(err, &hostname):
		return "the URL has to have a name that the certificate is for"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "the certificate has expired, is not valid yet, or the clock of this machine is wrong"
	case errors.Is(err, http.ErrSchemeMismatch):
		return "the server has no TLS there; want its URL with http"
	case strings.Contains(err.Error(), "remote error: tls: "): // no type of crypto/tls is exported for it
		return "the server refuses the TLS connection; where it wants a certificate, --cert and --client-key name it"
	}
	return ""
}
