package pg

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// The earliest and the latest time that a timestamp is read as. Years of RFC 3339 have four digits; a timestamptz is from 4713 BC to
// 294276 AD, or infinite.
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

// microsOf returns the microseconds of a time as PostgreSQL counts them.
func microsOf(t time.Time) int64 {
	return (t.Unix()-epochSeconds)*1_000_000 + int64(t.Nanosecond()/1000)
}

// timeOf returns the time of microseconds as PostgreSQL counts them.
func timeOf(micros int64) time.Time {
	seconds := micros / 1_000_000
	return time.Unix(epochSeconds+seconds, (micros-seconds*1_000_000)*1000)
}

// RegisterTypes sets up the type map of a connection so that every value of a column can be read into a time.Time or a time.Duration. A
// time is read as the nearest one from MinTime to MaxTime; an interval as the nearest duration, with months of 30 days and days of 24
// hours; a null in an array of timestamps as MinTime.
func RegisterTypes(m *pgtype.Map) {
	zoned, local := timeCodec{Codec: new(pgtype.TimestamptzCodec), location: time.Local}, timeCodec{Codec: new(pgtype.TimestampCodec), location: time.UTC}
	zonedElement, localElement := zoned, local
	zonedElement.readsNull, localElement.readsNull = true, true
	interval := intervalCodec{pgtype.IntervalCodec{}}
	m.RegisterTypes([]*pgtype.Type{
		{Name: "timestamptz", OID: pgtype.TimestamptzOID, Codec: zoned},
		{Name: "timestamp", OID: pgtype.TimestampOID, Codec: local},
		{Name: "interval", OID: pgtype.IntervalOID, Codec: interval},
		{Name: "_timestamptz", OID: pgtype.TimestamptzArrayOID, Codec: arrayOf("timestamptz", pgtype.TimestamptzOID, zonedElement)},
		{Name: "_timestamp", OID: pgtype.TimestampArrayOID, Codec: arrayOf("timestamp", pgtype.TimestampOID, localElement)},
		{Name: "_interval", OID: pgtype.IntervalArrayOID, Codec: arrayOf("interval", pgtype.IntervalOID, interval)},
		{Name: "_text", OID: pgtype.TextArrayOID, Codec: textArrayCodec{arrayOf("text", pgtype.TextOID, pgtype.TextCodec{})}},
	})
	// Where statements are not prepared, as behind a pooler, the type of a parameter is not known; without this it would be sent as a number.
	m.RegisterDefaultPgType(Timestamp(0), "timestamptz")
}

func arrayOf(name string, oid uint32, element pgtype.Codec) *pgtype.ArrayCodec {
	return &pgtype.ArrayCodec{ElementType: &pgtype.Type{Name: name, OID: oid, Codec: element}}
}

// textArrayCodec writes lists of strings without a plan and an allocation for each: most arguments of a group commit are such lists.
type textArrayCodec struct{ *pgtype.ArrayCodec }

// PlanEncode implements pgtype.Codec.
func (c textArrayCodec) PlanEncode(m *pgtype.Map, oid uint32, format int16, value any) pgtype.EncodePlan {
	if format == pgtype.BinaryFormatCode {
		switch value.(type) {
		case []string:
			return encodeFunc(encodeTexts)
		case []*string:
			return encodeFunc(encodeTextsOrNulls)
		}
	}
	return c.ArrayCodec.PlanEncode(m, oid, format, value)
}

// encodeFunc is a pgtype.EncodePlan.
type encodeFunc func(value any, buf []byte) ([]byte, error)

// Encode calls f.
func (f encodeFunc) Encode(value any, buf []byte) ([]byte, error) { return f(value, buf) }

func encodeTexts(value any, buf []byte) ([]byte, error) {
	texts := value.([]string)
	if texts == nil {
		return nil, nil
	}
	size := 0
	for _, text := range texts {
		size += 4 + len(text)
	}
	buf = appendArrayHeader(slices.Grow(buf, arrayHeader+size), len(texts), false)
	for _, text := range texts {
		buf = appendElement(buf, text)
	}
	return buf, nil
}

