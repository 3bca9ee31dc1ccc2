-- Webhooks: who is told of what happens in a project. A delivery is written in the transaction of the change it tells
-- of, by triggers on the audit log and on runs; a server sends it after the commit. What is sent follows from the
-- audit entry or the run, neither of which changes.

CREATE TABLE webhook (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    project_id    bigint NOT NULL REFERENCES project,
    url           text NOT NULL CHECK (length(url) BETWEEN 1 AND 2000),
    description   text NOT NULL DEFAULT '' CHECK (length(description) <= 1000),
    events        text[] NOT NULL CHECK (cardinality(events) > 0),
    state         text NOT NULL DEFAULT 'enabled' CHECK (state IN ('enabled', 'paused', 'disabled', 'removed')),
    state_reason  text,                                  -- why the server disabled it, or a restore paused it
    failing_since timestamptz,                           -- of the first failure since the last success
    created_at    timestamptz NOT NULL DEFAULT now(),
    created_by    text NOT NULL
);
CREATE INDEX webhook_project ON webhook (project_id) WHERE state <> 'removed';

-- What signs: all that have not expired, so that a receiver can change over. Apart, since these are secrets.
CREATE TABLE webhook_secret (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    webhook_id bigint NOT NULL REFERENCES webhook,
    secret     text NOT NULL CHECK (secret ~ '^whsec_[A-Za-z0-9+/]+=*$'),
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz
);
CREATE INDEX webhook_secret_of ON webhook_secret (webhook_id);

CREATE TABLE webhook_delivery (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    webhook_id   bigint NOT NULL REFERENCES webhook,
    project_id   bigint NOT NULL REFERENCES project,
    message      text NOT NULL UNIQUE DEFAULT 'msg_' || replace(gen_random_uuid()::text, '-', ''),
    type         text NOT NULL,
    audit_seq    bigint,                                 -- the entry it tells of
    run_id       bigint,                                 -- or the run; neither: a ping
    state        text NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'delivered', 'failed')),
    attempts     integer NOT NULL DEFAULT 0,             -- all of them
    tries        integer NOT NULL DEFAULT 0,             -- since it was written, or replayed
    next_at      timestamptz NOT NULL DEFAULT now(),
    lease        uuid,                                   -- of the server that sends it now
    lease_until  timestamptz,
    created_at   timestamptz NOT NULL DEFAULT now(),
    delivered_at timestamptz,
    CHECK ((lease IS NULL) = (lease_until IS NULL))
);
CREATE INDEX webhook_delivery_due ON webhook_delivery (webhook_id, next_at) WHERE state = 'pending';
CREATE INDEX webhook_delivery_of ON webhook_delivery (webhook_id, id DESC);
CREATE INDEX webhook_delivery_sending ON webhook_delivery (webhook_id) WHERE lease IS NOT NULL;
CREATE INDEX webhook_delivery_age ON webhook_delivery (created_at);

CREATE TABLE webhook_attempt (
    delivery_id bigint NOT NULL REFERENCES webhook_delivery ON DELETE CASCADE,
    number      integer NOT NULL,
    at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    ms          integer NOT NULL,
    http_status integer,                                 -- NULL: there was no answer
    address     text,                                    -- of the peer, where there was a connection
    error       text,
    PRIMARY KEY (delivery_id, number)
);

-- A worker may append to the log whatever it likes, and what is sent is signed: what it says there is told to nobody.
-- Nothing that is told is its to do but the end of a run, which comes of the row (and so is not told of the entry too).
CREATE FUNCTION webhook_audit() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = mlopt, pg_temp AS $$
DECLARE
    happened text;
BEGIN
    IF NOT EXISTS (SELECT 1 FROM webhook WHERE project_id = NEW.project_id AND state <> 'removed') OR
       NOT (pg_has_role(session_user, 'mlopt_server', 'MEMBER') OR
            pg_has_role(session_user, (SELECT relowner FROM pg_class WHERE oid = TG_RELID), 'MEMBER')) THEN
        RETURN NULL;
    END IF;
    happened := convert_from(NEW.body, 'UTF8')::json ->> 'action';
    INSERT INTO webhook_delivery (webhook_id, project_id, type, audit_seq)
        SELECT id, project_id, happened, NEW.seq FROM webhook
        WHERE project_id = NEW.project_id AND state = 'enabled' AND happened = ANY (events) AND happened <> 'run.finish';
    RETURN NULL;
END $$;
CREATE TRIGGER webhook_audit AFTER INSERT ON audit FOR EACH ROW EXECUTE FUNCTION webhook_audit();

CREATE FUNCTION webhook_run() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = mlopt, pg_temp AS $$
BEGIN
    INSERT INTO webhook_delivery (webhook_id, project_id, type, run_id)
        SELECT id, project_id, 'run.finish', NEW.id FROM webhook
        WHERE project_id = NEW.project AND state = 'enabled' AND 'run.finish' = ANY (events);
    RETURN NULL;
END $$;
CREATE TRIGGER webhook_run AFTER UPDATE ON run FOR EACH ROW
    WHEN (NEW.finished_at IS NOT NULL AND OLD.finished_at IS NULL) EXECUTE FUNCTION webhook_run();

REVOKE ALL ON FUNCTION webhook_audit(), webhook_run() FROM PUBLIC;
GRANT SELECT, INSERT ON webhook, webhook_secret, webhook_attempt TO mlopt_server;
GRANT SELECT, INSERT, DELETE ON webhook_delivery TO mlopt_server;
GRANT UPDATE (url, description, events, state, state_reason, failing_since) ON webhook TO mlopt_server;
GRANT UPDATE (expires_at) ON webhook_secret TO mlopt_server;
GRANT DELETE ON webhook_secret TO mlopt_server;
GRANT UPDATE (state, attempts, tries, next_at, lease, lease_until, delivered_at) ON webhook_delivery TO mlopt_server;
