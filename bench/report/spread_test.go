package report

import "testing"

// rounds makes a series' rounds; a negative value stands for a round without one.
func rounds(values ...float64) []*float64 {
	all := make([]*float64, len(values))
	for i, value := range values {
		if value >= 0 {
			all[i] = &value
		}
	}
	return all
}

func TestSpreadIsOfTheRoundsThatWereMeasured(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		rounds []*float64
		want   Spread
	}{
		"none":               {nil, Spread{}},
		"none measured":      {rounds(-1, -1), Spread{}},
		"one":                {rounds(7), Spread{7, 7, 7}},
		"odd, out of order":  {rounds(3, 1, 2), Spread{1, 2, 3}},
		"even":               {rounds(4, 1, 2, 3), Spread{1, 2.5, 4}},
		"one was left out":   {rounds(3, -1, 1), Spread{1, 2, 3}},
		"nought is measured": {rounds(0, 2, 4), Spread{0, 2, 4}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := spreadOf(test.rounds); got != test.want {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}
