package main

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/alecthomas/kong"

	"github.com/queued/queued/internal/duration"
	"github.com/queued/queued/internal/egress"
	"github.com/queued/queued/internal/gateway"
	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/request"
	"github.com/queued/queued/internal/seal"
)

// kind is a way to write the value of a setting.
type kind struct {
	// parse returns the value of text, within the bounds in the setting's tags, or an error that begins with "got".
	parse       func(text string, tag *kong.Tag) (any, error)
	placeHolder string // for the value, in --help
}

// kinds are the values of the tag type.
var kinds = map[string]kind{
	"allow-list":   {parseAllowList, "LIST"},     // of an egress.Guard, separated by commas
	"cell-keys":    {parseCellKeys, "LIST"},      // numbers and keys, separated by white space; never shown
	"cells":        {parseCells, "LIST"},         // numbers and URLs, separated by commas
	"choice":       {parseChoice, ""},            // one of the tag choices
	"context":      {parseContext, "NAME"},       // of a server
	"count":        {parseCount, "N"},            // a whole number from the tag min to max
	"database-url": {parseDatabaseURL, "URL"},    // never shown
	"duration":     {parseDuration, "DURATION"},  // from the tag min, or else more than zero, to the tag max; with the tag off also off
	"hosts":        {parseHosts, "NAMES"},        // separated by commas
	"listen":       {parseListenAddr, "ADDRESS"}, // host:port
	"path":         {parsePath, "FILE"},          //
	"proxy-url":    {parseProxyURL, "URL"},       // never shown
	"server-url":   {parseServerURL, "URL"},      // http or https
	"api-key":      {parseAPIKey, "KEY"},         // never shown
	"secret":       {parseSecret, "KEY"},         // never shown
	"secret-keys":  {parseSecretKeys, "KEYS"},    // never shown
	"size":         {parseSize, "SIZE"},          // bytes, up to the tag max
	"switch":       {parseSwitch, ""},            // true or false
}

// maxShown is the length up to which an error repeats a wrong value, in bytes.
const maxShown = 100

// refuse returns the error of a value that may be shown.
func refuse(got, takes string) error {
	if got == "" {
		return fmt.Errorf("got nothing; takes %s", takes)
	}
	if len(got) > maxShown {
		got = got[:maxShown] + "…"
	}
	return fmt.Errorf("got %q; takes %s", got, takes)
}

func parseChoice(text string, tag *kong.Tag) (any, error) {
	choices := strings.Split(tag.Get("choices"), ",")
	if at := slices.IndexFunc(choices, func(choice string) bool { return strings.EqualFold(text, choice) }); at >= 0 {
		return choices[at], nil
	}
	last := len(choices) - 1
	return nil, refuse(text, strings.Join(choices[:last], ", ")+" or "+choices[last])
}

func parseCount(text string, tag *kong.Tag) (any, error) {
	n, err := parseInt(text)
	if err != nil || n < bound(tag, "min", parseInt, 0) || n > bound(tag, "max", parseInt, math.MaxInt64) {
		return nil, refuse(text, "a whole number from "+tag.Get("min")+" to "+tag.Get("max"))
	}
	return n, nil
}

func parseInt(text string) (int64, error) { return strconv.ParseInt(text, 10, 64) }

// parseDuration returns -1 for off.
func parseDuration(text string, tag *kong.Tag) (any, error) {
	d, err := duration.Parse(text)
	if tag.Has("off") && (err == nil && d == 0 || strings.EqualFold(text, "off")) {
		return time.Duration(-1), nil
	}
	if err == nil && d >= bound(tag, "min", time.ParseDuration, 1) && d <= bound(tag, "max", time.ParseDuration, math.MaxInt64) {
		return d, nil
	}
	takes := `a duration such as "30s", "10m" or "7d"`
	switch {
	case tag.Has("min"):
		takes += ", at least " + tag.Get("min")
	case err == nil:
		takes += ", more than zero"
	}
	if tag.Has("max") {
		takes += ", up to " + tag.Get("max")
	} else if errors.Is(err, duration.ErrRange) {
		takes += ", up to " + duration.Max
	}
	if tag.Has("off") {
		takes += `, or "off"`
	}
	return nil, refuse(text, takes)
}

