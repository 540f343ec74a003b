-- Statistics of queues over time: samples of what waits, outcomes by minute, and the series made of them.
--
-- Wait is the time from when an event was due, the later of its insert and its scheduled time, to its first claim. Processing is the time from its last
-- claim to its end as done or failed. Both count in the minute in which the event ended.

-- The bin of a duration: 0 is up to 1 ms, and each bin i above goes from 1.1^(i-1) ms to 1.1^i ms. Null for null. Inlined, like agent.receipt.
create or replace function agent_private.duration_bin(_duration interval)
returns int2
language sql immutable parallel safe
return case
  when _duration is null then null
  when date_part('epoch', _duration) <= 0.001 then 0::int2
  else least(ceil(ln(date_part('epoch', _duration) * 1000) / ln(1.1::float8)), 400)::int2
end;

-- A duration that stands for those of a bin: it differs from each by less than 5 %, or by less than 1 ms. Inlined, like agent.receipt.
create or replace function agent_private.bin_duration(_bin int2)
returns interval
language sql immutable parallel safe
return case when _bin = 0 then interval '1 ms' else make_interval(secs => power(1.1::float8, _bin) / 1050) end;

-- What ended from _from (inclusive) to _to (exclusive), by queue and minute. It counts up to _limit events of history.
create or replace function agent_private.count_outcomes_of(_from timestamptz, _to timestamptz, _limit int4)
returns setof agent.queue_outcome
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set jit to off
set max_parallel_workers_per_gather to 0 -- starting workers takes longer than the query
set enable_seqscan to off
set enable_bitmapscan to on -- the block-range index needs it
as $func$
begin
  return query
  with ended as materialized
  ( select h.queue, date_bin('1 minute', h.finished_at, 'epoch') as at, h.outcome
    , agent_private.duration_bin(agent_private.elapsed(greatest(h.due_at, h.enqueued_at), h.claimed[1])) as wait
    , agent_private.duration_bin(agent_private.last_attempt_took(h.outcome, h.claimed, h.nacked_at, h.finished_at)) as processing
    from agent.event_hist h
    where h.finished_at >= _from and h.finished_at < _to
    limit _limit
  )
  , grouped as
  ( select d.queue, d.at, d.outcome, d.wait, d.processing, count(*) as n
    from ended d
    group by d.queue, d.at, d.outcome, d.wait, d.processing
  )
  , outcomes as
  ( select g.queue, g.at
    , coalesce(sum(g.n) filter (where g.outcome = 'done'), 0)::int8 as done
    , coalesce(sum(g.n) filter (where g.outcome = 'failed'), 0)::int8 as failed
    , coalesce(sum(g.n) filter (where g.outcome = 'expired'), 0)::int8 as expired
    , coalesce(sum(g.n) filter (where g.outcome = 'cancelled'), 0)::int8 as cancelled
    from grouped g
    group by g.queue, g.at
  )
  , waits as
  ( select b.queue, b.at, array_agg(b.bin) as bins, array_agg(b.n) as counts
    from (select g.queue, g.at, g.wait as bin, sum(g.n)::int8 as n from grouped g where g.wait is not null group by g.queue, g.at, g.wait) as b
    group by b.queue, b.at
  )
  , processings as
  ( select b.queue, b.at, array_agg(b.bin) as bins, array_agg(b.n) as counts
    from
    ( select g.queue, g.at, g.processing as bin, sum(g.n)::int8 as n
      from grouped g
      where g.processing is not null
      group by g.queue, g.at, g.processing
    ) as b
    group by b.queue, b.at
  )
  select o.queue, o.at, o.done, o.failed, o.expired, o.cancelled, w.bins, w.counts, p.bins, p.counts
  from outcomes o
  left join waits w on w.queue = o.queue and w.at = o.at
  left join processings p on p.queue = o.queue and p.at = o.at;
end
$func$;

-- The first minute whose outcomes are not counted yet, at most an hour ago; null if the queues were never sampled.
create or replace function agent_private.next_uncounted_minute(_now timestamptz)
returns timestamptz
language sql stable
set search_path to pg_catalog, pg_temp
as $func$
  select greatest
  ( coalesce
    ( (select s.at from agent.queue_sampling s where s.counted_at is not null order by s.at desc limit 1) + interval '1 minute'
    , (select s.at from agent.queue_sampling s order by s.at limit 1)
    )
  , date_bin('1 minute', _now, 'epoch') - interval '60 minutes'
  )
  from (select s.at from agent.queue_sampling s limit 1) as any_sampling
$func$;

-- What waits now in each queue that has events. Of a small table all events are read; of a larger one, see count_waiting.
create or replace function agent_private.queue_depths(_now timestamptz)
returns table (queue text, ready int8, scheduled int8, waiting int8, leased int8, oldest_ready_at timestamptz, is_estimate boolean)
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set jit to off
set max_parallel_workers_per_gather to 0
as $func$
#variable_conflict use_column
declare
  _names text[];
begin
  if agent_private.is_event_table_small() then
    return query
    select c.queue, c.ready + coalesce(t.waiting + t.scheduled, 0), greatest(c.scheduled - coalesce(t.scheduled, 0), 0), greatest(c.waiting - coalesce(t.waiting, 0), 0), c.leased
    , least(c.oldest_ready_at, t.since), not coalesce(t.is_whole, true)
    from
    ( select e.queue, count(*) filter (where e.state = 'ready') as ready, count(*) filter (where e.state = 'scheduled') as scheduled
      , count(*) filter (where e.state = 'waiting') as waiting, count(*) filter (where e.state = 'leased') as leased
      , min(e.vt) filter (where e.state = 'ready') as oldest_ready_at
      -- offset: the state is computed once
      from (select e.queue, e.vt, agent_private.event_state(e, _now) as state from agent.event e offset 0) as e
      group by e.queue
    ) as c
    left join agent_private.count_next_turns(null, _now) t on t.queue = c.queue;
    return;
  end if;
  _names = array(select w.name from agent_private.waiting_queues() as w (name));
  return query
  select c.queue, c.ready, c.scheduled, c.waiting, c.leased, c.oldest_ready_at, c.estimated
  from agent_private.count_waiting(_now, _names) c;
