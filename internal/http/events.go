package http

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/queued/queued/internal/http/problem"
	"github.com/queued/queued/internal/queue"
)

// options are those that an event is posted with, in the query or in the element of a batch.
type options struct {
	Queue       string         `json:"queue" default:"default" validate:"queue,unreserved" log:"queue" restrict:"queue"`
	Delay       *time.Duration `json:"delay" validate:"min=0s,max=87600h"`
	VT          *time.Time     `json:"vt"`
	Type        string         `json:"type" validate:"min=1,max=255"`
	Source      string         `json:"source" validate:"min=1,max=255"`
	Priority    int32          `json:"priority" validate:"min=-2147483648,max=2147483647"`
	Key         string         `json:"key" validate:"min=1,max=255"`
	Group       string         `json:"group" validate:"min=1,max=255"`
	MaxAttempts int            `json:"max_attempts" validate:"min=1,max=2147483647"`
	ExpiresAt   *time.Time     `json:"expires_at"`

	EventTS     *time.Time        `json:"event_ts"`
	OnDuplicate queue.OnDuplicate `json:"on_duplicate" validate:"oneof=match first replace supersede"`
	KeyUntil    string            `json:"key_until" validate:"min=1,max=64"`
	MaxWait     time.Duration     `json:"max_wait" validate:"min=1us,max=87600h"`
	Meta        json.RawMessage   `json:"meta"`
}

// Check implements bind.Checker.
func (o *options) Check(report func(field, detail string)) {
	if o.Delay != nil && o.VT != nil {
		report("vt", "must not be given together with delay")
	}
	if len(o.Group) > maxGroup {
		report("group", "must be at most "+strconv.Itoa(maxGroup)+" bytes long")
	}
	if _, _, ok := o.keyUntil(); !ok {
		report("key_until", "must be claimed, finished, or a duration such as 10m, of at most 87600h")
	}
}

// keyUntil returns what ends the idempotency key: the end of a time, or else something that becomes of the event. Neither is said for the zero values.
func (o *options) keyUntil() (until queue.KeyUntil, after time.Duration, ok bool) {
	switch until = queue.KeyUntil(o.KeyUntil); until {
	case "", queue.UntilClaimed, queue.UntilFinished:
		return until, 0, true
	}
	after, err := time.ParseDuration(o.KeyUntil)
	return "", after, err == nil && after >= time.Microsecond && after <= 87_600*time.Hour
}

func (o *options) params(event json.RawMessage) queue.InsertParams {
	p := queue.InsertParams{
		Event:          event,
		Queue:          o.Queue,
		VT:             o.VT,
		Type:           o.Type,
		Source:         o.Source,
		Priority:       o.Priority,
		IdempotencyKey: o.Key,
		Group:          o.Group,
		MaxAttempts:    o.MaxAttempts,
		ExpiresAt:      o.ExpiresAt,
		EventTS:        o.EventTS,
		OnDuplicate:    o.OnDuplicate,
		Meta:           o.Meta,
		MaxWait:        o.MaxWait,
	}
	p.KeyUntil, p.KeyFor, _ = o.keyUntil()
	if o.Delay != nil {
		p.Delay, p.AtOnce = *o.Delay, *o.Delay == 0
	}
	return p
}

type insertRequest struct {
	Event     json.RawMessage `body:"event"`
	options   `in:"query"`
	HeaderKey idempotencyKey `header:"Idempotency-Key" validate:"min=1,max=255"`
	KeepRaw   time.Duration  `query:"keep_raw" validate:"min=1s,max=87600h"`
	Sent      []byte         `sent:"body"`
}

// Check implements bind.Checker.
func (req *insertRequest) Check(report func(field, detail string)) {
	req.options.Check(report)
	if req.Key != "" && req.HeaderKey != "" && req.Key != string(req.HeaderKey) {
		report("key", "must be the same as the header Idempotency-Key")
	}
}

// checkMeta refuses metadata that is too long, or has a member that only sources set. It is not a rule of a field, as those of a query fail with another status than those of a body.
func checkMeta(meta json.RawMessage, at string) error {
	if len(meta) > queue.MaxMeta {
		return problem.InField(problem.ValidationFailed, at, fmt.Sprintf("must be at most %d bytes long, not %d", queue.MaxMeta, len(meta)))
	}
	var given map[string]json.RawMessage
	if bytes.Contains(meta, []byte("verified_source")) && json.Unmarshal(meta, &given) == nil && given["verified_source"] != nil { // SQL finds other spellings
		return problem.InField(problem.ValidationFailed, at, "must not have verified_source, which only deliveries to sources get")
	}
	return nil
}

