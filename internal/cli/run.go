package cli

import (
	"context"
	"strconv"

	"github.com/queued/queued/client"
)

// RunCmd makes events claimable now that wait for their time.
type RunCmd struct {
	server     `embed:""`
	IDs        []int64  `arg:"" optional:"" name:"id" help:"The ids of events that wait for their time; without any, --queue says which."`
	Queue      string   `short:"q" help:"Run everything that is scheduled in this queue."`
	Type       []string `short:"t" sep:"none" help:"Only events of this type; can be repeated."`
	NackedOnly bool     `help:"Only events that wait after a nack; those that were inserted for a later time stay scheduled."`
	Limit      int      `short:"n" placeholder:"N" min:"1" help:"How many events to run at most; all if it is not given."`
}

// Help returns the text below the usage.
func (*RunCmd) Help() string {
	return examples(
		`queued run 1042 1043`,
		`queued run -q mail`,
		`queued run -q mail --type mail.welcome --nacked-only`,
	) + "\nThe events get no further attempt by that. Leased ones stay as they are; those of a paused queue can be claimed when it is resumed."
}

// ranQueue is the answer to RunCmd for a queue.
type ranQueue struct {
	Run int `json:"run"`
}

// Run runs the events and writes which or how many.
func (c *RunCmd) Run(ctx context.Context, env *Env) error {
	hasFilter := c.Queue != "" || len(c.Type) > 0 || c.NackedOnly || c.Limit != 0
	switch {
	case len(c.IDs) > 0 && hasFilter:
		return usagef("run takes ids, or --queue with --type, --nacked-only and --limit; not both")
	case len(c.IDs) == 0 && c.Queue == "":
		return usagef("run needs the ids of events, or --queue")
	}
	conn, err := c.client()
	if err != nil {
		return err
	}
	defer conn.Close()
	if len(c.IDs) > 0 {
		return c.runEvents(ctx, env, conn)
	}
	n, err := inSteps(c.Limit, "run", func(step int) (int, error) {
		return conn.RunQueue(ctx, c.Queue, client.RunParams{Types: c.Type, NackedOnly: c.NackedOnly, Limit: step})
	})
	if err != nil {
		return err
	}
	return show(env, c.Output, ranQueue{n}, func(r ranQueue) [][2]string { return [][2]string{{"run", strconv.Itoa(r.Run)}} })
}

func (c *RunCmd) runEvents(ctx context.Context, env *Env, conn *client.Client) error {
	return list(env, c.Output, eventVTView("CLAIMABLE SINCE"), each(c.IDs, func(n int64) (eventVT, error) {
		vt, err := conn.RunEvent(ctx, n)
		return eventVT{n, vt}, err
	}))
}
