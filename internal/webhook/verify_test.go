package webhook

import (
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/queued/queued/internal/egress"
)

// A vector is one case of testdata: signatures that the senders have published, or that follow from what they say.
type vector struct {
	Name, Secret, Body, Signature, Header, Timestamp, ID string
	Now                                                  int64
	Valid                                                bool
}

// vectors returns the cases of a file, with the rest of it.
func vectors(t *testing.T, name string, rest any) []vector {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Cases []vector }
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	if rest != nil {
		if err := json.Unmarshal(text, rest); err != nil {
			t.Fatal(err)
		}
	}
	if len(file.Cases) < 10 {
		t.Fatalf("%s has %d cases, want more", name, len(file.Cases))
	}
	return file.Cases
}

// headerOf returns a header of names and values in turn. A value that is empty is not sent.
func headerOf(fields ...string) http.Header {
	header := make(http.Header)
	for i := 0; i < len(fields); i += 2 {
		if fields[i+1] != "" {
			header.Add(fields[i], fields[i+1])
		}
	}
	return header
}

func TestSignaturesOfSendersAreVerified(t *testing.T) {
	t.Parallel()
	for name, header := range map[Kind]func(v vector) http.Header{
		Slack: func(v vector) http.Header {
			return headerOf("X-Slack-Request-Timestamp", v.Timestamp, "X-Slack-Signature", v.Signature)
		},
		GitHub: func(v vector) http.Header {
			if strings.HasPrefix(v.Signature, "sha1=") {
				return headerOf("X-Hub-Signature", v.Signature)
			}
			return headerOf("X-Hub-Signature-256", v.Signature)
		},
		Stripe: func(v vector) http.Header { return headerOf("Stripe-Signature", v.Header) },
		Standard: func(v vector) http.Header {
			return headerOf("Webhook-Id", v.ID, "Webhook-Timestamp", v.Timestamp, "Webhook-Signature", v.Signature)
		},
	} {
		file := map[Kind]string{Standard: "standard-webhooks"}[name]
		if file == "" {
			file = string(name)
		}
		for _, v := range vectors(t, file, nil) {
			t.Run(string(name)+"/"+v.Name, func(t *testing.T) {
				t.Parallel()
				verifier := Verifier{Kind: name, Secrets: []string{v.Secret}}
				err := verifier.Verify(header(v), []byte(v.Body), time.Unix(v.Now, 0))
				if (err == nil) != v.Valid {
					t.Errorf("got %v, want it to be valid: %v", err, v.Valid)
				}
				if err != nil && v.Secret != "" && strings.Contains(err.Error(), v.Secret) {
					t.Errorf("the refusal tells the secret: %v", err)
				}
			})
		}
	}
}

func TestStripeTimestampFromTheFutureIsRefused(t *testing.T) {
	t.Parallel()
	v := vectors(t, "stripe", nil)[0]
	verifier := Verifier{Kind: Stripe, Secrets: []string{v.Secret}}
	header := headerOf("Stripe-Signature", v.Header)
	for now, valid := range map[int64]bool{v.Now - 300: true, v.Now - 301: false, v.Now + 300: true, v.Now + 301: false} {
		if err := verifier.Verify(header, []byte(v.Body), time.Unix(now, 0)); (err == nil) != valid {
			t.Errorf("at %d: %v", now-v.Now, err)
		}
	}
}

