-- Published events have to be handed to the group by polling before they can be read: ten chunks of 10,000.
begin;
insert into pgmb.events (topic, payload) select 'bench0', jsonb_build_object('pad', repeat('x', 90)) from generate_series(1, 90000) i;
commit;
begin; select pgmb.poll_for_events(); commit;
begin; select pgmb.poll_for_events(); commit;
begin; select pgmb.poll_for_events(); commit;
begin; select pgmb.poll_for_events(); commit;
begin; select pgmb.poll_for_events(); commit;
begin; select pgmb.poll_for_events(); commit;
begin; select pgmb.poll_for_events(); commit;
begin; select pgmb.poll_for_events(); commit;
begin; select pgmb.poll_for_events(); commit;
begin; select pgmb.poll_for_events(); commit;
analyze pgmb.events;
analyze pgmb.subscription_events;
