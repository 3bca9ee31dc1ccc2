"""mlopt's speed relative to other runtimes on the same work, and the targets that it has to meet.

A ratio is the peer's latency over mlopt's: above 1, mlopt is faster. Each engine has one process in every round, in turn; a
process counts with the median of its calls, the ratio with its median over rounds and the 95% bootstrap interval over rounds. A
target holds by the lower bound. On int8 rows each runtime has the int8 model that it runs best: the one of `mlopt quantize`, or one
of ONNX Runtime's own quantizer. On fp16 rows mlopt has the float16 model of `mlopt quantize --recipe fp16`, and a peer its best
float: that model or the float32 one. mlopt runs the plan of `mlopt compile`; "load" is the time from the file to a program that can run.
"""
import argparse
import datetime
import json
import os
import sys

import numpy as np

import measure
import models
import peers as quantizers

F32_TOLERANCE, FP16_TOLERANCE, INT8_COSINE = 1e-3, 1e-2, 0.99
INT8_SHARE = 0.8  # of the time of the heavy nodes; an engine that runs less in int8 is no int8 peer
# Ratios to ONNX Runtime; "small" stands for every model given by --model. No row may be below FLOOR.
TARGETS = {
    ("resnet50", "f32"): 1.05, ("resnet50", "int8"): 1.30, ("resnet50", "fp16"): 1.5,
    ("mobilenetv2", "f32"): 1.15, ("mobilenetv2", "int8"): 1.40, ("mobilenetv2", "fp16"): 1.2,
    ("bert", "f32"): 1.20, ("bert", "int8"): 1.50, ("bert", "fp16"): 1.9,
    ("small", "f32"): 1.5, ("small", "int8"): 1.5,
}
FLOOR = 1.0
failures = []


def fail(text):
    failures.append(text)
    print("FAIL", text, file=sys.stderr)


def say(*words):
    print(*words, file=sys.stderr, flush=True)


class Subject:
    """A model with its calibration and test samples, and its int8 forms."""

    def __init__(self, folder, name, path=None):
        self.folder, self.name = folder, name
        self.path = models.adopt(path, name, folder) if path else models.build(name, folder)
        self.kind = "small" if path else name

    def file(self, suffix):
        return os.path.join(self.folder, self.name + suffix)

    def ours_int8(self):
        out = self.file("-int8.onnx")
        if not os.path.exists(out):
            measure.mlopt("quantize", self.path, "--data", self.file("-calib.npz"), "--recipe", "int8-cpu", "--limit", 4, "--out", out)
        return out

    def ours_half(self):
        out = self.file("-fp16.onnx")
        if not os.path.exists(out):
            measure.mlopt("quantize", self.path, "--recipe", "fp16", "--out", out)
        return out

    def candidates(self, precision):
        """{"mlopt": path, "static": path, …}; without "mlopt" when it does not quantize."""
        if precision == "f32":
            return quantizers.float_candidates(self.path, self.file(""))
        if precision == "fp16":
            found = quantizers.float_candidates(self.path, self.file(""))
            return {"mlopt": self.ours_half(), "float32": found.pop("mlopt"), **found}
        found = {}
        try:
            found["mlopt"] = self.ours_int8()
        except RuntimeError as e:
            say("note: %s: %s" % (self.name, e))
        found.update(quantizers.int8_candidates(self.path, self.file("-calib.npz"), self.file("")))
        return found


def agreement(subject, model, engine, reference):
    out = measure.outputs(model, subject.file("-test.npz"), engine, subject.file("-out.npz"))
    return {"cosine": measure.cosine(out, reference), "deviation": measure.deviation(out, reference)}


