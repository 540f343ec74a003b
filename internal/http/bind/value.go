package bind

import (
	"encoding"
	"errors"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-playground/validator/v10"

	"github.com/queued/queued/internal/duration"
	"github.com/queued/queued/internal/http/problem"
	"github.com/queued/queued/internal/match"
)

// allocate returns what v points to, anew at each level of pointers, or v itself.
func allocate(v reflect.Value) reflect.Value {
	for v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	return v
}

// set sets v, the place of f, to text. It returns what is wrong with text, or ""; show writes text for that.
func (f *Field) set(v reflect.Value, text string, show func(string) string) string {
	switch {
	case strings.Contains(text, "\x00"):
		return "must not contain a NUL character"
	case !utf8.ValidString(text):
		return "must be valid UTF-8"
	}
	v = allocate(v)
	var err error
	switch p := v.Addr().Interface().(type) {
	case *time.Duration:
		if *p, err = duration.Parse(text); errors.Is(err, duration.ErrRange) {
			return show(text) + " is out of range: a duration is at most " + duration.Max
		}
	case *time.Time:
		if err = p.UnmarshalText([]byte(text)); err != nil && strings.Contains(text, " ") {
			return "must be " + f.wants + ", not " + show(text) + `; in a URL, write "+" as %2B`
		}
		if *p = p.UTC(); err == nil && (p.Year() < 1 || p.Year() > 9999) { // beyond that RFC 3339 cannot write it
			return show(text) + " is out of range: the year in UTC must be 1 to 9999"
		}
	case encoding.TextUnmarshaler:
		if err := p.UnmarshalText([]byte(text)); err != nil {
			if p := problem.Of(err); p.Type == problem.ValidationFailed { // the error of a service says what it expects
				return p.Detail + ", not " + show(text)
			}
			return err.Error()
		}
	case *bool:
		if *p = text == "true"; !*p && text != "false" {
			err = strconv.ErrSyntax
		}
	case *float64:
		*p, _ = strconv.ParseFloat(text, 64) // infinite when it is too large, which the rules refuse
	default:
		if v.Kind() == reflect.String {
			v.SetString(text)
			break
		}
		var n int64
		n, err = strconv.ParseInt(text, 10, v.Type().Bits())
		plain := strconv.FormatInt(n, 10)
		switch {
		case errors.Is(err, strconv.ErrRange) && n > 0:
			return "must be at most " + plain
		case errors.Is(err, strconv.ErrRange):
			return "must be at least " + plain
		case err == nil && plain != text: // a sign or zeros in front
			err = strconv.ErrSyntax
		}
		v.SetInt(n)
	}
	if err != nil {
		return "must be " + f.wants + ", not " + show(text)
	}
	return f.violation(v)
}

// maxQuoted is how many bytes of what was sent a problem repeats.
const maxQuoted = 64

func clip(text string) string {
	if len(text) > maxQuoted {
		return strings.ToValidUTF8(text[:maxQuoted], "") + "…"
	}
	return text
}

// Quote returns text in quotes, cut short, for a problem.
func Quote(text string) string { return strconv.Quote(clip(text)) }

// names has the rules for names, and which characters they take beside letters and digits.
var names = map[string]string{"queue": "._:-", "owner": "._:@+-"}

var validate = func() *validator.Validate {
	v := validator.New()
	for rule, others := range names {
		var allowed [256]bool
		for _, c := range []byte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789" + others) {
			allowed[c] = true
		}
		// A regular expression takes ten times as long, and there is one name for each event of a batch.
		isName := func(fl validator.FieldLevel) bool {
			name := fl.Field().String()
			for _, c := range []byte(name) {
				if !allowed[c] {
					return false
				}
			}
			return name != "" && len(name) <= 128 && !isStep(name)
		}
		if err := v.RegisterValidation(rule, isName); err != nil {
			panic(err)
		}
	}
	isOpen := func(fl validator.FieldLevel) bool { return !strings.HasPrefix(fl.Field().String(), reserved) }
	if err := v.RegisterValidation("unreserved", isOpen); err != nil {
		panic(err)
	}
	isClaimable := func(fl validator.FieldLevel) bool {
		return isOpen(fl) || strings.HasPrefix(fl.Field().String(), forwards)
	}
	if err := v.RegisterValidation("claimable", isClaimable); err != nil {
		panic(err)
	}
	if err := v.RegisterValidation("topic", func(fl validator.FieldLevel) bool { return IsTopic(fl.Field().String()) }); err != nil {
		panic(err)
	}
	return v
}()

// isStep reports whether browsers and proxies take a name for a step of a path.
func isStep(name string) bool { return name == "." || name == ".." }

// IsTopic reports whether name can be published to: the words of letters, digits and _ : - that dots separate, but none that begins with queued.
func IsTopic(name string) bool {
	return match.ValidTopic(name) == nil && !strings.HasPrefix(name, reserved)
}

// reserved is what the names of topics and queues begin with that are the service's own.
const reserved = "queued."

// forwards is what the names of those of the service's queues begin with that gateways claim from.
const forwards = reserved + "forward."

// violation says which rule of f the value v breaks, or "".
func (f *Field) violation(v reflect.Value) string {
	if f.Rules == "" {
		return ""
	}
	broken, ok := errors.AsType[validator.ValidationErrors](validate.Var(v.Addr().Interface(), f.Rules))
	if !ok {
		return ""
	}
	e := broken[0]
	tag, limit, isText := e.Tag(), e.Param(), e.Kind() == reflect.String
	switch {
	case names[tag] != "" && isStep(reflect.Indirect(v).String()):
		return "must not be . or .., which are steps of a path"
	case names[tag] != "":
		return "must be 1 to 128 of A–Z a–z 0–9 " + strings.Join(strings.Split(names[tag], ""), " ")
	case tag == "unreserved" || tag == "claimable":
		return "must not begin with " + reserved + ", which is reserved for the service's own queues"
	case tag == "topic":
		return "must be 1 to 8 words of A–Z a–z 0–9 _ : - with dots between them, and 255 characters at most; queued.* is reserved"
	case tag == "oneof":
		return "must be one of " + strings.ReplaceAll(limit, " ", ", ")
	case tag == "min" && limit == "1" && (isText || f.Element != nil):
		return "must not be empty"
	case e.Type() == durationType:
		d, _ := time.ParseDuration(limit) // the validator has parsed it
		limit = d.String()
	case isText:
		limit += " characters long"
	case f.Element != nil:
		limit += " elements long"
	}
	return map[string]string{"min": "must be at least ", "max": "must be at most "}[tag] + limit
}
