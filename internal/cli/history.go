package cli

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/queued/queued/client"
)

// historyFilter says which events of history.
type historyFilter struct {
	Queue       string        `short:"q" help:"Only events of this queue."`
	Outcome     string        `enum:",done,failed,expired,cancelled" default:"" placeholder:"OUTCOME" help:"Only events with this outcome: done, failed, expired or cancelled."`
	From        string        `placeholder:"TIME" help:"Only events whose time is at or after this one: RFC 3339, or how long ago, such as 90m."`
	To          string        `placeholder:"TIME" help:"Only events whose time is before this one."`
	Type        string        `short:"t" help:"Only events of this type."`
	Source      string        `help:"Only events from this source."`
	Worker      string        `help:"Only events that this worker claimed last."`
	Cause       string        `placeholder:"TEXT" help:"Only events that failed or expired whose last error has this cause, as \"queued errors\" says it."`
	MinDuration time.Duration `placeholder:"DURATION" min:"0s" help:"Only done and failed events whose last attempt took at least this long."`
	finished    `embed:""`
	payloads    `embed:""`
}

// finished bounds when events ended.
type finished struct {
	FinishedFrom string `placeholder:"TIME" help:"Only events that ended at or after this time: RFC 3339, or how long ago, such as 1h."`
	FinishedTo   string `placeholder:"TIME" help:"Only events that ended before this time."`
}

// times returns the bounds; zero: none.
func (f *finished) times(env *Env) (from, to time.Time, err error) {
	if from, err = parseTime("finished-from", f.FinishedFrom, env.Now()); err != nil {
		return from, to, err
	}
	to, err = parseTime("finished-to", f.FinishedTo, env.Now())
	return from, to, err
}

// params returns the filter as package client has it.
func (f *historyFilter) params(env *Env) (client.HistoryFilter, error) {
	from, err := parseTime("from", f.From, env.Now())
	if err != nil {
		return client.HistoryFilter{}, err
	}
	to, err := parseTime("to", f.To, env.Now())
	if err != nil {
		return client.HistoryFilter{}, err
	}
	finishedFrom, finishedTo, err := f.times(env)
	return client.HistoryFilter{
		Queue: f.Queue, Outcome: f.Outcome, From: from, To: to, FinishedFrom: finishedFrom, FinishedTo: finishedTo, Contains: f.Contains.raw(), Meta: f.Meta.raw(), Type: f.Type, Source: f.Source,
		Worker: f.Worker, Cause: f.Cause, MinDuration: f.MinDuration,
	}, err
}

// HistoryCmd lists history.
type HistoryCmd struct {
	server        `embed:""`
	historyFilter `embed:""`
	export        `embed:""`
	Limit         *int `short:"n" placeholder:"N" min:"0" help:"How many events to list; 0 for all (default 100, and all with --export)."`
}

// Help returns the text below the usage.
func (*HistoryCmd) Help() string {
	return examples(
		`queued history -q mail --outcome failed --from 24h`,
		`queued history --outcome failed --finished-from 1h`,
		`queued history --cause "no mailbox <id>"`,
		`queued history --contains '{"order": 4711}' -o json`,
		`queued history -q mail -n 0 -o jsonl | jq -r .last_error | sort | uniq -c`,
		`queued history --from 30d --export csv > history.csv`,
	) + "\nFor one event with its attempts: queued events ID"
}

// Run lists the events, newest first.
func (c *HistoryCmd) Run(ctx context.Context, env *Env) error {
	filter, err := c.params(env)
	if err != nil {
		return err
	}
	conn, err := c.client()
	if err != nil {
		return err
	}
	defer conn.Close()
	if c.Export != "" {
		return c.write(env, c.Output, c.Limit, func(p client.ExportParams) (client.Exported, error) {
			exported, err := conn.ExportHistory(ctx, env.Stdout, filter, p)
			if err == nil && exported.Rows == 0 && c.Queue != "" {
				err = checkKnown(ctx, conn, c.Queue)
			}
			return exported, err
		})
	}
	limit := listLimit(c.Limit)
	filter.PageSize = pageSize(limit)
	return listSome(env, c.Output, limit, historyView, ofKnown(ctx, conn, c.Queue, conn.ListHistory(ctx, filter)))
}

