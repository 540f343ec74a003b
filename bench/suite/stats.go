package suite

import "slices"

// spread is the least, the middle and the greatest of a number's values in all rounds.
type spread struct {
	Min    float64 `json:"min"`
	Median float64 `json:"median"`
	Max    float64 `json:"max"`
}

// spreadOf leaves out the rounds that have no value.
func spreadOf(rounds []*float64) spread {
	var sorted []float64
	for _, value := range rounds {
		if value != nil {
			sorted = append(sorted, *value)
		}
	}
	if len(sorted) == 0 {
		return spread{}
	}
	slices.Sort(sorted)
	middle := len(sorted) / 2
	median := sorted[middle]
	if len(sorted)%2 == 0 {
		median = (sorted[middle-1] + sorted[middle]) / 2
	}
	return spread{Min: sorted[0], Median: median, Max: sorted[len(sorted)-1]}
}
