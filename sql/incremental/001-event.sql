-- agent.event: every event that waits in a queue, or is leased from it.
--
-- The first six columns are the public contract. State is derived, never stored:
--   ready      vt <= now
--   leased     vt > now, and claimed since it was enqueued or last given back (attempts > 0, nacked_at is null)
--   scheduled  vt > now otherwise
create table agent.event
( id int8 not null generated always as identity primary key
, event_ts timestamptz not null default now()        -- when it happened, by the payload's own account if it has one
, attempts int4 not null default 0                   -- claims so far
, vt timestamptz not null default now()              -- visibility threshold: claimable from here on
, claimed timestamptz[] not null default '{}'        -- when each attempt began
, event jsonb not null
, queue text collate "C" not null default 'default'
, enqueued_at timestamptz not null default now()
, nacked_at timestamptz                              -- set when the latest lease was given back, cleared by the next claim
, last_error text                                    -- what the latest nack said
, requeued_from int8                                 -- the event in history this one is a copy of
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

-- The claim's path: one queue's events in order, those not yet claimable never touched.
create index event_queue_vt_id on agent.event (queue, vt, id);

-- The sweep's path: what was claimed more than once. Most events never get into it.
create index event_attempts_vt on agent.event (attempts, vt) where attempts > 1;
