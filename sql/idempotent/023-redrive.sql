-- Redrives: what matches a filter of history, or the dead letters of a queue, goes back into queues page by page, at a rate, whatever process does it.
--
-- A redrive is a row. Each step of it is one short transaction, which locks the row, looks at the next events after the cursor in the order of an index,
-- requeues those that match, and moves the cursor and the counts: whatever dies, each event is requeued once. The process that made the last step has a
-- lease; the others go on with the redrive when it has ended. Callers take turns: the next step is one of the caller whose latest step is the oldest.

-- The events after the cursor of a redrive as the text of a query of at most _limit rows (priority, ts, id, matches), in the order of an index. Those that match are
-- redriven. It bounds ids rather than times of the end: no clock tells copies that the redrive itself has made from what was there before.
create or replace function agent_private.redrive_scan(_r agent.redrive, _limit int4)
returns text
language plpgsql stable
set search_path to pg_catalog, pg_temp
set datestyle to 'ISO' -- as in history_filter
set intervalstyle to 'postgres'
as $func$
declare
  _matches text = format('h.id <= %L', _r.last_id)
    || agent_private.history_filter(null, null, null, _r.contains, _r.type, _r.source, _r.worker, _r.min_duration, _r.meta, _cause => _r.cause);
begin
  if _r.dead_letter_queue is not null then
    return format($sql$
      select h.priority, h.vt as ts, h.id
      , %s and h.dead_letter_of is not null and agent_private.event_state(h, clock_timestamp()) <> 'leased'
        and not exists (select from agent.event_hist o where o.id = h.dead_letter_of and o.event_ts = agent_private.bounded_time(h.event_ts) and o.requeued_as is not null) as matches
      from agent.event h
      where h.queue = %L%s
      order by h.priority, h.vt, h.id
      limit %s
      $sql$
    , _matches || agent_private.history_filter(null, _r.from_ts, _r.to_ts, null)
    , _r.dead_letter_queue
    , case when _r.cursor_id is not null then format(' and (h.priority, h.vt, h.id) > (%s, %L, %s)', _r.cursor_priority, _r.cursor_ts, _r.cursor_id) end
    , _limit);
  end if;
  return
  ( select format('select null::int4 as priority, h.ts, h.id, h.matches from ((%s)) h order by h.ts, h.id limit %s', string_agg(format($sql$
      select h.event_ts as ts, h.id
      , h.requeued_as is null and h.finished_at <= %L and %s as matches
      from agent.event_hist h
      where h.outcome = %L%s and h.event_ts <= %L%s
      order by h.event_ts, h.id
      limit %s
      $sql$
    , _r.created_at
    , _matches || agent_private.history_filter(null, null, null, null, _queues => _r.queues, _finished_from => _r.finished_from, _finished_to => _r.finished_to)
      || case when _r.to_queue is null then '' else ' and not starts_with(h.queue, ''queued.'')' end
    , o.outcome
    , agent_private.history_filter(_r.queue, _r.from_ts, _r.to_ts, null)
    , coalesce(_r.last_ts, '-infinity')
    , case when _r.cursor_id is not null then format(' and h.event_ts >= %L and (h.event_ts, h.id) > (%1$L, %L)', _r.cursor_ts, _r.cursor_id) end
    , _limit), ') union all ('), _limit)
    from unnest(array['done', 'failed', 'expired', 'cancelled']) as o (outcome)
    where case when _r.outcome is not null then o.outcome = _r.outcome else _r.cause is null or o.outcome in ('failed', 'expired') end
  );
end
$func$;

-- The first and the last event_ts of the events that a new redrive matches among those that finished within the time of its filter; null where there are none. No row if it
-- has no such time, or more events finished within it than is_small_window allows: it goes through all of history by event_ts then.
create or replace function agent_private.redrive_span(_r agent.redrive)
returns table (first_ts timestamptz, last_ts timestamptz)
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set datestyle to 'ISO' -- as in history_filter
set intervalstyle to 'postgres'
set enable_seqscan to off
set enable_indexscan to off
set enable_bitmapscan to on
set max_parallel_workers_per_gather to 0
set jit to off
as $func$
declare
  _window text = agent_private.finished_window(_r.from_ts, _r.to_ts, _r.finished_from, _r.finished_to);
