package migrate_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/queued/queued/internal/pgtest"
)

func TestNobodyMayUseTheInternalSchemasButTheirOwnerAndTheService(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	db := pgtest.New(t)
	owner := connect(t, db.URL)
	if open := column(t, owner, `
		with allowed as
		( select n.oid as schema, n.nspowner as role from pg_namespace n
		  union all
		  select n.oid, r.oid from pg_namespace n, agent.service_role s join pg_roles r on r.rolname = s.name where n.nspname = 'agent_service'
		)
		select 'schema ' || n.nspname from pg_namespace n
		where n.nspname in ('agent_service', 'agent_private')
		and exists (select a.grantee from aclexplode(n.nspacl) a except select w.role from allowed w where w.schema = n.oid)
		union all
		select p.oid::regprocedure::text from pg_proc p
		where p.pronamespace in ('agent_service'::regnamespace, 'agent_private'::regnamespace)
		and (p.proacl is null or exists (select a.grantee from aclexplode(p.proacl) a except select w.role from allowed w where w.schema = p.pronamespace))`); len(open) > 0 {
		t.Errorf("others may use %q", open)
	}
	if foreign := column(t, owner, `
		select p.oid::regprocedure::text from pg_proc p
		where p.pronamespace in ('agent_service'::regnamespace, 'agent_private'::regnamespace)
		and p.proowner <> (select a.nspowner from pg_namespace a where a.nspname = 'agent')`); len(foreign) > 0 {
		t.Errorf("these belong to somebody else than the schema agent does: %q", foreign)
	}
	if unpinned := column(t, owner, `
		select p.oid::regprocedure::text from pg_proc p
		where p.pronamespace in ('agent'::regnamespace, 'agent_service'::regnamespace, 'agent_private'::regnamespace) and p.prosqlbody is null
		and not exists (select from unnest(p.proconfig) c where c like 'search_path=%')
		and p.oid not in ('agent_private.check_usual_event()'::regprocedure, 'agent_private.canonical_text(jsonb)'::regprocedure)`); len(unpinned) > 0 { // which name the schema of all that they use
		t.Errorf("these do not pin their search_path: %q", unpinned)
	}
}

func TestTablesSayWhatTheyHold(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	if silent := column(t, connect(t, pgtest.New(t).URL), `
		select c.oid::regclass::text from pg_class c
		where c.relnamespace in ('agent'::regnamespace, 'agent_private'::regnamespace) and c.relkind in ('r', 'p') and not c.relispartition
		and obj_description(c.oid, 'pg_class') is null`); len(silent) > 0 {
		t.Errorf("these tables have no comment: %q", silent)
	}
}

// TestNoFunctionThatForbidsPlansCompilesThem: what is forbidden and cannot be avoided makes a plan look so expensive that the server compiles it, which
// takes a multiple of its run.
func TestNoFunctionThatForbidsPlansCompilesThem(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	db := pgtest.New(t)
	if compiling := column(t, connect(t, db.URL), `
		select p.oid::regprocedure::text from pg_proc p
		where p.pronamespace in ('agent'::regnamespace, 'agent_service'::regnamespace, 'agent_private'::regnamespace)
		and exists (select from unnest(p.proconfig) c where c like 'enable\_%=off') and not 'jit=off' = any (p.proconfig)`); len(compiling) > 0 {
		t.Errorf("these have to set jit to off: %q", compiling)
	}
}

// eventValues are values for the columns of agent.event, as SQL: by name where the column's rules or a claim need a certain one, else by type.
var eventValues = map[string]string{
	"id": "17", "event": `'{"n": 1}'`, "queue": "'default'", "vt": "now() - interval '1 hour'", "attempts": "1", "max_attempts": "5",
	"expires_at": "now() + interval '1 day'", "past_attempts": `'[{"attempt": 1}]'`,
	"flow": "1", "flow_version": "null", "turn_vt": "null", "admitted_at": "null", "in_total": "null", // the queue has no limits

	"bigint": "4711", "integer": "7", "text": "'some text'", "jsonb": `'{"some": "JSON"}'`, "bytea": `'\x00112233'`,
	"timestamp with time zone": "now() - interval '2 hours'", "timestamp with time zone[]": "array[now() - interval '3 hours']",
}

