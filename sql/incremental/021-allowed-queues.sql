-- The queues that a caller may use go into the statements that change an event or a schedule by its id.

-- Functions that take something more have to go first, with their grants: see the script of the privileges.
create temporary table if not exists kept_grants (function name, grantee oid) on commit drop;
insert into kept_grants (function, grantee)
select distinct p.proname, a.grantee
from pg_catalog.pg_proc p
cross join pg_catalog.aclexplode(p.proacl) a
where p.pronamespace = 'agent'::pg_catalog.regnamespace
and p.proname in
( 'ack_events'
, 'nack_event'
, 'extend_event'
, 'requeue_event'
, 'pause_schedule'
, 'resume_schedule'
, 'delete_schedule_if_match'
, 'run_schedule'
)
and a.grantee not in (0, p.proowner) and a.privilege_type = 'EXECUTE';

drop function if exists agent.ack_events(int8[], text[], jsonb[]);
drop function if exists agent.nack_event(int8, text, interval, text, boolean, boolean, boolean);
drop function if exists agent.extend_event(int8, text, interval);
drop function if exists agent_private.move_to_history(int8[], text, text, boolean, text[], jsonb[]);
drop function if exists agent_private.lock_lease(int8, text);
drop function if exists agent_private.check_receipt(int8, text);
drop function if exists agent.requeue_event(int8, boolean);
drop function if exists agent.pause_schedule(int8);
drop function if exists agent.resume_schedule(int8);
drop function if exists agent_private.set_schedule_status(int8, text);
drop function if exists agent.delete_schedule_if_match(int8, int8[]);
drop function if exists agent.run_schedule(int8);
drop function if exists agent_private.lock_schedule(int8, int8[], text);
