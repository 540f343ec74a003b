//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/queued/queued/internal/pgtest"
)

// errOtherFlavour: the server at pgtest.EnvURL is not of the flavour for this run.
var errOtherFlavour = errors.New(pgtest.EnvURL + " names a server of another flavour")

// server returns the server to run on. A signal ends the wait for it.
func (r *runner) server() (*pgtest.Server, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	type result struct {
		server *pgtest.Server
		err    error
	}
	ready := make(chan result, 1)
	go func() {
		server, err := r.start(ctx)
		ready <- result{server, err}
	}()
	for {
		select {
		case got := <-ready:
			if got.err == nil && r.interrupt != 0 {
				return nil, errors.Join(context.Canceled, stop(got.server))
			}
			return got.server, got.err
		case sig := <-r.signals:
			r.interrupt = sig.(syscall.Signal)
			cancel()
		}
	}
}

func stop(server *pgtest.Server) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return server.Stop(ctx)
}

func (r *runner) start(ctx context.Context) (*pgtest.Server, error) {
	if r.ownServer != "" {
		server, err := pgtest.Attach(ctx, r.ownServer)
		if err == nil && server.Flavour != r.flavour {
			return nil, fmt.Errorf("%w: %s", errOtherFlavour, server.Flavour)
		}
		return server, err
	}
	if r.flavour == pgtest.Timescale {
		if err := r.buildImage(ctx); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if r.durable {
		return pgtest.StartDurable(ctx, r.flavour)
	}
	return pgtest.Start(ctx, r.flavour)
}

// buildImage brings the image up to date. Without a change since the last time it takes a second.
func (r *runner) buildImage(ctx context.Context) error {
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	r.print("building the image of the %s flavour (the first time takes a few minutes)", r.flavour)
	cmd := exec.CommandContext(ctx, filepath.Join(root, "build", "images"), "postgres") //nolint:gosec // The repository's own script.
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build/images postgres: %w; its output:\n%s", err, tail(output.Bytes(), 20))
	}
	return nil
}

// moduleRoot returns the folder of the go.mod that the working directory belongs to.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("no go.mod here or above: run this inside the repository")
		}
		dir = up
	}
}

// tail returns the last lines of a program's output.
func tail(output []byte, lines int) []byte {
	all := bytes.Split(bytes.TrimSpace(output), []byte("\n"))
	return bytes.Join(all[max(0, len(all)-lines):], []byte("\n"))
}
