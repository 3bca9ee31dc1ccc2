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

nets=$(dirname "$model")/../../tests/nets/models
expect 0 "$MLOPT" prune "$model" --remove 30% --out p.onnx -o json # without data: by norms, nothing is fitted
holds "d['steps'][0]['report']['pruning']['macs']['removed'] >= 0.3 and not d['steps'][0]['report']['pruning']['layers']"
holds "any(l['node'] == '/head/Gemm' and 'output of the graph' in l['why'] for l in d['steps'][0]['report']['pruning']['left'])"
expect 0 "$MLOPT" diff "$model" p.onnx -o json
holds "not d['identical'] and not d['inputs']"
expect 0 "$MLOPT" prune "$nets/mlp.onnx" --data "$images/train-images-idx3-ubyte.gz,$images/train-labels-idx1-ubyte.gz" --limit 64 \
    --normalize "$normalize" --remove 40% --out p.onnx
shows "% removed"
expect 1 "$MLOPT" prune "$model" --remove 99.9% --out none.onnx
says "without channels. At most"
expect 1 "$MLOPT" prune "$model" --remove half --out none.onnx
says "no share of multiply-adds"
expect 2 "$MLOPT" prune "$model" --remove 30%
expect 1 "$MLOPT" prune "$model" --criterion second-order --out none.onnx
says "the criterion second-order reads calibration data"
expect 0 "$MLOPT" prune "$model" --scheme unstructured --sparsity 70% --scope global --out s.onnx -o json # by magnitude
holds "abs(d['steps'][0]['report']['sparsity']['sparsity'] - 0.7) < 1e-3"
holds "all(r['faster'] == 'no' for r in d['steps'][0]['report']['sparsity']['speed'])"
for isa in generic avx2; do
    MLOPT_ISA=$isa expect 0 "$MLOPT" prune "$nets/mlp.onnx" --scheme 2:4 --limit 64 --normalize "$normalize" --out "s-$isa.onnx" \
        --data "$images/train-images-idx3-ubyte.gz,$images/train-labels-idx1-ubyte.gz"
    shows "sparsegpt"
    shows "not faster on the engine cpu"
done
cmp s-generic.onnx s-avx2.onnx || fail "the instruction set left a trace"
expect 0 "$MLOPT" prune "$nets/mlp.onnx" --scheme unstructured --out packed.onnx -o json
holds "d['steps'][0]['report']['sparsity']['storage']['form'] == 'bitmap' and d['result']['size'] < 0.6 * d['source']['size']"
expect 0 "$MLOPT" prune "$nets/mlp.onnx" --scheme unstructured --storage dense --out unpacked.onnx
expect 0 "$MLOPT" eval packed.onnx --against unpacked.onnx --data "$test" --normalize "$normalize" --limit 300 --metric top1 -o json
holds "d['metrics'][0]['difference']['value'] == 0"
expect 2 "$MLOPT" prune "$model" --scheme 2:4 --remove 30% --out none.onnx
says "means nothing with the scheme 2:4"
expect 2 "$MLOPT" prune "$model" --scheme 2:3 --out none.onnx
says "no scheme '2:3'"
expect 1 "$MLOPT" prune "$model" --scheme 2:4 --sparsity 60% --out none.onnx
says "2:4 makes half of the weights zero"
expect 1 "$MLOPT" prune "$model" --scheme unstructured --criterion sparsegpt --out none.onnx
says "the criterion sparsegpt reads calibration data"

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
expect 0 "$MLOPT" quantize "$model" --data $train --limit 64 --normalize "$normalize" --target tensorrt --out t.onnx # and no recipe: int8-cpu
expect 0 "$MLOPT" quantize "$model" --data $train --limit 64 --normalize "$normalize" --target ort-x86-vnni --form qoperator --out k.onnx
expect 0 "$MLOPT" diff "$model" k.onnx
cmp -s q.onnx t.onnx && fail "--target changed nothing"
expect 0 "$MLOPT" quantize "$model" --scheme int8-dynamic --set quantize-dynamic.convolutions=true --out y.onnx -o json # without data
holds "d['result']['size'] < 0.4 * d['source']['size'] and d['steps'][1]['report']['passes'][0]['changes'] == 10"
holds "d['steps'][1]['report']['deviation']['outputs'][0]['sqnr_db'] > 20"
expect 0 "$MLOPT" quantize "$model" --scheme int8-dynamic --target ort-x86-avx2 --exclude /head/Gemm --set quantize-dynamic.convolutions=true --out y.onnx
says "/head/Gemm: Gemm stays in float: it is excluded"
says "what a sample gives depends on the others"
expect 0 "$MLOPT" quantize "$model" --recipe fp16 --out h.onnx -o json # without data
holds "d['result']['size'] < 0.55 * d['source']['size']"
holds "d['steps'][-1]['report']['deviation']['outputs'][0]['cosine'] > 0.9999"
expect 0 "$MLOPT" diff "$model" h.onnx
expect 0 "$MLOPT" quantize "$model" --scheme int8-weights --report d.html --out d.onnx
shows "8 synthetic inputs (no data was given: this says nothing of accuracy)"
shows "logits: cosine 0.99"
grep -q "Outputs on synthetic inputs" d.html || fail "the report does not say what was compared"
rm d.html d.onnx
expect 0 "$MLOPT" quantize "$model" --data $train --limit 64 --recipe int8-cpu --out t.onnx
says "is uint8 and feeds it by value" # of the set itself, also where --limit makes less of it
expect 2 "$MLOPT" quantize "$model" --out none.onnx
says "--data"
expect 1 "$MLOPT" quantize "$model" --data $train --limit 64 --target tpu --out none.onnx
says "ort-x86-vnni"
rm t.onnx k.onnx h.onnx

