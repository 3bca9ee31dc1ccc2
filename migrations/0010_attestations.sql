-- What a worker states of an artifact that it made: an in-toto statement in a signed envelope, kept as it was signed.

CREATE TABLE attestation (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    project_id bigint NOT NULL REFERENCES project,
    artifact   digest NOT NULL REFERENCES blob,
    derivation digest NOT NULL REFERENCES derivation,
    signer     text NOT NULL CHECK (signer ~ '^ed25519:[0-9a-f]{64}$'),
    envelope   text NOT NULL,                            -- JSON (DSSE)
    run_id     bigint,
    job_id     bigint,
    made_at    timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX attestation_job ON attestation (project_id, artifact, derivation, signer, job_id);

CREATE TRIGGER history_row BEFORE UPDATE OR DELETE ON attestation FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER history_table BEFORE TRUNCATE ON attestation FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

-- Workers sign; the server shows.
GRANT SELECT ON attestation TO mlopt_server;
GRANT SELECT, INSERT ON attestation TO mlopt_worker;
