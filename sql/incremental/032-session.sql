-- agent_private.session: a log-in of a person in a browser, by a key. Nothing in it lets anybody in: who has no token can use none of it, nor check guesses of
-- a key with it. See docs/access.md.
create table agent_private.session
( token_hash bytea not null                 -- SHA-256 of its token
, proof bytea not null                      -- HMAC-SHA256, under the token, of the SHA-256 of the key's text that it was begun with
, key_id text collate "C" not null          -- of agent.api_key; empty: the key of the configuration, which is stored nowhere
, place int8 not null                       -- see agent_private.session_place
, created_at timestamptz not null default clock_timestamp()
, expires_at timestamptz not null
, constraint session_pkey primary key (token_hash)
, constraint session_lengths check (octet_length(token_hash) = 32 and octet_length(proof) = 32 and length(key_id) in (0, 8))
);
create index session_by_key on agent_private.session (key_id, created_at);
create index session_expires_at on agent_private.session (expires_at);
