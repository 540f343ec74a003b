-- Reading events: one, those that wait, and history; and requeueing from history.
--
-- Listings return the type agent.look: state is null for events in history; outcome, finished_at, requeued_as, dead_lettered_as, retryable, result and
-- processing, the duration of the last attempt, are null for events in their queue. error_count is how many attempts ended without
-- success. The JSON that nobody can read (see agent_private.stored_json_size) is null.

-- JSON that is stored; null if nobody can read it. Inlined, like agent.receipt.
create or replace function agent_private.readable_json(_json jsonb)
returns jsonb
language sql stable parallel safe
return case
  when _json is null then null -- most are, and the functions below would be called for them
  when agent_private.is_modest_json(_json) or agent_private.stored_json_size(_json) is not null then _json
end;

-- An event in its queue as listings show it, at a time; _has_next_turn: it is one of agent_private.next_turns. Inlined: called for each row it took three times as long.
create or replace function agent_private.event_view(_event agent.event, _at timestamptz, _has_next_turn boolean)
returns setof agent.look
language sql stable
rows 1
begin atomic
  select
    _event.id, _event.queue, _event.event_ts, _event.enqueued_at, _event.attempts, _event.vt, _event.claimed
  , _event.event
  , _event.last_error, _event.requeued_from
  , case when _has_next_turn then 'ready' else agent_private.event_state(_event, _at) end, null::text, null::timestamptz, null::int8
  , _event.type, _event.source, _event.priority, _event.key, _event.max_attempts, _event.expires_at, _event.worker
  , agent_private.error_count(_event.attempts, _event.nacked_at, _event.vt, _at)
  , _event.occurrence, null::boolean, null::jsonb, null::interval
  , _event.meta
  , _event.publication
  , null::boolean, _event.dead_letter_of, null::int8
  , nullif(_event.group_key, ''), _event.turn_vt;
end;

-- An event in history as listings show it. Inlined, too.
create or replace function agent_private.event_view(_event agent.event_hist)
returns setof agent.look
language sql stable
rows 1
begin atomic
  select
    _event.id, _event.queue, _event.event_ts, _event.enqueued_at, _event.attempts, _event.vt, _event.claimed
  , agent_private.readable_json(_event.event), _event.last_error, _event.requeued_from
  , null::text, _event.outcome, _event.finished_at, _event.requeued_as
  , _event.type, _event.source, _event.priority, _event.key, _event.max_attempts, _event.expires_at, _event.worker
  , greatest(case when _event.outcome = 'done' and _event.nacked_at is null and _event.attempts > 0 then _event.attempts - 1 else _event.attempts end, 0)
  , agent_private.readable_json(_event.occurrence), _event.retryable, agent_private.readable_json(_event.result)
  , agent_private.last_attempt_took(_event.outcome, _event.claimed, _event.nacked_at, _event.finished_at)
  , agent_private.readable_json(_event.meta), agent_private.readable_json(_event.publication)
  , null::boolean, _event.dead_letter_of, _event.dead_lettered_as
  , _event.group_key, null::timestamptz;
end;

-- One event, in its queue or in history; no row if there is none.
create or replace function agent.get_event(_id int8)
returns setof agent.look
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
set jit to off
as $func$
#variable_conflict use_column
declare
  _now timestamptz = clock_timestamp();
begin
  return query
  select v.*
  from agent.event e
  cross join lateral agent_private.event_view(e, _now, agent_private.has_next_turn(e, _now)) as v
  where e.id = _id;
  if found then
    return;
  end if;
  -- A separate statement, so that it sees an event that moved to history since the one above.
  return query
  select v.*
  from agent.event_hist h
  cross join lateral agent_private.event_view(h) as v
  where h.id = _id
  limit 1;
end
$func$;

-- The queues of these events, waiting or in history; no row where there is no such event.
create or replace function agent_service.event_queues(_ids int8[])
returns table (id int8, queue text)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set enable_seqscan to off
set jit to off
as $func$
#variable_conflict use_column
begin
  return query select e.id, e.queue::text from agent.event e where e.id = any(_ids);
  -- A separate statement, so that it sees an event that moved to history since the one above.
  return query select h.id, h.queue::text from agent.event_hist h where h.id = any(_ids);
end
$func$;

-- Those of these events that are in no queue: they have ended, unless there never were such. It reads an index once for each of _ids, whatever else waits.
create or replace function agent_service.find_ended(_ids int8[])
returns setof int8
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set enable_seqscan to off
set enable_bitmapscan to off
set jit to off
as $func$
begin
  -- A subquery is planned for one id at a time; a join could become one of all by all, if the plan is made while there are few events.
  return query select i.id from unnest(_ids) as i (id) where (select e.id from agent.event e where e.id = i.id) is null;
end
$func$;