func parseSwitch(text string, _ *kong.Tag) (any, error) {
	switch strings.ToLower(text) {
	case "true", "1", "yes", "on":
		return true, nil
	case "false", "0", "no", "off":
		return false, nil
	}
	return nil, refuse(text, "true or false")
}

func parsePath(text string, _ *kong.Tag) (any, error) {
	if text == "" || strings.ContainsRune(text, 0) {
		return nil, refuse(text, "a path")
	}
	return text, nil
}

func parseContext(text string, _ *kong.Tag) (any, error) {
	if text == "" {
		return nil, refuse(text, "the name of a context, as \"queued context\" lists them")
	}
	return text, nil
}

func parseSecret(text string, _ *kong.Tag) (any, error) {
	const takes = "one or more visible ASCII characters without spaces, as fit an HTTP header"
	if text == "" {
		return nil, refuse(text, takes)
	}
	if strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, errors.New("got a value that is not shown; takes " + takes)
	}
	return text, nil
}

// minAPIKey is the length of the shortest API key that a server takes, in characters: nothing slows down who tries to guess it.
const minAPIKey = 16

func parseAPIKey(text string, tag *kong.Tag) (any, error) {
	key, err := parseSecret(text, tag)
	if err == nil && len(text) < minAPIKey {
		err = fmt.Errorf("got a value of %d characters, which is not shown; takes at least %d, because a shorter key can be guessed, "+
			"such as what `openssl rand -hex 32` prints", len(text), minAPIKey)
	}
	return key, err
}

// parseSecretKeys returns the keys that commas or white space separate, as package seal takes them.
func parseSecretKeys(text string, _ *kong.Tag) (any, error) {
	const takes = "one key or more, such as what \"openssl rand -base64 32\" prints, separated by commas or white space"
	if text == "" {
		return nil, refuse(text, takes)
	}
	keys := strings.FieldsFunc(text, func(r rune) bool { return r == ',' || unicode.IsSpace(r) })
	if _, err := seal.NewSealer(keys...); err != nil {
		return nil, fmt.Errorf("got a value that is not shown: %w; takes %s", err, takes)
	}
	return keys, nil
}

func parseSize(text string, tag *kong.Tag) (any, error) {
	n, err := parseBytes(text)
	if err != nil || n > bound(tag, "max", parseBytes, math.MaxInt64) {
		return nil, refuse(text, `a number of bytes such as "65536", "512KiB" or "4MiB", up to `+tag.Get("max"))
	}
	return n, nil
}

// parseBytes returns a number of bytes, more than zero. There are no decimal units, because people disagree on what 1 MB is.
func parseBytes(text string) (int64, error) {
	unit := int64(1)
	for i, suffix := range []string{"KiB", "MiB", "GiB"} {
		if number, ok := strings.CutSuffix(text, suffix); ok {
			text, unit = number, 1<<(10*(i+1))
			break
		}
	}
	n, err := parseInt(strings.TrimSpace(text))
	if err == nil && (n < 1 || n > math.MaxInt64/unit) {
		err = strconv.ErrRange
	}
	return n * unit, err
}

