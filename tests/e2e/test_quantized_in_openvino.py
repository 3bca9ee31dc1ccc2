#!/usr/bin/env python3
"""What `mlopt quantize --target openvino` makes loads in OpenVINO, predicts there what it predicts here, and computes there in integers.

    MLOPT=build-dev/mlopt MLOPT_PYTHON=VENV/bin/python python3 tests/e2e/test_quantized_in_openvino.py

A check for developers: skipped (77) where there is no Python with openvino and onnx, which MLOPT_PYTHON names. The precision is that
of the graph which OpenVINO executes. On a CPU without VNNI its sums of two products saturate at 16 bits: there the target openvino-avx2
must predict the same, and openvino only load and compute in integers.
"""
import collections
import os
import sys
import tempfile

try:
    import numpy as np
    import onnx  # noqa: F401
    import openvino
except ImportError:
    python = os.environ.get("MLOPT_PYTHON")
    if not python or os.environ.get("MLOPT_CHECKED"):
        print("skipped: no Python with openvino and onnx (MLOPT_PYTHON)")
        sys.exit(77)
    os.execve(python, [python, *sys.argv], dict(os.environ, MLOPT_CHECKED="1"))

from quantized_nets import MLOPT, agreement, cosine, made, moving, residual, run, sequence, swish, transformer

HEAVY = ("Convolution", "GroupConvolution", "Deconvolution", "FullyConnected", "MatMul")
# net, heavy nodes: all must compute in integers (the products of attention are part of a fused subgraph, which counts as none)
CASES = [(residual, 8), (swish, 7), (transformer, 8), (moving, 9), (sequence, 4)]


def has_vnni():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        flags = next((line for line in file if line.startswith("flags")), "").split()
    return "avx512_vnni" in flags or "avx_vnni" in flags


def in_openvino(path, x):
    """(first output, heavy nodes by kind and precision)"""
    config = {"INFERENCE_NUM_THREADS": "1", "INFERENCE_PRECISION_HINT": "f32"}
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(path), "CPU", config)
    nodes = collections.Counter()
    for op in compiled.get_runtime_model().get_ordered_ops():
        info = op.get_rt_info()
        kind, precision = (str(info[k].astype(str)) if k in info else "" for k in ("layerType", "runtimePrecision"))
        if kind in HEAVY:
            nodes[kind, precision] += 1
    y = next(iter(compiled.create_infer_request().infer([x]).values())).astype(np.float32).copy()
    return y, nodes


def judged(name, target, here, source, there, nodes, integers, exact):
    found = sum(n for (_, precision), n in nodes.items() if precision in ("u8", "i8"))
    faults = []
    if found != integers or sum(nodes.values()) != found:
        faults.append(f"{found} heavy nodes in integers, not {integers}: {dict(nodes)}")
    if exact and (cosine(here, there) < 0.999 or agreement(here, there) < 0.9):
        faults.append(f"predictions differ: {agreement(here, there):.0%} agree")
    if exact and source is not None and cosine(source, there) < 0.98:
        faults.append("far from the float model")
    words = f"{cosine(here, there):.5f}" + (f" {cosine(source, there):.5f}" if source is not None else "")
    print(f"{name:12} {target:14} {words} {'; '.join(faults) or 'ok'}", flush=True)
    return not faults


def check(folder, build, integers, target):
    float_path, path, x, here = made(folder, "quantize", build, "target: " + target)
    source, _ = in_openvino(float_path, x)
    there, nodes = in_openvino(path, x)
    return judged(build.__name__, target, here, source, there, nodes, integers, has_vnni() or target == "openvino-avx2")


def check_trained(folder, name):
    """Fake quantization that torch exported."""
    golden = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden", "qat", name)
    path = os.path.join(folder, "q.onnx")
    run(MLOPT, "qat-export", golden + ".onnx", "--target", "openvino", "--out", path)
    with np.load(golden + ".npz") as arrays:
        x, trained = arrays["image"], arrays["logits"]
    there, nodes = in_openvino(path, x)
    return judged(name, "openvino", trained, None, there, nodes, 6, has_vnni())


def main():
    with tempfile.TemporaryDirectory() as folder:
        results = [check(folder, *case, target) for case in CASES for target in ("openvino", "openvino-avx2")]
        results += [check_trained(folder, name) for name in ("per-tensor", "per-channel")]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
