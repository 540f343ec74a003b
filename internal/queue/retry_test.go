package queue_test

import (
	"testing"

	"github.com/queued/queued/internal/pgtest"
)

// A claim takes an event of which others commit a new version after its statement has begun, as a claim and its release do: it is the only
// one, and claimable all the time.
func TestAClaimTakesAnEventWhoseRowChangesMeanwhile(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ flow, claim string }{
		"in order":            {`null`, `agent.claim_events('q', 10)`},
		"of a type":           {`null`, `agent.claim_events('q', 10, _types => array['t'])`},
		"of a limited group":  {`{"concurrency": 1}`, `agent.claim_events('q')`},
		"of a group in order": {`{"order": true}`, `agent.claim_events('q')`},
		"in turns":            {`{"fair": true}`, `agent.claim_events('q')`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, nil)
			b.limit(t, "q", c.flow)
			id := pgtest.Query[int64](t, b.sql, `select agent.insert_event('{}', 'q', _type => 't', _group => 'a')`)
			b.wantClaimed(t, "q", "at first", id)
			b.release(t, id) // it has its turn now
			held := pgtest.HoldWrites(t, b.url, "agent.event", false)
			b.exec(t, `drop trigger hold on agent.event; create trigger hold before update of attempts on agent.event execute function public.hold()`)
			other := pgtest.Connect(t, b.url)
			claimed := make(chan []int64)
			go func() {
				claimed <- pgtest.Query[[]int64](t, other, `select coalesce(array_agg(e.id), '{}') from `+c.claim+` e`)
			}()
			held.Await()
			b.exec(t, `update agent.event set worker = worker`)
			held.Release()
			if got := <-claimed; len(got) != 1 || got[0] != id {
				t.Errorf("claimed %v, want %d", got, id)
			}
		})
	}
}
