-- Keys of callers over HTTP, and the audit. See docs/access.md.

-- agent.api_key: a key, without the secret in its text.
create table agent.api_key
( id text collate "C" primary key
, name text not null
, scopes text[] not null
, queues text[]                            -- patterns of the queues it may use; null: all, and all topics
, topics text[]                            -- patterns of the topics it may use; null: all, and all queues
, rate_per_second float8                   -- requests; null: no limit
, rate_burst int4                          -- requests at once
, hash bytea not null                      -- SHA-256 of its text
, verifier bytea not null                  -- the public key that verifies what was signed with it
, previous_hash bytea                      -- of the text before the latest rotation
, previous_verifier bytea
, previous_until timestamptz               -- until when that one is accepted
, expires_at timestamptz
, revoked_at timestamptz
, last_used_at timestamptz
, version int8 not null default 1
, created_at timestamptz not null default clock_timestamp()
, updated_at timestamptz not null default clock_timestamp()
, constraint api_key_id check (id ~ '^[a-z2-7]{8}$')
, constraint api_key_name check (length(name) between 1 and 255)
, constraint api_key_scopes check
  ( cardinality(scopes) between 1 and 6 and array_position(scopes, null) is null
    and scopes <@ array['publish', 'claim', 'read', 'manage', 'metrics', 'admin']
  )
, constraint api_key_restriction check ((queues is null) = (topics is null) and (queues is null or not 'admin' = any (scopes)))
, constraint api_key_rate check ((rate_per_second is null) = (rate_burst is null) and rate_per_second > 0 and rate_burst > 0)
, constraint api_key_hash check (octet_length(hash) = 32 and octet_length(verifier) = 32)
, constraint api_key_previous check ((previous_hash is null) = (previous_until is null) and (previous_hash is null) = (previous_verifier is null))
, constraint api_key_expires_at check (isfinite(expires_at))
) with (fillfactor = 50);

-- What may be shown of a key.
create type agent.api_key_info as
( id text
, name text
, scopes text[]
, queues text[]
, topics text[]
, rate_per_second float8
, rate_burst int4
, previous_until timestamptz
, expires_at timestamptz
, revoked_at timestamptz
, last_used_at timestamptz
, version int8
, created_at timestamptz
, updated_at timestamptz
);

-- agent.access: whoever changes keys locks its one row, and gives it another version. Once there has been a key, callers need one for ever.
create table agent.access
( is_only boolean primary key default true
, version uuid not null default gen_random_uuid()
, is_required boolean not null default false
, constraint access_is_only check (is_only)
);
insert into agent.access default values;

-- agent.audit: who did what. Rows are inserted, and deleted when they are old.
create table agent.audit
( id int8 not null generated always as identity primary key
, at timestamptz not null default clock_timestamp()
, actor text collate "C" not null          -- key:<id>, the name of a setting, or a role; what the session says it is
, role text collate "C" not null           -- of the session
, action text collate "C" not null         -- <noun>.<verb>
, target text collate "C" not null
, detail jsonb
);
create index audit_by_time on agent.audit (at, id);
create index audit_by_actor on agent.audit (actor, at, id);
create index audit_by_action on agent.audit (action, at, id);
create index audit_by_target on agent.audit (target, at, id);

-- Functions that take or return something more have to go first, with their grants: see the script of the privileges.
create temporary table if not exists kept_grants (function name, grantee oid) on commit drop;
insert into kept_grants (function, grantee)
select distinct p.proname, a.grantee
from pg_catalog.pg_proc p
cross join pg_catalog.aclexplode(p.proacl) a
where p.pronamespace = 'agent'::pg_catalog.regnamespace
and p.proname in ('list_events', 'list_history', 'history_stats', 'requeue_events', 'queue_stats', 'list_schedules', 'list_topics', 'list_subscriptions')
and a.grantee not in (0, p.proowner) and a.privilege_type = 'EXECUTE';

drop function if exists agent.list_events(text, text, int4, timestamptz, int8, jsonb, jsonb);
drop function if exists agent_private.list_events_of_all_queues(text, int4, timestamptz, int8, timestamptz, timestamptz, timestamptz, jsonb, jsonb);
drop function if exists agent.list_history
  (text, text, timestamptz, timestamptz, jsonb, int8, int4, timestamptz, int8, text, text, text, interval, jsonb);
drop function if exists agent_private.history_filter(text, timestamptz, timestamptz, jsonb, text, text, text, interval, jsonb);
drop function if exists agent.history_stats(interval, timestamptz, timestamptz, text);
drop function if exists agent.requeue_events
  (text, text, timestamptz, timestamptz, jsonb, int8, int4, boolean, boolean, text, text, text, interval, jsonb);
drop function if exists agent.queue_stats(interval, text, int4, text[]);
drop function if exists agent_private.queue_names(text, int4);
drop function if exists agent.list_schedules(text, text, text, timestamptz, int4, timestamptz, int8);
drop function if exists agent.list_topics(int4, text);
drop function if exists agent.list_subscriptions(int4, text, text);
