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

-- agent.placement: at home, which cells the new events of a queue go to. A queue without a row is placed nowhere yet.
create table agent.placement
( queue text collate "C" not null
, cells int2[]                              -- in ascending order; null: all that take new queues
, placed_at timestamptz not null default clock_timestamp()
, keys_cells int2[]                         -- where inserts with an idempotency key go until keys_until, as before; null: to all
, keys_until timestamptz                    -- null: they go where all others go
, past int2[] default '{}'                   -- in ascending order, that it was on before, whether they are former still or empty; null: all
, asked jsonb not null default '[]'          -- [{"cells": [1, 2], "since": …, "until": …}]: that know keys still, and are asked for them in that time; cells are null for all
, removed_at timestamptz                    -- the placement is gone, and stays for those who follow changes by their versions
, updated_at timestamptz not null default clock_timestamp()
, version int8 not null                     -- greater than that of every earlier change of any placement
, constraint placement_pkey primary key (queue)
, constraint placement_cells check (cardinality(cells) between 1 and 256 and 0 <= all (cells) and 255 >= all (cells))
) with (fillfactor = 70);
create unique index placement_version on agent.placement (version);
create index placement_elsewhere on agent.placement (queue) where removed_at is null and 0 <> all (cells);
create index placement_removed_at on agent.placement (removed_at) where removed_at is not null;

-- agent.former_cell: the cells that a queue was placed on before, and that may hold some of its events still.
create table agent.former_cell
( queue text collate "C" not null references agent.placement on delete cascade
, cell int2 not null                        -- -1: all that there were
, since timestamptz not null                -- since when new events go elsewhere
, constraint former_cell_pkey primary key (queue, cell)
);

-- agent.listed_cell: at home, the cells that gateways are told of. A gateway may know others by its own settings, and its own URLs of these go before.
create table agent.listed_cell
( cell int2 not null
, url text                                  -- the base URL of its servers; null: gateways have it from their settings
, takes_new boolean not null                -- new queues may be placed there, and those that are on all cells go there
, turns jsonb not null                      -- [{"at": …, "takes_new": …}]: since when it takes new queues, or takes none, in order; the latest 100
, updated_at timestamptz not null default clock_timestamp()
, constraint listed_cell_pkey primary key (cell)
, constraint listed_cell_number check (cell between 0 and 255)
);

-- What may be shown of a listed cell.
create type agent.listed_cell_info as
( cell int4
, url text
, takes_new boolean
, updated_at timestamptz
, placed int8                               -- the queues that are on it; those on all cells are not counted
, former int8                               -- the queues that were on it and may have events there still
);

-- What may be shown of a placement.
create type agent.placement_info as
( queue text
, cells int2[]                              -- null: all
, placed_at timestamptz
, former jsonb                              -- [{"cells": [1, 2], "since": …}], the longest first; cells are null for all
, keys_cells int2[]                         -- null, with keys_until: all
, keys_until timestamptz
, past int2[]                               -- null: all
, asked jsonb                               -- as in the table, those that are not over
, is_removed boolean
, updated_at timestamptz
, version int8
);

-- agent_private.placement_floor: the version of the last placement that was removed and is not here any more: who follows from an earlier one reads all again.
create table agent_private.placement_floor
( version int8 not null
);
insert into agent_private.placement_floor (version) values (0);

insert into agent_private.replica_version (name, version) values ('placement', 1 + (pg_catalog.random() * 2097151)::int8);

-- The number of the latest change of a key; below zero: there was none since keys have one.
alter table agent.api_key add change int8 not null default 0;
update agent.api_key k set change = -n.n from (select o.id, pg_catalog.row_number() over (order by o.id) from agent.api_key o) as n (id, n) where n.id = k.id;
create index api_key_change on agent.api_key (change);

-- agent_private.deleted_api_key: the ids of keys that were deleted. They stay, so that a copy of such a key that comes late, from a gateway or a cell that was away, does not
-- bring it back.
create table agent_private.deleted_api_key
( id text collate "C" not null
, change int8 not null                      -- the number of its deletion, among those of changes
, constraint deleted_api_key_pkey primary key (id)
);
create index deleted_api_key_change on agent_private.deleted_api_key (change);

-- agent_private.owner_change: the latest change of each owner since there are cells, for those who follow them. Owners that were deleted stay, so that a copy of one
-- that comes late does not bring it back.
create table agent_private.owner_change
( id text collate "C" not null
, transaction int8 not null                 -- that has made it
, is_deleted boolean not null
, version int8 not null                     -- of the owner; of one that was deleted, one more than it had
, constraint owner_change_pkey primary key (id)
);
create index owner_change_transaction on agent_private.owner_change (transaction);
