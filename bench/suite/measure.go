package suite

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/queued/queued/bench/workloads"
)

// measure runs every wanted part in every round, in turns, so that what disturbs the machine for a while disturbs them all.
// Parts that fail are in the error; the results hold the others.
func (c *Config) measure(ctx context.Context, target workloads.Config) (*results, error) {
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(target.Progress, format+"\n", args...) }
	s := &server{url: target.DatabaseURL}
	if _, err := s.urlOf(""); err != nil {
		return nil, err
	}
	surroundings, err := lookAround(ctx, s)
	if err != nil {
		return nil, fmt.Errorf("the database server: %w", err)
	}
	if len(surroundings.Careless) > 0 {
		if !c.Careless {
			return nil, fmt.Errorf("this server may lose commits (%s): what is measured on it means nothing; --careless does it all the same",
				strings.Join(surroundings.Careless, ", "))
		}
		say("THIS SERVER MAY LOSE COMMITS: %s", strings.Join(surroundings.Careless, ", "))
	}
	parts, err := c.parts(target)
	if err != nil {
		return nil, err
	}

	found := &results{
		Started: time.Now().UTC().Truncate(time.Second), Machine: surroundings, Rounds: c.Rounds, Duration: c.Duration.String(),
	}
	for _, p := range parts {
		found.Parts = append(found.Parts, about{p.name, p.about, p.command})
	}
	err = c.runRounds(ctx, s, parts, found, say)
	found.compare(bars)
	for _, name := range slices.Sorted(maps.Keys(c.Peers)) {
		found.compare(peerBars(name))
	}
	return found, err
}

// quiet is how busy the processors of a machine to measure on may be with something else.
const quiet = 0.1

// runRounds fills in the results. The error is that of a run cut short, or tells that parts have failed.
func (c *Config) runRounds(ctx context.Context, s *server, parts []part, found *results, say func(string, ...any)) error {
	for round := range c.Rounds {
		for _, p := range parts {
			say("round %d of %d: %s", round+1, c.Rounds, p.name)
			got, err := p.measureOnce(ctx, s, c.Duration)
			if ctx.Err() != nil {
				return errors.New("interrupted: the results are incomplete")
			}
			if err != nil {
				say("  failed: %s", err)
				found.Failures = append(found.Failures, fmt.Sprintf("round %d: %s", round+1, err))
			}
			if got.busy > quiet {
				note := fmt.Sprintf("round %d: %s: %.0f %% of the processors were busy before it began", round+1, p.name, 100*got.busy)
				say("  %s", note)
				found.Disturbed = append(found.Disturbed, note)
			}
			for _, n := range got.numbers {
				say("  %-28s %12s %s", n.name, figure(n.value), n.unit)
			}
			found.add(round, got)
		}
	}
	if len(found.Failures) > 0 {
		return fmt.Errorf("%d runs failed", len(found.Failures))
	}
	return nil
}
