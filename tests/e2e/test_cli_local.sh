#!/usr/bin/env bash
# The local verbs on a real model and real data, and what they say about bad input.
set -euo pipefail
. "$(dirname "$0")/e2e.sh"
train=$images/train-images-idx3-ubyte.gz,$images/train-labels-idx1-ubyte.gz
test=$images/t10k-images-idx3-ubyte.gz,$images/t10k-labels-idx1-ubyte.gz
cd "$work"

# --- what works -------------------------------------------------------------------------------------------------
expect 0 "$MLOPT" --version
expect 0 "$MLOPT" --help
shows "quantize"
expect 0 "$MLOPT" quantize --help
shows "--recipe FILE|NAME"
expect 0 "$MLOPT" engines -o json
holds "all(e['available'] for e in d['engines'] if e['name'] in ('cpu', 'reference')) and 'any' in d['targets']"
expect 0 "$MLOPT" inspect "$model" -o json
holds "d['supported'] and d['ops']['Conv'] == 11 and d['inputs'][0]['name'] == 'image' and d['macs'] > 40e6"
holds "d['flops'] > 2 * d['macs'] and d['peak']['bytes'] > 3e5 and len(d['node_list']) == d['nodes'] and not d['unsupported']"
holds "sum(n['flops'] for n in d['node_list']) == d['flops']"
one=$(json "d['flops']")
peak=$(json "d['peak']['bytes']")
expect 0 "$MLOPT" inspect "$model" --batch 8 -o json
holds "d['flops'] == 8 * $one and 7.9 * $peak < d['peak']['bytes'] <= 8 * $peak"
expect 0 "$MLOPT" inspect "$model" --dim batch=8 -o json
holds "d['flops'] == 8 * $one"
expect 2 "$MLOPT" inspect "$model" --dim batch
expect 0 "$MLOPT" inspect "$model" --nodes
[ "$(grep -c BatchNormalization stdout)" = 13 ] || fail "not every node is listed" # 11, one in the counts, one at the peak
expect 0 "$MLOPT" inspect "$model" --svg g.svg
python3 - g.svg <<'PY' || fail "the picture"
import re, sys, xml.dom.minidom
doc = xml.dom.minidom.parse(sys.argv[1])
boxes = [g for g in doc.getElementsByTagName("g") if g.getElementsByTagName("title")]
assert len(boxes) == 41 + 2, len(boxes)
rects = [[float(g.getElementsByTagName("rect")[0].getAttribute(a)) for a in ("x", "y", "width", "height")] for g in boxes]
for i, (x, y, w, h) in enumerate(rects):
    for X, Y, W, H in rects[:i]:
        assert x + w <= X or X + W <= x or y + h <= Y or Y + H <= y, "two boxes overlap"
PY
rm g.svg
expect 3 "$MLOPT" inspect "$model" --svg nowhere/g.svg
expect 0 "$MLOPT" inspect "$model" --graph
shows "Conv"

expect 0 "$MLOPT" optimize "$model" --out o.onnx -o json
holds "d['nodes']['after'] < d['nodes']['before'] and d['deviation']['finite'] and d['deviation']['max_rel'] < 1e-4"
holds "d['result']['digest'] == 'sha256:' + '$(sha256sum o.onnx | cut -d' ' -f1)'"
expect 0 "$MLOPT" inspect o.onnx -o json
holds "'BatchNormalization' not in d['ops']"

expect 0 "$MLOPT" diff "$model" o.onnx -o json
holds "not d['identical'] and d['ops']['BatchNormalization'] == {'a': 11, 'b': 0} and d['a']['nodes'] == 41 and not d['inputs']"
holds "any(r['change'] == 'removed' and r['a'] == 'BatchNormalization' for r in d['nodes'])"
expect 0 "$MLOPT" diff "$model" o.onnx
shows "BatchNormalization"
expect 0 "$MLOPT" diff "$model" "$model"
shows "the models are the same"
expect 3 "$MLOPT" diff "$model" nothing.onnx
if /usr/bin/python3 -c 'from onnx import numpy_helper' 2>/dev/null; then
    /usr/bin/python3 - "$model" <<'PY'
import sys, numpy, onnx
from onnx import numpy_helper
m = onnx.load(sys.argv[1])
t = next(t for t in m.graph.initializer if len(t.dims) == 4)
a = numpy_helper.to_array(t).copy()
a.flat[0] += 0.5
t.CopyFrom(numpy_helper.from_array(a, t.name))
n = next(n for n in m.graph.node if n.op_type == "Conv")
next(x for x in n.attribute if x.name == "dilations").ints[:] = [1, 1]
next(x for x in n.attribute if x.name == "group").name = "grouped"
m.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
m.opset_import[0].version = 16
onnx.save(m, "changed.onnx")
PY
    expect 0 "$MLOPT" diff "$model" changed.onnx -o json
    holds "[r for r in d['initializers']][0]['elements_changed'] == 1 and abs(d['initializers'][0]['max_difference'] - 0.5) < 1e-6"
    holds "len(d['initializers']) == 1 and d['opsets'] == [{'name': 'ai.onnx', 'change': 'changed', 'a': '17', 'b': '16'}]"
    holds "d['inputs'][0]['b'].startswith('float32[n,') and [a['name'] for a in d['nodes'][0]['attributes']] == ['group', 'grouped']"
    expect 0 "$MLOPT" diff "$model" changed.onnx
    shows "1 of "
    rm changed.onnx
