-- Queues: their policies, pause, purge and deletion, and the sweep of exhausted and over-age events.

-- Sets the whole policy of a queue from an object with any of max_attempts, invisible_for, backoff {kind, base, factor, max, jitter},
-- paused, history_retention, dead_letter {queue}, delay, wait, group_from and flow {concurrency, total, order, on_failed, rate {limit, period, burst}, fair}; a setting that is left out has no value, or its default. Durations are intervals as text, stored in seconds.
-- Raises QD003 for invalid values, QD065 if the dead-letter queue would have dead letters of its own, and QD004 if the policy has none of _if_versions (null: any), if there is none and _if_exists, or if there is one
-- and _if_absent.
create or replace function agent.put_queue
( _name text
, _policy jsonb
, _if_versions int8[] default null
, _if_exists boolean default false
, _if_absent boolean default false
)
returns agent.queue
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _backoff jsonb = nullif(_policy -> 'backoff', 'null');
  _dead_letter jsonb = nullif(_policy -> 'dead_letter', 'null');
  _flow jsonb = nullif(_policy -> 'flow', 'null');
  _had_total boolean; -- before
  _row agent.queue;
  _version int8;
  _unknown text;
begin
  perform agent_private.check_queue_name(agent_private.unreserved_queue(_name));
  for _unknown in
    select p from jsonb_object_keys(_policy) p where p not in ('max_attempts', 'invisible_for', 'backoff', 'paused', 'history_retention', 'dead_letter', 'delay', 'wait', 'group_from', 'flow')
  loop
    perform agent_private.raise_invalid(_unknown, 'is not part of a policy');
  end loop;
  for _unknown in select p from jsonb_object_keys(_backoff) p where p not in ('kind', 'base', 'factor', 'max', 'jitter') loop
    perform agent_private.raise_invalid('backoff', 'must not have ' || quote_literal(_unknown));
  end loop;
  if jsonb_typeof(_dead_letter) <> 'object' then
    perform agent_private.raise_invalid('dead_letter', 'must be a JSON object');
  end if;
  for _unknown in select p from jsonb_object_keys(_dead_letter) p where p <> 'queue' loop
    perform agent_private.raise_invalid('dead_letter', 'must not have ' || quote_literal(_unknown));
  end loop;
  if jsonb_typeof(_flow) <> 'object' then
    perform agent_private.raise_invalid('flow', 'must be a JSON object');
  end if;
  for _unknown in select p from jsonb_object_keys(_flow) p where p not in ('concurrency', 'total', 'order', 'on_failed', 'rate', 'fair') loop
    perform agent_private.raise_invalid('flow', 'must not have ' || quote_literal(_unknown));
  end loop;
  if coalesce(jsonb_typeof(_flow -> 'order'), 'null') not in ('boolean', 'null') then
    perform agent_private.raise_invalid('flow/order', 'must be true or false');
  elsif coalesce(jsonb_typeof(_flow -> 'fair'), 'null') not in ('boolean', 'null') then
    perform agent_private.raise_invalid('flow/fair', 'must be true or false');
  elsif coalesce(_flow ->> 'on_failed', 'continue') not in ('continue', 'block') then
    perform agent_private.raise_invalid('flow/on_failed', 'must be continue or block');
  end if;

  _row.name = _name;
  _row.max_attempts = (_policy ->> 'max_attempts')::int4;
  _row.invisible_for = make_interval(secs => extract(epoch from (_policy ->> 'invisible_for')::interval)::float8);
  _row.backoff_kind = _backoff ->> 'kind';
  _row.backoff_base = make_interval(secs => extract(epoch from (_backoff ->> 'base')::interval)::float8);
  _row.backoff_factor = coalesce((_backoff ->> 'factor')::float8, case _backoff ->> 'kind' when 'exponential' then 2 else 1 end);
  _row.backoff_max = make_interval(secs => extract(epoch from (_backoff ->> 'max')::interval)::float8);
  _row.backoff_jitter = coalesce((_backoff ->> 'jitter')::float8, 0);
  _row.paused = coalesce((_policy ->> 'paused')::boolean, false);
  _row.history_retention = make_interval(secs => extract(epoch from (_policy ->> 'history_retention')::interval)::float8);
  _row.dead_letter_queue = _dead_letter ->> 'queue';
  _row.delay = make_interval(secs => extract(epoch from (_policy ->> 'delay')::interval)::float8);
  _row.wait = make_interval(secs => extract(epoch from (_policy ->> 'wait')::interval)::float8);
  _row.group_from = agent_private.check_pointer('group_from', _policy ->> 'group_from');
  _row.flow_concurrency = agent_private.check_limit('flow/concurrency', _flow -> 'concurrency');
  _row.flow_total = agent_private.check_limit('flow/total', _flow -> 'total');
  _row.flow_order = coalesce((_flow ->> 'order')::boolean, false);
  select r.rate_limit, r.rate_period, r.rate_burst into _row.flow_rate_limit, _row.flow_rate_period, _row.flow_rate_burst from agent_private.read_rate('flow/rate', _flow -> 'rate') r;
  _row.flow_fair = coalesce((_flow ->> 'fair')::boolean, false);
  _row.flow_on_failed = case when _row.flow_order then coalesce(_flow ->> 'on_failed', 'continue') end;
  _row.updated_at = clock_timestamp();
  _row.resumed_at = case when not _row.paused then _row.updated_at end; -- used only if the queue was paused
  if _row.max_attempts < 1 then
    perform agent_private.raise_invalid('max_attempts', 'must be at least 1');
  elsif _row.invisible_for <= interval '0' or _row.invisible_for > interval '3660 days' then
    perform agent_private.raise_invalid('invisible_for', 'must be greater than zero, and at most ten years');
  elsif _backoff is not null and coalesce(_row.backoff_kind, '') not in ('constant', 'linear', 'exponential') then
    perform agent_private.raise_invalid('backoff/kind', 'must be constant, linear or exponential');
  elsif _backoff is not null and coalesce(_row.backoff_base, interval '-1') < interval '0' then
    perform agent_private.raise_invalid('backoff/base', 'is required, and must not be negative');
  elsif _row.backoff_factor not between 1 and 1000 then
    perform agent_private.raise_invalid('backoff/factor', 'must be 1 to 1000');
  elsif _row.backoff_max < interval '0' then
    perform agent_private.raise_invalid('backoff/max', 'must not be negative');
  elsif _row.backoff_jitter not between 0 and 1 then
    perform agent_private.raise_invalid('backoff/jitter', 'must be 0 to 1');
  elsif _row.history_retention <= interval '0' or _row.history_retention >= interval '1000 years' then
    perform agent_private.raise_invalid('history_retention', 'must be greater than zero, and less than 1000 years');
  elsif _row.history_retention < (select m.retention from agent.minimum_retention m) then
    perform agent_private.raise_invalid('history_retention', 'must not be shorter than the minimum that the owner of the database has set');
  elsif _dead_letter is not null and agent_private.is_queue_name(_row.dead_letter_queue) is not true then
    perform agent_private.raise_invalid('dead_letter/queue', 'must be 1 to 128 of A-Z a-z 0-9 . _ : -, but not . or ..');
  elsif starts_with(_row.dead_letter_queue, 'queued.') then
    perform agent_private.raise_invalid('dead_letter/queue', 'must not begin with "queued.", which is reserved for the service''s own queues');
  elsif _row.delay < interval '0' or _row.delay > interval '3650 days' then
    perform agent_private.raise_invalid('delay', 'must not be negative, and at most ten years');
  elsif _row.wait < interval '0' or _row.wait > interval '60 seconds' then
    perform agent_private.raise_invalid('wait', 'must be 0 to 60 seconds');
  elsif _row.flow_order and _row.delay > interval '0' then
    perform agent_private.raise_invalid('flow/order', 'must not be with a delay of the queue, as events of its groups have none');
  elsif not _row.flow_order and _flow ->> 'on_failed' is not null then
    perform agent_private.raise_invalid('flow/on_failed', 'is for groups in order: set order, too');
  end if;
  if _row.dead_letter_queue is not null then
    perform agent_private.lock_queue(_row.dead_letter_queue, _is_shared => true); -- before the row, as a deletion does
  end if;

  if _if_versions is not null or _if_exists then
    select q.version into _version from agent.queue q where q.name = _name for update;
    if not found or _version <> all (_if_versions) then
      perform agent_private.raise_version_mismatch('queue ' || _name, _if_versions);
    end if;
  end if;
  perform pg_advisory_xact_lock(agent_private.rates_lock(_name)); -- a separate statement: the next one sees what others have set for groups
  _row.flow_paced = _row.flow_fair or _row.flow_rate_limit is not null or exists (select from agent.queue_group g where g.queue = _name and g.rate_limit is not null);
  _had_total = exists (select from agent.queue q where q.name = _name and q.flow_total is not null);
  _row.version = agent_private.next_version(0);
  _row.flow_version = case when agent_private.has_turns(_row) then agent_private.next_version(0) end;
  insert into agent.queue as q select _row.*
  on conflict (name) do update
  set (max_attempts, invisible_for, backoff_kind, backoff_base, backoff_factor, backoff_max, backoff_jitter, paused, history_retention, dead_letter_queue, delay, wait, group_from, updated_at, resumed_at, flow_concurrency, flow_total, flow_order, flow_on_failed, flow_rate_limit, flow_rate_period, flow_rate_burst, flow_fair, flow_paced, flow_version)
    = ( excluded.max_attempts, excluded.invisible_for, excluded.backoff_kind, excluded.backoff_base, excluded.backoff_factor, excluded.backoff_max
      , excluded.backoff_jitter, excluded.paused, excluded.history_retention, excluded.dead_letter_queue, excluded.delay, excluded.wait, excluded.group_from, excluded.updated_at
      , case when q.paused and not excluded.paused then excluded.resumed_at else q.resumed_at end
      , excluded.flow_concurrency, excluded.flow_total, excluded.flow_order, excluded.flow_on_failed, excluded.flow_rate_limit, excluded.flow_rate_period, excluded.flow_rate_burst, excluded.flow_fair, excluded.flow_paced
      , case
          when row(q.flow_concurrency, q.flow_order, q.flow_on_failed, q.flow_rate_limit, q.flow_rate_period, q.flow_rate_burst, q.flow_fair, q.flow_paced)
            is not distinct from
            row(excluded.flow_concurrency, excluded.flow_order, excluded.flow_on_failed, excluded.flow_rate_limit, excluded.flow_rate_period, excluded.flow_rate_burst, excluded.flow_fair, excluded.flow_paced) then q.flow_version
          when q.flow_version is not null or excluded.flow_version is not null then agent_private.next_version(coalesce(q.flow_version, 0))
        end
      )
  where not _if_absent
  returning q.* into _row;
  if not found then
    perform agent_private.raise_version_mismatch('queue ' || _name, _if_versions);
  end if;
  if _row.flow_total is not null and not _had_total then
    perform agent_private.count_leases(_name);
  end if;
  if _row.flow_on_failed is distinct from 'block' then
    delete from agent_private.group_block b where b.queue = _name;
  end if;
  perform agent.notify_queues(array[_name]); -- its events may be claimable now, and processes remember for how long claims wait
  perform agent_private.record_audit('queue.put', _name, _policy);
  return _row;
