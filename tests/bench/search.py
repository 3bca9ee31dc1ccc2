#!/usr/bin/env python3
"""A search next to the fixed recipes of the tree: all of them on one net, on a service of its own, with the same data; then
which of the recipes lie outside the search's front, and by how much a point of it is faster than the recipes that are as accurate.

    tests/bench/search.py --mlopt build-dev/mlopt [--net tests/nets/models/mobilenet_v2.onnx] [--jobs 40] [--out FILE.json]

What the search and the recipes made is pulled and measured again, all of it by the same rule: latency in sweeps over all files in
random order, each beside the source in alternating processes (files of the same bytes are one); accuracy on the evaluation data,
paired. Run it on a machine that nothing else uses: ratios of a few percent are not told apart on a busy one, and wide intervals make
recipes look as if they were not outside the front. Give it no real-time class (chrt): its server, database and workers wait for what
it keeps from running. Where others share the machine, use `taskset -c 1` and more --sweeps. Needs Debian's dataset-fashion-mnist;
takes a quarter of an hour. The data that selects is of the training images, behind those that calibrate. --out is written again
after each sweep, so that what was cut off still has those before it.
"""
import argparse
import hashlib
import json
import os
import pathlib
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

IMAGES = "/usr/share/datasets/fashion-mnist"
NORMALIZE = "scale=1/255,mean=0.2860,std=0.3530"
TOP = pathlib.Path(__file__).resolve().parents[2]
NOT_FIXED = ("search", "qat-export")  # the latter wants a net that was trained for it
# By value ties are a toss of a coin; what wide intervals cannot tell is not shown to be inside; what is worse by no more than a
# margin, by the end of its interval that is against it, is (non-inferiority).
REACHED = {"value": ("inside", "OUTSIDE"), "interval": ("not told from", "OUTSIDE"), "margin": ("inside", "not shown")}
MARGIN = {"latency": 1.02, "points": 0.3}
FIXED = sorted(p.stem for p in (TOP / "pipeline/recipes").glob("*.yaml") if p.stem not in NOT_FIXED)


class Service:
    def __init__(self, program, folder):
        self.program, self.folder = program, folder
        self.up = subprocess.Popen([program, "up", "--data", folder / "data", "--listen", "127.0.0.1:0", "--workers", "1"],
                                   stdout=open(folder / "up.log", "w"), stderr=subprocess.STDOUT)
        try:
            self.wait()
        except BaseException:
            self.close()
            raise

    def wait(self):
        folder, until = self.folder, time.monotonic() + 120
        while not ((folder / "data/url").exists() and "ready" in (folder / "up.log").read_text()):
            if self.up.poll() is not None or time.monotonic() > until:
                why = "ended" if self.up.poll() is not None else "is not ready after two minutes"
                sys.exit(f"mlopt up {why}: {(folder / 'up.log').read_text().strip()[-2000:]}")
            time.sleep(0.1)
        self.env = dict(os.environ, MLOPT_URL=(folder / "data/url").read_text().strip(),
                        MLOPT_TOKEN=(folder / "data/token").read_text().strip())

    def __call__(self, *args, may_fail=False):
        done = subprocess.run([self.program, *map(str, args)], env=self.env, cwd=self.folder, capture_output=True, text=True)
        if done.returncode and not may_fail:
            sys.exit(f"mlopt {' '.join(map(str, args))}: {done.stderr}")
        return done

    def close(self):
        if self.up.poll() is None:
            self.up.send_signal(signal.SIGTERM)
        self.up.wait()


def without_measurements(recipe):
    """The recipe's text with one measurement in place of its own, for any worker."""
    text = (TOP / "pipeline/recipes" / f"{recipe}.yaml").read_text()
    kept = [line for line in text.splitlines() if not re.match(r"\s*- (evaluate|benchmark|report)|expect:|target:", line)]
    if not any(line.startswith("data:") for line in kept):
        kept.insert(0, "data: {evaluate: fashion/test}")
    return "\n".join(kept + ["  - evaluate: {metrics: [top1], compare_to: source}"]) + "\n"


def pulled(service, kind, variant, name):
    into = service.folder / "pulled" / kind / name
    service("pull", f"fashion/net@1/{variant}", "--out", into)
    return described(kind, name, next(into.glob("**/*.onnx")))


