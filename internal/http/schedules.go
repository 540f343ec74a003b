package http

import (
	"cmp"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/queued/queued/internal/schedule"
)

// A scheduleBody is a schedule as it goes over the wire. Fields that were not given and have no default are absent.
type scheduleBody struct {
	ID int64 `json:"id"`
	specification
	Kind         schedule.Kind   `json:"kind"`
	Zone         string          `json:"zone"`
	Status       schedule.Status `json:"status"`
	StatusReason string          `json:"status_reason,omitzero"`
	Fired        int64           `json:"fired"`
	Version      int64           `json:"version"`
	NextLocal    *localTime      `json:"next_local"`
	NextAt       *time.Time      `json:"next_at"`
	CreatedAt    time.Time       `json:"created_at"`
	UpdatedAt    time.Time       `json:"updated_at"`

	LastOccurrence *occurrence `json:"last_occurrence,omitzero"` // in answers to calls that read schedules alone
}

func scheduleOf(s schedule.Schedule) scheduleBody {
	return scheduleBody{
		ID:            s.ID,
		specification: specification(s.Spec),
		Kind:          s.Kind,
		Zone:          s.Zone,
		Status:        s.Status,
		StatusReason:  s.StatusReason,
		Fired:         s.Fired,
		Version:       s.Version,
		NextLocal:     (*localTime)(s.NextLocal),
		NextAt:        s.NextAt,
		CreatedAt:     s.CreatedAt,
		UpdatedAt:     s.UpdatedAt,
	}
}

// replyOf is the reply with a schedule.
func replyOf(s schedule.Schedule) reply {
	return reply{body: scheduleOf(s), etag: etagOf(s.Version)}
}

// A specification is a schedule.Spec in a request and in a response.
type specification struct {
	Name     string           `json:"name,omitzero" validate:"min=1,max=255"`
	Owner    string           `json:"owner,omitzero" validate:"owner"`
	Queue    string           `json:"queue,omitzero" validate:"queue,unreserved" restrict:"queue,default,unless=Topic"`
	Topic    string           `json:"topic,omitzero" validate:"topic" restrict:"topic,optional"`
	Type     string           `json:"type,omitzero" validate:"min=1,max=255"`
	Priority int32            `json:"priority" validate:"min=-2147483648,max=2147483647"`
	Group    string           `json:"group,omitzero" validate:"min=1,max=255"`
	Event    json.RawMessage  `json:"event"`
	At       *schedule.Moment `json:"at,omitzero"`
	RRule    string           `json:"rrule,omitzero" validate:"min=1,max=4096"`
	Cron     string           `json:"cron,omitzero" validate:"min=1,max=255"`
	Timezone string           `json:"timezone,omitzero" validate:"min=1,max=64"`
	Starts   *schedule.Moment `json:"starts,omitzero"`
	Ends     *schedule.Moment `json:"ends,omitzero"`
	Count    int              `json:"count,omitzero" validate:"min=1,max=2147483647"`
	Misfire  schedule.Misfire `json:"misfire" default:"once" validate:"oneof=once all skip"`
	Gap      schedule.Gap     `json:"gap" default:"forward" validate:"oneof=forward next skip"`
	Overlap  schedule.Overlap `json:"overlap" default:"first" validate:"oneof=first last"`
	Leap     schedule.Leap    `json:"leap" default:"feb28" validate:"oneof=feb28 mar1 skip"`
}

// spec returns the Spec of the request, with the default of the queue, and logs where the events go.
func (s specification) spec(r *http.Request) schedule.Spec {
	if s.Topic != "" {
		logOf(r).add("topic", s.Topic)
	} else {
		s.Queue = cmp.Or(s.Queue, "default")
		logOf(r).add("queue", s.Queue)
	}
	return schedule.Spec(s)
}

type createScheduleRequest struct {
	specification `require:"event"`
	Key           string         `json:"idempotency_key" validate:"min=1,max=255"`
	HeaderKey     idempotencyKey `header:"Idempotency-Key" validate:"min=1,max=255"`
}

// Check implements bind.Checker.
func (req *createScheduleRequest) Check(report func(field, detail string)) {
	if req.Key != "" && req.HeaderKey != "" && req.Key != string(req.HeaderKey) {
		report("idempotency_key", "must be the same as the header Idempotency-Key")
	}
}

func (s *Server) createSchedule(r *http.Request, req createScheduleRequest) (reply, error) {
	made, err := s.schedules.Create(r.Context(), schedule.CreateParams{
		Spec:           req.spec(r),
		IdempotencyKey: cmp.Or(req.Key, string(req.HeaderKey)),
	})
	if err != nil {
		return reply{}, err
	}
	logOf(r).add("schedule", made.ID)
	if made.Deduplicated && !mayUse(logOf(r).grant, &made.Spec) { // its target was changed since
		return reply{}, schedule.ErrKeyReused
	}
	rep := created(scheduleOf(made.Schedule), "/schedules/"+strconv.FormatInt(made.ID, 10), made.Deduplicated)
	rep.etag = etagOf(made.Version)
	return rep, nil
}

