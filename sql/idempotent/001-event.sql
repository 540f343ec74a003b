-- Events: their times, the values that their columns may hold, receipts, states and attempts.
--
-- The functions of agent are for users and the service: see docs/sql.md. Those of agent_private are for the functions and triggers of
-- agent alone. All pin their search_path, or have a body after "return" or "begin atomic", which is parsed when it is created.
--
-- SQLSTATEs raised by the functions, besides PostgreSQL's own:
--   QD001  the lease was lost: the receipt is not that of the latest claim
--   QD002  no such event
--   QD003  an argument is out of its range; the error's column field names it, the detail says why
--   QD004  the version that a change was meant for is not the latest
--   QD005  the idempotency key stands for something else
--   QD006  the event is leased
--   QD007  the event has left its queue
--   QD008  a copy of the event is in a queue, or done; the error's detail is its id
--   QD010  no such schedule
--   QD011  no such owner
--   QD012  the schedule has ended
--   QD013  the schedule or its owner has changed since it was expanded
--   QD020  no such subscription
--   QD021  the cursor of a subscription is lost
--   QD022  no such filter of a subscription
--   QD023  the subscription is delivered otherwise
--   QD030  no such key
--   QD031  the last live admin key would be gone
--   QD032  there has been a key
--   QD033  the key was revoked, or has expired
--   QD040  no such source
--   QD060  no such queue
--   QD061  the queue has events
--   QD062  schedules, sources or subscriptions name the queue
--   QD063  the queue has events under a lease
--   QD064  the queue is not declared
--   QD065  a dead-letter queue would have dead letters of its own
--   QD066  no such redrive
--   QD067  the redrive has ended
--   QD070  this database is not home, which is cell 0
--   QD071  the queue is not placed
--   QD072  queues are on the cell, or were and may have events there still, or idempotency keys that were used there count
--   QD073  the cell is not listed
--   QD074  the idempotency key was left to another cell

-- Converts epoch seconds to a timestamp, to the microsecond. Raises 22008 when the result is out of timestamptz's range.
create or replace function agent.to_timestamptz(_ts numeric)
returns timestamptz
language sql immutable strict parallel safe
set search_path to pg_catalog, pg_temp
as $func$
  select to_timestamp(_ts::float8)
$func$;

-- Converts epoch seconds as text (as Slack writes them), or an RFC 3339 date-time, to a timestamp. Raises 22007 for any other text.
create or replace function agent.to_timestamptz(_ts text)
returns timestamptz
language plpgsql immutable strict parallel safe
set search_path to pg_catalog, pg_temp
as $func$
begin
  if _ts ~ '^[+-]?[0-9]{1,12}([.][0-9]{0,12})?$' then
    return to_timestamp(_ts::float8);
  end if;
  if _ts ~ '^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,12})?([Zz]|[+-][0-9]{2}:[0-9]{2})$' then
    return _ts::timestamptz;
  end if;
  raise exception 'neither epoch seconds nor an RFC 3339 date-time: %', quote_literal(left(_ts, 64))
    using errcode = 'invalid_datetime_format';
end
$func$;

-- Converts a timestamp to epoch seconds with six decimals.
create or replace function agent.from_timestamptz(_ts timestamptz)
returns numeric
language sql immutable strict parallel safe
set search_path to pg_catalog, pg_temp
as $func$
  select extract(epoch from _ts)::numeric(20, 6)
$func$;

-- The event_ts of a payload: its member "event_ts" if that is a number or a text that to_timestamptz accepts, else now(). The member
-- comes from outside, so a time out of [now - 10 years, now + 1 day] gives now() too: otherwise hostile values could create any number
-- of partitions. Never fails.
create or replace function agent_private.event_ts(_event jsonb)
returns timestamptz
language plpgsql stable parallel safe
set search_path to pg_catalog, pg_temp
as $func$
declare
  _ts timestamptz;
  _epoch numeric;
