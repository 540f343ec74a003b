package load

import (
	"context"
	"fmt"
)

// Place has the new events of a queue go to a cell.
func (t *Target) Place(ctx context.Context, queue string, cell int) error {
	if _, err := t.call(ctx, "PUT", "/queues/"+queue+"/placement", fmt.Appendf(nil, `{"cells":[%d]}`, cell), 200, 201); err != nil {
		return fmt.Errorf("placing a queue: %w", err)
	}
	return nil
}
