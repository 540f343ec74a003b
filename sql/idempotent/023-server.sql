-- The server: what has to be done when another one became the primary.
--
-- A standby that is promoted begins a new timeline. What the old primary had committed and the standby had not received by then is lost, ids that
-- were given out included: without more they would be given out again. And its clock may be another.

-- The timeline of this server's WAL. Out of recovery only.
create or replace function agent_private.current_timeline()
returns int8
language sql volatile
set search_path to pg_catalog, pg_temp
return ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int8;

-- Moves all sequences of the schema ahead, by more than what can have been lost, when this server has another timeline than the one that ids were
-- given out on so far. Sequences are in no transaction: what is done here holds at once, for everybody, whatever becomes of the caller's. Private to
-- the functions of this schema.
create or replace function agent_private.advance_sequences()
returns void
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _sequence regclass;
begin
  lock table agent.server_change in exclusive mode;
  if agent_private.current_timeline() = (select s.last_value from agent.server_timeline s) then
    return; -- somebody else was faster
  end if;
  for _sequence in
    select c.oid
    from pg_class c
    where c.relkind = 'S' and c.relnamespace = 'agent'::regnamespace and c.oid <> 'agent.server_timeline'::regclass
  loop
    perform setval(_sequence, nextval(_sequence) + 1048576);
  end loop;
  perform setval('agent.server_timeline', agent_private.current_timeline()); -- last: from here on nobody else looks
end
$func$;

-- Runs before the statements that give out ids, whoever sends them.
create or replace function agent_private.check_timeline()
returns trigger
language plpgsql
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  if ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int8 <> (select s.last_value from agent.server_timeline s) then
    perform agent_private.advance_sequences();
  end if;
  return null;
end
$func$;

do $script$
begin
  perform agent_private.current_timeline();
  create or replace trigger check_timeline before insert on agent.event for each statement execute function agent_private.check_timeline();
  create or replace trigger check_timeline before insert on agent.idempotency for each statement execute function agent_private.check_timeline();
  create or replace trigger check_timeline before insert on agent.schedule for each statement execute function agent_private.check_timeline();
exception when insufficient_privilege or undefined_function or feature_not_supported then
  raise warning 'this server does not tell its timeline: after an asynchronous failover ids may be given out twice (%)', sqlerrm;
end
$script$;

-- Notes that a process has begun to use this server, or still does. _seen is what the time should be by the clock of the primary that the process knew last,
-- null when it knew none. On a new timeline whose clock is behind the highest time known, what had become claimable by the old clock is made claimable now:
-- else it would be out of sight until the clock has caught up. Returns the timeline, whether it was new, the time, how far its clock is behind _seen
-- (negative: ahead of it) and how many events were made claimable.
create or replace function agent.record_server(_seen timestamptz default null)
returns table (timeline int8, is_new boolean, at timestamptz, behind interval, pulled int8)
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
  _timeline int8 = agent_private.current_timeline();
  _queue text;
  _lane int4;
  _n int8;
  _pulled int8 = 0;
  _touched text[] = '{}';
begin
  if _timeline <> (select s.last_value from agent.server_timeline s) then
    perform agent_private.advance_sequences();
  end if;

  update agent.server s set clock = greatest(s.clock, _now) where s.timeline = _timeline;
  if found then
    return query select _timeline, false, _now, _seen - _now, 0::int8;
    return;
  end if;
  select greatest(s.clock, _seen, (select max(e.enqueued_at) from (select l.enqueued_at from agent.event l order by l.id desc limit 1000) e))
  into _highest
  from agent.server s
  where s.timeline is distinct from _timeline
  for update;
  if not found then -- somebody else was faster
    return query select _timeline, false, _now, _seen - _now, 0::int8;
    return;
  end if;

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
        _pulled = _pulled + _n;
        _touched = _touched || _queue;
      end if;
    end loop;
    perform agent.notify_queues(_touched);
  end if;
  update agent.server s set timeline = _timeline, clock = _now;
  return query select _timeline, true, _now, _seen - _now, _pulled;
end
$func$;

-- To be called before an answer confirms what an earlier transaction did, and this one did not do again. Where commits wait for a standby, that
-- transaction may have given up waiting: the caller's own commit, which comes after it, then waits for the standby, too. Private to the functions of
-- this schema.
create or replace function agent_private.confirm_durably()
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  if current_setting('synchronous_standby_names') <> '' then
    perform pg_logical_emit_message(true, 'queued', '');
  end if;
end
$func$;
