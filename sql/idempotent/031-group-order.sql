-- Groups whose events go one after the other, no faster than a rate, or in turns: what these add to the admission of events. docs/decisions/031-order-and-rate.md and 033-turns.md have the reasons.

-- admit_events for a queue with rates, or where groups take turns. With a rate, an event gets the time of its turn as its vt even where that is over: a claim that has begun before it does not take it. _claims are claims of these groups that the
-- transaction has made, at _at, and _places the places of the latest ones among them. Where groups take turns, one event of a group is admitted ahead; of these groups more, in turns, if fewer than _wanted are, but only what
-- a claim of _types, without _exclude_ids, can take at once: whatever else was admitted would have turns that it does not use, all of which the group has afterwards, one behind the other.
create or replace function agent_private.admit_paced_events
( _queue text
, _locked text[]
, _claims int4[] default null
, _at timestamptz default null
, _places int4[] default null
, _wanted int4 default 0
, _types text[] default null
, _exclude_ids int8[] default null
, out admitted int8
, out vt timestamptz
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
  _version int8;
  _concurrency int4;
  _order boolean;
  _on_failed text;
  _is_fair boolean;
  _limit int4;
  _period interval;
  _burst int4;
  _latest timestamptz = clock_timestamp() + interval '20 ms'; -- that a group can have been served, but for a clock that was set back: places within a claim are microseconds
  _chosen int8;
  _put_off int8;
begin
  _types = nullif(_types, '{}');
  _exclude_ids = nullif(_exclude_ids, '{}');
  select q.flow_version, q.flow_concurrency, q.flow_order, q.flow_on_failed, q.flow_fair, q.flow_rate_limit, q.flow_rate_period, q.flow_rate_burst
  into _version, _concurrency, _order, _on_failed, _is_fair, _limit, _period, _burst
  from agent.queue q
  where q.name = _queue;
  if _is_fair and _claims is null then
    perform agent_private.trade_places(_queue, case when _order then array(select '' where '' = any (_locked)) else _locked end); -- events without a group have no order
  end if;

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
    , case when _is_fair then greatest(g.served_at, coalesce(_at + k.place * interval '1 us', c.last_claim)) end as served_at
    , g.paused or coalesce(g.held_until > _now, false)
      or (select true from agent_private.group_wake w where w.queue = _queue and w.key = k.key and w.hold_until > _now limit 1) is not null as is_held
    , least
      ( greatest(coalesce(g.tat, '-infinity') + coalesce(c.claims, 0) * r.step, (select max(a.at + a.later * r.step) from unnest(c.ats, c.laters) as a (at, later)))
      -- No later one can come of claims that conform: the rate has become another, or the clock was set back. The time is that of now, as claims may be later than _now.
      , clock_timestamp() + r.burst * r.step
      ) as tat
    , (select count(*) from (select from agent.event e where e.queue = _queue and e.group_key = k.key and e.flow between 0 and 1 limit coalesce(r.burst, m.most, 1000)) as e) as unclaimed
    , (select count(*) from (select from agent.event e where e.queue = _queue and e.group_key = k.key and e.flow in (-1, 2) limit coalesce(m.most, 0)) as e) as claimed
    from unnest(_locked, _places) as k (key, place)
    cross join lateral (select g.* from agent.queue_group g where g.queue = _queue and g.key = k.key limit 1) as g
    left join cost c on c.key = k.key
    cross join lateral (values (case when k.key = '' then null when _order then 1 else coalesce(g.concurrency, _concurrency) end)) as m (most)
    cross join lateral
    ( select case when k.key = '' then null when g.rate_limit is null then agent_private.rate_step(_period, _limit) else agent_private.rate_step(g.rate_period, g.rate_limit) end
      , case when k.key = '' then null when g.rate_limit is null then _burst else g.rate_burst end
    ) as r (step, burst)
  )
  , room as materialized
  ( select l.key, l.step, l.burst, l.unclaimed, l.has_spent, l.last_claim, case when l.served_at > _latest then _latest else l.served_at end as served_at
    , row_number() over (order by l.served_at) as place
    -- What was released was not claimed, if nothing was claimed later: else the tokens are not what they would have been.
    , l.tat - coalesce((select -sum(s.claims) from spent s where s.key = l.key and s.claims < 0 and s.at >= l.last_claim), 0) * l.step as tat
    , case when l.is_held then 0 else least(l.most - l.claimed, l.burst, case when _is_fair then greatest((_wanted + cardinality(_locked) - 1) / cardinality(_locked), 1) when l.burst is null then coalesce(l.most, 1000) end) - l.unclaimed end as free
    from looked l
  )
  , counted as
  ( update agent.queue_group g set tat = case when r.burst is not null then r.tat else g.tat end, last_claim = case when r.burst is not null then r.last_claim else g.last_claim end, served_at = r.served_at
    from room r
    where r.has_spent and (r.burst is not null or _is_fair) and g.queue = _queue and g.key = r.key
  )
  , put_off as -- one that was admitted in the meantime
  ( update agent.event e
    set vt = greatest(e.vt, l.served_at)
    from
    ( select e.ctid, r.served_at
      from room r
      cross join lateral
      ( select e.ctid from agent.event e
        where e.queue = _queue and e.group_key = r.key and e.flow = 0
        for update skip locked
      ) as e
      where _is_fair and r.has_spent and r.unclaimed > 0
    ) as l (place, served_at)
    where e.ctid = l.place
    returning e.id
  )
  , chosen as materialized
  ( select w.id, w.turn, w.served_at
    from
    ( select w.id, r.tat + (r.unclaimed + w.n - r.burst) * r.step as turn, r.served_at + (w.n - 1) * cardinality(_locked) * interval '1 us' as served_at
      , r.unclaimed + w.n as nth, row_number() over (order by r.unclaimed + w.n, r.place) as rank
      , w.is_wanted and (r.unclaimed = 0 or _types is null and _exclude_ids is null) as is_wanted
      from room r
      cross join lateral
      ( select w.id, row_number() over (order by w.priority, w.id) as n
        , bool_and(coalesce(w.type = any (_types), _types is null) and (_exclude_ids is null or w.id <> all (_exclude_ids))) over (order by w.priority, w.id) as is_wanted
        from agent.event w
        where (not _order or r.key = '') and w.queue = _queue and w.group_key = r.key and w.flow = 3
        order by w.priority, w.id
        limit r.free
      ) as w
      where r.free > 0 and (not _order or r.key = '')
    ) as w
    where not _is_fair or w.nth = 1 or w.rank <= _wanted and w.is_wanted and coalesce(w.turn <= _now, true)
    union all
    select e.id, r.tat + (1 - r.burst) * r.step, r.served_at
    from room r
    cross join lateral (values (agent_private.first_in_order(_queue, r.key, _on_failed = 'block'))) as f (id)
    join agent.event e on e.id = f.id and e.flow = 3 -- one that is not due yet has a wake
    where r.free > 0 and _order and r.key <> ''
  )
  , taken as
  ( update agent.event e
    set flow = case when _is_fair then 0 else 1 end, flow_version = _version, turn_vt = null, admitted_at = _now
      , vt = greatest(case when _is_fair and e.attempts > 0 then coalesce(l.served_at, least(e.turn_vt, _now)) else greatest(least(e.turn_vt, _now), l.served_at) end, l.turn)
    from
    ( select e.ctid, c.turn, c.served_at
      from chosen c
      join agent.event e on e.id = c.id and e.flow = 3
      for update of e skip locked
    ) as l (place, turn, served_at)
    where e.ctid = l.place
    returning e.vt
  )
  select (select count(c.id) from chosen c), count(*), min(t.vt), (select count(*) from put_off) into _chosen, admitted, vt, _put_off from taken t;
  if admitted < _chosen or _chosen >= 1000 then
    insert into agent_private.group_wake (queue, key, at)
    select _queue, k.key, clock_timestamp() + case when admitted < _chosen then interval '5 ms' else interval '0' end from unnest(_locked) as k (key);
  end if;
  if _wanted > 0 then -- the claim that wants more can have these next
    admitted = admitted + _put_off;
  end if;
