package queue_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

// claimSQL claims from a queue as SQL does, and returns the ids.
func (b env) claimSQL(t *testing.T, q string) []int64 {
	t.Helper()
	return pgtest.Query[[]int64](t, b.sql, `select coalesce(array_agg(e.id), '{}') from agent.claim_events($1, 100) e`, q)
}

// wantClaimed fails the test unless a claim gets these events.
func (b env) wantClaimed(t *testing.T, q, when string, want ...int64) {
	t.Helper()
	if got := b.claimSQL(t, q); !slices.Equal(got, want) {
		t.Errorf("%s: claimed %v, want %v", when, got, want)
	}
}

// limit sets the limits of a queue.
func (b env) limit(t *testing.T, q, flow string) {
	t.Helper()
	b.exec(t, `select agent.put_queue($1, jsonb_build_object('flow', $2::jsonb))`, q, flow)
}

// insertGrouped inserts an event of each of these groups into a queue as SQL does, and returns the ids; "" stands for none.
func (b env) insertGrouped(t *testing.T, q string, groups ...string) (ids []int64) {
	t.Helper()
	for _, group := range groups {
		ids = append(ids, pgtest.Query[int64](t, b.sql, `select agent.insert_event('{}', $1, _group => nullif($2, ''))`, q, group))
	}
	return ids
}

func TestEventsOfAGroupWaitForTheirTurn(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.limit(t, "q", `{"concurrency": 2}`)
	ids := b.insertGrouped(t, "q", "a", "a", "a", "b", "", "a")
	b.wantClaimed(t, "q", "at first", ids[0], ids[1], ids[3], ids[4])
	b.wantClaimed(t, "q", "while the slots of a are taken")
	if state := pgtest.Query[string](t, b.sql, `select state from agent.get_event($1)`, ids[2]); state != "waiting" {
		t.Errorf("the third event of the group is %s", state)
	}
	if listed := pgtest.Query[[]int64](t, b.sql, `select array_agg(id order by id) from agent.list_events('q', 'waiting')`); !slices.Equal(listed, []int64{ids[2], ids[5]}) {
		t.Errorf("waiting are %v", listed)
	}
	b.exec(t, `select agent.delete_event($1)`, ids[1])
	b.wantClaimed(t, "q", "after an ack", ids[2])
	b.exec(t, `select agent.nack_event($1, null, '1 hour')`, ids[0])
	b.wantClaimed(t, "q", "after a nack", ids[5])
	b.exec(t, `select agent.run_event($1)`, ids[0])
	b.wantClaimed(t, "q", "when the nacked event is due, and has no slot")
	b.exec(t, `select agent.delete_event($1)`, ids[5])
	b.wantClaimed(t, "q", "with a slot for the nacked event", ids[0])
	b.endLease(t, ids[0])
	b.wantClaimed(t, "q", "when a lease is lost", ids[0])
	b.exec(t, `select agent.delete_events(array_agg(id)) from agent.event`)
	if left := pgtest.Query[int64](t, b.sql, `select count(*) from agent.event_hist where (group_key is null) <> (id = $1) or vt > now() + interval '1 day'`, ids[4]); left != 0 {
		t.Errorf("history has %d events with another group, or the vt of an event that waits", left)
	}
}

func TestLimitsOfAQueueChangeAtOnceForWhatWaits(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	ids := b.insertGrouped(t, "q", "a", "a", "a", "a", "b")
	b.exec(t, `update agent.event set vt = now() + interval '1 day' where id = $1`, ids[0]) // scheduled, before there were limits
	b.limit(t, "q", `{"concurrency": 1}`)
	b.wantClaimed(t, "q", "limited to one", ids[1], ids[4])
	b.limit(t, "q", `{"concurrency": 2}`)
	b.wantClaimed(t, "q", "limited to two", ids[2])
	b.limit(t, "q", `{"concurrency": 1}`)
	b.exec(t, `select agent.delete_event($1)`, ids[1])
	b.wantClaimed(t, "q", "limited to one again, with one leased")
	b.limit(t, "q", `null`)
	b.wantClaimed(t, "q", "without limits", ids[3])
	b.exec(t, `update agent.event set turn_vt = now() where id = $1; `, ids[0])
	b.exec(t, `update agent_private.group_wake set at = now()`)
	b.wantClaimed(t, "q", "when the scheduled one is due", ids[0])
	b.exec(t, `select agent.delete_events(array_agg(id)) from agent.event`)
	b.exec(t, `select agent_service.prune_groups('', '')`)
	if isLimited := pgtest.Query[bool](t, b.sql, `select exists (select from agent.queue_group) or exists (select from agent.queue where flow_version is not null)`); isLimited {
		t.Error("groups are looked at still, when none has anything")
	}
}

