-- The server: the work to do after another one has become the primary, or the database was copied.
--
-- A promoted standby begins a new timeline. Commits of the old primary that the standby had not received are lost, including ids
-- that were given out, which would be given out again. And the standby's clock may differ. A copy lacks the ids that the original has given out since.

-- Records that a process uses this server. _seen is the time that the clock of the process's last primary would show now, null if it had
-- none. On a new timeline, and where the clock of this server was set back by more than a second, events that were claimable by the highest time known
-- are made claimable now: otherwise they would be invisible until the clock catches up. Returns the timeline, whether it is new, the time, how far the
-- clock is behind _seen (negative: ahead), or behind the highest time known if this call has found that it was set back, and how many events were
-- made claimable.
create or replace function agent_service.record_server(_seen timestamptz default null)
returns table (timeline int8, is_new boolean, at timestamptz, behind interval, made_claimable int8)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
as $func$
#variable_conflict use_column
declare
  _now timestamptz = clock_timestamp();
  _highest timestamptz;
  _server agent.server;
  _timeline int8 = agent_private.current_timeline();
  _queue text;
  _lane int4;
  _n int8;
  _made_claimable int8 = 0;
  _queues text[] = '{}';
begin
  if agent_private.server_has_changed() then
    perform agent_private.advance_sequences(); -- before the clock is recorded, which says how far
  end if;

  update agent.server s -- the server did not show it before
  set system_identifier = i.system_identifier
  from agent_private.database_identity() i
  where s.system_identifier is null and i.system_identifier is not null and (s.database_oid, s.table_oid) = (i.database_oid, i.table_oid);

  update agent.server s set clock = greatest(s.clock, clock_timestamp()) -- the time when this session has the row
  where s.timeline = _timeline and s.clock < clock_timestamp() + interval '1 second';
  if found then
    return query select _timeline, false, _now, _seen - _now, 0::int8;
    return;
  end if;
  select s.* into strict _server from agent.server s for update;
  _now = clock_timestamp();
  if _server.timeline = _timeline and _server.clock < _now + interval '1 second' then -- another session has done it
    return query select _timeline, false, _now, _seen - _now, 0::int8;
    return;
  end if;
  _highest = greatest(_server.clock, (select max(e.enqueued_at) from (select l.enqueued_at from agent.event l order by l.id desc limit 1000) e));
  if _server.timeline = _timeline then
    _seen = _highest; -- which is all that was given out by; the clock of the process may go on while that of the server is stopped
  else
    _highest = greatest(_highest, _seen);
  end if;
  _now = clock_timestamp(); -- after those events, of which one may have been inserted just now

  if _highest > _now then
    for _queue, _lane in
      select w.name, l.priority
      from agent_private.waiting_queues() as w (name)
      cross join lateral agent_private.list_lanes(w.name) as l
    loop
      update agent.event e
      set vt = _now
      where e.ctid = any (array
      ( select o.ctid
        from agent.event o
        where o.queue = _queue and o.priority = _lane and o.vt > _now and o.vt <= _highest
        order by o.vt, o.id
        for update skip locked
      ));
      get diagnostics _n = row_count;
      if _n > 0 then
        _made_claimable = _made_claimable + _n;
        _queues = _queues || _queue;
      end if;
    end loop;
    perform agent_private.make_woken_due(_now, _highest);
    perform agent.notify_queues(_queues);
  end if;
  update agent.server s set timeline = _timeline, clock = _now;
  return query select _timeline, _server.timeline is distinct from _timeline, _now, _seen - _now, _made_claimable;
end
$func$;

-- The timeline of this server's WAL; 0 where the server does not show it. Fails in recovery.
create or replace function agent_private.current_timeline()
returns int8
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  return ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int8;
exception when insufficient_privilege or undefined_function or feature_not_supported then
  return 0;
end
$func$;

-- The identity of this database, which its copies do not have. Another cluster has another system identifier; on the same server a clone has another database_oid,
-- and a schema that was restored, even into the same database, another table_oid. A standby has the identity of its primary, and so has a server
-- restored from a base backup. system_identifier is null where the server does not show it: then a copy in another cluster is known by its OIDs alone.
create or replace function agent_private.database_identity(out system_identifier int8, out database_oid oid, out table_oid oid)
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  select d.oid, 'agent.server'::regclass::oid into database_oid, table_oid from pg_database d where d.datname = current_database();
  select c.system_identifier into system_identifier from pg_control_system() c;
exception when insufficient_privilege or undefined_function or feature_not_supported then
  system_identifier = null;
