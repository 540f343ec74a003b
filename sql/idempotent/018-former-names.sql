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

-- Returns 0. Processes of version 0.5.0 call it hourly while a fleet is upgraded, to drop what the script above has dropped.
create or replace function agent.drop_former_functions()
returns int8
language sql stable
security definer
set search_path to pg_catalog, pg_temp
return 0;
