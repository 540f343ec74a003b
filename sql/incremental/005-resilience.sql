-- What keeps the promises under attack, overload and failover. Each section stands for itself.

-- Events.

-- Schedules.

-- History and queues.

-- Idempotency keys.

-- Failover.
