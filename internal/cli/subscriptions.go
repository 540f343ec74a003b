package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/queued/queued/client"
)

// SubscriptionsCmd is about subscriptions.
type SubscriptionsCmd struct {
	List   subscriptionsListCmd  `cmd:"" default:"withargs" help:"List subscriptions; what \"queued subscriptions\" does."`
	Show   subscriptionShowCmd   `cmd:"" help:"Show a subscription with its filters."`
	Put    subscriptionPutCmd    `cmd:"" help:"Make a subscription, or replace its filters and settings."`
	Read   subscriptionReadCmd   `cmd:"" help:"Read the next events of a subscription, with a cursor to commit."`
	Commit subscriptionCommitCmd `cmd:"" help:"Commit a cursor: the events before it are not read again."`
	Seek   subscriptionSeekCmd   `cmd:"" help:"Make a subscription go on from another place."`
	Replay subscriptionReplayCmd `cmd:"" help:"Deliver a part of the log into the queue of a subscription once more."`
	Pause  subscriptionPauseCmd  `cmd:"" help:"Pause a subscription: it gets nothing until it is resumed."`
	Resume subscriptionResumeCmd `cmd:"" help:"Resume a subscription."`
	Delete subscriptionDeleteCmd `cmd:"" help:"Delete a subscription."`
}

type subscriptionsListCmd struct {
	server `embed:""`
}

// Help returns the text below the usage.
func (*subscriptionsListCmd) Help() string {
	return examples(`queued subscriptions`, `queued subscriptions -o jsonl | jq -r 'select(.lag.seconds > 60) | .name'`)
}

// Run lists the subscriptions.
func (c *subscriptionsListCmd) Run(ctx context.Context, env *Env) error {
	conn, err := c.client()
	if err != nil {
		return err
	}
	defer conn.Close()
	return list(env, c.Output, subscriptionsView, conn.ListSubscriptions(ctx))
}

var subscriptionsView = view[client.Subscription]{
	columns: columns("NAME…", "STATE", "POSITION", "LAG", "BEHIND", "GAPS", "FILTERS", "DELIVERS TO…"),
	row: func(s client.Subscription) []string {
		return []string{
			s.Name, s.State, fmt.Sprint(s.Position), fmt.Sprint(s.Lag.Events), dash(span(lagTime(s.Lag))), fmt.Sprint(s.Gaps), strconv.Itoa(s.FilterCount),
			dash(deliveredTo(s)),
		}
	},
	empty: "no subscriptions",
}

// lagTime returns how long ago the first event was published that a subscription has not got.
func lagTime(l client.Lag) time.Duration { return time.Duration(l.Seconds * float64(time.Second)) }

func deliveredTo(s client.Subscription) string {
	if s.Deliver == nil {
		return ""
	}
	return s.Deliver.Queue
}

// subscriptionArg is the subscription that a command is about.
type subscriptionArg struct {
	server `embed:""`
	Name   string `arg:"" help:"The name of the subscription."`
}

// call makes a call about the subscription and shows the subscription that it returns.
func (c *subscriptionArg) call(env *Env, send func(*client.Client) (client.Subscription, error)) error {
	return showAnswer(env, &c.server, subscriptionFields, send)
}

func subscriptionFields(s client.Subscription) [][2]string {
	fields := [][2]string{
		{"name", s.Name},
		{"state", s.State},
		{"position", fmt.Sprint(s.Position)},
		{"head", fmt.Sprint(s.Head)},
		{"lag", eventsOf(strconv.FormatInt(s.Lag.Events, 10))},
		{"behind", span(lagTime(s.Lag))},
		{"gaps", fmt.Sprint(s.Gaps)},
		{"held until@", moment(s.HeldUntil)},
		{"delivers to", deliveredTo(s)},
	}
	if s.Waiting != nil {
		fields = append(fields, [2]string{"waiting there", fmt.Sprintf("%d of at most %d", *s.Waiting, s.MaxWaiting)})
	}
	if s.Replays != nil && *s.Replays > 0 {
		fields = append(fields, [2]string{"replays", fmt.Sprint(*s.Replays)})
	}
	fields = append(fields, [2]string{"expires@", moment(s.ExpiresAt)}, [2]string{"made@", moment(s.CreatedAt)}, [2]string{"changed@", moment(s.UpdatedAt)})
	for _, f := range s.Filters {
		text := strings.Join(f.Topics, " ")
		if f.Match != nil {
			text = strings.TrimSpace(text + " " + string(f.Match))
		}
		if text == "" {
			text = "everything"
		}
		fields = append(fields, [2]string{"filter " + f.Name, text})
	}
	return fields
}

