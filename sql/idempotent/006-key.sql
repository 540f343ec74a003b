-- Idempotency keys: the same request again makes no second event.

-- add_events where some events have a key. Of those with the same key in the same queue one is enqueued; the others get its id, if all they
-- say is the same, and QD005 is raised if it is not. Whoever comes second waits until the first has committed. Private to the functions of this schema.
create or replace function agent.add_keyed_events
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
  _fingerprints text[];
  _ids int8[]; -- of the events to enqueue, null where a key stands for another one
  _reused text;
begin
  perform agent.refuse('key', 'must be 1 to 255 characters')
  from unnest(_options) as o (option)
  where length(o.option ->> 'key') not between 1 and 255;
  perform agent.refuse('key_retention', 'must be more than nothing') where not coalesce(_key_retention > interval '0', false);

  _fingerprints = array
  ( select case when n.option ? 'key' then md5(jsonb_build_array(n.event, n.option, n.delay, n.vt)::text) end
    from unnest(_events, _options, _delays, _vts) with ordinality as n (event, option, delay, vt, ord)
    order by n.ord
  );

  with asked as
  ( select distinct on (1, 2) coalesce(n.queue, 'default') as queue, n.option ->> 'key' as key, n.ord, n.fingerprint
    , coalesce(n.vt, agent.later(now(), n.delay), now()) as vt
    from unnest(_queues, _options, _fingerprints, _delays, _vts) with ordinality as n (queue, option, fingerprint, delay, vt, ord)
    where n.option ? 'key'
    order by 1, 2, n.ord
  )
  , fresh as
  ( insert into agent.idempotency as i (queue, key, fingerprint, event_id, vt, expires_at)
    select a.queue, a.key, a.fingerprint, nextval('agent.event_id_seq'), a.vt, agent.later(_now, _key_retention)
    from asked a
    order by a.queue, a.key -- lest two calls wait for each other
    on conflict (queue, key) do update
    set fingerprint = excluded.fingerprint, event_id = excluded.event_id, vt = excluded.vt, expires_at = excluded.expires_at
    where i.expires_at <= clock_timestamp()
    returning i.queue, i.key, i.event_id
  )
  select array_agg(case when n.option ? 'key' then f.event_id else nextval('agent.event_id_seq') end order by n.ord) into _ids
  from unnest(_events, _options) with ordinality as n (event, option, ord)
  left join asked a on a.ord = n.ord
  left join fresh f on f.queue = a.queue and f.key = a.key;

  -- A statement of its own: it sees what others committed while the one above waited for them.
  select n.option ->> 'key' into _reused
  from unnest(_queues, _options, _fingerprints) as n (queue, option, fingerprint)
  join agent.idempotency i on i.queue = coalesce(n.queue, 'default') and i.key = n.option ->> 'key'
  where i.fingerprint <> n.fingerprint
  limit 1;
  if found then
    raise exception 'the idempotency key % stands for another event', quote_literal(_reused)
      using errcode = 'QD005', column = 'key', detail = 'stands for another event';
  end if;

  return query
  with added as
  ( insert into agent.event
    ( id, event, event_ts, queue, vt, attempts, claimed, worker
    , type, source, priority, key, max_attempts, expires_at, occurrence
    )
    overriding system value
    select
      n.id
    , n.event
    , case when n.event ? 'event_ts' then agent.event_ts(n.event) else now() end
    , coalesce(n.queue, 'default')
    , coalesce(agent.later(_now, n.lease), n.vt, agent.later(now(), n.delay), now())
    , case when n.lease is null then 0 else 1 end
    , case when n.lease is null then '{}' else array[_now] end
    , case when n.lease is not null then n.worker end
    , n.option ->> 'type'
    , n.option ->> 'source'
    , coalesce((n.option ->> 'priority')::int4, 0)
    , n.option ->> 'key'
    , (n.option ->> 'max_attempts')::int4
    , (n.option ->> 'expires_at')::timestamptz
    , n.option -> 'occurrence'
    from unnest(_ids, _events, _queues, _delays, _vts, _leases, _workers, _options) with ordinality
      as n (id, event, queue, delay, vt, lease, worker, option, ord)
    where n.id is not null
    order by n.ord
    returning id, queue, vt, enqueued_at, event_ts, case when attempts > 0 then event end, claimed
  )
  select
    coalesce(a.id, i.event_id), coalesce(n.queue, 'default'), coalesce(a.vt, i.vt)
  , a.enqueued_at, a.event_ts, a.event, a.claimed
  , a.id is null
  from unnest(_ids, _queues, _options) with ordinality as n (id, queue, option, ord)
  left join added a (id, queue, vt, enqueued_at, event_ts, event, claimed) on a.id = n.id
  left join agent.idempotency i on i.queue = coalesce(n.queue, 'default') and i.key = n.option ->> 'key'
  order by n.ord;
end
$func$;

-- Forgets up to _limit keys whose time is over, and returns how many. To be called now and then; the service does with its sweeps.
create or replace function agent.forget_keys(_limit int4 default 1000)
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