func TestStandardWebhooksWithAPublicKeyAreVerified(t *testing.T) {
	t.Parallel()
	var rest struct {
		V1a struct {
			PublicKey string `json:"public_key_b64"`
			ID        string
			Timestamp string
			Body      string
			Signature string
		} `json:"v1a_ed25519"`
		Refused []string `json:"reject_secrets_at_config"`
	}
	vectors(t, "standard-webhooks", &rest)
	v := rest.V1a
	at, err := strconv.ParseInt(v.Timestamp, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	verifier := Verifier{Kind: Standard, Secrets: []string{"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whpk_" + v.PublicKey}}
	if field, detail := verifier.Check(); field != "" {
		t.Errorf("%s %s", field, detail)
	}
	header := headerOf("Svix-Id", v.ID, "Svix-Timestamp", v.Timestamp, "Svix-Signature", "v1,AAAA "+v.Signature)
	if err := verifier.Verify(header, []byte(v.Body), time.Unix(at, 0)); err != nil {
		t.Error(err)
	}
	if err := verifier.Verify(header, []byte(v.Body+" "), time.Unix(at, 0)); err == nil {
		t.Error("another body is taken")
	}
	for _, secret := range append(rest.Refused, "whpk_"+base64.StdEncoding.EncodeToString(make([]byte, ed25519.PublicKeySize-1)), "whsec_*",
		"whsec_"+base64.StdEncoding.EncodeToString(make([]byte, 15))) {
		if field, _ := (&Verifier{Kind: Standard, Secrets: []string{secret}}).Check(); field != "secrets" {
			t.Errorf("the secret %q is taken", secret)
		}
	}
	if field, detail := (&Verifier{Kind: Standard, Secrets: []string{"whsec_" + base64.StdEncoding.EncodeToString(make([]byte, 16))}}).Check(); field != "" {
		t.Errorf("a secret of 16 bytes: %s %s", field, detail)
	}
}

func TestSecondAuthorizationIsRefused(t *testing.T) {
	t.Parallel()
	for kind, value := range map[Kind]string{Basic: "Basic " + base64.StdEncoding.EncodeToString([]byte("any:s")), Token: "s", CloudEvents: "Bearer s"} {
		verifier := Verifier{Kind: kind, Secrets: []string{"s"}}
		if err := verifier.Verify(headerOf("Authorization", value), nil, time.Time{}); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		for code, header := range map[string]http.Header{HeaderMalformed: headerOf("Authorization", value, "Authorization", "Bearer x"), HeaderMissing: {}} {
			err := verifier.Verify(header, nil, time.Time{})
			if refusal, ok := errors.AsType[*Refusal](err); !ok || refusal.Code != code {
				t.Errorf("%s: got %v, want %s", kind, err, code)
			}
		}
	}
}

func TestPublicKeyIsNoSecretOfAMAC(t *testing.T) {
	t.Parallel()
	public := base64.StdEncoding.EncodeToString(make([]byte, ed25519.PublicKeySize))
	verifier := Verifier{Kind: Standard, Secrets: []string{"whpk_" + public}}
	now := time.Unix(1_700_000_000, 0)
	signature := base64.StdEncoding.EncodeToString(mac(sha256.New, string(make([]byte, ed25519.PublicKeySize)), "id.1700000000.{}"))
	header := headerOf("Webhook-Id", "id", "Webhook-Timestamp", "1700000000", "Webhook-Signature", "v1,"+signature)
	if err := verifier.Verify(header, []byte("{}"), now); err == nil {
		t.Error("who knows the public key can sign")
	}
}

func TestSignatureOfAnySenderIsVerified(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_700_000_000, 0)
	for name, c := range map[string]struct {
		verifier Verifier
		header   http.Header
		valid    bool
	}{
		"hex": {
			Verifier{Kind: HMAC, Signature: Signature{Header: "X-Sig", Prefix: "sha256="}},
			headerOf("X-Sig", "sha256="+hex.EncodeToString(mac(sha256.New, "s", "{}"))), true,
		},
		"hex in capitals": {
			Verifier{Kind: HMAC, Signature: Signature{Header: "x-sig"}},
			headerOf("X-Sig", strings.ToUpper(hex.EncodeToString(mac(sha256.New, "s", "{}")))), true,
		},
		"sha512 with a timestamp": {
			Verifier{Kind: HMAC, Signature: Signature{Header: "X-Sig", Algorithm: "sha512", Encoding: "base64", Timestamp: "X-At"}},
			headerOf("X-Sig", base64.StdEncoding.EncodeToString(mac(sha512.New, "s", "1700000100.{}")), "X-At", "1700000100"), true,
		},
		"an old timestamp": {
			Verifier{Kind: HMAC, Signature: Signature{Header: "X-Sig", Timestamp: "X-At"}},
			headerOf("X-Sig", hex.EncodeToString(mac(sha256.New, "s", "1699999000.{}")), "X-At", "1699999000"), false,
		},
		"an old timestamp that is tolerated": {
			Verifier{Kind: HMAC, Tolerance: time.Hour, Signature: Signature{Header: "X-Sig", Timestamp: "X-At"}},
			headerOf("X-Sig", hex.EncodeToString(mac(sha256.New, "s", "1699999000.{}")), "X-At", "1699999000"), true,
		},
		"no timestamp": {
			Verifier{Kind: HMAC, Signature: Signature{Header: "X-Sig", Timestamp: "X-At"}},
			headerOf("X-Sig", hex.EncodeToString(mac(sha256.New, "s", "{}"))), false,
		},
		"sha256 where sha512 is wanted": {
			Verifier{Kind: HMAC, Signature: Signature{Header: "X-Sig", Algorithm: "sha512"}},
			headerOf("X-Sig", hex.EncodeToString(mac(sha256.New, "s", "{}"))), false,
		},
		"two signatures": {
			Verifier{Kind: HMAC, Signature: Signature{Header: "X-Sig"}},
			headerOf("X-Sig", hex.EncodeToString(mac(sha256.New, "s", "{}")), "X-Sig", "00"), false,
		},
		"a token":                      {Verifier{Kind: Token, Header: "X-Token"}, headerOf("X-Token", "s"), true},
		"a bearer token":               {Verifier{Kind: Token}, headerOf("Authorization", "bearer s"), true},
		"a wrong token":                {Verifier{Kind: Token}, headerOf("Authorization", "Bearer t"), false},
		"a token of another field":     {Verifier{Kind: Token, Header: "X-Token"}, headerOf("X-Token", "Bearer s"), false},
		"no token":                     {Verifier{Kind: Token}, nil, false},
		"a password":                   {Verifier{Kind: Basic}, headerOf("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte("u:s"))), true},
		"a wrong password":             {Verifier{Kind: Basic}, headerOf("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte("s:u"))), false},
		"no password":                  {Verifier{Kind: Basic}, headerOf("Authorization", "Bearer s"), false},
		"a token of CloudEvents":       {Verifier{Kind: CloudEvents}, headerOf("Authorization", "Bearer s"), true},
		"no such kind":                 {Verifier{Kind: "sms"}, headerOf("Authorization", "Bearer s"), false},
		"two timestamps of Slack":      {Verifier{Kind: Slack}, headerOf("X-Slack-Request-Timestamp", "1700000000", "X-Slack-Request-Timestamp", "1700000000"), false},
		"a timestamp beyond int64":     {Verifier{Kind: Slack}, headerOf("X-Slack-Request-Timestamp", "99999999999999999999"), false},
		"the least timestamp":          {Verifier{Kind: Slack}, headerOf("X-Slack-Request-Timestamp", "-9223372036854775808"), false},
		"two timestamps of Stripe":     {Verifier{Kind: Stripe}, headerOf("Stripe-Signature", "t=1700000000,t=1700000000,v1="+hex.EncodeToString(mac(sha256.New, "s", "1700000000.{}"))), false},
		"a signature beyond the tenth": {Verifier{Kind: Stripe}, headerOf("Stripe-Signature", "t=1700000000"+strings.Repeat(",v1=00", 10)+",v1="+hex.EncodeToString(mac(sha256.New, "s", "1700000000.{}"))), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.verifier.Secrets = []string{"other", "s"}
			if err := c.verifier.Verify(c.header, []byte("{}"), now); (err == nil) != c.valid {
				t.Errorf("got %v, want it to be valid: %v", err, c.valid)
			}
			c.verifier.Secrets = []string{""}
			if err := c.verifier.Verify(c.header, []byte("{}"), now); err == nil {
				t.Error("an empty secret is a secret")
			}
		})
	}
}

func TestVerifiersThatCannotVerifyAreRefused(t *testing.T) {
	t.Parallel()
	for field, verifiers := range map[string][]Verifier{
		"secrets": {{Kind: GitHub}, {Kind: GitHub, Secrets: []string{"a", ""}}},
		"signature": {
			{Kind: HMAC, Secrets: []string{"s"}},
			{Kind: HMAC, Secrets: []string{"s"}, Signature: Signature{Header: "X", Algorithm: "md5"}},
			{Kind: HMAC, Secrets: []string{"s"}, Signature: Signature{Header: "X", Encoding: "base32"}},
			{Kind: GitHub, Secrets: []string{"s"}, Signature: Signature{Header: "X"}},
		},
		"header": {{Kind: GitHub, Secrets: []string{"s"}, Header: "X"}},
		"":       {{Kind: HMAC, Secrets: []string{"s"}, Signature: Signature{Header: "X"}}, {Kind: Token, Secrets: []string{"s"}, Header: "X"}},
	} {
		for i, verifier := range verifiers {
			if got, detail := verifier.Check(); got != field || (detail == "") != (field == "") {
				t.Errorf("%s %d: %s %s", field, i, got, detail)
			}
		}
	}
}

func TestEachLiveSecretVerifiesWhatIsSigned(t *testing.T) {
	t.Parallel()
	old, current, other := egress.NewSecret(), egress.NewSecret(), egress.NewSecret()
	signer, err := egress.NewSigner(current, old)
	if err != nil {
		t.Fatal(err)
	}
	now, body := time.Now(), []byte(`{"type":"order.paid","data":"`+"\x00ü"+`"}`)
	header := headerOf("Webhook-Signature", "v1,AAAA", "Webhook-Id", "old")
	if err := signer.Sign(header, "42", now, body); err != nil {
		t.Fatal(err)
	}
	if n := len(strings.Fields(header.Get("Webhook-Signature"))); n != 2 {
		t.Errorf("%d signatures, want one for each secret: %v", n, header)
	}
	for secret, isLive := range map[string]bool{old: true, current: true, other: false} {
		verifier := Verifier{Kind: Standard, Secrets: []string{secret}}
		if err := verifier.Verify(header, body, now); (err == nil) != isLive {
			t.Errorf("got %v, want the secret to verify: %v", err, isLive)
		}
		if err := verifier.Verify(header, append(body, ' '), now); err == nil {
			t.Error("another body is verified")
		}
	}
}
