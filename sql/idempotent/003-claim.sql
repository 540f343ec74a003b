-- Claiming events: attempts + 1, now appended to claimed, vt moved to the end of the lease.
--
-- A claim's plan must not depend on statistics, which a new or fast-changing table lacks. So these functions disable the plans that do
-- not use the index in its order, lock the rows in that order, and update them by their place (ctid).
--
-- A lane is the range of an index that has the events of one queue and priority, or of one queue, type and priority. Claims go from lane
-- to lane, so that none has to pass over the events of another.

-- Claims events for the service and for claim_events. Null _max_attempts is 3, unless the event or its queue's policy has its own, which
-- take precedence in any case. Null _invisible_for is the policy's, or 10 minutes. _types null or empty stands for all types. The n-th
-- event claimed goes to the n-th of _workers.
--
-- _lanes are the only lanes to scan, in ascending order of priority (with _types each lane has one type): the caller knows them, and
-- this call need not look for them. _watermarks are the lanes' watermarks: events with an earlier vt are not seen. While a session holds
-- an old snapshot, the index entries of events claimed since remain, and a scan that begins before them has to pass over them all.
--
-- Of the events after the first _max_bytes of JSON as text (null: no limit) event, meta, publication and occurrence are null: the caller releases
-- them.
--
-- A claim that comes up short in a queue with limits looks once for more, see agent_private.look_for_more; _is_again says that it has. _is_noted says that the caller records the claims of a queue
-- with rates, or where groups take turns: see agent_private.note_claims.
--
-- Of a queue with limits, a claim that meets an admitted event whose attempts are used up, or that has expired, has it end as a sweep
-- does: so the next one of its group has the turn. _sweep_max_attempts is the limit of the caller's sweeps: what a claim by a lower
-- _max_attempts leaves alone, others may claim. Without it, only what has a limit of its own, or of its queue, or has expired, ends.
--
-- Of a queue with limits, nothing of a group is claimed that a wake holds: what somebody has admitted who did not see the hold yet, or has locked meanwhile, still has the version of the limits until somebody writes the
-- hold to the group. That is asked in the statement that claims, so that no hold comes between.
--
-- Without _lanes, the first event of the queue is looked for, and the entries of all events claimed before are passed over. Where that takes more than 250 µs, what was found goes into agent_private.lane_watermark for
-- claims of the next seconds: all begin with that lane, unless there is one before it, and those at random with that vt. These look below if they come up short. An event that appears below is drawn
-- after the next look, a second later, or twenty times as long as the look took.
--
-- A statement cannot update an event that it has found and locked if others have committed a new version of the row since it began, as
-- they do who claim and release it. So one that returns nothing is run again, twice at most, if its transaction has an id: it gets one
-- with its first lock.
--
-- The time of a claim is that of the statement that has found it, not that of the call: the event whose end let it be claimed may have ended since the call began, and claimed is not before finished_at of that.
--
-- Returns the columns of agent.event after the claim, claim_token, which is the random part of the receipt, prior_vt, the vt before
-- the claim, and slot. Of a queue with limits no more is claimed than they allow, see agent_private.begin_limited_claim. It does not return the row type, because a caller would take each column out of it separately.
--
-- _hashes are those of tokens that the caller has made, see agent_private.token_hash, one behind the other: a hash takes PostgreSQL half a microsecond, and a random token more. slot
-- is the place among them of an event's hash, and claim_token is null then. Where slot is null, the token was made here: beyond these hashes, and after the first statement that
-- claimed something, whose places may have gaps.
create or replace function agent_service.claim_from_watermarks
( _queue text
, _limit int4
, _max_attempts int4
, _invisible_for interval
, _order text
, _types text[] default null
, _exclude_ids int8[] default null
, _workers text[] default null
, _lanes int4[] default null
, _lane_types text[] default null
, _watermarks timestamptz[] default null
, _max_bytes int8 default null
, _hashes bytea default null
, _is_again boolean default false
, _is_noted boolean default false
, _sweep_max_attempts int4 default null
)
returns table
( id int8, event_ts timestamptz, attempts int4, vt timestamptz, claimed timestamptz[], event jsonb, queue text, enqueued_at timestamptz
, nacked_at timestamptz, last_error text, requeued_from int8
, type text, source text, priority int4, key text, max_attempts int4, expires_at timestamptz, worker text, past_attempts jsonb, occurrence jsonb
, meta jsonb, publication jsonb, claim_token text, text_size int4, dead_letter_of int8, prior_vt timestamptz, slot int4, group_key text
)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
set enable_sort to off
set enable_hashjoin to off
set enable_mergejoin to off
as $func$
#variable_conflict use_column
declare
  _now timestamptz = clock_timestamp();
  _paused boolean; -- by the queue's policy
  _flow_version int8; -- null: events of groups need no turn
  _total int4;
  _is_paced boolean;
  _is_fair boolean;
  _looked boolean = false; -- for more
  _noted int8; -- what was admitted as claims were recorded
  _policy_max_attempts int4;
  _policy_invisible_for interval;
  _ends_at int4; -- the number of attempts with which an event ends that has no limit of its own, nor by the policy
  _lane int4;
  _is_lane_known boolean = true; -- the first one is
  _after int8 = -2147483649; -- less than any lane
  _nth int4 = 0;
  _bottom timestamptz = '-infinity'; -- nothing below it was to be seen when this call began
  _mark timestamptz; -- nothing below it was to be seen a short time ago
  _is_due boolean; -- another look for the first event
  _is_looking boolean = false;
  _took interval;
  _low_vt timestamptz;
  _low_id int8;
  _high_vt timestamptz;
  _slot int4 = 0;
  _slots int4 = coalesce(octet_length(_hashes), 0) / 8; -- places of hashes that may be used
  _count int4;
  _retries int4 = 2;
  _claimed_lanes int4[] = _lanes;
  _keys text[] = '{}'; -- of the groups of what was claimed, with rates
