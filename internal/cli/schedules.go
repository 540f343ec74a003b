package cli

import (
	"context"
	"strconv"
	"time"

	"github.com/queued/queued/client"
)

// SchedulesCmd is about schedules.
type SchedulesCmd struct {
	List        schedulesListCmd       `cmd:"" default:"withargs" help:"List schedules, or show the one of an id; what \"queued schedules\" does."`
	Show        scheduleShowCmd        `cmd:"" help:"Show a schedule with its next occurrences."`
	Create      scheduleCreateCmd      `cmd:"" help:"Create a schedule."`
	Preview     schedulePreviewCmd     `cmd:"" help:"List the occurrences that a schedule would have; nothing is stored."`
	Pause       schedulePauseCmd       `cmd:"" help:"Pause a schedule: it does not fire until it is resumed."`
	Resume      scheduleResumeCmd      `cmd:"" help:"Resume a schedule."`
	Run         scheduleRunCmd         `cmd:"" help:"Fire a schedule now, once, beside its occurrences."`
	Cancel      scheduleCancelCmd      `cmd:"" aliases:"delete" help:"Cancel a schedule for ever: it does not fire again, and can still be shown."`
	Occurrences scheduleOccurrencesCmd `cmd:"" help:"List the occurrences that a schedule had, latest first."`
}

type schedulesListCmd struct {
	server `embed:""`
	ID     *int64        `arg:"" optional:"" help:"The id of a schedule to show; without one, schedules are listed."`
	Queue  string        `short:"q" help:"Only schedules of this queue."`
	Owner  string        `help:"Only schedules of this owner."`
	Status string        `enum:",active,paused,completed,cancelled" default:"" placeholder:"STATUS" help:"Only schedules with this status: active, paused, completed or cancelled."`
	Due    time.Duration `placeholder:"DURATION" min:"1us" help:"Only schedules whose next occurrence comes within this time."`
	Limit  int           `short:"n" default:"100" placeholder:"N" min:"0" help:"How many schedules to list; 0 for all (default 100)."`
}

// Help returns the text below the usage.
func (*schedulesListCmd) Help() string {
	return examples(`queued schedules -q mail`, `queued schedules --due 1h`, `queued schedules 17`) +
		"\nThe exit code is 3 if there is no schedule of the id."
}

// Run lists the schedules, or shows one.
func (c *schedulesListCmd) Run(ctx context.Context, env *Env) error {
	if hasFilter := c.Queue != "" || c.Owner != "" || c.Status != "" || c.Due != 0; c.ID != nil && hasFilter {
		return usagef("schedules takes an id, or --queue, --owner, --status and --due; not both")
	}
	conn, err := c.client()
	if err != nil {
		return err
	}
	defer conn.Close()
	if c.ID != nil {
		return showSchedule(ctx, env, conn, c.Output, *c.ID)
	}
	filter := client.ScheduleFilter{Owner: c.Owner, Queue: c.Queue, Status: c.Status, PageSize: pageSize(c.Limit)}
	if c.Due > 0 {
		filter.DueBefore = env.Now().Add(c.Due)
	}
	return listSome(env, c.Output, c.Limit, schedulesView, conn.ListSchedules(ctx, filter))
}

// scheduleArg is the schedule that a command is about.
type scheduleArg struct {
	server `embed:""`
	ID     int64 `arg:"" help:"The id of the schedule."`
}

// call makes a call about the schedule and shows the schedule that it returns.
func (c *scheduleArg) call(env *Env, send func(*client.Client) (client.Schedule, error)) error {
	return showAnswer(env, &c.server, scheduleFields, send)
}

type scheduleShowCmd struct {
	scheduleArg `embed:""`
}

// Help returns the text below the usage.
func (*scheduleShowCmd) Help() string { return examples(`queued schedules show 17`) }

// Run shows the schedule.
func (c *scheduleShowCmd) Run(ctx context.Context, env *Env) error {
	conn, err := c.client()
	if err != nil {
		return err
	}
	defer conn.Close()
	return showSchedule(ctx, env, conn, c.Output, c.ID)
}

