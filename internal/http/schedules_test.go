package http

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/queued/queued/internal/http/problem"
	"github.com/queued/queued/internal/pgtest"
)

// seenSchedule is a schedule in a response.
type seenSchedule struct {
	ID        int64          `json:"id"`
	Name      string         `json:"name"`
	Owner     string         `json:"owner"`
	Queue     string         `json:"queue"`
	Topic     string         `json:"topic"`
	Type      string         `json:"type"`
	Priority  int            `json:"priority"`
	Event     map[string]any `json:"event"`
	At        string         `json:"at"`
	RRule     string         `json:"rrule"`
	Cron      string         `json:"cron"`
	Timezone  string         `json:"timezone"`
	Starts    string         `json:"starts"`
	Ends      string         `json:"ends"`
	Count     int            `json:"count"`
	Gap       string         `json:"gap"`
	Overlap   string         `json:"overlap"`
	Leap      string         `json:"leap"`
	Misfire   string         `json:"misfire"`
	Kind      string         `json:"kind"`
	Zone      string         `json:"zone"`
	Status    string         `json:"status"`
	Fired     int            `json:"fired"`
	Version   int            `json:"version"`
	NextLocal *string        `json:"next_local"`
	NextAt    *time.Time     `json:"next_at"`

	Last *seenOccurrence `json:"last_occurrence"`
}

// next summarizes the schedule's next occurrence.
func (s seenSchedule) next() string {
	if s.NextAt == nil {
		return "never"
	}
	return *s.NextLocal + " " + s.NextAt.Format(time.RFC3339)
}

type seenInstant struct{ Local, UTC string }

// seenOwner is an owner in a response.
type seenOwner struct {
	ID         string         `json:"id"`
	Timezone   string         `json:"timezone"`
	Attributes map[string]any `json:"attributes"`
	Version    int            `json:"version"`
}

// pageOfMany is a page of any listing.
type pageOfMany struct {
	Schedules   []seenSchedule   `json:"schedules"`
	Owners      []seenOwner      `json:"owners"`
	Occurrences []seenOccurrence `json:"occurrences"`
	Upcoming    []seenInstant    `json:"upcoming"`
	Next        *string          `json:"next"`
}

// pages calls visit for each page of a listing.
func (c *client) pages(path string, visit func(pageOfMany)) {
	c.t.Helper()
	for cursor := ""; ; {
		page := decode[pageOfMany](c.call("GET", path+cursor, "").want(200))
		visit(page)
		if page.Next == nil {
			return
		}
		cursor = "&cursor=" + *page.Next
	}
}

type seenOccurrence struct {
	NominalAt     string     `json:"nominal_at"`
	ScheduledFor  time.Time  `json:"scheduled_for"`
	Manual        bool       `json:"manual"`
	Status        string     `json:"status"`
	EventID       *int64     `json:"event_id"`
	Topic         string     `json:"topic"`
	FiredAt       *time.Time `json:"fired_at"`
	ExecutedAt    *time.Time `json:"executed_at"`
	FailureReason string     `json:"failure_reason"`
	RetryCount    int        `json:"retry_count"`
}

// createSchedule creates a schedule, and returns the response and its path.
func (c *client) createSchedule(body string) (s seenSchedule, at string) {
	c.t.Helper()
	got := c.call("POST", "/schedules", body).want(201)
	return decode[seenSchedule](got), got.header.Get("Location")
}

// occurrences returns the past occurrences of a schedule, latest first.
func (c *client) occurrences(at string) []seenOccurrence {
	c.t.Helper()
	return decode[pageOfMany](c.call("GET", at+"/occurrences", "").want(200)).Occurrences
}

func TestScheduleIsStoredAsGiven(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.call("PUT", "/owners/ada", `{"timezone":"Europe/London"}`).want(201)
	got := h.call("POST", "/schedules", `{"name":"Ada's birthday","owner":"ada","queue":"greetings","type":"greeting","priority":-3,"event":{"a":[1,"ä"]},
		"at":"1815-12-10T09:00:00","rrule":"FREQ=YEARLY","timezone":"America/New_York","starts":"2035-01-01T00:00:00","ends":"2040-01-01T00:00:00Z","count":4,
		"gap":"next","overlap":"last","leap":"mar1","misfire":"all"}`).want(201)
	made := decode[seenSchedule](got)
	next, at := "2035-12-10T09:00:00", time.Date(2035, 12, 10, 14, 0, 0, 0, time.UTC)
	want := seenSchedule{
		ID: made.ID, Name: "Ada's birthday", Owner: "ada", Queue: "greetings", Type: "greeting", Priority: -3,
		Event: map[string]any{"a": []any{1.0, "ä"}},
		At:    "1815-12-10T09:00:00", RRule: "FREQ=YEARLY", Timezone: "America/New_York", Starts: "2035-01-01T00:00:00", Ends: "2040-01-01T00:00:00Z", Count: 4,
		Gap: "next", Overlap: "last", Leap: "mar1", Misfire: "all",
		Kind: "rrule", Zone: "America/New_York", Status: "active", Version: 1, NextLocal: &next, NextAt: &at,
	}
	if diff := cmp.Diff(want, made); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if path := fmt.Sprintf("/schedules/%d", made.ID); got.header.Get("Location") != path || got.header.Get("Etag") != `"1"` {
		t.Errorf("its path is %s and its ETag %s", got.header.Get("Location"), got.header.Get("Etag"))
	}
	again := h.call("GET", got.header.Get("Location"), "").want(200)
	if diff := cmp.Diff(want, decode[seenSchedule](again)); diff != "" || again.header.Get("Etag") != `"1"` {
		t.Errorf("GET returned the ETag %s (-want +got)\n%s", again.header.Get("Etag"), diff)
	}

	least, _ := h.createSchedule(`{"event":{},"at":"2035-07-01T09:00:00+02:00"}`)
	next, at = "2035-07-01T07:00:00", time.Date(2035, 7, 1, 7, 0, 0, 0, time.UTC)
	want = seenSchedule{
		ID: least.ID, Queue: "default", Event: map[string]any{}, At: "2035-07-01T07:00:00Z", Gap: "forward", Overlap: "first", Leap: "feb28", Misfire: "once",
		Kind: "once", Zone: "UTC", Status: "active", Version: 1, NextLocal: &next, NextAt: &at,
	}
	if diff := cmp.Diff(want, least); diff != "" {
		t.Errorf("a schedule with required fields only (-want +got)\n%s", diff)
	}
}

