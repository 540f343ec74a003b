-- Keys of callers over HTTP, sessions that were begun with them, and the audit of changes of how the service works. See docs/access.md.
--
-- Everybody who changes keys locks the row of agent.access first, so that no two changes together leave no live admin key.

-- Creates a key and returns the fields of it that may be shown. _hash is the SHA-256 of its text, _verifier the public key of its signatures. Without
-- _queues and _topics it may use all of them, else only those that these patterns name. With _is_first it has to be the first key ever: raises
-- QD032 if there has been one. Raises QD003.
create or replace function agent_service.create_api_key
( _id text
, _name text
, _scopes text[]
, _hash bytea
, _verifier bytea
, _queues text[] default null
, _topics text[] default null
, _expires_at timestamptz default null
, _rate_per_second float8 default null
, _rate_burst int4 default null
, _is_first boolean default false
)
returns agent.api_key_info
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _key agent.api_key;
  _is_required boolean;
begin
  select a.is_required into strict _is_required from agent.access a for update;
  if _is_first and _is_required then
    raise exception 'there has been a key' using errcode = 'QD032';
  end if;
  _key.id = _id;
  _key.name = _name;
  _key.scopes = _scopes;
  _key.queues = case when coalesce(_queues, _topics) is not null then coalesce(_queues, '{}') end;
  _key.topics = case when coalesce(_queues, _topics) is not null then coalesce(_topics, '{}') end;
  _key.expires_at = _expires_at;
  _key.rate_per_second = _rate_per_second;
  _key.rate_burst = _rate_burst;
  perform agent_private.check_api_key(_key);
  if _expires_at <= clock_timestamp() then
    perform agent_private.raise_invalid('expires_at', 'must be in the future');
  end if;
  if coalesce(octet_length(_hash) <> 32 or octet_length(_verifier) <> 32 or _id !~ '^[a-z2-7]{8}$', true) then
    perform agent_private.raise_invalid('id', 'must be 8 of a-z 2-7, with a hash and a verifier of 32 bytes each');
  end if;
  insert into agent.api_key as k (id, name, scopes, queues, topics, rate_per_second, rate_burst, hash, verifier, expires_at)
  values (_id, _name, _scopes, _key.queues, _key.topics, _rate_per_second, _rate_burst, _hash, _verifier, _expires_at)
  returning k.* into _key;
  perform agent_private.record_audit('key.create', _id, agent_private.api_key_detail(_key));
  return agent_private.api_key_info(_key);
end
$func$;

-- Changes a key: those that _changes has of name, scopes, queues, topics, expires_at, rate_per_second and rate_burst. Raises QD003, QD030 if there is
-- no such key, QD004 if its version is none of _if_versions (null: any), QD033 if it was revoked, and QD031 if no live admin key would be left.
create or replace function agent.update_api_key(_id text, _changes jsonb, _if_versions int8[] default null)
returns agent.api_key_info
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _before agent.api_key = agent_private.lock_api_key(_id);
  _key agent.api_key = jsonb_populate_record(_before, _changes);
  _unknown text;
begin
  for _unknown in
    select c from jsonb_object_keys(_changes) c
    where c not in ('name', 'scopes', 'queues', 'topics', 'expires_at', 'rate_per_second', 'rate_burst')
  loop
    perform agent_private.raise_invalid(_unknown, 'cannot be changed');
  end loop;
  if _before.version <> all (_if_versions) then
    perform agent_private.raise_version_mismatch('key ' || _id, _if_versions);
  elsif _before.revoked_at is not null then
    raise exception 'the key % was revoked', _id using errcode = 'QD033';
  end if;
  if _key.queues is not null or _key.topics is not null then
    _key.queues = coalesce(_key.queues, '{}');
    _key.topics = coalesce(_key.topics, '{}');
  end if;
  perform agent_private.check_api_key(_key);
  if row(_before.name, _before.scopes, _before.queues, _before.topics, _before.expires_at, _before.rate_per_second, _before.rate_burst)
    is not distinct from row(_key.name, _key.scopes, _key.queues, _key.topics, _key.expires_at, _key.rate_per_second, _key.rate_burst)
  then
    return agent_private.api_key_info(_before);
  end if;
  update agent.api_key k
  set name = _key.name, scopes = _key.scopes, queues = _key.queues, topics = _key.topics, expires_at = _key.expires_at
  , rate_per_second = _key.rate_per_second, rate_burst = _key.rate_burst
  , version = agent_private.next_copied_version(k.version), updated_at = agent_private.next_copied_time(k.updated_at)
  where k.id = _id
  returning k.* into _key;
  perform agent_private.check_admin_left(_before);
  perform agent_private.record_audit('key.update', _id, agent_private.api_key_detail(_key));
  return agent_private.api_key_info(_key);
