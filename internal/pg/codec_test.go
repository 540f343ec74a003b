package pg_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// connect returns a prepared connection that has results sent in binary, or as text.
func connect(t *testing.T, url string, mode pgx.QueryExecMode) *pgx.Conn {
	t.Helper()
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	cfg.DefaultQueryExecMode = mode
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	pg.RegisterTypes(conn.TypeMap())
	return conn
}

// modes are ways to run a statement: the first has its results in binary, the second as text.
var modes = map[string]pgx.QueryExecMode{"binary": pgx.QueryExecModeCacheStatement, "text": pgx.QueryExecModeExec}

func TestEveryTimestampIsReadAsOneThatRFC3339Has(t *testing.T) {
	t.Parallel()
	url := pgtest.New(t).URL
	at := time.Date(2026, 7, 1, 12, 30, 15, 123_456_000, time.UTC)
	for what, mode := range modes {
		conn := connect(t, url, mode)
		for text, want := range map[string]time.Time{
			"infinity":                         pg.MaxTime,
			"-infinity":                        pg.MinTime,
			"294276-12-31 23:59:59.999999+00":  pg.MaxTime,
			"10000-01-01 00:00:00+00":          pg.MaxTime,
			"9999-12-31 23:59:59.999999+00":    pg.MaxTime,
			"9999-12-31 23:59:59.999998+00":    pg.MaxTime.Add(-time.Microsecond),
			"2026-07-01 12:30:15.123456+00":    at,
			"1969-12-31 23:59:59.999999+00":    time.Unix(0, -1000),
			"0001-01-01 00:00:00.000001+00":    pg.MinTime.Add(time.Microsecond),
			"0001-12-31 23:59:59.999999+00 BC": pg.MinTime,
			"4713-01-01 00:00:00+00 BC":        pg.MinTime,
		} {
			var zoned, local time.Time
			var pointer *time.Time
			var array, locals []time.Time
			if err := conn.QueryRow(t.Context(), `
				select $1::text::timestamptz, $1::text::timestamptz, $1::text::timestamptz at time zone 'UTC'
				, array[$1::text::timestamptz], array[$1::text::timestamptz at time zone 'UTC']`, text).Scan(&zoned, &pointer, &local, &array, &locals); err != nil {
				t.Errorf("%s, %s: %v", what, text, err)
				continue
			}
			for i, got := range []time.Time{zoned, *pointer, local, array[0], locals[0]} {
				if !got.Equal(want) {
					t.Errorf("%s, %s: column %d is read as %v, want %v", what, text, i, got, want)
				}
			}
			if local.Location() != time.UTC {
				t.Errorf("%s, %s: a local time is read in %v", what, text, local.Location())
			}
		}
	}
}

func TestEveryArrayOfTimestampsIsRead(t *testing.T) {
	t.Parallel()
	url := pgtest.New(t).URL
	at := time.Date(2026, 7, 1, 0, 0, 0, 0, time.UTC)
	for what, mode := range modes {
		conn := connect(t, url, mode)
		for text, want := range map[string][]time.Time{
			`{}`:     {},
			`{NULL}`: {pg.MinTime},
			`{-infinity,"2026-07-01 00:00Z",NULL,infinity}`:       {pg.MinTime, at, pg.MinTime, pg.MaxTime},
			`{{"2026-07-01 00:00Z",NULL},{infinity,infinity}}`:    {at, pg.MinTime, pg.MaxTime, pg.MaxTime},
			`[-3:-2]={"2026-07-01 00:00Z","2026-07-01 00:00Z"}`:   {at, at},
			`[0:0][5:5]={{"4713-01-01 00:00:00+00 BC"}}`:          {pg.MinTime},
			`{"294276-12-31 23:59:59+00","0044-03-15 00:00Z BC"}`: {pg.MaxTime, pg.MinTime},
		} {
			var got []time.Time
			if err := conn.QueryRow(t.Context(), `select $1::text::timestamptz[]`, text).Scan(&got); err != nil {
				t.Errorf("%s, %s: %v", what, text, err)
				continue
			}
			if !slices.EqualFunc(got, want, time.Time.Equal) {
				t.Errorf("%s, %s is read as %v, want %v", what, text, got, want)
			}
		}
		var none []time.Time
		if err := conn.QueryRow(t.Context(), `select null::timestamptz[]`).Scan(&none); err != nil || none != nil {
			t.Errorf("%s: null is read as %v, %v", what, none, err)
		}
	}
}

func TestEveryIntervalIsReadAsADuration(t *testing.T) {
	t.Parallel()
	url := pgtest.New(t).URL
	for what, mode := range modes {
		conn := connect(t, url, mode)
		wants := map[string]time.Duration{
			"0":                     0,
			"1 day 02:03:04.000005": 26*time.Hour + 3*time.Minute + 4*time.Second + 5*time.Microsecond,
			"-1 mon":                -30 * 24 * time.Hour,
			"178000000 years":       math.MaxInt64,
			"-178000000 years":      math.MinInt64,
			"2147483647 days":       math.MaxInt64,
			"297 years":             math.MaxInt64,
			"-297 years":            math.MinInt64,
		}
		if pgtest.Query[int](t, conn, `select pg_catalog.current_setting('server_version_num')::int`) >= 170000 {
			wants["infinity"], wants["-infinity"] = math.MaxInt64, math.MinInt64
		}
		for text, want := range wants {
			var got time.Duration
			var pointer *time.Duration
			var array []time.Duration
			if err := conn.QueryRow(t.Context(), `select $1::text::interval, $1::text::interval, array[$1::text::interval]`, text).
				Scan(&got, &pointer, &array); err != nil {
				t.Errorf("%s, %s: %v", what, text, err)
				continue
			}
			if got != want || *pointer != want || array[0] != want {
				t.Errorf("%s, %s is read as %v, %v and %v, want %v", what, text, got, *pointer, array[0], want)
			}
		}
	}
}

