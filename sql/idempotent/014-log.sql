-- The log: its head, reading in order, and the upkeep of its segments. docs/decisions/010-log.md has the argument why no reader skips
-- anything.

-- The head.

-- Holds the head of the log where it is until the transaction ends: to be called before it draws its first position. Whoever draws a
-- position p has locked an earlier position than p before that, so that readers know of it: see log_head. The lock on agent.log tells it
-- from the advisory locks that anybody may take.
create or replace function agent_private.hold_head()
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set jit to off
as $func$
declare
  _last int8;
begin
  lock table only agent.log in row exclusive mode;
  if not exists (select from agent.log_server s where s.started_at = pg_postmaster_start_time() and s.place = pg_relation_filepath('agent.log_server'))
    or (select s.last_value from agent.log_position_seq s) < (select max(k.until) from agent.log_skip k)
  then
    perform agent_private.advance_log();
  end if;
  _last = (select s.last_value from agent.log_position_seq s);
  if to_regclass('agent.log_' || (_last >> 32)) is null then -- agent.log_segment does not show segments newer than a snapshot
    perform agent_private.add_log_segment(_last >> 32);
  end if;
  while not pg_try_advisory_xact_lock_shared(agent_private.head_lock() << 53 | _last) loop
    _last = _last - 1; -- a stranger has it for itself; any earlier position will do
  end loop;
end
$func$;

-- Moves the log on past every position that can have been given out, if this server was started, or has recovered from a crash, since the last
-- one was, or if this is another place than where that was: a copy of the database. Positions may have been lost that readers have seen: by a crash
-- those that no commit has written to disk (nothing waits for the disk where a transaction is rolled back, or commits asynchronously), by a failover,
-- a restored backup, dump or clone any number. Whoever is the next while the caller's transaction runs waits for its end, and moves the log on again
-- should it fail. A transaction whose snapshot is older than the one that has moved the log on does not see that, so the primary key of
-- agent.log_server tells; one that is serializable fails with serialization_failure (40001) then.
create or replace function agent_private.advance_log()
returns void
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _last int8;
  _next int8 = agent_private.position_of(clock_timestamp() + agent_private.segment_unit());
  _after int8;
  _known int8; -- positions given out up to there are here
begin
  lock table agent.server_change in exclusive mode;
  begin
    -- Restoring a dump into a database in use ends by setting the sequence back, maybe after a session has moved the log on.
    insert into agent.log_server (started_at, place) values (pg_postmaster_start_time(), pg_relation_filepath('agent.log_server'))
    on conflict (started_at, place) do update set place = excluded.place
    where (select s.last_value from agent.log_position_seq s) < (select max(k.until) from agent.log_skip k);
    if not found then
      return; -- another session has done it
    end if;
  exception when serialization_failure then -- another session has done it since this transaction's snapshot was taken
    if current_setting('transaction_isolation') = 'serializable' then
      raise; -- it may be another failure, which must not be passed over
    end if;
    return;
  end;
  _last = greatest((select s.last_value from agent.log_position_seq s), (select max(k.until) from agent.log_skip k));
  if _next <= _last then -- the clock was set back: the server before this one may have opened a segment that this one does not know of
    _next = (_last >> 32) + 2 << 32;
  end if;
  perform setval('agent.log_position_seq', _next);
  _after = greatest((select max(l.position) from agent.log l), (select max(k.until) from agent.log_skip k), 4294967296);
  if exists (select from agent.log_server s where s.place = pg_relation_filepath('agent.log_server') and s.started_at <> pg_postmaster_start_time()) then
    _known = _last; -- the server before this one has ended in good order
  else -- positions that readers have committed here had been read before
    _known = greatest
    ( _after, (select max(g.last_position) from agent.log_segment g), (select c.position from agent.log_count c)
    , (select max(p.position) from agent.subscription_position p)
    );
  end if;
  insert into agent.log_skip (until, after, last) values (_next, _after, _known);
end
$func$;

-- The time that stands for a segment in position_of: 2^21 segments, which is as many as there can be, last for 59 years.
create or replace function agent_private.segment_unit()
returns interval
language sql immutable parallel safe
return interval '15 minutes';

