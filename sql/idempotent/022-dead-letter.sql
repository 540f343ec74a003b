-- Dead letters: an event of a queue with a dead-letter queue that ends as failed or expired is inserted into that queue, in the same transaction.
--
-- A dead-letter queue has no dead letters of its own: a trigger of agent.queue holds that. So an event that ends in it goes into history alone.

-- Inserts the dead letters of events that are about to go into history with this outcome, and which the caller has locked. ids has the dead letter of each of
-- _ids, null for an event of a queue without dead letters. No event stays in its queue because it cannot have a dead letter: it ends without one, and faults says
-- why. With _notify waiting claims on the dead-letter queues are woken.
create or replace function agent_private.insert_dead_letters(_ids int8[], _outcome text, _error text, _notify boolean, out ids int8[], out faults text[])
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
declare
  _queues text[];
  _one record;
begin
  begin
    select d.ids, d.queues into ids, _queues from agent_private.copy_to_dead_letter_queues(_ids, _outcome, _error, false) d;
  exception when data_exception or integrity_constraint_violation or program_limit_exceeded or raise_exception or feature_not_supported or sqlstate 'QD003' then
    ids = array_fill(null::int8, array[cardinality(_ids)]);
    faults = array_fill(null::text, array[cardinality(_ids)]);
    for _n in 1 .. cardinality(_ids) loop -- each on its own
      begin
        select d.ids, d.queues into strict _one from agent_private.copy_to_dead_letter_queues(_ids[_n:_n], _outcome, _error, true) d;
        ids[_n] = _one.ids[1];
        _queues = _queues || _one.queues;
      exception when data_exception or integrity_constraint_violation or program_limit_exceeded or raise_exception or feature_not_supported or sqlstate 'QD003' then
        faults[_n] = 'no dead letter could be inserted: ' || sqlerrm;
      end;
    end loop;
  end;
  if _notify and _queues is not null then
    perform agent.notify_queues(_queues);
  end if;
end
$func$;

