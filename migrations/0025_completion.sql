-- Completions and heartbeats in one call, for several jobs at once. See docs/queue.md.

-- A claim looks at what its worker offers, and at nothing else: ready jobs of a target that nobody has cost it one look.
DROP INDEX job_ready;
CREATE INDEX job_ready ON job (project, target, priority DESC, id) WHERE state = 'ready';
-- Room in the page for a heartbeat's version of the row.
ALTER TABLE job SET (fillfactor = 85);
ALTER TABLE attempt SET (fillfactor = 85, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);
ALTER TABLE usage_entry SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
ALTER TABLE queue_clock SET (autovacuum_vacuum_threshold = 1000);
ALTER TABLE project_queue DROP COLUMN claimed_at; -- nobody reads it

-- What the writer of the row has locked in the same statement needs no look by a trigger: attempts are made by
-- queue_claim alone, events by who changes the run's row. No job and no run is ever removed.
ALTER TABLE attempt DROP CONSTRAINT attempt_job_fkey;
ALTER TABLE run_event DROP CONSTRAINT run_event_run_fkey;
REVOKE INSERT ON attempt FROM mlopt_worker;

-- Who counts what ended says so in the row, and may only do it in the same transaction; the trigger counts all others.
ALTER TABLE attempt ADD COLUMN counted boolean NOT NULL DEFAULT false;
DROP TRIGGER attempt_ended ON attempt;
CREATE TRIGGER attempt_ended AFTER UPDATE ON attempt FOR EACH ROW
    WHEN (NEW.ended_at IS NOT NULL AND OLD.ended_at IS NULL AND NOT NEW.counted) EXECUTE FUNCTION attempt_ended();

-- The same text as before, put together at a fifth of the cost: json_build_object looks up each argument's type each time.
CREATE OR REPLACE FUNCTION job_event_data(job bigint, step text, name text, state text, progress double precision, message text)
    RETURNS text LANGUAGE sql STABLE AS $$
    SELECT '{"job" : ' || coalesce(job::text, 'null') || ', "step" : ' || coalesce(to_json(step)::text, 'null') ||
           ', "name" : ' || coalesce(to_json(name)::text, 'null') || ', "state" : ' ||
           coalesce(to_json(CASE state WHEN 'waiting' THEN 'blocked' WHEN 'ready' THEN 'queued' WHEN 'reused' THEN 'succeeded'
                            ELSE state END)::text, 'null') ||
           ', "progress" : ' || coalesce(progress::text, 'null') || ', "message" : ' ||
           coalesce(to_json(message)::text, 'null') || '}'
$$;

-- --- heartbeats ----------------------------------------------------------------------------------------------------

-- Prolongs leases, and waits neither for a disk nor for a row that somebody holds. Those that it prolonged: a beat that a
-- crash of the database undoes ends the lease sooner, and loses nothing.
CREATE FUNCTION queue_beat(jobs bigint[], tokens uuid[], lease_ms bigint) RETURNS TABLE (id bigint, token text)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = mlopt, pg_temp
    SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    RETURN QUERY UPDATE job j SET lease_until = clock_timestamp() + lease_ms * interval '1 millisecond'
        WHERE j.id = ANY (ARRAY(SELECT l.id FROM job l WHERE l.id = ANY (jobs) AND l.token = ANY (tokens)
                                FOR NO KEY UPDATE SKIP LOCKED)) AND j.token = ANY (tokens)
        RETURNING j.id, j.token::text;
END $$;

-- --- completing ----------------------------------------------------------------------------------------------------

