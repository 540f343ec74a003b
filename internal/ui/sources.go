package ui

import (
	"fmt"
	"net/url"
	"strings"
	"time"
	"unicode"

	"github.com/queued/queued/client"
)

// Sources is the page of all sources of webhooks.
type Sources struct {
	Sources []client.Source
	Pager   Pager
}

// Source is the page of one source, with its delivery log.
type Source struct {
	client.Source
	Filter url.Values // as it was entered: result, from and to
	Log    client.SourceDeliveryPage
	Hidden bool // bodies are not to be shown
	Pager  Pager
}

// IsFiltered reports whether the log is not shown in full.
func (s *Source) IsFiltered() bool {
	return s.Filter.Get("result") != "" || s.Filter.Get("from") != "" || s.Filter.Get("to") != ""
}

// SourceForm is the form of a new source, or of a change to one, which has a Version.
type SourceForm struct{ client.Source }

// Proof is the signature of the source; one without anything: it has none.
func (f *SourceForm) Proof() (none client.SourceSignature) {
	if f.Signature == nil {
		return none
	}
	return *f.Signature
}

// Rate is the rate limit of the source; 0 a second: it has none.
func (f *SourceForm) Rate() (none client.RateLimit) {
	if f.RateLimit == nil {
		return none
	}
	return *f.RateLimit
}

// SourceTest is the form of a delivery to try, with the result once it was tried.
type SourceTest struct {
	client.Source
	Result *client.TriedDelivery
}

// Mapped are the events that the delivery would become.
func (t *SourceTest) Mapped() []client.MappedDelivery {
	if t.Result.Mapped != nil {
		return []client.MappedDelivery{*t.Result.Mapped}
	}
	return t.Result.Batch
}

// sourceKinds are the kinds of sources, with what proves a delivery.
var sourceKinds = [][2]string{
	{"github", "GitHub"},
	{"slack", "Slack"},
	{"stripe", "Stripe"},
	{"standard", "Standard Webhooks, Svix"},
	{"hmac", "an HMAC in a header"},
	{"token", "a token in a header"},
	{"basic", "a password, HTTP Basic"},
	{"cloudevents", "CloudEvents with a token"},
}

// nonzero returns a number for a field of a form; nil: 0, which says that there is none.
func nonzero(n any) any {
	if isZero(n) {
		return nil
	}
	return n
}

// span writes a duration as the API takes it, without units that are 0: 168h, 1h30m. 0 is empty.
func span(d time.Duration) string {
	text := d.String()
	if d == 0 {
		return ""
	}
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// visible returns a text of strangers with the characters that are not seen, or that change the order of others, as codes: ␀, ‹U+202E›.
func visible(text string) string {
	var b strings.Builder
	for _, c := range text {
		switch {
		case c == '\n' || c == '\t' || c == '\u200d': // the last joins emoji
			b.WriteRune(c)
		case c < 0x20:
			b.WriteRune(0x2400 + c)
		case c == 0x7f:
			b.WriteRune('␡')
		case unicode.In(c, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp):
			fmt.Fprintf(&b, "‹%U›", c)
		default:
			b.WriteRune(c)
		}
	}
	return b.String()
}
