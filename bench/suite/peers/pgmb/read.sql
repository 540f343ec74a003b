-- A page, and from the end back to the beginning. The polling that has to come before is not part of it.
select coalesce(next_cursor, '0') as after, id, topic, payload
from (values (1)) v left join pgmb.read_next_events('bench0', nullif(:after::text, '0')::pgmb.event_id, 1000) on true \aset
