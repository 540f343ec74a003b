package egress

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
)

// nameServer is a name server that answers the nth question for addresses of IPv4, and of IPv6, with what answer returns; nil: there is no such name.
func nameServer(t *testing.T, answer func(n int, isIPv6 bool) []string) *net.Resolver {
	t.Helper()
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	go func() {
		asked := map[bool]int{}
		for buffer := make([]byte, 1500); ; {
			n, from, err := server.ReadFrom(buffer)
			if err != nil {
				return
			}
			isIPv6, reply := replyTo(buffer[:n], func(isIPv6 bool) []string { return answer(asked[isIPv6], isIPv6) })
			asked[isIPv6]++
			_, _ = server.WriteTo(reply, from)
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", server.LocalAddr().String())
	}}
}

// replyTo returns the reply to a question, by https://www.rfc-editor.org/rfc/rfc1035#section-4.
func replyTo(query []byte, answer func(isIPv6 bool) []string) (isIPv6 bool, reply []byte) {
	end := 12
	for query[end] != 0 {
		end += int(query[end]) + 1
	}
	question := query[12 : end+5]
	isIPv6 = binary.BigEndian.Uint16(query[end+1:]) == 28
	addresses := answer(isIPv6)
	reply = append(reply, query[:2]...)
	code := byte(0)
	if addresses == nil {
		code = 3
	}
	reply = append(reply, 0x81, 0x80|code, 0, 1, 0, byte(len(addresses)), 0, 0, 0, 0)
	reply = append(reply, question...)
	for _, address := range addresses {
		addr := netip.MustParseAddr(address).AsSlice()
		reply = append(reply, 0xc0, 12)
		reply = append(reply, question[len(question)-4:]...)
		reply = append(reply, 0, 0, 0, 0, 0, byte(len(addr)))
		reply = append(reply, addr...)
	}
	return isIPv6, reply
}

// only returns an answer of these addresses whenever it is asked.
func only(addresses ...string) func(int, bool) []string {
	return func(_ int, isIPv6 bool) []string {
		some := []string{}
		for _, address := range addresses {
			if strings.Contains(address, ":") == isIPv6 {
				some = append(some, address)
			}
		}
		return some
	}
}

// twoReceivers serves at 127.0.0.1 and 127.0.0.2, at the same port, and counts the connections at the first.
func twoReceivers(t *testing.T) (port string, atFirst, atSecond *atomic.Int32) {
	t.Helper()
	counts := [2]*atomic.Int32{new(atomic.Int32), new(atomic.Int32)}
	port = "0"
	for i, host := range []string{"127.0.0.1", "127.0.0.2"} {
		l, err := net.Listen("tcp", net.JoinHostPort(host, port))
		if err != nil {
			t.Skipf("this system has no %s: %v", host, err)
		}
		_, port, _ = net.SplitHostPort(l.Addr().String())
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Connection", "close") }))
		_ = server.Listener.Close()
		server.Listener = l
		server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
			if state == http.StateNew {
				counts[i].Add(1)
			}
		}
		server.Start()
		t.Cleanup(server.Close)
	}
	return port, counts[0], counts[1]
}

func TestNameThatGetsAnotherAddressIsJudgedAnew(t *testing.T) {
	t.Parallel()
	port, forbidden, allowed := twoReceivers(t)
	s := newSender(t, func(cfg *SenderConfig) {
		cfg.Guard = newGuard(t, "127.0.0.2")
		cfg.Resolver = nameServer(t, func(n int, isIPv6 bool) []string {
			return only([]string{"127.0.0.2", "127.0.0.1"}[min(n, 1)])(n, isIPv6)
		})
	})
	url := "http://rebind.example.:" + port + "/"
	if _, err := post(t, s, url); !errors.Is(err, ErrNotAllowed) {
		t.Fatalf("a name with a point at its end: %v", err)
	}
	url = "http://rebind.example:" + port + "/"
	mustPost(t, s, url)
	_, err := post(t, s, url)
	if !errors.Is(err, ErrNotAllowed) {
		t.Errorf("got %v, want that it is not allowed", err)
	}
	if want := "rebind.example must not be called: it is at a loopback address; QUEUED_PUSH_ALLOW can allow it"; reasonOf(t, err) != want {
		t.Errorf("got %q, want %q", reasonOf(t, err), want)
	}
	if forbidden.Load() != 0 || allowed.Load() != 1 {
		t.Errorf("%d connections to the address that may not be called, %d to the other", forbidden.Load(), allowed.Load())
	}
}

