-- Pushes: a queue whose events are sent to an endpoint by the service. See docs/webhooks-out.md.
--
-- agent.push and agent.push_secret are changed by callers, agent.push_state by those who push: its epoch fences the records of one of them
-- against changes since it looked. Everybody locks the row of agent.push first.

-- Sets where the events of a queue are pushed to, and returns whether that is new. _headers is sealed, and null in both _headers and
-- _header_names keeps those that there are, unless _url leads to another host. _secret, sealed, is that of a new push; another one keeps its own. The queue's policy gets 10 attempts
-- and a backoff of about 27 hours where it says nothing of them, so that no event expires earlier. Raises QD003, and QD004 if the push has none of
-- _if_versions (null: any), if there is none and _if_exists, or if there is one and _if_absent.
create or replace function agent_service.put_push
( _queue text
, _url text
, _format text
, _timeout interval
, _max_in_flight int4
, _rate_per_second float8
, _rate_burst int4
, _final_statuses int4[]
, _disable_after interval
, _headers bytea
, _header_names text[]
, _secret bytea
, _if_versions int8[] default null
, _if_exists boolean default false
, _if_absent boolean default false
)
returns boolean
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _before agent.push;
  _is_new boolean;
begin
  perform agent_private.check_queue_name(agent_private.unreserved_queue(_queue));
  if coalesce(length(_url) not between 1 and 2048, true) then
    perform agent_private.raise_invalid('url', 'must be 1 to 2048 characters');
  elsif coalesce(_format not in ('standard', 'cloudevents', 'event'), true) then
    perform agent_private.raise_invalid('format', 'must be standard, cloudevents or event');
  elsif not coalesce(_timeout between interval '1 second' and interval '5 minutes', false) then
    perform agent_private.raise_invalid('timeout', 'must be 1 second to 5 minutes');
  elsif not coalesce(_max_in_flight between 1 and 1000, false) then
    perform agent_private.raise_invalid('max_in_flight', 'must be 1 to 1000');
  elsif (_rate_per_second is null) <> (_rate_burst is null) or not _rate_per_second between 0.001 and 1e6 or not _rate_burst between 1 and 1000000 then
    perform agent_private.raise_invalid('rate', 'must have per_second of 0.001 to 1000000, and burst of 1 to 1000000');
  elsif coalesce(cardinality(_final_statuses) > 100 or array_position(_final_statuses, null) is not null
    or not 400 <= all (_final_statuses) or not 599 >= all (_final_statuses), true)
  then
    perform agent_private.raise_invalid('final_statuses', 'must be up to 100 statuses of 400 to 599');
  elsif not coalesce(_disable_after between interval '12 hours' and interval '8760 hours', false) then
    perform agent_private.raise_invalid('disable_after', 'must be 12 hours to 8760 hours');
  elsif coalesce(cardinality(_header_names), 0) > 50 or (_headers is null) <> (coalesce(cardinality(_header_names), 0) = 0) then
    perform agent_private.raise_invalid('headers', 'must be up to 50 fields');
  end if;

  perform agent_private.lock_queue(_queue, true); -- so that nobody deletes the policy between it and the push
  perform from agent.push p where p.queue = _queue for update;
  -- Before the push: who changes a policy locks its row, and notes the change then, as who changes a push does.
  insert into agent.queue as q (name, max_attempts, backoff_kind, backoff_base, backoff_factor, backoff_max, backoff_jitter)
  values (_queue, 10, 'exponential', interval '5 seconds', 4, interval '36000 seconds', 0.2)
  on conflict (name) do update
  set max_attempts = coalesce(q.max_attempts, excluded.max_attempts)
  , backoff_kind = coalesce(q.backoff_kind, excluded.backoff_kind)
  , backoff_base = case when q.backoff_kind is null then excluded.backoff_base else q.backoff_base end
  , backoff_factor = case when q.backoff_kind is null then excluded.backoff_factor else q.backoff_factor end
  , backoff_max = case when q.backoff_kind is null then excluded.backoff_max else q.backoff_max end
  , backoff_jitter = case when q.backoff_kind is null then excluded.backoff_jitter else q.backoff_jitter end
  , updated_at = clock_timestamp()
  where q.max_attempts is null or q.backoff_kind is null;
  loop
    insert into agent.push as p
    (queue, url, format, headers, header_names, timeout, max_in_flight, rate_per_second, rate_burst, final_statuses, disable_after)
    select _queue, _url, _format, _headers, coalesce(_header_names, '{}'), _timeout, _max_in_flight, _rate_per_second, _rate_burst, _final_statuses
    , _disable_after
    where _if_versions is null and not _if_exists
    on conflict (queue) do nothing;
    _is_new = found;
    exit when _is_new;
    select p.* into _before from agent.push p where p.queue = _queue for update;
    exit when found;
    if _if_versions is not null or _if_exists then
      perform agent_private.raise_version_mismatch('push of ' || _queue, _if_versions);
    end if;
  end loop; -- it was deleted in between
  if _is_new then
    insert into agent.push_secret (queue, secret) values (_queue, _secret);
    -- Later than any epoch of a push that the queue had before.
    insert into agent.push_state (queue, epoch) values (_queue, (extract(epoch from clock_timestamp()) * 1e6)::int8);
  else
    if _if_absent or _before.version <> all (_if_versions) then
      perform agent_private.raise_version_mismatch('push of ' || _queue, _if_versions);
    end if;
    if _headers is null and _header_names is null then
      -- Who may change a push may not see its header fields, so they must not be sent to a host of the caller's choice.
      if _before.headers is not null and lower(substring(_before.url from '^[^:]*://[^/?]*')) <> lower(substring(_url from '^[^:]*://[^/?]*')) then
        perform agent_private.raise_invalid('headers', 'must be given again, or as {}, because url leads to another host');
      end if;
      _headers = _before.headers;
      _header_names = _before.header_names;
    end if;
    update agent.push p
    set url = _url, format = _format, headers = _headers, header_names = _header_names, timeout = _timeout, max_in_flight = _max_in_flight
    , rate_per_second = _rate_per_second, rate_burst = _rate_burst, final_statuses = _final_statuses, disable_after = _disable_after
    , version = p.version + 1, updated_at = clock_timestamp()
    where p.queue = _queue
    and row(p.url, p.format, p.headers, p.timeout, p.max_in_flight, p.rate_per_second, p.rate_burst, p.final_statuses, p.disable_after)
      is distinct from row(_url, _format, _headers, _timeout, _max_in_flight, _rate_per_second, _rate_burst, _final_statuses, _disable_after);
  end if;

  perform agent_private.record_audit('push.put', _queue, jsonb_strip_nulls(jsonb_build_object
  ( 'url', split_part(_url, '?', 1), 'format', _format, 'headers', _header_names, 'timeout', _timeout, 'max_in_flight', _max_in_flight
  , 'rate_per_second', _rate_per_second, 'rate_burst', _rate_burst, 'final_statuses', _final_statuses, 'disable_after', _disable_after
  )));
  return _is_new;
