#!/usr/bin/env python3
"""What quantizing costs and keeps, next to other tools' quantizers on the same model, images and calibration set.

    tests/bench/quantize.py --folder build-bench [--nets fashion_cnn,…] [--ours int8,…] [--peers 'ORT minmax,…'] [--splice docs/quantization.md]

Every tool runs in a process of its own: wall-clock seconds and peak resident memory are that process's. Accuracy is
that of mlopt (`run`, and `eval` where the metric is not top-1) on the runtime that the variant is meant for, paired with the
float model on the same samples; a second table has ours paired with the best of the peers. MLOPT is the program, MLOPT_PYTHON the interpreter of the
environment that has ONNX Runtime, MLOPT_NNCF_PYTHON that of NNCF's; a peer without an environment is left out.
"""
import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
MLOPT = os.environ.get("MLOPT", "mlopt")
FASHION = "/usr/share/datasets/fashion-mnist"
CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)

with open("/proc/cpuinfo", encoding="utf-8") as cpu:  # without VNNI, ONNX Runtime's sums of u8 x s8 saturate
    ORT_TARGET = "ort-x86-vnni" if "vnni" in cpu.read() else "ort-x86-avx2"

# extremes as ranges, biases as they were
PLAINLY = ["--recipe", "int8-cpu", "--set", "quantize.calibrator=minmax", "--set", "quantize.bias_correction=none"]
# name: how `mlopt quantize` is called, the runtime that the variant is meant for
OURS = {
    "int8": ([], "cpu"),
    "int8 minmax": (["--calibrator", "minmax"], "cpu"),
    "int8 plain": (PLAINLY, "cpu"),
    "int8 plain for ORT": ([*PLAINLY, "--target", ORT_TARGET], "ort"),
    "int8 percentile": (["--calibrator", "percentile"], "cpu"),
    "int8 entropy": (["--calibrator", "entropy"], "cpu"),
    "int8 recovered": (["--recipe", "int8-accurate", "--set", "quantize.accuracy_drop=none"], "cpu"),
    "int8 for ORT": (["--target", ORT_TARGET], "ort"),
    "int8 recovered for ORT": (["--recipe", "int8-accurate", "--set", "quantize.accuracy_drop=none", "--target", ORT_TARGET],
                               "ort"),
    "int4 weights": (["--scheme", "int4-weights"], "cpu"),
    "int4 GPTQ": (["--recipe", "int4-gptq"], "cpu"),
}
# name: variable that names its Python, tool and method of quantizers.py
PEERS = {
    "ORT minmax": ("MLOPT_PYTHON", "ort", "MinMax"),
    "ORT entropy": ("MLOPT_PYTHON", "ort", "Entropy"),
    "ORT percentile": ("MLOPT_PYTHON", "ort", "Percentile"),
    "ORT reduced range": ("MLOPT_PYTHON", "ort", "MinMax-7"),
    "NNCF": ("MLOPT_NNCF_PYTHON", "nncf", "mixed"),
    "NNCF performance": ("MLOPT_NNCF_PYTHON", "nncf", "performance"),
    "NNCF accurate": ("MLOPT_NNCF_PYTHON", "nncf", "accurate"),
}
# nets of the tree; those with the stricter target are plain CNNs
TRAINED = ("mobilenet_v2", "mobilenet_v3", "vit", "mlp")
PLAIN = ("fashion_cnn", "cifar10_resnet_2b", "cifar10_resnet_4b")
DROP, DROP_PLAIN, MARGIN = 0.3, 0.2, 0.2  # points: the most that int8 may lose, and the margin of non-inferiority


def fashion(part):
    return "%s/%s-images-idx3-ubyte.gz,%s/%s-labels-idx1-ubyte.gz" % (FASHION, part, FASHION, part)


def normalized(path, mean, std, begin, end, out):
    """A part of an npz of uint8 images as the float arrays that the net reads."""
    if not os.path.exists(out):
        with np.load(path) as a:
            x = a["x"][begin:end].astype(np.float32) / 255
            x = (x - np.array(mean, np.float32)[:, None, None]) / np.array(std, np.float32)[:, None, None]
            np.savez(out, x=x.astype(np.float32), y=a["y"][begin:end])
    return out


