package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/queued/queued/client"
)

// PostCmd inserts an event, or a file of events.
type PostCmd struct {
	server         `embed:""`
	Event          string        `arg:"" optional:"" help:"The event, a JSON object; \"-\", or nothing, reads it from standard input."`
	Queue          string        `short:"q" default:"default" help:"The queue to insert into."`
	Type           string        `short:"t" help:"The type of the events."`
	Source         string        `help:"Where the events come from."`
	Group          string        `short:"g" placeholder:"GROUP" help:"The group that it belongs to, of which the queue may limit how many are claimed at once."`
	Priority       int32         `short:"p" placeholder:"N" help:"Lower numbers are claimed first."`
	Delay          time.Duration `placeholder:"DURATION" min:"0s" max:"87600h" help:"How long from now the events become claimable."`
	VT             time.Time     `name:"vt" placeholder:"TIME" help:"When the events become claimable, such as 2026-02-04T07:00:00Z."`
	MaxAttempts    int           `placeholder:"N" min:"1" max:"2147483647" help:"How often each event can be claimed."`
	ExpiresAt      time.Time     `placeholder:"TIME" help:"When the events expire."`
	EventTS        time.Time     `name:"event-ts" placeholder:"TIME" help:"The time of the events."`
	Meta           jsonValue     `placeholder:"JSON" help:"Metadata of the events, a JSON object."`
	OnDuplicate    string        `enum:",match,first,replace,supersede" default:"" placeholder:"WHAT" help:"What a different event under a known key gets: match refuses it, the default; first answers with the first event; replace takes its place if it waits; supersede does, also if it is leased."`
	KeyUntil       string        `placeholder:"WHEN" help:"How long the idempotency key stands: until the event is claimed, until it is finished, or for a duration."`
	MaxWait        time.Duration `placeholder:"DURATION" min:"0s" max:"87600h" help:"With --on-duplicate replace and --delay: how long after the first event the last one becomes claimable at the latest."`
	IdempotencyKey string        `placeholder:"KEY" help:"The idempotency key of the event: repeated, the command inserts nothing more."`
	Wait           endWait       `placeholder:"DURATION" help:"Wait until the event has ended, for so long at most if a duration is given, and show it with its outcome and result."`

	File      string `short:"f" group:"File:" placeholder:"FILE" help:"Insert each line of a file, a JSON object, as an event; \"-\" is standard input."`
	KeyField  string `group:"File:" xor:"keys" placeholder:"POINTER" help:"The JSON pointer of a text or number in each event that is its idempotency key, such as /id: the command can be repeated."`
	KeyPrefix string `group:"File:" xor:"keys" placeholder:"TEXT" help:"Make the idempotency keys of this text and the number of the line, for events without a field for it."`
	Skip      int64  `group:"File:" placeholder:"N" min:"0" help:"Leave out the first lines."`
	Batch     int    `group:"File:" default:"1000" placeholder:"N" min:"1" max:"1000" help:"How many events to send in one request, 1 to 1000 (default 1000)."`
	Parallel  int    `group:"File:" default:"4" placeholder:"N" min:"1" max:"64" help:"How many requests to send at the same time, up to 64 (default 4)."`
}

// Help returns the text below the usage.
func (*PostCmd) Help() string {
	return examples(
		`queued post -q mail '{"to": "ada@example.com"}'`,
		`queued post -q mail -t mail.welcome --delay 10m --idempotency-key order-4711 '{"order": 4711}'`,
		`queued post -q index --delay 10s --max-wait 1m --idempotency-key doc-7 --on-duplicate replace '{"doc": 7}'`,
		`queued post -q reports --wait=30s '{"month": "2026-02"}'`,
		`queued post -q mail -f events.ndjson --key-field /id`,
		`zcat events.ndjson.gz | queued post -q mail -f - --key-prefix import-7`,
	) + "\nA file with --key-field or --key-prefix can be posted again after a failure: what is stored is not stored twice, as long as the server " +
		"remembers the keys, 24 hours by default.\n\n" +
		"With --wait the exit code is 0 if the event is done, 1 if it has ended as failed, expired or cancelled, and 3 if it has not ended in time."
}

// maxEvent is the largest event to read, in bytes; the server's own limit is below it.
const maxEvent = 256 << 20

