package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A numbered is the payload of an event that gets its number as id.
type numbered struct {
	N int64 `json:"n"`
}

// batches is a server that takes inserts one after the other. Its answers are held until it is released.
type batches struct {
	mu       sync.Mutex
	requests int
	largest  int
	began    chan struct{}
	release  chan struct{}
	refuse   func(n int64) (status int, code string) // of an event in a batch; status 0: it is inserted
}

func newBatches() *batches {
	return &batches{began: make(chan struct{}, 1000), release: make(chan struct{}), refuse: func(int64) (int, string) { return 0, "" }}
}

func (b *batches) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.began <- struct{}{}
	<-b.release
	text, _ := io.ReadAll(r.Body)
	b.mu.Lock()
	b.requests++
	b.mu.Unlock()
	if r.URL.Path == "/events" {
		var one numbered
		_ = json.Unmarshal(text, &one)
		if status, code := b.refuse(one.N); status != 0 {
			problem(w, status, code)
			return
		}
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, `{"id":%d,"queue":"q","vt":"2026-02-03T04:05:06Z"}`, one.N)
		return
	}
	var all struct {
		Events []struct {
			Event numbered
			Key   string
		}
	}
	_ = json.Unmarshal(text, &all)
	b.mu.Lock()
	b.largest = max(b.largest, len(all.Events))
	b.mu.Unlock()
	var results []map[string]any
	for _, e := range all.Events {
		switch status, code := b.refuse(e.Event.N); {
		case status == 0 && e.Key != "":
			results = append(results, map[string]any{"status": 201, "id": e.Event.N, "queue": "q", "vt": "2026-02-03T04:05:06Z"})
		case code == "idempotency_key_reused":
			results = append(results, map[string]any{"status": status, "code": code, "detail": "used"})
		case code == "cell_unavailable", code == "outcome_unknown":
			results = append(results, map[string]any{"status": status, "code": code, "detail": "away", "cell": 2})
		default: // of the body, so the whole request is refused
			problem(w, status, code)
			return
		}
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"results": results})
}

// insertMany inserts events of the numbers 1 to n at the same time, and returns their errors by number. The server answers nothing before all are on their way or wait.
func insertMany(t *testing.T, b *batches, cfg Config, n int64) map[int64]error {
	t.Helper()
	c := answering(t, cfg, b.ServeHTTP)
	errs := make(map[int64]error)
	var mu sync.Mutex
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			inserted, err := c.Insert(t.Context(), NewEvent{Payload: numbered{i + 1}})
			if err == nil && (inserted.ID != i+1 || inserted.Queue != "q" || inserted.VT.IsZero()) {
				err = fmt.Errorf("got %+v", inserted)
			}
			mu.Lock()
			defer mu.Unlock()
			errs[i+1] = err
		})
		if i < coalescedRequests {
			<-b.began
		}
	}
	if c.inserts != nil {
		awaitWaiting(t, c.inserts, int(n)-coalescedRequests)
	}
	close(b.release)
	all.Wait()
	return errs
}

// awaitWaiting waits until so many events wait for the next request.
func awaitWaiting[E, R any](t *testing.T, g *coalescer[E, R], n int) {
	t.Helper()
	for limit := time.Now().Add(time.Minute); ; {
		g.mu.Lock()
		waiting := len(g.waiting)
		g.mu.Unlock()
		if waiting >= n {
			return
		}
		if time.Now().After(limit) {
			t.Fatalf("%d events wait, want %d", waiting, n)
		}
		_ = sleep(t.Context(), time.Millisecond)
	}
}

func TestInsertsOfManyGoroutinesGoTogether(t *testing.T) {
	t.Parallel()
	b := newBatches()
	for n, err := range insertMany(t, b, Config{}, 64) {
		if err != nil {
			t.Errorf("event %d: %v", n, err)
		}
	}
	if b.requests > 6 || b.largest < 32 {
		t.Errorf("64 events took %d requests, the largest of %d", b.requests, b.largest)
	}
	alone := newBatches()
	insertMany(t, alone, Config{SendInsertsAlone: true}, 64)
	if alone.requests != 64 {
		t.Errorf("64 events that are sent alone took %d requests", alone.requests)
	}
}

