package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"syscall"
)

// MaxURL is the largest URL that may be called, in bytes.
const MaxURL = 2048

// ErrNotAllowed is the errors.Is target of errors of URLs and addresses that may not be called. Their texts say why.
var ErrNotAllowed = errors.New("this may not be called")

type notAllowed struct{ reason string }

// Error implements error.
func (e *notAllowed) Error() string { return e.reason }

// Is reports whether the target is ErrNotAllowed.
func (e *notAllowed) Is(target error) bool { return target == ErrNotAllowed }

func deny(format string, args ...any) error { return &notAllowed{fmt.Sprintf(format, args...)} }

// A Guard decides which URLs and addresses may be called on behalf of users, who must not reach through this program hosts that they cannot reach
// themselves. Without an allow list that is https at public addresses. A guard does not change.
type Guard struct {
	networks []netip.Prefix
	names    map[string]bool // in lower case
	suffixes []string        // in lower case, with the point before them
	self     netip.AddrPort  // zero: none
}

// NewGuard returns a guard with an allow list. An entry is one of
//   - a network, "10.1.0.0/16", or an address: its addresses may be called, whatever they are, by http, too;
//   - a name, "billing.internal", or "*.internal" for all names below it: it may be called by http, too, and where its addresses are private or
//     loopback. Those of metadata services and links need an entry of their own.
//
// Errors begin with the entry.
func NewGuard(allow []string) (*Guard, error) {
	g := &Guard{names: map[string]bool{}}
	for _, entry := range allow {
		if err := g.allow(entry); err != nil {
			return nil, fmt.Errorf("%.100q: %w", entry, err)
		}
	}
	return g, nil
}

func (g *Guard) allow(entry string) error {
	if strings.Contains(entry, "/") {
		network, err := netip.ParsePrefix(entry)
		switch {
		case err != nil:
			return errors.New("is no network such as 10.1.0.0/16 or fd00:1::/32")
		case network.Addr().Is4In6():
			return errors.New("must be written as a network of IPv4")
		case network != network.Masked():
			return fmt.Errorf("has bits beyond its length; the network is %s", network.Masked())
		}
		g.networks = append(g.networks, network)
		return nil
	}
	if addr, err := netip.ParseAddr(entry); err == nil {
		if addr.Zone() != "" {
			return errors.New("must have no zone")
		}
		addr = addr.Unmap()
		g.networks = append(g.networks, netip.PrefixFrom(addr, addr.BitLen()))
		return nil
	}
	name := strings.ToLower(entry)
	suffix, isSuffix := strings.CutPrefix(name, "*.")
	if err := checkName(suffix); err != nil {
		return errors.New("is neither a network, an address, a name nor a name behind \"*.\"")
	}
	if isSuffix {
		g.suffixes = append(g.suffixes, "."+suffix)
	} else {
		g.names[name] = true
	}
	return nil
}

// ExceptSelf returns a guard like g that refuses the address at which this program itself listens, even if it is in an allowed network. A listener at
// an unspecified address is at all addresses of the machine.
func (g *Guard) ExceptSelf(listen netip.AddrPort) *Guard {
	other := *g
	other.self = netip.AddrPortFrom(listen.Addr().Unmap(), listen.Port())
	return &other
}

// CheckURL returns nil if a URL may be called, as far as can be told without looking up its host. Errors are ErrNotAllowed, and are worded
// to follow the name of the field that holds the URL.
func (g *Guard) CheckURL(raw string) error {
	_, err := g.ParseURL(raw)
	return err
}

