package schedule_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pgtest"
)

func TestSpecialLocalTimesResolveExactly(t *testing.T) {
	t.Parallel()
	env := setup(t)
	for _, c := range []struct {
		zone, local         string
		forward, next       string // the instants by these policies, where the local time lies in a gap
		first, last         string // the instants by these policies, elsewhere
		withoutGapOrOverlap string
	}{
		{zone: "Europe/Berlin", local: "2027-03-28T02:30:00", forward: "2027-03-28T01:30:00Z", next: "2027-03-28T01:00:00Z"},
		{zone: "Europe/Berlin", local: "2027-03-28T02:00:00", forward: "2027-03-28T01:00:00Z", next: "2027-03-28T01:00:00Z"},
		{zone: "Europe/Berlin", local: "2027-03-28T03:00:00", withoutGapOrOverlap: "2027-03-28T01:00:00Z"},
		{zone: "Europe/Berlin", local: "2027-03-28T01:59:59", withoutGapOrOverlap: "2027-03-28T00:59:59Z"},
		{zone: "Europe/Berlin", local: "2027-10-31T02:30:00", first: "2027-10-31T00:30:00Z", last: "2027-10-31T01:30:00Z"},
		{zone: "Europe/Berlin", local: "2027-10-31T02:00:00", first: "2027-10-31T00:00:00Z", last: "2027-10-31T01:00:00Z"},
		{zone: "Europe/Berlin", local: "2027-10-31T03:00:00", withoutGapOrOverlap: "2027-10-31T02:00:00Z"},
		{zone: "America/New_York", local: "2026-03-08T02:30:00", forward: "2026-03-08T07:30:00Z", next: "2026-03-08T07:00:00Z"},
		// Half an hour.
		{zone: "Australia/Lord_Howe", local: "2027-10-03T02:15:00", forward: "2027-10-02T15:45:00Z", next: "2027-10-02T15:30:00Z"},
		{zone: "Australia/Lord_Howe", local: "2027-04-04T01:45:00", first: "2027-04-03T14:45:00Z", last: "2027-04-03T15:15:00Z"},
		// Two hours.
		{zone: "Antarctica/Troll", local: "2027-03-28T02:00:00", forward: "2027-03-28T02:00:00Z", next: "2027-03-28T01:00:00Z"},
		{zone: "Antarctica/Troll", local: "2027-10-31T02:00:00", first: "2027-10-31T00:00:00Z", last: "2027-10-31T02:00:00Z"},
		// At midnight.
		{zone: "America/Sao_Paulo", local: "2018-11-04T00:30:00", forward: "2018-11-04T03:30:00Z", next: "2018-11-04T03:00:00Z"},
		{zone: "America/Sao_Paulo", local: "2018-02-17T23:30:00", first: "2018-02-18T01:30:00Z", last: "2018-02-18T02:30:00Z"},
		// A day that never was.
		{zone: "Pacific/Apia", local: "2011-12-30T12:00:00", forward: "2011-12-30T22:00:00Z", next: "2011-12-30T10:00:00Z"},
		{zone: "Pacific/Kwajalein", local: "1993-08-21T12:00:00", forward: "1993-08-22T00:00:00Z", next: "1993-08-21T12:00:00Z"},
		// A day that came twice.
		{zone: "Pacific/Kwajalein", local: "1969-09-30T12:00:00", first: "1969-09-30T01:00:00Z", last: "1969-10-01T00:00:00Z"},
		// Under two names.
		{zone: "Asia/Calcutta", local: "2027-01-01T00:00:00", withoutGapOrOverlap: "2026-12-31T18:30:00Z"},
		{zone: "Asia/Kolkata", local: "2027-01-01T00:00:00", withoutGapOrOverlap: "2026-12-31T18:30:00Z"},
		{zone: "Europe/Kiev", local: "2027-01-01T00:00:00", withoutGapOrOverlap: "2026-12-31T22:00:00Z"},
		// A zone whose name is that of an abbreviation, which knows no summer.
		{zone: "CET", local: "2027-07-01T12:00:00", withoutGapOrOverlap: "2027-07-01T10:00:00Z"},
		{zone: "UTC", local: "2027-07-01T12:00:00", withoutGapOrOverlap: "2027-07-01T12:00:00Z"},
	} {
		if !pgtest.Query[bool](t, env.sql, `select exists (select from pg_timezone_names where name = $1)`, c.zone) {
			t.Logf("the server does not know %s", c.zone)
			continue
		}
		for _, gap := range []string{"forward", "next", "skip"} {
			for _, overlap := range []string{"first", "last"} {
				want := c.withoutGapOrOverlap
				switch {
				case c.forward != "":
					want = map[string]string{"forward": c.forward, "next": c.next}[gap]
				case c.first != "":
					want = map[string]string{"first": c.first, "last": c.last}[overlap]
				}
				got := pgtest.Query[*time.Time](t, env.sql, `select agent.resolve_local($1, $2, $3, $4)`, local(t, c.local), c.zone, gap, overlap)
				if text := format(got); text != want {
					t.Errorf("%s in %s, gap %s, overlap %s: got %q, want %q", c.local, c.zone, gap, overlap, text, want)
				}
			}
		}
	}
}

