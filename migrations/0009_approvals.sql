-- Approvals, quarantine, and the right to roll back.

-- Of exactly what was shown: release, evidence, policies and generation. What changes any of them voids it.
CREATE TABLE approval (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    model_id   bigint NOT NULL REFERENCES model,
    stage      text NOT NULL,
    generation bigint NOT NULL,
    content    digest NOT NULL,                          -- of the release, as release.content
    shown      digest NOT NULL,
    role       text NOT NULL,                            -- of who gave it, then
    token_id   bigint NOT NULL,
    actor      text NOT NULL,
    via        text NOT NULL,
    note       text NOT NULL,
    request_id text NOT NULL,
    at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    audit_seq  bigint NOT NULL
);
CREATE INDEX approval_shown ON approval (model_id, shown);

CREATE TABLE approval_end (
    approval_id bigint PRIMARY KEY REFERENCES approval,
    actor       text NOT NULL,
    reason      text NOT NULL,
    at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    audit_seq   bigint NOT NULL
);

-- What was rolled back, until somebody lets it out.
CREATE TABLE quarantine (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    model_id   bigint NOT NULL REFERENCES model,
    release_id bigint NOT NULL REFERENCES release,
    move_id    bigint NOT NULL REFERENCES stage_move,    -- the rollback
    actor      text NOT NULL,
    reason     text NOT NULL,
    at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    audit_seq  bigint NOT NULL
);
CREATE INDEX quarantine_model ON quarantine (model_id, id DESC);

CREATE TABLE quarantine_end (
    quarantine_id bigint PRIMARY KEY REFERENCES quarantine,
    actor         text NOT NULL,
    reason        text NOT NULL,
    at            timestamptz NOT NULL DEFAULT clock_timestamp(),
    audit_seq     bigint NOT NULL
);

DO $$
DECLARE
    t text;
BEGIN
    FOREACH t IN ARRAY ARRAY['approval', 'approval_end', 'quarantine', 'quarantine_end'] LOOP
        EXECUTE format('CREATE TRIGGER history_row BEFORE UPDATE OR DELETE ON %I FOR EACH ROW '
                       'EXECUTE FUNCTION refuse_change()', t);
        EXECUTE format('CREATE TRIGGER history_table BEFORE TRUNCATE ON %I FOR EACH STATEMENT '
                       'EXECUTE FUNCTION refuse_change()', t);
    END LOOP;
END $$;

-- Rolling back is a right of its own: NULL: as the role says (promoter and above); else granted or withheld.
ALTER TABLE token ADD COLUMN may_rollback boolean;

GRANT SELECT, INSERT ON approval, approval_end, quarantine, quarantine_end TO mlopt_server;
