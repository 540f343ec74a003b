-- Publishing into the log: at the commit of the caller's transaction, at once for the service, or at a later time.

-- Publishes one event when the transaction commits, or at _at, in a transaction of the service. _key goes along for readers. The same
-- _idempotency_key again for the same topic, within 24 hours, publishes nothing, or raises QD005 if anything else differs. A key of an
-- event that was published at once stands for that, also when it is repeated with an _at; but not the other way round. With
-- _subscription the event is for that subscription alone.
create or replace function agent.publish
( _topic text
, _event jsonb
, _key text default null
, _meta jsonb default null
, _idempotency_key text default null
, _at timestamptz default null
, _subscription text default null
)
returns void
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  perform agent_private.publish_at_commit(array[row(_topic, _event, _key, _meta, _idempotency_key, _at, _subscription)::agent_private.publication]);
end
$func$;

-- Publishes _events in their order, all or none: see publish. The other arrays run parallel to it; a null array, a missing element or a
-- null element stands for none.
create or replace function agent.publish_events
( _topics text[]
, _events jsonb[]
, _keys text[] default null
, _metas jsonb[] default null
, _idempotency_keys text[] default null
, _ats timestamptz[] default null
, _subscriptions text[] default null
)
returns void
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
as $func$
begin
  perform agent_private.publish_at_commit(agent_private.publications(_topics, _events, _keys, _metas, _idempotency_keys, _ats, _subscriptions));
end
$func$;

-- Leaves publications in agent.outgoing, from where they move into the log when the transaction commits. Those with a time of their own go
-- into the queue queued.publish.
create or replace function agent_private.publish_at_commit(_publications agent_private.publication[])
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
as $func$
declare
  _delayed agent_private.publication[];
  _fresh boolean[];
begin
  perform agent_private.check_publications(_publications);
  _fresh = agent_private.insert_publication_keys(_publications, interval '24 hours');
  if _fresh is not null then
    _publications = agent_private.publications_where(_publications, _fresh);
  end if;
  _delayed = array(select p from unnest(_publications) as p where p.at is not null);
  if _delayed <> '{}' then
    perform agent_private.delay_publications(_delayed);
    _publications = array(select p from unnest(_publications) as p where p.at is null);
  end if;
  if _publications = '{}' then
    return;
  end if;
  insert into agent.outgoing (publications) values (_publications);
end
$func$;

-- Publishes an event of the service itself, whose topic begins with "queued.", when the transaction commits.
create or replace function agent_private.publish_own(_topic text, _event jsonb)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  insert into agent.outgoing (publications) values (array[row(_topic, _event, null, null, null, null, null)::agent_private.publication]);
end
$func$;

