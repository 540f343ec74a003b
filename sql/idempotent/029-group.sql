-- Groups: events of a queue that share a key, and limits of how many of them are leased at once. docs/decisions/030-groups.md has the reasons.
--
-- An event of a group in a queue with limits is admitted, or it waits. Only an admitted one has a vt by which it can be claimed, and no more are admitted than may
-- be leased: so claims count nothing, lock nothing, and never pass over events that wait. The slot of a group is an admitted event, not a counter: it cannot
-- leak, and an event whose lease is lost still has its slot, and can be claimed again at that instant.
--
-- Three rules:
--
-- 1. Who admits holds the lock of the group's row until the end of the transaction, and counts in a later statement than the one that took the lock. A statement
--    sees what was committed before it began: one that waits for a lock and counts does not see what the former holder of the lock has admitted.
-- 2. Who frees a slot, or has an event wait, either holds the lock until the end of the transaction, or leaves a row in agent_private.group_wake. That becomes
--    visible with the change, and claims look at the groups that they find there. To look without the lock, and leave nothing when nothing seems to wait, is
--    not enough: an event can be added between the look and the commit.
-- 3. Nobody waits for the lock of a group, but who changes what is set for the group. It is taken with "skip locked"; who does not get it leaves a wake. So inserts,
--    acks and claims neither deadlock nor wait for a long transaction.
--
-- In a queue with flow_order one event of a group is admitted at a time, the first by its id of all that are unfinished: one that is not due yet, too, so that a retry keeps its
-- place. Where on_failed is 'block', a row in agent_private.group_block stands for an event that failed, and no other is admitted until it is gone.
--
-- In a queue with a rate no more of a group are admitted ahead of their claims than its burst, each with the earliest time at which a claim conforms as its vt. Claims set flow to 2, and
-- are added to the tat of the group under its lock, or recorded in agent_private.group_claim. An event whose lease is lost waits for a turn again.
--
-- In a queue with flow_fair groups take turns: the least recently served one first. One event of a group is admitted ahead of its claim, with the time at which the group was served the last time as its vt, or its
-- own if that is later; flow is 0 then, and -1 once it is claimed. Claims take what is admitted by vt, whatever its priority, from an index of its own. Events without a group are in one of their own there, which has no
-- other limits: its key is '', and nobody else sees it.
--
-- What waits was due when it began to, and is due, whatever the clock shows: it may have been set back.
--
-- The lateral subqueries keep the planner from searching by the queue alone, as it does while a table seems empty.

-- The vt of an event that waits for its turn. What an event has as its vt is the earliest time at which it can be claimed, and for these nobody knows it. Inlined,
-- like agent.receipt.
create or replace function agent_private.no_turn()
returns timestamptz
language sql immutable parallel safe
return timestamptz '9999-12-31 00:00:00+00';

-- Whether a policy has events of groups wait for their turns. Inlined, like agent.receipt.
create or replace function agent_private.has_turns(_policy agent.queue)
returns boolean
language sql immutable parallel safe
return _policy.flow_concurrency is not null or _policy.flow_order or _policy.flow_fair or _policy.flow_rate_limit is not null;

-- The time between two claims at a rate, rounded up to a microsecond, so that no window has one too many. Inlined, like agent.receipt.
create or replace function agent_private.rate_step(_period interval, _limit int4)
returns interval
language sql immutable parallel safe
return interval '1 us' * ceil(extract(epoch from _period) * 1000000 / _limit)::float8;

-- Whether an admitted event is due, and its rate has put it off until its vt. For an event that is not leased. Inlined, like agent.receipt.
create or replace function agent_private.is_put_off(_flow int2, _vt timestamptz, _admitted_at timestamptz, _nacked_at timestamptz)
returns boolean
language sql immutable parallel safe
return coalesce(_flow between 0 and 1 and _vt > _admitted_at and coalesce(_nacked_at <= _admitted_at, true), false);

-- The advisory lock of those who have events of groups in a queue need turns that did not: whoever has it does that. Taken before the row of the queue.
create or replace function agent_private.turns_lock(_queue text)
returns int8
language sql immutable parallel safe
return 31321898691468288 + (hashtextextended(_queue, 0) & 127);

