// Package certificate has the files of TLS: the server's certificate and key, and the authorities whose clients it answers. It reads them
// again when they change, while the server runs, and keeps the old ones when the new ones are unusable.
//
// A Reloader has one goroutine, that of Run. The identity is replaced as a whole, and never changed.
package certificate

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
)

// defaultInterval is the time between two looks at the files. A look reads a few kilobytes.
const defaultInterval = time.Second

// A File is a file that the operator has named.
type File struct {
	Setting string // the operator's name of the setting; errors and logs begin with it
	Path    string
}

// Config holds the settings of Open.
type Config struct {
	Cert     File           // PEM: the server's certificate, then those that lead to its authority
	Key      File           // PEM: the private key of the certificate
	ClientCA File           // PEM: the authorities of client certificates; no Path: clients need none
	Logger   zerolog.Logger // zero: silent
	Interval time.Duration  // between two looks at the files; zero: a second
	Now      func() time.Time
}

// A Reloader has the certificate that the server shows. It is safe for concurrent use.
type Reloader struct {
	cfg     Config
	current atomic.Pointer[identity]

	failures   prometheus.Counter
	expiration prometheus.GaugeFunc
}

// Open reads the files. It fails with the name of the setting whose file cannot be used: because it cannot be read, is no PEM, does not
// belong to the others, or because the certificate is not valid today.
func Open(cfg Config) (*Reloader, error) {
	cfg.Interval = cmp.Or(cfg.Interval, defaultInterval)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	r := &Reloader{cfg: cfg}
	r.failures = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "queued_tls_reload_failures_total",
		Help: "Changes of the certificate's files that this process could not use; it kept the certificate it had.",
	})
	r.expiration = prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "queued_tls_certificate_expiration_timestamp_seconds",
		Help: "When the certificate that this process shows ends, in seconds since 1970.",
	}, func() float64 { return float64(r.current.Load().leaf.NotAfter.Unix()) })
	files, err := r.read()
	if err != nil {
		return nil, err
	}
	loaded, err := r.parse(files)
	if err != nil {
		return nil, err
	}
	r.use(loaded, "the certificate was read")
	return r, nil
}

// Register registers the metrics of s. It panics when they are registered already.
func (r *Reloader) Register(registry prometheus.Registerer) {
	registry.MustRegister(r.failures, r.expiration)
}

// Names returns the names and addresses that the certificate is for.
func (r *Reloader) Names() []string { return r.current.Load().names() }

// TLSConfig returns the configuration of a server that shows the current certificate to each new connection. It offers HTTP/2 and
// HTTP/1.1, over TLS 1.2 or later. With a client CA it asks clients for a certificate, and lets in those who have none: VerifyClient tells.
func (r *Reloader) TLSConfig() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		NextProtos:         protocols,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return r.current.Load().config, nil },
	}
}

// Run looks at the files until ctx ends, and uses those that have changed. It returns nil.
//
// It compares contents, so it does not matter how a file was replaced: written over, renamed, or reached by another symbolic link. It uses
// contents that are the same at two looks, so that the certificate and the key may be replaced one after the other.
func (r *Reloader) Run(ctx context.Context) error {
	var last attempt
	tick := time.NewTicker(r.cfg.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			last = r.look(last)
		}
	}
}

// An attempt is the result of a look at the files.
type attempt struct {
	files    *contents // nil: they could not be read
	err      string    // of reading the files, or of using them once they had stayed the same; empty: none
	reported string    // the error that the log has; empty: none, or it has passed
	expired  bool      // the log has that the certificate has expired
}

// look looks at the files once, given the result of the look before.
func (r *Reloader) look(last attempt) attempt {
	now := attempt{reported: last.reported, expired: last.expired}
	files, err := r.read()
	var isStable bool
	if err != nil {
		now.err = err.Error()
		isStable = last.files == nil && last.err == now.err
	} else {
		now.files = files
		isStable = last.files != nil && last.files.equal(files)
	}
	current := r.current.Load()
	switch {
	case !isStable:
	case err == nil && current.files.equal(files):
		now.reported = ""
	default:
		var loaded *identity
		if err == nil {
			loaded, err = r.parse(files)
		}
		if err == nil {
			r.use(loaded, "the certificate has changed and was read again")
			return attempt{files: files}
		}
		if now.reported != err.Error() {
			now.reported = err.Error()
			r.failures.Inc()
			r.cfg.Logger.Error().Str("error", now.reported).Str("kept", current.leaf.Subject.String()).Time("kept_until", current.leaf.NotAfter.UTC()).
				Msg("the certificate's files have changed and cannot be used; the certificate that was read before stays")
		}
	}
	if !now.expired && r.cfg.Now().After(current.leaf.NotAfter) {
		now.expired = true
		r.cfg.Logger.Error().Time("not_after", current.leaf.NotAfter.UTC()).Msg("the certificate has expired: clients refuse it")
	}
	return now
}

// use shows the loaded identity from now on.
func (r *Reloader) use(loaded *identity, message string) {
	r.current.Store(loaded)
	r.cfg.Logger.Info().Str("subject", loaded.leaf.Subject.String()).Strs("names", loaded.names()).Time("not_after", loaded.leaf.NotAfter.UTC()).
		Bool("client_ca", loaded.roots != nil).Msg(message)
}

// contents are those of the files.
type contents struct{ cert, key, clientCA []byte }

func (c *contents) equal(other *contents) bool {
	return bytes.Equal(c.cert, other.cert) && bytes.Equal(c.key, other.key) && bytes.Equal(c.clientCA, other.clientCA)
}

// read reads the files.
func (r *Reloader) read() (*contents, error) {
	var c contents
	var errs [3]error
	c.cert, errs[0] = r.cfg.Cert.read()
	c.key, errs[1] = r.cfg.Key.read()
	if r.cfg.ClientCA.Path != "" {
		c.clientCA, errs[2] = r.cfg.ClientCA.read()
	}
	return &c, errors.Join(errs[:]...)
}
