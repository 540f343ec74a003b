-- Events: those that wait in a queue or are leased from it, and those in history.

-- The first six columns are the public contract. State is derived, never stored:
--   ready      vt <= now
--   leased     vt > now, and claimed since it was enqueued or last given back (attempts > 0, nacked_at is null)
--   scheduled  vt > now otherwise
create table agent.event
( id int8 not null generated always as identity (maxvalue 35184372088831) primary key
, event_ts timestamptz not null default now()
, attempts int4 not null default 0
, vt timestamptz not null default now()
, claimed timestamptz[] not null default '{}'
, event jsonb not null
, queue text collate "C" not null default 'default'
, enqueued_at timestamptz not null default now()
, nacked_at timestamptz
, last_error text
, requeued_from int8
, type text collate "C"
, source text collate "C"
, priority int4 not null default 0
, key text collate "C"
, max_attempts int4
, expires_at timestamptz
, worker text collate "C"
, past_attempts jsonb
, occurrence jsonb
, meta jsonb
, publication jsonb
, receipt_hash bytea
, claim_token text
, text_size int4 not null
, dead_letter_of int8
, due_at timestamptz
, group_key text collate "C"
, flow int2
, flow_version int8
, turn_vt timestamptz
, admitted_at timestamptz
, in_total boolean
, extended_at timestamptz
, constraint event_vt_is_finite check (isfinite(vt))
)
-- Each life of an event leaves two dead rows, so at some thousand lives a second the table is due for vacuum whenever
-- autovacuum looks (once a minute by default). It must then be quick: unthrottled, and the size of the backlog counts
-- little. Giving empty pages at the end back to the file system would take a lock that shuts everybody out, for pages
-- that are needed again at once.
with
( autovacuum_vacuum_threshold = 10000
, autovacuum_vacuum_scale_factor = 0.02
, autovacuum_vacuum_cost_delay = 0
, autovacuum_analyze_threshold = 10000
, autovacuum_analyze_scale_factor = 0.1
, vacuum_truncate = false
, toast.autovacuum_vacuum_threshold = 10000
, toast.autovacuum_vacuum_scale_factor = 0.02
, toast.autovacuum_vacuum_cost_delay = 0
, toast.vacuum_truncate = false
);
comment on table agent.event is 'every event that waits in a queue, or is leased from it';
comment on column agent.event.id is 'cell << 45 | number, see agent.cell: this upper bound is that of cell 0';
comment on column agent.event.event_ts is 'when it happened, by the payload''s own account if it has one';
comment on column agent.event.attempts is 'claims so far';
comment on column agent.event.vt is 'visibility threshold: it can be claimed from here on';
comment on column agent.event.claimed is 'when each attempt began';
comment on column agent.event.event is 'the payload, a JSON object';
comment on column agent.event.nacked_at is 'set when the latest lease was given back, cleared by the next claim';
comment on column agent.event.last_error is 'what the latest nack said';
comment on column agent.event.requeued_from is 'the event in history that it is a copy of';
comment on column agent.event.type is 'what kind of work it is; claims may ask for some kinds only';
comment on column agent.event.source is 'where it came from';
comment on column agent.event.priority is 'lower first';
comment on column agent.event.key is 'the idempotency key that it was inserted with';
comment on column agent.event.max_attempts is 'claims at most, whatever its queue''s policy or a claim says';
comment on column agent.event.expires_at is 'it is not to be claimed from here on';
comment on column agent.event.worker is 'who has, or had, the latest lease';
comment on column agent.event.past_attempts is 'the attempts that ended without success: see agent_private.past_attempt()';
comment on column agent.event.occurrence is 'the occurrence of a schedule that it is';
comment on column agent.event.meta is 'what its sender says of it beside the payload: an object';
comment on column agent.event.publication is
  'the publication that a subscription has delivered: {subscription, position, topic, published_at, matched}; null: it '
  'was inserted otherwise';
comment on column agent.event.receipt_hash is
  'of the token of the latest claim, and behind it of the claim before; null: nobody has claimed it';
