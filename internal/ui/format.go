package ui

import (
	"errors"
	"fmt"
	"html/template"
	"math"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// functions are those that templates call.
var functions = template.FuncMap{
	"live": live, "endlive": endLive,
	"num": number, "duration": Duration, "age": Age, "ms": milliseconds, "time": timestamp, "exact": exact, "ago": ago, "clock": clock, "bytes": byteSize, "plural": Count, "percent": percent, "rate": rate,
	"json": indent, "fold": fold, "path": url.PathEscape, "query": queryString, "dict": dict, "join": strings.Join, "zero": isZero, "asset": assetPath,
	"bars": Bars, "lines": Lines, "spark": Spark, "short": Short, "list": func(items ...any) []any { return items },
	"schedule": ScheduleName, "rule": ruleOf, "bounds": boundsOf, "local": localText,
	"windows": func() []Window { return Windows }, "sum": sum, "cell": cell, "cellto": cellTo, "outcomerows": outcomeRows, "deref": func(pointer any) any { return reflect.ValueOf(pointer).Elem().Interface() },
	"millis":    func(ms *float64) time.Duration { return time.Duration(*ms * float64(time.Millisecond)) },
	"actorpath": actorPath, "targetpath": targetPath, "patterns": patternsText,
	"span": span, "visible": visible, "kinds": func() [][2]string { return sourceKinds }, "less": func(n int) int { return n - 1 }, "nonzero": nonzero,
	"seconds": func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) },
}

// number writes a count with commas: 48,211. Counts have all their digits, however large they are.
func number(n any) string {
	var digits string
	switch v := reflect.ValueOf(n); v.Kind() {
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		digits = strconv.FormatInt(v.Int(), 10)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		digits = strconv.FormatUint(v.Uint(), 10)
	case reflect.Float32, reflect.Float64:
		return decimal(v.Float())
	case reflect.Pointer:
		if v.IsNil() {
			return "–"
		}
		return number(v.Elem().Interface())
	default:
		return fmt.Sprint(n)
	}
	sign := ""
	if strings.HasPrefix(digits, "-") {
		sign, digits = "−", digits[1:]
	}
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return sign + digits
}

// decimal writes a number with three digits that count, or all of its whole part.
func decimal(f float64) string {
	switch abs := math.Abs(f); {
	case f == 0:
		return "0"
	case abs >= 100:
		return number(int64(math.Round(f)))
	case abs >= 10:
		return strconv.FormatFloat(f, 'f', 1, 64)
	default:
		return strconv.FormatFloat(f, 'g', 2, 64)
	}
}

// rate writes how many events there are in a second, in a minute or in an hour: in the shortest of them in which there is one.
func rate(perSecond float64) string {
	text := func(n float64, unit string) string { return strings.TrimSuffix(decimal(n), ".0") + unit }
	switch {
	case perSecond <= 0:
		return "none"
	case perSecond >= 1:
		return text(perSecond, " a second")
	case perSecond >= 1.0/60:
		return text(60*perSecond, " a minute")
	}
	return text(3600*perSecond, " an hour")
}

// Duration writes a duration for people, in its largest unit or its two largest: 4 ms, 8.4 s, 14 min, 2 h 5 min, 3 d 4 h.
func Duration(d time.Duration) string {
	if d < 0 {
		return "−" + Duration(-d)
	}
	two := func(large, small time.Duration, a, b string) string {
		whole, rest := d/large, (d%large)/small
		if rest == 0 {
			return fmt.Sprintf("%s %s", number(int64(whole)), a)
		}
		return fmt.Sprintf("%s %s %d %s", number(int64(whole)), a, rest, b)
	}
	const day = 24 * time.Hour
	switch {
	case d == 0:
		return "0 s"
	case d < time.Millisecond:
		return decimal(float64(d)/float64(time.Millisecond)) + " ms"
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Round(time.Millisecond)/time.Millisecond)
	case d < time.Minute:
		return strconv.FormatFloat(d.Round(100*time.Millisecond).Seconds(), 'f', -1, 64) + " s"
	case d < time.Hour:
		return two(time.Minute, time.Second, "min", "s")
	case d < day:
		return two(time.Hour, time.Minute, "h", "min")
	default:
		return two(day, time.Hour, "d", "h")
	}
}

