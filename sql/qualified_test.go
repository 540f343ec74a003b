package sql

import (
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Functions of the schema's owner run for others, and each session resolves the names of relations and types in its own pg_temp, too: last where
// search_path says so, but it does. So a name without a schema must be one of pg_catalog, which comes first.

// unqualifiedRelations are those that functions may name without a schema.
var unqualifiedRelations = map[string][]string{
	"agent.publish_change":         {"new_rows", "old_rows"}, // transition tables: agent_private.check_change_trigger has made sure that there are some
	"agent_private.change_columns": {"n"},                    // a common table expression in front of the query that it returns
}

var (
	functionBody = regexp.MustCompile(`(?s)^([a-z_.]+)\s*\(.*?\$func\$(.*?)\$func\$`) // after "create or replace function"
	sqlToken     = regexp.MustCompile(`(?s)--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|"(?:[^"]|"")*"|::|:=|[A-Za-z_][A-Za-z0-9_]*|[0-9.]+|[^\sA-Za-z0-9_]`)
	nameToken    = regexp.MustCompile(`^[a-z_][a-z0-9_]*$`)
	catalogName  = regexp.MustCompile(`^pg_[a-z_]+$`)
	dynamicSQL   = regexp.MustCompile(`^'\s*(?:select|with|insert|update|delete|lock|alter|create|drop|truncate)\s`)
)

// sqlTypes are the types of pg_catalog that the scripts name without it.
var sqlTypes = strings.Fields(`"char" bit bool boolean bytea char cidr date double float4 float8 inet int2 int4 int8 int integer interval json jsonb
	name numeric oid record refcursor regclass regnamespace regproc regprocedure regrole regtype text tid time timestamp timestamptz trigger uuid varchar void xid xid8`)

// unqualified returns the relations and types that the body of a function names without a schema, but for those of pg_catalog, for common table
// expressions and for what known has.
func unqualified(body string, known []string) (names []string) {
	var tokens []string
	for _, token := range sqlToken.FindAllString(body, -1) {
		if strings.HasPrefix(token, "--") || strings.HasPrefix(token, "/*") {
			continue
		}
		if dynamicSQL.MatchString(token) {
			names = append(names, unqualified(strings.ReplaceAll(token[1:len(token)-1], "''", "'"), known)...)
		}
		tokens = append(tokens, token)
	}
	at := func(i int) string {
		if i < 0 || i >= len(tokens) {
			return ""
		}
		return strings.ToLower(tokens[i])
	}
	known = slices.Clone(known)
	for i := range tokens { // common table expressions: a name, its columns, "as (" or "as materialized ("
		if at(i) == "as" && (at(i+1) == "(" || at(i+2) == "(" && (at(i+1) == "materialized" || at(i+1) == "not")) {
			j := i - 1
			if at(j) == ")" {
				for j--; at(j) != "(" && j > 0; j-- {
				}
				j--
			}
			if before := at(j - 1); before == "with" || before == "recursive" || before == "," {
				known = append(known, at(j))
			}
		}
	}
	isRelation := func(i int) bool {
		name := at(i)
		return nameToken.MatchString(name) && at(i+1) != "." && at(i+1) != "(" && !catalogName.MatchString(name) && !slices.Contains(known, name)
	}
	for i := range tokens {
		switch at(i) {
		case "from", "join", "using":
			if at(i) == "from" && (at(i-1) == "distinct" || isArgument(at, i)) || at(i) == "using" && (at(i+1) == "(" || isDynamicUsing(at, i)) {
				continue
			}
			for j := i + 1; ; j++ { // a list of relations
				for at(j) == "only" || at(j) == "lateral" {
					j++
				}
				if slices.Contains([]string{"where", "limit", "offset", "order", "for", "group", "union"}, at(j)) { // "select from … where", which has no relation
					break
				}
				if isRelation(j) {
					names = append(names, at(j))
				}
				for j++; at(j) == "." || at(j-1) == "."; j++ {
				}
				if at(j) == "as" {
					j++
				}
				if nameToken.MatchString(at(j)) && at(j+1) == "," {
					j++
				}
				if at(j) != "," {
					break
				}
			}
		case "update":
			if before := at(i - 1); before == "for" || before == "do" || before == "on" || before == "share" || before == "key" || before == "or" || before == "," {
				continue
			}
			if isRelation(i+1) && at(i+1) != "only" && at(i+1) != "set" {
				names = append(names, at(i+1))
			}
		case "into":
			if at(i-1) == "insert" && isRelation(i+1) {
				names = append(names, at(i+1))
			}
		case "table":
			j := i + 1
			for at(j) == "only" || at(j) == "if" || at(j) == "not" || at(j) == "exists" {
				j++
			}
			if before := at(i - 1); (before == "lock" || before == "alter" || before == "drop" || before == "truncate") && isRelation(j) {
				names = append(names, at(j))
			}
		case "::":
			if name := at(i + 1); nameToken.MatchString(name) && at(i+2) != "." && !slices.Contains(sqlTypes, name) {
				names = append(names, name)
			}
		}
	}
	return append(names, declared(at, len(tokens))...)
}

// isArgument reports whether the "from" at i belongs to a call like extract(epoch from x).
func isArgument(at func(int) string, i int) bool {
	depth := 0
	for j := i - 1; j >= 0; j-- {
		switch at(j) {
		case ")":
			depth++
		case "(":
			if depth == 0 {
				return slices.Contains([]string{"extract", "substring", "trim", "overlay", "position"}, at(j-1))
			}
			depth--
		}
	}
	return false
}

// isDynamicUsing reports whether the "using" at i is that of "execute … using" or "raise … using", not that of a delete.
func isDynamicUsing(at func(int) string, i int) bool {
	for j := i - 1; j >= 0 && at(j) != ";"; j-- {
		if at(j) == "delete" {
			return false
		}
	}
	return true
}

// declared returns the types without a schema of the variables of a function.
func declared(at func(int) string, n int) (names []string) {
	if at(0) != "declare" && at(4) != "declare" { // a first line like "#variable_conflict use_column" has four tokens
		return nil
	}
	for i := range n {
		if at(i) == "begin" {
			return names
		}
		if strings.HasPrefix(at(i), "_") && (at(i-1) == ";" || at(i-1) == "declare") {
			j := i + 1
			if at(j) == "constant" {
				j++
			}
			if name := at(j); at(j+1) != "." && !slices.Contains(sqlTypes, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

func TestFunctionsNameRelationsAndTypesWithTheirSchema(t *testing.T) {
	t.Parallel()
	scripts, err := fs.Glob(FS, "idempotent/*.sql")
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, script := range scripts {
		text, err := fs.ReadFile(FS, script)
		if err != nil {
			t.Fatal(err)
		}
		for function := range strings.SplitSeq(string(text), "create or replace function ") {
			match := functionBody.FindStringSubmatch(function)
			if match == nil {
				continue // a body after "return" is parsed when the function is created
			}
			count++
			if names := unqualified(match[2], unqualifiedRelations[match[1]]); len(names) > 0 {
				t.Errorf("%s: %s names without a schema: %s", script, match[1], strings.Join(names, ", "))
			}
		}
	}
	if count < 200 {
		t.Errorf("found %d functions, fewer than there are", count)
	}
}

func TestNamesWithoutSchemaAreFound(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`select * from agent.event e join agent.queue q on true where e.a is distinct from q.b`: ``,
		`select * from event`:                            `event`,
		`select * from agent.event join queue q on true`: `queue`,
		`select * from agent.event e, queue q`:           `queue`,
		`select * from only event`:                       `event`,
		`perform from pg_class c, lateral unnest(c.a) u; perform extract(epoch from now()); perform from rows;`: `rows`,
		`with recent as (select * from agent.event) select * from recent`:                                       ``,
		`with a (x) as materialized (select 1), b as (select * from a) select * from b, event`:                  `event`,
		`insert into event values (1)`: `event`,
		`update event set a = 1`:       `event`,
		`select 1 from agent.event for update; insert into agent.queue values (1) on conflict do update set a = 1`: ``,
		`delete from agent.event using queue where true`:                                                           `queue`,
		`lock table only event in share mode`:                                                                      `event`,
		`execute 'select * from event' using _a`:                                                                   `event`,
		`select x::mood, y::agent.mood, z::text`:                                                                   `mood`,
		"declare _a mood; _b agent.mood; _c text = 'x'; begin end":                                                 `mood`,
	} {
		if got := fmt.Sprint(strings.Join(unqualified(body, nil), ",")); got != want {
			t.Errorf("%s: found %q, want %q", body, got, want)
		}
	}
}
