package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/queued/queued/client"
)

type Welcome struct {
	To string `json:"to"`
}

// Insert an event, work on it, and read what became of it.
func Example() {
	url, stop := client.ServeExample() // in a program: where queued serves, such as http://127.0.0.1:8080
	defer stop()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	c, err := client.New(client.Config{URL: url})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	inserted, err := c.Insert(ctx, client.NewEvent{Queue: "mail", Type: "mail.welcome", Payload: Welcome{To: "ada@example.com"}})
	if err != nil {
		log.Fatal(err)
	}

	w := c.NewWorker(client.WorkerConfig{Queue: "mail", Concurrency: 8, Lease: time.Minute})
	client.Handle(w, "mail.welcome", func(_ context.Context, j client.Job[Welcome]) (any, error) {
		fmt.Println("sending a mail to", j.Payload.To)
		cancel() // a program would do so on SIGTERM; what is being worked on is finished
		return map[string]int{"mails": 1}, nil
	})
	if err := w.Run(ctx); err != nil {
		log.Fatal(err)
	}

	e, err := c.GetEvent(context.Background(), inserted.ID)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(e.Outcome, string(e.Result))
	// Output:
	// sending a mail to ada@example.com
	// done {"mails":1}
}

// A handler says what its error means.
func ExampleHandle() {
	url, stop := client.ServeExample()
	defer stop()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c, err := client.New(client.Config{URL: url})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	_, err = c.Insert(ctx, client.NewEvent{Type: "mail.welcome", Payload: Welcome{To: "nobody"}})
	if err != nil {
		log.Fatal(err)
	}

	errNoMailbox := errors.New("no such mailbox")
	send := func(context.Context, Welcome) error { return errNoMailbox }
	w := c.NewWorker(client.WorkerConfig{})
	client.Handle(w, "mail.welcome", func(ctx context.Context, j client.Job[Welcome]) (any, error) {
		defer cancel()
		err := send(ctx, j.Payload)
		switch {
		case errors.Is(err, errNoMailbox):
			return nil, client.Final(err) // no other attempt can succeed
		case err != nil && j.Attempts == 1:
			return nil, client.RetryIn(10*time.Second, err)
		}
		return nil, err // an error waits for the queue's backoff
	})
	if err := w.Run(ctx); err != nil {
		log.Fatal(err)
	}
	for e, err := range c.ListHistory(context.Background(), client.HistoryFilter{Outcome: client.OutcomeFailed}) {
		fmt.Println(e.LastError, err)
	}
	// Output:
	// no such mailbox <nil>
}

// An insert under a key can be repeated, also by another process: the event is stored once.
func ExampleClient_Insert() {
	url, stop := client.ServeExample()
	defer stop()
	c, err := client.New(client.Config{URL: url})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	for range 2 {
		inserted, err := c.Insert(context.Background(), client.NewEvent{Queue: "orders", Key: "order-4711", Payload: map[string]int{"order": 4711}})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("stored before:", inserted.Replayed)
	}
	_, err = c.Insert(context.Background(), client.NewEvent{Queue: "orders", Key: "order-4711", Payload: map[string]int{"order": 1}})
	fmt.Println("a different event:", errors.Is(err, client.ErrKeyReused))
	// Output:
	// stored before: false
	// stored before: true
	// a different event: true
}