def choose(subject, precision, engines, o):
    """{engine: {"name", "path", "int8", "cosine"}}: the model of that precision that the engine runs fastest, among those whose outputs
    are near the float model's (or among all, when none is), and how near they are."""
    kept = subject.file("-%s.json" % precision)
    known = json.load(open(kept)) if os.path.exists(kept) else {}
    models_of = subject.candidates(precision) if any(e not in known for e in engines) else {}
    reference = measure.outputs(subject.path, subject.file("-test.npz"), "cpu", subject.file("-out.npz")) if models_of else None
    for engine in engines:
        if engine in known:
            continue
        tried = []
        for name, path in models_of.items():
            if name != "mlopt" and (engine == "cpu" or (engine != "ort" and name == "fused")):
                continue
            try:
                one = {"name": name, "path": path, "int8": measure.heavy_int8(path, engine)}
                one["us"] = float(np.median(measure.child(path, engine, 1, 0.3, o.prefix)["samples"]))
                one.update(agreement(subject, path, engine, reference))
            except RuntimeError as e:
                say("note: %s %s of %s on %s: %s" % (subject.name, precision, name, engine, e))
                continue
            say("%s %s of %s on %s: %.3f ms, %d of %d heavy nodes (%.0f%% of their time) in int8, cosine to float %.4f" % (
                subject.name, precision, name, engine, one["us"] / 1000, one["int8"]["nodes"], one["int8"]["of"], 100 * one["int8"]["share"],
                one["cosine"]))
            tried.append(one)
        good = [one for one in tried if one["cosine"] >= INT8_COSINE] or tried
        known[engine] = min(good, key=lambda one: one["us"], default=None)
        with open(kept, "w") as f:
            json.dump(known, f, indent=1)
    return {e: known[e] for e in engines if known.get(e)}


def check_f32(subject, chosen):
    found = {e: one["deviation"] for e, one in chosen.items() if e != "cpu"}
    for engine, deviation in found.items():
        if deviation > F32_TOLERANCE:
            fail("%s f32: the outputs of cpu and %s differ by %.2g of the largest" % (subject.name, engine, deviation))
        if chosen[engine]["int8"]["nodes"]:
            fail("%s f32: %s runs int8" % (subject.name, engine))
    return found


def check_fp16(subject, chosen):
    """The float16 model's outputs next to the float32 model's."""
    path, data, out = chosen["cpu"]["path"], subject.file("-test.npz"), subject.file("-out.npz")
    found = {"float32": measure.deviation(measure.outputs(path, data, "cpu", out), measure.outputs(subject.path, data, "cpu", out))}
    if found["float32"] > FP16_TOLERANCE:
        fail("%s fp16: the outputs differ from float32's by %.2g of the largest" % (subject.name, found["float32"]))
    return found


def check_int8(subject, chosen, slow):
    """The same file on two engines must give the same function, and each engine's int8 must be near the float model."""
    found, ours = {}, chosen.get("cpu")
    for engine, one in chosen.items():
        if one["int8"]["share"] < INT8_SHARE:
            fail("%s int8: %s runs %d of %d heavy nodes in int8" % (subject.name, engine, one["int8"]["nodes"], one["int8"]["of"]))
        if one["cosine"] < INT8_COSINE:
            fail("%s int8: %s has a cosine of %.4f with the float model" % (subject.name, engine, one["cosine"]))
    if ours:
        data, out = subject.file("-test.npz"), subject.file("-out.npz")
        mine = measure.outputs(ours["path"], data, "cpu", out)
        for engine in [*(["reference"] if slow else []), *[e for e in chosen if e != "cpu"]]:
            found[engine] = measure.cosine(mine, measure.outputs(ours["path"], data, engine, out))
            if found[engine] < INT8_COSINE:
                fail("%s int8: the outputs of cpu and %s on one file have a cosine of %.4f" % (subject.name, engine, found[engine]))
    return found


