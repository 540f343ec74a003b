package http

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/queued/queued/internal/http/problem"
)

func TestInsertedEventIsWhereLocationSaysAsItWasSent(t *testing.T) {
	t.Parallel()
	h := start(t, settings{})
	const payload = `{"text":"Zoë 😀 \\u0000 \"","big":12345678901234567890.123456789,"list":[1,null,true],"empty":{}}`
	got := h.call("POST", "/events?queue=mail:1&delay=1h", payload).want(201)
	inserted := decode[seenEvent](got)
	e := decode[seenEvent](h.call("GET", got.header.Get("Location"), "").want(200))
	if e.ID != inserted.ID || e.Queue != "mail:1" || e.State != "scheduled" || e.Attempts != 0 || !e.VT.Equal(inserted.VT) {
		t.Errorf("got %+v, inserted %+v", e, inserted)
	}
	if ahead := e.VT.Sub(e.EnqueuedAt); ahead != time.Hour {
		t.Errorf("the event is claimable after %s, want 1h", ahead)
	}
	var want, have any
	if json.Unmarshal([]byte(payload), &want) != nil || json.Unmarshal(e.Event, &have) != nil {
		t.Fatal("no JSON")
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("(-sent +got)\n%s", diff)
	}
	if !strings.Contains(string(e.Event), "12345678901234567890.123456789") {
		t.Errorf("a number lost digits: %s", e.Event)
	}
}

func TestEventTSOfThePayloadIsWhenItHappened(t *testing.T) {
	t.Parallel()
	h := start(t, settings{})
	at := time.Now().Add(-time.Hour).UTC().Truncate(time.Second)
	for _, ts := range []string{
		fmt.Sprintf("%d", at.Unix()), fmt.Sprintf("%q", fmt.Sprintf("%d.000000", at.Unix())), fmt.Sprintf("%q", at.In(time.FixedZone("", 3600)).Format(time.RFC3339)),
	} {
		if e := h.get(h.insert(`{"event_ts":` + ts + `}`)); !e.EventTS.Equal(at) {
			t.Errorf("event_ts %s came out as %s, want %s", ts, e.EventTS, at)
		}
	}
	body := h.call("GET", "/events/1", "").want(200).body
	if want := `"event_ts":"` + at.Format(time.RFC3339) + `"`; !strings.Contains(body, want) {
		t.Errorf("no %s in %s", want, body)
	}
}

func TestBatchIsStoredInOrderOrNotAtAll(t *testing.T) {
	t.Parallel()
	h := start(t, settings{})
	vt := time.Now().Add(time.Hour).UTC().Truncate(time.Microsecond)
	ids := decode[insertBatchResponse](h.call("POST", "/events/batch",
		`{"events":[{"event":{"n":0}},{"event":{"n":1},"queue":"b"},{"event":{"n":2},"delay":"1m"},{"event":{"n":3},"vt":"`+vt.Format(time.RFC3339Nano)+`"}]}`).want(201)).IDs
	if len(ids) != 4 || !slices.IsSorted(ids) {
		t.Fatalf("got ids %v", ids)
	}
	for n, id := range ids {
		e := h.get(id)
		if string(e.Event) != fmt.Sprintf(`{"n":%d}`, n) || (e.Queue == "b") != (n == 1) || (e.State == "scheduled") != (n >= 2) {
			t.Errorf("event %d is %+v", n, e)
		}
	}
	if e := h.get(ids[3]); !e.VT.Equal(vt) {
		t.Errorf("vt is %s, want %s", e.VT, vt)
	}
	h.try("POST", "/events/batch", `{"events":[{"event":{}},{"event":{"a":"\u0000"}}]}`).wantProblem(problem.Unrepresentable)
	if n := h.count("select count(*) from agent.event"); n != 4 {
		t.Errorf("there are %d events, want 4", n)
	}
}