end
$func$;

-- Trigger that gives a policy another version whenever it changes, whoever changes it.
create or replace function agent_private.set_queue_version()
returns trigger
language plpgsql
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  if row(new.max_attempts, new.invisible_for, new.backoff_kind, new.backoff_base, new.backoff_factor, new.backoff_max, new.backoff_jitter, new.paused, new.history_retention, new.dead_letter_queue, new.delay, new.wait, new.group_from, new.flow_concurrency, new.flow_total, new.flow_order, new.flow_on_failed, new.flow_rate_limit, new.flow_rate_period, new.flow_rate_burst, new.flow_fair)
    is distinct from
    row(old.max_attempts, old.invisible_for, old.backoff_kind, old.backoff_base, old.backoff_factor, old.backoff_max, old.backoff_jitter, old.paused, old.history_retention, old.dead_letter_queue, old.delay, old.wait, old.group_from, old.flow_concurrency, old.flow_total, old.flow_order, old.flow_on_failed, old.flow_rate_limit, old.flow_rate_period, old.flow_rate_burst, old.flow_fair)
  then
    new.version = agent_private.next_version(old.version);
  end if;
  return new;
end
$func$;

-- Trigger that has all groups of a queue looked at when their limits have changed, whoever changes them: what other limits have admitted cannot be claimed any more.
create or replace function agent_private.change_flow_version()
returns trigger
language plpgsql
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  if new.flow_version is not null and (tg_op = 'INSERT' or new.flow_version is distinct from old.flow_version) then
    perform agent_private.wake_all_groups(new.name);
  end if;
  return null;
