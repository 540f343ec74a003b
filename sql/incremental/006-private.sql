-- The schema agent_private, for the functions that only other functions call: agent has what users and the service call, and nothing else.
-- Nobody but the owner of agent may use it.
do $script$
declare
  _owner name;
begin
  select r.rolname into _owner
  from pg_catalog.pg_namespace n
  join pg_catalog.pg_roles r on r.oid = n.nspowner
  where n.nspname = 'agent_private';
  if not found then
    create schema agent_private;
  elsif _owner <> current_user then
    raise exception 'the schema agent_private belongs to %, and the schema agent to %', _owner, current_user
      using hint = pg_catalog.format('have an administrator run: alter schema agent_private owner to %I', current_user);
  end if;
exception when insufficient_privilege then
  raise insufficient_privilege using
    message = pg_catalog.format('role %s may not create the schema agent_private', current_user)
  , hint = pg_catalog.format('have an administrator run: create schema agent_private authorization %I', current_user);
end
$script$;

-- Who may execute a function that is made anew below, or that gets another name, may do so again at the end of the migration: see the
-- script of the privileges.
create temporary table if not exists kept_grants (function name, grantee oid) on commit drop;
insert into kept_grants (function, grantee)
select distinct p.proname, a.grantee
from pg_catalog.pg_proc p
cross join pg_catalog.aclexplode(p.proacl) a
where p.pronamespace = 'agent'::pg_catalog.regnamespace and a.grantee not in (0, p.proowner) and a.privilege_type = 'EXECUTE';

insert into kept_grants (function, grantee)
select r.new_name, k.grantee
from kept_grants k
join
( values
    ('add_events', 'insert_and_claim_events')
  , ('due_schedules', 'lock_due_schedules')
  , ('expire_events', 'sweep_events')
  , ('finish_events', 'ack_events')
  , ('fire_planned_schedules', 'fire_schedules_if_unchanged')
  , ('fold_executions', 'prune_executions')
  , ('forget_history', 'prune_history')
  , ('forget_keys', 'prune_keys')
  , ('forget_processes', 'prune_processes')
  , ('keep_history', 'maintain_history')
  , ('keep_occurrences', 'prune_occurrences')
  , ('look_behind', 'check_watermarks')
  , ('note_server', 'record_server')
  , ('note_upkeep', 'record_upkeep')
  , ('park_schedules', 'pause_faulty_schedules')
  , ('planning_start', 'expansion_start')
  , ('take_events', 'claim_from_watermarks')
) as r (former_name, new_name) on r.former_name = k.function;

-- The script before this one looks for the roles that could run the service among those who may execute take_events, which an upgrade
-- from 0.1.0 has dropped by then.
insert into agent.service_role (name)
select distinct r.rolname
from kept_grants k
join pg_catalog.pg_roles r on r.oid = k.grantee
where k.function = 'take_events'
on conflict do nothing;
