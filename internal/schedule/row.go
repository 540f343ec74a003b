package schedule

import (
	"cmp"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pg"
)

// row is a schedule with what the firing of it needs beyond what callers see.
type row struct {
	Schedule
	lastLocal   *time.Time    // what the rule's own COUNT and UNTIL come to
	nextExact   *pg.Timestamp // NextAt as it is stored
	isUnplanned bool          // NextLocal does not come: what comes after it is to be found
	fault       string        // what it holds that no schedule can, empty: nothing
}

// columns returns the columns of agent.schedule that row.fields scans, of a row that is called of. Whatever the row holds, they can be scanned:
// see pg.AfterConnect for its times.
func columns(of string) string {
	return fmt.Sprintf(`%[1]s.id, coalesce(%[1]s.name, ''), coalesce(%[1]s.owner, ''), coalesce(%[1]s.queue, ''), coalesce(%[1]s.type, ''), coalesce(%[1]s.priority, 0),
		coalesce(%[1]s.event, '{}'), coalesce(%[1]s.kind, ''), coalesce(%[1]s.rule, ''), %[1]s.at_local, %[1]s.at_instant, coalesce(%[1]s.timezone, ''), coalesce(%[1]s.zone, ''),
		coalesce(%[1]s.gap, ''), coalesce(%[1]s.overlap, ''), coalesce(%[1]s.leap, ''), coalesce(%[1]s.misfire, ''),
		%[1]s.starts_local, %[1]s.starts_at, %[1]s.ends_local, %[1]s.ends_at, %[1]s.last_local,
		coalesce(%[1]s."count", 0), coalesce(%[1]s.fired, 0), coalesce(%[1]s.status, ''), coalesce(%[1]s.version, 0), %[1]s.next_local, %[1]s.next_at,
		coalesce(%[1]s.created_at, 'epoch'), coalesce(%[1]s.updated_at, 'epoch'), coalesce(%[1]s.status_reason, ''), coalesce(%[1]s.is_unplanned, false), %[1]s.next_at`, of)
}

// scanner collects what a row has in several columns.
type scanner struct {
	row
	rule                       string
	atLocal, atInstant         *time.Time
	startsLocal, startsInstant *time.Time
	endsLocal, endsInstant     *time.Time
}

// fields are where the columns go, in the order of columns().
func (s *scanner) fields() []any {
	return []any{
		&s.ID, &s.Name, &s.Owner, &s.Queue, &s.Type, &s.Priority,
		(*[]byte)(&s.Event), &s.Kind, &s.rule, &s.atLocal, &s.atInstant, &s.Timezone, &s.Zone,
		&s.Gap, &s.Overlap, &s.Leap, &s.Misfire,
		&s.startsLocal, &s.startsInstant, &s.endsLocal, &s.endsInstant, &s.lastLocal,
		&s.Count, &s.Fired, &s.Status, &s.Version, &s.NextLocal, &s.NextAt,
		&s.CreatedAt, &s.UpdatedAt, &s.StatusReason, &s.isUnplanned, &s.nextExact,
	}
}

func (s *scanner) result() row {
	s.At = moment(s.atLocal, s.atInstant)
	s.Starts = moment(s.startsLocal, s.startsInstant) // infinite ones mean what they say: no bound
	s.Ends = moment(s.endsLocal, s.endsInstant)
	switch s.Kind {
	case RRule:
		s.RRule = s.rule
	case Cron:
		s.Cron = s.rule
	}
	const beyond = "is beyond the years 1 to 9999"
	isBeyond := func(t *time.Time) bool { return t != nil && (t.Equal(pg.MinTime) || t.Equal(pg.MaxTime)) } // as such a one is read
	switch {
	case s.Kind != Once && s.Kind != RRule && s.Kind != Cron:
		s.fault = fmt.Sprintf("its kind is %q", s.Kind)
	case s.At != nil && s.At.Time.Equal(pg.MaxTime):
		s.fault = "its time " + beyond
	case s.Kind == Once && s.At == nil, s.Kind == RRule && (s.At == nil || s.At.IsInstant):
		s.fault = "it has no local time to start at"
	case isBeyond(s.NextLocal) || isBeyond(s.NextAt):
		s.fault = "its next time " + beyond
	case (s.NextLocal == nil) != (s.NextAt == nil):
		s.fault = "its next time is half known"
	}
	if s.fault != "" && s.StatusReason == "" && (s.Status == Active || s.Status == Paused) {
		s.StatusReason = s.fault
	}
	return s.row
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
func scanRow(r pgx.CollectableRow) (row, error) {
	var s scanner
	if err := r.Scan(s.fields()...); err != nil {
		return row{}, err
	}
	return s.result(), nil
}

// record is r's columns for agent.insert_schedule and agent.update_schedule, those that callers decide and what follows from them.
func (r *row) record() (string, error) {
	null := func(s string) any {
		if s == "" {
			return nil
		}
		return s
	}
	local := func(t *time.Time) any {
		if t == nil {
			return nil
		}
		return FormatLocal(*t)
	}
	instant := func(t *time.Time) any {
		if t == nil {
			return nil
		}
		return t.UTC().Format(time.RFC3339Nano)
	}
	var count any
	if r.Count != 0 {
		count = r.Count
	}
	text, err := json.Marshal(map[string]any{
		"name": null(r.Name), "owner": null(r.Owner), "queue": cmp.Or(r.Queue, "default"), "type": null(r.Type), "priority": r.Priority,
		"event": r.Event, "kind": r.Kind, "rule": null(cmp.Or(r.RRule, r.Cron)), "at_local": local(r.At.local()), "at_instant": instant(r.At.instant()),
		"timezone": null(r.Timezone), "zone": r.Zone, "gap": r.Gap, "overlap": r.Overlap, "leap": r.Leap, "misfire": r.Misfire,
		"starts_local": local(r.Starts.local()), "starts_at": instant(r.Starts.instant()), "ends_local": local(r.Ends.local()), "ends_at": instant(r.Ends.instant()),
		"last_local": local(r.lastLocal), "count": count, "next_local": local(r.NextLocal), "next_at": instant(r.NextAt), "is_unplanned": r.isUnplanned,
	})
	if err != nil {
		return "", &InvalidError{Field: "event", Detail: "must be a JSON object"}
	}
	return string(text), nil
}
