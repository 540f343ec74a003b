-- Groups: events that share a key, and limits of how many of them are leased at once. See docs/decisions/030-groups.md.

-- Functions that take or return something more have to go first, with their grants: see the script of the privileges.
create temporary table if not exists kept_grants (function name, grantee oid) on commit drop;
insert into kept_grants (function, grantee)
select distinct p.proname, a.grantee
from pg_catalog.pg_proc p
cross join pg_catalog.aclexplode(p.proacl) a
where p.pronamespace in ('agent'::pg_catalog.regnamespace, 'agent_service'::pg_catalog.regnamespace)
and p.proname in ('insert_event', 'claim_from_watermarks', 'ack_events', 'put_subscription_if_match', 'list_subscriptions', 'nack_event', 'queue_stats', 'queue_series', 'queue_overview', 'list_events')
and a.grantee not in (0, p.proowner) and a.privilege_type = 'EXECUTE';

drop function if exists agent.insert_event
  (jsonb, text, interval, timestamptz, text, text, int4, text, int4, timestamptz, interval, timestamptz, text, jsonb);
drop function if exists agent.nack_event(int8, text, interval, text, boolean, boolean, boolean, text[], boolean);
drop function if exists agent_service.claim_from_watermarks
  (text, int4, int4, interval, text, text[], int8[], text[], int4[], text[], timestamptz[], boolean, int8);
drop function if exists agent_private.claim_events_of_types
  (text, int4, int4, interval, text, text[], int8[], text[], int4[], text[], timestamptz[], boolean, int8);
drop function if exists agent_service.ack_events(int8[], text[], jsonb[], text[]);
drop function if exists agent_private.move_to_history(int8[], text, text, boolean, text[], jsonb[], text[], boolean);
drop function if exists agent_private.leases_on_arrival(text[], interval[], interval[], jsonb[]);
drop function if exists agent_service.put_subscription_if_match(text, json, int8, int4, interval, int8, int8[], boolean, text, text, int4);
drop function if exists agent.list_events(text, text, int4, timestamptz, int8, jsonb, jsonb, text[], int8);
drop function if exists agent_private.find_events(text, text, int4, timestamptz, int8, jsonb, jsonb, text[]);
drop function if exists agent.list_subscriptions(int4, text, text, text[], text[]);
drop function if exists agent.queue_stats(interval, text, int4, text[], text[], text);
drop function if exists agent_private.count_waiting(timestamptz, text[], int8);
drop function if exists agent_private.queue_depths(timestamptz);
drop function if exists agent_private.current_depths(timestamptz, text[], text);
drop function if exists agent_service.queue_series(text, timestamptz, timestamptz, interval, int4, boolean);
drop function if exists agent_service.queue_overview(timestamptz, timestamptz, interval, text, int4, int4, text[], int4, text, boolean);
drop function if exists agent_private.new_event
( int8, timestamptz, jsonb, timestamptz, text, interval, timestamptz, interval, text, text, text, int4, text, int4, timestamptz, jsonb, int8, jsonb, jsonb, text
, int8
);

alter table agent.event
  add group_key text collate "C"            -- the group that it belongs to; null: none; '' where groups take turns: those without a group are one
, add flow int2                             -- of an event of a group: 1 admitted, so that it can be claimed from vt on; 2 the same, and its latest claim counts against a rate; 0 and -1 the same two where groups take turns; 3 waiting for its turn; 4 not due yet
, add flow_version int8                     -- by which version of its queue's limits it was admitted; null: by none
, add turn_vt timestamptz                   -- of one that is not admitted: the vt that it gets with its turn
, add admitted_at timestamptz               -- when its turn came; null: it had none to wait for
, add in_total boolean                      -- its latest claim was counted against the limit of its queue
;

-- The groups of the events that these make.
alter table agent.schedule
  add group_key text                        -- null: none
;
alter table agent.subscription
  add deliver_group_from text               -- key: the key of the publication; topic: its topic; else a JSON pointer into its payload; null: none
;
alter table agent.source
  add group_key text                        -- a template; null: that of the kind
;
alter type agent.source_info
  add attribute group_key text
;

alter table agent.event_hist
  add group_key text collate "C"
;

-- Events that are due and wait for their turn, in each sample.
alter table agent.queue_sample
  add waiting int8 not null default 0
;
alter table agent.queue_latest
  add waiting int8 not null default 0
;

alter type agent.look
  add attribute group_key text
, add attribute turn_vt timestamptz
;

-- A group's admitted events, and its line. The primary key cannot give the order by priority and id, so no plan searches for the first of a line by reading
-- the table in the order of ids, as it would where one group has most of the events.
create index event_group on agent.event (queue, group_key, flow, priority, id) where group_key is not null;

-- The line of groups that take turns: what is admitted, in the order in which their groups were served.
create index event_turn on agent.event (queue, vt, id) where flow <= 0;

-- Of those that wait, the ones that event_group does not have in the order of ids: so the first of a group in order is found by one look there, and one here, however many priorities its events have. The primary key
-- cannot give the order by id + 0.
create index event_group_id on agent.event (queue, group_key, (id + 0)) where group_key is not null and (flow = 4 or flow = 3 and priority <> 0);

-- The leases that count against the limit of a queue.
create index event_total on agent.event (queue, vt) where in_total;

alter table agent.queue
  add group_from text                       -- where the payload has the group of an event that comes without one, a JSON pointer; null: nowhere
