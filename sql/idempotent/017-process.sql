-- Processes: what each process of the service counts, for whoever wants to see the whole fleet.

-- Sets the metrics of a process, by category, and thereby says that it lives.
create or replace function agent.report_process(_id text, _process text, _categories text[], _values text[])
returns void
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  insert into agent.process_metric as m (id, process, category, value, updated_at)
  select _id, _process, a.category, a.value, clock_timestamp()
  from unnest(_categories, _values) as a (category, value)
  order by a.category
  on conflict (id, category) do update
  set process = excluded.process, value = excluded.value, updated_at = excluded.updated_at;
end
$func$;

-- The metrics of the processes that have reported within _alive.
create or replace function agent.list_processes(_alive interval default interval '30 seconds')
returns table (id text, process text, category text, value text, updated_at timestamptz)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
#variable_conflict use_column
begin
  return query
  select m.id, m.process, m.category, m.value, m.updated_at
  from agent.process_metric m
  where exists (select from agent.process_metric o where o.id = m.id and o.updated_at > clock_timestamp() - _alive)
  order by m.process, m.id, m.category;
end
$func$;

-- Takes out a process that ends (_id), and those that have not reported for _alive.
create or replace function agent.prune_processes(_id text default null, _alive interval default interval '30 seconds')
returns void
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  delete from agent.process_metric m
  where m.id = _id
  or not exists (select from agent.process_metric o where o.id = m.id and o.updated_at > clock_timestamp() - _alive);
end
$func$;
