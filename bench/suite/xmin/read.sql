-- A page, and from the end back to the beginning. All of the log is of one transaction.
select coalesce("offset", 0) as after, published_at, topic, event
from (values (1)) v
left join
( select * from log
  where (transaction_id, "offset") > ((select min(transaction_id) from log), :after) and transaction_id < pg_snapshot_xmin(pg_current_snapshot())
  order by transaction_id, "offset"
  limit 1000
) l on true \aset