end
$func$;

create or replace trigger change_flow_version
after insert or update of flow_version on agent.queue
for each row
execute function agent_private.change_flow_version();

create or replace trigger set_queue_version
before update on agent.queue
for each row
execute function agent_private.set_queue_version();

-- The policy of a queue. If it has none, a row with nothing but the name.
create or replace function agent.get_queue(_name text)
returns agent.queue
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _row agent.queue;
begin
  perform agent_private.check_queue_name(_name);
  select q.* into _row from agent.queue q where q.name = _name;
  if not found then
    _row.name = _name;
    _row.paused = false;
    _row.flow_order = false;
    _row.flow_fair = false;
    _row.flow_paced = false;
  end if;
  return _row;
end
$func$;

-- Pauses or resumes a queue. A paused queue accepts events and hands out none. Time during a pause does not count towards _max_vt_age of
-- sweep_events; the expires_at of an event holds nevertheless.
create or replace function agent.pause_queue(_name text, _paused boolean default true)
returns void
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  perform agent_private.check_queue_name(agent_private.unreserved_queue(_name));
  insert into agent.queue as q (name, paused) values (_name, _paused)
  on conflict (name) do update
  set paused = excluded.paused, updated_at = clock_timestamp(), resumed_at = case when excluded.paused then q.resumed_at else clock_timestamp() end
  where q.paused <> excluded.paused;
  if not _paused then
    perform agent.notify_queues(array[_name]);
  end if;
  perform agent_private.record_audit(case when _paused then 'queue.pause' else 'queue.resume' end, _name);
end
$func$;

-- Moves up to _limit events of a queue that are not leased into history as cancelled and returns how many.
create or replace function agent.purge_queue(_name text, _limit int4 default 1000)
returns int8
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
as $func$
declare
  _now timestamptz = clock_timestamp();
  _ids int8[];
  _purged int8;
begin
  perform agent_private.check_queue_name(agent_private.unreserved_queue(_name));
  if coalesce(_limit, 0) < 1 then
    perform agent_private.raise_invalid('limit', 'must be at least 1');
  end if;
  _ids = array
  ( select e.id
    from agent.event e
    where e.queue = _name and agent_private.event_state(e, _now) <> 'leased'
    limit _limit
    for update skip locked
  );
  begin
    select count(*) into _purged from agent_private.move_to_history(_ids, 'cancelled');
  exception when data_exception or integrity_constraint_violation or program_limit_exceeded or raise_exception or feature_not_supported then
    select coalesce(sum(x.moved), 0) into _purged from agent_private.move_each_to_history(_ids, 'cancelled') x; -- see sweep_events
  end;
  if _purged > 0 then
    perform agent_private.record_audit('queue.purge', _name, jsonb_build_object('events', _purged));
  end if;
  return _purged;
end
$func$;

-- Deletes a queue: its policy with the pause, its push with its secrets and its state. Its history stays, and so do idempotency keys until they expire. With
-- _purge its events go into history as cancelled first. Returns how many did, and whether the queue is deleted: with a _limit (null: none), about
-- so many events are moved at most, and the call has to be repeated until it is. Raises QD004 if the policy has none of _if_versions (null: any),
-- QD060 if there is neither a policy nor a push nor an event, QD061 if there are events and not _purge, QD062 if schedules, sources or subscriptions name
-- the queue or it takes the dead letters of another, and QD063 if events are leased.
create or replace function agent.delete_queue(_queue text, _purge boolean default false, _if_versions int8[] default null, _limit int4 default null)
returns table (purged int8, is_deleted boolean)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
as $func$
declare
  _step int8;
  _existed boolean;
