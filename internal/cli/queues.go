package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/queued/queued/client"
)

// QueuesCmd lists queues.
type QueuesCmd struct {
	server       `embed:""`
	NameContains string `placeholder:"TEXT" help:"Only queues with this in their names, in upper or lower case."`
}

// Help returns the text below the usage.
func (*QueuesCmd) Help() string {
	return examples(`queued queues`, `queued queues --name-contains mail`, `queued queues -o jsonl | jq -r 'select(.ready > 1000) | .queue'`) +
		"\nCounts that begin with ~ are estimates."
}

// Run lists the queues.
func (c *QueuesCmd) Run(ctx context.Context, env *Env) error {
	conn, err := c.client()
	if err != nil {
		return err
	}
	defer conn.Close()
	v := queuesView
	if c.NameContains != "" {
		v.empty = "no queue has " + strconv.Quote(c.NameContains) + " in its name"
	}
	return list(env, c.Output, v, conn.FilterQueues(ctx, client.QueueFilter{NameContains: c.NameContains}))
}

var queuesView = view[client.QueueStats]{
	columns: columns("QUEUE…", "READY", "SCHEDULED", "WAITING", "LEASED", "OLDEST", "DONE 1H?", "FAILED 1H?", "EXPIRED 1H?", "PAUSED", "DEAD LETTERS OF?…"),
	row: func(q client.QueueStats) []string {
		count := countOf(q.Estimated)
		return []string{
			q.Queue, count(q.Ready), count(q.Scheduled), count(q.Waiting), count(q.Leased), dash(span(q.OldestReadyAge)), count(q.DoneLastHour),
			count(q.FailedLastHour), count(q.ExpiredLastHour), dash(yes(q.Paused)), dash(strings.Join(q.DeadLettersOf, ", ")),
		}
	},
	empty: "no queues yet; the first event makes one",
}

// QueueCmd is about one queue.
type QueueCmd struct {
	Show   queueShowCmd   `cmd:"" default:"withargs" help:"Show the counts and the policy of a queue; what \"queued queue NAME\" does."`
	Stats  queueStatsCmd  `cmd:"" help:"Show what waited in a queue, what ended in it and how long that took, over time."`
	Set    queueSetCmd    `cmd:"" help:"Change settings of a queue; the others stay."`
	Pause  queuePauseCmd  `cmd:"" help:"Pause a queue: no event can be claimed until it is resumed."`
	Resume queueResumeCmd `cmd:"" help:"Resume a queue."`
	Purge  queuePurgeCmd  `cmd:"" help:"Move all events of a queue that nobody has a lease on into history, as cancelled."`
	Move   queueMoveCmd   `cmd:"" help:"Move events of a queue that nobody has a lease on into another queue."`
	Delete queueDeleteCmd `cmd:"" help:"Delete a queue, its policy and its push. Its history stays."`
}

type queueArg struct {
	server `embed:""`
	Queue  string `arg:"" help:"The name of the queue."`
}

// policy makes a call and shows the policy that it returns.
func (c *queueArg) policy(env *Env, call func(*client.Client) (client.Policy, error)) error {
	return showAnswer(env, &c.server, policyFields, call)
}

// policyFields has "default" for settings that the policy leaves to the calls and to the service.
func policyFields(p client.Policy) [][2]string {
	byDefault := func(text string) string {
		if text == "" {
			return "default"
		}
		return text
	}
	attempts, backoff, updated := "", "none", "never"
	if p.MaxAttempts > 0 {
		attempts = strconv.Itoa(p.MaxAttempts)
	}
	if b := p.Backoff; b != nil {
		backoff = b.Kind + ", base " + span(b.Base)
		if b.Factor > 0 {
			backoff += ", factor " + strconv.FormatFloat(b.Factor, 'g', -1, 64)
		}
		if b.Max > 0 {
			backoff += ", at most " + span(b.Max)
		}
		if b.Jitter > 0 {
			backoff += ", jitter " + strconv.FormatFloat(b.Jitter, 'g', -1, 64)
		}
	}
	if p.UpdatedAt != nil {
		updated = moment(*p.UpdatedAt)
	}
	orNone := func(text string) string { return cmp.Or(text, "none") }
	deadLetters := "none"
	if p.DeadLetter != nil {
		deadLetters = p.DeadLetter.Queue
	}
	var flow client.Flow
	if p.Flow != nil {
		flow = *p.Flow
	}
	limit := func(n int) string {
		if n == 0 {
			return "any number"
		}
		return strconv.Itoa(n)
	}
	order := "none"
	switch {
	case flow.Order && flow.OnFailed == client.OnFailedBlock:
		order = "by id, stops at a failed event"
	case flow.Order:
		order = "by id"
	}
	yesNo := func(is bool) string {
		if is {
			return "yes"
		}
		return "no"
	}
	return [][2]string{
		{"queue", p.Queue},
		{"paused", yesNo(p.Paused)},
		{"max attempts", byDefault(attempts)},
		{"lease", byDefault(span(p.InvisibleFor))},
		{"backoff", backoff},
		{"history kept", byDefault(span(p.HistoryRetention))},
		{"dead letters to", deadLetters},
		{"delay", orNone(span(p.Delay))},
		{"wait", orNone(span(p.Wait))},
		{"group from", orNone(p.GroupFrom)},
		{"group limit", limit(flow.Concurrency)},
		{"queue limit", limit(flow.Total)},
		{"group order", order},
		{"group rate", cmp.Or(claimRateText(flow.Rate), "any")},
		{"group turns", yesNo(flow.Fair)},
		{"last set@", updated},
	}
}

