select count(*)
from pgmq.send_batch('bench', array_fill('{"pad": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}'::jsonb, array[100]));
select array_agg(msg_id) as ids from pgmq.read('bench', 600, 100) \gset
select count(*) from pgmq.archive('bench', :ids::int8[]);
