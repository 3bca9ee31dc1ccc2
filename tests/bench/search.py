#!/usr/bin/env python3
"""A search next to the fixed recipes of the tree: all of them on one net, on a service of its own, judged on the same
evaluation data and timed with the same options; then which of the recipes lie outside the search's front.

    tests/bench/search.py --mlopt build-dev/mlopt [--net tests/nets/models/mobilenet_v2.onnx] [--jobs 40] [--out FILE.json]

Needs Debian's dataset-fashion-mnist; takes minutes. The data that selects is of the training images, behind those that calibrate.
"""
import argparse
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

IMAGES = "/usr/share/datasets/fashion-mnist"
NORMALIZE = "scale=1/255,mean=0.2860,std=0.3530"
TOP = pathlib.Path(__file__).resolve().parents[2]
FIXED = ("fp16", "int4-gptq", "int4-weights", "int8-accurate", "int8-cpu", "int8-dynamic", "int8-tensorrt", "int8-weights",
         "prune-half")  # frozen beforehand; qat-export wants a net that was trained for it


class Service:
    def __init__(self, program, folder):
        self.program, self.folder = program, folder
        self.up = subprocess.Popen([program, "up", "--data", folder / "data", "--listen", "127.0.0.1:0", "--workers", "1"],
                                   stdout=open(folder / "up.log", "w"), stderr=subprocess.STDOUT)
        for _ in range(1200):
            if (folder / "data/url").exists() and "ready" in (folder / "up.log").read_text():
                break
            time.sleep(0.1)
        self.env = dict(os.environ, MLOPT_URL=(folder / "data/url").read_text().strip(),
                        MLOPT_TOKEN=(folder / "data/token").read_text().strip())

    def __call__(self, *args, may_fail=False):
        done = subprocess.run([self.program, *map(str, args)], env=self.env, cwd=self.folder, capture_output=True, text=True)
        if done.returncode and not may_fail:
            sys.exit(f"mlopt {' '.join(map(str, args))}: {done.stderr}")
        return done

    def close(self):
        self.up.send_signal(signal.SIGTERM)
        self.up.wait()


def same_measurements(recipe, options):
    """The recipe's text with this tool's measurements in place of its own, for any worker."""
    text = (TOP / "pipeline/recipes" / f"{recipe}.yaml").read_text()
    kept = [line for line in text.splitlines() if not re.match(r"\s*- (evaluate|benchmark|report)|expect:|target:", line)]
    if not any(line.startswith("data:") for line in kept):
        kept.insert(0, "data: {evaluate: fashion/test}")
    return "\n".join(kept + [f"  - evaluate: {{metrics: [top1], compare_to: source}}",
                             f"  - benchmark: {{batch: [1], threads: 1, compare_to: source, {options}}}"]) + "\n"


def fixed_point(service, recipe, options):
    (service.folder / f"{recipe}.yaml").write_text(same_measurements(recipe, options))
    done = service("submit", "fashion/net", "--recipe", f"{recipe}.yaml", "--wait", "-o", "json", may_fail=True)
    if done.returncode:
        return None
    variant = next(v for v in json.loads(done.stdout)["variants"] if v["variant"] == recipe)
    seen = {e["metric"]: e["comparison_value"] for e in variant["evidence"] if e.get("baseline") and e["data_role"] != "select"}
    return {"name": recipe, "drop": -seen["top1"], "latency": seen["latency.p50"], "size": variant["size"]}


def outside(point, front):
    """Not reached by any point of the front on all three axes."""
    return not any(f["drop"] <= point["drop"] and f["latency"] <= point["latency"] and f["size"] <= point["size"] for f in front)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--mlopt", required=True)
    p.add_argument("--net", default=TOP / "tests/nets/models/mobilenet_v2.onnx")
    p.add_argument("--jobs", type=int, default=40)
    p.add_argument("--samples", type=int, default=3000, help="of the selection and of the evaluation data (3000)")
    p.add_argument("--goal", default="accuracy_drop<=1pt, min latency")
    p.add_argument("--set", action="append", default=[])
    p.add_argument("--out")
    a = p.parse_args()
    options = "seconds: 0.6, rounds: 4"
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        folder.chmod(0o711)
        service = Service(str(pathlib.Path(a.mlopt).resolve()), folder)
        try:
            service("push", "fashion/net", pathlib.Path(a.net).resolve())
            for name, part, first, count in (("calibration", "train", 0, 256), ("selection", "train", 10000, a.samples),
                                             ("test", "t10k", 0, a.samples)):
                service("data", "push", f"fashion/{name}", f"{IMAGES}/{part}-images-idx3-ubyte.gz",
                        f"{IMAGES}/{part}-labels-idx1-ubyte.gz", "--first", first, "--count", count, "--normalize", NORMALIZE)
            began = time.time()
            extra = [x for s in a.set for x in ("--set", s)]
            done = service("submit", "fashion/net", "--goal", a.goal, "--budget", a.jobs, "--set", "search.seconds=0.6", "--set",
                           "search.rounds=4", *extra, "--wait", "-o", "json", may_fail=True)
            took = time.time() - began
            runs = json.loads(service("runs", "-o", "json").stdout)
            search = json.loads(service("runs", runs[0]["id"], "-o", "json").stdout)["search"]
            front = [{"name": x["name"], "drop": x["evaluated_drop"]["value"], "latency": x["latency_ratio"]["value"], "size": x["size"]}
                     for x in search["points"] if x["front"] and "evaluated_drop" in x]
            fixed = [x for x in (fixed_point(service, r, options) for r in FIXED) if x]
        finally:
            service.close()
    print(f"search: {search['used']['jobs'] + 1} jobs, {took:.0f} s: {search['why']}; {search['stopped']}")
    for kind, rows in (("front", front), ("fixed", fixed)):
        for x in sorted(rows, key=lambda x: x["latency"]):
            note = ("outside" if outside(x, front) else "inside") if kind == "fixed" else ""
            print(f"{kind:6} {x['name']:24} drop {100 * x['drop']:6.2f} pt  latency x {x['latency']:.3f}  {x['size']:8} bytes  {note}")
    if done.returncode:
        print(done.stderr.strip().splitlines()[0])
    if a.out:
        pathlib.Path(a.out).write_text(json.dumps({"search": search, "front": front, "fixed": fixed}, indent=1))


if __name__ == "__main__":
    main()