end
$func$;

-- Gives a key another text, whose hash and verifier these are. The one before is accepted for _grace more. Raises QD003, QD030, and QD033 if
-- the key was revoked or has expired.
create or replace function agent_service.rotate_api_key(_id text, _hash bytea, _verifier bytea, _grace interval)
returns agent.api_key_info
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _key agent.api_key = agent_private.lock_api_key(_id);
begin
  if not coalesce(_grace between interval '0' and interval '365 days', false) then
    perform agent_private.raise_invalid('grace', 'must be from zero to 365 days');
  elsif coalesce(octet_length(_hash) <> 32 or octet_length(_verifier) <> 32, true) then
    perform agent_private.raise_invalid('hash', 'must be of 32 bytes, and so must the verifier');
  elsif not agent_private.is_live_api_key(_key) then
    raise exception 'the key % was revoked or has expired', _id using errcode = 'QD033';
  end if;
  update agent.api_key k
  set hash = _hash, verifier = _verifier, previous_hash = k.hash, previous_verifier = k.verifier
  , previous_until = agent_private.add_utc(clock_timestamp(), _grace)
  , version = agent_private.next_copied_version(k.version), updated_at = agent_private.next_copied_time(k.updated_at)
  where k.id = _id
  returning k.* into _key;
  perform agent_private.record_audit('key.rotate', _id, jsonb_build_object('previous_until', _key.previous_until));
  return agent_private.api_key_info(_key);
end
$func$;

-- Revokes a key, for ever. Repeating it changes nothing. Raises QD030, and QD031 if no live admin key would be left.
create or replace function agent.revoke_api_key(_id text)
returns void
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _key agent.api_key = agent_private.lock_api_key(_id);
begin
  if _key.revoked_at is not null then
    return;
  end if;
  update agent.api_key k
  set revoked_at = clock_timestamp()
  , version = agent_private.next_copied_version(k.version), updated_at = agent_private.next_copied_time(k.updated_at)
  where k.id = _id;
  perform agent_private.check_admin_left(_key);
  delete from agent_private.session s where s.key_id = _id;
  perform agent_private.record_audit('key.revoke', _id);
end
$func$;

-- Up to _limit keys by id, after _after; revoked ones for 90 days more. With _id only that one.
create or replace function agent.list_api_keys(_limit int4 default 100, _after text default null, _id text default null)
returns setof agent.api_key_info
language plpgsql stable
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  return query
  select i.*
  from (select k from agent.api_key k where (_after is null or k.id > _after) and (_id is null or k.id = _id) order by k.id limit _limit) k
  cross join lateral agent_private.api_key_info(k.k) i
  order by i.id;
end
$func$;

-- Whether callers need a key. For the service.
create or replace function agent_service.is_key_required()
returns boolean
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  return (select a.is_required from agent.access a);
end
$func$;

-- All keys, or the one of this id, with the hashes and verifiers of their texts. For the service.
create or replace function agent_service.read_api_keys(_id text default null)
returns setof agent.api_key
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  return query select k.* from agent.api_key k where _id is null or k.id = _id;
end
$func$;

