-- Owners and schedules: creating, changing, ending them. The service expands rules into local times; here these become instants.
--
-- Locks are taken in one order, so that no two sessions wait for each other: owner, zone_rule, schedules by id.

-- Creates or replaces an owner. If the zone changes, all schedules of the owner without a zone of their own are resolved again from the
-- same local times, in this transaction: see move_schedules for moved and unresolved. Raises QD004 if _if_versions (null: any) has not
-- the owner's version, or if there is no owner and it is given or _if_exists is true, and QD003.
create or replace function agent_service.put_owner_if_match(_id text, _timezone text, _attributes jsonb, _if_versions int8[], _if_exists boolean)
returns table
( id text, timezone text, attributes jsonb, version int8, created_at timestamptz, updated_at timestamptz
, is_new boolean, moved int8, unresolved int8[]
)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
#variable_conflict use_column
declare
  _before agent.owner;
  _owner agent.owner;
  _move record;
begin
  if octet_length(coalesce(_id, '')) not between 1 and 255 then
    perform agent_private.raise_invalid('id', 'must be 1 to 255 bytes');
  elsif jsonb_typeof(_attributes) is distinct from 'object' then
    perform agent_private.raise_invalid('attributes', 'must be a JSON object');
  end if;
  perform agent_private.check_json('attributes', _attributes);
  select o.* into _before from agent.owner o where o.id = _id for update;
  perform agent_private.watch_zone(_timezone);

  insert into agent.owner as o (id, timezone, attributes)
  select _id, _timezone, _attributes
  where _before.id is not null or (_if_versions is null and not _if_exists)
  on conflict on constraint owner_pkey do update
  set timezone = excluded.timezone, attributes = excluded.attributes
  , version = agent_private.next_copied_version(o.version), updated_at = agent_private.next_copied_time(o.updated_at)
  where _if_versions is null or o.version = any(_if_versions)
  returning o.* into _owner;
  if _owner.id is null then
    perform agent_private.raise_version_mismatch('owner ' || _id, _if_versions);
  end if;

  -- A new owner's schedules, which other sessions created in between, have this zone already.
  if _owner.version > 1 and _before.timezone is distinct from _owner.timezone then
    select * into strict _move
    from agent_private.move_schedules
    ( array(select s.id from agent.schedule s where s.owner = _id and s.timezone is null), _owner.timezone
    );
  else
    select 0::int8 as moved, '{}'::int8[] as unresolved into _move;
  end if;
  perform agent_private.record_audit('owner.put', _id, jsonb_build_object('timezone', _timezone, 'moved', _move.moved));
  return query
  select _owner.id, _owner.timezone, _owner.attributes, _owner.version, _owner.created_at, _owner.updated_at
  , _owner.version = 1, _move.moved, _move.unresolved;
end
$func$;

-- One owner. Raises QD011 if there is none.
create or replace function agent.get_owner(_id text)
returns agent.owner
language plpgsql stable
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _owner agent.owner;
begin
  select o.* into _owner from agent.owner o where o.id = _id;
  if not found then
    raise exception 'there is no owner %', _id using errcode = 'QD011';
  end if;
  return _owner;
end
$func$;

-- Up to _limit owners by id, after _after_id.
create or replace function agent.list_owners(_limit int4 default 100, _after_id text default null)
returns setof agent.owner
language plpgsql stable
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  return query
  select o.* from agent.owner o
  where _after_id is null or o.id > _after_id collate "C"
  order by o.id
  limit _limit;
end
$func$;

-- Deletes an owner and cancels all their schedules, see cancel_schedules. Returns how many. Raises QD011 if there is no such owner, and
-- QD004 if _if_versions (null: any) has not the owner's version.
create or replace function agent_service.delete_owner_if_match(_id text, _if_versions int8[])
returns int8
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _owner agent.owner;
begin
  select o.* into _owner from agent.owner o where o.id = _id for update;
  if not found then
    raise exception 'there is no owner %', _id using errcode = 'QD011';
  elsif not _owner.version = any(_if_versions) then
    perform agent_private.raise_version_mismatch('owner ' || _id, _if_versions);
  end if;
  perform agent_private.record_audit('owner.delete', _id);
  delete from agent.owner o where o.id = _id;
  return agent_private.cancel_schedules(array(select s.id from agent.schedule s where s.owner = _id));
