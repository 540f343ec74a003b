-- The log of publish/subscribe: everything published, once, in one order. See docs/decisions/010-log.md.

-- Publishing the changes of tables needs no table: the settings are the arguments of the triggers. See docs/decisions/013-changes.md.

-- Rows are inserted, and go with their segment.
create table agent.log
( position int8 not null primary key
, published_at timestamptz not null
, topic text collate "C" not null
, event jsonb not null
, meta jsonb
, key text collate "C"
, subscription text collate "C"
, text_size int4 not null
, constraint log_topic check (length(topic) <= 255 and topic ~ '^[A-Za-z0-9_:-]+([.][A-Za-z0-9_:-]+){0,7}$')
, constraint log_event check (jsonb_typeof(event) = 'object')
, constraint log_meta check (jsonb_typeof(meta) = 'object')
, constraint log_key check (length(key) between 1 and 255)
) partition by range (position);
comment on table agent.log is 'everything published, in order; each partition is a segment';
comment on column agent.log.position is 'number << 32 | n, the n-th place of the segment of that number';
comment on column agent.log.meta is 'what its publisher says of it beside the payload: an object';
comment on column agent.log.subscription is 'the only one that gets the event; null: all';
comment on column agent.log.text_size is 'bytes of event and meta as text, about: who publishes has checked them';

create index log_by_topic on agent.log (topic, position);

create sequence agent.log_position_seq as int8 minvalue 0 maxvalue 9007199254740991;
comment on sequence agent.log_position_seq is 'the last position that was drawn; its upper bits are the number of the open segment';
select pg_catalog.setval('agent.log_position_seq', 4294967296);

create table agent.log_segment
( number int8 not null primary key
, opened_at timestamptz
, closed_at timestamptz
, events int8
, state text collate "C" not null default 'ahead'
, last_position int8
, constraint log_segment_state check (state in ('ahead', 'open', 'closed', 'dropped'))
) with (fillfactor = 50);
comment on table agent.log_segment is 'the partitions of the log: they are made ahead of need, and dropped whole. Of those that were dropped there is the latest that had events';
comment on column agent.log_segment.opened_at is 'null: it is ahead';
comment on column agent.log_segment.events is 'so many it had when it was counted, which is once all of its publishers have ended';
comment on column agent.log_segment.last_position is 'of its events; null: it has none, or was not counted';

create table agent.log_settings
( is_only boolean primary key default true
, retention interval not null default interval '24 hours'
, hold interval not null default interval '168 hours'
, segment_interval interval not null default interval '1 hour'
, segment_size int8 not null default 10000000
, version int8 not null default 1
, updated_at timestamptz not null default now()
, constraint log_settings_is_only check (is_only)
);
comment on table agent.log_settings is 'see agent.put_log_settings(): one row';
comment on column agent.log_settings.retention is 'how long a segment stays after it was closed';
comment on column agent.log_settings.hold is 'how long a segment stays at most for durable subscriptions that have not read it';
comment on column agent.log_settings.segment_interval is 'a segment is closed when it is as old';
comment on column agent.log_settings.segment_size is 'or when so many positions of it were drawn';
insert into agent.log_settings default values;

-- Unlogged, so that it is empty after a crash, on a promoted standby and in a restored backup: see agent_private.advance_log(). The primary
-- key keeps two transactions from both having moved the log on. A dump brings the rows of an unlogged table along, and so does a copy by
-- CREATE DATABASE … TEMPLATE: hence the place.
create unlogged table agent.log_server
( started_at timestamptz not null
, place text not null
, primary key (started_at, place)
);
comment on table agent.log_server is 'the starts of servers that have given out positions, each with the place of this database';
comment on column agent.log_server.started_at is 'when the server was started';
comment on column agent.log_server.place is 'where the file of this table lies';
insert into agent.log_server (started_at, place)
values (pg_catalog.pg_postmaster_start_time(), pg_catalog.pg_relation_filepath('agent.log_server'));

create table agent.log_skip
( until int8 primary key
, after int8 not null
, last int8 not null
);
comment on table agent.log_skip is 'places of the log that were passed over: nothing is after the one position and up to the other';
comment on column agent.log_skip.last is
  'the last position that this database knows of from before the log went on: who has read further has read events that '
  'are not in this log';

create type agent_private.publication as
( topic text
, event jsonb
, key text
, meta jsonb
, idempotency_key text
, at timestamptz
, subscription text
);
comment on type agent_private.publication is 'what is to be published';
comment on column agent_private.publication.subscription is 'the only one that gets the event; null: all';

create table agent.outgoing
( xact xid8 not null default pg_catalog.pg_current_xact_id()
, id int8 not null generated always as identity
, publications agent_private.publication[] not null
, is_put_off boolean not null default false
);
comment on table agent.outgoing is
  'what a transaction publishes, until it commits: then it moves into the log; a row is what one call publishes';
comment on column agent.outgoing.is_put_off is 'it was to move before the end of its transaction, which was put off';
create index outgoing_by_xact on agent.outgoing (xact, id);

create table agent.publication_key
( topic text collate "C" not null
, key text collate "C" not null
, fingerprint text not null
, position int8
, published_at timestamptz
, expires_at timestamptz not null
, primary key (topic, key)
);
comment on table agent.publication_key is 'the idempotency keys of publications, by topic';
comment on column agent.publication_key.fingerprint is 'of everything that the request said';
comment on column agent.publication_key.position is 'null: not in the log yet';
comment on column agent.publication_key.expires_at is 'the key is forgotten from here on';
create index publication_key_by_expiry on agent.publication_key (expires_at);

create table agent.log_topic
( topic text collate "C" not null
, segment int8 not null
, events int8 not null
, last_position int8 not null
, last_at timestamptz not null
, primary key (topic, segment)
) with (fillfactor = 70);
comment on table agent.log_topic is 'the topics of each segment, as far as they are counted';
comment on column agent.log_topic.last_at is 'when the event at last_position was published';

create table agent.log_count
( is_only boolean primary key default true
, position int8 not null default 4294967296
, constraint log_count_is_only check (is_only)
) with (fillfactor = 50);
comment on table agent.log_count is 'up to which position agent.log_topic counts: one row';
insert into agent.log_count default values;