// showSchedule shows one schedule; in a table with its next occurrences.
func showSchedule(ctx context.Context, env *Env, conn *client.Client, output string, n int64) error {
	schedule, err := conn.GetSchedule(ctx, n)
	if err != nil {
		return err
	}
	if err := show(env, output, schedule, scheduleFields); err != nil || env.format(output) != formatTable || schedule.NextAt == nil {
		return err
	}
	next, err := conn.Upcoming(ctx, n, nextOccurrences)
	if err != nil {
		return err
	}
	if _, err := env.Stdout.Write([]byte("\n")); err != nil {
		return err
	}
	return list(env, formatTable, upcomingView, all(next))
}

// scheduleRule says when a schedule fires.
type scheduleRule struct {
	At       string `placeholder:"TIME" help:"When to fire once: a local time such as 2027-03-28T09:00:00, or an instant with Z or an offset. With --rrule it is the rule's DTSTART."`
	RRule    string `name:"rrule" placeholder:"RULE" help:"A recurrence rule of RFC 5545, such as FREQ=MONTHLY;BYDAY=-1FR."`
	Cron     string `placeholder:"EXPRESSION" help:"A cron expression, such as '30 7 * * 1-5'."`
	Timezone string `short:"z" placeholder:"ZONE" help:"The time zone, such as Europe/Berlin, which local times, rules and cron expressions need; that of the owner if it is not given."`
	Owner    string `help:"Whose time zone the schedule follows without --timezone: an id that \"queued owners\" lists."`
	Starts   string `placeholder:"TIME" help:"No occurrence is before this time."`
	Ends     string `placeholder:"TIME" help:"No occurrence is after this time."`
	Count    int    `placeholder:"N" min:"1" max:"2147483647" help:"How many occurrences there are; no bound if it is not given."`
	Gap      string `enum:",forward,next,skip" default:"" placeholder:"WHAT" help:"What happens at local times that the zone skips: forward (the default), next or skip."`
	Overlap  string `enum:",first,last" default:"" placeholder:"WHICH" help:"Which of two equal local times is meant: first (the default) or last."`
	Leap     string `enum:",feb28,mar1,skip" default:"" placeholder:"WHAT" help:"What happens to 29 February in other years: feb28 (the default), mar1 or skip."`
}

func (r *scheduleRule) schedule() client.NewSchedule {
	return client.NewSchedule{
		At: r.At, RRule: r.RRule, Cron: r.Cron, Timezone: r.Timezone, Owner: r.Owner, Starts: r.Starts, Ends: r.Ends, Count: r.Count,
		Gap: r.Gap, Overlap: r.Overlap, Leap: r.Leap,
	}
}

// check fails unless there is one rule.
func (r *scheduleRule) check() error {
	if r.At == "" && r.RRule == "" && r.Cron == "" {
		return usagef("a schedule needs --at, --rrule or --cron")
	}
	return nil
}

type scheduleCreateCmd struct {
	server         `embed:""`
	Event          string `arg:"" optional:"" help:"The event of each occurrence, a JSON object; \"-\", or nothing, reads it from standard input."`
	Queue          string `short:"q" help:"The queue to insert into; default if neither this nor --topic is given."`
	Topic          string `placeholder:"TOPIC" help:"The topic to publish to, instead of a queue."`
	Type           string `short:"t" help:"The type of the events."`
	Priority       int32  `short:"p" placeholder:"N" help:"The priority of the events; lower numbers are claimed first."`
	Group          string `short:"g" placeholder:"GROUP" help:"The group of the events, of which the queue may limit how many are claimed at once."`
	Name           string `help:"A name, for people."`
	scheduleRule   `embed:""`
	Misfire        string `enum:",once,all,skip" default:"" placeholder:"WHAT" help:"What happens to occurrences that were missed: once (the default), all or skip."`
	IdempotencyKey string `placeholder:"KEY" help:"The idempotency key: repeated, the command makes no second schedule."`
}

