package certificate

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/queued/queued/internal/certtest"
)

// waitTimeout bounds every wait, for a busy machine.
const waitTimeout = time.Minute

// files are the files of a Reloader in a directory, and what it logs.
type files struct {
	t         *testing.T
	dir       string
	authority *certtest.Authority
	cfg       Config
	log       *logBuffer
}

func setup(t *testing.T) *files {
	t.Helper()
	f := &files{t: t, dir: t.TempDir(), authority: certtest.New(t, "Test CA"), log: newLogBuffer()}
	f.cfg = Config{
		Cert:   File{"QUEUED_TLS_CERT", filepath.Join(f.dir, "cert.pem")},
		Key:    File{"QUEUED_TLS_KEY", filepath.Join(f.dir, "key.pem")},
		Logger: zerolog.New(f.log),
	}
	f.issue("first")
	return f
}

// issue replaces the certificate and its key.
func (f *files) issue(name string) (cert, key []byte) {
	f.t.Helper()
	cert, key = f.authority.Issue(certtest.Request{Name: name, Hosts: []string{"queue.example", "127.0.0.1"}})
	f.write("cert.pem", cert)
	f.write("key.pem", key)
	return cert, key
}

func (f *files) write(name string, content []byte) {
	f.t.Helper()
	certtest.Write(f.t, f.dir, name, content)
}

// withClientCA has the authority's certificate be the client CA.
func (f *files) withClientCA() *files {
	f.t.Helper()
	f.write("ca.pem", f.authority.PEM())
	f.cfg.ClientCA = File{"QUEUED_TLS_CLIENT_CA", filepath.Join(f.dir, "ca.pem")}
	return f
}

func (f *files) open() *Reloader {
	f.t.Helper()
	s, err := Open(f.cfg)
	if err != nil {
		f.t.Fatal(err)
	}
	return s
}

// shown returns the name in the certificate that s shows.
func shown(t *testing.T, s *Reloader) string {
	t.Helper()
	config, err := s.TLSConfig().GetConfigForClient(nil)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(config.Certificates[0].Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	return leaf.Subject.CommonName
}

// value returns the value of a metric of s.
func value(t *testing.T, s *Reloader, name string) float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	s.Register(registry)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == name {
			return family.GetMetric()[0].GetCounter().GetValue() + family.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}

const reloadFailures = "queued_tls_reload_failures_total"

func TestUnusableFileFailsTheStartWithItsSetting(t *testing.T) {
	t.Parallel()
	now := time.Now()
	issue := func(f *files, req certtest.Request) {
		req.Name, req.Hosts = "server", []string{"queue.example"}
		cert, key := f.authority.Issue(req)
		f.write("cert.pem", cert)
		f.write("key.pem", key)
	}
	for name, test := range map[string]struct {
		change func(f *files)
		want   string
	}{
		"no certificate file": {func(f *files) { _ = os.Remove(f.cfg.Cert.Path) }, "QUEUED_TLS_CERT: open "},
		"no key file":         {func(f *files) { _ = os.Remove(f.cfg.Key.Path) }, "QUEUED_TLS_KEY: open "},
		"no PEM":              {func(f *files) { f.write("cert.pem", []byte("hello")) }, "QUEUED_TLS_CERT: DIR/cert.pem has no certificate; it takes PEM"},
		"broken certificate": {func(f *files) {
			f.write("cert.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")}))
		}, "QUEUED_TLS_CERT: certificate 1 in DIR/cert.pem cannot be read: "},
		"too large": {func(f *files) { f.write("cert.pem", bytes.Repeat([]byte("\n"), maxFile+1)) }, "QUEUED_TLS_CERT: DIR/cert.pem holds more than "},
		"another key": {func(f *files) {
			_, key := f.authority.Issue(certtest.Request{Name: "other"})
			f.write("key.pem", key)
		}, "QUEUED_TLS_KEY: the key in DIR/key.pem does not belong to the certificate in DIR/cert.pem (QUEUED_TLS_CERT)"},
		"a certificate for a key": {func(f *files) { f.write("key.pem", f.authority.PEM()) }, "QUEUED_TLS_KEY: DIR/key.pem has no private key"},
		"broken key": {func(f *files) {
			f.write("key.pem", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("x")}))
		}, "QUEUED_TLS_KEY: the private key in DIR/key.pem cannot be read: "},
		"cut off key": {func(f *files) {
			f.write("key.pem", []byte("-----BEGIN PRIVATE KEY-----\nMIG"))
		}, "QUEUED_TLS_KEY: the private key in DIR/key.pem cannot be read: the PEM is broken"},
		"encrypted key": {func(f *files) {
			f.write("key.pem", pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED PRIVATE KEY", Bytes: []byte("x")}))
		}, "QUEUED_TLS_KEY: the key in DIR/key.pem is encrypted"},
		"expired": {func(f *files) {
			issue(f, certtest.Request{NotAfter: now.Add(-time.Minute)})
		}, "QUEUED_TLS_CERT: the certificate in DIR/cert.pem expired on " + now.Add(-time.Minute).UTC().Format("2006-01-02")},
		"not yet valid": {func(f *files) {
			issue(f, certtest.Request{NotBefore: now.Add(time.Minute)})
		}, "QUEUED_TLS_CERT: the certificate in DIR/cert.pem is not valid before "},
		"no client CA":        {func(f *files) { _ = os.Remove(f.cfg.ClientCA.Path) }, "QUEUED_TLS_CLIENT_CA: open "},
		"client CA of no use": {func(f *files) { f.write("ca.pem", nil) }, "QUEUED_TLS_CLIENT_CA: DIR/ca.pem has no certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := setup(t).withClientCA()
			test.change(f)
			_, err := Open(f.cfg)
			if want := strings.ReplaceAll(test.want, "DIR", f.dir); err == nil || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("got %v, want %s…", err, want)
			}
		})
	}
}

