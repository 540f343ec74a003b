package http

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/queued/queued/internal/http/bind"
	"github.com/queued/queued/internal/schedule"
)

type preconditionRequest struct {
	IfMatch *precondition `header:"If-Match"`
}

func decodePrecondition(header http.Header) (preconditionRequest, error) {
	var req preconditionRequest
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header = header
	err := bind.New[preconditionRequest](testLimits).Decode(httptest.NewRecorder(), r, &req)
	return req, err
}

func TestIfMatchTriesTheVersionsItNames(t *testing.T) {
	t.Parallel()
	const there = 3
	many := strings.Repeat(`"1",`, maxVersions) + `"3"`
	for sent, want := range map[string]string{
		``:               "[any]",
		`*`:              "[any]",
		` * `:            "[any]",
		`"3"`:            "[3]",
		`W/"3"`:          "[3]",
		`"1", "3","4"`:   "[1 3]",
		`"1"`:            "[1] stale",
		`"1" , "2"`:      "[1 2] stale",
		`"x"`:            "[] stale",
		`"03", "+3", ""`: "[] stale",
		`3`:              `?`,
		`"3`:             `?`,
		`"3",`:           `?`,
		`"3" "4"`:        `?`,
		`*, "3"`:         `?`,
		`w/"3"`:          `?`,
		many:             `?`,
		"\"1\"\n\"3\"":   "[1 3]", // in two lines
	} {
		header := http.Header{"If-Match": strings.Split(sent, "\n")}
		if sent == "" {
			header = nil
		}
		req, err := decodePrecondition(header)
		got := "?"
		if err == nil {
			tried := []any{}
			err = req.IfMatch.try(func(version *int64) error {
				if version == nil {
					tried = append(tried, "any")
					return nil
				}
				if tried = append(tried, *version); *version != there {
					return fmt.Errorf("changing: %w", schedule.ErrStale)
				}
				return nil
			})
			got = fmt.Sprint(tried)
			if err != nil {
				got += " stale"
			}
		}
		if got != want {
			t.Errorf("If-Match: %.40s: got %s, want %s", sent, got, want)
		}
	}
}
