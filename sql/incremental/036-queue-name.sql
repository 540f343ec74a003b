-- Filters of queues by a part of their names.

-- Functions that take something more have to go first.
drop function if exists agent_private.queue_names(text, int4, text[]);