func eventPath(id int64) string { return "/events/" + strconv.FormatInt(id, 10) }

func (s *Server) insert(r *http.Request, req insertRequest) (reply, error) {
	if err := checkMeta(req.Meta, "?meta"); err != nil {
		return reply{}, err
	}
	params := req.params(req.Event)
	params.IdempotencyKey = cmp.Or(params.IdempotencyKey, string(req.HeaderKey))
	if req.KeepRaw != 0 {
		params.Raw = &queue.RawBody{Body: req.Sent, MediaType: mediaType(r), Keep: req.KeepRaw}
	}
	inserted, err := s.insertTraced(r, false, []queue.InsertParams{params})
	if err != nil {
		return reply{}, delayRefused(err, func(_ int, option string) string { return "?" + option })
	}
	e := inserted[0]
	logOf(r).add("id", e.ID)
	return created(insertResponse(e), eventPath(e.ID), e.Deduplicated), nil
}

type insertBatchRequest struct {
	Atomic bool        `query:"atomic" default:"true"`
	Events []batchItem `json:"events" validate:"required,min=1"`
}

// IsSeparate implements bind.Separator.
func (req *insertBatchRequest) IsSeparate() bool { return !req.Atomic }

// A batchItem is an insertRequest with everything in the body.
type batchItem struct {
	Event json.RawMessage `json:"event" validate:"required"`
	options
	elementProblem
}

// elementProblem is why an element of a batch that is not atomic is refused, before it reaches a service; nil: it is not.
type elementProblem struct{ problem error }

// Refuse implements bind.Refusable.
func (r *elementProblem) Refuse(err error) { r.problem = err }

// errBatchKey is the problem with a key for a batch, whose events are deduplicated each on its own.
var errBatchKey = problem.InField(problem.InvalidParameter, "Idempotency-Key",
	"must not be sent with a batch; give each event a key of its own in its field key")

func (s *Server) insertBatch(r *http.Request, req insertBatchRequest) (reply, error) {
	if len(r.Header.Values("Idempotency-Key")) > 0 {
		return reply{}, errBatchKey
	}
	logOf(r).add("events", len(req.Events))
	params := make([]queue.InsertParams, len(req.Events))
	for i := range req.Events {
		if err := checkMeta(req.Events[i].Meta, fmt.Sprintf("#/events/%d/meta", i)); err != nil {
			return reply{}, err
		}
		params[i] = req.Events[i].params(req.Events[i].Event)
	}
	if !req.Atomic {
		return s.insertEach(r, req.Events, params)
	}
	inserted, err := s.insertTraced(r, true, params)
	if err != nil {
		return reply{}, delayRefused(keysRefused(err, params), func(place int, option string) string { return fmt.Sprintf("#/events/%d/%s", place, option) })
	}
	return batchOf("ids", inserted, func(e queue.Inserted) (int64, bool) { return e.ID, e.Deduplicated }), nil
}

// delayRefused makes the problem with the time of an event of a group in order, which the database has refused, one with the option that has it. pointer returns where that is.
func delayRefused(err error, pointer func(place int, option string) string) error {
	invalid, ok := errors.AsType[*queue.InvalidError](err)
	if !ok {
		return err
	}
	place, option := 0, invalid.Field
	if number, rest, isBelow := strings.Cut(option, "/"); isBelow { // of several events
		n, notNumber := strconv.Atoi(number)
		if notNumber != nil {
			return err
		}
		place, option = n, rest
	}
	if option != "delay" && option != "vt" {
		return err
	}
	return problem.InField(problem.ValidationFailed, pointer(place, option), invalid.Detail)
}

