-- Leases: the receipt that proves a claim, and the state that follows from the claims.
--
-- SQLSTATEs raised by the functions of this schema, beside PostgreSQL's own:
--   QD001  the lease was lost: the receipt is not that of the latest claim
--   QD002  no such event
--   QD003  an argument is out of its range; the argument stands in the error's column field
--   QD004  the version that a change was meant for is not the latest
--   QD005  the idempotency key stands for something else

-- The receipt of an event's latest claim, null where it was never claimed, or claimed holds no such time. It names the event, the attempt, and
-- the microsecond the attempt began: an attempt that was given back uncounted shares its number with the next.
-- A body after "return" is bound when it is created, so that it needs no search_path, and can be inlined for having none: that
-- makes it sixty times as fast. Only what is truly immutable is inlined, hence "at time zone" and the casts.
create or replace function agent.receipt(_id int8, _attempts int4, _claimed timestamptz[])
returns text
language sql immutable parallel safe
return case when _claimed[cardinality(_claimed)] between timestamptz '0001-01-01 00:00+00' and timestamptz '9999-12-31 00:00+00' then
  _id::text || '.' || _attempts::text || '.' || (extract(epoch from _claimed[cardinality(_claimed)] at time zone 'UTC') * 1000000)::int8::text
end;

-- The length of a lease as a queue's policy has it, or about ten years, beyond which there may be no such time. Null stays null.
create or replace function agent_private.bounded_lease(_lease interval)
returns interval
language sql immutable parallel safe
return case when _lease > interval '3660 days' then interval '3660 days' else _lease end;

-- The same, of a row as claim_event returns it: select e.id, agent.receipt(e) from agent.claim_event() e
create or replace function agent.receipt(_event agent.event)
returns text
language sql immutable parallel safe
return agent.receipt(_event.id, _event.attempts, _event.claimed);

-- The state of a waiting event at a time: ready, scheduled or leased.
create or replace function agent_private.event_state(_event agent.event, _at timestamptz)
returns text
language sql immutable parallel safe
return case
  when _event.vt <= _at then 'ready'
  when _event.attempts > 0 and _event.nacked_at is null then 'leased'
  else 'scheduled'
end;

-- Raises QD003 for an argument that is out of its range. Volatile, lest the planner evaluate it ahead of its condition.
create or replace function agent_private.raise_invalid(_argument text, _reason text)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  raise exception '%: %', _argument, _reason using errcode = 'QD003', column = _argument, detail = _reason;
end
$func$;
