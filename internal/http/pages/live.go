package pages

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/queued/queued/client"
	"github.com/queued/queued/internal/failure"
	"github.com/queued/queued/internal/ui"
)

const (
	// liveInterval is the time between two looks at a page that somebody has open.
	liveInterval = 2 * time.Second
	// liveSlots is how many pages are rendered at once for those who have them open. A slot rests for liveRest times as long as its page took, so that these
	// pages take at most two fifths of a processor. With many or slow pages, each is looked at less often than every liveInterval.
	liveSlots, liveRest = 2, 4
	// maxLiveRest bounds that rest: a page that takes long waits for the database, and once that answers again, the open pages do not go on resting.
	maxLiveRest = 5 * time.Second
	// liveWrite bounds one write to a viewer. One that takes nothing is given up, and comes back.
	liveWrite = 10 * time.Second
	// renderTimeout bounds the rendering of a page, with the calls that it makes.
	renderTimeout = 15 * time.Second
	// maxViews bounds the different pages that are rendered again and again, and maxViewsOfKey those of one key: no key takes the places of all others.
	maxViews, maxViewsOfKey = 500, 250
)

// A hub renders the pages that are open, each once for all viewers with the same rights, and tells them which parts have changed.
type hub struct {
	h  *Handler
	mu sync.Mutex
	// slots has an element for each page that is being rendered. A slot rests after its page, so that open pages take a small part of the server however many they are.
	slots chan struct{}
	// views are the pages that somebody has open. Each has a goroutine, which ends with its last viewer.
	views map[viewKey]*openView
	// keys are the keys with open pages, by their rights. Where no key is needed, there is one.
	keys map[any]*openKey
}

// An openKey is what the open pages of a key share.
type openKey struct {
	views int
	// turn has an element while a page of the key waits for a slot. The others wait for their turn, so the slots go to all keys in turn, however many pages one has open.
	turn chan struct{}
}

// A viewKey names a page with the rights of those who look at it: see Viewer.Rights.
type viewKey struct {
	rights any
	path   string
}

// An openView is a page that somebody has open.
type openView struct {
	viewers int
	cancel  context.CancelFunc

	mu      sync.Mutex
	parts   map[string]string // as they are now
	changed map[string]int    // the number of the look that each part has changed at
	look    int
	at      time.Time
	problem *ui.Problem   // why the latest look failed; nil: it did not
	news    chan struct{} // is closed at the next look
	latest  []byte        // the event for those who know the look before; nil: nobody has asked for it yet
}

func newHub(h *Handler) *hub {
	return &hub{h: h, slots: make(chan struct{}, liveSlots), views: make(map[viewKey]*openView), keys: make(map[any]*openKey)}
}

var errTooManyViews = problem(http.StatusServiceUnavailable, "Too many open pages", "The page is not live: too many different pages are open. It can be loaded again.")

// join adds a viewer to a page. The caller calls leave when it has gone.
func (b *hub) join(viewer Viewer, path string, r *http.Request) (v *openView, leave func(), err error) {
	key := viewKey{rightsOf(viewer), path}
	b.mu.Lock()
	defer b.mu.Unlock()
	v = b.views[key]
	if v == nil {
		of := b.keys[key.rights]
		if of == nil {
			of = &openKey{turn: make(chan struct{}, 1)}
		}
		if len(b.views) >= maxViews || key.rights != nil && of.views >= maxViewsOfKey {
			return nil, nil, errTooManyViews
		}
		b.keys[key.rights] = of
		of.views++
		ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context())) // it serves the viewers that come later, too
		v = &openView{cancel: cancel, parts: map[string]string{}, changed: map[string]int{}, news: make(chan struct{})}
		b.views[key] = v
		go b.run(ctx, key.path, of, v, r, viewer)
	}
	v.viewers++
	return v, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if v.viewers--; v.viewers == 0 {
			v.cancel()
			delete(b.views, key)
			if of := b.keys[key.rights]; of.views > 1 {
				of.views--
			} else {
				delete(b.keys, key.rights)
			}
		}
	}, nil
}

