-- Ending attempts and changing leases: ack, nack, extend, release. An event leaves its queue only through move_to_history, with its
-- outcome.

-- Acks events, each on its own: status is done, cancelled (never claimed), not_found or lease_lost. With a receipt, the event must not
-- have been claimed again since; without one (null) the ack is unconditional.
--
-- An ack with the receipt of the last claim also turns the outcome of an event that a sweep expired into done, unless its dead letter, or what it was requeued as, was claimed or has
-- ended: that is withdrawn then. An ack repeated with the
-- receipt that ended the event is done, too; it is marked as repeated, and its result is ignored. Results (null: none) are kept in
-- history.
--
-- ord is the place in _ids. Events that are acked now come first, with type, worker and the time since the claim; if these are not all,
-- there is a further row for each of _ids with its result, and of two rows with the same ord the first counts. Calls that give
-- ids in ascending order cannot deadlock. The caller records the executions. For the service; other callers use delete_events.
--
-- _allowed says for each of _ids which queues the caller may use: patterns with commas between them, see is_queue_allowed; null: all. An
-- event of another queue is not found.
--
-- A row with ord 0 and the status ready says that something in a queue may be claimed now, as slots of its limits are free again: ready_vt is the earliest
-- vt of that, if it is known.
--
-- _attempts and _hashes say of receipts what they say, so that they need not be read: the attempt and the hash of the token, see agent_private.token_hash. Both are
-- null for one that cannot be a receipt.
create or replace function agent_service.ack_events
( _ids int8[]
, _receipts text[] default null
, _results jsonb[] default null
, _allowed text[] default null
, _attempts int4[] default null
, _hashes bytea[] default null
)
returns table (ord int8, status text, queue text, repeated boolean, type text, worker text, took interval, ready_vt timestamptz)
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
  _unread text[] = case when _hashes is null or array_position(_hashes, null) is not null then _receipts end; -- the receipts, unless the hashes stand for all
  _finished int8;
  _withdrawn int8[];
  _slot_queues text[]; -- of the events with slots of limits, and their groups
  _slot_keys text[];
  _has_slot boolean;