begin
  case jsonb_typeof(_event -> 'event_ts')
    when 'number' then
      _epoch = round((_event ->> 'event_ts')::numeric, 6);
      if abs(_epoch) < 1e12 then
        _ts = agent.to_timestamptz(_epoch);
      end if;
    when 'string' then
      begin
        _ts = agent.to_timestamptz(_event ->> 'event_ts');
      exception when data_exception then
        _ts = null;
      end;
    else
      _ts = null;
  end case;
  if _ts between now() - interval '10 years' and now() + interval '1 day' then
    return _ts;
  end if;
  return now();
end
$func$;

-- Adds an interval to a timestamp with days of 24 hours, whatever the session's time zone. It has no search_path so that it can be
-- inlined: see agent.receipt.
create or replace function agent_private.add_utc(_ts timestamptz, _by interval)
returns timestamptz
language sql immutable parallel safe
return (_ts at time zone 'UTC' + _by) at time zone 'UTC';

-- The time between two timestamps, null where one of them is infinite. Inlined, like add_utc.
create or replace function agent_private.elapsed(_from timestamptz, _to timestamptz)
returns interval
language sql immutable parallel safe
return case when isfinite(_from) and isfinite(_to) then _to - _from end;

-- How long the last attempt at an event in history took, which ended with the event or by a nack before; null unless it was done or failed. Inlined.
create or replace function agent_private.last_attempt_took(_outcome text, _claimed timestamptz[], _nacked_at timestamptz, _finished_at timestamptz)
returns interval
language sql stable
return case when _outcome in ('done', 'failed') then agent_private.elapsed(_claimed[cardinality(_claimed)], coalesce(_nacked_at, _finished_at)) end;

-- The nearest timestamp between the years 1 and 9999; a hypertable does not take others. Inlined, like add_utc.
create or replace function agent_private.bounded_time(_ts timestamptz)
returns timestamptz
language sql immutable parallel safe
return least(greatest(_ts, timestamptz '0001-01-01 00:00+00'), timestamptz '9999-12-31 23:59:59.999999+00');

-- Raises QD003: an argument is out of its range.
create or replace function agent_private.raise_invalid(_argument text, _reason text)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  raise exception '%: %', _argument, _reason using errcode = 'QD003', column = _argument, detail = _reason;
end
$func$;

-- Raises QD001 for the status lease_lost and QD002 for not_found. Does nothing for other statuses.
create or replace function agent_private.raise_lease_error(_id int8, _status text)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  if _status = 'lease_lost' then
    raise exception 'the lease on event % was lost', _id using errcode = 'QD001';
  elsif _status = 'not_found' then
    raise exception 'there is no event %', _id using errcode = 'QD002';
  end if;
end
$func$;

-- Whether a queue may have this name. Browsers take . and .. for steps of a path. A regular expression without a repetition takes a tenth of a microsecond; one with a bounded repetition took eighty times as long, and
-- translate() up to forty, as it looks for each character in the list of all.
create or replace function agent_private.is_queue_name(_queue text)
returns boolean
language sql immutable parallel safe
return octet_length(_queue) between 1 and 128
  and _queue collate "C" !~ '[^-A-Za-z0-9._:]' and _queue <> '.' and _queue <> '..';

-- Raises QD003 for a name that no queue may have.
create or replace function agent_private.check_queue_name(_queue text)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  if agent_private.is_queue_name(_queue) is not true then
    perform agent_private.raise_invalid('queue', 'must be 1 to 128 of A-Z a-z 0-9 . _ : -, but not . or ..');
  end if;
end
$func$;

-- Returns the name of a queue. Raises QD003 for one that begins with "queued.": these are the service's own.
create or replace function agent_private.unreserved_queue(_queue text)
returns text
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  if starts_with(_queue, 'queued.') then
    perform agent_private.raise_invalid('queue', 'must not begin with "queued.", which is reserved for the service''s own queues');
  end if;
  return _queue;
end
$func$;

-- The size of JSON. PostgreSQL stores numbers without the zeros at their end: 1e131071 takes ten bytes of jsonb, and 131,072 as text. Whoever
-- reads JSON gets its text, so the size of the text is bounded, without making the text of many or of large numbers to find out.

