-- Claiming: attempts + 1, now appended to claimed, vt moved ahead by _invisible_for.
--
-- A claim's plan must not hang on statistics, which a young or fast-changing table lacks: the planner's ways round the
-- index are shut for these functions, rows are locked in index order and then updated by their place (ctid).
--
-- A lane is what shares a queue and a priority, or a queue, a type and a priority: one range of an index, in the order of its events.
-- Claims go from lane to lane, so that none walks over the events of another.

-- What every claim does. It returns the columns of agent.event, and the vt that each event had before; not its row type, out of which
-- each column would have to be taken by itself. Null _max_attempts is 3, unless an event or its queue's policy has its
-- own, which count in any case; null _invisible_for is the policy's, or 10 minutes. _types null, or empty, stands for all. The n-th event
-- taken goes to the n-th of _workers.
--
-- _lanes are the only ones to be looked at (a priority, in ascending order; where _types are asked for, of one type each), which spares looking for
-- them, and _marks their low-water marks, or null: what has a vt before it is not looked at either. While some session holds an old snapshot, what was
-- claimed since it began stays in the index, and each scan that begins in front of that has to walk over it.
create or replace function agent.claim_from_watermarks
( _queue text
, _limit int4
, _max_attempts int4
, _invisible_for interval
, _order text
, _types text[] default null
, _exclude_ids int8[] default null
, _workers text[] default null
, _lanes int4[] default null
, _lane_types text[] default null
, _marks timestamptz[] default null
)
returns table
( id int8, event_ts timestamptz, attempts int4, vt timestamptz, claimed timestamptz[], event jsonb, queue text, enqueued_at timestamptz
, nacked_at timestamptz, last_error text, requeued_from int8
, type text, source text, priority int4, key text, max_attempts int4, expires_at timestamptz, worker text, past_attempts jsonb, occurrence jsonb
, prior_vt timestamptz
)
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
  _paused boolean; -- what the queue's policy says
  _own_max int4;
  _own_time interval;
  _lane int4;
  _after int8 = -2147483649; -- the lane before the first
  _nth int4 = 0;
  _bottom timestamptz = '-infinity';
  _low_vt timestamptz;
  _low_id int8;
  _high_vt timestamptz;
  _slot int4 = 0;
  _taken int4;
begin
  if coalesce(_limit, 0) < 1 then
    perform agent_private.raise_invalid('limit', 'must be at least 1');
  elsif _max_attempts < 1 then
    perform agent_private.raise_invalid('max_attempts', 'must be at least 1');
  elsif not coalesce(_invisible_for > interval '0', true) then
    perform agent_private.raise_invalid('invisible_for', 'must be more than nothing');
  elsif coalesce(_order, '') not in ('fifo', 'random') then
    perform agent_private.raise_invalid('order', 'must be fifo or random');
  end if;
  if _lanes is null and coalesce(cardinality(_types), 0) = 0 then -- the first lane with the policy: each statement has its price
    select q.paused, q.max_attempts, q.invisible_for, l.priority
    into _paused, _own_max, _own_time, _lane
    from (values (_queue)) as a (queue)
    left join agent.queue q on q.name = a.queue
    left join lateral (select e.priority from agent.event e where e.queue = a.queue order by e.priority limit 1) as l on true;
  else
    select q.paused, q.max_attempts, q.invisible_for into _paused, _own_max, _own_time from agent.queue q where q.name = _queue;
  end if;
  if _paused then
    return;
  end if;
  _max_attempts = coalesce(_own_max, _max_attempts, 3);
  _invisible_for = coalesce(_invisible_for, agent_private.bounded_lease(_own_time), interval '10 minutes');
  if cardinality(_types) > 0 then
    return query
    select t.*
    from agent_private.claim_events_of_types(_queue, _limit, _max_attempts, _invisible_for, _order, _types, _exclude_ids, _workers, _lanes, _lane_types, _marks) t;
    return;
  end if;

  loop -- from lane to lane
    if _lanes is not null then
      _nth = _nth + 1;
      _lane = _lanes[_nth];
      _bottom = coalesce(_marks[_nth], '-infinity');
    elsif _after >= -2147483648 then
      select e.priority into _lane from agent.event e where e.queue = _queue and e.priority > _after order by e.priority limit 1;
    end if;
    exit when _lane is null;

    _after = _lane;
    _low_vt = _bottom;
    _low_id = 0;
    _high_vt = _now;
    if _order = 'random' then
      select s.vt, s.id into _low_vt, _low_id from agent_private.random_start(_queue, _lane, _bottom, _now) s;
      continue when not found;
    end if;

    loop
      return query
      update agent.event e
      set attempts = e.attempts + 1
        , claimed = agent_private.append_claim(e.claimed, _now)
        , vt = agent_private.add_utc(_now, _invisible_for)
        , nacked_at = null
        , worker = _workers[_slot + chosen.n]
        , past_attempts = case when e.attempts = 0 or e.nacked_at is not null then e.past_attempts
            else agent_private.append_attempt(e.past_attempts, e.attempts, e.worker, e.vt, 'lease_ended') end
      from
      ( select l.place, l.vt, row_number() over ()
        from
        ( select e.ctid, e.vt
          from agent.event e
          where e.queue = _queue and e.priority = _lane and e.vt <= _high_vt and (e.vt, e.id) >= (_low_vt, _low_id)
          and e.attempts < coalesce(e.max_attempts, _max_attempts)
          and (e.expires_at is null or e.expires_at > _now)
          and (_exclude_ids is null or e.id <> all (_exclude_ids))
          order by e.vt, e.id
          limit _limit
          for update skip locked
        ) as l (place, vt)
      ) as chosen (place, vt, n)
      where e.ctid = chosen.place
      returning e.*, chosen.vt;

      get diagnostics _taken = row_count;
      _limit = _limit - _taken;
      _slot = _slot + _taken;
      exit when _limit = 0 or (_low_vt, _low_id) <= (_bottom, 0);
      _high_vt = _low_vt; -- round to the front, up to where it began
      _low_vt = _bottom;
      _low_id = 0;
    end loop;
    exit when _limit = 0;
  end loop;
