-- What keeps the promises under attack, overload and failover. Each section stands for itself.

-- Functions that get other arguments or return something else have to go first. Who may execute them is remembered, and may do so again at the end
-- of the migration: see the script of the privileges.
create temporary table if not exists kept_grants (function name, grantee oid) on commit drop;
insert into kept_grants (function, grantee)
select distinct p.proname, a.grantee
from pg_catalog.pg_proc p
join pg_catalog.pg_namespace n on n.oid = p.pronamespace and n.nspname = 'agent'
cross join pg_catalog.aclexplode(p.proacl) a
where a.grantee not in (0, p.proowner) and a.privilege_type = 'EXECUTE';

drop function if exists agent.expire_events(int4, interval, text, int4);
drop function if exists agent.queue_stats(interval);
drop function if exists agent.waiting_counts(timestamptz);
drop function if exists agent.finished_counts(timestamptz);
drop function if exists agent.queue_names();

-- Events.

-- Schedules.
alter table agent.schedule
  add status_reason text                         -- why the service paused it, null where it did not
, add is_unplanned boolean not null default false -- its next local time does not come any more: the service has to find the one after it, and nothing fires before
;

drop function if exists agent.resolve_locals(timestamp[], text[], text[], text[], int8[]);
drop function if exists agent.insert_schedule(jsonb, text, text);
drop function if exists agent.update_schedule(int8, jsonb);
drop function if exists agent.check_zone_rules(timestamptz);
drop function if exists agent.due_schedules(int4);
drop function if exists agent.keep_occurrences(interval);
drop function if exists agent.park_schedule(int8);

-- History and queues.

-- agent.upkeep: what is seen to now and then, and when it was last done to its end. Whoever is at a task has its row locked.
create table agent.upkeep
( task text collate "C" primary key
, done_at timestamptz not null default now()
);
insert into agent.upkeep (task) values ('partitions'), ('retention'), ('queue_history'), ('keys'), ('executions');

alter table agent.queue
  add resumed_at timestamptz                -- when the latest pause ended: an event's age counts from there
;

-- Idempotency keys.

-- Failover.

-- agent.server: the server that was seen to be the primary last, and the highest time that its clock was seen to show. One row.
create table agent.server
( is_only boolean primary key default true
, timeline int8                            -- null: none was seen yet
, clock timestamptz not null default clock_timestamp()
, constraint server_is_only check (is_only)
) with (fillfactor = 50);
insert into agent.server default values;

-- Nothing is ever in it: who moves the sequences ahead has it locked.
create table agent.server_change ();

-- The timeline that ids are given out on. A sequence, because that is outside of transactions: see agent.follow_timeline().
create sequence agent.server_timeline as int8 minvalue 0 start 0;
do $script$
begin
  perform pg_catalog.setval('agent.server_timeline', ('x' || pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8))::bit(32)::int8);
exception when insufficient_privilege or undefined_function or feature_not_supported then
  null; -- see the triggers check_timeline
end
$script$;

-- Roles.

-- agent.service_role: the roles that the service runs as. Each migration grants them what its version calls: see agent.grant_service().
create table agent.service_role
( name name primary key
, granted_at timestamptz not null default now()
);

-- agent.minimum_retention: how long history is kept at least, whatever the service asks for. One row at most.
create table agent.minimum_retention
( retention interval not null check (retention > interval '0')
, singleton boolean primary key default true check (singleton)
);

-- A role that could call what is for the service only was meant to run it: earlier versions had operators grant all functions.
insert into agent.service_role (name)
select distinct r.rolname
from pg_catalog.pg_proc p
cross join pg_catalog.aclexplode(p.proacl) a
join pg_catalog.pg_roles r on r.oid = a.grantee
where p.pronamespace = 'agent'::pg_catalog.regnamespace and p.proname = 'take_events' and a.grantee <> p.proowner;