fi

expect 0 "$MLOPT" quantize "$model" --data $train --limit 64 --normalize "$normalize" --recipe int8-cpu --out q.onnx -o json
holds "d['result']['size'] < 0.4 * d['source']['size'] and [s['step'] for s in d['steps']] == ['optimize', 'quantize']"
expect 0 "$MLOPT" quantize "$model" --data $train --limit 64 --normalize "$normalize" --recipe int8-cpu \
    --set quantize.calibrator=percentile --out p.onnx
if grep -qw avx512_vnni /proc/cpuinfo; then # every convolution and the Gemm really run on integers
    expect 0 "$MLOPT" inspect q.onnx --plan -o json
    holds "all(n['precision'] == 'int8' for n in d['plan']['nodes'] if n['op'] in ('Conv', 'Gemm'))"
    holds "d['plan']['int8_nodes'] >= 12"
fi
expect 0 "$MLOPT" inspect "$model" --plan --engine reference
shows "f32"
cmp -s q.onnx p.onnx && fail "--set changed nothing"
expect 0 "$MLOPT" quantize "$model" --data $train --limit 64 --normalize "$normalize" --recipe int8-cpu --threads 1 --out q1.onnx
cmp q.onnx q1.onnx || fail "the number of threads changed the bytes"

expect 0 "$MLOPT" run "$model" --data $test --limit 5 --normalize "$normalize" --engine reference --out ref.npz
expect 0 "$MLOPT" run "$model" --data $test --limit 5 --normalize "$normalize" --engine cpu --out cpu.npz -o json
holds "d['samples'] == 5 and d['outputs'][0]['type'] == 'float32[5,10]'"
expect 0 "$MLOPT" eval q.onnx --against "$model" --metric top1,cosine --data $test --limit 1000 --normalize "$normalize" \
    --threads 2 -o json
holds "[m['metric'] for m in d['metrics']] == ['top1', 'cosine'] and d['samples'] == 1000"
holds "d['metrics'][0]['estimate']['value'] > 0.88 and d['metrics'][0]['estimate']['low'] < d['metrics'][0]['estimate']['value']"
holds "abs(d['metrics'][0]['difference']['value']) < 0.02 and d['metrics'][1]['estimate']['value'] > 0.98"
expect 0 "$MLOPT" bench "$model" q.onnx --seconds 0.4 --rounds 2 -o json
holds "d['a']['p50_us']['value'] > 0 and d['b']['p50_us']['value'] > 0 and d['ratio_p50']['value'] > 0"
expect 0 "$MLOPT" completion bash
bash -n stdout || fail "the completion is no shell"

# the program's own npz files are datasets again
expect 0 "$MLOPT" eval "$model" --data $test --limit 20 --normalize "$normalize" --metric top1
shows "top1"

# --- usage --------------------------------------------------------------------------------------------------------
expect 2 "$MLOPT"
expect 2 "$MLOPT" quantise x.onnx
says "did you mean: mlopt quantize?"
expect 2 "$MLOPT" optimize "$model" --ot x.onnx
says "did you mean --out?"
expect 2 "$MLOPT" optimize "$model"
says "--out O.onnx is required"
expect 2 "$MLOPT" eval "$model" --data $test
says "--metric NAME is required"
expect 1 "$MLOPT" eval "$model" --data $test --metric topp1
says "top1"
expect 3 "$MLOPT" inspect nothing.onnx
says "nothing.onnx"
expect 3 "$MLOPT" optimize "$model" --out no/such/folder/o.onnx
says "no/such/folder"

# --- bad models ------------------------------------------------------------------------------------------------------
nothing_left() {
    [ ! -e out.onnx ] && [ ! -e out.npz ] || fail "$1 left an output behind"
    ! compgen -G 'out.*' >/dev/null || fail "$1 left $(echo out.*)"
}
head -c 600000 "$model" >truncated.onnx
expect 1 "$MLOPT" optimize truncated.onnx --out out.onnx
says "truncated.onnx"
nothing_left "a truncated model"
head -c 4096 /dev/urandom >random.onnx
expect 1 "$MLOPT" optimize random.onnx --out out.onnx
says "error: "
: >empty.onnx
expect 1 "$MLOPT" inspect empty.onnx
python3 - <<'PY'
import zipfile
with zipfile.ZipFile("model.pt", "w") as z:      # what torch.save writes
    z.writestr("archive/data.pkl", b"\x80\x02}q\x00.")
    z.writestr("archive/version", b"3\n")
with open("weights.safetensors", "wb") as f:
    head = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    f.write(len(head).to_bytes(8, "little") + head + b"\0\0\0\0")