end
$func$;

-- A random place among the claimable events of a lane with a vt from _from on; no row when there are none. It is found
-- with a handful of index look-ups at any depth: a random vt between the first and the last, and, as a batch shares one
-- vt, a random id among those that share it.
-- Events in sparse times are picked more often than those in dense ones; it spreads workers out, it is no fair draw.
create or replace function agent_private.random_start(_queue text, _lane int4, _from timestamptz, _now timestamptz)
returns table (vt timestamptz, id int8)
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set timezone to 'UTC' -- days of 24 hours: the place must not lie beyond the last one
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
set enable_sort to off
as $func$
#variable_conflict use_column
declare
  _first timestamptz;
  _last timestamptz;
  _vt timestamptz;
  _low int8;
  _high int8;
begin
  select e.vt into _first from agent.event e
  where e.queue = _queue and e.priority = _lane and e.vt >= _from and e.vt <= _now order by e.vt, e.id limit 1;
  if not found then
    return;
  end if;
  select e.vt into _last from agent.event e
  where e.queue = _queue and e.priority = _lane and e.vt >= _from and e.vt <= _now order by e.vt desc, e.id desc limit 1;
  _vt = _first + random() * (_last - _first);
  select e.vt, e.id into _vt, _low from agent.event e
  where e.queue = _queue and e.priority = _lane and e.vt >= _vt and e.vt <= _now order by e.vt, e.id limit 1;
  if not found then -- it was claimed meanwhile
    return query select _first, 0::int8;
    return;
  end if;
  select e.id into _high from agent.event e
  where e.queue = _queue and e.priority = _lane and e.vt = _vt order by e.vt desc, e.id desc limit 1;
  return query select _vt, _low + floor(random() * (coalesce(_high, _low) - _low + 1))::int8;
end
$func$;

-- Claims up to _limit events of _queue that were claimed fewer than _max_attempts times, of the lowest priority number there is and then
-- of the next, within one oldest vt first (_order 'fifo') or neighbours from a random place ('random'): of _types only (null: all), and
-- none of _exclude_ids, for _worker. Events that other sessions are claiming are passed over. A paused queue gives none.
-- What an event or its queue's policy says of max_attempts goes before _max_attempts. Rows come in the order they were taken, as they are
-- after the claim.
create or replace function agent.claim_events
( _queue text default 'default'
, _limit int4 default 1
, _max_attempts int4 default 3
, _invisible_for interval default interval '10 minutes'
, _order text default 'fifo'
, _types text[] default null
, _exclude_ids int8[] default null
, _worker text default null
)
returns setof agent.event
language sql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
  select t.id, t.event_ts, t.attempts, t.vt, t.claimed, t.event, t.queue, t.enqueued_at, t.nacked_at, t.last_error, t.requeued_from
  , t.type, t.source, t.priority, t.key, t.max_attempts, t.expires_at, t.worker, t.past_attempts, t.occurrence
  from agent.claim_from_watermarks
  ( _queue, _limit, _max_attempts, _invisible_for, _order, _types, _exclude_ids
  , case when _worker is not null then array_fill(_worker, array[least(_limit, 100000)]) end
  ) t
$func$;

-- Claims one event at random, so that many SQL workers spread out: one row, or none when nothing is claimable.
-- Its receipt is agent.receipt(e). Like claim_events, it sees what was committed before it began.
create or replace function agent.claim_event
( _max_attempts int4 default 3
, _invisible_for interval default interval '10 minutes'
, _queue text default 'default'
, _types text[] default null
, _worker text default null
)
returns setof agent.event
language sql volatile
security definer
rows 1
set search_path to pg_catalog, pg_temp
as $func$
  select t.id, t.event_ts, t.attempts, t.vt, t.claimed, t.event, t.queue, t.enqueued_at, t.nacked_at, t.last_error, t.requeued_from
  , t.type, t.source, t.priority, t.key, t.max_attempts, t.expires_at, t.worker, t.past_attempts, t.occurrence
  from agent.claim_from_watermarks
  ( _queue, 1, _max_attempts, _invisible_for, 'random', _types
  , _workers => case when _worker is not null then array[_worker] end
  ) t
$func$;