class Net:
    """A model with what calibrates it and what judges it. `calibration` is an npz of floats, which every tool reads."""

    def __init__(self, name, path, metric=None):
        self.name, self.path, self.metric = name, path, metric

    def fashion(self, folder, count):
        self.calibration = os.path.join(folder, "fashion-calibration-%d.npz" % count)
        if not os.path.exists(self.calibration):
            with gzip.open("%s/train-images-idx3-ubyte.gz" % FASHION) as f:
                x = np.frombuffer(f.read(16 + 784 * count), np.uint8, offset=16).reshape(-1, 1, 28, 28)
            np.savez(self.calibration, input=((x.astype(np.float32) / 255 - 0.2860) / 0.3530).astype(np.float32))
        self.evaluation = ["--data", fashion("t10k"), "--normalize", "scale=1/255,mean=0.2860,std=0.3530"]
        return self

    def labels(self):
        images, _, labels = self.evaluation[1].partition(",")
        if labels:
            with gzip.open(labels) as f:
                return np.frombuffer(f.read(), np.uint8, offset=8)
        with np.load(images) as a:
            return a["y"]

    def cifar(self, folder, archive, count, std=CIFAR_STD):
        """The images that calibrate are taken from the end of the set; the rest judges."""
        tag = "%s/cifar-%.4f" % (folder, std[0])
        self.calibration = normalized(archive, CIFAR_MEAN, std, 10000 - count, 10000, tag + "-calibration-%d.npz" % count)
        self.evaluation = ["--data", normalized(archive, CIFAR_MEAN, std, 0, 10000 - count, tag + "-evaluation.npz")]
        return self

    def ranking(self, folder, archive, count):
        self.calibration = os.path.join(folder, "ranking-calibration-%d.npz" % count)
        if not os.path.exists(self.calibration):
            rows = np.random.default_rng(0).choice(200000, count, replace=False)
            with np.load(archive) as a:
                np.savez(self.calibration, **{k: a[k][rows] for k in a.files if k not in ("y", "group")})
        self.evaluation = ["--data", archive]
        return self

    def random(self, path):
        """No labels: time and memory only."""
        self.calibration, self.evaluation = path, None
        return self


def nets(o):
    found = [Net("fashion_cnn", os.path.join(ROOT, "deploy/models/fashion_cnn.onnx"), "top1").fashion(o.folder, o.samples)]
    for name in TRAINED:
        found.append(Net(name, os.path.join(ROOT, "tests/nets/models", name + ".onnx"), "top1").fashion(o.folder, o.samples))
    if o.models and o.data:
        archive = os.path.join(o.data, "cifar10-test.npz")
        for name in ("cifar10_resnet_2b", "cifar10_resnet_4b"):
            found.append(Net(name, os.path.join(o.models, name + ".onnx"), "top1").cifar(o.folder, archive, o.samples))
        for name in ("vit_cifar10_ibp_3_3_8", "vit_cifar10_pgd_2_3_16"):
            std = (0.2023, 0.1994, 0.2010)
            found.append(Net(name, os.path.join(o.models, name + ".onnx"), "top1").cifar(o.folder, archive, o.samples, std))
        ranking = os.path.join(o.data, "ml1m-ranking.npz")
        found.append(Net("neumf_ml1m", os.path.join(o.models, "neumf_ml1m.onnx"), "hit10").ranking(o.folder, ranking, 2000))
    resnet = os.path.join(o.folder, "models", "resnet50.onnx")
    if os.path.exists(resnet):
        images = os.path.join(o.folder, "resnet50-calibration.npz")
        if not os.path.exists(images):
            # smooth noise, so that neighbouring pixels agree as they do in pictures
            rng, coarse = np.random.default_rng(0), (128, 3, 28, 28)
            x = np.kron(rng.standard_normal(coarse), np.ones((1, 1, 8, 8))) + 0.3 * rng.standard_normal((128, 3, 224, 224))
            np.savez(images, input=x.astype(np.float32))
        found.append(Net("resnet50, 128 images", resnet).random(images))
    return [n for n in found if not o.nets or n.name.split(",")[0] in o.nets]


