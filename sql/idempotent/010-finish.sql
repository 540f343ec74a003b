-- Finishing: the only ways out of agent.event, each into agent.event_hist with its outcome.

-- Moves events from their queue to history: every event that goes into history does so here. An event whose receipt is given goes only if that is the
-- receipt of its latest claim. _outcome null stands for done, or cancelled where nobody ever claimed the event. _error, unless it is null,
-- replaces the event's last error. Returns the events that went: ord is their place in _ids, took the time since their claim.
create or replace function agent_private.move_to_history
( _ids int8[]
, _outcome text
, _error text default null
, _retryable boolean default null
, _receipts text[] default null
, _results jsonb[] default null
)
returns table (ord int8, id int8, queue text, outcome text, type text, worker text, took interval)
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
set enable_nestloop to off
set enable_mergejoin to off
as $func$
#variable_conflict use_column
begin
  return query
  with gone as
  ( delete from agent.event e
    using unnest(_ids, _receipts, _results) with ordinality as a (id, receipt, result, ord)
    where e.id = any(_ids) -- the way to the events: by the join alone all of them would be read
    and e.id = a.id
    and (a.receipt is null or a.receipt = agent.receipt(e.id, e.attempts, e.claimed))
    returning e.*, a.result, a.ord, clock_timestamp() as finished_at
    , case when _outcome is not null then _outcome when e.attempts = 0 then 'cancelled' else 'done' end as outcome
  )
  , moved as
  ( insert into agent.event_hist
    ( id, event_ts, attempts, vt, claimed, event, queue, enqueued_at, nacked_at, last_error, requeued_from
    , type, source, priority, key, max_attempts, expires_at, worker, past_attempts, occurrence
    , outcome, finished_at, result, retryable
    )
    select
      g.id, agent_private.bounded_time(g.event_ts), g.attempts, g.vt, g.claimed, g.event, g.queue, g.enqueued_at, g.nacked_at
    , coalesce(_error, g.last_error), g.requeued_from
    , g.type, g.source, g.priority, g.key, g.max_attempts, g.expires_at, g.worker, g.past_attempts, g.occurrence
    , g.outcome, g.finished_at, g.result, _retryable
    from gone g
  )
  select g.ord, g.id, g.queue, g.outcome, g.type, g.worker, agent_private.elapsed(g.claimed[cardinality(g.claimed)], g.finished_at)
  from gone g;
end
$func$;

-- Acks each event on its own: status is done or cancelled (nobody ever claimed it), not_found, or lease_lost. With a receipt
-- the event must not have been claimed again since; without one (null) the ack is unconditional. An ack whose receipt is that of the last claim is
-- honoured as well when a sweep has expired the event meanwhile: it turns expired into done, in the statement that finds it expired. An ack that repeats
-- the receipt that finished the event is done again, and marked as repeated; its result is passed over. Results (null: none) are kept in
-- history. ord says which of _ids a row is for. Those that are finished now come first, with type, worker and the time since the claim. If
-- these are not all, there is another row for each of _ids, by what has become of it: of two with the same ord the first counts.
-- Calls that give the ids in ascending order cannot deadlock with each other. The statistics of executions are left to the caller.
-- Private to the functions of this schema and the service; for others there is delete_events.
create or replace function agent.ack_events(_ids int8[], _receipts text[] default null, _results jsonb[] default null)
returns table (ord int8, status text, queue text, repeated boolean, type text, worker text, took interval)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
set enable_nestloop to off
set enable_mergejoin to off
as $func$
#variable_conflict use_column
declare
  _begin timestamptz = clock_timestamp();
  _finished int8;