-- The position that the clock stands for: its segment is the number of units since 2026, and its place is how much of the unit has passed, times 2^31.
-- Everything that was given out before a time is below the position of a unit later: a start moves the log on to just there, publishing is slower
-- than the 2.3 million places a second by which the clock moves, and maintain_log closes no segment too early. So a server or a copy that goes on
-- from there gives out nothing again, whatever it knows. Zero where the clock shows no time that has a position: before 2026, and from 2082 on.
create or replace function agent_private.position_of(_at timestamptz)
returns int8
language sql immutable parallel safe
set search_path to pg_catalog, pg_temp
return
( select case when u.units >= 0 and u.units < 1966080 then trunc(u.units)::int8 << 32 | trunc((u.units - trunc(u.units)) * 2147483648)::int8 else 0 end
  from (select (extract(epoch from _at) - 1767225600) / extract(epoch from agent_private.segment_unit()) as units) u
);

-- The upper 11 bits of the advisory locks on positions.
create or replace function agent_private.head_lock()
returns int8
language sql immutable parallel safe
return 679;

-- The position up to which the log is complete. Events up to there have to be read by a statement that begins after this call.
--
-- Each of the two statements has a snapshot of its own, in this order. A position up to _last was drawn before the first one. Its session
-- held a lock on an earlier position by then: either the second statement sees that lock, or the transaction has ended, and later
-- statements see its rows.
create or replace function agent_private.log_head()
returns int8
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set jit to off
as $func$
declare
  _last int8;
  _held int8;
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception 'the log can be read at the isolation level "read committed" only' using errcode = 'feature_not_supported';
  elsif pg_is_in_recovery() then
    raise exception 'the log can be read on the primary only: a standby does not know who is publishing' using errcode = 'feature_not_supported';
  end if;
  if
    ( not exists (select from agent.log_server s where s.started_at = pg_postmaster_start_time() and s.place = pg_relation_filepath('agent.log_server'))
      or (select s.last_value from agent.log_position_seq s) < (select max(k.until) from agent.log_skip k)
    )
    and current_setting('transaction_read_only') = 'off'
  then
    perform agent_private.advance_log(); -- or positions that were given out before would be above the head
  end if;
  _last = (select s.last_value from agent.log_position_seq s);
  _held = (select min(h.position) from agent_private.head_holders h);
  return least(_held, _last);
end
$func$;

-- The sessions that hold the head, and the positions after which they may insert. Of the advisory locks those count whose session has
-- locked agent.log as well. While a transaction is prepared its locks pass to a session of their own (without a pid) one after the other, so these
-- go with any.
create or replace view agent_private.head_holders as
with locks as materialized (select * from pg_locks)
, publishers as materialized
( select r.virtualtransaction, r.pid
  from locks r
  where r.locktype = 'relation' and r.relation = 'agent.log'::regclass and r.mode = 'RowExclusiveLock' and r.granted
  and r.database = (select d.oid from pg_database d where d.datname = current_database())
)
select l.pid, l.virtualtransaction, (l.classid::int8 << 32 | l.objid::int8) & ((1::int8 << 53) - 1) as position
from locks l
where l.locktype = 'advisory' and l.objsubid = 1 and l.granted and l.classid::int8 >> 21 = agent_private.head_lock()
and l.database = (select d.oid from pg_database d where d.datname = current_database())
and
( l.virtualtransaction in (select r.virtualtransaction from publishers r) -- looked up in a hash: strangers may have very many locks
  or l.pid is null and exists (select from publishers)
  or exists (select from publishers r where r.pid is null)
);

-- The transaction that has held the head for longest, if any: events after that cannot be read before that transaction ends. A prepared
-- transaction has no pid.
create or replace function agent.log_holder()
returns table (pid int4, prepared text, "position" int8, age interval, query text)
language sql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
  select h.pid, x.gid, h.position, clock_timestamp() - coalesce(x.prepared, a.xact_start), left(a.query, 1000)
  from agent_private.head_holders h
  left join pg_stat_activity a on a.pid = h.pid
  left join lateral
  ( select p.gid, p.prepared
    from pg_prepared_xacts p
    where h.pid is null and p.database = current_database()
    order by p.prepared
    limit 1
  ) x on true
  order by h.position
  limit 1
