package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/queued/queued/client"
)

// PushCmd is about where the events of a queue are pushed to.
type PushCmd struct {
	Get        pushGetCmd        `cmd:"" default:"withargs" help:"Show where the events of a queue are pushed to, and how the endpoint does; what \"queued push QUEUE\" does."`
	Set        pushSetCmd        `cmd:"" help:"Push the events of a queue, or change settings of the push; the others stay."`
	Deliveries pushDeliveriesCmd `cmd:"" help:"List the latest attempts to push the events of a queue."`
	Test       pushTestCmd       `cmd:"" help:"Send a test event to the endpoint. Nothing is stored."`
	Rotate     pushRotateCmd     `cmd:"" help:"Give the push another secret, which is shown once."`
	Enable     pushEnableCmd     `cmd:"" help:"Begin anew at once: the push is disabled, or its endpoint failed or asked for a pause."`
	Delete     pushDeleteCmd     `cmd:"" help:"Push no more. The events of the queue stay."`
}

// push makes a call about the push of the queue and shows the push that it returns.
func (c *queueArg) push(env *Env, call func(*client.Client) (client.Push, error)) error {
	conn, err := c.client()
	if err != nil {
		return err
	}
	defer conn.Close()
	push, err := call(conn)
	if err != nil {
		return err
	}
	if push.Secret != "" && env.format(c.Output) == formatTable {
		env.notef("the secret is shown this once; give it to those who receive")
	}
	return show(env, c.Output, push, pushFields)
}

func pushFields(p client.Push) [][2]string {
	statuses := make([]string, len(p.FinalStatuses))
	for i, status := range p.FinalStatuses {
		statuses[i] = strconv.Itoa(status)
	}
	failures := ""
	if p.Failures > 0 {
		failures = strconv.Itoa(p.Failures)
	}
	fields := [][2]string{
		{"queue", p.Queue},
		{"url", p.URL},
		{"format", p.Format},
		{"status", p.Status},
		{"secret", p.Secret},
		{"headers", strings.Join(p.Headers, ", ")},
		{"timeout", span(p.Timeout)},
		{"at a time", strconv.Itoa(p.MaxInFlight)},
		{"rate", rateText(p.Rate)},
		{"final statuses", strings.Join(statuses, ", ")},
		{"disable after", span(p.DisableAfter)},
		{"failures in a row", failures},
		{"failing since@", moment(p.FailingSince)},
		{"last failure@", moment(p.LastFailureAt)},
		{"last error", p.LastError},
		{"last success@", moment(p.LastSuccessAt)},
		{"tries again@", moment(p.RetryAt)},
		{"disabled@", moment(p.DisabledAt)},
		{"because", p.DisabledReason},
	}
	for _, s := range p.Secrets {
		until := ", signs"
		if !s.LiveUntil.IsZero() {
			until = ", signs until " + moment(s.LiveUntil)
		}
		fields = append(fields, [2]string{"secret made@", moment(s.CreatedAt) + until})
	}
	return append(fields, [2]string{"version", fmt.Sprint(p.Version)}, [2]string{"changed@", moment(p.UpdatedAt)})
}

type pushGetCmd struct {
	queueArg `embed:""`
}

// Help returns the text below the usage.
func (*pushGetCmd) Help() string {
	return examples(`queued push orders`, `queued push orders -o json | jq -r .status`) + "\nThe exit code is 3 if the queue does not push."
}

// Run shows the push.
func (c *pushGetCmd) Run(ctx context.Context, env *Env) error {
	return c.push(env, func(conn *client.Client) (client.Push, error) { return conn.GetPush(ctx, c.Queue) })
}

type pushSetCmd struct {
	queueArg      `embed:""`
	To            *string        `aliases:"endpoint" placeholder:"URL" help:"Where each event is sent to by a POST. A queue that does not push yet needs it."`
	Format        string         `placeholder:"FORMAT" enum:",standard,cloudevents,event" default:"" help:"The body: standard, which is type, timestamp and data; cloudevents; or event, the event itself."`
	Header        []string       `short:"H" sep:"none" placeholder:"'NAME: VALUE'" help:"A further header field; can be repeated. Those given replace all there are."`
	NoHeaders     bool           `help:"Send no further header fields."`
	TimeLimit     *time.Duration `placeholder:"DURATION" help:"What a request may take, from 1s to 5m."`
	MaxInFlight   *int           `placeholder:"N" help:"How many requests may be under way at a time, up to 1000."`
	Rate          *float64       `placeholder:"N" help:"How many requests a second there may be; 0 for no limit."`
	Burst         *int           `placeholder:"N" help:"How many requests there may be at once under --rate; those of a second if it is not given."`
	FinalStatuses *string        `placeholder:"STATUSES" help:"The statuses after which an event is not tried again, such as 422,400; none for none."`
	DisableAfter  *time.Duration `placeholder:"DURATION" help:"How long the endpoint may fail until nothing is pushed any more, from 12h to 8760h."`
}