-- The size of JSON that readable_json has let through, as text; 0 for null. Inlined, like agent.receipt.
create or replace function agent_private.shown_json_size(_json jsonb)
returns int8
language sql stable parallel safe
return case
  when _json is null then 0
  when agent_private.is_modest_json(_json) then octet_length(_json::text)
  else coalesce(agent_private.stored_json_size(_json), 0)
end;

-- A page of events that is bounded by their JSON as text: the first one that is beyond _max_bytes (null: no bound) has none and ends it.
create or replace function agent_private.bounded_page(_events refcursor, _max_bytes int8)
returns setof agent.look
language plpgsql stable
set search_path to pg_catalog, pg_temp
as $func$
declare
  _event agent.look;
  _bytes int8 = 0;
begin
  loop
    fetch _events into _event;
    exit when not found;
    if _bytes >= _max_bytes then
      _event.is_beyond = true;
      _event.event = null;
      _event.result = null;
      _event.occurrence = null;
      _event.meta = null;
      _event.publication = null;
      return next _event;
      exit;
    end if;
    return next _event;
    _bytes = _bytes + agent_private.shown_json_size(_event.event) + agent_private.shown_json_size(_event.result) + agent_private.shown_json_size(_event.occurrence)
      + agent_private.shown_json_size(_event.meta) + agent_private.shown_json_size(_event.publication);
  end loop;
  close _events;
end
$func$;

-- Up to _limit waiting events by (vt, id), after (_after_vt, _after_id), of _queue (null: all) and in _state (null: any), whose payload
-- contains _contains and whose metadata contains _meta (as by @>; null: any). With one of these two, it reads events that are not
-- returned. Only queues that a pattern of _queues stands for are listed (null: all). With _max_bytes the first event beyond so many bytes of JSON as
-- text ends the page: it has is_beyond, and no JSON. With _group, which needs a _queue, they are those of a group; of those that wait for their turn it reads
-- no more than it returns, and of the others all that the group has.
create or replace function agent.list_events
( _queue text default null
, _state text default null
, _limit int4 default 100
, _after_vt timestamptz default null
, _after_id int8 default null
, _contains jsonb default null
, _meta jsonb default null
, _queues text[] default null
, _max_bytes int8 default null
, _group text default null
)
returns setof agent.look
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _found refcursor;
begin
  open _found for select e.* from agent_private.find_events(_queue, _state, _limit, _after_vt, _after_id, _contains, _meta, _queues, _group) e;
  return query select p.* from agent_private.bounded_page(_found, _max_bytes) p;
end
$func$;

-- list_events without a bound of its page.
create or replace function agent_private.find_events
( _queue text default null
, _state text default null
, _limit int4 default 100
, _after_vt timestamptz default null
, _after_id int8 default null
, _contains jsonb default null
, _meta jsonb default null
, _queues text[] default null
, _group text default null
)
returns setof agent.look
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set enable_seqscan to off
set enable_bitmapscan to off
set jit to off
as $func$
#variable_conflict use_column
declare
  _now timestamptz = clock_timestamp();
  -- The state limits vt, so that only events in that range are read.
  _above timestamptz = case when _state in ('scheduled', 'leased') then _now when _state = 'waiting' then agent_private.no_turn() - interval '1 us' else '-infinity' end;
  _up_to timestamptz = case _state when 'ready' then _now when 'leased' then agent_private.no_turn() else 'infinity' end;
  _names text[];
  _turns int8[]; -- those that are ready, whatever their rows say
  _found int8;
begin
  if _state not in ('ready', 'scheduled', 'leased', 'waiting') then
    perform agent_private.raise_invalid('state', 'must be ready, scheduled, leased or waiting');
  elsif coalesce(_limit, 0) < 1 then
    perform agent_private.raise_invalid('limit', 'must be at least 1');
  elsif _group is not null and _queue is null then
    perform agent_private.raise_invalid('group', 'must be given with a queue, whose group it is');
  end if;

  _names = case
    when _queues is not null then
      array(select w.name from agent_private.waiting_queues() as w (name) where coalesce(w.name = _queue, true) and agent_private.is_queue_allowed(w.name, _queues))
    when _queue is null then agent_private.waiting_queues_if_few()
    else array[_queue]
  end;
  _turns = case when _state = 'leased' then '{}' else agent_private.next_turns_of(_names, _group, _now) end;
  if _group is not null then
    return query
    select v.*
    from agent_private.find_events_of_group
      (_queue, _group, _state, _limit, coalesce(_after_vt, '-infinity'), coalesce(_after_id, 0), _above, _up_to, _now, _turns, _contains, _meta) v
    where _queue = any (_names);
  elsif _names is null then
    return query
    select v.*
    from agent_private.list_events_of_all_queues
    ( _state, _limit, coalesce(_after_vt, '-infinity'), coalesce(_after_id, 0), _above, _up_to, _now, _turns, _contains, _meta
    ) v;
  else
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
      and (_state is null or agent_private.event_state(e, _now) = _state and e.id not in (select unnest(_turns)))
      and (_contains is null or e.event @> _contains)
      and (_meta is null or e.meta @> _meta)
      order by e.vt, e.id
      limit _limit
    ) e
    cross join lateral agent_private.event_view(e.event, _now, e.id = any (_turns)) as v
    order by e.vt, e.id
    limit _limit;
  end if;
  get diagnostics _found = row_count;
  if _state = 'ready' and _found < _limit and _turns <> '{}' then -- the vt of each of these comes after those above
    return query
    select v.*
    from agent.event e
    cross join lateral agent_private.event_view(e, _now, true) as v
    where e.id = any (_turns)
    and (e.vt, e.id) > (coalesce(_after_vt, '-infinity'), coalesce(_after_id, 0))
    and (_contains is null or e.event @> _contains)
    and (_meta is null or e.meta @> _meta)
    order by e.vt, e.id
    limit _limit - _found;
  end if;