begin
  if coalesce(_limit, 0) < 1 then
    perform agent_private.raise_invalid('limit', 'must be at least 1');
  elsif _max_attempts < 1 then
    perform agent_private.raise_invalid('max_attempts', 'must be at least 1');
  elsif not coalesce(_invisible_for > interval '0', true) then
    perform agent_private.raise_invalid('invisible_for', 'must be greater than zero');
  elsif coalesce(_order, '') not in ('fifo', 'random') then
    perform agent_private.raise_invalid('order', 'must be fifo or random');
  end if;
  if _lanes is null and coalesce(cardinality(_types), 0) = 0 then -- the first lane and the policy in one statement, which is cheaper than two
    loop
      _now = clock_timestamp();
      select q.paused, q.max_attempts, q.invisible_for, q.flow_version, q.flow_total, q.flow_paced, q.flow_fair, coalesce(l.priority, w.priority), coalesce(l.vt, '-infinity')
      , case when l.priority is null and _order = 'random' then w.vt end, coalesce(_now > w.look_at, false)
      into _paused, _policy_max_attempts, _policy_invisible_for, _flow_version, _total, _is_paced, _is_fair, _lane, _bottom
      , _mark, _is_due
      from (values (_queue)) as a (queue)
      left join agent.queue q on q.name = a.queue
      left join agent_private.lane_watermark w on w.queue = a.queue and _now between w.seen_at and w.until and not _is_looking
      left join lateral
      ( select e.priority, e.vt
        from agent.event e
        where e.queue = a.queue and e.priority < coalesce(w.priority::int8, 2147483648)
        order by e.priority, e.vt, e.id
        limit 1
      ) as l on true;
      exit when not _is_due;
      _is_looking = agent_private.may_note_lane(_queue); -- others go on by the row meanwhile
      exit when not _is_looking;
    end loop;
    _took = clock_timestamp() - _now;
    if _took > interval '250 us' and _bottom between '0001-01-01 00:00+00' and _now and _flow_version is null and _total is null and agent_private.may_note_lane(_queue) then
      insert into agent_private.lane_watermark as w (queue, priority, vt, seen_at, look_at, until)
      values (_queue, _lane, _bottom, _now, _now + greatest(interval '1 second', 20 * _took), _now + greatest(interval '2 seconds', 40 * _took))
      on conflict (queue) do update set priority = excluded.priority, vt = excluded.vt, seen_at = excluded.seen_at, look_at = excluded.look_at, until = excluded.until;
    end if;
  else
    select q.paused, q.max_attempts, q.invisible_for, q.flow_version, q.flow_total, q.flow_paced, q.flow_fair
    into _paused, _policy_max_attempts, _policy_invisible_for, _flow_version, _total, _is_paced, _is_fair
    from (values (_queue)) as a (queue)
    left join agent.queue q on q.name = a.queue;
  end if;
  if _paused then
    return;
  end if;
  _ends_at = greatest(_max_attempts, coalesce(_sweep_max_attempts, 2147483647));
  if _is_paced and not _is_noted then
    loop
      _keys = '{}';
      _noted = 0;
      for id, event_ts, attempts, vt, claimed, event, queue, enqueued_at, nacked_at, last_error, requeued_from, type, source, priority, key, max_attempts, expires_at, worker, past_attempts
        , occurrence, meta, publication, claim_token, text_size, dead_letter_of, prior_vt, slot, group_key
      in
        select *
        from agent_service.claim_from_watermarks
        ( _queue, _limit, _max_attempts, _invisible_for, _order, _types, _exclude_ids, _workers[_slot + 1:], _lanes, _lane_types, _watermarks, _max_bytes, _hashes, true, true
        , _sweep_max_attempts
        )
      loop
        return next;
        _slot = _slot + 1;
        _limit = _limit - 1;
        if group_key is not null then
          _keys = _keys || group_key;
          _now = greatest(_now, claimed[cardinality(claimed)]);
        end if;
      end loop;
      if _keys <> '{}' then -- before anything more is admitted
        if _total is not null then
          _limit = least(_limit, agent_private.free_of_total(_queue, _total));
        end if;
        _noted = agent_private.note_claims(_queue, _keys, _now, case when _is_fair then _limit else 0 end, _types, _exclude_ids);
      end if;
      exit when _limit = 0;
      if not _is_fair or _noted = 0 then -- else there are more events of these groups
        exit when _looked or not agent_private.look_for_more(_queue, _limit, _lanes, _watermarks, _types, _exclude_ids, _ends_at);
        _looked = true;
        _lanes = null;
        _lane_types = null;
        _watermarks = null;
      end if;
      _hashes = null;
    end loop;
    return;
  end if;
  if _flow_version is not null or _total is not null then
    _limit = agent_private.begin_limited_claim(_queue, _flow_version is not null, _total, _limit, _lanes, _watermarks, _ends_at);
    if _limit = 0 then
      return;
    end if;
    _now = clock_timestamp();
    _is_lane_known = false;
  end if;
  _max_attempts = coalesce(_policy_max_attempts, _max_attempts, 3);
  _invisible_for = coalesce(_invisible_for, agent_private.bounded_lease(_policy_invisible_for), interval '10 minutes');
  if _is_fair then
    return query
    select t.*
    from agent_private.claim_in_turns
    ( _queue, _limit, _max_attempts, coalesce(_policy_max_attempts, _ends_at), _invisible_for, _types, _exclude_ids, _workers, _watermarks, _max_bytes, _hashes
    , _flow_version, _total is not null
    ) t;
    return;
  elsif cardinality(_types) > 0 then
    return query
    select t.*
    from agent_private.claim_events_of_types(_queue, _limit, _max_attempts, _invisible_for, _order, _types, _exclude_ids, _workers, _lanes, _lane_types, _watermarks, _max_bytes, _hashes, _flow_version, _total is not null, _is_paced) t;
    get diagnostics _count = row_count;
    _limit = _limit - _count;
    _slot = _count;
    _lanes = '{}'; -- there is nothing to scan below
  end if;

  loop -- for each lane
    if _lanes is not null then
      _nth = _nth + 1;
      _lane = _lanes[_nth];
      _bottom = coalesce(_watermarks[_nth], '-infinity');
    elsif _after >= -2147483648 or not _is_lane_known then
      select e.priority, e.vt into _lane, _bottom from agent.event e where e.queue = _queue and e.priority > _after order by e.priority, e.vt, e.id limit 1;
      _mark = null;
    end if;
    exit when _lane is null;

    _after = _lane;
    _low_vt = _bottom;
    _low_id = 0;
    _high_vt = _now;
    if _order = 'random' then
      select s.vt, s.id into _low_vt, _low_id from agent_private.random_start(_queue, _lane, coalesce(_mark, _bottom), _now) s;
      if not found then
        continue when _mark is null;
        _low_vt = _bottom;
        _low_id = 0;
      end if;
    end if;

    loop
      return query
      update agent.event e
      set attempts = e.attempts + 1
        , claimed = agent_private.append_claim(e.claimed, chosen.at)
        , vt = agent_private.add_utc(chosen.at, _invisible_for)
        , nacked_at = null
        , receipt_hash = case when chosen.n <= _slots then substr(_hashes, 8 * chosen.n::int4 - 7, 8) else agent_private.token_hash(agent_private.claim_token(chosen.uuid)) end || case when e.receipt_hash is null then '' else substr(e.receipt_hash, 1, 8) end
        , worker = _workers[_slot + chosen.n]
        , past_attempts = case when e.attempts = 0 or e.nacked_at is not null then e.past_attempts
            else agent_private.append_attempt(e.past_attempts, e.attempts, e.worker, e.vt, 'lease_ended') end
        , in_total = case when _total is not null then true end
        , flow = case when _is_paced and e.group_key is not null then 2 else e.flow end
      from
      ( select l.place, l.vt, row_number() over w, case when row_number() over w > _slots then gen_random_uuid()::text end, _max_bytes is null or sum(l.size) over w - l.size < _max_bytes, (select clock_timestamp())
        from
        ( select e.ctid, e.vt, e.text_size
          from agent.event e
          where e.queue = _queue and e.priority = _lane and e.vt <= _high_vt and (e.vt, e.id) >= (_low_vt, _low_id)
          and e.attempts < coalesce(e.max_attempts, _max_attempts)
          and (e.expires_at is null or e.expires_at > _now)
          and (_exclude_ids is null or e.id <> all (_exclude_ids))
          and (_flow_version is null or e.group_key is null or e.flow_version = _flow_version and (e.flow = 1 or not _is_paced)
            and e.group_key <> all (array(select w.key from agent_private.group_wake w where w.queue = _queue and w.hold_until > _now)))
          order by e.vt, e.id
          limit _limit
          for update skip locked
        ) as l (place, vt, size)
        window w as (rows unbounded preceding)
      ) as chosen (place, vt, n, uuid, is_within, at)
      where e.ctid = chosen.place
      returning e.id, e.event_ts, e.attempts, e.vt, e.claimed, case when chosen.is_within then e.event end, e.queue, e.enqueued_at, e.nacked_at, e.last_error
      , e.requeued_from, e.type, e.source, e.priority, e.key, e.max_attempts, e.expires_at, e.worker, e.past_attempts
      , case when chosen.is_within then e.occurrence end, case when chosen.is_within then e.meta end
      , case when chosen.is_within then e.publication end, agent_private.claim_token(chosen.uuid), e.text_size, e.dead_letter_of, chosen.vt
      , case when chosen.n <= _slots then chosen.n::int4 end, e.group_key;

      get diagnostics _count = row_count;
      _limit = _limit - _count;
      _slot = _slot + _count;
      _slots = case when _count = 0 then _slots else 0 end;
      if _count = 0 and _retries > 0 and pg_current_xact_id_if_assigned() is not null then
        _retries = _retries - 1;
        continue;
      end if;
      exit when _limit = 0 or (_low_vt, _low_id) <= (_bottom, 0);
      _high_vt = _low_vt; -- wrap around to the front, up to the random place
      _low_vt = case when _low_vt > _mark then _mark else _bottom end;
      _low_id = 0;
    end loop;
    exit when _limit = 0;
  end loop;

  if _flow_version is not null and _limit > 0 and not _is_again
    and agent_private.look_for_more(_queue, _limit, _claimed_lanes, _watermarks, _types, _exclude_ids, _ends_at)
  then
    return query
    select m.*
    from agent_service.claim_from_watermarks
    ( _queue, _limit, _max_attempts, _invisible_for, _order, _types, _exclude_ids, _workers[_slot + 1:], _max_bytes => _max_bytes
    , _is_again => true, _sweep_max_attempts => _sweep_max_attempts
    ) m;
  end if;