func TestPreviewReturnsOccurrences(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.call("PUT", "/owners/lord", `{"timezone":"Australia/Lord_Howe"}`).want(201)
	for name, tc := range map[string]struct{ body, want string }{
		"a gap moves forward": {
			`{"cron":"30 2 * * *","timezone":"America/New_York","after":"2026-03-07T12:00:00Z","n":2}`,
			"2026-03-08T02:30:00=2026-03-08T07:30:00Z 2026-03-09T02:30:00=2026-03-09T06:30:00Z",
		},
		"a gap moves to its end": {
			`{"cron":"30 2 * * *","timezone":"America/New_York","after":"2026-03-07T12:00:00Z","n":1,"gap":"next"}`, "2026-03-08T02:30:00=2026-03-08T07:00:00Z",
		},
		"a gap is left out": {
			`{"cron":"30 2 * * *","timezone":"America/New_York","after":"2026-03-07T12:00:00Z","n":1,"gap":"skip"}`, "2026-03-09T02:30:00=2026-03-09T06:30:00Z",
		},
		"the first of an overlap": {
			`{"at":"2026-11-01T01:30:00","timezone":"America/New_York","after":"2026-10-01T00:00:00Z"}`, "2026-11-01T01:30:00=2026-11-01T05:30:00Z",
		},
		"the last of an overlap": {
			`{"at":"2026-11-01T01:30:00","timezone":"America/New_York","after":"2026-10-01T00:00:00Z","overlap":"last"}`, "2026-11-01T01:30:00=2026-11-01T06:30:00Z",
		},
		"half an hour's gap, in the owner's zone": {
			`{"at":"2026-10-04T02:15:00","owner":"lord","after":"2026-10-01T00:00:00Z"}`, "2026-10-04T02:15:00=2026-10-03T15:45:00Z",
		},
		"29 February, a day earlier": {
			`{"at":"1988-02-29T09:00:00","rrule":"FREQ=YEARLY","timezone":"Europe/Berlin","after":"2027-01-01T00:00:00Z","n":2}`,
			"2027-02-28T09:00:00=2027-02-28T08:00:00Z 2028-02-29T09:00:00=2028-02-29T08:00:00Z",
		},
		"29 February, a day later": {
			`{"at":"1988-02-29T09:00:00","rrule":"FREQ=YEARLY","timezone":"Europe/Berlin","after":"2027-01-01T00:00:00Z","n":2,"leap":"mar1"}`,
			"2027-03-01T09:00:00=2027-03-01T08:00:00Z 2028-02-29T09:00:00=2028-02-29T08:00:00Z",
		},
		"29 February alone": {
			`{"at":"1988-02-29T09:00:00","rrule":"FREQ=YEARLY","timezone":"Europe/Berlin","after":"2027-01-01T00:00:00Z","n":2,"leap":"skip"}`,
			"2028-02-29T09:00:00=2028-02-29T08:00:00Z 2032-02-29T09:00:00=2032-02-29T08:00:00Z",
		},
		"the past": {
			`{"at":"1970-01-31T12:00:00","rrule":"FREQ=MONTHLY;BYMONTHDAY=-1","timezone":"UTC","after":"1999-12-31T00:00:00Z","n":2}`,
			"1999-12-31T12:00:00=1999-12-31T12:00:00Z 2000-01-31T12:00:00=2000-01-31T12:00:00Z",
		},
		"until it ends": {
			`{"cron":"0 0 * * *","timezone":"UTC","ends":"2030-01-02T00:00:00","after":"2030-01-01T00:00:00Z"}`, "2030-01-02T00:00:00=2030-01-02T00:00:00Z",
		},
		"never": {`{"at":"2026-10-04T02:15:00Z","after":"2026-10-05T00:00:00Z"}`, ""},
	} {
		got := decode[struct{ Instants []seenInstant }](h.call("POST", "/schedules/preview", tc.body).want(200)).Instants
		var all []string
		for _, at := range got {
			all = append(all, at.Local+"="+at.UTC)
		}
		if said := strings.Join(all, " "); said != tc.want {
			t.Errorf("%s: got %s, want %s", name, said, tc.want)
		}
	}
	if n := h.count("select count(*) from agent.schedule"); n != 0 {
		t.Errorf("%d schedules were stored", n)
	}
}

