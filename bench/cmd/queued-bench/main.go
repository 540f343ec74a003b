// Command queued-bench measures queued servers: one workload, or the whole suite with the floor under them, their peers and
// the bars they have to reach. README.md in the module's folder says what is measured and how.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/queued/queued/bench/report"
	"github.com/queued/queued/bench/suite"
	"github.com/queued/queued/bench/workloads"
)

// The exit codes.
const (
	exitOK          = 0
	exitFailure     = 1 // something could not be measured, or events were lost or handed out twice
	exitUsage       = 2
	exitMissed      = 3 // everything was measured, and a bar was missed
	exitInterrupted = 130
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)                                       // a second signal ends the program at once
	os.Exit(run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr)) //nolint:forbidigo // from here on it is a parameter
}

// cli is the command line.
type cli struct {
	URL         string `group:"target" placeholder:"URL" help:"A running server, such as http://127.0.0.1:8080; without it servers are started."`
	APIKey      string `group:"target" name:"api-key" placeholder:"KEY" help:"The API key of the server at --url (QUEUED_API_KEY)."`
	DatabaseURL string `group:"target" placeholder:"URL" help:"Where databases are made (QUEUED_TEST_DATABASE_URL); with --url, the database behind it."`
	Program     string `group:"target" type:"existingfile" placeholder:"FILE" help:"The program to start; by default built from the folder above."`

	Warmup  time.Duration `group:"report" default:"2s" help:"How long each measurement runs before it counts."`
	Payload int           `group:"report" default:"100" placeholder:"BYTES" help:"The size of an event."`
	Out     string        `group:"report" type:"path" placeholder:"DIR" help:"Write the report to this folder too: JSON, Markdown."`
	Quiet   bool          `group:"report" short:"q" help:"Do not show progress."`

	workloads.Commands `embed:""`
	Suite              suite.Config `cmd:"" help:"The workloads, the floor under them and peers, in rounds, judged by bars."`
}

const description = `Measures queued servers. An event is counted when it was inserted, claimed and acked. Each run accounts for every event in the
end, and exits with 1 when one was lost or handed out twice.`

// run runs the command that args name until it is done or ctx ends, and returns the exit code.
func run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	err := runCommand(ctx, args, environ, stdout, stderr)
	var invalid *workloads.InvalidError
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, context.Canceled) && ctx.Err() != nil:
		_, _ = fmt.Fprintln(stderr, "queued-bench: interrupted")
		return exitInterrupted
	}
	_, _ = fmt.Fprintln(stderr, "queued-bench:", err)
	switch {
	case errors.As(err, &invalid):
		return exitUsage
	case errors.Is(err, report.ErrMissed):
		return exitMissed
	}
	return exitFailure
}

func runCommand(ctx context.Context, args, environ []string, stdout, stderr io.Writer) (err error) {
	var c cli
	exited := false
	parser, err := kong.New(&c,
		kong.Name("queued-bench"), kong.Description(description), kong.Writers(stdout, stderr), kong.Exit(func(int) { exited = true }),
		kong.ExplicitGroups([]kong.Group{{Key: "target", Title: "What to measure:"}, {Key: "report", Title: "How to measure and report it:"}}),
		kong.ValueFormatter(func(value *kong.Value) string {
			if value.Default == "" {
				return value.Help
			}
			return fmt.Sprintf("%s (default %s).", strings.TrimSuffix(value.Help, "."), value.Default)
		}),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true, WrapUpperBound: 110}))
	if err != nil {
		return err
	}
	parsed, err := parser.Parse(args)
	switch {
	case exited: // --help was answered
		return nil
	case err != nil:
		return workloads.Invalidf("%s", err)
	}
	cfg, err := c.config(environ, stderr)
	if err != nil {
		return err
	}
	if cfg.Program == "" && cfg.URL == "" {
		var remove func()
		if cfg.Program, remove, err = workloads.Build(ctx, "..", workloads.ForUsers); err != nil {
			return err
		}
		defer remove()
	}
	var r *report.Report
	if workload, ok := parsed.Selected().Target.Addr().Interface().(workloads.Workload); ok {
		if r, err = workloads.Run(ctx, cfg, workload); r != nil {
			r.Judge(report.Bars)
		}
	} else if r, err = c.Suite.Run(ctx, cfg); err == nil {
		err = r.Missed()
	}
	if r == nil || len(r.Numbers)+len(r.Failures) == 0 {
		return err
	}
	r.Text(stdout)
	if c.Out != "" {
		err = errors.Join(err, r.Write(c.Out))
	}
	return err
}

// config is the settings of a measurement, from the flags and the environment.
func (c *cli) config(environ []string, stderr io.Writer) (workloads.Config, error) {
	cfg := workloads.Config{
		URL: c.URL, APIKey: c.APIKey, DatabaseURL: c.DatabaseURL, Program: c.Program, Environ: environ,
		Warmup: c.Warmup, Payload: c.Payload, Progress: stderr, Terminal: isTerminal(stderr),
	}
	if c.Quiet {
		cfg.Progress = nil
	}
	for _, variable := range environ {
		switch name, value, _ := strings.Cut(variable, "="); {
		case name == "QUEUED_TEST_DATABASE_URL" && c.URL == "" && c.DatabaseURL == "":
			cfg.DatabaseURL = value
		case name == "QUEUED_API_KEY" && c.URL != "" && c.APIKey == "":
			cfg.APIKey = value
		}
	}
	return cfg, cfg.Check()
}

// isTerminal reports whether w is a terminal.
func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