def measure_row(subject, precision, threads, engines, o):
    chosen = choose(subject, precision, engines, o)
    if "cpu" not in chosen:
        return None
    sides = {e: one["path"] for e, one in chosen.items()}
    row = {"model": subject.name, "kind": subject.kind, "precision": precision, "threads": threads}
    if o.checks and threads == o.threads[0]:
        if precision == "int8":
            row["same_file_cosine"] = check_int8(subject, chosen, o.reference)
        elif precision == "fp16":
            row["deviation"] = check_fp16(subject, chosen)
        else:
            row["deviation"] = check_f32(subject, chosen)
    row["models"] = {e: {k: one[k] for k in ("name", "int8", "cosine")} for e, one in chosen.items()}
    prefix = o.prefix if threads == 1 else o.prefix_many
    say("measuring", subject.name, precision, threads)
    sides["cpu"], row["compile_s"] = measure.compiled(sides["cpu"], threads, prefix)
    row["sides"] = measure.rounds(sides, threads, o.seconds, o.rounds, prefix, o.clock, o.quantile)
    ours = row["sides"]["cpu"]["us"]
    row["ratios"] = {e: measure.ratio(ours, s["us"]) for e, s in row["sides"].items() if e != "cpu"}
    return row


# --- the table ------------------------------------------------------------------------------------------------------


def milliseconds(us):
    return "%.3g" % (us / 1000) if us < 1e5 else "%.0f" % (us / 1000)


def misses(row):
    """What a row does not reach: {peer: what it should be}, by the lower bound of the interval."""
    found = {}
    for peer, r in row["ratios"].items():
        want = TARGETS.get((row["kind"], row["precision"]), FLOOR) if peer == "ort" else FLOOR
        if (peer == "ort" or row["precision"] == "int8") and r["low"] < want:
            found[peer] = want
    return found


def table(rows, peers):
    head = ["model", "precision", "threads", "mlopt ms"]
    for peer in peers:
        head += [peer + " ms", "ratio [95%]"] + (["target"] if peer == "ort" else [])
    head += ["compile s", "load ms (%s)" % ", ".join(["mlopt", *peers]), "peak MB (%s)" % ", ".join(["mlopt", *peers])]
    lines = ["| " + " | ".join(head) + " |", "|---|---|---" + "|---:" * (len(head) - 3) + "|"]
    for row in rows:
        sides, missed = row["sides"], misses(row)
        cells = [row["model"], row["precision"], str(row["threads"]), milliseconds(np.median(sides["cpu"]["us"]))]
        for peer in peers:
            if peer in sides:
                r = row["ratios"][peer]
                mark = "**" if peer in missed else ""
                cells += [milliseconds(np.median(sides[peer]["us"])), "%s%.2f%s [%.2f, %.2f]" % (mark, r["value"], mark, r["low"], r["high"])]
            else:
                cells += ["-", "-"]
            if peer == "ort":
                cells.append("%.2f" % TARGETS.get((row["kind"], row["precision"]), FLOOR))
        cells.append("%.2f" % row["compile_s"])
        each = [sides.get(e) for e in ["cpu", *peers]]
        cells.append(", ".join("%.3g" % (s["start_us"] / 1000) if s else "-" for s in each))
        cells.append(", ".join("%.0f" % (s["peak_rss_bytes"] / 1e6) if s else "-" for s in each))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def notes(rows):
    """Once for each model and precision: what ran, and how it agrees."""
    lines, seen = [], set()
    words = {"mlopt": "mlopt quantize", "float32": "the float32 model", "fused": "ORT's transformer optimizer"}
    for row in rows:
        if (row["model"], row["precision"]) in seen:
            continue
        seen.add((row["model"], row["precision"]))
        parts = []
        for e, one in row["models"].items():
            text = e
            if row["precision"] == "fp16" and e == "cpu":
                text += " differs from float32 by %.1g of the largest output" % row.get("deviation", {}).get("float32", float("nan"))
            elif row["precision"] != "f32" or one["name"] != "mlopt":
                text += " runs the file of " + words.get(one["name"], "ORT's %s quantizer" % one["name"])
            if row["precision"] == "int8":
                text += ", %d of %d heavy nodes in int8 (%.0f%% of their time), cosine to float %.4f" % (
                    one["int8"]["nodes"], one["int8"]["of"], 100 * one["int8"]["share"], one["cosine"])
            elif e != "cpu" and row["precision"] == "f32":
                text += " differs from cpu by %.1g of the largest output" % row.get("deviation", {}).get(e, float("nan"))
            if text != "cpu":
                parts.append(text)
        lines.append("- %s %s: %s" % (row["model"], row["precision"], "; ".join(parts)))
    return lines


