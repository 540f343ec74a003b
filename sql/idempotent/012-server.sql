-- The server: what has to be done after another one has become the primary.
--
-- A promoted standby begins a new timeline. What the old primary had committed and the standby had not received is lost, including ids
-- that were given out, which would be given out again. And the standby's clock may differ.

-- Records that a process uses this server. _seen is the time that the clock of the process's last primary would show now, null if it had
-- none. On a new timeline whose clock is behind the highest time known, events that were claimable by the old clock are made claimable
-- now: otherwise they would be invisible until the clock catches up. Returns the timeline, whether it is new, the time, how far the
-- clock is behind _seen (negative: ahead) and how many events were made claimable.
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
  _made_claimable int8 = 0;
  _queues text[] = '{}';
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
  if not found then -- another session has done it
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
        _made_claimable = _made_claimable + _n;
        _queues = _queues || _queue;
      end if;
    end loop;
    perform agent.notify_queues(_queues);
  end if;
  update agent.server s set timeline = _timeline, clock = _now;
  return query select _timeline, true, _now, _seen - _now, _made_claimable;
end
$func$;

-- The timeline of this server's WAL. Fails in recovery.
create or replace function agent_private.current_timeline()
returns int8
language sql volatile
set search_path to pg_catalog, pg_temp
return ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int8;

-- Moves all sequences of the schema ahead, by more than can have been lost, if this server is on another timeline than the ids given out
-- so far. Sequences are not transactional: this takes effect at once, for everybody, even if the caller's transaction fails.
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
    return; -- another session has done it
  end if;
  for _sequence in
    select c.oid
    from pg_class c
    where c.relkind = 'S' and c.relnamespace = 'agent'::regnamespace
    and c.relname not in ('server_timeline', 'log_position_seq') -- for the latter see advance_log
  loop
    perform setval(_sequence, nextval(_sequence) + 1048576);
  end loop;
  perform setval('agent.server_timeline', agent_private.current_timeline()); -- last: from here on, check_timeline lets all pass
end
$func$;

-- Trigger before the statements that give out ids, whoever sends them: calls advance_sequences on a new timeline.
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
  create or replace trigger check_timeline before insert on agent.subscription for each statement execute function agent_private.check_timeline();
exception when insufficient_privilege or undefined_function or feature_not_supported then
  raise warning 'this server does not show its timeline: after an asynchronous failover ids may be given out twice (%)', sqlerrm;
end
$script$;