$func$;

-- Reading.

-- Up to _limit events of the log after a position, in order; none is skipped that may still come. _topics are patterns: * is any word, and
-- ** at the end one or more. Where events are missing after _after, the first row tells so, whatever _topics are: its topic is queued.gap, which nobody can
-- publish to, its event has the members after, until and reason as log_gap_reason has it, and its position is that from which to read on.
create or replace function agent.read_log(_after int8, _limit int4 default 100, _topics text[] default null)
returns setof agent.log
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set jit to off
set plan_cache_mode to force_custom_plan -- with the segments that can hold something
set enable_seqscan to off -- before its first analyze a segment is taken for small: then a page would sort all that comes after it
set enable_bitmapscan to off
as $func$
declare
  _head int8 = agent_private.log_head();
  _pattern text = agent_private.topic_regex(_topics);
  _gap_until int8 = agent_private.log_gap(_after, _head);
begin
  if _gap_until is not null then
    return query
    select g.*
    from jsonb_populate_record
    ( null::agent.log
    , jsonb_build_object
      ( 'position', _gap_until, 'published_at', clock_timestamp(), 'topic', 'queued.gap'
      , 'event', jsonb_build_object('after', _after, 'until', _gap_until, 'reason', agent_service.log_gap_reason(_after))
      )
    ) g;
    _limit = _limit - 1;
    _after = _gap_until;
  end if;
  return query
  select l.*
  from agent.log l
  where l.position > _after and l.position <= _head and (_pattern is null or l.topic ~ _pattern)
  order by l.position
  limit _limit;
end
$func$;

-- A number that is another one once events read from the log may be there no more: after a start or a crash of the server, a failover, and in a
-- restored database. Of agent.log_server it takes when the row was written: see advance_log.
create or replace function agent_service.log_origin()
returns int8
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  return hashtextextended
  ( concat_ws
    ( ' ', extract(epoch from pg_postmaster_start_time()), 'agent.log_server'::regclass::oid
    , (select max(s.xmin::text::int8) from agent.log_server s where s.started_at = pg_postmaster_start_time())
    )
  , 0
  );
end
$func$;

-- Up to where the events are missing that were, or may have been, published after a position; null if none are. To be called before they are looked
-- for, with the head of the log: see log_gap_reason. For a position that was never given out it is the head, from which reading goes on.
create or replace function agent_private.log_gap(_after int8, _head int8)
returns int8
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
as $func$
begin
  if coalesce(_after, -1) not between 0 and 9007199254740991 then
    perform agent_private.raise_invalid('after', 'must be a position, from 0 to 9007199254740991');
  elsif _after > (select s.last_value from agent.log_position_seq s) then
    return _head;
  end if;
  lock table only agent.log in access share mode; -- a segment that is being dropped is gone, and told as a gap, or it stays until this call has ended
  return greatest
  ( (select max(g.last_position) from agent.log_segment g where g.number >= _after >> 32 and g.state = 'dropped' and g.last_position > _after)
  , (select max(k.until) from agent.log_skip k where k.last < _after and k.until > _after)
  );
end
$func$;

-- Why events after a position are missing: "beyond_head", the position was never given out by this log; "lost", it was given out by a server that has
-- lost the positions that it gave out since, or by the original of a database that was restored or cloned; else "retention" has dropped them.
create or replace function agent_service.log_gap_reason(_after int8)
returns text
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  return case
    when _after > (select s.last_value from agent.log_position_seq s) then 'beyond_head'
    when exists (select from agent.log_skip k where k.last < _after and k.until > _after) then 'lost'
    else 'retention'
  end;
end
$func$;