end
$func$;

-- Ends the push of a queue, if it has one of _if_versions (null: any). Its events and its policy stay. Raises QD050 or QD004.
create or replace function agent.delete_push(_queue text, _if_versions int8[] default null)
returns void
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _push agent.push = agent_private.lock_push(_queue);
begin
  if _push.version <> all (_if_versions) then
    perform agent_private.raise_version_mismatch('push of ' || _queue, _if_versions);
  end if;
  perform agent_private.end_holding_back(agent_private.lock_push_state(_queue));
  delete from agent.push p where p.queue = _queue;
  perform agent_private.record_audit('push.delete', _queue);
end
$func$;

-- Gives a push another secret, sealed. Those before it go on signing for _keep more at most, the four latest of them. Raises QD003 or QD050.
create or replace function agent_service.rotate_push_secret(_queue text, _secret bytea, _keep interval)
returns void
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _push agent.push = agent_private.lock_push(_queue);
  _until timestamptz = agent_private.add_utc(clock_timestamp(), _keep);
begin
  if not coalesce(_keep between interval '0' and interval '365 days', false) then
    perform agent_private.raise_invalid('keep', 'must be from zero to 365 days');
  end if;
  update agent.push_secret s set live_until = least(s.live_until, _until) where s.queue = _queue;
  insert into agent.push_secret (queue, secret) values (_queue, _secret);
  delete from agent.push_secret s
  where s.queue = _queue
  and (s.live_until <= clock_timestamp() or s.id not in (select n.id from agent.push_secret n where n.queue = _queue order by n.id desc limit 5));
  perform agent_private.record_audit('push.rotate', _queue, jsonb_build_object('keep', _keep));
