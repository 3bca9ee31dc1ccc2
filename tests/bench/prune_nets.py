#!/usr/bin/env python3
"""Prunes nets and checks what comes out with other people's tools: ONNX's checker, the shapes at the boundary, and a run
in ONNX Runtime next to mlopt's own. For development: needs onnx and onnxruntime of PyPI, and is skipped (77) without.

    tests/bench/prune_nets.py --mlopt build-dev/mlopt [--remove 30%] [--schemes structured unstructured 2:4] --models MODEL.onnx…
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

try:
    import numpy as np
    import onnx
    import onnxruntime as ort
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)


def boundary(path):
    """Names, types and dims of inputs that are fed, and of outputs."""
    graph = onnx.load(path).graph
    weights = {i.name for i in graph.initializer}

    def of(values):
        rows = []
        for v in values:
            t = v.type.tensor_type
            rows.append((v.name, t.elem_type, [d.dim_value or d.dim_param for d in t.shape.dim]))
        return rows

    return of([i for i in graph.input if i.name not in weights]), of(graph.output)


def feeds(session, seed, sizes):
    rng = np.random.default_rng(seed)
    out = {}
    for i in session.get_inputs():
        dims = [d if isinstance(d, int) and d > 0 else sizes.get(d, 1) for d in i.shape]
        if "int" in i.type:
            out[i.name] = rng.integers(0, 2, dims).astype(np.int64 if "64" in i.type else np.int32)
        else:
            out[i.name] = rng.standard_normal(dims).astype(np.float32)
    return out


def what_went(report):
    if "sparsity" in report:
        sparsity = report["sparsity"]
        return f"{sparsity['sparsity']:.1%} of {len(sparsity['layers'])} layers' weights zero", len(sparsity["left"])
    pruning = report["pruning"]
    return f"{pruning['macs']['removed']:.1%} of multiply-adds, {len(pruning['groups'])} groups", len(pruning["left"])


def check(mlopt, model, scheme, remove, sizes):
    """Cells on what became of the model; raises where something does not hold."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "pruned.onnx"
        share = ["--remove", remove] if scheme == "structured" else []
        command = [mlopt, "prune", str(model), "--scheme", scheme, *share, "--out", str(out), "-q", "-o", "json"]
        graph = onnx.load(model).graph
        if {i.name for i in graph.input} & {i.name for i in graph.initializer}:  # weights that are listed as inputs
            command.append("--freeze-initializers")
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            return False, [" ".join(done.stderr.split())[:300]]
        went, left = what_went(json.loads(done.stdout)["steps"][0]["report"])
        onnx.checker.check_model(str(out), full_check=True)
        assert boundary(model) == boundary(out), "the boundary changed"
        session = ort.InferenceSession(str(out), providers=["CPUExecutionProvider"])
        data = feeds(session, 1, sizes)
        results = session.run(None, data)
        np.savez(pathlib.Path(folder) / "in.npz", **data)
        made = pathlib.Path(folder) / "made.npz"
        command = [mlopt, "run", str(out), "--data", str(pathlib.Path(folder) / "in.npz"), "--out", str(made), "-q"]
        subprocess.run(command, check=True, capture_output=True)
        with np.load(made) as ours:
            worst = max(
                float(np.abs(ours[o.name] - r).max() / (np.abs(r).max() + 1e-6))
                for o, r in zip(session.get_outputs(), results)
            )
        assert worst < 1e-3, f"outputs differ from ONNX Runtime's by {worst}"
        return True, [went, str(left), "yes", "yes", f"{worst:.1e}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mlopt", default="build-dev/mlopt")
    parser.add_argument("--remove", default="30%")
    parser.add_argument("--dim", action="append", default=[], help="NAME=N of an open dim (1)")
    parser.add_argument("--schemes", nargs="+", default=["structured", "unstructured", "2:4"])
    parser.add_argument("--models", nargs="+", required=True)
    args = parser.parse_args()
    sizes = {k: int(v) for k, v in (d.split("=") for d in args.dim)}
    good = True
    print("| net | scheme | gone | left alone | checker | shapes | off ONNX Runtime by |\n|---|---|---|---:|---|---|---:|")
    for model in args.models:
        for scheme in args.schemes:
            try:
                ok, cells = check(args.mlopt, model, scheme, args.remove, sizes)
            except Exception as wrong:  # whatever a tool says, the other nets are looked at
                ok, cells = False, [" ".join(str(getattr(wrong, "stderr", None) or wrong).split())[:300]]
            good = good and ok
            print("| " + " | ".join([pathlib.Path(model).stem, scheme, *([] if ok else ["FAILED"]), *cells]) + " |", flush=True)
    sys.exit(0 if good else 1)


main()
