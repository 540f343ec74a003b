package http

import (
	"fmt"
	"math"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// The types a field of a request can have, beside string, int, int64 and bool.
var (
	durationType = reflect.TypeFor[time.Duration]()
	timeType     = reflect.TypeFor[time.Time]()
	payloadType  = reflect.TypeFor[jsontext.Value]()
)

// textual is a type of field that reads itself from a text, as it stands in a URL, in a header or in a JSON string.
type textual interface {
	// setText returns what is wrong with text, in words for the caller, or "".
	setText(text string) string
	// wanted says what the field takes, as in "must be …".
	wanted() string
}

var textualType = reflect.TypeFor[textual]()

func isTextual(t reflect.Type) bool { return reflect.PointerTo(t).Implements(textualType) }

// isText reports whether a field of type t is a string in JSON.
func isText(t reflect.Type) bool {
	if c, ok := reflect.Zero(reflect.PointerTo(t)).Interface().(changing); ok {
		t = c.holds()
	}
	t = indirect(t)
	return t.Kind() == reflect.String || t == durationType || t == timeType || isTextual(t)
}

// indirect is the type that a pointer points to, or t itself.
func indirect(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Pointer {
		return t.Elem()
	}
	return t
}

// A change is a field of a call that changes what is there: not given, it leaves the value alone; null, where that is a
// value, takes it away.
type change[T any] struct {
	Given bool
	To    *T // nil: null
}

// changing is what the decoder sees of a change.
type changing interface {
	place() reflect.Value
	holds() reflect.Type
}

var changingType = reflect.TypeFor[changing]()

// place notes that the field is given, and returns where its value goes.
func (c *change[T]) place() reflect.Value {
	c.Given = true
	return reflect.ValueOf(&c.To).Elem()
}

// holds is the type of its value.
func (*change[T]) holds() reflect.Type { return reflect.TypeFor[T]() }

// overlong matches a duration that is well written; time.ParseDuration fails on those that
// exceed its 290 years only.
var overlong = regexp.MustCompile(`^\+?([0-9]+(\.[0-9]*)?(ns|us|µs|ms|s|m|h))+$`)

// setText sets v to what text says, as it stands in a URL or in a JSON string. It returns
// what is wrong with text, in words for the caller, or "".
func setText(v reflect.Value, text string) string {
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		return setText(v.Elem(), text)
	}
	if t, ok := v.Addr().Interface().(textual); ok {
		return t.setText(text)
	}
	switch {
	case v.Type() == durationType:
		d, err := time.ParseDuration(text)
		switch {
		case err == nil:
		case overlong.MatchString(text): // its bounds have the better words
			d = math.MaxInt64
		default:
			return quote(text) + ` is not a duration: use a number with a unit, such as "90s" or "10m"`
		}
		v.SetInt(int64(d))
	case v.Type() == timeType:
		t, wrong := parseTime(text)
		if wrong != "" {
			return wrong
		}
		v.Set(reflect.ValueOf(t))
	case v.Kind() == reflect.String:
		v.SetString(text)
	case v.CanInt():
		return setInt(v, text)
	default:
		panic("no text is a " + v.Type().String())
	}
	return ""
}

// setInt takes plain decimal integers: no sign but a minus, no leading zeros, no exponent.
func setInt(v reflect.Value, text string) string {
	n, err := strconv.ParseInt(text, 10, 64)
	switch {
	case err == nil && strconv.FormatInt(n, 10) == text:
		v.SetInt(n)
		return ""
	case n == math.MaxInt64 && isDigits(text):
		return "must be at most " + strconv.Itoa(math.MaxInt64)
	case n == math.MinInt64 && isDigits(text[1:]):
		return "must be at least " + strconv.Itoa(math.MinInt64)
	default:
		return clip(text) + " is not an integer"
	}
}

func isDigits(text string) bool { return strings.Trim(text, "0123456789") == "" }

// parseTime takes RFC 3339, as long as its year is one that RFC 3339 can also write in UTC.
func parseTime(text string) (t time.Time, wrong string) {
	if err := t.UnmarshalText([]byte(text)); err != nil {
		wrong = quote(text) + ` is not a time: use RFC 3339, such as "2026-02-03T04:05:06Z"`
		if strings.Contains(text, " ") {
			wrong += `, with a T between date and time; in a URL, "+" is written %2B`
		}
		return t, wrong
	}
	t = t.UTC()
	if t.Year() < 1 || t.Year() > 9999 {
		return t, quote(text) + " is out of range: the year in UTC must be 1 to 9999"
	}
	return t, ""
}

// timestamp writes a time as RFC 3339 in UTC, to the microsecond, which is as exact as the
// database is.
type timestamp time.Time

// AppendText implements encoding.TextAppender.
func (t timestamp) AppendText(b []byte) ([]byte, error) {
	return time.Time(t).UTC().Truncate(time.Microsecond).AppendFormat(b, time.RFC3339Nano), nil
}

// duration writes a duration as requests have it.
type duration time.Duration

// AppendText implements encoding.TextAppender.
func (d duration) AppendText(b []byte) ([]byte, error) {
	return append(b, time.Duration(d).String()...), nil
}

// milliseconds writes a duration as their number, to the microsecond.
type milliseconds time.Duration

func (ms milliseconds) appendTo(b []byte) []byte {
	return strconv.AppendFloat(b, float64(time.Duration(ms).Microseconds())/1000, 'f', -1, 64)
}

// MarshalJSON implements json.Marshaler.
func (ms milliseconds) MarshalJSON() ([]byte, error) { return ms.appendTo(nil), nil }

// timestamps are written each as a timestamp is.
type timestamps []time.Time

func (ts timestamps) appendTo(b []byte) []byte {
	b = append(b, '[')
	for i, t := range ts {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendTime(b, timestamp(t))
	}
	return append(b, ']')
}

// MarshalJSON implements json.Marshaler.
func (ts timestamps) MarshalJSON() ([]byte, error) { return ts.appendTo(nil), nil }

// maxQuoted bounds what a problem repeats of what was sent.
const maxQuoted = 64

func clip(text string) string {
	if len(text) > maxQuoted {
		return strings.ToValidUTF8(text[:maxQuoted], "") + "…"
	}
	return text
}

func quote(text string) string { return fmt.Sprintf("%q", clip(text)) }