end
$func$;

-- Has a push begin anew: it is disabled no more, its breaker is closed, and nothing holds it. Repeating it changes nothing. Raises QD050.
create or replace function agent.enable_push(_queue text)
returns void
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _push agent.push = agent_private.lock_push(_queue);
  _state agent.push_state = agent_private.lock_push_state(_queue);
begin
  perform agent_private.end_holding_back(_state);
  update agent.push_state s
  set epoch = agent_private.next_version(s.epoch), failures = 0, failing_since = null, opened_at = null, pause = null, retry_at = null, disabled_at = null, disabled_reason = null
  where s.queue = _queue;
  if _state.disabled_at is not null then
    perform agent_private.publish_own('queued.push.enabled', jsonb_build_object('queue', _queue));
  elsif _state.opened_at is not null then
    perform agent_private.publish_own('queued.push.closed', jsonb_build_object('queue', _queue));
  end if;
  perform agent_private.record_audit('push.enable', _queue);
end
$func$;

-- Up to _limit pushes by queue, after _after. With _queue only that one.
create or replace function agent.list_pushes(_limit int4 default 100, _after text default null, _queue text default null)
returns setof agent.push_info
language plpgsql stable
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  return query
  select p.queue::text, p.url, p.format, p.header_names, p.timeout, p.max_in_flight, p.rate_per_second, p.rate_burst, p.final_statuses, p.disable_after
  , agent_private.push_status(s), s.failures, s.failing_since, s.last_failure_at, s.last_error, s.last_success_at
  , case when s.disabled_at is null and s.retry_at > clock_timestamp() then s.retry_at end, s.disabled_at, s.disabled_reason
  , ( select jsonb_agg(jsonb_build_object('created_at', k.created_at, 'live_until', k.live_until) order by k.id desc)
      from agent.push_secret k
      where k.queue = p.queue and coalesce(k.live_until > clock_timestamp(), true)
    )
  , p.version, p.created_at, p.updated_at
  from agent.push p
  join agent.push_state s on s.queue = p.queue
  where (_after is null or p.queue > _after) and (_queue is null or p.queue = _queue)
  order by p.queue
  limit _limit;
end
$func$;

-- All pushes, or that of one queue, with the data to push: the live secrets, the current one first, until when each of them is live (null: it is the
-- current one), and the state, in times from now. None in a copy of a database that nobody has adopted. For the service.
create or replace function agent_service.read_pushes(_queue text default null)
returns table
( queue text, url text, format text, headers bytea, timeout interval, max_in_flight int4, rate_per_second float8, rate_burst int4, final_statuses int4[]
, disable_after interval, version int8, secrets bytea[]
, epoch int8, failures int4, failing_for interval, last_error text, is_open boolean, pause interval, retry_in interval, is_disabled boolean
, secrets_until timestamptz[]
)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
#variable_conflict use_column
declare
  _now timestamptz = clock_timestamp();
begin
  return query
  select p.queue::text, p.url, p.format, p.headers, p.timeout, p.max_in_flight, p.rate_per_second, p.rate_burst, p.final_statuses, p.disable_after, p.version
  , array(select k.secret from agent.push_secret k where k.queue = p.queue and coalesce(k.live_until > _now, true) order by k.id desc)
  , s.epoch, s.failures, agent_private.elapsed(s.failing_since, _now), s.last_error, s.opened_at is not null, s.pause
  , agent_private.elapsed(_now, s.retry_at), s.disabled_at is not null
  , array(select k.live_until from agent.push_secret k where k.queue = p.queue and coalesce(k.live_until > _now, true) order by k.id desc)
  from agent.push p
  join agent.push_state s on s.queue = p.queue
  where (_queue is null or p.queue = _queue) and not agent_private.is_copy();
