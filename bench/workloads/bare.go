package workloads

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/queued/queued/bench/load"
)

// Bare is what requests cost the service, beside a handler of net/http that does nothing: it reads the same bytes and answers with the same bytes, in a process
// of its own. A third one waits before it answers, as requests to the service wait for a group commit. All take turns, with inserts alone and with insert, claim and ack. Processor times are
// those of the processes that serve.
type Bare struct {
	Connections int           `default:"64" most:"50000" placeholder:"N" help:"How many clients send single requests."`
	Rounds      int           `default:"5" placeholder:"N" help:"How many turns each load gets at each server."`
	Duration    time.Duration `default:"10s" help:"How long each load is measured, all turns together."`
	Programs    []string      `placeholder:"NAME=FILE" help:"Further programs to measure beside the first one."`
}

func (*Bare) name() string { return "bare" }

func (w *Bare) check(cfg Config) error {
	return errors.Join(checkPrograms(w.Programs), needOwnServers(cfg))
}

// bareAnswers is the variable that has the program serve as the bare handler: its answers, as JSON.
const bareAnswers = "QUEUED_BENCH_BARE"

// bareWaits is the variable that has the bare handler wait as the service does, if it is 1: see emptyCommits.
const bareWaits = "QUEUED_BENCH_BARE_WAITS"

// emptyCommits are group commits of nothing: who comes while one is under way waits for the next one, with all who have come meanwhile.
type emptyCommits struct {
	mu        sync.Mutex
	waiting   []chan struct{}
	isRunning bool
}

// emptyCommitTime is how long one takes, about as long as a durable one where a disk is fast.
const emptyCommitTime = time.Millisecond

// wait returns when the commit is done that the caller takes part in.
func (c *emptyCommits) wait() {
	done := make(chan struct{}, 1)
	c.mu.Lock()
	c.waiting = append(c.waiting, done)
	if !c.isRunning {
		c.isRunning = true
		go c.run()
	}
	c.mu.Unlock()
	<-done
}

// run commits until nobody waits.
func (c *emptyCommits) run() {
	for {
		c.mu.Lock()
		waiting := c.waiting
		c.waiting, c.isRunning = nil, len(waiting) > 0
		c.mu.Unlock()
		if len(waiting) == 0 {
			return
		}
		<-time.After(emptyCommitTime)
		for _, done := range waiting {
			done <- struct{}{}
		}
	}
}

// An answer is a response that the bare handler gives.
type answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// answerKey names the answers to requests like one: those to the same method and the first part of the path.
func answerKey(method, path string) string {
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	return method + " /" + first
}

// ServeBare serves as the bare handler until ctx ends, if the program was started for that, and reports whether it was.
func ServeBare(ctx context.Context, environ []string, stderr io.Writer) (isBare bool, err error) {
	at := slices.IndexFunc(environ, func(variable string) bool { return strings.HasPrefix(variable, bareAnswers+"=") })
	if at < 0 {
		return false, nil
	}
	var answers map[string]answer
	if err := json.Unmarshal([]byte(strings.TrimPrefix(environ[at], bareAnswers+"=")), &answers); err != nil {
		return true, err
	}
	debug.SetGCPercent(200) // as queued has it
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return true, err
	}
	wait := func() {}
	if slices.ContainsFunc(environ, func(variable string) bool { return variable == bareWaits+"=1" }) {
		wait = new(emptyCommits).wait
	}
	const limit = time.Minute // of everything: queued sets each limit, too
	server := &http.Server{ReadHeaderTimeout: limit, ReadTimeout: limit, WriteTimeout: limit, IdleTimeout: limit, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadAll(r.Body)
		wait()
		given := answers[answerKey(r.Method, r.URL.Path)]
		h := w.Header()
		for name, values := range given.Header {
			h[name] = values
		}
		w.WriteHeader(given.Status)
		if len(given.Body) > 0 {
			_, _ = w.Write(given.Body)
		}
	})}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(listener) // fails with http.ErrServerClosed
	}()
	if err := json.NewEncoder(stderr).Encode(map[string]string{"message": "serving", "url": "http://" + listener.Addr().String()}); err != nil {
		return true, err
	}
	<-ctx.Done()
	_ = server.Close()
	<-ended
	return true, nil
}

// startBare starts the bare handler, with the answers that a server gives.
func (s *session) startBare(ctx context.Context, like *server, environ ...string) (*server, error) {
	answers, err := s.answersOf(ctx, like)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(answers)
	if err != nil {
		return nil, err
	}
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	srv := new(server)
	s.opened = append(s.opened, srv)
	var url string
	if srv.process, url, err = startCommand(ctx, program, "bare", s.cfg.Environ, append(environ, bareAnswers+"="+string(text)), s.cancel); err != nil {
		return nil, err
	}
	srv.target, err = load.NewTarget(url, "")
	return srv, err
}

