-- Policies: what a promotion must meet. A revision never changes; the latest one of a scope is in force.

CREATE TABLE policy (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    project_id bigint NOT NULL REFERENCES project,
    model_id   bigint REFERENCES model,                  -- NULL: the project's own
    revision   bigint NOT NULL CHECK (revision > 0),
    text       text NOT NULL,                            -- YAML, as it was given
    digest     digest NOT NULL,                          -- SHA-256 of the text
    reason     text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    created_by text NOT NULL,
    audit_seq  bigint NOT NULL
);
CREATE UNIQUE INDEX policy_revision ON policy (project_id, coalesce(model_id, 0), revision);
CREATE INDEX policy_latest ON policy (project_id, model_id, revision DESC);

-- What the gates said, with all numbers; a refusal too.
CREATE TABLE gate_decision (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    model_id   bigint NOT NULL REFERENCES model,
    stage      text NOT NULL,
    generation bigint NOT NULL,                          -- of the pointer, before the move
    accepted   boolean NOT NULL,
    content    digest NOT NULL,                          -- of the release, as release.content
    shown      digest NOT NULL,                          -- what an approval of it covers
    document   text NOT NULL,                            -- canonical JSON
    actor      text NOT NULL,
    via        text NOT NULL,
    reason     text NOT NULL,
    request_id text NOT NULL,
    at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    audit_seq  bigint NOT NULL
);
CREATE INDEX gate_decision_model ON gate_decision (model_id, id DESC);

DO $$
DECLARE
    t text;
BEGIN
    FOREACH t IN ARRAY ARRAY['policy', 'gate_decision'] LOOP
        EXECUTE format('CREATE TRIGGER history_row BEFORE UPDATE OR DELETE ON %I FOR EACH ROW '
                       'EXECUTE FUNCTION refuse_change()', t);
        EXECUTE format('CREATE TRIGGER history_table BEFORE TRUNCATE ON %I FOR EACH STATEMENT '
                       'EXECUTE FUNCTION refuse_change()', t);
    END LOOP;
END $$;

GRANT SELECT, INSERT ON policy, gate_decision TO mlopt_server;
