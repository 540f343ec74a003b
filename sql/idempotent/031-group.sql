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
return _policy.flow_concurrency is not null or _policy.flow_order or _policy.flow_rate_limit is not null;

-- The event of a group as its row is when it comes into its queue, for the trigger check_event: claimable in a queue where groups need no turn, else waiting, with
-- a wake. One with flow 3 waits and leaves none: its group is locked. A copy of an event for which its group is stopped takes the place of that. Raises QD003 for a key that no group has.
create or replace function agent_private.enter_group(_event agent.event)
returns agent.event
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
declare
  _now timestamptz = clock_timestamp();
  _is_delayed boolean;
  _on_failed text;
begin
  if not octet_length(_event.group_key) between 1 and 255 then
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
  select q.flow_on_failed into _on_failed from agent.queue q where q.name = _event.queue and q.flow_version is not null;
  if not found then
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
      set flow = 1, flow_version = _version, vt = e.turn_vt, turn_vt = null, admitted_at = _now
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
      set flow = 1, flow_version = _version, vt = e.turn_vt, turn_vt = null, admitted_at = _now
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

-- admit_events for a queue with rates. An event gets the time of its turn as its vt even where that is over: a claim that has begun before it does not take it. _claims are claims of these groups that the transaction has made, at _at.
create or replace function agent_private.admit_paced_events
(_queue text, _locked text[], _claims int4[] default null, _at timestamptz default null, out admitted int8, out vt timestamptz)
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
  _order boolean;
  _on_failed text;
  _limit int4;
  _period interval;
  _burst int4;
  _chosen int8;
begin
  select q.flow_version, q.flow_concurrency, q.flow_order, q.flow_on_failed, q.flow_rate_limit, q.flow_rate_period, q.flow_rate_burst
  into _version, _concurrency, _order, _on_failed, _limit, _period, _burst
  from agent.queue q
  where q.name = _queue;

  -- One statement takes the claims that were recorded and counts the events that are not claimed, so that it sees each of these as one or the other.
  with recorded as materialized
  ( delete from agent_private.group_claim c
    using
    ( select c.ctid
      from unnest(_locked) as k (key)
      cross join lateral (select c.ctid from agent_private.group_claim c where c.queue = _queue and c.key = k.key limit 1000000) as c
    ) as l (place)
    where c.ctid = l.place
    returning c.key, c.claims, c.at
  )
  , spent as materialized
  ( select r.key, r.claims, r.at from recorded r
    union all
    select k.key, k.claims, _at from unnest(_locked, _claims) as k (key, claims) where k.claims > 0
  )
  , cost as -- of claims c_1 <= c_2 <= ... the tat becomes max(tat + n * step, c_i + (n - i + 1) * step for all i)
  ( select s.key, sum(s.claims) filter (where s.claims > 0) as claims, max(s.at) filter (where s.claims > 0) as last_claim
    , array_agg(s.at) filter (where s.claims > 0) as ats, array_agg(s.later) filter (where s.claims > 0) as laters
    from (select s.key, s.claims, s.at, sum(greatest(s.claims, 0)) over (partition by s.key order by s.at desc) as later from spent s) as s
    group by s.key
  )
  , looked as materialized
  ( select k.key, c.key is not null as has_spent, r.step, r.burst, greatest(g.last_claim, c.last_claim) as last_claim
    , m.most
    , g.paused or coalesce(g.held_until > _now, false)
      or (select true from agent_private.group_wake w where w.queue = _queue and w.key = k.key and w.hold_until > _now limit 1) is not null as is_held
    , least
      ( greatest(coalesce(g.tat, '-infinity') + coalesce(c.claims, 0) * r.step, (select max(a.at + a.later * r.step) from unnest(c.ats, c.laters) as a (at, later)))
      -- No later one can come of claims that conform: the rate has become another, or the clock was set back. The time is that of now, as claims may be later than _now.
      , clock_timestamp() + r.burst * r.step
      ) as tat
    , (select count(*) from (select from agent.event e where e.queue = _queue and e.group_key = k.key and e.flow = 1 limit coalesce(r.burst, m.most, 1000)) as e) as unclaimed
    , (select count(*) from (select from agent.event e where e.queue = _queue and e.group_key = k.key and e.flow = 2 limit m.most) as e) as claimed
    from unnest(_locked) as k (key)
    cross join lateral (select g.* from agent.queue_group g where g.queue = _queue and g.key = k.key limit 1) as g
    left join cost c on c.key = k.key
    cross join lateral (values (case when _order then 1 else coalesce(g.concurrency, _concurrency) end)) as m (most)
    cross join lateral
    ( select case when g.rate_limit is null then _period / _limit else g.rate_period / g.rate_limit end, case when g.rate_limit is null then _burst else g.rate_burst end
    ) as r (step, burst)
  )
  , room as materialized
  ( select l.key, l.step, l.burst, l.unclaimed, l.has_spent, l.last_claim
    -- What was released was not claimed, if nothing was claimed later: else the tokens are not what they would have been.
    , l.tat - coalesce((select -sum(s.claims) from spent s where s.key = l.key and s.claims < 0 and s.at >= l.last_claim), 0) * l.step as tat
    , case when l.is_held then 0 else least(l.most - l.claimed, coalesce(l.burst, l.most, 1000)) - l.unclaimed end as free
    from looked l
  )
  , counted as
  ( update agent.queue_group g set tat = r.tat, last_claim = r.last_claim from room r where r.has_spent and r.burst is not null and g.queue = _queue and g.key = r.key
  )
  , chosen as materialized
  ( select w.id, r.tat + (r.unclaimed + w.n - r.burst) * r.step as turn
    from room r
    cross join lateral
    ( select w.id, row_number() over (order by w.priority, w.id) as n
      from agent.event w
      where not _order and w.queue = _queue and w.group_key = r.key and w.flow = 3
      order by w.priority, w.id
      limit r.free
    ) as w
    where r.free > 0 and not _order
    union all
    select e.id, r.tat + (1 - r.burst) * r.step
    from room r
    cross join lateral (values (agent_private.first_in_order(_queue, r.key, _on_failed = 'block'))) as f (id)
    join agent.event e on e.id = f.id and e.flow = 3 -- one that is not due yet has a wake
    where r.free > 0 and _order
  )
  , taken as
  ( update agent.event e
    set flow = 1, flow_version = _version, vt = greatest(e.turn_vt, l.turn), turn_vt = null, admitted_at = _now
    from
    ( select e.ctid, c.turn
      from chosen c
      join agent.event e on e.id = c.id and e.flow = 3
      for update of e skip locked
    ) as l (place, turn)
    where e.ctid = l.place
    returning e.vt
  )
  select (select count(c.id) from chosen c), count(*), min(t.vt) into _chosen, admitted, vt from taken t;
  if admitted < _chosen or _chosen >= 1000 then
    insert into agent_private.group_wake (queue, key, at)
    select _queue, k.key, clock_timestamp() + case when admitted < _chosen then interval '5 ms' else interval '0' end from unnest(_locked) as k (key);
  end if;