end
$func$;

-- Whether agent.event is so small that reading all of it is faster than going from queue to queue: 20 MB.
create or replace function agent_private.is_event_table_small()
returns boolean
language sql stable
set search_path to pg_catalog, pg_temp
as $func$
  select pg_relation_size('agent.event') <= 2500 * current_setting('block_size')::int8
$func$;

-- How long ago something became ready, at most 100,000 days; null for null. Inlined, like agent.receipt.
create or replace function agent_private.age_of(_since timestamptz, _now timestamptz)
returns interval
language sql immutable parallel safe
return case when _since is not null then least(_now - _since, interval '100000 days') end;

-- Since when the oldest event of a queue that is ready by its row has been claimable; null: none is.
create or replace function agent_private.oldest_ready_at(_queue text, _now timestamptz)
returns timestamptz
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set enable_seqscan to off
set enable_bitmapscan to off
set enable_sort to off
set jit to off
as $func$
begin
  return
  ( select min(o.vt)
    from agent_private.list_lanes(_queue) as l
    cross join lateral
    ( select e.vt
      from agent.event e
      where e.queue = _queue and e.priority = l.priority and e.vt <= _now
      order by e.vt, e.id
      limit 1
    ) as o
  );
end
$func$;

-- Samples the queues, if nobody has in this minute, and returns whether it has. Raises lock_not_available (55P03) while another session does it. For the
-- service, which calls it once a minute.
create or replace function agent_service.sample_queues()
returns boolean
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set jit to off
as $func$
declare
  _now timestamptz;
  _minute timestamptz = date_bin('1 minute', clock_timestamp(), 'epoch');
begin
  if exists (select from agent.queue_sampling s where s.at = _minute) then
    return false;
  end if;
  perform agent_private.lock_upkeep('queue_samples');
  _now = clock_timestamp();
  -- The id of this transaction was given out after the minute had begun: whoever has written something before that has a lesser one.
  insert into agent.queue_sampling (at, sampled_at, horizon) values (_minute, _now, pg_current_xact_id()) on conflict do nothing;
  if not found then
    return false;
  end if;

  with changed as
  ( select coalesce(d.queue, l.queue) as queue, coalesce(d.ready, 0) as ready, coalesce(d.scheduled, 0) as scheduled, coalesce(d.waiting, 0) as waiting, coalesce(d.leased, 0) as leased
    , d.oldest_ready_at, coalesce(d.is_estimate, false) as is_estimate
    from agent_private.queue_depths(_now) d
    full join agent.queue_latest l on l.queue = d.queue
    where (coalesce(d.ready, 0), coalesce(d.scheduled, 0), coalesce(d.waiting, 0), coalesce(d.leased, 0), d.oldest_ready_at, coalesce(d.is_estimate, false))
      is distinct from (l.ready, l.scheduled, l.waiting, l.leased, l.oldest_ready_at, l.is_estimate)
    -- Old samples are deleted: what has not changed since is said again.
    or l.at < _minute - interval '1 day' and l.ready + l.scheduled + l.waiting + l.leased > 0
  )
  , latest as
  ( insert into agent.queue_latest as l (queue, at, ready, scheduled, waiting, leased, oldest_ready_at, is_estimate)
    select c.queue, _minute, c.ready, c.scheduled, c.waiting, c.leased, c.oldest_ready_at, c.is_estimate from changed c
    on conflict (queue) do update
    set at = excluded.at, ready = excluded.ready, scheduled = excluded.scheduled, waiting = excluded.waiting, leased = excluded.leased
      , oldest_ready_at = excluded.oldest_ready_at, is_estimate = excluded.is_estimate
  )
  insert into agent.queue_sample (queue, at, ready, scheduled, waiting, leased, oldest_ready_at, is_estimate)
  select c.queue, _minute, c.ready, c.scheduled, c.waiting, c.leased, c.oldest_ready_at, c.is_estimate from changed c
  on conflict do nothing; -- a row of a minute that a set-back clock shows once more
  return true;
end
$func$;

-- Counts the outcomes of the next minute that is over, and returns 'counted', or 'none' if all are counted, or 'waiting' if a transaction still runs that may have
-- ended events in it: then it is counted 15 s after its end all the same, and once more when that transaction has ended, if this is within an hour. It reads up to
-- _limit events. With _skip it counts nothing, and the minute is incomplete: for a minute that cannot be counted in time. Minutes in which no process ran are counted
-- later, unless they are more than an hour ago. Raises lock_not_available (55P03) while another session does it. For the service.
create or replace function agent_service.count_outcomes(_skip boolean default false, _limit int4 default 1000000)
returns text
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set jit to off
as $func$
declare
  _minute timestamptz;
  _is_settled boolean;
  _now timestamptz;
  _latest timestamptz; -- hour of which a minute was counted before
  _all record;
  _events int8;
begin
  perform agent_private.lock_upkeep('queue_samples');
  _now = clock_timestamp();
  _latest = agent_private.latest_outcome_hour();
  select s.at into _minute
  from agent.queue_sampling s
  where not s.is_settled and s.at >= _now - interval '1 hour' and agent_private.is_minute_settled(s.at)
  order by s.at
  limit 1;
  _is_settled = found;
  if not found then
    _minute = agent_private.next_uncounted_minute(_now);
    if coalesce(_minute >= date_bin('1 minute', _now, 'epoch'), true) then
      return 'none';
    end if;
    _is_settled = agent_private.is_minute_settled(_minute);
    if not _is_settled and _now < _minute + interval '75 seconds' then
      return 'waiting';
    end if;
  end if;

  -- The snapshot of this statement is later than that of the look whether the minute is settled.
  delete from agent.queue_outcome o where o.at = _minute;
  if not _skip then
    insert into agent.queue_outcome select c.* from agent_private.count_outcomes_of(_minute, _minute + interval '1 minute', _limit) c;
  end if;
  select coalesce(sum(o.done), 0)::int8 as done, coalesce(sum(o.failed), 0)::int8 as failed, coalesce(sum(o.expired), 0)::int8 as expired
  , coalesce(sum(o.cancelled), 0)::int8 as cancelled
  into strict _all
  from agent.queue_outcome o
  where o.at = _minute;
  _events = _all.done + _all.failed + _all.expired + _all.cancelled;
  insert into agent.queue_sampling as s (at, counted_at, events, done, failed, expired, cancelled, is_complete, is_settled)
  values (_minute, _now, _events, _all.done, _all.failed, _all.expired, _all.cancelled, not _skip and _events < _limit, _is_settled or _skip)
  on conflict (at) do update
  set counted_at = excluded.counted_at, events = excluded.events, done = excluded.done, failed = excluded.failed, expired = excluded.expired
  , cancelled = excluded.cancelled, is_complete = excluded.is_complete, is_settled = excluded.is_settled;

  if _minute < _latest then -- counted once more
    perform agent_private.sum_outcome_hours(date_bin('1 hour', _minute, 'epoch'), date_bin('1 hour', _minute, 'epoch') + interval '1 hour');
  elsif _minute >= _latest + interval '1 hour' then
    perform agent_private.sum_outcome_hours(_latest, date_bin('1 hour', _minute, 'epoch'));
  end if;
  return 'counted';
