package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// ofTwoCells is a batch that the gateway refuses to callers whom home knows, and has cells not asked about.
const ofTwoCells = `{"events":[{"queue":"a","payload":{}},{"queue":"b","payload":{}}]}`

func TestHomeIsAskedOnceAboutACallerOfManyCalls(t *testing.T) {
	t.Parallel()
	home, other := newFakeCell(t, 0), newFakeCell(t, 1)
	const calls = 20
	asked, answer := make(chan string, calls), make(chan struct{})
	inner := home.server.Config.Handler
	home.server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/keys/self" {
			inner.ServeHTTP(w, r)
			return
		}
		asked <- r.Header.Get("Authorization")
		<-answer
		if r.Header.Get("Authorization") == "Bearer wrong" {
			refuseCaller(w, r)
			return
		}
		_, _ = io.WriteString(w, `{"scopes":["read"]}`)
	})
	home.put(placement{Queue: "a", Cells: []int{0}})
	home.put(placement{Queue: "b", Cells: []int{1}})
	e := setup(t, nil, home, other)
	var calling sync.WaitGroup
	for i := range calls {
		key, status := "Authorization: Bearer right", batchNotAtomic.status
		if i%2 == 0 {
			key, status = "Authorization: Bearer wrong", http.StatusUnauthorized
		}
		calling.Go(func() {
			got := e.call("POST", "/events/batch", ofTwoCells, key)
			if got.status != status && got.status != http.StatusServiceUnavailable { // on a machine that is too busy to have all wait within the time that home has
				t.Errorf("a call with %s was answered %d %s", key, got.status, got.body)
			}
		})
	}
	e.until("all calls wait for home", func() bool {
		stacks, waiting := make([]byte, 8<<20), 0
		for goroutine := range bytes.SplitSeq(stacks[:runtime.Stack(stacks, true)], []byte("\n\n")) {
			if state, _, _ := bytes.Cut(goroutine, []byte("\n")); bytes.Contains(state, []byte("[select")) && bytes.Contains(goroutine, []byte(".(*Gateway).learn(")) {
				waiting++
			}
		}
		return waiting >= calls
	})
	close(answer)
	calling.Wait()
	times := map[string]int{}
	for range len(asked) {
		times[<-asked]++
	}
	if times["Bearer right"] != 1 || times["Bearer wrong"] > 1+calls/2 { // each call of a caller that is refused has home's answer to that call
		t.Errorf("home was asked %v", times)
	}
}

// adminKey is that of an admin in tests, which is no key of the gateway.
const adminKey = "the-key-of-an-admin"

// admits has home know adminKey, and the key of the gateway as that of an admin, until they are revoked, and answer calls about cells.
func (f *fakeCell) admits() (isRevoked *atomic.Bool) {
	isRevoked = new(atomic.Bool)
	inner := f.server.Config.Handler
	f.server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get("Authorization")
		isOfCaller := key == "Bearer "+adminKey || key == "Bearer "+gatewayKey && (r.URL.Path == "/keys/self" || strings.HasPrefix(r.URL.Path, "/cells"))
		switch {
		case isOfCaller && isRevoked.Load():
			refuseCaller(w, r)
		case key == "Bearer "+adminKey && r.URL.Path == "/keys/self":
			_, _ = io.WriteString(w, `{"scopes":["admin"]}`)
		case isOfCaller && r.Method == http.MethodGet && r.URL.Path == "/cells":
			f.mu.Lock()
			defer f.mu.Unlock()
			_ = json.NewEncoder(w).Encode(map[string]any{"cells": append([]listed{}, f.listed...)})
		case isOfCaller && strings.HasPrefix(r.URL.Path, "/cells/"):
			_, _ = io.WriteString(w, "{}")
		default:
			inner.ServeHTTP(w, r)
		}
	})
	return isRevoked
}

// A stranger is a server that a URL leads to which no cell is known at. It has seen the headers of what it was asked.
type stranger struct {
	server *httptest.Server
	mu     sync.Mutex
	seen   []http.Header
}

