package http

import (
	"cmp"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/queued/queued/internal/schedule"
)

// A scheduleBody is a schedule as it goes over the wire. What was not given, and nothing stands in for, is absent.
type scheduleBody struct {
	ID           int64            `json:"id"`
	Name         string           `json:"name,omitzero"`
	Owner        string           `json:"owner,omitzero"`
	Queue        string           `json:"queue"`
	Type         string           `json:"type,omitzero"`
	Priority     int32            `json:"priority"`
	Event        jsontext.Value   `json:"event"`
	At           *moment          `json:"at,omitzero"`
	RRule        string           `json:"rrule,omitzero"`
	Cron         string           `json:"cron,omitzero"`
	Timezone     string           `json:"timezone,omitzero"`
	Starts       *moment          `json:"starts,omitzero"`
	Ends         *moment          `json:"ends,omitzero"`
	Count        int              `json:"count,omitzero"`
	Gap          schedule.Gap     `json:"gap"`
	Overlap      schedule.Overlap `json:"overlap"`
	Leap         schedule.Leap    `json:"leap"`
	Misfire      schedule.Misfire `json:"misfire"`
	Kind         schedule.Kind    `json:"kind"`
	Zone         string           `json:"zone"`
	Status       schedule.Status  `json:"status"`
	StatusReason string           `json:"status_reason,omitzero"`
	Fired        int64            `json:"fired"`
	Version      int64            `json:"version"`
	NextLocal    *localTime       `json:"next_local"`
	NextAt       *timestamp       `json:"next_at"`
	CreatedAt    timestamp        `json:"created_at"`
	UpdatedAt    timestamp        `json:"updated_at"`
}

func scheduleOf(s schedule.Schedule) scheduleBody {
	return scheduleBody{
		ID:           s.ID,
		Name:         s.Name,
		Owner:        s.Owner,
		Queue:        s.Queue,
		Type:         s.Type,
		Priority:     s.Priority,
		Event:        jsontext.Value(s.Event),
		At:           (*moment)(s.At),
		RRule:        s.RRule,
		Cron:         s.Cron,
		Timezone:     s.Timezone,
		Starts:       (*moment)(s.Starts),
		Ends:         (*moment)(s.Ends),
		Count:        s.Count,
		Gap:          s.Gap,
		Overlap:      s.Overlap,
		Leap:         s.Leap,
		Misfire:      s.Misfire,
		Kind:         s.Kind,
		Zone:         s.Zone,
		Status:       s.Status,
		StatusReason: s.StatusReason,
		Fired:        s.Fired,
		Version:      s.Version,
		NextLocal:    (*localTime)(s.NextLocal),
		NextAt:       (*timestamp)(s.NextAt),
		CreatedAt:    timestamp(s.CreatedAt),
		UpdatedAt:    timestamp(s.UpdatedAt),
	}
}

func (s scheduleBody) version() int64 { return s.Version }

// A specification is what makes a schedule, but for its event.
type specification struct {
	Name     string  `name:"name" validate:"min=1,max=255"`
	Owner    string  `name:"owner" validate:"owner"`
	Queue    string  `name:"queue" default:"default" validate:"queue"`
	Type     string  `name:"type" validate:"min=1,max=255"`
	Priority int64   `name:"priority" default:"0" validate:"min=-2147483648,max=2147483647"`
	At       *moment `name:"at"`
	RRule    string  `name:"rrule" validate:"min=1,max=4096"`
	Cron     string  `name:"cron" validate:"min=1,max=255"`
	Timezone string  `name:"timezone" validate:"min=1,max=64"`
	Starts   *moment `name:"starts"`
	Ends     *moment `name:"ends"`
	Count    int     `name:"count" validate:"min=1,max=2147483647"`
	Gap      string  `name:"gap" default:"forward" validate:"oneof=forward next skip"`
	Overlap  string  `name:"overlap" default:"first" validate:"oneof=first last"`
	Leap     string  `name:"leap" default:"feb28" validate:"oneof=feb28 mar1 skip"`
	Misfire  string  `name:"misfire" default:"once" validate:"oneof=once all skip"`
}

