package cli

import (
	"context"

	"github.com/queued/queued/client"
)

// AuditCmd lists the audit.
type AuditCmd struct {
	server `embed:""`
	Actor  string `placeholder:"WHO" help:"Only what this one did: key: and the id of a key, QUEUED_API_KEY, or a role of the database."`
	Action string `placeholder:"ACTION" help:"Only this action, such as key.create, or those with a beginning: 'key.*'."`
	Target string `placeholder:"NAME" help:"Only what was done to this, such as the name of a queue."`
	From   string `placeholder:"TIME" help:"Only what was done at or after this time: RFC 3339, or how long ago, such as 7d."`
	To     string `placeholder:"TIME" help:"Only what was done before this time."`
	Limit  int    `short:"n" default:"100" placeholder:"N" min:"0" help:"How many actions to list; 0 for all (default 100)."`
}

// Help returns the text below the usage.
func (*AuditCmd) Help() string {
	return examples(`queued audit --from 7d`, `queued audit --action 'key.*' -o jsonl`, `queued audit --target mail`) + "\nIt needs a key with the scope admin."
}

// Run lists the actions, latest first.
func (c *AuditCmd) Run(ctx context.Context, env *Env) error {
	from, err := parseTime("from", c.From, env.Now())
	if err != nil {
		return err
	}
	to, err := parseTime("to", c.To, env.Now())
	if err != nil {
		return err
	}
	conn, err := c.client()
	if err != nil {
		return err
	}
	defer conn.Close()
	return listSome(env, c.Output, c.Limit, auditView, conn.ListAudit(ctx, client.AuditFilter{
		Actor: c.Actor, Action: c.Action, Target: c.Target, From: from, To: to, PageSize: pageSize(c.Limit),
	}))
}

var auditView = view[client.AuditedAction]{
	columns: columns("AT@", "ACTOR…", "ROLE?", "ACTION", "TARGET…", "DETAIL…"),
	row: func(a client.AuditedAction) []string {
		return []string{moment(a.At), a.Actor, a.Role, a.Action, dash(a.Target), string(a.Detail)}
	},
	empty: "no actions in the audit",
}
