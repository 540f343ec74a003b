package pg

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// The earliest and the latest time that a timestamp is read as. RFC 3339 has years of four digits, from 1 on; a timestamptz goes from
// 4713 BC to 294276 AD, and is infinite either way.
var (
	MinTime = time.Date(1, time.January, 1, 0, 0, 0, 0, time.UTC) // the zero Time
	MaxTime = time.Date(9999, time.December, 31, 23, 59, 59, 999_999_000, time.UTC)
)

var (
	errNullTime     = errors.New("cannot scan null into a time")
	errNullInterval = errors.New("cannot scan null into a duration")
)

// epochSeconds is the Unix time of 2000-01-01 UTC, from which PostgreSQL counts microseconds.
const epochSeconds = 946_684_800

var (
	minMicros = microsOf(MinTime)
	maxMicros = microsOf(MaxTime)
)

// microsOf returns a time as PostgreSQL counts it.
func microsOf(t time.Time) int64 {
	return (t.Unix()-epochSeconds)*1_000_000 + int64(t.Nanosecond()/1000)
}

// clampTime returns a time within MinTime and MaxTime.
func clampTime(t time.Time) time.Time {
	switch {
	case t.Before(MinTime):
		return MinTime
	case t.After(MaxTime):
		return MaxTime
	}
	return t
}

// AfterConnect prepares a connection: whatever a column holds can be read from it into a time.Time or a time.Duration. Times are read as the nearest
// one from MinTime to MaxTime, intervals as the nearest duration, with months of 30 days and days of 24 hours; nulls in an array of
// timestamps as MinTime. It is a hook of pgxpool.Config.
func AfterConnect(_ context.Context, conn *pgx.Conn) error {
	RegisterTypes(conn.TypeMap())
	return nil
}

// RegisterTypes does for a type map what AfterConnect does for a connection.
func RegisterTypes(m *pgtype.Map) {
	zoned, local, length := timestamptzCodec{new(pgtype.TimestamptzCodec)}, timestampCodec{new(pgtype.TimestampCodec)}, intervalCodec{}
	m.RegisterTypes([]*pgtype.Type{
		{Name: "timestamptz", OID: pgtype.TimestamptzOID, Codec: zoned},
		{Name: "timestamp", OID: pgtype.TimestampOID, Codec: local},
		{Name: "interval", OID: pgtype.IntervalOID, Codec: length},
		{Name: "_timestamptz", OID: pgtype.TimestamptzArrayOID, Codec: arrayOf("timestamptz", pgtype.TimestamptzOID, elementCodec{zoned})},
		{Name: "_timestamp", OID: pgtype.TimestampArrayOID, Codec: arrayOf("timestamp", pgtype.TimestampOID, elementCodec{local})},
		{Name: "_interval", OID: pgtype.IntervalArrayOID, Codec: arrayOf("interval", pgtype.IntervalOID, length)},
	})
	// Where a statement is not prepared, as behind a pooler, nothing else says what it is: it would be sent as a number.
	m.RegisterDefaultPgType(Timestamp(0), "timestamptz")
}

func arrayOf(name string, oid uint32, element pgtype.Codec) pgtype.Codec {
	return &pgtype.ArrayCodec{ElementType: &pgtype.Type{Name: name, OID: oid, Codec: element}}
}

// timestamptzCodec reads every timestamptz into a *time.Time.
type timestamptzCodec struct{ *pgtype.TimestamptzCodec }

// PlanScan implements pgtype.Codec.
func (c timestamptzCodec) PlanScan(m *pgtype.Map, oid uint32, format int16, target any) pgtype.ScanPlan {
	if _, ok := target.(*time.Time); !ok {
		return c.TimestamptzCodec.PlanScan(m, oid, format, target)
	}
	if format == pgtype.BinaryFormatCode {
		return scanTime{location: time.Local}
	}
	return scanTimeText{c.TimestamptzCodec.PlanScan(m, oid, format, new(boundedTime))}
}

// timestampCodec reads every timestamp into a *time.Time in UTC.
type timestampCodec struct{ *pgtype.TimestampCodec }

// PlanScan implements pgtype.Codec.
func (c timestampCodec) PlanScan(m *pgtype.Map, oid uint32, format int16, target any) pgtype.ScanPlan {
	if _, ok := target.(*time.Time); !ok {
		return c.TimestampCodec.PlanScan(m, oid, format, target)
	}
	if format == pgtype.BinaryFormatCode {
		return scanTime{location: time.UTC}
	}
	return scanTimeText{c.TimestampCodec.PlanScan(m, oid, format, new(boundedTime))}
}

// scanTime reads the eight bytes of a timestamp.
type scanTime struct{ location *time.Location }

// Scan implements pgtype.ScanPlan.
func (p scanTime) Scan(src []byte, dst any) error {
	if len(src) != 8 {
		return errNullTime
	}
	micros := int64(binary.BigEndian.Uint64(src))
	micros = min(max(micros, minMicros), maxMicros)
	seconds := micros / 1_000_000
	t := time.Unix(epochSeconds+seconds, (micros-seconds*1_000_000)*1000)
	if p.location != time.Local {
		t = t.In(p.location)
	}
	*dst.(*time.Time) = t
	return nil
}

// scanTimeText reads a timestamp's text with a plan for a boundedTime.
type scanTimeText struct{ pgtype.ScanPlan }