// hostname matches a name by RFC 1123, with the underscore that container networks use.
var hostname = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?$`)

// parseHosts returns the names of hosts that commas separate, without ports.
func parseHosts(text string, _ *kong.Tag) (any, error) {
	hosts := strings.Split(text, ",")
	for i, host := range hosts {
		host = strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(host), "["), "]")
		_, err := netip.ParseAddr(host)
		if err != nil && host != request.AnyHost && !hostname.MatchString(host) {
			return nil, refuse(host, `names or addresses without ports, separated by commas, such as "queue.example.com,10.0.0.5", or * for any`)
		}
		hosts[i] = host
	}
	return hosts, nil
}

func parseListenAddr(text string, _ *kong.Tag) (any, error) {
	host, port, err := net.SplitHostPort(text)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err == nil && host != "" && !hostname.MatchString(host) {
		_, err = netip.ParseAddr(host)
	}
	if err != nil {
		return nil, refuse(text, `an address such as "127.0.0.1:8080", "[::1]:8080", "localhost:8080", or ":8080" for every interface`)
	}
	return text, nil
}

// parseDatabaseURL accepts the URLs that the driver accepts.
func parseDatabaseURL(text string, _ *kong.Tag) (any, error) { return text, pg.CheckURL(text) }

// parseServerURL accepts the URL of a queued, maybe with a path.
func parseServerURL(text string, _ *kong.Tag) (any, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, errors.New(`got a URL that does not fit; takes one such as "http://127.0.0.1:8080", without user, query and fragment`)
	}
	return text, nil
}

// parseCells returns the base URLs of cells by their numbers.
func parseCells(text string, _ *kong.Tag) (any, error) {
	const takes = `cells, each a number from 0 to 255 and a URL without a path, separated by commas, such as "0=https://a.internal:8080,1=https://b.internal:8080"`
	cells := map[int]*url.URL{}
	for entry := range strings.SplitSeq(text, ",") {
		number, base, _ := strings.Cut(strings.TrimSpace(entry), "=")
		n, err := strconv.ParseUint(number, 10, 8)
		if err != nil {
			return nil, refuse(entry, takes)
		}
		u, err := gateway.ParseURL(base)
		if err != nil {
			return nil, fmt.Errorf("got a URL for cell %d that does not fit; takes %s", n, takes)
		}
		if cells[int(n)] != nil {
			return nil, fmt.Errorf("got cell %d twice; takes %s", n, takes)
		}
		cells[int(n)] = u
	}
	return cells, nil
}

// parseCellKeys returns keys of cells by their numbers.
func parseCellKeys(text string, tag *kong.Tag) (any, error) {
	const takes = `keys of cells, each a number from 0 to 255 and a key, separated by white space, such as "0=KEY 1=KEY"`
	keys := map[int]string{}
	for _, entry := range strings.Fields(text) {
		number, key, _ := strings.Cut(entry, "=")
		n, err := strconv.ParseUint(number, 10, 8)
		if err != nil {
			return nil, errors.New("got a value that is not shown; takes " + takes)
		}
		if _, err := parseSecret(key, tag); err != nil {
			return nil, fmt.Errorf("the key of cell %d: %w", n, err)
		}
		if keys[int(n)] != "" {
			return nil, fmt.Errorf("got a key of cell %d twice; takes %s", n, takes)
		}
		keys[int(n)] = key
	}
	if len(keys) == 0 {
		return nil, refuse("", takes)
	}
	return keys, nil
}

// parseAllowList returns the list without spaces.
func parseAllowList(text string, _ *kong.Tag) (any, error) {
	entries := strings.Split(text, ",")
	for i, entry := range entries {
		entries[i] = strings.TrimSpace(entry)
		if _, err := egress.NewGuard(entries[i : i+1]); err != nil {
			return nil, refuse(entries[i], `networks, addresses, names, or "*." and a suffix of names, separated by commas, such as "10.1.0.0/16,billing.internal": `+
				"this entry "+errors.Unwrap(err).Error())
		}
	}
	return strings.Join(entries, ","), nil
}

// parseProxyURL never shows the value, which may hold a password.
func parseProxyURL(text string, _ *kong.Tag) (any, error) {
	const takes = `a URL such as "http://proxy.internal:3128", "https://proxy.internal" or "socks5://127.0.0.1:1080", maybe with user and password, without path, query and fragment`
	if text == "" {
		return nil, refuse(text, takes)
	}
	if _, err := egress.ParseProxy(text); err != nil {
		return nil, errors.New("got a value that is not shown, as it may hold a password; takes " + takes)
	}
	return text, nil
}

var (
	urlPassword     = regexp.MustCompile(`(://)\S*@`)
	keywordPassword = regexp.MustCompile(`(?i)(password\s*=\s*)('(?:[^'\\]|\\.)*'?|\S+)`)
)

// redact removes texts that look like a password in a connection string from the text of an error. Errors should have none; this makes sure.
func redact(text string) string {
	text = urlPassword.ReplaceAllString(text, "${1}xxxxx@")
	return keywordPassword.ReplaceAllString(text, "${1}xxxxx")
}

// bound returns the value in a tag, or absent when there is no such tag. It panics when parse refuses it, a mistake in settings.go.
func bound[T any](tag *kong.Tag, name string, parse func(string) (T, error), absent T) T {
	if !tag.Has(name) {
		return absent
	}
	value, err := parse(tag.Get(name))
	if err != nil {
		panic("tag " + name + ": " + err.Error())
	}
	return value
}
