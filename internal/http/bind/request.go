package bind

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"

	"github.com/queued/queued/internal/body"
	"github.com/queued/queued/internal/http/problem"
)

// decodeParams sets the fields of v that are in the path, the query and the header of r.
func (b *Binding) decodeParams(r *http.Request, v reflect.Value) error {
	var buffer [4]parameter // most queries have no more
	query, err := b.parseQuery(buffer[:0], r.URL.RawQuery)
	if err != nil {
		return err
	}
	var bad problem.Fields
	var one [1]string
	for i := range b.Fields {
		f := &b.Fields[i]
		texts := one[:0]
		switch f.In {
		case "path":
			texts = append(texts, pathValue(r, f.Name))
		case "query":
			for _, given := range query {
				if given.field == i {
					texts = append(texts, given.text)
				}
			}
		case "header":
			if texts = r.Header[f.header]; f.joined && len(texts) > 1 {
				texts = []string{strings.Join(texts, ", ")}
			}
		default:
			continue
		}
		if len(texts) == 0 && !f.Required && !f.initial.IsValid() {
			continue
		}
		place := v.FieldByIndex(f.Index)
		switch {
		case len(texts) == 0 && f.Required:
			bad.Add(f.pointer, "is required")
		case len(texts) == 0:
			place.Set(f.initial)
		case f.Element != nil:
			place.Set(reflect.MakeSlice(place.Type(), len(texts), len(texts)))
			for i, text := range texts {
				bad.Add(f.pointer, f.Element.set(place.Index(i), text, Quote))
			}
			bad.Add(f.pointer, f.violation(place))
		case len(texts) > 1:
			bad.Add(f.pointer, "must be given once")
		case f.kind == '{':
			if err := f.setObject(place, texts[0], b.limits); err != nil {
				return err
			}
		default:
			bad.Add(f.pointer, f.set(place, texts[0], Quote))
		}
	}
	if c, ok := v.Addr().Interface().(Checker); ok && !b.members && bad == nil {
		c.Check(func(field, detail string) { bad.Add("?"+field, detail) })
	}
	return bad.Err(problem.InvalidParameter)
}

// maxParameters bounds those of a query, as url.ParseQuery does.
const maxParameters = 10_000

// A parameter is one of a query, with the index of its field.
type parameter struct {
	field int
	text  string
}

// parseQuery appends the parameters of a query. An unknown one is an error: a misspelt filter must not become none.
func (b *Binding) parseQuery(query []parameter, text string) ([]parameter, error) {
	if strings.Count(text, "&") >= maxParameters {
		return nil, problem.New(problem.InvalidParameter, fmt.Sprintf("The query string has more than %d parameters.", maxParameters))
	}
	var unknown []string
	for text != "" {
		var pair string
		pair, text, _ = strings.Cut(text, "&")
		if pair == "" {
			continue
		}
		name, value, _ := strings.Cut(pair, "=")
		name, err := unescapeParameter(name, pair)
		if err == nil {
			value, err = unescapeParameter(value, pair)
		}
		if err != nil {
			return nil, problem.New(problem.InvalidParameter, "The query string is malformed: "+err.Error()+".")
		}
		if i := find(b.Fields, "query", name); i >= 0 {
			query = append(query, parameter{i, value})
		} else {
			unknown = append(unknown, name)
		}
	}
	slices.Sort(unknown)
	var bad problem.Fields
	for _, name := range slices.Compact(unknown) {
		bad.Add("?"+clip(name), "unknown parameter; expected "+oneOf(b.Fields, "query"))
	}
	return query, bad.Err(problem.UnknownParameter)
}

// unescapeParameter returns the name or the value of a parameter of a query, which pair is of, as url.ParseQuery reads it.
func unescapeParameter(text, pair string) (string, error) {
	if strings.Contains(pair, ";") {
		return "", errors.New("invalid semicolon separator in query")
	}
	return url.QueryUnescape(text)
}

// pathValue returns what stands for {name} in the path of r.
func pathValue(r *http.Request, name string) string {
	value := r.PathValue(name)
	if r.URL.RawPath != "" { // then chi matches that, and its values are escaped
		value, _ = url.PathUnescape(value) // it was valid when it was parsed
	}
	return value
}

