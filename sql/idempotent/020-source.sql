-- Sources: senders of webhooks, and the counts of their deliveries. See docs/webhooks-in.md.

-- Creates or replaces a source. _settings are its columns by name; one that is left out has its default. _secrets are sealed by the service; null: those
-- that it has stay. Raises QD003, and QD004 if _if_versions (null: any) has not its version, if there is no source and it is given or _if_exists is true, or if there is one
-- and _if_absent.
create or replace function agent_service.put_source
( _name text
, _settings jsonb
, _secrets bytea[] default null
, _if_versions int8[] default null
, _if_exists boolean default false
, _if_absent boolean default false
)
returns table (source agent.source_info, is_new boolean)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
#variable_conflict use_column
declare
  _before agent.source;
  _source agent.source;
begin
  select s.* into _before from agent.source s where s.name = _name for update;
  _source = jsonb_populate_record(null::agent.source, _settings);
  _source.name = _name;
  _source.secrets = coalesce(_secrets, _before.secrets);
  _source.dedup_for = coalesce(_source.dedup_for, interval '7 days');
  _source.tolerance = coalesce(_source.tolerance, interval '5 minutes');
  _source.headers = coalesce(_source.headers, '{}');
  _source.paused = coalesce(_source.paused, false);
  if _before.name is null and (_if_versions is not null or _if_exists) or _before.name is not null and _if_absent then
    perform agent_private.raise_version_mismatch('source ' || _name, _if_versions);
  end if;
  perform agent_private.check_source(_source), agent_private.check_json('signature', _source.signature);

  insert into agent.source as s
  ( name, kind, queue, topic, type, key, event_ts, priority, group_key, signature, header, secrets, dedup_for, tolerance, keep_raw, headers, max_body
  , rate_per_second, rate_burst, paused
  )
  values
  ( _name, _source.kind, _source.queue, _source.topic, _source.type, _source.key, _source.event_ts, _source.priority, _source.group_key, _source.signature, _source.header
  , _source.secrets, _source.dedup_for, _source.tolerance, _source.keep_raw, _source.headers, _source.max_body, _source.rate_per_second
  , _source.rate_burst, _source.paused
  )
  on conflict on constraint source_pkey do update
  set kind = excluded.kind, queue = excluded.queue, topic = excluded.topic, type = excluded.type, key = excluded.key, event_ts = excluded.event_ts
  , priority = excluded.priority, group_key = excluded.group_key, signature = excluded.signature, header = excluded.header
  , secrets = coalesce(_secrets, s.secrets) -- those of now: others may have changed them since
  , dedup_for = excluded.dedup_for, tolerance = excluded.tolerance, keep_raw = excluded.keep_raw, headers = excluded.headers
  , max_body = excluded.max_body, rate_per_second = excluded.rate_per_second, rate_burst = excluded.rate_burst, paused = excluded.paused
  , version = s.version + 1, updated_at = clock_timestamp()
  where not _if_absent and (_if_versions is null or s.version = any (_if_versions))
  returning s.* into _source;
  if _source.version is null then
    perform agent_private.raise_version_mismatch('source ' || _name, _if_versions);
  end if;
  perform agent_private.check_kept_fields(_source); -- now that the proof fields of all who were before are there
  perform agent_private.record_audit
  ( 'source.put', _name
  , jsonb_strip_nulls(jsonb_build_object
    ( 'kind', _source.kind, 'queue', _source.queue, 'topic', _source.topic, 'paused', _source.paused
    , 'secrets', case when _secrets is not null then cardinality(_secrets) end
    ))
  );
  return query select agent_private.source_info(_source, c), _source.version = 1
  from (select) as one left join agent.source_count c on c.name = _name;
end
$func$;

-- Deletes a source and its counts. Raises QD040 if there is no such source, and QD004 if _if_versions (null: any) has not its version.
create or replace function agent.delete_source(_name text, _if_versions int8[] default null)
returns void
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _version int8;
begin
  select s.version into _version from agent.source s where s.name = _name for update;
  if not found then
    raise exception 'there is no source %', _name using errcode = 'QD040';
  elsif _version <> all (_if_versions) then
    perform agent_private.raise_version_mismatch('source ' || _name, _if_versions);
  end if;
  delete from agent.source s where s.name = _name;
  perform agent_private.record_audit('source.delete', _name);
end
$func$;

-- Up to _limit sources by name, after _after, without their secrets. _queues and _topics are patterns of the targets that they may have; null: any. With _name
-- only that one.
create or replace function agent.list_sources
( _limit int4 default 100
, _after text default null
, _queues text[] default null
, _topics text[] default null
, _name text default null
)
returns setof agent.source_info
language plpgsql stable
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  return query
  select i.*
  from
  ( select s
    from agent.source s
    where (_after is null or s.name > _after)
      and (_name is null or s.name = _name)
      and
      ( s.queue is not null and agent_private.is_queue_allowed(s.queue, _queues)
        or s.topic is not null and agent_private.are_topics_allowed(array[s.topic], _topics)
      )
    order by s.name
    limit _limit
  ) as l (source)
  left join agent.source_count c on c.name = (l.source).name
  cross join lateral agent_private.source_info(l.source, c) i
  order by i.name;
