package http

import (
	"net/http"
	"testing"

	"github.com/queued/queued/internal/access"
	"github.com/queued/queued/internal/http/problem"
)

func TestRedrivesAreOfTheKeyThatCreatesThem(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.createKey(access.CreateParams{Scopes: []access.Scope{access.Admin}})
	tenant := func(queue string) *client {
		return h.key(h.createKey(access.CreateParams{Scopes: []access.Scope{access.Manage, access.Read}, Queues: []string{queue}}))
	}
	a, b := tenant("a"), tenant("b")
	create := func(c *client, queue string) answer {
		return c.with("Idempotency-Key", "nightly").try("POST", "/redrives", `{"filter":{"queue":"`+queue+`"}}`)
	}
	of := decode[redrive](create(a, "a").want(http.StatusAccepted))
	if other := decode[redrive](create(b, "b").want(http.StatusAccepted)); other.ID == of.ID {
		t.Errorf("two keys have the redrive %d", of.ID)
	}
	if again := decode[redrive](create(a, "a").want(http.StatusOK)); again.ID != of.ID {
		t.Errorf("the redrive %d was repeated as %d", of.ID, again.ID)
	}

	h.cellOf("a").sql(`insert into agent.redrive (created_by, caller, last_id, state) select r.created_by, r.caller, 0, 'paused' from agent.redrive r, generate_series(1, 100) where r.queue = 'a'`)
	a.try("POST", "/redrives", `{"filter":{"queue":"a"}}`).wantProblem(problem.TooManyRedrives)
	create(a, "a").want(http.StatusOK)
	b.try("POST", "/redrives", `{"filter":{"queue":"b"}}`).want(http.StatusAccepted)
}
