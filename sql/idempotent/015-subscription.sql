-- Subscriptions by cursor: named readers of the log, which everybody who uses the name shares.
--
-- The service matches the events that a subscription has read, with the filters that it has compiled. It passes their version to end_read, which
-- refuses a page that was matched with older ones: a filter whose change was committed before an event was published misses no such event.
-- Every change of a subscription, its filters or its position locks its row first.

-- Creates a subscription, or replaces its filters and settings. It begins after _position, which one that exists keeps. _filters is an
-- array of objects: name, topics, match, canonical, and expires_after in seconds. With _deliver_queue it is delivered into that queue, in the group that _deliver_group_from finds: see
-- agent_private.delivery_group. One that exists
-- cannot change between delivery and reading by cursor: raises QD023. The subscription has to have one of _if_versions (null: any, or it is new);
-- with _if_exists it must not be new. Else raises QD004. A call that changes nothing renews a subscription that expires.
create or replace function agent_service.put_subscription_if_match
( _name text
, _filters json
, _position int8
, _max_waiting int4
, _expires_after interval
, _token int8
, _if_versions int8[]
, _if_exists boolean
, _deliver_queue text default null
, _deliver_type text default null
, _deliver_priority int4 default 0
, _deliver_group_from text default null
)
returns boolean
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _subscription agent.subscription;
  _is_new boolean = false;
  _changed int8;
  _changed_meaning int8;
begin
  if agent_private.is_queue_name(_name) is not true then
    perform agent_private.raise_invalid('name', 'must be 1 to 128 of A-Z a-z 0-9 . _ : -, but not . or ..');
  elsif coalesce(_max_waiting, 0) < 1 then
    perform agent_private.raise_invalid('max_waiting', 'must be at least 1');
  elsif not coalesce(_expires_after between interval '1 second' and interval '3650 days', true) then
    perform agent_private.raise_invalid('expires_after', 'must be from one second to ten years');
  end if;
  perform agent_private.check_position(_position);
  if _deliver_queue is null then
    _deliver_type = null;
    _deliver_priority = 0;
    _deliver_group_from = null;
  elsif agent_private.is_queue_name(_deliver_queue) is not true or starts_with(_deliver_queue, 'queued.') then
    perform agent_private.raise_invalid('deliver/queue', 'must be 1 to 128 of A-Z a-z 0-9 . _ : -, but not . or .., and not begin with "queued."');
  elsif length(_deliver_type) not between 1 and 255 then
    perform agent_private.raise_invalid('deliver/type', 'must be 1 to 255 characters');
  elsif _deliver_priority is null then
    perform agent_private.raise_invalid('deliver/priority', 'must not be null');
  elsif _deliver_group_from not in ('key', 'topic') then
    perform agent_private.check_pointer('deliver/group_from', _deliver_group_from, 'must be key, topic, or a JSON pointer of at most 1024 characters, such as /tenant');
  end if;
  loop
    select s.* into _subscription from agent.subscription s where s.name = _name for no key update;
    exit when found;
    if _if_versions is not null or _if_exists then
      perform agent_private.raise_version_mismatch('subscription ' || _name, _if_versions);
    end if;
    insert into agent.subscription as s
    (name, start_position, max_waiting, expires_after, expires_at, deliver_queue, deliver_type, deliver_priority, deliver_group_from)
    values
    ( _name, _position, _max_waiting, _expires_after, agent_private.add_utc(clock_timestamp(), _expires_after)
    , _deliver_queue, _deliver_type, _deliver_priority, _deliver_group_from
    )
    on conflict on constraint subscription_name do nothing
    returning s.* into _subscription;
    if found then
      _is_new = true;
      insert into agent.subscription_position (reader, number, position, token, epoch, gaps) values (_subscription.id, 1, _position, _token, 1, 0);
      exit;
    end if;
  end loop;
  if _subscription.version <> all (_if_versions) then
    perform agent_private.raise_version_mismatch('subscription ' || _name, _if_versions);
  elsif (_subscription.deliver_queue is null) <> (_deliver_queue is null) then
    perform agent_private.raise_wrong_delivery(_subscription);
  end if;
  select p.changed, p.changed_meaning into _changed, _changed_meaning
  from agent_private.put_filters(_subscription.id, _filters, true) p;
  if _is_new then
    perform agent_private.change_routes(_subscription);
    perform agent_private.record_audit('subscription.put', _name, jsonb_strip_nulls(jsonb_build_object('queue', _deliver_queue, 'filters', json_array_length(_filters))));
    return true;
  end if;
  if _changed > 0
    or row(_subscription.max_waiting, _subscription.expires_after, _subscription.deliver_queue, _subscription.deliver_type, _subscription.deliver_priority, _subscription.deliver_group_from)
      is distinct from row(_max_waiting, _expires_after, _deliver_queue, _deliver_type, _deliver_priority, _deliver_group_from)
  then
    update agent.subscription s
    set version = s.version + 1, updated_at = clock_timestamp(), max_waiting = _max_waiting, expires_after = _expires_after
    , deliver_queue = _deliver_queue, deliver_type = _deliver_type, deliver_priority = _deliver_priority, deliver_group_from = _deliver_group_from
    , expires_at = agent_private.add_utc(clock_timestamp(), _expires_after)
    , filters_version = case when _changed_meaning > 0 then agent_private.next_version(s.filters_version) else s.filters_version end
    where s.id = _subscription.id;
    perform agent_private.change_routes(_subscription);
    perform agent_private.record_audit('subscription.put', _name, jsonb_strip_nulls(jsonb_build_object('queue', _deliver_queue, 'filters', json_array_length(_filters))));
  elsif _expires_after is not null then
    update agent.subscription s set expires_at = agent_private.add_utc(clock_timestamp(), _expires_after) where s.id = _subscription.id;
  end if;
  return false;
end
$func$;

-- Adds a filter to a subscription, replaces the one of its name, or renews it. _filter is as in put_subscription_if_match.
create or replace function agent_service.put_filter(_subscription text, _filter json)
returns void
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _found agent.subscription = agent_private.lock_subscription(_subscription);
  _put record;
begin
  select * into strict _put from agent_private.put_filters(_found.id, json_build_array(_filter), false);
  if _put.changed > 0 then
    update agent.subscription s
    set version = s.version + 1, filters_version = case when _put.changed_meaning > 0 then agent_private.next_version(s.filters_version) else s.filters_version end, updated_at = clock_timestamp()
    where s.id = _found.id;
    perform agent_private.change_routes(_found);
    perform agent_private.record_audit('filter.put', _subscription, jsonb_build_object('filter', _filter ->> 'name'));
  end if;
