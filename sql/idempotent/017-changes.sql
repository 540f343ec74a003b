-- Publishing the changes of tables. See docs/publish.md.

-- Publishes the changes of a table by insert, update, delete and truncate, in their transaction, from now on. Calling it again
-- replaces the settings. The topics are <_topic>.<operation>; _topic is <schema>.<table> unless given. Only changes of _columns are
-- published, with the values of these columns alone; null: all columns, also those that are added later. _old says which former values of an
-- updated row go along: those of changed columns, all ('full'), or none ('none'), which goes for deleted rows, too. The key of an event is
-- made of the columns _key, else of the primary key. Only for the owner of the table. Raises QD003 for a table or an argument that cannot be.
--
-- It runs with the caller's rights: triggers are made by the owner of their table.
create or replace function agent.publish_changes
( _table regclass
, _topic text default null
, _operations text[] default '{insert,update,delete,truncate}'
, _columns text[] default null
, _old text default 'changed'
, _key text[] default null
)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
declare
  _class record;
  _fault text;
  _relations regclass[];
  _by_row boolean;
  _relation record;
  _operation text;
begin
  select c.*, n.nspname, format('%I.%I', n.nspname, c.relname) as name into _class
  from pg_class c
  join pg_namespace n on n.oid = c.relnamespace
  where c.oid = _table;
  if not found then
    _fault = 'table: must be a table';
  else
    -- This also checks who owns it, and locks it before anything is looked at.
    perform agent.stop_publishing_changes(_table);
    _topic = coalesce(_topic, _class.nspname || '.' || _class.relname);
    _fault = case
      when _class.relkind not in ('r', 'p', 'f') then 'table: must be a table'
      when _class.relpersistence = 't' then 'table: must not be temporary'
      when _class.nspname in ('agent', 'agent_service', 'agent_private') then 'table: must not be one of the schema ' || _class.nspname
      when coalesce(cardinality(_operations), 0) = 0 or array_position(_operations, null) is not null
        or not _operations <@ '{insert,update,delete,truncate}' then 'operations: must be some of insert, update, delete, truncate'
      when _topic || '.truncate' !~ '^[A-Za-z0-9_:-]+([.][A-Za-z0-9_:-]+){1,7}$' or length(_topic) > 246 or starts_with(_topic, 'queued.')
        then format('topic: %s.<operation> is no topic, which has up to 8 words of A-Z a-z 0-9 _ : - with dots between them, 255 characters at most, '
          'and does not begin with "queued."; name another one with _topic', _topic)
      when _old is null or _old not in ('changed', 'full', 'none') then 'old: must be changed, full or none'
      when cardinality(_columns) = 0 then 'columns: must be some columns, or null'
      when cardinality(_key) = 0 then 'key: must be some columns, or null'
    end;
  end if;
  if _fault is null then
    select format('%s: the table has no column %s', n.argument, coalesce(quote_ident(n.name), 'null')) into _fault
    from (select 'columns', unnest(_columns) union all select 'key', unnest(_key)) as n (argument, name)
    where not exists (select from pg_attribute a where a.attrelid = _table and a.attname = n.name and a.attnum > 0 and not a.attisdropped)
    limit 1;
  end if;
  if _fault is not null then
    raise exception '%', _fault using errcode = 'QD003', column = split_part(_fault, ': ', 1), detail = substr(_fault, strpos(_fault, ': ') + 2);
  end if;

  _relations = array(select t.relid from pg_partition_tree(_table) t union select _table);
  -- Row by row: tables without transition tables, and those with triggers that may write to the same table between a change and the end of its
  -- statement. Changes by these have to be published after the change that fired them.
  _by_row = exists (select from pg_class c where c.oid = any (_relations) and c.relkind = 'f')
    or exists
    ( select from pg_trigger t
      where t.tgrelid = any (_relations) and not t.tgisinternal and t.tgtype & 1 = 1 and t.tgtype & 2 = 0
    )
    or exists (select from pg_constraint c where c.contype = 'f' and c.conrelid = _table and c.confrelid = _table and c.confupdtype in ('c', 'n', 'd'));
  -- Without the extension, anybody who may create schemas can have made one of that name, with views that would run with the caller's rights.
  if not _by_row and exists (select from pg_extension x where x.extname = 'timescaledb') then
    execute 'select exists (select from timescaledb_information.hypertables h where h.hypertable_schema = $1 and h.hypertable_name = $2)'
    into _by_row using _class.nspname, _class.relname;
  end if;
  -- A statement fires the triggers for statements of the table that it names, and no others. Those for rows have copies in partitions, and
  -- those for truncate fire in all tables that are emptied.
  for _relation in select c.oid::regclass as name, c.relkind as kind from pg_class c where c.oid = any (_relations) loop
    for _operation in select distinct o from unnest(_operations) o loop
      continue when case
        when _operation <> 'truncate' then _by_row and _relation.name <> _table
        else _relation.kind = 'f' and current_setting('server_version_num')::int4 < 160000 -- which has no such triggers
      end;
      execute format('create trigger %I after %s on %s %s execute function agent.publish_change(%L, %L, %L, %L, %L)'
      , '00_publish_' || _operation -- triggers fire in the order of their names
      , _operation
      , _relation.name
      , case
          when _operation = 'truncate' then 'for each statement'
          when _by_row then 'for each row'
          when _operation = 'insert' then 'referencing new table as new_rows for each statement'
          when _operation = 'update' then 'referencing old table as old_rows new table as new_rows for each statement'
          else 'referencing old table as old_rows for each statement'
        end
      , _topic || '.' || _operation, _class.name, coalesce(_columns::text, ''), _old, coalesce(_key::text, '')
      );
    end loop;
  end loop;
