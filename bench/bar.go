package main

import "strconv"

// bar is what queued promises of the ratio of two numbers of the same round. Without a least it is shown for comparison.
type bar struct {
	name  string
	value string
	of    []string // the greatest of those that were measured counts
	least float64
	goal  float64 // what we would like; 0: no more than the bar
}

// bars are those that take two parts. The others are judged by `queued bench` itself, which measures both sides.
var bars = []bar{
	{"single, 64 connections ÷ one-by-one floor", "single.64", []string{"floor.one"}, 2.5, 0},
	{"single, 256 connections ÷ one-by-one floor", "single.256", []string{"floor.one"}, 3, 4},
	{"batch ÷ River", "batch", []string{"river.bench", "river.copy"}, 1, 1.5},
	{"batch ÷ batch floor", "batch", []string{"floor.batch", "floor.batch2"}, 0.5, 0.67},
}

// peerBars compare with a peer, which is no bar.
func peerBars(peer string) []bar {
	return []bar{
		{"one-by-one floor ÷ " + peer, "floor.one", []string{peer + ".one"}, 0, 0},
		{"batch floor ÷ " + peer, "floor.batch", []string{peer + ".batch"}, 0, 0},
		{"single, 64 connections ÷ " + peer + ", one by one", "single.64", []string{peer + ".one"}, 0, 0},
		{"single, 256 connections ÷ " + peer + ", one by one", "single.256", []string{peer + ".one"}, 0, 0},
		{"batch ÷ " + peer + ", in batches", "batch", []string{peer + ".batch", peer + ".batch2"}, 0, 0},
	}
}

// in returns the ratio in a round, or false where one side is missing.
func (b *bar) in(r *results, round int) (float64, bool) {
	value, ok := r.at(b.value, round)
	if !ok {
		return 0, false
	}
	greatest := 0.0
	for _, name := range b.of {
		if of, ok := r.at(name, round); ok {
			greatest = max(greatest, of)
		}
	}
	if greatest <= 0 {
		return 0, false
	}
	return value / greatest, true
}

func (r *results) at(name string, round int) (float64, bool) {
	s := r.series(name)
	if s == nil || s.Rounds[round] == nil {
		return 0, false
	}
	return *s.Rounds[round], true
}

func (b *bar) holds(ratio float64) bool   { return ratio >= b.least }
func (b *bar) reaches(ratio float64) bool { return ratio >= b.goal }

// words writes the bar; a bar of nothing is none.
func (b *bar) words() string {
	if b.least == 0 {
		return ""
	}
	return atLeast(b.least)
}

func (b *bar) goalWords() string {
	if b.goal == 0 {
		return ""
	}
	return atLeast(b.goal)
}

func atLeast(v float64) string { return "≥ " + strconv.FormatFloat(v, 'f', -1, 64) }
func atMost(v float64) string  { return "≤ " + strconv.FormatFloat(v, 'f', -1, 64) }
