-- Maintaining history: partitions ahead of time, and retention by whole chunks or partitions. The functions that are called step by step
-- make acks wait for a moment at most.

-- Takes the next step towards partitions for the weeks around now, up to four ahead, and returns its action; no row if nothing is left
-- to do. Each step needs a transaction of its own and makes others wait for a moment at most. Raises lock_not_available (55P03) where it
-- would have to wait itself: call it again then. A hypertable needs no steps.
--
-- When a partition is added, PostgreSQL reads the whole default partition, to make sure that it holds no events of that week, and
-- everybody waits that long. For the weeks ahead, a constraint says that it holds none, and is validated while others go on. No event
-- comes in for these weeks (see agent_private.event_ts); the constraint would refuse it. The weeks for which events come in get a
-- partition only while the default partition is empty, as it is at first: events in the default partition stay there until they are over
-- age.
create or replace function agent.prepare_history()
returns table (action text, name text)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set timezone to 'UTC'
set lock_timeout to '3s' -- for locks that block nobody; see agent_private.lock_history_partition
as $func$
#variable_conflict use_column
declare
  _default regclass = to_regclass('agent.event_hist_default');
  _is_empty boolean;
  _is_valid boolean;
  _week timestamptz;
  _name text;
begin
  if agent_private.history_flavour() = 'hypertable' then
    return;
  end if;
  perform agent_private.lock_upkeep('partitions');
  _is_empty = agent_private.default_partition_is_empty();
  for _week in
    select agent_private.history_week(now()) + n * interval '7 days' from generate_series(-1, 4) as n
  loop
    _name = agent_private.history_partition_name(_week);
    continue when to_regclass('agent.' || _name) is not null;
    if _is_empty then
      perform agent_private.create_history_partition(_week);
      return query select 'made', _name;
      return;
    end if;
    continue when _week <= now() + interval '2 days';
    select c.convalidated into _is_valid from pg_constraint c where c.conrelid = _default and c.conname = 'not_' || _name;
    if not found then
      continue when agent_private.default_partition_holds(_week);
      perform agent_private.lock_history_partition(_default, false);
      -- In the form of PostgreSQL's own condition for the default partition, so that it recognizes that this constraint implies it.
      execute format
      ( 'alter table agent.event_hist_default add constraint %I check (not (event_ts is not null and event_ts >= %L and event_ts < %L)) not valid'
      , 'not_' || _name, _week, _week + interval '7 days'
      );
      return query select 'announced', _name;
    elsif _is_valid then
      perform agent_private.create_history_partition(_week);
      return query select 'made', _name;
    elsif agent_private.default_partition_holds(_week) then -- an event of that week came in
      perform agent_private.lock_history_partition(_default, false);
      execute format('alter table agent.event_hist_default drop constraint %I', 'not_' || _name);
      continue;
    else
      execute format('alter table agent.event_hist_default validate constraint %I', 'not_' || _name);
      return query select 'checked', _name;
    end if;
    return;
  end loop;
end
$func$;

-- The chunks or partitions of history all of whose events are older than _retention by event_ts, oldest first.
create or replace function agent.old_history(_retention interval)
returns setof text
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set timezone to 'UTC'
as $func$
begin
  if not coalesce(_retention > interval '0', false) then
    perform agent_private.raise_invalid('retention', 'must be greater than zero');
  end if;
  if agent_private.history_flavour() = 'hypertable' then
    return query execute
      'select format(''%I.%I'', c.chunk_schema, c.chunk_name) from timescaledb_information.chunks c
       where c.hypertable_schema = ''agent'' and c.hypertable_name = ''event_hist'' and c.range_end <= $1
       order by c.range_end'
      using agent_private.history_cutoff(_retention);
    return;
  end if;
  return query
  select 'agent.' || c.relname
  from pg_inherits i
  join pg_class c on c.oid = i.inhrelid
  where i.inhparent = 'agent.event_hist'::regclass
  and c.relname ~ '^event_hist_[0-9]{8}$'
  and to_timestamp(right(c.relname, 8), 'YYYYMMDD') + interval '7 days' <= agent_private.history_cutoff(_retention)
  order by c.relname;