// keysRefused makes the problem with an idempotency key that was used for another request one with the key of an element, where it is another element that has used it: one is to take the
// place of what is under the key, and the other one to be what is.
func keysRefused(err error, params []queue.InsertParams) error {
	if !errors.Is(err, queue.ErrKeyReused) {
		return err
	}
	type keyed struct{ queue, key string }
	first := make(map[keyed]int, len(params))
	takesPlace := func(place int) bool {
		return params[place].OnDuplicate == queue.Replace || params[place].OnDuplicate == queue.Supersede
	}
	for i := range params {
		k := keyed{params[i].Queue, params[i].IdempotencyKey}
		before, isThere := first[k]
		switch {
		case k.key == "":
		case !isThere:
			first[k] = i
		case takesPlace(before) != takesPlace(i) && !bytes.Equal(params[before].Event, params[i].Event):
			return problem.InField(problem.KeyReused, fmt.Sprintf("#/events/%d/key", i),
				"is that of an earlier event of the batch, too, and only one of them has on_duplicate replace or supersede: give both that, or send them in two requests")
		}
	}
	return err
}

// insertEach inserts the events of a batch each on its own, but those that are refused already.
func (s *Server) insertEach(r *http.Request, items []batchItem, params []queue.InsertParams) (reply, error) {
	refused := func(place int) (queue.InsertResult, bool) {
		err := items[place].problem
		return queue.InsertResult{Err: err}, err != nil
	}
	results, err := doAccepted(params, refused, func(accepted []queue.InsertParams) ([]queue.InsertResult, error) {
		sent := s.startInserting(r, true, accepted)
		inserted, err := s.svc.InsertEach(r.Context(), accepted)
		sent.end(0, err)
		return inserted, err
	})
	if err != nil {
		return reply{}, err
	}
	return listOf("results", results, insertResultOf), nil
}

// doAccepted does the elements of a batch that are not refused already, and returns the results of all, in their order.
func doAccepted[P, R any](all []P, refused func(place int) (R, bool), do func(accepted []P) ([]R, error)) ([]R, error) {
	results := make([]R, len(all))
	var accepted []P
	var places []int
	for i := range all {
		result, isRefused := refused(i)
		if results[i] = result; !isRefused {
			accepted, places = append(accepted, all[i]), append(places, i)
		}
	}
	if len(accepted) == 0 {
		return results, nil
	}
	done, err := do(accepted)
	if err != nil {
		return nil, err
	}
	for i, at := range places {
		results[at] = done[i]
	}
	return results, nil
}

// An insertResult is what became of one event of a batch that is not atomic.
type insertResult struct {
	Status int        `json:"status"`
	ID     int64      `json:"id,omitzero"`
	Queue  string     `json:"queue,omitzero"`
	VT     *timestamp `json:"vt,omitzero"`
	Code   string     `json:"code,omitzero"`
	Detail string     `json:"detail,omitzero"`
}

func insertResultOf(result queue.InsertResult) insertResult {
	if result.Err != nil {
		p := problem.Of(result.Err)
		return insertResult{Status: p.Type.Status, Code: p.Type.Code, Detail: p.Detail}
	}
	status := http.StatusCreated
	if result.Deduplicated {
		status = http.StatusOK
	}
	return insertResult{Status: status, ID: result.ID, Queue: result.Queue, VT: (*timestamp)(&result.VT)}
}

// nextOf is the cursor of a page as listings write it: null on the last one.
func nextOf(cursor string) *string {
	if cursor == "" {
		return nil
	}
	return &cursor
}

// paging is the parameters of every listing.
type paging struct {
	Limit  int    `query:"limit" default:"100" validate:"min=1,max=1000"`
	Cursor string `query:"cursor" validate:"min=1,max=65536"`
}

type listEventsRequest struct {
	Queue    string          `query:"queue" validate:"queue" restrict:"queue,any"`
	State    queue.State     `query:"state" validate:"oneof=ready scheduled waiting leased"`
	Group    string          `query:"group" validate:"min=1,max=255" restrict:"-"`
	Contains json.RawMessage `query:"contains"`
	Meta     json.RawMessage `query:"meta"`
	paging
	Queues []string `restrict:"allowed_queues"`
}

// Check implements bind.Checker.
func (req *listEventsRequest) Check(report func(field, detail string)) {
	if req.Group != "" && req.Queue == "" {
		report("group", "must be given with queue, whose group it is")
	}
}

