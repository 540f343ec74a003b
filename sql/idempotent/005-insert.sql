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

-- Whether a queue may have this name. translate() leaves what is no letter of a name. A regular expression takes twenty times as long.
create or replace function agent_private.is_queue_name(_queue text)
returns boolean
language sql immutable parallel safe
return octet_length(_queue) between 1 and 128
  and translate(_queue, 'abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:-', '') = '';

-- Refuses a name that no queue may have.
create or replace function agent_private.check_queue_name(_queue text)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  if agent_private.is_queue_name(_queue) is not true then
    perform agent_private.raise_invalid('queue', 'must be 1 to 128 of A-Z a-z 0-9 . _ : -');
  end if;
end
$func$;

-- Whether an event may have these values. Inlined where it is used, as agent.receipt() is.
create or replace function agent_private.is_valid_event
( _event jsonb
, _queue text
, _type text default null
, _source text default null
, _key text default null
, _max_attempts int4 default null
, _expires_at timestamptz default null
)
returns boolean
language sql immutable parallel safe
return coalesce(jsonb_typeof(_event) = 'object', false)
  and coalesce(agent_private.is_queue_name(_queue), false)
  and coalesce(length(_type) between 1 and 255, true)
  and coalesce(length(_source) between 1 and 255, true)
  and coalesce(length(_key) between 1 and 255, true)
  and coalesce(_max_attempts >= 1, true)
  and coalesce(isfinite(_expires_at), true);

-- Raises QD003 for the first of these values that no event may have; _event when there is none. Volatile, as agent_private.raise_invalid() is.
create or replace function agent_private.check_event_values
( _event jsonb
, _queue text
, _type text default null
, _source text default null
, _key text default null
, _max_attempts int4 default null
, _expires_at timestamptz default null
)
returns jsonb
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  if jsonb_typeof(_event) is distinct from 'object' then
    perform agent_private.raise_invalid('event', 'must be a JSON object');
  elsif agent_private.is_queue_name(_queue) is not true then
    perform agent_private.raise_invalid('queue', 'must be 1 to 128 of A-Z a-z 0-9 . _ : -');
  elsif length(_type) not between 1 and 255 then
    perform agent_private.raise_invalid('type', 'must be 1 to 255 characters');
  elsif length(_source) not between 1 and 255 then
    perform agent_private.raise_invalid('source', 'must be 1 to 255 characters');
  elsif length(_key) not between 1 and 255 then
    perform agent_private.raise_invalid('key', 'must be 1 to 255 characters');
  elsif _max_attempts < 1 then
    perform agent_private.raise_invalid('max_attempts', 'must be at least 1');
  elsif not isfinite(_expires_at) then
    perform agent_private.raise_invalid('expires_at', 'must be finite');
  end if;
  return _event;
end
$func$;

-- Checks what may be in a row when it is written, whoever writes it: no setting of the session switches this off. As constraints the rules were checked
-- again by every claim, which took most of its time, and read payloads that are stored out of line.
create or replace function agent_private.check_event()
returns trigger
language plpgsql
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  if not agent_private.is_valid_event(new.event, new.queue, new.type, new.source, new.key, new.max_attempts, new.expires_at) then
    perform agent_private.check_event_values(new.event, new.queue, new.type, new.source, new.key, new.max_attempts, new.expires_at);
  end if;
  return new;
end
$func$;

-- Without a condition ("when"): PostgreSQL parses and plans one anew for each statement.
create or replace trigger check_event
before insert or update of event, queue, type, source, key, max_attempts, expires_at on agent.event
for each row
execute function agent_private.check_event();