end
$func$;

-- Takes the next step in dropping a partition that old_history names, and returns whether it is gone. Each step needs a transaction of
-- its own and makes others wait for a moment at most. Raises lock_not_available (55P03) where it would have to wait itself: call it
-- again then.
create or replace function agent.drop_history(_name text, _retention interval)
returns boolean
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set timezone to 'UTC'
set lock_timeout to '50ms' -- every ack waits behind a session that waits for such a lock
as $func$
declare
  _part regclass = to_regclass(_name);
begin
  perform agent_private.lock_upkeep('retention');
  if not exists (select from agent.old_history(_retention) o where o = _name) then
    return true;
  end if;
  if agent_private.history_flavour() = 'hypertable' then
    execute
      ( select format('select %I.drop_chunks(%L, older_than => $1, newer_than => $2)', n.nspname, 'agent.event_hist')
        from pg_extension e join pg_namespace n on n.oid = e.extnamespace
        where e.extname = 'timescaledb'
      )
      using
        (select c.range_end from timescaledb_information.chunks c where format('%I.%I', c.chunk_schema, c.chunk_name) = _name)
      , (select c.range_start from timescaledb_information.chunks c where format('%I.%I', c.chunk_schema, c.chunk_name) = _name);
    return true;
  end if;
  if pg_relation_size(_part) > 0 then
    -- Truncating removes the files while only this partition is locked. Dropping it takes next to no time then.
    perform agent_private.lock_history_partition(_part, false);
    execute format('truncate %s', _part);
    return false;
  end if;
  perform agent_private.lock_history_partition(_part, true);
  execute format('drop table %s', _part);
  return true;
end
$func$;

-- Deletes up to _limit events older than _retention by event_ts from the default partition, and returns how many.
create or replace function agent.delete_old_history(_retention interval, _limit int4 default 1000)
returns int8
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set enable_seqscan to off
set enable_bitmapscan to off
set enable_sort to off
set jit to off
as $func$
declare
  _cutoff timestamptz;
  _outcome text;
  _deleted int8;
  _total int8 = 0;
begin
  if not coalesce(_retention > interval '0', false) then
    perform agent_private.raise_invalid('retention', 'must be greater than zero');
  end if;
  if agent_private.history_flavour() = 'hypertable' then
    return 0;
  end if;
  _cutoff = agent_private.history_cutoff(_retention);
  foreach _outcome in array array['done', 'failed', 'expired', 'cancelled'] loop
    delete from agent.event_hist_default d
    where d.ctid = any (array
    ( select o.ctid
      from agent.event_hist_default o
      where o.outcome = _outcome and o.event_ts < _cutoff
      order by o.event_ts, o.id
      limit _limit - _total
      for update skip locked
    ));
    get diagnostics _deleted = row_count;
    _total = _total + _deleted;
    exit when _total >= _limit;
  end loop;
  return _total;
end
$func$;

-- Does all the upkeep of history in one transaction, which others may have to wait for: creates partitions for the weeks around now, and
-- deletes events older than _retention (null: none), by whole chunks or partitions, and row by row from the default partition.
-- Returns the partitions created and dropped. Raises lock_not_available (55P03) as its steps do. The service takes the steps one by one:
-- prepare_history, drop_history, delete_old_history.
create or replace function agent.maintain_history(_retention interval default null)
returns table (action text, name text)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
#variable_conflict use_column
declare
  _step record;
  _name text;
  _deleted int8;