// claimRateText returns a rate as --rate takes it, with its burst; empty: none.
func claimRateText(r *client.Rate) string {
	if r == nil {
		return ""
	}
	text := strconv.Itoa(r.Limit) + "/" + span(r.Period)
	if r.Burst > 1 {
		text += ", burst " + strconv.Itoa(r.Burst)
	}
	return text
}

// rateFlags set the rate of groups.
type rateFlags struct {
	Rate  string `placeholder:"N/DURATION" help:"How many events of a group are claimed in so long, such as 10/1s; none for any number."`
	Burst *int   `placeholder:"N" min:"1" max:"10000" help:"How many events of a group are claimed at once under --rate; 1 if it is not given."`
}

// parse returns the rate that the flags set, nil if --rate is none or not given.
func (f *rateFlags) parse() (*client.Rate, error) {
	if f.Rate == "" || f.Rate == none && f.Burst == nil {
		return nil, nil //nolint:nilnil // there is none
	}
	limit, period, _ := strings.Cut(f.Rate, "/")
	n, err := strconv.Atoi(limit)
	d, err2 := time.ParseDuration(period)
	if err != nil || err2 != nil || n < 1 || d <= 0 {
		return nil, usagef("--rate must be a number of events and a duration, such as 10/1s, not %q", f.Rate)
	}
	rate := &client.Rate{Limit: n, Period: d}
	set(&rate.Burst, f.Burst)
	return rate, nil
}

// change applies the flags to a rate.
func (f *rateFlags) change(rate **client.Rate) error {
	given, err := f.parse()
	switch {
	case err != nil:
		return err
	case given != nil || f.Rate == none:
		*rate = given
	case f.Burst != nil && *rate == nil:
		return usagef("--burst needs --rate")
	case f.Burst != nil:
		changed := **rate
		changed.Burst = *f.Burst
		*rate = &changed
	}
	return nil
}

type queueShowCmd struct {
	queueArg `embed:""`
}

// Help returns the text below the usage.
func (*queueShowCmd) Help() string { return examples(`queued queue mail`) }

// Run shows the queue.
func (c *queueShowCmd) Run(ctx context.Context, env *Env) error {
	return showAnswer(env, &c.server, queueFields, func(conn *client.Client) (client.Queue, error) {
		q, err := conn.GetQueue(ctx, c.Queue)
		if err == nil && isBlank(q) {
			err = checkKnown(ctx, conn, c.Queue)
		}
		return q, err
	})
}

// isBlank reports whether a queue has no policy and no events now: there may be no such queue.
func isBlank(q client.Queue) bool {
	return q.Version == 0 && q.Ready+q.Scheduled+q.Waiting+q.Leased+q.DoneLastHour+q.FailedLastHour+q.ExpiredLastHour+len(q.DeadLettersOf)+len(q.UnavailableCells) == 0
}

// queueFields has the counts behind the name, and then the policy.
func queueFields(q client.Queue) [][2]string {
	count := countOf(q.Estimated)
	policy := policyFields(q.Policy)
	return slices.Concat(policy[:1], [][2]string{
		{"ready", count(q.Ready)},
		{"scheduled", count(q.Scheduled)},
		{"waiting", count(q.Waiting)},
		{"leased", count(q.Leased)},
		{"oldest ready", dash(span(q.OldestReadyAge))},
		{"done 1h", count(q.DoneLastHour)},
		{"failed 1h", count(q.FailedLastHour)},
		{"expired 1h", count(q.ExpiredLastHour)},
		{"dead letters of", strings.Join(q.DeadLettersOf, ", ")},
	}, policy[1:])
}

