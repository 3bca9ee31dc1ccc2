#!/usr/bin/env bash
# The nets that quantization is measured on: as they were frozen, as accurate as recorded, and no worse than a point in int8.
set -euo pipefail
. "$(dirname "$0")/e2e.sh"
tree=${MLOPT_SOURCE_DIR:-$PWD}
nets=$tree/tests/nets/models
test=$images/t10k-images-idx3-ubyte.gz,$images/t10k-labels-idx1-ubyte.gz

(cd "$tree" && sha256sum --quiet --strict --check tests/nets/models/SHA256SUMS) || fail "a net is not the one that was frozen"
for file in "$nets"/*.onnx; do
    grep -q " tests/nets/models/$(basename "$file")\$" "$nets/SHA256SUMS" || fail "SHA256SUMS does not have $file"
done
cd "$work"

# check FILE CORRECT OF OPS: how many of the first test images the frozen net gets right, and ops that it is here for
check() {
    local net=$1 correct=$2 of=$3 ops=$4 op
    echo "$net"
    expect 0 "$MLOPT" inspect "$net" -o json
    holds "d['supported'] and not d['unsupported'] and d['inputs'][0]['name'] == 'image' and d['outputs'][0]['name'] == 'logits'"
    for op in $ops; do holds "d['ops'].get('$op', 0) > 0"; done
    expect 0 "$MLOPT" quantize "$net" --data "$images/train-images-idx3-ubyte.gz,$images/train-labels-idx1-ubyte.gz" --limit 256 \
        --normalize "$normalize" --out q.onnx -q
    expect 0 "$MLOPT" inspect q.onnx -o json
    holds "d['ops'].get('DequantizeLinear', 0) > 0"
    expect 0 "$MLOPT" eval q.onnx --against "$net" --data "$test" --normalize "$normalize" --limit "$of" --metric top1 -q -o json
    # another order of sums may turn two images that stand on an edge
    holds "d['samples'] == $of and abs(d['metrics'][0]['against']['value'] * $of - $correct) < 2.5"
    holds "d['metrics'][0]['difference']['value'] >= -0.01"
}

check "$nets/mlp.onnx" 8964 10000 "Gemm Relu"
check "$nets/mobilenet_v2.onnx" 9086 10000 "Conv Clip Add GlobalAveragePool"
check "$nets/mobilenet_v3.onnx" 9130 10000 "Conv HardSwish HardSigmoid Mul"
check "$nets/vit.onnx" 8716 10000 "LayerNormalization Softmax MatMul Erf"
check "$model" 1879 2000 "Conv BatchNormalization"