begin
  if _retention <= interval '0' then
    perform agent_private.raise_invalid('retention', 'must be greater than zero');
  end if;
  loop
    select p.action, p.name into _step from agent.prepare_history() p;
    exit when not found;
    if _step.action = 'made' then
      return query select _step.action, _step.name;
    end if;
  end loop;
  if _retention is null then
    return;
  end if;

  for _name in select o from agent.old_history(_retention) o loop
    while not agent.drop_history(_name, _retention) loop
    end loop;
    return query select 'dropped', _name;
  end loop;
  _deleted = agent.delete_old_history(_retention, 2147483647);
  if _deleted > 0 then
    return query select 'deleted', _deleted || ' rows of event_hist_default';
  end if;
end
$func$;

-- Deletes up to _limit events of history that are older, by event_ts, than their queue's policy keeps them, and returns how many.
create or replace function agent.prune_history(_limit int4 default 1000)
returns int8
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
set jit to off
as $func$
declare
  _name text;
  _retention interval;
  _cutoff timestamptz;
  _outcome text;
  _deleted int8;
  _total int8 = 0;
begin
  for _name, _retention, _outcome in
    select q.name, q.history_retention, o.outcome
    from agent.queue q
    cross join unnest(array['done', 'failed', 'expired', 'cancelled']) as o (outcome)
    where q.history_retention < interval '1000 years' -- no event is older
  loop
    _cutoff = agent_private.history_cutoff(_retention);
    delete from agent.event_hist h
    where h.event_ts < _cutoff
    and (h.event_ts, h.id) in
    ( select o.event_ts, o.id
      from agent.event_hist o
      where o.queue = _name and o.outcome = _outcome and o.event_ts < _cutoff
      order by o.event_ts, o.id
      limit _limit - _total
      for update skip locked
    );
    get diagnostics _deleted = row_count;
    _total = _total + _deleted;
    exit when _total >= _limit;
  end loop;
  return _total;
end
$func$;

-- Sets how long history is kept at least, whatever the service and the policies of queues say; null: no minimum. Only for the owner of
-- the schema.
create or replace function agent.set_minimum_retention(_retention interval)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  perform agent_private.check_is_owner();
  if not _retention > interval '0' or _retention > interval '1000 years' then
    perform agent_private.raise_invalid('retention', 'must be greater than zero, and at most 1000 years');
  end if;
  delete from agent.minimum_retention;
  insert into agent.minimum_retention (retention) select _retention where _retention is not null;
end
$func$;

-- The tasks of upkeep, and how long ago each was completed; for one that never was, since the migration that added it.
create or replace function agent.list_upkeep()
returns table (task text, age interval)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  return query select u.task, clock_timestamp() - u.done_at from agent.upkeep u order by u.task;
end
$func$;

-- Records that a task of upkeep was completed.
create or replace function agent.record_upkeep(_task text)
returns void
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set lock_timeout to '2s'
as $func$
begin
  insert into agent.upkeep as u (task, done_at) values (_task, clock_timestamp())
  on conflict (task) do update set done_at = excluded.done_at;
end
$func$;

-- Keeps other sessions from a task of upkeep until the caller's transaction ends. Raises lock_not_available (55P03) if another session
-- has it. The lock is on a row that only the owner's functions reach; an advisory lock could be taken by anyone who may connect.
create or replace function agent_private.lock_upkeep(_task text)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set lock_timeout to '2s' -- another session is inserting the row
as $func$
begin
  perform from agent.upkeep u where u.task = _task for update nowait;
  if not found then
    insert into agent.upkeep (task) values (_task) on conflict do nothing;
    perform from agent.upkeep u where u.task = _task for update nowait;
  end if;
end
$func$;

-- The flavour of agent.event_hist: 'hypertable' or 'partitioned'.
create or replace function agent_private.history_flavour()
returns text
language sql stable
set search_path to pg_catalog, pg_temp
as $func$
  select case when c.relkind = 'p' then 'partitioned' when exists (select from pg_extension x where x.extname = 'timescaledb') then 'hypertable' end
  from pg_class c
  where c.oid = 'agent.event_hist'::regclass
