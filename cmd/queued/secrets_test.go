package main

import (
	"net/http"
	"strings"
	"testing"

	"github.com/queued/queued/internal/pgtest"
)

func TestKeysThatSealSecretsAreChangedWithNothingLost(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	const first, second = "the-first-key-of-secrets", "the-second-key-of-secrets"
	environ := func(key string) []string {
		return []string{"QUEUED_DATABASE_URL=" + db.URL, "QUEUED_SECRET_KEY=" + key}
	}
	reseal := func(code int, key, want string) (stderr string) {
		t.Helper()
		got, stdout, stderr := runHere(t, []string{"secrets", "reseal"}, environ(key))
		if got != code || !strings.HasPrefix(stdout, want) {
			t.Errorf("exit code %d, %q, %q; want %d and %q", got, stdout, stderr, code, want)
		}
		return stderr
	}
	old := serve(t, nil, environ(first)...)
	old.want(http.StatusCreated, http.MethodPut, "/sources/shop", `{"kind":"token","queue":"in","secrets":["one","two"]}`)
	old.want(http.StatusCreated, http.MethodPut, "/queues/out/push", `{"url":"https://example.com/hook","headers":{"Authorization":"Bearer three"}}`)

	reseal(exitOK, first, "4 sealed, of which 0 anew")
	if stderr := reseal(exitFailure, second, "4 sealed, of which 0 anew; 0 were changed by others meanwhile; 4 cannot be opened"); !strings.Contains(stderr, "source of shop") || !strings.Contains(stderr, "push.headers of out") {
		t.Errorf("what cannot be opened is said to be %q", stderr)
	}
	reseal(exitOK, second+","+first, "4 sealed, of which 4 anew")
	reseal(exitOK, second, "4 sealed, of which 0 anew")

	now := serve(t, nil, environ(second)...)
	for secret, isKnown := range map[string]bool{"one": true, "two": true, "three": false} { // tried, as a delivery has 2 s only
		tried := now.want(http.StatusOK, http.MethodPost, "/sources/shop/test", `{"headers":{"Authorization":"`+secret+`"},"body":"{}"}`).decode(t)
		if tried["verified"] != isKnown {
			t.Errorf("the secret %s: %v", secret, tried)
		}
	}
	now.want(http.StatusOK, http.MethodGet, "/queues/out/push", "")
	if code, _, stderr := runHere(t, []string{"secrets", "reseal"}, []string{"QUEUED_DATABASE_URL=" + db.URL}); code != exitUsage || !strings.Contains(stderr, "QUEUED_SECRET_KEY") {
		t.Errorf("without a key: exit code %d, %q", code, stderr)
	}
}