func TestKeyAfterItsParametersIsRead(t *testing.T) {
	t.Parallel()
	_, key := certtest.New(t, "CA").Issue(certtest.Request{Name: "x"})
	if err := checkPrivateKey(append(pem.EncodeToMemory(&pem.Block{Type: "EC PARAMETERS", Bytes: []byte("x")}), key...)); err != nil {
		t.Error(err)
	}
}

func TestChangedFilesAreUsedHoweverTheyWereReplaced(t *testing.T) {
	t.Parallel()
	for name, replace := range map[string]func(f *files){
		"renamed": func(f *files) { f.issue("second") },
		"written over": func(f *files) {
			cert, key := f.authority.Issue(certtest.Request{Name: "second", Hosts: []string{"queue.example"}})
			for path, content := range map[string][]byte{f.cfg.Cert.Path: cert, f.cfg.Key.Path: key} {
				if err := os.WriteFile(path, content, 0o600); err != nil {
					f.t.Fatal(err)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := setup(t)
			s := f.open()
			replace(f)
			s.look(s.look(attempt{}))
			if got := shown(t, s); got != "second" {
				t.Errorf("it shows the certificate of %q", got)
			}
			if n := value(t, s, reloadFailures); n != 0 {
				t.Errorf("%v failures", n)
			}
		})
	}
}

// TestKubernetesSecretIsFollowed replaces a secret as Kubernetes does: the files are links to files in a directory that is itself a link,
// which is replaced.
func TestKubernetesSecretIsFollowed(t *testing.T) {
	t.Parallel()
	f := setup(t)
	mount := t.TempDir()
	publish := func(version string) {
		t.Helper()
		cert, key := f.authority.Issue(certtest.Request{Name: version, Hosts: []string{"queue.example"}})
		dir := filepath.Join(mount, "..version_"+version)
		err := os.Mkdir(dir, 0o700)
		if err == nil {
			err = os.Symlink(dir, filepath.Join(mount, "..data.new"))
		}
		if err != nil {
			t.Fatal(err)
		}
		certtest.Write(t, dir, "tls.crt", cert)
		certtest.Write(t, dir, "tls.key", key)
		if err := os.Rename(filepath.Join(mount, "..data.new"), filepath.Join(mount, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	publish("1")
	for _, name := range []string{"tls.crt", "tls.key"} {
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(mount, name)); err != nil {
			t.Fatal(err)
		}
	}
	f.cfg.Cert.Path, f.cfg.Key.Path = filepath.Join(mount, "tls.crt"), filepath.Join(mount, "tls.key")
	s := f.open()
	last := s.look(attempt{})
	publish("2")
	s.look(s.look(last))
	if got := shown(t, s); got != "2" {
		t.Errorf("it shows the certificate of %q", got)
	}
}

func TestCertificateAndKeyMayBeReplacedOneAfterTheOther(t *testing.T) {
	t.Parallel()
	f := setup(t)
	s := f.open()
	last := s.look(attempt{})
	cert, key := f.authority.Issue(certtest.Request{Name: "second", Hosts: []string{"queue.example"}})
	f.write("cert.pem", cert)
	last = s.look(last)
	f.write("key.pem", key)
	last = s.look(last)
	if got := shown(t, s); got != "first" {
		t.Errorf("it shows the certificate of %q before its files have stayed the same", got)
	}
	s.look(last)
	if got := shown(t, s); got != "second" {
		t.Errorf("it shows the certificate of %q", got)
	}
	if n := value(t, s, reloadFailures); n != 0 {
		t.Errorf("%v failures", n)
	}
}

func TestUnusableChangeKeepsTheCertificateAndIsReportedOnce(t *testing.T) {
	t.Parallel()
	f := setup(t)
	s := f.open()
	var last attempt
	look := func(times int) {
		for range times {
			last = s.look(last)
		}
	}
	for i, spoil := range []func(){
		func() { f.write("cert.pem", []byte("no PEM")) },
		func() { _ = os.Remove(f.cfg.Cert.Path) },
		func() { f.issue("mismatch"); f.write("key.pem", []byte("-----BEGIN PRIVATE KEY-----")) },
		func() {
			cert, key := f.authority.Issue(certtest.Request{Name: "expired", NotAfter: time.Now().Add(-time.Second)})
			f.write("cert.pem", cert)
			f.write("key.pem", key)
		},
	} {
		spoil()
		look(5)
		if got := shown(t, s); got != "first" {
			t.Errorf("change %d: it shows the certificate of %q", i, got)
		}
		if n := value(t, s, reloadFailures); n != float64(i+1) {
			t.Errorf("change %d: %v failures", i, n)
		}
		if n := strings.Count(f.log.String(), "the certificate that was read before stays"); n != i+1 {
			t.Errorf("change %d: the log says it %d times:\n%s", i, n, f.log)
		}
	}
	f.issue("repaired")
	look(2)
	if got := shown(t, s); got != "repaired" {
		t.Errorf("it shows the certificate of %q", got)
	}
	f.write("cert.pem", []byte("no PEM"))
	look(2)
	if n := value(t, s, reloadFailures); n != 5 {
		t.Errorf("the same failure after a repair is not reported: %v failures", n)
	}
}

func TestExpiryIsReportedOnceAndMeasured(t *testing.T) {
	t.Parallel()
	f := setup(t)
	now := time.Now()
	f.cfg.Now = func() time.Time { return now }
	s := f.open()
	end := value(t, s, "queued_tls_certificate_expiration_timestamp_seconds")
	if left := time.Until(time.Unix(int64(end), 0)); left < 50*time.Minute || left > time.Hour {
		t.Errorf("the certificate ends in %s, want an hour", left)
	}
	last := s.look(attempt{})
	if strings.Contains(f.log.String(), "has expired") {
		t.Error("it is said to have expired an hour too early")
	}
	now = now.Add(2 * time.Hour)
	s.look(s.look(last))
	if n := strings.Count(f.log.String(), "the certificate has expired"); n != 1 {
		t.Errorf("the log says %d times that it has expired", n)
	}
}

func TestRunReadsChangesUntilItEnds(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.cfg.Interval = time.Millisecond
	s := f.open()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	f.issue("second")
	f.log.wait(t, "the certificate has changed")
	if got := shown(t, s); got != "second" {
		t.Errorf("it shows the certificate of %q", got)
	}
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(waitTimeout):
		t.Error("it did not end")
	}
}

// state is the connection of a client that shows a certificate, followed by others.
func state(t *testing.T, chain ...[]byte) *tls.ConnectionState {
	t.Helper()
	parsed, err := File{Setting: "test"}.certificates(bytes.Join(chain, nil))
	if err != nil {
		t.Fatal(err)
	}
	return &tls.ConnectionState{PeerCertificates: parsed}
}

func TestClientCertificateMustBeSignedForClientsAndValid(t *testing.T) {
	t.Parallel()
	f := setup(t).withClientCA()
	now := time.Now()
	f.cfg.Now = func() time.Time { return now }
	s := f.open()
	refused := func(what, want string, conn *tls.ConnectionState) {
		t.Helper()
		if subject, err := s.VerifyClient(conn); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %q and %v, want an error with %q", what, subject, err, want)
		}
	}
	accepted := func(what, want string, conn *tls.ConnectionState) {
		t.Helper()
		for range 2 { // from memory the second time
			if subject, err := s.VerifyClient(conn); err != nil || subject != want {
				t.Errorf("%s: got %q and %v, want %q", what, subject, err, want)
			}
		}
	}
	good, _ := f.authority.Issue(certtest.Request{Name: "mailer"})
	accepted("a good one", "CN=mailer", state(t, good))

	intermediate := f.authority.Intermediate("Team CA")
	below, _ := intermediate.Issue(certtest.Request{Name: "team"})
	accepted("one of an intermediate authority", "CN=team", state(t, below, intermediate.PEM()))

	refused("none", ErrNoClientCertificate.Error(), &tls.ConnectionState{})
	refused("plain HTTP", ErrNoClientCertificate.Error(), nil)
	foreign, _ := certtest.New(t, "Test CA").Issue(certtest.Request{Name: "mailer"})
	refused("another authority of the same name", `"CN=mailer" is refused: x509: certificate signed by unknown authority`, state(t, foreign))
	server, _ := f.authority.Issue(certtest.Request{Name: "server", Hosts: []string{"queue.example"}})
	refused("one for servers", "incompatible key usage", state(t, server))
	now = now.Add(2 * time.Hour)
	refused("one that has expired meanwhile", "expired", state(t, good))
}

func TestChangedClientCAJudgesOpenConnections(t *testing.T) {
	t.Parallel()
	f := setup(t).withClientCA()
	s := f.open()
	good, _ := f.authority.Issue(certtest.Request{Name: "mailer"})
	conn := state(t, good)
	if _, err := s.VerifyClient(conn); err != nil {
		t.Fatal(err)
	}
	f.write("ca.pem", certtest.New(t, "Next CA").PEM())
	s.look(s.look(attempt{}))
	if _, err := s.VerifyClient(conn); err == nil {
		t.Error("a certificate of an authority that was removed is accepted")
	}
}

// logBuffer is what was logged.
type logBuffer struct {
	mu       sync.Mutex
	text     strings.Builder
	nextLine chan struct{}
}

func newLogBuffer() *logBuffer { return &logBuffer{nextLine: make(chan struct{})} }

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.nextLine)
	b.nextLine = make(chan struct{})
	return b.text.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// wait waits until text was logged.
func (b *logBuffer) wait(t *testing.T, text string) {
	t.Helper()
	for late := time.After(waitTimeout); ; {
		b.mu.Lock()
		found, nextLine := strings.Contains(b.text.String(), text), b.nextLine
		b.mu.Unlock()
		if found {
			return
		}
		select {
		case <-nextLine:
		case <-late:
			t.Fatalf("the log does not say %q:\n%s", text, b)
		}
	}
}
