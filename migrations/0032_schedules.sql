-- additive
-- Schedules: what a stage holds is measured again, by the clock. See docs/schedules.md.

CREATE TABLE schedule (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    project_id      bigint NOT NULL REFERENCES project,
    model_id        bigint NOT NULL REFERENCES model,
    stage           text NOT NULL CHECK (stage IN ('staging', 'production')),
    name            text NOT NULL CHECK (name ~ '^[a-z0-9][a-z0-9._-]{0,63}$'),
    cron            text NOT NULL,                     -- five fields
    time_zone       text NOT NULL,                     -- of the operating system's table: 'UTC', 'Europe/Berlin'
    recipe_name     text NOT NULL,
    recipe          text NOT NULL,                     -- canonical text, every option resolved
    priority        integer NOT NULL CHECK (priority BETWEEN -100 AND 100),
    state           text NOT NULL CHECK (state IN ('enabled', 'paused', 'removed')),
    state_reason    text,                              -- why a server paused it
    next_at         timestamptz,                       -- when it is due; kept while it is due and nobody has fired it
    succeeded       bigint NOT NULL DEFAULT 0,         -- firings, by how they ended
    failed          bigint NOT NULL DEFAULT 0,
    skipped         bigint NOT NULL DEFAULT 0,
    cancelled       bigint NOT NULL DEFAULT 0,
    failing         boolean NOT NULL DEFAULT false,    -- the last one that measured failed
    last_success_at timestamptz,
    created_at      timestamptz NOT NULL DEFAULT now(),
    created_by      text NOT NULL,
    CHECK ((state = 'enabled') = (next_at IS NOT NULL))
);
CREATE UNIQUE INDEX schedule_name ON schedule (project_id, name) WHERE state <> 'removed';
CREATE INDEX schedule_due ON schedule (next_at) WHERE state = 'enabled';

CREATE TABLE schedule_firing (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    schedule_id bigint NOT NULL REFERENCES schedule,
    due_at      timestamptz,                           -- NULL: somebody fired it by hand
    at          timestamptz NOT NULL,
    fired_by    text NOT NULL,
    state       text NOT NULL CHECK (state IN ('running', 'succeeded', 'failed', 'cancelled', 'skipped')),
    release     bigint,                                -- number within the model of what the stage held
    version     bigint,                                -- and of its version
    error       text,                                  -- JSON: why it failed, or was skipped
    conditions  text,                                  -- JSON: what the stage's gates on evidence said behind it
    ended_at    timestamptz,
    UNIQUE (schedule_id, due_at),                      -- whatever else: once
    CHECK ((state = 'running') = (ended_at IS NULL))
);
CREATE UNIQUE INDEX schedule_firing_running ON schedule_firing (schedule_id) WHERE state = 'running';
CREATE INDEX schedule_firing_of ON schedule_firing (schedule_id, id DESC);

CREATE TABLE schedule_run (
    firing_id bigint NOT NULL REFERENCES schedule_firing,
    run_id    bigint NOT NULL UNIQUE REFERENCES run,
    target    text NOT NULL,
    variant   text NOT NULL,
    PRIMARY KEY (firing_id, target)
);

-- Servers fire; workers know nothing of schedules: they see runs.
GRANT SELECT, INSERT ON schedule, schedule_firing, schedule_run TO mlopt_server;
GRANT UPDATE (state, state_reason, next_at, succeeded, failed, skipped, cancelled, failing, last_success_at) ON schedule TO mlopt_server;
GRANT UPDATE (state, error, conditions, ended_at) ON schedule_firing TO mlopt_server;
