package schedule

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
	"time"
)

// Create makes a schedule. What comes before now is passed over, except that a single time that is over is left to the misfire policy. It fails
// with an *InvalidError, and with ErrKeyReused when the key belongs to another request.
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
		return replanned(ctx, func() error {
			var record string
			err := s.plan(ctx, func(ctx context.Context) error {
				steps := newSteps(ctx)
				d, err := prepare(ctx, s.pool, steps, p.Spec, nil)
				if err != nil {
					return err
				}
				if err := d.planFirst(ctx, s.pool, steps); err != nil {
					return err
				}
				record, err = d.record()
				return err
			})
			if err != nil {
				return err
			}
			var sc scanner
			err = s.pool.QueryRow(ctx, `select i.replayed, `+columns("(i.schedule)")+` from agent.insert_schedule($1, nullif($2, ''), nullif($3, '')::jsonb, nullif($4, '')) i`,
				record, p.IdempotencyKey, request, oldHash).Scan(append([]any{&created.Replayed}, sc.fields()...)...)
			created.Schedule = sc.result().Schedule
			return sqlstates.Wrap("storing it", err)
		})
	})
	if err != nil {
		return Created{}, err
	}
	return created, nil
}

// Preview returns when a schedule would come, storing nothing. It fails as Create does.
func (s *Service) Preview(ctx context.Context, p PreviewParams) ([]Instant, error) {
	var instants []Instant
	err := s.plan(ctx, func(ctx context.Context) error {
		if p.Event == nil {
			p.Event = json.RawMessage(`{}`)
		}
		steps := newSteps(ctx)
		d, err := prepare(ctx, s.pool, steps, p.Spec, p.After)
		if err != nil {
			return err
		}
		n := min(cmp.Or(p.N, DefaultUpcoming), MaxUpcoming)
		if d.Count > 0 {
			n = min(n, d.Count)
		}
		l, err := d.line()
		if err != nil {
			return err
		}
		instants, err = following(ctx, s.pool, steps, l, position{d.at, lastTime}, d.floor, n)
		return d.fieldOf(err)
	})
	return instants, wrap("previewing a schedule", err)
}

// draft is a schedule that is not stored yet, and what is known of now.
type draft struct {
	row
	at    time.Time // now, or the time to begin at
	floor time.Time // local; what is before comes before at
}

// request is what tells requests under one idempotency key apart, as JSON: everything they say, by value, with the defaults of what they leave out.
// oldHash is what versions up to 0.2.0 stored: of the text, as it came.
func (s Spec) request() (request, oldHash string, err error) {
	text, err := json.Marshal(s)
	if err != nil {
		return "", "", &InvalidError{Field: "event", Detail: "must be a JSON object"}
	}
	sum := sha256.Sum256(text)
	_, _ = s.check() // which sets the defaults; what it refuses is refused before anything is stored
	parts := strings.Split(strings.ToUpper(strings.TrimPrefix(strings.TrimSpace(s.RRule), "RRULE:")), ";")
	slices.Sort(parts)
	s.RRule, s.Cron = strings.Join(parts, ";"), strings.Join(strings.Fields(s.Cron), " ")
	for _, m := range []**Moment{&s.At, &s.Starts, &s.Ends} {
		if *m != nil {
			*m = &Moment{Time: (*m).Time.UTC(), IsInstant: (*m).IsInstant}
		}
	}
	if text, err = json.Marshal(s); err != nil {
		return "", "", &InvalidError{Field: "event", Detail: "must be a JSON object"}
	}
	return string(text), hex.EncodeToString(sum[:]), nil
}

