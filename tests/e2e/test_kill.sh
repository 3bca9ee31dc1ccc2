#!/usr/bin/env bash
# SIGKILL of the step, of the worker, of PostgreSQL, and of the whole service in mid-run: nothing is lost, and each step has its
# effect once.
set -euo pipefail
. "$(dirname "$0")/e2e.sh"
cat >"$work/long.yaml" <<'YAML'
name: long
target: any
data: {calibrate: fashion/calibration, evaluate: fashion/test}
steps:
  - optimize: {}
  - quantize: {scheme: int8, form: qdq, calibrator: minmax, per_channel: true}
  - evaluate: {metrics: [top1], compare_to: source}
  - benchmark: {batch: [1], threads: 1, compare_to: source, seconds: 0.3, rounds: 2}
YAML
cd "$work"

# children PID: its children's process ids, by the kernel's list.
children() {
    local task
    for task in /proc/"$1"/task/*/children; do
        cat "$task" 2>/dev/null || true
    done | tr ' ' '\n' | grep -v '^$' || true
}

# find_child PID WORD: a child whose command line has that word.
find_child() {
    local pid
    for pid in $(children "$1"); do
        tr '\0' ' ' </proc/"$pid"/cmdline 2>/dev/null | grep -qw -- "$2" && { echo "$pid"; return 0; }
    done
    return 1
}

wait_child() {
    local i pid
    for i in $(seq 600); do
        pid=$(find_child "$1" "$2") && { echo "$pid"; return 0; }
        sleep 0.05
    done
    fail "no $2 below process $1"
}

# job STEP EXPRESSION: of the run's job.
job() {
    "$MLOPT" runs "$run" -o json >"$work/run.json"
    python3 -c 'import json, sys
d = json.load(open(sys.argv[1]))
j = [x for x in d["jobs"] if x["step"] == sys.argv[2]][0]
print(eval(sys.argv[3]))' "$work/run.json" "$1" "$2"
}

wait_running() {
    local i
    for i in $(seq 600); do
        [ "$(job "$1" "j['state']")" = running ] && return 0
        sleep 0.05
    done
    fail "step $1 did not start"
}

start_up
push_example 4000 2000
expect 0 "$MLOPT" submit fashion/cnn --recipe long.yaml -o json
run=$(json "d['id']")

# 1. the step's own process
wait_running quantize
worker=$(wait_child $up_pid worker)
step=$(wait_child "$worker" step-exec)
# what runs an uploaded model knows no address and no token
tr '\0' '\n' </proc/"$step"/environ | grep -E '^(MLOPT_|PG)' && fail "the step was told too much"
kill -KILL "$step"
echo "killed the step"
for i in $(seq 200); do
    [ "$(job quantize "len(j['attempts']) >= 2 and j['state'] == 'running'")" = True ] && break
    sleep 0.1
done
[ "$(job quantize "len(j['attempts']) >= 2")" = True ] || fail "the step was not tried again"

# 2. the worker
wait_running quantize
worker=$(wait_child $up_pid worker)
kill -KILL "$worker"
echo "killed the worker"
for i in $(seq 400); do
    fresh=$(find_child $up_pid worker || true)
    [ -n "$fresh" ] && [ "$fresh" != "$worker" ] && break
    sleep 0.1
done
[ -n "$fresh" ] && [ "$fresh" != "$worker" ] || fail "the worker was not started again"

# 3. PostgreSQL: requests are refused till it is back, which takes no new start
wait_running quantize
kill -KILL "$(head -1 data/pg/cluster/postmaster.pid)"
echo "killed PostgreSQL"
expect 1 "$MLOPT" models
says "not available"
for i in $(seq 400); do
    "$MLOPT" models >/dev/null 2>&1 && break
    sleep 0.1
done
expect 0 "$MLOPT" models
kill -0 $up_pid || fail "mlopt up ended with its PostgreSQL"

# 4. everything, in a job that no kill has met yet: each has three attempts
for i in $(seq 1200); do
    [ "$(job quantize "j['state'] == 'succeeded'")" = True ] && break
    sleep 0.1
done
[ "$(job quantize "j['state'] == 'succeeded'")" = True ] || fail "the step did not come to its end"
worker=$(find_child $up_pid worker)
kill -KILL $up_pid
wait $up_pid 2>/dev/null || true
echo "killed the service"
up_pid=
for i in $(seq 300); do
    [ -d /proc/"$worker" ] || break
    sleep 0.1
done
[ ! -d /proc/"$worker" ] || fail "the worker outlived the service"
start_up

done=no
for i in $(seq 1200); do
    "$MLOPT" runs "$run" -o json >run.json
    state=$(json "d['state']" run.json)
    case $state in
    succeeded) done=yes; break ;;
    failed | cancelled) cat run.json >&2; fail "the run ended as $state" ;;
    esac
    sleep 0.1
done
[ $done = yes ] || { cat run.json >&2; fail "the run did not end"; }

# each step's effect is there once
[ "$(json "[j['state'] for j in d['jobs']] == ['succeeded'] * 4" run.json)" = True ] || fail "not every job succeeded"
[ "$(json "max(sum(a['outcome'] == 'succeeded' for a in j['attempts']) for j in d['jobs']) == 1" run.json)" = True ] ||
    fail "a job has two successful attempts"
expect 0 "$MLOPT" variants fashion/cnn -o json
holds "[v['variant'] for v in d] == ['source', 'long']"
holds "len(d[1]['latency']) == 1 and d[1]['accuracy']['n'] == 2000"
if command -v psql >/dev/null; then # lists show the newest of each kind: the rows themselves are there once
    expect 0 psql -X -q -At -h "$work/data/pg/socket" -U mlopt_owner -d mlopt -v ON_ERROR_STOP=1 -c "
        set search_path = mlopt;
        select (select count(*) from variant where run_id = $run),
            (select count(*) from derivation),
            (select count(*) from evidence) = (select count(*) from
                (select distinct artifact, metric, params, comparison from evidence) once)"
    shows "1|2|t"
fi
expect 0 "$MLOPT" audit fashion verify
expect 0 "$MLOPT" audit fashion -o json
holds "len({e['seq'] for e in d['fashion']}) == len(d['fashion'])"
# and the same submission finds what was made
expect 0 "$MLOPT" submit fashion/cnn --recipe long.yaml --wait --timeout 120 -o json
holds "all(j['reused'] for j in d['run']['jobs'] if j['kind'] == 'derive')"
stop_up
# and no attempt left its folder behind
left=$(find "$work/data/work/scratch" -mindepth 1 ! -name lock | head -5)
[ -z "$left" ] || { echo "left in data/work/scratch: $left"; exit 1; }
echo "kill: ok"