end
$func$;

-- list_events of a group. What waits there has one vt, and so comes by id, which the index of groups has in order for each priority; the others are as few as the
-- limits of the queue let be admitted, if it has any.
create or replace function agent_private.find_events_of_group
( _queue text, _group text, _state text, _limit int4, _after_vt timestamptz, _after_id int8, _above timestamptz, _up_to timestamptz, _now timestamptz
, _turns int8[], _contains jsonb, _meta jsonb
)
returns setof agent.look
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set enable_seqscan to off
set enable_bitmapscan to off
set jit to off
as $func$
#variable_conflict use_column
declare
  _after_waiting int8 = case when _after_vt < agent_private.no_turn() then 0 else _after_id end;
begin
  return query
  select v.*
  from
  ( ( select e as event, e.vt, e.id
      from agent.event e
      where e.queue = _queue and e.group_key = _group and e.flow in (1, 2)
      and e.vt > _above and e.vt <= _up_to and (e.vt, e.id) > (_after_vt, _after_id)
      and (_state is null or agent_private.event_state(e, _now) = _state and e.id not in (select unnest(_turns)))
      and (_contains is null or e.event @> _contains)
      and (_meta is null or e.meta @> _meta)
      order by e.vt, e.id
      limit _limit
    )
    union all
    ( select w.event, w.vt, w.id
      from agent_private.list_lanes(_queue) as lane
      cross join (values (3::int2), (4::int2)) as f (flow)
      cross join lateral
      ( select e as event, e.vt, e.id
        from agent.event e
        where e.queue = _queue and e.group_key = _group and e.flow = f.flow and e.priority = lane.priority and e.id > _after_waiting
        and e.vt > _above and e.vt <= _up_to
        and (_state is null or agent_private.event_state(e, _now) = _state and e.id not in (select unnest(_turns)))
        and (_contains is null or e.event @> _contains)
        and (_meta is null or e.meta @> _meta)
        order by e.id
        limit _limit
      ) as w
    )
  ) as e
  cross join lateral agent_private.event_view(e.event, _now, e.id = any (_turns)) as v
  order by e.vt, e.id
  limit _limit;
end
$func$;

-- list_events over so many queues that reading an index from end to end is faster than going from queue to queue. Planned under the
-- settings of list_events.
create or replace function agent_private.list_events_of_all_queues
( _state text, _limit int4, _after_vt timestamptz, _after_id int8, _above timestamptz, _up_to timestamptz, _now timestamptz
, _turns int8[], _contains jsonb, _meta jsonb
)
returns setof agent.look
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
#variable_conflict use_column
declare
  _ids int8[];
begin
  if _state in ('scheduled', 'leased', 'waiting') or _contains is not null or _meta is not null then
    _ids = array
    ( select e.id
      from agent.event e
      where e.queue > '' and e.vt > _above and e.vt <= _up_to and (e.vt, e.id) > (_after_vt, _after_id)
      and (_state is null or agent_private.event_state(e, _now) = _state and e.id not in (select unnest(_turns)))
      and (_contains is null or e.event @> _contains)
      and (_meta is null or e.meta @> _meta)
      order by e.vt, e.id
      limit _limit
    );
  else -- the index alone has all columns that this needs
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
  cross join lateral agent_private.event_view(e, _now, e.id = any (_turns)) as v
  where e.id = any (_ids)
  order by e.vt, e.id;
end
$func$;

