package gateway

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/queued/queued/internal/duration"
)

// An object is a JSON object of an answer: what cells say of the same is joined member by member.
type object struct {
	names  []string // in their order
	values map[string]jsontext.Value
}

// parseObject returns the object that text is.
func parseObject(text []byte) (*object, error) {
	o := &object{values: make(map[string]jsontext.Value)}
	var d elementReader
	err := d.each(text, func(name string, value jsontext.Value, _ span) { o.set(name, value.Clone()) })
	return o, err
}

// get returns a member, nil if it is missing or null.
func (o *object) get(name string) jsontext.Value {
	if value := o.values[name]; value.Kind() != 'n' {
		return value
	}
	return nil
}

// set sets a member, a new one at the end.
func (o *object) set(name string, value jsontext.Value) {
	if _, ok := o.values[name]; !ok {
		o.names = append(o.names, name)
	}
	o.values[name] = value
}

// remove removes a member.
func (o *object) remove(name string) {
	delete(o.values, name)
	o.names = slices.DeleteFunc(o.names, func(known string) bool { return known == name })
}

// appendTo appends the object as JSON.
func (o *object) appendTo(b []byte) []byte {
	b = append(b, '{')
	for i, name := range o.names {
		if i > 0 {
			b = append(b, ',')
		}
		b, _ = jsontext.AppendQuote(b, name)
		b = append(append(b, ':'), o.values[name]...)
	}
	return append(b, '}')
}

// text returns a member that is a string; empty: it is none.
func (o *object) text(name string) string {
	text, _ := textOf(o.get(name), "")
	return text
}

// int returns a member that is an integer; 0: it is none.
func (o *object) int(name string) int64 {
	n, _ := strconv.ParseInt(string(o.get(name)), 10, 64)
	return n
}

// float returns a member that is a number; 0: it is none.
func (o *object) float(name string) float64 {
	f, _ := strconv.ParseFloat(string(o.get(name)), 64)
	return f
}

// time returns a member that is a time, to compare it.
func (o *object) time(name string) instantText { return newInstantText(o.get(name)) }

// setFloat sets a member to a number of milliseconds, to the microsecond.
func (o *object) setFloat(name string, f float64) {
	o.set(name, strconv.AppendFloat(nil, math.Round(f*1000)/1000, 'f', -1, 64))
}

// list returns the objects in a member that is a list. It fails if it is none.
func (o *object) list(name string) ([]*object, error) {
	var values []jsontext.Value
	if err := json.Unmarshal(o.values[name], &values, json.JoinOptions(jsonOptions...)); err != nil {
		return nil, err
	}
	all := make([]*object, len(values))
	for i, value := range values {
		one, err := parseObject(value)
		if err != nil {
			return nil, err
		}
		all[i] = one
	}
	return all, nil
}

// setList sets a member to a list of objects.
func (o *object) setList(name string, all []*object) {
	b := []byte{'['}
	for i, one := range all {
		if i > 0 {
			b = append(b, ',')
		}
		b = one.appendTo(b)
	}
	o.set(name, append(b, ']'))
}

// A rule makes one value of two, of which neither is null or missing.
type rule func(a, b jsontext.Value) jsontext.Value

// rules are those of the members of an object. A member without one stays as the first object has it.
type rules map[string]rule

// join adds what other says to o.
func (by rules) join(o, other *object) {
	for _, name := range other.names {
		apply, ok := by[name]
		b := other.get(name)
		if !ok || b == nil {
			continue
		}
		if a := o.get(name); a != nil {
			b = apply(a, b)
		}
		o.set(name, b)
	}
}

// sum adds integers.
func sum(a, b jsontext.Value) jsontext.Value {
	n, _ := strconv.ParseInt(string(a), 10, 64)
	m, _ := strconv.ParseInt(string(b), 10, 64)
	return strconv.AppendInt(nil, n+m, 10)
}

// sumFloat adds milliseconds.
func sumFloat(a, b jsontext.Value) jsontext.Value {
	f, _ := strconv.ParseFloat(string(a), 64)
	g, _ := strconv.ParseFloat(string(b), 64)
	return strconv.AppendFloat(nil, math.Round((f+g)*1000)/1000, 'f', -1, 64)
}

// chosen returns a rule that takes b if compare(b, a) > 0.
func chosen(compare func(a, b jsontext.Value) int) rule {
	return func(a, b jsontext.Value) jsontext.Value {
		if compare(b, a) > 0 {
			return b
		}
		return a
	}
}

// opposite turns an order round.
func opposite(compare func(a, b jsontext.Value) int) func(a, b jsontext.Value) int {
	return func(a, b jsontext.Value) int { return compare(b, a) }
}

func compareNumbers(a, b jsontext.Value) int {
	f, _ := strconv.ParseFloat(string(a), 64)
	g, _ := strconv.ParseFloat(string(b), 64)
	return cmp.Compare(f, g)
}

func compareTimes(a, b jsontext.Value) int { return newInstantText(a).compare(newInstantText(b)) }

func compareDurations(a, b jsontext.Value) int {
	return cmp.Compare(durationIn(a), durationIn(b))
}

func durationIn(value jsontext.Value) time.Duration {
	text, _ := textOf(value, "")
	d, _ := duration.Parse(text)
	return d
}

// Rules.
var (
	largest  = chosen(compareNumbers)
	smallest = chosen(opposite(compareNumbers))
	latest   = chosen(compareTimes)
	earliest = chosen(opposite(compareTimes))
	longest  = chosen(compareDurations)
)

func either(a, b jsontext.Value) jsontext.Value {
	if string(a) == "true" {
		return a
	}
	return b
}

func both(a, b jsontext.Value) jsontext.Value {
	if string(a) == "false" {
		return a
	}
	return b
}

// maxNames is how many names a list of them has at most, as servers have it.
const maxNames = 100

// union makes one list of two of texts, in order.
func union(a, b jsontext.Value) jsontext.Value {
	var left, right []string
	if json.Unmarshal(a, &left) != nil || json.Unmarshal(b, &right) != nil {
		return a
	}
	all := slices.Concat(left, right)
	slices.SortFunc(all, strings.Compare)
	all = slices.Compact(all)
	text, err := json.Marshal(all[:min(len(all), maxNames)])
	if err != nil {
		return a // invalid UTF-8, which no database has
	}
	return text
}
