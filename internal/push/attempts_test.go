package push

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/queued/queued/internal/deliverylog"
	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

// attemptsOf returns the attempts of a queue once there are n that match.
func (p *process) attemptsOf(params AttemptsParams, n int) AttemptsPage {
	p.t.Helper()
	var page AttemptsPage
	until(p.t, fmt.Sprintf("%d attempts are logged of %+v", n, params), func() bool {
		var err error
		if page, err = p.Attempts(p.t.Context(), params); err != nil {
			p.t.Fatal(err)
		}
		return len(page.Attempts) >= n
	})
	if len(page.Attempts) != n {
		p.t.Fatalf("got %d attempts, want %d: %+v", len(page.Attempts), n, page.Attempts)
	}
	return page
}

func TestLogHasEachAttemptWithItsAnswer(t *testing.T) {
	t.Parallel()
	p := start(t, pgtest.New(t))
	answers := make(chan func(http.ResponseWriter), 10)
	r := receive(t, func(w http.ResponseWriter, _ call) {
		(<-answers)(w)
	})
	p.put("mail", r, func(params *PutParams) { params.MaxInFlight, params.FinalStatuses = 1, []int{422} })
	answer := func(status int, body string) {
		answers <- func(w http.ResponseWriter) {
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
		}
	}
	answer(http.StatusInternalServerError, "no \x00\xff\n"+strings.Repeat("x", 10<<20))
	id := p.insert(queue.InsertParams{Queue: "mail", Event: []byte(`{}`), Type: "order.placed"})[0]
	retried := p.attemptsOf(AttemptsParams{Queue: "mail"}, 1).Attempts[0]
	if retried.Outcome != AttemptRetried || retried.EventID != id || retried.Type != "order.placed" || retried.Number != 1 || retried.Status != 500 ||
		!strings.HasPrefix(retried.Body, "no  ") || len(retried.Body) > deliverylog.MaxBody || len(retried.Body) < deliverylog.MaxBody-100 || retried.Error != "" {
		t.Errorf("the first attempt is %+v", retried)
	}
	if retried.NextAt == nil || retried.SendAgain != "run" || retried.MS < 0 || time.Since(retried.At).Abs() > busyTimeout {
		t.Errorf("the first attempt is %+v", retried)
	}
	answer(http.StatusCreated, "thanks")
	if _, err := p.queue.RunEvent(t.Context(), id, nil); err != nil {
		t.Fatal(err)
	}
	delivered := p.attemptsOf(AttemptsParams{Queue: "mail"}, 2).Attempts[0]
	if delivered.Outcome != AttemptDelivered || delivered.Number != 2 || delivered.Status != 201 || delivered.Body != "thanks" || delivered.NextAt != nil ||
		delivered.SendAgain != "requeue" {
		t.Errorf("the second attempt is %+v", delivered)
	}
	answer(http.StatusUnprocessableEntity, "never")
	other := p.insert(queue.InsertParams{Queue: "mail", Event: []byte(`{}`)})[0]
	final := p.attemptsOf(AttemptsParams{Queue: "mail", Event: other}, 1).Attempts[0]
	if final.Outcome != AttemptFailed || final.Status != 422 || final.SendAgain != "requeue" {
		t.Errorf("the attempt after which the event failed is %+v", final)
	}
	answer(http.StatusTooManyRequests, "later")
	answer(http.StatusOK, "")
	third := p.insert(queue.InsertParams{Queue: "mail", Event: []byte(`{}`)})[0]
	held := p.attemptsOf(AttemptsParams{Queue: "mail", Event: third}, 2).Attempts
	if held[1].Outcome != AttemptHeld || held[1].Status != 429 || held[1].NextAt == nil || held[0].Outcome != AttemptDelivered || held[0].Number != 1 {
		t.Errorf("the attempts of an event that was held are %+v", held)
	}

	for _, c := range []struct {
		params AttemptsParams
		want   int
	}{
		{AttemptsParams{Status: 500}, 1},
		{AttemptsParams{Status: 404}, 0},
		{AttemptsParams{Outcome: AttemptDelivered}, 2},
		{AttemptsParams{Outcome: AttemptHeld}, 1},
		{AttemptsParams{Event: id}, 2},
		{AttemptsParams{From: &delivered.At}, 4},
		{AttemptsParams{To: &delivered.At}, 1},
	} {
		c.params.Queue = "mail"
		p.attemptsOf(c.params, c.want)
	}
	var ids []int64
	cursor := ""
	for {
		page, err := p.Attempts(t.Context(), AttemptsParams{Queue: "mail", Limit: 2, Cursor: cursor})
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range page.Attempts {
			ids = append(ids, a.EventID)
		}
		if cursor = page.Next; cursor == "" {
			break
		}
	}
	if got, want := fmt.Sprint(ids), fmt.Sprint([]int64{third, third, other, id, id}); got != want {
		t.Errorf("page by page the events are %s, want %s", got, want)
	}
}

