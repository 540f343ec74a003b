package migrate_test

import (
	stdcmp "cmp"
	"context"
	"fmt"
	"io/fs"
	osexec "os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/queued/queued/internal/migrate"
	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/sql"
)

// released returns the scripts of an earlier version: the incremental ones, which never change, from the program, the idempotent ones from this
// repository's history.
func released(t *testing.T, version string) fs.FS {
	t.Helper()
	git := func(args ...string) string {
		t.Helper()
		out, err := osexec.CommandContext(t.Context(), "git", append([]string{"-C", filepath.Join("..", "..")}, args...)...).Output()
		if err != nil {
			t.Fatalf("git %v: %v (this test needs the whole history: git fetch --unshallow)", args, err)
		}
		return string(out)
	}
	// The last commit of a version is the one before the commit that raised it.
	last := "HEAD"
	for commit := range strings.FieldsSeq(git("log", "--format=%H", "--", "sql/VERSION")) {
		if strings.TrimSpace(git("show", commit+":sql/VERSION")) == version {
			break
		}
		last = commit + "^"
	}
	scripts := fstest.MapFS{}
	for name := range strings.FieldsSeq(git("ls-tree", "-r", "--name-only", "--full-tree", last, "sql/idempotent", "sql/incremental")) {
		body := git("show", last+":"+name)
		name = strings.TrimPrefix(name, "sql/")
		if strings.HasPrefix(name, "incremental/") {
			final, err := fs.ReadFile(sql.FS, name)
			if err != nil {
				t.Fatal(err)
			}
			body = string(final)
		}
		scripts[name] = &fstest.MapFile{Data: []byte(body), Mode: fs.ModePerm}
	}
	return scripts
}

// schemaCatalog lists the objects of a database and who may use them; not how far its sequences are.
func schemaCatalog(t *testing.T, url string) []string {
	t.Helper()
	conn := connect(t, url)
	exec(t, conn, "set search_path to ''")
	return slices.DeleteFunc(column(t, conn, catalogQuery), func(line string) bool { return strings.HasPrefix(line, "sequence ") })
}

func TestUpgradedDatabaseHasTheObjectsAndGrantsOfANewOne(t *testing.T) {
	t.Parallel()
	for version, c := range map[string]struct {
		service  string // how the service's role was granted what it needs; %[1]s
		more     string // the function of agent that it keeps the right to, though the service no longer calls it
		operator string // the function of upkeep that another role may execute
	}{
		"0.1.0": {`grant usage on schema agent to "%[1]s"; grant execute on function agent.take_events to "%[1]s"`, "", "keep_history"},
		"0.2.0": {`grant usage on schema agent to "%[1]s"; grant execute on function agent.take_events to "%[1]s"`, "", "forget_keys"},
		"0.3.0": {`select agent.grant_service('"%[1]s"')`, "delete_schedule", "forget_history"},
		"0.4.0": {`select agent.grant_service('"%[1]s"')`, "delete_schedule", "run_schedule"},
		"0.5.0": {`select agent.grant_service('"%[1]s"')`, "delete_schedule", "claim_from_watermarks"},
		"0.7.0": {`select agent.grant_service('"%[1]s"')`, "", "begin_read"},
	} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			db, other := pgtest.Empty(t), pgtest.Empty(t)
			admin := connect(t, db.AdminURL)
			upgraded, fresh := db.URL, other.URL
			if version == "0.2.0" { // its functions have a setting that only a superuser could give them
				upgraded, fresh = db.AdminURL, other.AdminURL
			}
			service, shop, operator := role(t, admin, "service"), role(t, admin, "shop"), role(t, admin, "operator")

			run(t, migrate.Config{DatabaseURL: upgraded, Scripts: released(t, version), Version: version})
			before := connect(t, upgraded)
			grant := `grant usage on schema agent to "%s", "%s"; grant execute on function agent.insert_event to "%[1]s"; grant execute on function agent.%[3]s to "%[2]s"`
			exec(t, before, fmt.Sprintf(c.service, service))
			exec(t, before, fmt.Sprintf(grant, shop, operator, c.operator))
			exec(t, before, `select agent.insert_event('{"n": 1}'), agent.insert_event('{"n": 2}')`)
			exec(t, before, `select agent.delete_event(c.id, agent.receipt(c)) from agent.claim_event() c`)
			run(t, migrate.Config{DatabaseURL: upgraded})

			run(t, migrate.Config{DatabaseURL: fresh})
			after := connect(t, fresh)
			otherAdmin := connect(t, other.AdminURL)
			t.Cleanup(func() { // before the roles go
				if _, err := otherAdmin.Exec(context.Background(), fmt.Sprintf(`drop owned by "%s", "%s", "%s"`, service, shop, operator)); err != nil {
					t.Error(err)
				}
			})
			exec(t, after, fmt.Sprintf(`select agent.grant_service('"%s"')`, service))
			if c.more != "" {
				exec(t, after, fmt.Sprintf(`grant execute on function agent.%s to "%s"`, c.more, service))
			}
			exec(t, connect(t, upgraded), `select agent_service.drop_forwarding_functions('0')`)
			renamed := map[string]string{"keep_history": "maintain_history", "forget_keys": "prune_keys", "forget_history": "prune_history"}[c.operator]
			if slices.Contains([]string{"claim_from_watermarks", "begin_read"}, c.operator) {
				grant = strings.Replace(grant, "agent.%[3]s", "agent_service.%[3]s", 1) + `; grant usage on schema agent_service to "%[2]s"`
			}
			exec(t, after, fmt.Sprintf(grant, shop, operator, stdcmp.Or(renamed, c.operator)))
			if diff := cmp.Diff(schemaCatalog(t, fresh), schemaCatalog(t, upgraded)); diff != "" {
				t.Errorf("-new +upgraded from %s:\n%s", version, diff)
			}
			if n := query[int](t, before, `select (select count(*) from agent.event) * 10 + (select count(*) from agent.event_hist)`); n != 11 {
				t.Errorf("events and history are %d, want one of each", n)
			}
		})
	}
}

func TestUpgradeRemembersTheProofFieldsOfSources(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	run(t, migrate.Config{DatabaseURL: db.URL, Scripts: released(t, "0.7.0"), Version: "0.7.0"})
	conn := connect(t, db.URL)
	exec(t, conn, `select agent.put_source('old', '{"kind": "token", "header": "X-Token", "queue": "in"}', array[bytea 'sealed'])`)
	exec(t, conn, `select agent.put_source('plain', '{"kind": "token", "queue": "in"}', array[bytea 'sealed'])`)
	run(t, migrate.Config{DatabaseURL: db.URL})
	conn = connect(t, db.URL)
	if got := column(t, conn, `select name || ' ' || field from agent.source_proof_field`); len(got) != 1 || got[0] != "old x-token" {
		t.Errorf("the proof fields are %q", got)
	}
	_, err := conn.Exec(t.Context(), `select agent_service.put_source('old', '{"kind": "token", "header": "X-New", "queue": "in", "headers": ["X-Token"]}', array[bytea 'sealed'])`)
	if err == nil || !strings.Contains(err.Error(), "x-token") {
		t.Errorf("keeping the former proof: %v", err)
	}
}