// Help returns the text below the usage.
func (*pushSetCmd) Help() string {
	return examples(
		`queued push set orders --to https://example.com/hooks/orders`,
		`queued push set orders --max-in-flight 50 --rate 200 --final-statuses 422`,
		`queued push set orders -H "Authorization: Bearer $TOKEN"`,
	) + "\nThe secret of a push that is made is shown this once. If somebody else changes the push at the same time, the command fails and changes nothing."
}

// Run sets the push.
func (c *pushSetCmd) Run(ctx context.Context, env *Env) error {
	if c.To == nil && c.Format == "" && c.Header == nil && !c.NoHeaders && c.TimeLimit == nil && c.MaxInFlight == nil && c.Rate == nil && c.Burst == nil &&
		c.FinalStatuses == nil && c.DisableAfter == nil {
		return usagef("push set needs a setting to change, such as --to")
	}
	return c.push(env, func(conn *client.Client) (client.Push, error) {
		push, err := conn.GetPush(ctx, c.Queue)
		switch {
		case errors.Is(err, client.ErrNotFound) && c.To == nil:
			return push, usagef("the queue %q does not push yet; say where with --to", c.Queue)
		case err != nil && !errors.Is(err, client.ErrNotFound):
			return push, err
		}
		settings := client.PushSettings{
			URL: push.URL, Format: push.Format, Timeout: push.Timeout, MaxInFlight: push.MaxInFlight, Rate: push.Rate,
			FinalStatuses: push.FinalStatuses, DisableAfter: push.DisableAfter,
		}
		if err := c.change(&settings); err != nil {
			return push, err
		}
		if push.Version == 0 {
			push, err = conn.CreatePush(ctx, c.Queue, settings)
		} else {
			push, err = conn.PutPush(ctx, c.Queue, settings, push.Version)
		}
		return push, renameFields(err)
	})
}

// renameFields has an error of the server name the flags of pushSetCmd: --url and --timeout are those of the connection.
func renameFields(err error) error {
	if e, ok := errors.AsType[*client.Error](err); ok {
		for i, field := range e.Errors {
			switch strings.TrimPrefix(field.Pointer, "#") {
			case "/url":
				e.Errors[i].Pointer = "/to"
			case "/timeout":
				e.Errors[i].Pointer = "/time_limit"
			}
		}
	}
	return err
}

// change applies the flags to the settings.
func (c *pushSetCmd) change(settings *client.PushSettings) (err error) {
	set(&settings.URL, c.To)
	if c.Format != "" {
		settings.Format = c.Format
	}
	if settings.Headers, err = parseHeaders(c.Header); err != nil {
		return err
	}
	if c.NoHeaders {
		if settings.Headers != nil {
			return usagef("--no-headers goes without --header")
		}
		settings.Headers = map[string]string{}
	}
	if c.FinalStatuses != nil {
		if settings.FinalStatuses, err = parseStatuses(*c.FinalStatuses); err != nil {
			return err
		}
	}
	for name, value := range map[string]bool{
		"time-limit":    c.TimeLimit != nil && *c.TimeLimit <= 0,
		"max-in-flight": c.MaxInFlight != nil && *c.MaxInFlight <= 0,
		"disable-after": c.DisableAfter != nil && *c.DisableAfter <= 0,
		"burst":         c.Burst != nil && *c.Burst <= 0,
	} {
		if value { // which would stand for the default
			return usagef("--%s: must be more than zero", name)
		}
	}
	set(&settings.Timeout, c.TimeLimit)
	set(&settings.MaxInFlight, c.MaxInFlight)
	set(&settings.DisableAfter, c.DisableAfter)
	switch {
	case c.Rate != nil && *c.Rate == 0:
		settings.Rate = nil
	case c.Rate != nil:
		settings.Rate = &client.RateLimit{PerSecond: *c.Rate}
	}
	if c.Burst != nil {
		if settings.Rate == nil {
			return usagef("--burst needs --rate")
		}
		settings.Rate = &client.RateLimit{PerSecond: settings.Rate.PerSecond, Burst: *c.Burst}
	}
	return nil
}

