-- additive
-- Members of a project: people and service accounts, each with a role in the project and, for a stage alone, a higher one.
-- Programs that do not know this table do not know the tokens of members either, nor those for one stage: such a token is
-- kept under another hash than a token's own (registry/token.c), so that it grants nothing there, rather than too much.

CREATE TABLE member (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    project_id      bigint NOT NULL REFERENCES project,
    name            object_name NOT NULL,
    kind            text NOT NULL CHECK (kind IN ('person', 'service')),
    role            text NOT NULL CHECK (role IN ('viewer', 'submitter', 'promoter', 'approver', 'admin')),
    staging_role    text CHECK (staging_role IN ('promoter', 'approver')),        -- NULL: as in the project
    production_role text CHECK (production_role IN ('promoter', 'approver')),
    may_approve     boolean NOT NULL DEFAULT false,      -- of a service account; people approve by their role
    description     text NOT NULL DEFAULT '',
    created_at      timestamptz NOT NULL DEFAULT now(),
    created_by      text NOT NULL,
    removed_at      timestamptz
);
CREATE UNIQUE INDEX member_name ON member (project_id, name) WHERE removed_at IS NULL;

ALTER TABLE token ADD COLUMN member_id bigint REFERENCES member;                  -- NULL: the token is its own principal
ALTER TABLE token ADD COLUMN stage text CHECK (stage IN ('staging', 'production')); -- the only one it moves or judges; NULL: any
CREATE INDEX token_member ON token (member_id) WHERE member_id IS NOT NULL;

GRANT SELECT, INSERT ON member TO mlopt_server;
GRANT UPDATE (role, staging_role, production_role, may_approve, description, removed_at) ON member TO mlopt_server;

-- --- deletes under way in the store ----------------------------------------------------------------------------------------

-- While a collector deletes bytes it holds their row's lock. Should its connection be lost just then, the lock goes while the
-- store's delete is still under way; who brings the same bytes must not count on them before that has ended. So the lease is
-- committed before the delete is asked for, and ends with it, or by its time.
ALTER TABLE blob ADD COLUMN going_until timestamptz;     -- NULL: no delete is under way

-- Those that a collector goes on with now, and until when another's delete may be under way.
CREATE FUNCTION blob_lease(behind bytea, most integer, lease interval) RETURNS TABLE (going bytea, before timestamptz)
    LANGUAGE sql SECURITY DEFINER SET search_path = mlopt, pg_temp AS $$
    WITH picked AS (SELECT b.digest, b.going_until FROM blob b WHERE b.digest > behind AND b.removed_at IS NOT NULL
                  AND b.bytes_gone_at IS NULL AND b.removed_why <> 'damaged' ORDER BY b.digest LIMIT most FOR UPDATE SKIP LOCKED),
         leased AS (UPDATE blob b SET going_until = greatest(s.going_until, now() + lease) FROM picked s WHERE b.digest = s.digest
                    RETURNING b.digest, s.going_until)
    SELECT l.digest::bytea, CASE WHEN l.going_until > now() THEN l.going_until END FROM leased l ORDER BY 1
$$;
-- One of them, locked: its size; NULL: it is not to go any more.
CREATE FUNCTION blob_leased(d bytea) RETURNS bigint LANGUAGE sql SECURITY DEFINER SET search_path = mlopt, pg_temp AS $$
    SELECT b.size FROM blob b WHERE b.digest = d AND b.removed_at IS NOT NULL AND b.bytes_gone_at IS NULL FOR UPDATE SKIP LOCKED
$$;
-- This collector's delete has ended, or was not asked for; `gone`: the bytes are gone. Another's may be under way still.
CREATE FUNCTION blob_unlease(d bytea, before timestamptz, gone boolean) RETURNS void LANGUAGE sql SECURITY DEFINER
    SET search_path = mlopt, pg_temp AS $$
    UPDATE blob SET going_until = before, bytes_gone_at = CASE WHEN gone THEN now() ELSE bytes_gone_at END
        WHERE digest = d AND removed_at IS NOT NULL
$$;
-- 'going': a delete of it may be under way. Programs of before take that for any other word of a removed one.
CREATE OR REPLACE FUNCTION blob_note(project bigint, d bytea, bytes bigint, who text) RETURNS text LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = mlopt, pg_temp AS $$
DECLARE
    why text;
BEGIN
    INSERT INTO blob (digest, size) VALUES (d, bytes) ON CONFLICT DO NOTHING;
    PERFORM FROM blob WHERE digest = d AND removed_at IS NULL FOR KEY SHARE;
    IF NOT FOUND THEN
        SELECT CASE WHEN removed_why IS NOT NULL AND going_until > now() THEN 'going' ELSE removed_why END INTO why
            FROM blob WHERE digest = d FOR UPDATE;
        IF why IS NOT NULL THEN
            RETURN why;
        END IF;
    END IF;
    INSERT INTO project_blob (project_id, digest, created_by) VALUES (project, d, who)
        ON CONFLICT (project_id, digest) DO UPDATE SET used_at = now();
    RETURN 'live';
END $$;
REVOKE ALL ON FUNCTION blob_lease(bytea, integer, interval), blob_leased(bytea), blob_unlease(bytea, timestamptz, boolean)
    FROM PUBLIC;
GRANT EXECUTE ON FUNCTION blob_lease(bytea, integer, interval), blob_leased(bytea), blob_unlease(bytea, timestamptz, boolean)
    TO mlopt_server;