end
$func$;

-- The header fields, in lower case, that ever had the secret of each source, or of a source of this name that was deleted. For the service.
create or replace function agent_service.list_proof_fields()
returns table (name text, fields text[])
language plpgsql stable
security definer
set search_path to pg_catalog, pg_temp
as $func$
#variable_conflict use_column
begin
  return query
  select f.name, array_agg(f.field order by f.field)
  from agent.source_proof_field f
  join agent.source s on s.name = f.name
  group by f.name;
end
$func$;

-- All sources, or the one of this name, with their secrets. For the service.
create or replace function agent_service.read_sources(_name text default null)
returns setof agent.source
language plpgsql stable
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  return query select s.* from agent.source s where _name is null or s.name = _name;
end
$func$;

-- Adds to the counts of sources. _counts have the columns of agent.source_count by name; the name of a source that was deleted counts nothing. For
-- the service.
create or replace function agent_service.count_deliveries(_counts jsonb[])
returns void
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  insert into agent.source_count as c
  select n.*
  from unnest(_counts) as u (count)
  cross join lateral jsonb_populate_record(null::agent.source_count, u.count) n
  join agent.source s on s.name = n.name
  order by n.name -- so that two calls cannot deadlock
  on conflict on constraint source_count_pkey do update
  set received = c.received + excluded.received
  , duplicates = c.duplicates + excluded.duplicates
  , rejected = c.rejected + excluded.rejected
  , last_received_at = greatest(c.last_received_at, excluded.last_received_at)
  , last_rejected_at = greatest(c.last_rejected_at, excluded.last_rejected_at)
  , last_rejected_code = case when excluded.last_rejected_at >= coalesce(c.last_rejected_at, '-infinity') then excluded.last_rejected_code else c.last_rejected_code end
  , last_rejected_request_id = case when excluded.last_rejected_at >= coalesce(c.last_rejected_at, '-infinity') then excluded.last_rejected_request_id else c.last_rejected_request_id end
  , last_problem_at = greatest(c.last_problem_at, excluded.last_problem_at)
  , last_problem = case when excluded.last_problem_at >= coalesce(c.last_problem_at, '-infinity') then excluded.last_problem else c.last_problem end
  , last_problem_request_id = case when excluded.last_problem_at >= coalesce(c.last_problem_at, '-infinity') then excluded.last_problem_request_id else c.last_problem_request_id end;
end
$func$;

-- The members of a source that may be shown. _count may be null.
create or replace function agent_private.source_info(_source agent.source, _count agent.source_count)
returns agent.source_info
language sql immutable
set search_path to pg_catalog, pg_temp
as $func$
  select _source.name, _source.kind, _source.queue, _source.topic, _source.type, _source.key, _source.event_ts, _source.priority, _source.signature
  , _source.header, cardinality(_source.secrets), _source.dedup_for, _source.tolerance, _source.keep_raw, _source.headers, _source.max_body
  , _source.rate_per_second, _source.rate_burst, _source.paused, _source.version, _source.created_at, _source.updated_at
  , coalesce(_count.received, 0), coalesce(_count.duplicates, 0), coalesce(_count.rejected, 0), _count.last_received_at, _count.last_rejected_at
  , _count.last_rejected_code, _count.last_rejected_request_id, _count.last_problem_at, _count.last_problem, _count.last_problem_request_id, _source.group_key
$func$;

-- Trigger that remembers which header fields have had the secret of a source, whoever writes it. It runs as the owner so that any role that may write can.
create or replace function agent_private.record_proof_field()
returns trigger
language plpgsql
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  if new.kind = 'token' and new.header is not null then
    insert into agent.source_proof_field (name, field) values (new.name, lower(new.header)) on conflict on constraint source_proof_field_pkey do nothing;
  end if;
  return null;
end
$func$;

create or replace trigger record_proof_field
after insert or update of name, kind, header on agent.source
for each row
execute function agent_private.record_proof_field();

create or replace trigger change_replica after insert or update or delete or truncate on agent.source
for each statement execute function agent_private.change_replica('source');
create or replace trigger change_replica after insert or update or delete or truncate on agent.source_proof_field
for each statement execute function agent_private.change_replica('source');

-- Raises QD003 if a source keeps a header field, or uses one in a template, that has or had its secret: readers of events would see it. Its sender may go on
-- sending a former secret. Fields of the credentials of others are refused, too.
create or replace function agent_private.check_kept_fields(_source agent.source)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
declare
  _in text;
  _field text;