end
$func$;

-- Whether this database is a copy that nobody has adopted: its identity is another one than was recorded. Who acts by itself and on others, by
-- pushing, firing schedules and delivering subscriptions, asks in the transaction in which it acts, and leaves that: beside the original, it would be
-- done twice.
create or replace function agent_private.is_copy()
returns boolean
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
declare
  _now record;
begin
  select i.* into strict _now from agent_private.database_identity() i;
  return exists
  ( select from agent.server s
    where (s.database_oid, s.table_oid) <> (_now.database_oid, _now.table_oid) or s.system_identifier <> _now.system_identifier
  );
end
$func$;

-- The identity of a database in words.
create or replace function agent_private.identity_text(_system_identifier int8, _database_oid oid, _table_oid oid)
returns text
language sql immutable parallel safe
set search_path to pg_catalog, pg_temp
return format('system %s, database %s, table %s', coalesce(_system_identifier::text, 'unknown'), _database_oid, _table_oid);

-- Whether this database is a copy that nobody has adopted, the identity that was recorded, and the one it has.
create or replace function agent.get_identity()
returns table (is_copy boolean, recorded text, identity text)
language sql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
  select agent_private.is_copy(), agent_private.identity_text(s.system_identifier, s.database_oid, s.table_oid)
  , agent_private.identity_text(i.system_identifier, i.database_oid, i.table_oid)
  from agent.server s
  cross join agent_private.database_identity() i
$func$;

-- Makes this database, if it is a copy, one that acts by itself: it is pushed, schedules fire, and subscriptions are delivered from now on. Returns
-- whether it was one, the identity that was recorded before, and the one that is now.
create or replace function agent.adopt_database()
returns table (was_copy boolean, recorded text, identity text)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _before agent.server;
  _now record;
  _was_copy boolean;
begin
  if agent_private.server_has_changed() then
    perform agent_private.advance_sequences(); -- else the first call could give out ids of the original
  end if;
  select s.* into strict _before from agent.server s for update;
  select i.* into strict _now from agent_private.database_identity() i;
  _was_copy = agent_private.is_copy();
  recorded = agent_private.identity_text(_before.system_identifier, _before.database_oid, _before.table_oid);
  identity = agent_private.identity_text(_now.system_identifier, _now.database_oid, _now.table_oid);
  if _was_copy then
    update agent.server s set system_identifier = _now.system_identifier, database_oid = _now.database_oid, table_oid = _now.table_oid;
    perform agent_private.record_audit('database.adopt', 'database', jsonb_build_object('before', recorded, 'after', identity));
    perform pg_notify('agent_event', ''); -- no queue has this name: processes look at the server
  end if;
  return query select _was_copy, recorded, identity;
end
$func$;

-- A number that changes with each start of a server, and that a copy of this database has another one of. It says that something may have changed,
-- at less cost than the identity and the timeline, which tell the change. Inlined, like agent.receipt.
create or replace function agent_private.server_mark()
returns int8
language sql volatile
return hashtextextended(pg_relation_filepath('agent.server_mark'), (extract(epoch from pg_postmaster_start_time()) * 1000000)::int8);

-- Whether advance_sequences has to be called before ids are given out: server_mark has changed. Inlined; as an expression without a query, which in PL/pgSQL costs a tenth of one with a
-- query.
create or replace function agent_private.server_has_changed()
returns boolean
language sql volatile
return agent_private.server_mark() is distinct from pg_sequence_last_value('agent.server_mark');

-- Moves all sequences of the schema ahead, by more than can have been lost, if ids were given out so far on another timeline or under another
-- identity: by 2^20, and by 2^18 for each second since the server was recorded last. So many may have been given out that this database does not
-- know of, by the primary that it was a standby of, or by the original after it was dumped. A sequence whose end that would pass is at its end then: it gives
-- out nothing any more (2200H), and nothing twice. One that has given out nothing stays so, further ahead: it has to be known of a database that is to be a cell.
-- Sequences are not transactional: this takes effect at once, for everybody, even if the caller's transaction fails.
create or replace function agent_private.advance_sequences()
returns void
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _timeline int8 = agent_private.current_timeline();
  _identity int8 = (select hashtextextended(concat_ws('/', i.system_identifier, i.database_oid, i.table_oid), 0) from agent_private.database_identity() i);
  _distance int8;
  _sequence regclass;
  _latest int8;
  _end int8;
  _is_called boolean;
