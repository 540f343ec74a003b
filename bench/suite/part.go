package suite

import (
	"context"
	"fmt"
	"time"
)

// part is one thing to measure, on a database of its own, made anew for every run.
type part struct {
	name    string // numbers are named after it
	about   string
	command string // what it runs, for the reader of the results
	// run measures for about the duration, on the empty database.
	run func(ctx context.Context, db database, duration time.Duration) (outcome, error)
}

// database is a part's own.
type database struct {
	server *server
	name   string
	url    string
}

// outcome is what one run of a part has found.
type outcome struct {
	numbers []number
	busy    float64 // the part of the processors that something else used just before
}

// number is a measured value. Its name is unique in all parts.
type number struct {
	name  string
	value float64
	unit  string
}

// measureOnce makes the part's database, runs the part, and drops the database.
func (p *part) measureOnce(ctx context.Context, s *server, duration time.Duration) (result outcome, err error) {
	busy := busyShare(ctx)
	name := databaseName(p.name)
	url, err := s.fresh(ctx, name)
	if err != nil {
		return outcome{}, err
	}
	defer func() {
		dropping, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		if dropped := s.drop(dropping, name); err == nil {
			err = dropped
		}
	}()
	result, err = p.run(ctx, database{server: s, name: name, url: url}, duration)
	if err != nil {
		return outcome{}, fmt.Errorf("%s: %w", p.name, err)
	}
	result.busy = busy
	return result, nil
}