begin
  if cardinality(_receipts) <> cardinality(_ids) then
    perform agent_private.raise_invalid('receipts', 'must be as many as the ids');
  elsif cardinality(_results) <> cardinality(_ids) then
    perform agent_private.raise_invalid('results', 'must be as many as the ids');
  end if;

  return query
  select m.ord, m.outcome, m.queue, false, m.type, m.worker, m.took
  from agent_private.move_to_history(_ids, null, _receipts => _receipts, _results => _results) m;

  get diagnostics _finished = row_count;
  if _finished = cardinality(_ids) then -- as nearly always
    return;
  end if;

  -- What a sweep has expired was finished all the same. It is looked for after the statement above has waited for the sweep.
  return query
  update agent.event_hist h
  set outcome = 'done', finished_at = clock_timestamp(), result = coalesce(a.result, h.result)
  from unnest(_ids, _receipts, _results) with ordinality as a (id, receipt, result, ord)
  where h.id = any(_ids) and h.id = a.id and h.outcome = 'expired' and h.attempts > 0
  and a.receipt = agent.receipt(h.id, h.attempts, h.claimed)
  returning a.ord, h.outcome, h.queue, false, h.type, h.worker, h.finished_at - h.claimed[cardinality(h.claimed)];

  -- What was not finished is in history by this very receipt, or its lease was lost, or there is no such event.
  perform agent_private.confirm_durably();
  return query
  select
    a.ord
  , case
      when a.fits and a.receipt is not null and a.outcome = 'done' then 'done'
      -- The call has the id twice, and has finished it.
      when a.fits and a.times > 1 and a.finished_at >= _begin and a.outcome in ('done', 'cancelled') then a.outcome
      when a.receipt is null or a.outcome is null and not exists (select from agent.event e where e.id = a.id) then 'not_found'
      else 'lease_lost'
    end
  , a.queue, true, null::text, null::text, null::interval
  from
  ( select n.id, n.receipt, n.ord, count(*) over (partition by n.id) as times, h.outcome, h.queue, h.finished_at
    , h.id is not null and (n.receipt is null or n.receipt = agent.receipt(h.id, h.attempts, h.claimed)) as fits
    from unnest(_ids, _receipts) with ordinality as n (id, receipt, ord)
    left join agent.event_hist h on h.id = any(_ids) and h.id = n.id
  ) as a;
end
$func$;

-- Which of these events are in their queue and locked by another transaction. Private to the service.
create or replace function agent.locked_events(_ids int8[])
returns setof int8
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
as $func$
begin
  return query
  with free as materialized
  ( select e.id from agent.event e where e.id = any(_ids) for update skip locked
  )
  select e.id from agent.event e where e.id = any(_ids) and e.id not in (select f.id from free f);
end
$func$;

-- ack_events with one row for each of _ids, in their order; it counts the executions, too.
create or replace function agent.delete_events(_ids int8[], _receipts text[] default null, _results jsonb[] default null)
returns table (id int8, status text, queue text, repeated boolean, type text, worker text, took interval)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
#variable_conflict use_column
begin
  return query
  with found as
  ( select f.*, row_number() over () as n from agent.ack_events(_ids, _receipts, _results) f
  )
  , recorded as
  ( select agent.record_executions(array_agg(f.type), array_agg(f.worker), array_agg(f.took)) from found f where not f.repeated having count(*) > 0
  )
  select distinct on (f.ord) _ids[f.ord], f.status, f.queue, f.repeated, f.type, f.worker, f.took
  from found f
  left join recorded on true -- so that it is done
  order by f.ord, f.n;
end
$func$;

-- Acks one event and returns its outcome: done, or cancelled when nobody ever claimed it. Raises QD002 when there
-- is no such event and QD001 when _receipt is not that of its latest claim. _result is kept in history. See finish_events.
create or replace function agent.delete_event(_id int8, _receipt text default null, _result jsonb default null)
returns text
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _status text;
  _repeated boolean;
  _type text;
  _worker text;
  _took interval;
begin
  select f.status, f.repeated, f.type, f.worker, f.took into strict _status, _repeated, _type, _worker, _took
  from agent.ack_events(array[_id], array[_receipt], array[_result]) f
  limit 1;
  if not _repeated then
    perform agent.record_executions(array[_type], array[_worker], array[_took]);
  end if;
  perform agent_private.raise_lease_error(_id, _status);
  return _status;
end
$func$;

-- Raises QD001 or QD002 for an event whose status is lease_lost or not_found.
create or replace function agent_private.raise_lease_error(_id int8, _status text)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  if _status = 'lease_lost' then
    raise exception 'the lease on event % was lost', _id using errcode = 'QD001';
  elsif _status = 'not_found' then
    raise exception 'there is no event %', _id using errcode = 'QD002';
  end if;
end
$func$;