end
$func$;

-- The start of the expansion of a new schedule: the zone (the schedule's own, else its owner's, or UTC for an instant), the time to
-- start from (_after, or null: now), the same as local time, where to start the series (see local_floor), and _instants as local times.
-- It locks nothing: the schedule is stored with the zone, and refused if that has changed by then. Raises QD003 for an unknown zone or
-- owner.
create or replace function agent_service.schedule_zone(_timezone text, _owner text, _is_instant boolean, _after timestamptz, _instants timestamptz[])
returns table (zone text, at timestamptz, local_at timestamp, floor timestamp, locals timestamp[])
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
#variable_conflict use_column
declare
  _zone text;
  _at timestamptz = coalesce(_after, clock_timestamp());
begin
  if _owner is not null then
    select o.timezone into _zone from agent.owner o where o.id = _owner;
    if not found then
      perform agent_private.raise_invalid('owner', 'must be an existing owner');
    elsif _timezone is null and not _is_instant then
      perform agent_private.check_zone(_zone, 'owner');
    end if;
  end if;
  if _timezone is not null then
    perform agent_private.check_zone(_timezone);
    _zone = _timezone;
  end if;
  if _is_instant then
    _zone = 'UTC';
  elsif _zone is null then
    perform agent_private.raise_invalid('timezone', 'is required, unless the owner has one');
  end if;
  return query
  select _zone, _at, agent_private.local_time(_at, _zone), agent_private.local_floor(_at, _zone)
  , array(select agent_private.local_time(i.at, _zone) from unnest(_instants) with ordinality as i (at, ord) order by i.ord);
end
$func$;

-- Stores a schedule. _schedule has its columns by name; those left out have their defaults. With a topic it has no queue. Raises QD013 if its owner's zone is not the
-- one it was expanded in: expand it again. With a _key the call can be repeated by the same caller: with the same _request, by value, it
-- returns the existing schedule; with another it raises QD005. A second call waits until the first has committed.
create or replace function agent_service.insert_schedule(_schedule jsonb, _key text default null, _request jsonb default null)
returns table (schedule agent.schedule, replayed boolean)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
#variable_conflict use_column
declare
  _s agent.schedule = jsonb_populate_record(null::agent.schedule, _schedule);
  _made agent.schedule;
  _hash text;
begin
  perform agent_private.check_json('event', _schedule), agent_private.check_json('event', _request);
  _hash = case when _key is not null then agent_private.hash_json(_request) end;
  if _s.topic is null then
    _s.queue = coalesce(_s.queue, 'default');
  end if;
  _s.caller = agent_private.caller();
  _s.idempotency_key = _key;
  perform agent_private.check_schedule(_s);
  perform agent_private.lock_schedule_owner(_s);
  perform agent_private.watch_zone(_s.zone);
  insert into agent.schedule as s
  ( name, owner, queue, topic, type, priority, group_key, event, kind, rule, at_local, at_instant, timezone, zone
  , gap, overlap, leap, misfire, starts_local, starts_at, ends_local, ends_at, last_local, until_at, "count"
  , status, next_local, next_at, is_real_time, caller, idempotency_key, request_hash
  )
  values
  ( _s.name, _s.owner, _s.queue, _s.topic, _s.type, coalesce(_s.priority, 0), _s.group_key, _s.event, _s.kind, _s.rule, _s.at_local, _s.at_instant, _s.timezone, _s.zone
  , coalesce(_s.gap, 'forward'), coalesce(_s.overlap, 'first'), coalesce(_s.leap, 'feb28'), coalesce(_s.misfire, 'once')
  , _s.starts_local, _s.starts_at, _s.ends_local, _s.ends_at, _s.last_local, _s.until_at, _s."count"
  , case when _s.next_at is null then 'completed' else 'active' end, _s.next_local, _s.next_at, coalesce(_s.is_real_time, false), _s.caller, _key, _hash
  )
  on conflict (caller, idempotency_key) where idempotency_key is not null do nothing
  returning s.* into _made;
  if _made.id is not null then
    perform agent_private.record_audit('schedule.create', _made.id::text, agent_private.schedule_detail(_made));
    perform agent_private.notify_schedules(_made.next_at);
    return query select _made, false;
    return;
  end if;
  select s.* into strict _made from agent.schedule s where s.caller = _s.caller and s.idempotency_key = _key;
  if _made.request_hash is distinct from _hash then
    raise exception 'the idempotency key % stands for another request', _key
      using errcode = 'QD005', column = 'idempotency_key', detail = 'stands for another schedule';
  end if;
  perform agent_private.confirm_durably();
  return query select agent_private.readable_schedule(_made), true;