begin
  if not agent_private.is_small_window(_window) then
    return;
  end if;
  return query execute format('select min(h.event_ts), max(h.event_ts) from (%s) h where h.requeued_as is null%s%s'
  , agent_private.window_rows(_window)
  , agent_private.history_filter(_r.queue, null, null, _r.contains, _r.type, _r.source, _r.worker, _r.min_duration, _r.meta, _r.queues, _cause => _r.cause)
  , case when _r.outcome is null then '' else format(' and h.outcome = %L', _r.outcome) end);
end
$func$;

-- How many events a redrive matches: exactly if they are counted within _time, else by what the planner believes is left to look at.
create or replace function agent_private.count_redrive(_r agent.redrive, _time interval)
returns table (matched int8, is_estimate boolean)
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set enable_seqscan to off -- as in find_history
set enable_bitmapscan to off
set enable_sort to off
set jit to off
as $func$
declare
  _slab int4 = 5000;
  _until timestamptz = clock_timestamp() + _time;
  _plan json;
  _n int8;
  _looked int8 = 0;
  _found int8;
begin
  execute 'explain (format json) ' || agent_private.redrive_scan(_r, 2147483647) into _plan;
  matched = 0;
  is_estimate = false;
  loop
    execute format(
      'select count(*), count(*) filter (where s.matches), (array_agg(s.priority))[count(*)], (array_agg(s.ts))[count(*)], (array_agg(s.id))[count(*)] from (%s) s'
    , agent_private.redrive_scan(_r, _slab))
      into _n, _found, _r.cursor_priority, _r.cursor_ts, _r.cursor_id;
    matched = matched + _found;
    _looked = _looked + _n;
    exit when _n < _slab;
    if clock_timestamp() > _until then
      is_estimate = true;
      matched = matched + (matched::float8 / _looked * greatest((_plan -> 0 -> 'Plan' ->> 'Plan Rows')::float8 - _looked, 0))::int8;
      exit;
    end if;
  end loop;
  return next;
end
$func$;

-- Creates a redrive and returns it. It requeues the events of history that match the filters (see list_history), oldest event_ts first, without those that were
-- requeued before, or, with a _dead_letter_queue, the dead letters that wait there, without those of events that were requeued themselves, and only what is there now. Each goes to its own queue or to _to_queue; a
-- dead letter to where it came from, which is 'origin', or to _to_queue, and is in history then as cancelled. _rate is how many a second go. The same _key of the same caller
-- again returns the redrive that was created first, or raises QD005 if anything else differs. Raises QD068 if 100 redrives of the caller run, are paused or have failed:
-- see agent_private.caller. Only events of queues that a pattern of _queues stands for go, and only into such
-- (null: all). With _dry_run nothing is created, and only matched and is_estimate of the redrive count.
create or replace function agent.create_redrive
( _queue text default null
, _outcome text default null
, _from timestamptz default null
, _to timestamptz default null
, _contains jsonb default null
, _type text default null
, _source text default null
, _worker text default null
, _min_duration interval default null
, _meta jsonb default null
, _dead_letter_queue text default null
, _to_queue text default null
, _rate float8 default null
, _key text default null
, _dry_run boolean default false
, _queues text[] default null
, _finished_from timestamptz default null
, _finished_to timestamptz default null
, _cause text default null
)
returns table (redrive agent.redrive, is_replayed boolean)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
set jit to off
as $func$
declare
  _max_unfinished int4 = 100;
  _r agent.redrive;
  _made agent.redrive;
  _cursor_ts timestamptz;
  _cursor_id int8;
  _last_ts timestamptz;
