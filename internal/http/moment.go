package http

import (
	"errors"
	"time"

	"github.com/queued/queued/internal/schedule"
)

// localTime writes a local date-time, which wears UTC's clothes, without a zone.
type localTime time.Time

// AppendText implements encoding.TextAppender.
func (t localTime) AppendText(b []byte) ([]byte, error) {
	return append(b, schedule.FormatLocal(time.Time(t))...), nil
}

// A moment is a local date-time or an instant, as its text says.
type moment schedule.Moment

func (m *moment) setText(text string) string {
	parsed, err := schedule.ParseMoment(text)
	var invalid *schedule.InvalidError
	if errors.As(err, &invalid) {
		return invalid.Detail + ", not " + quote(text)
	}
	*m = moment(parsed)
	return ""
}

func (*moment) wanted() string {
	return `a local time or an instant in a string, such as "2027-03-28T09:00:00" or "2027-03-28T07:00:00Z"`
}

// AppendText implements encoding.TextAppender.
func (m moment) AppendText(b []byte) ([]byte, error) {
	return append(b, schedule.Moment(m).String()...), nil
}
