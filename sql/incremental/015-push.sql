-- agent.push: where the events of a queue are pushed to. See docs/webhooks-out.md.
create table agent.push
( queue text collate "C" primary key
, url text not null
, format text not null default 'standard'
, headers bytea                            -- further header fields, a JSON object, sealed: they may hold credentials; null: none
, header_names text[] not null default '{}'
, timeout interval not null default interval '15 seconds'
, max_in_flight int4 not null default 10
, rate_per_second float8                   -- requests; null: no limit
, rate_burst int4                          -- requests at once
, final_statuses int4[] not null default '{}' -- statuses after which an event is not tried again
, disable_after interval not null default interval '120 hours'
, version int8 not null default 1
, created_at timestamptz not null default clock_timestamp()
, updated_at timestamptz not null default clock_timestamp()
, constraint push_url check (length(url) between 1 and 2048)
, constraint push_format check (format in ('standard', 'cloudevents', 'event'))
, constraint push_headers check ((headers is null) = (cardinality(header_names) = 0))
, constraint push_bounds check (timeout > interval '0' and max_in_flight > 0 and disable_after > interval '0')
, constraint push_rate check ((rate_per_second is null) = (rate_burst is null) and rate_per_second > 0 and rate_burst > 0)
);

-- agent.push_secret: what requests of a queue are signed with, once for each secret that is live.
create table agent.push_secret
( id int8 not null generated always as identity primary key
, queue text collate "C" not null references agent.push on delete cascade
, secret bytea not null                    -- sealed under keys that are not in the database
, created_at timestamptz not null default clock_timestamp()
, live_until timestamptz                   -- null: it is the current one
);
create unique index push_secret_current on agent.push_secret (queue) where live_until is null;
create index push_secret_queue on agent.push_secret (queue);

-- agent.push_state: how the endpoint does, as those who push have seen it.
create table agent.push_state
( queue text collate "C" primary key references agent.push on delete cascade
, epoch int8 not null                      -- of its changes; who records one has to know the one before
, failures int4 not null default 0         -- in a row
, failing_since timestamptz                -- the first of them
, last_failure_at timestamptz
, last_error text
, last_success_at timestamptz
, opened_at timestamptz                    -- the breaker has opened; null: it is closed
, pause interval                           -- while it is open: between the latest probe and the next
, retry_at timestamptz                     -- nothing is pushed before; null: no such time
, disabled_at timestamptz                  -- null: it is enabled
, disabled_reason text
) with (fillfactor = 50);

-- What may be shown of a push. secrets is an array of objects with created_at and live_until, the current one first.
create type agent.push_info as
( queue text
, url text
, format text
, header_names text[]
, timeout interval
, max_in_flight int4
, rate_per_second float8
, rate_burst int4
, final_statuses int4[]
, disable_after interval
, status text                              -- enabled, held, open or disabled
, failures int4
, failing_since timestamptz
, last_failure_at timestamptz
, last_error text
, last_success_at timestamptz
, retry_at timestamptz
, disabled_at timestamptz
, disabled_reason text
, secrets jsonb
, version int8
, created_at timestamptz
, updated_at timestamptz
);
