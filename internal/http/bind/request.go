package bind

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"

	"github.com/queued/queued/internal/http/body"
	"github.com/queued/queued/internal/http/problem"
)

// decodeParams sets the fields of v that are in the path, the query and the header of r.
func (b *Binding) decodeParams(r *http.Request, v reflect.Value) error {
	query, err := b.parseQuery(r.URL.RawQuery)
	if err != nil {
		return err
	}
	var bad problem.Fields
	for i := range b.Fields {
		f := &b.Fields[i]
		place, pointer := v.FieldByIndex(f.Index), f.pointer
		var texts []string
		switch f.In {
		case "path":
			texts = []string{pathValue(r, f.Name)}
		case "query":
			texts = query[f.Name]
		case "header":
			if texts = r.Header.Values(f.Name); f.joined && len(texts) > 1 {
				texts = []string{strings.Join(texts, ", ")}
			}
		default:
			continue
		}
		switch {
		case len(texts) == 0 && f.Required:
			bad.Add(pointer, "is required")
		case len(texts) == 0 && f.initial.IsValid():
			place.Set(f.initial)
		case len(texts) == 0:
		case f.Element != nil:
			place.Set(reflect.MakeSlice(place.Type(), len(texts), len(texts)))
			for i, text := range texts {
				bad.Add(pointer, f.Element.set(place.Index(i), text, Quote))
			}
			bad.Add(pointer, f.violation(place))
		case len(texts) > 1:
			bad.Add(pointer, "must be given once")
		case f.kind == '{':
			if err := f.setObject(place, texts[0], b.limits); err != nil {
				return err
			}
		default:
			bad.Add(pointer, f.set(place, texts[0], Quote))
		}
	}
	if c, ok := v.Addr().Interface().(Checker); ok && !b.members && bad == nil {
		c.Check(func(field, detail string) { bad.Add("?"+field, detail) })
	}
	return bad.Err(problem.InvalidParameter)
}

// parseQuery parses a query. An unknown parameter is an error: a misspelt filter must not become none.
func (b *Binding) parseQuery(text string) (url.Values, error) {
	if text == "" {
		return nil, nil //nolint:nilnil // a nil map is an empty query
	}
	query, err := url.ParseQuery(text)
	if err != nil {
		return nil, problem.New(problem.InvalidParameter, "The query string is malformed: "+err.Error()+".")
	}
	var bad problem.Fields
	for _, name := range slices.Sorted(maps.Keys(query)) {
		if find(b.Fields, "query", name) < 0 {
			bad.Add("?"+clip(name), "unknown parameter; expected "+oneOf(b.Fields, "query"))
		}
	}
	return query, bad.Err(problem.UnknownParameter)
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