-- The attempts at an event that it keeps, in its queue or in history, in order. outcome is running, done, failed, nacked or lease_ended;
-- ended_at is null while the attempt runs. No row for an event that was never claimed. Raises QD002 if there is no such event.
create or replace function agent.list_attempts(_id int8)
returns table (attempt int4, worker text, started_at timestamptz, ended_at timestamptz, outcome text, error text)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
set jit to off
as $func$
#variable_conflict use_column
declare
  _attempts int4;
  _claimed timestamptz[];
  _past jsonb;
  _worker text;
  _end timestamptz;    -- of the latest attempt, unless past_attempts has it
  _outcome text;
  _error text;
begin
  select e.attempts, e.claimed, e.past_attempts, e.worker, case when e.vt <= clock_timestamp() then e.vt end
  , case when e.vt <= clock_timestamp() then 'lease_ended' else 'running' end
  into _attempts, _claimed, _past, _worker, _end, _outcome
  from agent.event e
  where e.id = _id;
  if not found then
    -- A separate statement, so that it sees an event that moved to history since the one above.
    select h.attempts, h.claimed, h.past_attempts, h.worker
    , case when h.outcome in ('expired', 'cancelled') then h.vt else h.finished_at end
    , case when h.outcome in ('expired', 'cancelled') then 'lease_ended' else h.outcome end
    , case h.outcome when 'failed' then h.last_error end
    into _attempts, _claimed, _past, _worker, _end, _outcome, _error
    from agent.event_hist h
    where h.id = _id
    limit 1;
    if not found then
      perform agent_private.raise_lease_error(_id, 'not_found');
    end if;
  end if;

  return query
  select a.attempt, a.worker, agent_private.attempt_start(_attempts, _claimed, a.attempt), a.ended_at, a.outcome, a.error
  from
  ( select distinct on (k.attempt) k.attempt, k.worker, k.ended_at, k.outcome, k.error
    from
    ( select p.attempt, p.worker, p.ended_at, p.outcome, p.error
      from agent_private.read_attempts(_past) p
      union all
      select _attempts, _worker, _end, _outcome, _error
      where _attempts >= 1 and not coalesce(_past @> jsonb_build_array(jsonb_build_object('attempt', _attempts)), false)
    ) as k
    order by k.attempt, k.ended_at desc
  ) as a
  where agent_private.attempt_start(_attempts, _claimed, a.attempt) is not null
  order by a.attempt;
end
$func$;

-- Up to _limit events of history, newest event_ts first, before (_before_ts, _before_id). Each filter may be null: queue, outcome,
-- event_ts from (inclusive) and to (exclusive), a JSON object that the event contains (as by @>), id, type, source, worker of the last
-- attempt, how long that attempt took at least, a JSON object that the metadata contains, finished_at from (inclusive) and to
-- (exclusive), and the cause of the last error of those that failed or expired, as the service groups failures by it. For each outcome, this reads one range of an index; only _contains and the filters after _id read events that are not
-- returned. Where up to 200,000 events have finished within the time that _finished_from and _finished_to say, it reads those instead. Only
-- queues that a pattern of _queues stands for are listed (null: all). _max_bytes bounds the page as that of list_events.
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
, _meta jsonb default null
, _queues text[] default null
, _max_bytes int8 default null
, _finished_from timestamptz default null
, _finished_to timestamptz default null
, _cause text default null
)
returns setof agent.look
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _found refcursor;
begin
  open _found for
  select h.*
  from agent_private.find_history
  ( _queue, _outcome, _from, _to, _contains, _id, _limit, _before_ts, _before_id, _type, _source, _worker, _min_duration, _meta, _queues
  , _finished_from, _finished_to, _cause
  ) h;
  return query select p.* from agent_private.bounded_page(_found, _max_bytes) p;
end
$func$;

-- list_history without a bound of its page.
create or replace function agent_private.find_history
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
, _meta jsonb default null
, _queues text[] default null
, _finished_from timestamptz default null
, _finished_to timestamptz default null
, _cause text default null
)
returns setof agent.look
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set datestyle to 'ISO' -- as in history_filter
set intervalstyle to 'postgres'
set enable_seqscan to off -- a page is a range of an index, whatever the statistics say
set enable_indexscan to on
set enable_bitmapscan to on
set enable_sort to off
set jit to off            -- the settings above make every plan look expensive enough to compile
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
  _before text = case when _before_ts is null then '' else format(' and h.event_ts <= %L and (h.event_ts, h.id) < (%1$L, %L)', _before_ts, _before_id) end;
  _window text = agent_private.finished_window(_from, _to, _finished_from, _finished_to) || _before;
  _filter text = agent_private.history_filter
    (_queue, _from, _to, _contains, _type, _source, _worker, _min_duration, _meta, _queues, _finished_from, _finished_to, _cause) || _before;
  _recent timestamptz;
  _part text;
  _count int4;
