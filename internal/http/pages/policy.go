package pages

import (
	"net/http"
	"net/url"
	"strconv"

	"github.com/queued/queued/client"
	"github.com/queued/queued/internal/ui"
)

// changePolicy is the form of the policy of a queue. A queue without one gets one.
func changePolicy(v *visit) (view, error) {
	q, err := v.api.GetQueue(v.r.Context(), v.parameter("name"))
	if err != nil {
		return view{}, err
	}
	return view{name: "policy-form", title: "Policy of " + q.Queue, nav: "queues", body: &ui.PolicyForm{Policy: q.Policy}}, nil
}

// storePolicy replaces the policy of a queue, if it is still the version that the form was about. Whether the queue is paused stays as it is.
func storePolicy(v *visit) (string, error) {
	name := v.parameter("name")
	q, err := v.api.GetQueue(v.r.Context(), name)
	if err != nil {
		return "", err
	}
	s := settings{"paused": q.Paused}
	s.texts(v, "invisible_for", "history_retention", "delay", "wait", "group_from", "dead_letter/queue", "flow/on_failed", "flow/rate/period")
	s.numbers(v, "max_attempts", "flow/concurrency", "flow/total", "flow/rate/limit", "flow/rate/burst")
	if v.form.Get("flow/on_failed") != "" { // the form has one field for both
		s.put("flow/order", true)
	}
	if v.form.Get("flow/fair") != "" {
		s.put("flow/fair", true)
	}
	if v.form.Get("backoff/kind") != "" {
		s.texts(v, "backoff/kind", "backoff/base", "backoff/max")
		s.numbers(v, "backoff/factor", "backoff/jitter")
	}
	header := v.ifVersion()
	if v.form.Get("version") == "0" {
		header = http.Header{"If-None-Match": {"*"}}
	}
	_, err = v.api.Do(v.r.Context(), client.Request{Method: http.MethodPut, Path: "/queues/" + url.PathEscape(name), Header: header, Body: s}, nil)
	return did(queuePath(v), "queue.changed", ""), err
}

// askMove is the form that moves the events of a queue into another one.
func askMove(v *visit) (view, error) {
	q, err := v.api.GetQueue(v.r.Context(), v.parameter("name"))
	if err != nil {
		return view{}, err
	}
	return view{name: "move-form", title: "Move events of " + q.Queue, nav: "queues", body: &ui.MoveForm{Queue: q}}, nil
}

func moveEvents(v *visit) (string, error) {
	s := settings{}
	s.texts(v, "to")
	s.numbers(v, "limit")
	if types := v.lines("types"); len(types) > 0 {
		s["types"] = types
	}
	var answer struct {
		Moved int `json:"moved"`
	}
	_, err := v.api.Do(v.r.Context(), client.Request{Method: http.MethodPost, Path: "/queues/" + url.PathEscape(v.parameter("name")) + "/move", Body: s}, &answer)
	return did(queuePath(v), "queue.moved", strconv.Itoa(answer.Moved)), err
}

// confirmDeleteQueue asks before a queue is deleted.
func confirmDeleteQueue(v *visit) (view, error) {
	q, err := v.api.GetQueue(v.r.Context(), v.parameter("name"))
	if err != nil {
		return view{}, err
	}
	consequence := "Its policy and its push, with the secrets, go; its history stays as long as history is kept."
	if waiting := q.Ready + q.Scheduled + q.Waiting; waiting > 0 {
		consequence += " The " + ui.Count(waiting, "event", "events") + " that wait in it" + estimate(q.Estimated) + " move into history as cancelled, and can be requeued from there."
	}
	return view{name: "confirm", title: "Delete " + q.Queue, nav: "queues", body: ui.Confirm{
		Question: "Delete the queue " + q.Queue + "?", Consequence: consequence, Button: "Delete", Action: queuePath(v) + "/delete", Back: queuePath(v),
	}}, nil
}

func deleteQueue(v *visit) (string, error) {
	n, err := v.api.DeleteQueue(v.r.Context(), v.parameter("name"), client.DeleteParams{Purge: true})
	return did("queues", "queue.deleted", strconv.Itoa(n)), err
}

// estimate says of a count that it is one.
func estimate(is bool) string {
	if is {
		return " (an estimate)"
	}
	return ""
}