begin
  perform agent_private.check_queue_name(agent_private.unreserved_queue(_queue));
  if _limit < 1 then
    perform agent_private.raise_invalid('limit', 'must be at least 1');
  end if;
  purged = 0;
  is_deleted = false;
  perform agent_private.check_queue_deletable(_queue, _purge, _if_versions); -- before the first event is moved
  for _is_locked in 0 .. 1 loop
    if _is_locked = 1 then
      perform agent_private.lock_queue(_queue);
      perform from agent.push p where p.queue = _queue for update; -- before the policy, as all that change a push do
      perform from agent.queue q where q.name = _queue for update;
      -- Rows that were committed while this waited for the lock are seen from here on.
      _existed = agent_private.check_queue_deletable(_queue, _purge, _if_versions);
    end if;
    while _purge loop
      _step = agent.purge_queue(_queue, least(coalesce(_limit - purged, 1000), 1000)::int4);
      purged = purged + _step;
      if purged >= _limit then
        return next;
        return;
      end if;
      exit when _step = 0;
    end loop;
  end loop;
  if exists (select from agent.event e where e.queue = _queue) then -- others have them locked, or have claimed or inserted them just now
    perform agent_private.check_queue_deletable(_queue, _purge, _if_versions);
    raise exception 'the queue % is being worked on', _queue using errcode = 'QD063', detail = 'another transaction has them';
  end if;
  if not _existed and purged = 0 then
    raise exception 'there is no queue %', _queue using errcode = 'QD060';
  end if;
  delete from agent.push p where p.queue = _queue;
  delete from agent.queue q where q.name = _queue;
  delete from agent.queue_group g where g.queue = _queue;
  delete from agent_private.group_wake w where w.queue = _queue;
  delete from agent_private.group_block b where b.queue = _queue;
  delete from agent_private.group_claim c where c.queue = _queue;
  perform agent.notify_queues(array[_queue], 'deleted');
  perform agent_private.record_audit('queue.delete', _queue, jsonb_build_object('purged', purged));
  is_deleted = true;
  return next;
end
$func$;

-- Returns whether there is a policy, a push or an event of a queue. Raises the errors of agent.delete_queue if the queue cannot be deleted.
create or replace function agent_private.check_queue_deletable(_queue text, _purge boolean, _if_versions int8[])
returns boolean
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
declare
  _now timestamptz = clock_timestamp();
  _version int8;
  _events int8;
  _leased int8;
  _users text[];
begin
  select q.version into _version from agent.queue q where q.name = _queue;
  if _if_versions is not null and coalesce(_version <> all (_if_versions), true) then
    perform agent_private.raise_version_mismatch('queue ' || _queue, _if_versions);
  end if;
  _users = array
  ( select 'schedule ' || s.id from agent.schedule s where s.queue = _queue and s.status in ('active', 'paused')
    union all
    select 'source ' || s.name from agent.source s where s.queue = _queue
    union all
    select 'subscription ' || s.name from agent.subscription s where s.deliver_queue = _queue
    union all
    select 'queue ' || q.name from agent.queue q where q.dead_letter_queue = _queue
    order by 1
    limit 1000
  );
  if _users <> '{}' then
    raise exception 'the queue % is in use', _queue using errcode = 'QD062'
    , detail = array_to_string(_users[:10], ', ') || case when cardinality(_users) > 10 then ' and ' || (cardinality(_users) - 10) || ' more' else '' end;
  end if;
  select count(*) into _leased
  from agent_private.list_lanes(_queue) l
  cross join lateral
  ( select from agent.event e
    where e.queue = _queue and e.priority = l.priority and e.vt > _now and agent_private.event_state(e, _now) = 'leased'
    limit 10000
  ) as e;
  if _leased > 0 then -- without _purge, too: to pass it would not help
    raise exception 'the queue % has events under a lease', _queue using errcode = 'QD063', detail = _leased::text;
  end if;
  select count(*) into _events from (select from agent.event e where e.queue = _queue limit 10000) as e;
  if not _purge and _events > 0 then
    raise exception 'the queue % is not empty', _queue using errcode = 'QD061'
    , detail = case when _events = 10000 then '10000 or more' else _events::text end;
  end if;
  return _version is not null or _events > 0 or exists (select from agent.push p where p.queue = _queue);
end
$func$;

-- Locks the name of a queue until the end of the transaction, against its deletion (_is_shared) or against all that are about it, and that of some others with it.
create or replace function agent_private.lock_queue(_queue text, _is_shared boolean default false)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  if _is_shared then
    perform pg_advisory_xact_lock_shared(agent_private.queue_lock_key(_queue));
  else
    perform pg_advisory_xact_lock(agent_private.queue_lock_key(_queue));
  end if;
end
$func$;

-- The key of the advisory lock on the name of a queue. There are 128, so that a batch for a thousand queues takes few places of the server's table of locks.
create or replace function agent_private.queue_lock_key(_queue text)
returns int8
language sql immutable
set search_path to pg_catalog, pg_temp
as $func$
  select 31321898691465728 + (hashtextextended(_queue, 0) & 127)
$func$;

-- Returns _queues if each of _required (null: of _queues) is declared, which is to say that it has a policy, and keeps all of these from being deleted
-- until the end of the transaction. The service's own queues need no policy. Raises QD064, with a name as the detail, if one is not declared.
create or replace function agent_service.require_queues(_queues text[], _required text[] default null)
returns text[]
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _names text[] = array
  ( select distinct n
    from unnest(coalesce(_required, _queues)) as n
    where not starts_with(n, 'queued.')
  );
  _key int8;
  _undeclared text;
