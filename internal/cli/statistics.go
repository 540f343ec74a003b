package cli

import (
	"context"
	"strconv"
	"time"

	"github.com/queued/queued/client"
)

type queueStatsCmd struct {
	queueArg `embed:""`
	Since    time.Duration `placeholder:"DURATION" default:"1h" min:"1m" max:"168h" help:"How far to go back."`
	Bucket   time.Duration `placeholder:"DURATION" default:"5m" min:"1m" max:"168h" help:"The length of time that a row stands for: whole minutes."`
}

// Help returns the text below the usage.
func (*queueStatsCmd) Help() string {
	return examples(`queued queue stats mail`, `queued queue stats mail --since 24h --bucket 1h`, `queued queue stats mail -o jsonl | jq -r '[.start, .ready, .done] | @tsv'`) +
		"\nA - stands for what was not sampled, as no server was running, and for durations of nothing. A ? says that not all that ended is counted."
}

// Run shows the statistics.
func (c *queueStatsCmd) Run(ctx context.Context, env *Env) error {
	conn, err := c.client()
	if err != nil {
		return err
	}
	defer conn.Close()
	series, err := conn.QueueStats(ctx, c.Queue, client.SeriesParams{From: time.Now().Add(-c.Since), Bucket: c.Bucket})
	if err == nil && !hasStatistics(series) {
		err = checkKnown(ctx, conn, c.Queue)
	}
	if err != nil {
		return err
	}
	return list(env, c.Output, seriesView, all(series.Buckets))
}

var seriesView = view[client.SeriesBucket]{
	columns: columns("START@", "READY", "SCHEDULED?", "WAITING?", "LEASED", "OLDEST", "DONE", "FAILED", "EXPIRED", "CANCELLED?", "WAIT P50?", "WAIT P95", "WORK P50?", "WORK P95"),
	row: func(b client.SeriesBucket) []string {
		waiting := func(n *int) string {
			if n == nil {
				return dash("")
			}
			return countOf(b.Estimated != nil && *b.Estimated)(*n)
		}
		ended := func(n int) string {
			if !b.Complete {
				return strconv.Itoa(n) + "?"
			}
			return strconv.Itoa(n)
		}
		took := func(ms *float64) string {
			if ms == nil {
				return dash("")
			}
			return dash(span(time.Duration(*ms * float64(time.Millisecond))))
		}
		return []string{
			moment(b.Start), waiting(b.Ready), waiting(b.Scheduled), waiting(b.Waiting), waiting(b.Leased), took(b.OldestReadyAgeMS),
			ended(b.Done), ended(b.Failed), ended(b.Expired), ended(b.Cancelled), took(b.WaitP50MS), took(b.WaitP95MS), took(b.ProcessingP50MS), took(b.ProcessingP95MS),
		}
	},
	empty: "no time has passed that statistics could be of",
}