begin
  if _outcome not in ('done', 'failed', 'expired', 'cancelled') then
    perform agent_private.raise_invalid('outcome', 'must be done, failed, expired or cancelled');
  elsif not coalesce(_rate between 0.01 and 1000000, true) then
    perform agent_private.raise_invalid('rate', 'must be 0.01 to 1000000 events a second');
  elsif _dead_letter_queue is null and num_nonnulls
    (_queue, _outcome, _from, _to, _contains, _type, _source, _worker, _min_duration, _meta, _finished_from, _finished_to, _cause) = 0 then
    perform agent_private.raise_invalid('filter'
    , 'must have at least one of queue, outcome, from, to, finished_from, finished_to, contains, type, source, worker, min_duration, meta, cause');
  elsif _dead_letter_queue is not null and num_nonnulls(_queue, _outcome, _worker, _min_duration, _finished_from, _finished_to, _cause) > 0 then
    perform agent_private.raise_invalid('filter', 'must have none but from, to, contains, type, source and meta for the dead letters of a queue');
  elsif length(_key) not between 1 and 255 then
    perform agent_private.raise_invalid('idempotency_key', 'must be 1 to 255 characters');
  end if;
  if _dead_letter_queue is not null then
    perform agent_private.check_queue_name(agent_private.unreserved_queue(_dead_letter_queue));
    _to_queue = coalesce(_to_queue, 'origin');
    if _to_queue = _dead_letter_queue then
      perform agent_private.raise_invalid('to', 'must be another queue');
    end if;
  elsif _to_queue = 'origin' then
    perform agent_private.raise_invalid('to', 'must not be origin, which is for dead letters; without it each event goes to its own queue');
  end if;
  if starts_with(_to_queue, 'queued.') then
    perform agent_private.raise_invalid('to', 'must not begin with "queued.", which is reserved for the service''s own queues');
  elsif not agent_private.is_queue_name(_to_queue) then
    perform agent_private.raise_invalid('to', 'must be 1 to 128 of A-Z a-z 0-9 . _ : -, but not . or ..');
  end if;

  _r.created_at = clock_timestamp();
  _r.created_by = left(coalesce(nullif(current_setting('agent.actor', true), ''), session_user), 255);
  _r.caller = agent_private.caller();
  _r.dead_letter_queue = _dead_letter_queue;
  _r.queue = _queue;
  _r.outcome = _outcome;
  _r.from_ts = _from;
  _r.to_ts = _to;
  _r.finished_from = _finished_from;
  _r.finished_to = _finished_to;
  _r.contains = _contains;
  _r.type = _type;
  _r.source = _source;
  _r.worker = _worker;
  _r.min_duration = _min_duration;
  _r.meta = _meta;
  _r.cause = _cause;
  _r.queues = _queues;
  _r.to_queue = _to_queue;
  _r.rate = _rate;
  _r.last_id = coalesce(pg_sequence_last_value(pg_get_serial_sequence('agent.event', 'id')::regclass), 0);
  _r.last_ts = (select max(m.ts) from unnest(array['done', 'failed', 'expired', 'cancelled']) as o (outcome)
    cross join lateral (select h.event_ts from agent.event_hist h where h.outcome = o.outcome order by h.event_ts desc, h.id desc limit 1) as m (ts));
  if num_nonnulls(_finished_from, _finished_to) > 0 then
    select coalesce(s.first_ts, '-infinity'), 0, coalesce(s.last_ts, '-infinity') into _cursor_ts, _cursor_id, _last_ts from agent_private.redrive_span(_r) s;
    if found then -- the scan begins before the first event that matches, and ends at the last
      _r.cursor_ts = _cursor_ts;
      _r.cursor_id = _cursor_id;
      _r.last_ts = least(_r.last_ts, _last_ts);
    end if;
  end if;
  if _dry_run then
    select c.matched, c.is_estimate into strict _r.matched, _r.is_estimate from agent_private.count_redrive(_r, interval '2 seconds') c;
    return query select _r, false;
    return;
  end if;

  _r.idempotency_key = _key;
  _r.request_hash = case when _key is not null then agent_private.hash_json(jsonb_build_array
  ( _queue, _outcome, extract(epoch from _from), extract(epoch from _to), _contains, _type, _source, _worker, extract(epoch from _min_duration), _meta
  , _dead_letter_queue, _to_queue, _rate, _queues, extract(epoch from _finished_from), extract(epoch from _finished_to), _cause
  )) end;
  insert into agent.redrive as r
  ( created_at, created_by, caller, idempotency_key, request_hash, dead_letter_queue, queue, outcome, from_ts, to_ts, contains, type, source, worker, min_duration, meta
  , queues, to_queue, rate, last_id, last_ts, finished_from, finished_to, cause, cursor_ts, cursor_id
  )
  values
  ( _r.created_at, _r.created_by, _r.caller, _r.idempotency_key, _r.request_hash, _r.dead_letter_queue, _r.queue, _r.outcome, _r.from_ts, _r.to_ts, _r.contains, _r.type
  , _r.source, _r.worker, _r.min_duration, _r.meta, _r.queues, _r.to_queue, _r.rate, _r.last_id, _r.last_ts
  , _r.finished_from, _r.finished_to, _r.cause, _r.cursor_ts, _r.cursor_id
  )
  on conflict (caller, idempotency_key) where idempotency_key is not null do nothing
  returning r.* into _made;
  if not found then
    select r.* into strict _made from agent.redrive r where r.caller = _r.caller and r.idempotency_key = _key;
    if _made.request_hash is distinct from _r.request_hash then
      raise exception 'the idempotency key % stands for another request', _key
        using errcode = 'QD005', column = 'idempotency_key', detail = 'stands for another redrive';
    end if;
    perform agent_private.confirm_durably();
    return query select _made, true;
    return;
  end if;
  update agent.redrive r
  set (matched, is_estimate) = (select c.matched, c.is_estimate from agent_private.count_redrive(_made, interval '2 seconds') c)
  , next_at = clock_timestamp() -- the time that counting took is not made good for
  where r.id = _made.id
  returning r.* into strict _made;
  perform pg_advisory_xact_lock(31321898691468544 + (hashtextextended(_r.caller, 0) & 511)); -- a separate statement: the next one sees what others have created
  if (select count(*) from agent.redrive r where r.caller = _r.caller and r.state in ('running', 'paused', 'failed')) > _max_unfinished then
    raise exception '% redrives of % run, are paused or have failed', _max_unfinished, _r.caller using errcode = 'QD068';
  end if;
  perform agent_private.record_audit('redrive.create', _made.id::text, jsonb_strip_nulls(jsonb_build_object
  ( 'dead_letter_queue', _dead_letter_queue, 'queue', _queue, 'outcome', _outcome, 'from', _from, 'to', _to, 'finished_from', _finished_from
  , 'finished_to', _finished_to, 'type', _type, 'source', _source, 'worker', _worker, 'cause', _cause
  , 'to_queue', _to_queue, 'rate', _rate, 'matched', _made.matched
  )));
  perform pg_notify('agent_redrive', '');
  return query select _made, false;
