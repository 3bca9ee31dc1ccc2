#!/usr/bin/env bash
# `reproduce --local`: what workers made, made again by the client from what they signed; and what was not made so.
set -euo pipefail
. "$(dirname "$0")/e2e.sh"
here=$(cd "$(dirname "$0")" && pwd)
cd "$work"
start_up
push_example 48 64
expect 0 "$MLOPT" data push fashion/selection $images/t10k-images-idx3-ubyte.gz $images/t10k-labels-idx1-ubyte.gz \
    --first 1000 --count 200 --normalize "$normalize"

cat >plain.yaml <<'YAML'
name: plain
target: any
data: {calibrate: fashion/calibration}
steps:
  - optimize: {}
  - quantize: {scheme: int8, form: qdq, calibrator: minmax, per_channel: true}
YAML
# a step that chooses: its decision is an input of the derivation, and followed
cat >chosen.yaml <<'YAML'
name: chosen
target: any
data: {calibrate: fashion/calibration, select: fashion/selection}
steps:
  - optimize: {}
  - quantize: {accuracy_drop: 1pt}
YAML
# again CODE ARGUMENT…: `reproduce --local`, which leaves nothing behind.
again() {
    local code=$1
    shift
    mkdir -p "$work/tmp"
    TMPDIR=$work/tmp expect "$code" "$MLOPT" reproduce "$@" --local
    [ -z "$(ls -A "$work/tmp")" ] || fail "left behind: $(find "$work/tmp")"
}

for name in plain chosen; do
    expect 0 "$MLOPT" submit fashion/cnn --recipe $name.yaml --wait --timeout 1500
    expect 0 "$MLOPT" variants fashion/cnn -o json
    made=$(json "next(v['artifact'] for v in d if v['variant'] == '$name')")
    again 0 fashion/cnn@1/$name -o json
    holds "[r['step'] for r in d] == ['optimize', 'quantize'] and all(r['matched'] for r in d)"
    holds "d[-1]['made'] == d[-1]['artifact'] == '$made'"
done
again 0 fashion/cnn@1/plain --threads 2
shows "same"
expect 0 "$MLOPT" attest show fashion/cnn@1/chosen -o json
holds "any(s['statement']['predicate']['buildDefinition']['externalParameters']['derivation']['decisions'] for s in d)"
# nobody was told
expect 0 "$MLOPT" reproduce fashion/cnn@1/plain --list -o json
holds "d == []"
again 1 fashion/cnn@1/source
says "is the upload itself"

# somebody says that it was other bytes, or was made by another revision, or of another model; or answers another upload,
# or other data, by the names that were signed
declare -A code=([bytes]=6 [revision]=1 [input]=1 [model]=1 [data]=1)
declare -A said=([bytes]="sha256:$(printf 'ab%.0s' {1..32}), and sha256:" [revision]='its revision is'
    [input]="and the statement names sha256:$(printf 'ab%.0s' {1..32})" [model]='and the statement names sha256:'
    [data]='is not the calibrate data sha256:')
for what in bytes revision input model data; do
    /usr/bin/python3 "$here/forge.py" "$MLOPT_URL" "$work/$what.url" $what 2>forge-$what.log &
    forger=$!
    trap 'kill $forger 2>/dev/null || true; clean_up' EXIT
    wait_until "the forger answers" test -s $what.url
    MLOPT_URL=$(cat $what.url) again "${code[$what]}" fashion/cnn@1/plain
    [ $what != bytes ] || shows "DIFFERS"
    says "${said[$what]}"
    kill $forger
    wait $forger || true
done
trap clean_up EXIT
stop_up
