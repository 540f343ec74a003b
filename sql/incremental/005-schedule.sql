-- Schedules: times to come that will be events, or are published. See docs/schedules.md.

create table agent.owner
( id text collate "C" not null primary key
, timezone text not null
, attributes jsonb not null default '{}'
, version int8 not null default 1
, created_at timestamptz not null default now()
, updated_at timestamptz not null default now()
, constraint owner_id check (octet_length(id) between 1 and 255)
, constraint owner_attributes check (jsonb_typeof(attributes) = 'object')
);
comment on table agent.owner is 'somebody whose schedules can take their zone from them';
comment on column agent.owner.version is 'grows with each change';

-- The local time and the zone are the truth, the instant is derived.
create table agent.schedule
( id int8 not null generated always as identity (maxvalue 35184372088831) primary key
, name text
, owner text collate "C"
, queue text collate "C" default 'default'
, type text
, priority int4 not null default 0
, event jsonb not null
, kind text collate "C" not null
, rule text
, at_local timestamp
, at_instant timestamptz
, timezone text
, zone text not null
, gap text collate "C" not null default 'forward'
, overlap text collate "C" not null default 'first'
, leap text collate "C" not null default 'feb28'
, misfire text collate "C" not null default 'once'
, starts_local timestamp
, starts_at timestamptz
, ends_local timestamp
, ends_at timestamptz
, last_local timestamp
, until_at timestamptz
, "count" int4
, fired int8 not null default 0
, status text collate "C" not null default 'active'
, version int8 not null default 1
, next_local timestamp
, next_at timestamptz
, caller text collate "C"
, idempotency_key text collate "C"
, request_hash text collate "C"
, created_at timestamptz not null default now()
, updated_at timestamptz not null default now()
, status_reason text
, is_unplanned boolean not null default false
, is_real_time boolean not null default false
, topic text collate "C"
, group_key text
, constraint schedule_event check (jsonb_typeof(event) = 'object')
, constraint schedule_kind check (kind in ('once', 'rrule', 'cron'))
, constraint schedule_gap check (gap in ('forward', 'next', 'skip'))
, constraint schedule_overlap check (overlap in ('first', 'last'))
, constraint schedule_leap check (leap in ('feb28', 'mar1', 'skip'))
, constraint schedule_misfire check (misfire in ('once', 'all', 'skip'))
, constraint schedule_status check (status in ('active', 'paused', 'completed', 'cancelled'))
, constraint schedule_count check ("count" >= 1)
, constraint schedule_next check ((next_local is null) = (next_at is null) and isfinite(next_local) and isfinite(next_at))
, constraint schedule_target check
  ( case when topic is null then queue is not null else queue is null and type is null and priority = 0 end
  )
)
-- Each firing writes the row anew, with another next_at in an index.
with
( autovacuum_vacuum_threshold = 10000
, autovacuum_vacuum_scale_factor = 0.02
, autovacuum_vacuum_cost_delay = 0
);
comment on table agent.schedule is 'times to come that will be events of a queue, or are published to a topic';
comment on column agent.schedule.id is 'cell << 45 | number, see agent.cell: this upper bound is that of cell 0';
comment on column agent.schedule.queue is 'of its events; null: its occurrences are published';
comment on column agent.schedule.type is 'of its events';
comment on column agent.schedule.priority is 'of its events; lower first';
comment on column agent.schedule.event is 'the payload of its events, a JSON object';
comment on column agent.schedule.caller is 'whose idempotency key it is: see agent_private.caller';
comment on column agent.schedule.rule is 'the recurrence rule or cron expression';
comment on column agent.schedule.at_local is 'the local time of a single one, or where a recurrence rule starts';
comment on column agent.schedule.at_instant is 'the instant of a single one';
comment on column agent.schedule.timezone is 'as it was given; null: the owner''s';
comment on column agent.schedule.zone is 'the one it goes by';
comment on column agent.schedule.gap is 'what becomes of a local time that clocks skip, see agent.resolve_local()';
comment on column agent.schedule.overlap is 'which of the two instants a local time is that clocks show twice';
comment on column agent.schedule.leap is 'when a yearly 29 February is in other years';
comment on column agent.schedule.misfire is 'of the missed occurrences: once, the latest fires; all, each does; skip, none does';
comment on column agent.schedule.starts_local is 'no occurrence is before; starts_at as a local time';
comment on column agent.schedule.ends_local is 'no occurrence is after; ends_at as a local time';
comment on column agent.schedule.last_local is 'the last time that the rule''s own COUNT leaves, or its UNTIL, if that is a local time';
comment on column agent.schedule.until_at is 'the rule''s own UNTIL, if that is an instant: no occurrence is after';
comment on column agent.schedule."count" is 'so many occurrences become events at most';
comment on column agent.schedule.fired is 'so many did';
comment on column agent.schedule.version is 'grows with each change by a caller';
comment on column agent.schedule.next_local is 'the next occurrence, its nominal time';
comment on column agent.schedule.next_at is 'the instant that stands for next_local now';
comment on column agent.schedule.request_hash is 'of the request that brought the key';
comment on column agent.schedule.status_reason is 'why the service paused it; null: it did not';
comment on column agent.schedule.is_unplanned is
  'its next local time does not come any more: the service has to find the one after it, and nothing fires before';