end
$func$;

-- The hour of the latest minute that is counted; null: none is. All hours before it are in agent.queue_outcome_hour.
create or replace function agent_private.latest_outcome_hour()
returns timestamptz
language sql stable
set search_path to pg_catalog, pg_temp
as $func$
  select date_bin('1 hour', (select s.at from agent.queue_sampling s where s.counted_at is not null order by s.at desc limit 1), 'epoch')
$func$;

-- Adds up the outcomes of the hours from _from (inclusive) to _to (exclusive), in place of what these hours had.
create or replace function agent_private.sum_outcome_hours(_from timestamptz, _to timestamptz)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set jit to off
set max_parallel_workers_per_gather to 0
as $func$
begin
  delete from agent.queue_outcome_hour h where h.at >= _from and h.at < _to;
  insert into agent.queue_outcome_hour
  with outcomes as materialized
  ( select o.*, date_bin('1 hour', o.at, 'epoch') as hour from agent.queue_outcome o where o.at >= _from and o.at < _to
  )
  , waits as
  ( select w.queue, w.hour, array_agg(w.bin) as bins, array_agg(w.n) as counts
    from
    ( select o.queue, o.hour, b.bin, sum(b.n)::int8 as n
      from outcomes o cross join lateral unnest(o.wait_bins, o.wait_counts) as b (bin, n)
      group by o.queue, o.hour, b.bin
    ) as w
    group by w.queue, w.hour
  )
  , processings as
  ( select p.queue, p.hour, array_agg(p.bin) as bins, array_agg(p.n) as counts
    from
    ( select o.queue, o.hour, b.bin, sum(b.n)::int8 as n
      from outcomes o cross join lateral unnest(o.processing_bins, o.processing_counts) as b (bin, n)
      group by o.queue, o.hour, b.bin
    ) as p
    group by p.queue, p.hour
  )
  select c.queue, c.hour, c.done, c.failed, c.expired, c.cancelled, w.bins, w.counts, p.bins, p.counts
  from
  ( select o.queue, o.hour, sum(o.done)::int8 as done, sum(o.failed)::int8 as failed, sum(o.expired)::int8 as expired, sum(o.cancelled)::int8 as cancelled
    from outcomes o
    group by o.queue, o.hour
  ) as c
  left join waits w on w.queue = c.queue and w.hour = c.hour
  left join processings p on p.queue = c.queue and p.hour = c.hour;
end
$func$;

-- Whether all transactions have ended that wrote something in this minute or before. An event ends after its transaction got its id.
create or replace function agent_private.is_minute_settled(_minute timestamptz)
returns boolean
language sql stable
set search_path to pg_catalog, pg_temp
as $func$
  select coalesce
  ( (select s.horizon from agent.queue_sampling s where s.at > _minute and s.horizon is not null order by s.at limit 1) <= pg_snapshot_xmin(pg_current_snapshot())
  , false
  )
$func$;

-- Deletes up to _limit rows of statistics of queues over time that are older than seven days, and returns how many. The service calls it now and then.
create or replace function agent.prune_queue_samples(_limit int4 default 1000)
returns int8
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set enable_seqscan to off
set jit to off
as $func$
declare
  _cutoff timestamptz = clock_timestamp() - interval '7 days';
  _n int8;
  _total int8 = 0;
begin
  if coalesce(_limit, 0) < 1 then
    perform agent_private.raise_invalid('limit', 'must be at least 1');
  end if;
  -- A day longer: the last sample before the cutoff says what waited at the cutoff.
  delete from agent.queue_sample s
  where s.ctid = any (array(select o.ctid from agent.queue_sample o where o.at < _cutoff - interval '25 hours' order by o.at limit _limit for update skip locked));
  get diagnostics _total = row_count;
  delete from agent.queue_outcome s
  where s.ctid = any (array(select o.ctid from agent.queue_outcome o where o.at < _cutoff order by o.at limit _limit - _total for update skip locked));
  get diagnostics _n = row_count;
  _total = _total + _n;
  delete from agent.queue_outcome_hour s
  where s.ctid = any (array(select o.ctid from agent.queue_outcome_hour o where o.at < _cutoff order by o.at limit _limit - _total for update skip locked));
  get diagnostics _n = row_count;
  _total = _total + _n;
  delete from agent.queue_sampling s
  where s.ctid = any (array(select o.ctid from agent.queue_sampling o where o.at < _cutoff order by o.at limit _limit - _total for update skip locked));
  get diagnostics _n = row_count;
  _total = _total + _n;
  delete from agent.queue_latest s
  where s.ctid = any (array
  ( select o.ctid from agent.queue_latest o
    where o.at < _cutoff and o.ready + o.scheduled + o.waiting + o.leased = 0
    limit _limit - _total
    for update skip locked
  ));
  get diagnostics _n = row_count;
  _total = _total + _n;
  delete from agent_private.lane_watermark w
  where w.ctid = any (array(select o.ctid from agent_private.lane_watermark o where o.until < _cutoff limit _limit - _total for update skip locked));
  get diagnostics _n = row_count;
  return _total + _n;