end
$func$;

-- Claims up to _limit events of _queue that have fewer than _max_attempts attempts, by priority, the lowest number first, and within it
-- by vt (_order 'fifo') or neighbours from a random place ('random'): of _types only (null: all), none of _exclude_ids, for _worker. The
-- max_attempts of the event or its queue's policy take precedence. Events locked by other sessions are skipped. A paused queue gives
-- none, and a queue with limits no more than these allow. Rows come in the order of the claim, as they are after it, without receipt_hash, due_at and
-- what limits are kept by.
create or replace function agent.claim_events
( _queue text default 'default'
, _limit int4 default 1
, _max_attempts int4 default 3
, _invisible_for interval default interval '10 minutes'
, _order text default 'fifo'
, _types text[] default null
, _exclude_ids int8[] default null
, _worker text default null
)
returns setof agent.event
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
as $func$
begin
  return query
  select t.id, t.event_ts, t.attempts, t.vt, t.claimed, t.event, t.queue, t.enqueued_at, t.nacked_at, t.last_error, t.requeued_from
  , t.type, t.source, t.priority, t.key, t.max_attempts, t.expires_at, t.worker, t.past_attempts, t.occurrence, t.meta, t.publication
  , null::bytea, t.claim_token, t.text_size, t.dead_letter_of, null::timestamptz
  , nullif(t.group_key, ''), null::int2, null::int8, null::timestamptz, null::timestamptz, null::boolean, null::timestamptz
  from agent_service.claim_from_watermarks
  ( agent_private.unreserved_queue(_queue), _limit, _max_attempts, _invisible_for, _order, _types, _exclude_ids
  , case when _worker is not null then array_fill(_worker, array[least(_limit, 100000)]) end
  ) t;
