-- Time zones: local times to instants, exactly. The server's own rules (pg_timezone_names) are the only ones, and only
-- agent.resolve_local applies them, so that all processes agree. A session reads a zone's rules once and keeps them: after an update of
-- the server's time zone data, only new sessions have the new rules (see agent_service.check_zone_rules).

-- The local time at an instant in a zone whose name PostgreSQL might read as an abbreviation: "at time zone 'CET'" has no summer time,
-- but the setting knows only zones.
create or replace function agent_private.local_by_setting(_at timestamptz, _zone text)
returns timestamp
language plpgsql stable
set search_path to pg_catalog, pg_temp
set timezone to 'UTC' -- restored when the function ends
as $func$
begin
  perform set_config('timezone', _zone, true);
  return _at::timestamp;
end
$func$;

-- The local time at an instant in a zone. It has no search_path so that it can be inlined: see agent.receipt. No abbreviation has a
-- slash.
create or replace function agent_private.local_time(_at timestamptz, _zone text)
returns timestamp
language sql stable
return case
  when _zone like '%/%' or _zone = 'UTC' then _at at time zone _zone
  else agent_private.local_by_setting(_at, _zone)
end;

-- How far the local time of a zone is ahead of UTC at an instant.
create or replace function agent_private.utc_offset(_at timestamptz, _zone text)
returns interval
language sql stable
return agent_private.local_time(_at, _zone) - (_at at time zone 'UTC');

-- The changes of a zone's offset in (_from, _to], to the second. A change is missed only if the offset changes back within _step.
create or replace function agent_private.zone_transitions(_zone text, _from timestamptz, _to timestamptz, _step interval)
returns table (at timestamptz, offset_before interval, offset_after interval)
language plpgsql stable
set search_path to pg_catalog, pg_temp
as $func$
#variable_conflict use_column
declare
  _at timestamptz = date_trunc('second', _from);
  _low timestamptz;
  _high timestamptz;
  _middle timestamptz;
  _offset interval = agent_private.utc_offset(_at, _zone);
begin
  while _at < _to loop
    _high = least(_at + _step, date_trunc('second', _to) + interval '1 second');
    if agent_private.utc_offset(_high, _zone) = _offset then
      _at = _high;
      continue;
    end if;
    -- Binary search: the offset is the old one at _low and another one at _high.
    _low = _at;
    while _high - _low > interval '1 second' loop
      _middle = _low + make_interval(secs => floor(extract(epoch from _high - _low) / 2)::float8);
      if agent_private.utc_offset(_middle, _zone) = _offset then
        _low = _middle;
      else
        _high = _middle;
      end if;
    end loop;
    exit when _high > _to;
    return query select _high, _offset, agent_private.utc_offset(_high, _zone);
    _at = _high;
    _offset = agent_private.utc_offset(_at, _zone);
  end loop;
end
$func$;

-- The instant at which clocks in a zone show _local. If they show it twice, _overlap says which instant: 'first' or 'last'. If they skip
-- it, _gap says: 'forward' (later by the length of the gap), 'next' (the end of the gap) or 'skip' (null). Exact for every zone,
-- whatever its offsets, unless two changes within 8 hours undo each other.
create or replace function agent.resolve_local(_local timestamp, _zone text, _gap text default 'forward', _overlap text default 'first')
returns timestamptz
language plpgsql stable
security definer
set search_path to pg_catalog, pg_temp
as $func$
#variable_conflict use_column
declare
  -- No zone was ever 16 hours off UTC, so the instant is within 16 hours of _local taken as UTC.
  _utc timestamptz = _local at time zone 'UTC';
  _from timestamptz = _utc - interval '16 hours';
  _to timestamptz = _utc + interval '16 hours';
  _first timestamp = agent_private.local_time(_from, _zone);
  _offset interval = _first - (_from at time zone 'UTC');
  _since timestamptz = '-infinity';
  _found timestamptz;
  _in_gap timestamptz;
  _change record;
