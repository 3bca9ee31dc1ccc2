-- additive
-- What attempts came to, counted as they are settled, so that a scrape of metrics reads some hundred rows however many
-- jobs there were, and every server says the same; and where an attempt's time went, for the waterfall of its run. See
-- docs/observability.md.

ALTER TABLE attempt ADD COLUMN lease_until timestamptz,              -- of one that was lost: when its lease ended
                    ADD COLUMN phases text CHECK (octet_length(phases) <= 4096); -- JSON: {"name": [from_s, to_s]…}

ALTER TABLE usage_entry ADD COLUMN step       text NOT NULL DEFAULT '', -- '': of before this, counted in no metric
                        ADD COLUMN outcome    text NOT NULL DEFAULT '', -- of the attempt; 'reused' where no work was done
                        ADD COLUMN code       text NOT NULL DEFAULT '', -- of the error
                        ADD COLUMN wait_s     double precision,         -- from ready to claimed; NULL: not known any more
                        ADD COLUMN recovery_s double precision; -- from the end of the lost lease before it to its claim

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

CREATE OR REPLACE FUNCTION attempt_ended() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = mlopt, pg_temp AS $$
BEGIN
    INSERT INTO usage_entry (project, ended_at, wall_s, expected_s, cpu_s, gpu_s, read_bytes, written_bytes, reused, failed,
                             step, outcome, code, wait_s, recovery_s)
        SELECT j.project, NEW.ended_at, greatest(extract(epoch FROM NEW.ended_at - NEW.started_at), 0), j.expected_s,
               coalesce(NEW.cpu_s, 0), coalesce(NEW.gpu_s, 0), coalesce(NEW.read_bytes, 0), coalesce(NEW.written_bytes, 0),
               j.state = 'reused', NEW.outcome <> 'succeeded', j.step,
               CASE WHEN j.state = 'reused' THEN 'reused' ELSE NEW.outcome END,
               CASE WHEN NEW.error IS NULL THEN '' ELSE coalesce(substring(NEW.error FROM '"code": ?"([a-z0-9-]{1,40})"'), '') END,
               -- not_before is of the next attempt by now, where there will be one
               CASE WHEN NEW.outcome NOT IN ('retried', 'lost', 'returned')
                    THEN greatest(extract(epoch FROM NEW.started_at - greatest(j.ready_at, j.not_before)), 0)
                    WHEN NEW.number = 1 THEN greatest(extract(epoch FROM NEW.started_at - j.ready_at), 0) END,
               CASE WHEN NEW.number > 1 THEN
                   (SELECT greatest(extract(epoch FROM NEW.started_at - p.lease_until), 0) FROM attempt p
                    WHERE p.job = NEW.job AND p.number = NEW.number - 1 AND p.outcome = 'lost') END
        FROM job j WHERE j.id = NEW.job;
    RETURN NULL;
END $$;

-- What queue_settle takes is counted in its transaction: each attempt once.
CREATE FUNCTION usage_settled() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = mlopt, pg_temp AS $$
BEGIN
    INSERT INTO metric_attempt AS m
        SELECT g.step, g.outcome, g.code, count(*), sum(g.wall_s), sum(g.cpu_s), sum(g.gpu_s), sum(g.read_bytes),
               sum(g.written_bytes)
        FROM gone g WHERE g.step <> '' GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
    ON CONFLICT (step, outcome, code) DO UPDATE SET attempts = m.attempts + excluded.attempts,
        wall_s = m.wall_s + excluded.wall_s, cpu_s = m.cpu_s + excluded.cpu_s, gpu_s = m.gpu_s + excluded.gpu_s,
        read_bytes = m.read_bytes + excluded.read_bytes, written_bytes = m.written_bytes + excluded.written_bytes;
    INSERT INTO metric_histogram AS h
        SELECT v.name, v.step, metric_bucket(v.value), count(*), sum(v.value)
        FROM gone g CROSS JOIN LATERAL (VALUES ('run', g.step, CASE WHEN g.outcome <> 'reused' THEN g.wall_s END),
                                               ('wait', g.step, g.wait_s), ('recovery', '', g.recovery_s)) v(name, step, value)
        WHERE g.step <> '' AND v.value IS NOT NULL GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
    ON CONFLICT (name, step, bucket) DO UPDATE SET count = h.count + excluded.count, sum = h.sum + excluded.sum;
    RETURN NULL;
END $$;
CREATE TRIGGER usage_settled AFTER DELETE ON usage_entry REFERENCING OLD TABLE AS gone FOR EACH STATEMENT
    EXECUTE FUNCTION usage_settled();

REVOKE ALL ON FUNCTION attempt_ended(), usage_settled(), metric_bounds(), metric_bucket(double precision) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION metric_bounds() TO mlopt_server;
GRANT SELECT ON metric_attempt, metric_histogram TO mlopt_server;
GRANT UPDATE (lease_until, phases) ON attempt TO mlopt_worker;