func newStranger(t *testing.T, answer http.HandlerFunc) *stranger {
	t.Helper()
	s := new(stranger)
	s.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.seen = append(s.seen, r.Header.Clone())
		s.mu.Unlock()
		answer(w, r)
	}))
	s.server.Listener = listenApart(t)
	s.server.Start()
	t.Cleanup(s.server.Close)
	return s
}

// headers returns the headers that came since the latest call.
func (s *stranger) headers() []http.Header {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := s.seen
	s.seen = nil
	return seen
}

// ownCalls are calls of the routes that the gateway answers itself, to callers that it has to know. The cell 2 is listed, at another URL.
func ownCalls(t *testing.T, at *stranger) (calls [][3]string) {
	t.Helper()
	for _, found := range table() {
		if found.own == nil || found.isHealth() {
			continue
		}
		for _, number := range []string{"2", "9"} {
			body := ""
			if found.method == http.MethodPut {
				body = fmt.Sprintf(`{"url":%q}`, at.server.URL)
			}
			calls = append(calls, [3]string{found.method, strings.ReplaceAll(found.pattern, "{number}", number), body})
		}
	}
	if len(calls) < 10 {
		t.Fatalf("the gateway answers %v", calls)
	}
	return calls
}

func TestRevokedKeysAreRefusedAtOnceOnEachRouteOfTheGateway(t *testing.T) {
	t.Parallel()
	home, other, two := newFakeCell(t, 0), newFakeCell(t, 1), newFakeCell(t, 2)
	isRevoked := home.admits()
	home.list(listedAt(two, false))
	at := newStranger(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, `{"cell":`+map[bool]string{true: "2", false: "9"}[r.Header.Get("Authorization") != ""]+`}`)
	})
	e := setup(t, nil, home, other)
	e.until("the cell can be used", func() bool { return e.gateway.cell(2) != nil && e.gateway.cell(2).isUp() })
	for _, key := range []string{adminKey, gatewayKey} {
		field := "Authorization: Bearer " + key
		for _, call := range ownCalls(t, at) {
			isRevoked.Store(false)
			if got := e.call(call[0], call[1], call[2], field); got.status != http.StatusOK && !strings.Contains(got.body, "another cell: 2") {
				t.Errorf("%v with %s was answered %d %s", call, key, got.status, got.body)
			}
			at.headers()
			isRevoked.Store(true)
			for range 2 {
				e.want(http.StatusUnauthorized, "unauthorized", call[0], call[1], call[2], field)
			}
			if seen := at.headers(); len(seen) > 0 {
				t.Errorf("%v with %s, which was revoked, had a URL asked with %v", call, key, seen)
			}
		}
	}
}

