package report

import "slices"

// Spread is the least, the middle and the greatest of a number's values in all rounds.
type Spread struct {
	Min    float64 `json:"min"`
	Median float64 `json:"median"`
	Max    float64 `json:"max"`
}

// spreadOf leaves out the rounds that have no value.
func spreadOf(rounds []*float64) Spread {
	var values []float64
	for _, value := range rounds {
		if value != nil {
			values = append(values, *value)
		}
	}
	if len(values) == 0 {
		return Spread{}
	}
	return Spread{Min: slices.Min(values), Median: Median(values), Max: slices.Max(values)}
}

// Median is the middle value, between the two middle ones of an even number of them; 0 of none.
func Median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	switch {
	case n == 0:
		return 0
	case n%2 == 0:
		return (sorted[n/2-1] + sorted[n/2]) / 2
	default:
		return sorted[n/2]
	}
}
