package main

import (
	"net"
	"strings"
	"testing"

	"github.com/queued/queued/internal/pgtest"
)

func TestOtherAddressThanLoopbackNeedsAKey(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for _, address := range []string{":0", "0.0.0.0:0"} {
		t.Run(address, func(t *testing.T) {
			t.Parallel()
			code, _, stderr := runHere(t, nil, []string{"QUEUED_LISTEN=" + address, "QUEUED_DATABASE_URL=" + db.URL})
			if code != exitUsage {
				t.Errorf("exit code %d, want %d: %s", code, exitUsage, stderr)
			}
			for _, want := range []string{"QUEUED_LISTEN: ", "can be reached", "queued keys create --scope admin", "set QUEUED_API_KEY", "127.0.0.1:"} {
				if !strings.Contains(stderr, want) {
					t.Errorf("%q does not contain %q", stderr, want)
				}
			}
		})
	}
}

func TestLoopbackAddressNeedsNoKey(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"127.0.0.1:0", "127.8.9.1:0", "localhost:0", "[::1]:0", "[::ffff:127.0.0.1]:0"} {
		listener, err := listen(t.Context(), "--listen", address)
		if err != nil {
			if strings.HasPrefix(address, "[::1]") { // a machine may have no IPv6
				t.Log(err)
				continue
			}
			t.Errorf("%s: %v", address, err)
			continue
		}
		if tcp := listener.Addr().(*net.TCPAddr); !tcp.IP.IsLoopback() || tcp.Port == 0 {
			t.Errorf("%s became %s", address, tcp)
		}
		_ = listener.Close()
	}
}

func TestEveryInterfaceCanBeListenedOn(t *testing.T) {
	t.Parallel()
	for _, address := range []string{":0", "0.0.0.0:0"} {
		listener, err := listen(t.Context(), "--listen", address)
		if err != nil {
			t.Errorf("%s: %v", address, err)
			continue
		}
		tcp := listener.Addr().(*net.TCPAddr)
		if !tcp.IP.IsUnspecified() {
			t.Errorf("%s became %s", address, tcp)
		}
		if got := localURL(tcp, false); !strings.HasPrefix(got, "http://127.0.0.1:") {
			t.Errorf("from this machine %s is said to be %s", tcp, got)
		}
		_ = listener.Close()
	}
}

func TestPortInUseIsReported(t *testing.T) {
	t.Parallel()
	first, err := listen(t.Context(), "--listen", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = first.Close() }()
	address := first.Addr().String()
	_, err = listen(t.Context(), "--listen", address)
	if err == nil || !strings.Contains(err.Error(), "--listen: "+address+" is in use by another process") {
		t.Errorf("got %v", err)
	}
}

func TestUnknownHostIsReported(t *testing.T) {
	t.Parallel()
	_, err := listen(t.Context(), "--listen", "no-such-host.invalid:80")
	if err == nil || !strings.Contains(err.Error(), `--listen: got "no-such-host.invalid:80"; the host cannot be found`) {
		t.Errorf("got %v", err)
	}
}