// Age writes how long something has lasted, in whole units of the largest: 42 s, 14 min, 2 h, 3 d. It changes seldom, so that live parts do, too.
func Age(d time.Duration) string {
	const day = 24 * time.Hour
	for _, unit := range []struct {
		size time.Duration
		name string
	}{{day, "d"}, {time.Hour, "h"}, {time.Minute, "min"}, {time.Second, "s"}} {
		if d >= unit.size {
			return number(int64(d/unit.size)) + " " + unit.name
		}
	}
	return "< 1 s"
}

// milliseconds writes a time in milliseconds; nil, which may also be a *float64, is a dash.
func milliseconds(ms any) string {
	switch v := ms.(type) {
	case *float64:
		if v == nil {
			return "–"
		}
		return Duration(time.Duration(*v * float64(time.Millisecond)))
	case float64:
		return Duration(time.Duration(v * float64(time.Millisecond)))
	}
	return "–"
}

// timestamp writes a time in UTC, with how long ago it was beside it; a zero time, or nil, is a dash. The script adds the local time.
func timestamp(t any) template.HTML {
	at := timeOf(t)
	if at.IsZero() {
		return "–"
	}
	return template.HTML(strings.TrimSuffix(string(exact(at)), "</time>") + `<span class="muted" data-ago> (` + distance(time.Since(at), at) + `)</span></time>`) //nolint:gosec // of digits
}

// exact writes a time in UTC, and nothing beside it.
func exact(t any) template.HTML {
	at := timeOf(t)
	if at.IsZero() {
		return "–"
	}
	b := make([]byte, 0, 120)
	b = at.AppendFormat(append(b, `<time datetime="`...), "2006-01-02T15:04:05.999Z")
	b = at.AppendFormat(append(b, `">`...), "2006-01-02 15:04:05")
	return template.HTML(append(b, `<span class="utc"> UTC</span></time>`...)) //nolint:gosec // of digits
}

// ago writes how long ago a time was, or how soon it will be, with the exact time as the title; a zero time, or nil, is a dash.
func ago(t any) template.HTML { return agoFrom(t, time.Now()) }

func agoFrom(t any, now time.Time) template.HTML {
	at := timeOf(t)
	if at.IsZero() {
		return "–"
	}
	return template.HTML(at.Format(`<time data-ago datetime="2006-01-02T15:04:05.999Z" title="2006-01-02 15:04:05 UTC">`) + distance(now.Sub(at), at) + `</time>`) //nolint:gosec // of digits
}

// distance writes a time by how long ago it was, as HTML: by its date if that is long. The script does the same; it changes once a minute, so that live parts do, too.
func distance(past time.Duration, at time.Time) string {
	const long = 90 * 24 * time.Hour
	switch {
	case past >= long, past <= -long:
		return at.Format("2006-01-02")
	case past >= time.Minute:
		return Age(past) + " ago"
	case past >= 0:
		return "just now"
	case past > -time.Minute:
		return "in &lt; 1 min"
	}
	return "in " + Age(-past)
}

// timeOf returns a time in UTC, also where a pointer leads to it; zero: there is none.
func timeOf(t any) (at time.Time) {
	switch v := t.(type) {
	case time.Time:
		at = v
	case *time.Time:
		if v != nil {
			at = *v
		}
	}
	if at.IsZero() {
		return at
	}
	return at.UTC()
}

// clock writes the time of day in UTC.
func clock(t time.Time) string { return t.UTC().Format("15:04:05 UTC") }

// byteSize writes a number of bytes in binary units.
func byteSize(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	f, i := float64(n), 0
	for f >= 1024 && i < len(units)-1 {
		f, i = f/1024, i+1
	}
	if i == 0 {
		return number(n) + " B"
	}
	return strconv.FormatFloat(f, 'f', 1, 64) + " " + units[i]
}

// Count writes a count with its noun: 1 queue, 2 queues.
func Count(n any, one, many string) string {
	text := number(n)
	if text == "1" {
		return text + " " + one
	}
	return text + " " + many
}

