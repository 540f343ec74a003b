package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/queued/queued/client"
)

// PublishCmd publishes an event, or a file of events, to a topic.
type PublishCmd struct {
	server         `embed:""`
	Topic          string        `arg:"" help:"The topic, such as order.placed."`
	Event          string        `arg:"" optional:"" help:"The event, a JSON object; \"-\", or nothing, reads it from standard input."`
	Key            string        `name:"event-key" placeholder:"TEXT" help:"A key of your own that readers get, such as the id of an order."`
	Meta           jsonValue     `placeholder:"JSON" help:"Metadata of the events, a JSON object."`
	Delay          time.Duration `placeholder:"DURATION" min:"0s" max:"87600h" help:"How long from now the event is published."`
	At             time.Time     `placeholder:"TIME" help:"When the event is published, such as 2026-02-04T07:00:00Z."`
	Subscription   string        `placeholder:"NAME" help:"The only subscription that gets the event."`
	IdempotencyKey string        `placeholder:"KEY" help:"The idempotency key of the event: repeated, the command publishes nothing more."`
	File           string        `short:"f" placeholder:"FILE" help:"Publish each line of a file, a JSON object; \"-\" is standard input. Lines are published in order, up to 1,000 in one transaction."`
}

// Help returns the text below the usage.
func (*PublishCmd) Help() string {
	return examples(
		`queued publish order.placed '{"order": 4711, "total": 99.9}'`,
		`queued publish order.placed '{"order": 4711}' --event-key 4711 --idempotency-key order-4711`,
		`queued publish sensor.reading -f readings.ndjson`,
	)
}

// Run publishes the event and writes its position, or publishes the file and writes how many events that were.
func (c *PublishCmd) Run(ctx context.Context, env *Env) error {
	switch {
	case c.File != "" && c.Event != "":
		return usagef("publish takes an event or --file, not both")
	case c.File != "" && (c.IdempotencyKey != "" || c.Delay != 0 || !c.At.IsZero()):
		return usagef("--idempotency-key, --delay and --at are for one event, not for --file")
	case c.Meta.raw() != nil && (c.Delay != 0 || !c.At.IsZero()):
		return usagef("--meta is for events that are published now, without --delay and --at")
	}
	conn, err := c.client()
	if err != nil {
		return err
	}
	defer conn.Close()
	if c.File != "" {
		return c.publishFile(ctx, env, conn)
	}
	payload, err := readObject(ctx, env, c.Event, "publish needs an event, such as '{\"order\": 4711}', or --file", `"queued publish TOPIC -f -" publishes each line of standard input, -f FILE each line of a file`)
	if err != nil {
		return err
	}
	p := c.publication(payload)
	published, err := c.publish(ctx, conn, p)
	if err != nil {
		return err
	}
	if published.Replayed {
		env.notef("the event was published before under this key")
	}
	return show(env, c.Output, published, func(p client.Published) [][2]string {
		return [][2]string{
			{"position", id(p.Position)}, {"topic", p.Topic}, {"published at@", moment(p.PublishedAt)}, {"id", id(p.ID)}, {"is published at@", moment(p.At)},
		}
	})
}

// readObject returns the JSON object that an argument is, or standard input if the argument is "-" or nothing. Nobody is expected to type it
// there without being told so: then it returns the usage. Who gives several events is told what is for them.
func readObject(ctx context.Context, env *Env, arg, usage, forSeveral string) (json.RawMessage, error) {
	text := []byte(arg)
	if arg == "" || arg == "-" {
		if arg == "" && IsTerminal(env.Stdin) {
			return nil, usagef("%s", usage)
		}
		input := env.input(ctx)
		defer func() { _ = input.Close() }()
		var err error
		if text, err = io.ReadAll(io.LimitReader(input, maxEvent)); err != nil {
			return nil, err
		}
	}
	payload, err := objectOf(text)
	switch {
	case err != nil && isSeveral(text):
		return nil, usagef("that is more than one event: %s", forSeveral)
	case err != nil:
		return nil, usagef("the event %s", err)
	}
	return payload, nil
}