// Invalid fields of a schedule, and the expected pointers.
var badSchedules = map[string]string{
	`"at":"2035-03-28T09:00:00"`:                                                                                "#/timezone",
	`"cron":"@daily"`:                                                                                           "#/timezone",
	`"at":"2035-03-28T09:00:00","timezone":""`:                                                                  "#/timezone",
	`"at":"2035-03-28T09:00:00","timezone":"Local"`:                                                             "#/timezone",
	`"at":"2035-03-28T09:00:00","timezone":"localtime"`:                                                         "#/timezone",
	`"at":"2035-03-28T09:00:00","timezone":"Europe/Atlantis"`:                                                   "#/timezone",
	`"at":"2035-03-28T09:00:00","timezone":"europe/berlin"`:                                                     "#/timezone",
	`"at":"2035-03-28T09:00:00","timezone":"FOO+3"`:                                                             "#/timezone",
	`"at":"2035-03-28T09:00:00","timezone":"posix/Europe/Berlin"`:                                               "#/timezone",
	`"at":"2035-03-28T09:00:00","timezone":"+02:00"`:                                                            "#/timezone",
	`"at":"2035-03-28T09:00:00","timezone":null`:                                                                "#/timezone",
	`"at":"2035-03-28T09:00:00","owner":"nobody"`:                                                               "#/owner",
	`"at":"2035-03-28T09:00:00","owner":"a b"`:                                                                  "#/owner",
	`"at":"2035-03-28","timezone":"Europe/Berlin"`:                                                              "#/at",
	`"at":"2035-02-30T09:00:00","timezone":"Europe/Berlin"`:                                                     "#/at",
	`"at":"2035-03-28 09:00:00","timezone":"Europe/Berlin"`:                                                     "#/at",
	`"at":"tomorrow","timezone":"Europe/Berlin"`:                                                                "#/at",
	`"at":2035,"timezone":"Europe/Berlin"`:                                                                      "#/at",
	`"at":"2035-03-28T09:00:00","cron":"@daily","timezone":"Europe/Berlin"`:                                     "#/at",
	`"cron":"@daily","rrule":"FREQ=DAILY","timezone":"Europe/Berlin"`:                                           "#/cron",
	`"cron":"61 * * * *","timezone":"Europe/Berlin"`:                                                            "#/cron",
	`"cron":"@fortnightly","timezone":"Europe/Berlin"`:                                                          "#/cron",
	`"cron":"TZ=UTC 0 0 * * *","timezone":"Europe/Berlin"`:                                                      "#/cron",
	`"cron":"","timezone":"Europe/Berlin"`:                                                                      "#/cron",
	`"at":"2035-03-28T09:00:00","rrule":"FREQ=OFTEN","timezone":"Europe/Berlin"`:                                "#/rrule",
	`"at":"2035-03-28T09:00:00","rrule":"DTSTART:20350328T090000\nRRULE:FREQ=DAILY","timezone":"Europe/Berlin"`: "#/rrule",
	`"at":"2035-03-28T09:00:00","rrule":"FREQ=DAILY;DTSTART=20350328T090000","timezone":"Europe/Berlin"`:        "#/rrule",
	`"at":"2035-03-28T09:00:00","rrule":"INTERVAL=2","timezone":"Europe/Berlin"`:                                "#/rrule",
	`"cron":"@daily","timezone":"Europe/Berlin","count":0`:                                                      "#/count",
	`"cron":"@daily","timezone":"Europe/Berlin","count":1.5`:                                                    "#/count",
	`"cron":"@daily","timezone":"Europe/Berlin","priority":2147483648`:                                          "#/priority",
	`"cron":"@daily","timezone":"Europe/Berlin","misfire":"sometimes"`:                                          "#/misfire",
	`"cron":"@daily","timezone":"Europe/Berlin","gap":"close"`:                                                  "#/gap",
	`"cron":"@daily","timezone":"Europe/Berlin","overlap":"both"`:                                               "#/overlap",
	`"cron":"@daily","timezone":"Europe/Berlin","leap":"feb30"`:                                                 "#/leap",
	`"cron":"@daily","timezone":"Europe/Berlin","topic":"a..b"`:                                                 "#/topic",
	`"cron":"@daily","timezone":"Europe/Berlin","topic":"order.*"`:                                              "#/topic",
	`"cron":"@daily","timezone":"Europe/Berlin","topic":"queued.publish"`:                                       "#/topic",
	`"cron":"@daily","timezone":"Europe/Berlin","topic":"` + strings.Repeat("t", 256) + `"`:                     "#/topic",
	`"cron":"@daily","timezone":"Europe/Berlin","topic":"a","queue":"default"`:                                  "#/queue",
	`"cron":"@daily","timezone":"Europe/Berlin","topic":"a","type":"b"`:                                         "#/type",
	`"cron":"@daily","timezone":"Europe/Berlin","topic":"a","priority":1`:                                       "#/priority",
	`"cron":"@daily","timezone":"Europe/Berlin","queue":"a b"`:                                                  "#/queue",
	`"cron":"@daily","timezone":"Europe/Berlin","starts":"2035-01-02T00:00:00","ends":"2035-01-01T00:00:00"`:    "#/ends",
	`"cron":"@daily","timezone":"Europe/Berlin","zone":"UTC"`:                                                   "#/zone",
	`"cron":"@daily","timezone":"Europe/Berlin","name":"` + strings.Repeat("n", 256) + `"`:                      "#/name",
}

