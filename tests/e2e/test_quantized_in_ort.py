#!/usr/bin/env python3
"""What `mlopt quantize` makes loads in ONNX Runtime, predicts there what it predicts here, and gets the integer kernels it was made for.

    MLOPT=build-dev/mlopt MLOPT_PYTHON=VENV/bin/python python3 tests/e2e/test_quantized_in_ort.py

A check for developers: skipped (77) where there is no Python with onnxruntime and onnx, which MLOPT_PYTHON names.
"""
import collections
import os
import subprocess
import sys
import tempfile

try:
    import numpy as np
    import onnx
    import onnxruntime as ort
    from onnx import TensorProto as T
    from onnx import helper as h
    from onnx import numpy_helper
except ImportError:
    python = os.environ.get("MLOPT_PYTHON")
    if not python or os.environ.get("MLOPT_CHECKED"):
        print("skipped: no Python with onnxruntime and onnx (MLOPT_PYTHON)")
        sys.exit(77)
    os.execve(python, [python, *sys.argv], dict(os.environ, MLOPT_CHECKED="1"))

MLOPT = os.environ.get("MLOPT", "mlopt")
SAMPLES = 48
RECIPE = "name: check\ntarget: any\ndata: {calibrate: a/b}\nsteps:\n  - optimize: {}\n  - %s: {%s}\n"


