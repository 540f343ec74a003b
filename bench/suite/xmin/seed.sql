-- A log as Watermill's is: places by a sequence and by transaction, and readers that stay behind the oldest transaction of the server. Here the
-- condition of the reader is one that an index serves.
create table log
( "offset" bigserial, transaction_id xid8 not null default pg_current_xact_id(), published_at timestamptz not null default clock_timestamp()
, topic text not null, event jsonb not null, meta jsonb
, primary key (transaction_id, "offset") );
