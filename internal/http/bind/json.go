package bind

import (
	"bytes"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/queued/queued/internal/http/problem"
)

// A decoder reads one JSON text into a field. It gathers the bad fields. What ends the decoding, an error of the JSON or a problem, stays in
// err; nothing is read after that.
type decoder struct {
	Limits
	text  []byte
	field *Field
	into  reflect.Value // the place of field
	json  *jsontext.Decoder
	spare int64 // bytes by which the numbers of text may still grow in the database
	bad   problem.Fields
	err   error

	isMerge    bool  // objects that are there already are changed, member by member, instead of being made anew
	isSeparate bool  // the elements of lists are refused each on its own
	inElement  bool  // one of them is being read
	refusal    error // why it is refused; nil: it is not
}

// decode sets v, the place of f, to text, which must be one JSON value.
func decode(text []byte, v reflect.Value, f *Field, lim Limits) error {
	d := decoder{Limits: lim, text: text, field: f, into: v, spare: lim.Body - int64(len(text))}
	if s, ok := v.Addr().Interface().(Separator); ok {
		d.isSeparate = s.IsSeparate()
	}
	return d.run()
}

func (d *decoder) run() error {
	if err := json.Unmarshal(d.text, d); err != nil {
		return d.problemOf(err)
	}
	return d.bad.Err(problem.ValidationFailed)
}

// UnmarshalJSONFrom implements json.UnmarshalerFrom. The package json has made from strict: no duplicate names, no invalid UTF-8. It makes
// sure that nothing follows, too.
func (d *decoder) UnmarshalJSONFrom(from *jsontext.Decoder) error {
	d.json = from
	d.value(d.into, d.field)
	return d.err
}

// more reports whether the object or the array that is read goes on.
func (d *decoder) more() bool {
	kind := d.json.PeekKind()
	return d.err == nil && kind != '}' && kind != ']'
}

// next reads the next token.
func (d *decoder) next() (token jsontext.Token) {
	if d.err == nil {
		token, d.err = d.json.ReadToken()
	}
	return token
}

// raw reads the next value.
func (d *decoder) raw() (value jsontext.Value) {
	if d.err == nil {
		value, d.err = d.json.ReadValue()
	}
	return value
}

// value reads the next value into v, the place of f.
func (d *decoder) value(v reflect.Value, f *Field) {
	switch kind := d.json.PeekKind(); {
	case kind == 'n' && f.null != "":
		d.next()
		v.SetZero()
		if f.null == "zero" {
			v.Set(reflect.New(v.Type().Elem()))
		}
	case f.kind == 0:
		d.payload(v, f)
	case f.kind != kind && (f.kind != 't' || kind != 'f'):
		d.reject("must be " + f.wants + ", not " + clip(string(d.raw())))
	case kind == '{' && f.Members == nil:
		d.payload(v, f)
	case kind == '{' && d.isMerge && v.Kind() == reflect.Pointer && !v.IsNil():
		d.object(v.Elem(), f.Members, true)
	case kind == '{':
		d.object(allocate(v), f.Members, d.isMerge && v.Kind() == reflect.Struct)
	case kind == '[':
		d.list(allocate(v), f)
	case kind == '"':
		if text := d.next().String(); !d.hasNUL(text) {
			d.reject(f.set(v, text, Quote))
		}
	default:
		d.reject(f.set(v, d.next().String(), clip))
	}
}

// object reads an object into the struct v. If that is there already, what the object does not have stays as it is.
func (d *decoder) object(v reflect.Value, fields []Field, isThere bool) {
	var given [64]bool // more than any struct has fields
	before := len(d.bad)
	d.next()
	for d.more() {
		if i := find(fields, "json", d.next().String()); i >= 0 {
			given[i] = true
			d.value(v.FieldByIndex(fields[i].Index), &fields[i])
		} else {
			d.reject("unknown field; expected " + oneOf(fields, "json"))
			d.raw()
		}
	}
	d.next()
	for i := range fields {
		switch f := &fields[i]; {
		case given[i] || isThere || f.In != "json":
		case f.Required:
			d.bad.Add(d.pointer()+"/"+f.Name, "is required")
		case f.initial.IsValid():
			v.FieldByIndex(f.Index).Set(f.initial)
		}
	}
	if c, ok := v.Addr().Interface().(Checker); ok && len(d.bad) == before {
		c.Check(func(field, detail string) { d.bad.Add(strings.TrimSuffix(d.pointer()+"/"+field, "/"), detail) })
	}
}

