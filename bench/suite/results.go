package suite

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
}

func (r *results) series(name string) *series {
	i := slices.IndexFunc(r.Numbers, func(s *series) bool { return s.Name == name })
	if i < 0 {
		return nil
	}
	return r.Numbers[i]
}

// compare judges bars.
func (r *results) compare(bars []bar) {
	for _, b := range bars {
		r.Bars = append(r.Bars, b.judge(r)...)
	}
}

// ran tells whether a part was asked for.
func (r *results) ran(part string) bool {
	return slices.ContainsFunc(r.Parts, func(p about) bool { return p.Name == part })
}

// missed tells whether any bar was not held.
func (r *results) missed() bool {
	return slices.ContainsFunc(r.Bars, func(b *ratio) bool {
		return b.Verdict != verdictHeld && b.Verdict != verdictGoal && b.Verdict != verdictUnjudged
	})
}
