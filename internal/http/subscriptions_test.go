package http

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queued/queued/internal/http/problem"
)

// provokeSubscriptions provokes every documented response about subscriptions.
func provokeSubscriptions(h *environment) {
	const filters = `{"filters":[{"name":"placed","topics":["order.placed"],"match":{"n":[{"numeric":[">=",1]}]}},{"topics":["user.**"],"expires_after":"1h"}],"start":"earliest","expires_after":"1h"}`
	for _, status := range []int{201, 200} {
		h.call("PUT", "/subscriptions/mailer", filters).want(status)
	}
	h.call("GET", "/subscriptions", "").want(200)
	h.call("GET", "/subscriptions/mailer", "").want(200)
	h.call("PUT", "/subscriptions/mailer/filters/large", `{"topics":["order.*"],"match":{"n":[1]},"expires_after":"1h"}`).want(200)
	h.call("DELETE", "/subscriptions/mailer/filters/large", "").want(204)
	h.call("DELETE", "/subscriptions/mailer/filters/large", "").wantProblem(problem.FilterNotFound)
	first := h.readSubscription("mailer", `{"limit":1}`)
	leased := h.readSubscription("mailer", `{"limit":1,"wait":"1s","lease":"1h"}`)
	if len(leased.Events) != 1 || leased.LeasedUntil == nil {
		h.t.Errorf("read under a lease: %+v", leased)
	}
	if held := h.readSubscription("mailer", ""); held.HeldUntil == nil || held.Cursor != "" {
		h.t.Errorf("read beside a lease: %+v", held)
	}
	h.call("POST", "/subscriptions/mailer/commit", `{"cursor":"`+first.Cursor+`"}`).wantProblem(problem.CursorLost)
	h.call("POST", "/subscriptions/mailer/read", `{"after":"`+first.Cursor+`"}`).wantProblem(problem.CursorLost)
	h.call("POST", "/subscriptions/mailer/commit", `{"cursor":"`+leased.Cursor+`"}`).want(200)
	h.call("POST", "/subscriptions/mailer/seek", `{"to":"earliest"}`).want(200)
	for _, verb := range []string{"pause", "resume"} {
		h.call("POST", "/subscriptions/mailer/"+verb, "").want(200)
	}
	h.call("PUT", "/subscriptions/mailer/filters/large", `{"match":{"n":[]}}`).wantProblem(problem.FilterRefused)
	const delivered = `{"filters":[{"topics":["user.**"]}],"deliver":{"queue":"users"}}`
	h.call("PUT", "/subscriptions/mailer", delivered).wantProblem(problem.WrongDelivery)
	h.call("POST", "/subscriptions/mailer/replay", `{"from":"earliest"}`).wantProblem(problem.WrongDelivery)
	h.call("PUT", "/subscriptions/users", delivered).want(201)
	h.call("POST", "/subscriptions/users/replay", `{"from":"earliest","to":"latest","dry_run":true}`).want(200)
	h.call("POST", "/subscriptions/users/read", "").wantProblem(problem.WrongDelivery)
	h.with("If-Match", `"99"`).call("PUT", "/subscriptions/mailer", filters).wantProblem(problem.PreconditionFailed)
	h.with("If-Match", `"99"`).call("DELETE", "/subscriptions/mailer", "").wantProblem(problem.PreconditionFailed)
	h.with("If-Match", `*`).call("DELETE", "/subscriptions/mailer", "").want(204)
	for _, call := range [][3]string{
		{"GET", "", ""},
		{"DELETE", "", ""},
		{"PUT", "/filters/large", "{}"},
		{"DELETE", "/filters/large", ""},
		{"POST", "/read", ""},
		{"POST", "/seek", `{"to":"latest"}`},
		{"POST", "/replay", `{"from":"latest"}`},
		{"POST", "/pause", ""},
		{"POST", "/resume", ""},
	} {
		h.call(call[0], "/subscriptions/mail"+call[1], call[2]).wantProblem(problem.SubscriptionNotFound)
	}
	h.call("POST", "/subscriptions/mail/commit", `{"cursor":"AAcBAgOBgICAEBckJ9AG-Q"}`).wantProblem(problem.SubscriptionNotFound)
}