func TestInvalidSchedulesAreRefusedNamingTheField(t *testing.T) {
	t.Parallel()
	h := setup(t)
	for _, fields := range slices.Sorted(maps.Keys(badSchedules)) {
		want := badSchedules[fields]
		for path, body := range map[string]string{"/schedules": `{"event":{},` + fields + `}`, "/schedules/preview": `{` + fields + `}`} {
			p := h.try("POST", path, body).wantProblem(problem.ValidationFailed)
			if len(p.Errors) != 1 || p.Errors[0].Pointer != want {
				t.Errorf("%s %s: got %+v, want %s", path, fields, p.Errors, want)
			}
		}
	}
	for _, body := range []string{
		`{"event":{}}`, `{"cron":"@daily","timezone":"UTC"}`, `{"event":[],"cron":"@daily","timezone":"UTC"}`, `{"event":null,"cron":"@daily","timezone":"UTC"}`,
		`{"event":{},"cron":"@daily","timezone":"UTC","idempotency_key":""}`, `{"event":{},"timezone":"UTC"}`,
	} {
		h.try("POST", "/schedules", body).wantProblem(problem.ValidationFailed)
	}
	for _, body := range []string{`{"n":0}`, `{"n":1001}`, `{"after":"2026-01-01T00:00:00"}`, `{"after":"now"}`} {
		h.try("POST", "/schedules/preview", `{"cron":"@daily","timezone":"UTC",`+body[1:]).wantProblem(problem.ValidationFailed)
	}
	for _, body := range []string{`{}`, `{"timezone":""}`, `{"timezone":"Local"}`, `{"timezone":"europe/london"}`, `{"timezone":"UTC","attributes":[]}`, `{"timezone":"UTC","name":"x"}`} {
		h.try("PUT", "/owners/ada", body).wantProblem(problem.ValidationFailed)
	}
	h.try("POST", "/schedules", `{"cron":"@daily","timezone":"UTC","event":{"a":"\u0000"}}`).wantProblem(problem.Unrepresentable)
	h.with("Idempotency-Key", "a").try("POST", "/schedules", `{"cron":"@daily","timezone":"UTC","event":{},"idempotency_key":"b"}`).wantProblem(problem.ValidationFailed)
	h.with("Idempotency-Key", `"a`).try("POST", "/schedules", `{"cron":"@daily","timezone":"UTC","event":{}}`).wantProblem(problem.InvalidParameter)
	wantNoRow(h)

	hint := h.try("POST", "/schedules", `{"event":{},"cron":"@daily","timezone":"asia/tokyo"}`).wantProblem(problem.ValidationFailed)
	if !strings.Contains(hint.Detail, "must be written Asia/Tokyo") {
		t.Errorf("a zone in the wrong case returned %s", hint.Detail)
	}

	_, at := h.createSchedule(`{"event":{},"cron":"@daily","timezone":"UTC"}`)
	before := h.call("GET", at, "").body
	for _, body := range []string{
		`{"name":""}`, `{"queue":null}`, `{"event":null}`, `{"event":[]}`, `{"priority":null}`, `{"gap":null}`, `{"timezone":""}`, `{"timezone":null}`, `{"timezone":"Local"}`, `{"cron":"x"}`, `{"rrule":"x"}`,
		`{"cron":null}`, `{"count":0}`, `{"ends":"x"}`, `{"starts":"2035-01-02T00:00:00","ends":"2035-01-01T00:00:00"}`, `{"owner":"ada"}`, `{"nonsense":1}`, `{"version":7}`,
		`{"topic":""}`, `{"topic":"queued.a"}`, `{"topic":"a","queue":"b"}`, `{"topic":"a","type":"b"}`,
	} {
		h.try("PATCH", at, body).wantProblem(problem.ValidationFailed)
	}
	if after := h.call("GET", at, "").body; after != before {
		t.Errorf("refused changes turned\n%[2]s into\n%[1]s", after, before)
	}
}

func TestPatchChangesGivenFieldsAndNullRemovesThem(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.call("PUT", "/owners/ada", `{"timezone":"Asia/Tokyo"}`).want(201)
	made, at := h.createSchedule(`{"name":"n","owner":"ada","type":"t","priority":5,"event":{"a":1},"at":"2035-07-01T09:00:00","timezone":"Europe/Berlin","count":3,"ends":"2040-01-01T00:00:00"}`)
	if got := made.next(); got != "2035-07-01T09:00:00 2035-07-01T07:00:00Z" {
		t.Fatalf("the next occurrence is %s", got)
	}
	want := made
	for _, step := range []struct {
		body, next string
		change     func()
	}{
		{`{}`, made.next(), func() {}},
		{`{"name":"m","priority":0,"event":{"b":2},"queue":"q"}`, made.next(), func() {
			want.Name, want.Priority, want.Event, want.Queue = "m", 0, map[string]any{"b": 2.0}, "q"
		}},
		{`{"timezone":null}`, "2035-07-01T09:00:00 2035-07-01T00:00:00Z", func() { want.Timezone, want.Zone = "", "Asia/Tokyo" }},
		{`{"rrule":"FREQ=DAILY","misfire":"skip"}`, "2035-07-01T09:00:00 2035-07-01T00:00:00Z", func() { want.RRule, want.Kind, want.Misfire = "FREQ=DAILY", "rrule", "skip" }},
		{`{"starts":"2035-07-02T10:00:00"}`, "2035-07-03T09:00:00 2035-07-03T00:00:00Z", func() { want.Starts = "2035-07-02T10:00:00" }},
		{`{"cron":"30 8 * * *","name":null,"type":null,"count":null,"ends":null}`, "2035-07-03T08:30:00 2035-07-02T23:30:00Z", func() {
			want.Cron, want.Kind, want.RRule, want.At, want.Name, want.Type, want.Count, want.Ends = "30 8 * * *", "cron", "", "", "", "", 0, ""
		}},
	} {
		step.change()
		answer := h.call("PATCH", at, step.body).want(200)
		got := decode[seenSchedule](answer)
		if got.next() != step.next || got.Version < want.Version || answer.header.Get("Etag") != fmt.Sprintf(`"%d"`, got.Version) {
			t.Errorf("after %s, the next occurrence is %s, want %s; version %d, ETag %s", step.body, got.next(), step.next, got.Version, answer.header.Get("Etag"))
		}
		want.Version, want.NextLocal, want.NextAt = got.Version, got.NextLocal, got.NextAt
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("after %s (-want +got)\n%s", step.body, diff)
		}
		if diff := cmp.Diff(want, decode[seenSchedule](h.call("GET", at, "").want(200))); diff != "" {
			t.Errorf("after %s, GET returned (-want +got)\n%s", step.body, diff)
		}
	}
}

