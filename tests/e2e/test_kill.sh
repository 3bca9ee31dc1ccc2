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

# hold STEP: stops that step's process as soon as it is seen; it is then $step, and its worker $worker. What is to meet a step at
# work meets it so on any machine, however fast or slow.
hold() {
    wait_until "$1 is worked on" holds_step "$1"
}
holds_step() {
    worker=$(find_child $up_pid worker) && step=$(find_child "$worker" step-exec) || return 1
    kill -STOP "$step" 2>/dev/null || return 1
    local dir
    dir=$(tr '\0' '\n' <"/proc/$step/cmdline" 2>/dev/null | tail -1)
    grep -qE "\"step\": *\"$1\"" "$dir/job.json" 2>/dev/null && return 0
    kill -CONT "$step" 2>/dev/null
    return 1
}

answers() { "$MLOPT" models >/dev/null 2>&1; }

run_is_over() {
    "$MLOPT" runs "$run" -o json >run.json 2>/dev/null || return 1
    case $(json "d['state']" run.json) in
    succeeded) return 0 ;;
    failed | cancelled) cat run.json >&2; fail "the run did not succeed" ;;
    esac
    return 1
}

start_up --threads 1
push_example 2000 1000
expect 0 "$MLOPT" submit fashion/cnn --recipe long.yaml -o json
run=$(json "d['id']")

# 1. the worker
hold quantize
# what runs an uploaded model knows no address and no token
tr '\0' '\n' </proc/"$step"/environ | grep -E '^(MLOPT_|PG)' && fail "the step was told too much"
kill -KILL "$worker"
echo "killed the worker"
wait_until "the step ends with its worker" ended "$step"

# 2. the step's own process, below a new worker
hold evaluate
kill -KILL "$step"
echo "killed the step"

# 3. PostgreSQL: requests are refused till it is back, which takes no new start. That waits for what seems to be left of the old
# server, so that there is time for the request.
hold benchmark
# a claim waits for no disk, and a crash may undo it with its attempt: this change waits, for all that was before it too
expect 0 "$MLOPT" queue set fashion --weight 2
(cd data/pg/cluster && trap '' INT && exec sleep $patience) &
decoy=$!
wait_until "the decoy is there" [ /proc/$decoy/cwd -ef data/pg/cluster ]
server=$(head -1 data/pg/cluster/postmaster.pid)
sed -i "1s/.*/$decoy/" data/pg/cluster/postmaster.pid
kill -KILL "$server"
echo "killed PostgreSQL"
wait_until "PostgreSQL ends" ended "$server"
expect 1 "$MLOPT" models
says "not available"
kill -KILL $decoy
wait $decoy 2>/dev/null || true
wait_until "PostgreSQL is back" answers
kill -0 $up_pid || fail "mlopt up ended with its PostgreSQL"

# 4. everything
kill -KILL $up_pid
wait $up_pid 2>/dev/null || true
echo "killed the service"
up_pid=
wait_until "the worker ends with the service" ended "$worker"
start_up --threads 1
wait_until "the run's end" run_is_over

[ "$(json "[len(j['attempts']) >= 2 for j in d['jobs']] == [False, True, True, True]" run.json)" = True ] ||
    { cat run.json >&2; fail "not every kill met its step"; }
# each step's effect is there once
[ "$(json "[j['state'] for j in d['jobs']] == ['succeeded'] * 4" run.json)" = True ] || fail "not every job succeeded"
[ "$(json "max(sum(a['outcome'] == 'succeeded' for a in j['attempts']) for j in d['jobs']) == 1" run.json)" = True ] ||
    fail "a job has two successful attempts"
expect 0 "$MLOPT" variants fashion/cnn -o json
holds "[v['variant'] for v in d] == ['source', 'long']"
holds "len(d[1]['latency']) == 1 and d[1]['accuracy']['n'] == 1000"
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
expect 0 "$MLOPT" submit fashion/cnn --recipe long.yaml --wait --timeout 1500 -o json
holds "all(j['reused'] for j in d['run']['jobs'] if j['kind'] == 'derive')"
stop_up
# and no attempt left its folder behind
left=$(find "$work/data/work/scratch" -mindepth 1 ! -name lock | head -5)
[ -z "$left" ] || { echo "left in data/work/scratch: $left"; exit 1; }
echo "kill: ok"
