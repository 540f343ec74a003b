package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/alecthomas/kong"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/queued/queued/internal/cli"
	"github.com/queued/queued/internal/gateway"
	"github.com/queued/queued/sql"
)

// firstLookTimeout is how long a gateway waits for its cells before it says that it serves. It serves without them, too.
const firstLookTimeout = 3 * time.Second

// gatewayCmd has what is about several cells.
type gatewayCmd struct {
	Start  gatewayStartCmd   `cmd:"" default:"withargs" help:"Serve the API in front of several cells; what \"queued gateway\" does."`
	Cells  cli.GatewayCells  `cmd:"" name:"cells" group:"Client:" help:"List the cells of a gateway, and whether they can be used."`
	Add    cli.GatewayAdd    `cmd:"" group:"Client:" help:"Have gateways use another cell, or one that was drained."`
	Move   cli.GatewayMove   `cmd:"" group:"Client:" help:"Place a queue on another cell, or spread it over several."`
	Drain  cli.GatewayDrain  `cmd:"" group:"Client:" help:"Move all queues away from a cell."`
	Remove cli.GatewayRemove `cmd:"" group:"Client:" help:"Have gateways use a cell no more that was drained."`
}

// Help returns the text below the usage.
func (*gatewayCmd) Help() string {
	return `The settings of a gateway are those of "queued gateway start --help".`
}

// gatewayStartCmd serves the API in front of several cells until it is told to stop.
type gatewayStartCmd struct {
	gatewaySettings `embed:""`
}

// Run serves until ctx ends, then shuts down. It returns usage errors and logs others.
func (c *gatewayStartCmd) Run(ctx context.Context, env *cliEnv, reader *settingsReader, app *kong.Kong) error {
	return runLogged(ctx, env, reader, app, &c.logSettings, func(logger zerolog.Logger) error { return c.serve(ctx, reader, logger) })
}

// serve opens the port and passes requests on.
func (c *gatewayStartCmd) serve(ctx context.Context, reader *settingsReader, logger zerolog.Logger) error {
	if c.Cells[0] == nil {
		return usagef("%s: there must be home, which is cell 0, such as 0=https://a.internal:8080,1=https://b.internal:8080", reader.name("cells"))
	}
	toCells, err := c.tlsConfig(reader)
	if err != nil {
		return err
	}
	cert, closeCert, err := c.openCertificate(ctx, reader, logger)
	if err != nil {
		return err
	}
	defer closeCert()
	listener, err := listen(ctx, reader.name("listen"), c.Listen)
	if err != nil {
		return err
	}
	tcp := listener.Addr().(*net.TCPAddr)
	if c.Key == "" && c.CellKeys == nil && !isLoopback(tcp) {
		_ = listener.Close()
		return usagef("%s: %s can be reached from other machines, and there is no key for the cells, which might then answer anybody. Set %s (or %s) to an admin key of every cell, or %s to one of each",
			reader.name("listen"), tcp, envName("key"), envName("key-file"), envName("cell-keys-file"))
	}
	config := gateway.Config{
		Cells: c.Cells, Key: c.Key, Keys: c.cellKeys(logger), TLS: toCells, Version: sql.Version(), Logger: logger, Registry: prometheus.NewRegistry(),
		AnswerTimeout: c.AnswerTimeout, MaxCalls: c.MaxCellCalls, MaxWaits: c.MaxCellWaits, MaxBody: c.MaxBody,
		LogAll: c.AccessLog == "all", LoopbackOnly: isLoopback(tcp), Hosts: c.Hosts,
	}
	var tlsConfig *tls.Config
	if cert != nil {
		tlsConfig = cert.TLSConfig()
		if c.TLSClientCA != "" {
			config.VerifyClient = cert.VerifyClient
		}
		cert.Register(config.Registry)
	}
	g, err := gateway.New(config)
	if err != nil {
		_ = listener.Close()
		return err
	}
	defer g.Close()
	logger.Info().Str("version", sql.Version()).Str("addr", tcp.String()).Msg("starting")
	front := &httpServer{server: g.HTTPServer()}
	front.start(listener, tlsConfig, logger)
	defer front.close()

	running, stopRunning := context.WithCancel(context.WithoutCancel(ctx)) // also while it shuts down
	loops := start(func() error { g.Run(running); return nil })
	defer func() {
		stopRunning()
		<-loops.done
	}()
	looking, stopLooking := context.WithTimeout(ctx, firstLookTimeout)
	g.AwaitFirstLook(looking)
	stopLooking()
	logger.Info().Str("addr", tcp.String()).Str("url", localURL(tcp, cert != nil)).Ints("cells", slices.Sorted(maps.Keys(c.Cells))).Msg("serving")

	select {
	case <-ctx.Done():
		logger.Info().Msg("stopping: finishing what is under way; a second signal ends it at once")
	case <-front.serving.done:
		return fmt.Errorf("serving HTTP ended: %w", front.serving.err)
	}
	g.StopReady()
	time.Sleep(c.DrainDelay) //nolint:forbidigo // load balancers need this long to notice
	g.Drain()
	return front.shutdown(context.WithoutCancel(ctx), c.ShutdownTimeout)
}

// tlsConfig returns the TLS settings of connections to cells; nil: the standard ones.
func (c *cellsSettings) tlsConfig(reader *settingsReader) (*tls.Config, error) {
	switch {
	case c.Cert == "" && c.ClientKey != "":
		return nil, usagef("%s: it needs the certificate that the key is of; set %s, too", reader.name("client-key"), envName("cert"))
	case c.Cert != "" && c.ClientKey == "":
		return nil, usagef("%s: a certificate needs its private key; set %s, too", reader.name("cert"), envName("client-key"))
	case c.CACert == "" && c.Cert == "":
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CACert != "" {
		text, err := os.ReadFile(c.CACert)
		if err != nil {
			return nil, usagef("%s: %s", reader.name("cacert"), err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, usagef("%s: %s has no certificate; it takes PEM, which begins with -----BEGIN CERTIFICATE-----", reader.name("cacert"), c.CACert)
		}
	}
	if c.Cert != "" {
		pair := func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(c.Cert, c.ClientKey)
			return &pair, err
		}
		if _, err := pair(nil); err != nil {
			return nil, usagef("%s: %s", reader.name("cert"), err)
		}
		config.GetClientCertificate = pair // read again for each connection, so that it may be replaced
	}
	return config, nil
}

// cellKeys returns what returns the keys of cells: those of the file as it is now, so that the key of a new cell needs no restart.
func (c *gatewayStartCmd) cellKeys(logger zerolog.Logger) func() map[int]string {
	if c.CellKeys == nil {
		return nil
	}
	keys := c.CellKeys
	if c.CellKeysFile == "" {
		return func() map[int]string { return keys }
	}
	var mu sync.Mutex
	var read os.FileInfo // as it was when the keys were read
	return func() map[int]string {
		mu.Lock()
		defer mu.Unlock()
		info, err := os.Stat(c.CellKeysFile)
		if err != nil || read != nil && info.ModTime().Equal(read.ModTime()) && info.Size() == read.Size() {
			return keys // also while it is replaced
		}
		read = info
		text, err := os.ReadFile(c.CellKeysFile)
		if err == nil {
			var parsed any
			if parsed, err = parseCellKeys(string(text), nil); err == nil {
				keys = parsed.(map[int]string)
			}
		}
		if err != nil {
			logger.Error().Str("file", c.CellKeysFile).Err(err).Msg("the keys of cells stay as they were, as the file cannot be used")
		}
		return keys
	}
}
