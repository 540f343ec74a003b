package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"strconv"

	"github.com/queued/queued/client"
)

// TailCmd writes events of the log as they are published.
type TailCmd struct {
	server       `embed:""`
	Topics       []string  `arg:"" optional:"" name:"topic" help:"The topics, or patterns such as order.* and order.**; all if none is given."`
	Match        jsonValue `placeholder:"JSON" help:"Only events whose payload matches this pattern of Amazon EventBridge's language."`
	After        string    `xor:"place" placeholder:"POSITION" help:"Begin after this position, or at earliest; at the end of the log if it is not given."`
	Since        string    `xor:"place" placeholder:"TIME" help:"Begin with what was published since a time, such as 2026-02-03T04:05:06Z, or so long ago, such as 90m."`
	Last         int       `xor:"place" placeholder:"N" min:"1" max:"1000" help:"Begin with so many events at the end of the log, up to 1,000."`
	Subscription string    `placeholder:"NAME" help:"What this subscription gets, after its position, which does not move."`
	Limit        int       `short:"n" placeholder:"N" min:"1" help:"End after so many events."`
}

// Help returns the text below the usage.
func (*TailCmd) Help() string {
	return examples(
		`queued tail`,
		`queued tail 'order.**' --match '{"total": [{"numeric": [">", 100]}]}'`,
		`queued tail 'order.**' --since 1h -o jsonl | jq .event.total`,
		`queued tail --last 20 order.placed`,
		`queued tail --after 1041 -n 1 -o jsonl`,
	) + `
It connects again when the connection breaks, and misses nothing. What retention dropped before it could be read is said on standard
error. Each event has its position: --after goes on from there.
`
}

// Run writes events until it is interrupted, which is no error.
func (c *TailCmd) Run(ctx context.Context, env *Env) error {
	if c.Subscription != "" && (len(c.Topics) > 0 || c.Match.raw() != nil || c.Last > 0) {
		return usagef("--subscription has filters and a position of its own; it goes without topics, --match and --last")
	}
	place, err := c.place(env)
	if err != nil {
		return err
	}
	conn, err := c.client()
	if err != nil {
		return err
	}
	defer conn.Close()
	write := writeEntry
	if env.format(c.Output) == formatTable {
		write = writeEntryLine
	}
	n := 0
	for e, err := range c.events(ctx, conn, place) {
		gap, isGap := errors.AsType[*client.Gap](err)
		switch {
		case isGap:
			env.notef("gap: %s", gapText(gap))
			continue
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		if err := write(env.Stdout, e); err != nil {
			return err
		}
		if n++; n == c.Limit {
			return nil
		}
	}
	return nil
}

func (c *TailCmd) events(ctx context.Context, conn *client.Client, place client.Place) iter.Seq2[client.PublishedEvent, error] {
	if c.Subscription != "" {
		return conn.StreamSubscription(ctx, c.Subscription, place)
	}
	filter := client.LogFilter{Topics: c.Topics, Match: c.Match.raw()}
	if c.Last == 0 {
		return conn.Stream(ctx, client.StreamParams{LogFilter: filter, From: place})
	}
	return func(yield func(client.PublishedEvent, error) bool) {
		last, err := conn.ReadLog(ctx, client.ReadParams{LogFilter: filter, Last: c.Last})
		if err != nil {
			yield(client.PublishedEvent{}, err)
			return
		}
		for _, e := range last.Events {
			if !yield(e, nil) {
				return
			}
		}
		conn.Stream(ctx, client.StreamParams{LogFilter: filter, From: client.After(last.Next)})(yield)
	}
}

// place returns where to begin; zero: where the server says.
func (c *TailCmd) place(env *Env) (client.Place, error) {
	if c.Since != "" {
		at, err := parseTime("since", c.Since, env.Now())
		return client.Since(at), err
	}
	if c.After == "" {
		return client.Place{}, nil
	}
	return parsePlace("--after", c.After)
}

// parsePlace returns the place that a flag or argument says: a position, earliest or latest.
func parsePlace(name, text string) (client.Place, error) {
	switch text {
	case "earliest":
		return client.Earliest, nil
	case "latest":
		return client.Latest, nil
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && n >= 0 {
		return client.After(n), nil
	}
	return client.Place{}, usagef("%s is %q; want a position, earliest or latest", name, text)
}

// writeEntry writes an event as an object on a line.
func writeEntry(w io.Writer, e client.PublishedEvent) error { return json.NewEncoder(w).Encode(e) }

// writeEntryLine writes an event for people. Columns have no common width: the next events are not known.
func writeEntryLine(w io.Writer, e client.PublishedEvent) error {
	_, err := fmt.Fprintf(w, "%s  %d  %s  %s\n", moment(e.PublishedAt), e.Position, printable(e.Topic), printable(string(e.Payload)))
	return err
}

// gapText says why a part of the log is missing.
func gapText(gap *client.Gap) string {
	switch gap.Reason {
	case "lost":
		return fmt.Sprintf("what was published after position %d and before %d is lost", gap.After, gap.Until)
	case "beyond_head":
		return fmt.Sprintf("position %d is not of this log, which is read on after %d", gap.After, gap.Until)
	}
	return fmt.Sprintf("retention has dropped the positions after %d up to %d", gap.After, gap.Until)
}
