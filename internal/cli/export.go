package cli

import "github.com/queued/queued/client"

// export is the flag of lists that can be written as a file.
type export struct {
	Export string `enum:",csv,ndjson" default:"" placeholder:"FORMAT" help:"Write all rows that match to standard output, as csv, for spreadsheets, or ndjson, an object a line. The last one says how many there are; the command fails when it is missing."`
}

// write writes an export, of all rows unless there is a limit.
func (e *export) write(env *Env, output string, limit *int, call func(client.ExportParams) (client.Exported, error)) error {
	p := client.ExportParams{Format: client.ExportFormat(e.Export)}
	if limit != nil {
		p.Limit = *limit
	}
	switch {
	case output != formatAuto:
		return usagef("--export has a format of its own; leave out --output")
	case IsTerminal(env.Stdout): // which would obey control characters in cells
		return usagef("--export is for a file or a pipe, not for a terminal: add > FILE.%s", e.Export)
	}
	exported, err := call(p)
	if err != nil {
		return err
	}
	if exported.More {
		env.notef("%d rows; there are more, and without --limit they are exported, too", exported.Rows)
		return nil
	}
	env.notef("%d rows", exported.Rows)
	return nil
}

// listLimit is how many rows a list has that is not an export; 0: all.
func listLimit(given *int) int {
	if given == nil {
		return 100
	}
	return *given
}
