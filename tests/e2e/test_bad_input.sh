#!/usr/bin/env bash
# Bad models, data, recipes and a full disk, with the local verbs and through the service: one clear error that names
# the thing, the right exit code, and nothing half-done.
set -euo pipefail
. "$(dirname "$0")/e2e.sh"
here=$(cd "$(dirname "$0")" && pwd)
cd "$work"
head -c 500000 "$model" >truncated.onnx
python3 -c 'import random, sys; sys.stdout.buffer.write(random.Random(1).randbytes(100000))' >random.onnx
: >empty.onnx
python3 "$here/bad_files.py"

# names_no_scratch: what the last command said is about the file, not about a temporary copy of it.
names_no_scratch() {
    ! grep -qE '/scratch/|/tmp/mlopt-' "$work/stderr" || fail "a temporary path in: $(cat "$work/stderr")"
}

start_up
push_example 64 200

# file, then what the error must say
bad_models="truncated.onnx|bytes follow
random.onnx|no valid ONNX model
empty.onnx|is empty
deep.onnx|nested too deeply
unknown.onnx|unknown op FooBar
zip.pt|torch.onnx.export
pickle.pth|torch.onnx.export
exported.pt2|torch.export.load
weights.safetensors|safetensors"

# --- refused by local verbs, and before anything travels ---------------------------------------------------------------------
while IFS='|' read -r file text; do
    if [ "$file" != unknown.onnx ]; then # it shows what it can read, unknown ops included
        expect 1 "$MLOPT" inspect "$file"
        says "$text"
    fi
    expect 1 "$MLOPT" optimize "$file" --out out.onnx
    says "$text"
    says "$file"
    expect 1 "$MLOPT" push "fresh/${file%.*}" "$file"
    says "$text"
    [ ! -e out.onnx ] || fail "optimize left a file"
done <<<"$bad_models"
for data in 'bomb.npz|decompression bomb' 'label.npz|label 77 of sample 19' 'negative.npz|label -1 of sample 19'; do
    expect 1 "$MLOPT" eval "$model" --data "${data%%|*}" --metric top1 --normalize "$normalize"
    says "${data##*|}"
    says "${data%%|*}"
done
for data in 'bomb.npz|decompression bomb' 'negative.npz|label -1 of sample 19'; do
    expect 1 "$MLOPT" data push fresh/data "${data%%|*}"
    says "${data##*|}"
    says "${data%%|*}"
    names_no_scratch
done
expect 0 "$MLOPT" models -o json
holds "[m['project'] for m in d] == ['fashion']" # nothing of it is there, not even the project
[ -z "$(ls data/blobs/incoming)" ] || fail "an upload was left behind"

# --- a client that does not look: the run fails once and says why ----------------------------------------------------------------
while IFS='|' read -r file text; do
    expect 0 python3 "$here/raw_push.py" model "bad-${file/./-}" "$file"
    cat >run.yaml <<'YAML'
name: bad
target: any
data: {evaluate: fashion/test}
steps:
  - optimize: {}
  - evaluate: {metrics: [top1]}
YAML
    expect 6 "$MLOPT" submit "fashion/bad-${file/./-}" --recipe run.yaml --wait --timeout 1500
    says "$text"
    names_no_scratch
done <<<"$bad_models"
for data in 'bomb|decompression bomb' 'label|label 77 of sample 19' 'negative|label -1 of sample 19'; do
    expect 0 python3 "$here/raw_push.py" data "${data%%|*}" "${data%%|*}.npz"
    sed "s,fashion/test,fashion/${data%%|*}," run.yaml >data.yaml
    expect 6 "$MLOPT" submit fashion/cnn --recipe data.yaml --wait --timeout 1500
    says "${data##*|}"
    names_no_scratch
done
expect 0 "$MLOPT" runs -o json
holds "len(d) == 12 and all(r['state'] == 'failed' for r in d)"
last=$(json "d[0]['id']")
expect 0 "$MLOPT" runs "$last" -o json
holds "[len(j['attempts']) for j in d['jobs']] == [1, 1]" # another try would not help
expect 0 "$MLOPT" variants fashion/cnn -o json
holds "d[0]['variant'] == 'source' and d[0]['accuracy'] is None"
# its page says it as well, to who is signed in
code=$(sed -n 's,.*/login?token=,,p' up.log | tail -1)
expect 0 curl -sf -c cookies -o /dev/null "$MLOPT_URL/login?token=$code"
expect 0 curl -sf -b cookies "$MLOPT_URL/runs/fashion/$last"
shows "label -1 of sample 19"
expect 0 python3 "$here/raw_push.py" digest
left=$(find data/blobs/incoming data/work/scratch -name 'blob-*' -o -name 'job-*')
[ -z "$left" ] || fail "left behind: $left"
stop_up

# --- a full disk ------------------------------------------------------------------------------------------------------------------
if [ "$(id -u)" = 0 ] && mkdir full && mount -t tmpfs -o size=100m tmpfs full 2>/dev/null; then
    trap 'umount -l "$work/full" 2>/dev/null || true; clean_up' EXIT
    chmod 711 full
    mv data data.before
    mkdir full/data
    ln -s full/data data
    start_up
    push_example 64 200
    head -c 200m /dev/zero >full/fill 2>/dev/null || true
    cp "$model" other.onnx
    printf '\x32\x01a' >>other.onnx
    expect 1 "$MLOPT" push fashion/cnn other.onnx
    says "no space left"
    [ -z "$(ls full/data/blobs/incoming)" ] || fail "an upload was left behind"
    rm full/fill
    expect 0 "$MLOPT" models -o json
    holds "d[0]['latest_version'] == 1"
    expect 0 "$MLOPT" push fashion/cnn other.onnx
    expect 0 "$MLOPT" submit fashion/cnn --recipe run.yaml --wait --timeout 1500
    stop_up
fi
echo "bad input: ok"
