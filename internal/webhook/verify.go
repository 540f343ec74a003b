package webhook

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// A Kind is a way in which senders prove who they are.
type Kind string

// The kinds of senders.
const (
	Slack       Kind = "slack"       // https://docs.slack.dev/authentication/verifying-requests-from-slack/
	GitHub      Kind = "github"      // https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries
	Stripe      Kind = "stripe"      // https://docs.stripe.com/webhooks#verify-manually
	Standard    Kind = "standard"    // https://www.standardwebhooks.com, and Svix, whose headers have other names
	HMAC        Kind = "hmac"        // an HMAC in a header, as Signature says
	Token       Kind = "token"       // a secret in a header
	Basic       Kind = "basic"       // the password of HTTP Basic; any user
	CloudEvents Kind = "cloudevents" // a secret as a bearer token: https://github.com/cloudevents/spec/blob/main/cloudevents/http-webhook.md
)

// Kinds are all kinds.
var Kinds = []Kind{Slack, GitHub, Stripe, Standard, HMAC, Token, Basic, CloudEvents}

// DefaultTolerance is how far the timestamp of a signature may be from now, before and after.
const DefaultTolerance = 5 * time.Minute

// A Verifier verifies the deliveries of one sender.
type Verifier struct {
	Kind      Kind
	Secrets   []string      // 1 or more; any of them may have signed
	Tolerance time.Duration // zero: DefaultTolerance
	Signature Signature     // of kind HMAC
	Header    string        // of kind Token: the field that has the secret; empty: Authorization, with or without "Bearer "
}

// Signature says where a signature is, and which bytes it signs.
type Signature struct {
	Header    string `json:"header"`              // the field that has it
	Algorithm string `json:"algorithm,omitempty"` // sha256, the default, or sha512
	Encoding  string `json:"encoding,omitempty"`  // hex, the default, or base64
	Prefix    string `json:"prefix,omitempty"`    // the text before it, such as "sha256="
	// Timestamp is the field with the seconds since 1970 at which it was signed. The signed bytes are then the timestamp, a point and the body;
	// without it, the body.
	Timestamp string `json:"timestamp,omitempty"`
}

// A Refusal is why a delivery is not proven to be from its sender. Its text names no secret and nothing of the body.
type Refusal struct {
	Code   string // the code to count it under
	Reason string
}

// The codes of refusals.
const (
	HeaderMissing   = "header_missing"
	HeaderMalformed = "header_malformed" // or sent more than once
	TooOld          = "timestamp_too_old"
	InFuture        = "timestamp_in_future"
	NoMatch         = "signature_mismatch" // also of tokens and passwords
)

// Error implements error.
func (r *Refusal) Error() string { return r.Reason }

func refuse(code, format string, args ...any) error {
	return &Refusal{code, fmt.Sprintf(format, args...)}
}

// errNoMatch is why a signature that can be read is refused.
var errNoMatch = &Refusal{NoMatch, "the signature is not that of the body under any secret of the source"}

// ProofField returns the header field that has the secret itself, not a signature; empty: none has.
func (v *Verifier) ProofField() string {
	switch {
	case v.Kind == Token && v.Header != "":
		return http.CanonicalHeaderKey(v.Header)
	case v.Kind == Token, v.Kind == Basic, v.Kind == CloudEvents:
		return "Authorization"
	}
	return ""
}

// CredentialFields are the header fields that have secrets, whatever a source is: of proxies, of callers, of browsers.
var CredentialFields = []string{"Authorization", "Proxy-Authorization", "Cookie"}

// checkBearer returns why a secret can be the value of no header field.
func (v *Verifier) checkBearer(secret string) error {
	isControl := func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }
	switch scheme, _, isTwo := strings.Cut(secret, " "); {
	case strings.Trim(secret, " \t") != secret:
		return errors.New("must not begin or end with a blank: a header field cannot")
	case strings.ContainsFunc(secret, isControl):
		return errors.New("must not have control characters: a header field cannot")
	case isTwo && strings.EqualFold(scheme, "Bearer") && v.ProofField() == "Authorization":
		return errors.New("must be given without Bearer, with which it may be sent")
	}
	return nil
}

// isReadable reports whether a delivery can have a header field with this name: net/http takes some out of the header.
func isReadable(name string) bool {
	switch http.CanonicalHeaderKey(name) {
	case "Host", "Trailer", "Transfer-Encoding":
		return false
	}
	return IsFieldName(name)
}

