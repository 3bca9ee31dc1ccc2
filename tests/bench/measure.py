"""One process a measurement, through the hidden verb `bench-child` of mlopt; engines take turns in rounds."""
import json
import os
import shlex
import subprocess

import numpy as np

MLOPT = os.environ.get("MLOPT", "mlopt")
HEAVY = ("Conv", "MatMul", "Gemm", "QGemm", "FullyConnected", "QAttention", "Attention")


def mlopt(*arguments, prefix=()):
    done = subprocess.run([*prefix, MLOPT, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        words = done.stderr.strip() or done.stdout.strip()[:500] or "status %d" % done.returncode
        raise RuntimeError("mlopt %s: %s" % (" ".join(map(str, arguments)), words))
    return done.stdout


def child(model, engine, threads, seconds, prefix="", clock="wall"):
    """The report of one process: p50_us, start_us (from the file to ready), peak_rss_bytes, engine."""
    text = mlopt(
        "bench-child", model, "--engine", engine, "--batch", 1, "--threads", threads, "--seconds", seconds, "--clock", clock,
        prefix=shlex.split(prefix),
    )
    report = json.loads(text)
    report["samples"] = np.array(report["samples"])
    return report


def compiled(model, threads, prefix=""):
    """(plan, seconds): what `mlopt compile` makes of the model, beside it."""
    plan = "%s-%d.plan" % (model[:-5], threads)
    text = mlopt("compile", model, "--batch", 1, "--threads", threads, "--out", plan, "-o", "json", prefix=shlex.split(prefix))
    return plan, json.loads(text)["seconds"]


def rounds(sides, threads, seconds, count, prefix="", clock="wall", quantile=0.5):
    """sides: {engine: model}. Every engine has one process in every round, in an order that turns. Returns
    {engine: {"us": [one a process], "start_us", "peak_rss_bytes", "engine"}}."""
    found = {e: {"us": [], "start_us": [], "peak_rss_bytes": []} for e in sides}
    order = list(sides)
    for r in range(count):
        for engine in order if r % 2 == 0 else order[::-1]:
            report = child(sides[engine], engine, threads, seconds, prefix, clock)
            side = found[engine]
            side["engine"] = report["engine"]
            side["us"].append(float(np.quantile(report["samples"], quantile)))
            for key in ("start_us", "peak_rss_bytes"):
                side[key].append(report.get(key, 0))
    for side in found.values():
        side["start_us"] = float(np.median(side["start_us"]))
        side["peak_rss_bytes"] = max(side["peak_rss_bytes"])
    return found


def ratio(ours, theirs):
    """theirs / ours: the median over rounds and its 95% bootstrap interval over rounds, which is over processes."""
    rng = np.random.default_rng(0)
    each = np.array(theirs) / np.array(ours)
    spread = np.median(each[rng.integers(0, len(each), (2000, len(each)))], axis=1)
    low, high = np.quantile(spread, (0.025, 0.975))
    return {"value": float(np.median(each)), "low": float(low), "high": float(high)}


def heavy_int8(model, engine):
    """How much of the time in convolutions and matrix products ran in int8, and how many of how many of them."""
    nodes = json.loads(mlopt("bench", model, "--profile", "--engine", engine, "-o", "json"))["nodes"]
    mine = [n for n in nodes if any(h.lower() in n["op"].lower() for h in HEAVY)]
    whole = sum(n.get("us", 0) for n in mine)
    share = sum(n.get("us", 0) for n in mine if n["precision"] == "int8") / whole if whole else 0
    return {"share": share, "nodes": sum(n["precision"] == "int8" for n in mine), "of": len(mine)}


def outputs(model, data, engine, out, limit=2):
    mlopt("run", model, "--data", data, "--engine", engine, "--batch", 1, "--limit", limit, "--out", out)
    with np.load(out) as arrays:
        return [arrays[k].astype(np.float64) for k in sorted(arrays.files)]


def cosine(a, b):
    """Of all outputs in one."""
    a, b = (np.concatenate([x.ravel() for x in side]) for side in (a, b))
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def deviation(a, b):
    """The largest difference of any output, as a share of its largest element."""
    return max(float(np.abs(x - y).max() / max(np.abs(y).max(), 1e-30)) for x, y in zip(a, b))
