-- Whose turn it is: shares, limits and pauses of projects, claims of several jobs in one statement, and what attempts
-- cost. See docs/queue.md.
--
-- Fair queueing by start tags (Goyal, Vin, Cheng: Start-time Fair Queueing, SIGCOMM 1996): `service` is the time that a
-- project's jobs had, over its weight; the project with the least is next. A claim charges what every job takes at
-- least; queue_settle adds what it took beyond that, and counts what runs as it stands.

CREATE TABLE project_queue (
    project           bigint PRIMARY KEY REFERENCES project,
    weight            double precision NOT NULL DEFAULT 1 CHECK (weight BETWEEN 0.01 AND 1000),
    max_running       integer CHECK (max_running >= 0),               -- jobs at once; NULL: no limit
    gpu_seconds_month double precision CHECK (gpu_seconds_month >= 0), -- a calendar month, UTC; NULL: no limit
    paused            boolean NOT NULL DEFAULT false,                 -- nothing of it is claimed
    paused_by         text,
    paused_at         timestamptz,
    paused_reason     text,
    service           double precision NOT NULL DEFAULT 0,
    running_s         double precision NOT NULL DEFAULT 0,            -- of what runs: not in `service` yet
    claimed_at        timestamptz,                                    -- of its last job
    idle              boolean NOT NULL DEFAULT true                   -- nothing of it was ready at the last settling
) WITH (fillfactor = 20); -- rewritten at each claim: room in the page for it

-- The paper's virtual time: the greatest start tag of what was claimed, or that of who is next by now; once nothing is
-- left to do the greatest service. Who comes back from idling begins there.
CREATE TABLE queue_clock (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    service  double precision NOT NULL DEFAULT 0
) WITH (fillfactor = 20);
INSERT INTO queue_clock DEFAULT VALUES;
INSERT INTO project_queue (project) SELECT id FROM project;

CREATE FUNCTION project_queue_of_new() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = mlopt, pg_temp AS $$
BEGIN
    INSERT INTO project_queue (project, service) SELECT NEW.id, service FROM queue_clock;
    RETURN NULL;
END $$;
CREATE TRIGGER project_queue_of_new AFTER INSERT ON project FOR EACH ROW EXECUTE FUNCTION project_queue_of_new();

ALTER TABLE job ADD COLUMN expected_s double precision NOT NULL DEFAULT 0.05 CHECK (expected_s >= 0), -- charged by a claim
                ADD COLUMN memory_bytes bigint NOT NULL DEFAULT 0,    -- what a worker must have; 0: anything will do
                ADD COLUMN disk_bytes bigint NOT NULL DEFAULT 0,
                ADD COLUMN gpu text;                                  -- a GPU model; NULL: any
DROP INDEX job_ready, job_lease; -- without an index on it, a heartbeat is an update in its page
CREATE INDEX job_ready ON job (project, priority DESC, id) WHERE state = 'ready';
CREATE INDEX job_running ON job (project) WHERE state = 'running';
CREATE INDEX job_waiting ON job (id) WHERE state = 'waiting';
CREATE INDEX job_failed ON job (id) WHERE state = 'failed';
-- Finished jobs stay in the table, in none of these indexes: vacuumed by what changes, not by what is there.
ALTER TABLE job SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
                     autovacuum_analyze_scale_factor = 0.02);
