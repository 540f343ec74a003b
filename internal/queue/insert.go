package queue

import "context"

// Insert enqueues all of events or, on any error, none; results are in the order of events.
// It fails with an *InvalidError or ErrUnrepresentable, and with ErrUnavailable or ctx's error when it is
// unknown whether the events were enqueued. Concurrent calls share transactions.
func (s *Service) Insert(ctx context.Context, events []InsertParams) ([]Inserted, error) {
	if len(events) == 0 {
		return nil, nil
	}
	p := &part{inserts: events, done: make(chan error, 1)}
	if err := s.flusher.do(ctx, p); err != nil {
		return nil, err
	}
	return p.inserted, nil
}
