package schedule

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/queued/queued/internal/pg"
)

// CreateParams is a schedule to create.
type CreateParams struct {
	Spec
	// IdempotencyKey makes the call repeatable: the same Spec under the same key returns the same schedule again. Empty: none.
	IdempotencyKey string
}

// Created is the result of Create.
type Created struct {
	Schedule
	Deduplicated bool // an earlier call with the same key created it
}

// Create creates a schedule. Occurrences before now are left out, except that a single time that is over is left to the misfire policy. It fails with an
// *InvalidError, with an *UndeclaredError, and with ErrKeyReused when the key belongs to another request.
func (s *Service) Create(ctx context.Context, p CreateParams) (Created, error) {
	var request string
	if p.IdempotencyKey != "" {
		var err error
		if request, err = p.request(); err != nil {
			return Created{}, wrap("creating a schedule", err)
		}
	}
	stored, err := s.store(ctx, "creating a schedule", func(e *expander) (*draft, error) {
		d, err := e.draft(p.Spec, nil)
		if err != nil {
			return nil, err
		}
		return d, e.setNext(d)
	}, func(ctx context.Context, record string) (row, error) {
		return s.writeRow(ctx, `
			select `+columns+`, i.replayed as deduplicated
			from agent_service.insert_schedule($1, nullif($2, ''), nullif($3, '')::jsonb) i, lateral (select (i.schedule).*) s
			where `+pg.RequireQueue(s.cfg.DeclaredOnly, "s.queue"),
			record, p.IdempotencyKey, request)
	})
	return Created{stored.Schedule, stored.Deduplicated}, err
}

// store expands a draft and stores it, until nothing that it was expanded from has changed in between.
func (s *Service) store(
	ctx context.Context, doing string, expand func(*expander) (*draft, error), save func(ctx context.Context, record string) (row, error),
) (stored row, err error) {
	once := func(ctx context.Context) error {
		var record string
		err := s.expand(ctx, s.pool, func(e *expander) error {
			d, err := expand(e)
			if err == nil {
				record, err = d.record()
			}
			return err
		})
		if err == nil {
			stored, err = save(ctx, record)
			err = sqlstates.Wrap("storing it", err)
		}
		return err
	}
	err = s.call(ctx, doing, func(ctx context.Context) error {
		for tries := 0; ; tries++ {
			err := once(ctx)
			if !errors.Is(err, errChanged) {
				return err
			}
			if !pg.Pause(ctx, pg.Jittered(time.Duration(tries)*time.Millisecond)) {
				return fmt.Errorf("%w: %w", ctx.Err(), err)
			}
		}
	})
	return stored, err
}

// PreviewParams asks when a schedule would come.
type PreviewParams struct {
	Spec
	After *time.Time // instants after this one; nil: after now
	N     int        // instants at most; zero: DefaultUpcoming; MaxUpcoming at most
}

// Preview returns when a schedule would come, and stores nothing. It fails as Create does.
func (s *Service) Preview(ctx context.Context, p PreviewParams) ([]Upcoming, error) {
	if p.Event == nil {
		p.Event = json.RawMessage(`{}`)
	}
	var upcoming []Upcoming
	err := s.expand(ctx, s.pool, func(e *expander) error {
		d, err := e.draft(p.Spec, p.After)
		if err != nil {
			return err
		}
		n := min(cmp.Or(p.N, DefaultUpcoming), MaxUpcoming)
		if d.Count > 0 {
			n = min(n, d.Count)
		}
		instants, err := e.following(&d.row, Instant{UTC: d.at, Local: lastTime}, d.floor, n)
		if err == nil {
			upcoming, err = e.noted(&d.row, instants)
		}
		return d.fieldOf(err)
	})
	return upcoming, wrap("previewing a schedule", err)
}

