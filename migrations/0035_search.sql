-- additive
-- A search plans its next jobs in the transaction that completes the job which chose them, once: behind that job there is
-- nothing yet but what this transaction planned. It is the transaction that this asks for, not the token, which the completion
-- has taken away by then. Who planned what is told by created_at, which is the transaction's own time and which a worker may
-- not change: a row's xmin alone it gets by any update.

CREATE FUNCTION search_plan(parent bigint, place integer, name text, step text, kind text, target text, exclusive boolean,
                            state text, spec text, input bytea, derivation bytea, memory_bytes bigint, disk_bytes bigint,
                            gpus integer, gpu text, timeout_s integer, estimated text[], needs bigint[])
    RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = mlopt, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    p    record;
    made bigint;
BEGIN
    SELECT j.run, j.project, j.priority INTO p FROM job j JOIN run r ON r.id = j.run
        WHERE j.id = parent AND j.step = 'search' AND j.state = 'succeeded' AND r.state = 'running'
          AND j.xmin = pg_current_xact_id()::xid
          AND place = (SELECT max(o.position) FROM job o WHERE o.run = j.run) + 1
          AND NOT EXISTS (SELECT FROM job o WHERE o.run = j.run AND o.position > j.position AND o.created_at <> now());
    IF NOT FOUND OR place >= 4096 OR state NOT IN ('ready', 'waiting') OR json_typeof(spec::json) <> 'object' OR
       EXISTS (SELECT FROM unnest(needs) n WHERE NOT EXISTS (SELECT FROM job o WHERE o.id = n AND o.run = p.run)) THEN
        RAISE EXCEPTION 'only the search that chose a job plans it' USING ERRCODE = 'insufficient_privilege';
    END IF;
    INSERT INTO job (run, project, position, name, step, kind, target, exclusive, state, priority, spec, input, ready_at, derivation,
                     memory_bytes, disk_bytes, gpus, gpu, timeout_s, estimated)
        VALUES (p.run, p.project, place, name, step, kind, target, exclusive, state, p.priority, spec, input,
                CASE WHEN state = 'ready' THEN clock_timestamp() END, derivation, memory_bytes, disk_bytes, gpus, gpu,
                nullif(timeout_s, 0), estimated)
        RETURNING job.id INTO made;
    INSERT INTO job_dep (job, needs) SELECT made, n FROM unnest(needs) n;
    RETURN made;
END $$;

-- A candidate that failed is out of the search, which goes on without it: what waits for the failed job is cancelled, and the
-- next choice waits for the others alone. Returns what it cancelled.
CREATE FUNCTION search_drop(failed bigint) RETURNS SETOF bigint LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = mlopt, pg_temp AS $$
DECLARE
    f record;
BEGIN
    SELECT j.run, j.spec::json ->> 'candidate' AS candidate INTO f FROM job j
        WHERE j.id = failed AND j.state = 'failed' AND j.spec::json ->> 'candidate' IS NOT NULL;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    RETURN QUERY UPDATE job j SET state = 'cancelled', finished_at = clock_timestamp()
        WHERE j.run = f.run AND j.state = 'waiting' AND j.spec::json ->> 'candidate' = f.candidate RETURNING j.id;
    DELETE FROM job_dep d USING job w, job n
        WHERE d.job = w.id AND w.run = f.run AND w.step = 'search' AND w.state = 'waiting'
          AND n.id = d.needs AND n.spec::json ->> 'candidate' = f.candidate;
END $$;

REVOKE ALL ON FUNCTION search_plan(bigint, integer, text, text, text, text, boolean, text, text, bytea, bytea, bigint, bigint,
                                   integer, text, integer, text[], bigint[]), search_drop(bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION search_plan(bigint, integer, text, text, text, text, boolean, text, text, bytea, bytea, bigint, bigint,
                                      integer, text, integer, text[], bigint[]), search_drop(bigint) TO mlopt_worker;