# --- fake quantization of a training (tests/nets/train_qat.py) ---
qat=$(dirname "$model")/../../tests/golden/qat
for name in per-tensor per-channel; do
    expect 0 "$MLOPT" eval "$qat/$name.onnx" --data $test --limit 500 --normalize "$normalize" --metric top1 --engine reference -o json
    was=$(json "d['metrics'][0]['estimate']['value']")
    for form in qdq qoperator; do
        expect 0 "$MLOPT" qat-export "$qat/$name.onnx" --form $form --target mlopt-cpu --out t.onnx -o json # needs no data
        holds "[s['step'] for s in d['steps']] == ['qat-export'] and d['result']['size'] < 0.65 * d['source']['size']"
        holds "any(n['note'] == '5 of 6 nodes that multiply run in integers' for n in d['steps'][0]['report']['passes'][0]['notes'])"
        expect 0 "$MLOPT" eval t.onnx --data $test --limit 500 --normalize "$normalize" --metric top1 -o json
        holds "abs(d['metrics'][0]['estimate']['value'] - $was) <= 0.006"
    done
done
expect 0 "$MLOPT" qat-export t.onnx --out k.onnx # integer already
says "computes in integers already"
expect 1 "$MLOPT" qat-export "$model" --out none.onnx
says "no fake quantization"
expect 2 "$MLOPT" qat-export "$qat/per-tensor.onnx"
says "--out"
expect 1 "$MLOPT" qat-export "$qat/per-tensor.onnx" --target tpu --out none.onnx
says "ort-x86-vnni"
if /usr/bin/python3 -c 'from onnx import numpy_helper' 2>/dev/null; then
    /usr/bin/python3 - "$qat/per-tensor.onnx" <<'PY'
import sys, onnx
from onnx import numpy_helper, TensorProto
def change(out, edit):
    m = onnx.load(sys.argv[1])
    edit(m)
    onnx.save(m, out)
def scale(value):
    def edit(m):
        t = next(t for t in m.graph.initializer if t.name == "stem.0.weight_fake_quant.scale")
        t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(t) * 0 + value, t.name))
    return edit
def cast(m):
    next(n for n in m.graph.node if n.op_type == "Cast").attribute[0].i = TensorProto.INT64
def bare(m):
    node = next(n for n in m.graph.node if n.op_type == "DequantizeLinear")
    node.op_type = "Cast"
    del node.input[1:]
    node.attribute.append(onnx.helper.make_attribute("to", 1))
change("zero.onnx", scale(0))
change("nan.onnx", scale(float("nan")))
change("type.onnx", cast)
change("bare.onnx", bare)
PY
    expect 1 "$MLOPT" qat-export zero.onnx --out none.onnx
    says "scale 0 of 1 is 0"
    says "QuantizeLinear of 'stem.0.weight'"
    expect 1 "$MLOPT" qat-export nan.onnx --out none.onnx
    says "scale 0 of 1 is nan"
    expect 1 "$MLOPT" qat-export type.onnx --out none.onnx
    says "int64"
    expect 1 "$MLOPT" qat-export bare.onnx --out none.onnx
    says "no DequantizeLinear stands behind it"
    rm zero.onnx nan.onnx type.onnx bare.onnx
