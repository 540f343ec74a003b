package cli

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/queued/queued/client"
)

// ClaimCmd claims events and writes them with their receipts.
type ClaimCmd struct {
	server      `embed:""`
	Queue       string         `short:"q" default:"default" help:"The queue to claim from."`
	Limit       int            `short:"n" default:"1" min:"1" max:"1000" help:"How many events to claim at most, 1 to 1000."`
	Lease       time.Duration  `short:"l" aliases:"invisible-for" placeholder:"DURATION" min:"1us" max:"8760h" help:"The length of the lease; as the queue's policy says, or else 10m, if it is not given."`
	Wait        *time.Duration `short:"w" placeholder:"DURATION" min:"0s" help:"How long to wait for the first event, as the queue's policy says if it is not given; more than 60s asks again and again."`
	Type        []string       `short:"t" sep:"none" help:"Only events of this type; can be repeated."`
	MaxAttempts int            `placeholder:"N" min:"1" max:"2147483647" help:"Leave out events that were claimed so often."`
	Order       string         `enum:"fifo,random" default:"fifo" help:"The order within a priority: fifo, or random, so that many workers spread out."`
	Worker      string         `help:"A name for this worker."`
}

// Help returns the text below the usage.
func (*ClaimCmd) Help() string {
	return examples(
		`queued claim -q mail --wait 20s`,
		`queued claim -q mail -n 10 -l 5m -o json`,
		`event=$(queued claim -q mail -o json) && queued ack "$(jq -r '.[0].receipt' <<<"$event")"`,
	) + "\nThe exit code is 3 if there was nothing to claim."
}

// Run claims events.
func (c *ClaimCmd) Run(ctx context.Context, env *Env) error {
	conn, err := c.client()
	if err != nil {
		return err
	}
	defer conn.Close()
	params := client.ClaimParams{
		Queue: c.Queue, Limit: c.Limit, InvisibleFor: c.Lease, MaxAttempts: c.MaxAttempts, Order: c.Order, Types: c.Type, Worker: c.Worker,
	}
	events, err := claimWithin(ctx, conn, params, c.Wait)
	if err != nil {
		return err
	}
	if len(events) == 0 {
		return errNothing
	}
	return list(env, c.Output, claimedView, all(events))
}

// claimWithin claims until there are events or the time is over; nil: once, and for as long as the queue's policy says.
func claimWithin(ctx context.Context, conn *client.Client, params client.ClaimParams, total *time.Duration) ([]client.Event, error) {
	if total == nil {
		params.WaitByPolicy = true
		return conn.Claim(ctx, params)
	}
	for wait := *total; ; {
		params.Wait = min(wait, client.MaxWait)
		events, err := conn.Claim(ctx, params)
		if wait -= params.Wait; err != nil || len(events) > 0 || wait <= 0 {
			return events, err
		}
	}
}

var claimedView = view[client.Event]{
	columns: columns("ID", "TYPE…", "ATTEMPT?", "LEASE ENDS@?", "RECEIPT", "EVENT…"),
	row: func(e client.Event) []string {
		return []string{id(e.ID), dash(e.Type), strconv.Itoa(e.Attempts), moment(e.VT), e.Receipt, string(e.Payload)}
	},
}

// receiptArg is the claim that a command is about.
type receiptArg struct {
	Receipt string `arg:"" help:"The receipt of the claim."`
}

// eventOf returns the id of the event that a receipt is of.
func eventOf(receipt string) (int64, error) {
	text, _, has := strings.Cut(receipt, ".")
	n, err := strconv.ParseInt(text, 10, 64)
	if !has || err != nil || n <= 0 {
		return 0, usagef("the receipt is %q; want what a claim returned, such as 1042.1.e35e7834b09e8fcb", receipt)
	}
	return n, nil
}

