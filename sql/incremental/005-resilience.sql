-- What keeps the promises under attack, overload and failover. Each section stands for itself.

-- Events.

-- Schedules.

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
