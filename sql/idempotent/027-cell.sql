-- Cells: one of several databases behind a gateway. Each has a number, and ids of its own. See docs/decisions/025-cells.md.

-- Makes this database the cell of this number, 0 to 255, unless it is one already, and returns the number that it has then. has_ids says that it can be no
-- other cell than 0 because it has given out ids as that. Of two processes that take a new database at the same time one sees the other's number. For the
-- service.
create or replace function agent_service.take_cell(_cell int4)
returns table (number int4, has_ids boolean)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _sequence regclass;
  _first int8 = _cell::int8 << 45;
  _is_called boolean;
begin
  if not coalesce(_cell between 0 and 255, false) then
    perform agent_private.raise_invalid('cell', 'must be 0 to 255');
  end if;
  has_ids = false;
  select c.number into strict number from agent.cell c;
  if number is null then
    select c.number into strict number from agent.cell c for update; -- or another session has taken it meanwhile
  end if;
  if number is not null then
    return next;
    return;
  end if;
  number = _cell;
  if _cell > 0 then
    for _sequence in select s.sequence from agent_private.cell_sequences() as s (sequence) loop
      execute format('alter sequence %s cache 1', _sequence); -- nothing but its lock: whoever draws an id now waits for this transaction
      execute format('select s.is_called from %s s', _sequence) into strict _is_called;
      has_ids = has_ids or _is_called;
    end loop;
    has_ids = has_ids or exists (select from agent.event) or exists (select from agent.event_hist) or exists (select from agent.idempotency)
      or exists (select from agent.schedule) or exists (select from agent.redrive);
    if has_ids then
      number = 0; -- which nobody takes by that
      return next;
      return;
    end if;
    for _sequence in select s.sequence from agent_private.cell_sequences() as s (sequence) loop
      execute format('alter sequence %s minvalue %s maxvalue %s start %2$s restart', _sequence, _first, _first + (1::int8 << 45) - 1);
    end loop;
  end if;
  update agent.cell c set number = _cell, taken_at = clock_timestamp();
  return next;
end
$func$;

-- The sequences behind the ids that callers name in paths. Each cell gives out ids of its own range: see agent_service.take_cell().
create or replace function agent_private.cell_sequences()
returns setof regclass
language sql stable
set search_path to pg_catalog, pg_temp
as $func$
  values ('agent.event_id_seq'::regclass), ('agent.schedule_id_seq'::regclass), ('agent.redrive_id_seq'::regclass)
$func$;

-- Which cell this database is; its ids, from the first to the last that it may give out, and how many are left of those that fewest are left of; and the versions
-- of the latest changes of placements and of keys. Versions are to be compared with those of the same epoch alone, which is another one after each start
-- of the server, and in another database: some may be lost. For the service.
create or replace function agent_service.get_cell()
returns table (number int4, first_id int8, last_id int8, ids_left int8, placement_version int8, keys_version int8, epoch text)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _sequence regclass;
  _first int8;
  _last int8;
  _next int8;
begin
  select coalesce(c.number, 0) into strict number from agent.cell c;
  for _sequence in select s.sequence from agent_private.cell_sequences() as s (sequence) loop
    select s.seqmin, s.seqmax into strict _first, _last from pg_sequence s where s.seqrelid = _sequence;
    execute format('select s.last_value + s.is_called::int4 from %s s', _sequence) into strict _next;
    first_id = least(first_id, _first);
    last_id = greatest(last_id, _last);
    ids_left = least(ids_left, _last - _next + 1);
  end loop;
  select v.version into strict placement_version from agent_private.replica_version v where v.name = 'placement';
  select v.version into strict keys_version from agent_private.replica_version v where v.name = 'access';
  epoch = agent_private.epoch();
  return next;
end
$func$;

-- Lets cell 0 give out the ids of all other cells, too, which it must never have beside it from then on, and returns the last of them. It is for a single
-- database whose ids are exhausted. Only for the owner of the schema. Raises QD003 if this is another cell, or a queue is placed on one.
create or replace function agent.widen_ids()
returns int8
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
declare
  _sequence regclass;
  _last constant int8 = 9007199254740991; -- the greatest integer that JSON carries everywhere
begin
  perform agent_private.check_is_owner();
  if exists (select from agent.cell c where c.number > 0) then
    perform agent_private.raise_invalid('cell', 'must be 0: ids of another one lie between those of its neighbours');
  end if;
  perform from agent_private.replica_version v where v.name = 'placement' for update; -- as who places a queue does
  if exists (select from agent.placement p where p.removed_at is null and coalesce(p.cells <> '{0}', true))
    or exists (select from agent.former_cell f where f.cell <> 0)
  then
    perform agent_private.raise_invalid('cell', 'must be the only one: queues are placed on others');
  end if;
  for _sequence in select s.sequence from agent_private.cell_sequences() as s (sequence) loop
    execute format('alter sequence %s maxvalue %s', _sequence, _last);
  end loop;
  perform agent_private.record_audit('cell.widen', '0', jsonb_build_object('last_id', _last));
  return _last;
end
$func$;

-- The epoch of versions: see agent_service.get_cell().
create or replace function agent_private.epoch()
returns text
language sql volatile
set search_path to pg_catalog, pg_temp
as $func$
  select to_hex(agent_private.server_mark())
$func$;

-- Placements, which are at home. Everybody who changes them locks the row of their version first, so they take effect in the order of their versions, and who has
-- seen one has seen those before it.

-- Places a queue on cells (null: on all that take new queues), for its new events, from now on. Cells that it was placed on before and is no more are remembered as
-- former until agent.drain_placement() says that they are empty, and as past for good: history of the queue is there. Inserts with an idempotency key go where they went for _key_retention more, so that they meet those
-- before them, and then those cells are asked for them first as long again (see agent_service.leave_keys()); null: they follow at once. Placing it where it is changes nothing else. Raises QD070 if this is not home, QD003, and QD004 if the version of
-- the placement is none of _if_versions (null: any), if there is none and _if_exists, or if there is one and _if_absent. _is_first_use is remembered: a queue that is not used then is placed
-- nowhere again. A queue that is placed nowhere, and that home has from before there were other cells, is at home: a first use leaves it there, and who places it elsewhere moves it.
create or replace function agent.place_queue
( _queue text
, _cells int4[]
, _key_retention interval default null
, _if_versions int8[] default null
, _if_exists boolean default false
, _if_absent boolean default false
, _is_first_use boolean default false
)
returns agent.placement_info
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set jit to off
as $func$
declare
  _now timestamptz;
  _sorted int2[] = array(select distinct c::int2 from unnest(_cells) as c where c between 0 and 255 order by 1);
  _before agent.placement;
  _exists boolean;
  _keys int2[];
  _until timestamptz;
  _past int2[];
  _asked jsonb = '[]';
