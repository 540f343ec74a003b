package http

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// conform is a transport that fails the test when a response does not match the contract of
// its operation. It also records the responses it has seen.
type conform struct {
	t    testing.TB
	next http.RoundTripper

	mu   sync.Mutex
	seen map[string]bool // "operationId status"
}

// newConform returns a conform before next. It reads the contract first, once for all tests: on a busy machine that takes longer than what a test waits for.
func newConform(tb testing.TB, next http.RoundTripper, seen map[string]bool) *conform {
	tb.Helper()
	if _, err := specRouter(); err != nil {
		tb.Fatal(err)
	}
	if _, err := responseSchemas(); err != nil {
		tb.Fatal(err)
	}
	return &conform{t: tb, next: next, seen: seen}
}

func (c *conform) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := c.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	_ = resp.Body.Close()
	resp.Body = io.NopCloser(bytes.NewReader(body))
	if err := c.check(r, resp, body); err != nil {
		c.t.Errorf("%s %s returned %d, which does not match the contract: %v\n%s", r.Method, r.URL, resp.StatusCode, err, body)
	}
	return resp, nil
}

func (c *conform) check(r *http.Request, resp *http.Response, body []byte) error {
	router, err := specRouter()
	if err != nil {
		return err
	}
	bare := r.Clone(r.Context())
	bare.URL.Scheme, bare.URL.Host, bare.Host = "", "", ""
	bare.Body = nil
	bare.URL.Path = strings.ReplaceAll(bare.URL.EscapedPath(), "%2F", "x") // the router takes a slash within a part for the end of the part
	bare.URL.Path, _ = url.PathUnescape(bare.URL.Path)                     // it was valid before
	bare.URL.RawPath = ""
	if bare.Method == http.MethodHead {
		return nil // a GET without a body, which is not documented separately
	}
	route, _, err := router.FindRoute(bare)
	if err == nil && strings.Count(route.Path, "/") != strings.Count(bare.URL.Path, "/") { // the router ignores a trailing slash
		err = routers.ErrPathNotFound
	}
	if err != nil { // no operation: must be a 404 or 405
		if resp.StatusCode != http.StatusNotFound && resp.StatusCode != http.StatusMethodNotAllowed && resp.StatusCode != http.StatusUnauthorized &&
			resp.StatusCode != http.StatusMisdirectedRequest && resp.StatusCode != http.StatusForbidden {
			return fmt.Errorf("no such operation: %w", err)
		}
		return nil
	}
	c.mu.Lock()
	c.seen[fmt.Sprintf("%s %d", route.Operation.OperationID, resp.StatusCode)] = true
	c.mu.Unlock()
	return checkResponse(route, resp, body)
}

// checkResponse checks the status, the header fields and the body of a response against the contract. openapi3filter does the same, but
// compiles each schema anew for each value, which took a quarter of the processor time of these tests.
func checkResponse(route *routers.Route, resp *http.Response, body []byte) error {
	schemas, err := responseSchemas()
	if err != nil {
		return err
	}
	documented := route.Operation.Responses.Status(resp.StatusCode)
	if documented == nil {
		documented = route.Operation.Responses.Default()
	}
	if documented == nil {
		return fmt.Errorf("the operation %s has no response %d", route.Operation.OperationID, resp.StatusCode)
	}
	var broken []error
	headers := documented.Value.Headers
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		values, header := resp.Header.Values(name), headers[name].Value
		if len(values) == 0 && header.Required {
			broken = append(broken, fmt.Errorf("the header field %s is missing", name))
		}
		for _, text := range values {
			var value any = text
			if header.Schema.Value.Type.Is(openapi3.TypeInteger) {
				if _, err := strconv.ParseInt(text, 10, 64); err == nil {
					value = json.Number(text)
				}
			}
			if err := schemas[header.Schema].Validate(value); err != nil {
				broken = append(broken, fmt.Errorf("the header field %s: %w", name, err))
			}
		}
	}
	return errors.Join(append(broken, checkBody(schemas, documented.Value.Content, resp.Header, body))...)
}