// AckCmd acks events.
type AckCmd struct {
	server        `embed:""`
	Receipts      []string  `arg:"" name:"receipt" help:"The receipts of the claims; with --unconditional the ids of the events."`
	Result        jsonValue `placeholder:"JSON" help:"What to store in history as the result, as JSON; with one receipt."`
	Unconditional bool      `help:"Ack without a receipt: whoever has the event. An event that was never claimed becomes cancelled."`
}

// Help returns the text below the usage.
func (*AckCmd) Help() string {
	return examples(
		`queued ack 1042.1.e35e7834b09e8fcb`,
		`queued ack 1042.1.e35e7834b09e8fcb --result '{"sent": true}'`,
		`queued ack --unconditional 1042 1043`,
	) + "\nThe exit code is 4 if a lease is lost: the event was claimed again since."
}

// Run acks the events, each on its own. Its error is that of the first event that failed.
func (c *AckCmd) Run(ctx context.Context, env *Env) error {
	if c.Result != nil && len(c.Receipts) != 1 {
		return usagef("--result is for one receipt; got %d", len(c.Receipts))
	}
	acks := make([]client.Ack, len(c.Receipts))
	for i, text := range c.Receipts {
		acks[i] = client.Ack{Receipt: text, Result: c.Result.raw()}
		var err error
		if c.Unconditional {
			acks[i].Receipt = ""
			acks[i].ID, err = parseID(text)
		} else {
			acks[i].ID, err = eventOf(text)
		}
		if err != nil {
			return err
		}
	}
	conn, err := c.client()
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = inBatches(env, acks, func(batch []client.Ack) ([]client.AckResult, error) { return conn.AckBatch(ctx, batch) },
		func(r client.AckResult) (int64, error) { return r.ID, r.Err() })
	return err
}

// inBatches makes a call about claimed events, as many at a time as it takes, until one fails as a whole, and returns the results of those events for which
// it has succeeded. check returns the event of a result, and why the call has failed for it, which goes to standard error. failed is that of the first event.
func inBatches[T, R any](env *Env, claims []T, call func(batch []T) ([]R, error), check func(R) (event int64, err error)) (succeeded []R, failed error) {
	for batch := range slices.Chunk(claims, maxBatch) {
		results, err := call(batch)
		if err != nil {
			return succeeded, err
		}
		for _, r := range results {
			event, err := check(r)
			if err == nil {
				succeeded = append(succeeded, r)
				continue
			}
			env.notef("event %d: %s", event, leaseFailure(err))
			if failed == nil {
				failed = &reportedError{err}
			}
		}
	}
	return succeeded, failed
}

// leaseFailure says why a call has failed for an event of a batch.
func leaseFailure(err error) string {
	if errors.Is(err, client.ErrLeaseLost) {
		return "Lease lost: the event was claimed again since, or has left its queue"
	}
	return "Event not found"
}

// NackCmd nacks an event.
type NackCmd struct {
	server     `embed:""`
	receiptArg `embed:""`
	Error      string         `short:"e" empty:"" help:"What went wrong; it is kept with the event."`
	Delay      *time.Duration `placeholder:"DURATION" min:"0s" max:"87600h" help:"How long from now the event can be claimed again; as the queue's backoff says if it is not given."`
	Final      bool           `help:"Fail the event: no further attempt."`
	HoldGroup  time.Duration  `placeholder:"DURATION" min:"0s" max:"87600h" help:"For how long nothing of the group of the event can be claimed; a longer hold stays."`
}

// Help returns the text below the usage.
func (*NackCmd) Help() string {
	return examples(
		`queued nack 1042.1.e35e7834b09e8fcb --error 'mailbox full' --delay 10m`,
		`queued nack 1042.1.e35e7834b09e8fcb --final`,
		`queued nack 1042.1.e35e7834b09e8fcb --error '429 of the tenant' --hold-group 30s`,
	)
}