end
$func$;

-- Deletes a filter of a subscription. Raises QD020 if there is no such subscription, QD022 if it has no such filter.
create or replace function agent_service.delete_filter(_subscription text, _filter text)
returns void
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _found agent.subscription = agent_private.lock_subscription(_subscription);
begin
  delete from agent.subscription_filter f where f.subscription = _found.id and f.name = _filter;
  if not found then
    raise exception 'the subscription % has no filter %', _subscription, _filter using errcode = 'QD022';
  end if;
  update agent.subscription s
  set version = s.version + 1, filters_version = agent_private.next_version(s.filters_version), updated_at = clock_timestamp()
  where s.id = _found.id;
  perform agent_private.change_routes(_found);
  perform agent_private.record_audit('filter.delete', _subscription, jsonb_build_object('filter', _filter));
end
$func$;

-- Inserts and replaces filters of a subscription, and with _is_all deletes those that are not among them. Returns how many were changed,
-- and how many of these want other events than before.
create or replace function agent_private.put_filters(_id int8, _filters json, _is_all boolean, out changed int8, out changed_meaning int8)
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
declare
  _names text[];
  _n int8;
begin
  select coalesce(array_agg(f ->> 'name'), '{}') into _names from json_array_elements(_filters) f;
  if exists (select from unnest(_names) as n (name) where agent_private.is_queue_name(n.name) is not true) then
    perform agent_private.raise_invalid('filters', 'must have names of 1 to 128 of A-Z a-z 0-9 . _ : -');
  elsif (select count(distinct n.name) from unnest(_names) as n (name)) < cardinality(_names) then
    perform agent_private.raise_invalid('filters', 'must have different names');
  elsif exists (select from unnest(_names) as n (name) where not exists (select from agent.subscription_filter f where f.subscription = _id and f.name = n.name)) then
    perform from agent.log_settings s for no key update; -- one call at a time may add filters, so that their number can be bounded
  end if;
  changed = 0;
  if _is_all then
    delete from agent.subscription_filter f where f.subscription = _id and f.name <> all (_names);
    get diagnostics changed = row_count;
  end if;
  changed_meaning = changed +
  ( select count(*)
    from json_array_elements(_filters) n
    where not exists (select from agent.subscription_filter f where f.subscription = _id and f.name = n ->> 'name' and f.canonical = n ->> 'canonical')
  );
  insert into agent.subscription_filter as f (subscription, name, topics, match, canonical, expires_after)
  select _id, n ->> 'name', case when json_typeof(n -> 'topics') = 'array' then array(select json_array_elements_text(n -> 'topics')) end, n -> 'match'
  , n ->> 'canonical', make_interval(secs => (n ->> 'expires_after')::float8)
  from json_array_elements(_filters) n
  on conflict (subscription, name) do update
  set topics = excluded.topics, match = excluded.match, canonical = excluded.canonical, expires_after = excluded.expires_after, expires_at = null
  where f.topics is distinct from excluded.topics or f.match::text is distinct from excluded.match::text or f.canonical <> excluded.canonical
  or f.expires_after is distinct from excluded.expires_after;
  get diagnostics _n = row_count;
  changed = changed + _n;
  update agent.subscription_filter f
  set expires_at = agent_private.add_utc(clock_timestamp(), f.expires_after)
  where f.subscription = _id and f.name = any (_names) and f.expires_after is not null;
  if _n = 0 then
    return;
  elsif (select count(*) from agent.subscription_filter f where f.subscription = _id) > agent_private.max_filters() then
    perform agent_private.raise_invalid('filters', format('must be at most %s a subscription', agent_private.max_filters()));
  elsif (select sum(octet_length(f.canonical)) from agent.subscription_filter f where f.subscription = _id) > 16777216 then
    perform agent_private.raise_invalid('filters', 'must have at most 16 MiB a subscription');
  elsif (select count(*) from agent.subscription_filter f) > agent_private.max_all_filters() then
    perform agent_private.raise_invalid('filters', format('must be at most %s of all subscriptions', agent_private.max_all_filters()));
  end if;
end
$func$;

-- How many filters a subscription may have.
create or replace function agent_private.max_filters()
returns int8
language sql immutable parallel safe
return 1000;

-- How many filters all subscriptions may have.
create or replace function agent_private.max_all_filters()
returns int8
language sql immutable parallel safe
return 100000;

-- Deletes a subscription if it has one of _if_versions (null: any). Raises QD020 or QD004.
create or replace function agent_service.delete_subscription_if_match(_name text, _if_versions int8[])
returns void
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _subscription agent.subscription = agent_private.lock_subscription(_name);
begin
  if _subscription.version <> all (_if_versions) then
    perform agent_private.raise_version_mismatch('subscription ' || _name, _if_versions);
  end if;
  perform agent_private.remove_subscription(_subscription);
  perform agent_private.record_audit('subscription.delete', _name);
end
$func$;

create or replace function agent_private.remove_subscription(_subscription agent.subscription)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  delete from agent.subscription_filter f where f.subscription = _subscription.id;
  delete from agent.subscription_position p where p.reader = _subscription.id;
  perform agent_private.remove_replay(r.id) from agent.subscription_replay r where r.subscription = _subscription.id;
  delete from agent.subscription s where s.id = _subscription.id;
  perform agent_private.change_routes(_subscription);
end
$func$;

-- Pauses a subscription, so that reads get nothing and nothing is delivered, or resumes it. Raises QD020 if there is no such subscription.
create or replace function agent.pause_subscription(_name text, _paused boolean default true)
returns void
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _subscription agent.subscription = agent_private.lock_subscription(_name);
begin
  update agent.subscription s
  set is_paused = _paused, version = s.version + 1, updated_at = clock_timestamp()
  where s.id = _subscription.id and s.is_paused <> _paused;
  perform agent_private.change_routes(_subscription);
  perform agent_private.record_audit(case when _paused then 'subscription.pause' else 'subscription.resume' end, _name);
end
$func$;

-- Deletes the subscriptions and the filters that have expired, up to _limit each, and returns how many there were. It leaves out those that
-- somebody is changing.
create or replace function agent_service.prune_subscriptions(_limit int4 default 1000)
returns int8
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
set jit to off
as $func$
declare
  _id int8;
  _subscription agent.subscription;
  _n int8;
  _pruned int8 = 0;
