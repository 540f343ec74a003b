-- Webhooks: those that come in, from sources, and pushes, which go out. See docs/webhooks-in.md and docs/webhooks-out.md.

create table agent.source
( name text collate "C" primary key
, kind text not null
, queue text
, topic text
, type text
, key text
, event_ts text
, priority text
, signature jsonb
, header text
, secrets bytea[] not null
, dedup_for interval not null
, tolerance interval not null
, keep_raw interval
, headers text[] not null default '{}'
, max_body int4
, rate_per_second float8
, rate_burst int4
, paused boolean not null default false
, version int8 not null default 1
, created_at timestamptz not null default clock_timestamp()
, updated_at timestamptz not null default clock_timestamp()
, group_key text
, constraint source_name check (name ~ '^[A-Za-z0-9._:-]{1,128}$')
, constraint source_kind check (kind in ('slack', 'github', 'stripe', 'standard', 'hmac', 'token', 'basic', 'cloudevents'))
, constraint source_target check (num_nonnulls(queue, topic) = 1)
, constraint source_secrets check (cardinality(secrets) between 1 and 5 and array_position(secrets, null) is null)
, constraint source_durations check (dedup_for > interval '0' and tolerance > interval '0' and keep_raw > interval '0')
, constraint source_keep_raw check (keep_raw is null or queue is not null)
, constraint source_max_body check (max_body > 0)
, constraint source_rate check ((rate_per_second is null) = (rate_burst is null) and rate_per_second > 0 and rate_burst > 0)
);
comment on table agent.source is
  'senders of webhooks, which are posted to /in/<name>: how each proves who it is, and what its deliveries become';
comment on column agent.source.queue is 'where its events go; null: they are published to topic';
comment on column agent.source.topic is 'where its events are published; null: they go to queue';
comment on column agent.source.type is 'a template of the type of its events; null: that of the kind';
comment on column agent.source.key is 'a template of their idempotency key; null: that of the kind';
comment on column agent.source.event_ts is 'a template of when they happened; null: that of the kind';
comment on column agent.source.priority is 'a template of their priority; null: that of the kind';
comment on column agent.source.signature is 'of kind hmac: where the signature is, and what it signs';
comment on column agent.source.header is 'of kind token: the header field that has the token; null: Authorization';
comment on column agent.source.secrets is 'sealed under keys that are not in the database';
comment on column agent.source.dedup_for is 'how long the key of a delivery is remembered';
comment on column agent.source.tolerance is 'how far the timestamp of a signature may be from now';
comment on column agent.source.keep_raw is 'how long the bytes of a delivery are kept; null: not at all';
comment on column agent.source.headers is 'header fields that are kept in the metadata';
comment on column agent.source.max_body is 'bytes; null: the limit of all requests';
comment on column agent.source.rate_per_second is 'deliveries; null: no limit';
comment on column agent.source.rate_burst is 'deliveries at once';
comment on column agent.source.group_key is 'a template of the group of its events; null: that of the kind';

create table agent.source_count
( name text collate "C" primary key references agent.source on delete cascade
, received int8 not null default 0
, duplicates int8 not null default 0
, rejected int8 not null default 0
, last_received_at timestamptz
, last_rejected_at timestamptz
, last_rejected_code text
, last_rejected_request_id text
, last_problem_at timestamptz
, last_problem text
, last_problem_request_id text
) with (fillfactor = 50);
comment on table agent.source_count is 'what has come in from a source; processes add to it every second or so';
comment on column agent.source_count.received is 'deliveries that were taken, duplicates among them';
comment on column agent.source_count.last_problem_at is 'of a delivery whose event has an empty field';

create type agent.source_info as
( name text
, kind text
, queue text
, topic text
, type text
, key text
, event_ts text
, priority text
, signature jsonb
, header text
, secrets int4
, dedup_for interval
, tolerance interval
, keep_raw interval
, headers text[]
, max_body int4
, rate_per_second float8
, rate_burst int4
, paused boolean
, version int8
, created_at timestamptz
, updated_at timestamptz
, received int8
, duplicates int8
, rejected int8
, last_received_at timestamptz
, last_rejected_at timestamptz
, last_rejected_code text
, last_rejected_request_id text
, last_problem_at timestamptz
, last_problem text
, last_problem_request_id text
, group_key text
);
comment on type agent.source_info is 'what may be shown of a source: all but its secrets, and what has come in from it';
comment on column agent.source_info.secrets is 'how many there are';

