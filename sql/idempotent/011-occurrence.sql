-- Occurrences: schedules that are due become events of their queue, or are published to their topic, each time once.

-- How long until the next schedule is due, null if none is active.
create or replace function agent_service.next_due()
returns interval
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
set jit to off
as $func$
begin
  if agent_private.is_copy() then
    return null;
  end if;
  return
  ( select s.next_at - clock_timestamp()
    from agent.schedule s
    where s.status = 'active' and s.next_at is not null
    order by s.next_at, s.id
    limit 1
  );
end
$func$;

-- Locks up to _limit schedules that are due, oldest first, without those that another session has locked. Nothing is computed before
-- they are locked, and no schedule can fail another: fault says why one cannot fire. is_plain tells whether the zone's clocks show the
-- local time at the due time with no change of the offset near: then the next occurrence follows from local times alone; otherwise see
-- schedule_position. Nothing is due in a copy of a database that nobody has adopted.
--
-- The session is ended if it is then idle for 5 s, so that a process that stalls does not keep the locks: the steps between this and
-- fire_schedules take milliseconds. With a _grace, only schedules that are due for no longer are locked.
create or replace function agent_service.lock_due_schedules(_limit int4 default 1000, _grace interval default null)
returns table (schedule agent.schedule, now timestamptz, is_plain boolean, fault text)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set enable_seqscan to off
set enable_bitmapscan to off
set jit to off
as $func$
#variable_conflict use_column
declare
  _now timestamptz = clock_timestamp();
  _first timestamptz = coalesce(_now - _grace, '-infinity');
begin
  if agent_private.is_copy() then
    return;
  end if;
  if not current_setting('idle_in_transaction_session_timeout')::interval between interval '1 ms' and interval '5 s' then
    perform set_config('idle_in_transaction_session_timeout', '5s', true);
  end if;
  return query
  with due as materialized
  ( select s
    from agent.schedule s
    where s.status = 'active' and s.next_at is not null and s.next_at <= _now and s.next_at >= _first
    order by s.next_at, s.id
    limit _limit
    for update skip locked
  )
  , zone as materialized
  ( select z.zone, agent_private.zone_fault(z.zone) as fault
    from (select distinct (d.s).zone from due d) as z
  )
  , checked as materialized
  ( select d.s
    , case when not (agent_private.is_representable_time((d.s).next_local) and agent_private.is_representable_time((d.s).next_at at time zone 'UTC'))
        then format('its next time, %s, is beyond the years 1 to 9999', (d.s).next_local)
      when agent_private.new_json_size((d.s).event) is null then agent_private.unreadable_reason()
      else z.fault end as fault
    from due d
    left join zone z on z.zone = (d.s).zone
  )
  select agent_private.readable_schedule(j.s), _now
  , case when j.fault is null
      then agent_private.local_time((j.s).next_at, (j.s).zone) = (j.s).next_local and agent_private.is_steady((j.s).next_at, (j.s).zone)
    else false end
  , j.fault
  from checked j
  order by (j.s).next_at, (j.s).id;
end
$func$;

-- Where a schedule's next occurrence stands among the others (at), and local_floor of that. Raises QD010, and QD003 for a zone that the
-- server does not know any more.
create or replace function agent_service.schedule_position(_id int8)
returns table (at timestamptz, floor timestamp)
language plpgsql stable
security definer
set search_path to pg_catalog, pg_temp
as $func$
#variable_conflict use_column
declare
  _s agent.schedule = agent.get_schedule(_id);
  _at timestamptz;
begin
  perform agent_private.check_zone_known(_s.zone);
  _at = coalesce(case when not _s.is_real_time then agent.resolve_local(_s.next_local, _s.zone, _s.gap, _s.overlap) end, _s.next_at);
  return query select _at, agent_private.local_floor(_at, _s.zone);
end
$func$;

-- The start of the next expansion of a stored schedule: the time to start from, _at or (null) now, and local_floor of that in its zone.
-- Raises QD003 for a zone that the server does not know any more.
create or replace function agent_service.expansion_start(_zone text, _at timestamptz default null)
returns table (at timestamptz, floor timestamp)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
#variable_conflict use_column
declare
  _from timestamptz = coalesce(_at, clock_timestamp());
