package http

import (
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/queued/queued/internal/cell"
	"github.com/queued/queued/internal/http/problem"
)

func TestGroupsAreLimitedByThePolicyOfTheirQueue(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.placeOn(0, "q")
	put := h.call("PUT", "/queues/q", `{"flow":{"concurrency":1,"total":null}}`).want(200).body
	if got := h.call("GET", "/queues/q", "").want(200).body; !strings.Contains(put, `"flow":{"concurrency":1,"total":null,"order":false,"on_failed":null,"rate":null,"fair":false}`) || !strings.HasPrefix(got, strings.TrimSuffix(put, "}")) {
		t.Errorf("put %s, got %s", put, got)
	}
	h.call("POST", "/events?queue=q&group=ada", `{"n":1}`).want(201)
	h.call("POST", "/events/batch", `{"events":[{"queue":"q","group":"ada","event":{"n":2}},{"queue":"q","group":"bob","event":{"n":3}},{"queue":"q","event":{"n":4}}]}`).want(201)
	claim := func() string {
		var got []string
		for _, e := range decode[seenPage](h.call("POST", "/claim", `{"queue":"q","limit":10}`).want(200)).Events {
			got = append(got, e.Group+decode[struct{ N json.Number }](answer{t: t, body: string(e.Event)}).N.String())
		}
		return strings.Join(got, " ")
	}
	if got := claim(); got != "ada1 bob3 4" {
		t.Errorf("claimed %s", got)
	}
	if waiting := decode[seenPage](h.call("GET", "/events?queue=q&state=waiting", "").want(200)).Events; len(waiting) != 1 || waiting[0].State != "waiting" || waiting[0].Group != "ada" {
		t.Errorf("waiting are %+v", waiting)
	}
	h.call("DELETE", "/events/1", "").want(204)
	if got := claim(); got != "ada2" {
		t.Errorf("after an ack, claimed %s", got)
	}
	if e := decode[seenEvent](h.call("GET", "/events/1", "").want(200)); e.Group != "ada" || e.Outcome != "done" {
		t.Errorf("history has %+v", e)
	}
	h.try("PUT", "/queues/q", `{"flow":{"total":0}}`).wantProblem(problem.ValidationFailed)
	h.try("PUT", "/queues/q", `{"flow":{"rates":1}}`).wantProblem(problem.ValidationFailed)
	h.call("POST", "/events/batch", `{"events":[{"group":"`+strings.Repeat("é", 200)+`","event":{}}]}`).wantProblem(problem.ValidationFailed)
}

// A seenGroup is a group in a response.
type seenGroup struct {
	Group                                string
	Concurrency                          *int
	Paused                               bool
	HeldUntil                            *time.Time `json:"held_until"`
	Waiting, Admitted, Leased, Scheduled int
	BlockedBy                            *struct {
		Reason  string
		Limit   int
		Until   *time.Time
		EventID int64 `json:"event_id"`
	} `json:"blocked_by"`
	Version *int64
}

type seenGroups struct {
	Groups []seenGroup
	Next   *string
}

