package main

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"
)

// kind is a way to write the value of a setting, which names it in its type tag and may narrow
// it with further tags. It returns the value of text, or what is wrong with text as `got …; takes …`.
type kind func(text string, tag *kong.Tag) (any, error)

var kinds = map[string]kind{
	"choice":       parseChoice,      // one of the tag choices
	"count":        parseCount,       // a whole number between the tags min and max
	"database-url": parseDatabaseURL, // never shown
	"duration":     parseDuration,    // more than nothing, or with the tag zero also nothing
	"interval":     parseInterval,    // a duration, or off, which is negative
	"listen":       parseListen,
	"path":         parsePath,
	"secret":       parseSecret, // never shown
	"size":         parseSize,   // bytes, up to the tag max
	"switch":       parseSwitch,
}

// kindOf is the kind of a setting, nil for a flag that is none.
func kindOf(value *kong.Value) kind { return kinds[value.Tag.Type] }

// maxShown bounds how much of a wrong value an error repeats.
const maxShown = 100

// refuse is the error of a value that may be shown.
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
	for _, choice := range choices {
		if strings.EqualFold(text, choice) {
			return choice, nil
		}
	}
	last := len(choices) - 1
	return nil, refuse(text, strings.Join(choices[:last], ", ")+" or "+choices[last])
}

func parseCount(text string, tag *kong.Tag) (any, error) {
	least, most := tagInt(tag, "min"), tagInt(tag, "max")
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < least || n > most {
		return nil, refuse(text, fmt.Sprintf("a whole number from %d to %d", least, most))
	}
	return n, nil
}

func parseDuration(text string, tag *kong.Tag) (any, error) {
	d, err := time.ParseDuration(text)
	most := tagDuration(tag, "max", math.MaxInt64)
	if err == nil && d <= most && (d > 0 || d == 0 && tag.Has("zero")) {
		return d, nil
	}
	takes := `a duration such as "30s", "10m" or "720h"`
	if err == nil && !tag.Has("zero") {
		takes += ", more than zero"
	}
	if tag.Has("max") {
		takes += ", up to " + tag.Get("max")
	}
	return nil, refuse(text, takes)
}

// tagDuration is the duration in a tag of a setting, or otherwise when there is no such tag.
func tagDuration(tag *kong.Tag, name string, otherwise time.Duration) time.Duration {
	if !tag.Has(name) {
		return otherwise
	}
	d, err := time.ParseDuration(tag.Get(name))
	if err != nil {
		panic(err) // the tag is this program's own
	}
	return d
}

func parseInterval(text string, tag *kong.Tag) (any, error) {
	d, err := time.ParseDuration(text)
	least := tagDuration(tag, "min", 1)
	switch {
	case strings.EqualFold(text, "off") || err == nil && d == 0:
		return time.Duration(-1), nil
	case err == nil && d >= least:
		return d, nil
	}
	takes := `a duration such as "30s" or "10m", `
	if tag.Has("min") {
		takes += "at least " + tag.Get("min") + ", "
	}
	return nil, refuse(text, takes+`or "off"`)
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
	for i := range len(text) {
		if text[i] <= ' ' || text[i] > '~' {
			return nil, errors.New("got a value that is not shown; takes " + takes)
		}
	}
	return text, nil
}

// units are the suffixes of a size. Decimal units are left out: nobody agrees on what 1 MB is.
var units = []struct {
	suffix string
	bytes  int64
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"", 1}}

func parseSize(text string, tag *kong.Tag) (any, error) {
	most := tagInt(tag, "max")
	for _, unit := range units {
		number, ok := strings.CutSuffix(text, unit.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(number), 10, 64)
		if err != nil || n < 1 || n > math.MaxInt64/unit.bytes || n*unit.bytes > most {
			break
		}
		return n * unit.bytes, nil
	}
	return nil, refuse(text, fmt.Sprintf(`a number of bytes such as "65536", "512KiB" or "4MiB", up to %s`, sizeText(most)))
}

// sizeText writes a size in its largest whole unit.
func sizeText(bytes int64) string {
	text := strconv.FormatInt(bytes, 10)
	for _, unit := range units {
		if unit.suffix != "" && bytes%unit.bytes == 0 {
			text = strconv.FormatInt(bytes/unit.bytes, 10) + unit.suffix
		}
	}
	return text
}

// hostname is RFC 1123's, with the underscore that container networks use.
var hostname = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?$`)

func parseListen(text string, _ *kong.Tag) (any, error) {
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

// tagInt is the number in a tag of the settings; a tag that holds none is a mistake in this program.
func tagInt(tag *kong.Tag, name string) int64 {
	n, err := strconv.ParseInt(tag.Get(name), 10, 64)
	if err != nil {
		panic("tag " + name + ": " + err.Error())
	}
	return n
}
