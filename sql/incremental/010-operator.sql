-- What operators use: redrives, and the statistics of queues over time. See docs/jobs.md and docs/operations.md.

create table agent.redrive
( id int8 not null generated always as identity (maxvalue 35184372088831) primary key
, created_at timestamptz not null default clock_timestamp()
, created_by text not null
, caller text collate "C" not null
, idempotency_key text
, request_hash text
, dead_letter_queue text collate "C"
, queue text collate "C"
, outcome text collate "C"
, from_ts timestamptz
, to_ts timestamptz
, contains jsonb
, type text
, source text
, worker text
, min_duration interval
, meta jsonb
, queues text[]
, to_queue text collate "C"
, rate float8
, state text collate "C" not null default 'running'
, reason text
, matched int8 not null default 0
, is_estimate boolean not null default false
, requeued int8 not null default 0
, skipped int8 not null default 0
, last_id int8 not null
, last_ts timestamptz
, cursor_priority int4
, cursor_ts timestamptz
, cursor_id int8
, next_at timestamptz not null default clock_timestamp()
, leased_by text
, leased_until timestamptz
, updated_at timestamptz not null default clock_timestamp()
, finished_at timestamptz
, finished_from timestamptz
, finished_to timestamptz
, cause text
, constraint redrive_state check (state in ('running', 'paused', 'cancelled', 'done', 'failed'))
)
with (fillfactor = 50); -- each step updates its row in place
comment on table agent.redrive is
  'what requeues the events that a filter matches, page by page, in the background; the filter is from queue to meta, '
  'finished_from, finished_to and cause, each null for any';
comment on column agent.redrive.id is 'cell << 45 | number, see agent.cell: this upper bound is that of cell 0';
comment on column agent.redrive.created_by is 'as the audit has it';
comment on column agent.redrive.caller is 'whose bound, turns and idempotency keys it goes by: see agent_private.caller';
comment on column agent.redrive.request_hash is 'of the request that the key stands for';
comment on column agent.redrive.dead_letter_queue is 'its dead letters are redriven; null: events of history';
comment on column agent.redrive.from_ts is 'of event_ts, inclusive';
comment on column agent.redrive.to_ts is 'of event_ts, exclusive';
comment on column agent.redrive.contains is 'the payload contains it';
comment on column agent.redrive.min_duration is 'of their processing';
comment on column agent.redrive.meta is 'their metadata contain it';
comment on column agent.redrive.cause is 'of their errors, as agent_private.cause_pattern has it';
comment on column agent.redrive.queues is 'patterns of the queues that its creator may use; null: all';
comment on column agent.redrive.to_queue is 'null: each event goes to its own queue; origin: where each dead letter came from';
comment on column agent.redrive.rate is 'events a second; null: as fast as goes beside other work';
comment on column agent.redrive.reason is 'why it has failed, or why the latest event was skipped that raised an error';
comment on column agent.redrive.matched is 'events that the filter matched when it was created';
comment on column agent.redrive.is_estimate is 'matched is an estimate';
comment on column agent.redrive.skipped is 'events that matched, and were not requeued';
comment on column agent.redrive.last_id is 'no event with a greater one is redriven, so that it ends';
comment on column agent.redrive.last_ts is 'the greatest event_ts in history when it was created';
comment on column agent.redrive.cursor_priority is 'of the last event that was looked at, in the order of the index';
comment on column agent.redrive.cursor_ts is 'of the last event that was looked at';
comment on column agent.redrive.cursor_id is 'of the last event that was looked at';
comment on column agent.redrive.next_at is 'when its next step is due';
comment on column agent.redrive.leased_by is 'the process that goes on with it; null: none';
comment on column agent.redrive.finished_at is 'when it ended';
comment on column agent.redrive.finished_from is 'of finished_at of the events, inclusive';
comment on column agent.redrive.finished_to is 'of finished_at of the events, exclusive';

-- The look of every process for what there is to do reads this one, which is empty mostly.
create index redrive_running on agent.redrive (id) where state = 'running';
create index redrive_finished_at on agent.redrive (finished_at) where finished_at is not null;
create index redrive_unfinished on agent.redrive (caller) where state in ('running', 'paused', 'failed');
create unique index redrive_idempotency_key on agent.redrive (caller, idempotency_key) where idempotency_key is not null;