-- Notes when these keys were used last. For the service.
create or replace function agent_service.record_key_use(_ids text[], _ats timestamptz[])
returns void
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  update agent.api_key k
  set last_used_at = u.at
  from
  ( select k.id, max(u.at) as at
    from unnest(_ids, _ats) as u (id, at)
    join agent.api_key k on k.id = u.id and (k.last_used_at is null or k.last_used_at < u.at)
    group by k.id
  ) as u
  where k.id = u.id;
end
$func$;

-- Deletes the keys that were revoked or have expired 90 days ago, and returns how many. Until then they are refused as what they are, and one that has expired can be given more time.
create or replace function agent.prune_api_keys()
returns int8
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _n int8;
begin
  if not exists (select from agent.api_key k where least(k.revoked_at, k.expires_at) < clock_timestamp() - interval '90 days') then
    return 0; -- a delete would have every process read the keys again
  end if;
  delete from agent.api_key k where least(k.revoked_at, k.expires_at) < clock_timestamp() - interval '90 days';
  get diagnostics _n = row_count;
  return _n;
end
$func$;

-- The members of a key that may be shown.
create or replace function agent_private.api_key_info(_key agent.api_key)
returns agent.api_key_info
language sql immutable
set search_path to pg_catalog, pg_temp
as $func$
  select _key.id, _key.name, _key.scopes, _key.queues, _key.topics, _key.rate_per_second, _key.rate_burst, _key.previous_until, _key.expires_at
  , _key.revoked_at, _key.last_used_at, _key.version, _key.created_at, _key.updated_at
$func$;

-- The detail of a key in the audit.
create or replace function agent_private.api_key_detail(_key agent.api_key)
returns jsonb
language sql stable
set search_path to pg_catalog, pg_temp
as $func$
  select jsonb_strip_nulls(jsonb_build_object
  ( 'name', _key.name, 'scopes', _key.scopes, 'queues', _key.queues, 'topics', _key.topics, 'expires_at', _key.expires_at
  , 'rate_per_second', _key.rate_per_second, 'rate_burst', _key.rate_burst
  ))
$func$;

-- Locks a key, and before it the row of agent.access. Raises QD030.
create or replace function agent_private.lock_api_key(_id text)
returns agent.api_key
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
declare
  _key agent.api_key;
begin
  perform from agent.access a for update;
  select k.* into _key from agent.api_key k where k.id = _id for update;
  if not found then
    raise exception 'there is no key %', _id using errcode = 'QD030';
  end if;
  return _key;
end
$func$;

-- Whether a key was not revoked and has not expired.
create or replace function agent_private.is_live_api_key(_key agent.api_key)
returns boolean
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  return _key.revoked_at is null and coalesce(_key.expires_at > clock_timestamp(), true);
end
$func$;

-- Raises QD031 if a change has taken from the live admin keys the last one, which _before was.
create or replace function agent_private.check_admin_left(_before agent.api_key)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  if 'admin' = any (_before.scopes) and agent_private.is_live_api_key(_before)
    and not exists (select from agent.api_key k where 'admin' = any (k.scopes) and agent_private.is_live_api_key(k))
  then
    raise exception 'the key % is the last admin key', _before.id using errcode = 'QD031';
  end if;
end
$func$;

-- Raises QD003 for the first value that a key may not have.
create or replace function agent_private.check_api_key(_key agent.api_key)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
declare
  _pattern text;
