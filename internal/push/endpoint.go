package push

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
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

	Epoch      int64
	Failures   int
	FailingFor *time.Duration
	LastError  *string
	IsOpen     bool
	Pause      *time.Duration
	RetryIn    *time.Duration
	IsDisabled bool
}

const rowColumns = `queue, url, format, headers, timeout, max_in_flight, rate_per_second, rate_burst, final_statuses, disable_after, version, secrets,
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
	signer        *egress.Signer

	version int64
	secrets [][]byte // sealed
}

// isSame reports whether the endpoint is that of a row.
func (e *endpoint) isSame(r *row) bool {
	return e.version == r.Version && slices.EqualFunc(e.secrets, r.Secrets, bytes.Equal)
}

// open returns the endpoint of a row. before is the one it replaces, or nil. It fails with seal.ErrSealed.
func (r *row) open(sealer *seal.Sealer, before *endpoint) (*endpoint, error) {
	e := &endpoint{
		url: r.URL, format: r.Format, timeout: r.Timeout, maxInFlight: r.MaxInFlight, finalStatuses: r.FinalStatuses, disableAfter: r.DisableAfter,
		header: make(http.Header), version: r.Version, secrets: r.Secrets,
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
	secrets := make([]string, len(r.Secrets))
	for i, sealed := range r.Secrets {
		var err error
		if secrets[i], err = sealer.Open(sealed, seal.PushSecret.Owner(r.Queue)); err != nil {
			return nil, fmt.Errorf("opening a secret: %w", err)
		}
	}
	var err error
	e.signer, err = egress.NewSigner(secrets...)
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