var historyView = view[client.Event]{
	columns: columns("ID", "QUEUE…", "TYPE…?", "OUTCOME", "ATTEMPTS?", "FINISHED@", "TOOK?", "LAST ERROR…", "EVENT…"),
	row: func(e client.Event) []string {
		took := ""
		if e.ProcessingMS != nil {
			took = span(time.Duration(*e.ProcessingMS * float64(time.Millisecond)))
		}
		return []string{
			id(e.ID), e.Queue, dash(e.Type), e.Outcome, strconv.Itoa(e.Attempts), moment(e.FinishedAt), dash(took), dash(e.LastError),
			string(e.Payload),
		}
	},
	empty: "no events in history",
}

// RequeueCmd requeues events.
type RequeueCmd struct {
	server        `embed:""`
	IDs           []int64 `arg:"" optional:"" name:"id" help:"The ids of events in history; without any, the filters say which."`
	historyFilter `embed:""`
	Limit         int  `short:"n" default:"0" placeholder:"N" min:"0" help:"How many events to requeue at most, the oldest first; 0 for all."`
	DryRun        bool `help:"Count the events and change nothing. At most 1000 are counted."`
}

// Help returns the text below the usage.
func (*RequeueCmd) Help() string {
	return examples(
		`queued requeue 1042 1043`,
		`queued requeue -q mail --outcome failed --from 24h --dry-run`,
		`queued requeue -q mail --outcome failed --from 24h`,
		`queued requeue -q mail --outcome failed --finished-from 1h`,
	) + "\nBy filter, events that were requeued before are left out, so the command can be repeated. By id, too, an event is requeued again only if its copy has ended, and is not done."
}

// copied is one requeued event.
type copied struct {
	ID   int64 `json:"id"`
	Copy int64 `json:"copy"`
}

// Run requeues the events and writes which or how many.
func (c *RequeueCmd) Run(ctx context.Context, env *Env) error {
	filter, err := c.params(env)
	if err != nil {
		return err
	}
	noFilter := c.isZero()
	switch {
	case len(c.IDs) > 0 && (!noFilter || c.DryRun || c.Limit != 0):
		return usagef("requeue takes ids, or filters, --limit and --dry-run; not both")
	case len(c.IDs) == 0 && noFilter:
		return usagef("requeue needs ids, or a filter such as --outcome failed")
	}
	conn, err := c.client()
	if err != nil {
		return err
	}
	defer conn.Close()
	if len(c.IDs) > 0 {
		return c.requeueIDs(ctx, env, conn)
	}
	counted, err := c.requeueMatching(ctx, env, conn, filter)
	if err != nil {
		if counted.Requeued > 0 {
			env.notef("%d events were requeued before this error", counted.Requeued)
		}
		return err
	}
	return show(env, c.Output, counted, func(r client.Requeued) [][2]string {
		return [][2]string{{"matched", strconv.Itoa(r.Matched)}, {"requeued", strconv.Itoa(r.Requeued)}}
	})
}

func (f *historyFilter) isZero() bool {
	return f.Queue == "" && f.Outcome == "" && f.From == "" && f.To == "" && f.Type == "" && f.Source == "" && f.Worker == "" && f.Cause == "" &&
		f.FinishedFrom == "" && f.FinishedTo == "" && f.MinDuration == 0 && f.Contains == nil && f.Meta == nil
}

func (c *RequeueCmd) requeueIDs(ctx context.Context, env *Env, conn *client.Client) error {
	return list(env, c.Output, view[copied]{
		columns: columns("ID", "COPY"),
		row:     func(r copied) []string { return []string{id(r.ID), id(r.Copy)} },
	}, each(c.IDs, func(n int64) (copied, error) {
		copyID, err := conn.Requeue(ctx, n)
		return copied{n, copyID}, err
	}))
}

// requeueMatching requeues up to the limit, a thousand with each call.
func (c *RequeueCmd) requeueMatching(ctx context.Context, env *Env, conn *client.Client, filter client.HistoryFilter) (sum client.Requeued, err error) {
	p := startProgress(env, func(elapsed time.Duration) string { return fmt.Sprintf("requeueing for %s", span(elapsed)) })
	defer p.stop("")
	for {
		step := maxBatch
		if c.Limit > 0 {
			step = min(step, c.Limit-sum.Requeued)
		}
		got, err := conn.RequeueMatching(ctx, client.RequeueParams{HistoryFilter: filter, Limit: step, DryRun: c.DryRun})
		sum.Matched, sum.Requeued = sum.Matched+got.Matched, sum.Requeued+got.Requeued
		if err != nil || c.DryRun || got.Requeued < step || sum.Requeued == c.Limit {
			return sum, err
		}
	}
}
