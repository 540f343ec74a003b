package ui

import (
	"cmp"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/queued/queued/client"
)

// Schedules is the page of all schedules, or of those that a filter lets through.
type Schedules struct {
	Filter    url.Values // as it was entered: owner, queue, status, order and due_before
	IsBySoon  bool       // in the order of their next runs, else of their creation
	Schedules []client.Schedule
	Pager     Pager
}

// Schedule is the page of one schedule.
type Schedule struct {
	client.Schedule
	Hidden      bool  // the payload is not to be shown
	Runs        []Run // the next ones
	Asked       int   // how many runs were asked for
	Occurrences []client.Occurrence
	Pager       Pager
}

// ScheduleForm is the form of a new schedule, or (with an ID) of a change to one.
type ScheduleForm struct {
	client.Schedule
	Hidden  bool   // the payload is not to be shown: it stays as it is unless another one is entered
	Key     string // the nonce of the form, so that sending it twice creates one schedule
	IsTried bool   // Runs are those of what was entered
	Runs    []Run
}

// Path is where the form is sent to, under /ui/: with /preview or, to store it, /change or /create after it.
func (f *ScheduleForm) Path() string {
	if f.ID == 0 {
		return "schedules"
	}
	return fmt.Sprintf("schedules/%d", f.ID)
}

// CountText is the bound of the number of runs; empty: none.
func (f *ScheduleForm) CountText() string {
	if f.Count == 0 {
		return ""
	}
	return strconv.Itoa(f.Count)
}

// PayloadText is the payload as it can be changed: all of it, over several lines unless it is long. Empty: it is not to be shown.
func (f *ScheduleForm) PayloadText() string {
	if f.Hidden {
		return ""
	}
	if shown, isCut := indentUpTo(f.Payload, MaxShown); !isCut {
		return shown
	}
	return unescape(string(f.Payload))
}

// Data is the payload as the page shows it.
func (s *Schedule) Data() *JSONText { return NewJSONText(s.Payload) }

// Owners is the page of all owners.
type Owners struct {
	Owners []client.Owner
	Pager  Pager
}

// A Run is one time to come of a schedule.
type Run struct {
	client.Instant
	Offset string // of the local time from UTC, such as UTC+05:30
	Says   string // what is special about it; empty: nothing
}

// Runs returns the times to come as a page shows them. A change of the clocks is seen where the offset is not that of the run before.
func Runs(instants []client.Instant) []Run {
	runs := make([]Run, len(instants))
	for i, at := range instants {
		runs[i] = Run{Instant: at}
		switch at.Note {
		case "skipped":
			runs[i].Says = "the clocks skip this local time: it is moved"
			continue // the offset is that of no clock
		case "repeated":
			runs[i].Says = "the clocks show this local time twice"
		}
		local, err := time.Parse("2006-01-02T15:04:05.999999", at.Local)
		if err != nil {
			continue
		}
		runs[i].Offset = offset(local.Sub(at.UTC.UTC()))
		if runs[i].Says == "" && i > 0 && runs[i-1].Offset != "" && runs[i-1].Offset != runs[i].Offset {
			runs[i].Says = "another offset than the run before: the clocks change"
		}
	}
	return runs
}

// offset writes the distance of a local time from UTC: UTC, UTC+05:30, UTC−03:00.
func offset(d time.Duration) string {
	sign := "+"
	if d < 0 {
		sign, d = "−", -d
	}
	if d = d.Round(time.Second); d == 0 {
		return "UTC"
	}
	text := fmt.Sprintf("UTC%s%02d:%02d", sign, int(d.Hours()), int(d.Minutes())%60)
	if seconds := int(d.Seconds()) % 60; seconds != 0 {
		text += fmt.Sprintf(":%02d", seconds)
	}
	return text
}

// ScheduleName returns the name of a schedule, or what stands for one that has none.
func ScheduleName(s client.Schedule) string { return cmp.Or(s.Name, fmt.Sprintf("Schedule %d", s.ID)) }

// ruleOf returns when a schedule comes, as far as it can be said without working it out.
func ruleOf(s client.Schedule) string {
	switch s.Kind {
	case "cron":
		return "cron " + s.Cron
	case "rrule":
		return strings.TrimPrefix(s.RRule, "RRULE:")
	}
	return "once, at " + localText(s.At)
}

// boundsOf returns what bounds the times of a schedule; empty: nothing does.
func boundsOf(s client.Schedule) string {
	var parts []string
	if s.At != "" && s.Kind == "rrule" {
		parts = append(parts, "begins at "+localText(s.At))
	}
	if s.Starts != "" {
		parts = append(parts, "not before "+localText(s.Starts))
	}
	if s.Ends != "" {
		parts = append(parts, "not after "+localText(s.Ends))
	}
	if s.Count != 0 {
		parts = append(parts, "at most "+Count(s.Count, "time", "times"))
	}
	return strings.Join(parts, ", ")
}

// localText writes a local time, or an instant, with a space in the place of the T.
func localText(at string) string { return strings.Replace(at, "T", " ", 1) }
