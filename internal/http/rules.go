package http

import (
	"errors"
	"reflect"
	"strings"
	"time"

	"github.com/go-playground/validator/v10"
)

// isName reports whether text is a name of 1 to 128 letters, digits, and characters of others. A regular expression takes
// ten times as long, and there is one for each event of a batch.
func isName(text, others string) bool {
	for _, c := range []byte(text) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && strings.IndexByte(others, c) < 0 {
			return false
		}
	}
	return text != "" && len(text) <= 128
}

func isQueue(name string) bool { return isName(name, "._:-") }

// validate knows the validator's rules and those of this API.
var validate = func() *validator.Validate {
	v := validator.New()
	rules := map[string]validator.Func{
		"queue": func(fl validator.FieldLevel) bool { return isQueue(fl.Field().String()) },
		"owner": func(fl validator.FieldLevel) bool { return isName(fl.Field().String(), "._:@+-") },
	}
	for name, rule := range rules {
		if err := v.RegisterValidation(name, rule); err != nil {
			panic(err)
		}
	}
	return v
}()

// breaks says which rules of f the value v breaks, in words for the caller, or "".
func (f *field) breaks(v reflect.Value) string {
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	if f.rules == "" || !v.IsValid() {
		return ""
	}
	err := validate.Var(v.Interface(), f.rules)
	var broken validator.ValidationErrors
	if !errors.As(err, &broken) {
		return ""
	}
	return explain(broken[0])
}

func explain(e validator.FieldError) string {
	limit := e.Param()
	switch {
	case e.Tag() == "queue":
		return "must be 1 to 128 of A–Z a–z 0–9 . _ : -"
	case e.Tag() == "owner":
		return "must be 1 to 128 of A–Z a–z 0–9 . _ : @ + -"
	case e.Tag() == "oneof":
		return "must be one of " + strings.ReplaceAll(limit, " ", ", ")
	case e.Type() == durationType:
		if d, err := time.ParseDuration(limit); err == nil {
			limit = d.String()
		}
	case e.Tag() == "min" && limit == "1" && (e.Kind() == reflect.String || e.Kind() == reflect.Slice):
		return "must not be empty"
	case e.Kind() == reflect.String:
		limit += " characters long"
	case e.Kind() == reflect.Slice:
		limit += " elements long"
	}
	switch e.Tag() {
	case "min":
		return "must be at least " + limit
	case "max":
		return "must be at most " + limit
	default:
		return "breaks the rule " + e.Tag()
	}
}
