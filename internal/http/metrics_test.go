package http

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queued/queued/internal/http/problem"
	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

func TestMetricsCountRequestsByPatternAndEventsByQueue(t *testing.T) {
	t.Parallel()
	h := setup(t)
	for range 3 {
		h.insert(`{}`)
	}
	h.call("POST", "/events?queue=late&delay=1h", `{}`).want(201)
	a, b := h.claimOne(), h.claimOne()
	h.call("DELETE", fmt.Sprintf("/events/%d?receipt=%s", a.ID, a.Receipt), "").want(204)
	h.call("POST", fmt.Sprintf("/events/%d/nack", b.ID), fmt.Sprintf(`{"receipt":%q}`, b.Receipt)).want(200)
	b = h.claimOne()
	h.call("POST", fmt.Sprintf("/history/%d/requeue", a.ID), "").want(201)
	h.call("POST", "/sweep", `{"max_vt_age":"0s","max_attempts":100}`).want(200)
	h.call("POST", fmt.Sprintf("/events/%d/nack", b.ID), fmt.Sprintf(`{"receipt":%q,"final":true}`, b.Receipt)).want(200)
	redrive := decode[struct{ ID int64 }](h.call("POST", "/redrives", `{"filter":{"queue":"default"},"to":"late","rate":0.01}`).want(202)).ID
	h.call("POST", fmt.Sprintf("/redrives/%d/pause", redrive), "").want(200)
	h.try("BREW", "/coffee/1", "")
	h.try("BREW", "/coffee/2", "")
	got := h.call("GET", "/metrics", "").want(200).body
	for _, want := range []string{
		`queued_http_requests_total{method="POST",route="/events",status="201"} 4`,
		`queued_http_requests_total{method="DELETE",route="/events/{id}",status="204"} 1`,
		`queued_http_requests_total{method="other",route="unmatched",status="404"} 2`,
		`queued_http_request_duration_seconds_count{method="POST",route="/events"} 4`,
		`queued_events_inserted_total{queue="default"} 3`,
		`queued_events_inserted_total{queue="late"} 1`,
		`queued_events_claimed_total{queue="default"} 3`,
		`queued_events_acked_total{queue="default"} 1`,
		`queued_events_nacked_total{queue="default"} 1`,
		`queued_events_failed_total{queue="default"} 1`,
		`queued_events_requeued_total{queue="default"} 1`,
		`queued_events_expired_total{queue="default"} 2`,
		`queued_events_released_total{queue="default"} 0`,
		`queued_event_wait_seconds_bucket{queue="default",le="+Inf"} 3`,
		`queued_event_wait_seconds_bucket{queue="default",le="43200"} 3`,
		`queued_event_wait_seconds_count{queue="default"} 3`,
		`queued_event_processing_seconds_count{queue="default"} 2`,
		`queued_redrives{state="running"} 0`,
		`queued_redrives{state="paused"} 1`,
		`queued_redrives{state="failed"} 0`,
		`queued_events{queue="late",state="scheduled"} 1`,
		`queued_events{queue="default",state="ready"} 0`,
		`queued_oldest_ready_age_seconds{queue="default"} 0`,
		`queued_database_up 1`,
		`queued_pool_connections_max{pool="queue_health"} 1`,
		`queued_pool_connections{pool="control",state="in_use"}`,
		`queued_pool_connections{pool="listener",state="in_use"} 1`,
		`queued_build_info{`,
		`process_open_fds`,
		`go_goroutines`,
	} {
		if !strings.Contains(got, "\n"+want) {
			t.Errorf("%s is missing in\n%s", want, regexp.MustCompile(`(?m)^[^q].*\n`).ReplaceAllString(got, ""))
		}
	}
	if strings.Contains(got, "coffee") {
		t.Error("a path became a label")
	}
}

func TestMetricsCountTheGroupsThatWait(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.call("PUT", "/queues/mail", `{"flow":{"concurrency":1}}`).want(200)
	for _, group := range []string{"a", "a", "a", "b", "c", "c"} {
		h.call("POST", "/events?queue=mail&group="+group, `{}`).want(201)
	}
	h.call("POST", "/claim", `{"queue":"mail","limit":10}`).want(200)
	h.call("PUT", "/queues/mail/groups/c", `{"paused":true}`).want(200)
	h.sql(`select agent_service.sample_groups()`)
	got := h.call("GET", "/metrics", "").want(200).body
	for _, want := range []string{
		`queued_groups_blocked{queue="mail",reason="concurrency"} 1`,
		`queued_groups_blocked{queue="mail",reason="hold"} 0`,
		`queued_groups_blocked{queue="mail",reason="order"} 0`,
		`queued_groups_blocked{queue="mail",reason="paused"} 1`,
		`queued_groups_blocked{queue="mail",reason="rate"} 0`,
		`queued_longest_group_events{queue="mail"} 2`,
	} {
		if !strings.Contains(got, "\n"+want) {
			t.Errorf("%s is missing in\n%s", want, regexp.MustCompile(`(?m)^[^q].*\n`).ReplaceAllString(got, ""))
		}
	}
}

