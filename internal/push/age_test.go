package push

import (
	"net/http"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

// ageAndSweep makes the events of the queue mail two hours older, together with what has happened to its push, and returns how many a sweep expires that
// gives them an hour.
func ageAndSweep(t *testing.T, conn *pgx.Conn) int64 {
	t.Helper()
	if _, err := conn.Exec(t.Context(), `update agent.event set vt = vt - interval '2 hours' where queue = 'mail'`); err != nil {
		t.Fatal(err)
	}
	return pgtest.Query[int64](t, conn, `select agent.delete_expired_events(3, interval '1 hour')`)
}

func TestEventsOfAHeldBackPushDoNotAge(t *testing.T) {
	t.Parallel()
	for name, answer := range map[Status]func(http.ResponseWriter){
		StatusHeld: func(w http.ResponseWriter) {
			w.Header().Set("Retry-After", "1800")
			w.WriteHeader(http.StatusTooManyRequests)
		},
		StatusOpen:     func(w http.ResponseWriter) { w.WriteHeader(http.StatusInternalServerError) },
		StatusDisabled: func(w http.ResponseWriter) { w.WriteHeader(http.StatusGone) },
	} {
		t.Run(string(name), func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			p := start(t, db, func(c *Config) { c.MaxPause = time.Hour; c.BreakerPause = time.Hour })
			r := receive(t, func(w http.ResponseWriter, _ call) { answer(w) })
			p.put("mail", r, func(params *PutParams) { params.MaxInFlight = 1 })
			p.atOnce(1000)
			ids := p.insert(numbered("mail", 3)...)
			p.status(name)
			until(t, "none is leased", func() bool {
				for _, id := range ids {
					if p.event(id).State == queue.Leased {
						return false
					}
				}
				return true
			})
			conn := pgtest.Connect(t, db.URL)
			if n := ageAndSweep(t, conn); n != 0 {
				t.Fatalf("%d events of a push that is %s have expired", n, name)
			}
			// They are not over age at once when it goes on, either.
			p.Drain()
			if _, err := p.Enable(t.Context(), "mail"); err != nil {
				t.Fatal(err)
			}
			if n := pgtest.Query[int64](t, conn, `select agent.delete_expired_events(3, interval '1 hour')`); n != 0 {
				t.Errorf("%d events have expired at the end of being %s", n, name)
			}
		})
	}
}

func TestEventsAgeWhereNothingIsHeldBack(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := start(t, db)
	p.Drain()
	p.put("mail", receive(t, nil))
	p.insert(numbered("mail", 3)...)
	if n := ageAndSweep(t, pgtest.Connect(t, db.URL)); n != 3 {
		t.Errorf("%d events have expired, want 3", n)
	}
}