-- How many characters a number has as text, at most, found from its exponent and its scale. Inlined, like agent.receipt.
create or replace function agent_private.number_size(_number numeric)
returns int8
language sql immutable parallel safe
return scale(_number) + 2 + case
  when _number between -1e15 and 1e15 then 16
  -- The weight: how many groups of four digits there are before the point, less one.
  else 4 * (1 + (get_byte(numeric_send(_number), 2) << 8 | get_byte(numeric_send(_number), 3)))
end;

-- Whether a number may be stored: it has up to 1,000 digits on each side of the point, as HTTP has it for numbers with an exponent, or most of its
-- digits are really there, and none that an exponent stands for. Inlined, like agent.receipt.
create or replace function agent_private.is_valid_number(_number numeric)
returns boolean
language sql stable parallel safe
return _number > -1e1000 and _number < 1e1000 and scale(_number) <= 1000
  or agent_private.number_size(_number) <= 4 * pg_column_size(_number);

-- Whether JSON is nested more than 1,024 levels deep. A function that walks through it calls itself for each level, and how many levels a session's stack has room
-- for depends on where it is called: an event that could be published could not be delivered. A level takes at least eight bytes, and this looks
-- no deeper. Inlined, like agent.receipt.
create or replace function agent_private.is_too_deep(_json jsonb)
returns boolean
language sql stable parallel safe
return (pg_column_size(_json) > 8192 or pg_column_compression(_json) is not null) and jsonb_path_exists(_json, 'strict $.**{1025}');

-- Whether JSON has a text of some 30 MiB at most whatever is in it, by facts that are cheap to know: its size, and that none of its numbers has 1,000 digits
-- before the point; and is not nested too deeply. Inlined, like agent.receipt.
create or replace function agent_private.is_modest_json(_json jsonb)
returns boolean
language sql stable parallel safe
return case
  when pg_column_compression(_json) is not null or pg_column_size(_json) > 16384 then false
  when pg_column_size(_json) <= 2048 then true -- the usual case: its text costs no more than a look at each value
  when agent_private.is_too_deep(_json) then false
  else not jsonb_path_exists(_json, 'strict $.** ? (@ >= 1e1000 || @ <= -1e1000)')
end;

-- About how many bytes JSON has as text. With _is_new it is null for JSON that may not be stored anew: where a number has too many digits, or where it is
-- nested too deeply. It is null, too, for JSON that nobody could read: with a text of more than 16 MiB that is more than 16 times as long as the stored form, or of more than 512 MiB.
create or replace function agent_private.measure_json(_json jsonb, _is_new boolean)
returns int8
language plpgsql stable parallel safe
set search_path to pg_catalog, pg_temp
as $func$
declare
  _stored int8 = pg_column_size(_json);
  _numbers int8; -- the size of their texts
  _is_invalid boolean;
  _size int8;
begin
  if _is_new and agent_private.is_too_deep(_json) then
    return null;
  end if;
  select coalesce(sum(agent_private.number_size(n.number)), 0), coalesce(bool_or(not agent_private.is_valid_number(n.number)), false)
  into _numbers, _is_invalid
  from
  ( select v.value::numeric
    -- As a set, jsonb_path_query moves all numbers that are left for each one that it returns: 500,000 took minutes.
    from jsonb_array_elements(jsonb_path_query_array(_json, 'strict $.** ? (@.type() == "number")')) as v (value)
  ) as n (number);
  if _is_new and _is_invalid then
    return null;
  elsif _numbers <= 1048576 and _stored <= 262144 then -- it may be compressed, to a hundredth
    return octet_length(_json::text);
  end if;
  _stored = pg_column_size(jsonb_build_array(_json)); -- not compressed
  if _numbers <= 1048576 and _stored <= 134217728 then
    _size = octet_length(_json::text);
  else
    _size = _numbers + _stored;
  end if;
  return case when _size <= least(536870912, greatest(16777216, 16 * _stored)) then _size end;
end
$func$;

