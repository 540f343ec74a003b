package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/queue"
	"github.com/queued/queued/internal/ratelimit"
	"github.com/queued/queued/internal/seal"
)

// A set is all sources as the database had them at one time.
type set struct {
	byName map[string]*cachedSource
}

// A row is a source as the database has it, with its secrets.
type row struct {
	Name          string
	Kind          string
	Queue         *string
	Topic         *string
	Type          *string
	Key           *string
	EventTS       *string
	Priority      *string
	GroupKey      *string
	Signature     *json.RawMessage
	Header        *string
	Secrets       [][]byte
	DedupFor      time.Duration
	Tolerance     time.Duration
	KeepRaw       *time.Duration
	Headers       []string
	MaxBody       *int32
	RatePerSecond *float64
	RateBurst     *int32
	Paused        bool
	Version       int64
	CreatedAt     time.Time
	UpdatedAt     time.Time
}

const columns = `name, kind, queue, topic, type, key, event_ts, priority, group_key, signature, header, secrets, dedup_for, tolerance, keep_raw, headers, max_body,
	rate_per_second, rate_burst, paused, version, created_at, updated_at`

// A cachedSource is a source in memory, ready to verify and map. It is immutable; a change makes another one in its place.
type cachedSource struct {
	row
	verifier     Verifier
	mapping      Mapping
	secretFields []string      // header fields that have secrets, or had the one of the source: nothing is made of them
	problem      error         // why nothing can be received; nil: it can
	limiter      *rate.Limiter // of deliveries whose sender is known; nil: there is no limit
	refusals     *rate.Limiter // of the others
}

// owner is what the secrets of a source are sealed for.
func owner(name string) string { return seal.SourceSecret.Owner(name) }

// cache returns the source of a row in memory, whose proof was once in these header fields. before is the same source as it was, or nil.
func (s *Service) cache(r row, proofFields []string, before *cachedSource) *cachedSource {
	if before == nil {
		before = new(cachedSource)
	}
	h := &cachedSource{row: r, refusals: ratelimit.Renew(before.refusals, refusalsPerSec, refusalsBurst)}
	secrets, err := s.open(r.Name, r.Secrets)
	h.problem = err
	p := Params{Kind: Kind(r.Kind), Type: value(r.Type), Key: value(r.Key), EventTS: value(r.EventTS), Priority: value(r.Priority), Group: value(r.GroupKey), Headers: r.Headers}
	p.Header, p.Tolerance, p.Secrets = value(r.Header), r.Tolerance, secrets
	if r.Signature != nil {
		p.Signature = new(Signature)
		if err := json.Unmarshal(*r.Signature, p.Signature); err != nil {
			h.problem = errors.Join(h.problem, err)
		}
	}
	if h.verifier, h.mapping, err = p.compile(); err != nil && h.problem == nil {
		h.problem = fmt.Errorf("the source was changed by SQL to what it cannot be: %w", err)
	}
	h.secretFields = append(slices.Clone(CredentialFields), proofFields...)
	if proof := h.verifier.ProofField(); proof != "" {
		h.secretFields = append(h.secretFields, proof)
	}
	if r.RatePerSecond != nil && r.RateBurst != nil {
		h.limiter = ratelimit.Renew(before.limiter, *r.RatePerSecond, int(*r.RateBurst))
	}
	return h
}

func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// open opens the secrets of a source. It fails with ErrSealing.
func (s *Service) open(name string, sealed [][]byte) (secrets []string, err error) {
	if s.cfg.Sealer == nil {
		return nil, fmt.Errorf("%w: there is no key for them", ErrSealing)
	}
	for _, one := range sealed {
		secret, err := s.cfg.Sealer.Open(one, owner(name))
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrSealing, err)
		}
		secrets = append(secrets, secret)
	}
	return secrets, nil
}

// public returns a header without the fields that have secrets, or had the one of the source. A source that was written by hand may name some of them.
func (h *cachedSource) public(header http.Header) http.Header {
	header = maps.Clone(header)
	for _, name := range h.secretFields {
		header.Del(name)
	}
	return header
}

