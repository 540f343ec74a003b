package embedded

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/rs/zerolog"
)

// initialize makes the cluster, under another name until it is complete, so that whatever
// interrupts it leaves nothing that looks like a cluster.
//
// The locale is C: it sorts by bytes and lives in PostgreSQL itself, so an index stays right when
// the system's libraries are upgraded or the directory moves to another machine. Every system has
// it, which is not true of C.UTF-8, and nothing in the schema sorts for human eyes.
func (d dataDir) initialize(ctx context.Context, p programs, a account, extra map[string]string, log zerolog.Logger) error {
	d.discardHalfMade(log)
	log.Info().Str("version", p.version()).Msg("making a new PostgreSQL cluster")
	next, err := os.MkdirTemp(string(d), "pg.new-")
	if err != nil {
		return fmt.Errorf("make the cluster: %w", err)
	}
	args := []string{
		"-D", next, "--username", userRole, "--auth-local", "peer", "--auth-host", "reject",
		"--encoding", "UTF8", "--locale", "C", "--data-checksums", "--no-instructions",
	}
	if fsyncIsOff(extra) {
		args = append(args, "--no-sync")
	}
	var output []byte
	if err = a.own(next); err == nil {
		output, err = runToEnd(a.command(ctx, p.path("initdb"), args...))
	}
	if err == nil {
		_ = os.Remove(d.pg()) // it is empty, if it is there at all
		err = os.Rename(next, d.pg())
	}
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		err = fmt.Errorf("make the cluster: %s: %w", p.path("initdb"), err)
		if text := lastLines(output); text != "" {
			err = fmt.Errorf("%w; it said:\n%s", err, text)
		}
		return errors.Join(err, os.RemoveAll(next))
	}
	return syncDir(string(d))
}

// discardHalfMade removes clusters that were never finished. What is still being written by a
// program that is about to die is left to the next time.
func (d dataDir) discardHalfMade(log zerolog.Logger) {
	halves, _ := filepath.Glob(filepath.Join(escapeGlob(string(d)), "pg.new-*"))
	for _, half := range halves {
		err := os.RemoveAll(half)
		log.Warn().Err(err).Str("directory", half).Msg("discarded a cluster whose making was interrupted")
	}
}

// syncDir makes a rename in dir outlive the machine.
func syncDir(dir string) error {
	file, err := os.Open(dir) //nolint:gosec // the data directory
	if err != nil {
		return fmt.Errorf("make the cluster: %w", err)
	}
	if err := errors.Join(file.Sync(), file.Close()); err != nil {
		return fmt.Errorf("make the cluster: %w", err)
	}
	return nil
}

// lastLines returns the end of a program's output, for an error.
func lastLines(output []byte) string {
	const most = 12
	lines := bytes.Split(bytes.TrimSpace(output), []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-most):], []byte("\n")))
}