end
$func$;

-- Ends the publishing that publish_changes has begun. Does nothing for a table whose changes are not published. Only for the owner of the table.
create or replace function agent.stop_publishing_changes(_table regclass)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
declare
  _kind "char";
  _relation regclass;
  _trigger record;
begin
  select c.relkind into _kind from pg_class c where c.oid = _table;
  if exists (select from pg_class c where c.oid = _table and c.relispartition) then
    raise exception 'table: % is a partition; name the table that it belongs to, which is %', _table, pg_partition_root(_table)
      using errcode = 'QD003', column = 'table', detail = 'must not be a partition';
  end if;
  for _relation in
    select c.oid
    from pg_class c
    where (c.oid = _table or c.oid in (select t.relid from pg_partition_tree(_table) t)) and not pg_has_role(current_user, c.relowner, 'usage')
  loop
    raise exception 'only the owner of the table % may publish its changes', _relation using errcode = 'insufficient_privilege';
  end loop;
  if _kind in ('r', 'p') then
    -- At once as strongly as it is needed: a stronger lock later might be a deadlock with a reader that goes on to write.
    execute format('lock table only %s in %s mode', _table, case
      when exists (select from pg_trigger t where t.tgrelid = _table and t.tgfoid = 'agent.publish_change'::regproc) then 'access exclusive'
      else 'share row exclusive'
    end);
  end if;
  for _trigger in
    select t.tgrelid::regclass as relation, t.tgname as name
    from pg_trigger t
    where t.tgfoid = 'agent.publish_change'::regproc and t.tgparentid = 0 and not t.tgisinternal
    and (t.tgrelid = _table or t.tgrelid in (select p.relid from pg_partition_tree(_table) p))
  loop
    execute format('drop trigger %I on %s', _trigger.name, _trigger.relation);
  end loop;
end
$func$;

