-- Archived rather than deleted: queued keeps a history too.
select pgmq.send('bench', '{"pad": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}'::jsonb);
select msg_id as id from pgmq.read('bench', 600, 1) \gset
select pgmq.archive('bench', :id::int8);