-- About how many bytes JSON has as text, if it may be stored; else null. The numbers of JSON that is modest and not much longer than its stored form need
-- not be looked at one by one. Inlined, like agent.receipt.
create or replace function agent_private.new_json_size(_json jsonb)
returns int8
language sql stable parallel safe
return case
  when agent_private.is_modest_json(_json) and octet_length(_json::text) <= greatest(1000, 3 * pg_column_size(_json)) then pg_column_size(_json)
  else agent_private.measure_json(_json, true)
end;

-- About how many bytes JSON that is stored has as text; null if nobody can read it. Never fails.
create or replace function agent_private.stored_json_size(_json jsonb)
returns int8
language plpgsql stable
set search_path to pg_catalog, pg_temp
as $func$
begin
  return case when agent_private.is_modest_json(_json) then octet_length(_json::text) else agent_private.measure_json(_json, false) end;
exception when program_limit_exceeded or statement_too_complex then
  return null;
end
$func$;

-- The sentence that says why JSON may not be stored.
create or replace function agent_private.json_fault()
returns text
language sql immutable parallel safe
return 'is nested more than 1,024 levels deep, or has numbers with too many digits when written out: give each at most 1,000 before and after the point, or as text';

-- Why an event is shown without its payload.
create or replace function agent_private.unreadable_reason()
returns text
language sql immutable parallel safe
return 'the event cannot be read: its JSON is too long as text, or nested too deeply';

-- Raises QD003 if JSON may not be stored.
create or replace function agent_private.check_json(_argument text, _json jsonb)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  if _json is not null and agent_private.new_json_size(_json) is null then
    perform agent_private.raise_invalid(_argument, agent_private.json_fault());
  end if;
end
$func$;

-- Whether this may be the metadata of an event: an object whose text is at most 16 KiB long. Inlined, like agent.receipt.
create or replace function agent_private.is_valid_meta(_meta jsonb)
returns boolean
language sql stable parallel safe
return _meta is null or jsonb_typeof(_meta) = 'object' and coalesce(agent_private.new_json_size(_meta) <= 16384, false);

-- Metadata without the member verified_source if that is the source which has verified the delivery, for checks of the rest: only the service says so, see
-- agent_private.has_verified_source. Inlined, like agent.receipt.
create or replace function agent_private.unverified_meta(_meta jsonb, _verified_source text)
returns jsonb
language sql immutable parallel safe
return case when _meta ->> 'verified_source' = _verified_source then _meta - 'verified_source' else _meta end;

-- Whether metadata says that a source has verified who sent the event. Nobody but sources may say so: workers trust it. Inlined, like agent.receipt.
create or replace function agent_private.has_verified_source(_meta jsonb)
returns boolean
language sql immutable parallel safe
return coalesce(_meta ? 'verified_source', false);

-- Raises QD003 for metadata that says so.
create or replace function agent_private.raise_if_verified(_meta jsonb)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  if agent_private.has_verified_source(_meta) then
    perform agent_private.raise_invalid('meta', 'must not have verified_source, which only deliveries to sources get');
  end if;
end
$func$;

-- The metadata of an event without what a dead letter has beside that of its event, for checks of the rest. Inlined, like agent.receipt.
create or replace function agent_private.sender_meta(_meta jsonb, _dead_letter_of int8)
returns jsonb
language sql immutable parallel safe
return case when _dead_letter_of is null or jsonb_typeof(_meta) <> 'object' then _meta else _meta - 'dead_letter' end;

-- Whether an event may have these values. Inlined, like agent.receipt.
create or replace function agent_private.is_valid_event
( _event jsonb
, _queue text
, _type text default null
, _source text default null
, _key text default null
, _max_attempts int4 default null
, _expires_at timestamptz default null
, _meta jsonb default null
)
returns boolean
language sql stable parallel safe
return coalesce(jsonb_typeof(_event) = 'object' and agent_private.new_json_size(_event) is not null, false)
  and coalesce(agent_private.is_queue_name(_queue), false)
  and coalesce(length(_type) between 1 and 255, true)
  and coalesce(length(_source) between 1 and 255, true)
  and coalesce(length(_key) between 1 and 255, true)
  and coalesce(_max_attempts >= 1, true)
  and coalesce(isfinite(_expires_at), true)
  and agent_private.is_valid_meta(_meta);

