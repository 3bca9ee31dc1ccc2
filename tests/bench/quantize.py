#!/usr/bin/env python3
"""What quantizing costs and keeps, next to other tools' quantizers on the same model, images and calibration set.

    tests/bench/quantize.py --models DIR --data DIR --splice docs/quantization.md

makes the whole table: every net of quantize_nets.py, our methods and the peers', ResNet-50 with 128 images. A row is kept with what it
follows from (files, options, the program, the peer's version): a run that was killed goes on behind its last row, and one with another
program measures ours again and no peer's. --nets, --ours and --peers choose rows; rows that were not chosen stay as they were, each with its date.

Every tool runs in a process of its own: processor seconds (of all its threads, in user and system) and peak resident memory are that
process's. Accuracy is that of `mlopt run` on the runtime that the variant is meant for, paired with the float model on the same samples and
runtime; a second table has ours paired with the best of the peers. MLOPT is the program, MLOPT_PYTHON the interpreter of the environment
that has ONNX Runtime, MLOPT_NNCF_PYTHON that of NNCF's; a peer without an environment is left out.
"""
import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time

import numpy as np

import quantize_nets
from quantize_table import cells, paired, splice, table, verdicts

HERE = os.path.dirname(os.path.abspath(__file__))
MLOPT = os.environ.get("MLOPT", "mlopt")
PROTOCOL = 1  # raised when the same row would be measured in another way

with open("/proc/cpuinfo", encoding="utf-8") as cpu:  # without VNNI, ONNX Runtime's sums of u8 x s8 saturate
    ORT_TARGET = "ort-x86-vnni" if "vnni" in cpu.read() else "ort-x86-avx2"

FOR_ORT = ["--target", ORT_TARGET]
ONLY = ["--set", "quantize.bias_correction=none"]  # the work that the peers' calibration is
# extremes as ranges, biases as they were
PLAINLY = ["--recipe", "int8-cpu", "--set", "quantize.calibrator=minmax", *ONLY]
ACCURATE = ["--recipe", "int8-accurate"]
RECOVERED = [*ACCURATE, "--set", "quantize.accuracy_drop=none"]
# name: how `mlopt quantize` is called, the runtime that the variant is meant for
OURS = {
    "int8": ([], "cpu"),
    "int8 for ORT": (FOR_ORT, "ort"),
    "int8-accurate": (ACCURATE, "cpu"),  # with the net's select data and budget
    "int8-accurate for ORT": ([*ACCURATE, *FOR_ORT], "ort"),
    "int4 GPTQ": (["--recipe", "int4-gptq"], "cpu"),
    "int4 weights": (["--scheme", "int4-weights"], "cpu"),
    "int8 recovered": (RECOVERED, "cpu"),
    "int8 recovered for ORT": ([*RECOVERED, *FOR_ORT], "ort"),
    "int8 plain": (PLAINLY, "cpu"),
    "int8 plain for ORT": ([*PLAINLY, *FOR_ORT], "ort"),
    "int8 minmax": (["--calibrator", "minmax"], "cpu"),
    "int8 percentile": (["--calibrator", "percentile"], "cpu"),
    "int8 entropy": (["--calibrator", "entropy"], "cpu"),
    "int8 percentile, calibrated only": ([*ONLY, "--calibrator", "percentile"], "cpu"),
    "int8 entropy, calibrated only": ([*ONLY, "--calibrator", "entropy"], "cpu"),
}
# name: variable that names its Python, tool and method of quantizers.py
PEERS = {
    "ORT minmax": ("MLOPT_PYTHON", "ort", "MinMax"),
    "ORT reduced range": ("MLOPT_PYTHON", "ort", "MinMax-7"),
    "ORT percentile": ("MLOPT_PYTHON", "ort", "Percentile"),
    "ORT reduced percentile": ("MLOPT_PYTHON", "ort", "Percentile-7"),
    "ORT entropy": ("MLOPT_PYTHON", "ort", "Entropy"),
    "NNCF": ("MLOPT_NNCF_PYTHON", "nncf", "mixed"),
    "NNCF accurate": ("MLOPT_NNCF_PYTHON", "nncf", "accurate"),
    "NNCF performance": ("MLOPT_NNCF_PYTHON", "nncf", "performance"),
}
# What is measured first, where time is short: (our methods, peers).
STAGES = (
    (("int8", "int8 for ORT", "int8-accurate", "int8-accurate for ORT"), ()),
    (("int4 GPTQ",), ("ORT minmax", "ORT reduced range", "NNCF", "NNCF accurate")),
    ((), ("ORT percentile", "ORT reduced percentile")),
    (("int8 recovered", "int8 recovered for ORT", "int8 plain", "int8 plain for ORT", "int4 weights"), ()),
    (("int8 minmax", "int8 percentile", "int8 entropy"), ("ORT entropy", "NNCF performance")),
)
RESNET_AT = 2  # behind that stage
RESNET = (
    ("int8", "int8 percentile", "int8 entropy", "int8 percentile, calibrated only", "int8 entropy, calibrated only"),
    ("ORT percentile", "ORT entropy"),
)