end
$func$;

-- The outcomes since the last minute that was counted, if these are not many, and the time up to which outcomes are known then. With more than 20,000 events, or if
-- that minute was more than ten minutes ago, there are none, and through is the end of that minute; since is infinite then, and else the first minute that they are
-- of. Null: the queues were never sampled.
create or replace function agent_private.recent_outcomes
(_now timestamptz, out since timestamptz, out through timestamptz, out outcomes agent.queue_outcome[])
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set jit to off
as $func$
declare
  _limit int4 = 20000; -- events
  _events int8;
begin
  through = agent_private.next_uncounted_minute(_now);
  since = 'infinity';
  outcomes = '{}';
  if through > _now - interval '10 minutes' then
    select coalesce(array_agg(c), '{}'), coalesce(sum(c.done + c.failed + c.expired + c.cancelled), 0)
    into outcomes, _events
    from agent_private.count_outcomes_of(through, _now, _limit) c;
    if _events < _limit then
      since = through;
      through = _now;
    else
      outcomes = '{}';
    end if;
  end if;
end
$func$;

-- How many minutes of a span have begun.
create or replace function agent_private.minutes_of(_from timestamptz, _to timestamptz)
returns int8
language sql immutable parallel safe
return case when isfinite(_from) and _to > _from then ceil(extract(epoch from _to - _from) / 60)::int8 else 0 end;

-- The whole hours between two times that are in agent.queue_outcome_hour; where there are none, both are _from.
create or replace function agent_private.outcome_hours(_from timestamptz, _to timestamptz, out hours_from timestamptz, out hours_to timestamptz)
language plpgsql stable
set search_path to pg_catalog, pg_temp
as $func$
begin
  hours_from = date_bin('1 hour', _from - interval '1 us', 'epoch') + interval '1 hour';
  hours_to = least(coalesce(agent_private.latest_outcome_hour(), '-infinity'), date_bin('1 hour', _to, 'epoch'));
  if hours_from >= hours_to then
    hours_from = _from;
    hours_to = _from;
  end if;
end
$func$;

-- The percentiles of durations that are counted by key and bin: no row of a key without any.
create or replace function agent_private.bin_percentiles(_keys text[], _bins int2[], _counts int8[])
returns table (key text, p50 interval, p95 interval)
language sql immutable
set search_path to pg_catalog, pg_temp
as $func$
  select c.key
  , agent_private.bin_duration(min(c.bin) filter (where c.so_far >= c.total * 0.5))
  , agent_private.bin_duration(min(c.bin) filter (where c.so_far >= c.total * 0.95))
  from
  ( select b.key, b.bin, sum(b.n) over (partition by b.key order by b.bin) as so_far, sum(b.n) over (partition by b.key) as total
    from (select a.key, a.bin, sum(a.n) as n from unnest(_keys, _bins, _counts) as a (key, bin, n) group by a.key, a.bin) as b
  ) as c
  group by c.key
$func$;

-- Raises QD003 unless these are bounds and a length of buckets: multiples of a minute, and at most _max_buckets.
create or replace function agent_private.check_buckets(_from timestamptz, _to timestamptz, _bucket interval, _max_buckets int4)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  if _bucket is null or _bucket < interval '1 minute' or extract(month from _bucket) <> 0 or extract(year from _bucket) <> 0
    or extract(epoch from _bucket) % 60 <> 0
  then
    perform agent_private.raise_invalid('bucket', 'must be whole minutes');
  elsif not coalesce(isfinite(_from) and isfinite(_to) and _from < _to, false) then
    perform agent_private.raise_invalid('from', 'must be finite, and before to');
  elsif extract(epoch from _to - _from) / extract(epoch from _bucket) > _max_buckets then
    perform agent_private.raise_invalid('bucket', format('must be longer: from and to would be more than %s buckets apart', _max_buckets));
  end if;
end
$func$;

-- What is known of queues over time: since when, the latest sample, and the time up to which outcomes are counted. Null: they were never sampled.
create or replace function agent_private.statistics_bounds(out since timestamptz, out sampled_at timestamptz)
language sql stable
set search_path to pg_catalog, pg_temp
as $func$
  select (select s.at from agent.queue_sampling s order by s.at limit 1)
  , (select s.sampled_at from agent.queue_sampling s where s.sampled_at is not null order by s.at desc limit 1)
$func$;

-- Statistics of a queue in the buckets from _from to _to, which have to be multiples of _bucket since 1970-01-01 UTC; none of those that begin after now. In each row:
-- samples is how many minutes of the bucket were sampled; ready to is_estimate are of the last of them, and null if there is none, as is max_ready, the most; the
-- percentiles are null if nothing ended that has such a duration; is_complete says that all that ended in it up to now is counted; events is how many events were
-- counted, of all queues; since, sampled_at and through are the same in each row, see statistics_bounds and recent_outcomes. The last row has the whole time, and no bucket.
create or replace function agent_service.queue_series
( _queue text
, _from timestamptz
, _to timestamptz
, _bucket interval
, _max_buckets int4 default 1500
)
returns table
( bucket timestamptz, samples int8, ready int8, scheduled int8, waiting int8, leased int8, oldest_ready_age interval, is_estimate boolean, max_ready int8
, done int8, failed int8, expired int8, cancelled int8
, wait_p50 interval, wait_p95 interval, processing_p50 interval, processing_p95 interval
, is_complete boolean, events int8, since timestamptz, sampled_at timestamptz, through timestamptz
)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set timezone to 'UTC' -- days of 24 hours
set jit to off
set max_parallel_workers_per_gather to 0
as $func$
#variable_conflict use_column
declare
  _now timestamptz = clock_timestamp();
  _recent record;
  _bounds record;