// request returns the values that distinguish requests under one idempotency key, as JSON: all of them, with their defaults.
func (s Spec) request() (string, error) {
	_, _ = s.check() // sets the defaults; a value that it refuses is refused again before anything is stored
	parts := strings.Split(trimRule(s.RRule), ";")
	slices.Sort(parts)
	s.RRule, s.Cron = strings.Join(parts, ";"), strings.Join(strings.Fields(s.Cron), " ")
	for _, m := range []**Moment{&s.At, &s.Starts, &s.Ends} {
		if *m != nil {
			*m = &Moment{Time: (*m).Time.UTC(), IsInstant: (*m).IsInstant}
		}
	}
	text, err := json.Marshal(s)
	if err != nil {
		return "", &InvalidError{Field: "event", Detail: "must be a JSON object"}
	}
	return string(text), nil
}

// check sets the defaults of a spec, and fails with an *InvalidError where it contradicts itself. The database checks single values.
func (s *Spec) check() (Kind, error) {
	invalid := func(field, detail string) (Kind, error) { return "", &InvalidError{Field: field, Detail: detail} }
	if s.Topic == "" {
		s.Queue = cmp.Or(s.Queue, "default")
	}
	s.Misfire = cmp.Or(s.Misfire, MisfireOnce)
	s.Gap = cmp.Or(s.Gap, GapForward)
	s.Overlap = cmp.Or(s.Overlap, OverlapFirst)
	s.Leap = cmp.Or(s.Leap, LeapFeb28)
	switch {
	case len(s.Event) == 0:
		return invalid("event", "must be a JSON object")
	case s.Topic != "" && s.Queue != "":
		return invalid("queue", "does not go with a topic")
	case s.Topic != "" && s.Type != "":
		return invalid("type", "does not go with a topic")
	case s.Topic != "" && s.Priority != 0:
		return invalid("priority", "does not go with a topic")
	case s.Topic != "" && s.Group != "":
		return invalid("group", "does not go with a topic")
	case s.Starts != nil && s.Ends != nil && s.Starts.IsInstant == s.Ends.IsInstant && s.Ends.Time.Before(s.Starts.Time):
		return invalid("ends", "must not be before starts")
	case s.RRule != "" && s.Cron != "":
		return invalid("cron", "does not go with an rrule")
	case s.Cron != "" && s.At != nil:
		return invalid("at", "does not go with a cron; starts says from when on it comes")
	case s.Cron != "":
		return Cron, nil
	case s.RRule != "":
		return RRule, nil
	case s.At == nil:
		return invalid("at", "must be given, or an rrule or a cron")
	case s.At.Time.IsZero(): // which some languages send for a time that is not set, and after which a search begins
		return invalid("at", "must be after 0001-01-01T00:00:00")
	}
	return Once, nil
}

// Get returns one schedule. It fails with ErrNotFound.
func (s *Service) Get(ctx context.Context, id int64) (Schedule, error) {
	r, err := s.row(ctx, "getting a schedule", `agent.get_schedule($1) s`, id)
	return r.Schedule, err
}

// ListParams filters schedules; zero fields select all.
type ListParams struct {
	Owner     string
	Queue     string
	Status    Status
	DueBefore *time.Time // active ones whose next occurrence comes before; the page then is by NextAt, otherwise by ID
	Limit     int        // zero: DefaultPage
	Cursor    string     // a Page.Next of a call with the same filters, or empty for the first page

	Queues, Topics []string // only schedules that insert into queues, or publish to topics, that one of these patterns stands for; nil, both: all
}

// Page is one page of schedules. Next is the cursor of the following page, empty at the end.
type Page struct {
	Schedules []Schedule
	Next      string
}

