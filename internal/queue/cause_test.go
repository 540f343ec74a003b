package queue

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestCauseLeavesOutWhatVaries(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"": "",
		"dial tcp 10.0.3.17:5432: connect: connection refused":              "dial tcp <address>: connect: connection refused",
		"dial tcp [2001:db8::1]:443: i/o timeout after 30s":                 "dial tcp [<address>]:<number>: i/o timeout after <duration>",
		"order 4711 of user 12 is gone":                                     "order <number> of user <number> is gone",
		"order-4711 failed at 2026-02-03T04:05:06Z":                         "order-<number> failed at <time>",
		"at 2026-02-03 04:05:06.789: lost":                                  "at <time>: lost",
		`no row for "Ada Lovelace" in table 'user\'s'`:                      "no row for <string> in table <string>",
		"it doesn't work, and don't ask":                                    "it doesn't work, and don't ask",
		"request 123e4567-e89b-12d3-a456-426614174000 timed out in 1m30.5s": "request <uuid> timed out in <duration>",
		"commit 9fceb02d0ae598e95dc970b74767f19372d61af8 at 0xDEADBEEF":     "commit <hex> at <hex>",
		"POST https://api.example.com/v1/orders/77: status 503":             "POST https://api.example.com/v<number>/orders/<number>: status 503",
		"HTTP 404":                              "HTTP 404",
		"HTTP/1.1 502 Bad Gateway":              "HTTP/1.1 502 Bad Gateway",
		"ERROR: duplicate key (SQLSTATE 23505)": "ERROR: duplicate key (SQLSTATE 23505)",
		"exit status 2":                         "exit status 2",
		"code: 42, retry in 250ms":              "code: 42, retry in <duration>",
		"mail to ada@example.com and bob7@example.org bounced": "mail to <address> and <address> bounced",
		"  a\r\n\tb\x00\x1b[31m  c ":                           "a b [<duration> c",
		"Zahlung über 12,50 € für Straße 9 schlug fehl":        "Zahlung über <number> € für Straße <number> schlug fehl",
		`<script>alert("1")</script>`:                          "<script>alert(<string>)</script>",
		`an open "quote of 5`:                                  `an open "quote of <number>`,
		"took 5µs":                                             "took <duration>",
		"evt_1NG8Du2eZvKYlo2CUI79vXWy":                         "evt_<id>",
		"-17 of +5, 1e9, 1.5e-7, 99%":                          "<number> of <number>, <number>, <number>, <number>%",
	} {
		if got := causeOf(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

func TestCauseIsShortWhateverTheError(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"words": strings.Repeat("wörd ", 30_000), "one word": strings.Repeat("a", 100_000), "digits": strings.Repeat("1", 100_000), "quotes": strings.Repeat(`"`, 100_001),
		"open quotes": strings.Repeat(`'a `, 30_000), "backslashes": strings.Repeat(`"\`, 50_000), "joiners": strings.Repeat("-:", 50_000), "numbers": strings.Repeat("1 ", 50_000),
		"not UTF-8": strings.Repeat("\xff\xc2", 50_000), "colons": strings.Repeat("a:", 50_000), "runes": strings.Repeat("é", 50_000),
	} {
		started := time.Now()
		got := causeOf(text)
		if len(got) > maxCause+len("…") || utf8.ValidString(text) && !utf8.ValidString(got) {
			t.Errorf("%s: got %d bytes: %q", name, len(got), got)
		}
		if took := time.Since(started); took > 30*time.Second {
			t.Errorf("%s: took %s", name, took)
		}
	}
}

func FuzzCause(f *testing.F) {
	f.Add("dial tcp 10.0.3.17:5432: \"x\" 'y'")
	f.Add("-")
	f.Add("+1e")
	f.Fuzz(func(t *testing.T, text string) {
		if got := causeOf(text); len(got) > maxCause+len("…") {
			t.Errorf("%q: %d bytes", text, len(got))
		}
	})
}

func BenchmarkCause(b *testing.B) {
	text := fmt.Sprintf(`dial tcp 10.0.3.17:5432: connection refused (request %s, order "A-17") after 30ms`, "123e4567-e89b-12d3-a456-426614174000") +
		strings.Repeat(" at com.example.Frame(Frame.java:13)", 25)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		causeOf(text)
	}
}
