-- A hundred publications in one statement, as the service appends them to the log.
select count(*) from agent_service.append_log(array_fill('bench'::text, array[100]), array_fill('{"pad": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}'::jsonb, array[100]));