// Help returns the text below the usage.
func (*scheduleCreateCmd) Help() string {
	return examples(
		`queued schedules create -q mail --cron '0 9 * * 1' --timezone Europe/Berlin --name 'weekly report' '{"report": "week"}'`,
		`queued schedules create -q mail --rrule 'FREQ=MONTHLY;BYDAY=-1FR' --at 2027-01-01T17:00:00 -z America/New_York '{"bill": true}'`,
		`queued schedules create --topic reminders --at 2027-03-28T09:00:00Z '{"text": "renew"}'`,
	)
}

// Run creates the schedule and shows it.
func (c *scheduleCreateCmd) Run(ctx context.Context, env *Env) error {
	if err := c.check(); err != nil {
		return err
	}
	payload, err := readObject(ctx, env, c.Event, "schedules create needs an event, such as '{\"report\": \"week\"}'", "a schedule has one")
	if err != nil {
		return err
	}
	s := c.schedule()
	s.Payload, s.Queue, s.Topic, s.Type, s.Priority, s.Group, s.Name = payload, c.Queue, c.Topic, c.Type, c.Priority, c.Group, c.Name
	s.Misfire, s.IdempotencyKey = c.Misfire, c.IdempotencyKey
	return showAnswer(env, &c.server, scheduleFields, func(conn *client.Client) (client.Schedule, error) {
		made, err := conn.CreateSchedule(ctx, s)
		if err == nil && made.Status == "cancelled" { // it was made before, under the same key
			env.notef("the schedule that was created under this key is cancelled: create another one under another key")
		}
		return made, err
	})
}

type schedulePreviewCmd struct {
	server       `embed:""`
	scheduleRule `embed:""`
	After        time.Time `placeholder:"TIME" help:"When to begin, such as 2027-02-03T04:05:06Z; now if it is not given."`
	Limit        int       `short:"n" default:"10" placeholder:"N" min:"1" max:"1000" help:"How many occurrences to list, 1 to 1000 (default 10)."`
}

// Help returns the text below the usage.
func (*schedulePreviewCmd) Help() string {
	return examples(`queued schedules preview --cron '30 7 * * 1-5' -z Europe/Berlin -n 3`)
}

// Run lists the occurrences.
func (c *schedulePreviewCmd) Run(ctx context.Context, env *Env) error {
	if err := c.check(); err != nil {
		return err
	}
	conn, err := c.client()
	if err != nil {
		return err
	}
	defer conn.Close()
	next, err := conn.PreviewSchedule(ctx, client.PreviewParams{NewSchedule: c.schedule(), After: c.After, N: c.Limit})
	if err != nil {
		return err
	}
	return list(env, c.Output, upcomingView, all(next))
}

type schedulePauseCmd struct {
	scheduleArg `embed:""`
}

// Help returns the text below the usage.
func (*schedulePauseCmd) Help() string { return examples(`queued schedules pause 17`) }

// Run pauses the schedule.
func (c *schedulePauseCmd) Run(ctx context.Context, env *Env) error {
	return c.call(env, func(conn *client.Client) (client.Schedule, error) { return conn.PauseSchedule(ctx, c.ID) })
}

type scheduleResumeCmd struct {
	scheduleArg `embed:""`
}

// Help returns the text below the usage.
func (*scheduleResumeCmd) Help() string {
	return examples(`queued schedules resume 17`) + "\nWhat becomes of the occurrences that were missed is decided by the schedule's misfire policy."
}

// Run resumes the schedule.
func (c *scheduleResumeCmd) Run(ctx context.Context, env *Env) error {
	return c.call(env, func(conn *client.Client) (client.Schedule, error) { return conn.ResumeSchedule(ctx, c.ID) })
}

type scheduleRunCmd struct {
	scheduleArg `embed:""`
}

// Help returns the text below the usage.
func (*scheduleRunCmd) Help() string { return examples(`queued schedules run 17`) }

// Run fires the schedule and shows the occurrence.
func (c *scheduleRunCmd) Run(ctx context.Context, env *Env) error {
	return showAnswer(env, &c.server, occurrenceFields, func(conn *client.Client) (client.Occurrence, error) { return conn.RunSchedule(ctx, c.ID) })
}

