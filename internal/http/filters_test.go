package http

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/queued/queued/internal/http/problem"
)

func TestFiltersEndWithTheTimeOfTheirRequest(t *testing.T) {
	t.Parallel()
	h := setupWith(t, settings{http: func(cfg *Config) { cfg.RequestTimeout = time.Nanosecond }})
	for _, call := range [][3]string{
		{"PUT", "/subscriptions/mailer", `{"filters":[{"match":{"a":[]}}]}`}, // it is over before anything is refused
		{"POST", "/match", `{"filter":{"topics":["a"]},"events":[{"topic":"a","event":{}}]}`},
	} {
		h.call(call[0], call[1], call[2]).wantProblem(problem.Overloaded)
	}
}

// An endingContext ends when it has been asked a number of times.
type endingContext struct {
	context.Context
	left int
}

func (c *endingContext) Err() error {
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}

func TestFiltersAreCompiledUntilTheClientHasGone(t *testing.T) {
	t.Parallel()
	filters := slices.Repeat([]namedFilter{{subscribedFilter: subscribedFilter{filterBody: filterBody{Match: []byte(`{"a":[1]}`)}}}}, 1000)
	for asked := range 3 {
		filters[asked].Match = []byte(`{"a":[]}`) // what comes after is looked at all the same
		if _, err := compileFilters(&endingContext{t.Context(), asked}, filters); !errors.Is(err, context.Canceled) {
			t.Errorf("%d filters: %v", asked, err)
		}
	}
}

func TestFiltersAreCompiledUntilAProblemListsNoMore(t *testing.T) {
	t.Parallel()
	filters := slices.Repeat([]namedFilter{{subscribedFilter: subscribedFilter{filterBody: filterBody{Match: []byte(`{"a":[]}`)}}}}, 1000)
	// It asks once for each filter that it looks at.
	_, err := compileFilters(&endingContext{t.Context(), problem.MaxFieldErrors}, filters)
	refused, ok := errors.AsType[*problem.Problem](err)
	if !ok || len(refused.Errors) != problem.MaxFieldErrors {
		t.Errorf("%v", err)
	}
}
