package gateway

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// A keyedCell remembers keys as a cell does.
type keyedCell struct {
	*fakeCell
	all *keyedCells

	mu     sync.Mutex
	asked  int              // keys that it was asked for
	events map[string]int64 // by queue and key; 0: it was left
	next   int64
}

// keyedCells are those of a test, and how many events they have of each key together.
type keyedCells struct {
	mu       sync.Mutex
	inserted map[string]int
	cells    []*keyedCell
}

func newKeyedCells(t *testing.T, n int) *keyedCells {
	t.Helper()
	all := &keyedCells{inserted: map[string]int{}}
	for number := range n {
		k := &keyedCell{fakeCell: newFakeCell(t, number), all: all, events: map[string]int64{}}
		all.cells = append(all.cells, k)
		k.mux.HandleFunc("POST /events", k.insert)
		k.mux.HandleFunc("POST /events/batch", k.insertBatch)
		k.mux.HandleFunc("POST /cell/queues/{name}/keys", k.leave)
	}
	return all
}

func (a *keyedCells) fakes() []*fakeCell {
	var fakes []*fakeCell
	for _, k := range a.cells {
		fakes = append(fakes, k.fakeCell)
	}
	return fakes
}

// insertOne inserts an event, and returns the status of the answer.
func (k *keyedCell) insertOne(name string) (id int64, status int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	id, isKnown := k.events[name]
	switch {
	case strings.HasSuffix(name, " "): // no key
		return 1, http.StatusCreated
	case isKnown && id == 0:
		return 0, http.StatusServiceUnavailable
	case isKnown:
		return id, http.StatusOK
	}
	k.next++
	id = int64(k.number)<<idBits + k.next
	k.events[name] = id
	k.all.mu.Lock()
	k.all.inserted[name]++
	k.all.mu.Unlock()
	return id, http.StatusCreated
}

func (k *keyedCell) insert(w http.ResponseWriter, r *http.Request) {
	_, _ = io.ReadAll(r.Body)
	id, status := k.insertOne(r.URL.Query().Get("queue") + " " + r.URL.Query().Get("key"))
	w.WriteHeader(status)
	if status == http.StatusServiceUnavailable {
		_, _ = io.WriteString(w, `{"code":"key_left"}`)
		return
	}
	_, _ = fmt.Fprintf(w, `{"id":%d}`, id)
}

func (k *keyedCell) insertBatch(w http.ResponseWriter, r *http.Request) {
	var body struct{ Events []struct{ Queue, Key string } }
	_ = json.NewDecoder(r.Body).Decode(&body)
	results := []any{}
	for _, e := range body.Events {
		id, status := k.insertOne(e.Queue + " " + e.Key)
		results = append(results, map[string]any{"status": status, "id": id})
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"results": results})
}

func (k *keyedCell) leave(w http.ResponseWriter, r *http.Request) {
	if key := r.Header.Get("Authorization"); key != "Bearer "+callerKey { // it is the caller who uses the keys, and the cell that knows which
		refuseCaller(w, r)
		return
	}
	if strings.HasPrefix(r.PathValue("name"), "victim") {
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, `{"code":"forbidden"}`)
		return
	}
	var body struct{ Keys []string }
	_ = json.NewDecoder(r.Body).Decode(&body)
	k.mu.Lock()
	defer k.mu.Unlock()
	events := []*int64{}
	k.asked += len(body.Keys)
	for _, key := range body.Keys {
		name := r.PathValue("name") + " " + key
		id, isKnown := k.events[name]
		if !isKnown {
			k.events[name] = 0
		}
		if id == 0 {
			events = append(events, nil)
		} else {
			events = append(events, &id)
		}
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"events": events})
}

func (k *keyedCell) has(name string) (id int64, isKnown bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	id, isKnown = k.events[name]
	return id, isKnown
}

func hourly(since, until time.Duration, cells ...int) []asked {
	now := time.Now()
	return []asked{{Cells: cells, Since: now.Add(since), Until: now.Add(until)}}
}