begin
  if _outcome not in ('done', 'failed', 'expired', 'cancelled') then
    perform agent_private.raise_invalid('outcome', 'must be done, failed, expired or cancelled');
  elsif coalesce(_limit, 0) < 1 then
    perform agent_private.raise_invalid('limit', 'must be at least 1');
  end if;

  if _id is not null then
    return query execute
      -- The offset keeps the planner from using the other filters, and their indexes, for the search.
      'select v.* from (select * from agent.event_hist h where h.id = $1 offset 0) h cross join lateral agent_private.event_view(h.*) as v where true'
        || _filter || case when _outcome is null then '' else format(' and h.outcome = %L', _outcome) end
      using _id;
    return;
  end if;

  if agent_private.is_small_window(_window) then
    perform agent_private.read_by_finished_at();
    return query execute format
    ( $sql$
        select v.*
        from (select * from (%s) h where true%s%s order by h.event_ts desc, h.id desc limit $1) h
        cross join lateral agent_private.event_view(h.*) as v
        order by h.event_ts desc, h.id desc
      $sql$
    , agent_private.window_rows(_window), _filter, case when _outcome is null then '' else format(' and h.outcome = %L', _outcome) end
    )
    using _limit;
    return;
  end if;

  if _contains is not null or _meta is not null then
    perform set_config('enable_sort', 'on', true); -- until the function ends: an index on these, if there is one, has no order
  end if;
  -- Planning to read each of many partitions for each outcome takes longer than reading a page, and most pages end in the newest two.
  _recent = agent_private.history_week(agent_private.bounded_time(least(_before_ts, _to, now() + interval '1 day'))) - interval '7 days';
  foreach _part in array case when _from >= _recent then '{""}' else array[format(' and h.event_ts >= %L', _recent), format(' and h.event_ts < %L', _recent)] end loop
    return query execute
      ( select 'select v.* from ((' || string_agg(format(_sql, o.outcome, _filter || _part), ') union all (')
          || ')) h cross join lateral agent_private.event_view(h.event) as v order by h.event_ts desc, h.id desc limit $1'
        from unnest(array['done', 'failed', 'expired', 'cancelled']) as o (outcome)
        where case when _outcome is not null then o.outcome = _outcome else _cause is null or o.outcome in ('failed', 'expired') end
      )
      using _limit;
    get diagnostics _count = row_count;
    _limit = _limit - _count;
    exit when _limit = 0;
  end loop;
end
$func$;

-- The regular expression of the errors that have a cause: the text of an error with placeholders for what varies, as the service writes it (see the package queue, cause.go), which ends with an
-- ellipsis where it is cut. It takes each error with the cause; of others, those at most in which something else varies than the service sees, such as a number for which the cause has an id.
create or replace function agent_private.cause_pattern(_cause text)
returns text
language plpgsql immutable
set search_path to pg_catalog, pg_temp
as $func$
declare
  _space text = '[\u0001-\u0020\u007f-\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]';
  _word text = '[-0-9A-Za-z_.:/@+,%#=\u00b5]';
  _is_cut boolean = right(_cause, 1) = '…' and octet_length(_cause) >= 300;
  _pattern text;
begin
  if length(_cause) not between 1 and 301 then
    perform agent_private.raise_invalid('cause', 'must be 1 to 301 characters');
  end if;
  if _is_cut then -- perhaps within a placeholder
    _cause = regexp_replace(left(_cause, -1), '<[a-z]*$', '');
  end if;
  _pattern = replace(regexp_replace(_cause, '[].^$*+?(){}|\\[]', '\\\&', 'g'), ' ', _space || '+');
  _pattern = replace(_pattern, '<number>', '(?:<number>|[-+]?[0-9][0-9.,_]*(?:[eE][0-9]*' || _word || '?[0-9]*)?)');
  _pattern = replace(_pattern, '<id>', '(?:<id>|[0-9A-Za-z\u00b5]+)');
  _pattern = replace(_pattern, '<uuid>', '(?:<uuid>|[-0-9A-Fa-f]{36})');
  _pattern = replace(_pattern, '<hex>', '(?:<hex>|[0-9A-Za-z]+)');
  _pattern = replace(_pattern, '<string>', $$(?:<string>|"(?:[^"\\\n]|\\.)*"|`(?:[^`\\\n]|\\.)*`|'(?:[^'\\\n]|\\.|'[0-9A-Za-z])*')$$);
  _pattern = replace(_pattern, '<address>', '(?:<address>|' || _word || '+)');
  _pattern = replace(_pattern, '<duration>', '(?:<duration>|[-+]?[0-9][0-9.a-z\u00b5]*)');
  _pattern = replace(_pattern, '<time>', '(?:<time>|[0-9]' || _word || '*)(?:' || _space || '+[0-9]' || _word || '*)*');
  return '^' || _space || '*' || _pattern || case when _is_cut then '' else _space || '*$' end;