// seenSubscribed is a page of a subscription.
type seenSubscribed struct {
	Events []struct {
		Position int64    `json:"position"`
		Topic    string   `json:"topic"`
		Matched  []string `json:"matched"`
	} `json:"events"`
	Cursor string `json:"cursor"`
	Lag    struct {
		Events int64 `json:"events"`
	} `json:"lag"`
	LeasedUntil *time.Time `json:"leased_until"`
	HeldUntil   *time.Time `json:"held_until"`
	Paused      bool       `json:"paused"`
}

// seenSubscription is a subscription in a response.
type seenSubscription struct {
	Name     string `json:"name"`
	State    string `json:"state"`
	Position int64  `json:"position"`
	Start    int64  `json:"start"`
	Version  int64  `json:"version"`
	Filters  []struct {
		Name      string     `json:"name"`
		ExpiresAt *time.Time `json:"expires_at"`
	} `json:"filters"`
}

// topics are those of the events of a page, each with its filters, in order.
func (p seenSubscribed) topics() string {
	var all []string
	for _, e := range p.Events {
		all = append(all, e.Topic+":"+strings.Join(e.Matched, ","))
	}
	return strings.Join(all, " ")
}

func (h *environment) readSubscription(name, body string) seenSubscribed {
	h.t.Helper()
	return decode[seenSubscribed](h.call("POST", "/subscriptions/"+name+"/read", body).want(http.StatusOK))
}

func TestSubscriptionIsReadByItsFiltersUntilItIsCommitted(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.call("POST", "/topics/order.placed", `{"total":1}`).want(http.StatusCreated)
	put := h.call("PUT", "/subscriptions/s", `{"filters":[{"topics":["order.*"]},{"name":"large","match":{"total":[{"numeric":[">=",100]}]}}]}`).want(http.StatusCreated)
	if got := put.header.Get("Location"); got != "/subscriptions/s" {
		t.Errorf("it is at %s", got)
	}
	h.call("POST", "/publish", `{"events":[{"topic":"order.placed","event":{"total":10}},{"topic":"user.added","event":{}},{"topic":"user.paid","event":{"total":200}},
		{"topic":"x","event":{},"subscription":"s"},{"topic":"order.paid","event":{"total":300}},{"topic":"order.paid","event":{},"subscription":"other"}]}`).want(http.StatusCreated)
	page := h.readSubscription("s", "")
	if got, want := page.topics(), "order.placed:filter-1 user.paid:large x: order.paid:filter-1,large"; got != want {
		t.Errorf("read %q, want %q", got, want)
	}
	body := h.call("POST", "/subscriptions/s/commit", fmt.Sprintf(`{"cursor":%q}`, page.Cursor)).want(http.StatusOK).body
	sub := decode[seenSubscription](h.call("GET", "/subscriptions/s", "").want(http.StatusOK))
	if body != fmt.Sprintf(`{"position":%d}`, sub.Position) || sub.State != "active" {
		t.Errorf("committed %s, the subscription is %+v", body, sub)
	}
	if again := h.readSubscription("s", ""); len(again.Events) != 0 {
		t.Errorf("read %+v again", again)
	}
}