// countOf returns how counts are written: with a ~ in front if some are estimates.
func countOf(isEstimated bool) func(int) string {
	if isEstimated {
		return func(n int) string { return "~" + strconv.Itoa(n) }
	}
	return strconv.Itoa
}

type queueSetCmd struct {
	queueArg         `embed:""`
	MaxAttempts      *int           `placeholder:"N" min:"0" max:"2147483647" help:"How often an event is claimed at most; 0 leaves it to the calls and the server."`
	Lease            *time.Duration `aliases:"invisible-for" placeholder:"DURATION" min:"0s" max:"8760h" help:"The length of a lease; 0 leaves it to the claims."`
	Backoff          string         `placeholder:"KIND" enum:",none,constant,linear,exponential" default:"" help:"How the delay after a nack grows: constant, linear, exponential, or none for no delay."`
	BackoffBase      *time.Duration `placeholder:"DURATION" help:"The delay after the first attempt."`
	BackoffFactor    *float64       `placeholder:"N" help:"How much the delay grows each time."`
	BackoffMax       *time.Duration `placeholder:"DURATION" help:"The longest delay; 0 for no bound."`
	BackoffJitter    *float64       `placeholder:"SHARE" help:"The share of the delay by which it varies at random, 0 to 1."`
	HistoryRetention *time.Duration `placeholder:"DURATION" min:"0s" max:"876000h" help:"How long to keep the history of the queue; 0 leaves it to the server."`
	DeadLetter       string         `placeholder:"QUEUE" help:"The queue where events go, besides history, that end as failed or expired; none for none."`
	Delay            *time.Duration `placeholder:"DURATION" min:"0s" max:"87600h" help:"The delay of events that are inserted without one; 0 for none."`
	Wait             *time.Duration `placeholder:"DURATION" min:"0s" max:"60s" help:"For how long claims wait that do not say, up to 60s; 0 for not at all."`
	GroupFrom        string         `placeholder:"POINTER" help:"Where the payload has the group of an event that comes without one, a JSON pointer such as /tenant; none for nowhere."`
	Concurrency      *limitValue    `placeholder:"N" min:"0" max:"10000" help:"How many events of each group are leased at once; none for any number."`
	Total            *limitValue    `placeholder:"N" min:"0" max:"10000" help:"How many events of the queue are leased at once; none for any number."`
	GroupOrder       *string        `placeholder:"ORDER" enum:"none,continue,block" help:"Whether the events of each group are handed out one after the other by id, and what happens behind one that fails: continue, or block; none for no order."`
	Fair             *bool          `negatable:"" help:"Groups take turns, the least recently served one first, one event each; --no-fair ends that."`
	rateFlags        `embed:""`
}

// Help returns the text below the usage.
func (*queueSetCmd) Help() string {
	return examples(
		`queued queue set mail --max-attempts 5 --lease 2m`,
		`queued queue set mail --backoff exponential --backoff-base 10s --backoff-max 1h --backoff-jitter 0.2`,
		`queued queue set mail --backoff none`,
		`queued queue set mail --dead-letter mail.dead`,
		`queued queue set mail --concurrency 2 --group-from /tenant`,
		`queued queue set mail --group-order block`,
		`queued queue set mail --rate 10/1s --burst 5`,
		`queued queue set mail --fair --group-from /tenant`,
		`queued queue set mail --concurrency none --rate none`,
		`queued queue set mail`,
	) + "\nWithout a setting it makes the queue, if nobody has. What is not given stays as it is; a --backoff has the factor of its kind again, unless --backoff-factor is given."
}

// Run changes the policy.
func (c *queueSetCmd) Run(ctx context.Context, env *Env) error {
	patch, err := c.patch()
	if err != nil {
		return err
	}
	return c.policy(env, func(conn *client.Client) (client.Policy, error) {
		if len(patch) > 0 {
			changed, err := conn.PatchQueue(ctx, c.Queue, 0, patch)
			return changed, explainMissing(err)
		}
		made, err := conn.PutQueueIf(ctx, c.Queue, client.QueueSettings{}, 0)
		if errors.Is(err, client.ErrPreconditionFailed) {
			err = usagef("the queue exists: queue set needs a setting to change, such as --max-attempts")
		}
		return made, err
	})
}

// explainMissing names the flag of a part without which there is no such setting, if that is why a change was refused.
func explainMissing(err error) error {
	flags := map[string]string{"#/backoff/kind": "--backoff", "#/backoff/base": "--backoff-base", "#/flow/rate/limit": "--rate"}
	if refused, ok := errors.AsType[*client.Error](err); ok {
		for _, f := range refused.Errors {
			if flag := flags[f.Pointer]; flag != "" && f.Detail == "is required" {
				return usagef("the queue has no such setting yet: it needs %s, too", flag)
			}
		}
	}
	return err
}

