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
)

func TestEventsAndCallsOfAGroupOfASpreadQueueGoToOneCell(t *testing.T) {
	t.Parallel()
	e, fakes := spreadCells(t)
	came := insertable(fakes...)
	for _, f := range fakes {
		f.mux.HandleFunc("/queues/pair/groups/{group}", func(w http.ResponseWriter, r *http.Request) {
			_, _ = fmt.Fprintf(w, `{"cell":%d,"path":%q}`, f.number, r.URL.EscapedPath())
		})
		f.mux.HandleFunc("POST /cloudevents", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusCreated)
			_, _ = fmt.Fprintf(w, `{"cell":%d}`, f.number)
		})
		f.mux.HandleFunc("POST /events/batch", func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			w.WriteHeader(http.StatusCreated)
			_, _ = fmt.Fprintf(w, `{"results":[%s]}`, strings.TrimSuffix(strings.Repeat(fmt.Sprintf(`{"id":%d,"status":201},`, f.number), strings.Count(string(body), `"event"`)), ","))
		})
	}
	cellOf := func(text string) int {
		var said struct{ Cell int }
		if err := json.Unmarshal([]byte(text), &said); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		return said.Cell
	}
	var all []int
	var batch []string
	for i := range 40 {
		group := fmt.Sprintf("a%%2F%d", i)
		before := len(came("pair"))
		e.want(201, "", "POST", "/events?queue=pair&group="+group, "{}")
		e.want(201, "", "POST", "/events?queue=pair&group="+group, "{}")
		e.want(201, "", "POST", "/events?queue=pair&key=k&group="+group, "{}")
		e.want(201, "", "POST", "/events?queue=pair&group="+group, "{}", "Idempotency-Key: other")
		went := came("pair")[before:]
		for _, method := range []string{"GET", "PUT", "DELETE"} {
			answer := e.want(200, group, method, "/queues/pair/groups/"+group, "{}")
			went = append(went, cellOf(answer.body))
		}
		went = append(went, cellOf(e.want(201, "", "POST", "/cloudevents?queue=pair", fmt.Sprintf(`{"specversion":"1.0","id":"%d","source":"/s","type":"t","partitionkey":"a/%d"}`, i, i), "Content-Type: application/cloudevents+json").body))
		if slices.Min(went) != slices.Max(went) {
			t.Errorf("what is about %s went to %v", group, went)
		}
		all = append(all, went[0])
		batch = append(batch, fmt.Sprintf(`{"event":{},"queue":"pair","group":"a/%d"}`, i))
	}
	if got := countOf(all); got[1] < 8 || got[2] < 8 || got[0] > 0 {
		t.Errorf("groups went to %v", got)
	}
	var results struct{ Results []struct{ ID int } }
	if err := json.Unmarshal([]byte(e.call("POST", "/events/batch?atomic=false", `{"events":[`+strings.Join(batch, ",")+`]}`).body), &results); err != nil || len(results.Results) != len(all) {
		t.Fatalf("the results of a batch are %+v: %v", results, err)
	}
	for i, one := range results.Results {
		if one.ID != all[i] {
			t.Errorf("event %d of a batch went to %d, and its group to %d", i, one.ID, all[i])
		}
	}
	// Where the queue is placed elsewhere, groups stay as long as keys do.
	fakes[0].put(placement{Queue: "pair", Cells: []int{0}, Former: []former{{Cells: cellSet{1, 2}}}, Keys: &keys{Cells: cellSet{1, 2}, Until: time.Now().Add(time.Hour)}})
	e.until("the gateway knows", func() bool { p, _ := e.gateway.placements.get("pair"); return p.Keys != nil })
	for i, before := range all {
		if now := cellOf(e.want(200, "", "GET", fmt.Sprintf("/queues/pair/groups/a%%2F%d", i), "").body); now != before {
			t.Errorf("a/%d has gone from %d to %d", i, before, now)
		}
	}
}
