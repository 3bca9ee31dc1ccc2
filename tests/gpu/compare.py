"""Whole models on a GPU: mlopt's outputs against float64, and its times next to torch.compile's, in turn in one run. See README.md."""
import argparse
import json
import os
import subprocess
import sys
import time

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import nets  # noqa: E402

ORDER = [("resnet50", 128), ("bert_base", 32), ("mobilenet_v2", 128), ("resnet50", 1), ("bert_base", 1), ("mobilenet_v2", 1),
         ("resnet50", 32), ("bert_base", 128), ("mobilenet_v2", 32)]
ROUNDS = 5
# Of the largest output: what float16 storage between layers may do; what is quantized is judged by its direction.
FP16_ERROR, FP32_ERROR, QUANTIZED_COSINE = 2e-2, 5e-3, 0.98
# What is quantized, for which target; everything else is float16 then.
QUANTIZED = {"int8": "mlopt-cuda", "fp8": "mlopt-cuda-fp8"}
RECIPE = """name: %s
data: {calibrate: gpu/calibration}
steps:
  - quantize: {target: %s}
  - to-float16: {}
"""
# How many times as fast as torch.compile it is to be, on an H200.
TARGETS = {("fp16", 1): 1.2, ("fp16", 128): 1.0}


def run(command, **more):
    done = subprocess.run(command, capture_output=True, text=True, **more)
    if done.returncode:
        raise RuntimeError("%s: %s" % (" ".join(command[:4]), done.stderr.strip()[-600:]))
    return done.stdout


class Ours:
    def __init__(self, options, name, batch, precision):
        self.mlopt, self.batch, self.seconds = options.mlopt, batch, options.seconds
        stem = os.path.join(options.work, "%s-%s" % (name, precision))
        self.model = stem + ".onnx"
        if not os.path.exists(self.model):
            if precision in QUANTIZED:
                base = os.path.join(options.work, name)
                plain, data, recipe = base + "-f32.onnx", base + ".npz", stem + ".yaml"
                net = nets.NETS[name]()
                with open(plain, "wb") as f:
                    f.write(net.onnx())
                with open(recipe, "w") as f:
                    f.write(RECIPE % (precision, QUANTIZED[precision]))
                np.savez(data, **{net.input: net.sample(8, seed=7)})
                run([self.mlopt, "quantize", plain, "--data", data, "--recipe", recipe, "--out", self.model])
            else:
                net = nets.NETS[name]()
                with open(self.model, "wb") as f:
                    f.write((net.half() if precision == "fp16" else net).onnx())
        self.plan = "%s-batch%d.plan" % (stem, batch)
        target = ["--target", options.target]
        begin = time.time()
        compiled = [self.mlopt, "compile", self.model, *target, "--batch", str(batch), "--out", self.plan]
        if options.tune:
            choices = "%s-batch%d.json" % (stem, batch)
            run([self.mlopt, "tune", self.model, "--batch", str(batch), "--seconds", str(options.tune), "--out", choices])
            compiled += ["--choices", choices]
        run(compiled)
        self.compile_seconds = time.time() - begin

    def outputs(self, data, work):
        out = os.path.join(work, "out.npz")
        run([self.mlopt, "run", self.plan, "--engine", "cuda", "--data", data, "--out", out])
        with np.load(out) as arrays:
            return arrays[arrays.files[0]].astype(np.float64)

    def measure(self):
        return json.loads(run([self.mlopt, "bench", self.plan, "--engine", "cuda", "--batch", str(self.batch), "--seconds",
                               str(self.seconds), "-o", "json"]))


TORCH = r"""
import sys, time, json
sys.path.insert(0, sys.argv[1])
import torch, nets
torch._inductor.config.conv_1x1_as_mm = True
net = nets.NETS[sys.argv[2]]().half()
batch, seconds = int(sys.argv[3]), float(sys.argv[4])
module = nets.torch_module(net).cuda()
x = torch.from_numpy(net.sample(batch)).cuda()
if x.dim() == 4:
    module, x = module.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
with torch.inference_mode():
    begin = time.time()
    compiled = torch.compile(module, mode="max-autotune")  # CUDA graphs are part of it
    for _ in range(5):
        compiled(x)
    torch.cuda.synchronize()
    print(json.dumps({"compile_seconds": time.time() - begin, "torch": torch.__version__}), flush=True)
    for line in sys.stdin:
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        answer = {}
        for name, calls in (("one_us", 1), ("many_us", 16)):  # 16 behind each other hide what Python takes where the GPU takes longer
            us, end = [], time.time() + seconds / 2
            for _ in range(20):
                compiled(x)
            while time.time() < end or len(us) < 10:
                a.record()
                for _ in range(calls):
                    compiled(x)
                b.record(); b.synchronize()
                us.append(1000 * a.elapsed_time(b) / calls)
            answer[name] = sorted(us)[len(us) // 2]
        print(json.dumps(answer), flush=True)
"""


