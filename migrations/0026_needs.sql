-- What jobs need, what workers have, and which GPUs an attempt holds. See docs/queue.md.

ALTER TABLE job ADD COLUMN gpus integer NOT NULL DEFAULT 0 CHECK (gpus BETWEEN 0 AND 64), -- whole ones, its own
                ADD COLUMN timeout_s integer CHECK (timeout_s > 0),    -- of an attempt; NULL: what the worker gives
                ADD COLUMN estimated text[] NOT NULL DEFAULT '{}';     -- of memory and disk: what is from the model's size
ALTER TABLE attempt ADD COLUMN gpus integer NOT NULL DEFAULT 0,
                    ADD COLUMN gpu_devices text[];                     -- their UUIDs, once the worker said so
ALTER TABLE worker ADD COLUMN memory_bytes bigint, -- that a job can have there; NULL: an older program, which does not say
                   ADD COLUMN disk_bytes bigint,
                   ADD COLUMN gpus text NOT NULL DEFAULT '[]';         -- JSON: [{"uuid","model","memory_bytes"}]

-- Those that may have to wait for room: a claim looks for them apart, so that they keep their turn.
CREATE INDEX job_ready_large ON job (project, priority DESC, id) WHERE state = 'ready' AND
    (gpus > 0 OR gpu IS NOT NULL OR memory_bytes >= 1073741824 OR disk_bytes >= 8589934592);

-- How many GPUs a job gets: who names a model wants one.
CREATE FUNCTION job_gpus(gpus integer, gpu text) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
    $$ SELECT CASE WHEN gpus = 0 AND gpu IS NOT NULL THEN 1 ELSE gpus END $$;
-- How many of these are of that model; NULL: any.
CREATE FUNCTION gpus_of(models text[], model text) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
    $$ SELECT CASE WHEN model IS NULL THEN cardinality(models) ELSE (SELECT count(*) FROM unnest(models) m WHERE m = model) END $$;

-- GPUs times seconds, however an attempt ends.
CREATE FUNCTION attempt_gpu_seconds() RETURNS trigger LANGUAGE plpgsql SET search_path = mlopt, pg_temp AS $$
BEGIN
    NEW.gpu_s := NEW.gpus * greatest(extract(epoch FROM NEW.ended_at - NEW.started_at), 0);
    RETURN NEW;
END $$;
CREATE TRIGGER attempt_gpu_seconds BEFORE UPDATE ON attempt FOR EACH ROW
    WHEN (NEW.gpus > 0 AND NEW.ended_at IS NOT NULL AND OLD.ended_at IS NULL) EXECUTE FUNCTION attempt_gpu_seconds();

GRANT UPDATE (gpu_devices) ON attempt TO mlopt_worker;
GRANT UPDATE (disk_bytes) ON worker TO mlopt_worker;

REVOKE ALL ON FUNCTION job_gpus(integer, text), gpus_of(text[], text), attempt_gpu_seconds() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION job_gpus(integer, text) TO mlopt_server;