def report(rows, o):
    met = sum(not misses(r) for r in rows)
    text = [table(rows, o.peers), "", "%d of %d rows reach what is asked, by the lower bound of the interval; those in bold do not." % (met, len(rows))]
    text += ["", *notes(rows), ""]
    engines = [s["engine"] for s in rows[0]["sides"].values()]
    text.append("%s, machine class %s; %s; batch 1, quantile %g of the calls, %s clock, %d processes a side of %.1f s" % (
        datetime.date.today(), json.loads(measure.mlopt("engines", "-o", "json")).get("machine_class", "?"), ", ".join(engines), o.quantile, o.clock,
        o.rounds, o.seconds))
    return "\n".join(text) + "\n"


def parse():
    words = lambda text: [w for w in text.split(",") if w]
    p = argparse.ArgumentParser()
    p.add_argument("--folder", default="build-bench")
    p.add_argument("--quick", action="store_true", help="two models, one thread, few rounds")
    p.add_argument("--models", type=words, help="of models.py; with --model and without this, none")
    p.add_argument("--model", action="append", default=[], metavar="PATH[,DIM=SIZE…]", help="a model of your own; open dimensions get sizes")
    p.add_argument("--precisions", type=words, default=["f32", "int8", "fp16"])
    p.add_argument("--threads", type=words)
    p.add_argument("--peers", type=words, default=["ort", "openvino"])
    p.add_argument("--seconds", type=float, default=0.8, help="measuring time of a process")
    p.add_argument("--rounds", type=int, help="processes a side")
    p.add_argument("--quantile", type=float, default=0.5, help="which one of the calls' latencies (0.5: the median)")
    p.add_argument("--clock", default="wall", choices=["wall", "cpu"], help="cpu: processor time, for --threads 1")
    p.add_argument("--prefix", default="", metavar="CMD", help="each measured process runs under this command")
    p.add_argument("--prefix-many", metavar="CMD", help="the same with more than one thread (as --prefix)")
    p.add_argument("--no-checks", dest="checks", action="store_false", help="times only")
    p.add_argument("--reference", action="store_true", help="the int8 outputs are compared with the reference engine's too, which takes minutes")
    p.add_argument("--add", action="store_true", help="to the rows that results.json has: what is measured again replaces its row")
    o = p.parse_args()
    if o.models is None:
        o.models = [] if o.model else ["resnet50", "mobilenetv2"] if o.quick else list(models.MODELS)
    o.threads = [int(t) for t in o.threads or (["1"] if o.quick else ["1", "2"])]
    o.rounds = o.rounds or (3 if o.quick else 7)
    o.prefix_many = o.prefix if o.prefix_many is None else o.prefix_many
    return o


def main():
    o = parse()
    folder, kept = os.path.join(o.folder, "models"), os.path.join(o.folder, "results.json")
    os.makedirs(folder, exist_ok=True)
    subjects = [Subject(folder, name) for name in o.models]
    subjects += [Subject(folder, os.path.basename(m.split(",")[0])[:-5], m) for m in o.model]
    rows = json.load(open(kept)) if o.add and os.path.exists(kept) else []
    key = lambda row: (row["model"], row["precision"], row["threads"])
    for subject in subjects:
        for precision in o.precisions:
            for threads in o.threads:
                try:
                    row = measure_row(subject, precision, threads, ["cpu", *o.peers], o)
                except RuntimeError as e:
                    fail("%s %s: %s" % (subject.name, precision, e))
                    continue
                if row:
                    at = next((i for i, r in enumerate(rows) if key(r) == key(row)), len(rows))
                    rows[at : at + 1] = [row]
                    with open(kept, "w") as out:
                        json.dump(rows, out, indent=1)
    if not rows:
        return 1
    text = report(rows, o)
    print(text)
    with open(os.path.join(o.folder, "table.md"), "w") as out:
        out.write(text)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
