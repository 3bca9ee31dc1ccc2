-- What a claim, a heartbeat and a completion cost, whatever is in them: less. See docs/queue.md.

-- --- checks --------------------------------------------------------------------------------------------------------

-- PostgreSQL reads each check of a table anew from its text, once a statement that changes a row of it: seven of them took
-- longer than the change. One check a table, that calls a function, is a tenth of the text; the conditions are the same.
-- NOT VALID: the constraints that are dropped in the same transaction hold for every row, and a million need not be read under
-- a lock that stops all work.
CREATE FUNCTION job_sound(state text, kind text, token uuid, lease_until timestamptz, expected_s double precision, gpus integer,
                          timeout_s integer) RETURNS boolean LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    RETURN CASE state WHEN 'running' THEN token IS NOT NULL AND lease_until IS NOT NULL
                      ELSE token IS NULL AND lease_until IS NULL AND
                           state IN ('waiting', 'ready', 'succeeded', 'failed', 'cancelled', 'reused') END
        AND kind IN ('derive', 'observe') AND expected_s >= 0 AND gpus BETWEEN 0 AND 64 AND coalesce(timeout_s > 0, true);
END $$;
ALTER TABLE job DROP CONSTRAINT job_state_check, DROP CONSTRAINT job_kind_check, DROP CONSTRAINT job_check,
    DROP CONSTRAINT job_check1, DROP CONSTRAINT job_expected_s_check, DROP CONSTRAINT job_gpus_check,
    DROP CONSTRAINT job_timeout_s_check,
    ADD CONSTRAINT job_sound CHECK (job_sound(state, kind, token, lease_until, expected_s, gpus, timeout_s)) NOT VALID;

