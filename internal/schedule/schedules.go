package schedule

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pg"
)

// CreateParams is a schedule to create.
type CreateParams struct {
	Spec
	// IdempotencyKey makes the call repeatable: the same Spec under the same key returns the same schedule again. Empty: none.
	IdempotencyKey string
}

// Created is what Create returns.
type Created struct {
	Schedule
	Replayed bool // an earlier call with the same key created it
}

// Create creates a schedule. Occurrences before now are left out, except that a single time that is over is left to the misfire policy. It fails with an
// *InvalidError, and with ErrKeyReused when the key belongs to another request.
func (s *Service) Create(ctx context.Context, p CreateParams) (Created, error) {
	var created Created
	err := s.call(ctx, "creating a schedule", func(ctx context.Context) error {
		var request, oldHash string
		if p.IdempotencyKey != "" {
			var err error
			if request, oldHash, err = p.request(); err != nil {
				return err
			}
		}
		return retryChanged(ctx, func() error {
			var record string
			err := s.expand(ctx, s.pool, func(e *expander) error {
				d, err := e.draft(p.Spec, nil)
				if err != nil {
					return err
				}
				if err := e.setNext(d); err != nil {
					return err
				}
				record, err = d.record()
				return err
			})
			if err != nil {
				return err
			}
			var r row
			err = r.scan(s.pool.QueryRow(ctx, `select i.replayed, `+columns("(i.schedule)")+` from agent.insert_schedule($1, nullif($2, ''), nullif($3, '')::jsonb, nullif($4, '')) i`,
				record, p.IdempotencyKey, request, oldHash), &created.Replayed)
			created.Schedule = r.Schedule
			return sqlstates.Wrap("storing it", err)
		})
	})
	if err != nil {
		return Created{}, err
	}
	return created, nil
}

// PreviewParams asks when a schedule would come.
type PreviewParams struct {
	Spec
	After *time.Time // instants after this one; nil: after now
	N     int        // instants at most; zero: DefaultUpcoming; MaxUpcoming at most
}

// Preview returns when a schedule would come, and stores nothing. It fails as Create does.
func (s *Service) Preview(ctx context.Context, p PreviewParams) ([]Instant, error) {
	if p.Event == nil {
		p.Event = json.RawMessage(`{}`)
	}
	var instants []Instant
	err := s.expand(ctx, s.pool, func(e *expander) error {
		d, err := e.draft(p.Spec, p.After)
		if err != nil {
			return err
		}
		n := min(cmp.Or(p.N, DefaultUpcoming), MaxUpcoming)
		if d.Count > 0 {
			n = min(n, d.Count)
		}
		instants, err = e.following(&d.row, Instant{UTC: d.at, Local: lastTime}, d.floor, n)
		return d.fieldOf(err)
	})
	return instants, wrap("previewing a schedule", err)
}

// request returns what distinguishes requests under one idempotency key, as JSON: all values, with their defaults. oldHash is what versions up to 0.2.0
// stored: the hash of the request's text.
func (s Spec) request() (request, oldHash string, err error) {
	text, err := json.Marshal(s)
	if err != nil {
		return "", "", &InvalidError{Field: "event", Detail: "must be a JSON object"}
	}
	sum := sha256.Sum256(text)
	_, _ = s.check() // sets the defaults; what it refuses is refused again before anything is stored
	parts := strings.Split(trimRule(s.RRule), ";")
	slices.Sort(parts)
	s.RRule, s.Cron = strings.Join(parts, ";"), strings.Join(strings.Fields(s.Cron), " ")
	for _, m := range []**Moment{&s.At, &s.Starts, &s.Ends} {
		if *m != nil {
			*m = &Moment{Time: (*m).Time.UTC(), IsInstant: (*m).IsInstant}
		}
	}
	text, err = json.Marshal(s)
	return string(text), hex.EncodeToString(sum[:]), err
}

