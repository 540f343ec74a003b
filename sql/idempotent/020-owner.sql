-- Owners, and what their moves mean for their schedules.

-- Makes an owner, or replaces what there is of one. In a new zone all their schedules that have none of their own are resolved anew, from
-- the same local times, in this transaction: see agent_private.move_schedules for moved and unresolved. Raises QD004 when _if_version
-- (null: any) is not the owner's version, and QD003.
create or replace function agent.put_owner(_id text, _timezone text, _attributes jsonb default '{}', _if_version int8 default null)
returns table
( id text, timezone text, attributes jsonb, version int8, created_at timestamptz, updated_at timestamptz
, is_new boolean, moved int8, unresolved int8[]
)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
#variable_conflict use_column
declare
  _before agent.owner;
  _owner agent.owner;
  _move record;
begin
  if octet_length(coalesce(_id, '')) not between 1 and 255 then
    perform agent_private.raise_invalid('id', 'must be 1 to 255 bytes');
  elsif jsonb_typeof(_attributes) is distinct from 'object' then
    perform agent_private.raise_invalid('attributes', 'must be a JSON object');
  end if;
  select o.* into _before from agent.owner o where o.id = _id for update;
  perform agent_private.watch_zone(_timezone);

  insert into agent.owner as o (id, timezone, attributes)
  select _id, _timezone, _attributes
  where _before.id is not null or _if_version is null
  on conflict on constraint owner_pkey do update
  set timezone = excluded.timezone, attributes = excluded.attributes, version = o.version + 1, updated_at = now()
  where _if_version is null or o.version = _if_version
  returning o.* into _owner;
  if _owner.id is null then
    perform agent_private.raise_version_mismatch('owner ' || _id, _if_version);
  end if;

  -- Those that somebody else made of an owner who was not there yet have its zone as well.
  if _owner.version > 1 and _before.timezone is distinct from _owner.timezone then
    select * into strict _move
    from agent_private.move_schedules
    ( array(select s.id from agent.schedule s where s.owner = _id and s.timezone is null), _owner.timezone
    );
  else
    select 0::int8 as moved, '{}'::int8[] as unresolved into _move;
  end if;
  return query
  select _owner.id, _owner.timezone, _owner.attributes, _owner.version, _owner.created_at, _owner.updated_at
  , _owner.version = 1, _move.moved, _move.unresolved;
end
$func$;

-- Raises QD004. Private to the functions of this schema.
create or replace function agent_private.raise_version_mismatch(_what text, _version int8)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  raise exception '% is not at version %', _what, _version using errcode = 'QD004';
end
$func$;

-- One owner. Raises QD011 when there is none.
create or replace function agent.get_owner(_id text)
returns agent.owner
language plpgsql stable
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _owner agent.owner;
begin
  select o.* into _owner from agent.owner o where o.id = _id;
  if not found then
    raise exception 'there is no owner %', _id using errcode = 'QD011';
  end if;
  return _owner;
end
$func$;

-- Up to _limit owners by id, after _after_id.
create or replace function agent.list_owners(_limit int4 default 100, _after_id text default null)
returns setof agent.owner
language plpgsql stable
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  return query
  select o.* from agent.owner o
  where _after_id is null or o.id > _after_id collate "C"
  order by o.id
  limit _limit;
end
$func$;

-- Deletes an owner and cancels all their schedules: see agent_private.cancel_schedules. Returns how many. Raises QD011 when there is no such
-- owner, and QD004 when _if_version (null: any) is not the owner's version.
create or replace function agent.delete_owner(_id text, _if_version int8 default null)
returns int8
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _owner agent.owner;
begin
  select o.* into _owner from agent.owner o where o.id = _id for update;
  if not found then
    raise exception 'there is no owner %', _id using errcode = 'QD011';
  elsif _owner.version <> _if_version then
    perform agent_private.raise_version_mismatch('owner ' || _id, _if_version);
  end if;
  delete from agent.owner o where o.id = _id;
  return agent_private.cancel_schedules(array(select s.id from agent.schedule s where s.owner = _id));
end
$func$;
