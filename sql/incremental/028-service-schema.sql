-- The schema agent_service, for the functions that queued itself calls and nobody else: agent has those that users call, and agent_private those that only
-- other functions call. Nobody but the roles of the service and the owner of agent may use it.
do $script$
declare
  _owner name;
begin
  select r.rolname into _owner
  from pg_catalog.pg_namespace n
  join pg_catalog.pg_roles r on r.oid = n.nspowner
  where n.nspname = 'agent_service';
  if not found then
    create schema agent_service;
  elsif _owner <> current_user then
    raise exception 'the schema agent_service belongs to %, and the schema agent to %', _owner, current_user
      using hint = pg_catalog.format('have an administrator run: alter schema agent_service owner to %I', current_user);
  end if;
exception when insufficient_privilege then
  raise insufficient_privilege using
    message = pg_catalog.format('role %s may not create the schema agent_service', current_user)
  , hint = pg_catalog.format('have an administrator run: create schema agent_service authorization %I', current_user);
end
$script$;

drop function if exists agent.drop_former_functions(); -- which processes of version 0.5.0 called

-- The functions move with their privileges. A call that is under way goes on, because a function keeps its OID. commit_cursor(text, text) is for users.
create temporary table moved_functions on commit drop as
select m.name
from pg_catalog.unnest(array
[
  'ack_events', 'append_log', 'begin_read', 'begin_routing', 'busiest_queues', 'check_watermarks', 'check_zone_rules',
  'claim_from_watermarks', 'commit_cursor', 'count_deliveries', 'count_ready', 'count_topics', 'create_api_key', 'delete_filter',
  'delete_owner_if_match', 'delete_schedule_if_match', 'delete_subscription_if_match', 'deliver_alone', 'deliver_in_step',
  'drop_log_segment', 'end_read', 'end_routing', 'event_queues', 'expansion_start', 'fire_schedules',
  'fire_schedules_if_unchanged', 'first_events', 'get_access', 'get_published', 'get_route', 'get_sources_version',
  'insert_and_claim_events', 'insert_schedule', 'join_step', 'last_published', 'leave_router', 'leave_step', 'list_filters',
  'list_proof_fields', 'list_pushers', 'list_routes', 'list_sealed', 'lock_due_schedules', 'locked_events', 'log_gap_reason',
  'log_origin', 'maintain_log', 'next_due', 'next_publication', 'next_vt', 'next_vts', 'notify_log', 'oldest_beside',
  'pause_faulty_schedules', 'probe_write', 'prune_occurrences', 'prune_processes', 'prune_publication_keys', 'prune_subscriptions',
  'publish_due', 'publish_later', 'put_filter', 'put_owner_if_match', 'put_push', 'put_source', 'put_subscription_if_match',
  'read_api_keys', 'read_filters', 'read_log_page', 'read_pushes', 'read_routes', 'read_sources', 'record_executions', 'record_key_use',
  'record_push_change', 'record_push_seen', 'record_refusals', 'record_server', 'report_process', 'reseal', 'resolve_locals',
  'rotate_api_key', 'rotate_push_secret', 'route_changes', 'schedule_position', 'schedule_zone', 'seek_subscription',
  'slowest_subscriptions', 'subscription_allowed', 'sweep_events', 'update_schedule', 'watch_subscriptions'
]) as m (name);

do $script$
declare
  _function pg_catalog.regprocedure;
begin
  for _function in
    select p.oid
    from pg_catalog.pg_proc p
    join pg_temp.moved_functions m on m.name = p.proname
    where p.pronamespace = 'agent'::pg_catalog.regnamespace
    and p.oid is distinct from pg_catalog.to_regprocedure('agent.commit_cursor(text, text)')
  loop
    execute pg_catalog.format('alter function %s set schema agent_service', _function);
  end loop;
end
$script$;

-- Its result gets another name for a column: it has to go first, with its grants.
create temporary table if not exists kept_grants (function name, grantee oid) on commit drop;
insert into kept_grants (function, grantee)
select p.proname, a.grantee
from pg_catalog.pg_proc p
cross join pg_catalog.aclexplode(p.proacl) a
where p.oid = pg_catalog.to_regprocedure('agent_service.record_server(timestamptz)')
and a.grantee not in (0, p.proowner) and a.privilege_type = 'EXECUTE';

drop function if exists agent_service.record_server(timestamptz);

-- Processes of version 0.7.0 call the former names, which the script of the former names makes for them as long as there is this table. No older
-- process can run beside this version, and a new database has no process.
delete from pg_temp.moved_functions
where not exists
( select from agent.version v
  where pg_catalog.string_to_array(pg_catalog.substring(v.version, '^\d+\.\d+'), '.')::int4[] >= array[0, 7]
);

-- A role that could execute one of these functions can go on to.
do $script$
declare
  _role pg_catalog.regrole;
begin
  for _role in
    select distinct a.grantee
    from pg_catalog.pg_proc p
    cross join pg_catalog.aclexplode(p.proacl) a
    where p.pronamespace = 'agent_service'::pg_catalog.regnamespace and a.grantee not in (0, p.proowner)
  loop
    execute pg_catalog.format('grant usage on schema agent_service to %s', _role);
  end loop;
end
$script$;