-- Trigger of publish_changes: publishes the rows that a statement has changed, or one of them, when the transaction commits. Its arguments are
-- the topic, the table, the columns, which former values, and the columns of the key.
--
-- It must not make the writer's statement fail. A failure because of a value is caught value by value; after any other error the rows
-- that are left are published as one event without values, with a warning. Nothing is caught that has to end the statement, such as a cancel,
-- and nothing is written where errors are caught, as each such statement would need a transaction id of its own.
--
-- Any user who may make triggers can make one of this function, which runs as the owner of the schema. It reads new_rows and old_rows, which are the
-- transition tables only if the trigger has some: else they would be the relations that its writer has in pg_temp, such as a view that calls a
-- function. So it reads nothing before check_change_trigger has let it.
--
-- The settings make values look the same in all sessions.
create or replace function agent.publish_change()
returns trigger
language plpgsql
security definer
set search_path to pg_catalog, pg_temp
set jit to off
set bytea_output to hex
set datestyle to iso
set extra_float_digits to 1
set intervalstyle to iso_8601
set lc_monetary to 'C'
set quote_all_identifiers to off
set timezone to 'UTC'
as $func$
declare
  _operation text = lower(tg_op);
  _columns record;
  _rows refcursor;
  _former_rows refcursor;
  _row record;
  _former record;
  _new jsonb[];
  _new_omitted jsonb[];
  _old jsonb[];
  _old_omitted jsonb[];
  _count int4;
  _bytes int8;
  _is_done boolean = not agent_private.check_change_trigger(tg_relid, tg_name, tg_op, tg_level, tg_argv);
  _is_plain boolean = tg_level = 'ROW'; -- a row is read as a whole if that is possible, as a query would have to be planned for each
  _publications agent_private.publication[];
begin
  if _is_done then
    raise warning 'a change of % is published without its values: a temporary table or view has the name new_rows or old_rows', tg_argv[1];
    perform agent_private.publish_at_commit(array[agent_private.change_without_values(_operation, tg_argv[0], tg_argv[1])]);
    return null;
  elsif tg_op = 'TRUNCATE' then
    perform agent_private.publish_truncate(tg_relid, tg_argv[0], tg_argv[1]);
    return null;
  elsif tg_level = 'STATEMENT' then
    if tg_op = 'DELETE' then
      perform from old_rows limit 1;
    else
      perform from new_rows limit 1;
    end if;
    if not found then
      return null;
    end if;
  end if;
  while not _is_done loop
    begin
      if _rows is null then
        _columns = agent_private.change_columns(tg_relid, nullif(tg_argv[2], '')::text[], nullif(tg_argv[4], '')::text[], _is_plain);
        if _columns.query is null then
          null;
        elsif tg_level = 'STATEMENT' then
          open _rows for execute format('with n as (select * from %I) ', case when tg_op = 'DELETE' then 'old_rows' else 'new_rows' end) || _columns.query;
        elsif tg_op = 'DELETE' then
          open _rows for execute 'with n as (select ($1).*) ' || _columns.query using old;
        else
          open _rows for execute 'with n as (select ($1).*) ' || _columns.query using new;
        end if;
        if tg_op = 'UPDATE' and _columns.query is not null then
          if tg_level = 'ROW' then
            open _former_rows for execute 'with n as (select ($1).*) ' || _columns.query using old;
          else
            -- Both tables have the rows in the order in which they were updated, so they are read side by side. Only a row on its way into
            -- another partition can be in one of them alone, if a trigger of that partition refuses it.
            if exists (select from pg_class c where c.oid = tg_relid and c.relkind = 'p') and (select count(*) from new_rows) <> (select count(*) from old_rows) then
              raise exception 'a trigger refused a row that was to move to another partition';
            end if;
            open _former_rows for execute 'with n as (select * from old_rows) ' || _columns.query;
          end if;
        end if;
      end if;
      _new = '{}';
      _new_omitted = '{}';
      _old = '{}';
      _old_omitted = '{}';
      _count = 0;
      _bytes = 0;
      if _columns.query is null then
        _is_done = true;
        if tg_op <> 'DELETE' then
          _new = array[agent_private.value_json(new)];
        end if;
        if tg_op <> 'INSERT' then
          _old = array[agent_private.value_json(old)];
        end if;
        if array_position(_new || _old, null) is not null then -- it has to be read value by value
          _is_plain = false;
          _is_done = false;
          continue;
        end if;
      end if;
      while not _is_done loop
        fetch _rows into _row;
        _is_done = not found;
        exit when _is_done;
        _count = _count + 1;
        _bytes = _bytes + pg_column_size(_row.content);
        if tg_op = 'DELETE' then
          _old[_count] = _row.content;
          _old_omitted[_count] = _row.omitted;
        else
          _new[_count] = _row.content;
          _new_omitted[_count] = _row.omitted;
        end if;
        if tg_op = 'UPDATE' then
          fetch _former_rows into _former;
          _bytes = _bytes + pg_column_size(_former.content);
          _old[_count] = _former.content;
          _old_omitted[_count] = _former.omitted;
        end if;
        exit when _count = 1000 or _bytes > 4194304; -- so much is in memory at a time
      end loop;
      if _is_done and _columns.query is not null then -- else they would stay open until the end of the transaction
        close _rows;
        if tg_op = 'UPDATE' then
          close _former_rows;
        end if;
      end if;
      _publications = agent_private.change_publications(_operation, tg_argv[0], tg_argv[1], _columns.names, _columns.key, _columns.missing, tg_argv[3]
      , _new, _old, _new_omitted, _old_omitted);
    exception when others then
      if sqlstate ~ '^(40|53100|55P03|57)' then
        raise; -- a deadlock, a full disk, a lock timeout, a shutdown
      end if;
      raise warning 'a change of % is published without its values: %', tg_argv[1], sqlerrm using errcode = sqlstate;
      _publications = array[agent_private.change_without_values(_operation, tg_argv[0], tg_argv[1])];
      _is_done = true;
    end;
    if _publications <> '{}' then
      perform agent_private.publish_at_commit(_publications);
    end if;
  end loop;
  return null;
