-- What is set for one group alone, and the removal of groups that have nothing.

-- Sets what holds for one group of a queue alone, from an object with any of concurrency, rate, paused, and held_until or hold, an interval from now on; what is left out holds as the policy of the queue says. Nothing
-- of a group that is paused, or held until a time, is handed out; leases go on. It holds from the commit on. Waits for whoever has the group or its events locked: call it in
-- a transaction of its own. Raises QD003, and QD004 if what is set has none of _if_versions (null: any), if nothing is and _if_exists, or if something is and _if_absent.
create or replace function agent.put_group
( _queue text
, _group text
, _settings jsonb
, _if_versions int8[] default null
, _if_exists boolean default false
, _if_absent boolean default false
)
returns agent.queue_group
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _row agent.queue_group;
  _unknown text;
begin
  perform agent_private.check_group_name(_queue, _group);
  if jsonb_typeof(_settings) is distinct from 'object' then
    perform agent_private.raise_invalid('settings', 'must be a JSON object');
  end if;
  for _unknown in select s from jsonb_object_keys(_settings) s where s not in ('concurrency', 'paused', 'held_until', 'hold', 'rate') loop
    perform agent_private.raise_invalid(_unknown, 'is not set for a group');
  end loop;
  _row.concurrency = agent_private.check_limit('concurrency', _settings -> 'concurrency');
  select r.rate_limit, r.rate_period, r.rate_burst into _row.rate_limit, _row.rate_period, _row.rate_burst from agent_private.read_rate('rate', _settings -> 'rate') r;
  if coalesce(jsonb_typeof(_settings -> 'paused'), 'null') not in ('boolean', 'null') then
    perform agent_private.raise_invalid('paused', 'must be true or false');
  end if;
  _row.paused = coalesce((_settings ->> 'paused')::boolean, false);
  _row.held_until = agent_private.read_time('held_until', _settings -> 'held_until');
  if not isfinite(_row.held_until) then
    perform agent_private.raise_invalid('held_until', 'must be finite');
  elsif _settings ->> 'hold' is not null then
    if _row.held_until is not null then
      perform agent_private.raise_invalid('hold', 'must not be given with held_until');
    end if;
    _row.held_until = agent_private.hold_end(agent_private.read_interval('hold', _settings -> 'hold'));
  end if;
  perform agent_private.need_turns(_queue, true, _row.rate_limit is not null);
  _row = agent_private.change_group
  (_queue, _group, _row.concurrency, _row.paused, _row.held_until, _if_versions, _if_exists, _if_absent, _row.rate_limit, _row.rate_period, _row.rate_burst);
  perform agent_private.record_audit('group.put', _queue || '/' || _group, _settings);
  return _row;
end
$func$;

-- When a hold of a group ends that begins now. Raises QD003 for one that is negative, or longer than ten years.
create or replace function agent_private.hold_end(_hold interval)
returns timestamptz
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  if _hold < interval '0' or _hold > interval '3660 days' then
    perform agent_private.raise_invalid('hold', 'must not be negative, and at most ten years');
  end if;
  return clock_timestamp() + _hold;
end
$func$;

-- Ends what was set for a group of a queue alone. Waits as put_group does. Raises QD003, and QD004 if what is set has none of _if_versions (null: any).
create or replace function agent.delete_group(_queue text, _group text, _if_versions int8[] default null)
returns void
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  perform agent_private.check_group_name(_queue, _group);
  perform from agent.queue_group g where g.queue = _queue and g.key = _group;
  if not found then
    if _if_versions is not null then
      perform agent_private.raise_version_mismatch('group ' || _group, _if_versions);
    end if;
    return;
  end if;
  perform agent_private.change_group(_queue, _group, null, false, null, _if_versions);
  perform agent_private.record_audit('group.delete', _queue || '/' || _group);
end
$func$;

