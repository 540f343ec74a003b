-- Delivery of subscriptions into queues, by the router: docs/decisions/014-router.md has the argument why each event is delivered exactly once.
--
-- The subscriptions in step share the position of the router (reader 0 of agent.subscription_position); the others that are delivered, and
-- replays, have positions of their own. A position moves in the transaction that inserts the events before it into queues, and only from the number
-- that its caller has read. Of several processes one routes at a time, under a lease; a process that has lost it is refused by the number.

-- Begins or goes on routing for _lease. _process is a number that tells the caller from other processes. Nothing if no subscription is
-- delivered, or the database is a copy that nobody has adopted; held_for if another process routes for so long. Else whether the lease was the caller's before and the router has still the number that
-- the caller knows (_number; null: whichever it is), the number and the position of the router, and the version of the routes. The state of subscriptions that a caller
-- for whom that was not so remembers may be wrong: it has not seen the answer of a commit of its own, or a failover has lost some. A lease that
-- reaches further than a lease can is none: the clock was set back.
create or replace function agent_service.begin_routing(_process int8, _lease interval, _number int8 default null)
returns table (held_for interval, was_held boolean, number int8, "position" int8, version int8)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set enable_seqscan to off
set jit to off -- or reading a table without an index would begin with a compilation
as $func$
#variable_conflict use_column
declare
  _now timestamptz = clock_timestamp();
  _newest agent.subscription_position;
  _was_held boolean;
begin
  if not exists (select from agent.subscription s where s.deliver_queue is not null) or agent_private.is_copy() then
    return;
  end if;
  perform from agent.router r for update skip locked;
  if not found then
    return query select _lease / 10, null::boolean, null::int8, null::int8, null::int8;
    return;
  end if;
  _newest = agent_private.newest_position(0);
  if _newest.lease_token <> _process and _newest.leased_until > _now and _newest.leased_until <= _now + _lease then
    return query select _newest.leased_until - _now, null::boolean, null::int8, null::int8, null::int8;
    return;
  end if;
  _was_held = coalesce(_newest.lease_token = _process and _newest.number = coalesce(_number, _newest.number), false);
  if not _was_held or _newest.leased_until < _now + _lease / 2 then
    _newest.lease_token = _process;
    _newest.leased_until = _now + _lease;
    _newest.number = agent_private.replace_position(_newest);
  end if;
  return query select null::interval, _was_held, _newest.number, _newest.position, agent_private.route_version();
end
$func$;

-- Ends the lease of a process that stops routing, so that another one goes on at once.
create or replace function agent_service.end_routing(_process int8)
returns void
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
set jit to off -- or reading a table without an index would begin with a compilation
as $func$
declare
  _newest agent.subscription_position;
begin
  perform from agent.router r for update;
  _newest = agent_private.newest_position(0);
  if _newest.lease_token = _process then
    _newest.lease_token = null;
    _newest.leased_until = null;
    perform agent_private.replace_position(_newest);
  end if;
end
$func$;

-- The version of the routes, and the subscriptions that have changed since a caller knew the changes _known: null if these may be any.
-- known are the changes to call with the next time. Many of them become one, unless another process routes at this moment.
create or replace function agent_service.route_changes(_known int8[])
returns table (version int8, known int8[], changed int8[])
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off -- or reading a table without an index would begin with a compilation
as $func$
#variable_conflict use_column
declare
  _version int8;
  _ids int8[];
  _changed int8[];
  _is_any boolean;
  _merged int8;
begin
  select sum(v.changes)::int8, array_agg(v.id)
  , array_agg(distinct v.subscription) filter (where v.subscription is not null and v.id <> all (_known))
  , bool_or(v.subscription is null and v.id <> all (_known))
  into _version, _ids, _changed, _is_any
  from agent.route_version v;
  _is_any = coalesce(_is_any or not _known <@ _ids, true); -- a change that is there no more was lost by a failover, or another process has made one of many
  if cardinality(_ids) > 20 then
    perform from agent.router r for update skip locked;
    if found then
      with gone as (delete from agent.route_version v where v.id = any (_ids) returning v.changes)
      insert into agent.route_version as v (changes) select sum(g.changes) from gone g having count(*) > 0
      returning v.id into _merged;
      _ids = array[_merged];
    end if;
  end if;
  return query select _version, _ids, case when not _is_any then coalesce(_changed, '{}') end;