end
$func$;

-- Whether who may use these queues alone (null: all) may see a redrive: all that it is about are among them.
create or replace function agent_private.may_use_redrive(_r agent.redrive, _queues text[])
returns boolean
language sql immutable parallel safe
return _queues is null
  or case when coalesce(_r.dead_letter_queue, _r.queue) is not null and (_r.to_queue is null or _r.to_queue <> 'origin')
    then agent_private.is_queue_allowed(coalesce(_r.dead_letter_queue, _r.queue), _queues)
    -- A pattern is within another one if the other one stands for it as if it were a name.
    else coalesce((select bool_and(agent_private.is_queue_allowed(p.pattern, _queues)) from unnest(_r.queues) as p (pattern)), false)
      and (_r.dead_letter_queue is null or agent_private.is_queue_allowed(_r.dead_letter_queue, _queues))
    end
  and (_r.to_queue is null or _r.to_queue = 'origin' or agent_private.is_queue_allowed(_r.to_queue, _queues));

-- Up to _limit redrives, the latest first, before the one with the id _before, in _state (null: any). Only those are listed whose queues are all among those that a pattern of _queues
-- stands for (null: all).
create or replace function agent.list_redrives(_limit int4 default 100, _before int8 default null, _state text default null, _queues text[] default null)
returns setof agent.redrive
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
set jit to off
as $func$
begin
  if coalesce(_limit, 0) < 1 then
    perform agent_private.raise_invalid('limit', 'must be at least 1');
  elsif _state not in ('running', 'paused', 'cancelled', 'done', 'failed') then
    perform agent_private.raise_invalid('state', 'must be running, paused, cancelled, done or failed');
  end if;
  return query
  select r.*
  from agent.redrive r
  where (_before is null or r.id < _before) and (_state is null or r.state = _state) and agent_private.may_use_redrive(r, _queues)
  order by r.id desc
  limit _limit;
