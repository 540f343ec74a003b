// Package client calls queued, a durable event queue with an HTTP/JSON API, and runs workers on it.
//
//	c, err := client.New(client.Config{URL: "http://127.0.0.1:8080", Key: key})
//	inserted, err := c.Insert(ctx, client.NewEvent{Queue: "mail", Type: "mail.welcome", Payload: Welcome{To: "ada@example.com"}})
package client
