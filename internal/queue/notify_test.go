package queue_test

import (
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

// listen returns a session that listens for notifications.
func listen(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn := pgtest.Connect(t, url)
	if _, err := conn.Exec(t.Context(), `listen agent_event`); err != nil {
		t.Fatal(err)
	}
	return conn
}

// received returns the number of notifications received so far, by queue.
func received(t *testing.T, conn *pgx.Conn) map[string]int {
	t.Helper()
	if _, err := conn.Exec(t.Context(), `notify agent_event, 'the end'`); err != nil {
		t.Fatal(err)
	}
	count := make(map[string]int)
	for {
		n, err := conn.WaitForNotification(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if n.Payload == "the end" {
			return count
		}
		name, _, _ := strings.Cut(n.Payload, "|")
		count[name]++
	}
}

func TestFewNotificationsWakeOtherServicesAtAnyInsertRate(t *testing.T) {
	t.Parallel()
	b := setup(t, neverPolls)
	runService(t, b.Service)
	awaitListening(t, b)
	sender := anotherService(t, b.url, neverPolls)
	runService(t, sender)
	conn := listen(t, b.url)
	send := func(q string) {
		if _, err := sender.Insert(t.Context(), []queue.InsertParams{{Event: json.RawMessage(`{}`), Queue: q}}); err != nil {
			t.Error(err)
		}
	}
	claimed := make(chan queue.Event)
	var worker sync.WaitGroup
	defer worker.Wait()
	const total = 20 + 20 + 150
	worker.Go(func() {
		defer close(claimed)
		for range total {
			events, err := b.Claim(t.Context(), queue.ClaimParams{Wait: queue.MaxWait})
			if err != nil || len(events) != 1 {
				t.Errorf("a waiting claim was not woken: it got %+v, %v", events, err)
				return
			}
			claimed <- events[0]
		}
	})
	start := time.Now()
	slow := time.NewTicker(30 * time.Millisecond)
	defer slow.Stop()
	for range 20 { // each more than the interval after the last
		<-slow.C
		send(queue.Default)
		<-claimed
	}
	for range 20 { // within the interval after another notification, so this one is delayed
		<-slow.C
		send("other")
		send(queue.Default)
		<-claimed
	}
	worker.Go(func() { // as fast as possible
		for range 150 {
			send(queue.Default)
		}
	})
	for range 150 {
		if _, ok := <-claimed; !ok {
			t.FailNow()
		}
	}
	n, most := received(t, conn)[queue.Default], int(time.Since(start)/(20*time.Millisecond))+2
	if n > most {
		t.Errorf("%d notifications, want %d at most", n, most)
	}
}

func TestEventsWithoutAQueueNotifyTheDefaultQueue(t *testing.T) {
	t.Parallel()
	sql := sqlBench(t)
	if _, err := sql.Exec(t.Context(), `listen agent_event`); err != nil {
		t.Fatal(err)
	}
	if _, err := sql.Exec(t.Context(), `select agent.insert_events(array['{}', '{}']::jsonb[], array['a'])`); err != nil {
		t.Fatal(err)
	}
	if got := received(t, sql); len(got) != 2 || got["a"] != 1 || got[queue.Default] != 1 {
		t.Errorf("notified %v, want a and default", got)
	}
}
