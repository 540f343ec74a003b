-- The version of a queue's policy, see agent_private.set_queue_version(). A queue that is made anew has another one than it had.
alter table agent.queue
  add version int8 not null default 1 + (pg_catalog.random() * 2097151)::int8
;

-- Functions that take something more have to go first, with their grants: see the script of the privileges.
create temporary table if not exists kept_grants (function name, grantee oid) on commit drop;
insert into kept_grants (function, grantee)
select distinct p.proname, a.grantee
from pg_catalog.pg_proc p
cross join pg_catalog.aclexplode(p.proacl) a
where p.pronamespace = 'agent'::pg_catalog.regnamespace
and p.proname = 'put_queue'
and a.grantee not in (0, p.proowner) and a.privilege_type = 'EXECUTE';

drop function if exists agent.put_queue(text, jsonb);