begin
  perform agent_private.check_buckets(_from, _to, _bucket, _max_buckets);
  select r.* into strict _recent from agent_private.recent_outcomes(_now) r;
  select b.* into strict _bounds from agent_private.statistics_bounds() b;
  return query
  with outcomes as materialized
  ( select date_bin(_bucket, o.at, 'epoch') as bucket, o.done, o.failed, o.expired, o.cancelled
    , o.wait_bins, o.wait_counts, o.processing_bins, o.processing_counts
    from agent.queue_outcome o
    where o.queue = _queue and o.at >= _from and o.at < least(_to, _recent.since)
    union all
    select date_bin(_bucket, r.at, 'epoch'), r.done, r.failed, r.expired, r.cancelled, r.wait_bins, r.wait_counts, r.processing_bins, r.processing_counts
    from unnest(_recent.outcomes) r
    where r.queue = _queue and r.at >= _from and r.at < _to
  )
  , counts as
  ( select grouping(o.bucket) = 1 as is_all, o.bucket
    , sum(o.done)::int8 as done, sum(o.failed)::int8 as failed, sum(o.expired)::int8 as expired, sum(o.cancelled)::int8 as cancelled
    from outcomes o
    group by grouping sets ((o.bucket), ())
  )
  , wait_bins as materialized
  ( select o.bucket, b.bin, sum(b.n)::int8 as n from outcomes o cross join lateral unnest(o.wait_bins, o.wait_counts) as b (bin, n) group by o.bucket, b.bin
  )
  , processing_bins as materialized
  ( select o.bucket, b.bin, sum(b.n)::int8 as n from outcomes o cross join lateral unnest(o.processing_bins, o.processing_counts) as b (bin, n) group by o.bucket, b.bin
  )
  , waits as materialized
  ( select p.*
    from (select array_agg(x.key) as keys, array_agg(x.bin) as bins, array_agg(x.n) as counts
          from (select w.bucket::text as key, w.bin, w.n from wait_bins w union all select 'all', w.bin, w.n from wait_bins w) as x) as a
    cross join lateral agent_private.bin_percentiles(a.keys, a.bins, a.counts) as p
  )
  , processings as materialized
  ( select p.*
    from (select array_agg(x.key) as keys, array_agg(x.bin) as bins, array_agg(x.n) as counts
          from (select w.bucket::text as key, w.bin, w.n from processing_bins w union all select 'all', w.bin, w.n from processing_bins w) as x) as a
    cross join lateral agent_private.bin_percentiles(a.keys, a.bins, a.counts) as p
  )
  , samplings as materialized
  ( select date_bin(_bucket, s.at, 'epoch') as bucket, count(s.sampled_at) as samples, max(s.at) filter (where s.sampled_at is not null) as last_at
    , (array_agg(s.sampled_at order by s.at desc) filter (where s.sampled_at is not null))[1] as last_sampled_at
    , count(*) filter (where s.is_complete and s.at < _recent.since) as complete_minutes
    , sum(s.events) filter (where s.at < _recent.since)::int8 as events
    from agent.queue_sampling s
    where s.at >= _from and s.at < _to
    group by 1
  )
  , highest as materialized
  ( select date_bin(_bucket, s.at, 'epoch') as bucket, max(s.ready) as ready
    from agent.queue_sample s
    where s.queue = _queue and s.at >= _from and s.at < _to
    group by 1
  )
  , recent as materialized
  ( select date_bin(_bucket, r.at, 'epoch') as bucket, sum(r.done + r.failed + r.expired + r.cancelled)::int8 as events from unnest(_recent.outcomes) r group by 1
  )
  , buckets as
  ( select false as is_all, b.start, least(b.start + _bucket, _now) as ends, s.samples, s.last_at, s.last_sampled_at
    , coalesce(s.complete_minutes, 0) + agent_private.minutes_of(greatest(b.start, _recent.since), least(b.start + _bucket, _now))
      >= agent_private.minutes_of(b.start, least(b.start + _bucket, _now)) as is_complete
    , coalesce(s.events, 0) + coalesce(r.events, 0) as events
    from generate_series(_from, least(_to, _now) - interval '1 us', _bucket) as b (start)
    left join samplings s on s.bucket = b.start
    left join recent r on r.bucket = b.start
  )
  select b.start, coalesce(b.samples, 0)
  , case when b.samples > 0 then coalesce(d.ready, 0) end, case when b.samples > 0 then coalesce(d.scheduled, 0) end
  , case when b.samples > 0 then coalesce(d.waiting, 0) end, case when b.samples > 0 then coalesce(d.leased, 0) end
  , case when b.samples > 0 and d.oldest_ready_at is not null
      then greatest(least(agent_private.elapsed(d.oldest_ready_at, b.last_sampled_at), interval '100000 days'), interval '0') end
  , case when b.samples > 0 then coalesce(d.is_estimate, false) end
  , case when b.samples > 0 then greatest(h.ready, f.ready, 0) end
  , coalesce(c.done, 0), coalesce(c.failed, 0), coalesce(c.expired, 0), coalesce(c.cancelled, 0)
  , w.p50, w.p95, p.p50, p.p95
  , coalesce(b.is_complete, false), b.events, _bounds.since, _bounds.sampled_at, _recent.through
  from buckets b
  left join lateral
  ( select s.* from agent.queue_sample s where s.queue = _queue and s.at <= b.last_at order by s.at desc limit 1
  ) as d on true
  left join lateral
  ( select s.ready from agent.queue_sample s where s.queue = _queue and s.at <= b.start order by s.at desc limit 1
  ) as f on true
  left join highest h on h.bucket = b.start
  left join counts c on c.bucket = b.start and not c.is_all
  left join waits w on w.key = b.start::text
  left join processings p on p.key = b.start::text
  union all
  select null, coalesce((select sum(s.samples) from samplings s), 0)::int8, null, null, null, null, null, null, null
  , coalesce(c.done, 0), coalesce(c.failed, 0), coalesce(c.expired, 0), coalesce(c.cancelled, 0)
  , w.p50, w.p95, p.p50, p.p95
  , coalesce((select bool_and(b.is_complete) from buckets b), true), coalesce((select sum(b.events) from buckets b), 0)::int8
  , _bounds.since, _bounds.sampled_at, _recent.through
  from counts c
  left join waits w on w.key = 'all'
  left join processings p on p.key = 'all'
  where c.is_all
  order by 1;
end
$func$;

