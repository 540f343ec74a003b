package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/queued/queued/client"
)

// GroupsCmd is about the groups of a queue.
type GroupsCmd struct {
	List    groupsListCmd   `cmd:"" default:"withargs" help:"List the groups of a queue; what \"queued groups QUEUE\" does."`
	Show    groupShowCmd    `cmd:"" help:"Show a group: what waits in it, what for, and what is set for it."`
	Set     groupSetCmd     `cmd:"" help:"Change what is set for a group; the rest stays."`
	Pause   groupPauseCmd   `cmd:"" help:"Pause a group: none of its events can be claimed until it is resumed."`
	Resume  groupResumeCmd  `cmd:"" help:"End the pause and the hold of a group."`
	Hold    groupHoldCmd    `cmd:"" help:"Hold a group: none of its events can be claimed for a time."`
	Unblock groupUnblockCmd `cmd:"" help:"Have a group in order go on that stopped for an event that failed."`
	Delete  groupDeleteCmd  `cmd:"" help:"End all that is set for a group. Its events stay."`
}

type groupsListCmd struct {
	queueArg `embed:""`
	Blocked  bool `help:"Only groups whose events wait for something."`
	Longest  bool `help:"Those first in which the most events wait."`
	Limit    int  `short:"n" default:"100" placeholder:"N" min:"0" help:"How many groups to list; 0 for all, or 1000 with --longest (default 100)."`
}

// Help returns the text below the usage.
func (*groupsListCmd) Help() string {
	return examples(`queued groups mail`, `queued groups mail --blocked --longest -n 10`, `queued groups mail -o jsonl | jq -r 'select(.paused) | .group'`) +
		"\nUp to 10,000 events of each kind are counted. Of a queue with more than a thousand groups, --longest finds those with the longest lines by a sample."
}

// Run lists the groups.
func (c *groupsListCmd) Run(ctx context.Context, env *Env) error {
	filter := client.GroupFilter{PageSize: pageSize(c.Limit)}
	v := groupsView
	if c.Blocked {
		filter.State, v.empty = "blocked", "no group is blocked"
	}
	if c.Longest {
		filter.Sort = "waiting" // in one page
	}
	conn, err := c.client()
	if err != nil {
		return err
	}
	defer conn.Close()
	return listSome(env, c.Output, c.Limit, v, conn.ListGroups(ctx, c.Queue, filter))
}

var groupsView = view[client.Group]{
	columns: columns("GROUP…", "WAITING", "ADMITTED", "LEASED", "SCHEDULED", "DUE SINCE@", "BLOCKED BY", "LIMIT?", "PAUSED?", "HELD UNTIL@?"),
	row: func(g client.Group) []string {
		limit := ""
		if g.Concurrency > 0 {
			limit = strconv.Itoa(g.Concurrency)
		}
		return []string{
			g.Group, strconv.Itoa(g.Waiting), strconv.Itoa(g.Admitted), strconv.Itoa(g.Leased), strconv.Itoa(g.Scheduled), dash(optional(g.OldestAt)),
			dash(blockedBy(g.BlockedBy)), dash(limit), dash(yes(g.Paused)), dash(optional(g.HeldUntil)),
		}
	},
	empty: "no groups",
}

// optional returns a time as others are written; nil: empty.
func optional(t *time.Time) string {
	if t == nil {
		return ""
	}
	return moment(*t)
}

// blockedBy says what events wait for; empty: for nothing.
func blockedBy(b *client.BlockedBy) string {
	switch {
	case b == nil:
		return ""
	case b.Limit > 0:
		return b.Reason + " " + strconv.Itoa(b.Limit)
	case b.EventID > 0:
		return b.Reason + " " + strconv.FormatInt(b.EventID, 10)
	}
	return b.Reason
}

// groupArg is the group that a command is about.
type groupArg struct {
	queueArg `embed:""`
	Group    string `arg:"" help:"The name of the group."`
}

func groupFields(g client.Group) [][2]string {
	limit, paused, updated := "that of the queue", "no", "never"
	if g.Concurrency > 0 {
		limit = strconv.Itoa(g.Concurrency)
	}
	if g.Paused {
		paused = "yes"
	}
	if g.UpdatedAt != nil {
		updated = moment(*g.UpdatedAt)
	}
	return [][2]string{
		{"group", g.Group},
		{"waiting", strconv.Itoa(g.Waiting)},
		{"admitted", strconv.Itoa(g.Admitted)},
		{"leased", strconv.Itoa(g.Leased)},
		{"scheduled", strconv.Itoa(g.Scheduled)},
		{"due since@", optional(g.OldestAt)},
		{"next due@", optional(g.NextAt)},
		{"blocked by", dash(blockedBy(g.BlockedBy))},
		{"limit", limit},
		{"rate", cmp.Or(claimRateText(g.Rate), "that of the queue")},
		{"paused", paused},
		{"held until@", optional(g.HeldUntil)},
		{"last set@", updated},
	}
}

