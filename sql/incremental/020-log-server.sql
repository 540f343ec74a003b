-- One row for each start of a server and place, so that two transactions cannot both have moved the log on: see agent_private.advance_log(). Rows without
-- a place are of servers before this version.
delete from agent.log_server where place is null;
alter table agent.log_server add primary key (started_at, place);
