-- Delivery logs: the latest attempts of pushes, and the latest deliveries of sources. Processes write them in batches, a moment after the fact, and say how many
-- they have left out.

-- How long a row of a delivery log is kept at most.
create or replace function agent_private.delivery_log_retention()
returns interval
language sql immutable
set search_path to pg_catalog, pg_temp
as $func$ select interval '7 days' $func$;

-- How many rows a queue has of a class of push_delivery at most.
create or replace function agent_private.push_delivery_limit(_class int2)
returns int8
language sql immutable
set search_path to pg_catalog, pg_temp
as $func$ select case _class when 0 then 1000 else 5000 end $func$;

-- How many rows a source has of a class of source_delivery at most.
create or replace function agent_private.source_delivery_limit(_class int2)
returns int8
language sql immutable
set search_path to pg_catalog, pg_temp
as $func$ select case _class when 0 then 1000 when 1 then 500 else 100 end $func$;

-- Logs attempts of pushes, and adds to how many were dropped. _deliveries is an array of objects with the columns of agent.push_delivery but number, oldest
-- first, and _dropped one of {name, class, count}. Those of queues without a push are passed over. Returns the queues whose push another transaction
-- has locked: theirs are not written. For the service.
create or replace function agent_service.log_pushes(_deliveries jsonb, _dropped jsonb)
returns setof text
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set jit to off
as $func$
declare
  _names text[];
  _free text[];
  _log record;
begin
  select array_agg(distinct n.queue) into _names
  from (select d ->> 'queue' from jsonb_array_elements(_deliveries) d union all select d ->> 'name' from jsonb_array_elements(_dropped) d) as n (queue);
  select array_agg(f.queue) into _free
  from (select p.queue from agent.push p where p.queue = any (_names) order by p.queue for key share skip locked) as f (queue);

  for _log in
    select n.queue, n.class, sum(n.logged)::int8 as logged, sum(n.dropped)::int8 as dropped
    from
    ( select d ->> 'queue', (d ->> 'class')::int2, 1, 0 from jsonb_array_elements(_deliveries) d
      union all
      select d ->> 'name', (d ->> 'class')::int2, 0, (d ->> 'count')::int8 from jsonb_array_elements(_dropped) d
    ) as n (queue, class, logged, dropped)
    where n.queue = any (_free)
    group by n.queue, n.class
    order by n.queue, n.class -- so that two processes cannot deadlock
  loop
    insert into agent.push_delivery_log as l (queue, class, last_number, dropped, dropped_at)
    values (_log.queue, _log.class, _log.logged, _log.dropped, case when _log.dropped > 0 then clock_timestamp() end)
    on conflict (queue, class) do update
    set last_number = l.last_number + excluded.last_number, dropped = l.dropped + excluded.dropped, dropped_at = coalesce(excluded.dropped_at, l.dropped_at);
  end loop;

  insert into agent.push_delivery (queue, class, number, at, outcome, event_id, type, attempt, status, ms, error, body, next_at)
  select r.queue, r.class
  , l.last_number - count(*) over (partition by r.queue, r.class) + row_number() over (partition by r.queue, r.class order by n.ord)
  , r.at, r.outcome, r.event_id, r.type, r.attempt, r.status, r.ms, r.error, r.body, r.next_at
  from jsonb_array_elements(_deliveries) with ordinality as n (delivery, ord)
  cross join jsonb_populate_record(null::agent.push_delivery, n.delivery) r
  join agent.push_delivery_log l on l.queue = r.queue and l.class = r.class
  where r.queue = any (_free);

  perform agent_private.trim_push_deliveries(_free);

  return query
  select p.queue::text from agent.push p where p.queue = any (_names) and p.queue <> all (coalesce(_free, '{}'));
end
$func$;

-- Deletes the rows of push_delivery beyond the limits of their classes: as many as were added, by the numbers that the rows have.
create or replace function agent_private.trim_push_deliveries(_queues text[])
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
set enable_hashjoin to off
set enable_mergejoin to off
set jit to off
as $func$
begin
  delete from agent.push_delivery d
  using agent.push_delivery_log l
  where l.queue = any (_queues) and d.queue = l.queue and d.class = l.class
  and d.number <= l.last_number - agent_private.push_delivery_limit(l.class);
end
$func$;

-- The same for the deliveries of sources, of which _deliveries has the columns of agent.source_delivery but number, and _dropped {name, class, count}. Returns the sources
-- that another transaction has locked. For the service.
create or replace function agent_service.log_deliveries(_deliveries jsonb, _dropped jsonb)
returns setof text
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set jit to off
as $func$
declare
  _names text[];
  _free text[];
  _log record;