type subscriptionShowCmd struct {
	subscriptionArg `embed:""`
}

// Help returns the text below the usage.
func (*subscriptionShowCmd) Help() string { return examples(`queued subscriptions show billing`) }

// Run shows the subscription.
func (c *subscriptionShowCmd) Run(ctx context.Context, env *Env) error {
	return c.call(env, func(conn *client.Client) (client.Subscription, error) { return conn.GetSubscription(ctx, c.Name) })
}

type subscriptionPutCmd struct {
	subscriptionArg `embed:""`
	Topic           []string      `short:"t" sep:"none" placeholder:"PATTERN" help:"A topic, or a pattern such as order.**; can be repeated. All topics if there is none."`
	Match           jsonValue     `placeholder:"JSON" help:"Only events whose payload matches this pattern of Amazon EventBridge's language."`
	Filters         jsonValue     `placeholder:"JSON" help:"All filters, as the API takes them, in place of --topic and --match: an array of objects with name, topics and match."`
	Deliver         string        `placeholder:"QUEUE" help:"Insert the events into this queue; without it the subscription is read."`
	DeliverType     string        `placeholder:"TYPE" help:"The type of the inserted events."`
	DeliverPriority int32         `placeholder:"N" help:"The priority of the inserted events; lower numbers are claimed first."`
	DeliverGroup    string        `name:"deliver-group-from" placeholder:"WHERE" help:"Where the group of each event is: key, that of the publication; topic; or a JSON pointer into the payload, such as /tenant."`
	MaxWaiting      int           `placeholder:"N" min:"1" max:"1000000000" help:"How many events may be due in the queue before nothing more is delivered."`
	Start           string        `placeholder:"PLACE" help:"Where a new subscription begins: after a position, at earliest, or at latest, the default."`
	ExpiresAfter    time.Duration `placeholder:"DURATION" min:"1s" max:"87600h" help:"Delete the subscription when nobody has used it for so long; never if it is not given."`
}

// Help returns the text below the usage.
func (*subscriptionPutCmd) Help() string {
	return examples(
		`queued subscriptions put billing -t 'order.**' --match '{"total": [{"numeric": [">", 100]}]}'`,
		`queued subscriptions put mailer -t user.registered --deliver mail --deliver-type mail.welcome`,
		`queued subscriptions put audit --start earliest --filters '[{"name": "logins", "topics": ["user.login"]}, {"name": "all-eu", "match": {"region": ["eu"]}}]'`,
	) + "\nThe filters and settings are replaced as a whole; the position stays."
}

// Run puts the subscription.
func (c *subscriptionPutCmd) Run(ctx context.Context, env *Env) error {
	settings := client.SubscriptionSettings{MaxWaiting: c.MaxWaiting, ExpiresAfter: c.ExpiresAfter}
	switch {
	case c.Filters.raw() == nil:
		settings.Filters = []client.SubscribedFilter{{LogFilter: client.LogFilter{Topics: c.Topic, Match: c.Match.raw()}}}
	case len(c.Topic) > 0 || c.Match.raw() != nil:
		return usagef("--filters goes without --topic and --match")
	default:
		if err := json.Unmarshal(c.Filters.raw(), &settings.Filters); err != nil {
			return usagef("--filters: want an array of objects with name, topics and match: %s", err)
		}
	}
	if c.Deliver != "" {
		settings.Deliver = &client.Delivery{Queue: c.Deliver, Type: c.DeliverType, Priority: c.DeliverPriority, GroupFrom: c.DeliverGroup}
	} else if c.DeliverType != "" || c.DeliverPriority != 0 || c.DeliverGroup != "" || c.MaxWaiting != 0 {
		return usagef("--deliver-type, --deliver-priority, --deliver-group-from and --max-waiting need --deliver")
	}
	if c.Start != "" {
		var err error
		if settings.Start, err = parsePlace("--start", c.Start); err != nil {
			return err
		}
	}
	return c.call(env, func(conn *client.Client) (client.Subscription, error) {
		return conn.PutSubscription(ctx, c.Name, settings, 0)
	})
}

