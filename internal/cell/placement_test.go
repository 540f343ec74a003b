package cell

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/pgtest"
)

// place places a queue, or ends the test.
func place(t *testing.T, s *Service, queue string, cells ...int) Placement {
	t.Helper()
	p, err := s.Place(t.Context(), PlaceParams{Queue: queue, Cells: cells})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// formerOf returns the former cells of a placement, "all" for all.
func formerOf(p Placement) (cells []string) {
	for _, f := range p.Former {
		if f.Cells == nil {
			cells = append(cells, "all")
		}
		for _, n := range f.Cells {
			cells = append(cells, fmt.Sprint(n))
		}
	}
	return cells
}

func TestPlacementRemembersFormerCellsUntilTheyAreEmpty(t *testing.T) {
	t.Parallel()
	s := open(t, pgtest.New(t), 0)
	version := int64(0)
	want := func(p Placement, err error, cells Set, former ...string) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(p.Cells, cells) || (p.Cells == nil) != (cells == nil) || !slices.Equal(formerOf(p), former) || p.Version <= version {
			t.Fatalf("got %+v, want the cells %v, and formerly %v", p, cells, former)
		}
		version = p.Version
		if again, err := s.Placement(t.Context(), "mail"); err != nil || again.Version != p.Version || !slices.Equal(formerOf(again), former) {
			t.Fatalf("got %+v, %v", again, err)
		}
	}
	move := func(cells Set, former ...string) {
		t.Helper()
		p, err := s.Place(t.Context(), PlaceParams{Queue: "mail", Cells: cells})
		want(p, err, cells, former...)
	}
	move(Set{2})
	move(Set{1, 4}, "2")
	move(Set{4}, "2", "1")
	move(Set{2}, "1", "4") // which has come back
	p, err := s.Drained(t.Context(), "mail", Set{1, 7}, []int64{version})
	want(p, err, Set{2}, "4")
	if p, err := s.Drained(t.Context(), "mail", Set{1}, nil); err != nil || p.Version != version {
		t.Errorf("what was empty became empty again: %+v, %v", p, err)
	}
	move(nil) // all: whatever was former is among them
	move(Set{3}, "all")
	move(Set{5}, "all", "3")
	p, err = s.Drained(t.Context(), "mail", Set{0, 1, 2, 4}, nil)
	if err != nil || p.Version != version {
		t.Errorf("all is as many cells as nobody here knows: %+v, %v", p, err)
	}
	p, err = s.Drained(t.Context(), "mail", nil, nil)
	want(p, err, Set{5})
	if p := place(t, s, "mail", 5); p.Version != version {
		t.Errorf("placing it where it is gave it the version %d after %d", p.Version, version)
	}

	if err := s.DeletePlacement(t.Context(), "mail", []int64{version - 1}); !errors.Is(err, ErrStale) {
		t.Errorf("got %v", err)
	}
	if err := s.DeletePlacement(t.Context(), "mail", []int64{version}); err != nil {
		t.Error(err)
	}
	for range 2 {
		if _, err := s.Placement(t.Context(), "mail"); !errors.Is(err, ErrNotPlaced) {
			t.Errorf("got %v", err)
		}
		if err := s.DeletePlacement(t.Context(), "mail", nil); !errors.Is(err, ErrNotPlaced) {
			t.Errorf("got %v", err)
		}
		if _, err := s.Drained(t.Context(), "mail", nil, nil); !errors.Is(err, ErrNotPlaced) {
			t.Errorf("got %v", err)
		}
		if _, err := s.Place(t.Context(), PlaceParams{Queue: "mail", Cells: Set{1}, IfExists: true}); !errors.Is(err, ErrStale) {
			t.Errorf("got %v", err)
		}
	}
	p, err = s.Place(t.Context(), PlaceParams{Queue: "mail", Cells: Set{1}, IfAbsent: true})
	want(p, err, Set{1})
	for _, queue := range []string{"", "a b", "queued.publish"} {
		if _, err := s.Place(t.Context(), PlaceParams{Queue: queue, Cells: Set{1}}); !errors.Is(err, pg.ErrInvalid) {
			t.Errorf("%q: got %v", queue, err)
		}
	}
	for _, cells := range []Set{{}, {1, 1}, {-1}, {256}} {
		if _, err := s.Place(t.Context(), PlaceParams{Queue: "q", Cells: cells}); !errors.Is(err, pg.ErrInvalid) {
			t.Errorf("%v: got %v", cells, err)
		}
	}
}

