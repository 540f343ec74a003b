package bind

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"sync"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/queued/queued/internal/http/problem"
)

// readBody returns the body of r, nil when it is empty or blank. It takes content types of JSON, of text, and of forms, which curl sends by
// default; decoding then shows whether it is JSON.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) (body []byte, err error) {
	switch {
	case r.ContentLength == 0:
		return nil, nil
	case r.ContentLength > limit:
		err = &http.MaxBytesError{Limit: limit}
	case r.ContentLength > 0:
		body = make([]byte, r.ContentLength)
		_, err = io.ReadFull(r.Body, body)
	default:
		body, err = io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	}
	if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
		detail := fmt.Sprintf("The body must be at most %d bytes long.", limit)
		return nil, problem.New(problem.BodyTooLarge, detail).With("Connection", "close") // rather than read the rest of it
	}
	if err != nil {
		return nil, problem.New(problem.InvalidJSON, "The body did not arrive in full, or not in time.").With("Connection", "close")
	}
	if len(bytes.TrimSpace(body)) == 0 {
		return nil, nil
	}
	return body, checkMediaType(r.Header)
}

// checkMediaType makes sure that a body is uncompressed JSON, text or a form, in UTF-8.
func checkMediaType(h http.Header) error {
	given := h.Get("Content-Type")
	if (given == "" || given == "application/json") && h.Get("Content-Encoding") == "" {
		return nil
	}
	given = cmp.Or(given, "application/json")
	media, params, err := mime.ParseMediaType(given)
	var detail string
	switch {
	case h.Get("Content-Encoding") != "" && !strings.EqualFold(h.Get("Content-Encoding"), "identity"):
		detail = "The body must be sent without Content-Encoding."
	case err != nil, media != "application/json" && !strings.HasSuffix(media, "+json") && media != "text/plain" && media != "application/x-www-form-urlencoded":
		detail = "The body must be sent as application/json, not as " + Quote(given) + "."
	case params["charset"] != "" && !strings.EqualFold(params["charset"], "utf-8") && !strings.EqualFold(params["charset"], "us-ascii"):
		detail = "The body must be in UTF-8, not in " + Quote(strings.ToLower(params["charset"])) + "."
	default:
		return nil
	}
	return problem.New(problem.UnsupportedMediaType, detail)
}

// A decoder reads one body. Its methods fail with an error of the JSON or with a problem that ends the decoding; bad fields are gathered,
// so that one answer names all of them.
type decoder struct {
	body   []byte
	limits Limits
	buffer bytes.Buffer
	json   jsontext.Decoder // strict: no duplicate names, no invalid UTF-8
	spare  int64            // bytes by which the numbers of the body may still grow in the database
	bad    []problem.FieldError
}

var decoderPool = sync.Pool{New: func() any { return new(decoder) }}

// decode calls read with a decoder of body, and makes sure that nothing follows what it reads.
func decode(body []byte, lim Limits, read func(*decoder) error) error {
	d := decoderPool.Get().(*decoder)
	defer func() {
		d.body, d.bad, d.buffer = nil, nil, bytes.Buffer{}
		decoderPool.Put(d)
	}()
	d.body, d.limits, d.spare, d.buffer = body, lim, lim.Body-int64(len(body)), *bytes.NewBuffer(body)
	d.json.Reset(&d.buffer)
	if err := read(d); err != nil {
		return d.problemOf(err)
	}
	if at := len(body) - len(bytes.TrimLeft(body[d.json.InputOffset():], blanks)); at < len(body) {
		return problem.New(problem.InvalidJSON, fmt.Sprintf("The body must be one JSON value, but more follows at byte %d.", at))
	}
	return inFields(problem.ValidationFailed, d.bad)
}

const blanks = " \t\r\n"

// decodeBody sets the fields of v that are in the body. An empty body is an object without members.
func (b *Binding) decodeBody(body []byte, v reflect.Value) error {
	if body == nil {
		if b.object != nil {
			return problem.New(problem.InvalidJSON, "The body is empty; expected a JSON object.")
		}
		for _, f := range b.Body {
			if f.Required {
				return problem.New(problem.InvalidJSON, "The body is empty; expected a JSON object with "+f.Name+".")
			}
		}
		body = []byte("{}")
	}
	return decode(body, b.limits, func(d *decoder) error {
		if b.object != nil {
			return d.value(v.FieldByIndex(b.object.Index), b.object)
		}
		return d.object(v, b.Body)
	})
}

