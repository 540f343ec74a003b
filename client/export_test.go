package client

import (
	"context"
	"fmt"
	"slices"
	"testing"
)

// ServeExample starts a server for an example and returns its URL. An example has no [testing.TB], so a failure panics.
func ServeExample() (url string, stop func()) {
	tb := new(exampleTB)
	url = serve(tb).url
	return url, func() {
		for _, cleanup := range slices.Backward(tb.cleanups) {
			cleanup()
		}
	}
}

type exampleTB struct {
	testing.TB

	cleanups []func()
}

func (*exampleTB) Helper()                           {}
func (*exampleTB) Name() string                      { return "Example" }
func (*exampleTB) Context() context.Context          { return context.Background() }
func (*exampleTB) Failed() bool                      { return false }
func (*exampleTB) Fatal(args ...any)                 { panic(fmt.Sprint(args...)) }
func (*exampleTB) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
func (*exampleTB) Errorf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
func (tb *exampleTB) Cleanup(cleanup func())         { tb.cleanups = append(tb.cleanups, cleanup) }
