package main

import "time"

// results is everything that one run has found.
type results struct {
	Started  time.Time `json:"started"`
	Machine  machine   `json:"machine"`
	Rounds   int       `json:"rounds"`
	Duration string    `json:"duration"`
	Numbers  []series  `json:"numbers"`

	parts []part
}

// series is a number in all rounds.
type series struct {
	Name   string    `json:"name"`
	Unit   string    `json:"unit"`
	Rounds []float64 `json:"rounds"`
	spread
}

func (r *results) add(round int, got outcome) {
	for _, n := range got.numbers {
		s := r.series(n.name)
		if s == nil {
			r.Numbers = append(r.Numbers, series{Name: n.name, Unit: n.unit})
			s = &r.Numbers[len(r.Numbers)-1]
		}
		s.Rounds = append(s.Rounds, n.value)
		s.spread = spreadOf(s.Rounds)
	}
}

func (r *results) series(name string) *series {
	for i := range r.Numbers {
		if r.Numbers[i].Name == name {
			return &r.Numbers[i]
		}
	}
	return nil
}

func (r *results) missed() bool { return false }
