// Package porttest gives tests TCP ports for programs that have to be told one.
package porttest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"testing"
)

// The ports that Free chooses from. The system gives none of them to connections, or to listeners that ask for any port.
const (
	first = 15000
	last  = 32000
)

// Free returns a port of 127.0.0.1 that nobody listens on. No other test gets it until this one has ended, in whatever process: a port that was
// taken by a listener on port 0, and given back, is one that the next connection may get.
func Free(tb testing.TB) int {
	tb.Helper()
	dir := filepath.Join(os.TempDir(), "queued-test-ports")
	if err := os.MkdirAll(dir, 0o777); err != nil { //nolint:gosec // other accounts run tests, too
		tb.Fatal(err)
	}
	_ = os.Chmod(dir, 0o777) //nolint:gosec // whoever has made it; the umask may have taken something away
	for range 1000 {
		port := first + rand.IntN(last-first) //nolint:gosec // no secret
		if !hold(tb, filepath.Join(dir, fmt.Sprint(port))) {
			continue
		}
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)) //nolint:noctx // it is closed at once
		if err != nil {
			continue
		}
		if err := listener.Close(); err != nil {
			tb.Fatal(err)
		}
		return port
	}
	tb.Fatal("there is no free port")
	return 0
}
