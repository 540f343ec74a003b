package http

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/queued/queued/internal/access"
)

func TestClockOfTheDatabaseCountsAndNotThatOfTheProcess(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.sql(`alter function agent_service.replica_versions() rename to versions`)
	h.sql(`create function agent_service.replica_versions() returns table (name text, version int8, at timestamptz) language sql security definer
		as $$ select name, version, at + interval '1 hour' from agent_service.versions() $$`)
	h.sql(`grant execute on function agent_service.replica_versions() to public`)
	ahead := time.Now().Add(time.Hour)
	admin := h.key(h.createKey(access.CreateParams{Scopes: []access.Scope{access.Admin}})) // the keys are read then, with the time
	expires := ahead.Add(-time.Minute)
	soon := h.createKey(access.CreateParams{Scopes: []access.Scope{access.Read}, ExpiresAt: &expires})[3:11]
	if key := decode[struct{ Status string }](admin.call("GET", "/keys/"+soon, "").want(http.StatusOK)); key.Status != "expired" {
		t.Errorf("the key that expires a minute before the time of the database is %s", key.Status)
	}
	for _, path := range []string{"/queues/q/stats", "/stats/queues"} {
		if stats := decode[struct{ To time.Time }](admin.call("GET", path, "").want(http.StatusOK)); stats.To.Sub(ahead).Abs() > 10*time.Minute {
			t.Errorf("GET %s is of the time up to %s, want %s", path, stats.To, ahead)
		}
	}
	// A time that the process thinks is to come.
	admin.call("GET", "/history/stats?from="+ahead.Add(-time.Minute).UTC().Format(time.RFC3339), "").want(http.StatusOK)

	admin.call("PUT", "/sources/shop", `{"kind":"stripe","queue":"in","secrets":["s3cret"]}`).want(http.StatusCreated)
	for at, status := range map[time.Time]int{ahead: http.StatusOK, ahead.Add(-time.Hour): http.StatusUnauthorized} {
		seconds, body := strconv.FormatInt(at.Unix(), 10), `{"id":"`+strconv.Itoa(status)+`","type":"paid"}`
		mac := hmac.New(sha256.New, []byte("s3cret"))
		_, _ = mac.Write([]byte(seconds + "." + body))
		h.with("Stripe-Signature", "t="+seconds+",v1="+hex.EncodeToString(mac.Sum(nil))).call("POST", "/in/shop", body).want(status)
	}
}