func (req specification) spec(event jsontext.Value) schedule.Spec {
	return schedule.Spec{
		Name:     req.Name,
		Owner:    req.Owner,
		Queue:    req.Queue,
		Type:     req.Type,
		Priority: int32(req.Priority),
		Event:    []byte(event),
		At:       (*schedule.Moment)(req.At),
		RRule:    req.RRule,
		Cron:     req.Cron,
		Timezone: req.Timezone,
		Starts:   (*schedule.Moment)(req.Starts),
		Ends:     (*schedule.Moment)(req.Ends),
		Count:    req.Count,
		Gap:      schedule.Gap(req.Gap),
		Overlap:  schedule.Overlap(req.Overlap),
		Leap:     schedule.Leap(req.Leap),
		Misfire:  schedule.Misfire(req.Misfire),
	}
}

type createScheduleRequest struct {
	specification `in:"json"`
	Event         jsontext.Value `json:"event" validate:"required"`
	Key           string         `json:"idempotency_key" validate:"min=1,max=255"`
	HeaderKey     idempotencyKey `header:"Idempotency-Key" validate:"min=1,max=255"`
}

func (req createScheduleRequest) check(report func(field, detail string)) {
	if req.Key != "" && req.HeaderKey != "" && req.Key != string(req.HeaderKey) {
		report("idempotency_key", "is another key than the header Idempotency-Key")
	}
}

type createScheduleResponse struct {
	scheduleBody

	isReplay bool
}

func (resp createScheduleResponse) location() string { return schedulePath(resp.ID) }
func (resp createScheduleResponse) replayed() bool   { return resp.isReplay }

func schedulePath(id int64) string { return "/schedules/" + strconv.FormatInt(id, 10) }

func (s *Server) createSchedule(r *http.Request, req createScheduleRequest) (createScheduleResponse, error) {
	recordOf(r).note("queue", req.Queue)
	made, err := s.schedules.Create(r.Context(), schedule.CreateParams{
		Spec:           req.spec(req.Event),
		IdempotencyKey: cmp.Or(req.Key, string(req.HeaderKey)),
	})
	if err != nil {
		return createScheduleResponse{}, err
	}
	recordOf(r).note("schedule", made.ID)
	return createScheduleResponse{scheduleOf(made.Schedule), made.Replayed}, nil
}

type scheduleRequest struct {
	ID int64 `path:"id" validate:"min=1"`
}

func (s *Server) getSchedule(r *http.Request, req scheduleRequest) (scheduleBody, error) {
	recordOf(r).note("schedule", req.ID)
	found, err := s.schedules.Get(r.Context(), req.ID)
	return scheduleOf(found), err
}

type listSchedulesRequest struct {
	Owner     string     `query:"owner" validate:"owner"`
	Queue     string     `query:"queue" validate:"queue"`
	Status    string     `query:"status" validate:"oneof=active paused completed cancelled"`
	DueBefore *time.Time `query:"due_before"`
	paging    `in:"query"`
}

type listSchedulesResponse struct {
	Schedules []scheduleBody `json:"schedules"`
	Next      *string        `json:"next"`
}

func (s *Server) listSchedules(r *http.Request, req listSchedulesRequest) (listSchedulesResponse, error) {
	page, err := s.schedules.List(r.Context(), schedule.ListParams{
		Owner:     req.Owner,
		Queue:     req.Queue,
		Status:    schedule.Status(req.Status),
		DueBefore: req.DueBefore,
		Limit:     req.Limit,
		Cursor:    req.Cursor,
	})
	resp := listSchedulesResponse{Schedules: make([]scheduleBody, len(page.Schedules)), Next: nextOf(page.Next)}
	for i, found := range page.Schedules {
		resp.Schedules[i] = scheduleOf(found)
	}
	return resp, err
}

