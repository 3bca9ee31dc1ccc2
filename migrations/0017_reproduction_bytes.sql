-- What a variant came out as when it was made again is held as evidence is: other bytes than before are the proof that
-- they were other ones.

CREATE INDEX reproduction_made ON reproduction (made);

CREATE OR REPLACE FUNCTION blob_held(d bytea, ahead boolean, gone bytea[]) RETURNS boolean LANGUAGE sql STABLE
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

CREATE FUNCTION needs_made() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = mlopt, pg_temp AS $$ BEGIN PERFORM require_bytes(NEW.made); RETURN NEW; END $$;
CREATE TRIGGER needs BEFORE INSERT ON reproduction FOR EACH ROW EXECUTE FUNCTION needs_made();
REVOKE ALL ON FUNCTION needs_made() FROM PUBLIC;