// While a request with many events is on its way, no other is sent: what comes meanwhile goes with the next one.
func TestEventsOfACrowdGoWithOneRequestAtATime(t *testing.T) {
	t.Parallel()
	type request struct {
		events int
		answer chan struct{}
	}
	requests := make(chan request)
	ask := func(events int) {
		r := request{events, make(chan struct{})}
		requests <- r
		<-r.answer
	}
	g := &coalescer[int, int]{
		alone: func(_ context.Context, e int) (int, error) {
			ask(1)
			return e, nil
		},
		together: func(_ context.Context, events []int) ([]int, []error, error) {
			ask(len(events))
			return events, make([]error, len(events)), nil
		},
	}
	var all sync.WaitGroup
	send := func(n int) {
		for e := range n {
			all.Go(func() {
				if _, err := g.send(t.Context(), e, 1); err != nil {
					t.Error(err)
				}
			})
		}
	}
	next := func(want int, what string) (answer func()) {
		t.Helper()
		r := <-requests
		if r.events != want {
			t.Errorf("a request of %d events, want %d: %s", r.events, want, what)
		}
		return func() { close(r.answer) }
	}
	send(1)
	first := next(1, "the first is sent at once")
	send(1)
	second := next(1, "so is another while few are on their way")
	send(crowd)
	awaitWaiting(t, g, crowd)
	first()
	many := next(crowd, "those that came meanwhile go together")
	send(1)
	awaitWaiting(t, g, 1)
	second() // what waits does not go now
	for limit := time.Now().Add(waitTimeout); ; {
		g.mu.Lock()
		sending := g.sending
		g.mu.Unlock()
		if sending == 1 {
			break
		}
		if time.Now().After(limit) {
			t.Fatalf("%d requests are on their way with a crowd, want one", sending)
		}
		_ = sleep(t.Context(), time.Millisecond)
	}
	send(1)
	awaitWaiting(t, g, 2)
	many()
	next(2, "the next one has what came meanwhile")()
	all.Wait()
}

func TestEachOfGatheredInsertsHasItsOwnError(t *testing.T) {
	t.Parallel()
	for name, refused := range map[string]struct {
		status int
		code   string
		want   error
	}{
		"one event":   {422, "idempotency_key_reused", ErrKeyReused},
		"the request": {403, "forbidden", ErrForbidden},
		"the body":    {422, "validation_failed", ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBatches()
			b.refuse = func(n int64) (int, string) {
				if n == 7 || n == 20 {
					return refused.status, refused.code
				}
				return 0, ""
			}
			for n, err := range insertMany(t, b, Config{}, 30) {
				if want := n == 7 || n == 20; want && !errors.Is(err, refused.want) || !want && err != nil {
					t.Errorf("event %d: %v", n, err)
				}
			}
		})
	}
}