-- Raises QD003 for the first of these values that no event may have. Returns _event if there is none.
create or replace function agent_private.check_event_values
( _event jsonb
, _queue text
, _type text default null
, _source text default null
, _key text default null
, _max_attempts int4 default null
, _expires_at timestamptz default null
, _meta jsonb default null
)
returns jsonb
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  if jsonb_typeof(_event) is distinct from 'object' then
    perform agent_private.raise_invalid('event', 'must be a JSON object');
  elsif agent_private.new_json_size(_event) is null then
    perform agent_private.raise_invalid('event', agent_private.json_fault());
  elsif agent_private.is_queue_name(_queue) is not true then
    perform agent_private.raise_invalid('queue', 'must be 1 to 128 of A-Z a-z 0-9 . _ : -, but not . or ..');
  elsif length(_type) not between 1 and 255 then
    perform agent_private.raise_invalid('type', 'must be 1 to 255 characters');
  elsif length(_source) not between 1 and 255 then
    perform agent_private.raise_invalid('source', 'must be 1 to 255 characters');
  elsif length(_key) not between 1 and 255 then
    perform agent_private.raise_invalid('key', 'must be 1 to 255 characters');
  elsif _max_attempts < 1 then
    perform agent_private.raise_invalid('max_attempts', 'must be at least 1');
  elsif not isfinite(_expires_at) then
    perform agent_private.raise_invalid('expires_at', 'must be finite');
  elsif not agent_private.is_valid_meta(_meta) then
    perform agent_private.raise_invalid('meta', 'must be a JSON object of at most 16384 bytes');
  end if;
  return _event;
end
$func$;

-- Triggers that check the values of a row of agent.event, whoever writes it: no setting of a session disables them. They note the size of the row's
-- texts, so that claims need not measure them. As check constraints, the rules would be checked again by every claim, which took most of its time
-- and read payloads that are stored out of line.

-- Trigger that notes the size of a new row which keeps the rules as most do, and null for any other, whatever was written: the next one looks at these. It runs with the rights and
-- the search_path of whoever writes, because setting them for a row takes longer than all that it does. So each function, operator and type has its schema here.
create or replace function agent_private.check_usual_event()
returns trigger
language plpgsql
as $func$
begin
  new.text_size = case
    when new.occurrence is null and new.publication is null and new.past_attempts is null and new.dead_letter_of is null and new.expires_at is null and new.group_key is null
      and pg_catalog.jsonb_typeof(new.event) operator(pg_catalog.=) 'object'
      and pg_catalog.pg_column_compression(new.event) is null
      and pg_catalog.pg_column_size(new.event) operator(pg_catalog.<=) 2048
      and pg_catalog.octet_length(new.event::pg_catalog.text) operator(pg_catalog.<=) 1000 -- see agent_private.new_json_size
      and pg_catalog.octet_length(new.queue) operator(pg_catalog.<=) 128
      and pg_catalog.octet_length(new.queue) operator(pg_catalog.>) 0
      and new.queue operator(pg_catalog.!~) '[^-A-Za-z0-9._:]' -- see agent_private.is_queue_name
      and new.queue operator(pg_catalog.<>) '.' and new.queue operator(pg_catalog.<>) '..'
      and (new.type is null or new.type operator(pg_catalog.<>) '' and pg_catalog.octet_length(new.type) operator(pg_catalog.<=) 255)
      and (new.source is null or new.source operator(pg_catalog.<>) '' and pg_catalog.octet_length(new.source) operator(pg_catalog.<=) 255)
      and (new.key is null or new.key operator(pg_catalog.<>) '' and pg_catalog.octet_length(new.key) operator(pg_catalog.<=) 255)
      and (new.max_attempts is null or new.max_attempts operator(pg_catalog.>) 0)
      and
      ( new.meta is null
        or pg_catalog.jsonb_typeof(new.meta) operator(pg_catalog.=) 'object'
        and pg_catalog.pg_column_compression(new.meta) is null
        and pg_catalog.pg_column_size(new.meta) operator(pg_catalog.<=) 2048
        and pg_catalog.octet_length(new.meta::pg_catalog.text) operator(pg_catalog.<=) 1000
        and not new.meta operator(pg_catalog.?) 'verified_source'
      )
    then pg_catalog.pg_column_size(new.event) operator(pg_catalog.+) coalesce(pg_catalog.pg_column_size(new.meta), 0)
  end;
  return new;
