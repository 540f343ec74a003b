package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// setupSealing starts a server that can seal secrets and push to this machine.
func setupSealing(t *testing.T) *program {
	t.Helper()
	return setupFront(t, "QUEUED_SECRET_KEY=a-key-that-seals-secrets", "QUEUED_PUSH_ALLOW=127.0.0.1")
}

func TestSourcesArePutTestedAndDeleted(t *testing.T) {
	t.Parallel()
	p := setupSealing(t)
	p.cli("sources", "-o", "table").wantError(0, "no sources")
	p.cli("sources", "get", "shop").wantError(3, "Source not found")
	p.cliWith(`{"kind":"token","queue":"in","key":"{/id}","type":"shop.{/kind}","secrets":["one"]}`, nil, "sources", "put", "shop").want(0)
	file := filepath.Join(t.TempDir(), "shop.json")
	if err := os.WriteFile(file, []byte(`{"kind":"token","queue":"in","key":"{/id}","type":"shop.{/kind}","rate_limit":{"per_second":5,"burst":7}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := p.cli("sources", "put", "shop", "--if-version", "1", "-f", file, "-o", "table").want(0).stdout; !strings.Contains(got, "rate limit:") || !strings.Contains(got, "5 a second, 7 at once") ||
		strings.Contains(got, "one") {
		t.Errorf("put is\n%s", got)
	}
	p.cli("sources", "put", "shop", "--if-version", "1", "-f", file).want(exitFailure)
	p.cli("sources", "put", "shop", "--if-absent", "-f", file).want(exitFailure)
	p.cli("sources", "put", "shop", "--if-absent", "--if-version", "1", "-f", file).want(exitUsage)
	for input, want := range map[string]string{
		`{"kind":"token","queue":"in","secret":["one"]}`: "secret: unknown field",
		`{"kind":"tokn","queue":"in"}`:                   "/kind: ",
		`[]`:                                             "no JSON object",
		`null`:                                           "they are null",
		``:                                               "no JSON object",
	} {
		r := p.cliWith(input, nil, "sources", "put", "other")
		if r.code == 0 || !strings.Contains(r.stderr, want) {
			t.Errorf("%s: exit code %d, %q; want %q", input, r.code, r.stderr, want)
		}
	}
	p.cli("sources", "put", "other", "-f", file+".missing").wantError(exitUsage, "no such file")

	var tried struct {
		Verified bool
		Mapped   struct{ Type, Key string }
	}
	got := p.cliWith(`{"id":"a","kind":"order"}`, nil, "sources", "test", "shop", "-H", "Authorization: Bearer one").want(0).stdout
	if err := json.Unmarshal([]byte(got), &tried); err != nil || !tried.Verified || tried.Mapped.Type != "shop.order" || tried.Mapped.Key != "a" {
		t.Errorf("tested is %s, %v", got, err)
	}
	refused := p.cliWith(`{"id":"a"}`, nil, "sources", "test", "shop", "-H", "Authorization: Bearer two", "-o", "table")
	refused.wantError(exitFailure, "would be refused: signature_mismatch")
	if !strings.Contains(refused.stdout, "verified:  no") {
		t.Errorf("refused is\n%s", refused.stdout)
	}
	p.cliWith(`{}`, nil, "sources", "test", "shop", "-H", "Authorization").wantError(exitUsage, "a name, a colon and a value")
	if all := p.cli("sources", "-o", "table").want(0).stdout; !strings.Contains(all, "shop  token  in") {
		t.Errorf("listed is\n%s", all)
	}
	p.cli("sources", "delete", "shop").wantError(exitUsage, "--yes")
	p.cli("sources", "delete", "shop", "--yes").want(0)
	p.cli("sources", "delete", "shop", "--yes").wantError(3, "Source not found")
}

func TestPushesAreSetTestedRotatedAndDeleted(t *testing.T) {
	t.Parallel()
	p := setupSealing(t)
	headers := make(chan http.Header, 10)
	status := make(chan int, 10)
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		headers <- r.Header
		w.WriteHeader(<-status)
	}))
	t.Cleanup(endpoint.Close)
	type push struct {
		URL           string `json:"url"`
		Format        string
		Secret        string
		Headers       []string
		Secrets       []struct{}
		MaxInFlight   int   `json:"max_in_flight"`
		FinalStatuses []int `json:"final_statuses"`
		Timeout       string
		Rate          *struct{ Burst int }
	}
	get := func(args ...string) (got push) {
		t.Helper()
		text := p.cli(append([]string{"push"}, args...)...).want(0).stdout
		if err := json.Unmarshal([]byte(text), &got); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		return got
	}
	p.cli("push").wantError(exitUsage, `Run "queued push get --help"`)
	p.cli("push", "orders").wantError(3, "Push not found")
	p.cli("push", "set", "orders", "--max-in-flight", "5").wantError(exitUsage, "--to")
	p.cli("push", "set", "orders").wantError(exitUsage, "needs a setting")
	p.cli("push", "set", "orders", "--to", "ftp://example.com").wantError(exitFailure, "--to: ")
	if made := get("set", "orders", "--to", endpoint.URL, "-H", "X-A: b: c", "--final-statuses", "422,400", "--rate", "100"); !strings.HasPrefix(made.Secret, "whsec_") ||
		!slices.Equal(made.Headers, []string{"X-A"}) || !slices.Equal(made.FinalStatuses, []int{422, 400}) && !slices.Equal(made.FinalStatuses, []int{400, 422}) {
		t.Errorf("made is %+v", made)
	}
	changed := get("set", "orders", "--max-in-flight", "7", "--time-limit", "2s", "--burst", "9", "--format", "event")
	if changed.Secret != "" || changed.MaxInFlight != 7 || changed.Timeout != "2s" || changed.URL != endpoint.URL || len(changed.Headers) != 1 || len(changed.FinalStatuses) != 2 ||
		changed.Rate == nil || changed.Rate.Burst != 9 || changed.Format != "event" {
		t.Errorf("changed is %+v", changed)
	}
	for _, wrong := range [][]string{
		{"--time-limit", "1h"},
		{"--time-limit", "0s"},
		{"--max-in-flight", "0"},
		{"--final-statuses", "many"},
		{"--final-statuses", "200"},
		{"--rate", "0", "--burst", "2"},
		{"--no-headers", "--header", "A: b"},
		{"--format", "xml"},
	} {
		r := p.cli(append([]string{"push", "set", "orders"}, wrong...)...)
		if flag := strings.ReplaceAll(wrong[0], "--rate", "--burst"); r.code == 0 || !strings.Contains(strings.ReplaceAll(r.stderr, "/final_statuses", "--final-statuses"), flag) {
			t.Errorf("%q: exit code %d, %q", wrong, r.code, r.stderr)
		}
	}
	if got := get("orders"); got.MaxInFlight != 7 || got.Timeout != "2s" || got.Rate == nil {
		t.Errorf("after mistakes it is %+v", got)
	}
	if cleared := get("set", "orders", "--no-headers", "--rate", "0", "--final-statuses", "none"); len(cleared.Headers) != 0 || cleared.Rate != nil || len(cleared.FinalStatuses) != 0 {
		t.Errorf("cleared is %+v", cleared)
	}
	status <- http.StatusOK
	if got := p.cli("push", "test", "orders", "-o", "table").want(0).stdout; !strings.Contains(got, "delivered:  yes") {
		t.Errorf("tested is\n%s", got)
	}
	if h := <-headers; h.Get("X-A") != "" || !strings.HasPrefix(h.Get("Webhook-Id"), "test_") {
		t.Errorf("the header fields are %v", h)
	}
	status <- http.StatusTeapot
	p.cli("push", "test", "orders").wantError(exitFailure, "not delivered")
	if rotated := get("rotate", "orders", "--keep", "1h"); !strings.HasPrefix(rotated.Secret, "whsec_") || len(rotated.Secrets) != 2 {
		t.Errorf("rotated is %+v", rotated)
	}
	if rotated := get("rotate", "orders", "--keep", "0s"); len(rotated.Secrets) != 1 {
		t.Errorf("rotated at once is %+v", rotated)
	}
	p.cli("push", "rotate", "orders", "--keep", "-1s").wantError(exitUsage, "--keep")
	if got := p.cli("push", "enable", "orders", "-o", "table").want(0).stdout; !strings.Contains(got, "enabled") {
		t.Errorf("enabled is\n%s", got)
	}
	p.cli("push", "delete", "orders").wantError(exitUsage, "--yes")
	p.cli("push", "delete", "orders", "--yes").want(0)
	p.cli("push", "orders").wantError(3, "Push not found")
}