end
$func$;

-- The detail of a schedule in the audit.
create or replace function agent_private.schedule_detail(_schedule agent.schedule)
returns jsonb
language sql stable
set search_path to pg_catalog, pg_temp
as $func$
  select jsonb_strip_nulls(jsonb_build_object('name', _schedule.name, 'owner', _schedule.owner, 'queue', _schedule.queue, 'topic', _schedule.topic, 'next_at', _schedule.next_at))
$func$;

-- Changes a schedule: the columns in _changes, by name, get these values. A completed schedule that has a next time again becomes
-- active; one that the service has paused stays paused. With a _version, the schedule must be as it was when it was expanded: at that
-- version, next at _next_at, with so many fired. Raises QD010, QD012 if it is cancelled, and QD013 if it, or its owner's zone, has
-- changed: expand the change again.
create or replace function agent_service.update_schedule(_id int8, _changes jsonb, _version int8 default null, _next_at timestamptz default null, _fired int8 default null)
returns agent.schedule
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _s agent.schedule = agent.get_schedule(_id);
  _planned agent.schedule = jsonb_populate_record(_s, _changes);
begin
  if _changes -> 'event' = agent_private.unreadable_event() then -- it is the payload that was shown, and changes nothing
    _changes = _changes - 'event';
  end if;
  perform agent_private.lock_schedule_owner(_planned);
  perform agent_private.watch_zone(_planned.zone);
  select s.* into strict _s from agent.schedule s where s.id = _id for update;
  if _s.status = 'cancelled' then
    perform agent_private.raise_schedule_ended(_s);
  elsif _s.version <> _version or (_version is not null and (_s.next_at is distinct from _next_at or _s.fired <> _fired)) then
    raise exception 'schedule % has changed', _id using errcode = 'QD013';
  end if;
  _s = jsonb_populate_record(_s, _changes);
  if _s.topic is null then
    _s.queue = coalesce(_s.queue, 'default');
  end if;
  perform agent_private.check_schedule(_s);
  if _s.next_at is null then
    _s.status = 'completed';
  elsif _s.status = 'completed' then
    _s.status = 'active';
  end if;
  update agent.schedule s
  set name = _s.name, queue = _s.queue, topic = _s.topic, type = _s.type, priority = _s.priority, group_key = _s.group_key, event = _s.event, kind = _s.kind, rule = _s.rule
  , at_local = _s.at_local, at_instant = _s.at_instant, timezone = _s.timezone, zone = _s.zone
  , gap = _s.gap, overlap = _s.overlap, leap = _s.leap, misfire = _s.misfire
  , starts_local = _s.starts_local, starts_at = _s.starts_at, ends_local = _s.ends_local, ends_at = _s.ends_at
  , last_local = _s.last_local, until_at = _s.until_at, "count" = _s."count", status = _s.status, next_local = _s.next_local, next_at = _s.next_at
  , is_unplanned = _s.is_unplanned, is_real_time = _s.is_real_time, version = s.version + 1, updated_at = now()
  where s.id = _id
  returning s.* into _s;
  perform agent_private.record_audit('schedule.update', _id::text, agent_private.schedule_detail(_s));
  perform agent_private.notify_schedules(_s.next_at);
  return _s;
end
$func$;

-- The event that is shown in place of one of a schedule that nobody can read.
create or replace function agent_private.unreadable_event()
returns jsonb
language sql immutable parallel safe
return jsonb_build_object('unreadable', agent_private.unreadable_reason());

-- A schedule as it can be read: see unreadable_event.
create or replace function agent_private.readable_schedule(_schedule agent.schedule)
returns agent.schedule
language plpgsql stable
set search_path to pg_catalog, pg_temp
as $func$
begin
  if agent_private.readable_json(_schedule.event) is null then
    _schedule.event = agent_private.unreadable_event();
  end if;
  return _schedule;
end
$func$;

