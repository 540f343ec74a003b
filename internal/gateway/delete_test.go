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
func wideCells(t *testing.T) (*environment, []*wideCell) {
	t.Helper()
	fakes := []*fakeCell{newFakeCell(t, 0), newFakeCell(t, 1), newFakeCell(t, 2)}
	fakes[0].put(placement{Queue: "wide", Cells: []int{1, 2}, Former: []former{{Cells: cellSet{0}}}})
	fakes[0].put(placement{Queue: "narrow", Cells: []int{1}})
	var cells []*wideCell
	for _, f := range fakes {
		w := &wideCell{fakeCell: f, counts: `{"ready":0,"scheduled":0,"leased":0}`}
		f.mux.HandleFunc("GET /queues/{name}", func(rw http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(rw, w.counts) })
		cells = append(cells, w)
	}
	return setup(t, nil, fakes...), cells
}

func TestQueueThatIsNotEmptyOnOneCellIsNotDeleted(t *testing.T) {
	t.Parallel()
	e, cells := wideCells(t)
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

func TestHomeDecidesWhetherAQueueIsDeleted(t *testing.T) {
	t.Parallel()
	e, cells := wideCells(t)
	isNamed := true
	cells[0].on("DELETE /queues/narrow", func(rw http.ResponseWriter, _ string) {
		if isNamed {
			rw.WriteHeader(http.StatusConflict)
			_, _ = io.WriteString(rw, `{"code":"queue_in_use","detail":"source github"}`)
			return
		}
		rw.WriteHeader(http.StatusNotFound) // it is set to nothing
		_, _ = io.WriteString(rw, `{"code":"queue_not_found"}`)
	})
	cells[1].answersWith("DELETE /queues/narrow", 200, `{"purged":4}`)
	e.want(409, "source github", "DELETE", "/queues/narrow?purge=true", "", `If-Match: "7"`)
	wantTexts(t, "home", cells[0].came(), `DELETE /queues/narrow?purge=true "7"  `)
	wantTexts(t, "the cell of the queue", cells[1].came())
	isNamed = false
	e.want(200, `{"purged":4}`, "DELETE", "/queues/narrow?purge=true", "")
	wantTexts(t, "the cell of the queue", cells[1].came(), `DELETE /queues/narrow?purge=true   `)
	cells[1].override.Store(&override{404, `{"code":"queue_not_found"}`})
	e.want(404, "queue_not_found", "DELETE", "/queues/narrow", "")
}
