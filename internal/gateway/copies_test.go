package gateway

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// A fakeKey is a key of a fakeCell, and a copy of one.
type fakeKey struct {
	ID      string `json:"id"`
	Version int    `json:"version,omitzero"`
	Revoked bool   `json:"revoked,omitzero"`
	Deleted bool   `json:"deleted,omitzero"`
	Change  int64  `json:"change,omitzero"`

	of string // the epoch that it was copied of; empty: it was made here
}

// fakeKeys are the keys of a fakeCell, which gives and takes copies as cells do.
type fakeKeys struct {
	mu      sync.Mutex
	byID    map[string]fakeKey
	version int64
	epoch   int
	changed chan struct{}
	pages   int           // that hold less than there is
	reads   int           // listings that were asked for
	puts    int           // copies that were to be put
	copied  string        // the epoch that copies are taken of
	blocked chan struct{} // not nil: copies are not taken until it is closed
	fails   bool          // listings are answered with 500
}

func newFakeKeys() *fakeKeys {
	return &fakeKeys{byID: make(map[string]fakeKey), version: 100, changed: make(chan struct{})}
}

// set sets a key under the next change. The caller holds mu.
func (k *fakeKeys) set(key fakeKey) {
	k.version++
	key.Change = k.version
	k.byID[key.ID] = key
	close(k.changed)
	k.changed = make(chan struct{})
}

// change changes keys as their manager does.
func (k *fakeKeys) change(keys ...fakeKey) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, key := range keys {
		key.Version = k.byID[key.ID].Version + 1
		k.set(key)
	}
}

// failOver has the server fail over to one that does not have these keys.
func (k *fakeKeys) failOver(lost ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.epoch++
	for _, id := range lost {
		delete(k.byID, id)
	}
	close(k.changed)
	k.changed = make(chan struct{})
}

// block has copies not be taken until free is called.
func (k *fakeKeys) block() (free func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	blocked := make(chan struct{})
	k.blocked = blocked
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		close(blocked)
		k.blocked = nil
	}
}

// failing has listings fail, or not any more.
func (k *fakeKeys) failing(fails bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fails = fails
}

// has returns the keys as "id version", with an x for those that are revoked or deleted.
func (k *fakeKeys) has() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var all []string
	for _, id := range slices.Sorted(maps.Keys(k.byID)) {
		key := k.byID[id]
		text := fmt.Sprint(id, key.Version)
		if key.Revoked {
			text += "x"
		}
		if key.Deleted {
			text = id + "-"
		}
		all = append(all, text)
	}
	return strings.Join(all, " ")
}

