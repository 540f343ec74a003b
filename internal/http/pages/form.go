package pages

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/queued/queued/client"
	"github.com/queued/queued/internal/duration"
)

// setIf sets a parameter that has a value.
func setIf(query url.Values, name, value string) {
	if value != "" {
		query.Set(name, value)
	}
}

// duration returns a duration that was entered, such as 5m or 1d; 0: none was.
func (v *visit) duration(field string) (time.Duration, error) {
	text := v.form.Get(field)
	if text == "" {
		return 0, nil
	}
	d, err := duration.Parse(text)
	if err != nil || d < 0 {
		return 0, invalid(field, "must be a duration such as 90s, 5m or 1d")
	}
	return d, nil
}

// number returns an integer that was entered; 0: none was.
func (v *visit) number(field string, bits int) (int64, error) {
	text := v.form.Get(field)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, bits)
	if err != nil {
		return 0, invalid(field, "must be an integer")
	}
	return n, nil
}

// decimal returns a number that was entered; 0: none was. JSON has neither infinity nor what is no number.
func (v *visit) decimal(field string) (float64, error) {
	text := strings.TrimSpace(v.form.Get(field))
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(n) || math.IsInf(n, 0) {
		return 0, invalid(field, "must be a number such as 50, or 0.5")
	}
	return n, nil
}

// json returns JSON that was entered.
func (v *visit) json(field string) (json.RawMessage, error) {
	text := strings.TrimSpace(v.form.Get(field))
	if !json.Valid([]byte(text)) {
		return nil, invalid(field, `must be JSON: an object such as {"order": 17}`)
	}
	return json.RawMessage(text), nil
}

// idempotencyKey returns a key for the call that a form makes, from what was entered and the nonce in the field key: sent twice as it is, a form acts once, and
// changed it is another one. Empty: the form has no nonce.
func (v *visit) idempotencyKey() string {
	if v.form.Get("key") == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(v.form.Encode()))
	return "ui-" + hex.EncodeToString(sum[:16])
}

// invalid is the error of one field of a form.
func invalid(field, detail string) error {
	return &client.Error{Status: http.StatusBadRequest, Title: "Validation failed", Errors: []client.FieldError{{Pointer: field, Detail: detail}}}
}

// inUTC returns a time as a field for a date and a time sends it, such as 2026-11-24T09:00, as one in UTC. Any other text is for the API to judge.
func inUTC(text string) string {
	for _, layout := range []string{"2006-01-02T15:04", "2006-01-02T15:04:05"} {
		if at, err := time.Parse(layout, text); err == nil {
			return at.Format(time.RFC3339)
		}
	}
	return text
}