-- What waits in all queues, of those that a pattern of _queues stands for (null: all) and that have _name_contains in their names (null: all): counted now where that is
-- cheap, else as it was sampled last.
create or replace function agent_private.current_depths(_now timestamptz, _queues text[], _name_contains text)
returns table (queue text, ready int8, scheduled int8, waiting int8, leased int8, oldest_ready_at timestamptz, is_estimate boolean)
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set jit to off
as $func$
#variable_conflict use_column
begin
  if agent_private.is_event_table_small() then
    return query
    select d.queue, d.ready, d.scheduled, d.waiting, d.leased, d.oldest_ready_at, d.is_estimate
    from agent_private.queue_depths(_now) d
    where agent_private.is_part_of_name(_name_contains, d.queue) and (_queues is null or agent_private.is_queue_allowed(d.queue, _queues));
  else
    return query
    select l.queue, l.ready, l.scheduled, l.waiting, l.leased, l.oldest_ready_at, l.is_estimate
    from agent.queue_latest l
    where agent_private.is_part_of_name(_name_contains, l.queue) and (_queues is null or agent_private.is_queue_allowed(l.queue, _queues));
  end if;
end
$func$;

-- Statistics of the queues that hold events, have a policy, or have had events in the last seven days, of those that a pattern of _queues stands for (null: all) and that
-- have _name_contains in their names, in upper or lower case (null: all), from _from to _to, which have to be multiples of _bucket since 1970-01-01 UTC. The first row, whose queue is null, is of all of them, and total says how many they are. The
-- others are up to _limit after the first _offset, in the order of _order: failed (most failed or expired first), waiting (most that are due first, ready or waiting for their turn), oldest (the oldest ready event
-- first) or name. push is null without one, else enabled, open (its breaker is) or disabled. dead_letters_of are the queues whose dead letters it takes, as in queue_stats. ready_series has the
-- ready events at the end of each bucket, null where none was sampled, up to now; failed_series how many events failed or expired in each, and last_failed_at the latest minute in which one did. is_live says that the counts of all queues are of now; else those of the rows of single queues are, and the others and the order are of the latest sample.
create or replace function agent_service.queue_overview
( _from timestamptz
, _to timestamptz
, _bucket interval
, _order text default 'failed'
, _limit int4 default 50
, _offset int4 default 0
, _queues text[] default null
, _max_buckets int4 default 120
, _name_contains text default null
)
returns table
( queue text, total int8, ready int8, scheduled int8, waiting int8, leased int8, oldest_ready_age interval, is_estimate boolean, paused boolean, push text
, done int8, failed int8, expired int8, cancelled int8, wait_p95 interval, processing_p95 interval, ready_series int8[], failed_series int8[], last_failed_at timestamptz
, dead_letters_of text[], is_live boolean, since timestamptz, sampled_at timestamptz, through timestamptz
)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set timezone to 'UTC'
set jit to off
set max_parallel_workers_per_gather to 0
as $func$
#variable_conflict use_column
declare
  _now timestamptz = clock_timestamp();
  _is_live boolean = agent_private.is_event_table_small();
  _recent record;
  _bounds record;
  _end timestamptz; -- of what is counted
  _hours record;
  _whole record; -- the hours that no bucket has a part of
  _names text[];
  _all record;