begin
  perform agent_private.check_zone_known(_zone);
  return query select _from, agent_private.local_floor(_from, _zone);
end
$func$;

-- Inserts the events of occurrences of schedules that the caller has locked, publishes those of schedules with a topic, or, where the
-- status is 'skipped', only records the occurrences; and sets for each schedule in _ids when it is due next (null: never, it is
-- completed). An occurrence that exists is skipped. Published events take their place in the log when the transaction commits, so that
-- readers do not wait for them while other rows are locked. Returns how many were inserted or published.
create or replace function agent_service.fire_schedules
( _schedule_ids int8[]
, _nominals timestamp[]
, _scheduled_for timestamptz[]
, _statuses text[]
, _ids int8[]
, _next_locals timestamp[]
, _next_ats timestamptz[]
)
returns int8
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set enable_seqscan to off
set enable_nestloop to off
set enable_mergejoin to off
set jit to off
as $func$
#variable_conflict use_column
declare
  _sequence regclass = pg_get_serial_sequence('agent.event', 'id');
  _fired int8[];
  _events int8[];
  _nominal_at timestamp[];
  _for timestamptz[];
begin
  perform agent_private.check_sequences();
  with made as
  ( insert into agent.occurrence (schedule_id, nominal_at, is_real_time, scheduled_for, event_id, topic, fired_at, status, reason)
    select n.schedule_id, n.nominal_at, t.is_real_time, n.scheduled_for
    , case when n.status = 'fired' and t.topic is null then nextval(_sequence) end
    , case when n.status = 'fired' then t.topic end
    , case when n.status = 'fired' then clock_timestamp() end
    , n.status
    , case when n.status = 'skipped' then 'it was missed, and the misfire policy had it not fire' end
    from unnest(_schedule_ids, _nominals, _scheduled_for, _statuses) with ordinality as n (schedule_id, nominal_at, scheduled_for, status, ord)
    join agent.schedule t on t.id = any(_ids) and t.id = n.schedule_id
    order by n.ord
    on conflict do nothing
    returning schedule_id, event_id, nominal_at, scheduled_for, fired_at
  )
  select array_agg(m.schedule_id), array_agg(m.event_id), array_agg(m.nominal_at), array_agg(m.scheduled_for)
  into _fired, _events, _nominal_at, _for
  from made m
  where m.fired_at is not null;

  perform agent_private.insert_occurrence_events(_fired, _events, _nominal_at, _for);

  update agent.schedule s
  set fired = s.fired + n.fired
  , next_local = case when s.fired + n.fired >= s."count" then null else n.next_local end
  , next_at = case when s.fired + n.fired >= s."count" then null else n.next_at end
  , status = case when s.fired + n.fired >= s."count" or n.next_at is null then 'completed' else s.status end
  , is_unplanned = false
  from
  ( select u.id, u.next_local, u.next_at, coalesce(f.fired, 0) as fired
    from unnest(_ids, _next_locals, _next_ats) as u (id, next_local, next_at)
    left join (select z.id, count(*) from unnest(_fired) as z (id) group by z.id) as f (id, fired) on f.id = u.id
  ) as n
  where s.id = any(_ids) -- finds the schedules by index; by the join alone all of them would be read
  and s.id = n.id;
  return coalesce(cardinality(_fired), 0);
end
$func$;

-- fire_schedules for schedules that were expanded without a lock: those of _ids that have changed since (another version, next time or
-- number fired), or that another session has locked, are left alone. Returns those that were fired.
create or replace function agent_service.fire_schedules_if_unchanged
( _schedule_ids int8[]
, _nominals timestamp[]
, _scheduled_for timestamptz[]
, _statuses text[]
, _ids int8[]
, _next_locals timestamp[]
, _next_ats timestamptz[]
, _versions int8[]
, _planned_ats timestamptz[]
, _fired int8[]
)
returns int8[]
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set enable_seqscan to off
set jit to off
as $func$
#variable_conflict use_column
declare
  _unchanged int8[];
  _o record;
  _n record;