class Net:
    """A graph under construction; names of values are those of their nodes."""

    def __init__(self, seed):
        self.random, self.nodes, self.weights, self.count = np.random.default_rng(seed), [], [], 0

    def add(self, op, *inputs, **attributes):
        self.count += 1
        self.nodes.append(h.make_node(op, list(inputs), [f"v{self.count}"], name=f"{op}_{self.count}", **attributes))
        return f"v{self.count}"

    def weight(self, *dims, scale=1.0):
        self.count += 1
        self.weights.append(numpy_helper.from_array((self.random.standard_normal(dims) * scale).astype(np.float32), f"w{self.count}"))
        return f"w{self.count}"

    def ints(self, *numbers):
        self.count += 1
        self.weights.append(numpy_helper.from_array(np.array(numbers, np.int64), f"w{self.count}"))
        return f"w{self.count}"

    def floats(self, *numbers, shape=None):
        self.count += 1
        array = np.array(numbers, np.float32)
        self.weights.append(numpy_helper.from_array(array if shape is None else array.reshape(shape), f"w{self.count}"))
        return f"w{self.count}"

    def split(self, x, parts, **attributes):
        self.count += 1
        outputs = [f"v{self.count}_{i}" for i in range(parts)]
        self.nodes.append(h.make_node("Split", [x], outputs, name=f"Split_{self.count}", **attributes))
        return outputs

    def upsample(self, x):
        return self.add("Resize", x, "", self.floats(1, 1, 2, 2), mode="linear")

    def conv(self, x, of, to, kernel=3, stride=1, group=1):
        fan = of // group * kernel * kernel
        return self.add("Conv", x, self.weight(to, of // group, kernel, kernel, scale=fan**-0.5), self.weight(to, scale=0.1), group=group,
                        pads=[kernel // 2] * 4, strides=[stride] * 2, kernel_shape=[kernel] * 2)

    def gemm(self, x, of, to):
        return self.add("Gemm", x, self.weight(of, to, scale=of**-0.5), self.weight(to, scale=0.1))

    def matmul(self, x, of, to):
        return self.add("Add", self.add("MatMul", x, self.weight(of, to, scale=of**-0.5)), self.weight(to, scale=0.1))

    def model(self, y, shape, classes):
        graph = h.make_graph(self.nodes, "net", [h.make_tensor_value_info("x", T.FLOAT, ["batch", *shape])],
                             [h.make_tensor_value_info(y, T.FLOAT, ["batch", *classes])], self.weights)
        model = h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(model, full_check=True)
        return model


def residual():
    n = Net(1)
    a = n.add("Relu", n.conv("x", 3, 16))
    b = n.add("Relu", n.add("Add", n.conv(n.add("Relu", n.conv(a, 16, 16)), 16, 16), a))
    b = n.add("MaxPool", b, kernel_shape=[2, 2], strides=[2, 2])
    c = n.add("Concat", n.conv(b, 16, 8, 1), n.add("LeakyRelu", n.conv(b, 16, 16)), axis=1)
    c = n.add("AveragePool", n.conv(c, 24, 24), kernel_shape=[2, 2], strides=[2, 2])
    y = n.add("Flatten", n.add("GlobalAveragePool", n.add("Relu", n.conv(c, 24, 32))))
    return n.model(n.gemm(y, 32, 10), (3, 16, 16), [10])


def swish():
    """As in EfficientNet: x * sigmoid(x), depthwise, squeeze and excitation."""
    n = Net(2)

    def silu(x):
        return n.add("Mul", x, n.add("Sigmoid", x))

    a = silu(n.conv("x", 3, 16))
    b = silu(n.conv(a, 16, 16, group=16))
    gate = n.add("Sigmoid", n.conv(silu(n.conv(n.add("GlobalAveragePool", b), 16, 8, 1)), 8, 16, 1))
    b = n.add("Add", n.conv(n.add("Mul", b, gate), 16, 16, 1), a)
    y = n.add("Flatten", n.add("GlobalAveragePool", silu(n.conv(b, 16, 32, 1))))
    return n.model(n.gemm(y, 32, 10), (3, 16, 16), [10])


def transformer():
    n, width, heads = Net(3), 32, 4
    x = n.matmul("x", 16, width)
    y = n.add("LayerNormalization", x, n.weight(width), axis=-1)

    def split(v):
        v = n.add("Reshape", v, n.ints(0, 0, heads, width // heads))
        return v

    q = n.add("Transpose", split(n.matmul(y, width, width)), perm=[0, 2, 1, 3])
    k = n.add("Transpose", split(n.matmul(y, width, width)), perm=[0, 2, 3, 1])
    v = n.add("Transpose", split(n.matmul(y, width, width)), perm=[0, 2, 1, 3])
    a = n.add("MatMul", n.add("Softmax", n.add("MatMul", q, k), axis=-1), v)
    a = n.add("Reshape", n.add("Transpose", a, perm=[0, 2, 1, 3]), n.ints(0, 0, width))
    x = n.add("Add", x, n.matmul(a, width, width))
    y = n.add("LayerNormalization", x, n.weight(width), axis=-1)
    x = n.add("Add", x, n.matmul(n.add("Relu", n.matmul(y, width, 64)), 64, width))
    return n.model(n.gemm(n.add("Flatten", n.add("ReduceMean", x, axes=[1])), width, 10), (8, 16), [10])


def moving():
    """Ops that only move values, upsampling, hard activations and a transposed convolution."""
    n = Net(4)
    a = n.add("HardSwish", n.conv("x", 3, 16))
    a = n.add("Resize", n.conv(a, 16, 16), "", n.floats(1, 1, 2, 2), mode="nearest")
    left, right = n.split(n.conv(a, 16, 16), 2, axis=1)
    b = n.conv(n.add("Concat", n.add("DepthToSpace", n.conv(left, 8, 32), blocksize=2), n.add("Transpose", n.upsample(right), perm=[0, 1, 3, 2]),
                     axis=1), 16, 8)
    b = n.add("ConvTranspose", n.add("Clip", b, n.floats(0, shape=()), n.floats(6, shape=())), n.weight(8, 4, 2, 2, scale=0.3), strides=[2, 2])
    b = n.add("Slice", n.conv(b, 4, 8), n.ints(0, 0), n.ints(16, 16), n.ints(2, 3))
    y = n.add("Squeeze", n.add("GlobalAveragePool", n.conv(n.add("Pad", b, n.ints(0, 0, 1, 1, 0, 0, 1, 1)), 8, 16)), n.ints(2, 3))
    return n.model(n.gemm(y, 16, 10), (3, 8, 8), [10])


def sequence():
    """Convolutions over one dimension, and weights of a MatMul with a batch of their own."""
    n = Net(5)
    a = n.add("Relu", n.add("Conv", "x", n.weight(16, 8, 3, scale=0.2), n.weight(16, scale=0.1), pads=[1, 1], kernel_shape=[3]))
    a = n.add("Conv", a, n.weight(4, 16, 1, scale=0.25), kernel_shape=[1])
    a = n.add("Reshape", a, n.ints(0, 4, 1, 12))
    a = n.add("MatMul", a, n.weight(4, 12, 6, scale=0.3))
    y = n.add("Add", n.add("MatMul", n.add("Flatten", a), n.weight(24, 10, scale=0.2)), n.weight(1, 10, scale=0.1))
    return n.model(y, (8, 12), [10])


# model, options, integer ops that ONNX Runtime must run, and float ops that it must not
VNNI = "target: ort-x86-vnni"
CASES = [
    (residual, VNNI, {"QLinearConv": 7, "QLinearAdd": 1, "QLinearConcat": 1, "QLinearLeakyRelu": 1, "QLinearAveragePool": 1,
                      "QLinearGlobalAveragePool": 1, "QGemm": 1}, ["Conv", "Gemm", "Relu", "Add"]),
    (residual, VNNI + ", form: qoperator", {"QLinearConv": 7, "QLinearAdd": 1, "QLinearConcat": 1, "QGemm": 1}, ["Conv", "Gemm", "Add"]),
    (residual, "target: ort-x86-avx2", {"QLinearConv": 7, "QGemm": 1}, ["Conv", "Gemm"]),
    (residual, "target: mlopt-cpu", {"QLinearConv": 6}, []),
    (residual, "target: openvino", {}, []),
    (residual, "target: tensorrt", {}, []),
    (residual, "target: mlopt-cuda, per_channel: false", {}, []),
    (residual, VNNI + ", scheme: uint8, per_channel: false, symmetric_weights: false", {"QLinearConv": 7, "QGemm": 1}, ["Conv"]),
    (residual, VNNI + ", activations: int16", {}, []),
    (residual, VNNI + ", activations: uint16", {}, []),
    (swish, VNNI, {"QLinearConv": 6, "QLinearSigmoid": 5, "QLinearMul": 5, "QLinearAdd": 1, "QGemm": 1}, ["Conv", "Mul", "Sigmoid"]),
    (swish, VNNI + ", form: qoperator", {"QLinearConv": 6, "QLinearSigmoid": 5, "QLinearMul": 5}, ["Conv", "Mul", "Sigmoid"]),
    (transformer, VNNI, {"QGemm": 1}, ["Gemm", "MatMul"]),
    (transformer, VNNI + ", form: qoperator", {"QGemm": 1}, ["Gemm", "MatMul"]),
    (transformer, "target: tensorrt", {}, []),
    (moving, VNNI, {"QLinearConv": 7, "ConvTranspose": 1, "QLinearConcat": 1}, ["Conv"]),
    (moving, VNNI + ", form: qoperator", {"QLinearConv": 7, "ConvTranspose": 1}, ["Conv"]),
    (moving, "target: openvino", {}, []),
    (moving, "target: tensorrt", {}, []),
    (sequence, VNNI, {"QLinearConv": 2, "QGemm": 1}, ["Conv", "MatMul"]),
    (sequence, VNNI + ", form: qoperator", {"QLinearConv": 2, "QGemm": 1}, ["Conv"]),
]
HALF = [(residual, "keep_io: true"), (residual, "keep_io: false"), (swish, "keep: [Conv]"), (transformer, "keep_io: true")]


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")


def in_ort(path, x, optimized=None, feed="x"):
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    if optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = optimized
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    half = session.get_inputs()[0].type == "tensor(float16)"
    return session.run(None, {feed: x.astype(np.float16) if half else x})[0].astype(np.float32)


def check(folder, step, build, options, wanted, unwanted):
    at = lambda name: os.path.join(folder, name)
    random = np.random.default_rng(7)
    model = build()
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim][1:]
    x = random.standard_normal((SAMPLES, *shape)).astype(np.float32)
    onnx.save(model, at("m.onnx"))
    np.savez(at("x.npz"), x=x)
    with open(at("r.yaml"), "w") as file:
        file.write(RECIPE % (step, options))
    run(MLOPT, "quantize", at("m.onnx"), "--data", at("x.npz"), "--recipe", at("r.yaml"), "--out", at("q.onnx"))
    run(MLOPT, "run", at("q.onnx"), "--data", at("x.npz"), "--out", at("y.npz"), "--engine", "reference", "--batch", str(SAMPLES), "-q")
    with np.load(at("y.npz")) as arrays:
        here = arrays[arrays.files[0]].astype(np.float32)
    source, there = in_ort(at("m.onnx"), x), in_ort(at("q.onnx"), x, at("o.onnx"))
    faults = []
    counts = collections.Counter(n.op_type for n in onnx.load(at("o.onnx")).graph.node)
    faults += [f"{counts[op]} nodes {op}, not {n}" for op, n in wanted.items() if counts[op] != n]
    faults += [f"{counts[op]} nodes {op} in float" for op in unwanted if counts[op]]

    def cosine(a, b):
        return float((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()))

    def agreement(a, b):
        return float((a.argmax(-1) == b.argmax(-1)).mean())

    if cosine(here, there) < 0.999 or agreement(here, there) < 0.95:
        faults.append(f"predictions differ: cosine {cosine(here, there):.5f}, {agreement(here, there):.0%} agree")
    if cosine(source, there) < 0.98:
        faults.append(f"far from the float model: cosine {cosine(source, there):.5f}")
    word = "ok" if not faults else "; ".join(faults) + f" (of {dict(counts)})"
    print(f"{build.__name__:12} {step} {options:75} {cosine(here, there):.5f} {cosine(source, there):.5f} {word}", flush=True)
    return not faults


def check_trained(folder, name, form):
    """Fake quantization that torch exported (ONNX Runtime refuses the file itself) runs in integers, as it was trained."""
    golden = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden", "qat", name)
    q, o = os.path.join(folder, "q.onnx"), os.path.join(folder, "o.onnx")
    run(MLOPT, "qat-export", golden + ".onnx", "--target", "ort-x86-vnni", "--form", form, "--out", q)
    with np.load(golden + ".npz") as arrays:
        x, trained = arrays["image"], arrays["logits"]
    there = in_ort(q, x, o, "image")
    counts = collections.Counter(n.op_type for n in onnx.load(o).graph.node)
    good = counts["QLinearConv"] == 5 and counts["QLinearAdd"] == 1 and not counts["Conv"] + counts["FusedConv"]
    good = good and np.abs(there - trained).max() <= 0.02 * np.abs(trained).max()
    print(f"{name:12} qat-export {form:10} {np.abs(there - trained).max():.4f} {'ok' if good else dict(counts)}", flush=True)
    return good


def main():
    names = sys.argv[1:]  # of nets; none: all
    if names:
        CASES[:], HALF[:] = [c for c in CASES if c[0].__name__ in names], [c for c in HALF if c[0].__name__ in names]
    with tempfile.TemporaryDirectory() as folder:
        results = [check(folder, "quantize", *case) for case in CASES]
        results += [check(folder, "to-float16", *case, {}, []) for case in HALF]
        trained = [name for name in ("per-tensor", "per-channel") if not names or name in names]
        results += [check_trained(folder, name, form) for name in trained for form in ("qdq", "qoperator")]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