func TestSubscriptionStartsWhereItIsTold(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.call("POST", "/topics/a", `{}`).want(http.StatusCreated)
	first := h.readLog("").Events[0].Position
	for i, test := range []struct{ start, want string }{
		{`"earliest"`, "a: "},
		{`"latest"`, ""},
		{`0`, "a: "},
		{fmt.Sprint(first), ""},
		{fmt.Sprint(first - 1), "a: "},
		{`"2020-01-01T00:00:00Z"`, "a: "},
		{`"2020-01-01T00:00:00+02:00"`, "a: "},
		{`"2100-01-01T00:00:00Z"`, ""},
	} {
		name := fmt.Sprint("s", i)
		h.call("PUT", "/subscriptions/"+name, `{"filters":[{"name":"f"}],"start":`+test.start+`}`).want(http.StatusCreated)
		if got := h.readSubscription(name, "").topics(); (got == "") != (test.want == "") {
			t.Errorf("started at %s: read %q, want %q", test.start, got, test.want)
		}
		h.call("POST", "/subscriptions/s0/seek", `{"to":`+test.start+`}`).want(http.StatusOK)
		if got := h.readSubscription("s0", "").topics(); (got == "") != (test.want == "") {
			t.Errorf("sought %s: read %q, want %q", test.start, got, test.want)
		}
	}
}

func TestSubscriptionIsChangedAtItsVersionOnly(t *testing.T) {
	t.Parallel()
	h := setup(t)
	tag := h.call("PUT", "/subscriptions/s", `{"filters":[]}`).want(http.StatusCreated).header.Get("Etag")
	if tag != `"1"` {
		t.Errorf("the tag is %s", tag)
	}
	h.call("PUT", "/subscriptions/s/filters/f", `{"topics":["a"]}`).want(http.StatusOK)
	got := h.call("GET", "/subscriptions/s", "").want(http.StatusOK)
	if now := got.header.Get("Etag"); now != `"2"` || len(decode[seenSubscription](got).Filters) != 1 {
		t.Errorf("after a filter was put: %s %s", now, got.body)
	}
	h.with("If-Match", tag).call("PUT", "/subscriptions/s", `{"filters":[]}`).wantProblem(problem.PreconditionFailed)
	h.with("If-Match", tag).call("DELETE", "/subscriptions/s", "").wantProblem(problem.PreconditionFailed)
	h.with("If-Match", "*").call("PUT", "/subscriptions/new", `{"filters":[]}`).wantProblem(problem.PreconditionFailed)
	h.with("If-Match", `"2"`).call("PUT", "/subscriptions/s", `{"filters":[]}`).want(http.StatusOK)
}