-- A page of the log for the service: up to _limit events after a position, whose texts take about _max_bytes at most, but one at least.
-- _topics are names, not patterns. An event that nobody can read has neither event nor meta. Every row has the position up to which the log is complete
-- (head) and, if events are missing after _after, up to where (gap_until). From a position that was never given out reading goes on from the head. bytes
-- counts the texts so far: a page of fewer than _limit events and _max_bytes has all there is up
-- to the head. A page without events is one row without a position.
create or replace function agent_service.read_log_page(_after int8, _limit int4, _max_bytes int8, _topics text[] default null)
returns table
( head int8, gap_until int8, bytes int8
, "position" int8, published_at timestamptz, topic text, event jsonb, meta jsonb, key text, subscription text
)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set jit to off
set plan_cache_mode to force_generic_plan -- the statements to plan for each page are in log_page
as $func$
#variable_conflict use_column
declare
  _head int8 = agent_private.log_head();
  _gap_until int8 = agent_private.log_gap(_after, _head);
begin
  if _after < _head then
    return query
    select _head, _gap_until, p.bytes, p.position, p.published_at, p.topic, p.event, p.meta, p.key, p.subscription
    from agent_private.log_page(_after, _head, _limit, _topics) p
    where p.bytes - p.size < _max_bytes;
  end if;
  if _after >= _head or not found then
    return query select _head, _gap_until, 0::int8, null::int8, null::timestamptz, null, null::jsonb, null::jsonb, null, null;
  end if;
end
$func$;

-- The first _limit events of the log after a position and up to another, in order, with the size of the texts of each and of all so far.
create or replace function agent_private.log_page(_after int8, _until int8, _limit int4, _topics text[])
returns table
( "position" int8, published_at timestamptz, topic text, event jsonb, meta jsonb, key text, subscription text, size int4, bytes int8
)
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set jit to off
set plan_cache_mode to force_custom_plan -- with the segments that can hold something: a generic plan would lock each segment there is
set enable_seqscan to off -- before its first analyze a segment is taken for small: then a page would sort all that comes after it
set enable_bitmapscan to off
as $func$
#variable_conflict use_column
begin
  if _topics is null then
    return query
    select l.position, l.published_at, l.topic, l.event, l.meta, l.key, l.subscription
    , l.text_size, sum(l.text_size) over (order by l.position rows unbounded preceding)
    from
    ( select l.*
      from agent.log l
      where l.position > _after and l.position <= _until
      order by l.position
      limit _limit
    ) l;
  else
    return query
    select l.position, l.published_at, l.topic, l.event, l.meta, l.key, l.subscription
    , l.text_size, sum(l.text_size) over (order by l.position rows unbounded preceding)
    from
    ( select l.*
      from (select distinct unnest(_topics)) as t (topic)
      cross join lateral
      ( select l.*
        from agent.log l
        where (l.topic, l.position) > (t.topic, _after) and (l.topic, l.position) <= (t.topic, _until) and l.position > _after and l.position <= _until
        order by l.topic, l.position -- one topic; said like this, lest all of the log is searched for one that is rare
        limit _limit
      ) l
      order by l.position
      limit _limit
    ) l;
  end if;
end
$func$;

-- A page of the log backwards, for the service: up to _limit events before a position (null: the last ones), the latest first, whose texts take about _max_bytes at most, but one
-- at least. _topics, head and bytes are those of read_log_page; a page of fewer than _limit events and _max_bytes has all there is. A page without events is one row without a
-- position.
create or replace function agent_service.read_log_back(_before int8, _limit int4, _max_bytes int8, _topics text[] default null)
returns table
( head int8, bytes int8
, "position" int8, published_at timestamptz, topic text, event jsonb, meta jsonb, key text, subscription text
)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set jit to off
set plan_cache_mode to force_custom_plan -- see log_page
set enable_seqscan to off
set enable_bitmapscan to off
as $func$
#variable_conflict use_column
declare
  _head int8 = agent_private.log_head();
  _until int8 = least(_before - 1, _head);