end
$func$;

-- A redrive. Raises QD066 if there is none, or not all of its queues are among those that a pattern of _queues stands for (null: all).
create or replace function agent.get_redrive(_id int8, _queues text[] default null)
returns agent.redrive
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _r agent.redrive;
begin
  select r.* into _r from agent.redrive r where r.id = _id and agent_private.may_use_redrive(r, _queues);
  if not found then
    raise exception 'there is no redrive %', _id using errcode = 'QD066';
  end if;
  return _r;
end
$func$;

-- Gives a redrive another state, waits for the step that is under way, and returns the redrive. Raises QD066 as get_redrive does, and QD067 if its state is none of _from_states; one that is
-- in the state already stays as it is.
create or replace function agent_private.change_redrive(_id int8, _state text, _from_states text[], _action text, _queues text[])
returns agent.redrive
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
declare
  _r agent.redrive;
begin
  select r.* into _r from agent.redrive r where r.id = _id and agent_private.may_use_redrive(r, _queues) for update;
  if not found then
    raise exception 'there is no redrive %', _id using errcode = 'QD066';
  elsif _r.state = _state then
    perform agent_private.confirm_durably();
    return _r;
  elsif _r.state <> all (_from_states) then
    raise exception 'redrive % has ended', _id using errcode = 'QD067', detail = _r.state;
  end if;
  update agent.redrive r
  set state = _state, updated_at = clock_timestamp(), next_at = clock_timestamp(), leased_by = null, leased_until = null
  , reason = case when r.state <> 'failed' then r.reason end
  , finished_at = case when _state = 'cancelled' then clock_timestamp() end
  where r.id = _id
  returning r.* into strict _r;
  perform agent_private.record_audit(_action, _id::text);
  perform pg_notify('agent_redrive', '');
  return _r;
end
$func$;

-- Pauses a redrive: when it returns, no more events go. Raises QD066 as get_redrive does, and QD067 if it has ended.
create or replace function agent.pause_redrive(_id int8, _queues text[] default null)
returns agent.redrive
language sql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
  select * from agent_private.change_redrive(_id, 'paused', array['running'], 'redrive.pause', _queues)
$func$;

-- Goes on with a redrive that is paused, or that has failed. Raises QD066 as get_redrive does, and QD067 if it has ended otherwise.
create or replace function agent.resume_redrive(_id int8, _queues text[] default null)
returns agent.redrive
language sql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
  select * from agent_private.change_redrive(_id, 'running', array['paused', 'failed'], 'redrive.resume', _queues)
$func$;

-- Ends a redrive: when it returns, no more events go. Those that were requeued stay so. Raises QD066 as get_redrive does, and QD067 if it is done.
create or replace function agent.cancel_redrive(_id int8, _queues text[] default null)
returns agent.redrive
language sql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
  select * from agent_private.change_redrive(_id, 'cancelled', array['running', 'paused', 'failed'], 'redrive.cancel', _queues)
