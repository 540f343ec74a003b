-- Former names: the functions that versions before 0.4.0 had in agent under these names, some of them for their own use. They are dropped
-- here, and not in an incremental script, as triggers use some of them until the scripts before this one have run. A call that is
-- under way while the migration commits goes on with the former body of its function, and the bodies of version 0.5.0 call none of these.
do $script$
declare
  _functions text;
begin
  select pg_catalog.string_agg(p.oid::pg_catalog.regprocedure::text, ', ') into _functions
  from pg_catalog.pg_proc p
  where p.pronamespace = 'agent'::pg_catalog.regnamespace
  and p.proname = any (array
  [
    'add_events', 'add_keyed_events', 'add_occurrences', 'append_attempt', 'append_claim', 'attempt_start', 'backoff', 'bounded_lease',
    'bounded_time', 'cancel_schedules', 'canonical_text', 'check_event', 'check_is_owner', 'check_known', 'check_name',
    'check_options', 'check_owner', 'check_receipt', 'check_schedule', 'check_timeline', 'check_times', 'check_values', 'check_zone',
    'confirm_durably', 'default_holds', 'default_is_empty', 'delete_owner', 'due_schedules', 'elapsed', 'error_count', 'event_state',
    'event_ts', 'expire_events', 'few_queues', 'fingerprint', 'finish_events', 'finished_counts', 'fire_planned_schedules',
    'flat_claims', 'fold_executions', 'follow_timeline', 'forget_history', 'forget_keys', 'forget_processes', 'grant_to_service_roles',
    'hash_of', 'history_cutoff', 'history_filter', 'history_kind', 'history_part', 'history_week', 'is_event', 'is_in_range',
    'is_name', 'is_same_request', 'is_steady', 'is_zone', 'keep_history', 'keep_occurrences', 'lanes', 'later', 'leases_of',
    'list_all_events', 'local_by_setting', 'local_floor', 'local_time', 'lock_history_part', 'lock_lease', 'lock_schedule',
    'lock_upkeep', 'look_at', 'look_behind', 'make_history_partition', 'move_each', 'move_schedules', 'move_to_history', 'note_server',
    'note_upkeep', 'notify_schedules', 'occurrence_event', 'oldest_vt', 'over_age', 'park_schedule', 'park_schedules', 'past_attempt',
    'planning_start', 'put_owner', 'queue_names', 'raise_ended', 'raise_lost', 'raise_stale', 'random_start', 'read_attempts',
    'refuse', 'requeue_rows', 'service_functions', 'switch_schedule', 'take_events', 'take_typed', 'timeline', 'use_zone', 'used_up',
    'utc_offset', 'waiting_counts', 'waiting_queues', 'zone_fault', 'zone_fingerprint', 'zone_transitions'
  ]);
  if _functions is not null then
    execute 'drop function ' || _functions; -- in one statement, as they depend on each other
  end if;
  drop function if exists agent_private.former_service_functions();
end
$script$;

-- Former schema: versions before 0.8.0 had the functions of agent_service in agent, and their processes call them there. A function that forwards has
-- the arguments, the defaults, the result and the privileges of the one that it calls, and this comment.
create or replace function agent_private.forwarding_comment()
returns text
language sql immutable
return 'forwards to the schema agent_service, for processes of versions before 0.8.0';

-- Makes functions in agent that forward to those of agent_service with these names. Those that are there already are made anew.
create or replace function agent_private.forward_former_functions(_names text[])
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
declare
  _target record;
  _call text;
  _forwarder text;
  _role regrole;