begin
  if not coalesce(isfinite(_local), false) then
    perform agent_private.raise_invalid('local', 'must be finite');
  end if;
  -- The usual case: the same offset in all of this time.
  if agent_private.local_time(_utc - interval '8 hours', _zone) = _first + interval '8 hours'
    and agent_private.local_time(_utc, _zone) = _first + interval '16 hours'
    and agent_private.local_time(_utc + interval '8 hours', _zone) = _first + interval '24 hours'
    and agent_private.local_time(_to, _zone) = _first + interval '32 hours'
  then
    return _utc - _offset;
  end if;

  for _change in
    select t.at, t.offset_after from agent_private.zone_transitions(_zone, _from, _to, interval '8 hours') t
    union all
    select 'infinity', interval '0'
    order by 1
  loop
    -- With the offset in force from _since to this change, the clocks show it:
    if _utc - _offset >= _since and _utc - _offset < _change.at then
      _found = _utc - _offset;
      exit when _overlap = 'first';
    end if;
    -- Or the change skips it:
    if _in_gap is null and _utc - _offset >= _change.at and _utc - _change.offset_after < _change.at then
      _in_gap = case _gap when 'forward' then _utc - _offset when 'next' then _change.at end;
    end if;
    _since = _change.at;
    _offset = _change.offset_after;
  end loop;
  return coalesce(_found, _in_gap);
end
$func$;

-- Resolves many local times, each on its own. at is null for a time that is skipped; is_shifted tells whether a gap has moved the time,
-- is_known whether it is an occurrence of the schedule (null: none) already, by its instant if the rule of that is in real time. For a time in a gap that is skipped, resume is the local
-- time at which the gap ends. fault says why a time cannot be resolved.
create or replace function agent_service.resolve_locals(_locals timestamp[], _zones text[], _gaps text[], _overlaps text[], _schedule_ids int8[] default null, _are_real_time boolean[] default null)
returns table (at timestamptz, is_shifted boolean, is_known boolean, resume timestamp, fault text)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
set jit to off
as $func$
#variable_conflict use_column
declare
  _unknown text[] = array
  ( select z.zone from (select distinct u.zone from unnest(_zones) as u (zone)) as z where agent_private.zone_fault(z.zone) is not null
  );
begin
  return query
  select r.at, coalesce(agent_private.local_time(r.at, n.zone) <> n.local, false)
  , exists
    ( select
      from agent.occurrence o
      where o.schedule_id = n.schedule_id and o.key_at = case when n.is_real_time then r.at at time zone 'UTC' else n.local end
      and o.is_real_time = coalesce(n.is_real_time, false)
    )
  , case when r.at is null and n.zone <> all(_unknown) then agent_private.local_time(agent.resolve_local(n.local, n.zone, 'next'), n.zone) end
  , case when n.zone = any(_unknown) then agent_private.zone_fault(n.zone) end
  from unnest(_locals, _zones, _gaps, _overlaps, _schedule_ids, _are_real_time) with ordinality as n (local, zone, gap, overlap, schedule_id, is_real_time, ord)
  cross join lateral
  ( select case when n.zone <> all(_unknown) then agent.resolve_local(n.local, n.zone, n.gap, n.overlap) end offset 0
  ) as r (at)
  order by n.ord;
end
$func$;

-- The fault of the zone of a row, null if the server knows it: an update or another server may have removed it.
create or replace function agent_private.zone_fault(_zone text)
returns text
language plpgsql stable
set search_path to pg_catalog, pg_temp
as $func$
begin
  perform agent_private.local_time('epoch', _zone);
  return null;
exception when data_exception then
  return format('the database server does not know the time zone %s', left(_zone, 64));
end
$func$;

-- Whether a zone's offset stays the same for 26 hours before and after an instant: no local time was ever moved further.
create or replace function agent_private.is_steady(_at timestamptz, _zone text)
returns boolean
language plpgsql stable
set search_path to pg_catalog, pg_temp
as $func$
declare
  _local timestamp = agent_private.local_time(_at, _zone);
