-- Forwarding: what subscriptions, sources and schedules at home insert into a queue that is placed on other cells alone goes into a queue of the service, queued.forward.<cell>, from
-- where gateways bring it to that cell. Who inserts for them looks first whether any queue is placed on other cells alone, into an index that is empty without other cells. See
-- docs/decisions/027-forwarding.md.

-- The queue that events of a queue wait in until they are brought to the cell that it is placed on; null if they stay. Of several cells, _by says which.
create or replace function agent_private.forward_queue(_queue text, _by text)
returns text
language plpgsql stable
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set enable_seqscan to off
set jit to off
as $func$
declare
  _cells int2[] = (select p.cells from agent.placement p where p.queue = _queue and p.removed_at is null and 0 <> all (p.cells));
begin
  return 'queued.forward.' || _cells[1 + (hashtextextended(_by, 0) & 2147483647) % cardinality(_cells)];
end
$func$;

-- An event as it is while it waits to be brought to the cell of its queue; the event as it is if that is placed here. What a queue of the service must not
-- take for its own is kept in its publication, as "forward".
create or replace function agent_private.forwarded(_event agent.event)
returns agent.event
language plpgsql stable
set search_path to pg_catalog, pg_temp
as $func$
declare
  _queue text = agent_private.forward_queue(_event.queue, coalesce(_event.key, _event.id::text));
  _vt timestamptz = coalesce(_event.turn_vt, _event.vt); -- its turn comes where it is brought
begin
  if _queue is not null then
    _event.publication = coalesce(_event.publication, '{}') || jsonb_build_object('forward', jsonb_strip_nulls(jsonb_build_object
    ( 'queue', _event.queue, 'vt', case when _vt > now() then _vt at time zone 'UTC' end, 'max_attempts', _event.max_attempts
    )));
    _event.queue = _queue;
    _event.vt = now();
    _event.due_at = null;
    _event.max_attempts = 2147483647;
    _event.flow = null;
    _event.flow_version = null;
  end if;
  return _event;
end
$func$;

-- An event as it was before it was to be brought to another cell.
create or replace function agent_private.unforwarded(_event agent.event)
returns agent.event
language plpgsql stable
set search_path to pg_catalog, pg_temp
as $func$
declare
  _forward jsonb = _event.publication -> 'forward';
begin
  _event.queue = _forward ->> 'queue';
  _event.vt = greatest((_forward ->> 'vt')::timestamp at time zone 'UTC', now()); -- not before what claims may have gone past
  _event.due_at = case when _event.vt > now() then _event.vt end;
  _event.max_attempts = (_forward ->> 'max_attempts')::int4;
  _event.publication = nullif(_event.publication - 'forward', '{}');
  return _event;
end
$func$;

-- Has those of some events that were just inserted, and that nobody has claimed, wait to be brought to the cells of their queues. A publication is known there by its position and by
-- who has read it: _reader, a replay for instance, or else its subscription. So it is there once, also when a failover has home deliver it again.
create or replace function agent_private.forward_events(_ids int8[], _reader int8 default null)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set enable_seqscan to off
set enable_bitmapscan to off
set jit to off
as $func$
declare
  _queues text[];
begin
  with target as materialized
  ( select f.*
    from agent.event e
    cross join lateral agent_private.forwarded(e) as f
    where e.id = any (_ids) and e.attempts = 0 and f.queue <> e.queue
  )
  , moved as
  ( update agent.event e
    set queue = t.queue, vt = t.vt, due_at = t.due_at, max_attempts = t.max_attempts
    , publication = case
        when t.publication ? 'position' then jsonb_set(t.publication, '{forward,reader}', to_jsonb(coalesce(_reader
        , (select s.id from agent.subscription s where s.name = t.publication ->> 'subscription'))))
        else t.publication
      end
    from target t
    where e.id = t.id
    returning e.queue
  )
  select array_agg(distinct m.queue) into _queues from moved m;
  if _queues is not null then
    perform agent.notify_queues(_queues);
  end if;
end
$func$;

-- Has the events that wait to be brought to a cell, and were not claimed yet, go where their queue is placed now. Those that were claimed stay: the cell may have them.
create or replace function agent_private.forward_again(_queue text)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set enable_seqscan to off
set enable_bitmapscan to off
set jit to off
as $func$
declare
  _queues text[];
