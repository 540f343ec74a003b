package http

import (
	"errors"
	"reflect"
	"regexp"
	"strings"
	"time"

	"github.com/go-playground/validator/v10"
)

var (
	queueName = regexp.MustCompile(`^[A-Za-z0-9._:-]{1,128}$`)
	ownerID   = regexp.MustCompile(`^[A-Za-z0-9._:@+-]{1,128}$`)
)

// validate knows the validator's rules and those of this API.
var validate = func() *validator.Validate {
	v := validator.New()
	rules := map[string]validator.Func{
		"queue": func(fl validator.FieldLevel) bool { return queueName.MatchString(fl.Field().String()) },
		"owner": func(fl validator.FieldLevel) bool { return ownerID.MatchString(fl.Field().String()) },
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
