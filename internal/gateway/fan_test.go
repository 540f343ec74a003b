package gateway

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
)

// A wideCell has what came to one of several cells that hold a part of a queue.
type wideCell struct {
	*fakeCell

	counts string // of events in a queue

	mu   sync.Mutex
	seen []string // "METHOD path If-Match If-None-Match body"
}

func (w *wideCell) came() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.seen)
}

// on has the cell answer a pattern.
func (w *wideCell) on(pattern string, answer func(rw http.ResponseWriter, body string)) {
	w.mux.HandleFunc(pattern, func(rw http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		if r.Header.Get("If-Match") == noVersion {
			rw.WriteHeader(http.StatusPreconditionFailed)
			return
		}
		w.mu.Lock()
		w.seen = append(w.seen, strings.Join([]string{r.Method, r.URL.RequestURI(), r.Header.Get("If-Match"), r.Header.Get("If-None-Match"), string(text)}, " "))
		w.mu.Unlock()
		answer(rw, string(text))
	})
}

// answersWith has the cell answer with a status and a body.
func (w *wideCell) answersWith(pattern string, status int, body string) {
	w.on(pattern, func(rw http.ResponseWriter, _ string) {
		rw.Header().Set("Etag", `"7"`)
		rw.Header().Set("Location", "/somewhere")
		rw.WriteHeader(status)
		_, _ = io.WriteString(rw, body)
	})
}

// wideCells starts a gateway in front of three cells, with the queue wide on the cells 1 and 2, formerly 0, and narrow on 1.
func wideCells(t *testing.T) (*environment, []*wideCell, *settable) {
	t.Helper()
	fakes := []*fakeCell{newFakeCell(t, 0), newFakeCell(t, 1), newFakeCell(t, 2)}
	settings := newSettable(fakes...)
	fakes[0].put(placement{Queue: "wide", Cells: []int{1, 2}, Former: []former{{Cells: cellSet{0}}}})
	fakes[0].put(placement{Queue: "narrow", Cells: []int{1}})
	var cells []*wideCell
	for _, f := range fakes {
		w := &wideCell{fakeCell: f, counts: `{"ready":0,"scheduled":0,"leased":0}`}
		f.mux.HandleFunc("GET /queues/{name}", func(rw http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(rw, w.counts) })
		cells = append(cells, w)
	}
	return setup(t, nil, fakes...), cells, settings
}

func TestLeadingCellDecidesWhatAQueueIsSetTo(t *testing.T) {
	t.Parallel()
	e, cells, settings := wideCells(t)
	status := http.StatusPreconditionFailed
	cells[1].on("PUT /queues/wide", func(rw http.ResponseWriter, body string) {
		rw.Header().Set("Etag", `"7"`)
		rw.WriteHeader(status)
		if status == http.StatusOK {
			settings.mu.Lock()
			settings.copies[1] = `{"policy":` + body + `,"push":null}`
			settings.mu.Unlock()
		}
	})
	put := func(body string) answer {
		return e.call("PUT", "/queues/wide", body, "If-Match: \"3\"", "If-None-Match: *", "Content-Type: application/json")
	}
	if got := put(`{"max_attempts":5}`); got.status != status || settings.get(2) != "" {
		t.Errorf("answered %d, and cell 2 has %q", got.status, settings.get(2))
	}
	status = http.StatusOK
	if got := put(`{"max_attempts":5}`); got.status != status || got.header.Get("Etag") != `"7"` || got.header.Get(unavailableHeader) != "" {
		t.Errorf("answered %d %v", got.status, got.header)
	}
	want := `{"policy":{"max_attempts":5},"push":null}`
	if settings.get(0) != want || settings.get(2) != want {
		t.Errorf("the others are set to %q and %q", settings.get(0), settings.get(2))
	}
	if seen := cells[1].came()[0]; seen != `PUT /queues/wide "3" * {"max_attempts":5}` {
		t.Errorf("the leading cell got %q", seen)
	}
	// A cell that is away is named, and follows when it is back.
	thaw := cells[2].freeze()
	e.until("the cell counts as away", func() bool { return !e.gateway.cell(2).isUp() })
	if got := put(`{"max_attempts":6}`); got.status != status || got.header.Get(unavailableHeader) != "2" {
		t.Errorf("answered %d %v", got.status, got.header)
	}
	thaw()
	e.until("the cell is set", func() bool { return strings.Contains(settings.get(2), "6") })
	// So does one that another gateway knows of.
	settings.mu.Lock()
	settings.copies[1], settings.copies[2] = `{"policy":{"max_attempts":8},"push":null}`, ""
	settings.mu.Unlock()
	other := setup(t, nil, cells[0].fakeCell, cells[1].fakeCell, cells[2].fakeCell)
	other.until("the cell is set", func() bool { return strings.Contains(settings.get(2), "8") })
	if got := put(""); cells[1].came()[len(cells[1].came())-1] != `PUT /queues/wide "3" * ` || got.status != status {
		t.Errorf("without a body, the leading cell got %q", cells[1].came())
	}
}

