-- Subscriptions: named readers of the log that are remembered. See docs/publish.md.

create table agent.subscription
( id int8 not null generated always as identity primary key -- a subscription that is made anew under the same name has another one
, name text collate "C" not null
, version int8 not null default 1
, filters_version int8 not null default 1  -- grows with every change of what the filters want
, is_paused boolean not null default false
, start_position int8 not null
, max_waiting int4 not null
, expires_after interval                   -- null: it is durable, and holds segments of the log
, expires_at timestamptz                   -- unless it is read, committed to or renewed before
, created_at timestamptz not null default now()
, updated_at timestamptz not null default now()
, constraint subscription_name unique (name)
) with (fillfactor = 50);
create index subscription_by_expiry on agent.subscription (expires_at) where expires_at is not null;

create table agent.subscription_filter
( subscription int8 not null
, name text collate "C" not null
, topics text[]                            -- null: all
, match json                               -- as it was given; null: all
, canonical text not null                  -- equal for equal filters
, expires_after interval
, expires_at timestamptz                   -- unless it is put again before
, primary key (subscription, name)
);
create index subscription_filter_by_expiry on agent.subscription_filter (expires_at) where expires_at is not null;

-- How far a subscription has come: its row with the greatest number. A change inserts the next row and deletes the one before, because an
-- update in place becomes slower with each one beside an old snapshot. Whoever changes it has locked the row of agent.subscription.
create table agent.subscription_position
( subscription int8 not null
, number int8 not null
, position int8 not null                   -- everything up to there is committed
, token int8 not null                      -- of the cursor that was committed last: the next one has to follow it
, epoch int8 not null                      -- cursors of another epoch are lost: it grows with every seek and every lease
, leased_until timestamptz                 -- null: there is no lease
, lease_token int8                         -- of the latest cursor under the lease: its commit ends it
, gaps int8 not null                       -- that were told, and committed
, primary key (subscription, number)
);
