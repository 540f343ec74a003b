package pages

import (
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/queued/queued/client"
	"github.com/queued/queued/internal/ui"
)

// push returns the push that the visit is about.
func (v *visit) push() (client.Push, error) { return v.api.GetPush(v.r.Context(), v.parameter("name")) }

// pushPath is the path of the page of the push that the visit is about.
func (v *visit) pushPath() string { return queuePath(v) + "/push" }

// callPush calls the API about the push that the visit is about.
func (v *visit) callPush(method, call string, header http.Header, body, out any) error {
	path := "/queues/" + url.PathEscape(v.parameter("name")) + "/push" + call
	_, err := v.api.Do(v.r.Context(), client.Request{Method: method, Path: path, Header: header, Body: body}, out)
	return err
}

// isNotPushed reports whether an error says that a queue is not pushed.
func isNotPushed(err error) bool {
	answer, ok := errors.AsType[*client.Error](err)
	return ok && answer.Code == "push_not_found"
}

// showPush is the page of the push of a queue. One that is not pushed has a page, too, which says so.
func showPush(v *visit) (view, error) {
	shown := &ui.Push{Filter: v.parameters()}
	shownView := view{name: "push", title: "Push of " + v.parameter("name"), nav: "queues", isLive: true, body: shown}
	p, err := v.push()
	if isNotPushed(err) {
		shown.Queue, shown.IsAbsent = v.parameter("name"), true
		return shownView, nil
	}
	if err != nil {
		return view{}, err
	}
	shown.Push = p
	query := v.logQuery("status", "outcome", "event")
	if _, err := v.api.Do(v.r.Context(), client.Request{Path: "/queues/" + url.PathEscape(p.Queue) + "/push/deliveries", Query: query}, &shown.Log); err != nil {
		return view{}, err
	}
	shown.Pager = v.pager(shown.Log.Next)
	return shownView, nil
}

// isFree returns nil if the queue that the visit is about is not pushed.
func (v *visit) isFree() error {
	_, err := v.push()
	if isNotPushed(err) {
		return nil
	}
	if err == nil {
		err = errPushed
	}
	return err
}

var errPushed = problem(http.StatusConflict, "The queue is pushed already", "Somebody has set up its push. It can be changed on its page.")

// newPush is the form of a push for a queue that is not pushed.
func newPush(v *visit) (view, error) {
	if err := v.isFree(); err != nil {
		return view{}, err
	}
	form := &ui.PushForm{Nonce: rand.Text()}
	form.Queue, form.Format = v.parameter("name"), "standard"
	return view{name: "push-form", title: "Push " + form.Queue, nav: "queues", body: form}, nil
}

// changePush is the form of a change to a push.
func changePush(v *visit) (view, error) {
	p, err := v.push()
	if err != nil {
		return view{}, err
	}
	return view{name: "push-form", title: "Change the push of " + p.Queue, nav: "queues", body: &ui.PushForm{Push: p}}, nil
}

// enteredPush returns the push that was entered, as the API takes it.
func (v *visit) enteredPush() (settings, error) {
	s := settings{}
	s.texts(v, "url", "format", "timeout", "disable_after")
	s.numbers(v, "max_in_flight", "rate/per_second", "rate/burst")
	statuses := []any{}
	for _, status := range v.words("final_statuses") {
		statuses = append(statuses, numberOf(status))
	}
	s["final_statuses"] = statuses
	headers, err := v.headers("headers")
	if err != nil {
		return nil, err
	}
	if len(headers) == 0 {
		if v.form.Has("no_headers") {
			s["headers"] = settings{}
		}
		return s, nil
	}
	fields := settings{}
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		if len(headers[name]) > 1 {
			return nil, invalid("headers", "has "+name+" twice")
		}
		fields[name] = headers[name][0]
	}
	s["headers"] = fields
	return s, nil
}

// createPush stores a new push, and shows its secret, which nobody gets to see again.
func createPush(v *visit) (view, error) {
	entered, err := v.enteredPush()
	if err != nil {
		return view{}, err
	}
	shown := &ui.PushSecret{IsNew: true}
	err = v.callPush(http.MethodPut, "", ifAbsent(), entered, &shown.Push)
	if errors.Is(err, client.ErrPreconditionFailed) {
		err = errPushed
	}
	return view{name: "push-secret", title: "Push of " + v.parameter("name"), nav: "queues", body: shown}, err
}