begin
  for _key in select distinct agent_private.queue_lock_key(n) from unnest(_names) as n order by 1 loop
    perform pg_advisory_xact_lock_shared(_key);
  end loop;
  select n into _undeclared from unnest(_names) as n where not exists (select from agent.queue q where q.name = n) limit 1; -- as of now, with the locks
  if found then
    raise exception 'the queue % is not declared', _undeclared using errcode = 'QD064', detail = _undeclared;
  end if;
  return _queues;
end
$func$;

-- Those of _names that are declared, or (null) the names of up to _limit queues that are.
create or replace function agent_service.declared_queues(_names text[] default null, _limit int4 default null)
returns setof text
language plpgsql stable
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  if _names is null then
    return query select q.name from agent.queue q order by q.name limit _limit;
  else
    return query select q.name from agent.queue q where q.name = any (_names);
  end if;
end
$func$;

-- Up to _limit queues that are not declared and that schedules, sources, subscriptions or the policies of other queues name: how many of these there are, and one
-- of them.
create or replace function agent_service.undeclared_queues(_limit int4 default 10)
returns table (queue text, users int8, example text)
language plpgsql stable
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  return query
  select u.queue, sum(u.users)::int8, min(u.example)
  from
  ( select s.queue::text, count(*), 'schedule ' || min(s.id) from agent.schedule s where s.status in ('active', 'paused') group by s.queue
    union all
    select s.queue::text, count(*), 'source ' || min(s.name) from agent.source s where s.queue is not null group by s.queue
    union all
    select s.deliver_queue::text, count(*), 'subscription ' || min(s.name) from agent.subscription s where s.deliver_queue is not null group by s.deliver_queue
    union all
    select q.dead_letter_queue::text, count(*), 'queue ' || min(q.name) from agent.queue q where q.dead_letter_queue is not null group by q.dead_letter_queue
  ) as u (queue, users, example)
  where not u.queue like 'queued.%' and not exists (select from agent.queue q where q.name = u.queue)
  group by u.queue
  order by u.queue
  limit _limit;
end
$func$;

-- For how long claims on these queues wait that do not say; no row for a queue whose policy does not say either.
create or replace function agent_service.queue_waits(_names text[])
returns table (name text, wait interval)
language plpgsql stable
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
as $func$
#variable_conflict use_column
begin
  return query select q.name::text, q.wait from agent.queue q where q.name = any (_names) and q.wait is not null;
end
$func$;

-- Moves up to _limit events of a queue that are not leased, of _types or (none) of whatever type, into another queue and returns how many. They
-- keep their ids, attempts and options; an event whose dead letter is moved to where events are worked on counts as requeued as that. Those that can be claimed come behind the events of the other queue, and their age begins anew. Waiting claims
-- of both queues are woken: where groups need turns, those behind the moved ones may have theirs.
create or replace function agent.move_events(_from text, _to text, _limit int4 default 1000, _types text[] default null)
returns int8
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
as $func$
declare
  _now timestamptz = clock_timestamp();
  _policy agent.queue;
  _moved int8;
  _is_ready boolean;
  _dead int8[]; -- dead letters, the events that they are of, and the bounds of their times
  _originals int8[];
  _first timestamptz;
  _last timestamptz;
begin
  perform agent_private.check_queue_name(agent_private.unreserved_queue(_from));
  perform agent_private.check_queue_name(agent_private.unreserved_queue(_to));
  if _from = _to then
    perform agent_private.raise_invalid('to', 'must be another queue');
  elsif coalesce(_limit, 0) < 1 then
    perform agent_private.raise_invalid('limit', 'must be at least 1');
  end if;
  select q.* into _policy from agent.queue q where q.name = _to;
  with chosen as
  ( select e.id
    from agent.event e
    where e.queue = _from and agent_private.event_state(e, _now) <> 'leased' and (coalesce(cardinality(_types), 0) = 0 or e.type = any (_types))
    limit _limit
    for update skip locked
  ), moved as
  ( update agent.event e
    set queue = _to, vt = greatest(e.vt, _now), group_key = coalesce(nullif(e.group_key, ''), agent_private.default_group(e.event, _policy.group_from, _policy.flow_fair))
    from chosen c
    where e.id = c.id
    returning e.id, e.vt, e.flow, e.dead_letter_of, agent_private.bounded_time(e.event_ts) as ts
  )
  select count(*), coalesce(bool_or(m.vt <= _now or m.flow = 3), false), array_agg(m.id) filter (where m.dead_letter_of is not null)
  , array_agg(m.dead_letter_of) filter (where m.dead_letter_of is not null), min(m.ts) filter (where m.dead_letter_of is not null), max(m.ts) filter (where m.dead_letter_of is not null)
  into _moved, _is_ready, _dead, _originals, _first, _last
  from moved m;
  if _dead is not null then
    perform agent_private.lock_originals(_originals, _first, _last);
    if exists (select from agent.queue q where q.dead_letter_queue = _to) then -- back again
      update agent.event_hist h
      set requeued_as = null
      from unnest(_originals, _dead) as d (id, dead_letter)
      where h.id = d.id and h.id = any (_originals) and h.event_ts between _first and _last and h.requeued_as = d.dead_letter;
    else -- where they are worked on, in the place of the events that they are of
      perform from agent_private.mark_requeued(_originals, _dead, array_fill(_to, array[cardinality(_dead)]), _first, _last);
    end if;
  end if;
  if _is_ready then
    perform agent.notify_queues(array[_to]);
  end if;
  if _moved > 0 then
    perform agent.notify_queues(array[_from]) from agent.queue q where q.name = _from and q.flow_version is not null;
    perform agent_private.record_audit('queue.move', _from, jsonb_build_object('to', _to, 'events', _moved));
  end if;
  return _moved;
end
$func$;

