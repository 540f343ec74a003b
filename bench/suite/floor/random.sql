-- As one.sql, claimed by the function for SQL workers, from a random place.
select agent.insert_event('{"pad": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}');
select e.id, agent.receipt(e) as receipt from agent.claim_event() e \gset
select agent.delete_event(:id, :receipt);
