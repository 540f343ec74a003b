-- Privileges: nobody but the owner may execute a function until it is granted. See docs/operations.md.

-- The functions of agent that the service calls, too: its role may execute these, and all of agent_service. A test compares this list with the
-- service's sources.
create or replace function agent_private.shared_functions()
returns setof text
language sql immutable
set search_path to pg_catalog, pg_temp
as $func$
  values
    ('adopt_database')
  , ('cancel_redrive')
  , ('create_redrive')
  , ('delete_cell')
  , ('delete_group')
  , ('delete_old_history')
  , ('delete_placement')
  , ('delete_push')
  , ('delete_queue')
  , ('delete_source')
  , ('drain_placement')
  , ('drop_history')
  , ('dropped_push_deliveries')
  , ('dropped_source_deliveries')
  , ('enable_push')
  , ('extend_event')
  , ('get_event')
  , ('get_identity')
  , ('get_log_settings')
  , ('get_owner')
  , ('get_placement')
  , ('get_queue')
  , ('get_raw_body')
  , ('get_redrive')
  , ('get_schedule')
  , ('history_stats')
  , ('keep_raw_body')
  , ('last_occurrences')
  , ('list_api_keys')
  , ('list_attempts')
  , ('list_audit')
  , ('list_cells')
  , ('list_events')
  , ('list_executions')
  , ('list_history')
  , ('list_holders')
  , ('list_occurrences')
  , ('list_owners')
  , ('list_processes')
  , ('list_push_deliveries')
  , ('list_pushes')
  , ('list_redrives')
  , ('list_schedules')
  , ('list_source_deliveries')
  , ('list_sources')
  , ('list_subscriptions')
  , ('list_topics')
  , ('list_upkeep')
  , ('list_workers')
  , ('log_bounds')
  , ('log_holder')
  , ('log_position')
  , ('move_events')
  , ('nack_event')
  , ('notify_queues')
  , ('old_history')
  , ('pause_queue')
  , ('pause_redrive')
  , ('pause_schedule')
  , ('pause_subscription')
  , ('place_queue')
  , ('prepare_history')
  , ('prune_api_keys')
  , ('prune_audit')
  , ('prune_deliveries')
  , ('prune_executions')
  , ('prune_history')
  , ('prune_keys')
  , ('prune_queue_samples')
  , ('prune_raw_bodies')
  , ('prune_redrives')
  , ('purge_queue')
  , ('put_cell')
  , ('put_group')
  , ('put_log_settings')
  , ('put_queue')
  , ('queue_stats')
  , ('record_upkeep')
  , ('release_events')
  , ('replay_subscription')
  , ('requeue_event')
  , ('requeue_events')
  , ('resume_redrive')
  , ('resume_schedule')
  , ('revoke_api_key')
  , ('run_event')
  , ('run_schedule')
  , ('unblock_group')
  , ('update_api_key')
$func$;

-- Lets a role run the service, and nothing else, now and after each later migration. Only for the owner of the schema.
create or replace function agent.grant_service(_role regrole)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  perform agent_private.check_is_owner();
  insert into agent.service_role (name) select r.rolname from pg_roles r where r.oid = _role on conflict do nothing;
  perform agent_private.grant_to_service_roles();
end
$func$;

-- Revokes the rights that grant_service has granted. Only for the owner of the schema.
create or replace function agent.revoke_service(_role regrole)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  perform agent_private.check_is_owner();
  delete from agent.service_role s using pg_roles r where r.oid = _role and s.name = r.rolname;
  execute format('revoke execute on all functions in schema agent, agent_service from %s', _role);
  execute format('revoke select on agent.version, agent.migration from %s', _role);
  execute format('revoke usage on schema agent, agent_service from %s', _role);
end
$func$;

-- Raises 42501 unless the session may act as the owner of the schema.
create or replace function agent_private.check_is_owner()
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

-- Grants the rights of the service to every role in agent.service_role that exists.
create or replace function agent_private.grant_to_service_roles()
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
  where p.pronamespace = 'agent'::regnamespace and p.proname in (select f.name from agent_private.shared_functions() as f (name));
  execute format('grant usage on schema agent, agent_service to %s', _roles);
  execute format('grant select on agent.version, agent.migration to %s', _roles);
  execute format('grant execute on all functions in schema agent_service to %s', _roles);
  execute format('grant execute on function %s to %s', _functions, _roles);
end
$func$;

revoke execute on all functions in schema agent, agent_service, agent_private from public;
revoke all on schema agent_service, agent_private from public;

select agent_private.grant_to_service_roles();

-- Restores the privileges on functions that a script of this migration dropped to create them with other arguments.
do $script$
declare
  _statement text;
begin
  if to_regclass('pg_temp.kept_grants') is null then
    return;
  end if;
  for _statement in
    execute $sql$
      select pg_catalog.format('grant usage on schema %I to %s', n.nspname, k.grantee::pg_catalog.regrole)
      || pg_catalog.format('; grant execute on function %s to %s', p.oid::pg_catalog.regprocedure, k.grantee::pg_catalog.regrole)
      from pg_temp.kept_grants k
      join pg_catalog.pg_proc p on p.proname = k.function
      join pg_catalog.pg_namespace n on n.oid = p.pronamespace and n.nspname in ('agent', 'agent_service')
    $sql$
  loop
    execute _statement;
  end loop;
end
$script$;
