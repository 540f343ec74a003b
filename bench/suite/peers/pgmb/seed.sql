-- A group and a topic for each client, since a group has one reader at a time.
insert into pgmb.subscription_groups (id) select 'bench' || i from generate_series(0, 7) i;
insert into pgmb.subscriptions (group_id, conditions_sql) select 'bench' || i, 's.group_id = e.topic' from generate_series(0, 7) i;
insert into pgmb.events (topic, payload)
select 'bench' || i % 8, jsonb_build_object('pad', repeat('x', 90)) from generate_series(1, 10000) i;