func TestClaimTakesTheOldestAndLeavesItToNobodyElse(t *testing.T) {
	t.Parallel()
	h := start(t, settings{})
	first, second := h.insert(`{"n":1}`), h.insert(`{"n":2}`)
	h.call("POST", "/events?queue=other", `{}`).want(201)
	e := h.claim(`{"invisible_for":"1m"}`)[0]
	if e.ID != first || e.Attempts != 1 || len(e.Claimed) != 1 || e.Receipt == "" || e.VT.Sub(e.Claimed[0]) != time.Minute {
		t.Errorf("claimed %+v", e)
	}
	if got := h.get(first); got.State != "leased" || got.Receipt != "" {
		t.Errorf("the claimed event is %+v", got)
	}
	if rest := h.claim(`{"limit":1000,"order":"random"}`); len(rest) != 1 || rest[0].ID != second {
		t.Errorf("a second claim got %+v", rest)
	}
	if none := h.call("POST", "/claim", "").want(200); none.body != `{"events":[]}` {
		t.Errorf("an empty claim is %s", none.body)
	}
}

func TestAckEndsInHistoryAndMayBeRepeated(t *testing.T) {
	t.Parallel()
	h := start(t, settings{})
	id := h.insert(`{}`)
	e := h.claimOne()
	path := fmt.Sprintf("/events/%d?receipt=%s", id, url.QueryEscape(e.Receipt))
	for range 2 {
		if got := h.call("DELETE", path, "").want(204); got.body != "" {
			t.Errorf("204 has a body: %s", got.body)
		}
	}
	if got := h.get(id); got.Outcome != "done" || got.State != "" || got.FinishedAt == nil {
		t.Errorf("the acked event is %+v", got)
	}
	never := h.insert(`{}`)
	h.call("DELETE", fmt.Sprintf("/events/%d", never), "").want(204)
	if got := h.get(never); got.Outcome != "cancelled" {
		t.Errorf("the deleted event is %+v", got)
	}
	h.call("DELETE", fmt.Sprintf("/events/%d", never), "").wantProblem(problem.EventNotFound)
}

func TestLostLeaseIsRefusedAndTheNewOwnerUnaffected(t *testing.T) {
	t.Parallel()
	h := start(t, settings{})
	id := h.insert(`{}`)
	lost := h.claimOne()
	h.sql("update agent.event set vt = now() - interval '1 second'")
	held := h.claimOne()
	path := fmt.Sprintf("/events/%d", id)
	h.call("DELETE", path+"?receipt="+lost.Receipt, "").wantProblem(problem.LeaseLost)
	h.call("POST", path+"/nack", fmt.Sprintf(`{"receipt":%q}`, lost.Receipt)).wantProblem(problem.LeaseLost)
	h.call("POST", path+"/nack", fmt.Sprintf(`{"receipt":%q,"final":true}`, lost.Receipt)).wantProblem(problem.LeaseLost)
	h.call("POST", path+"/extend", fmt.Sprintf(`{"receipt":%q}`, lost.Receipt)).wantProblem(problem.LeaseLost)
	if got := h.get(id); got.State != "leased" || got.Attempts != 2 || !got.VT.Equal(held.VT) {
		t.Errorf("the event is %+v", got)
	}
	results := h.call("POST", "/ack", fmt.Sprintf(`{"events":[{"id":%d,"receipt":%q},{"id":%d,"receipt":%q},{"id":99,"receipt":"x"}]}`,
		id, lost.Receipt, id, held.Receipt)).want(200).body
	want := fmt.Sprintf(`{"results":[{"id":%d,"status":409,"code":"lease_lost"},{"id":%d,"status":204},{"id":99,"status":404,"code":"event_not_found"}]}`, id, id)
	if results != want {
		t.Errorf("got  %s\nwant %s", results, want)
	}
}

func TestNackGivesBackWithItsErrorOrGivesUp(t *testing.T) {
	t.Parallel()
	h := start(t, settings{})
	id := h.insert(`{}`)
	e := h.claimOne()
	path := fmt.Sprintf("/events/%d/nack", id)
	nacked := decode[seenEvent](h.call("POST", path, fmt.Sprintf(`{"receipt":%q,"delay":"30s","error":"try \"later\" ✗"}`, e.Receipt)).want(200))
	got := h.get(id)
	if got.State != "scheduled" || got.LastError == nil || *got.LastError != `try "later" ✗` || !got.VT.Equal(nacked.VT) {
		t.Errorf("the nacked event is %+v", got)
	}
	h.sql("update agent.event set vt = now()")
	e = h.claimOne()
	for range 2 {
		final := h.call("POST", path, fmt.Sprintf(`{"receipt":%q,"error":"never","final":true}`, e.Receipt)).want(200)
		if want := fmt.Sprintf(`{"id":%d,"outcome":"failed"}`, id); final.body != want {
			t.Errorf("got %s, want %s", final.body, want)
		}
	}
	if got := h.get(id); got.Outcome != "failed" || *got.LastError != "never" || got.Attempts != 2 {
		t.Errorf("the failed event is %+v", got)
	}
}

