package workloads

import (
	"context"
	"fmt"
	"time"

	"github.com/queued/queued/bench/report"
)

// Soak is many events at full rate, to see whether the rate lasts and how large the tables get.
type Soak struct {
	Events      int           `least:"10" most:"1000000000" default:"5000000" placeholder:"N" help:"How many events to insert, claim and ack."`
	Singles     int           `least:"0" default:"0" placeholder:"N" help:"How many clients do so one event at a time."`
	Batches     int           `least:"0" default:"4" placeholder:"N" help:"How many clients do so with many at once."`
	Batch       int           `most:"1000" default:"100" placeholder:"N" help:"Events in each request of the latter."`
	Sizes       time.Duration `default:"5s" help:"How often to look at the sizes of the tables, with a database."`
	MaxDuration time.Duration `default:"6h" help:"End after this time in any case."`
}

func (*Soak) name() string { return "soak" }

func (w *Soak) check(Config) error {
	if w.Singles+w.Batches == 0 {
		return Invalidf("--singles and --batches are both 0: there are no clients")
	}
	return nil
}

func (w *Soak) run(ctx context.Context, s *session) error {
	srv, err := s.serve(ctx)
	if err != nil {
		return err
	}
	var looked time.Time
	result, err := s.measure(ctx, measurement{
		label: fmt.Sprintf("%d events", w.Events), server: srv,
		clients:  []clients{s.singles(w.Singles, nil), s.batches(w.Batches, w.Batch)},
		duration: w.MaxDuration, events: int64(w.Events),
		second: func(ctx context.Context, at *report.Second) {
			if srv.db != nil && time.Since(looked) >= w.Sizes {
				looked = time.Now()
				at.Values, _ = srv.db.sizes(ctx) // a look that fails leaves a gap
			}
		},
	})
	if err != nil {
		return err
	}
	s.add(result)
	if srv.db != nil {
		if result.Values, err = srv.db.sizes(ctx); err != nil {
			return err
		}
	}
	tenths := tenthsOf(result.Series)
	for i, rate := range tenths {
		result.Values[fmt.Sprintf("tenth_%02d_events_per_s", i+1)] = rate
	}
	if tenths[0] > 0 {
		s.compare("last tenth over first tenth", tenths[len(tenths)-1]/tenths[0])
	}
	return nil
}

// tenthsOf is the rates of the first tenth of all events, the second tenth, and so on. Within a second the events are
// taken to be evenly spread.
func tenthsOf(series []report.Second) (rates [10]float64) {
	var total float64
	for _, at := range series {
		total += float64(at.Events)
	}
	var events, last, begin float64
	tenth := 0
	for _, at := range series {
		n := float64(at.Events)
		for tenth < len(rates) && n > 0 && events+n >= total*float64(tenth+1)/10 {
			end := last + (total*float64(tenth+1)/10-events)/n*(at.Second-last)
			if end > begin {
				rates[tenth] = total / 10 / (end - begin)
			}
			begin = end
			tenth++
		}
		events += n
		last = at.Second
	}
	return rates
}
