-- What the steps wrote on stderr, in the parts in which it came: for people. A part is whole lines where they are
-- short enough; the worker bounds the sum, and here no more fits than a worker may write.

CREATE TABLE attempt_log (
    job    bigint NOT NULL,
    number integer NOT NULL,
    part   integer NOT NULL CHECK (part BETWEEN 0 AND 4095),
    at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    text   text NOT NULL CHECK (octet_length(text) <= 65536),
    PRIMARY KEY (job, number, part),
    FOREIGN KEY (job, number) REFERENCES attempt
);
GRANT SELECT ON attempt_log TO mlopt_server;
GRANT SELECT, INSERT ON attempt_log TO mlopt_worker;