end
$func$;

-- The conditions on h for these filters of history as SQL text, each with a leading "and". Values are literals in it, so that the
-- planner leaves out the partitions that cannot match.
create or replace function agent_private.history_filter
( _queue text
, _from timestamptz
, _to timestamptz
, _contains jsonb
, _type text default null
, _source text default null
, _worker text default null
, _min_duration interval default null
, _meta jsonb default null
, _queues text[] default null
, _finished_from timestamptz default null
, _finished_to timestamptz default null
, _cause text default null
)
returns text
language sql stable
set search_path to pg_catalog, pg_temp
set datestyle to 'ISO' -- writes offsets, where other styles write ambiguous names of zones
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
      format(' and agent_private.last_attempt_took(h.outcome, h.claimed, h.nacked_at, h.finished_at) >= %L', _min_duration)
    end
  , case when _meta is not null then format(' and h.meta @> %L::jsonb', _meta) end
  , case when _queues is not null then format(' and agent_private.is_queue_allowed(h.queue, %L)', _queues) end
  , case when _finished_from is not null then format(' and h.finished_at >= %L', _finished_from) end
  , case when _finished_to is not null then format(' and h.finished_at < %L', _finished_to) end
  , case when _cause is not null then format($sql$ and h.outcome in ('failed', 'expired') and left(h.last_error, 600) ~ %L$sql$, agent_private.cause_pattern(_cause)) end
  )
$func$;

-- The conditions of history_filter that bound how much of history is read through the index of finished_at; null without a bound of finished_at.
create or replace function agent_private.finished_window(_from timestamptz, _to timestamptz, _finished_from timestamptz, _finished_to timestamptz)
returns text
language sql stable
set search_path to pg_catalog, pg_temp
as $func$
  select case when num_nonnulls(_finished_from, _finished_to) > 0 then
    agent_private.history_filter(null, _from, _to, null, _finished_from => _finished_from, _finished_to => _finished_to)
  end
$func$;

-- The events of a finished_window, as the text of a query. The offset keeps the planner from using other filters, and their indexes, which may hold more.
create or replace function agent_private.window_rows(_window text)
returns text
language sql immutable
set search_path to pg_catalog, pg_temp
as $func$
  select 'select * from agent.event_hist h where true' || _window || ' offset 0'
$func$;

-- Makes the planner read history through the block-range index of finished_at, which needs a bitmap scan. The settings are the caller's to restore: it has them in its header.
create or replace function agent_private.read_by_finished_at()
returns void
language sql volatile
set search_path to pg_catalog, pg_temp
as $func$
  select set_config('enable_seqscan', 'off', true), set_config('enable_indexscan', 'off', true), set_config('enable_bitmapscan', 'on', true)
  , set_config('enable_sort', 'on', true)
$func$;

-- Whether a finished_window (null: false) holds so few events that reading all of them costs little, whatever order they are wanted in.
create or replace function agent_private.is_small_window(_window text, _limit int4 default 200000)
returns boolean
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
set enable_indexscan to off
set enable_bitmapscan to on
set max_parallel_workers_per_gather to 0
set jit to off
as $func$
declare
  _n int8;
begin
  if _window is null then
    return false;
  end if;
  execute format('select count(*) from (select from agent.event_hist h where true%s limit %s) h', _window, _limit + 1) into _n;
  return _n <= _limit;
end
$func$;

-- Requeues one event of history and returns the id of the copy. Raises QD002 if history has no such event, or it is not of the queues that
-- _queues stands for (null: all), and QD008 if a copy of it is in a queue, or done: see agent_private.living_copy.
create or replace function agent.requeue_event(_id int8, _notify boolean default true, _queues text[] default null)
returns table (id int8, queue text)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set enable_seqscan to off
set jit to off
as $func$
#variable_conflict use_column
declare
  _copy record;
  _first timestamptz;
  _last timestamptz;
  _living int8;
begin
  -- In history an event stays in its queue, and at its time. Locked, so that of two concurrent calls the second sees the copy of the first.
  select min(l.event_ts), max(l.event_ts), max(l.requeued_as) into _first, _last, _living
  from
  ( select h.event_ts, h.requeued_as
    from agent.event_hist h
    where h.id = _id and (_queues is null or agent_private.is_queue_allowed(h.queue, _queues))
    for update
  ) as l;
  if _first is null then
    perform agent_private.raise_lease_error(_id, 'not_found');
  end if;
  _living = agent_private.living_copy(_living);
  if _living is not null then
    raise exception 'event % was requeued: its copy % is in a queue, or done', _id, _living using errcode = 'QD008', detail = _living;
  end if;
  select r.new_id, r.queue into _copy from agent_private.requeue_rows(array[_id], null, _first, _last) r;
  if not found then
    perform agent_private.raise_lease_error(_id, 'not_found');
  end if;
  perform agent_private.record_audit('event.requeue', _id::text, jsonb_build_object('as', _copy.new_id, 'queue', _copy.queue));
  if _notify then
    perform agent.notify_queues(array[_copy.queue]);
  end if;
  return query select _copy.new_id, _copy.queue;