ALTER TABLE run SET (fillfactor = 60, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

-- --- what attempts cost --------------------------------------------------------------------------------------------

ALTER TABLE attempt ADD COLUMN cpu_s double precision CHECK (cpu_s >= 0), -- of the child; NULL: not known (it was lost)
                    ADD COLUMN gpu_s double precision CHECK (gpu_s >= 0), -- GPUs it held, times how long
                    ADD COLUMN read_bytes bigint CHECK (read_bytes >= 0),    -- inputs it was given
                    ADD COLUMN written_bytes bigint CHECK (written_bytes >= 0); -- what it put into the blob store

-- Ended, not counted yet: rows are only added by attempts, and taken by queue_settle, so that nobody waits for a total.
CREATE TABLE usage_entry (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    project       bigint NOT NULL,
    ended_at      timestamptz NOT NULL,
    wall_s        double precision NOT NULL,
    expected_s    double precision NOT NULL,
    cpu_s         double precision NOT NULL,
    gpu_s         double precision NOT NULL,
    read_bytes    bigint NOT NULL,
    written_bytes bigint NOT NULL,
    reused        boolean NOT NULL,
    failed        boolean NOT NULL
);

CREATE TABLE usage_month (
    project       bigint NOT NULL REFERENCES project,
    month         date NOT NULL,                          -- its first day, UTC
    attempts      bigint NOT NULL,
    reused        bigint NOT NULL,                        -- of them: no work was done
    failed        bigint NOT NULL,                        -- of them: made nothing
    wall_s        double precision NOT NULL,
    cpu_s         double precision NOT NULL,
    gpu_s         double precision NOT NULL,
    read_bytes    bigint NOT NULL,
    written_bytes bigint NOT NULL,
    PRIMARY KEY (project, month)
) WITH (fillfactor = 50);

CREATE FUNCTION attempt_ended() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = mlopt, pg_temp AS $$
BEGIN
    INSERT INTO usage_entry (project, ended_at, wall_s, expected_s, cpu_s, gpu_s, read_bytes, written_bytes, reused, failed)
        SELECT j.project, NEW.ended_at, greatest(extract(epoch FROM NEW.ended_at - NEW.started_at), 0), j.expected_s,
               coalesce(NEW.cpu_s, 0), coalesce(NEW.gpu_s, 0), coalesce(NEW.read_bytes, 0), coalesce(NEW.written_bytes, 0),
               j.state = 'reused', NEW.outcome <> 'succeeded'
        FROM job j WHERE j.id = NEW.job;
    RETURN NULL;
END $$;
CREATE TRIGGER attempt_ended AFTER UPDATE ON attempt FOR EACH ROW
    WHEN (NEW.ended_at IS NOT NULL AND OLD.ended_at IS NULL) EXECUTE FUNCTION attempt_ended();

-- --- claiming ------------------------------------------------------------------------------------------------------

-- A job in an event of its run, as docs/api.md has it.
CREATE FUNCTION job_event_data(job bigint, step text, name text, state text, progress double precision, message text)
    RETURNS text LANGUAGE sql STABLE AS $$
    SELECT json_build_object('job', job, 'step', step, 'name', name, 'state', CASE state WHEN 'waiting' THEN 'blocked'
        WHEN 'ready' THEN 'queued' WHEN 'reused' THEN 'succeeded' ELSE state END, 'progress', progress,
        'message', message)::text
$$;

-- Up to `wanted` jobs for a worker that offers these targets, GPU models and room. One claim at a time chooses, so that
-- shares are exact; it holds the lock for its statements only: nothing is lost with a claim that a crash of the
-- database undoes (its token is refused then), so its commit waits for no disk.
-- Order: jobs of negative priority after all others; between projects, the least service; in a project, priority, age.
CREATE FUNCTION queue_claim(who text, offers text[], gpus text[], memory bigint, disk bigint, wanted integer, lease_ms bigint)
    RETURNS TABLE (id bigint, run bigint, project bigint, version bigint, "position" integer, name text, step text,
                   kind text, exclusive boolean, spec text, input bytea, source bytea, datasets text, variant text,
                   created_by text, from_source boolean, last_derive boolean, max_attempts integer, labels bytea,
                   token text, attempts integer, claims integer, derivation bytea)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = mlopt, pg_temp
    -- planned once a connection, by index whatever the statistics say: planning would take longer than claiming
    SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    now_  timestamptz;
    month_ date;
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true), pg_advisory_xact_lock(7708121);
    now_ := clock_timestamp(); -- what follows is one statement, whose snapshot is taken under the lock
    month_ := date_trunc('month', now_ AT TIME ZONE 'UTC')::date;
    RETURN QUERY
    WITH RECURSIVE busy(project) AS ( -- projects with ready jobs, one look into the index each
        (SELECT j.project FROM job j WHERE j.state = 'ready' ORDER BY j.project LIMIT 1)
        UNION ALL
        SELECT (SELECT j.project FROM job j WHERE j.state = 'ready' AND j.project > b.project ORDER BY j.project LIMIT 1)
        FROM busy b WHERE b.project IS NOT NULL
    ), open AS (
        SELECT q.project, q.weight, q.service + q.running_s / q.weight AS base,
               CASE WHEN q.max_running IS NULL THEN wanted
                    ELSE least(wanted, q.max_running - (SELECT count(*) FROM job a WHERE a.state = 'running' AND
                                                                                         a.project = q.project)) END AS room,
               q.gpu_seconds_month IS NULL OR q.gpu_seconds_month > coalesce((SELECT u.gpu_s FROM usage_month u
                   WHERE u.project = q.project AND u.month = month_), 0) AS gpu
        FROM busy b JOIN project_queue q ON q.project = b.project WHERE NOT q.paused
    ), heads AS (
        SELECT o.project, o.weight, o.base, h.* FROM open o CROSS JOIN LATERAL (
            SELECT j.id AS job, j.priority, j.expected_s, j.derivation FROM job j
            WHERE j.state = 'ready' AND j.project = o.project AND j.not_before <= now_ AND j.target = ANY (offers)
              AND j.memory_bytes <= memory AND j.disk_bytes <= disk AND (j.gpu IS NULL OR j.gpu = ANY (gpus))
              AND (o.gpu OR j.target NOT LIKE 'cuda%')
              -- one that somebody is making already is passed over: once made, it is reused
              AND NOT EXISTS (SELECT FROM job f WHERE f.state = 'running' AND f.derivation = j.derivation)
            ORDER BY j.priority DESC, j.id LIMIT greatest(o.room, 0)) h
    ), tagged AS (
        SELECT h.job, h.priority, h.base + (sum(h.expected_s) OVER (PARTITION BY h.project ORDER BY h.priority DESC, h.job)
                   - h.expected_s) / h.weight AS tag,
               h.derivation IS NULL OR row_number() OVER (PARTITION BY h.derivation ORDER BY h.base, h.priority DESC, h.job) = 1
                   AS first
        FROM heads h
    ), picked AS (
        SELECT t.job, t.tag FROM tagged t WHERE t.first ORDER BY t.priority < 0, t.tag, t.job LIMIT wanted
    ), mine AS ( -- without those that somebody else holds: their run is being ended
        SELECT j.id FROM picked k JOIN job j ON j.id = k.job WHERE j.state = 'ready' FOR UPDATE OF j SKIP LOCKED
    ), claimed AS (
        UPDATE job j SET state = 'running', token = gen_random_uuid(), worker = who, attempts = j.attempts + 1,
                         lease_until = now_ + lease_ms * interval '1 millisecond', claims = j.claims + 1, progress = 0,
                         message = '', started_at = coalesce(j.started_at, now_)
            FROM mine m WHERE j.id = m.id RETURNING j.*
    ), tried AS (
        INSERT INTO attempt (job, number, token, worker, started_at) SELECT c.id, c.claims, c.token, who, now_ FROM claimed c
    ), charged AS (
        UPDATE project_queue q SET service = q.service + c.cost / q.weight, claimed_at = now_
            FROM (SELECT x.project, sum(x.expected_s) AS cost FROM claimed x GROUP BY x.project) c WHERE q.project = c.project
    ), clocked AS (
        UPDATE queue_clock k SET service = n.tag
            FROM (SELECT max(p.tag) AS tag FROM picked p JOIN claimed c ON c.id = p.job) n WHERE k.service < n.tag
    ), runs AS (
        SELECT u.id, (u.state = 'queued')::integer AS begins, u.event_seq FROM run u
            WHERE u.id = ANY (ARRAY(SELECT c.run FROM claimed c)) FOR NO KEY UPDATE
    ), begun AS (
        UPDATE run u SET state = 'running', started_at = coalesce(u.started_at, now_),
                         event_seq = r.event_seq + r.begins + (SELECT count(*) FROM claimed c WHERE c.run = r.id)
            FROM runs r WHERE u.id = r.id
    ), told AS (
        INSERT INTO run_event (run, seq, at, kind, data)
            SELECT r.id, r.event_seq + 1, now_, 'run', '{"state":"running"}' FROM runs r WHERE r.begins = 1
            UNION ALL
            SELECT r.id, r.event_seq + r.begins + row_number() OVER (PARTITION BY c.run ORDER BY c.position), now_, 'job',
                   job_event_data(c.id, c.step, c.name, c.state, c.progress, c.message)
            FROM claimed c JOIN runs r ON r.id = c.run
    )
    SELECT c.id, c.run, c.project, u.version, c.position, c.name, c.step, c.kind, c.exclusive, c.spec,
            c.input::bytea, u.source::bytea, u.datasets, u.variant, u.created_by,
            NOT EXISTS (SELECT FROM job e WHERE e.run = c.run AND e.kind = 'derive' AND e.position < c.position),
            NOT EXISTS (SELECT FROM job l WHERE l.run = c.run AND l.kind = 'derive' AND l.position > c.position),
            c.max_attempts,
            (SELECT b.digest::bytea FROM version_blob b WHERE b.version_id = u.version AND b.role = 'labels' ORDER BY b.name LIMIT 1),
            c.token::text, c.attempts, c.claims, c.derivation::bytea
        FROM claimed c JOIN run u ON u.id = c.run ORDER BY c.id;