begin
  select array_agg(distinct n.source) into _names
  from (select d ->> 'source' from jsonb_array_elements(_deliveries) d union all select d ->> 'name' from jsonb_array_elements(_dropped) d) as n (source);
  select array_agg(f.name) into _free
  from (select s.name from agent.source s where s.name = any (_names) order by s.name for key share skip locked) as f (name);

  for _log in
    select n.source, n.class, sum(n.logged)::int8 as logged, sum(n.dropped)::int8 as dropped
    from
    ( select d ->> 'source', (d ->> 'class')::int2, 1, 0 from jsonb_array_elements(_deliveries) d
      union all
      select d ->> 'name', (d ->> 'class')::int2, 0, (d ->> 'count')::int8 from jsonb_array_elements(_dropped) d
    ) as n (source, class, logged, dropped)
    where n.source = any (_free)
    group by n.source, n.class
    order by n.source, n.class
  loop
    insert into agent.source_delivery_log as l (source, class, last_number, dropped, dropped_at)
    values (_log.source, _log.class, _log.logged, _log.dropped, case when _log.dropped > 0 then clock_timestamp() end)
    on conflict (source, class) do update
    set last_number = l.last_number + excluded.last_number, dropped = l.dropped + excluded.dropped, dropped_at = coalesce(excluded.dropped_at, l.dropped_at);
  end loop;

  insert into agent.source_delivery
    (source, class, number, at, result, code, status, ms, address, request_id, event_id, position, events, key, size, body)
  select r.source, r.class
  , l.last_number - count(*) over (partition by r.source, r.class) + row_number() over (partition by r.source, r.class order by n.ord)
  , r.at, r.result, r.code, r.status, r.ms, r.address, r.request_id, r.event_id, r.position, coalesce(r.events, 0), r.key, r.size, r.body
  from jsonb_array_elements(_deliveries) with ordinality as n (delivery, ord)
  cross join jsonb_populate_record(null::agent.source_delivery, n.delivery) r
  join agent.source_delivery_log l on l.source = r.source and l.class = r.class
  where r.source = any (_free);

  perform agent_private.trim_source_deliveries(_free);

  return query
  select s.name::text from agent.source s where s.name = any (_names) and s.name <> all (coalesce(_free, '{}'));
end
$func$;

-- Deletes the rows of source_delivery beyond the limits of their classes.
create or replace function agent_private.trim_source_deliveries(_sources text[])
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
set enable_hashjoin to off
set enable_mergejoin to off
set jit to off
as $func$
begin
  delete from agent.source_delivery d
  using agent.source_delivery_log l
  where l.source = any (_sources) and d.source = l.source and d.class = l.class
  and d.number <= l.last_number - agent_private.source_delivery_limit(l.class);
end
$func$;

-- Deletes up to _limit rows of the delivery logs that are older than seven days, and returns how many.
create or replace function agent.prune_deliveries(_limit int4 default 1000)
returns int8
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
set jit to off
as $func$
declare
  _before timestamptz = clock_timestamp() - agent_private.delivery_log_retention();
  _pushes int8;
  _sources int8;
begin
  delete from agent.push_delivery d
  where d.ctid = any (array(select o.ctid from agent.push_delivery o where o.at < _before order by o.at limit _limit for update skip locked));
  get diagnostics _pushes = row_count;
  delete from agent.source_delivery d
  where d.ctid = any (array(select o.ctid from agent.source_delivery o where o.at < _before order by o.at limit _limit - _pushes for update skip locked));
  get diagnostics _sources = row_count;
  return _pushes + _sources;
end
$func$;

-- Up to _limit attempts to push the events of a queue, the latest first, of the last seven days, before the one that began at _before_at and has the id _before_id. Further
-- filters, each null for any: the status of the answer, the outcome, the event, and from when (inclusive) to when (exclusive) they began.
--
-- class and number tell an attempt from the others of the queue; id is made of both. send_again is the call that sends the event again: requeue if it is in history, run if it
-- waits; null: it is being sent, or is kept no more. Raises QD003, and QD050 if the queue has no push.
create or replace function agent.list_push_deliveries
( _queue text
, _limit int4 default 100
, _before_at timestamptz default null
, _before_id int8 default null
, _status int4 default null
, _outcome text default null
, _event int8 default null
, _from timestamptz default null
, _to timestamptz default null
)
returns table
( id int8, at timestamptz, outcome text, event_id int8, type text, attempt int4, status int4, ms int8, error text, body text, next_at timestamptz, send_again text
)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set enable_seqscan to off
set jit to off
as $func$
#variable_conflict use_column
declare
  _now timestamptz = clock_timestamp();
