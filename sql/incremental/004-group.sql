-- Groups: events that share a key, and limits of how many of them are leased at once. See docs/decisions/030-groups.md.

create table agent.queue_group
( queue text collate "C" not null
, key text collate "C" not null
, concurrency int4
, paused boolean not null default false
, held_until timestamptz
, rate_limit int4
, rate_period interval
, rate_burst int4
, tat timestamptz
, last_claim timestamptz
, served_at timestamptz
, version int8
, updated_at timestamptz not null default clock_timestamp()
, constraint queue_group_pkey primary key (queue, key)
, constraint queue_group_key check (octet_length(key) <= 255)
, constraint queue_group_concurrency check (concurrency between 1 and 10000)
, constraint queue_group_rate check
  ( num_nonnulls(rate_limit, rate_period, rate_burst) in (0, 3)
    and rate_limit > 0 and rate_period / rate_limit >= interval '1 us' and rate_burst between 1 and 10000
  )
, constraint queue_group_held_until check (isfinite(held_until))
)
with
( fillfactor = 70
, autovacuum_vacuum_threshold = 1000
, autovacuum_vacuum_scale_factor = 0.02
, autovacuum_vacuum_cost_delay = 0
, vacuum_truncate = false
);
comment on table agent.queue_group is
  'the groups of queues with limits: a row to lock for whoever admits events, and what is set for the group alone; it is '
  'made with the first event that needs a turn, and removed when the group has nothing';
comment on column agent.queue_group.concurrency is 'leases at once, at most, instead of the policy''s; null: the policy''s';
comment on column agent.queue_group.paused is 'nothing of it is handed out';
comment on column agent.queue_group.held_until is 'nothing of it is handed out before; null: it is';
comment on column agent.queue_group.rate_limit is 'claims in rate_period, at most, instead of the policy''s; null: the policy''s';
comment on column agent.queue_group.rate_burst is 'so many of them at once, at most';
comment on column agent.queue_group.tat is 'with a rate: the theoretical arrival time of the next claim, by GCRA; null: there was none';
comment on column agent.queue_group.last_claim is 'the latest claim that is in tat';
comment on column agent.queue_group.served_at is 'where groups take turns: when an event of it was claimed the last time; null: none was';
comment on column agent.queue_group.version is 'another one after each change of what is set; null: nothing is';

-- The groups for which something is set, which few of them have.
create index queue_group_set on agent.queue_group (queue, key)
where concurrency is not null or rate_limit is not null or paused or held_until is not null;

create table agent_private.group_wake
( queue text collate "C" not null
, key text collate "C" not null
, at timestamptz not null default clock_timestamp()
, event_id int8
, after_key text collate "C"
, hold_until timestamptz
)
with
( autovacuum_vacuum_threshold = 1000
, autovacuum_vacuum_scale_factor = 0.02
, autovacuum_vacuum_cost_delay = 0
, vacuum_truncate = false
);
comment on table agent_private.group_wake is
  'the groups to look at from a time on, as somebody has changed them without their lock, or as an event becomes due';
comment on column agent_private.group_wake.key is 'empty: all groups of the queue';
comment on column agent_private.group_wake.event_id is 'the event that becomes due';
comment on column agent_private.group_wake.after_key is 'of all groups of the queue, those after this one are left';
comment on column agent_private.group_wake.hold_until is 'the group is held until then: who set it could not lock the group';
create index group_wake_at on agent_private.group_wake (queue, at);
create index group_wake_key on agent_private.group_wake (queue, key, at);
-- The holds that nobody has written to their groups yet. Who admits events looks here, too.
create index group_wake_hold on agent_private.group_wake (queue, key) where hold_until is not null;

create table agent_private.group_block
( queue text collate "C" not null
, key text collate "C" not null
, place int8 not null
, event_id int8 not null
, requeued_as int8
, constraint group_block_pkey primary key (queue, key, place)
)
with
( autovacuum_vacuum_threshold = 1000
, autovacuum_vacuum_scale_factor = 0.02
, autovacuum_vacuum_cost_delay = 0
);
comment on table agent_private.group_block is
  'the events for which groups in order are stopped, in rows of their own: so who ends an event need not lock its group';
comment on column agent_private.group_block.place is
  'the id of the event that failed first: by it the copies of those that failed come one after the other';
comment on column agent_private.group_block.event_id is 'the event that failed last in this place';
comment on column agent_private.group_block.requeued_as is
  'its copy, which is the next of its group; null: there is none, and the group is stopped';

create table agent_private.group_claim
( queue text collate "C" not null
, key text collate "C" not null
, at timestamptz not null
, claims int4 not null
)
with
( autovacuum_vacuum_threshold = 1000
, autovacuum_vacuum_scale_factor = 0.02
, autovacuum_vacuum_cost_delay = 0
, vacuum_truncate = false
);
comment on table agent_private.group_claim is
  'claims of groups with a rate that the tat of the group does not have yet, as whoever made them did not get its lock';
comment on column agent_private.group_claim.claims is 'how many; -1: one was released';
create index group_claim_key on agent_private.group_claim (queue, key);

create table agent_private.group_sample
( queue text collate "C" not null
, at timestamptz not null
, concurrency int8 not null
, in_order int8 not null
, rate int8 not null
, hold int8 not null
, paused int8 not null
, longest int8 not null
, constraint group_sample_pkey primary key (queue)
)
with
( autovacuum_vacuum_threshold = 1000
, autovacuum_vacuum_scale_factor = 0.02
, autovacuum_vacuum_cost_delay = 0
);
comment on table agent_private.group_sample is
  'what the groups of each queue wait for, as it was looked at last: once a minute, for metrics';
comment on column agent_private.group_sample.concurrency is 'groups that wait for a free slot';
comment on column agent_private.group_sample.in_order is 'groups that wait for one of their events, or have stopped';
comment on column agent_private.group_sample.rate is 'groups that wait as their rate is used up';
comment on column agent_private.group_sample.hold is 'groups that are held';
comment on column agent_private.group_sample.paused is 'groups that are paused';
comment on column agent_private.group_sample.longest is 'events that wait in the group that has the most of them';