// percent writes part of all, with two digits that count. It says neither none nor all of what is not.
func percent(part, all any) string {
	a, b := toFloat(part), toFloat(all)
	if b == 0 {
		return "–"
	}
	share := 100 * a / b
	digits := 2
	switch {
	case share > 0 && share < 0.01:
		return "< 0.01 %"
	case share > 99.5 && share < 100:
		return "> 99 %"
	case share >= 10:
		return strconv.FormatFloat(share, 'f', 0, 64) + " %"
	case share >= 1:
		digits = 1
	}
	return strings.TrimSuffix(strings.TrimRight(strconv.FormatFloat(share, 'f', digits, 64), "0"), ".") + " %"
}

func toFloat(n any) float64 {
	switch v := reflect.ValueOf(n); {
	case v.CanInt():
		return float64(v.Int())
	case v.CanUint():
		return float64(v.Uint())
	case v.CanFloat():
		return v.Float()
	}
	return 0
}

// escapedInJSON are the characters that encoders of JSON escape for the sake of HTML, which templates do themselves. An escaped backslash is no beginning of another escape.
var escapedInJSON = strings.NewReplacer(`\\`, `\\`, `\u003c`, "<", `\u003e`, ">", `\u0026`, "&")

// unescape writes JSON with <, > and & as they are.
func unescape(text string) string { return escapedInJSON.Replace(text) }

// Short returns the first n characters of a text, and an ellipsis where there are more.
func Short(n int, text string) string {
	count := 0
	for i := range text {
		if count == n {
			return text[:i] + "…"
		}
		count++
	}
	return text
}

// queryString returns the query of a URL with some parameters set, or, where the value is empty, left out: names and values in turn.
func queryString(values url.Values, namesAndValues ...any) template.URL {
	changed := url.Values{}
	for name, all := range values {
		changed[name] = all
	}
	for i := 0; i+1 < len(namesAndValues); i += 2 {
		name, value := fmt.Sprint(namesAndValues[i]), fmt.Sprint(namesAndValues[i+1])
		if value == "" {
			changed.Del(name)
		} else {
			changed.Set(name, value)
		}
	}
	return template.URL("?" + changed.Encode()) //nolint:gosec // Encode escapes
}

var errDict = errors.New("dict takes names and values in turn")

// dict makes a map of names and values in turn, to pass several to a template.
func dict(namesAndValues ...any) (map[string]any, error) {
	if len(namesAndValues)%2 != 0 {
		return nil, errDict
	}
	m := make(map[string]any, len(namesAndValues)/2)
	for i := 0; i < len(namesAndValues); i += 2 {
		name, ok := namesAndValues[i].(string)
		if !ok {
			return nil, errDict
		}
		m[name] = namesAndValues[i+1]
	}
	return m, nil
}

// sum adds up counts.
func sum(counts ...int) (total int) {
	for _, n := range counts {
		total += n
	}
	return total
}

// isZero reports whether a number is 0, so that a table can write it in grey.
func isZero(n any) bool { return toFloat(n) == 0 }

// cell writes a number as a cell of a table: grey when it is 0, else with a class of the stylesheet, unless that is empty. It is no template because open pages
// are rendered every two seconds with hundreds of them, and a template takes ten times as long.
func cell(n any, class string) template.HTML {
	if isZero(n) {
		class = "zero"
	}
	if class != "" {
		class = ` class="` + class + `"`
	}
	return template.HTML("<td" + class + ">" + number(n) + "</td>") //nolint:gosec // of digits, and a class that a template names
}

// cellTo is cell for a number that leads to the list which it counts, unless that is empty: at the path of a list, with the state or the outcome that it ends in.
func cellTo(n any, class, list, state string) template.HTML {
	if isZero(n) {
		return cell(n, class)
	}
	if class != "" {
		class = ` class="` + class + `"`
	}
	return template.HTML("<td" + class + `><a href="` + template.HTMLEscapeString(list+state) + `">` + number(n) + "</a></td>") //nolint:gosec // of digits, and what is escaped
}

// rows writes n rows of a table. cells returns the texts of a row, which are HTML: of numbers and times.
func rows(n int, cells func(row int) []string) template.HTML {
	var b strings.Builder
	for row := range n {
		b.WriteString("<tr><td>" + strings.Join(cells(row), "</td><td>") + "</td></tr>")
	}
	return template.HTML(b.String()) //nolint:gosec // see above
}
