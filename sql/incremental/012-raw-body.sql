-- agent.raw_body: the bytes that events came in as, for a time of its own, where that was asked for.
create table agent.raw_body
( event_id int8 not null primary key        -- of an event in its queue or in history
, body bytea not null
, media_type text                           -- as its sender called it; null: it did not
, received_at timestamptz not null default now()
, kept_until timestamptz not null
);
create index raw_body_kept_until on agent.raw_body (kept_until);