begin
  perform agent_private.check_is_home();
  perform agent_private.check_queue_name(agent_private.unreserved_queue(_queue));
  if _cells is not null and (cardinality(_cells) = 0 or cardinality(_cells) <> cardinality(_sorted)) then
    perform agent_private.raise_invalid('cells', 'must be all, or one or more numbers from 0 to 255, none of them twice');
  elsif coalesce(_sorted <> '{0}' or _cells is null, true)
    and exists (select from agent_private.cell_sequences() c (sequence) join pg_sequence s on s.seqrelid = c.sequence where s.seqmax >= 1::int8 << 45)
  then
    perform agent_private.raise_invalid('cells', 'must be cell 0 alone: its ids reach into those of all other cells');
  elsif _key_retention < interval '0' then
    perform agent_private.raise_invalid('key_retention', 'must not be negative');
  end if;
  perform from agent_private.replica_version v where v.name = 'placement' for update;
  _now = clock_timestamp();
  select p.* into _before from agent.placement p where p.queue = _queue for update;
  _exists = found and _before.removed_at is null;
  if _exists and (_if_absent or _before.version <> all (_if_versions)) or not _exists and (_if_exists or _if_versions is not null) then
    perform agent_private.raise_version_mismatch('placement of ' || _queue, _if_versions);
  end if;
  if _cells is null then
    _sorted = null;
  end if;
  if not _exists and agent_private.is_used_here(_queue) then
    if _is_first_use then
      _sorted = '{0}';
    elsif _sorted is distinct from '{0}' then
      insert into agent.placement as p (queue, cells, placed_at, updated_at) values (_queue, '{0}', _now, _now)
      on conflict on constraint placement_pkey do update
      set cells = excluded.cells, is_first_use = false, placed_at = _now, keys_cells = null, keys_until = null, asked = '[]', removed_at = null, updated_at = _now
      , past = case when p.cells is not null and p.past is not null then array(select distinct c from unnest(p.past || p.cells) as c order by 1) end
      returning p.* into _before;
      _exists = true;
    end if;
  end if;
  if _before.queue is null then
    _past = '{}';
  elsif _before.cells is not distinct from _sorted then
    _past = _before.past;
  elsif _before.cells is not null and _before.past is not null then
    _past = array(select distinct c from unnest(_before.past || _before.cells) as c order by 1);
  end if;
  if not _exists then
    insert into agent.placement as p (queue, cells, is_first_use, placed_at, updated_at)
    values (_queue, _sorted, _is_first_use, _now, _now)
    on conflict on constraint placement_pkey do update
    set cells = excluded.cells, is_first_use = _is_first_use, past = _past, placed_at = _now, keys_cells = null, keys_until = null, asked = '[]', removed_at = null, updated_at = _now;
  else
    -- Where keys go now, they stay.
    _keys = case when _before.keys_until > _now then _before.keys_cells else _before.cells end;
    if _key_retention is not null and _before.cells is not distinct from _sorted then
      _until = case when _before.keys_until > _now then _before.keys_until end;
    elsif _key_retention > interval '0' and _keys is distinct from _sorted then
      _until = agent_private.add_utc(_now, _key_retention);
    end if;
    if _key_retention is not null then
      _asked = (select coalesce(jsonb_agg(a.asked), '[]') from agent_private.live_asked(_before.asked, _now) as a (asked) where (a.asked ->> 'since')::timestamptz <= _now);
    end if;
    if _before.cells is not distinct from _sorted and (_until is not null or coalesce(_before.keys_until <= _now, true))
      and (_key_retention is not null or not exists (select from agent_private.live_asked(_before.asked, _now)))
    then
      return agent_private.placement_info(_before);
    end if;
    if _until is not null then -- five minutes more, as the clocks of gateways differ
      _asked = _asked || jsonb_build_object('cells', to_jsonb(_keys), 'since', _until, 'until', agent_private.add_utc(_until, _key_retention + interval '5 minutes'));
    end if;
    if _sorted is null then
      delete from agent.former_cell f where f.queue = _queue;
    else
      delete from agent.former_cell f where f.queue = _queue and f.cell = any (_sorted);
      insert into agent.former_cell as f (queue, cell, since)
      select _queue, c, _now from unnest(coalesce(_before.cells, '{-1}')) as c where c <> all (_sorted)
      on conflict on constraint former_cell_pkey do update set since = _now; -- all, once more
    end if;
    update agent.placement p
    set cells = _sorted, is_first_use = false, past = _past, keys_cells = case when _until is not null then _keys end, keys_until = _until, asked = _asked, updated_at = _now
    , placed_at = case when p.cells is distinct from _sorted then _now else p.placed_at end
    where p.queue = _queue;
  end if;
  perform agent_private.forward_again(_queue);
  perform agent_private.record_audit('placement.put', _queue, jsonb_build_object('cells', coalesce(to_jsonb(_sorted), '"all"'), 'keys_until', _until));
  return (select agent_private.placement_info(p) from agent.placement p where p.queue = _queue);
end
$func$;

-- Whether this database has a queue: a policy, events, history or idempotency keys.
create or replace function agent_private.is_used_here(_queue text)
returns boolean
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
set jit to off
as $func$
begin
  return exists (select from agent.queue q where q.name = _queue) or exists (select from agent.event e where e.queue = _queue)
    or exists (select from agent.idempotency i where i.queue = _queue) or exists (select from agent.event_hist h where h.queue = _queue);
end
$func$;

-- Says that cells (null: all) hold no events any more of a queue that was placed on them before. Raises QD070 if this is not home, QD071 if the queue is not
-- placed, and QD004 as agent.place_queue() does.
create or replace function agent.drain_placement(_queue text, _cells int4[], _if_versions int8[] default null)
returns agent.placement_info
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _row agent.placement = agent_private.lock_placement(_queue, _if_versions);
begin
  delete from agent.former_cell f where f.queue = _queue and (_cells is null or f.cell = any (_cells));
  if found then
    update agent.placement p set updated_at = clock_timestamp() where p.queue = _queue returning p.* into _row;
    perform agent_private.record_audit('placement.drain', _queue, jsonb_build_object('cells', coalesce(to_jsonb(_cells), '"all"')));
  end if;
  return agent_private.placement_info(_row);
end
$func$;

-- Removes the placement of a queue, which is for when it was deleted on every cell: its next use places it anew. Raises as agent.drain_placement() does.
create or replace function agent.delete_placement(_queue text, _if_versions int8[] default null)
returns void
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _row agent.placement = agent_private.lock_placement(_queue, _if_versions);
  _now timestamptz = clock_timestamp();
  _floor int8;
begin
  delete from agent.former_cell f where f.queue = _queue;
  update agent.placement p set removed_at = _now, keys_cells = null, keys_until = null, asked = '[]', updated_at = _now where p.queue = _queue;
  with pruned as
  ( delete from agent.placement p
    where p.queue in (select o.queue from agent.placement o where o.removed_at < _now - interval '1 day' order by o.removed_at limit 100)
    returning p.version
  )
  select max(r.version) into _floor from pruned r;
  if _floor is not null then
    update agent_private.placement_floor f set version = greatest(f.version, _floor);
  end if;
  perform agent_private.forward_again(_queue);
  perform agent_private.record_audit('placement.delete', _queue);
end
$func$;

-- The placement of a queue; no row if it is not placed. Raises QD070 if this is not home.
create or replace function agent.get_placement(_queue text)
returns setof agent.placement_info
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  perform agent_private.check_is_home();
  return query
  select i.* from agent.placement p cross join lateral agent_private.placement_info(p) i where p.queue = _queue and p.removed_at is null;
end
$func$;

-- The version of the latest change of placements; that of the latest one that is not remembered any more, so that who follows from an earlier one has to read all
-- again; and the epoch of both. It is read before the placements. Raises QD070 if this is not home. For the service.
create or replace function agent_service.placement_versions()
returns table (latest int8, floor int8, epoch text)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  perform agent_private.check_is_home();
  return query
  select v.version, f.version, agent_private.epoch() from agent_private.replica_version v cross join agent_private.placement_floor f where v.name = 'placement';
end
$func$;

