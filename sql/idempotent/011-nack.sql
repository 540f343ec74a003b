-- Leases that go on, or end without success.

-- Locks a claimed event whose receipt the caller has, for a change of its lease. Raises QD002 when it is unknown, and
-- QD001 when it has been claimed again, or has left the queue. A null receipt fits any lease. A receipt that does not fit is refused before
-- anything is locked: whoever holds the row is not waited for. Private to the functions of this schema.
create or replace function agent_private.lock_lease(_id int8, _receipt text)
returns agent.event
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
as $func$
declare
  _event agent.event;
begin
  perform agent_private.check_receipt(_id, _receipt);
  select e.* into _event from agent.event e where e.id = _id for update;
  if not found then
    perform agent_private.raise_lease_error(_id, case when exists (select from agent.event_hist h where h.id = _id) then 'lease_lost' else 'not_found' end);
  end if;
  if _event.attempts = 0 or _receipt <> agent.receipt(_event) then
    perform agent_private.raise_lease_error(_id, 'lease_lost');
  end if;
  return _event;
end
$func$;

-- Raises QD001 when the event is in its queue and the receipt is not that of its latest claim; locks nothing. Private to the functions of this
-- schema.
create or replace function agent_private.check_receipt(_id int8, _receipt text)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
as $func$
begin
  perform from agent.event e where e.id = _id and (e.attempts = 0 or _receipt <> agent.receipt(e.id, e.attempts, e.claimed));
  if found then
    perform agent_private.raise_lease_error(_id, 'lease_lost');
  end if;
end
$func$;

-- Gives a claimed event back: claimable again after _delay (null: as its queue's policy says, or at once), with _error, of up to 65,536
-- characters, as its last error. It moves
-- to history as failed instead when it is _final, or not _retryable, or when it has had the attempts that the event or the policy
-- gives it. Returns the new vt, or the outcome failed. Repeated with the same receipt it changes nothing and answers as it did.
-- Raises QD001 and QD002 as delete_event does.
create or replace function agent.nack_event
( _id int8
, _receipt text
, _delay interval default null
, _error text default null
, _final boolean default false
, _notify boolean default true
, _retryable boolean default null
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
  _policy agent.queue;
  _now timestamptz = clock_timestamp();
  _for_good boolean = coalesce(_final, false) or not coalesce(_retryable, true);
begin
  if _delay < interval '0' then
    perform agent_private.raise_invalid('delay', 'must not be negative');
  elsif length(_error) > 65536 then
    perform agent_private.raise_invalid('error', 'must be at most 65536 characters long');
  end if;

  perform agent_private.check_receipt(_id, _receipt);
  -- Whoever is finishing it right now is waited for, and what they made of it is seen below.
  perform from agent.event e where e.id = _id for update;
  if not found then
    return query
    select null::timestamptz, h.outcome, h.queue, true
    from agent.event_hist h
    where h.id = _id and h.outcome = 'failed' and _receipt = agent.receipt(h.id, h.attempts, h.claimed)
    and (_for_good or coalesce(h.retryable, true)); -- that one ran out of attempts
    if found then
      perform agent_private.confirm_durably();
      return;
    end if;
  end if;

  _event = agent_private.lock_lease(_id, _receipt);
  select q.* into _policy from agent.queue q where q.name = _event.queue;
  if _for_good or _event.nacked_at is null and _event.attempts >= coalesce(_event.max_attempts, _policy.max_attempts) then
    return query
    select null::timestamptz, m.outcome, m.queue, false
    from agent_private.move_to_history(array[_id], 'failed', _error, coalesce(_retryable, not _for_good)) m;
    return;
  end if;
  if _event.nacked_at is not null then
    return query select _event.vt, null::text, _event.queue, true;
    return;
  end if;
  return query
  update agent.event e
  set vt = agent_private.add_utc(_now, coalesce(_delay, agent_private.backoff(_policy, e.attempts)))
    , nacked_at = _now
    , last_error = coalesce(_error, e.last_error)
    , past_attempts = agent_private.append_attempt(e.past_attempts, e.attempts, e.worker, _now, 'nacked', _error)
  where e.id = _id
  returning vt, null::text, queue, false;
  if _notify then
    perform agent.notify_queues(array[_event.queue]);
  end if;
end
$func$;

-- Makes a lease last until _invisible_for from now (null: as its queue's policy says, or 10 minutes), and returns that time. A lease that has run out is taken up again as
-- long as nobody has claimed the event since; one that was given back is lost. Raises QD001 and QD002 as delete_event does.
create or replace function agent.extend_event(_id int8, _receipt text, _invisible_for interval default null)
returns timestamptz
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
as $func$
declare
  _event agent.event;
begin
  if _invisible_for <= interval '0' then
    perform agent_private.raise_invalid('invisible_for', 'must be more than nothing');
  end if;
  _event = agent_private.lock_lease(_id, _receipt);
  if _event.nacked_at is not null then
    perform agent_private.raise_lease_error(_id, 'lease_lost');
  end if;
  _invisible_for = coalesce
  ( _invisible_for, (select agent_private.bounded_lease(q.invisible_for) from agent.queue q where q.name = _event.queue), interval '10 minutes'
  );
  update agent.event e set vt = agent_private.add_utc(clock_timestamp(), _invisible_for) where e.id = _id returning e.vt into strict _event.vt;
  return _event.vt;
end
$func$;

-- Undoes claims that never reached their client: claimable again at once, and not counted. Each event needs the
-- receipt of its latest claim; those whose lease was lost or given back are passed over. Returns what went back, and where to.
create or replace function agent.release_events(_ids int8[], _receipts text[])
returns table (id int8, queue text, vt timestamptz, type text, priority int4)
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
    and (e.id, agent.receipt(e.id, e.attempts, e.claimed)) in (select n.id, n.receipt from unnest(_ids, _receipts) as n (id, receipt))
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
    , worker = e.past_attempts -> -1 ->> 'worker'
  where e.id = any(_mine)
  returning id, queue, vt, type, priority;
end
$func$;
