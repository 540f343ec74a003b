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
	export `embed:""`
	Limit  *int `short:"n" placeholder:"N" min:"0" help:"How many actions to list; 0 for all (default 100, and all with --export)."`
}

// Help returns the text below the usage.
func (*AuditCmd) Help() string {
	return examples(`queued audit --from 7d`, `queued audit --action 'key.*' -o jsonl`, `queued audit --target mail`, `queued audit --export csv > audit.csv`) + "\nIt needs a key with the scope admin."
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
	filter := client.AuditFilter{Actor: c.Actor, Action: c.Action, Target: c.Target, From: from, To: to}
	if c.Export != "" {
		return c.write(env, c.Output, c.Limit, func(p client.ExportParams) (client.Exported, error) {
			return conn.ExportAudit(ctx, env.Stdout, filter, p)
		})
	}
	limit := listLimit(c.Limit)
	filter.PageSize = pageSize(limit)
	return listSome(env, c.Output, limit, auditView, conn.ListAudit(ctx, filter))
}

var auditView = view[client.AuditedAction]{
	columns: columns("AT@", "ACTOR…", "ROLE?", "ACTION", "TARGET…", "DETAIL…"),
	row: func(a client.AuditedAction) []string {
		return []string{moment(a.At), a.Actor, a.Role, a.Action, dash(a.Target), string(a.Detail)}
	},
	empty: "no actions in the audit",
}