-- Its sender may go on sending such a field, so it is never kept, whatever the source is by now, or if it was deleted and put anew. A
-- trigger adds rows, and nothing takes them away.
create table agent.source_proof_field
( name text collate "C" not null
, field text collate "C" not null
, since timestamptz not null default now()
, primary key (name, field)
);
comment on table agent.source_proof_field is 'the header fields that ever had the secret of a source of this name';
comment on column agent.source_proof_field.field is 'in lower case';

create table agent.raw_body
( event_id int8 not null primary key
, body bytea not null
, media_type text
, received_at timestamptz not null default now()
, kept_until timestamptz not null
);
comment on table agent.raw_body is 'the bytes that events came in as, for a time of its own, where that was asked for';
comment on column agent.raw_body.event_id is 'of an event in its queue or in history';
comment on column agent.raw_body.media_type is 'as its sender called it; null: it did not';
create index raw_body_kept_until on agent.raw_body (kept_until);

create table agent.push
( queue text collate "C" primary key
, url text not null
, format text not null default 'standard'
, headers bytea
, header_names text[] not null default '{}'
, timeout interval not null default interval '15 seconds'
, max_in_flight int4 not null default 10
, rate_per_second float8
, rate_burst int4
, final_statuses int4[] not null default '{}'
, disable_after interval not null default interval '120 hours'
, version int8 not null default 1
, created_at timestamptz not null default clock_timestamp()
, updated_at timestamptz not null default clock_timestamp()
, constraint push_url check (length(url) between 1 and 2048)
, constraint push_format check (format in ('standard', 'cloudevents', 'event'))
, constraint push_headers check ((headers is null) = (cardinality(header_names) = 0))
, constraint push_bounds check (timeout > interval '0' and max_in_flight > 0 and disable_after > interval '0')
, constraint push_rate check ((rate_per_second is null) = (rate_burst is null) and rate_per_second > 0 and rate_burst > 0)
);
comment on table agent.push is 'where the events of a queue are pushed to';
comment on column agent.push.headers is 'further header fields, a JSON object, sealed: they may hold credentials; null: none';
comment on column agent.push.timeout is 'of a request';
comment on column agent.push.max_in_flight is 'requests at once, at most';
comment on column agent.push.rate_per_second is 'requests; null: no limit';
comment on column agent.push.rate_burst is 'requests at once, within the rate';
comment on column agent.push.final_statuses is 'statuses of answers after which an event is not tried again';
comment on column agent.push.disable_after is 'the push is disabled after it has failed for so long';

create table agent.push_secret
( id int8 not null generated always as identity primary key
, queue text collate "C" not null references agent.push on delete cascade
, secret bytea not null
, created_at timestamptz not null default clock_timestamp()
, live_until timestamptz
);
comment on table agent.push_secret is 'what requests of a queue are signed with, once for each secret that is live';
comment on column agent.push_secret.secret is 'sealed under keys that are not in the database';
comment on column agent.push_secret.live_until is 'null: it is the current one';
create unique index push_secret_current on agent.push_secret (queue) where live_until is null;
create index push_secret_queue on agent.push_secret (queue);

create table agent.push_state
( queue text collate "C" primary key references agent.push on delete cascade
, epoch int8 not null
, failures int4 not null default 0
, failing_since timestamptz
, last_failure_at timestamptz
, last_error text
, last_success_at timestamptz
, opened_at timestamptz
, pause interval
, retry_at timestamptz
, disabled_at timestamptz
, disabled_reason text
) with (fillfactor = 50);
comment on table agent.push_state is 'how the endpoint does, as those who push have seen it';
comment on column agent.push_state.epoch is 'of its changes; who records one has to know the one before';
comment on column agent.push_state.failures is 'in a row';
comment on column agent.push_state.failing_since is 'the first of these failures';
comment on column agent.push_state.opened_at is 'when the breaker has opened; null: it is closed';
comment on column agent.push_state.pause is 'while the breaker is open: between the latest probe and the next';
comment on column agent.push_state.retry_at is 'nothing is pushed before; null: no such time';
comment on column agent.push_state.disabled_at is 'null: it is enabled';

create type agent.push_info as
( queue text
, url text
, format text
, header_names text[]
, timeout interval
, max_in_flight int4
, rate_per_second float8
, rate_burst int4
, final_statuses int4[]
, disable_after interval
, status text
, failures int4
, failing_since timestamptz
, last_failure_at timestamptz
, last_error text
, last_success_at timestamptz
, retry_at timestamptz
, disabled_at timestamptz
, disabled_reason text
, secrets jsonb
, version int8
, created_at timestamptz
, updated_at timestamptz
);
comment on type agent.push_info is 'what may be shown of a push';
comment on column agent.push_info.status is 'enabled, held, open or disabled';
comment on column agent.push_info.secrets is 'an array of objects with created_at and live_until, the current one first';

