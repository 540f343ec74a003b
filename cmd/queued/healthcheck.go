package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// healthcheckTimeout is less than the interval at which anyone would check.
const healthcheckTimeout = 5 * time.Second

// healthcheckCmd asks the server on this machine whether it is ready, for images without curl.
type healthcheckCmd struct {
	listenSettings `embed:""`
}

// Run fails unless /readyz of the server at Listen answers 200.
func (c *healthcheckCmd) Run(ctx context.Context, p *process, src *source) error {
	tcp, err := resolve(ctx, c.Listen)
	if err != nil {
		return usagef("%s: got %q; %s", src.name("listen"), c.Listen, err)
	}
	if tcp.Port == 0 {
		return usagef("%s: got %q; a check needs to know the port", src.name("listen"), c.Listen)
	}
	ctx, cancel := context.WithTimeout(ctx, healthcheckTimeout)
	defer cancel()
	target := localURL(tcp) + "/readyz"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return err
	}
	// A transport of its own: no proxy stands between this program and its own machine.
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("not ready: %w", err)
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(res.Body, 4<<10))
		return fmt.Errorf("not ready: %s answered %s %s", target, res.Status, strings.TrimSpace(string(body)))
	}
	_, err = fmt.Fprintln(p.stdout, "ready")
	return err
}
