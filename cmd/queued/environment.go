package main

import (
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"github.com/rs/zerolog"
)

// foreign are the variables that bear our prefix and are none of our business: those of the
// tests, and those that Kubernetes sets about a service that is called queued.
var foreign = regexp.MustCompile(`^QUEUED_(TEST_.*|SERVICE_HOST|SERVICE_PORT(_.*)?|PORT_\d+_(TCP|UDP)(_.*)?)$`)

// unknownVariable is a variable that has our prefix and sets nothing: most often a typing error.
type unknownVariable struct {
	name    string
	closest string // the nearest of ours by spelling
}

// warnUnknown logs the variables that look like settings and are none.
func warnUnknown(logger zerolog.Logger, src *source, app *kong.Application) {
	for _, variable := range unknown(src, app) {
		logger.Warn().Str("variable", variable.name).Str("closest", variable.closest).
			Msg("this variable sets nothing; a typing error?")
	}
}

// unknown lists the variables of src that set nothing in any command, by name.
func unknown(src *source, app *kong.Application) []unknownVariable {
	known := settingNames(app)
	var out []unknownVariable
	for name, value := range src.env {
		// QUEUED_PORT=tcp://… is Kubernetes' as well.
		if slices.Contains(known, name) || foreign.MatchString(name) || name == "QUEUED_PORT" && strings.Contains(value, "://") {
			continue
		}
		closest := slices.MinFunc(known, func(a, b string) int { return distance(name, a) - distance(name, b) })
		out = append(out, unknownVariable{name: name, closest: closest})
	}
	slices.SortFunc(out, func(a, b unknownVariable) int { return strings.Compare(a.name, b.name) })
	return out
}

// settingNames lists the variables of every command, sorted.
func settingNames(app *kong.Application) []string {
	var names []string
	for _, command := range app.Leaves(false) {
		for _, flag := range command.Flags {
			if isSetting(flag.Value) {
				names = append(names, envName(flag.Name))
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// distance is Levenshtein's: how many letters to put in, take out or change to make a into b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			above := row[j+1]
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			row[j+1] = min(cost, above+1, row[j]+1)
			diagonal = above
		}
	}
	return row[len(b)]
}
