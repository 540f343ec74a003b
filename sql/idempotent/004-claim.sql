-- Claiming: attempts + 1, now appended to claimed, vt moved ahead by _invisible_for.
--
-- A claim's plan must not hang on statistics, which a young or fast-changing table lacks: the planner's ways round the
-- index are shut for these functions, rows are locked in index order and then updated by their place (ctid).

-- What every claim does. Beside each event comes the vt it had before. _from is a low-water mark: what has a vt before it is not
-- looked at. While some session holds an old snapshot, what was claimed since it began stays in the index, and each
-- scan that begins in front of that has to walk over it.
create or replace function agent.take_events
( _queue text
, _limit int4
, _max_attempts int4
, _invisible_for interval
, _order text
, _from timestamptz default null
)
returns table (event agent.event, prior_vt timestamptz)
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
  _bottom timestamptz = coalesce(_from, '-infinity');
  _low_vt timestamptz = _bottom;
  _low_id int8 = 0;
  _high_vt timestamptz = _now;
  _high_id int8 = 9223372036854775807;
  _taken int4;
begin
  if coalesce(_limit, 0) < 1 then
    perform agent.refuse('limit', 'must be at least 1');
  elsif coalesce(_max_attempts, 0) < 1 then
    perform agent.refuse('max_attempts', 'must be at least 1');
  elsif not coalesce(_invisible_for > interval '0', false) then
    perform agent.refuse('invisible_for', 'must be more than nothing');
  elsif coalesce(_order, '') not in ('fifo', 'random') then
    perform agent.refuse('order', 'must be fifo or random');
  end if;
  if _order = 'random' then
    select s.vt, s.id into _low_vt, _low_id from agent.random_start(_queue, _bottom, _now) s;
    if not found then
      return;
    end if;
  end if;

  loop
    return query
    update agent.event e
    set attempts = e.attempts + 1
      , claimed = e.claimed || _now
      , vt = agent.later(_now, _invisible_for)
      , nacked_at = null
    from
    ( select e.ctid, e.vt
      from agent.event e
      where e.queue = _queue and e.vt <= _now and e.attempts < _max_attempts
      and (e.vt, e.id) >= (_low_vt, _low_id) and (e.vt, e.id) <= (_high_vt, _high_id)
      order by e.vt, e.id
      limit _limit
      for update skip locked
    ) as chosen (place, vt)
    where e.ctid = chosen.place
    returning e, chosen.vt;

    get diagnostics _taken = row_count;
    _limit = _limit - _taken;
    exit when _limit = 0 or (_low_vt, _low_id) <= (_bottom, 0);
    -- Round to the front, up to where it began.
    _high_vt = _low_vt;
    _high_id = _low_id - 1;
    _low_vt = _bottom;
    _low_id = 0;
  end loop;
end
$func$;

-- A random place among the claimable events of _queue with a vt from _from on; no row when there are none. It is found
-- with a handful of index look-ups at any depth: a random vt between the first and the last, and, as a batch shares one
-- vt, a random id among those that share it.
-- Events in sparse times are picked more often than those in dense ones; it spreads workers out, it is no fair draw.
create or replace function agent.random_start(_queue text, _from timestamptz, _now timestamptz)
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
  select e.vt into _first from agent.event e where e.queue = _queue and e.vt >= _from and e.vt <= _now order by e.vt, e.id limit 1;
  if not found then
    return;
  end if;
  select e.vt into _last from agent.event e where e.queue = _queue and e.vt >= _from and e.vt <= _now order by e.vt desc, e.id desc limit 1;
  _vt = _first + random() * (_last - _first);
  select e.vt, e.id into _vt, _low from agent.event e where e.queue = _queue and e.vt >= _vt and e.vt <= _now order by e.vt, e.id limit 1;
  if not found then -- it was claimed meanwhile
    return query select _first, 0::int8;
    return;
  end if;
  select e.id into _high from agent.event e where e.queue = _queue and e.vt = _vt order by e.vt desc, e.id desc limit 1;
  return query select _vt, _low + floor(random() * (coalesce(_high, _low) - _low + 1))::int8;