// storePush changes a push, if it is still the version that the form was about.
func storePush(v *visit) (string, error) {
	entered, err := v.enteredPush()
	if err != nil {
		return "", err
	}
	return did(v.pushPath(), "push.changed", ""), v.callPush(http.MethodPut, "", v.ifVersion(), entered, nil)
}

func enablePush(v *visit) (string, error) {
	_, err := v.api.EnablePush(v.r.Context(), v.parameter("name"))
	return did(v.pushPath(), "push.enabled", ""), err
}

// testPush sends a test event, and shows what came of it.
func testPush(v *visit) (view, error) {
	result, err := v.api.TestPush(v.r.Context(), v.parameter("name"))
	if err != nil {
		return view{}, err
	}
	shown, err := showPush(v)
	if err != nil {
		return view{}, err
	}
	if p, ok := shown.body.(*ui.Push); ok {
		p.Tested = &result
	}
	return shown, nil
}

// confirmRotate is the form that gives a push another secret.
func confirmRotate(v *visit) (view, error) {
	p, err := v.push()
	if err != nil {
		return view{}, err
	}
	return view{name: "push-rotate", title: "Rotate the secret of " + p.Queue, nav: "queues", body: ui.PushRotation{Push: p, Nonce: rand.Text()}}, nil
}

// rotateSecret gives a push another secret, and shows it, once.
func rotateSecret(v *visit) (view, error) {
	body := settings{}
	body.texts(v, "keep")
	shown := new(ui.PushSecret)
	err := v.callPush(http.MethodPost, "/secret", nil, body, &shown.Push)
	return view{name: "push-secret", title: "New secret of " + v.parameter("name"), nav: "queues", body: shown}, err
}

// confirmDeletePush asks before a push is deleted.
func confirmDeletePush(v *visit) (view, error) {
	p, err := v.push()
	if err != nil {
		return view{}, err
	}
	q, err := v.api.GetQueue(v.r.Context(), p.Queue)
	if err != nil {
		return view{}, err
	}
	waiting := "The " + ui.Count(q.Ready+q.Scheduled+q.Waiting, "event", "events")
	if q.Estimated {
		waiting += " (an estimate)"
	}
	return view{name: "confirm", title: "Delete the push of " + p.Queue, nav: "queues", body: ui.Confirm{
		Question: "Delete the push of " + p.Queue + "?",
		Consequence: "Its settings, its secrets and its delivery log go, and cannot be brought back: a new push has another secret. " + waiting +
			" that wait in the queue stay there, and those that come: workers can claim them.",
		Button: "Delete", Action: v.pushPath() + "/delete", Back: v.pushPath(), Fields: []ui.Hidden{{Name: "version", Value: strconv.FormatInt(p.Version, 10)}},
	}}, nil
}

// deletePush ends a push, if it is still the version that the question was about.
func deletePush(v *visit) (string, error) {
	return did(v.pushPath(), "push.deleted", ""), v.callPush(http.MethodDelete, "", v.ifVersion(), nil, nil)
}

// sendAgain has an event pushed again: at once if it waits for its next attempt, and as a copy if it has ended. One that has a copy already is left alone, so that
// a form that is sent twice makes one.
func sendAgain(v *visit) (string, error) {
	next := v.pushPath()
	if query := v.parameters(); len(query) > 0 {
		next += "?" + query.Encode()
	}
	if v.form.Has("requeue") {
		id, err := v.number("requeue", 64)
		if err != nil {
			return "", err
		}
		answer, err := v.api.RequeueMatching(v.r.Context(), client.RequeueParams{HistoryFilter: client.HistoryFilter{ID: id}})
		if err != nil {
			return "", err
		}
		e, err := v.api.GetEvent(v.r.Context(), id)
		if err == nil && answer.Requeued == 0 {
			err = problem(http.StatusConflict, "The event was sent again before", fmt.Sprintf("Its latest copy is the event %d. If that one has failed, send it again.", e.RequeuedAs))
		}
		return did(next, "push.requeued", strconv.FormatInt(e.RequeuedAs, 10)), err
	}
	id, err := v.number("run", 64)
	if err != nil {
		return "", err
	}
	_, err = v.api.RunEvent(v.r.Context(), id)
	return did(next, "push.run", strconv.FormatInt(id, 10)), err
}