// Scan implements pgtype.ScanPlan.
func (p scanTimeText) Scan(src []byte, dst any) error {
	return p.ScanPlan.Scan(src, (*boundedTime)(dst.(*time.Time)))
}

// boundedTime takes what pgtype reads as a timestamp.
type boundedTime time.Time

// ScanTimestamptz implements pgtype.TimestamptzScanner.
func (t *boundedTime) ScanTimestamptz(v pgtype.Timestamptz) error {
	return t.set(v.Time, v.InfinityModifier, v.Valid)
}

// ScanTimestamp implements pgtype.TimestampScanner.
func (t *boundedTime) ScanTimestamp(v pgtype.Timestamp) error {
	return t.set(v.Time, v.InfinityModifier, v.Valid)
}

func (t *boundedTime) set(v time.Time, infinity pgtype.InfinityModifier, valid bool) error {
	switch {
	case !valid:
		return errNullTime
	case infinity == pgtype.Infinity:
		v = MaxTime
	case infinity == pgtype.NegativeInfinity:
		v = MinTime
	}
	*t = boundedTime(clampTime(v))
	return nil
}

// elementCodec is the codec of an array's elements, which may be null whatever they are scanned into.
type elementCodec struct{ pgtype.Codec }

// PlanScan implements pgtype.Codec.
func (c elementCodec) PlanScan(m *pgtype.Map, oid uint32, format int16, target any) pgtype.ScanPlan {
	plan := c.Codec.PlanScan(m, oid, format, target)
	if _, ok := target.(*time.Time); ok && plan != nil {
		return scanElement{plan}
	}
	return plan
}

// scanElement reads null as MinTime.
type scanElement struct{ pgtype.ScanPlan }

// Scan implements pgtype.ScanPlan.
func (p scanElement) Scan(src []byte, dst any) error {
	if src == nil {
		*dst.(*time.Time) = MinTime
		return nil
	}
	return p.ScanPlan.Scan(src, dst)
}

// intervalCodec reads every interval into a *time.Duration.
type intervalCodec struct{ pgtype.IntervalCodec }

// PlanScan implements pgtype.Codec.
func (c intervalCodec) PlanScan(m *pgtype.Map, oid uint32, format int16, target any) pgtype.ScanPlan {
	if _, ok := target.(*time.Duration); !ok {
		return c.IntervalCodec.PlanScan(m, oid, format, target)
	}
	return scanDuration{c.IntervalCodec.PlanScan(m, oid, format, new(boundedDuration))}
}

// scanDuration reads an interval with a plan for a boundedDuration.
type scanDuration struct{ pgtype.ScanPlan }

// Scan implements pgtype.ScanPlan.
func (p scanDuration) Scan(src []byte, dst any) error {
	switch string(src) { // as text; pgtype knows no infinite intervals, which came with PostgreSQL 17
	case "infinity":
		*dst.(*time.Duration) = math.MaxInt64
		return nil
	case "-infinity":
		*dst.(*time.Duration) = math.MinInt64
		return nil
	}
	return p.ScanPlan.Scan(src, (*boundedDuration)(dst.(*time.Duration)))
}

// boundedDuration takes what pgtype reads as an interval.
type boundedDuration time.Duration

const (
	microsPerDay   = 24 * 60 * 60 * 1_000_000
	microsPerMonth = 30 * microsPerDay
)

// ScanInterval implements pgtype.IntervalScanner.
func (d *boundedDuration) ScanInterval(v pgtype.Interval) error {
	if !v.Valid {
		return errNullInterval
	}
	// A float tells well enough what is beyond the 292 years of a Duration.
	about := float64(v.Months)*microsPerMonth + float64(v.Days)*microsPerDay + float64(v.Microseconds)
	switch {
	case about >= math.MaxInt64/1000-1:
		*d = math.MaxInt64
	case about <= math.MinInt64/1000+1:
		*d = math.MinInt64
	default:
		*d = boundedDuration((int64(v.Months)*microsPerMonth + int64(v.Days)*microsPerDay + v.Microseconds) * 1000)
	}
	return nil
}

// A Timestamp is a timestamptz exactly as PostgreSQL has it, infinite ones included: microseconds since 2000-01-01 UTC. It is for going
// on where a listing ended.
type Timestamp int64

// ScanTimestamptz implements pgtype.TimestamptzScanner.
func (t *Timestamp) ScanTimestamptz(v pgtype.Timestamptz) error {
	switch {
	case !v.Valid:
		return errNullTime
	case v.InfinityModifier == pgtype.Infinity:
		*t = math.MaxInt64
	case v.InfinityModifier == pgtype.NegativeInfinity:
		*t = math.MinInt64
	default:
		*t = Timestamp(microsOf(v.Time))
	}
	return nil
}

// TimestamptzValue implements pgtype.TimestamptzValuer.
func (t Timestamp) TimestamptzValue() (pgtype.Timestamptz, error) {
	v := pgtype.Timestamptz{Valid: true}
	switch t {
	case math.MaxInt64:
		v.InfinityModifier = pgtype.Infinity
	case math.MinInt64:
		v.InfinityModifier = pgtype.NegativeInfinity
	default:
		seconds := int64(t) / 1_000_000
		v.Time = time.Unix(epochSeconds+seconds, (int64(t)-seconds*1_000_000)*1000)
	}
	return v, nil
}