func TestStaleVersionIsRefusedAndOneConcurrentChangeSucceeds(t *testing.T) {
	t.Parallel()
	h := setup(t)
	made, at := h.createSchedule(`{"event":{},"cron":"@yearly","timezone":"UTC"}`)
	tag := fmt.Sprintf(`"%d"`, made.Version)
	for round := range 10 {
		var wins, stale int
		asked := tag // all eight use the same version
		var mu sync.Mutex
		var group sync.WaitGroup
		for i := range 8 {
			group.Go(func() {
				got := h.with("If-Match", asked).call("PATCH", at, fmt.Sprintf(`{"priority":%d}`, 100*round+i))
				mu.Lock()
				defer mu.Unlock()
				switch got.status {
				case http.StatusOK:
					wins++
					tag = got.header.Get("Etag")
				case http.StatusPreconditionFailed:
					stale++
				}
			})
		}
		group.Wait()
		if wins != 1 || stale != 7 {
			t.Fatalf("round %d: %d of 8 changes of the same version succeeded, %d were refused", round, wins, stale)
		}
	}
	before := h.call("GET", at, "").body
	for _, header := range []string{`"1"`, `"0", "1"`, `"x"`} {
		h.with("If-Match", header).call("PATCH", at, `{"priority":1}`).wantProblem(problem.PreconditionFailed)
		h.with("If-Match", header).call("DELETE", at, "").wantProblem(problem.PreconditionFailed)
	}
	if after := h.call("GET", at, "").body; after != before {
		t.Errorf("stale changes turned\n%[2]s into\n%[1]s", after, before)
	}
	h.with("If-Match", "3").call("PATCH", at, `{"priority":1}`).wantProblem(problem.InvalidParameter)
	got := h.with("If-Match", `"1", W/`+tag).call("PATCH", at, `{"priority":1}`).want(200)
	h.with("If-Match", "*").call("PATCH", at, `{"priority":2}`).want(200)
	h.with("If-Match", got.header.Get("Etag")).call("DELETE", at, "").wantProblem(problem.PreconditionFailed)
	h.with("If-Match", "*").call("DELETE", at, "").want(204)
	h.call("DELETE", at, "").want(204)

	owner := h.with("If-Match", `*`).call("PUT", "/owners/ada", `{"timezone":"UTC"}`)
	owner.wantProblem(problem.PreconditionFailed)
	h.with("If-Match", `"1"`).call("PUT", "/owners/ada", `{"timezone":"UTC"}`).wantProblem(problem.PreconditionFailed)
	first := h.call("PUT", "/owners/ada", `{"timezone":"UTC"}`).want(201)
	second := h.with("If-Match", first.header.Get("Etag")).call("PUT", "/owners/ada", `{"timezone":"Asia/Tokyo"}`).want(200)
	h.with("If-Match", first.header.Get("Etag")).call("PUT", "/owners/ada", `{"timezone":"UTC"}`).wantProblem(problem.PreconditionFailed)
	h.with("If-Match", "*").call("PUT", "/owners/ada", `{"timezone":"Europe/Paris"}`).want(200)
	h.with("If-Match", second.header.Get("Etag")).call("DELETE", "/owners/ada", "").wantProblem(problem.PreconditionFailed)
	h.with("If-Match", "*").call("DELETE", "/owners/ada", "").want(204)
}

func TestScheduleUnderOneKeyIsCreatedOnce(t *testing.T) {
	t.Parallel()
	h := setup(t)
	const body = `{"event":{"a":1},"cron":"@yearly","timezone":"UTC"}`
	var mu sync.Mutex
	made, ids := 0, map[int64]int{}
	var group sync.WaitGroup
	for range 20 {
		group.Go(func() {
			got := h.with("Idempotency-Key", `"the key"`).call("POST", "/schedules", body)
			replayed := got.header.Get("Idempotency-Replayed") == "true"
			mu.Lock()
			defer mu.Unlock()
			ids[decode[seenSchedule](got).ID]++
			switch {
			case got.status == http.StatusCreated && !replayed:
				made++
			case got.status != http.StatusOK || !replayed || got.header.Get("Location") == "":
				t.Errorf("got %d, %v", got.status, got.header)
			}
		})
	}
	group.Wait()
	if made != 1 || len(ids) != 1 || h.count("select count(*) from agent.schedule") != 1 {
		t.Errorf("%d schedules were created, with the ids %v", made, ids)
	}
	h.call("POST", "/schedules", body[:len(body)-1]+`,"idempotency_key":"the key"}`).want(200)
	h.with("Idempotency-Key", "the key").call("POST", "/schedules", body[:len(body)-1]+`,"idempotency_key":"the key"}`).want(200)
	h.with("Idempotency-Key", "the key").call("POST", "/schedules", strings.Replace(body, "1", "2", 1)).wantProblem(problem.KeyReused)
	h.call("POST", "/schedules", body).want(201)
}