end
$func$;

-- Trigger that checks any row, and says what is wrong. It runs as the owner so that any role that may insert can.
create or replace function agent_private.check_event()
returns trigger
language plpgsql
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _size int8;
  _meta jsonb = new.meta;
begin
  if new.dead_letter_of is not null then
    _meta = agent_private.sender_meta(new.meta, new.dead_letter_of);
    if not agent_private.is_valid_meta(new.meta -> 'dead_letter') then
      perform agent_private.raise_invalid('meta', 'must have a JSON object of at most 16384 bytes as dead_letter');
    end if;
  end if;
  if tg_op = 'UPDATE' and row(new.event, new.meta, new.occurrence, new.publication) is not distinct from row(old.event, old.meta, old.occurrence, old.publication) then
    _size = old.text_size;
  else
    _size = agent_private.new_json_size(new.event);
    if num_nulls(new.meta, new.occurrence, new.publication, new.past_attempts) < 4 then
      -- What comes in for a source goes to the cell of its queue.
      if new.meta ? 'verified_source' and tg_op = 'INSERT' and new.attempts = 0 and num_nulls(new.requeued_from, new.dead_letter_of) = 2 then
        if exists (select from agent.placement p where p.removed_at is null and 0 <> all (p.cells)) then -- apart: it is a query, the others are not
          new = agent_private.forwarded(new);
          if starts_with(new.queue, 'queued.forward.') then
            perform agent.notify_queues(array[new.queue]);
          end if;
        end if;
      end if;
      _size = _size
        + case when new.meta is null then 0 else agent_private.new_json_size(new.meta) end
        + case when new.occurrence is null then 0 else agent_private.new_json_size(new.occurrence) end
        + case when new.publication is null then 0 else agent_private.new_json_size(new.publication) end
        + case when new.past_attempts is null then 0 else agent_private.new_json_size(new.past_attempts) end;
    end if;
    new.text_size = _size;
  end if;
  if _size is null or jsonb_typeof(new.event) <> 'object'
    or not agent_private.is_valid_event('{}', new.queue, new.type, new.source, new.key, new.max_attempts, new.expires_at, _meta)
  then
    perform agent_private.check_event_values(new.event, new.queue, new.type, new.source, new.key, new.max_attempts, new.expires_at, _meta)
    , agent_private.check_json('occurrence', new.occurrence)
    , agent_private.check_json('publication', new.publication)
    , agent_private.check_json('past_attempts', new.past_attempts);
  end if;
  if new.group_key is not null then
    if tg_op = 'INSERT' then
      new = agent_private.enter_group(new, true);
    elsif row(new.queue, new.group_key) is distinct from row(old.queue, old.group_key) then
      new.flow = null;
      new = agent_private.enter_group(new, new.queue <> old.queue);
    end if;
  end if;
  if tg_op = 'UPDATE' and old.group_key is not null and row(new.queue, new.group_key) is distinct from row(old.queue, old.group_key) then
    new = agent_private.leave_group(old, new);
  end if;
  return new;
end
$func$;

-- Triggers are called in the order of their names. PostgreSQL parses and plans the condition of one again for each statement, so it is a short one.
create or replace trigger check_event
before insert on agent.event
for each row
execute function agent_private.check_usual_event();

create or replace trigger check_event_in_full
before insert on agent.event
for each row
when (new.text_size is null)
execute function agent_private.check_event();

create or replace trigger check_event_update
before update of event, queue, type, source, key, max_attempts, expires_at, meta, occurrence, publication, dead_letter_of, group_key on agent.event
for each row
execute function agent_private.check_event();

