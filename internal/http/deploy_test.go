package http

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queued/queued/internal/access"
	"github.com/queued/queued/internal/queue"
)

var (
	alertName   = regexp.MustCompile(`(?m)^ *- alert: (\w+)$`)
	alertExpr   = regexp.MustCompile(`(?m)^        expr: (\|\n(?:          .*\n)+|.*\n)`)
	namedMetric = regexp.MustCompile(`\b(queued_\w+)(\{[^}]*\})?`)
	matcher     = regexp.MustCompile(`(\w+)(?:=~|!~|!=|=)"`)
	grouping    = regexp.MustCompile(`\bby \(([^)]*)\)`)
)

// A dashboardPanel is what Grafana needs of one, and its queries.
type dashboardPanel struct {
	ID          int
	Type, Title string
	Description string
	GridPos     struct{ H, W, X, Y int }
	Datasource  struct{ Type, UID string }
	FieldConfig struct{ Defaults struct{ Unit string } }
	Targets     []struct {
		RefID, Expr, LegendFormat string
		Datasource                struct{ Type, UID string }
	}
}

type dashboard struct {
	UID, Title    string
	SchemaVersion int
	Panels        []dashboardPanel
	Templating    struct {
		List []struct {
			Name, Type string
			Query      json.RawMessage
		}
	}
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	text, err := os.ReadFile("../../deploy/grafana/queued.json")
	if err == nil {
		err = json.Unmarshal(text, &d)
	}
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestMetricsOfAlertsAndDashboardAreServed has something happen of everything that they name, and looks for it in a scrape.
func TestMetricsOfAlertsAndDashboardAreServed(t *testing.T) {
	t.Parallel()
	alerts, err := os.ReadFile("../../deploy/prometheus/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	var queries []string
	for _, m := range alertExpr.FindAllStringSubmatch(string(alerts), -1) {
		queries = append(queries, m[1])
	}
	if n := len(alertName.FindAll(alerts, -1)); n < 25 || n != len(queries) {
		t.Fatalf("%d alerts have %d queries", n, len(queries))
	}
	d := readDashboard(t)
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			queries = append(queries, target.Expr)
		}
	}

	h := setupWith(t, settings{queue: func(c *queue.Config) { c.UpkeepInterval = 0 }})
	admin := h.key(h.createKey(access.CreateParams{Scopes: []access.Scope{access.Admin}}))
	soon := time.Now().Add(time.Hour)
	h.createKey(access.CreateParams{Scopes: []access.Scope{access.Read}, ExpiresAt: &soon})
	to := endpointOf(t, http.StatusOK, "")
	admin.call("PUT", "/subscriptions/mailer", `{"filters":[{"topics":["a"]}]}`).want(201)
	admin.call("PUT", "/queues/mail/push", `{"url":"`+to.URL+`"}`).want(201)
	admin.call("PUT", "/sources/shop", `{"kind":"token","queue":"work","secrets":["a-long-enough-secret"]}`).want(201)
	h.try("POST", "/in/shop", `{}`)
	admin.call("POST", "/events?queue=mail", `{}`).want(201)
	admin.call("POST", "/events?queue=work", `{}`).want(201)
	e := decode[struct {
		Events []struct {
			ID      int64
			Receipt string
		}
	}](admin.call("POST", "/claim", `{"queue":"work"}`).want(200)).Events[0]
	admin.call("DELETE", fmt.Sprintf("/events/%d?receipt=%s", e.ID, e.Receipt), "").want(204)
	admin.call("PUT", "/queues/work", `{"flow":{"concurrency":1}}`).want(200)
	h.sql(`select agent_service.sample_groups()`)
	scrape := admin.scrape(`queued_pushes_total{`, `queued_webhooks_total{`, `queued_upkeep_age_seconds{`, `queued_database_unsafe_setting{`)
	served := map[string][]string{}
	for line := range strings.Lines(scrape) {
		if m := seriesLine.FindStringSubmatch(line); m != nil {
			var labels []string
			for _, label := range labelName.FindAllStringSubmatch(m[2], -1) {
				labels = append(labels, label[1])
			}
			served[m[1]] = labels
		}
	}
	// Served with a certificate of its own, and with a collector of traces.
	for _, name := range []string{
		"queued_tls_certificate_expiration_timestamp_seconds", "queued_tls_reload_failures_total", "queued_trace_spans_total", "queued_trace_spans_exported_total",
		"queued_trace_spans_failed_total",
	} {
		served[name] = []string{}
	}
	named := 0
	for _, query := range queries {
		var grouped []string
		for _, by := range grouping.FindAllStringSubmatch(query, -1) {
			for label := range strings.SplitSeq(by[1], ",") {
				grouped = append(grouped, strings.TrimSpace(label))
			}
		}
		for _, m := range namedMetric.FindAllStringSubmatch(query, -1) {
			name := m[1]
			named++
			labels, isServed := served[name]
			if !isServed {
				t.Errorf("%s is not served: %s", name, query)
				continue
			}
			wanted := slices.Clone(grouped)
			for _, label := range matcher.FindAllStringSubmatch(m[2], -1) {
				wanted = append(wanted, label[1])
			}
			for _, label := range wanted {
				if !slices.Contains(labels, label) && label != "instance" && label != "job" {
					t.Errorf("%s has the labels %q, and not %s: %s", name, labels, label, query)
				}
			}
		}
	}
	if named < 80 {
		t.Errorf("the queries name %d metrics: this test does not find them", named)
	}
}