end
$func$;

-- Raises insufficient_privilege (42501) for a trigger that publish_changes has not made. Else returns whether its transition tables can be read.
--
-- The catalog shows the trigger as it fires, unless this transaction has replaced it since the statement began, which a trigger before it can do, or
-- reads by an old snapshot. Then the rows are read only if nothing else has the name of a transition table.
create or replace function agent_private.check_change_trigger(_relation oid, _name name, _operation text, _level text, _arguments text[])
returns boolean
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
as $func$
declare
  _reads_new boolean = _level = 'STATEMENT' and _operation in ('INSERT', 'UPDATE');
  _reads_old boolean = _level = 'STATEMENT' and _operation in ('UPDATE', 'DELETE');
  _is_old_snapshot boolean = current_setting('transaction_isolation') <> 'read committed';
  _is_shadowed boolean = to_regclass('pg_temp.new_rows') is not null or to_regclass('pg_temp.old_rows') is not null;
  _trigger record;
begin
  select age(t.xmin) <= 0 as is_of_this_transaction
  , t.tgfoid = 'agent.publish_change'::regproc
    and t.tgtype = case _operation when 'INSERT' then 4 when 'DELETE' then 8 when 'UPDATE' then 16 when 'TRUNCATE' then 32 end
      + case _level when 'ROW' then 1 else 0 end -- after, and nothing else: see TRIGGER_TYPE_ROW in PostgreSQL's pg_trigger.h
    and t.tgconstraint = 0 and t.tgqual is null and t.tgattr = ''
    and t.tgnewtable is not distinct from case when _reads_new then name 'new_rows' end
    and t.tgoldtable is not distinct from case when _reads_old then name 'old_rows' end
    and t.tgnargs = 5 and right(_arguments[0], length(_operation) + 1) = '.' || lower(_operation) and _arguments[3] in ('changed', 'full', 'none')
    and c.relkind in ('r', 'p', 'f') and c.relpersistence <> 't' as is_genuine
  into _trigger
  from pg_trigger t
  join pg_class c on c.oid = t.tgrelid
  where t.tgrelid = _relation and t.tgname = _name;
  if found and not _trigger.is_genuine or not found and not _is_old_snapshot then
    raise exception 'the trigger % of % was not made by agent.publish_changes, which alone may use agent.publish_change', _name, _relation::regclass
      using errcode = 'insufficient_privilege', hint = 'Drop it. The owner of a table publishes its changes with agent.publish_changes(table).';
  end if;
  return not (_reads_new or _reads_old) or not _is_shadowed or not _is_old_snapshot and not _trigger.is_of_this_transaction;
end
$func$;

-- The event of changes whose values are not known.
create or replace function agent_private.change_without_values(_operation text, _topic text, _table text)
returns agent_private.publication
language plpgsql immutable
set search_path to pg_catalog, pg_temp
as $func$
begin
  return row(_topic, jsonb_build_object('op', _operation, 'table', _table, 'omitted', '["*"]'::jsonb), null, null, null, null, null)::agent_private.publication;