begin
  if coalesce(_limit, 0) < 1 then
    perform agent_private.raise_invalid('limit', 'must be at least 1');
  elsif _outcome not in ('delivered', 'retried', 'failed', 'held', 'lease_lost') then
    perform agent_private.raise_invalid('outcome', 'must be delivered, retried, failed, held or lease_lost');
  end if;
  perform from agent.push p where p.queue = _queue;
  if not found then
    raise exception 'the queue % has no push', _queue using errcode = 'QD050';
  end if;
  return query
  with page as materialized
  ( select d.number * 2 + d.class as id, d.at, d.outcome, d.event_id, d.type, d.attempt, d.status, d.ms, d.error, d.body, d.next_at
    from agent.push_delivery d
    where d.queue = _queue and d.at >= _now - agent_private.delivery_log_retention()
    and (_before_at is null or (d.at, d.number * 2 + d.class) < (_before_at, _before_id))
    and (_status is null or d.status = _status) and (_outcome is null or d.outcome = _outcome) and (_event is null or d.event_id = _event)
    and (_from is null or d.at >= _from) and (_to is null or d.at < _to)
    order by d.at desc, d.number * 2 + d.class desc
    limit _limit
  )
  , ended as materialized
  ( select h.id from agent.event_hist h
    where h.id = any (array(select p.event_id from page p)) and h.queue = _queue and agent_private.living_copy(h.requeued_as) is null
  )
  select p.id, p.at, p.outcome, p.event_id, p.type, p.attempt, p.status, p.ms, p.error, p.body, p.next_at
  , case
      when e.id is not null then case when agent_private.event_state(e, _now) <> 'leased' then 'run' end
      when p.event_id in (select n.id from ended n) then 'requeue'
    end
  from page p
  left join agent.event e on e.id = p.event_id and e.queue = _queue
  order by p.at desc, p.id desc;
end
$func$;

-- How many attempts to push the events of a queue were not logged because there were too many, and when the latest of them was.
create or replace function agent.dropped_push_deliveries(_queue text)
returns table (dropped int8, dropped_at timestamptz)
language sql stable
security definer
set search_path to pg_catalog, pg_temp
as $func$
  select coalesce(sum(l.dropped), 0)::int8, max(l.dropped_at) from agent.push_delivery_log l where l.queue = _queue
$func$;

-- Up to _limit deliveries of a source, the latest first, of the last seven days, before the one that came at _before_at and has the id _before_id. Further filters, each null
-- for any: the result, and from when (inclusive) to when (exclusive) they came. Raises QD003, and QD040 if there is no such source.
create or replace function agent.list_source_deliveries
( _source text
, _limit int4 default 100
, _before_at timestamptz default null
, _before_id int8 default null
, _result text default null
, _from timestamptz default null
, _to timestamptz default null
)
returns table
( id int8, at timestamptz, result text, code text, status int4, ms int8, address text, request_id text, event_id int8, "position" int8, events int4, key text, size int8
, body text
)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set enable_seqscan to off
set jit to off
as $func$
#variable_conflict use_column
declare
  _now timestamptz = clock_timestamp();
begin
  if coalesce(_limit, 0) < 1 then
    perform agent_private.raise_invalid('limit', 'must be at least 1');
  elsif _result not in ('received', 'duplicate', 'challenge', 'rejected', 'invalid', 'rate_limited', 'paused', 'failed') then
    perform agent_private.raise_invalid('result', 'must be received, duplicate, challenge, rejected, invalid, rate_limited, paused or failed');
  end if;
  perform from agent.source s where s.name = _source;
  if not found then
    raise exception 'there is no source %', _source using errcode = 'QD040';
  end if;
  return query
  select d.number * 4 + d.class, d.at, d.result, d.code, d.status, d.ms, d.address, d.request_id, d.event_id, d.position, d.events, d.key, d.size, d.body
  from agent.source_delivery d
  where d.source = _source and d.at >= _now - agent_private.delivery_log_retention()
  and (_before_at is null or (d.at, d.number * 4 + d.class) < (_before_at, _before_id))
  and (_result is null or d.result = _result)
  and (_from is null or d.at >= _from) and (_to is null or d.at < _to)
  order by d.at desc, d.number * 4 + d.class desc
  limit _limit;
end
$func$;

-- How many deliveries of a source were not logged because there were too many, and when the latest of them came.
create or replace function agent.dropped_source_deliveries(_source text)
returns table (dropped int8, dropped_at timestamptz)
language sql stable
security definer
set search_path to pg_catalog, pg_temp
as $func$
  select coalesce(sum(l.dropped), 0)::int8, max(l.dropped_at) from agent.source_delivery_log l where l.source = _source
$func$;
