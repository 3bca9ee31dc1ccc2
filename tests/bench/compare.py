"""mlopt's speed relative to other runtimes on the same models, through `mlopt bench --against-engine`.

A ratio is the peer's median latency over mlopt's: above 1, mlopt is faster. It is the median over rounds, in each of which the two ran one after the other in processes of their own, with a 95% bootstrap interval over rounds.
"""
import argparse
import datetime
import json
import os
import subprocess
import sys

import numpy as np

import models

MLOPT = os.environ.get("MLOPT", "mlopt")
HEAVY = ("Conv", "MatMul", "Gemm", "QGemm", "FullyConnected")
F32_TOLERANCE, INT8_COSINE = 1e-3, 0.99
INT8_SHARE = 0.8  # of the heavy nodes; a peer that runs fewer in int8 is no int8 peer
failures = []


def mlopt(*arguments):
    done = subprocess.run([MLOPT, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise RuntimeError("mlopt %s: %s" % (" ".join(map(str, arguments)), done.stderr.strip()))
    return done.stdout


def fail(text):
    failures.append(text)
    print("FAIL", text, file=sys.stderr)


def prepare(folder, name, precisions):
    path = models.build(name, folder)
    found = {"f32": path}
    if "int8" in precisions:
        found["int8"] = os.path.join(folder, name + "-int8.onnx")
        if not os.path.exists(found["int8"]):
            calibration = os.path.join(folder, name + "-calib.npz")
            mlopt("quantize", path, "--data", calibration, "--recipe", "int8-cpu", "--limit", 4, "--out", found["int8"])
    return found


def outputs(folder, model, name, engine):
    out = os.path.join(folder, "outputs-%s.npz" % engine)
    data = os.path.join(folder, name + "-test.npz")
    mlopt("run", model, "--data", data, "--engine", engine, "--batch", 1, "--limit", 2, "--out", out)
    with np.load(out) as arrays:
        return [arrays[k] for k in sorted(arrays.files)]


def check_outputs(folder, model, name, precision, peers):
    """The engines must compute the same function; returns the deviation per peer."""
    ours, found = outputs(folder, model, name, "cpu"), {}
    for peer in peers:
        theirs = outputs(folder, model, name, peer)
        a, b = (np.concatenate([x.ravel() for x in side]).astype(np.float64) for side in (ours, theirs))
        if precision == "f32":
            found[peer] = float(np.abs(a - b).max() / np.abs(b).max())
            good = found[peer] <= F32_TOLERANCE
        else:
            found[peer] = float(a @ b / np.sqrt((a @ a) * (b @ b)))
            good = found[peer] >= INT8_COSINE
        if not good:
            fail("%s %s: the outputs of cpu and %s differ: %g" % (name, precision, peer, found[peer]))
    return found


def heavy(model, engine):
    """How many of the engine's convolutions and matrix products ran in int8, and of how many."""
    nodes = json.loads(mlopt("bench", model, "--profile", "--engine", engine, "-o", "json"))["nodes"]
    mine = [n for n in nodes if any(h.lower() in n["op"].lower() for h in HEAVY)]
    return sum(n["precision"] == "int8" for n in mine), len(mine)


def measure(model, peer, threads, seconds, rounds, clock):
    text = mlopt(
        "bench", model, "--clock", clock, "--engine", "cpu", "--against-engine", peer, "--threads", threads, "--batch", 1,
        "--seconds", seconds, "--rounds", rounds, "-o", "json", "-q",
    )
    return json.loads(text)


def at_quantile(result, quantile):
    """Latencies and ratio at another quantile than the median, from the processes' samples: on a busy machine a low one
    is what the calls took that nobody interrupted."""
    a, b = (np.array([np.quantile(s, quantile) for s in result[k]["samples_us"]]) for k in ("a", "b"))
    rng = np.random.default_rng(0)
    ratios = b / a
    spread = np.median(ratios[rng.integers(0, len(ratios), (2000, len(ratios)))], axis=1)
    low, high = np.quantile(spread, (0.025, 0.975))
    result["a"]["quantile_us"], result["b"]["quantile_us"] = float(np.median(a)), float(np.median(b))
    result["ratio"] = {"value": float(np.median(ratios)), "low": float(low), "high": float(high)}


def milliseconds(side):
    value = side["quantile_us"] / 1000
    return "%.2f" % value if value < 100 else "%.0f" % value


def table(rows, peers):
    head = ["model", "precision", "threads", "mlopt ms"]
    for peer in peers:
        head += [peer + " ms", "ratio [95%]"]
    lines = ["| " + " | ".join(head) + " |", "|---|---|---" + "|---:" * (len(head) - 3) + "|"]
    for row in rows:
        cells = [row["model"], row["precision"], str(row["threads"])]
        cells.append(milliseconds(next(iter(row["peers"].values()))["a"]))
        for peer in peers:
            r = row["peers"].get(peer)
            q = r and r["ratio"]
            cells += [milliseconds(r["b"]), "%.2f [%.2f, %.2f]" % (q["value"], q["low"], q["high"])] if r else ["-", "-"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    words = lambda text: text.split(",")
    p = argparse.ArgumentParser()
    p.add_argument("--folder", default="build-bench")
    p.add_argument("--quick", action="store_true", help="two models, one thread, few rounds")
    p.add_argument("--models", type=words)
    p.add_argument("--precisions", type=words, default=["f32", "int8"])
    p.add_argument("--threads", type=words)
    p.add_argument("--peers", type=words, default=["ort", "openvino"])
    p.add_argument("--seconds", type=float, help="measuring time a side, over all rounds")
    p.add_argument("--rounds", type=int)
    p.add_argument("--quantile", type=float, default=0.5, help="which one of the calls' latencies (0.5: the median)")
    p.add_argument("--clock", default="wall", choices=["wall", "cpu"], help="cpu: processor time, for --threads 1")
    p.add_argument("--no-checks", action="store_true", help="times only")
    o = p.parse_args()
    o.models = o.models or (["resnet50", "mobilenetv2"] if o.quick else list(models.MODELS))
    o.threads = [int(t) for t in o.threads or (["1"] if o.quick else ["1", "2"])]
    o.rounds = o.rounds or (3 if o.quick else 7)
    o.seconds = o.seconds or (0.7 * o.rounds if o.quick else 1.2 * o.rounds)
    folder = os.path.join(o.folder, "models")
    os.makedirs(folder, exist_ok=True)
    rows, checks = [], []
    for name in o.models:
        for precision, model in prepare(folder, name, o.precisions).items():
            if precision not in o.precisions:
                continue
            if not o.no_checks:
                deviation = check_outputs(folder, model, name, precision, o.peers)
                counts = {e: heavy(model, e) for e in ["cpu", *o.peers]}
                checks.append({"model": name, "precision": precision, "deviation": deviation, "int8_heavy": counts})
                for engine, (int8, whole) in counts.items():
                    if precision == "int8" and int8 < INT8_SHARE * whole:
                        fail("%s: %s ran %d of %d heavy nodes in int8: it is no int8 peer" % (name, engine, int8, whole))
                    if precision == "f32" and int8:
                        fail("%s: %s ran int8 on the float model" % (name, engine))
            for threads in o.threads:
                row = {"model": name, "precision": precision, "threads": threads, "peers": {}}
                for peer in o.peers:
                    print("measuring", name, precision, threads, peer, file=sys.stderr)
                    r = measure(model, peer, threads, o.seconds, o.rounds, o.clock)
                    at_quantile(r, o.quantile)
                    for side in ("a", "b"):
                        r[side].pop("samples_us", None)
                    row["peers"][peer] = r
                rows.append(row)
                with open(os.path.join(o.folder, "results.json"), "w") as out:
                    json.dump({"rows": rows, "checks": checks}, out, indent=1)
    text = [table(rows, o.peers), ""]
    for c in checks:
        parts = []
        for engine, (int8, whole) in c["int8_heavy"].items():
            d = c["deviation"].get(engine)
            differs = "" if d is None else ", %s %.2g" % ("deviation" if c["precision"] == "f32" else "cosine", d)
            parts.append("%s %d of %d in int8%s" % (engine, int8, whole, differs))
        text.append("- %s %s: %s" % (c["model"], c["precision"], "; ".join(parts)))
    first = next(iter(rows[0]["peers"].values()))
    engines = [first["a"]["engine"]] + [rows[0]["peers"][p]["b"]["engine"] for p in o.peers]
    text += ["", "%s, machine class %s, %s; batch 1, quantile %g of the "
             "calls, %s clock, %d rounds of %.1f s a side" % (
        datetime.date.today(), first["machine"].get("class", "?"), ", ".join(engines), o.quantile, o.clock, o.rounds, o.seconds / o.rounds)]
    print("\n".join(text))
    with open(os.path.join(o.folder, "table.md"), "w") as out:
        out.write("\n".join(text) + "\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
