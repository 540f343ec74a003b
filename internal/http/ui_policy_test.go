package http

import (
	"net/url"
	"strings"
	"testing"

	"github.com/queued/queued/internal/pgtest"
)

func TestPolicyIsChangedOnItsPage(t *testing.T) {
	pgtest.SameInEachFlavour(t)
	t.Parallel()
	h := setup(t)
	b := h.browse(t)
	h.call("POST", "/events?queue=mail", `{}`).want(201)
	h.call("POST", "/queues/mail/pause", "").want(200)
	version := func() string {
		t.Helper()
		page := b.get("queues/mail/policy").want(200).says("Policy of mail")
		return strings.SplitN(strings.SplitN(page.body, `name="version" value="`, 2)[1], `"`, 2)[0]
	}
	form := url.Values{
		"version": {version()}, "max_attempts": {"5"}, "invisible_for": {"2m"}, "backoff/kind": {"exponential"}, "backoff/base": {"5s"}, "backoff/factor": {"2"},
		"backoff/max": {"1h"}, "backoff/jitter": {"0.1"}, "dead_letter/queue": {"mail.dead"}, "history_retention": {"30d"}, "delay": {"10s"}, "wait": {"20s"},
	}
	b.follow("queues/mail/policy", form).want(200).says("The policy is stored", "exponential, 5 s × 2, at most 1 h, jitter 0.1", "mail.dead", "30 d", `<span class="tag paused">`)
	h.call("GET", "/queues/mail", "").want(200)
	b.get("queues/mail/policy").want(200).says(`value="5s"`, `value="mail.dead"`, `value="720h"`)

	b.post("queues/mail/policy", form).want(412).says(`value="mail.dead"`) // somebody has changed it meanwhile
	form.Set("version", version())
	form.Set("max_attempts", "many")
	form.Set("backoff/base", "soon")
	b.post("queues/mail/policy", form).want(422).says(`id="max_attempts-wrong"`, `id="backoff/base-wrong"`, `value="soon"`)

	b.follow("queues/mail/policy", url.Values{"version": {version()}}).want(200).says("The policy is stored", "as each event says").saysNot("mail.dead")
	b.follow("queues/fresh/policy", url.Values{"version": {"0"}, "max_attempts": {"1"}}).want(200).says("The policy is stored")
}

func TestEventsAreMovedAndQueuesDeletedOnTheirPages(t *testing.T) {
	pgtest.SameInEachFlavour(t)
	t.Parallel()
	h := setup(t)
	b := h.browse(t)
	for range 3 {
		h.call("POST", "/events?queue=mail&type=letter", `{}`).want(201)
	}
	h.call("POST", "/events?queue=mail&type=card", `{}`).want(201)
	b.get("queues/mail/move").want(200).says("4 events wait in mail")
	b.post("queues/mail/move", url.Values{"types": {"letter"}}).want(422).says(`id="to-wrong"`, ">letter</textarea>")
	b.follow("queues/mail/move", url.Values{"to": {"post"}, "types": {"letter\r\n"}, "limit": {"2"}}).want(200).says("Events moved: 2")
	if got := h.call("GET", "/queues/post", "").want(200).body; !strings.Contains(got, `"ready":2`) {
		t.Errorf("the events are not there: %s", got)
	}
	b.get("queues/mail/delete").want(200).says("Delete the queue mail?", "The 2 events that wait in it move into history as cancelled")
	b.follow("queues/mail/delete", nil).want(200).says("The queue is deleted. Events that went into history as cancelled: 2.")
	b.post("queues/nothing/delete", nil).want(404)
}