func TestExtendMovesTheEndOfTheLease(t *testing.T) {
	t.Parallel()
	h := start(t, settings{})
	id := h.insert(`{}`)
	e := h.claimOne()
	got := decode[seenEvent](h.call("POST", fmt.Sprintf("/events/%d/extend", id), fmt.Sprintf(`{"receipt":%q,"invisible_for":"2h"}`, e.Receipt)).want(200))
	if got.ID != id || got.VT.Sub(e.VT) < 100*time.Minute || !h.get(id).VT.Equal(got.VT) {
		t.Errorf("extended to %s from %s", got.VT, e.VT)
	}
}

func TestSweepExpiresByAgeUnlessToldNotTo(t *testing.T) {
	t.Parallel()
	h := start(t, settings{})
	old := h.insert(`{}`)
	h.insert(`{}`)
	h.sql("update agent.event set vt = now() - interval '2 hours' where id = $1", old)
	for body, want := range map[string]string{`{"max_vt_age":null}`: `{"expired":0}`, `{"max_vt_age":"3h"}`: `{"expired":0}`, `{"queue":"other"}`: `{"expired":0}`} {
		if got := h.call("POST", "/sweep", body).want(200).body; got != want {
			t.Errorf("sweep %s: %s, want %s", body, got, want)
		}
	}
	if got := h.call("POST", "/sweep", "").want(200).body; got != `{"expired":1}` {
		t.Errorf("sweep: %s", got)
	}
	if got := h.get(old); got.Outcome != "expired" {
		t.Errorf("the swept event is %+v", got)
	}
}

func TestListingsPageThroughEverythingOnce(t *testing.T) {
	t.Parallel()
	h := start(t, settings{})
	var want []int64
	for n := range 7 {
		want = append(want, h.insert(fmt.Sprintf(`{"n":%d}`, n)))
	}
	list := func(path string) (ids []int64) {
		for cursor, pages := "", 0; ; pages++ {
			page := decode[seenPage](h.call("GET", path+cursor, "").want(200))
			for _, e := range page.Events {
				ids = append(ids, e.ID)
			}
			if page.Next == nil || pages > 10 {
				return ids
			}
			h.call("GET", "/queues", "").want(200)
			cursor = "&cursor=" + url.QueryEscape(*page.Next)
		}
	}
	if diff := cmp.Diff(want, list("/events?limit=3")); diff != "" {
		t.Errorf("waiting (-want +got)\n%s", diff)
	}
	for _, id := range want {
		h.call("DELETE", fmt.Sprintf("/events/%d", id), "").want(204)
	}
	slices.Reverse(want)
	if diff := cmp.Diff(want, list("/history?limit=2&outcome=cancelled&queue=default")); diff != "" {
		t.Errorf("history (-want +got)\n%s", diff)
	}
	next := *decode[seenPage](h.call("GET", "/history?limit=2", "").want(200)).Next
	h.call("GET", "/events?cursor="+next, "").wantProblem(problem.InvalidCursor)
}