// answersOf takes an event from insert to ack, and returns the responses.
func (s *session) answersOf(ctx context.Context, srv *server) (map[string]answer, error) {
	queue, answers := s.newQueue(), make(map[string]answer)
	call := func(method, path, body string, into any) error {
		r, err := http.NewRequestWithContext(ctx, method, "http://"+srv.target.Address+path, strings.NewReader(body))
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			return err
		}
		defer func() { _ = resp.Body.Close() }()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			return err
		}
		resp.Header.Del("Date") // net/http sets it
		answers[answerKey(method, r.URL.Path)] = answer{resp.StatusCode, resp.Header, text}
		if into == nil {
			return nil
		}
		return json.Unmarshal(text, into)
	}
	defer http.DefaultClient.CloseIdleConnections()
	var claimed struct {
		Events []struct {
			ID      int64
			Receipt string
		}
	}
	if err := call(http.MethodPost, "/events?queue="+queue, string(s.payload), nil); err != nil {
		return nil, err
	}
	if err := call(http.MethodPost, "/claim", fmt.Sprintf(`{"queue":%q}`, queue), &claimed); err != nil {
		return nil, err
	}
	if len(claimed.Events) != 1 {
		return nil, fmt.Errorf("a claim got %d events, want the one that was inserted", len(claimed.Events))
	}
	return answers, call(http.MethodDelete, fmt.Sprintf("/events/%d?receipt=%s", claimed.Events[0].ID, claimed.Events[0].Receipt), "", nil)
}

// A bareLoad is one load at one server.
type bareLoad struct {
	*turns
	step    load.Step // whose events count
	server  *server
	reader  *turnReader
	clients *load.Clients
	cycle   cycle
}

func (w *Bare) run(ctx context.Context, s *session) error {
	type side struct {
		name   string
		server *server
	}
	first, err := s.startOnNew(ctx, s.cfg.Program)
	if err != nil {
		return err
	}
	bare, err := s.startBare(ctx, first)
	if err != nil {
		return err
	}
	waiting, err := s.startBare(ctx, first, bareWaits+"=1")
	if err != nil {
		return err
	}
	sides := []side{{"bare handler", bare}, {"waiting handler", waiting}, {"queued", first}}
	for _, program := range w.Programs {
		name, file, _ := strings.Cut(program, "=")
		srv, err := s.startOnNew(ctx, file)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		sides = append(sides, side{name, srv})
	}
	kinds := []struct {
		name    string
		step    load.Step
		clients clients
	}{{"insert", load.Insert, s.inserts(w.Connections)}, {"insert, claim and ack", load.Ack, s.singles(w.Connections, nil)}}
	loads := make([][]*bareLoad, len(kinds)) // by kind, and then by side
	for i, kind := range kinds {
		for _, side := range sides {
			queue := s.newQueue()
			l := &bareLoad{turns: newTurns(side.name + ", " + kind.name), step: kind.step, server: side.server, reader: newTurnReader(side.server), cycle: kind.clients.on(side.server, queue)}
			if l.clients, err = load.Open(ctx, side.server.target, queue, w.Connections, load.NewAccount()); err != nil {
				return err
			}
			defer l.clients.Close()
			loads[i] = append(loads[i], l)
		}
	}
	for round := range w.Rounds + 1 { // the first does not count: it warms up
		for _, kind := range loads {
			order := slices.Clone(kind)
			if round%2 == 1 {
				slices.Reverse(order)
			}
			for _, l := range order {
				s.progress.show("round %d of %d: %s", round, w.Rounds, l.label)
				if err := w.turn(ctx, s, l, round > 0); err != nil {
					return err
				}
			}
		}
	}
	for _, kind := range loads {
		for _, l := range kind[1:] {
			s.compare(l.label+": server over the bare handler", l.serverCost()/kind[0].serverCost())
		}
		for _, l := range kind[2:] {
			s.compare(l.label+": server over the waiting handler", l.serverCost()/kind[1].serverCost())
		}
		for _, l := range kind {
			result := l.result(l.server.db != nil)
			if l.server.db != nil {
				if result.Balance, err = s.drain(ctx, l.server, l.clients.All[0].Queue(), l.clients.Account); err != nil {
					return err
				}
			}
			s.add(result)
		}
	}
	return nil
}

// serverCost is the processor time of the server for each event, in microseconds.
func (t *turns) serverCost() float64 {
	return float64(t.spent.server.Microseconds()) / float64(t.events)
}

// turn has the clients of a load work for a while.
func (w *Bare) turn(ctx context.Context, s *session, l *bareLoad, counts bool) error {
	stop := l.clients.Work(ctx, l.cycle)
	defer stop()
	duration := w.Duration / time.Duration(w.Rounds)
	if !load.Pause(ctx, min(s.cfg.Warmup, duration/4)) {
		return ctx.Err()
	}
	l.clients.Meter.Take()
	before, err := l.reader.read(ctx)
	if err != nil {
		return err
	}
	if !load.Pause(ctx, duration) {
		return ctx.Err()
	}
	sent := l.clients.Meter.Take()
	after, err := l.reader.read(ctx)
	if err == nil && counts {
		l.add(sent, sent.Events[l.step], before, after)
	}
	return err
}

// inserts are clients that insert one event after the other.
func (s *session) inserts(n int) clients {
	return clients{n, func(srv *server, queue string) cycle {
		insert := srv.target.InsertRequest(queue, s.payload)
		return func(ctx context.Context, c *load.Client) { c.Insert(ctx, insert, time.Time{}) }
	}}
}
