package push

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"golang.org/x/time/rate"

	"github.com/queued/queued/internal/egress"
	"github.com/queued/queued/internal/ratelimit"
	"github.com/queued/queued/internal/seal"
)

// A row is a push as the database has it for those who push.
type row struct {
	Queue         string
	URL           string
	Format        Format
	Headers       []byte
	Timeout       time.Duration
	MaxInFlight   int
	RatePerSecond *float64
	RateBurst     *int
	FinalStatuses []int
	DisableAfter  time.Duration
	Version       int64
	Secrets       [][]byte
	SecretsUntil  []*time.Time

	Epoch      int64
	Failures   int
	FailingFor *time.Duration
	LastError  *string
	IsOpen     bool
	Pause      *time.Duration
	RetryIn    *time.Duration
	IsDisabled bool
}

const rowColumns = `queue, url, format, headers, timeout, max_in_flight, rate_per_second, rate_burst, final_statuses, disable_after, version, secrets, secrets_until,
	epoch, failures, failing_for, last_error, is_open, pause, retry_in, is_disabled`

// An endpoint is where the events of a queue are pushed to, ready for use. It does not change.
type endpoint struct {
	url           string
	format        Format
	header        http.Header // fields that the user wants
	timeout       time.Duration
	maxInFlight   int
	limiter       *rate.Limiter // nil: there is no limit
	finalStatuses []int
	disableAfter  time.Duration
	secrets       []secret // the current one first

	version int64
}

// A secret is one that requests are signed with.
type secret struct {
	text   string
	sealed []byte
	until  *time.Time // by the database's clock; nil: it is the current one
}

// isSame reports whether the endpoint is that of a row.
func (e *endpoint) isSame(r *row) bool {
	if e.version != r.Version || len(e.secrets) != len(r.Secrets) {
		return false
	}
	for i, s := range e.secrets {
		until := r.SecretsUntil[i]
		if !bytes.Equal(s.sealed, r.Secrets[i]) || (s.until == nil) != (until == nil) || until != nil && !until.Equal(*s.until) {
			return false
		}
	}
	return true
}

// signer returns what signs at a time of the database: with the secrets that are live then, of which the first always is one.
func (e *endpoint) signer(now time.Time) (*egress.Signer, error) {
	var live []string
	for i, s := range e.secrets {
		if i == 0 || s.until == nil || now.Before(*s.until) {
			live = append(live, s.text)
		}
	}
	return egress.NewSigner(live...)
}

// open returns the endpoint of a row. before is the one it replaces, or nil. It fails with seal.ErrSealed.
func (r *row) open(sealer *seal.Sealer, before *endpoint) (*endpoint, error) {
	e := &endpoint{
		url: r.URL, format: r.Format, timeout: r.Timeout, maxInFlight: r.MaxInFlight, finalStatuses: r.FinalStatuses, disableAfter: r.DisableAfter,
		header: make(http.Header), version: r.Version, secrets: make([]secret, len(r.Secrets)),
	}
	if limit := rateOf(r.RatePerSecond, r.RateBurst); limit != nil {
		if before == nil {
			before = new(endpoint)
		}
		e.limiter = ratelimit.Renew(before.limiter, limit.PerSecond, limit.Burst)
	}
	if r.Headers != nil {
		text, err := sealer.Open(r.Headers, seal.PushHeaders.Owner(r.Queue))
		if err != nil {
			return nil, fmt.Errorf("opening the header fields: %w", err)
		}
		var fields map[string]string
		if err := json.Unmarshal([]byte(text), &fields); err != nil {
			return nil, fmt.Errorf("reading the header fields: %w", err)
		}
		e.header = egress.Headers(fields)
	}
	var texts []string
	for i, sealed := range r.Secrets {
		text, err := sealer.Open(sealed, seal.PushSecret.Owner(r.Queue))
		if err != nil {
			return nil, fmt.Errorf("opening a secret: %w", err)
		}
		e.secrets[i] = secret{text: text, sealed: sealed, until: r.SecretsUntil[i]}
		texts = append(texts, text)
	}
	_, err := egress.NewSigner(texts...) // so that what cannot sign is said now
	return e, err
}

// state returns the state that a row tells of.
func (r *row) state(now time.Time) state {
	s := state{epoch: r.Epoch, failures: r.Failures, isOpen: r.IsOpen}
	if r.FailingFor != nil {
		s.failingSince = now.Add(-*r.FailingFor)
	}
	if r.LastError != nil {
		s.lastError = *r.LastError
	}
	if r.Pause != nil {
		s.pause = *r.Pause
	}
	if r.RetryIn != nil {
		s.until = now.Add(*r.RetryIn)
	}
	if r.IsDisabled {
		s.disabledReason = "disabled"
	}
	return s
}
