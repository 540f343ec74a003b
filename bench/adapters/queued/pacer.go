package main

import "time"

// pacer says when jobs are due at a rate. It goes by the time that has passed, however often it is asked: what an insert that took long has held up is due
// afterwards.
type pacer struct {
	credit float64 // jobs
	last   time.Time
}

func newPacer(now time.Time) *pacer { return &pacer{last: now} }

// due returns how many jobs are due, at most so many, which are then taken as inserted. A rate of 0 forgets what was due.
func (p *pacer) due(now time.Time, rate float64, most int) int {
	passed := now.Sub(p.last)
	p.last = now
	if rate <= 0 {
		p.credit = 0
		return 0
	}
	p.credit += rate * max(0, passed.Seconds())
	n := int(min(p.credit, float64(most)))
	p.credit -= float64(n)
	return n
}