-- Up to _limit placements with a version after _after_version, by their versions, of queues that one of the patterns stands for (null: of all). Those that were
-- removed are among them if _with_removed. Nearly all have nothing from before, and there may be a million: these are shown without a call of agent_private.placement_info(). For the service.
create or replace function agent_service.list_placements(_after_version int8, _limit int4, _with_removed boolean, _queues text[] default null)
returns setof agent.placement_info
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set jit to off
as $func$
begin
  perform agent_private.check_is_home();
  return query
  select i.*
  from
  ( select o, o.keys_until is null and o.asked = '[]' and not exists (select from agent.former_cell f where f.queue = o.queue)
    from agent.placement o
    where o.version > _after_version and (_with_removed or o.removed_at is null) and agent_private.is_queue_allowed(o.queue, _queues)
    order by o.version
    limit _limit
  ) as p (o, is_plain)
  cross join lateral
  ( select (p.o).queue, (p.o).cells, (p.o).placed_at, jsonb '[]', null::int2[], null::timestamptz, (p.o).past, jsonb '[]', (p.o).is_first_use, (p.o).removed_at is not null, (p.o).updated_at, (p.o).version
    where p.is_plain
    union all
    select shown.* from agent_private.placement_info(p.o) shown where not p.is_plain
  ) as i
  order by (p.o).version;
end
$func$;

-- Raises QD070 unless this database is home.
create or replace function agent_private.check_is_home()
returns void
language plpgsql stable
set search_path to pg_catalog, pg_temp
as $func$
declare
  _number int4 = (select c.number from agent.cell c);
begin
  if _number > 0 then
    raise exception 'this is cell %, and not home', _number using errcode = 'QD070', detail = _number::text;
  end if;
end
$func$;

-- Locks the placement of a queue, and all changes of placements. Raises as agent.drain_placement() does.
create or replace function agent_private.lock_placement(_queue text, _if_versions int8[])
returns agent.placement
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
declare
  _row agent.placement;
begin
  perform agent_private.check_is_home();
  perform from agent_private.replica_version v where v.name = 'placement' for update;
  select p.* into _row from agent.placement p where p.queue = _queue and p.removed_at is null for update;
  if not found then
    raise exception 'the queue % is not placed', _queue using errcode = 'QD071';
  elsif _row.version <> all (_if_versions) then
    perform agent_private.raise_version_mismatch('placement of ' || _queue, _if_versions);
  end if;
  return _row;
end
$func$;

-- The elements of agent.placement.asked that are not over at a time, the earliest first.
create or replace function agent_private.live_asked(_asked jsonb, _now timestamptz)
returns setof jsonb
language sql stable
set search_path to pg_catalog, pg_temp
as $func$
  select a.asked from jsonb_array_elements(_asked) with ordinality as a (asked, n) where (a.asked ->> 'until')::timestamptz > _now order by (a.asked ->> 'since')::timestamptz, a.n
$func$;

-- What may be shown of a placement. That keys stay is left out once that time is over.
create or replace function agent_private.placement_info(_row agent.placement)
returns agent.placement_info
language sql volatile
set search_path to pg_catalog, pg_temp
as $func$
  select _row.queue, _row.cells, _row.placed_at
  , ( select coalesce(jsonb_agg(jsonb_build_object('cells', g.cells, 'since', g.since) order by g.since, g.cells), '[]')
      from
      ( select f.since, case when min(f.cell) >= 0 then array_agg(f.cell order by f.cell) end
        from agent.former_cell f
        where f.queue = _row.queue
        group by f.since, f.cell < 0
      ) as g (since, cells)
    )
  , case when k.is_live then _row.keys_cells end, case when k.is_live then _row.keys_until end, _row.past
  , (select coalesce(jsonb_agg(a.asked), '[]') from agent_private.live_asked(_row.asked, clock_timestamp()) as a (asked))
  , _row.is_first_use, _row.removed_at is not null, _row.updated_at, _row.version
  from (select coalesce(_row.keys_until > clock_timestamp(), false)) as k (is_live)
$func$;

-- Trigger before each change of a placement, whoever makes it: gives it the next version, and tells processes.
create or replace function agent_private.set_placement_version()
returns trigger
language plpgsql
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  perform agent_private.change_replica_version('placement');
  select v.version into strict new.version from agent_private.replica_version v where v.name = 'placement';
  return new;
end
$func$;

create or replace trigger set_placement_version before insert or update on agent.placement
for each row execute function agent_private.set_placement_version();

-- Lists a cell for gateways, or changes what is listed of it. url null: gateways have it from their settings, so it was among all cells before. Inserts with an idempotency key into queues that are
-- on all cells go by the cells that there were when such keys are remembered from; with _keys_now they go by this state of the cell at once. Raises QD070 if this is not home, and QD003.
create or replace function agent.put_cell(_cell int4, _url text default null, _takes_new boolean default true, _keys_now boolean default false)
returns agent.listed_cell_info
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _at timestamptz;
begin
  perform agent_private.check_is_home();
  if not coalesce(_cell between 0 and 255, false) then
    perform agent_private.raise_invalid('cell', 'must be 0 to 255');
  elsif _takes_new is null then
    perform agent_private.raise_invalid('takes_new', 'must not be null');
  elsif _url !~ '^https?://[^/?#@[:space:][:cntrl:]]+$' or length(_url) > 1000 then
    perform agent_private.raise_invalid('url', 'must be an http or https URL without a user, a path or a query, of at most 1,000 characters');
  elsif _cell > 0 and exists (select from agent_private.cell_sequences() c (sequence) join pg_sequence s on s.seqrelid = c.sequence where s.seqmax >= 1::int8 << 45)
  then
    perform agent_private.raise_invalid('cell', 'must be 0: its ids reach into those of all other cells');
  end if;
  perform from agent_private.replica_version v where v.name = 'placement' for update; -- as who changes a placement does
  _at = clock_timestamp();
  if _keys_now or _url is null and _takes_new and not exists (select from agent.listed_cell l where l.cell = _cell) then
    _at = 'epoch'; -- as if it had always been so
  end if;
  insert into agent.listed_cell as l (cell, url, takes_new, turns) values (_cell, _url, _takes_new, jsonb_build_array(jsonb_build_object('at', _at, 'takes_new', _takes_new)))
  on conflict on constraint listed_cell_pkey do update
  set url = excluded.url, takes_new = excluded.takes_new, updated_at = clock_timestamp()
  , turns = case
      when _keys_now then excluded.turns
      when l.takes_new = excluded.takes_new then l.turns
      when jsonb_array_length(l.turns) < 100 then l.turns || excluded.turns
      else l.turns - 0 || excluded.turns
    end
  where (l.url, l.takes_new) is distinct from (excluded.url, excluded.takes_new) or _keys_now and l.turns <> excluded.turns;
  if found then
    perform agent_private.record_audit('cell.put', _cell::text
    , jsonb_build_object('url', _url, 'takes_new', _takes_new) || case when _keys_now then jsonb_build_object('keys', 'now') else '{}' end);
  end if;
  return (select i from agent.list_cells() i where i.cell = _cell);
end
$func$;

-- Takes a cell off the list. Raises QD070 if this is not home, QD073 if it is not listed, and QD072 if queues are placed there or were and may have events there still, or if inserts with
-- an idempotency key go there or ask it for the key; its detail is an object of these: {"placed", "former", "keys_until"}. With _keys_now such keys are given up: inserts under them do not
-- meet those before them any more. Keys are remembered for _key_retention.
create or replace function agent.delete_cell(_cell int4, _keys_now boolean default false, _key_retention interval default interval '1 day')
returns void
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _info agent.listed_cell_info;
  _now timestamptz;
  _keys_until timestamptz;
