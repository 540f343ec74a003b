package schedule_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/schedule"
)

// copies returns copies of all owners, in pages; after a mark those of owners that have changed since, and the next mark.
func (env environment) copies(t *testing.T, after string) (copies []json.RawMessage, mark string) {
	t.Helper()
	p := schedule.OwnerCopiesParams{After: after, Limit: 2}
	for isFirst := true; isFirst || p.Cursor != ""; isFirst = false {
		page, err := env.OwnerCopies(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		if isFirst {
			mark = page.After
		}
		copies = append(copies, page.Copies...)
		p.Cursor = page.Next
	}
	return copies, mark
}

// putCopies puts copies, and returns what became of each as "id result".
func (env environment) putCopies(t *testing.T, copies ...json.RawMessage) string {
	t.Helper()
	found, err := env.PutOwnerCopies(t.Context(), copies)
	if err != nil {
		t.Fatal(err)
	}
	var results []string
	for _, one := range found {
		results = append(results, one.ID+" "+one.Result)
	}
	return strings.Join(results, ", ")
}

// owners returns all that a database has of owners, and of those that were deleted.
func (env environment) owners(t *testing.T) string {
	t.Helper()
	return pgtest.Query[string](t, env.sql, `
		select concat((select string_agg(agent_private.owner_copy(o)::text, e'\n' order by o.id) from agent.owner o)
		, (select string_agg(concat(e'\n', c.id, ' ', c.version), '' order by c.id) from agent_private.owner_change c where c.is_deleted))`)
}

func (env environment) putOwner(t *testing.T, id, zone string) schedule.PutOwnerResult {
	t.Helper()
	put, err := env.PutOwner(t.Context(), schedule.PutOwnerParams{ID: id, Timezone: zone})
	if err != nil {
		t.Fatal(err)
	}
	return put
}

func TestSchedulesOfAnotherCellFollowTheOwnersOfHome(t *testing.T) {
	t.Parallel()
	home, cell := setup(t), setup(t)
	for _, id := range []string{"ada", "bob", "cid"} {
		home.putOwner(t, id, "Europe/Berlin")
	}
	copies, mark := home.copies(t, "")
	if got := cell.putCopies(t, copies...); got != "ada applied, bob applied, cid applied" {
		t.Errorf("got %s", got)
	}
	if got := cell.putCopies(t, copies...); got != "ada unchanged, bob unchanged, cid unchanged" {
		t.Errorf("once more: %s", got)
	}
	daily := cell.create(t, schedule.Spec{Cron: "0 12 * * *", Owner: "ada"})
	gone := cell.create(t, schedule.Spec{Cron: "0 12 * * *", Owner: "bob"})
	at := func() time.Time { return *cell.get(t, daily.ID).NextAt }
	berlin := at()

	home.putOwner(t, "ada", "Asia/Tokyo")
	if _, err := home.DeleteOwner(t.Context(), "bob", nil); err != nil {
		t.Fatal(err)
	}
	changes, mark := home.copies(t, mark)
	if got := cell.putCopies(t, changes...); got != "ada applied, bob applied" {
		t.Errorf("got %s", got)
	}
	if got := cell.putCopies(t, copies...); got != "ada unchanged, bob deleted, cid unchanged" {
		t.Errorf("copies of before: %s", got)
	}
	if !at().Before(berlin) && at().Sub(berlin) != 24*time.Hour-7*time.Hour && at().Sub(berlin) != 24*time.Hour-8*time.Hour {
		t.Errorf("the schedule comes at %v as it did, %v", at(), berlin)
	}
	if s := cell.get(t, gone.ID); s.NextAt != nil {
		t.Errorf("a schedule of an owner that was deleted comes at %v", s.NextAt)
	}
	if again, _ := home.copies(t, mark); len(again) != 0 {
		t.Errorf("after the latest mark there is %s", again)
	}
	// One that is deleted and comes again goes on from its version, so that no copy of before counts.
	if put := home.putOwner(t, "bob", "UTC"); put.Version != 3 || !put.Created {
		t.Errorf("got %+v", put)
	}
	late := changes
	changes, _ = home.copies(t, mark)
	if got := cell.putCopies(t, changes...) + ", " + cell.putCopies(t, late...) + ", " + cell.putCopies(t, copies...); got != "bob applied, ada unchanged, bob unchanged, ada unchanged, bob unchanged, cid unchanged" {
		t.Errorf("got %s", got)
	}
	if home, cell := home.owners(t), cell.owners(t); home != cell {
		t.Errorf("home has\n%s\nand the cell\n%s", home, cell)
	}
	if got := cell.putCopies(t, []byte(`{"id":"x"}`), []byte(`{"id":"y","version":1,"timezone":"No/Where","attributes":{},"created_at":"2026-01-01T00:00:00Z","updated_at":"2026-01-01T00:00:00Z"}`), []byte(`{"version":1}`)); strings.Count(got, "refused") != 3 {
		t.Errorf("bad copies: %s", got)
	}
}

func TestChangeOfAnOwnerThatTakesLongIsNotMissed(t *testing.T) {
	t.Parallel()
	home := setup(t)
	home.putOwner(t, "ada", "UTC")
	home.putOwner(t, "bob", "UTC")
	tx, err := pgtest.Connect(t, home.url).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `update agent.owner set version = version + 1 where id = 'ada'`); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		home.putOwner(t, "bob", "Asia/Tokyo")
	}
	_, mark := home.copies(t, "")
	if changes, _ := home.copies(t, mark); len(changes) != 0 {
		t.Errorf("before its commit there is %s", changes)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	changes, mark := home.copies(t, mark)
	if len(changes) != 1 || !strings.Contains(string(changes[0]), "ada") {
		t.Errorf("after its commit there is %s", changes)
	}
	if changes, _ := home.copies(t, mark); len(changes) != 0 {
		t.Errorf("and then there is %s", changes)
	}
}

