-- A thousand events, each of which one subscription wants, and the poll that finds it.
insert into pgmb.events (topic, payload)
select 'bench', jsonb_build_object('customer', 'c' || 1 + (random() * 9999)::int, 'pad', repeat('x', 90)) from generate_series(1, 1000);
select pgmb.poll_for_events();
