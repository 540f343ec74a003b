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

-- Which cell this database is; its ids, from the first to the last that it may give out, and how many are left of those that fewest are left of. For the
-- service.
create or replace function agent_service.get_cell()
returns table (number int4, first_id int8, last_id int8, ids_left int8)
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
  return next;
end
$func$;

-- Lets cell 0 give out the ids of all other cells, too, which it must never have beside it from then on, and returns the last of them. It is for a single
-- database whose ids are exhausted. Only for the owner of the schema. Raises QD003 if this is another cell.
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
  for _sequence in select s.sequence from agent_private.cell_sequences() as s (sequence) loop
    execute format('alter sequence %s maxvalue %s', _sequence, _last);
  end loop;
  perform agent_private.record_audit('cell.widen', '0', jsonb_build_object('last_id', _last));
  return _last;
end
$func$;
