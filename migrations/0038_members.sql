-- additive
-- Members of a project: people and service accounts, each with a role in the project and, for a stage alone, a higher one.
-- Programs that do not know this table do not know the tokens of members either, nor those for one stage: such a token is
-- kept under another hash than a token's own (registry/token.c), so that it grants nothing there, rather than too much.

CREATE TABLE member (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    project_id      bigint NOT NULL REFERENCES project,
    name            object_name NOT NULL,
    kind            text NOT NULL CHECK (kind IN ('person', 'service')),
    role            text NOT NULL CHECK (role IN ('viewer', 'submitter', 'promoter', 'approver', 'admin')),
    staging_role    text CHECK (staging_role IN ('promoter', 'approver')),        -- NULL: as in the project
    production_role text CHECK (production_role IN ('promoter', 'approver')),
    may_approve     boolean NOT NULL DEFAULT false,      -- of a service account; people approve by their role
    description     text NOT NULL DEFAULT '',
    created_at      timestamptz NOT NULL DEFAULT now(),
    created_by      text NOT NULL,
    removed_at      timestamptz
);
CREATE UNIQUE INDEX member_name ON member (project_id, name) WHERE removed_at IS NULL;

ALTER TABLE token ADD COLUMN member_id bigint REFERENCES member;                  -- NULL: the token is its own principal
ALTER TABLE token ADD COLUMN stage text CHECK (stage IN ('staging', 'production')); -- the only one it moves or judges; NULL: any
CREATE INDEX token_member ON token (member_id) WHERE member_id IS NOT NULL;

GRANT SELECT, INSERT ON member TO mlopt_server;
GRANT UPDATE (role, staging_role, production_role, may_approve, description, removed_at) ON member TO mlopt_server;
