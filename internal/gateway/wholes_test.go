package gateway

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
)

func TestCallThatSeveralCellsHaveAPartOfNamesThemAndDoesNothing(t *testing.T) {
	t.Parallel()
	e, cells := wideCells(t)
	for _, w := range cells {
		w.answersWith("POST /queues/wide/purge", 200, `{"purged":1}`)
	}
	var doc document
	got := e.want(http.StatusConflict, "The cells 0, 1 and 2", "POST", "/queues/wide/purge", "")
	if err := json.Unmarshal([]byte(got.body), &doc); err != nil || !slices.Equal(doc.Cells, []int{0, 1, 2}) {
		t.Errorf("answered %s (%v)", got.body, err)
	}
	for _, w := range cells {
		wantTexts(t, fmt.Sprintf("cell %d", w.number), w.came())
		e.want(http.StatusOK, `{"purged":1}`, "POST", fmt.Sprintf("/cells/%d/queues/wide/purge", w.number), "")
		wantTexts(t, fmt.Sprintf("cell %d", w.number), w.came(), "POST /queues/wide/purge   ")
	}
}

func TestCallBelowACellIsPassedOnAsItIs(t *testing.T) {
	t.Parallel()
	home, other := newFakeCell(t, 0), newFakeCell(t, 1)
	type request struct {
		uri, body string
		header    http.Header
	}
	came := make(chan request, 1)
	other.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		came <- request{r.Method + " " + r.RequestURI, string(body), r.Header}
		w.Header()["Set-Cookie"] = []string{"a=b", "__Host-queued=home's; Path=/", "__Host-queued-1=its own; Path=/"}
		w.Header().Set("Clear-Site-Data", "*")
		w.WriteHeader(http.StatusTeapot)
	})
	e := setup(t, nil, home, other)
	e.want(http.StatusNotFound, "knows no cell", "GET", "/cells/2/cell", "")
	e.want(http.StatusUnauthorized, "unauthorized", "GET", "/cells/2/cell", "", "Authorization: Bearer nobody") // who learns nothing of cells
	got := e.want(http.StatusTeapot, "", "PUT", "/cells/1/queues/a%2Fb/groups/%2E%2E?x=%zz;y", "body", "Authorization: Basic c3Ry", "Cookie: __Host-queued=0; __Host-queued-1=1")
	r := <-came
	if r.uri != "PUT /queues/a%2Fb/groups/%2E%2E?x=%zz;y" || r.body != "body" || r.header.Get("Authorization") != "Basic c3Ry" || r.header.Get("Cookie") != "" || !slices.Equal(got.header["Set-Cookie"], []string{"__Host-queued-1=its own; Path=/"}) ||
		got.header.Get("Clear-Site-Data") != "" {
		t.Errorf("the cell got %+v, and the caller %v", r, got.header)
	}
}

// A cell must not get log-ins to the pages of another one, nor what else is in cookies.
func TestPagesOfACellGetTheCookieOfTheirLogInAlone(t *testing.T) {
	t.Parallel()
	fakes := []*fakeCell{newFakeCell(t, 0), newFakeCell(t, 1), newFakeCell(t, 2)}
	for _, f := range fakes {
		f.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, r.URL.Path+" "+r.Header.Get("Cookie"))
		})
	}
	e := setup(t, nil, fakes...)
	const all = "Cookie: other=x; __Host-queued=home; __Host-queued-1=one; __Host-queued-2=two"
	for path, want := range map[string]string{
		"/ui/":             "/ui/ __Host-queued=home",
		"/ui":              "/ui __Host-queued=home",
		"/cells/0/ui/a":    "/ui/a __Host-queued=home",
		"/cells/1/ui/":     "/ui/ __Host-queued-1=one",
		"/cells/2/ui/live": "/ui/live __Host-queued-2=two",
		"/cells/1/events":  "/events ",
		"/keys":            "/keys ",
		"/nowhere":         "/nowhere ",
	} {
		if got := e.call("GET", path, "", all); got.status != http.StatusOK || got.body != want {
			t.Errorf("%s: the cell got %q, want %q", path, got.body, want)
		}
	}
	if got := e.call("GET", "/cells/1/ui/", "", strings.ReplaceAll(all, "queued-1", "queued-3")); got.body != "/ui/ " {
		t.Errorf("without a log-in there the cell got %q", got.body)
	}
}

func TestEventsMoveIntoAQueueOnTheirCell(t *testing.T) {
	t.Parallel()
	e, cells := wideCells(t)
	cells[1].answersWith("POST /queues/narrow/move", 200, `{"moved":2}`)
	e.want(200, `{"moved":2}`, "POST", "/queues/narrow/move", `{"to":"wide"}`)
	e.want(200, `{"moved":2}`, "POST", "/queues/narrow/move", `{"to":"new"}`) // which is placed there
	if p, _ := e.gateway.placements.get("new"); p == nil || !slices.Equal(p.Cells, cellSet{1}) {
		t.Errorf("the new queue is placed on %v", p)
	}
	e.want(200, `{"moved":2}`, "POST", "/queues/narrow/move", `{"to":"queued.own"}`) // the cell says what is wrong
}