// checkBody checks a body and its media type.
func checkBody(schemas map[*openapi3.SchemaRef]*jsonschema.Schema, content openapi3.Content, header http.Header, body []byte) error {
	if len(content) == 0 {
		if len(body) > 0 && header.Get("Location") == "" { // a redirect has a link for people
			return fmt.Errorf("a body of %d bytes; expected none", len(body))
		}
		return nil
	}
	contentType := header.Get("Content-Type")
	media := content.Get(contentType)
	if media == nil {
		return fmt.Errorf("the content type %q; expected one of %v", contentType, slices.Sorted(maps.Keys(content)))
	}
	if media.Schema == nil {
		return nil
	}
	name, _, _ := strings.Cut(contentType, ";")
	decoder := openapi3filter.RegisteredBodyDecoder(name)
	switch {
	case media.Schema.Value.Format == "binary":
		decoder = openapi3filter.FileBodyDecoder
	case decoder == nil:
		return fmt.Errorf("no decoder for the content type %q", contentType)
	case (name == "application/json" || strings.HasSuffix(name, "+json")) && !json.Valid(body): // the decoder reads no further than the first value
		return errors.New("the body is not one JSON value")
	}
	value, err := decoder(bytes.NewReader(body), header, media.Schema, nil)
	if err != nil {
		return err
	}
	return schemas[media.Schema].Validate(value)
}

// responseSchemas has the compiled schema of each body and header field of the responses.
var responseSchemas = sync.OnceValues(func() (map[*openapi3.SchemaRef]*jsonschema.Schema, error) {
	doc, err := spec()
	if err != nil {
		return nil, err
	}
	// One document holds them all beside the components that they refer to.
	used := make(map[*openapi3.SchemaRef]string)
	definitions := make(map[string]*openapi3.SchemaRef)
	use := func(schema *openapi3.SchemaRef) {
		if _, has := used[schema]; !has {
			used[schema] = fmt.Sprintf("response%d", len(used))
			definitions[used[schema]] = schema
		}
	}
	operations(doc, func(_, _ string, op *openapi3.Operation) {
		for _, response := range op.Responses.Map() {
			for _, header := range response.Value.Headers {
				use(header.Value.Schema)
			}
			for _, media := range response.Value.Content {
				if media.Schema != nil {
					use(media.Schema)
				}
			}
		}
	})
	encoded, err := json.Marshal(map[string]any{"$defs": definitions, "components": map[string]any{"schemas": doc.Components.Schemas}})
	if err != nil {
		return nil, err
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(encoded))
	if err != nil {
		return nil, err
	}
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft2020)
	compiler.AssertFormat()
	compiler.RegisterFormat(&jsonschema.Format{Name: "int64", Validate: validateInt64})
	const url = "https://example.com/contract.json"
	if err := compiler.AddResource(url, document); err != nil {
		return nil, err
	}
	compiled := make(map[*openapi3.SchemaRef]*jsonschema.Schema, len(used))
	for schema, name := range used {
		if compiled[schema], err = compiler.Compile(url + "#/$defs/" + name); err != nil {
			return nil, err
		}
	}
	return compiled, nil
})

// validateInt64 is the format int64, which OpenAPI adds to those of JSON Schema.
func validateInt64(value any) error {
	number, ok := value.(json.Number)
	if !ok {
		return nil
	}
	_, err := strconv.ParseInt(number.String(), 10, 64)
	return err
}

// checkRequest checks a request that the server should accept against the contract.
func checkRequest(r *http.Request, body []byte) error {
	router, err := specRouter()
	if err != nil {
		return err
	}
	bare := r.Clone(r.Context())
	bare.URL.Scheme, bare.URL.Host, bare.Host = "", "", ""
	bare.Body = io.NopCloser(bytes.NewReader(body))
	route, params, err := router.FindRoute(bare)
	if err != nil {
		return err
	}
	return openapi3filter.ValidateRequest(r.Context(), &openapi3filter.RequestValidationInput{
		Request:    bare,
		PathParams: params,
		Route:      route,
		Options: &openapi3filter.Options{
			MultiError:                        true,
			SkipSettingDefaults:               true,
			RejectWhenRequestBodyNotSpecified: true,
			AuthenticationFunc:                openapi3filter.NoopAuthenticationFunc,
		},
	})
}

