-- agent.source: a sender of webhooks, which are posted to /in/<name>: how it proves who it is, and what its deliveries become. See docs/webhooks-in.md.
create table agent.source
( name text collate "C" primary key
, kind text not null
, queue text                               -- where its events go, or
, topic text                               -- where they are published
, type text                                -- templates; null: that of the kind
, key text
, event_ts text
, priority text
, signature jsonb                          -- of kind hmac: where the signature is, and what it signs
, header text                              -- of kind token: the field that has the token; null: Authorization
, secrets bytea[] not null                 -- sealed under keys that are not in the database
, dedup_for interval not null              -- how long the key of a delivery is remembered
, tolerance interval not null              -- how far the timestamp of a signature may be from now
, keep_raw interval                        -- how long the bytes of a delivery are kept; null: not at all
, headers text[] not null default '{}'     -- fields that are kept in the metadata
, max_body int4                            -- bytes; null: the limit of all requests
, rate_per_second float8                   -- deliveries; null: no limit
, rate_burst int4                          -- deliveries at once
, paused boolean not null default false
, version int8 not null default 1
, created_at timestamptz not null default clock_timestamp()
, updated_at timestamptz not null default clock_timestamp()
, constraint source_name check (name ~ '^[A-Za-z0-9._:-]{1,128}$')
, constraint source_kind check (kind in ('slack', 'github', 'stripe', 'standard', 'hmac', 'token', 'basic', 'cloudevents'))
, constraint source_target check (num_nonnulls(queue, topic) = 1)
, constraint source_secrets check (cardinality(secrets) between 1 and 5 and array_position(secrets, null) is null)
, constraint source_durations check
  ( dedup_for > interval '0' and tolerance > interval '0' and keep_raw > interval '0'
  )
, constraint source_keep_raw check (keep_raw is null or queue is not null)
, constraint source_max_body check (max_body > 0)
, constraint source_rate check ((rate_per_second is null) = (rate_burst is null) and rate_per_second > 0 and rate_burst > 0)
);

-- agent.source_count: what has come in from a source. Processes add to it every second or so.
create table agent.source_count
( name text collate "C" primary key references agent.source on delete cascade
, received int8 not null default 0         -- deliveries that were taken, duplicates among them
, duplicates int8 not null default 0
, rejected int8 not null default 0
, last_received_at timestamptz
, last_rejected_at timestamptz
, last_rejected_code text
, last_rejected_request_id text
, last_problem_at timestamptz              -- of a delivery whose event has an empty field
, last_problem text
, last_problem_request_id text
) with (fillfactor = 50);

-- What may be shown of a source: all but its secrets, and what has come in from it.
create type agent.source_info as
( name text
, kind text
, queue text
, topic text
, type text
, key text
, event_ts text
, priority text
, signature jsonb
, header text
, secrets int4
, dedup_for interval
, tolerance interval
, keep_raw interval
, headers text[]
, max_body int4
, rate_per_second float8
, rate_burst int4
, paused boolean
, version int8
, created_at timestamptz
, updated_at timestamptz
, received int8
, duplicates int8
, rejected int8
, last_received_at timestamptz
, last_rejected_at timestamptz
, last_rejected_code text
, last_rejected_request_id text
, last_problem_at timestamptz
, last_problem text
, last_problem_request_id text
);