end
$func$;

-- To be called after a claim from a queue with rates: adds the claims of events of these groups, one key for each, made at _at, to what the groups have used, and admits the next ones.
create or replace function agent_private.note_claims(_queue text, _keys text[], _at timestamptz)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
declare
  _claims int4[];
  _locked text[];
begin
  select array_agg(k.key order by k.key), array_agg(k.n order by k.key) into _keys, _claims from (select k.key, count(*)::int4 as n from unnest(_keys) as k (key) group by k.key) as k;
  _locked = agent_private.lock_groups(_queue, _keys);
  if cardinality(_locked) < cardinality(_keys) then
    insert into agent_private.group_claim (queue, key, at, claims)
    select _queue, k.key, _at, k.n from unnest(_keys, _claims) as k (key, n) where k.key <> all (_locked);
    insert into agent_private.group_wake (queue, key)
    select _queue, k.key from unnest(_keys) as k (key) where k.key <> all (_locked);
    select array_agg(k.key), array_agg(k.n) into _keys, _claims from unnest(_keys, _claims) as k (key, n) where k.key = any (_locked);
  end if;
  if _keys is not null and (select a.admitted from agent_private.admit_paced_events(_queue, _keys, _claims, _at) a) > 0 then
    perform agent.notify_queues(array[_queue]); -- who waits has to know when the next ones can be claimed
  end if;
end
$func$;

-- Records that the claims of these leased events, which the caller has locked, are undone: so they do not count against the rates of their groups. To be called before they are.
create or replace function agent_private.note_releases(_ids int8[])
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
set jit to off
as $func$
begin
  insert into agent_private.group_claim (queue, key, at, claims)
  select e.queue, e.group_key, e.claimed[cardinality(e.claimed)], -1
  from agent.event e
  join agent.queue q on q.name = e.queue and q.flow_paced
  where e.id = any (_ids) and e.group_key is not null and e.flow = 2;
end
$func$;

-- The event of a group in order that is the next to be admitted: null if one is admitted, nothing waits, or the group is stopped. It sees what the statement sees that calls it.
create or replace function agent_private.first_in_order(_queue text, _key text, _is_blocking boolean)
returns int8
language plpgsql stable
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
set enable_sort to off
as $func$
declare
  _flow int2;
  _priority int4;
  _id int8;
  _first int8;
  _copy int8;
begin
  select e.flow, e.priority, e.id into _flow, _priority, _first
  from agent.event e
  where e.queue = _queue and e.group_key = _key
  order by e.flow, e.priority, e.id
  limit 1;
  if not found or _flow <= 2 then
    return null;
  elsif _is_blocking then
    for _copy in select b.requeued_as from agent_private.group_block b where b.queue = _queue and b.key = _key order by b.place loop
      if _copy is null then
        return null;
      end if;
      perform from agent.event e where e.id = _copy and e.queue = _queue and e.group_key = _key;
      if found then
        return _copy;
      end if;
    end loop;
  end if;
  loop -- for each further state and priority
    select e.flow, e.priority, e.id into _flow, _priority, _id
    from agent.event e
    where e.queue = _queue and e.group_key = _key and (e.flow, e.priority) > (_flow, _priority)
    order by e.flow, e.priority, e.id
    limit 1;
    exit when not found;
    _first = least(_first, _id);
  end loop;
  return _first;
end
$func$;

-- Stops the groups in order of those of these events that fail, or expire after they were claimed, where on_failed is 'block'. The caller has them locked. A copy of one that failed before keeps
-- the place of that.
create or replace function agent_private.block_groups(_ids int8[], _outcome text)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
as $func$
declare
  _event record;