begin
  perform agent_private.check_buckets(_from, _to, _bucket, _max_buckets);
  if _order is null or _order not in ('failed', 'waiting', 'oldest', 'name') then
    perform agent_private.raise_invalid('order', 'must be failed, waiting, oldest or name');
  elsif coalesce(_limit, 0) not between 1 and 200 then
    perform agent_private.raise_invalid('limit', 'must be from 1 to 200');
  elsif coalesce(_offset, -1) < 0 then
    perform agent_private.raise_invalid('offset', 'must not be negative');
  end if;
  select r.* into strict _recent from agent_private.recent_outcomes(_now) r;
  select b.* into strict _bounds from agent_private.statistics_bounds() b;
  _end = least(_to, _recent.since);
  select h.* into strict _hours from agent_private.outcome_hours(_from, _end) h;
  -- Buckets of whole hours are sums of hours.
  select h.* into strict _whole from agent_private.outcome_hours(_from, case when extract(epoch from _bucket) % 3600 = 0 then _end else _from end) h;

  with outcomes as
  ( select o.queue, o.done, o.failed, o.expired, o.cancelled from agent.queue_outcome_hour o where o.at >= _hours.hours_from and o.at < _hours.hours_to
    union all
    select o.queue, o.done, o.failed, o.expired, o.cancelled from agent.queue_outcome o where o.at >= _from and o.at < _hours.hours_from
    union all
    select o.queue, o.done, o.failed, o.expired, o.cancelled from agent.queue_outcome o where o.at >= _hours.hours_to and o.at < _end
    union all
    select r.queue, r.done, r.failed, r.expired, r.cancelled from unnest(_recent.outcomes) r where r.at >= _from and r.at < _to
  )
  , counts as materialized
  ( select s.*
    from
    ( select o.queue, sum(o.done)::int8 as done, sum(o.failed)::int8 as failed, sum(o.expired)::int8 as expired, sum(o.cancelled)::int8 as cancelled
      from outcomes o
      group by o.queue
    ) as s
    where agent_private.is_part_of_name(_name_contains, s.queue) and (_queues is null or agent_private.is_queue_allowed(s.queue, _queues))
  )
  , depths as materialized (select d.* from agent_private.current_depths(_now, _queues, _name_contains) d)
  , names as
  ( select d.queue as name from depths d
    union select c.queue from counts c
    union
    select q.name
    from agent.queue q
    where agent_private.is_part_of_name(_name_contains, q.name) and (_queues is null or agent_private.is_queue_allowed(q.name, _queues))
    union
    select l.queue
    from agent.queue_latest l
    where agent_private.is_part_of_name(_name_contains, l.queue) and (_queues is null or agent_private.is_queue_allowed(l.queue, _queues))
  )
  , figures as
  ( select n.name, d.ready, d.scheduled, d.waiting, d.leased, d.oldest_ready_at, d.is_estimate, c.done, c.failed, c.expired, c.cancelled
    from names n
    left join depths d on d.queue = n.name
    left join counts c on c.queue = n.name
  )
  , page as
  ( select f.name
    from figures f
    order by case _order when 'failed' then coalesce(f.failed, 0) + coalesce(f.expired, 0) when 'waiting' then coalesce(f.ready + f.waiting, 0) end desc
    , case when _order in ('failed', 'oldest') then f.oldest_ready_at end
    , f.name
    limit _limit offset _offset
  )
  select
    (select array_agg(p.name) from page p) as names
  , count(*) as total, coalesce(sum(f.ready), 0)::int8 as ready, coalesce(sum(f.scheduled), 0)::int8 as scheduled
  , coalesce(sum(f.waiting), 0)::int8 as waiting, coalesce(sum(f.leased), 0)::int8 as leased
  , min(f.oldest_ready_at) as oldest_ready_at, coalesce(bool_or(f.is_estimate), false) as is_estimate
  , coalesce(sum(f.done), 0)::int8 as done, coalesce(sum(f.failed), 0)::int8 as failed, coalesce(sum(f.expired), 0)::int8 as expired
  , coalesce(sum(f.cancelled), 0)::int8 as cancelled
  into strict _all
  from figures f;
  _names = coalesce(_all.names, '{}');

  return query
  select null::text, _all.total, _all.ready, _all.scheduled, _all.waiting, _all.leased
  , agent_private.age_of(_all.oldest_ready_at, _now), _all.is_estimate
  , null::boolean, null::text, _all.done, _all.failed, _all.expired, _all.cancelled, null::interval, null::interval, null::int8[], null::int8[], null::timestamptz, null::text[]
  , _is_live, _bounds.since, _bounds.sampled_at, _recent.through;

  return query
  with outcomes as materialized
  ( select o.* from unnest(_names) as n (name)
    cross join lateral
    ( select o.* from agent.queue_outcome_hour o where o.queue = n.name and o.at >= _hours.hours_from and o.at < _hours.hours_to
      union all
      select o.* from agent.queue_outcome o where o.queue = n.name and o.at >= _from and o.at < _hours.hours_from
      union all
      select o.* from agent.queue_outcome o where o.queue = n.name and o.at >= _hours.hours_to and o.at < _end
    ) as o
    union all
    select r.* from unnest(_recent.outcomes) r where r.queue = any (_names) and r.at >= _from and r.at < _to
  )
  , counts as
  ( select o.queue, sum(o.done)::int8 as done, sum(o.failed)::int8 as failed, sum(o.expired)::int8 as expired, sum(o.cancelled)::int8 as cancelled
    from outcomes o
    group by o.queue
  )
  , wait_bins as materialized
  ( select o.queue, b.bin, sum(b.n)::int8 as n from outcomes o cross join lateral unnest(o.wait_bins, o.wait_counts) as b (bin, n) group by o.queue, b.bin
  )
  , processing_bins as materialized
  ( select o.queue, b.bin, sum(b.n)::int8 as n from outcomes o cross join lateral unnest(o.processing_bins, o.processing_counts) as b (bin, n) group by o.queue, b.bin
  )
  , waits as materialized
  ( select p.key, p.p95
    from (select array_agg(x.queue) as keys, array_agg(x.bin) as bins, array_agg(x.n) as counts from wait_bins x) as a
    cross join lateral agent_private.bin_percentiles(a.keys, a.bins, a.counts) as p
  )
  , processings as materialized
  ( select p.key, p.p95
    from (select array_agg(x.queue) as keys, array_agg(x.bin) as bins, array_agg(x.n) as counts from processing_bins x) as a
    cross join lateral agent_private.bin_percentiles(a.keys, a.bins, a.counts) as p
  )
  , depths as materialized
  ( select d.queue, d.ready, d.scheduled, d.waiting, d.leased, agent_private.age_of(d.oldest_ready_at, _now) as oldest_ready_age, d.is_estimate
    from agent_private.queue_depths(_now) d
    where _is_live and d.queue = any (_names)
    union all
    select w.queue, w.ready, w.scheduled, w.waiting, w.leased, agent_private.age_of(w.oldest_ready_at, _now), w.estimated
    from agent_private.count_waiting(_now, _names, 20000) w
    where not _is_live
  )
  , recent_failures as materialized
  ( select r.queue, r.at, r.failed, r.expired
    from unnest(_recent.outcomes) r
    where r.queue = any (_names) and r.at >= _from and r.at < _to and r.failed + r.expired > 0
  )
  , failures as
  ( select o.queue, o.at, o.failed + o.expired as n
    from counts c
    cross join lateral
    ( select o.* from agent.queue_outcome_hour o where o.queue = c.queue and o.at >= _whole.hours_from and o.at < _whole.hours_to
      union all
      select o.* from agent.queue_outcome o where o.queue = c.queue and o.at >= _from and o.at < _whole.hours_from
      union all
      select o.* from agent.queue_outcome o where o.queue = c.queue and o.at >= _whole.hours_to and o.at < _end
    ) as o
    where c.failed + c.expired > 0 and o.failed + o.expired > 0
    union all
    select r.queue, r.at, r.failed + r.expired from recent_failures r
  )
  , failed_buckets as materialized (select f.queue, date_bin(_bucket, f.at, 'epoch') as start, sum(f.n)::int8 as n from failures f group by 1, 2)
  , ends as materialized
  ( select b.start, (select max(s.at) from agent.queue_sampling s where s.at >= b.start and s.at < b.start + _bucket and s.sampled_at is not null) as last_at
    from generate_series(_from, least(_to, _now) - interval '1 us', _bucket) as b (start)
  )
  select n.name, null::int8, coalesce(d.ready, 0), coalesce(d.scheduled, 0), coalesce(d.waiting, 0), coalesce(d.leased, 0), d.oldest_ready_age, coalesce(d.is_estimate, false)
  , coalesce(q.paused, false)
  , case when p.queue is not null then case when s.disabled_at is not null then 'disabled' when s.opened_at is not null then 'open' else 'enabled' end end
  , coalesce(c.done, 0), coalesce(c.failed, 0), coalesce(c.expired, 0), coalesce(c.cancelled, 0), w.p95, g.p95
  , array
    ( select case when e.last_at is not null then coalesce
      ( (select s.ready from agent.queue_sample s where s.queue = n.name and s.at <= e.last_at order by s.at desc limit 1), 0) end
      from ends e
      order by e.start
    )
  , array(select coalesce(f.n, 0) from ends e left join failed_buckets f on f.queue = n.name and f.start = e.start order by e.start)
  , coalesce
    ( (select max(r.at) from recent_failures r where r.queue = n.name)
    , case when c.failed + c.expired > 0 then
      ( select o.at from agent.queue_outcome o
        where o.queue = n.name and o.at >= _from and o.at < _end and o.failed + o.expired > 0
        order by o.at desc
        limit 1
      ) end
    )
  , array(select d.name from agent.queue d where d.dead_letter_queue = n.name and agent_private.is_queue_allowed(d.name, _queues) order by d.name limit 100)
  , _is_live, _bounds.since, _bounds.sampled_at, _recent.through
  from unnest(_names) with ordinality as n (name, place)
  left join depths d on d.queue = n.name
  left join counts c on c.queue = n.name
  left join waits w on w.key = n.name
  left join processings g on g.key = n.name
  left join agent.queue q on q.name = n.name
  left join agent.push p on p.queue = n.name
  left join agent.push_state s on s.queue = n.name
  order by n.place;
