package main

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/jackc/pgx/v5/pgxpool" //nolint:depguard // it only parses here; nothing is opened
)

// kind is a way to write the value of a setting.
type kind struct {
	// parse returns the value of text, within the bounds in the setting's tags, or an error that begins with "got".
	parse       func(text string, tag *kong.Tag) (any, error)
	placeHolder string // for the value, in --help
}

// kinds are the values of the tag type.
var kinds = map[string]kind{
	"choice":       {parseChoice, ""},            // one of the tag choices
	"count":        {parseCount, "N"},            // a whole number from the tag min to max
	"database-url": {parseDatabaseURL, "URL"},    // never shown
	"duration":     {parseDuration, "DURATION"},  // from the tag min, or else more than zero, to the tag max; with the tag off also off
	"listen":       {parseListenAddr, "ADDRESS"}, // host:port
	"path":         {parsePath, "FILE"},          //
	"secret":       {parseSecret, "KEY"},         // never shown
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
	d, err := time.ParseDuration(text)
	if tag.Has("off") && (err == nil && d == 0 || strings.EqualFold(text, "off")) {
		return time.Duration(-1), nil
	}
	if err == nil && d >= bound(tag, "min", time.ParseDuration, 1) && d <= bound(tag, "max", time.ParseDuration, math.MaxInt64) {
		return d, nil
	}
	takes := `a duration such as "30s", "10m" or "720h"`
	switch {
	case tag.Has("min"):
		takes += ", at least " + tag.Get("min")
	case err == nil:
		takes += ", more than zero"
	}
	if tag.Has("max") {
		takes += ", up to " + tag.Get("max")
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

const takesDatabaseURL = `a URL such as "postgres://user:password@host:5432/database", ` +
	`or keywords such as "host=/run/postgresql dbname=queued"`

// parseDatabaseURL accepts what the driver accepts. Its errors repeat nothing of the text that may be part of a password.
func parseDatabaseURL(text string, _ *kong.Tag) (any, error) {
	if strings.TrimSpace(text) == "" {
		return nil, refuse("", takesDatabaseURL)
	}
	if hasMisplacedAt(text) {
		return nil, errors.New(`got a URL with an "@" where none belongs; in a user's name, a password or any ` +
			`other value "/" must be written as %2F, "?" as %3F, "#" as %23 and "@" as %40`)
	}
	if _, err := pgxpool.ParseConfig(text); err != nil {
		got := "got a value that is not shown, as it may hold a password; takes " + takesDatabaseURL
		_, detail, ok := strings.Cut(err.Error(), "`: ") // after the text, which the driver quotes
		if ok && !strings.HasPrefix(detail, "failed to parse as") {
			got += ": " + detail
		}
		return nil, errors.New(got)
	}
	return text, nil
}

// hasMisplacedAt reports whether a URL has an "@" that does not end the user's name and password. Then the password probably has a
// delimiter in it, and the parser would take a part of it for a host, a port or a database, which are no secrets.
func hasMisplacedAt(text string) bool {
	scheme, rest, _ := strings.Cut(text, "://")
	if scheme != "postgres" && scheme != "postgresql" {
		return false
	}
	if i := strings.IndexAny(rest, "@/?#"); i >= 0 && rest[i] == '@' {
		rest = rest[i+1:]
	}
	return strings.Contains(rest, "@")
}

var (
	urlPassword     = regexp.MustCompile(`(://)\S*@`)
	keywordPassword = regexp.MustCompile(`(?i)(password\s*=\s*)('(?:[^'\\]|\\.)*'?|\S+)`)
)

// redact removes what looks like a password in a connection string from the text of an error. Errors should have none; this makes sure.
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