type patchScheduleRequest struct {
	ID       int64          `path:"id" validate:"min=1"`
	IfMatch  *precondition  `header:"If-Match"`
	Name     change[string] `json:"name" null:"true" validate:"min=1,max=255"`
	Queue    *string        `json:"queue" validate:"queue"`
	Type     change[string] `json:"type" null:"true" validate:"min=1,max=255"`
	Priority *int64         `json:"priority" validate:"min=-2147483648,max=2147483647"`
	Event    jsontext.Value `json:"event"`
	At       change[moment] `json:"at" null:"true"`
	RRule    change[string] `json:"rrule" null:"true" validate:"min=1,max=4096"`
	Cron     change[string] `json:"cron" null:"true" validate:"min=1,max=255"`
	Timezone change[string] `json:"timezone" null:"true" validate:"min=1,max=64"`
	Starts   change[moment] `json:"starts" null:"true"`
	Ends     change[moment] `json:"ends" null:"true"`
	Count    change[int]    `json:"count" null:"true" validate:"min=1,max=2147483647"`
	Gap      *string        `json:"gap" validate:"oneof=forward next skip"`
	Overlap  *string        `json:"overlap" validate:"oneof=first last"`
	Leap     *string        `json:"leap" validate:"oneof=feb28 mar1 skip"`
	Misfire  *string        `json:"misfire" validate:"oneof=once all skip"`
}

func (req patchScheduleRequest) params() schedule.PatchParams {
	p := schedule.PatchParams{
		ID:       req.ID,
		Name:     orZero(req.Name),
		Queue:    req.Queue,
		Type:     orZero(req.Type),
		At:       momentOrNil(req.At),
		RRule:    orZero(req.RRule),
		Cron:     orZero(req.Cron),
		Timezone: orZero(req.Timezone),
		Starts:   momentOrNil(req.Starts),
		Ends:     momentOrNil(req.Ends),
		Count:    orZero(req.Count),
		Gap:      (*schedule.Gap)(req.Gap),
		Overlap:  (*schedule.Overlap)(req.Overlap),
		Leap:     (*schedule.Leap)(req.Leap),
		Misfire:  (*schedule.Misfire)(req.Misfire),
	}
	if req.Priority != nil {
		priority := int32(*req.Priority)
		p.Priority = &priority
	}
	if req.Event != nil {
		p.Event = (*json.RawMessage)(&req.Event)
	}
	return p
}

// orZero is the change in the service's words: nil when it is not given, the zero value for null.
func orZero[T any](c change[T]) *T {
	if !c.Given || c.To != nil {
		return c.To
	}
	return new(T)
}

func momentOrNil(c change[moment]) **schedule.Moment {
	if !c.Given {
		return nil
	}
	to := (*schedule.Moment)(c.To)
	return &to
}

func (s *Server) patchSchedule(r *http.Request, req patchScheduleRequest) (scheduleBody, error) {
	recordOf(r).note("schedule", req.ID)
	p := req.params()
	var patched schedule.Schedule
	err := req.IfMatch.try(func(version *int64) (err error) {
		p.IfVersion = version
		patched, err = s.schedules.Patch(r.Context(), p)
		return err
	})
	return scheduleOf(patched), err
}

type deleteScheduleRequest struct {
	ID      int64         `path:"id" validate:"min=1"`
	IfMatch *precondition `header:"If-Match"`
}

func (s *Server) deleteSchedule(r *http.Request, req deleteScheduleRequest) (nothing, error) {
	recordOf(r).note("schedule", req.ID)
	return nothing{}, req.IfMatch.try(func(version *int64) error {
		return s.schedules.Delete(r.Context(), req.ID, version)
	})
}

func (s *Server) pauseSchedule(r *http.Request, req scheduleRequest) (scheduleBody, error) {
	recordOf(r).note("schedule", req.ID)
	paused, err := s.schedules.Pause(r.Context(), req.ID)
	return scheduleOf(paused), err
}

func (s *Server) resumeSchedule(r *http.Request, req scheduleRequest) (scheduleBody, error) {
	recordOf(r).note("schedule", req.ID)
	resumed, err := s.schedules.Resume(r.Context(), req.ID)
	return scheduleOf(resumed), err
}

// nextOf is the cursor of a page as listings write it: null on the last one.
func nextOf(cursor string) *string {
	if cursor == "" {
		return nil
	}
	return &cursor
}