func TestHistoryIsFilteredByWhatTheQuerySays(t *testing.T) {
	t.Parallel()
	h := start(t, settings{})
	a := h.insert(`{"user":{"id":1},"event_ts":"` + time.Now().Add(-48*time.Hour).UTC().Format(time.RFC3339) + `"}`)
	b := h.insert(`{"user":{"id":2}}`)
	e := h.claim(`{"limit":2}`)
	h.call("DELETE", fmt.Sprintf("/events/%d", a), "").want(204)
	h.call("POST", fmt.Sprintf("/events/%d/nack", b), fmt.Sprintf(`{"receipt":%q,"final":true}`, e[1].Receipt)).want(200)
	day := time.Now().Add(-24 * time.Hour).UTC().Format(time.RFC3339)
	for query, want := range map[string][]int64{
		"":                      {b, a},
		"queue=default":         {b, a},
		"queue=x":               nil,
		"outcome=done":          {a},
		"outcome=failed":        {b},
		"from=" + day:           {b},
		"to=" + day:             {a},
		fmt.Sprintf("id=%d", a): {a},
		"contains=" + url.QueryEscape(`{"user":{"id":2}}`): {b},
		"contains=" + url.QueryEscape(`{}`):                {b, a},
	} {
		var got []int64
		for _, e := range decode[seenPage](h.call("GET", "/history?"+query, "").want(200)).Events {
			got = append(got, e.ID)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", query, diff)
		}
	}

	stats := decode[historyStatsResponseSeen](h.call("GET", "/history/stats?bucket=24h&from="+time.Now().Add(-72*time.Hour).UTC().Format(time.RFC3339), "").want(200))
	var done, failed int
	for _, b := range stats.Buckets {
		done, failed = done+b.Done, failed+b.Failed
	}
	if len(stats.Buckets) != 4 || done != 1 || failed != 1 {
		t.Errorf("got %+v", stats)
	}
	if got := decode[historyStatsResponseSeen](h.call("GET", "/history/stats", "").want(200)); len(got.Buckets) != 25 {
		t.Errorf("a day has %d buckets of an hour, want 25, the first and last in part", len(got.Buckets))
	}
}

type historyStatsResponseSeen struct {
	Buckets []struct {
		Start        time.Time `json:"start"`
		Done, Failed int
	} `json:"buckets"`
}

func TestRequeuedEventRemembersItsOrigin(t *testing.T) {
	t.Parallel()
	h := start(t, settings{})
	id := h.insert(`{"n":1}`)
	h.call("DELETE", fmt.Sprintf("/events/%d", id), "").want(204)
	dry := h.call("POST", "/history/requeue", `{"outcome":"cancelled","contains":{"n":1},"dry_run":true}`).want(200).body
	if dry != `{"matched":1,"requeued":0}` {
		t.Errorf("a dry run says %s", dry)
	}
	got := h.call("POST", fmt.Sprintf("/history/%d/requeue", id), "").want(201)
	copied := decode[seenEvent](h.call("GET", got.header.Get("Location"), "").want(200))
	if copied.ID == id || copied.RequeuedFrom == nil || *copied.RequeuedFrom != id || string(copied.Event) != `{"n":1}` || copied.State != "ready" {
		t.Errorf("the copy is %+v", copied)
	}
	if origin := h.get(id); origin.RequeuedAs == nil || *origin.RequeuedAs != copied.ID {
		t.Errorf("the origin is %+v", origin)
	}
	other := h.insert(`{"n":2}`)
	h.call("DELETE", fmt.Sprintf("/events/%d", other), "").want(204)
	if got := h.call("POST", "/history/requeue", `{"queue":"default"}`).want(200).body; got != `{"matched":1,"requeued":1}` {
		t.Errorf("what was not yet requeued: %s", got)
	}
}

func TestQueuesAreCountedByState(t *testing.T) {
	t.Parallel()
	h := start(t, settings{})
	h.insert(`{}`)
	h.claimOne()
	h.insert(`{}`)
	h.call("POST", "/events?delay=1h", `{}`).want(201)
	gone := decode[seenEvent](h.call("POST", "/events?queue=b", `{}`).want(201)).ID
	h.claim(`{"queue":"b"}`)
	h.call("DELETE", fmt.Sprintf("/events/%d", gone), "").want(204)
	h.sql("update agent.event set vt = now() - interval '90 seconds' where vt <= now() and attempts = 0")
	got := decode[struct{ Queues []map[string]any }](h.call("GET", "/queues", "").want(200)).Queues
	slices.SortFunc(got, func(a, b map[string]any) int { return strings.Compare(b["queue"].(string), a["queue"].(string)) })
	age, _ := got[0]["oldest_ready_age"].(string)
	if !strings.HasPrefix(age, "1m3") {
		t.Errorf("the oldest ready age is %q, want 1m30s and something", age)
	}
	delete(got[0], "oldest_ready_age")
	want := []map[string]any{
		{"queue": "default", "ready": 1.0, "scheduled": 1.0, "leased": 1.0, "done_last_hour": 0.0, "estimated": false, "paused": false, "expired_last_hour": 0.0},
		{"queue": "b", "ready": 0.0, "scheduled": 0.0, "leased": 0.0, "done_last_hour": 1.0, "estimated": false, "paused": false, "expired_last_hour": 0.0, "oldest_ready_age": nil},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