, add flow_concurrency int4                 -- leases of a group at once, at most; null: any number
, add flow_total int4                       -- leases of the queue at once, at most; null: any number
, add flow_order boolean not null default false -- of a group, only the first unfinished event can be claimed
, add flow_on_failed text                   -- with flow_order: whether a group goes on behind an event that failed, 'continue', or stops, 'block'; null: 'continue'
, add flow_rate_limit int4                  -- claims of a group in flow_rate_period, at most; null: any number
, add flow_rate_period interval
, add flow_rate_burst int4                  -- so many of them at once, at most
, add flow_fair boolean not null default false -- groups take turns
, add flow_paced boolean not null default false -- claims are recorded, as groups take turns, or the policy or a group has a rate
, add flow_version int8                     -- another one after each change of the limits of groups; null: events of groups need no turn
, add constraint queue_flow_concurrency check (flow_concurrency between 1 and 10000)
, add constraint queue_flow_total check (flow_total between 1 and 10000)
, add constraint queue_flow_rate check
  ( num_nonnulls(flow_rate_limit, flow_rate_period, flow_rate_burst) in (0, 3)
    and flow_rate_limit > 0 and flow_rate_period / flow_rate_limit >= interval '1 us' and flow_rate_burst between 1 and 10000
  )
, add constraint queue_flow_on_failed check (flow_on_failed is null or flow_order and flow_on_failed in ('continue', 'block'))
;

-- Whether any queue has limits, which an empty index says at once.
create index queue_flow on agent.queue (name) where flow_version is not null or flow_total is not null;

-- agent.queue_group: the groups of queues with limits: a row to lock for whoever admits events, and what is set for the group alone. It is made with the first
-- event that needs a turn, and removed when the group has nothing.
create table agent.queue_group
( queue text collate "C" not null
, key text collate "C" not null
, concurrency int4                          -- leases at once, at most, instead of the policy's; null: the policy's
, paused boolean not null default false     -- nothing of it is handed out
, held_until timestamptz                    -- nothing of it is handed out before; null: it is
, rate_limit int4                           -- claims in rate_period, at most, instead of the policy's; null: the policy's
, rate_period interval
, rate_burst int4                           -- so many of them at once, at most
, tat timestamptz                           -- with a rate: the theoretical arrival time of the next claim, by GCRA; null: there was none
, last_claim timestamptz                    -- the latest claim that is in tat
, served_at timestamptz                     -- where groups take turns: when an event of it was claimed the last time; null: none was
, version int8                              -- another one after each change of what is set; null: nothing is
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

-- The groups for which something is set, which few of them have.
create index queue_group_set on agent.queue_group (queue, key) where concurrency is not null or rate_limit is not null or paused or held_until is not null;

-- agent_private.group_wake: the groups to look at from a time on, as somebody has changed them without their lock, or as an event becomes due. The key '' stands
-- for all groups of the queue, of which those after after_key are left.
create table agent_private.group_wake
( queue text collate "C" not null
, key text collate "C" not null
, at timestamptz not null default clock_timestamp()
, event_id int8                             -- the event that becomes due
, after_key text collate "C"
, hold_until timestamptz                    -- the group is held until then: who set it could not lock the group
)
with
( autovacuum_vacuum_threshold = 1000
, autovacuum_vacuum_scale_factor = 0.02
, autovacuum_vacuum_cost_delay = 0
, vacuum_truncate = false
);
create index group_wake_at on agent_private.group_wake (queue, at);
create index group_wake_key on agent_private.group_wake (queue, key);

-- agent_private.group_block: the events for which groups in order are stopped, in rows of their own: so who ends an event need not lock its group.
create table agent_private.group_block
( queue text collate "C" not null
, key text collate "C" not null
, place int8 not null                       -- the id of the event that failed first: by it the copies of those that failed come one after the other
, event_id int8 not null                    -- the event that failed last in this place
, requeued_as int8                          -- its copy, which is the next of its group; null: there is none, and the group is stopped
, constraint group_block_pkey primary key (queue, key, place)
)
with
( autovacuum_vacuum_threshold = 1000
, autovacuum_vacuum_scale_factor = 0.02
, autovacuum_vacuum_cost_delay = 0
);

-- The holds that nobody has written to their groups yet. Who admits events looks here, too.
create index group_wake_hold on agent_private.group_wake (queue, key) where hold_until is not null;

-- agent_private.group_claim: claims of groups with a rate that the tat of the group does not have yet, as whoever made them did not get its lock.
create table agent_private.group_claim
( queue text collate "C" not null
, key text collate "C" not null
, at timestamptz not null
, claims int4 not null                      -- -1: one was released
)
with
( autovacuum_vacuum_threshold = 1000
, autovacuum_vacuum_scale_factor = 0.02
, autovacuum_vacuum_cost_delay = 0
, vacuum_truncate = false
);
create index group_claim_key on agent_private.group_claim (queue, key);

-- agent_private.group_sample: what the groups of each queue wait for, as it was looked at last: once a minute, for metrics.
create table agent_private.group_sample
( queue text collate "C" not null
, at timestamptz not null
, concurrency int8 not null                 -- groups that wait for a free slot
, in_order int8 not null                    -- groups that wait for one of their events, or have stopped
, rate int8 not null
, hold int8 not null
, paused int8 not null
, longest int8 not null                     -- events that wait in the group that has the most of them
, constraint group_sample_pkey primary key (queue)
)
with
( autovacuum_vacuum_threshold = 1000
, autovacuum_vacuum_scale_factor = 0.02
, autovacuum_vacuum_cost_delay = 0
);