-- One schedule. Raises QD010 if there is none.
create or replace function agent.get_schedule(_id int8)
returns agent.schedule
language plpgsql stable
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _schedule agent.schedule;
begin
  select s.* into _schedule from agent.schedule s where s.id = _id;
  if not found then
    raise exception 'there is no schedule %', _id using errcode = 'QD010';
  end if;
  return agent_private.readable_schedule(_schedule);
end
$func$;

-- Up to _limit schedules by id, after _after_id; or, with _due_before, the active ones that are due before then, by (next_at, id), after
-- (_after_next_at, _after_id). Each filter may be null: the owner, the queue, the status, and patterns of the queues and the topics that the
-- schedules have to insert into or publish to, of which either both are given or none.
create or replace function agent.list_schedules
( _owner text default null
, _queue text default null
, _status text default null
, _due_before timestamptz default null
, _limit int4 default 100
, _after_next_at timestamptz default null
, _after_id int8 default null
, _queues text[] default null
, _topics text[] default null
)
returns setof agent.schedule
language plpgsql stable
security definer
set search_path to pg_catalog, pg_temp
set jit to off
as $func$
declare
  -- As text, so that the planner sees which filters are given.
  _filter text = concat
  ( case when _owner is not null then format(' and s.owner = %L', _owner) end
  , case when _queue is not null then format(' and s.queue = %L', _queue) end
  , case when _status is not null then format(' and s.status = %L', _status) end
  , case when _queues is not null then
      format(' and case when s.topic is null then agent_private.is_queue_allowed(s.queue, %L) else agent_private.are_topics_allowed(array[s.topic], %L) end', _queues, _topics)
    end
  );
begin
  if _status not in ('active', 'paused', 'completed', 'cancelled') then
    perform agent_private.raise_invalid('status', 'must be active, paused, completed or cancelled');
  end if;
  if _due_before is not null then
    return query execute
      'select r.* from agent.schedule s cross join lateral agent_private.readable_schedule(s) r where s.status = ''active'' and s.next_at is not null and s.next_at < $1' || _filter
      || ' and (s.next_at, s.id) > ($2, $3) order by s.next_at, s.id limit $4'
      using _due_before, coalesce(_after_next_at, '-infinity'), coalesce(_after_id, 0), _limit;
    return;
  end if;
  return query execute 'select r.* from agent.schedule s cross join lateral agent_private.readable_schedule(s) r where s.id > $1' || _filter || ' order by s.id limit $2'
    using coalesce(_after_id, 0), _limit;
end
$func$;

-- Sets the status active or paused of a schedule that has not ended. No change if it has that status already.
create or replace function agent_private.set_schedule_status(_id int8, _status text, _queues text[], _topics text[])
returns agent.schedule
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
declare
  _s agent.schedule = agent_private.lock_schedule(_id, _queues => _queues, _topics => _topics);
begin
  if _s.status in ('completed', 'cancelled') then
    perform agent_private.raise_schedule_ended(_s);
  elsif _s.status <> _status then
    update agent.schedule s
    set status = _status, status_reason = null, version = s.version + 1, updated_at = now()
    where s.id = _id
    returning s.* into _s;
    perform agent_private.record_audit(case _status when 'paused' then 'schedule.pause' else 'schedule.resume' end, _id::text);
  end if;
  return agent_private.readable_schedule(_s);
end
$func$;

-- Pauses a schedule: it does not fire until it is resumed. Repeating it changes nothing. Raises QD010, and QD012 if it has ended.
create or replace function agent.pause_schedule(_id int8, _queues text[] default null, _topics text[] default null)
returns agent.schedule
language sql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
  select s.* from agent_private.set_schedule_status(_id, 'paused', _queues, _topics) s
$func$;

-- Resumes a paused schedule. The misfire policy decides about missed times. Repeating it changes nothing. Raises QD010, and QD012 if it
-- has ended.
create or replace function agent.resume_schedule(_id int8, _queues text[] default null, _topics text[] default null)
returns agent.schedule
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _s agent.schedule = agent_private.set_schedule_status(_id, 'active', _queues, _topics);
begin
  perform agent_private.notify_schedules(_s.next_at);
  return _s;
end
$func$;