// List returns one page of schedules. It fails with ErrBadCursor or ErrQueryTimeout.
func (s *Service) List(ctx context.Context, p ListParams) (page Page, err error) {
	listing := "schedules"
	if p.DueBefore != nil {
		listing = "due"
	}
	end := func(r *row) pg.Cursor {
		if p.DueBefore == nil {
			return pg.Cursor{ID: &r.ID}
		}
		return pg.Cursor{ID: &r.ID, At: r.NextExact}
	}
	rows, next, err := pg.ReadPage(listing, p.Cursor, p.Limit, func(after pg.Cursor, n int) ([]row, error) {
		return list[row](ctx, s, "listing schedules",
			`select `+columns+` from agent.list_schedules(nullif($1, ''), nullif($2, ''), nullif($3, ''), $4, $5, $6, $7, $8, $9) s`,
			p.Owner, p.Queue, string(p.Status), p.DueBefore, n, after.At, after.ID, p.Queues, p.Topics)
	}, end)
	for i := range rows {
		rows[i].complete()
		page.Schedules = append(page.Schedules, rows[i].Schedule)
	}
	page.Next = next
	return page, err
}

// PatchParams changes the fields that are not nil. A pointer to a zero value resets the field to its default; a pointer to a nil Moment removes it.
//
// A new Topic removes the Queue, the Type, the Priority and the Group, and a new Queue the Topic; without both, the Queue is the default one.
// A new RRule removes the Cron, a new Cron removes the RRule and At, a new At removes the Cron, and an empty RRule leaves At as the only time.
type PatchParams struct {
	ID         int64
	IfVersions []int64 // the versions of which it must have one; nil: any
	// MayUse says whether the caller may use the target of a schedule, as it is and as it becomes; nil: all. If not, there is no such schedule.
	MayUse func(*Spec) bool

	Name     *string
	Queue    *string
	Topic    *string
	Type     *string
	Priority *int32
	Group    *string
	Event    *json.RawMessage
	At       **Moment
	RRule    *string
	Cron     *string
	Timezone *string
	Starts   **Moment
	Ends     **Moment
	Count    *int
	Misfire  *Misfire
	Gap      *Gap
	Overlap  *Overlap
	Leap     *Leap
}

// Patch changes a schedule and returns it. When its times change, the next one is found anew from now on; in another zone it keeps the civil time, which
// comes now if it is over there and has not come yet. It fails with ErrNotFound, ErrStale, ErrEnded, an *InvalidError, and an
// *UndeclaredError when it comes to name a queue, or is completed and is to come again.
func (s *Service) Patch(ctx context.Context, p PatchParams) (Schedule, error) {
	var before row
	var namesQueue bool // that it did not name before, or that it did not keep from being deleted
	changed, err := s.store(ctx, "changing a schedule", func(e *expander) (_ *draft, err error) {
		if before, err = selectRow(e.ctx, s.pool, `select `+columns+` from agent.get_schedule($1) s`, p.ID); err != nil {
			return nil, err
		}
		if p.MayUse != nil && (!p.MayUse(&before.Spec) || !p.MayUse(new(p.apply(before.Spec)))) {
			return nil, ErrNotFound
		}
		d, err := p.draft(e, before)
		namesQueue = err == nil && d.Queue != "" && (d.Queue != before.Queue || before.Status == Completed && d.NextAt != nil)
		return d, err
	}, func(ctx context.Context, record string) (row, error) {
		return s.writeRow(ctx, `select `+columns+` from agent_service.update_schedule($1, $2, $3, $4, $5) s where `+pg.RequireQueue(s.cfg.DeclaredOnly && namesQueue, "s.queue"),
			p.ID, record, before.Version, before.NextExact, before.Fired)
	})
	return changed.Schedule, err
}

