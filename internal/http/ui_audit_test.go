package http

import (
	"strings"
	"testing"

	"github.com/queued/queued/internal/access"
)

func TestAuditIsFilteredPagedAndDownloaded(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.placeOn(0, "mail")
	admin := h.adminKey()
	b := h.browseAs(t, admin)
	const script = `<script>alert(1)</script>`
	h.key(admin).call("PUT", "/queues/mail", `{}`).want(200)
	h.key(admin).call("POST", "/queues/mail/pause", "").want(200)
	h.atHome().sql(`insert into agent.audit (actor, role, action, target, detail) values ($1::text, $1::text, 'x.y', $1::text, jsonb_build_object('a', $1::text))`, script)
	b.get("audit").want(200).says("session.create", `href="./keys/`+admin[3:11]+`"`, `href="./queues/mail"`, "key:"+admin[3:11], "&lt;script&gt;", "the latest first").saysNot(script)
	b.get("audit?action=key.*").want(200).says("key.create", "audit.csv?action=key.%2A").saysNot("session.create</a>", "queue.put")
	b.get("audit?target=mail&actor=key:" + admin[3:11]).want(200).says("queue.put").saysNot("key.create")
	b.get("audit?from=2099-01-01T00:00").want(200).says("No action is as the filter asks", `value="2099-01-01T00:00"`)
	b.get("audit?from=yesterday").want(400).says("Invalid parameter")
	b.get("audit?cursor=none").want(400).says("Invalid cursor")

	h.atHome().sql(`insert into agent.audit (actor, role, action, target) select 'many', 'queued', 'queue.run', 'q' || n from generate_series(1, 150) n`)
	first := b.get("audit?actor=many").want(200).says("100 shown", `rel="next"`)
	_, after, _ := strings.Cut(first.body, `rel="next" href="`)
	next, _, _ := strings.Cut(after, `"`)
	b.get("audit"+strings.ReplaceAll(next, "&amp;", "&")).want(200).says("50 shown", "First page").saysNot(`rel="next"`)

	csv := b.get("audit.csv?actor=many").want(200).says("#end,150")
	if got := strings.Count(csv.body, "\n"); got != 152 || !strings.HasPrefix(csv.header.Get("Content-Disposition"), "attachment") || !strings.HasPrefix(csv.header.Get("Content-Type"), "text/csv") {
		t.Errorf("the file has %d lines, and %v", got, csv.header)
	}
	if got := strings.Count(b.get("audit.ndjson?actor=many&action=queue.*").want(200).body, `"queue.run"`); got != 150 {
		t.Errorf("the file has %d actions", got)
	}
	b.get("audit.csv?from=yesterday").want(400).says("Invalid parameter", "<title>")
	wantEvent(t, b.live("audit"), "parts")
	wantEvent(t, b.live("audit.csv"), "problem")

	reader := h.browseAs(t, h.createKey(access.CreateParams{Scopes: []access.Scope{access.Read, access.Manage}}))
	for _, path := range []string{"audit", "audit.csv", "audit.ndjson", "keys", "keys/new", "keys/" + admin[3:11]} {
		reader.get(path).want(403).says("Not allowed", "scope admin").saysNot("session.create", `class="card form"`)
	}
}