func TestAGroupIsPausedHeldAndLimitedByItself(t *testing.T) {
	t.Parallel()
	h := setup(t)
	for range 3 {
		h.call("POST", "/events?queue=q&group=ada", `{}`).want(201)
	}
	claim := func() int {
		return len(decode[seenPage](h.call("POST", "/claim", `{"queue":"q","limit":10}`).want(200)).Events)
	}
	const path = "/queues/q/groups/ada"
	if etag := h.call("GET", path, "").want(200).header.Get("ETag"); etag != "" {
		t.Errorf("with nothing set, the version is %s", etag)
	}
	paused := h.with("If-None-Match", "*").call("PUT", path, `{"paused":true}`).want(200)
	g := decode[seenGroup](paused)
	if g.Group != "ada" || !g.Paused || g.Waiting != 3 || g.BlockedBy == nil || g.BlockedBy.Reason != "paused" || g.Version == nil || paused.header.Get("ETag") != `"`+strconv.FormatInt(*g.Version, 10)+`"` {
		t.Errorf("paused %s", paused.body)
	}
	if n := claim(); n != 0 {
		t.Errorf("of a paused group %d were claimed", n)
	}
	h.with("If-None-Match", "*").call("PUT", path, `{}`).wantProblem(problem.PreconditionFailed)
	h.with("If-Match", `"1"`).call("PUT", path, `{}`).wantProblem(problem.PreconditionFailed)
	h.with("If-Match", `"1"`).call("DELETE", path, "").wantProblem(problem.PreconditionFailed)
	h.with("If-Match", `*`).call("DELETE", "/queues/q/groups/none", "").want(204)
	held := decode[seenGroup](h.with("If-Match", paused.header.Get("ETag")).call("PUT", path, `{"hold":"1h","concurrency":null}`).want(200))
	if held.HeldUntil == nil || held.BlockedBy == nil || held.BlockedBy.Reason != "hold" || !held.BlockedBy.Until.Equal(*held.HeldUntil) || held.Paused {
		t.Errorf("held %+v", held)
	}
	until := decode[seenGroup](h.call("PUT", path, `{"held_until":"2100-01-01T00:00:00Z"}`).want(200))
	if until.HeldUntil == nil || until.HeldUntil.Year() != 2100 {
		t.Errorf("held %+v", until)
	}
	h.with("If-Match", "*").call("PUT", path, `{"concurrency":2}`).want(200)
	if n := claim(); n != 2 {
		t.Errorf("of a group limited to 2, %d were claimed", n)
	}
	if g := decode[seenGroup](h.call("GET", path, "").want(200)); g.Leased != 2 || g.Waiting != 1 || g.BlockedBy == nil || g.BlockedBy.Reason != "concurrency" || g.BlockedBy.Limit != 2 {
		t.Errorf("full %+v", g)
	}
	h.call("DELETE", path, "").want(204)
	if n := claim(); n != 1 {
		t.Errorf("without a limit, %d were claimed", n)
	}
	h.call("DELETE", path, "").want(204)

	for body, want := range map[string]problem.Type{
		`{"concurrency":0}`:     problem.ValidationFailed,
		`{"concurrency":10001}`: problem.ValidationFailed,
		`{"rates":1}`:           problem.ValidationFailed,
		`{"rate":{"limit":1}}`:  problem.ValidationFailed,
		`{"hold":"-1s"}`:        problem.ValidationFailed,
		`{"hold":"30"}`:         problem.ValidationFailed,
		`{"held_until":"noon"}`: problem.ValidationFailed,
		`{"paused":"yes"}`:      problem.ValidationFailed,
		`[]`:                    problem.ValidationFailed,
		`{"hold":"1s","held_until":"2100-01-01T00:00:00Z"}`: problem.ValidationFailed,
	} {
		h.try("PUT", path, body).wantProblem(want)
	}
	h.try("PUT", "/queues/queued.x/groups/a", `{}`).wantProblem(problem.InvalidParameter)
	long := strings.Repeat("%C3%A9", 128)
	for _, method := range []string{"GET", "PUT", "DELETE"} {
		h.try(method, "/queues/q/groups/"+long, "").wantProblem(problem.InvalidParameter)
		h.try(method, "/queues/q/groups/a%00b", "").wantProblem(problem.InvalidParameter)
		h.try(method, "/queues/q/groups/a%FFb", "").wantProblem(problem.InvalidParameter)
	}
}

