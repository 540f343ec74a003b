-- agent.event_hist: every event that left its queue, with what became of it.
--
-- A TimescaleDB hypertable on event_ts where the extension is installed or can be created by this
-- role, else natively range-partitioned on event_ts. One set of functions serves both; nothing but
-- agent.history_kind() and the upkeep functions knows which it is.
do $script$
declare
  _columns text = $columns$
    ( id int8 not null
    , event_ts timestamptz not null
    , attempts int4 not null
    , vt timestamptz not null
    , claimed timestamptz[] not null
    , event jsonb not null
    , queue text collate "C" not null
    , enqueued_at timestamptz not null
    , nacked_at timestamptz
    , last_error text
    , requeued_from int8
    , outcome text collate "C" not null
    , finished_at timestamptz not null       -- when it left the queue
    , requeued_as int8                       -- the latest copy of it that went back into a queue
    , constraint event_hist_outcome check (outcome in ('done', 'failed', 'expired', 'cancelled'))
    )
  $columns$;
  _schema name;
begin
  -- The loader library defines this setting exactly when it is preloaded; creating the extension
  -- without it would end the session.
  if not exists (select from pg_catalog.pg_extension where extname = 'timescaledb')
    and exists (select from pg_catalog.pg_settings where name = 'timescaledb.max_background_workers')
    and exists (select from pg_catalog.pg_available_extensions where name = 'timescaledb')
  then
    begin
      create extension timescaledb with schema public;
    exception when insufficient_privilege or invalid_schema_name then
      raise notice 'timescaledb is available, but this role may not create it: history will be natively partitioned';
    end;
  end if;

  select n.nspname into _schema
  from pg_catalog.pg_extension e
  join pg_catalog.pg_namespace n on n.oid = e.extnamespace
  where e.extname = 'timescaledb';

  if found then
    execute 'create table agent.event_hist ' || _columns;
    execute pg_catalog.format
    ( $sql$select %I.create_hypertable('agent.event_hist', 'event_ts', chunk_time_interval => interval '7 days', create_default_indexes => false)$sql$
    , _schema
    );
  else
    execute 'create table agent.event_hist ' || _columns || ' partition by range (event_ts)';
    create table agent.event_hist_default partition of agent.event_hist default;
  end if;
end
$script$;

-- An event by its id: a repeated ack, a look, a requeue.
create index event_hist_id on agent.event_hist (id);

-- A page of history is one range of one of these two per outcome, however rare the outcome is.
create index event_hist_outcome_ts on agent.event_hist (outcome, event_ts desc, id desc);
create index event_hist_queue_outcome_ts on agent.event_hist (queue, outcome, event_ts desc, id desc);

-- What left lately. Rows arrive in this order, so a block-range index is exact enough and costs almost nothing.
create index event_hist_finished_at on agent.event_hist using brin (finished_at) with (pages_per_range = 16, autosummarize = on);