end
$func$;

-- The ids of the processes that push, as they have reported within _alive; null: all that agent_service.prune_processes has left. For the service.
create or replace function agent_service.list_pushers(_alive interval default interval '30 seconds')
returns setof text
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  return query
  select m.id::text from agent.process_metric m where m.category = 'pusher' and m.value = 'true' and coalesce(m.updated_at > clock_timestamp() - _alive, true);
end
$func$;

-- Records that a push has changed: whether its breaker is open and (not null) it is disabled, the failures in a row, for how long they have
-- gone on, for how long nothing is pushed. Returns the new epoch; null, and changes nothing, if _epoch is not the current one or there is no
-- such push. For the service.
create or replace function agent_service.record_push_change
( _queue text
, _epoch int8
, _is_open boolean
, _disabled_reason text
, _failures int4
, _failing_for interval
, _error text
, _pause interval
, _retry_in interval
)
returns int8
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _now timestamptz = clock_timestamp();
  _before agent.push_state;
  _after agent.push_state;
  _event jsonb;
begin
  perform from agent.push p where p.queue = _queue for share;
  if not found then
    return null;
  end if;
  _before = agent_private.lock_push_state(_queue);
  if _before.epoch <> _epoch then
    return null;
  end if;
  update agent.push_state s
  set epoch = agent_private.next_version(s.epoch), failures = _failures, failing_since = case when _failures > 0 then agent_private.add_utc(_now, - _failing_for) end
  , last_failure_at = case when _failures > 0 then _now else s.last_failure_at end
  , last_error = case when _failures > 0 or _retry_in is not null or _disabled_reason is not null then left(_error, 2048) else s.last_error end
  , last_success_at = case when s.opened_at is not null and not _is_open then _now else s.last_success_at end
  , opened_at = case when _is_open then coalesce(s.opened_at, _now) end
  , pause = _pause
  , retry_at = agent_private.add_utc(_now, _retry_in)
  where s.queue = _queue
  returning s.* into _after;
  if _disabled_reason is not null then -- else it is not disabled, as the epoch says
    update agent.push_state s
    set disabled_at = _now, disabled_reason = left(_disabled_reason, 2048)
    where s.queue = _queue
    returning s.* into _after;
  end if;
  _event = jsonb_strip_nulls(jsonb_build_object('queue', _queue, 'failures', _failures, 'failing_since', _after.failing_since, 'error', left(_error, 2048)));
  if _after.disabled_at is not null then
    perform agent_private.publish_own('queued.push.disabled', _event || jsonb_build_object('reason', _after.disabled_reason));
  elsif _after.opened_at is not null and _before.opened_at is null then
    perform agent_private.publish_own('queued.push.opened', _event || jsonb_build_object('retry_at', _after.retry_at));
  elsif _after.opened_at is null and _before.opened_at is not null then
    perform agent_private.end_holding_back(_before);
    perform agent_private.publish_own('queued.push.closed', jsonb_build_object('queue', _queue));
  end if;
  return _after.epoch;
end
$func$;

-- Records the state of pushes besides its changes: the failures in a row, how long ago the first and the last of them were, the error, and
-- how long ago the last success was (null: none was seen). Passes over those of another epoch. For the service.
create or replace function agent_service.record_push_seen
( _queues text[]
, _epochs int8[]
, _failures int4[]
, _failing_for interval[]
, _failed_ago interval[]
, _errors text[]
, _succeeded_ago interval[]
)
returns void
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _now timestamptz = clock_timestamp();
begin
  update agent.push_state s
  set failures = n.failures
  , failing_since = agent_private.add_utc(_now, - n.failing_for)
  , last_failure_at = greatest(s.last_failure_at, agent_private.add_utc(_now, - n.failed_ago))
  , last_error = coalesce(left(n.error, 2048), s.last_error)
  , last_success_at = greatest(s.last_success_at, agent_private.add_utc(_now, - n.succeeded_ago))
  from
  ( select l.*
    from unnest(_queues, _epochs, _failures, _failing_for, _failed_ago, _errors, _succeeded_ago)
      as l (queue, epoch, failures, failing_for, failed_ago, error, succeeded_ago)
    join agent.push_state o on o.queue = l.queue
    order by l.queue
    for update of o
  ) n
  where s.queue = n.queue and s.epoch = n.epoch;