// change changes what is set for the group, and shows it.
func (c *groupArg) change(ctx context.Context, env *Env, change func(*client.GroupSettings) error) error {
	return showAnswer(env, &c.server, groupFields, func(conn *client.Client) (client.Group, error) {
		changed, err := conn.ChangeGroup(ctx, c.Queue, c.Group, change)
		if errors.Is(err, client.ErrPreconditionFailed) {
			err = fmt.Errorf("what is set for the group %q was changed by others again and again between reading and writing it; nothing was changed", c.Group)
		}
		return changed, err
	})
}

type groupShowCmd struct {
	groupArg `embed:""`
}

// Help returns the text below the usage.
func (*groupShowCmd) Help() string { return examples(`queued groups show mail tenant-7`) }

// Run shows the group.
func (c *groupShowCmd) Run(ctx context.Context, env *Env) error {
	return showAnswer(env, &c.server, groupFields, func(conn *client.Client) (client.Group, error) { return conn.GetGroup(ctx, c.Queue, c.Group) })
}

type groupSetCmd struct {
	groupArg    `embed:""`
	Concurrency *limitValue `placeholder:"N" min:"0" max:"10000" help:"How many events of the group are leased at once; none for as many as the policy of the queue says."`
	rateFlags   `embed:""`
}

// Help returns the text below the usage.
func (*groupSetCmd) Help() string {
	return examples(`queued groups set mail tenant-7 --concurrency 2`, `queued groups set mail tenant-7 --concurrency none`, `queued groups set mail tenant-7 --rate 10/1s`) +
		"\nA --rate of none leaves it to the policy of the queue."
}

// Run sets the limits of the group.
func (c *groupSetCmd) Run(ctx context.Context, env *Env) error {
	if c.Concurrency == nil && c.rateFlags == (rateFlags{}) {
		return usagef("groups set needs --concurrency or --rate")
	}
	return c.groupArg.change(ctx, env, func(s *client.GroupSettings) error {
		set(&s.Concurrency, (*int)(c.Concurrency))
		return c.rateFlags.change(&s.Rate)
	})
}

type groupPauseCmd struct {
	groupArg `embed:""`
}

// Help returns the text below the usage.
func (*groupPauseCmd) Help() string { return examples(`queued groups pause mail tenant-7`) }

// Run pauses the group.
func (c *groupPauseCmd) Run(ctx context.Context, env *Env) error {
	return c.change(ctx, env, func(s *client.GroupSettings) error {
		s.Paused = true
		return nil
	})
}

type groupResumeCmd struct {
	groupArg `embed:""`
}

// Help returns the text below the usage.
func (*groupResumeCmd) Help() string { return examples(`queued groups resume mail tenant-7`) }

// Run resumes the group.
func (c *groupResumeCmd) Run(ctx context.Context, env *Env) error {
	return c.change(ctx, env, func(s *client.GroupSettings) error {
		s.Paused, s.HeldUntil = false, time.Time{}
		return nil
	})
}

type groupHoldCmd struct {
	groupArg `embed:""`
	For      time.Duration `arg:"" min:"0s" max:"87600h" help:"For how long, such as 30s or 10m."`
}

// Help returns the text below the usage.
func (*groupHoldCmd) Help() string {
	return examples(`queued groups hold mail tenant-7 30s`) + "\nAnother hold takes its place, a shorter one, too."
}

// Run holds the group.
func (c *groupHoldCmd) Run(ctx context.Context, env *Env) error {
	return c.change(ctx, env, func(s *client.GroupSettings) error {
		s.HeldUntil, s.Hold = time.Time{}, c.For
		return nil
	})
}

type groupDeleteCmd struct {
	groupArg `embed:""`
}

// Help returns the text below the usage.
func (*groupDeleteCmd) Help() string { return examples(`queued groups delete mail tenant-7`) }

// Run ends what is set for the group.
func (c *groupDeleteCmd) Run(ctx context.Context, _ *Env) error {
	conn, err := c.client()
	if err != nil {
		return err
	}
	defer conn.Close()
	return conn.DeleteGroup(ctx, c.Queue, c.Group)
}

type groupUnblockCmd struct {
	groupArg `embed:""`
}

// Help returns the text below the usage.
func (*groupUnblockCmd) Help() string {
	return examples(`queued groups unblock mail tenant-7`) + "\nThe events that failed stay in history, and can be requeued, behind the others of their group."
}

// Run has the group go on, and shows it. A group that had not stopped is an error.
func (c *groupUnblockCmd) Run(ctx context.Context, env *Env) error {
	return showAnswer(env, &c.server, groupFields, func(conn *client.Client) (client.Group, error) {
		wasBlocked, err := conn.UnblockGroup(ctx, c.Queue, c.Group)
		if err == nil && !wasBlocked {
			err = fmt.Errorf("the group %q had not stopped for an event that failed", c.Group)
		}
		if err != nil {
			return client.Group{}, err
		}
		return conn.GetGroup(ctx, c.Queue, c.Group)
	})
}
