package egress

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func newGuard(tb testing.TB, allow ...string) *Guard {
	tb.Helper()
	g, err := NewGuard(allow)
	if err != nil {
		tb.Fatal(err)
	}
	return g
}

// dial returns what a guard says to a connection to an address, for a URL of this scheme and host.
func dial(g *Guard, scheme, host, address string) error {
	return g.Control(scheme, host)(context.Background(), "tcp", address, nil)
}

func TestAddressesThatAreNotPublicAreNeverCalled(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/ssrf-addresses.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors struct {
		Deny, Allow []string
		Tricks      []string `json:"url_tricks_deny"`
	}
	if err := json.Unmarshal(text, &vectors); err != nil {
		t.Fatal(err)
	}
	if len(vectors.Deny) < 40 || len(vectors.Allow) < 5 || len(vectors.Tricks) < 15 {
		t.Fatalf("%d, %d, %d vectors: want more", len(vectors.Deny), len(vectors.Allow), len(vectors.Tricks))
	}
	g := newGuard(t)
	deny := append(
		slices.Clone(vectors.Deny), "::ffff:10.0.0.1", "::7f00:1", "64:ff9b:1::1", "2001:2::1", "2001:10::1", "2001:20::1", "3fff::1", "5f00::1", "4000::1", "1fff::1",
		"fec0::1", "fd20:ce::254", "168.63.129.16", "100.100.100.200", "192.0.0.192", "fe80::1%eth0", "ff0e::1", "172.31.255.255", "198.19.255.255",
	)
	for _, addr := range deny {
		if err := dial(g, "https", "example.com", net.JoinHostPort(addr, "443")); !errors.Is(err, ErrNotAllowed) {
			t.Errorf("%s can be dialled: %v", addr, err)
		}
		for _, scheme := range []string{"https://", "http://"} {
			if err := g.CheckURL(scheme + net.JoinHostPort(addr, "8080") + "/hook"); !errors.Is(err, ErrNotAllowed) {
				t.Errorf("%s%s can be configured: %v", scheme, addr, err)
			}
		}
	}
	for _, addr := range append(vectors.Allow, "172.32.0.1", "9.255.255.255", "11.0.0.1", "2001:200::1", "3ffe::1", "::ffff:8.8.8.8") {
		if err := dial(g, "https", "example.com", net.JoinHostPort(addr, "443")); err != nil {
			t.Errorf("%s: %v", addr, err)
		}
		if err := dial(g, "http", "example.com", net.JoinHostPort(addr, "80")); !errors.Is(err, ErrNotAllowed) {
			t.Errorf("%s can be dialled by http: %v", addr, err)
		}
		if err := g.CheckURL("https://" + net.JoinHostPort(addr, "443") + "/hook"); err != nil {
			t.Errorf("%s: %v", addr, err)
		}
	}
	for _, trick := range vectors.Tricks {
		for _, raw := range []string{trick, strings.Replace(trick, "http://", "https://", 1)} {
			if raw == "https://example.com:5432/" || raw == "https://metadata.google.internal/" {
				continue // a name may be anything until it is looked up
			}
			if err := g.CheckURL(raw); !errors.Is(err, ErrNotAllowed) {
				t.Errorf("%s can be configured: %v", raw, err)
			}
		}
	}
}