func TestRefusedSubscriptionsPointToEachMistake(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.call("PUT", "/subscriptions/s", `{"filters":[{"name":"f","topics":["a"]}]}`).want(http.StatusCreated)
	before := h.call("GET", "/subscriptions/s", "").body
	good := `{"topics":["a"]}`
	for _, test := range []struct {
		method, path, body string
		want               problem.Type
		pointers           string
	}{
		{"PUT", "", `{}`, problem.ValidationFailed, "#/filters"},
		{"PUT", "", `{"filters":null}`, problem.ValidationFailed, "#/filters"},
		{"PUT", "", `{"filters":{}}`, problem.ValidationFailed, "#/filters"},
		{"PUT", "", `{"filters":[1]}`, problem.ValidationFailed, "#/filters/0"},
		{"PUT", "", `{"filters":[{"nonsense":1}]}`, problem.ValidationFailed, "#/filters/0/nonsense"},
		{"PUT", "", `{"filters":[{"name":"a b"}]}`, problem.ValidationFailed, "#/filters/0/name"},
		{"PUT", "", `{"filters":[{"name":"x"},{"name":"x"}]}`, problem.ValidationFailed, "#/filters/1/name"},
		{"PUT", "", `{"filters":[{"name":"filter-2"},{}]}`, problem.ValidationFailed, "#/filters/1/name"},
		{"PUT", "", `{"filters":[{"topics":[]}]}`, problem.ValidationFailed, "#/filters/0/topics"},
		{"PUT", "", `{"filters":[{"topics":"a"}]}`, problem.ValidationFailed, "#/filters/0/topics"},
		{"PUT", "", `{"filters":[` + good + `,{"topics":["a","**.b"]}]}`, problem.FilterRefused, "#/filters/1/topics/1"},
		{"PUT", "", `{"filters":[{"match":{"a":[{"prefx":"b"}]}},{"match":{"a":{"b":[]}}},{"match":{"a":[1]},"topics":[""]}]}`, problem.FilterRefused, "#/filters/0/match/a/0/prefx #/filters/1/match/a/b #/filters/2/topics/0"},
		{"PUT", "", `{"filters":[{"match":{}}]}`, problem.FilterRefused, "#/filters/0/match"},
		{"PUT", "", `{"filters":[{"match":[]}]}`, problem.ValidationFailed, "#/filters/0/match"},
		{"PUT", "", `{"filters":[{"match":{"a":["\u0000"]}}]}`, problem.Unrepresentable, "#/filters/0/match/a/0"},
		{"PUT", "", `{"filters":[{"match":{"a":["` + strings.Repeat("x", 64<<10) + `"]}}]}`, problem.FilterRefused, "#/filters/0"},
		{"PUT", "", `{"filters":[{"expires_after":"0s"}]}`, problem.ValidationFailed, "#/filters/0/expires_after"},
		{"PUT", "", `{"filters":[` + good + strings.Repeat(","+good, 1000) + `]}`, problem.BatchTooLarge, "#/filters"},
		{"PUT", "", `{"filters":[],"start":-1}`, problem.ValidationFailed, "#/start"},
		{"PUT", "", `{"filters":[],"start":1.5}`, problem.ValidationFailed, "#/start"},
		{"PUT", "", `{"filters":[],"start":null}`, problem.ValidationFailed, "#/start"},
		{"PUT", "", `{"filters":[],"start":[]}`, problem.ValidationFailed, "#/start"},
		{"PUT", "", `{"filters":[],"start":"first"}`, problem.ValidationFailed, "#/start"},
		{"PUT", "", `{"filters":[],"start":"2026-01-01"}`, problem.ValidationFailed, "#/start"},
		{"PUT", "", `{"filters":[],"start":9007199254740991}`, problem.ValidationFailed, "#/start"},
		{"PUT", "", `{"filters":[],"start":9223372036854775807}`, problem.ValidationFailed, "#/start"},
		{"PUT", "", `{"filters":[],"start":9223372036854775808}`, problem.ValidationFailed, "#/start"},
		{"PUT", "", `{"filters":[],"max_waiting":0}`, problem.ValidationFailed, "#/max_waiting"},
		{"PUT", "", `{"filters":[],"expires_after":"1ms"}`, problem.ValidationFailed, "#/expires_after"},
		{"PUT", "", `{"filters":[],"expires_after":15}`, problem.ValidationFailed, "#/expires_after"},
		{"PUT", "", `{"filters":[],"deliver":{"queue":"mail"}}`, problem.WrongDelivery, ""}, // it is read by cursor
		{"PUT", "", `{"filters":[],"deliver":{}}`, problem.ValidationFailed, "#/deliver/queue"},
		{"PUT", "", `{"filters":[],"deliver":"mail"}`, problem.ValidationFailed, "#/deliver"},
		{"PUT", "", `{"filters":[],"deliver":{"queue":"a b"}}`, problem.ValidationFailed, "#/deliver/queue"},
		{"PUT", "", `{"filters":[],"deliver":{"queue":"queued.publish"}}`, problem.ValidationFailed, "#/deliver/queue"},
		{"PUT", "", `{"filters":[],"deliver":{"queue":"q","type":""}}`, problem.ValidationFailed, "#/deliver/type"},
		{"PUT", "", `{"filters":[],"deliver":{"queue":"q","priority":2147483648}}`, problem.ValidationFailed, "#/deliver/priority"},
		{"PUT", "", `{"filters":[],"deliver":{"queue":"q","retries":3}}`, problem.ValidationFailed, "#/deliver/retries"},
		{"PUT", "", `{"filters":[],"deliver":null}`, problem.ValidationFailed, "#/deliver"},
		{"PUT", "/filters/x", `{"match":{"a":[{"prefx":"b"}]}}`, problem.FilterRefused, "#/match/a/0/prefx"},
		{"PUT", "/filters/x", `{"name":"x"}`, problem.ValidationFailed, "#/name"},
		{"PUT", "/filters/a%20b", `{}`, problem.InvalidParameter, "{filter}"},
		{"POST", "/read", `{"limit":0}`, problem.ValidationFailed, "#/limit"},
		{"POST", "/read", `{"limit":1001}`, problem.ValidationFailed, "#/limit"},
		{"POST", "/read", `{"wait":"61s"}`, problem.ValidationFailed, "#/wait"},
		{"POST", "/read", `{"lease":"0s"}`, problem.ValidationFailed, "#/lease"},
		{"POST", "/read", `{"lease":"25h"}`, problem.ValidationFailed, "#/lease"},
		{"POST", "/read", `{"after":""}`, problem.ValidationFailed, "#/after"},
		{"POST", "/read", `{"after":"x"}`, problem.ValidationFailed, "#/after"},
		{"POST", "/read", `{"after":"` + strings.Repeat("A", 1025) + `"}`, problem.ValidationFailed, "#/after"},
		{"POST", "/commit", `{}`, problem.ValidationFailed, "#/cursor"},
		{"POST", "/commit", `{"cursor":7}`, problem.ValidationFailed, "#/cursor"},
		{"POST", "/commit", `{"cursor":"x"}`, problem.ValidationFailed, "#/cursor"},
		{"POST", "/commit", `{"cursor":"AAcBAgOBgICAEBckJ9AG-Q"}`, problem.ValidationFailed, "#/cursor"}, // of another one
		{"POST", "/commit", `{"cursor":"AAcBAgOBgICAECsQ61pJyg"}`, problem.CursorLost, ""},
		{"POST", "/replay", `{"from":"earliest"}`, problem.WrongDelivery, ""},
		{"POST", "/replay", `{}`, problem.ValidationFailed, "#/from"},
		{"POST", "/replay", `{"from":-1}`, problem.ValidationFailed, "#/from"},
		{"POST", "/replay", `{"from":1,"to":0}`, problem.ValidationFailed, "#/to"},
		{"POST", "/replay", `{"from":0,"dry_run":"yes"}`, problem.ValidationFailed, "#/dry_run"},
		{"POST", "/seek", `{}`, problem.ValidationFailed, "#/to"},
		{"POST", "/seek", `{"to":null}`, problem.ValidationFailed, "#/to"},
		{"POST", "/seek", `{"to":"yesterday"}`, problem.ValidationFailed, "#/to"},
		{"POST", "/seek", `{"to":9007199254740992}`, problem.ValidationFailed, "#/to"},
	} {
		got := h.try(test.method, "/subscriptions/s"+test.path, test.body).wantProblem(test.want)
		var pointers []string
		for _, e := range got.Errors {
			pointers = append(pointers, e.Pointer)
		}
		if strings.Join(pointers, " ") != test.pointers {
			t.Errorf("%s %s %.200s: %q, want %s", test.method, test.path, test.body, pointers, test.pointers)
		}
	}
	if after := h.call("GET", "/subscriptions/s", "").body; after != before {
		t.Errorf("it has become %s", after)
	}
	for _, path := range []string{"/subscriptions/a%20b", "/subscriptions/" + strings.Repeat("a", 129), "/subscriptions/%00"} {
		h.try("GET", path, "").wantProblem(problem.InvalidParameter)
	}
}