begin
  perform agent_private.check_is_home();
  perform from agent_private.replica_version v where v.name = 'placement' for update;
  _now = clock_timestamp();
  select i.* into _info from agent.list_cells() i where i.cell = _cell;
  if not found then
    raise exception 'cell % is not listed', _cell using errcode = 'QD073';
  end if;
  if _keys_now is not true then
    select max(u.until) into _keys_until
    from agent.placement p
    cross join lateral
    ( select p.keys_until where p.keys_until > _now and _cell = any (p.keys_cells)
      union all
      select (a.asked ->> 'until')::timestamptz from agent_private.live_asked(p.asked, _now) as a (asked) where a.asked -> 'cells' @> to_jsonb(_cell)
      union all -- of queues that are on all cells, or were, while it was one of these
      select g.until
      from agent.listed_cell l
      cross join lateral (select agent_private.add_utc(case when l.takes_new then _now else (l.turns -> -1 ->> 'at')::timestamptz end, 2 * _key_retention + interval '5 minutes')) as g (until)
      where l.cell = _cell and g.until > _now
        and (p.cells is null or p.keys_cells is null and p.keys_until > _now
          or exists (select from agent_private.live_asked(p.asked, _now) as a (asked) where a.asked -> 'cells' = 'null'))
    ) as u (until)
    where p.removed_at is null;
  end if;
  if _info.placed + _info.former > 0 then
    raise exception 'cell % is in use: % queues are placed there, and % were and may have events there still', _cell, _info.placed, _info.former
      using errcode = 'QD072', detail = jsonb_build_object('placed', _info.placed, 'former', _info.former, 'keys_until', _keys_until);
  elsif _keys_until is not null then
    raise exception 'cell % is in use: idempotency keys that were used there count until %', _cell, _keys_until
      using errcode = 'QD072', detail = jsonb_build_object('placed', 0, 'former', 0, 'keys_until', _keys_until);
  elsif _keys_now then
    update agent.placement p
    set keys_cells = nullif(array_remove(p.keys_cells, _cell::int2), '{}'), keys_until = case when p.keys_cells is null or p.keys_cells <> array[_cell::int2] then p.keys_until end
    , asked = (select coalesce(jsonb_agg(k.kept), '[]') from agent_private.live_asked(p.asked, _now) as a (asked) cross join lateral agent_private.asked_without(a.asked, _cell) as k (kept))
    , updated_at = _now
    where p.removed_at is null
      and (p.keys_until > _now and _cell = any (p.keys_cells) or exists (select from agent_private.live_asked(p.asked, _now) as a (asked) where a.asked -> 'cells' @> to_jsonb(_cell)));
  end if;
  delete from agent.listed_cell l where l.cell = _cell;
  perform agent_private.record_audit('cell.delete', _cell::text, case when _keys_now then jsonb_build_object('keys', 'now') end);
end
$func$;

-- An element of agent.placement.asked without a cell; no row if there is no other cell in it.
create or replace function agent_private.asked_without(_asked jsonb, _cell int4)
returns setof jsonb
language sql stable
set search_path to pg_catalog, pg_temp
as $func$
  select case when jsonb_typeof(_asked -> 'cells') = 'array' then _asked || jsonb_build_object('cells', o.others) else _asked end
  from (select jsonb_agg(c.cell) from jsonb_path_query(_asked, '$.cells[*]') as c (cell) where c.cell <> to_jsonb(_cell)) as o (others)
  where o.others is not null
$func$;

-- Who follows placements follows the list, too.
create or replace trigger change_replica after insert or update or delete on agent.listed_cell
for each row execute function agent_private.change_replica('placement');

-- The cells that are listed, by their numbers, with how many queues are on each. Raises QD070 if this is not home.
create or replace function agent.list_cells()
returns setof agent.listed_cell_info
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set jit to off
as $func$
begin
  perform agent_private.check_is_home();
  return query
  select l.cell::int4, l.url, l.takes_new, l.updated_at, coalesce(p.queues, 0), coalesce(f.queues, 0)
  from agent.listed_cell l
  left join (select c.cell, count(*) from agent.placement o cross join unnest(o.cells) as c (cell) where o.removed_at is null group by c.cell) as p (cell, queues)
    on p.cell = l.cell
  left join (select c.cell, count(*) from agent.former_cell c group by c.cell) as f (cell, queues) on f.cell = l.cell
  order by l.cell;
end
$func$;

-- The cells that are listed, for gateways, which follow them with placements. Raises QD070 if this is not home. For the service.
create or replace function agent_service.listed_cells()
returns table (cell int4, url text, takes_new boolean, turns jsonb)
language plpgsql stable
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  perform agent_private.check_is_home();
  return query
  select l.cell::int4, l.url, l.takes_new, l.turns from agent.listed_cell l order by l.cell;
end
$func$;

-- The names of up to _limit queues after _after that have an event waiting, or leased, by name. It takes a look into an index for each, however many events there are.
-- For gateways, which look for queues with events on cells that they are not placed on. For the service.
create or replace function agent_service.list_waiting_queues(_after text, _limit int4)
returns setof text
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set enable_seqscan to off
set enable_bitmapscan to off
set jit to off
as $func$
declare
  _queue text = coalesce(_after, '');
begin
  for _ in 1 .. _limit loop
    _queue = (select e.queue from agent.event e where e.queue > _queue order by e.queue limit 1);
    exit when _queue is null;
    return next _queue;
  end loop;
end
$func$;

-- Versions and times of copies. They come from other databases and from callers, and later changes are compared
-- with them, so they have bounds: a version that cannot grow, or a time that never comes, would keep all later
-- changes away. A stored version beyond the bounds counts as the nearest one, a stored time as the earliest.

-- The greatest version of a copy: the greatest integer that JSON carries everywhere.
create or replace function agent_private.max_copied_version()
returns int8
language sql immutable parallel safe
return 9007199254740991;

-- The nearest version that a copy may have.
create or replace function agent_private.bounded_version(_version int8)
returns int8
language sql immutable parallel safe
return least(greatest(_version, 1), agent_private.max_copied_version());

-- The version after _version of what is copied. After the greatest one it is the same: updated_at orders the states then.
create or replace function agent_private.next_copied_version(_version int8)
returns int8
language sql immutable parallel safe
return agent_private.bounded_version(least(_version, agent_private.max_copied_version() - 1) + 1);

-- How far ahead the end of a secret may be that a rotation has replaced: 365 days, and one more as clocks differ.
create or replace function agent_private.longest_grace()
returns interval
language sql immutable parallel safe
return interval '366 days';

-- Whether a copy may have this time: it is at most _ahead of the clock, which is behind those of other cells.
create or replace function agent_private.is_copied_time(_at timestamptz, _ahead interval default interval '1 day')
returns boolean
language sql volatile
return coalesce(_at between timestamptz '2000-01-01 00:00+00' and agent_private.add_utc(clock_timestamp(), _ahead), false);

-- A time that a copy may have: this one, or else the earliest.
create or replace function agent_private.bounded_copied_time(_at timestamptz, _ahead interval default interval '1 day')
returns timestamptz
language sql volatile
return case when agent_private.is_copied_time(_at, _ahead) then _at else timestamptz '2000-01-01 00:00+00' end;

-- The time of a change of what is copied, after one at _before: a later one, also if the clock was ahead then.
create or replace function agent_private.next_copied_time(_before timestamptz)
returns timestamptz
language sql volatile
return case
  when agent_private.is_copied_time(_before) then greatest(clock_timestamp(), _before + interval '1 microsecond')
  else clock_timestamp()
end;

-- Raises QD003 unless the version of a copy is there and within the bounds.
create or replace function agent_private.check_copied_version(_copy jsonb)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
declare
  _version text = _copy ->> 'version';
begin
  if coalesce(_version !~ '^[0-9]{1,16}$', true) or _version::int8 not between 1 and agent_private.max_copied_version() then
    perform agent_private.raise_invalid('version', format('must be an integer of 1 to %s', agent_private.max_copied_version()));
  end if;
end
$func$;

-- A time of a copy, at most _ahead of the clock; null if it is not there. A text without a zone is in UTC. Raises QD003.
create or replace function agent_private.copied_time(_copy jsonb, _name text, _ahead interval default interval '1 day')
returns timestamptz
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set timezone to 'UTC'
set intervalstyle to 'postgres'
as $func$
declare
  _at timestamptz;
