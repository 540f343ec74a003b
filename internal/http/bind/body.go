package bind

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"sync"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/queued/queued/internal/http/problem"
)

// readBody returns the body of r, nil when it is empty or blank. It takes content types of JSON, of text, and of forms, which curl sends by
// default; decoding then shows whether it is JSON.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	if r.ContentLength == 0 {
		return nil, nil
	}
	if r.ContentLength > limit {
		return nil, bodyTooLarge(limit)
	}
	var body []byte
	var err error
	if r.ContentLength > 0 {
		body = make([]byte, r.ContentLength)
		_, err = io.ReadFull(r.Body, body)
	} else {
		body, err = io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	}
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, bodyTooLarge(limit)
	case err != nil:
		return nil, problem.New(problem.InvalidJSON, "The body did not arrive in full, or not in time.").With("Connection", "close")
	case len(bytes.TrimSpace(body)) == 0:
		return nil, nil
	}
	return body, checkMediaType(r.Header)
}

func bodyTooLarge(limit int64) error {
	detail := fmt.Sprintf("The body must be at most %d bytes long.", limit)
	return problem.New(problem.BodyTooLarge, detail).With("Connection", "close") // rather than read the rest of it
}

func checkMediaType(h http.Header) error {
	if coding := h.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		return problem.New(problem.UnsupportedMediaType, "The body must be sent without Content-Encoding.")
	}
	given := h.Get("Content-Type")
	if given == "" || given == "application/json" {
		return nil
	}
	media, params, err := mime.ParseMediaType(given)
	if err != nil {
		media = ""
	}
	switch {
	case media == "application/json", strings.HasSuffix(media, "+json"), media == "text/plain", media == "application/x-www-form-urlencoded":
	default:
		return problem.New(problem.UnsupportedMediaType, "The body must be sent as application/json, not as "+Quote(given)+".")
	}
	switch charset := strings.ToLower(params["charset"]); charset {
	case "", "utf-8", "us-ascii":
		return nil
	default:
		return problem.New(problem.UnsupportedMediaType, "The body must be in UTF-8, not in "+Quote(charset)+".")
	}
}

// A decoder reads one body. An error of the JSON itself ends it; bad fields are gathered, so that a client hears of all of them at once.
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
		return err
	}
	if at := len(body) - len(bytes.TrimLeft(body[d.json.InputOffset():], blanks)); at < len(body) {
		return problem.New(problem.InvalidJSON, fmt.Sprintf("The body must be one JSON value, but more follows at byte %d.", at))
	}
	return inFields(problem.ValidationFailed, d.bad)
}

const blanks = " \t\r\n"

// decodeBody sets the fields of v that are in the body. An empty body is an object without members.
func (b *Binding) decodeBody(body []byte, v reflect.Value) error {
	if b.object != nil {
		if body == nil {
			return problem.New(problem.InvalidJSON, "The body is empty; expected a JSON object.")
		}
		return decode(body, b.limits, func(d *decoder) error { return d.payload(v.FieldByIndex(b.object.Index), b.object) })
	}
	if body == nil {
		for _, f := range b.Body {
			if f.Required {
				return problem.New(problem.InvalidJSON, "The body is empty; expected a JSON object with "+f.Name+".")
			}
		}
		body = []byte("{}")
	}
	return decode(body, b.limits, func(d *decoder) error { return d.object(v, b.Body) })
}

// decodeObject sets the place of f, a query parameter, to text, which must be a JSON object.
func (b *Binding) decodeObject(v reflect.Value, f *Field, text string) error {
	err := decode([]byte(text), b.limits, func(d *decoder) error { return d.payload(v.FieldByIndex(f.Index), f) })
	var p *problem.Problem
	if !errors.As(err, &p) {
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
		return d.syntax(err)
	}
	var given uint64 // a bit for each field
	before := len(d.bad)
	for d.json.PeekKind() != '}' {
		raw, err := d.json.ReadValue()
		if err != nil {
			return d.syntax(err)
		}
		i := find(fields, unquote(raw))
		if i < 0 {
			d.reject("", "unknown field; expected "+oneOf(fields))
			if err := d.json.SkipValue(); err != nil {
				return d.syntax(err)
			}
			continue
		}
		given |= 1 << i
		if err := d.value(v.FieldByIndex(fields[i].Index), &fields[i]); err != nil {
			return err
		}
	}
	if _, err := d.json.ReadToken(); err != nil {
		return d.syntax(err)
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
	if kind == 'n' && f.nullable {
		if v.Type().Elem().Kind() == reflect.Pointer {
			v.Set(reflect.New(v.Type().Elem()))
			v = v.Elem()
		}
		v.SetZero()
		if err := d.json.SkipValue(); err != nil {
			return d.syntax(err)
		}
		return nil
	}
	if kind == 'f' {
		kind = 't'
	}
	switch {
	case f.kind == 0:
		return d.payload(v, f)
	case kind != f.kind:
		return d.mismatch(f.wants)
	case kind == '{' && f.Members == nil:
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
		return d.syntax(err)
	}
	wrong := ""
	switch kind {
	case '"':
		if holdsNUL(raw) {
			return d.unstorable(problem.Unrepresentable, `contains \u0000, which PostgreSQL cannot store`)
		}
		wrong = f.parse(v, unquote(raw), Quote)
	case '0':
		wrong = f.parse(v, string(raw), clip)
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
	at := d.pointer()
	if _, err := d.json.ReadToken(); err != nil {
		return d.syntax(err)
	}
	start := d.json.InputOffset()
	for n := 0; d.json.PeekKind() != ']'; n++ {
		switch {
		case n == d.limits.Items && f.Element.Members != nil:
			return problem.InFields(problem.BatchTooLarge, problem.FieldError{Pointer: at, Detail: fmt.Sprintf("must be at most %d elements long", n)})
		case n == maxElements && f.Element.Members == nil:
			return problem.InFields(problem.ValidationFailed, problem.FieldError{Pointer: at, Detail: fmt.Sprintf("must be at most %d elements long", n)})
		case n == 1 && f.Element.Members != nil: // the others may be like the first
			left := int64(len(d.body)) - d.json.InputOffset()
			v.Grow(min(d.limits.Items, 1+int(left/(d.json.InputOffset()-start))))
		}
		v.Grow(1)
		v.SetLen(n + 1)
		if err := d.value(v.Index(n), f.Element); err != nil {
			return err
		}
	}
	if _, err := d.json.ReadToken(); err != nil {
		return d.syntax(err)
	}
	if wrong := f.violation(v); wrong != "" {
		d.reject("", wrong)
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
	if err != nil {
		return d.syntax(err)
	}
	d.reject("", "must be "+wants+", not "+clip(string(raw)))
	return nil
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

// syntax is the problem with JSON that err found.
func (d *decoder) syntax(err error) error {
	var syntactic *jsontext.SyntacticError
	if !errors.As(err, &syntactic) || errors.Is(err, io.ErrUnexpectedEOF) { // the input is all in memory: it can only have ended
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
