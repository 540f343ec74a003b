package gateway

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// A fakeHome has one key that people may log in with, of the id viewerID.
type fakeHome struct {
	*fakeCell
	token  atomic.Pointer[string] // of the session; nil: it has ended
	counts atomic.Int64           // requests that count for the rate limit
}

const (
	viewerKey = "qk_of_a_viewer"
	viewerID  = "k3x7q2ab"
)

// newFakeHome returns a home that has sessions.
func newFakeHome(t *testing.T) *fakeHome {
	t.Helper()
	h := &fakeHome{fakeCell: newFakeCell(t, 0)}
	own := func(serve http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "Bearer "+gatewayKey || r.Header.Get("Queued-As") != "" {
				t.Errorf("%s %s came with %v", r.Method, r.URL, r.Header)
			}
			serve(w, r)
		}
	}
	h.mux.HandleFunc("POST /cell/sessions", own(func(w http.ResponseWriter, r *http.Request) {
		var asked struct{ Key string }
		_ = json.NewDecoder(r.Body).Decode(&asked)
		if asked.Key != viewerKey {
			_, _ = io.WriteString(w, `{"result":"expired","token":null,"expires_at":null}`)
			return
		}
		token := "qs_token"
		h.token.Store(&token)
		_, _ = io.WriteString(w, `{"result":"accepted","token":"qs_token","expires_at":"2100-01-01T00:00:00Z"}`)
	}))
	h.mux.HandleFunc("GET /cell/session", own(func(w http.ResponseWriter, r *http.Request) {
		if token := h.token.Load(); token == nil || r.Header.Get("Queued-Session") != *token {
			_, _ = io.WriteString(w, `{"result":"unauthorized","key_id":null,"name":null,"scopes":[],"version":0}`)
			return
		}
		if r.URL.Query().Get("counts") == "true" {
			h.counts.Add(1)
		}
		_, _ = io.WriteString(w, `{"result":"accepted","key_id":"`+viewerID+`","name":"night","scopes":["read","manage"],"version":7}`)
	}))
	h.mux.HandleFunc("DELETE /cell/session", own(func(w http.ResponseWriter, _ *http.Request) {
		h.token.Store(nil)
		w.WriteHeader(http.StatusNoContent)
	}))
	return h
}

// answersRedrives has a cell answer a list of redrives, and returns the headers of the requests for it.
func (f *fakeCell) answersRedrives() func() []http.Header {
	var seen []http.Header
	f.mux.HandleFunc("GET /redrives", func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		seen = append(seen, r.Header.Clone())
		f.mu.Unlock()
		_, _ = io.WriteString(w, `{"redrives":[],"next":null}`)
	})
	return func() []http.Header {
		f.mu.Lock()
		defer f.mu.Unlock()
		return slices.Clone(seen)
	}
}

// logIn logs in with a key, and returns the field of requests with the session.
func (e *environment) logIn(key string) (cookie string, got answer) {
	e.t.Helper()
	e.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	got = e.call("POST", "/ui/login", url.Values{"key": {key}, "to": {"queues"}}.Encode(), "Content-Type: application/x-www-form-urlencoded", "Sec-Fetch-Site: same-origin")
	cookie, _, _ = strings.Cut(got.header.Get("Set-Cookie"), ";")
	return "Cookie: " + cookie, got
}