end
$func$;

-- To be called after a claim from a queue with rates, or where groups take turns: adds the claims of events of these groups, one key for each in their order, made at _at, to what the groups have used, and admits the
-- next ones. Returns how many; for _wanted and what is behind it see admit_paced_events.
create or replace function agent_private.note_claims(_queue text, _keys text[], _at timestamptz, _wanted int4 default 0, _types text[] default null, _exclude_ids int8[] default null)
returns int8
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
declare
  _claims int4[];
  _places int4[];
  _locked text[];
  _admitted int8 = 0;
begin
  select array_agg(k.key order by k.key), array_agg(k.n order by k.key), array_agg(k.place order by k.key) into _keys, _claims, _places
  from (select k.key, count(*)::int4 as n, max(k.place)::int4 as place from unnest(_keys) with ordinality as k (key, place) group by k.key) as k;
  _locked = agent_private.lock_groups(_queue, _keys);
  if cardinality(_locked) < cardinality(_keys) then
    insert into agent_private.group_claim (queue, key, at, claims)
    select _queue, k.key, _at, k.n from unnest(_keys, _claims) as k (key, n) where k.key <> all (_locked);
    insert into agent_private.group_wake (queue, key)
    select _queue, k.key from unnest(_keys) as k (key) where k.key <> all (_locked);
    select array_agg(k.key), array_agg(k.n), array_agg(k.place) into _keys, _claims, _places from unnest(_keys, _claims, _places) as k (key, n, place) where k.key = any (_locked);
  end if;
  if _keys is not null then
    _admitted = (select a.admitted from agent_private.admit_paced_events(_queue, _keys, _claims, _at, _places, _wanted, _types, _exclude_ids) a);
    if _admitted > 0 then
      perform agent.notify_queues(array[_queue]); -- who waits has to know when the next ones can be claimed
    end if;
  end if;
  return _admitted;
