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

	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/queue"
	"github.com/queued/queued/internal/ratelimit"
	"github.com/queued/queued/internal/topic"
)

// An Admission is a delivery whose source is known, before its body is read.
type Admission struct {
	svc       *Service
	source    *cachedSource
	requestID string
	spent     time.Duration // of the time limit
	isProven  bool          // by its header
	isCounted bool          // by the rate limit of the source
	code      string        // why it was rejected; empty: it was not
}

// Admit returns the admission of a delivery. It fails with ErrNotFound, ErrPaused, ErrSealing, and with ErrUnavailable for a name that is not known and
// cannot be looked up.
func (s *Service) Admit(ctx context.Context, name, requestID string) (*Admission, error) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, s.cfg.TimeLimit)
	defer cancel()
	h, err := s.find(ctx, name)
	if err == nil {
		err = s.checkOpen(h)
	}
	if err != nil {
		return nil, err
	}
	return &Admission{svc: s, source: h, requestID: requestID, spent: time.Since(began)}, nil
}

// VerifyHeader verifies the header of a delivery before its body is read, and returns whether that is all: then the sender is known, else anybody may
// be the sender until Receive has seen the body. It fails with a *RejectedError, and with a *RateError when the sender is known.
func (a *Admission) VerifyHeader(header http.Header) (isProven bool, err error) {
	a.isProven, err = a.source.verifier.VerifyHeader(header, a.svc.cfg.Now())
	switch {
	case err != nil:
		return false, a.refuse(err)
	case a.isProven:
		return true, a.takeRate()
	}
	return false, nil
}

// refuse counts a delivery without a proof, and returns its error. Refusals have a limit of their own: none of them takes anything of the source's.
func (a *Admission) refuse(err error) error {
	refusal := asRefusal(err)
	a.Reject(refusal.Code)
	return &RejectedError{refusal.Code, refusal.Reason, ratelimit.Take(a.source.refusals, time.Now())}
}

// takeRate takes a delivery, whose sender is known, from the rate limit of the source, once. It fails with a *RateError.
func (a *Admission) takeRate() error {
	if a.isCounted || a.source.limiter == nil {
		return nil
	}
	a.isCounted = true
	if retry := ratelimit.Take(a.source.limiter, time.Now()); retry > 0 {
		a.svc.reject(a.source.Name, rateLimited, "rate_limited", a.requestID)
		return &RateError{retry}
	}
	return nil
}

// checkOpen returns why a source takes nothing now, and counts that.
func (s *Service) checkOpen(h *cachedSource) error {
	switch {
	case h.Paused:
		s.count(h.Name, paused, nil)
		return ErrPaused
	case h.problem != nil:
		s.count(h.Name, failed, nil)
		return h.problem
	}
	return nil
}

// Kind returns the kind of the source.
func (a *Admission) Kind() Kind { return a.source.verifier.Kind }

// MaxBody returns how long a body may be, at most limit.
func (a *Admission) MaxBody(limit int64) int64 {
	if a.source.MaxBody != nil {
		return min(limit, int64(*a.source.MaxBody))
	}
	return limit
}

// Reject counts that a delivery was refused before it was read whole.
func (a *Admission) Reject(code string) {
	a.code = code
	a.svc.reject(a.source.Name, rejected, code, a.requestID)
}

// RatePerMinute returns how many deliveries a minute the source takes; zero: any number.
func (a *Admission) RatePerMinute() int {
	if a.source.RatePerSecond == nil {
		return 0
	}
	return max(1, int(*a.source.RatePerSecond*60))
}

// Look returns the admission of a handshake. It fails as Admit does, but takes nothing of the rate limit.
func (s *Service) Look(ctx context.Context, name string) (*Admission, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.TimeLimit)
	defer cancel()
	h, err := s.find(ctx, name)
	if err != nil {
		return nil, err
	}
	return &Admission{svc: s, source: h}, nil
}

