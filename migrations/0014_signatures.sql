-- What a worker read in bytes: of a model what it takes and gives, of a label file its labels. It follows from
-- the bytes alone, whatever version or project they belong to. What an uploader declares is in its manifest.

CREATE TABLE signature (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    blob     digest NOT NULL REFERENCES blob,
    document text NOT NULL CHECK (length(document) <= 4194304), -- canonical JSON
    digest   digest NOT NULL,                            -- of the document
    worker   text NOT NULL,                              -- its name: host, process, start
    job_id   bigint NOT NULL,
    at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (blob, digest)
);

CREATE TRIGGER history_row BEFORE UPDATE OR DELETE ON signature FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER history_table BEFORE TRUNCATE ON signature FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

-- Workers read; the server compares.
GRANT SELECT ON signature TO mlopt_server;
GRANT SELECT, INSERT ON signature TO mlopt_worker;
