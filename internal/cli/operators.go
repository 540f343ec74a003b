package cli

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/queued/queued/client"
)

// ErrorsCmd groups failures by cause.
type ErrorsCmd struct {
	server `embed:""`
	Queue  string `short:"q" help:"Only events of this queue."`
	Type   string `short:"t" help:"Only events of this type."`
	From   string `placeholder:"TIME" help:"Only events whose time is at or after this one: RFC 3339, or how long ago, such as 90m."`
	To     string `placeholder:"TIME" help:"Only events whose time is before this one."`

	finished `embed:""`
	Limit    int `short:"n" default:"20" placeholder:"N" help:"How many causes to list, up to 100."`
}

// Help returns the text below the usage.
func (*ErrorsCmd) Help() string {
	return examples(`queued errors --finished-from 1h`, `queued errors -q mail -o jsonl`) +
		"\nA cause is the text of an error with placeholders for what varies. The latest 10,000 failures are looked at.\nFor the events themselves: queued history --outcome failed"
}

// Run lists the causes, those of most failures first.
func (c *ErrorsCmd) Run(ctx context.Context, env *Env) error {
	from, err := parseTime("from", c.From, env.Now())
	if err != nil {
		return err
	}
	to, err := parseTime("to", c.To, env.Now())
	if err != nil {
		return err
	}
	finishedFrom, finishedTo, err := c.times(env)
	if err != nil {
		return err
	}
	conn, err := c.client()
	if err != nil {
		return err
	}
	defer conn.Close()
	found, err := conn.HistoryErrors(ctx, client.CauseFilter{
		Queue: c.Queue, Type: c.Type, From: from, To: to, FinishedFrom: finishedFrom, FinishedTo: finishedTo, Limit: c.Limit,
	})
	if err != nil {
		return err
	}
	if err := list(env, c.Output, causeView, ofKnown(ctx, conn, c.Queue, all(found.Errors))); err != nil {
		return err
	}
	if len(found.Errors) < found.Causes {
		env.notef("%d of %d causes", len(found.Errors), found.Causes)
	}
	if len(found.UnavailableCells) > 0 {
		env.noteMissing(found.UnavailableCells)
	} else if !found.Complete {
		env.notef("these are the causes of the latest failures, %d of them; there are more", found.LookedAt)
	}
	return nil
}

var causeView = view[client.Cause]{
	columns: columns("COUNT", "QUEUES…", "LAST@", "EXAMPLE", "CAUSE…"),
	row: func(c client.Cause) []string {
		return []string{strconv.Itoa(c.Count), strings.Join(c.Queues, ","), moment(c.LastAt), id(c.Example.ID), c.Cause}
	},
	empty: "no failures",
}

// WorkersCmd lists workers.
type WorkersCmd struct {
	server `embed:""`
	Lately time.Duration `default:"1h" placeholder:"DURATION" help:"How long ago a worker without a lease was seen at most, up to 24h (default 1h)."`
	Limit  int           `short:"n" default:"100" placeholder:"N" help:"How many workers to list, up to 1000."`
}

// Help returns the text below the usage.
func (*WorkersCmd) Help() string {
	return examples(`queued workers`, `queued workers --lately 5m -o jsonl`)
}

// Run lists the workers, those with most leases first.
func (c *WorkersCmd) Run(ctx context.Context, env *Env) error {
	conn, err := c.client()
	if err != nil {
		return err
	}
	defer conn.Close()
	found, err := conn.ListWorkers(ctx, client.WorkersParams{Lately: c.Lately, Limit: c.Limit})
	if err != nil {
		return err
	}
	if err := list(env, c.Output, workerView, all(found.Workers)); err != nil {
		return err
	}
	if len(found.Workers) < found.Total {
		env.notef("%d of %d workers", len(found.Workers), found.Total)
	}
	if len(found.UnavailableCells) > 0 {
		env.noteMissing(found.UnavailableCells)
	} else if !found.Complete {
		env.notef("there are too many waiting events to look at all leases")
	}
	return nil
}

var workerView = view[client.ListedWorker]{
	columns: columns("WORKER…", "LEASES", "OLDEST@?", "ENDS@?", "ENDED", "FAILED", "AVERAGE?", "LONGEST?", "SEEN@", "QUEUES…?"),
	row: func(w client.ListedWorker) []string {
		took := func(ms *float64) string {
			if ms == nil {
				return "-"
			}
			return span(time.Duration(*ms * float64(time.Millisecond)))
		}
		claimed, ends := "-", "-"
		if w.OldestLease != nil {
			claimed, ends = moment(w.OldestLease.ClaimedAt), moment(w.OldestLease.EndsAt)
		}
		return []string{
			dash(w.Worker), strconv.Itoa(w.Leases), claimed, ends, strconv.Itoa(w.Ended), strconv.Itoa(w.Failed), took(w.AverageMS), took(w.LongestMS),
			moment(w.LastSeenAt), dash(strings.Join(w.Queues, ",")),
		}
	},
	empty: "no workers",
}

// HoldersCmd lists what holds others back.
type HoldersCmd struct {
	server `embed:""`
}

// Help returns the text below the usage.
func (*HoldersCmd) Help() string {
	return examples(`queued holders`, `queued holders -o json`) + "\nThe statements of sessions are in the JSON, for keys with the scope admin."
}

// Run lists what holds others back, the oldest of each kind first.
func (c *HoldersCmd) Run(ctx context.Context, env *Env) error {
	conn, err := c.client()
	if err != nil {
		return err
	}
	defer conn.Close()
	found, err := conn.ListHolders(ctx)
	if err != nil {
		return err
	}
	if err := list(env, c.Output, holderView, all(found.Holders)); err != nil {
		return err
	}
	if len(found.UnavailableCells) > 0 {
		env.noteMissing(found.UnavailableCells)
	} else if !found.Complete {
		env.notef("there are too many events to look at all leases and all exhausted events")
	}
	return nil
}

var holderView = view[client.Holder]{
	columns: columns("KIND", "SINCE@", "WHO…", "WHAT…", "ADVICE…"),
	row: func(h client.Holder) []string {
		var who []string
		for _, name := range []string{h.Queue, h.Worker, h.Name, h.Role, h.Application} {
			if name != "" {
				who = append(who, name)
			}
		}
		if h.EventID != 0 {
			who = append(who, "event "+id(h.EventID))
		}
		if h.PID != 0 {
			who = append(who, "pid "+strconv.Itoa(int(h.PID)))
		}
		return []string{h.Kind, dash(moment(h.Since)), dash(strings.Join(who, " ")), h.What, h.Advice}
	},
	empty: "nothing holds others back",
}