// Check returns the first defect of the verifier, and its field: secrets, signature or header. No error: empty.
func (v *Verifier) Check() (field, detail string) {
	if len(v.Secrets) == 0 {
		return "secrets", "must have 1 to 5 elements"
	}
	for _, secret := range v.Secrets {
		if secret == "" {
			return "secrets", "must not be empty"
		}
		var err error
		switch v.Kind {
		case Standard:
			_, err = standardKey(secret)
		case Token, CloudEvents:
			err = v.checkBearer(secret)
		}
		if err != nil {
			return "secrets", err.Error()
		}
	}
	switch {
	case v.Kind != HMAC && v.Signature != Signature{}:
		return "signature", "is for the kind hmac only"
	case v.Kind == HMAC && v.Signature.Header == "":
		return "signature", "must name the header that has the signature"
	case v.Kind == HMAC && (!isReadable(v.Signature.Header) || v.Signature.Timestamp != "" && !isReadable(v.Signature.Timestamp)):
		return "signature", "must have names of header fields in header and timestamp"
	case v.Kind == HMAC && strings.EqualFold(v.Signature.Header, v.Signature.Timestamp):
		return "signature", "must have different fields in header and timestamp"
	case v.Kind == HMAC && v.Signature.newHash() == nil:
		return "signature", "must have the algorithm sha256 or sha512"
	case v.Kind == HMAC && v.Signature.decoder() == nil:
		return "signature", "must have the encoding hex or base64"
	case v.Kind != Token && v.Header != "":
		return "header", "is for the kind token only"
	case v.Header != "" && !isReadable(v.Header):
		return "header", "must be the name of a header field"
	}
	return "", ""
}

// Verify returns nil if body came, with this header, from somebody who has one of the secrets, and did so about now; else a *Refusal.
func (v *Verifier) Verify(header http.Header, body []byte, now time.Time) error {
	signed, err := v.verifyHeader(header, now)
	if err == nil && signed != nil && !signed(body) {
		return errNoMatch
	}
	return err
}

// VerifyHeader verifies a header before the body is there: all that there is if the secret itself is in it (isProven is true), else that there is
// a signature which can be read, and that it was made about now. It fails with a *Refusal.
func (v *Verifier) VerifyHeader(header http.Header, now time.Time) (isProven bool, err error) {
	signed, err := v.verifyHeader(header, now)
	return err == nil && signed == nil, err
}

// verifyHeader returns a function that reports whether a body is the one that was signed; nil if the header has proved it without.
func (v *Verifier) verifyHeader(header http.Header, now time.Time) (signed func(body []byte) bool, err error) {
	switch v.Kind {
	case Slack:
		return v.readSlack(header, now)
	case GitHub:
		return v.readMAC(header, "X-Hub-Signature-256", "sha256=", sha256.New, hex.DecodeString, "")
	case Stripe:
		return v.readStripe(header, now)
	case Standard:
		return v.readStandard(header, now)
	case HMAC:
		return v.readHMAC(header, now)
	case Token:
		return nil, v.verifyToken(header)
	case Basic:
		text, err := one(header, "Authorization")
		if err != nil {
			return nil, err
		}
		_, password, ok := (&http.Request{Header: http.Header{"Authorization": {text}}}).BasicAuth()
		if !ok {
			return nil, refuse(HeaderMalformed, "Authorization: must be of HTTP Basic")
		}
		return nil, v.compare("Authorization", password)
	case CloudEvents:
		return nil, v.verifyToken(header)
	}
	return nil, refuse(HeaderMalformed, "no such kind of source: %s", v.Kind)
}

// one returns the one value of a field. Two could each be taken for the one by somebody.
func one(header http.Header, name string) (string, error) {
	switch values := header.Values(name); {
	case len(values) == 0 || values[0] == "":
		return "", refuse(HeaderMissing, "%s: is missing", name)
	case len(values) > 1:
		return "", refuse(HeaderMalformed, "%s: must be sent once", name)
	default:
		return values[0], nil
	}
}

