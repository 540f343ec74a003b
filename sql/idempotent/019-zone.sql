-- Zones: local times to instants, exactly. The server's own zone rules (pg_timezone_names) are the only ones, and agent.resolve_local
-- alone applies them, so that all processes of a fleet agree. A session reads a zone's rules once and keeps them: after
-- an update of the server's time zone data, sessions must begin anew to see it (see agent.check_zone_rules).

-- The local time at an instant, of a zone whose name PostgreSQL might take for an abbreviation: "at time zone 'CET'" has no summer, but the setting
-- knows zones only. Private to the functions of this schema.
create or replace function agent_private.local_by_setting(_at timestamptz, _zone text)
returns timestamp
language plpgsql stable
set search_path to pg_catalog, pg_temp
set timezone to 'UTC' -- so that what it was comes back
as $func$
begin
  perform set_config('timezone', _zone, true);
  return _at::timestamp;
end
$func$;

-- The local time of a zone at an instant. Without a search_path it can be inlined: see agent.receipt. No abbreviation has a slash.
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

-- The changes of a zone's offset in (_from, _to], to the second. One is missed only where the offset changes and changes back within _step.
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
    -- By halves: the offset is still the old one at _low, and another one at _high.
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

-- The instant at which a zone's clocks show _local. Where they do twice, _overlap is 'first' or 'last'. Where they never do, because they
-- leap over it, _gap is 'forward' (later by the length of the leap, as if it had not come yet), 'next' (the end of the leap) or 'skip' (null).
-- Exact for every zone, whatever the offsets and however they change, as long as no two changes within 8 hours undo each other.
create or replace function agent.resolve_local(_local timestamp, _zone text, _gap text default 'forward', _overlap text default 'first')
returns timestamptz
language plpgsql stable
security definer
set search_path to pg_catalog, pg_temp
as $func$
#variable_conflict use_column
declare
  -- No zone was ever 16 hours off: what _local can stand for lies within that of what it would be in UTC.
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
  -- The same offset throughout: the clocks have gone on by as much as the time.
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
    -- By the offset in force from _since up to this change:
    if _utc - _offset >= _since and _utc - _offset < _change.at then
      _found = _utc - _offset;
      exit when _overlap = 'first';
    end if;
    -- Or the change leaps over it:
    if _in_gap is null and _utc - _offset >= _change.at and _utc - _change.offset_after < _change.at then
      _in_gap = case _gap when 'forward' then _utc - _offset when 'next' then _change.at end;
    end if;
    _since = _change.at;
    _offset = _change.offset_after;
  end loop;
  return coalesce(_found, _in_gap);
end
$func$;

-- What is wrong with a zone that a row names, null when the server knows it: an update or another server may have taken it away. Private to the
-- functions of this schema.
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

-- Resolves many, each by itself. Those that are not at all have a null instant; is_shifted tells those that a gap has moved, is_known those that are
-- occurrences of their schedule (null: of none) already, which happened or were passed over. Of those that a gap swallows, resume is the local
-- time at which it ends. fault says why one can't be resolved.
create or replace function agent.resolve_locals(_locals timestamp[], _zones text[], _gaps text[], _overlaps text[], _schedule_ids int8[] default null)
returns table (at timestamptz, is_shifted boolean, is_known boolean, resume timestamp, fault text)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
set jit to off
as $func$
#variable_conflict use_column
declare
  _unknown text[] = array(select z.zone from (select distinct u.zone from unnest(_zones) as u (zone)) as z where agent_private.zone_fault(z.zone) is not null);
begin
  return query
  select r.at, coalesce(agent_private.local_time(r.at, n.zone) <> n.local, false)
  , exists (select from agent.occurrence o where o.schedule_id = n.schedule_id and o.nominal_at = n.local)
  , case when r.at is null and n.zone <> all(_unknown) then agent_private.local_time(agent.resolve_local(n.local, n.zone, 'next'), n.zone) end
  , case when n.zone = any(_unknown) then agent_private.zone_fault(n.zone) end
  from unnest(_locals, _zones, _gaps, _overlaps, _schedule_ids) with ordinality as n (local, zone, gap, overlap, schedule_id, ord)
  cross join lateral
  ( select case when n.zone <> all(_unknown) then agent.resolve_local(n.local, n.zone, n.gap, n.overlap) end offset 0
  ) as r (at)
  order by n.ord;
end
$func$;

-- Whether a zone's offset stays as it is for 26 hours either way: no local time was ever moved further.
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

-- A local time such that all earlier ones come before _at by any policy.
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

-- Whether the server knows a zone by exactly this IANA name. pg_timezone_names would read hundreds of files, so it is asked only for names with a
-- digit or a sign, which might be POSIX's specification of a zone that nobody lives in ("FOO+3"). The setting takes others only when there
-- is a file for them, and shows them as they are written there. Private to the functions of this schema.
create or replace function agent_private.is_zone(_zone text)
returns boolean
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set timezone to 'UTC' -- so that what it was comes back
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

-- Refuses what is no IANA name of a zone that the server knows: names are exact, and POSIX's specifications, the abbreviations that are no
-- names, "Local" and the like are none.
create or replace function agent_private.check_zone(_zone text, _argument text default 'timezone')
returns void
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _meant text;
begin
  if not agent_private.is_zone(_zone) then
    select n.name into _meant from pg_timezone_names n where lower(n.name) = lower(_zone) and n.name <> _zone and n.name !~ '^(posix|right)/' limit 1;
    if _meant is not null then
      perform agent_private.raise_invalid(_argument, format('must be written %s, as the IANA name is', _meant));
    end if;
    perform agent_private.raise_invalid(_argument, 'must be the IANA name of a time zone that the database server knows, like Europe/Berlin');
  end if;
end
$func$;

-- What a zone's rules make of the time between these two, as a hash.
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

-- Checks a zone, and has its rules watched from now on. Private to the functions of this schema.
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
