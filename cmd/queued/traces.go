package main

import (
	"context"
	"crypto/rand"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel"

	"github.com/queued/queued/internal/failure"
	"github.com/queued/queued/internal/trace"
	"github.com/queued/queued/sql"
)

// openTracer returns what sends traces to the collector that the environment names; nil: it names none. Closing it takes as long as ctx at most.
func openTracer(ctx context.Context, environ []string, logger zerolog.Logger) (*trace.Tracer, error) {
	isConfigured, err := trace.IsConfigured(func(name string) string {
		i := slices.IndexFunc(environ, func(entry string) bool { return strings.HasPrefix(entry, name+"=") })
		if i < 0 {
			return ""
		}
		return environ[i][len(name)+1:]
	})
	if err != nil {
		return nil, usagef("%s", err)
	}
	if !isConfigured {
		return nil, nil
	}
	warn := func(err error) { logger.Warn().Func(failure.Of(err)).Msg("traces: events are not affected") }
	// The SDK has one of each for the process: of settings that it cannot use, and of exports that fail.
	otel.SetLogger(logr.Discard())
	otel.SetErrorHandler(otel.ErrorHandlerFunc(warn))
	return trace.Open(ctx, trace.Config{Version: sql.Version(), InstanceID: rand.Text(), Warn: warn})
}

// closeTracer sends the spans that are left. Nothing but they hang on it.
func closeTracer(ctx context.Context, tracer *trace.Tracer, logger zerolog.Logger) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	if err := tracer.Close(ctx); err != nil {
		logger.Warn().Func(failure.Of(err)).Msg("the latest spans are lost")
	}
}

// flushTimeout bounds how much longer a stop takes because of a collector of traces that does not answer.
const flushTimeout = 3 * time.Second