fi
[ ! -e none.onnx ] || fail "a refused model was written"
rm t.onnx k.onnx

# which nodes suffer
expect 0 "$MLOPT" sensitivity "$model" --data $train --limit 16 --samples 8 --normalize "$normalize" --threads 1 -o json
holds "len(d['nodes']) == 12 and [n['sqnr_db'] for n in d['nodes']] == sorted(n['sqnr_db'] for n in d['nodes'])"
expect 0 "$MLOPT" sensitivity "$model" --data $train --limit 16 --samples 8 --normalize "$normalize" --threads 1
shows "SQNR dB"
expect 2 "$MLOPT" sensitivity "$model" --data $train --metric top1
says "--select"
# a budget of accuracy
python3 - $images/t10k- <<'PY' # the first 300 samples
import gzip, struct, sys
for name, head, row in (("images", 16, 784), ("labels", 8, 1)):
    b = gzip.open("%s%s-idx%d-ubyte.gz" % (sys.argv[1], name, 3 if row > 1 else 1)).read()
    open("few-" + name, "wb").write(b[:4] + struct.pack(">I", 300) + b[8 : head + 300 * row])
PY
expect 0 "$MLOPT" quantize "$model" --data $train --limit 64 --normalize "$normalize" --select few-images,few-labels --accuracy-drop 4pt \
    --threads 1 --out b.onnx -o json
holds "d['steps'][1]['report']['mixed_precision']['drop']['high'] <= 0.04"
expect 1 "$MLOPT" quantize "$model" --data $train --limit 64 --normalize "$normalize" --select few-images,few-labels --accuracy-drop much --out none.onnx
says "'much' is no budget"
expect 2 "$MLOPT" quantize "$model" --data $train --limit 64 --normalize "$normalize" --accuracy-drop 4pt --out none.onnx
says "--select LABELLED is required"
expect 2 "$MLOPT" quantize "$model" --data $train --limit 64 --normalize "$normalize" --select few-images,few-labels --out none.onnx
says "--accuracy-drop"
rm b.onnx few-images few-labels

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
holds "d['a']['p50_us']['value'] <= d['a']['p95_us']['value'] <= d['a']['p99_us']['value'] and 'class' in d['machine']"
expect 0 "$MLOPT" bench "$model" --sweep --batches 1,4 --concurrency 1,2 --seconds 0.1 --rounds 1 --p99-limit 100000000 -o json
holds "[(p['batch'], p['concurrency']) for p in d['points']] == [(1, 1), (1, 2), (4, 1), (4, 2)]"
holds "d['best']['throughput'] == max(p['throughput'] for p in d['points']) > 0 and 'class' in d['machine']"
holds "all(p['p50_us'] <= p['p95_us'] <= p['p99_us'] and p['peak_rss_bytes'] > 1e6 for p in d['points'])"
expect 0 "$MLOPT" bench "$model" --sweep --batches 2 --concurrency 1 --seconds 0.05 --rounds 1 --p99-limit 0.000001
shows "no point has its p99 under"
expect 2 "$MLOPT" bench "$model" --batches 1,2
says "--batches belongs to --sweep"
expect 2 "$MLOPT" bench "$model" --sweep --batches 1,x
expect 0 "$MLOPT" bench "$model" --flame flame.svg -o json
holds "all(k in next(n for n in d['nodes'] if n['op'] == 'Conv') for k in ('us', 'flops', 'bytes', 'intensity', 'bound', 'peak'))"
holds "d['peaks']['f32_ops'] > 1e6 and len(d['peaks']['levels']) == 3"
nodes=$(json "len(d['nodes'])")
python3 - flame.svg "$nodes" <<'PY' || fail "the flame graph"
import sys, xml.dom.minidom
doc = xml.dom.minidom.parse(sys.argv[1])
boxes = [g for g in doc.getElementsByTagName("g") if g.getElementsByTagName("title")]
titles = [g.getElementsByTagName("title")[0].firstChild.data for g in boxes]
assert sum("/stage2/stage2.1/conv1/Conv\n" in t for t in titles) == 1, titles
assert any(t.startswith("stage2\n") for t in titles), titles
rects = [[float(g.getElementsByTagName("rect")[0].getAttribute(a)) for a in ("x", "y", "width")] for g in boxes]
assert all(16 <= x and x + w <= 1265 for x, y, w in rects)
for i, (x, y, w) in enumerate(rects):
    for X, Y, W in rects[:i]:
        assert y != Y or x + w <= X + 0.01 or X + W <= x + 0.01, "two blocks of a row overlap"
