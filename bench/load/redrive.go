package load

import (
	"context"
	"encoding/json"
	"fmt"
)

// Redrive has all events of a queue that are in history posted into another queue, at most rate a second, in the background. It returns the id of the redrive.
func (t *Target) Redrive(ctx context.Context, from, to string, rate float64) (id int64, err error) {
	body := fmt.Appendf(nil, `{"filter":{"queue":%q},"to":%q,"rate":%g}`, from, to, rate)
	answer, err := t.call(ctx, "POST", "/redrives", body, 202)
	if err != nil {
		return 0, fmt.Errorf("starting a redrive: %w", err)
	}
	var redrive struct{ ID int64 }
	if err := json.Unmarshal(answer, &redrive); err != nil {
		return 0, fmt.Errorf("starting a redrive: %w", err)
	}
	return redrive.ID, nil
}

// Redriven returns how many events a redrive has posted, and whether it has ended.
func (t *Target) Redriven(ctx context.Context, id int64) (events int64, hasEnded bool, err error) {
	answer, err := t.Get(ctx, fmt.Sprintf("/redrives/%d", id))
	if err != nil {
		return 0, false, err
	}
	var redrive struct {
		State    string
		Requeued int64
	}
	if err := json.Unmarshal(answer, &redrive); err != nil {
		return 0, false, fmt.Errorf("reading a redrive: %w", err)
	}
	return redrive.Requeued, redrive.State == "done", nil
}