func TestSubscriptionsArePaged(t *testing.T) {
	t.Parallel()
	h := setup(t)
	for _, name := range []string{"c", "a", "b"} {
		h.call("PUT", "/subscriptions/"+name, `{"filters":[{}]}`).want(http.StatusCreated)
	}
	type listing struct {
		Subscriptions []seenSubscription `json:"subscriptions"`
		Next          *string            `json:"next"`
	}
	first := decode[listing](h.call("GET", "/subscriptions?limit=2", "").want(http.StatusOK))
	last := decode[listing](h.call("GET", "/subscriptions?limit=2&cursor="+*first.Next, "").want(http.StatusOK))
	var names []string
	for _, s := range slices.Concat(first.Subscriptions, last.Subscriptions) {
		names = append(names, s.Name)
	}
	if !slices.Equal(names, []string{"a", "b", "c"}) || last.Next != nil {
		t.Errorf("listed %q", names)
	}
	h.call("GET", "/subscriptions?cursor=x", "").wantProblem(problem.InvalidCursor)
}

func TestMetricsShowHowFarSubscriptionsAreBehind(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.call("PUT", "/subscriptions/s", `{"filters":[{}]}`).want(http.StatusCreated)
	h.call("POST", "/publish", `{"events":[{"topic":"a","event":{}},{"topic":"a","event":{}}]}`).want(http.StatusCreated)
	metrics := h.call("GET", "/metrics", "").want(http.StatusOK).body
	for _, line := range []string{`queued_subscription_lag_events{subscription="s"} 2`, `queued_subscription_gaps_total{subscription="s"} 0`, `queued_subscriptions_left_out 0`} {
		if !strings.Contains(metrics, "\n"+line+"\n") {
			t.Errorf("the metrics have no line %s", line)
		}
	}
	if !strings.Contains(metrics, "\nqueued_subscription_lag_seconds{subscription=\"s\"} ") {
		t.Error("the metrics have no lag in seconds")
	}
}