func TestSchedulesFollowTheirOwnersZone(t *testing.T) {
	t.Parallel()
	h := setup(t)
	owner := h.call("PUT", "/owners/ada@example.com", `{"timezone":"Europe/London","attributes":{"first_name":"Ada"}}`).want(201)
	if got := decode[seenOwner](owner); owner.header.Get("Location") != "/owners/ada@example.com" || got.Attributes["first_name"] != "Ada" {
		t.Errorf("the owner's path is %s: %s", owner.header.Get("Location"), owner.body)
	}
	_, theirs := h.createSchedule(`{"owner":"ada@example.com","event":{},"at":"2035-07-01T09:00:00"}`)
	_, own := h.createSchedule(`{"owner":"ada@example.com","event":{},"at":"2035-07-01T09:00:00","timezone":"Europe/Berlin"}`)
	_, instant := h.createSchedule(`{"owner":"ada@example.com","event":{},"at":"2035-07-01T09:00:00Z"}`)
	_, stranger := h.createSchedule(`{"event":{},"at":"2035-07-01T09:00:00","timezone":"Europe/London"}`)
	wantNext := func(what string, want map[string]string) {
		t.Helper()
		for at, next := range want {
			if got := decode[seenSchedule](h.call("GET", at, "").want(200)); got.next() != next {
				t.Errorf("%s: the next occurrence of %s is %s, want %s", what, at, got.next(), next)
			}
		}
	}
	const local = "2035-07-01T09:00:00 "
	wantNext("in London", map[string]string{theirs: local + "2035-07-01T08:00:00Z", own: local + "2035-07-01T07:00:00Z", instant: local + "2035-07-01T09:00:00Z"})
	moved := h.call("PUT", "/owners/ada@example.com", `{"timezone":"Asia/Tokyo"}`).want(200)
	if got := decode[seenOwner](moved); got.Timezone != "Asia/Tokyo" || len(got.Attributes) > 0 || got.Version != 2 {
		t.Errorf("the owner is %s", moved.body)
	}
	wantNext("in Tokyo", map[string]string{
		theirs: local + "2035-07-01T00:00:00Z", own: local + "2035-07-01T07:00:00Z", instant: local + "2035-07-01T09:00:00Z", stranger: local + "2035-07-01T08:00:00Z",
	})
	h.call("DELETE", "/owners/ada@example.com", "").want(204)
	for at, want := range map[string]string{theirs: "cancelled", own: "cancelled", instant: "cancelled", stranger: "active"} {
		if got := decode[seenSchedule](h.call("GET", at, "").want(200)); got.Status != want {
			t.Errorf("after its owner was deleted, %s is %s, want %s", at, got.Status, want)
		}
	}
	if got := h.occurrences(theirs); len(got) != 1 || got[0].Status != "cancelled" || got[0].NominalAt != "2035-07-01T09:00:00" || got[0].EventID != nil {
		t.Errorf("after its owner was deleted, its occurrences are %+v", got)
	}
	h.call("GET", "/owners/ada@example.com", "").wantProblem(problem.OwnerNotFound)
}

func TestOccurrenceStatusFollowsItsEvent(t *testing.T) {
	t.Parallel()
	h := setup(t)
	_, at := h.createSchedule(`{"queue":"greetings","event":{"to":"Ada"},"cron":"0 9 10 12 *","timezone":"Europe/London"}`)
	ran := h.call("POST", at+"/run", "").want(201)
	extra := decode[seenOccurrence](ran)
	if extra.Status != "pending" || !extra.Manual || extra.EventID == nil || ran.header.Get("Location") != fmt.Sprintf("/events/%d", *extra.EventID) {
		t.Fatalf("the run returned %s, at %s", ran.body, ran.header.Get("Location"))
	}
	h.call("GET", ran.header.Get("Location"), "").want(200)
	wantStatus := func(status string) seenOccurrence {
		t.Helper()
		got := h.occurrences(at)
		if len(got) != 1 || got[0].Status != status || got[0].EventID == nil || *got[0].EventID != *extra.EventID {
			t.Fatalf("the occurrences are %+v, want one with the status %s", got, status)
		}
		listed := decode[pageOfMany](h.call("GET", "/schedules?queue=greetings", "").want(200)).Schedules
		read := decode[seenSchedule](h.call("GET", at, "").want(200))
		if len(listed) != 1 || !cmp.Equal(listed[0].Last, &got[0]) || !cmp.Equal(read.Last, &got[0]) {
			t.Errorf("the last occurrence is %+v and %+v, want %+v", listed, read.Last, got[0])
		}
		return got[0]
	}
	wantStatus("pending")
	lease := h.claimOneBy(`{"queue":"greetings"}`)
	wantStatus("processing")
	nack := fmt.Sprintf("/events/%d/nack", lease.ID)
	h.call("POST", nack, fmt.Sprintf(`{"receipt":%q,"error":"busy"}`, lease.Receipt)).want(200)
	wantStatus("pending")
	lease = h.claimOneBy(`{"queue":"greetings"}`)
	h.call("POST", nack, fmt.Sprintf(`{"receipt":%q,"error":"no such number","final":true}`, lease.Receipt)).want(200)
	if got := wantStatus("failed"); got.FailureReason != "no such number" || got.RetryCount != 1 || got.ExecutedAt == nil {
		t.Errorf("the failed occurrence is %+v", got)
	}
	again := decode[struct{ ID int64 }](h.call("POST", fmt.Sprintf("/history/%d/requeue", lease.ID), "").want(201)).ID
	extra.EventID = &again
	wantStatus("pending")
	h.claim(`{"queue":"greetings"}`)
	h.call("DELETE", fmt.Sprintf("/events/%d", again), "").want(204)
	if got := wantStatus("completed"); got.FailureReason != "" || got.ExecutedAt == nil {
		t.Errorf("the completed occurrence is %+v", got)
	}
	got := decode[pageOfMany](h.call("GET", at+"/occurrences?n=2", "").want(200)).Upcoming
	if len(got) != 2 || !strings.HasSuffix(got[0].Local, "-12-10T09:00:00") || strings.TrimSuffix(got[0].UTC, "Z") != got[0].Local {
		t.Errorf("the upcoming occurrences are %v", got)
	}
}