-- Cancels a schedule, which stays readable: see cancel_schedules. Repeating it changes nothing. Raises QD010, and QD004 if _if_version
-- (null: any) is not its version.
create or replace function agent.delete_schedule(_id int8, _if_version int8 default null)
returns void
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  perform agent_service.delete_schedule_if_match(_id, case when _if_version is not null then array[_if_version] end);
end
$func$;

-- The same with the versions of which the schedule must have one; null: any. Like pause_schedule, resume_schedule and run_schedule, it
-- finds only a schedule whose target is one of the queues or topics that _queues and _topics stand for, which both are given or none.
create or replace function agent_service.delete_schedule_if_match(_id int8, _if_versions int8[], _queues text[] default null, _topics text[] default null)
returns void
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  perform agent_private.lock_schedule(_id, _if_versions, _queues => _queues, _topics => _topics);
  perform agent_private.cancel_schedules(array[_id]);
  perform agent_private.record_audit('schedule.delete', _id::text);
end
$func$;

-- Locks a schedule and, before it, its owner, for a change, possibly to another zone. Raises QD010 if there is no such schedule, QD004
-- if _if_versions (null: any) has not its version, and QD003 for an unknown zone. For _queues and _topics see delete_schedule_if_match.
create or replace function agent_private.lock_schedule
( _id int8
, _if_versions int8[] default null
, _timezone text default null
, _queues text[] default null
, _topics text[] default null
)
returns agent.schedule
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _schedule agent.schedule;
begin
  perform from agent.owner o where o.id = (select s.owner from agent.schedule s where s.id = _id) for share;
  if _timezone is not null then
    perform agent_private.watch_zone(_timezone);
  end if;
  select s.* into _schedule from agent.schedule s where s.id = _id for update;
  if not found or _queues is not null and not
    ( case when _schedule.topic is null then agent_private.is_queue_allowed(_schedule.queue, _queues) else agent_private.are_topics_allowed(array[_schedule.topic], _topics) end )
  then
    raise exception 'there is no schedule %', _id using errcode = 'QD010';
  elsif not _schedule.version = any(_if_versions) then
    perform agent_private.raise_version_mismatch('schedule ' || _id, _if_versions);
  end if;
  return _schedule;
end
$func$;

-- Locks the owner of a schedule that was expanded before. Raises QD003 if the owner is gone, and QD013 if the schedule follows the
-- owner's zone and that has changed.
create or replace function agent_private.lock_schedule_owner(_schedule agent.schedule)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
declare
  _zone text;
begin
  if _schedule.owner is null then
    return;
  end if;
  select o.timezone into _zone from agent.owner o where o.id = _schedule.owner for share;
  if not found then
    perform agent_private.raise_invalid('owner', 'must be an existing owner');
  elsif _schedule.timezone is null and not (_schedule.kind = 'once' and _schedule.at_instant is not null) and _schedule.zone <> _zone then
    raise exception 'the zone of owner % has changed', _schedule.owner using errcode = 'QD013';
  end if;
end
$func$;

-- Raises QD003 for a schedule with invalid values.
create or replace function agent_private.check_schedule(_schedule agent.schedule)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  if _schedule.topic is null then
    perform agent_private.check_event_values(_schedule.event, _schedule.queue, _schedule.type);
  else
    perform agent_private.check_publications(array[row(_schedule.topic, _schedule.event, null, null, null, null, null)::agent_private.publication]);
  end if;
  if _schedule.topic is not null and _schedule.queue is not null then
    perform agent_private.raise_invalid('queue', 'does not go with a topic');
  elsif _schedule.topic is not null and _schedule.type is not null then
    perform agent_private.raise_invalid('type', 'does not go with a topic');
  elsif _schedule.topic is not null and _schedule.priority <> 0 then
    perform agent_private.raise_invalid('priority', 'does not go with a topic');
  elsif _schedule.topic is not null and _schedule.group_key is not null then
    perform agent_private.raise_invalid('group', 'does not go with a topic');
  elsif octet_length(_schedule.group_key) not between 1 and 255 then
    perform agent_private.raise_invalid('group', 'must be 1 to 255 bytes long');
  elsif length(_schedule.name) not between 1 and 255 then
    perform agent_private.raise_invalid('name', 'must be 1 to 255 characters');
  elsif length(_schedule.idempotency_key) not between 1 and 255 then
    perform agent_private.raise_invalid('idempotency_key', 'must be 1 to 255 characters');
  elsif _schedule.misfire not in ('once', 'all', 'skip') then
    perform agent_private.raise_invalid('misfire', 'must be once, all or skip');
  elsif _schedule.gap not in ('forward', 'next', 'skip') then
    perform agent_private.raise_invalid('gap', 'must be forward, next or skip');
  elsif _schedule.overlap not in ('first', 'last') then
    perform agent_private.raise_invalid('overlap', 'must be first or last');
  elsif _schedule.leap not in ('feb28', 'mar1', 'skip') then
    perform agent_private.raise_invalid('leap', 'must be feb28, mar1 or skip');
  elsif _schedule."count" < 1 then
    perform agent_private.raise_invalid('count', 'must be at least 1');
  end if;