begin
  begin
    _at = (_copy ->> _name)::timestamptz;
  exception when data_exception then
    perform agent_private.raise_invalid(_name, 'must be a time');
  end;
  if _at is not null and not agent_private.is_copied_time(_at, _ahead) then
    perform agent_private.raise_invalid(_name, format('must be from 2000-01-01 to %s from now', _ahead));
  end if;
  return _at;
end
$func$;

-- Copies of settings of queues: policies and pushes are set at home, and all cells have them. A gateway reads them at home and puts them on the other cells.

-- Notes that what a queue is set to has changed. After whatever has locked the row of its policy or of its push: see agent_service.put_push().
create or replace function agent_private.note_queue_change()
returns trigger
language plpgsql
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _row jsonb = to_jsonb(case when tg_op = 'DELETE' then old else new end);
begin
  insert into agent_private.queue_change as c (queue, change)
  values (coalesce(_row ->> 'name', _row ->> 'queue'), 1)
  on conflict (queue) do update set change = agent_private.next_copied_version(c.change), xid = excluded.xid;
  return null;
end
$func$;

create or replace trigger note_queue_change_on_policy
after insert or delete on agent.queue
for each row
execute function agent_private.note_queue_change();

create or replace trigger note_queue_change_on_other_policy
after update on agent.queue
for each row
when (old.version is distinct from new.version)
execute function agent_private.note_queue_change();

create or replace trigger note_queue_change_on_push
after insert or delete on agent.push
for each row
execute function agent_private.note_queue_change();

create or replace trigger note_queue_change_on_other_push
after update on agent.push
for each row
when (old.version is distinct from new.version)
execute function agent_private.note_queue_change();

create or replace trigger note_queue_change_on_push_secret
after insert or update or delete on agent.push_secret
for each row
execute function agent_private.note_queue_change();

-- What a queue is set to on this cell, all that agent_service.put_queue_copies() takes: {"queue", "change", "policy", "policy_version", "policy_updated_at", "push"}; policy and push are null if there is
-- none. The secrets and the header fields of the push are sealed, in hexadecimal digits, under keys that are not in the database, and which every cell has.
create or replace function agent_private.queue_copy(_queue text)
returns jsonb
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  return
  ( select jsonb_build_object
    ( 'queue', _queue
    , 'change', coalesce((select c.change from agent_private.queue_change c where c.queue = _queue), 0)
    , 'policy'
    , case when q.name is not null then jsonb_strip_nulls(jsonb_build_object
      ( 'max_attempts', q.max_attempts, 'invisible_for', q.invisible_for, 'paused', q.paused, 'history_retention', q.history_retention, 'delay', q.delay, 'wait', q.wait, 'group_from', q.group_from
      , 'backoff', case when q.backoff_kind is not null then jsonb_build_object
        ('kind', q.backoff_kind, 'base', q.backoff_base, 'factor', q.backoff_factor, 'max', q.backoff_max, 'jitter', q.backoff_jitter) end
      , 'dead_letter', case when q.dead_letter_queue is not null then jsonb_build_object('queue', q.dead_letter_queue) end
      , 'flow', nullif(jsonb_strip_nulls(jsonb_build_object('concurrency', q.flow_concurrency, 'total', q.flow_total, 'order', nullif(q.flow_order, false), 'on_failed', q.flow_on_failed, 'fair', nullif(q.flow_fair, false)
      , 'rate', case when q.flow_rate_limit is not null then jsonb_build_object('limit', q.flow_rate_limit, 'period', q.flow_rate_period, 'burst', q.flow_rate_burst) end
      )), '{}')
      )) end
    , 'policy_version', q.version
    , 'policy_updated_at', q.updated_at at time zone 'UTC'
    , 'push'
    , ( select jsonb_build_object
        ( 'url', p.url, 'format', p.format, 'headers', encode(p.headers, 'hex'), 'header_names', p.header_names, 'timeout', p.timeout, 'max_in_flight', p.max_in_flight
        , 'rate_per_second', p.rate_per_second, 'rate_burst', p.rate_burst, 'final_statuses', p.final_statuses, 'disable_after', p.disable_after
        , 'version', p.version, 'created_at', p.created_at at time zone 'UTC', 'updated_at', p.updated_at at time zone 'UTC'
        , 'secrets'
        , ( select jsonb_agg
            ( jsonb_build_object('secret', encode(s.secret, 'hex'), 'created_at', s.created_at at time zone 'UTC', 'live_until', s.live_until at time zone 'UTC')
              order by s.live_until desc nulls first, s.created_at, s.secret
            )
            from agent.push_secret s
            where s.queue = p.queue and coalesce(s.live_until > clock_timestamp(), true)
          )
        )
        from agent.push p
        where p.queue = _queue
      )
    )
    from (values (_queue)) as n (name)
    left join agent.queue q on q.name = n.name
  );
end
$func$;

-- Up to _limit copies of settings of queues after _after, by the queues' names: of all that are set to something; or of those that have changed in _since or a later transaction, also when they are set to
-- nothing now; or of _queue alone. For the service.
create or replace function agent_service.read_queue_copies(_since int8, _after text, _limit int4, _queue text default null)
returns table (queue text, copy jsonb)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set jit to off
as $func$
begin
  if _queue is not null then
    return query
    select c.copy ->> 'queue', c.copy
    from (select agent_private.queue_copy(_queue)) as c (copy)
    where c.copy ->> 'policy' is not null or c.copy ->> 'push' is not null;
    return;
  end if;
  return query
  select n.name, agent_private.queue_copy(n.name)
  from
  ( (select q.name::text from agent.queue q where _since is null and q.name > coalesce(_after, '') order by q.name limit _limit)
    union all
    ( select c.queue::text
      from agent_private.queue_change c
      where c.xid >= _since::text::xid8 and c.xid < pg_snapshot_xmax(pg_current_snapshot()) -- a database that was restored has greater ones from before
      and c.queue > coalesce(_after, '')
      order by c.queue
      limit _limit
    )
  ) as n (name)
  where not starts_with(n.name, 'queued.')
  order by n.name collate "C";
end
$func$;

-- From which transaction on changes of settings may come that have not been read when this is called before they are read, and the epoch: see agent_service.get_cell(). For the service.
create or replace function agent_service.queue_versions()
returns table (latest int8, epoch text)
language sql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
  select pg_snapshot_xmin(pg_current_snapshot())::text::int8, agent_private.epoch()
$func$;

-- Puts copies of settings of home on this cell, and returns what became of each, in the order given: applied; unchanged, when what is here is as new or newer; or refused, with the SQLSTATE and the
-- reason. What home says counts, in the order of the changes of each queue within an epoch, as in agent_service.put_key_copies(). With _is_complete all settings of home have come in this
-- epoch: those of other queues that were copied end. Without an epoch copies are put by hand, at home, too: queues are set as they say. For the service.
create or replace function agent_service.put_queue_copies(_copies jsonb, _epoch text default null, _before text default null, _is_complete boolean default false)
returns table (queue text, result text, state text, reason text)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set jit to off
as $func$
#variable_conflict use_column
declare
  _copy jsonb;
  _order int8;
  _results jsonb = '{}';
  _result jsonb;