begin
  for _subscription in
    select s.* from agent.subscription s where s.expires_at <= clock_timestamp() order by s.expires_at limit _limit for update skip locked
  loop
    perform agent_private.remove_subscription(_subscription);
    _pruned = _pruned + 1;
  end loop;
  for _id in
    select distinct f.subscription
    from (select f.subscription from agent.subscription_filter f where f.expires_at <= clock_timestamp() order by f.expires_at limit _limit) f
  loop
    select s.* into _subscription from agent.subscription s where s.id = _id for no key update skip locked;
    continue when not found;
    delete from agent.subscription_filter f where f.subscription = _id and f.expires_at <= clock_timestamp();
    get diagnostics _n = row_count;
    if _n > 0 then
      update agent.subscription s
      set version = s.version + 1, filters_version = agent_private.next_version(s.filters_version), updated_at = clock_timestamp()
      where s.id = _id;
      perform agent_private.change_routes(_subscription);
      _pruned = _pruned + _n;
    end if;
  end loop;
  return _pruned;
end
$func$;

-- Locks a subscription. Raises QD020 if there is none of this name.
create or replace function agent_private.lock_subscription(_name text)
returns agent.subscription
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
set jit to off
as $func$
declare
  _subscription agent.subscription;
begin
  select s.* into _subscription from agent.subscription s where s.name = _name for no key update;
  if not found then
    raise exception 'there is no subscription %', _name using errcode = 'QD020';
  end if;
  return _subscription;
end
$func$;

-- Positions.

-- The group of an event that a subscription is delivered, from what its deliver_group_from names: the key of the publication, its topic, or what is in the payload at a JSON pointer, see
-- agent_private.group_at. Null if there is none, or no group may be called so.
create or replace function agent_private.delivery_group(_from text, _key text, _topic text, _event jsonb)
returns text
language sql immutable parallel safe
return case
  when _from = 'key' then case when octet_length(_key) between 1 and 255 then _key end
  when _from = 'topic' then case when octet_length(_topic) between 1 and 255 then _topic end
  when _from is not null then agent_private.group_at(_event, _from)
end;

-- Raises QD023: the subscription is delivered into a queue, or it is not, and the call is for the others.
create or replace function agent_private.raise_wrong_delivery(_subscription agent.subscription)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  raise exception 'the subscription % is %', _subscription.name
  , coalesce('delivered into the queue ' || _subscription.deliver_queue, 'read by cursor, and not delivered into a queue')
    using errcode = 'QD023';
end
$func$;

-- How far a reader has come. For a subscription in step, see position_of.
create or replace function agent_private.newest_position(_id int8)
returns agent.subscription_position
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set enable_seqscan to off -- beside an old snapshot the table is full of dead rows
set enable_bitmapscan to off
set jit to off
as $func$
declare
  _newest agent.subscription_position;
begin
  select p.* into _newest from agent.subscription_position p where p.reader = _id order by p.number desc limit 1;
  return _newest;
end
$func$;

-- How far a subscription has come, in step or not: its own newest position, in step with the place of the router.
create or replace function agent_private.position_of(_subscription agent.subscription)
returns agent.subscription_position
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
declare
  _newest agent.subscription_position = agent_private.newest_position(_subscription.id);
begin
  if _subscription.is_in_step then
    _newest.position = (agent_private.newest_position(0)).position;
  end if;
  return _newest;
end
$func$;

-- Replaces a position by the next one: _position, whose number is that of the one before. Returns the number of the next one, which no other move
-- from the one before had: see next_version.
create or replace function agent_private.replace_position(_position agent.subscription_position)
returns int8
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set enable_seqscan to off
set jit to off
as $func$
declare
  _number int8 = agent_private.next_version(_position.number);
begin
  insert into agent.subscription_position (reader, number, position, token, epoch, leased_until, lease_token, gaps)
  values (_position.reader, _number, _position.position, _position.token, _position.epoch, _position.leased_until, _position.lease_token, _position.gaps);
  delete from agent.subscription_position p where p.reader = _position.reader and p.number = _position.number;
  return _number;
end
$func$;

-- The version that comes after _version: greater, and by so much that nobody can guess it. A version that a failover has lost is followed by another
-- one than before, so that nobody who remembers the lost one takes it for the present one. There is room for 4,000,000,000,000 of them.
create or replace function agent_private.next_version(_version int8)
returns int8
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  return _version + 1 + (random() * 2097151)::int8;
end
$func$;

-- Whether retention has dropped events after a position.
create or replace function agent_private.is_gap_after(_position int8)
returns boolean
language plpgsql stable
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
as $func$
begin
  return exists (select from agent.log_segment g where g.state = 'dropped' and g.last_position > _position);
end
$func$;

-- Whether a durable subscription, or a replay for one, has not come as far as a position.
create or replace function agent_private.is_needed(_position int8)
returns boolean
language plpgsql stable
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
set enable_bitmapscan to off
set jit to off
as $func$
begin
  return exists
  ( select from agent.subscription s
    cross join lateral
    ( select p.position from agent.subscription_position p where p.reader = case when s.is_in_step then 0 else s.id end order by p.number desc limit 1
    ) p
    where s.expires_after is null and p.position < _position
  ) or exists
  ( select from agent.subscription s
    join agent.subscription_replay r on r.subscription = s.id
    cross join lateral (select p.position from agent.subscription_position p where p.reader = r.id order by p.number desc limit 1) p
    where s.expires_after is null and p.position < _position
  );
end
$func$;

-- How far a position is behind _head: about how many events lie between, those counted whose publisher was rolled back, and how long ago
-- the first of these was published, in seconds.
create or replace function agent_private.log_lag(_position int8, _head int8, out events int8, out seconds float8)
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan -- the statements to plan for each segment are in last_position_between and first_published_between
set jit to off
as $func$
declare
  _segment record;
  _published_at timestamptz;