func TestDueScheduleInsertsAnEventWithItsOccurrence(t *testing.T) {
	t.Parallel()
	h := setup(t)
	due := time.Now().UTC().Add(-time.Second).Format("2006-01-02T15:04:05")
	made, at := h.createSchedule(fmt.Sprintf(`{"queue":"greetings","type":"greeting","priority":2,"event":{"to":"Ada"},"at":%q,"timezone":"UTC"}`, due))
	got := h.claim(`{"queue":"greetings","wait":"30s"}`)
	if len(got) != 1 || string(got[0].Event) != `{"to":"Ada"}` {
		t.Fatalf("claimed %+v", got)
	}
	want := map[string]any{"schedule_id": float64(made.ID), "nominal_at": due, "scheduled_for": due + "Z"}
	if diff := cmp.Diff(want, got[0].Occurrence); diff != "" {
		t.Errorf("occurrence of the claimed event (-want +got)\n%s", diff)
	}
	if diff := cmp.Diff(want, h.get(got[0].ID).Occurrence); diff != "" {
		t.Errorf("occurrence of the event by GET (-want +got)\n%s", diff)
	}
	h.call("DELETE", fmt.Sprintf("/events/%d?receipt=%s", got[0].ID, got[0].Receipt), "").want(204)
	if diff := cmp.Diff(want, h.get(got[0].ID).Occurrence); diff != "" {
		t.Errorf("occurrence of the event in history (-want +got)\n%s", diff)
	}
	if after := decode[seenSchedule](h.call("GET", at, "").want(200)); after.Status != "completed" || after.Fired != 1 || after.NextAt != nil || after.Version != made.Version {
		t.Errorf("afterwards, the schedule is %+v", after)
	}
	if o := h.occurrences(at); len(o) != 1 || o[0].Status != "completed" || o[0].NominalAt != due || o[0].Manual {
		t.Errorf("its occurrences are %+v", o)
	}
	metrics := "\n" + h.call("GET", "/metrics", "").want(200).body + "\n"
	for _, want := range []string{
		"queued_schedules_fired_total 1", "queued_schedules_skipped_total 0", `queued_schedule_lateness_seconds_bucket{le="0.01"} 0`,
		`queued_schedule_lateness_seconds_bucket{le="86400"} 1`, "queued_schedule_lateness_seconds_count 1",
	} {
		if !strings.Contains(metrics, "\n"+want+"\n") {
			t.Errorf("the metrics lack %s\n%s", want, regexp.MustCompile(`(?m)^[^q].*\n|^queued_[^s].*\n`).ReplaceAllString(metrics, ""))
		}
	}
}