PY
expect 0 "$MLOPT" bench "$model" --profile
shows "of the roof"
if /usr/bin/python3 -c 'import onnx' 2>/dev/null; then
    /usr/bin/python3 - <<'PY'
import onnx
from onnx import TensorProto, helper
x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "width"])
y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "width"])
graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "open", [x], [y])
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "open.onnx")
PY
    expect 1 "$MLOPT" bench open.onnx --seconds 0.1
    says "--dim 'width=N'"
    expect 1 "$MLOPT" bench open.onnx --seconds 0.1 --dim wide=3
    says "no open dim 'wide'"
    expect 0 "$MLOPT" bench open.onnx --seconds 0.1 --rounds 2 --dim width=128 -o json
    expect 0 "$MLOPT" bench open.onnx --sweep --batches 1 --concurrency 1 --seconds 0.05 --rounds 1 --dim width=128 -o json
    expect 0 "$MLOPT" optimize open.onnx --out open-o.onnx --dim width=8
fi
# what stands between outputs and metric: upside down, the best class is the last
if /usr/bin/python3 -c 'import onnx' 2>/dev/null; then
    /usr/bin/python3 "$(dirname "$0")/post_models.py"
    expect 0 "$MLOPT" eval "$model" --data $test --limit 300 --normalize "$normalize" --metric top1 --postprocess flip.onnx -o json
    holds "d['postprocess'] == 'flip.onnx' and d['metrics'][0]['estimate']['value'] < 0.05"
    expect 0 "$MLOPT" eval "$model" --against q.onnx --data $test --limit 40 --normalize "$normalize" --metric top1,agreement \
        --postprocess same.onnx --engine reference -o json
    holds "d['metrics'][0]['estimate']['value'] > 0.85 and d['metrics'][0]['against']['value'] > 0.85"
    expect 1 "$MLOPT" eval "$model" --data $test --limit 20 --normalize "$normalize" --metric top1 --postprocess two.onnx
    says "the postprocessing model two.onnx: its inputs are 'a', 'b', the model's outputs 'logits'"
    expect 3 "$MLOPT" eval "$model" --data $test --limit 20 --normalize "$normalize" --metric top1 --postprocess none.onnx
    says "none.onnx"
fi
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
python3 -c 'import random, sys; sys.stdout.buffer.write(random.Random(1).randbytes(4096))' >random.onnx
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

# --- a reader that has enough ------------------------------------------------------------------------------------------------
head_of() { # FIRST-LINE COMMAND…: silent, with the line and whatever is behind it
    local want=$1 got code
    shift
    got=$("$@" 2>stderr | head -1) || true # head's code, or SIGPIPE's where the other was slower
    case $got in $want) ;; *) fail "$* | head -1 shows '$got'" ;; esac
    [ ! -s stderr ] || fail "$* | head -1 says on stderr: $(cat stderr)"
    exec {gone}> >(:) && wait $! # a pipe that nobody reads any more, for certain
    code=0
    "$@" >&"$gone" 2>stderr || code=$?
    exec {gone}>&-
    [ "$code" = 141 ] || fail "$* ended with $code where nobody reads"
    [ ! -s stderr ] || fail "$* says, where nobody reads: $(cat stderr)"
}
head_of '*fashion_cnn.onnx*' "$MLOPT" inspect "$model"
head_of '{' "$MLOPT" inspect "$model" -o json
head_of '*fashion_cnn.onnx*' "$MLOPT" inspect "$model" --nodes
head_of 'the models are the same' "$MLOPT" diff "$model" "$model"
head_of 'engine *' "$MLOPT" engines
head_of 'mlopt:*' "$MLOPT" --help
head_of '# bash completion*' "$MLOPT" completion bash

# a signal leaves nothing behind
"$MLOPT" quantize "$model" --data $train --limit 20000 --normalize "$normalize" --recipe int8-cpu --threads 1 \
    --out out.onnx 2>stderr &
pid=$!
works() { # it has used half a second of the processor, of the many that it needs
    set -- $(sed 's/.*) //' /proc/$pid/stat 2>/dev/null)
    [ $# -lt 13 ] || [ $((${12} + ${13})) -ge 50 ]
}
wait_until "it works" works
kill -INT $pid 2>/dev/null || true
kill -TERM $pid 2>/dev/null || true
code=0
wait $pid || code=$?
[ $code = 143 ] || [ $code = 130 ] || fail "a signal ended it with $code"
nothing_left "an interrupted run"
echo "local verbs: ok"