begin
  lock table agent.server_change in exclusive mode;
  if not agent_private.server_has_changed() then
    return; -- another session has done it
  end if;
  -- Where the timeline is not shown, each start may be that of a promoted standby.
  if _timeline = 0 or _timeline <> (select s.last_value from agent.server_timeline s)
    or _identity <> (select s.last_value from agent.server_identity s) and 0 <> (select s.last_value from agent.server_identity s)
  then
    select 1048576 + (greatest(extract(epoch from clock_timestamp() - s.clock), 0) * 262144)::int8 into strict _distance from agent.server s;
    for _sequence, _end in
      select c.oid, s.seqmax
      from pg_class c
      join pg_sequence s on s.seqrelid = c.oid
      where c.relkind = 'S' and c.relnamespace = 'agent'::regnamespace
      and c.relname not in ('server_timeline', 'server_identity', 'server_mark', 'log_position_seq') -- for the last one see advance_log
    loop
      execute format('select s.last_value, s.is_called from %s s', _sequence) into strict _latest, _is_called;
      perform setval(_sequence, least(_latest, _end - _distance) + _distance, _is_called or _latest > _end - _distance);
    end loop;
  end if;
  perform setval('agent.server_timeline', _timeline);
  perform setval('agent.server_identity', _identity);
  perform setval('agent.server_mark', agent_private.server_mark()); -- last: from here on, check_server lets all pass
end
$func$;

-- What check_server does, for those who draw ids before the statement that inserts what has them: its trigger comes too late for these.
create or replace function agent_private.check_sequences()
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  if agent_private.server_has_changed() then
    perform agent_private.advance_sequences();
  end if;
end
$func$;

-- Trigger before the statements that give out ids, whoever sends them: calls advance_sequences where server_mark has changed.
create or replace function agent_private.check_server()
returns trigger
language plpgsql
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  if agent_private.server_has_changed() then
    perform agent_private.advance_sequences();
  end if;
  return null;
end
$func$;

do $script$
declare
  _table text;
begin
  foreach _table in array array['event', 'schedule', 'subscription'] loop -- who inserts into agent.idempotency calls check_sequences before that
    execute format('create or replace trigger check_server before insert on agent.%I for each statement execute function agent_private.check_server()', _table);
  end loop;
  perform agent_private.advance_sequences();
  update agent.server s -- a database without an identity is new
  set system_identifier = i.system_identifier, database_oid = i.database_oid, table_oid = i.table_oid
  from agent_private.database_identity() i
  where s.database_oid is null;
  if agent_private.current_timeline() = 0 then
    raise notice 'this server does not show its timeline: ids move ahead with each of its starts';
  end if;
  if (select i.system_identifier is null from agent_private.database_identity() i) then
    raise notice 'this server does not show its system identifier: a copy on another server is known by the OIDs of the database and its tables alone';
  end if;
end
$script$;

-- The oldest version whose processes may run on this schema, beside those of its own version. A process that is older answers nothing any more: see
-- OldestBeside in sql/embed.go. Every later version keeps this function.
create or replace function agent_service.oldest_beside()
returns text
language sql immutable
security definer
set search_path to pg_catalog, pg_temp
as $func$
  select '1.0.0'::text
$func$;

-- Replicas: what each process has in memory of tables that change rarely.

-- The versions of what processes have in memory, by name, and the time. A version is another one after each change, and on each start of a server, and in
-- another database, also where processes reach that through a pooler and do not see it. It is never the one of another state, also after a failover. For
-- the service.
create or replace function agent_service.replica_versions()
returns table (name text, version int8, at timestamptz)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _mark int8 = agent_private.server_mark();
begin
  return query select v.name::text, hashtextextended(v.version::text, _mark), clock_timestamp() from agent_private.replica_version v;
end
$func$;

-- Gives what processes have in memory under a name another version, and has them read it again. Its row is locked until the transaction ends: who sees the
-- version sees the change, too.
create or replace function agent_private.change_replica_version(_name text)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  insert into agent_private.replica_version as v (name, version)
  values (_name, agent_private.next_version(0))
  on conflict on constraint replica_version_pkey do update set version = agent_private.next_version(v.version);
  perform pg_notify('agent_' || _name, '');
end
$func$;

-- Trigger after every statement, or every row, that changes what processes have in memory, whoever makes it. Its argument is the name of that. For
-- statements it is called when they have found no row, too.
create or replace function agent_private.change_replica()
returns trigger
language plpgsql
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  perform agent_private.change_replica_version(tg_argv[0]);
  return null;
end
$func$;
