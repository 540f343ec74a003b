package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"github.com/rs/zerolog"

	"github.com/queued/queued/internal/cli"
)

// envPrefix begins the name of every variable of this program.
const envPrefix = "QUEUED_"

// maxSecretFile is the largest file of a secret, in bytes: more than any URL or key needs.
const maxSecretFile = 64 << 10

// envName returns the variable of a setting.
func envName(flag string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// isSetting reports whether a value can be set through the environment.
func isSetting(value *kong.Value) bool {
	_, isKind := kinds[value.Tag.Type]
	return value.Flag != nil && isKind
}

// settingsReader reads settings from the environment. kong's own way would read the process's environment, repeat wrong values, which may be
// secrets, and stop at the first of them.
type settingsReader struct {
	env   map[string]string // the variables of this program that are set
	names map[string]string // by flag: the flag or variable that the user wrote
	wrong []wrongSetting
}

type wrongSetting struct {
	flag string
	err  error
}

func newSettingsReader(environ []string) *settingsReader {
	reader := &settingsReader{env: map[string]string{}, names: map[string]string{}}
	for _, entry := range environ {
		// An empty variable counts as unset, because compose and unit files cannot leave one out.
		if name, value, ok := strings.Cut(entry, "="); ok && value != "" && strings.HasPrefix(name, envPrefix) {
			reader.env[name] = value
		}
	}
	return reader
}

// resolve returns the variable of a setting that the command line left out. It is a kong.ResolverFunc.
func (r *settingsReader) resolve(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	if value, ok := r.env[envName(flag.Name)]; ok && isSetting(flag.Value) {
		return value, nil
	}
	return nil, nil
}

// name returns the flag or variable by which the user has given a setting.
func (r *settingsReader) name(flag string) string { return cmp.Or(r.names[flag], envName(flag)) }

// finish ends the parsing: it reads the settings that are in files, and reports all wrong settings as one usageError.
func (r *settingsReader) finish(parsed *kong.Context) error {
	for _, path := range parsed.Path {
		switch {
		case path.Flag == nil:
		case path.Resolved:
			r.names[path.Flag.Name] = envName(path.Flag.Name)
		default:
			r.names[path.Flag.Name] = "--" + path.Flag.Name
		}
	}
	flags := parsed.Flags()
	for _, file := range flags {
		at := slices.IndexFunc(flags, func(f *kong.Flag) bool { return f.Name+"-file" == file.Name })
		if at < 0 || file.Target.IsZero() || !isSetting(flags[at].Value) {
			continue
		}
		if err := r.readSecret(flags[at], file.Target.String()); err != nil {
			r.wrong = append(r.wrong, wrongSetting{file.Name, err})
		}
	}
	var lines []string
	for _, wrong := range r.wrong {
		lines = append(lines, r.name(wrong.flag)+": "+wrong.err.Error())
	}
	if len(lines) > 1 {
		lines = []string{fmt.Sprintf("%d settings are wrong:\n  %s", len(lines), strings.Join(lines, "\n  "))}
	}
	if len(lines) > 0 {
		return usagef("%s", lines[0])
	}
	return nil
}

// checkDatabase refuses the flag of a data directory beside a database URL, which would be used in its place.
func (r *settingsReader) checkDatabase() error {
	for _, other := range []string{"database-url", "database-url-file"} {
		if given := r.names[other]; given != "" && strings.HasPrefix(r.names["data-dir"], "--") {
			return usagef("--data-dir is about the private PostgreSQL, and %s names another one; want one of them", given)
		}
	}
	return nil
}

// readSecret sets a setting from the file at path.
func (r *settingsReader) readSecret(flag *kong.Flag, path string) error {
	if name, isGiven := r.names[flag.Name]; isGiven {
		return fmt.Errorf("%s is set, too; set one of them", name)
	}
	file, err := os.Open(path) //nolint:gosec // the operator names the file
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	content, err := io.ReadAll(io.LimitReader(file, maxSecretFile+1))
	if err != nil {
		return err
	}
	if len(content) > maxSecretFile {
		return fmt.Errorf("%s holds more than %d bytes, more than any value needs", path, maxSecretFile)
	}
	value, err := kinds[flag.Tag.Type].parse(strings.TrimSpace(string(content)), flag.Tag)
	if err != nil {
		return fmt.Errorf("in %s, %w", path, err)
	}
	flag.Target.Set(reflect.ValueOf(value))
	return nil
}

// settingMapper is a kong.Mapper that parses the settings of one kind, and leaves errors to reader.finish.
type settingMapper struct {
	kind
	reader *settingsReader
}

// PlaceHolder returns the text that stands for the value in --help.
func (m settingMapper) PlaceHolder(flag *kong.Flag) string {
	return cmp.Or(flag.PlaceHolder, m.placeHolder)
}

// IsBoolFromValue has kong accept a switch without a value.
func (m settingMapper) IsBoolFromValue(target reflect.Value) bool {
	return target.Kind() == reflect.Bool
}

// Decode sets target to the next token.
func (m settingMapper) Decode(ctx *kong.DecodeContext, target reflect.Value) error {
	text := "true"
	if !m.IsBoolFromValue(target) || ctx.Scan.Peek().Type == kong.FlagValueToken {
		token, err := ctx.Scan.PopValue("value")
		if err != nil {
			return err
		}
		text = token.String()
	}
	value, err := m.parse(text, ctx.Value.Tag)
	if err != nil {
		m.reader.wrong = append(m.reader.wrong, wrongSetting{ctx.Value.Name, err})
		return nil
	}
	target.Set(reflect.ValueOf(value).Convert(target.Type()))
	return nil
}

// reservedVariables are variables with the prefix that are no settings: those of the tests, and those that Kubernetes sets for a
// service that is called queued.
var reservedVariables = regexp.MustCompile(`^QUEUED_(TEST_.*|SERVICE_HOST|SERVICE_PORT(_.*)?|PORT_\d+_(TCP|UDP)(_.*)?)$`)

// warnUnknown logs the variables that have the prefix and set nothing: most are typing errors. app has the command that runs, or all.
func (r *settingsReader) warnUnknown(logger zerolog.Logger, app *kong.Application) {
	unknown := r.unknown(app)
	if len(unknown) > 0 { // to this command
		if whole, err := newParser(new(grammar), newSettingsReader(nil)); err == nil { // which a test makes sure of
			unknown = r.unknown(whole.Model)
		}
	}
	for name, closest := range unknown {
		logger.Warn().Str("variable", name).Str("closest", closest).Msg("this variable sets nothing; a typing error?")
	}
}

// unknown returns the variables that set nothing in any command, each with the setting whose name is closest.
func (r *settingsReader) unknown(app *kong.Application) map[string]string {
	var known []string
	for _, command := range app.Leaves(false) {
		for _, flag := range command.Flags {
			if isSetting(flag.Value) {
				known = append(known, envName(flag.Name))
			}
		}
	}
	unknown := map[string]string{}
	for name, value := range r.env {
		// Kubernetes sets QUEUED_PORT=tcp://…, too.
		if slices.Contains(known, name) || reservedVariables.MatchString(name) || name == "QUEUED_PORT" && strings.Contains(value, "://") {
			continue
		}
		unknown[name] = slices.MinFunc(known, func(a, b string) int { return cli.Distance(name, a) - cli.Distance(name, b) })
	}
	return unknown
}