func TestGroupsHaveWhateverNameAURLCanCarry(t *testing.T) {
	t.Parallel()
	h := setup(t)
	for i, name := range []string{"a/b", "a b", "..", ".", "a%2Fb", "é/𝄞", `"?#&=+;`, "a\nb\x01", "A", "a"} {
		h.try("POST", "/events?queue=q&group="+url.QueryEscape(name), `{}`).want(201)
		path := "/queues/q/groups/" + strings.ReplaceAll(url.PathEscape(name), ".", "%2E")
		g := decode[seenGroup](h.try("PUT", path, `{"concurrency":`+strconv.Itoa(i+1)+`}`).want(200))
		if g.Group != name || g.Waiting+g.Admitted != 1 {
			t.Errorf("%q: set %+v", name, g)
		}
	}
	listed := decode[seenGroups](h.call("GET", "/queues/q/groups", "").want(200))
	if len(listed.Groups) != 10 {
		t.Errorf("listed are %+v", listed)
	}
	for _, g := range listed.Groups {
		path := "/queues/q/groups/" + strings.ReplaceAll(url.PathEscape(g.Group), ".", "%2E")
		if got := decode[seenGroup](h.try("GET", path, "").want(200)); got.Concurrency == nil || *got.Concurrency != *g.Concurrency {
			t.Errorf("%q: got %+v, listed %+v", g.Group, got, g)
		}
		h.try("DELETE", path, "").want(204)
	}
}

func TestGroupsOfAQueueAreListed(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.call("PUT", "/queues/q", `{"flow":{"concurrency":1}}`).want(200)
	for _, group := range []string{"b", "b", "a", "c", "c", "c", "d"} {
		h.call("POST", "/events?queue=q&group="+group, `{}`).want(201)
	}
	h.call("POST", "/events?queue=q&group=d&delay=1h", `{}`).want(201)
	h.call("POST", "/claim", `{"queue":"q","limit":10}`).want(200)
	list := func(query string) (names string) {
		for cursor, pages := "", 0; pages < 10; pages++ {
			page := decode[seenGroups](h.call("GET", "/queues/q/groups?"+query+cursor, "").want(200))
			for _, g := range page.Groups {
				names += g.Group
			}
			if page.Next == nil {
				return names
			}
			names += " "
			cursor = "&cursor=" + url.QueryEscape(*page.Next)
		}
		return names
	}
	for query, want := range map[string]string{
		"limit=3":                            "abc d",
		"state=blocked&limit=1":              "b c",
		"sort=waiting":                       "cbad",
		"sort=waiting&state=blocked&limit=1": "c",
	} {
		if got := list(query); got != want {
			t.Errorf("%s: listed %q, want %q", query, got, want)
		}
	}
	cursor := url.QueryEscape(*decode[seenGroups](h.call("GET", "/queues/q/groups?limit=2", "").want(200)).Next)
	after := decode[seenGroups](h.call("GET", "/queues/q/groups?cursor="+cursor, "").want(200))
	if len(after.Groups) != 2 || after.Groups[0].Group != "c" {
		t.Fatalf("after the second are %+v", after)
	}
	if d := after.Groups[1]; d.Leased != 1 || d.Scheduled != 1 || d.BlockedBy != nil {
		t.Errorf("d is %+v", d)
	}
	h.try("GET", "/queues/q/groups?state=ready", "").wantProblem(problem.InvalidParameter)
	h.try("GET", "/queues/q/groups?sort=name", "").wantProblem(problem.InvalidParameter)
	h.try("GET", "/queues/q/groups?limit=0", "").wantProblem(problem.InvalidParameter)
	h.try("GET", "/queues/q/groups?cursor=x", "").wantProblem(problem.InvalidCursor)
	h.try("GET", "/queues/q/groups?sort=waiting&cursor="+cursor, "").wantProblem(problem.InvalidParameter)
}

func TestWaitingClaimsGetWhatASettingLetsThrough(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.call("PUT", "/queues/q/groups/ada", `{"paused":true}`).want(200)
	h.call("POST", "/events?queue=q&group=ada", `{}`).want(201)
	claim := h.waiting(`{"queue":"q","wait":"60s"}`)
	h.call("DELETE", "/queues/q/groups/ada", "").want(204)
	if events := decode[seenPage](<-claim).Events; len(events) != 1 {
		t.Errorf("the claim that waited got %+v", events)
	}
}

