package egress

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"
)

const (
	maxExcerpt    = 1 << 10        // bytes of a body that are kept
	maxText       = 300            // bytes of a text of others in an error, such as a location
	maxRetryAfter = 24 * time.Hour // more is taken for this
)

// A Response is the answer of an endpoint.
type Response struct {
	Status     int
	Took       time.Duration // from the look-up of the name to the end of the read
	RetryAfter time.Duration // the pause that the endpoint asks for, at most 24 h; zero: none
	Excerpt    string        // the first KiB of the body, in UTF-8, on one line; empty if it is compressed
	location   string        // where it points
}

// OK reports whether the endpoint has taken the request: its status is 2xx.
func (r Response) OK() bool { return r.Status >= 200 && r.Status <= 299 }

// Failure returns the reason why a response is not OK, for those who look for it later; empty for one that is.
func (r Response) Failure() string {
	text := "HTTP " + strconv.Itoa(r.Status)
	switch {
	case r.OK():
		return ""
	case r.Status >= 300 && r.Status <= 399 && r.location != "":
		return text + ": redirects are not followed; this one leads to " + printable([]byte(r.location), maxText)
	case r.Excerpt != "":
		return text + ": " + r.Excerpt
	}
	return text
}

// printable returns the beginning of a text, at most limit bytes, on one line, and without bytes that are no UTF-8 or change how the rest is shown.
func printable(text []byte, limit int) string {
	var b strings.Builder
	b.Grow(min(len(text), limit))
	for len(text) > 0 {
		r, size := utf8.DecodeRune(text)
		if r == utf8.RuneError && size == 1 && !utf8.FullRune(text) {
			break // cut within a letter
		}
		text = text[size:]
		if !unicode.IsPrint(r) { // among them spaces other than U+0020, and changes of the direction
			r = ' '
		}
		if b.Len()+utf8.RuneLen(r) > limit {
			break
		}
		b.WriteRune(r)
	}
	return strings.TrimSpace(b.String())
}

// retryAfter returns how long an endpoint asks to be left alone. A date counts from the endpoint's own, if it has sent one, because its clock may be wrong.
func retryAfter(header http.Header, now time.Time) time.Duration {
	text := strings.TrimSpace(header.Get("Retry-After"))
	if text == "" {
		return 0
	}
	if strings.Trim(text, "0123456789") == "" {
		seconds, err := strconv.ParseInt(text, 10, 64)
		if err != nil || seconds > int64(maxRetryAfter/time.Second) { // beyond int64 is beyond the limit
			return maxRetryAfter
		}
		return time.Duration(seconds) * time.Second
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	if date, err := http.ParseTime(header.Get("Date")); err == nil {
		now = date
	}
	return min(max(at.Sub(now), 0), maxRetryAfter)
}

// ErrUnsendable is wrapped by the error of a request that has a header field which cannot be sent. Nothing was sent.
var ErrUnsendable = errors.New("the request has a header field that cannot be sent")

// An Error says why no answer came.
type Error struct {
	Reason string // in plain words, on one line; names no address that the user did not give
	err    error
}

// Error implements error.
func (e *Error) Error() string { return e.Reason }

// Unwrap returns the cause, ErrNotAllowed among them; it may be nil.
func (e *Error) Unwrap() error { return e.err }

// explain returns an error of a transport in words. hasEnded says that the time of the request is over.
func explain(err error, target *url.URL, timeout time.Duration, hasEnded bool, at *progress) *Error {
	return &Error{reason(err, target, timeout, hasEnded, at), err}
}

func reason(err error, target *url.URL, timeout time.Duration, hasEnded bool, at *progress) string {
	if hasEnded {
		switch {
		case !at.connected.Load():
			return fmt.Sprintf("timed out after %s: no connection was made", timeout)
		case !at.sent.Load():
			return fmt.Sprintf("timed out after %s: the request could not be sent in full", timeout)
		}
		return fmt.Sprintf("timed out after %s: no answer came", timeout)
	}
	host := target.Hostname()
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "proxyconnect" {
		return "the proxy: " + networkReason(op.Err)
	}
	if known, ok := errors.AsType[*Error](err); ok {
		return known.Reason
	}
	if errors.Is(err, ErrNotAllowed) {
		if op, ok := errors.AsType[*net.OpError](err); ok { // whose text has the address
			err = op.Err
		}
		return err.Error()
	}
	if lookup, ok := errors.AsType[*net.DNSError](err); ok {
		switch {
		case lookup.IsNotFound:
			return fmt.Sprintf("could not resolve %s: there is no such name", host)
		case lookup.IsTimeout:
			return fmt.Sprintf("could not resolve %s: the name server did not answer in time", host)
		}
		return fmt.Sprintf("could not resolve %s: %s", host, printable([]byte(lookup.Err), maxText))
	}
	if reason := tlsReason(err, host); reason != "" {
		return reason
	}
	return networkReason(err)
}

// networkReason returns the reason why a connection failed.
func networkReason(err error) string {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "the connection was refused"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "the connection was reset before an answer came"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "the host cannot be reached from here"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "the connection was closed before an answer came"
	case isTimeout(err):
		return "timed out: no connection was made"
	}
	if op, ok := errors.AsType[*net.OpError](err); ok { // whose text has the address
		err = op.Err
	}
	return "the request failed: " + printable([]byte(err.Error()), maxText)
}

// tlsReason returns the reason why TLS failed; empty: it did not.
func tlsReason(err error, host string) string {
	if wrongName, ok := errors.AsType[x509.HostnameError](err); ok {
		names := wrongName.Certificate.DNSNames
		if len(names) == 0 {
			return fmt.Sprintf("the TLS certificate is not for %s", host)
		}
		return fmt.Sprintf("the TLS certificate is not for %s, but for %s", host, printable([]byte(strings.Join(names, ", ")), maxText))
	}
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok {
		if invalid.Reason == x509.Expired {
			return fmt.Sprintf("the TLS certificate of %s has expired or is not yet valid", host)
		}
		return fmt.Sprintf("the TLS certificate of %s is invalid: %s", host, printable([]byte(invalid.Error()), maxText))
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return fmt.Sprintf("the TLS certificate of %s is signed by an authority that is not trusted", host)
	}
	if other, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return fmt.Sprintf("the TLS certificate of %s is invalid: %s", host, printable([]byte(other.Err.Error()), maxText))
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return fmt.Sprintf("%s does not speak TLS at this port", host)
	}
	// Alerts have a type that is not exported, in an error of the network.
	if op, ok := errors.AsType[*net.OpError](err); ok && (op.Op == "remote error" || op.Op == "local error") {
		return fmt.Sprintf("the TLS handshake with %s failed: %s", host, printable([]byte(op.Err.Error()), maxText))
	}
	return ""
}
