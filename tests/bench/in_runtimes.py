#!/usr/bin/env python3
"""What a variant is worth in the runtime that it was made for: speed, kernels and outputs, next to the runtime's own quantizer.

    tests/bench/in_runtimes.py --folder build-bench [--runtime ort|openvino] [--models DIR --data DIR] [--nets fashion_cnn,…] [--splice docs/quantization.md]

All files of a net are loaded into one process and called in turn, on one thread; a call's processor time is what counts, since others
use the machine. "× float" is the median over rounds of the float model's time over the variant's. Kernels are counted in the graph that
the runtime really runs. MLOPT is the program.
"""
import argparse
import collections
import json
import os
import subprocess
import sys
import time

import numpy as np
import onnx

import models
import peers
import quantize_nets
from quantize_table import splice

MLOPT = os.environ.get("MLOPT", "mlopt")
# What computes most of a model: the kernels in integers, and those in float.
ORT_INT8 = ("QLinearConv", "QGemm", "QLinearMatMul", "MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "ConvInteger", "QAttention")
ORT_FLOAT = ("Conv", "FusedConv", "ConvTranspose", "Gemm", "FusedGemm", "MatMul", "FusedMatMul", "Attention", "MultiHeadAttention")
OPENVINO_HEAVY = ("Convolution", "GroupConvolution", "Deconvolution", "FullyConnected", "MatMul")
FIXED = {"ttm_etth1": ["sequence_length=512"]}


def has_vnni():
    """Whether this CPU adds four products of bytes at once; those before it add two, in 16 bits that saturate."""
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        flags = next((line for line in f if line.startswith("flags")), "").split()
    return "avx512_vnni" in flags or "avx_vnni" in flags


class Ort:
    name, targets = "ort", ["ort-x86-vnni" if has_vnni() else "ort-x86-avx2"]

    def __init__(self):
        import onnxruntime

        self.ort = onnxruntime

    def session(self, path, dump=None):
        options = self.ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        if dump:
            options.optimized_model_filepath = dump
            options.graph_optimization_level = self.ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        return self.ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def program(self, path):
        session = self.session(path)
        return lambda feeds: session.run(None, feeds)

    def kernels(self, path):
        """(heavy kernels in integers, in float, all kernels by name)"""
        self.session(path, path + ".optimized")
        nodes = collections.Counter(n.op_type for n in onnx.load(path + ".optimized").graph.node)
        os.remove(path + ".optimized")
        return sum(nodes[k] for k in ORT_INT8), sum(nodes[k] for k in ORT_FLOAT), nodes


class OpenVino:
    name, targets = "openvino", ["openvino" if has_vnni() else "openvino-avx2"]

    def __init__(self):
        import openvino

        self.core = openvino.Core()

    def compiled(self, path):
        config = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": "1", "INFERENCE_PRECISION_HINT": "f32"}
        return self.core.compile_model(self.core.read_model(path), "CPU", config)

    def program(self, path):
        request = self.compiled(path).create_infer_request()
        return lambda feeds: list(request.infer(feeds).values())

    def kernels(self, path):
        nodes, integers, floats = collections.Counter(), 0, 0
        for op in self.compiled(path).get_runtime_model().get_ordered_ops():
            info = op.get_rt_info()
            value = lambda key: str(info[key].astype(str)) if key in info else ""  # noqa: E731
            kind, precision = value("layerType"), value("runtimePrecision")
            if kind in ("Input", "Output", "Constant", "Const", "Parameter", "Result", ""):
                continue
            nodes["%s %s" % (kind, precision)] += 1
            if kind in OPENVINO_HEAVY:
                integers += precision in ("u8", "i8")
                floats += precision not in ("u8", "i8")
        return integers, floats, nodes


RUNTIMES = {"ort": Ort, "openvino": OpenVino}


class Net:
    """A model with its calibration and test samples (npz of floats, one array an input)."""

    def __init__(self, name, path, calibration, test):
        self.name, self.path, self.calibration, self.test = name, path, calibration, test

    def samples(self):
        graph = onnx.load(self.path, load_external_data=False).graph
        names = peers.input_names(self.path)
        with np.load(self.test) as a:
            arrays = {n: a[n if n in a.files else [k for k in a.files if k not in ("y", "group")][0]] for n in names}
        shapes = {i.name: [d.dim_value or -1 for d in i.type.tensor_type.shape.dim] for i in graph.input}
        self.fixed = next((s[0] for s in shapes.values() if s), -1)
        return arrays


def nets(o):
    found = []
    for net in quantize_nets.nets(o):
        test = net.evaluation[1]
        if "," in test:  # the archive of Fashion-MNIST
            test = os.path.join(o.folder, "fashion-test.npz")
            if not os.path.exists(test):
                import gzip

                with gzip.open("%s/t10k-images-idx3-ubyte.gz" % quantize_nets.FASHION) as f:
                    x = np.frombuffer(f.read(), np.uint8, offset=16).reshape(-1, 1, 28, 28)
                np.savez(test, input=((x.astype(np.float32) / 255 - 0.2860) / 0.3530).astype(np.float32))
        found.append(Net(net.name, net.path, net.calibration, test))
    folder = os.path.join(o.folder, "models")
    os.makedirs(folder, exist_ok=True)
    wanted = lambda name: not o.nets or name in o.nets  # noqa: E731
    for name in ("mnist-8_cntk", "ttm_etth1", "ultraface_rfb320", "super_resolution_10"):
        if o.models and wanted(name):
            path = models.adopt(",".join([os.path.join(o.models, name + ".onnx"), *FIXED.get(name, [])]), name, folder)
            found.append(Net(name, path, path[:-5] + "-calib.npz", path[:-5] + "-test.npz"))
    for name in models.MODELS:
        if wanted(name):
            path = models.build(name, folder)
            found.append(Net(name, path, path[:-5] + "-calib.npz", path[:-5] + "-test.npz"))
    return found


def variants(net, runtime, o):
    """{"float": path, target or tool: path or error}: made once."""
    found = {"float": net.path}
    stem = os.path.join(o.folder, "%s-in-%s" % (net.name, runtime.name))
    jobs = [(t, ["--target", t, "--form", f] + (["--limit", str(o.samples)]), f) for t in o.targets or runtime.targets for f in o.forms]
    for target, arguments, form in jobs:
        out = "%s-%s-%s.onnx" % (stem, target, form)
        name = target if form == "qdq" else "%s, %s" % (target, form)
        if not os.path.exists(out) or o.again:
            done = subprocess.run([MLOPT, "quantize", net.path, "--data", net.calibration, *arguments, "--threads", "1", "--out", out, "-q"],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            if done.returncode:
                print("  %s: %s" % (name, done.stderr.strip().splitlines()[0]), flush=True)
                continue
        found[name] = out
    if runtime.name == "ort" and o.peers:
        out = stem + "-peer.onnx"
        try:
            if not os.path.exists(out):
                static(net, out, o.samples)
            found["ORT static"] = out
        except Exception as e:  # a tool that refuses a model is a peer without that model
            print("  ORT static: %s" % str(e).split("\n")[0][:150], flush=True)
    return found


def static(net, out, samples):
    """What ONNX Runtime's quantizer makes for this CPU: its best static settings, the same samples."""
    from onnxruntime import quantization as q

    prepared = peers._prepared(net.path, out + ".prepared")
    q.quantize_static(prepared, out, peers.Samples(net.calibration, samples, names=peers.input_names(prepared)), per_channel=True,
                      quant_format=q.QuantFormat.QDQ, activation_type=q.QuantType.QUInt8, weight_type=q.QuantType.QInt8,
                      reduce_range=not has_vnni())
    os.remove(prepared)


def ratios(programs, feeds, seconds):
    """{name: (median ms, median over rounds of the float model's time over this one's)}, called in turn."""
    clock = lambda: time.clock_gettime(time.CLOCK_PROCESS_CPUTIME_ID)  # noqa: E731
    begin = clock()
    for run in programs.values():
        run(feeds), run(feeds)
    rounds = int(max(9, min(400, seconds / max(1e-6, (clock() - begin) / 2))))
    took = {name: [] for name in programs}
    for r in range(rounds):
        for name in list(programs)[:: 1 if r % 2 else -1]:
            begin = clock()
            programs[name](feeds)
            took[name].append(clock() - begin)
    base = np.array(took["float"])
    return {name: (1e3 * float(np.median(t)), float(np.median(base / np.array(t)))) for name, t in took.items()}


def cosine(a, b):
    a, b = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
    return float(a @ b / max(1e-30, np.sqrt((a @ a) * (b @ b))))


def measured(net, runtime, o):
    samples = net.samples()
    size = net.fixed if net.fixed > 0 else 1
    count = min(o.check, min(len(a) for a in samples.values()) // size)
    paths = variants(net, runtime, o)
    programs = {name: runtime.program(path) for name, path in paths.items()}
    batch = lambda i: {n: a[i * size : (i + 1) * size] for n, a in samples.items()}  # noqa: E731
    times = ratios(programs, batch(0), o.seconds)
    there = {name: np.concatenate([run(batch(i))[0].reshape(size, -1) for i in range(count)]) for name, run in programs.items()}
    rows = []
    for name, path in paths.items():
        integers, floats, kernels = runtime.kernels(path)
        row = {"net": net.name, "variant": name, "runtime": runtime.name, "ms": times[name][0], "speedup": times[name][1], "int8": integers,
               "float": floats, "kernels": dict(kernels), "to_float": cosine(there[name], there["float"])}
        if name != "float" and name != "ORT static":
            limited, out = path + ".in.npz", path + ".out.npz"
            np.savez(limited, **{n: a[: count * size] for n, a in samples.items()})
            subprocess.run([MLOPT, "run", path, "--data", limited, "--out", out, "--threads", "1", "-q"], check=True, stdout=subprocess.PIPE)
            with np.load(out) as a:
                here = a[a.files[0]].reshape(count * size, -1)
            os.remove(limited), os.remove(out)
            row["to_mlopt"] = cosine(there[name], here)
            row["agree"] = float(np.mean(here.argmax(-1) == there[name].argmax(-1))) if here.shape[1] > 1 else None
        rows.append(row)
        print("  " + " | ".join(cells(row)[1:]) + " | " + str(dict(kernels)), flush=True)
    return rows


HEAD = ["model", "variant", "ms", "× float", "heavy kernels int8 / float", "cosine to float", "to mlopt's engine", "predictions that agree"]


def cells(r):
    agree, near = r.get("agree"), r.get("to_mlopt")
    return [r["net"], r["variant"], "%.3f" % r["ms"], "%.2f" % r["speedup"], "%d / %d" % (r["int8"], r["float"]), "%.5f" % r["to_float"],
            "" if near is None else "%.5f" % near, "" if agree is None else "%.1f%%" % (100 * agree)]


def table(rows):
    lines = ["| " + " | ".join(HEAD) + " |", "|---|---|" + "---:|" * (len(HEAD) - 2)]
    return "\n".join(lines + ["| " + " | ".join(cells(r)) + " |" for r in rows]) + "\n"


def main():
    p = argparse.ArgumentParser(description="Variants in the runtime that they were made for.")
    words = lambda text: text.split(",")  # noqa: E731
    p.add_argument("--runtime", choices=RUNTIMES, default="ort")
    p.add_argument("--folder", default="build-bench")
    p.add_argument("--nets", type=words)
    p.add_argument("--targets", type=words)
    p.add_argument("--forms", type=words, default=["qdq", "qoperator"])
    p.add_argument("--samples", type=int, default=16, help="samples that calibrate")
    p.add_argument("--check", type=int, default=200, help="samples whose outputs are compared")
    p.add_argument("--seconds", type=float, default=4, help="processor time for all variants of a net")
    p.add_argument("--models", help="folder of further models")
    p.add_argument("--data", help="folder of their data")
    p.add_argument("--no-peers", dest="peers", action="store_false")
    p.add_argument("--again", action="store_true", help="quantize anew what is there")
    p.add_argument("--splice", metavar="PAGE", help="put the table into this page")
    o = p.parse_args()
    os.makedirs(o.folder, exist_ok=True)
    runtime = RUNTIMES[o.runtime]()
    if o.runtime == "openvino":
        o.forms = ["qdq"]  # OpenVINO reads pairs
    results = os.path.join(o.folder, "in-%s.json" % o.runtime)
    rows = json.load(open(results, encoding="utf-8")) if os.path.exists(results) else []
    for net in nets(o):
        print(net.name, flush=True)
        new = measured(net, runtime, o)
        rows = [r for r in rows if r["net"] != net.name] + new
        with open(results, "w", encoding="utf-8") as f:
            json.dump(rows, f, indent=1)
    if o.splice:
        splice(o.splice, table(rows), "in " + o.runtime)


if __name__ == "__main__":
    main()
