-- The subscription that a change of agent.route_version is about; null: any. The id tells rows apart, also from those that a failover has lost.
alter table agent.route_version
  add id int8 not null default (pg_catalog.random() * 9007199254740991)::int8
, add subscription int8
;
