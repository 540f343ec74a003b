package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/alecthomas/kong"

	"github.com/queued/queued/internal/cli"
)

const description = `A durable event queue with an HTTP/JSON API, on PostgreSQL.

Where to begin: run "queued" alone. It starts a private PostgreSQL, serves on ` +
	`http://127.0.0.1:8080 and shows what to type next. To use an existing PostgreSQL, set QUEUED_DATABASE_URL.`

// grammar is the whole command line.
type grammar struct {
	Version kong.VersionFlag `help:"Show the version and exit."`

	Serve       serveCmd       `cmd:"" default:"withargs" help:"Serve the queue over HTTP; the default command."`
	Gateway     gatewayCmd     `cmd:"" help:"Serve the API in front of several cells, each a deployment with a database of its own: see docs/scaling.md."`
	Keys        keysCmd        `cmd:"" group:"Client:" help:"List, show, create, set, rotate and revoke keys: over HTTP, or straight in the database."`
	Secrets     secretsCmd     `cmd:"" help:"Seal the secrets of webhooks anew, straight on the database."`
	Migrate     migrateCmd     `cmd:"" help:"Bring the database's schema to this program's version."`
	Adopt       adoptCmd       `cmd:"" help:"Have a copy of a database, such as a restored dump, act by itself: push, fire schedules, deliver subscriptions."`
	Healthcheck healthcheckCmd `cmd:"" help:"Ask the server on this machine whether it is ready."`
	Help        helpCmd        `cmd:"" help:"Show the help of a command."`
	VersionCmd  versionCmd     `cmd:"" name:"version" help:"Show the version of the program and what it was built with."`

	cli.Commands `embed:""`
}

// partOf returns the part of the grammar that args need, nil where they need the whole: they begin with something else than a command, or ask about all commands.
func partOf(args []string) any {
	switch {
	case len(args) == 0:
		return cli.Part[grammar]("serve") // the default
	case args[0] == "help":
		return nil
	}
	return cli.Part[grammar](args[0])
}

// A commandLine is one that was parsed.
type commandLine struct {
	parsed *kong.Context
	reader *settingsReader // of the settings that it leaves out
	exited bool            // it asked for the help or the version, which was written
}

// parseLine parses args by the part of the grammar that they need. A mistake is described by the whole, which knows what was meant. It fails with a usageError.
func parseLine(ctx context.Context, args []string, env *cliEnv) (*commandLine, error) {
	if part := partOf(args); part != nil {
		if line, _, err := parseBy(ctx, part, args, env); err == nil {
			return line, nil
		}
	}
	return parseWith(ctx, new(grammar), args, env)
}

// parseWith parses args by g, which is a pointer to a grammar or to a part of it. It fails with a usageError.
func parseWith(ctx context.Context, g any, args []string, env *cliEnv) (*commandLine, error) {
	line, parser, err := parseBy(ctx, g, args, env)
	if err != nil && parser != nil {
		return nil, usagef("%s", describeUsage(parser, cli.FlagsLast(parser.Model.Node, args), env.environ, err))
	}
	return line, err
}

// parseBy is parseWith whose error is that of kong. The parser is nil if there is none.
func parseBy(ctx context.Context, g any, args []string, env *cliEnv) (line *commandLine, parser *kong.Kong, err error) {
	line = &commandLine{reader: newSettingsReader(env.environ)}
	parser, err = newParser(g, line.reader,
		kong.Writers(env.stdout, env.stderr),
		kong.Exit(func(int) { line.exited = true }),
		kong.Bind(env, line.reader, env.client),
		kong.BindTo(ctx, (*context.Context)(nil)),
	)
	if err != nil {
		return nil, nil, fmt.Errorf("building the command line: %w", err)
	}
	if line.parsed, err = parser.Parse(cli.FlagsLast(parser.Model.Node, args)); err != nil && !line.exited { // after the help it goes on, and misses arguments
		return nil, parser, err
	}
	return line, parser, nil
}

// describeUsage returns the message about a command line that cannot be parsed.
func describeUsage(parser *kong.Kong, args, environ []string, err error) string {
	text := err.Error()
	parsed, isParse := errors.AsType[*kong.ParseError](err)
	if isParse {
		text = cli.DescribeParseError(text, parsed.Context)
	}
	root := parser.Model.Node
	if hint := cli.Correct(root, args, trial(environ)); hint != "" {
		text, _, _ = strings.Cut(text, ", did you mean") // which is about one flag
		text += ": " + hint
	} else if wrong, right := cli.Suggest(root, args); wrong != "" {
		text += fmt.Sprintf(": did you mean %q instead of %q?", right, wrong)
	} else if command := cli.SuggestShow(root, args); command != "" {
		text += fmt.Sprintf(": did you mean %q?", command)
	}
	help := `Run "queued --help" or "queued serve --help" for the commands and flags.`
	if isParse && cli.Has(parsed.Context.Selected()) {
		help = fmt.Sprintf("Run \"%s --help\" for examples and flags.", parsed.Context.Selected().FullPath())
	}
	return text + "\n" + help
}

// trial returns a function that reports whether args are a whole command line, or one that misses something. It builds one parser for all.
func trial(environ []string) func(args []string) (isWhole, isPart bool) {
	build := sync.OnceValues(func() (*kong.Kong, error) {
		reader := newSettingsReader(environ)
		return newParser(new(grammar), reader, kong.Writers(io.Discard, io.Discard), kong.Exit(func(int) {}), kong.Bind(new(cliEnv), reader))
	})
	return func(args []string) (isWhole, isPart bool) {
		parser, err := build()
		if err != nil { // which a test makes sure of
			return false, false
		}
		parsed, err := parser.Parse(cli.FlagsLast(parser.Model.Node, args))
		if err == nil {
			return cli.CheckValues(parsed) == nil, true
		}
		return false, strings.HasPrefix(err.Error(), "expected ") || strings.HasPrefix(err.Error(), "missing flags: ")
	}
}

// newParser returns a parser that fills g, a pointer to a grammar or to a part of it, from a command line and reader.
func newParser(g any, reader *settingsReader, options ...kong.Option) (*kong.Kong, error) {
	options = append([]kong.Option{
		kong.Name("queued"),
		kong.Description(description),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true, WrapUpperBound: 110}),
		kong.ValueFormatter(helpText),
		kong.Resolvers(kong.ResolverFunc(reader.resolve)),
		kong.TypeMapper(reflect.TypeFor[time.Duration](), cli.DurationMapper),
		kong.TypeMapper(reflect.TypeFor[time.Time](), cli.TimeMapper),
		kong.Vars{"version": version()},
		kong.Bind(new(cli.Env)),
	}, options...)
	for name, kind := range kinds {
		options = append(options, kong.NamedMapper(name, settingMapper{kind, reader}))
	}
	return kong.New(g, options...)
}

// helpText is a value's text in --help. That of a setting gives its meaning, its default and its variable.
func helpText(value *kong.Value) string {
	if !isSetting(value) {
		return value.Help
	}
	notes := "$" + envName(value.Name)
	if byDefault := cmp.Or(value.Tag.Get("unset"), value.Default); byDefault != "" {
		notes = "default " + byDefault + "; " + notes
	}
	return strings.TrimSuffix(settingHelp[value.Name], ".") + " (" + notes + ")."
}
