#!/usr/bin/env bash
# A search by its commands: the one line that submits it, the front and its page, a point that is promoted, and what is
# said of goals that nobody can meet and of data without labels; one whose front is read and promoted while it goes on,
# and which goes on after a restart.
set -euo pipefail
. "$(dirname "$0")/e2e.sh"
cd "$work"
start_up --workers 1
push_example 48 100
expect 0 "$MLOPT" data push fashion/selection $images/t10k-images-idx3-ubyte.gz $images/t10k-labels-idx1-ubyte.gz \
    --normalize "$normalize" --first 2000 --count 120
quick=(--set search.seconds=0.1 --set search.rounds=2 --set search.screen=60)

expect 0 "$MLOPT" submit fashion/cnn --goal 'accuracy_drop<=9pt, min latency' --budget 30 "${quick[@]}" \
    --set 'search.prune=[none, 30%]' --set 'search.precision=[int8, float]' --wait -o json
run=$(json "d['run']['id']")
expect 0 "$MLOPT" runs "$run" -o json
holds "d['search']['done'] and d['search']['met'] and d['search']['used']['jobs'] <= 30"
holds "len(d['search']['points']) >= 4 and all(p['state'] != 'failed' for p in d['search']['points'])"
holds "all('evaluated' in p for p in d['search']['points'] if p['front'])"
best=$(json "d['search']['best']")
expect 0 "$MLOPT" runs "$run"
shows "front"
shows "$best keeps the goal"
expect 0 "$MLOPT" variants fashion/cnn
shows "search-$best"
expect 0 "$MLOPT" promote fashion/cnn@1 --variant any="search-$best" --to staging --reason 'the front' --yes
expect 0 "$MLOPT" pull fashion/cnn@1/"search-$best" --out pulled
code=$(sed -n 's,.*/login?token=,,p' up.log | tail -1)
expect 0 curl -sf -c cookies -o /dev/null "$MLOPT_URL/login?token=$code"
expect 0 curl -sf -b cookies "$MLOPT_URL/runs/fashion/$run"
grep -q 'class="point front' "$work/stdout" || fail "no picture of the front"
grep -q "the table below says the same" "$work/stdout" || fail "the picture names no table"
! grep -q ' style=' "$work/stdout" || fail "the page's policy allows no style attributes"

# --- while it goes on ------------------------------------------------------------------------------------------------
expect 0 "$MLOPT" submit fashion/cnn --goal 'accuracy_drop<=9pt, min size' "${quick[@]}" --set search.foresee=false \
    --set search.together=1 --set search.prune=none --set 'search.precision=[float, int8-weights, fp16]' -o json
run=$(json "d['id']")
has_front() {
    "$MLOPT" runs "$run" -o json >"$work/stdout" && holds "d['state'] in ('queued', 'running')" &&
        [ -n "$(json "(d.get('search') or {}).get('front') or ''")" ]
}
wait_until "a first point of the front" has_front
holds "not d['search']['done']"
first=$(json "d['search']['front'][0]")
tried=$(json "sum(p['rung'] > 0 for p in d['search']['points'])")
expect 0 "$MLOPT" promote fashion/cnn@1 --variant any="search-$first" --to production --reason 'so far' --yes
stop_up
start_up --workers 1
expect 0 "$MLOPT" watch "$run"
expect 0 "$MLOPT" runs "$run" -o json
holds "d['state'] == 'succeeded' and d['search']['done'] and d['search']['met']"
holds "sum(p['rung'] > 0 for p in d['search']['points']) == 3 > $tried"
expect 0 "$MLOPT" pull fashion/cnn@production --out promoted

# --- what cannot be ---------------------------------------------------------------------------------------------------
expect 6 "$MLOPT" submit fashion/cnn --goal 'size<=100, min size' --budget 20 "${quick[@]}" \
    --set 'search.precision=[int8-weights]' --set search.prune=none --wait
says "nothing that was tried keeps the goal; the best found is int8-weights"
expect 2 "$MLOPT" submit fashion/cnn --goal $'min size\xff'
says "--goal is not UTF-8 text"
expect 2 "$MLOPT" submit fashion/cnn --goal 'min size' --budget soon
says "neither a time nor a number of jobs"
expect 0 "$MLOPT" push shop/cnn "$model"
expect 3 "$MLOPT" submit shop/cnn --goal 'accuracy_drop<=1pt' --budget 30m
says "mlopt data push shop/calibration"
expect 1 "$MLOPT" submit fashion/cnn --goal 'accuracy_dorp<=1pt'
says "did you mean 'accuracy_drop'?"
expect 1 "$MLOPT" schedule add fashion/cnn --name again --cron '0 3 * * *' --recipe search
says "makes something"
expect 1 "$MLOPT" submit fashion/cnn --budget 5m --set search.prun=none
says "prun"
python3 - <<'PY'
import struct, zipfile
head = b"{'descr': '<f4', 'fortran_order': False, 'shape': (8, 1, 28, 28), }"
head += b" " * (63 - (10 + len(head)) % 64) + b"\n"
with zipfile.ZipFile("bare.npz", "w") as z: # images without labels
    z.writestr("x.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + bytes(8 * 28 * 28 * 4))
PY
expect 0 "$MLOPT" data push fashion/bare bare.npz
expect 6 "$MLOPT" submit fashion/cnn --budget 5m --set data.select=fashion/bare "${quick[@]}" --wait
says "needs labels"
stop_up
echo "ok: a search, its front, and what is refused"
