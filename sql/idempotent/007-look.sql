-- Looking: one event, what waits, and what history holds. Nothing here locks or changes a row.
--
-- All return the same columns: state is null on events in history; outcome, finished_at and requeued_as are null on
-- events in their queue.

-- One event, in its queue or in history; no row when there is none.
create or replace function agent.get_event(_id int8)
returns table
( id int8, queue text, event_ts timestamptz, enqueued_at timestamptz, attempts int4, vt timestamptz, claimed timestamptz[]
, event jsonb, last_error text, requeued_from int8
, state text, outcome text, finished_at timestamptz, requeued_as int8
)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
as $func$
#variable_conflict use_column
begin
  return query
  select e.id, e.queue, e.event_ts, e.enqueued_at, e.attempts, e.vt, e.claimed, e.event, e.last_error, e.requeued_from
  , agent.event_state(e, clock_timestamp()), null::text, null::timestamptz, null::int8
  from agent.event e
  where e.id = _id;
  if found then
    return;
  end if;
  -- A statement of its own: it sees the event if it moved to history since the one above looked.
  return query
  select h.id, h.queue, h.event_ts, h.enqueued_at, h.attempts, h.vt, h.claimed, h.event, h.last_error, h.requeued_from
  , null::text, h.outcome, h.finished_at, h.requeued_as
  from agent.event_hist h
  where h.id = _id
  limit 1;
end
$func$;

-- Up to _limit waiting events by (vt, id), after (_after_vt, _after_id), of _queue (null: all) and in _state (null: any).
create or replace function agent.list_events
( _queue text default null
, _state text default null
, _limit int4 default 100
, _after_vt timestamptz default null
, _after_id int8 default null
)
returns table
( id int8, queue text, event_ts timestamptz, enqueued_at timestamptz, attempts int4, vt timestamptz, claimed timestamptz[]
, event jsonb, last_error text, requeued_from int8
, state text, outcome text, finished_at timestamptz, requeued_as int8
)
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
  -- The state bounds vt, so that only the events beyond that bound are looked at.
  _above timestamptz = case when _state in ('scheduled', 'leased') then _now else '-infinity' end;
  _up_to timestamptz = case when _state = 'ready' then _now else 'infinity' end;
begin
  perform agent.refuse('state', 'must be ready, scheduled or leased') where _state not in ('ready', 'scheduled', 'leased');
  perform agent.refuse('limit', 'must be at least 1') where coalesce(_limit, 0) < 1;

  return query
  select e.id, e.queue, e.event_ts, e.enqueued_at, e.attempts, e.vt, e.claimed, e.event, e.last_error, e.requeued_from
  , agent.event_state(e, _now), null::text, null::timestamptz, null::int8
  from (select w.name from agent.waiting_queues() as w (name) where _queue is null union select _queue where _queue is not null) as q (name)
  cross join lateral
  ( select e.*
    from agent.event e
    where e.queue = q.name
    and e.vt > _above and e.vt <= _up_to
    and (e.vt, e.id) > (coalesce(_after_vt, '-infinity'), coalesce(_after_id, 0))
    and (_state is null or agent.event_state(e, _now) = _state)
    order by e.vt, e.id
    limit _limit
  ) e
  order by e.vt, e.id
  limit _limit;
end
$func$;

-- The conditions on h that these filters of history stand for, as SQL text, each led by "and". Values stand in it as
-- literals, so that the planner leaves out the partitions that cannot matter. Private to the functions of this schema.
create or replace function agent.history_filter(_queue text, _from timestamptz, _to timestamptz, _contains jsonb)
returns text
language sql stable
set search_path to pg_catalog, pg_temp
set datestyle to 'ISO' -- with an offset, where other styles write a zone's ambiguous name
as $func$
  select concat
  ( case when _queue is not null then format(' and h.queue = %L', _queue) end
  , case when _from is not null then format(' and h.event_ts >= %L', _from) end
  , case when _to is not null then format(' and h.event_ts < %L', _to) end
  , case when _contains is not null then format(' and h.event @> %L::jsonb', _contains) end
  )
$func$;

-- Up to _limit events of history, newest event_ts first, before (_before_ts, _before_id). Each filter may be null: the queue, the
-- outcome, event_ts from (inclusive) and to (exclusive), a JSON object the event contains (as @> has it), the id.
-- Per outcome this is one range of an index; only _contains has to read events that it does not return.
create or replace function agent.list_history
( _queue text default null
, _outcome text default null
, _from timestamptz default null
, _to timestamptz default null
, _contains jsonb default null
, _id int8 default null
, _limit int4 default 100
, _before_ts timestamptz default null
, _before_id int8 default null
)
returns table
( id int8, queue text, event_ts timestamptz, enqueued_at timestamptz, attempts int4, vt timestamptz, claimed timestamptz[]
, event jsonb, last_error text, requeued_from int8
, state text, outcome text, finished_at timestamptz, requeued_as int8
)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set datestyle to 'ISO' -- as in history_filter
set enable_seqscan to off -- a page is a range of an index, whatever the statistics say
set enable_sort to off
set jit to off            -- the two above make every plan look costly enough to compile
as $func$
#variable_conflict use_column
declare
  _sql text = $sql$
    select h.id, h.queue, h.event_ts, h.enqueued_at, h.attempts, h.vt, h.claimed, h.event, h.last_error, h.requeued_from
    , null::text, h.outcome, h.finished_at, h.requeued_as
    from agent.event_hist h
    where h.outcome = %L %s
    order by h.event_ts desc, h.id desc
    limit $1
  $sql$;
  _filter text = agent.history_filter(_queue, _from, _to, _contains)
    || case when _before_ts is null then '' else format(' and h.event_ts <= %L and (h.event_ts, h.id) < (%1$L, %L)', _before_ts, _before_id) end;
begin
  perform agent.refuse('outcome', 'must be done, failed, expired or cancelled')
  where _outcome not in ('done', 'failed', 'expired', 'cancelled');
  perform agent.refuse('limit', 'must be at least 1') where coalesce(_limit, 0) < 1;

  if _id is not null then
    return query
    select h.id, h.queue, h.event_ts, h.enqueued_at, h.attempts, h.vt, h.claimed, h.event, h.last_error, h.requeued_from
    , null::text, h.outcome, h.finished_at, h.requeued_as
    -- The offset keeps the other filters, and the indexes that fit them, out of the search.
    from (select * from agent.event_hist h where h.id = _id offset 0) h
    where (_queue is null or h.queue = _queue)
    and (_outcome is null or h.outcome = _outcome)
    and (_from is null or h.event_ts >= _from)
    and (_to is null or h.event_ts < _to)
    and (_contains is null or h.event @> _contains)
    and (_before_ts is null or (h.event_ts, h.id) < (_before_ts, _before_id));
    return;
  end if;

  if _contains is not null then
    perform set_config('enable_sort', 'on', true); -- until the function ends: an index on the payload, where there is one, gives no order
  end if;
  return query execute
    ( select 'select * from ((' || string_agg(format(_sql, o.outcome, _filter), ') union all (')
        || ')) h order by h.event_ts desc, h.id desc limit $1'
      from unnest(array['done', 'failed', 'expired', 'cancelled']) as o (outcome)
      where _outcome is null or o.outcome = _outcome
    )
    using _limit;
end
$func$;