end
$func$;

-- Publishes that a table, or one of its partitions, was emptied. The triggers of a table emptied as a whole fire before those of its partitions, of
-- which nothing is told then.
create or replace function agent_private.publish_truncate(_relation oid, _topic text, _table text)
returns void
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
declare
  _event jsonb = jsonb_build_object('op', 'truncate', 'table', _table);
  _latest agent_private.publication;
begin
  if exists (select from pg_class c where c.oid = _relation and c.relispartition) then
    _latest = (select o.publications[1] from agent.outgoing o where o.xact = pg_current_xact_id() order by o.id desc limit 1);
    if (_latest).topic = _topic and _event <@ (_latest).event and coalesce
    ( (_latest).event ->> 'partition' in (select a.relid::text from pg_partition_ancestors(_relation) a where a.relid <> _relation)
    , true) then
      return;
    end if;
    _event = _event || jsonb_build_object('partition', _relation::regclass::text);
  end if;
  perform agent_private.publish_at_commit(array[row(_topic, _event, null, null, null, null, null)::agent_private.publication]);
end
$func$;

-- The publications of changed rows, in their order. _new and _old have the columns of each row as change_columns reads them, and the omitted
-- ones have the fingerprints of values that are missing there. _names are the columns to publish, and _missing those that the table has no
-- longer. An update that changes none of _names is left out. It goes row by row, as a statement often has changed only one.
create or replace function agent_private.change_publications
( _operation text
, _topic text
, _table text
, _names text[]
, _key text[]
, _missing text[]
, _which_old text
, _new jsonb[]
, _old jsonb[]
, _new_omitted jsonb[]
, _old_omitted jsonb[]
)
returns agent_private.publication[]
language plpgsql stable
set search_path to pg_catalog, pg_temp
as $func$
declare
  _publications agent_private.publication[] = '{}';
  _beside text[] = array(select k from unnest(_key) k where k <> all (_names)); -- they are read for the sake of the key
  _name text;
  _changed text[];
  _former jsonb;
  _row_key text;
  _former_key text;
  _omitted text[];
  _event jsonb;
begin
  for i in 1 .. greatest(cardinality(_new), cardinality(_old)) loop
    if _operation = 'update' then
      _changed = '{}';
      _former = '{}';
      foreach _name in array _names loop
        if (_new[i] -> _name) is distinct from (_old[i] -> _name) or (_new_omitted[i] -> _name) is distinct from (_old_omitted[i] -> _name) then
          _changed = _changed || _name;
          _former = _former || jsonb_build_object(_name, _old[i] -> _name);
        end if;
      end loop;
      continue when _changed = '{}';
      _former_key = agent_private.change_key(_old[i], _key);
    end if;
    _row_key = agent_private.change_key(coalesce(_new[i], _old[i]), _key);
    _omitted = _missing;
    if _new_omitted[i] is not null then
      _omitted = _omitted || array(select jsonb_object_keys(_new_omitted[i]));
      _new[i] = _new[i] - array(select jsonb_object_keys(_new_omitted[i]));
    end if;
    if _old_omitted[i] is not null and _which_old <> 'none' then
      _omitted = _omitted || array(select jsonb_object_keys(_old_omitted[i]));
      _old[i] = _old[i] - array(select jsonb_object_keys(_old_omitted[i]));
      _former = _former - array(select jsonb_object_keys(_old_omitted[i]));
    end if;

    _event = jsonb_build_object('op', _operation, 'table', _table);
    if length(_row_key) between 1 and 255 then
      _event = _event || jsonb_build_object('key', _row_key);
    elsif _row_key is not null then
      _omitted = _omitted || 'key'::text;
      _row_key = null;
    end if;
    if _operation <> 'delete' then
      _event = _event || jsonb_build_object('new', _new[i] - _beside);
    end if;
    if _operation = 'update' then
      _event = _event || jsonb_build_object('changed', _changed);
      if _which_old = 'full' then
        _former = _old[i] - _beside;
      elsif _which_old = 'none' then
        _former = null;
      end if;
      if _former_key is distinct from _row_key then -- else nobody could tell which row it was
        foreach _name in array _key loop
          _former = coalesce(_former, '{}') || jsonb_build_object(_name, _old[i] -> _name);
        end loop;
      end if;
      if _former is not null then
        _event = _event || jsonb_build_object('old', _former);
      end if;
    elsif _operation = 'delete' and _which_old <> 'none' then
      _event = _event || jsonb_build_object('old', _old[i] - _beside);
    end if;
    if _omitted <> '{}' then
      _event = _event || jsonb_build_object('omitted', array(select distinct o from unnest(_omitted) o order by o));
    end if;
    if coalesce(agent_private.new_json_size(_event), 1048577) > 1048576 then
      _event = agent_private.bound_change(_event);
    end if;
    _publications = _publications || row(_topic, _event, _row_key, null, null, null, null)::agent_private.publication;
  end loop;
  return _publications;