func TestPagesOfAGatewayCallEveryCellInTheNameOfTheViewer(t *testing.T) {
	t.Parallel()
	home, other := newFakeHome(t), newFakeCell(t, 1)
	atHome, atOther := home.answersRedrives(), other.answersRedrives()
	e := setup(t, nil, home.fakeCell, other)
	e.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	if got := e.call("GET", "/ui/redrives", ""); got.status != http.StatusSeeOther || got.header.Get("Location") != "./login?to=redrives" {
		t.Errorf("without a session: %d %v", got.status, got.header)
	}
	if got := e.call("GET", "/ui", ""); got.status != http.StatusSeeOther || got.header.Get("Location") != "ui/" {
		t.Errorf("/ui: %d %v", got.status, got.header)
	}
	if _, got := e.logIn("another"); got.status != http.StatusUnauthorized || !strings.Contains(got.body, "Key expired") {
		t.Errorf("an expired key: %d %s", got.status, got.body)
	}
	cookie, got := e.logIn(viewerKey)
	if got.status != http.StatusSeeOther || !strings.HasPrefix(cookie, "Cookie: __Host-queued=qs_token") || !strings.Contains(got.header.Get("Set-Cookie"), "Secure; SameSite=Lax") {
		t.Fatalf("the log-in: %d %v %s", got.status, got.header, got.body)
	}
	page := e.want(http.StatusOK, "night", "GET", "/ui/redrives", "", cookie, "Queued-As: somebody")
	if policy := page.header.Get("Content-Security-Policy"); !strings.Contains(policy, "script-src 'self'") || page.header.Get("X-Request-Id") == "" || page.header.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("the header of a page: %v", page.header)
	}
	if strings.Contains(page.body, "does not answer") {
		t.Error("a page of cells that answer says that one does not")
	}
	for i, seen := range [][]http.Header{atHome(), atOther()} {
		if len(seen) != 1 || seen[0].Get("Authorization") != "Bearer "+gatewayKey || !slices.Equal(seen[0]["Queued-As"], []string{viewerID}) || seen[0].Get("Cookie") != "" {
			t.Errorf("cell %d was asked with %v", i, seen)
		}
	}
	if n := home.counts.Load(); n != 1 {
		t.Errorf("one page counts as %d requests", n)
	}
	if got := e.call("POST", "/ui/logout", "", cookie, "Sec-Fetch-Site: cross-site"); got.status != http.StatusForbidden || home.token.Load() == nil {
		t.Errorf("a form of another origin: %d", got.status)
	}
	if got := e.call("POST", "/ui/logout", "", cookie, "Sec-Fetch-Site: same-origin"); got.status != http.StatusSeeOther || home.token.Load() != nil {
		t.Errorf("the log-out: %d", got.status)
	}
	if got := e.call("GET", "/ui/redrives", "", cookie); got.status != http.StatusSeeOther {
		t.Errorf("after the log-out: %d", got.status)
	}
	if log := e.log.String(); strings.Contains(log, viewerKey) || strings.Contains(log, "qs_token") {
		t.Error("the log has the key or the token")
	}
}

func TestDownloadThatACellRefusesIsNoSuccess(t *testing.T) {
	t.Parallel()
	home, other := newFakeHome(t), newFakeCell(t, 1)
	other.answers("GET /events/{id}/raw", http.StatusForbidden, `{"title":"Forbidden","detail":"The key is not for this queue."}`)
	e := setup(t, nil, home.fakeCell, other)
	cookie, _ := e.logIn(viewerKey)
	e.want(http.StatusForbidden, "The key is not for this queue.", "GET", "/ui/events/35184372088833/raw", "", cookie)
}

func TestCallersCannotCallInTheNameOfAnotherKey(t *testing.T) {
	t.Parallel()
	home, other := newFakeHome(t), newFakeCell(t, 1)
	atHome, atOther := home.answersRedrives(), other.answersRedrives()
	var passed atomic.Pointer[http.Header]
	home.mux.HandleFunc("GET /owners", func(_ http.ResponseWriter, r *http.Request) { passed.Store(&r.Header) })
	e := setup(t, nil, home.fakeCell, other)
	for _, as := range []string{"Queued-As: " + viewerID, "queued-as: " + viewerID} {
		e.want(http.StatusOK, "", "GET", "/redrives", "", as)
		e.want(http.StatusOK, "", "GET", "/owners", "", as)
		if _, ok := (*passed.Load())["Queued-As"]; ok {
			t.Error("the field was passed on")
		}
	}
	for _, header := range slices.Concat(atHome(), atOther()) {
		if _, ok := header["Queued-As"]; ok {
			t.Error("the field was passed on to several cells")
		}
	}
	single := setup(t, nil, home.fakeCell)
	single.want(http.StatusOK, "", "GET", "/owners", "", "Queued-As: "+viewerID)
	if _, ok := (*passed.Load())["Queued-As"]; ok {
		t.Error("the field was passed on to the only cell")
	}
}

func TestPagesNameTheCellThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	home, other := newFakeHome(t), newFakeCell(t, 1)
	home.answersRedrives()
	other.answersRedrives()
	e := setup(t, nil, home.fakeCell, other)
	cookie, _ := e.logIn(viewerKey)
	const notice = "Cell 1 does not answer. What it has is missing here."
	req := e.request("GET", "/ui/live?page=redrives", "", cookie, "Accept: text/event-stream")
	resp, err := e.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	next := func(what string, is func(line string) bool) {
		t.Helper()
		for lines.Scan() {
			if is(lines.Text()) {
				return
			}
		}
		t.Fatalf("the stream ended before %s: %v", what, lines.Err())
	}
	next("the page", func(line string) bool { return line == "event: parts" })
	thaw := other.freeze()
	next("the notice", func(line string) bool { return strings.Contains(line, notice) })
	e.want(http.StatusOK, notice, "GET", "/ui/redrives", "", cookie)
	thaw()
	next("the notice was gone", func(line string) bool { return strings.Contains(line, `"missing":""`) })
	home.token.Store(nil)
	next("the session had ended", func(line string) bool { return line == "event: ended" })
}

