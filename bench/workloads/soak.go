package workloads

import (
	"context"
	"fmt"
	"time"
)

// Soak is many lives at full rate, to see whether the rate stays and what the tables grow to.
type Soak struct {
	Lives       int64         `name:"lives" default:"5000000" placeholder:"N" help:"How many lives to live."`
	Singles     int           `name:"singles" default:"0" placeholder:"N" help:"How many clients live one life at a time."`
	Batches     int           `name:"batches" default:"4" placeholder:"N" help:"How many clients live many lives at once."`
	Batch       int           `name:"batch" default:"100" placeholder:"N" help:"Events per request of the latter."`
	Sizes       time.Duration `name:"sizes" default:"5s" help:"How often to look at the sizes of the tables, with a database."`
	MaxDuration time.Duration `name:"max-duration" default:"6h" help:"End after this time in any case."`
}

func (*Soak) name() string { return "soak" }

func (w *Soak) check(Config) error {
	if w.Lives < 10 {
		return Invalidf("--lives: got %d; takes a whole number from 10 on", w.Lives)
	}
	if w.Singles < 0 || w.Batches < 0 || w.Singles+w.Batches == 0 || w.Singles+w.Batches > maxWorkers {
		return Invalidf("--singles, --batches: got %d and %d; takes whole numbers, at least one more than 0", w.Singles, w.Batches)
	}
	if err := checkNumber("--batch", w.Batch, 1, maxBatch); err != nil {
		return err
	}
	if err := checkDuration("--sizes", w.Sizes); err != nil {
		return err
	}
	return checkDuration("--max-duration", w.MaxDuration)
}

func (w *Soak) run(ctx context.Context, s *session) error {
	srv, err := s.serve(ctx)
	if err != nil {
		return err
	}
	queue := s.newQueue()
	var lives int64 // of the seconds that are over
	var looked time.Time
	result, err := s.measure(ctx, trial{
		label: fmt.Sprintf("%d lives", w.Lives), server: srv, queue: queue,
		tasks:  append(repeat(w.Singles, s.singles(srv, queue, nil)), repeat(w.Batches, s.batches(srv, queue, w.Batch))...),
		warmup: s.cfg.Warmup, duration: w.MaxDuration, series: true,
		until: func(m *meter) bool { return lives+m.events(acking) >= w.Lives },
		second: func(ctx context.Context, at *Second) {
			lives += at.Lives
			if srv.db == nil || time.Since(looked) < w.Sizes {
				return
			}
			looked = time.Now()
			at.Values, _ = srv.db.sizes(ctx) // a look that fails leaves a gap
		},
	})
	if err != nil {
		return err
	}
	s.report.add(result)
	if srv.db != nil {
		if result.Values, err = srv.db.sizes(ctx); err != nil {
			return err
		}
	}
	tenths := tenthsOf(result.Series)
	for i, rate := range tenths {
		result.Values[fmt.Sprintf("tenth_%02d_lives_per_s", i+1)] = rate
	}
	if tenths[0] > 0 {
		s.report.atLeast("last tenth over first tenth", tenths[len(tenths)-1]/tenths[0], flatBar)
	}
	return nil
}

// tenthsOf is the rates of the first tenth of all lives, the second tenth, and so on. Within a second the lives are
// taken to be evenly spread.
func tenthsOf(series []Second) [10]float64 {
	var total float64
	for _, at := range series {
		total += float64(at.Lives)
	}
	var ends [10]float64 // when each tenth was full
	var lives, last float64
	next := 0
	for _, at := range series {
		n := float64(at.Lives)
		for next < len(ends) && n > 0 && lives+n >= total*float64(next+1)/10 {
			part := (total*float64(next+1)/10 - lives) / n
			ends[next] = last + part*(at.Second-last)
			next++
		}
		lives += n
		last = at.Second
	}
	var rates [10]float64
	begin := 0.0
	for i, end := range ends {
		if end > begin {
			rates[i] = total / 10 / (end - begin)
		}
		begin = end
	}
	return rates
}

// sizes is how large the tables are, in MiB, and how many dead rows PostgreSQL knows of.
func (db *database) sizes(ctx context.Context) (map[string]float64, error) {
	var table, indexes, total, history, dead int64
	if err := db.conn.QueryRow(ctx, sizesStatement).Scan(&table, &indexes, &total, &history, &dead); err != nil {
		return nil, fmt.Errorf("asking for the sizes of the tables: %w", err)
	}
	const mib = 1 << 20
	return map[string]float64{
		"event_table_mib": float64(table) / mib, "event_indexes_mib": float64(indexes) / mib, "event_total_mib": float64(total) / mib,
		"history_total_mib": float64(history) / mib, "event_dead_rows": float64(dead),
	}, nil
}
