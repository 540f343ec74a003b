package http

import (
	"net/http"
	"testing"

	"github.com/queued/queued/internal/http/problem"
)

func TestSourceOfCloudEventsTakesEveryModeOnce(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.putSource("shop", `{"kind":"cloudevents","queue":"shop","secrets":["s3cret"],"keep_raw":"1h"}`)
	h.putSource("log", `{"kind":"cloudevents","topic":"orders","secrets":["s3cret"]}`)
	deliver := func(name, media, body string) answer {
		t.Helper()
		return h.deliver(name, body, "Authorization", "Bearer s3cret", "Content-Type", media)
	}
	for _, name := range []string{"shop", "log"} {
		deliver(name, structured, ce("1", `,"data":{"n":1}`)+"\n").want(http.StatusOK)
		batch := `[` + ce("1", "") + `,` + ce("2", `,"data":[1]`) + `]`
		if got := deliver(name, batched, batch).want(http.StatusOK); got.header.Get("Idempotency-Replayed") != "" {
			t.Errorf("%s: a batch with a new event is a repetition: %s", name, got.body)
		}
		got := deliver(name, batched, batch).want(http.StatusOK)
		if ids := decode[receivedResponse](got); len(ids.IDs)+len(ids.Positions) != 2 || ids.ID != nil || got.header.Get("Idempotency-Replayed") != "true" {
			t.Errorf("%s: the batch once more: %s", name, got.body)
		}
		deliver(name, batched, `[]`).want(http.StatusOK)

		p := deliver(name, batched, `[`+ce("3", "")+`,`+ce("", "")+`]`).wantProblem(problem.InvalidCloudEvent)
		if p.Errors[0].Pointer != "#/1/id" {
			t.Errorf("%s: got %+v", name, p)
		}
		deliver(name, "application/json", `{}`).wantProblem(problem.UnsupportedMediaType)
		h.deliver(name, ce("4", ""), "Content-Type", structured).wantProblem(problem.WebhookRejected)
	}
	claimed := h.claim(`{"queue":"shop","limit":10}`)
	if len(claimed) != 2 || claimed[0].Type != "order.paid" || claimed[0].Source != "shop" || claimed[0].Key != "/shop 1" || string(claimed[1].Event) != `{"data":[1]}` ||
		claimed[1].Meta["ce_data"] != "value" {
		t.Errorf("claimed %+v", claimed)
	}
	h.wantRaw(claimed[0].ID, ce("1", `,"data":{"n":1}`)+"\n", structured)
	if n := h.count(`select count(*) from agent.log`); n != 2 {
		t.Errorf("%d events are in the log, want 2", n)
	}
	trial := decode[testSourceResponse](h.call("POST", "/sources/shop/test",
		`{"headers":{"Authorization":"Bearer s3cret","Content-Type":"application/cloudevents-batch+json"},"body":"[{\"specversion\":\"1.0\",\"id\":\"9\",\"source\":\"/s\",\"type\":\"t\"}]"}`).want(200))
	if len(trial.Batch) != 1 || trial.Batch[0].Key != "/s 9" || trial.Mapped != nil {
		t.Errorf("the trial of a batch: %+v", trial)
	}
}