def field(number, payload):                      # a length-delimited protobuf field
    size = len(payload)
    out = bytearray([number << 3 | 2])
    while size >= 128:
        out.append(size & 127 | 128)
        size >>= 7
    out.append(size)
    return bytes(out) + payload

def value(name):                                 # ValueInfoProto float32[1]
    return field(1, name) + field(2, field(1, b"\x08\x01" + field(2, field(1, b"\x08\x01"))))

node = field(1, b"x") + field(2, b"y") + field(3, b"odd") + field(4, b"Wobble")
graph = field(1, node) + field(2, b"g") + field(11, value(b"x")) + field(12, value(b"y"))
with open("unknown.onnx", "wb") as f:
    f.write(b"\x08\x08" + field(7, graph) + field(8, field(1, b"") + b"\x10\x11"))
with open("deep.onnx", "wb") as f:               # graph > node > attribute > graph > …, 3,000 levels
    inner = b""
    for _ in range(3000):
        inner = field(1, field(5, field(6, inner)))
    f.write(b"\x08\x08" + field(7, inner))
PY
for file in model.pt weights.safetensors; do
    expect 1 "$MLOPT" optimize $file --out out.onnx
    says "hint: "
    says "export"
done
expect 1 "$MLOPT" optimize unknown.onnx --out out.onnx
says "Wobble"
says "odd"
expect 0 "$MLOPT" inspect unknown.onnx # what a file holds can be told without running it
shows "unknown op Wobble"
expect 0 "$MLOPT" inspect unknown.onnx -o json
holds "not d['supported'] and d['unsupported'][0]['op'] == 'Wobble' and 'unknown op' in d['unsupported'][0]['reason']"
expect 0 "$MLOPT" inspect unknown.onnx --svg unknown.svg
grep -q 'class="u"><title>odd' unknown.svg || fail "the unknown op is not drawn as one"
rm unknown.svg
expect 1 "$MLOPT" optimize deep.onnx --out out.onnx
nothing_left "a bad model"

# --- bad data --------------------------------------------------------------------------------------------------------
python3 - <<'PY'
import struct, zipfile
def npy(shape, dtype, data):
    head = "{'descr': '%s', 'fortran_order': False, 'shape': %s, }" % (dtype, shape)
    head += " " * (-(len(head) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + data
with zipfile.ZipFile("bomb.npz", "w", zipfile.ZIP_DEFLATED) as z:
    z.writestr("x.npy", npy("(1000000, 28, 28)", "|u1", b"\0" * 1000))          # claims 784 MB, holds 1 kB
with zipfile.ZipFile("labels.npz", "w", zipfile.ZIP_DEFLATED) as z:
    z.writestr("x.npy", npy("(2, 28, 28)", "|u1", bytes(2 * 784)))
    z.writestr("y.npy", npy("(2,)", "<i8", struct.pack("<qq", 3, 10)))           # ten classes: 0 to 9
with zipfile.ZipFile("shape.npz", "w", zipfile.ZIP_DEFLATED) as z:
    z.writestr("x.npy", npy("(2, 27, 28)", "|u1", bytes(2 * 27 * 28)))
PY
expect 1 "$MLOPT" run "$model" --data bomb.npz --out out.npz
says "bomb.npz"
expect 1 "$MLOPT" eval "$model" --data labels.npz --metric top1
says "10"
expect 1 "$MLOPT" quantize "$model" --data shape.npz --recipe int8-cpu --out out.onnx
says "27"
expect 3 "$MLOPT" run "$model" --data none.npz --out out.npz
expect 1 "$MLOPT" run "$model" --data random.onnx --out out.npz
nothing_left "bad data"

# --- bad recipes --------------------------------------------------------------------------------------------------------
printf 'name: mine\ntarget: any\nsteps:\n  - optimise: {}\n' >typo.yaml
expect 1 "$MLOPT" quantize "$model" --data labels.npz --recipe typo.yaml --out out.onnx
says "typo.yaml:4"
says "optimize"
expect 3 "$MLOPT" quantize "$model" --data labels.npz --recipe int8-cpux --out out.onnx
says "did you mean --recipe int8-cpu?"
expect 1 "$MLOPT" quantize "$model" --data labels.npz --recipe int8-cpu --set quantize.calibratr=minmax --out out.onnx
says "calibrator"
nothing_left "a bad recipe"

# --- a full disk -----------------------------------------------------------------------------------------------------------
if [ -w /dev/full ]; then
    code=0
    "$MLOPT" inspect "$model" >/dev/full 2>stderr || code=$?
    [ $code = 1 ] || fail "writing to a full disk ended with $code"
    says "No space left"
fi
# a signal leaves nothing behind
"$MLOPT" quantize "$model" --data $train --limit 20000 --normalize "$normalize" --recipe int8-cpu --out out.onnx 2>stderr &
pid=$!
sleep 0.7
kill -INT $pid 2>/dev/null || true
kill -TERM $pid 2>/dev/null || true
code=0
wait $pid || code=$?
[ $code = 143 ] || [ $code = 130 ] || fail "a signal ended it with $code"
nothing_left "an interrupted run"
echo "local verbs: ok"