end
$func$;

-- The event that is in a queue, or done: a copy of an event of history, or what that was requeued as in its turn, and so on; null if there is none. A copy that is in history no more is none, and nothing is known of
-- what it was requeued as.
create or replace function agent_private.living_copy(_copy int8)
returns int8
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set enable_seqscan to off
set jit to off
as $func$
declare
  _outcome text;
  _next int8;
begin
  while _copy is not null loop
    perform from agent.event e where e.id = _copy;
    exit when found;
    -- A separate statement, so that it sees an event that moved to history since the one above.
    select h.outcome, h.requeued_as into _outcome, _next from agent.event_hist h where h.id = _copy;
    exit when _outcome = 'done';
    _copy = case when _next > _copy then _next end; -- as each copy has a later id: no circle that was written by hand
  end loop;
  return _copy;
end
$func$;

-- Requeues up to _limit events of history that match the filters (see list_history), oldest event_ts first, without those requeued
-- before and those that no queue may hold: repeating the call continues where the last one stopped. Only queues that a pattern of _queues
-- stands for are touched (null: all). Returns by queue how many matched in all and how many were requeued; none are if _dry_run.
create or replace function agent.requeue_events
( _queue text default null
, _outcome text default null
, _from timestamptz default null
, _to timestamptz default null
, _contains jsonb default null
, _id int8 default null
, _limit int4 default 1000
, _dry_run boolean default false
, _notify boolean default true
, _type text default null
, _source text default null
, _worker text default null
, _min_duration interval default null
, _meta jsonb default null
, _queues text[] default null
, _finished_from timestamptz default null
, _finished_to timestamptz default null
, _cause text default null
)
returns table (queue text, matched int8, requeued int8)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set datestyle to 'ISO' -- as in history_filter
set intervalstyle to 'postgres'
set enable_seqscan to on -- these may change until the function ends
set enable_indexscan to on
set enable_bitmapscan to on
set enable_sort to on
as $func$
#variable_conflict use_column
declare
  _where text = ' from agent.event_hist h where h.requeued_as is null'
    || agent_private.history_filter
      (_queue, _from, _to, _contains, _type, _source, _worker, _min_duration, _meta, _queues, _finished_from, _finished_to, _cause)
    || case when _outcome is null then '' else format(' and h.outcome = %L', _outcome) end
    || case when _id is null then '' else format(' and h.id = %L', _id) end;
  _queues text[];
  _matched int8[];
  _chosen int8[];
  _first timestamptz; -- of the chosen events
  _last timestamptz;
begin
  if _outcome not in ('done', 'failed', 'expired', 'cancelled') then
    perform agent_private.raise_invalid('outcome', 'must be done, failed, expired or cancelled');
  elsif coalesce(_limit, 0) < 1 then
    perform agent_private.raise_invalid('limit', 'must be at least 1');
  end if;
  if not _dry_run then -- the answer confirms that events left out were requeued before
    perform agent_private.confirm_durably();
  end if;

  if _id is null and agent_private.is_small_window(agent_private.finished_window(_from, _to, _finished_from, _finished_to)) then
    perform agent_private.read_by_finished_at();
  end if;
  execute 'select array_agg(m.queue), array_agg(m.n) from (select h.queue, count(*)' || _where || ' group by h.queue) m (queue, n)'
    into _queues, _matched;
  if not _dry_run then
    -- Locked, so that of two concurrent calls the second sees that the event was requeued.
    execute 'select array_agg(c.id), min(c.event_ts), max(c.event_ts) from (select h.id, h.event_ts' || _where
      || ' and agent_private.is_valid_event(h.event, h.queue, h.type, h.source, null, h.max_attempts, null, agent_private.sender_meta(h.meta, h.dead_letter_of)) order by h.event_ts, h.id limit $1 for update) c'
      into _chosen, _first, _last using _limit;
  end if;
  perform set_config('enable_seqscan', 'on', true), set_config('enable_indexscan', 'on', true);

  return query
  with copied as materialized
  ( select r.queue, count(*) from agent_private.requeue_rows(_chosen, null, _first, _last) r group by r.queue
  )
  select m.queue, m.n, coalesce(c.n, 0)
  from unnest(_queues, _matched) as m (queue, n)
  left join copied as c (queue, n) on c.queue = m.queue;
  if _chosen is not null then
    perform agent_private.record_audit('history.requeue', coalesce(_queue, '*'), jsonb_build_object('events', cardinality(_chosen)));
  end if;
  if _notify and _chosen is not null then
    perform agent.notify_queues(_queues);
  end if;
