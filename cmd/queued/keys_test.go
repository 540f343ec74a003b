package main

import (
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/queued/queued/internal/pgtest"
)

// keyText matches the text of a key.
var keyText = regexp.MustCompile(`^qk_([a-z2-7]{8})_[a-z2-7]{33}\n$`)

// keys runs queued keys with arguments, and fails the test unless it exits with a code.
func keys(t *testing.T, database string, code int, args ...string) (stdout, stderr string) {
	t.Helper()
	got, stdout, stderr := runHere(t, append([]string{"keys"}, args...), []string{"QUEUED_DATABASE_URL=" + database})
	if got != code {
		t.Fatalf("queued keys %q exited with %d, want %d: %s", args, got, code, stderr)
	}
	return stdout, stderr
}

func TestKeysAreManagedStraightOnTheDatabase(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	for _, args := range [][]string{{"list"}, {"rotate", "aaaaaaaa"}, {"revoke", "aaaaaaaa"}} {
		if _, said := keys(t, db.URL, exitFailure, args...); !strings.Contains(said, "has no schema") {
			t.Errorf("on an empty database, %q said %q", args, said)
		}
	}
	if _, said := keys(t, db.URL, exitUsage, "create", "--scope", "publish"); !strings.Contains(said, "the first key") || !strings.Contains(said, "keys create --scope admin") {
		t.Errorf("a first key without the scope admin is refused with %q", said)
	}
	created, about := keys(t, db.URL, exitOK, "create", "--scope", "admin", "--name", "ops")
	if !strings.Contains(about, "from now on every call needs a key") {
		t.Errorf("of the first key it said %q", about)
	}
	match := keyText.FindStringSubmatch(created)
	if match == nil || !strings.Contains(about, match[1]) || strings.Contains(about, strings.TrimSpace(created)) {
		t.Fatalf("created %q and said %q", created, about)
	}
	id := match[1]
	list, _ := keys(t, db.URL, exitOK, "list")
	if !strings.Contains(list, id) || !strings.Contains(list, "ops") || strings.Contains(list, strings.TrimSpace(created)) {
		t.Errorf("the list is\n%s", list)
	}
	rotated, _ := keys(t, db.URL, exitOK, "rotate", id, "--grace", "0s")
	if match := keyText.FindStringSubmatch(rotated); match == nil || match[1] != id || rotated == created {
		t.Errorf("rotated to %q", rotated)
	}
	const hostile = "\x1b]0;owned\x07\u009b2J\x7fname\rback"
	_, said := keys(t, db.URL, exitOK, "create", "--scope", "read", "--name", "a\u009b2J\x1b[31mred")
	if strings.Contains(said, "first key") {
		t.Errorf("of the second key it said %q", said)
	}
	listed, _ := keys(t, db.URL, exitOK, "list")
	for where, text := range map[string]string{"create": said, "list": listed} {
		if strings.ContainsAny(text, "\x1b\x07\x7f\r\u009b") || !strings.Contains(text, `\u001b[31mred`) {
			t.Errorf("%s wrote the name raw: %q", where, text)
		}
	}
	if _, err := keys(t, db.URL, 3, "revoke", hostile); strings.ContainsAny(err, "\x1b\x07\x7f\r\u009b") {
		t.Errorf("the error has what was given raw: %q", err)
	}
	if _, err := keys(t, db.URL, exitUsage, "revoke", id); !strings.Contains(err, "last admin key") {
		t.Errorf("revoking the last admin key said %q", err)
	}
	restricted, _ := keys(t, db.URL, exitOK, "create", "--scope", "publish,claim", "--queue", "orders.*", "--rate", "5", "--expires-in", "1h")
	other := keyText.FindStringSubmatch(restricted)[1]
	if _, said := keys(t, db.URL, exitOK, "revoke", other); !strings.Contains(said, "within 5 s") {
		t.Errorf("revoking said %q", said)
	}
	if shown, _ := keys(t, db.URL, exitOK, "show", other, "-o", "jsonl"); !strings.Contains(shown, `"status":"revoked"`) {
		t.Errorf("revoked it is %s", shown)
	}
	keys(t, db.URL, exitUsage, "rotate", other)
	keys(t, db.URL, 3, "revoke", "aaaaaaaa")
	keys(t, db.URL, 3, "show", "aaaaaaaa")
	limited, _ := keys(t, db.URL, exitOK, "create", "--scope", "claim", "--queue", "orders.*", "--rate", "2.5", "-o", "json")
	if !strings.Contains(limited, `"key": "qk_`) || !strings.Contains(limited, `"burst": 3`) {
		t.Errorf("created as JSON it is %s", limited)
	}
	changed, _ := keys(t, db.URL, exitOK, "set", id, "--name", "operations", "--expires-in", "2w")
	if !strings.Contains(changed, `"name":"operations"`) || !strings.Contains(changed, `"expires_at"`) {
		t.Errorf("changed it is %s", changed)
	}
	if changed, _ := keys(t, db.URL, exitOK, "set", id, "--no-expiry"); strings.Contains(changed, `"expires_at"`) {
		t.Errorf("without an end it is %s", changed)
	}
	keys(t, db.URL, exitUsage, "set", id, "--scope", "read")
	keys(t, db.URL, exitUsage, "set", id)
	keys(t, db.URL, exitUsage, "create", "--scope", "everything")
	keys(t, db.URL, exitUsage, "create", "--scope", "read", "--burst", "5")
	keys(t, db.URL, exitUsage, "create", "--scope", "admin", "--queue", "orders.*")
	keys(t, db.URL, exitUsage, "create", "--scope", "read", "--queue", "or ders")
}

func TestFirstKeyWithoutAdminOnTheDatabaseWantsYes(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	keys(t, db.URL, exitUsage, "create", "--scope", "claim")
	_, said := keys(t, db.URL, exitOK, "create", "--scope", "claim", "--yes")
	for _, want := range []string{"from now on every call needs a key", "nobody can manage keys", "queued keys create --scope admin"} {
		if !strings.Contains(said, want) {
			t.Errorf("it said %q, want %q", said, want)
		}
	}
	keys(t, db.URL, exitOK, "create", "--scope", "publish") // the second one
}

func TestServerOnEveryInterfaceTakesAKeyOfTheDatabase(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	text, _ := keys(t, db.URL, exitOK, "create", "--scope", "admin")
	p := serve(t, nil, "QUEUED_DATABASE_URL="+db.URL, "QUEUED_LISTEN=0.0.0.0:0", "QUEUED_API_KEY=")
	p.want(http.StatusUnauthorized, http.MethodGet, "/version", "")
	p.want(http.StatusOK, http.MethodGet, "/version", "", "Authorization: Bearer "+strings.TrimSpace(text))
}