begin
  events = 0;
  -- Segment by segment, because a statement about the whole log is planned for each of its partitions, each time.
  for _segment in
    select greatest(_position, g.number << 32) as after, (g.number + 1) << 32 as "end", g.last_position as last, g.events is not null as is_counted
    from agent.log_segment g
    where g.state <> 'dropped' and g.events is distinct from 0 and (g.number + 1) << 32 > _position and g.number << 32 < _head
    order by g.number
  loop
    if not _segment.is_counted and _head < _segment."end" then
      _segment.last = _head;
    elsif not _segment.is_counted then
      _segment.last = agent_private.last_position_between(_segment.after, _segment."end");
    end if;
    continue when _segment.last is null or _segment.last <= _segment.after;
    _segment.last = least(_segment.last, _head);
    events = events + _segment.last - _segment.after -
    ( select coalesce(sum(least(k.until, _segment.last) - greatest(k.after, _segment.after)), 0)
      from agent.log_skip k
      where k.until > _segment.after and k.after < _segment.last
    );
    if _published_at is null then
      _published_at = agent_private.first_published_between(_segment.after, least(_segment."end", _head + 1));
    end if;
  end loop;
  seconds = coalesce(greatest(extract(epoch from clock_timestamp() - _published_at), 0), 0);
end
$func$;

-- The position of the last event of the log after a position and before another one.
create or replace function agent_private.last_position_between(_after int8, _before int8)
returns int8
language plpgsql stable
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_custom_plan -- with the segments that can hold something
set jit to off
as $func$
begin
  return (select max(l.position) from agent.log l where l.position > _after and l.position < _before);
end
$func$;

-- When the first event of the log after a position and before another one was published.
create or replace function agent_private.first_published_between(_after int8, _before int8)
returns timestamptz
language plpgsql stable
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_custom_plan -- with the segments that can hold something
set jit to off
as $func$
begin
  return (select l.published_at from agent.log l where l.position > _after and l.position < _before order by l.position limit 1);
end
$func$;

-- Reading.

-- The state that a read begins with: the version of the filters, how far the subscription has come, and until when somebody else has a lease. A
-- subscription that expires is renewed. Raises QD020 if there is none of this name, QD023 if it is delivered into a queue.
create or replace function agent_service.begin_read(_name text)
returns table (id int8, filters_version int8, is_paused boolean, "position" int8, token int8, epoch int8, leased_until timestamptz)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set enable_seqscan to off
set jit to off
as $func$
#variable_conflict use_column
declare
  _subscription agent.subscription;
  _position agent.subscription_position;
begin
  select s.* into _subscription from agent.subscription s where s.name = _name;
  if not found then
    raise exception 'there is no subscription %', _name using errcode = 'QD020';
  elsif _subscription.deliver_queue is not null then
    perform agent_private.raise_wrong_delivery(_subscription);
  end if;
  perform agent_private.renew_subscription(_subscription);
  _position = agent_private.newest_position(_subscription.id);
  if _position is null then -- it was deleted meanwhile
    raise exception 'there is no subscription %', _name using errcode = 'QD020';
  end if;
  return query
  select _subscription.id, _subscription.filters_version, _subscription.is_paused, _position.position, _position.token, _position.epoch
  , case when _position.leased_until > clock_timestamp() then _position.leased_until end;
end
$func$;

-- Puts the expiry of a subscription off, if it has one and more than a twentieth of its time has passed: so it is not updated by every read.
-- One that somebody else is changing is left for the next call: who reads waits for nobody.
create or replace function agent_private.renew_subscription(_subscription agent.subscription)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set enable_seqscan to off
set jit to off
as $func$
begin
  if _subscription.expires_at < agent_private.add_utc(clock_timestamp(), _subscription.expires_after * 0.95) then
    update agent.subscription s
    set expires_at = agent_private.add_utc(clock_timestamp(), s.expires_after)
    from (select r.id from agent.subscription r where r.id = _subscription.id and r.expires_after is not null for no key update skip locked) r
    where s.id = r.id;
  end if;
end
$func$;

-- Returns the state of subscriptions, for those who wait for them and look again when it differs. Subscriptions that expire are renewed, as by begin_read; one
-- that somebody changes at this moment is left for the next time. There is no row for a name that no subscription has.
create or replace function agent_service.watch_subscriptions(_names text[])
returns table
( name text, id int8, version int8, filters_version int8, is_paused boolean, is_delivered boolean, "position" int8, token int8, epoch int8, is_leased boolean
, expires_after interval
)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set enable_seqscan to off
set enable_bitmapscan to off
set jit to off
as $func$
#variable_conflict use_column
begin
  update agent.subscription s
  set expires_at = agent_private.add_utc(clock_timestamp(), s.expires_after)
  from
  ( select r.id
    from agent.subscription r
    where r.name = any (_names) and r.expires_at < agent_private.add_utc(clock_timestamp(), r.expires_after * 0.95)
    for no key update skip locked
  ) r
  where s.id = r.id;
  return query
  select s.name, s.id, s.version, s.filters_version, s.is_paused, s.deliver_queue is not null, p.position, p.token, p.epoch
  , coalesce(p.leased_until > clock_timestamp(), false), s.expires_after
  from agent.subscription s
  cross join lateral (select p.* from agent.subscription_position p where p.reader = s.id order by p.number desc limit 1) p
  where s.name = any (_names);
end
$func$;

-- The filters of a subscription, by name, each with their version; without filters, one row without a name. Nothing if there is no such
-- subscription.
create or replace function agent_service.read_filters(_id int8)
returns table (filters_version int8, name text, topics text[], match json, expires_after interval, expires_at timestamptz)
language plpgsql stable
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set enable_seqscan to off
set jit to off
as $func$
#variable_conflict use_column
begin
  return query
  select s.filters_version, f.name, f.topics, f.match, f.expires_after, f.expires_at
  from agent.subscription s
  left join agent.subscription_filter f on f.subscription = s.id
  where s.id = _id
  order by f.name;
end
$func$;

-- The filters of several subscriptions, as read_filters returns those of one.
create or replace function agent_service.list_filters(_ids int8[])
returns table (id int8, filters_version int8, name text, topics text[], match json)
language plpgsql stable
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
as $func$
#variable_conflict use_column
begin
  return query
  select s.id, s.filters_version, f.name, f.topics, f.match
  from agent.subscription s
  left join agent.subscription_filter f on f.subscription = s.id
  where s.id = any (_ids)
  order by s.id, f.name;
end
$func$;

