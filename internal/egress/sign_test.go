package egress

import (
	"encoding/base64"
	"net/http"
	"slices"
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

// The vector is that of https://github.com/standard-webhooks/standard-webhooks, libraries/go/webhook_test.go.
func TestSignaturesAreThoseOfTheStandard(t *testing.T) {
	t.Parallel()
	header := make(http.Header)
	at, body := time.Unix(1614265330, 999_999_999), []byte(`{"test": 2432232314}`)
	if err := newSigner(t, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").Sign(header, "msg_p5jXN8AQM9LWM0D4loKWxJek", at, body); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek", "webhook-timestamp": "1614265330",
		"webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
	} {
		if got := header.Get(name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

func TestEachSecretHasASignatureOfItsOwn(t *testing.T) {
	t.Parallel()
	old, current := NewSecret(), NewSecret()
	if old == current || len(old) != len("whsec_")+44 {
		t.Fatalf("the secrets %q and %q are not 32 random bytes each", old, current)
	}
	now, body := time.Now(), []byte("a body")
	signaturesOf := func(secrets ...string) []string {
		header := make(http.Header)
		if err := newSigner(t, secrets...).Sign(header, "42", now, body); err != nil {
			t.Fatal(err)
		}
		return strings.Fields(header.Get("Webhook-Signature"))
	}
	if got, want := signaturesOf(current, old), append(signaturesOf(current), signaturesOf(old)...); !slices.Equal(got, want) || got[0] == got[1] {
		t.Errorf("got the signatures %q, want %q", got, want)
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
