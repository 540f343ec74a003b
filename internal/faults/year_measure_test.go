//go:build linux

package faults

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// yearRows has, for the tables that grow with what happens, which rows should be gone: upkeep comes once an hour, and has two more. Other tables have 200 rows at most.
var yearRows = map[string]string{
	"agent.event":                   `enqueued_at < now() - interval '75 hours'`, // the longest delay, and a redrive
	"agent.event_hist":              `event_ts < now() - interval '10 days 3 hours'`,
	"agent.idempotency":             `expires_at < now() - interval '3 hours'`,
	"agent.publication_key":         `expires_at < now() - interval '3 hours'`,
	"agent.execution":               `latest_at < now() - interval '30 days 3 hours'`,
	"agent.occurrence":              `fired_at < now() - interval '51 hours'`,
	"agent.log":                     `published_at < now() - interval '28 hours'`,
	"agent.audit":                   `at < now() - interval '51 hours'`,
	"agent.raw_body":                `kept_until < now() - interval '3 hours'`,
	"agent.push_delivery":           `at < now() - interval '7 days 3 hours'`,
	"agent.source_delivery":         `at < now() - interval '7 days 3 hours'`,
	"agent_private.deleted_api_key": `false`, // the ids of deleted keys are kept for good, so that no late copy brings a key back
	"agent.redrive":                 `finished_at < now() - interval '30 days 3 hours'`,
	"agent.queue_sample":            `at < now() - interval '8 days 4 hours'`,
	"agent.queue_outcome":           `at < now() - interval '7 days 3 hours'`,
	"agent.queue_outcome_hour":      `at < now() - interval '7 days 4 hours'`,
	"agent.queue_sampling":          `at < now() - interval '7 days 3 hours'`,
	"agent.process_metric":          `updated_at < now() - interval '3 hours'`,
	"agent.api_key":                 `expires_at < now() - interval '90 days 3 hours'`,
	"agent_private.session":         `expires_at < now() - interval '3 hours'`,
}

// A week is what there is at its end, and what it took, by names that begin with what is counted.
type week map[string]int

// weekSlack is how much more than half as much again the last week may have, or take, than an early one.
var weekSlack = map[string]int{"KiB": 12 << 10, "goroutines": 20, "ms": 2000, "rounds": 200, "rows": 50}

var loopRounds = regexp.MustCompile(`(?m)^queued_loop_(held_up_)?rounds_total\{loop="([^"]*)"\} (\S+)$`)

// measure measures a week, and checks which rows tables have.
func (y *year) measure() {
	y.t.Helper()
	w, totals := week{}, week{} // what was taken since the start
	for i, q := range y.services {
		pid := q.process.cmd.Process.Pid
		_, metrics := y.repeat(q, http.MethodGet, "/metrics", nil)
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		w[fmt.Sprintf("KiB of memory of process %d", i)] = numberAfter(string(status), "VmRSS:")
		w[fmt.Sprintf("goroutines of process %d", i)] = numberAfter(string(metrics), "\ngo_goroutines ")
		totals[fmt.Sprintf("ms of processor time of process %d", i)] = y.processorTime(pid)
		for _, found := range loopRounds.FindAllStringSubmatch(string(metrics), -1) {
			n, _ := strconv.ParseFloat(found[3], 64)
			if totals["rounds of "+found[2]] += int(n); found[1] != "" && n > 0 {
				y.violated("the loop %q of process %d was held up %v times", found[2], i, n)
			}
		}
	}
	totals["ms of processor time of PostgreSQL"] = y.processorTime(y.server.process.cmd.Process.Pid)
	for name, n := range totals {
		w[name] = n - y.totals[name]
	}
	y.totals = totals
	y.measureTables(w)
	y.weeks = append(y.weeks, w)
	line := fmt.Sprintf("week %d, until %s:", len(y.weeks), y.clock.now().Format(time.DateTime))
	for _, name := range slices.Sorted(maps.Keys(w)) {
		if !strings.HasPrefix(name, "rounds") && w[name] > 20 {
			line += fmt.Sprintf(" %s: %d;", name, w[name])
		}
	}
	y.t.Log(line)
}

func numberAfter(text, name string) int {
	_, rest, _ := strings.Cut(text, name)
	n, _ := strconv.Atoi(strings.Fields(rest + " 0")[0])
	return n
}

func (y *year) processorTime(pid int) (ms int) {
	for _, took := range processorTimes(y.t, pid) {
		ms += int(took.Milliseconds())
	}
	return ms
}

// measureTables counts the rows of all tables, and those that should be gone.
func (y *year) measureTables(w week) {
	y.t.Helper()
	rows, _ := y.conn.Query(y.t.Context(), `
		select format('%s.%s', c.relnamespace::regnamespace, c.relname) from pg_class c
		where c.relkind in ('r', 'p') and not c.relispartition and c.relnamespace::regnamespace::text like 'agent%'`)
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		y.t.Fatal(err)
	}
	for _, table := range append(tables, "pg_catalog.pg_class") {
		old, grows := yearRows[table]
		var n, late int
		if !grows {
			old = "false"
		}
		if err := y.conn.QueryRow(y.t.Context(), fmt.Sprintf(`select count(*), count(*) filter (where %s) from %s`, old, table)).Scan(&n, &late); err != nil {
			y.t.Fatalf("%s: %v", table, err)
		}
		w["rows of "+table] = n
		if late > 0 {
			y.violated("%d of the %d rows of %s should be gone", late, n, table)
		}
		if !grows && n > 200 && table != "pg_catalog.pg_class" {
			y.violated("%s has %d rows, and nothing here says how long they are kept", table, n)
		}
	}
	var size int
	if err := y.conn.QueryRow(y.t.Context(), `select pg_database_size(current_database()) / 1024`).Scan(&size); err != nil {
		y.t.Fatal(err)
	}
	w["KiB of the database"] = size
}