func TestResponsesThatBreakTheContractAreFound(t *testing.T) {
	t.Parallel()
	c := newConform(t, nil, make(map[string]bool))
	check := func(status int, body string, fields ...string) error {
		resp := &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {"application/json"}, "X-Request-Id": {"a"}, "Location": {"/events/1"}}}
		for _, field := range fields {
			name, value, has := strings.Cut(field, ": ")
			resp.Header.Del(name)
			if has {
				resp.Header.Set(name, value)
			}
		}
		return c.check(httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/events", nil), resp, []byte(body))
	}
	const stored = `{"id":1,"queue":"mail","vt":"2026-02-03T04:05:06Z"}`
	const replayed = "Idempotency-Replayed: true"
	const busy = `{"type":"urn:queued:problem:overloaded","title":"a","status":503,"detail":"a","code":"overloaded","request_id":"a"}`
	const isProblem = "Content-Type: application/problem+json"
	for what, err := range map[string]error{
		"a stored event":                        check(http.StatusCreated, stored),
		"a replayed one":                        check(http.StatusOK, stored, replayed),
		"a problem":                             check(http.StatusServiceUnavailable, busy, isProblem),
		"a problem with a number in its header": check(http.StatusServiceUnavailable, busy, isProblem, "Retry-After: 1"),
	} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, err := range map[string]error{
		"a status that is not documented":   check(http.StatusAccepted, stored),
		"no header field":                   check(http.StatusCreated, stored, "Location"),
		"an empty header field":             check(http.StatusCreated, stored, "X-Request-Id: "),
		"a header field of another value":   check(http.StatusOK, stored, "Idempotency-Replayed: yes"),
		"a header field that is no number":  check(http.StatusServiceUnavailable, busy, isProblem, "Retry-After: soon"),
		"a header field below its minimum":  check(http.StatusServiceUnavailable, busy, isProblem, "Retry-After: 0"),
		"another content type":              check(http.StatusCreated, stored, "Content-Type: text/plain"),
		"no content type":                   check(http.StatusCreated, stored, "Content-Type"),
		"a body where none is documented":   checkBody(nil, nil, http.Header{}, []byte("a")),
		"no JSON":                           check(http.StatusCreated, `{`),
		"no body":                           check(http.StatusCreated, ""),
		"text after the JSON":               check(http.StatusCreated, stored+"1"),
		"a field too few":                   check(http.StatusCreated, `{"id":1,"queue":"mail"}`),
		"a field too many":                  check(http.StatusCreated, `{"id":1,"queue":"mail","vt":"2026-02-03T04:05:06Z","x":1}`),
		"a field of another type":           check(http.StatusCreated, `{"id":"1","queue":"mail","vt":"2026-02-03T04:05:06Z"}`),
		"a number below its minimum":        check(http.StatusCreated, `{"id":0,"queue":"mail","vt":"2026-02-03T04:05:06Z"}`),
		"a number beyond its format":        check(http.StatusCreated, `{"id":9223372036854775808,"queue":"mail","vt":"2026-02-03T04:05:06Z"}`),
		"a text that its pattern refuses":   check(http.StatusCreated, `{"id":1,"queue":"m a","vt":"2026-02-03T04:05:06Z"}`),
		"a text that is not of its format":  check(http.StatusCreated, `{"id":1,"queue":"mail","vt":"yesterday"}`),
		"a code that is not in the list":    check(http.StatusServiceUnavailable, strings.Replace(busy, `"overloaded"`, `"tired"`, 1), isProblem),
		"a problem with another media type": check(http.StatusServiceUnavailable, busy),
	} {
		if err == nil {
			t.Errorf("%s was not found", what)
		}
	}
}
