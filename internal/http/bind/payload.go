package bind

import (
	"bytes"
	"fmt"
	"reflect"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/queued/queued/internal/http/problem"
)

// Bounds of the numbers in a payload. numeric takes up to 131,072 digits before the point and
// 16,383 after it (PostgreSQL's manual, section 8.1.2), so numbers may be written out as far as that. jsonb writes
// exponents out, too: a few bytes can become many, so those go less far.
const (
	maxWholeDigits    = 131_072
	maxFractionDigits = 16_383
	maxExpanded       = 1_000
)

// MaxValue is how many bytes a Value may have.
const MaxValue = 64 << 10

// payload reads the next value, which jsonb must be able to hold as it is, and sets v to its bytes: the place of f, an Object or a Value.
// All of it happens in one pass over the tokens.
func (d *decoder) payload(v reflect.Value, f *Field) error {
	if f.kind == '{' && d.json.PeekKind() != '{' {
		return d.mismatch(f.wants)
	}
	start := d.json.InputOffset()
	inside := d.json.StackDepth() + 1
	for more := true; more; more = d.json.StackDepth() >= inside {
		if err := d.scan(inside); err != nil {
			return err
		}
	}
	sent := bytes.TrimLeft(d.body[start:d.json.InputOffset()], blanks+":,")
	switch {
	case f.kind == '{' && int64(len(sent)) > d.limits.Event:
		return d.unstorable(problem.BodyTooLarge, fmt.Sprintf("must be at most %d bytes long, not %d", d.limits.Event, len(sent)))
	case f.kind != '{' && len(sent) > MaxValue:
		d.reject("", fmt.Sprintf("must be at most %d bytes long, not %d", MaxValue, len(sent)))
		return nil
	}
	v.SetBytes(sent)
	return nil
}

// scan reads the next token of a payload and makes sure that jsonb can hold it.
func (d *decoder) scan(inside int) error {
	switch d.json.PeekKind() {
	case '"':
		raw, err := d.json.ReadValue()
		if err != nil {
			return d.syntax(err)
		}
		if holdsNUL(raw) {
			return d.unstorable(problem.Unrepresentable, `contains \u0000, which PostgreSQL cannot store`)
		}
	case '0':
		raw, err := d.json.ReadValue()
		if err != nil {
			return d.syntax(err)
		}
		return d.number(raw)
	default:
		if _, err := d.json.ReadToken(); err != nil {
			return d.syntax(err)
		}
		if d.json.StackDepth()-inside >= d.limits.Depth {
			return d.unstorable(problem.TooDeep, fmt.Sprintf("must be nested at most %d levels deep", d.limits.Depth))
		}
	}
	return nil
}

// holdsNUL reports whether the JSON string raw has an escaped U+0000. (An unescaped one is no JSON.)
func holdsNUL(raw []byte) bool {
	for {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 {
			return false
		}
		if raw = raw[i+1:]; bytes.HasPrefix(raw, []byte("u0000")) {
			return true
		}
		raw = raw[1:] // what is escaped may be a backslash itself
	}
}

// number makes sure that numeric can hold raw, and that it does not grow beyond reason there.
func (d *decoder) number(raw jsontext.Value) error {
	whole, fraction, exponent := parts(raw)
	limitWhole, limitFraction := maxWholeDigits, maxFractionDigits
	if exponent != 0 {
		limitWhole, limitFraction = max(len(raw), maxExpanded), max(len(raw), maxExpanded)
	}
	whole, fraction = whole+exponent, fraction-exponent
	if whole > min(limitWhole, maxWholeDigits) || fraction > min(limitFraction, maxFractionDigits) {
		return d.unstorable(problem.Unrepresentable, "is a number with too many digits when written out")
	}
	d.spare -= int64(max(0, max(whole, 1)+max(fraction, 0)-len(raw)))
	if d.spare < 0 {
		return d.unstorable(problem.Unrepresentable, fmt.Sprintf("is the number with which the body, its numbers written out, exceeds %d bytes", d.limits.Body))
	}
	return nil
}

// parts counts the digits of a JSON number before and after its point, and returns its
// exponent, cut off where it is beyond every bound anyway.
func parts(raw []byte) (whole, fraction, exponent int) {
	mantissa, power := raw, []byte(nil)
	if i := bytes.IndexAny(raw, "eE"); i >= 0 {
		mantissa, power = raw[:i], raw[i+1:]
	}
	mantissa = bytes.TrimPrefix(mantissa, []byte("-"))
	whole = len(mantissa)
	if i := bytes.IndexByte(mantissa, '.'); i >= 0 {
		whole, fraction = i, len(mantissa)-i-1
	}
	if power != nil {
		// ParseInt returns the nearest int32 for what is out of range.
		n, _ := strconv.ParseInt(string(power), 10, 32)
		exponent = int(n)
	}
	return whole, fraction, exponent
}
