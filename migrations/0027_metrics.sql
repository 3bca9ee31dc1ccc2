-- additive
-- What attempts came to, counted as they are settled, so that a scrape of metrics reads some hundred rows however many
-- jobs there were, and every server says the same; and where an attempt's time went, for the waterfall of its run. See
-- docs/observability.md.

ALTER TABLE attempt ADD COLUMN lease_until timestamptz,              -- of one that was lost: when its lease ended
                    ADD COLUMN phases text CHECK (octet_length(phases) <= 4096); -- JSON: [["name", from_s, to_s], …]

-- Attempts that ended and are in no metric yet: rows are added where attempts end, and taken by queue_settle. A crash of
-- the database forgets them (half a second's), and only them.
CREATE UNLOGGED TABLE metric_entry (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    step          text NOT NULL,
    outcome       text NOT NULL,                         -- of the attempt; 'reused' where no work was done
    code          text NOT NULL,                         -- of the error
    wall_s        double precision NOT NULL,
    wait_s        double precision,                      -- from ready to claimed; NULL: not known any more
    recovery_s    double precision,                      -- from the end of the lost lease before it to its claim
    cpu_s         double precision NOT NULL,
    gpu_s         double precision NOT NULL,
    read_bytes    double precision NOT NULL,
    written_bytes double precision NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

-- Written by queue_settle alone, one at a time.
CREATE TABLE metric_attempt (
    step          text NOT NULL,
    outcome       text NOT NULL,
    code          text NOT NULL,
    attempts      bigint NOT NULL,
    wall_s        double precision NOT NULL,
    cpu_s         double precision NOT NULL,
    gpu_s         double precision NOT NULL,
    read_bytes    double precision NOT NULL,
    written_bytes double precision NOT NULL,
    PRIMARY KEY (step, outcome, code)
) WITH (fillfactor = 30);

-- bucket: how many of metric_bounds() are smaller than the value.
CREATE TABLE metric_histogram (
    name   text NOT NULL CHECK (name IN ('wait', 'run', 'recovery')),
    step   text NOT NULL,
    bucket integer NOT NULL,
    count  bigint NOT NULL,
    sum    double precision NOT NULL,
    PRIMARY KEY (name, step, bucket)
) WITH (fillfactor = 30);

-- Seconds; never to be changed: what was counted was counted by them.
CREATE FUNCTION metric_bounds() RETURNS double precision[] LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ARRAY[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 14400]::double precision[]
$$;

-- A value equal to a bound is within it, as Prometheus has it ("le"); width_bucket has it the other way round.
CREATE FUNCTION metric_bucket(value double precision) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT 17 - width_bucket(-value, ARRAY[-14400, -3600, -900, -300, -60, -30, -10, -5, -2.5, -1, -0.5, -0.25, -0.1, -0.05,
                                           -0.025, -0.01, -0.005]::double precision[])
$$;

-- By statement, however the attempts end: one at a time, or many by one call. A row does not change any more after its
-- attempt's end, so that one with an end has just got it.
CREATE FUNCTION attempt_metrics() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = mlopt, pg_temp AS $$
BEGIN
    INSERT INTO metric_entry (step, outcome, code, wall_s, wait_s, recovery_s, cpu_s, gpu_s, read_bytes, written_bytes)
        SELECT j.step, CASE WHEN j.state = 'reused' THEN 'reused' ELSE a.outcome END,
               CASE WHEN a.error IS NULL THEN '' ELSE coalesce(substring(a.error FROM '"code": ?"([a-z0-9-]{1,40})"'), '') END,
               greatest(extract(epoch FROM a.ended_at - a.started_at), 0),
               -- not_before is of the next attempt by now, where there will be one
               CASE WHEN j.ready_at IS NULL THEN NULL -- greatest() would take it for none at all
                    WHEN a.outcome NOT IN ('retried', 'lost', 'returned')
                    THEN greatest(extract(epoch FROM a.started_at - greatest(j.ready_at, j.not_before)), 0)
                    WHEN a.number = 1 THEN greatest(extract(epoch FROM a.started_at - j.ready_at), 0) END,
               -- not where the job failed with the loss and was taken up again by hand; a return has uncounted its attempt
               CASE WHEN j.attempts + (a.outcome = 'returned')::integer > 1 THEN
                   (SELECT greatest(extract(epoch FROM a.started_at - p.lease_until), 0) FROM attempt p
                    WHERE p.job = a.job AND p.number = a.number - 1 AND p.outcome = 'lost'
                        AND p.lease_until IS NOT NULL) END,
               coalesce(a.cpu_s, 0), coalesce(a.gpu_s, 0), coalesce(a.read_bytes, 0), coalesce(a.written_bytes, 0)
        FROM after_ a JOIN job j ON j.id = a.job WHERE a.ended_at IS NOT NULL;
    RETURN NULL;
END $$;
CREATE TRIGGER attempt_metrics AFTER UPDATE ON attempt REFERENCING NEW TABLE AS after_
    FOR EACH STATEMENT EXECUTE FUNCTION attempt_metrics();

-- Whenever queue_settle counts what was used, one at a time: each attempt once.
CREATE FUNCTION metric_settle() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = mlopt, pg_temp AS $$
BEGIN
    WITH ended AS (
        DELETE FROM metric_entry WHERE id IN (SELECT e.id FROM metric_entry e ORDER BY e.id LIMIT 20000) RETURNING *
    ), counted AS (
        INSERT INTO metric_attempt AS m
            SELECT e.step, e.outcome, e.code, count(*), sum(e.wall_s), sum(e.cpu_s), sum(e.gpu_s), sum(e.read_bytes),
                   sum(e.written_bytes)
            FROM ended e GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
        ON CONFLICT (step, outcome, code) DO UPDATE SET attempts = m.attempts + excluded.attempts,
            wall_s = m.wall_s + excluded.wall_s, cpu_s = m.cpu_s + excluded.cpu_s, gpu_s = m.gpu_s + excluded.gpu_s,
            read_bytes = m.read_bytes + excluded.read_bytes, written_bytes = m.written_bytes + excluded.written_bytes
    )
    INSERT INTO metric_histogram AS h
        SELECT v.name, v.step, metric_bucket(v.value), count(*), sum(v.value)
        FROM ended e CROSS JOIN LATERAL (VALUES ('run', e.step, CASE WHEN e.outcome <> 'reused' THEN e.wall_s END),
                                                ('wait', e.step, e.wait_s), ('recovery', '', e.recovery_s)) v(name, step, value)
        WHERE v.value IS NOT NULL GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
    ON CONFLICT (name, step, bucket) DO UPDATE SET count = h.count + excluded.count, sum = h.sum + excluded.sum;
    RETURN NULL;
END $$;
CREATE TRIGGER metric_settle AFTER DELETE ON usage_entry FOR EACH STATEMENT EXECUTE FUNCTION metric_settle();

REVOKE ALL ON FUNCTION attempt_metrics(), metric_settle(), metric_bounds(), metric_bucket(double precision) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION metric_bounds() TO mlopt_server;
GRANT SELECT ON metric_attempt, metric_histogram TO mlopt_server;
GRANT UPDATE (lease_until, phases) ON attempt TO mlopt_worker;