begin
  if _topics is null then
    return query
    select _head, p.bytes, p.position, p.published_at, p.topic, p.event, p.meta, p.key, p.subscription
    from
    ( select l.position, l.published_at, l.topic, l.event, l.meta, l.key, l.subscription
      , l.text_size as size, sum(l.text_size) over (order by l.position desc rows unbounded preceding) as bytes
      from
      ( select l.*
        from agent.log l
        where l.position <= _until
        order by l.position desc
        limit _limit
      ) l
    ) p
    where p.bytes - p.size < _max_bytes
    order by p.position desc;
  else
    return query
    select _head, p.bytes, p.position, p.published_at, p.topic, p.event, p.meta, p.key, p.subscription
    from
    ( select l.position, l.published_at, l.topic, l.event, l.meta, l.key, l.subscription
      , l.text_size as size, sum(l.text_size) over (order by l.position desc rows unbounded preceding) as bytes
      from
      ( select l.*
        from (select distinct unnest(_topics)) as t (topic)
        cross join lateral
        ( select l.*
          from agent.log l
          where (l.topic, l.position) >= (t.topic, 0) and (l.topic, l.position) <= (t.topic, _until) and l.position <= _until
          order by l.topic desc, l.position desc -- one topic: see log_page
          limit _limit
        ) l
        order by l.position desc
        limit _limit
      ) l
    ) p
    where p.bytes - p.size < _max_bytes
    order by p.position desc;
  end if;
  if not found then
    return query select _head, 0::int8, null::int8, null::timestamptz, null, null::jsonb, null::jsonb, null, null;
  end if;
end
$func$;

-- The event at a position, unless it cannot be read yet, is for one subscription alone, or is gone.
create or replace function agent_service.get_published(_position int8)
returns setof agent.log
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set jit to off
as $func$
declare
  _head int8 = agent_private.log_head();
begin
  return query
  select l.*
  from agent.log l
  where l.position = _position and l.position <= _head and l.subscription is null;
end
$func$;

-- The last events of the log, in order, those for one subscription alone left out.
create or replace function agent_service.last_published(_limit int4)
returns setof agent.log
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set jit to off
as $func$
declare
  _head int8 = agent_private.log_head();
begin
  return query
  select e.*
  from (select l.* from agent.log l where l.position <= _head and l.subscription is null order by l.position desc limit _limit) e
  order by e.position;
end
$func$;

-- The first position that can still be read or the one that will be given out first, and the position up to which the log is complete. Where the oldest
-- segment begins with places that were passed over, the first position is after them: who begins with it has read nothing that can have been lost.
create or replace function agent.log_bounds(out first int8, out head int8)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  head = agent_private.log_head();
  select min(g.number) << 32 into first from agent.log_segment g where g.state <> 'dropped';
  first = coalesce((select max(k.until) from agent.log_skip k where k.last < first and k.until > first), first) + 1;
end
$func$;

-- The position after which everything is that was published at _at or later, by the clock of the server.
create or replace function agent.log_position(_at timestamptz)
returns int8
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set jit to off
set plan_cache_mode to force_custom_plan
as $func$
declare
  _head int8;
  _low int8;  -- events up to there were published earlier
  _high int8; -- events after it were not, or there are none
  _probe int8;
  _found record;
begin
  if _at is null then
    perform agent_private.raise_invalid('at', 'must not be null');
  end if;
  select b.first - 1, b.head into _low, _head from agent.log_bounds() b;
  _high = greatest(_head, _low);
  while _low < _high loop
    _probe = _low + (_high - _low) / 2;
    select l.position, l.published_at into _found from agent.log l where l.position > _probe and l.position <= _high order by l.position limit 1;
    -- Positions and times have the same order but for the moment between the drawing of the one and the reading of the other.
    if not found or _found.published_at >= _at - interval '1 second' then
      _high = _probe;
    else
      _low = _found.position;
    end if;
  end loop;
  select l.position - 1 into _high from agent.log l where l.position > _low and l.position <= _head and l.published_at >= _at order by l.position limit 1;
  return coalesce(_high, _head);
end
$func$;

-- Raises QD003 for a position that was never given out.
create or replace function agent_private.check_position(_position int8)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  if coalesce(_position, -1) < 0 then
    perform agent_private.raise_invalid('after', 'must be a position, 0 or more');
  elsif _position > (select s.last_value from agent.log_position_seq s) then
    perform agent_private.raise_invalid('after', 'is later than the last position of this log');
  end if;
end
$func$;

-- A regular expression for the topics that one of _patterns takes, null for null. Only a pattern that begins with "queued." takes the
-- service's own topics. Raises QD003 for a text that is no pattern.
create or replace function agent_private.topic_regex(_patterns text[])
returns text
language plpgsql immutable
set search_path to pg_catalog, pg_temp
as $func$
declare
  _pattern text;
  _alternatives text[] = '{}';