begin
  if cardinality(_receipts) <> cardinality(_ids) then
    perform agent_private.raise_invalid('receipts', 'must be as many as the ids');
  elsif cardinality(_results) <> cardinality(_ids) then
    perform agent_private.raise_invalid('results', 'must be as many as the ids');
  elsif cardinality(_allowed) <> cardinality(_ids) then
    perform agent_private.raise_invalid('allowed', 'must be as many as the ids');
  elsif cardinality(_attempts) is distinct from cardinality(_hashes) or cardinality(_hashes) <> cardinality(_ids) then
    perform agent_private.raise_invalid('hashes', 'must be as many as the ids, and as the attempts');
  elsif _results is not null then
    perform agent_private.check_json('result', r.result) from unnest(_results) as r (result);
  end if;

  if cardinality(_ids) = 1 and _receipts is not null then -- the one that is acked says whether it had a slot
    select m.ord, m.outcome, m.queue, false, m.type, m.worker, m.took, array[m.queue], array[m.group_key], m.group_key is not null or m.in_total
    into ord, status, queue, repeated, type, worker, took, _slot_queues, _slot_keys, _has_slot
    from agent_private.move_to_history(_ids, null, _receipts => _unread, _results => _results, _allowed => _allowed, _attempts => _attempts, _hashes => _hashes) m;
    _finished = found::int4;
    if found then
      return next;
    end if;
    if _has_slot is not true then
      _slot_queues = null;
    end if;
  else
    if _receipts is not null and exists (select from agent.queue q where q.flow_version is not null or q.flow_total is not null) then
      select l.queues, l.keys into strict _slot_queues, _slot_keys from agent_private.lock_slots(_ids) l;
    end if;
    return query
    select m.ord, m.outcome, m.queue, false, m.type, m.worker, m.took, null::timestamptz
    from agent_private.move_to_history(_ids, null, _receipts => _unread, _results => _results, _allowed => _allowed, _attempts => _attempts, _hashes => _hashes) m;
    get diagnostics _finished = row_count;
  end if;
  if _slot_queues is not null then
    return query select 0::int8, 'ready', f.queue, true, null::text, null::text, null::interval, f.vt from agent_private.free_slots(_slot_queues, _slot_keys) f;
  end if;
  if _finished = cardinality(_ids) then -- the usual case
    return;
  end if;

  -- Events that a sweep has expired. A separate statement, because the one above has waited for the sweep.
  _withdrawn = agent_private.withdraw_copies(_ids, _receipts, _allowed);
  return query
  update agent.event_hist h
  set outcome = 'done', finished_at = clock_timestamp(), result = coalesce(a.result, h.result), dead_lettered_as = null, requeued_as = null
  from unnest(_ids, _receipts, _results, _allowed) with ordinality as a (id, receipt, result, allowed, ord)
  where h.id = any(_ids) and h.id = a.id and h.outcome = 'expired' and h.attempts > 0
  and (num_nonnulls(h.requeued_as, h.dead_lettered_as) = 0 or coalesce(h.requeued_as, h.dead_lettered_as) = any (_withdrawn))
  and (a.allowed is null or agent_private.is_queue_allowed(h.queue, string_to_array(a.allowed, ',')))
  and agent_private.is_receipt(a.receipt, h.id, h.attempts, h.receipt_hash)
  returning a.ord, h.outcome, h.queue, false, h.type, h.worker, h.finished_at - h.claimed[cardinality(h.claimed)], null::timestamptz;
  if found and exists (select from agent.queue q where q.flow_on_failed = 'block') then
    perform agent_private.unblock_acked(_ids);
  end if;

  -- The other events are in history with this receipt, or the lease was lost, or there is no such event.
  perform agent_private.confirm_durably();
  return query
  select
    a.ord
  , case
      when a.has_receipt and a.receipt is not null and a.outcome = 'done' then 'done'
      -- _ids has the id twice, and this call has acked it.
      when a.has_receipt and a.times > 1 and a.finished_at >= _begin and a.outcome in ('done', 'cancelled') then a.outcome
      when a.receipt is null or a.outcome is null and not exists
        ( select
          from agent.event e
          where e.id = a.id and (a.allowed is null or agent_private.is_queue_allowed(e.queue, string_to_array(a.allowed, ',')))
        ) then 'not_found'
      else 'lease_lost'
    end
  , a.queue, true, null::text, null::text, null::interval, null::timestamptz
  from
  ( select n.id, n.receipt, n.allowed, n.ord, count(*) over (partition by n.id) as times, h.outcome, h.queue, h.finished_at
    , h.id is not null and (n.receipt is null or agent_private.is_receipt(n.receipt, h.id, h.attempts, h.receipt_hash)) as has_receipt
    from unnest(_ids, _receipts, _allowed) with ordinality as n (id, receipt, allowed, ord)
    left join agent.event_hist h
      on h.id = any(_ids) and h.id = n.id
      and (n.allowed is null or agent_private.is_queue_allowed(h.queue, string_to_array(n.allowed, ',')))
  ) as a;
end
$func$;

-- Acks events, see ack_events, with one row for each of _ids, in their order, and records the executions.
create or replace function agent.delete_events(_ids int8[], _receipts text[] default null, _results jsonb[] default null)
returns table (id int8, status text, queue text, repeated boolean, type text, worker text, took interval)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
as $func$
#variable_conflict use_column
begin
  return query
  with found as
  ( select f.*, row_number() over () as n from agent_service.ack_events(_ids, _receipts, _results) f
  )
  , notified as
  ( select agent.notify_queues(array_agg(f.queue)) from found f where f.ord = 0 having count(*) > 0
  )
  , recorded as
  ( select agent_service.record_executions(array_agg(f.type), array_agg(f.worker), array_agg(f.took)) from found f where not f.repeated having count(*) > 0
  )
  select distinct on (f.ord) _ids[f.ord], f.status, f.queue, f.repeated, f.type, f.worker, f.took
  from found f
  left join recorded on true -- so that it is executed
  left join notified on true
  where f.ord > 0
  order by f.ord, f.n;
end
$func$;

-- Acks one event, see ack_events, and returns its outcome: done, or cancelled if it was never claimed, or waits since a nack and _receipt is null. Raises QD002 if there is no such
-- event and QD001 if _receipt is not that of its latest claim. _result is kept in history. An event that was not _processed goes into history as failed, as a final nack_event has it, or
-- without having been claimed if _receipt is null; it has no result.
create or replace function agent.delete_event(_id int8, _receipt text default null, _result jsonb default null, _processed boolean default true)
returns text
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
as $func$
declare
  _ord int8;
  _ready_queue text;
  _status text;
  _repeated boolean;
  _type text;
  _worker text;
  _took interval;
