package main

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// results returns the results of an answer to a list.
func results(t *testing.T, got answer) []map[string]any {
	t.Helper()
	var all []map[string]any
	for _, one := range got.decode(t)["results"].([]any) {
		all = append(all, one.(map[string]any))
	}
	return all
}

func TestGatewaySplitsBatchesAndListsOfIDs(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	queues := f.queuesOn()
	body := fmt.Sprintf(`{"events":[{"queue":%q,"event":{"n":1}},{"queue":%q,"event":{"n":2}},{"queue":%[1]q,"event":{"n":3}}]}`, queues[0], queues[1])
	if got := f.call(http.StatusUnprocessableEntity, http.MethodPost, "/events/batch", body).decode(t); got["code"] != "batch_not_atomic" {
		t.Errorf("all or nothing over two cells: %v", got)
	}
	inserted := results(t, f.call(http.StatusOK, http.MethodPost, "/events/batch?atomic=false", body))
	if len(inserted) != 3 || cellOf(inserted[0]["id"]) != 0 || cellOf(inserted[1]["id"]) != 1 || cellOf(inserted[2]["id"]) != 0 {
		t.Fatalf("inserted %v", inserted)
	}
	var held []string
	for _, queue := range []string{queues[0], queues[1], queues[0]} {
		event := f.claim(queue, "10s")
		held = append(held, fmt.Sprintf(`{"id":%.0f,"receipt":%q}`, event["id"], event["receipt"]))
	}
	list := `{"events":[` + strings.Join(held, ",") + `]}`
	for _, path := range []string{"/extend", "/ack"} {
		for i, one := range results(t, f.call(http.StatusOK, http.MethodPost, path, list)) {
			if one["status"].(float64) >= 300 || cellOf(one["id"]) != i%2 {
				t.Errorf("%s: %v", path, one)
			}
		}
	}
}

func TestGatewaySpreadsAQueueAndSetsItOnAllItsCells(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	f.call(http.StatusOK, http.MethodPut, "/queues/wide/placement", `{"cells":[0,1]}`)
	perCell := map[int]int{}
	for range 20 {
		perCell[cellOf(f.call(http.StatusCreated, http.MethodPost, "/events?queue=wide", `{}`).decode(t)["id"])]++
	}
	if perCell[0] != 10 || perCell[1] != 10 {
		t.Errorf("events went to %v", perCell)
	}
	for i := range 10 {
		first := f.call(http.StatusCreated, http.MethodPost, fmt.Sprintf("/events?queue=wide&key=k%d", i), `{}`).decode(t)["id"]
		if again := f.call(http.StatusOK, http.MethodPost, fmt.Sprintf("/events?queue=wide&key=k%d", i), `{}`).decode(t)["id"]; again != first {
			t.Errorf("k%d is the event %v, and then %v", i, first, again)
		}
	}
	for range 30 {
		f.claim("wide", "0s")
	}
	f.call(http.StatusOK, http.MethodPut, "/queues/wide", `{"max_attempts":7}`)
	for number, cell := range f.cells {
		got := cell.want(http.StatusOK, http.MethodGet, "/queues/wide", "", "Authorization: Bearer "+keyOfCells).decode(t)
		if got["max_attempts"] != 7.0 || got["leased"] != 15.0 && perCell[number] != 10 {
			t.Errorf("cell %d has %v", number, got)
		}
	}
	claimed := make(chan map[string]any, 1)
	go func() { claimed <- f.claim("wide", "60s") }()
	inserted := f.call(http.StatusCreated, http.MethodPost, "/events?queue=wide", `{}`).decode(t)
	if event := <-claimed; event["id"] != inserted["id"] {
		t.Errorf("inserted %v, claimed %v", inserted["id"], event["id"])
	}
	f.call(http.StatusCreated, http.MethodPost, "/events?queue=wide&key=a", `{}`)
	f.call(http.StatusCreated, http.MethodPost, "/events?queue=wide&key=b", `{}`)
	if purged, err := f.client().PurgeQueue(t.Context(), "wide"); err != nil || purged != 2 {
		t.Errorf("purged %d, want 2: %v", purged, err)
	}
}

func TestGatewayFindsKeysThatWereUsedBeforeAMove(t *testing.T) {
	t.Parallel()
	f := startFleet(t, "QUEUED_KEY_RETENTION=2s")
	f.call(http.StatusOK, http.MethodPut, "/queues/moved/placement", `{"cells":[0]}`)
	f.call(http.StatusOK, http.MethodPut, "/queues/moved/placement", `{"cells":[1]}`)
	insert := func(status, n int) any {
		t.Helper()
		return f.call(status, http.MethodPost, fmt.Sprintf("/events?queue=moved&key=k%d", n), `{}`).decode(t)["id"]
	}
	// Until the time from which keys go to the other cell, and a little longer.
	latest := any(nil) // that stayed where keys went
	n := 0
	for {
		id := insert(http.StatusCreated, n)
		if cellOf(id) == 1 {
			break
		}
		latest = id
		n++
	}
	if latest == nil {
		t.Fatal("no key stayed where keys went")
	}
	if id := insert(http.StatusOK, n-1); id != latest {
		t.Errorf("the key was used for %v, and then for %v", latest, id)
	}
	insert(http.StatusOK, n)
}
