package egress

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// connectProxy is a proxy that takes CONNECT to any host, and leads to target. With the user "nobody" it refuses.
func connectProxy(t *testing.T, target string, asked chan<- string) string {
	t.Helper()
	return listener(t, true, func(conn *net.TCPConn, in *bufio.Reader) {
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		asked <- r.Method + " " + r.Host + " " + r.Header.Get("Proxy-Authorization")
		if r.Header.Get("Proxy-Authorization") == "Basic bm9ib2R5Og==" {
			_, _ = io.WriteString(conn, "HTTP/1.1 403 Keep out\r\nContent-Length: 0\r\n\r\n")
			return
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\n")
		relay(t, conn, in, target)
	})
}

// socksProxy is a proxy of https://www.rfc-editor.org/rfc/rfc1928 that leads to target.
func socksProxy(t *testing.T, target string, asked chan<- string) string {
	t.Helper()
	return "socks5" + strings.TrimPrefix(listener(t, true, func(conn *net.TCPConn, in *bufio.Reader) {
		greeting := make([]byte, 3)
		_, _ = io.ReadFull(in, greeting)
		_, _ = conn.Write([]byte{5, 0})
		head := make([]byte, 5)
		_, _ = io.ReadFull(in, head)
		rest := make([]byte, int(head[4])+2)
		_, _ = io.ReadFull(in, rest)
		asked <- "SOCKS " + string(rest[:head[4]])
		_, _ = conn.Write([]byte{5, 0, 0, 1, 127, 0, 0, 1, 0, 1})
		relay(t, conn, in, target)
	}), "http")
}

// relay passes on what comes from both ends until one closes.
func relay(t *testing.T, conn net.Conn, in io.Reader, target string) {
	t.Helper()
	upstream, err := net.Dial("tcp", target)
	if err != nil {
		t.Error(err)
		return
	}
	go func() {
		_, _ = io.Copy(conn, upstream)
		_ = conn.Close()
	}()
	_, _ = io.Copy(upstream, in)
	_ = upstream.Close()
}

func TestProxyConnectsToWhatMayBeCalled(t *testing.T) {
	t.Parallel()
	target := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) }))
	target.EnableHTTP2 = true
	target.StartTLS()
	t.Cleanup(target.Close)
	asked := make(chan string, 1)
	withUser := func(proxy, user string) string { return strings.Replace(proxy, "://", "://"+user+"@", 1) }
	for proxy, want := range map[string]string{
		connectProxy(t, target.Listener.Addr().String(), asked):                      "CONNECT example.com:443 ",
		withUser(connectProxy(t, target.Listener.Addr().String(), asked), "u:p"):     "CONNECT example.com:443 Basic dTpw",
		withUser(connectProxy(t, target.Listener.Addr().String(), asked), "nobody:"): "CONNECT example.com:443 Basic bm9ib2R5Og==",
		socksProxy(t, target.Listener.Addr().String(), asked):                        "SOCKS example.com",
	} {
		u, err := ParseProxy(proxy)
		if err != nil {
			t.Fatal(err)
		}
		s := newSender(t, func(cfg *SenderConfig) { // the certificate of httptest is for example.com, too
			cfg.Guard, cfg.Proxy, cfg.Roots = newGuard(t), u, rootsOf(target)
		})
		response, err := post(t, s, "https://example.com/")
		if strings.Contains(proxy, "nobody") {
			if got := reasonOf(t, err); got != "the proxy refused to connect: HTTP 403" {
				t.Errorf("got %q", got)
			}
		} else if err != nil || response.Status != http.StatusAccepted {
			t.Errorf("%s: %+v, %v", want, response, err)
		}
		if got := <-asked; got != want {
			t.Errorf("the proxy was asked for %q, want %q", got, want)
		}
		for _, url := range []string{"https://127.0.0.1/", "http://example.com/", "https://localhost/"} {
			if _, err := post(t, s, url); !errors.Is(err, ErrNotAllowed) {
				t.Errorf("%s through a proxy: %v", url, err)
			}
		}
	}
}

func TestProxyThatCannotBeReachedIsTold(t *testing.T) {
	t.Parallel()
	u, err := ParseProxy("http://user:hunter2@127.0.0.1:1") // a port that nobody uses any more
	if err != nil {
		t.Fatal(err)
	}
	_, err = post(t, newSender(t, func(cfg *SenderConfig) { cfg.Proxy = u }), "https://example.com/")
	if got := reasonOf(t, err); got != "the proxy: the connection was refused" || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("got %q", got)
	}
}

func TestProxiesThatCannotBeUsedAreRefused(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"http://proxy", "https://u:p@proxy:3128", "socks5://127.0.0.1:1080", "http://[::1]:3128/"} {
		if _, err := ParseProxy(text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	for _, text := range []string{"", "proxy:3128", "ftp://hunter2", "http://", "http://:3128", "http://hunter2/path", "http://hunter2?x", "http://hunter2#x", "socks4://hunter2", "http://hunter2:port"} {
		if _, err := ParseProxy(text); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
