-- Requeueing: copies from history back into a queue, under new ids that remember the old ones.

-- Copies these events of history, as yet unclaimed, into their queues. Private to the functions of this schema.
create or replace function agent_private.requeue_rows(_ids int8[])
returns table (old_id int8, new_id int8, queue text)
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
#variable_conflict use_column
declare
  _old int8[];
  _new int8[];
begin
  with copied as
  ( insert into agent.event overriding user value -- the ids are the sequence's
    select e.*
    from agent.event_hist h
    cross join lateral agent_private.new_event
    ( null, now(), h.event, h.event_ts, h.queue
    , _type => h.type, _source => h.source, _priority => h.priority, _max_attempts => h.max_attempts, _occurrence => h.occurrence, _requeued_from => h.id
    ) as e
    where h.id = any(_ids)
    order by h.event_ts, h.id
    returning id, queue, requeued_from
  )
  select array_agg(c.requeued_from), array_agg(c.id) into _old, _new from copied c;

  return query
  update agent.event_hist h
  set requeued_as = r.new_id
  from unnest(_old, _new) as r (old_id, new_id)
  where h.id = r.old_id and h.id = any(_old)
  returning r.old_id, r.new_id, h.queue;
end
$func$;

-- Puts one event of history back into its queue and returns the copy's id. Raises QD002 when history has no such event.
create or replace function agent.requeue_event(_id int8, _notify boolean default true)
returns table (id int8, queue text)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
#variable_conflict use_column
declare
  _copy record;
begin
  select r.new_id, r.queue into _copy from agent_private.requeue_rows(array[_id]) r;
  if not found then
    perform agent_private.raise_lease_error(_id, 'not_found');
  end if;
  if _notify then
    perform agent.notify_queues(array[_copy.queue]);
  end if;
  return query select _copy.new_id, _copy.queue;
end
$func$;

-- Puts up to _limit events of history that match the filters (see list_history) back, oldest event_ts first, passing over those
-- that were put back before, and those that no queue may have: the same call again goes on where the last one stopped. Returns by queue how many
-- matched in all and how many of them went back; none do when _dry_run.
create or replace function agent.requeue_events
( _queue text default null
, _outcome text default null
, _from timestamptz default null
, _to timestamptz default null
, _contains jsonb default null
, _id int8 default null
, _limit int4 default 1000
, _dry_run boolean default false
, _notify boolean default true
, _type text default null
, _source text default null
, _worker text default null
, _min_duration interval default null
)
returns table (queue text, matched int8, requeued int8)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
#variable_conflict use_column
declare
  _where text = ' from agent.event_hist h where h.requeued_as is null' || agent_private.history_filter(_queue, _from, _to, _contains, _type, _source, _worker, _min_duration)
    || case when _outcome is null then '' else format(' and h.outcome = %L', _outcome) end
    || case when _id is null then '' else format(' and h.id = %L', _id) end;
  _queues text[];
  _matched int8[];
  _chosen int8[];
begin
  if _outcome not in ('done', 'failed', 'expired', 'cancelled') then
    perform agent_private.raise_invalid('outcome', 'must be done, failed, expired or cancelled');
  elsif coalesce(_limit, 0) < 1 then
    perform agent_private.raise_invalid('limit', 'must be at least 1');
  end if;
  if not _dry_run then -- that what was put back before is passed over says that it was put back
    perform agent_private.confirm_durably();
  end if;

  execute 'select array_agg(m.queue), array_agg(m.n) from (select h.queue, count(*)' || _where || ' group by h.queue) m (queue, n)'
    into _queues, _matched;
  if not _dry_run then
    -- Locked, so that two calls at once do not put the same event back twice: the second sees it is marked.
    execute 'select array_agg(c.id) from (select h.id' || _where
      || ' and agent_private.is_valid_event(h.event, h.queue, h.type, h.source, null, h.max_attempts) order by h.event_ts, h.id limit $1 for update) c'
      into _chosen using _limit;
  end if;

  return query
  with copied as materialized
  ( select r.queue, count(*) from agent_private.requeue_rows(_chosen) r group by r.queue
  )
  select m.queue, m.n, coalesce(c.n, 0)
  from unnest(_queues, _matched) as m (queue, n)
  left join copied as c (queue, n) on c.queue = m.queue;
  if _notify and _chosen is not null then
    perform agent.notify_queues(_queues);
  end if;
end
$func$;
