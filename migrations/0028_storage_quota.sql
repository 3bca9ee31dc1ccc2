-- How much a project may keep in the blob store. See docs/queue.md, "Limits of a project".

ALTER TABLE project_queue ADD COLUMN storage_bytes bigint CHECK (storage_bytes >= 0); -- NULL: no limit
GRANT UPDATE (storage_bytes) ON project_queue TO mlopt_server;

-- What a project's files have: each once, though other projects have them too; until their bytes may be removed.
CREATE FUNCTION project_storage(of_project bigint) RETURNS bigint LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path = mlopt, pg_temp AS $$
    SELECT coalesce(sum(b.size), 0)::bigint FROM project_blob l JOIN blob b ON b.digest = l.digest
        WHERE l.project_id = of_project AND b.removed_at IS NULL
$$;

-- Refuses what would be more than the project may have; the message is for people. MLQ01 is registry/db.c's.
CREATE FUNCTION storage_check(of_project bigint, more bigint) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = mlopt, pg_temp AS $$
DECLARE
    most bigint;
    has  bigint;
    name_ text;
BEGIN
    SELECT q.storage_bytes, p.name INTO most, name_ FROM project_queue q JOIN project p ON p.id = q.project WHERE q.project = of_project;
    IF most IS NULL THEN
        RETURN;
    END IF;
    has := project_storage(of_project);
    IF has + more > most THEN
        RAISE EXCEPTION 'the project % would keep % MB, and may keep % MB', name_, round((has + more) / 1e6, 3), round(most / 1e6, 3)
            USING ERRCODE = 'MLQ01';
    END IF;
END $$;

-- Whoever links files to a project, in whatever way, passes here. What is linked at the same moment by others is not
-- seen: together they may go beyond by what they bring, and are the last to do so.
CREATE FUNCTION project_blob_limit() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = mlopt, pg_temp AS $$
BEGIN
    PERFORM storage_check(q.project, 0) FROM project_queue q
        WHERE q.storage_bytes IS NOT NULL AND q.project IN (SELECT n.project_id FROM added n);
    RETURN NULL;
END $$;
CREATE TRIGGER project_blob_limit AFTER INSERT ON project_blob REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION project_blob_limit();

REVOKE ALL ON FUNCTION project_storage(bigint), storage_check(bigint, bigint), project_blob_limit() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION project_storage(bigint), storage_check(bigint, bigint) TO mlopt_server;
