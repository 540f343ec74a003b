package http

import (
	"fmt"
	"net/url"
	"testing"
	"time"
)

type seenExecution struct {
	Type, Worker                           string
	Cycles                                 int
	Last, Average, Fastest, Longest, Total float64
	At                                     time.Time
}

func (c *client) executions(query string) (out []seenExecution) {
	c.t.Helper()
	got := decode[struct {
		Executions []struct {
			Type    string    `json:"type"`
			Worker  string    `json:"worker"`
			Cycles  int       `json:"cycles"`
			Last    float64   `json:"last_ms"`
			Average float64   `json:"average_ms"`
			Fastest float64   `json:"fastest_ms"`
			Longest float64   `json:"longest_ms"`
			Total   float64   `json:"total_ms"`
			At      time.Time `json:"last_at"`
		}
	}](c.call("GET", "/stats/executions?"+query, "").want(200))
	for _, x := range got.Executions {
		out = append(out, seenExecution(x))
	}
	return out
}

func TestExecutionsAreCountedByTypeAndWorker(t *testing.T) {
	t.Parallel()
	h := start(t, settings{})
	if got := h.call("GET", "/stats/executions", "").want(200).body; got != `{"executions":[]}` {
		t.Errorf("before any work: %s", got)
	}
	work := func(options, claim string, took time.Duration) {
		t.Helper()
		id := h.post(options)
		e := h.claim(claim)[0]
		h.sql("update agent.event set claimed[1] = claimed[1] - $1::interval", took)
		h.call("DELETE", fmt.Sprintf("/events/%d", id), "").want(204)
		_ = e
	}
	work("type=a", `{"worker":"w1"}`, 2*time.Second)
	work("type=a", `{"worker":"w1"}`, 4*time.Second)
	work("type=a", `{"worker":"w2"}`, time.Second)
	work("", `{"worker":"w1"}`, time.Second)
	work("type=b%20%26", ``, time.Second)
	h.post("type=a")
	h.nack(h.claim(`{"worker":"w1"}`)[0], `,"final":true`) // which is no success
	h.post("type=a")
	h.call("POST", "/queues/default/purge", "").want(200)

	for query, want := range map[string][]string{
		"":                               {" w1 1", "a w1 2", "a w2 1", "b &  1"},
		"type=a":                         {"a w1 2", "a w2 1"},
		"type=":                          {" w1 1"},
		"worker=w1":                      {" w1 1", "a w1 2"},
		"worker=":                        {"b &  1"},
		"type=a&worker=w2":               {"a w2 1"},
		"type=" + url.QueryEscape("b &"): {"b &  1"},
		"type=a&worker=nobody":           {},
	} {
		got := []string{}
		for _, x := range h.executions(query) {
			got = append(got, fmt.Sprintf("%s %s %d", x.Type, x.Worker, x.Cycles))
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: got %q, want %q", query, got, want)
		}
	}
	x := h.executions("type=a&worker=w1")[0]
	if x.Fastest < 2000 || x.Fastest > 4000 || x.Longest < 4000 || x.Last != x.Longest || x.Total < x.Fastest+x.Longest-0.01 || x.Total > x.Fastest+x.Longest+0.01 ||
		x.Average < x.Total/2-0.01 || x.Average > x.Total/2+0.01 || time.Since(x.At) > time.Hour {
		t.Errorf("the times of two executions are %+v", x)
	}
}

func TestProcessesShowWhatEachDid(t *testing.T) {
	t.Parallel()
	h := start(t, settings{})
	h.insert(`{}`)
	h.insert(`{}`)
	h.insert(`{}`)
	e := h.claim(`{"limit":3}`)
	h.ack(e[0], "")
	h.nack(e[1], "")
	h.nack(e[2], `,"final":true`)
	got := decode[struct{ Processes []map[string]any }](h.call("GET", "/stats/processes", "").want(200)).Processes
	if len(got) != 1 {
		t.Fatalf("there are %d processes, want 1", len(got))
	}
	p := got[0]
	counted := fmt.Sprint(p["posted"], p["claimed"], p["acked"], p["nacked"], p["failed"], p["expired"], p["released"], p["waiting_claims"])
	if counted != "3 3 1 1 1 0 0 0" {
		t.Errorf("it counted %s: %v", counted, p)
	}
	if up, _ := p["uptime_ms"].(float64); p["id"] == "" || p["process"] == "" || p["started_at"] == nil || up <= 0 || up > float64(time.Hour.Milliseconds()) {
		t.Errorf("the process is %v", p)
	}
}

func TestProcessOfAnotherVersionIsShownAsFarAsItSays(t *testing.T) {
	t.Parallel()
	h := start(t, settings{})
	h.sql(`select agent.report_process('other', 'elsewhere:1', '{posted,version,novelty}', '{7,9.9.9,x}')`)
	for _, p := range decode[struct{ Processes []map[string]any }](h.call("GET", "/stats/processes", "").want(200)).Processes {
		if p["id"] == "other" {
			if p["process"] != "elsewhere:1" || p["version"] != "9.9.9" || p["posted"] != 7.0 || p["claimed"] != 0.0 || p["started_at"] != nil || p["uptime_ms"] != nil {
				t.Errorf("the other process is %v", p)
			}
			return
		}
	}
	t.Error("the other process is missing")
}