end
$func$;

-- Claims one event at random, so that many SQL workers spread out. Returns no row if nothing is claimable. The receipt is
-- agent.receipt(e). Like claim_events, it sees rows committed before it began.
create or replace function agent.claim_event
( _max_attempts int4 default 3
, _invisible_for interval default interval '10 minutes'
, _queue text default 'default'
, _types text[] default null
, _worker text default null
)
returns setof agent.event
language plpgsql volatile
security definer
rows 1
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
as $func$
begin
  return query
  select t.id, t.event_ts, t.attempts, t.vt, t.claimed, t.event, t.queue, t.enqueued_at, t.nacked_at, t.last_error, t.requeued_from
  , t.type, t.source, t.priority, t.key, t.max_attempts, t.expires_at, t.worker, t.past_attempts, t.occurrence, t.meta, t.publication
  , null::bytea, t.claim_token, t.text_size, t.dead_letter_of, null::timestamptz
  , nullif(t.group_key, ''), null::int2, null::int8, null::timestamptz, null::timestamptz, null::boolean, null::timestamptz
  from agent_service.claim_from_watermarks
  ( agent_private.unreserved_queue(_queue), 1, _max_attempts, _invisible_for, 'random', _types
  , _workers => case when _worker is not null then array[_worker] end
  ) t;
end
$func$;

-- Whether this transaction may write the row of agent_private.lane_watermark: one at a time, and nobody waits for it, as who claims may have a long transaction.
create or replace function agent_private.may_note_lane(_queue text)
returns boolean
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  return current_setting('transaction_isolation') = 'read committed' and pg_try_advisory_xact_lock(31321898691468544 + (hashtextextended(_queue, 0) & 127));
end
$func$;

-- A random place among the claimable events of a lane from _from on; no row if there is none. It takes a few index look-ups at any
-- depth: a random vt between the first and the last, and, as the events of a batch share one vt, a random id among those that share it.
-- Events in sparse times are chosen more often than those in dense ones; it spreads workers, it is no uniform draw.
create or replace function agent_private.random_start(_queue text, _lane int4, _from timestamptz, _now timestamptz)
returns table (vt timestamptz, id int8)
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set timezone to 'UTC' -- days of 24 hours, so that the place is not beyond the last event
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
set enable_sort to off
as $func$
#variable_conflict use_column
declare
  _first timestamptz;
  _last timestamptz;
  _vt timestamptz;
  _low int8;
  _high int8;
