-- Idempotency keys: the same request again makes no second event.

-- A JSON value as text, the same for all that jsonb holds equal. The text of jsonb has names in one order and no blanks of its own; what is left are
-- zeros at the end of a fraction.
create or replace function agent_private.canonical_text(_value jsonb)
returns text
language plpgsql immutable strict parallel safe
set search_path to pg_catalog, pg_temp
set standard_conforming_strings to on
as $func$
declare
  _text text = _value::text;
begin
  if _text !~ '[.][0-9]*0($|[^0-9])' then -- as nearly always
    return _text;
  end if;
  -- Strings are matched first, and stay; outside of them a point stands in numbers only.
  return regexp_replace(_text, '("(?:[^"\\]|\\.)*")|([.][0-9]*[1-9])0+(?![0-9])|[.]0+(?![0-9])', '\1\2', 'g');
end
$func$;

-- A JSON value as a hash, the same for all that jsonb holds equal.
create or replace function agent_private.hash_json(_value jsonb)
returns text
language sql immutable parallel safe
return 'sha256:' || encode(sha256(convert_to(agent_private.canonical_text(_value), 'UTF8')), 'hex');

-- What tells requests under one key apart: everything they say, by value. Numbers, instants and durations are the same however they are written; no
-- delay is a delay of nothing, and a delay in months is not one in days. It depends on no setting of the session.
create or replace function agent_private.request_fingerprint(_event jsonb, _option jsonb, _delay interval, _vt timestamptz)
returns text
language sql stable parallel safe
return agent_private.hash_json(jsonb_build_array
( _event
, _option ->> 'type'
, _option ->> 'source'
, coalesce((_option ->> 'priority')::int4, 0)
, (_option ->> 'max_attempts')::int4
, trim_scale(extract(epoch from (_option ->> 'expires_at')::timestamptz))
, nullif(_option -> 'occurrence', 'null')
, coalesce(extract(year from _delay) * 12 + extract(month from _delay), 0)
, coalesce(trim_scale(extract(epoch from _delay)), 0)
, trim_scale(extract(epoch from _vt))
));

-- Whether a request is the one of a fingerprint that version 0.2.0 or an earlier one made: the MD5 of the request as its session wrote it. If it is not that, the
-- request is held against the event that came of the first one, which got _first_vt.
create or replace function agent_private.is_same_request(_fingerprint text, _first_id int8, _first_vt timestamptz, _event jsonb, _option jsonb, _delay interval, _vt timestamptz)
returns boolean
language plpgsql stable
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
as $func$
declare
  _first record;
begin
  if length(_fingerprint) <> 32 then
    return false;
  elsif _fingerprint = md5(jsonb_build_array(_event, _option, _delay, _vt)::text) then
    return true;
  end if;
  select e.event, e.enqueued_at, jsonb_build_object
  ( 'type', e.type, 'source', e.source, 'priority', e.priority, 'max_attempts', e.max_attempts, 'expires_at', e.expires_at, 'occurrence', e.occurrence
  ) as option into _first
  from agent.event e
  where e.id = _first_id;
  if not found then
    select h.event, h.enqueued_at, jsonb_build_object
    ( 'type', h.type, 'source', h.source, 'priority', h.priority, 'max_attempts', h.max_attempts, 'expires_at', h.expires_at, 'occurrence', h.occurrence
    ) as option into _first
    from agent.event_hist h
    where h.id = _first_id
    limit 1;
  end if;
  return found
    and agent_private.request_fingerprint(_first.event, _first.option, null, _first_vt)
      = agent_private.request_fingerprint(_event, _option, null, coalesce(_vt, agent_private.add_utc(_first.enqueued_at, coalesce(_delay, interval '0'))));
end
$func$;

-- insert_and_claim_events where some events have a key. Of those with the same key in the same queue one is enqueued; the others get its id, if all they
-- say is the same, and QD005 is raised if it is not. Whoever comes second waits until the first has committed. Private to the functions of this schema.
create or replace function agent_private.insert_keyed_events
( _events jsonb[]
, _queues text[]
, _delays interval[]
, _vts timestamptz[]
, _leases interval[]
, _workers text[]
, _options jsonb[]
, _key_retention interval
)
returns table (id int8, queue text, vt timestamptz, enqueued_at timestamptz, event_ts timestamptz, event jsonb, claimed timestamptz[], replayed boolean)
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
#variable_conflict use_column
declare
  _now timestamptz = clock_timestamp();
  _keys text[];
  _fingerprints text[];
  _ids int8[];             -- of the events to enqueue, null where a key stands for another one
  _first_ids int8[];       -- of the events that the keys stand for
  _first_vts timestamptz[];
  _reused text;
  _is_missing boolean;
