package gateway

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queued/queued/internal/cloudevents"
)

// cloudEventCells returns cells that insert CloudEvents under their keys, and refuse all of a request that has one of the type bad.
func cloudEventCells(t *testing.T, n int) *keyedCells {
	t.Helper()
	all := newKeyedCells(t, n)
	for _, k := range all.cells {
		k.mux.HandleFunc("POST /cloudevents", func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			events, isBatch, err := cloudevents.Decode(r.Header, body, 1000)
			bad := slices.IndexFunc(events, func(e cloudevents.Event) bool { return e.Type == "bad" })
			if err != nil || bad >= 0 {
				w.Header().Set("Content-Type", "application/problem+json")
				w.WriteHeader(http.StatusUnprocessableEntity)
				_, _ = fmt.Fprintf(w, `{"code":"validation_failed","detail":"#/%[1]d/type: wrong.","errors":[{"pointer":"#/%[1]d/type","detail":"wrong"}]}`, bad)
				return
			}
			ids, status := []int64{}, http.StatusOK
			for i := range events {
				id, was := k.insertOne(r.URL.Query().Get("queue") + " " + events[i].Key())
				if was == http.StatusServiceUnavailable {
					w.WriteHeader(was)
					_, _ = io.WriteString(w, `{"code":"key_left"}`)
					return
				}
				ids, status = append(ids, id), max(status, was)
			}
			w.WriteHeader(status)
			if isBatch {
				_ = json.NewEncoder(w).Encode(map[string][]int64{"ids": ids})
			} else {
				_, _ = fmt.Fprintf(w, `{"id":%d}`, ids[0])
			}
		})
	}
	return all
}

// cloudEvent returns one in JSON.
func cloudEvent(id, eventType string) string {
	return fmt.Sprintf(`{"specversion":"1.0","id":%q,"source":"/s","type":%q,"data":{"a":1,"a":2}}`, id, eventType)
}

const (
	structured = "Content-Type: " + cloudevents.MediaType
	batched    = "Content-Type: " + cloudevents.BatchMediaType
)

// answeredIDs returns the ids in an answer of a status; 0: of a success.
func answeredIDs(t *testing.T, got answer, status int) []int64 {
	t.Helper()
	var body struct {
		ID  int64
		IDs []int64
	}
	if err := json.Unmarshal([]byte(got.body), &body); err != nil || got.status != status && (status != 0 || got.status >= 300) {
		t.Fatalf("answered %d %s, want %d", got.status, got.body, status)
	}
	if body.IDs == nil {
		return []int64{body.ID}
	}
	return body.IDs
}

func TestCloudEventsGoWhereTheirSourcesAndIDsAre(t *testing.T) {
	t.Parallel()
	all := cloudEventCells(t, 3)
	all.cells[0].put(placement{Queue: "wide", Cells: []int{0, 1, 2}})
	e := setup(t, nil, all.fakes()...)
	used := map[int64]int{}
	var events, again []string
	var ids []int64
	for i := range 40 {
		name := fmt.Sprint("id ", i)
		first := answeredIDs(t, e.call("POST", "/cloudevents?queue=wide", cloudEvent(name, "t"), structured), 201)[0]
		// The same in binary mode, where the header has the key.
		second := answeredIDs(t, e.call("POST", "/cloudevents?queue=wide", "{}", "Content-Type: application/json", "Ce-Specversion: 1.0", "Ce-Type: t", "Ce-Source: /s", "Ce-Id: id%20"+fmt.Sprint(i)), 200)[0]
		if first != second {
			t.Errorf("%s is %d, and then %d", name, first, second)
		}
		used[first>>idBits]++
		ids = append(ids, first)
		events, again = append(events, cloudEvent(name, "t")), append(again, cloudEvent("new "+name, "t"))
	}
	if len(used) != 3 || used[0] < 4 || used[1] < 4 || used[2] < 4 {
		t.Errorf("they went to %v", used)
	}
	got := e.call("POST", "/cloudevents?queue=wide", "["+strings.Join(events, ",")+"]", batched)
	if !slices.Equal(answeredIDs(t, got, 200), ids) || got.header.Get("Idempotency-Replayed") != "true" || got.header.Get("Content-Type") != "application/json" {
		t.Errorf("a batch of the same was answered %v %s", got.header, got.body)
	}
	got = e.call("POST", "/cloudevents?queue=wide", "["+strings.Join(append(events, again...), " , ")+"]", batched)
	if all := answeredIDs(t, got, 201); !slices.Equal(all[:40], ids) || got.header.Get("Idempotency-Replayed") != "" {
		t.Errorf("a batch of these and new ones was answered %s", got.body)
	}
	e.until("nothing is held", func() bool { return e.gateway.memoryInUse() == 0 })
	// What no cell takes, home refuses.
	before := len(all.cells[0].calls())
	refused := []string{"", "[1]", "{", "[" + cloudEvent("a", "t") + "] x", `[{"id":"a"}]`, `[{"id":1,"source":"/s"}]`, "[" + strings.Repeat(cloudEvent("a", "t")+",", 1000) + cloudEvent("b", "t") + "]"}
	for _, body := range refused {
		e.want(422, "", "POST", "/cloudevents?queue=wide", body, batched)
	}
	e.want(422, "", "POST", "/cloudevents?queue=wide", "{}", "Ce-Id: 7")
	if n := len(all.cells[0].calls()) - before; n != len(refused)+1 {
		t.Errorf("home got %d calls", n)
	}
}

