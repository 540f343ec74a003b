package main

import (
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/queued/queued/internal/pgtest"
)

func TestOldOccurrencesArePruned(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	conn := connect(t, db.URL)
	if _, err := conn.Exec(t.Context(), `insert into agent.occurrence (schedule_id, nominal_at, scheduled_for, status)
		select 1, now() at time zone 'UTC' - d * interval '1 day', now() - d * interval '1 day', 'fired' from unnest(array[0, 1, 80, 100, 1000]) d`); err != nil {
		t.Fatal(err)
	}
	left := func() (n int) {
		if err := conn.QueryRow(t.Context(), `select count(*) from agent.occurrence`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	p := serve(t, nil, "QUEUED_DATABASE_URL="+db.ServiceURL)
	until(t, "what is older than 90 days is forgotten", func() bool { return left() == 3 })
	p.stop()
	p = serve(t, nil, "QUEUED_DATABASE_URL="+db.ServiceURL, "QUEUED_OCCURRENCE_RETENTION=48h")
	until(t, "what is older than two days is forgotten", func() bool { return left() == 2 })
	p.stop()
}

// Without a limit, each of these previews runs for minutes.
func TestSIGTERMInterruptsPreviews(t *testing.T) {
	t.Parallel()
	p := setup(t)
	for _, rule := range []string{
		`"rrule":"FREQ=SECONDLY;BYSECOND=0;BYSETPOS=2","at":"2027-01-01T00:00:00"`,
		`"rrule":"FREQ=HOURLY;INTERVAL=999983;BYDAY=MO","at":"2027-01-01T00:00:00"`,
		`"rrule":"FREQ=MINUTELY;INTERVAL=1439;BYDAY=MO;BYHOUR=1;BYMINUTE=2;COUNT=1000","at":"2027-01-01T00:00:00","n":1000`,
		`"rrule":"FREQ=SECONDLY;BYMONTH=3;BYMONTHDAY=8,9,10,11,12,13,14;BYDAY=SU;BYHOUR=2","at":"2027-01-01T00:00:00","gap":"skip","n":1000`,
	} {
		for range 2 {
			p.post("/schedules/preview", `{`+rule+`,"timezone":"America/New_York"}`)
		}
	}
	p.want(http.StatusNotFound, http.MethodGet, "/schedules/1", "")
	p.wantReady()
	p.signal(syscall.SIGTERM)
	told := time.Now()
	if code := p.wait(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
	if took := time.Since(told); took > 30*time.Second {
		t.Errorf("it took %s to stop", took)
	}
}