-- Has a group in order go on that stopped for events that failed, and returns whether it had. Those of them that were requeued keep their places. Raises QD003.
create or replace function agent.unblock_group(_queue text, _group text)
returns boolean
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
set jit to off
as $func$
begin
  perform agent_private.check_group_name(_queue, _group);
  perform from agent_private.group_block b where b.queue = _queue and b.key = _group and b.requeued_as is null order by b.place for update;
  delete from agent_private.group_block b where b.queue = _queue and b.key = _group and b.requeued_as is null;
  if not found then
    return false;
  end if;
  insert into agent_private.group_wake (queue, key) values (_queue, _group);
  perform agent.notify_queues(array[_queue]);
  perform agent_private.record_audit('group.unblock', _queue || '/' || _group);
  return true;
end
$func$;

-- Raises QD003 for a queue that has no groups, and for a key that no group has.
create or replace function agent_private.check_group_name(_queue text, _group text)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  perform agent_private.check_queue_name(agent_private.unreserved_queue(_queue));
  if not coalesce(octet_length(_group) between 1 and 255, false) then
    perform agent_private.raise_invalid('group', 'must be 1 to 255 bytes long');
  end if;
end
$func$;

-- A limit of leases, from JSON; null for null. Raises QD003.
create or replace function agent_private.check_limit(_argument text, _limit jsonb)
returns int4
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  if _limit is null or _limit = 'null' then
    return null;
  elsif jsonb_typeof(_limit) <> 'number' or _limit::numeric <> trunc(_limit::numeric) or not _limit::numeric between 1 and 10000 then
    perform agent_private.raise_invalid(_argument, 'must be a whole number from 1 to 10000');
  end if;
  return _limit::int4;
end
$func$;