func TestAttemptWithoutAnAnswerSaysWhy(t *testing.T) {
	t.Parallel()
	p := start(t, pgtest.New(t))
	r := receive(t, nil)
	r.Close()
	p.put("mail", r)
	p.insert(queue.InsertParams{Queue: "mail", Event: []byte(`{}`)})
	a := p.attemptsOf(AttemptsParams{Queue: "mail", Limit: 1}, 1).Attempts[0]
	if a.Status != 0 || a.Error != "the connection was refused" || a.Body != "" || a.Outcome != AttemptRetried {
		t.Errorf("got %+v", a)
	}
	if _, err := p.Attempts(t.Context(), AttemptsParams{Queue: "nowhere"}); !errors.Is(err, ErrNotFound) {
		t.Errorf("of a queue that does not push got %v", err)
	}
	if _, err := p.Attempts(t.Context(), AttemptsParams{Queue: "mail", Cursor: "x"}); !errors.Is(err, pg.ErrBadCursor) {
		t.Errorf("with a bad cursor got %v", err)
	}
}

// log adds attempts to the log of a queue, as the pusher of another process does.
func (p *process) log(name string, n int, outcome AttemptOutcome) {
	p.t.Helper()
	class := classUndelivered
	if outcome == AttemptDelivered {
		class = classDelivered
	}
	for range n {
		p.attempts.Add(name, class, func() attemptRow {
			return attemptRow{Queue: name, Class: class, At: time.Now(), Outcome: outcome, EventID: 1, Attempt: 1}
		})
	}
	if err := p.writeAttempts(p.t.Context()); err != nil {
		p.t.Fatal(err)
	}
}

func TestLogOfPushesIsBounded(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := start(t, db)
	r := receive(t, nil)
	p.put("mail", r)
	p.put("bills", r)
	rows := func(queue, outcome string) int {
		return pgtest.Query[int](t, pgtest.Connect(t, db.URL), `select count(*)::int from agent.push_delivery where queue = $1 and outcome = $2`, queue, outcome)
	}
	p.log("bills", 10, AttemptDelivered)
	for range 3 {
		p.log("mail", 600, AttemptDelivered)
	}
	for range 11 {
		p.log("mail", 500, AttemptRetried)
	}
	if got := fmt.Sprint(rows("mail", "delivered"), rows("mail", "retried"), rows("bills", "delivered")); got != "1000 5000 10" {
		t.Errorf("the rows are %s", got)
	}
	p.log("mail", 507, AttemptFailed)
	page := p.attemptsOf(AttemptsParams{Queue: "mail", Limit: 1}, 1)
	if page.Dropped != 7 || page.DroppedAt == nil {
		t.Errorf("%d attempts were dropped, at %v; want 7", page.Dropped, page.DroppedAt)
	}
	if other := p.attemptsOf(AttemptsParams{Queue: "bills"}, 10); other.Dropped != 0 || other.DroppedAt != nil {
		t.Errorf("%d attempts of another queue were dropped", other.Dropped)
	}

	run(t, db, `update agent.push_delivery set at = now() - interval '8 days' where queue = 'bills' and number <= 4`)
	p.attemptsOf(AttemptsParams{Queue: "bills"}, 6)
	if n := pgtest.Query[int](t, pgtest.Connect(t, db.URL), `select agent.prune_deliveries(3)::int`); n != 3 {
		t.Errorf("%d rows were pruned, want 3", n)
	}
	if n := pgtest.Query[int](t, pgtest.Connect(t, db.URL), `select agent.prune_deliveries()::int`); n != 1 {
		t.Errorf("then %d rows were pruned, want 1", n)
	}

	if err := p.Delete(t.Context(), "mail", nil); err != nil {
		t.Fatal(err)
	}
	if n := rows("mail", "delivered"); n != 0 {
		t.Errorf("%d rows of a push that was deleted are there", n)
	}
	p.log("mail", 1, AttemptDelivered) // of before the deletion
	p.put("mail", r)
	p.attemptsOf(AttemptsParams{Queue: "mail"}, 0)
}

