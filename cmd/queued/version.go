package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/alecthomas/kong"

	"github.com/queued/queued/sql"
)

// versionCmd shows the version.
type versionCmd struct{}

// Run writes the version to standard output.
func (versionCmd) Run(p *process) error { return printVersion(p) }

// versionFlag is --version, for those who try that first.
type versionFlag bool

// IgnoreDefault keeps kong from choosing the default command when the flag is given.
func (versionFlag) IgnoreDefault() {}

// BeforeReset answers the flag before anything else is looked at.
func (versionFlag) BeforeReset(app *kong.Kong, p *process) error {
	err := printVersion(p)
	app.Exit(exitOK)
	return err
}

func printVersion(p *process) error {
	_, err := fmt.Fprintf(p.stdout, "queued %s\ncommit %s\n%s %s/%s\n",
		sql.Version(), commit(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}

// commit is what the program was built from, as far as the build knows.
func commit() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	revision, suffix := "unknown", ""
	for _, setting := range info.Settings {
		switch {
		case setting.Key == "vcs.revision":
			revision = setting.Value
		case setting.Key == "vcs.modified" && setting.Value == "true":
			suffix = " with changes"
		}
	}
	return revision + suffix
}