$func$;

-- Deletes up to _limit redrives that ended 30 days ago or earlier, and returns how many.
create or replace function agent.prune_redrives(_limit int4 default 1000)
returns int8
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
set jit to off
as $func$
declare
  _n int8;
begin
  delete from agent.redrive r
  where r.id in
  ( select o.id from agent.redrive o where o.finished_at < clock_timestamp() - interval '30 days' order by o.finished_at limit _limit for update skip locked
  );
  get diagnostics _n = row_count;
  return _n;
end
$func$;

-- Looks at the next events of a redrive, until _limit of them match, or it has looked at 5,000, or for 50 ms: a filter that hardly any event matches is tried in short transactions, too.
-- Returns the ids of those that match, the bounds of their ts, and where it has come to.
create or replace function agent_private.redrive_page(_r agent.redrive, _limit int4)
returns table (ids int8[], first_ts timestamptz, last_ts timestamptz, cursor_priority int4, cursor_ts timestamptz, cursor_id int8, is_end boolean)
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set enable_seqscan to off -- as in find_history
set enable_bitmapscan to off
set enable_sort to off
set jit to off
as $func$
#variable_conflict use_variable
declare
  _max_looked int4 = 5000;
  _until timestamptz = clock_timestamp() + interval '50 ms';
  _events refcursor;
  _event record;
  _looked int4 = 0;
begin
  ids = '{}';
  is_end = false;
  cursor_priority = _r.cursor_priority;
  cursor_ts = _r.cursor_ts;
  cursor_id = _r.cursor_id;
  open _events no scroll for execute agent_private.redrive_scan(_r, _max_looked);
  loop
    fetch _events into _event;
    if not found then
      is_end = _looked < _max_looked;
      exit;
    end if;
    _looked = _looked + 1;
    cursor_priority = _event.priority;
    cursor_ts = _event.ts;
    cursor_id = _event.id;
    if _event.matches then
      ids = ids || _event.id::int8;
      first_ts = coalesce(first_ts, _event.ts);
      last_ts = _event.ts;
      exit when cardinality(ids) >= _limit;
    end if;
    exit when _looked % 10 = 0 and clock_timestamp() > _until;
  end loop;
  close _events;
  return next;
end
$func$;

-- Locks those events of a page of a redrive that can go where they are to, and returns them with the bounds of their event_ts in history. With _required
-- it raises QD064 when a queue that they are to go to is not declared.
create or replace function agent_private.lock_redriven(_r agent.redrive, _ids int8[], _first timestamptz, _last timestamptz, _required boolean)
returns table (ids int8[], first_ts timestamptz, last_ts timestamptz)
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
set enable_bitmapscan to off
set jit to off
as $func$
#variable_conflict use_column
declare
  _targets text[];
  _originals int8[];
  _requeued int8[];
