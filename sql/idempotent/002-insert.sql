-- Inserting events, and the idempotency keys that keep a repeated request from inserting a second event. Waiting claims are woken when
-- the transaction commits.

-- Makes a row of agent.event. All events are inserted from here, so each column has one place. An event with a _lease is claimed at _now
-- by _worker, and _hash is that of its token, see agent_private.token_hash. Inlined, like agent.receipt.
create or replace function agent_private.new_event
( _id int8
, _now timestamptz
, _event jsonb
, _event_ts timestamptz         -- null: from the payload, see agent_private.event_ts
, _queue text
, _delay interval default null
, _vt timestamptz default null
, _lease interval default null
, _worker text default null
, _type text default null
, _source text default null
, _priority int4 default null
, _key text default null
, _max_attempts int4 default null
, _expires_at timestamptz default null
, _occurrence jsonb default null
, _requeued_from int8 default null
, _meta jsonb default null
, _publication jsonb default null
, _hash bytea default null
, _dead_letter_of int8 default null
, _group text default null
, _flow int2 default null
, _flow_version int8 default null
)
returns setof agent.event
language sql stable
rows 1
begin atomic
  select
    _id
  , case when _event_ts is not null then _event_ts when _event ? 'event_ts' then agent_private.event_ts(_event) else now() end
  , case when _lease is null then 0 else 1 end -- attempts
  , coalesce(agent_private.add_utc(_now, _lease), _vt, agent_private.add_utc(now(), _delay), now())
  , case when _lease is null then '{}' else array[_now] end -- claimed
  , _event
  , coalesce(_queue, 'default')
  , now() -- enqueued_at
  , null::timestamptz -- nacked_at
  , null::text -- last_error
  , _requeued_from
  , _type
  , _source
  , coalesce(_priority, 0)
  , _key
  , _max_attempts
  , _expires_at
  , case when _lease is not null then _worker end
  , null::jsonb -- past_attempts
  , _occurrence
  , _meta
  , _publication
  , case when _lease is not null then _hash end -- receipt_hash
  , null::text -- claim_token
  , null::int4 -- text_size, which a trigger sets
  , _dead_letter_of
  , case when _lease is null and (_vt is not null or _delay is not null)
      then nullif(greatest(coalesce(_vt, agent_private.add_utc(now(), _delay)), now()), now()) end -- due_at
  , _group
  , _flow -- which check_event sets where it is null
  , _flow_version
  , null::timestamptz -- turn_vt, which check_event sets
  , null::timestamptz -- admitted_at
  , null::boolean -- in_total
  , null::timestamptz; -- extended_at
end;

-- The row of agent.event that a request asks for, with the options that insert_and_claim_events takes. Its group and its key are those that were found for it. Inlined, too.
create or replace function agent_private.requested_event
( _id int8
, _now timestamptz
, _event jsonb
, _option jsonb
, _queue text
, _delay interval
, _vt timestamptz
, _lease interval
, _worker text
, _hash bytea
, _key text default null
, _group text default null
, _flow int2 default null
, _flow_version int8 default null
)
returns setof agent.event
language sql stable
rows 1
begin atomic
  select e.*
  from agent_private.new_event
  ( _id, _now, _event, (_option ->> 'event_ts')::timestamptz, _queue, _delay, _vt, _lease, _worker
  , _option ->> 'type', _option ->> 'source', (_option ->> 'priority')::int4, _key, (_option ->> 'max_attempts')::int4
  , (_option ->> 'expires_at')::timestamptz, _option -> 'occurrence', _meta => nullif(_option -> 'meta', 'null'), _hash => _hash
  , _group => _group, _flow => _flow, _flow_version => _flow_version
  ) as e;
end;

-- Inserts one event and returns its id. It can be claimed after _delay, or from _vt on, else after the delay of its queue's policy, or at once. A null _event_ts is taken from the
-- payload, see agent_private.event_ts. The same _key again in the same queue, within _key_retention, returns the id of the first event,
-- or raises QD005 if anything but _meta differs; with _on_duplicate 'first' it returns that id whatever differs. With 'replace' an event under the _key that nobody has claimed takes the
-- place of the first one, under its id, and due at most _max_wait after that was inserted; one that was claimed and waits again is cancelled for it, and one that is leased is left alone, and no
-- more under the key. 'supersede' cancels that, too. _key_until, 'claimed', 'finished', or an interval in the place of _key_retention, says how long the key stands. _meta goes along with
-- the event: an object of at most 16 KiB. In a queue with limits of groups, an event of a _group, 1 to 255 bytes, waits for its turn; where groups are in order,
-- it cannot be delayed: QD003. One without has the group that the policy of its queue finds in it, if any: see agent_private.group_at.
--
-- _queue is a text. A timestamptz in its place is the _vt, and the queue is default: the worker of tiger-agents-for-work calls it so. This is one function of two types, as a second function
-- of this name would make "grant execute on function agent.insert_event" ambiguous.
create or replace function agent.insert_event
( _event jsonb
, _queue anycompatible default 'default'::text
, _delay interval default null
, _vt timestamptz default null
, _type text default null
, _source text default null
, _priority int4 default 0
, _key text default null
, _max_attempts int4 default null
, _expires_at timestamptz default null
, _key_retention interval default interval '24 hours'
, _event_ts timestamptz default null
, _on_duplicate text default 'match'
, _meta jsonb default null
, _group text default null
, _key_until text default null
, _max_wait interval default null
)
returns int8
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _id int8;
  _option jsonb;
  _policy record;
  _name text = 'default'; -- of the queue
