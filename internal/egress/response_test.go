package egress

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestRetryAfterIsBounded(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	at := func(d time.Duration) string { return now.Add(d).Format(http.TimeFormat) }
	for text, want := range map[string]time.Duration{
		"": 0, "0": 0, "120": 2 * time.Minute, "86400": 24 * time.Hour, "86401": 24 * time.Hour, "99999999999": 24 * time.Hour,
		"99999999999999999999999": 24 * time.Hour, "-1": 0, "+5": 0, "1.5": 0, "soon": 0, "1e3": 0, "2026-03-04T05:07:07Z": 0,
		at(90 * time.Second): 90 * time.Second, at(-time.Hour): 0, at(1e6 * time.Hour): 24 * time.Hour,
		now.Add(time.Minute).Format("Monday, 02-Jan-06 15:04:05 GMT"): time.Minute, now.Add(time.Minute).Format(time.ANSIC): time.Minute,
	} {
		if got := retryAfter(http.Header{"Retry-After": {text}}, now); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
	// The endpoint's clock is an hour late.
	if got := retryAfter(http.Header{"Retry-After": {at(-time.Hour + time.Minute)}, "Date": {at(-time.Hour)}}, now); got != time.Minute {
		t.Errorf("by the endpoint's clock: %s, want 1m", got)
	}
}

func FuzzExcerptIsPrintable(f *testing.F) {
	for _, seed := range []string{"ok", "\x00\r\n\t", "ü\xff", "\u202e\u200b\u2028", strings.Repeat("€", 400), "\xe2\x82"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		got := printable(text, maxExcerpt)
		if len(got) > maxExcerpt || !utf8.ValidString(got) || strings.TrimSpace(got) != got {
			t.Fatalf("%q has %d bytes", got, len(got))
		}
		if quoted := strconv.Quote(got); strings.Contains(strings.ReplaceAll(quoted, `\\`, ""), `\u`) || strings.ContainsAny(got, "\x00\r\n\t\x1b\x7f") {
			t.Fatalf("%s cannot be printed", quoted)
		}
	})
}

func TestHeaderFieldsOfUsersAreChecked(t *testing.T) {
	t.Parallel()
	many := map[string]string{}
	for i := range 50 {
		many["X-"+strconv.Itoa(i)] = strings.Repeat("v", 200)
	}
	for _, fields := range []map[string]string{
		nil, {"Authorization": "Bearer a.b", "x-api-key": "", "X_Y!": "ü\tz", "Cookie": "a=b"}, {"X": strings.Repeat("v", 4096)}, many,
	} {
		if field, detail := CheckHeaders(fields); field != "" || detail != "" {
			t.Errorf("%v: %s %s", fields, field, detail)
		}
	}
	for _, name := range []string{
		"Host", "CONTENT-LENGTH", "Content-Type", "Transfer-Encoding", "Connection", "Keep-Alive", "Proxy-Authorization", "Proxy-Connection", "TE", "Trailer", "Upgrade",
		"Expect", "webhook-id", "Webhook-Signature", "webhook-x", "User-Agent", "Accept-Encoding", "Idempotency-Key", "X-Idempotency-Key", "traceparent", "ce-id",
	} {
		if field, detail := CheckHeaders(map[string]string{"A": "b", name: "x"}); field != name || detail != "is set by queued or by HTTP itself" {
			t.Errorf("%s: %q %q", name, field, detail)
		}
	}
	for _, name := range []string{"", "a b", "a:b", "ü", "a\r\nb", ":authority", strings.Repeat("n", 129), "a\x00"} {
		if field, detail := CheckHeaders(map[string]string{name: "x"}); field != name || !strings.Contains(detail, "must be a name") {
			t.Errorf("%q: %q %q", name, field, detail)
		}
	}
	for value, want := range map[string]string{
		"a\r\nX: y": "control character", "a\nb": "control character", "a\x00": "control character", "a\x7f": "control character", " a": "space", "a\t": "space",
		strings.Repeat("v", 4097): "at most 4096 bytes, not 4097",
	} {
		if field, detail := CheckHeaders(map[string]string{"X-A": value}); field != "X-A" || !strings.Contains(detail, want) {
			t.Errorf("%.20q: %q %q", value, field, detail)
		}
	}
	if field, detail := CheckHeaders(map[string]string{"X-A": "1", "x-a": "2"}); field != "x-a" || !strings.Contains(detail, "twice") {
		t.Errorf("twice: %q %q", field, detail)
	}
	many["Y"] = ""
	if field, detail := CheckHeaders(many); field != "" || detail != "must have at most 50 fields, not 51" {
		t.Errorf("51 fields: %q %q", field, detail)
	}
	big := map[string]string{}
	for i := range 5 {
		big["X-"+strconv.Itoa(i)] = strings.Repeat("v", 4000)
	}
	if field, detail := CheckHeaders(big); field != "" || !strings.Contains(detail, "at most 16384 bytes in all") {
		t.Errorf("20 KB: %q %q", field, detail)
	}
}