-- The advisory lock of those who set a rate of a group, or the policy, which says whether claims of the queue are recorded. Taken before turns_lock.
create or replace function agent_private.rates_lock(_queue text)
returns int8
language sql immutable parallel safe
return 31321898691468416 + (hashtextextended(_queue, 0) & 127);

-- The event of a group as its row is when it comes into its queue, for the trigger check_event: claimable in a queue where groups need no turn, else waiting, with
-- a wake. One with flow 3 waits and leaves none: its group is locked. A copy of an event for which its group is stopped takes the place of that. One that _is_new in its
-- queue, and has a lower id than the admitted event of a group in order, comes before that unless it was claimed. Raises QD003 for a key that no group has.
create or replace function agent_private.enter_group(_event agent.event, _is_new boolean)
returns agent.event
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
declare
  _now timestamptz = clock_timestamp();
  _is_delayed boolean;
  _on_failed text;
  _is_ordered boolean;
  _is_fair boolean; -- null: there are no limits of groups
begin
  if octet_length(_event.group_key) > 255 then
    perform agent_private.raise_invalid('group', 'must be 1 to 255 bytes long');
  elsif _event.flow = 1 and _event.turn_vt is null then
    return _event;
  elsif _event.turn_vt is not null then -- it waited in another queue, or another group
    _event.vt = case when _event.vt < agent_private.no_turn() then _event.vt else greatest(_event.turn_vt, _now) end;
  end if;
  _event.admitted_at = null;
  if _event.flow = 3 then
    _event.turn_vt = _event.vt;
    _event.vt = agent_private.no_turn();
    return _event;
  end if;
  _event.flow = 1;
  _event.flow_version = null;
  _event.turn_vt = null;
  if _event.vt > _now and _event.attempts > 0 and _event.nacked_at is null then
    return _event;
  end if;
  select q.flow_on_failed, q.flow_order, q.flow_fair into _on_failed, _is_ordered, _is_fair from agent.queue q where q.name = _event.queue and q.flow_version is not null;
  if _event.group_key = '' and _is_fair is not true then -- it has none
    _event.group_key = null;
    _event.flow = null;
    return _event;
  elsif _is_fair is null then
    return _event;
  elsif _on_failed = 'block' and num_nonnulls(_event.requeued_from, _event.dead_letter_of) > 0 then
    perform agent_private.take_blocked_place(_event);
  end if;
  if _event.attempts > 0 and _event.nacked_at is null then -- its lease has ended
    _event.past_attempts = agent_private.append_attempt(_event.past_attempts, _event.attempts, _event.worker, _event.vt, 'lease_ended');
    _event.nacked_at = _event.vt;
  end if;
  _is_delayed = _event.vt > _now;
  _event.flow = case when _is_delayed then 4 else 3 end;
  _event.turn_vt = _event.vt;
  _event.vt = agent_private.no_turn();
  insert into agent_private.group_wake (queue, key, at, event_id)
  values (_event.queue, _event.group_key, greatest(_event.turn_vt, _now), case when _is_delayed then _event.id end);
  if _is_ordered and _is_new and _event.group_key <> '' then
    with later as
    ( update agent.event e
      set flow_version = null
      where e.ctid = any (array
      ( select e.ctid from agent.event e
        where e.queue = _event.queue and e.group_key = _event.group_key and e.flow <= 2 and e.id > _event.id and e.attempts = 0 and e.flow_version is not null
        for update skip locked
      ))
      returning 1
    )
    insert into agent_private.group_wake (queue, key, event_id) select _event.queue, _event.group_key, 0 from later l limit 1; -- 0: see withdraw_turns
  end if;
  return _event;
end
$func$;

-- The event as its row is when it leaves a group, for the trigger check_event. What waits there is looked at.
create or replace function agent_private.leave_group(_old agent.event, _new agent.event)
returns agent.event
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  if exists (select from agent.queue q where q.name = _old.queue and q.flow_version is not null) then
    insert into agent_private.group_wake (queue, key) values (_old.queue, _old.group_key);
  end if;
  if _new.group_key is null then
    if _new.turn_vt is not null then
      _new.vt = case when _new.vt < agent_private.no_turn() then _new.vt else greatest(_new.turn_vt, clock_timestamp()) end;
    end if;
    _new.flow = null;
    _new.flow_version = null;
    _new.turn_vt = null;
    _new.admitted_at = null;
  end if;
  return _new;