begin
  if _patterns is null then
    return null;
  end if;
  foreach _pattern in array _patterns loop
    if coalesce(length(_pattern) > 255 or _pattern !~ '^(([A-Za-z0-9_:-]+|[*])[.]){0,7}([A-Za-z0-9_:-]+|[*]|[*][*])$', true) then
      perform agent_private.raise_invalid('topics', 'must be names of topics, in which * stands for one word and ** at the end for one or more');
    end if;
    _alternatives = _alternatives ||
      ( case when starts_with(_pattern, '*') then '(?!queued[.])' else '' end || replace(replace(replace(replace(_pattern, '.', '[.]'), '**', '#'), '*', '[^.]+'), '#', '.+') );
  end loop;
  return '^(' || array_to_string(_alternatives, '|') || ')$';
end
$func$;

-- Topics.

-- Adds events that have come to the log since the last call to the counts of topics, up to _limit events, and returns how many these were. Raises
-- lock_not_available (55P03) while another session does it.
create or replace function agent_service.count_topics(_limit int4 default 100000)
returns int4
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set jit to off
set plan_cache_mode to force_custom_plan
as $func$
declare
  _head int8 = agent_private.log_head();
  _after int8;
  _last int8;
  _count int4;
begin
  select c.position into _after from agent.log_count c for update nowait;
  with counted as
  ( select l.position, l.topic, l.published_at
    from agent.log l
    where l.position > _after and l.position <= _head
    order by l.position
    limit _limit
  )
  , added as
  ( insert into agent.log_topic as t (topic, segment, events, last_position, last_at)
    select c.topic, c.position >> 32, count(*), max(c.position), max(c.published_at)
    from counted c
    group by 1, 2
    on conflict (topic, segment) do update
    set events = t.events + excluded.events, last_position = excluded.last_position, last_at = greatest(t.last_at, excluded.last_at)
  )
  select count(*), max(c.position) into _count, _last from counted c;
  if _count < _limit then
    _last = _head;
  end if;
  if _last > _after then
    update agent.log_count c set position = _last;
  end if;
  return _count;
end
$func$;

-- The topics that have events in the log, by name: up to _limit after _after, of those that a pattern of _topics stands for (null: all).
create or replace function agent.list_topics(_limit int4 default 100, _after text default null, _topics text[] default null)
returns table (topic text, events int8, last_position int8, last_at timestamptz)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set jit to off
set plan_cache_mode to force_custom_plan
as $func$
#variable_conflict use_column
declare
  _head int8 = agent_private.log_head();
  _pattern text = agent_private.topic_regex(_topics);
begin
  return query
  with uncounted as
  ( select l.topic, count(*) as events, max(l.position) as last_position, max(l.published_at) as last_at
    from agent.log l
    where l.position > (select c.position from agent.log_count c) and l.position <= _head and (_after is null or l.topic > _after)
    group by 1
  )
  select s.topic collate "C", sum(s.events)::int8, max(s.last_position), max(s.last_at)
  from
  ( select t.topic, t.events, t.last_position, t.last_at from agent.log_topic t where _after is null or t.topic > _after
    union all
    select u.topic, u.events, u.last_position, u.last_at from uncounted u
  ) s
  where _pattern is null or s.topic ~ _pattern
  group by 1
  order by 1
  limit _limit;
end
$func$;

-- Segments.

-- Makes the partition of a segment, unless it is there.
create or replace function agent_private.add_log_segment(_number int8)
returns void
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _name text = 'log_' || _number;
begin
  lock table agent.log_segment in share row exclusive mode;
  -- The name tells also a transaction whose snapshot is older.
  if exists (select from agent.log_segment g where g.number = _number) or to_regclass('agent.' || _name) is not null then
    return; -- another session has made it meanwhile
  end if;
  -- Attached, not made as a partition: that would lock the log against all others.
  execute format('create table agent.%I (like agent.log including all)', _name);
  execute format('alter table agent.log attach partition agent.%I for values from (%s) to (%s)', _name, _number << 32, (_number + 1) << 32);
  insert into agent.log_segment (number, opened_at, state)
  select _number, case when s.number = _number then clock_timestamp() end, case when s.number = _number then 'open' else 'ahead' end
  from (select q.last_value >> 32 as number from agent.log_position_seq q) s;