// compile returns what verifies and maps the deliveries of a source. It fails with an *InvalidError.
func (p *Params) compile() (v Verifier, m Mapping, err error) {
	v = Verifier{Kind: p.Kind, Secrets: p.Secrets, Tolerance: p.Tolerance, Header: p.Header}
	if p.Signature != nil {
		v.Signature = *p.Signature
	}
	if field, detail := v.Check(); field != "" {
		return v, m, &InvalidError{Field: field, Detail: detail}
	}
	for i, name := range p.Headers {
		if !IsFieldName(name) {
			return v, m, &InvalidError{Field: "headers", Detail: fmt.Sprintf("must be names of header fields: that at %d is none", i)}
		}
	}
	m = Mapping{Kind: p.Kind, Headers: p.Headers, MaxBatch: queue.MaxBatch}
	for _, t := range []struct {
		field, text string
		to          *Template
	}{{"type", p.Type, &m.Type}, {"key", p.Key, &m.Key}, {"event_ts", p.EventTS, &m.EventTS}, {"priority", p.Priority, &m.Priority}, {"group", p.Group, &m.Group}} {
		if *t.to, err = ParseTemplate(t.text); err != nil {
			return v, m, &InvalidError{Field: t.field, Detail: err.Error()}
		}
	}
	return v, m, nil
}

// read returns the sources as the database has them now. before are those of the latest time, nil at first.
func (s *Service) read(ctx context.Context, before *set) (*set, error) {
	rows, _ := s.pool.Query(ctx, `select `+columns+` from agent_service.read_sources()`)
	found, err := pg.Collect[row](rows)
	if err != nil {
		return nil, err
	}
	// Read last, they are those of the sources that were read, at least.
	rows, _ = s.pool.Query(ctx, `select name, fields from agent_service.list_proof_fields()`)
	proofs, err := pg.Collect[struct {
		Name   string
		Fields []string
	}](rows)
	if err != nil {
		return nil, err
	}
	proofFields := make(map[string][]string, len(proofs))
	for _, p := range proofs {
		proofFields[p.Name] = p.Fields
	}
	after := &set{byName: make(map[string]*cachedSource, len(found))}
	for _, r := range found {
		var known *cachedSource
		if before != nil {
			known = before.byName[r.Name]
		}
		h := s.cache(r, proofFields[r.Name], known)
		after.byName[r.Name] = h
		if h.problem != nil && (known == nil || known.problem == nil) {
			s.cfg.Logger.Error().Str("source", r.Name).Err(h.problem).Msg("nothing can be received from this source")
		}
	}
	return after, nil
}

// hasOthers reports whether the database has one of these sources, which are not in memory.
func (s *Service) hasOthers(ctx context.Context, current *set, names []string) (bool, error) {
	rows, _ := s.pool.Query(ctx, `select r.name from unnest($1::text[]) as asked (name) cross join lateral agent_service.read_sources(asked.name) r`, names)
	found, err := pg.Collect[struct{ Name string }](rows)
	for _, f := range found {
		if current.byName[f.Name] == nil {
			return true, err
		}
	}
	return false, err
}

// isName reports whether a source can have this name, see agent_private.check_source.
func isName(name string) bool {
	isOther := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._:-", r)
	}
	return name != "" && len(name) <= 128 && !strings.ContainsFunc(name, isOther)
}

// find returns a source. It fails with ErrNotFound, and with ErrUnavailable for a name that is not known here and cannot be looked up.
func (s *Service) find(ctx context.Context, name string) (*cachedSource, error) {
	if h := s.sources.Load().byName[name]; h != nil {
		return h, nil
	}
	if !isName(name) {
		return nil, ErrNotFound
	}
	if err := s.sources.LookUp(ctx, name); err != nil { // it may be new: what was notified of it may not have arrived
		if errors.Is(err, pg.ErrLookUps) {
			return nil, ErrLookUps
		}
		return nil, err
	}
	if h := s.sources.Load().byName[name]; h != nil {
		return h, nil
	}
	return nil, ErrNotFound
}
