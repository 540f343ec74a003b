-- As one.sql, without NOTIFY.
select count(*) from agent.insert_events(array['{"pad": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}'::jsonb], _notify => false);
select e.id, agent.receipt(e) as receipt from agent.claim_events('default', 1, _order => 'fifo') e \gset
select agent.delete_event(:id, :receipt);