end
$func$;

-- Cancels schedules for good: the next occurrence of each is recorded as cancelled, and those of its events that were never claimed go
-- into history as cancelled. Published events stay in the log. Returns how many schedules had not ended.
create or replace function agent_private.cancel_schedules(_ids int8[])
returns int8
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
declare
  _cancelled int8;
  _first_event int8;
begin
  perform from agent.schedule s where s.id = any(_ids) order by s.id for update;
  insert into agent.occurrence (schedule_id, nominal_at, is_real_time, scheduled_for, status, reason)
  select s.id, s.next_local, s.is_real_time, s.next_at, 'cancelled', 'the schedule was cancelled'
  from agent.schedule s
  where s.id = any(_ids) and s.next_at is not null and s.status <> 'cancelled'
  on conflict do nothing;

  -- Most occurrences are older than the oldest waiting event: only the others can have an event in its queue.
  select e.id into _first_event from agent.event e order by e.id limit 1;
  perform agent_private.move_to_history
  ( array
    ( select e.id
      from agent.occurrence o
      join agent.event e on e.id = o.event_id
      where o.schedule_id = any(_ids) and o.event_id >= _first_event and e.attempts = 0
      order by e.id
      for update of e
    )
  , 'cancelled'
  );

  update agent.schedule s
  set status = 'cancelled', status_reason = null, next_local = null, next_at = null, is_unplanned = false, version = s.version + 1, updated_at = now()
  where s.id = any(_ids) and s.status <> 'cancelled';
  get diagnostics _cancelled = row_count;
  return _cancelled;
end
$func$;

