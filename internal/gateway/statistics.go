package gateway

import (
	"cmp"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Statistics over cells: what each of them says is added up, or listed together.

// toldOf is for statistics of which the cells that cells names have a part: join makes one answer of theirs to a query that is the caller's with changes.
func toldOf(cells func(g *Gateway, r *http.Request) ([]*cell, error), change func(query url.Values), join func(query url.Values, parts []statedPart) (*object, error)) chooser {
	return func(g *Gateway, c *call, r *http.Request) error {
		found, err := cells(g, r)
		if err != nil {
			return err
		}
		c.queue = cmp.Or(pathValue(r, "name"), queryOf(r, "queue", ""))
		g.answerFrom(c, found, r, func(r *http.Request) error {
			query := r.URL.Query()
			if change != nil {
				change(query)
			}
			return g.answerJoined(c, r, found, query, func(parts []statedPart) (*object, error) { return join(r.URL.Query(), parts) })
		})
		return nil
	}
}

// everCells returns the cells where events of the queue in the path may have ended.
func everCells(g *Gateway, r *http.Request) ([]*cell, error) {
	return g.cellsEver(pathValue(r, "name"))
}

// untilNow has all cells mean the same time when the query does not say until when.
func untilNow(query url.Values) {
	if !query.Has("to") {
		query.Set("to", time.Now().UTC().Truncate(time.Microsecond).Format(time.RFC3339Nano))
	}
}

// withLimit returns a change of the query that asks each cell for as much as it gives, if the limit of the caller is one that cells take.
func withLimit(absent, most int) func(query url.Values) {
	return func(query url.Values) {
		if _, isLimit := limitOf(query, absent, most); isLimit {
			query.Set("limit", fmt.Sprint(most))
		}
	}
}

// joinRows makes one list of those in a member of each part. Rows with the same name are one: join adds the second to the first. twice is how many were.
func joinRows(parts []statedPart, member string, nameOf func(row *object) string, join func(into, row *object)) (rows []*object, twice int64, err error) {
	known := make(map[string]*object)
	for i := range parts {
		list, err := parts[i].body.list(member)
		if err != nil {
			return nil, 0, fmt.Errorf("cell %s: %s: %w", parts[i].at.label, member, err)
		}
		for _, row := range list {
			name := nameOf(row)
			if into := known[name]; into != nil {
				join(into, row)
				twice++
				continue
			}
			known[name] = row
			rows = append(rows, row)
		}
	}
	return rows, twice, nil
}

// cut returns the first rows of a list, as many as the query asks for.
func cut(rows []*object, query url.Values, absent int) []*object {
	limit, _ := limitOf(query, absent, math.MaxInt32)
	return rows[:min(len(rows), limit)]
}

// joined returns what parts say beside a list, by rules.
func joined(by rules, parts []statedPart) *object {
	all := parts[0].body
	for i := range parts[1:] {
		by.join(all, parts[i+1].body)
	}
	return all
}

var executionRules = rules{"cycles": sum, "total_ms": sumFloat, "fastest_ms": smallest, "longest_ms": largest, "last_at": latest}

// joinExecutions adds up the times that events took, by type and worker.
func joinExecutions(_ url.Values, parts []statedPart) (*object, error) {
	rows, _, err := joinRows(parts, "executions", func(row *object) string { return row.text("type") + "\x00" + row.text("worker") }, func(into, row *object) {
		if row.time("last_at").compare(into.time("last_at")) > 0 {
			into.set("last_ms", row.get("last_ms"))
		}
		executionRules.join(into, row)
		if cycles := into.int("cycles"); cycles > 0 {
			into.setFloat("average_ms", into.float("total_ms")/float64(cycles))
		}
	})
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(rows, func(a, b *object) int {
		return cmp.Or(strings.Compare(a.text("type"), b.text("type")), strings.Compare(a.text("worker"), b.text("worker")))
	})
	all := parts[0].body
	all.setList("executions", rows)
	return all, nil
}

// rowsByCell returns the rows of all parts, each with its cell.
func rowsByCell(parts []statedPart, member string) (rows []*object, err error) {
	for i := range parts {
		list, err := parts[i].body.list(member)
		if err != nil {
			return nil, fmt.Errorf("cell %s: %s: %w", parts[i].at.label, member, err)
		}
		for _, row := range list {
			row.set("cell", jsontext.Value(parts[i].at.label))
			rows = append(rows, row)
		}
	}
	return rows, nil
}

// joinProcesses lists the processes of all cells.
func joinProcesses(_ url.Values, parts []statedPart) (*object, error) {
	rows, err := rowsByCell(parts, "processes")
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(rows, func(a, b *object) int {
		return cmp.Or(strings.Compare(a.text("process"), b.text("process")), strings.Compare(a.text("id"), b.text("id")))
	})
	all := parts[0].body
	all.setList("processes", rows)
	return all, nil
}

// holderKinds are the kinds of what holds others back, in the order of the list, and maxHolders is how many of each are listed.
var holderKinds = []string{"log_head", "transaction", "prepared_transaction", "replication_slot", "hidden_sessions", "lease", "exhausted"}

const maxHolders = 100

// joinHolders lists what holds others back in all cells: the oldest of each kind first.
func joinHolders(_ url.Values, parts []statedPart) (*object, error) {
	ofKind := make(map[string]int64)
	for i := range parts {
		list, err := parts[i].body.list("holders")
		if err != nil {
			return nil, fmt.Errorf("cell %s: holders: %w", parts[i].at.label, err)
		}
		seen := make(map[string]bool)
		for _, row := range list {
			if kind := row.text("kind"); !seen[kind] {
				seen[kind] = true
				ofKind[kind] += row.int("of_kind")
			}
		}
	}
	rows, err := rowsByCell(parts, "holders")
	if err != nil {
		return nil, err
	}
	place := func(row *object) int {
		if i := slices.Index(holderKinds, row.text("kind")); i >= 0 {
			return i
		}
		return len(holderKinds)
	}
	slices.SortStableFunc(rows, func(a, b *object) int {
		return cmp.Or(cmp.Compare(place(a), place(b)), strings.Compare(a.text("kind"), b.text("kind")), a.time("since").compare(b.time("since")))
	})
	var kept []*object
	listed := make(map[string]int)
	for _, row := range rows {
		kind := row.text("kind")
		if listed[kind]++; listed[kind] <= maxHolders {
			row.set("of_kind", fmt.Append(nil, ofKind[kind]))
			kept = append(kept, row)
		}
	}
	all := joined(rules{"complete": both}, parts)
	all.setList("holders", kept)
	return all, nil
}

var workerRules = rules{
	"queues": union, "leases": sum, "oldest_lease": chosen(opposite(compareLeases)), "ended": sum, "failed": sum, "longest_ms": largest, "last_seen_at": latest,
}

// compareLeases compares leases by the times of their claims.
func compareLeases(a, b jsontext.Value) int {
	left, err := parseObject(a)
	if err != nil {
		return 0
	}
	right, err := parseObject(b)
	if err != nil {
		return 0
	}
	return left.time("claimed_at").compare(right.time("claimed_at"))
}

// joinWorkers adds up what is known of workers: those with most leases first, then those seen last.
func joinWorkers(query url.Values, parts []statedPart) (*object, error) {
	rows, twice, err := joinRows(parts, "workers", func(row *object) string { return row.text("worker") }, func(into, row *object) {
		if ended, more := into.float("ended"), row.float("ended"); ended+more > 0 && into.get("average_ms") != nil && row.get("average_ms") != nil {
			into.setFloat("average_ms", (into.float("average_ms")*ended+row.float("average_ms")*more)/(ended+more))
		} else if into.get("average_ms") == nil && row.get("average_ms") != nil {
			into.set("average_ms", row.get("average_ms"))
		}
		workerRules.join(into, row)
	})
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(rows, func(a, b *object) int {
		return cmp.Or(cmp.Compare(b.int("leases"), a.int("leases")), b.time("last_seen_at").compare(a.time("last_seen_at")), strings.Compare(a.text("worker"), b.text("worker")))
	})
	all := joined(rules{"total": sum, "counted_since": latest, "complete": both}, parts)
	all.set("total", fmt.Append(nil, all.int("total")-twice))
	all.setList("workers", cut(rows, query, defaultPage))
	return all, nil
}

// maxCauses is how many causes a cell lists, and defaultCauses how many unless the caller says so.
const defaultCauses, maxCauses = 20, 100

var causeRules = rules{"count": sum, "queues": union, "types": union, "first_at": earliest, "last_at": latest}

// joinCauses adds up failures by their cause: those of most failures first.
func joinCauses(query url.Values, parts []statedPart) (*object, error) {
	rows, twice, err := joinRows(parts, "errors", func(row *object) string { return row.text("cause") }, func(into, row *object) {
		if row.time("last_at").compare(into.time("last_at")) > 0 {
			into.set("example", row.get("example"))
		}
		causeRules.join(into, row)
	})
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(rows, func(a, b *object) int {
		return cmp.Or(cmp.Compare(b.int("count"), a.int("count")), b.time("last_at").compare(a.time("last_at")), strings.Compare(a.text("cause"), b.text("cause")))
	})
	all := joined(rules{"causes": sum, "looked_at": sum, "complete": both}, parts)
	all.set("causes", fmt.Append(nil, all.int("causes")-twice))
	all.setList("errors", cut(rows, query, defaultCauses))
	return all, nil
}

var outcomeRules = rules{"done": sum, "failed": sum, "expired": sum, "cancelled": sum, "complete": both}

// joinBuckets adds up buckets of time in a member of parts, by rules.
func joinBuckets(parts []statedPart, member string, by rules, also func(into, row *object)) ([]*object, error) {
	rows, _, err := joinRows(parts, member, func(row *object) string { return row.text("start") }, func(into, row *object) {
		by.join(into, row)
		if also != nil {
			also(into, row)
		}
	})
	slices.SortStableFunc(rows, func(a, b *object) int { return a.time("start").compare(b.time("start")) })
	return rows, err
}

// joinHistoryStats adds up counts of history.
func joinHistoryStats(_ url.Values, parts []statedPart) (*object, error) {
	rows, err := joinBuckets(parts, "buckets", outcomeRules, nil)
	if err != nil {
		return nil, err
	}
	all := parts[0].body
	all.setList("buckets", rows)
	return all, nil
}

// boundRules join since when there are statistics, and up to when: only what all cells have is whole.
var boundRules = rules{"since": latest, "sampled_at": earliest, "counted_through": earliest, "complete": both, "live": both, "counted": sum}

// joinBounds is joined by boundRules. A bound that a cell does not know is null.
func joinBounds(parts []statedPart, also rules) *object {
	var unknown []string
	for _, name := range []string{"since", "sampled_at", "counted_through"} {
		if slices.ContainsFunc(parts, func(p statedPart) bool { return p.body.get(name) == nil }) {
			unknown = append(unknown, name)
		}
	}
	all := joined(boundRules, parts)
	for i := range parts[1:] {
		also.join(all, parts[i+1].body)
	}
	for _, name := range unknown {
		all.set(name, jsontext.Value("null"))
	}
	return all
}

// percentiles are the members that are made of bins: the share of durations that they bound, and the bins.
var percentiles = []struct {
	name, bins string
	share      float64
}{
	{"wait_p50_ms", "wait_bins", 0.5},
	{"wait_p95_ms", "wait_bins", 0.95},
	{"processing_p50_ms", "processing_bins", 0.5},
	{"processing_p95_ms", "processing_bins", 0.95},
}

// A bin is the number of one, and how many durations are in it.
type bin [2]int64

// joinBins adds bins.
func joinBins(a, b jsontext.Value) jsontext.Value {
	counts := make(map[int64]int64)
	for _, value := range []jsontext.Value{a, b} {
		for _, one := range binsIn(value) {
			counts[one[0]] += one[1]
		}
	}
	added := make([]bin, 0, len(counts))
	for number, count := range counts {
		added = append(added, bin{number, count})
	}
	slices.SortFunc(added, func(a, b bin) int { return cmp.Compare(a[0], b[0]) })
	text, err := json.Marshal(added)
	if err != nil {
		panic(err) // integers always encode
	}
	return text
}

func binsIn(value jsontext.Value) (all []bin) {
	if json.Unmarshal(value, &all) != nil {
		return nil
	}
	return all
}

// percentile returns the duration that bounds a share of those in bins, in milliseconds, as servers have it; ok is false if there are none. The bins are in the order of their numbers.
func percentile(bins []bin, share float64) (milliseconds float64, ok bool) {
	var total, soFar int64
	for _, one := range bins {
		total += one[1]
	}
	for _, one := range bins {
		if soFar += one[1]; float64(soFar) >= float64(total)*share {
			if one[0] == 0 {
				return 1, true
			}
			return math.Pow(1.1, float64(one[0])) / 1.05, true
		}
	}
	return 0, false
}

// setPercentiles sets the percentiles of an object that has some, anew from its bins, which stay only if the caller has asked for them.
func setPercentiles(o *object, keepsBins bool) {
	for _, p := range percentiles {
		if _, has := o.values[p.name]; !has {
			continue
		}
		if milliseconds, ok := percentile(binsIn(o.get(p.bins)), p.share); ok {
			o.setFloat(p.name, milliseconds)
		} else {
			o.set(p.name, jsontext.Value("null"))
		}
	}
	if !keepsBins {
		o.remove("wait_bins")
		o.remove("processing_bins")
	}
}

// keepsBins reports whether the caller has asked for bins.
func keepsBins(query url.Values) bool {
	keeps, _ := flagOf(query, "bins")
	return keeps
}

var totalsRules = rules{"done": sum, "failed": sum, "expired": sum, "cancelled": sum, "wait_bins": joinBins, "processing_bins": joinBins}

var seriesRules = rules{
	"samples": smallest, "ready": sum, "scheduled": sum, "waiting": sum, "leased": sum, "oldest_ready_age_ms": largest, "estimated": either, "max_ready": sum, "complete": both,
	"done": sum, "failed": sum, "expired": sum, "cancelled": sum, "wait_bins": joinBins, "processing_bins": joinBins,
}

// joinSeries adds up the statistics of a queue over time.
func joinSeries(query url.Values, parts []statedPart) (*object, error) {
	rows, err := joinBuckets(parts, "buckets", seriesRules, nil)
	if err != nil {
		return nil, err
	}
	totals, err := joinMember(parts, "totals", totalsRules)
	if err != nil {
		return nil, err
	}
	all := joinBounds(parts, nil)
	for _, o := range append(slices.Clone(rows), totals) {
		setPercentiles(o, keepsBins(query))
	}
	all.set("totals", totals.appendTo(nil))
	all.setList("buckets", rows)
	return all, nil
}

// joinMember joins objects that are members of parts.
func joinMember(parts []statedPart, name string, by rules) (*object, error) {
	var all *object
	for i := range parts {
		one, err := parseObject(parts[i].body.values[name])
		switch {
		case err != nil:
			return nil, fmt.Errorf("cell %s: %s: %w", parts[i].at.label, name, err)
		case all == nil:
			all = one
		default:
			by.join(all, one)
		}
	}
	return all, nil
}

// seriesQuery changes the query of statistics over time.
func seriesQuery(query url.Values) {
	untilNow(query)
	if len(query["bins"]) <= 1 && (!query.Has("bins") || query.Get("bins") == "false") {
		query.Set("bins", "true")
	}
}