begin
  for _event in
    select e.id, e.queue, e.group_key
    from agent.event e
    join agent.queue q on q.name = e.queue and q.flow_on_failed = 'block'
    where e.id = any (_ids) and e.group_key is not null and (_outcome = 'failed' or e.attempts > 0)
    order by e.id
  loop
    update agent_private.group_block b
    set event_id = _event.id, requeued_as = null
    where b.queue = _event.queue and b.key = _event.group_key and b.requeued_as = _event.id;
    if not found then
      insert into agent_private.group_block (queue, key, place, event_id) values (_event.queue, _event.group_key, _event.id, _event.id) on conflict do nothing;
    end if;
  end loop;
end
$func$;

-- Has an event that comes into a group take the place of the one that it is a copy of, if the group is stopped for that: the event itself was requeued, or its dead letter, or that was moved.
create or replace function agent_private.take_blocked_place(_event agent.event)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
set jit to off
as $func$
begin
  if not exists (select from agent_private.group_block b where b.queue = _event.queue and b.key = _event.group_key) then
    return;
  end if;
  update agent_private.group_block b
  set requeued_as = _event.id
  where b.queue = _event.queue and b.key = _event.group_key and b.requeued_as is null
  and b.event_id = any
  ( array[_event.requeued_from, _event.dead_letter_of]
    || array(select h.dead_letter_of from agent.event_hist h where h.id = _event.requeued_from and h.dead_letter_of is not null)
  );
end
$func$;

-- Has groups go on that stopped for these events: they had expired, and were acked after all.
create or replace function agent_private.unblock_acked(_ids int8[])
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
set jit to off
as $func$
declare
  _queues text[];
begin
  with gone as
  ( delete from agent_private.group_block b
    using agent.event_hist h
    where h.id = any (_ids) and h.outcome = 'done' and b.queue = h.queue and b.key = h.group_key and b.event_id = h.id and b.requeued_as is null
    returning b.queue, b.key
  )
  , woken as
  ( insert into agent_private.group_wake (queue, key) select g.queue, g.key from gone g
  )
  select array_agg(distinct g.queue) into _queues from gone g;
  if _queues is not null then
    perform agent.notify_queues(_queues);
  end if;
end
$func$;

-- Looks at groups of a queue in which slots became free, or events began to wait. is_ready says whether there may be something to claim now, vt is the
-- earliest vt of what was admitted.
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

