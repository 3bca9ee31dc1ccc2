-- The registry: facts only; bytes live in the blob store under their SHA-256.
-- Runs as mlopt_owner with search_path = mlopt. Roles: mlopt_owner owns all of it, mlopt_server serves
-- requests, mlopt_worker records what jobs made. History is insert-only for both.

CREATE DOMAIN digest AS bytea CHECK (octet_length(VALUE) = 32);
CREATE DOMAIN object_name AS text CHECK (VALUE ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$');

CREATE TABLE project (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name        object_name NOT NULL UNIQUE,
    description text NOT NULL DEFAULT '',
    created_at  timestamptz NOT NULL DEFAULT now(),
    created_by  text NOT NULL
);

CREATE TABLE token (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    hash         digest NOT NULL UNIQUE,                 -- SHA-256 of the token's text; the text is never kept
    prefix       text NOT NULL,                          -- its first characters, to tell tokens apart
    name         text NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
    role         text NOT NULL CHECK (role IN ('viewer', 'submitter', 'promoter', 'approver', 'admin')),
    project_id   bigint REFERENCES project,              -- NULL: all projects
    created_at   timestamptz NOT NULL DEFAULT now(),
    created_by   text NOT NULL,
    expires_at   timestamptz,
    revoked_at   timestamptz,
    last_used_at timestamptz
);

-- Bytes that the store holds. Row after bytes, so a row never points at nothing.
CREATE TABLE blob (
    digest     digest PRIMARY KEY,
    size       bigint NOT NULL CHECK (size >= 0),
    created_at timestamptz NOT NULL DEFAULT now()
);

-- Who may see them: a project that uploaded or derived them.
CREATE TABLE project_blob (
    project_id bigint NOT NULL REFERENCES project,
    digest     digest NOT NULL REFERENCES blob,
    created_at timestamptz NOT NULL DEFAULT now(),
    created_by text NOT NULL,
    PRIMARY KEY (project_id, digest)
);
CREATE INDEX project_blob_digest ON project_blob (digest);

CREATE TABLE model (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    project_id   bigint NOT NULL REFERENCES project,
    name         object_name NOT NULL,
    description  text NOT NULL DEFAULT '',
    next_version bigint NOT NULL DEFAULT 1,              -- a counter: MAX + 1 would collide
    next_release bigint NOT NULL DEFAULT 1,
    created_at   timestamptz NOT NULL DEFAULT now(),
    created_by   text NOT NULL,
    UNIQUE (project_id, name)
);

CREATE TABLE version (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    model_id        bigint NOT NULL REFERENCES model,
    number          bigint NOT NULL,
    manifest_digest digest NOT NULL,
    manifest        text NOT NULL,                       -- canonical JSON; manifest_digest is its SHA-256
    description     text NOT NULL DEFAULT '',
    created_at      timestamptz NOT NULL DEFAULT now(),
    created_by      text NOT NULL,
    UNIQUE (model_id, number)
);

CREATE TABLE version_blob (
    version_id bigint NOT NULL REFERENCES version,
    role       text NOT NULL,                            -- 'model' exactly once; 'data', 'document', …
    name       text NOT NULL,
    digest     digest NOT NULL REFERENCES blob,
    size       bigint NOT NULL,
    media_type text NOT NULL,
    PRIMARY KEY (version_id, name)
);
CREATE INDEX version_blob_digest ON version_blob (digest);

-- What a derivation made. The key is the SHA-256 of the canonical text.
CREATE TABLE derivation (
    key       digest PRIMARY KEY,
    canonical text NOT NULL,
    step      text NOT NULL,
    artifact  digest NOT NULL REFERENCES blob,
    size      bigint NOT NULL,
    report    text NOT NULL DEFAULT '{}',                -- JSON: what the step says about it
    made_at   timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX derivation_artifact ON derivation (artifact);

-- A variant's name is a pointer that keeps its history: the latest row of (version, name) wins.
CREATE TABLE variant (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    version_id bigint NOT NULL REFERENCES version,
    name       object_name NOT NULL,
    artifact   digest NOT NULL REFERENCES blob,
    size       bigint NOT NULL,
    derivation digest REFERENCES derivation,             -- NULL: the upload itself
    run_id     bigint,
    named_at   timestamptz NOT NULL DEFAULT now(),
    named_by   text NOT NULL
);
CREATE INDEX variant_name ON variant (version_id, name, id DESC);
CREATE INDEX variant_artifact ON variant (artifact);

CREATE TABLE dataset (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    project_id   bigint NOT NULL REFERENCES project,
    name         object_name NOT NULL,
    description  text NOT NULL DEFAULT '',
    next_version bigint NOT NULL DEFAULT 1,
    created_at   timestamptz NOT NULL DEFAULT now(),
    created_by   text NOT NULL,
    UNIQUE (project_id, name)
);

CREATE TABLE dataset_version (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    dataset_id      bigint NOT NULL REFERENCES dataset,
    number          bigint NOT NULL,
    manifest_digest digest NOT NULL,                     -- the dataset's digest in derivations and evidence
    manifest        text NOT NULL,
    metadata        text NOT NULL DEFAULT '{}',          -- JSON: normalize, arrays, …
    description     text NOT NULL DEFAULT '',
    created_at      timestamptz NOT NULL DEFAULT now(),
    created_by      text NOT NULL,
    UNIQUE (dataset_id, number)
);
CREATE INDEX dataset_version_manifest ON dataset_version (manifest_digest);

CREATE TABLE dataset_blob (
    dataset_version_id bigint NOT NULL REFERENCES dataset_version,
    role               text NOT NULL,
    name               text NOT NULL,
    digest             digest NOT NULL REFERENCES blob,
    size               bigint NOT NULL,
    media_type         text NOT NULL,
    PRIMARY KEY (dataset_version_id, name)
);
CREATE INDEX dataset_blob_digest ON dataset_blob (digest);

-- child was made from (or with, or judged on) parent. Digests of artifacts or of dataset manifests.
CREATE TABLE lineage_edge (
    project_id bigint NOT NULL REFERENCES project,
    child      digest NOT NULL,
    parent     digest NOT NULL,
    kind       text NOT NULL CHECK (kind IN ('derived-from', 'calibrated-with', 'selected-with', 'evaluated-on')),
    derivation digest REFERENCES derivation,
    run_id     bigint,
    at         timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (project_id, child, parent, kind)
);
CREATE INDEX lineage_edge_parent ON lineage_edge (project_id, parent);

CREATE TABLE evidence (
    id               bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    project_id       bigint NOT NULL REFERENCES project,
    artifact         digest NOT NULL REFERENCES blob,
    dataset          digest,                             -- manifest digest; NULL: a load, not data
    metric           text NOT NULL,
    params           text NOT NULL DEFAULT '{}',         -- canonical JSON: batch, threads, …
    unit             text NOT NULL,
    value            double precision NOT NULL,
    low              double precision,
    high             double precision,
    n                bigint,
    baseline         digest REFERENCES blob,             -- compared with this artifact, on the same samples
    comparison       text CHECK (comparison IN ('difference', 'ratio')),
    comparison_value double precision,
    comparison_low   double precision,
    comparison_high  double precision,
    protocol         text NOT NULL,
    engine           text NOT NULL,
    machine_class    text NOT NULL,
    machine          text NOT NULL DEFAULT '{}',
    samples          digest REFERENCES blob,
    data_role        text CHECK (data_role IN ('calibrate', 'select', 'evaluate')),
    run_id           bigint,
    job_id           bigint,
    at               timestamptz NOT NULL DEFAULT now(),
    CHECK ((baseline IS NULL) = (comparison IS NULL))
);
CREATE INDEX evidence_artifact ON evidence (project_id, artifact, metric, id DESC);
CREATE INDEX evidence_run ON evidence (run_id) WHERE run_id IS NOT NULL;

-- What a stage can hold: a version with one variant per target. The same content is the same release, so
-- that what was tried in staging is, by number, what goes to production.
CREATE TABLE release (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    model_id   bigint NOT NULL REFERENCES model,
    seq        bigint NOT NULL,
    version_id bigint NOT NULL REFERENCES version,
    content    digest NOT NULL,                          -- of the canonical JSON of version, targets, digests
    created_at timestamptz NOT NULL DEFAULT now(),
    created_by text NOT NULL,
    UNIQUE (model_id, seq),
    UNIQUE (model_id, content)
);

CREATE TABLE release_variant (
    release_id bigint NOT NULL REFERENCES release,
    target     text NOT NULL,
    variant    object_name NOT NULL,
    artifact   digest NOT NULL REFERENCES blob,
    size       bigint NOT NULL,
    PRIMARY KEY (release_id, target)
);

-- The promotion log. `replaced` is the promotion that was in force before this one; a rollback puts the
-- promotion `restores` back in force, so that a second rollback goes one further.
CREATE TABLE stage_move (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    model_id     bigint NOT NULL REFERENCES model,
    stage        text NOT NULL,
    generation   bigint NOT NULL,                        -- of the pointer, after the move
    kind         text NOT NULL CHECK (kind IN ('promotion', 'rollback')),
    from_release bigint REFERENCES release,
    to_release   bigint NOT NULL REFERENCES release,
    replaced     bigint REFERENCES stage_move,
    restores     bigint REFERENCES stage_move,
    actor        text NOT NULL,
    via          text NOT NULL,
    reason       text NOT NULL,
    request_id   text NOT NULL,
    at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    audit_seq    bigint NOT NULL,
    UNIQUE (model_id, stage, generation),
    CHECK ((kind = 'rollback') = (restores IS NOT NULL))
);

CREATE TABLE stage (
    model_id   bigint NOT NULL REFERENCES model,
    name       text NOT NULL CHECK (name IN ('staging', 'production')),
    release_id bigint REFERENCES release,
    move_id    bigint REFERENCES stage_move,             -- the promotion in force
    generation bigint NOT NULL DEFAULT 0,                -- the ETag
    moved_at   timestamptz,
    PRIMARY KEY (model_id, name)
);

-- A hash chain per project; project 0 is the installation's own. body holds the exact bytes that were hashed.
CREATE TABLE audit (
    project_id bigint NOT NULL,
    seq        bigint NOT NULL,
    prev_hash  digest NOT NULL,
    body       bytea NOT NULL,
    hash       digest NOT NULL,
    PRIMARY KEY (project_id, seq)
);

CREATE TABLE audit_head (
    project_id bigint PRIMARY KEY,
    seq        bigint NOT NULL,
    hash       digest NOT NULL
);
INSERT INTO audit_head VALUES (0, 0, decode(repeat('00', 32), 'hex'));

CREATE FUNCTION project_audit_head() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = mlopt, pg_temp AS $$
BEGIN
    INSERT INTO audit_head VALUES (NEW.id, 0, decode(repeat('00', 32), 'hex'));
    RETURN NEW;
END $$;
CREATE TRIGGER project_audit_head AFTER INSERT ON project FOR EACH ROW EXECUTE FUNCTION project_audit_head();

-- The only way into the log for the service's roles: they can neither choose a hash nor move the head.
CREATE FUNCTION audit_append(chain bigint, entry bytea) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = mlopt, pg_temp AS $$
DECLARE
    head audit_head%ROWTYPE;
    link bytea;
BEGIN
    SELECT * INTO head FROM audit_head WHERE project_id = chain FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'no audit chain %', chain USING ERRCODE = 'foreign_key_violation';
    END IF;
    link := sha256(head.hash || int8send(head.seq + 1) || entry);
    INSERT INTO audit VALUES (chain, head.seq + 1, head.hash, entry, link);
    UPDATE audit_head SET seq = head.seq + 1, hash = link WHERE project_id = chain;
    RETURN head.seq + 1;
END $$;

-- Even a role that was granted too much changes no history: only the tables' owner can.
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_user = (SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = TG_RELID) THEN
        RETURN CASE TG_OP WHEN 'UPDATE' THEN NEW ELSE OLD END;
    END IF;
    RAISE EXCEPTION '% on % is refused: it is history', TG_OP, TG_TABLE_NAME
        USING ERRCODE = 'insufficient_privilege';
END $$;

DO $$
DECLARE
    t text;
BEGIN
    FOREACH t IN ARRAY ARRAY['audit', 'stage_move', 'release', 'release_variant', 'version', 'version_blob',
                             'dataset_version', 'dataset_blob', 'variant', 'derivation', 'lineage_edge',
                             'evidence'] LOOP
        EXECUTE format('CREATE TRIGGER history_row BEFORE UPDATE OR DELETE ON %I FOR EACH ROW '
                       'EXECUTE FUNCTION refuse_change()', t);
        EXECUTE format('CREATE TRIGGER history_table BEFORE TRUNCATE ON %I FOR EACH STATEMENT '
                       'EXECUTE FUNCTION refuse_change()', t);
    END LOOP;
END $$;

-- Idempotency-Key: the answer that a repeated request gets again.
CREATE TABLE idempotency (
    token_id    bigint NOT NULL,
    key         text NOT NULL CHECK (length(key) BETWEEN 1 AND 255),
    request     digest NOT NULL,
    http_status integer,
    response    text,
    created_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (token_id, key)
);
CREATE INDEX idempotency_age ON idempotency (created_at);

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA mlopt FROM PUBLIC;
GRANT USAGE ON SCHEMA mlopt TO mlopt_server, mlopt_worker;
GRANT SELECT ON ALL TABLES IN SCHEMA mlopt TO mlopt_server;
GRANT INSERT ON project, token, blob, project_blob, model, version, version_blob, variant, dataset,
    dataset_version, dataset_blob, derivation, lineage_edge, evidence, release, release_variant, stage_move,
    stage, idempotency TO mlopt_server;
GRANT UPDATE (next_version, next_release) ON model TO mlopt_server;
GRANT UPDATE (next_version) ON dataset TO mlopt_server;
GRANT UPDATE (revoked_at, last_used_at) ON token TO mlopt_server;
GRANT UPDATE (release_id, move_id, generation, moved_at) ON stage TO mlopt_server;
GRANT UPDATE (http_status, response) ON idempotency TO mlopt_server;
GRANT DELETE ON idempotency TO mlopt_server;
GRANT SELECT ON schema_migration, project, blob, project_blob, model, version, version_blob, variant, dataset,
    dataset_version, dataset_blob, derivation, lineage_edge, evidence TO mlopt_worker;
GRANT INSERT ON blob, project_blob, derivation, variant, lineage_edge, evidence TO mlopt_worker;
GRANT EXECUTE ON FUNCTION audit_append(bigint, bytea) TO mlopt_server, mlopt_worker;
