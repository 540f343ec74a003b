// Package grouptest records what becomes of events, from the outside, and tells which of them were leased at once: for tests of the limits of groups.
//
// Triggers write each change of agent.event with the clock of the database, so what they tell does not depend on what is tested.
package grouptest

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// Record is a statement that makes the tables and the triggers, for the owner of a migrated database. The record is in group_check.log: a row for each change of an event.
const Record = `
create schema group_check;
create table group_check.log
(seq int8 generated always as identity, at timestamptz, op text, id int8, queue text, key text, attempts int4, vt timestamptz, is_nacked boolean, began timestamptz, tx int8, claimed timestamptz);
create function group_check.record() returns trigger language plpgsql security definer set search_path to pg_catalog as $$
declare
  r agent.event = case when tg_op = 'DELETE' then old else new end;
begin
  insert into group_check.log (at, op, id, queue, key, attempts, vt, is_nacked, began, tx, claimed)
  values (clock_timestamp(), tg_op, r.id, r.queue, coalesce(r.group_key, ''), r.attempts, r.vt, r.nacked_at is not null, statement_timestamp(), txid_current(), r.claimed[cardinality(r.claimed)]);
  return null;
end $$;
create trigger record after insert or update or delete on agent.event for each row execute function group_check.record();
`

// A Lease is one lease of an event, as the record has it: from the claim to its end, by whatever that came.
type Lease struct {
	Queue, Group string // of the event when it was claimed; the group is empty for an event without one
	ID           int64
	Claimed      time.Time // when the claim began, before it saw which slots were free: it counts for rates
	Began        time.Time // when the statement of the claim began
	From, To     time.Time
	IsReleased   bool      // the claim was undone
	Ended        time.Time // when the event left agent.event; zero: it is there
}

// Leases returns the leases of the record by event, each one's in their order.
func Leases(ctx context.Context, db *pgx.Conn) ([]*Lease, error) {
	rows, err := db.Query(ctx, `select at, op, id, queue, key, attempts, vt, is_nacked, began, coalesce(claimed, at) from group_check.log order by id, seq`)
	if err != nil {
		return nil, err
	}
	var (
		all                 []*Lease
		running             *Lease
		at, vt              time.Time
		began, claimed      time.Time
		op, queue, key      string
		id, lastID          int64
		first               int // of the event's leases
		attempts, attempted int
		isNacked            bool
	)
	endAt := func(at time.Time) {
		if running != nil && running.To.After(at) {
			running.To = at
		}
		running = nil
	}
	_, err = pgx.ForEachRow(rows, []any{&at, &op, &id, &queue, &key, &attempts, &vt, &isNacked, &began, &claimed}, func() error {
		if id != lastID {
			running, attempted, lastID, first = nil, 0, id, len(all)
		}
		switch {
		case op == "DELETE":
			endAt(at)
			for _, l := range all[first:] {
				l.Ended = at
			}
		case attempts > attempted:
			endAt(at)
			running = &Lease{Queue: queue, Group: key, ID: id, Claimed: claimed, Began: began, From: at, To: vt}
			all = append(all, running)
		case attempts < attempted:
			if len(all) > first {
				all[len(all)-1].IsReleased = true
			}
			endAt(at)
		case isNacked:
			endAt(at)
		case running != nil && vt.After(running.To): // extended
			running.To = vt
		}
		attempted = attempts
		return nil
	})
	return all, err
}

// MostAtOnce returns the highest number of leases that share an instant, and such an instant.
func MostAtOnce(leases []*Lease) (most int, when time.Time) {
	type edge struct {
		at time.Time
		by int
	}
	var edges []edge
	for _, l := range leases {
		if l.From.Before(l.To) {
			edges = append(edges, edge{l.From, 1}, edge{l.To, -1})
		}
	}
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.by, b.by)) })
	live := 0
	for _, e := range edges {
		if live += e.by; live > most {
			most, when = live, e.at
		}
	}
	return most, when
}

// FirstTooEarly returns the first of a group's leases that does not conform to a rate, by the generic cell rate algorithm, and how much too early its claim was; nil: all conform. Claims that were
// undone do not count.
func FirstTooEarly(leases []*Lease, burst int, interval time.Duration) (*Lease, time.Duration) {
	var tat time.Time // the theoretical arrival time of the next claim
	for _, l := range slices.SortedFunc(slices.Values(leases), func(a, b *Lease) int { return a.Claimed.Compare(b.Claimed) }) {
		if l.IsReleased {
			continue
		}
		// Intervals of the database are rounded to microseconds.
		if early := tat.Add(-time.Duration(burst-1) * interval).Sub(l.Claimed); early > 10*time.Microsecond {
			return l, early
		}
		if tat.Before(l.Claimed) {
			tat = l.Claimed
		}
		tat = tat.Add(interval)
	}
	return nil, 0
}
