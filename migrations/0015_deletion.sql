-- Deletion, and the removal of bytes that nothing refers to.
--
-- What is deleted stays as a row, with its evidence and lineage, and names its deletion; within the grace period it can
-- be brought back. Then the deletion is purged: it holds no bytes any more, for good. A blob that nothing holds is
-- first marked as removed, which is committed, then its bytes go: a row that is not marked always has its bytes.
-- Rows here are changed by the functions below only, which check what they do.

CREATE TABLE deletion (
    id                 bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    project_id         bigint NOT NULL REFERENCES project,
    kind               text NOT NULL CHECK (kind IN ('model', 'version', 'variant', 'dataset', 'dataset-version')),
    object             text NOT NULL,                    -- as people write it
    target             bigint NOT NULL,                  -- id of the model, version (a variant's too), dataset or its version
    variant            object_name,
    actor              text NOT NULL,
    via                text NOT NULL,
    reason             text NOT NULL,
    request_id         text NOT NULL,
    at                 timestamptz NOT NULL DEFAULT clock_timestamp(),
    purge_after        timestamptz NOT NULL,
    audit_seq          bigint NOT NULL,
    undone_at          timestamptz,                      -- brought back
    undone_by          text,
    undone_reason      text,
    purged_at          timestamptz,
    CHECK ((kind = 'variant') = (variant IS NOT NULL)),
    CHECK (undone_at IS NULL OR purged_at IS NULL)
);
CREATE INDEX deletion_project ON deletion (project_id, id DESC);
CREATE INDEX deletion_open ON deletion (purge_after) WHERE undone_at IS NULL AND purged_at IS NULL;
CREATE TRIGGER history_row BEFORE UPDATE OR DELETE ON deletion FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER history_table BEFORE TRUNCATE ON deletion FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

ALTER TABLE model ADD COLUMN deletion_id bigint REFERENCES deletion;           -- NULL: it is there
ALTER TABLE version ADD COLUMN deletion_id bigint REFERENCES deletion;
ALTER TABLE variant ADD COLUMN deletion_id bigint REFERENCES deletion;
ALTER TABLE dataset ADD COLUMN deletion_id bigint REFERENCES deletion;
ALTER TABLE dataset_version ADD COLUMN deletion_id bigint REFERENCES deletion;
CREATE INDEX version_deletion ON version (deletion_id) WHERE deletion_id IS NOT NULL;
CREATE INDEX variant_deletion ON variant (deletion_id) WHERE deletion_id IS NOT NULL;
CREATE INDEX dataset_version_deletion ON dataset_version (deletion_id) WHERE deletion_id IS NOT NULL;

-- Archived: kept whole, but neither `latest`, nor promoted, nor worked on.
ALTER TABLE version ADD COLUMN archived_at timestamptz;
ALTER TABLE version ADD COLUMN archived_by text;
ALTER TABLE version ADD COLUMN archived_reason text;

-- Which version it is of; NULL in older ones: any of the model.
ALTER TABLE approval ADD COLUMN version_id bigint REFERENCES version;

-- NULL: the bytes are there. `bytes_gone_at` NULL in a removed one: they may still be.
ALTER TABLE blob ADD COLUMN removed_at timestamptz;
ALTER TABLE blob ADD COLUMN removed_why text CHECK (removed_why IN ('collected', 'orphan', 'damaged'));
ALTER TABLE blob ADD COLUMN bytes_gone_at timestamptz;
ALTER TABLE blob ADD CHECK ((removed_at IS NULL) = (removed_why IS NULL));
CREATE INDEX blob_going ON blob (digest) WHERE removed_at IS NOT NULL AND bytes_gone_at IS NULL;

-- When somebody last uploaded, derived or asked for it: its grace begins then.
ALTER TABLE project_blob ADD COLUMN used_at timestamptz NOT NULL DEFAULT now();

CREATE INDEX release_variant_artifact ON release_variant (artifact);
CREATE INDEX evidence_samples ON evidence (samples) WHERE samples IS NOT NULL;
CREATE INDEX reproduction_made ON reproduction (made);
CREATE INDEX plan_blob ON plan (blob);
CREATE INDEX plan_artifact ON plan (artifact);
CREATE INDEX report_blob ON report (blob);
CREATE INDEX report_artifact ON report (artifact);
CREATE INDEX run_active ON run (id) WHERE state IN ('queued', 'running');
CREATE INDEX derivation_decisions ON derivation USING gin ((canonical::jsonb -> 'decisions'));

-- --- what holds a blob's bytes ---------------------------------------------------------------------

-- `ahead`, here and below: as if the deletions whose grace is over were purged; only for saying what would happen.
CREATE FUNCTION is_kept(deletion bigint, ahead boolean) RETURNS boolean LANGUAGE sql STABLE
    SET search_path = mlopt, pg_temp AS $$
    SELECT deletion IS NULL OR EXISTS (SELECT FROM deletion d WHERE d.id = deletion AND d.purged_at IS NULL
                                       AND NOT (ahead AND d.purge_after <= now()))
$$;

-- Evidence, statements and lineage name an artifact and do not hold it: they say what was, and stay. A derivation holds
-- what was decided, which nobody could compute again, and not what it made. Plans and reports of a damaged artifact stay:
-- the right bytes may come back. What a variant came out as when it was made again stays as evidence does: other bytes
-- than before are the proof that they were other ones. `gone`: artifacts that are taken for removed.
CREATE FUNCTION blob_held(d bytea, ahead boolean, gone bytea[]) RETURNS boolean LANGUAGE sql STABLE
    SET search_path = mlopt, pg_temp AS $$
    SELECT EXISTS (SELECT FROM version_blob x JOIN version v ON v.id = x.version_id
                   WHERE x.digest = d AND is_kept(v.deletion_id, ahead))
        OR EXISTS (SELECT FROM dataset_blob x JOIN dataset_version v ON v.id = x.dataset_version_id
                   WHERE x.digest = d AND is_kept(v.deletion_id, ahead))
        OR EXISTS (SELECT FROM variant x JOIN version v ON v.id = x.version_id
                   WHERE x.artifact = d AND is_kept(x.deletion_id, ahead) AND is_kept(v.deletion_id, ahead))
        OR EXISTS (SELECT FROM release_variant x WHERE x.artifact = d)
        OR EXISTS (SELECT FROM evidence x WHERE x.samples = d)
        OR EXISTS (SELECT FROM reproduction x WHERE x.made = d AND x.made <> x.artifact)
        OR EXISTS (SELECT FROM plan x JOIN blob a ON a.digest = x.artifact WHERE x.blob = d AND x.artifact <> ALL (gone)
                   AND (a.removed_at IS NULL OR a.removed_why = 'damaged'))
        OR EXISTS (SELECT FROM report x JOIN blob a ON a.digest = x.artifact WHERE x.blob = d AND x.artifact <> ALL (gone)
                   AND (a.removed_at IS NULL OR a.removed_why = 'damaged'))
        OR EXISTS (SELECT FROM derivation x WHERE x.canonical::jsonb -> 'decisions' ? ('sha256:' || encode(d, 'hex')))
        OR EXISTS (SELECT FROM run r WHERE r.state IN ('queued', 'running') AND
                   (r.source = d OR EXISTS (SELECT FROM job j WHERE j.run = r.id AND (j.input = d OR j.output = d))))
$$;

CREATE FUNCTION blob_idle(d bytea, made timestamptz, grace interval, ahead boolean) RETURNS boolean LANGUAGE sql STABLE
    SET search_path = mlopt, pg_temp AS $$
    SELECT made <= now() - grace
       AND NOT EXISTS (SELECT FROM project_blob l WHERE l.digest = d AND l.used_at > now() - grace)
       AND NOT blob_held(d, ahead, '{}')
$$;

-- --- blobs come and go -----------------------------------------------------------------------------

-- Notes bytes that are in the store, and that the project has them: 'live'. Of a blob that was removed: why, and its row
-- is locked; the caller looks whether the bytes are there, and then calls blob_revive in the same transaction.
-- A share of the lock is held to the end: nobody removes what was just noted.
CREATE FUNCTION blob_note(project bigint, d bytea, bytes bigint, who text) RETURNS text LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = mlopt, pg_temp AS $$
DECLARE
    why text;
BEGIN
    INSERT INTO blob (digest, size) VALUES (d, bytes) ON CONFLICT DO NOTHING;
    PERFORM FROM blob WHERE digest = d AND removed_at IS NULL FOR KEY SHARE;
    IF NOT FOUND THEN
        SELECT removed_why INTO why FROM blob WHERE digest = d FOR UPDATE;
        IF why IS NOT NULL THEN
            RETURN why;
        END IF;
    END IF;
    INSERT INTO project_blob (project_id, digest, created_by) VALUES (project, d, who)
        ON CONFLICT (project_id, digest) DO UPDATE SET used_at = now();
    RETURN 'live';
END $$;

CREATE FUNCTION blob_revive(project bigint, d bytea, who text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = mlopt, pg_temp AS $$
BEGIN
    UPDATE blob SET removed_at = NULL, removed_why = NULL, bytes_gone_at = NULL WHERE digest = d;
    INSERT INTO project_blob (project_id, digest, created_by) VALUES (project, d, who)
        ON CONFLICT (project_id, digest) DO UPDATE SET used_at = now();
END $$;

-- The project asks for it: its grace begins again. False: it has no such blob.
CREATE FUNCTION blob_touch(project bigint, d bytea) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = mlopt, pg_temp AS $$
BEGIN
    PERFORM FROM blob WHERE digest = d AND removed_at IS NULL FOR KEY SHARE;
    IF FOUND THEN
        UPDATE project_blob SET used_at = now() WHERE project_id = project AND digest = d;
    END IF;
    RETURN FOUND;
END $$;

-- Of the candidates, marks what nothing holds and nobody used within the grace; their links go. Rows that somebody is
-- working with are left for the next time. A damaged blob whose bytes were put aside is not missed any more then.
CREATE FUNCTION blob_mark(candidates bytea[], grace interval) RETURNS bytea[] LANGUAGE plpgsql
    SET search_path = mlopt, pg_temp AS $$
DECLARE
    taken bytea[];
    marked bytea[];
BEGIN
    SELECT array_agg(x.digest) INTO taken
        FROM (SELECT b.digest FROM blob b WHERE b.digest = ANY (candidates)
                 AND (b.removed_at IS NULL OR (b.removed_why = 'damaged' AND b.bytes_gone_at IS NOT NULL))
                 AND blob_idle(b.digest, b.created_at, grace, false) ORDER BY b.digest FOR UPDATE SKIP LOCKED) x;
    -- again: what was committed between the look and the lock is seen by a new statement only
    WITH gone AS (
        UPDATE blob b SET removed_at = now(), removed_why = 'collected' WHERE b.digest = ANY (taken)
            AND (b.removed_at IS NULL OR (b.removed_why = 'damaged' AND b.bytes_gone_at IS NOT NULL))
            AND blob_idle(b.digest, b.created_at, grace, false) RETURNING b.digest
    ), unlinked AS (
        DELETE FROM project_blob l USING gone g WHERE l.digest = g.digest
    ) SELECT array_agg(g.digest::bytea) INTO marked FROM gone g;
    RETURN coalesce(marked, '{}');
END $$;

CREATE FUNCTION blob_attached(artifacts bytea[]) RETURNS bytea[] LANGUAGE sql STABLE SET search_path = mlopt, pg_temp AS $$
    SELECT ARRAY(SELECT blob::bytea FROM plan WHERE artifact = ANY (artifacts)
                 UNION SELECT blob::bytea FROM report WHERE artifact = ANY (artifacts))
$$;

-- Marks what can go of the blobs behind a digest up to another, and what was held by those alone: their plans and reports.
-- `bytes`: that will go; those of a damaged one went before.
CREATE FUNCTION blob_collect(behind bytea, upto bytea, grace interval)
    RETURNS TABLE (collected bytea, bytes bigint) LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = mlopt, pg_temp AS $$
DECLARE
    marked bytea[];
BEGIN
    marked := blob_mark(ARRAY(SELECT b.digest::bytea FROM blob b WHERE b.digest > behind AND b.digest <= upto), grace);
    IF cardinality(marked) > 0 THEN
        marked := marked || blob_mark(blob_attached(marked), grace);
    END IF;
    RETURN QUERY SELECT b.digest::bytea, CASE WHEN b.bytes_gone_at IS NULL THEN b.size ELSE 0 END
        FROM blob b WHERE b.digest = ANY (marked) ORDER BY 1;
END $$;

-- What blob_collect would mark once the deletions whose grace is over are purged. Changes and locks nothing.
CREATE FUNCTION blob_collectable(behind bytea, upto bytea, grace interval)
    RETURNS TABLE (collected bytea, bytes bigint) LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path = mlopt, pg_temp AS $$
DECLARE
    idle bytea[];
BEGIN
    idle := ARRAY(SELECT b.digest::bytea FROM blob b WHERE b.digest > behind AND b.digest <= upto
                  AND (b.removed_at IS NULL OR (b.removed_why = 'damaged' AND b.bytes_gone_at IS NOT NULL))
                  AND blob_idle(b.digest, b.created_at, grace, true));
    RETURN QUERY SELECT b.digest::bytea, CASE WHEN b.bytes_gone_at IS NULL THEN b.size ELSE 0 END
        FROM blob b WHERE b.digest = ANY (idle) OR (b.digest = ANY (blob_attached(idle)) AND b.removed_at IS NULL
            AND b.created_at <= now() - grace AND NOT blob_held(b.digest, true, idle)
            AND NOT EXISTS (SELECT FROM project_blob l WHERE l.digest = b.digest AND l.used_at > now() - grace))
        ORDER BY 1;
END $$;

-- Bytes without a row, or with that of a removed blob whose bytes were gone, get the row of a blob that is being removed,
-- so that whoever brings the same bytes now meets it. False: they are somebody's.
CREATE FUNCTION blob_orphan(d bytea, bytes bigint) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = mlopt, pg_temp AS $$
BEGIN
    INSERT INTO blob (digest, size, removed_at, removed_why) VALUES (d, bytes, now(), 'orphan')
        ON CONFLICT (digest) DO UPDATE SET bytes_gone_at = NULL
            WHERE blob.removed_at IS NOT NULL AND blob.removed_why <> 'damaged';
    RETURN FOUND;
END $$;

-- Removed ones whose bytes may still be there, locked: until the transaction ends nobody revives them.
CREATE FUNCTION blob_going(behind bytea, most integer) RETURNS TABLE (going bytea, bytes bigint)
    LANGUAGE sql SECURITY DEFINER SET search_path = mlopt, pg_temp AS $$
    SELECT b.digest::bytea, b.size FROM blob b WHERE b.digest > behind AND b.removed_at IS NOT NULL
        AND b.bytes_gone_at IS NULL AND b.removed_why <> 'damaged' ORDER BY b.digest LIMIT most FOR UPDATE SKIP LOCKED
$$;
CREATE FUNCTION blob_gone(d bytea) RETURNS void LANGUAGE sql SECURITY DEFINER SET search_path = mlopt, pg_temp AS $$
    UPDATE blob SET bytes_gone_at = now() WHERE digest = d AND removed_at IS NOT NULL
$$;

-- Bytes that were found to be others than they should be. What refers to the blob stays; the right bytes heal it.
CREATE FUNCTION blob_damaged(d bytea) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = mlopt, pg_temp AS $$
BEGIN
    UPDATE blob SET removed_at = now(), removed_why = 'damaged', bytes_gone_at = NULL
        WHERE digest = d AND removed_at IS NULL;
    RETURN FOUND;
END $$;
-- One that is damaged, locked: the caller moves its bytes away, or finds them healthy again.
CREATE FUNCTION blob_damaged_lock(d bytea) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = mlopt, pg_temp AS $$
BEGIN
    PERFORM FROM blob WHERE digest = d AND removed_why = 'damaged' FOR UPDATE;
    RETURN FOUND;
END $$;
CREATE FUNCTION blob_healed(d bytea) RETURNS void LANGUAGE sql SECURITY DEFINER SET search_path = mlopt, pg_temp AS $$
    UPDATE blob SET removed_at = NULL, removed_why = NULL, bytes_gone_at = NULL
        WHERE digest = d AND removed_why = 'damaged'
$$;

-- --- nothing new refers to what is gone ----------------------------------------------------------------

CREATE FUNCTION require_bytes(d bytea) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = mlopt, pg_temp AS $$
BEGIN
    PERFORM FROM blob WHERE digest = d AND removed_at IS NULL FOR KEY SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the bytes of sha256:% are not in the store: upload them again', encode(d, 'hex')
            USING ERRCODE = 'foreign_key_violation';
    END IF;
END $$;
CREATE FUNCTION require_version(v bigint) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = mlopt, pg_temp AS $$
BEGIN
    PERFORM FROM version WHERE id = v AND deletion_id IS NULL FOR KEY SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the version was deleted' USING ERRCODE = 'foreign_key_violation';
    END IF;
END $$;
CREATE FUNCTION needs_digest() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = mlopt, pg_temp AS $$ BEGIN PERFORM require_bytes(NEW.digest); RETURN NEW; END $$;
CREATE FUNCTION needs_artifact() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = mlopt, pg_temp AS $$ BEGIN PERFORM require_bytes(NEW.artifact); RETURN NEW; END $$;
CREATE FUNCTION needs_blob() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = mlopt, pg_temp AS $$ BEGIN PERFORM require_bytes(NEW.blob); RETURN NEW; END $$;
CREATE FUNCTION needs_samples() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = mlopt, pg_temp AS $$
BEGIN
    IF NEW.samples IS NOT NULL THEN
        PERFORM require_bytes(NEW.samples);
    END IF;
    RETURN NEW;
END $$;
CREATE FUNCTION needs_version() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = mlopt, pg_temp AS $$
BEGIN
    IF NEW.version_id IS NOT NULL THEN
        PERFORM require_version(NEW.version_id);
    END IF;
    RETURN NEW;
END $$;
CREATE FUNCTION run_needs() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = mlopt, pg_temp AS $$
DECLARE
    data json;
BEGIN
    PERFORM require_version(NEW.version);
    PERFORM require_bytes(NEW.source);
    FOR data IN SELECT value FROM json_each(NEW.datasets::json) LOOP
        PERFORM FROM dataset_version WHERE id = (data ->> 'id')::bigint AND deletion_id IS NULL FOR KEY SHARE;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'the dataset %@% was deleted', data ->> 'name', data ->> 'version'
                USING ERRCODE = 'foreign_key_violation';
        END IF;
    END LOOP;
    RETURN NEW;
END $$;
CREATE FUNCTION needs_made() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = mlopt, pg_temp AS $$ BEGIN PERFORM require_bytes(NEW.made); RETURN NEW; END $$;
CREATE TRIGGER needs BEFORE INSERT ON reproduction FOR EACH ROW EXECUTE FUNCTION needs_made();
CREATE TRIGGER needs BEFORE INSERT ON version_blob FOR EACH ROW EXECUTE FUNCTION needs_digest();
CREATE TRIGGER needs BEFORE INSERT ON dataset_blob FOR EACH ROW EXECUTE FUNCTION needs_digest();
CREATE TRIGGER needs BEFORE INSERT ON variant FOR EACH ROW EXECUTE FUNCTION needs_artifact();
CREATE TRIGGER needs_too BEFORE INSERT ON variant FOR EACH ROW EXECUTE FUNCTION needs_version();
CREATE TRIGGER needs BEFORE INSERT ON release_variant FOR EACH ROW EXECUTE FUNCTION needs_artifact();
CREATE TRIGGER needs BEFORE INSERT ON release FOR EACH ROW EXECUTE FUNCTION needs_version();
CREATE TRIGGER needs BEFORE INSERT ON approval FOR EACH ROW EXECUTE FUNCTION needs_version();
CREATE TRIGGER needs BEFORE INSERT ON plan FOR EACH ROW EXECUTE FUNCTION needs_blob();
CREATE TRIGGER needs BEFORE INSERT ON report FOR EACH ROW EXECUTE FUNCTION needs_blob();
CREATE TRIGGER needs BEFORE INSERT ON evidence FOR EACH ROW EXECUTE FUNCTION needs_samples();
CREATE TRIGGER needs BEFORE INSERT ON run FOR EACH ROW EXECUTE FUNCTION run_needs();

-- --- deletion ----------------------------------------------------------------------------------------

-- Whoever begins to refer to it waits for the end of this transaction. The versions that are concerned.
CREATE FUNCTION deletion_lock(of_kind text, of_target bigint) RETURNS bigint[] LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = mlopt, pg_temp AS $$
DECLARE
    ids bigint[];
BEGIN
    IF of_kind = 'model' THEN
        PERFORM FROM model WHERE id = of_target FOR UPDATE;
        SELECT array_agg(x.id) INTO ids FROM (SELECT id FROM version WHERE model_id = of_target AND deletion_id IS NULL
            ORDER BY id FOR UPDATE) x;
    ELSIF of_kind IN ('version', 'variant') THEN
        SELECT array_agg(x.id) INTO ids FROM (SELECT id FROM version WHERE id = of_target FOR UPDATE) x;
    ELSIF of_kind = 'dataset' THEN
        PERFORM FROM dataset WHERE id = of_target FOR UPDATE;
        SELECT array_agg(x.id) INTO ids FROM (SELECT id FROM dataset_version WHERE dataset_id = of_target
            AND deletion_id IS NULL ORDER BY id FOR UPDATE) x;
    ELSE
        SELECT array_agg(x.id) INTO ids FROM (SELECT id FROM dataset_version WHERE id = of_target FOR UPDATE) x;
    END IF;
    RETURN coalesce(ids, '{}');
END $$;

-- Why it cannot be deleted, in words; no row: it can.
CREATE FUNCTION deletion_blockers(of_kind text, of_target bigint, of_variant text) RETURNS SETOF text LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = mlopt, pg_temp AS $$
DECLARE
    ids bigint[] := deletion_lock(of_kind, of_target);
BEGIN
    IF of_kind IN ('dataset', 'dataset-version') THEN
        RETURN QUERY SELECT format('run %s is %s and reads it', r.id, r.state) FROM run r
            WHERE r.state IN ('queued', 'running')
              AND EXISTS (SELECT FROM json_each(r.datasets::json) x WHERE (x.value ->> 'id')::bigint = ANY (ids))
            ORDER BY r.id;
        RETURN;
    END IF;
    RETURN QUERY SELECT format('%s holds it (release %s)', s.name, r.seq) FROM stage s
        JOIN release r ON r.id = s.release_id WHERE r.version_id = ANY (ids) AND (of_variant IS NULL OR EXISTS
            (SELECT FROM release_variant v WHERE v.release_id = r.id AND v.variant = of_variant)) ORDER BY s.name, r.seq;
    RETURN QUERY SELECT format('release %s was in %s: a rollback can bring it back', r.seq, m.stage)
        FROM release r JOIN (SELECT DISTINCT to_release, stage FROM stage_move) m ON m.to_release = r.id
        WHERE r.version_id = ANY (ids) AND (of_variant IS NULL OR EXISTS
            (SELECT FROM release_variant v WHERE v.release_id = r.id AND v.variant = of_variant))
          AND NOT EXISTS (SELECT FROM stage s WHERE s.release_id = r.id AND s.name = m.stage) ORDER BY r.seq, m.stage;
    RETURN QUERY SELECT format('run %s on it is %s', r.id, r.state) FROM run r
        WHERE r.state IN ('queued', 'running') AND r.version = ANY (ids)
          AND (of_variant IS NULL OR r.variant IS NULL OR r.variant = of_variant) ORDER BY r.id;
    RETURN QUERY SELECT format('approval %s of %s for %s is in force', a.id, a.actor, a.stage) FROM approval a
        JOIN version v ON v.id = ANY (ids) AND v.model_id = a.model_id
        JOIN stage s ON s.model_id = a.model_id AND s.name = a.stage AND s.generation = a.generation
        WHERE (a.version_id IS NULL OR a.version_id = v.id)
          AND NOT EXISTS (SELECT FROM approval_end e WHERE e.approval_id = a.id) ORDER BY a.id;
END $$;

CREATE FUNCTION deletion_make(project bigint, of_kind text, of_object text, of_target bigint, of_variant text, who text,
                              through text, why text, request text, grace interval, seq bigint)
    RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = mlopt, pg_temp AS $$
DECLARE
    made bigint;
    blocker text;
BEGIN
    SELECT b INTO blocker FROM deletion_blockers(of_kind, of_target, of_variant) b LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION '% cannot be deleted: %', of_object, blocker USING ERRCODE = 'serialization_failure';
    END IF;
    INSERT INTO deletion (project_id, kind, object, target, variant, actor, via, reason, request_id, purge_after, audit_seq)
        VALUES (project, of_kind, of_object, of_target, of_variant, who, through, why, request,
                clock_timestamp() + grace, seq) RETURNING id INTO made;
    IF of_kind = 'model' THEN
        UPDATE model SET deletion_id = made WHERE id = of_target AND deletion_id IS NULL;
        UPDATE version SET deletion_id = made WHERE model_id = of_target AND deletion_id IS NULL;
    ELSIF of_kind = 'version' THEN
        UPDATE version SET deletion_id = made WHERE id = of_target AND deletion_id IS NULL;
    ELSIF of_kind = 'variant' THEN
        UPDATE variant SET deletion_id = made WHERE version_id = of_target AND name = of_variant AND deletion_id IS NULL;
    ELSIF of_kind = 'dataset' THEN
        UPDATE dataset SET deletion_id = made WHERE id = of_target AND deletion_id IS NULL;
        UPDATE dataset_version SET deletion_id = made WHERE dataset_id = of_target AND deletion_id IS NULL;
    ELSE
        UPDATE dataset_version SET deletion_id = made WHERE id = of_target AND deletion_id IS NULL;
    END IF;
    RETURN made;
END $$;

-- Brings back what the deletion took, as long as it was not purged. False: too late, or done before.
CREATE FUNCTION deletion_undo(which bigint, who text, why text) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = mlopt, pg_temp AS $$
BEGIN
    UPDATE deletion SET undone_at = clock_timestamp(), undone_by = who, undone_reason = why
        WHERE id = which AND undone_at IS NULL AND purged_at IS NULL;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE model SET deletion_id = NULL WHERE deletion_id = which;
    UPDATE version SET deletion_id = NULL WHERE deletion_id = which;
    UPDATE variant SET deletion_id = NULL WHERE deletion_id = which;
    UPDATE dataset SET deletion_id = NULL WHERE deletion_id = which;
    UPDATE dataset_version SET deletion_id = NULL WHERE deletion_id = which;
    RETURN true;
END $$;

-- Those whose grace is over hold nothing from now on.
CREATE FUNCTION deletion_purge(most integer) RETURNS TABLE (which bigint, project bigint, what text, seq bigint)
    LANGUAGE sql SECURITY DEFINER SET search_path = mlopt, pg_temp AS $$
    UPDATE deletion SET purged_at = clock_timestamp() WHERE id IN
        (SELECT id FROM deletion WHERE purge_after <= now() AND undone_at IS NULL AND purged_at IS NULL
         ORDER BY id LIMIT most FOR UPDATE SKIP LOCKED) RETURNING id, project_id, object, audit_seq
$$;

-- The name is taken again: its versions go on counting, those that were deleted stay so. NULL: it was not deleted.
CREATE FUNCTION model_reopen(project bigint, called text) RETURNS bigint LANGUAGE sql SECURITY DEFINER
    SET search_path = mlopt, pg_temp AS $$
    UPDATE model SET deletion_id = NULL WHERE project_id = project AND name = called AND deletion_id IS NOT NULL RETURNING id
$$;
CREATE FUNCTION dataset_reopen(project bigint, called text) RETURNS bigint LANGUAGE sql SECURITY DEFINER
    SET search_path = mlopt, pg_temp AS $$
    UPDATE dataset SET deletion_id = NULL WHERE project_id = project AND name = called AND deletion_id IS NOT NULL
        RETURNING id
$$;

-- `who` NULL: not archived any more. False: it is so already.
CREATE FUNCTION version_archive(which bigint, who text, why text) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = mlopt, pg_temp AS $$
BEGIN
    UPDATE version SET archived_at = CASE WHEN who IS NULL THEN NULL ELSE clock_timestamp() END, archived_by = who,
        archived_reason = CASE WHEN who IS NULL THEN NULL ELSE why END
        WHERE id = which AND deletion_id IS NULL AND (archived_at IS NULL) = (who IS NOT NULL);
    RETURN FOUND;
END $$;

REVOKE ALL ON FUNCTION is_kept(bigint, boolean), blob_held(bytea, boolean, bytea[]),
    blob_idle(bytea, timestamptz, interval, boolean), blob_mark(bytea[], interval), blob_attached(bytea[]),
    blob_note(bigint, bytea, bigint, text), blob_revive(bigint, bytea, text), blob_touch(bigint, bytea),
    blob_collect(bytea, bytea, interval), blob_collectable(bytea, bytea, interval), blob_orphan(bytea, bigint),
    blob_going(bytea, integer), blob_gone(bytea),
    blob_damaged(bytea), blob_damaged_lock(bytea), blob_healed(bytea), require_bytes(bytea), require_version(bigint), needs_made(),
    deletion_lock(text, bigint), deletion_blockers(text, bigint, text),
    deletion_make(bigint, text, text, bigint, text, text, text, text, text, interval, bigint),
    deletion_undo(bigint, text, text), deletion_purge(integer), model_reopen(bigint, text),
    dataset_reopen(bigint, text), version_archive(bigint, text, text) FROM PUBLIC;
GRANT SELECT ON deletion TO mlopt_server, mlopt_worker;
GRANT EXECUTE ON FUNCTION is_kept(bigint, boolean), blob_held(bytea, boolean, bytea[]),
    blob_idle(bytea, timestamptz, interval, boolean),
    blob_note(bigint, bytea, bigint, text), blob_revive(bigint, bytea, text), blob_touch(bigint, bytea),
    blob_collect(bytea, bytea, interval), blob_collectable(bytea, bytea, interval), blob_orphan(bytea, bigint),
    blob_going(bytea, integer), blob_gone(bytea),
    blob_damaged(bytea), blob_damaged_lock(bytea), blob_healed(bytea), deletion_lock(text, bigint),
    deletion_blockers(text, bigint, text),
    deletion_make(bigint, text, text, bigint, text, text, text, text, text, interval, bigint),
    deletion_undo(bigint, text, text), deletion_purge(integer), model_reopen(bigint, text),
    dataset_reopen(bigint, text), version_archive(bigint, text, text) TO mlopt_server;
-- Workers report damage; what becomes of the blob is decided by a server, who reads the bytes itself.
GRANT EXECUTE ON FUNCTION blob_note(bigint, bytea, bigint, text), blob_revive(bigint, bytea, text), blob_damaged(bytea)
    TO mlopt_worker;