// isSeveral reports whether a text has several JSON values, one behind the other.
func isSeveral(text []byte) bool {
	values := json.NewDecoder(bytes.NewReader(text))
	for range 2 {
		var value json.RawMessage
		if values.Decode(&value) != nil {
			return false
		}
	}
	return true
}

func (c *PublishCmd) publication(payload json.RawMessage) client.NewPublication {
	return client.NewPublication{
		Topic: c.Topic, Payload: payload, Key: c.Key, Subscription: c.Subscription, IdempotencyKey: c.IdempotencyKey, Meta: c.Meta.raw(),
		Delay: c.Delay, At: c.At,
	}
}

// publish publishes one event. Metadata go with a batch of one: the other call has no place for them.
func (c *PublishCmd) publish(ctx context.Context, conn *client.Client, p client.NewPublication) (client.Published, error) {
	if p.Meta == nil {
		return conn.Publish(ctx, p)
	}
	positions, err := conn.PublishBatch(ctx, []client.NewPublication{p})
	if err != nil {
		return client.Published{}, err
	}
	return client.Published{Topic: p.Topic, Position: positions[0]}, nil
}

// published is the answer to a file.
type published struct {
	// Events is how many events were published, and Last the position of the last one.
	Events int64 `json:"events"`
	Last   int64 `json:"last_position,omitzero"`
}

// publishFile publishes the lines of a file, one batch after the other, so that they are in the log in their order.
func (c *PublishCmd) publishFile(ctx context.Context, env *Env, conn *client.Client) error {
	var input io.ReadCloser
	if c.File == "-" {
		input = env.input(ctx)
	} else {
		file, err := os.Open(c.File)
		if err != nil {
			return usagef("--file: %s", err)
		}
		input = file
	}
	defer func() { _ = input.Close() }()
	var answer published
	var events atomic.Int64
	report := func(elapsed time.Duration) string {
		return fmt.Sprintf("%s published, %s", eventsOf(strconv.FormatInt(events.Load(), 10)), rate(events.Load(), elapsed))
	}
	began := env.Now()
	p := startProgress(env, report)
	line, err := c.publishLines(input, func(batch []client.NewPublication) error {
		positions, err := conn.PublishBatch(ctx, batch)
		if err == nil {
			answer.Last = positions[len(positions)-1]
			events.Add(int64(len(positions)))
		}
		return err
	})
	answer.Events = events.Load()
	p.stop(report(env.Now().Sub(began)))
	if err != nil {
		if line <= 1 {
			env.notef("nothing was published")
			return err
		}
		env.notef("the lines before line %d are published; to go on: tail -n +%d %s | queued publish %s -f -", line, line, c.File, c.Topic)
		return err
	}
	return show(env, c.Output, answer, func(p published) [][2]string {
		return [][2]string{{"events", fmt.Sprint(p.Events)}, {"last position", id(p.Last)}}
	})
}

// publishLines passes on the lines in batches. After an error it returns the number of the first line that is not published.
func (c *PublishCmd) publishLines(input io.Reader, publish func([]client.NewPublication) error) (first int, err error) {
	scanner := bufio.NewScanner(input)
	scanner.Buffer(make([]byte, 64<<10), maxEvent)
	var batch []client.NewPublication
	size := 0
	first = 1
	send := func(next int) error {
		if len(batch) > 0 {
			if err := publish(batch); err != nil {
				return err
			}
		}
		batch, size, first = nil, 0, next
		return nil
	}
	n := 1
	for ; scanner.Scan(); n++ {
		text := bytes.TrimSpace(scanner.Bytes())
		if len(text) == 0 {
			continue
		}
		payload, err := objectOf(bytes.Clone(text))
		if err != nil {
			return n, errors.Join(send(n), fmt.Errorf("%s:%d: the event %w", c.File, n, err))
		}
		if len(batch) == maxBatch || len(batch) > 0 && size+len(text) > maxBatchBytes {
			if err := send(n); err != nil {
				return first, err
			}
		}
		batch, size = append(batch, c.publication(payload)), size+len(text)
	}
	if err := scanner.Err(); err != nil {
		return n, errors.Join(send(n), fmt.Errorf("reading %s after line %d: %w", c.File, n-1, err))
	}
	return first, send(n)
}