-- Ends a read, after its page was read: _position is where the page ends, and _cursor the token of its cursor. The read began at _token and _epoch. With
-- _is_ahead it went on from a cursor that is not committed, and with _is_leased under the lease of that. With _lease it begins a lease, or
-- extends its own. With _is_empty there was nothing in it for the subscription, whose position then moves on, unless somebody else is changing
-- the subscription: only who takes a lease waits for others.
--
-- The status is null, or "changed" if the page has to be read again, or "lost" if the cursor that it went on from can be committed no more.
-- The lag is that of _position.
create or replace function agent_service.end_read
( _id int8
, _filters_version int8
, _token int8
, _epoch int8
, _is_ahead boolean
, _is_leased boolean
, _cursor int8
, _position int8
, _head int8
, _lease interval
, _is_empty boolean
)
returns table (status text, epoch int8, leased_until timestamptz, lag_events int8, lag_seconds float8)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set enable_seqscan to off
set jit to off
as $func$
#variable_conflict use_column
declare
  _found agent.subscription;
  _newest agent.subscription_position;
  _takes_lease boolean = not _is_empty and (_lease is not null or _is_leased);
  _advances boolean = _is_empty and not _is_ahead;
  _is_held boolean;
begin
  if _takes_lease then
    select s.* into _found from agent.subscription s where s.id = _id for no key update;
  elsif _advances then
    select s.* into _found from agent.subscription s where s.id = _id for no key update skip locked;
    _advances = found;
  end if;
  if not _takes_lease and not _advances then
    select s.* into _found from agent.subscription s where s.id = _id;
  end if;
  _newest = agent_private.newest_position(_id);
  _is_held = coalesce(_newest.leased_until > clock_timestamp(), false);
  if _found.id is null or _newest is null then
    return query select 'changed', 0::int8, null::timestamptz, 0::int8, 0::float8; -- the next try finds that it is gone
    return;
  elsif _is_ahead and (_newest.epoch <> _epoch or _newest.position > _position or (_is_leased and not _is_held)) then
    return query select 'lost', 0::int8, null::timestamptz, 0::int8, 0::float8;
    return;
  elsif _found.filters_version <> _filters_version or _found.is_paused
    or (not _is_ahead and (_newest.token <> _token or _newest.epoch <> _epoch or _is_held))
  then
    return query select 'changed', 0::int8, null::timestamptz, 0::int8, 0::float8;
    return;
  end if;
  if _takes_lease then
    _newest.lease_token = _cursor;
    _newest.leased_until = coalesce(agent_private.add_utc(clock_timestamp(), _lease), _newest.leased_until);
    _newest.epoch = case when _is_leased then _newest.epoch else agent_private.next_version(_newest.epoch) end; -- cursors of others are lost
    perform agent_private.replace_position(_newest);
  elsif _advances and _position > _newest.position then
    _newest.position = _position; -- with the same token: cursors of others can still be committed
    perform agent_private.replace_position(_newest);
  end if;
  return query
  select null, _newest.epoch, case when _takes_lease then _newest.leased_until end, l.events, l.seconds from agent_private.log_lag(_position, _head) l;
end
$func$;

-- Commits a cursor: compares and sets. Returns the position. A cursor that was committed last is committed already. Raises QD020 if there is no
-- such subscription, QD023 if it is delivered into a queue, QD021 if the cursor is lost: another one was committed in its place, a seek or a lease came in between, its lease has
-- ended, or the subscription was made anew.
create or replace function agent_service.commit_cursor
( _name text
, _id int8
, _epoch int8
, _parent int8
, _token int8
, _position int8
, _is_leased boolean
, _has_gap boolean
)
returns int8
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
as $func$
declare
  _subscription agent.subscription = agent_private.lock_subscription(_name);
  _newest agent.subscription_position = agent_private.newest_position(_subscription.id);
begin
  if _subscription.deliver_queue is not null then
    perform agent_private.raise_wrong_delivery(_subscription);
  end if;
  perform agent_private.renew_subscription(_subscription);
  if _subscription.id = _id and _newest.token = _token then
    return _newest.position;
  elsif _subscription.id <> _id or _newest.token <> _parent or _newest.epoch <> _epoch
    or (_is_leased and not coalesce(_newest.leased_until > clock_timestamp(), false))
    or _position > (select s.last_value from agent.log_position_seq s)
  then
    raise exception 'the cursor is lost' using errcode = 'QD021';
  end if;
  if not _is_leased or _newest.lease_token = _token then
    _newest.leased_until = null;
    _newest.lease_token = null;
  end if;
  if _newest.position <= (select s.last_value from agent.log_position_seq s) then -- else the gap leads back
    _position = greatest(_newest.position, _position);
  end if;
  _newest.position = _position;
  _newest.token = _token;
  _newest.gaps = _newest.gaps + _has_gap::int4;
  perform agent_private.replace_position(_newest);
  return _newest.position;
end
$func$;

-- Makes a subscription go on from a position. Cursors that were read before are lost, and a lease ends.
create or replace function agent_service.seek_subscription(_name text, _position int8, _token int8)
returns void
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _subscription agent.subscription;
  _newest agent.subscription_position;
begin
  perform agent_private.check_position(_position);
  _subscription = agent_private.lock_subscription(_name);
  _newest = agent_private.position_of(_subscription);
  perform agent_private.renew_subscription(_subscription);
  _newest.gaps = _newest.gaps + agent_private.is_gap_after(_newest.position)::int4; -- it is told no more
  _newest.position = _position;
  _newest.token = _token;
  _newest.epoch = agent_private.next_version(_newest.epoch);
  _newest.leased_until = null;
  _newest.lease_token = null;
  perform agent_private.replace_position(_newest);
  update agent.subscription s set is_in_step = false where s.id = _subscription.id and s.is_in_step;
  perform agent_private.change_routes(_subscription);
  perform agent_private.record_audit('subscription.seek', _name, jsonb_build_object('position', _position));
end
$func$;

-- Reading from SQL.
--
-- The same as the service does: begin_read, a page of the log, end_read, and the same cursors, so that readers in SQL and over HTTP take turns. Of filters
-- it evaluates topics alone: only the service matches the contents of events.

