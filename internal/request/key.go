package request

import (
	"regexp"
	"strings"
)

// quoted is a string of RFC 8941, section 3.3.3, and unescape reads the text between its quotes.
var (
	quoted   = regexp.MustCompile(`^"((?:[^"\\]|\\["\\])*)"$`)
	unescape = strings.NewReplacer(`\"`, `"`, `\\`, `\`)
)

// IdempotencyKey returns the key that an Idempotency-Key says: a structured field's string, in quotes, or the same without them. It reports whether the quotes are well.
func IdempotencyKey(text string) (key string, isWell bool) {
	key = strings.TrimSpace(text)
	if !strings.HasPrefix(key, `"`) {
		return key, true
	}
	between := quoted.FindStringSubmatch(key)
	if between == nil {
		return "", false
	}
	return unescape.Replace(between[1]), true
}
