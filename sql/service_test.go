//go:build unix

package sql

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// calledBefore are functions of agent_service that only the service of the release before calls, whose processes run beside those of this one for a time.
var calledBefore []string

// notService are folders, from the top of the repository, whose programs connect as the owner of the schema.
var notService = []string{"internal/faults", "internal/pgtest", "internal/migrate"}

var (
	calledFunction = regexp.MustCompile(`\b(agent|agent_service)\.(\w+)\(`)
	listedFunction = regexp.MustCompile(`(?m)^ +,? *\('(\w+)'\)$`)
)

func TestServiceRoleMayCallExactlyWhatTheServiceCalls(t *testing.T) {
	t.Parallel()
	scripts, err := fs.Glob(FS, "idempotent/*-privileges.sql")
	if err != nil || len(scripts) != 1 {
		t.Fatalf("the scripts of the privileges are %q, %v", scripts, err)
	}
	script, err := fs.ReadFile(FS, scripts[0])
	if err != nil {
		t.Fatal(err)
	}
	_, body, _ := strings.Cut(string(script), "function agent_private.shared_functions()")
	body, _, _ = strings.Cut(body, "$func$;")
	var listed []string
	for _, match := range listedFunction.FindAllStringSubmatch(body, -1) {
		listed = append(listed, match[1])
	}
	if !slices.IsSorted(listed) || len(listed) != strings.Count(body, "('") {
		t.Errorf("%s: the list of agent_private.shared_functions() is to be in order, one name a line", scripts[0])
	}

	called := calledFunctions(t)
	if len(called["agent"]) < 20 || len(called["agent_service"]) < 20 {
		t.Fatalf("the sources seem to call %q only", called)
	}
	for _, name := range called["agent"] {
		if !slices.Contains(listed, name) {
			t.Errorf("the service calls agent.%s, which its role may not: add it to agent_private.shared_functions() in sql/%s", name, scripts[0])
		}
	}
	for _, name := range listed {
		if !slices.Contains(called["agent"], name) {
			t.Errorf("the service does not call agent.%s: take it out of agent_private.shared_functions() in sql/%s", name, scripts[0])
		}
	}
	for _, name := range created(t, "idempotent/*.sql", "agent_service") {
		if !slices.Contains(called["agent_service"], name) && !slices.Contains(calledBefore, name) {
			t.Errorf("the service does not call agent_service.%s: move it to agent_private, or to agent if it is for users", name)
		}
	}
}

// calledFunctions are the names of the functions of the schemas agent and agent_service in the strings of the service's sources, by schema.
func calledFunctions(t *testing.T) map[string][]string {
	t.Helper()
	called := make(map[string][]string)
	for _, root := range []string{"internal", "cmd"} {
		err := filepath.WalkDir(filepath.Join("..", root), func(path string, entry fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case entry.IsDir():
				if slices.Contains(notService, strings.TrimPrefix(filepath.ToSlash(path), "../")) {
					return fs.SkipDir
				}
				return nil
			case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
				return nil
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(node ast.Node) bool {
				if literal, ok := node.(*ast.BasicLit); ok && literal.Kind == token.STRING {
					for _, match := range calledFunction.FindAllStringSubmatch(literal.Value, -1) {
						called[match[1]] = append(called[match[1]], match[2])
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for schema, names := range called {
		slices.Sort(names)
		called[schema] = slices.Compact(names)
	}
	return called
}