-- A new row of agent.event: every event that is inserted is made here, so that a column has one place. _now is the time of the call, which dates the
-- claim of an event that is claimed as it arrives, for _lease by _worker. Without a search_path it can be inlined: see agent.receipt.
create or replace function agent_private.new_event
( _id int8
, _now timestamptz
, _event jsonb
, _event_ts timestamptz         -- null: from the payload, see agent_private.event_ts
, _queue text
, _delay interval default null
, _vt timestamptz default null
, _lease interval default null
, _worker text default null
, _type text default null
, _source text default null
, _priority int4 default null
, _key text default null
, _max_attempts int4 default null
, _expires_at timestamptz default null
, _occurrence jsonb default null
, _requeued_from int8 default null
)
returns setof agent.event
language sql stable
rows 1
begin atomic
  select
    _id
  , case when _event_ts is not null then _event_ts when _event ? 'event_ts' then agent_private.event_ts(_event) else now() end
  , case when _lease is null then 0 else 1 end -- attempts
  , coalesce(agent_private.add_utc(_now, _lease), _vt, agent_private.add_utc(now(), _delay), now())
  , case when _lease is null then '{}' else array[_now] end -- claimed
  , _event
  , coalesce(_queue, 'default')
  , now() -- enqueued_at
  , null::timestamptz -- nacked_at
  , null::text -- last_error
  , _requeued_from
  , _type
  , _source
  , coalesce(_priority, 0)
  , _key
  , _max_attempts
  , _expires_at
  , case when _lease is not null then _worker end
  , null::jsonb -- past_attempts
  , _occurrence;
end;

