-- Failed runs that are taken up again, and reading what was counted.
GRANT UPDATE (started_at, results) ON run TO mlopt_server;
GRANT UPDATE (attempts, not_before, ready_at, progress, message) ON job TO mlopt_server;
GRANT UPDATE (gpu_s) ON attempt TO mlopt_server;
