package cli

import (
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/queued/queued/internal/duration"
)

// CheckValues fails if an argument or a flag that the command line has is empty, as a variable of a shell is that is not set, or is a number or a
// duration beyond the tags min and max of its field. The tag empty is on those that may be empty. Values of a type of the program are left to it.
func CheckValues(command *kong.Context) error {
	for _, path := range command.Path {
		var err error
		switch {
		case path.Resolved:
		case path.Positional != nil:
			err = checkValue(path.Positional, clauseOf(path.Positional.Help))
		case path.Flag != nil && path.Flag.Tag.Type == "":
			err = checkValue(path.Flag.Value, "--"+path.Flag.Name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// clauseOf returns the first clause of a help text, to go on with.
func clauseOf(help string) string {
	if end := strings.IndexAny(help, ".:;,"); end >= 0 {
		help = help[:end]
	}
	return strings.ToLower(help[:1]) + help[1:]
}

// checkValue checks a value; what is how an error calls it.
func checkValue(v *kong.Value, what string) error {
	target := v.Target
	if target.Kind() == reflect.Pointer {
		if target.IsNil() {
			return nil
		}
		target = target.Elem()
	}
	if isEmpty(target) && !v.Tag.Has("empty") {
		return errEmpty(v, what)
	}
	if !isWithin(v.Tag, target) {
		return usagef("%s is %v; want %s", what, target, rangeOf(v.Tag))
	}
	return nil
}

// isEmpty reports whether a value is an empty text, or a list that has one or is empty.
func isEmpty(target reflect.Value) bool {
	switch {
	case target.Kind() == reflect.String:
		return target.Len() == 0
	case target.Kind() != reflect.Slice || target.Type().Elem().Kind() != reflect.String:
		return false
	}
	for i := range target.Len() {
		if target.Index(i).Len() == 0 {
			return true
		}
	}
	return target.Len() == 0
}

func errEmpty(v *kong.Value, what string) error {
	switch {
	case v.Flag == nil:
		return usagef("%s must not be empty", what)
	case v.Required:
		return usagef("%s must not be empty; want %s", what, clauseOf(v.Help))
	}
	return usagef("%s must not be empty; leave out the flag, or give it a value", what)
}

// isWithin reports whether a number or a duration is within the tags min and max.
func isWithin(tag *kong.Tag, target reflect.Value) bool {
	var n float64
	switch {
	case target.CanInt():
		n = float64(target.Int())
	case target.CanFloat():
		n = target.Float()
	default:
		return true
	}
	bound := func(name string, absent float64) float64 {
		text, isDuration := tag.Get(name), target.Type() == reflect.TypeFor[time.Duration]()
		if text == "" {
			return absent
		}
		limit, err := strconv.ParseFloat(text, 64)
		if isDuration {
			var d time.Duration
			d, err = duration.Parse(text)
			limit = float64(d)
		}
		if err != nil { // a mistake in the tag
			panic(fmt.Sprintf("tag %s: %v", name, err))
		}
		return limit
	}
	return bound("min", math.Inf(-1)) <= n && n <= bound("max", math.Inf(1))
}

// rangeOf says what the tags min and max allow.
func rangeOf(tag *kong.Tag) string {
	if limit := tag.Get("max"); limit != "" {
		return tag.Get("min") + " to " + limit
	}
	return tag.Get("min") + " or more"
}