begin
  if agent_private.is_copy() then
    return '{}';
  end if;
  select coalesce(array_agg(l.id), '{}') into _unchanged
  from
  ( select s.id
    from agent.schedule s
    join unnest(_ids, _versions, _planned_ats, _fired) as p (id, version, next_at, fired) on p.id = s.id
    where s.id = any(_ids) and s.status in ('active', 'paused') and s.version = p.version and s.next_at = p.next_at and s.fired = p.fired
    order by s.id
    for update of s skip locked
  ) as l;
  select array_agg(o.id order by o.ord) as ids, array_agg(o.nominal order by o.ord) as nominals, array_agg(o.at order by o.ord) as ats
  , array_agg(o.status order by o.ord) as statuses
  into _o
  from unnest(_schedule_ids, _nominals, _scheduled_for, _statuses) with ordinality as o (id, nominal, at, status, ord)
  where o.id = any(_unchanged);
  select array_agg(n.id order by n.ord) as ids, array_agg(n.local order by n.ord) as locals, array_agg(n.at order by n.ord) as ats
  into _n
  from unnest(_ids, _next_locals, _next_ats) with ordinality as n (id, local, at, ord)
  where n.id = any(_unchanged);
  perform agent_service.fire_schedules(_o.ids, _o.nominals, _o.ats, _o.statuses, _n.ids, _n.locals, _n.ats);
  return _unchanged;
end
$func$;

-- Pauses schedules that cannot fire, each with its reason, which is shown until it is resumed. Returns those that were active.
create or replace function agent_service.pause_faulty_schedules(_ids int8[], _reasons text[])
returns setof int8
language sql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
  update agent.schedule s
  set status = 'paused', status_reason = left(p.reason, 1000), version = s.version + 1, updated_at = now()
  from unnest(_ids, _reasons) as p (id, reason)
  where s.id = p.id and s.status = 'active'
  returning s.id
$func$;

-- Fires an extra occurrence now, whatever the schedule's times, and returns it as list_occurrences does, without its key. The event that a schedule with
-- a topic publishes takes its place in the log when the transaction commits. Raises QD010, QD012 if the schedule is cancelled, and QD003 for a
-- zone that the server does not know any more.
create or replace function agent.run_schedule(_id int8, _queues text[] default null, _topics text[] default null)
returns table
( schedule_id int8, nominal_at timestamp, is_manual boolean, scheduled_for timestamptz, status text, event_id int8
, fired_at timestamptz, executed_at timestamptz, failure_reason text, retry_count int4, topic text
)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
#variable_conflict use_column
declare
  _s agent.schedule = agent_private.lock_schedule(_id, _queues => _queues, _topics => _topics);
  _now timestamptz = clock_timestamp();
  _nominal timestamp;
  _event int8;
begin
  if _s.status = 'cancelled' then
    perform agent_private.raise_schedule_ended(_s);
  end if;
  perform agent_private.check_zone_known(_s.zone);
  if _s.topic is null then
    perform agent_private.check_sequences();
    _event = nextval(pg_get_serial_sequence('agent.event', 'id'));
  end if;
  loop
    _nominal = agent_private.local_time(_now, _s.zone);
    insert into agent.occurrence (schedule_id, nominal_at, is_real_time, is_manual, scheduled_for, event_id, topic, fired_at, status)
    values (_id, _nominal, _s.is_real_time, true, _now, _event, _s.topic, _now, 'fired')
    on conflict do nothing;
    exit when found;
    _now = _now + interval '1 microsecond';
  end loop;
  perform agent_private.insert_occurrence_events(array[_id], array[_event], array[_nominal], array[_now]);
  perform agent_private.record_audit('schedule.run', _id::text);
  return query
  select _id, _nominal, true, _now, case when _s.topic is null then 'pending' else 'published' end, _event, _now
  , null::timestamptz, null::text, 0, _s.topic;
end
$func$;

-- Has the queue of a schedule that is completed declared, and keeps it so until the end of the transaction: see require_queues. A schedule that is not keeps
-- its queue from being deleted itself. Returns true. For a transaction that has the schedule locked.
create or replace function agent_service.require_queue_of_schedule(_id int8)
returns boolean
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  perform agent_service.require_queues(array[s.queue]) from agent.schedule s where s.id = _id and s.status = 'completed';
  return true;
end
$func$;

