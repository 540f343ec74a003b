//go:build unix

package faults

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// deliveriesUnbounded is the broken build of this file.
var deliveriesUnbounded = build{name: "deliveries with the time limit of other requests", edits: []edit{
	{"internal/webhook/service.go", "= 2 * time.Second", "= 15 * time.Second"},
}}

// deliveryLimit is what the answer to a delivery may take: 2 s, and time for a busy machine. It is less than the 15 s of other requests.
const deliveryLimit = 8 * time.Second

// repetitions is how often a sender repeats what was answered 503 while the database is there.
const repetitions = 20

const sourceSecret = "the-secret-of-a-source"

// A webhook is a delivery to /in/{name}, as its sender sends it, again and again.
type webhook struct{ source, key, body string }

// send sends the webhook with a signature or token made of a secret, and returns the status of the answer, 0 if none came in time.
func (w webhook) send(q *queued, secret string) (status int, text string, took time.Duration) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), refusalLimit)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+q.addr+"/in/"+w.source, strings.NewReader(w.body))
	if err != nil {
		return 0, err.Error(), 0
	}
	r.Header.Set("Content-Type", "application/json")
	switch w.source {
	case "github":
		mac := hmac.New(sha256.New, []byte(secret))
		_, _ = io.WriteString(mac, w.body)
		r.Header.Set("X-GitHub-Event", "push")
		r.Header.Set("X-GitHub-Delivery", w.key)
		r.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(mac.Sum(nil)))
	default:
		r.Header.Set("Authorization", "Bearer "+secret)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err.Error(), time.Since(began)
	}
	defer func() { _ = res.Body.Close() }()
	answer, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(answer), time.Since(began)
}

// deliveries takes the database away, frozen in one half of the rounds and stopped in the other, while webhooks come in. Each must be answered with 503 and
// soon, as senders do not wait; those with a wrong signature with 401. When the database is back and the senders send again, each is one event.
func deliveries(t *testing.T, b build, l *ledger, rounds int) {
	t.Helper()
	server := Start(t, Config{})
	q := startQueued(t, b, server.URL(), "QUEUED_SECRET_KEY=a-key-that-seals-secrets")
	q.send(http.MethodPut, "/sources/github", fmt.Sprintf(`{"kind":"github","queue":"in","secrets":[%q],"keep_raw":"24h"}`, sourceSecret))
	q.send(http.MethodPut, "/sources/shop", fmt.Sprintf(`{"kind":"token","queue":"in","key":"{/id}","secrets":[%q],"keep_raw":"24h"}`, sourceSecret))
	var (
		sent    []webhook
		slowest time.Duration
		mu      sync.Mutex
	)
	// expect sends webhooks at a time and checks the answers.
	expect := func(what string, status int, secret string, all ...webhook) {
		var group sync.WaitGroup
		for _, w := range all {
			group.Go(func() {
				got, text, took := w.send(q, secret)
				// With the database there, too, a busy machine may not commit in time; senders repeat.
				for try := 0; status == http.StatusOK && got == http.StatusServiceUnavailable && try < repetitions; try++ {
					got, text, took = w.send(q, secret)
				}
				mu.Lock()
				slowest = max(slowest, took)
				mu.Unlock()
				if got != status {
					l.violated("%s, a delivery to /in/%s got %d %s after %v; want %d", what, w.source, got, text, took, status)
				} else if took > deliveryLimit {
					l.violated("%s, a delivery to /in/%s was answered after %v", what, w.source, took)
				}
			})
		}
		group.Wait()
	}
	// More at a time than there are connections, so that some wait for one.
	make20 := func(round int) (all []webhook) {
		for i := range 20 {
			key := fmt.Sprintf("r%d-%d", round, i)
			all = append(all, webhook{[]string{"github", "shop"}[i%2], key, fmt.Sprintf(`{"id":%q,"n":%d}`, key, i)})
		}
		return all
	}
	for round := range rounds {
		all := make20(2 * round)
		before := make20(2*round + 1)[:4]
		expect("with the database there", http.StatusOK, sourceSecret, before...)
		away, back := "with the database frozen", server.Unfreeze
		if round%2 == 0 {
			server.Freeze()
		} else {
			away, back = "with the database stopped", server.Start
			server.Stop()
		}
		var group sync.WaitGroup
		group.Go(func() { expect(away, http.StatusServiceUnavailable, sourceSecret, all...) })
		group.Go(func() { expect(away, http.StatusServiceUnavailable, sourceSecret, before...) }) // whose events are stored
		group.Go(func() { expect(away, http.StatusUnauthorized, "wrong", all[:4]...) })
		group.Go(func() { expect(away, http.StatusServiceUnavailable, "wrong", webhook{"unknown", "", "{}"}) }) // not 404: nobody knows
		group.Wait()
		back()
		q.awaitReady(startLimit)
		for range 2 { // senders send what was taken, too, if the answer was lost
			expect("with the database back", http.StatusOK, sourceSecret, all...)
			expect("with the database back", http.StatusOK, sourceSecret, before...)
		}
		expect("with the database back", http.StatusUnauthorized, "wrong", all[:4]...)
		sent = append(append(sent, all...), before...)
	}
	t.Logf("%d deliveries, the slowest answered after %v", len(sent), slowest.Round(time.Millisecond))
	for what, statement := range map[string]string{
		"events":                     `select count(*)::int from agent.event`,
		"different events":           `select count(distinct e.event->>'id')::int from agent.event e`,
		"events with the bytes sent": `select count(*)::int from agent.event e join agent.raw_body r on r.event_id = e.id where convert_from(r.body, 'UTF8')::jsonb = e.event`,
	} {
		if n := query[int](t, server.AdminURL(), statement); n != len(sent) {
			l.violated("there are %d %s; want %d", n, what, len(sent))
		}
	}
	if n := query[int](t, server.AdminURL(), `select count(*)::int from agent.raw_body`); n != len(sent) {
		l.violated("the bytes of %d deliveries are stored; want %d", n, len(sent))
	}
}

func TestDeliveriesAreAnsweredInTimeWhileDatabaseIsAway(t *testing.T) {
	t.Parallel()
	runScenario(t, deliveries, 2, 20)
}

func TestBrokenBuildWithUnboundedDeliveriesIsCaught(t *testing.T) {
	t.Parallel()
	inLongForm(t)
	expectViolation(t, deliveries, deliveriesUnbounded, 1)
}