// patch returns what the flags change, as PATCH /queues/{name} takes it: nil takes a value away.
func (c *queueSetCmd) patch() (map[string]any, error) {
	patch, flow, backoff := map[string]any{}, map[string]any{}, map[string]any{}
	change(patch, "max_attempts", c.MaxAttempts)
	change(patch, "invisible_for", c.Lease)
	change(patch, "history_retention", c.HistoryRetention)
	change(patch, "delay", c.Delay)
	change(patch, "wait", c.Wait)
	change(flow, "concurrency", (*int)(c.Concurrency))
	change(flow, "total", (*int)(c.Total))
	if c.Fair != nil {
		flow["fair"] = *c.Fair
	}
	switch {
	case c.GroupOrder == nil:
	case *c.GroupOrder == none:
		flow["order"], flow["on_failed"] = false, nil
	default:
		flow["order"], flow["on_failed"] = true, *c.GroupOrder
	}
	switch rate, err := c.parse(); {
	case err != nil:
		return nil, err
	case rate != nil:
		flow["rate"] = map[string]any{"limit": rate.Limit, "period": rate.Period.String(), "burst": max(rate.Burst, 1)}
	case c.Burst != nil:
		flow["rate"] = map[string]any{"burst": *c.Burst}
	case c.Rate == none:
		flow["rate"] = nil
	}
	if len(flow) > 0 {
		patch["flow"] = flow
	}
	switch c.GroupFrom {
	case "":
	case none:
		patch["group_from"] = nil
	default:
		patch["group_from"] = c.GroupFrom
	}
	switch c.DeadLetter {
	case "":
	case none:
		patch["dead_letter"] = nil
	default:
		patch["dead_letter"] = map[string]any{"queue": c.DeadLetter}
	}
	if c.Backoff != "" {
		backoff["kind"], backoff["factor"] = c.Backoff, nil // each kind has a factor of its own, unless one is given
	}
	if c.BackoffBase != nil {
		backoff["base"] = c.BackoffBase.String()
	}
	change(backoff, "factor", c.BackoffFactor)
	change(backoff, "max", c.BackoffMax)
	if c.BackoffJitter != nil {
		backoff["jitter"] = *c.BackoffJitter
	}
	if c.Backoff == none {
		patch["backoff"] = nil
	} else if len(backoff) > 0 {
		patch["backoff"] = backoff
	}
	return patch, nil
}

// none takes a setting away.
const none = "none"

// change puts the value of a flag into a patch, if it was given: zero takes the value away.
func change[T comparable](patch map[string]any, name string, flag *T) {
	var zero T
	switch {
	case flag == nil:
	case *flag == zero:
		patch[name] = nil
	default:
		patch[name] = *flag
		if d, ok := any(*flag).(time.Duration); ok {
			patch[name] = d.String()
		}
	}
}

// set sets the value of a flag, if it was given.
func set[T any](target, flag *T) {
	if flag != nil {
		*target = *flag
	}
}

type queuePauseCmd struct {
	queueArg `embed:""`
}

// Help returns the text below the usage.
func (*queuePauseCmd) Help() string { return examples(`queued queue pause mail`) }

// Run pauses the queue.
func (c *queuePauseCmd) Run(ctx context.Context, env *Env) error {
	return c.policy(env, func(conn *client.Client) (client.Policy, error) { return conn.PauseQueue(ctx, c.Queue) })
}

type queueResumeCmd struct {
	queueArg `embed:""`
}

// Help returns the text below the usage.
func (*queueResumeCmd) Help() string { return examples(`queued queue resume mail`) }

// Run resumes the queue.
func (c *queueResumeCmd) Run(ctx context.Context, env *Env) error {
	return c.policy(env, func(conn *client.Client) (client.Policy, error) { return conn.ResumeQueue(ctx, c.Queue) })
}

type queuePurgeCmd struct {
	queueArg `embed:""`
	assent   `embed:""`
}

// Help returns the text below the usage.
func (*queuePurgeCmd) Help() string {
	return examples(`queued queue purge mail`, `queued queue purge mail --yes`) +
		"\nThe events can be requeued from history: queued requeue -q mail --outcome cancelled"
}

// purged is the answer to queuePurgeCmd and queueDeleteCmd.
type purged struct {
	Purged int `json:"purged"`
}

