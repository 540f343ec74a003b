-- A hundred events in three statements, each a transaction of its own.
select count(*)
from agent.insert_events(array_fill('{"pad": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}'::jsonb, array[100]));
select array_agg(e.id) as ids, array_agg(agent.receipt(e)) as receipts from agent.claim_events('default', 100, _order => 'fifo') e \gset
select count(*) from agent_service.ack_events(:ids, :receipts);
