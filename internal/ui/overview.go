package ui

import (
	"fmt"
	"math"
	"net/url"
	"strings"
	"time"

	"github.com/queued/queued/client"
)

// A Window is a time that charts are of, up to now.
type Window struct {
	Name   string // as the parameter range has it: 1h, 6h, …
	Text   string // last hour, last 6 hours, …
	Each   string // its buckets: minute, 5 minutes, …
	Length time.Duration
	Bucket time.Duration
}

// Windows are those that a page offers, the first by default.
var Windows = []Window{
	{"1h", "last hour", "minute", time.Hour, time.Minute},
	{"6h", "last 6 hours", "5 minutes", 6 * time.Hour, 5 * time.Minute},
	{"24h", "last 24 hours", "15 minutes", 24 * time.Hour, 15 * time.Minute},
	{"7d", "last 7 days", "2 hours", 7 * 24 * time.Hour, 2 * time.Hour},
}

// WindowOf returns the window of a name, the first one if that is empty, and whether there is one.
func WindowOf(name string) (w Window, ok bool) {
	for _, w := range Windows {
		if name == "" || w.Name == name {
			return w, true
		}
	}
	return Window{}, false
}

// NarrowEach is Each for a narrow screen, where charts have fewer bars.
func (w Window) NarrowEach() string {
	bar := time.Duration(perNarrowBar(int(w.Length/w.Bucket))) * w.Bucket
	if bar%time.Hour == 0 {
		return Count(int(bar/time.Hour), "hour", "hours")
	}
	return Count(int(bar/time.Minute), "minute", "minutes")
}

// Overview is the page that says how all queues are. Parts of it whose read failed have a problem in their place.
type Overview struct {
	Query    url.Values // of the page
	Window   Window
	Stats    client.QueuesOverview
	Findings []Finding
	// Unknown says which reads failed that findings are taken from: without them there may be more.
	Unknown       []string
	Errors        client.HistoryErrors
	Subscriptions []client.Subscription
	Schedules     []client.Schedule
	Redrives      []Redrive // those that run, the latest first
}

// unfolded is how many findings are shown at once.
const unfolded = 5

// First are the findings that are shown at once, and Folded the others.
func (o *Overview) First() []Finding { return o.Findings[:min(len(o.Findings), unfolded)] }

// Folded are the findings after the first ones.
func (o *Overview) Folded() []Finding { return o.Findings[len(o.First()):] }

// A Finding is something that an operator should look at.
type Finding struct {
	IsBad   bool // it does harm now; false: it may do
	Subject string
	Link    string // of the subject, a path under /ui/; empty: none
	Text    string
	When    []Moment
	Trend   any    // a drawing; nil: none
	More    string // in small print; empty: none
	Button  string // what to look at, and where it is; empty: no button
	Target  string
	Form    *Confirm // its Action and Fields, and a Button that does something about it; nil: none
}

// A Moment is a time with the words that stand before it, such as "last" before "8 min ago". One without a time is not shown.
type Moment struct {
	Text string
	At   time.Time
}

// Buckets are the outcomes of all queues, as a chart has them.
func (o *Overview) Buckets() []Bucket {
	buckets := make([]Bucket, len(o.Stats.Outcomes))
	for i, b := range o.Stats.Outcomes {
		buckets[i] = Bucket{b.Start, int64(b.Done), int64(b.Failed), int64(b.Expired), int64(b.Cancelled)}
	}
	return buckets
}

// Ended is the filter of history that the figures of the window are of.
func (o *Overview) Ended() url.Values { return url.Values{"finished_from": {o.Window.Name}} }

// Bad counts the events that failed or expired.
func (o *Overview) Bad() int { return o.Stats.Totals.Failed + o.Stats.Totals.Expired }

// PerSecond is how many events were done in a second, on average.
func (o *Overview) PerSecond() float64 {
	return float64(o.Stats.Totals.Done) / o.Stats.To.Sub(o.Stats.From).Seconds()
}

// Waiting returns a drawing of the ready events of a queue over the window.
func (o *Overview) Waiting(q client.OverviewQueue) any {
	return sparkOf(q, o.Window)
}

// Failing returns a drawing of the failures of a queue over the window.
func (o *Overview) Failing(q *client.OverviewQueue) any {
	points := make([]float64, len(q.FailedSeries))
	most := 0
	for i, n := range q.FailedSeries {
		points[i], most = float64(n), max(most, n)
	}
	return Spark(fmt.Sprintf("failures each %s, %s: at most %s", o.Window.Each, o.Window.Text, number(most)), points, true)
}

// sparkOf draws the ready events of a queue over a window.
func sparkOf(q client.OverviewQueue, w Window) any {
	points := make([]float64, len(q.ReadySeries))
	const unknown = "unknown"
	first, last := unknown, unknown
	for i, n := range q.ReadySeries {
		if points[i] = math.NaN(); n != nil {
			points[i] = float64(*n)
			if last = number(*n); first == unknown {
				first = last
			}
		}
	}
	if last == unknown {
		return "–"
	}
	return Spark(fmt.Sprintf("ready, %s: from %s to %s", w.Text, first, last), points, q.Failed+q.Expired > 0)
}

// Queues is the page of all queues, or of those with some text in their names.
type Queues struct {
	Query  url.Values // of the page
	Window Window
	Order  string
	Stats  client.QueuesOverview
	Offset int
	Pager  Pager
}