-- Receipts. A receipt is the event's id, the number of the attempt, and the token of the claim: 64 random bits, as 16 hexadecimal digits.
-- Only who claims gets the token. The row keeps a hash of it, so that no reader of agent.event or its history has the receipts of others.
-- receipt_hash has the hash of the latest claim's token and, behind it, that of the claim before, which holds again after a release.
--
-- A body after "return" is parsed when the function is created, so it needs no search_path, and a function without settings can be
-- inlined, which makes it sixty times as fast. Only expressions that change no more than the function says are inlined.

-- The token of a claim, out of the text of a random UUID: of its digits, those that have no bit of the version or the variant.
create or replace function agent_private.claim_token(_uuid text)
returns text
language sql immutable parallel safe
return left(_uuid, 8) || right(_uuid, 8);

-- The hash of a token, as receipt_hash keeps it.
create or replace function agent_private.token_hash(_token text)
returns bytea
language sql stable parallel safe
return substr(sha256(convert_to(_token, 'UTF8')), 1, 8);

-- Whether a receipt_hash has this hash of a token as that of the latest claim. Inlined, like agent.receipt.
create or replace function agent_private.has_token_hash(_receipt_hash bytea, _hash bytea)
returns boolean
language sql immutable parallel safe
return _receipt_hash = _hash or substr(_receipt_hash, 1, 8) = _hash;

-- Whether this is the receipt of the latest claim of an event that has these columns; false for null.
create or replace function agent_private.is_receipt(_receipt text, _id int8, _attempts int4, _receipt_hash bytea)
returns boolean
language sql stable parallel safe
return coalesce
( _receipt = _id::text || '.' || _attempts::text || '.' || right(_receipt, 16)
  and agent_private.token_hash(right(_receipt, 16)) = substr(_receipt_hash, 1, 8)
, false
);

-- The receipt of a row as claim_event returns it: select e.id, agent.receipt(e) from agent.claim_event() e
-- Of any other row it is null, as only the claim returns its receipts.
create or replace function agent.receipt(_event agent.event)
returns text
language sql immutable parallel safe
return _event.id::text || '.' || _event.attempts::text || '.' || _event.claim_token;

-- Whether an event that cannot be claimed yet is due at a time, and waits for its turn in its group. Inlined, like agent.receipt.
create or replace function agent_private.lacks_turn(_flow int2, _turn_vt timestamptz, _at timestamptz)
returns boolean
language sql immutable parallel safe
return coalesce(_flow = 3 or _flow = 4 and _turn_vt <= _at, false);

-- The state of an event in its queue at a time: ready, scheduled, leased, or waiting for its turn in its group. It is that of the row alone: whoever shows or counts events takes
-- those of agent_private.next_turns as ready, which are waiting or scheduled by their rows.
create or replace function agent_private.event_state(_event agent.event, _at timestamptz)
returns text
language sql immutable parallel safe
return case
  when _event.vt <= _at then 'ready'
  when agent_private.lacks_turn(_event.flow, _event.turn_vt, _at) then 'waiting'
  when _event.attempts > 0 and _event.nacked_at is null then 'leased'
  else 'scheduled'
end;

-- The length of a lease by a queue's policy, at most about ten years, so that its end is a valid time. Null stays null.
create or replace function agent_private.bounded_lease(_lease interval)
returns interval
language sql immutable parallel safe
return case when _lease > interval '3660 days' then interval '3660 days' else _lease end;

-- Attempts. The columns attempts, claimed and worker have the attempt under way; past_attempts has those that ended without success.
-- Each claim and each nack writes the whole row, so its attempts are bounded, and an event may have any number of attempts: claimed has
-- the first claim and the latest 99, past_attempts the latest 20 attempts, fewer if they come to more than 256 KiB. attempts counts all
-- of them.

-- The finite times of claimed as a one-dimensional array that begins at 1, whatever was written into the column by hand.
create or replace function agent_private.flatten_claims(_claimed timestamptz[])
returns timestamptz[]
language sql immutable parallel safe
set search_path to pg_catalog, pg_temp
as $func$
  select coalesce(array_agg(c.at order by c.n) filter (where isfinite(c.at)), '{}') from unnest(_claimed) with ordinality as c (at, n)
$func$;

