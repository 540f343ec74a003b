-- Dead letters, and two further settings of a queue's policy: the delay of inserts and the wait of claims.

-- Functions that take or return something more have to go first, with their grants: see the script of the privileges.
create temporary table if not exists kept_grants (function name, grantee oid) on commit drop;
insert into kept_grants (function, grantee)
select distinct p.proname, a.grantee
from pg_catalog.pg_proc p
cross join pg_catalog.aclexplode(p.proacl) a
where p.pronamespace in ('agent'::pg_catalog.regnamespace, 'agent_service'::pg_catalog.regnamespace)
and p.proname in ('nack_event', 'sweep_events', 'claim_from_watermarks', 'queue_stats')
and a.grantee not in (0, p.proowner) and a.privilege_type = 'EXECUTE';

drop function if exists agent.nack_event(int8, text, interval, text, boolean, boolean, boolean, text[]);
drop function if exists agent_service.sweep_events(int4, interval, text, int4);
drop function if exists agent_service.claim_from_watermarks
  (text, int4, int4, interval, text, text[], int8[], text[], int4[], text[], timestamptz[], boolean, int8);
drop function if exists agent_private.claim_events_of_types
  (text, int4, int4, interval, text, text[], int8[], text[], int4[], text[], timestamptz[], boolean, int8);
drop function if exists agent.queue_stats(interval, text, int4, text[], text[]);
drop function if exists agent_private.move_to_history(int8[], text, text, boolean, text[], jsonb[], text[]);
drop function if exists agent_private.move_each_to_history(int8[], text);
drop function if exists agent_private.leases_on_arrival(text[], interval[], jsonb[]);
drop function if exists agent_private.new_event
( int8, timestamptz, jsonb, timestamptz, text, interval, timestamptz, interval, text, text, text, int4, text, int4, timestamptz, jsonb, int8, jsonb, jsonb, text
);

alter table agent.event
  add dead_letter_of int8                   -- the event in history that it is the dead letter of
;

alter table agent.event_hist
  add dead_letter_of int8
, add dead_lettered_as int8                 -- its dead letter
;

alter type agent.look
  add attribute dead_letter_of int8
, add attribute dead_lettered_as int8
;

alter table agent.queue
  add dead_letter_queue text collate "C"    -- where its events go that end as failed or expired; null: into history alone
, add delay interval                        -- of inserts that say neither a delay nor a vt; null: none
, add wait interval                         -- of claims that do not say; null: none
, add constraint queue_dead_letter_queue check (octet_length(dead_letter_queue) between 1 and 128 and dead_letter_queue ~ '^[A-Za-z0-9._:-]+$')
, add constraint queue_delay check (delay >= interval '0')
, add constraint queue_wait check (wait >= interval '0')
;

-- Whose dead letters a queue takes; and whether there are any at all, which an empty index says at once.
create index queue_dead_letter on agent.queue (dead_letter_queue, name) where dead_letter_queue is not null;
-- The same for delays.
create index queue_delays on agent.queue (name) where delay is not null;

-- agent_private.dead_letter_order: one row, which whoever gives a queue a dead-letter queue changes, so that of two who do so at the same time the second sees
-- what the first has done.
create table agent_private.dead_letter_order
( changes int8 not null
);
insert into agent_private.dead_letter_order (changes) values (0);