// A transaction that has locked a push must not hold up the log of others, and no attempt is lost to it.
func TestLogOfALockedPushWaits(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := start(t, db)
	r := receive(t, nil)
	p.put("locked", r)
	p.put("free", r)
	tx, err := pgtest.Connect(t, db.URL).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context()) //nolint:errcheck // it has ended
	if _, err := tx.Exec(t.Context(), `select from agent.push where queue = 'locked' for update`); err != nil {
		t.Fatal(err)
	}
	p.log("locked", 2, AttemptRetried)
	p.log("free", 3, AttemptRetried)
	p.attemptsOf(AttemptsParams{Queue: "free"}, 3)
	p.attemptsOf(AttemptsParams{Queue: "locked"}, 0)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.attemptsOf(AttemptsParams{Queue: "locked"}, 2)
}

func TestLogOfTheLastAttemptsIsWrittenAtTheEnd(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := start(t, db)
	p.put("mail", receive(t, nil))
	ids := p.insert(numbered("mail", 5)...)
	p.outcome(queue.Done, ids...)
	p.stop()
	if n := pgtest.Query[int](t, pgtest.Connect(t, db.URL), `select count(*)::int from agent.push_delivery where outcome = 'delivered'`); n != 5 {
		t.Errorf("%d attempts are logged, want 5", n)
	}
}

func TestAnEndpointThatWantsAPauseForOneGroupGetsTheEventsOfOthers(t *testing.T) {
	t.Parallel()
	p := start(t, pgtest.New(t))
	r := receive(t, func(w http.ResponseWriter, c call) {
		if strings.Contains(string(c.body), "busy") {
			w.Header().Set("Retry-After", "3000")
			w.WriteHeader(http.StatusTooManyRequests)
		}
	})
	if _, err := p.queue.PutPolicy(t.Context(), queue.Policy{Queue: "mail", Flow: &queue.Flow{Concurrency: new(5)}}, queue.Precondition{}); err != nil {
		t.Fatal(err)
	}
	p.put("mail", r, func(params *PutParams) { params.MaxInFlight = 1 })
	busy := p.insert(queue.InsertParams{Queue: "mail", Group: "busy", Event: []byte(`{"tenant":"busy"}`)})[0]
	first := p.attemptsOf(AttemptsParams{Queue: "mail", Event: busy}, 1).Attempts[0]
	if first.Outcome != AttemptHeld || first.NextAt == nil || time.Until(*first.NextAt) < 10*time.Minute {
		t.Errorf("the attempt that was refused is %+v", first)
	}
	other := p.insert(queue.InsertParams{Queue: "mail", Group: "busy", Event: []byte(`{"tenant":"busy"}`)}, queue.InsertParams{Queue: "mail", Group: "idle", Event: []byte(`{"tenant":"idle"}`)})
	if delivered := p.attemptsOf(AttemptsParams{Queue: "mail", Event: other[1]}, 1).Attempts[0]; delivered.Outcome != AttemptDelivered {
		t.Errorf("the attempt of another group is %+v", delivered)
	}
	g, err := p.queue.GetGroup(t.Context(), "mail", "busy")
	if err != nil || g.Waiting != 2 || g.BlockedBy == nil || g.BlockedBy.Reason != queue.BlockedByHold {
		t.Errorf("the group is %+v: %v", g, err)
	}
	if n := len(p.attemptsOf(AttemptsParams{Queue: "mail"}, 2).Attempts); n != 2 {
		t.Errorf("there were %d attempts", n)
	}
}