end
$func$;

-- Claims up to _limit events of _queue that were claimed fewer than _max_attempts times, oldest vt first
-- (_order 'fifo'), or neighbours from a random place of the queue ('random'). Events that other sessions are claiming are passed over.
-- Rows come in the order they were taken, as they are after the claim.
create or replace function agent.claim_events
( _queue text default 'default'
, _limit int4 default 1
, _max_attempts int4 default 3
, _invisible_for interval default interval '10 minutes'
, _order text default 'fifo'
)
returns setof agent.event
language sql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
  select t.event from agent.take_events(_queue, _limit, _max_attempts, _invisible_for, _order) t
$func$;

-- Claims one event at random, so that many SQL workers spread out: one row, or none when nothing is claimable.
-- Its receipt is agent.receipt(e). Like claim_events, it sees what was committed before it began.
create or replace function agent.claim_event
( _max_attempts int4 default 3
, _invisible_for interval default interval '10 minutes'
, _queue text default 'default'
)
returns setof agent.event
language sql volatile
security definer
rows 1
set search_path to pg_catalog, pg_temp
as $func$
  select t.event from agent.take_events(_queue, 1, _max_attempts, _invisible_for, 'random') t
$func$;

-- How long until something of _queue may become claimable that is not so yet, an hour at most: null when nothing will
-- by itself.
create or replace function agent.next_vt(_queue text default 'default')
returns interval
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
set enable_sort to off
as $func$
declare
  _now timestamptz = clock_timestamp();
begin
  return
  ( select least(e.vt - _now, interval '1 hour')
    from agent.event e
    where e.queue = _queue and e.vt > _now
    order by e.vt, e.id
    limit 1
  );
end
$func$;

-- The vt of the oldest event of _queue that could be claimed with _max_attempts although its vt lies before _before: what a low-water
-- mark there hides, null when nothing is hidden; and how long it took to find out.
create or replace function agent.oldest_vt(_queue text, _max_attempts int4, _before timestamptz)
returns table (vt timestamptz, took interval)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
set enable_sort to off
as $func$
#variable_conflict use_column
declare
  _start timestamptz;
  _took interval;
  _vt timestamptz;
begin
  for _try in 1 .. 2 loop
    _start = clock_timestamp();
    select e.vt into _vt
    from agent.event e
    where e.queue = _queue and e.vt < least(_before, _start) and e.attempts < _max_attempts
    order by e.vt, e.id
    limit 1;
    _took = least(_took, clock_timestamp() - _start);
    exit when _took > interval '5 ms'; -- a short one may have been planning, or the first to come by
  end loop;
  return query select _vt, _took;
end
$func$;

-- Undoes claims that never reached their client: claimable again at once, and not counted. Each event needs the
-- receipt of its latest claim; those whose lease was lost or given back are passed over. Returns what went back, and where to.
create or replace function agent.release_events(_ids int8[], _receipts text[])
returns table (id int8, queue text, vt timestamptz)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
as $func$
#variable_conflict use_column
declare
  _mine int8[];
begin
  select array_agg(l.id) into _mine
  from
  ( select e.id, agent.receipt(e)
    from agent.event e
    where e.id = any(_ids) and e.nacked_at is null
    order by e.id
    for update
  ) as l (id, receipt)
  join unnest(_ids, _receipts) as a (id, receipt) on a.id = l.id and a.receipt = l.receipt;

  return query
  update agent.event e
  set attempts = e.attempts - 1
    , vt = e.claimed[cardinality(e.claimed)] -- its old vt is gone; this is the closest past time to it
    , claimed = trim_array(e.claimed, 1)
    , nacked_at = case when e.attempts > 1 then clock_timestamp() end -- the claim before this one is over for good
  where e.id = any(_mine)
  returning id, queue, vt;
end
$func$;