// Run nacks the event and writes the result.
func (c *NackCmd) Run(ctx context.Context, env *Env) error {
	event, err := eventOf(c.Receipt)
	if err != nil {
		return err
	}
	return showAnswer(env, &c.server, nackedFields, func(conn *client.Client) (client.Nacked, error) {
		return conn.Nack(ctx, event, client.NackParams{Receipt: c.Receipt, Delay: c.Delay, Error: c.Error, Final: c.Final, HoldGroup: c.HoldGroup})
	})
}

func nackedFields(n client.Nacked) [][2]string {
	if n.Exhausted {
		return [][2]string{{"id", id(n.ID)}, {"attempts left", "none"}}
	}
	return [][2]string{{"id", id(n.ID)}, {"outcome", n.Outcome}, {"claimable at@", moment(n.VT)}}
}

// ReleaseCmd gives claimed events back.
type ReleaseCmd struct {
	server   `embed:""`
	Receipts []string      `arg:"" name:"receipt" help:"The receipts of the claims."`
	Delay    time.Duration `placeholder:"DURATION" min:"0s" max:"87600h" help:"How long from now the events can be claimed again; at once if it is not given."`
}

// Help returns the text below the usage.
func (*ReleaseCmd) Help() string {
	return examples(
		`queued release 1042.1.e35e7834b09e8fcb`,
		`queued release 1042.1.e35e7834b09e8fcb --delay 10m`,
	) + "\nThe attempt does not count: it is for events whose work has not begun. The exit code is 4 if a lease is lost."
}

// Run releases the events, each on its own, and writes which. Its error is that of the first event that failed.
func (c *ReleaseCmd) Run(ctx context.Context, env *Env) error {
	held := make([]client.Held, len(c.Receipts))
	for i, text := range c.Receipts {
		event, err := eventOf(text)
		if err != nil {
			return err
		}
		held[i] = client.Held{ID: event, Receipt: text}
	}
	conn, err := c.client()
	if err != nil {
		return err
	}
	defer conn.Close()
	released, failed := inBatches(env, held, func(batch []client.Held) ([]client.LeaseResult, error) { return conn.ReleaseBatch(ctx, batch, c.Delay) },
		func(r client.LeaseResult) (int64, error) { return r.ID, r.Err() })
	if len(released) == 0 {
		return failed
	}
	events := make([]eventVT, len(released))
	for i, r := range released {
		events[i] = eventVT{r.ID, r.VT}
	}
	return cmp.Or(list(env, c.Output, eventVTView("CLAIMABLE AT"), all(events)), failed)
}

// eventVT is an event with its new vt: from when it can be claimed, or when its lease ends.
type eventVT struct {
	ID int64     `json:"id"`
	VT time.Time `json:"vt"`
}

// eventVTView has the vt under the title.
func eventVTView(title string) view[eventVT] {
	return view[eventVT]{
		columns: columns("ID", title),
		row:     func(e eventVT) []string { return []string{id(e.ID), moment(e.VT)} },
	}
}

// ExtendCmd extends a lease.
type ExtendCmd struct {
	server     `embed:""`
	receiptArg `embed:""`
	Lease      time.Duration `short:"l" aliases:"invisible-for" placeholder:"DURATION" min:"1us" max:"8760h" help:"How long from now the lease is to last; as the queue's policy says, or else 10m, if it is not given."`
}

// Help returns the text below the usage.
func (*ExtendCmd) Help() string { return examples(`queued extend 1042.1.e35e7834b09e8fcb -l 5m`) }

// Run extends the lease and writes when it ends.
func (c *ExtendCmd) Run(ctx context.Context, env *Env) error {
	event, err := eventOf(c.Receipt)
	if err != nil {
		return err
	}
	return showAnswer(env, &c.server, extendedFields, func(conn *client.Client) (eventVT, error) {
		vt, err := conn.Extend(ctx, event, c.Receipt, c.Lease)
		return eventVT{event, vt}, err
	})
}

func extendedFields(e eventVT) [][2]string {
	return [][2]string{{"id", id(e.ID)}, {"lease ends@", moment(e.VT)}}
}