func TestPlacementRemembersPastCellsForGood(t *testing.T) {
	t.Parallel()
	s := open(t, pgtest.New(t), 0)
	want := func(p Placement, err error, past ...int) {
		t.Helper()
		if err != nil || p.Past == nil || !slices.Equal(p.Past, past) {
			t.Fatalf("the past is %v, want %v; %v", p.Past, past, err)
		}
	}
	want(place(t, s, "mail", 3), nil)
	want(place(t, s, "mail", 1), nil, 3)
	want(place(t, s, "mail", 1), nil, 3) // where it is
	want(place(t, s, "mail", 2, 3), nil, 1, 3)
	want(place(t, s, "mail", 1), nil, 1, 2, 3)
	p, err := s.Drained(t.Context(), "mail", nil, nil)
	want(p, err, 1, 2, 3)
	if err := s.DeletePlacement(t.Context(), "mail", nil); err != nil {
		t.Fatal(err)
	}
	want(place(t, s, "mail", 4), nil, 1, 2, 3)
	if all, err := s.Place(t.Context(), PlaceParams{Queue: "mail"}); err != nil || !slices.Equal(all.Past, Set{1, 2, 3, 4}) {
		t.Fatalf("got %v, %v", all.Past, err)
	}
	for _, cells := range []Set{{5}, {6}} { // it was on all that there were
		if p := place(t, s, "mail", cells...); p.Past != nil {
			t.Errorf("on %v, the past is %v", cells, p.Past)
		}
	}
}

func TestKeysStayWhereTheyWereForTheirRetention(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := open(t, db, 0)
	conn := pgtest.Connect(t, db.URL)
	keys := func(p Placement, cells Set) {
		t.Helper()
		if p.KeysUntil == nil || !slices.Equal(p.KeysCells, cells) || (p.KeysCells == nil) != (cells == nil) {
			t.Fatalf("got %+v, want that keys go to %v", p, cells)
		}
		left := pgtest.Query[float64](t, conn, `select extract(epoch from $1 - clock_timestamp())::float8`, *p.KeysUntil)
		if d := DefaultKeyRetention.Seconds() - left; d < -1 || d > 120 {
			t.Fatalf("they go there for %v s", left)
		}
	}
	if p := place(t, s, "q", 0); p.KeysUntil != nil {
		t.Errorf("a new placement has %+v", p)
	}
	keys(place(t, s, "q", 1), Set{0})
	keys(place(t, s, "q", 2), Set{0}) // where those of the latest day are
	before := place(t, s, "q", 2)
	keys(before, Set{0})
	if p := place(t, s, "q", 0); p.KeysUntil != nil {
		t.Errorf("they stay where they go anyway: %+v", p)
	}
	keys(place(t, s, "q"), Set{0}) // no cells given: all
	p, err := s.Place(t.Context(), PlaceParams{Queue: "q", Cells: Set{3}, KeysNow: true})
	if err != nil || p.KeysUntil != nil {
		t.Errorf("now: %+v, %v", p, err)
	}
	keys(place(t, s, "q", 4), Set{3})
	p, err = s.Place(t.Context(), PlaceParams{Queue: "q", Cells: Set{4}, KeysNow: true})
	if err != nil || p.KeysUntil != nil || p.Version == before.Version {
		t.Errorf("now, without another place: %+v, %v", p, err)
	}
	keys(place(t, s, "q", 5), Set{4})
	if _, err := conn.Exec(t.Context(), `update agent.placement set keys_until = clock_timestamp()`); err != nil {
		t.Fatal(err)
	}
	if p, err := s.Placement(t.Context(), "q"); err != nil || p.KeysUntil != nil || p.KeysCells != nil {
		t.Errorf("when the time is over: %+v, %v", p, err)
	}
	keys(place(t, s, "q", 6), Set{5})
}