// list reads an array into the slice v. Only elements that are objects can take much more room than they had in the text.
func (d *decoder) list(v reflect.Value, f *Field) {
	at := d.pointer()
	d.next()
	start := d.json.InputOffset()
	for n := 0; d.more(); n++ {
		if n == d.Items && f.Element.Members != nil {
			d.err = problem.InField(problem.BatchTooLarge, at, fmt.Sprintf("must be at most %d elements long", n))
			return
		}
		if n == 1 { // the others may be like the first
			length := d.json.InputOffset() - start
			v.Grow(min(d.Items, 1+(len(d.text)-int(start))/int(length)))
		}
		v.Grow(1)
		v.SetLen(n + 1)
		d.element(v.Index(n), f.Element)
	}
	d.next()
	d.reject(f.violation(v))
}

// element reads the next value into v, an element of a list.
func (d *decoder) element(v reflect.Value, f *Field) {
	refusable, ok := v.Addr().Interface().(Refusable)
	if !ok || !d.isSeparate {
		d.value(v, f)
		return
	}
	spare := d.spare
	d.inElement = true
	d.value(v, f)
	if d.inElement = false; d.refusal != nil {
		refusable.Refuse(d.refusal)
		d.refusal, d.spare = nil, spare
	}
}

// CheckObject returns the problem with a JSON object that came in as something else than a body, and that jsonb cannot hold as it is, or that is beyond the
// limits.
func CheckObject(text []byte, lim Limits) error {
	var object stdjson.RawMessage
	return decode(text, reflect.ValueOf(&object).Elem(), &Field{kind: '{', wants: "a JSON object"}, lim)
}

// MaxValue is how many bytes a Value may have.
const MaxValue = 64 << 10

// payload reads the next value, which jsonb must be able to hold as it is, in one pass over its tokens, and sets v to its bytes.
func (d *decoder) payload(v reflect.Value, f *Field) {
	start, outside := d.json.InputOffset(), d.json.StackDepth()
	for more := true; more; more = d.err == nil && d.json.StackDepth() > outside {
		switch d.json.PeekKind() {
		case '"':
			// Valid JSON has no U+0000 that is not escaped, and few strings have an escape.
			if raw := d.raw(); bytes.IndexByte(raw, '\\') >= 0 && bytes.Contains(raw, []byte(`\u0000`)) {
				text, _ := jsontext.AppendUnquote(nil, raw)
				d.hasNUL(string(text))
			}
		case '0':
			d.checkNumber(d.raw())
		default:
			d.next()
			if d.json.StackDepth()-outside > d.Depth {
				d.fail(problem.TooDeep, fmt.Sprintf("must be nested at most %d levels deep", d.Depth))
			}
		}
	}
	if d.err != nil {
		return
	}
	sent := bytes.TrimLeft(d.text[start:d.json.InputOffset()], " \t\r\n:,")
	switch {
	case f.kind == '{' && int64(len(sent)) > d.Event:
		d.fail(problem.BodyTooLarge, fmt.Sprintf("must be at most %d bytes long, not %d", d.Event, len(sent)))
	case f.kind == 0 && len(sent) > MaxValue:
		d.reject(fmt.Sprintf("must be at most %d bytes long, not %d", MaxValue, len(sent)))
	}
	allocate(v).SetBytes(sent)
}

// Bounds of the numbers in a payload. numeric takes up to 131,072 digits before the point and
// 16,383 after it (PostgreSQL's manual, section 8.1.2), so numbers may be written out as far as that. jsonb writes
// exponents out, too: a few bytes can become many, so those go less far.
const (
	maxWholeDigits    = 131_072
	maxFractionDigits = 16_383
	maxExpanded       = 1_000
)

