-- The objects of the runner itself, made in the transaction of a database's first migration.

create table agent.version
( version text not null
, updated_at timestamptz not null default now()
, singleton boolean primary key default true check (singleton) -- one row, ever
);
comment on table agent.version is 'the version of queued that the schema agent is at: exactly one row';

create table agent.migration
( name text primary key
, version text not null                           -- of the program that applied it
, checksum bytea not null                         -- SHA-256 of the script's body
, applied_at timestamptz not null default now()   -- the same for all scripts of one migration
, took interval not null
);
comment on table agent.migration is 'the incremental scripts of queued that were applied: each once, and never changed since';