func TestCloudEventThatWasInsertedBeforeAMoveMeetsItsFirst(t *testing.T) {
	t.Parallel()
	all := cloudEventCells(t, 3)
	all.cells[0].put(placement{Queue: "moved", Cells: []int{2}, Asked: hourly(-time.Hour, time.Hour, 1)})
	all.cells[0].put(placement{Queue: "staying", Cells: []int{2}, Keys: &keys{Cells: cellSet{1}, Until: time.Now().Add(time.Hour)}})
	e := setup(t, nil, all.fakes()...)
	old, _ := all.cells[1].insertOne("moved /s old")
	for range 2 {
		if got := answeredIDs(t, e.call("POST", "/cloudevents?queue=moved", cloudEvent("old", "t"), structured), 200); got[0] != old {
			t.Errorf("the first is %d, and its repetition %d", old, got[0])
		}
	}
	fresh := answeredIDs(t, e.call("POST", "/cloudevents?queue=moved", cloudEvent("new", "t"), structured), 201)[0]
	if id, isLeft := all.cells[1].has("moved /s new"); fresh>>idBits != 2 || !isLeft || id != 0 {
		t.Errorf("the new one is %d", fresh)
	}
	got := e.call("POST", "/cloudevents?queue=moved", "["+cloudEvent("old", "t")+","+cloudEvent("newer", "t")+","+cloudEvent("new", "t")+"]", batched)
	if ids := answeredIDs(t, got, 201); ids[0] != old || ids[1]>>idBits != 2 || ids[2] != fresh {
		t.Errorf("a batch was answered %s", got.body)
	}
	if id := answeredIDs(t, e.call("POST", "/cloudevents?queue=staying", cloudEvent("x", "t"), structured), 201)[0]; id>>idBits != 1 {
		t.Errorf("one whose key stays is %d", id)
	}
	thaw := all.cells[1].freeze()
	defer thaw()
	e.until("the cell counts as away", func() bool { return !e.gateway.cell(1).isUp() })
	for mode, body := range map[string]string{structured: cloudEvent("third", "t"), batched: "[" + cloudEvent("third", "t") + "]"} {
		e.want(503, "cell_unavailable", "POST", "/cloudevents?queue=moved", body, mode)
	}
}

func TestBatchOfCloudEventsThatACellFailsIsRepeated(t *testing.T) {
	t.Parallel()
	all := cloudEventCells(t, 3)
	all.cells[0].put(placement{Queue: "wide", Cells: []int{1, 2}})
	e := setup(t, nil, all.fakes()...)
	// The first id of each cell.
	names := map[int]string{}
	for i := 0; len(names) < 2; i++ {
		at, err := e.gateway.keyCell("wide", cloudevents.KeyOf("/s", fmt.Sprint(i)), cellSet{1, 2})
		if err != nil {
			t.Fatal(err)
		}
		if names[at.number] == "" {
			names[at.number] = fmt.Sprint(i)
		}
	}
	e.want(422, `"pointer":"#/1/type"`, "POST", "/cloudevents?queue=wide", "["+cloudEvent(names[1], "t")+","+cloudEvent(names[2], "bad")+"]", batched)
	if _, isThere := all.cells[1].has("wide /s " + names[1]); !isThere {
		t.Error("the share of the other cell was not inserted")
	}
	thaw := all.cells[2].freeze()
	e.until("the cell counts as away", func() bool { return !e.gateway.cell(2).isUp() })
	body := "[" + cloudEvent(names[2], "t") + "," + cloudEvent(names[1], "t") + "]"
	got := e.want(503, "cell_unavailable", "POST", "/cloudevents?queue=wide", body, batched)
	if got.header.Get(unavailableHeader) != "2" || got.header.Get("Retry-After") == "" {
		t.Errorf("answered with %v", got.header)
	}
	thaw()
	e.until("the cell is back", func() bool { return e.gateway.cell(2).isUp() })
	if ids := answeredIDs(t, e.call("POST", "/cloudevents?queue=wide", body, batched), 201); ids[0]>>idBits != 2 || ids[1]>>idBits != 1 {
		t.Errorf("the repetition was answered %v", ids)
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	for name, n := range all.inserted {
		if n != 1 {
			t.Errorf("%s was inserted %d times", name, n)
		}
	}
}