begin
  select k.in_, f.field into _in, _field
  from
  ( values ('authorization'), ('proxy-authorization'), ('cookie')
    union
    select p.field from agent.source_proof_field p where p.name = _source.name
  ) as f (field)
  cross join lateral
  ( select 'headers' as in_ from unnest(_source.headers) as h (name) where lower(h.name) = f.field
    union all
    select t.in_
    from (values ('type', _source.type), ('key', _source.key), ('event_ts', _source.event_ts), ('priority', _source.priority), ('group', _source.group_key)) as t (in_, text)
    where strpos(lower(t.text), '{header:' || f.field || '}') > 0
  ) k
  order by 1, 2
  limit 1;
  if found then
    perform agent_private.raise_invalid(_in, 'must not have the header field ' || _field || ': it has a secret, or had the one of the source');
  end if;
end
$func$;

-- Raises QD003 for the first value that a source may not have.
create or replace function agent_private.check_source(_source agent.source)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  if agent_private.is_queue_name(_source.name) is not true then -- the same rule
    perform agent_private.raise_invalid('name', 'must be 1 to 128 of A-Z a-z 0-9 . _ : -, but not . or ..');
  elsif coalesce(_source.kind not in ('slack', 'github', 'stripe', 'standard', 'hmac', 'token', 'basic', 'cloudevents'), true) then
    perform agent_private.raise_invalid('kind', 'must be one of slack, github, stripe, standard, hmac, token, basic, cloudevents');
  elsif num_nonnulls(_source.queue, _source.topic) <> 1 then
    perform agent_private.raise_invalid('queue', 'must be given, or topic, and not both');
  elsif coalesce(cardinality(_source.secrets) not between 1 and 5 or array_position(_source.secrets, null) is not null, true) then
    perform agent_private.raise_invalid('secrets', 'must have 1 to 5 elements');
  elsif not _source.dedup_for between interval '1 second' and interval '3650 days' then
    perform agent_private.raise_invalid('dedup_for', 'must be from a second to 3,650 days');
  elsif not _source.tolerance between interval '1 second' and interval '1 day' then
    perform agent_private.raise_invalid('tolerance', 'must be from a second to a day');
  elsif not _source.keep_raw between interval '1 second' and interval '3650 days' then
    perform agent_private.raise_invalid('keep_raw', 'must be from a second to 3,650 days');
  elsif _source.keep_raw is not null and _source.topic is not null then
    perform agent_private.raise_invalid('keep_raw', 'is for a queue: the log keeps no raw bodies');
  elsif _source.priority is not null and _source.topic is not null then
    perform agent_private.raise_invalid('priority', 'is for a queue: the log has one order');
  elsif _source.group_key is not null and _source.topic is not null then
    perform agent_private.raise_invalid('group', 'is for a queue: the log has no groups');
  elsif _source.max_body < 1 then
    perform agent_private.raise_invalid('max_body', 'must be at least 1');
  elsif (_source.rate_per_second is null) <> (_source.rate_burst is null) or not _source.rate_per_second between 0.001 and 1e6
    or not _source.rate_burst between 1 and 1000000
  then
    perform agent_private.raise_invalid('rate_limit', 'must have per_second of 0.001 to 1000000, and burst of 1 to 1000000');
  end if;
  if _source.queue is not null then
    perform agent_private.check_queue_name(agent_private.unreserved_queue(_source.queue));
  end if;
end
$func$;

-- Secrets that are sealed under keys which are not in the database.

-- All that is sealed: of sources, and of pushes. For queued secrets reseal.
create or replace function agent_service.list_sealed()
returns table (kind text, name text, place int8, sealed bytea)
language plpgsql stable
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  return query
  select 'source', s.name, u.ord, u.sealed from agent.source s cross join lateral unnest(s.secrets) with ordinality as u (sealed, ord)
  union all
  select 'push.headers', p.queue, 0::int8, p.headers from agent.push p where p.headers is not null
  union all
  select 'push.secret', p.queue, p.id, p.secret from agent.push_secret p
  order by 1, 2, 3;
end
$func$;

-- Replaces the sealed value _before by the same value sealed anew, _after. Returns false and changes nothing when something else is there by
-- now. Versions stay: nothing that callers have set has changed. Raises QD003 for an unknown kind.
create or replace function agent_service.reseal(_kind text, _name text, _place int8, _before bytea, _after bytea)
returns boolean
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  case _kind
    when 'source' then
      update agent.source s set secrets[_place::int4] = _after where s.name = _name and s.secrets[_place::int4] = _before;
    when 'push.headers' then
      update agent.push p set headers = _after where p.queue = _name and p.headers = _before;
    when 'push.secret' then
      update agent.push_secret p set secret = _after where p.queue = _name and p.id = _place and p.secret = _before;
    else
      perform agent_private.raise_invalid('kind', 'must be source, push.headers or push.secret');
  end case;
  return found;
end
$func$;
