package gateway

import (
	"bytes"
	"cmp"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// jsonOptions are those that answers of cells are read under: payloads are what callers have sent.
var jsonOptions = []jsontext.Options{jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)}

// An element is one of a listing, as a cell has it.
type element struct {
	raw    []byte // as it was sent, valid until the next is read
	cursor string // the cell's, that goes on after it
	key    orderKey
	cuts   []span // what of raw is not for the caller: the cursor
}

// A span is bytes of an element, from and to.
type span struct{ from, to int }

// An orderKey is what a listing is in the order of.
type orderKey struct {
	time instantText
	id   int64
	name string
}

// members are the names of those of an element that make its key, of its cursor, and of those that are not for the caller. Empty: there is none.
type members struct {
	time, id, name, cursor string
	hidden                 []string
}

var errNoObject = errors.New("an element of a listing is no object")

// An elementReader reads the members of elements. Its zero value can be used.
type elementReader struct {
	source bytes.Reader
	dec    *jsontext.Decoder
}

// each calls visit for each member of the JSON object raw, with its value and where it stands, with the comma before it. It fails if raw is no object.
func (d *elementReader) each(raw []byte, visit func(name string, value jsontext.Value, at span)) error {
	d.source.Reset(raw)
	if d.dec == nil {
		d.dec = jsontext.NewDecoder(&d.source, jsonOptions...)
	} else {
		d.dec.Reset(&d.source, jsonOptions...)
	}
	if token, err := d.dec.ReadToken(); err != nil || token.Kind() != '{' {
		return errNoObject
	}
	for d.dec.PeekKind() != '}' {
		from := int(d.dec.InputOffset())
		token, err := d.dec.ReadToken()
		if err != nil {
			return err
		}
		name := token.String()
		value, err := d.dec.ReadValue()
		if err != nil {
			return err
		}
		visit(name, value, span{from, int(d.dec.InputOffset())})
	}
	return nil
}

// read returns the element that raw is.
func (d *elementReader) read(raw []byte, names *members) (e element, err error) {
	e.raw = raw
	err = d.each(raw, func(name string, value jsontext.Value, at span) {
		if name == names.time {
			e.key.time = newInstantText(value)
		}
		switch name {
		case names.id:
			e.key.id, _ = strconv.ParseInt(strings.Trim(string(value), `"`), 10, 64) // CloudEvents have it as text
		case names.name:
			e.key.name, _ = textOf(value, "")
		case names.cursor:
			e.cursor, _ = textOf(value, "")
		}
		if slices.Contains(names.hidden, name) {
			if raw[at.from] != ',' && at.to < len(raw) && raw[at.to] == ',' { // the first member
				at.to++
			}
			e.cuts = append(e.cuts, at)
		}
	})
	return e, err
}

// appendTo appends the element without what is not for the caller.
func (e *element) appendTo(b []byte) []byte {
	from := 0
	for _, at := range e.cuts {
		b = append(b, e.raw[from:at.from]...)
		from = at.to
	}
	return append(b, e.raw[from:]...)
}

// An instantText is a time as cells write it, in UTC, in parts that compare as the times do: RFC 3339 leaves out zeros at the end of a fraction, and years may have more than four digits.
type instantText struct {
	year int
	rest string
}

func newInstantText(value jsontext.Value) instantText {
	if value.Kind() != '"' {
		return instantText{}
	}
	text := strings.TrimSuffix(string(value[1:len(value)-1]), "Z")
	end := strings.IndexByte(text[min(1, len(text)):], '-') + 1
	year, _ := strconv.Atoi(text[:max(end, 0)])
	return instantText{year, text[max(end, 0):]}
}

func (t instantText) compare(u instantText) int {
	return cmp.Or(cmp.Compare(t.year, u.year), strings.Compare(t.rest, u.rest))
}

// compare compares keys by time, id and name.
func (k *orderKey) compare(l *orderKey) int {
	return cmp.Or(k.time.compare(l.time), cmp.Compare(k.id, l.id), strings.Compare(k.name, l.name))
}
