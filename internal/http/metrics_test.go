package http

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
)

func TestMetricsCountRequestsByPatternAndEventsByQueue(t *testing.T) {
	t.Parallel()
	h := start(t, settings{})
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
		`queued_events{queue="late",state="scheduled"} 1`,
		`queued_events{queue="default",state="ready"} 0`,
		`queued_oldest_ready_age_seconds{queue="default"} 0`,
		`queued_database_up 1`,
		`queued_pool_connections_max 4`,
		`queued_pool_connections{state="in_use"}`,
		`queued_build_info{`,
		`process_open_fds`,
		`go_goroutines`,
	} {
		if !strings.Contains(got, "\n"+want) {
			t.Errorf("no %s in\n%s", want, regexp.MustCompile(`(?m)^[^q].*\n`).ReplaceAllString(got, ""))
		}
	}
	if strings.Contains(got, "coffee") {
		t.Error("a path became a label")
	}
}
