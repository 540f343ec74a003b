package main

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/alecthomas/kong"
)

// envPrefix begins the name of every variable this program reads.
const envPrefix = "QUEUED_"

// envName is the variable of the setting whose flag is called flag.
func envName(flag string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// isSetting says whether value can be set through the environment.
func isSetting(value *kong.Value) bool {
	return value.Flag != nil && kindOf(value) != nil
}

// defaultText is a setting's default as documentation shows it, empty when there is none.
func defaultText(value *kong.Value) string {
	if note := value.Tag.Get("default-note"); note != "" {
		return note
	}
	return value.Default
}

// source reads settings from the environment, and remembers how each was given, to name it
// in errors, and what was wrong, to report all of it at once.
type source struct {
	env   map[string]string // the variables of ours that are set
	names map[string]string // from the name of a flag that was given to what the user called it
	wrong []error
}

func newSource(environ []string) *source {
	src := &source{env: map[string]string{}, names: map[string]string{}}
	for _, entry := range environ {
		// An empty variable counts as unset: compose files and unit files cannot leave one out.
		if name, value, ok := strings.Cut(entry, "="); ok && value != "" && strings.HasPrefix(name, envPrefix) {
			src.env[name] = value
		}
	}
	return src
}

// name is what the user called the setting: the flag or the variable, whichever was given.
func (s *source) name(flag string) string {
	if name, ok := s.names[flag]; ok {
		return name
	}
	return envName(flag)
}

// given says whether the user gave the setting at all.
func (s *source) given(flag string) bool {
	_, ok := s.names[flag]
	return ok
}

// remember notes how each setting of a parsed command line was given.
func (s *source) remember(parsed *kong.Context) {
	for _, path := range parsed.Path {
		switch {
		case path.Flag == nil:
		case path.Resolved:
			s.names[path.Flag.Name] = envName(path.Flag.Name)
		default:
			s.names[path.Flag.Name] = "--" + path.Flag.Name
		}
	}
}

// err is everything that was wrong with the settings, as one usageError, or nil.
func (s *source) err() error {
	switch len(s.wrong) {
	case 0:
		return nil
	case 1:
		return usagef("%s", s.wrong[0])
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%d settings are wrong:", len(s.wrong))
	for _, err := range s.wrong {
		fmt.Fprintf(&text, "\n  %s", err)
	}
	return &usageError{text: text.String()}
}

// fromEnv is a value on its way from the environment to the mapper.
type fromEnv struct{ name, value string }

// Validate makes source a kong.Resolver.
func (s *source) Validate(*kong.Application) error { return nil }

// Resolve returns the variable of a setting that the command line left out, nil when there is none.
func (s *source) Resolve(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	if !isSetting(flag.Value) {
		return nil, nil
	}
	name := envName(flag.Name)
	value, ok := s.env[name]
	if !ok {
		return nil, nil
	}
	return fromEnv{name: name, value: value}, nil
}

// mappers teaches kong the kinds of values, reporting to src what is wrong with them.
func mappers(src *source) kong.Option {
	return kong.OptionFunc(func(k *kong.Kong) error {
		for name := range kinds {
			if err := kong.NamedMapper(name, &settingMapper{src: src}).Apply(k); err != nil {
				return err
			}
		}
		return nil
	})
}

// settingMapper parses the value of a setting, wherever it comes from.
type settingMapper struct{ src *source }

// IsBoolFromValue makes switches take no argument.
func (m *settingMapper) IsBoolFromValue(target reflect.Value) bool {
	return target.Kind() == reflect.Bool
}

// Decode makes settingMapper a kong.Mapper.
func (m *settingMapper) Decode(ctx *kong.DecodeContext, target reflect.Value) error {
	name, text := "--"+ctx.Value.Name, "true"
	if !m.IsBoolFromValue(target) || ctx.Scan.Peek().Type == kong.FlagValueToken {
		token, err := ctx.Scan.PopValue("a")
		if err != nil {
			return err
		}
		switch value := token.Value.(type) {
		case fromEnv:
			name, text = value.name, value.value
		case bool: // how kong says --flag
			text = fmt.Sprint(value)
		default:
			text = token.String()
		}
	}
	value, err := kindOf(ctx.Value)(text, ctx.Value.Tag)
	if err != nil {
		m.src.wrong = append(m.src.wrong, fmt.Errorf("%s: %w", name, err))
		return nil
	}
	target.Set(reflect.ValueOf(value).Convert(target.Type()))
	return nil
}
