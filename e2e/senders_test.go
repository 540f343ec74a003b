package e2e_test

import (
	"crypto/hmac"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/binding"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
	"github.com/google/go-github/v74/github"
	"github.com/slack-go/slack"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stripe/stripe-go/v82/webhook"
)

// A delivery is what a sender posts.
type delivery struct {
	name   string
	header http.Header
	body   string
	status int
}

func headerOf(fields ...string) http.Header {
	header := make(http.Header)
	for i := 0; i < len(fields); i += 2 {
		header.Set(fields[i], fields[i+1])
	}
	return header
}

func hexMAC(newHash func() hash.Hash, secret, content string) string {
	mac := hmac.New(newHash, []byte(secret))
	_, _ = mac.Write([]byte(content))
	return hex.EncodeToString(mac.Sum(nil))
}

// TestSourcesTakeWhatSendersSign posts deliveries as the senders' libraries sign or verify them, and those that the libraries take and queued must not.
func TestSourcesTakeWhatSendersSign(t *testing.T) {
	t.Parallel()
	queued := start(t, build(t), newDatabase(t), freeAddress(t), "QUEUED_SECRET_KEY=a-key-for-the-tests-of-senders")
	for kind, c := range map[string]struct {
		secret     string
		deliveries func(t *testing.T, secret string) []delivery
	}{
		"slack":    {"8f742231b10e8888abcd99yyyzzz85a5", slackDeliveries},
		"github":   {"It's a Secret to Everybody", githubDeliveries},
		"stripe":   {"whsec_test_secret", stripeDeliveries},
		"standard": {"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", standardDeliveries},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			queued.call(t, http.StatusCreated, http.MethodPut, "/sources/"+kind, fmt.Sprintf(`{"kind":%q,"queue":%q,"secrets":[%q]}`, kind, kind, c.secret))
			taken := 0
			for _, d := range c.deliveries(t, c.secret) {
				if d.status == http.StatusOK {
					taken++
				}
				for range 2 { // and nothing is stored twice
					if got, answer := queued.deliver(t, kind, d); got != d.status {
						t.Errorf("%s: got %d, want %d: %s", d.name, got, d.status, answer)
					}
				}
			}
			if claimed := queued.batch(t, http.MethodPost, "/claim", `{"queue":"`+kind+`","limit":100}`); len(claimed) != taken {
				t.Errorf("%d events are in the queue, want %d", len(claimed), taken)
			}
		})
	}
}

// deliver posts a delivery and returns the status and the body of the answer. It repeats what is answered 503, as senders do: deliveries have 2 s, which
// is little on a busy machine.
func (p *process) deliver(t *testing.T, source string, d delivery) (status int, answer string) {
	t.Helper()
	for range 30 {
		if status, answer = p.deliverOnce(t, source, d); status != http.StatusServiceUnavailable {
			break
		}
	}
	return status, answer
}