-- Enqueues one event and returns its id. It can be claimed after _delay, or from _vt on; at once without either.
-- event_ts is taken from the payload (see agent_private.event_ts). The same _key again in the same queue, within _key_retention, returns the id
-- of the first event, or raises QD005 when anything else differs.
create or replace function agent.insert_event
( _event jsonb
, _queue text default 'default'
, _delay interval default null
, _vt timestamptz default null
, _type text default null
, _source text default null
, _priority int4 default 0
, _key text default null
, _max_attempts int4 default null
, _expires_at timestamptz default null
, _key_retention interval default interval '24 hours'
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
    perform agent_private.check_event_times(array[_delay], array[_vt]);
  end if;
  if _key is not null then
    select a.id into strict _id
    from agent_private.insert_keyed_events
    ( array[_event], array[_queue], array[_delay], array[_vt], null, null
    , array
      [ jsonb_strip_nulls(jsonb_build_object
        ( 'type', _type, 'source', _source, 'priority', nullif(_priority, 0), 'key', _key
        , 'max_attempts', _max_attempts, 'expires_at', _expires_at
        ))
      ]
    , _key_retention
    ) a;
  else
    insert into agent.event overriding user value -- the id is the sequence's
    select n.*
    from agent_private.new_event
    ( null, now(), _event, null, _queue, _delay, _vt
    , _type => _type, _source => _source, _priority => _priority, _max_attempts => _max_attempts, _expires_at => _expires_at
    ) n
    returning id into strict _id;
  end if;
  perform pg_notify('agent_event', coalesce(_queue, 'default'));
  return _id;
end
$func$;

-- Refuses delays and vts that make no sense, alone or together. Private to the functions of this schema.
create or replace function agent_private.check_event_times(_delays interval[], _vts timestamptz[])
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
declare
  _delay interval;
  _vt timestamptz;
begin
  for _delay, _vt in
    select t.delay, t.vt
    from unnest(_delays, _vts) as t (delay, vt)
    where t.delay is not null and t.vt is not null or t.delay < interval '0' or not isfinite(t.vt)
    limit 1
  loop
    if _delay is not null and _vt is not null then
      perform agent_private.raise_invalid('vt', 'give a delay or a vt, not both');
    elsif _delay < interval '0' then
      perform agent_private.raise_invalid('delay', 'must not be negative');
    else
      perform agent_private.raise_invalid('vt', 'must be finite');
    end if;
  end loop;
end
$func$;

-- Refuses options that no event has, and values that none may have. Private to the functions of this schema.
create or replace function agent_private.check_event_options(_options jsonb[])
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
declare
  _unknown text;
begin
  select o.name into _unknown
  from unnest(_options) as u (option)
  cross join lateral jsonb_object_keys(u.option) as o (name)
  where o.name not in ('type', 'source', 'priority', 'key', 'max_attempts', 'expires_at', 'occurrence')
  limit 1;
  if found then
    perform agent_private.raise_invalid(_unknown, 'is no option of an event');
  end if;

  perform agent_private.check_event_values('{}', 'default', o.type, o.source, o.key, o.max_attempts, o.expires_at)
  from
  ( select u.option ->> 'type', u.option ->> 'source', u.option ->> 'key', (u.option ->> 'max_attempts')::int4
    , (u.option ->> 'expires_at')::timestamptz
    from unnest(_options) as u (option)
  ) as o (type, source, key, max_attempts, expires_at)
  where not agent_private.is_valid_event('{}', 'default', o.type, o.source, o.key, o.max_attempts, o.expires_at);
end
$func$;

-- The leases of events that are claimed as they arrive, each the policy's where it is '0': null where the queue is paused, or the event has had
-- its time. Private to the functions of this schema.
create or replace function agent_private.leases_on_arrival(_queues text[], _leases interval[], _options jsonb[])
returns interval[]
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  return array
  ( select case
      when p.paused or (n.option ->> 'expires_at')::timestamptz <= clock_timestamp() then null
      when n.lease = interval '0' then coalesce(agent_private.bounded_lease(p.invisible_for), interval '10 minutes')
      else n.lease
    end
    from unnest(_queues, _leases, _options) with ordinality as n (queue, lease, option, ord)
    left join agent.queue p on p.name = n.queue and n.lease is not null
    order by n.ord
  );
end
$func$;

-- What every batch of inserts does. _options, which runs along with the other arrays, holds what an event has beyond a payload, as an object: type, source,
-- priority, key, max_attempts, expires_at, occurrence. An event with a lease ('0': as long as the queue's policy has it), which needs no vt or
-- delay then, is claimed by its worker as it arrives: somebody waits for it. Of such a one all is returned, as it is after the claim; of the others
-- the event is null, and of those whose key was known the vt is that of the first answer.
create or replace function agent.insert_and_claim_events
( _events jsonb[]
, _queues text[]
, _delays interval[]
, _vts timestamptz[]
, _leases interval[] default null
, _workers text[] default null
, _options jsonb[] default null
, _key_retention interval default interval '24 hours'
)
returns table (id int8, queue text, vt timestamptz, enqueued_at timestamptz, event_ts timestamptz, event jsonb, claimed timestamptz[], replayed boolean)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
#variable_conflict use_column
declare
  _now timestamptz = clock_timestamp();
begin
  if greatest(cardinality(_queues), cardinality(_delays), cardinality(_vts), cardinality(_leases), cardinality(_options)) > coalesce(cardinality(_events), 0) then
    perform agent_private.raise_invalid('events', 'must not be fewer than the queues, delays, vts or options that go with them');
  end if;
  if _delays is not null or _vts is not null then
    perform agent_private.check_event_times(_delays, _vts);
  end if;
  if _leases is not null then
    _leases = agent_private.leases_on_arrival(_queues, _leases, _options);
  end if;
  if _options is not null then
    perform agent_private.check_event_options(_options);
    if exists (select from unnest(_options) as o (option) where o.option ? 'key') then
      return query select * from agent_private.insert_keyed_events(_events, _queues, _delays, _vts, _leases, _workers, _options, _key_retention);
      return;
    end if;
  end if;

  return query
  insert into agent.event overriding user value -- the ids are the sequence's
  select e.*
  from unnest(_events, _queues, _delays, _vts, _leases, _workers, _options) with ordinality
    as n (event, queue, delay, vt, lease, worker, option, ord)
  cross join lateral agent_private.new_event
  ( null, _now, n.event, null, n.queue, n.delay, n.vt, n.lease, n.worker
  , n.option ->> 'type', n.option ->> 'source', (n.option ->> 'priority')::int4, null, (n.option ->> 'max_attempts')::int4
  , (n.option ->> 'expires_at')::timestamptz, n.option -> 'occurrence'
  ) as e
  order by n.ord
  returning id, queue, vt, enqueued_at, event_ts, case when attempts > 0 then event end, claimed, false;
end
$func$;

-- Enqueues _events, all or none, and returns ids in their order. The other arrays run along with it; a null array,
-- an array that is shorter, or a null in one, stands for the default. _options are objects as insert_and_claim_events takes them.
-- _notify => false leaves the waking to the caller.
create or replace function agent.insert_events
( _events jsonb[]
, _queues text[] default null
, _delays interval[] default null
, _vts timestamptz[] default null
, _notify boolean default true
, _options jsonb[] default null
, _key_retention interval default interval '24 hours'
)
returns table (id int8, queue text, vt timestamptz)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
#variable_conflict use_column
begin
  return query
  select a.id, a.queue, a.vt
  from agent.insert_and_claim_events(_events, _queues, _delays, _vts, _options => _options, _key_retention => _key_retention) a;

  if _notify then
    perform agent.notify_queues(array(select coalesce(q.name, 'default') from unnest(_events, _queues) q (event, name)));
  end if;
end
$func$;
