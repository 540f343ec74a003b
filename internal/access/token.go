package access

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// Bounds of tokens for streams.
const (
	DefaultTokenTime = 5 * time.Minute
	MaxTokenTime     = time.Hour
	MaxTokenLength   = 8 << 10 // of the text; servers and proxies take no longer URLs for sure
)

// tokenPrefix begins the text of a token. The signed part follows, and the signature, in base64url.
const tokenPrefix = "qt_"

// A token is the part that is signed: whose key has signed it, which topics it may read, and until when.
type token struct {
	Key    string          `json:"k,omitempty"`
	Topics []string        `json:"t"`
	Match  json.RawMessage `json:"m,omitempty"`
	Until  int64           `json:"e"` // Unix time
}

// SignToken returns a token with which streams of these topics can be opened, instead of the key whose text this is, for a time. It is signed with the key's
// text, which is empty where callers need none: nothing at rest can sign, and the token ends with the key. It fails with an *InvalidError for one
// that would be too long. The caller has checked that g may read the topics.
func (s *Service) SignToken(g *Grant, text string, topics []string, match json.RawMessage, lasts time.Duration) (signed string, until time.Time, err error) {
	until = s.now().Add(lasts).Truncate(time.Second)
	body, err := json.Marshal(token{Key: g.KeyID, Topics: topics, Match: match, Until: until.Unix()})
	if err != nil {
		return "", time.Time{}, &InvalidError{Field: "match", Detail: "must be JSON"}
	}
	signer := g.signer
	if g.KeyID != "" {
		signer = signerOf(text)
	}
	signed = tokenPrefix + base64.RawURLEncoding.EncodeToString(body) + "." + base64.RawURLEncoding.EncodeToString(ed25519.Sign(signer, body))
	if len(signed) > MaxTokenLength {
		return "", time.Time{}, &InvalidError{Field: "match", Detail: fmt.Sprintf("makes, with the topics, a token of %d bytes; the most are %d", len(signed), MaxTokenLength)}
	}
	return signed, until.UTC(), nil
}

// AuthenticateToken returns the rights of the bearer of a token: to read its topics, no longer than its key may. It fails with ErrUnauthorized, ErrExpired and ErrRevoked.
func (s *Service) AuthenticateToken(text string) (*Grant, error) {
	bodyText, signatureText, _ := strings.Cut(strings.TrimPrefix(text, tokenPrefix), ".")
	body, err := base64.RawURLEncoding.Strict().DecodeString(bodyText)
	signature, err2 := base64.RawURLEncoding.Strict().DecodeString(signatureText)
	var t token
	if err != nil || err2 != nil || len(text) > MaxTokenLength || !strings.HasPrefix(text, tokenPrefix) || json.Unmarshal(body, &t) != nil {
		return nil, ErrUnauthorized
	}
	for _, v := range s.verifiersOf(t.Key) {
		if len(v.key) != ed25519.PublicKeySize || !ed25519.Verify(v.key, body, signature) {
			continue
		}
		now, until := s.now(), time.Unix(t.Until, 0)
		if v.of != nil {
			if err := v.of.liveAt(v.grant, now); err != nil {
				return nil, err
			}
		}
		switch {
		case v.grant.IsOpen && s.IsRequired(), !v.grant.Has(Read), !v.grant.AllowsTopics(t.Topics):
			return nil, ErrUnauthorized
		case !now.Before(until):
			return nil, ErrExpired
		case until.After(now.Add(MaxTokenTime + time.Minute)): // signed by the key's bearer, not by a server; the minute is for clocks that differ
			return nil, ErrUnauthorized
		}
		g := *v.grant
		g.scopes, g.queues, g.topics, g.match = []Scope{Read}, []string{}, t.Topics, t.Match
		g.IsOpen, g.signer = false, nil
		if g.until.IsZero() || until.Before(g.until) {
			g.until = endAt(until)
		}
		if g.ended == nil {
			g.ended = s.neverDone
		}
		return &g, nil
	}
	return nil, ErrUnauthorized
}

// A verifier verifies tokens signed in the name of a grant.
type verifier struct {
	key   ed25519.PublicKey
	grant *Grant
	of    *cachedKey // nil: of none
}

// verifiersOf returns the verifiers of signatures of the key of this id; empty: of callers without one, or of the key in the configuration.
func (s *Service) verifiersOf(id string) (all []verifier) {
	if id == "" {
		for _, g := range []*Grant{s.configured, s.open} {
			if g != nil {
				all = append(all, verifier{g.signer.Public().(ed25519.PublicKey), g, nil})
			}
		}
		return all
	}
	if k := s.keys.Load().byID[id]; k != nil {
		all = append(all, verifier{k.Verifier, k.current, k})
		if k.previous != nil {
			all = append(all, verifier{k.PreviousVerifier, k.previous, k})
		}
	}
	return all
}
