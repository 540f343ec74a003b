-- The identity of this database, which tells it from its copies. See agent_private.database_identity().

alter table agent.server
  add system_identifier int8                -- of the cluster; null: not seen yet, or the server does not show it
, add database_oid oid                      -- null: no identity was recorded yet
, add table_oid oid                         -- of this table, which another schema has another one of
;

-- Outside of transactions, as agent.server_timeline is: see agent_private.advance_sequences(). Zero: none yet.
create sequence agent.server_mark as int8 minvalue -9223372036854775807 start 0;     -- the start of a server, and the place of this database
create sequence agent.server_identity as int8 minvalue -9223372036854775807 start 0; -- the identity that ids are given out under

-- Where the file of this table lies: a dump brings the rows of an unlogged table along, and so does a copy by CREATE DATABASE … TEMPLATE.
alter table agent.log_server add place text;
update agent.log_server
set place = pg_catalog.pg_relation_filepath('agent.log_server')
where (select s.last_value from agent.log_position_seq s) = 4294967296; -- else the log moves on once: this may be a copy

-- agent.log_skip: places of the log that were passed over: nothing is after the one position and up to the other.
create table agent.log_skip
( until int8 primary key
, after int8 not null
);
