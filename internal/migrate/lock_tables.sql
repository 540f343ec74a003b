-- Locks all tables of the schema before the first script. A script that locks one table after another could deadlock with a transaction of the
-- service. When a lock is not granted within 100 ms, all are released and tried again, for lock_timeout at most: the migration never holds a lock
-- that a transaction it waits for may want. agent.event comes first, as most transactions begin there. agent.version and agent.migration stay
-- readable for the version gates of other processes.
do $$
declare
  _tables text;
  _timeout text = current_setting('lock_timeout');
  _until timestamptz = clock_timestamp() + _timeout::interval;
begin
  select string_agg('only ' || c.oid::regclass, ', ' order by c.relname <> 'event', c.relname)
  into _tables
  from pg_class c
  where c.relnamespace in (to_regnamespace('agent'), to_regnamespace('agent_private')) and c.relkind in ('r', 'p') and not c.relispartition
  and c.relname not in ('version', 'migration');
  loop
    exit when _tables is null;
    begin
      set local lock_timeout to '100ms';
      execute 'lock table ' || _tables;
      exit;
    exception when lock_not_available or deadlock_detected then -- which has released the locks
      if clock_timestamp() > _until then
        raise;
      end if;
      perform pg_sleep(0.05 + 0.1 * random());
    end;
  end loop;
  perform set_config('lock_timeout', _timeout, true);
end
$$