begin
  if _r.dead_letter_queue is not null then
    select array_agg(l.id), array_agg(l.original), array_agg(l.target), min(l.ts), max(l.ts) into ids, _originals, _targets, first_ts, last_ts
    from
    ( select e.id, e.dead_letter_of as original, t.target, agent_private.bounded_time(e.event_ts) as ts
      from agent.event e
      cross join lateral (select case when _r.to_queue = 'origin' then e.meta -> 'dead_letter' ->> 'queue' else _r.to_queue end) as t (target)
      where e.id = any (_ids) and e.queue = _r.dead_letter_queue and e.dead_letter_of is not null
      and agent_private.event_state(e, clock_timestamp()) <> 'leased' and not e.meta -> 'dead_letter' ? 'omitted' -- the original has more than it
      and t.target <> e.queue and not starts_with(t.target, 'queued.') and agent_private.is_queue_allowed(t.target, _r.queues)
      and agent_private.is_valid_event(e.event, t.target, e.type, e.source, null, e.max_attempts, null, e.meta)
      for update of e skip locked
    ) as l;
    if ids is not null then -- those of events that were requeued themselves stay
      _requeued = agent_private.lock_originals(_originals, first_ts, last_ts);
      select array_agg(l.id), array_agg(distinct l.target) into ids, _targets
      from unnest(ids, _originals, _targets) as l (id, original, target)
      where l.original <> all (_requeued);
    end if;
  else
    -- Locked in the order in which requeue_events locks them. Who has requeued one of them meanwhile has made it another.
    select array_agg(l.id), array_agg(distinct l.target) into ids, _targets
    from
    ( select h.id, coalesce(_r.to_queue, h.queue) as target
      from agent.event_hist h
      where h.id = any (_ids) and h.event_ts between _first and _last and h.requeued_as is null
      and agent_private.is_valid_event(h.event, coalesce(_r.to_queue, h.queue), h.type, h.source, null, h.max_attempts, null, h.meta)
      order by h.event_ts, h.id
      for update
    ) as l;
    first_ts = _first;
    last_ts = _last;
  end if;
  ids = coalesce(ids, '{}');
  if _required then
    perform agent_service.require_queues(_targets);
  end if;
  return next;
end
$func$;

-- Requeues events that lock_redriven has locked, and returns by queue how many went there.
create or replace function agent_private.redrive_locked(_r agent.redrive, _ids int8[], _first timestamptz, _last timestamptz)
returns table (queue text, requeued int8)
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
#variable_conflict use_column
begin
  if _r.dead_letter_queue is not null then
    perform agent_private.move_to_history(_ids, 'cancelled');
  end if;
  return query select c.queue, count(*) from agent_private.requeue_rows(_ids, _r.to_queue, _first, _last) c group by c.queue;
end
$func$;

-- redrive_locked that skips the events that raise an error. reason is the error of the last one of them.
create or replace function agent_private.redrive_each(_r agent.redrive, _ids int8[], _first timestamptz, _last timestamptz)
returns table (queue text, requeued int8, reason text)
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
declare
  _id int8;
begin
  foreach _id in array _ids loop
    begin
      return query select c.queue, c.requeued, null::text from agent_private.redrive_locked(_r, array[_id], _first, _last) c;
    exception when data_exception or integrity_constraint_violation or program_limit_exceeded or raise_exception or feature_not_supported then
      return query select null::text, 0::int8, format('event %s: %s', _id, sqlerrm);
    end;
  end loop;
end
$func$;

-- How many redrives are in each of the states in which they have something left to requeue: running, paused, failed. Up to 10,000 redrives are looked at.
create or replace function agent_service.count_redrives()
returns table (state text, redrives int8)
language sql stable
security definer
set search_path to pg_catalog, pg_temp
set jit to off
as $func$
  select s.state, count(r.state)
  from unnest(array['running', 'paused', 'failed']) as s (state)
  left join (select r.state from agent.redrive r limit 10000) r on r.state = s.state
  group by s.state
$func$;

-- Makes a step of a redrive that is due, and that this process goes on with, or no process any more: one of the caller whose turn it is. With _required it fails when a queue that its events are to go to is not
-- declared. Returns the redrive, null if none is due; by queue how many events went there; and in wait how long it is until the next step of one that this process may go on with, null if there is
-- none. It notifies nobody.
create or replace function agent_service.redrive_step(_process text, _required boolean default false)
returns table (id int8, state text, reason text, queues text[], counts int8[], wait interval)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
#variable_conflict use_column
declare
  _lease interval = interval '2 seconds'; -- as long as a redrive stands still when its process dies
  -- No step is due or was made, and no lease ends, later than this, unless the clock was set back.
  _latest interval = interval '3 minutes';
  _now timestamptz = clock_timestamp();
  _r agent.redrive;
  _is_late boolean; -- the redrive has stood still: what it did not do is not made good for
  _page record;
  _locked record;
  _done int8 = 0;