begin
  if not _processed then
    if _result is not null then
      perform agent_private.raise_invalid('result', 'goes with an event that was processed');
    elsif _receipt is null then
      perform from agent.event e where e.id = _id and e.attempts = 0 for update;
      if found then -- a nack ends an attempt, and there was none
        return (select m.outcome from agent_private.move_to_history(array[_id], 'failed', _retryable => false) m);
      end if;
    end if;
    return (select n.outcome from agent.nack_event(_id, _receipt, _final => true) n);
  end if;
  for _ord, _status, _repeated, _type, _worker, _took, _ready_queue in
    select f.ord, f.status, f.repeated, f.type, f.worker, f.took, f.queue
    from agent_service.ack_events(array[_id], array[_receipt], array[_result]) f
    order by f.ord
  loop
    exit when _ord = 1;
    perform agent.notify_queues(array[_ready_queue]);
  end loop;
  if not _repeated then
    perform agent_service.record_executions(array[_type], array[_worker], array[_took]);
  end if;
  perform agent_private.raise_lease_error(_id, _status);
  return _status;
end
$func$;

-- The events among these that are in their queue and locked by another transaction.
create or replace function agent_service.locked_events(_ids int8[])
returns setof int8
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set enable_seqscan to off
set jit to off
as $func$
begin
  return query
  with free as materialized
  ( select e.id from agent.event e where e.id = any(_ids) for update skip locked
  )
  select e.id from agent.event e where e.id = any(_ids) and e.id not in (select f.id from free f);
end
$func$;

-- The queues of those of these events that are in one, and the trace context in their metadata: empty where that is none, or too long for one.
create or replace function agent_service.event_traces(_ids int8[])
returns table (id int8, queue text, traceparent text, tracestate text)
language plpgsql stable
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set enable_seqscan to off
set jit to off
as $func$
#variable_conflict use_column
begin
  return query
  select e.id, e.queue, coalesce(left(e.meta->>'traceparent', 512), ''), coalesce(left(e.meta->>'tracestate', 512), '')
  from agent.event e
  where e.id = any(_ids);
end
$func$;

