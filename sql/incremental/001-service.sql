-- The schemas, the roles that the service runs as, the server that the database is on, and the processes.

-- agent has the tables, and the functions that users call. Nobody but its owner may use the schema agent_private, and nobody but its
-- owner and the roles of the service the schema agent_service.
do $script$
declare
  _schema name;
  _owner name;
begin
  foreach _schema in array array['agent_private', 'agent_service'] loop
    select r.rolname into _owner
    from pg_catalog.pg_namespace n
    join pg_catalog.pg_roles r on r.oid = n.nspowner
    where n.nspname = _schema;
    if not found then
      execute pg_catalog.format('create schema %I', _schema);
    elsif _owner <> current_user then
      raise exception 'the schema % belongs to %, and the schema agent to %', _schema, _owner, current_user
        using hint = pg_catalog.format('have an administrator run: alter schema %I owner to %I', _schema, current_user);
    end if;
  end loop;
exception when insufficient_privilege then
  raise insufficient_privilege using
    message = pg_catalog.format('role %s may not create the schema %s', current_user, _schema)
  , hint = pg_catalog.format('have an administrator run: create schema %I authorization %I', _schema, current_user);
end
$script$;
comment on schema agent_private is 'functions that only other functions of queued call, and tables that only they use';
comment on schema agent_service is 'functions that queued itself calls, and nobody else';

create table agent.service_role
( name name primary key
, granted_at timestamptz not null default now()
);
comment on table agent.service_role is
  'the roles that the service runs as: each migration grants them what its version calls, see agent.grant_service()';

create table agent.server
( is_only boolean primary key default true
, timeline int8
, clock timestamptz not null default clock_timestamp()
, system_identifier int8
, database_oid oid
, table_oid oid
, constraint server_is_only check (is_only)
) with (fillfactor = 50);
comment on table agent.server is 'the server that was the primary when it was looked at last, and the identity of this database: one row';
comment on column agent.server.timeline is 'of the server''s WAL; null: none was seen yet';
comment on column agent.server.clock is 'the highest time that the server''s clock was seen to show';
comment on column agent.server.system_identifier is 'of the cluster; null: not seen yet, or the server does not show it';
comment on column agent.server.database_oid is 'null: no identity was recorded yet';
comment on column agent.server.table_oid is 'of this table, which another schema has another one of: it tells the database from its copies';
insert into agent.server default values;

create table agent.server_change ();
comment on table agent.server_change is 'never has a row: who moves the sequences ahead has it locked';

-- Sequences, because they are outside of transactions: see agent_private.follow_timeline() and agent_private.advance_sequences().
create sequence agent.server_timeline as int8 minvalue 0 start 0;
comment on sequence agent.server_timeline is 'the timeline that ids are given out on';
create sequence agent.server_mark as int8 minvalue -9223372036854775807 start 0;
comment on sequence agent.server_mark is 'the start of a server, and the place of this database, as one number; 0: none yet';
create sequence agent.server_identity as int8 minvalue -9223372036854775807 start 0;
comment on sequence agent.server_identity is 'the identity that ids are given out under, as one number; 0: none yet';
do $script$
begin
  perform pg_catalog.setval
  ('agent.server_timeline', ('x' || pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8))::bit(32)::int8);
exception when insufficient_privilege or undefined_function or feature_not_supported then
  null; -- see agent_private.current_timeline()
end
$script$;

create table agent.process_metric
( id text collate "C" not null
, process text not null
, category text collate "C" not null
, value text not null
, updated_at timestamptz not null
, primary key (id, category)
) with (fillfactor = 50);
comment on table agent.process_metric is 'what each process of the service reports while it lives, such as its version and its counters';
comment on column agent.process_metric.id is 'of the process, made anew at each start';
comment on column agent.process_metric.process is 'the name of the process, for people';
comment on column agent.process_metric.category is 'what the value is of';

create table agent_private.replica_version
( name text collate "C" not null
, version int8 not null
, constraint replica_version_pkey primary key (name)
);
comment on table agent_private.replica_version is
  'the versions of what each process has in memory: keys (access), sources (source), pushes (push), the processes that '
  'push (pusher), placements (placement)';
comment on column agent_private.replica_version.version is
  'triggers of the tables give it another value with each change, in the same transaction; it begins at random, so that a'
  ' database that is made anew has another one';
insert into agent_private.replica_version (name, version)
select n.name, 1 + (pg_catalog.random() * 2097151)::int8
from pg_catalog.unnest(array['access', 'source', 'push', 'pusher', 'placement']) as n (name);

create table agent.upkeep
( task text collate "C" primary key
, done_at timestamptz not null default now()
);
comment on table agent.upkeep is 'the tasks of upkeep; who is at one has its row locked';
comment on column agent.upkeep.done_at is 'when the task was last done to its end';
insert into agent.upkeep (task) values ('partitions'), ('retention'), ('queue_history'), ('keys'), ('executions');