begin
  select e.vt into _first from agent.event e
  where e.queue = _queue and e.priority = _lane and e.vt >= _from and e.vt <= _now order by e.vt, e.id limit 1;
  if not found then
    return;
  end if;
  select e.vt into _last from agent.event e
  where e.queue = _queue and e.priority = _lane and e.vt >= _from and e.vt <= _now order by e.vt desc, e.id desc limit 1;
  _vt = _first + random() * (_last - _first);
  select e.vt, e.id into _vt, _low from agent.event e
  where e.queue = _queue and e.priority = _lane and e.vt >= _vt and e.vt <= _now order by e.vt, e.id limit 1;
  if not found then -- the last event was claimed in between
    return query select _first, 0::int8;
    return;
  end if;
  select e.id into _high from agent.event e
  where e.queue = _queue and e.priority = _lane and e.vt = _vt order by e.vt desc, e.id desc limit 1;
  return query select _vt, _low + floor(random() * (coalesce(_high, _low) - _low + 1))::int8;
end
$func$;

-- claim_from_watermarks for some types: for each priority, the oldest events of all these types; or, at random, from a random time on
-- and then from the front. Planned under the settings of claim_from_watermarks.
create or replace function agent_private.claim_events_of_types
( _queue text
, _limit int4
, _max_attempts int4
, _invisible_for interval
, _order text
, _types text[]
, _exclude_ids int8[]
, _workers text[]
, _lanes int4[]
, _lane_types text[]
, _watermarks timestamptz[]
, _max_bytes int8
, _hashes bytea
, _flow_version int8
, _is_counted boolean -- against the limit of the queue
, _is_paced boolean -- against rates of groups
)
returns table
( id int8, event_ts timestamptz, attempts int4, vt timestamptz, claimed timestamptz[], event jsonb, queue text, enqueued_at timestamptz
, nacked_at timestamptz, last_error text, requeued_from int8
, type text, source text, priority int4, key text, max_attempts int4, expires_at timestamptz, worker text, past_attempts jsonb, occurrence jsonb
, meta jsonb, publication jsonb, claim_token text, text_size int4, dead_letter_of int8, prior_vt timestamptz, slot int4, group_key text
)
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
#variable_conflict use_column
declare
  _now timestamptz = clock_timestamp();
  _lane int4;
  _after int8 = -2147483649;
  _scanned_types text[] = array(select distinct t.name from unnest(_types) as t (name) where t.name is not null);
  _bottoms timestamptz[] = array_fill(timestamptz '-infinity', array[cardinality(_scanned_types)]);
  _start timestamptz;
  _low_vt timestamptz;
  _low_id int8;
  _high_vt timestamptz;
  _stop_vt timestamptz; -- the place of the last of _limit events from _low_vt on
  _stop_id int8;
  _slot int4 = 0;
  _slots int4 = coalesce(octet_length(_hashes), 0) / 8; -- places of hashes that may be used
  _count int4;
  _retries int4 = 2;