var seriesLine = regexp.MustCompile(`^(queued_\w+)(?:\{(.*)\})? `)

// TestDashboardIsOneThatGrafanaTakes holds to what Grafana's schema requires and can be checked without it.
func TestDashboardIsOneThatGrafanaTakes(t *testing.T) {
	t.Parallel()
	d := readDashboard(t)
	if d.UID == "" || d.Title == "" || d.SchemaVersion < 36 || len(d.Panels) < 20 {
		t.Fatalf("the dashboard %q (%s) of the schema %d has %d panels", d.Title, d.UID, d.SchemaVersion, len(d.Panels))
	}
	var variables []string
	for _, v := range d.Templating.List {
		variables = append(variables, v.Name+" "+v.Type)
	}
	if !slices.Equal(variables, []string{"datasource datasource", "queue query"}) {
		t.Errorf("the variables are %q", variables)
	}
	units := []string{"s", "short", "eps", "reqps", "bytes", "percentunit"} // of https://github.com/grafana/grafana/blob/main/packages/grafana-data/src/valueFormats/categories.ts
	ids := map[int]bool{}
	taken := map[[2]int]string{}
	for _, p := range d.Panels {
		if ids[p.ID] || p.ID == 0 || p.Title == "" || !slices.Contains([]string{"row", "timeseries", "stat", "table"}, p.Type) {
			t.Errorf("the panel %d %q is of the type %q, or there are two", p.ID, p.Title, p.Type)
		}
		ids[p.ID] = true
		if g := p.GridPos; g.X < 0 || g.W < 1 || g.H < 1 || g.X+g.W > 24 {
			t.Errorf("%s does not fit into the grid: %+v", p.Title, g)
		}
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if taken[at] != "" {
					t.Fatalf("%s lies on %s", p.Title, taken[at])
				}
				taken[at] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if !slices.Contains(units, p.FieldConfig.Defaults.Unit) || p.Description == "" || p.Datasource.UID != "${datasource}" || len(p.Targets) == 0 {
			t.Errorf("%s has the unit %q, the description %q, the data source %q and %d queries", p.Title, p.FieldConfig.Defaults.Unit, p.Description, p.Datasource.UID, len(p.Targets))
		}
		refs := map[string]bool{}
		for _, target := range p.Targets {
			if target.RefID == "" || refs[target.RefID] || target.Expr == "" || target.Datasource.UID != "${datasource}" {
				t.Errorf("%s has the query %+v", p.Title, target)
			}
			refs[target.RefID] = true
		}
	}
}

func TestAlertsAreDocumented(t *testing.T) {
	t.Parallel()
	alerts, err := os.ReadFile("../../deploy/prometheus/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/observability.md")
	if err != nil {
		t.Fatal(err)
	}
	var names, documented []string
	for _, m := range alertName.FindAllStringSubmatch(string(alerts), -1) {
		names = append(names, m[1])
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `(Queued\\w+)` \\|").FindAllStringSubmatch(string(page), -1) {
		documented = append(documented, m[1])
	}
	if !slices.Equal(names, documented) {
		t.Errorf("the alerts are\n%q, and documented are\n%q", names, documented)
	}
}