end
$func$;

-- Locks those of some groups of a queue that nobody else has locked, and returns their keys. Makes those that are missing; a second transaction that would make one
-- at the same time, and so would wait, leaves it to the first. Beyond read committed, later statements see no more than the first did: then nothing is
-- locked, and all is left to wakes.
create or replace function agent_private.lock_groups(_queue text, _keys text[])
returns text[]
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
as $func$
declare
  _locked text[];
  _missing text[];
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    return '{}';
  end if;
  _locked = array
  ( select l.key
    from unnest(_keys) as k (key)
    cross join lateral (select g.key from agent.queue_group g where g.queue = _queue and g.key = k.key for no key update skip locked) as l
  );
  if cardinality(_locked) = cardinality(_keys) then
    return _locked;
  end if;
  _missing = array
  ( select k.key
    from unnest(_keys) as k (key)
    where k.key <> all (_locked)
    and (select true from agent.queue_group g where g.queue = _queue and g.key = k.key) is null
    and pg_try_advisory_xact_lock(31321898691467264 + (hashtextextended(_queue || '/' || k.key, 0) & 1023))
    order by k.key
  );
  if _missing <> '{}' then
    with made as
    ( insert into agent.queue_group (queue, key) select _queue, k.key from unnest(_missing) as k (key) on conflict do nothing returning key
    )
    select _locked || array_agg(m.key) into _locked from made m;
  end if;
  return _locked;
end
$func$;

-- Admits what may be admitted in these groups, which the caller has locked in an earlier statement. Returns how many events it has admitted, and the earliest vt of
-- these.
create or replace function agent_private.admit_events(_queue text, _locked text[], out admitted int8, out vt timestamptz)
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
set enable_hashjoin to off
set enable_mergejoin to off
as $func$
#variable_conflict use_column
declare
  _now timestamptz = clock_timestamp();
  _version int8;
  _concurrency int4;
  _order boolean = false;
  _on_failed text;
  _is_paced boolean;
  _chosen int8;
begin
  select q.flow_version, q.flow_concurrency, q.flow_order, q.flow_on_failed, q.flow_paced into _version, _concurrency, _order, _on_failed, _is_paced from agent.queue q where q.name = _queue;
  if _is_paced then
    select a.admitted, a.vt into strict admitted, vt from agent_private.admit_paced_events(_queue, _locked) a;
    return;
  elsif _order then
    with chosen as materialized
    ( select agent_private.first_in_order(_queue, k.key, _on_failed = 'block') as id
      from unnest(_locked) as k (key)
      cross join lateral (select g.* from agent.queue_group g where g.queue = _queue and g.key = k.key limit 1) as g
      where not g.paused and (g.held_until is null or g.held_until <= _now)
      and (select true from agent_private.group_wake w where w.queue = _queue and w.key = k.key and w.hold_until > _now limit 1) is null
    )
    , taken as
    ( update agent.event e
      set flow = 1, flow_version = _version, vt = case when e.flow = 3 then least(e.turn_vt, _now) else e.turn_vt end, turn_vt = null
        , admitted_at = case when e.flow = 3 or e.turn_vt <= _now then _now end -- else its vt is its own, see withdraw_turns
      from (select e.ctid from chosen c join agent.event e on e.id = c.id and e.flow > 2 for update of e skip locked) as l (place)
      where e.ctid = l.place
      returning e.vt
    )
    select (select count(c.id) from chosen c), count(*), min(t.vt) into _chosen, admitted, vt from taken t;
  else
    with room as materialized
    ( select k.key
      , case
          when m.most is null then 1000
          else m.most - (select count(*) from (select from agent.event e where e.queue = _queue and e.group_key = k.key and e.flow <= 2 limit m.most) as e)
        end as free
      from unnest(_locked) as k (key)
      cross join lateral (select g.* from agent.queue_group g where g.queue = _queue and g.key = k.key limit 1) as g
      cross join lateral (values (coalesce(g.concurrency, _concurrency))) as m (most)
      where not g.paused and (g.held_until is null or g.held_until <= _now)
      and (select true from agent_private.group_wake w where w.queue = _queue and w.key = k.key and w.hold_until > _now limit 1) is null
    )
    , chosen as materialized
    ( select w.id
      from room r
      cross join lateral
      ( select w.id
        from agent.event w
        where w.queue = _queue and w.group_key = r.key and w.flow = 3
        order by w.priority, w.id
        limit r.free
      ) as w
      where r.free > 0
    )
    , taken as
    ( update agent.event e
      set flow = 1, flow_version = _version, vt = least(e.turn_vt, _now), turn_vt = null, admitted_at = _now
      from (select e.ctid from chosen c join agent.event e on e.id = c.id and e.flow = 3 for update of e skip locked) as l (place)
      where e.ctid = l.place
      returning e.vt
    )
    select (select count(*) from chosen), count(*), min(t.vt) into _chosen, admitted, vt from taken t;
  end if;
  if admitted < _chosen or _chosen >= 1000 then -- somebody has one of them locked, or there are more
    insert into agent_private.group_wake (queue, key, at)
    select _queue, k.key, clock_timestamp() + case when admitted < _chosen then interval '5 ms' else interval '0' end from unnest(_locked) as k (key);
  end if;
