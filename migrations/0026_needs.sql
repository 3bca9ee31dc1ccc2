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

-- --- claiming ------------------------------------------------------------------------------------------------------

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
    h_tag   double precision[];
    h_back  boolean[];
    h_key   bytea[];
    x_job   bigint[];
    x_tag   double precision[];
    x_back  boolean[];
    x_key   bytea[];
    ids     bigint[];
    runs    bigint[];
    last    double precision;
    h_fits  boolean[]; -- what each needs, and whether that is free now
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
    all_free := coalesce(free_memory, memory) >= memory AND coalesce(free_disk, disk) >= disk
                AND cardinality(coalesce(free_gpus, gpus)) = cardinality(gpus);
    free_gpus := coalesce(free_gpus, gpus);
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
        SELECT array_agg(s.id), array_agg(s.tag), array_agg(s.priority < 0), array_agg(s.derivation::bytea),
               count(*) FILTER (WHERE s.priority >= 0 AND array_position(h_key, s.derivation::bytea) IS NULL),
               array_agg(true), array_agg(s.memory_bytes), array_agg(s.disk_bytes), array_agg(s.gpus), array_agg(s.gpu)
            INTO x_job, x_tag, x_back, x_key, more, x_fits, x_mem, x_disk, x_gpus, x_gpu FROM (
                SELECT h.id, h.priority, h.derivation, h.memory_bytes, h.disk_bytes, h.gpus, h.gpu, p.base + (sum(h.expected_s) OVER (ORDER BY h.priority DESC, h.id)
                                                                  - h.expected_s) / p.weight AS tag FROM (
                    SELECT j.* FROM unnest(p.targets) t(target) CROSS JOIN LATERAL (
                        SELECT i.id, i.priority, i.expected_s, i.derivation, i.memory_bytes, i.disk_bytes,
                               job_gpus(i.gpus, i.gpu) AS gpus, i.gpu FROM job i
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
                    ORDER BY j.priority DESC, j.id LIMIT room) h) s;
        IF l_id IS NOT NULL THEN
            h_job := h_job || l_id;
            h_tag := h_tag || coalesce((SELECT min(x.tag) FROM unnest(x_job, x_tag) x(job, tag) JOIN job o ON o.id = x.job
                                        WHERE o.priority < l_prio OR o.priority = l_prio AND o.id > l_id),
                                       (SELECT max(x.tag) + 0.05 / p.weight FROM unnest(x_tag) x(tag)), p.base);
            h_back := h_back || (l_prio < 0);
            h_key := h_key || NULL::bytea;
            h_fits := h_fits || false;
            h_mem := h_mem || l_mem;
            h_disk := h_disk || l_disk;
            h_gpus := h_gpus || l_gpus;
            h_gpu := h_gpu || l_gpu;
            IF l_prio >= 0 THEN
                r_mem := r_mem + l_mem;
                r_disk := r_disk + l_disk;
                r_gpus := r_gpus + l_gpus;
            END IF;
        END IF;
        h_fits := h_fits || x_fits;
        h_mem := h_mem || x_mem;
        h_disk := h_disk || x_disk;
        h_gpus := h_gpus || x_gpus;
        h_gpu := h_gpu || x_gpu;
        h_job := h_job || x_job;
        h_tag := h_tag || x_tag;
        h_back := h_back || x_back;
        h_key := h_key || x_key;
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
    ELSE -- a derivation once, and together no more than is free: all before a job count, also one that has no room yet
        SELECT array_agg(t.job) INTO ids FROM (
            SELECT f.job FROM (
                SELECT h.*, h.key IS NULL OR row_number() OVER (PARTITION BY h.key ORDER BY h.back, h.tag, h.n) = 1 AS first,
                       sum(h.mem) OVER up_to AS mems, sum(h.disk) OVER up_to AS disks, sum(h.gpus) OVER up_to AS gpus_all
                FROM unnest(h_job, h_tag, h_back, h_key, h_fits, h_mem, h_disk, h_gpus, h_gpu) WITH ORDINALITY
                     h(job, tag, back, key, fits, mem, disk, gpus, gpu, n)
                WINDOW up_to AS (ORDER BY h.back, h.tag, h.fits, h.job ROWS UNBOUNDED PRECEDING)) f
            WHERE f.first AND f.fits AND (f.mem = 0 OR f.mems <= free_memory) AND (f.disk = 0 OR f.disks <= free_disk)
              AND (f.gpus = 0 OR f.gpus_all <= gpus_of(free_gpus, f.gpu))
            ORDER BY f.back, f.tag, f.job LIMIT wanted) t;
    END IF;
    IF ids IS NULL THEN
        RETURN;
    END IF;
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
    SELECT max(h.tag) INTO last FROM unnest(h_job, h_tag) h(job, tag) WHERE h.job = ANY (ids);
    UPDATE queue_clock k SET service = last WHERE k.service < last;
    PERFORM FROM run u WHERE u.id = ANY (runs) ORDER BY u.id FOR NO KEY UPDATE; -- as completions do
    WITH begun AS (
        UPDATE run u SET state = 'running', started_at = coalesce(u.started_at, now_), event_seq = u.event_seq + o.begins + o.jobs
            FROM (SELECT r.id, (r.state = 'queued')::integer AS begins, (SELECT count(*) FROM job c WHERE c.run = r.id AND c.id = ANY (ids)) AS jobs
                  FROM run r WHERE r.id = ANY (runs)) o
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

REVOKE ALL ON FUNCTION job_gpus(integer, text), gpus_of(text[], text), attempt_gpu_seconds(),
    queue_claim(text, text[], text[], bigint, bigint, integer, bigint, text[], bigint, bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION job_gpus(integer, text) TO mlopt_server;
GRANT EXECUTE ON FUNCTION queue_claim(text, text[], text[], bigint, bigint, integer, bigint, text[], bigint, bigint) TO mlopt_worker;
