-- Former names of functions, for the sake of what was written for version 0.3.0: processes of that version, which go on running beside
-- the first ones of this version while a fleet is upgraded, and the SQL of users. Each does nothing but call the function that has taken
-- its place, with its owner's rights. They stay until version 0.6.0, so that an
-- upgrade may leave out a version.

-- Drops the functions that earlier versions had in agent for their own use, and returns how many. They are in agent_private now. A call
-- that is under way while a migration commits goes on with the former body of its function, which needs them: so they are kept until ten
-- minutes after the migration, when all such calls have ended. Raises lock_not_available (55P03) while another session does it. The
-- service calls it hourly.
create or replace function agent.drop_former_functions()
returns int8
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _functions text;
  _count int8;
begin
  if exists (select from agent.version v where v.updated_at > now() - interval '10 minutes') then
    return 0;
  end if;
  perform agent_private.lock_upkeep('former_functions');
  select string_agg(p.oid::regprocedure::text, ', '), count(*) into _functions, _count
  from pg_proc p
  where p.pronamespace = 'agent'::regnamespace
  and p.proname = any (array
  [
    'add_keyed_events', 'add_occurrences', 'append_attempt', 'append_claim', 'attempt_start', 'backoff', 'bounded_lease',
    'bounded_time', 'cancel_schedules', 'canonical_text', 'check_event', 'check_is_owner', 'check_known', 'check_name', 'check_options',
    'check_owner', 'check_receipt', 'check_schedule', 'check_timeline', 'check_times', 'check_values', 'check_zone', 'confirm_durably',
    'default_holds', 'default_is_empty', 'elapsed', 'error_count', 'event_state', 'event_ts', 'few_queues', 'fingerprint',
    'finished_counts', 'flat_claims', 'follow_timeline', 'grant_to_service_roles', 'hash_of', 'history_cutoff', 'history_filter',
    'history_kind', 'history_part', 'history_week', 'is_event', 'is_in_range', 'is_name', 'is_same_request', 'is_steady', 'is_zone',
    'lanes', 'later', 'leases_of', 'list_all_events', 'local_by_setting', 'local_floor', 'local_time', 'lock_history_part',
    'lock_lease', 'lock_schedule', 'lock_upkeep', 'look_at', 'make_history_partition', 'move_each', 'move_schedules', 'move_to_history',
    'notify_schedules', 'occurrence_event', 'oldest_vt', 'over_age', 'park_schedule', 'past_attempt', 'queue_names', 'raise_ended',
    'raise_lost', 'raise_stale', 'random_start', 'read_attempts', 'refuse', 'requeue_rows', 'service_functions', 'switch_schedule',
    'take_typed', 'timeline', 'use_zone', 'used_up', 'utc_offset', 'waiting_counts', 'waiting_queues', 'zone_fault', 'zone_fingerprint',
    'zone_transitions'
  ]);
  if _count > 0 then
    execute 'drop function ' || _functions; -- in one statement, as they depend on each other
  end if;
  return _count;
end
$func$;

create or replace function agent.add_events
( _events jsonb[]
, _queues text[]
, _delays interval[]
, _vts timestamptz[]
, _leases interval[] default null
, _workers text[] default null
, _options jsonb[] default null
, _key_retention interval default interval '24 hours'
)
returns table (id int8, queue text, vt timestamptz, enqueued_at timestamptz, event_ts timestamptz, event jsonb, claimed timestamptz[], replayed boolean)
language sql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
  select * from agent.insert_and_claim_events(_events, _queues, _delays, _vts, _leases, _workers, _options, _key_retention)
$func$;

create or replace function agent.due_schedules(_limit int4 default 1000, _grace interval default null)
returns table (schedule agent.schedule, now timestamptz, is_plain boolean, fault text)
language sql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
  select * from agent.lock_due_schedules(_limit, _grace)
$func$;

create or replace function agent.expire_events
( _max_attempts int4 default 3
, _max_vt_age interval default interval '1 hour'
, _queue text default null
, _limit int4 default null
)
returns table (queue text, expired int8, put_off int8, reason text)
language sql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
  select * from agent.sweep_events(_max_attempts, _max_vt_age, _queue, _limit)
$func$;

create or replace function agent.finish_events(_ids int8[], _receipts text[] default null, _results jsonb[] default null)
returns table (ord int8, status text, queue text, repeated boolean, type text, worker text, took interval)
language sql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
  select * from agent.ack_events(_ids, _receipts, _results)