end
$func$;

-- Looks at groups of a queue in which slots became free, or events began to wait. is_ready says whether there may be something to claim now, vt is the
-- earliest vt of what was admitted; null: nothing was, or somebody else has some of the groups locked.
create or replace function agent_private.look_at_groups(_queue text, _keys text[], out is_ready boolean, out vt timestamptz)
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
  _locked text[] = agent_private.lock_groups(_queue, _keys);
  _waiting text[] = array
  ( select k.key from unnest(_locked) as k (key)
    where (select true from agent.event e where e.queue = _queue and e.group_key = k.key and e.flow = 3 limit 1)
  );
begin
  is_ready = false;
  if _waiting <> '{}' then
    select a.admitted > 0, a.vt into strict is_ready, vt from agent_private.admit_events(_queue, _waiting) a;
  end if;
  if cardinality(_locked) < cardinality(_keys) then
    insert into agent_private.group_wake (queue, key) select _queue, k.key from unnest(_keys) as k (key) where k.key <> all (_locked);
    is_ready = true;
    vt = null;
  end if;
end
$func$;

-- Locks these events, in the order of their ids, if any of them has a slot, or may have: of a group, or of a queue. Returns the queues of those and, where they are of groups, the keys.
create or replace function agent_private.lock_slots(_ids int8[], out queues text[], out keys text[])
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
as $func$
begin
  if not exists (select from agent.event e where e.id = any (_ids) and (e.group_key is not null or e.in_total)) then
    return;
  end if;
  select array_agg(l.queue), array_agg(l.group_key) into queues, keys
  from
  ( select e.queue, e.group_key, e.in_total
    from agent.event e
    where e.id = any (_ids)
    order by e.id -- all, as whoever ends or changes leases locks them
    for update
  ) as l
  where l.group_key is not null or l.in_total;
end
$func$;

-- To be called when slots became free in these queues and, where the key beside is not null, groups. Returns the queues in which there may be something to claim
-- now, and the earliest vt of what was admitted there.
create or replace function agent_private.free_slots(_queues text[], _keys text[])
returns table (queue text, vt timestamptz)
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
#variable_conflict use_column
declare
  _of text[];
  _has_total boolean;
  _is_ready boolean;
begin
  for queue, _of, _has_total in
    select q.name, case when q.flow_version is not null then array_agg(distinct f.key) filter (where f.key is not null) end, q.flow_total is not null
    from unnest(_queues, _keys) as f (queue, key)
    join agent.queue q on q.name = f.queue and (q.flow_version is not null or q.flow_total is not null)
    group by q.name
    order by q.name
  loop
    _is_ready = false;
    vt = null;
    if _of is not null then
      select l.is_ready, l.vt into strict _is_ready, vt from agent_private.look_at_groups(queue, _of) l;
    end if;
    if _is_ready or _has_total then
      return next;
    end if;
  end loop;
end
$func$;

-- free_slots for those whose caller waits for no answer: it wakes the claims that wait.
create or replace function agent_private.free_slots_and_notify(_queues text[], _keys text[])
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
declare
  _ready text[] = array(select f.queue from agent_private.free_slots(_queues, _keys) f);
begin
  if _ready <> '{}' then
    perform agent.notify_queues(_ready);
  end if;