// check sets the defaults of a spec, and fails with an *InvalidError where it contradicts itself.
func (s *Spec) check() (Kind, error) {
	invalid := func(field, detail string) (Kind, error) { return "", &InvalidError{Field: field, Detail: detail} }
	s.Queue = cmp.Or(s.Queue, "default")
	s.Misfire = cmp.Or(s.Misfire, MisfireOnce)
	s.Gap = cmp.Or(s.Gap, GapForward)
	s.Overlap = cmp.Or(s.Overlap, OverlapFirst)
	s.Leap = cmp.Or(s.Leap, LeapFeb28)
	switch {
	case !slices.Contains([]Misfire{MisfireOnce, MisfireAll, MisfireSkip}, s.Misfire):
		return invalid("misfire", "must be once, all or skip")
	case !slices.Contains([]Gap{GapForward, GapNext, GapSkip}, s.Gap):
		return invalid("gap", "must be forward, next or skip")
	case !slices.Contains([]Overlap{OverlapFirst, OverlapLast}, s.Overlap):
		return invalid("overlap", "must be first or last")
	case !slices.Contains([]Leap{LeapFeb28, LeapMar1, LeapSkip}, s.Leap):
		return invalid("leap", "must be feb28, mar1 or skip")
	case s.Count < 0:
		return invalid("count", "must be at least 1")
	case len(s.Event) == 0:
		return invalid("event", "must be a JSON object")
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
	}
	return Once, nil
}

// Get returns one schedule. It fails with ErrNotFound.
func (s *Service) Get(ctx context.Context, id int64) (Schedule, error) {
	return s.one(ctx, "getting a schedule", `select `+columns("s")+` from agent.get_schedule($1) s`, id)
}

// ListParams filters schedules; zero fields select all.
type ListParams struct {
	Owner     string
	Queue     string
	Status    Status
	DueBefore *time.Time // active ones whose next occurrence comes before; the page then is by NextAt, otherwise by ID
	Limit     int        // zero: DefaultPage
	Cursor    string     // a Page.Next of a call with the same filters, or empty for the first page
}

// Page is one page of schedules. Next is the cursor of the following page, empty at the end.
type Page struct {
	Schedules []Schedule
	Next      string
}

// List returns one page of schedules. It fails with ErrBadCursor or ErrQueryTimeout.
func (s *Service) List(ctx context.Context, p ListParams) (Page, error) {
	listing := "schedules"
	if p.DueBefore != nil {
		listing = "due"
	}
	after, err := pg.ParseCursor(listing, p.Cursor)
	if err != nil {
		return Page{}, err
	}
	limit := pageSize(p.Limit)
	var found []row
	err = s.list(ctx, "listing schedules", func(ctx context.Context, tx pgx.Tx) (err error) {
		rows, _ := tx.Query(ctx, `select `+columns("s")+` from agent.list_schedules(nullif($1, ''), nullif($2, ''), nullif($3, ''), $4, $5, $6, $7) s`,
			p.Owner, p.Queue, string(p.Status), p.DueBefore, limit+1, after.At, after.ID)
		found, err = pgx.CollectRows(rows, scanRow)
		return err
	})
	if err != nil {
		return Page{}, err
	}
	var page Page
	if len(found) > limit {
		found = found[:limit]
		next := pg.Cursor{Listing: listing, ID: &found[limit-1].ID}
		if p.DueBefore != nil {
			next.At = found[limit-1].nextExact
		}
		page.Next = next.String()
	}
	for _, r := range found {
		page.Schedules = append(page.Schedules, r.Schedule)
	}
	return page, nil
}

