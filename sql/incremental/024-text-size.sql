-- How long the JSON of events is as text, so that readers need not measure it.

-- Functions that return something more have to go first. Who may execute them may do so again at the end of the migration: see the script of
-- the privileges.
create temporary table if not exists kept_grants (function name, grantee oid) on commit drop;
insert into kept_grants (function, grantee)
select distinct p.proname, a.grantee
from pg_catalog.pg_proc p
cross join pg_catalog.aclexplode(p.proacl) a
where p.pronamespace = 'agent'::pg_catalog.regnamespace
and p.proname in ('claim_from_watermarks', 'list_events', 'list_history')
and a.grantee not in (0, p.proowner) and a.privilege_type = 'EXECUTE';

drop function if exists agent.claim_from_watermarks(text, int4, int4, interval, text, text[], int8[], text[], int4[], text[], timestamptz[], boolean);
drop function if exists agent_private.claim_events_of_types(text, int4, int4, interval, text, text[], int8[], text[], int4[], text[], timestamptz[], boolean);

drop function if exists agent.list_events(text, text, int4, timestamptz, int8, jsonb, jsonb, text[]);
drop function if exists agent.list_history
  (text, text, timestamptz, timestamptz, jsonb, int8, int4, timestamptz, int8, text, text, text, interval, jsonb, text[]);
drop function if exists agent_private.text_size(jsonb, jsonb);

alter table agent.event
  add text_size int4                        -- bytes of its JSON as text, about; null: it was not checked when it was written
;

-- Events that were not checked when they were written: claims look at them first.
create index event_unchecked on agent.event (queue, vt, id) where text_size is null;

alter table agent.log
  add text_size int4                        -- bytes of event and meta as text, about; null: it was not checked when it was written
;

alter type agent.look
  add attribute is_beyond boolean           -- in a page: it has no room for this event, whose JSON is left out
;
