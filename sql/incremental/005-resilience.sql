-- What keeps the promises under attack, overload and failover. Each section stands for itself.

-- Events.

-- Schedules.

-- History and queues.

-- agent.upkeep: what is seen to now and then, and when it was last done to its end. Whoever is at a task has its row locked.
create table agent.upkeep
( task text collate "C" primary key
, done_at timestamptz not null default now()
);
insert into agent.upkeep (task) values ('partitions'), ('retention'), ('queue_history'), ('keys'), ('executions');

alter table agent.queue
  add resumed_at timestamptz                -- when the latest pause ended: an event's age counts from there
;

-- Idempotency keys.

-- Failover.