-- claimed after one more claim.
create or replace function agent_private.append_claim(_claimed timestamptz[], _at timestamptz)
returns timestamptz[]
language sql immutable parallel safe
return case
  when array_ndims(_claimed) > 1 or array_lower(_claimed, 1) <> 1 then agent_private.flatten_claims(_claimed) || _at
  when cardinality(_claimed) < 100 then _claimed || _at
  else _claimed[1] || _claimed[cardinality(_claimed) - 97:] || _at
end;

-- When an attempt began, null if claimed does not hold that time any more.
create or replace function agent_private.attempt_start(_attempts int4, _claimed timestamptz[], _attempt int4)
returns timestamptz
language sql immutable parallel safe
return case
  when _attempt = 1 then _claimed[1]
  when _attempt > _attempts::int8 - cardinality(_claimed) + 1 and _attempt <= _attempts then _claimed[_attempt - _attempts + cardinality(_claimed)]
end;

-- An ended attempt as an element of past_attempts: its number, its worker, when and how it ended ('nacked', 'lease_ended') and the
-- error. It takes columns instead of a row, because a row would be built for each claimed event, even where it is not needed.
create or replace function agent_private.past_attempt(_attempt int4, _worker text, _ended_at timestamptz, _outcome text, _error text default null)
returns jsonb
language sql immutable parallel safe
set search_path to pg_catalog, pg_temp
as $func$
  select jsonb_strip_nulls(jsonb_build_object
  ( 'attempt', _attempt
  , 'worker', _worker
  , 'ended_at', _ended_at at time zone 'UTC'
  , 'outcome', _outcome
  , 'error', _error
  ))
$func$;

-- past_attempts with one more attempt, see past_attempt. A value that is no array, written by hand, is replaced.
create or replace function agent_private.append_attempt
( _past jsonb
, _attempt int4
, _worker text
, _ended_at timestamptz
, _outcome text
, _error text default null
)
returns jsonb
language plpgsql stable parallel safe
set search_path to pg_catalog, pg_temp
as $func$
declare
  _max_count int4 = 20;
  _max_size int4 = 262144; -- bytes
  _count int4;
begin
  _past = case when jsonb_typeof(_past) = 'array' then _past else '[]' end || agent_private.past_attempt(_attempt, _worker, _ended_at, _outcome, _error);
  _count = jsonb_array_length(_past);
  if _count > _max_count + 1 then -- as was written by hand
    select jsonb_agg(p.past order by p.n) into _past
    from jsonb_array_elements(_past) with ordinality as p (past, n)
    where p.n > _count - _max_count;
    _count = _max_count;
  end if;
  while _count > _max_count or _count > 1 and pg_column_size(_past) > _max_size loop
    _past = _past - 0;
    _count = _count - 1;
  end loop;
  return _past;
end
$func$;

-- How many attempts at a waiting event ended without success, at a time.
create or replace function agent_private.error_count(_attempts int4, _nacked_at timestamptz, _vt timestamptz, _at timestamptz)
returns int4
language sql immutable parallel safe
return case when _attempts > 0 and _nacked_at is null and _vt > _at then _attempts - 1 else greatest(_attempts, 0) end;

-- The attempts in past_attempts. Elements that are no attempts, written by hand, are left out.
create or replace function agent_private.read_attempts(_past jsonb)
returns table (attempt int4, worker text, ended_at timestamptz, outcome text, error text)
language plpgsql stable
set search_path to pg_catalog, pg_temp
set timezone to 'UTC'
as $func$
#variable_conflict use_column
declare
  _element jsonb;
begin
  if jsonb_typeof(_past) is distinct from 'array' then
    return;
  end if;
  for _element in select v from jsonb_array_elements(_past) v loop
    begin
      return query
      select p.attempt, p.worker, p.ended_at at time zone 'UTC', case when p.outcome = 'nacked' then p.outcome else 'lease_ended' end, p.error
      from jsonb_to_record(_element) as p (attempt int4, worker text, ended_at timestamp, outcome text, error text)
      where p.attempt >= 1 and p.ended_at is not null;
    exception when data_exception then
      continue;
    end;
  end loop;
end
$func$;
