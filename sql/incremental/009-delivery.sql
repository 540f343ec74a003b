-- Subscriptions that are delivered into queues, and the router, which does that. See docs/decisions/014-router.md.

alter table agent.subscription
  add deliver_queue text collate "C"        -- null: it is read by cursor
, add deliver_type text collate "C"
, add deliver_priority int4 not null default 0
, add is_in_step boolean not null default false -- its position is the one that all in step share: the router's
;
create index subscription_delivered on agent.subscription (id) where deliver_queue is not null;

-- A replay: what a subscription gets once more.
create table agent.subscription_replay
( id int8 not null primary key              -- drawn from the ids of subscriptions, as it has a position of its own
, subscription int8 not null
, until int8 not null                       -- the last position that belongs to it
, created_at timestamptz not null default now()
);
create index subscription_replay_by_subscription on agent.subscription_replay (subscription);

-- agent.subscription_position: also of replays, and of the router, whose id is 0. Its lease is that of the process that routes, which is its token.
alter table agent.subscription_position rename column subscription to reader;
insert into agent.subscription_position (reader, number, position, token, epoch, gaps) values (0, 1, 0, 0, 1, 0);

-- agent.router: locked by whoever moves the position that subscriptions in step share. One row, which nobody updates.
create table agent.router
( is_only boolean primary key default true
, constraint router_is_only check (is_only)
);
insert into agent.router default values;

-- agent.route_version: what is to be delivered has changed so often, all rows together. Each change inserts a row, so those who change subscriptions and
-- do not commit stop nobody from routing, nor from changing others. The router makes one row of many.
create table agent.route_version
( changes int8 not null default 1
);
insert into agent.route_version default values;

-- Functions that take or return something more have to go first, with their grants: see the script of the privileges.
create temporary table if not exists kept_grants (function name, grantee oid) on commit drop;
insert into kept_grants (function, grantee)
select distinct p.proname, a.grantee
from pg_catalog.pg_proc p
cross join pg_catalog.aclexplode(p.proacl) a
where p.pronamespace = 'agent'::pg_catalog.regnamespace and p.proname in ('put_subscription_if_match', 'list_subscriptions')
and a.grantee not in (0, p.proowner) and a.privilege_type = 'EXECUTE';

drop function if exists agent.put_subscription_if_match(text, json, int8, int4, interval, int8, int8[], boolean);
drop function if exists agent.list_subscriptions(int4, text, text);
drop function if exists agent_private.replace_position(agent.subscription_position);
drop function if exists agent_private.remove_subscription(int8);
