-- Looking: one event, what waits, and what history holds. Nothing here locks or changes a row.
--
-- All return agent.event_view: state is null on events in history; outcome, finished_at, requeued_as, retryable, result and processing, which is how
-- long the last attempt took, are null on events in their queue. error_count is how many attempts ended without success.

-- An event in its queue, as it looks at a time. Private to the functions of this schema.
create or replace function agent_private.event_view(_event agent.event, _at timestamptz)
returns agent.event_view
language sql immutable
set search_path to pg_catalog, pg_temp
as $func$
  select row
  ( _event.id, _event.queue, _event.event_ts, _event.enqueued_at, _event.attempts, _event.vt, _event.claimed
  , _event.event, _event.last_error, _event.requeued_from
  , agent_private.event_state(_event, _at), null, null, null
  , _event.type, _event.source, _event.priority, _event.key, _event.max_attempts, _event.expires_at, _event.worker
  , agent_private.error_count(_event.attempts, _event.nacked_at, _event.vt, _at)
  , _event.occurrence, null, null, null
  )::agent.event_view
$func$;

-- An event in history. Private to the functions of this schema.
create or replace function agent_private.event_view(_event agent.event_hist)
returns agent.event_view
language sql immutable
set search_path to pg_catalog, pg_temp
as $func$
  select row
  ( _event.id, _event.queue, _event.event_ts, _event.enqueued_at, _event.attempts, _event.vt, _event.claimed
  , _event.event, _event.last_error, _event.requeued_from
  , null, _event.outcome, _event.finished_at, _event.requeued_as
  , _event.type, _event.source, _event.priority, _event.key, _event.max_attempts, _event.expires_at, _event.worker
  , greatest(case when _event.outcome = 'done' and _event.nacked_at is null and _event.attempts > 0 then _event.attempts - 1 else _event.attempts end, 0)
  , _event.occurrence, _event.retryable, _event.result
  , case when _event.outcome in ('done', 'failed') then agent_private.elapsed(_event.claimed[cardinality(_event.claimed)], _event.finished_at) end
  )::agent.event_view
$func$;

-- One event, in its queue or in history; no row when there is none.
create or replace function agent.get_event(_id int8)
returns setof agent.event_view
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
as $func$
#variable_conflict use_column
begin
  return query
  select v.*
  from agent.event e
  cross join lateral agent_private.event_view(e, clock_timestamp()) as v
  where e.id = _id;
  if found then
    return;
  end if;
  -- A statement of its own: it sees the event if it moved to history since the one above looked.
  return query
  select v.*
  from agent.event_hist h
  cross join lateral agent_private.event_view(h) as v
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
returns setof agent.event_view
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
  _names text[];
begin
  if _state not in ('ready', 'scheduled', 'leased') then
    perform agent_private.raise_invalid('state', 'must be ready, scheduled or leased');
  elsif coalesce(_limit, 0) < 1 then
    perform agent_private.raise_invalid('limit', 'must be at least 1');
  end if;

  _names = case when _queue is null then agent_private.waiting_queues_if_few() else array[_queue] end;
  if _names is null then
    return query
    select v.* from agent_private.list_events_of_all_queues(_state, _limit, coalesce(_after_vt, '-infinity'), coalesce(_after_id, 0), _above, _up_to, _now) v;
    return;
  end if;
  return query
  select v.*
  from unnest(_names) as q (name)
  cross join lateral agent_private.list_lanes(q.name) as lane
  cross join lateral
  ( select e as event, e.vt, e.id
    from agent.event e
    where e.queue = q.name and e.priority = lane.priority
    and e.vt > _above and e.vt <= _up_to
    and (e.vt, e.id) > (coalesce(_after_vt, '-infinity'), coalesce(_after_id, 0))
    and (_state is null or agent_private.event_state(e, _now) = _state)
    order by e.vt, e.id
    limit _limit
  ) e
  cross join lateral agent_private.event_view(e.event, _now) as v
  order by e.vt, e.id
  limit _limit;
end
$func$;

-- list_events of so many queues that going from one to the next would take longer than to read an index from end to end. Private to the functions of
-- this schema, and planned under list_events' settings.
create or replace function agent_private.list_events_of_all_queues
( _state text, _limit int4, _after_vt timestamptz, _after_id int8, _above timestamptz, _up_to timestamptz, _now timestamptz
)
returns setof agent.event_view
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
#variable_conflict use_column
declare
  _ids int8[];
