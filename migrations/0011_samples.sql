-- Which samples a dataset has, so that a gate can tell data that judged from data that chose.

CREATE TABLE dataset_samples (
    dataset digest PRIMARY KEY,                          -- manifest digest
    count   bigint NOT NULL CHECK (count > 0),
    hashes  bytea NOT NULL,                              -- the first 16 bytes of each sample's SHA-256, sorted
    at      timestamptz NOT NULL DEFAULT now(),
    CHECK (octet_length(hashes) = count * 16)
);
CREATE TRIGGER history_row BEFORE UPDATE OR DELETE ON dataset_samples FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER history_table BEFORE TRUNCATE ON dataset_samples FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

-- Workers open datasets; the server compares.
GRANT SELECT ON dataset_samples TO mlopt_server;
GRANT SELECT, INSERT ON dataset_samples TO mlopt_worker;