func TestEachColumnOfAnEventReachesClaimsHistoryAndListings(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	conn := connect(t, pgtest.New(t).URL)
	exec(t, conn, "set search_path to ''")
	columns := column(t, conn, `select a.attname::text from pg_catalog.pg_attribute a
		where a.attrelid = 'agent.event'::regclass and a.attnum > 0 and not a.attisdropped order by a.attnum`)
	types := column(t, conn, `select pg_catalog.format_type(a.atttypid, a.atttypmod) from pg_catalog.pg_attribute a
		where a.attrelid = 'agent.event'::regclass and a.attnum > 0 and not a.attisdropped order by a.attnum`)
	values := make([]string, len(columns))
	for i, name := range columns {
		value, ok := eventValues[name]
		if !ok {
			value, ok = eventValues[types[i]]
		}
		if !ok {
			t.Fatalf("the column %s is of type %s: give it a value in eventValues", name, types[i])
		}
		values[i] = value
	}
	row := func(statement string) string {
		t.Helper()
		return query[string](t, conn, "select to_jsonb(r)::text from ("+statement+") r")
	}
	// same fails for each column whose value is not in both rows, but those that change on the way, or that are not shown.
	same := func(what, before, after string, except ...string) {
		t.Helper()
		lost := column(t, conn, "select b.key from jsonb_each('"+before+"'::jsonb) b where ('"+after+"'::jsonb -> b.key) is distinct from b.value")
		if lost = slices.DeleteFunc(lost, func(name string) bool { return slices.Contains(except, name) }); len(lost) > 0 {
			t.Errorf("%s does not have these columns, or has other values in them: %q", what, lost)
		}
	}
	// A listing has the state for nacked_at, and list_attempts has the past attempts.
	// Of receipt_hash and claim_token, a claim returns the token, and history keeps the hash. How long its JSON is matters for claims alone,
	// and when it was due for statistics.
	ofLimits := []string{"flow", "flow_version", "turn_vt", "admitted_at", "in_total"} // of its queue, which are of no interest once they are kept
	notShown := append([]string{"due_at", "nacked_at", "extended_at", "past_attempts", "receipt_hash", "claim_token", "text_size"}, ofLimits...)

	exec(t, conn, "insert into agent.event ("+strings.Join(columns, ", ")+") overriding system value values ("+strings.Join(values, ", ")+")")
	inserted := row("select * from agent.event")
	same("get_event", inserted, row("select * from agent.get_event(17)"), notShown...)
	same("list_events", inserted, row("select * from agent.list_events()"), notShown...)

	byClaim := append([]string{"attempts", "claimed", "vt", "nacked_at", "extended_at", "worker", "receipt_hash", "claim_token"}, ofLimits...)
	same("claim_events", inserted, row("select * from agent.claim_events()"), append(byClaim, "due_at")...)
	exec(t, conn, "update agent.event set vt = now()")
	claimed := row("select * from agent.event")
	same("claim_from_watermarks", claimed, row("select * from agent_service.claim_from_watermarks('default', 1, 5, null, 'fifo')"), append(byClaim, "past_attempts", "due_at")...)

	leased := row("select * from agent.event")
	exec(t, conn, "select agent.delete_event(17)")
	same("agent.event_hist", leased, row("select * from agent.event_hist"), append(ofLimits, "claim_token", "text_size", "extended_at")...)
	same("get_event of history", leased, row("select * from agent.get_event(17)"), notShown...)
	same("list_history", leased, row("select * from agent.list_history()"), notShown...)

	exec(t, conn, "select agent.requeue_event(17)")
	same("requeue_event", leased, row("select * from agent.event"), append(byClaim, "id", "enqueued_at", "last_error", "requeued_from", "key", "expires_at", "past_attempts", "text_size", "due_at")...)
}
