#!/usr/bin/env bash
# The budget of accuracy: a net that 8 bits ruin, through the recipe int8-accurate, on a service and without one: what is given back, on which data,
# and that the decision alone makes the variant again.
set -euo pipefail
. "$(dirname "$0")/e2e.sh"
/usr/bin/python3 -c 'import onnx, numpy' 2>/dev/null || { echo "python3-onnx is not installed"; exit 77; }
nets=${MLOPT_SOURCE_DIR:-$PWD}/tests/nets/models
cd "$work"
/usr/bin/python3 "$(dirname "$0")/outlier_net.py" "$nets/mlp.onnx" net.onnx
cp $images/*.gz .

# set_of NAME IMAGES FIRST COUNT: NAME.json here, and fashion/NAME on the service
set_of() {
    printf '{"format":"idx","files":{"images":"%s-images-idx3-ubyte.gz","labels":"%s-labels-idx1-ubyte.gz"},"normalize":"%s","first":%d,"count":%d}' \
        "$2" "$2" "$normalize" "$3" "$4" >"$1.json"
    [ -z "$up_pid" ] || expect 0 "$MLOPT" data push "fashion/$1" "$2-images-idx3-ubyte.gz" "$2-labels-idx1-ubyte.gz" --first "$3" --count "$4" \
        --normalize "$normalize"
}

start_up --threads 1
expect 0 "$MLOPT" push fashion/net net.onnx
set_of calibration train 0 256
set_of selection train 10000 2000
set_of test t10k 0 5000
set_of other t10k 5000 5000

# --- without a budget the recipe misses it: recovery cannot give the levels back ------------------------------------
expect 6 "$MLOPT" submit fashion/net --recipe int8-accurate --set quantize.accuracy_drop=none --wait --timeout 1500
expect 0 "$MLOPT" variants fashion/net -o json
holds "d[1]['accuracy']['value'] < 0.5"

# --- with it, the layer that reads the outliers is given back -------------------------------------------------------------
expect 1 "$MLOPT" submit fashion/net --recipe int8-accurate --set data.select=fashion/test
says "which also evaluates"
expect 0 "$MLOPT" submit fashion/net --recipe int8-accurate --wait --timeout 1500 -o json
cp stdout run.json
job="next(j for j in d['run']['jobs'] if j['step'] == 'quantize')"
holds "d['run']['state'] == 'succeeded'"
artifact=$(json "next(v['artifact'] for v in d['variants'] if v['variant'] == 'int8-accurate')")
key=$(json "next(v['derivation'] for v in d['variants'] if v['variant'] == 'int8-accurate')")
decision=$(json "$job['report']['decision']['blob']")
# the interval on the data of the role select, and what the data of the role evaluate says afterwards
python3 - "$MLOPT_URL/v1/projects/fashion/blobs/$decision" <<'PY'
import os, sys, urllib.request
open("decision.json", "wb").write(urllib.request.urlopen(urllib.request.Request(sys.argv[1], headers={"Authorization": "Bearer " + os.environ["MLOPT_TOKEN"]})).read())
PY
[ "sha256:$(sha256sum <decision.json | cut -d' ' -f1)" = "$decision" ] || fail "the decision is not what its digest says"
decided() {
    [ "$(json "$1" decision.json)" = True ] || { cat decision.json >&2; fail "not so: $1"; }
}
decided "d['format'] == 'mlopt-decision-1' and d['complete'] and d['holds'] and d['samples'] == 2000"
decided "[(g['node'], g['to']) for g in d['given_back']] == [('head', 'float')]"
decided "d['all_integer']['low'] > 0.5 and d['drop']['low'] <= d['drop']['value'] <= d['drop']['high'] <= d['limit'] == 0.003"
decided "[len(t['given_back']) for t in d['tried']] == [0, 1] and len(d['ranking']) == 4"
json "'on select: %+.2f pt [%+.2f, %+.2f]' % tuple(100 * d['drop'][k] for k in ('value', 'low', 'high'))" decision.json

# its digest is in the derivation that the variant is named by, and evaluate is not
if command -v psql >/dev/null; then
    expect 0 psql -X -q -At -h "$work/data/pg/socket" -U mlopt_owner -d mlopt -v ON_ERROR_STOP=1 -c "select canonical from mlopt.derivation where key = decode('${key#sha256:}', 'hex')"
    cp stdout derivation.json
    [ "sha256:$(head -c -1 derivation.json | sha256sum | cut -d' ' -f1)" = "$key" ] || fail "the derivation is not what its key says"
    holds "d['decisions'] == ['$decision'] and sorted(d['datasets']) == ['calibrate', 'select']"
fi
expect 0 "$MLOPT" submit fashion/net --recipe int8-accurate --set data.evaluate=fashion/other --wait --timeout 1500 -o json
holds "$job['reused'] and $job['report']['decision']['blob'] == '$decision'"
holds "[(v['artifact'], v['derivation']) for v in d['variants'] if v['variant'] == 'int8-accurate'] == [('$artifact', '$key')]"
holds "$(json "next(v['accuracy']['value'] for v in d['variants'] if v['variant'] == 'int8-accurate')" run.json) > 0.85"

# --- a search that is cancelled: its process ends, what it found so far can be read, and nothing else is left ------------------
cat >long.yaml <<'YAML'
name: long
target: any
data: {calibrate: fashion/calibration, select: fashion/selection}
steps:
  - optimize: {}
  - quantize: {accuracy_drop: 0.1pt}
YAML
job="next(j for j in d['jobs'] if j['step'] == 'quantize')"
searching() { "$MLOPT" runs "$last" -o json >stdout && [ "$(json "$job['state'] == 'running' and 'best so far: ' in $job['message']")" = True ]; }
steps() { pgrep -f "step-exec $work/data/" || true; }
idle() { [ -z "$(steps)" ]; }
expect 0 "$MLOPT" push fashion/deep "$nets/mobilenet_v2.onnx"
expect 0 "$MLOPT" submit fashion/deep --recipe long.yaml -o json
last=$(json "d['run']['id'] if 'run' in d else d['id']")
wait_until "a best mix so far" searching
[ -n "$(steps)" ] || fail "no process searches"
begin=$SECONDS
expect 0 "$MLOPT" cancel "$last" --reason "takes too long"
wait_until "the step's process is gone" idle
echo "cancelled: the process was gone after $((SECONDS - begin)) s"
expect 0 "$MLOPT" runs "$last" -o json
holds "d['state'] == 'cancelled' and 'takes too long' in d['error']['message'] and $job['state'] == 'cancelled'"
holds "'best so far: ' in $job['message']"
json "$job['message']"
expect 0 "$MLOPT" variants fashion/deep -o json
holds "[v['variant'] for v in d] == ['source']"
[ -z "$(find "$work/data" -path '*scratch*' -name job.json)" ] || fail "the attempt's files are left"
# the search itself is kept for the next one, which goes on with it; so is that of the run before, which is older
kept() { grep -l mlopt-decision-1 "$work"/data/*/checkpoints/*/*.checkpoint 2>/dev/null | xargs -r ls -t | head -1; }
cp "$(kept)" so_far.json || fail "the search was not kept"
python3 -c "
import json
d = json.load(open('so_far.json'))
assert d['complete'] is False and len(d['tried']) >= 1 and d['drop']['low'] <= d['drop']['value'] <= d['drop']['high'], d"
stop_up

# --- the same without a service: the same bytes, of the model and of the decision ---------------------------------------------------
expect 0 "$MLOPT" quantize net.onnx --data calibration.json --recipe int8-accurate --select selection.json --decision mine.json --threads 2 --out mine.onnx -o json
holds "d['result']['digest'] == '$artifact'"
cmp mine.json decision.json || fail "the decision differs"
# and from the decision alone
expect 0 "$MLOPT" quantize net.onnx --data calibration.json --recipe int8-accurate --decision decision.json --out again.onnx
says "head: Gemm stays in float"
cmp mine.onnx again.onnx || fail "the decision makes another model"
expect 1 "$MLOPT" quantize "$nets/mlp.onnx" --data calibration.json --recipe int8-accurate --decision decision.json --out none.onnx
says "made for another model"
echo '{}' >none.json
expect 1 "$MLOPT" quantize net.onnx --data calibration.json --recipe int8-accurate --decision none.json --out none.onnx
says "no decision of the form"
expect 2 "$MLOPT" quantize net.onnx --data calibration.json --recipe int8-accurate --out none.onnx
says "--decision"
[ ! -e none.onnx ] || fail "a refused model was written"
