package main

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/queued/queued/client"
)

// client returns a client of the gateway, which tries each call once.
func (f *fleet) client() *client.Client {
	f.t.Helper()
	c, err := client.New(client.Config{URL: "http://" + f.addr, Key: keyOfCells, RetryFor: -1})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(c.Close)
	return c
}

// listed returns the ids of a listing, as texts.
func listed[T any](t *testing.T, values iter.Seq2[T, error], id func(T) any) (ids []string) {
	t.Helper()
	for value, err := range values {
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, fmt.Sprint(id(value)))
	}
	return ids
}

func TestClientReadsCellsAsOne(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	c := f.client()
	queues := f.queuesOn()
	for n := range 4 {
		for number, queue := range queues {
			at := fmt.Sprintf("2026-02-03T04:05:%02d.%dZ", n/3, (n+number)%3)
			f.call(http.StatusCreated, http.MethodPost, "/events?queue="+queue+"&vt="+url.QueryEscape("2036-02-03T04:05:00."+fmt.Sprint(n%4)+"Z"), `{}`)
			f.call(http.StatusCreated, http.MethodPost, "/events?queue="+queue+"&event_ts="+url.QueryEscape(at), `{}`)
			event := f.claim(queue, "10s")
			f.call(http.StatusNoContent, http.MethodDelete, fmt.Sprintf("/events/%.0f?receipt=%s", event["id"], url.QueryEscape(event["receipt"].(string))), "")
			f.call(http.StatusAccepted, http.MethodPost, "/redrives", fmt.Sprintf(`{"filter":{"queue":%q,"outcome":"failed"}}`, queue))
		}
	}
	ofEvent, ofRedrive := func(e client.Event) any { return e.ID }, func(r client.Redrive) any { return r.ID }
	for what, list := range map[string]func(*client.Client) []string{
		"events": func(c *client.Client) []string {
			return listed(t, c.ListEvents(t.Context(), client.EventFilter{PageSize: 3}), ofEvent)
		},
		"history": func(c *client.Client) []string {
			return listed(t, c.ListHistory(t.Context(), client.HistoryFilter{PageSize: 3}), ofEvent)
		},
		"redrives": func(c *client.Client) []string {
			return listed(t, c.ListRedrives(t.Context(), client.RedriveListing{PageSize: 3}), ofRedrive)
		},
	} {
		all := list(c)
		own := [2][]string{list(c.Cell(0)), list(c.Cell(1))}
		if len(own[0]) < 4 || len(own[1]) < 4 || len(all) != len(own[0])+len(own[1]) {
			t.Errorf("%s: %v of %v", what, all, own)
		}
		for number := range own { // each cell's part is in its order
			var part []string
			for _, id := range all {
				if slices.Contains(own[number], id) {
					part = append(part, id)
				}
			}
			if !slices.Equal(part, own[number]) {
				t.Errorf("%s of cell %d are %v, want %v", what, number, part, own[number])
			}
		}
	}
	if names := listed(t, c.ListQueues(t.Context()), func(q client.QueueStats) any { return q.Queue }); !slices.Equal(names, queues[:]) {
		t.Errorf("the queues are %v", names)
	}
	if processes, err := c.ListProcesses(t.Context()); err != nil || len(processes) != 2 || *processes[1].Cell != 1 {
		t.Errorf("the processes are %+v, %v", processes, err)
	}
	if overview, err := c.QueuesOverview(t.Context(), client.OverviewParams{}); err != nil || overview.Total != 2 || overview.Totals.Done != 8 {
		t.Errorf("the overview is %+v, %v", overview, err)
	}
	var text bytes.Buffer
	exported, err := c.ExportHistory(t.Context(), &text, client.HistoryFilter{}, client.ExportParams{Format: client.ExportCSV})
	records, failed := csv.NewReader(&text).ReadAll()
	if err != nil || failed != nil || exported.Rows != 8 || len(records) != 10 || records[9][0] != "#end" {
		t.Errorf("the export is %+v, %v, %v, %v", exported, err, failed, records)
	}

	f.cells[1].signal(syscall.SIGKILL)
	until(t, "the gateway sees that cell 1 is away", func() bool {
		return strings.Contains(f.call(http.StatusOK, http.MethodGet, "/metrics", "").body, `queued_cell_up{cell="1"} 0`)
	})
	var missing *client.MissingCellsError
	n := 0
	for _, err := range c.ListHistory(t.Context(), client.HistoryFilter{}) {
		if err == nil {
			n++
		} else if !errors.As(err, &missing) || !slices.Equal(missing.Cells, []int{1}) {
			t.Error(err)
		}
	}
	if n != 4 || missing == nil {
		t.Errorf("without cell 1 there are %d events, and %v", n, missing)
	}
	if _, err := c.ExportHistory(t.Context(), &text, client.HistoryFilter{}, client.ExportParams{}); !errors.Is(err, client.ErrUnavailable) {
		t.Errorf("an export without cell 1: %v", err)
	}
}

func TestQueueThatWasMovedIsReadAsOne(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	c := f.client()
	queue := f.queuesOn()[0] // which has an event
	finish := func(n int) {
		t.Helper()
		for range n {
			f.call(http.StatusCreated, http.MethodPost, "/events?queue="+queue, `{}`)
			event := f.claim(queue, "10s")
			f.call(http.StatusNoContent, http.MethodDelete, fmt.Sprintf("/events/%.0f?receipt=%s", event["id"], url.QueryEscape(event["receipt"].(string))), "")
		}
	}
	finish(3)
	f.call(http.StatusOK, http.MethodPut, "/queues/"+queue, `{"max_attempts":7}`)
	f.call(http.StatusOK, http.MethodPut, "/queues/"+queue+"/placement", `{"cells":[1],"keys":"now"}`)
	finish(2)
	f.call(http.StatusCreated, http.MethodPost, "/events?queue="+queue+"&delay=1h", `{}`)
	if got, err := c.GetQueue(t.Context(), queue); err != nil || got.Scheduled != 2 || got.DoneLastHour != 5 || got.MaxAttempts != 7 {
		t.Errorf("the queue: %+v, %v", got, err)
	}
	// The former cell is called empty, and has its history all the same.
	f.call(http.StatusOK, http.MethodPost, "/queues/"+queue+"/placement/drained", `{"cells":[0]}`)
	byCell := [2]int{}
	for e, err := range c.ListHistory(t.Context(), client.HistoryFilter{Queue: queue, PageSize: 2}) {
		if err != nil {
			t.Fatal(err)
		}
		byCell[e.ID>>45]++
	}
	if byCell != [2]int{3, 2} {
		t.Errorf("the history has %v", byCell)
	}
	if series, err := c.QueueStats(t.Context(), queue, client.SeriesParams{}); err != nil || series.Totals.Done != 5 || series.Totals.WaitP50MS == nil {
		t.Errorf("the statistics are %+v, %v", series, err)
	}
	if overview, err := c.QueuesOverview(t.Context(), client.OverviewParams{NameContains: queue}); err != nil || overview.Total != 1 || overview.Totals.Done != 5 {
		t.Errorf("the overview is %+v, %v", overview, err)
	}
}