begin
  select r.* into _r
  from agent.redrive r
  left join agent_private.redrive_turn t on t.caller = r.caller
  where r.state = 'running'
  and (r.leased_by is null or r.leased_by = _process or r.leased_until not between _now and _now + _latest)
  and r.next_at not between _now and _now + _latest
  order by case when t.at < _now + _latest then t.at end nulls first, r.next_at, r.id
  limit 1
  for update of r skip locked;
  if found then
    _is_late = (_r.leased_by = _process and _now <= _r.leased_until) is not true;
    begin
      select p.* into strict _page
      from agent_private.redrive_page(_r, case when _r.rate is null then 1000 else greatest(1, least(1000, ceil(_r.rate / 10)))::int4 end) p;
      if cardinality(_page.ids) > 0 then
        select l.* into strict _locked from agent_private.lock_redriven(_r, _page.ids, _page.first_ts, _page.last_ts, _required) l;
        begin
          select array_agg(c.queue), array_agg(c.requeued) into queues, counts
          from agent_private.redrive_locked(_r, _locked.ids, _locked.first_ts, _locked.last_ts) c;
        exception when data_exception or integrity_constraint_violation or program_limit_exceeded or raise_exception or feature_not_supported then
          select array_agg(c.queue) filter (where c.queue is not null), array_agg(c.requeued) filter (where c.queue is not null), max(c.reason)
          into queues, counts, _r.reason
          from agent_private.redrive_each(_r, _locked.ids, _locked.first_ts, _locked.last_ts) c;
        end;
        _done = coalesce((select sum(n) from unnest(counts) as n), 0);
        _r.requeued = _r.requeued + _done;
        _r.skipped = _r.skipped + cardinality(_page.ids) - _done;
      end if;
      _r.cursor_priority = _page.cursor_priority;
      _r.cursor_ts = _page.cursor_ts;
      _r.cursor_id = _page.cursor_id;
      if _page.is_end then
        _r.state = 'done';
        if not _r.is_estimate then -- what others had requeued before a step came to it, it did not find
          _r.skipped = greatest(_r.skipped, _r.matched - _r.requeued);
        end if;
      end if;
    exception when sqlstate 'QD064' then -- all of this step is undone, and it is resumed here
      get stacked diagnostics _r.reason = message_text;
      _r.state = 'failed';
      queues = null;
      counts = null;
    end;
    _now = clock_timestamp();
    if _r.rate is null then
      _r.next_at = _now;
    elsif _done > 0 then -- up to a second that a step was late is made good for
      _r.next_at = greatest(_r.next_at, _now - case when _is_late then '0' else interval '1 second' end) + make_interval(secs => _done / _r.rate);
    end if;
    update agent.redrive r
    set state = _r.state, reason = _r.reason, requeued = _r.requeued, skipped = _r.skipped
    , cursor_priority = _r.cursor_priority, cursor_ts = _r.cursor_ts, cursor_id = _r.cursor_id
    , next_at = _r.next_at, leased_by = _process, leased_until = greatest(_r.next_at, _now) + _lease
    , updated_at = _now, finished_at = case when _r.state <> 'running' then _now end
    where r.id = _r.id;
    -- Only steps lock these rows, so that no transaction of a caller holds them up.
    insert into agent_private.redrive_turn as t (caller, at) values (_r.caller, _now) on conflict (caller) do update set at = excluded.at;
    if _r.state <> 'running' then
      delete from agent_private.redrive_turn t where t.ctid in (select o.ctid from agent_private.redrive_turn o where o.at < _now - interval '1 hour' for update skip locked);
    end if;
    id = _r.id;
    state = _r.state;
    reason = _r.reason;
  end if;
  wait =
  ( select case when count(*) > 0 then
      least(greatest(min(case when r.leased_by = _process then r.next_at else greatest(r.next_at, r.leased_until) end) - clock_timestamp(), interval '0'), _latest)
    end
    from agent.redrive r
    where r.state = 'running'
  );
  return next;
end
$func$;
