begin;
insert into log (topic, event) select 'bench', jsonb_build_object('pad', repeat('x', 90)) from generate_series(1, 100000);
commit;
analyze log;