type scheduleRequest struct {
	ID int64 `path:"id" validate:"min=1" log:"schedule" restrict:"schedule"`
}

func (s *Server) getSchedule(r *http.Request, req scheduleRequest) (reply, error) {
	found, err := s.schedules.Get(r.Context(), req.ID)
	if err == nil && !mayUse(logOf(r).grant, &found.Spec) { // its target was changed since the look-up
		found, err = schedule.Schedule{}, schedule.ErrNotFound
	}
	if err != nil {
		return reply{}, err
	}
	bodies, err := s.withLast(r, []schedule.Schedule{found})
	return reply{body: bodies[0], etag: etagOf(found.Version)}, err
}

// withLast returns schedules with the last occurrence of each.
func (s *Server) withLast(r *http.Request, schedules []schedule.Schedule) ([]scheduleBody, error) {
	bodies := convert(schedules, scheduleOf)
	ids := make([]int64, len(schedules))
	for i := range schedules {
		ids[i] = schedules[i].ID
	}
	if len(ids) == 0 {
		return bodies, nil
	}
	last, err := s.schedules.LastOccurrences(r.Context(), ids...)
	for i := range bodies {
		if o, ok := last[bodies[i].ID]; ok {
			bodies[i].LastOccurrence = new(occurrenceOf(o))
		}
	}
	return bodies, err
}

// A changeScheduleRequest is for a call that changes a schedule, whose statement finds only one that the caller may use.
type changeScheduleRequest struct {
	scheduleRequest `restrict:"statement"`
}

func (s *Server) pauseSchedule(r *http.Request, req changeScheduleRequest) (reply, error) {
	paused, err := s.schedules.Within(allowed(r)).Pause(r.Context(), req.ID)
	return replyOf(paused), err
}

func (s *Server) resumeSchedule(r *http.Request, req changeScheduleRequest) (reply, error) {
	resumed, err := s.schedules.Within(allowed(r)).Resume(r.Context(), req.ID)
	return replyOf(resumed), err
}

type listSchedulesRequest struct {
	Owner     string          `query:"owner" validate:"owner"`
	Queue     string          `query:"queue" validate:"queue" restrict:"queue,any"`
	Status    schedule.Status `query:"status" validate:"oneof=active paused completed cancelled"`
	DueBefore *time.Time      `query:"due_before"`
	paging
	Queues []string `restrict:"allowed_queues"`
	Topics []string `restrict:"allowed_topics"`
}

type listSchedulesResponse struct {
	Schedules []scheduleBody `json:"schedules"`
	Next      *string        `json:"next"`
}

func (s *Server) listSchedules(r *http.Request, req listSchedulesRequest) (reply, error) {
	page, err := s.schedules.List(r.Context(), schedule.ListParams{
		Owner:     req.Owner,
		Queue:     req.Queue,
		Status:    req.Status,
		DueBefore: req.DueBefore,
		Limit:     req.Limit,
		Cursor:    req.Cursor,
		Queues:    req.Queues,
		Topics:    req.Topics,
	})
	if req.Cursor == "" {
		err = s.requireIfEmpty(r, req.Queue, int64(len(page.Schedules)), err)
	}
	if err != nil {
		return reply{}, err
	}
	schedules, err := s.withLast(r, page.Schedules)
	return reply{body: listSchedulesResponse{schedules, nextOf(page.Next)}}, err
}

type patchScheduleRequest struct {
	schedulePatch
	IfMatch *precondition `header:"If-Match"`
}

// A schedulePatch is a schedule.PatchParams in a request: null takes a field away.
type schedulePatch struct {
	ID         int64 `path:"id" validate:"min=1" log:"schedule" restrict:"method"`
	IfVersions []int64
	MayUse     func(*schedule.Spec) bool
	Name       *string           `json:"name" null:"zero" validate:"min=1,max=255"`
	Queue      *string           `json:"queue" validate:"queue,unreserved" restrict:"method"`
	Topic      *string           `json:"topic" null:"zero" validate:"topic" restrict:"method"`
	Type       *string           `json:"type" null:"zero" validate:"min=1,max=255"`
	Priority   *int32            `json:"priority" validate:"min=-2147483648,max=2147483647"`
	Group      *string           `json:"group" null:"zero" validate:"min=1,max=255"`
	Event      *json.RawMessage  `json:"event"`
	At         **schedule.Moment `json:"at" null:"zero"`
	RRule      *string           `json:"rrule" null:"zero" validate:"min=1,max=4096"`
	Cron       *string           `json:"cron" null:"zero" validate:"min=1,max=255"`
	Timezone   *string           `json:"timezone" null:"zero" validate:"min=1,max=64"`
	Starts     **schedule.Moment `json:"starts" null:"zero"`
	Ends       **schedule.Moment `json:"ends" null:"zero"`
	Count      *int              `json:"count" null:"zero" validate:"min=1,max=2147483647"`
	Misfire    *schedule.Misfire `json:"misfire" validate:"oneof=once all skip"`
	Gap        *schedule.Gap     `json:"gap" validate:"oneof=forward next skip"`
	Overlap    *schedule.Overlap `json:"overlap" validate:"oneof=first last"`
	Leap       *schedule.Leap    `json:"leap" validate:"oneof=feb28 mar1 skip"`
}

