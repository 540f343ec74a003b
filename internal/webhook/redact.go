package webhook

import (
	"regexp"
	"strings"
	"unicode"

	"github.com/queued/queued/internal/deliverylog"
)

// redacted is in the place of what looks like a secret.
const redacted = "[redacted]"

// secretName matches names of fields whose values nobody should see in a log.
const secretName = `(?:token|secret|passw|pwd|api[-_]?key|access[-_]?key|private[-_]?key|authorization|credential|signature|session|cookie)`

var (
	// A member of a JSON object whose name has such a word, with its value: a string, which the end of the text may cut; a number or word; or an array or
	// object, with all that follows it.
	secretMember = regexp.MustCompile(`(?i)("[^"\\]*` + secretName + `[^"\\]*"\s*:\s*)(?:"(?:[^"\\]|\\.)*(?:"|\\?$)|[{\[].*|[^"\s{\[,}\]]+)`)
	// A field of a form.
	secretField = regexp.MustCompile(`(?i)((?:^|&)[^=&]*` + secretName + `[^=&]*=)[^&]*`)
	// Bearer tokens, keys of the well-known forms, and tokens of JWT, wherever they are.
	secretText = regexp.MustCompile(`(?i)\bbearer\s+[A-Za-z0-9._~+/=-]+|\b(?:sk|pk|rk|whsec|ghp|gho|xox[a-z])[-_][A-Za-z0-9_-]{8,}|\bqk_[A-Za-z0-9]+|\beyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_.-]+`)
)

// Redact returns the first KiB of the body of a refused delivery as it may be shown: in UTF-8 and on one line, without the values of fields that are named like secrets.
func Redact(body []byte) string {
	text := deliverylog.Text(body, deliverylog.MaxBody)
	text = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, text)
	text = secretMember.ReplaceAllString(text, `${1}"`+redacted+`"`)
	if !strings.HasPrefix(strings.TrimSpace(text), "{") && !strings.HasPrefix(strings.TrimSpace(text), "[") {
		text = secretField.ReplaceAllString(text, `${1}`+redacted)
	}
	return deliverylog.Text(secretText.ReplaceAllString(text, redacted), deliverylog.MaxBody)
}
