package cell

import (
	"context"
	"encoding/json"

	"github.com/queued/queued/internal/pg"
)

// What becomes of an event that home has had wait for this cell.
const (
	ForwardInserted = "inserted"
	ForwardKnown    = "known"   // it was inserted before
	ForwardRefused  = "refused" // it cannot be inserted here
)

// A Forwarded is what became of one event.
type Forwarded struct {
	Forwarded int64 // its id at home
	ID        int64 // its id here; zero: it was refused
	Result    string
	Reason    string // why it was refused
}

// InsertForwarded inserts events that home has had wait for this cell, as their claims there have returned them, each on its own. It may be repeated: an event that is
// known by its id at home is not inserted again. The results are in the order of these ids. It fails with an *InvalidError if events is no list of at most 1,000 objects.
func (s *Service) InsertForwarded(ctx context.Context, events []json.RawMessage) (results []Forwarded, err error) {
	body, err := json.Marshal(events)
	if err != nil {
		return nil, err
	}
	err = s.writes.Do(ctx, func(pool *pg.Pool) error {
		rows, _ := pool.Query(ctx, `select forwarded, id, result, reason from agent_service.insert_forwarded_events($1)`, string(body))
		results, err = pg.Collect[Forwarded](rows)
		return err
	})
	return results, wrap("inserting events that were forwarded", err)
}