func TestURLsThatCannotBeCalledAreRefusedWithTheReason(t *testing.T) {
	t.Parallel()
	g := newGuard(t)
	for raw, want := range map[string]string{
		"":                                      "absolute URL",
		"example.com/hook":                      "absolute URL",
		"//example.com/hook":                    "absolute URL",
		"https:example.com":                     "absolute URL",
		"https:///hook":                         "absolute URL",
		"https://:443/hook":                     "letters, digits, hyphens and points",
		"ftp://example.com":                     "absolute URL",
		"https://example.com/%zz":               "absolute URL",
		"https://[example.com]/":                "",
		"https://[::1]x/":                       "absolute URL",
		"http://example.com/hook":               "must begin with https://",
		"https://user:secret@example.com":       "no user",
		"https://@example.com":                  "no user",
		"https://example.com/#top":              "no fragment",
		"https://example.com/#":                 "no fragment",
		"https://example.com:":                  "a port after the colon",
		"https://example.com:0":                 "1 to 65535",
		"https://example.com:65536":             "1 to 65535",
		"https://example.com:http":              "absolute URL",
		"https://example.com./":                 "without a point at the end",
		"https://exa..mple.com/":                "letters, digits, hyphens and points",
		"https://-example.com/":                 "letters, digits, hyphens and points",
		"https://exam*ple.com/":                 "letters, digits, hyphens and points",
		"https://ex%61mple.com/":                "",
		"https://" + strings.Repeat("a", 64):    "letters, digits, hyphens and points",
		"https://" + strings.Repeat("a.", 127):  "without a point at the end",
		"https://" + strings.Repeat("a.b", 85):  "at most 253",
		"https://example.com/" + rep("a", 2029): "at most 2048 bytes, not 2049",
		"https://example.com/a b":               "visible ASCII",
		"https://example.com/\n":                "visible ASCII",
		" https://example.com/":                 "visible ASCII",
		"https://example.com\t/":                "visible ASCII",
		`https://example.com\@127.0.0.1/`:       "visible ASCII",
		"https://bücher.example/":               "xn--",
		"https://１２７.0.0.1/":                    "xn--",
		"https://127。0。0。1/":                    "xn--",
		"https://exam\u00adple.com/":            "xn--",
		"https://127.1/":                        "usual notation",
		"https://127.0.0.01/":                   "usual notation",
		"https://0177.0.0.1/":                   "usual notation",
		"https://0x7F.1/":                       "usual notation",
		"https://0x7f000001/":                   "usual notation",
		"https://017700000001/":                 "usual notation",
		"https://2130706433/":                   "usual notation",
		"https://134744072/":                    "usual notation",
		"https://8.8.8.8.8/":                    "usual notation",
		"https://256.1.1.1/":                    "usual notation",
		"https://example.1/":                    "usual notation",
		"https://example.0x/":                   "usual notation",
		"https://[::1%25lo]/":                   "without a zone",
		"https://[fe80::1%25eth0]/":             "without a zone",
		"https://[::ffff:7f00:1]/":              "a loopback address",
		"https://[0:0:0:0:0:ffff:169.254.1.1]/": "a link-local address",
		"https://LocalHost/":                    "must not name this machine",
		"https://db.LOCALHOST:5432/":            "must not name this machine",
		"https://169.254.169.254/latest/":       "a cloud's metadata service; QUEUED_PUSH_ALLOW can allow it",
		"https://10.0.0.1/":                     "10.0.0.1 must not be called: it is at a private address",
		"http://8.8.8.8/":                       "8.8.8.8 must be called by https",
	} {
		err := g.CheckURL(raw)
		if !errors.Is(err, ErrNotAllowed) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want it to say %q", raw, err, want)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: the error has the password: %v", raw, err)
		}
	}
	for _, raw := range []string{
		"https://example.com", "https://example.com/", "HTTPS://EXAMPLE.com:8443/a/b?c=d&e=%20", "https://xn--bcher-kva.example/", "https://a_b.example/",
		"https://8.8.8.8/", "https://[2606:4700:4700::1111]:443/", "https://intranet/", "https://1password.example/", "https://127.0.0.1.nip.io/",
		"https://0x7f.example/", "https://example.com/" + rep("a", 2028),
	} {
		if err := g.CheckURL(raw); err != nil {
			t.Errorf("%q: %v", raw, err)
		}
	}
}

func rep(s string, n int) string { return strings.Repeat(s, n) }

