-- The bytes that events came in as: kept where that is asked for, for a time of their own, in the queue and in history.

-- Keeps _body, the bytes that the event came in as, for _keep from now. The first body that is kept for an event stays. Raises QD002 when
-- there is no such event, in its queue or in history, and QD003 for a _keep or a _media_type out of its range.
create or replace function agent.keep_raw_body
( _event_id int8
, _body bytea
, _media_type text default null
, _keep interval default interval '7 days'
)
returns void
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  if not coalesce(_keep > interval '0' and _keep <= interval '3650 days', false) then
    perform agent_private.raise_invalid('keep', 'must be greater than zero, and at most 3650 days');
  elsif length(_media_type) > 255 then
    perform agent_private.raise_invalid('media_type', 'must be at most 255 characters');
  elsif _body is null then
    perform agent_private.raise_invalid('body', 'must not be null');
  elsif not exists (select from agent.event e where e.id = _event_id) and not exists (select from agent.get_event(_event_id)) then
    raise exception 'no event has the id %', _event_id using errcode = 'QD002';
  end if;
  insert into agent.raw_body (event_id, body, media_type, kept_until)
  values (_event_id, _body, _media_type, agent_private.add_utc(now(), _keep))
  on conflict do nothing;
end
$func$;

-- The bytes that an event came in as; no row if none are kept, or no longer.
create or replace function agent.get_raw_body(_event_id int8)
returns table (body bytea, media_type text, received_at timestamptz, kept_until timestamptz)
language sql stable
security definer
set search_path to pg_catalog, pg_temp
as $func$
  select r.body, r.media_type, r.received_at, r.kept_until
  from agent.raw_body r
  where r.event_id = _event_id and r.kept_until > clock_timestamp()
$func$;

-- Deletes up to _limit bodies that need not be kept any longer and returns how many. The service calls it now and then.
create or replace function agent.prune_raw_bodies(_limit int4 default 1000)
returns int8
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
set jit to off
as $func$
declare
  _deleted int8;
begin
  delete from agent.raw_body r
  where r.ctid = any (array
  ( select o.ctid
    from agent.raw_body o
    where o.kept_until <= clock_timestamp()
    order by o.kept_until
    limit _limit
    for update skip locked
  ));
  get diagnostics _deleted = row_count;
  return _deleted;
end
$func$;
