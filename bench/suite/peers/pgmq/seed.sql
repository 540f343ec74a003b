select pgmq.create('bench');
select count(*) from pgmq.send_batch('bench', array_fill(jsonb_build_object('pad', repeat('x', 90)), array[10000]));
