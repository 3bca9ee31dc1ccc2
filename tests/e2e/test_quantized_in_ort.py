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
except ImportError:
    python = os.environ.get("MLOPT_PYTHON")
    if not python or os.environ.get("MLOPT_CHECKED"):
        print("skipped: no Python with onnxruntime and onnx (MLOPT_PYTHON)")
        sys.exit(77)
    os.execve(python, [python, *sys.argv], dict(os.environ, MLOPT_CHECKED="1"))

from quantized_nets import MLOPT, agreement, cosine, made, moving, residual, run, sequence, swish, transformer

# model, options, kernels that ONNX Runtime must run, and float ops that it must not. QuantizeLinear and DequantizeLinear: what is left of the
# pairs besides the model's input, that is what goes from floats to integers and back in between.
VNNI, AVX2, QOPERATOR = "target: ort-x86-vnni", "target: ort-x86-avx2", ", form: qoperator"
RESIDUAL = {"QLinearConv": 7, "QLinearAdd": 1, "QLinearConcat": 1, "QLinearLeakyRelu": 1, "QLinearAveragePool": 1, "QLinearGlobalAveragePool": 1,
            "QGemm": 1, "QuantizeLinear": 1, "DequantizeLinear": 0}
SWISH = {"QLinearConv": 6, "QLinearSigmoid": 5, "QLinearMul": 5, "QLinearAdd": 1, "QLinearGlobalAveragePool": 2, "QGemm": 1, "QuantizeLinear": 1,
         "DequantizeLinear": 0}
TRANSFORMER = {"MatMulIntegerToFloat": 8, "QLinearMatMul": 1, "QGemm": 1, "QuantizeLinear": 12, "DequantizeLinear": 3}
MOVING = {"QLinearConv": 7, "ConvTranspose": 1, "QLinearConcat": 1, "QLinearGlobalAveragePool": 1, "QGemm": 1, "QuantizeLinear": 4,
          "DequantizeLinear": 4}
SEQUENCE = {"QLinearConv": 2, "QLinearMatMul": 1, "QGemm": 1, "QuantizeLinear": 1, "DequantizeLinear": 0}
FLOATS = ["Conv", "FusedConv", "Gemm", "MatMul", "FusedMatMul"]
CASES = [(net, target + form, wanted, FLOATS + more)
         for net, wanted, more in [(residual, RESIDUAL, ["Add", "Relu"]), (swish, SWISH, ["Add", "Mul", "Sigmoid"]), (transformer, TRANSFORMER, []),
                                   (moving, MOVING, []), (sequence, SEQUENCE, ["Add"])]
         for target in (VNNI, AVX2) for form in ("", QOPERATOR)]
CASES += [
    (residual, VNNI + ", scheme: uint8, per_channel: false, symmetric_weights: false", RESIDUAL, FLOATS),
    (residual, VNNI + ", activations: int16", {}, []),
    (residual, VNNI + ", activations: uint16", {}, []),
    (residual, "target: mlopt-cpu", {"QLinearConv": 6}, []),
    (residual, "target: openvino", {}, []),
    (residual, "target: openvino-avx2", {}, []),
    (residual, "target: tensorrt", {}, []),
    (residual, "target: mlopt-cuda, per_channel: false", {}, []),
    (transformer, "target: tensorrt", {}, []),
    (moving, "target: openvino", {}, []),
    (moving, "target: tensorrt", {}, []),
]
DYNAMIC = [(transformer, "target: ort-x86-avx2, min_weights: 0", {"DynamicQuantizeMatMul": 5, "DynamicQuantizeLinear": 1, "MatMulIntegerToFloat": 3}, ["Gemm"]),
           (residual, "target: ort-x86-avx2, min_weights: 0, convolutions: true", {"ConvInteger": 7}, ["Conv", "FusedConv", "Gemm"])]
HALF = [(residual, "keep_io: true"), (residual, "keep_io: false"), (swish, "keep: [Conv]"), (transformer, "keep_io: true")]


def in_ort(path, x, optimized=None, feed="x", precise=True):
    """`precise`: CPUs without VNNI, which add two products in 16 bits, compute what those with it do (slowly)."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.x64quantprecision", "1" if precise else "0")
    if optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = optimized
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    half = session.get_inputs()[0].type == "tensor(float16)"
    return session.run(None, {feed: x.astype(np.float16) if half else x})[0].astype(np.float32)


def check(folder, step, build, options, wanted, unwanted):
    float_path, path, x, here = made(folder, step, build, options)
    optimized = os.path.join(folder, "o.onnx")
    source, there = in_ort(float_path, x), in_ort(path, x, optimized, precise="avx2" not in options)
    faults = []
    counts = collections.Counter(n.op_type for n in onnx.load(optimized).graph.node)
    faults += [f"{counts[op]} nodes {op}, not {n}" for op, n in wanted.items() if counts[op] != n]
    faults += [f"{counts[op]} nodes {op} in float" for op in unwanted if counts[op]]
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
        results += [check(folder, "quantize-dynamic", *case) for case in DYNAMIC if not names or case[0].__name__ in names]
        results += [check(folder, "to-float16", *case, {}, []) for case in HALF]
        trained = [name for name in ("per-tensor", "per-channel") if not names or name in names]
        results += [check_trained(folder, name, form) for name in trained for form in ("qdq", "qoperator")]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