func TestNameWithSeveralAddressesIsCalledAtTheAllowedOnes(t *testing.T) {
	t.Parallel()
	port, forbidden, allowed := twoReceivers(t)
	for _, addresses := range [][]string{{"127.0.0.1", "127.0.0.2"}, {"127.0.0.2", "127.0.0.1"}, {"::ffff:127.0.0.1", "127.0.0.2"}, {"::1", "127.0.0.2"}} {
		s := newSender(t, func(cfg *SenderConfig) {
			cfg.Guard, cfg.Resolver = newGuard(t, "127.0.0.2"), nameServer(t, only(addresses...))
		})
		mustPost(t, s, "http://mixed.example:"+port)
	}
	if forbidden.Load() != 0 || allowed.Load() != 4 {
		t.Errorf("%d connections to the address that may not be called, %d to the other", forbidden.Load(), allowed.Load())
	}
}

func TestNamesAtInternalAddressesAreNotDialled(t *testing.T) {
	t.Parallel()
	port, forbidden, _ := twoReceivers(t)
	for _, address := range []string{"127.0.0.1", "::1", "::ffff:127.0.0.1", "0.0.0.0", "::", "169.254.169.254", "10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "fd00:ec2::254"} {
		s := newSender(t, func(cfg *SenderConfig) {
			cfg.Guard, cfg.Resolver = newGuard(t), nameServer(t, only(address))
		})
		_, err := post(t, s, "https://internal.example:"+port)
		if !errors.Is(err, ErrNotAllowed) || strings.Contains(err.Error(), address) {
			t.Errorf("%s: got %v, want that it is not allowed, without the address", address, err)
		}
	}
	if n := forbidden.Load(); n != 0 {
		t.Errorf("%d connections", n)
	}
}

func TestPublicAddressesAreNotDialledByHTTP(t *testing.T) {
	t.Parallel()
	s := newSender(t, func(cfg *SenderConfig) { cfg.Resolver = nameServer(t, only("192.88.98.1")) })
	_, err := post(t, s, "http://public.example/")
	want := "public.example must be called by https: QUEUED_PUSH_ALLOW names neither it nor its address"
	if !errors.Is(err, ErrNotAllowed) || reasonOf(t, err) != want {
		t.Errorf("got %v, want %q", err, want)
	}
}

func TestOwnAddressIsNotDialled(t *testing.T) {
	t.Parallel()
	server := receiver(t, func(http.ResponseWriter, *http.Request) { t.Error("a request arrived") })
	listen := netip.MustParseAddrPort(server.Listener.Addr().String())
	s := newSender(t, func(cfg *SenderConfig) { cfg.Guard = cfg.Guard.ExceptSelf(listen) })
	_, err := post(t, s, server.URL)
	if want := "127.0.0.1 is the address at which queued itself listens"; !errors.Is(err, ErrNotAllowed) || reasonOf(t, err) != want {
		t.Errorf("got %v, want %q", err, want)
	}
}

func TestNamesThatCannotBeLookedUpAreTold(t *testing.T) {
	t.Parallel()
	for want, resolver := range map[string]*net.Resolver{
		"could not resolve missing.example: there is no such name": nameServer(t, func(int, bool) []string { return nil }),
		"could not resolve missing.example: no name server": {PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
			return nil, errors.New("no name server")
		}},
	} {
		s := newSender(t, func(cfg *SenderConfig) { cfg.Resolver = resolver })
		_, err := post(t, s, "https://missing.example/")
		if got := reasonOf(t, err); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