// TestOwnersOfCellsEndTheSame changes owners at home, in transactions that take turns in any order, while two followers each put what has changed on a cell of their own.
func TestOwnersOfCellsEndTheSame(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	home := setup(t)
	cells := []environment{setup(t), setup(t)}
	var changing, following sync.WaitGroup
	stop := make(chan struct{})
	for i := range 4 {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		changing.Go(func() {
			for range 60 {
				id := fmt.Sprint("o", random.IntN(8))
				if random.IntN(3) == 0 {
					_, _ = home.DeleteOwner(t.Context(), id, nil) // or there is none
				} else if _, err := home.PutOwner(t.Context(), schedule.PutOwnerParams{ID: id, Timezone: []string{"UTC", "Asia/Tokyo"}[random.IntN(2)]}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for _, cell := range cells {
		following.Go(func() {
			mark := ""
			for isOver := false; !isOver; {
				select {
				case <-stop:
					isOver = true
				default:
				}
				p := schedule.OwnerCopiesParams{After: mark, Limit: 1000, Wait: 10 * time.Millisecond}
				page, err := home.OwnerCopies(t.Context(), p)
				if err != nil {
					t.Error(err)
					return
				}
				if mark = page.After; len(page.Copies) > 0 {
					if _, err := cell.PutOwnerCopies(t.Context(), page.Copies); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	changing.Wait()
	close(stop)
	following.Wait()
	want := home.owners(t)
	for _, cell := range cells {
		if got := cell.owners(t); got != want {
			t.Errorf("a cell has\n%s\nand home\n%s", got, want)
		}
	}
}

func TestWhoWaitsForChangesOfOwnersIsToldAtOnce(t *testing.T) {
	t.Parallel()
	home := setup(t)
	running(t, home.Service)
	home.putOwner(t, "ada", "UTC")
	_, mark := home.copies(t, "")
	got := make(chan schedule.OwnerCopiesPage, 1)
	wait := func(mark string) {
		page, err := home.OwnerCopies(t.Context(), schedule.OwnerCopiesParams{After: mark, Wait: time.Minute})
		if err != nil {
			t.Error(err)
		}
		got <- page
	}
	began := time.Now()
	go wait(mark)
	home.putOwner(t, "ada", "Asia/Tokyo")
	page := <-got
	if len(page.Copies) != 1 || page.IsComplete || time.Since(began) > 20*time.Second {
		t.Errorf("got %+v after %v", page, time.Since(began))
	}
	_, mark = home.copies(t, "") // the change may have been seen before it was shown by the latest snapshot
	began = time.Now()
	go wait(mark)
	home.Drain()
	if page := <-got; len(page.Copies) != 0 || time.Since(began) > 20*time.Second {
		t.Errorf("at the shutdown: %+v", page)
	}
	for _, mark := range []string{"x", "x/1:1:", strings.Split(mark, "/")[0] + "/nonsense"} {
		if page, err := home.OwnerCopies(t.Context(), schedule.OwnerCopiesParams{After: mark}); err != nil || !page.IsComplete || len(page.Copies) != 1 {
			t.Errorf("after the mark %q: %+v, %v", mark, page, err)
		}
	}
}

func TestVersionsAndTimesOfCopiesOfOwnersAreBounded(t *testing.T) {
	t.Parallel()
	cell := setup(t)
	inJSON := func(at time.Time) string { return at.UTC().Format(`"2006-01-02T15:04:05.999999Z"`) }
	now := time.Now()
	n := 0
	for name, values := range map[string]map[string]bool{ // whether each is taken
		"version": {
			`-1`: false, `0`: false, `null`: false, `1`: true, `9007199254740991`: true, `9007199254740992`: false, `9223372036854775807`: false, `9223372036854775808`: false, `1.5`: false,
		},
		"created_at": {
			`null`: false, `"1999-12-31T23:59:59.999999Z"`: false, `"2000-01-01T00:00:00Z"`: true, inJSON(now.Add(23 * time.Hour)): true, inJSON(now.Add(25 * time.Hour)): false,
			`"294276-12-31T23:59:59Z"`: false, `"infinity"`: false, `"-infinity"`: false,
		},
		"updated_at": {
			`null`: false, `"1999-12-31T23:59:59.999999Z"`: false, `"2000-01-01T00:00:00Z"`: true, inJSON(now.Add(23 * time.Hour)): true, inJSON(now.Add(25 * time.Hour)): false,
			`"294276-12-31T23:59:59Z"`: false, `"infinity"`: false, `"-infinity"`: false,
		},
	} {
		for value, isTaken := range values {
			n++
			members := map[string]string{"version": `5`, "created_at": `"2026-01-01T00:00:00Z"`, "updated_at": `"2026-01-01T00:00:00Z"`}
			members[name] = value
			copied := fmt.Sprintf(`{"id":"o%d","timezone":"UTC","attributes":{},"version":%s,"created_at":%s,"updated_at":%s}`, n, members["version"], members["created_at"], members["updated_at"])
			found, err := cell.PutOwnerCopies(t.Context(), []json.RawMessage{json.RawMessage(copied)})
			if err != nil {
				t.Fatal(err)
			}
			if isTaken != (found[0].Result == "applied") || !isTaken && (found[0].Result != "refused" || !strings.Contains(found[0].Reason, name)) {
				t.Errorf("a copy with the %s %s was %s: %s", name, value, found[0].Result, found[0].Reason)
			}
			if _, err := cell.GetOwner(t.Context(), fmt.Sprintf("o%d", n)); isTaken != (err == nil) {
				t.Errorf("a copy with the %s %s: %v", name, value, err)
			}
		}
	}
	for version, want := range map[string]string{`9007199254740992`: "x refused", `9223372036854775807`: "x refused", `0`: "x refused", `9007199254740991`: "x unchanged"} {
		if got := cell.putCopies(t, json.RawMessage(`{"id":"x","deleted":true,"version":`+version+`}`)); got != want {
			t.Errorf("a deletion of the version %s: %s, want %s", version, got, want)
		}
	}
}

func TestOwnerOfAnyStoredVersionCanBeChangedAndDeleted(t *testing.T) {
	t.Parallel()
	for _, stored := range []string{
		`version = 9223372036854775807`,
		`version = 9007199254740991`,
		`version = 9007199254740991, updated_at = now() + interval '23 hours'`,
		`version = 9223372036854775807, created_at = '294276-12-31', updated_at = '294276-12-31'`,
	} {
		t.Run(stored, func(t *testing.T) {
			t.Parallel()
			home, cell := setup(t), setup(t)
			exchange := func() { // around, twice
				t.Helper()
				for range 2 {
					for _, way := range [][2]environment{{home, cell}, {cell, home}} {
						_, mark := way[0].copies(t, "")
						epoch, _, _ := strings.Cut(mark, "/")
						copies, _ := way[0].copies(t, epoch+"/1:1:") // with those that were deleted
						way[1].putCopies(t, copies...)
					}
				}
				if a, b := home.owners(t), cell.owners(t); a != b {
					t.Fatalf("home has\n%s\nand the cell\n%s", a, b)
				}
			}
			home.putOwner(t, "ada", "Europe/Berlin")
			exchange()
			for _, env := range []environment{home, cell} {
				if _, err := env.sql.Exec(t.Context(), `update agent.owner set `+stored); err != nil {
					t.Fatal(err)
				}
			}
			hostile, _ := cell.copies(t, "")
			exchange()
			daily := cell.create(t, schedule.Spec{Cron: "0 12 * * *", Owner: "ada"})
			for _, zone := range []string{"Asia/Tokyo", "UTC"} {
				home.putOwner(t, "ada", zone)
				exchange()
				if o, err := cell.GetOwner(t.Context(), "ada"); err != nil || o.Timezone != zone {
					t.Fatalf("after a change at home the cell has %+v, %v", o, err)
				}
				cell.putCopies(t, hostile...)
				exchange()
			}
			if _, err := home.DeleteOwner(t.Context(), "ada", nil); err != nil {
				t.Fatal(err)
			}
			exchange()
			cell.putCopies(t, hostile...)
			home.putCopies(t, hostile...)
			exchange()
			if s := cell.get(t, daily.ID); s.NextAt != nil {
				t.Errorf("a schedule of an owner that was deleted comes at %v", s.NextAt)
			}
			// A new one could not be told from that of before: its copies would be taken for those of before.
			if _, err := home.PutOwner(t.Context(), schedule.PutOwnerParams{ID: "ada", Timezone: "UTC"}); !errors.As(err, new(*schedule.InvalidError)) {
				t.Errorf("putting it again: %v", err)
			}
		})
	}
}

func TestOwnerThatWasDeletedAtAnyStoredVersionStaysSo(t *testing.T) {
	t.Parallel()
	home, cell := setup(t), setup(t)
	home.putOwner(t, "ada", "UTC")
	copies, _ := home.copies(t, "")
	cell.putCopies(t, copies...)
	if _, err := home.DeleteOwner(t.Context(), "ada", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := home.sql.Exec(t.Context(), `update agent_private.owner_change set version = 9223372036854775807`); err != nil {
		t.Fatal(err)
	}
	found, err := home.PutOwnerCopies(t.Context(), copies)
	if err != nil || found[0].Result != "deleted" || found[0].Version != 1<<53-1 {
		t.Fatalf("got %+v, %v", found, err)
	}
	if got := cell.putCopies(t, json.RawMessage(fmt.Sprintf(`{"id":"ada","deleted":true,"version":%d}`, found[0].Version))); got != "ada applied" {
		t.Errorf("got %s", got)
	}
	if _, err := home.PutOwner(t.Context(), schedule.PutOwnerParams{ID: "ada", Timezone: "UTC"}); !errors.As(err, new(*schedule.InvalidError)) {
		t.Errorf("putting it again: %v", err)
	}
}