-- Ends an attempt by failure: the event is claimable again after _delay (null: by its queue's policy, or at once), with _error, up to
-- 65,536 characters, as its last error. It goes into history as failed if it is _final or not _retryable, or if it has had its
-- max_attempts by the event or the policy. Returns the new vt, or the outcome failed, with the attempts and that max_attempts. Repeated with the same
-- receipt it changes nothing and answers the same. dead_letter_queue is the queue that its dead letter was inserted into; waiting claims on that are woken unless
-- _notify_dead_letters is false. took is the time from the claim to the end of the event, null unless this call has ended it. With _hold_group nothing of the group of the event is handed
-- out for so long; a hold that lasts longer stays. Without a group it changes nothing. Raises QD001 and QD002 as delete_event does. Only an event of the queues that _queues stands for is found (null:
-- all; see is_queue_allowed).
create or replace function agent.nack_event
( _id int8
, _receipt text
, _delay interval default null
, _error text default null
, _final boolean default false
, _notify boolean default true
, _retryable boolean default null
, _queues text[] default null
, _notify_dead_letters boolean default true
, _hold_group interval default null
)
returns table (vt timestamptz, outcome text, queue text, repeated boolean, attempts int4, max_attempts int4, dead_letter_queue text, took interval)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set enable_seqscan to off
set jit to off
as $func$
#variable_conflict use_column
declare
  _event agent.event;
  _policy agent.queue;
  _max int4;
  _now timestamptz = clock_timestamp();
  _is_final boolean = coalesce(_final, false) or not coalesce(_retryable, true);
  _outcome text;
  _queue text;
  _dead_letter int8;
  _took interval;
begin
  if _delay < interval '0' then
    perform agent_private.raise_invalid('delay', 'must not be negative');
  elsif length(_error) > 65536 then
    perform agent_private.raise_invalid('error', 'must be at most 65536 characters long');
  elsif _hold_group < interval '0' or _hold_group > interval '3660 days' then
    perform agent_private.raise_invalid('hold_group', 'must not be negative, and at most ten years');
  end if;

  perform agent_private.check_receipt(_id, _receipt, _queues);
  -- Waits for a transaction that is ending the attempt, so that its outcome is seen below.
  perform from agent.event e where e.id = _id for update;
  if not found then
    return query
    select null::timestamptz, h.outcome, h.queue, true, h.attempts, h.max_attempts, null::text, null::interval
    from agent.event_hist h
    where h.id = _id and h.outcome = 'failed' and agent_private.is_receipt(_receipt, h.id, h.attempts, h.receipt_hash)
    and (_queues is null or agent_private.is_queue_allowed(h.queue, _queues))
    and (_is_final or coalesce(h.retryable, true)); -- false: it failed by its number of attempts
    if found then
      perform agent_private.confirm_durably();
      return;
    end if;
  end if;

  _event = agent_private.lock_lease(_id, _receipt, _queues);
  select q.* into _policy from agent.queue q where q.name = _event.queue;
  _max = coalesce(_event.max_attempts, _policy.max_attempts);
  if _hold_group > interval '0' and _event.group_key <> '' and _event.nacked_at is null then -- before its slot is free
    perform agent_private.hold_group(_event.queue, _event.group_key, _now + _hold_group);
  end if;
  if _is_final or _event.nacked_at is null and _event.attempts >= _max then
    select m.outcome, m.queue, m.dead_lettered_as, m.took into strict _outcome, _queue, _dead_letter, _took
    from agent_private.move_to_history(array[_id], 'failed', _error, coalesce(_retryable, not _is_final), _notify => _notify_dead_letters) m;
    return query
    select null::timestamptz, _outcome, _queue, false, _event.attempts, _max, (select e.queue from agent.event e where e.id = _dead_letter), _took;
    return;
  end if;
  if _event.nacked_at is not null then
    return query select coalesce(_event.turn_vt, _event.vt), null::text, _event.queue, true, _event.attempts, _max, null::text, null::interval;
    return;
  end if;
  return query
  update agent.event e
  set vt = agent_private.add_utc(_now, coalesce(_delay, agent_private.backoff(_policy, e.attempts)))
    , nacked_at = _now
    , last_error = coalesce(_error, e.last_error)
    , past_attempts = agent_private.append_attempt(e.past_attempts, e.attempts, e.worker, _now, 'nacked', _error)
    , in_total = null
  where e.id = _id
  returning vt, null::text, queue, false, attempts, _max, null::text, null::interval;
  if _event.group_key is not null then
    perform agent_private.return_slot(_id);
  end if;
  if _notify then
    perform agent.notify_queues(array[_event.queue]);
  end if;
end
$func$;

-- Makes a lease last until _invisible_for from now (null: by its queue's policy, or 10 minutes), and returns that time. A lease that has
-- ended is taken up again unless the event was claimed since; one that was nacked or released is lost, and so is one of a queue with a limit of its leases. Raises QD001 and QD002 as
-- delete_event does. Only an event of the queues that _queues stands for is found (null: all).
create or replace function agent.extend_event(_id int8, _receipt text, _invisible_for interval default null, _queues text[] default null)
returns timestamptz
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set enable_seqscan to off
set jit to off
as $func$
declare
  _event agent.event;
begin
  if _invisible_for <= interval '0' then
    perform agent_private.raise_invalid('invisible_for', 'must be greater than zero');
  end if;
  _event = agent_private.lock_lease(_id, _receipt, _queues);
  if _event.nacked_at is not null then
    perform agent_private.raise_lease_error(_id, 'lease_lost');
  end if;
  if _event.in_total and (select k.ids from agent_private.keep_slots(array[_id], array[1]) k) = '{}' then
    perform agent_private.raise_lease_error(_id, 'lease_lost');
  end if;
  _invisible_for = coalesce
  ( _invisible_for, (select agent_private.bounded_lease(q.invisible_for) from agent.queue q where q.name = _event.queue), interval '10 minutes'
  );
  update agent.event e set vt = agent_private.add_utc(clock_timestamp(), _invisible_for), extended_at = clock_timestamp() where e.id = _id returning e.vt into strict _event.vt;
  return _event.vt;
end
$func$;

-- Undoes claims that never reached their client: the events are claimable at once, and the attempts do not count. Each event needs the
-- receipt of its latest claim; events whose lease was lost or given back are skipped. Returns the events that were released.
create or replace function agent.release_events(_ids int8[], _receipts text[])
returns table (id int8, queue text, vt timestamptz, type text, priority int4)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set enable_seqscan to off
set jit to off
as $func$
#variable_conflict use_column
declare
  _mine int8[];
begin
  select array_agg(l.id) into _mine
  from
  ( select e.id, e.attempts, e.receipt_hash
    from agent.event e
    where e.id = any(_ids) and e.nacked_at is null
    and exists
    ( select
      from unnest(_ids, _receipts) as n (id, receipt)
      where n.id = e.id and agent_private.is_receipt(n.receipt, e.id, e.attempts, e.receipt_hash)
    )
    order by e.id
    for update
  ) as l
  join unnest(_ids, _receipts) as a (id, receipt) on a.id = l.id
  where agent_private.is_receipt(a.receipt, l.id, l.attempts, l.receipt_hash);

  if exists (select from agent.queue q where q.flow_paced) then
    perform agent_private.note_releases(_mine);
  end if;
  return query
  update agent.event e
  set attempts = e.attempts - 1
    , vt = least(e.claimed[cardinality(e.claimed)], clock_timestamp()) -- the old vt is not kept; this is the closest past time, unless the clock was set back
    , claimed = trim_array(e.claimed, 1)
    , nacked_at = case when e.attempts > 1 then clock_timestamp() end -- the claim before this one has ended
    , receipt_hash = nullif(substr(e.receipt_hash, 9), '') -- of that claim
    , worker = e.past_attempts -> -1 ->> 'worker'
    , in_total = null
  where e.id = any(_mine)
  returning id, queue, vt, type, priority;
  if exists (select from agent.queue q where q.flow_version is not null) then
    perform agent_private.return_slot(e.id) from agent.event e where e.id = any (_mine) and e.group_key is not null and agent_private.lacks_slot(e);
  end if;
end
$func$;

-- Gives a claimed event back without using up the attempt: it is claimable again at once, with the time of the claim as its vt, or after _delay. Returns its new vt. Raises QD001 and
-- QD002 as delete_event does; QD001 also if it is repeated. Only an event of the queues that _queues stands for is found (null: all). Waiting claims are
-- woken unless _notify is false.
create or replace function agent.release_event
( _id int8
, _receipt text
, _delay interval default null
, _notify boolean default true
, _queues text[] default null
)
returns timestamptz
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
as $func$
declare
  _status text;
  _queue text;
  _vt timestamptz;
begin
  select r.status, r.queue, r.vt into strict _status, _queue, _vt from agent_service.release_leases(array[_id], array[_receipt], _delay, _queues) r;
  perform agent_private.raise_lease_error(_id, _status);
  if _notify then
    perform agent.notify_queues(array[_queue]);
  end if;
  return _vt;
end
$func$;

-- Releases events as release_event does, each on its own, with a row for each of _ids, in their order: status is released, lease_lost or not_found. It
-- notifies nobody.
create or replace function agent_service.release_leases(_ids int8[], _receipts text[], _delay interval default null, _queues text[] default null)
returns table (id int8, status text, vt timestamptz, queue text, type text, priority int4)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set enable_seqscan to off
set jit to off
as $func$
#variable_conflict use_column
declare
  _held int8[];
  _places int8[]; -- of these in _ids
begin
  if _delay < interval '0' then
    perform agent_private.raise_invalid('delay', 'must not be negative');
  end if;
  select h.ids, h.places into _held, _places from agent_private.lock_leases(_ids, _receipts, _queues) h;
  if exists (select from agent.queue q where q.flow_paced) then
    perform agent_private.note_releases(_held);
  end if;
  return query
  with released as
  ( update agent.event e
    set attempts = e.attempts - 1
      , vt = case when _delay > interval '0' then agent_private.add_utc(clock_timestamp(), _delay) when isfinite(e.claimed[cardinality(e.claimed)]) then least(e.claimed[cardinality(e.claimed)], clock_timestamp()) else clock_timestamp() end -- see release_events
      , claimed = trim_array(e.claimed, 1)
      , nacked_at = case when e.attempts > 1 then clock_timestamp() end
      , receipt_hash = nullif(substr(e.receipt_hash, 9), '')
      , worker = e.past_attempts -> -1 ->> 'worker'
      , in_total = null
      , admitted_at = case when _delay > interval '0' then null else e.admitted_at end
    where e.id = any (_held)
    returning id, vt, queue, type, priority
  )
  select n.id, agent_private.lease_status(n.id, r.id is not null, 'released', _queues), r.vt, r.queue, r.type, r.priority
  from unnest(_ids) with ordinality as n (id, place)
  left join released r on r.id = n.id and n.place = any (_places)
  order by n.place;
  if exists (select from agent.queue q where q.flow_version is not null) then -- their slots are for others until then, and a rate is for those who claim
    perform agent_private.return_slot(e.id) from agent.event e where e.id = any (_held) and e.group_key is not null and (_delay > interval '0' or agent_private.lacks_slot(e));
  end if;
end
$func$;

-- Extends leases as extend_event does, each on its own, the n-th by the n-th of _invisible_for, with a row for each of _ids, in their order: status is
-- extended, lease_lost or not_found.
create or replace function agent_service.extend_leases(_ids int8[], _receipts text[], _invisible_for interval[], _queues text[] default null)
returns table (id int8, status text, vt timestamptz)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set enable_seqscan to off
set jit to off
as $func$
#variable_conflict use_column
declare
  _held int8[];
  _places int8[];
begin
  if exists (select from unnest(_invisible_for) as i (length) where i.length <= interval '0') then
    perform agent_private.raise_invalid('invisible_for', 'must be greater than zero');
  end if;
  select h.ids, h.places into _held, _places from agent_private.lock_leases(_ids, _receipts, _queues) h;
  if exists (select from agent.event e where e.id = any (_held) and e.in_total) then
    select k.ids, k.places into strict _held, _places from agent_private.keep_slots(_held, _places) k;
  end if;
  return query
  with extended as
  ( update agent.event e
    set vt = agent_private.add_utc(clock_timestamp(), coalesce
      ( h.length
      , (select agent_private.bounded_lease(q.invisible_for) from agent.queue q where q.name = e.queue)
      , interval '10 minutes'
      )), extended_at = clock_timestamp()
    from (select l.id, _invisible_for[l.place] from unnest(_held, _places) as l (id, place)) as h (id, length)
    where e.id = any (_held) and e.id = h.id
    returning e.id, e.vt
  )
  select n.id, agent_private.lease_status(n.id, x.id is not null, 'extended', _queues), x.vt
  from unnest(_ids) with ordinality as n (id, place)
  left join extended x on x.id = n.id and n.place = any (_places)
  order by n.place;
end
$func$;

-- Locks those of these events, in the order of their ids, whose latest claim the receipt is of and which were not given back since, in the queues that
-- _queues stands for (null: all), and returns them with their places. Of an id that is there twice the first place counts.
create or replace function agent_private.lock_leases(_ids int8[], _receipts text[], _queues text[], out ids int8[], out places int8[])
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
set jit to off
as $func$
begin
  if cardinality(_receipts) is distinct from cardinality(_ids) then
    perform agent_private.raise_invalid('receipts', 'must be as many as the ids');
  end if;
  select coalesce(array_agg(h.id order by h.id), '{}'), coalesce(array_agg(h.place order by h.id), '{}')
  into ids, places
  from
  ( select distinct on (l.id) l.id, n.place
    from
    ( select e.id, e.attempts, e.receipt_hash
      from agent.event e
      where e.id = any (_ids) and e.nacked_at is null and e.attempts > 0
      and (_queues is null or agent_private.is_queue_allowed(e.queue, _queues))
      and exists
      ( select
        from unnest(_ids, _receipts) as n (id, receipt)
        where n.id = e.id and agent_private.is_receipt(n.receipt, e.id, e.attempts, e.receipt_hash)
      )
      order by e.id
      for update
    ) as l
    join unnest(_ids, _receipts) with ordinality as n (id, receipt, place) on n.id = l.id
    where agent_private.is_receipt(n.receipt, l.id, l.attempts, l.receipt_hash)
    order by l.id, n.place
  ) as h;
end
$func$;

-- The status of an event in a call about many leases: _success if it succeeded, else lease_lost, or not_found if there is no such event in the queues
-- that _queues stands for (null: all), nor in their history.
create or replace function agent_private.lease_status(_id int8, _is_success boolean, _success text, _queues text[])
returns text
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
set jit to off
as $func$
begin
  return case
    when _is_success then _success
    when exists (select from agent.event e where e.id = _id and (_queues is null or agent_private.is_queue_allowed(e.queue, _queues)))
      or exists (select from agent.event_hist h where h.id = _id and (_queues is null or agent_private.is_queue_allowed(h.queue, _queues))) then 'lease_lost'
    else 'not_found'
  end;
end
$func$;

-- Moves events from their queue to history. All events enter history here. An event whose receipt is given, or its attempt and hash (see ack_events), moves only if that is the
-- receipt of its latest claim, and one for which _allowed says so (see ack_events) only if its queue is one of these. A null _outcome stands for done, or for cancelled where the event was never claimed, or waits since a nack and no receipt is given. _error replaces the
-- event's last error unless it is null. Returns the events that moved: ord is the place in _ids, took the time of the last attempt.
-- With the outcomes failed and expired it inserts dead letters, see insert_dead_letters: the caller has the events locked then, and gives no receipts.
-- With these outcomes it stops the groups of queues in which a failure stops groups, too.
-- Without receipts it frees the slots of limits that the events have; else the caller does.
create or replace function agent_private.move_to_history
( _ids int8[]
, _outcome text
, _error text default null
, _retryable boolean default null
, _receipts text[] default null
, _results jsonb[] default null
, _allowed text[] default null
, _notify boolean default true
, _attempts int4[] default null
, _hashes bytea[] default null
)
returns table (ord int8, id int8, queue text, outcome text, type text, worker text, took interval, dead_lettered_as int8, group_key text, in_total boolean)
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
declare
  _dead_letters int8[];
  _faults text[]; -- why there is none
  _slot_queues text[]; -- of the events with slots of limits, and their groups
  _slot_keys text[];
begin
  if _outcome in ('failed', 'expired') then
    if exists (select from agent.queue q where q.dead_letter_queue is not null) then
      select d.ids, d.faults into strict _dead_letters, _faults from agent_private.insert_dead_letters(_ids, _outcome, _error, _notify) d;
    end if;
    if exists (select from agent.queue q where q.flow_on_failed = 'block') then
      perform agent_private.block_groups(_ids, _outcome);
    end if;
  end if;
  if _receipts is null and _hashes is null then -- apart: the rest is a query
    if exists (select from agent.queue q where q.flow_version is not null or q.flow_total is not null) then
      select l.queues, l.keys into strict _slot_queues, _slot_keys from agent_private.lock_slots(_ids) l;
    end if;
  end if;
  return query
  with gone as
  ( delete from agent.event e
    using unnest(_ids, _receipts, _attempts, _hashes, _results, _allowed, _dead_letters, _faults) with ordinality
      as a (id, receipt, attempt, hash, result, allowed, dead_letter, fault, ord)
    where e.id = any(_ids) -- finds the events by index; by the join alone all of them would be read
    and e.id = a.id
    and case
      when a.hash is not null then e.attempts = a.attempt and agent_private.has_token_hash(e.receipt_hash, a.hash)
      else a.receipt is null or agent_private.is_receipt(a.receipt, e.id, e.attempts, e.receipt_hash)
    end
    and (a.allowed is null or agent_private.is_queue_allowed(e.queue, string_to_array(a.allowed, ',')))
    returning e.*, a.result, a.dead_letter, a.fault, a.ord, clock_timestamp() as finished_at
    , case
        when _outcome is not null then _outcome
        when e.attempts = 0 or e.nacked_at is not null and a.receipt is null and a.hash is null then 'cancelled'
        else 'done'
      end as outcome
  )
  , moved as
  ( insert into agent.event_hist
    ( id, event_ts, attempts, vt, claimed, event, queue, enqueued_at, nacked_at, last_error, requeued_from
    , type, source, priority, key, max_attempts, expires_at, worker, past_attempts, occurrence
    , meta, publication, receipt_hash, dead_letter_of, due_at, group_key
    , outcome, finished_at, result, retryable, dead_lettered_as
    )
    select
      g.id, agent_private.bounded_time(g.event_ts), g.attempts, coalesce(g.turn_vt, g.vt), g.claimed, g.event, g.queue, g.enqueued_at, g.nacked_at
    , case when g.fault is null then coalesce(_error, g.last_error) else concat_ws('; ', coalesce(_error, g.last_error), g.fault) end, g.requeued_from
    , g.type, g.source, g.priority, g.key, g.max_attempts, g.expires_at, g.worker, g.past_attempts, g.occurrence
    , g.meta, g.publication, g.receipt_hash, g.dead_letter_of, g.due_at, nullif(g.group_key, '')
    , g.outcome, g.finished_at, g.result, _retryable, g.dead_letter
    from gone g
  )
  select g.ord, g.id, g.queue, g.outcome, g.type, g.worker, agent_private.last_attempt_took(g.outcome, g.claimed, g.nacked_at, g.finished_at), g.dead_letter, g.group_key, g.in_total
  from gone g;
  if _slot_queues is not null then
    perform agent_private.free_slots_and_notify(_slot_queues, _slot_keys);
  end if;
end
$func$;

-- Moves events to history one by one. An event that history does not accept becomes invisible for an hour, and does not stop the others.
create or replace function agent_private.move_each_to_history(_ids int8[], _outcome text)
returns table (queue text, moved int8, put_off int8, reason text, dead_lettered int8)
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
set jit to off
as $func$
#variable_conflict use_column
declare
  _id int8;
  _reason text;
begin
  foreach _id in array _ids loop
    begin
      return query select m.queue, 1::int8, 0::int8, null::text, count(m.dead_lettered_as) from agent_private.move_to_history(array[_id], _outcome) m group by m.queue;
      continue;
    exception when data_exception or integrity_constraint_violation or program_limit_exceeded or raise_exception or feature_not_supported then
      _reason = format('event %s: %s', _id, sqlerrm);
    end;
    return query
    update agent.event e
    set vt = agent_private.add_utc(clock_timestamp(), interval '1 hour')
      , expires_at = case when e.expires_at <= clock_timestamp() then agent_private.add_utc(clock_timestamp(), interval '1 hour') else e.expires_at end
    where e.id = _id
    returning e.queue, 0::int8, 1::int8, _reason, 0::int8;
  end loop;
end
$func$;

-- Locks a claimed event for a change of its lease, and returns it. Raises QD002 if it is unknown, or not of the queues that _queues stands
-- for (null: all), and QD001 if it was claimed again or
-- has left its queue. A null receipt fits any lease. A wrong receipt is refused before the row is locked, so that it does not wait for
-- whoever has the row locked.
create or replace function agent_private.lock_lease(_id int8, _receipt text, _queues text[])
returns agent.event
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
set jit to off
as $func$
declare
  _event agent.event;
begin
  perform agent_private.check_receipt(_id, _receipt, _queues);
  select e.* into _event from agent.event e where e.id = _id for update;
  if not found then
    perform agent_private.raise_lease_error(_id, case
      when exists (select from agent.event_hist h where h.id = _id and (_queues is null or agent_private.is_queue_allowed(h.queue, _queues))) then 'lease_lost'
      else 'not_found'
    end);
  elsif not agent_private.is_queue_allowed(_event.queue, _queues) then -- it was moved since
    perform agent_private.raise_lease_error(_id, 'not_found');
  end if;
  if _event.attempts = 0
    or _receipt is not null and not agent_private.is_receipt(_receipt, _event.id, _event.attempts, _event.receipt_hash)
  then
    perform agent_private.raise_lease_error(_id, 'lease_lost');
  end if;
  return _event;
end
$func$;

-- Raises QD002 if the event is in a queue that _queues (null: all) does not stand for, and QD001 if it is in another and the receipt is
-- not that of its latest claim. Locks nothing.
create or replace function agent_private.check_receipt(_id int8, _receipt text, _queues text[])
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
set jit to off
as $func$
begin
  if _queues is not null then
    perform from agent.event e where e.id = _id and not agent_private.is_queue_allowed(e.queue, _queues);
    if found then
      perform agent_private.raise_lease_error(_id, 'not_found');
    end if;
  end if;
  perform
  from agent.event e
  where e.id = _id
  and (e.attempts = 0 or _receipt is not null and not agent_private.is_receipt(_receipt, e.id, e.attempts, e.receipt_hash));
  if found then
    perform agent_private.raise_lease_error(_id, 'lease_lost');
  end if;
end
$func$;

-- The delay of an event that was nacked after so many attempts, by its queue's policy.
create or replace function agent_private.backoff(_policy agent.queue, _attempts int4)
returns interval
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
declare
  _max_seconds float8 = least(extract(epoch from _policy.backoff_max), 315360000); -- ten years, as for any delay
  _delay float8 = extract(epoch from _policy.backoff_base);
begin
  _attempts = greatest(_attempts, 1);
  if _policy.backoff_kind is null then
    return interval '0';
  end if;
  _delay = case _policy.backoff_kind
    when 'constant' then _delay
    when 'linear' then _delay * (1 + _policy.backoff_factor * (_attempts - 1))
    else case when _delay > 0 and (_attempts - 1) * ln(_policy.backoff_factor) + ln(_delay) > ln(greatest(_max_seconds, 1)) then _max_seconds -- power() might overflow
      else _delay * power(_policy.backoff_factor, _attempts - 1) end
  end;
  _delay = least(_delay, _max_seconds) * (1 + _policy.backoff_jitter * (2 * random() - 1));
  if _delay > _max_seconds then -- so many events do not come at once
    _delay = _max_seconds * (1 - _policy.backoff_jitter * random());
  end if;
  return make_interval(secs => _delay);
end
$func$;

-- Makes the caller's commit wait for the standbys, if the server has synchronous ones. To be called before an answer confirms a change
-- that an earlier transaction committed and this one did not repeat: the earlier transaction may have stopped waiting for its standby, and this
-- commit comes after it.
create or replace function agent_private.confirm_durably()
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  if current_setting('synchronous_standby_names') <> '' then
    perform pg_logical_emit_message(true, 'queued', '');
  end if;
end
$func$;