func TestNullIsNoTimeAndNoDuration(t *testing.T) {
	t.Parallel()
	url := pgtest.New(t).URL
	for what, mode := range modes {
		conn := connect(t, url, mode)
		var at time.Time
		var length time.Duration
		for _, column := range []struct {
			name string
			into any
		}{{"timestamptz", &at}, {"timestamp", &at}, {"interval", &length}} {
			if err := conn.QueryRow(t.Context(), `select null::`+column.name).Scan(column.into); err == nil {
				t.Errorf("%s: a %s that is null is read as %v", what, column.name, column.into)
			}
		}
		later, elapsed := new(time.Time), new(time.Duration)
		if err := conn.QueryRow(t.Context(), `select null::timestamptz, null::interval`).Scan(&later, &elapsed); err != nil || later != nil || elapsed != nil {
			t.Errorf("%s: nulls are read as %v, %v, %v", what, later, elapsed, err)
		}
	}
}

func TestArgumentsGoAsTheyAre(t *testing.T) {
	t.Parallel()
	url := pgtest.New(t).URL
	at, length := time.Date(2026, 7, 1, 12, 30, 15, 123_456_000, time.UTC), 26*time.Hour+time.Microsecond
	for what, mode := range modes {
		conn := connect(t, url, mode)
		got := pgtest.Query[string](t, conn, `
			select pg_catalog.concat_ws(' ', $1::timestamptz at time zone 'UTC', $2::timestamp, $3::interval, ($4::timestamptz[])[2] at time zone 'UTC', ($5::interval[])[1])`,
			at, at, length, []*time.Time{nil, &at}, []*time.Duration{&length})
		if want := "2026-07-01 12:30:15.123456 2026-07-01 12:30:15.123456 26:00:00.000001 2026-07-01 12:30:15.123456 26:00:00.000001"; got != want {
			t.Errorf("%s: sent %s, want %s", what, got, want)
		}
	}
}

func TestTimestampComesBackExactly(t *testing.T) {
	t.Parallel()
	url := pgtest.New(t).URL
	for what, mode := range modes {
		conn := connect(t, url, mode)
		for _, text := range []string{
			"infinity", "-infinity", "294276-12-31 23:59:59.999999+00", "2026-07-01 12:30:15.123456+00", "1999-12-31 23:59:59.999999+00", "4713-01-01 00:00:00+00 BC",
		} {
			at := pgtest.Query[pg.Timestamp](t, conn, `select $1::text::timestamptz`, text)
			if !pgtest.Query[bool](t, conn, `select $1::timestamptz = $3::text::timestamptz and $2::timestamptz = $3::text::timestamptz`, at, &at, text) {
				t.Errorf("%s: %s is not what comes back of it: %d", what, text, at)
			}
		}
	}
}

// BenchmarkScanClaimed scans what a claim returns of times, with the codecs of pgx and with those of this package.
func BenchmarkScanClaimed(b *testing.B) {
	at := binary.BigEndian.AppendUint64(nil, 836_000_000_123_456)
	var array []byte
	for _, n := range []uint32{1, 0, pgtype.TimestamptzOID, 2, 1} { // dimensions, whether there are nulls, elements' type, length, lower bound
		array = binary.BigEndian.AppendUint32(array, n)
	}
	for range 2 {
		array = append(binary.BigEndian.AppendUint32(array, 8), at...)
	}
	interval := binary.BigEndian.AppendUint64(nil, 600_000_000)
	interval = binary.BigEndian.AppendUint64(interval, 0)
	for _, own := range []bool{false, true} {
		b.Run(fmt.Sprintf("own=%t", own), func(b *testing.B) {
			m := pgtype.NewMap()
			if own {
				pg.RegisterTypes(m)
			}
			var vt time.Time
			var expires *time.Time
			var claimed []time.Time
			var took time.Duration
			b.ReportAllocs()
			for b.Loop() {
				for range 3 { // event_ts, enqueued_at, vt
					if err := m.Scan(pgtype.TimestamptzOID, pgtype.BinaryFormatCode, at, &vt); err != nil {
						b.Fatal(err)
					}
				}
				if err := m.Scan(pgtype.TimestamptzOID, pgtype.BinaryFormatCode, at, &expires); err != nil {
					b.Fatal(err)
				}
				if err := m.Scan(pgtype.TimestamptzArrayOID, pgtype.BinaryFormatCode, array, &claimed); err != nil {
					b.Fatal(err)
				}
				if err := m.Scan(pgtype.IntervalOID, pgtype.BinaryFormatCode, interval, &took); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