# A process's peak counts that of the one that it was forked from, so a small one stands in between.
STAND_IN = """
import resource, subprocess, sys, time
begin = time.monotonic()
done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
print(done.returncode, time.monotonic() - begin, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
sys.stdout.flush()
sys.stdout.buffer.write(done.stdout)
"""


def measured(command):
    """(seconds, peak bytes) of one process; raises with its words when it fails."""
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


def correct(net, model, engine, o, out):
    """Which samples a model gets right, kept in a file: what pairs it with any other."""
    run(["run", model, *net.evaluation, "--engine", engine, "--threads", str(o.threads), "-q", "--out", out + ".npz"])
    with np.load(out + ".npz") as arrays:
        np.save(out, arrays[arrays.files[0]].argmax(-1) == net.labels())
    os.remove(out + ".npz")
    return out


def paired(a, b):
    """The difference in accuracy of two models on the same samples, and its 95% interval."""
    d = np.load(a).astype(float) - np.load(b)
    half = 1.96 * d.std(ddof=1) / len(d) ** 0.5
    return {"value": d.mean(), "low": d.mean() - half, "high": d.mean() + half}


def evaluated(net, model, engine, o):
    """The metric of a variant, its paired difference to the float model, and (top1) the file of what it gets right."""
    if not net.evaluation:
        return None, None
    if net.metric == "top1":  # the float model runs once on each engine
        source = os.path.join(o.folder, "%s-float-%s.correct.npy" % (net.name, engine))
        if not os.path.exists(source):
            correct(net, net.path, engine, o, source)
        right = correct(net, model, engine, o, model[:-5] + ".correct.npy")
        return {"value": np.load(right).mean(), "float": np.load(source).mean(), "difference": paired(right, source)}, right
    found = run(["eval", model, *net.evaluation, "--metric", net.metric, "--against", net.path, "--engine", engine, "--threads",
                 str(o.threads), "-q", "-o", "json"])
    m = json.loads(found)["metrics"][0]
    return {"value": m["estimate"]["value"], "float": m["against"]["value"], "difference": m["difference"]}, None


def variant(net, name, o):
    return os.path.join(o.folder, "%s-%s.onnx" % (net.name.split(",")[0], name.replace(" ", "-")))


def ours(net, name, o):
    arguments, engine = OURS[name]
    out = variant(net, name, o)
    with tempfile.TemporaryDirectory(dir=o.folder) as fresh:  # or it would find what it observed the last time
        seconds, peak = measured([MLOPT, "quantize", net.path, "--data", net.calibration, *arguments, "--out", out, "-q",
                                  "--threads", str(o.threads), "--checkpoints", fresh])
    return out, engine, seconds, peak


def peer(net, name, o):
    python, tool, method = PEERS[name]
    out = variant(net, name, o)
    seconds, peak = measured([os.environ[python], os.path.join(HERE, "quantizers.py"), tool, method, net.path, net.calibration, out,
                              str(o.threads)])
    return out, "ort", seconds, peak


def row(net, name, make, o):
    try:
        out, engine, seconds, peak = make(net, name, o)
        accuracy, right = evaluated(net, out, engine, o)
    except (RuntimeError, OSError) as e:
        print("  %-18s %s" % (name, e), flush=True)
        return {"net": net.name, "method": name, "error": str(e)}
    found = {"net": net.name, "method": name, "engine": engine, "seconds": seconds, "peak_bytes": peak, "bytes": os.path.getsize(out),
             "metric": net.metric, "accuracy": accuracy, "correct": right}
    print("  " + " | ".join(cells(found)[1:]), flush=True)
    return found


def difference(d):
    return "%+.2f [%+.2f, %+.2f]" % tuple(100 * d[k] for k in ("value", "low", "high"))


def cells(r):
    if "error" in r:
        return [r["net"], r["method"], "failed: " + r["error"].replace("|", "/")[:80], "", "", "", ""]
    a, words = r["accuracy"], ["", ""]
    if a:
        words = ["%.2f%%" % (100 * a["value"]), difference(a["difference"])]
    return [r["net"], r["method"], r["engine"], *words, "%.2f" % r["seconds"], "%.0f" % (r["peak_bytes"] / 1e6)]