// ParseURL parses a URL that CheckURL accepts.
func (g *Guard) ParseURL(raw string) (*url.URL, error) {
	if len(raw) > MaxURL {
		return nil, deny("must have at most %d bytes, not %d", MaxURL, len(raw))
	}
	// Nothing that parsers of URLs disagree on: spaces, control characters, backslashes, letters that become others when a name is normalized.
	if strings.ContainsFunc(raw, func(r rune) bool { return r <= ' ' || r > '~' || r == '\\' }) {
		return nil, deny("must have visible ASCII characters only, and no backslash; write international names as xn--…, and other characters as %%XX")
	}
	if strings.Contains(raw, "#") {
		return nil, deny("must have no fragment")
	}
	u, err := url.Parse(raw)
	switch {
	case err != nil || u.Host == "" || u.Opaque != "" || u.Scheme != "http" && u.Scheme != "https":
		return nil, deny("must be an absolute URL, such as https://example.com/hook")
	case u.User != nil:
		return nil, deny("must have no user and no password; send credentials in a header field")
	case strings.HasSuffix(u.Host, ":"):
		return nil, deny("must have a port after the colon")
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return nil, deny("must have a port from 1 to 65535")
		}
	}
	return u, g.checkHost(u)
}

// checkHost checks the scheme and the host of a URL.
func (g *Guard) checkHost(u *url.URL) error {
	host := strings.ToLower(u.Hostname())
	addr, err := netip.ParseAddr(host)
	if isBracketed := strings.HasPrefix(u.Host, "["); isBracketed && (err != nil || addr.Zone() != "") {
		return deny("must have an address of IPv6 without a zone in its brackets")
	}
	if err == nil {
		return g.checkAddr(u.Scheme, host, addr)
	}
	if err := checkName(host); err != nil {
		return err
	}
	switch isAllowed := g.allowsName(host); {
	case isAllowed:
		return nil
	case host == "localhost" || strings.HasSuffix(host, ".localhost"):
		return deny("must not name this machine; QUEUED_PUSH_ALLOW can allow it")
	case u.Scheme == "http" && len(g.networks) == 0:
		return deny("must begin with https://; QUEUED_PUSH_ALLOW names the hosts that may be called by http")
	}
	return nil
}

// checkName checks the name of a host, in lower case.
func checkName(host string) error {
	if strings.HasSuffix(host, ".") {
		return deny("must name the host without a point at the end")
	}
	labels := strings.Split(host, ".")
	for _, label := range labels {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' || strings.ContainsFunc(label, isNoNameByte) {
			return deny("must name the host by letters, digits, hyphens and points")
		}
	}
	if len(host) > 253 {
		return deny("must name the host by at most 253 characters")
	}
	// A host that ends in a number is an address in old notations: 127.1, 2130706433, 0x7f000001, 017700000001. No top-level domain is a number.
	last := labels[len(labels)-1]
	if strings.Trim(last, "0123456789") == "" || strings.HasPrefix(last, "0x") && strings.Trim(last[2:], "0123456789abcdef") == "" {
		return deny("must be a name or an address in the usual notation, such as 192.0.2.1")
	}
	return nil
}

func isNoNameByte(r rune) bool {
	return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '_'
}

func (g *Guard) allowsName(host string) bool {
	if g.names[host] {
		return true
	}
	for _, suffix := range g.suffixes {
		if strings.HasSuffix(host, suffix) {
			return true
		}
	}
	return false
}

// Control returns a function for net.Dialer.ControlContext that refuses to connect to addresses at which a host of a URL may not be called. It sees
// the very address of the connection, so there is no time between the check and the use in which the name could get another.
func (g *Guard) Control(scheme, host string) func(ctx context.Context, network, address string, _ syscall.RawConn) error {
	host = strings.ToLower(host)
	return func(_ context.Context, _, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil {
			return deny("%s has an address that cannot be judged", host)
		}
		if g.isSelf(at) {
			return deny("%s is the address at which queued itself listens", host)
		}
		return g.checkAddr(scheme, host, at.Addr())
	}
}

// checkAddr checks the address of a host, which is a name or an address itself. The error does not tell the address of a name.
func (g *Guard) checkAddr(scheme, host string, addr netip.Addr) error {
	addr = addr.Unmap()
	if addr.Zone() != "" {
		return deny("%s has an address with a zone", host)
	}
	for _, network := range g.networks {
		if network.Contains(addr) {
			return nil
		}
	}
	what := special(addr)
	isAllowed := g.allowsName(host)
	switch {
	case what == "" && (scheme == "https" || isAllowed):
		return nil
	case what == "":
		return deny("%s must be called by https: QUEUED_PUSH_ALLOW names neither it nor its address", host)
	case isAllowed && isInternal(addr):
		return nil
	}
	return deny("%s must not be called: it is at %s; QUEUED_PUSH_ALLOW can allow it", host, what)
}

