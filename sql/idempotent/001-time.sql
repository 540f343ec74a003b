-- Time: epoch seconds and RFC 3339 to timestamptz and back.

-- Epoch seconds to a timestamp, to the microsecond. Out of timestamptz's range: SQLSTATE 22008.
create or replace function agent.to_timestamptz(_ts numeric)
returns timestamptz
language sql immutable strict parallel safe
set search_path to pg_catalog, pg_temp
as $func$
  select to_timestamp(_ts::float8)
$func$;

-- Epoch seconds as text (the way Slack writes them), or an RFC 3339 date-time. Anything else: SQLSTATE 22007.
create or replace function agent.to_timestamptz(_ts text)
returns timestamptz
language plpgsql immutable strict parallel safe
set search_path to pg_catalog, pg_temp
as $func$
begin
  if _ts ~ '^[+-]?[0-9]{1,12}([.][0-9]{0,12})?$' then
    return to_timestamp(_ts::float8);
  end if;
  if _ts ~ '^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,12})?([Zz]|[+-][0-9]{2}:[0-9]{2})$' then
    return _ts::timestamptz;
  end if;
  raise exception 'neither epoch seconds nor an RFC 3339 date-time: %', quote_literal(left(_ts, 64))
    using errcode = 'invalid_datetime_format';
end
$func$;

-- A timestamp to epoch seconds, with six decimals.
create or replace function agent.from_timestamptz(_ts timestamptz)
returns numeric
language sql immutable strict parallel safe
set search_path to pg_catalog, pg_temp
as $func$
  select extract(epoch from _ts)::numeric(20, 6)
$func$;

-- A time so much later, with days of 24 hours whatever the session's time zone. Without a search_path it can be inlined:
-- see agent.receipt.
create or replace function agent_private.add_utc(_ts timestamptz, _by interval)
returns timestamptz
language sql immutable parallel safe
return (_ts at time zone 'UTC' + _by) at time zone 'UTC';

-- The time from one to another, null where one of them is infinite. Inlined, as agent_private.add_utc is.
create or replace function agent_private.elapsed(_from timestamptz, _to timestamptz)
returns interval
language sql immutable parallel safe
return case when isfinite(_from) and isfinite(_to) then _to - _from end;

-- The nearest time from the year 1 to 9999: a hypertable has no room for all others. Inlined, as agent_private.add_utc is.
create or replace function agent_private.bounded_time(_ts timestamptz)
returns timestamptz
language sql immutable parallel safe
return least(greatest(_ts, timestamptz '0001-01-01 00:00+00'), timestamptz '9999-12-31 23:59:59.999999+00');

-- The event_ts of a payload: its member "event_ts" as a number or text that to_timestamptz takes, else
-- now(). It comes from outside, so what lies beyond [now - 10 years, now + 1 day] is now() as well: a hostile
-- value must not make partitions without end. Never fails.
create or replace function agent_private.event_ts(_event jsonb)
returns timestamptz
language plpgsql stable parallel safe
set search_path to pg_catalog, pg_temp
as $func$
declare
  _ts timestamptz;
  _epoch numeric;
begin
  case jsonb_typeof(_event -> 'event_ts')
    when 'number' then
      _epoch = round((_event ->> 'event_ts')::numeric, 6);
      if abs(_epoch) < 1e12 then
        _ts = agent.to_timestamptz(_epoch);
      end if;
    when 'string' then
      begin
        _ts = agent.to_timestamptz(_event ->> 'event_ts');
      exception when data_exception then
        _ts = null;
      end;
    else
      _ts = null;
  end case;
  if _ts between now() - interval '10 years' and now() + interval '1 day' then
    return _ts;
  end if;
  return now();
end
$func$;
