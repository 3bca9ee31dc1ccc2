-- Claims by kinds of needs: what has room is decided for a kind, not for each job of it. See docs/queue.md. Here is what such
-- a claim reads; 0031_calls.sql has the claim.

-- Ready jobs by what they need, in a kind in the order in which they are claimed. The kinds that there are are read from
-- it, one look each: there is no count of them that could be wrong, and no row that everybody has to change.
DROP INDEX job_ready, job_ready_large;
CREATE INDEX job_ready ON job (project, target, gpus, coalesce(gpu, ''), memory_bytes, disk_bytes, (- priority), id)
    WHERE state = 'ready';

-- How many GPUs a worker has of a model; '' is any. Without a query in it, it costs a call no plan of its own.
CREATE FUNCTION gpus_like(models text[], model text) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
    $$ SELECT CASE WHEN model = '' THEN cardinality(models) ELSE cardinality(array_positions(models, model)) END $$;

-- Whether a worker has something to stay for: a job that is ready, or will be after a wait, and that it could have by its
-- target, GPUs and room; or one that runs elsewhere, of whose run it could have that or the next: it may be lost, or get
-- there. A worker of particular targets (`own`) or with GPUs waits for no running jobs but those that need them. What is
-- ready is looked at by its kinds, as a claim does.
CREATE OR REPLACE FUNCTION queue_holds_for(offers text[], own text[], models text[], most_memory bigint, most_disk bigint)
    RETURNS boolean LANGUAGE sql STABLE SECURITY DEFINER SET search_path = mlopt, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
    WITH RECURSIVE kinds(project, target, gpus, gpu, memory_bytes, disk_bytes) AS (
        (SELECT r.project, r.target, r.gpus, coalesce(r.gpu, ''), r.memory_bytes, r.disk_bytes FROM job r WHERE r.state = 'ready'
         ORDER BY r.project, r.target, r.gpus, coalesce(r.gpu, ''), r.memory_bytes, r.disk_bytes LIMIT 1)
        UNION ALL
        SELECT n.* FROM kinds k CROSS JOIN LATERAL
            (SELECT r.project, r.target, r.gpus, coalesce(r.gpu, ''), r.memory_bytes, r.disk_bytes FROM job r
             WHERE r.state = 'ready' AND (r.project, r.target, r.gpus, coalesce(r.gpu, ''), r.memory_bytes, r.disk_bytes)
                                         > (k.project, k.target, k.gpus, k.gpu, k.memory_bytes, k.disk_bytes)
             ORDER BY r.project, r.target, r.gpus, coalesce(r.gpu, ''), r.memory_bytes, r.disk_bytes LIMIT 1) n
    ), wanted AS (
        SELECT * FROM kinds
        UNION ALL
        SELECT a.project, n.target, n.gpus, coalesce(n.gpu, ''), n.memory_bytes, n.disk_bytes FROM job a
        JOIN job n ON n.run = a.run AND n.state IN ('running', 'waiting')
        WHERE a.state = 'running' AND (n.target = ANY (own) OR n.gpus > 0 OR n.gpu IS NOT NULL OR
                                       cardinality(own) = 0 AND cardinality(models) = 0)
    )
    SELECT EXISTS (
        SELECT FROM wanted j JOIN project_queue q ON q.project = j.project
        CROSS JOIN LATERAL (SELECT q.gpu_seconds_month IS NULL OR q.gpu_seconds_month > coalesce((SELECT u.gpu_s FROM usage_month u
            WHERE u.project = q.project AND u.month = date_trunc('month', now() AT TIME ZONE 'UTC')::date), 0) AS gpu_ok) m
        CROSS JOIN LATERAL (SELECT CASE WHEN j.gpu = '' THEN j.gpus ELSE greatest(j.gpus, 1) END AS held) h
        WHERE j.target = ANY (offers) AND j.memory_bytes <= most_memory AND j.disk_bytes <= most_disk
          AND (h.held = 0 OR m.gpu_ok AND h.held <= gpus_like(models, j.gpu)) AND (m.gpu_ok OR j.target NOT LIKE 'cuda%')
          AND NOT q.paused AND coalesce(q.max_running, 1) > 0)
$$;

REVOKE ALL ON FUNCTION gpus_like(text[], text) FROM PUBLIC;