$func$;

create or replace function agent.fire_planned_schedules
( _schedule_ids int8[]
, _nominals timestamp[]
, _scheduled_for timestamptz[]
, _statuses text[]
, _ids int8[]
, _next_locals timestamp[]
, _next_ats timestamptz[]
, _versions int8[]
, _planned_ats timestamptz[]
, _fired int8[]
)
returns int8[]
language sql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
  select agent.fire_schedules_if_unchanged(_schedule_ids, _nominals, _scheduled_for, _statuses, _ids, _next_locals, _next_ats, _versions, _planned_ats, _fired)
$func$;

create or replace function agent.fold_executions(_gone interval default interval '30 days')
returns int8
language sql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
  select agent.prune_executions(_gone)
$func$;

create or replace function agent.forget_history(_limit int4 default 1000)
returns int8
language sql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
  select agent.prune_history(_limit)
$func$;

create or replace function agent.forget_keys(_limit int4 default 1000)
returns int8
language sql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
  select agent.prune_keys(_limit)
$func$;

create or replace function agent.forget_processes(_id text default null, _alive interval default interval '30 seconds')
returns void
language sql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
  select agent.prune_processes(_id, _alive)
$func$;

create or replace function agent.keep_history(_retention interval default null)
returns table (action text, name text)
language sql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
  select * from agent.maintain_history(_retention)
$func$;

create or replace function agent.keep_occurrences(_retention interval, _first_block int8 default 0, _blocks int8 default null)
returns int8
language sql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
  select agent.prune_occurrences(_retention, _first_block, _blocks)
$func$;

create or replace function agent.look_behind
( _queue text
, _max_attempts int4
, _types text[] default null
, _lanes int4[] default null
, _lane_types text[] default null
, _marks timestamptz[] default null
)
returns table (type text, priority int4, vt timestamptz, took interval)
language sql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
  select * from agent.check_watermarks(_queue, _max_attempts, _types, _lanes, _lane_types, _marks)
$func$;

create or replace function agent.note_server(_seen timestamptz default null)
returns table (timeline int8, is_new boolean, at timestamptz, behind interval, pulled int8)
language sql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
  select * from agent.record_server(_seen)
$func$;

create or replace function agent.note_upkeep(_task text)
returns void
language sql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
  select agent.record_upkeep(_task)
$func$;

create or replace function agent.park_schedules(_ids int8[], _reasons text[])
returns setof int8
language sql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
  select * from agent.pause_faulty_schedules(_ids, _reasons)
$func$;

create or replace function agent.planning_start(_zone text, _at timestamptz default null)
returns table (at timestamptz, floor timestamp)
language sql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
  select * from agent.expansion_start(_zone, _at)
$func$;

create or replace function agent.take_events
( _queue text
, _limit int4
, _max_attempts int4
, _invisible_for interval
, _order text
, _types text[] default null
, _exclude_ids int8[] default null
, _workers text[] default null
, _lanes int4[] default null
, _lane_types text[] default null
, _marks timestamptz[] default null
)
returns table
( id int8, event_ts timestamptz, attempts int4, vt timestamptz, claimed timestamptz[], event jsonb, queue text, enqueued_at timestamptz
, nacked_at timestamptz, last_error text, requeued_from int8
, type text, source text, priority int4, key text, max_attempts int4, expires_at timestamptz, worker text, past_attempts jsonb, occurrence jsonb
, prior_vt timestamptz
)
language sql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
  select * from agent.claim_from_watermarks(_queue, _limit, _max_attempts, _invisible_for, _order, _types, _exclude_ids, _workers, _lanes, _lane_types, _marks)
$func$;

create or replace function agent.put_owner(_id text, _timezone text, _attributes jsonb default '{}', _if_version int8 default null)
returns table
( id text, timezone text, attributes jsonb, version int8, created_at timestamptz, updated_at timestamptz
, is_new boolean, moved int8, unresolved int8[]
)
language sql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
  select * from agent.put_owner_if_match(_id, _timezone, _attributes, case when _if_version is not null then array[_if_version] end, false)
$func$;

create or replace function agent.delete_owner(_id text, _if_version int8 default null)
returns int8
language sql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
  select agent.delete_owner_if_match(_id, case when _if_version is not null then array[_if_version] end)
$func$;