// decodeObject sets the place of f, a query parameter, to text, which must be a JSON object.
func (b *Binding) decodeObject(v reflect.Value, f *Field, text string) error {
	err := decode([]byte(text), b.limits, func(d *decoder) error { return d.value(v.FieldByIndex(f.Index), f) })
	p, ok := errors.AsType[*problem.Problem](err)
	if !ok {
		return err
	}
	t, detail := p.Type, "must be a JSON object: "+strings.TrimSuffix(p.Detail, ".")
	if len(p.Errors) > 0 {
		detail = p.Errors[0].Detail
	}
	if t == problem.InvalidJSON || t == problem.ValidationFailed {
		t = problem.InvalidParameter
	}
	return problem.InFields(t, problem.FieldError{Pointer: "?" + f.Name, Detail: detail})
}

// object reads an object into the struct v.
func (d *decoder) object(v reflect.Value, fields []Field) error {
	if d.json.PeekKind() != '{' {
		return d.mismatch("a JSON object")
	}
	if _, err := d.json.ReadToken(); err != nil {
		return err
	}
	var given uint64 // a bit for each field
	before := len(d.bad)
	for d.json.PeekKind() != '}' {
		raw, err := d.json.ReadValue()
		if err != nil {
			return err
		}
		if i := find(fields, unquote(raw)); i >= 0 {
			given |= 1 << i
			err = d.value(v.FieldByIndex(fields[i].Index), &fields[i])
		} else {
			d.reject("", "unknown field; expected "+oneOf(fields))
			err = d.json.SkipValue()
		}
		if err != nil {
			return err
		}
	}
	if _, err := d.json.ReadToken(); err != nil {
		return err
	}
	for i := range fields {
		if fields[i].Required && given&(1<<i) == 0 {
			d.reject(fields[i].Name, "is required")
		}
	}
	if c, ok := v.Addr().Interface().(Checker); ok && len(d.bad) == before {
		c.Check(d.reject)
	}
	return nil
}

// value reads the next value into v, the place of f.
func (d *decoder) value(v reflect.Value, f *Field) error {
	kind := d.json.PeekKind()
	if kind == 'f' {
		kind = 't'
	}
	switch {
	case kind == 'n' && f.nullable:
		v.SetZero()
		if t := v.Type().Elem(); t.Kind() == reflect.Pointer {
			v.Set(reflect.New(t))
		}
		return d.json.SkipValue()
	case f.kind != 0 && kind != f.kind:
		return d.mismatch(f.wants)
	case f.kind == 0, kind == '{' && f.Members == nil:
		return d.payload(v, f)
	}
	v = allocate(v)
	switch kind {
	case '{':
		if s, ok := v.Addr().Interface().(Defaulter); ok {
			s.SetDefaults()
		}
		return d.object(v, f.Members)
	case '[':
		return d.list(v, f)
	}
	raw, err := d.json.ReadValue()
	if err != nil {
		return err
	}
	wrong := ""
	switch kind {
	case '"':
		if err := d.checkNUL(raw); err != nil {
			return err
		}
		wrong = f.set(v, unquote(raw), Quote)
	case '0':
		wrong = f.set(v, string(raw), clip)
	default:
		v.SetBool(raw[0] == 't')
	}
	if wrong != "" {
		d.reject("", wrong)
	}
	return nil
}

// maxElements is how many elements a list of plain values may have.
const maxElements = 1000

// list reads an array into the slice v.
func (d *decoder) list(v reflect.Value, f *Field) error {
	limit, tooLong := maxElements, problem.ValidationFailed
	ofObjects := f.Element.Members != nil
	if ofObjects {
		limit, tooLong = d.limits.Items, problem.BatchTooLarge
	}
	at := d.pointer()
	if _, err := d.json.ReadToken(); err != nil {
		return err
	}
	start := d.json.InputOffset()
	for n := 0; d.json.PeekKind() != ']'; n++ {
		if n == limit {
			return problem.InFields(tooLong, problem.FieldError{Pointer: at, Detail: fmt.Sprintf("must be at most %d elements long", n)})
		}
		if n == 1 && ofObjects { // the others may be like the first
			left := int64(len(d.body)) - d.json.InputOffset()
			v.Grow(min(limit, 1+int(left/(d.json.InputOffset()-start))))
		}
		v.Grow(1)
		v.SetLen(n + 1)
		if err := d.value(v.Index(n), f.Element); err != nil {
			return err
		}
	}
	if _, err := d.json.ReadToken(); err != nil {
		return err
	}
	if wrong := f.violation(v); wrong != "" {
		d.reject("", wrong)
	}
	return nil
}

// MaxValue is how many bytes a Value may have.
const MaxValue = 64 << 10

