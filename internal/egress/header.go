package egress

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Bounds of the header fields that users may add to requests.
const (
	maxFields     = 50
	maxFieldName  = 128     // bytes
	maxFieldValue = 4 << 10 // bytes
	maxFieldBytes = 16 << 10
)

// ownFields are the fields, in lower case, that queued or HTTP itself sets, or that would have a request sent twice. Prefixes end in *.
var ownFields = []string{
	"host", "content-length", "content-type", "content-encoding", "transfer-encoding", "connection", "keep-alive", "proxy-*", "te", "trailer",
	"upgrade", "expect", "http2-settings", "accept-encoding", "user-agent", "idempotency-key", "x-idempotency-key",
	"webhook-*", "ce-*", "traceparent", "tracestate",
}

// CheckHeaders returns the first defect of the header fields that a user wants to add to requests, and the name of the field; the name is empty for
// a defect of all of them together. No detail: there is none.
func CheckHeaders(fields map[string]string) (field, detail string) {
	if len(fields) > maxFields {
		return "", fmt.Sprintf("must have at most %d fields, not %d", maxFields, len(fields))
	}
	total, seen := 0, map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		value, canonical := fields[name], strings.ToLower(name)
		total += len(name) + len(value)
		switch {
		case name == "" || len(name) > maxFieldName || strings.ContainsFunc(name, isNoTokenByte):
			return name, fmt.Sprintf("must be a name of 1 to %d letters, digits and hyphens", maxFieldName)
		case isOwnField(canonical):
			return name, "is set by queued or by HTTP itself"
		case seen[canonical]:
			return name, "is given twice, in different letters"
		case len(value) > maxFieldValue:
			return name, fmt.Sprintf("must have at most %d bytes, not %d", maxFieldValue, len(value))
		case !isFieldValue(value):
			return name, "must have no line break and no other control character"
		case strings.Trim(value, " \t") != value:
			return name, "must not begin or end with a space"
		}
		seen[canonical] = true
	}
	if total > maxFieldBytes {
		return "", fmt.Sprintf("must have at most %d bytes in all, not %d", maxFieldBytes, total)
	}
	return "", ""
}

// isNoTokenByte reports whether a name cannot have r: https://www.rfc-editor.org/rfc/rfc9110#section-5.6.2.
func isNoTokenByte(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
}

// isFieldValue reports whether a field can have value: without line breaks and other control characters
// (https://www.rfc-editor.org/rfc/rfc9110#section-5.5).
func isFieldValue(value string) bool {
	return !strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f })
}

// checkFields returns an error that wraps ErrUnsendable for a field that cannot be sent, and nil otherwise. net/http would refuse the request then, as if the endpoint had failed.
func checkFields(header http.Header) *Error {
	for _, name := range slices.Sorted(maps.Keys(header)) {
		if name == "" || strings.ContainsFunc(name, isNoTokenByte) {
			return &Error{strconv.QuoteToASCII(name[:min(len(name), maxText)]) + " cannot be the name of a header field", ErrUnsendable}
		}
		for _, value := range header[name] {
			if !isFieldValue(value) {
				return &Error{"the header field " + name + " would have a control character", ErrUnsendable}
			}
		}
	}
	return nil
}

func isOwnField(name string) bool {
	return slices.ContainsFunc(ownFields, func(own string) bool {
		prefix, isPrefix := strings.CutSuffix(own, "*")
		return name == own || isPrefix && strings.HasPrefix(name, prefix)
	})
}

// Headers returns fields that CheckHeaders accepts as the header of a Request.
func Headers(fields map[string]string) http.Header {
	header := make(http.Header, len(fields))
	for name, value := range fields {
		header.Set(name, value)
	}
	return header
}

// ParseProxy returns the URL of an egress proxy: http, https or socks5, maybe with user and password. The error does not repeat it.
func ParseProxy(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || !slices.Contains([]string{"http", "https", "socks5"}, u.Scheme) || u.Hostname() == "" || u.RawQuery != "" || u.Fragment != "" ||
		strings.Trim(u.Path, "/") != "" {
		return nil, errors.New("is no URL of a proxy, such as http://proxy.internal:3128, https://… or socks5://…")
	}
	return u, nil
}
