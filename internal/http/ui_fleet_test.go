package http

import (
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestTheFleetIsShown(t *testing.T) {
	t.Parallel()
	h := setup(t)
	b := h.browse(t)
	b.get("fleet").want(200).says("Processes", "No worker holds a lease", "No event is done yet")
	const evil = `<script>alert(1)</script>`
	for range 2 {
		h.call("POST", "/events?queue=mail&type=%3Cscript%3Ealert(1)%3C%2Fscript%3E", `{}`).want(201)
	}
	claimed := decode[struct {
		Events []struct {
			ID      int64
			Receipt string
		}
	}](h.call("POST", "/claim", `{"queue":"mail","limit":2,"worker":"`+evil+`"}`).want(200)).Events
	h.call("POST", "/events/"+strconv.FormatInt(claimed[0].ID, 10)+"/ack", `{"receipt":"`+claimed[0].Receipt+`"}`).want(200)
	deadline := time.Now().Add(busyTimeout)
	page := b.get("fleet").want(200)
	for strings.Contains(page.body, "No event is done yet") || strings.Contains(page.body, "No worker holds a lease") { // statistics are some seconds old
		if time.Now().After(deadline) {
			t.Fatal("the execution is not shown")
		}
		page = b.get("fleet").want(200)
	}
	page.says("&lt;script&gt;alert(1)&lt;/script&gt;", "queues/mail").saysNot("<script>alert", "style=")
	b.get("fleet?worker=nobody").want(200).says("No event is done yet")
}
