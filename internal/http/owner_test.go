package http

import (
	"strings"
	"testing"

	"github.com/queued/queued/internal/http/problem"
)

func TestPartsOfThePathAreTakenAsTheyWereMeant(t *testing.T) {
	t.Parallel()
	h := start(t, settings{})
	for sent, want := range map[string]string{"ada%40example.com": "ada@example.com", "a%2Bb": "a+b", "c+d": "c+d", "%61da": "ada"} {
		got := decode[seenOwner](h.try("PUT", "/owners/"+sent, `{"timezone":"Europe/London"}`).want(201))
		if got.ID != want {
			t.Errorf("%s became %s", sent, got.ID)
		}
	}
	for _, sent := range []string{"a%20b", "%00", "%C3%A4", strings.Repeat("a", 129)} {
		h.try("PUT", "/owners/"+sent, `{"timezone":"Europe/London"}`).wantProblem(problem.InvalidParameter)
	}
}