func TestPagesSayThatHomeDoesNotAnswer(t *testing.T) {
	t.Parallel()
	home, other := newFakeHome(t), newFakeCell(t, 1)
	e := setup(t, nil, home.fakeCell, other)
	cookie, _ := e.logIn(viewerKey)
	defer home.freeze()()
	e.until("home is away", func() bool { return !e.gateway.home().isUp() })
	e.want(http.StatusServiceUnavailable, "Home, cell 0", "GET", "/ui/redrives", "", cookie)
	if _, got := e.logIn(viewerKey); got.status != http.StatusServiceUnavailable || !strings.Contains(got.body, "Home, cell 0") {
		t.Errorf("a log-in: %d %s", got.status, got.body)
	}
}

// hostileConnections are fields that have a proxy drop others, or that are for one connection alone.
var hostileConnections = []http.Header{
	{"Connection": {"Queued-As"}},
	{"connection": {"queued-as"}},
	{"CONNECTION": {"close, QUEUED-AS"}},
	{"Connection": {"close", "keep-alive,\t Queued-As \t,"}},
	{"Connection": {"Authorization"}},
	{"Connection": {"Queued-As, Authorization, Cookie2, X-Forwarded-For, X-Forwarded-Host, X-Forwarded-Proto, X-Request-Id, Accept, Host, User-Agent"}},
	{"Connection": {"Upgrade, Queued-As"}, "Upgrade": {"h2c"}},
	{"Connection": {"Te, Trailer, Queued-As"}, "Te": {"trailers"}},
	{"Proxy-Connection": {"Queued-As"}, "Keep-Alive": {"Queued-As"}},
	{"Connection": {"Queued-As"}, "Queued-As": {""}},
	{"Queued-As": {"another"}, "queued-as": {"a third"}},
	{"Connection": {"Authorization"}, "Authorization": {"Bearer " + gatewayKey}},
	{"X-Forwarded-For": {"127.0.0.1"}, "Forwarded": {"for=127.0.0.1"}, "Connection": {"X-Forwarded-For"}},
}

// downloads are the paths of what pages pass on as a cell answers it.
var downloads = []string{"audit.csv", "audit.ndjson", "events/" + idOf(0) + "/raw", "events/" + idOf(1) + "/raw", "history/download?format=csv", "history/download?format=ndjson"}

// A download of a page has the rights of its viewer, whatever header the browser sends.
func TestDownloadsHaveTheRightsOfTheViewerWhateverTheHeaderIs(t *testing.T) {
	t.Parallel()
	home, other := newFakeHome(t), newFakeCell(t, 1)
	var calls atomic.Int64
	for _, f := range []*fakeCell{home.fakeCell, other} {
		for _, route := range []string{"GET /audit", "GET /events/{id}/raw", "GET /history"} {
			f.mux.HandleFunc(route, func(w http.ResponseWriter, r *http.Request) {
				calls.Add(1)
				isKnown := map[string]bool{"Authorization": true, "Queued-As": true, "X-Request-Id": true, "X-Forwarded-For": true, "X-Forwarded-Host": true, "X-Forwarded-Proto": true, "Accept": true, "User-Agent": true}
				for name := range r.Header {
					if !isKnown[name] {
						t.Errorf("%s came with the field %s: %q", r.URL, name, r.Header[name])
					}
				}
				if r.Header.Get("Authorization") != "Bearer "+gatewayKey || !slices.Equal(r.Header["Queued-As"], []string{viewerID}) {
					t.Errorf("%s came with %v", r.URL, r.Header)
					_, _ = io.WriteString(w, "everything")
					return
				}
				w.WriteHeader(http.StatusForbidden)
				_, _ = io.WriteString(w, `{"title":"Forbidden","detail":"not for this key"}`)
			})
		}
	}
	e := setup(t, nil, home.fakeCell, other)
	cookie, _ := e.logIn(viewerKey)
	for _, path := range downloads {
		for _, hostile := range append([]http.Header{nil}, hostileConnections...) {
			req := e.request("GET", "/ui/"+path, "", cookie, "X-Of-The-Browser: 1", "Range: bytes=0-1", "If-None-Match: *", "Accept-Language: en")
			req.Header.Del("Authorization")
			for name, values := range hostile {
				req.Header[name] = values
			}
			before := calls.Load()
			got := e.send(req)
			for got.status == http.StatusServiceUnavailable { // on a machine that is too busy to have home answer within its time
				got = e.send(req)
			}
			if got.status != http.StatusForbidden || !strings.Contains(got.body, "not for this key") || calls.Load() == before {
				t.Errorf("%s with %v: %d after %d calls: %.200s", path, hostile, got.status, calls.Load()-before, got.body)
			}
		}
	}
	// A field that Connection names is none: without its cookie, nobody is logged in.
	if got := e.call("GET", "/ui/audit.csv", "", cookie, "Connection: Cookie"); got.status != http.StatusSeeOther && got.status != http.StatusServiceUnavailable {
		t.Errorf("without the cookie: %d %s", got.status, got.body)
	}
}

