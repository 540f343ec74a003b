package cell

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/pgtest"
)

// wantOther checks that a process that asks for a number is told which one the database has, and why.
func wantOther(t *testing.T, db *pgtest.DB, asked, found int, why string) {
	t.Helper()
	_, err := tryOpen(t, db, asked)
	if other, ok := errors.AsType[*OtherCellError](err); !ok || !errors.Is(err, ErrOther) || other.Asked != asked || other.Found != found {
		t.Errorf("cell %d: got %v, want that the database is cell %d", asked, err, found)
	} else if text := err.Error(); !strings.Contains(text, fmt.Sprintf("QUEUED_CELL is %d", asked)) || !strings.Contains(text, why) || !strings.Contains(text, "database for cell") {
		t.Errorf("the error says %q", text)
	}
}

func TestNewDatabaseTakesANumberOnceAndKeepsIt(t *testing.T) {
	t.Parallel()
	for _, number := range []int{0, 1, 3, 255} {
		db := pgtest.New(t)
		first := int64(max(1, number<<45))
		for range 2 {
			c, err := open(t, db, number).Get(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if want := (Cell{number, first, int64(number+1)<<45 - 1, int64(number+1)<<45 - first, c.PlacementVersion, c.KeysVersion, c.Epoch}); c != want {
				t.Errorf("cell %d is %+v, want %+v", number, c, want)
			}
		}
		for _, other := range []int{0, 1, 4, 255} {
			if other != number {
				wantOther(t, db, other, number, fmt.Sprintf("the database is cell %d", number))
			}
		}
		conn := pgtest.Connect(t, db.URL)
		for range 2 {
			if id := pgtest.Query[int64](t, conn, `select agent.insert_event('{}')`); id>>45 != int64(number) || id > first+10 {
				t.Errorf("cell %d gives out the id %d", number, id)
			}
		}
		if c, err := open(t, db, number).Get(t.Context()); err != nil || c.IDsLeft != c.LastID-c.FirstID-1 {
			t.Errorf("after two ids: %+v, %v", c, err)
		}
	}
	if _, err := tryOpen(t, pgtest.New(t), 256); !errors.Is(err, pg.ErrInvalid) {
		t.Errorf("cell 256: got %v", err)
	}
}

func TestDatabaseThatHasGivenOutIDsStaysCellZero(t *testing.T) {
	t.Parallel()
	for what, statement := range map[string]string{
		"an event":                  `select agent.insert_event('{}')`,
		"an id that was never used": `select nextval('agent.schedule_id_seq')`,
		"a redrive":                 `insert into agent.redrive (created_by, caller, last_id) values ('somebody', 'somebody', 0)`,
		"history without its ids": `insert into agent.event_hist (id, event_ts, attempts, priority, enqueued_at, vt, claimed, event, queue, finished_at, outcome)
			select 7, now(), 1, 0, now(), now(), '{}', '{}', 'q', now(), 'done'`,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			conn := pgtest.Connect(t, db.URL)
			if _, err := conn.Exec(t.Context(), statement); err != nil {
				t.Fatal(err)
			}
			wantOther(t, db, 3, 0, "has given out ids as cell 0")
			if isTaken := pgtest.Query[bool](t, conn, `select number is not null from agent.cell`); isTaken {
				t.Error("a process that was refused has made it a cell")
			}
			open(t, db, 0)
			wantOther(t, db, 3, 0, "the database is cell 0")
		})
	}
}

func TestOneOfManyProcessesGivesTheNumber(t *testing.T) {
	t.Parallel()
	for range 5 {
		db := pgtest.New(t)
		const processes = 8
		var mu sync.Mutex
		taken := make(map[int]bool)
		told := make(map[int]bool)
		var starting sync.WaitGroup
		for number := range processes {
			starting.Go(func() {
				_, err := tryOpen(t, db, number/2) // two for each number
				other, isOther := errors.AsType[*OtherCellError](err)
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					taken[number/2] = true
				case isOther && !other.HasIDs:
					told[other.Found] = true
				default:
					t.Error(err)
				}
			})
		}
		starting.Wait()
		if len(taken) != 1 || len(told) != 1 {
			t.Fatalf("%v serve, and the others were told of %v", taken, told)
		}
		for number := range taken {
			id := pgtest.Query[int64](t, pgtest.Connect(t, db.URL), `select agent.insert_event('{}')`)
			if !told[number] || id>>45 != int64(number) {
				t.Errorf("cell %d serves, the others were told of %v, and an id is %d", number, told, id)
			}
		}
	}
}

func TestProcessThatDiesWhileItTakesANumberLeavesNone(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	conn, err := pgx.Connect(t.Context(), db.ServiceURL)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), `begin; select agent_service.take_cell(3)`); err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	c, err := open(t, db, 5).Get(t.Context())
	if err != nil || c.Number != 5 || c.FirstID != 5<<45 {
		t.Errorf("got %+v, %v", c, err)
	}
}

// otherTimeline has the next use of a database believe that it was promoted.
const otherTimeline = `select setval('agent.server_timeline', 1 + (select last_value from agent.server_timeline)), setval('agent.server_mark', 0)`

