-- Uploads that come in pieces. The row says how many bytes count, and what their hash has come to, so that any
-- server goes on where another was killed. Expired ones are removed by whoever begins the next.

CREATE TABLE upload (
    id         text PRIMARY KEY CHECK (id ~ '^[0-9a-f]{32}$'),
    project_id bigint NOT NULL REFERENCES project,
    place      text NOT NULL,                            -- the blob store's own words
    size       bigint NOT NULL DEFAULT 0 CHECK (size >= 0),
    hash_state bytea NOT NULL CHECK (octet_length(hash_state) = 104),
    created_at timestamptz NOT NULL DEFAULT now(),
    created_by text NOT NULL,
    expires_at timestamptz NOT NULL
);
CREATE INDEX upload_expires ON upload (expires_at);

GRANT SELECT, INSERT, DELETE ON upload TO mlopt_server;
GRANT UPDATE (size, hash_state, expires_at) ON upload TO mlopt_server;