end
$func$;

-- The text of a key of several columns: an array of JSON. A key that is far too long is empty.
create or replace function agent_private.composite_key(_row jsonb, _key text[])
returns text
language plpgsql stable
set search_path to pg_catalog, pg_temp
as $func$
begin
  return
  ( select case when bool_and(k.size <= 200000) then jsonb_agg(k.value order by k.place)::text else '' end
    from
    ( select _row -> n.name as value, n.place, coalesce(agent_private.stored_json_size(_row -> n.name), 200001) as size
      from unnest(_key) with ordinality as n (name, place)
    ) k
  );
end
$func$;

-- The text of a row's key: the value of its only column, or an array of JSON with those of several; null without a column. A key that is far too long
-- is empty.
create or replace function agent_private.change_key(_row jsonb, _key text[])
returns text
language sql stable parallel safe
return case cardinality(_key)
  when 0 then null
  when 1 then
    case
      when jsonb_typeof(_row -> _key[1]) not in ('object', 'array') or agent_private.stored_json_size(_row -> _key[1]) <= 200000 then _row ->> _key[1]
      when _row ? _key[1] then ''
    end
  else agent_private.composite_key(_row, _key)
end;

-- The event of a change without the values that may not be stored. If the others come to more than 1 MiB as text, it is too_large and has none of the
-- largest ones. An event that cannot be made to fit has its key alone.
create or replace function agent_private.bound_change(_event jsonb)
returns jsonb
language plpgsql stable
set search_path to pg_catalog, pg_temp
as $func$
declare
  _bounded jsonb = _event;
  _excess int8; -- null: values that may not be stored are left
  _value record;
begin
  for _value in
    select v.key, coalesce(bool_or(v.size is null), false) as is_invalid, sum(v.size) as size
    from
    ( select e.key, agent_private.measure_json(e.value, true) as size
      from (select * from jsonb_each(_event -> 'new') union all select * from jsonb_each(_event -> 'old')) e
    ) v
    group by v.key
    order by 2 desc, 3 desc, v.key
  loop
    if not _value.is_invalid and _excess is null then
      _excess = coalesce(agent_private.measure_json(_bounded, true), 2147483647) - 1048576;
      if _excess > 0 then
        _bounded = _bounded || '{"too_large": true}';
      end if;
    end if;
    exit when _excess <= 0;
    _excess = _excess - _value.size;
    _bounded = _bounded #- array['new', _value.key] #- array['old', _value.key]
      || jsonb_build_object('omitted', coalesce(_bounded -> 'omitted', '[]') || to_jsonb(_value.key));
  end loop;
  if coalesce(agent_private.measure_json(_bounded, true), 1048577) > 1048576 then
    return jsonb_strip_nulls(jsonb_build_object
      ('op', _event -> 'op', 'table', _event -> 'table', 'key', _event -> 'key', 'too_large', true, 'omitted', '["*"]'::jsonb));
  end if;
  return _bounded;
end
$func$;

-- How to read the rows of a table: names are its columns that are to be published, key those of its key, missing those that were asked for and
-- are there no longer. query, which reads from n, returns the content of each row, without values that are too large or fail, and the
-- fingerprints of these. It is null if _is_plain, and all columns are to be published and have built-in types: then to_jsonb does for a row.
create or replace function agent_private.change_columns
( _relation oid
, _columns text[]
, _key text[]
, _is_plain boolean
, out names text[]
, out key text[]
, out missing text[]
, out query text
)
language plpgsql stable
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
as $func$
declare
  _values text;
  _is_omitted text;
  _omitted text[];
  _fingerprints text;