begin
  with waiting as materialized
  ( select e
    from agent.event e
    where e.queue >= 'queued.forward.' and e.queue < 'queued.forward/' and e.attempts = 0 and e.publication #>> '{forward,queue}' = _queue
    for update skip locked
  )
  , target as materialized
  ( select f.*, (w.e).publication #> '{forward,reader}' as reader
    from waiting w
    cross join lateral agent_private.unforwarded(w.e) as u
    cross join lateral agent_private.forwarded(u) as f
    where f.queue <> (w.e).queue
  )
  , moved as
  ( update agent.event e
    set queue = t.queue, vt = t.vt, due_at = t.due_at, max_attempts = t.max_attempts
    , publication = case when t.publication ? 'forward' and t.reader is not null then jsonb_set(t.publication, '{forward,reader}', t.reader) else t.publication end
    from target t
    where e.id = t.id
    returning e.queue
  )
  select array_agg(distinct m.queue) into _queues from moved m;
  if _queues is not null then
    perform agent.notify_queues(_queues);
  end if;
end
$func$;

-- Inserts events that home has had wait for this cell, each as the claim there has returned it, and with raw, the body that it came in as, as base64. What became of
-- each, by their ids at home: inserted; known, if it was inserted before, with the id that it got; or refused, with the reason. An event is known for _retention: a publication by its reader and
-- position, an occurrence by its schedule and times, anything else by its id at home. A gateway repeats the call until it
-- has seen the answer. For the service.
create or replace function agent_service.insert_forwarded_events(_events jsonb, _retention interval default interval '30 days')
returns table (forwarded int8, id int8, result text, reason text)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
as $func$
#variable_conflict use_column
declare
  _event jsonb;
  _forward jsonb;
  _queue text;
  _key text;
  _vt timestamptz;
  _queues text[] = '{}';
begin
  if jsonb_typeof(_events) is distinct from 'array' or jsonb_array_length(_events) > 1000 then
    perform agent_private.raise_invalid('events', 'must be at most 1000');
  end if;
  perform agent_private.check_sequences();
  -- In one order, so that two calls do not wait for each other.
  for _event in select e.value from jsonb_array_elements(_events) as e order by (e.value ->> 'id')::int8 loop
    forwarded = (_event ->> 'id')::int8;
    id = null;
    reason = null;
    begin
      _forward = _event #> '{publication,forward}';
      _queue = _forward ->> 'queue';
      _key = e'queued.forward\x1f' || case
        when _forward ? 'reader' then concat_ws('/', 'publication', _forward ->> 'reader', _event #>> '{publication,position}')
        when _event -> 'occurrence' ->> 'scheduled_for' is not null
          then concat_ws('/', 'occurrence', _event #>> '{occurrence,schedule_id}', _event #>> '{occurrence,nominal_at}', _event #>> '{occurrence,scheduled_for}')
        else forwarded::text
      end;
      perform agent_private.check_queue_name(agent_private.unreserved_queue(_queue));
      _vt = (_forward ->> 'vt')::timestamp at time zone 'UTC';
      insert into agent.idempotency as i (queue, key, fingerprint, event_id, vt, expires_at)
      values (_queue, _key, '', nextval('agent.event_id_seq'), coalesce(_vt, now()), agent_private.add_utc(clock_timestamp(), _retention))
      on conflict (queue, key) do nothing
      returning i.event_id into id;
      if id is null then
        select i.event_id into strict id from agent.idempotency i where i.queue = _queue and i.key = _key;
        result = 'known';
      else
        insert into agent.event overriding system value
        select n.*
        from agent_private.new_event
        ( id, now(), _event -> 'event', (_event ->> 'event_ts')::timestamptz, _queue
        , _delay => case when _vt is null then (select q.delay from agent.queue q where q.name = _queue) end
        , _vt => _vt, _type => _event ->> 'type', _source => _event ->> 'source', _priority => (_event ->> 'priority')::int4, _key => _event ->> 'key'
        , _max_attempts => (_forward ->> 'max_attempts')::int4, _expires_at => (_event ->> 'expires_at')::timestamptz
        , _occurrence => _event -> 'occurrence', _meta => _event -> 'meta', _publication => nullif((_event -> 'publication') - 'forward', '{}')
        , _group => coalesce(_event ->> 'group', (select agent_private.default_group(_event -> 'event', q.group_from, q.flow_fair) from agent.queue q where q.name = _queue))
        ) as n;
        if (_event #>> '{raw,kept_until}')::timestamptz > clock_timestamp() then
          perform agent.keep_raw_body(id, decode(_event #>> '{raw,body}', 'base64'), _event #>> '{raw,media_type}', least((_event #>> '{raw,kept_until}')::timestamptz - clock_timestamp(), interval '3650 days'));
        end if;
        _queues = _queues || _queue;
        result = 'inserted';
      end if;
    exception when sqlstate 'QD003' or integrity_constraint_violation or data_exception or program_limit_exceeded or no_data_found then
      id = null;
      result = 'refused';
      reason = sqlerrm;
    end;
    return next;
  end loop;
  if _queues <> '{}' then
    perform agent.notify_queues(_queues);
  end if;
end
$func$;
