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

func TestInsertedEventIsReturnedUnchangedAtItsLocation(t *testing.T) {
	t.Parallel()
	h := setup(t)
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

func TestEventTSIsReadFromThePayload(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.placeOn(0, "default")
	at := time.Now().Add(-time.Hour).UTC().Truncate(time.Second)
	for _, ts := range []string{
		fmt.Sprintf("%d", at.Unix()), fmt.Sprintf("%q", fmt.Sprintf("%d.000000", at.Unix())), fmt.Sprintf("%q", at.In(time.FixedZone("", 3600)).Format(time.RFC3339)),
	} {
		if e := h.get(h.insert(`{"event_ts":` + ts + `}`)); !e.EventTS.Equal(at) {
			t.Errorf("event_ts %s became %s, want %s", ts, e.EventTS, at)
		}
	}
	body := h.call("GET", "/events/1", "").want(200).body
	if want := `"event_ts":"` + at.Format(time.RFC3339) + `"`; !strings.Contains(body, want) {
		t.Errorf("%s is missing in %s", want, body)
	}
}

func TestBatchIsStoredInOrderOrNotAtAll(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.placeOn(2, "default", "b")
	vt := time.Now().Add(time.Hour).UTC().Truncate(time.Microsecond)
	ids := decode[struct{ IDs []int64 }](h.call("POST", "/events/batch",
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

func TestEventsOfABatchThatIsNotAtomicAreInsertedEachOnItsOwn(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.call("POST", "/events?queue=b&key=taken", `{"n":0}`).want(201)
	var items []string
	for n := range 20 {
		options := ""
		switch n {
		case 3, 4, 17: // the same key for other events
			options = `,"key":"taken"`
		case 9: // further ahead than an event may be
			options = `,"event_ts":"9000-01-01T00:00:00Z"`
		case 11:
			options = `,"key":"mine"`
		}
		items = append(items, fmt.Sprintf(`{"event":{"n":%d},"queue":"b"%s}`, n, options))
	}
	type result struct {
		Status       int
		ID           int64
		Queue        string
		VT           time.Time
		Code, Detail string
	}
	post := func(items ...string) []result {
		t.Helper()
		return decode[struct{ Results []result }](h.call("POST", "/events/batch?atomic=false", `{"events":[`+strings.Join(items, ",")+`]}`).want(200)).Results
	}
	results := post(items...)
	if len(results) != len(items) {
		t.Fatalf("got %d results of %d events", len(results), len(items))
	}
	for n, r := range results {
		switch n {
		case 3, 4, 17:
			if r.Status != 422 || r.Code != "idempotency_key_reused" || r.Detail == "" || r.ID != 0 {
				t.Errorf("event %d: got %+v", n, r)
			}
		case 9:
			if r.Status != 422 || r.Code != "validation_failed" || r.Detail == "" {
				t.Errorf("event %d: got %+v", n, r)
			}
		default:
			if e := h.get(r.ID); r.Status != 201 || r.Queue != "b" || !e.VT.Equal(r.VT) || string(e.Event) != fmt.Sprintf(`{"n":%d}`, n) {
				t.Errorf("event %d: got %+v, which is %s", n, r, e.Event)
			}
		}
	}
	if n := h.count("select count(*) from agent.event"); n != 17 {
		t.Errorf("there are %d events, want 17", n)
	}
	if again := post(items[11]); again[0].Status != 200 || again[0].ID != results[11].ID {
		t.Errorf("an event that was inserted before: got %+v, want 200 and the id %d", again, results[11].ID)
	}
	h.try("POST", "/events/batch?atomic=false", `{"events":[{"event":{}},{"event":{},"queue":"a b"}]}`).wantProblem(problem.ValidationFailed)
	h.try("POST", "/events/batch?atomic=perhaps", `{"events":[{"event":{}}]}`).wantProblem(problem.InvalidParameter)
	if n := h.count("select count(*) from agent.event"); n != 17 {
		t.Errorf("there are %d events after requests that were refused as a whole, want 17", n)
	}
}

// unstorable are payloads that the database cannot hold, or that are beyond a limit of one event, with the codes of their problems.
var unstorable = map[string]string{
	`{"a":"x\u0000"}`:        "unrepresentable",
	`{"a\u0000":1}`:          "unrepresentable",
	`{"a":1e1001}`:           "unrepresentable",
	`{"a":[1,-1e-1001,"b"]}`: "unrepresentable",
	`{"a":` + strings.Repeat("[", 70) + strings.Repeat("]", 70) + `}`:              "too_deep",
	`{"a":` + strings.Repeat(`{"b":`, 200) + `"\u0000"` + strings.Repeat("}", 201): "too_deep",
	`{"a":1e900,"b":1e900,"c":"\u0000","d":{"e":["f"]}}`:                           "unrepresentable",
}

// apart is a batch of elements with the payloads in unstorable between others, and the codes of its elements; empty: taken.
func apart(element func(payload string) string) (batch string, codes []string) {
	var all []string
	for payload, code := range unstorable {
		all = append(all, element(`{"good":"\u00e9"}`), element(payload))
		codes = append(codes, "", code)
	}
	return `{"events":[` + strings.Join(append(all, element("{}")), ",") + `]}`, append(codes, "")
}

func TestEventThatCannotBeStoredIsRefusedAlone(t *testing.T) {
	t.Parallel()
	h := setup(t)
	batch, codes := apart(func(payload string) string { return `{"event":` + payload + `,"queue":"b"}` })
	type result struct {
		Status       int
		Queue        string
		Code, Detail string
	}
	post := func(batch string) []result {
		t.Helper()
		return decode[struct{ Results []result }](h.try("POST", "/events/batch?atomic=false", batch).want(200)).Results
	}
	results := post(batch)
	for i, code := range codes {
		switch r := results[i]; {
		case code == "" && (r.Status != 201 || r.Queue != "b"):
			t.Errorf("event %d: %+v, want it inserted", i, r)
		case code != "" && (r.Code != code || r.Status < 400 || !strings.Contains(r.Detail, fmt.Sprintf("#/events/%d/event", i))):
			t.Errorf("event %d: %+v, want %s", i, r, code)
		}
	}
	if n := h.count("select count(*) from agent.event where queue = 'b'"); n != len(unstorable)+1 {
		t.Errorf("%d events were stored, want %d", n, len(unstorable)+1)
	}
	for _, refused := range []string{`{"event":{},"type":"a\u0000"}`, `{"meta":{"a":1e1001},"event":{}}`} {
		if got := post(`{"events":[{"event":{}},` + refused + `]}`); got[0].Status != 201 || got[1].Code != "unrepresentable" {
			t.Errorf("%s: %+v", refused, got)
		}
	}
	if got := post(`{"events":[{"event":{"a":"\u0000"}}]}`); len(got) != 1 || got[0].Code != "unrepresentable" {
		t.Errorf("a batch of such an event alone: %+v", got)
	}
	h.try("POST", "/events/batch", `{"events":[{"event":{}},{"event":{"a":1e1001}}]}`).wantProblem(problem.Unrepresentable)
	h.try("POST", "/events/batch?atomic=false", `{"events":[{"event":{"a":"\u0000"},"queue":"a b"}]}`).wantProblem(problem.ValidationFailed)
	h.try("POST", "/events/batch?atomic=false", `{"events":[{"event":{"a":"\u0000"},}]}`).wantProblem(problem.InvalidJSON)
}

func TestClaimLeasesTheOldestEvent(t *testing.T) {
	t.Parallel()
	h := setup(t)
	first, second := h.insert(`{"n":1}`), h.insert(`{"n":2}`)
	h.call("POST", "/events?queue=other", `{}`).want(201)
	e := h.claimOneBy(`{"invisible_for":"1m"}`)
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
		t.Errorf("a claim without events returned %s", none.body)
	}
}

func TestAckMovesTheEventIntoHistoryAndCanBeRepeated(t *testing.T) {
	t.Parallel()
	h := setup(t)
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

func TestLostLeaseIsRefusedAndTheNewLeaseUnaffected(t *testing.T) {
	t.Parallel()
	h := setup(t)
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

func TestNackReturnsTheEventToItsQueueOrFailsIt(t *testing.T) {
	t.Parallel()
	h := setup(t)
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
	h := setup(t)
	id := h.insert(`{}`)
	e := h.claimOne()
	got := decode[seenEvent](h.call("POST", fmt.Sprintf("/events/%d/extend", id), fmt.Sprintf(`{"receipt":%q,"invisible_for":"2h"}`, e.Receipt)).want(200))
	if got.ID != id || got.VT.Sub(e.VT) < 100*time.Minute || !h.get(id).VT.Equal(got.VT) {
		t.Errorf("extended to %s from %s", got.VT, e.VT)
	}
}

func TestSweepExpiresByAgeUnlessItIsNull(t *testing.T) {
	t.Parallel()
	h := setup(t)
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

func TestListingsReturnEachEventOnce(t *testing.T) {
	t.Parallel()
	h := setup(t)
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

func TestHistoryIsFilteredByTheQuery(t *testing.T) {
	t.Parallel()
	h := setup(t)
	a := h.insert(`{"user":{"id":1},"event_ts":"` + time.Now().Add(-48*time.Hour).UTC().Format(time.RFC3339) + `"}`)
	b := h.insertWith("meta=" + url.QueryEscape(`{"trace":{"id":"b","n":1}}`))
	h.sql(`update agent.event set event = '{"user":{"id":2}}' where id = $1`, b)
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
		"meta=" + url.QueryEscape(`{"trace":{"id":"b"}}`):  {b},
		"meta=" + url.QueryEscape(`{}`):                    {b},
		"outcome=done&meta=" + url.QueryEscape(`{}`):       nil,
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
		t.Errorf("a day has %d buckets of an hour, want 25, the first and last partial", len(got.Buckets))
	}
}

type historyStatsResponseSeen struct {
	Buckets []struct {
		Start        time.Time `json:"start"`
		Done, Failed int
	} `json:"buckets"`
}

func TestRequeueLeadsToTheCopy(t *testing.T) {
	t.Parallel()
	h := setup(t)
	id := h.insert(`{"n":1}`)
	h.call("DELETE", fmt.Sprintf("/events/%d", id), "").want(204)
	dry := h.call("POST", "/history/requeue", `{"outcome":"cancelled","contains":{"n":1},"dry_run":true}`).want(200).body
	if dry != `{"matched":1,"requeued":0}` {
		t.Errorf("a dry run returned %s", dry)
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
		t.Errorf("requeueing the remaining events returned %s", got)
	}
}

func TestQueuesAreCountedByState(t *testing.T) {
	t.Parallel()
	h := setup(t)
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
		t.Errorf("the oldest ready age is %q, want a little more than 1m30s", age)
	}
	delete(got[0], "oldest_ready_age")
	want := []map[string]any{
		{"queue": "default", "ready": 1.0, "scheduled": 1.0, "waiting": 0.0, "leased": 1.0, "done_last_hour": 0.0, "estimated": false, "paused": false, "dead_letters_of": []any{}, "failed_last_hour": 0.0, "expired_last_hour": 0.0},
		{"queue": "b", "ready": 0.0, "scheduled": 0.0, "waiting": 0.0, "leased": 0.0, "done_last_hour": 1.0, "estimated": false, "paused": false, "dead_letters_of": []any{}, "failed_last_hour": 0.0, "expired_last_hour": 0.0, "oldest_ready_age": nil},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// Rows that SQL has written without checks are returned in the form of the contract, which the client checks.
func TestInvalidRowsAreReturnedInTheContractsForm(t *testing.T) {
	t.Parallel()
	h := setup(t)
	invalid := []string{
		"attempts = -5", "max_attempts = 0", "claimed = '{null,infinity}'", "claimed = '{{-infinity,null}}'", "past_attempts = '5'",
		`past_attempts = '[7,{"attempt":1,"ended_at":"-infinity","outcome":"odd"}]'`, "occurrence = '5'", "meta = '[]'", "publication = '5'", "type = ''", "worker = ''",
		"event_ts = '20000-01-01Z'", "enqueued_at = '-infinity'", "expires_at = 'infinity'",
	}
	for i, assignment := range invalid {
		for n, table := range []string{"agent.event", "agent.event_hist"} {
			var columns, values string
			if table == "agent.event_hist" {
				columns, values = ", outcome, finished_at, result", ", 'done', 'infinity', '5'"
			} else {
				columns, values = ", text_size", ", 2"
				h.sql(`alter table agent.event disable trigger user`)
			}
			eventTS := "now()"
			if value, ok := strings.CutPrefix(assignment, "event_ts = "); ok { // an update cannot move a row to another chunk of a hypertable
				eventTS = value
			}
			id := 1000*(n+1) + i
			h.sql(`insert into `+table+` (id, event_ts, attempts, vt, claimed, event, queue, enqueued_at`+columns+`) overriding system value
				values ($1, `+eventTS+`, 1, now(), array[now()], '{}', 'odd', now()`+values+`)`, id)
			h.sql(`update `+table+` set `+assignment+` where id = $1`, id)
			h.call("GET", fmt.Sprintf("/events/%d", id), "").want(200)
			h.call("GET", fmt.Sprintf("/events/%d/attempts", id), "").want(200)
		}
	}
	for _, path := range []string{"/events", "/events?queue=odd&state=ready", "/history", "/history?queue=odd&min_duration=1s", "/queues", "/history/stats"} {
		h.call("GET", path, "").want(200)
	}
	if got := len(h.claim(`{"queue":"odd","limit":100,"max_attempts":100}`)); got != len(invalid)-1 { // without the one that has used up its own max_attempts
		t.Errorf("claimed %d", got)
	}
}

// wantDeduplicated fails the test unless the answer is that to first, deduplicated.
func (a answer) wantDeduplicated(first answer) {
	a.t.Helper()
	a.want(200)
	if a.body != first.body || a.header.Get("Location") != first.header.Get("Location") || a.header.Get("Idempotency-Replayed") != "true" {
		a.t.Errorf("the repeated call returned %s at %q, replayed %q; the first call %s at %q",
			a.body, a.header.Get("Location"), a.header.Get("Idempotency-Replayed"), first.body, first.header.Get("Location"))
	}
}

func TestSameRequestUnderTheSameKeyInsertsOneEvent(t *testing.T) {
	t.Parallel()
	h := setup(t)
	const path = "/events?queue=work&type=a"
	first := h.with("Idempotency-Key", `"order-1"`).call("POST", path, `{"a":1,"b":[2]}`).want(201)
	if first.header.Get("Idempotency-Replayed") != "" {
		t.Error("the first call was reported as deduplicated")
	}
	again := func() {
		h.with("Idempotency-Key", `"order-1"`).call("POST", path, `{"a":1,"b":[2]}`).wantDeduplicated(first)
		h.with("Idempotency-Key", `order-1`).call("POST", path, `{ "b" : [2], "a" : 1 }`).wantDeduplicated(first)
		h.call("POST", path+"&key=order-1", `{"a":1,"b":[2]}`).wantDeduplicated(first)
		h.with("Idempotency-Key", `order-1`).call("POST", path+"&key=order-1", `{"a":1,"b":[2]}`).wantDeduplicated(first)
	}
	again()
	e := h.claimOneBy(`{"queue":"work"}`)
	if e.Key != "order-1" {
		t.Errorf("claimed %+v", e)
	}
	again()
	h.call("DELETE", fmt.Sprintf("/events/%d?receipt=%s", e.ID, e.Receipt), "").want(204)
	again() // while the event is in history
	if got := h.get(e.ID); got.Outcome != "done" || got.Key != "order-1" {
		t.Errorf("the event is %+v", got)
	}
	if n := h.count("select count(*) from agent.event where queue = $1", "work"); n != 0 {
		t.Errorf("%d events are in the queue", n)
	}
	h.with("Idempotency-Key", "order-1").call("POST", "/events?queue=other&type=a", `{"a":1,"b":[2]}`).want(201)
	h.sql("update agent.idempotency set expires_at = now() - interval '1 second'")
	if later := h.with("Idempotency-Key", "order-1").call("POST", path, `{"a":1,"b":[2]}`).want(201); later.body == first.body {
		t.Error("an expired key deduplicated")
	}
}

func TestDifferentRequestUnderTheSameKeyIsRefused(t *testing.T) {
	t.Parallel()
	h := setup(t)
	first := h.call("POST", "/events?key=k&priority=3&delay=1h", `{"a":1}`).want(201)
	for path, body := range map[string]string{
		"/events?key=k&priority=3&delay=1h":                                 `{"a":2}`,
		"/events?key=k&priority=4&delay=1h":                                 `{"a":1}`,
		"/events?key=k&priority=3":                                          `{"a":1}`,
		"/events?key=k&priority=3&delay=1h&type=a":                          `{"a":1}`,
		"/events?key=k&priority=3&delay=1h&source=a":                        `{"a":1}`,
		"/events?key=k&priority=3&delay=1h&max_attempts=1":                  `{"a":1}`,
		"/events?key=k&priority=3&delay=1h&expires_at=2100-01-01T00:00:00Z": `{"a":1}`,
	} {
		h.call("POST", path, body).wantProblem(problem.KeyReused)
	}
	h.call("POST", "/events/batch", `{"events":[{"event":{"new":true}},{"event":{"a":2},"key":"k"}]}`).wantProblem(problem.KeyReused)
	if n := h.count("select count(*) from agent.event"); n != 1 {
		t.Errorf("there are %d events, want 1", n)
	}
	h.call("POST", "/events?key=k&priority=3&delay=1h", `{"a":1}`).wantDeduplicated(first)
}

func TestKeysInHeaderAndQueryMustBeEqual(t *testing.T) {
	t.Parallel()
	h := setup(t)
	p := h.with("Idempotency-Key", `"a"`).call("POST", "/events?key=b", `{}`).wantProblem(problem.InvalidParameter)
	if diff := cmp.Diff([]problem.FieldError{{Pointer: "?key", Detail: "must be the same as the header Idempotency-Key"}}, p.Errors); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	p = h.with("Idempotency-Key", `"a"`).call("POST", "/events/batch", `{"events":[{"event":{}}]}`).wantProblem(problem.InvalidParameter)
	if p.Errors[0].Pointer != "Idempotency-Key" {
		t.Errorf("a key for a batch: %+v", p)
	}
	wantNoRow(h)
}

func TestEachEventOfABatchHasItsOwnKey(t *testing.T) {
	t.Parallel()
	h := setup(t)
	post := func(events string) ([]int64, answer) {
		t.Helper()
		got := h.call("POST", "/events/batch", `{"events":[`+events+`]}`)
		return decode[struct{ IDs []int64 }](got).IDs, got
	}
	ids, got := post(`{"event":{"n":1},"key":"k1"},{"event":{"n":2},"key":"k2"}`)
	if got.want(201).header.Get("Idempotency-Replayed") != "" {
		t.Error("the first batch was reported as deduplicated")
	}
	again, got := post(`{"event":{"n":2},"key":"k2"},{"event":{"n":1},"key":"k1"}`)
	if got.want(200).header.Get("Idempotency-Replayed") != "true" || again[0] != ids[1] || again[1] != ids[0] {
		t.Errorf("a repeated batch returned %v, replayed %q; the first returned %v", again, got.header.Get("Idempotency-Replayed"), ids)
	}
	mixed, got := post(`{"event":{"n":3}},{"event":{"n":2},"key":"k2"},{"event":{"n":4},"key":"k4"},{"event":{"n":4},"key":"k4"}`)
	if got.want(201).header.Get("Idempotency-Replayed") != "" || mixed[1] != ids[1] || mixed[2] != mixed[3] || mixed[0] == mixed[2] {
		t.Errorf("a batch of old and new keys returned %v, replayed %q", mixed, got.header.Get("Idempotency-Replayed"))
	}
	if n := h.count("select count(*) from agent.event"); n != 4 {
		t.Errorf("there are %d events, want 4", n)
	}
	if string(h.get(mixed[0]).Event) != `{"n":3}` || string(h.get(mixed[2]).Event) != `{"n":4}` {
		t.Error("the ids are not in the order of the events")
	}
}

// endWaits returns how many requests wait for the end of an event.
func (h *environment) endWaits() (n int64) {
	for _, at := range h.all() {
		n += at.svc.EndWaits()
	}
	return n
}

// awaitEndWait waits until a request waits for the end of an event.
func (h *environment) awaitEndWait() {
	h.t.Helper()
	for deadline := time.Now().Add(time.Minute); h.endWaits() == 0; <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			h.t.Fatal("no request waits for the end of an event")
		}
	}
}

func TestGetWithWaitIsAnsweredWhenTheEventHasEnded(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.insert(`{}`)
	claimed := decode[seenPage](h.call("POST", "/claim", `{}`).want(200)).Events[0]
	path := fmt.Sprintf("/events/%d", claimed.ID)

	early := h.call("GET", path+"?wait=20ms", "").want(200)
	if !strings.Contains(early.body, `"state":"leased"`) || strings.Contains(early.body, `"outcome"`) {
		t.Errorf("got %s before the end", early.body)
	}
	answers := make(chan answer, 1)
	began := time.Now()
	go func() { answers <- h.call("GET", path+"?wait=60s", "") }()
	h.awaitEndWait()
	if got := h.call("GET", "/metrics", "").body; !strings.Contains(got, "\nqueued_event_waits 1\n") {
		t.Error("the metrics do not have the request that waits")
	}
	h.call("POST", path+"/ack", `{"receipt":"`+claimed.Receipt+`","result":{"pages":3}}`).want(200)
	got := (<-answers).want(200)
	if !strings.Contains(got.body, `"outcome":"done"`) || !strings.Contains(got.body, `"result":{"pages":3}`) || time.Since(began) > 30*time.Second {
		t.Errorf("after %s got %s", time.Since(began), got.body)
	}

	h.call("GET", "/events/4711?wait=60s", "").wantProblem(problem.EventNotFound)
	for _, wait := range []string{"61s", "-1s"} {
		h.call("GET", path+"?wait="+wait, "").wantProblem(problem.InvalidParameter)
	}
	id := h.insert(`{}`)
	go func() { answers <- h.call("GET", fmt.Sprintf("/events/%d?wait=60s", id), "") }()
	h.awaitEndWait()
	h.svc.Drain()
	if got := (<-answers).want(200); !strings.Contains(got.body, `"state":"ready"`) {
		t.Errorf("the drain answered %s", got.body)
	}
}

func TestVTLongAgoIsRefusedOfItsEvent(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.call("POST", "/events?vt=1970-01-01T00:00:00Z", `{}`).want(201)
	for path, want := range map[string][2]string{
		"/events?vt=0001-01-01T00:00:00Z": {`{}`, "?vt"},
		"/events/batch":                   {`{"events":[{"event":{}},{"event":{},"vt":"0001-01-01T00:00:00Z"}]}`, "#/events/1/vt"},
	} {
		got := h.call("POST", path, want[0]).wantProblem(problem.ValidationFailed)
		if len(got.Errors) != 1 || got.Errors[0].Pointer != want[1] {
			t.Errorf("%s: got %+v", path, got)
		}
	}
}
