package access

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/queued/queued/internal/pgtest"
)

// copiesOf returns copies of all keys, in pages, and deletions with them if they are read after a version.
func copiesOf(t *testing.T, s *Service, after int64) (copies []json.RawMessage, version int64) {
	t.Helper()
	p := CopiesParams{AfterVersion: after, Limit: 2}
	for isFirst := true; isFirst || p.Cursor != ""; isFirst = false {
		page, err := s.Copies(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		if isFirst {
			version = page.Version
		}
		copies = append(copies, page.Copies...)
		p.Cursor = page.Next
	}
	return copies, version
}

// put puts copies of an epoch and returns the results.
func put(t *testing.T, s *Service, copies ...json.RawMessage) (results []string) {
	t.Helper()
	return putAll(t, s, PutCopiesParams{Copies: copies, Epoch: "e"})
}

// putAll is put of copies of any epoch.
func putAll(t *testing.T, s *Service, p PutCopiesParams) (results []string) {
	t.Helper()
	found, err := s.PutCopies(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range found {
		result := one.Result
		if errors.Is(one.Err, ErrLastAdmin) {
			result += " last admin"
		}
		results = append(results, result)
	}
	return results
}

// keysOf returns all that a cell has of keys, but when they were used and in which order they have changed.
func keysOf(t *testing.T, db *pgtest.DB) string {
	t.Helper()
	return pgtest.Query[string](t, pgtest.Connect(t, db.URL), `
		select concat(string_agg(agent_private.key_copy(k)::text, e'\n' order by k.id), e'\ndeleted ', (select string_agg(d.id, ' ' order by d.id) from agent_private.deleted_api_key d))
		from agent.api_key k`)
}

// cellOn opens a service on a database that is another cell than home, which alone takes copies.
func cellOn(t *testing.T, db *pgtest.DB) *Service {
	t.Helper()
	run(t, db, `update agent.cell set number = 1, taken_at = coalesce(taken_at, now())`)
	return openOn(t, db)
}

// allow checks whether a text is let in.
func allow(t *testing.T, s *Service, text string, want error) {
	t.Helper()
	if _, err := s.Authenticate(t.Context(), text); !errors.Is(err, want) {
		t.Errorf("the key got %v, want %v", err, want)
	}
}

func TestKeysOfHomeWorkOnACellThatHasCopiesOfThem(t *testing.T) {
	t.Parallel()
	homeDB, cellDB := pgtest.New(t), pgtest.New(t)
	home, cell := openOn(t, homeDB), cellOn(t, cellDB)
	_, admin := create(t, home, CreateParams{Scopes: []Scope{Admin}})
	create(t, cell, CreateParams{Scopes: []Scope{Admin}})
	id, text := create(t, home, CreateParams{Scopes: []Scope{Read}, Queues: []string{"a.*"}, Rate: &Rate{100, 200}, ExpiresAt: new(time.Date(2100, 1, 2, 3, 4, 5, 678_901_000, time.UTC))})
	version := int64(0)
	sync := func() {
		t.Helper()
		copies, seen := copiesOf(t, home, version)
		for _, one := range copies {
			if strings.Contains(string(one), text[len(text)-20:]) {
				t.Error("a copy has the text of a key")
			}
		}
		if version == 0 && len(copies) != 2 || version != 0 && len(copies) != 1 {
			t.Errorf("%d copies after %d", len(copies), version)
		}
		put(t, cell, copies...)
		for _, result := range put(t, cell, copies...) {
			if result != CopyUnchanged {
				t.Errorf("the same once more was %s", result)
			}
		}
		version = seen
	}
	sync()
	allow(t, cell, admin, nil)
	allow(t, cell, text, nil)
	if k, err := cell.Get(t.Context(), id); err != nil || k.Queues[0] != "a.*" || k.Rate.Burst != 200 || k.ExpiresAt.Nanosecond() != 678_901_000 {
		t.Errorf("got %+v, %v", k, err)
	}
	if _, err := home.Update(t.Context(), id, Change{Scopes: &[]Scope{Publish}}, nil); err != nil {
		t.Fatal(err)
	}
	sync()
	if g, err := cell.Authenticate(t.Context(), text); err != nil || g.Has(Read) || !g.Has(Publish) {
		t.Errorf("after a change: %v", err)
	}
	_, second, err := home.Rotate(t.Context(), id, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	sync()
	allow(t, cell, text, nil)
	allow(t, cell, second, nil)
	if _, _, err := home.Rotate(t.Context(), id, 0); err != nil {
		t.Fatal(err)
	}
	sync()
	allow(t, cell, second, ErrExpired)
	if err := home.Revoke(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	late, _ := copiesOf(t, home, 0)
	sync()
	allow(t, cell, text, ErrUnauthorized)
	allow(t, cell, second, ErrRevoked)
	run(t, homeDB, `update agent.api_key set revoked_at = now() - interval '100 days' where id = $1`, id)
	if err := home.prune(t.Context()); err != nil {
		t.Fatal(err)
	}
	sync()
	if _, err := cell.Get(t.Context(), id); !errors.Is(err, ErrNotFound) {
		t.Errorf("after it was deleted: %v", err)
	}
	for i, result := range put(t, cell, late...) {
		want := CopyUnchanged
		if strings.Contains(string(late[i]), id) {
			want = CopyDeleted
		}
		if result != want {
			t.Errorf("an old copy was %s, want %s", result, want)
		}
	}
	if _, err := cell.Get(t.Context(), id); !errors.Is(err, ErrNotFound) {
		t.Errorf("an old copy has brought it back: %v", err)
	}
	if n := pgtest.Query[int](t, pgtest.Connect(t, cellDB.URL), `select count(*)::int4 from agent.audit where action = 'key.copy' and target = $1`, id); n != 6 {
		t.Errorf("the audit has %d actions", n)
	}
}

func TestWhoWaitsForChangesOfKeysIsToldAtOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s, other := openOn(t, db), openOn(t, db)
	runUntilEnd(t, s)
	id, _ := create(t, s, CreateParams{})
	create(t, s, CreateParams{})
	first, err := s.Copies(t.Context(), CopiesParams{})
	if err != nil || !first.IsComplete || len(first.Copies) != 2 {
		t.Fatalf("got %+v, %v", first, err)
	}
	type answer struct {
		page CopiesPage
		err  error
	}
	wait := func(limit time.Duration) <-chan answer {
		got := make(chan answer, 1)
		go func() {
			page, err := s.Copies(t.Context(), CopiesParams{AfterVersion: first.Version, Epoch: first.Epoch, Wait: limit})
			got <- answer{page, err}
		}()
		return got
	}
	if got := <-wait(50 * time.Millisecond); got.err != nil || len(got.page.Copies) != 0 || got.page.IsComplete || got.page.Version != first.Version {
		t.Errorf("when nothing happens: %+v", got)
	}
	waiting := wait(busyTimeout)
	began := time.Now()
	if err := other.Revoke(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	got := <-waiting
	for got.err == nil && got.page.Version == first.Version { // the page has what was committed after its version was read: it comes again
		got = <-wait(busyTimeout)
	}
	if got.err != nil || time.Since(began) > busyTimeout/3 || len(got.page.Copies) != 1 || !strings.Contains(string(got.page.Copies[0]), id) || got.page.Version <= first.Version {
		t.Fatalf("got %+v", got)
	}
	first = got.page
	waiting = wait(busyTimeout)
	began = time.Now()
	s.Drain()
	if got := <-waiting; got.err != nil || len(got.page.Copies) != 0 || time.Since(began) > busyTimeout/2 {
		t.Errorf("at the shutdown: %+v", got)
	}
}

// TestCopiesInAnyOrderEndTheSame has keys at home go through random lives, and puts every state that there was on cells, each in an order of its own, with repetitions, in batches of random sizes.
func TestCopiesInAnyOrderEndTheSame(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	homeDB := pgtest.New(t)
	home := openOn(t, homeDB)
	create(t, home, CreateParams{Scopes: []Scope{Admin}})
	var ids []string
	for range 4 {
		id, _ := create(t, home, CreateParams{Scopes: []Scope{Read}})
		ids = append(ids, id)
	}
	var states []json.RawMessage
	conn := pgtest.Connect(t, homeDB.URL)
	note := func() {
		t.Helper()
		copies, _ := copiesOf(t, home, 1) // deletions, too
		states = append(states, copies...)
	}
	note()
	for range 40 {
		id := ids[random.IntN(len(ids))]
		switch n := random.IntN(12); {
		case n < 6:
			_, _ = home.Update(t.Context(), id, Change{Name: new(fmt.Sprintf("n%d", random.IntN(1000)))}, nil)
		case n < 10:
			_, _, _ = home.Rotate(t.Context(), id, time.Duration(random.IntN(100))*time.Hour)
		case n < 11 && random.IntN(2) == 0:
			_ = home.Revoke(t.Context(), id)
		case random.IntN(2) == 0:
			if _, err := conn.Exec(t.Context(), `delete from agent.api_key where id = $1`, id); err != nil {
				t.Fatal(err)
			}
		}
		note()
	}
	wanted := keysOf(t, homeDB)
	if !strings.Contains(wanted, `"version": `) {
		t.Fatalf("home has %s", wanted)
	}
	for i := range 8 {
		db := pgtest.New(t)
		cell := cellOn(t, db)
		order := slices.Clone(states)
		random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		order = append(order, order[:random.IntN(len(order))]...)
		for len(order) > 0 {
			n := 1 + random.IntN(min(len(order), 50))
			for _, result := range put(t, cell, order[:n]...) {
				if result == CopyRefused {
					t.Fatal("a copy was refused")
				}
			}
			order = order[n:]
		}
		if got := keysOf(t, db); got != wanted {
			t.Fatalf("cell %d has\n%s\nand home\n%s", i, got, wanted)
		}
	}
}

// TestWhatHomeSaysCounts has home fail over to one that has lost changes: the cell has what that one says, but for revocations.
func TestWhatHomeSaysCounts(t *testing.T) {
	t.Parallel()
	homeDB, cellDB := pgtest.New(t), pgtest.New(t)
	home, cell := openOn(t, homeDB), cellOn(t, cellDB)
	create(t, home, CreateParams{Scopes: []Scope{Admin}})
	_, own := create(t, cell, CreateParams{Scopes: []Scope{Admin}})
	changed, text := create(t, home, CreateParams{Scopes: []Scope{Read}})
	revoked, dead := create(t, home, CreateParams{Scopes: []Scope{Read}})
	before, _ := copiesOf(t, home, 0)
	lost, gone := create(t, home, CreateParams{Scopes: []Scope{Read}})
	for range 3 {
		if _, err := home.Update(t.Context(), changed, Change{Scopes: &[]Scope{Publish}}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := home.Revoke(t.Context(), revoked); err != nil {
		t.Fatal(err)
	}
	after, _ := copiesOf(t, home, 0)
	putAll(t, cell, PutCopiesParams{Copies: after, Epoch: "one", IsComplete: true})
	if g, err := cell.Authenticate(t.Context(), text); err != nil || g.Has(Read) {
		t.Errorf("before: %v", err)
	}
	allow(t, cell, gone, nil)
	// Who does not know the epoch that counts has not asked home since.
	for _, guess := range []string{"", "two", "older"} {
		_, err := cell.PutCopies(t.Context(), PutCopiesParams{Copies: before, Epoch: "two", Before: guess, IsComplete: true})
		if stale, ok := errors.AsType[*StaleCopiesError](err); !ok || stale.Current != "one" {
			t.Errorf("with %q before: %v", guess, err)
		}
	}
	allow(t, cell, gone, nil)
	putAll(t, cell, PutCopiesParams{Copies: before, Epoch: "two", Before: "one", IsComplete: true})
	if g, err := cell.Authenticate(t.Context(), text); err != nil || !g.Has(Read) {
		t.Errorf("after: %v", err)
	}
	allow(t, cell, gone, ErrUnauthorized)
	allow(t, cell, dead, ErrRevoked)
	allow(t, cell, own, nil) // it was made there
	if _, err := cell.PutCopies(t.Context(), PutCopiesParams{Copies: after, Epoch: "one"}); !errors.As(err, new(*StaleCopiesError)) {
		t.Errorf("the epoch before: %v", err)
	}
	// The one before comes back, with what was lost.
	putAll(t, cell, PutCopiesParams{Copies: after, Epoch: "three", Before: "two", IsComplete: true})
	allow(t, cell, gone, nil)
	if _, err := home.PutCopies(t.Context(), PutCopiesParams{Copies: after, Epoch: "one"}); !errors.As(err, new(*InvalidError)) {
		t.Errorf("home takes copies: %v", err)
	}
	if k, err := home.Get(t.Context(), lost); err != nil || k.Version != 1 {
		t.Errorf("got %+v, %v", k, err)
	}
}

func TestCopiesByHandAreOfNewKeysAlone(t *testing.T) {
	t.Parallel()
	home, cell := openOn(t, pgtest.New(t)), cellOn(t, pgtest.New(t))
	id, text := create(t, home, CreateParams{Scopes: []Scope{Admin}})
	create(t, cell, CreateParams{Scopes: []Scope{Admin}})
	copies, _ := copiesOf(t, home, 0)
	if got := putAll(t, cell, PutCopiesParams{Copies: copies}); got[0] != CopyApplied {
		t.Errorf("got %s", got)
	}
	allow(t, cell, text, nil)
	if _, err := home.Update(t.Context(), id, Change{Name: new("other")}, nil); err != nil {
		t.Fatal(err)
	}
	copies, _ = copiesOf(t, home, 0)
	if got := putAll(t, cell, PutCopiesParams{Copies: copies}); got[0] != CopyUnchanged {
		t.Errorf("got %s", got)
	}
	if got := put(t, cell, copies...); got[0] != CopyApplied { // it is home's now
		t.Errorf("got %s", got)
	}
	if got := putAll(t, cell, PutCopiesParams{Copies: []json.RawMessage{json.RawMessage(strings.Replace(string(copies[0]), `"revoked_at": null`, `"revoked_at": "2026-01-02T03:04:05Z"`, 1))}}); got[0] != CopyApplied {
		t.Errorf("got %s", got)
	}
	allow(t, cell, text, ErrRevoked)
}

func TestNewerStateWinsWhenTwoGatewaysPutAtOnce(t *testing.T) {
	t.Parallel()
	homeDB, cellDB := pgtest.New(t), pgtest.New(t)
	home := openOn(t, homeDB)
	create(t, home, CreateParams{Scopes: []Scope{Admin}})
	id, _ := create(t, home, CreateParams{Scopes: []Scope{Read}})
	cells := []*Service{cellOn(t, cellDB), openOn(t, cellDB)}
	for i := range 20 {
		older, _ := copiesOf(t, home, 0)
		name := fmt.Sprintf("n%d", i)
		if _, err := home.Update(t.Context(), id, Change{Name: &name}, nil); err != nil {
			t.Fatal(err)
		}
		newer, _ := copiesOf(t, home, 0)
		slices.Reverse(newer) // so that they lock in another order
		var putting sync.WaitGroup
		for i, copies := range [][]json.RawMessage{older, newer} {
			putting.Go(func() { put(t, cells[i], copies...) })
		}
		putting.Wait()
		if k, err := cells[0].Get(t.Context(), id); err != nil || k.Name != name {
			t.Fatalf("got %+v, %v, want %s", k, err, name)
		}
	}
}

func TestCopiesNeverTakeTheLastAdminKeyAway(t *testing.T) {
	t.Parallel()
	homeDB, cellDB := pgtest.New(t), pgtest.New(t)
	home, cell := openOn(t, homeDB), cellOn(t, cellDB)
	id, text := create(t, home, CreateParams{Scopes: []Scope{Admin}})
	first, _ := copiesOf(t, home, 0)
	put(t, cell, first...)
	other, _ := create(t, home, CreateParams{Scopes: []Scope{Admin}})
	if err := home.Revoke(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	all, _ := copiesOf(t, home, 0)
	var revoked, live json.RawMessage
	for _, one := range all {
		if strings.Contains(string(one), id) {
			revoked = one
		} else {
			live = one
		}
	}
	deleted := json.RawMessage(fmt.Sprintf(`{"id":%q,"deleted":true}`, id))
	weaker := json.RawMessage(strings.Replace(strings.Replace(string(first[0]), `["admin"]`, `["read"]`, 1), `"change": `, `"change": 9`, 1))
	expired := json.RawMessage(strings.Replace(strings.Replace(string(first[0]), `"expires_at": null`, `"expires_at": "2020-01-01T00:00:00Z"`, 1), `"change": `, `"change": 9`, 1))
	for _, one := range []json.RawMessage{revoked, deleted, weaker, expired} {
		if got := put(t, cell, one); got[0] != "refused last admin" {
			t.Errorf("%s was %s", one, got)
		}
		allow(t, cell, text, nil)
	}
	if got := put(t, cell, revoked, live); got[0] != CopyApplied || got[1] != CopyApplied { // the other one first, whatever their order
		t.Errorf("got %s", got)
	}
	allow(t, cell, text, ErrRevoked)
	if k, err := cell.Get(t.Context(), other); err != nil || k.RevokedAt != nil {
		t.Errorf("got %+v, %v", k, err)
	}
	if got := put(t, cell, json.RawMessage(strings.Replace(string(first[0]), `"change": `, `"change": 99`, 1))); got[0] != CopyApplied {
		t.Errorf("got %s", got)
	}
	allow(t, cell, text, ErrRevoked) // for ever, whatever comes later
}

func TestBadCopyFailsAlone(t *testing.T) {
	t.Parallel()
	home, cell := openOn(t, pgtest.New(t)), cellOn(t, pgtest.New(t))
	create(t, home, CreateParams{Scopes: []Scope{Admin}})
	copies, _ := copiesOf(t, home, 0)
	good := string(copies[0])
	batch := []json.RawMessage{json.RawMessage(good)}
	for _, change := range [][2]string{
		{`"admin"`, `"everything"`},
		{`"hash": "`, `"hash": "00`},
		{`"hash": "`, `"hash": "zz`},
		{`"version": 1`, `"version": 0`},
		{`"version": 1`, `"version": null`},
		{`"updated_at": "`, `"updated_at": "x`},
		{`"name": "test"`, `"name": ""`},
		{`"id": "`, `"id": "0`},
		{`"name": `, `"future": 1, "name": `},
		{`"scopes": ["admin"]`, `"scopes": "admin"`},
		{`"previous_hash": null`, `"previous_hash": "00"`},
		{`"change": `, `"change": 0.`},
	} {
		bad := strings.Replace(good, change[0], change[1], 1)
		if bad == good {
			t.Fatalf("%s has no %s", good, change[0])
		}
		batch = append(batch, json.RawMessage(bad))
	}
	batch = append(batch, json.RawMessage(`{}`), json.RawMessage(`{"id":null}`), json.RawMessage(`{"id":"aaaaaaaa","deleted":"perhaps"}`))
	for i, result := range put(t, cell, batch...) {
		if (result == CopyApplied) != (i == 0) || i > 0 && result != CopyRefused {
			t.Errorf("%s was %s", batch[i], result)
		}
	}
	if _, err := cell.PutCopies(t.Context(), PutCopiesParams{Copies: slices.Repeat(batch[:1], 1001)}); !errors.As(err, new(*InvalidError)) {
		t.Errorf("1,001 copies: %v", err)
	}
}

func TestFirstCopiesMustLeaveAnAdminKey(t *testing.T) {
	t.Parallel()
	home, cell := openOn(t, pgtest.New(t)), cellOn(t, pgtest.New(t))
	create(t, home, CreateParams{Scopes: []Scope{Admin}})
	create(t, home, CreateParams{Scopes: []Scope{Read}})
	copies, _ := copiesOf(t, home, 0)
	reader := slices.DeleteFunc(slices.Clone(copies), func(c json.RawMessage) bool { return strings.Contains(string(c), `"admin"`) })
	if _, err := cell.PutCopies(t.Context(), PutCopiesParams{Copies: reader, IsFirst: true}); !errors.Is(err, ErrLastAdmin) {
		t.Errorf("without an admin key: %v", err)
	}
	if n := cell.Count(); n != 0 {
		t.Errorf("%d keys are there", n)
	}
	if _, err := cell.PutCopies(t.Context(), PutCopiesParams{Copies: copies, IsFirst: true}); err != nil {
		t.Error(err)
	}
	if _, err := cell.PutCopies(t.Context(), PutCopiesParams{Copies: copies, IsFirst: true}); !errors.Is(err, ErrNotFirst) {
		t.Errorf("once more: %v", err)
	}
}