func TestQueueThatIsSetToNothingOnItsLeadingCellLeavesTheOthersAlone(t *testing.T) {
	t.Parallel()
	e, _, settings := wideCells(t)
	settings.mu.Lock()
	settings.copies[1], settings.copies[2] = `{"policy":null,"push":null}`, "as it is"
	settings.reads = 0
	settings.mu.Unlock()
	at := e.gateway.cell(2)
	if err := e.gateway.setAsLeading(t.Context(), at, "wide", false); err != nil || settings.get(2) != "as it is" {
		t.Errorf("%v; set to %q", err, settings.get(2))
	}
	if err := e.gateway.setAsLeading(t.Context(), at, "wide", true); err != nil || settings.get(2) != settings.get(1) {
		t.Errorf("%v; set to %q", err, settings.get(2))
	}
}

func TestQueueThatIsNotEmptyOnOneCellIsNotDeleted(t *testing.T) {
	t.Parallel()
	e, cells, _ := wideCells(t)
	for _, w := range cells {
		w.answersWith("DELETE /queues/wide", 200, `{"purged":1}`)
	}
	cells[2].counts = `{"ready":2,"scheduled":1,"waiting":4,"leased":0}`
	e.want(409, `The queue has events: 7.`, "DELETE", "/queues/wide", "")
	cells[0].counts = `{"ready":0,"scheduled":0,"leased":4}`
	e.want(409, `"queue_leased"`, "DELETE", "/queues/wide?purge=true", "")
	for _, w := range cells {
		if got := w.came(); len(got) > 0 {
			t.Errorf("although it was refused, cell %d got %q", w.number, got)
		}
	}
	cells[0].counts = `{"ready":0,"scheduled":0,"leased":0}`
	e.want(200, `{"purged":3}`, "DELETE", "/queues/wide?purge=true", "")
	defer cells[2].freeze()()
	e.until("the cell counts as away", func() bool { return !e.gateway.cell(2).isUp() })
	e.want(503, "Nothing was deleted", "DELETE", "/queues/wide", "")
}

func TestQueueThatSomethingNamesOnAnotherCellIsNotDeleted(t *testing.T) {
	t.Parallel()
	e, cells, _ := wideCells(t)
	isNamed := true
	cells[0].on("DELETE /queues/narrow", func(rw http.ResponseWriter, _ string) {
		if !isNamed {
			rw.WriteHeader(http.StatusNotFound)
			return
		}
		rw.WriteHeader(http.StatusConflict)
		_, _ = io.WriteString(rw, `{"code":"queue_in_use","detail":"source github"}`)
	})
	cells[1].answersWith("DELETE /queues/narrow", 200, `{"purged":4}`)
	cells[2].answersWith("DELETE /queues/narrow", 404, `{"code":"queue_not_found"}`)
	e.want(409, "source github", "DELETE", "/queues/narrow?purge=true", "", `If-Match: "7"`)
	wantTexts(t, "home", cells[0].came(), "DELETE /queues/narrow   ") // it has nothing to purge, and its version is not the one that the caller has seen
	wantTexts(t, "the cell of the queue", cells[1].came())
	isNamed = false
	e.want(200, `{"purged":4}`, "DELETE", "/queues/narrow?purge=true", "", `If-Match: "7"`)
	wantTexts(t, "the cell of the queue", cells[1].came(), `DELETE /queues/narrow?purge=true "7"  `)
	defer cells[2].freeze()()
	e.until("the cell counts as away", func() bool { return !e.gateway.cell(2).isUp() })
	e.want(503, "names the queue. Nothing was deleted", "DELETE", "/queues/narrow", "")
}

func TestPushThatWasDeletedWhileACellWasAwayIsDeletedThere(t *testing.T) {
	t.Parallel()
	e, cells, settings := wideCells(t)
	settings.mu.Lock()
	settings.copies[1], settings.copies[2] = `{"policy":null,"push":null}`, `{"policy":null,"push":{}}`
	settings.mu.Unlock()
	cells[1].answersWith("DELETE /queues/wide/push", 204, "")
	thaw := cells[2].freeze()
	e.until("the cell counts as away", func() bool { return !e.gateway.cell(2).isUp() })
	if got := e.want(204, "", "DELETE", "/queues/wide/push", ""); got.header.Get(unavailableHeader) != "2" {
		t.Errorf("answered %v", got.header)
	}
	thaw()
	e.until("the push is deleted there, too", func() bool { return settings.get(2) == settings.get(1) })
}