end
$func$;

-- Takes the next step in the upkeep of the log's segments and returns its action; null if nothing is left to do. Each step needs a
-- transaction of its own. Segments are made ahead; the open one is closed when it is as old or as large as the settings say, and has
-- events; closed ones are counted. Times that are in the future, as the clock was set back, become the present. While the open one is ahead of the clock, as it is after a start, it is closed when it is a quarter of an hour old,
-- or older if the settings say so. Raises lock_not_available (55P03) while another session does it.
create or replace function agent_service.maintain_log()
returns text
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set lock_timeout to '2s'
set jit to off
set plan_cache_mode to force_custom_plan
as $func$
declare
  _open int8;
  _segment agent.log_segment;
  _settings agent.log_settings;
  _last int8;
  _first int8; -- of the events in the open segment
  _age interval;
  _is_early boolean;
begin
  perform agent_private.lock_upkeep('log');
  if not exists (select from agent.log_server s where s.started_at = pg_postmaster_start_time() and s.place = pg_relation_filepath('agent.log_server')) then
    perform agent_private.advance_log();
  end if;
  delete from agent.log_server s where (s.started_at, s.place) is distinct from (pg_postmaster_start_time(), pg_relation_filepath('agent.log_server'));
  update agent.log_segment g -- the clock was set back: they would be kept until it has caught up
  set opened_at = least(g.opened_at, clock_timestamp()), closed_at = case when g.closed_at is not null then least(g.closed_at, clock_timestamp()) end
  where g.state <> 'dropped' and greatest(g.opened_at, g.closed_at) > clock_timestamp() + interval '1 second';
  select s.last_value >> 32, s.last_value into _open, _last from agent.log_position_seq s;
  for _n in 0 .. agent_private.segments_ahead() loop
    if not exists (select from agent.log_segment g where g.number = _open + _n) then
      perform agent_private.add_log_segment(_open + _n);
      return 'added segment ' || _open + _n;
    end if;
  end loop;

  update agent.log_segment g
  set state = 'closed', closed_at = clock_timestamp(), opened_at = coalesce(g.opened_at, clock_timestamp())
  where g.number < _open and g.state in ('ahead', 'open');
  update agent.log_segment g set state = 'open', opened_at = clock_timestamp() where g.number = _open and g.state = 'ahead';

  select g.* into _segment from agent.log_segment g where g.state = 'closed' and g.events is null order by g.number limit 1;
  if found and agent_private.log_head() >= (_segment.number + 1) << 32 then
    update agent.log_segment g
    set (events, last_position) =
      (select count(*), max(l.position) from agent.log l where l.position >= g.number << 32 and l.position < (g.number + 1) << 32)
    where g.number = _segment.number;
    return 'counted segment ' || _segment.number;
  end if;

  select s.* into strict _settings from agent.log_settings s;
  select g.* into strict _segment from agent.log_segment g where g.number = _open;
  select min(l.position) into _first from agent.log l where l.position > _open << 32 and l.position <= _last;
  _is_early = (_open + 1) << 32 > agent_private.position_of(clock_timestamp()); -- see position_of
  _age = clock_timestamp() - _segment.opened_at;
  if _last > _open << 32
    and ( _age >= case when _is_early then greatest(_settings.segment_interval, agent_private.segment_unit()) else _settings.segment_interval end
      or not _is_early and _last - _first >= _settings.segment_size - 1
    )
  then
    lock table agent.server_change in exclusive mode; -- whoever moves the sequence ahead after a restart must not be overtaken
    if (select s.last_value >> 32 from agent.log_position_seq s) = _open then
      perform setval('agent.log_position_seq', (_open + 1) << 32);
    end if;
    return 'closed segment ' || _open;
  end if;
  return null;
end
$func$;

-- How many segments are made ahead.
create or replace function agent_private.segments_ahead()
returns int8
language sql immutable parallel safe
return 4;

