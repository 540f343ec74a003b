package pages

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/queued/queued/internal/ui"
)

func TestAPageThatCannotBeRenderedIsAnError(t *testing.T) {
	t.Parallel()
	h := &Handler{cfg: Config{Logger: zerolog.Nop()}}
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
