-- agent.owner: somebody whose schedules can take their zone from them.
create table agent.owner
( id text collate "C" not null primary key
, timezone text not null
, attributes jsonb not null default '{}'
, version int8 not null default 1          -- grows with each change
, created_at timestamptz not null default now()
, updated_at timestamptz not null default now()
, constraint owner_id check (octet_length(id) between 1 and 255)
, constraint owner_attributes check (jsonb_typeof(attributes) = 'object')
);

-- agent.schedule: times to come that will be events. The local time and the zone are the truth, the instant is derived.
create table agent.schedule
( id int8 not null generated always as identity primary key
, name text
, owner text collate "C"
, queue text collate "C" not null default 'default'
, type text
, priority int4 not null default 0
, event jsonb not null
, kind text collate "C" not null
, rule text                                -- the recurrence rule or cron expression
, at_local timestamp                       -- the local time of a single one, or where a recurrence rule starts
, at_instant timestamptz                   -- the instant of a single one
, timezone text                            -- null: the owner's
, zone text not null                       -- the one it goes by
, gap text collate "C" not null default 'forward'
, overlap text collate "C" not null default 'first'
, leap text collate "C" not null default 'feb28'
, misfire text collate "C" not null default 'once'
, starts_local timestamp
, starts_at timestamptz
, ends_local timestamp
, ends_at timestamptz
, last_local timestamp                     -- the last time that the rule's own COUNT leaves
, "count" int4                             -- so many occurrences become events at most
, fired int8 not null default 0            -- that many did
, status text collate "C" not null default 'active'
, version int8 not null default 1          -- grows with each change by a caller
, next_local timestamp                     -- the next occurrence, its nominal time
, next_at timestamptz                      -- and the instant that stands for now
, idempotency_key text collate "C"
, request_hash text collate "C"            -- of the request that brought the key
, created_at timestamptz not null default now()
, updated_at timestamptz not null default now()
, constraint schedule_event check (jsonb_typeof(event) = 'object')
, constraint schedule_kind check (kind in ('once', 'rrule', 'cron'))
, constraint schedule_gap check (gap in ('forward', 'next', 'skip'))
, constraint schedule_overlap check (overlap in ('first', 'last'))
, constraint schedule_leap check (leap in ('feb28', 'mar1', 'skip'))
, constraint schedule_misfire check (misfire in ('once', 'all', 'skip'))
, constraint schedule_status check (status in ('active', 'paused', 'completed', 'cancelled'))
, constraint schedule_count check ("count" >= 1)
, constraint schedule_next check ((next_local is null) = (next_at is null) and isfinite(next_local) and isfinite(next_at))
)
-- Each firing writes the row anew, with another next_at in an index.
with
( autovacuum_vacuum_threshold = 10000
, autovacuum_vacuum_scale_factor = 0.02
, autovacuum_vacuum_cost_delay = 0
);

-- The firing loop's path: what is due is the front of this, however much waits behind.
create index schedule_due on agent.schedule (next_at, id) where status = 'active' and next_at is not null;

-- What an owner's move or a change of a zone's rules concerns.
create index schedule_owner on agent.schedule (owner, id) where owner is not null;
create index schedule_zone on agent.schedule (zone, id) where status in ('active', 'paused');

create index schedule_queue on agent.schedule (queue, id) where queue is not null; -- which keeps it out of searches by id
create unique index schedule_idempotency_key on agent.schedule (idempotency_key) where idempotency_key is not null;

-- agent.occurrence: each time of a schedule that has come, or was passed over. The key is what makes each of them happen once.
create table agent.occurrence
( schedule_id int8 not null
, nominal_at timestamp not null            -- local
, is_manual boolean not null default false -- an extra one, by agent.run_schedule
, scheduled_for timestamptz not null
, event_id int8                            -- the event it became
, fired_at timestamptz
, status text collate "C" not null
, reason text                              -- why it did not become an event
, primary key (schedule_id, nominal_at)
, constraint occurrence_status check (status in ('fired', 'skipped', 'cancelled'))
);

create index occurrence_scheduled_for on agent.occurrence using brin (scheduled_for);

-- agent.zone_rule: the zones that schedules and owners go by, and what their rules were when they were last looked at.
create table agent.zone_rule
( zone text not null primary key
, sampled_from timestamptz not null
, sampled_to timestamptz not null
, fingerprint text not null                -- of the changes of its offset between these two
, changed_at timestamptz                   -- when the rules were last seen to be others than before
, checked_at timestamptz not null default now()
);
