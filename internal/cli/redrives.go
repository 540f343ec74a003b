package cli

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/queued/queued/client"
)

// redriveInterval is the time between two looks at a redrive that is waited for.
const redriveInterval = 500 * time.Millisecond

// RedriveCmd creates a redrive.
type RedriveCmd struct {
	server        `embed:""`
	historyFilter `embed:""`
	DeadLetters   string  `placeholder:"QUEUE" help:"Redrive the dead letters that wait in this queue, instead of events in history."`
	ToQueue       string  `placeholder:"QUEUE" help:"The queue that the events go to; if it is not given, each goes to its own, and a dead letter to where it came from."`
	Rate          float64 `placeholder:"N" help:"How many events a second go at most; as many as the database does beside other work if it is not given."`
	DryRun        bool    `help:"Count the events and change nothing."`
	Wait          bool    `help:"Wait until the redrive has ended. To interrupt the command does not end it."`
	Key           string  `name:"idempotency-key" placeholder:"KEY" help:"The idempotency key: repeated, the command makes no second redrive."`
}

// Help returns the text below the usage.
func (*RedriveCmd) Help() string {
	return examples(
		`queued redrive -q mail --outcome failed --from 24h --dry-run`,
		`queued redrive -q mail --outcome failed --from 24h --rate 500 --wait`,
		`queued redrive --dead-letters mail.dead`,
	) + "\nAny server on the database goes on with a redrive, and each event goes once; events that were requeued before are left out." +
		"\nWatch, pause, resume or cancel it with: queued redrives"
}

// Run creates the redrive, or counts what it would match.
func (c *RedriveCmd) Run(ctx context.Context, env *Env) error {
	filter, err := c.params(env)
	if err != nil {
		return err
	}
	switch {
	case c.DeadLetters == "" && c.isZero():
		return usagef("redrive needs a filter, such as --outcome failed, or --dead-letters")
	case c.DeadLetters != "" && (c.Queue != "" || c.Outcome != "" || c.Worker != "" || c.Cause != "" || c.MinDuration != 0 || c.FinishedFrom != "" || c.FinishedTo != ""):
		return usagef("--dead-letters takes --from, --to, --type, --source, --contains and --meta, and no other filter")
	case c.Rate < 0:
		return usagef("--rate is %v; want more than 0", c.Rate)
	case c.DryRun && c.Wait:
		return usagef("--dry-run and --wait cannot be given together")
	}
	redrive := client.NewRedrive{
		Queue: c.DeadLetters,
		Filter: client.RedriveFilter{
			Queue: filter.Queue, Outcome: filter.Outcome, From: filter.From, To: filter.To, FinishedFrom: filter.FinishedFrom, FinishedTo: filter.FinishedTo,
			Contains: filter.Contains, Meta: filter.Meta,
			Type: filter.Type, Source: filter.Source, Worker: filter.Worker, Cause: filter.Cause, MinDuration: filter.MinDuration,
		},
		To: c.ToQueue, Rate: c.Rate, IdempotencyKey: c.Key,
	}
	conn, err := c.client()
	if err != nil {
		return err
	}
	defer conn.Close()
	if c.DryRun {
		var counted countedRedrive
		if counted.Matched, counted.Estimate, err = conn.CountRedrive(ctx, redrive); err != nil {
			return err
		}
		return show(env, c.Output, counted, func(r countedRedrive) [][2]string { return [][2]string{{"matched", about(r.Matched, r.Estimate)}} })
	}
	made, err := conn.CreateRedrive(ctx, redrive)
	if err != nil {
		return err
	}
	if c.Wait {
		if made, err = awaitRedrive(ctx, env, conn, made); err != nil {
			return err
		}
	}
	if err := show(env, c.Output, made, redriveFields); err != nil {
		return err
	}
	if c.Wait && made.State != client.RedriveDone {
		return fmt.Errorf("redrive %d is %s", made.ID, made.State)
	}
	return nil
}

// countedRedrive is what a redrive would match.
type countedRedrive struct {
	Matched  int64 `json:"matched"`
	Estimate bool  `json:"estimate"`
}

// awaitRedrive returns a redrive when it has ended.
func awaitRedrive(ctx context.Context, env *Env, conn *client.Client, r client.Redrive) (client.Redrive, error) {
	looked := make(chan client.Redrive, 1) // the latest look, for the progress
	looked <- r
	p := startProgress(env, func(time.Duration) string {
		latest := <-looked
		looked <- latest
		share := 0.0
		if latest.Matched > 0 {
			share = float64(latest.Requeued+latest.Skipped) / float64(latest.Matched)
		}
		return fmt.Sprintf("%s  %d of %s requeued", bar(share), latest.Requeued, about(latest.Matched, latest.Estimate))
	})
	defer p.stop("")
	for !r.HasEnded() {
		select {
		case <-ctx.Done():
			return r, ctx.Err()
		case <-time.After(redriveInterval):
		}
		var err error
		if r, err = conn.GetRedrive(ctx, r.ID); err != nil {
			return r, err
		}
		<-looked
		looked <- r
	}
	return r, nil
}

// about writes a count, with a tilde if it is an estimate.
func about(n int64, isEstimate bool) string {
	if isEstimate {
		return "~" + strconv.FormatInt(n, 10)
	}
	return strconv.FormatInt(n, 10)
}