// PatchParams changes the fields that are not nil. A pointer to a zero value resets the field to its default; a pointer to a nil Moment removes it.
//
// A new RRule removes the Cron, a new Cron removes the RRule and At, a new At removes the Cron, and an empty RRule leaves At as the only time.
type PatchParams struct {
	ID         int64
	IfVersions []int64 // the versions of which it must have one; nil: any

	Name     *string
	Queue    *string
	Type     *string
	Priority *int32
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
// comes now if it is over there and has not come yet. It fails with ErrNotFound, ErrStale, ErrEnded and an *InvalidError.
func (s *Service) Patch(ctx context.Context, p PatchParams) (Schedule, error) {
	var changed row
	err := s.call(ctx, "changing a schedule", func(ctx context.Context) error {
		return retryChanged(ctx, func() error {
			var (
				before row
				nextAt *string // exactly, whatever it is
				record string
			)
			err := s.expand(ctx, s.pool, func(e *expander) error {
				err := before.scan(s.pool.QueryRow(e.ctx, `select s.next_at::text, `+columns("s")+` from agent.get_schedule($1) s`, p.ID), &nextAt)
				if err != nil {
					return err
				}
				d, err := p.draft(e, before)
				if err != nil {
					return err
				}
				record, err = d.record()
				return err
			})
			if err != nil {
				return err
			}
			changed, err = selectOne(ctx, s.pool, `select `+columns("s")+` from agent.update_schedule($1, $2, $3, $4::text::timestamptz, $5) s`,
				p.ID, record, before.Version, nextAt, before.Fired)
			return sqlstates.Wrap("storing it", err)
		})
	})
	return changed.Schedule, err
}

// draft returns what a schedule becomes.
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
	switch {
	case changesTimes || before.NextAt == nil && p.Count != nil || before.fault != "":
		err = e.setNext(d)
	case d.Zone != before.Zone || d.Gap != before.Gap || d.Overlap != before.Overlap || before.isUnplanned:
		err = e.move(d, before)
	default:
		d.NextLocal, d.NextAt, d.lastLocal = before.NextLocal, before.NextAt, before.lastLocal
	}
	if d.Count > 0 && d.Fired >= int64(d.Count) {
		d.NextLocal, d.NextAt = nil, nil
	}
	return d, err
}

// apply returns what spec becomes.
func (p PatchParams) apply(spec Spec) Spec {
	switch {
	case p.Cron != nil && *p.Cron != "":
		spec.RRule, spec.At = "", nil
	case p.RRule != nil && *p.RRule != "", p.At != nil && *p.At != nil:
		spec.Cron = ""
	}
	set(&spec.Name, p.Name)
	set(&spec.Queue, p.Queue)
	set(&spec.Type, p.Type)
	set(&spec.Priority, p.Priority)
	set(&spec.Event, p.Event)
	set(&spec.At, p.At)
	set(&spec.RRule, p.RRule)
	set(&spec.Cron, p.Cron)
	set(&spec.Timezone, p.Timezone)
	set(&spec.Starts, p.Starts)
	set(&spec.Ends, p.Ends)
	set(&spec.Count, p.Count)
	set(&spec.Misfire, p.Misfire)
	set(&spec.Gap, p.Gap)
	set(&spec.Overlap, p.Overlap)
	set(&spec.Leap, p.Leap)
	return spec
}

func set[T any](field, to *T) {
	if to != nil {
		*field = *to
	}
}

// Pause keeps a schedule from firing until it is resumed. Repeated, it changes nothing. It fails with ErrNotFound and ErrEnded.
func (s *Service) Pause(ctx context.Context, id int64) (Schedule, error) {
	return s.one(ctx, "pausing a schedule", `select `+columns("s")+` from agent.pause_schedule($1) s`, id)
}

// Resume ends a pause, also one by the service. What was missed is left to the misfire policy. Repeated, it changes nothing. It fails with ErrNotFound and
// ErrEnded.
func (s *Service) Resume(ctx context.Context, id int64) (Schedule, error) {
	return s.one(ctx, "resuming a schedule", `select `+columns("s")+` from agent.resume_schedule($1) s`, id)
}

