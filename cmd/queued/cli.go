package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/alecthomas/kong"
)

const description = `A durable event queue with an HTTP/JSON front door, on PostgreSQL.

Where to begin: run "queued" alone. It starts a private PostgreSQL, serves on ` +
	`http://127.0.0.1:8080 and says what to type next. To use a PostgreSQL that is there already, ` +
	`set QUEUED_DATABASE_URL.`

// cli is the whole command line.
type cli struct {
	Version versionFlag `help:"Show the version and exit."`

	Serve       serveCmd       `cmd:"" default:"withargs" help:"Serve the queue over HTTP; what queued alone does."`
	Migrate     migrateCmd     `cmd:"" help:"Bring the database's schema to this program's version."`
	Healthcheck healthcheckCmd `cmd:"" help:"Ask the server on this machine whether it is ready."`
	VersionCmd  versionCmd     `cmd:"" name:"version" help:"Show the version of the program and what it was built with."`
}

// run parses args, with the environment for what they leave unsaid, and runs the command.
func (p *process) run(ctx context.Context, args []string) error {
	var grammar cli
	src := newSource(p.environ)
	exited := false
	parser, err := newParser(&grammar, src,
		kong.Writers(p.stdout, p.stderr),
		kong.Exit(func(int) { exited = true }),
		kong.Bind(p, src),
		kong.BindTo(ctx, (*context.Context)(nil)),
	)
	if err != nil {
		return fmt.Errorf("building the command line: %w", err)
	}
	parsed, err := parser.Parse(args)
	if exited { // --help or --version was answered
		return nil
	}
	if err != nil {
		return usagef("%s\nRun \"queued --help\" or \"queued serve --help\" to see what there is.", err)
	}
	if err := src.err(); err != nil {
		return err
	}
	src.remember(parsed)
	return parsed.Run()
}

// newParser builds the parser of grammar. Settings that the command line leaves out come from src.
func newParser(grammar *cli, src *source, options ...kong.Option) (*kong.Kong, error) {
	return kong.New(grammar, append([]kong.Option{
		kong.Name("queued"),
		kong.Description(description),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true, WrapUpperBound: 110}),
		kong.ValueFormatter(helpText),
		kong.Resolvers(src),
		kong.ExplicitGroups([]kong.Group{
			{Key: "database", Title: "Database:"},
			{Key: "http", Title: "HTTP:"},
			{Key: "queue", Title: "Queue:"},
			{Key: "limits", Title: "Limits:"},
			{Key: "log", Title: "Log:"},
		}),
		mappers(src),
	}, options...)...)
}

// helpText is a setting's line in --help: what it does, its default, its variable.
func helpText(value *kong.Value) string {
	if !isSetting(value) {
		if value.Flag != nil && value.Default != "" {
			return strings.TrimSuffix(value.Help, ".") + " (default " + value.Default + ")."
		}
		return value.Help
	}
	notes := "$" + envName(value.Name)
	if text := defaultText(value); text != "" {
		notes = "default " + text + "; " + notes
	}
	return strings.TrimSuffix(value.Help, ".") + " (" + notes + ")."
}
