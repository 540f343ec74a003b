package http

import (
	"compress/gzip"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/queued/queued/api"
)

func TestContractIsServedUnchanged(t *testing.T) {
	t.Parallel()
	h := setup(t)
	got := h.call("GET", "/openapi.yaml", "").want(200)
	if got.body+"\n" != string(api.OpenAPI) || got.header.Get("Content-Type") != "application/yaml" {
		t.Errorf("got %s, %d bytes", got.header.Get("Content-Type"), len(got.body))
	}
}

// TestDocsLoadNothingFromOtherHosts: the page's own assets name no other host, everything they name
// exists, and the page's policy makes the browser load from and call this server only.
func TestDocsLoadNothingFromOtherHosts(t *testing.T) {
	t.Parallel()
	h := setup(t)
	page := h.call("GET", "/docs", "").want(200)
	script := h.call("GET", "/docs/init.js", "").want(200)
	outside := regexp.MustCompile(`(?i)(https?:)?//[a-z0-9]|\bwss?:`)
	for _, part := range []string{page.body, script.body} {
		if found := outside.FindString(part); found != "" {
			t.Errorf("%q in\n%s", found, part)
		}
	}
	refs := regexp.MustCompile(`(?:src|href)="([^"]+)"`).FindAllStringSubmatch(page.body, -1)
	if len(refs) != 4 {
		t.Errorf("the page refers to %q", refs)
	}
	for _, ref := range refs {
		h.call("GET", "/"+ref[1], "").want(200)
	}
	for directive := range strings.SplitSeq(page.header.Get("Content-Security-Policy"), ";") {
		for _, source := range strings.Fields(directive)[1:] {
			switch source {
			case "'none'", "'self'", "data:":
			case "'unsafe-inline'":
				if !strings.HasPrefix(strings.TrimSpace(directive), "style-src") {
					t.Errorf("the policy allows inline code: %q", directive)
				}
			default:
				t.Errorf("the policy allows %q", directive)
			}
		}
	}
	if got := page.header.Get("X-Content-Type-Options"); got != "nosniff" {
		t.Errorf("X-Content-Type-Options is %q", got)
	}
}

func TestDocsAreServedCompressedOrPlain(t *testing.T) {
	t.Parallel()
	h := setup(t)
	plain := h.with("Accept-Encoding", "identity").call("GET", "/docs/swagger-ui.css", "").want(200)
	packed := h.with("Accept-Encoding", "gzip, br").call("GET", "/docs/swagger-ui.css", "").want(200)
	if packed.header.Get("Content-Encoding") != "gzip" || packed.header.Get("Etag") == plain.header.Get("Etag") {
		t.Errorf("got %v", packed.header)
	}
	zr, err := gzip.NewReader(strings.NewReader(packed.body))
	if err != nil {
		t.Fatal(err)
	}
	unpacked, err := io.ReadAll(zr)
	if err != nil {
		t.Fatal(err)
	}
	if string(unpacked) != plain.body || len(plain.body) <= len(packed.body) {
		t.Errorf("%d bytes unpacked, %d plain", len(unpacked), len(plain.body))
	}
	if got := h.with("Range", "bytes=0-9").call("GET", "/docs/swagger-ui.css", ""); got.status != http.StatusOK {
		t.Errorf("a range request returned %d, which is not in the contract", got.status)
	}
}

func TestIndexRedirectsBrowsersToThePages(t *testing.T) {
	t.Parallel()
	h := setup(t)
	got := h.with("Accept", "text/html,application/xhtml+xml,*/*;q=0.8").call("GET", "/", "").want(303)
	if got.header.Get("Location") != "ui/" {
		t.Errorf("Location is %q", got.header.Get("Location"))
	}
	if got := h.call("GET", "/", "").want(200).body; got != `{"name":"queued","version":"1.2.3","ui":"/ui/","docs":"/docs","openapi":"/openapi.yaml"}` {
		t.Errorf("got %s", got)
	}
	if got := h.call("GET", "/version", "").want(200).body; !strings.HasPrefix(got, `{"version":"1.2.3","go":"1.`) {
		t.Errorf("got %s", got)
	}
}
