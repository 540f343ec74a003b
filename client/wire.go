package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// duration is a [time.Duration] in JSON: a string such as "1m30s".
type duration time.Duration

// MarshalJSON implements [json.Marshaler].
func (d duration) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }

// UnmarshalJSON implements [json.Unmarshaler]. Null leaves the duration as it is.
func (d *duration) UnmarshalJSON(text []byte) error {
	var s *string
	if err := json.Unmarshal(text, &s); err != nil || s == nil {
		return err
	}
	parsed, err := time.ParseDuration(*s)
	*d = duration(parsed)
	return err
}

// nullDuration is a duration whose zero value is null.
type nullDuration time.Duration

// MarshalJSON implements [json.Marshaler].
func (d nullDuration) MarshalJSON() ([]byte, error) {
	if d == 0 {
		return []byte("null"), nil
	}
	return duration(d).MarshalJSON()
}

// UnmarshalJSON implements [json.Unmarshaler].
func (d *nullDuration) UnmarshalJSON(text []byte) error { return (*duration)(d).UnmarshalJSON(text) }

// nullable returns nil for the zero value.
func nullable[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

// encodeJSON is [json.Marshal], but leaves <, > and & as they are, and a [json.RawMessage] whole.
func encodeJSON(v any) ([]byte, error) {
	if raw, ok := v.(json.RawMessage); ok {
		if !json.Valid(raw) {
			return nil, errors.New("the json.RawMessage is not valid JSON")
		}
		return raw, nil
	}
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// decodePayload decodes a payload. Numbers in values of type any become a [json.Number], which keeps all digits.
func decodePayload(text json.RawMessage, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	return decoder.Decode(into)
}

// queryOf returns the fields of a struct that have a tag query and are not zero.
func queryOf(params any) url.Values {
	values := make(url.Values)
	addQuery(values, reflect.ValueOf(params))
	return values
}

func addQuery(values url.Values, v reflect.Value) {
	for i := range v.NumField() {
		field, value := v.Type().Field(i), v.Field(i)
		name := field.Tag.Get("query")
		switch {
		case field.Anonymous:
			addQuery(values, value)
		case name == "" || name == "-" || value.IsZero():
		default:
			switch param := value.Interface().(type) {
			case []string:
				values[name] = param
			case json.RawMessage:
				values.Set(name, string(param))
			case time.Time:
				values.Set(name, timeText(param))
			default:
				values.Set(name, fmt.Sprint(param))
			}
		}
	}
}

// timeText returns a time as the server takes it.
func timeText(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// eventPath returns the path of a call about an event.
func eventPath(id int64, call string) string { return "/events/" + strconv.FormatInt(id, 10) + call }

// A page is one page of a listing.
type page[T any] struct {
	items []T
	next  *string
}

// listOf lists the elements at a path, page after page, as the loop goes on. An error is the last thing it returns.
func listOf[P, T any](ctx context.Context, c *Client, path string, params any, open func(P) page[T]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		query := queryOf(params)
		for {
			var answer P
			if _, err := c.Do(ctx, Request{Path: path, Query: query}, &answer); err != nil {
				var none T
				yield(none, err)
				return
			}
			p := open(answer)
			for _, item := range p.items {
				if !yield(item, nil) {
					return
				}
			}
			if p.next == nil {
				return
			}
			query.Set("cursor", *p.next)
		}
	}
}

// pageSize is the query of a listing that has no filter.
type pageSize struct {
	Limit int `query:"limit"`
}

// largePages are for listings whose items are small.
var largePages = pageSize{1000}

// historyPath returns the path of the requeue of an event.
func historyPath(id int64) string { return "/history/" + strconv.FormatInt(id, 10) + "/requeue" }

// escape escapes a name in a path.
func escape(name string) string {
	if name == "." || name == ".." { // which proxies take for steps
		return strings.ReplaceAll(name, ".", "%2E")
	}
	return url.PathEscape(name)
}

// ifAbsent returns the header of a call about what does not exist yet.
func ifAbsent() http.Header { return http.Header{"If-None-Match": {"*"}} }

// ifMatch returns the header of a call about a version; 0: about any.
func ifMatch(version int64) http.Header {
	header := make(http.Header)
	if version != 0 {
		header.Set("If-Match", strconv.Quote(strconv.FormatInt(version, 10)))
	}
	return header
}
