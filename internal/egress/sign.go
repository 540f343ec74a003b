package egress

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// The sizes of secrets that webhooks are signed with, in bytes: those of https://www.standardwebhooks.com.
const (
	MinSecret = 24
	MaxSecret = 64

	secretPrefix = "whsec_"
	maxSecrets   = 10 // that sign at a time
)

// NewSecret returns a new secret: "whsec_" and the base64 of 32 random bytes.
func NewSecret() string {
	secret := make([]byte, 32)
	_, _ = rand.Read(secret) // never fails: it ends the program instead
	return secretPrefix + base64.StdEncoding.EncodeToString(secret)
}

// A Signer signs webhooks as https://www.standardwebhooks.com says: with one signature of version v1 for each secret that is live, so that
// receivers can change to a new one when they want. It may be used by several goroutines at a time.
type Signer struct{ keys [][]byte }

// NewSigner returns a signer with 1 to 10 secrets such as NewSecret makes. Verifiers look at no more signatures.
func NewSigner(secrets ...string) (*Signer, error) {
	if len(secrets) == 0 || len(secrets) > maxSecrets {
		return nil, fmt.Errorf("there must be 1 to %d secrets, not %d", maxSecrets, len(secrets))
	}
	s := new(Signer)
	for i, secret := range secrets {
		text, hasPrefix := strings.CutPrefix(secret, secretPrefix)
		if !hasPrefix {
			return nil, fmt.Errorf("secret %d: must begin with %s", i+1, secretPrefix)
		}
		key, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(text, "="))
		switch {
		case err != nil: // which is not told: it has the place of a letter
			return nil, fmt.Errorf("secret %d: must be base64, behind %q", i+1, secretPrefix)
		case len(key) < MinSecret || len(key) > MaxSecret:
			return nil, fmt.Errorf("secret %d: must have %d to %d bytes, not %d", i+1, MinSecret, MaxSecret, len(key))
		}
		s.keys = append(s.keys, key)
	}
	return s, nil
}

// errWebhookID is why an id cannot be signed.
var errWebhookID = errors.New("the id of a webhook must be visible ASCII characters without a point")

// Sign sets the fields Webhook-Id, Webhook-Timestamp and Webhook-Signature of a request with this very body. The id is that of the event, the same whenever it is sent
// again; the time is that of sending. It fails only for an id that has a point, which would make the signed text ambiguous, or that fits no header.
func (s *Signer) Sign(header http.Header, id string, at time.Time, body []byte) error {
	if id == "" || strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r > '~' || r == '.' }) {
		return errWebhookID
	}
	seconds := strconv.FormatInt(at.Unix(), 10)
	prefix := []byte(id + "." + seconds + ".")
	var signatures []byte
	for i, key := range s.keys {
		h := hmac.New(sha256.New, key)
		_, _ = h.Write(prefix)
		_, _ = h.Write(body)
		if i > 0 {
			signatures = append(signatures, ' ')
		}
		signatures = append(signatures, "v1,"...)
		signatures = base64.StdEncoding.AppendEncode(signatures, h.Sum(nil))
	}
	header.Set("Webhook-Id", id)
	header.Set("Webhook-Timestamp", seconds)
	header.Set("Webhook-Signature", string(signatures))
	return nil
}