// Cells see none of the fields for one connection, and nothing that says in whose name a call is made, in headers and trailers of any call.
func TestCellsGetNoFieldsThatAreForOneConnection(t *testing.T) {
	t.Parallel()
	home, other := newFakeCell(t, 0), newFakeCell(t, 1)
	var calls atomic.Int64
	for _, f := range []*fakeCell{home, other} {
		for _, route := range []string{"GET /redrives", "POST /in/{name}"} {
			f.mux.HandleFunc(route, func(w http.ResponseWriter, r *http.Request) {
				calls.Add(1)
				_, _ = io.Copy(io.Discard, r.Body)
				for _, name := range append([]string{"Queued-As", "X-Mine"}, connectionFields...) {
					if r.Header[name] != nil || r.Trailer[name] != nil {
						t.Errorf("%s came with %s: %v, trailer %v", r.URL, name, r.Header, r.Trailer)
					}
				}
				if r.Trailer["Authorization"] != nil || r.Trailer["Cookie"] != nil {
					t.Errorf("%s came with the trailer %v", r.URL, r.Trailer)
				}
				_, _ = io.WriteString(w, `{"redrives":[],"next":null}`)
			})
		}
	}
	e := setup(t, nil, home, other)
	for _, hostile := range append([]http.Header{{"Connection": {"X-Mine"}, "X-Mine": {"1"}, "Proxy-Authorization": {"Basic eA=="}}}, hostileConnections...) {
		for _, call := range []string{"GET /redrives", "POST /in/shop"} {
			method, path, _ := strings.Cut(call, " ")
			req := e.request(method, path, "")
			if method == http.MethodPost {
				req.Body, req.ContentLength = io.NopCloser(strings.NewReader("{}")), -1
				req.Trailer = http.Header{"Queued-As": {viewerID}, "Authorization": {"Bearer x"}, "Cookie": {"a=b"}, "X-Sum": {"7"}}
			}
			for name, values := range hostile {
				req.Header[name] = values
			}
			before := calls.Load()
			if got := e.send(req); got.status != http.StatusOK || calls.Load() == before {
				t.Errorf("%s with %v: %d %s", call, hostile, got.status, got.body)
			}
		}
	}
}

func TestOpenPagesEndSoonAfterHomeWentAway(t *testing.T) {
	t.Parallel()
	home, other := newFakeHome(t), newFakeCell(t, 1)
	home.answersRedrives()
	other.answersRedrives()
	e := setup(t, nil, home.fakeCell, other)
	cookie, _ := e.logIn(viewerKey)
	resp, err := e.client.Do(e.request("GET", "/ui/live?page=redrives", "", cookie, "Accept: text/event-stream"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() && lines.Text() != "event: parts" {
	}
	home.stop()
	var last []string
	for lines.Scan() {
		if lines.Text() != "" {
			last = append(last[max(0, len(last)-1):], lines.Text())
		}
	}
	if len(last) != 2 || last[0] != "event: problem" || !strings.Contains(last[1], "Home, cell 0") || lines.Err() != nil {
		t.Errorf("the stream ended with %q, %v", last, lines.Err())
	}
}

func TestHomesWordOnASessionEndsWithAChangeOfItsKeys(t *testing.T) {
	t.Parallel()
	home, other := newFakeHome(t), newFakeCell(t, 1)
	e := setup(t, nil, home.fakeCell, other)
	e.until("the keys of home are known", func() bool { return e.gateway.keysMark() != (mark{}) })
	d := newDoor(e.gateway)
	look := &sessionLook{at: time.Now().Add(time.Hour), keys: e.gateway.keysMark()}
	if !d.isFresh(look) {
		t.Error("a look does not count")
	}
	before := e.gateway.keysMark()
	home.keys.change(fakeKey{ID: "k", Revoked: true})
	e.until("the change is known", func() bool { return e.gateway.keysMark() != before })
	if d.isFresh(look) {
		t.Error("a look counts after a change of the keys")
	}
}