func TestDatabaseThatIsPromotedBeforeItsFirstIDCanStillTakeANumber(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	pgtest.Query[int64](t, pgtest.Connect(t, db.URL), `with promoted as (`+otherTimeline+`) select count(*) from promoted`)
	pgtest.Query[bool](t, pgtest.Connect(t, db.URL), `select agent_private.advance_sequences() is not null`)
	open(t, db, 3)
}

func TestIDsMoveAheadWithinTheCellAndNeverBack(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	db := pgtest.New(t)
	open(t, db, 3)
	conn := pgtest.Connect(t, db.URL)
	const first, last = int64(3) << 45, int64(4)<<45 - 1
	exec := func(statement string, args ...any) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), statement, args...); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	for range 200 {
		before := last - random.Int64N(1<<random.IntN(46))
		if random.IntN(2) == 0 {
			before = first + random.Int64N(1<<random.IntN(46))
		}
		before = min(before, last)
		blind := random.Int64N(1 << random.IntN(30)) // seconds
		for _, name := range []string{"event", "schedule", "redrive"} {
			exec(fmt.Sprintf(`select setval('agent.%s_id_seq', $1)`, name), before)
		}
		exec(`update agent.server set clock = clock_timestamp() - make_interval(secs => $1)`, float64(blind))
		exec(otherTimeline)
		exec(`select agent_private.advance_sequences()`)
		for _, name := range []string{"event", "schedule", "redrive"} {
			after := pgtest.Query[int64](t, conn, fmt.Sprintf(`select last_value from agent.%s_id_seq`, name))
			want := min(before+1<<20+blind<<18, last)
			if after < want || after > last || after > want+1<<21 && after < last {
				t.Fatalf("the ids of %ss went from %d to %d after %d s, want at least %d", name, before, after, blind, want)
			}
		}
	}
}

func TestCellWhoseIDsAreExhaustedGivesOutNone(t *testing.T) {
	t.Parallel()
	for _, number := range []int{0, 3, 255} {
		db := pgtest.New(t)
		s := open(t, db, number)
		conn := pgtest.Connect(t, db.URL)
		pgtest.Query[int64](t, conn, `select setval('agent.event_id_seq', $1)`, int64(number+1)<<45-2)
		last := pgtest.Query[int64](t, conn, `select agent.insert_event('{}')`)
		if last != int64(number+1)<<45-1 {
			t.Errorf("the last id is %d", last)
		}
		insert := func() error {
			_, err := conn.Exec(t.Context(), `select agent.insert_event('{}', 'q')`)
			return pg.States{}.Wrap("inserting", err)
		}
		wantExhausted := func(when string) {
			t.Helper()
			err := insert()
			if pgErr, ok := errors.AsType[*pgconn.PgError](err); !ok || pgErr.Code != "2200H" || !errors.Is(err, pg.ErrIDsExhausted) {
				t.Errorf("cell %d, %s: got %v", number, when, err)
			}
		}
		wantExhausted("at the end")
		if c, err := s.Get(t.Context()); err != nil || c.IDsLeft != 0 {
			t.Errorf("got %+v, %v", c, err)
		}
		if _, err := conn.Exec(t.Context(), otherTimeline); err != nil {
			t.Fatal(err)
		}
		wantExhausted("after a failover")
		if n := pgtest.Query[int](t, conn, `select count(*)::int4 from agent.event where queue = 'q'`); n != 0 {
			t.Errorf("%d events were inserted", n)
		}

		_, err := conn.Exec(t.Context(), `select agent.widen_ids()`)
		if number > 0 {
			if err == nil {
				t.Errorf("cell %d gives out the ids of its neighbours", number)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := insert(); err != nil {
			t.Error(err)
		}
		if c, err := s.Get(t.Context()); err != nil || c.LastID != 1<<53-1 {
			t.Errorf("got %+v, %v", c, err)
		}
		open(t, db, 0)
	}
}

func TestCloneIsTheSameCellAndGivesOutOtherIDs(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := open(t, db, 3)
	original := pgtest.Connect(t, db.URL)
	before := pgtest.Query[int64](t, original, `select agent.insert_event('{}')`)
	if err := errors.Join(s.Close(t.Context()), original.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
	url, name := clone(t, db)
	t.Logf("the clone is %s", name)
	copied := &pgtest.DB{URL: url(db.URL), ServiceURL: url(db.ServiceURL), AdminURL: url(db.AdminURL)}
	wantOther(t, copied, 0, 3, "the database is cell 3")
	c, err := open(t, copied, 3).Get(t.Context())
	if err != nil || c.FirstID != 3<<45 || c.LastID != 4<<45-1 {
		t.Errorf("got %+v, %v", c, err)
	}
	if id := pgtest.Query[int64](t, pgtest.Connect(t, copied.URL), `select agent.insert_event('{}')`); id>>45 != 3 || id < before+1<<20 {
		t.Errorf("the original gave out %d, the clone %d", before, id)
	}
}