// draft returns the draft of a schedule after the change.
func (p PatchParams) draft(e *expander, before row) (*draft, error) {
	switch {
	case p.IfVersions != nil && !slices.Contains(p.IfVersions, before.Version):
		return nil, ErrStale
	case before.Status == Cancelled:
		return nil, ErrEnded
	}
	d, err := e.draft(p.apply(before.Spec), nil)
	if err != nil {
		return nil, err
	}
	d.ID, d.Fired = before.ID, before.Fired
	changesTimes := p.At != nil || p.RRule != nil || p.Cron != nil || p.Starts != nil || p.Ends != nil || p.Leap != nil
	if !changesTimes { // in real time it may come from a COUNT, part of which has been in another zone
		d.UntilAt = before.UntilAt
	}
	switch {
	case changesTimes || before.NextAt == nil && p.Count != nil || before.Fault != "":
		err = e.setNext(d)
	case d.Zone != before.Zone || d.Gap != before.Gap || d.Overlap != before.Overlap || before.IsUnplanned:
		err = e.move(d, before)
	default:
		d.NextLocal, d.NextAt, d.LastLocal = before.NextLocal, before.NextAt, before.LastLocal
	}
	if d.Count > 0 && d.Fired >= int64(d.Count) {
		d.NextLocal, d.NextAt = nil, nil
	}
	return d, err
}

// apply returns spec after the change.
func (p PatchParams) apply(spec Spec) Spec {
	switch {
	case p.Cron != nil && *p.Cron != "":
		spec.RRule, spec.At = "", nil
	case p.RRule != nil && *p.RRule != "", p.At != nil && *p.At != nil:
		spec.Cron = ""
	}
	switch {
	case p.Topic != nil && *p.Topic != "":
		spec.Queue, spec.Type, spec.Priority, spec.Group = "", "", 0, ""
	case p.Queue != nil && *p.Queue != "":
		spec.Topic = ""
	}
	from, to := reflect.ValueOf(p), reflect.ValueOf(&spec).Elem()
	for i := range to.NumField() { // the fields of PatchParams have the names of those of Spec, and point to their values
		if change := from.FieldByName(to.Type().Field(i).Name); change.IsValid() && !change.IsNil() {
			to.Field(i).Set(change.Elem())
		}
	}
	return spec
}

// Limited changes the schedules whose target is one of some queues and topics. Others do not exist for it.
type Limited struct {
	s              *Service
	queues, topics []string
}

// Within returns a Limited for patterns of queues and topics, both nil for all.
func (s *Service) Within(queues, topics []string) Limited { return Limited{s, queues, topics} }

// Pause is [Limited.Pause] for all schedules.
func (s *Service) Pause(ctx context.Context, id int64) (Schedule, error) {
	return s.Within(nil, nil).Pause(ctx, id)
}

// Resume is [Limited.Resume] for all schedules.
func (s *Service) Resume(ctx context.Context, id int64) (Schedule, error) {
	return s.Within(nil, nil).Resume(ctx, id)
}

// Delete is [Limited.Delete] for all schedules.
func (s *Service) Delete(ctx context.Context, id int64, ifVersions []int64) error {
	return s.Within(nil, nil).Delete(ctx, id, ifVersions)
}

// RunNow is [Limited.RunNow] for all schedules.
func (s *Service) RunNow(ctx context.Context, id int64) (Occurrence, error) {
	return s.Within(nil, nil).RunNow(ctx, id)
}

// Pause keeps a schedule from firing until it is resumed. Repeated, it changes nothing. It fails with ErrNotFound and ErrEnded.
func (l Limited) Pause(ctx context.Context, id int64) (Schedule, error) {
	r, err := l.s.changedRow(ctx, "pausing a schedule", `agent.pause_schedule($1, $2, $3) s`, id, l.queues, l.topics)
	return r.Schedule, err
}

// Resume ends a pause, also one by the service. Missed occurrences are left to the misfire policy. Repeated, it changes nothing. It fails with ErrNotFound and
// ErrEnded.
func (l Limited) Resume(ctx context.Context, id int64) (Schedule, error) {
	r, err := l.s.changedRow(ctx, "resuming a schedule", `agent.resume_schedule($1, $2, $3) s`, id, l.queues, l.topics)
	return r.Schedule, err
}