begin
  if pg_typeof(_queue) = 'text'::regtype or (select t.typcategory from pg_type t where t.oid = pg_typeof(_queue)) = 'S' then
    _name = coalesce(agent_private.unreserved_queue(_queue::text), _name);
  elsif pg_typeof(_queue) <> 'timestamptz'::regtype then
    perform agent_private.raise_invalid('queue', 'must be a text');
  elsif _vt is not null then
    perform agent_private.raise_invalid('vt', 'is given in the place of the queue, too');
  else
    _vt = _queue;
  end if;
  if agent_private.has_verified_source(_meta) then
    perform agent_private.raise_if_verified(_meta);
  elsif _group = '' then
    perform agent_private.raise_invalid('group', 'must be 1 to 255 bytes long');
  end if;
  if _delay is not null or _vt is not null then
    perform agent_private.check_event_times(array[_delay], array[_vt]);
    if _group is not null then
      perform agent_private.check_order(array[_name], array[_delay], array[_vt], array[jsonb_build_object('group', _group)]);
    end if;
  end if;
  if _event_ts is not null or _on_duplicate <> 'match' then
    perform agent_private.check_insert_options(_event_ts, _on_duplicate);
  end if;
  if _key is null and (_on_duplicate <> 'match' or _key_until is not null or _max_wait is not null) then
    perform agent_private.raise_without_key(_on_duplicate, _key_until, _max_wait::text);
  end if;
  if _key is not null then
    _option = jsonb_strip_nulls(jsonb_build_object
    ( 'type', _type, 'source', _source, 'priority', nullif(_priority, 0), 'key', _key, 'max_attempts', _max_attempts
    , 'expires_at', _expires_at, 'event_ts', _event_ts, 'on_duplicate', nullif(_on_duplicate, 'match'), 'group', _group
    , 'key_until', _key_until, 'max_wait', _max_wait
    ));
    if _meta is not null then
      perform agent_private.check_event_values('{}', 'default', _meta => _meta); -- of a replay, nothing else checks it
      _option = _option || jsonb_build_object('meta', _meta);
    end if;
    select a.id into strict _id
    from agent_private.insert_keyed_events(array[_event], array[_name], array[_delay], array[_vt], null, null, array[_option], _key_retention, null, _admits => false, _has_defaults => exists (select from agent.queue q where q.delay is not null or q.group_from is not null or q.flow_fair)) a;
  else
    if _delay is null and _vt is null or _group is null then
      select q.delay, q.group_from, q.flow_fair into _policy from agent.queue q where q.name = _name;
      if _delay is null and _vt is null then
        _delay = _policy.delay;
      end if;
      if _group is null and (_policy.group_from is not null or _policy.flow_fair) then
        _group = agent_private.default_group(_event, _policy.group_from, _policy.flow_fair);
      end if;
    end if;
    insert into agent.event overriding user value -- the id is the sequence's
    select n.*
    from agent_private.new_event
    ( null, now(), _event, _event_ts, _name, _delay, _vt
    , _type => _type, _source => _source, _priority => _priority, _max_attempts => _max_attempts, _expires_at => _expires_at, _meta => _meta
    , _group => _group
    ) n
    returning id into strict _id;
  end if;
  perform pg_notify('agent_event', _name);
  return _id;
end
$func$;

-- Records an event that was worked on elsewhere: it goes into the history of the queue default as done, without an attempt. Returns its id.
create or replace function agent.insert_event_hist(_event jsonb)
returns int8
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _id int8 = agent.insert_event(_event, _delay => interval '0'); -- all that leaves a queue has been in one
begin
  perform from agent_private.move_to_history(array[_id], 'done');
  return _id;
end
$func$;

-- Inserts _events, all or none, and returns their ids in order. The other arrays run parallel to it; a null array, a missing element or
-- a null element stands for the default. For _options see insert_and_claim_events. With _notify => false the caller has to wake waiting
-- claims, see notify_queues.
create or replace function agent.insert_events
( _events jsonb[]
, _queues text[] default null
, _delays interval[] default null
, _vts timestamptz[] default null
, _notify boolean default true
, _options jsonb[] default null
, _key_retention interval default interval '24 hours'
)
returns table (id int8, queue text, vt timestamptz)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
as $func$
#variable_conflict use_column
declare
  _unknown text;
begin
  perform agent_private.unreserved_queue(q.name) from unnest(_queues) as q (name) where starts_with(q.name, 'queued.');
  select o.name into _unknown -- the service has more
  from unnest(_options) as u (option)
  cross join lateral jsonb_object_keys(case when jsonb_typeof(u.option) = 'object'
    then u.option - '{type,source,priority,key,max_attempts,expires_at,event_ts,on_duplicate,meta,group,key_until,max_wait}'::text[] else '{}' end) as o (name)
  limit 1;
  if found then
    perform agent_private.raise_invalid(_unknown, 'is not an option of an event');
  end if;
  return query
  select a.id, a.queue, a.vt
  from agent_service.insert_and_claim_events(_events, _queues, _delays, _vts, _options => _options, _key_retention => _key_retention) a;

  if _notify then
    perform agent.notify_queues(array(select coalesce(q.name, 'default') from unnest(_events, _queues) q (event, name)));
  end if;
end
$func$;