begin
  if exists (select from unnest(_options) as o (option) where length(o.option ->> 'key') not between 1 and 255) then
    perform agent_private.raise_invalid('key', 'must be 1 to 255 characters');
  elsif not coalesce(_key_retention > interval '0', false) then
    perform agent_private.raise_invalid('key_retention', 'must be more than nothing');
  end if;

  select array_agg(coalesce(n.queue, 'default') order by n.ord), array_agg(n.option ->> 'key' order by n.ord)
  , array_agg(case when n.option ->> 'key' is not null then agent_private.request_fingerprint(n.event, n.option, n.delay, n.vt) end order by n.ord)
  into _queues, _keys, _fingerprints
  from unnest(_events, _queues, _options, _delays, _vts) with ordinality as n (event, queue, option, delay, vt, ord);

  loop -- once, unless a key is taken away between the statements
    with asked as
    ( select distinct on (1, 2) n.queue, n.key, n.ord, n.fingerprint, coalesce(n.vt, agent_private.add_utc(now(), n.delay), now()) as vt
      from unnest(_queues, _keys, _fingerprints, _delays, _vts, _first_ids) with ordinality as n (queue, key, fingerprint, delay, vt, first_id, ord)
      where n.key is not null and n.first_id is null
      order by 1, 2, n.ord
    )
    , fresh as
    ( insert into agent.idempotency as i (queue, key, fingerprint, event_id, vt, expires_at)
      select a.queue, a.key, a.fingerprint, nextval('agent.event_id_seq'), a.vt, agent_private.add_utc(_now, _key_retention)
      from asked a
      order by a.queue, a.key -- lest two calls wait for each other
      on conflict (queue, key) do update
      set fingerprint = excluded.fingerprint, event_id = excluded.event_id, vt = excluded.vt, expires_at = excluded.expires_at
      where i.expires_at <= clock_timestamp()
      returning i.queue, i.key, i.event_id
    )
    select array_agg(coalesce(n.id, f.event_id, case when n.key is null then nextval('agent.event_id_seq') end) order by n.ord) into _ids
    from unnest(_keys, _ids) with ordinality as n (key, id, ord)
    left join asked a on a.ord = n.ord
    left join fresh f on f.queue = a.queue and f.key = a.key;

    -- A statement of its own: it sees what others committed while the one above waited for them.
    select array_agg(i.event_id order by n.ord), array_agg(i.vt order by n.ord), bool_or(n.key is not null and i.event_id is null)
    , min(n.key) filter
      ( where i.fingerprint <> n.fingerprint
        and not agent_private.is_same_request(i.fingerprint, i.event_id, i.vt, n.event, n.option, n.delay, n.vt)
      )
    into _first_ids, _first_vts, _is_missing, _reused
    from unnest(_queues, _keys, _fingerprints, _events, _options, _delays, _vts) with ordinality
      as n (queue, key, fingerprint, event, option, delay, vt, ord)
    left join agent.idempotency i on i.queue = n.queue and i.key = n.key;
    exit when not _is_missing;
  end loop;
  if _reused is not null then
    raise exception 'the idempotency key % stands for another event', quote_literal(_reused)
      using errcode = 'QD005', column = 'key', detail = 'stands for another event';
  end if;

  return query
  with added as
  ( insert into agent.event overriding system value
    select e.*
    from unnest(_ids, _events, _queues, _keys, _delays, _vts, _leases, _workers, _options) with ordinality
      as n (id, event, queue, key, delay, vt, lease, worker, option, ord)
    cross join lateral agent_private.new_event
    ( n.id, _now, n.event, null, n.queue, n.delay, n.vt, n.lease, n.worker
    , n.option ->> 'type', n.option ->> 'source', (n.option ->> 'priority')::int4, n.key, (n.option ->> 'max_attempts')::int4
    , (n.option ->> 'expires_at')::timestamptz, n.option -> 'occurrence'
    ) as e
    where n.id is not null
    order by n.ord
    returning id, queue, vt, enqueued_at, event_ts, case when attempts > 0 then event end, claimed
  )
  select
    coalesce(a.id, n.first_id), n.queue, coalesce(a.vt, n.first_vt)
  , a.enqueued_at, a.event_ts, a.event, a.claimed
  , a.id is null
  from unnest(_ids, _queues, _first_ids, _first_vts) with ordinality as n (id, queue, first_id, first_vt, ord)
  left join added a (id, queue, vt, enqueued_at, event_ts, event, claimed) on a.id = n.id
  order by n.ord;
end
$func$;

-- Forgets up to _limit keys whose time is over, and returns how many. To be called now and then; the service does with its sweeps.
create or replace function agent.prune_keys(_limit int4 default 1000)
returns int8
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
as $func$
declare
  _forgotten int8;
begin
  delete from agent.idempotency i
  where i.ctid = any (array
  ( select o.ctid
    from agent.idempotency o
    where o.expires_at <= clock_timestamp()
    order by o.expires_at
    limit _limit
    for update skip locked
  ));
  get diagnostics _forgotten = row_count;
  return _forgotten;
end
$func$;