func purgedFields(p purged) [][2]string { return [][2]string{{"purged", strconv.Itoa(p.Purged)}} }

// Run purges the queue, once somebody has agreed.
func (c *queuePurgeCmd) Run(ctx context.Context, env *Env) error {
	if err := c.confirm(ctx, env, "Move all events of the queue "+strconv.Quote(c.Queue)+" that nobody has a lease on into history?"); err != nil {
		return err
	}
	return showAnswer(env, &c.server, purgedFields, func(conn *client.Client) (purged, error) {
		n, err := conn.PurgeQueue(ctx, c.Queue)
		return purged{n}, err
	})
}

type queueDeleteCmd struct {
	queueArg `embed:""`
	Purge    bool `help:"Move the events of the queue into history first, as cancelled."`
	assent   `embed:""`
}

// Help returns the text below the usage.
func (*queueDeleteCmd) Help() string {
	return examples(`queued queue delete mail`, `queued queue delete mail --purge --yes`) +
		"\nA queue whose events are under a lease, or that schedules, sources, subscriptions or the policies of other queues name, is not deleted."
}

// Run deletes the queue, once somebody has agreed.
func (c *queueDeleteCmd) Run(ctx context.Context, env *Env) error {
	conn, err := c.client()
	if err != nil {
		return err
	}
	defer conn.Close()
	question, err := c.question(ctx, env, conn)
	if err != nil {
		return err
	}
	if err := c.confirm(ctx, env, question); err != nil {
		return err
	}
	n, err := conn.DeleteQueue(ctx, c.Queue, client.DeleteParams{Purge: c.Purge})
	if errors.Is(err, client.ErrQueueNotEmpty) {
		return fmt.Errorf("the queue %q has events: add --purge to move them into history as cancelled, or move them to another queue first with: queued queue move %s OTHER",
			c.Queue, c.Queue)
	}
	if err != nil {
		return err
	}
	return show(env, c.Output, purged{n}, purgedFields)
}

// question returns the question to ask: with the number of events that it is about, if somebody is asked.
func (c *queueDeleteCmd) question(ctx context.Context, env *Env, conn *client.Client) (string, error) {
	question := "Delete the queue " + strconv.Quote(c.Queue) + "?"
	if !c.Purge || c.Yes || !IsTerminal(env.Stdin) {
		return question, nil
	}
	q, err := conn.GetQueue(ctx, c.Queue)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("Delete the queue %q, and move its %s into history as cancelled?", c.Queue, eventsOf(countOf(q.Estimated)(q.Ready+q.Scheduled+q.Waiting))), nil
}

type queueMoveCmd struct {
	queueArg `embed:""`
	To       string   `arg:"" queue:"" help:"The queue that the events go to."`
	Type     []string `short:"t" sep:"none" help:"Only events of this type; can be repeated."`
	Limit    int      `short:"n" placeholder:"N" min:"1" help:"How many events to move at most; all if it is not given."`
}

// Help returns the text below the usage.
func (*queueMoveCmd) Help() string {
	return examples(`queued queue move mail mail-slow --type mail.newsletter`, `queued queue move mail mail-slow -n 1000`) +
		"\nThe events keep their ids, attempts and options, and come behind what waits there."
}

// moved is the answer to queueMoveCmd.
type moved struct {
	Moved int `json:"moved"`
}

// Run moves events until there are no more, or as many as were asked for.
func (c *queueMoveCmd) Run(ctx context.Context, env *Env) error {
	return showAnswer(env, &c.server, movedFields, func(conn *client.Client) (moved, error) {
		n, err := inSteps(c.Limit, "moved", func(step int) (int, error) {
			return conn.MoveEvents(ctx, c.Queue, client.MoveParams{To: c.To, Types: c.Type, Limit: step})
		})
		return moved{n}, err
	})
}

func movedFields(m moved) [][2]string { return [][2]string{{"moved", strconv.Itoa(m.Moved)}} }

// inSteps makes calls about up to maxStep events each until there are no more, or limit is reached unless that is 0, and returns how many events they
// were about. done is what the calls have done to them, for the error.
func inSteps(limit int, done string, call func(step int) (int, error)) (sum int, err error) {
	for {
		step := maxStep
		if limit > 0 {
			step = min(step, limit-sum)
		}
		n, err := call(step)
		if err != nil && sum > 0 {
			err = fmt.Errorf("after %d events were %s: %w", sum, done, err)
		}
		if sum += n; err != nil || n < step || sum == limit {
			return sum, err
		}
	}
}

// maxStep is how many events one of these calls is about, so that a large queue takes several, none of which is too long for the server.
const maxStep = 10_000
