-- Upkeep of history: partitions ahead of time, and retention by whole chunks or partitions.

-- What agent.event_hist is: 'hypertable' or 'partitioned'.
create or replace function agent.history_kind()
returns text
language sql stable
set search_path to pg_catalog, pg_temp
as $func$
  select case when c.relkind = 'p' then 'partitioned' else 'hypertable' end
  from pg_class c
  where c.oid = 'agent.event_hist'::regclass
$func$;

-- Native partitioning only: makes the weekly partition that holds _at, unless it is there. Events that went to the default
-- partition for want of it move over. Returns whether it made one. Private to the functions of this schema.
create or replace function agent.make_history_partition(_at timestamptz)
returns boolean
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set timezone to 'UTC'
set lock_timeout to '2s' -- whoever waits for this lock has every ack waiting behind
as $func$
declare
  _start timestamptz = date_bin(interval '7 days', _at, timestamptz '2001-01-01 00:00+00'); -- a Monday
  _end timestamptz = _start + interval '7 days';
  _name text = 'event_hist_' || to_char(_start, 'YYYYMMDD');
begin
  if to_regclass('agent.' || _name) is not null then
    return false;
  end if;
  execute format('create table agent.%I (like agent.event_hist including defaults including constraints)', _name);
  execute format
  ( 'with moved as (delete from agent.event_hist_default where event_ts >= %L and event_ts < %L returning *) insert into agent.%I select * from moved'
  , _start, _end, _name
  );
  execute format('alter table agent.event_hist attach partition agent.%I for values from (%L) to (%L)', _name, _start, _end);
  return true;
end
$func$;

-- Sees to history: has partitions ready for the weeks around now, and drops what is older than _retention (null: nothing)
-- by event_ts, as whole chunks or partitions; what old event_ts brought into the default partition is deleted row by row.
-- Does nothing when another session is at it. Returns what it made and dropped, by name. To be called now and then; the service does hourly.
create or replace function agent.keep_history(_retention interval default null)
returns table (action text, name text)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set timezone to 'UTC'
set lock_timeout to '2s'
as $func$
#variable_conflict use_column
declare
  _cutoff timestamptz = now() - _retention;
  _at timestamptz;
  _name text;
  _deleted int8;
begin
  perform agent.refuse('retention', 'must be more than nothing') where _retention <= interval '0';
  if not pg_try_advisory_xact_lock(hashtextextended('agent.keep_history', 0)) then
    return;
  end if;

  if agent.history_kind() = 'hypertable' then
    if _retention is not null then
      return query execute format
      ( 'select %L, c::text from %I.drop_chunks(%L, older_than => $1) as c'
      , 'dropped'
      , (select n.nspname from pg_extension e join pg_namespace n on n.oid = e.extnamespace where e.extname = 'timescaledb')
      , 'agent.event_hist'
      )
      using _cutoff;
    end if;
    return;
  end if;

  for _at in select w.at from generate_series(now() - interval '7 days', now() + interval '28 days', interval '7 days') as w (at) loop
    if agent.make_history_partition(_at) then
      return query select 'made', 'the partition of ' || _at::date;
    end if;
  end loop;

  if _retention is null then
    return;
  end if;
  for _name in
    select c.relname
    from pg_inherits i
    join pg_class c on c.oid = i.inhrelid
    where i.inhparent = 'agent.event_hist'::regclass
    and c.relname ~ '^event_hist_[0-9]{8}$'
    and to_timestamp(right(c.relname, 8), 'YYYYMMDD') + interval '7 days' <= _cutoff
  loop
    execute format('drop table agent.%I', _name);
    return query select 'dropped', _name;
  end loop;

  delete from agent.event_hist_default where event_ts < _cutoff;
  get diagnostics _deleted = row_count;
  if _deleted > 0 then
    return query select 'deleted', _deleted || ' rows of event_hist_default';
  end if;
end
$func$;

-- Deletes up to _limit events of history that are older, by event_ts, than their queue's policy lets them become, and returns how many.
create or replace function agent.forget_history(_limit int4 default 1000)
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
  _outcome text;
  _deleted int8;
  _total int8 = 0;
begin
  for _name, _retention, _outcome in
    select q.name, q.history_retention, o.outcome
    from agent.queue q
    cross join unnest(array['done', 'failed', 'expired', 'cancelled']) as o (outcome)
    where q.history_retention is not null
  loop
    delete from agent.event_hist h
    where h.event_ts < now() - _retention
    and (h.event_ts, h.id) in
    ( select o.event_ts, o.id
      from agent.event_hist o
      where o.queue = _name and o.outcome = _outcome and o.event_ts < now() - _retention
      order by o.event_ts, o.id
      limit _limit - _total
    );
    get diagnostics _deleted = row_count;
    _total = _total + _deleted;
    exit when _total >= _limit;
  end loop;
  return _total;
end
$func$;

select agent.keep_history();
