-- additive: Idempotency-Key on every request that creates or acts (docs/api.md, after
-- draft-ietf-httpapi-idempotency-key-header): which request a key stands for, and all of the answer that a
-- repeated one gets again. The row is written in the transaction of the effect, so neither is ever there without
-- the other; `request` is the SHA-256 of the body, `response` the answer's, without a secret that it showed.
ALTER TABLE idempotency ADD COLUMN method text;
ALTER TABLE idempotency ADD COLUMN path text;
ALTER TABLE idempotency ADD COLUMN headers text;
-- a key whose time is over may be used for another request before upkeep removes it
GRANT UPDATE (request, method, path, headers, created_at) ON idempotency TO mlopt_server;
COMMENT ON COLUMN run.idempotency_key IS 'of runs submitted before 0037: the table idempotency has them since';
