-- Copies of owners: schedules are on the cells of their queues, and name owners, so every cell has the owners of home. A gateway keeps them level, as it does with keys: see
-- 027-cell.sql.

-- Up to _limit copies of owners after _after_id, by their ids, each as an object that agent_service.put_owner_copies() takes. With _since those alone that changed in transactions which that
-- snapshot does not show, and among them owners that were deleted, as {"id", "deleted": true, "version"}. A snapshot tells who has followed so far what is missing, without a lock
-- that would have changes of owners wait for each other. For the service.
create or replace function agent_service.read_owner_copies(_since pg_snapshot, _after_id text, _limit int4)
returns table (id text, copy jsonb)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_custom_plan -- with a snapshot, or with all
set jit to off
as $func$
begin
  if _since is null then
    return query
    select o.id, agent_private.owner_copy(o) from agent.owner o where _after_id is null or o.id > _after_id order by o.id limit _limit;
    return;
  end if;
  return query
  select c.id
  , case
      when o.id is null then jsonb_build_object('id', c.id, 'deleted', true, 'version', agent_private.bounded_version(c.version))
      else agent_private.owner_copy(o)
    end
  from agent_private.owner_change c
  left join agent.owner o on o.id = c.id
  where c.transaction >= pg_snapshot_xmin(_since)::text::int8 and not pg_visible_in_snapshot(c.transaction::text::xid8, _since)
  and (_after_id is null or c.id > _after_id)
  order by c.id
  limit _limit;
end
$func$;

-- The snapshot that copies are read from next, and its epoch: those of another one say nothing here. It is taken before the copies. For the service.
create or replace function agent_service.owner_version()
returns table (snapshot pg_snapshot, epoch text)
language sql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
  select pg_current_snapshot(), agent_private.epoch()
$func$;

-- Puts copies of owners on this cell, as agent_service.put_key_copies() does with keys, and returns what became of each, in the order of their ids: applied, with the schedules that are
-- to be expanded anew; unchanged; deleted, with the version; or refused, with the reason. Of two states of an owner that of the greater version counts, and of the same version the later
-- one. An owner that is deleted ends its schedules here. A version or a time beyond the bounds of copies is refused. For the service.
create or replace function agent_service.put_owner_copies(_copies jsonb)
returns table (id text, result text, reason text, version int8, unresolved int8[])
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set jit to off
as $func$
#variable_conflict use_column
declare
  _copy jsonb;
  _put record;
begin
  if jsonb_typeof(_copies) is distinct from 'array' or jsonb_array_length(_copies) > 1000 then
    perform agent_private.raise_invalid('owners', 'must be at most 1000');
  end if;
  -- In one order, so that two calls do not wait for each other.
  for _copy in select c.value from jsonb_array_elements(_copies) as c order by (c.value ->> 'id') collate "C" loop
    id = _copy ->> 'id';
    reason = null;
    version = null;
    unresolved = '{}';
    begin
      select * into strict _put from agent_private.put_owner_copy(_copy);
      result = _put.result;
      version = _put.version;
      unresolved = _put.unresolved;
    exception when sqlstate 'QD003' or integrity_constraint_violation or data_exception then
      result = 'refused';
      reason = sqlerrm;
    end;
    return next;
  end loop;
end
$func$;

-- Puts one copy of an owner on this cell. Raises QD003.
create or replace function agent_private.put_owner_copy(_copy jsonb)
returns table (result text, version int8, unresolved int8[])
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
#variable_conflict use_column
declare
  _id text = _copy ->> 'id';
  _before agent.owner;
  _owner agent.owner;
  _gone int8;
