package pages

import (
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/queued/queued/client"
	"github.com/queued/queued/internal/ui"
)

// deliveriesOnPage is how many rows of a delivery log a page shows.
const deliveriesOnPage = "50"

// listSources is the page of all sources, by name.
func listSources(v *visit) (view, error) {
	sources, next, err := pageOf[client.Source](v, "/sources", "sources", nil, pageSize)
	if err != nil {
		return view{}, err
	}
	return view{name: "sources", title: "Sources", nav: "sources", isLive: true, body: ui.Sources{Sources: sources, Pager: v.pager(next)}}, nil
}

// source returns the source that the visit is about.
func (v *visit) source() (client.Source, error) {
	return v.api.GetSource(v.r.Context(), v.parameter("name"))
}

// sourcePath is the path of the page of the source that the visit is about.
func (v *visit) sourcePath() string { return sourcePath(v.parameter("name")) }

func sourcePath(name string) string { return "sources/" + url.PathEscape(name) }

// showSource is the page of one source.
func showSource(v *visit) (view, error) {
	s, err := v.source()
	if err != nil {
		return view{}, err
	}
	query := v.logQuery("result")
	shown := &ui.Source{Source: s, Filter: v.r.URL.Query(), Hidden: v.h.cfg.HidePayloads}
	if _, err := v.api.Do(v.r.Context(), client.Request{Path: "/sources/" + url.PathEscape(s.Name) + "/deliveries", Query: query}, &shown.Log); err != nil {
		return view{}, err
	}
	shown.Pager = v.pager(shown.Log.Next)
	return view{name: "source", title: s.Name, nav: "sources", isLive: true, body: shown}, nil
}

// logQuery returns the query of a page of a delivery log: the filters of these names, the time, and the place to go on from.
func (v *visit) logQuery(names ...string) url.Values {
	query := url.Values{"limit": {deliveriesOnPage}}
	for _, name := range append(names, "cursor") {
		setIf(query, name, v.query(name))
	}
	setIf(query, "from", inUTC(v.query("from")))
	setIf(query, "to", inUTC(v.query("to")))
	return query
}

// newSource is the form of a new source. The query may say where its events go.
func newSource(v *visit) (view, error) {
	form := &ui.SourceForm{}
	form.Kind, form.Queue, form.Topic = "github", v.query("queue"), v.query("topic")
	return view{name: "source-form", title: "New source", nav: "sources", body: form}, nil
}

// changeSource is the form of a change to a source.
func changeSource(v *visit) (view, error) {
	s, err := v.source()
	if err != nil {
		return view{}, err
	}
	return view{name: "source-form", title: "Change " + s.Name, nav: "sources", body: &ui.SourceForm{Source: s}}, nil
}

// enteredSource returns the source that was entered, as the API takes it.
func (v *visit) enteredSource() settings {
	s := settings{}
	s.texts(v, "kind", "queue", "topic", "type", "key", "event_ts", "priority", "group", "header", "dedup_for", "tolerance", "keep_raw")
	s.numbers(v, "max_body", "rate_limit/per_second", "rate_limit/burst")
	if v.form.Get("kind") == "hmac" || v.form.Get("signature/header") != "" {
		s.texts(v, "signature/header", "signature/algorithm", "signature/encoding", "signature/prefix", "signature/timestamp")
	}
	var secrets []string
	for i := range 5 {
		if secret := v.form.Get("secrets/" + strconv.Itoa(i)); secret != "" {
			secrets = append(secrets, secret)
		}
	}
	if secrets != nil {
		s["secrets"] = secrets
	}
	s["headers"] = v.lines("headers")
	s["paused"] = v.form.Has("paused")
	return s
}

// createSource stores a new source.
func createSource(v *visit) (string, error) {
	name := v.form.Get("name")
	if name == "" {
		return "", invalid("name", "is missing: the sender posts to /in/ and this name")
	}
	_, err := v.api.Do(v.r.Context(), client.Request{Method: http.MethodPut, Path: "/sources/" + url.PathEscape(name), Header: ifAbsent(), Body: v.enteredSource()}, nil)
	if errors.Is(err, client.ErrPreconditionFailed) {
		err = invalid("name", "is that of a source that there is already; it can be changed on its page")
	}
	return did(sourcePath(name), "source.created", ""), err
}