end
$func$;

-- The routes: subscriptions that are delivered, and replays. Of _subscriptions, null: of all.
create or replace function agent_service.read_routes(_subscriptions int8[])
returns table
( id int8, subscription int8, name text, filters_version int8, queue text, max_waiting int4, is_replay boolean, is_paused boolean, is_in_step boolean
)
language plpgsql stable
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_custom_plan -- with few subscriptions or all
set enable_seqscan to off
set jit to off -- or reading a table without an index would begin with a compilation
as $func$
#variable_conflict use_column
begin
  return query
  select s.id, s.id, s.name, s.filters_version, s.deliver_queue, s.max_waiting, false, s.is_paused, s.is_in_step
  from agent.subscription s
  where s.deliver_queue is not null and (_subscriptions is null or s.id = any (_subscriptions))
  union all
  select r.id, s.id, s.name, s.filters_version, s.deliver_queue, s.max_waiting, true, s.is_paused, false
  from agent.subscription_replay r
  join agent.subscription s on s.id = r.subscription
  where s.deliver_queue is not null and (_subscriptions is null or r.subscription = any (_subscriptions));
end
$func$;

-- Where a subscription that is not in step, or a replay, has come, and the values to go on with it. until is the end of a replay. Nothing if it
-- is gone, paused or in step.
create or replace function agent_service.get_route(_id int8)
returns table (subscription int8, filters_version int8, max_waiting int4, number int8, "position" int8, until int8)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set enable_seqscan to off
set jit to off -- or reading a table without an index would begin with a compilation
as $func$
#variable_conflict use_column
declare
  _replay agent.subscription_replay;
begin
  select r.* into _replay from agent.subscription_replay r where r.id = _id;
  return query
  select s.id, s.filters_version, s.max_waiting, p.number, p.position, _replay.until
  from agent.subscription s
  cross join lateral agent_private.newest_position(_id) p
  where s.id = coalesce(_replay.subscription, _id) and s.deliver_queue is not null and not s.is_paused and (not s.is_in_step or _replay.id is not null);
end
$func$;

-- Moves the router on to _position, and delivers the part of the log before it: the events at _positions, each to the subscription beside it, and with a
-- JSON array of the filters that want it. With _has_gap retention has dropped something before _position. With a _version that of all that is to be
-- delivered must still be that.
--
-- The status is null, or "changed" if the router has moved, or the version has changed; then nothing was done, and the caller has to begin again.
-- Raises serialization_failure (40001) if an event is there no more.
create or replace function agent_service.deliver_in_step
( _process int8
, _lease interval
, _number int8
, _version int8
, _position int8
, _has_gap boolean
, _subscriptions int8[]
, _positions int8[]
, _matched text[]
)
returns table (status text, number int8)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set enable_seqscan to off
set jit to off -- or reading a table without an index would begin with a compilation
as $func$
#variable_conflict use_column
declare
  _newest agent.subscription_position;
  _ids int8[];
begin
  _newest = agent_private.lock_router(_number);
  if _newest is null or agent_private.route_version() <> _version or agent_private.is_copy() then
    return query select 'changed', 0::int8;
    return;
  end if;
  _ids = agent_private.deliver(_subscriptions, _positions, _matched, true);
  if exists (select from agent.placement p where p.removed_at is null and 0 <> all (p.cells)) then
    perform agent_private.forward_events(_ids);
  end if;
  if _has_gap then
    update agent.subscription_position p set gaps = p.gaps + 1
    from agent.subscription s
    where s.is_in_step and p.reader = s.id;
  end if;
  _newest.position = _position;
  _newest.lease_token = _process;
  _newest.leased_until = clock_timestamp() + _lease;
  return query select null, agent_private.replace_position(_newest);
end
$func$;

