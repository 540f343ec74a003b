-- A backlog, so that no claim finds nothing; measured with a payload of 100 bytes.
select count(*)
from agent.insert_events(array_fill(jsonb_build_object('pad', repeat('x', 90)), array[10000]));
