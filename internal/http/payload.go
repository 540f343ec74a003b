package http

import (
	"bytes"
	"fmt"
	"reflect"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// Bounds of the numbers that events hold. numeric takes up to 131,072 digits before the point and
// 16,383 after it (PostgreSQL's manual, section 8.1.2), so numbers may be written out as far as that. jsonb writes
// exponents out, too: a few bytes can become many, so those go less far.
const (
	maxWholeDigits    = 131_072
	maxFractionDigits = 16_383
	maxExpanded       = 1_000
)

// event reads the next value, which must be an event that jsonb can hold as it is, and sets v to its
// bytes. All of it happens in one pass over the tokens.
func (d *decoder) event(v reflect.Value) error {
	if ok, err := d.opens('{', "", "a JSON object"); !ok {
		return err
	}
	start := d.json.InputOffset() - 1
	inside := d.json.StackDepth()
	for d.json.StackDepth() >= inside {
		if err := d.scan(inside); err != nil {
			return err
		}
	}
	event := d.body[start:d.json.InputOffset()]
	if int64(len(event)) > d.limits.event {
		return inFields(bodyTooLarge, fieldError{d.pointer(), fmt.Sprintf("has %d bytes, an event may have %d at most", len(event), d.limits.event)})
	}
	v.SetBytes(event)
	return nil
}

// scan reads the next token of an event and makes sure that jsonb can hold it.
func (d *decoder) scan(inside int) error {
	switch d.json.PeekKind() {
	case '"':
		raw, err := d.json.ReadValue()
		if err != nil {
			return d.broken(err)
		}
		if holdsNUL(raw) {
			return d.unfit(unrepresentable, `holds \u0000, which PostgreSQL's text cannot`)
		}
	case '0':
		raw, err := d.json.ReadValue()
		if err != nil {
			return d.broken(err)
		}
		return d.number(raw)
	default:
		if _, err := d.json.ReadToken(); err != nil {
			return d.broken(err)
		}
		if d.json.StackDepth()-inside >= d.limits.depth {
			return d.unfit(tooDeep, fmt.Sprintf("is nested deeper than %d levels", d.limits.depth))
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
		return d.unfit(unrepresentable, "is a number with too many digits when it is written out")
	}
	d.spare -= int64(max(0, max(whole, 1)+max(fraction, 0)-len(raw)))
	if d.spare < 0 {
		return d.unfit(unrepresentable, fmt.Sprintf("is the number with which this body, its numbers written out, exceeds %d bytes", d.limits.body))
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