begin
  loop -- for each priority
    if _lanes is null then
      select min(l.priority) into _lane
      from unnest(_scanned_types) as k (type)
      cross join lateral
      ( select e.priority from agent.event e where e.queue = _queue and e.type = k.type and e.priority > _after order by e.priority limit 1
      ) as l;
    else
      select min(l.priority) into _lane from unnest(_lanes) as l (priority) where l.priority > _after;
      select array_agg(l.type), array_agg(coalesce(l.watermark, '-infinity')) into _scanned_types, _bottoms
      from unnest(_lanes, _lane_types, _watermarks) as l (priority, type, watermark)
      where l.priority = _lane;
    end if;
    exit when _lane is null;

    _after = _lane;
    _start = '-infinity';
    if _order = 'random' then
      select min(f.vt) + random() * (max(l.vt) - min(f.vt)) into _start
      from unnest(_scanned_types, _bottoms) as k (type, bottom)
      cross join lateral
      ( select e.vt from agent.event e
        where e.queue = _queue and e.type = k.type and e.priority = _lane and e.vt >= k.bottom and e.vt <= _now
        order by e.vt, e.id limit 1
      ) as f
      cross join lateral
      ( select e.vt from agent.event e
        where e.queue = _queue and e.type = k.type and e.priority = _lane and e.vt >= k.bottom and e.vt <= _now
        order by e.vt desc, e.id desc limit 1
      ) as l;
      continue when _start is null;
    end if;

    _low_vt = _start;
    _low_id = 0;
    _high_vt = _now;
    loop
      -- How far _limit events reach, locked ones included. Locked events are skipped, and the next round continues from there.
      select m.vt, m.id into _stop_vt, _stop_id
      from
      ( select l.vt, l.id
        from unnest(_scanned_types, _bottoms) as k (type, bottom)
        cross join lateral
        ( select e.vt, e.id
          from agent.event e
          where e.queue = _queue and e.type = k.type and e.priority = _lane and e.vt <= _high_vt
          and (e.vt, e.id) >= (greatest(k.bottom, _low_vt), _low_id)
          and e.attempts < coalesce(e.max_attempts, _max_attempts)
          and (e.expires_at is null or e.expires_at > _now)
          and (_exclude_ids is null or e.id <> all (_exclude_ids))
          and (_flow_version is null or e.group_key is null or e.flow_version = _flow_version and (e.flow = 1 or not _is_paced)
            and e.group_key <> all (array(select w.key from agent_private.group_wake w where w.queue = _queue and w.hold_until > _now)))
          order by e.vt, e.id
          limit _limit
        ) as l
        order by l.vt, l.id
        limit _limit
      ) as m
      order by m.vt desc, m.id desc
      limit 1;

      if found then
        return query
        update agent.event e
        set attempts = e.attempts + 1
          , claimed = agent_private.append_claim(e.claimed, chosen.at)
          , vt = agent_private.add_utc(chosen.at, _invisible_for)
          , nacked_at = null
          , receipt_hash = case when chosen.n <= _slots then substr(_hashes, 8 * chosen.n::int4 - 7, 8) else agent_private.token_hash(agent_private.claim_token(chosen.uuid)) end || case when e.receipt_hash is null then '' else substr(e.receipt_hash, 1, 8) end
          , worker = _workers[_slot + chosen.n]
          , past_attempts = case when e.attempts = 0 or e.nacked_at is not null then e.past_attempts
              else agent_private.append_attempt(e.past_attempts, e.attempts, e.worker, e.vt, 'lease_ended') end
          , in_total = case when _is_counted then true end
          , flow = case when _is_paced and e.group_key is not null then 2 else e.flow end
        from
        ( select l.place, l.vt, row_number() over w, case when row_number() over w > _slots then gen_random_uuid()::text end, _max_bytes is null or sum(l.size) over w - l.size < _max_bytes, (select clock_timestamp())
          from unnest(_scanned_types, _bottoms) as k (type, bottom)
          cross join lateral
          ( select e.ctid, e.vt, e.id, e.text_size
            from agent.event e
            where e.queue = _queue and e.type = k.type and e.priority = _lane and e.vt <= _high_vt
            and (e.vt, e.id) >= (greatest(k.bottom, _low_vt), _low_id) and (e.vt, e.id) <= (_stop_vt, _stop_id)
            and e.attempts < coalesce(e.max_attempts, _max_attempts)
            and (e.expires_at is null or e.expires_at > _now)
            and (_exclude_ids is null or e.id <> all (_exclude_ids))
            and (_flow_version is null or e.group_key is null or e.flow_version = _flow_version and (e.flow = 1 or not _is_paced)
              and e.group_key <> all (array(select w.key from agent_private.group_wake w where w.queue = _queue and w.hold_until > _now)))
            order by e.vt, e.id
            limit _limit
            for update skip locked
          ) as l (place, vt, id, size)
          window w as (order by l.vt, l.id rows unbounded preceding)
          order by l.vt, l.id
          limit _limit
        ) as chosen (place, vt, n, uuid, is_within, at)
        where e.ctid = chosen.place
        returning e.id, e.event_ts, e.attempts, e.vt, e.claimed, case when chosen.is_within then e.event end, e.queue, e.enqueued_at, e.nacked_at, e.last_error
        , e.requeued_from, e.type, e.source, e.priority, e.key, e.max_attempts, e.expires_at, e.worker, e.past_attempts
        , case when chosen.is_within then e.occurrence end, case when chosen.is_within then e.meta end
        , case when chosen.is_within then e.publication end, agent_private.claim_token(chosen.uuid), e.text_size, e.dead_letter_of, chosen.vt
        , case when chosen.n <= _slots then chosen.n::int4 end, e.group_key;

        get diagnostics _count = row_count;
        _limit = _limit - _count;
        _slot = _slot + _count;
        _slots = case when _count = 0 then _slots else 0 end;
        exit when _limit = 0;
        if _count = 0 and _retries > 0 and pg_current_xact_id_if_assigned() is not null then
          _retries = _retries - 1;
          continue;
        end if;
        _low_vt = _stop_vt;
        _low_id = _stop_id + 1;
      else
        exit when _start = '-infinity';
        _high_vt = _start; -- wrap around to the front
        _start = '-infinity';
        _low_vt = _start;
        _low_id = 0;
      end if;
    end loop;
    exit when _limit = 0;
  end loop;
end
$func$;

-- claim_from_watermarks for a queue in which groups take turns: the events that are admitted, by the time at which their groups were served the last time, whatever their priorities. Planned under the settings of
-- claim_from_watermarks. Events whose leases have ended wait for their turns first: a worker that dies with many events of a group would give that as many turns at once.
create or replace function agent_private.claim_in_turns
( _queue text
, _limit int4
, _max_attempts int4
, _ends_at int4 -- the number of attempts with which an event ends
, _invisible_for interval
, _types text[]
, _exclude_ids int8[]
, _workers text[]
, _watermarks timestamptz[]
, _max_bytes int8
, _hashes bytea
, _flow_version int8
, _is_counted boolean -- against the limit of the queue
)
returns table
( id int8, event_ts timestamptz, attempts int4, vt timestamptz, claimed timestamptz[], event jsonb, queue text, enqueued_at timestamptz
, nacked_at timestamptz, last_error text, requeued_from int8
, type text, source text, priority int4, key text, max_attempts int4, expires_at timestamptz, worker text, past_attempts jsonb, occurrence jsonb
, meta jsonb, publication jsonb, claim_token text, text_size int4, dead_letter_of int8, prior_vt timestamptz, slot int4, group_key text
)
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
#variable_conflict use_column
declare
  _now timestamptz = clock_timestamp();
  _slots int4 = coalesce(octet_length(_hashes), 0) / 8; -- places of hashes that may be used
  _bottom timestamptz = '-infinity';
  _is_over boolean; -- some can be claimed no more
  _is_woken boolean;
