//go:build unix

package faults

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// withoutWithdrawal leaves dead letters alone whose events are acked late.
var withoutWithdrawal = build{name: "acks that leave dead letters alone", setting: `
	create or replace function agent_private.withdraw_copies(_ids int8[], _receipts text[], _allowed text[]) returns int8[] language sql as
	$$ select array(select h.dead_lettered_as from agent.event_hist h where h.id = any (_ids) and h.dead_lettered_as is not null) $$`}

// misplacedDeadLetters are violations of the books: each event that ended as failed or expired in the queue mail has one dead letter, waiting or
// ended, which is there since the event ended, and no other event has one, unless its ack has withdrawn it.
const misplacedDeadLetters = `
	with letters as (
		select e.id, e.dead_letter_of, '' as outcome, null as last_error from agent.event e where e.dead_letter_of is not null and e.requeued_from is null
		union all
		select h.id, h.dead_letter_of, h.outcome, h.last_error from agent.event_hist h where h.dead_letter_of is not null and h.requeued_from is null
	), ended as (
		select h.id, h.outcome, h.dead_lettered_as, h.queue = 'mail' and h.outcome in ('failed', 'expired') as is_due from agent.event_hist h
	)
	select format('event %s is %s and has %s as its dead letter', n.id, n.outcome, coalesce(n.dead_lettered_as::text, 'nothing'))
	from ended n
	where n.is_due <> (n.dead_lettered_as is not null)
	or n.is_due and (select array_agg(l.id) from letters l where l.dead_letter_of = n.id) is distinct from array[n.dead_lettered_as]
	union all
	select format('%s is the dead letter of %s, which is %s', l.id, l.dead_letter_of, coalesce(n.outcome, 'nowhere'))
	from letters l
	left join ended n on n.id = l.dead_letter_of
	where not coalesce(n.is_due or n.outcome = 'done' and l.outcome = 'cancelled' and l.last_error like 'withdrawn%', false)
	union all
	select format('event %s is there %s times', a.id, count(*)) from (select id from agent.event union all select id from agent.event_hist) a group by a.id having count(*) > 1
	limit 20`

// killBesideDeadLetters has clients insert, claim, nack, ack late, sweep, move, purge and requeue at random, through processes that are killed in turn.
func killBesideDeadLetters(t *testing.T, b build, l *ledger, rounds int) {
	t.Helper()
	server := Start(t, Config{})
	servers := []*queued{startQueued(t, b, server.URL()), startQueued(t, b, server.URL()), startQueued(t, b, server.URL())}
	admin, err := pgx.Connect(t.Context(), server.AdminURL())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = admin.Close(context.Background()) }()
	b.breakDatabase(t, server)
	d := &deadLetterLoad{t: t, ledger: l, servers: servers, seed: uint64(time.Now().UnixNano())}
	t.Logf("seed %d", d.seed)
	d.call(t.Context(), servers[0], http.MethodPut, "/queues/mail", `{"max_attempts":3,"invisible_for":"200ms","dead_letter":{"queue":"mail.dead"}}`, nil)
	ctx, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	for n := range uint64(6) {
		clients.Go(func() { d.work(ctx, rand.New(rand.NewPCG(d.seed, n))) })
	}
	for i := range rounds {
		pause(time.Second)
		victim := servers[i%len(servers)]
		victim.kill()
		victim.start()
		victim.awaitReady(startLimit)
	}
	pause(time.Second)
	stop()
	clients.Wait()
	rows, _ := admin.Query(t.Context(), misplacedDeadLetters)
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	for _, violation := range found {
		l.violated("%s", violation)
	}
	var failed, expired, withdrawn, again int
	err = admin.QueryRow(t.Context(), `select count(*) filter (where outcome = 'failed' and dead_lettered_as is not null), count(*) filter (where outcome = 'expired' and dead_lettered_as is not null)
		, count(*) filter (where last_error like 'withdrawn%'), count(*) filter (where dead_letter_of is not null and dead_lettered_as is not null) from agent.event_hist`).Scan(&failed, &expired, &withdrawn, &again)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("dead letters of %d failed and %d expired events, %d of them dead letters themselves; %d withdrawn", failed, expired, again, withdrawn)
	if b.name == unmodified.name && (failed == 0 || expired == 0 || withdrawn == 0) {
		t.Error("the load did not try everything")
	}
}

