-- The ledger: a git repository per project with a commit per promotion, rollback, approval and policy change.
-- An event is written in the transaction of the change it tells of; a server turns events into signed commits, in the
-- order of the audit chain. What is here is the ledger; a repository on disk is a cache that is made from it.

-- Public keys; the private ones are files of those that sign. Rotation retires a key: what it signed before stays
-- valid. Revocation says from when on its signatures are worth nothing.
CREATE TABLE signing_key (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    fingerprint  text NOT NULL UNIQUE CHECK (fingerprint ~ '^SHA256:[A-Za-z0-9+/]{43}$'),
    public_key   digest NOT NULL UNIQUE,                 -- Ed25519: 32 bytes
    comment      text NOT NULL,
    valid_from   timestamptz NOT NULL,                   -- whole seconds, as in git
    retired_at   timestamptz,
    revoked_from timestamptz,
    endorser     bigint REFERENCES signing_key,          -- the key that it took the place of
    endorsement  text,                                   -- that key's signature of this one (SSHSIG)
    created_by   text NOT NULL,
    CHECK ((endorser IS NULL) = (endorsement IS NULL))
);

-- A retirement is final, and a revocation can only become earlier.
CREATE FUNCTION signing_key_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (OLD.retired_at IS NOT NULL AND NEW.retired_at IS DISTINCT FROM OLD.retired_at) OR
       (OLD.revoked_from IS NOT NULL AND (NEW.revoked_from IS NULL OR NEW.revoked_from > OLD.revoked_from)) THEN
        RAISE EXCEPTION 'a key that was retired or revoked stays so' USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER signing_key_change BEFORE UPDATE ON signing_key FOR EACH ROW EXECUTE FUNCTION signing_key_change();

CREATE TABLE ledger_event (
    project_id bigint NOT NULL REFERENCES project,
    audit_seq  bigint NOT NULL,
    files      text NOT NULL,                            -- canonical JSON: [{path, text}], text null: removed
    PRIMARY KEY (project_id, audit_seq)
);

CREATE TABLE ledger_commit (
    project_id bigint NOT NULL REFERENCES project,
    n          bigint NOT NULL,                          -- 1, 2, 3…: the order of the audit chain
    audit_seq  bigint NOT NULL,
    id         bytea NOT NULL CHECK (octet_length(id) = 20),
    body       bytea NOT NULL,                           -- the commit object, signature and all
    files      text NOT NULL,                            -- what it changes, as above; trees follow from all of them
    PRIMARY KEY (project_id, n),
    UNIQUE (project_id, audit_seq),
    UNIQUE (project_id, id),
    FOREIGN KEY (project_id, audit_seq) REFERENCES ledger_event
);

-- Where the ledger stands. state: canonical JSON {path: blob id} of the last commit's files.
CREATE TABLE ledger_head (
    project_id bigint PRIMARY KEY REFERENCES project,
    n          bigint NOT NULL,
    audit_seq  bigint NOT NULL,
    id         bytea NOT NULL,
    state      text NOT NULL
);

-- The only way into the ledger for the service's roles: neither a gap nor another order can come of it.
CREATE FUNCTION ledger_commit_append(project bigint, number bigint, seq bigint, commit_id bytea, content bytea,
                                     changes text, files_now text) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = mlopt, pg_temp AS $$
DECLARE
    head ledger_head%ROWTYPE;
BEGIN
    INSERT INTO ledger_head VALUES (project, 0, 0, '', '{}') ON CONFLICT DO NOTHING;
    SELECT * INTO head FROM ledger_head WHERE project_id = project FOR UPDATE;
    IF number <> head.n + 1 OR seq IS DISTINCT FROM (SELECT min(audit_seq) FROM ledger_event
                                       WHERE project_id = project AND audit_seq > head.audit_seq) THEN
        RAISE EXCEPTION 'commit % of ledger % is not the next one', number, project
            USING ERRCODE = 'serialization_failure';
    END IF;
    INSERT INTO ledger_commit VALUES (project, number, seq, commit_id, content, changes);
    UPDATE ledger_head SET n = number, audit_seq = seq, id = commit_id, state = files_now WHERE project_id = project;
    RETURN number;
END $$;

DO $$
DECLARE
    t text;
BEGIN
    FOREACH t IN ARRAY ARRAY['ledger_event', 'ledger_commit'] LOOP
        EXECUTE format('CREATE TRIGGER history_row BEFORE UPDATE OR DELETE ON %I FOR EACH ROW '
                       'EXECUTE FUNCTION refuse_change()', t);
        EXECUTE format('CREATE TRIGGER history_table BEFORE TRUNCATE ON %I FOR EACH STATEMENT '
                       'EXECUTE FUNCTION refuse_change()', t);
    END LOOP;
    EXECUTE 'CREATE TRIGGER history_row BEFORE DELETE ON signing_key FOR EACH ROW EXECUTE FUNCTION refuse_change()';
    EXECUTE 'CREATE TRIGGER history_table BEFORE TRUNCATE ON signing_key FOR EACH STATEMENT '
            'EXECUTE FUNCTION refuse_change()';
END $$;

REVOKE ALL ON FUNCTION ledger_commit_append(bigint, bigint, bigint, bytea, bytea, text, text) FROM PUBLIC;
GRANT SELECT ON signing_key, ledger_event, ledger_commit, ledger_head TO mlopt_server;
GRANT INSERT ON signing_key, ledger_event TO mlopt_server;
GRANT UPDATE (retired_at, revoked_from) ON signing_key TO mlopt_server;
GRANT EXECUTE ON FUNCTION ledger_commit_append(bigint, bigint, bigint, bytea, bytea, text, text) TO mlopt_server;
