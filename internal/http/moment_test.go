package http

import (
	"testing"

	"github.com/queued/queued/internal/schedule"
)

type momentRequest struct {
	At **moment `json:"at"`
}

func TestMomentIsALocalTimeOrAnInstant(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{"at":"2027-03-28T09:00:00"}`:       "2027-03-28T09:00:00",
		`{"at":"2027-03-28T09:00"}`:          "2027-03-28T09:00:00",
		`{"at":"2027-03-28T09:00:00Z"}`:      "2027-03-28T09:00:00Z",
		`{"at":"2027-03-28T09:00:00+02:00"}`: "2027-03-28T07:00:00Z",
		`{"at":null}`:                        "null",
		`{}`:                                 "",
		`{"at":"9:00"}`:                      "validation_failed\n#/at must be a local date-time like 2027-03-28T09:00:00, or an instant like 2027-03-28T07:00:00Z, not \"9:00\"",
		`{"at":5}`:                           `validation_failed` + "\n" + `#/at must be a string, not 5`,
	} {
		req, err := decodeAs[momentRequest]("/", body)
		got := ""
		switch {
		case err != nil:
			got = bad(err)
		case req.At != nil && *req.At != nil:
			got = schedule.Moment(**req.At).String()
		case req.At != nil:
			got = "null"
		}
		if got != want {
			t.Errorf("%s: got %s, want %s", body, got, want)
		}
	}
}