end
$func$;

-- Those of some leased events, which the caller has locked, that may be extended, with their places: a lease that has ended counts no more against the limit of its
-- queue, and another one may have its slot.
create or replace function agent_private.keep_slots(_ids int8[], _places int8[], out ids int8[], out places int8[])
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
set jit to off
as $func$
begin
  perform from agent.queue q
  where q.name in (select e.queue from agent.event e where e.id = any (_ids) and e.in_total)
  order by q.name
  for no key update; -- as claims lock it
  select coalesce(array_agg(k.id order by k.id), '{}'), coalesce(array_agg(k.place order by k.id), '{}') into strict ids, places
  from unnest(_ids, _places) as k (id, place)
  join agent.event e on e.id = any (_ids) and e.id = k.id
  where e.in_total is not true or e.vt > clock_timestamp();
end
$func$;

-- Has an event that was claimed, and is given back, wait for its turn again: from its vt on. Its slot is free at once. In a group in order it stays admitted, and keeps its place.
create or replace function agent_private.return_slot(_id int8)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
set jit to off
as $func$
declare
  _now timestamptz = clock_timestamp();
  _queue text;
  _key text;
begin
  update agent.event e
  set flow = case when e.vt <= _now then 3 else 4 end, flow_version = null, turn_vt = e.vt, vt = agent_private.no_turn(), admitted_at = null
  from agent.queue q
  where e.id = _id and e.flow <= 2 and q.name = e.queue and q.flow_version is not null and not (q.flow_order and not q.flow_paced and e.flow_version is not distinct from q.flow_version)
  returning e.queue, e.group_key into _queue, _key;
  if found then
    insert into agent_private.group_wake (queue, key, at, event_id)
    select e.queue, e.group_key, e.turn_vt, e.id from agent.event e where e.id = _id and e.flow = 4;
    perform agent_private.look_at_groups(_queue, array[_key]);
  end if;
end
$func$;

-- Whether an event that was claimed, and is given back at once, has to wait for its turn again, see return_slot: its claim counts where claims do, or other limits than those in force have admitted it.
create or replace function agent_private.lacks_slot(_event agent.event)
returns boolean
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  return _event.flow in (-1, 2)
    or _event.flow_version is distinct from (select q.flow_version from agent.queue q where q.name = _event.queue and q.flow_version is not null);
end
$func$;

-- Has the leases of a queue count against its limit that there are when it is set.
create or replace function agent_private.count_leases(_queue text)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
as $func$
begin
  update agent.event e
  set in_total = true
  where e.ctid = any (array
  ( select o.ctid
    from agent_private.list_lanes(_queue) l
    cross join lateral
    ( select o.ctid
      from agent.event o
      where o.queue = _queue and o.priority = l.priority and o.vt > clock_timestamp() and o.vt < agent_private.no_turn()
      and o.attempts > 0 and o.nacked_at is null and o.in_total is null
      for update skip locked
    ) as o
  ));
end
$func$;

-- Has an event that is not due yet and waits for its turn then be due now. Returns since when it is due.
create or replace function agent_private.make_due(_event agent.event)
returns timestamptz
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  if _event.flow = 4 then
    update agent.event e
    set turn_vt = clock_timestamp(), due_at = case when e.due_at > clock_timestamp() then clock_timestamp() else e.due_at end
    where e.id = _event.id and e.flow = 4
    returning e.turn_vt into _event.turn_vt;
    insert into agent_private.group_wake (queue, key, event_id) values (_event.queue, _event.group_key, _event.id);
  end if;
  return _event.turn_vt;
end
$func$;

-- make_due for up to _limit events of a queue, as agent_service.run_events has it. Returns how many were made due.
create or replace function agent_private.make_all_due(_queue text, _limit int4, _types text[], _nacked_only boolean, _began timestamptz)
returns int8
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
as $func$
declare
  _now timestamptz = clock_timestamp();
  _due int8;
begin
  with chosen as materialized
  ( select l.event
    from agent_private.group_wake w
    cross join lateral
    ( select e as event
      from agent.event e
      where e.id = w.event_id and e.queue = _queue and e.flow = 4 and e.turn_vt > _now
      and (e.nacked_at is not null or not _nacked_only)
      and coalesce(e.nacked_at, e.enqueued_at) <= _began
      and (coalesce(cardinality(_types), 0) = 0 or e.type = any (_types))
      for update skip locked
    ) as l
    where w.queue = _queue and w.at > _now and w.event_id > 0
    order by w.at
    limit _limit
  )
  select count(agent_private.make_due(c.event)) into _due from chosen c;
  return _due;