// deadLetterLoad makes random calls to servers, some of which are dead.
type deadLetterLoad struct {
	t       *testing.T
	ledger  *ledger
	servers []*queued
	seed    uint64
}

// call makes one call, whatever becomes of it.
func (d *deadLetterLoad) call(ctx context.Context, q *queued, method, path, body string, into any) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+q.addr+path, bytes.NewReader([]byte(body)))
	if err != nil {
		d.t.Error(err)
		return
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err == nil && into != nil && res.StatusCode == http.StatusOK {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		return
	}
	if res.StatusCode >= http.StatusInternalServerError && res.StatusCode != http.StatusServiceUnavailable || res.StatusCode == http.StatusUnprocessableEntity {
		d.ledger.violated("%s %s returned %d %s", method, path, res.StatusCode, text)
	}
}

// work makes calls until ctx ends. Late acks go to leases of a while ago.
func (d *deadLetterLoad) work(ctx context.Context, random *rand.Rand) {
	var old []lease
	for ctx.Err() == nil {
		q := d.servers[random.IntN(len(d.servers))]
		queue := []string{"mail", "mail", "mail.dead", "other"}[random.IntN(4)]
		switch random.IntN(12) {
		case 0, 1, 2, 3:
			for range 5 {
				d.call(ctx, q, http.MethodPost, "/events?queue="+queue+[]string{"", "&max_attempts=1", "&expires_at=2020-01-01T00:00:00Z"}[random.IntN(3)], `{}`, nil)
			}
		case 4, 5, 6, 7:
			var claimed struct{ Events []lease }
			d.call(ctx, q, http.MethodPost, "/claim", fmt.Sprintf(`{"queue":%q,"limit":4,"invisible_for":"100ms"}`, queue), &claimed)
			for _, l := range claimed.Events {
				path := fmt.Sprintf("/events/%d", l.ID)
				switch random.IntN(5) {
				case 0:
					d.call(ctx, q, http.MethodPost, path+"/nack", fmt.Sprintf(`{"receipt":%q,"error":"no"}`, l.Receipt), nil)
				case 1:
					d.call(ctx, q, http.MethodPost, path+"/nack", fmt.Sprintf(`{"receipt":%q,"final":true}`, l.Receipt), nil)
				case 2:
					d.call(ctx, q, http.MethodDelete, path+"?receipt="+l.Receipt, "", nil)
				default:
					old = append(old, l)
				}
			}
		case 8, 9:
			d.call(ctx, q, http.MethodPost, "/sweep", []string{`{"max_attempts":1}`, `{"max_attempts":1,"queue":"mail"}`, `{"max_vt_age":"1s"}`}[random.IntN(3)], nil)
			for n := min(len(old), 4); n > 0; n-- {
				i := random.IntN(len(old))
				d.call(ctx, q, http.MethodDelete, fmt.Sprintf("/events/%d?receipt=%s", old[i].ID, old[i].Receipt), "", nil)
				old[i], old = old[len(old)-1], old[:len(old)-1]
			}
		case 10:
			to := []string{"mail", "mail.dead", "other"}[random.IntN(3)]
			if to != queue {
				d.call(ctx, q, http.MethodPost, "/queues/"+queue+"/move", fmt.Sprintf(`{"to":%q,"limit":5}`, to), nil)
			}
		case 11:
			if random.IntN(2) == 0 {
				d.call(ctx, q, http.MethodPost, "/queues/other/purge", "", nil)
			} else {
				d.call(ctx, q, http.MethodPost, "/history/requeue", fmt.Sprintf(`{"queue":%q,"limit":3}`, queue), nil)
			}
		}
	}
}

func TestBooksOfDeadLettersBalanceWhenQueuedIsKilled(t *testing.T) {
	t.Parallel()
	runScenario(t, killBesideDeadLetters, 6, 120)
}

func TestBrokenBuildThatLeavesDeadLettersOfAckedEventsIsCaught(t *testing.T) {
	t.Parallel()
	inLongForm(t)
	expectViolation(t, killBesideDeadLetters, withoutWithdrawal, 6)
}
