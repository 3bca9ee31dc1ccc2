-- Claims by what a worker offers and has room for; they tell the next derive step as well. See docs/queue.md.

DROP FUNCTION queue_claim(text, text[], text[], bigint, bigint, integer, bigint); -- it is told, and says, more now

-- Up to `wanted` jobs for a worker that offers these targets, GPU models and room. One claim at a time chooses, so that
-- shares are exact; it holds the lock for its statements only: nothing is lost with a claim that a crash of the
-- database undoes (its token is refused then), so its commit waits for no disk.
-- Order: jobs of negative priority after all others; between projects, the least service; in a project, priority, age.
-- The projects are looked at from the least service on, as long as one could still be next.
-- `gpus` (the model of each), `memory` and `disk` are what a job can have there; `free_…` what no job has now (NULL: all of
-- it), and what is claimed has room in that together. A large job that has room only once others have ended keeps its
-- turn: those behind it get nothing of what it waits for.
CREATE FUNCTION queue_claim(who text, offers text[], gpus text[], memory bigint, disk bigint, wanted integer, lease_ms bigint,
                            free_gpus text[] DEFAULT NULL, free_memory bigint DEFAULT NULL, free_disk bigint DEFAULT NULL)
    RETURNS TABLE (id bigint, run bigint, project bigint, version bigint, "position" integer, name text, step text,
                   kind text, exclusive boolean, spec text, input bytea, source bytea, datasets text, variant text,
                   created_by text, from_source boolean, last_derive boolean, max_attempts integer, labels bytea,
                   token text, attempts integer, claims integer, derivation bytea, next_step text, next_spec text,
                   memory_bytes bigint, disk_bytes bigint, gpus_held integer, gpu text, timeout_s integer)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = mlopt, pg_temp
    -- planned once a connection, by index whatever the statistics say: planning would take longer than claiming
    SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    now_    timestamptz;
    p       record;
    room    bigint;
    gpu_ok  boolean;
    more    integer;
    urgent  integer := 0; -- projects with other than background work
    bound   double precision;
    h_job   bigint[];
    h_rank  integer[];
    h_cost  double precision[];
    h_key   bytea[];
    h_base  double precision[];
    h_weight double precision[];
    h_project bigint[];
    x_job   bigint[];
    x_rank  integer[];
    x_cost  double precision[];
    x_key   bytea[];
    tags    double precision[];
    picked  bigint[];
    ids     bigint[];
    runs    bigint[];
    last    double precision;
    h_fits  boolean[]; -- whether what each needs is free now
    h_mem   bigint[];
    h_disk  bigint[];
    h_gpus  integer[];
    h_gpu   text[];
    x_fits  boolean[];
    x_mem   bigint[];
    x_disk  bigint[];
    x_gpus  integer[];
    x_gpu   text[];
    l_id    bigint; -- the project's first large job that has room here, but not now
    l_prio  integer;
    l_mem   bigint;
    l_disk  bigint;
    l_gpus  integer;
    l_gpu   text;
    waits   boolean := false; -- there is such a one
    r_mem   bigint := 0;      -- kept for those of the projects before
    r_disk  bigint := 0;
    r_gpus  bigint := 0;
    all_free boolean;
    all_gpus CONSTANT text[] := gpus; -- a column of job has that name
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true), pg_advisory_xact_lock(7708121);
    now_ := clock_timestamp();
    free_gpus := coalesce(free_gpus, all_gpus);
    free_memory := coalesce(free_memory, memory);
    free_disk := coalesce(free_disk, disk);
    all_free := free_memory >= memory AND free_disk >= disk AND cardinality(free_gpus) = cardinality(all_gpus);
    FOR p IN
        WITH RECURSIVE busy(project, target) AS ( -- what is ready, one look into the index each
            (SELECT j.project, j.target FROM job j WHERE j.state = 'ready' ORDER BY j.project, j.target LIMIT 1)
            UNION ALL
            SELECT n.project, n.target FROM busy b CROSS JOIN LATERAL
                (SELECT j.project, j.target FROM job j WHERE j.state = 'ready' AND (j.project, j.target) > (b.project, b.target)
                 ORDER BY j.project, j.target LIMIT 1) n
        )
        SELECT q.project, q.weight, q.service + q.running_s / q.weight AS base, q.max_running, q.gpu_seconds_month, b.targets
        FROM (SELECT b.project, array_agg(b.target) AS targets FROM busy b WHERE b.target = ANY (offers) GROUP BY b.project) b
        JOIN project_queue q ON q.project = b.project WHERE NOT q.paused
        ORDER BY base, q.project
    LOOP
        EXIT WHEN urgent >= wanted AND p.base > bound; -- none of its jobs can be before the first ones of those
        room := wanted;
        IF p.max_running IS NOT NULL THEN
            room := least(wanted, p.max_running - (SELECT count(*) FROM job a WHERE a.state = 'running' AND a.project = p.project));
            CONTINUE WHEN room <= 0;
        END IF;
        gpu_ok := p.gpu_seconds_month IS NULL OR p.gpu_seconds_month > coalesce((SELECT u.gpu_s FROM usage_month u
                      WHERE u.project = p.project AND u.month = date_trunc('month', now_ AT TIME ZONE 'UTC')::date), 0);
        l_id := NULL;
        IF NOT all_free THEN
            SELECT i.id, i.priority, i.memory_bytes, i.disk_bytes, job_gpus(i.gpus, i.gpu), i.gpu
                INTO l_id, l_prio, l_mem, l_disk, l_gpus, l_gpu FROM job i
                WHERE i.state = 'ready' AND (i.gpus > 0 OR i.gpu IS NOT NULL OR i.memory_bytes >= 1073741824 OR i.disk_bytes >= 8589934592)
                  AND i.project = p.project AND i.target = ANY (p.targets) AND i.not_before <= now_
                  AND i.memory_bytes <= memory AND i.disk_bytes <= disk
                  AND (i.gpus = 0 AND i.gpu IS NULL OR gpu_ok AND job_gpus(i.gpus, i.gpu) <= gpus_of(all_gpus, i.gpu))
                  AND (gpu_ok OR i.target NOT LIKE 'cuda%')
                  AND NOT (i.memory_bytes <= free_memory AND i.disk_bytes <= free_disk AND
                           (i.gpus = 0 AND i.gpu IS NULL OR job_gpus(i.gpus, i.gpu) <= gpus_of(free_gpus, i.gpu)))
                  AND NOT EXISTS (SELECT FROM job f WHERE f.state = 'running' AND f.derivation = i.derivation)
                ORDER BY i.priority DESC, i.id LIMIT 1;
            waits := waits OR l_id IS NOT NULL;
        END IF;
        SELECT array_agg(h.id), array_agg(h.priority), array_agg(h.expected_s), array_agg(h.derivation::bytea),
               count(*) FILTER (WHERE h.fits AND h.priority >= 0 AND array_position(h_key, h.derivation::bytea) IS NULL),
               array_agg(h.fits), array_agg(h.memory_bytes), array_agg(h.disk_bytes), array_agg(h.gpus), array_agg(h.gpu)
            INTO x_job, x_rank, x_cost, x_key, more, x_fits, x_mem, x_disk, x_gpus, x_gpu FROM (
                (SELECT j.*, true AS fits FROM unnest(p.targets) t(target) CROSS JOIN LATERAL (
                    SELECT i.id, i.priority, i.expected_s, i.derivation, i.memory_bytes, i.disk_bytes, job_gpus(i.gpus, i.gpu) AS gpus, i.gpu
                    FROM job i
                    CROSS JOIN LATERAL (SELECT l_id IS NOT NULL AND (i.priority < l_prio OR i.priority = l_prio AND i.id > l_id) AS behind) k
                    WHERE i.state = 'ready' AND i.project = p.project AND i.target = t.target AND i.not_before <= now_
                      AND i.memory_bytes <= least(memory, free_memory) AND i.disk_bytes <= least(disk, free_disk)
                      AND (i.gpus = 0 AND i.gpu IS NULL OR gpu_ok AND job_gpus(i.gpus, i.gpu) <= gpus_of(free_gpus, i.gpu))
                      -- beside what is kept for those before it
                      AND (NOT waits OR
                           (i.memory_bytes = 0 OR i.memory_bytes <= free_memory - r_mem - CASE WHEN k.behind THEN l_mem ELSE 0 END)
                           AND (i.disk_bytes = 0 OR i.disk_bytes <= free_disk - r_disk - CASE WHEN k.behind THEN l_disk ELSE 0 END)
                           AND (i.gpus = 0 AND i.gpu IS NULL OR job_gpus(i.gpus, i.gpu) <= gpus_of(free_gpus, i.gpu) - r_gpus
                                                                     - CASE WHEN k.behind THEN l_gpus ELSE 0 END))
                      -- one that somebody is making already is passed over: once made, it is reused
                      AND NOT EXISTS (SELECT FROM job f WHERE f.state = 'running' AND f.derivation = i.derivation)
                    ORDER BY i.priority DESC, i.id LIMIT room) j
                WHERE gpu_ok OR t.target NOT LIKE 'cuda%'
                ORDER BY j.priority DESC, j.id LIMIT room)
                UNION ALL
                SELECT l_id, l_prio, 0, NULL, l_mem, l_disk, l_gpus, l_gpu, false WHERE l_id IS NOT NULL
                ORDER BY 2 DESC, 1) h;
        IF l_id IS NOT NULL AND l_prio >= 0 THEN
            r_mem := r_mem + l_mem;
            r_disk := r_disk + l_disk;
            r_gpus := r_gpus + l_gpus;
        END IF;
        CONTINUE WHEN x_job IS NULL;
        h_job := h_job || x_job;
        h_rank := h_rank || x_rank;
        h_cost := h_cost || x_cost;
        h_key := h_key || x_key;
        h_fits := h_fits || x_fits;
        h_mem := h_mem || x_mem;
        h_disk := h_disk || x_disk;
        h_gpus := h_gpus || x_gpus;
        h_gpu := h_gpu || x_gpu;
        h_base := h_base || array_fill(p.base, ARRAY[cardinality(x_job)]);
        h_weight := h_weight || array_fill(p.weight, ARRAY[cardinality(x_job)]);
        h_project := h_project || array_fill(p.project, ARRAY[cardinality(x_job)]);
        IF more > 0 AND NOT waits THEN -- then what is behind may not be it
            urgent := urgent + 1;
            bound := p.base;
        END IF;
    END LOOP;
    IF h_job IS NULL THEN
        RETURN;
    END IF;
    IF cardinality(h_job) = 1 AND h_fits[1] THEN
        ids := h_job;
        tags := h_base;
    ELSE -- a derivation once, and together no more than is free: all before a job count, also one that has no room yet
        SELECT array_agg(t.job), array_agg(t.tag) INTO ids, tags FROM (
            SELECT f.job, f.tag FROM (
                SELECT x.*, x.key IS NULL OR
                       row_number() OVER (PARTITION BY x.key ORDER BY x.base, x.rank DESC, x.job) = 1 AS first,
                       sum(x.mem) OVER up_to AS mems, sum(x.disk) OVER up_to AS disks, sum(x.gpus) OVER up_to AS gpus_all FROM (
                    SELECT h.job, h.rank, h.rank < 0 AS back, h.key, h.base, h.fits, h.mem, h.disk, h.gpus, h.gpu,
                           h.base + (sum(h.cost) OVER (PARTITION BY h.project ORDER BY h.n) - h.cost) / h.weight AS tag
                    FROM unnest(h_job, h_rank, h_cost, h_key, h_base, h_weight, h_project, h_fits, h_mem, h_disk, h_gpus, h_gpu)
                         WITH ORDINALITY h(job, rank, cost, key, base, weight, project, fits, mem, disk, gpus, gpu, n)) x
                WINDOW up_to AS (ORDER BY x.rank < 0, x.tag, x.fits, x.job ROWS UNBOUNDED PRECEDING)) f
            WHERE f.first AND f.fits AND (f.mem = 0 OR f.mems <= free_memory) AND (f.disk = 0 OR f.disks <= free_disk)
              AND (f.gpus = 0 OR f.gpus_all <= gpus_of(free_gpus, f.gpu))
            ORDER BY f.back, f.tag, f.job LIMIT wanted) t;
    END IF;
    IF ids IS NULL THEN
        RETURN;
    END IF;
    picked := ids;
    WITH mine AS ( -- without those that somebody else holds: their run is being ended
        SELECT j.id FROM job j WHERE j.id = ANY (ids) AND j.state = 'ready' ORDER BY j.id FOR NO KEY UPDATE SKIP LOCKED
    ), claimed AS (
        UPDATE job j SET state = 'running', token = gen_random_uuid(), worker = who, attempts = j.attempts + 1,
                         lease_until = now_ + lease_ms * interval '1 millisecond', claims = j.claims + 1, progress = 0,
                         message = '', started_at = coalesce(j.started_at, now_)
            FROM mine m WHERE j.id = m.id RETURNING j.id, j.run, j.project, j.claims, j.token, j.expected_s, job_gpus(j.gpus, j.gpu) AS gpus
    ), tried AS (
        INSERT INTO attempt (job, number, token, worker, started_at, gpus) SELECT c.id, c.claims, c.token, who, now_, c.gpus FROM claimed c
    ), charged AS (
        UPDATE project_queue q SET service = q.service + c.cost / q.weight
            FROM (SELECT x.project, sum(x.expected_s) AS cost FROM claimed x GROUP BY x.project) c WHERE q.project = c.project
    )
    SELECT array_agg(c.id), array_agg(DISTINCT c.run) INTO ids, runs FROM claimed c;
    IF ids IS NULL THEN
        RETURN;
    END IF;
    SELECT max(h.tag) INTO last FROM unnest(picked, tags) h(job, tag) WHERE h.job = ANY (ids);
    UPDATE queue_clock k SET service = last WHERE k.service < last;
    PERFORM FROM run u WHERE u.id = ANY (runs) ORDER BY u.id FOR NO KEY UPDATE; -- as completions do
    WITH begun AS (
        UPDATE run u SET state = 'running', started_at = coalesce(u.started_at, now_), event_seq = u.event_seq + o.begins + o.jobs
            FROM (SELECT r.id, (r.state = 'queued')::integer AS begins, count(*) AS jobs
                  FROM job c JOIN run r ON r.id = c.run WHERE c.id = ANY (ids) GROUP BY r.id) o
            WHERE u.id = o.id RETURNING u.id, o.begins, u.event_seq - o.jobs AS base
    )
    INSERT INTO run_event (run, seq, at, kind, data)
        SELECT b.id, b.base, now_, 'run', '{"state":"running"}' FROM begun b WHERE b.begins = 1
        UNION ALL
        SELECT b.id, b.base + row_number() OVER (PARTITION BY c.run ORDER BY c.position), now_, 'job',
               job_event_data(c.id, c.step, c.name, c.state, c.progress, c.message)
        FROM job c JOIN begun b ON b.id = c.run WHERE c.id = ANY (ids);
    RETURN QUERY SELECT c.id, c.run, c.project, u.version, c.position, c.name, c.step, c.kind, c.exclusive, c.spec,
            c.input::bytea, u.source::bytea, u.datasets, u.variant, u.created_by,
            NOT EXISTS (SELECT FROM job e WHERE e.run = c.run AND e.kind = 'derive' AND e.position < c.position),
            NOT EXISTS (SELECT FROM job l WHERE l.run = c.run AND l.kind = 'derive' AND l.position > c.position),
            c.max_attempts,
            (SELECT b.digest::bytea FROM version_blob b WHERE b.version_id = u.version AND b.role = 'labels' ORDER BY b.name LIMIT 1),
            c.token::text, c.attempts, c.claims, c.derivation::bytea, n.step, n.spec,
            c.memory_bytes, c.disk_bytes, job_gpus(c.gpus, c.gpu), c.gpu, c.timeout_s
        FROM job c JOIN run u ON u.id = c.run
        LEFT JOIN job n ON n.run = c.run AND n.position = c.position + 1 AND n.kind = 'derive' AND c.kind = 'derive'
        WHERE c.id = ANY (ids) ORDER BY c.id;
