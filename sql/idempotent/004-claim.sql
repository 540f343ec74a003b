-- Claiming: attempts + 1, now appended to claimed, vt moved ahead by _invisible_for.
--
-- A claim's plan must not hang on statistics, which a young or fast-changing table lacks: the planner's ways round the
-- index are shut for these functions, rows are locked in index order and then updated by their place (ctid).

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
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
set enable_sort to off
set enable_nestloop to off
as $func$
declare
  _now timestamptz = clock_timestamp();
  _from record;
  _rows tid[];
  _ids int8[];
  _more_rows tid[];
  _more_ids int8[];
begin
  perform agent.refuse('limit', 'must be at least 1') where coalesce(_limit, 0) < 1;
  perform agent.refuse('max_attempts', 'must be at least 1') where coalesce(_max_attempts, 0) < 1;
  perform agent.refuse('invisible_for', 'must be more than nothing') where not coalesce(_invisible_for > interval '0', false);
  perform agent.refuse('order', 'must be fifo or random') where coalesce(_order, '') not in ('fifo', 'random');

  if _order = 'fifo' then
    select array_agg(c.at), array_agg(c.id) into _rows, _ids
    from
    ( select e.ctid, e.id
      from agent.event e
      where e.queue = _queue and e.vt <= _now and e.attempts < _max_attempts
      order by e.vt, e.id
      limit _limit
      for update skip locked
    ) as c (at, id);
  else
    select s.vt, s.id into _from from agent.random_start(_queue, _now) s;

    select array_agg(c.at), array_agg(c.id) into _rows, _ids
    from
    ( select e.ctid, e.id
      from agent.event e
      where e.queue = _queue and e.vt <= _now and e.attempts < _max_attempts
      and (e.vt, e.id) >= (_from.vt, _from.id)
      order by e.vt, e.id
      limit _limit
      for update skip locked
    ) as c (at, id);

    if coalesce(cardinality(_ids), 0) < _limit then -- round to the front, up to where it began
      select array_agg(c.at), array_agg(c.id) into _more_rows, _more_ids
      from
      ( select e.ctid, e.id
        from agent.event e
        where e.queue = _queue and e.vt <= _now and e.attempts < _max_attempts
        and (e.vt, e.id) < (_from.vt, _from.id)
        order by e.vt, e.id
        limit _limit - coalesce(cardinality(_ids), 0)
        for update skip locked
      ) as c (at, id);
      _rows = _rows || _more_rows;
      _ids = _ids || _more_ids;
    end if;
  end if;

  if _ids is null then
    return;
  end if;

  return query
  with claimed as
  ( update agent.event e
    set attempts = e.attempts + 1
      , claimed = e.claimed || _now
      , vt = _now + _invisible_for
      , nacked_at = null
    where e.ctid = any(_rows)
    returning e.*
  )
  select c.*
  from claimed c
  join unnest(_ids) with ordinality as o (id, ord) on o.id = c.id
  order by o.ord;
end
$func$;

-- A random place among the claimable events of _queue, found with a handful of index look-ups at any depth: a random
-- vt between the first and the last, and, as a batch shares one vt, a random id among those that share it.
-- Events in sparse times are picked more often than those in dense ones; it spreads workers out, it is no fair draw.
create or replace function agent.random_start(_queue text, _now timestamptz)
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
  select e.vt into _first from agent.event e where e.queue = _queue and e.vt <= _now order by e.vt, e.id limit 1;
  select e.vt into _last from agent.event e where e.queue = _queue and e.vt <= _now order by e.vt desc, e.id desc limit 1;
  _vt = _first + random() * (_last - _first);
  select e.vt, e.id into _vt, _low from agent.event e where e.queue = _queue and e.vt >= _vt order by e.vt, e.id limit 1;
  select e.id into _high from agent.event e where e.queue = _queue and e.vt = _vt order by e.vt desc, e.id desc limit 1;
  return query select _vt, _low + floor(random() * (_high - _low + 1))::int8;
end
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
  select e from agent.claim_events(_queue, 1, _max_attempts, _invisible_for, 'random') e
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

-- Undoes claims that never reached their client: claimable again at once, and not counted. Each event needs the
-- receipt of its latest claim; those whose lease was lost or given back are passed over. Returns the queues that got something back.
create or replace function agent.release_events(_ids int8[], _receipts text[])
returns table (id int8, queue text)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
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
  returning id, queue;
end
$func$;