// Delete cancels a schedule for good; it can still be read. Its next occurrence is recorded as cancelled, and those of its events that nobody ever claimed go to
// history as cancelled. Repeated, it changes nothing. It fails with ErrNotFound, and with ErrStale when ifVersions (nil: any) has not the
// schedule's version.
func (s *Service) Delete(ctx context.Context, id int64, ifVersions []int64) error {
	return s.call(ctx, "deleting a schedule", func(ctx context.Context) error {
		_, err := s.pool.Exec(ctx, `select agent.delete_schedule_if_match($1, $2)`, id, ifVersions)
		return err
	})
}

// one returns the only schedule of a statement that selects columns().
func (s *Service) one(ctx context.Context, doing, sql string, args ...any) (Schedule, error) {
	var found row
	err := s.call(ctx, doing, func(ctx context.Context) (err error) {
		found, err = selectOne(ctx, s.pool, sql, args...)
		return err
	})
	return found.Schedule, err
}

// row is a schedule with what callers do not see of it.
type row struct {
	Schedule
	lastLocal   *time.Time    // the end that COUNT and UNTIL of its rule come to
	nextExact   *pg.Timestamp // NextAt as it is stored
	isUnplanned bool          // NextLocal does not come: what comes after it is to be found
	fault       string        // why the row is no valid schedule; empty: it is
	series      *series       // nil until parse

	// Columns of which scan makes fields of Spec.
	rule                       string
	atLocal, atInstant         *time.Time
	startsLocal, startsInstant *time.Time
	endsLocal, endsInstant     *time.Time
}

// columns returns the columns of agent.schedule that row.scan reads, of a row that is called of. They can be read whatever the row holds: see pg.RegisterTypes
// for its times.
func columns(of string) string {
	return fmt.Sprintf(`%[1]s.id, coalesce(%[1]s.name, ''), coalesce(%[1]s.owner, ''), coalesce(%[1]s.queue, ''), coalesce(%[1]s.type, ''), coalesce(%[1]s.priority, 0),
		coalesce(%[1]s.event, '{}'), coalesce(%[1]s.kind, ''), coalesce(%[1]s.rule, ''), %[1]s.at_local, %[1]s.at_instant, coalesce(%[1]s.timezone, ''), coalesce(%[1]s.zone, ''),
		coalesce(%[1]s.gap, ''), coalesce(%[1]s.overlap, ''), coalesce(%[1]s.leap, ''), coalesce(%[1]s.misfire, ''),
		%[1]s.starts_local, %[1]s.starts_at, %[1]s.ends_local, %[1]s.ends_at, %[1]s.last_local,
		coalesce(%[1]s."count", 0), coalesce(%[1]s.fired, 0), coalesce(%[1]s.status, ''), coalesce(%[1]s.version, 0), %[1]s.next_local, %[1]s.next_at,
		coalesce(%[1]s.created_at, 'epoch'), coalesce(%[1]s.updated_at, 'epoch'), coalesce(%[1]s.status_reason, ''), coalesce(%[1]s.is_unplanned, false), %[1]s.next_at`, of)
}

