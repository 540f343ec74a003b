-- Finishing: the only ways out of agent.event, each into agent.event_hist with its outcome.

-- Moves events that the caller has locked to history with one outcome, or, where _outcome is null, as done, or as
-- cancelled when nobody ever claimed them. Private to the functions of this schema.
create or replace function agent.move_to_history(_ids int8[], _outcome text, _error text default null, _retryable boolean default null)
returns table (id int8, queue text, outcome text)
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
as $func$
#variable_conflict use_column
begin
  return query
  with gone as
  ( delete from agent.event e where e.id = any(_ids) returning e.*
  )
  insert into agent.event_hist
  ( id, event_ts, attempts, vt, claimed, event, queue, enqueued_at, nacked_at, last_error, requeued_from
  , type, source, priority, key, max_attempts, expires_at, worker, past_attempts, occurrence
  , outcome, finished_at, retryable
  )
  select
    g.id, g.event_ts, g.attempts, g.vt, g.claimed, g.event, g.queue, g.enqueued_at, g.nacked_at
  , coalesce(_error, g.last_error), g.requeued_from
  , g.type, g.source, g.priority, g.key, g.max_attempts, g.expires_at, g.worker, g.past_attempts, g.occurrence
  , coalesce(_outcome, case when g.attempts = 0 then 'cancelled' else 'done' end)
  , clock_timestamp()
  , _retryable
  from gone g
  returning id, queue, outcome;
end
$func$;

-- Acks each event on its own: status is done or cancelled (nobody ever claimed it), not_found, or lease_lost. With a receipt
-- the event must not have been claimed again since; without one (null) the ack is unconditional. An ack that repeats
-- the receipt that finished the event is done again, and marked as repeated; its result is passed over. Results (null: none) are kept in
-- history. Rows are in the order of _ids, and those that are done now have type, worker and the time since the claim. Calls that give the ids
-- in ascending order cannot deadlock with each other. _record => false leaves the statistics of executions to the caller.
create or replace function agent.delete_events
( _ids int8[]
, _receipts text[] default null
, _results jsonb[] default null
, _record boolean default true
)
returns table (id int8, status text, queue text, repeated boolean, type text, worker text, took interval)
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
  _finished int8[]; -- the events this call moves to history
  _outcomes text[];
  _queues text[];
  _types text[];
  _workers text[];
  _times interval[];
begin
  if cardinality(_receipts) <> cardinality(_ids) then
    perform agent.refuse('receipts', 'must be as many as the ids');
  elsif cardinality(_results) <> cardinality(_ids) then
    perform agent.refuse('results', 'must be as many as the ids');
  end if;

  with gone as
  ( delete from agent.event e
    using unnest(_ids, _receipts, _results) as a (id, receipt, result)
    where e.id = any(_ids) -- the way to the events: by the join alone all of them would be read
    and e.id = a.id
    and (a.receipt is null or a.receipt = agent.receipt(e.id, e.attempts, e.claimed))
    returning e.*, a.result
  )
  , moved as
  ( insert into agent.event_hist
    ( id, event_ts, attempts, vt, claimed, event, queue, enqueued_at, nacked_at, last_error, requeued_from
    , type, source, priority, key, max_attempts, expires_at, worker, past_attempts, occurrence
    , outcome, finished_at, result
    )
    select
      g.id, g.event_ts, g.attempts, g.vt, g.claimed, g.event, g.queue, g.enqueued_at, g.nacked_at, g.last_error, g.requeued_from
    , g.type, g.source, g.priority, g.key, g.max_attempts, g.expires_at, g.worker, g.past_attempts, g.occurrence
    , case when g.attempts = 0 then 'cancelled' else 'done' end
    , clock_timestamp()
    , g.result
    from gone g
    returning id, outcome, queue, type, worker, finished_at - claimed[cardinality(claimed)]
  )
  select array_agg(m.id), array_agg(m.outcome), array_agg(m.queue), array_agg(m.type), array_agg(m.worker), array_agg(m.took)
  into _finished, _outcomes, _queues, _types, _workers, _times
  from moved m (id, outcome, queue, type, worker, took);

  if _record and _finished is not null then
    perform agent.record_executions(_types, _workers, _times);
  end if;
  if _finished = _ids then -- as nearly always
    return query
    select f.id, f.outcome, f.queue, false, f.type, f.worker, f.took
    from unnest(_finished, _outcomes, _queues, _types, _workers, _times) as f (id, outcome, queue, type, worker, took);
    return;
  end if;

  -- What was not finished is in history by this very receipt, or its lease was lost, or there is no such event.
  return query
  select
    a.id
  , case
      when a.is_finished and a.fits then a.outcome
      when a.fits and a.outcome = 'done' and a.receipt is not null then 'done'
      when a.receipt is null or a.outcome is null and not exists (select from agent.event e where e.id = a.id) then 'not_found'
      else 'lease_lost'
    end
  , a.queue
  , not a.is_now
  , case when a.is_now then a.type end
  , case when a.is_now then a.worker end
  , case when a.is_now then a.took end
  from
  ( select n.id, n.receipt, n.ord, n.outcome, n.queue, n.type, n.worker, n.took, n.is_finished, n.fits
    , n.is_finished and n.fits and row_number() over (partition by n.id, n.fits order by n.ord) = 1 as is_now
    from
    ( select n.id, n.receipt, n.ord, h.outcome, h.queue, h.type, h.worker, h.finished_at - h.claimed[cardinality(h.claimed)] as took
      , n.id = any(coalesce(_finished, '{}')) as is_finished
      , h.id is not null and (n.receipt is null or n.receipt = agent.receipt(h.id, h.attempts, h.claimed)) as fits
      from unnest(_ids, _receipts) with ordinality as n (id, receipt, ord)
      left join agent.event_hist h on h.id = any(_ids) and h.id = n.id
    ) as n
  ) as a
  order by a.ord;
end
$func$;

-- Acks one event and returns its outcome: done, or cancelled when nobody ever claimed it. Raises QD002 when there
-- is no such event and QD001 when _receipt is not that of its latest claim. _result is kept in history. See delete_events.
create or replace function agent.delete_event(_id int8, _receipt text default null, _result jsonb default null)
returns text
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _status text;
begin
  select d.status into strict _status from agent.delete_events(array[_id], array[_receipt], array[_result]) d;
  perform agent.raise_lost(_id, _status);
  return _status;
end
$func$;

-- Raises QD001 or QD002 for an event whose status is lease_lost or not_found.
create or replace function agent.raise_lost(_id int8, _status text)
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
