package hook

import (
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

func newSigner(t *testing.T, secrets ...string) *Signer {
	t.Helper()
	s, err := NewSigner(secrets...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSignaturesAreThoseOfTheStandard(t *testing.T) {
	t.Parallel()
	signed := 0
	for _, v := range vectors(t, "standard-webhooks", nil) {
		if v.Name != "sign_official" {
			continue
		}
		seconds, err := strconv.ParseInt(v.Timestamp, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		header := make(http.Header)
		if err := newSigner(t, v.Secret).Sign(header, v.ID, time.Unix(seconds, 999_999_999), []byte(v.Body)); err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]string{"webhook-id": v.ID, "webhook-timestamp": v.Timestamp, "webhook-signature": v.Signature} {
			if got := header.Get(name); got != want {
				t.Errorf("%s: %s, want %s", name, got, want)
			}
		}
		signed++
	}
	if signed != 1 {
		t.Errorf("%d vectors were signed", signed)
	}
}

func TestEachLiveSecretVerifiesWhatIsSigned(t *testing.T) {
	t.Parallel()
	old, current, other := NewSecret(), NewSecret(), NewSecret()
	if old == current || len(old) != len("whsec_")+44 {
		t.Fatalf("the secrets %q and %q are not 32 random bytes each", old, current)
	}
	now, body := time.Now(), []byte(`{"type":"order.paid","data":"`+"\x00ü"+`"}`)
	header := headerOf("Webhook-Signature", "v1,AAAA", "Webhook-Id", "old")
	if err := newSigner(t, current, old).Sign(header, "42", now, body); err != nil {
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

func TestSecretsThatDoNotSignAreRefused(t *testing.T) {
	t.Parallel()
	secret := func(n int) string { return "whsec_" + base64.StdEncoding.EncodeToString(make([]byte, n)) }
	for name, secrets := range map[string][]string{
		"none": nil, "too many": strings.Fields(strings.Repeat(secret(32)+" ", 11)), "too short": {secret(32), secret(23)}, "too long": {secret(65)},
		"empty": {"whsec_"}, "no prefix": {secret(32)[6:]}, "a public key": {"whpk_" + secret(32)[6:]}, "no base64": {"whsec_" + strings.Repeat("*", 44)},
	} {
		if _, err := NewSigner(secrets...); err == nil {
			t.Errorf("%s: taken", name)
		} else if len(secrets) > 0 && len(secrets[0]) > 10 && strings.Contains(err.Error(), secrets[0][6:]) {
			t.Errorf("%s: the error tells the secret: %v", name, err)
		}
	}
	for _, n := range []int{24, 64} {
		newSigner(t, secret(n))
	}
	for _, id := range []string{"", "a.b", "a b", "a\nb", "ü"} {
		if err := newSigner(t, secret(32)).Sign(make(http.Header), id, time.Now(), nil); err == nil {
			t.Errorf("the id %q is signed", id)
		}
	}
}