-- Makes an event that waits for its time claimable now. One that is claimable stays as it is, and so does one that the rate of its group has put off. It gets no further attempt by that. Raises QD002 if there is no such
-- event, QD006 if it is leased and QD007 if it has left its queue. Only an event of the queues that _queues stands for is found (null: all; see
-- is_queue_allowed). Waiting claims are woken unless _notify is false.
create or replace function agent.run_event(_id int8, _notify boolean default true, _queues text[] default null)
returns table (vt timestamptz, queue text, type text, priority int4)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
set jit to off
as $func$
#variable_conflict use_column
declare
  _event agent.event;
  _state text;
begin
  select e.* into _event from agent.event e where e.id = _id and (_queues is null or agent_private.is_queue_allowed(e.queue, _queues)) for update;
  if not found then
    perform from agent.event_hist h where h.id = _id and (_queues is null or agent_private.is_queue_allowed(h.queue, _queues));
    if found then
      raise exception 'event % has left its queue', _id using errcode = 'QD007';
    end if;
    perform agent_private.raise_lease_error(_id, 'not_found');
  elsif starts_with(_event.queue, 'queued.') then
    perform agent_private.raise_invalid('id', 'is a publication that waits for its time in a queue of the service; it cannot be run');
  end if;
  _state = agent_private.event_state(_event, clock_timestamp());
  if _event.flow >= 3 then -- it waits for its turn, then
    _event.vt = agent_private.make_due(_event);
    if _notify and _state = 'scheduled' then
      perform agent.notify_queues(array[_event.queue]);
    end if;
    perform agent_private.record_audit('event.run', _id::text, jsonb_build_object('queue', _event.queue)) where _state = 'scheduled';
  elsif _state = 'leased' then
    raise exception 'event % is leased until %', _id, _event.vt using errcode = 'QD006';
  elsif _state = 'scheduled' and not agent_private.is_put_off(_event.flow, _event.vt, _event.admitted_at, _event.nacked_at) then
    update agent.event e
    set vt = clock_timestamp(), due_at = case when e.due_at > clock_timestamp() then clock_timestamp() else e.due_at end
    where e.id = _id
    returning e.vt into strict _event.vt;
    if _notify then
      perform agent.notify_queues(array[_event.queue]);
    end if;
    perform agent_private.record_audit('event.run', _id::text, jsonb_build_object('queue', _event.queue));
  end if;
  return query select _event.vt, _event.queue, _event.type, _event.priority;
end
$func$;

-- Makes up to _limit events of a queue claimable now that wait for their time, of _types or (none) of whatever type, with _nacked_only only those that wait
-- after a nack, and returns how many. They come in the order in which they would have become claimable. Leased events, and those that other
-- transactions have locked, stay as they are, as do those that the rates of their groups have put off. Those of a paused queue are claimable when it is resumed.
create or replace function agent.run_queue(_name text, _limit int4 default 1000, _types text[] default null, _nacked_only boolean default false)
returns int8
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _run int8;
begin
  select r.run into strict _run from agent_service.run_events(_name, _limit, _types, _nacked_only) r;
  if _run > 0 then
    perform agent.notify_queues(array[_name]);
  end if;
  return _run;
end
$func$;

-- run_queue for the service, which makes events claimable in several transactions, so that each is short: began is when the first of them began, and
-- priority, vt and id are the place of the last event that it has looked at. The next one takes these as _since and _after…; with a null priority there
-- are no more. Events inserted or nacked since then are left alone: else events that fail at once would be run without end. It notifies nobody.
create or replace function agent_service.run_events
( _name text
, _limit int4
, _types text[] default null
, _nacked_only boolean default false
, _since timestamptz default null
, _after_priority int4 default null
, _after_vt timestamptz default null
, _after_id int8 default null
)
returns table (run int8, began timestamptz, priority int4, vt timestamptz, id int8)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
set enable_sort to off
set enable_hashjoin to off
set enable_mergejoin to off
as $func$
#variable_conflict use_column
declare
  _now timestamptz = clock_timestamp();
  _before int8 = coalesce(_after_priority - 1::int8, -2147483649); -- the priority after which to go on
  _count int8;
begin
  perform agent_private.check_queue_name(agent_private.unreserved_queue(_name));
  if coalesce(_limit, 0) < 1 then
    perform agent_private.raise_invalid('limit', 'must be at least 1');
  end if;
  run = 0;
  began = coalesce(_since, _now);
  while run < _limit loop -- for each lane
    select e.priority into priority from agent.event e where e.queue = _name and e.priority > _before order by e.priority limit 1;
    exit when not found;
    if priority is distinct from _after_priority then
      _after_vt = _now;
      _after_id = 0;
    end if;
    vt = greatest(_after_vt, _now);
    id = case when _after_vt >= _now then _after_id else 0 end;
    with chosen as
    ( select l.place, l.vt, l.id, row_number() over (rows unbounded preceding) as n
      from
      ( select e.ctid, e.vt, e.id
        from agent.event e
        where e.queue = _name and e.priority = run_events.priority and e.vt >= run_events.vt and (e.vt, e.id) > (run_events.vt, run_events.id)
        and (e.vt < agent_private.no_turn() or e.flow is null)
        and agent_private.event_state(e, _now) <> 'leased'
        and not agent_private.is_put_off(e.flow, e.vt, e.admitted_at, e.nacked_at)
        and (e.nacked_at is not null or not _nacked_only)
        and coalesce(e.nacked_at, e.enqueued_at) <= began
        and (coalesce(cardinality(_types), 0) = 0 or e.type = any (_types))
        order by e.vt, e.id
        limit _limit - run
        for update skip locked
      ) as l (place, vt, id)
    ), moved as
    ( update agent.event e
      set vt = _now + (run + c.n - _limit) * interval '1 us' -- which keeps their order
        , due_at = case when e.due_at > _now then _now else e.due_at end
      from chosen c
      where e.ctid = c.place
    )
    select count(*), coalesce(max(c.vt), run_events.vt), coalesce((array_agg(c.id order by c.n desc))[1], run_events.id)
    into _count, vt, id
    from chosen c;
    run = run + _count;
    _before = priority;
  end loop;
  if run < _limit then
    priority = null;
    run = run + agent_private.make_all_due(_name, (_limit - run)::int4, _types, _nacked_only, began);
  end if;
  if run > 0 then
    perform agent_private.record_audit('queue.run', _name, jsonb_build_object('events', run));
  end if;
  return next;