func occurrenceFields(o client.Occurrence) [][2]string {
	return [][2]string{
		{"local time", o.NominalAt},
		{"due@", moment(o.ScheduledFor)},
		{"status", o.Status},
		{"event", id(o.EventID)},
		{"topic", o.Topic},
		{"fired@", moment(o.FiredAt)},
		{"failure", o.FailureReason},
	}
}

type scheduleCancelCmd struct {
	scheduleArg `embed:""`
	assent      `embed:""`
}

// Help returns the text below the usage.
func (*scheduleCancelCmd) Help() string { return examples(`queued schedules cancel 17`) }

// Run cancels the schedule, once somebody has agreed, and says so.
func (c *scheduleCancelCmd) Run(ctx context.Context, env *Env) error {
	if err := c.confirm(ctx, env, "Cancel the schedule "+id(c.ID)+" for ever?"); err != nil {
		return err
	}
	return showAnswer(env, &c.server, cancelledFields, func(conn *client.Client) (cancelledSchedule, error) {
		return cancelledSchedule{c.ID, "cancelled"}, conn.DeleteSchedule(ctx, c.ID, 0)
	})
}

// cancelledSchedule is the answer to scheduleCancelCmd, with the names of [client.Schedule].
type cancelledSchedule struct {
	ID     int64  `json:"id"`
	Status string `json:"status"`
}

func cancelledFields(s cancelledSchedule) [][2]string {
	return [][2]string{{"id", id(s.ID)}, {"status", s.Status}}
}

type scheduleOccurrencesCmd struct {
	scheduleArg `embed:""`
	Limit       int `short:"n" default:"100" placeholder:"N" min:"0" help:"How many occurrences to list; 0 for all (default 100)."`
}

// Help returns the text below the usage.
func (*scheduleOccurrencesCmd) Help() string { return examples(`queued schedules occurrences 17 -n 5`) }

// Run lists the occurrences.
func (c *scheduleOccurrencesCmd) Run(ctx context.Context, env *Env) error {
	conn, err := c.client()
	if err != nil {
		return err
	}
	defer conn.Close()
	return listSome(env, c.Output, c.Limit, occurrencesView, conn.ListOccurrences(ctx, c.ID))
}

// nextOccurrences is how many occurrences to come are shown of a schedule.
const nextOccurrences = 5

var schedulesView = view[client.Schedule]{
	columns: columns("ID", "NAME…", "TO…", "WHEN…", "ZONE?", "STATUS", "FIRED?", "LAST?", "NEXT@"),
	row: func(s client.Schedule) []string {
		next := "-"
		if s.NextAt != nil {
			next = moment(*s.NextAt)
		}
		last := ""
		if s.LastOccurrence != nil {
			last = s.LastOccurrence.Status
		}
		return []string{id(s.ID), dash(s.Name), target(s), when(s), s.Zone, s.Status, strconv.FormatInt(s.Fired, 10), dash(last), next}
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
	var last client.Occurrence
	if s.LastOccurrence != nil {
		last = *s.LastOccurrence
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
		{"last@", moment(last.ScheduledFor)},
		{"last status", last.Status},
		{"last failure", last.FailureReason},
		{"changed@", moment(s.UpdatedAt)},
		{"event", string(s.Payload)},
	}
}

var upcomingView = view[client.Instant]{
	columns: columns("NEXT, LOCAL", "UTC", "NOTE?"),
	row:     func(i client.Instant) []string { return []string{i.Local, moment(i.UTC), dash(i.Note)} },
}

var occurrencesView = view[client.Occurrence]{
	columns: columns("LOCAL TIME", "DUE@", "STATUS", "EVENT", "TOPIC…?", "FIRED@", "RETRIES?", "FAILURE…?"),
	row: func(o client.Occurrence) []string {
		return []string{
			o.NominalAt, moment(o.ScheduledFor), o.Status, dash(id(o.EventID)), dash(o.Topic), dash(moment(o.FiredAt)), strconv.Itoa(o.RetryCount),
			dash(o.FailureReason),
		}
	},
	empty: "no occurrences yet",
}