// setObject sets v, the place of the query parameter f, to text, which must be a JSON object.
func (f *Field) setObject(v reflect.Value, text string, lim Limits) error {
	p, failed := errors.AsType[*problem.Problem](decode([]byte(text), v, f, lim))
	if !failed {
		return nil
	}
	t, detail := p.Type, "must be a JSON object: "+strings.TrimSuffix(p.Detail, ".")
	if len(p.Errors) > 0 {
		detail = p.Errors[0].Detail
	}
	if t == problem.InvalidJSON || t == problem.ValidationFailed {
		t = problem.InvalidParameter
	}
	return problem.InField(t, "?"+f.Name, detail)
}

// readBody returns the body of r, nil when it is empty or blank. It takes content types of JSON, of text, and of forms, which curl sends by
// default; decoding then shows whether it is JSON.
func (b *Binding) readBody(w http.ResponseWriter, r *http.Request, hold *body.Hold) ([]byte, error) {
	sent, err := hold.Read(b.limits.Bodies, w, r, b.limits.Body)
	if err != nil || len(bytes.TrimSpace(sent)) == 0 {
		return nil, BodyError(err, b.limits.Body)
	}
	return sent, checkMediaType(cmp.Or(r.Header.Get("Content-Type"), "application/json"), r.Header.Get("Content-Encoding"))
}

// readBytes returns the body of r, of any media type.
func (b *Binding) readBytes(w http.ResponseWriter, r *http.Request, hold *body.Hold) ([]byte, error) {
	if isCoded(r.Header.Get("Content-Encoding")) {
		return nil, problem.New(problem.UnsupportedMediaType, noCoding)
	}
	sent, err := hold.Read(b.limits.Bodies, w, r, b.limits.Body)
	return sent, BodyError(err, b.limits.Body)
}

// noCoding is the detail of a body that is compressed.
const noCoding = "The body must be sent without Content-Encoding."

func isCoded(coding string) bool { return coding != "" && !strings.EqualFold(coding, "identity") }

// BodyError returns the problem with a body, of at most limit bytes, that could not be read; nil for no error.
func BodyError(err error, limit int64) error {
	var p *problem.Problem
	_, isTooLarge := errors.AsType[*http.MaxBytesError](err)
	switch {
	case err == nil:
		return nil
	case isTooLarge:
		p = problem.New(problem.BodyTooLarge, fmt.Sprintf("The body must be at most %d bytes long.", limit))
	case errors.Is(err, body.ErrFull):
		p = problem.New(problem.Overloaded, "The bodies of other requests take all the memory that there is for them (QUEUED_MAX_BODY_MEMORY). Nothing was stored; retry with growing pauses.").
			With("Retry-After", "1")
	case errors.Is(err, body.ErrTooSlow):
		p = problem.New(problem.Overloaded, "The body arrived slowly, and other requests needed the memory that it took (QUEUED_MAX_BODY_MEMORY). Nothing was stored; retry with growing pauses.").
			With("Retry-After", "1")
	default:
		p = problem.New(problem.InvalidJSON, "The body did not arrive in full, or not in time.")
	}
	return p.With("Connection", "close") // rather than read the rest of it
}

// checkMediaType makes sure that a body is uncompressed JSON, text or a form, in UTF-8.
func checkMediaType(given, coding string) error {
	if given == "application/json" && coding == "" {
		return nil
	}
	media, params, err := mime.ParseMediaType(given)
	var detail string
	switch charset := strings.ToLower(params["charset"]); {
	case isCoded(coding):
		detail = noCoding
	case strings.HasPrefix(media, "application/cloudevents"):
		detail = "The body must be sent as application/json, not as " + Quote(given) + ". POST /cloudevents takes CloudEvents."
	case err != nil, media != "application/json" && !strings.HasSuffix(media, "+json") && media != "text/plain" && media != "application/x-www-form-urlencoded":
		detail = "The body must be sent as application/json, not as " + Quote(given) + "."
	case charset != "" && charset != "utf-8" && charset != "us-ascii":
		detail = "The body must be in UTF-8, not in " + Quote(charset) + "."
	default:
		return nil
	}
	return problem.New(problem.UnsupportedMediaType, detail)
}