-- An interval from a JSON string; null for null. Raises QD003.
create or replace function agent_private.read_interval(_argument text, _interval jsonb)
returns interval
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  if jsonb_typeof(_interval) not in ('string', 'null') then
    perform agent_private.raise_invalid(_argument, 'must be an interval as text, such as "30 s"');
  end if;
  return (_interval #>> '{}')::interval;
exception when invalid_datetime_format or datetime_field_overflow or interval_field_overflow then
  perform agent_private.raise_invalid(_argument, 'must be an interval as text, such as "30 s"');
end
$func$;

-- A time from a JSON string; null for null. Raises QD003.
create or replace function agent_private.read_time(_argument text, _time jsonb)
returns timestamptz
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  if jsonb_typeof(_time) not in ('string', 'null') then
    perform agent_private.raise_invalid(_argument, 'must be a time as text, such as "2027-03-01T12:00:00Z"');
  end if;
  return (_time #>> '{}')::timestamptz;
exception when invalid_datetime_format or datetime_field_overflow or invalid_parameter_value then
  perform agent_private.raise_invalid(_argument, 'must be a time as text, such as "2027-03-01T12:00:00Z"');
end
$func$;

-- Holds a group until a time, unless it is held for longer: nothing of it is handed out from the end of the transaction on. Waits for nobody: who has the group locked
-- admits nothing more of it, and whoever looks at it next writes the hold to it.
create or replace function agent_private.hold_group(_queue text, _group text, _until timestamptz)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
as $func$
begin
  perform agent_private.need_turns(_queue, false);
  if agent_private.lock_groups(_queue, array[_group]) <> '{}' then
    perform agent_private.write_holds(_queue, array[_group], array[_until]);
  else
    perform agent_private.revoke_turns(_queue, array[_group]);
    insert into agent_private.group_wake (queue, key, at, event_id, hold_until) values (_queue, _group, clock_timestamp() - interval '1 hour', 0, _until); -- before others
  end if;
end
$func$;

-- Holds a group for some time from now on, unless it is held for longer, as agent.nack_event does. Returns false, and does nothing, if groups need no turn in the queue. For the service.
create or replace function agent_service.hold_group(_queue text, _group text, _hold interval)
returns boolean
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  if not exists (select from agent.queue q where q.name = _queue and q.flow_version is not null) then
    return false;
  end if;
  perform agent_private.hold_group(_queue, _group, agent_private.hold_end(_hold));
  return true;
end
$func$;

-- Writes holds to these groups, which the caller has locked. One that lasts longer than _until stays.
create or replace function agent_private.write_holds(_queue text, _locked text[], _until timestamptz[])
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
set enable_hashjoin to off
set enable_mergejoin to off
as $func$
declare
  _now timestamptz = clock_timestamp();
begin
  update agent.queue_group g
  set held_until = greatest(case when g.held_until > _now then g.held_until end, h.until), version = agent_private.next_version(coalesce(g.version, 0)), updated_at = _now
  from (select n.key, max(n.until) from unnest(_locked, _until) as n (key, until) group by n.key) as h (key, until)
  where g.queue = _queue and g.key = h.key;
  insert into agent_private.group_wake (queue, key, at, event_id)
  select distinct _queue, n.key, n.until, 0::int8 from unnest(_locked, _until) as n (key, until);
  perform agent_private.revoke_turns(_queue, _locked);
  perform agent_private.withdraw_turns(_queue, _locked);
  insert into agent_private.group_wake (queue, key, at, event_id, hold_until) -- for the events that others have locked
  select _queue, n.key, _now + interval '5 ms', 0, max(n.until)
  from unnest(_locked, _until) as n (key, until)
  where exists (select from agent.event e where e.queue = _queue and e.group_key = n.key and e.flow <= 2 and e.flow_version is not null)
  group by n.key;
end
$func$;

-- Has no event of these groups be claimed before it is admitted again, but those that others have locked. They keep their slots, so nobody needs the locks of the groups.
create or replace function agent_private.revoke_turns(_queue text, _keys text[])
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
set enable_hashjoin to off
set enable_mergejoin to off
as $func$
begin
  update agent.event e
  set flow_version = null
  where e.ctid = any (array
  ( select o.place
    from unnest(_keys) as k (key)
    cross join lateral
    ( select e.ctid
      from agent.event e
      where e.queue = _queue and e.group_key = k.key and e.flow <= 2 and e.flow_version is not null
      for update skip locked
    ) as o (place)
  ));
end
$func$;

-- Has events of groups need a turn in a queue that has no limits of groups, or none with a rate if the turn _is_paced, from the end of the transaction on. Without _waits, one that others are about to change like that is left to
-- them. Where they need one already, but by no limit of the policy, the row of the queue is locked, so that prune_groups does not end that.
create or replace function agent_private.need_turns(_queue text, _waits boolean, _is_paced boolean default false)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
set jit to off
as $func$
begin
  if _is_paced then
    perform pg_advisory_xact_lock(agent_private.rates_lock(_queue));
  end if;
  if _waits then
    perform pg_advisory_xact_lock(agent_private.turns_lock(_queue));
  end if;
  perform from agent.queue q
  where q.name = _queue and q.flow_version is not null and case when _is_paced then q.flow_paced and (q.flow_fair or q.flow_rate_limit is not null) else agent_private.has_turns(q) end;
  if found then
    return;
  end if;
  perform from agent.queue q where q.name = _queue and q.flow_version is not null and (q.flow_paced or not _is_paced) for key share;
  if found or not _waits and not pg_try_advisory_xact_lock(agent_private.turns_lock(_queue)) then
    return;
  end if;
  insert into agent.queue as q (name, flow_version, flow_paced) values (_queue, agent_private.next_version(0), _is_paced)
  on conflict (name) do update
  set flow_version = agent_private.next_version(coalesce(q.flow_version, 0)), flow_paced = q.flow_paced or excluded.flow_paced
  where q.flow_version is null or not q.flow_paced and excluded.flow_paced;
end
$func$;

-- Whether anything is set for a group.
create or replace function agent_private.is_group_set(_group agent.queue_group)
returns boolean
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  return _group.concurrency is not null or _group.rate_limit is not null or _group.paused or coalesce(_group.held_until > clock_timestamp(), false);
end
$func$;

-- A rate of claims, from an object with limit, period and perhaps burst; null for null. Raises QD003.
create or replace function agent_private.read_rate(_argument text, _rate jsonb, out rate_limit int4, out rate_period interval, out rate_burst int4)
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
declare
  _unknown text;
begin
  if _rate is null or _rate = 'null' then
    return;
  elsif jsonb_typeof(_rate) <> 'object' then
    perform agent_private.raise_invalid(_argument, 'must be a JSON object');
  end if;
  for _unknown in select p from jsonb_object_keys(_rate) p where p not in ('limit', 'period', 'burst') loop
    perform agent_private.raise_invalid(_argument, 'must not have ' || quote_literal(_unknown));
  end loop;
  rate_limit = agent_private.check_limit(_argument || '/limit', _rate -> 'limit');
  rate_burst = coalesce(agent_private.check_limit(_argument || '/burst', _rate -> 'burst'), 1);
  rate_period = make_interval(secs => extract(epoch from agent_private.read_interval(_argument || '/period', _rate -> 'period'))::float8);
  if rate_limit is null then
    perform agent_private.raise_invalid(_argument || '/limit', 'is required');
  elsif rate_period is null or rate_period < interval '10 ms' or rate_period > interval '24 hours' then
    perform agent_private.raise_invalid(_argument || '/period', 'is required, and must be 10 ms to 24 h');
  end if;
end
$func$;

-- Locks a group, waiting for it, and changes what is set for it. Those of its events that are admitted and not leased wait again, so that the change holds at once; those that are leased will
-- when their leases are lost or given back.
create or replace function agent_private.change_group
( _queue text
, _group text
, _concurrency int4
, _paused boolean
, _held_until timestamptz
, _if_versions int8[] default null
, _if_exists boolean default false
, _if_absent boolean default false
, _rate_limit int4 default null
, _rate_period interval default null
, _rate_burst int4 default null
)
returns agent.queue_group
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
as $func$
declare
  _row agent.queue_group;
  _ids int8[];
begin
  perform pg_advisory_xact_lock(31321898691467264 + (hashtextextended(_queue || '/' || _group, 0) & 1023)); -- see lock_groups
  select g.* into _row from agent.queue_group g where g.queue = _queue and g.key = _group for no key update;
  if not agent_private.is_group_set(_row) then
    _row.version = null;
  end if;
  if _row.version <> all (_if_versions) or _row.version is null and (_if_versions is not null or _if_exists) or _row.version is not null and _if_absent then
    perform agent_private.raise_version_mismatch('group ' || _group, _if_versions);
  end if;
  insert into agent.queue_group as g (queue, key, concurrency, paused, held_until, rate_limit, rate_period, rate_burst, version, updated_at)
  values (_queue, _group, _concurrency, _paused, _held_until, _rate_limit, _rate_period, _rate_burst, agent_private.next_version(coalesce(_row.version, 0)), clock_timestamp())
  on conflict (queue, key) do update
  set concurrency = excluded.concurrency, paused = excluded.paused, held_until = excluded.held_until
    , rate_limit = excluded.rate_limit, rate_period = excluded.rate_period, rate_burst = excluded.rate_burst, version = excluded.version, updated_at = excluded.updated_at
  returning g.* into strict _row;
  delete from agent_private.group_wake w where w.queue = _queue and w.key = _group and w.hold_until is not null;
  -- Two statements: one that has waited for a row does not find its new version by its place.
  _ids = array(select e.id from agent.event e where e.queue = _queue and e.group_key = _group and e.flow <= 2 order by e.id for update);
  update agent.event e set flow_version = null where e.id = any (_ids); -- no others: those it would wait for, out of the order of their ids
  perform agent_private.withdraw_turns(_queue, array[_group]);
  insert into agent_private.group_wake (queue, key, at, event_id)
  select _queue, _group, w.at, 0
  from (select clock_timestamp() union all select _held_until where _held_until > clock_timestamp()) as w (at);
  perform agent.notify_queues(array[_queue]);
  return _row;
end
$func$;

-- Removes up to _limit groups that have nothing, after the one named by _after_queue and _after_key, and returns where to go on: no row at the end. Where a queue has no groups and no limits of
-- them any more, events of its groups need no turn from then on. Who has an event wait meanwhile leaves a wake, and the next call sees to that. For the service.
create or replace function agent_service.prune_groups(_after_queue text, _after_key text, _limit int4 default 1000)
returns table (queue text, key text)
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
  _queues text[];
  _keys text[];
  _n int4;
  _queue text = '';
  _ended text[]; -- queues in which turns may be at an end
begin
  while _after_queue = '' loop -- in queues from which nobody claims, nobody else looks at what is due
    select w.queue into _queue from agent_private.group_wake w where w.queue > _queue order by w.queue limit 1;
    exit when not found;
    perform agent_private.look_at_woken(_queue, _limit);
  end loop;
  select array_agg(l.queue order by l.queue, l.key), array_agg(l.key order by l.queue, l.key), count(*) into _queues, _keys, _n
  from
  ( select g.queue, g.key
    from agent.queue_group g
    where (g.queue, g.key) > (_after_queue, _after_key)
    order by g.queue, g.key
    limit _limit
    for update skip locked
  ) as l;
  delete from agent.queue_group g
  using unnest(_queues, _keys) as l (queue, key)
  where g.queue = l.queue and g.key = l.key
  and (select true from agent_private.group_claim c where c.queue = g.queue and c.key = g.key limit 1) is null
  and g.concurrency is null and g.rate_limit is null and not g.paused and coalesce(g.held_until <= clock_timestamp(), true) and coalesce(g.tat <= clock_timestamp(), true)
  and (select true from agent.event e where e.queue = g.queue and e.group_key = g.key limit 1) is null
  and (select true from agent_private.group_wake w where w.queue = g.queue and w.key = g.key limit 1) is null;
  insert into agent_private.group_wake (queue, key) -- a row that was deleted by hand has left none
  select l.queue, l.key
  from unnest(_queues, _keys) as l (queue, key)
  where (select true from agent.event e where e.queue = l.queue and e.group_key = l.key and e.flow = 3 limit 1)
  and (select true from agent_private.group_wake w where w.queue = l.queue and w.key = l.key and w.at <= clock_timestamp() limit 1) is null;

  if _n = _limit then
    return query select _queues[_n], _keys[_n];
    return;
  end if;
  _ended = array
  ( select q.name from agent.queue q
    where q.flow_version is not null and (not agent_private.has_turns(q) or q.flow_paced and not q.flow_fair and q.flow_rate_limit is null)
    order by q.name
    for update skip locked -- see need_turns; what it has done is seen by later statements
  );
  update agent.queue q
  set flow_version = null
  where q.name = any (_ended) and q.flow_version is not null and not agent_private.has_turns(q)
  and (select true from agent.queue_group g where g.queue = q.name limit 1) is null
  and (select true from agent_private.group_wake w where w.queue = q.name limit 1) is null
  and (select true from agent.event e where e.queue = q.name and e.group_key is not null and e.flow > 2 limit 1) is null;
  delete from agent_private.group_claim c -- of groups that have nothing: what they have used is available again
  where c.at < clock_timestamp() - interval '1 day' * 2
  and (select true from agent.event e where e.queue = c.queue and e.group_key = c.key limit 1) is null;
  update agent.queue q
  set flow_paced = false, flow_version = agent_private.next_version(q.flow_version)
  where q.name = any (_ended) and q.flow_paced and not q.flow_fair and q.flow_rate_limit is null and (select true from agent.queue_group g where g.queue = q.name and g.rate_limit is not null limit 1) is null;
  delete from agent_private.group_block b where not exists (select from agent.queue q where q.name = b.queue and q.flow_on_failed = 'block');
  delete from agent_private.group_block b where b.requeued_as is not null and not exists (select from agent.event e where e.id = b.requeued_as);
  -- Wakes that nobody finds there.
  insert into agent.queue as q (name, flow_version)
  select distinct w.queue, agent_private.next_version(0)
  from agent_private.group_wake w
  where not exists (select from agent.queue o where o.name = w.queue and o.flow_version is not null)
  on conflict (name) do update set flow_version = coalesce(q.flow_version, excluded.flow_version);
end
$func$;