// Delete cancels a schedule for good; it can still be read. Its next occurrence is recorded as cancelled, and those of its events that nobody ever claimed go to
// history as cancelled. Repeated, it changes nothing. It fails with ErrNotFound, and with ErrStale when ifVersions (nil: any) has not the
// schedule's version.
func (l Limited) Delete(ctx context.Context, id int64, ifVersions []int64) error {
	return l.s.call(ctx, "deleting a schedule", func(ctx context.Context) error {
		return l.s.writes.Exec(ctx, `select agent_service.delete_schedule_if_match($1, $2, $3, $4)`, id, ifVersions, l.queues, l.topics)
	})
}

// row is a schedule with the fields that callers do not see.
type row struct {
	Schedule
	LastLocal    *time.Time    // the end that COUNT of its rule comes to, or UNTIL, if that is a civil time
	UntilAt      *time.Time    // UNTIL of its rule, if that is an instant
	NextExact    *pg.Timestamp // NextAt as it is stored
	IsUnplanned  bool          // NextLocal does not come: the next one after it is to be found
	Deduplicated bool          // an earlier call with the same key created it
	Fault        string        // why the row is no valid schedule; empty: it is
	series       *series       // nil until parse

	// Columns of which complete makes fields of Spec.
	Rule                  string
	AtLocal, AtInstant    *time.Time
	StartsLocal, StartsAt *time.Time
	EndsLocal, EndsAt     *time.Time
}

// columns are those of a row, of a schedule that is called s. They can be read whatever the schedule holds: see pg.RegisterTypes for its
// times.
const columns = `s.id, s.name, s.owner, s.queue, s.topic, s.type, s.priority, s.group_key as "group", coalesce(s.event, '{}') as event, s.kind, s.rule, s.at_local,
	s.at_instant, s.timezone, s.zone, s.gap, s.overlap, s.leap, s.misfire, s.starts_local, s.starts_at, s.ends_local, s.ends_at,
	s.last_local, s.until_at, s."count", s.fired, s.status, s.version, s.next_local, s.next_at, s.next_at as next_exact, s.created_at, s.updated_at,
	s.status_reason, s.is_unplanned`

// row returns the schedule s that a statement's from clause returns, with the deadline of a call.
func (s *Service) row(ctx context.Context, doing, from string, args ...any) (row, error) {
	var r row
	err := s.call(ctx, doing, func(ctx context.Context) (err error) {
		r, err = selectRow(ctx, s.pool, `select `+columns+` from `+from, args...)
		return err
	})
	return r, err
}

// changedRow is row for a function that changes the schedule.
func (s *Service) changedRow(ctx context.Context, doing, from string, args ...any) (row, error) {
	var r row
	err := s.call(ctx, doing, func(ctx context.Context) (err error) {
		r, err = s.writeRow(ctx, `select `+columns+` from `+from, args...)
		return err
	})
	return r, err
}

// writeRow is selectRow for a statement that changes the schedule.
func (s *Service) writeRow(ctx context.Context, sql string, args ...any) (r row, err error) {
	err = s.writes.Do(ctx, func(pool *pg.Pool) error {
		r, err = selectRow(ctx, pool, sql, args...)
		return err
	})
	return r, err
}

// selectRow returns the only row of a statement that selects columns.
func selectRow(ctx context.Context, q querier, sql string, args ...any) (row, error) {
	rows, _ := q.Query(ctx, sql, args...)
	r, err := pg.CollectOne[row](rows)
	r.complete()
	return r, err
}

// lastInstant returns the instant after which nothing comes; nil: there is none.
func (r *row) lastInstant() *time.Time {
	ends := r.Ends.instant()
	if ends == nil || r.UntilAt != nil && r.UntilAt.Before(*ends) {
		return r.UntilAt
	}
	return ends
}

