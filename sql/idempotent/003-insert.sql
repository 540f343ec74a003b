-- Enqueueing. Waiting claims everywhere are woken when the transaction commits.

-- Tells every process that these queues have something new. A process adds "|" and its own name to
-- recognize what it sent itself.
create or replace function agent.notify_queues(_queues text[], _sender text default '')
returns void
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  perform pg_notify('agent_event', q.name || case when _sender = '' then '' else '|' || _sender end)
  from (select distinct unnest(_queues)) as q (name);
end
$func$;

-- What event and queue may be is checked when they are written. As constraints they were checked again by every
-- claim, which took most of its time, and read payloads that are stored out of line.
create or replace function agent.check_event()
returns trigger
language plpgsql
set search_path to pg_catalog, pg_temp
as $func$
declare
  _bad_event boolean = jsonb_typeof(new.event) is distinct from 'object';
  _reason text = case when _bad_event then 'must be a JSON object' else 'must be 1 to 128 of A-Z a-z 0-9 . _ : -' end;
begin
  raise exception '%: %', case when _bad_event then 'event' else 'queue' end, _reason
    using errcode = 'QD003', column = case when _bad_event then 'event' else 'queue' end, detail = _reason;
end
$func$;

-- translate() leaves what is no letter of a name. A regular expression takes twenty times as long.
create or replace trigger check_event
before insert or update of event, queue on agent.event
for each row
when
( jsonb_typeof(new.event) is distinct from 'object'
  or octet_length(new.queue) not between 1 and 128
  or translate(new.queue, 'abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:-', '') <> ''
)
execute function agent.check_event();

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
  if _delay is not null or _vt is not null then
    perform agent.check_times(array[_delay], array[_vt]);
  end if;
  insert into agent.event (event, event_ts, queue, vt)
  values
  ( _event
  , case when _event ? 'event_ts' then agent.event_ts(_event) else now() end
  , coalesce(_queue, 'default')
  , coalesce(_vt, agent.later(now(), _delay), now())
  )
  returning id into strict _id;
  perform pg_notify('agent_event', coalesce(_queue, 'default'));
  return _id;
end
$func$;

-- Refuses delays and vts that make no sense, alone or together. Private to the functions of this schema.
create or replace function agent.check_times(_delays interval[], _vts timestamptz[])
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
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
end
$func$;

-- What every batch of inserts does. An event with a lease, which needs no vt or delay then, is claimed as it arrives: somebody waits for
-- it. Of such a one all is returned, as it is after the claim; of the others the event is null.
create or replace function agent.add_events
( _events jsonb[]
, _queues text[]
, _delays interval[]
, _vts timestamptz[]
, _leases interval[] default null
)
returns table (id int8, queue text, vt timestamptz, enqueued_at timestamptz, event_ts timestamptz, event jsonb, claimed timestamptz[])
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
#variable_conflict use_column
declare
  _now timestamptz = clock_timestamp();
begin
  if greatest(cardinality(_queues), cardinality(_delays), cardinality(_vts), cardinality(_leases)) > coalesce(cardinality(_events), 0) then
    perform agent.refuse('events', 'must not be fewer than the queues, delays or vts that go with them');
  end if;
  if _delays is not null or _vts is not null then
    perform agent.check_times(_delays, _vts);
  end if;

  return query
  insert into agent.event (event, event_ts, queue, vt, attempts, claimed)
  select
    n.event
  , case when n.event ? 'event_ts' then agent.event_ts(n.event) else now() end
  , coalesce(n.queue, 'default')
  , coalesce(agent.later(_now, n.lease), n.vt, agent.later(now(), n.delay), now())
  , case when n.lease is null then 0 else 1 end
  , case when n.lease is null then '{}' else array[_now] end
  from unnest(_events, _queues, _delays, _vts, _leases) with ordinality as n (event, queue, delay, vt, lease, ord)
  order by n.ord
  returning id, queue, vt, enqueued_at, event_ts, case when attempts > 0 then event end, claimed;
end
$func$;

-- Enqueues _events, all or none, and returns ids in their order. The other arrays run along with it; a null array,
-- an array that is shorter, or a null in one, stands for the default. _notify => false leaves the waking to the caller.
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
  return query select a.id, a.queue, a.vt from agent.add_events(_events, _queues, _delays, _vts) a;

  if _notify then
    perform agent.notify_queues(array(select coalesce(q.name, 'default') from unnest(_events, _queues) q (event, name)));
  end if;
end
$func$;