-- Up to _limit past occurrences of a schedule, latest first, before the one whose key_at is _before. status follows the event: pending, processing, completed
-- (also once its history has been dropped), failed, cancelled, or skipped; without an event it is published, to a topic. Raises QD010 if
-- there is no such schedule.
create or replace function agent.list_occurrences(_id int8, _limit int4 default 100, _before timestamp default null)
returns table
( schedule_id int8, nominal_at timestamp, is_manual boolean, scheduled_for timestamptz, status text, event_id int8
, fired_at timestamptz, executed_at timestamptz, failure_reason text, retry_count int4, topic text, key_at timestamp
)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_custom_plan -- the plan depends on whether _before is given
set enable_seqscan to off
set jit to off
as $func$
#variable_conflict use_column
begin
  perform agent.get_schedule(_id);
  return query
  select o.schedule_id, o.nominal_at, o.is_manual, o.scheduled_for
  , coalesce(e.status, case when o.topic is null then o.status else 'published' end), coalesce(e.event_id, o.event_id), o.fired_at
  , e.executed_at, coalesce(e.failure_reason, o.reason), coalesce(e.retry_count, 0), o.topic, o.key_at
  from
  ( select o.*
    from agent.occurrence o
    where o.schedule_id = _id and (_before is null or o.key_at < _before)
    order by o.key_at desc
    limit _limit
  ) as o
  left join lateral agent_private.occurrence_event(o.event_id) e on o.event_id is not null
  order by o.key_at desc;
end
$func$;

-- The last past occurrence of each of these schedules that has one, as list_occurrences has it without its key. It takes one look into an index for each schedule, and what became of the event.
create or replace function agent.last_occurrences(_ids int8[])
returns table
( schedule_id int8, nominal_at timestamp, is_manual boolean, scheduled_for timestamptz, status text, event_id int8
, fired_at timestamptz, executed_at timestamptz, failure_reason text, retry_count int4, topic text
)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
set enable_bitmapscan to off
set jit to off
as $func$
#variable_conflict use_column
begin
  return query
  select o.schedule_id, o.nominal_at, o.is_manual, o.scheduled_for
  , coalesce(e.status, case when o.topic is null then o.status else 'published' end), coalesce(e.event_id, o.event_id), o.fired_at
  , e.executed_at, coalesce(e.failure_reason, o.reason), coalesce(e.retry_count, 0), o.topic
  from (select distinct i.id from unnest(_ids) as i (id)) as s
  cross join lateral (select o.* from agent.occurrence o where o.schedule_id = s.id order by o.key_at desc limit 1) as o
  left join lateral agent_private.occurrence_event(o.event_id) e on o.event_id is not null
  order by o.schedule_id;
end
$func$;

-- Deletes occurrences that were due longer ago than _retention, which is two days at least, and returns how many. With _blocks, only so
-- many blocks of the table from _first_block on are read, so that each transaction is short; the result is null beyond the table's end.
-- It goes by blocks because an index scan for the oldest would pass over all that was deleted before.
create or replace function agent_service.prune_occurrences(_retention interval, _first_block int8 default 0, _blocks int8 default null)
returns int8
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
set jit to off
as $func$
declare
  _size int8 = pg_relation_size('agent.occurrence') / current_setting('block_size')::int8;
  _end int8 = least(coalesce(_first_block + _blocks, _size), _size);
  _deleted int8;
begin
  -- A change of zone cannot bring back a time that is older than two days.
  if not coalesce(_retention >= interval '2 days', false) then
    perform agent_private.raise_invalid('retention', 'must be at least two days');
  end if;
  if _blocks is not null and _first_block >= _size then
    return null;
  end if;
  delete from agent.occurrence o
  where o.ctid >= format('(%s,0)', _first_block)::tid and o.ctid < format('(%s,0)', _end)::tid
  and o.scheduled_for < now() - _retention;
  get diagnostics _deleted = row_count;
  return _deleted;
end
$func$;

