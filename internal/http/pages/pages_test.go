package pages

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/rs/zerolog"

	"github.com/queued/queued/internal/ui"
)

func TestAPageThatCannotBeRenderedIsAnError(t *testing.T) {
	t.Parallel()
	h := &Handler{cfg: Config{Logger: zerolog.Nop(), Now: time.Now}}
	p := h.pageOfNobody(httptest.NewRequestWithContext(t.Context(), http.MethodGet, Prefix, http.NoBody))
	p.Name, p.View = "queue", struct{}{} // which the template of a queue cannot show
	p.Form = map[string][]string{"event": {"{}"}}
	answer := httptest.NewRecorder()
	h.write(answer, p, http.StatusOK)
	if body := answer.Body.String(); answer.Code != http.StatusInternalServerError || !strings.Contains(body, "could not be rendered") || !strings.Contains(body, "</html>") {
		t.Errorf("status %d: %q", answer.Code, body)
	}
	if p.View == nil || p.Name != "queue" || (p.Problem != (*ui.Problem)(nil)) {
		t.Error("the page was changed")
	}
}

// Whatever a browser sends, the calls that pages make for it have a header of their own: a gateway adds its key to that.
func TestCallsOfPagesHaveNothingOfTheHeaderOfTheBrowser(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var headers []http.Header // of the calls of one request, which a page may make side by side
	h := New(Config{
		Logger: zerolog.Nop(), Now: time.Now,
		Call: func(w http.ResponseWriter, r *http.Request, _ Viewer) {
			mu.Lock()
			headers = append(headers, r.Header)
			mu.Unlock()
			_, _ = w.Write([]byte("{}"))
		},
	})
	own := map[string]bool{"Accept": true, "User-Agent": true, "Content-Type": true, "Idempotency-Key": true, "If-Match": true, "If-None-Match": true}
	queries := map[string]string{"find": "?id=1", "history/download": "?format=csv", "history/requeue": "?id=1"}
	parameters := regexp.MustCompile(`{\w+}`)
	calls := map[string]int{}
	err := chi.Walk(h.mux, func(method, route string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		path := strings.TrimPrefix(route, Prefix)
		if path == "live" { // which has no end, and is the page that it is for, with another header
			return nil
		}
		r := httptest.NewRequestWithContext(t.Context(), method, Prefix+parameters.ReplaceAllString(path, "1")+queries[path], http.NoBody)
		r.Header = http.Header{
			"Connection": {"Queued-As, Authorization"}, "Authorization": {"Bearer x"}, "Queued-As": {"x"}, "Cookie": {"a=b"}, "X-Of-The-Browser": {"1"}, "Range": {"bytes=0-1"},
			"If-None-Match": {"of the browser"}, "If-Match": {"of the browser"}, "Idempotency-Key": {"of the browser"}, "Accept": {"of the browser"}, "User-Agent": {"of the browser"},
			"Accept-Encoding": {"gzip"}, "Te": {"trailers"}, "Upgrade": {"h2c"}, "X-Forwarded-For": {"127.0.0.1"}, "Content-Type": {"application/x-www-form-urlencoded"},
		}
		mu.Lock()
		headers = nil
		mu.Unlock()
		h.ServeHTTP(httptest.NewRecorder(), r)
		mu.Lock()
		defer mu.Unlock()
		calls[method] += min(1, len(headers))
		for _, header := range headers {
			for name, values := range header {
				if !own[name] || strings.Contains(strings.Join(values, ","), "of the browser") {
					t.Errorf("%s %s makes a call with %s: %q", method, route, name, values)
				}
			}
		}
		return nil
	})
	if err != nil || calls[http.MethodGet] < 40 || calls[http.MethodPost] < 10 {
		t.Errorf("%v; the calls by method are %v", err, calls)
	}
}
