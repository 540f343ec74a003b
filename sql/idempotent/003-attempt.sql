-- Attempts: the one under way is in the columns attempts, claimed and worker; those that ended without success are remembered in past_attempts.

-- One attempt that has ended, as an element of past_attempts: its number, who had it, when and how it ended ('nacked', 'lease_ended') and what was
-- said. It takes columns: a row would be put together for each event of a claim, needed or not.
create or replace function agent.past_attempt(_attempt int4, _worker text, _ended_at timestamptz, _outcome text, _error text default null)
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

-- Every attempt at an event, in its queue or in history, in their order: outcome is running, done, failed, nacked or lease_ended; ended_at is null
-- while it runs. No row for an event that was never claimed. Raises QD002 when there is no such event.
create or replace function agent.list_attempts(_id int8)
returns table (attempt int4, worker text, started_at timestamptz, ended_at timestamptz, outcome text, error text)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
as $func$
#variable_conflict use_column
declare
  _claimed timestamptz[];
  _past jsonb;
  _worker text;
  _end timestamptz;    -- of the latest attempt, unless it is among the past ones
  _outcome text;
  _error text;
begin
  select e.claimed, e.past_attempts, e.worker, case when e.vt <= clock_timestamp() then e.vt end
  , case when e.vt <= clock_timestamp() then 'lease_ended' else 'running' end
  into _claimed, _past, _worker, _end, _outcome
  from agent.event e
  where e.id = _id;
  if not found then
    -- A statement of its own: it sees the event if it moved to history since the one above looked.
    select h.claimed, h.past_attempts, h.worker
    , case when h.outcome in ('expired', 'cancelled') then h.vt else h.finished_at end
    , case when h.outcome in ('expired', 'cancelled') then 'lease_ended' else h.outcome end
    , case h.outcome when 'failed' then h.last_error end
    into _claimed, _past, _worker, _end, _outcome, _error
    from agent.event_hist h
    where h.id = _id
    limit 1;
    if not found then
      perform agent.raise_lost(_id, 'not_found');
    end if;
  end if;

  return query
  select c.n::int4
  , case when p.past is null then _worker else p.past ->> 'worker' end
  , c.started_at
  , case when p.past is null then _end else (p.past ->> 'ended_at')::timestamp at time zone 'UTC' end
  , case when p.past is null then _outcome else p.past ->> 'outcome' end
  , case when p.past is null then _error else p.past ->> 'error' end
  from unnest(_claimed) with ordinality as c (started_at, n)
  left join lateral
  ( select v.past from jsonb_array_elements(_past) as v (past) where (v.past ->> 'attempt')::int8 = c.n order by v.past ->> 'ended_at' desc limit 1
  ) as p on true
  order by c.n;
end
$func$;
