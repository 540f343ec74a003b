-- Subscriptions: named readers of the log that are remembered, and the router, which delivers some of them into queues. See docs/publish.md
-- and docs/decisions/014-router.md.

create table agent.subscription
( id int8 not null generated always as identity primary key
, name text collate "C" not null
, version int8 not null default 1
, filters_version int8 not null default 1
, is_paused boolean not null default false
, start_position int8 not null
, max_waiting int4 not null
, expires_after interval
, expires_at timestamptz
, created_at timestamptz not null default now()
, updated_at timestamptz not null default now()
, deliver_queue text collate "C"
, deliver_type text collate "C"
, deliver_priority int4 not null default 0
, is_in_step boolean not null default false
, deliver_group_from text
, constraint subscription_name unique (name)
) with (fillfactor = 50);
comment on table agent.subscription is 'named readers of the log that are remembered';
comment on column agent.subscription.id is 'a subscription that is made anew under the same name has another one';
comment on column agent.subscription.filters_version is 'grows with every change of what the filters want';
comment on column agent.subscription.max_waiting is 'nothing is delivered while so many events are due in deliver_queue';
comment on column agent.subscription.expires_after is 'null: it is durable, and holds segments of the log';
comment on column agent.subscription.expires_at is 'it ends then, unless it is read, committed to or renewed before';
comment on column agent.subscription.deliver_queue is 'where its events are delivered; null: it is read by cursor';
comment on column agent.subscription.deliver_type is 'of the events that are delivered';
comment on column agent.subscription.deliver_priority is 'of the events that are delivered; lower first';
comment on column agent.subscription.is_in_step is 'its position is the one that all in step share: the router''s';
comment on column agent.subscription.deliver_group_from is
  'the group of the events that are delivered: key, the key of the publication; topic, its topic; else a JSON pointer '
  'into its payload; null: none';
create index subscription_by_expiry on agent.subscription (expires_at) where expires_at is not null;
create index subscription_delivered on agent.subscription (id) where deliver_queue is not null;

create table agent.subscription_filter
( subscription int8 not null
, name text collate "C" not null
, topics text[]
, match json
, canonical text not null
, expires_after interval
, expires_at timestamptz
, primary key (subscription, name)
);
comment on table agent.subscription_filter is 'what subscriptions want: an event that any of their filters matches';
comment on column agent.subscription_filter.topics is 'patterns; null: all';
comment on column agent.subscription_filter.match is 'as it was given; null: all';
comment on column agent.subscription_filter.canonical is 'equal for equal filters';
comment on column agent.subscription_filter.expires_at is 'it ends then, unless it is put again before';
create index subscription_filter_by_expiry on agent.subscription_filter (expires_at) where expires_at is not null;

create table agent.subscription_replay
( id int8 not null primary key
, subscription int8 not null
, until int8 not null
, created_at timestamptz not null default now()
);
comment on table agent.subscription_replay is 'replays: what a subscription gets once more';
comment on column agent.subscription_replay.id is 'drawn from the ids of subscriptions, as it has a position of its own';
comment on column agent.subscription_replay.until is 'the last position that belongs to it';
create index subscription_replay_by_subscription on agent.subscription_replay (subscription);

-- A change inserts the next row and deletes the one before, because an update in place becomes slower with each one beside an old snapshot.
-- Whoever changes it has locked the row of agent.subscription.
create table agent.subscription_position
( reader int8 not null
, number int8 not null
, position int8 not null
, token int8 not null
, epoch int8 not null
, leased_until timestamptz
, lease_token int8
, gaps int8 not null
, primary key (reader, number)
);
comment on table agent.subscription_position is 'how far a reader has come: its row with the greatest number';
comment on column agent.subscription_position.reader is
  'the id of a subscription or a replay; 0: the router, whose lease is that of the process that routes, which is its '
  'token';
comment on column agent.subscription_position.position is 'everything up to there is committed';
comment on column agent.subscription_position.token is 'of the cursor that was committed last: the next one has to follow it';
comment on column agent.subscription_position.epoch is 'cursors of another epoch are lost: it grows with every seek and every lease';
comment on column agent.subscription_position.leased_until is 'null: there is no lease';
comment on column agent.subscription_position.lease_token is 'of the latest cursor under the lease: its commit ends it';
comment on column agent.subscription_position.gaps is 'that were told, and committed';
insert into agent.subscription_position (reader, number, position, token, epoch, gaps) values (0, 1, 0, 0, 1, 0);

create table agent.router
( is_only boolean primary key default true
, constraint router_is_only check (is_only)
);
comment on table agent.router is 'locked by whoever moves the position that subscriptions in step share: one row, which nobody updates';
insert into agent.router default values;

-- Each change inserts a row, so those who change subscriptions and do not commit stop nobody from routing, nor from changing others. The
-- router makes one row of many.
create table agent.route_version
( changes int8 not null default 1
, id int8 not null default (pg_catalog.random() * 9007199254740991)::int8
, subscription int8
);
comment on table agent.route_version is 'how often what is to be delivered has changed: all rows together';
comment on column agent.route_version.id is 'tells rows apart, also from those that a failover has lost';
comment on column agent.route_version.subscription is 'the one that the change is about; null: any';
insert into agent.route_version default values;
