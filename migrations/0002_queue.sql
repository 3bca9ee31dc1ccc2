-- The queue: runs, their jobs, the attempts at them, and the workers that make them.
--
-- A job's row is its whole state; who may change it is decided by the attempt token (fencing): every change
-- that a worker makes names the token it was given at the claim. Lock order: jobs by id, then the run.

create table run (
    id              bigint generated always as identity primary key,
    project         bigint not null references project,
    version         bigint not null references version,
    recipe_name     text not null,
    recipe          text not null,               -- canonical text, every option resolved
    target          text not null,
    source          digest not null references blob, -- the version's model file
    datasets        text not null,               -- JSON: role -> {"id","name","version","digest"}
    priority        integer not null default 0,
    state           text not null default 'queued'
                    check (state in ('queued', 'running', 'succeeded', 'failed', 'cancelled')),
    variant         text,                        -- the name that the last derive step gives its artifact
    results         text,                        -- JSON array: expectations that do not hold
    error           text,                        -- JSON: {"code","message","where","hint","job"}
    idempotency_key text,
    event_seq       bigint not null default 0,   -- last event of the run; also its ETag
    created_by      text not null,
    created_at      timestamptz not null default now(),
    started_at      timestamptz,
    finished_at     timestamptz,
    check ((state in ('succeeded', 'failed', 'cancelled')) = (finished_at is not null))
);
create unique index run_idempotency on run (project, idempotency_key) where idempotency_key is not null;
create index run_by_project on run (project, id desc);
create index run_by_version on run (version, id desc);

create table job (
    id            bigint generated always as identity primary key,
    run           bigint not null references run,
    project       bigint not null references project,
    position      integer not null,
    name          text not null,
    step          text not null,
    kind          text not null check (kind in ('derive', 'observe')),
    target        text not null,                 -- what a worker must offer: 'any', 'cpu', 'cuda:sm90'…
    exclusive     boolean not null default false, -- wants the machine to itself
    state         text not null
                  check (state in ('waiting', 'ready', 'running', 'succeeded', 'failed', 'cancelled', 'reused')),
    priority      integer not null default 0,
    spec          text not null,                 -- JSON: {"options":…}
    input         digest, -- digest of the model it works on, once known
    derivation    digest, -- key, once its input is known; null: never cached
    output        digest, -- digest of the model that the next step gets
    result        text,                          -- JSON: the step's report
    progress      double precision not null default 0,
    message       text not null default '',
    attempts      integer not null default 0,    -- that count against max_attempts
    max_attempts  integer not null default 3,
    claims        integer not null default 0,    -- all of them: numbers the attempts
    token         uuid,
    lease_until   timestamptz,
    not_before    timestamptz not null default now(),
    worker        text,
    error         text,                          -- JSON of the last failure
    created_at    timestamptz not null default now(),
    ready_at      timestamptz,
    started_at    timestamptz,
    finished_at   timestamptz,
    unique (run, position),
    check ((state = 'running') = (token is not null)),
    check ((state = 'running') = (lease_until is not null))
);
create index job_ready on job (priority desc, id) where state = 'ready';
create index job_lease on job (lease_until) where state = 'running';
-- One derivation never runs twice at once: whoever claims second meets this index, and waits.
create unique index job_derivation_in_flight on job (derivation)
    where state = 'running' and derivation is not null;

create table job_dep (
    job   bigint not null references job,
    needs bigint not null references job,
    primary key (job, needs)
);
create index job_dep_needs on job_dep (needs);

create table attempt (
    job        bigint not null references job,
    number     integer not null,
    token      uuid not null,
    worker     text not null,
    started_at timestamptz not null default now(),
    ended_at   timestamptz,
    outcome    text check (outcome in ('succeeded', 'failed', 'retried', 'lost', 'returned', 'cancelled')),
    error      text,
    primary key (job, number)
);

create table run_event (
    run  bigint not null references run,
    seq  bigint not null,
    at   timestamptz not null default now(),
    kind text not null,                          -- 'run' or 'job'
    data text not null,                          -- JSON
    primary key (run, seq)
);

create table worker (
    id            text primary key,              -- one per process start
    host          text not null,
    pid           integer not null,
    machine_class text not null,
    targets       text[] not null,
    slots         integer not null,
    state         text not null check (state in ('active', 'draining', 'stopped')),
    started_at    timestamptz not null default now(),
    last_seen_at  timestamptz not null default now()
);

-- The server submits and cancels; it makes no attempt.
grant select on run, job, job_dep, attempt, run_event, worker to mlopt_server;
grant insert on run, job, job_dep, run_event to mlopt_server;
grant update (state, error, event_seq, finished_at) on run to mlopt_server;
grant update (state, token, lease_until, error, finished_at, priority) on job to mlopt_server;
grant update (ended_at, outcome) on attempt to mlopt_server;

-- The worker claims, beats and completes; it cannot submit, nor change what a job is.
grant select on run, job, job_dep, attempt, run_event, worker to mlopt_worker;
grant update (state, variant, results, error, event_seq, started_at, finished_at) on run to mlopt_worker;
grant update (state, input, derivation, output, result, progress, message, attempts, claims, token, lease_until,
              not_before, worker, error, ready_at, started_at, finished_at) on job to mlopt_worker;
grant insert on attempt, run_event to mlopt_worker;
grant update (ended_at, outcome, error) on attempt to mlopt_worker;
grant insert, delete on worker to mlopt_worker;
grant update (state, last_seen_at) on worker to mlopt_worker;
