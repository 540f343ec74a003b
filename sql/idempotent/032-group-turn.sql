-- Claims from queues with limits, and inserts into their groups: where events get their turns, and which would with the next claim. See the rules in the script of groups.

-- How many more events of a queue may be leased by its limit, _total. To be called with the lock of the row of the policy, which an earlier statement has taken.
create or replace function agent_private.free_of_total(_queue text, _total int4)
returns int4
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
as $func$
declare
  _now timestamptz = clock_timestamp();
  _leased int8;
begin
  select count(*) into strict _leased
  from (select from agent.event e where e.in_total and e.queue = _queue and e.vt > _now and e.attempts > 0 and e.nacked_at is null limit _total) as e;
  return greatest(_total - _leased, 0);
end
$func$;

-- To be called before a claim from a queue with limits: looks at the groups that have due wakes, and returns how many of _limit events may be claimed by the limit of the queue, _total
-- (null: none). With that, claims of the queue come one after the other. The last arguments are those of the claim.
create or replace function agent_private.begin_limited_claim
(_queue text, _is_grouped boolean, _total int4, _limit int4, _lanes int4[], _watermarks timestamptz[], _ends_at int4)
returns int4
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
as $func$
begin
  if _total is not null then
    perform from agent.queue q where q.name = _queue for no key update;
    _total = (select q.flow_total from agent.queue q where q.name = _queue); -- in a later statement, as is the count
    _limit = least(_limit, agent_private.free_of_total(_queue, _total));
    if _limit = 0 then
      return 0;
    end if;
  end if;
  -- Leases that have ended where claims count, what was written by hand, and what was inserted by limits that others have changed meanwhile: claims that are not short would not look for them.
  if _is_grouped and random() < 0.05 then
    perform agent_private.wake_stale_groups -- those are behind the watermarks that claims have passed over
    (_queue, _lanes, case when random() < 0.95 then _watermarks end, interval '1 hour', _ends_at, _limit);
  end if;
  if _is_grouped
    and ( exists (select from agent_private.group_wake w where w.queue = _queue and w.at <= clock_timestamp())
      or exists (select from agent_private.group_wake w where w.queue = _queue and w.hold_until is not null)
    )
  then
    if exists (select from agent_private.group_wake w where w.queue = _queue and w.key = '' and w.after_key is not null) then -- those that the claim would pass over go before others
      perform agent_private.wake_stale_groups(_queue, _lanes, _watermarks, interval '1 hour', _ends_at, _limit);
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
(_queue text, _limit int4, _lanes int4[], _watermarks timestamptz[], _types text[], _exclude_ids int8[], _ends_at int4)
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
  _has_ended boolean = agent_private.wake_stale_groups(_queue, _lanes, _watermarks, interval '0', _ends_at);
  _now timestamptz;
  _traded int8 = 0;
begin
  _now = clock_timestamp();
  if cardinality(_types) > 0 or cardinality(_exclude_ids) > 0 then
    _traded = agent_private.trade_turns(_queue, _limit, _types, _exclude_ids);
  end if;
  return exists (select from agent_private.group_wake w where w.queue = _queue and w.at <= _now) and agent_private.look_at_woken(_queue, greatest(_limit, 100)) > 0
    or _traded > 0 or _has_ended;
end
$func$;

-- Leaves wakes, which are due since _since, for groups with events that can be claimed by their vt, and that other limits than those in force have admitted, or none: of the first ones in each
-- lane from its watermark on. Where it meets admitted events that nobody can claim any more, it has them end, see end_over, and returns
-- true. Without _lanes, of all lanes. With the _limit of a claim it looks no further than at those that the claim might pass over.
create or replace function agent_private.wake_stale_groups
(_queue text, _lanes int4[], _watermarks timestamptz[], _since interval, _ends_at int4, _limit int4 default null)
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
  _now timestamptz = clock_timestamp();
  _version int8;
  _is_paced boolean;
  _is_fair boolean;
  _policy_max_attempts int4;
  _keys text[];
  _is_over boolean;