begin
  return agent_private.local_time(_at - interval '26 hours', _zone) = _local - interval '26 hours'
    and agent_private.local_time(_at - interval '13 hours', _zone) = _local - interval '13 hours'
    and agent_private.local_time(_at + interval '13 hours', _zone) = _local + interval '13 hours'
    and agent_private.local_time(_at + interval '26 hours', _zone) = _local + interval '26 hours';
end
$func$;

-- A local time such that all earlier ones come before _at, by any policy for gaps and overlaps.
create or replace function agent_private.local_floor(_at timestamptz, _zone text)
returns timestamp
language plpgsql stable
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  if agent_private.is_steady(_at, _zone) then
    return agent_private.local_time(_at, _zone);
  end if;
  return (_at at time zone 'UTC') + least
  ( agent_private.utc_offset(_at - interval '26 hours', _zone)
  , (select min(t.offset_after) from agent_private.zone_transitions(_zone, _at - interval '26 hours', _at + interval '26 hours', interval '1 hour') t)
  );
end
$func$;

-- Whether the server knows a zone by exactly this IANA name. pg_timezone_names reads hundreds of files, so it is queried only for names
-- with a digit or a sign, which might be POSIX zone specifications ("FOO+3"). Other names are accepted by the setting only if there is a
-- file for them, and it shows them as they are spelled there.
create or replace function agent_private.is_zone(_zone text)
returns boolean
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set timezone to 'UTC' -- restored when the function ends
as $func$
begin
  if coalesce(_zone, '') !~ '^[A-Za-z][A-Za-z0-9_+/-]*$'
    or _zone ~ '^(posix|right)/'
    or _zone in ('posixrules', 'Factory', 'localtime', 'Local')
  then
    return false;
  elsif _zone ~ '[0-9+-]' then
    return exists (select from pg_timezone_names n where n.name = _zone);
  end if;
  begin
    perform set_config('timezone', _zone, true);
  exception when invalid_parameter_value then
    return false;
  end;
  return current_setting('timezone') = _zone;
end
$func$;

-- Raises QD003 unless _zone is the exact IANA name of a zone that the server knows. POSIX specifications, abbreviations, "Local" and the
-- like are none.
create or replace function agent_private.check_zone(_zone text, _argument text default 'timezone')
returns void
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _exact_name text;
begin
  if not agent_private.is_zone(_zone) then
    select n.name into _exact_name
    from pg_timezone_names n
    where lower(n.name) = lower(_zone) and n.name <> _zone and n.name !~ '^(posix|right)/'
    limit 1;
    if _exact_name is not null then
      perform agent_private.raise_invalid(_argument, format('must be written %s, as the IANA name is', _exact_name));
    end if;
    perform agent_private.raise_invalid(_argument, 'must be the IANA name of a time zone that the database server knows, like Europe/Berlin');
  end if;
end
$func$;

-- A hash of a zone's rules between two times.
create or replace function agent_private.zone_fingerprint(_zone text, _from timestamptz, _to timestamptz)
returns text
language sql stable
set search_path to pg_catalog, pg_temp
as $func$
  select md5(concat
  ( extract(epoch from agent_private.utc_offset(_from, _zone))
  , (select string_agg(format(' %s %s', extract(epoch from t.at), extract(epoch from t.offset_after)), '' order by t.at)
      -- Even the suspension of summer time over Ramadan is longer than a week.
      from agent_private.zone_transitions(_zone, _from, _to, interval '7 days') t)
  ))
$func$;

-- Checks a zone as check_zone does, and records its rules, so that check_zone_rules sees when they change.
create or replace function agent_private.watch_zone(_zone text, _argument text default 'timezone')
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
declare
  _from timestamptz = date_trunc('day', now());
  _to timestamptz = date_trunc('day', now()) + interval '7305 days'; -- 20 years
begin
  perform agent_private.check_zone(_zone, _argument);
  if not exists (select from agent.zone_rule z where z.zone = _zone) then
    insert into agent.zone_rule (zone, sampled_from, sampled_to, fingerprint)
    values (_zone, _from, _to, agent_private.zone_fingerprint(_zone, _from, _to))
    on conflict do nothing;
  end if;
end
$func$;