end
$func$;

-- The queues that something ended in, in the last seven days, of those that a pattern of _queues stands for (null: all) and that have _name_contains in their names (null: all).
-- It takes one look into an index for each queue that there is.
create or replace function agent_private.ended_queues(_queues text[], _name_contains text)
returns setof text
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set enable_seqscan to off
set enable_bitmapscan to off
set jit to off
as $func$
declare
  _queue text = '';
begin
  loop
    select o.queue into _queue from agent.queue_outcome o where o.queue > _queue order by o.queue limit 1;
    exit when _queue is null;
    continue when not agent_private.is_part_of_name(_name_contains, _queue) or not agent_private.is_queue_allowed(_queue, _queues);
    return next _queue;
  end loop;
end
$func$;

-- Outcomes of all queues that a pattern of _queues stands for (null: all) and that have _name_contains in their names (null: all), in the buckets from _from to _to: see queue_overview; none of those that begin after now. For
-- is_complete and events see queue_series.
create or replace function agent_service.outcome_series
( _from timestamptz
, _to timestamptz
, _bucket interval
, _queues text[] default null
, _max_buckets int4 default 120
, _name_contains text default null
)
returns table (bucket timestamptz, done int8, failed int8, expired int8, cancelled int8, is_complete boolean, events int8)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set timezone to 'UTC'
set jit to off
set max_parallel_workers_per_gather to 0
as $func$
#variable_conflict use_column
declare
  _now timestamptz = clock_timestamp();
  _recent record;
  _is_all boolean = _queues is null and _name_contains is null;
  _end timestamptz; -- of what is counted
  _hours record;
  _names text[] = '{}'; -- of the queues
begin
  perform agent_private.check_buckets(_from, _to, _bucket, _max_buckets);
  select r.* into strict _recent from agent_private.recent_outcomes(_now) r;
  _end = least(_to, _recent.since);
  -- Buckets of whole hours are sums of hours.
  select h.* into strict _hours from agent_private.outcome_hours(_from, case when extract(epoch from _bucket) % 3600 = 0 then _end else _from end) h;
  if not _is_all then
    _names = array(select n from agent_private.ended_queues(_queues, _name_contains) n);
  end if;
  return query
  with outcomes as materialized
  ( select s.at, s.done, s.failed, s.expired, s.cancelled
    from agent.queue_sampling s
    where _is_all and s.at >= _from and s.at < _end and s.counted_at is not null
    union all
    select o.at, o.done, o.failed, o.expired, o.cancelled
    from unnest(_names) as n (name)
    cross join lateral
    ( select o.at, o.done, o.failed, o.expired, o.cancelled
      from agent.queue_outcome_hour o
      where o.queue = n.name and o.at >= _hours.hours_from and o.at < _hours.hours_to
      union all
      select o.at, o.done, o.failed, o.expired, o.cancelled from agent.queue_outcome o where o.queue = n.name and o.at >= _from and o.at < _hours.hours_from
      union all
      select o.at, o.done, o.failed, o.expired, o.cancelled from agent.queue_outcome o where o.queue = n.name and o.at >= _hours.hours_to and o.at < _end
    ) as o
    union all
    select r.at, r.done, r.failed, r.expired, r.cancelled
    from unnest(_recent.outcomes) r
    where r.at >= _from and r.at < _to
    and (_is_all or agent_private.is_part_of_name(_name_contains, r.queue) and agent_private.is_queue_allowed(r.queue, _queues))
  )
  , counts as
  ( select date_bin(_bucket, o.at, 'epoch') as bucket
    , sum(o.done)::int8 as done, sum(o.failed)::int8 as failed, sum(o.expired)::int8 as expired, sum(o.cancelled)::int8 as cancelled
    from outcomes o
    group by 1
  )
  , samplings as
  ( select date_bin(_bucket, s.at, 'epoch') as bucket
    , count(*) filter (where s.is_complete) as complete_minutes, sum(s.events)::int8 as events
    from agent.queue_sampling s
    where s.at >= _from and s.at < _end
    group by 1
  )
  , recent as
  ( select date_bin(_bucket, r.at, 'epoch') as bucket, sum(r.done + r.failed + r.expired + r.cancelled)::int8 as events
    from unnest(_recent.outcomes) r
    where r.at >= _from and r.at < _to
    group by 1
  )
  select b.start, coalesce(c.done, 0), coalesce(c.failed, 0), coalesce(c.expired, 0), coalesce(c.cancelled, 0)
  , coalesce(s.complete_minutes, 0) + agent_private.minutes_of(greatest(b.start, _recent.since), least(b.start + _bucket, _now))
    >= agent_private.minutes_of(b.start, least(b.start + _bucket, _now)) and _recent.through is not null
  , coalesce(s.events, 0) + coalesce(r.events, 0)
  from generate_series(_from, least(_to, _now) - interval '1 us', _bucket) as b (start)
  left join counts c on c.bucket = b.start
  left join samplings s on s.bucket = b.start
  left join recent r on r.bucket = b.start
  order by b.start;
end
$func$;