-- Drops the oldest segment if retention has passed since it was closed, with its partition, and returns its number; null if there is none.
-- While a durable subscription has not read all of it, it is kept until the time to hold has passed, too.
-- Raises lock_not_available (55P03) rather than make publishers wait: call it again then.
create or replace function agent_service.drop_log_segment()
returns int8
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set lock_timeout to '50ms'
as $func$
declare
  _number int8;
  _name text;
begin
  perform agent_private.lock_upkeep('log');
  select g.number into _number
  from (select g.* from agent.log_segment g where g.state <> 'dropped' order by g.number limit 1) g
  cross join agent.log_settings s
  where g.state = 'closed' and g.events is not null and agent_private.add_utc(g.closed_at, s.retention) <= clock_timestamp()
  and (agent_private.add_utc(g.closed_at, s.hold) <= clock_timestamp() or not coalesce(agent_private.is_needed(g.last_position), false));
  if not found then
    return null;
  end if;
  _name = 'log_' || _number;
  execute format('lock table only agent.%I in share update exclusive mode', _name); -- waits for vacuum
  lock table only agent.log in access exclusive mode;
  execute format('alter table agent.log detach partition agent.%I', _name);
  execute format('drop table agent.%I', _name);
  delete from agent.log_topic t where t.segment = _number;
  delete from agent.log_skip k using agent.log_segment g where g.number = _number and k.until <= g.last_position;
  update agent.log_segment g set state = 'dropped' where g.number = _number;
  -- The latest one that had events tells where a gap ends. All others would be read, and never used, for ever.
  delete from agent.log_segment g
  where g.state = 'dropped'
  and g.number is distinct from (select max(d.number) from agent.log_segment d where d.state = 'dropped' and d.last_position is not null);
  return _number;
end
$func$;

-- The settings of the log.
create or replace function agent.get_log_settings()
returns agent.log_settings
language sql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
  select s.* from agent.log_settings s
$func$;

-- Changes the settings that are not null, if their version is one of _if_versions (null: any), else raises QD004. They take effect with
-- the next step of upkeep, in whatever process.
create or replace function agent.put_log_settings
( _retention interval default null
, _hold interval default null
, _segment_interval interval default null
, _segment_size int8 default null
, _if_versions int8[] default null
)
returns agent.log_settings
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _settings agent.log_settings;
begin
  select s.* into strict _settings from agent.log_settings s for update;
  if _settings.version <> all (_if_versions) then
    raise exception 'the settings of the log have version %', _settings.version using errcode = 'QD004';
  end if;
  _settings.retention = coalesce(_retention, _settings.retention);
  _settings.hold = coalesce(_hold, _settings.hold);
  _settings.segment_interval = coalesce(_segment_interval, _settings.segment_interval);
  _settings.segment_size = coalesce(_segment_size, _settings.segment_size);
  if _settings.retention < interval '1 minute' or _settings.retention > interval '3650 days' then
    perform agent_private.raise_invalid('retention', 'must be from one minute to ten years');
  elsif _settings.hold < _settings.retention or _settings.hold > interval '3650 days' then
    perform agent_private.raise_invalid('hold', 'must be from the retention to ten years');
  elsif _settings.segment_interval < interval '1 minute' or _settings.segment_interval > interval '30 days' then
    perform agent_private.raise_invalid('segment_interval', 'must be from one minute to 30 days');
  elsif _settings.segment_size not between 1000 and 1000000000 then
    perform agent_private.raise_invalid('segment_size', 'must be from 1000 to 1000000000 events');
  end if;
  update agent.log_settings s
  set retention = _settings.retention, hold = _settings.hold, segment_interval = _settings.segment_interval, segment_size = _settings.segment_size
  , version = s.version + 1, updated_at = now()
  returning s.* into _settings;
  perform agent_private.record_audit('log.put', 'settings', to_jsonb(_settings) - 'is_only');
  return _settings;
end
$func$;

do $script$
begin
  for _n in 0 .. agent_private.segments_ahead() loop
    if not exists (select from agent.log_segment g where g.state in ('open', 'ahead') offset _n) then
      perform agent_private.add_log_segment((select s.last_value >> 32 from agent.log_position_seq s) + _n);
    end if;
  end loop;
end
$script$;