// run looks at a page again and again until ctx ends.
func (b *hub) run(ctx context.Context, path string, of *openKey, v *openView, first *http.Request, viewer Viewer) {
	for {
		next := time.Now().Add(liveInterval)
		if !b.takeSlot(ctx, of) {
			return
		}
		began := time.Now()
		b.look(ctx, path, v, first, viewer)
		time.AfterFunc(restAfter(time.Since(began)), func() { <-b.slots })
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Until(next)):
		}
	}
}

// takeSlot waits until a page of a key may be rendered, and returns false if ctx has ended before.
func (b *hub) takeSlot(ctx context.Context, of *openKey) bool {
	select {
	case <-ctx.Done():
		return false
	case of.turn <- struct{}{}:
	}
	defer func() { <-of.turn }()
	select {
	case <-ctx.Done():
		return false
	case b.slots <- struct{}{}:
		return true
	}
}

// restAfter is how long a slot rests after a page that took so long.
func restAfter(took time.Duration) time.Duration { return min(liveRest*took, maxLiveRest) }

// look renders a page, and notes which parts are not as they were.
func (b *hub) look(ctx context.Context, path string, v *openView, first *http.Request, viewer Viewer) {
	parts, failed := b.render(ctx, path, first, viewer)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.look++
	v.at = time.Now()
	v.problem = failed
	if failed == nil {
		for name, html := range parts {
			if v.parts[name] != html {
				v.parts[name], v.changed[name] = html, v.look
			}
		}
	}
	close(v.news)
	v.news, v.latest = make(chan struct{}), nil
}

// render returns the parts of a page that change, or why it cannot be read.
func (b *hub) render(ctx context.Context, path string, first *http.Request, viewer Viewer) (parts map[string]string, failed *ui.Problem) {
	ctx, cancel := context.WithTimeout(ctx, renderTimeout)
	defer cancel()
	defer func() { // a fault of one page ends neither the process nor the other pages
		if cause := recover(); cause != nil {
			b.h.cfg.Logger.Error().Any("panic", cause).Bytes("stack", debug.Stack()).Msg("a live page could not be rendered")
			failed = problemOf(problem(http.StatusInternalServerError, "Internal error", "The log of the server has the reason."))
		}
	}()
	target, err := url.Parse(Prefix + path)
	if err != nil || !strings.HasPrefix(target.Path, Prefix) {
		return nil, problemOf(problem(http.StatusBadRequest, "No such page", "The page of the stream is not a path."))
	}
	seen := &rendered{viewer: viewer}
	ctx = context.WithValue(ctx, renderedKey{}, seen)
	ctx = context.WithValue(ctx, chi.RouteCtxKey, chi.NewRouteContext())
	r := first.Clone(ctx)
	r.Method, r.URL, r.Body, r.Header = http.MethodGet, target, http.NoBody, make(http.Header)
	answer := &recorder{header: make(http.Header), status: http.StatusOK}
	b.h.mux.ServeHTTP(answer, r)
	if seen.problem != nil {
		return nil, seen.problem
	}
	return ui.LiveRegions(answer.body.Bytes()), nil
}

// renderedKey is the key of a *rendered in the context of a page that is rendered for a hub.
type renderedKey struct{}

// rendered is a page that is rendered for a hub.
type rendered struct {
	viewer  Viewer      // one of those who look at it
	problem *ui.Problem // why it could not be read; nil: it could
}

// renderedFor returns the page that is rendered for a hub; nil: it is rendered for the one who made the request.
func renderedFor(r *http.Request) *rendered {
	page, _ := r.Context().Value(renderedKey{}).(*rendered)
	return page
}

// exceptLive serves what is no page: to whoever asks for it, but not to a hub. A hub would keep a download in memory again and again, and would wait for the
// end of a live stream, with a slot that other open pages need.
func exceptLive(serve http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if page := renderedFor(r); page != nil {
			page.problem = problemOf(errNoPage)
			return
		}
		serve(w, r)
	}
}

// parts is what a viewer is told of one look: the HTML of the parts that have changed since the one before, and when it was.
type parts struct {
	At    string            `json:"at"`
	Parts map[string]string `json:"parts"`
}

