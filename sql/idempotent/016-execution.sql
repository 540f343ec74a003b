-- Statistics of executions: how long the work took, by type and worker.

-- Adds executions that ended well, each with its type, worker (null: unnamed) and duration, to a part of the statistics: one that nobody else
-- writes to at the same time (null: the transaction's own). _counts, where given, says for how many executions a row stands, whose shortest and
-- longest are _fastest and _longest and whose last took _latest; _times is then their sum.
create or replace function agent.record_executions
( _types text[]
, _workers text[]
, _times interval[]
, _part text default null
, _counts int8[] default null
, _fastest interval[] default null
, _longest interval[] default null
, _latest interval[] default null
)
returns void
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  insert into agent.execution as x (type, worker, part, cycles, total, fastest, longest, latest, latest_at)
  select coalesce(a.type, ''), coalesce(a.worker, ''), coalesce(_part, 'transaction ' || pg_current_xact_id()::text)
  , sum(coalesce(a.n, 1)), sum(a.took), min(coalesce(a.fastest, a.took)), max(coalesce(a.longest, a.took))
  , (array_agg(coalesce(a.latest, a.took) order by a.ord desc))[1], clock_timestamp()
  from unnest(_types, _workers, _times, _counts, _fastest, _longest, _latest) with ordinality
    as a (type, worker, took, n, fastest, longest, latest, ord)
  where a.took is not null
  group by 1, 2
  order by 1, 2
  on conflict (type, worker, part) do update
  set cycles = x.cycles + excluded.cycles
    , total = x.total + excluded.total
    , fastest = least(x.fastest, excluded.fastest)
    , longest = greatest(x.longest, excluded.longest)
    , latest = excluded.latest
    , latest_at = excluded.latest_at;
end
$func$;

-- The statistics by type and worker (each '' where unnamed), of one type or worker only unless that is null. average is total ÷ cycles.
create or replace function agent.list_executions(_type text default null, _worker text default null)
returns table
( type text, worker text, cycles int8, latest interval, average interval, fastest interval, longest interval, total interval
, latest_at timestamptz
)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
#variable_conflict use_column
begin
  return query
  select x.type, x.worker, sum(x.cycles)::int8
  , (array_agg(x.latest order by x.latest_at desc))[1]
  , sum(x.total) / sum(x.cycles)::float8
  , min(x.fastest), max(x.longest), sum(x.total), max(x.latest_at)
  from agent.execution x
  where (_type is null or x.type = _type) and (_worker is null or x.worker = _worker)
  and x.cycles > 0 and x.total < interval '10000 years' -- others could not be summed up
  group by x.type, x.worker
  order by x.type, x.worker;
end
$func$;

-- Folds the parts of transactions, and of processes that are no more, into one, and forgets workers that have finished nothing for _gone. Raises
-- lock_not_available (55P03) when another session is at it. Returns how many rows went. To be called now and then; the service does.
create or replace function agent.prune_executions(_gone interval default interval '30 days')
returns int8
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _forgotten int8;
  _folded int8;
begin
  if not coalesce(_gone > interval '0', false) then
    perform agent_private.raise_invalid('gone', 'must be more than nothing');
  end if;
  perform agent_private.lock_upkeep('executions');

  with latest as (select x.type, x.worker, max(x.latest_at) as at from agent.execution x group by x.type, x.worker)
  delete from agent.execution x
  using latest l
  where l.type = x.type and l.worker = x.worker and l.at < clock_timestamp() - _gone;
  get diagnostics _forgotten = row_count;

  with folded as
  ( delete from agent.execution x
    where x.part <> '' and not exists (select from agent.process_metric m where m.id = x.part) and x.total < interval '10000 years'
    returning x.*
  )
  , summed as
  ( select f.type, f.worker, sum(f.cycles) as cycles, sum(f.total) as total, min(f.fastest) as fastest, max(f.longest) as longest
    , (array_agg(f.latest order by f.latest_at desc))[1] as latest, max(f.latest_at) as latest_at, count(*) as n
    from folded f
    group by f.type, f.worker
  )
  , added as
  ( insert into agent.execution as x (type, worker, part, cycles, total, fastest, longest, latest, latest_at)
    select s.type, s.worker, '', s.cycles, s.total, s.fastest, s.longest, s.latest, s.latest_at
    from summed s
    order by s.type, s.worker
    on conflict (type, worker, part) do update
    set cycles = x.cycles + excluded.cycles
      , total = x.total + excluded.total
      , fastest = least(x.fastest, excluded.fastest)
      , longest = greatest(x.longest, excluded.longest)
      , latest = case when excluded.latest_at > x.latest_at then excluded.latest else x.latest end
      , latest_at = greatest(x.latest_at, excluded.latest_at)
    returning 1
  )
  select coalesce(sum(s.n), 0) into _folded from summed s;
  return _forgotten + _folded;
end
$func$;