END $$;

REVOKE ALL ON FUNCTION queue_claim(text, text[], text[], bigint, bigint, integer, bigint, text[], bigint, bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION queue_claim(text, text[], text[], bigint, bigint, integer, bigint, text[], bigint, bigint) TO mlopt_worker;

-- --- whether a worker is still wanted --------------------------------------------------------------------------------

-- Whether a worker has something to stay for: a job that is ready, or will be after a wait, and that it could have by its
-- target, GPUs and room; or one that runs elsewhere, of whose run it could have that or the next: it may be lost, or get
-- there. A worker of particular targets (`own`) or with GPUs waits for no running jobs but those that need them.
CREATE FUNCTION queue_holds_for(offers text[], own text[], models text[], most_memory bigint, most_disk bigint) RETURNS boolean
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path = mlopt, pg_temp SET enable_seqscan = off SET jit = off AS $$
    SELECT EXISTS (
        SELECT FROM project_queue q
        CROSS JOIN LATERAL (SELECT q.gpu_seconds_month IS NULL OR q.gpu_seconds_month > coalesce((SELECT u.gpu_s FROM usage_month u
            WHERE u.project = q.project AND u.month = date_trunc('month', now() AT TIME ZONE 'UTC')::date), 0) AS gpu_ok) m
        CROSS JOIN LATERAL (
            SELECT FROM (
                SELECT r.project, r.target, r.memory_bytes, r.disk_bytes, r.gpus, r.gpu FROM job r WHERE r.state = 'ready'
                UNION ALL
                SELECT a.project, n.target, n.memory_bytes, n.disk_bytes, n.gpus, n.gpu FROM job a
                JOIN job n ON n.run = a.run AND n.state IN ('running', 'waiting')
                WHERE a.state = 'running' AND (n.target = ANY (own) OR job_gpus(n.gpus, n.gpu) > 0 OR
                                               cardinality(own) = 0 AND cardinality(models) = 0)) j
            WHERE j.project = q.project AND j.target = ANY (offers) AND j.memory_bytes <= most_memory AND j.disk_bytes <= most_disk
              AND (job_gpus(j.gpus, j.gpu) = 0 OR m.gpu_ok AND job_gpus(j.gpus, j.gpu) <= gpus_of(models, j.gpu))
              AND (m.gpu_ok OR j.target NOT LIKE 'cuda%')
            LIMIT 1) x
        WHERE NOT q.paused AND coalesce(q.max_running, 1) > 0)
$$;
REVOKE ALL ON FUNCTION queue_holds_for(text[], text[], text[], bigint, bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION queue_holds_for(text[], text[], text[], bigint, bigint) TO mlopt_worker;