begin
  if jsonb_typeof(_copies) is distinct from 'array' or jsonb_array_length(_copies) > 1000 then
    perform agent_private.raise_invalid('queues', 'must be at most 1000');
  end if;
  if _epoch is not null then
    perform agent_private.take_copied_epoch('queue', _epoch, _before);
  end if;
  for _copy, _order in -- in one order, so that two calls do not wait for each other
    select c.value, c.ordinality
    from jsonb_array_elements(_copies || case when _is_complete then
      coalesce
      ( ( select jsonb_agg(jsonb_build_object('queue', c.queue, 'change', 0, 'policy', null, 'push', null))
          from agent_private.queue_change c
          where c.copied_epoch <> _epoch and not exists (select from jsonb_array_elements(_copies) o where o ->> 'queue' = c.queue)
        )
      , '[]'
      ) else '[]' end) with ordinality as c
    order by c.value ->> 'queue', c.ordinality
  loop
    begin
      _result = jsonb_build_object('result', case when agent_private.put_queue_copy(_copy, _epoch) then 'applied' else 'unchanged' end);
    exception
      when sqlstate 'QD003' then
        _result = jsonb_build_object('result', 'refused', 'state', sqlstate, 'reason', sqlerrm);
      when sqlstate 'QD065' then
        _result = jsonb_build_object('result', 'refused', 'state', 'QD003', 'reason', 'the policy must fit those of this cell: ' || sqlerrm);
      when integrity_constraint_violation or data_exception then
        _result = jsonb_build_object('result', 'refused', 'state', 'QD003', 'reason', 'it must be a copy of settings of a queue');
    end;
    _results = jsonb_set(_results, array[_order::text], _result);
  end loop;
  return query
  select c.value ->> 'queue', r.r ->> 'result', r.r ->> 'state', r.r ->> 'reason'
  from jsonb_array_elements(_copies) with ordinality as c
  cross join lateral (select _results -> c.ordinality::text) as r (r)
  order by c.ordinality;
end
$func$;

-- Has copies of keys (access) or of settings of queues (queue) be taken of this epoch of home. Of another epoch than that of the latest copies they are taken if _before is that one, which nobody says who has
-- not asked home since; else this raises QD075 with the epoch as its detail. Raises QD003 at home, which takes none.
create or replace function agent_private.take_copied_epoch(_subject text, _epoch text, _before text)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
declare
  _current text;
begin
  if coalesce(length(_epoch) not between 1 and 64, true) then
    perform agent_private.raise_invalid('epoch', 'must be 1 to 64 characters');
  elsif (select coalesce(c.number, 0) from agent.cell c) = 0 then
    perform agent_private.raise_invalid('epoch', 'must not be there: this is home, whose keys and settings are copied, and takes no copies');
  end if;
  select e.epoch into strict _current from agent_private.copied_epoch e where e.subject = _subject for update;
  if _current is distinct from _epoch and _current is distinct from _before then
    raise exception 'copies are taken of another epoch' using errcode = 'QD075', detail = coalesce(_current, '');
  end if;
  update agent_private.copied_epoch e set epoch = _epoch where e.subject = _subject and e.epoch is distinct from _epoch;
end
$func$;

-- Puts one copy of settings of a queue on this cell, of an epoch or by hand, and returns whether anything has changed. The caller has locked the row of the epoch, if there is one. A queue that is set to nothing at home is deleted here; if that cannot be, as it has events,
-- it is set to nothing. Raises QD003, QD065 and what PostgreSQL says of values that are none.
create or replace function agent_private.put_queue_copy(_copy jsonb, _epoch text)
returns boolean
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
declare
  _queue text = _copy ->> 'queue';
  _policy jsonb = nullif(_copy -> 'policy', 'null');
  _push jsonb = nullif(_copy -> 'push', 'null');
  _change int8;
  _before jsonb;
  _is_changed boolean = false;
  _unknown text;
begin
  perform agent_private.check_queue_name(agent_private.unreserved_queue(_queue));
  for _unknown in
    select c from jsonb_object_keys(_copy) c where c <> all (array['queue', 'change', 'policy', 'policy_version', 'policy_updated_at', 'push'])
  loop
    perform agent_private.raise_invalid(_unknown, 'is no member of a copy');
  end loop;
  if _epoch is not null and coalesce(_copy ->> 'change' !~ '^[0-9]{1,16}$', true) then
    perform agent_private.raise_invalid('change', 'must be an integer, as home has given it');
  elsif jsonb_typeof(_policy) <> 'object' then
    perform agent_private.raise_invalid('policy', 'must be an object or null');
  elsif jsonb_typeof(_push) <> 'object' or coalesce(jsonb_typeof(_push -> 'secrets'), '') <> 'array' and _push is not null then
    perform agent_private.raise_invalid('push', 'must be an object with secrets, or null');
  elsif _policy is null and _push is not null then
    perform agent_private.raise_invalid('policy', 'must be there, as a push is');
  end if;
  _change = case when _epoch is not null then (_copy ->> 'change')::int8 end;

  perform from agent_private.queue_change c where c.queue = _queue and c.copied_epoch = _epoch and c.copied_change >= _change;
  if found then
    return false;
  end if;
  if _policy is null then
    begin
      perform agent.delete_queue(_queue);
      _is_changed = true;
    exception
      when sqlstate 'QD060' then
        null;
      when sqlstate 'QD061' or sqlstate 'QD062' or sqlstate 'QD063' then
        perform agent_private.lock_queue(_queue, true);
        if exists (select from agent.push p where p.queue = _queue) then
          perform agent.delete_push(_queue);
          _is_changed = true;
        end if;
        if agent_private.queue_copy(_queue) -> 'policy' not in ('null', '{"paused": false}') then
          perform agent.put_queue(_queue, '{}');
          _is_changed = true;
        end if;
    end;
  else
    if _push is not null then
      perform agent_private.check_copied_version(_push);
    end if;
    if coalesce(_copy ->> 'policy_version' !~ '^[0-9]{1,18}$', _epoch is not null) then
      perform agent_private.raise_invalid('policy_version', 'must be an integer of up to 18 digits');
    end if;
    perform agent_private.lock_queue(_queue, true); -- as whoever puts a push does
    perform from agent.push p where p.queue = _queue for update;
    _before = agent_private.queue_copy(_queue);
    if _before -> 'policy' <> _policy then
      perform agent.put_queue(_queue, _policy);
      _is_changed = true;
    end if;
    if _push is null and _before ->> 'push' is not null then
      perform agent.delete_push(_queue);
      _is_changed = true;
    elsif _push is not null and _push <> _before -> 'push' then
      perform agent_private.put_push_copy(_queue, _push);
      _is_changed = true;
    end if;
    update agent.queue q -- so that a caller who has read it here can change it at home on that condition
    set version = (_copy ->> 'policy_version')::int8, updated_at = coalesce(agent_private.copied_time(_copy, 'policy_updated_at'), q.updated_at)
    where q.name = _queue and q.version <> (_copy ->> 'policy_version')::int8;
  end if;
  insert into agent_private.queue_change as c (queue, change, copied_epoch, copied_change)
  values (_queue, 1, _epoch, _change)
  on conflict on constraint queue_change_pkey do update set copied_epoch = excluded.copied_epoch, copied_change = excluded.copied_change;
  return _is_changed;
end
$func$;

-- Puts the push of a copy. The caller has locked the queue and the row of its push. Raises QD003.
create or replace function agent_private.put_push_copy(_queue text, _push jsonb)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  perform agent_service.put_push
  ( _queue, _push ->> 'url', _push ->> 'format', (_push ->> 'timeout')::interval, (_push ->> 'max_in_flight')::int4, (_push ->> 'rate_per_second')::float8
  , (_push ->> 'rate_burst')::int4, array(select s::int4 from jsonb_array_elements_text(_push -> 'final_statuses') with ordinality as e (s, n) order by n)
  , (_push ->> 'disable_after')::interval, decode(_push ->> 'headers', 'hex')
  , array(select h from jsonb_array_elements_text(_push -> 'header_names') with ordinality as e (h, n) order by n)
  , decode(_push -> 'secrets' -> 0 ->> 'secret', 'hex')
  );
  delete from agent.push_secret s where s.queue = _queue;
  insert into agent.push_secret (queue, secret, created_at, live_until)
  select _queue, decode(s.s ->> 'secret', 'hex'), agent_private.copied_time(s.s, 'created_at')
  , agent_private.copied_time(s.s, 'live_until', agent_private.longest_grace())
  from jsonb_array_elements(_push -> 'secrets') with ordinality as s (s, n)
  order by s.n desc;
  update agent.push p
  set version = (_push ->> 'version')::int8, created_at = coalesce(agent_private.copied_time(_push, 'created_at'), p.created_at), updated_at = coalesce(agent_private.copied_time(_push, 'updated_at'), p.updated_at)
  where p.queue = _queue;