begin
  unresolved = '{}';
  if octet_length(coalesce(_id, '')) not between 1 and 255 then
    perform agent_private.raise_invalid('id', 'must be 1 to 255 bytes');
  end if;
  perform agent_private.check_copied_version(_copy);
  perform agent_private.copied_time(_copy, 'created_at'), agent_private.copied_time(_copy, 'updated_at');
  _owner = jsonb_populate_record(null::agent.owner, _copy);
  select o.* into _before from agent.owner o where o.id = _id for update;
  if found then
    _before = agent_private.bounded_owner(_before);
  end if;
  select agent_private.bounded_version(c.version) into _gone from agent_private.owner_change c where c.id = _id and c.is_deleted;
  version = coalesce(_gone, _before.version);
  result = 'unchanged';

  if coalesce((_copy -> 'deleted')::boolean, false) then
    if _before.version < _owner.version
      or _before.version = _owner.version and _owner.version = agent_private.max_copied_version() -- no deletion has a greater one
    then
      perform agent_private.record_audit('owner.copy', _id, '{"deleted": true}');
      delete from agent.owner o where o.id = _id;
      perform agent_private.cancel_schedules(array(select s.id from agent.schedule s where s.owner = _id));
      result = 'applied';
    end if;
    if _before.id is null or result = 'applied' then
      perform agent_private.note_owner_change(_id, true, _owner.version);
    end if;
    return next;
    return;
  elsif _before.id is null and _gone >= _owner.version then
    result = 'deleted';
    return next;
    return;
  elsif (_before.version, _before.updated_at, agent_private.owner_copy(_before)::text collate "C")
    >= (_owner.version, _owner.updated_at, agent_private.owner_copy(_owner)::text collate "C")
  then
    return next;
    return;
  end if;

  if jsonb_typeof(_owner.attributes) is distinct from 'object' then
    perform agent_private.raise_invalid('attributes', 'must be a JSON object');
  elsif num_nulls(_owner.created_at, _owner.updated_at) > 0 then
    perform agent_private.raise_invalid('updated_at', 'must be there, as must created_at');
  end if;
  perform agent_private.check_json('attributes', _owner.attributes);
  perform agent_private.watch_zone(_owner.timezone);
  insert into agent.owner as o (id, timezone, attributes, version, created_at, updated_at)
  values (_id, _owner.timezone, _owner.attributes, _owner.version, _owner.created_at, _owner.updated_at)
  on conflict on constraint owner_pkey do update
  set timezone = excluded.timezone, attributes = excluded.attributes, version = excluded.version, created_at = excluded.created_at, updated_at = excluded.updated_at
  where (o.version, o.updated_at) < (excluded.version, excluded.updated_at) or _before.id is not null;
  if found then
    result = 'applied';
    version = _owner.version;
    if _before.timezone is distinct from _owner.timezone then
      select m.unresolved into strict unresolved
      from agent_private.move_schedules(array(select s.id from agent.schedule s where s.owner = _id and s.timezone is null), _owner.timezone) m;
    end if;
    perform agent_private.record_audit('owner.copy', _id, jsonb_build_object('timezone', _owner.timezone, 'version', _owner.version));
  end if;
  return next;
end
$func$;

-- An owner with its version and its times within the bounds of copies.
create or replace function agent_private.bounded_owner(_owner agent.owner)
returns agent.owner
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  _owner.version = agent_private.bounded_version(_owner.version);
  _owner.created_at = agent_private.bounded_copied_time(_owner.created_at);
  _owner.updated_at = agent_private.bounded_copied_time(_owner.updated_at);
  return _owner;
end
$func$;

-- An owner as cells exchange it, within the bounds of copies.
create or replace function agent_private.owner_copy(_owner agent.owner)
returns jsonb
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set timezone to 'UTC'
as $func$
begin
  _owner = agent_private.bounded_owner(_owner);
  return jsonb_build_object
  ( 'id', _owner.id, 'timezone', _owner.timezone, 'attributes', _owner.attributes, 'version', _owner.version, 'created_at', _owner.created_at
  , 'updated_at', _owner.updated_at
  );
end
$func$;

-- Notes a change of an owner. The version of one that was deleted only grows, and one that comes again goes on from it.
create or replace function agent_private.note_owner_change(_id text, _is_deleted boolean, _version int8)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  insert into agent_private.owner_change as c (id, transaction, is_deleted, version)
  values (_id, pg_current_xact_id()::text::int8, _is_deleted, _version)
  on conflict on constraint owner_change_pkey do update
  set transaction = excluded.transaction, is_deleted = excluded.is_deleted
  , version = case
      when not c.is_deleted then excluded.version
      when excluded.is_deleted then greatest(c.version, excluded.version)
      else greatest(agent_private.next_copied_version(c.version), excluded.version)
    end
  where not (c.is_deleted and excluded.is_deleted and c.version >= excluded.version);
end
$func$;

-- Trigger after each change of an owner, whoever makes it: notes it, and tells processes.
create or replace function agent_private.set_owner_change()
returns trigger
language plpgsql
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  if tg_op = 'DELETE' then
    perform agent_private.note_owner_change(old.id, true, agent_private.next_copied_version(old.version));
  else
    perform agent_private.note_owner_change(new.id, false, new.version);
  end if;
  perform pg_notify('agent_owner', '');
  return null;
end
$func$;

create or replace trigger set_owner_change after insert or update or delete on agent.owner
for each row execute function agent_private.set_owner_change();
