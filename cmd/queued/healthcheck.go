package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/queued/queued/sql"
)

// healthcheckTimeout bounds a health check. It is shorter than the usual interval between two.
const healthcheckTimeout = 5 * time.Second

// healthcheckCmd asks the server on this machine whether it is ready, for images without curl.
type healthcheckCmd struct {
	listenSettings `embed:"" group:"http"`
}

// Run fails unless /readyz of the server at Listen answers 200.
func (c *healthcheckCmd) Run(ctx context.Context, env *cliEnv, reader *settingsReader) error {
	tcp, err := resolve(ctx, c.Listen)
	if err != nil {
		return usagef("%s: got %q; %s", reader.name("listen"), c.Listen, err)
	}
	if tcp.Port == 0 {
		return usagef("%s: got %q; a check needs to know the port", reader.name("listen"), c.Listen)
	}
	ctx, cancel := context.WithTimeout(ctx, healthcheckTimeout)
	defer cancel()
	target := localURL(tcp, c.TLSCert != "") + "/readyz"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return err
	}
	// Unlike the default transport, this one uses no proxy. The certificate is for the name that others call, not for the address that is
	// asked here, and it may have been replaced a moment ago. The check sends no secret, and its connection does not leave the machine.
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // see above
	}}
	res, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("not ready: %w", err)
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(res.Body, 4<<10))
		return fmt.Errorf("not ready: %s answered %s %s", target, res.Status, strings.TrimSpace(string(body)))
	}
	_, err = fmt.Fprintln(env.stdout, "ready")
	return err
}

// versionCmd shows the version.
type versionCmd struct{}

// Run writes the version to standard output.
func (versionCmd) Run(env *cliEnv) error {
	_, err := fmt.Fprintln(env.stdout, version())
	return err
}

// version describes the program and the tools that it was built with.
func version() string {
	commit, changes := "unknown", ""
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, setting := range info.Settings {
			switch {
			case setting.Key == "vcs.revision":
				commit = setting.Value
			case setting.Key == "vcs.modified" && setting.Value == "true":
				changes = " with changes"
			}
		}
	}
	return fmt.Sprintf("queued %s\ncommit %s%s\n%s %s/%s", sql.Version(), commit, changes, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