end
$func$;

-- Copies of keys: every cell checks its callers itself, so all of them have the keys of home. A gateway reads them at home and puts them on the other cells.

-- Up to _limit copies of keys that have changed since _after_change, by their changes, each as an object: all that agent_service.put_key_copies() takes, with hashes
-- and verifiers, which are no secrets of much use, and without texts, which nobody has, and its change. A key that was deleted is {"id", "deleted": true, "change"}; these are left out
-- unless _with_deleted. For the service.
create or replace function agent_service.read_key_copies(_after_change int8, _limit int4, _with_deleted boolean)
returns table (change int8, copy jsonb)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set jit to off
as $func$
begin
  return query
  select c.change, case when c.key is null then jsonb_build_object('id', c.id, 'deleted', true) else agent_private.key_copy(c.key) end || jsonb_build_object('change', c.change)
  from
  ( select u.change, u.id, u.key -- first which ones, as copies take longer
    from
    ( (select k.change, k.id, k from agent.api_key k where k.change > _after_change order by k.change limit _limit)
      union all
      (select d.change, d.id, null from agent_private.deleted_api_key d where _with_deleted and d.change > _after_change order by d.change limit _limit)
    ) as u (change, id, key)
    order by u.change
    limit _limit
  ) as c
  order by c.change;
end
$func$;

-- The version of the latest change of keys, which is read before the copies, and its epoch: see agent_service.get_cell(). For the service.
create or replace function agent_service.key_versions()
returns table (latest int8, epoch text)
language sql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
  select v.version, agent_private.epoch() from agent_private.replica_version v where v.name = 'access'
$func$;

-- Puts copies of keys of home on this cell, and returns what became of each, in the order given: applied; unchanged, when it is here as new or newer; deleted, when it was
-- deleted here and stays so; or refused, with the SQLSTATE and the reason. Copies go one way: home takes none.
-- What home says counts, in the order of its changes within an epoch: copies may come in any order, from several gateways at once, and more than once, and the state of the latest change is here at the end. Of
-- another epoch than that of the latest copies they are taken if _before is that one, which nobody says who has not asked home since; else this raises QD075 with the epoch as its detail, and nothing is done. With _is_complete
-- all keys of home have come in this epoch: copies that have not are deleted, as home has them no more. A revocation and a deletion hold whatever comes after them. Versions and times are bounded: a copy beyond
-- that is refused, but that of a revoked key is brought within.
-- Without an epoch copies are put by hand: only a key that is not here yet is taken, and that it was revoked or deleted.
-- A copy is refused when no live admin key would be left: put it again when another one is here. With _is_first it has to be the first key ever: raises
-- QD032 if there has been one, and QD031 if there is no live admin key then, and nothing is done. For the service.
create or replace function agent_service.put_key_copies
( _copies jsonb
, _is_first boolean default false
, _epoch text default null
, _before text default null
, _is_complete boolean default false
)
returns table (id text, result text, state text, reason text)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set jit to off
as $func$
#variable_conflict use_column
declare
  _is_required boolean;
  _copy jsonb;
  _order int8;
  _results jsonb = '{}';
  _result jsonb;
  _gone agent.api_key;
begin
  if jsonb_typeof(_copies) is distinct from 'array' or jsonb_array_length(_copies) > 1000 then
    perform agent_private.raise_invalid('keys', 'must be at most 1000');
  end if;
  select a.is_required into strict _is_required from agent.access a for update;
  if _is_first and _is_required then
    raise exception 'there has been a key' using errcode = 'QD032';
  elsif _epoch is not null then
    perform agent_private.take_copied_epoch('access', _epoch, _before);
  end if;
  -- What may leave no live admin key comes last, and in one order, so that two calls do not wait for each other.
  for _copy, _order in
    select c.value, c.ordinality
    from jsonb_array_elements(_copies) with ordinality as c
    order by (c.value ? 'deleted' or c.value ->> 'revoked_at' is not null or not coalesce(c.value -> 'scopes' ? 'admin', false)), c.value ->> 'id', c.ordinality
  loop
    begin
      _result = jsonb_build_object('result', case when agent_private.put_key_copy(_copy, _epoch) then 'applied'
        when not _copy ? 'deleted' and exists (select from agent_private.deleted_api_key d where d.id = _copy ->> 'id') then 'deleted'
        else 'unchanged' end);
    exception when sqlstate 'QD003' or sqlstate 'QD031' or integrity_constraint_violation or data_exception then
      _result = jsonb_build_object('result', 'refused', 'state', sqlstate, 'reason', sqlerrm);
    end;
    _results = jsonb_set(_results, array[_order::text], _result);
  end loop;
  for _gone in
    select k.* from agent.api_key k where _is_complete and k.copied_epoch is not null and k.copied_epoch <> _epoch order by 'admin' = any (k.scopes), k.id for update
  loop
    begin
      delete from agent.api_key k where k.id = _gone.id;
      perform agent_private.check_admin_left(_gone);
      delete from agent_private.deleted_api_key d where d.id = _gone.id; -- home may have it again one day
      delete from agent_private.session s where s.key_id = _gone.id;
      perform agent_private.record_audit('key.copy', _gone.id, '{"gone": true}');
    exception when sqlstate 'QD031' then
      null; -- it is the last admin key, and stays
    end;
  end loop;
  if _is_first and exists (select from agent.api_key)
    and not exists (select from agent.api_key k where 'admin' = any (k.scopes) and agent_private.is_live_api_key(k))
  then
    raise exception 'no live admin key would be there' using errcode = 'QD031';
  end if;
  return query
  select c.value ->> 'id', r.r ->> 'result', r.r ->> 'state', r.r ->> 'reason'
  from jsonb_array_elements(_copies) with ordinality as c
  cross join lateral (select _results -> c.ordinality::text) as r (r)
  order by c.ordinality;
end
$func$;

-- Puts one copy of a key on this cell, of an epoch or by hand, and returns whether anything has changed. The caller has locked agent.access. Raises QD003 and QD031.
create or replace function agent_private.put_key_copy(_copy jsonb, _epoch text)
returns boolean
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
declare
  _id text = _copy ->> 'id';
  _before agent.api_key;
  _key agent.api_key;
  _members jsonb;
  _exists boolean;
  _is_newer boolean;
  _revoked_at timestamptz;
  _change int8;
  _unknown text;
