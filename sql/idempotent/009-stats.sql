-- Counting: queues as they stand, and history over time.

-- The names of all queues that have an event, waiting or in history.
create or replace function agent.queue_names()
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
    _queue = least
    ( (select e.queue from agent.event e where e.queue > _queue order by e.queue limit 1)
    , (select h.queue from agent.event_hist h where h.queue > _queue order by h.queue limit 1)
    );
    exit when _queue is null;
    return next _queue;
  end loop;
end
$func$;

-- Every queue with what waits in it by state, how long the oldest ready event has been claimable (null: none is; 100,000 days at most), and
-- how many events left it as done and as expired within _lately.
create or replace function agent.queue_stats(_lately interval default interval '1 hour')
returns table
( queue text, ready int8, scheduled int8, leased int8, oldest_ready_age interval, done_lately int8, expired_lately int8
)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set jit to off
as $func$
#variable_conflict use_column
declare
  _now timestamptz = clock_timestamp();
begin
  return query
  with waiting as
  ( select e.queue
    , count(*) filter (where agent_state.is_ready) as ready
    , count(*) filter (where not agent_state.is_ready and not agent_state.is_leased) as scheduled
    , count(*) filter (where not agent_state.is_ready and agent_state.is_leased) as leased
    , _now - min(e.vt) filter (where agent_state.is_ready) as age
    from agent.event e
    cross join lateral (select e.vt <= _now, e.attempts > 0 and e.nacked_at is null) as agent_state (is_ready, is_leased)
    group by e.queue
  )
  , finished as
  ( select h.queue
    , count(*) filter (where h.outcome = 'done') as done
    , count(*) filter (where h.outcome = 'expired') as expired
    from agent.event_hist h
    where h.finished_at > _now - _lately
    group by h.queue
  )
  select n.name, coalesce(w.ready, 0), coalesce(w.scheduled, 0), coalesce(w.leased, 0)
  , case when w.age is not null then least(w.age, interval '100000 days') end
  , coalesce(f.done, 0), coalesce(f.expired, 0)
  from agent.queue_names() as n (name)
  left join waiting w on w.queue = n.name
  left join finished f on f.queue = n.name
  order by n.name;
end
$func$;

-- History counted by outcome per time bucket of event_ts, from _from (inclusive) to _to (exclusive), of _queue (null: all). Buckets are
-- aligned to 1970-01-01 UTC; the first and last may reach beyond the range but count only what lies in it. Empty buckets are there, too.
create or replace function agent.history_stats(_bucket interval, _from timestamptz, _to timestamptz, _queue text default null)
returns table (bucket timestamptz, done int8, failed int8, expired int8, cancelled int8)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set timezone to 'UTC' -- generate_series adds days of the session's zone, date_bin of 24 hours
set jit to off
as $func$
#variable_conflict use_column
begin
  perform agent.refuse('bucket', 'must be at least a second and have no months') where _bucket is null or _bucket < interval '1 second' or extract(month from _bucket) <> 0 or extract(year from _bucket) <> 0;
  perform agent.refuse('from', 'must be finite, and before to') where not coalesce(isfinite(_from) and isfinite(_to) and _from < _to, false);

  return query execute format
  ( $sql$
      select b.bucket, coalesce(c.done, 0), coalesce(c.failed, 0), coalesce(c.expired, 0), coalesce(c.cancelled, 0)
      from generate_series(date_bin($1, $2, 'epoch'), $3 - interval '1 microsecond', $1) as b (bucket)
      left join
      ( select date_bin($1, h.event_ts, 'epoch')
        , count(*) filter (where h.outcome = 'done')
        , count(*) filter (where h.outcome = 'failed')
        , count(*) filter (where h.outcome = 'expired')
        , count(*) filter (where h.outcome = 'cancelled')
        from agent.event_hist h
        where true %s
        group by 1
      ) as c (bucket, done, failed, expired, cancelled) on c.bucket = b.bucket
      order by b.bucket
    $sql$
  , agent.history_filter(_queue, _from, _to, null)
  )
  using _bucket, _from, _to;
end
$func$;