// checkTime makes sure that a timestamp, in seconds since 1970, is about now.
func (v *Verifier) checkTime(name, text string, now time.Time) error {
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil || strings.HasPrefix(text, "+") {
		return refuse(HeaderMalformed, "%s: must be a time in seconds since 1970", name)
	}
	tolerance := v.Tolerance
	if tolerance == 0 {
		tolerance = DefaultTolerance
	}
	// Whole seconds, as senders count. The difference of two int64 of seconds may overflow a Duration.
	limit, since := int64(tolerance/time.Second), now.Unix()
	switch {
	case seconds < since-limit:
		return refuse(TooOld, "%s: is too old: more than %s ago by this server's clock", name, tolerance)
	case seconds > since+limit:
		return refuse(InFuture, "%s: is in the future: more than %s ahead by this server's clock", name, tolerance)
	}
	return nil
}

// mac returns the MAC of a text before the body and the body, which is not copied.
func mac(newHash func() hash.Hash, secret, before string, body ...byte) []byte {
	h := hmac.New(newHash, []byte(secret))
	_, _ = h.Write([]byte(before))
	_, _ = h.Write(body)
	return h.Sum(nil)
}

// matches reports whether got is the MAC under one of the secrets.
func (v *Verifier) matches(newHash func() hash.Hash, got []byte, before string, body []byte) bool {
	matched := 0
	for _, secret := range v.Secrets {
		if secret != "" {
			matched |= subtle.ConstantTimeCompare(got, mac(newHash, secret, before, body...))
		}
	}
	return matched == 1
}

func (v *Verifier) readSlack(header http.Header, now time.Time) (signed func(body []byte) bool, err error) {
	at, err := one(header, "X-Slack-Request-Timestamp")
	if err != nil {
		return nil, err
	}
	if err := v.checkTime("X-Slack-Request-Timestamp", at, now); err != nil {
		return nil, err
	}
	return v.readMAC(header, "X-Slack-Signature", "v0=", sha256.New, hex.DecodeString, "v0:"+at+":")
}

// readMAC reads the signature in a field, behind prefix. The signed bytes have the text before in front of the body.
func (v *Verifier) readMAC(
	header http.Header, name, prefix string, newHash func() hash.Hash, decode func(string) ([]byte, error), before string,
) (signed func(body []byte) bool, err error) {
	text, err := one(header, name)
	if err != nil {
		return nil, err
	}
	text, ok := strings.CutPrefix(text, prefix)
	if !ok {
		return nil, refuse(HeaderMalformed, "%s: must begin with %s", name, prefix)
	}
	got, err := decode(text)
	if err != nil || len(got) != newHash().Size() {
		return nil, refuse(HeaderMalformed, "%s: is not a signature of %d bytes, encoded as the source says", name, newHash().Size())
	}
	return func(body []byte) bool { return v.matches(newHash, got, before, body) }, nil
}

func (v *Verifier) readStripe(header http.Header, now time.Time) (signed func(body []byte) bool, err error) {
	const name = "Stripe-Signature"
	text, err := one(header, name)
	if err != nil {
		return nil, err
	}
	var at string
	var signatures [][]byte
	for item := range strings.SplitSeq(text, ",") {
		switch key, value, _ := strings.Cut(item, "="); key {
		case "t":
			if at != "" {
				return nil, refuse(HeaderMalformed, "%s: must have t once", name)
			}
			at = value
		case "v1": // other schemes, and unreadable signatures, may stand beside it
			if signature, err := hex.DecodeString(value); err == nil && len(signatures) < maxSignatures {
				signatures = append(signatures, signature)
			}
		}
	}
	if err := v.checkTime(name, at, now); err != nil {
		return nil, err
	}
	if len(signatures) == 0 {
		return nil, refuse(HeaderMalformed, "%s: has no signature of the scheme v1", name)
	}
	return func(body []byte) bool {
		for _, signature := range signatures {
			if v.matches(sha256.New, signature, at+".", body) {
				return true
			}
		}
		return false
	}, nil
}

// maxSignatures is how many signatures of one delivery are looked at. Senders send one for each live secret.
const maxSignatures = 10

// minStandardKey is the length of a symmetric key, in bytes, below which it can be guessed. Standard Webhooks says 24 to 64, which not all senders keep.
const minStandardKey = 16