// list answers GET /cell/keys, two keys a page.
func (k *fakeKeys) list(w http.ResponseWriter, r *http.Request) {
	k.mu.Lock()
	k.reads++
	k.mu.Unlock()
	query := r.URL.Query()
	after, _ := strconv.ParseInt(query.Get("after_version"), 10, 64)
	wait, _ := time.ParseDuration(query.Get("wait"))
	late := time.After(wait)
	for {
		k.mu.Lock()
		page := copiesPage{Keys: []json.RawMessage{}, Version: k.version, Epoch: strconv.Itoa(k.epoch)}
		page.Complete = query.Get("cursor") == "" && (after == 0 || after > k.version || query.Get("epoch") != page.Epoch)
		from := after
		if page.Complete {
			from = 0
		}
		if cursor := query.Get("cursor"); cursor != "" {
			from, _ = strconv.ParseInt(cursor, 10, 64)
		}
		isAll := after == 0 || page.Complete
		changes := slices.SortedFunc(maps.Values(k.byID), func(a, b fakeKey) int { return cmp.Compare(a.Change, b.Change) })
		changes = slices.DeleteFunc(changes, func(key fakeKey) bool { return key.Change <= from || key.Deleted && isAll })
		if len(changes) > 2 {
			changes = changes[:2]
			page.Next = new(strconv.FormatInt(changes[1].Change, 10))
			k.pages++
		}
		changed, fails := k.changed, k.fails
		k.mu.Unlock()
		if fails {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		if len(changes) == 0 && !page.Complete && wait > 0 {
			select {
			case <-changed:
				continue
			case <-late:
			case <-r.Context().Done():
				return
			}
		}
		for _, key := range changes {
			text, _ := json.Marshal(key)
			page.Keys = append(page.Keys, text)
		}
		_ = json.NewEncoder(w).Encode(page)
		return
	}
}

// put answers PUT /cell/keys: what home says counts, in the order of its changes within an epoch; revoked stays revoked, and deleted deleted.
func (k *fakeKeys) put(w http.ResponseWriter, r *http.Request) {
	var asked struct {
		Keys          []fakeKey
		Epoch, Before string
		Complete      bool
	}
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil || asked.Epoch == "" {
		http.Error(w, fmt.Sprint("no epoch: ", err), http.StatusUnprocessableEntity)
		return
	}
	k.mu.Lock()
	blocked := k.blocked
	k.mu.Unlock()
	if blocked != nil {
		select {
		case <-blocked:
		case <-r.Context().Done():
			return
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.puts += len(asked.Keys)
	if k.copied != asked.Epoch && k.copied != asked.Before {
		_, _ = fmt.Fprintf(w, `{"keys":[],"epoch":%q}`, k.copied)
		return
	}
	k.copied = asked.Epoch
	results := []string{}
	for _, key := range asked.Keys {
		before, exists := k.byID[key.ID]
		key.of = asked.Epoch
		result := "unchanged"
		switch {
		case before.Deleted:
		case !exists, key.Deleted, before.of != key.of, before.Change < key.Change:
			key.Revoked = key.Revoked || before.Revoked
			k.byID[key.ID] = key
			result = "applied"
		}
		results = append(results, fmt.Sprintf(`{"id":%q,"result":%q}`, key.ID, result))
	}
	maps.DeleteFunc(k.byID, func(_ string, key fakeKey) bool { return asked.Complete && key.of != "" && key.of != asked.Epoch })
	_, _ = fmt.Fprintf(w, `{"keys":[%s],"epoch":%q}`, strings.Join(results, ","), asked.Epoch)
}

// wantOneWay checks that home took no copies, and nobody asked the others for any.
func wantOneWay(t *testing.T, home *fakeCell, others ...*fakeCell) {
	t.Helper()
	home.keys.mu.Lock()
	defer home.keys.mu.Unlock()
	if home.keys.puts > 0 {
		t.Errorf("%d copies were put at home", home.keys.puts)
	}
	for _, f := range others {
		f.keys.mu.Lock()
		defer f.keys.mu.Unlock()
		if f.keys.reads > 0 {
			t.Errorf("cell %d was asked for its keys", f.number)
		}
	}
}

// wantKeys waits until cells have keys.
func (e *environment) wantKeys(want string, fakes ...*fakeCell) {
	e.t.Helper()
	for _, f := range fakes {
		defer func() {
			if e.t.Failed() {
				e.t.Logf("cell %d has the keys %s, want %s", f.number, f.keys.has(), want)
			}
		}()
		e.until(fmt.Sprintf("cell %d has the keys %s", f.number, want), func() bool { return f.keys.has() == want })
	}
}

func TestCellHasTheKeysOfHomeBeforeItIsUsed(t *testing.T) {
	t.Parallel()
	home, one := newFakeCell(t, 0), newFakeCell(t, 1)
	home.keys.change(fakeKey{ID: "a"}, fakeKey{ID: "b"}, fakeKey{ID: "c"}, fakeKey{ID: "d"}, fakeKey{ID: "e"})
	home.keys.change(fakeKey{ID: "a", Revoked: true})
	one.keys.change(fakeKey{ID: "a"})
	free := one.keys.block()
	e := start(t, nil, home, one)
	e.until("home is used", func() bool { return e.gateway.cell(0).isUp() })
	if e.gateway.cell(1).isUp() {
		t.Error("a cell without the keys of home is used")
	}
	free()
	e.until("the cell is used", func() bool { return e.gateway.cell(1).isUp() })
	if got := one.keys.has(); got != "a2x b1 c1 d1 e1" {
		t.Errorf("the cell has %s", got)
	}
	if home.keys.pages == 0 {
		t.Error("there was only one page")
	}
	e.until("the metrics say so", func() bool {
		got := e.call("GET", "/metrics", "", "Authorization: Bearer metrics").body
		return strings.Contains(got, `queued_cell_keys_version{cell="0"} 106`) && strings.Contains(got, `queued_cell_keys_version{cell="1"} 106`)
	})
}

func TestChangesOfKeysReachAllCellsByThemselves(t *testing.T) {
	t.Parallel()
	home, one, two := newFakeCell(t, 0), newFakeCell(t, 1), newFakeCell(t, 2)
	a := setup(t, nil, home, one, two)
	setup(t, nil, two, home, one) // another gateway beside it
	for i := range 10 {
		home.keys.change(fakeKey{ID: "a", Revoked: i == 9})
	}
	a.wantKeys("a10x", one, two)
	two.keys.change(fakeKey{ID: "b"}) // by somebody who knows no other cell, or has broken into this one
	home.keys.change(fakeKey{ID: "c"})
	a.wantKeys("a10x c1", home, one)
	a.wantKeys("a10x b1 c1", two)
	wantOneWay(t, home, one, two)
}

func TestKeyIsEverywhereOrNowhereOnceItsManagerIsAnswered(t *testing.T) {
	t.Parallel()
	home, one, two := newFakeCell(t, 0), newFakeCell(t, 1), newFakeCell(t, 2)
	home.mux.HandleFunc("POST /keys", func(w http.ResponseWriter, _ *http.Request) {
		home.keys.change(fakeKey{ID: "new"})
		w.WriteHeader(http.StatusCreated)
	})
	home.mux.HandleFunc("DELETE /keys/{id}", func(w http.ResponseWriter, r *http.Request) {
		home.keys.change(fakeKey{ID: r.PathValue("id"), Revoked: true})
		w.WriteHeader(http.StatusNoContent)
	})
	e := setup(t, nil, home, one, two)
	got := e.want(201, "", "POST", "/keys", "{}")
	for _, f := range []*fakeCell{one, two} {
		if f.keys.has() != "new1" {
			t.Errorf("cell %d has the keys %s", f.number, f.keys.has())
		}
	}
	if named := got.header.Get(unavailableHeader); named != "" {
		t.Errorf("%s is %s", unavailableHeader, named)
	}

	free := two.keys.block()
	got = e.want(204, "", "DELETE", "/keys/new", "")
	if named := got.header.Get(unavailableHeader); named != "2" || one.keys.has() != "new2x" {
		t.Errorf("%s is %s, and cell 1 has %s", unavailableHeader, named, one.keys.has())
	}
	if e.gateway.cell(2).isUp() {
		t.Error("a cell that does not know of a revocation is used")
	}
	e.wantProblem(cellUnavailable, 2, "DELETE", fmt.Sprint("/events/", int64(2)<<idBits), "")
	free()
	e.until("the cell is used again", func() bool { return e.gateway.cell(2).isUp() })
	if two.keys.has() != "new2x" {
		t.Errorf("cell 2 has %s", two.keys.has())
	}
}

func TestCellsHaveTheKeysThatAFailoverHasLeftHome(t *testing.T) {
	t.Parallel()
	home, one, two := newFakeCell(t, 0), newFakeCell(t, 1), newFakeCell(t, 2)
	home.keys.change(fakeKey{ID: "a"}, fakeKey{ID: "b"}, fakeKey{ID: "c"})
	e := setup(t, nil, home, one, two)
	one.keys.change(fakeKey{ID: "own"})
	home.keys.change(fakeKey{ID: "b", Revoked: true}, fakeKey{ID: "c"}, fakeKey{ID: "c"}, fakeKey{ID: "d"})
	e.wantKeys("a1 b2x c3 d1", two)
	home.keys.failOver("b", "c", "d")
	home.keys.change(fakeKey{ID: "b"}, fakeKey{ID: "c"}) // as they were before
	e.wantKeys("a1 b1 c1", home)
	e.wantKeys("a1 b1x c1", two) // what was revoked stays so
	e.wantKeys("a1 b1x c1 own1", one)
	wantOneWay(t, home, one, two)
}

func TestCellGetsTheKeysAgainThatAFailoverHasLost(t *testing.T) {
	t.Parallel()
	home, one := newFakeCell(t, 0), newFakeCell(t, 1)
	home.keys.change(fakeKey{ID: "a"}, fakeKey{ID: "b"}, fakeKey{ID: "c"})
	e := setup(t, nil, home, one)
	one.keys.failOver("b", "c")
	e.wantKeys("a1 b1 c1", one)
}

// A gateway that has missed another epoch of home does not bring the one before back.
func TestGatewayPutsKeysAsHomeSaysThemNow(t *testing.T) {
	t.Parallel()
	home, one := newFakeCell(t, 0), newFakeCell(t, 1)
	home.keys.change(fakeKey{ID: "a"}, fakeKey{ID: "b"})
	e := setup(t, nil, home, one)
	e.wantKeys("a1 b1", one)
	one.keys.mu.Lock()
	one.keys.copied = "later" // another gateway has put them
	one.keys.byID["b"] = fakeKey{ID: "b", Version: 7, of: "later", Change: 1}
	one.keys.mu.Unlock()
	home.keys.mu.Lock()
	home.keys.byID["b"] = fakeKey{ID: "b", Version: 7, Change: home.keys.byID["b"].Change}
	home.keys.mu.Unlock()
	home.keys.change(fakeKey{ID: "a"}) // the gateway goes on from where it was
	e.wantKeys("a2 b7", one)
	one.keys.mu.Lock()
	defer one.keys.mu.Unlock()
	if one.keys.copied != "0" {
		t.Errorf("copies are of the epoch %s, and home says 0", one.keys.copied)
	}
}

func TestCellThatHasMissedADeletionIsToldOfIt(t *testing.T) {
	t.Parallel()
	home, one := newFakeCell(t, 0), newFakeCell(t, 1)
	home.keys.change(fakeKey{ID: "a"}, fakeKey{ID: "gone", Deleted: true})
	one.keys.change(fakeKey{ID: "gone"}, fakeKey{ID: "own"})
	one.keys.byID["gone"] = fakeKey{ID: "gone", of: "before"}
	one.keys.copied = "before"
	e := setup(t, nil, home, one)
	e.wantKeys("a1 own1", one)
}

func TestCellIsUsedWithTheKeysThatItHasWhileHomeIsAway(t *testing.T) {
	t.Parallel()
	home, one := newFakeCell(t, 0), newFakeCell(t, 1)
	home.keys.change(fakeKey{ID: "a"})
	home.keys.failing(true)
	e := setup(t, nil, home, one)
	if one.keys.has() != "" {
		t.Errorf("the cell has %s", one.keys.has())
	}
	home.keys.failing(false)
	e.wantKeys("a1", one)
}