begin
  select q.flow_version, q.flow_paced, q.flow_fair, q.max_attempts
  into _version, _is_paced, _is_fair, _policy_max_attempts
  from agent.queue q
  where q.name = _queue;
  if _lanes is null then
    _lanes = array(select l.priority from agent_private.list_lanes(_queue) l);
  end if;
  select array_agg(distinct e.key) filter (where e.is_stale), bool_or(e.is_over)
  into _keys, _is_over
  from unnest(_lanes, _watermarks) as l (priority, watermark)
  cross join lateral
  ( select e.*
    from
    ( select coalesce(e.group_key, '') as key
      , case
          when e.group_key is null then _is_fair
          else e.flow <= 2 and (e.flow_version is distinct from _version or _is_paced and e.flow in (-1, 2))
        end as is_stale
      , e.flow <= 2 and (e.attempts >= coalesce(e.max_attempts, _policy_max_attempts, _ends_at) or coalesce(e.expires_at <= _now, false)) as is_over
      from
      ( select e.*
        from agent.event e
        where e.queue = _queue and e.priority = l.priority and e.vt >= coalesce(l.watermark, '-infinity') and e.vt <= _now
        order by e.vt, e.id
        limit case when _limit is not null then greatest(_limit, 100) + 100 end
      ) as e
    ) as e
    where e.is_stale or e.is_over
    limit 100
  ) as e;
  if _keys is not null then
    insert into agent_private.group_wake (queue, key, at, event_id) select _queue, k.key, _now - _since, 0 from unnest(_keys) as k (key);
  end if;
  return coalesce(_is_over, false) and agent_private.end_over(_queue, _ends_at);
end
$func$;