// A worker without a [client.Worker]: claim, extend, ack, each fenced by the receipt.
func ExampleClient_Claim() {
	url, stop := client.ServeExample()
	defer stop()
	ctx := context.Background()
	c, err := client.New(client.Config{URL: url})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Insert(ctx, client.NewEvent{Payload: json.RawMessage(`{"id":9007199254740993}`)}); err != nil {
		log.Fatal(err)
	}

	events, err := c.Claim(ctx, client.ClaimParams{InvisibleFor: time.Minute, Wait: 20 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	for _, e := range events {
		fmt.Println(string(e.Payload))
		if _, err := c.Extend(ctx, e.ID, e.Receipt, time.Minute); errors.Is(err, client.ErrLeaseLost) {
			continue // somebody else has it: stop working on it
		}
		fmt.Println(c.Ack(ctx, e.ID, e.Receipt))
	}
	// Output:
	// {"id":9007199254740993}
	// <nil>
}

// Read history, and put back what failed.
func ExampleClient_ListHistory() {
	url, stop := client.ServeExample()
	defer stop()
	ctx := context.Background()
	c, err := client.New(client.Config{URL: url})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	inserted, err := c.Insert(ctx, client.NewEvent{Payload: Welcome{To: "ada"}})
	if err != nil {
		log.Fatal(err)
	}
	if err := c.Ack(ctx, inserted.ID, ""); err != nil { // unconditional: nobody has claimed it, so it is cancelled
		log.Fatal(err)
	}

	filter := client.HistoryFilter{Outcome: client.OutcomeCancelled, From: time.Now().Add(-24 * time.Hour)}
	for e, err := range c.ListHistory(ctx, filter) {
		if err != nil {
			log.Fatal(err)
		}
		var p Welcome
		if err := e.Decode(&p); err != nil {
			log.Fatal(err)
		}
		fmt.Println(p.To, e.Outcome)
	}
	requeued, err := c.RequeueMatching(ctx, client.RequeueParams{HistoryFilter: filter})
	fmt.Println(requeued.Requeued, err)
	// Output:
	// ada cancelled
	// 1 <nil>
}

// Follow the log. A gap says that retention was faster than the reader; the loop can go on.
func ExampleClient_Stream() {
	url, stop := client.ServeExample()
	defer stop()
	ctx := context.Background()
	c, err := client.New(client.Config{URL: url})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	_, err = c.PublishBatch(ctx, []client.NewPublication{
		{Topic: "order.placed", Payload: map[string]int{"order": 4711}},
		{Topic: "user.created", Payload: map[string]int{"user": 1}},
		{Topic: "order.paid", Payload: map[string]int{"order": 4711}},
	})
	if err != nil {
		log.Fatal(err)
	}

	orders := client.LogFilter{Topics: []string{"order.*"}}
	for e, err := range c.Stream(ctx, client.StreamParams{LogFilter: orders, From: client.Earliest}) {
		var gap *client.Gap
		if errors.As(err, &gap) {
			fmt.Println("missed:", gap.After, gap.Until)
			continue
		}
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(e.Topic, string(e.Payload)) // store e.Position: client.After(position) goes on from there
		if e.Topic == "order.paid" {
			break
		}
	}
	// Output:
	// order.placed {"order":4711}
	// order.paid {"order":4711}
}

// Read a subscription, and commit when the events are done.
func ExampleClient_ReadSubscription() {
	url, stop := client.ServeExample()
	defer stop()
	ctx := context.Background()
	c, err := client.New(client.Config{URL: url})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	_, err = c.PutSubscription(ctx, "mailer", client.SubscriptionSettings{
		Filters: []client.SubscribedFilter{{
			Name:      "large orders",
			LogFilter: client.LogFilter{Topics: []string{"order.placed"}, Match: json.RawMessage(`{"total":[{"numeric":[">=",100]}]}`)},
		}},
	}, 0)
	fmt.Println(errors.Is(err, client.ErrInvalid)) // a name has no blanks
	_, err = c.PutSubscription(ctx, "mailer", client.SubscriptionSettings{
		Filters: []client.SubscribedFilter{{Name: "placed", LogFilter: client.LogFilter{Topics: []string{"order.placed"}}}},
	}, 0)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := c.Publish(ctx, client.NewPublication{Topic: "order.placed", Payload: map[string]int{"total": 250}}); err != nil {
		log.Fatal(err)
	}

	page, err := c.ReadSubscription(ctx, "mailer", client.SubscriptionRead{Wait: 20 * time.Second, Lease: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	for _, e := range page.Events {
		fmt.Println(e.Matched, string(e.Payload))
	}
	_, err = c.CommitCursor(ctx, "mailer", page.Cursor) // ErrCursorLost: somebody else has gone on
	fmt.Println(err)
	// Output:
	// true
	// [placed] {"total":250}
	// <nil>
}

// An error says which field is wrong.
func ExampleError() {
	url, stop := client.ServeExample()
	defer stop()
	c, err := client.New(client.Config{URL: url})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	_, err = c.Claim(context.Background(), client.ClaimParams{Limit: 5000})
	var e *client.Error
	if errors.As(err, &e) {
		fmt.Println(e.Status, e.Code, e.Errors)
	}
	// Output:
	// 422 validation_failed [{#/limit must be at most 1000}]
}

// Do makes any call, also one that the package has no method for.
func ExampleClient_Do() {
	url, stop := client.ServeExample()
	defer stop()
	c, err := client.New(client.Config{URL: url})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	var answer struct{ Name string }
	resp, err := c.Do(context.Background(), client.Request{Path: "/"}, &answer)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(resp.Status, answer.Name)
	// Output:
	// 200 queued
}