end
$func$;

-- After the clock was set back: has what became due, or would have, by _highest be due _now, and what rates have put off be admitted again, as the times of these are of the former clock.
create or replace function agent_private.make_woken_due(_now timestamptz, _highest timestamptz)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
set jit to off
as $func$
declare
  _ids int8[];
begin
  with due as
  ( update agent_private.group_wake w set at = _now where w.at > _now and w.at <= _highest returning w.event_id
  )
  select array_agg(d.event_id) into _ids from due d where d.event_id > 0;
  _ids = array(select e.id from agent.event e where e.id = any (_ids) order by e.id for update); -- as acks lock them
  update agent.event e set turn_vt = _now where e.id = any (_ids) and e.flow = 4 and e.turn_vt > _now;
  with ahead as
  ( update agent.event e
    set flow_version = null
    where e.ctid = any (array
    ( select o.place
      from agent.queue q
      cross join lateral agent_private.list_lanes(q.name) as l
      cross join lateral
      ( select o.ctid
        from agent.event o
        where o.queue = q.name and o.priority = l.priority and o.vt >= _now and o.vt < agent_private.no_turn()
        and o.flow between 0 and 1 and o.flow_version is not null and (o.attempts = 0 or o.nacked_at is not null)
        for update skip locked
      ) as o (place)
      where q.flow_paced
    ))
    returning e.queue, e.group_key
  )
  insert into agent_private.group_wake (queue, key, event_id) select distinct a.queue, a.group_key, 0 from ahead a; -- 0: see withdraw_turns
end
$func$;

-- Has all groups of a queue be looked at, as its limits have changed.
create or replace function agent_private.wake_all_groups(_queue text)
returns void
language sql volatile
set search_path to pg_catalog, pg_temp
as $func$
  insert into agent_private.group_wake (queue, key, after_key) values (_queue, '', '')
$func$;

-- Goes on with what wake_all_groups has begun: with the next _limit groups.
create or replace function agent_private.wake_next_groups(_queue text, _limit int4)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
set enable_sort to off
as $func$
declare
  _now timestamptz = clock_timestamp();
  _after text;
  _keys text[] = '{}';
begin
  perform from agent_private.group_wake w where w.queue = _queue and w.key = '' and w.after_key is not null and w.at <= _now limit 1 for update skip locked;
  if not found then
    return;
  end if;
  with gone as
  ( delete from agent_private.group_wake w
    where w.ctid = any (array
    ( select o.ctid from agent_private.group_wake o where o.queue = _queue and o.key = '' and o.after_key is not null and o.at <= _now for update skip locked
    ))
    returning w.after_key
  )
  select min(g.after_key) into strict _after from gone g;
  if _after = '' then
    insert into agent_private.group_wake (queue, key, event_id) values (_queue, '', 0);
  end if;
  while cardinality(_keys) < _limit loop
    select e.group_key into _after from agent.event e where e.queue = _queue and e.group_key > _after order by e.group_key limit 1;
    exit when not found;
    _keys = _keys || _after;
  end loop;
  insert into agent_private.group_wake (queue, key, event_id) select _queue, k.key, 0 from unnest(_keys) as k (key);
  if cardinality(_keys) = _limit then
    insert into agent_private.group_wake (queue, key, after_key) values (_queue, '', _after);
  end if;
end
$func$;

-- Looks at up to _limit groups of a queue that have due wakes, those that have waited longest first, and returns how many it could look at. The wakes of groups that somebody else has locked
-- are put off.
create or replace function agent_private.look_at_woken(_queue text, _limit int4)
returns int4
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
  _version int8;
  _keys text[];
  _locked text[];
  _ids int8[];
  _held text[]; -- the groups that wakes hold, and until when
  _until timestamptz[];
