-- How long idempotency keys stand: see agent_private.key_stands.
alter table agent.idempotency
  add key_until text                        -- claimed or finished: it stands until its event is; null: until expires_at
;