-- Gives subscriptions in step positions of their own, where the router is. Returns the next number of the router, as a process that does not know that
-- they have left is refused, and those that have left: not those that somebody else is changing. Nothing if the router has moved.
create or replace function agent_service.leave_router(_number int8, _subscriptions int8[])
returns table (number int8, subscriptions int8[])
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set enable_seqscan to off
set jit to off -- or reading a table without an index would begin with a compilation
as $func$
#variable_conflict use_column
declare
  _id int8;
  _left int8[] = '{}';
  _router agent.subscription_position = agent_private.lock_router(_number);
  _own agent.subscription_position;
begin
  if _router is null then
    return;
  end if;
  for _id in
    select s.id from agent.subscription s where s.id = any (_subscriptions) and s.is_in_step order by s.id for no key update skip locked
  loop
    update agent.subscription s set is_in_step = false where s.id = _id;
    _own = agent_private.newest_position(_id);
    _own.position = _router.position;
    perform agent_private.replace_position(_own);
    _left = _left || _id;
  end loop;
  if _left <> '{}' then
    _number = agent_private.replace_position(_router);
  end if;
  return query select _number, _left;
end
$func$;

-- Lets a subscription join those in step, if it has come exactly as far as the router, or nobody is in step. Returns the number and the position
-- of the router; nothing if the subscription cannot join now.
create or replace function agent_service.join_step(_number int8, _id int8, _own_number int8)
returns table (number int8, "position" int8)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set enable_seqscan to off
set jit to off -- or reading a table without an index would begin with a compilation
as $func$
#variable_conflict use_column
declare
  _router agent.subscription_position = agent_private.lock_router(_number);
  _own agent.subscription_position;
begin
  perform from agent.subscription s where s.id = _id and s.deliver_queue is not null and not s.is_paused and not s.is_in_step for no key update skip locked;
  if _router is null or not found then
    return;
  end if;
  _own = agent_private.newest_position(_id);
  if _own.number <> _own_number then
    return;
  elsif _own.position <> _router.position then
    if exists (select from agent.subscription s where s.deliver_queue is not null and s.is_in_step) then
      return;
    end if;
    _router.position = _own.position;
  end if;
  update agent.subscription s set is_in_step = true where s.id = _id;
  return query select agent_private.replace_position(_router), _router.position; -- another number: a process that does not know of it is refused
end
$func$;

-- Moves a subscription that is not in step, or a replay, on to _position, and delivers the part of the log before it, as deliver_in_step does. A replay
-- ends where it is to end. With a _filters_version that of the subscription must still be that.
--
-- The status is null, or "changed" if the reader has moved or ended, is in step or paused, its filters have changed, or somebody is changing it.
create or replace function agent_service.deliver_alone
( _id int8
, _number int8
, _filters_version int8
, _position int8
, _has_gap boolean
, _positions int8[]
, _matched text[]
)
returns table (status text, number int8)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set enable_seqscan to off
set jit to off -- or reading a table without an index would begin with a compilation
as $func$
#variable_conflict use_column
declare
  _replay agent.subscription_replay;
  _subscription agent.subscription;
  _newest agent.subscription_position;
  _ids int8[];
begin
  select r.* into _replay from agent.subscription_replay r where r.id = _id;
  select s.* into _subscription
  from agent.subscription s
  where s.id = coalesce(_replay.subscription, _id) and s.deliver_queue is not null and not s.is_paused and (not s.is_in_step or _replay.id is not null)
  for no key update skip locked;
  _newest = agent_private.newest_position(_id);
  if _subscription.id is null or _newest.number is distinct from _number or _subscription.filters_version <> _filters_version or agent_private.is_copy() then
    return query select 'changed', 0::int8;
    return;
  end if;
  _ids = agent_private.deliver(array_fill(_subscription.id, array[cardinality(_positions)]), _positions, _matched, false);
  if exists (select from agent.placement p where p.removed_at is null and 0 <> all (p.cells)) then
    perform agent_private.forward_events(_ids, _id);
  end if;
  _newest.position = _position;
  _newest.gaps = _newest.gaps + _has_gap::int4;
  if _position >= _replay.until then
    perform agent_private.remove_replay(_id);
    return query select null, 0::int8;
  else
    return query select null, agent_private.replace_position(_newest);
  end if;
