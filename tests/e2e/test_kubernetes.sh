#!/usr/bin/env bash
# The manifests of deploy/kubernetes: every name in them is there, the program takes what it is given, the queries by which
# workers are started run on the real schema and count what such a worker may claim; and a mistake is found.
set -euo pipefail
. "$(dirname "$0")/e2e.sh"
python3 -c 'import yaml' 2>/dev/null || { echo "python3-yaml is not installed"; exit 77; }
source=${MLOPT_SOURCE_DIR:-$PWD}
psql=$(command -v psql || ls /usr/lib/postgresql/*/bin/psql 2>/dev/null | tail -1 || true)
[ -n "$psql" ] || { echo "psql is not installed"; exit 77; }
python3 "$source/tests/e2e/kubernetes.py" "$source/deploy/kubernetes" "$MLOPT" "$source" >"$work/queries" || fail "the manifests do not fit"

start_up --workers 0
database="host=$work/data/pg/socket dbname=mlopt"
port=$(ls -A data/pg/socket 2>/dev/null || ls -A "$work/data/pg/socket")
port=$(sed -n 's/^\.s\.PGSQL\.\([0-9]*\)$/\1/p' <<<"$port")
# ready CLASS: how many workers KEDA would start, asked as it asks.
ready() {
    "$psql" "$database port=$port user=mlopt_worker" -XAtq -v ON_ERROR_STOP=1 -c "$(sed -n "s/^query $1 //p" "$work/queries")" 2>"$work/stderr" ||
        fail "the query of $1"
}
counts() { [ "$(ready cpu) $(ready gpu)" = "$1" ] || fail "$2: $(ready cpu) for cpu, $(ready gpu) for gpu, instead of $1"; }
counts "0 0" "an empty queue"
printf 'name: small\ntarget: any\nsteps:\n  - optimize: {}\n' >"$work/small.yaml"
expect 0 "$MLOPT" push fashion/cnn "$model"
expect 0 "$MLOPT" submit fashion/cnn --recipe "$work/small.yaml"
counts "1 0" "one job"
as_owner() { "$psql" "$database port=$port user=mlopt_owner" -XAtq -v ON_ERROR_STOP=1 -c "$1" >/dev/null 2>"$work/stderr" || fail "$1"; }
as_owner "UPDATE mlopt.job SET target = 'cuda:sm80'"
counts "0 1" "one job for a GPU"
as_owner "UPDATE mlopt.job SET not_before = now() + interval '1 hour'"
counts "0 0" "a job that waits to be tried again"
as_owner "UPDATE mlopt.job SET not_before = now(), target = 'any'"
as_owner "UPDATE mlopt.job SET memory_bytes = 9 * 1073741824::bigint"
counts "0 0" "a job that has no room in a pod of that class"
as_owner "UPDATE mlopt.job SET gpus = 1"
counts "0 1" "one for a GPU that has room where there are GPUs"
as_owner "UPDATE mlopt.job SET gpus = 2"
counts "0 0" "one for more GPUs than a pod has"
as_owner "UPDATE mlopt.job SET gpus = 0, memory_bytes = 0, disk_bytes = 42949672961"
counts "0 0" "a job that has no room on the disk"
as_owner "UPDATE mlopt.job SET disk_bytes = 0, target = 'cuda:sm90'"
counts "0 0" "a job of a target that no pod offers"
as_owner "UPDATE mlopt.job SET target = 'any', state = 'running', token = gen_random_uuid(), lease_until = now() + interval '1 hour'"
counts "0 0" "a job that runs"
as_owner "UPDATE mlopt.job SET lease_until = now() - interval '1 second'"
counts "1 0" "a job that was lost"
expect 0 "$MLOPT" queue set fashion --max-running 1
counts "1 0" "a job that was lost, in a project that may have one"
as_owner "UPDATE mlopt.job SET state = 'ready', token = NULL, lease_until = NULL"
expect 0 "$MLOPT" queue set fashion --pause
counts "0 0" "a paused project"
expect 0 "$MLOPT" queue set fashion --resume --max-running 0
counts "0 0" "a project that may run nothing"
expect 0 "$MLOPT" queue set fashion --max-running 5
counts "1 0" "a project with room"
"$MLOPT" worker --help >/dev/null
MLOPT_DATABASE="$database port=$port user=mlopt_worker" timeout 600 "$MLOPT" worker --blobs "file:$work/data/blobs" --work-dir "$work/data/work" \
    --exit-when-idle >"$work/worker.log" 2>&1 || fail "the worker did not end well when nothing was left"
counts "0 0" "when a worker has been there"
stop_up