func (s *Server) listEvents(r *http.Request, req listEventsRequest) (reply, error) {
	page, err := s.svc.List(r.Context(), queue.ListParams{
		Queue: req.Queue, State: req.State, Group: req.Group, Contains: req.Contains, Meta: req.Meta, Limit: req.Limit, Cursor: req.Cursor, Queues: req.Queues,
	})
	if req.Cursor == "" {
		err = s.requireIfEmpty(r, req.Queue, int64(len(page.Events)), err)
	}
	return reply{body: eventPage(page)}, err
}

type eventRequest struct {
	ID int64 `path:"id" validate:"min=1" log:"id" restrict:"event"`
}

type getEventRequest struct {
	eventRequest
	Wait time.Duration `query:"wait" validate:"min=0s,max=60s"`
}

func (req *getEventRequest) waits() time.Duration { return req.Wait }

func (s *Server) getEvent(r *http.Request, req getEventRequest) (reply, error) {
	e, err := s.svc.WaitEvent(r.Context(), req.ID, req.Wait)
	if err == nil && !logOf(r).grant.AllowsQueue(e.Queue) { // it was moved since the look-up
		e, err = queue.Event{}, queue.ErrNotFound
	}
	if err == nil && e.State == queue.AwaitingTurn {
		var g queue.Group
		g, err = s.svc.GetGroup(r.Context(), e.Queue, e.Group)
		e.BlockedBy = g.BlockedBy
	}
	return reply{body: (*event)(&e)}, err
}

type runEventRequest struct {
	eventRequest `restrict:"statement"`
}

type runEventResponse struct {
	ID int64     `json:"id"`
	VT timestamp `json:"vt"`
}

func (s *Server) runEvent(r *http.Request, req runEventRequest) (reply, error) {
	queues, _ := allowed(r)
	vt, err := s.svc.RunEvent(r.Context(), req.ID, queues)
	return reply{body: runEventResponse{ID: req.ID, VT: timestamp(vt)}}, err
}

// mediaType returns the Content-Type of a request as it was sent, cut off where it is too long to keep.
func mediaType(r *http.Request) string {
	given := r.Header.Get("Content-Type")
	return strings.ToValidUTF8(given[:min(len(given), 255)], "")
}

// A rawBodyRequest is for the bytes of an event.
type rawBodyRequest struct {
	eventRequest `restrict:"method"`
}

// getRawBody answers with the bytes that an event came in as. Browsers do not show them: they are the sender's.
func (s *Server) getRawBody(w http.ResponseWriter, r *http.Request, req rawBodyRequest) error {
	ctx, cancel := context.WithTimeout(r.Context(), s.cfg.RequestTimeout)
	defer cancel()
	raw, err := s.svc.RawBody(ctx, req.ID)
	if err != nil {
		return err
	}
	h := w.Header()
	h["Cache-Control"] = noStore
	h.Set("Content-Type", cmp.Or(raw.MediaType, "application/octet-stream"))
	h.Set("Content-Length", strconv.Itoa(len(raw.Body)))
	h.Set("Content-Disposition", fmt.Sprintf(`attachment; filename="event-%d"`, req.ID))
	h.Set("Expires", raw.KeptUntil.UTC().Format(http.TimeFormat))
	_, _ = w.Write(raw.Body) // a client that has gone misses nothing but this
	return nil
}

// An attempt is one claim of an event. It has no end while it runs.
type attempt struct {
	Attempt    int32                `json:"attempt"`
	Worker     string               `json:"worker,omitzero"`
	StartedAt  timestamp            `json:"started_at"`
	EndedAt    *timestamp           `json:"ended_at"`
	DurationMS *milliseconds        `json:"duration_ms"`
	Outcome    queue.AttemptOutcome `json:"outcome"`
	Error      *string              `json:"error,omitzero"`
}

func attemptOf(a queue.Attempt) attempt {
	out := attempt{
		Attempt:   a.Number,
		Worker:    a.Worker,
		StartedAt: timestamp(a.StartedAt),
		EndedAt:   (*timestamp)(a.EndedAt),
		Outcome:   a.Outcome,
		Error:     a.Error,
	}
	if a.EndedAt != nil {
		took := milliseconds(max(a.EndedAt.Sub(a.StartedAt), 0))
		out.DurationMS = &took
	}
	return out
}

func (s *Server) listAttempts(r *http.Request, req eventRequest) (reply, error) {
	attempts, err := s.svc.Attempts(r.Context(), req.ID)
	return listOf("attempts", attempts, attemptOf), err
}