-- Each class of a delivery log has its latest rows, so that many deliveries do not displace the failures.
create table agent.push_delivery_log
( queue text collate "C" not null references agent.push on delete cascade
, class int2 not null
, last_number int8 not null default 0
, dropped int8 not null default 0
, dropped_at timestamptz
, primary key (queue, class)
) with (fillfactor = 50);
comment on table agent.push_delivery_log is 'the logs of the attempts to push the events of a queue, by class';
comment on column agent.push_delivery_log.class is '0: what was delivered; 1: all else';
comment on column agent.push_delivery_log.last_number is 'of its latest row';
comment on column agent.push_delivery_log.dropped is 'attempts that were not logged because there were too many';
comment on column agent.push_delivery_log.dropped_at is 'the latest of them';

create table agent.push_delivery
( queue text collate "C" not null
, class int2 not null
, number int8 not null
, at timestamptz not null
, outcome text not null
, event_id int8 not null
, type text
, attempt int4 not null
, status int4
, ms int8 not null
, error text
, body text
, next_at timestamptz
, primary key (queue, class, number)
, foreign key (queue, class) references agent.push_delivery_log on delete cascade
);
comment on table agent.push_delivery is 'attempts to push an event';
comment on column agent.push_delivery.number is 'counts up without gaps in its class';
comment on column agent.push_delivery.at is 'when the request began';
comment on column agent.push_delivery.outcome is 'delivered, retried, failed, held or lease_lost';
comment on column agent.push_delivery.status is 'of the answer; null: there was none';
comment on column agent.push_delivery.ms is 'how long the request took, in milliseconds';
comment on column agent.push_delivery.error is 'why there was no answer, or no request';
comment on column agent.push_delivery.body is 'the first KiB of the answer';
comment on column agent.push_delivery.next_at is 'when the event is due again; null: not at a known time';
create index push_delivery_at on agent.push_delivery (at);

create table agent.source_delivery_log
( source text collate "C" not null references agent.source on delete cascade
, class int2 not null
, last_number int8 not null default 0
, dropped int8 not null default 0
, dropped_at timestamptz
, primary key (source, class)
) with (fillfactor = 50);
comment on table agent.source_delivery_log is 'the logs of the deliveries of a source, by class';
comment on column agent.source_delivery_log.class is
  '0: what was taken; 1: what its sender was refused; 2: what anybody may have sent, as it had no proof';
comment on column agent.source_delivery_log.last_number is 'of its latest row';
comment on column agent.source_delivery_log.dropped is 'deliveries that were not logged because there were too many';
comment on column agent.source_delivery_log.dropped_at is 'the latest of them';

-- It has nothing of the header: that proves who the sender is.
create table agent.source_delivery
( source text collate "C" not null
, class int2 not null
, number int8 not null
, at timestamptz not null
, result text not null
, code text
, status int4 not null
, ms int8 not null
, address text
, request_id text
, event_id int8
, position int8
, events int4 not null default 0
, key text
, size int8
, body text
, primary key (source, class, number)
, foreign key (source, class) references agent.source_delivery_log on delete cascade
);
comment on table agent.source_delivery is 'deliveries that were answered';
comment on column agent.source_delivery.number is 'counts up without gaps in its class';
comment on column agent.source_delivery.at is 'when the request began';
comment on column agent.source_delivery.result is 'as the metric queued_webhooks_total has it';
comment on column agent.source_delivery.code is 'of what was refused: why';
comment on column agent.source_delivery.status is 'of the answer';
comment on column agent.source_delivery.ms is 'how long the request took, in milliseconds';
comment on column agent.source_delivery.address is 'of the connection';
comment on column agent.source_delivery.event_id is 'the first event of the delivery; null: it was published, or refused';
comment on column agent.source_delivery.position is
  'where the first event of the delivery is in the log; null: it went to a queue, or was refused';
comment on column agent.source_delivery.events is 'how many events it became';
comment on column agent.source_delivery.key is 'of the first event';
comment on column agent.source_delivery.size is 'bytes of the body; null: it was not read';
comment on column agent.source_delivery.body is 'the first KiB of what was refused, without what looks like a secret';
create index source_delivery_at on agent.source_delivery (at);
