package clienttest

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/queued/queued/api"
)

// buildModuleTests builds the tests of the module client/, and returns the path of the program.
func buildModuleTests(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "client.test")
	cmd := exec.CommandContext(t.Context(), "go", "test", "-c", "-o", file, ".")
	cmd.Dir = "../../client"
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building the tests of client/: %v\n%s", err, out)
	}
	return file
}

// moduleTests runs tests of the module client/, which need the variables, and returns what they wrote.
func moduleTests(t *testing.T, file string, environ []string, flags ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), file, flags...)
	cmd.Dir = "../../client"
	cmd.Env = append(os.Environ(), environ...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

// Each example of the documentation runs against a server of its own, and its output is compared.
func TestExamplesOfTheClientRun(t *testing.T) {
	t.Parallel()
	file := buildModuleTests(t)
	names := strings.Fields(moduleTests(t, file, nil, "-test.list", "^Example"))
	if len(names) < 5 {
		t.Fatalf("%q, want more examples", names)
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out := moduleTests(t, file, []string{"QUEUED_TEST_URL=" + serve(t).url}, "-test.v", "-test.run", "^"+name+"$")
			if !strings.Contains(out, "--- PASS: "+name+" ") {
				t.Errorf("it was not run:\n%s", out)
			}
		})
	}
}

// The types of the client are not exported, so that its own tests compare them with the contract; they cannot read it, because the module
// requires no other.
func TestClientKeepsTheContract(t *testing.T) {
	t.Parallel()
	text, err := json.Marshal(describeContract(t))
	if err != nil {
		t.Fatal(err)
	}
	contract := filepath.Join(t.TempDir(), "contract.json")
	if err := os.WriteFile(contract, text, 0o600); err != nil {
		t.Fatal(err)
	}
	out := moduleTests(t, buildModuleTests(t), []string{"QUEUED_TEST_CONTRACT=" + contract}, "-test.v", "-test.run", "OfTheContract")
	if strings.Contains(out, "SKIP") || strings.Count(out, "\n--- PASS") < 3 {
		t.Errorf("the tests of the contract were not run:\n%s", out)
	}
}

// An operation is one of the contract: what each field is by its path, and the examples of responses.
type operation struct {
	Query, Request, Response map[string]string
	Examples                 map[string]json.RawMessage
}

// describeContract describes the operations of the contract, and its problems.
func describeContract(t *testing.T) (c struct {
	Operations map[string]operation
	Problem    map[string]string
	Codes      []any
},
) {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromData(api.OpenAPI)
	if err != nil {
		t.Fatal(err)
	}
	c.Operations = make(map[string]operation)
	for _, item := range doc.Paths.Map() {
		for _, op := range item.Operations() {
			c.Operations[op.OperationID] = describeOperation(t, op, slices.Concat(item.Parameters, op.Parameters))
		}
	}
	problem := doc.Components.Schemas["Problem"]
	c.Problem = make(map[string]string)
	fieldsOfSchema(c.Problem, "", problem)
	c.Codes = problem.Value.Properties["code"].Value.Enum
	return c
}

func describeOperation(t *testing.T, op *openapi3.Operation, params openapi3.Parameters) operation {
	t.Helper()
	d := operation{map[string]string{}, map[string]string{}, map[string]string{}, map[string]json.RawMessage{}}
	for _, param := range params {
		if p := param.Value; p.In == "query" && p.Name != "cursor" {
			schema := p.Schema
			if schema == nil {
				schema = p.Content["application/json"].Schema
			}
			fieldsOfSchema(d.Query, p.Name, schema)
		}
	}
	if op.RequestBody != nil {
		if content := op.RequestBody.Value.Content["application/json"]; content != nil {
			fieldsOfSchema(d.Request, "", content.Schema)
		}
	}
	for status, resp := range op.Responses.Map() {
		content := resp.Value.Content["application/json"]
		if content == nil || status >= "300" {
			continue
		}
		fieldsOfSchema(d.Response, "", content.Schema)
		for name, example := range content.Examples {
			text, err := json.Marshal(example.Value.Value)
			if err != nil {
				t.Fatal(err)
			}
			d.Examples[status+" "+name] = text
		}
	}
	return d
}

func join(path, name string) string { return strings.TrimPrefix(path+"/"+name, "/") }

// fieldsOfSchema adds what each field of a schema is.
func fieldsOfSchema(into map[string]string, path string, ref *openapi3.SchemaRef) {
	schema := ref.Value
	for _, part := range slices.Concat(schema.AllOf, schema.OneOf) {
		if len(part.Value.Required) > 0 && part.Value.Type == nil && part.Value.Properties == nil {
			continue // says only what is required
		}
		if !part.Value.Type.Is("null") {
			fieldsOfSchema(into, path, part)
		}
	}
	if schema.Items != nil {
		fieldsOfSchema(into, path, schema.Items)
	}
	for name, property := range schema.Properties {
		fieldsOfSchema(into, join(path, name), property)
	}
	types := slices.DeleteFunc(slices.Clone(schema.Type.Slice()), func(name string) bool { return name == "null" })
	switch {
	case strings.HasPrefix(schema.Pattern, "^[-+]?(0|"):
		into[path] = "duration"
	case schema.Format == "date-time":
		into[path] = "time"
	case schema.Const != nil && len(types) == 0:
		into[path] = "string"
	case len(types) == 1:
		into[path] = types[0]
	case len(types) > 1:
		into[path] = "any"
	case schema.OneOf != nil && into[path] == "":
		into[path] = "any"
	}
}
