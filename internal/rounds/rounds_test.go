package rounds_test

import (
	"context"
	"errors"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/queued/queued/internal/rounds"
)

type collector struct{ *rounds.Counts }

func (collector) Describe(out chan<- *prometheus.Desc) { rounds.Describe(out) }

func TestLoopThatGetsNothingDoneIsHeldUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var counts rounds.Counts
		limiter := counts.Loop("a").Limiter()
		began, n := time.Now(), 0
		for time.Since(began) < time.Minute {
			if err := limiter.Pause(t.Context(), true); err != nil {
				t.Fatal(err)
			}
			n++
		}
		if n > 60*6 {
			t.Errorf("the loop made %d rounds in a minute, want 5 a second at most", n)
		}
		registry := prometheus.NewRegistry()
		registry.MustRegister(collector{&counts})
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := make(map[string]float64)
		for _, family := range families {
			metric := family.GetMetric()[0]
			got[family.GetName()+" "+metric.GetLabel()[0].GetValue()] = metric.GetCounter().GetValue()
		}
		want := map[string]float64{"queued_loop_rounds_total a": float64(n), "queued_loop_held_up_rounds_total a": float64(n - 8)}
		if !maps.Equal(got, want) {
			t.Errorf("the metrics are %v, want %v", got, want)
		}
	})
}

func TestLoopThatGetsSomethingDoneGoesOnAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var limiter rounds.Limiter
		began := time.Now()
		for i := range 10_000 {
			if err := limiter.Pause(t.Context(), i%8 != 0); err != nil { // and some rounds in between that do nothing
				t.Fatal(err)
			}
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("the loop was held up for %s", took)
		}
	})
}

func TestHeldUpLoopEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var limiter rounds.Limiter
	var err error
	for n := 0; err == nil && n < 100; n++ {
		err = limiter.Pause(ctx, true)
	}
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
}
