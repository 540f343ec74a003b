-- Cells: which of several databases this one is, where queues are placed, and changes that other cells follow. See
-- docs/decisions/025-cells.md.

create table agent.cell
( is_only boolean primary key default true
, number int2
, taken_at timestamptz
, constraint cell_is_only check (is_only)
, constraint cell_number check (number between 0 and 255 and (number is null) = (taken_at is null))
);
comment on table agent.cell is 'which cell this database is: one row, which dumps and clones bring along';
comment on column agent.cell.number is 'the bits above the lower 45 of its ids; null: no process has taken it yet';
insert into agent.cell default values;

create table agent.placement
( queue text collate "C" not null
, cells int2[]
, placed_at timestamptz not null default clock_timestamp()
, keys_cells int2[]
, keys_until timestamptz
, past int2[] default '{}'
, asked jsonb not null default '[]'
, is_first_use boolean not null default false
, removed_at timestamptz
, updated_at timestamptz not null default clock_timestamp()
, version int8 not null
, constraint placement_pkey primary key (queue)
, constraint placement_cells check (cardinality(cells) between 1 and 256 and 0 <= all (cells) and 255 >= all (cells))
) with (fillfactor = 70);
comment on table agent.placement is 'at home, which cells the new events of a queue go to; a queue without a row is placed nowhere yet';
comment on column agent.placement.cells is 'in ascending order; null: all that take new queues';
comment on column agent.placement.keys_cells is 'where inserts with an idempotency key go until keys_until, as before; null: to all';
comment on column agent.placement.keys_until is 'null: they go where all others go';
comment on column agent.placement.past is 'in ascending order, that it was on before, whether they are former still or empty; null: all';
comment on column agent.placement.asked is
  '[{"cells": [1, 2], "since": …, "until": …}]: cells that know keys still, and are asked for them in that time; cells '
  'are null for all';
comment on column agent.placement.is_first_use is
  'the first call about the queue has placed it, and nobody else since: if the queue was not used after that, gateways remove it'
  ' again';
comment on column agent.placement.removed_at is 'the placement is gone, and stays for those who follow changes by their versions';
comment on column agent.placement.version is 'greater than that of every earlier change of any placement';
create unique index placement_version on agent.placement (version);
create index placement_elsewhere on agent.placement (queue) where removed_at is null and 0 <> all (cells);
create index placement_removed_at on agent.placement (removed_at) where removed_at is not null;

create table agent_private.placement_floor
( version int8 not null
);
comment on table agent_private.placement_floor is
  'the version of the last placement that was removed and is not here any more: who follows from an earlier one reads all'
  ' again; one row';
insert into agent_private.placement_floor (version) values (0);

create table agent.former_cell
( queue text collate "C" not null references agent.placement on delete cascade
, cell int2 not null
, since timestamptz not null
, constraint former_cell_pkey primary key (queue, cell)
);
comment on table agent.former_cell is 'the cells that a queue was placed on before, and that may hold some of its events still';
comment on column agent.former_cell.cell is '-1: all that there were';
comment on column agent.former_cell.since is 'since when new events go elsewhere';

create type agent.placement_info as
( queue text
, cells int2[]
, placed_at timestamptz
, former jsonb
, keys_cells int2[]
, keys_until timestamptz
, past int2[]
, asked jsonb
, is_first_use boolean
, is_removed boolean
, updated_at timestamptz
, version int8
);
comment on type agent.placement_info is 'what may be shown of a placement';
comment on column agent.placement_info.cells is 'null: all';
comment on column agent.placement_info.former is '[{"cells": [1, 2], "since": …}], the longest first; cells are null for all';
comment on column agent.placement_info.keys_cells is 'null, with keys_until: all';
comment on column agent.placement_info.past is 'null: all';
comment on column agent.placement_info.asked is 'as in the table, those that are not over';

create table agent.listed_cell
( cell int2 not null
, url text
, takes_new boolean not null
, turns jsonb not null
, updated_at timestamptz not null default clock_timestamp()
, constraint listed_cell_pkey primary key (cell)
, constraint listed_cell_number check (cell between 0 and 255)
);
comment on table agent.listed_cell is
  'at home, the cells that gateways are told of; a gateway may know others by its own settings, and its own URLs of these'
  ' go before';
comment on column agent.listed_cell.url is 'the base URL of its servers; null: gateways have it from their settings';
comment on column agent.listed_cell.takes_new is 'new queues may be placed there, and those that are on all cells go there';
comment on column agent.listed_cell.turns is
  '[{"at": …, "takes_new": …}]: since when it takes new queues, or takes none, in order; the latest 100';

create type agent.listed_cell_info as
( cell int4
, url text
, takes_new boolean
, updated_at timestamptz
, placed int8
, former int8
);
comment on type agent.listed_cell_info is 'what may be shown of a listed cell';
comment on column agent.listed_cell_info.placed is 'the queues that are on it; those on all cells are not counted';
comment on column agent.listed_cell_info.former is 'the queues that were on it and may have events there still';

create table agent_private.queue_change
( queue text collate "C" not null
, change int8 not null
, xid xid8 not null default pg_current_xact_id()
, copied_epoch text collate "C"
, copied_change int8
, constraint queue_change_pkey primary key (queue)
);
comment on table agent_private.queue_change is
  'the latest change of what a queue is set to, its policy and its push, for gateways, which copy settings of home to the other'
  ' cells; the row of a queue that was deleted stays';
comment on column agent_private.queue_change.change is 'its number, in one order for the queue';
comment on column agent_private.queue_change.xid is 'the transaction that has made it';
comment on column agent_private.queue_change.copied_epoch is 'of home, when the settings were copied from there last; null: they were made here';
comment on column agent_private.queue_change.copied_change is 'the change at home that is here, among those of the epoch';
create index queue_change_xid on agent_private.queue_change (xid);