func TestDueScheduleWithATopicIsPublishedToIt(t *testing.T) {
	t.Parallel()
	h := setup(t)
	listener := pgtest.Connect(t, h.db.URL)
	if _, err := listener.Exec(t.Context(), `listen agent_log`); err != nil {
		t.Fatal(err)
	}
	due := time.Now().UTC().Add(-time.Second).Format("2006-01-02T15:04:05")
	got := h.call("POST", "/schedules", fmt.Sprintf(`{"topic":"report.due","event":{"of":"sales"},"at":%q,"timezone":"UTC"}`, due)).want(201)
	at, made := got.header.Get("Location"), decode[seenSchedule](got)
	if made.Topic != "report.due" || strings.Contains(got.body, `"queue"`) {
		t.Errorf("created %s", got.body)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for payload := "none"; payload != ""; { // processes that notify say who they are
		n, err := listener.WaitForNotification(ctx)
		if err != nil {
			t.Fatal(err)
		}
		payload = n.Payload
	}
	published := fmt.Sprintf(`report.due {"of": "sales"} {"occurrence": {"nominal_at": "%s", "schedule_id": %d, "scheduled_for": "%[1]sZ"}}`, due, made.ID)
	if n := h.count(`select count(*) from agent.log where concat_ws(' ', topic, event, meta, key) = $1`, published); n != 1 {
		t.Errorf("%d times in the log: %s", n, published)
	}
	if o := h.occurrences(at)[0]; o.Status != "published" || o.Topic != "report.due" || o.EventID != nil || o.FiredAt == nil || o.NominalAt != due {
		t.Errorf("its occurrence is %+v", o)
	}
	if after := decode[seenSchedule](h.call("GET", at, "").want(200)); after.Status != "completed" || after.Fired != 1 || after.Topic != "report.due" {
		t.Errorf("afterwards, the schedule is %+v", after)
	}

	run := h.call("POST", at+"/run", "").want(201)
	if o := decode[seenOccurrence](run); o.Status != "published" || o.Topic != "report.due" || o.EventID != nil || !o.Manual || run.header.Get("Location") != "" {
		t.Errorf("run answered %s with the Location %q", run.body, run.header.Get("Location"))
	}
	h.call("DELETE", at, "").want(204)
	if all, events := h.count(`select count(*) from agent.log`), h.count(`select (select count(*) from agent.event) + (select count(*) from agent.event_hist)`); all != 2 || events != 0 {
		t.Errorf("the log has %d, want 2, and queues and history %d, want none", all, events)
	}
}

func TestPatchMovesAScheduleToATopicAndBack(t *testing.T) {
	t.Parallel()
	h := setup(t)
	made, at := h.createSchedule(`{"queue":"q","type":"t","priority":5,"event":{},"cron":"@daily","timezone":"UTC"}`)
	for _, step := range []struct{ body, topic, queue string }{
		{`{"topic":"report.due"}`, "report.due", ""},
		{`{"topic":"report.other"}`, "report.other", ""},
		{`{"queue":"r"}`, "", "r"},
		{`{"topic":"report.due"}`, "report.due", ""},
		{`{"topic":null}`, "", "default"},
	} {
		made.Topic, made.Queue, made.Type, made.Priority = step.topic, step.queue, "", 0
		made.Version++
		if diff := cmp.Diff(made, decode[seenSchedule](h.call("PATCH", at, step.body).want(200))); diff != "" {
			t.Errorf("after %s (-want +got)\n%s", step.body, diff)
		}
	}
}

func TestPausedScheduleDoesNotFire(t *testing.T) {
	t.Parallel()
	h := setup(t)
	made, at := h.createSchedule(`{"event":{},"at":"2035-07-01T09:00:00Z"}`)
	for range 2 { // can be repeated
		if got := decode[seenSchedule](h.call("POST", at+"/pause", "").want(200)); got.Status != "paused" {
			t.Errorf("it is %s", got.Status)
		}
	}
	if got := decode[pageOfMany](h.call("GET", "/schedules?status=paused", "").want(200)); len(got.Schedules) != 1 {
		t.Errorf("%d schedules are paused", len(got.Schedules))
	}
	for range 2 {
		if got := decode[seenSchedule](h.call("POST", at+"/resume", "").want(200)); got.Status != "active" || got.next() != made.next() {
			t.Errorf("the schedule is %s, its next occurrence %s", got.Status, got.next())
		}
	}
}

func TestSchedulesAreListedByFilterInPages(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.call("PUT", "/owners/ada", `{"timezone":"UTC"}`).want(201)
	h.call("PUT", "/owners/grace", `{"timezone":"UTC"}`).want(201)
	var ids []int64
	for i := range 5 {
		body := fmt.Sprintf(`{"event":{},"at":"%d-01-01T00:00:00Z","queue":"q%d","owner":"%s"}`, 2045-i, i%2, []string{"ada", "grace"}[i/3])
		made, _ := h.createSchedule(body)
		ids = append(ids, made.ID)
	}
	list := func(query string) (got []int64) {
		t.Helper()
		h.pages("/schedules?limit=2"+query, func(page pageOfMany) {
			for _, s := range page.Schedules {
				got = append(got, s.ID)
			}
		})
		return got
	}
	for query, want := range map[string][]int64{
		"":                                 ids,
		"&queue=q1":                        {ids[1], ids[3]},
		"&owner=ada":                       {ids[0], ids[1], ids[2]},
		"&owner=grace&queue=q0":            {ids[4]},
		"&owner=nobody":                    nil,
		"&status=active":                   ids,
		"&status=paused":                   nil,
		"&due_before=2044-06-01T00:00:00Z": {ids[4], ids[3], ids[2], ids[1]},
		"&due_before=2044-06-01T00:00:00Z&queue=q0": {ids[4], ids[2]},
	} {
		if diff := cmp.Diff(want, list(query)); diff != "" {
			t.Errorf("%s (-want +got)\n%s", query, diff)
		}
	}
	h.call("GET", "/schedules?cursor=x", "").wantProblem(problem.InvalidCursor)
	for _, query := range []string{"limit=0", "limit=1001", "status=gone", "due_before=soon", "owner=", "queue=a%20b", "name=x"} {
		if got := h.try("GET", "/schedules?"+query, ""); got.status != 400 {
			t.Errorf("%s returned %d %s", query, got.status, got.body)
		}
	}

	var owners []string
	h.pages("/owners?limit=1", func(page pageOfMany) {
		for _, o := range page.Owners {
			owners = append(owners, o.ID)
		}
	})
	if diff := cmp.Diff([]string{"ada", "grace"}, owners); diff != "" {
		t.Errorf("owners (-want +got)\n%s", diff)
	}

	_, at := h.createSchedule(`{"event":{},"at":"2045-01-01T00:00:00Z"}`)
	var ran, found []int64
	for range 3 {
		ran = append(ran, *decode[seenOccurrence](h.call("POST", at+"/run", "").want(201)).EventID)
	}
	h.pages(at+"/occurrences?limit=1&n=0", func(page pageOfMany) {
		for _, o := range page.Occurrences {
			found = append(found, *o.EventID)
		}
	})
	slices.Reverse(found)
	if diff := cmp.Diff(ran, found); diff != "" {
		t.Errorf("occurrences (-want +got)\n%s", diff)
	}
}

func TestPathParametersAreUnescaped(t *testing.T) {
	t.Parallel()
	h := setup(t)
	for sent, want := range map[string]string{"ada%40example.com": "ada@example.com", "a%2Bb": "a+b", "c+d": "c+d", "%61da": "ada"} {
		got := decode[seenOwner](h.try("PUT", "/owners/"+sent, `{"timezone":"Europe/London"}`).want(201))
		if got.ID != want {
			t.Errorf("%s became %s", sent, got.ID)
		}
	}
	for _, sent := range []string{"a%20b", "%00", "%C3%A4", strings.Repeat("a", 129)} {
		h.try("PUT", "/owners/"+sent, `{"timezone":"Europe/London"}`).wantProblem(problem.InvalidParameter)
	}
}