func format(at *time.Time) string {
	if at == nil {
		return ""
	}
	return at.UTC().Format(time.RFC3339)
}

// segment is a stretch of time with one offset, by package time's own rules.
type segment struct {
	start, end time.Time // end is not in it
	offset     int
}

// segments returns those around a time.
func segments(loc *time.Location, from, to time.Time) (all []segment) {
	for at := from; at.Before(to); {
		start, end := at.In(loc).ZoneBounds()
		_, offset := at.In(loc).Zone()
		if start.IsZero() {
			start = from
		}
		if end.IsZero() || end.After(to) {
			end = to
		}
		all = append(all, segment{start.UTC(), end.UTC(), offset})
		at = end
	}
	return all
}

// independently is what agent.resolve_local promises, computed by package time's rules and in another way: by looking at each stretch.
func independently(loc *time.Location, local time.Time, gap, overlap string) *time.Time {
	all := segments(loc, local.Add(-60*time.Hour), local.Add(60*time.Hour))
	var found []time.Time
	for _, s := range all {
		if u := local.Add(-time.Duration(s.offset) * time.Second); !u.Before(s.start) && u.Before(s.end) {
			found = append(found, u)
		}
	}
	if len(found) > 0 {
		slices.SortFunc(found, time.Time.Compare)
		if overlap == "first" {
			return &found[0]
		}
		return &found[len(found)-1]
	}
	for i := 1; i < len(all); i++ {
		before, after := all[i-1], all[i]
		shows := func(s segment) time.Time { return after.start.Add(time.Duration(s.offset) * time.Second) }
		if !local.Before(shows(before)) && local.Before(shows(after)) {
			switch gap {
			case "forward":
				u := local.Add(-time.Duration(before.offset) * time.Second)
				return &u
			case "next":
				return &after.start
			}
			return nil
		}
	}
	panic(fmt.Sprintf("%s is nowhere in %s", local, loc))
}

// Every zone that the server and this machine agree on is tried, at local times around its changes of offset from 1970 to 2037, and at any. Whether they
// agree is found out by their offsets around each of those changes, and once a month.
func TestLocalTimesResolveAsAnIndependentComputationHasIt(t *testing.T) {
	t.Parallel()
	env := setup(t)
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)

	rows, err := env.sql.Query(t.Context(), `select name from pg_timezone_names where name !~ '^(posix|right)/' and name not in ('posixrules', 'Factory', 'localtime') order by 1`)
	if err != nil {
		t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	tried, gaps, overlaps := 0, 0, 0
	other := map[string]bool{}
	for _, name := range names {
		loc, err := time.LoadLocation(name)
		if err != nil {
			other[name] = true
			continue
		}
		first, last := time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2037, 12, 31, 0, 0, 0, 0, time.UTC)
		all := segments(loc, first, last)
		if !agree(t, env.sql, name, loc, all) {
			other[name] = true
			continue
		}
		tried++
		var locals []time.Time
		for range 12 {
			at := first.Add(time.Duration(random.Int64N(int64(last.Sub(first)))))
			if s := all[random.IntN(len(all))]; random.IntN(4) > 0 {
				at = s.start.Add(time.Duration(s.offset)*time.Second + time.Duration(random.Int64N(int64(4*time.Hour))) - 2*time.Hour)
				if random.IntN(8) == 0 {
					at = s.start.Add(time.Duration(s.offset) * time.Second)
				}
			}
			locals = append(locals, at.Truncate(time.Second))
		}
		for _, policy := range [][2]string{{"forward", "first"}, {"next", "last"}, {"skip", "first"}} {
			rows, err := env.sql.Query(t.Context(), `
				select agent.resolve_local(l, $2, $3, $4), (l at time zone $2) at time zone $2 = l and $2 like '%/%', l at time zone $2
				from unnest($1::timestamp[]) with ordinality as u (l, ord) order by ord`, locals, name, policy[0], policy[1])
			if err != nil {
				t.Fatal(err)
			}
			for i := 0; rows.Next(); i++ {
				var got *time.Time
				var isPlain bool
				var plain time.Time
				if err := rows.Scan(&got, &isPlain, &plain); err != nil {
					t.Fatal(err)
				}
				want := independently(loc, locals[i], policy[0], policy[1])
				if format(got) != format(want) {
					t.Errorf("%s in %s by %v: got %s, want %s", locals[i].Format("2006-01-02T15:04:05"), name, policy, format(got), format(want))
				}
				one, two := independently(loc, locals[i], "skip", "first"), independently(loc, locals[i], "skip", "last")
				switch {
				case one == nil:
					gaps++
				case !one.Equal(*two):
					overlaps++
				case isPlain && !plain.Equal(*got):
					t.Errorf("%s in %s is plainly %s, got %s", locals[i].Format("2006-01-02T15:04:05"), name, format(&plain), format(got))
				}
			}
			if err := rows.Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Logf("%d zones, %d times in a gap, %d in an overlap; not tried, as the rules differ: %v", tried, gaps, overlaps, slices.Sorted(maps.Keys(other)))
	if tried < 300 || len(other) > len(names)/5 || gaps < 100 || overlaps < 100 {
		t.Error("that is too few to tell")
	}
}

// agree reports whether the server's rules of a zone are those of package time. It asks by the setting, which no function of the schema takes part in.
func agree(t *testing.T, conn *pgx.Conn, name string, loc *time.Location, all []segment) bool {
	t.Helper()
	var instants []time.Time
	for _, s := range all {
		instants = append(instants, s.start.Add(-time.Second), s.start, s.end.Add(-time.Second))
	}
	for at := time.Date(1969, 12, 1, 0, 0, 0, 0, time.UTC); at.Year() < 2039; at = at.AddDate(0, 1, 0) {
		instants = append(instants, at)
	}
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), `select set_config('timezone', $1, true)`, name); err != nil {
		t.Fatal(err)
	}
	rows, err := tx.Query(t.Context(), `select extract(timezone from at)::int4 from unnest($1::timestamptz[]) with ordinality as u (at, ord) order by ord`, instants)
	if err != nil {
		t.Fatal(err)
	}
	offsets, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		t.Fatal(err)
	}
	for i, at := range instants {
		if _, offset := at.In(loc).Zone(); offset != offsets[i] {
			return false
		}
	}
	return true
}

