-- agent.push_delivery_log: the log of the attempts to push the events of a queue, by class: 0 is what was delivered, 1 is all else. Each class
-- has its latest rows, so that many deliveries do not displace the failures.
create table agent.push_delivery_log
( queue text collate "C" not null references agent.push on delete cascade
, class int2 not null
, last_number int8 not null default 0      -- of its latest row
, dropped int8 not null default 0          -- attempts that were not logged because there were too many
, dropped_at timestamptz                   -- the latest of them
, primary key (queue, class)
) with (fillfactor = 50);

-- agent.push_delivery: an attempt to push an event.
create table agent.push_delivery
( queue text collate "C" not null
, class int2 not null
, number int8 not null                     -- counts up without gaps in its class
, at timestamptz not null                  -- when the request began
, outcome text not null                    -- delivered, retried, failed, held or lease_lost
, event_id int8 not null
, type text
, attempt int4 not null
, status int4                              -- of the answer; null: there was none
, ms int8 not null
, error text                               -- why there was no answer, or no request
, body text                                -- the first KiB of the answer
, next_at timestamptz                      -- when the event is due again; null: not at a known time
, primary key (queue, class, number)
, foreign key (queue, class) references agent.push_delivery_log on delete cascade
);
create index push_delivery_at on agent.push_delivery (at);

-- agent.source_delivery_log: the log of the deliveries of a source, by class: 0 is what was taken, 1 is what its sender was refused, and 2 is
-- what anybody may have sent: it had no proof.
create table agent.source_delivery_log
( source text collate "C" not null references agent.source on delete cascade
, class int2 not null
, last_number int8 not null default 0
, dropped int8 not null default 0
, dropped_at timestamptz
, primary key (source, class)
) with (fillfactor = 50);

-- agent.source_delivery: a delivery that was answered. It has nothing of the header: that proves who the sender is.
create table agent.source_delivery
( source text collate "C" not null
, class int2 not null
, number int8 not null
, at timestamptz not null                  -- when the request began
, result text not null                     -- as the metric queued_webhooks_total has it
, code text                                -- of what was refused: why
, status int4 not null                     -- of the answer
, ms int8 not null
, address text                             -- of the connection
, request_id text
, event_id int8                            -- the first event of the delivery, or
, position int8                            -- where that is in the log
, events int4 not null default 0
, key text                                 -- of the first event
, size int8                                -- bytes of the body; null: it was not read
, body text                                -- the first KiB of what was refused, without what looks like a secret
, primary key (source, class, number)
, foreign key (source, class) references agent.source_delivery_log on delete cascade
);
create index source_delivery_at on agent.source_delivery (at);