// complete sets the fields that follow from the columns of a row.
func (r *row) complete() {
	r.At = moment(r.AtLocal, r.AtInstant)
	r.Starts = moment(r.StartsLocal, r.StartsAt) // infinite ones are no bound
	r.Ends = moment(r.EndsLocal, r.EndsAt)
	switch r.Kind {
	case RRule:
		r.RRule = r.Rule
	case Cron:
		r.Cron = r.Rule
	}
	const beyond = "is beyond the years 1 to 9999"
	isBeyond := func(t *time.Time) bool { return t != nil && (t.Equal(pg.MinTime) || t.Equal(pg.MaxTime)) } // as such a one is read
	switch {
	case r.Fault != "":
	case r.Kind != Once && r.Kind != RRule && r.Kind != Cron:
		r.Fault = fmt.Sprintf("its kind is %q", r.Kind)
	case r.At != nil && r.At.Time.Equal(pg.MaxTime):
		r.Fault = "its time " + beyond
	case r.Kind == Once && r.At == nil, r.Kind == RRule && (r.At == nil || r.At.IsInstant):
		r.Fault = "it has no local time to start at"
	case isBeyond(r.NextLocal) || isBeyond(r.NextAt):
		r.Fault = "its next time " + beyond
	case (r.NextLocal == nil) != (r.NextAt == nil):
		r.Fault = "its next time is half known"
	}
	if r.StatusReason == "" && (r.Status == Active || r.Status == Paused) {
		r.StatusReason = r.Fault
	}
}

func moment(local, instant *time.Time) *Moment {
	switch {
	case local != nil:
		return &Moment{Time: *local}
	case instant != nil:
		return &Moment{Time: instant.UTC(), IsInstant: true}
	}
	return nil
}

// parse sets the series of a stored schedule. It fails with an *InvalidError, also where the row is no valid schedule.
func (r *row) parse() (err error) {
	if r.Fault != "" {
		return &InvalidError{Detail: r.Fault}
	}
	switch r.Kind {
	case Once:
		r.series = singleTime(r.At.Time)
	case Cron:
		r.series, err = parseCron(r.Cron)
	case RRule:
		var rec *recurrence
		if rec, err = parseRecurrence(r.RRule); err == nil {
			r.series = rec.series(r.At.Time, r.Leap, r.LastLocal)
		}
	}
	return err
}

// record returns the columns that agent_service.insert_schedule and agent_service.update_schedule take, as JSON.
func (r *row) record() (string, error) {
	text, err := json.Marshal(map[string]any{
		"name": pg.OrNull(r.Name), "owner": pg.OrNull(r.Owner), "queue": pg.OrNull(r.Queue), "topic": pg.OrNull(r.Topic), "type": pg.OrNull(r.Type),
		"priority": r.Priority, "group_key": pg.OrNull(r.Group), "event": r.Event, "kind": r.Kind, "rule": pg.OrNull(cmp.Or(r.RRule, r.Cron)),
		"at_local": timestamp(r.At.local()), "at_instant": timestamp(r.At.instant()), "timezone": pg.OrNull(r.Timezone), "zone": r.Zone,
		"gap": r.Gap, "overlap": r.Overlap, "leap": r.Leap, "misfire": r.Misfire,
		"starts_local": timestamp(r.Starts.local()), "starts_at": timestamp(r.Starts.instant()),
		"ends_local": timestamp(r.Ends.local()), "ends_at": timestamp(r.Ends.instant()),
		"last_local": timestamp(r.LastLocal), "until_at": timestamp(r.UntilAt), "count": pg.OrNull(r.Count),
		"next_local": timestamp(r.NextLocal), "next_at": timestamp(r.NextAt), "is_unplanned": r.IsUnplanned, "is_real_time": r.isRealTime(),
	})
	if err != nil {
		return "", &InvalidError{Field: "event", Detail: "must be a JSON object"}
	}
	return string(text), nil
}

// timestamp returns a time as SQL reads it. A timestamp without time zone ignores the Z.
func timestamp(t *time.Time) *string {
	if t == nil {
		return nil
	}
	text := t.UTC().Format(time.RFC3339Nano)
	return &text
}
