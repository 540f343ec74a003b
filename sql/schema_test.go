package sql

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	createdFunction     = regexp.MustCompile(`(?m)^create or replace function (agent|agent_service)\.(\w+)`)
	signature           = regexp.MustCompile(`(?m)^create or replace function agent\.(\w+)\s*(\([^$]*?)\nlanguage `)
	documentedSignature = regexp.MustCompile("(?m)`(\\w+)(\\([^`]*)`")
	argumentName        = regexp.MustCompile(`\b_\w+`)
	documentedFunction  = regexp.MustCompile("`(\\w+)[(`]")
)

// allScripts returns the text of all idempotent scripts.
func allScripts(t *testing.T) string {
	t.Helper()
	scripts, err := fs.Glob(FS, "idempotent/*.sql")
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, script := range scripts {
		body, err := fs.ReadFile(FS, script)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(body)
	}
	return all.String()
}

// created returns the names of the functions that scripts make in a schema, sorted.
func created(t *testing.T, pattern, schema string) []string {
	t.Helper()
	scripts, err := fs.Glob(FS, pattern)
	if err != nil || len(scripts) == 0 {
		t.Fatalf("scripts like %s: %q, %v", pattern, scripts, err)
	}
	var names []string
	for _, script := range scripts {
		body, err := fs.ReadFile(FS, script)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range createdFunction.FindAllStringSubmatch(string(body), -1) {
			if match[1] == schema {
				names = append(names, match[2])
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func TestFunctionsOfTheSchemaAgentAreDocumentedForUsers(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "docs", "sql.md"))
	if err != nil {
		t.Fatal(err)
	}
	doc := string(text)

	var documented []string
	for line := range strings.Lines(doc) { // the first column of the tables that have functions
		if cells := strings.Split(line, " | "); strings.HasPrefix(line, "| `") && strings.Contains(cells[0], "(") {
			for _, match := range documentedFunction.FindAllStringSubmatch(cells[0], -1) {
				documented = append(documented, match[1])
			}
		}
	}
	documented = slices.DeleteFunc(documented, func(name string) bool { return name == "queued" })

	signatures := map[string]string{} // of all functions of a name
	for _, match := range signature.FindAllStringSubmatch(allScripts(t), -1) {
		signatures[match[1]] += match[2]
	}
	for _, match := range documentedSignature.FindAllStringSubmatch(doc, -1) {
		for _, argument := range argumentName.FindAllString(match[2], -1) {
			if !regexp.MustCompile(`\b` + argument + `\b`).MatchString(signatures[match[1]]) {
				t.Errorf("docs/sql.md has an argument %s of %s, which there is not", argument, match[1])
			}
		}
	}

	functions := created(t, "idempotent/*.sql", "agent")
	for _, name := range functions {
		if !slices.Contains(documented, name) {
			t.Errorf("docs/sql.md does not have agent.%s: document it, or move it to agent_service if only the service calls it, or to agent_private", name)
		}
	}
	for _, name := range documented {
		if !slices.Contains(functions, name) {
			t.Errorf("docs/sql.md has agent.%s, which there is not", name)
		}
	}
}

var ownState = regexp.MustCompile(`QD\d{3}`)

func TestSQLSTATEsAreDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "docs", "sql.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, documented, _ := strings.Cut(string(text), "\n## Errors\n")
	scripts := allScripts(t)
	for _, state := range slices.Compact(slices.Sorted(slices.Values(ownState.FindAllString(scripts, -1)))) {
		if !strings.Contains(documented, "`"+state+"`") {
			t.Errorf("the errors of docs/sql.md do not have %s", state)
		}
	}
	for _, state := range ownState.FindAllString(documented, -1) {
		if !strings.Contains(scripts, state) {
			t.Errorf("the errors of docs/sql.md have %s, which nothing raises", state)
		}
	}
}

var (
	insertIntoEvent   = regexp.MustCompile(`insert into agent\.event\b[^;]*`)
	insertIntoHistory = regexp.MustCompile(`insert into agent\.event_hist\b`)
)

func TestEventsAndHistoryHaveOneWriterEach(t *testing.T) {
	t.Parallel()
	all := allScripts(t)
	events := insertIntoEvent.FindAllString(all, -1)
	for _, statement := range events {
		if !strings.Contains(statement, "agent_private.new_event") && !strings.Contains(statement, "agent_private.requested_event") { // which takes them from new_event
			t.Errorf("this does not take its rows from agent_private.new_event:\n%s", statement)
		}
	}
	if history := insertIntoHistory.FindAllString(all, -1); len(events) == 0 || len(history) != 1 {
		t.Errorf("%d statements insert into agent.event, want some; %d into agent.event_hist, want one", len(events), len(history))
	}
}

// functionHead is a function up to its body: its name, and what stands before its body.
var functionHead = regexp.MustCompile(`(?s)\ncreate (?:or replace )?function (agent|agent_service|agent_private)\.(\w+)(.*?)\n(?:as \$func\$|return\b|begin atomic)`)

// plannedOnPurpose are functions of the hot path whose plans depend on the values of a call: they read partitions of the log, which a plan for all
// would lock, each of them.
var plannedOnPurpose = []string{"log_events", "log_page", "read_log", "read_log_back", "list_topics", "read_routes", "read_subscription", "subscribed_page"}

// PostgreSQL weighs a plan for the values of each call against one for all, and arrays of few elements make the first one look cheap: then it plans at each call, which has taken ten times as long as what was planned.
// What is for users, or the service, says so for the functions that it calls.
func TestFunctionsOfTheHotPathAreNotPlannedAtEachCall(t *testing.T) {
	t.Parallel()
	const generic, custom = "set plan_cache_mode to force_generic_plan", "set plan_cache_mode to force_custom_plan"
	var checked, onPurpose int
	for script, others := range map[string][]string{ // that take an array, but are called rarely
		"002-insert.sql": nil, "003-claim.sql": nil, "004-ack.sql": nil, "013-publish.sql": nil, "014-log.sql": {"put_log_settings"},
		"015-subscription.sql": {"put_subscription_if_match", "delete_subscription_if_match", "list_subscriptions", "subscription_allowed"}, "016-route.sql": nil,
	} {
		for _, head := range functionHeads(t, script) {
			schema, name, rest := head[1], head[2], head[3]
			if !strings.Contains(rest, "language plpgsql") || !strings.Contains(rest, "[]") || slices.Contains(others, name) {
				continue
			}
			checked++
			switch isCustom := strings.Contains(rest, custom); {
			case slices.Contains(plannedOnPurpose, name) != isCustom:
				t.Errorf("%s: %s.%s is planned at each call: %v, plannedOnPurpose says the contrary", script, schema, name, isCustom)
			case isCustom:
				onPurpose++
			case schema != "agent_private" && !strings.Contains(rest, generic):
				t.Errorf("%s: %s.%s takes an array; have it say %q", script, schema, name, generic)
			}
		}
	}
	if checked < 30 || onPurpose != len(plannedOnPurpose) {
		t.Errorf("found %d functions that take arrays, and %d that are planned on purpose", checked, onPurpose)
	}
}

// A function in SQL with settings of its own cannot be inlined, and is planned in each statement that calls it.
func TestFunctionsOfTheHotPathAreInPLpgSQLUnlessInlined(t *testing.T) {
	t.Parallel()
	rare := []string{
		"claim_events", "claim_event", "log_holder", "get_log_settings", "topic_filters",
		"flatten_claims", "past_attempt", "position_of", "to_timestamptz", "from_timestamptz",
	}
	checked := 0
	for _, script := range []string{"001-event.sql", "002-insert.sql", "003-claim.sql", "004-ack.sql", "013-publish.sql", "014-log.sql", "015-subscription.sql", "016-route.sql"} {
		for _, head := range functionHeads(t, script) {
			checked++
			if schema, name, rest := head[1], head[2], head[3]; strings.Contains(rest, "\nlanguage sql ") && strings.Contains(rest, "\nset ") && !slices.Contains(rare, name) {
				t.Errorf("%s: %s.%s is planned in each statement that calls it", script, schema, name)
			}
		}
	}
	if checked < 100 {
		t.Errorf("found %d functions", checked)
	}
}

// functionHeads are the functions of a script: schema, name, and what stands before the body.
func functionHeads(t *testing.T, script string) [][]string {
	t.Helper()
	text, err := fs.ReadFile(FS, "idempotent/"+script)
	if err != nil {
		t.Fatal(err)
	}
	return functionHead.FindAllStringSubmatch(string(text), -1)
}