def fixed_point(service, recipe):
    (service.folder / f"{recipe}.yaml").write_text(without_measurements(recipe))
    done = service("submit", "fashion/net", "--recipe", f"{recipe}.yaml", "--wait", may_fail=True)
    if done.returncode:
        print(f"{recipe}: {done.stderr.strip()}", file=sys.stderr)
        return None
    return pulled(service, "recipe", recipe, recipe)


def described(kind, name, path):
    return {"kind": kind, "name": name, "path": str(path), "size": path.stat().st_size,
            "digest": hashlib.sha256(path.read_bytes()).hexdigest()}


def kept_name(recipe, a):
    """What is made of the same recipe, net and data (by one build) is the same: nothing else is taken for it."""
    of = hashlib.sha256()
    for part in (without_measurements(recipe).encode(), pathlib.Path(a.net).read_bytes(), f"{a.calibrate} {a.select}".encode()):
        of.update(hashlib.sha256(part).digest())
    return f"{recipe}-{of.hexdigest()}.onnx"


def kept_point(service, recipe, a):
    at = a.keep and pathlib.Path(a.keep) / kept_name(recipe, a)
    if at and at.exists():
        return described("recipe", recipe, at.resolve())
    made = fixed_point(service, recipe)
    if made and at:
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_bytes(pathlib.Path(made["path"]).read_bytes())
    return made


class Measured:
    """Latencies of all sweeps, and paired accuracies, of files by their digest."""

    def __init__(self, program, source, points, options):
        self.program, self.source, self.options = program, str(source), options
        self.files = {p["digest"]: p["path"] for p in points}
        self.sweeps, self.pairs, self.ratios = [], {}, {}  # ratios are asked for when all sweeps are done

    def call(self, *args):
        done = subprocess.run([self.program, *args, "-q", "-o", "json"], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"mlopt {' '.join(args)}: {done.stderr}")
        return json.loads(done.stdout)

    def sweep(self):
        order, row = list(self.files), {}
        random.shuffle(order)
        for d in order:
            row[d] = self.call("bench", self.source, self.files[d], *self.options)["ratio_p50"]["value"]
        self.sweeps.append(row)

    def ratio(self, a, b=None):
        """a / b (b: the source), with a 95% interval of a bootstrap over sweeps."""
        if (a, b) not in self.ratios:
            rows = [r[a] / (r[b] if b else 1) for r in self.sweeps]
            drawn = random.Random(1)
            medians = sorted(statistics.median(drawn.choices(rows, k=len(rows))) for _ in range(1000))
            self.ratios[a, b] = (statistics.median(rows), medians[25], medians[974])
        return self.ratios[a, b]

    def drop(self, a, b=None):
        """How many points a loses against b (the source), with its paired 95% interval."""
        if a == b:
            return 0.0, 0.0, 0.0
        if (a, b) not in self.pairs:
            data = ["--data", f"{IMAGES}/t10k-images-idx3-ubyte.gz,{IMAGES}/t10k-labels-idx1-ubyte.gz", "--normalize", NORMALIZE]
            seen = self.call("eval", self.files[a], "--against", self.files[b] if b else self.source, "--metric", "top1", *data)
            d = seen["metrics"][0]["difference"]
            self.pairs[a, b] = tuple(-100 * d[k] for k in ("value", "high", "low"))
        return self.pairs[a, b]


def reaches(m, point, recipe, how):
    """Whether a point of the front is as good on all three axes: by what was measured, as far as intervals can tell, or but for
    a margin."""
    if point["size"] > recipe["size"]:
        return False
    ratio, drop = (m.ratio(point["digest"], recipe["digest"]), m.drop(point["digest"], recipe["digest"]))
    if how == "margin":
        return ratio[2] <= MARGIN["latency"] and drop[2] <= MARGIN["points"]
    at = 1 if how == "interval" else 0  # the end that speaks for the point
    return ratio[at] <= 1 and drop[at] <= 0


def fastest(m, recipes, point, allowed):
    """Of the recipes that lose no more than the point (by value), or are not shown to lose other than it does (by interval)."""
    def as_accurate(r):
        d = m.drop(point["digest"], r["digest"])  # what the point loses more than the recipe
        return d[0] >= 0 if allowed == "value" else d[1] <= 0 <= d[2]
    them = [r for r in recipes if as_accurate(r)]
    return min(them, key=lambda r: m.ratio(r["digest"])[0], default=None)


