-- Filters by the time when an event ended.

-- Functions that take something more have to go first, with their grants: see the script of the privileges.
create temporary table if not exists kept_grants (function name, grantee oid) on commit drop;
insert into kept_grants (function, grantee)
select distinct p.proname, a.grantee
from pg_catalog.pg_proc p
cross join pg_catalog.aclexplode(p.proacl) a
where p.pronamespace = 'agent'::pg_catalog.regnamespace
and p.proname in ('list_history', 'requeue_events', 'create_redrive')
and a.grantee not in (0, p.proowner) and a.privilege_type = 'EXECUTE';

drop function if exists agent.list_history
  (text, text, timestamptz, timestamptz, jsonb, int8, int4, timestamptz, int8, text, text, text, interval, jsonb, text[], int8);
drop function if exists agent_private.find_history
  (text, text, timestamptz, timestamptz, jsonb, int8, int4, timestamptz, int8, text, text, text, interval, jsonb, text[]);
drop function if exists agent_private.history_filter(text, timestamptz, timestamptz, jsonb, text, text, text, interval, jsonb, text[]);
drop function if exists agent.requeue_events
  (text, text, timestamptz, timestamptz, jsonb, int8, int4, boolean, boolean, text, text, text, interval, jsonb, text[]);
drop function if exists agent.create_redrive
  (text, text, timestamptz, timestamptz, jsonb, text, text, text, interval, jsonb, text, text, float8, text, boolean, text[]);
drop function if exists agent_service.list_failures(text, text, timestamptz, timestamptz, text[], int4, int4, int4);

alter table agent.redrive
  add finished_from timestamptz             -- of its filter: of finished_at of the events, inclusive
, add finished_to timestamptz               -- exclusive
;