begin
  if exists (select from agent_private.group_wake w where w.queue = _queue and w.key = '' and w.after_key is not null and w.at <= _now) then
    perform agent_private.wake_next_groups(_queue, _limit);
    _now = clock_timestamp();
  end if;
  _keys = array
  ( select k.key
    from
    ( (select w.key, w.at from agent_private.group_wake w where w.queue = _queue and w.at <= _now and w.after_key is null order by w.at limit _limit)
      union all
      (select w.key, w.at from agent_private.group_wake w where w.queue = _queue and w.hold_until is not null limit _limit) -- put off or not: nothing of them may be claimed
    ) as k
    group by k.key
    order by min(k.at)
  );
  if _keys = '{}' then
    return 0;
  end if;
  _locked = agent_private.lock_groups(_queue, _keys);

  if cardinality(_locked) < cardinality(_keys) then -- one wake of each kind is enough
    with gone as
    ( delete from agent_private.group_wake w
      where w.ctid = any (array
      ( select l.place
        from unnest(_keys) as k (key)
        cross join lateral
        ( select w.ctid
          from agent_private.group_wake w
          where w.queue = _queue and w.key = k.key and w.after_key is null and (w.at <= _now or w.hold_until is not null)
          order by w.queue, w.key
          limit 1000000 -- not merged into the join, which might search all wakes for each key
          for update skip locked
        ) as l (place)
        where k.key <> all (_locked)
      ))
      returning w.key, w.event_id, w.hold_until
    )
    , left_for_others as
    ( insert into agent_private.group_wake (queue, key, at, event_id, hold_until)
      select distinct _queue, g.key, _now + interval '10 ms', g.event_id, g.hold_until from gone g
    )
    select array_agg(distinct g.key) into _held from gone g where g.hold_until > _now;
    if _held is not null then
      perform agent_private.revoke_turns(_queue, _held);
      _held = null;
    end if;
  end if;
  if _locked = '{}' then
    return 0;
  end if;

  with gone as
  ( delete from agent_private.group_wake w
    where w.ctid = any (array
    ( select l.place
      from unnest(_locked) as k (key)
      cross join lateral
      ( select w.ctid
        from agent_private.group_wake w
        where w.queue = _queue and w.key = k.key and w.after_key is null and (w.at <= _now or w.hold_until is not null)
        order by w.queue, w.key
        limit 1000000
        for update skip locked
      ) as l (place)
    ))
    returning w.key, w.event_id, w.hold_until
  )
  select array_agg(distinct g.event_id) filter (where g.event_id is not null), array_agg(g.key order by g.key, g.hold_until) filter (where g.hold_until > _now)
  , array_agg(g.hold_until order by g.key, g.hold_until) filter (where g.hold_until > _now)
  into _ids, _held, _until
  from gone g;
  if _held is not null then
    perform agent_private.write_holds(_queue, _held, _until);
  end if;
  if _ids is not null then
    update agent.event e -- those that are due
    set flow = 3
    where e.ctid = any (array
    ( select o.ctid from agent.event o where o.id = any (_ids) and o.queue = _queue and o.flow = 4 and o.turn_vt <= _now for update skip locked
    ));
    insert into agent_private.group_wake (queue, key, at, event_id) -- locked, or put off
    select e.queue, e.group_key, greatest(e.turn_vt, _now + interval '20 ms'), e.id from agent.event e where e.id = any (_ids) and e.queue = _queue and e.flow = 4;
    if 0 = any (_ids) then
      perform agent_private.withdraw_turns(_queue, _locked);
    end if;
  end if;
  perform agent_private.admit_events(_queue, _locked);
  return cardinality(_locked);
end
$func$;

-- Has those admitted events of groups, which the caller has locked, wait again that other limits than those in force have admitted, or none, and that are not leased. A lease that has
-- ended is lost then. One that a rate has put off is due from the time on at which it was admitted. Leaves wakes for those that are leased, or that others have locked.
create or replace function agent_private.withdraw_turns(_queue text, _locked text[])
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
  _version int8;
  _is_paced boolean;
  _is_fair boolean;
  _max_withdrawn int4 = 2000;
  _withdrawn int8;
