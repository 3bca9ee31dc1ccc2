-- The server shows plans; only workers, which sign them, add any.

REVOKE INSERT ON plan FROM mlopt_server;