// check refuses what cannot be a schedule, and sets what was left out.
func (s *Spec) check() (Kind, error) {
	refuse := func(field, detail string) (Kind, error) { return "", &InvalidError{Field: field, Detail: detail} }
	s.Queue = cmp.Or(s.Queue, "default")
	s.Misfire = cmp.Or(s.Misfire, MisfireOnce)
	s.Gap = cmp.Or(s.Gap, GapForward)
	s.Overlap = cmp.Or(s.Overlap, OverlapFirst)
	s.Leap = cmp.Or(s.Leap, LeapFeb28)
	switch {
	case !slices.Contains([]Misfire{MisfireOnce, MisfireAll, MisfireSkip}, s.Misfire):
		return refuse("misfire", "must be once, all or skip")
	case !slices.Contains([]Gap{GapForward, GapNext, GapSkip}, s.Gap):
		return refuse("gap", "must be forward, next or skip")
	case !slices.Contains([]Overlap{OverlapFirst, OverlapLast}, s.Overlap):
		return refuse("overlap", "must be first or last")
	case !slices.Contains([]Leap{LeapFeb28, LeapMar1, LeapSkip}, s.Leap):
		return refuse("leap", "must be feb28, mar1 or skip")
	case s.Count < 0:
		return refuse("count", "must be at least 1")
	case len(s.Event) == 0:
		return refuse("event", "must be a JSON object")
	case s.Starts != nil && s.Ends != nil && s.Starts.IsInstant == s.Ends.IsInstant && s.Ends.Time.Before(s.Starts.Time):
		return refuse("ends", "must not be before starts")
	case s.RRule != "" && s.Cron != "":
		return refuse("cron", "does not go with an rrule")
	case s.Cron != "" && s.At != nil:
		return refuse("at", "does not go with a cron; starts says from when on it comes")
	case s.Cron != "":
		return Cron, nil
	case s.RRule != "":
		return RRule, nil
	case s.At == nil:
		return refuse("at", "must be given, or an rrule or a cron")
	}
	return Once, nil
}

// field is the field that a schedule's times come from, for errors.
func (d *draft) field() string {
	switch d.Kind {
	case RRule:
		return "rrule"
	case Cron:
		return "cron"
	default:
		return "at"
	}
}

// fieldOf names that field in an *InvalidError that names none.
func (d *draft) fieldOf(err error) error { return fieldOf(err, d.field()) }

// prepare makes a draft of spec, at after or (nil) now. It fails with an *InvalidError where the spec makes no sense, or its rule never comes.
func prepare(ctx context.Context, q querier, s *steps, spec Spec, after *time.Time) (*draft, error) {
	kind, err := spec.check()
	if err != nil {
		return nil, err
	}
	d := &draft{row: row{Schedule: Schedule{Spec: spec, Kind: kind}}}
	var rec *recurrence
	if kind == RRule {
		if rec, err = parseRecurrence(spec.RRule); err != nil {
			return nil, err
		}
	} else {
		rec = &recurrence{}
	}

	// The instants that a rule needs to know as local times.
	asked := []*Moment{spec.At, spec.Starts, rec.until}
	var instants []time.Time
	for _, m := range asked {
		if i := m.instant(); i != nil {
			instants = append(instants, *i)
		}
	}
	var (
		localAt time.Time
		locals  []time.Time
	)
	err = q.QueryRow(ctx, `select zone, at, local_at, floor, locals from agent.schedule_zone(nullif($1, ''), nullif($2, ''), $3, $4, $5)`,
		spec.Timezone, spec.Owner, kind == Once && spec.At.IsInstant, after, instants).Scan(&d.Zone, &d.at, &localAt, &d.floor, &locals)
	if err != nil {
		return nil, err
	}
	d.at = d.at.UTC()
	switch kind {
	case Once:
		return d, nil
	case Cron:
		r, err := parseCron(spec.Cron)
		if err != nil {
			return nil, err
		}
		return d, r.check(s, "cron", 0)
	}

	local := make([]*time.Time, len(asked))
	for i, m := range asked {
		if local[i] = m.local(); m.instant() != nil {
			local[i], locals = &locals[0], locals[1:]
		}
	}
	start := cmp.Or(local[0], local[1], &localAt).Truncate(time.Second)
	d.At = &Moment{Time: start}
	r := rec.starting(start, spec.Leap, local[2])
	if err := r.check(s, "rrule", rec.option.Count); err != nil {
		return nil, err
	}
	if r.until.Before(lastTime) {
		d.lastLocal = &r.until
	}
	return d, nil
}

// planFirst sets the first occurrence from now on that has not happened, or that of a single time, whenever it is.
func (d *draft) planFirst(ctx context.Context, q querier, s *steps) error {
	d.NextLocal, d.NextAt, d.isUnplanned = nil, nil, false
	if d.Count > 0 && d.Fired >= int64(d.Count) {
		return nil
	}
	l, err := d.line()
	if err != nil {
		return err
	}
	after, floor := notBefore(d.at), d.floor
	if d.Kind == Once {
		after, floor = position{}, time.Time{}
	}
	next, err := following(ctx, q, s, l, after, floor, 1)
	if err != nil {
		return d.fieldOf(err)
	}
	if len(next) > 0 {
		d.NextLocal, d.NextAt = &next[0].Local, &next[0].UTC
	}
	return nil
}
