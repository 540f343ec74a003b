package schedule

import (
	"strings"
	"time"
)

// localLayout is how a local date-time is written, as RFC 3339 without an offset.
const localLayout = "2006-01-02T15:04:05.999999"

// Moment is a local date-time, whose zone is given elsewhere, or an instant.
type Moment struct {
	Time      time.Time // in UTC; a local date-time wears UTC's clothes
	IsInstant bool
}

// ParseMoment reads "2027-03-28T09:00:00" as a local date-time, and the same with Z or an offset as an instant. Seconds may
// be left out, and may have a fraction down to microseconds. Anything else, and a year beyond 1 to 9999, is an *InvalidError without a field.
func ParseMoment(s string) (Moment, error) {
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04Z07:00"} {
		if t, err := time.Parse(layout, s); err == nil {
			return checkedMoment(Moment{Time: t.UTC(), IsInstant: true})
		}
	}
	for _, layout := range []string{"2006-01-02T15:04:05", "2006-01-02T15:04"} {
		if t, err := time.Parse(layout, s); err == nil && !strings.Contains(s, ",") {
			return checkedMoment(Moment{Time: t})
		}
	}
	return Moment{}, &InvalidError{Detail: `must be a local date-time like 2027-03-28T09:00:00, or an instant like 2027-03-28T07:00:00Z`}
}

func checkedMoment(m Moment) (Moment, error) {
	if m.Time.Year() < 1 || m.Time.Year() > 9999 {
		return Moment{}, &InvalidError{Detail: "must lie within the years 1 to 9999"}
	}
	m.Time = m.Time.Truncate(time.Microsecond)
	return m, nil
}

// String writes m as ParseMoment reads it.
func (m Moment) String() string {
	if m.IsInstant {
		return m.Time.UTC().Format(time.RFC3339Nano)
	}
	return FormatLocal(m.Time)
}

// FormatLocal writes a local date-time that wears UTC's clothes: 2027-03-28T09:00:00.
func FormatLocal(t time.Time) string { return t.Format(localLayout) }

// local returns the local part of a moment that may be none, for SQL.
func (m *Moment) local() *time.Time {
	if m == nil || m.IsInstant {
		return nil
	}
	return &m.Time
}

// instant returns the instant of a moment that may be none, for SQL.
func (m *Moment) instant() *time.Time {
	if m == nil || !m.IsInstant {
		return nil
	}
	return &m.Time
}