begin
  if coalesce(length(_key.name), 0) not between 1 and 255 then
    perform agent_private.raise_invalid('name', 'must be 1 to 255 characters');
  elsif array_ndims(_key.scopes) > 1 or array_ndims(_key.queues) > 1 or array_ndims(_key.topics) > 1 then
    perform agent_private.raise_invalid('scopes', 'must be a list of texts, and so must queues and topics');
  elsif coalesce(cardinality(_key.scopes), 0) not between 1 and 6 or array_position(_key.scopes, null) is not null
    or not _key.scopes <@ array['publish', 'claim', 'read', 'manage', 'metrics', 'admin']
  then
    perform agent_private.raise_invalid('scopes', 'must be one or more of publish, claim, read, manage, metrics, admin');
  elsif 'admin' = any (_key.scopes) and _key.queues is not null then
    perform agent_private.raise_invalid('scopes', 'must not have admin beside queues or topics: an admin key may use all');
  elsif not isfinite(_key.expires_at) then
    perform agent_private.raise_invalid('expires_at', 'must be finite');
  elsif (_key.rate_per_second is null) <> (_key.rate_burst is null) or not _key.rate_per_second between 0.001 and 1e6
    or not _key.rate_burst between 1 and 1000000
  then
    perform agent_private.raise_invalid('rate_limit', 'must have per_second of 0.001 to 1000000, and burst of 1 to 1000000');
  elsif cardinality(_key.queues) > 256 or cardinality(_key.topics) > 256 then
    perform agent_private.raise_invalid('queues', 'must be at most 256 patterns, and so must topics');
  end if;
  foreach _pattern in array coalesce(_key.queues, '{}') loop
    if coalesce(length(_pattern) > 128 or _pattern !~ '^([A-Za-z0-9._:-]+[*]?|[*])$' or starts_with(_pattern, 'queued.'), true) then
      perform agent_private.raise_invalid('queues', 'must be names of queues, with * at the end for any that begins so; queued.* is reserved');
    end if;
  end loop;
  perform agent_private.topic_regex(_key.topics);
end
$func$;

-- Trigger after changes of keys, whoever makes them: once there has been one, callers need one.
create or replace function agent_private.require_keys()
returns trigger
language plpgsql
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  update agent.access a set is_required = true where not a.is_required and exists (select from agent.api_key);
  return null;
end
$func$;

create or replace trigger require_keys after insert or update of version on agent.api_key
for each statement execute function agent_private.require_keys();

-- Processes have all columns of a key in memory but last_used_at.
create or replace trigger change_replica_on_insert_delete after insert or delete or truncate on agent.api_key
for each statement execute function agent_private.change_replica('access');
create or replace trigger change_replica_on_update after update of
  id, name, scopes, queues, topics, rate_per_second, rate_burst, hash, verifier, previous_hash, previous_verifier, previous_until, expires_at, revoked_at, version
, created_at, updated_at
on agent.api_key
for each statement execute function agent_private.change_replica('access');
create or replace trigger change_replica after insert or update of is_only, is_required or delete or truncate on agent.access
for each statement execute function agent_private.change_replica('access');

-- Whether one of these patterns (null: all) is the name of a queue, or its beginning before a last *. None stands for the service's own queues.
create or replace function agent_private.is_queue_allowed(_queue text, _patterns text[])
returns boolean
language sql immutable parallel safe
return _patterns is null or not starts_with(_queue, 'queued.') and exists
( select from unnest(_patterns) as p (pattern)
  where case when right(p.pattern, 1) = '*' then starts_with(_queue, left(p.pattern, -1)) else _queue = p.pattern end
);

-- Whether all topics that some patterns stand for (null: all there are) are among those that _allowed stands for: each has to be within one of them.
-- The service's own topics, and with them all there are, are within none but those that begin with "queued.".
create or replace function agent_private.are_topics_allowed(_patterns text[], _allowed text[])
returns boolean
language plpgsql immutable
set search_path to pg_catalog, pg_temp
as $func$
begin
  return _allowed is null
    or coalesce(cardinality(_patterns), 0) > 0 and not exists
    ( select from unnest(_patterns) as p (pattern)
      where not exists
      ( select from unnest(_allowed) as a (pattern)
        -- The words of a pattern are matched as if they were those of a topic; only ** stands for more than * does.
        where p.pattern ~
          ('^' || case when starts_with(a.pattern, '*') then '(?!queued[.])' else '' end || replace(replace(replace(replace(a.pattern, '.', '[.]'), '**', '#'), '*', '([A-Za-z0-9_:-]+|[*])'), '#', '.+') || '$')
      )
    );
end
$func$;

-- Sessions: log-ins of people in a browser. A session has the rights of its key; who authenticates one asks the database each time.