// Receive verifies a delivery over its raw bytes, maps it, and inserts or publishes its event, once for its key. It returns when that is committed. It fails
// with a *RejectedError, a *RateError, a *BodyError, as Delivery.Verified and queue.Service.Insert do, and with ErrUnavailable when its time is over. The source
// counts as it is by now, since a body may take a minute: it fails with ErrNotFound, ErrPaused and ErrSealing, too.
func (a *Admission) Receive(ctx context.Context, d Delivery) (Result, error) {
	s, h := a.svc, a.svc.sources.Load().byName[a.source.Name]
	if h == nil {
		return Result{}, ErrNotFound
	}
	if err := s.checkOpen(h); err != nil {
		return Result{}, err
	}
	a.source = h
	ctx, cancel := context.WithTimeout(ctx, max(0, s.cfg.TimeLimit-a.spent))
	defer cancel()
	if err := h.verifier.Verify(d.Header, d.Body, s.cfg.Now()); err != nil {
		return Result{}, a.refuse(err)
	}
	a.isProven = true
	if err := a.takeRate(); err != nil {
		return Result{}, err
	}
	if d.Verified != nil {
		if err := d.Verified(); err != nil {
			s.count(h.Name, failed, nil)
			return Result{}, err
		}
	}
	all, isBatch, err := h.mapAll(&d, s.cfg.Now())
	switch {
	case err != nil:
		s.reject(h.Name, invalid, "invalid_body", a.requestID)
		return Result{}, &BodyError{err}
	case len(all) > 0 && all[0].Challenge != "":
		s.count(h.Name, challenge, nil)
		return Result{Challenge: all[0].Challenge}, nil
	}
	result, err := s.store(ctx, h, &d, all, isBatch)
	if len(all) > 0 {
		result.Key = all[0].Key
	}
	switch {
	case errors.Is(err, pg.ErrInvalid), errors.Is(err, pg.ErrUnrepresentable):
		s.reject(h.Name, invalid, "invalid_body", a.requestID)
		return Result{}, &BodyError{err}
	case err != nil:
		s.count(h.Name, failed, nil)
		return Result{}, err
	}
	kind := received
	if result.Deduplicated {
		kind = duplicate
	}
	s.count(h.Name, kind, func(t *tally, now time.Time) {
		t.Received++
		t.ReceivedAt = &now
		if result.Deduplicated {
			t.Duplicates++
		}
		var problems []string
		for i := range all {
			problems = append(problems, all[i].Problems...)
		}
		if len(problems) > 0 {
			text := strings.Join(problems, "; ")
			text = strings.ToValidUTF8(strings.ReplaceAll(text[:min(len(text), maxProblem)], "\x00", ""), "")
			t.ProblemAt, t.Problem, t.ProblemRequestID = &now, &text, &a.requestID
		}
	})
	return result, nil
}

func asRefusal(err error) *Refusal {
	if refusal, ok := errors.AsType[*Refusal](err); ok {
		return refusal
	}
	return &Refusal{Code: NoMatch, Reason: err.Error()}
}

// maxProblem bounds the text kept of the problems of a delivery, in bytes: a batch has as many as events.
const maxProblem = 4096

// The times that an event may have, see agent_private.check_insert_options; a little less, for a database whose clock differs.
const (
	maxPast   = 10*365*24*time.Hour - time.Hour
	maxFuture = 23 * time.Hour
)

// mapAll maps a delivery to its events: to one, unless it is a batch.
func (h *cachedSource) mapAll(d *Delivery, now time.Time) (all []Mapped, isBatch bool, err error) {
	all, isBatch, err = h.mapping.MapAll(h.public(d.Header), d.Query, d.Body)
	for i := range all {
		if err == nil {
			err = h.fit(d, &all[i], now)
		}
	}
	return all, isBatch, err
}

// fit makes an event one that can be stored. A field that does not fit is left out, and noted: a sender would only send it again.
func (h *cachedSource) fit(d *Delivery, mapped *Mapped, now time.Time) error {
	if mapped.Challenge != "" {
		return nil
	}
	if d.Check != nil {
		if err := h.checkEvent(d, mapped); err != nil {
			return err
		}
	}
	if at := mapped.EventTS; !at.IsZero() && (at.Before(now.Add(-maxPast)) || at.After(now.Add(maxFuture))) {
		mapped.EventTS = time.Time{}
		mapped.Problems = append(mapped.Problems, "event_ts: is more than ten years in the past, or a day in the future")
	}
	for name, field := range map[string]*string{"type": &mapped.Type, "key": &mapped.Key} {
		if strings.ContainsRune(*field, 0) || strings.ToValidUTF8(*field, "") != *field {
			*field = ""
			mapped.Problems = append(mapped.Problems, name+": has characters that cannot be stored")
		}
	}
	return nil
}

// checkEvent makes sure that an event can be stored: as bytes if it cannot be as it is, with a problem. That is no way for CloudEvents, which say themselves what they have.
func (h *cachedSource) checkEvent(d *Delivery, mapped *Mapped) error {
	refused := d.Check(mapped.Event)
	if refused == nil || h.mapping.Kind == CloudEvents {
		return refused
	}
	event, err := json.Marshal(asBytes(d.Body))
	if err != nil || d.Check(event) != nil { // it is too long
		return refused
	}
	mapped.Event = event
	mapped.Problems = append(mapped.Problems, "body: it is stored as bytes: "+refused.Error())
	return nil
}