begin
  if not coalesce(_id ~ '^[a-z2-7]{8}$', false) then
    perform agent_private.raise_invalid('id', 'must be 8 of a-z 2-7');
  end if;
  select k.* into _before from agent.api_key k where k.id = _id for update;
  _exists = found;
  if coalesce((_copy -> 'deleted')::boolean, false) then
    if _exists then
      delete from agent.api_key k where k.id = _id; -- the trigger remembers it
      perform agent_private.check_admin_left(_before);
      delete from agent_private.session s where s.key_id = _id;
    elsif exists (select from agent_private.deleted_api_key d where d.id = _id) then
      return false;
    else
      insert into agent_private.deleted_api_key (id, change) values (_id, agent_private.next_key_change());
    end if;
    perform agent_private.record_audit('key.copy', _id, '{"deleted": true}');
    return true;
  elsif exists (select from agent_private.deleted_api_key d where d.id = _id) then
    return false;
  end if;

  _members = agent_private.key_copy(_before);
  for _unknown in select c from jsonb_object_keys(_copy) c where not _members ? c and c <> 'change' loop
    perform agent_private.raise_invalid(_unknown, 'is no member of a key');
  end loop;
  if _epoch is not null and _copy ->> 'change' ~ '^-?[0-9]{1,18}$' then
    _change = (_copy ->> 'change')::int8;
  end if;
  if _copy ->> 'revoked_at' is null then -- nothing that a copy says keeps a revocation away
    if _epoch is not null and _change is null then
      perform agent_private.raise_invalid('change', 'must be an integer, as home has given it');
    end if;
    perform agent_private.check_copied_version(_copy);
    perform agent_private.copied_time(_copy, 'created_at'), agent_private.copied_time(_copy, 'updated_at');
    perform agent_private.copied_time(_copy, 'previous_until', agent_private.longest_grace());
  end if;
  _key = jsonb_populate_record(null::agent.api_key, _copy - array['change', 'hash', 'verifier', 'previous_hash', 'previous_verifier']);
  _key.hash = decode(_copy ->> 'hash', 'hex');
  _key.verifier = decode(_copy ->> 'verifier', 'hex');
  _key.previous_hash = decode(_copy ->> 'previous_hash', 'hex');
  _key.previous_verifier = decode(_copy ->> 'previous_verifier', 'hex');
  if _key.revoked_at is not null then
    _key = agent_private.bounded_key(_key);
  end if;
  perform agent_private.check_api_key(_key);
  if coalesce(octet_length(_key.hash) <> 32 or octet_length(_key.verifier) <> 32, true) or octet_length(_key.previous_hash) <> 32 or octet_length(_key.previous_verifier) <> 32
    or num_nulls(_key.previous_hash, _key.previous_verifier, _key.previous_until) in (1, 2)
  then
    perform agent_private.raise_invalid('hash', 'must be of 32 bytes, and so must the verifier, and those before the latest rotation, if there was one');
  elsif num_nulls(_copy ->> 'version', _copy ->> 'created_at', _copy ->> 'updated_at') > 0 then
    perform agent_private.raise_invalid('version', 'must be there, as must created_at and updated_at');
  elsif _key.expires_at <> agent_private.bounded_time(_key.expires_at) then
    perform agent_private.raise_invalid('expires_at', 'must be in the years 1 to 9999');
  end if;

  if _exists then
    _is_newer = coalesce(_change is not null and (_before.copied_epoch is distinct from _epoch or _before.copied_change < _change), false);
    _revoked_at = least(_before.revoked_at, _key.revoked_at);
    if _is_newer then
      update agent.api_key k set copied_epoch = _epoch, copied_change = _change where k.id = _id;
    else
      _key = _before;
    end if;
    _key.revoked_at = _revoked_at;
    if agent_private.key_copy(_key) = agent_private.key_copy(_before) then
      return false;
    end if;
    update agent.api_key k
    set name = _key.name, scopes = _key.scopes, queues = _key.queues, topics = _key.topics, rate_per_second = _key.rate_per_second, rate_burst = _key.rate_burst
    , hash = _key.hash, verifier = _key.verifier, previous_hash = _key.previous_hash, previous_verifier = _key.previous_verifier
    , previous_until = _key.previous_until, expires_at = _key.expires_at, revoked_at = _key.revoked_at, version = _key.version
    , created_at = _key.created_at, updated_at = _key.updated_at
    where k.id = _id;
    perform agent_private.check_admin_left(_before);
    if _key.revoked_at is not null and _before.revoked_at is null then
      delete from agent_private.session s where s.key_id = _id;
    end if;
  else
    insert into agent.api_key
      ( id, name, scopes, queues, topics, rate_per_second, rate_burst, hash, verifier, previous_hash, previous_verifier, previous_until, expires_at, revoked_at
      , version, created_at, updated_at, copied_epoch, copied_change
      )
    values
      ( _id, _key.name, _key.scopes, _key.queues, _key.topics, _key.rate_per_second, _key.rate_burst, _key.hash, _key.verifier, _key.previous_hash
      , _key.previous_verifier, _key.previous_until, _key.expires_at, _key.revoked_at, _key.version, _key.created_at, _key.updated_at
      , coalesce(_epoch, ''), _change
      );
  end if;
  perform agent_private.record_audit
    ('key.copy', _id, agent_private.api_key_detail(_key) || jsonb_strip_nulls(jsonb_build_object('version', _key.version, 'revoked_at', _key.revoked_at)));
  return true;
end
$func$;

-- A key with its version and its times within the bounds of copies. It stays revoked. The text before its latest
-- rotation is accepted no more if the end of that is beyond them.
create or replace function agent_private.bounded_key(_key agent.api_key)
returns agent.api_key
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  _key.version = agent_private.bounded_version(_key.version);
  _key.created_at = agent_private.bounded_copied_time(_key.created_at);
  _key.updated_at = agent_private.bounded_copied_time(_key.updated_at);
  if _key.revoked_at is not null then
    _key.revoked_at = agent_private.bounded_copied_time(least(_key.revoked_at, clock_timestamp()));
  end if;
  if _key.previous_until is not null then
    _key.previous_until = agent_private.bounded_copied_time(_key.previous_until, agent_private.longest_grace());
  end if;
  if _key.expires_at is not null then
    _key.expires_at = agent_private.bounded_time(_key.expires_at);
  end if;
  return _key;
end
$func$;

-- A key as cells exchange it, within the bounds of copies: everything but when it was used last, which each cell knows for itself.
create or replace function agent_private.key_copy(_key agent.api_key)
returns jsonb
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set timezone to 'UTC'
as $func$
begin
  _key = agent_private.bounded_key(_key);
  return jsonb_build_object
  ( 'id', _key.id, 'name', _key.name, 'scopes', _key.scopes, 'queues', _key.queues, 'topics', _key.topics
  , 'rate_per_second', _key.rate_per_second, 'rate_burst', _key.rate_burst
  , 'hash', encode(_key.hash, 'hex'), 'verifier', encode(_key.verifier, 'hex')
  , 'previous_hash', encode(_key.previous_hash, 'hex'), 'previous_verifier', encode(_key.previous_verifier, 'hex'), 'previous_until', _key.previous_until
  , 'expires_at', _key.expires_at, 'revoked_at', _key.revoked_at, 'version', _key.version, 'created_at', _key.created_at, 'updated_at', _key.updated_at
  );
end
$func$;

-- The number of a change of keys: greater than those before it, in the order of commits, as the row of their version is locked until the end of the transaction.
create or replace function agent_private.next_key_change()
returns int8
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  perform agent_private.change_replica_version('access');
  return (select v.version from agent_private.replica_version v where v.name = 'access');
end
$func$;

-- Trigger before each change of a key, whoever makes it: numbers it.
create or replace function agent_private.set_key_change()
returns trigger
language plpgsql
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  new.change = agent_private.next_key_change();
  return new;
end
$func$;

create or replace trigger set_key_change before insert or update of
  id, name, scopes, queues, topics, rate_per_second, rate_burst, hash, verifier, previous_hash, previous_verifier, previous_until, expires_at, revoked_at, version
, created_at, updated_at
on agent.api_key
for each row execute function agent_private.set_key_change();

-- Trigger after each deletion of a key, whoever makes it: remembers it, so that no copy brings the key back.
create or replace function agent_private.remember_deleted_key()
returns trigger
language plpgsql
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  insert into agent_private.deleted_api_key (id, change) values (old.id, agent_private.next_key_change()) on conflict do nothing;
  return null;
end
$func$;

create or replace trigger remember_deleted_key after delete on agent.api_key
for each row execute function agent_private.remember_deleted_key();