class Theirs:
    def __init__(self, options, name, batch):
        here = os.path.dirname(os.path.abspath(__file__))
        self.process = subprocess.Popen([sys.executable, "-c", TORCH, here, name, str(batch), str(options.seconds)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.compile_seconds = self.read()["compile_seconds"]

    def read(self):
        line = self.process.stdout.readline()
        while line and not line.startswith("{"):
            line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("torch.compile ended without an answer")
        return json.loads(line)

    def measure(self):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return self.read()

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()


def reference(name, samples):
    """float64, on the GPU's or the box's PyTorch; without one there is nothing to compare with."""
    import torch
    module = nets.torch_module(nets.NETS[name]()).double()
    x = torch.from_numpy(samples)
    with torch.inference_mode():
        if torch.cuda.is_available():
            return module.cuda()(x.cuda() if x.dtype == torch.int64 else x.double().cuda()).cpu().numpy()
        return module(x if x.dtype == torch.int64 else x.double()).numpy()


def check(options, name, precision):
    """{"error" | "cosine", "ok"} of a batch of 2."""
    net = nets.NETS[name]()
    if precision == "fp16":
        net.half()
    samples = net.sample(2, seed=3)
    data = os.path.join(options.work, "check.npz")
    np.savez(data, **{net.input: samples})
    got, want = Ours(options, name, 2, precision).outputs(data, options.work), reference(name, samples)
    got = got.reshape(want.shape)
    if not np.isfinite(got).all():
        return {"ok": False, "error": "not finite"}
    cosine = float((got * want).sum() / (np.linalg.norm(got) * np.linalg.norm(want)))
    error = float(np.abs(got - want).max() / np.abs(want).max())
    ok = cosine >= QUANTIZED_COSINE if precision in QUANTIZED else error <= (FP16_ERROR if precision == "fp16" else FP32_ERROR)
    return {"ok": ok, "error": error, "cosine": cosine}


def median(values):
    values = sorted(values)
    n = len(values)
    return values[n // 2] if n % 2 else (values[n // 2 - 1] + values[n // 2]) / 2


def measure(options, name, batch, precision):
    ours, theirs = Ours(options, name, batch, precision), None
    row = {"model": name, "batch": batch, "precision": precision, "compile_seconds": ours.compile_seconds, "ours_us": [], "torch_us": []}
    try:
        if precision == "fp16" and options.peer:
            theirs = Theirs(options, name, batch)
            row["torch_compile_seconds"] = theirs.compile_seconds
        for i in range(ROUNDS):  # A B, B A, …
            for side in ("ours", "theirs") if i % 2 == 0 else ("theirs", "ours"):
                if side == "ours":
                    last = ours.measure()
                    row["ours_us"].append(last["replay"]["p50_us"]["value"])
                elif theirs:
                    answer = theirs.measure()
                    row["torch_us"].append(min(answer.values()))
                    row.setdefault("torch_one_us", []).append(answer["one_us"])
    finally:
        if theirs:
            theirs.close()
    row["us"] = median(row["ours_us"])
    row["throughput"] = batch / row["us"] * 1e6
    row["p99_us"], row["percent_of_floor"] = last["replay"]["p99_us"]["value"], last.get("percent_of_floor")
    row["watched"], row["upload_us"] = last.get("watched"), last.get("upload", {}).get("p50_us", {}).get("value")
    row["floor"] = last.get("floor", {}).get("floor_us")
    if row["torch_us"]:
        pairs = [t / o for o, t in zip(row["ours_us"], row["torch_us"])]
        row["ratio"], row["ratio_low"], row["ratio_high"] = median(pairs), min(pairs), max(pairs)
    target = TARGETS.get((precision, batch))
    row["target"], row["meets"] = target, row.get("ratio", 0) >= target if target and row["torch_us"] else None
    return row


def markdown(results):
    lines = ["| model | batch | precision | ours | p99 | samples/s | torch.compile | times faster (least, most of %d rounds) | of the floor |" % ROUNDS,
             "|---|---|---|---|---|---|---|---|---|"]
    for r in results["rows"]:
        ratio = "%.2f (%.2f, %.2f)" % (r["ratio"], r["ratio_low"], r["ratio_high"]) if r.get("ratio") else "-"
        lines.append("| %s | %d | %s | %.1f µs | %.1f µs | %.0f | %s | %s | %s |" % (
            r["model"], r["batch"], r["precision"], r["us"], r["p99_us"], r["throughput"],
            "%.1f µs" % median(r["torch_us"]) if r["torch_us"] else "-", ratio,
            "%.0f%%" % r["percent_of_floor"] if r.get("percent_of_floor") else "-"))
    lines.append("")
    for c in results["checks"]:
        lines.append("- %s %s against float64: %s" % (c["model"], c["precision"], "failed: " + c["failed"] if c.get("failed") else
                     "error %s of the largest output, cosine %.5f%s" % (c["error"], c.get("cosine", 0), "" if c["ok"] else " **too far**")))
    for left in results["left_out"]:
        lines.append("- left out: " + left)
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mlopt", required=True)
    parser.add_argument("--work", required=True)
    parser.add_argument("--out", required=True, help="folder of results.json and results.md; rows that are there are kept")
    parser.add_argument("--target", required=True)
    parser.add_argument("--until", type=float, default=0, help="seconds since 1970: no row begins later than a minute before")
    parser.add_argument("--models", default="resnet50,mobilenet_v2,bert_base")
    parser.add_argument("--precisions", default="fp16,f32,int8,fp8", help="fp8: BERT alone, whose products can be")
    parser.add_argument("--batches", default="1,32,128")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each side in each round")
    parser.add_argument("--no-peer", dest="peer", action="store_false", help="no torch.compile")
    parser.add_argument("--tune", type=float, default=0, help="seconds of tuning before each row; 0: heuristics")
    options = parser.parse_args()
    os.makedirs(options.work, exist_ok=True)
    os.makedirs(options.out, exist_ok=True)
    path = os.path.join(options.out, "results.json")
    results = {"rows": [], "checks": [], "left_out": []}
    if os.path.exists(path):
        with open(path) as f:
            results = json.load(f)
    results["left_out"] = []
    models, precisions = options.models.split(","), options.precisions.split(",")
    batches = [int(b) for b in options.batches.split(",")]
    failed = False

    def save():
        with open(path, "w") as f:
            json.dump(results, f, indent=1)
        with open(os.path.join(options.out, "results.md"), "w") as f:
            f.write(markdown(results))

    late = lambda: options.until and time.time() > options.until - 60
    for precision in precisions:
        for name in models:
            if precision == "fp8" and name != "bert_base":
                continue
            known = [c for c in results["checks"] if (c["model"], c["precision"]) == (name, precision) and c.get("ok")]
            if known:
                continue
            results["checks"] = [c for c in results["checks"] if (c["model"], c["precision"]) != (name, precision)]
            if late():
                results["left_out"].append("%s %s against float64: no time" % (name, precision))
                continue
            row = {"model": name, "precision": precision}
            try:
                row.update(check(options, name, precision))
            except Exception as problem:  # what went wrong is the result
                row.update({"ok": False, "failed": str(problem)})
            failed = failed or not row["ok"]
            results["checks"].append(row)
            print("check %s %s: %s" % (name, precision, row), flush=True)
            save()
    for precision in precisions:
        for name, batch in ORDER:
            if name not in models or batch not in batches or (precision == "fp8" and name != "bert_base"):
                continue
            if any((r["model"], r["batch"], r["precision"]) == (name, batch, precision) for r in results["rows"]):
                continue
            if late():
                results["left_out"].append("%s batch %d %s: no time" % (name, batch, precision))
                continue
            try:
                row = measure(options, name, batch, precision)
                results["rows"].append(row)
                print("time %s batch %d %s: %.1f us, ratio %s" % (name, batch, precision, row["us"], row.get("ratio")), flush=True)
            except Exception as problem:
                results["left_out"].append("%s batch %d %s: %s" % (name, batch, precision, problem))
                failed = True
            save()
    save()
    print(markdown(results))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