END $$;

-- Twice a second, by one worker at a time: what ended goes into the months' totals and, in place of what was expected of
-- it, into the projects' service; what runs longer than expected is counted as it stands. Every job counts 50 ms at
-- least, which starting it costs. Who has nothing to do saves nothing up; who waits for a worker that suits it, at most
-- a minute. Returns the entries that it took, NULL where another is at it.
CREATE FUNCTION queue_settle(most integer) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = mlopt, pg_temp AS $$
DECLARE
    least_s CONSTANT double precision := 0.05;
    saved_s CONSTANT double precision := 60;
    now_ timestamptz;
    clock double precision;
    taken integer;
BEGIN
    -- who settles is the thread of a worker that beats: it does not wait long
    PERFORM set_config('synchronous_commit', 'off', true), set_config('lock_timeout', '1s', true);
    IF NOT pg_try_advisory_xact_lock(7708122) THEN
        RETURN NULL;
    END IF;
    PERFORM pg_advisory_xact_lock(7708121); -- a claim locks several rows of project_queue too
    now_ := clock_timestamp();
    WITH ended AS (
        DELETE FROM usage_entry WHERE id IN (SELECT e.id FROM usage_entry e ORDER BY e.id LIMIT most) RETURNING *
    ), months AS (
        INSERT INTO usage_month AS u
            SELECT e.project, date_trunc('month', e.ended_at AT TIME ZONE 'UTC')::date AS month, count(*),
                   count(*) FILTER (WHERE e.reused), count(*) FILTER (WHERE e.failed), sum(e.wall_s), sum(e.cpu_s),
                   sum(e.gpu_s), sum(e.read_bytes), sum(e.written_bytes)
            FROM ended e GROUP BY e.project, 2 ORDER BY e.project, 2
        ON CONFLICT (project, month) DO UPDATE SET attempts = u.attempts + excluded.attempts,
            reused = u.reused + excluded.reused, failed = u.failed + excluded.failed, wall_s = u.wall_s + excluded.wall_s,
            cpu_s = u.cpu_s + excluded.cpu_s, gpu_s = u.gpu_s + excluded.gpu_s,
            read_bytes = u.read_bytes + excluded.read_bytes, written_bytes = u.written_bytes + excluded.written_bytes
    ), cost AS (
        SELECT e.project, sum(greatest(e.wall_s, least_s) - e.expected_s) AS more FROM ended e GROUP BY e.project
    ), running AS (
        SELECT j.project, sum(greatest(extract(epoch FROM now_ - a.started_at) - j.expected_s, 0)) AS more
        FROM job j JOIN attempt a ON a.job = j.id AND a.number = j.claims WHERE j.state = 'running' GROUP BY j.project
    ), counted AS (
        UPDATE project_queue q SET service = q.service + coalesce(c.more, 0) / q.weight, running_s = coalesce(r.more, 0)
            FROM project_queue p LEFT JOIN cost c ON c.project = p.project LEFT JOIN running r ON r.project = p.project
            WHERE q.project = p.project AND (c.more <> 0 OR q.running_s <> coalesce(r.more, 0))
    )
    SELECT count(*) INTO taken FROM ended;
    -- what runs is in no tag of a claim yet: the clock goes on to who is next, if not limited
    UPDATE queue_clock k SET service = n.service FROM (
        SELECT CASE WHEN EXISTS (SELECT FROM job WHERE state = 'ready') OR EXISTS (SELECT FROM job WHERE state = 'running')
                    THEN min(t.tag) FILTER (WHERE t.open) ELSE max(t.tag) END AS service
        FROM (SELECT p.service + p.running_s / p.weight AS tag, NOT p.paused
                     AND EXISTS (SELECT FROM job j WHERE j.state = 'ready' AND j.project = p.project)
                     AND (p.max_running IS NULL OR p.max_running > (SELECT count(*) FROM job j WHERE j.state = 'running' AND
                                                                                         j.project = p.project))
                     AND (NOT p.idle OR p.service + p.running_s / p.weight > c.service) AS open -- no newcomer
              FROM project_queue p CROSS JOIN queue_clock c) t) n WHERE k.service < n.service;
    SELECT k.service INTO clock FROM queue_clock k;
    -- who began since the last time begins where the others are by now
    UPDATE project_queue q SET idle = w.idle, service = greatest(q.service, clock - q.running_s / q.weight -
                                                   CASE WHEN w.idle OR q.idle THEN 0 ELSE saved_s / q.weight END)
        FROM (SELECT p.project, NOT EXISTS (SELECT FROM job j WHERE j.state = 'ready' AND j.project = p.project) AS idle
              FROM project_queue p) w
        WHERE w.project = q.project AND (q.idle <> w.idle OR q.service + q.running_s / q.weight < clock - 1e-9 -
                                                   CASE WHEN w.idle OR q.idle THEN 0 ELSE saved_s / q.weight END);
    RETURN taken;
END $$;

-- --- grants --------------------------------------------------------------------------------------------------------

REVOKE ALL ON FUNCTION project_queue_of_new(), attempt_ended(), queue_settle(integer),
    queue_claim(text, text[], text[], bigint, bigint, integer, bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION queue_settle(integer), queue_claim(text, text[], text[], bigint, bigint, integer, bigint)
    TO mlopt_worker;
GRANT SELECT ON project_queue, usage_entry, usage_month TO mlopt_server, mlopt_worker;
GRANT UPDATE (weight, max_running, gpu_seconds_month, paused, paused_by, paused_at, paused_reason) ON project_queue
    TO mlopt_server;
GRANT UPDATE (cpu_s, gpu_s, read_bytes, written_bytes) ON attempt TO mlopt_worker;
