-- Compiled plans: what a worker made of a variant for its kind of machine. A cache entry beside the variant,
-- never a form of it: a plan can be dropped at any time, and the variant compiled again.

CREATE TABLE plan (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    project_id    bigint NOT NULL REFERENCES project,
    artifact      digest NOT NULL REFERENCES blob,       -- the model that it is a plan of
    fingerprint   digest NOT NULL,                       -- SHA-256 of the text in `made_for`
    made_for      text NOT NULL,                         -- canonical JSON: machine, engine, shapes, threads, model
    blob          digest NOT NULL REFERENCES blob,       -- the plan's file
    size          bigint NOT NULL,
    signer        text NOT NULL CHECK (signer ~ '^ed25519:[0-9a-f]{64}$'),
    machine_class text NOT NULL,
    run_id        bigint,
    job_id        bigint,
    made_at       timestamptz NOT NULL DEFAULT now(),
    UNIQUE (project_id, artifact, fingerprint, signer)
);

GRANT SELECT, INSERT ON plan TO mlopt_server;
GRANT SELECT, INSERT ON plan TO mlopt_worker;