-- The effect of finished jobs, one element of each array a job: fenced by their tokens, and each as if it were alone. What
-- it says of them, by `n`: 'done'; 'lost' or 'cancelled', whose token is no job's any more; 'apart', where what is known
-- contradicts it (other bytes of the same derivation, a blob that was removed): nothing was done for those.
-- Locks: jobs by id, runs by id, then rows by their keys, so that calls at the same time wait for each other and no more.
-- `over`: no job of the run is left to do; the caller judges and ends the run in the same transaction.
CREATE FUNCTION queue_complete(jobs bigint[], tokens uuid[], states text[], outputs bytea[], results text[],
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
    blocked  text := 'waiting'; -- unknown to the planner: by the run's index, not by that of all that wait
BEGIN
    SELECT array_agg(x.n ORDER BY x.n), array_agg(DISTINCT x.run) INTO good, runs FROM (
        SELECT g.n::integer AS n, j.run, j.token FROM unnest(jobs) WITH ORDINALITY g(id, n) JOIN job j ON j.id = g.id
        ORDER BY j.id FOR NO KEY UPDATE OF j) x WHERE x.token = tokens[x.n];
    PERFORM FROM run r WHERE r.id = ANY (runs) ORDER BY r.id FOR NO KEY UPDATE;
    now_ := clock_timestamp();
    SELECT array_agg(DISTINCT outputs[g]) INTO wanted FROM unnest(good) g WHERE keys[g] IS NOT NULL;
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
        UPDATE job j SET state = states[g], output = outputs[g], result = results[g], token = NULL, lease_until = NULL,
                         error = NULL, progress = 1, message = '', finished_at = now_
            FROM unnest(good) g WHERE j.id = jobs[g];
        WITH ended AS (
            UPDATE attempt a SET ended_at = now_, outcome = 'succeeded', error = NULL, cpu_s = cpus[g], read_bytes = reads[g],
                                 written_bytes = writes[g], counted = true,
                                 gpu_s = CASE WHEN j.target LIKE 'cuda%' THEN extract(epoch FROM now_ - a.started_at) ELSE 0 END
                FROM unnest(good) g JOIN job j ON j.id = jobs[g] WHERE a.job = j.id AND a.number = j.claims
                RETURNING a.started_at, a.cpu_s, a.gpu_s, a.read_bytes, a.written_bytes, j.project, j.expected_s, j.state
        )
        INSERT INTO usage_entry (project, ended_at, wall_s, expected_s, cpu_s, gpu_s, read_bytes, written_bytes, reused, failed)
            SELECT e.project, now_, greatest(extract(epoch FROM now_ - e.started_at), 0), e.expected_s, coalesce(e.cpu_s, 0),
                   coalesce(e.gpu_s, 0), coalesce(e.read_bytes, 0), coalesce(e.written_bytes, 0), e.state = 'reused', false
            FROM ended e;
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
        ids := ARRAY(SELECT jobs[g] FROM unnest(good) g) || begun;
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
    SELECT array_agg(r) INTO over_ FROM unnest(runs) r
        WHERE NOT EXISTS (SELECT FROM job l WHERE l.run = r AND l.state NOT IN ('succeeded', 'reused'));
    IF coalesce(cardinality(good), 0) < cardinality(jobs) THEN
        RETURN QUERY SELECT g.n::integer, CASE WHEN g.n = ANY (apart) THEN 'apart' WHEN j.state = 'cancelled' THEN 'cancelled'
                                               ELSE 'lost' END, false, false, false, NULL::text, NULL::text, NULL::text, NULL::text,
                            NULL::bigint, NULL::bigint, NULL::bytea, NULL::bytea, NULL::bigint
            FROM unnest(jobs) WITH ORDINALITY g(id, n) LEFT JOIN job j ON j.id = g.id
            WHERE good IS NULL OR g.n <> ALL (good);
    END IF;
    IF named_ IS NULL AND over_ IS NULL THEN
        RETURN QUERY SELECT g, 'done', coalesce(jobs[g] = ANY (woke), false), false, false, NULL::text, NULL::text, NULL::text, NULL::text,
                            NULL::bigint, NULL::bigint, NULL::bytea, NULL::bytea, NULL::bigint FROM unnest(good) g;
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

REVOKE ALL ON FUNCTION queue_beat(bigint[], uuid[], bigint),
    queue_complete(bigint[], uuid[], text[], bytea[], text[], double precision[], bigint[], bigint[], bigint[], bytea[], bytea[],
                   text[], text[], bytea[], bytea[], text[], text[], text[], bytea[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION queue_beat(bigint[], uuid[], bigint),
    queue_complete(bigint[], uuid[], text[], bytea[], text[], double precision[], bigint[], bigint[], bigint[], bytea[], bytea[],
                   text[], text[], bytea[], bytea[], text[], text[], text[], bytea[]) TO mlopt_worker;
