-- Privileges: nobody but the owner may execute a function until it is granted. See docs/operations.md.

-- The functions that the service calls, in this version or in the one before, and all that its role may execute. A test compares this list
-- with the service's sources.
create or replace function agent_private.service_functions()
returns setof text
language sql immutable
set search_path to pg_catalog, pg_temp
as $func$
  values
    ('ack_events')
  , ('adopt_database')
  , ('append_log')
  , ('begin_read')
  , ('begin_routing')
  , ('busiest_queues')
  , ('check_watermarks')
  , ('check_zone_rules')
  , ('claim_from_watermarks')
  , ('commit_cursor')
  , ('count_deliveries')
  , ('count_ready')
  , ('count_topics')
  , ('create_api_key')
  , ('delete_filter')
  , ('delete_old_history')
  , ('delete_owner_if_match')
  , ('delete_push')
  , ('delete_schedule_if_match')
  , ('delete_source')
  , ('delete_subscription_if_match')
  , ('deliver_alone')
  , ('deliver_in_step')
  , ('drop_former_functions')
  , ('drop_history')
  , ('drop_log_segment')
  , ('enable_push')
  , ('end_read')
  , ('end_routing')
  , ('event_queues')
  , ('expansion_start')
  , ('extend_event')
  , ('fire_schedules')
  , ('fire_schedules_if_unchanged')
  , ('first_events')
  , ('get_access')
  , ('get_event')
  , ('get_identity')
  , ('get_log_settings')
  , ('get_owner')
  , ('get_published')
  , ('get_queue')
  , ('get_raw_body')
  , ('get_route')
  , ('get_schedule')
  , ('get_sources_version')
  , ('history_stats')
  , ('insert_and_claim_events')
  , ('insert_schedule')
  , ('join_step')
  , ('keep_raw_body')
  , ('last_published')
  , ('leave_router')
  , ('leave_step')
  , ('list_api_keys')
  , ('list_attempts')
  , ('list_audit')
  , ('list_events')
  , ('list_executions')
  , ('list_filters')
  , ('list_history')
  , ('list_occurrences')
  , ('list_owners')
  , ('list_processes')
  , ('list_proof_fields')
  , ('list_pushers')
  , ('list_pushes')
  , ('list_routes')
  , ('list_schedules')
  , ('list_sealed')
  , ('list_sources')
  , ('list_subscriptions')
  , ('list_topics')
  , ('list_upkeep')
  , ('lock_due_schedules')
  , ('locked_events')
  , ('log_bounds')
  , ('log_gap_reason')
  , ('log_holder')
  , ('log_origin')
  , ('log_position')
  , ('maintain_log')
  , ('move_events')
  , ('nack_event')
  , ('next_due')
  , ('next_publication')
  , ('next_vt')
  , ('next_vts')
  , ('notify_log')
  , ('notify_queues')
  , ('old_history')
  , ('oldest_beside')
  , ('pause_faulty_schedules')
  , ('pause_queue')
  , ('pause_schedule')
  , ('pause_subscription')
  , ('prepare_history')
  , ('probe_write')
  , ('prune_api_keys')
  , ('prune_audit')
  , ('prune_executions')
  , ('prune_history')
  , ('prune_keys')
  , ('prune_occurrences')
  , ('prune_processes')
  , ('prune_publication_keys')
  , ('prune_raw_bodies')
  , ('prune_subscriptions')
  , ('publish_due')
  , ('publish_later')
  , ('purge_queue')
  , ('put_filter')
  , ('put_log_settings')
  , ('put_owner_if_match')
  , ('put_push')
  , ('put_queue')
  , ('put_source')
  , ('put_subscription_if_match')
  , ('queue_stats')
  , ('read_api_keys')
  , ('read_filters')
  , ('read_log_page')
  , ('read_pushes')
  , ('read_routes')
  , ('read_sources')
  , ('record_executions')
  , ('record_key_use')
  , ('record_push_change')
  , ('record_push_seen')
  , ('record_refusals')
  , ('record_server')
  , ('record_upkeep')
  , ('release_events')
  , ('replay_subscription')
  , ('report_process')
  , ('requeue_event')
  , ('requeue_events')
  , ('reseal')
  , ('resolve_locals')
  , ('resume_schedule')
  , ('revoke_api_key')
  , ('rotate_api_key')
  , ('rotate_push_secret')
  , ('route_changes')
  , ('run_schedule')
  , ('schedule_position')
  , ('schedule_zone')
  , ('seek_subscription')
  , ('slowest_subscriptions')
  , ('subscription_allowed')
  , ('sweep_events')
  , ('update_api_key')
  , ('update_schedule')
  , ('watch_subscriptions')
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
  execute format('revoke execute on all functions in schema agent from %s', _role);
  execute format('revoke select on agent.version, agent.migration from %s', _role);
  execute format('revoke usage on schema agent from %s', _role);
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
  where p.pronamespace = 'agent'::regnamespace and p.proname in (select f.name from agent_private.service_functions() as f (name));
  execute format('grant usage on schema agent to %s', _roles);
  execute format('grant select on agent.version, agent.migration to %s', _roles);
  execute format('grant execute on function %s to %s', _functions, _roles);
end
$func$;

revoke execute on all functions in schema agent, agent_private from public;
revoke all on schema agent_private from public;

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
