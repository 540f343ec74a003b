select count(*)
from agent_service.append_log(array_fill('bench'::text, array[100000]), array_fill(jsonb_build_object('pad', repeat('x', 90)), array[100000]));
