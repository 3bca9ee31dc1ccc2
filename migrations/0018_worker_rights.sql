-- What a worker may say in the audit log: what it did, and nothing that a person or a server does. A worker's role
-- has the right to append, since the end of a run belongs into the transaction that ends it; whoever takes a worker
-- over cannot tell of a promotion that nobody made, or put words into somebody's mouth as if they came by a server.

CREATE FUNCTION worker_audit() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = mlopt, pg_temp AS $$
DECLARE
    entry json;
    happened text;
BEGIN
    IF pg_has_role(session_user, 'mlopt_server', 'MEMBER') OR
       pg_has_role(session_user, (SELECT relowner FROM pg_class WHERE oid = TG_RELID), 'MEMBER') THEN
        RETURN NEW;
    END IF;
    entry := convert_from(NEW.body, 'UTF8')::json;
    happened := entry ->> 'action';
    IF entry ->> 'via' IS DISTINCT FROM 'worker' OR
       happened IS NULL OR
       happened <> ALL (ARRAY['run.finish', 'variant.name', 'derivation.reproduce', 'signature.refute', 'blob.report']) OR
       -- an end that the same transaction gave to a run of the project
       (happened = 'run.finish' AND NOT EXISTS (
            SELECT FROM run WHERE project = NEW.project_id AND 'run ' || id = entry ->> 'object' AND
                state = entry -> 'after' ->> 'state' AND finished_at IS NOT NULL AND
                xmin = pg_current_xact_id()::xid)) THEN
        RAISE EXCEPTION 'a worker has no entry % to make', coalesce(happened, '(none)')
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER worker_audit BEFORE INSERT ON audit FOR EACH ROW EXECUTE FUNCTION worker_audit();
REVOKE ALL ON FUNCTION worker_audit() FROM PUBLIC;
