-- Sources and pushes that are created only where there is none.

-- Functions that take something more have to go first, with their grants: see the script of the privileges.
create temporary table if not exists kept_grants (function name, grantee oid) on commit drop;
insert into kept_grants (function, grantee)
select distinct p.proname, a.grantee
from pg_catalog.pg_proc p
cross join pg_catalog.aclexplode(p.proacl) a
where p.pronamespace = 'agent_service'::pg_catalog.regnamespace
and p.proname in ('put_source', 'put_push')
and a.grantee not in (0, p.proowner) and a.privilege_type = 'EXECUTE';

drop function if exists agent_service.put_source(text, jsonb, bytea[], int8[], boolean);
drop function if exists agent_service.put_push
  (text, text, text, interval, int4, float8, int4, int4[], interval, bytea, text[], bytea, int8[], boolean);