HEAD = ["model", "method", "measured on", "accuracy", "difference to float, points", "seconds", "peak MB"]
AGAINST = ["model", "method", "drop, points", "at most", "best peer", "against it, points", "within %.1f" % MARGIN]


def table(rows):
    lines = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * 3 + "---:|" * 4]
    return "\n".join(lines + ["| " + " | ".join(cells(r)) + " |" for r in rows]) + "\n"


def ordered(rows):
    """By net as they came, and in the order of the methods: measurements may come in parts."""
    nets, methods = list(dict.fromkeys(r["net"] for r in rows)), [*OURS, *PEERS]
    return sorted(rows, key=lambda r: (nets.index(r["net"]), methods.index(r["method"])))


def verdicts(rows):
    """Each int8 of ours against its target and the best of the peers, which the test set itself chooses."""
    found = []
    judged = [r for r in rows if r.get("correct")]
    for r in judged:
        if r["method"] not in OURS or not r["method"].startswith("int8"):
            continue
        most = DROP_PLAIN if r["net"] in PLAIN else DROP
        drop = -100 * r["accuracy"]["difference"]["value"] + 0.0
        words = [r["net"], r["method"], "%.2f" % drop, "%.1f%s" % (most, "" if drop <= most + 1e-9 else " **missed**"), "", "", ""]
        others = [p for p in judged if p["net"] == r["net"] and p["method"] in PEERS]
        if others:
            best = max(others, key=lambda p: p["accuracy"]["value"])
            d = paired(r["correct"], best["correct"])
            words[4:] = [best["method"], difference(d), "yes" if 100 * d["low"] >= -MARGIN else "**no**"]
        found.append(words)
    lines = ["| " + " | ".join(AGAINST) + " |", "|---|---|---:|---:|---|---:|---|"]
    return "\n".join(lines + ["| " + " | ".join(w) + " |" for w in found]) + "\n"


def splice(path, text, mark="table"):
    """Puts the table between the two marks of the page."""
    with open(path, encoding="utf-8") as f:
        page = f.read()
    begin, end = "<!-- %s -->\n" % mark, "<!-- /%s -->\n" % mark
    at, to = page.index(begin) + len(begin), page.index(end)
    with open(path, "w", encoding="utf-8") as f:
        f.write(page[:at] + text + page[to:])


def present(name):
    """Whether a peer's environment is there; says so where it is not."""
    python = PEERS[name][0]
    if os.environ.get(python):
        return True
    print("note: %s is left out: %s names no Python that has it" % (name, python), file=sys.stderr)
    return False


def main():
    p = argparse.ArgumentParser(description="Quantization next to other tools' quantizers.")
    words = lambda text: text.split(",")  # noqa: E731
    p.add_argument("--folder", default="build-bench")
    p.add_argument("--nets", type=words)
    p.add_argument("--ours", type=words, default=list(OURS))
    p.add_argument("--peers", type=words, default=list(PEERS))
    p.add_argument("--samples", type=int, default=256, help="images that calibrate")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--models", help="folder of further models")
    p.add_argument("--data", help="folder of their data")
    p.add_argument("--splice", metavar="PAGE", help="put the table into this page")
    p.add_argument("--add", action="store_true", help="to the rows that quantize.json has")
    o = p.parse_args()
    os.makedirs(o.folder, exist_ok=True)
    results, rows = os.path.join(o.folder, "quantize.json"), []
    if o.add and os.path.exists(results):
        with open(results, encoding="utf-8") as f:
            rows = ordered(json.load(f))
    peers = [n for n in o.peers if n and present(n)]
    for net in nets(o):
        print(net.name, flush=True)
        for name, make in [(n, ours) for n in o.ours if n] + [(n, peer) for n in peers]:
            new = row(net, name, make, o)
            rows = ordered([r for r in rows if (r["net"], r["method"]) != (net.name, name)] + [new])
            with open(results, "w", encoding="utf-8") as f:
                json.dump(rows, f, indent=1)
    print(verdicts(rows))
    if o.splice:
        splice(o.splice, table(rows))
        splice(o.splice, verdicts(rows), "verdicts")


if __name__ == "__main__":
    main()
