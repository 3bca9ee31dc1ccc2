#!/usr/bin/env python3
"""The table of docs/pruning.md on sparse weights: every net with data, made sparse by magnitude and by SparseGPT at the
same sparsity, judged on samples that calibrated nothing and paired with each other; and what the files weigh.
For development: needs numpy.

    tests/bench/sparse_nets.py --mlopt build-dev/mlopt --models MODELS --data DATA [--nets NAME…] [--samples 1024]

MODELS and DATA are folders of further models and of their data (quantize_nets.py says which); without them, the nets of the tree.
"""
import argparse
import json
import os
import subprocess
import tempfile
import zlib

import quantize_nets

SCHEMES = [("50%", ["--scheme", "unstructured"]), ("2:4", ["--scheme", "2:4"])]


def call(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit("%s\n%s" % (" ".join(command), done.stderr))
    return json.loads(done.stdout)


def made(o, net, scheme, criterion, out):
    command = [o.mlopt, "prune", net.path, *scheme, "--criterion", criterion, "--data", net.calibration, "--out", out]
    command += ["--samples", str(o.samples), "--min-weights", str(o.min_weights), "--freeze-initializers", "-q", "-o", "json"]
    return call(command)["steps"][0]["report"]["sparsity"]


def judged(o, net, model, against):
    command = [o.mlopt, "eval", model, "--against", against, "--metric", net.metric, *net.evaluation, "-q", "-o", "json"]
    return call(command + ["--threads", "2"])["metrics"][0]


def percent(x):
    return "%.2f%%" % (100 * x)


def points(difference):
    return "%+.2f pt [%+.2f, %+.2f]" % tuple(100 * difference[k] for k in ("value", "low", "high"))


def row(o, net, title, scheme, folder):
    paths = {c: os.path.join(folder, "%s-%s.onnx" % (net.name, c)) for c in ("magnitude", "sparsegpt")}
    reports = {c: made(o, net, scheme, c, path) for c, path in paths.items()}
    magnitude = judged(o, net, paths["magnitude"], net.path)
    sparsegpt = judged(o, net, paths["sparsegpt"], net.path)
    paired = judged(o, net, paths["sparsegpt"], paths["magnitude"])
    p = paired.get("mcnemar_p")
    all_weights = sum(l["weights"] for l in reports["sparsegpt"]["left"]) + reports["sparsegpt"]["weights"]
    before, after = (os.path.getsize(f) for f in (net.path, paths["sparsegpt"]))
    packed = [len(zlib.compress(open(f, "rb").read(), 9)) for f in (net.path, paths["sparsegpt"])]
    cells = [
        net.name,
        title,
        "%.0f%%" % (100 * reports["sparsegpt"]["zeros"] / all_weights),
        percent(sparsegpt["against"]["value"]),
        percent(magnitude["estimate"]["value"]),
        percent(sparsegpt["estimate"]["value"]),
        points(paired["difference"]) + (", p = %.2g" % p if p is not None else ""),
        "%.2f" % (after / before),
        "%.2f" % (packed[1] / packed[0]),
        str(paired["estimate"]["n"]),
    ]
    print("| " + " | ".join(cells) + " |", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--mlopt", default="build/mlopt")
    p.add_argument("--models")
    p.add_argument("--data")
    p.add_argument("--nets", nargs="*")
    p.add_argument("--samples", type=int, default=1024)
    p.add_argument("--min-weights", type=int, default=1024)
    o = p.parse_args()
    with tempfile.TemporaryDirectory() as o.folder:
        print("| net | zeros | of layers' weights | float | magnitude | SparseGPT | SparseGPT less magnitude, paired | size | compressed | judged on |")
        print("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|")
        for net in quantize_nets.nets(o):
            for title, scheme in SCHEMES:
                row(o, net, title, scheme, o.folder)


if __name__ == "__main__":
    main()
