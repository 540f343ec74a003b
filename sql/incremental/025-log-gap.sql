-- The last position that this database knows of from before the log went on: who has read further has read events that are not in this log.
alter table agent.log_skip add last int8 not null;