type subscriptionReadCmd struct {
	subscriptionArg `embed:""`
	Limit           int           `short:"n" default:"100" placeholder:"N" min:"1" max:"1000" help:"How many events to read at most, 1 to 1000 (default 100)."`
	Wait            time.Duration `short:"w" placeholder:"DURATION" min:"0s" max:"60s" help:"How long to wait for the first event, up to 60s."`
	Lease           time.Duration `short:"l" placeholder:"DURATION" min:"1s" max:"24h" help:"Keep the events from others for so long, or until the cursor is committed."`
	After           string        `placeholder:"CURSOR" help:"Read ahead, after the cursor of an earlier read."`
	Commit          bool          `help:"Commit at once, when the events are written: they are not read again."`
}

// Help returns the text below the usage.
func (*subscriptionReadCmd) Help() string {
	return examples(
		`queued subscriptions read billing --commit -o jsonl | ./bill.sh`,
		`page=$(queued subscriptions read billing -o json) && ./bill.sh <<<"$page" && queued subscriptions commit billing "$(jq -r .cursor <<<"$page")"`,
	) + "\nThe formats table and jsonl have the events; json has the whole page, with the cursor. The exit code is 3 if there is nothing to read."
}

// Run reads a page, and commits it if that is wanted.
func (c *subscriptionReadCmd) Run(ctx context.Context, env *Env) error {
	conn, err := c.client()
	if err != nil {
		return err
	}
	defer conn.Close()
	page, err := conn.ReadSubscription(ctx, c.Name, client.SubscriptionRead{After: c.After, Limit: c.Limit, Wait: c.Wait, Lease: c.Lease})
	if err != nil {
		return err
	}
	if page.Gap != nil {
		env.notef("gap: %s", gapText(page.Gap))
	}
	if err := c.write(env, page); err != nil {
		return err
	}
	if c.Commit && page.Cursor != "" {
		if _, err := conn.CommitCursor(ctx, c.Name, page.Cursor); err != nil {
			return err
		}
	}
	if len(page.Events) == 0 {
		switch {
		case page.Paused:
			return &nothingError{"the subscription is paused"}
		case !page.HeldUntil.IsZero():
			return &nothingError{"somebody else reads the subscription under a lease until " + moment(page.HeldUntil)}
		}
		return &nothingError{"nothing to read"}
	}
	return nil
}

// nothingError says why there is nothing to read.
type nothingError struct{ text string }

func (e *nothingError) Error() string { return e.text }

// Is makes it an error of a call that got nothing, for [ExitCode].
func (e *nothingError) Is(target error) bool { return target == errNothing }

func (c *subscriptionReadCmd) write(env *Env, page client.SubscribedPage) error {
	switch env.format(c.Output) {
	case formatJSON:
		return show(env, formatJSON, page, nil)
	case formatJSONL:
		return list(env, formatJSONL, publishedView, all(page.Events))
	}
	if len(page.Events) == 0 {
		return nil
	}
	if err := list(env, formatTable, publishedView, all(page.Events)); err != nil {
		return err
	}
	if !c.Commit {
		env.notef("cursor %s", page.Cursor)
	}
	return nil
}

var publishedView = view[client.PublishedEvent]{
	columns: columns("POSITION", "PUBLISHED@", "TOPIC…", "KEY…", "EVENT…"),
	row: func(e client.PublishedEvent) []string {
		return []string{fmt.Sprint(e.Position), moment(e.PublishedAt), e.Topic, dash(e.Key), string(e.Payload)}
	},
	empty: "no events",
}

// movedTo is the answer of commands that move a subscription.
type movedTo struct {
	Position int64 `json:"position"`
}

// move makes a call that moves the subscription and shows its position.
func (c *subscriptionArg) move(env *Env, call func(*client.Client) (int64, error)) error {
	conn, err := c.client()
	if err != nil {
		return err
	}
	defer conn.Close()
	n, err := call(conn)
	if err != nil {
		return err
	}
	return show(env, c.Output, movedTo{n}, func(p movedTo) [][2]string { return [][2]string{{"position", fmt.Sprint(p.Position)}} })
}

type subscriptionCommitCmd struct {
	subscriptionArg `embed:""`
	Cursor          string `arg:"" help:"The cursor of a read."`
}

// Help returns the text below the usage.
func (*subscriptionCommitCmd) Help() string {
	return examples(`queued subscriptions commit billing CURSOR`) + "\nIt fails if somebody else has moved the subscription since the read."
}