-- Trigger at the end of a transaction that has published: moves all that it has left in agent.outgoing into the log, in its order. The
-- first row of the transaction takes the others along. It also fires when the transaction asks for constraints at once ("set constraints ...
-- immediate"), and then puts all of it off until the end, however often that happens: a place taken before would have all readers wait.
create or replace function agent_private.move_outgoing()
returns trigger
language plpgsql
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off -- beside an old snapshot the table is full of dead rows
as $func$
declare
  _context text;
  -- To search a text takes four bytes for each character, and fails beyond 256 MiB, with the commit. So such a query may have said anything.
  _is_long boolean = octet_length(current_query()) > 16777216;
begin
  if not exists (select from agent.outgoing o where o.ctid = new.ctid) then
    return null; -- it was taken along
  elsif new.is_put_off and new.publications = '{}' then
    delete from agent.outgoing o where o.ctid = new.ctid; -- see is_publishing_immediate
    return null;
  end if;
  -- Constraints become immediate by a statement with that word, either of the client or of a function, which is in the context then. Most
  -- commits have neither.
  get diagnostics _context = pg_context;
  if (strpos(_context, chr(10)) > 0 or _is_long or current_query() ~* 'constraints') and agent_private.is_publishing_immediate() then
    set constraints agent.publish_at_commit deferred;
    -- The rows are new, so triggers that are still to fire for the old ones find nothing.
    with old as (delete from agent.outgoing o where o.xact = pg_current_xact_id() returning o.*)
    insert into agent.outgoing (id, publications, is_put_off) overriding system value select o.id, o.publications, true from old o;
    return null;
  end if;
  perform agent_private.append_outgoing();
  delete from agent.outgoing o where o.xact = pg_current_xact_id();
  if not _is_long and current_query() !~* '(^|[^a-z_])prepare[[:space:]]+transaction([^a-z_]|$)' then
    perform pg_notify('agent_log', ''); -- which a transaction that is prepared cannot do; readers then find it when they poll
  end if;
  return null;
end
$func$;

-- Whether the trigger publish_at_commit fires at once now. If it does not and fires all the same, then the transaction is ending. A row without
-- publications tells: the trigger deletes it when it fires for it.
create or replace function agent_private.is_publishing_immediate()
returns boolean
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
as $func$
declare
  _id int8;
begin
  insert into agent.outgoing (publications, is_put_off) values ('{}', true) returning id into _id;
  delete from agent.outgoing o where o.xact = pg_current_xact_id() and o.id = _id;
  return not found;
end
$func$;

-- Appends all that the transaction has left in agent.outgoing to the log, in its order, however much that is. The plan must not depend on statistics: keys are looked up one by one in
-- their index, and their rows are updated by their places, where a young table would be read as a whole.
create or replace function agent_private.append_outgoing()
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
set enable_hashjoin to off
set enable_mergejoin to off
as $func$
begin
  perform agent_private.hold_head();
  with numbered as materialized
  ( select nextval('agent.log_position_seq') as position, clock_timestamp() as published_at, n.*
    from
    ( select p.*
      from agent.outgoing o
      cross join lateral unnest(o.publications) with ordinality as p (topic, event, key, meta, idempotency_key, at, subscription, ord)
      where o.xact = pg_current_xact_id()
      order by o.id, p.ord
    ) n
  )
  , appended as
  ( insert into agent.log (position, published_at, topic, event, key, meta, subscription, text_size)
    select n.position, n.published_at, n.topic, n.event, n.key, n.meta, n.subscription, agent_private.new_publication_size(n.event, n.meta)
    from numbered n
  )
  update agent.publication_key k
  set position = n.position, published_at = n.published_at
  from
  ( select o.ctid, n.position, n.published_at
    from numbered n
    cross join lateral (select o.ctid from agent.publication_key o where o.topic = n.topic and o.key = n.idempotency_key limit 1) as o
    where n.idempotency_key is not null
  ) as n
  where k.ctid = n.ctid;
end
$func$;

do $script$
begin
  if not exists (select from pg_trigger t where t.tgrelid = 'agent.outgoing'::regclass and t.tgname = 'publish_at_commit') then
    create constraint trigger publish_at_commit after insert on agent.outgoing
      deferrable initially deferred for each row execute function agent_private.move_outgoing();
  end if;
  if exists (select from pg_trigger t where t.tgrelid = 'agent.outgoing'::regclass and t.tgname = 'publish_at_commit' and t.tgenabled <> 'A') then
    -- Events that a session publishes with session_replication_role = replica would be lost in agent.outgoing.
    alter table agent.outgoing enable always trigger publish_at_commit;
  end if;
end
$script$;

-- Publishes for the service: at once, so this has to be the last statement of its transaction. Returns the positions in the order of
-- _events. Those whose idempotency key was known have the position of the first event with it, if they are the same or _firsts has true for them.
create or replace function agent_service.append_log
( _topics text[]
, _events jsonb[]
, _keys text[] default null
, _metas jsonb[] default null
, _idempotency_keys text[] default null
, _subscriptions text[] default null
, _key_retention interval default interval '24 hours'
, _firsts boolean[] default null
, _verified_sources text[] default null
)
returns table ("position" int8, published_at timestamptz, replayed boolean)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
as $func$
#variable_conflict use_column
declare
  _publications agent_private.publication[];
  _sizes int4[]; -- of the publications, null of those with a fault
  _is_valid boolean = false; -- all of them
  _fresh boolean[];
  _positions int8[];
  _times timestamptz[];
begin
  if cardinality(_topics) = cardinality(_events)
    and greatest(cardinality(_keys), cardinality(_metas), cardinality(_subscriptions), cardinality(_idempotency_keys), 0) <= cardinality(_events)
  then
    _sizes = array
    ( select case
        when agent_private.publication_fault(row(n.topic, n.event, n.key, n.meta, n.idempotency_key, null, n.subscription)::agent_private.publication) is null
          and agent_private.is_valid_meta(n.meta)
          and not agent_private.has_verified_source(agent_private.unverified_meta(n.meta, n.verified_source))
        then nullif(least(agent_private.new_publication_size(n.event, n.meta), agent_private.max_publication_size() + 1), agent_private.max_publication_size() + 1)
      end
      from unnest(_topics, _events, _keys, _metas, _idempotency_keys, _subscriptions, _verified_sources) with ordinality
        as n (topic, event, key, meta, idempotency_key, subscription, verified_source, ord)
      order by n.ord
    );
    _is_valid = array_position(_sizes, null) is null;
    if _is_valid and _idempotency_keys is null then
      perform agent_private.hold_head();
      return query
      insert into agent.log (position, published_at, topic, event, key, meta, subscription, text_size)
      select nextval('agent.log_position_seq'), clock_timestamp(), n.topic, n.event, n.key, n.meta, n.subscription, n.size
      from unnest(_topics, _events, _keys, _metas, _subscriptions, _sizes) as n (topic, event, key, meta, subscription, size)
      returning position, published_at, false;
      return;
    end if;
  end if;
  -- Publications with idempotency keys, or with a fault, which is raised here.
  _publications = agent_private.publications(_topics, _events, _keys, _metas, _idempotency_keys, null, _subscriptions);
  if not _is_valid then
    perform agent_private.check_publications
    ( case when _verified_sources is null then _publications else array
      ( select row(n.topic, n.event, n.key, agent_private.unverified_meta(n.meta, n.verified_source), n.idempotency_key, n.at, n.subscription)::agent_private.publication
        from unnest(_publications, _verified_sources) with ordinality as n (topic, event, key, meta, idempotency_key, at, subscription, verified_source, ord)
        order by n.ord
      ) end
    );
  end if;
  _fresh = agent_private.insert_publication_keys(_publications, _key_retention, _firsts);
  if _fresh is null or true = all (_fresh) then
    return query select a.position, a.published_at, false from agent_private.append_to_log(_publications) a;
    return;
  end if;
  select array_agg(a.position order by a.ord), array_agg(a.published_at order by a.ord) into _positions, _times
  from agent_private.append_to_log(agent_private.publications_where(_publications, _fresh)) a;
  return query
  select coalesce(_positions[n.place], k.position), coalesce(_times[n.place], k.published_at), n.place is null
  from
  ( select f.topic, f.idempotency_key, f.ord, case when f.is_fresh then count(*) filter (where f.is_fresh) over (order by f.ord) end as place
    from unnest(_topics, _idempotency_keys, _fresh) with ordinality as f (topic, idempotency_key, is_fresh, ord)
  ) n
  left join lateral (select k.position, k.published_at from agent.publication_key k where n.place is null and k.topic = n.topic and k.key = n.idempotency_key limit 1) as k on true
  order by n.ord;
end
$func$;

-- Inserts into the log and returns the positions in the order of _publications. Readers see nothing that comes
-- after these until the transaction has ended, so it should do nothing else after this. Of its plans, see append_outgoing.
create or replace function agent_private.append_to_log(_publications agent_private.publication[])
returns table (ord int8, "position" int8, published_at timestamptz)
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
set enable_hashjoin to off
set enable_mergejoin to off
as $func$
#variable_conflict use_column
declare
  _positions int8[];
  _times timestamptz[];
begin
  if _publications = '{}' then
    return;
  end if;
  perform agent_private.hold_head();
  with appended as
  ( insert into agent.log (position, published_at, topic, event, key, meta, subscription, text_size)
    select nextval('agent.log_position_seq'), clock_timestamp(), p.topic, p.event, p.key, p.meta, p.subscription
    , agent_private.new_publication_size(p.event, p.meta)
    from unnest(_publications) as p
    returning position, published_at
  )
  select array_agg(a.position order by a.position), array_agg(a.published_at order by a.position) into _positions, _times from appended a;
  if exists (select from unnest(_publications) p where p.idempotency_key is not null) then
    update agent.publication_key k
    set position = n.position, published_at = n.published_at
    from
    ( select o.ctid, n.position, n.published_at
      from unnest(_publications, _positions, _times) as n (topic, event, key, meta, idempotency_key, at, subscription, position, published_at)
      cross join lateral (select o.ctid from agent.publication_key o where o.topic = n.topic and o.key = n.idempotency_key limit 1) as o
      where n.idempotency_key is not null
    ) as n
    where k.ctid = n.ctid;
  end if;
  return query select u.ord, u.position, u.published_at from unnest(_positions, _times) with ordinality as u (position, published_at, ord);
end
$func$;

-- Inserts the idempotency keys of publications and returns, in their order, which are to be published: those without a key, and the first
-- with a key that is new or has expired; and those with a time whose key stands for one with a time, as the key of its event in the queue
-- queued.publish tells whether that is the same. Null if none has a key. Raises QD005 where a key stands for something else, unless _firsts has true
-- for the publication, and the event that the key stands for was published at once. A publication with a time may have the key of one that was published at once: it is not published again. A second call with a key waits until the first
-- has committed. Its plans must not depend on statistics: see append_outgoing; the rows of a batch are joined by hashes.
create or replace function agent_private.insert_publication_keys
( _publications agent_private.publication[]
, _key_retention interval
, _firsts boolean[] default null
)
returns boolean[]
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
set enable_nestloop to off
as $func$
declare
  _fingerprints text[];
  _fresh boolean[];
  _reused record;
begin
  _fingerprints = array
  ( select case when n.idempotency_key is not null then agent_private.hash_json(jsonb_build_array(n.event, n.key, n.meta, n.subscription)) end
      || case when n.at is null then '' else ' later' end
    from unnest(_publications) with ordinality as n (topic, event, key, meta, idempotency_key, at, subscription, ord)
    order by n.ord
  );
  if array_remove(_fingerprints, null) = '{}' then
    return null;
  elsif not coalesce(_key_retention > interval '0', false) then
    perform agent_private.raise_invalid('key_retention', 'must be greater than zero');
  end if;
  with asked as
  ( select distinct on (1, 2) n.topic, n.idempotency_key as key, n.ord, n.fingerprint
    from unnest(_publications, _fingerprints) with ordinality as n (topic, event, key, meta, idempotency_key, at, subscription, fingerprint, ord)
    where n.idempotency_key is not null
    order by 1, 2, n.ord
  )
  , inserted as
  ( insert into agent.publication_key as k (topic, key, fingerprint, expires_at)
    select a.topic, a.key, a.fingerprint, agent_private.add_utc(clock_timestamp(), _key_retention)
    from asked a
    order by a.topic, a.key -- so that two calls cannot deadlock
    on conflict (topic, key) do update
    set fingerprint = excluded.fingerprint, position = null, published_at = null, expires_at = excluded.expires_at
    where k.expires_at <= clock_timestamp()
    returning k.topic, k.key
  )
  select array_agg(n.idempotency_key is null or i.key is not null order by n.ord) into _fresh
  from unnest(_publications) with ordinality as n (topic, event, key, meta, idempotency_key, at, subscription, ord)
  left join asked a on a.ord = n.ord
  left join inserted i on i.topic = a.topic and i.key = a.key;

  if true = all (_fresh) then -- the usual case
    return _fresh;
  end if;
  -- A separate statement, so that it sees rows that others committed while the one above waited for them.
  select n.topic, n.idempotency_key as key into _reused
  from unnest(_publications, _fingerprints, _firsts) as n (topic, event, key, meta, idempotency_key, at, subscription, fingerprint, is_first)
  cross join lateral (select k.fingerprint from agent.publication_key k where k.topic = n.topic and k.key = n.idempotency_key limit 1) as k
  where k.fingerprint <> n.fingerprint and (n.at is null or k.fingerprint <> split_part(n.fingerprint, ' ', 1))
  and not (coalesce(n.is_first, false) and k.fingerprint not like '% later')
  limit 1;
  if found then
    raise exception 'the idempotency key % of the topic % stands for another event', quote_literal(_reused.key), _reused.topic
      using errcode = 'QD005', column = 'idempotency_key', detail = 'stands for another event';
  end if;
  if exists (select from unnest(_publications) as p where p.at is not null) then
    select array_agg(f.is_fresh or f.at is not null and k.key is not null order by f.ord) into _fresh
    from unnest(_publications, _fingerprints, _fresh) with ordinality
      as f (topic, event, key, meta, idempotency_key, at, subscription, fingerprint, is_fresh, ord)
    left join lateral (select k.key, k.fingerprint from agent.publication_key k where k.topic = f.topic and k.key = f.idempotency_key limit 1) as k on k.fingerprint = f.fingerprint;
  end if;
  return _fresh;
end
$func$;

-- Deletes up to _limit idempotency keys of publications that have expired and returns how many.
create or replace function agent_service.prune_publication_keys(_limit int4 default 1000)
returns int8
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set enable_seqscan to off
set jit to off
as $func$
declare
  _deleted int8;
begin
  delete from agent.publication_key k
  where k.ctid = any (array
  ( select o.ctid
    from agent.publication_key o
    where o.expires_at <= clock_timestamp()
    order by o.expires_at
    limit _limit
    for update skip locked
  ));
  get diagnostics _deleted = row_count;
  return _deleted;
end
$func$;

-- Delayed publications.

-- Inserts publications that have a time into the queue queued.publish, from where agent_service.publish_due moves them into the log. Their
-- idempotency keys are inserted already.
create or replace function agent_private.delay_publications(_publications agent_private.publication[])
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
as $func$
begin
  perform agent_service.insert_and_claim_events
  ( array_agg(agent_private.delayed_event(row(n.topic, n.event, n.key, n.meta, n.idempotency_key, n.at, n.subscription)::agent_private.publication)
    order by n.ord)
  , array_agg('queued.publish'::text)
  , null
  , array_agg(n.at order by n.ord)
  , _options => array_agg(case when n.idempotency_key is null then '{}' else jsonb_build_object('key', agent_private.delayed_key(n.topic, n.idempotency_key)) end
    order by n.ord)
  )
  from unnest(_publications) with ordinality as n (topic, event, key, meta, idempotency_key, at, subscription, ord);
end
$func$;

-- Has one event published for the service after _delay, or at _at, once for its idempotency key: see publish. Returns the event that waits
-- in the queue queued.publish; or, if the key stands for an event that was published at once, where that is in the log.
create or replace function agent_service.publish_later
( _topic text
, _event jsonb
, _key text
, _meta jsonb
, _idempotency_key text
, _subscription text
, _delay interval
, _at timestamptz
, _key_retention interval default interval '24 hours'
)
returns table (id int8, at timestamptz, replayed boolean, "position" int8, published_at timestamptz)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
as $func$
#variable_conflict use_column
declare
  _publication agent_private.publication = row
    (_topic, _event, _key, _meta, _idempotency_key, coalesce(_at, agent_private.add_utc(now(), _delay), now()), _subscription);
begin
  perform agent_private.check_publications(array[_publication]);
  if (agent_private.insert_publication_keys(array[_publication], _key_retention))[1] then
    return query
    select i.id, i.vt, i.replayed, null::int8, null::timestamptz
    from agent_service.insert_and_claim_events
    ( array[agent_private.delayed_event(_publication)], array['queued.publish'], array[_delay], array[_at]
    , _options => array[jsonb_build_object('key', agent_private.delayed_key(_topic, _idempotency_key))], _key_retention => _key_retention
    ) i;
  else
    return query
    select null::int8, null::timestamptz, true, k.position, k.published_at
    from agent.publication_key k
    where k.topic = _topic and k.key = _idempotency_key;
  end if;
end
$func$;

-- The event that stands in the queue queued.publish for a publication.
create or replace function agent_private.delayed_event(_publication agent_private.publication)
returns jsonb
language sql immutable parallel safe
return jsonb_strip_nulls(jsonb_build_object
  ('topic', (_publication).topic, 'key', (_publication).key, 'subscription', (_publication).subscription))
  || jsonb_build_object('event', (_publication).event)
  || case when (_publication).meta is null then '{}' else jsonb_build_object('meta', (_publication).meta) end;

-- The idempotency key of a delayed publication in its queue: those of publications are by topic.
create or replace function agent_private.delayed_key(_topic text, _idempotency_key text)
returns text
language sql immutable parallel safe
return encode(sha256(convert_to(_topic || ' ' || _idempotency_key, 'UTF8')), 'hex');

-- Publishes up to _limit of the delayed publications that are due, in the order of their times, each exactly once: its event moves into
-- history in the same transaction, as done, or as failed where nothing can be published by it. Returns how many left the queue.
create or replace function agent_service.publish_due(_limit int4 default 1000)
returns int4
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set enable_seqscan to off
set jit to off
as $func$
declare
  _id int8;
  _publication agent_private.publication;
  _ids int8[] = '{}';
  _publications agent_private.publication[] = '{}';
  _fault text;
  _failed int4 = 0;
begin
  for _id, _publication.topic, _publication.event, _publication.key, _publication.meta, _publication.subscription in
    select e.id, e.event ->> 'topic', e.event -> 'event', e.event ->> 'key'
    , case when jsonb_typeof(e.event -> 'meta') = 'object' then (e.event -> 'meta') - 'verified_source' else nullif(e.event -> 'meta', 'null') end, e.event ->> 'subscription'
    from agent.event e
    where e.ctid = any (array
    ( select o.ctid
      from agent.event o
      where o.queue = 'queued.publish' and o.priority = 0 and o.vt <= now()
      order by o.vt, o.id
      limit _limit
      for update skip locked
    ))
    order by e.vt, e.id
  loop
    _fault = agent_private.stored_publication_fault(_publication);
    if _fault is null then
      _ids = _ids || _id;
      _publications = _publications || _publication;
    else
      perform agent_private.move_to_history(array[_id], 'failed', _fault);
      _failed = _failed + 1;
    end if;
  end loop;
  if _ids <> '{}' then
    perform agent_private.move_to_history(_ids, 'done');
    perform pg_notify('agent_log', '');
    perform agent_private.append_to_log(_publications);
  end if;
  return cardinality(_ids) + _failed;
end
$func$;

-- How long it is until the next delayed publication is due; null if there is none.
create or replace function agent_service.next_publication()
returns interval
language plpgsql stable
security definer
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
set jit to off
as $func$
begin
  return
  ( select o.vt - clock_timestamp()
    from agent.event o
    where o.queue = 'queued.publish' and o.priority = 0 and isfinite(o.vt)
    order by o.vt
    limit 1
  );
end
$func$;

-- Wakes those who follow the log in other processes when the transaction commits. A process passes its name to recognize its own
-- notifications.
create or replace function agent_service.notify_log(_sender text default '')
returns void
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  perform pg_notify('agent_log', _sender);
end
$func$;

-- The rules for publications.

-- Puts the arrays of publications together.
create or replace function agent_private.publications
( _topics text[]
, _events jsonb[]
, _keys text[]
, _metas jsonb[]
, _idempotency_keys text[]
, _ats timestamptz[]
, _subscriptions text[]
)
returns agent_private.publication[]
language plpgsql immutable
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
as $func$
begin
  if coalesce(cardinality(_topics), 0) <> coalesce(cardinality(_events), 0) then
    perform agent_private.raise_invalid('topics', 'must be as many as the events');
  elsif greatest(cardinality(_keys), cardinality(_metas), cardinality(_idempotency_keys), cardinality(_ats), cardinality(_subscriptions))
    > coalesce(cardinality(_events), 0) then
    perform agent_private.raise_invalid('events', 'must be at least as many as the keys, metas, idempotency keys, times and subscriptions');
  end if;
  return array
  ( select row(n.topic, n.event, n.key, n.meta, n.idempotency_key, n.at, n.subscription)::agent_private.publication
    from unnest(_topics, _events, _keys, _metas, _idempotency_keys, _ats, _subscriptions) with ordinality
      as n (topic, event, key, meta, idempotency_key, at, subscription, ord)
    order by n.ord
  );
end
$func$;

-- Those of _publications for which _is_wanted, which runs parallel, is true.
create or replace function agent_private.publications_where(_publications agent_private.publication[], _is_wanted boolean[])
returns agent_private.publication[]
language plpgsql immutable
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
as $func$
begin
  return array
  ( select row(n.topic, n.event, n.key, n.meta, n.idempotency_key, n.at, n.subscription)::agent_private.publication
    from unnest(_publications, _is_wanted) with ordinality as n (topic, event, key, meta, idempotency_key, at, subscription, is_wanted, ord)
    where n.is_wanted
    order by n.ord
  );
end
$func$;

-- Whether a text is the name of a topic that may be published to.
create or replace function agent_private.is_topic(_topic text)
returns boolean
language sql immutable parallel safe
return length(_topic) <= 255 and _topic ~ '^[A-Za-z0-9_:-]+([.][A-Za-z0-9_:-]+){0,7}$' and not starts_with(_topic, 'queued.');

-- Why a publication cannot be, as "field: reason"; null if it can.
create or replace function agent_private.publication_fault(_publication agent_private.publication)
returns text
language sql immutable parallel safe
return case
  when agent_private.is_topic((_publication).topic) is not true then
    'topic: must be up to 8 words of A-Z a-z 0-9 _ : - with dots between them, 255 characters at most, and not begin with "queued."'
  when jsonb_typeof((_publication).event) is distinct from 'object' then 'event: must be a JSON object'
  when length((_publication).key) not between 1 and 255 then 'key: must be 1 to 255 characters'
  when jsonb_typeof((_publication).meta) <> 'object' then 'meta: must be a JSON object'
  when length((_publication).idempotency_key) not between 1 and 255 then 'idempotency_key: must be 1 to 255 characters'
  when agent_private.is_queue_name((_publication).subscription) is false then 'subscription: must be 1 to 128 of A-Z a-z 0-9 . _ : -, but not . or ..'
  when not isfinite((_publication).at) then 'at: must be finite'
end;

-- About how many bytes the JSON of a publication has as text; null if it may not be stored. Inlined, like agent.receipt.
create or replace function agent_private.new_publication_size(_event jsonb, _meta jsonb)
returns int4
language sql stable parallel safe
return (agent_private.new_json_size(_event) + case when _meta is null then 0 else agent_private.new_json_size(_meta) end)::int4;

-- How many bytes the JSON of a publication may have as text. The log is read in order, so nobody gets past an event that takes longer to be sent than a
-- statement of the service may take.
create or replace function agent_private.max_publication_size()
returns int4
language sql immutable parallel safe
return 67108864;

-- publication_fault for a publication to be stored: no reader may have to fail by its size.
create or replace function agent_private.stored_publication_fault(_publication agent_private.publication)
returns text
language sql stable parallel safe
return coalesce
( agent_private.publication_fault(_publication)
, case when agent_private.new_json_size((_publication).event) is null then 'event: ' || agent_private.json_fault() end
, case when (_publication).meta is not null and agent_private.new_json_size((_publication).meta) is null then 'meta: ' || agent_private.json_fault() end
, case when agent_private.new_publication_size((_publication).event, (_publication).meta) > agent_private.max_publication_size() then 'event: must be at most 64 MiB as text' end
);

-- The same for a publication that comes from outside. Publications that wait for their time already have no bound of meta: see publish_due.
create or replace function agent_private.new_publication_fault(_publication agent_private.publication)
returns text
language sql stable parallel safe
return coalesce
( agent_private.stored_publication_fault(_publication)
, case when not agent_private.is_valid_meta((_publication).meta) then 'meta: must be a JSON object of at most 16384 bytes' end
, case when agent_private.has_verified_source((_publication).meta) then 'meta: must not have verified_source, which only deliveries to sources get' end
);

-- Raises QD003 for publications that cannot be.
create or replace function agent_private.check_publications(_publications agent_private.publication[])
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
as $func$
declare
  _fault text;
begin
  select f.fault into _fault
  from (select agent_private.new_publication_fault(p) as fault from unnest(_publications) as p) f
  where f.fault is not null
  limit 1;
  if found then
    perform agent_private.raise_invalid(split_part(_fault, ': ', 1), substr(_fault, strpos(_fault, ': ') + 2));
  end if;
end
$func$;