-- Up to _limit events that a subscription gets next, in order, with texts of about 4 MiB, and the names of the filters that want each. All rows have the
-- same cursor: commit it with commit_cursor when all of them are done, also in the same transaction; until then they are read again. Where events are missing,
-- the first row tells so as in read_log. With _lease nobody else gets anything until the cursor is committed or the time is over. _after is a cursor that is not
-- committed, to go on from: then a page without events is one row that has only a cursor, further on. There are no rows while somebody else has a lease, while the
-- subscription is paused, and, with a lease, while another transaction changes it. A call looks through about 50,000 events, for about two
-- seconds; the position moves by itself over those that no filter wants.
--
-- Raises QD020 if there is none of this name, QD023 if it is delivered into a queue, feature_not_supported if one of its filters has match, QD021 if _after
-- is lost, QD003 for a text that is no cursor of this subscription.
create or replace function agent.read_subscription(_name text, _limit int4 default 100, _lease interval default null, _after text default null)
returns table
( "position" int8, topic text, published_at timestamptz, key text, meta jsonb, event jsonb, matched text[]
, cursor text
)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_custom_plan -- with the segments that can hold something
set enable_seqscan to off
set enable_bitmapscan to off
set jit to off
as $func$
#variable_conflict use_column
declare
  _from int8[]; -- the parts of _after: see agent_private.cursor_parts
  _cursor int8[];
  _is_leased boolean = false; -- _after is
  _is_free boolean = true;
  _state record;
  _filter text;
  _start int8;
  _head int8;
  _gap_until int8;
  _gap jsonb;
  _page record;
  _wanted jsonb;
  _is_empty boolean;
  _end record;
begin
  if _limit is null or _limit not between 1 and 1000 then
    perform agent_private.raise_invalid('limit', 'must be from 1 to 1000');
  elsif not coalesce(_lease between interval '1 second' and interval '24 hours', true) then
    perform agent_private.raise_invalid('lease', 'must be from one second to 24 hours');
  end if;
  if _after is not null then
    _from = agent_private.cursor_parts(_name, _after);
    if _from is null then
      perform agent_private.raise_invalid('after', agent_private.no_cursor());
    end if;
    _is_leased = _from[1] & 1 <> 0;
    if _lease is not null and not _is_leased then
      perform agent_private.raise_invalid('lease', 'must not be given together with a cursor without a lease: take it with the first read');
    end if;
  end if;
  if _lease is not null or _is_leased then -- who reads waits for nobody: whoever changes it now may be taking the lease
    perform from agent.subscription s where s.name = _name for no key update skip locked;
    _is_free = found;
  end if;

  loop
    select r.* into strict _state from agent_service.begin_read(_name) r;
    select f.name into _filter from agent.subscription_filter f where f.subscription = _state.id and f.match is not null order by f.name limit 1;
    if found then
      raise exception 'the filter % of the subscription % has match, which SQL does not evaluate', _filter, _name
        using errcode = 'feature_not_supported', hint = format('Read it over HTTP: POST /subscriptions/%s/read.', _name);
    elsif _from is not null and
      ( _from[2] <> _state.id or _from[3] <> _state.epoch
        or _state.position > _from[6] and _state.token not in (_from[4], _from[5]) -- the committed position has passed it
        or _is_leased and _state.leased_until is null
      )
    then
      raise exception 'the cursor is lost' using errcode = 'QD021';
    elsif not _is_free or _state.is_paused or _state.leased_until is not null and _from is null then
      return;
    end if;

    _start = greatest(_state.position, _from[6]);
    _head = agent_private.log_head();
    _gap_until = agent_private.log_gap(_start, _head);
    _gap = null;
    if _gap_until is not null then
      _gap = jsonb_build_object('after', _start, 'until', _gap_until, 'reason', agent_service.log_gap_reason(_start));
      if _gap ->> 'reason' = 'beyond_head' then
        if _from is not null then -- the cursor is of another log
          raise exception 'the cursor is lost' using errcode = 'QD021';
        end if;
        _start = _head;
      else
        _start = greatest(_start, least(_gap_until, _head)); -- there is nothing in between
      end if;
    end if;
    select p.* into strict _page from agent_private.subscribed_page(_state.id, _name, _start, _head, _limit - (_gap is not null)::int4) p;

    _is_empty = _gap is null and _page.positions = '{}';
    select jsonb_object_agg(w.topic, w.names) into _wanted -- by the filters that the page was made with, see end_read
    from agent_private.topic_filters(_state.id, array(select distinct l.topic from agent.log l where l.position = any (_page.positions))) w;
    _cursor = array
    [ (_is_leased or _from is null and _lease is not null and not _is_empty)::int4 | ((_gap is not null)::int4 << 1)
    , _state.id, _state.epoch, coalesce(_from[5], _state.token), agent_private.new_token(), _page.until
    ];
    if _from is not null and _is_empty then -- the same cursor, further on
      _cursor[1] = _from[1];
      _cursor[4] = _from[4];
      _cursor[5] = _from[5];
    end if;
    select e.* into strict _end
    from agent_service.end_read
    ( _state.id, _state.filters_version, _cursor[4], _state.epoch, _from is not null, _is_leased, _cursor[5], _page.until, _head, _lease, _is_empty
    ) e;
    if _end.status = 'lost' then
      raise exception 'the cursor is lost' using errcode = 'QD021';
    end if;
    exit when _end.status is null;
  end loop;
  _cursor[3] = _end.epoch;
  cursor = agent_private.cursor_text(_name, _cursor);

  if _is_empty then
    if _from is not null then
      return next;
    end if;
    return;
  end if;
  if _gap is not null then
    return query select _gap_until, 'queued.gap', clock_timestamp(), null, null::jsonb, _gap, '{}'::text[], cursor;
  end if;
  return query
  select l.position, l.topic, l.published_at, l.key, l.meta, l.event, array(select jsonb_array_elements_text(_wanted -> l.topic)), cursor
  from agent.log l
  where l.position = any (_page.positions)
  order by l.position;
end
$func$;

-- Commits a cursor that read_subscription or the service has given, as the function above does, in the caller's transaction. Raises QD003 for a
-- text that is no cursor of this subscription, too.
create or replace function agent.commit_cursor(_name text, _cursor text)
returns int8
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _parts int8[] = agent_private.cursor_parts(_name, _cursor);
begin
  if _parts is null then
    perform agent_private.lock_subscription(_name); -- that there is none is said first
    perform agent_private.raise_invalid('cursor', agent_private.no_cursor());
  end if;
  return agent_service.commit_cursor(_name, _parts[2], _parts[3], _parts[4], _parts[5], _parts[6], _parts[1] & 1 <> 0, _parts[1] & 2 <> 0);
end
$func$;

