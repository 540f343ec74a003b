package queue_test

import (
	"testing"
	"time"

	"github.com/queued/queued/internal/queue"
)

func TestSweepNeverTakesARunningLease(t *testing.T) {
	t.Parallel()
	b := open(t, nil)
	b.post(t, "", `{}`)
	e := b.take(t, queue.ClaimParams{MaxAttempts: 1}, 1)[0]
	b.exec(t, `update agent.event set enqueued_at = now() - interval '1 year', claimed = array[now() - interval '1 year']`)
	age := time.Duration(0)
	sweep := queue.SweepParams{MaxAttempts: 1, MaxVTAge: &age}
	if n, err := b.Sweep(t.Context(), sweep); n != 0 || err != nil {
		t.Errorf("swept %d, %v", n, err)
	}
	b.endLease(t, e.ID)
	if n, err := b.Sweep(t.Context(), sweep); n != 1 || err != nil {
		t.Errorf("swept %d, %v", n, err)
	}
	if h := b.get(t, e.ID); h.Outcome != queue.Expired {
		t.Errorf("history has %+v", h)
	}
}

func TestSweepExpiresByAttemptsAndByAge(t *testing.T) {
	t.Parallel()
	b := open(t, nil)
	ids := b.postN(t, "", 5)
	b.exec(t, `update agent.event set attempts = 3 where id = $1`, ids[0])
	b.exec(t, `update agent.event set vt = now() - interval '2 hours' where id = $1`, ids[1])
	b.exec(t, `update agent.event set vt = now() + interval '2 hours', attempts = 9 where id = $1`, ids[2])
	b.exec(t, `update agent.event set vt = now() - interval '2 hours', queue = 'other' where id = $1`, ids[3])

	hour := time.Hour
	for _, step := range []struct {
		what string
		p    queue.SweepParams
		want int64
	}{
		{"by attempts alone", queue.SweepParams{}, 1},
		{"another queue by age", queue.SweepParams{MaxVTAge: &hour, Queue: "other"}, 1},
		{"by age", queue.SweepParams{MaxVTAge: &hour}, 1},
		{"again", queue.SweepParams{MaxVTAge: &hour}, 0},
	} {
		if n, err := b.Sweep(t.Context(), step.p); n != step.want || err != nil {
			t.Errorf("%s: swept %d, %v; want %d", step.what, n, err, step.want)
		}
	}
	for _, i := range []int{0, 1, 3} {
		if e := b.get(t, ids[i]); e.Outcome != queue.Expired {
			t.Errorf("event %d ended as %q", i, e.Outcome)
		}
	}
	for _, i := range []int{2, 4} {
		if e := b.get(t, ids[i]); e.Outcome != "" {
			t.Errorf("event %d ended as %q", i, e.Outcome)
		}
	}
}

func TestSweepOfManyTakesThemAll(t *testing.T) {
	t.Parallel()
	b := open(t, nil)
	b.exec(t, `insert into agent.event (event, attempts) select '{}', 5 from generate_series(1, 2500)`)
	if n, err := b.Sweep(t.Context(), queue.SweepParams{}); n != 2500 || err != nil {
		t.Errorf("swept %d, %v", n, err)
	}
}

func TestRunningServiceSweepsByAttemptsOnly(t *testing.T) {
	t.Parallel()
	b := open(t, func(c *queue.Config) { c.SweepInterval = 10 * time.Millisecond })
	ids := b.postN(t, "", 2)
	b.exec(t, `update agent.event set vt = now() - interval '1 year'`)
	b.exec(t, `update agent.event set attempts = 3 where id = $1`, ids[0])
	running(t, b.Service)
	deadline := time.Now().Add(20 * time.Second)
	for b.get(t, ids[0]).Outcome != queue.Expired {
		if time.Now().After(deadline) {
			t.Fatal("nothing was swept")
		}
	}
	if e := b.get(t, ids[1]); e.State != queue.Ready {
		t.Errorf("an old event that was never claimed became %+v", e)
	}
}

func TestRunningServiceSweepsByAgeWhenTold(t *testing.T) {
	t.Parallel()
	b := open(t, func(c *queue.Config) { c.SweepInterval, c.MaxVTAge = 10*time.Millisecond, time.Hour })
	ids := b.postN(t, "", 2)
	b.exec(t, `update agent.event set vt = now() - interval '2 hours' where id = $1`, ids[0])
	running(t, b.Service)
	deadline := time.Now().Add(20 * time.Second)
	for b.get(t, ids[0]).Outcome != queue.Expired {
		if time.Now().After(deadline) {
			t.Fatal("nothing was swept")
		}
	}
	if e := b.get(t, ids[1]); e.State != queue.Ready {
		t.Errorf("a young event became %+v", e)
	}
}