func TestAPausedOrHeldGroupIsLeftAlone(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	ids := b.insertGrouped(t, "q", "a", "b", "a")
	b.exec(t, `select agent.put_group('q', 'a', '{"paused": true}')`)
	b.wantClaimed(t, "q", "while a is paused", ids[1])
	if why := pgtest.Query[string](t, b.sql, `select blocked_by from agent.list_groups('q', _blocked => true)`); why != "paused" {
		t.Errorf("the group is blocked by %s", why)
	}
	b.exec(t, `select agent.put_group('q', 'a', '{"concurrency": 1}')`)
	b.wantClaimed(t, "q", "while a has a limit", ids[0])
	b.exec(t, `select agent.put_group('q', 'a', jsonb_build_object('held_until', now() + interval '1 hour'))`)
	b.endLease(t, ids[0])
	b.wantClaimed(t, "q", "while a is held, and its lease is lost")
	b.exec(t, `select agent.delete_group('q', 'a')`)
	b.wantClaimed(t, "q", "at the end of the hold", ids[2], ids[0])
	for _, settings := range []string{`{"concurrency": 0}`, `{"concurrency": 1.5}`, `{"limit": 1}`, `[]`, `{"held_until": "infinity"}`} {
		_, err := b.sql.Exec(t.Context(), `select agent.put_group('q', 'a', $1)`, settings)
		if pgErr, isAnswer := errors.AsType[*pgconn.PgError](err); !isAnswer || pgErr.Code != "QD003" {
			t.Errorf("%s: %v", settings, err)
		}
	}
}

func TestTheLimitOfAQueueCountsEveryLease(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	ids := b.insertGrouped(t, "q", "", "a", "", "", "")
	if n := pgtest.Query[int64](t, b.sql, `select count(*) from agent.claim_events('q', 1)`); n != 1 {
		t.Fatalf("claimed %d", n)
	}
	b.limit(t, "q", `{"total": 3}`)
	b.wantClaimed(t, "q", "with one leased before", ids[1], ids[2])
	b.wantClaimed(t, "q", "at the limit")
	b.endLease(t, ids[1])
	if _, err := b.Extend(t.Context(), queue.Lease{ID: ids[1]}, 0); !errors.Is(err, queue.ErrLeaseLost) {
		t.Errorf("extending a lease that has ended: %v", err)
	}
	b.wantClaimed(t, "q", "when a lease has ended", ids[3])
	b.exec(t, `select agent.nack_event($1, null, '1 hour')`, ids[2])
	b.wantClaimed(t, "q", "after a nack", ids[4])
}

func TestEventsKeepTheirGroupWhereverTheyGo(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.limit(t, "from", `{"concurrency": 1}`)
	b.limit(t, "to", `{"concurrency": 1}`)
	ids := b.insertGrouped(t, "from", "a", "a", "a")
	b.wantClaimed(t, "from", "at first", ids[0])
	if n := pgtest.Query[int64](t, b.sql, `select agent.move_events('from', 'to')`); n != 2 {
		t.Fatalf("moved %d", n)
	}
	b.wantClaimed(t, "to", "moved", ids[1])
	b.exec(t, `select agent.delete_event($1)`, ids[1])
	copied := pgtest.Query[int64](t, b.sql, `select id from agent.requeue_event($1)`, ids[1])
	b.wantClaimed(t, "to", "after the end of the one before", ids[2])
	b.exec(t, `select agent.put_queue('to', '{"max_attempts": 1, "dead_letter": {"queue": "dead"}, "flow": {"concurrency": 1}}')`)
	b.exec(t, `select agent.nack_event($1, null)`, ids[2])
	b.wantClaimed(t, "to", "after the failure of the one before", copied)
	if group := pgtest.Query[string](t, b.sql, `select group_key from agent.event where queue = 'dead'`); group != "a" {
		t.Errorf("the dead letter is of the group %s", group)
	}
	b.exec(t, `insert into agent.event (event, queue, group_key) values ('{}', 'from', 'a')`)
	b.wantClaimed(t, "from", "with the slot taken, and a row written by hand")
	b.exec(t, `select agent.delete_event($1)`, ids[0])
	if n := len(b.claimSQL(t, "from")); n != 1 {
		t.Errorf("claimed %d events, want the row that was written by hand", n)
	}
}

func TestAGroupIsPartOfARequestUnderAKey(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	first := pgtest.Query[int64](t, b.sql, `select agent.insert_event('{}', 'q', _key => 'k', _group => 'a')`)
	if again := pgtest.Query[int64](t, b.sql, `select agent.insert_event('{}', 'q', _key => 'k', _group => 'a')`); again != first {
		t.Errorf("the repeated request inserted %d, the first %d", again, first)
	}
	_, err := b.sql.Exec(t.Context(), `select agent.insert_event('{}', 'q', _key => 'k', _group => 'b')`)
	if pgErr, isAnswer := errors.AsType[*pgconn.PgError](err); !isAnswer || pgErr.Code != "QD005" {
		t.Errorf("the request with another group: %v", err)
	}
	_, err = b.sql.Exec(t.Context(), `select agent.insert_event('{}', 'q', _group => repeat('é', 128))`)
	if pgErr, isAnswer := errors.AsType[*pgconn.PgError](err); !isAnswer || pgErr.Code != "QD003" || pgErr.ColumnName != "group" {
		t.Errorf("a group of 256 bytes: %v", err)
	}
}