// compare compares the last week with the fourteenth, when what is kept for ninety days has come to its number, or with the first of few.
func (y *year) compare() {
	const full = 14
	if len(y.weeks) < 2 {
		return
	}
	early, last := y.weeks[0], y.weeks[len(y.weeks)-1]
	if len(y.weeks) > full {
		early = y.weeks[full-1]
	}
	for name, was := range early {
		unit, _, _ := strings.Cut(name, " ")
		if grows := strings.HasPrefix(name, "rows") || name == "KiB of the database"; grows && len(y.weeks) <= full {
			continue
		}
		if is := last[name]; is > was*3/2+weekSlack[unit] {
			y.violated("%s: %d in the last week, and %d in an early one", name, is, was)
		}
	}
}

// A yearSchedule is a schedule whose occurrences are worked out here from what days in its zone are, and not as the service does it.
type yearSchedule struct {
	name, zone, rule, topic string // rule: of cron or, with FREQ, of RFC 5545
	hour, minute            int    // local; hour -1: each
	isDay                   func(civil time.Time) bool
}

// Five zones, in four of which clocks change: among the times are some that they skip, and some that they show twice.
var yearSchedules = []yearSchedule{
	{name: "skipped", zone: "Europe/Berlin", rule: "30 2 * * *", hour: 2, minute: 30},
	{name: "repeated", zone: "America/New_York", rule: "30 1 * * *", hour: 1, minute: 30},
	{name: "last-friday", zone: "America/New_York", rule: "FREQ=MONTHLY;BYDAY=-1FR", hour: 17, isDay: func(civil time.Time) bool {
		return civil.Weekday() == time.Friday && civil.AddDate(0, 0, 7).Month() != civil.Month()
	}},
	{name: "half-an-hour", zone: "Australia/Lord_Howe", rule: "15 2 * * *", hour: 2, minute: 15},
	{name: "hourly", zone: "Asia/Kolkata", rule: "15 * * * *", hour: -1, minute: 15},
	{name: "workdays", zone: "Pacific/Auckland", rule: "30 2 * * 1-5", hour: 2, minute: 30, isDay: func(civil time.Time) bool {
		return civil.Weekday() != time.Saturday && civil.Weekday() != time.Sunday
	}},
	{name: "published", zone: "Europe/Berlin", rule: "0 9 * * *", topic: "report.due", hour: 9},
}

// body is the request that creates the schedule.
func (s yearSchedule) body() map[string]any {
	body := map[string]any{"event": map[string]any{"n": s.name}, "timezone": s.zone, "misfire": "all", "cron": s.rule, "queue": "fired"}
	if strings.HasPrefix(s.rule, "FREQ") {
		delete(body, "cron")
		body["rrule"], body["at"] = s.rule, "2030-01-25T17:00:00"
	}
	if s.topic != "" {
		delete(body, "queue")
		body["topic"] = s.topic
	}
	return body
}

// occurrences returns when the schedule comes after a time, until another one.
func (s yearSchedule) occurrences(after, until time.Time) (instants []time.Time) {
	zone, err := time.LoadLocation(s.zone)
	if err != nil {
		panic(err)
	}
	// by returns the time at which clocks would show a civil time, if they were as they are at another time.
	by := func(civil, at time.Time) time.Time {
		_, offset := at.In(zone).Zone()
		return civil.Add(-time.Duration(offset) * time.Second)
	}
	for day := after.Truncate(24*time.Hour).AddDate(0, 0, -2); day.Before(until.AddDate(0, 0, 2)); day = day.AddDate(0, 0, 1) {
		for hour := max(0, s.hour); hour == s.hour || s.hour < 0 && hour < 24; hour++ {
			civil := day.Add(time.Duration(hour)*time.Hour + time.Duration(s.minute)*time.Minute)
			// By the clocks of the day before, it is the first one of two, and one that is skipped comes later by the gap. They are wrong only where they have changed before it.
			at := by(civil, civil.Add(-24*time.Hour))
			if other := by(civil, civil.Add(24*time.Hour)); other.In(zone).Format(time.TimeOnly) == civil.Format(time.TimeOnly) && at.In(zone).Format(time.TimeOnly) != civil.Format(time.TimeOnly) {
				at = other
			}
			if (s.isDay == nil || s.isDay(civil)) && at.After(after) && !at.After(until) {
				instants = append(instants, at)
			}
		}
	}
	return instants
}

// expectOccurrences expects what the schedules do until a time. The clock runs on between two calls: each goes on from where the last one ended.
func (y *year) expectOccurrences(until time.Time) {
	after := y.expected
	y.expected = until
	for _, s := range yearSchedules {
		prefix := "fired "
		if s.topic != "" {
			prefix = "read "
		}
		for _, at := range s.occurrences(after, until) {
			y.expect(at, prefix+s.name+occurrence{at}.of())
		}
	}
}