comment on column agent.event.claim_token is 'the random part of the receipt: only in rows that a claim returns, always null here';
comment on column agent.event.text_size is 'bytes of its JSON as text, about: a trigger that checks the row sets it';
comment on column agent.event.dead_letter_of is 'the event in history that it is the dead letter of';
comment on column agent.event.due_at is 'when it was first due, if that was after it was inserted, as claims move vt; null: at once';
comment on column agent.event.group_key is
  'the group that it belongs to; null: none; empty where groups take turns: those without a group are one';
comment on column agent.event.flow is
  'of an event of a group: 1 admitted, so that it can be claimed from vt on; 2 the same, and its latest claim counts '
  'against a rate; 0 and -1 the same two where groups take turns; 3 waiting for its turn; 4 not due yet';
comment on column agent.event.flow_version is 'the version of its queue''s limits by which it was admitted; null: none';
comment on column agent.event.turn_vt is 'of one that is not admitted: the vt that it gets with its turn';
comment on column agent.event.admitted_at is 'when its turn came; null: it had none to wait for';
comment on column agent.event.in_total is 'its latest claim was counted against the limit of its queue';
comment on column agent.event.extended_at is 'when a lease on it was extended the last time; null: none was';

-- The claim's path, a lane for each priority: one queue's events in order, those not yet claimable never touched. The predicate always
-- holds; it is there because only a search that names a queue implies it. Without it, a plan made while the table was nearly empty may
-- search for ids in this index, which is to walk through all of it, dead entries included.
create index event_lane on agent.event (queue, priority, vt, id) where queue is not null;

-- The same for claims of some types only. Events without a type never get into it.
create index event_type_lane on agent.event (queue, type, priority, vt, id) where type is not null;

-- The sweep's path: what was claimed more than once, which most events never are, and what has its own end. Events on their last attempt
-- get into event_exhausted as they are claimed.
create index event_attempts_vt on agent.event (attempts, vt) where attempts > 1;
create index event_exhausted on agent.event (vt) where attempts >= max_attempts;
create index event_expires_at on agent.event (expires_at) where expires_at is not null;

-- A group's admitted events, and its line. The primary key cannot give the order by priority and id, so no plan searches for the first of a
-- line by reading the table in the order of ids, as it would where one group has most of the events.
create index event_group on agent.event (queue, group_key, flow, priority, id) where group_key is not null;

-- The line of groups that take turns: what is admitted, in the order in which their groups were served.
create index event_turn on agent.event (queue, vt, id) where flow <= 0;

-- Of those that wait, the ones that event_group does not have in the order of ids: so the first of a group in order is found by one look
-- there, and one here, however many priorities its events have. The primary key cannot give the order by id + 0.
create index event_group_id on agent.event (queue, group_key, (id + 0))
where group_key is not null and (flow = 4 or flow = 3 and priority <> 0);

-- The leases that count against the limit of a queue.
create index event_total on agent.event (queue, vt) where in_total;

-- Where claims without watermarks of their own begin: see agent_service.claim_from_watermarks.
create table agent_private.lane_watermark
( queue text collate "C" not null constraint lane_watermark_pkey primary key
, priority int4 not null
, vt timestamptz not null
, seen_at timestamptz not null
, look_at timestamptz not null
, until timestamptz not null
)
with
( fillfactor = 50
, autovacuum_vacuum_threshold = 1000
, autovacuum_vacuum_scale_factor = 0.02
, autovacuum_vacuum_cost_delay = 0
);
comment on table agent_private.lane_watermark is
  'where the first event of a queue was found lately, if it took long to find it; what was there is no promise of what is';
comment on column agent_private.lane_watermark.look_at is 'one claim looks for the first event again from here on';
comment on column agent_private.lane_watermark.until is 'the row counts from seen_at until here, by whatever clock claims have';