// RedrivesCmd is about redrives.
type RedrivesCmd struct {
	List   redrivesListCmd  `cmd:"" default:"withargs" help:"List redrives, or show the one of an id; what \"queued redrives\" does."`
	Pause  redrivePauseCmd  `cmd:"" help:"Pause a redrive: no more events go until it is resumed."`
	Resume redriveResumeCmd `cmd:"" help:"Go on with a redrive that is paused or has failed."`
	Cancel redriveCancelCmd `cmd:"" help:"End a redrive: no more events go, and those that went stay where they are."`
}

type redrivesListCmd struct {
	server `embed:""`
	ID     *int64 `arg:"" optional:"" help:"The id of a redrive to show; without one, redrives are listed."`
	State  string `enum:",running,paused,cancelled,done,failed" default:"" placeholder:"STATE" help:"Only redrives with this state: running, paused, cancelled, done or failed."`
	Limit  int    `short:"n" default:"100" placeholder:"N" help:"How many redrives to list; 0 for all (default 100)."`
}

// Help returns the text below the usage.
func (*redrivesListCmd) Help() string {
	return examples(`queued redrives --state running`, `queued redrives 7`) +
		"\nRedrives are listed until 30 days after their end. The exit code is 3 if there is no redrive of the id."
}

// Run lists the redrives, the latest first, or shows one.
func (c *redrivesListCmd) Run(ctx context.Context, env *Env) error {
	if c.ID != nil {
		return showAnswer(env, &c.server, redriveFields, func(conn *client.Client) (client.Redrive, error) { return conn.GetRedrive(ctx, *c.ID) })
	}
	conn, err := c.client()
	if err != nil {
		return err
	}
	defer conn.Close()
	return listSome(env, c.Output, c.Limit, redrivesView, conn.ListRedrives(ctx, client.RedriveListing{State: c.State, PageSize: pageSize(c.Limit)}))
}

var redrivesView = view[client.Redrive]{
	columns: columns("ID", "STATE", "OF…", "TO?", "RATE?", "MATCHED", "REQUEUED", "SKIPPED?", "CREATED@"),
	row: func(r client.Redrive) []string {
		return []string{
			id(r.ID), r.State, sourceOf(r), dash(r.To), dash(rateOf(r)), about(r.Matched, r.Estimate), strconv.FormatInt(r.Requeued, 10),
			strconv.FormatInt(r.Skipped, 10), moment(r.CreatedAt),
		}
	},
	empty: "no redrives",
}

// sourceOf says what a redrive requeues: the dead letters of a queue, or events by their filter.
func sourceOf(r client.Redrive) string {
	filter, err := r.Filter.MarshalJSON()
	if r.Queue == "" && err == nil {
		return string(filter)
	}
	return r.Queue
}

func rateOf(r client.Redrive) string {
	if r.Rate == 0 {
		return ""
	}
	return strconv.FormatFloat(r.Rate, 'f', -1, 64) + "/s"
}

func redriveFields(r client.Redrive) [][2]string {
	finished := ""
	if r.FinishedAt != nil {
		finished = moment(*r.FinishedAt)
	}
	return [][2]string{
		{"id", id(r.ID)},
		{"state", r.State},
		{"reason", r.Reason},
		{"of", sourceOf(r)},
		{"to", r.To},
		{"rate", rateOf(r)},
		{"matched", about(r.Matched, r.Estimate)},
		{"requeued", strconv.FormatInt(r.Requeued, 10)},
		{"skipped", strconv.FormatInt(r.Skipped, 10)},
		{"created", moment(r.CreatedAt)},
		{"finished", finished},
	}
}

// redriveArg is the redrive that a command is about.
type redriveArg struct {
	server `embed:""`
	ID     int64 `arg:"" help:"The id of the redrive."`
}

// call makes a call about the redrive and shows it as it is then.
func (c *redriveArg) call(ctx context.Context, env *Env, send func(*client.Client, context.Context, int64) (client.Redrive, error)) error {
	return showAnswer(env, &c.server, redriveFields, func(conn *client.Client) (client.Redrive, error) { return send(conn, ctx, c.ID) })
}

type redrivePauseCmd struct {
	redriveArg `embed:""`
}

// Help returns the text below the usage.
func (*redrivePauseCmd) Help() string { return examples(`queued redrives pause 7`) }

// Run pauses the redrive.
func (c *redrivePauseCmd) Run(ctx context.Context, env *Env) error {
	return c.call(ctx, env, (*client.Client).PauseRedrive)
}

type redriveResumeCmd struct {
	redriveArg `embed:""`
}

// Help returns the text below the usage.
func (*redriveResumeCmd) Help() string { return examples(`queued redrives resume 7`) }

// Run resumes the redrive.
func (c *redriveResumeCmd) Run(ctx context.Context, env *Env) error {
	return c.call(ctx, env, (*client.Client).ResumeRedrive)
}

type redriveCancelCmd struct {
	redriveArg `embed:""`
}

// Help returns the text below the usage.
func (*redriveCancelCmd) Help() string { return examples(`queued redrives cancel 7`) }

// Run cancels the redrive.
func (c *redriveCancelCmd) Run(ctx context.Context, env *Env) error {
	return c.call(ctx, env, (*client.Client).CancelRedrive)
}
