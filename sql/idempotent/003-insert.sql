-- Enqueueing. Waiting claims everywhere are woken when the transaction commits.

-- Tells every process that these queues have something new. A process adds "|" and its own name to
-- recognize what it sent itself.
create or replace function agent.notify_queues(_queues text[], _sender text default '')
returns void
language sql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
  select pg_notify('agent_event', q || case when _sender = '' then '' else '|' || _sender end)
  from (select distinct unnest(_queues)) as d (q)
$func$;

-- Enqueues one event and returns its id. It can be claimed after _delay, or from _vt on; at once without either.
-- event_ts is taken from the payload (see agent.event_ts).
create or replace function agent.insert_event
( _event jsonb
, _queue text default 'default'
, _delay interval default null
, _vt timestamptz default null
)
returns int8
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _id int8;
begin
  select i.id into strict _id
  from agent.insert_events(array[_event], array[_queue], array[_delay], array[_vt]) i;
  return _id;
end
$func$;

-- Enqueues _events, all or none, and returns ids in their order. The other arrays run along with it; a null array,
-- or a null in one, stands for the default. _notify => false leaves the waking to the caller.
create or replace function agent.insert_events
( _events jsonb[]
, _queues text[] default null
, _delays interval[] default null
, _vts timestamptz[] default null
, _notify boolean default true
)
returns table (id int8, queue text, vt timestamptz)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
#variable_conflict use_column
begin
  perform agent.refuse('event', 'must be a JSON object')
  from unnest(_events) e (event)
  where jsonb_typeof(e.event) is distinct from 'object'
  limit 1;

  perform agent.refuse(case when n.vt is null then 'delay' else 'vt' end, n.reason)
  from
  ( select a.vt, case
      when a.delay is not null and a.vt is not null then 'give a delay or a vt, not both'
      when a.delay < interval '0' then 'must not be negative'
      when not isfinite(a.vt) then 'must be finite'
    end
    from unnest(_delays, _vts) as a (delay, vt)
  ) as n (vt, reason)
  where n.reason is not null
  limit 1;

  perform agent.refuse('queue', 'must be 1 to 128 of A-Z a-z 0-9 . _ : -')
  from unnest(_queues) q (name)
  where q.name !~ '^[A-Za-z0-9._:-]{1,128}$'
  limit 1;

  return query
  insert into agent.event (event, event_ts, queue, vt)
  select
    n.event
  , case when n.event ? 'event_ts' then agent.event_ts(n.event) else now() end
  , coalesce(n.queue, 'default')
  , coalesce(n.vt, now() + n.delay, now())
  from unnest(_events, _queues, _delays, _vts) with ordinality as n (event, queue, delay, vt, ord)
  order by n.ord
  returning id, queue, vt;

  if _notify then
    perform agent.notify_queues(array(select coalesce(q.name, 'default') from unnest(_events, _queues) q (event, name)));
  end if;
end
$func$;
