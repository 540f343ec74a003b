-- agent_private.replica_version: the versions of what each process has in memory: keys (access), sources, pushes, and the processes that push (pusher).
-- A trigger of their tables gives them another one with each change, in the same transaction.
create table agent_private.replica_version
( name text collate "C" not null
, version int8 not null
, constraint replica_version_pkey primary key (name)
);
insert into agent_private.replica_version (name, version)
select n.name, 1 + (pg_catalog.random() * 2097151)::int8
from pg_catalog.unnest(array['access', 'source', 'push', 'pusher']) as n (name);

-- Their former versions go. Who might ask for one of them may ask for these.
create temporary table if not exists kept_grants (function name, grantee oid) on commit drop;
insert into kept_grants (function, grantee)
select distinct f.name, a.grantee
from pg_catalog.pg_proc p
cross join pg_catalog.aclexplode(p.proacl) a
cross join (values ('replica_versions'), ('is_key_required')) as f (name)
where p.pronamespace = 'agent_service'::pg_catalog.regnamespace and p.proname in ('get_access', 'get_sources_version')
and a.grantee not in (0, p.proowner) and a.privilege_type = 'EXECUTE';

-- Pushes are read with the times until which their secrets are live: the function has to go first.
insert into kept_grants (function, grantee)
select distinct p.proname, a.grantee
from pg_catalog.pg_proc p
cross join pg_catalog.aclexplode(p.proacl) a
where p.oid = pg_catalog.to_regprocedure('agent_service.read_pushes(text)') and a.grantee not in (0, p.proowner) and a.privilege_type = 'EXECUTE';

drop function if exists agent_service.read_pushes(text);
drop function if exists agent_service.get_access();
drop function if exists agent_service.get_sources_version();
alter table agent.access drop column version;
