-- Queues: their policies, the idempotency keys of their events, and how long work takes.

create table agent.queue
( name text collate "C" primary key
, max_attempts int4
, invisible_for interval
, backoff_kind text
, backoff_base interval
, backoff_factor float8
, backoff_max interval
, backoff_jitter float8
, paused boolean not null default false
, history_retention interval
, updated_at timestamptz not null default now()
, resumed_at timestamptz
, version int8 not null default 1 + (pg_catalog.random() * 2097151)::int8
, dead_letter_queue text collate "C"
, delay interval
, wait interval
, group_from text
, flow_concurrency int4
, flow_total int4
, flow_order boolean not null default false
, flow_on_failed text
, flow_rate_limit int4
, flow_rate_period interval
, flow_rate_burst int4
, flow_fair boolean not null default false
, flow_paced boolean not null default false
, flow_version int8
, constraint queue_name check (octet_length(name) between 1 and 128 and name ~ '^[A-Za-z0-9._:-]+$')
, constraint queue_max_attempts check (max_attempts >= 1)
, constraint queue_invisible_for check (invisible_for > interval '0')
, constraint queue_backoff_kind check (backoff_kind in ('constant', 'linear', 'exponential'))
, constraint queue_backoff_base check (backoff_base >= interval '0' and (backoff_base is not null or backoff_kind is null))
, constraint queue_backoff_factor check (backoff_factor >= 1 and backoff_factor <= 1000)
, constraint queue_backoff_max check (backoff_max >= interval '0')
, constraint queue_backoff_jitter check (backoff_jitter between 0 and 1)
, constraint queue_history_retention check (history_retention > interval '0')
, constraint queue_dead_letter_queue check
  ( octet_length(dead_letter_queue) between 1 and 128 and dead_letter_queue ~ '^[A-Za-z0-9._:-]+$'
  )
, constraint queue_delay check (delay >= interval '0')
, constraint queue_wait check (wait >= interval '0')
, constraint queue_flow_concurrency check (flow_concurrency between 1 and 10000)
, constraint queue_flow_total check (flow_total between 1 and 10000)
, constraint queue_flow_rate check
  ( num_nonnulls(flow_rate_limit, flow_rate_period, flow_rate_burst) in (0, 3)
    and flow_rate_limit > 0 and flow_rate_period / flow_rate_limit >= interval '1 us' and flow_rate_burst between 1 and 10000
  )
, constraint queue_flow_on_failed check (flow_on_failed is null or flow_order and flow_on_failed in ('continue', 'block'))
);
comment on table agent.queue is 'the policies of queues; a queue needs none, it is made by its first event';
comment on column agent.queue.max_attempts is 'claims of an event at most';
comment on column agent.queue.invisible_for is 'the lease of claims that do not say';
comment on column agent.queue.backoff_kind is 'constant, linear or exponential; null: a nacked event can be claimed again at once';
comment on column agent.queue.backoff_base is 'the delay after the first attempt';
comment on column agent.queue.backoff_factor is 'of exponential backoff: each delay is so many times the one before';
comment on column agent.queue.backoff_max is 'the delay at most; null: no limit';
comment on column agent.queue.backoff_jitter is 'the share of the delay by which it varies either way';
comment on column agent.queue.paused is 'nothing of it is handed out';
comment on column agent.queue.history_retention is 'how long history keeps its events; null: as long as that of other queues';
comment on column agent.queue.resumed_at is 'when the latest pause ended: the age of an event counts from there';
comment on column agent.queue.version is
  'of the policy, see agent_private.set_queue_version(); it begins at random, so that a queue that is made anew has '
  'another one';
comment on column agent.queue.dead_letter_queue is 'where its events go that end as failed or expired; null: into history alone';
comment on column agent.queue.delay is 'of inserts that say neither a delay nor a vt; null: none';
comment on column agent.queue.wait is 'of claims that do not say; null: none';
comment on column agent.queue.group_from is
  'where the payload has the group of an event that comes without one, a JSON pointer; null: nowhere';
comment on column agent.queue.flow_concurrency is 'leases of a group at once, at most; null: any number';
comment on column agent.queue.flow_total is 'leases of the queue at once, at most; null: any number';
comment on column agent.queue.flow_order is 'of a group, only the first unfinished event can be claimed';
comment on column agent.queue.flow_on_failed is
  'with flow_order: whether a group goes on behind an event that failed, continue, or stops, block; null: continue';
comment on column agent.queue.flow_rate_limit is 'claims of a group in flow_rate_period, at most; null: any number';
comment on column agent.queue.flow_rate_burst is 'so many of them at once, at most';
comment on column agent.queue.flow_fair is 'groups take turns';
comment on column agent.queue.flow_paced is 'claims are recorded, as groups take turns, or the policy or a group has a rate';
comment on column agent.queue.flow_version is 'another one after each change of the limits of groups; null: events of groups need no turn';

-- Whose dead letters a queue takes; and whether there are any at all, which an empty index says at once.
create index queue_dead_letter on agent.queue (dead_letter_queue, name) where dead_letter_queue is not null;
-- The same for delays, and for limits.
create index queue_delays on agent.queue (name) where delay is not null;
create index queue_flow on agent.queue (name) where flow_version is not null or flow_total is not null;

create table agent_private.dead_letter_order
( changes int8 not null
);
comment on table agent_private.dead_letter_order is
  'one row, which whoever gives a queue a dead-letter queue changes, so that of two who do so at the same time the second'
  ' sees what the first has done';
insert into agent_private.dead_letter_order (changes) values (0);

create table agent.idempotency
( queue text collate "C" not null
, key text collate "C" not null
, fingerprint text not null
, event_id int8 not null
, vt timestamptz not null
, expires_at timestamptz not null
, key_until text
, primary key (queue, key)
);
comment on table agent.idempotency is 'which event an idempotency key stands for, as long as it is remembered';
comment on column agent.idempotency.fingerprint is 'of everything that the request said';
comment on column agent.idempotency.vt is 'of the event, as the first answer had it';
comment on column agent.idempotency.expires_at is 'the key is forgotten from here on';
comment on column agent.idempotency.key_until is
  'claimed or finished: it stands until its event is, see agent_private.key_stands; null: until expires_at';
create index idempotency_expires_at on agent.idempotency (expires_at);

-- Each process of the service has a part of its own, and so has each transaction of a SQL user: none waits for another's. What is over is
-- folded into the part ''. A process writes once a second at most: beside an old snapshot every version of a row stays, and has to be
-- walked over to reach the latest.
create table agent.execution
( type text collate "C" not null
, worker text collate "C" not null
, part text collate "C" not null
, cycles int8 not null
, total interval not null
, fastest interval not null
, longest interval not null
, latest interval not null
, latest_at timestamptz not null
, primary key (type, worker, part)
) with (fillfactor = 50);
comment on table agent.execution is 'how long the work took, by type and worker (empty where unnamed), in parts that a reader adds up';
comment on column agent.execution.part is 'the process or the transaction that has counted; empty: those that are over';
comment on column agent.execution.cycles is 'attempts that ended';
comment on column agent.execution.latest is 'how long the latest of them took';
