#!/usr/bin/env python3
"""Runs models with ONNX Runtime and with mlopt's engines on the same seeded inputs, and compares every output.

    MLOPT=build-release/mlopt python3 against_ort.py [--dim NAME=N] [--tolerance 1e-4] MODEL.onnx…

Needs onnxruntime and numpy from PyPI in a virtual environment; a check for developers, not part of the suite. A difference is
relative to the largest value of the output. The exit code is the number of models that differ.
"""
import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import numpy as np
import onnxruntime as ort

ROWS, SEED = 3, 7
DTYPES = {"float": np.float32, "double": np.float64, "float16": np.float16, "int64": np.int64, "int32": np.int32, "uint8": np.uint8,
          "int8": np.int8, "bool": np.bool_}


def make(random, value, dims):
    shape = [d if isinstance(d, int) and d > 0 else dims.get(d, 2) for d in value.shape]
    dtype = DTYPES[re.match(r"tensor\((\w+)\)", value.type)[1]]
    if np.issubdtype(dtype, np.floating):
        return random.standard_normal(shape).astype(dtype)
    return random.integers(0, 2, shape).astype(dtype)


def run_mlopt(program, model, engine, rows, folder, dims):
    """rows: a list of {input: array}. Each is one run, because a model may fix its batch."""
    outputs = []
    for k, row in enumerate(rows):
        data, out = os.path.join(folder, "in.npz"), os.path.join(folder, "out.npz")
        np.savez(data, **row)
        batch = next(iter(row.values())).shape[0] if next(iter(row.values())).ndim else 1
        command = [program, "run", model, "--data", data, "--out", out, "--engine", engine, "--batch", str(batch), "-q"]
        command += [f"--map={n}={n}" for n in row]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr.strip())
        with np.load(out) as arrays:
            outputs.append({n: arrays[n] for n in arrays.files})
    return outputs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=N")
    parser.add_argument("--tolerance", type=float, default=1e-4)
    parser.add_argument("--engine", action="append", dest="engines")
    args = parser.parse_args()
    program = os.environ.get("MLOPT", "mlopt")
    dims = {n: int(v) for n, v in (d.split("=") for d in args.dim)}
    failed = 0
    for model in args.models:
        session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
        random = np.random.default_rng(SEED)
        rows = [{i.name: make(random, i, dims) for i in session.get_inputs()} for _ in range(ROWS)]
        names = [o.name for o in session.get_outputs()]
        wanted = [dict(zip(names, session.run(names, row))) for row in rows]
        with tempfile.TemporaryDirectory() as folder:
            for engine in args.engines or ["reference", "cpu"]:
                worst = 0.0
                try:
                    for got, want in zip(run_mlopt(program, model, engine, rows, folder, dims), wanted):
                        for name in names:
                            a, b = got[name].astype(np.float64), want[name].astype(np.float64)
                            if a.shape != b.shape:
                                raise RuntimeError(f"output '{name}' has shape {a.shape}, not {b.shape}")
                            worst = max(worst, np.abs(a - b).max(initial=0) / (np.abs(b).max(initial=0) or 1.0))
                    word = "ok" if worst <= args.tolerance else "DIFFERS"
                except RuntimeError as error:
                    word = f"FAILS: {error}"
                failed += word != "ok"
                print(f"{pathlib.Path(model).name:32} {engine:10} {worst:.2e}  {word}", flush=True)
    sys.exit(min(failed, 125))


if __name__ == "__main__":
    main()