func TestTransitionsAreFoundToTheSecond(t *testing.T) {
	t.Parallel()
	env := setup(t)
	got := pgtest.Query[[]time.Time](t, env.sql, `
		select array_agg(at order by at) from agent_private.zone_transitions('America/New_York', '2026-01-01Z', '2028-01-01Z', '7 days')`)
	want := []string{"2026-03-08T07:00:00Z", "2026-11-01T06:00:00Z", "2027-03-14T07:00:00Z", "2027-11-07T06:00:00Z"}
	if len(got) != len(want) {
		t.Fatalf("got %v, want %v", got, want)
	}
	for i, at := range got {
		if format(&at) != want[i] {
			t.Errorf("got %s, want %s", format(&at), want[i])
		}
	}
}

// Every name that the server lists is one, and none of those that it takes all the same.
func TestZonesAreKnownByTheirNamesAlone(t *testing.T) {
	t.Parallel()
	env := setup(t)
	var refused []string
	if err := env.sql.QueryRow(t.Context(), `
		select coalesce(array_agg(name), '{}') from pg_timezone_names
		where name !~ '^(posix|right)/|[0-9+-]' and name not in ('posixrules', 'Factory', 'localtime') and not agent_private.is_zone(name)`).Scan(&refused); err != nil {
		t.Fatal(err)
	}
	if len(refused) > 0 {
		t.Errorf("refused: %v", refused)
	}
	for _, name := range []string{"Etc/GMT+5", "America/Port-au-Prince", "EST5EDT"} {
		if pgtest.Query[bool](t, env.sql, `select exists (select from pg_timezone_names where name = $1)`, name) && !pgtest.Query[bool](t, env.sql, `select agent_private.is_zone($1)`, name) {
			t.Errorf("refused: %s", name)
		}
	}
	for _, name := range []string{
		"", "Local", "local", "localtime", "posixrules", "Factory", "posix/Europe/Berlin", "right/Europe/Berlin", "europe/berlin", "Europe/berlin", "EUROPE/BERLIN", "utc",
		"FOO+3", "FOO3", "Foo/Bar+5", "<+03>-3", "PST", "CEST", "MSK", "default", "interval", "Europe", "Europe/", "Europe/Atlantis", "/etc/localtime", "../UTC", "./UTC", "UTC ", " UTC", "UTC\n",
		"5", "+5", "zone.tab", "tzdata.zi", "leapseconds", strings.Repeat("A", 1000),
	} {
		if pgtest.Query[bool](t, env.sql, `select agent_private.is_zone($1)`, name) {
			t.Errorf("taken: %q", name)
		}
	}
	if zone := pgtest.Query[string](t, env.sql, `select current_setting('timezone') from agent_private.is_zone('Asia/Tokyo')`); zone == "Asia/Tokyo" {
		t.Error("the session's time zone is another afterwards")
	}
}