-- The positions of the events that a subscription gets after a position, up to _head and so many, in order, and up to where nothing else is for it. None
-- of its filters may have match.
create or replace function agent_private.subscribed_page
( _id int8
, _name text
, _after int8
, _head int8
, _limit int4
, out positions int8[]
, out until int8
)
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_custom_plan
set enable_seqscan to off
set enable_bitmapscan to off
set jit to off
as $func$
declare
  _begun timestamptz = clock_timestamp();
  _wants_all boolean = exists (select from agent.subscription_filter f where f.subscription = _id and coalesce(cardinality(f.topics), 0) = 0);
  _patterns text[] = array(select distinct p from agent.subscription_filter f cross join unnest(f.topics) p where f.subscription = _id and not _wants_all);
  _have_wildcards boolean = exists (select from unnest(_patterns) p where p like '%*%');
  _regex text; -- null: they are too long for one
  _size int4 = greatest(_limit, 100); -- of the part of the log that is looked through next
  _scanned int4 = 0;
  _bytes int8 = 0; -- of the texts of positions
  _last int8; -- of the part
  _n int4;
  _topics text[];
  _found int8[];
  _are_all boolean; -- the part has no more that is wanted
  _added int8;
begin
  positions = '{}';
  until = _after;
  if _have_wildcards and (select sum(length(p)) from unnest(_patterns) p) <= 4000 then
    _regex = agent_private.topic_regex(_patterns);
  end if;
  while cardinality(positions) < _limit and _scanned < 50000 and clock_timestamp() < _begun + interval '2 seconds' loop
    select count(*), max(l.position), case when not _wants_all then array_agg(distinct l.topic) end into _n, _last, _topics
    from (select l.position, l.topic from agent.log l where l.position > until and l.position <= _head order by l.position limit _size) l;
    if _n = 0 then
      until = greatest(until, _head);
      return;
    end if;
    if _regex is not null then
      _topics = array(select t from unnest(_topics) t where t ~ _regex);
    elsif _have_wildcards then
      _topics = array
      ( select distinct t.topic
        from unnest(_topics) as t (topic)
        cross join lateral agent_private.topic_patterns(t.topic) p
        where p in (select unnest(_patterns))
      );
    else
      _topics = array(select unnest(_topics) intersect select unnest(_patterns));
    end if;
    select array_agg(b.position order by b.position) filter (where b.is_in), coalesce(bool_and(b.is_in), true), coalesce(max(b.bytes) filter (where b.is_in), 0)
    into _found, _are_all, _added
    from
    ( select e.position, sum(e.size) over w as bytes
      , _bytes + sum(e.size) over w <= 4194304 or positions = '{}' and row_number() over w = 1 as is_in
      from
      ( select l.position, l.text_size as size
        from agent.log l
        where l.position > until and l.position <= _last
        and case when l.subscription is null then _wants_all or l.topic in (select unnest(_topics)) else l.subscription = _name end
        order by l.position
        limit _limit - cardinality(positions)
      ) e
      window w as (order by e.position rows unbounded preceding)
    ) b;
    positions = positions || coalesce(_found, '{}');
    _bytes = _bytes + _added;
    if cardinality(positions) = _limit or not _are_all then
      until = positions[cardinality(positions)];
      return;
    elsif _n < _size then
      until = _head;
      return;
    end if;
    until = _last;
    _scanned = _scanned + _n;
    _size = least(2 * _size, 5000);
  end loop;
end
$func$;

-- The patterns that stand for a topic, 2^9 at most. A test holds them against the service's matcher.
create or replace function agent_private.topic_patterns(_topic text)
returns setof text
language plpgsql immutable
set search_path to pg_catalog, pg_temp
as $func$
declare
  _words text[] = string_to_array(_topic, '.');
  _count int4 = coalesce(cardinality(_words), 0);
  _begun text[] = '{""}'; -- the possible beginnings of patterns
  _longer text[];
  _text text;
begin
  if _count not between 1 and 8 then
    return;
  end if;
  for _i in 1 .. _count loop
    _longer = '{}';
    foreach _text in array _begun loop
      if _i = 1 and starts_with(_topic, 'queued.') then -- the service's own: only by this word
        _longer = array['queued.'];
      elsif _i < _count then
        return next _text || '**';
        _longer = _longer || (_text || _words[_i] || '.') || (_text || '*.');
      else
        return next _text || '**';
        return next _text || _words[_i];
        return next _text || '*';
      end if;
    end loop;
    _begun = _longer;
  end loop;
end
$func$;

-- The filters of a subscription that want events of topics, by topic, but for topics that none wants. None of its filters may have match.
create or replace function agent_private.topic_filters(_id int8, _topics text[])
returns table (topic text, names text[])
language sql stable
set search_path to pg_catalog, pg_temp
as $func$
  with wanted as
  ( select t.topic, f.name
    from unnest(_topics) as t (topic)
    cross join lateral agent_private.topic_patterns(t.topic) as p (pattern)
    join
    ( select f.name, p.pattern
      from agent.subscription_filter f
      cross join unnest(f.topics) as p (pattern)
      where f.subscription = _id
    ) f using (pattern)
    union
    select t.topic, f.name
    from unnest(_topics) as t (topic)
    cross join agent.subscription_filter f
    where f.subscription = _id and coalesce(cardinality(f.topics), 0) = 0
  )
  select w.topic, array_agg(w.name order by w.name) from wanted w group by w.topic
$func$;

-- Cursors, as the service writes them: their parts as numbers of 7 bits a byte, the lowest first, and a check, all in base64. The parts are flags (1: leased, 2: a gap
-- was told), the id of the subscription, the epoch, the token that has to be committed last, the cursor's own token, and the position.

-- A random number, which tells a cursor from all others.
create or replace function agent_private.new_token()
returns int8
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  return ('x' || agent_private.claim_token(gen_random_uuid()::text))::bit(64)::int8 & 9223372036854775807;
end
$func$;

-- The error for a text that is no cursor.
create or replace function agent_private.no_cursor()
returns text
language sql immutable
return 'must be the cursor of a read of this subscription, unchanged';

-- The end of the bytes of a cursor of a subscription.
create or replace function agent_private.cursor_check(_name text, _bytes bytea)
returns bytea
language plpgsql stable
set search_path to pg_catalog, pg_temp
as $func$
begin
  return substr(sha256(convert_to('cursor of ' || _name || ' ', 'UTF8') || _bytes), 1, 6);
end
$func$;

create or replace function agent_private.cursor_text(_name text, _parts int8[])
returns text
language plpgsql stable
set search_path to pg_catalog, pg_temp
as $func$
declare
  _bytes bytea = '';
  _part int8;