// Run commits the cursor.
func (c *subscriptionCommitCmd) Run(ctx context.Context, env *Env) error {
	return c.move(env, func(conn *client.Client) (int64, error) { return conn.CommitCursor(ctx, c.Name, c.Cursor) })
}

type subscriptionSeekCmd struct {
	subscriptionArg `embed:""`
	To              string `arg:"" help:"Where to go on: after a position, at earliest, or at latest; or the time since when, such as 2026-02-03T04:05:06Z."`
}

// Help returns the text below the usage.
func (*subscriptionSeekCmd) Help() string {
	return examples(`queued subscriptions seek billing earliest`, `queued subscriptions seek billing 1041`, `queued subscriptions seek billing 2026-02-03T00:00:00Z`)
}

// Run moves the subscription.
func (c *subscriptionSeekCmd) Run(ctx context.Context, env *Env) error {
	to, err := placeOrTime("the place", c.To)
	if err != nil {
		return err
	}
	return c.move(env, func(conn *client.Client) (int64, error) { return conn.SeekSubscription(ctx, c.Name, to) })
}

// placeOrTime is parsePlace, and takes a time, too.
func placeOrTime(name, text string) (client.Place, error) {
	if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return client.Since(at), nil
	}
	return parsePlace(name, text)
}

type subscriptionReplayCmd struct {
	subscriptionArg `embed:""`
	From            string `required:"" placeholder:"PLACE" help:"Where the part begins: after a position, at earliest, or with what was published since a time."`
	To              string `placeholder:"PLACE" help:"Where the part ends; at the end of the log if it is not given."`
	DryRun          bool   `help:"Only count the events."`
}

// Help returns the text below the usage.
func (*subscriptionReplayCmd) Help() string {
	return examples(`queued subscriptions replay mailer --from 2026-02-03T00:00:00Z --dry-run`)
}

// replayed is the answer to subscriptionReplayCmd.
type replayed struct {
	Events int64 `json:"events"`
}

// Run replays the part.
func (c *subscriptionReplayCmd) Run(ctx context.Context, env *Env) error {
	replay := client.Replay{DryRun: c.DryRun}
	var err error
	if replay.From, err = placeOrTime("--from", c.From); err != nil {
		return err
	}
	if c.To != "" {
		if replay.To, err = placeOrTime("--to", c.To); err != nil {
			return err
		}
	}
	conn, err := c.client()
	if err != nil {
		return err
	}
	defer conn.Close()
	n, err := conn.ReplaySubscription(ctx, c.Name, replay)
	if err != nil {
		return err
	}
	return show(env, c.Output, replayed{n}, func(r replayed) [][2]string { return [][2]string{{"events", fmt.Sprint(r.Events)}} })
}

type subscriptionPauseCmd struct {
	subscriptionArg `embed:""`
}

// Help returns the text below the usage.
func (*subscriptionPauseCmd) Help() string { return examples(`queued subscriptions pause billing`) }

// Run pauses the subscription.
func (c *subscriptionPauseCmd) Run(ctx context.Context, env *Env) error {
	return c.call(env, func(conn *client.Client) (client.Subscription, error) { return conn.PauseSubscription(ctx, c.Name) })
}

type subscriptionResumeCmd struct {
	subscriptionArg `embed:""`
}

// Help returns the text below the usage.
func (*subscriptionResumeCmd) Help() string { return examples(`queued subscriptions resume billing`) }

// Run resumes the subscription.
func (c *subscriptionResumeCmd) Run(ctx context.Context, env *Env) error {
	return c.call(env, func(conn *client.Client) (client.Subscription, error) { return conn.ResumeSubscription(ctx, c.Name) })
}

type subscriptionDeleteCmd struct {
	subscriptionArg `embed:""`
	assent          `embed:""`
}

// Help returns the text below the usage.
func (*subscriptionDeleteCmd) Help() string {
	return examples(`queued subscriptions delete billing --yes`) + "\nIts position is forgotten. Events that were delivered into a queue stay there."
}

// Run deletes the subscription, once somebody has agreed.
func (c *subscriptionDeleteCmd) Run(ctx context.Context, env *Env) error {
	if err := c.confirm(ctx, env, "Delete the subscription "+strconv.Quote(c.Name)+" and forget its position?"); err != nil {
		return err
	}
	conn, err := c.client()
	if err != nil {
		return err
	}
	defer conn.Close()
	return conn.DeleteSubscription(ctx, c.Name, 0)
}