-- Inserts a batch of events for the service. Each element of _options is an object with any of type, source, priority, key,
-- max_attempts, expires_at, occurrence, meta, event_ts, on_duplicate, group, key_until and max_wait: see insert_event, key_retention in the place of
-- _key_retention, and key_scope: keys of different scopes never stand for the same event. With verified_source, the name of the
-- source that has verified who sent it, the metadata may say so, too. An event with a lease ('0': as long as the queue's policy says) is claimed by its worker as
-- it is inserted, because a claim is waiting for it; it has no delay or vt. The caller makes the token of its receipt, and gives its hash: see new_event. Returns all of a claimed event; of the others event is null,
-- and of those whose key was known vt is that of the first answer.
create or replace function agent_service.insert_and_claim_events
( _events jsonb[]
, _queues text[]
, _delays interval[]
, _vts timestamptz[]
, _leases interval[] default null
, _workers text[] default null
, _options jsonb[] default null
, _key_retention interval default interval '24 hours'
, _hashes bytea[] default null
)
returns table (id int8, queue text, vt timestamptz, enqueued_at timestamptz, event_ts timestamptz, event jsonb, claimed timestamptz[], replayed boolean, meta jsonb)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
as $func$
#variable_conflict use_column
declare
  _now timestamptz = clock_timestamp();
  _has_defaults boolean = exists (select from agent.queue q where q.delay is not null or q.group_from is not null or q.flow_fair); -- for events that do not say so themselves
  _has_keys boolean = false;
  _has_groups boolean = false;
  _is_usual boolean;
  _requested jsonb[] = _options;
begin
  if greatest(cardinality(_queues), cardinality(_delays), cardinality(_vts), cardinality(_leases), cardinality(_options), cardinality(_hashes)) > coalesce(cardinality(_events), 0) then
    perform agent_private.raise_invalid('events', 'must be at least as many as the queues, delays, vts, leases, options and hashes');
  end if;
  if _delays is not null or _vts is not null then
    perform agent_private.check_event_times(_delays, _vts);
  end if;
  if _has_defaults then
    _options = agent_private.default_groups(_events, _queues, _options);
  end if;
  if _leases is not null then
    _leases = agent_private.leases_on_arrival(_queues, _leases, _delays, _options, _requested);
  end if;
  if _options is not null then
    select bool_or(o.option ? 'key'), bool_or(o.option ? 'group'), bool_and(agent_private.is_usual_option(o.option)) into _has_keys, _has_groups, _is_usual from unnest(_options) as o (option);
    if not _is_usual then
      perform agent_private.check_event_options(_requested);
    end if;
    if _delays is not null or _vts is not null then
      perform agent_private.check_order(_queues, _delays, _vts, _options);
    end if;
    if _has_keys then
      return query select * from agent_private.insert_keyed_events(_events, _queues, _delays, _vts, _leases, _workers, _requested, _key_retention, _hashes, _has_defaults => _has_defaults);
      return;
    end if;
  end if;
  if _has_defaults then
    _delays = agent_private.default_delays(cardinality(_events), _queues, _delays, _vts);
  end if;
  if _has_groups then
    return query select * from agent_private.insert_grouped_events(_events, _queues, _delays, _vts, _leases, _workers, _options, _hashes);
    return;
  end if;

  if _delays is null and _vts is null and _leases is null and _options is null then -- the usual case, without the six arrays that there are not
    return query
    insert into agent.event overriding user value -- the ids are the sequence's
    select e.*
    from unnest(_events, _queues) with ordinality as n (event, queue, ord)
    cross join lateral agent_private.new_event(null, _now, n.event, null, n.queue) as e
    order by n.ord
    returning id, queue, vt, enqueued_at, event_ts, null::jsonb, claimed, false, null::jsonb;
    return;
  end if;
  return query
  insert into agent.event overriding user value
  select e.*
  from unnest(_events, _queues, _delays, _vts, _leases, _workers, _options, _hashes) with ordinality
    as n (event, queue, delay, vt, lease, worker, option, hash, ord)
  cross join lateral agent_private.requested_event(null, _now, n.event, n.option, n.queue, n.delay, n.vt, n.lease, n.worker, n.hash) as e
  order by n.ord
  returning id, queue, vt, enqueued_at, event_ts, case when attempts > 0 then event end, claimed, false, case when attempts > 0 then meta end;
end
$func$;

-- Wakes the claims that wait for these queues, in all processes, when the transaction commits. A process passes its name as _sender to
-- recognize its own notifications: the payload is then the queue, "|" and the name.
create or replace function agent.notify_queues(_queues text[], _sender text default '')
returns void
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
as $func$
begin
  perform pg_notify('agent_event', q.name || case when _sender = '' then '' else '|' || _sender end)
  from (select distinct unnest(_queues)) as q (name);
end
$func$;

-- The delays of events: those of their queues' policies for events that have neither a delay nor a vt.
create or replace function agent_private.default_delays(_count int4, _queues text[], _delays interval[], _vts timestamptz[])
returns interval[]
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  return array
  ( select coalesce(n.delay, case when n.vt is null then q.delay end)
    from unnest(_queues, _delays, _vts, array_fill(true, array[_count])) with ordinality as n (queue, delay, vt, is_event, ord)
    left join agent.queue q on q.name = coalesce(n.queue, 'default') and q.delay is not null
    order by n.ord
  );
end
$func$;

-- The options of events: with the groups that those have by the policies of their queues that come without one.
create or replace function agent_private.default_groups(_events jsonb[], _queues text[], _options jsonb[])
returns jsonb[]
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  if not exists
  ( select from unnest(_events, _queues) as n (event, queue)
    join agent.queue q on q.name = coalesce(n.queue, 'default') and (q.group_from is not null or q.flow_fair)
  ) then
    return _options;
  end if;
  return array
  ( select case when g.key is null then n.option else coalesce(n.option, '{}') || jsonb_build_object('group', g.key) end
    from unnest(_events, _queues, _options) with ordinality as n (event, queue, option, ord)
    left join agent.queue q on q.name = coalesce(n.queue, 'default') and (q.group_from is not null or q.flow_fair) and n.option ->> 'group' is null
    cross join lateral (values (agent_private.default_group(n.event, q.group_from, q.flow_fair))) as g (key)
    order by n.ord
  );
end
$func$;

-- The group that a payload has at a JSON pointer (RFC 6901): the text of a string, a number or a boolean that is there. Null if there is nothing else, or if the text is no group's, as
-- it has not 1 to 255 bytes: the event is taken without a group then, as whoever sends it may know nothing of groups. Numbers that are equal are the same group.
create or replace function agent_private.group_at(_event jsonb, _pointer text)
returns text
language plpgsql immutable strict parallel safe
set search_path to pg_catalog, pg_temp
as $func$
declare
  _value jsonb = _event;
  _token text;
  _text text;
begin
  foreach _token in array string_to_array(substr(_pointer, 2), '/') loop
    _token = replace(replace(_token, '~1', '/'), '~0', '~');
    _value = case jsonb_typeof(_value)
      when 'object' then _value -> _token
      when 'array' then case when _token ~ '^(0|[1-9][0-9]{0,8})$' then _value -> _token::int4 end
    end;
    if _value is null then
      return null;
    end if;
  end loop;
  _text = case jsonb_typeof(_value)
    when 'string' then _value #>> '{}'
    when 'number' then trim_scale(_value::numeric)::text
    when 'boolean' then _value::text
  end;
  return case when octet_length(_text) between 1 and 255 then _text end;
end
$func$;

-- The group of an event that comes without one, by the policy of its queue: what is in the payload at group_from, or else '' where groups take turns; null: none. Inlined.
create or replace function agent_private.default_group(_event jsonb, _group_from text, _is_fair boolean)
returns text
language sql immutable parallel safe
return coalesce(case when _group_from is not null then agent_private.group_at(_event, _group_from) end, case when _is_fair then '' end);

-- A JSON pointer to something in a payload; null for null. Raises QD003 with the _detail.
create or replace function agent_private.check_pointer
( _argument text
, _pointer text
, _detail text default 'must be a JSON pointer of at most 1024 characters, such as /tenant'
)
returns text
language plpgsql immutable
set search_path to pg_catalog, pg_temp
as $func$
begin
  if _pointer !~ '^/' or _pointer ~ '~([^01]|$)' or length(_pointer) > 1024 then
    perform agent_private.raise_invalid(_argument, _detail);
  end if;
  return _pointer;
end
$func$;

-- Raises QD003 for delays and vts that are out of range, or given together. Of several events it names the first one by its place, from 0 on.
create or replace function agent_private.check_event_times(_delays interval[], _vts timestamptz[])
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
declare
  _delay interval;
  _vt timestamptz;
  _place text;
begin
  for _delay, _vt, _place in
    select t.delay, t.vt, case when greatest(cardinality(_delays), cardinality(_vts)) > 1 then t.place - 1 || '/' else '' end
    from unnest(_delays, _vts) with ordinality as t (delay, vt, place)
    where t.delay is not null and t.vt is not null or t.delay < interval '0' or not isfinite(t.vt) or t.vt < '1970-01-01Z'
    order by t.place
    limit 1
  loop
    if _delay is not null and _vt is not null then
      perform agent_private.raise_invalid(_place || 'vt', 'give a delay or a vt, not both');
    elsif _delay < interval '0' then
      perform agent_private.raise_invalid(_place || 'delay', 'must not be negative');
    else
      perform agent_private.raise_invalid(_place || 'vt', 'must be finite, and not before 1970');
    end if;
  end loop;
end
$func$;

-- Raises QD003 for events of groups in order that are delayed: all behind them would wait, too. Of several events it names the first one by its place, from 0 on.
create or replace function agent_private.check_order(_queues text[], _delays interval[], _vts timestamptz[], _options jsonb[])
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
declare
  _queue text;
  _vt timestamptz;
  _place int8;
begin
  select q.name, n.vt, n.place into _queue, _vt, _place
  from unnest(_queues, _delays, _vts, _options) with ordinality as n (queue, delay, vt, option, place)
  join agent.queue q on q.name = coalesce(n.queue, 'default') and q.flow_order
  where n.option ->> 'group' <> '' and (n.delay > interval '0' or n.vt > clock_timestamp())
  order by n.place
  limit 1;
  if found then
    perform agent_private.raise_invalid
    ( case when cardinality(_options) > 1 then _place - 1 || '/' else '' end || case when _vt is null then 'delay' else 'vt' end
    , 'must not be given for an event of a group in the queue ' || _queue || ', which keeps the order of groups'
    );
  end if;
end
$func$;

-- Whether check_event_options finds nothing wrong with the options of an event, if it has only those that most have; else it has to look. Inlined, like agent.receipt.
create or replace function agent_private.is_usual_option(_option jsonb)
returns boolean
language sql immutable parallel safe
return _option is null or _option - '{type,source,priority,key,key_scope,on_duplicate,max_attempts,group}'::text[] = '{}'
  and coalesce(length(_option ->> 'type') between 1 and 255, true)
  and coalesce(length(_option ->> 'source') between 1 and 255, true)
  and coalesce(length(_option ->> 'key') between 1 and 255, true)
  and coalesce(_option ->> 'on_duplicate' in ('match', 'first'), true)
  and coalesce((_option ->> 'max_attempts')::int4 >= 1, true)
  and coalesce(octet_length(_option ->> 'group') between 1 and 255, true);

-- Raises QD003 for options that events do not have, and for values that they may not have.
create or replace function agent_private.check_event_options(_options jsonb[])
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
declare
  _unknown text;
begin
  if exists
  ( select
    from unnest(_options) as u (option)
    where u.option - '{type,source,priority,key,max_attempts,expires_at,occurrence,meta,event_ts,on_duplicate,key_retention,key_scope,verified_source,group}'::text[] <> '{}'
    or u.option ?| '{meta,group,key_until,max_wait}'
  ) then
    select o.name into _unknown
    from unnest(_options) as u (option)
    cross join lateral jsonb_object_keys(u.option) as o (name)
    where o.name not in ('type', 'source', 'priority', 'key', 'max_attempts', 'expires_at', 'occurrence', 'meta', 'event_ts', 'on_duplicate', 'key_retention', 'key_scope', 'verified_source', 'group', 'key_until', 'max_wait')
    or o.name = 'group' and not coalesce(octet_length(u.option ->> 'group') between 1 and 255, true)
    or o.name = 'meta' and agent_private.has_verified_source(agent_private.unverified_meta(u.option -> 'meta', u.option ->> 'verified_source'))
    limit 1;
    if found then
      if _unknown = 'meta' then
        perform agent_private.raise_if_verified('{"verified_source": true}');
      elsif _unknown = 'group' then
        perform agent_private.raise_invalid('group', 'must be 1 to 255 bytes long');
      end if;
      perform agent_private.raise_invalid(_unknown, 'is not an option of an event');
    end if;
    perform agent_private.raise_without_key(null, u.option ->> 'key_until', u.option ->> 'max_wait') from unnest(_options) as u (option) where u.option ->> 'key' is null;
  end if;

  perform agent_private.check_event_values('{}', 'default', o.type, o.source, o.key, o.max_attempts, o.expires_at, o.meta)
  , agent_private.check_insert_options(o.event_ts, o.on_duplicate)
  , case when o.key is null then agent_private.raise_without_key(o.on_duplicate, null, null) end
  from
  ( select u.option ->> 'type', u.option ->> 'source', u.option ->> 'key', (u.option ->> 'max_attempts')::int4
    , (u.option ->> 'expires_at')::timestamptz, nullif(u.option -> 'meta', 'null')
    , (u.option ->> 'event_ts')::timestamptz, u.option ->> 'on_duplicate'
    from unnest(_options) as u (option)
    where u.option ?| '{type,source,max_attempts,expires_at,meta,event_ts,on_duplicate}' or length(u.option ->> 'key') not between 1 and 255
  ) as o (type, source, key, max_attempts, expires_at, meta, event_ts, on_duplicate)
  where not agent_private.is_valid_event('{}', 'default', o.type, o.source, o.key, o.max_attempts, o.expires_at, o.meta)
  or o.event_ts is not null or o.on_duplicate <> 'match';
end
$func$;

-- Raises QD003 for an event_ts out of the range that a payload's has, see agent_private.event_ts, and for an on_duplicate that does not
-- exist.
create or replace function agent_private.check_insert_options(_event_ts timestamptz, _on_duplicate text)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  if not _event_ts between now() - interval '10 years' and now() + interval '1 day' then
    perform agent_private.raise_invalid('event_ts', 'must not be more than ten years in the past or a day in the future');
  elsif _on_duplicate not in ('match', 'first', 'replace', 'supersede') then
    perform agent_private.raise_invalid('on_duplicate', 'must be match, first, replace or supersede');
  end if;
end
$func$;

-- Raises QD003 for options of an event without an idempotency key that are about one. null: it has not that.
create or replace function agent_private.raise_without_key(_on_duplicate text, _key_until text, _max_wait text)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  if _on_duplicate in ('replace', 'supersede') then
    perform agent_private.raise_invalid('on_duplicate', 'needs a key: it is about events under the same one');
  elsif _key_until is not null then
    perform agent_private.raise_invalid('key_until', 'needs a key');
  elsif _max_wait is not null then
    perform agent_private.raise_invalid('max_wait', 'needs a key');
  end if;
end
$func$;

-- The lengths of the leases of events that are claimed as they are inserted. '0' stands for the length by the queue's policy. Null if
-- the queue is paused or delays its events, the event has expired, limits of the queue may be against it, or its policy has found its group, as _options have it and _requested not,
-- which the caller does not know: then it is inserted without a claim.
create or replace function agent_private.leases_on_arrival(_queues text[], _leases interval[], _delays interval[], _options jsonb[], _requested jsonb[])
returns interval[]
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  return array
  ( select case
      when p.flow_total is not null or p.flow_paced and n.option ? 'group' or n.option ->> 'group' is distinct from n.requested ->> 'group' then null
      when p.paused or n.delay is null and p.delay > interval '0' or (n.option ->> 'expires_at')::timestamptz <= clock_timestamp() then null
      when n.lease = interval '0' then coalesce(agent_private.bounded_lease(p.invisible_for), interval '10 minutes')
      else n.lease
    end
    from unnest(_queues, _leases, _delays, _options, _requested) with ordinality as n (queue, lease, delay, option, requested, ord)
    left join agent.queue p on p.name = n.queue and n.lease is not null
    order by n.ord
  );
end
$func$;

-- Raises QD003 for options about idempotency keys that have wrong values.
create or replace function agent_private.check_key_options(_options jsonb[], _key_retention interval)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  if exists (select from unnest(_options) as o (option) where length(o.option ->> 'key') not between 1 and 255) then
    perform agent_private.raise_invalid('key', 'must be 1 to 255 characters');
  elsif exists (select from unnest(_options) as o (option) where length(o.option ->> 'key_scope') not between 1 and 255) then
    perform agent_private.raise_invalid('key_scope', 'must be 1 to 255 characters');
  elsif not coalesce(_key_retention > interval '0', false)
    or exists (select from unnest(_options) as o (option) where (o.option ->> 'key_retention')::interval <= interval '0')
  then
    perform agent_private.raise_invalid('key_retention', 'must be greater than zero');
  elsif exists (select from unnest(_options) as o (option) where o.option ?& '{key_until,key_retention}') then
    perform agent_private.raise_invalid('key_until', 'does not go with key_retention');
  elsif exists (select from unnest(_options) as o (option) where o.option ->> 'max_wait' is not null and (o.option ->> 'on_duplicate' in ('replace', 'supersede')) is not true) then
    perform agent_private.raise_invalid('max_wait', 'needs on_duplicate replace or supersede');
  end if;
  begin
    if exists
    ( select from unnest(_options) as o (option)
      where case when o.option ->> 'key_until' not in ('claimed', 'finished') then not (o.option ->> 'key_until')::interval between interval '1 microsecond' and interval '3650 days' end
    ) then
      raise datetime_field_overflow;
    end if;
  exception when data_exception then
    perform agent_private.raise_invalid('key_until', 'must be claimed, finished, or a duration greater than zero and of at most ten years');
  end;
  begin
    if exists (select from unnest(_options) as o (option) where not (o.option ->> 'max_wait')::interval between interval '1 microsecond' and interval '3650 days') then
      raise datetime_field_overflow;
    end if;
  exception when data_exception then
    perform agent_private.raise_invalid('max_wait', 'must be a duration greater than zero and of at most ten years');
  end;
end
$func$;

-- Whether an idempotency key stands that stands until its event is claimed or finished: an event that waits has not been claimed, or its claim was released.
create or replace function agent_private.key_stands(_key_until text, _event_id int8)
returns boolean
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set enable_seqscan to off
set jit to off
as $func$
begin
  return exists (select from agent.event e where e.id = _event_id and (_key_until = 'finished' or e.attempts = 0));
end
$func$;

-- Makes room for events that are to replace those under their keys, or supersede them (_modes), and returns for each the id under which it is to be inserted and when the first event under
-- that was, or null where it is an event of its own. An event that nobody has claimed is deleted, for the caller to insert the other one. One that was claimed and waits again goes into history as cancelled, with
-- its attempts; one that is leased, too, if it is superseded. From then on the keys stand for nothing. In _all_keys are all keys of the batch.
--
-- Locks are taken in one order: advisory ones of the keys that are given with these modes, the rows of the keys, and then the events, by their ids. So callers with the same key come one after the
-- other, also while the key has no row. A caller who has locked events before, by acks in the same transaction, may meet one who waits for these: group commits do so apart then.
create or replace function agent_private.free_keys
( _queues text[]
, _keys text[]
, _modes text[]
, _all_queues text[]
, _all_keys text[]
, out ids int8[]
, out inserted_at timestamptz[]
)
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
as $func$
declare
  _key agent.idempotency;
  _event agent.event;
  _cancelled int8[] = '{}';
begin
  perform pg_advisory_xact_lock(l.number)
  from (select distinct 31321898691469312 + (hashtextextended(k.queue || '/' || k.key, 0) & 1023) as number from unnest(_queues, _keys) as k (queue, key) order by 1) as l;
  perform
  from (select distinct k.queue, k.key from unnest(_all_queues, _all_keys) as k (queue, key) where k.key is not null order by 1, 2) as k
  cross join lateral (select from agent.idempotency i where i.queue = k.queue and i.key = k.key for update) as i;
  perform
  from
  ( select i.event_id
    from unnest(_queues, _keys) as k (queue, key)
    cross join lateral (select i.event_id from agent.idempotency i where i.queue = k.queue and i.key = k.key limit 1) as i
    group by 1
    order by 1
  ) as i
  cross join lateral (select from agent.event e where e.id = i.event_id for update) as e;

  for _n in 1 .. cardinality(_keys) loop
    ids[_n] = null;
    inserted_at[_n] = null;
    select i.* into _key from agent.idempotency i where i.queue = _queues[_n] and i.key = _keys[_n];
    continue when not found or _key.event_id = 0; -- it was left to another cell
    continue when case when _key.key_until is null then _key.expires_at <= clock_timestamp() else not agent_private.key_stands(_key.key_until, _key.event_id) end;
    select e.* into _event from agent.event e where e.id = _key.event_id;
    if found and _event.attempts = 0 then
      delete from agent.event e where e.id = _event.id;
      delete from agent.raw_body b where b.event_id = _event.id;
      if _event.group_key is not null and exists (select from agent.queue q where q.name = _event.queue and q.flow_version is not null) then
        insert into agent_private.group_wake (queue, key) values (_event.queue, _event.group_key);
      end if;
      ids[_n] = _event.id;
      inserted_at[_n] = _event.enqueued_at;
    elsif found and (_modes[_n] = 'supersede' or agent_private.event_state(_event, clock_timestamp()) <> 'leased') then
      _cancelled = _cancelled || _event.id;
    end if;
    update agent.idempotency i set expires_at = '-infinity', key_until = null where i.queue = _key.queue and i.key = _key.key;
  end loop;
  if _cancelled <> '{}' then
    perform from agent_private.move_to_history(_cancelled, 'cancelled', 'another event under its idempotency key has taken its place');
  end if;
end
$func$;

-- insert_and_claim_events for batches in which some events have a key. Of the events with the same key and queue, one is inserted: the first one, or the last that replaces or supersedes. The
-- others get its id if they say the same, replace or supersede, or have on_duplicate 'first', else QD005 is raised. A second call with a key waits until the first has committed.
--
-- With _admits, events of groups are admitted at once, see insert_grouped_events, unless some take the place of others, in their place; else they leave wakes, so that their groups are not locked.
-- _has_defaults says that there are queues with defaults of events, a delay or groups.
--
-- Its plans must not depend on statistics: keys are looked up one by one in their index, where a young table would be read as a whole, and the rows of a batch are joined by
-- hashes, where a loop would compare each with each.
create or replace function agent_private.insert_keyed_events
( _events jsonb[]
, _queues text[]
, _delays interval[]
, _vts timestamptz[]
, _leases interval[]
, _workers text[]
, _options jsonb[]
, _key_retention interval
, _hashes bytea[]
, _admits boolean default true
, _has_defaults boolean default true
)
returns table (id int8, queue text, vt timestamptz, enqueued_at timestamptz, event_ts timestamptz, event jsonb, claimed timestamptz[], replayed boolean, meta jsonb)
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
set enable_nestloop to off
as $func$
#variable_conflict use_column
declare
  _now timestamptz = clock_timestamp();
  _keys text[];
  _scoped_keys text[];     -- as they are remembered
  _fingerprints text[];
  _new_ids int8[];         -- of the events, if they are inserted
  _new_keys int8;          -- of the statement that inserts keys
  _first_ids int8[];       -- of the events that the keys stand for; null: of these
  _first_vts timestamptz[];
  _reused_key text;
  _left_key text;
  _is_missing boolean;
  _resolved_delays interval[] = _delays; -- those by policies among them, as with options; a fingerprint has those that the request says
  _resolved_options jsonb[] = _options;
  _resolved_vts timestamptz[] = _vts;
  _key_count int8;         -- keys, with repetitions
  _has_groups boolean;     -- of any event
  _is_unusual boolean;     -- some option about keys has to be checked
  _is_unreadable boolean;  -- some event has no fingerprint
  _is_replacing boolean;   -- any event may replace another, or supersede it
  _places int4[];          -- of events that do, of each key the last one
  _placed_ids int8[];      -- under which they are inserted, and when the first ones under these were; null: they have ids of their own
  _placed_at timestamptz[];
  _kept_at timestamptz[];
  _groups text[];          -- of the events that are inserted
  _flows int2[];           -- see admit_new_events
  _versions int8[];
begin
  if agent_private.server_has_changed() then
    perform agent_private.advance_sequences();
  end if;
  select array_agg(n.queue), array_agg(n.key), array_agg(n.scoped_key), array_agg(n.fingerprint), array_agg(nextval('agent.event_id_seq'))
  , count(n.key), bool_or(n.is_replacing), bool_or(n.has_group), bool_or(n.is_unusual), bool_or(n.key is not null and n.fingerprint is null)
  into _queues, _keys, _scoped_keys, _fingerprints, _new_ids, _key_count, _is_replacing, _has_groups, _is_unusual, _is_unreadable
  from
  ( select n.option ->> 'on_duplicate' in ('replace', 'supersede') as is_replacing, n.option ? 'group' as has_group
    , length(n.option ->> 'key') not between 1 and 255 or n.option ?| '{key_scope,key_retention,key_until,max_wait}' as is_unusual
    , coalesce(n.queue, 'default') as queue, n.option ->> 'key' as key
    -- A key without a scope that has the separator gets one in front, which no scope begins with.
    , coalesce(n.option ->> 'key_scope' || e'\x1f', case when n.option ->> 'key' like e'%\x1f%' then e'\x1f' else '' end) || (n.option ->> 'key') as scoped_key
    , case
        when n.option ->> 'key' is not null
        and (n.event is null or agent_private.new_json_size(n.event) is not null) -- else its text is too long to be compared
        and (not n.option ? 'occurrence' or agent_private.new_json_size(n.option -> 'occurrence') is not null)
        then agent_private.request_fingerprint(n.event, n.option, n.delay, n.vt)
      end as fingerprint
    from unnest(_events, _queues, _options, _delays, _vts) with ordinality as n (event, queue, option, delay, vt, ord)
    order by n.ord
  ) as n;
  if _is_unusual or not coalesce(_key_retention > interval '0', false) then
    perform agent_private.check_key_options(_options, _key_retention);
  end if;
  if _is_unreadable then
    perform agent_private.check_json('event', n.event), agent_private.check_json('occurrence', n.option -> 'occurrence') from unnest(_events, _options) as n (event, option);
  end if;

  if _has_defaults then
    _resolved_delays = agent_private.default_delays(cardinality(_events), _queues, _delays, _vts);
    _resolved_options = agent_private.default_groups(_events, _queues, _options);
    _has_groups = exists (select from unnest(_resolved_options) as o (option) where o.option ? 'group');
  end if;

  loop -- repeats only if a key is deleted between the statements, or made where an event was to take the place of the one under it
    if _is_replacing then
      select array_agg(l.place) into _places
      from
      ( select max(n.ord)::int4 as place
        from unnest(_queues, _scoped_keys, _first_ids, _options) with ordinality as n (queue, key, first_id, option, ord)
        where n.first_id is null and n.option ->> 'on_duplicate' in ('replace', 'supersede')
        group by n.queue, n.key
      ) as l;
      select f.ids, f.inserted_at into _placed_ids, _placed_at
      from agent_private.free_keys
      ( array(select _queues[p] from unnest(_places) as p), array(select _scoped_keys[p] from unnest(_places) as p)
      , array(select _options[p] ->> 'on_duplicate' from unnest(_places) as p), _queues, _scoped_keys
      ) as f;
      _kept_at = coalesce(_kept_at, array_fill(null::timestamptz, array[cardinality(_keys)]));
      _resolved_vts = coalesce(_resolved_vts, array_fill(null::timestamptz, array[cardinality(_keys)]));
      for _n in 1 .. coalesce(cardinality(_places), 0) loop
        _new_ids[_places[_n]] = coalesce(_placed_ids[_n], _new_ids[_places[_n]]);
        _kept_at[_places[_n]] = _placed_at[_n];
        if coalesce(_vts[_places[_n]]::text, _resolved_delays[_places[_n]]::text) is not null then
          _resolved_vts[_places[_n]] = least
          ( coalesce(_vts[_places[_n]], agent_private.add_utc(now(), _resolved_delays[_places[_n]]))
          , case when _options[_places[_n]] ->> 'max_wait' is not null -- else least leaves it out
              then greatest(agent_private.add_utc(coalesce(_placed_at[_n], now()), (_options[_places[_n]] ->> 'max_wait')::interval), now()) end
          );
        end if;
      end loop;
    end if;
    insert into agent.idempotency as i (queue, key, fingerprint, event_id, vt, expires_at, key_until)
    select distinct on (n.queue, n.key) n.queue, n.key, n.fingerprint, n.id, coalesce(n.vt, agent_private.add_utc(now(), n.delay), now())
    , agent_private.add_utc(_now, coalesce
      ( (n.option ->> 'key_retention')::interval
      , case when n.option ->> 'key_until' not in ('claimed', 'finished') then (n.option ->> 'key_until')::interval end
      , _key_retention
      ))
    , case when n.option ->> 'key_until' in ('claimed', 'finished') then n.option ->> 'key_until' end
    from unnest(_queues, _scoped_keys, _fingerprints, _new_ids, _resolved_delays, _resolved_vts, _first_ids, _options) with ordinality
      as n (queue, key, fingerprint, id, delay, vt, first_id, option, ord)
    where n.key is not null and n.first_id is null
    order by n.queue, n.key -- so that two calls cannot deadlock
    , case when _is_replacing and n.option ->> 'on_duplicate' in ('replace', 'supersede') then -n.ord else n.ord end
    on conflict (queue, key) do update
    set fingerprint = excluded.fingerprint, event_id = excluded.event_id, vt = excluded.vt, expires_at = excluded.expires_at, key_until = excluded.key_until
    where case when i.key_until is null then i.expires_at <= clock_timestamp() else i.event_id <> 0 and not agent_private.key_stands(i.key_until, i.event_id) end;
    get diagnostics _new_keys = row_count;
    if _new_keys = _key_count then -- the usual case: all keys are new, and each is another
      _first_ids = null;
      exit;
    end if;

    -- A separate statement, so that it sees rows that others committed while the one above waited for them. Events whose keys stand for themselves are to be inserted.
    select array_agg(n.first_id), array_agg(n.first_vt), bool_or(n.key is not null and n.first_id is null)
    , min(n.option ->> 'key') filter
      ( where n.first_fingerprint <> n.fingerprint
        and (n.option ->> 'on_duplicate' in ('first', 'replace', 'supersede')) is not true
      )
    , min(n.option ->> 'key') filter (where n.first_id = 0)
    into _first_ids, _first_vts, _is_missing, _reused_key, _left_key
    from
    ( select n.*, i.first_vt, i.first_fingerprint
      , case when _is_replacing and n.option ->> 'on_duplicate' in ('replace', 'supersede') and i.event_id <> 0 and i.event_id <> all (_new_ids) then null else i.event_id end as first_id
      from unnest(_queues, _scoped_keys, _fingerprints, _options) with ordinality as n (queue, key, fingerprint, option, ord)
      left join lateral
      ( select i.event_id, i.vt, i.fingerprint from agent.idempotency i where i.queue = n.queue and i.key = n.key limit 1
      ) as i (event_id, first_vt, first_fingerprint) on true
      order by n.ord
    ) as n;
    exit when not _is_missing;
  end loop;
  if _left_key is not null then
    raise exception 'the idempotency key % was left to another cell', quote_literal(_left_key) using errcode = 'QD074';
  end if;
  if _reused_key is not null then
    raise exception 'the idempotency key % stands for another event', quote_literal(_reused_key)
      using errcode = 'QD005', column = 'key', detail = 'stands for another event';
  end if;

  if _admits and _has_groups and coalesce(array_remove(_kept_at, null), '{}') = '{}' then
    _groups = array
    ( select case when n.key is null or _first_ids is null or n.first_id = n.id then n.option ->> 'group' end
      from unnest(_new_ids, _keys, _first_ids, _resolved_options) with ordinality as n (id, key, first_id, option, ord)
      order by n.ord
    );
    select a.flows, a.versions into strict _flows, _versions from agent_private.admit_new_events(_queues, _groups, _resolved_delays, _resolved_vts, _resolved_options) a;
    _now = clock_timestamp();
  end if;
  if _first_ids is null then
    return query
    insert into agent.event overriding system value
    select e.*
    from unnest(_new_ids, _events, _queues, _keys, _resolved_delays, _resolved_vts, _leases, _workers, _resolved_options, _hashes, _flows, _versions) with ordinality
      as n (id, event, queue, key, delay, vt, lease, worker, option, hash, flow, version, ord)
    cross join lateral agent_private.requested_event
    ( n.id, _now, n.event, n.option, n.queue, n.delay, n.vt, case when n.flow = 1 or n.option ->> 'group' is null then n.lease end, n.worker, n.hash
    , n.key, n.option ->> 'group', n.flow, n.version
    ) as e
    order by n.ord
    returning id, queue, coalesce(turn_vt, vt), enqueued_at, event_ts, case when attempts > 0 then event end, claimed, false, case when attempts > 0 then meta end;
  else
    return query
    with added as
    ( insert into agent.event overriding system value
      select e.*
      from unnest(_new_ids, _events, _queues, _keys, _resolved_delays, _resolved_vts, _leases, _workers, _resolved_options, _hashes, _flows, _versions, _first_ids) with ordinality
        as n (id, event, queue, key, delay, vt, lease, worker, option, hash, flow, version, first_id, ord)
      cross join lateral agent_private.requested_event
      ( n.id, _now, n.event, n.option, n.queue, n.delay, n.vt, case when n.flow = 1 or n.option ->> 'group' is null then n.lease end, n.worker, n.hash
      , n.key, n.option ->> 'group', n.flow, n.version
      ) as e
      where n.key is null or n.first_id = n.id
      order by n.ord
      returning id, queue, coalesce(turn_vt, vt), enqueued_at, event_ts, case when attempts > 0 then event end, claimed, case when attempts > 0 then meta end
    )
    select
      coalesce(a.id, n.first_id), n.queue, coalesce(a.vt, n.first_vt)
    , a.enqueued_at, a.event_ts, a.event, a.claimed
    , a.id is null and (n.option ->> 'on_duplicate' in ('replace', 'supersede')) is not true, a.meta
    from unnest(_new_ids, _queues, _first_ids, _first_vts, _options) with ordinality as n (id, queue, first_id, first_vt, option, ord)
    left join added a (id, queue, vt, enqueued_at, event_ts, event, claimed, meta) on a.id = n.id
    order by n.ord;
  end if;
  if _is_replacing then
    update agent.event e set enqueued_at = k.at from unnest(_new_ids, _kept_at) as k (id, at) where e.id = any (_new_ids) and e.id = k.id and k.at is not null;
  end if;
  if _flows is not null then
    perform agent_private.admit_inserted_events(_queues, _groups, _flows);
  end if;
end
$func$;

-- Leaves idempotency keys of a queue to the cell that it is placed on now, but for those that stand for events here, and returns the ids of these, null for the others, in the
-- order of _keys. From then on and for _key_retention an insert under a key that was left raises QD074: it may come from a gateway that goes by an older placement. So of a key
-- that is used on both cells at once either one knows of the other. A second call says the same. Raises QD003. For the service.
create or replace function agent_service.leave_keys(_queue text, _keys text[], _key_retention interval)
returns table (event_id int8)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set enable_seqscan to off
set jit to off
as $func$
#variable_conflict use_column
declare
  _now timestamptz = clock_timestamp();
begin
  perform agent_private.check_queue_name(agent_private.unreserved_queue(_queue));
  if exists (select from unnest(_keys) as k (key) where not coalesce(length(k.key) between 1 and 255, false)) then
    perform agent_private.raise_invalid('keys', 'must be of 1 to 255 characters each');
  elsif not coalesce(_key_retention > interval '0', false) then
    perform agent_private.raise_invalid('key_retention', 'must be greater than zero');
  end if;
  insert into agent.idempotency as i (queue, key, fingerprint, event_id, vt, expires_at)
  select distinct _queue, agent_private.unscoped_key(k.key), 'left', 0, _now, agent_private.add_utc(_now, _key_retention)
  from unnest(_keys) as k (key)
  order by 2 -- as inserts do, so that two calls cannot deadlock
  on conflict (queue, key) do update
  set fingerprint = excluded.fingerprint, event_id = excluded.event_id, vt = excluded.vt, expires_at = excluded.expires_at, key_until = null
  where case when i.key_until is null then i.expires_at <= clock_timestamp() else not agent_private.key_stands(i.key_until, i.event_id) end;

  -- A separate statement, so that it sees rows that others committed while the one above waited for them.
  return query
  select nullif(i.event_id, 0)
  from unnest(_keys) with ordinality as k (key, n)
  left join agent.idempotency i on i.queue = _queue and i.key = agent_private.unscoped_key(k.key)
  order by k.n;
end
$func$;

-- A key without a scope as it is remembered: one that has the separator gets one in front, which no scope begins with. Inlined, like agent.receipt.
create or replace function agent_private.unscoped_key(_key text)
returns text
language sql immutable parallel safe
return case when _key like e'%\x1f%' then e'\x1f' else '' end || _key;

-- A JSON value as text, the same for all values that jsonb holds equal. jsonb's text orders the members of objects already; only
-- the zeros at the end of a fraction can differ. It names the schema of each function and operator, and writes literals as E'', because settings of its own would take longer than
-- the rest.
create or replace function agent_private.canonical_text(_value jsonb)
returns text
language plpgsql immutable strict parallel safe
as $func$
declare
  _text pg_catalog.text = _value::pg_catalog.text;
begin
  if pg_catalog.strpos(_text, '.') operator(pg_catalog.=) 0 or _text operator(pg_catalog.!~) '[.][0-9]*0($|[^0-9])' then -- the usual case
    return _text;
  end if;
  -- Strings match first and stay as they are; outside of strings, only numbers have a point.
  return pg_catalog.regexp_replace(_text, e'("(?:[^"\\\\]|\\\\.)*")|([.][0-9]*[1-9])0+(?![0-9])|[.]0+(?![0-9])', e'\\1\\2', 'g');
end
$func$;

-- A hash of a text. Inlined, like agent.receipt; so it must not be immutable, which convert_to is not.
create or replace function agent_private.hash_text(_text text)
returns text
language sql stable parallel safe
return 'sha256:' || encode(sha256(convert_to(_text, 'UTF8')), 'hex');

-- A hash of a JSON value, the same for all values that jsonb holds equal. Inlined, too.
create or replace function agent_private.hash_json(_value jsonb)
returns text
language sql stable parallel safe
return agent_private.hash_text(agent_private.canonical_text(_value));

-- A hash of a request with an idempotency key, by value: numbers, times and durations are the same however they are written,
-- and no delay is a delay of zero. A delay in months differs from one in days. No setting of the session changes it. It leaves out meta,
-- which may be another for a repeated request, such as the trace context. event_ts and group have a place only where they are given. Of the usual request, which says nothing but the event, the text is made without the way through jsonb.
create or replace function agent_private.request_fingerprint(_event jsonb, _option jsonb, _delay interval, _vt timestamptz)
returns text
language sql stable parallel safe
return agent_private.hash_text(case
  when _delay is null and _vt is null and _event is not null
    and not coalesce(_option ?| '{type,source,priority,max_attempts,expires_at,occurrence,event_ts,group}', false)
  then '[' || agent_private.canonical_text(_event) || ', null, null, 0, null, null, null, 0, 0, null]'
  else agent_private.canonical_text(jsonb_build_array
  ( _event
  , _option ->> 'type'
  , _option ->> 'source'
  , coalesce((_option ->> 'priority')::int4, 0)
  , (_option ->> 'max_attempts')::int4
  , trim_scale(extract(epoch from (_option ->> 'expires_at')::timestamptz))
  , nullif(_option -> 'occurrence', 'null')
  , coalesce(extract(year from _delay) * 12 + extract(month from _delay), 0)
  , coalesce(trim_scale(extract(epoch from _delay)), 0)
  , trim_scale(extract(epoch from _vt))
  ) || case when _option ->> 'event_ts' is null then '[]' else jsonb_build_array(trim_scale(extract(epoch from (_option ->> 'event_ts')::timestamptz))) end
    || case when _option ->> 'group' is null then '[]' else jsonb_build_array(jsonb_build_object('group', _option ->> 'group')) end)
end);

-- Deletes up to _limit idempotency keys that stand no more and returns how many. One that stands until its event is claimed or finished stays for another hour at a time. The service calls it
-- now and then.
create or replace function agent.prune_keys(_limit int4 default 1000)
returns int8
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
set jit to off
as $func$
declare
  _places tid[] = array
  ( select o.ctid
    from agent.idempotency o
    where o.expires_at <= clock_timestamp()
    order by o.expires_at
    limit _limit
    for update skip locked
  );
  _deleted int8;
begin
  update agent.idempotency i
  set expires_at = agent_private.add_utc(clock_timestamp(), interval '1 hour')
  where i.ctid = any (_places) and i.key_until is not null and agent_private.key_stands(i.key_until, i.event_id);
  delete from agent.idempotency i where i.ctid = any (_places) and i.expires_at <= clock_timestamp();
  get diagnostics _deleted = row_count;
  return _deleted;
end
$func$;
