package workloads

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestStatementsAreTheServices reads the statements out of the service's sources.
func TestStatementsAreTheServices(t *testing.T) {
	t.Parallel()
	var files []string
	for _, pattern := range []string{"../../internal/queue/*.go", "../../internal/topic/*.go"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("the service's sources are not there: %v", err)
		}
		files = append(files, found...)
	}
	words := func(statement string) string { return strings.Join(strings.Fields(statement), " ") }
	var sent []string
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(node ast.Node) bool {
			if literal, ok := node.(*ast.BasicLit); ok && literal.Kind == token.STRING {
				text, _ := strconv.Unquote(literal.Value)
				sent = append(sent, words(text))
			}
			return true
		})
	}
	for _, statement := range []string{insertStatement, claimStatement, ackStatement, readLogStatement} {
		if !slices.Contains(sent, words(statement)) {
			t.Errorf("the service does not send this statement: bring statements.go up to date with internal/queue and internal/topic\n%s", statement)
		}
	}
}