end
$func$;

-- The first event of each chain of requeued events that ends with one of these, as far as history has it. For the service.
create or replace function agent_service.first_events(_ids int8[])
returns table (id int8, first_id int8)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
set enable_hashjoin to off
set enable_mergejoin to off
set jit to off
as $func$
#variable_conflict use_column
begin
  return query
  with recursive chain (start, id) as
  ( select n.id, n.id from unnest(_ids) as n (id)
    union
    select c.start, h.requeued_from
    from chain c
    join agent.event_hist h on h.id = c.id
    where h.requeued_from is not null
  )
  select c.start, min(c.id) from chain c group by c.start; -- copies have later ids
end
$func$;

-- Has the age of the events of a queue count from now at the earliest, if its push was held back: sweeps expire by it.
create or replace function agent_private.end_holding_back(_before agent.push_state)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  if _before.disabled_at is not null or _before.opened_at is not null or _before.retry_at is not null then
    update agent.queue q set resumed_at = clock_timestamp() where q.name = _before.queue;
  end if;
end
$func$;

-- The status of a push, by its state.
create or replace function agent_private.push_status(_state agent.push_state)
returns text
language sql volatile
set search_path to pg_catalog, pg_temp
as $func$
  select case
    when _state.disabled_at is not null then 'disabled'
    when _state.opened_at is not null then 'open'
    when _state.retry_at > clock_timestamp() then 'held'
    else 'enabled'
  end
$func$;

-- Locks the push of a queue. Raises QD050.
create or replace function agent_private.lock_push(_queue text)
returns agent.push
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
declare
  _push agent.push;
begin
  select p.* into _push from agent.push p where p.queue = _queue for update;
  if not found then
    raise exception 'the queue % has no push', _queue using errcode = 'QD050';
  end if;
  return _push;
end
$func$;

-- Locks the state of a push, whose row is locked.
create or replace function agent_private.lock_push_state(_queue text)
returns agent.push_state
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
declare
  _state agent.push_state;
begin
  select s.* into strict _state from agent.push_state s where s.queue = _queue for update;
  return _state;
end
$func$;

-- Processes have all of a push in memory but its state. Of that all have to know when it is disabled, or begins anew; the rest is known to the process that
-- pushes, which changes it too often for others to wait for that. A row each, because statements that find none change nothing.
create or replace trigger change_replica after insert or update or delete on agent.push
for each row execute function agent_private.change_replica('push');
create or replace trigger change_replica_on_truncate after truncate on agent.push
for each statement execute function agent_private.change_replica('push');
create or replace trigger change_replica after insert or update or delete on agent.push_secret
for each row execute function agent_private.change_replica('push');
create or replace trigger change_replica_on_truncate after truncate on agent.push_secret
for each statement execute function agent_private.change_replica('push');
create or replace trigger change_replica after insert or update of disabled_at, disabled_reason or delete on agent.push_state
for each row execute function agent_private.change_replica('push');
create or replace trigger change_replica_on_truncate after truncate on agent.push_state
for each statement execute function agent_private.change_replica('push');

-- A copy of a database has no pushes until it is adopted.
create or replace trigger change_replica after update of system_identifier, database_oid, table_oid on agent.server
for each row execute function agent_private.change_replica('push');

-- The processes that push, which share out the queues. They have a version of their own: a transaction in which somebody changes a push must not hold up reports.
create or replace trigger change_replica_on_insert after insert on agent.process_metric
for each row when (new.category = 'pusher' and new.value = 'true') execute function agent_private.change_replica('pusher');
create or replace trigger change_replica_on_update after update of value on agent.process_metric
for each row when (new.category = 'pusher' and new.value <> old.value) execute function agent_private.change_replica('pusher');
create or replace trigger change_replica_on_delete after delete on agent.process_metric
for each row when (old.category = 'pusher' and old.value = 'true') execute function agent_private.change_replica('pusher');