// since returns the event that says what has changed after the look that a viewer knows, and the look that the viewer knows then; empty: no look has ended yet. The channel
// is closed at the next. Most viewers know the look before, so the event for those is written once.
func (v *openView) since(known int) (event []byte, then int, next <-chan struct{}, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	then = v.look
	switch {
	case v.look == 0:
	case v.problem != nil:
		event, err = encodeEvent("problem", v.problem)
		then = known
	case known == v.look-1 && v.latest != nil:
		event = v.latest
	default:
		news := parts{At: v.at.UTC().Format("15:04:05 UTC"), Parts: make(map[string]string)}
		for name, at := range v.changed {
			if at > known {
				news.Parts[name] = v.parts[name]
			}
		}
		event, err = encodeEvent("parts", news)
		if known == v.look-1 {
			v.latest = event
		}
	}
	return event, then, v.news, err
}

// serveLive answers with a stream of Server-Sent Events that says which parts of a page have changed.
func (h *Handler) serveLive(w http.ResponseWriter, r *http.Request) {
	viewer, err := h.admit(r)
	out := &eventWriter{w: w, control: http.NewResponseController(w)}
	out.begin()
	if r.Method == http.MethodHead { // nothing of the stream would be sent, and it would not end
		return
	}
	if err != nil {
		if isLoggedOut(err) {
			_ = out.send("ended", struct{}{})
			return
		}
		_ = out.send("problem", problemOf(err))
		return
	}
	ctx := r.Context()
	if viewer != nil {
		watched, stop := viewer.Watch(ctx)
		defer stop()
		ctx = watched
	}
	v, leave, err := h.live.join(viewer, r.URL.Query().Get("page"), r)
	if err != nil {
		_ = out.send("problem", problemOf(err))
		return
	}
	defer leave()
	err = h.follow(ctx, v, out)
	if ctx.Err() != nil && r.Context().Err() == nil {
		if unknown, ok := errors.AsType[*client.Error](context.Cause(ctx)); ok { // the browser comes back, and asks again
			err = out.send("problem", problemOf(unknown))
		} else {
			err = out.send("ended", struct{}{})
		}
	}
	if err != nil && r.Context().Err() == nil {
		h.cfg.Logger.Debug().Func(failure.Of(err)).Msg("a live page was given up: its viewer takes nothing any more")
	}
}

// follow tells a viewer what changes until the viewer goes, or has to.
func (h *Handler) follow(ctx context.Context, v *openView, out *eventWriter) error {
	known := 0
	for {
		event, then, next, err := v.since(known)
		if err == nil && len(event) > 0 {
			err = out.write(event)
		}
		if err != nil {
			return err
		}
		known = then
		select {
		case <-next:
		case <-ctx.Done():
			return nil
		case <-h.cfg.Draining:
			return nil
		}
	}
}

// An eventWriter writes Server-Sent Events.
type eventWriter struct {
	w       http.ResponseWriter
	control *http.ResponseController
}

func (o *eventWriter) begin() {
	header := o.w.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("X-Accel-Buffering", "no") // nginx would gather the stream otherwise
	o.w.WriteHeader(http.StatusOK)
}

// send writes one event.
func (o *eventWriter) send(name string, data any) error {
	event, err := encodeEvent(name, data)
	if err != nil {
		return err
	}
	return o.write(event)
}

// write writes one event of encodeEvent, and has it sent.
func (o *eventWriter) write(event []byte) error {
	if err := o.control.SetWriteDeadline(time.Now().Add(liveWrite)); err != nil {
		return err
	}
	if _, err := o.w.Write(event); err != nil {
		return err
	}
	return o.control.Flush()
}

// encodeEvent returns one event, whose data are JSON.
func encodeEvent(name string, data any) ([]byte, error) {
	var b bytes.Buffer
	b.WriteString("event: " + name + "\ndata: ")
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false) // HTML in it is for the script to parse
	if err := encoder.Encode(data); err != nil {
		return nil, err
	}
	b.WriteByte('\n')
	return b.Bytes(), nil
}