begin
  if array_position(_watermarks, null) is null then -- of all lanes
    _bottom = coalesce((select min(w.vt) from unnest(_watermarks) as w (vt)), '-infinity');
  end if;
  _types = nullif(_types, '{}');
  with first as materialized
  ( select e.group_key, e.flow, e.attempts >= coalesce(e.max_attempts, _ends_at) or coalesce(e.expires_at <= _now, false) as is_over
    from agent.event e
    where e.queue = _queue and e.flow <= 0 and e.vt between _bottom and _now
    and e.flow_version = _flow_version
    and (e.attempts < coalesce(e.max_attempts, _max_attempts) or e.attempts >= coalesce(e.max_attempts, _ends_at) or e.expires_at <= _now)
    order by e.vt, e.id
    limit _limit
  )
  , woken as
  ( insert into agent_private.group_wake (queue, key, event_id) -- 0: see withdraw_turns
    select distinct _queue, f.group_key, 0 from first f where f.flow < 0 and not f.is_over
    returning 1
  )
  select (select bool_or(f.is_over) from first f), exists (select from woken) into _is_over, _is_woken;
  if _is_over then
    perform agent_private.end_over(_queue, _ends_at);
  end if;
  if _is_woken then
    perform agent_private.look_at_woken(_queue, greatest(_limit, 100));
  end if;
  if _is_over or _is_woken then
    _now = clock_timestamp();
  end if;
  for _try in 1 .. 3 loop
    return query
    update agent.event e
    set attempts = e.attempts + 1
      , claimed = agent_private.append_claim(e.claimed, chosen.at)
      , vt = agent_private.add_utc(chosen.at, _invisible_for)
      , nacked_at = null
      , receipt_hash = case when chosen.n <= _slots then substr(_hashes, 8 * chosen.n::int4 - 7, 8) else agent_private.token_hash(agent_private.claim_token(chosen.uuid)) end || case when e.receipt_hash is null then '' else substr(e.receipt_hash, 1, 8) end
      , worker = _workers[chosen.n]
      , past_attempts = case when e.attempts = 0 or e.nacked_at is not null then e.past_attempts
          else agent_private.append_attempt(e.past_attempts, e.attempts, e.worker, e.vt, 'lease_ended') end
      , in_total = case when _is_counted then true end
      , flow = -1
    from
    ( select l.place, l.vt, row_number() over w, case when row_number() over w > _slots then gen_random_uuid()::text end, _max_bytes is null or sum(l.size) over w - l.size < _max_bytes, (select clock_timestamp())
      from
      ( select e.ctid, e.vt, e.text_size
        from agent.event e
        where e.queue = _queue and e.flow <= 0 and e.vt between _bottom and _now
        and e.flow_version = _flow_version and e.flow = 0
        and e.group_key <> all (array(select w.key from agent_private.group_wake w where w.queue = _queue and w.hold_until > _now))
        and e.attempts < coalesce(e.max_attempts, _max_attempts)
        and (e.expires_at is null or e.expires_at > _now)
        and (_types is null or e.type = any (_types))
        and (_exclude_ids is null or e.id <> all (_exclude_ids))
        order by e.vt, e.id
        limit _limit
        for update skip locked
      ) as l (place, vt, size)
      window w as (rows unbounded preceding)
    ) as chosen (place, vt, n, uuid, is_within, at)
    where e.ctid = chosen.place
    returning e.id, e.event_ts, e.attempts, e.vt, e.claimed, case when chosen.is_within then e.event end, e.queue, e.enqueued_at, e.nacked_at, e.last_error
    , e.requeued_from, e.type, e.source, e.priority, e.key, e.max_attempts, e.expires_at, e.worker, e.past_attempts
    , case when chosen.is_within then e.occurrence end, case when chosen.is_within then e.meta end
    , case when chosen.is_within then e.publication end, agent_private.claim_token(chosen.uuid), e.text_size, e.dead_letter_of, chosen.vt
    , case when chosen.n <= _slots then chosen.n::int4 end, e.group_key;
    exit when found or pg_current_xact_id_if_assigned() is null;
  end loop;
end
$func$;

-- The lanes of _queue (see claim_from_watermarks) and, for each, the vt of the oldest claimable event before the lane's watermark, or
-- before now if it has none: the event that a claim which starts at the watermark does not see. took is how long the search took in all.
create or replace function agent_service.check_watermarks
( _queue text
, _max_attempts int4
, _types text[] default null
, _lanes int4[] default null
, _lane_types text[] default null
, _watermarks timestamptz[] default null
)
returns table (type text, priority int4, vt timestamptz, took interval)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
set enable_sort to off
as $func$
#variable_conflict use_column
declare
  _start timestamptz;
  _took interval;
  _max int4 = coalesce((select q.max_attempts from agent.queue q where q.name = _queue), _max_attempts, 3);
  _found_types text[];
  _found_lanes int4[];
  _found_vts timestamptz[];