begin
  for _target in
    select p.*
    from pg_proc p
    where p.pronamespace = 'agent_service'::regnamespace and p.proname = any (_names)
  loop
    select format('agent_service.%I(%s)', _target.proname, string_agg('$' || a.n, ', ' order by a.n)) into _call
    from generate_series(1, _target.pronargs) as a (n);
    _forwarder = format('agent.%I(%s)', _target.proname, pg_get_function_identity_arguments(_target.oid));
    execute format('drop function if exists %s', _forwarder); -- whose result may be another one
    execute format('create function agent.%I(%s) returns %s language sql %s security definer set search_path to pg_catalog, pg_temp as %L'
    , _target.proname, pg_get_function_arguments(_target.oid), replace(pg_get_function_result(_target.oid), 'made_claimable', 'pulled') -- as record_server had it
    , case _target.provolatile when 'i' then 'immutable' when 's' then 'stable' else 'volatile' end
    , case when _target.proretset then 'select * from ' else 'select ' end || _call);
    execute format('comment on function %s is %L', _forwarder, agent_private.forwarding_comment());
    execute format('revoke all on function %s from public', _forwarder);
    for _role in
      select a.grantee from aclexplode(_target.proacl) a where a.grantee not in (0, _target.proowner) and a.privilege_type = 'EXECUTE'
    loop
      execute format('grant execute on function %s to %s', _forwarder, _role);
    end loop;
  end loop;

  -- Acks and nacks that waited for the migration go on with their former bodies, which compare receipts by it.
  create or replace function agent.receipt(_id int8, _attempts int4, _claimed timestamptz[])
  returns text
  language sql stable
  set search_path to pg_catalog, pg_temp
  as 'select agent_private.former_receipt($1, $2, $3)';
  execute format('comment on function agent.receipt(int8, int4, timestamptz[]) is %L', agent_private.forwarding_comment());
  revoke all on function agent.receipt(int8, int4, timestamptz[]) from public;

  -- The versions of keys and sources, as processes ask for them.
  create or replace function agent.get_access()
  returns table (version uuid, is_required boolean, at timestamptz)
  language sql volatile
  security definer
  set search_path to pg_catalog, pg_temp
  as 'select md5(v.version::text)::uuid, a.is_required, clock_timestamp() from agent.access a, agent_private.replica_version v where v.name = ''access''';
  create or replace function agent.get_sources_version()
  returns text
  language sql volatile
  security definer
  set search_path to pg_catalog, pg_temp
  as 'select v.version::text from agent_private.replica_version v where v.name = ''source''';
  foreach _forwarder in array array['agent.get_access()', 'agent.get_sources_version()'] loop
    execute format('comment on function %s is %L', _forwarder, agent_private.forwarding_comment());
    execute format('revoke all on function %s from public', _forwarder);
    for _role in
      select a.grantee
      from pg_proc p
      cross join aclexplode(p.proacl) a
      where p.oid = 'agent_service.replica_versions()'::regprocedure and a.grantee not in (0, p.proowner) and a.privilege_type = 'EXECUTE'
    loop
      execute format('grant execute on function %s to %s', _forwarder, _role);
    end loop;
  end loop;
end
$func$;

-- Drops the functions of agent that forward to agent_service, unless a process of a version before 0.8.0 has reported lately, or the migration is so
-- recent that one might not have. Returns how many it has dropped.
create or replace function agent_service.drop_forwarding_functions(_since_migration interval default interval '1 hour')
returns int8
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _functions text;
  _count int8;
begin
  select string_agg(p.oid::regprocedure::text, ', '), count(*) into _functions, _count
  from pg_proc p
  where p.pronamespace = 'agent'::regnamespace and obj_description(p.oid, 'pg_proc') = agent_private.forwarding_comment();
  if _functions is null
  or exists (select from agent.version v where v.updated_at > clock_timestamp() - _since_migration)
  or exists
  ( select from agent.process_metric m
    where m.category = 'version' and coalesce(string_to_array(substring(m.value from '^\d+\.\d+'), '.')::int4[] < array[0, 8], true)
    and m.updated_at > clock_timestamp() - interval '10 minutes'
  ) then
    return 0;
  end if;
  execute 'drop function ' || _functions;
  return _count;
end
$func$;
