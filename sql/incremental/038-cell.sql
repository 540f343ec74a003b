-- Cells: see docs/decisions/025-cells.md.

-- agent.cell: which cell this database is. One row, which dumps and clones bring along.
create table agent.cell
( is_only boolean primary key default true
, number int2                               -- null: no process has taken it yet
, taken_at timestamptz
, constraint cell_is_only check (is_only)
, constraint cell_number check (number between 0 and 255 and (number is null) = (taken_at is null))
);

-- A database that a version before cells has made is cell 0. A new one has no version yet.
insert into agent.cell (number, taken_at)
select case when exists (select from agent.version) then 0 end, case when exists (select from agent.version) then pg_catalog.clock_timestamp() end;

-- Ids of cell 0 end where those of cell 1 begin. Those of a database that was restored so often that its ids are beyond that go on up to what JSON can carry.
do $script$
declare
  _highest int8 = greatest
  ((select s.last_value from agent.event_id_seq s), (select s.last_value from agent.schedule_id_seq s), (select s.last_value from agent.redrive_id_seq s));
  _last int8 = case when _highest < 35184372088832 then 35184372088831 else greatest(_highest, 9007199254740991) end;
begin
  execute pg_catalog.format('alter sequence agent.event_id_seq maxvalue %s', _last);
  execute pg_catalog.format('alter sequence agent.schedule_id_seq maxvalue %s', _last);
  execute pg_catalog.format('alter sequence agent.redrive_id_seq maxvalue %s', _last);
end
$script$;
