-- Claiming some types only.

-- claim_from_watermarks of some types only: of one priority after the other, the oldest of all these types; or, at random, from a random time on
-- and then from the front. Private to the functions of this schema, and planned under claim_from_watermarks' settings.
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
, _marks timestamptz[]
)
returns table
( id int8, event_ts timestamptz, attempts int4, vt timestamptz, claimed timestamptz[], event jsonb, queue text, enqueued_at timestamptz
, nacked_at timestamptz, last_error text, requeued_from int8
, type text, source text, priority int4, key text, max_attempts int4, expires_at timestamptz, worker text, past_attempts jsonb, occurrence jsonb
, prior_vt timestamptz
)
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
#variable_conflict use_column
declare
  _now timestamptz = clock_timestamp();
  _lane int4;
  _after int8 = -2147483649;
  _kinds text[] = array(select distinct t.name from unnest(_types) as t (name) where t.name is not null);
  _bottoms timestamptz[] = array_fill(timestamptz '-infinity', array[cardinality(_kinds)]);
  _start timestamptz;
  _low_vt timestamptz;
  _low_id int8;
  _high_vt timestamptz;
  _stop_vt timestamptz; -- where as many events as are asked for end, from low on
  _stop_id int8;
  _slot int4 = 0;
  _taken int4;
begin
  loop -- from priority to priority
    if _lanes is null then
      select min(l.priority) into _lane
      from unnest(_kinds) as k (type)
      cross join lateral
      ( select e.priority from agent.event e where e.queue = _queue and e.type = k.type and e.priority > _after order by e.priority limit 1
      ) as l;
    else
      select min(l.priority) into _lane from unnest(_lanes) as l (priority) where l.priority > _after;
      select array_agg(l.type), array_agg(coalesce(l.mark, '-infinity')) into _kinds, _bottoms
      from unnest(_lanes, _lane_types, _marks) as l (priority, type, mark)
      where l.priority = _lane;
    end if;
    exit when _lane is null;

    _after = _lane;
    _start = '-infinity';
    if _order = 'random' then
      select min(f.vt) + random() * (max(l.vt) - min(f.vt)) into _start
      from unnest(_kinds, _bottoms) as k (type, bottom)
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
      -- How far to go, were nobody else claiming. What of that is locked is passed over, and it goes on from there.
      select m.vt, m.id into _stop_vt, _stop_id
      from
      ( select l.vt, l.id
        from unnest(_kinds, _bottoms) as k (type, bottom)
        cross join lateral
        ( select e.vt, e.id
          from agent.event e
          where e.queue = _queue and e.type = k.type and e.priority = _lane and e.vt <= _high_vt
          and (e.vt, e.id) >= (greatest(k.bottom, _low_vt), _low_id)
          and e.attempts < coalesce(e.max_attempts, _max_attempts)
          and (e.expires_at is null or e.expires_at > _now)
          and (_exclude_ids is null or e.id <> all (_exclude_ids))
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
          , claimed = agent_private.append_claim(e.claimed, _now)
          , vt = agent_private.add_utc(_now, _invisible_for)
          , nacked_at = null
          , worker = _workers[_slot + chosen.n]
          , past_attempts = case when e.attempts = 0 or e.nacked_at is not null then e.past_attempts
              else agent_private.append_attempt(e.past_attempts, e.attempts, e.worker, e.vt, 'lease_ended') end
        from
        ( select l.place, l.vt, row_number() over (order by l.vt, l.id)
          from unnest(_kinds, _bottoms) as k (type, bottom)
          cross join lateral
          ( select e.ctid, e.vt, e.id
            from agent.event e
            where e.queue = _queue and e.type = k.type and e.priority = _lane and e.vt <= _high_vt
            and (e.vt, e.id) >= (greatest(k.bottom, _low_vt), _low_id) and (e.vt, e.id) <= (_stop_vt, _stop_id)
            and e.attempts < coalesce(e.max_attempts, _max_attempts)
            and (e.expires_at is null or e.expires_at > _now)
            and (_exclude_ids is null or e.id <> all (_exclude_ids))
            order by e.vt, e.id
            limit _limit
            for update skip locked
          ) as l (place, vt, id)
          order by l.vt, l.id
          limit _limit
        ) as chosen (place, vt, n)
        where e.ctid = chosen.place
        returning e.*, chosen.vt;

        get diagnostics _taken = row_count;
        _limit = _limit - _taken;
        _slot = _slot + _taken;
        exit when _limit = 0;
        _low_vt = _stop_vt;
        _low_id = _stop_id + 1;
      else
        exit when _start = '-infinity';
        _high_vt = _start; -- round to the front
        _start = '-infinity';
        _low_vt = _start;
        _low_id = 0;
      end if;
    end loop;
    exit when _limit = 0;
  end loop;
end
$func$;