begin
  select q.flow_version, q.flow_paced, q.flow_fair into _version, _is_paced, _is_fair from agent.queue q where q.name = _queue;
  if _version is null then
    return;
  elsif '' = any (_locked) then
    perform agent_private.gather_ungrouped(_queue, _is_fair, _max_withdrawn);
  end if;
  with withdrawn as
  ( update agent.event e
    set flow = case when o.vt <= _now then 3 else 4 end, flow_version = null, turn_vt = o.vt, vt = agent_private.no_turn(), admitted_at = null
      , past_attempts = case when e.attempts = 0 or e.nacked_at is not null then e.past_attempts
          else agent_private.append_attempt(e.past_attempts, e.attempts, e.worker, e.vt, 'lease_ended') end
      , nacked_at = case when e.attempts > 0 then coalesce(e.nacked_at, e.vt) end
    from
    ( select o.place
      , case when agent_private.is_put_off(o.flow, o.vt, o.admitted_at, o.nacked_at) then least(greatest(o.admitted_at, o.due_at), _now) else o.vt end
      from unnest(_locked) as k (key)
      cross join lateral
      ( select e.ctid, e.flow, e.vt, e.admitted_at, e.nacked_at, e.due_at
        from agent.event e
        where e.queue = _queue and e.group_key = k.key and e.flow <= 2 and (e.flow_version is distinct from _version or _is_paced and e.flow in (-1, 2))
        and (e.vt <= _now or e.attempts = 0 or e.nacked_at is not null)
        limit _max_withdrawn
        for update skip locked
      ) as o (place)
      limit _max_withdrawn
    ) as o (place, vt)
    where e.ctid = o.place
    returning e.group_key, e.flow, e.turn_vt, e.id
  )
  , woken as
  ( insert into agent_private.group_wake (queue, key, at, event_id) select _queue, w.group_key, w.turn_vt, w.id from withdrawn w where w.flow = 4
  )
  select count(*) into _withdrawn from withdrawn w;
  if _is_paced then -- those that were leased before their claims counted are not ahead of these
    update agent.event e
    set flow = case when _is_fair then -1 else 2 end
    where e.ctid = any (array
    ( select o.place
      from unnest(_locked) as k (key)
      cross join lateral
      ( select e.ctid
        from agent.event e
        where e.queue = _queue and e.group_key = k.key and e.flow between 0 and 1 and e.flow_version is distinct from _version and e.vt > _now and e.attempts > 0 and e.nacked_at is null
        limit _max_withdrawn
        for update skip locked
      ) as o (place)
    ));
  end if;
  if _withdrawn = _max_withdrawn then -- there may be more
    insert into agent_private.group_wake (queue, key, event_id) select _queue, k.key, 0 from unnest(_locked) as k (key);
    return;
  end if;
  insert into agent_private.group_wake (queue, key, at, event_id) -- when the first of these leases ends, unless others have the event locked
  select _queue, k.key, greatest(e.at, _now + interval '100 ms'), 0
  from unnest(_locked) as k (key)
  cross join lateral
  ( select min(case when o.attempts > 0 and o.nacked_at is null then o.vt else _now end)
    from
    ( select o.attempts, o.nacked_at, o.vt
      from agent.event o
      where o.queue = _queue and o.group_key = k.key and o.flow <= 2 and o.flow_version is distinct from _version
      limit 10000
    ) as o
  ) as e (at)
  where e.at is not null;
end
$func$;

-- Has up to _limit events of a queue without a group, that have none, be in the one of those where groups take turns, and none elsewhere: those that were there before that changed, or were written by hand.
create or replace function agent_private.gather_ungrouped(_queue text, _is_fair boolean, _limit int4)
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
  _changed int8;
begin
  if _is_fair then
    update agent.event e
    set group_key = ''
    where e.ctid = any (array
    ( select o.ctid
      from agent_private.list_lanes(_queue) as l
      cross join lateral
      ( select o.ctid from agent.event o
        where o.queue = _queue and o.priority = l.priority and o.group_key is null and o.vt < agent_private.no_turn()
        order by o.vt, o.id
        limit _limit
        for update skip locked
      ) as o
      limit _limit
    ));
  else
    update agent.event e
    set group_key = null
    where e.ctid = any (array(select o.ctid from agent.event o where o.queue = _queue and o.group_key = '' limit _limit for update skip locked));
  end if;
  get diagnostics _changed = row_count;
  if _changed = _limit then -- there may be more
    insert into agent_private.group_wake (queue, key, event_id) values (_queue, '', 0);
  end if;
end
$func$;
