-- Claims by kinds of needs: what has room is decided for a kind, not for each job of it. See docs/queue.md.

-- Ready jobs by what they need, in a kind in the order in which they are claimed. The kinds that there are are read from
-- it, one look each: there is no count of them that could be wrong, and no row that everybody has to change.
DROP INDEX job_ready, job_ready_large;
CREATE INDEX job_ready ON job (project, target, gpus, coalesce(gpu, ''), memory_bytes, disk_bytes, (- priority), id)
    WHERE state = 'ready';

-- How many GPUs a worker has of a model; '' is any. Without a query in it, it costs a call no plan of its own.
CREATE FUNCTION gpus_like(models text[], model text) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
    $$ SELECT CASE WHEN model = '' THEN cardinality(models) ELSE cardinality(array_positions(models, model)) END $$;

-- Up to `wanted` jobs for a worker that offers these targets, GPU models and room. One claim at a time chooses, so that
-- shares are exact; it holds the lock for its statements only: nothing is lost with a claim that a crash of the
-- database undoes (its token is refused then), so its commit waits for no disk.
-- Order: jobs of negative priority after all others; between projects, the least service; in a project, priority, age.
-- The projects are looked at from the least service on, as long as one could still be next; in each, the kinds of needs
-- that are ready, and of those that have room the first jobs: as many looks as there are kinds, however many jobs.
-- `gpus` (the model of each), `memory` and `disk` are what a job can have there; `free_…` what no job has now (NULL: all of
-- it), and what is claimed has room in that together. A large job that has room only once others have ended keeps its
-- turn: those behind it get nothing of what it waits for.
CREATE OR REPLACE FUNCTION queue_claim(who text, offers text[], gpus text[], memory bigint, disk bigint, wanted integer,
                            lease_ms bigint, free_gpus text[] DEFAULT NULL, free_memory bigint DEFAULT NULL,
                            free_disk bigint DEFAULT NULL)
    RETURNS TABLE (id bigint, run bigint, project bigint, version bigint, "position" integer, name text, step text,
                   kind text, exclusive boolean, spec text, input bytea, source bytea, datasets text, variant text,
                   created_by text, from_source boolean, last_derive boolean, max_attempts integer, labels bytea,
                   token text, attempts integer, claims integer, derivation bytea, next_step text, next_spec text,
                   memory_bytes bigint, disk_bytes bigint, gpus_held integer, gpu text, timeout_s integer)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = mlopt, pg_temp
    -- planned once a connection, in the index's order whatever the statistics say: planning would take longer than claiming
    SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
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
    large   integer;          -- where the project's first large job is that has room here, but not now
    waits   boolean := false; -- there is such a one
    r_mem   bigint := 0;      -- kept for those of the projects before
    r_disk  bigint := 0;
    r_gpus  bigint := 0;
    all_gpus CONSTANT text[] := gpus; -- a column of job has that name
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true), pg_advisory_xact_lock(7708121);
    now_ := clock_timestamp();
    free_gpus := coalesce(free_gpus, all_gpus);
    free_memory := coalesce(free_memory, memory);
    free_disk := coalesce(free_disk, disk);
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
        gpu_ok := p.gpu_seconds_month IS NULL;
        IF NOT gpu_ok THEN
            gpu_ok := p.gpu_seconds_month > coalesce((SELECT u.gpu_s FROM usage_month u
                          WHERE u.project = p.project AND u.month = date_trunc('month', now_ AT TIME ZONE 'UTC')::date), 0);
        END IF;
        WITH RECURSIVE kinds(target, gpus, gpu, memory_bytes, disk_bytes, id, priority, expected_s, derivation, not_before) AS (
            -- that are ready, each with its first job: one look each
            SELECT t.target, n.* FROM unnest(p.targets) t(target) CROSS JOIN LATERAL
                (SELECT i.gpus, coalesce(i.gpu, ''), i.memory_bytes, i.disk_bytes, i.id, i.priority, i.expected_s,
                        i.derivation::bytea, i.not_before
                 FROM job i WHERE i.state = 'ready' AND i.project = p.project AND i.target = t.target
                 ORDER BY i.gpus, coalesce(i.gpu, ''), i.memory_bytes, i.disk_bytes, - i.priority, i.id LIMIT 1) n
            UNION ALL
            SELECT k.target, n.* FROM kinds k CROSS JOIN LATERAL
                (SELECT i.gpus, coalesce(i.gpu, ''), i.memory_bytes, i.disk_bytes, i.id, i.priority, i.expected_s,
                        i.derivation::bytea, i.not_before
                 FROM job i WHERE i.state = 'ready' AND i.project = p.project AND i.target = k.target
                   AND (i.gpus, coalesce(i.gpu, ''), i.memory_bytes, i.disk_bytes) > (k.gpus, k.gpu, k.memory_bytes, k.disk_bytes)
                 ORDER BY i.gpus, coalesce(i.gpu, ''), i.memory_bytes, i.disk_bytes, - i.priority, i.id LIMIT 1) n
        ), able AS MATERIALIZED ( -- those that this worker could have; `held`: GPUs, who names a model wants one; `now`: it is
            -- free. A derivation that somebody is making already is passed over: once made, it is reused
            SELECT k.*, h.held, n.now, k.not_before <= now_ AND
                   (SELECT f.id FROM job f WHERE f.state = 'running' AND f.derivation = k.derivation LIMIT 1) IS NULL AS open
            FROM kinds k
            CROSS JOIN LATERAL (SELECT CASE WHEN k.gpu = '' THEN k.gpus ELSE greatest(k.gpus, 1) END AS held) h
            CROSS JOIN LATERAL (SELECT k.memory_bytes <= free_memory AND k.disk_bytes <= free_disk AND
                                       (h.held = 0 OR h.held <= gpus_like(free_gpus, k.gpu)) AS now) n
            WHERE k.memory_bytes <= memory AND k.disk_bytes <= disk
              AND (h.held = 0 OR gpu_ok AND h.held <= gpus_like(all_gpus, k.gpu)) AND (gpu_ok OR k.target NOT LIKE 'cuda%')
              AND (n.now OR h.held > 0 OR k.memory_bytes >= 1073741824 OR k.disk_bytes >= 8589934592)
        ), firsts AS MATERIALIZED ( -- the first job of each that can begin
            SELECT k.target, k.gpus, k.gpu, k.memory_bytes, k.disk_bytes, k.held, k.now, f.*
            FROM able k CROSS JOIN LATERAL (
                SELECT k.id, k.priority, k.expected_s, k.derivation WHERE k.open
                UNION ALL
                (SELECT i.id, i.priority, i.expected_s, i.derivation::bytea FROM job i
                 WHERE NOT k.open AND i.state = 'ready' AND i.project = p.project AND i.target = k.target AND i.gpus = k.gpus
                   AND coalesce(i.gpu, '') = k.gpu AND i.memory_bytes = k.memory_bytes AND i.disk_bytes = k.disk_bytes
                   AND (- i.priority, i.id) > (- k.priority, k.id) AND i.not_before <= now_
                   AND NOT EXISTS (SELECT FROM job f WHERE f.state = 'running' AND f.derivation = i.derivation)
                 ORDER BY - i.priority, i.id LIMIT 1)) f
        ), large AS MATERIALIZED ( -- its turn has come, its room has not
            SELECT k.* FROM firsts k WHERE NOT k.now ORDER BY k.priority DESC, k.id LIMIT 1
        ), fitting AS MATERIALIZED ( -- beside what is kept for those before: all of a kind, or what is before the large job
            SELECT k.*, - l.priority AS l_rank, l.id AS l_id, b.behind FROM firsts k LEFT JOIN large l ON true
            CROSS JOIN LATERAL (SELECT
                   (k.memory_bytes = 0 OR k.memory_bytes <= free_memory - r_mem - coalesce(l.memory_bytes, 0)) AND
                   (k.disk_bytes = 0 OR k.disk_bytes <= free_disk - r_disk - coalesce(l.disk_bytes, 0)) AND
                   (k.held = 0 OR k.held <= gpus_like(free_gpus, k.gpu) - r_gpus - coalesce(l.held, 0)) AS behind) b
            WHERE k.now AND (b.behind OR (- k.priority, k.id) < (- l.priority, l.id))
              AND (NOT waits OR (k.memory_bytes = 0 OR k.memory_bytes <= free_memory - r_mem) AND
                                (k.disk_bytes = 0 OR k.disk_bytes <= free_disk - r_disk) AND
                                (k.held = 0 OR k.held <= gpus_like(free_gpus, k.gpu) - r_gpus))
        )
        SELECT array_agg(h.id), array_agg(h.priority), array_agg(h.expected_s), array_agg(h.derivation),
               count(*) FILTER (WHERE h.fits AND h.priority >= 0 AND array_position(h_key, h.derivation) IS NULL),
               array_agg(h.fits), array_agg(h.memory_bytes), array_agg(h.disk_bytes), array_agg(h.held), array_agg(h.gpu)
            INTO x_job, x_rank, x_cost, x_key, more, x_fits, x_mem, x_disk, x_gpus, x_gpu FROM (
                (SELECT k.id, k.priority, k.expected_s, k.derivation, k.memory_bytes, k.disk_bytes, k.held, k.gpu, true AS fits
                 FROM fitting k
                 UNION ALL
                 SELECT j.id, j.priority, j.expected_s, j.derivation, k.memory_bytes, k.disk_bytes, k.held, k.gpu, true
                 FROM fitting k CROSS JOIN LATERAL (
                    SELECT i.id, i.priority, i.expected_s, i.derivation::bytea FROM job i
                    WHERE room > 1 AND i.state = 'ready' AND i.project = p.project AND i.target = k.target AND i.gpus = k.gpus
                      AND coalesce(i.gpu, '') = k.gpu AND i.memory_bytes = k.memory_bytes AND i.disk_bytes = k.disk_bytes
                      AND (- i.priority, i.id) > (- k.priority, k.id)
                      AND (- i.priority, i.id) < (CASE WHEN k.behind THEN 2147483647 ELSE k.l_rank END,
                                                  CASE WHEN k.behind THEN 9223372036854775807 ELSE k.l_id END)
                      AND i.not_before <= now_
                      AND NOT EXISTS (SELECT FROM job f WHERE f.state = 'running' AND f.derivation = i.derivation)
                    ORDER BY - i.priority, i.id LIMIT room - 1) j
                 ORDER BY 2 DESC, 1 LIMIT room)
                UNION ALL
                SELECT l.id, l.priority, 0, NULL, l.memory_bytes, l.disk_bytes, l.held, l.gpu, false FROM large l
                ORDER BY 2 DESC, 1) h;
        CONTINUE WHEN x_job IS NULL;
        large := array_position(x_fits, false);
        IF large IS NOT NULL THEN
            waits := true;
            IF x_rank[large] >= 0 THEN
                r_mem := r_mem + x_mem[large];
                r_disk := r_disk + x_disk[large];
                r_gpus := r_gpus + x_gpus[large];
            END IF;
        END IF;
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
              AND (f.gpus = 0 OR f.gpus_all <= gpus_like(free_gpus, f.gpu))
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
