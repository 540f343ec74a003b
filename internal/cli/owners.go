package cli

import (
	"context"
	"fmt"
	"strconv"

	"github.com/queued/queued/client"
)

// OwnersCmd is about owners of schedules.
type OwnersCmd struct {
	List   ownersListCmd  `cmd:"" default:"withargs" help:"List owners; what \"queued owners\" does."`
	Show   ownerShowCmd   `cmd:"" help:"Show an owner."`
	Put    ownerPutCmd    `cmd:"" help:"Make an owner, or replace its time zone and attributes."`
	Delete ownerDeleteCmd `cmd:"" help:"Delete an owner, and cancel its schedules."`
}

type ownersListCmd struct {
	server `embed:""`
	Limit  int `short:"n" default:"100" placeholder:"N" min:"0" help:"How many owners to list; 0 for all (default 100)."`
}

// Help returns the text below the usage.
func (*ownersListCmd) Help() string { return examples(`queued owners`, `queued owners -n 0 -o jsonl`) }

// Run lists the owners.
func (c *ownersListCmd) Run(ctx context.Context, env *Env) error {
	conn, err := c.client()
	if err != nil {
		return err
	}
	defer conn.Close()
	return listSome(env, c.Output, c.Limit, ownersView, conn.ListOwners(ctx))
}

var ownersView = view[client.Owner]{
	columns: columns("ID…", "TIME ZONE", "CHANGED@?", "ATTRIBUTES…"),
	row: func(o client.Owner) []string {
		return []string{o.ID, o.Timezone, moment(o.UpdatedAt), string(o.Attributes)}
	},
	empty: "no owners",
}

func ownerFields(o client.Owner) [][2]string {
	return [][2]string{
		{"id", o.ID},
		{"time zone", o.Timezone},
		{"attributes", string(o.Attributes)},
		{"version", strconv.FormatInt(o.Version, 10)},
		{"made@", moment(o.CreatedAt)},
		{"changed@", moment(o.UpdatedAt)},
	}
}

// ownerArg is the owner that a command is about.
type ownerArg struct {
	server `embed:""`
	ID     string `arg:"" help:"The id of the owner."`
}

// call makes a call about the owner and shows the owner that it returns.
func (c *ownerArg) call(env *Env, send func(*client.Client) (client.Owner, error)) error {
	return showAnswer(env, &c.server, ownerFields, send)
}

type ownerShowCmd struct {
	ownerArg `embed:""`
}

// Help returns the text below the usage.
func (*ownerShowCmd) Help() string { return examples(`queued owners show ada`) }

// Run shows the owner.
func (c *ownerShowCmd) Run(ctx context.Context, env *Env) error {
	return c.call(env, func(conn *client.Client) (client.Owner, error) { return conn.GetOwner(ctx, c.ID) })
}

type ownerPutCmd struct {
	ownerArg   `embed:""`
	Timezone   string    `required:"" short:"z" placeholder:"ZONE" help:"The time zone, such as Europe/Berlin. Schedules that follow the owner do so at once."`
	Attributes jsonValue `placeholder:"JSON" help:"What else is to be known of the owner, a JSON object; empty if it is not given."`
}

// Help returns the text below the usage.
func (*ownerPutCmd) Help() string {
	return examples(`queued owners put ada --timezone Europe/Berlin`, `queued owners put ada -z Asia/Tokyo --attributes '{"name": "Ada"}'`)
}

// Run puts the owner and shows it.
func (c *ownerPutCmd) Run(ctx context.Context, env *Env) error {
	return c.call(env, func(conn *client.Client) (client.Owner, error) {
		return conn.PutOwner(ctx, c.ID, c.Timezone, c.Attributes.raw(), 0)
	})
}

type ownerDeleteCmd struct {
	ownerArg `embed:""`
	assent   `embed:""`
}

// Help returns the text below the usage.
func (*ownerDeleteCmd) Help() string { return examples(`queued owners delete ada`) }

// Run deletes the owner, once somebody has agreed.
func (c *ownerDeleteCmd) Run(ctx context.Context, env *Env) error {
	if err := c.confirm(ctx, env, fmt.Sprintf("Delete the owner %q and cancel its schedules?", c.ID)); err != nil {
		return err
	}
	conn, err := c.client()
	if err != nil {
		return err
	}
	defer conn.Close()
	return conn.DeleteOwner(ctx, c.ID, 0)
}