func TestAllowListOpensWhatItNames(t *testing.T) {
	t.Parallel()
	g := newGuard(t, "10.1.0.0/16", "fd00:1::/32", "192.168.0.7", "Billing.internal", "*.svc.cluster.local", "localhost")
	for _, c := range []struct {
		url, address string // an empty address: the URL cannot be configured
		isAllowed    bool
	}{
		{"http://10.1.2.3/", "10.1.2.3:80", true},
		{"http://[::ffff:10.1.2.3]/", "10.1.2.3:80", true},
		{"http://[fd00:1::5]/", "[fd00:1::5]:80", true},
		{"https://192.168.0.7/", "192.168.0.7:443", true},
		{"https://192.168.0.8/", "", false},
		{"http://8.8.8.8/", "", false},
		{"http://name.example/", "10.1.2.3:80", true}, // a name in an allowed network
		{"http://name.example/", "10.2.0.1:80", false},
		{"http://name.example/", "8.8.8.8:80", false}, // public, but by http
		{"https://name.example/", "8.8.8.8:443", true},
		{"https://name.example/", "10.1.2.3:443", true},
		{"https://name.example/", "10.2.0.1:443", false},
		{"http://billing.internal/", "10.2.0.1:80", true}, // an allowed name
		{"http://BILLING.INTERNAL/", "172.16.0.1:80", true},
		{"http://billing.internal/", "8.8.8.8:80", true},
		{"http://billing.internal/", "127.0.0.1:80", true},
		{"http://billing.internal/", "[fd12::1]:80", true},
		{"http://billing.internal/", "100.64.0.1:80", true},
		{"http://billing.internal/", "169.254.169.254:80", false}, // but no metadata
		{"http://billing.internal/", "[fd00:ec2::254]:80", false},
		{"http://billing.internal/", "100.100.100.200:80", false},
		{"http://billing.internal/", "0.0.0.0:80", false},
		{"http://x.billing.internal/", "10.2.0.1:80", false},
		{"http://a.b.svc.cluster.local/", "10.2.0.1:80", true},
		{"http://svc.cluster.local/", "10.2.0.1:80", false},
		{"http://xsvc.cluster.local/", "10.2.0.1:80", false},
		{"http://localhost/", "127.0.0.1:80", true},
		{"http://a.localhost/", "", false},
		{"http://127.0.0.1/", "", false},
	} {
		u, err := g.ParseURL(c.url)
		if (err == nil) != (c.address != "") {
			t.Errorf("%s: %v", c.url, err)
		}
		if err != nil {
			continue
		}
		if err := dial(g, u.Scheme, u.Hostname(), c.address); (err == nil) != c.isAllowed {
			t.Errorf("%s at %s: got %v, want allowed: %v", c.url, c.address, err, c.isAllowed)
		} else if err != nil && strings.Contains(err.Error(), c.address) {
			t.Errorf("%s: the error tells the address: %v", c.url, err)
		}
	}
	if err := newGuard(t, "billing.internal").CheckURL("http://name.example/"); !errors.Is(err, ErrNotAllowed) {
		t.Errorf("an allowed name opens http for others: %v", err)
	}
}

func TestWrongEntriesOfTheAllowListAreRefused(t *testing.T) {
	t.Parallel()
	for entry, want := range map[string]string{
		"": "is neither", "10.0.0.0/33": "is no network", "10.0.0.1/8": "the network is 10.0.0.0/8", "::ffff:10.0.0.0/104": "network of IPv4",
		"fe80::1%eth0": "no zone", "*": "is neither", "*.": "is neither", "a.*.b": "is neither", "http://a.b": "is no network", "a.b:80": "is neither",
		"127.1": "is neither", "0x7f000001": "is neither", "a b": "is neither", "bücher.example": "is neither", "a.b.": "is neither",
	} {
		_, err := NewGuard([]string{"10.0.0.0/8", entry})
		if err == nil || !strings.HasPrefix(err.Error(), strconv.Quote(entry)) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want it to begin with the entry and say %q", entry, err, want)
		}
	}
}