end
$func$;

-- Expires events that were claimed _max_attempts times (the max_attempts of the event or its queue's policy take precedence), events
-- whose expires_at has passed, and events that have been claimable for longer than _max_vt_age (null: any age), in _queue or (null) all
-- queues, up to about _limit (null: all). A leased event is never expired. Events of a paused queue, or one whose push is held back, are never over
-- age; afterwards the age counts from the end of that at the earliest. Nor are those of a queue that has as many leases as its limits allow. Those whose last attempt has ended by a nack end as failed, with its error. Returns how many have expired and failed, by queue, and how many of these have got dead letters. An event that history does not accept stops no
-- other: it becomes invisible for an hour and is counted as put_off, with the reason.
create or replace function agent_service.sweep_events
( _max_attempts int4 default 3
, _max_vt_age interval default interval '1 hour'
, _queue text default null
, _limit int4 default null
)
returns table (queue text, expired int8, failed int8, put_off int8, reason text, dead_lettered int8)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
as $func$
#variable_conflict use_column
declare
  _now timestamptz = clock_timestamp();
  _name text;
  _max int4;
  _ids int8[];
  _failed int8[]; -- of these
  _outcome text;
  _ending int8[]; -- those with this outcome
  _is_found boolean = false;
begin
  if coalesce(_max_attempts, 0) < 1 then
    perform agent_private.raise_invalid('max_attempts', 'must be at least 1');
  elsif _max_vt_age < interval '0' then
    perform agent_private.raise_invalid('max_vt_age', 'must not be negative');
  elsif _limit < 1 then
    perform agent_private.raise_invalid('limit', 'must be at least 1');
  end if;

  -- Events with a max_attempts or an expires_at of their own, each by its own index.
  _ids = array
  ( select e.id
    from agent.event e
    where e.attempts >= e.max_attempts and e.vt <= _now and (_queue is null or e.queue = _queue)
    order by e.vt
    limit _limit
    for update skip locked
  );
  _ids = _ids || array
  ( select e.id
    from agent.event e
    where e.expires_at <= _now and (_queue is null or e.queue = _queue)
    and agent_private.event_state(e, _now) <> 'leased' and e.id <> all(_ids)
    order by e.expires_at
    limit _limit - cardinality(_ids)
    for update skip locked
  );

  -- Events that were claimed too often by their queue's policy, or else by the caller's limit.
  for _name, _max in
    select q.name, q.max_attempts
    from agent.queue q
    where q.max_attempts is not null and (_queue is null or q.name = _queue)
    union all
    select null, _max_attempts
  loop
    exit when cardinality(_ids) >= _limit;
    _ids = _ids || agent_private.lock_exhausted(_name, _queue, _max, _limit - cardinality(_ids), _now);
  end loop;

  if _max_vt_age is not null then
    _ids = _ids || agent_private.lock_over_age(_ids, _queue, _now - _max_vt_age, _limit - cardinality(_ids));
  end if;

  _failed = array
  ( select e.id
    from agent.event e
    left join agent.queue q on q.name = e.queue
    where e.id = any (_ids) and e.nacked_at is not null and e.attempts >= coalesce(e.max_attempts, q.max_attempts, _max_attempts) and coalesce(e.expires_at > _now, true)
  );
  foreach _outcome in array array['expired', 'failed'] loop
    _ending = case _outcome when 'failed' then _failed else array(select i from unnest(_ids) i where i <> all (_failed)) end;
    continue when _ending = '{}';
    begin
      return query
      select m.queue, count(*) filter (where _outcome = 'expired'), count(*) filter (where _outcome = 'failed'), 0::int8, null::text, count(m.dead_lettered_as)
      from agent_private.move_to_history(_ending, _outcome) m
      group by m.queue;
    exception when data_exception or integrity_constraint_violation or program_limit_exceeded or raise_exception or feature_not_supported then
      return query
      select x.queue, case _outcome when 'expired' then x.moved else 0 end, case _outcome when 'failed' then x.moved else 0 end, x.put_off, x.reason, x.dead_lettered
      from agent_private.move_each_to_history(_ending, _outcome) x;
    end;
    _is_found = _is_found or found;
  end loop;
  if _is_found and current_setting('agent.actor', true) <> '' then -- the service sweeps by itself, too
    perform agent_private.record_audit('queue.sweep', coalesce(_queue, '*'), jsonb_build_object('max_attempts', _max_attempts, 'max_vt_age', _max_vt_age));
  end if;
end
$func$;

-- sweep_events, returning the number of all events that have expired or failed.
create or replace function agent.delete_expired_events
( _max_attempts int4 default 3
, _max_vt_age interval default interval '1 hour'
, _queue text default null
, _limit int4 default null
)
returns int8
language sql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
  select coalesce(sum(x.expired + x.failed), 0)::int8 from agent_service.sweep_events(_max_attempts, _max_vt_age, _queue, _limit) x
$func$;

-- Locks up to _limit events that have been claimable since before _cutoff, none of _ids, in queues that were neither paused nor resumed
-- since, and whose push was not held back since, and returns their ids. Planned under the settings of sweep_events.
create or replace function agent_private.lock_over_age(_ids int8[], _queue text, _cutoff timestamptz, _limit int4)
returns int8[]
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
declare
  _names text[] = case when _queue is null then agent_private.waiting_queues_if_few() else array[_queue] end;
  _name text;
  _lane int4;
  _found int8[] = '{}';
begin
  if _names is null then
    return array
    ( select e.id
      from agent.event e
      where e.queue > '' and e.vt < _cutoff and (e.admitted_at is null or e.admitted_at < _cutoff) and e.id <> all(_ids)
      and not exists (select from agent.queue q where q.name = e.queue and (q.paused or q.resumed_at > _cutoff or case when q.flow_total is not null then agent_private.free_of_total(q.name, q.flow_total) = 0 end))
      and not exists
      ( select from agent.push_state s
        where s.queue = e.queue and (s.disabled_at is not null or s.opened_at is not null or s.retry_at > _cutoff)
      )
      limit _limit
      for update of e skip locked
    );
  end if;
  for _name, _lane in
    select w.name, l.priority
    from unnest(_names) as w (name)
    cross join lateral agent_private.list_lanes(w.name) as l
    where not exists (select from agent.queue q where q.name = w.name and (q.paused or q.resumed_at > _cutoff or case when q.flow_total is not null then agent_private.free_of_total(q.name, q.flow_total) = 0 end))
    and not exists
    ( select from agent.push_state s
      where s.queue = w.name and (s.disabled_at is not null or s.opened_at is not null or s.retry_at > _cutoff)
    )
  loop
    exit when cardinality(_found) >= _limit;
    _found = _found || array
    ( select e.id
      from agent.event e
      where e.queue = _name and e.priority = _lane and e.vt < _cutoff and (e.admitted_at is null or e.admitted_at < _cutoff) and e.id <> all(_ids)
      order by e.vt, e.id
      limit _limit - cardinality(_found)
      for update skip locked
    );
  end loop;
  return _found;
end
$func$;

-- Locks up to _limit events without a max_attempts of their own that were claimed _max times and whose last lease has ended, and returns
-- their ids: those of the queue _queue_with_policy, which has a policy, or (null) of queues whose policy has no max_attempts; of _queue
-- only unless it is null. Planned under the settings of sweep_events.
create or replace function agent_private.lock_exhausted(_queue_with_policy text, _queue text, _max int4, _limit int4, _now timestamptz)
returns int8[]
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
declare
  _names text[];
  _name text;
  _lane int4;
  _ids int8[] = '{}';
begin
  if _max > 1 then
    return array
    ( select e.id
      from agent.event e
      where e.attempts > 1 and e.attempts >= _max and e.vt <= _now and e.max_attempts is null
      and (_queue is null or e.queue = _queue)
      and (e.queue = _queue_with_policy or _queue_with_policy is null and not exists (select from agent.queue q where q.name = e.queue and q.max_attempts is not null))
      limit _limit
      for update of e skip locked
    );
  end if;
  -- The index on attempts does not have events that were claimed once, so all ready events are read.
  _names = case
    when _queue_with_policy is not null and _queue <> _queue_with_policy then '{}'
    when coalesce(_queue_with_policy, _queue) is null then agent_private.waiting_queues_if_few()
    else array[coalesce(_queue_with_policy, _queue)]
  end;
  if _names is null then
    return array
    ( select e.id
      from agent.event e
      where e.queue > '' and e.vt <= _now and e.attempts > 0 and e.max_attempts is null
      and not exists (select from agent.queue q where q.name = e.queue and q.max_attempts is not null)
      limit _limit
      for update of e skip locked
    );
  end if;
  for _name, _lane in
    select w.name, l.priority
    from unnest(_names) as w (name)
    cross join lateral agent_private.list_lanes(w.name) as l
    where w.name = _queue_with_policy or _queue_with_policy is null and not exists (select from agent.queue q where q.name = w.name and q.max_attempts is not null)
  loop
    exit when cardinality(_ids) >= _limit;
    _ids = _ids || array
    ( select e.id
      from agent.event e
      where e.queue = _name and e.priority = _lane and e.vt <= _now and e.attempts > 0 and e.max_attempts is null
      order by e.vt, e.id
      limit _limit - cardinality(_ids)
      for update skip locked
    );
  end loop;
  return _ids;
end
$func$;

-- The names of all queues that have events, found by one index look-up each.
create or replace function agent_private.waiting_queues()
returns setof text
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
declare
  _queue text = '';
begin
  loop
    select e.queue into _queue from agent.event e where e.queue > _queue order by e.queue limit 1;
    exit when not found;
    return next _queue;
  end loop;
end
$func$;

-- The names of all queues that have events, or null if there are more than _max_count: then reading all events is faster than going from
-- queue to queue.
create or replace function agent_private.waiting_queues_if_few(_max_count int4 default 1000)
returns text[]
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set enable_seqscan to off
set enable_bitmapscan to off
set jit to off
as $func$
declare
  _queue text = '';
  _names text[] = '{}';
begin
  loop
    select e.queue into _queue from agent.event e where e.queue > _queue order by e.queue limit 1;
    if not found then
      return _names;
    elsif cardinality(_names) = _max_count then
      return null;
    end if;
    _names = _names || _queue;
  end loop;
end
$func$;