comment on column agent.schedule.is_real_time is
  'its rule comes within days: each instant at which clocks show one of its times is an occurrence';
comment on column agent.schedule.topic is 'its occurrences are published to; null: they are events of its queue';
comment on column agent.schedule.group_key is 'of its events; null: none';

-- The firing loop's path: what is due is the front of this, however much waits behind.
create index schedule_due on agent.schedule (next_at, id) where status = 'active' and next_at is not null;

-- What an owner's move or a change of a zone's rules concerns.
create index schedule_owner on agent.schedule (owner, id) where owner is not null;
create index schedule_zone on agent.schedule (zone, id) where status in ('active', 'paused');

create index schedule_queue on agent.schedule (queue, id) where queue is not null; -- which keeps it out of searches by id
create unique index schedule_idempotency_key on agent.schedule (caller, idempotency_key) where idempotency_key is not null;

-- The key is what makes each occurrence happen once. Whether a rule follows real time is a part of it, as a change of the schedule changes that, too.
create table agent.occurrence
( schedule_id int8 not null
, nominal_at timestamp not null
, is_manual boolean not null default false
, scheduled_for timestamptz not null
, event_id int8
, fired_at timestamptz
, status text collate "C" not null
, reason text
, topic text collate "C"
, is_real_time boolean not null default false
, key_at timestamp generated always as (case when is_real_time then scheduled_for at time zone 'UTC' else nominal_at end) stored
, primary key (schedule_id, key_at, is_real_time)
, constraint occurrence_status check (status in ('fired', 'skipped', 'cancelled'))
);
comment on table agent.occurrence is 'each time of a schedule that has come, or was passed over';
comment on column agent.occurrence.nominal_at is 'local';
comment on column agent.occurrence.is_manual is 'an extra one, by agent.run_schedule()';
comment on column agent.occurrence.scheduled_for is 'the instant that stood for nominal_at';
comment on column agent.occurrence.event_id is 'the event it became';
comment on column agent.occurrence.reason is 'why it did not become an event';
comment on column agent.occurrence.topic is 'it was published to; null: it was not';
comment on column agent.occurrence.is_real_time is 'agent.schedule.is_real_time when it came';
comment on column agent.occurrence.key_at is 'what it is known by among those of its schedule: its nominal time, or, if it is_real_time, its instant in UTC';

create index occurrence_scheduled_for on agent.occurrence using brin (scheduled_for);

create table agent.zone_rule
( zone text not null primary key
, sampled_from timestamptz not null
, sampled_to timestamptz not null
, fingerprint text not null
, changed_at timestamptz
, checked_at timestamptz not null default now()
);
comment on table agent.zone_rule is 'the zones that schedules and owners go by, and what their rules were when they were last looked at';
comment on column agent.zone_rule.fingerprint is 'of the changes of its offset between sampled_from and sampled_to';
comment on column agent.zone_rule.changed_at is 'when the rules were last seen to be others than before';