-- Has up to a hundred events of a queue end as a sweep does, as their attempts are used up (_max_attempts, unless they or the policy have
-- another limit), or they have expired. Returns whether any has. Planned under the settings of a sweep, not those of the claim.
create or replace function agent_private.end_over(_queue text, _max_attempts int4)
returns boolean
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set enable_sort to on
set enable_hashjoin to on
set enable_mergejoin to on
as $func$
begin
  return exists (select from agent_service.sweep_events(_max_attempts, null, _queue, 100));
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
  _is_fair boolean;
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
  select q.flow_version, q.flow_order, q.flow_paced, q.flow_fair into _version, _order, _is_paced, _is_fair from agent.queue q where q.name = _queue;
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
    ( select distinct e.group_key from agent.event e where e.id = any (_exclude_ids) and e.queue = _queue and e.flow between 0 and 1
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
      where e.queue = _queue and e.group_key = k.key and e.flow between 0 and 1 and e.vt <= _now and (e.attempts = 0 or e.nacked_at is not null)
      and (cardinality(_types) > 0 and coalesce(e.type <> all (_types), true) or e.id = any (_exclude_ids))
    )
    limit _limit
  )) loop
    exit when _traded >= _limit;
    _unwanted = array
    ( select e.id from agent.event e
      where e.queue = _queue and e.group_key = _key and e.flow between 0 and 1 and e.flow_version = _version and e.vt <= _now and (e.attempts = 0 or e.nacked_at is not null)
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
    set flow = case when _is_fair then 0 else 1 end, flow_version = _version, vt = case when _is_fair then _turn else greatest(least(e.turn_vt, _now), _turn) end, turn_vt = null, admitted_at = _now
    where e.id = any (_wanted);
    _traded = _traded + cardinality(_wanted);
  end loop;
  return _traded;
end
$func$;

-- Up to _max_groups groups of a queue that have due wakes, of which it looks at ten times as many, those first that are due for longest. In no other do events wait that could have their turns.
create or replace function agent_private.woken_groups(_queue text, _now timestamptz, _max_groups int4)
returns text[]
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
as $func$
declare
  _keys text[] = array
  ( select w.key
    from (select w.key from agent_private.group_wake w where w.queue = _queue and w.at <= _now and w.after_key is null order by w.at limit 10 * _max_groups) as w
    group by w.key
    limit _max_groups
  );
  _after text;
begin
  select min(w.after_key) into _after from agent_private.group_wake w where w.queue = _queue and w.key = '' and w.at <= _now and w.after_key is not null;
  if _after = '' and '' <> all (_keys) then
    _keys = _keys || _after;
  end if;
  while _after is not null and cardinality(_keys) < _max_groups loop -- see wake_all_groups
    select min(e.group_key) into _after from agent.event e where e.queue = _queue and e.group_key > _after;
    if _after <> all (_keys) then
      _keys = _keys || _after;
    end if;
  end loop;
  return _keys;
end
$func$;

-- The events in these groups of a queue that the next claim gives their turns, as nobody has looked at the groups since: an event came due or was added, or a slot became free. They are ready: of each group as many as
-- it has free slots and its rate allows, the first ones of its line, up to a thousand. state is that of the row, waiting or scheduled, and since is from when on the event could have been claimed. Nothing is
-- locked or changed. Of those that have come due, a thousand of a group are looked at, and the one _id. For what admits them, see admit_events, admit_paced_events and withdraw_turns.
create or replace function agent_private.next_turns(_queue text, _keys text[], _now timestamptz, _id int8 default null)
returns table (id int8, since timestamptz, state text)
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
  _max int4 = 1000;
  _policy agent.queue;
begin
  select q.* into _policy from agent.queue q where q.name = _queue and q.flow_version is not null;
  if not found or _keys = '{}' then
    return;
  end if;
  return query
  with looked as materialized
  ( select k.key, k.key <> '' and _policy.flow_order as is_ordered, m.most, r.step, r.burst, g.tat, g.last_claim
    , ( select count(*)
        from
        ( select from agent.event e
          where e.queue = _queue and e.group_key = k.key and e.flow <= 2 and not agent_private.is_put_off_anew(e, _policy.flow_version, _now)
          limit coalesce(m.most, 0)
        ) as e
      ) as taken
    , ( select count(*)
        from
        ( select from agent.event e
          where e.queue = _queue and e.group_key = k.key and e.flow between 0 and 1 and not agent_private.is_put_off_anew(e, _policy.flow_version, _now)
          limit case when _policy.flow_paced then coalesce(r.burst, 1) else 0 end
        ) as e
      ) as unclaimed
    from unnest(_keys) as k (key)
    left join lateral (select g.* from agent.queue_group g where g.queue = _queue and g.key = k.key limit 1) as g on true
    cross join lateral
    ( select case when k.key = '' then null when _policy.flow_order then 1 else coalesce(g.concurrency, _policy.flow_concurrency) end
    ) as m (most)
    cross join lateral
    ( select case when k.key = '' then null when g.rate_limit is null then _policy.flow_rate_period / _policy.flow_rate_limit else g.rate_period / g.rate_limit end
      , case when k.key = '' then null when g.rate_limit is null then _policy.flow_rate_burst else g.rate_burst end
      where _policy.flow_paced
      union all
      select null, null where not _policy.flow_paced
    ) as r (step, burst)
    where not coalesce(g.paused, false) and coalesce(g.held_until <= _now, true)
    and (select true from agent_private.group_wake w where w.queue = _queue and w.key = k.key and w.hold_until > _now limit 1) is null
  )
  , room as materialized
  ( select l.key, l.is_ordered, l.step, l.burst, l.unclaimed
    , least(l.most - l.taken, l.burst - l.unclaimed, case when _policy.flow_fair then 1 - l.unclaimed end, _max) as free
    , case when l.burst is not null then least
      ( greatest(coalesce(l.tat, '-infinity') + coalesce(c.claims, 0) * l.step, c.latest + c.claims * l.step)
      , greatest(l.last_claim, c.latest, w.first) + l.burst * l.step -- as another rate holds from its wake on
      ) end as tat
    from looked l
    cross join lateral -- not in tat yet; what was released meanwhile is left out
    ( select sum(c.claims), max(c.at) from agent_private.group_claim c where c.queue = _queue and c.key = l.key and c.claims > 0
    ) as c (claims, latest)
    cross join lateral
    ( select coalesce(min(w.at), _now) from agent_private.group_wake w where w.queue = _queue and w.key = any (array['', l.key]) and w.at <= _now and l.burst is not null
    ) as w (first)
  )
  , line as
  ( select r.key, f.id, f.since, f.state, row_number() over (partition by r.key order by f.priority, f.id) as n
    from room r
    cross join lateral
    ( select f.id, f.priority, f.since, f.state
      from
      ( ( select e.id, e.priority, e.turn_vt as since, 'waiting' as state
          from agent.event e
          where not r.is_ordered and e.queue = _queue and e.group_key = r.key and e.flow = 3
          order by e.priority, e.id
          limit r.free
        )
        union all
        select e.id, e.priority, e.turn_vt, 'waiting'
        from
        ( ( select w.event_id from agent_private.group_wake w
            where w.queue = _queue and w.key = r.key and w.at <= _now and w.event_id > 0
            order by w.at
            limit _max
          )
          union
          select _id
        ) as w (id)
        cross join lateral (select e.* from agent.event e where e.id = w.id limit 1) as e
        where not r.is_ordered and e.queue = _queue and e.group_key = r.key and e.flow = 4 and e.turn_vt <= _now
        union all
        select e.id, e.priority, greatest(e.admitted_at, e.due_at), 'scheduled'
        from
        ( select e.* from agent.event e
          where e.queue = _queue and e.group_key = r.key and e.flow between 0 and 1 and agent_private.is_put_off_anew(e, _policy.flow_version, _now)
          limit _max
        ) as e
        where agent_private.is_put_off(e.flow, e.vt, e.admitted_at, e.nacked_at) and coalesce(e.due_at <= _now, true)
        union all
        select e.id, e.priority, e.turn_vt, 'waiting'
        from (values (case when r.is_ordered then agent_private.first_in_order(_queue, r.key, _policy.flow_on_failed = 'block') end)) as o (id)
        join agent.event e on e.id = o.id and (e.flow = 3 or e.flow = 4 and e.turn_vt <= _now)
      ) as f
      order by f.priority, f.id
      limit r.free
    ) as f
    where r.free > 0
  )
  select l.id, greatest(least(l.since, _now), t.turn), l.state
  from line l
  join room r on r.key = l.key
  cross join lateral (values (r.tat + (r.unclaimed + l.n - r.burst) * r.step)) as t (turn)
  where coalesce(t.turn <= _now, true);
end
$func$;

-- Whether an event has a turn for a later time by other limits than those in force, of _version: the next look at its group takes it back, see withdraw_turns. Inlined, like agent.receipt.
create or replace function agent_private.is_put_off_anew(_event agent.event, _version int8, _now timestamptz)
returns boolean
language sql immutable parallel safe
return _event.flow between 0 and 1 and _event.flow_version is distinct from _version and _event.vt > _now and (_event.attempts = 0 or _event.nacked_at is not null);

-- Whether an event is one of next_turns.
create or replace function agent_private.has_next_turn(_event agent.event, _now timestamptz)
returns boolean
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  if _event.flow between 3 and 4 or _event.flow between 0 and 1 and _event.vt > _now and (_event.attempts = 0 or _event.nacked_at is not null) then
    return _event.id in (select t.id from agent_private.next_turns(_event.queue, array[_event.group_key], _now, _event.id) t);
  end if;
  return false;
end
$func$;

-- The ids of next_turns in these queues (null: all), or of one _group (null: all) of them. It looks at no more groups than count_next_turns.
create or replace function agent_private.next_turns_of(_names text[], _group text, _now timestamptz)
returns int8[]
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  return array
  ( select t.id
    from agent_private.woken_queues(_names, _now) as w
    cross join lateral agent_private.next_turns(w.queue, case when _group is null then agent_private.woken_groups(w.queue, _now, w.max_groups) else array[_group] end, _now) as t
  );
end
$func$;

-- The queues, of these (null: all), that have due wakes, and at how many groups of each to look: at about 10,000 in all, and at a thousand of a queue.
create or replace function agent_private.woken_queues(_names text[], _now timestamptz)
returns table (queue text, max_groups int4)
language sql stable
set search_path to pg_catalog, pg_temp
as $func$
  select q.name, greatest(20, least(1000, 10000 / count(*) over ()))::int4
  from agent.queue q
  where q.flow_version is not null and (_names is null or q.name = any (_names))
  and exists (select from agent_private.group_wake w where w.queue = q.name and w.at <= _now)
$func$;

-- By queue, of these (null: all), how many events are those of next_turns, by the states of their rows, and since when the first of them could have been claimed: no row of a queue that has none. is_whole is
-- false where more groups have due wakes than were looked at, see woken_queues.
create or replace function agent_private.count_next_turns(_names text[], _now timestamptz)
returns table (queue text, waiting int8, scheduled int8, since timestamptz, is_whole boolean)
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  return query
  select w.queue, count(*) filter (where t.state = 'waiting'), count(*) filter (where t.state = 'scheduled'), min(t.since)
  , cardinality(k.keys) < w.max_groups and (select count(*) from (select from agent_private.group_wake o where o.queue = w.queue and o.at <= _now limit 10 * w.max_groups) as o) < 10 * w.max_groups
  from agent_private.woken_queues(_names, _now) as w
  cross join lateral (select agent_private.woken_groups(w.queue, _now, w.max_groups)) as k (keys)
  cross join lateral agent_private.next_turns(w.queue, k.keys, _now) as t
  group by w.queue, w.max_groups, k.keys;
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
  _now timestamptz;
  _groups text[] = array(select n.option ->> 'group' from unnest(_events, _options) with ordinality as n (event, option, ord) order by n.ord);
  _flows int2[];
  _versions int8[];
begin
  select a.flows, a.versions into strict _flows, _versions from agent_private.admit_new_events(_queues, _groups, _delays, _vts, _options) a;
  _now = clock_timestamp();
  return query
  insert into agent.event overriding user value -- the ids are the sequence's
  select e.*
  from unnest(_events, _queues, _delays, _vts, _leases, _workers, _options, _hashes, _groups, _flows, _versions) with ordinality
    as n (event, queue, delay, vt, lease, worker, option, hash, group_key, flow, version, ord)
  cross join lateral agent_private.requested_event
  ( null, _now, n.event, n.option, n.queue, n.delay, n.vt, case when n.flow = 1 or n.group_key is null then n.lease end, n.worker, n.hash
  , _group => n.group_key, _flow => n.flow, _flow_version => n.version
  ) as e
  order by n.ord
  returning id, queue, coalesce(turn_vt, vt), enqueued_at, event_ts, case when attempts > 0 then event end, claimed, false, case when attempts > 0 then meta end;
  perform agent_private.admit_inserted_events(_queues, _groups, _flows);
end
$func$;

-- What the events of these groups are as they are inserted, in their order: flow is 1 for those that are admitted, with the version of the limits, or none where groups need no turn; 3 for those
-- that wait in a group which is locked from now on: admit_inserted_events is to be called for them; null for those without a group, and those that leave a wake, see enter_group.
create or replace function agent_private.admit_new_events
( _queues text[]
, _groups text[]
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
  _is_limited boolean[]; -- needs a turn
  _ordered text[]; -- the queues in which groups are in order
begin
  _is_limited = array
  ( select n.key is not null and q.name is not null
    from unnest(_groups, _queues) with ordinality as n (key, queue, ord)
    left join agent.queue q on q.name = coalesce(n.queue, 'default') and q.flow_version is not null
    order by n.ord
  );
  if true <> all (_is_limited) then
    flows = array(select case when n.key is not null then 1 end::int2 from unnest(_groups) with ordinality as n (key, ord) order by n.ord);
    return;
  end if;
  for _queue, _of in
    select coalesce(n.queue, 'default'), array_agg(distinct n.key)
    from unnest(_queues, _groups, _is_limited) as n (queue, key, is_limited)
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
          when q.flow_on_failed = 'block' and (select true from agent_private.group_block b where b.queue = l.queue and b.key = l.key and b.requeued_as is null limit 1) then -1 -- stopped, also if another policy ends that before this is committed: a wake sees to it
          when q.flow_paced then 0
          else 1
        end
        when q.flow_paced then 0 -- admit_inserted_events sees to these
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
    from unnest(_queues, _groups, _is_limited, _delays, _vts, _options) with ordinality as n (queue, key, is_limited, delay, vt, option, ord)
  )
  select array_agg(case when n.key is not null and not n.is_limited then 1 when n.is_delayed or r.key is null or r.free < 0 then null when n.nth <= r.free then 1 else 3 end::int2 order by n.ord)
  , array_agg(case when not n.is_delayed and n.is_limited and n.nth <= r.free then r.flow_version end order by n.ord)
  into flows, versions
  from new n
  left join room r on r.queue = n.queue and r.key = n.key;
end
$func$;

-- To be called after events have been inserted as admit_new_events says: those that are claimed by a rate, or in turns, have their turns then.
create or replace function agent_private.admit_inserted_events(_queues text[], _groups text[], _flows int2[])
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  if 3 = any (_flows) and exists (select from agent.queue q where q.flow_paced) then
    perform agent_private.admit_paced_events(q.name, array_agg(distinct n.key))
    from unnest(_queues, _groups, _flows) as n (queue, key, flow)
    join agent.queue q on q.name = coalesce(n.queue, 'default') and q.flow_paced
    where n.flow = 3
    group by q.name;
  end if;
end
$func$;
