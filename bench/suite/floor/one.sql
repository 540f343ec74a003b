-- One event: inserted, claimed, acked, each a statement and a transaction of its own.
select agent.insert_event('{"pad": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}');
select e.id, agent.receipt(e) as receipt from agent.claim_events('default', 1, _order => 'fifo') e \gset
select agent.delete_event(:id, :receipt);