func TestRoutesOfTheGatewayAreNotAnsweredWhileHomeIsAway(t *testing.T) {
	t.Parallel()
	home, other, two := newFakeCell(t, 0), newFakeCell(t, 1), newFakeCell(t, 2)
	home.admits()
	home.list(listedAt(two, false))
	at := newStranger(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"cell":9}`) })
	e := setup(t, nil, home, other)
	e.until("the cell can be used", func() bool { return e.gateway.cell(2) != nil && e.gateway.cell(2).isUp() })
	calls := ownCalls(t, at)
	keys := []string{adminKey, gatewayKey, callerKey}
	for _, key := range keys {
		e.call("GET", "/version", "", "Authorization: Bearer "+key) // from here on it could be remembered
	}
	home.override.Store(&override{status: http.StatusInternalServerError})
	e.want(http.StatusServiceUnavailable, cellUnavailable.code, "GET", "/version", "")
	home.stop()
	e.until("home counts as away", func() bool { return !e.gateway.home().isUp() })
	at.headers()
	for _, key := range keys {
		for _, call := range calls {
			e.want(http.StatusServiceUnavailable, cellUnavailable.code, call[0], call[1], call[2], "Authorization: Bearer "+key)
		}
	}
	if seen := at.headers(); len(seen) > 0 {
		t.Errorf("a URL was asked with %v", seen)
	}
	e.want(http.StatusOK, "ok", "GET", "/livez", "")
	e.want(http.StatusOK, "ok", "GET", "/readyz", "")
}

func TestURLThatIsOfNoCellIsAskedWithTheKeyOfTheCaller(t *testing.T) {
	t.Parallel()
	home, given, two := newFakeCell(t, 0), newFakeCell(t, 1), newFakeCell(t, 2)
	home.admits()
	home.list(listedAt(two, true))
	elsewhere := newStranger(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"cell":9}`) })
	e := setup(t, nil, home, given)
	e.until("the cell can be used", func() bool { return e.gateway.cell(2) != nil && e.gateway.cell(2).isUp() })
	answers := map[string]http.HandlerFunc{
		"200": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"cell":9}`) },
		"401": refuseCaller,
		"403": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) },
		"404": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) },
		"500": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
		"307": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.server.URL+"/cell", http.StatusTemporaryRedirect)
		},
		"text": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") },
	}
	for name, answer := range answers {
		at := newStranger(t, answer)
		host := strings.TrimPrefix(at.server.URL, "http://")
		for _, number := range []string{"9", "2", "1", "0"} { // not known, listed, of the settings, home
			body := fmt.Sprintf(`{"url":%q}`, at.server.URL)
			got := e.call("PUT", "/cells/"+number, body, "Authorization: Bearer "+adminKey)
			if want := map[bool]int{true: http.StatusOK, false: http.StatusUnprocessableEntity}[name == "200" && number == "9"]; got.status != want || strings.Contains(got.body, "gateway's key") {
				t.Errorf("cell %s at a URL that answers %s: %d %s", number, name, got.status, got.body)
			}
			if seen := at.headers(); len(seen) != 1 || !slices.Equal(seen[0]["Authorization"], []string{"Bearer " + adminKey}) {
				t.Errorf("cell %s at a URL that answers %s: it was asked with %v", number, name, seen)
			}
		}
		known := strings.TrimPrefix(two.server.URL, "http://")
		for _, text := range []string{
			"http://" + known + "@" + host, "http://x:y@" + host, "HTTP://" + host, "http:" + host, "//" + host, "http://" + host + "/x", "http://" + host + "?", "http://" + host + "#", "http://" + host + "/%2f",
			"http://" + host + "\\@" + known, "http://" + known + "#@" + host, "https://" + host, "ftp://" + host, " http://" + host,
		} {
			e.call("PUT", "/cells/2", fmt.Sprintf(`{"url":%q}`, text), "Authorization: Bearer "+adminKey)
			for _, header := range at.headers() {
				if !slices.Equal(header["Authorization"], []string{"Bearer " + adminKey}) {
					t.Errorf("%s: it was asked with %v", text, header)
				}
			}
		}
	}
	if seen := elsewhere.headers(); len(seen) > 0 {
		t.Errorf("where a URL redirects to was asked with %v", seen)
	}
}

func TestHealthChecksOfCellsHaveNoKey(t *testing.T) {
	t.Parallel()
	home := newFakeCell(t, 0)
	looked := make(chan http.Header, 100)
	inner := home.server.Config.Handler
	home.server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/livez" {
			select {
			case looked <- r.Header.Clone():
			default:
			}
		}
		inner.ServeHTTP(w, r)
	})
	setup(t, nil, home)
	select {
	case header := <-looked:
		if header["Authorization"] != nil {
			t.Errorf("it came with %v", header)
		}
	case <-time.After(waitTimeout):
		t.Error("no look")
	}
}

func TestHomesWordOnACallerEndsWithAChangeOfItsKeys(t *testing.T) {
	t.Parallel()
	home, other := newFakeCell(t, 0), newFakeCell(t, 1)
	isRevoked := home.admits()
	home.put(placement{Queue: "a", Cells: []int{0}})
	home.put(placement{Queue: "b", Cells: []int{1}})
	e := setup(t, nil, home, other)
	e.until("the keys of home are known", func() bool { return e.gateway.keysMark() != (mark{}) })
	ask := func(status int, code string) {
		t.Helper()
		e.want(status, code, "POST", "/events/batch", ofTwoCells, "Authorization: Bearer "+adminKey)
	}
	ask(batchNotAtomic.status, batchNotAtomic.code)
	isRevoked.Store(true)
	ask(batchNotAtomic.status, batchNotAtomic.code) // nothing has said that a key has changed
	before := e.gateway.keysMark()
	home.keys.change(fakeKey{ID: "k", Revoked: true})
	e.until("the change is known", func() bool { return e.gateway.keysMark() != before })
	ask(http.StatusUnauthorized, "unauthorized")

	isRevoked.Store(false)
	ask(batchNotAtomic.status, batchNotAtomic.code)
	home.stop()
	e.until("home counts as away", func() bool { return !e.gateway.home().isUp() })
	age := func(by time.Duration) {
		e.gateway.callers.mu.Lock()
		defer e.gateway.callers.mu.Unlock()
		for hash, known := range e.gateway.callers.known {
			known.at = known.at.Add(-by)
			e.gateway.callers.known[hash] = known
		}
	}
	ask(batchNotAtomic.status, batchNotAtomic.code)
	age(callerLast - waitTimeout)
	ask(batchNotAtomic.status, batchNotAtomic.code)
	age(waitTimeout)
	ask(http.StatusServiceUnavailable, cellUnavailable.code)
}

// TestNoCellLearnsTheKeyOfAnotherOne has every call of the gateway's own come to a cell with the key of that cell alone.
func TestNoCellLearnsTheKeyOfAnotherOne(t *testing.T) {
	t.Parallel()
	fakes := []*fakeCell{newFakeCell(t, 0), newFakeCell(t, 1), newFakeCell(t, 2)}
	keys := map[int]string{0: gatewayKey, 1: "the-key-for-cell-1"}
	var mu sync.Mutex
	seen := map[int]map[string]int{}
	for _, f := range fakes {
		seen[f.number] = map[string]int{}
		inner := f.server.Config.Handler
		f.server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			if r.URL.Path != "/livez" {
				seen[f.number][r.Header.Get("Authorization")]++
			}
			mu.Unlock()
			if r.Header.Get("Authorization") == "Bearer the-key-for-cell-1" && f.number == 1 { // what the fake calls the key of the gateway
				r.Header.Set("Authorization", "Bearer "+gatewayKey)
			}
			inner.ServeHTTP(w, r)
		})
	}
	fakes[0].put(placement{Queue: "moved", Cells: []int{2}, Former: []former{{Cells: cellSet{1}, Since: time.Now().Add(-time.Hour)}}})
	fakes[0].keys.change(fakeKey{ID: "a"})
	e := setup(t, func(cfg *Config) {
		cfg.Key, cfg.emptyEvery = "the-key-for-others", 10*time.Millisecond
		cfg.Keys = func() map[int]string { return keys }
	}, fakes[:2]...)
	asked := func(number int, key string) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			return seen[number]["Bearer "+key] > 3
		}
	}
	e.until("both are asked", func() bool { return asked(0, gatewayKey)() && asked(1, "the-key-for-cell-1")() })
	url := fakes[2].server.URL
	fakes[0].list(listed{Cell: 2, URL: &url, TakesNew: true})
	e.until("the listed one is asked", asked(2, "the-key-for-others"))
	mu.Lock()
	defer mu.Unlock()
	for number, key := range map[int]string{0: gatewayKey, 1: "the-key-for-cell-1", 2: "the-key-for-others"} {
		if len(seen[number]) != 1 {
			t.Errorf("cell %d was asked with %v, want %s alone", number, seen[number], key)
		}
	}
}
