-- Reports: what a run's step explained of an artifact. Observations beside a variant, made afresh by each run; the
-- same models and data give the same bytes, so that runs share them.

CREATE TABLE report (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    project_id bigint NOT NULL REFERENCES project,
    artifact   digest NOT NULL REFERENCES blob,       -- the model that is explained
    blob       digest NOT NULL REFERENCES blob,       -- the report's JSON
    size       bigint NOT NULL,
    run_id     bigint,
    job_id     bigint,
    made_at    timestamptz NOT NULL DEFAULT now(),
    UNIQUE (project_id, artifact, blob, run_id)
);

-- Workers make reports; the server shows them.
GRANT SELECT ON report TO mlopt_server;
GRANT SELECT, INSERT ON report TO mlopt_worker;
