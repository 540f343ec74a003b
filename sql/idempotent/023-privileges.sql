-- No function of this schema is for everyone: grant what a role needs (see docs/operations.md).
revoke execute on all functions in schema agent from public;

-- Where a migration has dropped functions to give them other arguments, who might execute them may do so still.
do $script$
declare
  _statement text;
begin
  if to_regclass('pg_temp.kept_grants') is null then
    return;
  end if;
  for _statement in
    execute $sql$
      select pg_catalog.format('grant execute on function %s to %s', p.oid::pg_catalog.regprocedure, k.grantee::pg_catalog.regrole)
      from pg_temp.kept_grants k
      join pg_catalog.pg_proc p on p.proname = k.function
      join pg_catalog.pg_namespace n on n.oid = p.pronamespace and n.nspname = 'agent'
    $sql$
  loop
    execute _statement;
  end loop;
end
$script$;
