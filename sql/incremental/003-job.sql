-- What a typed job queue knows of an event, and what it keeps beside the events.

-- Functions that get other arguments, return something else, or are bound to the table as it was, have to go first. Who may execute them is remembered, and may
-- do so again at the end of the migration: see the script of the privileges.
create temporary table kept_grants on commit drop as
select distinct p.proname as function, a.grantee
from pg_catalog.pg_proc p
join pg_catalog.pg_namespace n on n.oid = p.pronamespace and n.nspname = 'agent'
cross join pg_catalog.aclexplode(p.proacl) a
where a.grantee not in (0, p.proowner) and a.privilege_type = 'EXECUTE';

drop function if exists agent.receipt(agent.event);
drop function if exists agent.event_state(agent.event, timestamptz);
drop function if exists agent.insert_event(jsonb, text, interval, timestamptz);
drop function if exists agent.insert_events(jsonb[], text[], interval[], timestamptz[], boolean);
drop function if exists agent.add_events(jsonb[], text[], interval[], timestamptz[], interval[]);
drop function if exists agent.take_events(text, int4, int4, interval, text, timestamptz);
drop function if exists agent.random_start(text, timestamptz, timestamptz);
drop function if exists agent.claim_events(text, int4, int4, interval, text);
drop function if exists agent.claim_event(int4, interval, text);
drop function if exists agent.oldest_vt(text, int4, timestamptz);
drop function if exists agent.move_to_history(int8[], text, text);
drop function if exists agent.delete_events(int8[], text[]);
drop function if exists agent.delete_event(int8, text);
drop function if exists agent.nack_event(int8, text, interval, text, boolean, boolean);
drop function if exists agent.release_events(int8[], text[]);
drop function if exists agent.get_event(int8);
drop function if exists agent.list_events(text, text, int4, timestamptz, int8);
drop function if exists agent.queue_stats(interval);
drop function if exists agent.history_filter(text, timestamptz, timestamptz, jsonb);
drop function if exists agent.list_history(text, text, timestamptz, timestamptz, jsonb, int8, int4, timestamptz, int8);
drop function if exists agent.requeue_events(text, text, timestamptz, timestamptz, jsonb, int8, int4, boolean, boolean);

alter table agent.event
  add type text collate "C"                 -- what kind of work it is; claims may ask for some kinds only
, add source text collate "C"               -- where it came from
, add priority int4 not null default 0      -- lower first
, add key text collate "C"                  -- the idempotency key it was enqueued with
, add max_attempts int4                     -- claims at most, whatever its queue's policy or a claim says
, add expires_at timestamptz                -- not to be claimed from here on
, add worker text collate "C"               -- who has, or had, the latest lease
, add past_attempts jsonb                   -- the attempts that ended without success: see agent.past_attempt()
, add occurrence jsonb                      -- the occurrence of a schedule that it is
;

alter table agent.event_hist
  add type text collate "C"
, add source text collate "C"
, add priority int4 not null default 0
, add key text collate "C"
, add max_attempts int4
, add expires_at timestamptz
, add worker text collate "C"
, add past_attempts jsonb
, add occurrence jsonb
, add result jsonb                          -- what the ack said
, add retryable boolean                     -- whether another attempt might have succeeded, by the last nack's account
;

-- The claim's path, a lane for each priority: one queue's events in order, those not yet claimable never touched. The predicate always
-- holds; it is there because only a search that names a queue implies it. Without it, a plan made while the table was nearly empty may
-- search for ids in this index, which is to walk through all of it, dead entries included.
create index event_lane on agent.event (queue, priority, vt, id) where queue is not null;
drop index agent.event_queue_vt_id;

-- The same for claims of some types only. Events without a type never get into it.
create index event_type_lane on agent.event (queue, type, priority, vt, id) where type is not null;

-- The sweep's path to what has its own end. Events on their last attempt get into the first as they are claimed.
create index event_exhausted on agent.event (vt) where attempts >= max_attempts;
create index event_expires_at on agent.event (expires_at) where expires_at is not null;

-- The same holds for history.
drop index agent.event_hist_outcome_ts;
drop index agent.event_hist_queue_outcome_ts;
create index event_hist_outcome_ts on agent.event_hist (outcome, event_ts desc, id desc) where outcome is not null;
create index event_hist_queue_outcome_ts on agent.event_hist (queue, outcome, event_ts desc, id desc) where queue is not null;

-- agent.queue: the policies of queues. A queue needs none; it is made by its first event.
create table agent.queue
( name text collate "C" primary key
, max_attempts int4
, invisible_for interval
, backoff_kind text                         -- constant, linear or exponential; null: a nacked event is claimable again at once
, backoff_base interval
, backoff_factor float8
, backoff_max interval
, backoff_jitter float8                     -- the share of the delay by which it varies either way
, paused boolean not null default false
, history_retention interval
, updated_at timestamptz not null default now()
, constraint queue_name check (octet_length(name) between 1 and 128 and name ~ '^[A-Za-z0-9._:-]+$')
, constraint queue_max_attempts check (max_attempts >= 1)
, constraint queue_invisible_for check (invisible_for > interval '0')
, constraint queue_backoff_kind check (backoff_kind in ('constant', 'linear', 'exponential'))
, constraint queue_backoff_base check (backoff_base >= interval '0' and (backoff_base is not null or backoff_kind is null))
, constraint queue_backoff_factor check (backoff_factor >= 1 and backoff_factor <= 1000)
, constraint queue_backoff_max check (backoff_max >= interval '0')
, constraint queue_backoff_jitter check (backoff_jitter between 0 and 1)
, constraint queue_history_retention check (history_retention > interval '0')
);

-- agent.idempotency: which event a key stands for, as long as it is remembered.
create table agent.idempotency
( queue text collate "C" not null
, key text collate "C" not null
, fingerprint text not null                 -- of everything the request said
, event_id int8 not null
, vt timestamptz not null                   -- as the first answer had it
, expires_at timestamptz not null           -- forgotten from here on
, primary key (queue, key)
);
create index idempotency_expires_at on agent.idempotency (expires_at);

-- agent.execution: how long the work took, by type and worker ('' where unnamed), in parts that a reader adds up. Each process of the
-- service has a part of its own, and so has each transaction of a SQL user: none waits for another's. What is over is folded
-- into the part ''. A process writes once a second at most: beside an old snapshot every version of a row stays, and has to
-- be walked over to reach the latest.
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

-- agent.process_metric: what each process of the service counts, while it lives. A process is an id, made anew at each start,
-- and a name for people.
create table agent.process_metric
( id text collate "C" not null
, process text not null
, category text collate "C" not null
, value text not null
, updated_at timestamptz not null
, primary key (id, category)
) with (fillfactor = 50);

-- agent.look: an event as a listing shows it, in its queue or in history.
create type agent.look as
( id int8, queue text, event_ts timestamptz, enqueued_at timestamptz, attempts int4, vt timestamptz, claimed timestamptz[]
, event jsonb, last_error text, requeued_from int8
, state text, outcome text, finished_at timestamptz, requeued_as int8
, type text, source text, priority int4, key text, max_attempts int4, expires_at timestamptz, worker text, error_count int4
, occurrence jsonb, retryable boolean, result jsonb, processing interval
);