begin
  key = coalesce(_key, array
  ( select a.attname
    from pg_index i
    cross join lateral unnest(i.indkey) with ordinality as k (number, place)
    join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.number
    where i.indrelid = coalesce(pg_partition_root(_relation), _relation) and i.indisprimary
    order by k.place
  ));
  if _is_plain and _columns is null and not exists
  ( select from pg_attribute a
    where a.attrelid = _relation and a.attnum > 0 and not a.attisdropped and (a.atttypid >= 16384 or a.atttypid in (114, 199)) -- json, json[]
  ) then
    names = array(select a.attname from pg_attribute a where a.attrelid = _relation and a.attnum > 0 and not a.attisdropped order by a.attnum);
    missing = array(select distinct m from unnest(_key) m where m <> all (names) order by 1);
    if key && missing then
      key = '{}';
    end if;
    return;
  end if;
  select array_agg(c.name)
  , string_agg(c.value || ' as ' || quote_ident(c.name), ', ')
  , string_agg(format('num_nulls(n.%1$I, r.%1$I) = 1', c.name), ' or ') filter (where c.is_guarded)
  , array_agg(c.name) filter (where c.is_guarded)
  , string_agg(format('case when num_nulls(n.%1$I, r.%1$I) = 1 then %2$s end', c.name, case
      when c.type = 1700 then format('md5(numeric_send(n.%I))', c.name) -- without the digits that it has as text
      when c.type = 1231 then format('md5(array_send(n.%I))', c.name)
      else format('agent_private.value_fingerprint(n.%I)', c.name)
    end), ', ') filter (where c.is_guarded)
  into names, _values, _is_omitted, _omitted, _fingerprints
  from
  ( select a.attname as name
    , agent_private.column_source('n.' || quote_ident(a.attname), a.atttypid, a.attlen) as value
    , a.atttypid >= 16384 or a.attlen < 0 as is_guarded
    , a.atttypid as type
    from pg_attribute a
    where a.attrelid = _relation and a.attnum > 0 and not a.attisdropped
    and (_columns is null or a.attname = any (_columns) or a.attname = any (key))
    order by a.attnum
  ) c;
  missing = '{}';
  if _columns is not null or _key is not null then
    missing = array(select distinct m from unnest(_columns || _key) m where m <> all (coalesce(names, '{}')) order by 1);
  end if;
  if _columns is not null then
    names = array(select n from unnest(names) n where n = any (_columns));
  end if;
  if key && missing then
    key = '{}';
  end if;
  query = format('select to_jsonb(r.*) as content, %s as omitted from n cross join lateral (select %s) as r'
  , case
      when _is_omitted is null then 'null::jsonb'
      else format('case when %s then jsonb_strip_nulls(jsonb_object(%L::text[], array[%s])) end', _is_omitted, _omitted, _fingerprints)
    end
  , _values);
end
$func$;

-- An expression that to_jsonb may be applied to with the rights of the schema's owner. For types that users have made, to_jsonb calls their
-- casts to json, which are functions of these users: such values are taken apart, down to those that only a superuser can have given a cast.
create or replace function agent_private.json_source(_value text, _type oid, _depth int4 default 0)
returns text
language plpgsql stable
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
as $func$
declare
  _base record;
