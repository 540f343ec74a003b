-- What goes along with an event: metadata, and the publication that it was delivered from.

-- Functions that get other arguments or return something more have to go first. Who may execute them may do so again at the end of the
-- migration: see the script of the privileges.
create temporary table if not exists kept_grants (function name, grantee oid) on commit drop;
insert into kept_grants (function, grantee)
select distinct p.proname, a.grantee
from pg_catalog.pg_proc p
cross join pg_catalog.aclexplode(p.proacl) a
where p.pronamespace = 'agent'::pg_catalog.regnamespace
and p.proname in ('insert_event', 'insert_and_claim_events', 'claim_from_watermarks', 'list_events', 'list_history', 'requeue_events')
and a.grantee not in (0, p.proowner) and a.privilege_type = 'EXECUTE';

drop function if exists agent_private.is_valid_event(jsonb, text, text, text, text, int4, timestamptz);
drop function if exists agent_private.check_event_values(jsonb, text, text, text, text, int4, timestamptz);
drop function if exists agent.insert_event(jsonb, text, interval, timestamptz, text, text, int4, text, int4, timestamptz, interval);
drop function if exists agent.insert_and_claim_events(jsonb[], text[], interval[], timestamptz[], interval[], text[], jsonb[], interval);
drop function if exists agent_private.insert_keyed_events(jsonb[], text[], interval[], timestamptz[], interval[], text[], jsonb[], interval);
drop function if exists agent.claim_from_watermarks(text, int4, int4, interval, text, text[], int8[], text[], int4[], text[], timestamptz[]);
drop function if exists agent_private.claim_events_of_types(text, int4, int4, interval, text, text[], int8[], text[], int4[], text[], timestamptz[]);
drop function if exists agent_private.new_event
( int8, timestamptz, jsonb, timestamptz, text, interval, timestamptz, interval, text, text, text, int4, text, int4, timestamptz, jsonb, int8
);
drop function if exists agent.list_events(text, text, int4, timestamptz, int8);
drop function if exists agent_private.list_events_of_all_queues(text, int4, timestamptz, int8, timestamptz, timestamptz, timestamptz);
drop function if exists agent.list_history(text, text, timestamptz, timestamptz, jsonb, int8, int4, timestamptz, int8, text, text, text, interval);
drop function if exists agent.requeue_events(text, text, timestamptz, timestamptz, jsonb, int8, int4, boolean, boolean, text, text, text, interval);
drop function if exists agent_private.history_filter(text, timestamptz, timestamptz, jsonb, text, text, text, interval);

alter table agent.event
  add meta jsonb                            -- what its sender says of it beside the payload: an object
, add publication jsonb                     -- the publication that a subscription has delivered: {subscription, position, topic, published_at, matched}; null: it was inserted otherwise
;

alter table agent.event_hist
  add meta jsonb
, add publication jsonb
;

alter type agent.look
  add attribute meta jsonb
, add attribute publication jsonb
;