end
$func$;

-- Copies events of history that the caller has locked, or that nobody else requeues, into their queues, or into _to: 'origin' is the queue where each dead letter came from. In
-- another queue than its own a dead letter is none any more. The times of the events are from _first to _last: partitions of other times are not looked at.
create or replace function agent_private.requeue_rows(_ids int8[], _to text, _first timestamptz, _last timestamptz)
returns table (old_id int8, new_id int8, queue text)
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan -- the statements to plan for each call are in history_rows and mark_requeued
set enable_nestloop to off
set jit to off
as $func$
#variable_conflict use_column
declare
  _old int8[];
  _new int8[];
  _into text[];
begin
  with copied as
  ( insert into agent.event overriding user value -- the ids are the sequence's
    select e.*
    from agent_private.history_rows(_ids, _first, _last) h
    cross join lateral (values (case when _to = 'origin' then h.meta -> 'dead_letter' ->> 'queue' else coalesce(_to, h.queue) end)) as t (queue)
    left join agent.queue q on q.name = t.queue and (q.group_from is not null or q.flow_fair)
    cross join lateral agent_private.new_event
    ( null, now(), h.event, h.event_ts, t.queue
    , _type => h.type, _source => h.source, _priority => h.priority, _max_attempts => h.max_attempts, _occurrence => h.occurrence, _requeued_from => h.id
    , _meta => case when _to is not null and h.dead_letter_of is not null then nullif(h.meta - 'dead_letter', '{}') else h.meta end
    , _publication => h.publication, _dead_letter_of => case when _to is null then h.dead_letter_of end
    , _group => coalesce(h.group_key, agent_private.default_group(h.event, q.group_from, q.flow_fair))
    ) as e
    order by h.event_ts, h.id
    returning id, queue, requeued_from
  )
  select array_agg(c.requeued_from), array_agg(c.id), array_agg(c.queue) into _old, _new, _into from copied c;

  return query select m.old_id, m.new_id, m.queue from agent_private.mark_requeued(_old, _new, _into, _first, _last) m;
  if _to is not null then -- an event is not requeued beside its dead letter
    select array_agg(h.dead_letter_of), array_agg(n.new_id), array_agg(n.queue) into _old, _new, _into
    from agent_private.history_rows(_old, _first, _last) h
    join unnest(_old, _new, _into) as n (old_id, new_id, queue) on n.old_id = h.id
    where h.dead_letter_of is not null;
    if _old is not null then
      perform agent_private.lock_originals(_old, _first, _last);
      perform from agent_private.mark_requeued(_old, _new, _into, _first, _last);
    end if;
  end if;
end
$func$;

-- Locks the events that dead letters are of, in the order in which requeue_events locks them, and returns those of them that were requeued. They have the times of their dead letters.
create or replace function agent_private.lock_originals(_ids int8[], _first timestamptz, _last timestamptz)
returns int8[]
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_custom_plan -- with the partitions that the times are in
set jit to off
as $func$
begin
  return
  ( select coalesce(array_agg(l.id) filter (where l.requeued_as is not null), '{}')
    from
    ( select h.id, h.requeued_as
      from agent.event_hist h
      where h.id = any (array(select unnest(_ids))) and h.event_ts between _first and _last -- see history_rows
      order by h.event_ts, h.id
      for update
    ) as l
  );
end
$func$;

-- The events of history with these ids, and times from _first to _last.
create or replace function agent_private.history_rows(_ids int8[], _first timestamptz, _last timestamptz)
returns setof agent.event_hist
language plpgsql stable
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_custom_plan -- with the partitions that the times are in
set jit to off
as $func$
begin
  return query
  select h.*
  from agent.event_hist h
  where h.id = any (array(select unnest(_ids))) and h.event_ts between _first and _last; -- not the array itself: each value of that would be planned with
end
$func$;

-- Marks events of history as requeued, _old as _new, into the queues beside them. Returns those that are there. Their times are from _first to _last.
create or replace function agent_private.mark_requeued(_old int8[], _new int8[], _queues text[], _first timestamptz, _last timestamptz)
returns table (old_id int8, new_id int8, queue text)
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_custom_plan -- with the partitions that the times are in
set enable_nestloop to off -- the planner expects one row of history on TimescaleDB, and would compare each with all ids
set jit to off
as $func$
#variable_conflict use_column
begin
  return query
  update agent.event_hist h
  set requeued_as = r.new_id
  from unnest(_old, _new, _queues) as r (old_id, new_id, queue)
  where h.id = r.old_id and h.id = any (_old) and h.event_ts between _first and _last
  returning r.old_id, r.new_id, r.queue;
end
$func$;
