package main

import (
	"slices"
	"time"
)

// results is everything that one run has found.
type results struct {
	Started   time.Time `json:"started"`
	Machine   machine   `json:"machine"`
	Rounds    int       `json:"rounds"`
	Duration  string    `json:"duration"` // of one run of a part
	Parts     []about   `json:"parts"`
	Numbers   []*series `json:"numbers"`
	Bars      []*ratio  `json:"bars"`
	Failures  []string  `json:"failures,omitempty"`
	Disturbed []string  `json:"disturbed,omitempty"` // by something else on the machine
}

// about is a part for the reader.
type about struct {
	Name    string `json:"name"`
	About   string `json:"about"`
	Command string `json:"command"`
}

// series is a number in all rounds.
type series struct {
	Name   string     `json:"name"`
	Unit   string     `json:"unit,omitempty"`
	Rounds []*float64 `json:"rounds"` // null: not measured in that round
	spread
}

// ratio is a bar in all rounds.
type ratio struct {
	Name   string     `json:"name"`
	Bar    string     `json:"bar,omitempty"`  // empty: for comparison only
	Goal   string     `json:"goal,omitempty"` // beyond the bar
	Rounds []*float64 `json:"rounds"`
	spread
	Verdict string `json:"verdict"`

	held []bool // per round that was measured
}

// What became of a bar.
const (
	verdictHeld     = "held"
	verdictGoal     = "held, the goal too"
	verdictMissed   = "missed"
	verdictPartly   = "missed in some rounds"
	verdictUnsure   = "not measured in all rounds"
	verdictUnjudged = "for comparison"
)

// add takes in what a part found in a round.
func (r *results) add(round int, got outcome) {
	for _, n := range got.numbers {
		s := r.series(n.name)
		if s == nil {
			s = &series{Name: n.name, Unit: n.unit, Rounds: make([]*float64, r.Rounds)}
			r.Numbers = append(r.Numbers, s)
		}
		s.Rounds[round] = &n.value
		s.spread = spreadOf(s.Rounds)
	}
	for _, v := range got.verdicts {
		i := slices.IndexFunc(r.Bars, func(b *ratio) bool { return b.Name == v.name })
		if i < 0 {
			i = len(r.Bars)
			r.Bars = append(r.Bars, &ratio{Name: v.name, Bar: v.bar, Rounds: make([]*float64, r.Rounds)})
		}
		b := r.Bars[i]
		b.Rounds[round] = &v.value
		b.held = append(b.held, v.ok)
		b.judge(false)
	}
}

func (r *results) series(name string) *series {
	i := slices.IndexFunc(r.Numbers, func(s *series) bool { return s.Name == name })
	if i < 0 {
		return nil
	}
	return r.Numbers[i]
}

// compare judges the bars that two parts' numbers make together, round by round.
func (r *results) compare(bars []bar) {
	for _, b := range bars {
		found := &ratio{Name: b.name, Bar: b.words(), Goal: b.goalWords(), Rounds: make([]*float64, r.Rounds)}
		beyond := true
		for round := range r.Rounds {
			value, ok := b.in(r, round)
			if !ok {
				continue
			}
			found.Rounds[round] = &value
			found.held = append(found.held, b.holds(value))
			beyond = beyond && b.goal > 0 && b.reaches(value)
		}
		if len(found.held) == 0 {
			continue // its parts were not asked for
		}
		found.judge(beyond)
		r.Bars = append(r.Bars, found)
	}
}

// judge sets the spread and the verdict. A bar is held when it is in every round.
func (b *ratio) judge(beyondGoal bool) {
	b.spread = spreadOf(b.Rounds)
	missed := 0
	for _, held := range b.held {
		if !held {
			missed++
		}
	}
	switch {
	case b.Bar == "":
		b.Verdict = verdictUnjudged
	case missed == len(b.held):
		b.Verdict = verdictMissed
	case missed > 0:
		b.Verdict = verdictPartly
	case len(b.held) < len(b.Rounds):
		b.Verdict = verdictUnsure
	case beyondGoal:
		b.Verdict = verdictGoal
	default:
		b.Verdict = verdictHeld
	}
}

// missed tells whether any bar was not held.
func (r *results) missed() bool {
	return slices.ContainsFunc(r.Bars, func(b *ratio) bool {
		return b.Verdict != verdictHeld && b.Verdict != verdictGoal && b.Verdict != verdictUnjudged
	})
}
