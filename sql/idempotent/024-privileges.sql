-- Privileges. No function of this schema is for everyone: grant what a role needs (see docs/operations.md).
revoke execute on all functions in schema agent from public;

-- The functions that the service calls, and with them all that its role may do. A test holds this list against the sources of the service, both ways.
create or replace function agent.service_functions()
returns setof text
language sql immutable
set search_path to pg_catalog, pg_temp
as $func$
  values
    ('add_events')
  , ('busiest_queues')
  , ('check_zone_rules')
  , ('delete_old_history')
  , ('delete_owner')
  , ('delete_schedule')
  , ('drop_history')
  , ('due_schedules')
  , ('expire_events')
  , ('extend_event')
  , ('finish_events')
  , ('fire_planned_schedules')
  , ('fire_schedules')
  , ('fold_executions')
  , ('forget_history')
  , ('forget_keys')
  , ('forget_processes')
  , ('get_event')
  , ('get_owner')
  , ('get_queue')
  , ('get_schedule')
  , ('history_stats')
  , ('insert_schedule')
  , ('keep_occurrences')
  , ('list_attempts')
  , ('list_events')
  , ('list_executions')
  , ('list_history')
  , ('list_occurrences')
  , ('list_owners')
  , ('list_processes')
  , ('list_schedules')
  , ('list_upkeep')
  , ('locked_events')
  , ('look_behind')
  , ('nack_event')
  , ('next_due')
  , ('next_vt')
  , ('note_server')
  , ('note_upkeep')
  , ('notify_queues')
  , ('old_history')
  , ('park_schedules')
  , ('pause_queue')
  , ('pause_schedule')
  , ('planning_start')
  , ('prepare_history')
  , ('purge_queue')
  , ('put_owner')
  , ('put_queue')
  , ('queue_stats')
  , ('record_executions')
  , ('release_events')
  , ('report_process')
  , ('requeue_event')
  , ('requeue_events')
  , ('resolve_locals')
  , ('resume_schedule')
  , ('run_schedule')
  , ('schedule_position')
  , ('schedule_zone')
  , ('take_events')
  , ('update_schedule')
$func$;

-- Lets a role run the service, and nothing else, now and after each migration to come. Only for the owner of the schema.
create or replace function agent.grant_service(_role regrole)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  perform agent.check_is_owner();
  insert into agent.service_role (name) select r.rolname from pg_roles r where r.oid = _role on conflict do nothing;
  perform agent.grant_to_service_roles();
end
$func$;

-- Takes back what grant_service has given. Only for the owner of the schema.
create or replace function agent.revoke_service(_role regrole)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  perform agent.check_is_owner();
  delete from agent.service_role s using pg_roles r where r.oid = _role and s.name = r.rolname;
  execute format('revoke execute on all functions in schema agent from %s', _role);
  execute format('revoke select on agent.version, agent.migration from %s', _role);
  execute format('revoke usage on schema agent from %s', _role);
end
$func$;

-- Raises 42501 unless the session may act as the owner of the schema. Private to the functions of this schema.
create or replace function agent.check_is_owner()
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  if not exists (select from pg_namespace n where n.nspname = 'agent' and pg_has_role(current_user, n.nspowner, 'usage')) then
    raise exception 'only the owner of the schema agent may do this' using errcode = 'insufficient_privilege';
  end if;
end
$func$;

-- Grants every role in agent.service_role that there is what the service needs. Private to the functions of this schema.
create or replace function agent.grant_to_service_roles()
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
declare
  _roles text;
  _functions text;
begin
  select string_agg(quote_ident(s.name), ', ') into _roles
  from agent.service_role s
  where exists (select from pg_roles r where r.rolname = s.name);
  if _roles is null then
    return;
  end if;
  select string_agg(p.oid::regprocedure::text, ', ') into strict _functions
  from pg_proc p
  where p.pronamespace = 'agent'::regnamespace and p.proname in (select f.name from agent.service_functions() as f (name));
  execute format('grant usage on schema agent to %s', _roles);
  execute format('grant select on agent.version, agent.migration to %s', _roles);
  execute format('grant execute on function %s to %s', _functions, _roles);
end
$func$;

revoke execute on function agent.service_functions(), agent.grant_service(regrole), agent.revoke_service(regrole), agent.check_is_owner()
, agent.grant_to_service_roles() from public;

select agent.grant_to_service_roles();

-- Where a migration has dropped functions to give them other arguments, who might execute them may do so still.
do $script$
declare
  _statement text;
begin
  if to_regclass('pg_temp.kept_grants') is null then
    return;
  end if;
  for _statement in
    execute $sql$
      select pg_catalog.format('grant execute on function %s to %s', p.oid::pg_catalog.regprocedure, k.grantee::pg_catalog.regrole)
      from pg_temp.kept_grants k
      join pg_catalog.pg_proc p on p.proname = k.function
      join pg_catalog.pg_namespace n on n.oid = p.pronamespace and n.nspname = 'agent'
    $sql$
  loop
    execute _statement;
  end loop;
end
$script$;
