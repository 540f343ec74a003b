package pages

import (
	"net/url"

	"github.com/queued/queued/client"
	"github.com/queued/queued/internal/ui"
)

// auditQuery returns the filters of the audit that are in the URL, as the API has them.
func (v *visit) auditQuery() url.Values {
	query := url.Values{}
	for _, name := range []string{"actor", "action", "target"} {
		setIf(query, name, v.query(name))
	}
	for _, name := range []string{"from", "to"} {
		setIf(query, name, inUTC(v.query(name)))
	}
	return query
}

// listAudit is the page of the audit, the latest first.
func listAudit(v *visit) (view, error) {
	actions, next, err := pageOf[client.AuditedAction](v, "/audit", "actions", v.auditQuery(), pageSize)
	shown := &ui.Audit{Filter: v.r.URL.Query(), Actions: actions, Pager: v.pager(next)}
	return view{name: "audit", title: "Audit", nav: "audit", isLive: v.query("cursor") == "", body: shown}, err
}

// exportAudit is the call whose answer is a file of the audit.
func exportAudit(format string) source {
	return func(v *visit) (string, url.Values, error) {
		query := v.auditQuery()
		query.Set("format", format)
		return "/audit", query, nil
	}
}