begin
  select t.*, r.rolsuper into _base
  from pg_type t
  join pg_roles r on r.oid = t.typowner
  where t.oid = agent_private.base_type(_type);
  if _base.oid < 16384 and _base.oid <> 'json'::regtype and _base.oid <> 'json[]'::regtype then
    return _value;
  elsif _base.oid < 16384 or _base.typtype = 'b' and _base.typcategory <> 'A' and _base.rolsuper then
    return case when _depth = 0 then _value else
      format('case when num_nulls(%1$s) = 0 then coalesce(agent_private.value_json(%1$s), to_jsonb(format(''%%s'', %1$s))) end', _value)
    end;
  elsif _base.typtype = 'c' then
    return format('case when num_nulls(%s) = 0 then (select to_jsonb(r.*) from (select %s) as r) end', _value,
    ( select string_agg(format('%s as %I', agent_private.json_source(format('(%s).%I', _value, a.attname), a.atttypid, _depth + 1), a.attname)
      , ', ' order by a.attnum)
      from pg_attribute a
      where a.attrelid = _base.typrelid and a.attnum > 0 and not a.attisdropped
    ));
  elsif _base.typtype = 'b' and _base.typcategory = 'A' then
    return format('case when num_nulls(%1$s) = 1 then null when cardinality(%1$s) = 0 then ''[]'' when array_ndims(%1$s) = 1 '
      'then (select jsonb_agg(%2$s order by i%3$s) from generate_subscripts(%1$s, 1) as i%3$s) else to_jsonb(format(''%%s'', %1$s)) end'
    , _value, agent_private.json_source(format('(%s)[i%s]', _value, _depth), _base.typelem, _depth + 1), _depth);
  end if;
  return format('case when num_nulls(%1$s) = 0 then format(''%%s'', %1$s) end', _value);
end
$func$;

-- An expression of a column's value, which is null where the value is too large or fails. Texts and bytes have up to 256 KiB as JSON, whose
-- size is known without reading them. The size that others take in the table, compressed or not, tells which are certainly small.
create or replace function agent_private.column_source(_column text, _type oid, _length int4)
returns text
language sql stable parallel safe
return case
  when _type in (25, 1042, 1043) -- text, char, varchar
  then 'case when octet_length(' || _column || ') <= 262144 then ' || _column || ' end'
  when _type < 16384 and _length > 0
  then _column
  when _type = 1700 -- numeric, of which to_jsonb makes a text
  then 'case when agent_private.is_valid_number(' || _column || ') is not false then ' || _column || ' end'
  when _type = 1231 -- numeric[]
  then 'case when pg_column_size(' || _column || ') <= 262144 and agent_private.are_valid_numbers(' || _column || ') then agent_private.value_json(' || _column || ') end'
  when _type = 17 -- bytea
  then 'case when octet_length(' || _column || ') <= 131072 then ' || _column || ' end'
  when _type >= 16384 or _type in (114, 199) -- json, json[]
  then 'case when pg_column_size(' || _column || ') <= 262144 then agent_private.value_json(' || agent_private.json_source(_column, _type) || ') end'
  else 'case when pg_column_size(' || _column || ') <= 1000 then to_jsonb(' || _column || ') when pg_column_size(' || _column
    || ') <= 262144 then agent_private.value_json(' || _column || ') end'
end;

-- Whether all of these numbers may be stored as JSON.
create or replace function agent_private.are_valid_numbers(_numbers numeric[])
returns boolean
language plpgsql stable
set search_path to pg_catalog, pg_temp
as $func$
begin
  return not exists (select from unnest(_numbers) as n (number) where agent_private.is_valid_number(n.number) is false);
end
$func$;

-- The type that a domain is one of; any other type is itself.
create or replace function agent_private.base_type(_type oid)
returns oid
language plpgsql stable
set search_path to pg_catalog, pg_temp
as $func$
declare
  _of oid;
begin
  while _type >= 16384 loop
    select t.typbasetype into _of from pg_type t where t.oid = _type and t.typtype = 'd';
    exit when not found;
    _type = _of;
  end loop;
  return _type;
end
$func$;

-- A value as JSON; null if it is too large, or cannot be JSON.
create or replace function agent_private.value_json(_value anyelement)
returns jsonb
language plpgsql stable
set search_path to pg_catalog, pg_temp
as $func$
declare
  _json jsonb;
begin
  _json = to_jsonb(_value);
  return case when pg_column_size(_json) <= 262144 then _json end;
exception when others then
  if sqlstate ~ '^(40|53100|55P03|57)' then
    raise;
  end if;
  return null;
end
$func$;

-- Tells two values apart that are not published; one that cannot be read differs from all others.
create or replace function agent_private.value_fingerprint(_value anyelement)
returns text
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
begin
  return md5(format('%s', _value));
exception when others then
  if sqlstate ~ '^(40|53100|55P03|57)' then
    raise;
  end if;
  return gen_random_uuid()::text;
end
$func$;