// store inserts or publishes the events of a delivery, all or none.
func (s *Service) store(ctx context.Context, h *cachedSource, d *Delivery, all []Mapped, isBatch bool) (result Result, err error) {
	result.IsBatch = isBatch
	metas := make([]json.RawMessage, len(all))
	for i := range all {
		if metas[i], err = metaOf(h, &all[i]); err != nil {
			return Result{}, err
		}
	}
	if d.Sending != nil {
		destination := h.Topic
		if destination == nil {
			destination = h.Queue
		}
		sent := d.Sending(h.Topic != nil, *destination, isBatch, metas)
		defer func() {
			id := int64(0)
			if made := slices.Concat(result.IDs, result.Positions); err == nil && !isBatch && len(made) > 0 {
				id = made[0]
			}
			sent(id, err)
		}()
	}
	result.Deduplicated = len(all) > 0
	if h.Topic != nil {
		publications := make([]topic.Publication, len(all))
		for i := range all {
			publications[i] = topic.Publication{
				Topic: *h.Topic, Event: all[i].Event, Meta: metas[i], IdempotencyKey: all[i].Key, KeyFor: h.DedupFor, KeyScope: owner(h.Name), OnDuplicate: queue.First,
				VerifiedSource: h.Name,
			}
		}
		published, err := s.cfg.Topics.Publish(ctx, publications)
		for _, p := range published {
			result.Positions = append(result.Positions, p.Position)
			result.Deduplicated = result.Deduplicated && p.Deduplicated
		}
		return result, err
	}
	inserts := make([]queue.InsertParams, len(all))
	for i := range all {
		mapped := &all[i]
		in := queue.InsertParams{
			Event: mapped.Event, Queue: *h.Queue, Type: mapped.Type, Source: h.Name, Priority: mapped.Priority, Group: mapped.Group,
			IdempotencyKey: mapped.Key, KeyFor: h.DedupFor, KeyScope: owner(h.Name), OnDuplicate: queue.First, Meta: metas[i], VerifiedSource: h.Name,
			IsAccepted: true,
		}
		if !mapped.EventTS.IsZero() {
			in.EventTS = &mapped.EventTS
		}
		if h.KeepRaw != nil && len(all) == 1 { // the bytes of a batch are no event's own
			media := d.Header.Get("Content-Type")
			if len(media) > 255 {
				media = ""
			}
			in.Raw = &queue.RawBody{Body: d.Body, MediaType: media, Keep: *h.KeepRaw}
		}
		inserts[i] = in
	}
	inserted, err := s.cfg.Queue.Insert(ctx, inserts)
	if err != nil {
		return Result{}, fmt.Errorf("inserting the events of a delivery: %w", err)
	}
	for _, e := range inserted {
		result.IDs = append(result.IDs, e.ID)
		result.Deduplicated = result.Deduplicated && e.Deduplicated
	}
	return result, nil
}

// verifiedSource is the member of metadata that has the name of the source: only deliveries get it, so workers can trust it.
const verifiedSource = "verified_source"

// metaOf returns the metadata of an event: the name of its source, and the rest if it is not too long.
func metaOf(h *cachedSource, mapped *Mapped) (json.RawMessage, error) {
	meta := maps.Clone(mapped.Meta)
	if h.Topic != nil {
		meta = metaOfPublication(mapped)
	}
	if meta == nil {
		meta = make(map[string]any, 1)
	}
	meta[verifiedSource] = h.Name
	text, err := json.Marshal(meta)
	if err != nil {
		return nil, err
	}
	if len(text) > queue.MaxMeta/2 || strings.Contains(string(text), `\u0000`) { // PostgreSQL adds blanks
		mapped.Problems = append(mapped.Problems, "meta: the headers or attributes are too long to be kept")
		return json.Marshal(map[string]string{verifiedSource: h.Name})
	}
	return text, nil
}

// metaOfPublication returns the metadata of an event in the log, which has no type, source and time of its own.
func metaOfPublication(mapped *Mapped) map[string]any {
	meta := make(map[string]any)
	for name, value := range mapped.Meta {
		meta[name] = value
	}
	if mapped.Type != "" {
		meta["type"] = mapped.Type
	}
	if !mapped.EventTS.IsZero() {
		meta["event_ts"] = mapped.EventTS.UTC().Format(time.RFC3339Nano)
	}
	if len(meta) == 0 {
		return nil
	}
	return meta
}