// parseStatuses returns the statuses that a flag says.
func parseStatuses(text string) (statuses []int, err error) {
	if text == "none" || text == "" {
		return nil, nil
	}
	for word := range strings.SplitSeq(text, ",") {
		status, err := strconv.Atoi(strings.TrimSpace(word))
		if err != nil {
			return nil, usagef("--final-statuses is %q; want numbers such as 422,400, or none", text)
		}
		statuses = append(statuses, status)
	}
	return statuses, nil
}

type pushTestCmd struct {
	queueArg `embed:""`
}

// Help returns the text below the usage.
func (*pushTestCmd) Help() string {
	return examples(`queued push test orders`) + "\nThe exit code is 1 if the answer of the endpoint is not 2xx, or there is none."
}

// Run tests the push.
func (c *pushTestCmd) Run(ctx context.Context, env *Env) error {
	conn, err := c.client()
	if err != nil {
		return err
	}
	defer conn.Close()
	result, err := conn.TestPush(ctx, c.Queue)
	if err != nil {
		return err
	}
	if err := show(env, c.Output, result, pushTestFields); err != nil {
		return err
	}
	if !result.Delivered {
		return errors.New("the test event was not delivered")
	}
	return nil
}

func pushTestFields(r client.PushTest) [][2]string {
	delivered, status := "no", ""
	if r.Delivered {
		delivered = "yes"
	}
	if r.Status > 0 {
		status = strconv.Itoa(r.Status)
	}
	took := time.Duration(r.MS) * time.Millisecond
	return [][2]string{{"delivered", delivered}, {"status", status}, {"error", r.Error}, {"took", took.String()}, {"answer", r.Excerpt}}
}

type pushRotateCmd struct {
	queueArg `embed:""`
	Keep     *time.Duration `placeholder:"DURATION" help:"How long the secrets before go on signing, too: 24h if it is not given; 0 ends them at once."`
}

// Help returns the text below the usage.
func (*pushRotateCmd) Help() string {
	return examples(`queued push rotate orders --keep 72h`, `queued push rotate orders --keep 0s -o json | jq -r .secret`) +
		"\nThe command is not repeated when its answer is lost: rotate again."
}

// Run rotates the secret.
func (c *pushRotateCmd) Run(ctx context.Context, env *Env) error {
	var keep time.Duration // 24 hours for package client
	switch {
	case c.Keep == nil:
	case *c.Keep < 0:
		return usagef("--keep: must not be negative")
	case *c.Keep == 0:
		keep = -1 // which is not at all for package client
	default:
		keep = *c.Keep
	}
	return c.push(env, func(conn *client.Client) (client.Push, error) { return conn.RotatePushSecret(ctx, c.Queue, keep) })
}

type pushEnableCmd struct {
	queueArg `embed:""`
}

// Help returns the text below the usage.
func (*pushEnableCmd) Help() string { return examples(`queued push enable orders`) }

// Run enables the push.
func (c *pushEnableCmd) Run(ctx context.Context, env *Env) error {
	return c.push(env, func(conn *client.Client) (client.Push, error) { return conn.EnablePush(ctx, c.Queue) })
}

type pushDeleteCmd struct {
	queueArg `embed:""`
	assent   `embed:""`
}

// Help returns the text below the usage.
func (*pushDeleteCmd) Help() string {
	return examples(`queued push delete orders --yes`) + "\nThe secrets are forgotten. The policy of the queue stays."
}

// Run deletes the push, once somebody has agreed.
func (c *pushDeleteCmd) Run(ctx context.Context, env *Env) error {
	if err := c.confirm(ctx, env, "Push the events of the queue "+strconv.Quote(c.Queue)+" no more, and forget the secrets?"); err != nil {
		return err
	}
	conn, err := c.client()
	if err != nil {
		return err
	}
	defer conn.Close()
	return conn.DeletePush(ctx, c.Queue, 0)
}
