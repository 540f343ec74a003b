-- agent.redrive: what requeues the events that a filter matches, page by page, in the background. See docs/jobs.md.
create table agent.redrive
( id int8 not null generated always as identity primary key
, created_at timestamptz not null default clock_timestamp()
, created_by text not null                  -- as the audit has it
, idempotency_key text
, request_hash text                         -- of the request that the key stands for
, dead_letter_queue text collate "C"        -- its dead letters are redriven; null: events of history
, queue text collate "C"                    -- from here to meta: the filter, each null for any
, outcome text collate "C"
, from_ts timestamptz                       -- of event_ts, inclusive
, to_ts timestamptz                         -- of event_ts, exclusive
, contains jsonb
, type text
, source text
, worker text
, min_duration interval
, meta jsonb
, queues text[]                             -- patterns of the queues that its creator may use; null: all
, to_queue text collate "C"                 -- null: each event goes to its own queue; origin: where each dead letter came from
, rate float8                               -- events a second; null: as fast as goes beside other work
, state text collate "C" not null default 'running'
, reason text                               -- why it has failed, or why the latest event was skipped that raised an error
, matched int8 not null default 0           -- when it was created
, is_estimate boolean not null default false
, requeued int8 not null default 0
, skipped int8 not null default 0           -- that matched, and were not requeued
, last_id int8 not null                     -- no event with a greater one is redriven, so that it ends
, last_ts timestamptz                       -- the greatest event_ts in history when it was created
, cursor_priority int4                      -- of the last event that was looked at, in the order of the index
, cursor_ts timestamptz
, cursor_id int8
, next_at timestamptz not null default clock_timestamp() -- when its next step is due
, leased_by text                            -- the process that goes on with it; null: none
, leased_until timestamptz
, updated_at timestamptz not null default clock_timestamp()
, finished_at timestamptz
, constraint redrive_state check (state in ('running', 'paused', 'cancelled', 'done', 'failed'))
)
with (fillfactor = 50); -- each step updates its row in place

-- The look of every process for what there is to do reads this one, which is empty mostly.
create index redrive_running on agent.redrive (id) where state = 'running';
create index redrive_finished_at on agent.redrive (finished_at) where finished_at is not null;
create unique index redrive_idempotency_key on agent.redrive (idempotency_key) where idempotency_key is not null;

-- What copies events of history can put them into another queue now.
drop function if exists agent_private.requeue_rows(int8[]);
