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

func TestGroupsOfASpreadQueueAreListedTogether(t *testing.T) {
	t.Parallel()
	e, fakes := spreadCells(t)
	const group = `{"group":%q,"concurrency":null,"paused":%v,"held_until":null,"waiting":%d,"admitted":0,"leased":1,"scheduled":0,"oldest_at":%s,"next_at":null,"blocked_by":null,"version":%s,"updated_at":null,"cursor":%q}`
	lists := map[int]string{
		0: fmt.Sprintf(group, "b", false, 3, `"2026-02-03T04:05:07Z"`, "null", "b"),
		1: fmt.Sprintf(group, "a", false, 1, "null", "null", "a") + "," + fmt.Sprintf(group, "b", true, 2, `"2026-02-03T04:05:06Z"`, "7", "b"),
		2: fmt.Sprintf(group, "c", false, 4, "null", "null", "c"),
	}
	for _, f := range fakes {
		f.mux.HandleFunc("GET /queues/wide/groups", func(w http.ResponseWriter, r *http.Request) {
			if f.number == 2 && r.URL.Query().Get("cursor") == "" && r.URL.Query().Get("sort") == "" { // a page that lists nothing
				_, _ = io.WriteString(w, `{"groups":[],"next":"more"}`)
				return
			}
			_, _ = io.WriteString(w, `{"groups":[`+lists[f.number]+`],"next":null}`)
		})
	}
	var page struct {
		Groups []struct {
			Group           string
			Paused          bool
			Waiting, Leased int
			OldestAt        *string `json:"oldest_at"`
			Version         *int
			Cursor          string
		}
		Next *string
	}
	list := func(query string) string {
		page.Groups = nil
		if err := json.Unmarshal([]byte(e.want(200, "", "GET", "/queues/wide/groups"+query, "").body), &page); err != nil {
			t.Fatal(err)
		}
		var names string
		for _, g := range page.Groups {
			names += fmt.Sprintf("%s%d ", g.Group, g.Waiting)
		}
		return names
	}
	if got := list("?state=blocked"); got != "a1 b5 c4 " || page.Next != nil {
		t.Errorf("listed %q, next %v", got, page.Next)
	}
	if b := page.Groups[1]; !b.Paused || b.Version == nil || *b.Version != 7 || b.Leased != 2 || b.OldestAt == nil || *b.OldestAt != "2026-02-03T04:05:06Z" || b.Cursor != "" {
		t.Errorf("of two cells, b is %+v", b)
	}
	if got := list("?sort=waiting&limit=2"); got != "b5 c4 " {
		t.Errorf("by their lines, listed %q", got)
	}
}