# A process's peak counts that of the one that it was forked from, so a small one stands in between.
STAND_IN = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(done.returncode, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)
sys.stdout.flush()
sys.stdout.buffer.write(done.stdout)
"""


def measured(command):
    """(processor seconds, peak bytes) of one process; raises with its words when it fails."""
    out = subprocess.run([sys.executable, "-S", "-c", STAND_IN, *command], stdout=subprocess.PIPE, text=True, check=True).stdout
    first, _, words = out.partition("\n")
    status, seconds, peak = first.split()
    if status != "0":
        lines = words.strip().splitlines() or ["status " + status]
        raise RuntimeError(next((w for w in lines if w.startswith("error:")), lines[-1])[:300])
    return float(seconds), int(peak)


def run(command):
    done = subprocess.run([MLOPT, *command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError("mlopt %s: %s" % (command[0], done.stderr.strip()[:300]))
    return done.stdout


def digest(path, known={}):
    if path not in known:
        with open(path, "rb") as f:
            known[path] = hashlib.sha256(f.read()).hexdigest()
    return known[path]


def versions(python, known={}):
    """Of what a peer is made of."""
    if python not in known:
        ask = ("import importlib.metadata as m\nfor n in ('onnxruntime', 'nncf', 'onnx', 'numpy'):\n try: print(n, m.version(n))\n"
               " except m.PackageNotFoundError: pass")
        known[python] = subprocess.run([python, "-c", ask], stdout=subprocess.PIPE, text=True, check=True).stdout.split("\n")
    return known[python]


def key(net, name, o):
    """What a row follows from."""
    parts = [PROTOCOL, [digest(f) for f in net.files()], name, o.threads]
    if name in OURS:
        selects = name.startswith("int8-accurate")
        parts += [OURS[name], digest(MLOPT), [net.budget, digest(net.select)] if selects else None]
    else:
        parts += [PEERS[name], versions(os.environ[PEERS[name][0]]), [digest(os.path.join(HERE, f)) for f in ("quantizers.py", "peers.py")]]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def correct(net, model, engine, o, count=None):
    """Which samples a model gets right (the first `count` of them), in a file: what pairs it with any other."""
    tag = "%s/%s-%s" % (o.folder, digest(model)[:24], engine)
    out = "%s-%s.correct.npy" % (tag, count or "all")
    if not os.path.exists(out):
        run(["run", model, *net.evaluation, "--engine", engine, "--threads", str(o.threads), "-q", "--out", tag + ".npz"])
        with np.load(tag + ".npz") as arrays:
            right = net.right(arrays[arrays.files[0]])
        os.remove(tag + ".npz")
        np.save(out + ".part.npy", right[:count])
        os.replace(out + ".part.npy", out)
    return out


def evaluated(net, model, engine, selects, o):
    """(accuracy, the files of what it and the float model get right); what selected does not judge what was selected."""
    if not net.evaluation:
        return None, None, None
    count = net.fresh if selects else None
    right, source = correct(net, model, engine, o, count), correct(net, net.path, engine, o, count)
    accuracy = {"value": float(np.load(right).mean()), "float": float(np.load(source).mean()), "samples": len(np.load(right)),
                "difference": paired(right, source)}
    return accuracy, right, source


def variant(net, name, o):
    return os.path.join(o.folder, "%s-%s.onnx" % (net.name.split(",")[0], name.replace(" ", "-")))


def ours(net, name, o):
    """(file, engine, seconds, peak, nodes given back to float)"""
    arguments, engine = OURS[name]
    out, decision = variant(net, name, o), None
    with tempfile.TemporaryDirectory(dir=o.folder) as fresh:  # or it would find what it observed the last time
        if name.startswith("int8-accurate"):
            decision = os.path.join(fresh, "decision.json")
            arguments = [*arguments, "--select", net.select, "--decision", decision, "--accuracy-drop", net.budget, "--metric", net.metric]
        seconds, peak = measured([MLOPT, "quantize", net.path, "--data", net.calibration, *arguments, "--out", out, "-q",
                                  "--threads", str(o.threads), "--checkpoints", fresh])
        if decision:
            with open(decision, encoding="utf-8") as f:
                decision = len(json.load(f)["given_back"])
    return out, engine, seconds, peak, decision


def peer(net, name, o):
    python, tool, method = PEERS[name]
    out = variant(net, name, o)
    seconds, peak = measured([os.environ[python], os.path.join(HERE, "quantizers.py"), tool, method, net.path, net.calibration, out,
                              str(o.threads)])
    return out, "ort", seconds, peak, None


def row(net, name, o):
    made = {"net": net.name, "method": name, "key": key(net, name, o), "taken": time.strftime("%Y-%m-%d", time.gmtime())}
    try:
        out, engine, seconds, peak, given_back = (ours if name in OURS else peer)(net, name, o)
        accuracy, right, source = evaluated(net, out, engine, given_back is not None, o)
    except (RuntimeError, OSError) as e:
        return {**made, "error": str(e)}
    return {**made, "engine": engine if accuracy else None, "processor_s": seconds, "peak_bytes": peak, "bytes": os.path.getsize(out),
            "metric": net.metric, "accuracy": accuracy, "given_back": given_back, "correct": right, "float": source}


def present(name):
    """Whether a peer's environment is there; says so where it is not."""
    python = PEERS[name][0]
    if os.environ.get(python):
        return True
    print("note: %s is left out: %s names no Python that has it" % (name, python), file=sys.stderr)
    return False


