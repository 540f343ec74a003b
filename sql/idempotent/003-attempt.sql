-- Attempts: the one under way is in the columns attempts, claimed and worker; those that ended without success are in past_attempts.
--
-- A row is written anew by each claim and each nack, so what it keeps is bounded, and an event may be tried for ever: claimed has the first claim
-- and the latest 99, past_attempts the latest 20 attempts, fewer when they come to more than 256 KiB. attempts counts them all.

-- One attempt that has ended, as an element of past_attempts: its number, who had it, when and how it ended ('nacked', 'lease_ended') and what was
-- said. It takes columns: a row would be put together for each event of a claim, needed or not.
create or replace function agent_private.past_attempt(_attempt int4, _worker text, _ended_at timestamptz, _outcome text, _error text default null)
returns jsonb
language sql immutable parallel safe
set search_path to pg_catalog, pg_temp
as $func$
  select jsonb_strip_nulls(jsonb_build_object
  ( 'attempt', _attempt
  , 'worker', _worker
  , 'ended_at', _ended_at at time zone 'UTC'
  , 'outcome', _outcome
  , 'error', _error
  ))
$func$;

-- claimed as one list of times, whatever somebody wrote into it. Private to the functions of this schema.
create or replace function agent_private.flatten_claims(_claimed timestamptz[])
returns timestamptz[]
language sql immutable parallel safe
set search_path to pg_catalog, pg_temp
as $func$
  select coalesce(array_agg(c.at order by c.n) filter (where isfinite(c.at)), '{}') from unnest(_claimed) with ordinality as c (at, n)
$func$;

-- claimed after another claim.
create or replace function agent_private.append_claim(_claimed timestamptz[], _at timestamptz)
returns timestamptz[]
language sql immutable parallel safe
return case
  when array_ndims(_claimed) > 1 or array_lower(_claimed, 1) <> 1 then agent_private.flatten_claims(_claimed) || _at
  when cardinality(_claimed) < 100 then _claimed || _at
  else _claimed[1] || _claimed[cardinality(_claimed) - 97:] || _at
end;

-- When an attempt began, null where claimed has it no more.
create or replace function agent_private.attempt_start(_attempts int4, _claimed timestamptz[], _attempt int4)
returns timestamptz
language sql immutable parallel safe
return case
  when _attempt = 1 then _claimed[1]
  when _attempt > _attempts::int8 - cardinality(_claimed) + 1 and _attempt <= _attempts then _claimed[_attempt - _attempts + cardinality(_claimed)]
end;

-- past_attempts after another attempt, see agent_private.past_attempt(). Whatever it was before, it is an array then.
create or replace function agent_private.append_attempt
( _past jsonb
, _attempt int4
, _worker text
, _ended_at timestamptz
, _outcome text
, _error text default null
)
returns jsonb
language plpgsql stable parallel safe
set search_path to pg_catalog, pg_temp
as $func$
declare
  _max_count int4 = 20;
  _max_size int4 = 262144; -- bytes
  _count int4;
begin
  _past = case when jsonb_typeof(_past) = 'array' then _past else '[]' end || agent_private.past_attempt(_attempt, _worker, _ended_at, _outcome, _error);
  _count = jsonb_array_length(_past);
  if _count > _max_count + 1 then -- written by an earlier version
    select jsonb_agg(p.past order by p.n) into _past
    from jsonb_array_elements(_past) with ordinality as p (past, n)
    where p.n > _count - _max_count;
    _count = _max_count;
  end if;
  while _count > _max_count or _count > 1 and pg_column_size(_past) > _max_size loop
    _past = _past - 0;
    _count = _count - 1;
  end loop;
  return _past;
end
$func$;

-- How many attempts ended without success, of an event in its queue as it looks at a time.
create or replace function agent_private.error_count(_attempts int4, _nacked_at timestamptz, _vt timestamptz, _at timestamptz)
returns int4
language sql immutable parallel safe
return case when _attempts > 0 and _nacked_at is null and _vt > _at then _attempts - 1 else greatest(_attempts, 0) end;

-- The attempts of past_attempts. What is none is passed over: somebody else wrote it. Private to the functions of this schema.
create or replace function agent_private.read_attempts(_past jsonb)
returns table (attempt int4, worker text, ended_at timestamptz, outcome text, error text)
language plpgsql stable
set search_path to pg_catalog, pg_temp
set timezone to 'UTC'
as $func$
#variable_conflict use_column
declare
  _element jsonb;
begin
  if jsonb_typeof(_past) is distinct from 'array' then
    return;
  end if;
  for _element in select v from jsonb_array_elements(_past) v loop
    begin
      return query
      select p.attempt, p.worker, p.ended_at at time zone 'UTC', case when p.outcome = 'nacked' then p.outcome else 'lease_ended' end, p.error
      from jsonb_to_record(_element) as p (attempt int4, worker text, ended_at timestamp, outcome text, error text)
      where p.attempt >= 1 and p.ended_at is not null;
    exception when data_exception then
      continue;
    end;
  end loop;
end
$func$;

-- The attempts at an event, in its queue or in history, that it keeps (see above), in their order: outcome is running, done, failed, nacked or
-- lease_ended; ended_at is null while it runs. No row for an event that was never claimed. Raises QD002 when there is no such event.
create or replace function agent.list_attempts(_id int8)
returns table (attempt int4, worker text, started_at timestamptz, ended_at timestamptz, outcome text, error text)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
as $func$
#variable_conflict use_column
declare
  _attempts int4;
  _claimed timestamptz[];
  _past jsonb;
  _worker text;
  _end timestamptz;    -- of the latest attempt, unless it is among the past ones
  _outcome text;
  _error text;
begin
  select e.attempts, e.claimed, e.past_attempts, e.worker, case when e.vt <= clock_timestamp() then e.vt end
  , case when e.vt <= clock_timestamp() then 'lease_ended' else 'running' end
  into _attempts, _claimed, _past, _worker, _end, _outcome
  from agent.event e
  where e.id = _id;
  if not found then
    -- A statement of its own: it sees the event if it moved to history since the one above looked.
    select h.attempts, h.claimed, h.past_attempts, h.worker
    , case when h.outcome in ('expired', 'cancelled') then h.vt else h.finished_at end
    , case when h.outcome in ('expired', 'cancelled') then 'lease_ended' else h.outcome end
    , case h.outcome when 'failed' then h.last_error end
    into _attempts, _claimed, _past, _worker, _end, _outcome, _error
    from agent.event_hist h
    where h.id = _id
    limit 1;
    if not found then
      perform agent_private.raise_lease_error(_id, 'not_found');
    end if;
  end if;

  return query
  select a.attempt, a.worker, agent_private.attempt_start(_attempts, _claimed, a.attempt), a.ended_at, a.outcome, a.error
  from
  ( select distinct on (k.attempt) k.attempt, k.worker, k.ended_at, k.outcome, k.error
    from
    ( select p.attempt, p.worker, p.ended_at, p.outcome, p.error
      from agent_private.read_attempts(_past) p
      union all
      select _attempts, _worker, _end, _outcome, _error
      where _attempts >= 1 and not coalesce(_past @> jsonb_build_array(jsonb_build_object('attempt', _attempts)), false)
    ) as k
    order by k.attempt, k.ended_at desc
  ) as a
  where agent_private.attempt_start(_attempts, _claimed, a.attempt) is not null
  order by a.attempt;
end
$func$;