// Run inserts the event and writes its id, or inserts the file and writes how many events were sent.
func (c *PostCmd) Run(ctx context.Context, env *Env) error {
	fileOnly := c.KeyField != "" || c.KeyPrefix != "" || c.Skip != 0
	switch {
	case c.File != "" && c.Event != "":
		return usagef("post takes an event or --file, not both")
	case c.File != "" && c.IdempotencyKey != "":
		return usagef("--idempotency-key is for one event; with --file, use --key-field or --key-prefix")
	case c.File != "" && c.Wait.isSet:
		return usagef("--wait is for one event, not for --file")
	case c.File == "" && fileOnly:
		return usagef("--key-field, --key-prefix and --skip need --file")
	}
	if hasNoKey := c.IdempotencyKey == "" && c.KeyField == "" && c.KeyPrefix == ""; hasNoKey {
		for _, option := range []struct {
			flag  string
			isSet bool
		}{{"--on-duplicate", c.OnDuplicate != ""}, {"--key-until", c.KeyUntil != ""}, {"--max-wait", c.MaxWait != 0}} {
			if option.isSet {
				return usagef("%s says what becomes of an idempotency key: give --idempotency-key, or with --file --key-field or --key-prefix", option.flag)
			}
		}
	}
	conn, err := c.client()
	if err != nil {
		return err
	}
	defer conn.Close()
	if c.File != "" {
		return c.postFile(ctx, env, conn)
	}
	event, err := c.newEvent(ctx, env)
	if err != nil {
		return err
	}
	inserted, err := conn.Insert(ctx, event)
	if err != nil {
		return err
	}
	if inserted.Replayed {
		env.notef("the event was inserted before under this key")
	}
	if c.Wait.isSet {
		env.notef("waiting for the end of event %d", inserted.ID)
		return showEnd(ctx, env, conn, c.Output, inserted.ID, c.Wait)
	}
	return show(env, c.Output, inserted, func(i client.Inserted) [][2]string {
		return [][2]string{{"id", id(i.ID)}, {"queue", i.Queue}, {"claimable at@", moment(i.VT)}}
	})
}

// template returns an event with the options of the flags, for every event.
func (c *PostCmd) template() client.NewEvent {
	return client.NewEvent{
		Queue: c.Queue, Type: c.Type, Source: c.Source, Group: c.Group, Priority: c.Priority, Delay: c.Delay, VT: c.VT, MaxAttempts: c.MaxAttempts,
		ExpiresAt: c.ExpiresAt, EventTS: c.EventTS, Meta: c.Meta.raw(), OnDuplicate: c.OnDuplicate,
		KeyUntil: c.KeyUntil, MaxWait: c.MaxWait,
	}
}

// newEvent returns the one event to insert.
func (c *PostCmd) newEvent(ctx context.Context, env *Env) (client.NewEvent, error) {
	event := c.template()
	event.Key = c.IdempotencyKey
	payload, err := readObject(ctx, env, c.Event, "post needs an event, such as '{\"order\": 4711}', or --file", `"queued post -f -" inserts each line of standard input, -f FILE each line of a file`)
	event.Payload = payload
	return event, err
}

// objectOf returns a text that is a JSON object.
func objectOf(text []byte) (json.RawMessage, error) {
	text = bytes.TrimSpace(text)
	if len(text) == 0 {
		return nil, errors.New("is empty; want a JSON object")
	}
	if !json.Valid(text) {
		return nil, fmt.Errorf("is not JSON: %w", syntaxError(text))
	}
	if text[0] != '{' {
		return nil, errors.New("is not a JSON object")
	}
	return text, nil
}

// syntaxError returns the error of a text that is no JSON.
func syntaxError(text []byte) error {
	var ignored any
	err := json.Unmarshal(text, &ignored)
	if at, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Errorf("%w, at byte %d", err, at.Offset)
	}
	return err
}

// posted is the answer to a file.
type posted struct {
	// Events is how many events were sent, those that the server knew under their keys included.
	Events int64 `json:"events"`
	// Seconds is how long that took.
	Seconds float64 `json:"seconds"`
}

// postFile inserts the events of a file.
func (c *PostCmd) postFile(ctx context.Context, env *Env, conn *client.Client) error {
	input, size, err := c.open(env)
	if err != nil {
		return err
	}
	defer func() { _ = input.Close() }()
	u := &upload{
		conn: conn, template: c.template(), name: c.File, keyField: pointerOf(c.KeyField), keyPrefix: c.KeyPrefix, skip: c.Skip, batch: c.Batch,
		parallel: c.Parallel,
	}
	if c.KeyField != "" && !strings.HasPrefix(c.KeyField, "/") {
		return usagef("--key-field is %q; want a JSON pointer such as /id", c.KeyField)
	}
	began := env.Now()
	report := u.report
	if IsTerminal(env.Stderr) {
		report = u.reportWithBar
	}
	p := startProgress(env, func(elapsed time.Duration) string { return report(elapsed, size) })
	err = u.run(ctx, input)
	elapsed := env.Now().Sub(began)
	p.stop(u.report(elapsed, size))
	if err != nil {
		env.notef("%s", u.resumption(c))
		return err
	}
	return show(env, c.Output, posted{u.stored.Load(), elapsed.Seconds()}, func(p posted) [][2]string {
		return [][2]string{{"events", id(p.Events)}, {"took", span(elapsed)}}
	})
}

// open opens the file. The size is 0 if it is not known.
func (c *PostCmd) open(env *Env) (io.ReadCloser, int64, error) {
	if c.File == "-" {
		return io.NopCloser(env.Stdin), 0, nil
	}
	file, err := os.Open(c.File)
	if err != nil {
		return nil, 0, usagef("--file: %s", err)
	}
	var size int64
	if info, err := file.Stat(); err == nil && info.Mode().IsRegular() {
		size = info.Size()
	}
	return file, size, nil
}