-- After the clock was set back: has what became due, or would have, by _highest be due _now.
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
  perform from agent_private.group_wake w where w.queue = _queue and w.key = '' and w.at <= _now limit 1 for update skip locked;
  if not found then
    return;
  end if;
  with gone as
  ( delete from agent_private.group_wake w
    where w.ctid = any (array
    ( select o.ctid from agent_private.group_wake o where o.queue = _queue and o.key = '' and o.at <= _now for update skip locked
    ))
    returning w.after_key
  )
  select min(g.after_key) into strict _after from gone g;
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
  if exists (select from agent_private.group_wake w where w.queue = _queue and w.key = '' and w.at <= _now) then
    perform agent_private.wake_next_groups(_queue, _limit);
    _now = clock_timestamp();
  end if;
  _keys = array
  ( select k.key
    from (select w.key, w.at from agent_private.group_wake w where w.queue = _queue and w.at <= _now and w.key <> '' order by w.at limit _limit) as k
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
          where w.queue = _queue and w.key = k.key and w.at <= _now
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
        where w.queue = _queue and w.key = k.key and w.at <= _now
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
-- ended is lost then. One that a rate has put off is due from the time on at which it was admitted.
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
  _max_withdrawn int4 = 2000;
  _withdrawn int8;
begin
  select q.flow_version, q.flow_paced into _version, _is_paced from agent.queue q where q.name = _queue;
  if _version is null then
    return;
  end if;
  with withdrawn as
  ( update agent.event e
    set flow = case when o.vt <= _now then 3 else 4 end, flow_version = null, turn_vt = o.vt, vt = agent_private.no_turn(), admitted_at = null
      , past_attempts = case when e.attempts = 0 or e.nacked_at is not null then e.past_attempts
          else agent_private.append_attempt(e.past_attempts, e.attempts, e.worker, e.vt, 'lease_ended') end
      , nacked_at = case when e.attempts > 0 then coalesce(e.nacked_at, e.vt) end
    from
    ( select o.place
      , case when o.flow = 1 and o.vt > o.admitted_at and coalesce(o.nacked_at <= o.admitted_at, true) then greatest(o.admitted_at, o.due_at) else o.vt end
      from unnest(_locked) as k (key)
      cross join lateral
      ( select e.ctid, e.flow, e.vt, e.admitted_at, e.nacked_at, e.due_at
        from agent.event e
        where e.queue = _queue and e.group_key = k.key and e.flow <= 2 and (e.flow_version is distinct from _version or _is_paced and e.flow = 2)
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
  if _is_paced then -- those that were leased before there was a rate are not ahead of their claims
    update agent.event e
    set flow = 2
    where e.ctid = any (array
    ( select o.place
      from unnest(_locked) as k (key)
      cross join lateral
      ( select e.ctid
        from agent.event e
        where e.queue = _queue and e.group_key = k.key and e.flow = 1 and e.flow_version is distinct from _version and e.vt > _now and e.attempts > 0 and e.nacked_at is null
        limit _max_withdrawn
        for update skip locked
      ) as o (place)
    ));
  end if;
  if _withdrawn = _max_withdrawn then -- there may be more
    insert into agent_private.group_wake (queue, key, event_id) select _queue, k.key, 0 from unnest(_locked) as k (key);
  end if;
end
$func$;

-- To be called before a claim from a queue with limits: looks at the groups that have due wakes, and returns how many of _limit events may be claimed by the limit of the queue, _total
-- (null: none). With that, claims of the queue come one after the other.
create or replace function agent_private.begin_limited_claim(_queue text, _is_grouped boolean, _total int4, _limit int4)
returns int4
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
as $func$
declare
  _now timestamptz;
  _leased int8;
begin
  if _total is not null then
    perform from agent.queue q where q.name = _queue for no key update;
    _total = (select q.flow_total from agent.queue q where q.name = _queue); -- in a later statement, as is the count
    _now = clock_timestamp();
    select count(*) into _leased
    from (select from agent.event e where e.in_total and e.queue = _queue and e.vt > _now and e.attempts > 0 and e.nacked_at is null limit _total) as e;
    _limit = least(_limit, greatest(_total - _leased, 0));
    if _limit = 0 then
      return 0;
    end if;
  end if;
  if _is_grouped and exists (select from agent_private.group_wake w where w.queue = _queue and w.at <= clock_timestamp()) then
    if exists (select from agent_private.group_wake w where w.queue = _queue and w.key = '') then -- those that the claim would pass over go before others
      perform agent_private.wake_stale_groups(_queue, null, null, interval '1 hour');
    end if;
    perform agent_private.look_at_woken(_queue, greatest(_limit, 100));
  end if;
  return _limit;
end
$func$;

-- To be called after a claim from a queue with limits has come up short. Looks at more groups that have due wakes, and at those with events that can be claimed by their vt, and that other limits
-- than those in force have admitted, or none: such as rows that were written by hand. Has events that the claim does not want give their turns to others that it wants. Returns whether there may
-- be something to claim then. The arguments behind _limit are those of the claim.
create or replace function agent_private.look_for_more
(_queue text, _limit int4, _lanes int4[], _watermarks timestamptz[], _types text[], _exclude_ids int8[])
returns boolean
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
set enable_sort to off
set enable_hashjoin to off
set enable_mergejoin to off
as $func$
declare
  _now timestamptz;
  _traded int8 = 0;
begin
  perform agent_private.wake_stale_groups(_queue, _lanes, _watermarks, interval '0');
  _now = clock_timestamp();
  if cardinality(_types) > 0 or cardinality(_exclude_ids) > 0 then
    _traded = agent_private.trade_turns(_queue, _limit, _types, _exclude_ids);
  end if;
  return exists (select from agent_private.group_wake w where w.queue = _queue and w.at <= _now) and agent_private.look_at_woken(_queue, greatest(_limit, 100)) > 0
    or _traded > 0;
end
$func$;

-- Leaves wakes, which are due since _since, for groups with events that can be claimed by their vt, and that other limits than those in force have admitted, or none: of the first ones in each
-- lane from its watermark on. Without _lanes, of all lanes.
create or replace function agent_private.wake_stale_groups(_queue text, _lanes int4[], _watermarks timestamptz[], _since interval)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
set enable_sort to off
set enable_hashjoin to off
set enable_mergejoin to off
as $func$
declare
  _now timestamptz = clock_timestamp();
  _version int8;
  _is_paced boolean;
  _keys text[];
begin
  select q.flow_version, q.flow_paced into _version, _is_paced from agent.queue q where q.name = _queue;
  if _lanes is null then
    _lanes = array(select l.priority from agent_private.list_lanes(_queue) l);
  end if;
  _keys = array
  ( select e.group_key
    from unnest(_lanes, _watermarks) as l (priority, watermark)
    cross join lateral
    ( select e.group_key
      from agent.event e
      where e.queue = _queue and e.priority = l.priority and e.vt >= coalesce(l.watermark, '-infinity') and e.vt <= _now
      and e.group_key is not null and e.flow <= 2 and (e.flow_version is distinct from _version or _is_paced and e.flow = 2)
      order by e.vt, e.id
      limit 100
    ) as e
  );
  if _keys <> '{}' then
    insert into agent_private.group_wake (queue, key, at, event_id) select distinct _queue, k.key, _now - _since, 0 from unnest(_keys) as k (key);
  end if;
end
$func$;

-- Has events that wait and that a claim wants, by _types or _exclude_ids, take the places of admitted ones of their groups that it does not want and nobody has claimed: else a group would
-- stand still for this claim as long as nobody asks for these, which go back to their places in the line. Returns how many have. Of all events of these types that wait it looks at the
-- first ones, and at those from a random place on.
create or replace function agent_private.trade_turns(_queue text, _limit int4, _types text[], _exclude_ids int8[])
returns int8
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
  _order boolean;
  _is_paced boolean;
  _turn timestamptz;
  _max_looked int4 = 200; -- of each lane, twice
  _ids int8[]; -- those that are wanted, and their groups
  _keys text[];
  _key text;
  _of int8[];
  _unwanted int8[];
  _wanted int8[];
  _traded int8 = 0;
begin
  select q.flow_version, q.flow_order, q.flow_paced into _version, _order, _is_paced from agent.queue q where q.name = _queue;
  if _order then -- nobody goes before the first one
    return 0;
  end if;
  if cardinality(_types) > 0 then
    select array_agg(w.id), array_agg(w.key) into _ids, _keys
    from
    ( select w.id, w.key
      from agent_private.list_lanes(_queue, _types) as l
      cross join lateral
      ( select f.id as first_id
        , ( select e.id from agent.event e
            where e.queue = _queue and e.type = l.type and e.priority = l.priority and e.vt = agent_private.no_turn()
            order by e.vt desc, e.id desc
            limit 1
          ) as last_id
        from
        ( select e.id from agent.event e
          where e.queue = _queue and e.type = l.type and e.priority = l.priority and e.vt = agent_private.no_turn()
          order by e.vt, e.id
          limit 1
        ) as f
      ) as b
      cross join lateral (values (b.first_id), (b.first_id + floor(random() * (b.last_id - b.first_id + 1))::int8)) as s (id)
      cross join lateral
      ( select e.id, e.group_key
        from agent.event e
        where e.queue = _queue and e.type = l.type and e.priority = l.priority and e.vt = agent_private.no_turn() and e.id >= s.id and e.flow = 3
        and (_exclude_ids is null or e.id <> all (_exclude_ids))
        order by e.vt, e.id
        limit _max_looked
      ) as w (id, key)
      group by w.id, w.key
    ) as w;
  else
    select array_agg(w.id), array_agg(w.key) into _ids, _keys
    from
    ( select distinct e.group_key from agent.event e where e.id = any (_exclude_ids) and e.queue = _queue and e.flow = 1
    ) as k (key)
    cross join lateral
    ( select e.id, e.group_key
      from agent.event e
      where e.queue = _queue and e.group_key = k.key and e.flow = 3 and e.id <> all (_exclude_ids)
      order by e.priority, e.id
      limit _max_looked
    ) as w (id, key);
  end if;
  if _ids is null then
    return 0;
  end if;

  foreach _key in array agent_private.lock_groups(_queue, array
  ( select k.key
    from (select distinct unnest(_keys)) as k (key)
    where exists
    ( select from agent.event e
      where e.queue = _queue and e.group_key = k.key and e.flow = 1 and e.vt <= _now and (e.attempts = 0 or e.nacked_at is not null)
      and (cardinality(_types) > 0 and coalesce(e.type <> all (_types), true) or e.id = any (_exclude_ids))
    )
    limit _limit
  )) loop
    exit when _traded >= _limit;
    _unwanted = array
    ( select e.id from agent.event e
      where e.queue = _queue and e.group_key = _key and e.flow = 1 and e.flow_version = _version and e.vt <= _now and (e.attempts = 0 or e.nacked_at is not null)
      and (cardinality(_types) > 0 and coalesce(e.type <> all (_types), true) or e.id = any (_exclude_ids))
      order by e.priority desc, e.id desc
      limit _limit
      for update skip locked
    );
    _of = array(select w.id from unnest(_ids, _keys) as w (id, key) where w.key = _key);
    _wanted = array
    ( select e.id from agent.event e
      where e.id = any (_of) and e.queue = _queue and e.group_key = _key and e.flow = 3
      order by e.priority, e.id
      limit cardinality(_unwanted)
      for update skip locked
    );
    _unwanted = _unwanted[:cardinality(_wanted)];
    _turn = (select max(e.vt) from agent.event e where e.id = any (_unwanted) and _is_paced); -- a claim that began before it may not take them
    update agent.event e
    set flow = 3, flow_version = null, turn_vt = e.vt, vt = agent_private.no_turn(), admitted_at = null
    where e.id = any (_unwanted);
    update agent.event e
    set flow = 1, flow_version = _version, vt = greatest(e.turn_vt, _turn), turn_vt = null, admitted_at = _now
    where e.id = any (_wanted);
    _traded = _traded + cardinality(_wanted);
  end loop;
  return _traded;
end
$func$;

-- When the next wake of a queue is due; null: none will be.
create or replace function agent_private.next_wake(_queue text)
returns timestamptz
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set enable_seqscan to off
set enable_bitmapscan to off
set jit to off
as $func$
begin
  return (select w.at from agent_private.group_wake w where w.queue = _queue order by w.at limit 1);
end
$func$;

-- insert_and_claim_events for batches in which some events have a group, and none has a key. An event of a group that needs a turn is admitted at once if the group has a free slot
-- and nothing waits: only then it is claimed as it is inserted.
create or replace function agent_private.insert_grouped_events
( _events jsonb[]
, _queues text[]
, _delays interval[]
, _vts timestamptz[]
, _leases interval[]
, _workers text[]
, _options jsonb[]
, _hashes bytea[]
)
returns table (id int8, queue text, vt timestamptz, enqueued_at timestamptz, event_ts timestamptz, event jsonb, claimed timestamptz[], replayed boolean, meta jsonb)
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
as $func$
#variable_conflict use_column
declare
  _now timestamptz = clock_timestamp();
  _keys text[];
  _is_limited boolean[]; -- needs a turn
  _flows int2[];
  _versions int8[];
begin
  select array_agg(n.option ->> 'group' order by n.ord), array_agg(n.option ->> 'group' is not null and q.name is not null order by n.ord)
  into _keys, _is_limited
  from unnest(_events, _queues, _options) with ordinality as n (event, queue, option, ord)
  left join agent.queue q on q.name = coalesce(n.queue, 'default') and q.flow_version is not null;
  if true = any (_is_limited) then
    select a.flows, a.versions into strict _flows, _versions
    from agent_private.admit_new_events(_queues, _keys, _is_limited, _delays, _vts, _options) a;
    _now = clock_timestamp();
  end if;

  return query
  insert into agent.event overriding user value -- the ids are the sequence's
  select e.*
  from unnest(_events, _queues, _delays, _vts, _leases, _workers, _options, _hashes, _keys, _is_limited, _flows, _versions) with ordinality
    as n (event, queue, delay, vt, lease, worker, option, hash, key, is_limited, flow, version, ord)
  cross join lateral agent_private.new_event
  ( null, _now, n.event, (n.option ->> 'event_ts')::timestamptz, n.queue, n.delay, n.vt, case when n.flow = 1 or not n.is_limited then n.lease end, n.worker
  , n.option ->> 'type', n.option ->> 'source', (n.option ->> 'priority')::int4, null, (n.option ->> 'max_attempts')::int4
  , (n.option ->> 'expires_at')::timestamptz, n.option -> 'occurrence', _meta => nullif(n.option -> 'meta', 'null'), _hash => n.hash
  , _group => n.key, _flow => case when n.is_limited then n.flow when n.key is not null then 1::int2 end, _flow_version => n.version
  ) as e
  order by n.ord
  returning id, queue, coalesce(turn_vt, vt), enqueued_at, event_ts, case when attempts > 0 then event end, claimed, false, case when attempts > 0 then meta end;
  if 3 = any (_flows) and exists (select from agent.queue q where q.flow_paced) then -- they have their turns when claims conform
    perform agent_private.admit_paced_events(q.name, array_agg(distinct n.key))
    from unnest(_queues, _keys, _flows) as n (queue, key, flow)
    join agent.queue q on q.name = coalesce(n.queue, 'default') and q.flow_paced
    where n.flow = 3
    group by q.name;
  end if;
end
$func$;

-- What events that need a turn are as they are inserted, in their order: flow is 1 for those that are admitted, with the version of the limits; 3 for those that wait in a group which
-- is locked from now on; null for those that leave a wake, see enter_group.
create or replace function agent_private.admit_new_events
( _queues text[]
, _keys text[]
, _is_limited boolean[]
, _delays interval[]
, _vts timestamptz[]
, _options jsonb[]
, out flows int2[]
, out versions int8[]
)
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
  _queue text;
  _of text[];
  _locked_queues text[] = '{}';
  _locked_keys text[] = '{}';
  _locked text[];
  _ordered text[]; -- the queues in which groups are in order
begin
  for _queue, _of in
    select coalesce(n.queue, 'default'), array_agg(distinct n.key)
    from unnest(_queues, _keys, _is_limited) as n (queue, key, is_limited)
    where n.is_limited
    group by 1
    order by 1
  loop
    _locked = agent_private.lock_groups(_queue, _of);
    _locked_queues = _locked_queues || array_fill(_queue, array[cardinality(_locked)]);
    _locked_keys = _locked_keys || _locked;
  end loop;

  _ordered = array(select q.name from agent.queue q where q.name = any (_locked_queues) and q.flow_order);

  -- Of a group that has events waiting, none goes before these.
  with room as materialized
  ( select l.queue, l.key, q.flow_version
    , case
        when g.paused or g.held_until > _now then 0
        when (select true from agent_private.group_wake w where w.queue = l.queue and w.key = l.key and w.hold_until > _now limit 1) then 0
        when q.flow_order then case
          when (select true from agent.event e where e.queue = l.queue and e.group_key = l.key limit 1) then 0
          when q.flow_on_failed = 'block' and (select true from agent_private.group_block b where b.queue = l.queue and b.key = l.key limit 1) then 0
          when q.flow_paced then 0
          else 1
        end
        when q.flow_paced then 0 -- insert_grouped_events sees to these
        when (select true from agent.event e where e.queue = l.queue and e.group_key = l.key and e.flow = 3 limit 1) then 0
        when m.most is null then 1000000
        else m.most - (select count(*) from (select from agent.event e where e.queue = l.queue and e.group_key = l.key and e.flow <= 2 limit m.most) as e)
      end as free
    from unnest(_locked_queues, _locked_keys) as l (queue, key)
    cross join lateral (select g.* from agent.queue_group g where g.queue = l.queue and g.key = l.key limit 1) as g
    left join agent.queue q on q.name = l.queue
    cross join lateral (values (coalesce(g.concurrency, q.flow_concurrency))) as m (most)
  )
  , new as
  ( select n.ord, coalesce(n.queue, 'default') as queue, n.key, n.is_limited, coalesce(n.delay > interval '0' or n.vt > _now, false) as is_delayed
    , row_number() over
      ( partition by n.queue, n.key, n.is_limited, coalesce(n.delay > interval '0' or n.vt > _now, false)
        order by case when coalesce(n.queue, 'default') = any (_ordered) then 0 else coalesce((n.option ->> 'priority')::int4, 0) end, n.ord
      ) as nth
    from unnest(_queues, _keys, _is_limited, _delays, _vts, _options) with ordinality as n (queue, key, is_limited, delay, vt, option, ord)
  )
  select array_agg(case when n.is_delayed or not n.is_limited or r.key is null then null when n.nth <= r.free then 1 else 3 end::int2 order by n.ord)
  , array_agg(case when not n.is_delayed and n.is_limited and n.nth <= r.free then r.flow_version end order by n.ord)
  into flows, versions
  from new n
  left join room r on r.queue = n.queue and r.key = n.key;
end
$func$;

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
  _row.paused = coalesce((_settings ->> 'paused')::boolean, false);
  _row.held_until = (_settings ->> 'held_until')::timestamptz;
  if not isfinite(_row.held_until) then
    perform agent_private.raise_invalid('held_until', 'must be finite');
  elsif _settings ->> 'hold' is not null then
    if _row.held_until is not null then
      perform agent_private.raise_invalid('hold', 'must not be given with held_until');
    end if;
    _row.held_until = agent_private.hold_end((_settings ->> 'hold')::interval);
  end if;
  if not exists (select from agent.queue q where q.name = _queue and q.flow_version is not null and (q.flow_paced or _row.rate_limit is null)) then -- from now on events of its groups need a turn
    perform agent_private.need_turns(_queue, true, _row.rate_limit is not null);
  end if;
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
  if not exists (select from agent.queue q where q.name = _queue and q.flow_version is not null) then
    perform agent_private.need_turns(_queue, false);
  end if;
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
  select distinct _queue, n.key, n.until, 0::int8 from unnest(_locked, _until) as n (key, until)
  union
  select _queue, n.key, e.vt, 0 -- when leases end
  from (select distinct n.key from unnest(_locked) as n (key)) as n
  cross join lateral
  ( select e.vt
    from agent.event e
    where e.queue = _queue and e.group_key = n.key and e.flow <= 2 and e.vt > _now and e.attempts > 0 and e.nacked_at is null
    limit 1000
  ) as e;
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
-- them.
create or replace function agent_private.need_turns(_queue text, _waits boolean, _is_paced boolean default false)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
declare
  _lock int8 = 31321898691468288 + (hashtextextended(_queue, 0) & 127);
begin
  if _waits then
    perform pg_advisory_xact_lock(_lock);
  elsif not pg_try_advisory_xact_lock(_lock) then
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
  rate_period = make_interval(secs => extract(epoch from (_rate ->> 'period')::interval)::float8);
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
  _ends timestamptz[];
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
  _ends = array
  ( select e.vt from agent.event e
    where e.queue = _queue and e.group_key = _group and e.flow <= 2 and e.vt > clock_timestamp()
    order by e.vt
    limit 1000
  );
  insert into agent_private.group_wake (queue, key, at, event_id)
  select _queue, _group, w.at, 0
  from (select clock_timestamp() union all select _held_until where _held_until > clock_timestamp() union all select unnest(_ends)) as w (at);
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
  update agent.queue q
  set flow_version = null
  where q.flow_version is not null and not agent_private.has_turns(q)
  and (select true from agent.queue_group g where g.queue = q.name limit 1) is null
  and (select true from agent_private.group_wake w where w.queue = q.name limit 1) is null
  and (select true from agent.event e where e.queue = q.name and e.group_key is not null and e.flow > 2 limit 1) is null;
  delete from agent_private.group_claim c -- of groups that have nothing: what they have used is available again
  where c.at < clock_timestamp() - interval '1 day' * 2
  and (select true from agent.event e where e.queue = c.queue and e.group_key = c.key limit 1) is null;
  update agent.queue q
  set flow_paced = false, flow_version = agent_private.next_version(q.flow_version)
  where q.flow_paced and q.flow_rate_limit is null and (select true from agent.queue_group g where g.queue = q.name and g.rate_limit is not null limit 1) is null;
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

-- The keys of up to _limit groups of a queue after _after: those that have events, those that something is set for, and those that have stopped.
create or replace function agent_private.next_groups(_queue text, _after text, _limit int4)
returns text[]
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
as $func$
declare
  _keys text[] = '{}';
begin
  while cardinality(_keys) < _limit loop
    _after = least
    ( (select e.group_key from agent.event e where e.queue = _queue and e.group_key > _after order by e.group_key limit 1)
    , ( select g.key from agent.queue_group g
        where g.queue = _queue and g.key > _after
        and (g.concurrency is not null or g.rate_limit is not null or g.paused or g.held_until is not null) -- as the index has it
        and (g.concurrency is not null or g.rate_limit is not null or g.paused or g.held_until > clock_timestamp())
        order by g.key
        limit 1
      )
    , (select b.key from agent_private.group_block b where b.queue = _queue and b.key > _after and b.requeued_as is null order by b.key limit 1)
    );
    exit when _after is null;
    _keys = _keys || _after;
  end loop;
  return _keys;
end
$func$;

-- What there is of these groups of a queue, in their order, as agent.list_groups has it: of one that has nothing, too.
create or replace function agent_private.describe_groups(_queue text, _keys text[])
returns table
( key text, concurrency int4, paused boolean, held_until timestamptz, waiting int8, admitted int8, leased int8, scheduled int8
, oldest timestamptz, next_at timestamptz, blocked_by jsonb, version int8, updated_at timestamptz, rate_limit int4, rate_period interval, rate_burst int4
)
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
  _max_counted int4 = 10000;
  _policy agent.queue;
  _blocking int8; -- with order, the event that the others wait for
  _until timestamptz; -- with a rate, when the next event can be claimed
  _set agent.queue_group;
  _hold_until timestamptz; -- of a wake
  _total int8;
begin
  select q.* into _policy from agent.queue q where q.name = _queue;
  select count(*) into _total
  from (select from agent.event e where e.in_total and e.queue = _queue and e.vt > _now and e.attempts > 0 and e.nacked_at is null limit coalesce(_policy.flow_total, 0)) as e;
  foreach key in array _keys loop
    concurrency = null;
    paused = false;
    held_until = null;
    version = null;
    updated_at = null;
    rate_limit = null;
    rate_period = null;
    rate_burst = null;
    select g.* into _set from agent.queue_group g where g.queue = _queue and g.key = describe_groups.key;
    _hold_until = (select max(w.hold_until) from agent_private.group_wake w where w.queue = _queue and w.key = describe_groups.key and w.hold_until > _now);
    if _hold_until is not null then
      _set.held_until = greatest(_set.held_until, _hold_until);
    end if;
    if agent_private.is_group_set(_set) then
      concurrency = _set.concurrency;
      paused = _set.paused;
      held_until = case when _set.held_until > _now then _set.held_until end;
      version = _set.version;
      updated_at = _set.updated_at;
      rate_limit = _set.rate_limit;
      rate_period = _set.rate_period;
      rate_burst = _set.rate_burst;
    end if;
    select count(*) into waiting
    from (select from agent.event e where e.queue = _queue and e.group_key = describe_groups.key and e.flow = 3 limit _max_counted) as e;
    select min(e.turn_vt) into oldest
    from
    ( select e.turn_vt from agent.event e
      where e.queue = _queue and e.group_key = describe_groups.key and e.flow = 3
      order by e.priority, e.id
      limit 100
    ) as e;
    select count(*) filter (where e.vt <= _now)
    , count(*) filter (where e.vt > _now and e.attempts > 0 and e.nacked_at is null)
    , count(*) filter (where e.vt > _now and not (e.attempts > 0 and e.nacked_at is null))
    , least(oldest, min(e.vt) filter (where e.vt <= _now)), min(e.vt) filter (where e.vt > _now and not (e.attempts > 0 and e.nacked_at is null))
    into admitted, leased, scheduled, oldest, next_at
    from
    ( select e.vt, e.attempts, e.nacked_at from agent.event e
      where e.queue = _queue and e.group_key = describe_groups.key and e.flow <= 2
      limit _max_counted
    ) as e;
    select scheduled + count(*), least(next_at, min(e.turn_vt)) into scheduled, next_at
    from
    ( select e.turn_vt from agent.event e
      where e.queue = _queue and e.group_key = describe_groups.key and e.flow = 4
      limit _max_counted
    ) as e;
    _until = null;
    if _policy.flow_paced and admitted = 0 then
      select min(e.vt) into _until
      from
      ( select e.vt from agent.event e
        where e.queue = _queue and e.group_key = describe_groups.key and e.flow = 1 and e.vt > _now and (e.attempts = 0 or e.nacked_at is not null)
        limit _max_counted
      ) as e;
    end if;
    _blocking = null;
    if _policy.flow_order then
      _blocking = coalesce
      ( case when _policy.flow_on_failed = 'block' then
        ( select b.event_id from agent_private.group_block b
          where b.queue = _queue and b.key = describe_groups.key and b.requeued_as is null
          order by b.place
          limit 1
        ) end
      , case when waiting + scheduled > 0 then
        ( select e.id from agent.event e
          where e.queue = _queue and e.group_key = describe_groups.key and e.flow <= 2
          order by e.flow, e.priority, e.id
          limit 1
        ) end
      );
    end if;
    blocked_by = case
      when waiting + admitted = 0 and _blocking is null and _until is null then null
      when _policy.paused then jsonb_build_object('reason', 'queue_paused')
      when paused then jsonb_build_object('reason', 'paused')
      when held_until is not null then jsonb_build_object('reason', 'hold', 'until', held_until)
      when _until is not null then jsonb_build_object('reason', 'rate', 'until', _until)
      when _blocking is not null then jsonb_build_object('reason', 'order', 'event_id', _blocking)
      when waiting > 0 and admitted + leased >= coalesce(concurrency, _policy.flow_concurrency)
        then jsonb_build_object('reason', 'concurrency', 'limit', coalesce(concurrency, _policy.flow_concurrency))
      when _total >= _policy.flow_total then jsonb_build_object('reason', 'total', 'limit', _policy.flow_total)
    end;
    return next;
  end loop;
end
$func$;

-- Up to _limit groups of a queue after _after by key, or the one _group: those that have events, and those that something is set for. Of their events, up to 10,000 of each kind are counted: waiting for their
-- turn, admitted and not leased, leased, and scheduled. oldest is since when the first in the line is due, next_at when the next scheduled one will be. blocked_by says why the
-- first one that waits does, as an object with a reason: queue_paused, paused, hold with until, rate with until, order with the event_id of the first one, which is unfinished, or of that for which the group has stopped, concurrency with its limit, or total with its limit; null: nothing waits, or it has its turn with the next claim.
-- version is that of what is set for it; null: nothing is. With _blocked only groups are listed that something blocks: to find these takes as long as there are groups after _after.
create or replace function agent.list_groups(_queue text, _limit int4 default 100, _after text default null, _group text default null, _blocked boolean default false)
returns table
( key text, concurrency int4, paused boolean, held_until timestamptz, waiting int8, admitted int8, leased int8, scheduled int8
, oldest timestamptz, next_at timestamptz, blocked_by jsonb, version int8, updated_at timestamptz, rate_limit int4, rate_period interval, rate_burst int4
)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
#variable_conflict use_column
declare
  _keys text[];
  _n int4 = 0;
  _listed int4;
begin
  perform agent_private.check_queue_name(_queue);
  if coalesce(_limit, 0) < 1 then
    perform agent_private.raise_invalid('limit', 'must be at least 1');
  end if;
  if _group is not null then
    return query select d.* from agent_private.describe_groups(_queue, array[_group]) d where d.blocked_by is not null or not _blocked;
    return;
  end if;
  _after = coalesce(_after, '');
  loop
    _keys = agent_private.next_groups(_queue, _after, least(_limit - _n, 100));
    exit when _keys = '{}';
    return query select d.* from agent_private.describe_groups(_queue, _keys) d where d.blocked_by is not null or not _blocked;
    get diagnostics _listed = row_count;
    _n = _n + _listed;
    _after = _keys[cardinality(_keys)];
  end loop;
end
$func$;
