-- The random part of receipts.

-- Functions that take or return something more have to go first, with their grants: see the script of the privileges.
create temporary table if not exists kept_grants (function name, grantee oid) on commit drop;
insert into kept_grants (function, grantee)
select distinct p.proname, a.grantee
from pg_catalog.pg_proc p
cross join pg_catalog.aclexplode(p.proacl) a
where p.pronamespace = 'agent'::pg_catalog.regnamespace
and p.proname in ('insert_and_claim_events', 'claim_from_watermarks', 'receipt')
and a.grantee not in (0, p.proowner) and a.privilege_type = 'EXECUTE';

drop function if exists agent.insert_and_claim_events(jsonb[], text[], interval[], timestamptz[], interval[], text[], jsonb[], interval);
drop function if exists agent_private.insert_keyed_events(jsonb[], text[], interval[], timestamptz[], interval[], text[], jsonb[], interval);
drop function if exists agent.claim_from_watermarks(text, int4, int4, interval, text, text[], int8[], text[], int4[], text[], timestamptz[]);
drop function if exists agent_private.claim_events_of_types(text, int4, int4, interval, text, text[], int8[], text[], int4[], text[], timestamptz[]);
drop function if exists agent_private.new_event
( int8, timestamptz, jsonb, timestamptz, text, interval, timestamptz, interval, text, text, text, int4, text, int4, timestamptz, jsonb, int8, jsonb, jsonb
);

-- The receipt of a claim could be computed from these columns. It cannot any more; agent.receipt(agent.event) stays.
drop function if exists agent.receipt(agent.event);
drop function if exists agent.receipt(int8, int4, timestamptz[]);

alter table agent.event
  add receipt_hash bytea                    -- of the token of the latest claim, and behind it of the claim before; null: version 0.7.0 or earlier has claimed it, or nobody
, add claim_token text                      -- the random part of the receipt: only in rows that a claim returns, always null here
;

alter table agent.event_hist
  add receipt_hash bytea
;