// scan reads columns(), after others that go to first.
func (r *row) scan(from pgx.Row, first ...any) error {
	err := from.Scan(append(
		first, &r.ID, &r.Name, &r.Owner, &r.Queue, &r.Type, &r.Priority,
		(*[]byte)(&r.Event), &r.Kind, &r.rule, &r.atLocal, &r.atInstant, &r.Timezone, &r.Zone,
		&r.Gap, &r.Overlap, &r.Leap, &r.Misfire,
		&r.startsLocal, &r.startsInstant, &r.endsLocal, &r.endsInstant, &r.lastLocal,
		&r.Count, &r.Fired, &r.Status, &r.Version, &r.NextLocal, &r.NextAt,
		&r.CreatedAt, &r.UpdatedAt, &r.StatusReason, &r.isUnplanned, &r.nextExact,
	)...)
	if err != nil {
		return err
	}
	r.At = moment(r.atLocal, r.atInstant)
	r.Starts = moment(r.startsLocal, r.startsInstant) // infinite ones are no bound
	r.Ends = moment(r.endsLocal, r.endsInstant)
	switch r.Kind {
	case RRule:
		r.RRule = r.rule
	case Cron:
		r.Cron = r.rule
	}
	const beyond = "is beyond the years 1 to 9999"
	isBeyond := func(t *time.Time) bool { return t != nil && (t.Equal(pg.MinTime) || t.Equal(pg.MaxTime)) } // as such a one is read
	switch {
	case r.Kind != Once && r.Kind != RRule && r.Kind != Cron:
		r.fault = fmt.Sprintf("its kind is %q", r.Kind)
	case r.At != nil && r.At.Time.Equal(pg.MaxTime):
		r.fault = "its time " + beyond
	case r.Kind == Once && r.At == nil, r.Kind == RRule && (r.At == nil || r.At.IsInstant):
		r.fault = "it has no local time to start at"
	case isBeyond(r.NextLocal) || isBeyond(r.NextAt):
		r.fault = "its next time " + beyond
	case (r.NextLocal == nil) != (r.NextAt == nil):
		r.fault = "its next time is half known"
	}
	if r.StatusReason == "" && (r.Status == Active || r.Status == Paused) {
		r.StatusReason = r.fault
	}
	return nil
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

// scanRow reads one row of columns().
func scanRow(from pgx.CollectableRow) (r row, err error) { return r, r.scan(from) }

// selectOne returns the only row of a statement that selects columns().
func selectOne(ctx context.Context, q querier, sql string, args ...any) (row, error) {
	rows, _ := q.Query(ctx, sql, args...)
	return pgx.CollectExactlyOneRow(rows, scanRow)
}

// parse sets the series of a stored schedule. It fails with an *InvalidError, also where the row is no valid schedule.
func (r *row) parse() (err error) {
	if r.fault != "" {
		return &InvalidError{Detail: r.fault}
	}
	switch r.Kind {
	case Once:
		r.series = singleTime(r.At.Time)
	case Cron:
		r.series, err = parseCron(r.Cron)
	case RRule:
		var rec *recurrence
		if rec, err = parseRecurrence(r.RRule); err == nil {
			r.series = rec.series(r.At.Time, r.Leap, r.lastLocal) // lastLocal is what COUNT comes to, too
		}
	}
	return err
}

// record returns the columns that agent.insert_schedule and agent.update_schedule take, as JSON.
func (r *row) record() (string, error) {
	text, err := json.Marshal(map[string]any{
		"name": orNull(r.Name), "owner": orNull(r.Owner), "queue": cmp.Or(r.Queue, "default"), "type": orNull(r.Type), "priority": r.Priority,
		"event": r.Event, "kind": r.Kind, "rule": orNull(cmp.Or(r.RRule, r.Cron)), "at_local": timestamp(r.At.local()), "at_instant": timestamp(r.At.instant()),
		"timezone": orNull(r.Timezone), "zone": r.Zone, "gap": r.Gap, "overlap": r.Overlap, "leap": r.Leap, "misfire": r.Misfire,
		"starts_local": timestamp(r.Starts.local()), "starts_at": timestamp(r.Starts.instant()),
		"ends_local": timestamp(r.Ends.local()), "ends_at": timestamp(r.Ends.instant()),
		"last_local": timestamp(r.lastLocal), "count": orNull(r.Count), "next_local": timestamp(r.NextLocal), "next_at": timestamp(r.NextAt),
		"is_unplanned": r.isUnplanned,
	})
	if err != nil {
		return "", &InvalidError{Field: "event", Detail: "must be a JSON object"}
	}
	return string(text), nil
}

// orNull returns a pointer to v; nil: it is zero.
func orNull[T comparable](v T) *T {
	if v == *new(T) {
		return nil
	}
	return &v
}

// timestamp returns a time as SQL reads it. A timestamp without time zone ignores the Z.
func timestamp(t *time.Time) *string {
	if t == nil {
		return nil
	}
	text := t.UTC().Format(time.RFC3339Nano)
	return &text
}