-- Creates a session of the key of this id, empty for the key of the configuration, and returns when it expires. _token_hash is the SHA-256 of its token, _proof
-- see agent_private.session. A key has at most 100; the oldest end. Raises QD003, and QD033 if the key was revoked or has expired.
create or replace function agent_service.create_session(_token_hash bytea, _proof bytea, _key_id text)
returns timestamptz
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _expires_at timestamptz;
begin
  if coalesce(octet_length(_token_hash) <> 32 or octet_length(_proof) <> 32 or _key_id !~ '^([a-z2-7]{8})?$', true) then
    perform agent_private.raise_invalid('token', 'must have a hash and a proof of 32 bytes each, and the id of a key or none');
  end if;
  perform from agent.access a for update; -- two at a time could leave more than 100, and one beside a revocation a session of that key
  if _key_id <> '' and not exists (select from agent.api_key k where k.id = _key_id and agent_private.is_live_api_key(k)) then
    raise exception 'the key % was revoked or has expired', _key_id using errcode = 'QD033';
  end if;
  insert into agent_private.session as s (token_hash, proof, key_id, place, expires_at)
  values (_token_hash, _proof, _key_id, agent_private.session_place(), agent_private.add_utc(clock_timestamp(), interval '12 hours'))
  returning s.expires_at into _expires_at;
  delete from agent_private.session s
  where s.token_hash in
  (select o.token_hash from agent_private.session o where o.key_id = _key_id order by o.created_at desc, o.token_hash offset 100);
  perform agent_private.record_session('session.create', _key_id, _token_hash);
  return _expires_at;
end
$func$;

-- Those of the sessions with these hashes of tokens that have neither ended nor expired. The caller judges the keys.
create or replace function agent_service.read_sessions(_token_hashes bytea[])
returns table (token_hash bytea, proof bytea, key_id text, expires_at timestamptz)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _place int8 = agent_private.session_place();
begin
  return query
  select s.token_hash, s.proof, s.key_id::text, s.expires_at
  from agent_private.session s
  where s.token_hash = any (_token_hashes) and s.place = _place and s.expires_at > clock_timestamp();
end
$func$;

-- Ends the session with this hash of its token. Repeating it changes nothing.
create or replace function agent_service.end_session(_token_hash bytea)
returns void
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _key_id text;
begin
  delete from agent_private.session s where s.token_hash = _token_hash returning s.key_id into _key_id;
  if found then
    perform agent_private.record_session('session.end', _key_id, _token_hash);
  end if;
end
$func$;

-- Ends all sessions of the key of this id, empty for the key of the configuration, and returns how many.
create or replace function agent_service.end_sessions(_key_id text)
returns int8
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _n int8;
begin
  delete from agent_private.session s where s.key_id = _key_id;
  get diagnostics _n = row_count;
  if _n > 0 then
    perform agent_private.record_audit('session.end', coalesce(nullif(_key_id, ''), 'QUEUED_API_KEY'), jsonb_build_object('sessions', _n));
  end if;
  return _n;
end
$func$;

-- Deletes up to _limit sessions that have expired, and returns how many.
create or replace function agent_service.prune_sessions(_limit int4)
returns int8
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _n int8;
begin
  delete from agent_private.session s
  where s.token_hash in
  ( select o.token_hash from agent_private.session o
    where o.expires_at <= clock_timestamp() order by o.expires_at, o.token_hash limit _limit for update skip locked
  );
  get diagnostics _n = row_count;
  return _n;
end
$func$;

-- Where a session is good: in this database, and on this timeline of its server. In a restored database, and after a failover, a session would be there again
-- that had ended meanwhile. Where the server does not show its timeline, each start of it may be a failover.
create or replace function agent_private.session_place()
returns int8
language sql volatile
set search_path to pg_catalog, pg_temp
as $func$
  select hashtextextended
  ( concat_ws
    ('/', coalesce(i.system_identifier, 0), i.database_oid, i.table_oid, coalesce(nullif(agent_private.current_timeline(), 0), agent_private.server_mark()))
  , 0
  )
  from agent_private.database_identity() i
