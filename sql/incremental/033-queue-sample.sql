-- Statistics of queues over time: what waits in each queue, sampled once a minute, and what ended in it, counted by minute. See docs/operations.md.

-- agent.queue_sampling: one row for each minute in which the queues were sampled, or whose outcomes were counted. A minute without one was not sampled.
create table agent.queue_sampling
( at timestamptz primary key                -- the start of the minute
, sampled_at timestamptz                    -- when the queues were sampled; null: they were not
, horizon xid8                              -- every transaction that wrote something before this minute has a lesser id
, counted_at timestamptz                    -- when its outcomes were counted last; null: not yet
, events int8                               -- how many events of history that took
, done int8                                 -- and of them, in all queues
, failed int8
, expired int8
, cancelled int8
, is_complete boolean                       -- all that had ended were counted
, is_settled boolean                        -- nothing that ended in the minute can be committed after the count
);
create index queue_sampling_unsettled on agent.queue_sampling (at) where not is_settled;

-- agent.queue_sample: what waited in a queue from a minute on. A queue has a row for each sample that differs from the one before, and after a day without one.
-- A queue without a row had nothing.
create table agent.queue_sample
( queue text collate "C" not null
, at timestamptz not null                   -- the start of the minute
, ready int8 not null
, scheduled int8 not null
, leased int8 not null
, oldest_ready_at timestamptz               -- since when the oldest ready event has been claimable; null: none is ready
, is_estimate boolean not null
, primary key (queue, at)
);
create index queue_sample_at on agent.queue_sample (at);

-- agent.queue_latest: the latest sample of each queue, which the next one is compared with.
create table agent.queue_latest
( queue text collate "C" primary key
, at timestamptz not null                   -- of its row in queue_sample
, ready int8 not null
, scheduled int8 not null
, leased int8 not null
, oldest_ready_at timestamptz
, is_estimate boolean not null
) with (fillfactor = 50);

-- agent.queue_outcome: what ended in a queue in a minute, and how long it had waited and been worked on: how many events there are in each bin that has some,
-- see agent_private.duration_bin.
create table agent.queue_outcome
( queue text collate "C" not null
, at timestamptz not null                   -- the start of the minute
, done int8 not null
, failed int8 not null
, expired int8 not null
, cancelled int8 not null
, wait_bins int2[]                          -- null: no event had been claimed
, wait_counts int8[]
, processing_bins int2[]                    -- null: none was done or failed
, processing_counts int8[]
, primary key (queue, at)
);
create index queue_outcome_at on agent.queue_outcome (at);

-- agent.queue_outcome_hour: what ended in a queue in an hour: the sum of its rows in agent.queue_outcome. An hour is here once a minute of a later one is counted.
create table agent.queue_outcome_hour
( queue text collate "C" not null
, at timestamptz not null                   -- the start of the hour
, done int8 not null
, failed int8 not null
, expired int8 not null
, cancelled int8 not null
, wait_bins int2[]
, wait_counts int8[]
, processing_bins int2[]
, processing_counts int8[]
, primary key (queue, at)
);
create index queue_outcome_hour_at on agent.queue_outcome_hour (at);

-- When an event was first due, if that was after it was inserted: claims move vt.
alter table agent.event
  add due_at timestamptz                    -- null: at once
;

alter table agent.event_hist
  add due_at timestamptz
;