// payload reads the next value, which jsonb must be able to hold as it is, in one pass over its tokens, and sets v to its bytes.
func (d *decoder) payload(v reflect.Value, f *Field) error {
	start := d.json.InputOffset()
	inside := d.json.StackDepth() + 1
	for more := true; more; more = d.json.StackDepth() >= inside {
		if err := d.token(inside); err != nil {
			return err
		}
	}
	sent := bytes.TrimLeft(d.body[start:d.json.InputOffset()], blanks+":,")
	switch {
	case f.kind == '{' && int64(len(sent)) > d.limits.Event:
		return d.unstorable(problem.BodyTooLarge, fmt.Sprintf("must be at most %d bytes long, not %d", d.limits.Event, len(sent)))
	case f.kind == 0 && len(sent) > MaxValue:
		d.reject("", fmt.Sprintf("must be at most %d bytes long, not %d", MaxValue, len(sent)))
		return nil
	}
	allocate(v).SetBytes(sent)
	return nil
}

// token reads the next token of a payload and makes sure that jsonb can hold it.
func (d *decoder) token(inside int) error {
	kind := d.json.PeekKind()
	if kind != '"' && kind != '0' {
		if _, err := d.json.ReadToken(); err != nil {
			return err
		}
		if d.json.StackDepth()-inside >= d.limits.Depth {
			return d.unstorable(problem.TooDeep, fmt.Sprintf("must be nested at most %d levels deep", d.limits.Depth))
		}
		return nil
	}
	raw, err := d.json.ReadValue()
	switch {
	case err != nil:
		return err
	case kind == '0':
		return d.checkNumber(raw)
	default:
		return d.checkNUL(raw)
	}
}

// checkNUL makes sure that the JSON string raw has no escaped U+0000. (An unescaped one is no JSON.)
func (d *decoder) checkNUL(raw []byte) error {
	for {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 {
			return nil
		}
		if raw = raw[i+1:]; bytes.HasPrefix(raw, []byte("u0000")) {
			return d.unstorable(problem.Unrepresentable, `contains \u0000, which PostgreSQL cannot store`)
		}
		raw = raw[1:] // what is escaped may be a backslash itself
	}
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
func (d *decoder) checkNumber(raw jsontext.Value) error {
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
		return d.unstorable(problem.Unrepresentable, "is a number with too many digits when written out")
	}
	d.spare -= int64(max(0, max(whole, 1)+max(fraction, 0)-len(raw)))
	if d.spare < 0 {
		return d.unstorable(problem.Unrepresentable, fmt.Sprintf("is the number with which the body, its numbers written out, exceeds %d bytes", d.limits.Body))
	}
	return nil
}

// unquote returns the text of a JSON string.
func unquote(raw jsontext.Value) string {
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw[1 : len(raw)-1])
	}
	text, _ := jsontext.AppendUnquote(nil, raw) // the decoder has found it valid
	return string(text)
}

// mismatch skips the next value, which is not what it must be.
func (d *decoder) mismatch(wants string) error {
	raw, err := d.json.ReadValue()
	if err == nil {
		d.reject("", "must be "+wants+", not "+clip(string(raw)))
	}
	return err
}

// reject notes what is wrong with the value or name read last, or with its member field.
func (d *decoder) reject(field, detail string) {
	if len(d.bad) >= problem.MaxFieldErrors {
		return
	}
	at := d.pointer()
	if field != "" {
		at += "/" + field
	}
	d.bad = append(d.bad, problem.FieldError{Pointer: at, Detail: detail})
}

// unstorable is the problem with the value read last that ends the decoding.
func (d *decoder) unstorable(t problem.Type, detail string) error {
	return problem.InFields(t, problem.FieldError{Pointer: d.pointer(), Detail: detail})
}

// problemOf returns the problem with the JSON that err found, or err when it is a problem.
func (d *decoder) problemOf(err error) error {
	if _, ok := errors.AsType[*problem.Problem](err); ok {
		return err
	}
	syntactic, ok := errors.AsType[*jsontext.SyntacticError](err)
	if !ok || errors.Is(err, io.ErrUnexpectedEOF) { // the input is all in memory: it can only have ended
		return problem.New(problem.InvalidJSON, "The JSON ends early.")
	}
	at := fragment(syntactic.JSONPointer)
	switch {
	case isEscape(d.body[syntactic.ByteOffset:]):
		return problem.InFields(problem.Unrepresentable, problem.FieldError{Pointer: at, Detail: "contains a lone surrogate, which UTF-8 cannot encode"})
	case errors.Is(err, jsontext.ErrDuplicateName):
		return problem.InFields(problem.InvalidJSON, problem.FieldError{Pointer: at, Detail: "duplicate name"})
	default:
		return problem.New(problem.InvalidJSON, fmt.Sprintf("At byte %d: %s.", syntactic.ByteOffset, syntactic.Err))
	}
}

// isEscape reports whether b begins with a well-formed \u escape. The JSON decoder objects to
// one of those only when it is half of a surrogate pair.
func isEscape(b []byte) bool {
	return len(b) >= 6 && b[0] == '\\' && b[1] == 'u' && strings.Trim(string(b[2:6]), "0123456789abcdefABCDEF") == ""
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
