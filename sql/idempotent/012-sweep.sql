-- Sweeping: what nobody will finish any more leaves for history as expired.

-- The names of all queues with an event in them, found by leaping from one to the next in the index.
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

-- The names of all queues with an event in them, or null when there are more than _most: then it takes less time to look at all
-- events than at queue after queue. Private to the functions of this schema.
create or replace function agent_private.waiting_queues_if_few(_most int4 default 1000)
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
    elsif cardinality(_names) = _most then
      return null;
    end if;
    _names = _names || _queue;
  end loop;
end
$func$;

-- Expires events that were claimed _max_attempts times (what the event or its queue's policy says goes before it), those whose expires_at has
-- passed, and those that have been claimable for longer than _max_vt_age (null: whatever their age), in _queue or (null) all queues, up to
-- about _limit (null: all there are). An event whose last lease still runs is never taken. A pause stops the clock of the age: nothing of a
-- queue that is paused is over age, and once it is resumed the age counts from there at the earliest. Returns how many went, by queue.
-- One that history does not take stops no other: it is left alone for an hour, and counted as put_off, with the reason.
create or replace function agent.sweep_events
( _max_attempts int4 default 3
, _max_vt_age interval default interval '1 hour'
, _queue text default null
, _limit int4 default null
)
returns table (queue text, expired int8, put_off int8, reason text)
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
begin
  if coalesce(_max_attempts, 0) < 1 then
    perform agent_private.raise_invalid('max_attempts', 'must be at least 1');
  elsif _max_vt_age < interval '0' then
    perform agent_private.raise_invalid('max_vt_age', 'must not be negative');
  elsif _limit < 1 then
    perform agent_private.raise_invalid('limit', 'must be at least 1');
  end if;

  -- What has its own end, each by an index of its own.
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

  -- What was claimed too often by the account of its queue, or else of the caller.
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

  begin
    return query
    select m.queue, count(*), 0::int8, null::text from agent_private.move_to_history(_ids, 'expired') m group by m.queue;
  exception when data_exception or integrity_constraint_violation or program_limit_exceeded or raise_exception or feature_not_supported then
    return query select x.* from agent_private.move_each_to_history(_ids, 'expired') x;
  end;
end
$func$;

-- Moves these events to history one by one, putting off those that it does not take. Private to the functions of this schema.
create or replace function agent_private.move_each_to_history(_ids int8[], _outcome text)
returns table (queue text, moved int8, put_off int8, reason text)
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
as $func$
#variable_conflict use_column
declare
  _id int8;
  _reason text;
begin
  foreach _id in array _ids loop
    begin
      return query select m.queue, 1::int8, 0::int8, null::text from agent_private.move_to_history(array[_id], _outcome) m;
      continue;
    exception when data_exception or integrity_constraint_violation or program_limit_exceeded or raise_exception or feature_not_supported then
      _reason = format('event %s: %s', _id, sqlerrm);
    end;
    return query
    update agent.event e
    set vt = agent_private.add_utc(clock_timestamp(), interval '1 hour')
      , expires_at = case when e.expires_at <= clock_timestamp() then agent_private.add_utc(clock_timestamp(), interval '1 hour') else e.expires_at end
    where e.id = _id
    returning e.queue, 0::int8, 1::int8, _reason;
  end loop;
end
$func$;

-- Up to _limit events that have been claimable since before _cutoff, but none of _ids, locked: of queues that were neither paused nor resumed since.
-- Private to the functions of this schema, and planned under sweep_events' settings.
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
      where e.queue > '' and e.vt < _cutoff and e.id <> all(_ids)
      and not exists (select from agent.queue q where q.name = e.queue and (q.paused or q.resumed_at > _cutoff))
      limit _limit
      for update of e skip locked
    );
  end if;
  for _name, _lane in
    select w.name, l.priority
    from unnest(_names) as w (name)
    cross join lateral agent_private.list_lanes(w.name) as l
    where not exists (select from agent.queue q where q.name = w.name and (q.paused or q.resumed_at > _cutoff))
  loop
    exit when cardinality(_found) >= _limit;
    _found = _found || array
    ( select e.id
      from agent.event e
      where e.queue = _name and e.priority = _lane and e.vt < _cutoff and e.id <> all(_ids)
      order by e.vt, e.id
      limit _limit - cardinality(_found)
      for update skip locked
    );
  end loop;
  return _found;
end
$func$;

-- Events without attempts of their own that were claimed _max times and whose last lease is over, locked: those of a queue that has a policy, or
-- (_policied null) of the queues that have none, of _queue only unless it is null. Private to the functions of this schema, and planned under
-- sweep_events' settings.
create or replace function agent_private.lock_exhausted(_policied text, _queue text, _max int4, _limit int4, _now timestamptz)
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
      and (e.queue = _policied or _policied is null and not exists (select from agent.queue q where q.name = e.queue and q.max_attempts is not null))
      limit _limit
      for update of e skip locked
    );
  end if;
  -- The index of the attempts has none that were claimed once: all that is ready is looked through.
  _names = case
    when _policied is not null and _queue <> _policied then '{}'
    when coalesce(_policied, _queue) is null then agent_private.waiting_queues_if_few()
    else array[coalesce(_policied, _queue)]
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
    where w.name = _policied or _policied is null and not exists (select from agent.queue q where q.name = w.name and q.max_attempts is not null)
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

-- sweep_events, and the number of all events that went.
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
  select coalesce(sum(x.expired), 0)::int8 from agent.sweep_events(_max_attempts, _max_vt_age, _queue, _limit) x
$func$;
