-- A log that is read up to a cursor: no event has a lease or an outcome of its own, so this is less work than the floor's.
insert into pgmb.events (topic, payload)
select 'bench' || :client_id, '{"pad": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}' from generate_series(1, 100);
select pgmb.poll_for_events();
select coalesce(max(next_cursor), '') as cursor from pgmb.read_next_events('bench' || :client_id, null, 100) \gset
select pgmb.set_group_cursor('bench' || :client_id, nullif(:cursor, '')::pgmb.event_id, true) where :cursor <> '';