func TestGroupsInOrderTakeNoDelayAndStopWhereThePolicySaysSo(t *testing.T) {
	t.Parallel()
	h := setup(t)
	if put := h.call("PUT", "/queues/q", `{"max_attempts":1,"flow":{"order":true}}`).want(200).body; !strings.Contains(put, `"flow":{"concurrency":null,"total":null,"order":true,"on_failed":"continue","rate":null,"fair":false}`) {
		t.Errorf("put %s", put)
	}
	h.call("PUT", "/queues/q", `{"max_attempts":1,"flow":{"order":true,"on_failed":"block"}}`).want(200)
	for _, query := range []string{"delay=1s", "vt=2100-01-01T00:00:00Z"} {
		if refused := fmt.Sprint(h.call("POST", "/events?queue=q&group=ada&"+query, `{}`).wantProblem(problem.ValidationFailed)); !strings.Contains(refused, "keeps the order of groups") {
			t.Errorf("%s: %s", query, refused)
		}
	}
	h.call("POST", "/events?queue=q&delay=1h", `{}`).want(201)
	for _, n := range []string{"1", "2"} {
		h.call("POST", "/events?queue=q&group=ada&delay=0s&priority=-"+n, `{"n":`+n+`}`).want(201)
	}
	claim := func() []seenEvent {
		return decode[seenPage](h.call("POST", "/claim", `{"queue":"q","limit":10}`).want(200)).Events
	}
	first := claim()
	if len(first) != 1 || string(first[0].Event) != `{"n":1}` {
		t.Fatalf("claimed %+v", first)
	}
	h.call("POST", "/events/"+strconv.FormatInt(first[0].ID, 10)+"/nack", `{"receipt":"`+first[0].Receipt+`"}`).want(200)
	if next := claim(); len(next) != 0 {
		t.Errorf("behind the failed event, claimed %+v", next)
	}
	h.call("POST", "/history/"+strconv.FormatInt(first[0].ID, 10)+"/requeue", "").want(201)
	if next := claim(); len(next) != 1 || string(next[0].Event) != `{"n":1}` {
		t.Errorf("with the failed event requeued, claimed %+v", next)
	}
	h.call("DELETE", "/events/4", "").want(204)
	last := claim()
	if len(last) != 1 || string(last[0].Event) != `{"n":2}` {
		t.Fatalf("behind the copy, claimed %+v", last)
	}
	h.call("POST", "/events?queue=q&group=ada", `{"n":3}`).want(201)
	h.call("POST", "/events/"+strconv.FormatInt(last[0].ID, 10)+"/nack", `{"receipt":"`+last[0].Receipt+`"}`).want(200)
	if b := decode[seenGroup](h.call("GET", "/queues/q/groups/ada", "").want(200)).BlockedBy; b == nil || b.Reason != "order" || b.EventID != last[0].ID {
		t.Errorf("blocked by %+v", b)
	}
	waits := h.waiting(`{"queue":"q","wait":"60s"}`)
	for _, want := range []string{`{"unblocked":true}`, `{"unblocked":false}`} {
		if got := h.call("POST", "/queues/q/groups/ada/unblock", "").want(200).body; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if events := decode[seenPage](<-waits).Events; len(events) != 1 || string(events[0].Event) != `{"n":3}` {
		t.Errorf("unblocked, the claim that waited got %+v", events)
	}
	h.try("POST", "/queues/q/groups/"+strings.Repeat("a", 256)+"/unblock", "").wantProblem(problem.InvalidParameter)
	for _, flow := range []string{`{"on_failed":"block"}`, `{"order":true,"on_failed":"wait"}`, `{"order":1}`} {
		h.try("PUT", "/queues/q", `{"flow":`+flow+`}`).wantProblem(problem.ValidationFailed)
	}
	h.try("PUT", "/queues/q", `{"delay":"1s","flow":{"order":true}}`).wantProblem(problem.ValidationFailed)
}

func TestNackTakesAHoldOfItsGroup(t *testing.T) {
	t.Parallel()
	h := setup(t)
	for _, group := range []string{"ada", "ada", "bob"} {
		h.call("POST", "/events?queue=q&group="+group, `{}`).want(201)
	}
	e := h.claimOneBy(`{"queue":"q"}`)
	h.nack(e, `,"hold_group":"1h"`).want(200)
	if events := h.claim(`{"queue":"q","limit":10}`); len(events) != 1 || events[0].Group != "bob" {
		t.Errorf("while ada is held, claimed %+v", events)
	}
	if g := decode[seenGroup](h.call("GET", "/queues/q/groups/ada", "").want(200)); g.Waiting != 2 || g.BlockedBy == nil || g.BlockedBy.Reason != "hold" {
		t.Errorf("ada is %+v", g)
	}
	for _, hold := range []string{`"-1s"`, `"90000h"`, `30`} {
		h.try("POST", fmt.Sprintf("/events/%d/nack", e.ID), fmt.Sprintf(`{"receipt":%q,"hold_group":%s}`, e.Receipt, hold)).wantProblem(problem.ValidationFailed)
	}
}

func TestARateOfGroupsPutsOffWhatIsOverIt(t *testing.T) {
	t.Parallel()
	h := setup(t)
	if put := h.call("PUT", "/queues/q", `{"flow":{"rate":{"limit":6,"period":"1h","burst":2}}}`).want(200).body; !strings.Contains(put, `"rate":{"limit":6,"period":"1h0m0s","burst":2}`) {
		t.Errorf("put %s", put)
	}
	if got := h.call("GET", "/queues/q", "").want(200).body; !strings.Contains(got, `"rate":{"limit":6,"period":"1h0m0s","burst":2}`) {
		t.Errorf("got %s", got)
	}
	for range 4 {
		h.call("POST", "/events?queue=q&group=ada", `{}`).want(201)
	}
	h.call("POST", "/events?queue=q&group=bob", `{}`).want(201)
	claim := func() int {
		return len(decode[seenPage](h.call("POST", "/claim", `{"queue":"q","limit":10}`).want(200)).Events)
	}
	if n := claim(); n != 3 {
		t.Errorf("claimed %d, want two of ada and one of bob", n)
	}
	if n := claim(); n != 0 {
		t.Errorf("over the rate, claimed %d", n)
	}
	g := decode[seenGroup](h.call("GET", "/queues/q/groups/ada", "").want(200))
	if g.BlockedBy == nil || g.BlockedBy.Reason != "rate" || g.BlockedBy.Until == nil || time.Until(*g.BlockedBy.Until) > 11*time.Minute || time.Until(*g.BlockedBy.Until) < 5*time.Minute {
		t.Errorf("the group is blocked by %+v", g.BlockedBy)
	}
	if set := h.call("PUT", "/queues/q/groups/ada", `{"rate":{"limit":10000,"period":"10ms","burst":10000}}`).want(200).body; !strings.Contains(set, `"rate":{"limit":10000,"period":"10ms","burst":10000}`) {
		t.Errorf("set %s", set)
	}
	if n := claim(); n != 2 {
		t.Errorf("at a rate of its own, claimed %d", n)
	}
	for _, rate := range []string{`1`, `{"limit":1}`, `{"period":"1s"}`, `{"limit":0,"period":"1s"}`, `{"limit":1,"period":"1ms"}`, `{"limit":1,"period":"25h"}`, `{"limit":1,"period":"1s","burst":0}`, `{"limit":1,"period":"1s","per":1}`} {
		h.try("PUT", "/queues/q", `{"flow":{"rate":`+rate+`}}`).wantProblem(problem.ValidationFailed)
		h.try("PUT", "/queues/q/groups/ada", `{"rate":`+rate+`}`).wantProblem(problem.ValidationFailed)
	}
}

// A queue on all cells has each group on one of them, so that its limit is that of the whole queue.
func TestLimitsOfGroupsHoldForAQueueOnSeveralCells(t *testing.T) {
	t.Parallel()
	h := setup(t)
	if len(h.others) > 0 {
		if _, err := h.cells.Place(t.Context(), cell.PlaceParams{Queue: "wide", Cells: nil, IfAbsent: true}); err != nil {
			t.Fatal(err)
		}
	}
	h.call("PUT", "/queues/wide", `{"flow":{"concurrency":2}}`).want(200)
	const groups, each = 12, 5
	var batch []string
	for i := range groups * each {
		event := fmt.Sprintf(`{"queue":"wide","group":"g/%d","event":{"n":%d}}`, i%groups, i)
		if i%2 == 0 {
			batch = append(batch, event)
			continue
		}
		h.call("POST", fmt.Sprintf("/events?queue=wide&group=g%%2F%d", i%groups), `{}`).want(201)
	}
	h.try("POST", "/events/batch?atomic=false", `{"events":[`+strings.Join(batch, ",")+`]}`).want(200)
	h.try("PUT", "/queues/wide/groups/g%2F0", `{"paused":true}`).want(200)
	h.try("PUT", "/queues/wide/groups/g%2F1", `{"concurrency":4}`).want(200)
	leased := map[string]int{}
	for range 5 * (1 + len(h.others)) {
		for _, e := range h.claim(`{"queue":"wide","limit":1000}`) {
			leased[e.Group]++
		}
	}
	for i := range groups {
		group, want := fmt.Sprintf("g/%d", i), 2
		switch i {
		case 0:
			want = 0
		case 1:
			want = 4
		}
		if leased[group] != want {
			t.Errorf("of %s %d events are leased, want %d", group, leased[group], want)
		}
		g := decode[seenGroup](h.try("GET", fmt.Sprintf("/queues/wide/groups/g%%2F%d", i), "").want(200))
		if g.Leased != want || g.Waiting != each-want {
			t.Errorf("got %+v, want %d leased", g, want)
		}
	}
	var listed []string
	for cursor, pages := "", 0; pages == 0 || cursor != "" && pages < 10; pages++ {
		page := decode[seenGroups](h.call("GET", "/queues/wide/groups?state=blocked&limit=5"+cursor, "").want(200))
		for _, g := range page.Groups {
			listed = append(listed, g.Group)
		}
		cursor = ""
		if page.Next != nil {
			cursor = "&cursor=" + url.QueryEscape(*page.Next)
		}
	}
	if len(listed) != groups || !slices.IsSorted(listed) {
		t.Errorf("blocked are %q", listed)
	}
	if longest := decode[seenGroups](h.call("GET", "/queues/wide/groups?sort=waiting&limit=1", "").want(200)).Groups; len(longest) != 1 || longest[0].Group != "g/0" || longest[0].Waiting != each {
		t.Errorf("the longest line is %+v", longest)
	}
}

func TestEventsOfAGroupAreListed(t *testing.T) {
	t.Parallel()
	h := setup(t)
	for _, group := range []string{"a", "b", "a"} {
		h.call("POST", "/events?queue=mail&group="+group, `{}`).want(201)
	}
	h.call("POST", "/events?queue=other&group=a", `{}`).want(201)
	page := decode[struct {
		Events []struct{ Group, Queue string }
	}](h.call("GET", "/events?queue=mail&group=a", "").want(200))
	if len(page.Events) != 2 || page.Events[0].Group != "a" || page.Events[1].Queue != "mail" {
		t.Errorf("listed %+v", page)
	}
	if got := h.call("GET", "/events?group=a", "").want(400).body; !strings.Contains(got, `"pointer":"?group","detail":"must be given with queue, whose group it is"`) {
		t.Errorf("without a queue: %s", got)
	}
}

func TestOptionsOfGroupsThatAreRefusedAreNamedByTheirPlace(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.call("PUT", "/queues/ordered", `{"flow":{"order":true}}`).want(200)
	long := strings.Repeat("ä", 128)
	h.call("POST", "/events?queue=ordered&group=a&delay=5s", `{}`).wantPointer("?delay")
	h.call("POST", "/events?queue=ordered&group="+url.QueryEscape(long), `{}`).wantPointer("?group")
	for pointer, events := range map[string]string{
		"#/events/0/delay": `{"event":{},"queue":"ordered","group":"a","delay":"5s"}`,
		"#/events/2/vt":    `{"event":{}},{"event":{},"group":"a","delay":"5s"},{"event":{},"queue":"ordered","group":"a","vt":"2999-01-01T00:00:00Z"}`,
		"#/events/1/group": `{"event":{}},{"event":{},"group":"` + long + `"}`,
	} {
		h.call("POST", "/events/batch", `{"events":[`+events+`]}`).wantPointer(pointer)
	}
	events := h.with("Content-Type", structured)
	events.call("POST", "/cloudevents?queue=ordered&delay=5s", `{"specversion":"1.0","id":"1","source":"s","type":"t","partitionkey":"a","data":{}}`).wantPointer("?delay")
}

// wantPointer fails the test unless the answer refuses what is at the pointer.
func (a answer) wantPointer(pointer string) {
	a.t.Helper()
	if a.status != 400 && a.status != 422 || !strings.Contains(a.body, `"errors":[{"pointer":"`+pointer+`",`) {
		a.t.Errorf("got %d %s, want an error at %s", a.status, a.body, pointer)
	}
}

// A retry of a group that has come due is ready for everybody who looks, before anybody has claimed: so an alert on the oldest ready event comes, and an autoscaler starts a worker.
func TestRetryOfAGroupThatIsDueIsReady(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.placeOn(0, "work")
	h.call("PUT", "/queues/work", `{"flow":{"concurrency":1}}`).want(200)
	h.call("POST", "/events?queue=work&group=a", `{}`).want(201)
	h.call("POST", "/events?queue=work&group=a", `{}`).want(201)
	e := h.claimOneBy(`{"queue":"work"}`)
	h.call("PUT", "/queues/work/groups/a", `{"hold":"1h"}`).want(200)
	h.call("POST", fmt.Sprintf("/events/%d/nack", e.ID), fmt.Sprintf(`{"receipt":%q,"delay":"1h"}`, e.Receipt)).want(200)
	h.sql(`update agent.event set turn_vt = now() - interval '10 minutes' where flow = 4`)
	h.sql(`update agent_private.group_wake set at = now() - interval '10 minutes' where at > now()`)
	look := func(ready, waiting int, id, first string) {
		t.Helper()
		for path, wants := range map[string][]string{
			"/queues/work":                      {fmt.Sprintf(`"ready":%d,"scheduled":0,"waiting":%d,"leased":0`, ready, waiting)},
			"/queues":                           {fmt.Sprintf(`"ready":%d,"scheduled":0,"waiting":%d,"leased":0`, ready, waiting)},
			"/stats/queues":                     {fmt.Sprintf(`"ready":%d,"scheduled":0,"waiting":%d,"leased":0`, ready, waiting)},
			"/events/" + id:                     {`"state":"` + first + `"`},
			"/events?queue=work&state=" + first: {`"id":` + id + `,`},
			"/metrics":                          {fmt.Sprintf("\nqueued_events{queue=\"work\",state=\"ready\"} %d\n", ready), fmt.Sprintf("\nqueued_events{queue=\"work\",state=\"waiting\"} %d\n", waiting)},
		} {
			for _, want := range wants {
				if got := h.call("GET", path, "").want(200).body; !strings.Contains(got, want) {
					t.Errorf("GET %s does not have %s: %s", path, want, got)
				}
			}
		}
		aged := regexp.MustCompile(`\nqueued_oldest_ready_age_seconds\{queue="work"\} (\d+)`).FindStringSubmatch(h.call("GET", "/metrics", "").body)
		if age, err := strconv.Atoi(aged[1]); err != nil || (age >= 600) != (ready > 0) {
			t.Errorf("with %d ready the oldest is so for %v s", ready, aged[1])
		}
	}
	look(0, 2, "1", "waiting")
	h.call("DELETE", "/queues/work/groups/a", "").want(204)
	look(1, 1, "1", "ready")
	if got := h.claimOneBy(`{"queue":"work","wait":"20s"}`); got.ID != e.ID { // the service may be giving the group its turn just now
		t.Errorf("claimed %d, want %d", got.ID, e.ID)
	}
}
