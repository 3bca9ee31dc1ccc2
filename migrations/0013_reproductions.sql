-- Derivations that were run again to see whether the same bytes come out, and what people say of versions and releases.

-- A run that re-makes this variant of its version; its jobs' specs say which derivations, and what they made.
ALTER TABLE run ADD COLUMN reproduces object_name;

CREATE TABLE reproduction (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    project_id    bigint NOT NULL REFERENCES project,
    derivation    digest NOT NULL REFERENCES derivation,
    parent        digest NOT NULL REFERENCES blob,       -- the model that it worked on
    artifact      digest NOT NULL REFERENCES blob,       -- what it had made
    made          digest NOT NULL REFERENCES blob,       -- what came out now
    attestation   bigint NOT NULL REFERENCES attestation, -- the worker's signed statement of it
    machine_class text NOT NULL,
    program       text NOT NULL,                         -- name and version of what ran it
    run_id        bigint NOT NULL,
    job_id        bigint NOT NULL UNIQUE,
    requested_by  text NOT NULL,
    at            timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX reproduction_artifact ON reproduction (project_id, artifact, parent, id DESC);

-- Never changed, never removed: who was wrong says so in another one.
CREATE TABLE comment (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    model_id   bigint NOT NULL REFERENCES model,
    version_id bigint REFERENCES version,
    release_id bigint REFERENCES release,
    text       text NOT NULL CHECK (length(text) BETWEEN 1 AND 10000),
    actor      text NOT NULL,
    via        text NOT NULL,
    at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    audit_seq  bigint NOT NULL,
    CHECK (num_nonnulls(version_id, release_id) = 1)
);
CREATE INDEX comment_version ON comment (version_id, id DESC) WHERE version_id IS NOT NULL;
CREATE INDEX comment_release ON comment (release_id, id DESC) WHERE release_id IS NOT NULL;

DO $$
DECLARE
    t text;
BEGIN
    FOREACH t IN ARRAY ARRAY['reproduction', 'comment'] LOOP
        EXECUTE format('CREATE TRIGGER history_row BEFORE UPDATE OR DELETE ON %I FOR EACH ROW '
                       'EXECUTE FUNCTION refuse_change()', t);
        EXECUTE format('CREATE TRIGGER history_table BEFORE TRUNCATE ON %I FOR EACH STATEMENT '
                       'EXECUTE FUNCTION refuse_change()', t);
    END LOOP;
END $$;

-- Workers run; the server compares, and takes comments.
GRANT SELECT ON reproduction, comment TO mlopt_server;
GRANT INSERT ON comment TO mlopt_server;
GRANT SELECT, INSERT ON reproduction TO mlopt_worker;