end
$func$;

-- Records that the claims of these leased events, which the caller has locked, are undone: so they do not count against the rates of their groups. To be called before they are. What was admitted
-- ahead, for later times, has to be admitted again, as what is released comes before it.
create or replace function agent_private.note_releases(_ids int8[])
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
set jit to off
as $func$
begin
  with released as
  ( insert into agent_private.group_claim (queue, key, at, claims)
    select e.queue, e.group_key, e.claimed[cardinality(e.claimed)], -1
    from agent.event e
    join agent.queue q on q.name = e.queue and q.flow_paced
    where e.id = any (_ids) and e.group_key is not null and e.flow in (-1, 2)
    returning queue, key
  )
  , ahead as
  ( update agent.event e
    set flow_version = null
    where e.ctid = any (array
    ( select o.place
      from (select distinct r.queue, r.key from released r) as r
      cross join lateral
      ( select e.ctid from agent.event e
        where e.queue = r.queue and e.group_key = r.key and e.flow between 0 and 1 and e.vt > clock_timestamp() and e.flow_version is not null
        for update skip locked
      ) as o (place)
    ))
    returning e.queue, e.group_key
  )
  insert into agent_private.group_wake (queue, key, event_id) select distinct a.queue, a.group_key, 0 from ahead a; -- 0: see withdraw_turns
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
  if _flow <> 3 or _priority <> 0 then
    _first = null;
    select e.flow, e.priority, e.id into _flow, _priority, _id
    from agent.event e
    where e.queue = _queue and e.group_key = _key and (e.flow, e.priority) >= (3::int2, 0)
    order by e.flow, e.priority, e.id
    limit 1;
    if _flow = 3 and _priority = 0 then
      _first = _id;
    end if;
  end if;
  select e.id into _id -- of all others, by the index event_group_id
  from agent.event e
  where e.queue = _queue and e.group_key = _key and (e.flow = 4 or e.flow = 3 and e.priority <> 0)
  order by e.id + 0
  limit 1;
  return least(_first, _id);
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
    where e.id = any (_ids) and e.group_key <> '' and (_outcome = 'failed' or e.attempts > 0)
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

-- Has the most urgent event that waits in each of these groups, which the caller has locked, take the place of the one that is admitted ahead, where that is less urgent, or came later: priorities, and what is given
-- back, count within a group.
create or replace function agent_private.trade_places(_queue text, _locked text[])
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
  _heads int8[];
  _firsts int8[];
begin
  select array_agg(h.id), array_agg(f.id) into _heads, _firsts
  from unnest(_locked) as k (key)
  cross join lateral
  ( select e.id, e.priority
    from agent.event e
    where e.queue = _queue and e.group_key = k.key and e.flow = 0
    order by e.priority desc, e.id desc
    limit 1
    for update skip locked
  ) as h
  cross join lateral
  ( select e.id, e.priority
    from agent.event e
    where e.queue = _queue and e.group_key = k.key and e.flow = 3
    order by e.priority, e.id
    limit 1
    for update skip locked
  ) as f
  where (f.priority, f.id) < (h.priority, h.id);
  if _heads is null then
    return;
  end if;
  update agent.event e
  set flow = 0, flow_version = o.flow_version, vt = o.vt, turn_vt = null, admitted_at = _now
  from unnest(_heads, _firsts) as t (head, first)
  join agent.event o on o.id = t.head
  where e.id = any (_firsts) and e.id = t.first;
  update agent.event e set flow = 3, flow_version = null, turn_vt = e.vt, vt = agent_private.no_turn(), admitted_at = null where e.id = any (_heads);
end
$func$;
