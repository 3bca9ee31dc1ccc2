-- What somebody wants of a worker; the worker looks each second, and says in `state` what it does about it.

ALTER TABLE worker DROP CONSTRAINT worker_state_check,
    ADD CONSTRAINT worker_state_check CHECK (state IN ('active', 'paused', 'draining', 'stopped')),
    ADD COLUMN wish        text NOT NULL DEFAULT 'run' CHECK (wish IN ('run', 'pause', 'drain')),
    ADD COLUMN wish_by     text,
    ADD COLUMN wish_at     timestamptz,
    ADD COLUMN wish_reason text,
    ADD COLUMN lacking     text[] NOT NULL DEFAULT '{}'; -- layers of isolation that its kernel has not

GRANT UPDATE (wish, wish_by, wish_at, wish_reason) ON worker TO mlopt_server;