-- Inserts the events of recorded occurrences, under these ids, and wakes the claims that wait for them. Those without an id are published
-- to the topics of their schedules, at the end of the transaction.
create or replace function agent_private.insert_occurrence_events(_schedule_ids int8[], _event_ids int8[], _nominals timestamp[], _scheduled_for timestamptz[])
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set enable_seqscan to off
set enable_nestloop to off
set enable_mergejoin to off
set jit to off
as $func$
#variable_conflict use_column
begin
  insert into agent.event overriding system value
  select e.*
  from unnest(_schedule_ids, _event_ids, _nominals, _scheduled_for) with ordinality as n (schedule_id, event_id, nominal_at, scheduled_for, ord)
  join agent.schedule s on s.id = any(_schedule_ids) and s.id = n.schedule_id
  left join agent.queue q on q.name = s.queue and (q.group_from is not null or q.flow_fair)
  cross join lateral agent_private.new_event
  ( n.event_id, now(), s.event, null, s.queue, _type => s.type, _priority => s.priority
  , _occurrence => agent_private.occurrence_json(n.schedule_id, n.nominal_at, n.scheduled_for)
  , _group => coalesce(s.group_key, agent_private.default_group(s.event, q.group_from, q.flow_fair))
  ) as e
  where n.event_id is not null
  order by n.ord;
  if exists (select from agent.placement p where p.removed_at is null and 0 <> all (p.cells)) then
    perform agent_private.forward_events(_event_ids);
  end if;
  perform agent.notify_queues(array(select s.queue from agent.schedule s where s.id = any(_schedule_ids) and s.queue is not null));
  if array_position(_event_ids, null) is not null then
    perform agent_private.publish_at_commit(array
    ( select row
      ( s.topic, s.event, null
      , jsonb_build_object('occurrence', agent_private.occurrence_json(n.schedule_id, n.nominal_at, n.scheduled_for)), null, null, null
      )::agent_private.publication
      from unnest(_schedule_ids, _event_ids, _nominals, _scheduled_for) with ordinality as n (schedule_id, event_id, nominal_at, scheduled_for, ord)
      join agent.schedule s on s.id = any(_schedule_ids) and s.id = n.schedule_id
      where n.event_id is null
      order by n.ord
    ));
  end if;
end
$func$;

-- An occurrence as its event, in a queue or published, names it.
create or replace function agent_private.occurrence_json(_schedule_id int8, _nominal_at timestamp, _scheduled_for timestamptz)
returns jsonb
language sql stable parallel safe
return jsonb_build_object
( 'schedule_id', _schedule_id
, 'nominal_at', _nominal_at
, 'scheduled_for', (to_jsonb(_scheduled_for at time zone 'UTC') #>> '{}') || 'Z'
);

-- The outcome of an occurrence's event: of its latest copy, if it was requeued.
create or replace function agent_private.occurrence_event(_event_id int8)
returns table (event_id int8, status text, executed_at timestamptz, failure_reason text, retry_count int4)
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
set jit to off
as $func$
#variable_conflict use_column
declare
  _id int8 = _event_id;
  _copy int8;
begin
  loop
    return query
    select e.id, case when agent_private.event_state(e, clock_timestamp()) = 'leased' then 'processing' else 'pending' end
    , null::timestamptz, null::text, greatest(e.attempts - 1, 0)
    from agent.event e
    where e.id = _id;
    if found then
      return;
    end if;
    -- A separate statement, so that it sees an event that moved to history since the one above.
    select h.requeued_as into _copy from agent.event_hist h where h.id = _id;
    if not found then
      return query select _id, 'completed', null::timestamptz, null::text, 0;
      return;
    end if;
    exit when _copy is null;
    _id = _copy;
  end loop;
  return query
  select h.id
  , case h.outcome when 'done' then 'completed' when 'cancelled' then 'cancelled' else 'failed' end
  , case when h.outcome <> 'cancelled' then h.finished_at end
  , case h.outcome
      when 'failed' then coalesce(h.last_error, 'the worker gave no reason')
      when 'expired' then coalesce(h.last_error, 'the event expired')
    end
  , greatest(h.attempts - 1, 0)
  from agent.event_hist h
  where h.id = _id
  limit 1;
end
$func$;

-- Raises QD003 for a zone that the server does not know any more.
create or replace function agent_private.check_zone_known(_zone text)
returns void
language plpgsql stable
set search_path to pg_catalog, pg_temp
as $func$
declare
  _fault text = agent_private.zone_fault(_zone);
begin
  if _fault is not null then
    perform agent_private.raise_invalid('timezone', _fault);
  end if;
end
$func$;