begin
  if _state in ('scheduled', 'leased') then
    _ids = array
    ( select e.id
      from agent.event e
      where e.queue > '' and e.vt > _above and e.vt <= _up_to and (e.vt, e.id) > (_after_vt, _after_id) and agent_private.event_state(e, _now) = _state
      order by e.vt, e.id
      limit _limit
    );
  else -- what the index has is enough
    _ids = array
    ( select e.id
      from agent.event e
      where e.queue > '' and e.vt > _above and e.vt <= _up_to and (e.vt, e.id) > (_after_vt, _after_id)
      order by e.vt, e.id
      limit _limit
    );
  end if;
  return query
  select v.*
  from agent.event e
  cross join lateral agent_private.event_view(e, _now) as v
  where e.id = any (_ids)
  order by e.vt, e.id;
end
$func$;

-- The conditions on h that these filters of history stand for, as SQL text, each led by "and". Values stand in it as
-- literals, so that the planner leaves out the partitions that cannot matter. Private to the functions of this schema.
create or replace function agent_private.history_filter
( _queue text
, _from timestamptz
, _to timestamptz
, _contains jsonb
, _type text default null
, _source text default null
, _worker text default null
, _min_duration interval default null
)
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
  , case when _type is not null then format(' and h.type = %L', _type) end
  , case when _source is not null then format(' and h.source = %L', _source) end
  , case when _worker is not null then format(' and h.worker = %L', _worker) end
  , case when _min_duration is not null then
      format(' and h.outcome in (''done'', ''failed'') and agent_private.elapsed(h.claimed[cardinality(h.claimed)], h.finished_at) >= %L', _min_duration)
    end
  )
$func$;

-- Up to _limit events of history, newest event_ts first, before (_before_ts, _before_id). Each filter may be null: the queue, the
-- outcome, event_ts from (inclusive) and to (exclusive), a JSON object the event contains (as @> has it), the id, the type, the source, the
-- worker of the last attempt, and how long that took at least. Per outcome this is one range of an index; only _contains and what comes
-- after _id has to read events that it does not return.
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
, _type text default null
, _source text default null
, _worker text default null
, _min_duration interval default null
)
returns setof agent.event_view
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set datestyle to 'ISO' -- as in history_filter
set intervalstyle to 'postgres'
set enable_seqscan to off -- a page is a range of an index, whatever the statistics say
set enable_sort to off
set jit to off            -- the two above make every plan look costly enough to compile
as $func$
#variable_conflict use_column
declare
  _sql text = $sql$
    select h as event, h.event_ts, h.id
    from agent.event_hist h
    where h.outcome = %L %s
    order by h.event_ts desc, h.id desc
    limit $1
  $sql$;
  _filter text = agent_private.history_filter(_queue, _from, _to, _contains, _type, _source, _worker, _min_duration)
    || case when _before_ts is null then '' else format(' and h.event_ts <= %L and (h.event_ts, h.id) < (%1$L, %L)', _before_ts, _before_id) end;
begin
  if _outcome not in ('done', 'failed', 'expired', 'cancelled') then
    perform agent_private.raise_invalid('outcome', 'must be done, failed, expired or cancelled');
  elsif coalesce(_limit, 0) < 1 then
    perform agent_private.raise_invalid('limit', 'must be at least 1');
  end if;

  if _id is not null then
    return query execute
      -- The offset keeps the other filters, and the indexes that fit them, out of the search.
      'select v.* from (select * from agent.event_hist h where h.id = $1 offset 0) h cross join lateral agent_private.event_view(h.*) as v where true'
        || _filter || case when _outcome is null then '' else format(' and h.outcome = %L', _outcome) end
      using _id;
    return;
  end if;

  if _contains is not null then
    perform set_config('enable_sort', 'on', true); -- until the function ends: an index on the payload, where there is one, gives no order
  end if;
  return query execute
    ( select 'select v.* from ((' || string_agg(format(_sql, o.outcome, _filter), ') union all (')
        || ')) h cross join lateral agent_private.event_view(h.event) as v order by h.event_ts desc, h.id desc limit $1'
      from unnest(array['done', 'failed', 'expired', 'cancelled']) as o (outcome)
      where _outcome is null or o.outcome = _outcome
    )
    using _limit;
end
$func$;
