// Package client calls queued, a durable event queue with an HTTP/JSON API on PostgreSQL, and runs workers on it. It needs only the standard
// library.
//
// # Insert and work
//
// A [Client] has methods for the calls of the API, with the names that the API gives them; [Client.Do] makes any other. A [Worker] claims
// events of one queue, calls the handler of each event's type, and acks it with the result or nacks it with the error:
//
//	c, err := client.New(client.Config{URL: "http://127.0.0.1:8080", Key: key})
//	_, err = c.Insert(ctx, client.NewEvent{Queue: "mail", Type: "mail.welcome", Payload: Welcome{To: "ada@example.com"}})
//
//	w := c.NewWorker(client.WorkerConfig{Queue: "mail", Concurrency: 8})
//	client.Handle(w, "mail.welcome", func(ctx context.Context, j client.Job[Welcome]) (any, error) {
//		return nil, send(ctx, j.Payload)
//	})
//	err = w.Run(ctx)
//
// Delivery is at least once: a handler can get an event again whose worker died, or was too slow to extend its lease. The receipt of each
// claim fences the calls of a late worker: its ack is refused with [ErrLeaseLost], and the handler's context ends. An action of a handler elsewhere
// needs a key of its own; the event's ID is one.
//
// # Errors and retries
//
// A refusal by the server is an [*Error], with a stable Code; compare it with [errors.Is] to [ErrLeaseLost], [ErrNotFound] and so on.
//
// Calls are retried for [Config.RetryFor], with growing pauses: after broken connections, and after statuses 429, 502, 503 and 504. A call
// whose outcome is not known is repeated only if making it twice has the effect of making it once. Inserts, publications and new schedules
// are sent under idempotency keys, which the client makes where the caller gives none. Calls that cannot be repeated say so.
//
// # Listings and streams
//
// Listings are iterators that read page after page, [Client.Stream] one that connects again and goes on after the last event. Breaking out of
// the loop, or the end of the context, ends them; they leave no goroutine behind.
//
// # Numbers
//
// Ids are int64. Payloads, metadata and results are [json.RawMessage], so that no digit is lost on the way; values that are decoded into an
// any get a [json.Number].
package client
