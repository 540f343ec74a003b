package cli

import (
	"context"
	"strconv"
	"time"

	"github.com/queued/queued/client"
)

// SchedulesCmd is about schedules.
type SchedulesCmd struct {
	server `embed:""`
	ID     *int64        `arg:"" optional:"" help:"The id of a schedule to show; without one, schedules are listed."`
	Queue  string        `short:"q" help:"Only schedules of this queue."`
	Owner  string        `help:"Only schedules of this owner."`
	Status string        `enum:",active,paused,completed,cancelled" default:"" placeholder:"STATUS" help:"Only schedules with this status: active, paused, completed or cancelled."`
	Due    time.Duration `placeholder:"DURATION" help:"Only schedules whose next occurrence comes within this time."`
	Limit  int           `short:"n" default:"100" placeholder:"N" help:"How many schedules to list; 0 for all (default 100)."`
}

// Help returns the text below the usage.
func (*SchedulesCmd) Help() string {
	return examples(`queued schedules -q mail`, `queued schedules --due 1h`, `queued schedules 17`) +
		"\nThe exit code is 3 if there is no schedule of the id."
}

// nextOccurrences is how many occurrences to come are shown of a schedule.
const nextOccurrences = 5

// Run lists the schedules, or shows one.
func (c *SchedulesCmd) Run(ctx context.Context, env *Env) error {
	conn, err := c.client()
	if err != nil {
		return err
	}
	defer conn.Close()
	if c.ID == nil {
		filter := client.ScheduleFilter{Owner: c.Owner, Queue: c.Queue, Status: c.Status, PageSize: pageSize(c.Limit)}
		if c.Due > 0 {
			filter.DueBefore = env.Now().Add(c.Due)
		}
		return listSome(env, c.Output, c.Limit, schedulesView, conn.ListSchedules(ctx, filter))
	}
	schedule, err := conn.GetSchedule(ctx, *c.ID)
	if err != nil {
		return err
	}
	if err := show(env, c.Output, schedule, scheduleFields); err != nil || env.format(c.Output) != formatTable || schedule.NextAt == nil {
		return err
	}
	next, err := conn.Upcoming(ctx, *c.ID, nextOccurrences)
	if err != nil {
		return err
	}
	if _, err := env.Stdout.Write([]byte("\n")); err != nil {
		return err
	}
	return list(env, formatTable, upcomingView, all(next))
}

var schedulesView = view[client.Schedule]{
	columns: columns("ID", "NAME…", "TO…", "WHEN…", "ZONE?", "STATUS", "FIRED?", "NEXT"),
	row: func(s client.Schedule) []string {
		next := "-"
		if s.NextAt != nil {
			next = moment(*s.NextAt)
		}
		return []string{id(s.ID), dash(s.Name), target(s), when(s), s.Zone, s.Status, strconv.FormatInt(s.Fired, 10), next}
	},
	empty: "no schedules",
}

// target is where a schedule inserts or publishes.
func target(s client.Schedule) string {
	if s.Topic != "" {
		return "topic " + s.Topic
	}
	return s.Queue
}

// when is the rule of a schedule.
func when(s client.Schedule) string {
	switch {
	case s.Cron != "":
		return s.Cron
	case s.RRule != "":
		return s.RRule
	}
	return s.At
}

func scheduleFields(s client.Schedule) [][2]string {
	count := ""
	if s.Count > 0 {
		count = strconv.Itoa(s.Count)
	}
	return [][2]string{
		{"id", id(s.ID)},
		{"name", s.Name},
		{"owner", s.Owner},
		{"queue", s.Queue},
		{"topic", s.Topic},
		{"type", s.Type},
		{"at", s.At},
		{"rrule", s.RRule},
		{"cron", s.Cron},
		{"zone", s.Zone},
		{"starts", s.Starts},
		{"ends", s.Ends},
		{"count", count},
		{"status", s.Status},
		{"reason", s.StatusReason},
		{"fired", strconv.FormatInt(s.Fired, 10)},
		{"changed", moment(s.UpdatedAt)},
		{"event", string(s.Payload)},
	}
}

var upcomingView = view[client.Instant]{
	columns: columns("NEXT, LOCAL", "UTC"),
	row:     func(i client.Instant) []string { return []string{i.Local, moment(i.UTC)} },
}