$func$;

-- The time before which events of history, by event_ts, may be deleted under a retention.
create or replace function agent_private.history_cutoff(_retention interval)
returns timestamptz
language plpgsql stable
set search_path to pg_catalog, pg_temp
as $func$
begin
  return least(now() - _retention, now() - (select m.retention from agent.minimum_retention m));
end
$func$;

-- The start of the week of a time, a Monday: the lower bound of its partition.
create or replace function agent_private.history_week(_at timestamptz)
returns timestamptz
language sql immutable parallel safe
set search_path to pg_catalog, pg_temp
set timezone to 'UTC'
as $func$
  select date_bin(interval '7 days', _at, timestamptz '2001-01-01 00:00+00')
$func$;

-- The name of the partition of a week.
create or replace function agent_private.history_partition_name(_week timestamptz)
returns text
language sql stable parallel safe
set search_path to pg_catalog, pg_temp
set timezone to 'UTC'
as $func$
  select 'event_hist_' || to_char(_week, 'YYYYMMDD')
$func$;

-- Native partitioning only: creates the weekly partition for _at unless it exists, and returns whether it did. The default partition
-- must not hold events of that week; PostgreSQL reads it to be sure, unless a constraint says so.
create or replace function agent_private.create_history_partition(_at timestamptz)
returns boolean
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set timezone to 'UTC'
as $func$
declare
  _week timestamptz = agent_private.history_week(_at);
  _name text = agent_private.history_partition_name(_week);
begin
  if to_regclass('agent.' || _name) is not null then
    return false;
  end if;
  execute format('create table agent.%I (like agent.event_hist including defaults including constraints including generated)', _name);
  perform agent_private.lock_history_partition('agent.event_hist_default', false);
  execute format('alter table agent.event_hist attach partition agent.%I for values from (%L) to (%L)', _name, _week, _week + interval '7 days');
  execute format('alter table agent.event_hist_default drop constraint if exists %I', 'not_' || _name);
  return true;
end
$func$;

-- Takes the lock on a partition of history that excludes all readers and writers, and with _with_history on history itself, as dropping
-- the partition needs. While that lock is awaited, all others wait behind it, every ack among them: so it is awaited only as long as a
-- few acks take, and lock_not_available (55P03) is raised after that. An autovacuum yields only to someone who waits longer than
-- deadlock_timeout; the first lock, which blocks nobody else, waits that long.
create or replace function agent_private.lock_history_partition(_part regclass, _with_history boolean)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set lock_timeout to '3s'
as $func$
begin
  execute format('lock table only %s in share update exclusive mode', _part);
  perform set_config('lock_timeout', '50ms', true);
  if _with_history then
    lock table only agent.event_hist in access exclusive mode;
  end if;
  execute format('lock table only %s in access exclusive mode', _part);
end
$func$;

-- Whether the default partition holds events of a week.
create or replace function agent_private.default_partition_holds(_week timestamptz)
returns boolean
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
set jit to off
as $func$
begin
  return exists
  ( select from unnest(array['done', 'failed', 'expired', 'cancelled']) as o (outcome)
    where exists
    ( select from agent.event_hist_default d
      where d.outcome = o.outcome and d.event_ts >= _week and d.event_ts < _week + interval '168 hours'
    )
  );
end
$func$;

-- Whether the default partition is empty and small enough to verify that quickly: a vacuum has returned the space of its former rows.
create or replace function agent_private.default_partition_is_empty()
returns boolean
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  return pg_relation_size('agent.event_hist_default') < 8 * 1024 * 1024 and not exists (select from agent.event_hist_default);
end
$func$;

-- The first partitions, on the first migration or if the default partition is empty. Otherwise the service creates them step by step.
do $script$
begin
  if agent_private.history_flavour() = 'partitioned' then
    if agent_private.default_partition_is_empty() then
      perform agent.maintain_history();
    end if;
  end if;
end
$script$;