func TestKeyThatWasUsedBeforeAMoveMeetsItsFirst(t *testing.T) {
	t.Parallel()
	all := newKeyedCells(t, 3)
	all.cells[0].put(placement{Queue: "moved", Cells: []int{2}, Asked: hourly(-time.Hour, time.Hour, 1)})
	all.cells[0].put(placement{Queue: "staying", Cells: []int{2}, Keys: &keys{Cells: cellSet{1}, Until: time.Now().Add(time.Hour)}, Asked: hourly(time.Hour, 2*time.Hour, 1)})
	all.cells[0].put(placement{Queue: "over", Cells: []int{2}, Asked: hourly(-2*time.Hour, -time.Hour, 1)})
	e := setup(t, nil, all.fakes()...)
	for _, queue := range []string{"moved", "over"} {
		all.cells[1].insertOne(queue + " old")
	}
	insert := func(queue, key string, status, cell int) {
		t.Helper()
		got := e.call("POST", "/events?queue="+queue+"&key="+key, "{}")
		var body struct{ ID int64 }
		_ = json.Unmarshal([]byte(got.body), &body)
		if got.status != status || int(body.ID>>idBits) != cell {
			t.Errorf("%s of %s was answered %d %s, want %d of cell %d", key, queue, got.status, got.body, status, cell)
		}
	}
	insert("moved", "old", 200, 1)
	insert("moved", "new", 201, 2)
	insert("moved", "new", 200, 2)
	if id, isLeft := all.cells[1].has("moved new"); !isLeft || id != 0 {
		t.Error("the new key was not left by the former cell")
	}
	insert("staying", "k", 201, 1)
	if _, isLeft := all.cells[2].has("staying k"); isLeft {
		t.Error("a key that stays was left")
	}
	insert("over", "old", 201, 2)
	e.want(201, "", "POST", "/events?queue=moved", "{}")

	got := resultIDs(t, e.call("POST", "/events/batch?atomic=false", `{"events":[{"queue":"moved","key":"old","event":{}},{"queue":"moved","key":"newer","event":{}},{"queue":"moved","key":"new","event":{}}]}`))
	if !slices.Equal(got, []string{"200 1", "201 2", "200 2"}) {
		t.Errorf("a batch was answered %q", got)
	}
	// Who is not known leaves no keys.
	e.want(401, "", "POST", "/events?queue=moved&key=strange", "{}", "Authorization: Bearer wrong")
	if _, isLeft := all.cells[1].has("moved strange"); isLeft {
		t.Error("a stranger has a key left")
	}
	// Who may not use the queue leaves no keys either, and is told so by the former cell.
	all.cells[0].put(placement{Queue: "victim", Cells: []int{2}, Asked: hourly(-time.Hour, time.Hour, 1)})
	e.until("the gateway knows", func() bool { p, _ := e.gateway.placements.get("victim"); return p != nil })
	e.want(403, "forbidden", "POST", "/events?queue=victim&key=k", "{}")
	e.want(403, "forbidden", "POST", "/events/batch?atomic=false", `{"events":[{"queue":"moved","key":"fourth","event":{}},{"queue":"victim","key":"k","event":{}}]}`)
	if _, isInserted := all.cells[2].has("moved fourth"); isInserted {
		t.Error("a batch that its caller may not insert was inserted in part")
	}
	thaw := all.cells[1].freeze()
	defer thaw()
	e.until("the cell counts as away", func() bool { return !e.gateway.cell(1).isUp() })
	e.wantProblem(cellUnavailable, 1, "POST", "/events?queue=moved&key=third", "{}")
	e.want(201, "", "POST", "/events?queue=moved", "{}")
	e.want(201, "", "POST", "/events?queue=over&key=third", "{}")
}

// resultIDs returns "status cell" of each result.
func resultIDs(t *testing.T, got answer) []string {
	t.Helper()
	var body struct{ Results []struct{ Status, ID int64 } }
	if err := json.Unmarshal([]byte(got.body), &body); err != nil {
		t.Fatalf("answered %d %s", got.status, got.body)
	}
	var texts []string
	for _, one := range body.Results {
		texts = append(texts, fmt.Sprint(one.Status, " ", one.ID>>idBits))
	}
	return texts
}

func TestKeysAreInsertedOnceThroughGatewaysOfDifferentPlacements(t *testing.T) {
	t.Parallel()
	all := newKeyedCells(t, 3)
	before := placement{Queue: "q", Cells: []int{1}}
	all.cells[0].put(before)
	fresh, stale := setup(t, nil, all.fakes()...), setup(t, nil, all.fakes()...)
	// The one knows that the queue was moved, and that keys go there by now; the other one has missed all of it.
	fresh.gateway.placements.put(&placement{Queue: "q", Cells: []int{2}, Asked: hourly(-time.Minute, time.Hour, 1), Version: 100})
	const keys = 100
	var running sync.WaitGroup
	for i := range keys {
		for n, e := range []*environment{fresh, stale, fresh, stale} {
			running.Go(func() {
				got := e.call("POST", fmt.Sprintf("/events?queue=q&key=k%d", i), "{}")
				if got.status != 200 && got.status != 201 && (n%2 == 0 || got.status != 503) {
					t.Errorf("answered %d %s", got.status, got.body)
				}
			})
		}
	}
	running.Wait()
	all.mu.Lock()
	defer all.mu.Unlock()
	for i := range keys {
		if n := all.inserted[fmt.Sprintf("q k%d", i)]; n != 1 {
			t.Errorf("k%d was inserted %d times", i, n)
		}
	}
}

func TestGatewayThatHomeHasNotConfirmedForLongUsesNoKeys(t *testing.T) {
	t.Parallel()
	all := newKeyedCells(t, 2)
	all.cells[0].put(placement{Queue: "q", Cells: []int{1}})
	e := setup(t, nil, all.fakes()...)
	e.want(201, "", "POST", "/events?queue=q&key=a", "{}")
	defer all.cells[0].freeze()()
	e.gateway.placements.keyRetention.Store(int64(time.Nanosecond))
	e.wantProblem(cellUnavailable, 0, "POST", "/events?queue=q&key=b", "{}")
	e.want(201, "", "POST", "/events?queue=q", "{}")
	e.gateway.placements.keyRetention.Store(int64(time.Hour))
	e.want(201, "", "POST", "/events?queue=q&key=b", "{}")
}
