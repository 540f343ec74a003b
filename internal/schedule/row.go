package schedule

import (
	"cmp"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// row is a schedule with what the firing of it needs beyond what callers see.
type row struct {
	Schedule
	lastLocal *time.Time // what the rule's own COUNT and UNTIL come to
}

// columns returns the columns of agent.schedule that row.fields scans, of a row that is called of.
func columns(of string) string {
	return fmt.Sprintf(`%[1]s.id, coalesce(%[1]s.name, ''), coalesce(%[1]s.owner, ''), %[1]s.queue, coalesce(%[1]s.type, ''), %[1]s.priority, %[1]s.event,
		%[1]s.kind, coalesce(%[1]s.rule, ''), %[1]s.at_local, %[1]s.at_instant, coalesce(%[1]s.timezone, ''), %[1]s.zone,
		%[1]s.gap, %[1]s.overlap, %[1]s.leap, %[1]s.misfire, %[1]s.starts_local, %[1]s.starts_at, %[1]s.ends_local, %[1]s.ends_at, %[1]s.last_local,
		coalesce(%[1]s."count", 0), %[1]s.fired, %[1]s.status, %[1]s.version, %[1]s.next_local, %[1]s.next_at, %[1]s.created_at, %[1]s.updated_at`, of)
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
		&s.ID, &s.Name, &s.Owner, &s.Queue, &s.Type, &s.Priority, (*[]byte)(&s.Event),
		&s.Kind, &s.rule, &s.atLocal, &s.atInstant, &s.Timezone, &s.Zone,
		&s.Gap, &s.Overlap, &s.Leap, &s.Misfire, &s.startsLocal, &s.startsInstant, &s.endsLocal, &s.endsInstant, &s.lastLocal,
		&s.Count, &s.Fired, &s.Status, &s.Version, &s.NextLocal, &s.NextAt, &s.CreatedAt, &s.UpdatedAt,
	}
}

func (s *scanner) result() row {
	s.At = moment(s.atLocal, s.atInstant)
	s.Starts = moment(s.startsLocal, s.startsInstant)
	s.Ends = moment(s.endsLocal, s.endsInstant)
	switch s.Kind {
	case RRule:
		s.RRule = s.rule
	case Cron:
		s.Cron = s.rule
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
		"last_local": local(r.lastLocal), "count": count, "next_local": local(r.NextLocal), "next_at": instant(r.NextAt),
	})
	if err != nil {
		return "", &InvalidError{Field: "event", Detail: "must be a JSON object"}
	}
	return string(text), nil
}
