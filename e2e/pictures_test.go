package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/jackc/pgx/v5"
)

// lastHour gives some queues an hour of statistics, as if their server had been running all the time: there is no other way to have pages with an hour in them
// than to wait for one.
const lastHour = `
	with minutes as (select n, date_trunc('minute', now()) - make_interval(mins => 60 - n) as at from generate_series(0, 59) as n)
	, sampled as
	( insert into agent.queue_sampling (at, sampled_at, horizon, counted_at, events, is_complete, is_settled)
	  select at, at, pg_current_xact_id(), now(), 0, true, true from minutes on conflict (at) do nothing
	)
	, depths as
	( insert into agent.queue_sample (queue, at, ready, scheduled, leased, oldest_ready_at, is_estimate)
	  select q.name, m.at, q.ready + (q.swing * (1 + sin(m.n / q.wave)))::int8 + case when q.name = 'mail' and m.n > 44 then (m.n - 44) * 9 else 0 end, 40 + m.n % 7, 8 + m.n % 5, m.at, false
	  from minutes m cross join (values ('mail', 5, 9, 7.0), ('orders', 2, 4, 3.0), ('invoices', 20, 12, 11.0)) as q (name, ready, swing, wave)
	  on conflict do nothing
	)
	insert into agent.queue_outcome (queue, at, done, failed, expired, cancelled, wait_bins, wait_counts, processing_bins, processing_counts)
	select q.name, m.at, (q.rate * (1.6 + sin(m.n / q.wave)))::int8, case when q.name = 'mail' and m.n > 44 then 3 + m.n % 9 else 0 end, 0, 0
	, array[agent_private.duration_bin(make_interval(secs => 0.02 * (1 + m.n % 4))), agent_private.duration_bin(make_interval(secs => 0.3 + case when m.n > 44 then m.n - 44 else 0 end))], array[9, 1]
	, array[agent_private.duration_bin(make_interval(secs => 0.05)), agent_private.duration_bin(make_interval(secs => 0.4 + 0.02 * (m.n % 9)))], array[9, 1]
	from minutes m cross join (values ('mail', 60, 7.0), ('orders', 140, 9.0), ('invoices', 25, 5.0)) as q (name, rate, wave)
	on conflict do nothing`

// sumOfLastHour adds up what ended in all queues.
const sumOfLastHour = `
	update agent.queue_sampling s
	set done = o.done, failed = o.failed
	from (select at, sum(done) as done, sum(failed) as failed from agent.queue_outcome group by at) o
	where s.at = o.at`

// liveAnHour gives a database the statistics of an hour.
func liveAnHour(t *testing.T, database string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	for _, statement := range []string{lastHour, sumOfLastHour} {
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
}

// TestPicturesOfTheDocumentation takes the pictures of docs/dashboard.md, when QUEUED_E2E_PICTURES names a folder for them: see make pictures.
func TestPicturesOfTheDocumentation(t *testing.T) {
	t.Parallel()
	folder := os.Getenv("QUEUED_E2E_PICTURES")
	if folder == "" {
		t.Skip("QUEUED_E2E_PICTURES is not set: it names the folder of the pictures")
	}
	database := newDatabase(t)
	p := start(t, build(t), database, freeAddress(t))
	p.request(t, "PUT", "/queues/mail", `{"max_attempts":5,"invisible_for":"2m","backoff":{"kind":"exponential","base":"5s","factor":2,"max":"1h","jitter":0.1},"dead_letter":{"queue":"mail.dead"}}`)
	for _, queue := range []string{"mail", "orders", "invoices"} {
		for i := range 60 {
			p.request(t, "POST", fmt.Sprintf("/events?queue=%s&type=%s.created", queue, queue), fmt.Sprintf(`{"id":%d,"to":"ada.lovelace@example.com"}`, 4711+i))
		}
		var claimed struct {
			Events []struct {
				ID      int64  `json:"id"`
				Receipt string `json:"receipt"`
			} `json:"events"`
		}
		if err := json.Unmarshal(p.request(t, "POST", "/claim", fmt.Sprintf(`{"queue":%q,"limit":40,"worker":"%s-worker-1"}`, queue, queue)), &claimed); err != nil {
			t.Fatal(err)
		}
		for i, e := range claimed.Events {
			switch {
			case queue == "mail" && i%4 == 0:
				cause := fmt.Sprintf("SMTP 421: too many connections from 10.0.0.%d", i)
				if i%8 == 0 {
					cause = "connection refused"
				}
				p.request(t, "POST", fmt.Sprintf("/events/%d/nack", e.ID), string(encode(t, map[string]any{"receipt": e.Receipt, "error": cause, "final": true})))
			case i < 36:
				p.call(t, http.StatusOK, "POST", fmt.Sprintf("/events/%d/ack", e.ID), fmt.Sprintf(`{"receipt":%q,"result":{"sent":true}}`, e.Receipt))
			}
		}
	}
	p.request(t, "POST", "/schedules", `{"name":"nightly report","queue":"reports","event":{"report":"nightly"},"cron":"*/20 * * * *","timezone":"Europe/Berlin"}`)
	liveAnHour(t, database)
	b := openTab(t, "http://"+p.address)
	for _, shot := range []struct {
		name, path, scheme string
		width              int64
	}{
		{"overview", "", "light", 1280},
		{"overview-dark", "", "dark", 1280},
		{"overview-narrow", "", "dark", 360},
		{"queue", "queues/mail", "light", 1280},
		{"history", "history?queue=mail&outcome=failed", "light", 1280},
		{"event", "events/1", "light", 1280},
		{"redrive", "redrives/new?queue=mail&outcome=failed", "light", 1280},
	} {
		b.look(shot.width, shot.scheme)
		b.open(shot.path)
		b.check(shot.name)
		png, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot()) // of what the window shows
		if err != nil {
			t.Fatal(err)
		}
		write(t, folder, shot.name, png)
	}
}
