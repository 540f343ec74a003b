-- 10,000 subscriptions to one value each, in the form that its documentation recommends: one condition, and parameters in an index.
insert into pgmb.subscription_groups (id) values ('match');
insert into pgmb.subscriptions (group_id, conditions_sql, params)
select 'match', 's.params @> jsonb_build_object(''customer'', e.payload->>''customer'')', jsonb_build_object('customer', 'c' || i)
from generate_series(1, 10000) i;
delete from pgmb.subscriptions where group_id <> 'match';
analyze pgmb.subscriptions;
delete from pgmb.unread_events;