CREATE FUNCTION attempt_sound(outcome text, cpu_s double precision, gpu_s double precision, read_bytes bigint,
                              written_bytes bigint, phases text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    RETURN coalesce(outcome IN ('succeeded', 'failed', 'retried', 'lost', 'returned', 'cancelled'), true)
        AND coalesce(cpu_s >= 0, true) AND coalesce(gpu_s >= 0, true) AND coalesce(read_bytes >= 0, true)
        AND coalesce(written_bytes >= 0, true) AND coalesce(octet_length(phases) <= 4096, true);
END $$;
ALTER TABLE attempt DROP CONSTRAINT attempt_outcome_check, DROP CONSTRAINT attempt_cpu_s_check,
    DROP CONSTRAINT attempt_gpu_s_check, DROP CONSTRAINT attempt_read_bytes_check,
    DROP CONSTRAINT attempt_written_bytes_check, DROP CONSTRAINT attempt_phases_check,
    ADD CONSTRAINT attempt_sound CHECK (attempt_sound(outcome, cpu_s, gpu_s, read_bytes, written_bytes, phases)) NOT VALID;

CREATE FUNCTION run_sound(state text, finished_at timestamptz) RETURNS boolean LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    RETURN CASE WHEN finished_at IS NULL THEN state IN ('queued', 'running')
                ELSE state IN ('succeeded', 'failed', 'cancelled') END;
END $$;
ALTER TABLE run DROP CONSTRAINT run_state_check, DROP CONSTRAINT run_check,
    ADD CONSTRAINT run_sound CHECK (run_sound(state, finished_at)) NOT VALID;

CREATE FUNCTION project_queue_sound(weight double precision, max_running integer, gpu_seconds_month double precision,
                                    storage_bytes bigint) RETURNS boolean LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    RETURN weight BETWEEN 0.01 AND 1000 AND coalesce(max_running >= 0, true) AND coalesce(gpu_seconds_month >= 0, true)
        AND coalesce(storage_bytes >= 0, true);
END $$;
ALTER TABLE project_queue DROP CONSTRAINT project_queue_weight_check, DROP CONSTRAINT project_queue_max_running_check,
    DROP CONSTRAINT project_queue_gpu_seconds_month_check, DROP CONSTRAINT project_queue_storage_bytes_check,
    ADD CONSTRAINT project_queue_sound CHECK (project_queue_sound(weight, max_running, gpu_seconds_month, storage_bytes)) NOT VALID;

-- --- triggers ------------------------------------------------------------------------------------------------------

-- So with the condition of a trigger, unless its column is not in the statement, or the function asks it.
DROP TRIGGER webhook_run ON run;
CREATE TRIGGER webhook_run AFTER UPDATE OF finished_at ON run FOR EACH ROW
    WHEN (NEW.finished_at IS NOT NULL AND OLD.finished_at IS NULL) EXECUTE FUNCTION webhook_run();

CREATE OR REPLACE FUNCTION attempt_gpu_seconds() RETURNS trigger LANGUAGE plpgsql SET search_path = mlopt, pg_temp AS $$
BEGIN
    IF NEW.gpus > 0 AND NEW.ended_at IS NOT NULL AND OLD.ended_at IS NULL THEN
        NEW.gpu_s := NEW.gpus * greatest(extract(epoch FROM NEW.ended_at - NEW.started_at), 0);
    END IF;
    RETURN NEW;
END $$;
DROP TRIGGER attempt_gpu_seconds ON attempt;
CREATE TRIGGER attempt_gpu_seconds BEFORE UPDATE OF ended_at ON attempt FOR EACH ROW EXECUTE FUNCTION attempt_gpu_seconds();

-- What attempts used and what they came to, of all that end in a statement at once, however they end: accounting and
-- metrics have one row each, and each attempt one end.
CREATE OR REPLACE FUNCTION attempt_metrics() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = mlopt, pg_temp AS $$
BEGIN
    WITH ended AS MATERIALIZED (
        SELECT a.*, j.project, j.step, j.state, j.expected_s, j.ready_at, j.not_before, j.attempts,
               greatest(extract(epoch FROM a.ended_at - a.started_at), 0) AS wall_s
        FROM after_ a JOIN before_ b ON b.job = a.job AND b.number = a.number JOIN job j ON j.id = a.job
        WHERE a.ended_at IS NOT NULL AND b.ended_at IS NULL
    ), used AS (
        INSERT INTO usage_entry (project, ended_at, wall_s, expected_s, cpu_s, gpu_s, read_bytes, written_bytes, reused, failed)
            SELECT e.project, e.ended_at, e.wall_s, e.expected_s, coalesce(e.cpu_s, 0), coalesce(e.gpu_s, 0),
                   coalesce(e.read_bytes, 0), coalesce(e.written_bytes, 0), e.state = 'reused', e.outcome <> 'succeeded'
            FROM ended e
    )
    INSERT INTO metric_entry (step, outcome, code, wall_s, wait_s, recovery_s, cpu_s, gpu_s, read_bytes, written_bytes)
        SELECT a.step, CASE WHEN a.state = 'reused' THEN 'reused' ELSE a.outcome END,
               CASE WHEN a.error IS NULL THEN '' ELSE coalesce(substring(a.error FROM '"code": ?"([a-z0-9-]{1,40})"'), '') END,
               a.wall_s,
               -- not_before is of the next attempt by now, where there will be one
               CASE WHEN a.ready_at IS NULL THEN NULL -- greatest() would take it for none at all
                    WHEN a.outcome NOT IN ('retried', 'lost', 'returned')
                    THEN greatest(extract(epoch FROM a.started_at - greatest(a.ready_at, a.not_before)), 0)
                    WHEN a.number = 1 THEN greatest(extract(epoch FROM a.started_at - a.ready_at), 0) END,
               -- not where the job failed with the loss and was taken up again by hand; a return has uncounted its attempt
               CASE WHEN a.attempts + (a.outcome = 'returned')::integer > 1 THEN
                   (SELECT greatest(extract(epoch FROM a.started_at - p.lease_until), 0) FROM attempt p
                    WHERE p.job = a.job AND p.number = a.number - 1 AND p.outcome = 'lost'
                        AND p.lease_until IS NOT NULL) END,
               coalesce(a.cpu_s, 0), coalesce(a.gpu_s, 0), coalesce(a.read_bytes, 0), coalesce(a.written_bytes, 0)
        FROM ended a;
    RETURN NULL;
END $$;
DROP TRIGGER attempt_metrics ON attempt;
CREATE TRIGGER attempt_metrics AFTER UPDATE ON attempt REFERENCING OLD TABLE AS before_ NEW TABLE AS after_
    FOR EACH STATEMENT EXECUTE FUNCTION attempt_metrics();
DROP TRIGGER attempt_ended ON attempt;
DROP FUNCTION attempt_ended();
ALTER TABLE attempt DROP COLUMN counted; -- nobody else counts any more

-- --- claiming ------------------------------------------------------------------------------------------------------

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
    clock   double precision;
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
    waits := set_config('synchronous_commit', 'off', true) <> 'off' OR pg_advisory_xact_lock(7708121)::text <> ''; -- no query
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
        SELECT q.project, q.weight, q.service + q.running_s / q.weight AS base, q.max_running, q.gpu_seconds_month, b.targets,
               (SELECT k.service FROM queue_clock k) AS clock
        FROM (SELECT b.project, array_agg(b.target) AS targets FROM busy b WHERE b.target = ANY (offers) GROUP BY b.project) b
        JOIN project_queue q ON q.project = b.project WHERE NOT q.paused
        ORDER BY base, q.project
    LOOP
        EXIT WHEN urgent >= wanted AND p.base >= bound; -- none of its jobs can be before the first ones of those
        clock := p.clock;
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
    IF cardinality(picked) = 1 THEN
        last := tags[1];
    ELSE
        SELECT max(h.tag) INTO last FROM unnest(picked, tags) h(job, tag) WHERE h.job = ANY (ids);
    END IF;
    IF last > clock THEN
        UPDATE queue_clock k SET service = last WHERE k.service < last;
    END IF;
    IF cardinality(runs) > 1 THEN
        PERFORM FROM run u WHERE u.id = ANY (runs) ORDER BY u.id FOR NO KEY UPDATE; -- as completions do
    END IF;
    -- whether a run begins is known: who ends one has all of its jobs, and this call has one
    RETURN QUERY WITH mine AS MATERIALIZED (
        SELECT c.* FROM job c WHERE c.id = ANY (ids)
    ), begun AS (
        UPDATE run u SET state = 'running', started_at = coalesce(u.started_at, now_), event_seq = u.event_seq + o.begins + o.jobs
            FROM (SELECT r.id, (r.state = 'queued')::integer AS begins, count(*) AS jobs
                  FROM mine c JOIN run r ON r.id = c.run GROUP BY r.id) o
            WHERE u.id = o.id RETURNING u.id, o.begins, u.event_seq - o.jobs AS base
    ), told AS (
        INSERT INTO run_event (run, seq, at, kind, data)
            SELECT b.id, b.base, now_, 'run', '{"state":"running"}' FROM begun b WHERE b.begins = 1
            UNION ALL
            SELECT b.id, b.base + row_number() OVER (PARTITION BY c.run ORDER BY c.position), now_, 'job',
                   job_event_data(c.id, c.step, c.name, c.state, c.progress, c.message)
            FROM mine c JOIN begun b ON b.id = c.run
    )
    SELECT c.id, c.run, c.project, u.version, c.position, c.name, c.step, c.kind, c.exclusive, c.spec,
            c.input::bytea, u.source::bytea, u.datasets, u.variant, u.created_by,
            NOT EXISTS (SELECT FROM job e WHERE e.run = c.run AND e.kind = 'derive' AND e.position < c.position),
            NOT EXISTS (SELECT FROM job l WHERE l.run = c.run AND l.kind = 'derive' AND l.position > c.position),
            c.max_attempts,
            (SELECT b.digest::bytea FROM version_blob b WHERE b.version_id = u.version AND b.role = 'labels' ORDER BY b.name LIMIT 1),
            c.token::text, c.attempts, c.claims, c.derivation::bytea, n.step, n.spec,
            c.memory_bytes, c.disk_bytes, job_gpus(c.gpus, c.gpu), c.gpu, c.timeout_s
        FROM mine c JOIN run u ON u.id = c.run
        LEFT JOIN job n ON n.run = c.run AND n.position = c.position + 1 AND n.kind = 'derive' AND c.kind = 'derive'
        ORDER BY c.id;
END $$;

-- --- completing ----------------------------------------------------------------------------------------------------

-- The effect of finished jobs, one element of each array a job: fenced by their tokens, and each as if it were alone. What
-- it says of them, by `n`: 'done'; 'lost' or 'cancelled', whose token is no job's any more; 'apart', where what is known
-- contradicts it (other bytes of the same derivation, a blob that was removed): nothing was done for those.
-- Locks: jobs by id, runs by id, then rows by their keys, so that calls at the same time wait for each other and no more.
-- `over`: no job of the run is left to do; the caller judges and ends the run in the same transaction.
CREATE OR REPLACE FUNCTION queue_complete(jobs bigint[], tokens uuid[], states text[], outputs bytea[], results text[],
                               cpus double precision[], reads bigint[], writes bigint[],
                               -- of what derives, NULL elsewhere; `canonicals` NULL: it was reused
                               sizes bigint[], parents bytea[], keys bytea[], canonicals text[], reports text[],
                               calibrated bytea[], selected bytea[], variants text[], signers text[], envelopes text[],
                               next_keys bytea[])
    RETURNS TABLE (n integer, verdict text, readied boolean, over boolean, named boolean, object text,
                   recipe_name text, recipe text, observed text, size bigint, source_size bigint,
                   was_artifact bytea, was_derivation bytea, was_run bigint)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = mlopt, pg_temp
    SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    now_     timestamptz;
    good     integer[];   -- places of those that are done
    apart    integer[];
    ids      bigint[];    -- of those, and of the jobs that can begin now
    begun    bigint[];
    runs     bigint[];
    woke     bigint[];    -- done ones of the runs of those
    over_    bigint[];    -- runs that have nothing left to do
    wanted   bytea[];     -- what derive steps made
    found    bigint;
    v        record;
    was      record;
    named_   boolean[];
    was_art  bytea[];
    was_der  bytea[];
    was_ru   bigint[];
    waiting  boolean;
    blocked  text := 'waiting'; -- unknown to the planner: by the run's index, not by that of all that wait
BEGIN
    SELECT array_agg(x.n ORDER BY x.n), array_agg(DISTINCT x.run) INTO good, runs FROM (
        SELECT g.n::integer AS n, j.run, j.token FROM unnest(jobs) WITH ORDINALITY g(id, n) JOIN job j ON j.id = g.id
        ORDER BY j.id FOR NO KEY UPDATE OF j) x WHERE x.token = tokens[x.n];
    PERFORM FROM run r WHERE r.id = ANY (runs) ORDER BY r.id FOR NO KEY UPDATE;
    now_ := clock_timestamp();
    IF cardinality(array_remove(keys, NULL)) > 0 THEN
        SELECT array_agg(DISTINCT outputs[g]) INTO wanted FROM unnest(good) g WHERE keys[g] IS NOT NULL;
    END IF;
    IF wanted IS NOT NULL THEN
        SELECT array_agg(g) INTO apart FROM unnest(good) g WHERE keys[g] IS NOT NULL AND
            (EXISTS (SELECT FROM blob b WHERE b.digest = outputs[g] AND b.removed_at IS NOT NULL) OR
             EXISTS (SELECT FROM derivation d WHERE d.key = keys[g] AND d.artifact <> outputs[g]));
        IF apart IS NOT NULL THEN
            SELECT array_agg(g ORDER BY g) INTO good FROM unnest(good) g WHERE g <> ALL (apart);
            SELECT array_agg(DISTINCT outputs[g]) INTO wanted FROM unnest(good) g WHERE keys[g] IS NOT NULL;
        END IF;
    END IF;
    IF wanted IS NOT NULL THEN
        INSERT INTO blob (digest, size) SELECT DISTINCT ON (outputs[g]) outputs[g], sizes[g] FROM unnest(good) g
            WHERE keys[g] IS NOT NULL ORDER BY outputs[g] ON CONFLICT DO NOTHING;
        GET DIAGNOSTICS found = ROW_COUNT;
        IF found <> cardinality(wanted) THEN -- nobody removes what is there until this has ended
            PERFORM FROM blob b WHERE b.digest = ANY (wanted) AND b.removed_at IS NULL ORDER BY b.digest FOR KEY SHARE;
            GET DIAGNOSTICS found = ROW_COUNT;
            IF found <> cardinality(wanted) THEN
                RAISE EXCEPTION 'a blob was removed just now' USING ERRCODE = 'serialization_failure';
            END IF;
        END IF;
        INSERT INTO project_blob (project_id, digest, created_by)
            SELECT DISTINCT ON (r.project, outputs[g]) r.project, outputs[g], r.created_by
            FROM unnest(good) g JOIN job j ON j.id = jobs[g] JOIN run r ON r.id = j.run WHERE keys[g] IS NOT NULL
            ORDER BY r.project, outputs[g] ON CONFLICT (project_id, digest) DO UPDATE SET used_at = now();
        INSERT INTO derivation (key, canonical, step, artifact, size, report)
            SELECT keys[g], canonicals[g], j.step, outputs[g], sizes[g], coalesce(reports[g], '{}')
            FROM unnest(good) g JOIN job j ON j.id = jobs[g] WHERE canonicals[g] IS NOT NULL
            ORDER BY keys[g] ON CONFLICT DO NOTHING;
        IF EXISTS (SELECT FROM unnest(good) g JOIN derivation d ON d.key = keys[g] WHERE d.artifact <> outputs[g]) THEN
            RAISE EXCEPTION 'a derivation was made otherwise just now' USING ERRCODE = 'serialization_failure';
        END IF;
        INSERT INTO lineage_edge (project_id, child, parent, kind, derivation, run_id)
            SELECT r.project, outputs[g], e.parent, e.kind, keys[g], r.id
            FROM unnest(good) g JOIN job j ON j.id = jobs[g] JOIN run r ON r.id = j.run
            CROSS JOIN LATERAL (VALUES (parents[g], 'derived-from'), (calibrated[g], 'calibrated-with'),
                                       (selected[g], 'selected-with')) e(parent, kind)
            WHERE keys[g] IS NOT NULL AND e.parent IS NOT NULL ORDER BY 1, 2, 3, 4 ON CONFLICT DO NOTHING;
        INSERT INTO attestation (project_id, artifact, derivation, signer, envelope, run_id, job_id)
            SELECT j.project, outputs[g], keys[g], signers[g], envelopes[g], j.run, j.id
            FROM unnest(good) g JOIN job j ON j.id = jobs[g] WHERE envelopes[g] IS NOT NULL ORDER BY j.id
            ON CONFLICT DO NOTHING;
        FOR v IN SELECT g, r.version, r.id AS run, r.created_by FROM unnest(good) g JOIN job j ON j.id = jobs[g]
                 JOIN run r ON r.id = j.run WHERE variants[g] IS NOT NULL ORDER BY r.version, variants[g], g LOOP
            SELECT a.artifact, a.derivation, a.run_id INTO was FROM variant a WHERE a.version_id = v.version
                AND a.name = variants[v.g] AND a.deletion_id IS NULL ORDER BY a.id DESC LIMIT 1;
            CONTINUE WHEN was.artifact = outputs[v.g] AND was.derivation IS NOT DISTINCT FROM keys[v.g];
            INSERT INTO variant (version_id, name, artifact, size, derivation, run_id, named_by)
                SELECT v.version, variants[v.g], b.digest, b.size, keys[v.g], v.run, v.created_by FROM blob b
                WHERE b.digest = outputs[v.g];
            named_[v.g] := true;
            was_art[v.g] := was.artifact;
            was_der[v.g] := was.derivation;
            was_ru[v.g] := was.run_id;
        END LOOP;
    END IF;
    IF good IS NOT NULL THEN
        WITH done AS (
            UPDATE job j SET state = states[g], output = outputs[g], result = results[g], token = NULL, lease_until = NULL,
                             error = NULL, progress = 1, message = '', finished_at = now_
                FROM unnest(good) g WHERE j.id = jobs[g] RETURNING g, j.id, j.claims, j.target
        )
        UPDATE attempt a SET ended_at = now_, outcome = 'succeeded', error = NULL, cpu_s = cpus[d.g], read_bytes = reads[d.g],
                             written_bytes = writes[d.g],
                             gpu_s = CASE WHEN d.target LIKE 'cuda%' THEN extract(epoch FROM now_ - a.started_at) ELSE 0 END
            FROM done d WHERE a.job = d.id AND a.number = d.claims;
    END IF;
    SELECT array_agg(l.run) FILTER (WHERE l.all_done), coalesce(bool_or(l.some_wait), false) INTO over_, waiting FROM (
        SELECT x.run, bool_and(x.state IN ('succeeded', 'reused')) AS all_done, bool_or(x.state = 'waiting') AS some_wait
        FROM job x WHERE x.run = ANY (runs) GROUP BY x.run) l;
    IF good IS NOT NULL THEN
        IF waiting THEN
            -- a job works on what the last derive step before it made, else on the upload
            WITH ready AS (
                UPDATE job j SET state = 'ready', ready_at = now_, not_before = now_,
                        derivation = (SELECT next_keys[g] FROM unnest(good) g JOIN job d ON d.id = jobs[g]
                                      WHERE d.run = j.run AND d.position = j.position - 1),
                        input = coalesce((SELECT d.output FROM job d WHERE d.run = j.run AND d.kind = 'derive'
                                          AND d.position < j.position ORDER BY d.position DESC LIMIT 1), r.source)
                    FROM run r WHERE r.id = ANY (runs) AND j.run = r.id AND j.state = blocked AND NOT EXISTS (
                        SELECT FROM job_dep d JOIN job o ON o.id = d.needs
                        WHERE d.job = j.id AND o.state NOT IN ('succeeded', 'reused'))
                    RETURNING j.id, j.run)
            SELECT array_agg(x.id), array_agg(DISTINCT x.run) INTO begun, woke FROM ready x;
            IF woke IS NOT NULL THEN
                woke := ARRAY(SELECT j.id FROM unnest(good) g JOIN job j ON j.id = jobs[g] WHERE j.run = ANY (woke));
            END IF;
        END IF;
        IF cardinality(good) = cardinality(jobs) THEN
            ids := jobs || begun;
        ELSE
            ids := ARRAY(SELECT jobs[g] FROM unnest(good) g) || begun;
        END IF;
        WITH told AS (
            SELECT j.run, row_number() OVER (PARTITION BY j.run ORDER BY j.state = 'ready', j.id) AS k,
                   job_event_data(j.id, j.step, j.name, j.state, j.progress, j.message) AS data
            FROM job j WHERE j.id = ANY (ids)
        ), numbered AS (
            UPDATE run r SET event_seq = r.event_seq + c.many
                FROM (SELECT t.run, count(*) AS many FROM told t GROUP BY t.run) c
                WHERE r.id = c.run RETURNING r.id, r.event_seq - c.many AS base
        )
        INSERT INTO run_event (run, seq, at, kind, data)
            SELECT t.run, b.base + t.k, now_, 'job', t.data FROM told t JOIN numbered b ON b.id = t.run;
    END IF;
    IF coalesce(cardinality(good), 0) < cardinality(jobs) THEN
        RETURN QUERY SELECT g.n::integer, CASE WHEN g.n = ANY (apart) THEN 'apart' WHEN j.state = 'cancelled' THEN 'cancelled'
                                               ELSE 'lost' END, false, false, false, NULL::text, NULL::text, NULL::text, NULL::text,
                            NULL::bigint, NULL::bigint, NULL::bytea, NULL::bytea, NULL::bigint
            FROM unnest(jobs) WITH ORDINALITY g(id, n) LEFT JOIN job j ON j.id = g.id
            WHERE good IS NULL OR g.n <> ALL (good);
    END IF;
    IF named_ IS NULL AND over_ IS NULL THEN
        verdict := 'done';
        over := false;
        named := false;
        FOREACH n IN ARRAY coalesce(good, '{}') LOOP
            readied := coalesce(jobs[n] = ANY (woke), false);
            RETURN NEXT;
        END LOOP;
        RETURN;
    END IF;
    RETURN QUERY
        SELECT d.g, 'done', coalesce(d.id = ANY (woke), false), coalesce(d.over, false), coalesce(named_[d.g], false),
               CASE WHEN d.over OR named_[d.g] THEN p.name || '/' || m.name || '@' || w.number END,
               CASE WHEN d.over THEN r.recipe_name END, CASE WHEN d.over THEN r.recipe END,
               CASE WHEN d.over THEN (SELECT '[' || string_agg(l.result, ',' ORDER BY l.position) || ']' FROM job l
                                      WHERE l.run = r.id AND l.result IS NOT NULL) END,
               CASE WHEN d.over THEN (SELECT b.size FROM job l JOIN blob b ON b.digest = l.output WHERE l.run = r.id
                                      AND l.kind = 'derive' ORDER BY l.position DESC LIMIT 1) END,
               CASE WHEN d.over THEN (SELECT b.size FROM blob b WHERE b.digest = r.source) END,
               was_art[d.g], was_der[d.g], was_ru[d.g]
        FROM (SELECT g, j.id, j.run, -- told with the last of a run's jobs
                     j.run = ANY (over_) AND g = max(g) OVER (PARTITION BY j.run) AS over
              FROM unnest(good) g JOIN job j ON j.id = jobs[g]) d
        JOIN run r ON r.id = d.run JOIN version w ON w.id = r.version JOIN model m ON m.id = w.model_id
        JOIN project p ON p.id = r.project ORDER BY r.project, d.g;
END $$;

-- Checks are asked for by who writes.
REVOKE ALL ON FUNCTION job_sound(text, text, uuid, timestamptz, double precision, integer, integer),
    attempt_sound(text, double precision, double precision, bigint, bigint, text), run_sound(text, timestamptz),
    project_queue_sound(double precision, integer, double precision, bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION job_sound(text, text, uuid, timestamptz, double precision, integer, integer),
    attempt_sound(text, double precision, double precision, bigint, bigint, text), run_sound(text, timestamptz)
    TO mlopt_server, mlopt_worker;
GRANT EXECUTE ON FUNCTION project_queue_sound(double precision, integer, double precision, bigint) TO mlopt_server;