def write(out, search, front, recipes, m):
    if out:
        part = pathlib.Path(f"{out}.part")
        part.write_text(json.dumps({"search": search, "front": front, "recipes": recipes, "sweeps": m.sweeps}, indent=1))
        part.replace(out)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--mlopt", required=True)
    p.add_argument("--net", default=TOP / "tests/nets/models/mobilenet_v2.onnx")
    p.add_argument("--jobs", type=int, default=40)
    p.add_argument("--calibrate", type=int, default=1024, help="training images, the first ones (1024)")
    p.add_argument("--select", type=int, default=10000, help="training images behind 20,000 (10000)")
    p.add_argument("--sweeps", type=int, default=15, help="of latencies over all files (15)")
    p.add_argument("--goal", default="accuracy_drop<=3pt, min latency")
    p.add_argument("--recipes", nargs="*", default=FIXED)
    p.add_argument("--set", action="append", default=[])
    p.add_argument("--keep", help="a folder for what recipes made, which is taken from there when it is there: one folder a build")
    p.add_argument("--out")
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        folder.chmod(0o711)
        program = str(pathlib.Path(a.mlopt).resolve())
        service = Service(program, folder)
        try:
            service("push", "fashion/net", pathlib.Path(a.net).resolve())
            for name, part, first, count in (("calibration", "train", 0, a.calibrate), ("selection", "train", 20000, a.select),
                                             ("test", "t10k", 0, 10000)):
                service("data", "push", f"fashion/{name}", f"{IMAGES}/{part}-images-idx3-ubyte.gz",
                        f"{IMAGES}/{part}-labels-idx1-ubyte.gz", "--first", first, "--count", count, "--normalize", NORMALIZE)
            began = time.time()
            extra = [x for s in a.set for x in ("--set", s)]
            done = service("submit", "fashion/net", "--goal", a.goal, "--budget", a.jobs, *extra, "--wait", may_fail=True)
            took = time.time() - began
            runs = json.loads(service("runs", "-o", "json").stdout)
            search = json.loads(service("runs", runs[0]["id"], "-o", "json").stdout)["search"]
            front = [pulled(service, "front", f"search-{x['name']}", x["name"]) for x in search["points"]
                     if x["front"] and "evaluated_drop" in x]
            recipes = [x for x in (kept_point(service, r, a) for r in a.recipes) if x]
        finally:
            service.close()
        print(f"search: {search['used']['jobs'] + 1} jobs, {took:.0f} s; {search['why']}; {search['stopped']}")
        if done.returncode:
            print(done.stderr.strip().splitlines()[0])
        for x in search["points"]:
            drop, latency = ((x.get(k) or {}).get("value") for k in ("accuracy_drop", "latency_ratio"))
            if drop is not None and latency is not None:
                print(f"  tried {x['name']:26} drop {100 * drop:6.2f}  latency x {latency:.3f}  {x['size']:7} bytes  rung {x['rung']}"
                      f"{'  front' if x['front'] else ''}", flush=True)
        m = Measured(program, pathlib.Path(a.net).resolve(), front + recipes, ["--rounds", "4", "--seconds", "0.2"])
        for _ in range(a.sweeps):
            m.sweep()
            write(a.out, search, front, recipes, m)
        for x in sorted(front + recipes, key=lambda x: m.ratio(x["digest"])[0]):
            x["drop"], x["latency"] = m.drop(x["digest"]), m.ratio(x["digest"])
            note = ""
            if x["kind"] == "recipe":
                x["reached"] = {how: [f["name"] for f in front if reaches(m, f, x, how)] for how in REACHED}
                note = "; ".join(f"by {how}: {REACHED[how][0 if by else 1]}" for how, by in x["reached"].items())
            print("%-6s %-26s drop %5.2f [%5.2f, %5.2f]  latency x %.3f [%.3f, %.3f]  %7d bytes  %s"
                  % (x["kind"], x["name"], *x["drop"], *x["latency"], x["size"], note))
        for x in front:
            for how in ("value", "interval"):
                r = fastest(m, recipes, x, how)
                if r:
                    ratio = m.ratio(x["digest"], r["digest"])
                    more = m.drop(x["digest"], r["digest"])
                    x.setdefault("against", {})[how] = {"recipe": r["name"], "ratio": ratio, "drop": more}
                    print("%-26s against %-14s, the fastest that %s: x %.3f [%.3f, %.3f], loses %+.2f [%+.2f, %+.2f] points more%s"
                          % (x["name"], r["name"], "loses no more" if how == "value" else "is as accurate as can be told", *ratio,
                             *more, "  10% faster" if ratio[2] <= 0.9 else ""))
        write(a.out, search, front, recipes, m)


if __name__ == "__main__":
    main()