func (p *process) deliverOnce(t *testing.T, source string, d delivery) (status int, answer string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+p.address+"/in/"+source, strings.NewReader(d.body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = d.header
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// slackDeliveries are signed as slack-go verifies.
func slackDeliveries(t *testing.T, secret string) []delivery {
	t.Helper()
	const body = `{"type":"event_callback","event_id":"Ev1","event":{"type":"app_mention"}}`
	sign := func(name string, at time.Time, status int) delivery {
		stamp := strconv.FormatInt(at.Unix(), 10)
		header := headerOf("Content-Type", "application/json", "X-Slack-Request-Timestamp", stamp,
			"X-Slack-Signature", "v0="+hexMAC(sha256.New, secret, "v0:"+stamp+":"+body))
		verifier, err := slack.NewSecretsVerifier(header, secret)
		if err == nil {
			_, _ = verifier.Write([]byte(body))
			err = verifier.Ensure()
		}
		if (err == nil) != (status == http.StatusOK) {
			t.Errorf("%s: slack-go says %v", name, err)
		}
		return delivery{name, header, body, status}
	}
	changed := sign("a body that was changed", time.Now(), http.StatusOK)
	changed.body, changed.status = strings.Replace(body, "Ev1", "Ev2", 1), http.StatusUnauthorized
	return []delivery{
		sign("an event", time.Now(), http.StatusOK), changed,
		sign("an old one", time.Now().Add(-10*time.Minute), http.StatusUnauthorized),
		sign("one of the future", time.Now().Add(10*time.Minute), http.StatusUnauthorized),
	}
}

// githubDeliveries are signed as go-github verifies, which takes more than queued does.
func githubDeliveries(t *testing.T, secret string) []delivery {
	t.Helper()
	body := `{"zen":"Keep it logically awesome."}`
	of := func(id string) http.Header {
		return headerOf("Content-Type", "application/json", github.EventTypeHeader, "ping", github.DeliveryIDHeader, id)
	}
	signed, weak, unsigned := of("1"), of("2"), of("3")
	signed.Set(github.SHA256SignatureHeader, "sha256="+hexMAC(sha256.New, secret, body))
	weak.Set(github.SHA1SignatureHeader, "sha1="+hexMAC(sha1.New, secret, body))
	for _, signature := range []string{signed.Get(github.SHA256SignatureHeader), weak.Get(github.SHA1SignatureHeader)} {
		if err := github.ValidateSignature(signature, []byte(body), []byte(secret)); err != nil {
			t.Errorf("go-github refuses %s: %v", signature, err)
		}
	}
	if _, err := github.ValidatePayloadFromBody("application/json", strings.NewReader(body), "", nil); err != nil {
		t.Errorf("go-github refuses what has no signature where there is no secret: %v", err)
	}
	weakly := of("4")
	weakly.Set(github.SHA256SignatureHeader, weak.Get(github.SHA1SignatureHeader))
	return []delivery{
		{"sha256", signed, body, http.StatusOK},
		{"sha1", weak, body, http.StatusUnauthorized},
		{"sha1 in the place of sha256", weakly, body, http.StatusUnauthorized},
		{"no signature", unsigned, body, http.StatusUnauthorized},
		{"another body", signed, body + " ", http.StatusUnauthorized},
	}
}

// stripeDeliveries are signed by stripe-go, which takes any timestamp of the future.
func stripeDeliveries(t *testing.T, secret string) []delivery {
	t.Helper()
	sign := func(name string, at time.Time, byLibrary bool, status int) delivery {
		body := `{"id":"evt_` + strconv.Itoa(status) + `","object":"event","type":"charge.refunded","created":` + strconv.FormatInt(time.Now().Unix(), 10) + `}`
		signed := webhook.GenerateTestSignedPayload(&webhook.UnsignedPayload{Payload: []byte(body), Secret: secret, Timestamp: at})
		if err := webhook.ValidatePayload([]byte(body), signed.Header, secret); (err == nil) != byLibrary {
			t.Errorf("%s: stripe-go says %v", name, err)
		}
		return delivery{name, headerOf("Content-Type", "application/json; charset=utf-8", "Stripe-Signature", signed.Header), body, status}
	}
	return []delivery{
		sign("an event", time.Now(), true, http.StatusOK),
		sign("an old one", time.Now().Add(-10*time.Minute), false, http.StatusUnauthorized),
		sign("one of the future", time.Now().Add(10*time.Minute), true, http.StatusUnauthorized),
	}
}

// standardDeliveries are signed by the library of Standard Webhooks.
func standardDeliveries(t *testing.T, secret string) []delivery {
	t.Helper()
	signer, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	const body = `{"type":"user.created","data":{"id":1}}`
	sign := func(name, prefix, id string, at time.Time, status int) delivery {
		signature, err := signer.Sign(id, at, []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		return delivery{
			name, headerOf("Content-Type", "application/json", prefix+"-Id", id, prefix+"-Timestamp", strconv.FormatInt(at.Unix(), 10), prefix+"-Signature", signature), body, status,
		}
	}
	wrong := sign("another id", "Webhook", "msg_4", time.Now(), http.StatusUnauthorized)
	wrong.header.Set("Webhook-Id", "msg_5")
	return []delivery{
		sign("an event", "Webhook", "msg_1", time.Now(), http.StatusOK),
		sign("an event of Svix", "Svix", "msg_2", time.Now(), http.StatusOK),
		sign("an old one", "Webhook", "msg_3", time.Now().Add(-10*time.Minute), http.StatusUnauthorized),
		sign("one of the future", "Webhook", "msg_3", time.Now().Add(10*time.Minute), http.StatusUnauthorized),
		wrong,
	}
}

// TestSourceOfCloudEventsTakesWhatTheirSDKSends sends events with the SDK to a source, in each mode.
func TestSourceOfCloudEventsTakesWhatTheirSDKSends(t *testing.T) {
	t.Parallel()
	queued := start(t, build(t), newDatabase(t), freeAddress(t), "QUEUED_SECRET_KEY=a-key-for-the-tests-of-senders")
	queued.call(t, http.StatusCreated, http.MethodPut, "/sources/ce", `{"kind":"cloudevents","queue":"ce","secrets":["s3cret"]}`)
	url := "http://" + queued.address + "/in/ce"
	sent := sentEvents(t)
	requests := make(map[string]*http.Request)
	var err error
	if requests["structured"], err = cehttp.NewHTTPRequestFromEvent(binding.WithForceStructured(t.Context()), url, sent[0]); err != nil {
		t.Fatal(err)
	}
	if requests["binary"], err = cehttp.NewHTTPRequestFromEvent(binding.WithForceBinary(t.Context()), url, sent[1]); err != nil {
		t.Fatal(err)
	}
	if requests["batched"], err = cehttp.NewHTTPRequestFromEvents(t.Context(), url, sent); err != nil {
		t.Fatal(err)
	}
	for mode, req := range requests {
		text, err := io.ReadAll(req.Body)
		if err != nil {
			t.Fatal(err)
		}
		d := delivery{mode, req.Header, string(text), http.StatusUnauthorized}
		if got, answer := queued.deliver(t, "ce", d); got != d.status {
			t.Errorf("%s without the token: got %d: %s", mode, got, answer)
		}
		d.header.Set("Authorization", "Bearer s3cret")
		if got, answer := queued.deliver(t, "ce", d); got != http.StatusOK {
			t.Errorf("%s: got %d: %s", mode, got, answer)
		}
	}
	claimed := queued.batch(t, http.MethodPost, "/claim", `{"queue":"ce","limit":100}`)
	if len(claimed) != len(sent) { // each once
		t.Fatalf("%d events are in the queue, want %d", len(claimed), len(sent))
	}
	for _, e := range claimed {
		for i := range sent {
			if sent[i].ID() == e.ID() {
				wantSame(t, e, sent[i], i == 1)
			}
		}
	}
	bad := delivery{"bad", headerOf("Content-Type", "application/cloudevents+json", "Authorization", "Bearer s3cret"), `{"specversion":"1.0"}`, http.StatusBadRequest}
	if got, answer := queued.deliver(t, "ce", bad); got != bad.status || !strings.Contains(answer, "invalid_cloudevent") {
		t.Errorf("what is no CloudEvent: got %d: %s", got, answer)
	}
}