$func$;

-- Records in the audit what was done with a session by itself: the actor is its key.
create or replace function agent_private.record_session(_action text, _key_id text, _token_hash bytea)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  insert into agent.audit (actor, role, action, target, detail)
  values
  ( coalesce('key:' || nullif(_key_id, ''), 'QUEUED_API_KEY'), session_user, _action, coalesce(nullif(_key_id, ''), 'QUEUED_API_KEY')
  , jsonb_build_object('session', encode(substr(_token_hash, 1, 8), 'hex'))
  );
end
$func$;

-- The audit.

-- Records an action of this transaction. The actor is the one that the transaction names (agent.actor), which the service sets to the key of the request,
-- else the role of the session. detail is small, and has no secret.
create or replace function agent_private.record_audit(_action text, _target text, _detail jsonb default null)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  insert into agent.audit (actor, role, action, target, detail)
  values (left(coalesce(nullif(current_setting('agent.actor', true), ''), session_user), 255), session_user, _action, left(_target, 255), _detail);
end
$func$;

-- Whose bounds, turns and idempotency keys the calls of this session go by: those of the actor that it names, which is a key, if it may run the service, else those of its role.
-- Others can name any actor.
create or replace function agent_private.caller()
returns text
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
declare
  _role text = 'role:' || session_user;
begin
  if has_function_privilege(session_user, 'agent_service.redrive_step(text, boolean)', 'execute') then
    return left(coalesce(nullif(current_setting('agent.actor', true), ''), _role), 255);
  end if;
  return _role;
end
$func$;

-- Records refused calls, which the service has gathered.
create or replace function agent_service.record_refusals(_actors text[], _reasons text[], _details jsonb[])
returns void
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  if cardinality(_actors) > 1000 then
    perform agent_private.raise_invalid('actors', 'must be at most 1000');
  end if;
  insert into agent.audit (actor, role, action, target, detail)
  select left(r.actor, 255), session_user, 'access.refuse', left(r.reason, 255), r.detail
  from unnest(_actors, _reasons, _details) as r (actor, reason, detail);
end
$func$;

-- Up to _limit actions of the audit, the latest first, before (_before_at, _before_id). Each filter may be null: the actor, the action, the
-- target, the time from (inclusive) and to (exclusive). An action that ends with * stands for all that begin so.
create or replace function agent.list_audit
( _actor text default null
, _action text default null
, _target text default null
, _from timestamptz default null
, _to timestamptz default null
, _limit int4 default 100
, _before_at timestamptz default null
, _before_id int8 default null
)
returns setof agent.audit
language plpgsql stable
security definer
set search_path to pg_catalog, pg_temp
set jit to off
as $func$
begin
  return query execute
    'select a.* from agent.audit a where (a.at, a.id) < ($1, $2)' || concat
    ( case when _actor is not null then format(' and a.actor = %L', _actor) end
    , case when right(_action, 1) = '*' then format(' and starts_with(a.action, %L)', left(_action, -1)) when _action is not null then format(' and a.action = %L', _action) end
    , case when _target is not null then format(' and a.target = %L', _target) end
    , case when _from is not null then ' and a.at >= $3' end
    , case when _to is not null then ' and a.at < $4' end
    ) || ' order by a.at desc, a.id desc limit $5'
    using coalesce(_before_at, 'infinity'), coalesce(_before_id, 0), _from, _to, _limit;
end
$func$;

-- Deletes up to _limit actions of the audit that are older than _retention, and returns how many.
create or replace function agent.prune_audit(_retention interval, _limit int4 default 1000)
returns int8
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
set jit to off
as $func$
declare
  _n int8;
begin
  if not coalesce(_retention > interval '0', false) then
    perform agent_private.raise_invalid('retention', 'must be greater than zero');
  end if;
  delete from agent.audit a
  where a.id in (select o.id from agent.audit o where o.at < clock_timestamp() - _retention order by o.at, o.id limit _limit for update skip locked);
  get diagnostics _n = row_count;
  return _n;
end
$func$;