// standardKey returns the key of a secret as Standard Webhooks writes it: "whsec_" and the base64 of a symmetric key, or "whpk_" and that of a
// public key of ed25519.
func standardKey(secret string) (key []byte, err error) {
	text, isPublic := strings.CutPrefix(secret, "whpk_")
	text = strings.TrimRight(strings.TrimPrefix(text, "whsec_"), "=")
	key, err = base64.RawStdEncoding.DecodeString(text)
	switch {
	case err != nil:
		return nil, errors.New(`must be base64, behind "whsec_", or "whpk_" for a public key`)
	case !isPublic && len(key) < minStandardKey:
		return nil, fmt.Errorf("must be the base64 of at least %d bytes, not of %d; Standard Webhooks says 24 to 64", minStandardKey, len(key))
	case isPublic && len(key) != ed25519.PublicKeySize:
		return nil, fmt.Errorf("must be a public key of %d bytes, not %d", ed25519.PublicKeySize, len(key))
	}
	return key, nil
}

func (v *Verifier) readStandard(header http.Header, now time.Time) (signed func(body []byte) bool, err error) {
	prefix := "Webhook-"
	if len(header.Values("Webhook-Id")) == 0 && len(header.Values("Svix-Id")) > 0 {
		prefix = "Svix-"
	}
	var values [3]string
	for i, name := range []string{"Id", "Timestamp", "Signature"} {
		value, err := one(header, prefix+name)
		if err != nil {
			return nil, err
		}
		values[i] = value
	}
	if err := v.checkTime(prefix+"Timestamp", values[1], now); err != nil {
		return nil, err
	}
	type scheme struct {
		name  string
		bytes []byte
	}
	var signatures []scheme
	for item := range strings.FieldsSeq(values[2]) {
		name, text, _ := strings.Cut(item, ",")
		if bytes, err := base64.StdEncoding.DecodeString(text); err == nil && (name == "v1" || name == "v1a") && len(signatures) < maxSignatures {
			signatures = append(signatures, scheme{name, bytes})
		}
	}
	if len(signatures) == 0 {
		return nil, errNoMatch
	}
	before := values[0] + "." + values[1] + "."
	return func(body []byte) bool {
		for _, signature := range signatures {
			for _, secret := range v.Secrets {
				key, err := standardKey(secret)
				isPublic := strings.HasPrefix(secret, "whpk_")
				switch {
				case err != nil:
				case signature.name == "v1" && !isPublic && hmac.Equal(signature.bytes, mac(sha256.New, string(key), before, body...)),
					signature.name == "v1a" && isPublic && ed25519.Verify(key, append([]byte(before), body...), signature.bytes):
					return true
				}
			}
		}
		return false
	}, nil
}

func (s *Signature) newHash() func() hash.Hash {
	switch s.Algorithm {
	case "", "sha256":
		return sha256.New
	case "sha512":
		return sha512.New
	}
	return nil
}

// decoder returns how the text of a signature is decoded, nil if there is no such encoding.
func (s *Signature) decoder() func(string) ([]byte, error) {
	switch s.Encoding {
	case "", "hex":
		return hex.DecodeString
	case "base64":
		return base64.StdEncoding.DecodeString
	}
	return nil
}

func (v *Verifier) readHMAC(header http.Header, now time.Time) (signed func(body []byte) bool, err error) {
	s, before := &v.Signature, ""
	if s.Timestamp != "" {
		at, err := one(header, s.Timestamp)
		if err != nil {
			return nil, err
		}
		if err := v.checkTime(s.Timestamp, at, now); err != nil {
			return nil, err
		}
		before = at + "."
	}
	return v.readMAC(header, s.Header, s.Prefix, s.newHash(), s.decoder(), before)
}

func (v *Verifier) verifyToken(header http.Header) error {
	name := v.Header
	if name == "" {
		name = "Authorization"
	}
	token, err := one(header, name)
	if err != nil {
		return err
	}
	if scheme, rest, ok := strings.Cut(token, " "); ok && strings.EqualFold(scheme, "Bearer") && http.CanonicalHeaderKey(name) == "Authorization" {
		token = strings.TrimLeft(rest, " ")
	}
	return v.compare(name, token)
}

// compare makes sure that a field has one of the secrets, in a time that tells nothing of them.
func (v *Verifier) compare(name, got string) error {
	matched, given := 0, sha256.Sum256([]byte(got))
	for _, secret := range v.Secrets {
		if want := sha256.Sum256([]byte(secret)); secret != "" {
			matched |= subtle.ConstantTimeCompare(given[:], want[:])
		}
	}
	if matched != 1 {
		return refuse(NoMatch, "%s: has none of the secrets of the source", name)
	}
	return nil
}