// An occurrence of a schedule as it goes over the wire.
type occurrence struct {
	NominalAt     localTime                 `json:"nominal_at"`
	ScheduledFor  timestamp                 `json:"scheduled_for"`
	Manual        bool                      `json:"manual"`
	Status        schedule.OccurrenceStatus `json:"status"`
	EventID       *int64                    `json:"event_id,omitzero"`
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
		FiredAt:       (*timestamp)(o.FiredAt),
		ExecutedAt:    (*timestamp)(o.ExecutedAt),
		FailureReason: o.FailureReason,
		RetryCount:    o.RetryCount,
	}
}

// An instant is a time to come.
type instant struct {
	Local localTime `json:"local"`
	UTC   timestamp `json:"utc"`
}

func instantsOf(found []schedule.Instant) []instant {
	out := make([]instant, len(found))
	for i, at := range found {
		out[i] = instant{localTime(at.Local), timestamp(at.UTC)}
	}
	return out
}

type listOccurrencesRequest struct {
	ID     int64 `path:"id" validate:"min=1"`
	N      int   `query:"n" default:"10" validate:"min=0,max=1000"`
	paging `in:"query"`
}

type listOccurrencesResponse struct {
	Occurrences []occurrence `json:"occurrences"`
	Upcoming    []instant    `json:"upcoming"`
	Next        *string      `json:"next"`
}

func (s *Server) listOccurrences(r *http.Request, req listOccurrencesRequest) (listOccurrencesResponse, error) {
	recordOf(r).note("schedule", req.ID)
	found, err := s.schedules.Occurrences(r.Context(), schedule.OccurrencesParams{
		ID:       req.ID,
		Limit:    req.Limit,
		Cursor:   req.Cursor,
		Upcoming: req.N,
	})
	resp := listOccurrencesResponse{
		Occurrences: make([]occurrence, len(found.Past)),
		Upcoming:    instantsOf(found.Upcoming),
		Next:        nextOf(found.Next),
	}
	for i, o := range found.Past {
		resp.Occurrences[i] = occurrenceOf(o)
	}
	return resp, err
}

// A runScheduleResponse is an occurrence that was made just now.
type runScheduleResponse struct {
	occurrence
}

func (resp runScheduleResponse) location() string {
	if resp.EventID == nil {
		return ""
	}
	return eventPath(*resp.EventID)
}

func (s *Server) runSchedule(r *http.Request, req scheduleRequest) (runScheduleResponse, error) {
	recordOf(r).note("schedule", req.ID)
	made, err := s.schedules.RunNow(r.Context(), req.ID)
	return runScheduleResponse{occurrenceOf(made)}, err
}

// A previewScheduleRequest is what createScheduleRequest is, and from when on to look at it.
type previewScheduleRequest struct {
	specification `in:"json"`
	Event         jsontext.Value `json:"event"`
	Key           string         `json:"idempotency_key" validate:"min=1,max=255"` // so that any schedule's body will do
	After         *time.Time     `json:"after"`
	N             int            `json:"n" default:"10" validate:"min=1,max=1000"`
}

type previewScheduleResponse struct {
	Instants []instant `json:"instants"`
}

func (s *Server) previewSchedule(r *http.Request, req previewScheduleRequest) (previewScheduleResponse, error) {
	found, err := s.schedules.Preview(r.Context(), schedule.PreviewParams{Spec: req.spec(req.Event), After: req.After, N: req.N})
	return previewScheduleResponse{Instants: instantsOf(found)}, err
}

// localTime writes a local date-time, which wears UTC's clothes, without a zone.
type localTime time.Time

// AppendText implements encoding.TextAppender.
func (t localTime) AppendText(b []byte) ([]byte, error) {
	return append(b, schedule.FormatLocal(time.Time(t))...), nil
}

// A moment is a local date-time or an instant, as its text says.
type moment schedule.Moment

func (m *moment) setText(text string) string {
	parsed, err := schedule.ParseMoment(text)
	var invalid *schedule.InvalidError
	if errors.As(err, &invalid) {
		return invalid.Detail + ", not " + quote(text)
	}
	*m = moment(parsed)
	return ""
}

func (*moment) wanted() string {
	return `a local time or an instant in a string, such as "2027-03-28T09:00:00" or "2027-03-28T07:00:00Z"`
}

// AppendText implements encoding.TextAppender.
func (m moment) AppendText(b []byte) ([]byte, error) {
	return append(b, schedule.Moment(m).String()...), nil
}