// Waiting returns a drawing of the ready events of a queue over the window.
func (q *Queues) Waiting(one client.OverviewQueue) any { return sparkOf(one, q.Window) }

// Last is the number of the last queue that is shown.
func (q *Queues) Last() int { return q.Offset + len(q.Stats.Queues) }

// Queue is the page of one queue.
type Queue struct {
	client.Queue
	Query  url.Values // of the page
	Window Window
	Stats  client.QueueSeries
	Events []client.Event
	Errors client.HistoryErrors // of the window: the first causes
	// Stopped are the groups that have stopped for a failed event.
	Stopped []Finding
	// Groups are those in which the most events wait, of a queue whose groups have limits, or anything is set for.
	Groups  []client.Group
	PostKey string // the nonce of the form, so that sending it twice posts one event
}

// blockers are the reasons for which groups wait, as a page says how many do.
var blockers = [][2]string{
	{client.BlockedByConcurrency, "by concurrency"},
	{client.BlockedByTotal, "by the limit of the queue"},
	{client.BlockedByOrder, "by order"},
	{client.BlockedByRate, "by rate"},
	{client.BlockedByHold, "held"},
	{client.BlockedByPause, "paused"},
	{client.BlockedByQueue, "as the queue is paused"},
}

// BlockedGroups says how many of the groups wait, by what for, and how many events do in the one that has the most; empty: none.
func (q *Queue) BlockedGroups() string {
	counts := make(map[string]int)
	longest := 0
	for _, g := range q.Groups {
		if g.BlockedBy != nil {
			counts[g.BlockedBy.Reason]++
		}
		longest = max(longest, g.Waiting)
	}
	var blocked []string
	for _, b := range blockers {
		if n := counts[b[0]]; n > 0 {
			blocked = append(blocked, number(n)+" "+b[1])
		}
	}
	if len(blocked) == 0 {
		return ""
	}
	text := "blocked: " + strings.Join(blocked, ", ")
	if longest > 0 {
		text += "; " + Count(longest, "event waits", "events wait") + " in the longest line"
	}
	return text
}

// Buckets are the outcomes of the queue, as a chart has them.
func (q *Queue) Buckets() []Bucket {
	buckets := make([]Bucket, len(q.Stats.Buckets))
	for i, b := range q.Stats.Buckets {
		buckets[i] = Bucket{b.Start, int64(b.Done), int64(b.Failed), int64(b.Expired), int64(b.Cancelled)}
	}
	return buckets
}

// Ended is the filter of history that the figures of the window are of.
func (q *Queue) Ended() url.Values {
	return url.Values{"queue": {q.Queue.Queue}, "finished_from": {q.Window.Name}}
}

// Bad counts the events that failed or expired.
func (q *Queue) Bad() int { return q.Stats.Totals.Failed + q.Stats.Totals.Expired }

// Depth draws what waited over time.
func (q *Queue) Depth() any {
	return Lines("Events in the queue over time", q.times(),
		Series{Name: "ready", Class: "a", Points: q.points(func(b *client.SeriesBucket) *float64 { return floatOf(b.Ready) })},
		Series{Name: "scheduled", Class: "b", Points: q.points(func(b *client.SeriesBucket) *float64 { return floatOf(b.Scheduled) })},
		Series{Name: "waiting", Class: "d", Points: q.points(func(b *client.SeriesBucket) *float64 { return floatOf(b.Waiting) })},
		Series{Name: "leased", Class: "c", Points: q.points(func(b *client.SeriesBucket) *float64 { return floatOf(b.Leased) })})
}

// DepthRows writes the rows of the table behind Depth and Times.
func (q *Queue) DepthRows() any {
	return rows(len(q.Stats.Buckets), func(row int) []string {
		b := &q.Stats.Buckets[row]
		return []string{
			string(exact(b.Start)), number(b.Ready), number(b.Scheduled), number(b.Waiting), number(b.Leased),
			milliseconds(b.WaitP50MS), milliseconds(b.WaitP95MS), milliseconds(b.ProcessingP50MS), milliseconds(b.ProcessingP95MS),
		}
	})
}

// Times draws how long events waited and were worked on.
func (q *Queue) Times() any {
	format := func(ms float64) string { return Duration(time.Duration(ms * float64(time.Millisecond))) }
	return Lines("Wait and processing over time", q.times(),
		Series{Name: "wait, p95", Class: "a", Format: format, Points: q.points(func(b *client.SeriesBucket) *float64 { return b.WaitP95MS })},
		Series{Name: "processing, p95", Class: "b", Format: format, Points: q.points(func(b *client.SeriesBucket) *float64 { return b.ProcessingP95MS })})
}

func (q *Queue) times() []time.Time {
	times := make([]time.Time, len(q.Stats.Buckets))
	for i, b := range q.Stats.Buckets {
		times[i] = b.Start
	}
	return times
}

// points returns a value of each bucket; NaN where there is none.
func (q *Queue) points(value func(*client.SeriesBucket) *float64) []float64 {
	points := make([]float64, len(q.Stats.Buckets))
	for i := range q.Stats.Buckets {
		points[i] = math.NaN()
		if v := value(&q.Stats.Buckets[i]); v != nil {
			points[i] = *v
		}
	}
	return points
}

func floatOf(n *int) *float64 {
	if n == nil {
		return nil
	}
	f := float64(*n)
	return &f
}