func (s *Server) patchSchedule(r *http.Request, req patchScheduleRequest) (reply, error) {
	req.IfVersions = req.IfMatch.versions()
	p := schedule.PatchParams(req.schedulePatch)
	if grant := logOf(r).grant; grant.IsRestricted() {
		p.MayUse = func(spec *schedule.Spec) bool { return mayUse(grant, spec) }
	}
	patched, err := s.schedules.Patch(r.Context(), p)
	return replyOf(patched), err
}

type deleteScheduleRequest struct {
	ID      int64         `path:"id" validate:"min=1" log:"schedule" restrict:"statement"`
	IfMatch *precondition `header:"If-Match"`
}

func (s *Server) deleteSchedule(r *http.Request, req deleteScheduleRequest) (reply, error) {
	return noContent, s.schedules.Within(allowed(r)).Delete(r.Context(), req.ID, req.IfMatch.versions())
}

// An occurrence of a schedule as it goes over the wire.
type occurrence struct {
	NominalAt     localTime                 `json:"nominal_at"`
	ScheduledFor  timestamp                 `json:"scheduled_for"`
	Manual        bool                      `json:"manual"`
	Status        schedule.OccurrenceStatus `json:"status"`
	EventID       *int64                    `json:"event_id,omitzero"`
	Topic         *string                   `json:"topic,omitzero"`
	FiredAt       *timestamp                `json:"fired_at,omitzero"`
	ExecutedAt    *timestamp                `json:"executed_at,omitzero"`
	FailureReason *string                   `json:"failure_reason,omitzero"`
	RetryCount    int32                     `json:"retry_count"`
}

func occurrenceOf(o schedule.Occurrence) occurrence {
	return occurrence{
		NominalAt:     localTime(o.NominalAt),
		ScheduledFor:  timestamp(o.ScheduledFor),
		Manual:        o.Manual,
		Status:        o.Status,
		EventID:       o.EventID,
		Topic:         o.Topic,
		FiredAt:       (*timestamp)(o.FiredAt),
		ExecutedAt:    (*timestamp)(o.ExecutedAt),
		FailureReason: o.FailureReason,
		RetryCount:    o.RetryCount,
	}
}

// An instant is a time to come.
type instant struct {
	Local localTime     `json:"local"`
	UTC   timestamp     `json:"utc"`
	Note  schedule.Note `json:"note,omitzero"`
}

func instantOf(at schedule.Upcoming) instant {
	return instant{localTime(at.Local), timestamp(at.UTC), at.Note}
}

type listOccurrencesRequest struct {
	ID int64 `path:"id" validate:"min=1" log:"schedule" restrict:"schedule"`
	N  int   `query:"n" default:"10" validate:"min=0,max=1000"`
	paging
}

type listOccurrencesResponse struct {
	Occurrences []occurrence `json:"occurrences"`
	Upcoming    []instant    `json:"upcoming"`
	Next        *string      `json:"next"`
}

func (s *Server) listOccurrences(r *http.Request, req listOccurrencesRequest) (reply, error) {
	found, err := s.schedules.Occurrences(r.Context(), schedule.OccurrencesParams{
		ID:       req.ID,
		Limit:    req.Limit,
		Cursor:   req.Cursor,
		Upcoming: req.N,
	})
	return reply{body: listOccurrencesResponse{
		Occurrences: convert(found.Past, occurrenceOf),
		Upcoming:    convert(found.Upcoming, instantOf),
		Next:        nextOf(found.Next),
	}}, err
}

func (s *Server) runSchedule(r *http.Request, req changeScheduleRequest) (reply, error) {
	made, err := s.schedules.Within(allowed(r)).RunNow(r.Context(), req.ID)
	at := ""
	if made.EventID != nil {
		at = eventPath(*made.EventID)
	}
	return created(occurrenceOf(made), at, false), err
}

// A previewScheduleRequest is a createScheduleRequest, and the time from which on to preview it.
type previewScheduleRequest struct {
	specification
	Key   string     `json:"idempotency_key" validate:"min=1,max=255"` // ignored, so that the body of any schedule can be sent
	After *time.Time `json:"after"`
	N     int        `json:"n" default:"10" validate:"min=1,max=1000"`
}

func (s *Server) previewSchedule(r *http.Request, req previewScheduleRequest) (reply, error) {
	found, err := s.schedules.Preview(r.Context(), schedule.PreviewParams{Spec: req.spec(r), After: req.After, N: req.N})
	return listOf("instants", found, instantOf), err
}

// localTime writes a civil time, without a zone.
type localTime time.Time

// AppendText implements encoding.TextAppender.
func (t localTime) AppendText(b []byte) ([]byte, error) {
	return append(b, schedule.FormatLocal(time.Time(t))...), nil
}