func TestGatheredInsertsOfACellThatIsAwayAreRepeatedWithoutTheOthers(t *testing.T) {
	t.Parallel()
	for status, code := range map[int]string{503: "cell_unavailable", 502: "outcome_unknown"} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			const n = 30
			b := newBatches()
			back := make(chan struct{})
			b.refuse = func(n int64) (int, string) {
				select {
				case <-back:
				default:
					if n%7 == 0 {
						return status, code
					}
				}
				return 0, ""
			}
			c := answering(t, Config{RetryFor: waitTimeout}, b.ServeHTTP)
			var others, all sync.WaitGroup
			insert := func(i int64) {
				inserted, err := c.Insert(t.Context(), NewEvent{Payload: numbered{i}})
				if err != nil || inserted.ID != i {
					t.Errorf("event %d: %+v, %v", i, inserted, err)
				}
			}
			for i := range int64(n) {
				one := &others
				if (i+1)%7 == 0 {
					one = &all
				}
				one.Go(func() { insert(i + 1) })
				if i < coalescedRequests {
					<-b.began
				}
			}
			awaitWaiting(t, c.inserts, n-coalescedRequests)
			close(b.release)
			others.Wait() // which do not wait for the cell
			close(back)
			all.Wait()
		})
	}
	once := answering(t, Config{RetryFor: -1}, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"results":[{"status":503,"code":"cell_unavailable","cell":2},{"status":503,"code":"cell_unavailable","cell":2}]}`)
	})
	events := []*gathered[NewEvent, Inserted]{{answered: make(chan struct{})}, {answered: make(chan struct{})}}
	once.inserts.sendTogether(events)
	for _, one := range events {
		<-one.answered
		var e *Error
		if !errors.As(one.err, &e) || e.Cell == nil || *e.Cell != 2 || !errors.Is(one.err, ErrUnavailable) {
			t.Errorf("without repetitions: %v", one.err)
		}
	}
}

func TestServersThatKnowNoSuchBatchesGetSingleInserts(t *testing.T) {
	t.Parallel()
	var batched atomic.Int32
	b := newBatches()
	close(b.release)
	c := answering(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/events/batch" {
			batched.Add(1)
			problem(w, http.StatusBadRequest, "unknown_parameter")
			return
		}
		b.ServeHTTP(w, r)
	})
	insert := func() {
		var all sync.WaitGroup
		for i := range 50 {
			all.Go(func() {
				if _, err := c.Insert(t.Context(), NewEvent{Payload: numbered{int64(i)}}); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	}
	for limit := time.Now().Add(time.Minute); batched.Load() == 0; {
		if insert(); time.Now().After(limit) {
			t.Fatal("no inserts were gathered")
		}
	}
	known := batched.Load()
	for range 10 {
		insert()
	}
	if n := batched.Load(); n != known {
		t.Errorf("the server got %d batches after it had refused %d", n-known, known)
	}
}

func TestInsertWhoseCallerHasGoneIsNotSent(t *testing.T) {
	t.Parallel()
	b := newBatches()
	c := answering(t, Config{}, b.ServeHTTP)
	var all sync.WaitGroup
	for i := range coalescedRequests {
		all.Go(func() {
			if _, err := c.Insert(t.Context(), NewEvent{Payload: numbered{int64(i) + 1}}); err != nil {
				t.Error(err)
			}
		})
		<-b.began
	}
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		_, err := c.Insert(ctx, NewEvent{Payload: numbered{9}})
		gone <- err
	}()
	awaitWaiting(t, c.inserts, 1)
	cancel()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Errorf("the caller who has gone got %v", err)
	}
	close(b.release)
	all.Wait()
	if b.requests != coalescedRequests {
		t.Errorf("the server got %d requests, want %d", b.requests, coalescedRequests)
	}
}

func TestKeysOfABatchGoToOneCell(t *testing.T) {
	t.Parallel()
	var keys []string
	c := answering(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
		var body struct{ Events []struct{ Key string } }
		_ = json.NewDecoder(r.Body).Decode(&body)
		for _, e := range body.Events {
			keys = append(keys, e.Key)
		}
		_, _ = io.WriteString(w, `{"ids":[1,2,3]}`)
	})
	events := []NewEvent{{Payload: numbered{1}}, {Payload: numbered{2}, Key: "mine"}, {Payload: numbered{3}}}
	for range 2 {
		if _, err := c.InsertBatch(t.Context(), events); err != nil {
			t.Fatal(err)
		}
	}
	tag := func(key string) string { return key[:strings.Index(key, "}")+1] }
	if tag(keys[0]) == "" || tag(keys[0]) != tag(keys[2]) || keys[0] == keys[2] || keys[1] != "mine" || tag(keys[3]) == tag(keys[0]) {
		t.Errorf("the keys of two batches are %q", keys)
	}
}

func TestPublicationsOfManyGoroutinesGoTogetherAndEachHasItsOwnError(t *testing.T) {
	t.Parallel()
	const n = 40
	var mu sync.Mutex
	batches, largest := 0, 0
	began, release := make(chan struct{}, n), make(chan struct{})
	c := answering(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
		began <- struct{}{}
		<-release
		text, _ := io.ReadAll(r.Body)
		if topic, isAlone := strings.CutPrefix(r.URL.Path, "/topics/"); isAlone {
			var one numbered
			_ = json.Unmarshal(text, &one)
			if r.Header.Get("Idempotency-Key") == "" || topic == "x.7" {
				problem(w, 422, "idempotency_key_reused")
				return
			}
			_, _ = fmt.Fprintf(w, `{"position":%d,"topic":%q,"published_at":"2026-02-03T04:05:06Z"}`, one.N, topic)
			return
		}
		var all struct {
			Events []struct {
				Topic          string
				Event          numbered
				IdempotencyKey string `json:"idempotency_key"`
			}
		}
		_ = json.Unmarshal(text, &all)
		mu.Lock()
		batches, largest = batches+1, max(largest, len(all.Events))
		mu.Unlock()
		var results []map[string]any
		for _, e := range all.Events {
			if e.IdempotencyKey == "" || e.Topic == "x.7" || r.URL.RawQuery != "atomic=false" {
				results = append(results, map[string]any{"status": 422, "code": "idempotency_key_reused", "detail": "used"})
				continue
			}
			results = append(results, map[string]any{"status": 201, "position": e.Event.N, "topic": e.Topic, "published_at": "2026-02-03T04:05:06Z"})
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"results": results})
	})
	var all sync.WaitGroup
	for i := range int64(n) {
		all.Go(func() {
			topic := fmt.Sprintf("x.%d", i+1)
			published, err := c.Publish(t.Context(), NewPublication{Topic: topic, Payload: numbered{i + 1}})
			var e *Error
			switch {
			case topic == "x.7":
				if !errors.Is(err, ErrKeyReused) || !errors.As(err, &e) || e.Path != "/topics/x.7" {
					t.Errorf("the refused publication got %+v, %v", published, err)
				}
			case err != nil || published.Position != i+1 || published.Topic != topic || published.PublishedAt.IsZero():
				t.Errorf("publication %d got %+v, %v", i+1, published, err)
			}
		})
		if i < coalescedRequests {
			<-began
		}
	}
	awaitWaiting(t, c.publications, n-coalescedRequests)
	close(release)
	all.Wait()
	if batches > 4 || largest < n/2 {
		t.Errorf("%d publications took %d batches, the largest of %d", n, batches, largest)
	}
}