begin
  for _try in 1 .. 2 loop
    _start = clock_timestamp();
    select array_agg(l.type), array_agg(l.priority), array_agg
    ( case when l.type is null then
      ( select e.vt
        from agent.event e
        where e.queue = _queue and e.priority = l.priority and e.vt < least(m.watermark, _start)
        and e.attempts < coalesce(e.max_attempts, _max) and (e.expires_at is null or e.expires_at > _start)
        order by e.vt, e.id
        limit 1
      ) else
      ( select e.vt
        from agent.event e
        where e.queue = _queue and e.type = l.type and e.priority = l.priority and e.vt < least(m.watermark, _start)
        and e.attempts < coalesce(e.max_attempts, _max) and (e.expires_at is null or e.expires_at > _start)
        order by e.vt, e.id
        limit 1
      ) end
    )
    into _found_types, _found_lanes, _found_vts
    from agent_private.list_lanes(_queue, _types) as l
    left join unnest(_lanes, _lane_types, _watermarks) as m (priority, type, watermark)
      on m.priority = l.priority and m.type is not distinct from l.type;
    _took = least(_took, clock_timestamp() - _start);
    exit when _took > interval '5 ms'; -- a first run may include planning and loading pages
  end loop;
  return query select f.*, _took from unnest(_found_types, _found_lanes, _found_vts) as f;
end
$func$;

-- How long until the next event of _queue that is not claimable yet becomes claimable, at most an hour. Null if there is none, and while the queue is
-- paused: whoever resumes it wakes its claims.
create or replace function agent_service.next_vt(_queue text default 'default')
returns interval
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
set enable_sort to off
as $func$
declare
  _now timestamptz = clock_timestamp();
begin
  if exists (select from agent.queue q where q.name = _queue and q.paused) then
    return null;
  end if;
  return
  ( select least(min(n.vt) - _now, agent_private.next_wake(_queue) - _now, interval '1 hour')
    from agent_private.list_lanes(_queue) as l
    cross join lateral
    ( select e.vt
      from agent.event e
      where e.queue = _queue and e.priority = l.priority and e.vt > _now
      order by e.vt, e.id
      limit 1
    ) as n
    having count(*) > 0
  );
end
$func$;

-- How long until something becomes claimable in each of _queues: at most an hour, zero or less where something may be claimable now. Of a queue
-- without events, and of a paused one, there is a row only where finding that out takes long. took is how long it has taken: where that is long, the
-- shorter time of two runs, since a first run may load pages.
create or replace function agent_service.next_vts(_queues text[])
returns table (queue text, due_in interval, took interval)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
set enable_sort to off
as $func$
#variable_conflict use_column
declare
  _began timestamptz = clock_timestamp();
  _start timestamptz;
  _queue text;
  _lane int4;
  _after int8;
  _vt timestamptz;
  _first timestamptz;
  _took interval;
begin
  foreach _queue in array _queues loop
    _took = null;
    for _run in 1 .. 2 loop
      _start = clock_timestamp();
      _after = -2147483649;
      _first = null;
      loop -- for each lane, one look-up in the index
        select e.priority, e.vt into _lane, _vt from agent.event e where e.queue = _queue and e.priority > _after order by e.priority, e.vt, e.id limit 1;
        exit when not found;
        _first = least(_first, _vt);
        _after = _lane;
        exit when _first <= _start;
      end loop;
      _first = least(_first, agent_private.next_wake(_queue));
      _took = least(_took, clock_timestamp() - _start);
      exit when _took < interval '1 ms';
    end loop;
    if _first is not null and exists (select from agent.queue q where q.name = _queue and q.paused) then
      _first = null;
    end if;
    if _first is not null or _took >= interval '1 ms' then
      queue = _queue;
      due_in = least(_first - _began, interval '1 hour');
      took = _took;
      return next;
    end if;
  end loop;
end
$func$;

-- The lanes of _queue, of _types or (null) whatever the type, found by one index look-up each.
create or replace function agent_private.list_lanes(_queue text, _types text[] default null)
returns table (type text, priority int4)
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
set enable_sort to off
as $func$
#variable_conflict use_column
declare
  _type text;
  _lane int4;
  _after int8;
begin
  if _types is null then
    _after = -2147483649;
    loop
      select e.priority into _lane from agent.event e where e.queue = _queue and e.priority > _after order by e.priority limit 1;
      exit when not found;
      return query select null::text, _lane;
      _after = _lane;
    end loop;
    return;
  end if;
  foreach _type in array _types loop
    _after = -2147483649;
    loop
      select e.priority into _lane from agent.event e
      where e.queue = _queue and e.type = _type and e.priority > _after order by e.priority limit 1;
      exit when not found;
      return query select _type, _lane;
      _after = _lane;
    end loop;
  end loop;
end
$func$;