create table agent_private.redrive_turn
( caller text collate "C" primary key
, at timestamptz not null
) with (fillfactor = 50);
comment on table agent_private.redrive_turn is 'when a redrive of each caller had its latest step, within the last hour at least';

create table agent.queue_sampling
( at timestamptz primary key
, sampled_at timestamptz
, horizon xid8
, counted_at timestamptz
, events int8
, done int8
, failed int8
, expired int8
, cancelled int8
, is_complete boolean
, is_settled boolean
);
comment on table agent.queue_sampling is
  'one row for each minute in which the queues were sampled, or whose outcomes were counted; a minute without one was not'
  ' sampled';
comment on column agent.queue_sampling.at is 'the start of the minute';
comment on column agent.queue_sampling.sampled_at is 'when the queues were sampled; null: they were not';
comment on column agent.queue_sampling.horizon is 'every transaction that wrote something before this minute has a lesser id';
comment on column agent.queue_sampling.counted_at is 'when its outcomes were counted last; null: not yet';
comment on column agent.queue_sampling.events is
  'events of history that were counted, in all queues, and by outcome: done, failed, expired, cancelled';
comment on column agent.queue_sampling.is_complete is 'all that had ended were counted';
comment on column agent.queue_sampling.is_settled is 'nothing that ended in the minute can be committed after the count';
create index queue_sampling_unsettled on agent.queue_sampling (at) where not is_settled;

-- A queue has a row for each sample that differs from the one before, and after a day without one. A queue without a row had nothing.
create table agent.queue_sample
( queue text collate "C" not null
, at timestamptz not null
, ready int8 not null
, scheduled int8 not null
, leased int8 not null
, oldest_ready_at timestamptz
, is_estimate boolean not null
, waiting int8 not null default 0
, primary key (queue, at)
);
comment on table agent.queue_sample is 'how many events were in a queue from a minute on, by state';
comment on column agent.queue_sample.at is 'the start of the minute';
comment on column agent.queue_sample.oldest_ready_at is 'since when the oldest ready event could be claimed; null: none was ready';
comment on column agent.queue_sample.waiting is 'events that were due and waited for their turn';
create index queue_sample_at on agent.queue_sample (at);

create table agent.queue_latest
( queue text collate "C" primary key
, at timestamptz not null
, ready int8 not null
, scheduled int8 not null
, leased int8 not null
, oldest_ready_at timestamptz
, is_estimate boolean not null
, waiting int8 not null default 0
) with (fillfactor = 50);
comment on table agent.queue_latest is 'the latest sample of each queue, which the next one is compared with';
comment on column agent.queue_latest.at is 'of its row in agent.queue_sample';
comment on column agent.queue_latest.waiting is 'events that were due and waited for their turn';

create table agent.queue_outcome
( queue text collate "C" not null
, at timestamptz not null
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
comment on table agent.queue_outcome is 'what ended in a queue in a minute, and how long it had waited and been worked on';
comment on column agent.queue_outcome.at is 'the start of the minute';
comment on column agent.queue_outcome.wait_bins is
  'the bins of waits that have events, see agent_private.duration_bin(); null: no event had been claimed';
comment on column agent.queue_outcome.wait_counts is 'how many events there are in each of wait_bins';
comment on column agent.queue_outcome.processing_bins is 'the bins of times of processing that have events; null: none was done or failed';
comment on column agent.queue_outcome.processing_counts is 'how many events there are in each of processing_bins';
create index queue_outcome_at on agent.queue_outcome (at);

create table agent.queue_outcome_hour
( queue text collate "C" not null
, at timestamptz not null
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
comment on table agent.queue_outcome_hour is
  'what ended in a queue in an hour: the sum of its rows in agent.queue_outcome; an hour is here once a minute of a later'
  ' one is counted';
comment on column agent.queue_outcome_hour.at is 'the start of the hour';
create index queue_outcome_hour_at on agent.queue_outcome_hour (at);
