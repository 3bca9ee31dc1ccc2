-- What workers say of blobs. One that reads other bytes than the digest says reports that, and hides nothing by it: who
-- marks a blob as damaged is a server, which has read the bytes itself.

ALTER TABLE blob ADD COLUMN reported_at timestamptz;     -- NULL: nobody did, or a server has looked since
CREATE INDEX blob_reported ON blob (digest) WHERE reported_at IS NOT NULL;

-- False: it is removed, or was reported before.
CREATE FUNCTION blob_report(d bytea) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = mlopt, pg_temp AS $$
BEGIN
    UPDATE blob SET reported_at = now() WHERE digest = d AND removed_at IS NULL AND reported_at IS NULL;
    RETURN FOUND;
END $$;

CREATE FUNCTION blob_looked(d bytea) RETURNS void LANGUAGE sql SECURITY DEFINER SET search_path = mlopt, pg_temp AS $$
    UPDATE blob SET reported_at = NULL WHERE digest = d AND reported_at IS NOT NULL
$$;

REVOKE ALL ON FUNCTION blob_report(bytea), blob_looked(bytea) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION blob_damaged(bytea) FROM mlopt_worker;
GRANT EXECUTE ON FUNCTION blob_report(bytea) TO mlopt_worker;
GRANT EXECUTE ON FUNCTION blob_looked(bytea) TO mlopt_server;
