-- Policies: what a queue says of its events' attempts, whether it is paused, and how long its history is kept.

-- Has history kept for so long at least, whatever the service and the policies of queues say; null: no minimum. Only for the owner of the schema.
create or replace function agent.set_minimum_retention(_retention interval)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  perform agent_private.check_is_owner();
  if not _retention > interval '0' or _retention > interval '1000 years' then
    perform agent_private.raise_invalid('retention', 'must be more than nothing, and 1000 years at most');
  end if;
  delete from agent.minimum_retention;
  insert into agent.minimum_retention (retention) select _retention where _retention is not null;
end
$func$;

-- Events of history with an event_ts before this may be deleted under a retention. Private to the functions of this schema.
create or replace function agent_private.history_cutoff(_retention interval)
returns timestamptz
language plpgsql stable
set search_path to pg_catalog, pg_temp
as $func$
begin
  return least(now() - _retention, now() - (select m.retention from agent.minimum_retention m));
end
$func$;

-- Sets the whole policy of a queue from an object with any of max_attempts, invisible_for, backoff {kind, base, factor, max, jitter}, paused and
-- history_retention; what is left out has no value, or its default. Durations are intervals as text, kept in seconds. Raises QD003 for what makes no sense.
create or replace function agent.put_queue(_name text, _policy jsonb)
returns agent.queue
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _backoff jsonb = nullif(_policy -> 'backoff', 'null');
  _row agent.queue;
  _unknown text;
begin
  perform agent_private.check_queue_name(_name);
  for _unknown in select p from jsonb_object_keys(_policy) p where p not in ('max_attempts', 'invisible_for', 'backoff', 'paused', 'history_retention') loop
    perform agent_private.raise_invalid(_unknown, 'is not part of a policy');
  end loop;
  for _unknown in select p from jsonb_object_keys(_backoff) p where p not in ('kind', 'base', 'factor', 'max', 'jitter') loop
    perform agent_private.raise_invalid('backoff', 'has no ' || quote_literal(_unknown));
  end loop;

  _row.name = _name;
  _row.max_attempts = (_policy ->> 'max_attempts')::int4;
  _row.invisible_for = make_interval(secs => extract(epoch from (_policy ->> 'invisible_for')::interval)::float8);
  _row.backoff_kind = _backoff ->> 'kind';
  _row.backoff_base = make_interval(secs => extract(epoch from (_backoff ->> 'base')::interval)::float8);
  _row.backoff_factor = coalesce((_backoff ->> 'factor')::float8, case _backoff ->> 'kind' when 'exponential' then 2 else 1 end);
  _row.backoff_max = make_interval(secs => extract(epoch from (_backoff ->> 'max')::interval)::float8);
  _row.backoff_jitter = coalesce((_backoff ->> 'jitter')::float8, 0);
  _row.paused = coalesce((_policy ->> 'paused')::boolean, false);
  _row.history_retention = make_interval(secs => extract(epoch from (_policy ->> 'history_retention')::interval)::float8);
  _row.updated_at = clock_timestamp();
  _row.resumed_at = case when not _row.paused then _row.updated_at end; -- if it was paused
  if _row.max_attempts < 1 then
    perform agent_private.raise_invalid('max_attempts', 'must be at least 1');
  elsif _row.invisible_for <= interval '0' or _row.invisible_for > interval '3660 days' then
    perform agent_private.raise_invalid('invisible_for', 'must be more than nothing, and at most ten years');
  elsif _backoff is not null and coalesce(_row.backoff_kind, '') not in ('constant', 'linear', 'exponential') then
    perform agent_private.raise_invalid('backoff/kind', 'must be constant, linear or exponential');
  elsif _backoff is not null and coalesce(_row.backoff_base, interval '-1') < interval '0' then
    perform agent_private.raise_invalid('backoff/base', 'must not be negative, and is needed');
  elsif _row.backoff_factor not between 1 and 1000 then
    perform agent_private.raise_invalid('backoff/factor', 'must be 1 to 1000');
  elsif _row.backoff_max < interval '0' then
    perform agent_private.raise_invalid('backoff/max', 'must not be negative');
  elsif _row.backoff_jitter not between 0 and 1 then
    perform agent_private.raise_invalid('backoff/jitter', 'must be 0 to 1');
  elsif _row.history_retention <= interval '0' or _row.history_retention >= interval '1000 years' then
    perform agent_private.raise_invalid('history_retention', 'must be more than nothing, and less than a thousand years');
  elsif _row.history_retention < (select m.retention from agent.minimum_retention m) then
    perform agent_private.raise_invalid('history_retention', 'must not be shorter than the minimum that the owner of the database has set');
  end if;

  insert into agent.queue as q select _row.*
  on conflict (name) do update
  set (max_attempts, invisible_for, backoff_kind, backoff_base, backoff_factor, backoff_max, backoff_jitter, paused, history_retention, updated_at, resumed_at)
    = ( excluded.max_attempts, excluded.invisible_for, excluded.backoff_kind, excluded.backoff_base, excluded.backoff_factor, excluded.backoff_max
      , excluded.backoff_jitter, excluded.paused, excluded.history_retention, excluded.updated_at
      , case when q.paused and not excluded.paused then excluded.resumed_at else q.resumed_at end
      );
  if not _row.paused then -- what waits there may be claimable now
    perform agent.notify_queues(array[_name]);
  end if;
  return _row;
