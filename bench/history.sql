-- How long the listings of history take at a million events.
--
--   queued migrate                    on an EMPTY database (QUEUED_DATABASE_URL)
--   psql -X -f bench/history.sql URL  on the same; it truncates agent.event_hist before it begins
--
-- Prints, in milliseconds over 50 calls (5 of the slow ones), the median and the slowest. Each call is made with other values, so none is
-- answered from a warm answer. Statistics are left to autovacuum, as in life: the first pass runs right after loading.
\set QUIET on
\set ON_ERROR_STOP on
set client_min_messages = warning;

truncate agent.event_hist;
select count(*) as partitions_made from (
  select agent_private.create_history_partition(now() - i * interval '7 days') from generate_series(0, 12) i
  where agent_private.history_flavour() = 'partitioned'
) p \gset
insert into agent.event_hist (id, event_ts, attempts, vt, claimed, event, queue, enqueued_at, outcome, finished_at)
select
  i, ts, 1, ts, array[ts]
, jsonb_build_object('n', i, 'user', 'u' || i % 5000, 'kind', case when i % 100000 = 0 then 'rare' else 'common' end, 'pad', repeat('x', 100))
, 'q' || i % 20, ts
, case when i % 200000 = 7 then 'failed' when i % 1000 = 0 then 'expired' when i = 500000 then 'cancelled' else 'done' end
, ts
from (select i, now() - (1000000 - i) * interval '7 seconds' from generate_series(1, 1000000) i) as n (i, ts);

-- The index of finished_at has a summary of all blocks, as it comes to have in life within a minute or so, by autovacuum: without, they are all read.
select count(brin_summarize_new_values(i.indexrelid)) as indexes_summarized
from pg_index i
join pg_class c on c.oid = i.indexrelid and c.relkind = 'i'
join pg_am m on m.oid = c.relam and m.amname = 'brin'
join pg_inherits h on h.inhrelid = i.indrelid and h.inhparent = 'agent.event_hist'::regclass \gset

create function pg_temp.measure(_what text, _call text, _times int4)
returns table (what text, median numeric, slowest numeric)
language plpgsql
volatile
as $func$
declare
  _started timestamptz;
  _ms numeric[];
begin
  for i in 1 .. _times loop
    _started = clock_timestamp();
    execute 'select count(*) from ' || _call using i;
    _ms = _ms || (extract(epoch from clock_timestamp() - _started) * 1000)::numeric(10, 1);
  end loop;
  return query
  select _what, percentile_cont(0.5) within group (order by ms)::numeric(10, 1), max(ms) from unnest(_ms) ms;
end
$func$;

create temp table calls (ord int4 generated always as identity, what text, call text, times int4 default 50);
insert into calls (what, call) values
  ('no filter, page 1', 'agent.list_history()')
, ('no filter, a later page', $$agent.list_history(_before_ts => now() - $1 * interval '1 day', _before_id => 1)$$)
, ('queue', $$agent.list_history(_queue => 'q' || $1 % 20)$$)
, ('outcome done', $$agent.list_history(_outcome => 'done')$$)
, ('outcome failed (5 in all)', $$agent.list_history(_outcome => 'failed')$$)
, ('queue and outcome', $$agent.list_history(_queue => 'q' || $1 % 20, _outcome => 'expired')$$)
, ('from and to, an hour', $$agent.list_history(_from => now() - $1 * interval '1 day', _to => now() - $1 * interval '1 day' + interval '1 hour')$$)
, ('finished within an hour', $$agent.list_history(_finished_from => now() - $1 * interval '1 day', _finished_to => now() - $1 * interval '1 day' + interval '1 hour')$$)
, ('queue and outcome, finished within a day', $$agent.list_history(_queue => 'q' || $1 % 20, _outcome => 'expired', _finished_from => now() - $1 * interval '1 day', _finished_to => now() - $1 * interval '1 day' + interval '1 day')$$)
, ('contains, finished within a day, nothing matches', $$agent.list_history(_contains => jsonb_build_object('user', $1), _finished_from => now() - interval '1 day')$$)
, ('finished since 50 days, page 1', $$agent.list_history(_finished_from => now() - interval '50 days')$$)
, ('finished before 50 days, page 1', $$agent.list_history(_finished_to => now() - interval '50 days' - $1 * interval '1 minute')$$)
, ('id', 'agent.list_history(_id => $1 * 1999)')
, ('contains within a day, nothing matches', $$agent.list_history(_contains => jsonb_build_object('user', $1), _from => now() - interval '1 day')$$)
, ('stats, 24 hours by hour', $$agent.history_stats('1 hour', now() - interval '1 day', now())$$);
insert into calls (what, call, times) values
  ('contains, 1 in 5,000 matches', $$agent.list_history(_contains => jsonb_build_object('user', 'u' || $1))$$, 5)
, ('contains, nothing matches', $$agent.list_history(_contains => jsonb_build_object('user', $1))$$, 5)
, ('stats, 90 days by day', $$agent.history_stats('1 day', now() - interval '90 days', now())$$, 5);

\echo
select version() as server, agent_private.history_flavour() as history \gx
\echo right after loading:
select m.* from calls c cross join lateral pg_temp.measure(c.what, c.call, c.times) m order by c.ord;
analyze agent.event_hist;
\echo after ANALYZE:
select m.* from calls c cross join lateral pg_temp.measure(c.what, c.call, c.times) m order by c.ord;