func encodeTextsOrNulls(value any, buf []byte) ([]byte, error) {
	texts := value.([]*string)
	if texts == nil {
		return nil, nil
	}
	buf = appendArrayHeader(buf, len(texts), slices.Contains(texts, nil))
	for _, text := range texts {
		if text == nil {
			buf = binary.BigEndian.AppendUint32(buf, math.MaxUint32) // the length of null
		} else {
			buf = appendElement(buf, *text)
		}
	}
	return buf, nil
}

// arrayHeader is the length of the header of an array of one dimension, in bytes.
const arrayHeader = 20

// appendArrayHeader appends that of an array of n texts, as array_recv of PostgreSQL reads it: dimensions, flags, type, length, and first index.
func appendArrayHeader(buf []byte, n int, hasNulls bool) []byte {
	flags := uint32(0)
	if hasNulls {
		flags = 1
	}
	for _, word := range [arrayHeader / 4]uint32{1, flags, pgtype.TextOID, uint32(n), 1} {
		buf = binary.BigEndian.AppendUint32(buf, word)
	}
	return buf
}

func appendElement(buf []byte, text string) []byte {
	return append(binary.BigEndian.AppendUint32(buf, uint32(len(text))), text...)
}

// scanFunc is a pgtype.ScanPlan.
type scanFunc func(src []byte, dst any) error

// Scan calls f.
func (f scanFunc) Scan(src []byte, dst any) error { return f(src, dst) }

// timeCodec reads every timestamptz or timestamp into a *time.Time in a location.
type timeCodec struct {
	pgtype.Codec
	location  *time.Location
	readsNull bool // as MinTime
}

// PlanScan implements pgtype.Codec.
func (c timeCodec) PlanScan(m *pgtype.Map, oid uint32, format int16, target any) pgtype.ScanPlan {
	if _, ok := target.(*time.Time); !ok {
		return c.Codec.PlanScan(m, oid, format, target)
	}
	if format == pgtype.BinaryFormatCode {
		return scanFunc(c.scanBinary)
	}
	text := c.Codec.PlanScan(m, oid, format, new(Timestamp))
	return scanFunc(func(src []byte, dst any) error {
		if src == nil {
			return c.scanBinary(nil, dst)
		}
		var at Timestamp
		if err := text.Scan(src, &at); err != nil {
			return err
		}
		c.set(dst, at)
		return nil
	})
}

// scanBinary reads the eight bytes of a timestamp.
func (c timeCodec) scanBinary(src []byte, dst any) error {
	switch {
	case len(src) == 8:
		c.set(dst, Timestamp(binary.BigEndian.Uint64(src)))
	case c.readsNull:
		*dst.(*time.Time) = MinTime
	default:
		return errNullTime
	}
	return nil
}

// set sets a *time.Time to the nearest time that it may have.
func (c timeCodec) set(dst any, at Timestamp) {
	t := timeOf(min(max(int64(at), minMicros), maxMicros))
	if c.location != time.Local {
		t = t.In(c.location)
	}
	*dst.(*time.Time) = t
}

// intervalCodec reads every interval into a *time.Duration.
type intervalCodec struct{ pgtype.IntervalCodec }

// PlanScan implements pgtype.Codec.
func (c intervalCodec) PlanScan(m *pgtype.Map, oid uint32, format int16, target any) pgtype.ScanPlan {
	if _, ok := target.(*time.Duration); !ok {
		return c.IntervalCodec.PlanScan(m, oid, format, target)
	}
	plan := c.IntervalCodec.PlanScan(m, oid, format, new(boundedDuration))
	return scanFunc(func(src []byte, dst any) error {
		d := (*boundedDuration)(dst.(*time.Duration))
		switch string(src) { // as text; pgtype knows no infinite intervals, which came with PostgreSQL 17
		case "infinity":
			*d = math.MaxInt64
		case "-infinity":
			*d = math.MinInt64
		default:
			return plan.Scan(src, d)
		}
		return nil
	})
}

// boundedDuration is a time.Duration that pgtype can set to any interval.
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
	// A float is exact enough to detect what exceeds the 292 years of a Duration.
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

// A Timestamp is a timestamptz with its full range, infinity included: microseconds since 2000-01-01 UTC. It is for cursors.
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

// ScanTimestamp implements pgtype.TimestampScanner.
func (t *Timestamp) ScanTimestamp(v pgtype.Timestamp) error {
	return t.ScanTimestamptz(pgtype.Timestamptz(v))
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
		v.Time = timeOf(int64(t))
	}
	return v, nil
}
