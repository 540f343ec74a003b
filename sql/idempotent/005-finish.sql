-- Finishing: the only ways out of agent.event, each into agent.event_hist with its outcome.

-- Moves events that the caller has locked to history with one outcome, or, where _outcome is null, as done, or as
-- cancelled when nobody ever claimed them. Private to the functions of this schema.
create or replace function agent.move_to_history(_ids int8[], _outcome text, _error text default null)
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
  , outcome, finished_at
  )
  select
    g.id, g.event_ts, g.attempts, g.vt, g.claimed, g.event, g.queue, g.enqueued_at, g.nacked_at
  , coalesce(_error, g.last_error), g.requeued_from
  , coalesce(_outcome, case when g.attempts = 0 then 'cancelled' else 'done' end)
  , clock_timestamp()
  from gone g
  returning id, queue, outcome;
end
$func$;

-- Acks each event on its own: status is done or cancelled (nobody ever claimed it), not_found, or lease_lost. With a receipt
-- the event must not have been claimed again since; without one (null) the ack is unconditional. An ack that repeats
-- the receipt that finished the event is done again, and marked as repeated. Results are in the order of _ids. Calls that give the ids
-- in ascending order cannot deadlock with each other.
create or replace function agent.delete_events(_ids int8[], _receipts text[] default null)
returns table (id int8, status text, queue text, repeated boolean)
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
begin
  if cardinality(_receipts) <> cardinality(_ids) then
    perform agent.refuse('receipts', 'must be as many as the ids');
  end if;

  with gone as
  ( delete from agent.event e
    using unnest(_ids, _receipts) as a (id, receipt)
    where e.id = any(_ids) -- the way to the events: by the join alone all of them would be read
    and e.id = a.id
    and (a.receipt is null or a.receipt = agent.receipt(e.id, e.attempts, e.claimed))
    returning e.*
  )
  , moved as
  ( insert into agent.event_hist
    ( id, event_ts, attempts, vt, claimed, event, queue, enqueued_at, nacked_at, last_error, requeued_from
    , outcome, finished_at
    )
    select
      g.id, g.event_ts, g.attempts, g.vt, g.claimed, g.event, g.queue, g.enqueued_at, g.nacked_at, g.last_error, g.requeued_from
    , case when g.attempts = 0 then 'cancelled' else 'done' end
    , clock_timestamp()
    from gone g
    returning id, outcome, queue
  )
  select array_agg(m.id), array_agg(m.outcome), array_agg(m.queue) into _finished, _outcomes, _queues from moved m;

  if _finished = _ids then -- as nearly always
    return query
    select f.id, f.outcome, f.queue, false
    from unnest(_finished, _outcomes, _queues) as f (id, outcome, queue);
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
  , not (a.is_finished and a.fits and row_number() over (partition by a.id, a.fits order by a.ord) = 1)
  from
  ( select n.id, n.receipt, n.ord, h.outcome, h.queue
    , n.id = any(coalesce(_finished, '{}')) as is_finished
    , h.id is not null and (n.receipt is null or n.receipt = agent.receipt(h.id, h.attempts, h.claimed)) as fits
    from unnest(_ids, _receipts) with ordinality as n (id, receipt, ord)
    left join agent.event_hist h on h.id = any(_ids) and h.id = n.id
  ) as a
  order by a.ord;
end
$func$;

-- Acks one event and returns its outcome: done, or cancelled when nobody ever claimed it. Raises QD002 when there
-- is no such event and QD001 when _receipt is not that of its latest claim. See delete_events.
create or replace function agent.delete_event(_id int8, _receipt text default null)
returns text
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _status text;
begin
  select d.status into strict _status from agent.delete_events(array[_id], array[_receipt]) d;
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

-- Locks a claimed event whose receipt the caller has, for a change of its lease. Raises QD002 when it is unknown, and
-- QD001 when it has been claimed again, or has left the queue. A null receipt fits any lease. Private to the functions of this schema.
create or replace function agent.lock_lease(_id int8, _receipt text)
returns agent.event
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
as $func$
declare
  _event agent.event;
begin
  select e.* into _event from agent.event e where e.id = _id for update;
  if not found then
    perform agent.raise_lost(_id, case when exists (select from agent.event_hist h where h.id = _id) then 'lease_lost' else 'not_found' end);
  end if;
  if _event.attempts = 0 or _receipt <> agent.receipt(_event) then
    perform agent.raise_lost(_id, 'lease_lost');
  end if;
  return _event;
end
$func$;

-- Gives a claimed event back: claimable again after _delay, with _error as its last error; or, _final, moves it to history as
-- failed. Returns the new vt, or the outcome failed. Repeated with the same receipt it changes nothing and answers as it did.
-- Raises QD001 and QD002 as delete_event does.
create or replace function agent.nack_event
( _id int8
, _receipt text
, _delay interval default interval '0'
, _error text default null
, _final boolean default false
, _notify boolean default true
)
returns table (vt timestamptz, outcome text, queue text, repeated boolean)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
as $func$
#variable_conflict use_column
declare
  _event agent.event;
  _now timestamptz = clock_timestamp();
begin
  perform agent.refuse('delay', 'must not be negative') where not coalesce(_delay >= interval '0', false);

  -- Locked first: whoever is finishing it right now is waited for, and what they made of it is seen below.
  perform from agent.event e where e.id = _id for update;
  if not found and _final then
    return query
    select null::timestamptz, h.outcome, h.queue, true
    from agent.event_hist h
    where h.id = _id and h.outcome = 'failed' and _receipt = agent.receipt(h.id, h.attempts, h.claimed);
    if found then
      return;
    end if;
  end if;

  _event = agent.lock_lease(_id, _receipt);
  if _final then
    return query select null::timestamptz, m.outcome, m.queue, false from agent.move_to_history(array[_id], 'failed', _error) m;
    return;
  end if;
  if _event.nacked_at is not null then
    return query select _event.vt, null::text, _event.queue, true;
    return;
  end if;
  return query
  update agent.event e
  set vt = agent.later(_now, _delay), nacked_at = _now, last_error = coalesce(_error, e.last_error)
  where e.id = _id
  returning vt, null::text, queue, false;
  if _notify then
    perform agent.notify_queues(array[_event.queue]);
  end if;
end
$func$;

-- Makes a lease last until _invisible_for from now, and returns that time. A lease that has run out is taken up again as
-- long as nobody has claimed the event since; one that was given back is lost. Raises QD001 and QD002 as delete_event does.
create or replace function agent.extend_event(_id int8, _receipt text, _invisible_for interval default interval '10 minutes')
returns timestamptz
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
as $func$
declare
  _event agent.event;
begin
  perform agent.refuse('invisible_for', 'must be more than nothing') where not coalesce(_invisible_for > interval '0', false);
  _event = agent.lock_lease(_id, _receipt);
  if _event.nacked_at is not null then
    perform agent.raise_lost(_id, 'lease_lost');
  end if;
  update agent.event e set vt = agent.later(clock_timestamp(), _invisible_for) where e.id = _id returning e.vt into strict _event.vt;
  return _event.vt;
end
$func$;