-- insert_dead_letters without its precautions: ids has the dead letter of each of _ids, queues has the queues that something was inserted into (null: none).
--
-- A dead letter has the payload, the type, the source, the priority, the metadata, the occurrence and the publication of its event, and its event_ts; and in
-- meta.dead_letter why it is one. With _is_careful, JSON that cannot be stored anew, such as metadata that would be too long, is left out, and
-- named in "omitted".
create or replace function agent_private.copy_to_dead_letter_queues(_ids int8[], _outcome text, _error text, _is_careful boolean, out ids int8[], out queues text[])
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
as $func$
declare
  _at text = to_char(clock_timestamp() at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"');
begin
  with ended as
  ( select e.id, e.event, e.event_ts, e.queue, e.attempts, e.last_error, e.type, e.source, e.priority, e.occurrence, e.meta, e.publication, e.group_key
    , q.dead_letter_queue
    , case when _is_careful then agent_private.unstorable_parts(e) else '{}' end as omitted
    from agent.event e
    join agent.queue q on q.name = e.queue and q.dead_letter_queue is not null
    where e.id = any (_ids)
    order by e.id
  )
  , inserted as
  ( insert into agent.event overriding user value -- the ids are the sequence's
    select d.*
    from ended e
    left join agent.queue q on q.name = e.dead_letter_queue and (q.group_from is not null or q.flow_fair)
    cross join lateral agent_private.new_event
    ( null, now(), case when 'event' = any (e.omitted) then '{}' else e.event end, e.event_ts, e.dead_letter_queue
    , _type => e.type, _source => e.source, _priority => e.priority
    , _occurrence => case when 'occurrence' = any (e.omitted) then null else e.occurrence end
    , _publication => case when 'publication' = any (e.omitted) then null else e.publication end
    , _meta => case when 'meta' = any (e.omitted) or e.meta is null then '{}' else e.meta end || jsonb_build_object('dead_letter', jsonb_build_object
      ( 'queue', e.queue, 'outcome', _outcome, 'attempts', e.attempts, 'error', left(coalesce(_error, e.last_error), 1000), 'at', _at
      ) || case when e.omitted = '{}' then '{}' else jsonb_build_object('omitted', e.omitted) end)
    , _dead_letter_of => e.id, _group => coalesce(nullif(e.group_key, ''), agent_private.default_group(case when e.omitted = '{}' then e.event else '{}' end, q.group_from, q.flow_fair))
    ) as d
    returning id, queue, dead_letter_of
  )
  select array_agg(i.id order by n.ord), array_agg(distinct i.queue) filter (where i.id is not null) into ids, queues
  from unnest(_ids) with ordinality as n (id, ord)
  left join inserted i on i.dead_letter_of = n.id;
end
$func$;

-- Whether JSON could be stored anew; of metadata, whether it is short enough, too. Never fails.
create or replace function agent_private.is_storable_json(_json jsonb, _is_meta boolean)
returns boolean
language plpgsql stable
set search_path to pg_catalog, pg_temp
as $func$
begin
  return case when _is_meta then agent_private.is_valid_meta(_json - 'dead_letter') else agent_private.new_json_size(_json) is not null end;
exception when program_limit_exceeded or statement_too_complex then
  return false;
end
$func$;

-- The columns of an event with JSON that could not be stored anew.
create or replace function agent_private.unstorable_parts(_event agent.event)
returns text[]
language sql stable
set search_path to pg_catalog, pg_temp
as $func$
  select coalesce(array_agg(p.name), '{}')
  from
  ( values
      ('event', _event.event, true), ('meta', _event.meta, true), ('occurrence', _event.occurrence, false), ('publication', _event.publication, false)
  ) as p (name, value, is_object)
  where p.value is not null and (p.is_object and jsonb_typeof(p.value) <> 'object' or not agent_private.is_storable_json(p.value, p.name = 'meta'))
$func$;

-- Withdraws the dead letters and the copies of events that were expired by a sweep and are acked now, with the receipt of their last claim: those that nobody has claimed
-- go into history as cancelled. Returns their ids. An ack of an event whose dead letter or copy somebody has claimed, or that has ended, comes too late, and withdraws nothing.
create or replace function agent_private.withdraw_copies(_ids int8[], _receipts text[], _allowed text[])
returns int8[]
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
as $func$
declare
  _dead int8[];
  _copies int8[]; -- beside them, what the events were requeued as
  _free int8[];
  _withdrawn int8[];
begin
  select array_agg(h.dead_lettered_as), array_agg(h.requeued_as) into _dead, _copies
  from unnest(_ids, _receipts, _allowed) as a (id, receipt, allowed)
  join agent.event_hist h on h.id = any (_ids) and h.id = a.id
  where h.outcome = 'expired' and h.attempts > 0 and num_nonnulls(h.dead_lettered_as, h.requeued_as) > 0
  and (a.allowed is null or agent_private.is_queue_allowed(h.queue, string_to_array(a.allowed, ',')))
  and agent_private.is_receipt(a.receipt, h.id, h.attempts, h.receipt_hash);
  if _dead is null then -- the usual case
    return '{}';
  end if;
  _free = array(select e.id from agent.event e where e.id = any (_dead || _copies) and e.attempts = 0 order by e.id for update);
  _withdrawn = array
  ( select distinct c.id
    from unnest(_dead, _copies) as w (dead, copy)
    cross join lateral unnest(array[w.dead, w.copy]) as c (id)
    where c.id = any (_free) and (w.copy is null or w.copy = any (_free))
    and (w.dead is null or w.dead = any (_free) or (select e.requeued_from = w.dead from agent.event e where e.id = w.copy)) -- a dead letter that was redriven is its copy
    order by c.id
  );
  perform agent_private.move_to_history(_withdrawn, 'cancelled', 'withdrawn: the event was acked after it had expired');
  return _withdrawn;
end
$func$;

-- Trigger of agent.queue that refuses a dead-letter queue which would have dead letters of its own: QD065.
create or replace function agent_private.check_dead_letter_queue()
returns trigger
language plpgsql
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  if new.dead_letter_queue is null then
    return new;
  end if;
  perform agent_private.lock_queue(new.dead_letter_queue, _is_shared => true); -- it is not deleted meanwhile
  update agent_private.dead_letter_order set changes = changes + 1;
  if new.dead_letter_queue = new.name
    or exists (select from agent.queue q where q.name = new.dead_letter_queue and q.dead_letter_queue is not null)
    or exists (select from agent.queue q where q.dead_letter_queue = new.name)
  then
    raise exception 'the dead-letter queue of % would have dead letters of its own', new.name using errcode = 'QD065', column = 'dead_letter/queue';
  end if;
  return new;
end
$func$;

create or replace trigger check_dead_letter_queue
before insert or update of name, dead_letter_queue on agent.queue
for each row
execute function agent_private.check_dead_letter_queue();
