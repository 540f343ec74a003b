-- Access: keys of callers over HTTP, sessions of browsers, and the audit. See docs/access.md.

create table agent.api_key
( id text collate "C" primary key
, name text not null
, scopes text[] not null
, queues text[]
, topics text[]
, rate_per_second float8
, rate_burst int4
, hash bytea not null
, verifier bytea not null
, previous_hash bytea
, previous_verifier bytea
, previous_until timestamptz
, expires_at timestamptz
, revoked_at timestamptz
, last_used_at timestamptz
, version int8 not null default 1
, created_at timestamptz not null default clock_timestamp()
, updated_at timestamptz not null default clock_timestamp()
, change int8 not null default 0
, copied_epoch text collate "C"
, copied_change int8
, constraint api_key_id check (id ~ '^[a-z2-7]{8}$')
, constraint api_key_name check (length(name) between 1 and 255)
, constraint api_key_scopes check
  ( cardinality(scopes) between 1 and 6 and array_position(scopes, null) is null
    and scopes <@ array['publish', 'claim', 'read', 'manage', 'metrics', 'admin']
  )
, constraint api_key_restriction check ((queues is null) = (topics is null) and (queues is null or not 'admin' = any (scopes)))
, constraint api_key_rate check ((rate_per_second is null) = (rate_burst is null) and rate_per_second > 0 and rate_burst > 0)
, constraint api_key_hash check (octet_length(hash) = 32 and octet_length(verifier) = 32)
, constraint api_key_previous check
  ( (previous_hash is null) = (previous_until is null) and (previous_hash is null) = (previous_verifier is null)
  )
, constraint api_key_expires_at check (isfinite(expires_at))
) with (fillfactor = 50);
comment on table agent.api_key is 'the keys of callers, without the secret in their text';
comment on column agent.api_key.scopes is 'the kinds of calls that it may make';
comment on column agent.api_key.queues is 'patterns of the queues it may use; null: all, and all topics';
comment on column agent.api_key.topics is 'patterns of the topics it may use; null: all, and all queues';
comment on column agent.api_key.rate_per_second is 'requests; null: no limit';
comment on column agent.api_key.rate_burst is 'requests at once';
comment on column agent.api_key.hash is 'SHA-256 of its text';
comment on column agent.api_key.verifier is 'the public key, of Ed25519, that verifies what was signed with it';
comment on column agent.api_key.previous_hash is 'of the text before the latest rotation';
comment on column agent.api_key.previous_verifier is 'of the text before the latest rotation';
comment on column agent.api_key.previous_until is 'until when the text before the latest rotation is accepted';
comment on column agent.api_key.change is 'the number of its latest change, in one order for all keys';
comment on column agent.api_key.copied_epoch is
  'of home, when the key was copied from there last; empty: by hand, from anywhere; null: it was made here';
comment on column agent.api_key.copied_change is 'its change at home that is here, among those of the epoch';
create index api_key_change on agent.api_key (change);

create table agent_private.copied_epoch
( subject text collate "C" not null
, epoch text collate "C"
, constraint copied_epoch_pkey primary key (subject)
);
comment on table agent_private.copied_epoch is 'which epoch of home copies are taken of: those of keys (access) and of settings of queues (queue)';
comment on column agent_private.copied_epoch.epoch is 'null: none were taken yet';
insert into agent_private.copied_epoch (subject) values ('access'), ('queue');

create table agent_private.deleted_api_key
( id text collate "C" not null
, change int8 not null
, constraint deleted_api_key_pkey primary key (id)
);
comment on table agent_private.deleted_api_key is
  'the ids of keys that were deleted; they stay, so that a copy of such a key that comes late, from a gateway that was '
  'away, does not bring it back';
comment on column agent_private.deleted_api_key.change is 'the number of its deletion, among those of changes';
create index deleted_api_key_change on agent_private.deleted_api_key (change);

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
comment on type agent.api_key_info is 'what may be shown of a key';

create table agent.access
( is_only boolean primary key default true
, is_required boolean not null default false
, constraint access_is_only check (is_only)
);
comment on table agent.access is 'one row, which whoever changes keys locks';
comment on column agent.access.is_required is 'callers need a key: once there has been one, for ever';
insert into agent.access default values;

-- Nothing in a session lets anybody in: who has no token can use none of it, nor check guesses of a key with it.
create table agent_private.session
( token_hash bytea not null
, proof bytea not null
, key_id text collate "C" not null
, place int8 not null
, created_at timestamptz not null default clock_timestamp()
, expires_at timestamptz not null
, constraint session_pkey primary key (token_hash)
, constraint session_lengths check (octet_length(token_hash) = 32 and octet_length(proof) = 32 and length(key_id) in (0, 8))
);
comment on table agent_private.session is 'log-ins of people in a browser, each by a key';
comment on column agent_private.session.token_hash is 'SHA-256 of its token';
comment on column agent_private.session.proof is 'HMAC-SHA256, under the token, of the SHA-256 of the key''s text that it was begun with';
comment on column agent_private.session.key_id is 'of agent.api_key; empty: the key of the configuration, which is stored nowhere';
comment on column agent_private.session.place is 'where it is good: see agent_private.session_place()';
create index session_by_key on agent_private.session (key_id, created_at);
create index session_expires_at on agent_private.session (expires_at);

create table agent.audit
( id int8 not null generated always as identity primary key
, at timestamptz not null default clock_timestamp()
, actor text collate "C" not null
, role text collate "C" not null
, action text collate "C" not null
, target text collate "C" not null
, detail jsonb
);
comment on table agent.audit is 'who did what: rows are inserted, and deleted when they are old';
comment on column agent.audit.actor is 'key:<id>, the name of a setting, or a role: what the session says it is';
comment on column agent.audit.role is 'the role of the session';
comment on column agent.audit.action is '<noun>.<verb>';
comment on column agent.audit.target is 'what it was done to';
create index audit_by_time on agent.audit (at, id);
create index audit_by_actor on agent.audit (actor, at, id);
create index audit_by_action on agent.audit (action, at, id);
create index audit_by_target on agent.audit (target, at, id);