end
$func$;

-- The policy of a queue; without one, a row with nothing but the name.
create or replace function agent.get_queue(_name text)
returns agent.queue
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _row agent.queue;
begin
  perform agent_private.check_queue_name(_name);
  select q.* into _row from agent.queue q where q.name = _name;
  if not found then
    _row.name = _name;
    _row.paused = false;
  end if;
  return _row;
end
$func$;

-- Pauses a queue, or lets it go on. A paused queue takes events and hands out none. None of them gets over age meanwhile, see
-- agent.sweep_events; an end that an event has of its own (expires_at) comes all the same.
create or replace function agent.pause_queue(_name text, _paused boolean default true)
returns void
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  perform agent_private.check_queue_name(_name);
  insert into agent.queue as q (name, paused) values (_name, _paused)
  on conflict (name) do update
  set paused = excluded.paused, updated_at = clock_timestamp(), resumed_at = case when excluded.paused then q.resumed_at else clock_timestamp() end
  where q.paused <> excluded.paused;
  if not _paused then
    perform agent.notify_queues(array[_name]);
  end if;
end
$func$;

-- How long an event waits that was given back after so many attempts, by its queue's policy.
create or replace function agent_private.backoff(_policy agent.queue, _attempts int4)
returns interval
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
declare
  _most float8 = least(extract(epoch from _policy.backoff_max), 315360000); -- ten years, as for any delay
  _delay float8 = extract(epoch from _policy.backoff_base);
begin
  _attempts = greatest(_attempts, 1);
  if _policy.backoff_kind is null then
    return interval '0';
  end if;
  _delay = case _policy.backoff_kind
    when 'constant' then _delay
    when 'linear' then _delay * (1 + _policy.backoff_factor * (_attempts - 1))
    else case when _delay > 0 and (_attempts - 1) * ln(_policy.backoff_factor) + ln(_delay) > ln(greatest(_most, 1)) then _most -- it might overflow
      else _delay * power(_policy.backoff_factor, _attempts - 1) end
  end;
  _delay = least(_delay, _most) * (1 + _policy.backoff_jitter * (2 * random() - 1));
  return make_interval(secs => least(_delay, _most));
end
$func$;

-- Moves up to _limit events of a queue that nobody has a lease on to history as cancelled, and returns how many.
create or replace function agent.purge_queue(_name text, _limit int4 default 1000)
returns int8
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
as $func$
declare
  _now timestamptz = clock_timestamp();
  _ids int8[];
  _purged int8;
begin
  perform agent_private.check_queue_name(_name);
  if coalesce(_limit, 0) < 1 then
    perform agent_private.raise_invalid('limit', 'must be at least 1');
  end if;
  _ids = array
  ( select e.id
    from agent.event e
    where e.queue = _name and agent_private.event_state(e, _now) <> 'leased'
    limit _limit
    for update skip locked
  );
  begin
    select count(*) into _purged from agent_private.move_to_history(_ids, 'cancelled');
  exception when data_exception or integrity_constraint_violation or program_limit_exceeded or raise_exception or feature_not_supported then
    select coalesce(sum(x.moved), 0) into _purged from agent_private.move_each_to_history(_ids, 'cancelled') x; -- as a sweep does
  end;
  return _purged;
end
$func$;
