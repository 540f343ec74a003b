-- agent.source_proof_field: the header fields, in lower case, that ever had the secret of a source of this name. Its sender may go on sending them, so they are
-- never kept, whatever the source is by now, or if it was deleted and put anew. A trigger adds them, and nothing takes them away.
create table agent.source_proof_field
( name text collate "C" not null
, field text collate "C" not null
, since timestamptz not null default now()
, primary key (name, field)
);
insert into agent.source_proof_field (name, field) select s.name, lower(s.header) from agent.source s where s.kind = 'token' and s.header is not null;
