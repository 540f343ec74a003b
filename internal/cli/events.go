package cli

import (
	"context"
	"iter"
	"strconv"
	"time"

	"github.com/queued/queued/client"
)

// EventsCmd lists the events in queues, or shows one.
type EventsCmd struct {
	server   `embed:""`
	ID       *int64 `arg:"" optional:"" help:"The id of an event to show, in its queue or in history; without one, events are listed."`
	Queue    string `short:"q" help:"Only events in this queue."`
	State    string `enum:",ready,scheduled,waiting,leased" default:"" placeholder:"STATE" help:"Only events in this state: ready, scheduled, waiting (for their turn in their group) or leased."`
	Group    string `placeholder:"NAME" help:"Only events of this group of the queue, with --queue."`
	payloads `embed:""`
	Wait     endWait `placeholder:"DURATION" help:"With an id: wait until the event has ended, for so long at most if a duration is given."`
	Limit    int     `short:"n" default:"100" placeholder:"N" min:"0" help:"How many events to list; 0 for all (default 100)."`
}

// payloads are filters of the contents of events.
type payloads struct {
	Contains jsonValue `placeholder:"JSON" help:"Only events whose payload contains this JSON object."`
	Meta     jsonValue `placeholder:"JSON" help:"Only events whose metadata contains this JSON object."`
}

// Help returns the text below the usage.
func (*EventsCmd) Help() string {
	return examples(
		`queued events -q mail --state leased`,
		`queued events -q mail --group tenant-7 --state waiting`,
		`queued events --contains '{"user": {"id": 4711}}' -n 0 -o jsonl`,
		`queued events 1042`,
		`queued events 1042 --wait 30s`,
	) + "\nThe exit code is 3 if there is no event of the id. With --wait it is 0 if the event is done, 1 if it has ended as failed, expired or cancelled, and 3 if it has not " +
		"ended in time."
}

// Run lists the events, or shows one.
func (c *EventsCmd) Run(ctx context.Context, env *Env) error {
	hasFilter := c.Queue != "" || c.State != "" || c.Group != "" || c.Contains != nil || c.Meta != nil
	switch {
	case c.Wait.isSet && c.ID == nil:
		return usagef("--wait needs the id of an event")
	case c.ID != nil && hasFilter:
		return usagef("events takes an id, or --queue, --state, --group, --contains and --meta; not both")
	case c.Group != "" && c.Queue == "":
		return usagef("--group needs --queue, whose group it is")
	}
	conn, err := c.client()
	if err != nil {
		return err
	}
	defer conn.Close()
	switch {
	case c.Wait.isSet:
		return showEnd(ctx, env, conn, c.Output, *c.ID, c.Wait)
	case c.ID != nil:
		event, err := conn.GetEvent(ctx, *c.ID)
		if err != nil {
			return err
		}
		return showEvent(ctx, env, conn, c.Output, event)
	}
	filter := client.EventFilter{Queue: c.Queue, State: c.State, Group: c.Group, Contains: c.Contains.raw(), Meta: c.Meta.raw(), PageSize: pageSize(c.Limit)}
	return listSome(env, c.Output, c.Limit, eventsView, ofKnown(ctx, conn, c.Queue, conn.ListEvents(ctx, filter)))
}

var eventsView = view[client.Event]{
	columns: columns("ID", "QUEUE…", "TYPE…", "STATE", "ATTEMPTS?", "CLAIMABLE AT@", "EVENT…"),
	row: func(e client.Event) []string {
		return []string{id(e.ID), e.Queue, dash(e.Type), e.State, strconv.Itoa(e.Attempts), moment(e.VT), string(e.Payload)}
	},
	empty: "no events",
}

// showEvent shows one event; in a table with its attempts.
func showEvent(ctx context.Context, env *Env, conn *client.Client, output string, event client.Event) error {
	if err := show(env, output, event, eventFields); err != nil || env.format(output) != formatTable || event.Attempts == 0 {
		return err
	}
	attempts, err := conn.ListAttempts(ctx, event.ID)
	if err != nil {
		return err
	}
	if _, err := env.Stdout.Write([]byte("\n")); err != nil {
		return err
	}
	return list(env, formatTable, attemptsView, all(attempts))
}

func eventFields(e client.Event) [][2]string {
	fields := [][2]string{
		{"id", id(e.ID)},
		{"queue", e.Queue},
		{"state", e.State},
		{"outcome", e.Outcome},
		{"type", e.Type},
		{"source", e.Source},
		{"key", e.Key},
		{"group", e.Group},
		{"priority", strconv.Itoa(int(e.Priority))},
		{"event time@", moment(e.EventTS)},
		{"inserted@", moment(e.EnqueuedAt)},
	}
	switch {
	case e.State == client.StateLeased:
		fields = append(fields, [2]string{"lease ends@", moment(e.VT)})
	case e.State == client.StateWaiting:
		fields = append(fields, [2]string{"waits for", blockedBy(e.BlockedBy)})
	case e.State != "":
		fields = append(fields, [2]string{"claimable at@", moment(e.VT)})
	}
	fields = append(fields, [][2]string{
		{"finished@", moment(e.FinishedAt)},
		{"expires@", moment(e.ExpiresAt)},
		{"attempts", strconv.Itoa(e.Attempts)},
		{"worker", e.Worker},
		{"last error", e.LastError},
		{"result", string(e.Result)},
		{"requeued from", id(e.RequeuedFrom)},
		{"requeued as", id(e.RequeuedAs)},
		{"dead letter of", id(e.DeadLetterOf)},
		{"dead-lettered as", id(e.DeadLetteredAs)},
		{"occurrence", string(e.Occurrence)},
		{"meta", string(e.Meta)},
	}...)
	if p := e.Publication; p != nil {
		fields = append(fields, [2]string{"publication", p.Topic + " at " + id(p.Position) + ", by " + p.Subscription})
	}
	return append(fields, [2]string{"event", string(e.Payload)})
}

var attemptsView = view[client.Attempt]{
	columns: columns("ATTEMPT", "STARTED@", "TOOK", "OUTCOME", "WORKER…", "ERROR…"),
	row: func(a client.Attempt) []string {
		took := ""
		if a.DurationMS != nil {
			took = span(time.Duration(*a.DurationMS * float64(time.Millisecond)))
		}
		return []string{strconv.Itoa(a.Attempt), moment(a.StartedAt), dash(took), a.Outcome, dash(a.Worker), a.Error}
	},
}

// maxBatch is the most elements of one request or page.
const maxBatch = 1000

// pageSize is how much one request of a listing asks for.
func pageSize(limit int) int {
	if limit <= 0 || limit > maxBatch {
		return maxBatch
	}
	return limit
}

// listSome lists the first values, up to limit unless that is 0, and says so if there are more.
func listSome[T any](env *Env, output string, limit int, v view[T], values iter.Seq2[T, error]) error {
	more := false
	err := list(env, output, v, func(yield func(T, error) bool) {
		n := 0
		for value, err := range values {
			if more = err == nil && limit > 0 && n == limit; more || !yield(value, err) {
				return
			}
			if err == nil {
				n++
			}
		}
	})
	if err == nil && more {
		env.notef("there are more; --limit 0 lists all")
	}
	return err
}