end
$func$;

-- Locks the router, and returns where it is; null if it has another number, or another process has locked it.
create or replace function agent_private.lock_router(_number int8)
returns agent.subscription_position
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
as $func$
declare
  _newest agent.subscription_position;
begin
  perform from agent.router r for update skip locked;
  if found then
    _newest = agent_private.newest_position(0);
  end if;
  return case when _newest.number = _number then _newest end;
end
$func$;

-- Inserts events of the log into the queues of subscriptions, in their order. With _is_in_step only those in step get them; a subscription that was
-- deleted meanwhile gets nothing. Returns the ids of the events.
create or replace function agent_private.deliver(_subscriptions int8[], _positions int8[], _matched text[], _is_in_step boolean)
returns int8[]
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan -- the statement to plan for each delivery is in log_events
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
set enable_nestloop to off -- would compare each delivery with each event and each subscription
set enable_mergejoin to off
as $func$
declare
  _first int8;
  _last int8;
  _n int8;
  _ids int8[];
begin
  if cardinality(_positions) = 0 then
    return null;
  end if;
  select min(p), max(p) into _first, _last from unnest(_positions) as p;
  with inserted as
  ( insert into agent.event overriding user value -- the ids are the sequence's
    select e.*
    from unnest(_subscriptions, _positions, _matched) with ordinality as n (subscription, position, matched, ord)
    join agent_private.log_events(_positions, _first, _last) l on l.position = n.position
    join
    ( select s.id, s.name, s.deliver_queue, s.deliver_type, s.deliver_priority, s.deliver_group_from
      , (select q from agent.queue q where q.name = s.deliver_queue and (q.group_from is not null or q.flow_fair)) as queue
      from agent.subscription s
      where s.id = any (_subscriptions) -- finds each once, by index, where the join alone would read all
      and (s.is_in_step or not _is_in_step)
      offset 0 -- looks up the queue once for each subscription
    ) s on s.id = n.subscription
    cross join lateral agent_private.new_event
    ( null, null, l.event, case when not l.event ? 'event_ts' then l.published_at end, s.deliver_queue
    , _type => s.deliver_type, _priority => s.deliver_priority, _key => l.key, _meta => l.meta
    , _publication => jsonb_build_object
      ( 'subscription', s.name, 'position', l.position, 'topic', l.topic, 'matched', n.matched::jsonb
      , 'published_at', to_char(l.published_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
      )
    , _group => coalesce
      ( agent_private.delivery_group(s.deliver_group_from, l.key, l.topic, l.event)
      , agent_private.default_group(l.event, (s.queue).group_from, (s.queue).flow_fair)
      )
    ) as e
    order by n.ord
    returning id
  )
  select count(*), array_agg(i.id) into _n, _ids from inserted i;
  if _n < cardinality(_positions) then
    if exists (select unnest(_positions) except select l.position from agent_private.log_events(_positions, _first, _last) l) then
      raise exception 'the log has dropped what was to be delivered' using errcode = 'serialization_failure', hint = 'Read it again.';
    end if;
  end if;
  return _ids;
end
$func$;

-- The events of the log at _positions, of which _first is the smallest and _last the largest, each once, in no order.
create or replace function agent_private.log_events(_positions int8[], _first int8, _last int8)
returns setof agent.log
language plpgsql stable
rows 10000 -- many, so that a join has them read once, and looks for each in a table of the other side
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_custom_plan -- with the segments that the positions are in: a plan for all would lock each segment there is
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
as $func$
begin
  if _first = _last then -- the usual case, and half of the planning
    return query select l.* from agent.log l where l.position = _first;
  else
    return query
    select l.*
    from agent.log l
    where l.position between _first and _last and l.position = any (array(select unnest(_positions))); -- not the array itself: each value of that would be planned with
  end if;
end
$func$;

-- How many events are due in a queue, ready or waiting for their turn, up to _limit. Among many that are in a group and not due yet, it may count fewer of those that wait: it looks at the latest _limit of each
-- lane, as what is delivered into a queue is due, and comes last.
create or replace function agent_private.count_ready(_queue text, _limit int4)
returns int8
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set enable_seqscan to off
set enable_bitmapscan to off
set jit to off
as $func$
begin
  return
  ( select count(*)
    from
    ( select
      from agent_private.list_lanes(_queue) as l
      cross join lateral
      ( (select 1 from agent.event e where e.queue = _queue and e.priority = l.priority and e.vt <= now() limit _limit)
        union all
        select 1
        from
        ( select e.flow, e.turn_vt
          from agent.event e
          where e.queue = _queue and e.priority = l.priority and e.vt = agent_private.no_turn()
          order by e.vt desc, e.id desc
          limit _limit
        ) as w
        where agent_private.lacks_turn(w.flow, w.turn_vt, now())
      ) as e
      limit _limit
    ) e
  );
end
$func$;

-- How many events are due in each of _queues, as count_ready of agent_private has it, up to the limit beside it; of a queue that is placed on another cell, how many wait to be brought there.
create or replace function agent_service.count_ready(_queues text[], _limits int4[])
returns table (queue text, ready int8)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
as $func$
declare
  _waiting text[] = _queues;
begin
  if exists (select from agent.placement p where p.removed_at is null and 0 <> all (p.cells)) then
    _waiting = array(select coalesce(agent_private.forward_queue(n.queue, ''), n.queue) from unnest(_queues) with ordinality as n (queue, ord) order by n.ord);
  end if;
  return query select n.queue, agent_private.count_ready(n.waiting, n.max_count) from unnest(_queues, _waiting, _limits) as n (queue, waiting, max_count);
end
$func$;

-- Replays.

-- Delivers the events of a subscription after _from, up to _until, once more, besides those that it gets anyway; with _is_dry_run none. Returns
-- the id of the subscription. Raises QD020 if there is none of this name, QD023 if it is read by cursor: then seek.
create or replace function agent.replay_subscription(_name text, _from int8, _until int8, _is_dry_run boolean default false)
returns int8
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _subscription agent.subscription;
  _id int8;
begin
  perform agent_private.check_position(_from);
  perform agent_private.check_position(_until);
  _subscription = agent_private.lock_subscription(_name);
  if _subscription.deliver_queue is null then
    perform agent_private.raise_wrong_delivery(_subscription);
  elsif _is_dry_run then
    return _subscription.id;
  end if;
  perform agent_private.check_sequences();
  _id = nextval(pg_get_serial_sequence('agent.subscription', 'id'));
  insert into agent.subscription_replay (id, subscription, until) values (_id, _subscription.id, _until);
  insert into agent.subscription_position (reader, number, position, token, epoch, gaps) values (_id, agent_private.next_version(0), _from, 0, 1, 0);
  perform agent_private.change_routes(_subscription);
  perform agent_private.record_audit('subscription.replay', _name, jsonb_build_object('from', _from, 'until', _until));
  return _subscription.id;
end
$func$;

create or replace function agent_private.remove_replay(_id int8)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
set jit to off -- or reading a table without an index would begin with a compilation
as $func$
begin
  delete from agent.subscription_position p where p.reader = _id;
  delete from agent.subscription_replay r where r.id = _id;
end
$func$;

-- The version of the routes. It grows with each change that is committed.
create or replace function agent_private.route_version()
returns int8
language plpgsql stable
set search_path to pg_catalog, pg_temp
as $func$
begin
  return (select sum(v.changes)::int8 from agent.route_version v);
end
$func$;

-- Tells the router that a subscription has changed, if it is delivered into a queue. Nobody waits for the end of the transaction.
-- The version grows by a random step: see agent_private.next_version().
create or replace function agent_private.change_routes(_subscription agent.subscription)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  if _subscription.deliver_queue is not null then
    insert into agent.route_version (changes, subscription) values (agent_private.next_version(0), _subscription.id);
  end if;
end
$func$;
