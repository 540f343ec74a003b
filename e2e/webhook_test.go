package e2e_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/queued/queued/internal/egress"
)

// TestReceiversWithTheStandardLibraryVerifyWhatIsSigned has receivers that verify with the library of https://www.standardwebhooks.com, as a receiver of
// webhooks would, while the secret is rotated.
func TestReceiversWithTheStandardLibraryVerifyWhatIsSigned(t *testing.T) {
	t.Parallel()
	old, current, other := egress.NewSecret(), egress.NewSecret(), egress.NewSecret()
	receivers := map[string]string{}
	for _, secret := range []string{old, current, other} {
		webhook, err := standardwebhooks.NewWebhook(secret)
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err == nil {
				err = webhook.Verify(body, r.Header)
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusUnauthorized)
			}
		}))
		t.Cleanup(server.Close)
		receivers[secret] = server.URL
	}
	for name, c := range map[string]struct {
		live, verify []string
	}{
		"before the rotation": {[]string{old}, []string{old}},
		"during the rotation": {[]string{current, old}, []string{old, current}},
		"after the rotation":  {[]string{current}, []string{current}},
	} {
		signer, err := egress.NewSigner(c.live...)
		if err != nil {
			t.Fatal(err)
		}
		for _, body := range []string{`{"type":"order.paid","timestamp":"2026-03-04T05:06:07Z","data":{"a":"ü€","n":12345678901234567890}}`, "", strings.Repeat("\x00\xff", 1<<16)} {
			for secret, url := range receivers {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
				if err == nil {
					err = signer.Sign(r.Header, "12345", time.Now(), []byte(body))
				}
				if err != nil {
					t.Fatal(err)
				}
				answer, err := http.DefaultClient.Do(r)
				if err != nil {
					t.Fatal(err)
				}
				text, _ := io.ReadAll(answer.Body)
				_ = answer.Body.Close()
				want := false
				for _, each := range c.verify {
					want = want || each == secret
				}
				if (answer.StatusCode == http.StatusOK) != want {
					t.Errorf("%s, %d bytes: HTTP %d %s; want it verified: %v", name, len(body), answer.StatusCode, text, want)
				}
			}
		}
	}
}