// storeSource changes a source, if it is still the version that the form was about.
func storeSource(v *visit) (string, error) {
	_, err := v.api.Do(v.r.Context(), client.Request{
		Method: http.MethodPut, Path: "/sources/" + url.PathEscape(v.parameter("name")), Header: v.ifVersion(), Body: v.enteredSource(),
	}, nil)
	return did(v.sourcePath(), "source.changed", ""), err
}

// ifAbsent returns the header of a call about what does not exist yet.
func ifAbsent() http.Header { return http.Header{"If-None-Match": {"*"}} }

// ifVersion returns the header of a call that is about the version in the form. A form without one is about none.
func (v *visit) ifVersion() http.Header {
	return http.Header{"If-Match": {strconv.Quote(v.form.Get("version"))}}
}

func pauseSource(v *visit) (string, error) {
	return did(v.sourcePath(), "source.paused", ""), v.setPaused(true)
}

func resumeSource(v *visit) (string, error) {
	return did(v.sourcePath(), "source.resumed", ""), v.setPaused(false)
}

// setPaused pauses a source, or resumes it, and leaves all else as it is.
func (v *visit) setPaused(isPaused bool) error {
	for tries := 0; ; tries++ {
		s, err := v.source()
		if err != nil || s.Paused == isPaused && v.can(scopeManage) {
			return err
		}
		_, err = v.api.PutSource(v.r.Context(), s.Name, client.SourceSettings{
			Kind: s.Kind, Queue: s.Queue, Topic: s.Topic, Type: s.Type, Key: s.Key, EventTS: s.EventTS, Priority: s.Priority, Group: s.Group, Signature: s.Signature, Header: s.Header,
			DedupFor: s.DedupFor, Tolerance: s.Tolerance, KeepRaw: s.KeepRaw, Headers: s.Headers, MaxBody: s.MaxBody, RateLimit: s.RateLimit, Paused: isPaused,
		}, s.Version)
		if !errors.Is(err, client.ErrPreconditionFailed) || tries == 2 { // somebody else has changed it meanwhile
			return err
		}
	}
}

// confirmDeleteSource asks before a source is deleted.
func confirmDeleteSource(v *visit) (view, error) {
	s, err := v.source()
	if err != nil {
		return view{}, err
	}
	return view{name: "confirm", title: "Delete " + s.Name, nav: "sources", body: ui.Confirm{
		Question: "Delete the source " + s.Name + "?",
		Consequence: "Its secrets, its settings, its counts (" + ui.Count(s.Received, "delivery", "deliveries") + " received) and its delivery log go, and cannot be brought back. " +
			"Its sender gets 404 from then on. The events that it has made stay.",
		Button: "Delete", Action: v.sourcePath() + "/delete", Back: v.sourcePath(), Fields: []ui.Hidden{{Name: "version", Value: strconv.FormatInt(s.Version, 10)}},
	}}, nil
}

// deleteSource deletes a source, if it is still the version that the question was about.
func deleteSource(v *visit) (string, error) {
	_, err := v.api.Do(v.r.Context(), client.Request{Method: http.MethodDelete, Path: "/sources/" + url.PathEscape(v.parameter("name")), Header: v.ifVersion()}, nil)
	return did("sources", "source.deleted", ""), err
}

// testSource is the form of a delivery to try.
func testSource(v *visit) (view, error) {
	s, err := v.source()
	if err != nil {
		return view{}, err
	}
	return view{name: "source-test", title: "Test " + s.Name, nav: "sources", body: &ui.SourceTest{Source: s}}, nil
}

// tryDelivery is the form of a delivery to try with what would come of the one that was entered.
func tryDelivery(v *visit) (view, error) {
	shown, err := testSource(v)
	if err != nil {
		return view{}, err
	}
	headers, err := v.headers("headers")
	if err != nil {
		return view{}, err
	}
	// Browsers send the ends of lines as CRLF, whatever was pasted; senders of webhooks mostly have LF.
	body := settings{"headers": headers, "body": strings.ReplaceAll(v.form.Get("body"), "\r\n", "\n")}
	body.texts(v, "query")
	if at := v.form.Get("at"); at != "" {
		body["at"] = inUTC(at)
	}
	result := new(client.TriedDelivery)
	_, err = v.api.Do(v.r.Context(), client.Request{Method: http.MethodPost, Path: "/sources/" + url.PathEscape(v.parameter("name")) + "/test", Body: body}, result)
	if test, ok := shown.body.(*ui.SourceTest); ok {
		test.Result = result
	}
	return shown, err
}
