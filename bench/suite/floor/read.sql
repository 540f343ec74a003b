-- A page of the log, and from its end back to its beginning.
select coalesce(position, 0) as after, published_at, topic, event from agent_service.read_log_page(:after, 1000, 4194304) \aset