func TestOwnAddressIsNeverCalled(t *testing.T) {
	t.Parallel()
	local, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	everywhere := newGuard(t, "0.0.0.0/0", "::/0")
	for listen, cases := range map[string]map[string]bool{
		"127.0.0.1:8080": {"127.0.0.1:8080": false, "127.0.0.1:8081": true, "127.0.0.2:8080": true, "[::ffff:127.0.0.1]:8080": false, "0.0.0.0:8080": false, "[::]:8080": false},
		"10.0.0.1:8080":  {"10.0.0.1:8080": false, "10.0.0.2:8080": true, "0.0.0.0:8080": true},
		"[::]:8080":      {"127.0.0.1:8080": false, "127.9.9.9:8080": false, "[::1]:8080": false, "8.8.8.8:8080": true, "127.0.0.1:80": true},
		"0.0.0.0:8080":   {"127.0.0.1:8080": false, "0.0.0.0:8080": false},
	} {
		g := everywhere.ExceptSelf(netip.MustParseAddrPort(listen))
		for _, each := range local {
			if network, err := netip.ParsePrefix(each.String()); err == nil && strings.HasPrefix(listen, "[::]") {
				cases[netip.AddrPortFrom(network.Addr(), 8080).String()] = false
			}
		}
		for address, isAllowed := range cases {
			if err := dial(g, "http", "example.com", address); (err == nil) != isAllowed {
				t.Errorf("listening at %s, %s: %v", listen, address, err)
			}
		}
	}
	if err := dial(everywhere, "http", "example.com", "127.0.0.1:8080"); err != nil {
		t.Error(err)
	}
}

// naiveIPv4 reads an address as inet_aton of C does: one to four numbers, decimal, octal or hexadecimal, of which the last fills the rest.
func naiveIPv4(host string) (netip.Addr, bool) {
	parts := strings.Split(strings.TrimSuffix(host, "."), ".")
	if len(parts) > 4 {
		return netip.Addr{}, false
	}
	var value uint64
	for i, part := range parts {
		base := 10
		switch {
		case strings.HasPrefix(part, "0x") || strings.HasPrefix(part, "0X"):
			part, base = part[2:], 16
		case len(part) > 1 && part[0] == '0':
			part, base = part[1:], 8
		}
		n, err := strconv.ParseUint(part, base, 32)
		if err != nil {
			return netip.Addr{}, false
		}
		if i < len(parts)-1 {
			value |= n << (24 - 8*i)
		} else {
			value |= n
		}
	}
	return netip.AddrFrom4([4]byte{byte(value >> 24), byte(value >> 16), byte(value >> 8), byte(value)}), true
}

// isPublic is written apart from the guard, by what package netip knows and what it does not.
func isPublic(addr netip.Addr) bool {
	addr = addr.Unmap()
	for _, prefix := range []string{
		"0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.0.2.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "192.88.99.0/24", "240.0.0.0/4",
		"::/3", "2001::/32", "2001:db8::/32", "2002::/16", "4000::/2", "8000::/1",
	} {
		if netip.MustParsePrefix(prefix).Contains(addr) {
			return false
		}
	}
	return addr.IsGlobalUnicast() && !addr.IsPrivate() && addr.Zone() == ""
}

func FuzzAcceptedURLNamesNoInternalAddress(f *testing.F) {
	for _, seed := range []string{
		"https://example.com/hook", "https://8.8.8.8/", "https://[2606:4700::1]:443/", "https://127.1/", "https://0x7f.0.0.1", "https://[::ffff:127.0.0.1]/",
		"https://[::1%25lo]/", "https://a@b", "https://localhost.", "https://①②⑦.0.0.1", "https://example.com:443#", "https://017700000001",
		"https:\\\\example.com", "https://[2002:7f00:1::]/", "http://example.com", "https://example.com:99999",
	} {
		f.Add(seed)
	}
	g := newGuard(f)
	f.Fuzz(func(t *testing.T, raw string) {
		if g.CheckURL(raw) != nil {
			return
		}
		u, err := url.Parse(raw)
		if err != nil || u.Scheme != "https" || u.User != nil || u.Fragment != "" || u.Host == "" {
			t.Fatalf("%q is accepted: %+v, %v", raw, u, err)
		}
		host := strings.ToLower(u.Hostname())
		if name := strings.TrimSuffix(host, "."); name == "localhost" || strings.HasSuffix(name, ".localhost") {
			t.Fatalf("%q is accepted", raw)
		}
		if addr, err := netip.ParseAddr(host); err == nil && !isPublic(addr) {
			t.Fatalf("%q is accepted, with the address %s", raw, addr)
		} else if addr, isAddr := naiveIPv4(host); err != nil && isAddr {
			t.Fatalf("%q is accepted, and is the address %s to some", raw, addr)
		}
	})
}