// A specialNetwork is one whose addresses are not those of public services.
type specialNetwork struct {
	prefix netip.Prefix
	what   string
}

func specials(pairs ...string) (networks []specialNetwork) {
	for i := 0; i < len(pairs); i += 2 {
		networks = append(networks, specialNetwork{netip.MustParsePrefix(pairs[i]), pairs[i+1]})
	}
	return networks
}

const (
	metadata      = "an address of a cloud's metadata service"
	private       = "a private address"
	documentation = "an address for documentation"
	protocols     = "an address for protocols of the IETF"
	transition    = "an address that stands for one of IPv4"
)

// The first network that contains an address gives its kind. From https://www.iana.org/assignments/iana-ipv4-special-registry, its sibling for IPv6, and
// the addresses of metadata services that are not link-local: of Alibaba, Oracle, Azure and AWS.
var (
	specials4 = specials(
		"169.254.169.254/32", metadata, "100.100.100.200/32", metadata, "192.0.0.192/32", metadata, "168.63.129.16/32", metadata,
		"0.0.0.0/8", "an address of this machine", "127.0.0.0/8", "a loopback address",
		"10.0.0.0/8", private, "172.16.0.0/12", private, "192.168.0.0/16", private,
		"100.64.0.0/10", "an address behind a carrier's NAT", "169.254.0.0/16", "a link-local address",
		"192.0.0.0/24", protocols, "192.0.2.0/24", documentation, "198.51.100.0/24", documentation, "203.0.113.0/24", documentation,
		"192.88.99.0/24", "an address of 6to4 relays", "198.18.0.0/15", "an address for benchmarks",
		"224.0.0.0/4", "a multicast address", "240.0.0.0/4", "a reserved address",
	)
	// For IPv6, only 2000::/3 is public, with these exceptions.
	global6   = netip.MustParsePrefix("2000::/3")
	specials6 = specials(
		"2001::/23", protocols, // among them Teredo, benchmarks and ORCHID
		"2001:db8::/32", documentation, "3fff::/20", documentation, "2002::/16", transition, // 6to4
	)
	others6 = specials(
		"::1/128", "a loopback address", "fd00:ec2::254/128", metadata, "fd20:ce::254/128", metadata, "fc00::/7", private,
		"fe80::/10", "a link-local address", "ff00::/8", "a multicast address", "64:ff9b::/96", transition, "64:ff9b:1::/48", transition,
	)
	// internal are the networks in which a name of the allow list may be. Other specials within them come first.
	internal = []string{private, "a loopback address", "an address behind a carrier's NAT"}
)

// special returns the kind of an address; empty: a public one.
func special(addr netip.Addr) string {
	networks := specials4
	if addr.Is6() {
		networks = others6
		if global6.Contains(addr) {
			networks = specials6
		}
	}
	for _, network := range networks {
		if network.prefix.Contains(addr) {
			return network.what
		}
	}
	if addr.Is4() || global6.Contains(addr) {
		return ""
	}
	return "a reserved address"
}

func isInternal(addr netip.Addr) bool {
	what := special(addr)
	for _, allowed := range internal {
		if what == allowed {
			return true
		}
	}
	return false
}

// isSelf reports whether this program itself listens at an address.
func (g *Guard) isSelf(at netip.AddrPort) bool {
	if !g.self.IsValid() || at.Port() != g.self.Port() {
		return false
	}
	addr := at.Addr().Unmap().WithZone("")
	switch {
	case addr == g.self.Addr():
		return true
	case addr.IsUnspecified(): // which connects to loopback
		return g.self.Addr().IsLoopback() || g.self.Addr().IsUnspecified()
	case !g.self.Addr().IsUnspecified():
		return false
	case addr.IsLoopback():
		return true
	}
	local, err := net.InterfaceAddrs()
	if err != nil {
		return true // rather than to guess
	}
	for _, each := range local {
		if network, err := netip.ParsePrefix(each.String()); err == nil && network.Addr() == addr {
			return true
		}
	}
	return false
}