// checkNumber makes sure that numeric can hold raw, and that the numbers of a body do not exceed its limit when written out.
func (d *decoder) checkNumber(raw jsontext.Value) {
	mantissa, power := bytes.TrimPrefix(raw, []byte("-")), int64(0)
	limitWhole, limitFraction := maxWholeDigits, maxFractionDigits
	if i := bytes.IndexAny(mantissa, "eE"); i >= 0 {
		power, _ = strconv.ParseInt(string(mantissa[i+1:]), 10, 32) // the nearest int32 for what is out of range
		mantissa = mantissa[:i]
	}
	if power != 0 {
		expanded := max(len(raw), maxExpanded)
		limitWhole, limitFraction = min(limitWhole, expanded), min(limitFraction, expanded)
	}
	before, after, _ := bytes.Cut(mantissa, []byte("."))
	whole, fraction := len(before)+int(power), len(after)-int(power)
	if whole > limitWhole || fraction > limitFraction {
		d.fail(problem.Unrepresentable, "is a number with too many digits when written out")
		return
	}
	if d.spare -= int64(max(0, max(whole, 1)+max(fraction, 0)-len(raw))); d.spare < 0 {
		d.fail(problem.Unrepresentable, fmt.Sprintf("is the number with which the body, its numbers written out, exceeds %d bytes", d.Body))
	}
}

// reject notes what is wrong with the value or name read last, unless detail is empty.
func (d *decoder) reject(detail string) {
	if detail != "" {
		d.bad.Add(d.pointer(), detail)
	}
}

// fail ends the decoding with a problem with the value read last, or refuses the element that has it.
func (d *decoder) fail(t problem.Type, detail string) {
	switch {
	case d.err != nil || d.refusal != nil:
	case d.inElement:
		d.refusal = problem.InField(t, d.pointer(), detail)
	default:
		d.err = problem.InField(t, d.pointer(), detail)
	}
}

// hasNUL reports whether text has a character that PostgreSQL cannot store, which fails then.
func (d *decoder) hasNUL(text string) bool {
	has := strings.Contains(text, "\x00")
	if has {
		d.fail(problem.Unrepresentable, `contains \u0000, which PostgreSQL cannot store`)
	}
	return has
}

// pointer says where the value or name is that was read last.
func (d *decoder) pointer() string { return fragment(d.json.StackPointer()) }

// maxPointer is how many bytes of a JSON pointer a problem has: names are the caller's, and may be long.
const maxPointer = 256

// fragment writes a JSON pointer as the fragment of a URI (RFC 6901, section 6).
func fragment(p jsontext.Pointer) string {
	if len(p) > maxPointer {
		p = jsontext.Pointer(strings.ToValidUTF8(string(p[:maxPointer]), "") + "…")
	}
	return "#" + (&url.URL{Fragment: string(p)}).EscapedFragment()
}

// escape is a well-formed \u escape. The JSON decoder objects to one only when it is half of a surrogate pair.
var escape = regexp.MustCompile(`^\\u[0-9a-fA-F]{4}`)

// problemOf returns the problem with which the decoding ended: err itself, or that of the JSON which err found.
func (d *decoder) problemOf(err error) error {
	if p, ok := errors.AsType[*problem.Problem](err); ok {
		return p
	}
	syntactic, ok := errors.AsType[*jsontext.SyntacticError](err)
	if !ok || errors.Is(err, io.ErrUnexpectedEOF) { // the input is all in memory: it can only have ended
		return problem.New(problem.InvalidJSON, "The JSON ends early.")
	}
	at, offset := fragment(syntactic.JSONPointer), syntactic.ByteOffset
	switch {
	case bytes.HasPrefix(d.text, []byte("\ufeff")):
		return problem.New(problem.InvalidJSON, "The JSON begins with a byte order mark; send it without one.")
	case d.err == nil:
		return problem.New(problem.InvalidJSON, fmt.Sprintf("The body must be one JSON value, but more follows at byte %d.", offset))
	case escape.Match(d.text[offset:]):
		return problem.InField(problem.Unrepresentable, at, "contains a lone surrogate, which UTF-8 cannot encode")
	case errors.Is(err, jsontext.ErrDuplicateName):
		return problem.InField(problem.InvalidJSON, at, "duplicate name")
	default:
		return problem.New(problem.InvalidJSON, fmt.Sprintf("At byte %d: %s.", offset, syntactic.Err))
	}
}