-- Resolves the next occurrences of these schedules again from the same local times, by the rules of _zone (null: each schedule's zone).
-- A time that has passed in the new zone and was not due yet is due now: it is neither lost nor late. Schedules whose time falls into a
-- gap, or after their end, are returned as unresolved; they fire nothing until the service has expanded them again. So are those in real time whose
-- time is to come: another instant may be the next one in the new zone. A schedule whose time cannot be resolved at all is paused, with the reason.
create or replace function agent_private.move_schedules(_ids int8[], _zone text default null)
returns table (moved int8, unresolved int8[])
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
#variable_conflict use_column
declare
  _now timestamptz = clock_timestamp();
begin
  perform from agent.schedule s where s.id = any(_ids) order by s.id for update;
  update agent.schedule s
  set status = 'paused', status_reason = format('its next time, %s, is beyond the years 1 to 9999', s.next_local)
  , zone = coalesce(_zone, s.zone), version = s.version + 1, updated_at = now()
  where s.id = any(_ids) and s.status in ('active', 'paused') and not agent_private.is_representable_time(s.next_local);
  return query
  with moving as materialized
  ( select s.id, coalesce(_zone, s.zone) as zone, s.next_at, least(s.ends_at, s.until_at) as ends_at, s.is_real_time
    , case when not s.is_real_time then agent.resolve_local(s.next_local, coalesce(_zone, s.zone), s.gap, s.overlap) end as at
    from
    ( select s.*
      from agent.schedule s
      where s.id = any(_ids) and s.status in ('active', 'paused') and s.next_local is not null and agent_private.is_representable_time(s.next_local)
      and not (s.kind = 'once' and s.at_instant is not null)
      offset 0 -- so that a time is not resolved before it is known to be in range
    ) as s
  )
  , checked as
  ( select m.*, case when m.is_real_time then m.next_at > _now else m.at is null or coalesce(m.at > m.ends_at, false) end as is_unresolved from moving m
  )
  , moved as
  ( update agent.schedule s
    set zone = m.zone, version = s.version + 1, updated_at = now(), is_unplanned = m.is_unresolved or m.is_real_time and s.is_unplanned
    , next_at = case
        when m.is_unresolved then _now
        when m.at >= _now then m.at
        when m.next_at <= _now then m.next_at
        else _now
      end
    from checked m
    where s.id = m.id
    returning s.id, s.is_unplanned, agent_private.notify_schedules(s.next_at)
  )
  , rest as -- the others get the new zone too, in case they have a time again
  ( update agent.schedule s
    set zone = _zone
    where s.id = any(_ids) and s.zone <> _zone and s.id not in (select m.id from moving m)
    and not (s.kind = 'once' and s.at_instant is not null)
  )
  select count(*), coalesce(array_agg(m.id) filter (where m.is_unplanned), '{}') from moved m;
end
$func$;

-- Compares the rules of every zone in use with the recorded ones, and resolves all schedules of a zone whose rules changed again. Zones
-- that changed after _since (null: never) are processed again, for the sake of sessions that still had the old rules. A session uses the
-- rules it has read before: call this in a new one. Returns the zones that changed (for moved and unresolved see move_schedules) and,
-- with a fault, zones that the server does not know any more: times resolved there stay, and their schedules are paused when they
-- are due.
create or replace function agent_service.check_zone_rules(_since timestamptz default null)
returns table (zone text, changed_at timestamptz, moved int8, unresolved int8[], fault text)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
#variable_conflict use_column
declare
  _rule agent.zone_rule;
  _fingerprint text;
  _from timestamptz = date_trunc('day', now());
  _to timestamptz = date_trunc('day', now()) + interval '7305 days';
  _moved int8;
  _unresolved int8[];
begin
  for _rule in select z.* from agent.zone_rule z order by z.zone for update loop
    begin -- a block for each zone, so that a failure affects only that zone
      _fingerprint = agent_private.zone_fingerprint(_rule.zone, _rule.sampled_from, _rule.sampled_to);
      if _fingerprint <> _rule.fingerprint then
        _rule.changed_at = clock_timestamp();
      end if;
      update agent.zone_rule z
      set changed_at = _rule.changed_at, checked_at = now(), sampled_from = _from, sampled_to = _to
      , fingerprint = case
          when z.sampled_from = _from and z.sampled_to = _to then _fingerprint
          else agent_private.zone_fingerprint(_rule.zone, _from, _to)
        end
      where z.zone = _rule.zone;
      if _fingerprint <> _rule.fingerprint or _rule.changed_at > _since then
        select m.moved, m.unresolved into strict _moved, _unresolved
        from agent_private.move_schedules
        ( array(select s.id from agent.schedule s where s.zone = _rule.zone and s.status in ('active', 'paused'))
        ) m;
        return query select _rule.zone, _rule.changed_at, _moved, _unresolved, null::text;
        if _fingerprint <> _rule.fingerprint then
          perform pg_notify('agent_schedule', 'zones');
        end if;
      end if;
    exception when data_exception then
      return query select _rule.zone, null::timestamptz, 0::int8, '{}'::int8[], coalesce(agent_private.zone_fault(_rule.zone), sqlerrm);
    end;
  end loop;
end
$func$;

-- Whether a local time is in the range of schedules, the years 1 to 9999.
create or replace function agent_private.is_representable_time(_local timestamp)
returns boolean
language sql immutable parallel safe
return _local >= '0001-01-01'::timestamp and _local < '10000-01-01'::timestamp;

-- Wakes the firing loops if something is due before they would look by themselves.
create or replace function agent_private.notify_schedules(_next_at timestamptz)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  if _next_at < clock_timestamp() + interval '2 seconds' then
    perform pg_notify('agent_schedule', '');
  end if;
end
$func$;

-- Raises QD012.
create or replace function agent_private.raise_schedule_ended(_schedule agent.schedule)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  raise exception 'schedule % is %', _schedule.id, _schedule.status using errcode = 'QD012';
end
$func$;

-- Raises QD004.
create or replace function agent_private.raise_version_mismatch(_what text, _versions int8[])
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  raise exception '% is at none of the versions %', _what, _versions using errcode = 'QD004';
end
$func$;
