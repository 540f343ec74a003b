package load

import (
	"context"
	"encoding/json"
	"fmt"
)

// Place has the new events of a queue go to a cell.
func (t *Target) Place(ctx context.Context, queue string, cell int) error {
	if _, err := t.call(ctx, "PUT", "/queues/"+queue+"/placement", fmt.Appendf(nil, `{"cells":[%d]}`, cell), 200, 201); err != nil {
		return fmt.Errorf("placing a queue: %w", err)
	}
	return nil
}

// HistoryPage reads a page of history, from a cursor on unless that is empty, and returns how many events it has and the cursor of the next page.
func (t *Target) HistoryPage(ctx context.Context, cursor string) (events int, next string, err error) {
	path := "/history?limit=100"
	if cursor != "" {
		path += "&cursor=" + cursor
	}
	body, err := t.Get(ctx, path)
	if err != nil {
		return 0, "", err
	}
	var page struct {
		Events []json.RawMessage
		Next   string
	}
	if err := json.Unmarshal(body, &page); err != nil {
		return 0, "", fmt.Errorf("reading a page of history: %w", err)
	}
	return len(page.Events), page.Next, nil
}