func TestSubscriptionIsDeliveredIntoAQueue(t *testing.T) {
	t.Parallel()
	h := setup(t)
	const body = `{"filters":[{"name":"placed","topics":["order.placed"]}],"deliver":{"queue":"mail","type":"order","priority":3},"max_waiting":50}`
	for _, status := range []int{http.StatusCreated, http.StatusOK} {
		put := h.call("PUT", "/subscriptions/mailer", body).want(status).body
		if want := `"deliver":{"queue":"mail","type":"order","priority":3},"waiting":0,"replays":0,`; !strings.Contains(put, want) {
			t.Errorf("the subscription is %s, want %s", put, want)
		}
	}
	h.call("POST", "/topics/order.shipped", `{"order":1}`).want(http.StatusCreated)
	h.call("POST", "/topics/order.placed?key=k", `{"order":2}`).want(http.StatusCreated)
	claim := func() seenEvent {
		t.Helper()
		return decode[struct{ Events []seenEvent }](h.call("POST", "/claim", `{"queue":"mail","wait":"1m"}`).want(http.StatusOK)).Events[0]
	}
	e := claim()
	if e.Type != "order" || e.Priority != 3 || e.Key != "k" || string(e.Event) != `{"order":2}` || e.Publication["subscription"] != "mailer" ||
		e.Publication["topic"] != "order.placed" || fmt.Sprint(e.Publication["matched"]) != "[placed]" {
		t.Errorf("claimed %+v", e)
	}
	for _, dryRun := range []string{"true", "false"} {
		if got := h.call("POST", "/subscriptions/mailer/replay", `{"from":"earliest","dry_run":`+dryRun+`}`).want(http.StatusOK).body; got != `{"events":1}` {
			t.Errorf("the replay is %s", got)
		}
	}
	h.try("POST", "/subscriptions/mailer/replay", `{"from":0,"to":9007199254740991,"dry_run":true}`).wantProblem(problem.ValidationFailed)
	if again := claim(); again.ID == e.ID || again.Publication["position"] != e.Publication["position"] {
		t.Errorf("the replay delivered %+v", again)
	}
	metrics := h.atHome().call("GET", "/metrics", "").body
	if !strings.Contains(metrics, "\nqueued_router_active 1\n") || strings.Contains(metrics, "\nqueued_router_delivered_total 0\n") {
		t.Errorf("the metrics are %s", metrics)
	}
}
