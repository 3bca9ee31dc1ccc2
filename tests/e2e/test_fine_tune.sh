#!/usr/bin/env bash
# A pruned variant goes out, is worked on elsewhere, and comes back with its lineage.
set -euo pipefail
. "$(dirname "$0")/e2e.sh"
cd "$work"
nets=${MLOPT_SOURCE_DIR:-$PWD}/tests/nets
[ -e "$nets/fine_tune.py" ] || fail "$nets/fine_tune.py is not there"

printf 'name: pruned\ntarget: any\ndata: {calibrate: shop/some}\nsteps:\n  - prune: {remove: 30%%, samples: 32}\n' >pruned.yaml
start_up --workers 1
expect 0 "$MLOPT" push shop/net "$nets/models/mlp.onnx"
expect 0 "$MLOPT" data push shop/some $images/train-images-idx3-ubyte.gz $images/train-labels-idx1-ubyte.gz --count 64 --normalize "$normalize"
expect 0 "$MLOPT" submit shop/net --recipe pruned.yaml --wait --timeout 600 -o json
expect 0 "$MLOPT" pull shop/net@1/pruned --out pulled
cp pulled/*.onnx pruned.onnx

# --- training elsewhere: the same graph with other weights --------------------------------------------------------
if /usr/bin/python3 -c 'import torch, onnx' 2>/dev/null; then
    expect 0 /usr/bin/python3 "$nets/fine_tune.py" pruned.onnx tuned.onnx --images 1000 --epochs 1
    shows "weights trained"
    cmp -s pruned.onnx tuned.onnx && fail "training changed nothing"
    expect 1 /usr/bin/python3 "$nets/fine_tune.py" "$nets/models/vit.onnx" no.onnx
    says "are not trained by this script"
else
    echo "nothing was trained: python3-torch or python3-onnx is not installed; the file is changed without"
    expect 0 "$MLOPT" quantize pruned.onnx --recipe int8-weights --out tuned.onnx
fi

# --- and back -----------------------------------------------------------------------------------------------------
expect 0 "$MLOPT" push shop/net tuned.onnx --derived-from net@1/pruned -o json
holds "d['version'] == 2 and d['facts']['derived_from']['variant'] == 'pruned'"
expect 0 "$MLOPT" lineage shop/net@2 -o json
holds "[e['kind'] for e in d['edges'] if e['child'] == 'sha256:$(sha256sum tuned.onnx | cut -d' ' -f1)'] == ['fine-tuned-from']"
holds "any('shop/net@1/source' in n['names'] for n in d['nodes'])" # the whole way up
expect 0 "$MLOPT" lineage shop/net@2
shows "fine-tuned-from"

# --- bad input ----------------------------------------------------------------------------------------------------
bad() { # CODE TEXT FILE FROM
    expect "$1" "$MLOPT" push shop/net "$3" --derived-from "$4"
    says "$2"
}
bad 3 "9" tuned.onnx net@9/pruned
bad 3 "thin" tuned.onnx net@1/thin
bad 1 "MODEL@VERSION/VARIANT" tuned.onnx net@production
bad 2 "is of another project than shop" tuned.onnx other/net@1
bad 1 "is the same file as net@1/pruned" pruned.onnx net@1/pruned
bad 1 "is an ancestor of net@2/source" "$nets/models/mlp.onnx" shop/net@2
expect 0 "$MLOPT" lineage shop/net@2
stop_up