func TestMetricsTellEventsThatWaitForTheirTurnFromOthers(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.call("PUT", "/queues/limited", `{"flow":{"concurrency":1}}`).want(200)
	for _, delay := range []string{"0s", "0s", "0s", "1h"} {
		h.call("POST", "/events?queue=limited&group=a&delay="+delay, `{}`).want(201)
	}
	got := h.call("GET", "/metrics", "").want(200).body
	for state, n := range map[string]int{"ready": 1, "scheduled": 1, "waiting": 2, "leased": 0} {
		if want := fmt.Sprintf("\nqueued_events{queue=\"limited\",state=%q} %d\n", state, n); !strings.Contains(got, want) {
			t.Errorf("%s is missing in\n%s", want, got)
		}
	}
}

var (
	metricRow    = regexp.MustCompile("(?m)^\\| (`queued_[^|]*) \\| ([^|]*)\\| ")
	metricFamily = regexp.MustCompile(`^queued_events_\{(.*)\}_total$`)
	codeSpan     = regexp.MustCompile("`([^`]+)`")
	seriesLabels = regexp.MustCompile(`(?m)^(queued_\w+?)(?:_bucket|_sum|_count)?\{(.*)\} `)
	labelName    = regexp.MustCompile(`(\w+)="`)
)

// TestMetricsHaveTheLabelsThatAreDocumented compares the table of docs/observability.md with a scrape.
func TestMetricsHaveTheLabelsThatAreDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/observability.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string][]string{}
	for _, row := range metricRow.FindAllStringSubmatch(string(text), -1) {
		var labels []string
		for _, label := range codeSpan.FindAllStringSubmatch(row[2], -1) {
			labels = append(labels, label[1])
		}
		slices.Sort(labels)
		for _, name := range codeSpan.FindAllStringSubmatch(row[1], -1) {
			names := []string{name[1]}
			if family := metricFamily.FindStringSubmatch(name[1]); family != nil {
				names = nil
				for what := range strings.SplitSeq(family[1], ",") {
					names = append(names, "queued_events_"+what+"_total")
				}
			}
			for _, name := range names {
				documented[name] = labels
			}
		}
	}

	h := setup(t)
	h.insert(`{}`)
	h.call("PUT", "/queues/default", `{"flow":{"concurrency":1}}`).want(200)
	h.sql(`select agent_service.sample_groups()`)
	h.call("PUT", "/subscriptions/mailer", `{"filters":[{"topics":["a"]}]}`).want(201)
	scrape := h.call("GET", "/metrics", "").want(200).body
	has := map[string][]string{}
	for _, series := range seriesLabels.FindAllStringSubmatch(scrape, -1) {
		for _, label := range labelName.FindAllStringSubmatch(series[2], -1) {
			if label[1] != "le" && !slices.Contains(has[series[1]], label[1]) {
				has[series[1]] = append(has[series[1]], label[1])
			}
		}
	}
	if len(has) < 20 {
		t.Fatalf("the scrape has %d metrics with labels:\n%s", len(has), scrape)
	}
	for name, labels := range has {
		slices.Sort(labels)
		if want, ok := documented[name]; ok && !slices.Equal(labels, want) {
			t.Errorf("%s has the labels %q, and docs/observability.md says %q", name, labels, want)
		}
	}
	for name, labels := range documented {
		if len(labels) > 0 && has[name] == nil && strings.Contains(scrape, "\n"+name+" ") {
			t.Errorf("%s has no labels, and docs/observability.md says %q", name, labels)
		}
	}
}

func TestMetricsOfManyQueuesAreBounded(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.atHome().sql(`insert into agent.event (event, queue) select '{}', 'q' || i from generate_series(1, 700) i`)
	got := h.call("GET", "/metrics", "").want(200).body
	for _, want := range []string{"queued_database_up 1", "queued_queues_counted 1", "queued_queues_left_out 200"} {
		if !strings.Contains(got, "\n"+want+"\n") {
			t.Errorf("the metrics lack %s", want)
		}
	}
	if n := strings.Count(got, "queued_oldest_ready_age_seconds{"); n != 500 {
		t.Errorf("%d queues have metrics", n)
	}

	type page struct {
		Queues []struct{ Queue string }
		Next   *string
	}
	names := make(map[string]bool)
	path := "/queues?limit=300"
	for range 3 {
		p := decode[page](h.call("GET", path, "").want(200))
		for _, q := range p.Queues {
			names[q.Queue] = true
		}
		if p.Next == nil {
			break
		}
		path = "/queues?limit=300&cursor=" + *p.Next
	}
	if len(names) != 700 {
		t.Errorf("the pages have %d queues", len(names))
	}
	h.call("GET", "/queues?cursor=x", "").wantProblem(problem.InvalidCursor)
}

func TestDatabaseIsReportedUpWhenQueuesCannotBeCounted(t *testing.T) {
	t.Parallel()
	h := setupWith(t, settings{queue: func(c *queue.Config) { c.QueryTimeout = 50 * time.Millisecond }})
	tx, err := pgtest.Connect(t, h.db.URL).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `lock table agent.event in access exclusive mode`); err != nil {
		t.Fatal(err)
	}
	got := h.call("GET", "/metrics", "").want(200).body
	for _, want := range []string{"queued_database_up 1", "queued_queues_counted 0"} {
		if !strings.Contains(got, "\n"+want+"\n") {
			t.Errorf("the metrics lack %s", want)
		}
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
}
