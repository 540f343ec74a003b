-- The log of publish/subscribe: everything published, once, in one order. See docs/decisions/010-log.md.

-- agent.log: a position is number << 32 | n, the n-th place of the segment of that number. Rows are inserted, and go with their segment.
create table agent.log
( position int8 not null primary key
, published_at timestamptz not null
, topic text collate "C" not null
, event jsonb not null
, meta jsonb
, key text collate "C"
, subscription text collate "C"            -- the only one that gets the event, null: all
, constraint log_topic check (length(topic) <= 255 and topic ~ '^[A-Za-z0-9_:-]+([.][A-Za-z0-9_:-]+){0,7}$')
, constraint log_event check (jsonb_typeof(event) = 'object')
, constraint log_meta check (jsonb_typeof(meta) = 'object')
, constraint log_key check (length(key) between 1 and 255)
) partition by range (position);

create index log_by_topic on agent.log (topic, position);

-- The last position that was drawn. Its upper bits are the number of the open segment.
create sequence agent.log_position_seq as int8 minvalue 0 maxvalue 9007199254740991;
select pg_catalog.setval('agent.log_position_seq', 4294967296);

-- agent.log_server: when the servers were started that have given out positions. Unlogged, so that it is empty after a crash, on a promoted
-- standby and in a restored backup: see agent_private.advance_log().
create unlogged table agent.log_server
( started_at timestamptz not null
);
insert into agent.log_server values (pg_catalog.pg_postmaster_start_time());

-- agent.log_segment: the partitions of the log. They are made ahead of need, and dropped whole.
create table agent.log_segment
( number int8 not null primary key
, opened_at timestamptz                    -- null: it is ahead
, closed_at timestamptz
, events int8                              -- so many it had when it was counted, which is once all of its publishers have ended
, state text collate "C" not null default 'ahead'
, last_position int8                       -- of its events; null: it has none, or was not counted
, constraint log_segment_state check (state in ('ahead', 'open', 'closed', 'dropped'))
) with (fillfactor = 50);

-- agent.log_settings: see agent.put_log_settings(). One row.
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
insert into agent.log_settings default values;

-- What is to be published.
create type agent_private.publication as
( topic text
, event jsonb
, key text
, meta jsonb
, idempotency_key text
, at timestamptz
, subscription text
);

-- agent.outgoing: what a transaction publishes, until it commits: then it moves into the log. A row is what one call publishes.
create table agent.outgoing
( xact xid8 not null default pg_catalog.pg_current_xact_id()
, id int8 not null generated always as identity
, publications agent_private.publication[] not null
, is_put_off boolean not null default false -- it was to move before the end of its transaction, which was put off
);
create index outgoing_by_xact on agent.outgoing (xact, id);

-- agent.publication_key: the idempotency keys of publications, by topic.
create table agent.publication_key
( topic text collate "C" not null
, key text collate "C" not null
, fingerprint text not null
, position int8                            -- null: not yet in the log
, published_at timestamptz
, expires_at timestamptz not null
, primary key (topic, key)
);
create index publication_key_by_expiry on agent.publication_key (expires_at);

-- agent.log_topic: the topics of each segment, as far as they are counted.
create table agent.log_topic
( topic text collate "C" not null
, segment int8 not null
, events int8 not null
, last_position int8 not null
, last_at timestamptz not null
, primary key (topic, segment)
) with (fillfactor = 70);

-- agent.log_count: up to where agent.log_topic counts. One row.
create table agent.log_count
( is_only boolean primary key default true
, position int8 not null default 4294967296
, constraint log_count_is_only check (is_only)
) with (fillfactor = 50);
insert into agent.log_count default values;

-- Schedules that publish instead of inserting into a queue.

-- Functions that return something more have to go first. Who may execute them may do so again at the end of the migration: see the script of
-- the privileges.
create temporary table if not exists kept_grants (function name, grantee oid) on commit drop;
insert into kept_grants (function, grantee)
select distinct p.proname, a.grantee
from pg_catalog.pg_proc p
cross join pg_catalog.aclexplode(p.proacl) a
where p.pronamespace = 'agent'::pg_catalog.regnamespace and p.proname in ('list_occurrences', 'run_schedule')
and a.grantee not in (0, p.proowner) and a.privilege_type = 'EXECUTE';

drop function if exists agent.list_occurrences(int8, int4, timestamp);
drop function if exists agent.run_schedule(int8);

alter table agent.schedule
  add topic text collate "C"                -- its occurrences are published to; null: they are events of its queue
, alter queue drop not null
, add constraint schedule_target check
  ( case when topic is null then queue is not null else queue is null and type is null and priority = 0 end
  );

alter table agent.occurrence
  add topic text collate "C"                -- it was published to; null: it was not
;