func TestCellIsListedWhileKeysThatWereUsedThereCount(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := open(t, db, 0)
	conn := pgtest.Connect(t, db.URL)
	exec := func(statement string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	list := func() {
		t.Helper()
		if _, err := s.Put(t.Context(), 2, nil, false, true); err != nil {
			t.Fatal(err)
		}
	}
	wantInUse := func(when string, retentions float64) {
		t.Helper()
		used, ok := errors.AsType[*InUseError](s.Delete(t.Context(), 2, false))
		if !ok || used.Placed+used.Former != 0 || used.KeysUntil == nil {
			t.Fatalf("%s: got %+v", when, used)
		}
		left := pgtest.Query[float64](t, conn, `select extract(epoch from $1 - clock_timestamp())::float8`, *used.KeysUntil)
		if d := retentions*DefaultKeyRetention.Seconds() + 300 - left; d < -1 || d > 120 {
			t.Fatalf("%s: keys count for %v s", when, left)
		}
	}
	moved := func(from ...int) {
		t.Helper()
		place(t, s, "q", from...)
		place(t, s, "q", 1)
		if _, err := s.Drained(t.Context(), "q", nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	list()
	moved(2)
	wantInUse("while keys go there", 2)
	exec(`update agent.placement set keys_until = clock_timestamp()`)
	wantInUse("while it is asked", 2)
	exec(`update agent.placement set asked = jsonb_set(asked, '{0,until}', to_jsonb(clock_timestamp()))`)
	if err := s.Delete(t.Context(), 2, false); err != nil {
		t.Errorf("when its keys have ended: %v", err)
	}

	// Who gives them up gives up those of this cell alone.
	for _, from := range []Set{{2}, {2, 3}} {
		list()
		if err := s.DeletePlacement(t.Context(), "q", nil); err != nil {
			t.Fatal(err)
		}
		moved(from...)
		before, err := s.Placement(t.Context(), "q")
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Delete(t.Context(), 2, true); err != nil {
			t.Fatal(err)
		}
		p, err := s.Placement(t.Context(), "q")
		if err != nil || p.Version == before.Version {
			t.Fatalf("got %+v, %v", p, err)
		}
		if len(from) == 1 && (p.KeysUntil != nil || len(p.Asked) != 0) {
			t.Errorf("keys go to %v, and %v are asked", p.KeysCells, p.Asked)
		}
		if len(from) == 2 && (p.KeysUntil == nil || !slices.Equal(p.KeysCells, Set{3}) || len(p.Asked) != 1 || !slices.Equal(p.Asked[0].Cells, Set{3}) || !p.Asked[0].Until.Equal(before.Asked[0].Until)) {
			t.Errorf("keys go to %v, and %+v are asked", p.KeysCells, p.Asked)
		}
	}

	// A queue on all cells has keys on each, while that takes new queues and after.
	for _, cells := range []Set{nil, {1}} {
		exec(`delete from agent.placement`)
		place(t, s, "q")
		if cells != nil { // it was on all
			place(t, s, "q", cells...)
			if _, err := s.Drained(t.Context(), "q", nil, nil); err != nil {
				t.Fatal(err)
			}
		}
		for _, takesNew := range []bool{true, false} {
			if _, err := s.Put(t.Context(), 2, nil, takesNew, false); err != nil {
				t.Fatal(err)
			}
			wantInUse(fmt.Sprintf("of all cells, takes new: %t", takesNew), 2)
		}
		exec(`update agent.listed_cell set turns = jsonb_set(turns, '{-1,at}', to_jsonb(clock_timestamp() - interval '2 days 6 minutes'))`)
		if err := s.Delete(t.Context(), 2, false); err != nil {
			t.Errorf("when it has taken no keys of all for long: %v", err)
		}
		list()
		if err := s.Delete(t.Context(), 2, true); err != nil {
			t.Errorf("of all cells, without its keys: %v", err)
		}
	}
	list()
	place(t, s, "q", 2)
	if used, ok := errors.AsType[*InUseError](s.Delete(t.Context(), 2, true)); !ok || used.Placed != 1 {
		t.Errorf("with a queue, without its keys: got %+v", used)
	}
}

func TestWhenACellTakesNewQueuesIsRemembered(t *testing.T) {
	t.Parallel()
	s := open(t, pgtest.New(t), 0)
	url := "http://c.internal"
	want := func(number int, url *string, takesNew, keysNow bool, want string) {
		t.Helper()
		if _, err := s.Put(t.Context(), number, url, takesNew, keysNow); err != nil {
			t.Fatal(err)
		}
		page, err := s.Placements(t.Context(), PlacementsParams{})
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, c := range page.Cells {
			if c.Cell != number {
				continue
			}
			for i, turn := range c.Turns {
				if i > 0 && !turn.At.After(c.Turns[i-1].At) {
					t.Errorf("the turns are %+v", c.Turns)
				}
				if turn.At.Year() == 1970 {
					got += "always "
				}
				got += fmt.Sprint(turn.TakesNew, " ")
			}
		}
		if got != want {
			t.Errorf("the turns are %s, want %s", got, want)
		}
	}
	want(2, &url, true, false, "true ")
	want(2, nil, true, false, "true ")
	want(2, nil, false, false, "true false ")
	want(2, &url, true, false, "true false true ")
	want(2, &url, true, true, "always true ")
	want(2, &url, true, true, "always true ")
	want(2, &url, false, true, "always false ")
	want(3, nil, true, false, "always true ") // in the settings of gateways
	want(3, nil, false, false, "always true false ")
	want(4, nil, false, false, "false ")
	for i := range 250 {
		if _, err := s.Put(t.Context(), 4, nil, i%2 == 0, false); err != nil {
			t.Fatal(err)
		}
	}
	want(4, nil, false, false, strings.Repeat("true false ", 50))
}

func TestOtherCellsHaveNoPlacements(t *testing.T) {
	t.Parallel()
	s := open(t, pgtest.New(t), 3)
	_, placed := s.Place(t.Context(), PlaceParams{Queue: "q", Cells: Set{3}})
	_, got := s.Placement(t.Context(), "q")
	_, listed := s.Placements(t.Context(), PlacementsParams{})
	_, drained := s.Drained(t.Context(), "q", nil, nil)
	for _, err := range []error{placed, got, listed, drained, s.DeletePlacement(t.Context(), "q", nil)} {
		if !errors.Is(err, ErrNotHome) {
			t.Errorf("got %v", err)
		}
	}
}

func TestHomeWhoseIDsReachIntoOtherCellsPlacesNothingThere(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := open(t, db, 0)
	conn := pgtest.Connect(t, db.URL)
	place(t, s, "q", 1)
	widen := func() error {
		_, err := conn.Exec(t.Context(), `select agent.widen_ids()`)
		return err
	}
	if widen() == nil {
		t.Error("home gives out the ids of a cell that a queue is on")
	}
	place(t, s, "q", 0)
	if widen() == nil {
		t.Error("home gives out the ids of a cell that a queue was on")
	}
	if _, err := s.Drained(t.Context(), "q", nil, nil); err != nil {
		t.Fatal(err)
	}
	if err := widen(); err != nil {
		t.Fatal(err)
	}
	for _, cells := range []Set{{1}, {0, 1}, nil} {
		if _, err := s.Place(t.Context(), PlaceParams{Queue: "q", Cells: cells}); !errors.Is(err, pg.ErrInvalid) {
			t.Errorf("%v: got %v", cells, err)
		}
	}
	place(t, s, "other", 0)
}

// TestOfManyWhoPlaceAQueueOneDoes has gateways pin the same queues at once, while others delete placements.
func TestOfManyWhoPlaceAQueueOneDoes(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	services := []*Service{open(t, db, 0), open(t, db, 0)}
	for round := range 20 {
		queue := fmt.Sprintf("q%d", round%5)
		const gateways = 8
		results := make([]error, gateways)
		made := make([]Placement, gateways)
		var placing sync.WaitGroup
		for i := range gateways {
			placing.Go(func() {
				made[i], results[i] = services[i%2].Place(t.Context(), PlaceParams{Queue: queue, Cells: Set{i}, IfAbsent: true})
			})
		}
		placing.Wait()
		winner := -1
		for i, err := range results {
			switch {
			case err == nil && winner < 0:
				winner = i
			case err == nil:
				t.Fatalf("%d and %d have both placed the queue", winner, i)
			case !errors.Is(err, ErrStale):
				t.Fatal(err)
			}
		}
		if winner < 0 {
			t.Fatal("nobody has placed the queue")
		}
		p, err := services[0].Placement(t.Context(), queue)
		if err != nil || !slices.Equal(p.Cells, Set{winner}) || p.Version != made[winner].Version {
			t.Fatalf("%d has placed the queue: %+v, %v", winner, p, err)
		}
		// One moves it, one deletes it, both under the same version.
		var moved, deleted error
		placing.Go(func() {
			_, moved = services[0].Place(t.Context(), PlaceParams{Queue: queue, Cells: Set{9}, IfVersions: []int64{p.Version}})
		})
		placing.Go(func() { deleted = services[1].DeletePlacement(t.Context(), queue, []int64{p.Version}) })
		placing.Wait()
		after, err := services[0].Placement(t.Context(), queue)
		switch {
		case moved == nil && errors.Is(deleted, ErrStale) && err == nil && slices.Equal(after.Cells, Set{9}):
			if err := services[0].DeletePlacement(t.Context(), queue, nil); err != nil {
				t.Fatal(err)
			}
		case deleted == nil && errors.Is(moved, ErrStale) && errors.Is(err, ErrNotPlaced):
		default:
			t.Fatalf("moved: %v, deleted: %v, after that %+v, %v", moved, deleted, after, err)
		}
	}
}

// A follower keeps a copy of placements, as a gateway does.
type follower struct {
	t       *testing.T
	s       *Service
	known   map[string]Placement
	version int64
	epoch   string
	resets  int
}

// follow reads changes, page by page.
func (f *follower) follow(wait time.Duration) {
	f.t.Helper()
	p := PlacementsParams{AfterVersion: f.version, Epoch: f.epoch, Limit: 3, Wait: wait}
	for isFirst := true; isFirst || p.Cursor != ""; isFirst = false {
		page, err := f.s.Placements(f.t.Context(), p)
		if err != nil {
			f.t.Fatal(err)
		}
		if isFirst {
			f.version, f.epoch = page.Version, page.Epoch
		}
		if page.IsComplete {
			f.known = make(map[string]Placement)
			f.resets++
		}
		for _, one := range page.Placements {
			f.known[one.Queue] = one
			if one.IsRemoved {
				delete(f.known, one.Queue)
			}
		}
		p.Cursor = page.Next
	}
}

// wantAll checks that the copy is what there is.
func (f *follower) wantAll(when string) {
	f.t.Helper()
	fresh := &follower{t: f.t, s: f.s}
	fresh.follow(0)
	if len(fresh.known) != len(f.known) {
		f.t.Fatalf("%s: %d placements are known, and there are %d", when, len(f.known), len(fresh.known))
	}
	for queue, p := range fresh.known {
		if f.known[queue].Version != p.Version {
			f.t.Fatalf("%s: known is %+v, and there is %+v", when, f.known[queue], p)
		}
	}
}

func TestWhoFollowsChangesOfPlacementsMissesNone(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	db := pgtest.New(t)
	s := open(t, db, 0)
	f := &follower{t: t, s: s}
	f.follow(0)
	var changing sync.WaitGroup
	stop := make(chan struct{})
	for i := range 4 {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		changing.Go(func() {
			for range 60 {
				queue := fmt.Sprintf("q%d", random.IntN(12))
				if random.IntN(4) == 0 {
					_ = s.DeletePlacement(t.Context(), queue, nil) // or there is none
				} else if _, err := s.Place(t.Context(), PlaceParams{Queue: queue, Cells: Set{random.IntN(5)}}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	go func() {
		changing.Wait()
		close(stop)
	}()
	for isOver := false; !isOver; {
		select {
		case <-stop:
			isOver = true
		default:
		}
		f.follow(10 * time.Millisecond)
	}
	f.wantAll("after changes")
	if f.resets != 1 {
		t.Errorf("%d times everything was read", f.resets)
	}

	conn := pgtest.Connect(t, db.URL)
	exec := func(statement string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	// Removed placements are not kept for ever: who has not followed for long reads all.
	place(t, s, "gone", 1)
	f.follow(0)
	if err := s.DeletePlacement(t.Context(), "gone", nil); err != nil {
		t.Fatal(err)
	}
	exec(`update agent.placement set removed_at = removed_at - interval '2 days' where removed_at is not null`)
	place(t, s, "last", 1)
	if err := s.DeletePlacement(t.Context(), "last", nil); err != nil { // which prunes
		t.Fatal(err)
	}
	if n := pgtest.Query[int](t, conn, `select count(*)::int4 from agent.placement where queue = 'gone'`); n != 0 {
		t.Fatal("it was not pruned")
	}
	f.follow(0)
	f.wantAll("after what was removed is forgotten")
	if f.resets != 2 {
		t.Errorf("%d times everything was read", f.resets)
	}

	// A failover loses a change that the follower has seen, and another one is made.
	place(t, s, "lost", 1)
	f.follow(0)
	exec(`update agent_private.replica_version set version = version - 3000000 where name = 'placement'`)
	exec(`delete from agent.placement where queue = 'lost'`)
	f.follow(0)
	f.wantAll("after a failover")
	place(t, s, "lost", 2)
	f.follow(0)
	exec(`delete from agent.placement where queue = 'lost'`)
	for range 5 { // beyond the version that the follower has seen
		place(t, s, "other", rand.IntN(200))
	}
	f.epoch = "of a server that was started before"
	f.follow(0)
	f.wantAll("after a failover and many changes")
}

func TestWhoWaitsIsToldOfAChangeAtOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s, other := open(t, db, 0), open(t, db, 0)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	running := make(chan error, 1)
	go func() { running <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-running; err != nil {
			t.Error(err)
		}
	})
	first, err := s.Placements(t.Context(), PlacementsParams{})
	if err != nil || !first.IsComplete || len(first.Placements) != 0 {
		t.Fatalf("got %+v, %v", first, err)
	}
	type answer struct {
		page PlacementsPage
		err  error
	}
	wait := func(limit time.Duration) <-chan answer {
		got := make(chan answer, 1)
		go func() {
			page, err := s.Placements(t.Context(), PlacementsParams{AfterVersion: first.Version, Epoch: first.Epoch, Wait: limit})
			got <- answer{page, err}
		}()
		return got
	}
	if got := <-wait(50 * time.Millisecond); got.err != nil || len(got.page.Placements) != 0 || got.page.IsComplete || got.page.Version != first.Version {
		t.Errorf("when nothing happens: %+v", got)
	}
	waiting := wait(busyTimeout)
	place(t, other, "q", 1)
	if got := <-waiting; got.err != nil || len(got.page.Placements) != 1 || got.page.Placements[0].Queue != "q" {
		t.Errorf("got %+v", got)
	}
	first.Version = pgtest.Query[int64](t, pgtest.Connect(t, db.URL), `select version from agent_private.replica_version where name = 'placement'`)
	waiting = wait(busyTimeout)
	began := time.Now()
	s.Drain()
	if got := <-waiting; got.err != nil || len(got.page.Placements) != 0 || time.Since(began) > busyTimeout/2 {
		t.Errorf("at the shutdown: %+v", got)
	}
}

func TestPatternsOfQueuesNarrowTheListing(t *testing.T) {
	t.Parallel()
	s := open(t, pgtest.New(t), 0)
	place(t, s, "in.a", 1)
	place(t, s, "out.a", 1)
	page, err := s.Placements(t.Context(), PlacementsParams{Queues: []string{"in.*"}})
	if err != nil || len(page.Placements) != 1 || page.Placements[0].Queue != "in.a" {
		t.Errorf("got %+v, %v", page, err)
	}
}

func TestCellsAreAskedForKeysAsLongAsTheyRememberThem(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := open(t, db, 0)
	conn := pgtest.Connect(t, db.URL)
	want := func(p Placement, sets ...Set) {
		t.Helper()
		if len(p.Asked) != len(sets) {
			t.Fatalf("got %+v, want that %v are asked", p.Asked, sets)
		}
		for i, a := range p.Asked {
			if !slices.Equal(a.Cells, sets[i]) || (a.Cells == nil) != (sets[i] == nil) {
				t.Errorf("%v are asked, want %v", a.Cells, sets[i])
			}
			if d := a.Until.Sub(a.Since); d != DefaultKeyRetention+5*time.Minute {
				t.Errorf("they are asked for %v", d)
			}
		}
		if n := len(p.Asked); n > 0 && (p.KeysUntil == nil || !p.Asked[n-1].Since.Equal(*p.KeysUntil)) {
			t.Errorf("they are asked since %v, and keys go there until %v", p.Asked[n-1].Since, p.KeysUntil)
		}
	}
	// pass lets so much time pass.
	pass := func(hours int) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), `update agent.placement p set keys_until = p.keys_until - make_interval(hours => $1)
, asked = (select coalesce(jsonb_agg(jsonb_build_object('cells', a -> 'cells', 'since', (a ->> 'since')::timestamptz - make_interval(hours => $1), 'until', (a ->> 'until')::timestamptz - make_interval(hours => $1)) order by n), '[]')
  from jsonb_array_elements(p.asked) with ordinality as e (a, n))`, hours); err != nil {
			t.Fatal(err)
		}
	}
	want(place(t, s, "q", 0))
	want(place(t, s, "q", 1), Set{0})
	want(place(t, s, "q", 2), Set{0}) // where keys go still
	pass(25)
	want(place(t, s, "q", 1, 3), Set{0}, Set{2})
	pass(25)
	want(place(t, s, "q"), Set{2}, Set{1, 3}) // those of cell 0 are forgotten by now
	pass(25)
	want(place(t, s, "q", 5), Set{1, 3}, nil)
	p, err := s.Place(t.Context(), PlaceParams{Queue: "q", Cells: Set{5}, KeysNow: true})
	if err != nil || len(p.Asked) > 0 || p.KeysUntil != nil {
		t.Errorf("now: %+v, %v", p, err)
	}
	want(place(t, s, "q", 6), Set{5})
	pass(25)
	if p, err = s.Placement(t.Context(), "q"); err != nil || len(p.Asked) != 1 {
		t.Errorf("while they are asked: %+v, %v", p, err)
	}
	pass(25)
	if p, err = s.Placement(t.Context(), "q"); err != nil || len(p.Asked) > 0 {
		t.Errorf("after that: %+v, %v", p, err)
	}
	want(place(t, s, "q", 7), Set{6})
	if err := s.DeletePlacement(t.Context(), "q", nil); err != nil {
		t.Fatal(err)
	}
	want(place(t, s, "q", 7))
}
