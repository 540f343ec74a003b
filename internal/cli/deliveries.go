package cli

import (
	"cmp"
	"context"
	"strconv"
	"time"

	"github.com/queued/queued/client"
)

// A deliveryFlags are the flags of commands that list a delivery log.
type deliveryFlags struct {
	From  string `placeholder:"TIME" help:"Only those at or after this time: RFC 3339, or how long ago, such as 1h."`
	To    string `placeholder:"TIME" help:"Only those before this time."`
	Limit *int   `short:"n" placeholder:"N" min:"0" help:"How many to list; 0 for all (default 100)."`
}

// span returns the times that the flags say.
func (f *deliveryFlags) span(env *Env) (from, to time.Time, err error) {
	if from, err = parseTime("from", f.From, env.Now()); err == nil {
		to, err = parseTime("to", f.To, env.Now())
	}
	return from, to, err
}

// noteDropped says how many rows a log lacks.
func noteDropped(env *Env, output, what string, dropped int64, at time.Time) {
	if dropped > 0 && env.format(output) == formatTable {
		env.notef("%d %s were too many to be logged, the latest at %s", dropped, what, moment(at))
	}
}

type pushDeliveriesCmd struct {
	queueArg      `embed:""`
	Status        int    `placeholder:"STATUS" help:"Only attempts that the endpoint answered with this status."`
	Outcome       string `placeholder:"OUTCOME" enum:",delivered,retried,failed,held,lease_lost" default:"" help:"Only attempts with this outcome: delivered, retried, failed, held or lease_lost."`
	Event         int64  `placeholder:"ID" help:"Only attempts to push this event."`
	deliveryFlags `embed:""`
}

// Help returns the text below the usage.
func (*pushDeliveriesCmd) Help() string {
	return examples(
		`queued push deliveries orders`,
		`queued push deliveries orders --outcome failed --from 1h`,
		`queued push deliveries orders -o jsonl | jq -r 'select(.send_again == "requeue") | .event_id'`,
	) + "\nAGAIN says what sends the event again: \"queued requeue\" or \"queued run\". The exit code is 3 if the queue does not push."
}

// Run lists the attempts, latest first.
func (c *pushDeliveriesCmd) Run(ctx context.Context, env *Env) error {
	from, to, err := c.span(env)
	if err != nil {
		return err
	}
	conn, err := c.client()
	if err != nil {
		return err
	}
	defer conn.Close()
	limit := listLimit(c.Limit)
	filter := client.PushDeliveryFilter{Status: c.Status, Outcome: c.Outcome, Event: c.Event, From: from, To: to, PageSize: pageSize(limit)}
	if err := listSome(env, c.Output, limit, pushDeliveriesView, conn.ListPushDeliveries(ctx, c.Queue, filter)); err != nil {
		return err
	}
	log, err := conn.GetPushDeliveries(ctx, c.Queue, client.PushDeliveryFilter{PageSize: 1})
	if err != nil {
		return err
	}
	noteDropped(env, c.Output, "attempts", log.Dropped, log.DroppedAt)
	return nil
}

var pushDeliveriesView = view[client.PushDelivery]{
	columns: columns("AT@", "EVENT", "TYPE?", "ATTEMPT", "STATUS", "TOOK", "OUTCOME", "NEXT@?", "AGAIN", "ANSWER…"),
	row: func(d client.PushDelivery) []string {
		return []string{
			moment(d.At), strconv.FormatInt(d.EventID, 10), d.Type, strconv.Itoa(d.Attempt), dash(statusText(d.Status)), milliseconds(d.MS), d.Outcome,
			moment(d.NextAttemptAt), dash(d.SendAgain), cmp.Or(d.Error, d.Excerpt),
		}
	},
	empty: "no attempts",
}

type sourceDeliveriesCmd struct {
	sourceArg     `embed:""`
	Result        string `placeholder:"RESULT" enum:",received,duplicate,challenge,rejected,invalid,rate_limited,paused,failed" default:"" help:"Only deliveries with this result, such as received or rejected."`
	deliveryFlags `embed:""`
}

// Help returns the text below the usage.
func (*sourceDeliveriesCmd) Help() string {
	return examples(`queued sources deliveries shop`, `queued sources deliveries shop --result rejected --from 1h`) +
		"\nThe exit code is 3 if there is no such source."
}

// Run lists the deliveries, latest first.
func (c *sourceDeliveriesCmd) Run(ctx context.Context, env *Env) error {
	from, to, err := c.span(env)
	if err != nil {
		return err
	}
	conn, err := c.client()
	if err != nil {
		return err
	}
	defer conn.Close()
	limit := listLimit(c.Limit)
	filter := client.SourceDeliveryFilter{Result: c.Result, From: from, To: to, PageSize: pageSize(limit)}
	if err := listSome(env, c.Output, limit, sourceDeliveriesView, conn.ListSourceDeliveries(ctx, c.Name, filter)); err != nil {
		return err
	}
	log, err := conn.GetSourceDeliveries(ctx, c.Name, client.SourceDeliveryFilter{PageSize: 1})
	if err != nil {
		return err
	}
	noteDropped(env, c.Output, "deliveries", log.Dropped, log.DroppedAt)
	return nil
}

var sourceDeliveriesView = view[client.SourceDelivery]{
	columns: columns("AT@", "RESULT", "CODE?", "STATUS", "TOOK", "SIZE", "ADDRESS", "EVENT", "KEY…", "BODY…"),
	row: func(d client.SourceDelivery) []string {
		size, event := "", ""
		if d.Size != nil {
			size = strconv.FormatInt(*d.Size, 10)
		}
		switch {
		case d.EventID != nil:
			event = strconv.FormatInt(*d.EventID, 10)
		case d.Position != nil:
			event = strconv.FormatInt(*d.Position, 10)
		}
		return []string{
			moment(d.At), d.Result, d.Code, statusText(d.Status), milliseconds(d.MS), dash(size), dash(d.Address), dash(event), dash(d.Key), d.Excerpt,
		}
	},
	empty: "no deliveries",
}

// statusText is a status of HTTP; empty: there is none.
func statusText(status int) string {
	if status == 0 {
		return ""
	}
	return strconv.Itoa(status)
}

func milliseconds(ms int64) string { return (time.Duration(ms) * time.Millisecond).String() }
