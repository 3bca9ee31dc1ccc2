#!/usr/bin/env bash
# A schedule by its commands: added, fired by hand, what came of it, paused, removed; and what is refused.
set -euo pipefail
. "$(dirname "$0")/e2e.sh"
cat >"$work/watch.yaml" <<'YAML'
name: watch
data: {evaluate: fashion/test}
steps:
  - evaluate: {metrics: [top1], compare_to: source}
expect: ["top1 >= source - 5pt", "top1 >= 0.5"]
YAML
sed 's/0\.5"/0.9999"/; s/^name: watch/name: strict/' "$work/watch.yaml" >"$work/strict.yaml"
cat >"$work/make.yaml" <<'YAML'
name: small
steps:
  - quantize-weights: {type: int8, block: 0}
YAML
cd "$work"
start_up --workers 1
push_example 16 64
expect 0 "$MLOPT" submit fashion/cnn --recipe make.yaml --wait
expect 0 "$MLOPT" promote fashion/cnn@1 --variant any=source --variant cpu:avx2=small --to production --reason first --yes

# --- what is refused, before anything is sent and by the server --------------------------------------------------------
expect 2 "$MLOPT" schedule add fashion/cnn --name nightly --recipe watch.yaml
says "--cron"
expect 1 "$MLOPT" schedule add fashion/cnn --name nightly --cron '0 3 * * fry' --recipe watch.yaml
says "day of the week 'fry'"
expect 1 "$MLOPT" schedule add fashion/cnn --name nightly --cron '0 3 * * *' --zone Nowhere/City --recipe watch.yaml
says "there is no time zone 'Nowhere/City'"
expect 1 "$MLOPT" schedule add fashion/cnn --name nightly --cron '0 3 * * *' --recipe make.yaml
says "makes something"
expect 3 "$MLOPT" schedule show fashion nightly
expect 3 "$MLOPT" schedule run fashion nightly

# --- one that holds ---------------------------------------------------------------------------------------------------------
expect 0 "$MLOPT" schedule add fashion/cnn --name nightly --cron '30 2 * * mon-fri' --zone Europe/Berlin --recipe watch.yaml
shows "cnn:production"
expect 5 "$MLOPT" schedule add fashion/cnn --name nightly --cron '0 3 * * *' --recipe watch.yaml
over() { # NAME OUTCOME
    "$MLOPT" schedule show fashion "$1" -o json >stdout && [ "$(json "d['last']['state']")" = "$2" ]
}
expect 0 "$MLOPT" schedule run fashion nightly -o json
holds "len(d['runs']) == 2 and sorted(r['variant'] for r in d['runs']) == ['small', 'source'] and d['due_at'] is None"
run=$(json "[r['run'] for r in d['runs'] if r['variant'] == 'small'][0]")
wait_until "the firing is over" over nightly succeeded
holds "d['succeeded'] == 1 and not d['failing'] and d['last_success_at'] is not None and len(d['firings']) == 1"
expect 0 "$MLOPT" runs "$run" -o json
holds "d['created_by'] == 'schedule nightly' and d['variant'] == 'small' and d['target'] == 'cpu:avx2' and d['jobs'][0]['reused']"
holds "all(e['holds'] for e in d['expectations']) and len(d['expectations']) == 2"

# --- one that does not --------------------------------------------------------------------------------------------------------
expect 0 "$MLOPT" schedule add fashion/cnn --name strict --cron '*/5 * * * *' --recipe strict.yaml --paused
expect 0 "$MLOPT" schedule run fashion strict
wait_until "the firing is over" over strict failed
holds "d['failing'] and d['last']['error']['code'] == 'expectation-failed' and 'top1' in d['last']['error']['message']"
expect 0 "$MLOPT" schedule show fashion strict
shows "0 succeeded, 1 failed"
expect 0 "$MLOPT" audit fashion --action schedule.fail -o json
holds "[e['object'] for e in d['fashion']] == ['schedule strict']"
expect 0 "$MLOPT" history fashion/cnn -o json
holds "len(d['items'] if isinstance(d, dict) else d) == 1" # nothing was moved

# --- its life -----------------------------------------------------------------------------------------------------------------
expect 0 "$MLOPT" schedule pause fashion nightly --reason 'a holiday' -o json
holds "d['state'] == 'paused' and d['next_at'] is None"
expect 0 "$MLOPT" schedule resume fashion nightly -o json
holds "d['state'] == 'enabled' and d['next_at'] is not None"
expect 0 "$MLOPT" schedule remove fashion strict
expect 0 "$MLOPT" schedule list fashion -o json
holds "[s['name'] for s in d] == ['nightly']"
expect 0 "$MLOPT" doctor -o json
holds "d['server']['status'] == 'ready'"
stop_up
echo "schedules: ok"