-- History is a TimescaleDB hypertable on event_ts where the extension is installed or can be created by this role, else natively
-- range-partitioned on event_ts. One set of functions serves both; nothing but agent_private.history_flavour() and the functions of upkeep
-- knows which it is.
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
    , processed boolean not null generated always as (outcome = 'done') stored
    , finished_at timestamptz not null
    , requeued_as int8
    , type text collate "C"
    , source text collate "C"
    , priority int4 not null default 0
    , key text collate "C"
    , max_attempts int4
    , expires_at timestamptz
    , worker text collate "C"
    , past_attempts jsonb
    , occurrence jsonb
    , result jsonb
    , retryable boolean
    , meta jsonb
    , publication jsonb
    , receipt_hash bytea
    , dead_letter_of int8
    , dead_lettered_as int8
    , due_at timestamptz
    , group_key text collate "C"
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
    ( $sql$
        select %I.create_hypertable
        ('agent.event_hist', 'event_ts', chunk_time_interval => interval '7 days', create_default_indexes => false)
      $sql$
    , _schema
    );
  else
    execute 'create table agent.event_hist ' || _columns || ' partition by range (event_ts)';
    create table agent.event_hist_default partition of agent.event_hist default;
  end if;
end
$script$;
comment on table agent.event_hist is
  'every event that left its queue, with what became of it; columns that agent.event has, too, are as they were there';
comment on column agent.event_hist.outcome is 'how it left its queue';
comment on column agent.event_hist.processed is 'whether it was done, under the name that it has for workers of tiger-agents-for-work';
comment on column agent.event_hist.finished_at is 'when it left its queue';
comment on column agent.event_hist.requeued_as is 'the latest copy of it that went back into a queue';
comment on column agent.event_hist.result is 'what the ack said';
comment on column agent.event_hist.retryable is 'whether another attempt might have succeeded, by the last nack''s account';
comment on column agent.event_hist.dead_lettered_as is 'its dead letter';

-- An event by its id: a repeated ack, a look, a requeue.
create index event_hist_id on agent.event_hist (id) with (deduplicate_items = off);

-- A page of history is one range of one of these two per outcome, however rare the outcome is. A listing reads them from their end, so that
-- events enter in the order in which they come. No two entries are equal: looking for such in full pages is in vain. The predicates are
-- there for the same reason as that of event_lane.
create index event_hist_outcome_ts on agent.event_hist (outcome, event_ts, id)
with (deduplicate_items = off) where outcome is not null;
create index event_hist_queue_outcome_ts on agent.event_hist (queue, outcome, event_ts, id)
with (deduplicate_items = off) where queue is not null;

-- What left lately. Rows arrive in this order, so a block-range index is exact enough and costs almost nothing.
create index event_hist_finished_at on agent.event_hist using brin (finished_at) with (pages_per_range = 16, autosummarize = on);

create table agent.minimum_retention
( retention interval not null check (retention > interval '0')
, singleton boolean primary key default true check (singleton)
);
comment on table agent.minimum_retention is 'how long history is kept at least, whatever the service asks for: one row at most';

create type agent.look as
( id int8
, queue text
, event_ts timestamptz
, enqueued_at timestamptz
, attempts int4
, vt timestamptz
, claimed timestamptz[]
, event jsonb
, last_error text
, requeued_from int8
, state text
, outcome text
, finished_at timestamptz
, requeued_as int8
, type text
, source text
, priority int4
, key text
, max_attempts int4
, expires_at timestamptz
, worker text
, error_count int4
, occurrence jsonb
, retryable boolean
, result jsonb
, processing interval
, meta jsonb
, publication jsonb
, is_beyond boolean
, dead_letter_of int8
, dead_lettered_as int8
, group_key text
, turn_vt timestamptz
);
comment on type agent.look is 'an event as a listing shows it, in its queue or in history';
comment on column agent.look.state is 'ready, scheduled, leased or waiting; null: it is in history';
comment on column agent.look.error_count is 'attempts that ended with an error';
comment on column agent.look.processing is 'from its last claim to its end';
comment on column agent.look.is_beyond is 'in a page: it has no room for this event, whose JSON is left out';