begin
  foreach _part in array _parts loop
    while _part > 127 loop
      _bytes = _bytes || set_byte('\x00', 0, (_part & 127)::int4 | 128);
      _part = _part >> 7;
    end loop;
    _bytes = _bytes || set_byte('\x00', 0, _part::int4);
  end loop;
  return translate(encode(_bytes || agent_private.cursor_check(_name, _bytes), 'base64'), e'+/=\n', '-_');
end
$func$;

-- The parts of a cursor; null for a text that is no cursor of this subscription.
create or replace function agent_private.cursor_parts(_name text, _text text)
returns int8[]
language plpgsql stable
set search_path to pg_catalog, pg_temp
as $func$
declare
  _bytes bytea;
  _byte int4;
  _parts int8[] = '{}';
  _part int8 = 0;
  _shift int4 = 0;
begin
  if _text ~ '^[A-Za-z0-9_-]{1,200}$' is not true or length(_text) % 4 = 1 then
    return null;
  end if;
  _bytes = decode(rpad(translate(_text, '-_', '+/'), (length(_text) + 3) / 4 * 4, '='), 'base64');
  if length(_bytes) < 12 or translate(encode(_bytes, 'base64'), e'+/=\n', '-_') <> _text -- it has bits that are not read
    or agent_private.cursor_check(_name, substr(_bytes, 1, length(_bytes) - 6)) <> substr(_bytes, length(_bytes) - 5)
  then
    return null;
  end if;
  for _i in 0 .. length(_bytes) - 7 loop
    _byte = get_byte(_bytes, _i);
    if _shift > 56 then
      return null; -- it has more than 63 bits
    end if;
    _part = _part | ((_byte & 127)::int8 << _shift);
    _shift = _shift + 7;
    if _byte < 128 then
      _parts = _parts || _part;
      _part = 0;
      _shift = 0;
    end if;
  end loop;
  if cardinality(_parts) <> 6 or _shift > 0 then
    return null;
  end if;
  return _parts;
end
$func$;

-- Listing.

-- Up to _limit subscriptions after _after, by name, or the one of _name: with how far they have come, the head of the log, and their lag as of
-- agent_private.log_lag. gaps counts those that nobody has been told of yet, too. waiting is how many events are ready in the queue that it is delivered
-- into, up to max_waiting. Only the subscriptions are listed that is_subscription_allowed allows; null: all.
create or replace function agent.list_subscriptions
( _limit int4 default 100
, _after text default null
, _name text default null
, _queues text[] default null
, _topics text[] default null
)
returns table
( id int8, name text, version int8, is_paused boolean, start_position int8, max_waiting int4, expires_after interval, expires_at timestamptz
, created_at timestamptz, updated_at timestamptz, filters int8, "position" int8, head int8, lag_events int8, lag_seconds float8, gaps int8
, leased_until timestamptz, deliver_queue text, deliver_type text, deliver_priority int4, is_in_step boolean, waiting int8, replays int8, deliver_group_from text
)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
as $func$
#variable_conflict use_column
declare
  _head int8 = agent_private.log_head();
  _in_step int8 = (agent_private.newest_position(0)).position;
begin
  return query
  select s.id, s.name, s.version, s.is_paused, s.start_position, s.max_waiting, s.expires_after, s.expires_at, s.created_at, s.updated_at
  , (select count(*) from agent.subscription_filter f where f.subscription = s.id)
  , p.position, _head, l.events, l.seconds, p.gaps + agent_private.is_gap_after(p.position)::int4
  , case when p.leased_until > clock_timestamp() then p.leased_until end
  , s.deliver_queue, s.deliver_type, s.deliver_priority, s.is_in_step
  , case when s.deliver_queue is not null then agent_private.count_ready(s.deliver_queue, s.max_waiting) end
  , (select count(*) from agent.subscription_replay r where r.subscription = s.id), s.deliver_group_from
  from
  ( select s.* from agent.subscription s
    where (_after is null or s.name > _after) and (_name is null or s.name = _name)
    and (_queues is null or agent_private.is_subscription_allowed(s, _queues, _topics))
    order by s.name
    limit _limit
  ) s
  cross join lateral
  ( select p.gaps, p.leased_until, case when s.is_in_step then _in_step else p.position end as position
    from agent.subscription_position p
    where p.reader = s.id
    order by p.number desc
    limit 1
  ) p
  cross join lateral agent_private.log_lag(p.position, _head) l
  order by s.name;
end
$func$;

-- Whether a subscription delivers, if at all, only into queues that a pattern of _queues stands for, and wants only topics that the patterns
-- of _topics stand for. One without filters gets events published for it alone, whatever the topic.
create or replace function agent_private.is_subscription_allowed(_subscription agent.subscription, _queues text[], _topics text[])
returns boolean
language plpgsql stable
set search_path to pg_catalog, pg_temp
as $func$
begin
  return (_subscription.deliver_queue is null or agent_private.is_queue_allowed(_subscription.deliver_queue, _queues))
    and coalesce
    ( (select bool_and(agent_private.are_topics_allowed(f.topics, _topics)) from agent.subscription_filter f where f.subscription = _subscription.id)
    , _topics is null or '**' = any (_topics)
    );
end
$func$;

-- Whether is_subscription_allowed allows the subscription of this name; null if there is none.
create or replace function agent_service.subscription_allowed(_name text, _queues text[], _topics text[])
returns boolean
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  return (select agent_private.is_subscription_allowed(s, _queues, _topics) from agent.subscription s where s.name = _name);
end
$func$;

-- The subscriptions that are the furthest behind, up to _limit, with their lag and gaps as in list_subscriptions, and how many others there are.
create or replace function agent_service.slowest_subscriptions(_limit int4 default 500)
returns table (name text, lag_events int8, lag_seconds float8, gaps int8, others int8)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
as $func$
#variable_conflict use_column
declare
  _head int8 = agent_private.log_head();
  _in_step int8 = (agent_private.newest_position(0)).position;
begin
  return query
  select s.name, l.events, l.seconds, s.gaps + agent_private.is_gap_after(s.position)::int4, greatest(s.n - _limit, 0)
  from
  ( select s.name, p.position, p.gaps, count(*) over () as n
    from agent.subscription s
    cross join lateral
    ( select p.gaps, p.leased_until, case when s.is_in_step then _in_step else p.position end as position
      from agent.subscription_position p
      where p.reader = s.id
      order by p.number desc
      limit 1
    ) p
    order by p.position, s.name
    limit _limit
  ) s
  cross join lateral agent_private.log_lag(s.position, _head) l;
end
$func$;
