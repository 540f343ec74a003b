package queue_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

// manyQueues is an env with one event in each of this many queues, a hundred of which also have a policy.
func manyQueues(t *testing.T, queues int) env {
	t.Helper()
	b := setup(t, nil)
	b.exec(t, `
		insert into agent.event (event, queue, vt)
		select '{}', 'q' || to_char(i, 'FM000000'), now() - make_interval(secs => i) from generate_series(1, $1::int) i`, queues)
	b.exec(t, `insert into agent.queue (name) select 'policy' || to_char(i, 'FM000') from generate_series(1, 100) i`)
	return b
}

func TestListingsOfManyQueuesAreFast(t *testing.T) {
	t.Parallel()
	const n = 50_000
	b := manyQueues(t, n)
	b.exec(t, `update agent.event set vt = now() + interval '1 day' where queue in ('q000007', 'q000009')`)
	b.exec(t, `update agent.event set attempts = 1 where queue = 'q000009'`)
	start := time.Now()
	for range 5 {
		for state, want := range map[queue.State]string{"": "q050000", queue.Ready: "q050000", queue.Scheduled: "q000007", queue.Leased: "q000009"} {
			page, err := b.List(t.Context(), queue.ListParams{State: state, Limit: 3})
			if err != nil || len(page.Events) == 0 || page.Events[0].Queue != want {
				t.Fatalf("%s: %+v, %v, want an event of %s", state, page, err, want)
			}
		}
	}
	b.exec(t, `update agent.event set event = '{"a": 1}', meta = '{"m": 1}' where queue in ('q000005', 'q000009', 'q040000')`)
	b.exec(t, `update agent.event set event = '{"a": 1}' where queue = 'q000006'`)
	found := func(p queue.ListParams) (queues []string) {
		t.Helper()
		page, err := b.List(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page.Events {
			queues = append(queues, e.Queue)
		}
		return queues
	}
	object := func(text string) json.RawMessage { return json.RawMessage(text) }
	for _, c := range []struct {
		p    queue.ListParams
		want []string
	}{
		{queue.ListParams{Meta: object(`{"m":1}`)}, []string{"q040000", "q000005", "q000009"}},
		{queue.ListParams{Meta: object(`{"m":1}`), Limit: 2}, []string{"q040000", "q000005"}},
		{queue.ListParams{Contains: object(`{"a":1}`), State: queue.Ready}, []string{"q040000", "q000006", "q000005"}},
		{queue.ListParams{Contains: object(`{"a":1}`), Meta: object(`{}`), State: queue.Leased}, []string{"q000009"}},
	} {
		if got := found(c.p); !slices.Equal(got, c.want) {
			t.Errorf("%+v found events of %q, want %q", c.p, got, c.want)
		}
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("twenty pages of all queues took %v", took)
	}
	page, err := b.List(t.Context(), queue.ListParams{Limit: 2})
	if err != nil {
		t.Fatal(err)
	}
	if page, err = b.List(t.Context(), queue.ListParams{Limit: 2, Cursor: page.Next}); err != nil || page.Events[0].Queue != "q049998" {
		t.Errorf("the second page: %+v, %v", page, err)
	}

	if page, err := b.Queues(t.Context(), queue.QueuesParams{Lately: time.Hour, Limit: 1000}); err != nil || len(page.Queues) != 1000 || page.Next == "" {
		t.Errorf("the first page of the queues has %d, %q, %v", len(page.Queues), page.Next, err)
	}
	busiest, leftOut, err := b.BusiestQueues(t.Context(), 500)
	if err != nil || len(busiest) != 500 || leftOut != n+100-500 {
		t.Errorf("got %d busiest queues, %d others, %v", len(busiest), leftOut, err)
	}
}

func TestQueuesArePaged(t *testing.T) {
	t.Parallel()
	b := manyQueues(t, 30)
	loadHistory(t, b, "gone with a blank", time.Minute, 4, queue.Done)
	var names []string
	cursor := ""
	for {
		page, err := b.Queues(t.Context(), queue.QueuesParams{Lately: time.Hour, Limit: 7, Cursor: cursor})
		if err != nil {
			t.Fatal(err)
		}
		for _, q := range page.Queues {
			names = append(names, q.Queue)
			if q.Queue == "gone with a blank" && q.DoneLately != 4 || q.Queue == "q000030" && q.Ready != 1 {
				t.Errorf("counted %+v", q)
			}
		}
		if cursor = page.Next; cursor == "" {
			break
		}
	}
	if len(names) != 131 || !slices.IsSorted(names) || len(slices.Compact(names)) != 131 {
		t.Errorf("the pages have %d queues: %v", len(names), names)
	}
	for _, c := range []struct {
		part, want string
		queues     []string
	}{
		{"00000", "q000001 q000002 q000003 q000004 q000005 q000006 q000007 q000008 q000009", nil},
		{"Q00002", "q000020 q000021 q000022 q000023 q000024 q000025 q000026 q000027 q000028 q000029", nil},
		{"WITH a", "gone with a blank", nil},
		{"_", "", nil},
		{"é", "", nil},
		{"1", "q000001 q000010 q000011 q000012 q000013 q000014 q000015 q000016 q000017 q000018 q000019", []string{"q00000*", "q00001*"}},
	} {
		var found []string
		for cursor := ""; ; {
			page, err := b.Queues(t.Context(), queue.QueuesParams{Limit: 4, Cursor: cursor, NameContains: c.part, Queues: c.queues})
			if err != nil {
				t.Fatal(err)
			}
			for _, q := range page.Queues {
				found = append(found, q.Queue)
			}
			if cursor = page.Next; cursor == "" {
				break
			}
		}
		if got := strings.Join(found, " "); got != c.want {
			t.Errorf("queues with %q in their names: %s, want %s", c.part, got, c.want)
		}
	}
	for _, bad := range []string{"x", "bGlzdCAxIDE", "cXVldWVz"} {
		if _, err := b.Queues(t.Context(), queue.QueuesParams{Cursor: bad}); err == nil {
			t.Errorf("the cursor %q was accepted", bad)
		}
	}
}

func TestBusiestQueuesAreTheOldestAndTheLargest(t *testing.T) {
	t.Parallel()
	b := manyQueues(t, 2000)
	b.exec(t, `update agent.event set vt = now() + interval '1 day' where queue > 'q000100'`)
	b.exec(t, `insert into agent.event (event, queue, vt) select '{}', 'large', now() + interval '1 day' from generate_series(1, 300)`)
	b.exec(t, `insert into agent.event (event, queue, vt) select '{}', 'old', now() - interval '1 day' from generate_series(1, 2)`)
	busiest, leftOut, err := b.BusiestQueues(t.Context(), 10)
	if err != nil || len(busiest) != 10 || leftOut != 2002+100-10 {
		t.Fatalf("got %d busiest queues, %d others, %v", len(busiest), leftOut, err)
	}
	for _, want := range []queue.QueueStats{{Queue: "large", Scheduled: 300}, {Queue: "old", Ready: 2}, {Queue: "q000100", Ready: 1}, {Queue: "q000099", Ready: 1}} {
		i := slices.IndexFunc(busiest, func(q queue.QueueStats) bool { return q.Queue == want.Queue })
		if i < 0 {
			t.Errorf("%s is missing: %+v", want.Queue, busiest)
			continue
		}
		busiest[i].OldestReadyAge, busiest[i].DeadLettersOf = nil, nil
		if !reflect.DeepEqual(busiest[i], want) {
			t.Errorf("counted %+v, want %+v", busiest[i], want)
		}
	}
}

func TestMemoryPerQueueIsBounded(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	const n = 2500
	for batch := range n / 500 {
		params := make([]queue.InsertParams, 500)
		for i := range params {
			params[i] = queue.InsertParams{Event: []byte(`{}`), Queue: fmt.Sprintf("q%d", 500*batch+i)}
		}
		if _, err := b.Insert(t.Context(), params); err != nil {
			t.Fatal(err)
		}
		for i := range params {
			b.claim(t, queue.ClaimParams{Queue: params[i].Queue}, 1)
		}
	}
	counters := b.Counters()
	var inserted, claimed int64
	for _, c := range counters {
		inserted += c.Inserted
		claimed += c.Claimed
	}
	if len(counters) != 501 || counters[0].Queue != queue.OtherQueues || inserted != n || claimed != n {
		t.Errorf("%d queues have counters, the first is %q, in all %d were inserted and %d claimed", len(counters), counters[0].Queue, inserted, claimed)
	}
}

func TestSweepOfManyQueuesFindsOverAgeEvents(t *testing.T) {
	t.Parallel()
	b := manyQueues(t, 2000)
	age := 1990 * time.Second
	if n, err := b.Sweep(t.Context(), queue.SweepParams{MaxVTAge: &age}); n < 10 || n > 60 || err != nil { // the first 10, and those that came of age meanwhile
		t.Errorf("swept %d by age, %v", n, err)
	}
	b.exec(t, `update agent.event set attempts = 1 where queue = 'q000100'`)
	if n, err := b.Sweep(t.Context(), queue.SweepParams{MaxAttempts: 1}); n != 1 || err != nil {
		t.Errorf("swept %d by attempts, %v", n, err)
	}
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event_hist where queue = 'q000100' and outcome = 'expired'`); n != 1 {
		t.Error("the sweep expired another event than the exhausted one")
	}
}