def plan(o):
    """[(net, method)], the most important first."""
    chosen = {n for n in o.ours if n} | {n for n in o.peers if n and present(n)}
    found = quantize_nets.nets(o)
    for at, (mine, theirs) in enumerate(STAGES, 1):
        yield from ((net, name) for net in found for name in (*mine, *theirs) if name in chosen)
        if at == RESNET_AT and (not o.nets or "resnet50" in o.nets):
            net = quantize_nets.resnet50(o.folder)
            yield from ((net, name) for part in RESNET for name in part if name in chosen)


def ordered(rows):
    """By net, and in the order of the methods: measurements come in another."""
    order, methods = ["fashion_cnn", *quantize_nets.TRAINED], [*OURS, *PEERS]
    order += [n for n in dict.fromkeys(r["net"] for r in rows) if n not in order]
    return sorted(rows, key=lambda r: (order.index(r["net"]), methods.index(r["method"])))


def save(rows, path):
    with open(path + ".part", "w", encoding="utf-8") as f:
        json.dump(rows, f, indent=1)
    os.replace(path + ".part", path)


def main():
    p = argparse.ArgumentParser(description="Quantization next to other tools' quantizers.")
    words = lambda text: re.split(r",(?! )", text)  # noqa: E731; names of methods have ", " in them
    p.add_argument("--folder", default="build-bench")
    p.add_argument("--nets", type=words)
    p.add_argument("--ours", type=words, default=list(OURS))
    p.add_argument("--peers", type=words, default=list(PEERS))
    p.add_argument("--samples", type=int, default=256, help="images that calibrate")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--models", help="folder of further models")
    p.add_argument("--data", help="folder of their data")
    p.add_argument("--splice", metavar="PAGE", help="put the tables into this page")
    p.add_argument("--again", action="store_true", help="measure also what is known")
    p.add_argument("--show", action="store_true", help="measure nothing: only the tables of what is known")
    o = p.parse_args()
    os.makedirs(o.folder, exist_ok=True)
    results, rows = os.path.join(o.folder, "quantize.json"), []
    if os.path.exists(results):
        with open(results, encoding="utf-8") as f:
            rows = json.load(f)
    for net, name in () if o.show else plan(o):
        known = next((r for r in rows if (r["net"], r["method"]) == (net.name, name)), None)
        if known and not o.again and "error" not in known and known["key"] == key(net, name, o):
            continue
        new = row(net, name, o)
        rows = [r for r in rows if r is not known] + [new]
        save(rows, results)
        print(" | ".join(cells(new)), flush=True)
    rows = ordered(rows)
    print(verdicts(rows, OURS, PEERS))
    if o.splice:
        splice(o.splice, table(rows))
        splice(o.splice, verdicts(rows, OURS, PEERS), "verdicts")


if __name__ == "__main__":
    main()
