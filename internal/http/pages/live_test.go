package pages

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
)

func TestOpenPagesRestNoLongerThanTheDatabaseNeeds(t *testing.T) {
	t.Parallel()
	for took, want := range map[time.Duration]time.Duration{
		0: 0, 20 * time.Millisecond: 80 * time.Millisecond, time.Second: 4 * time.Second, renderTimeout: maxLiveRest, time.Hour: maxLiveRest,
	} {
		if got := restAfter(took); got != want {
			t.Errorf("after a page of %v its slot rests for %v, not %v", took, got, want)
		}
	}
}

// testHub returns a hub whose pages are those of mux.
func testHub(mux *chi.Mux) *hub {
	h := &Handler{mux: mux}
	h.live = newHub(h)
	return h.live
}

// A testViewer has the rights of a key that no other one has.
type testViewer struct {
	Viewer
	key string
}

// Rights implements Viewer.
func (v *testViewer) Rights() any { return v.key }

// open has a viewer join a page for the length of the test.
func (b *hub) open(t *testing.T, viewer Viewer, path string) error {
	t.Helper()
	_, leave, err := b.join(viewer, path, httptest.NewRequestWithContext(t.Context(), http.MethodGet, Prefix+"live", http.NoBody))
	if err == nil {
		t.Cleanup(leave)
	}
	return err
}

func TestManySlowPagesOfAKeyDoNotHoldUpThoseOfOthers(t *testing.T) {
	t.Parallel()
	mux := chi.NewRouter()
	began, goOn, quick := make(chan struct{}, 100), make(chan struct{}, 100), make(chan struct{}, 100)
	mux.Get(Prefix+"slow/{n}", func(_ http.ResponseWriter, r *http.Request) {
		began <- struct{}{}
		select {
		case <-goOn:
		case <-r.Context().Done():
		}
	})
	mux.Get(Prefix+"quick", func(http.ResponseWriter, *http.Request) { quick <- struct{}{} })
	b, slow := testHub(mux), &testViewer{key: "slow"}
	for n := range 40 {
		if err := b.open(t, slow, "slow/"+strconv.Itoa(n)); err != nil {
			t.Fatal(err)
		}
	}
	for range liveSlots {
		<-began
	}
	if err := b.open(t, &testViewer{key: "quick"}, "quick"); err != nil {
		t.Fatal(err)
	}
	for range liveSlots + 2 { // with one of the slow key that waits before it, and one more
		goOn <- struct{}{}
	}
	select {
	case <-quick:
	case <-time.After(time.Minute):
		t.Fatal("the page of the other key waits behind those of the slow one")
	}
}

func TestNoKeyTakesThePlacesOfAllOpenPages(t *testing.T) {
	t.Parallel()
	b, greedy := testHub(chi.NewRouter()), &testViewer{key: "greedy"}
	for n := range maxViewsOfKey {
		if err := b.open(t, greedy, strconv.Itoa(n)); err != nil {
			t.Fatalf("page %d: %v", n, err)
		}
	}
	if b.open(t, greedy, "one more") == nil {
		t.Error("a key has more open pages than it may")
	}
	if err := b.open(t, greedy, "1"); err != nil {
		t.Errorf("one more viewer of an open page: %v", err)
	}
	if err := b.open(t, &testViewer{key: "another"}, "page"); err != nil {
		t.Errorf("a page of another key: %v", err)
	}
}

func TestPlacesOfClosedPagesAreFree(t *testing.T) {
	t.Parallel()
	b, viewer := testHub(chi.NewRouter()), &testViewer{key: "key"}
	for n := range maxViewsOfKey + 1 {
		_, leave, err := b.join(viewer, strconv.Itoa(n), httptest.NewRequestWithContext(t.Context(), http.MethodGet, Prefix+"live", http.NoBody))
		if err != nil {
			t.Fatalf("page %d: %v", n, err)
		}
		leave()
	}
	if len(b.views) != 0 || len(b.keys) != 0 {
		t.Errorf("%d pages and %d keys are left", len(b.views), len(b.keys))
	}
}

// A viewer who comes while a page cannot be read must get every part once it can: nobody else has told what changed before.
func TestViewersGetAllThatChangedSinceTheLookTheyKnow(t *testing.T) {
	t.Parallel()
	v := &openView{parts: map[string]string{"a": "1", "b": "2"}, changed: map[string]int{"a": 1, "b": 3}, news: make(chan struct{}), look: 3}
	expect := func(known, wantThen int, want string) {
		t.Helper()
		for range 2 { // the second time the event may be there already
			event, then, _, err := v.since(known)
			_, data, _ := strings.Cut(string(event), `"parts":`)
			if err != nil || then != wantThen || strings.TrimSpace(data) != want {
				t.Errorf("after the look %d: %q, then %d, %v; want %q, then %d", known, event, then, err, want, wantThen)
			}
		}
	}
	expect(0, 3, `{"a":"1","b":"2"}}`)
	expect(2, 3, `{"b":"2"}}`)
	expect(3, 3, `{}}`)
	v.problem, v.look, v.latest = problemOf(errTooManyViews), 4, nil
	expect(0, 0, "")
	expect(3, 3, "")
	v.problem, v.look, v.parts["a"], v.changed["a"] = nil, 5, "3", 5
	expect(0, 5, `{"a":"3","b":"2"}}`)
	expect(3, 5, `{"a":"3"}}`)
	expect(4, 5, `{"a":"3"}}`)
}
