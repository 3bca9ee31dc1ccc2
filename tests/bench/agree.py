"""Do the engines compute the same? Runs models on `cpu` with each set of kernels, on `reference` and on the peers, and compares
outputs, predictions and accuracy with those of `reference`. Development only: needs the peers.

    tests/bench/agree.py MODEL[,DIM=SIZE…] … [--data NPZ --normalize SPEC] [--int8] [--limit N]

Without --data the samples are noise. Exit status 1 when cpu decides otherwise than reference, or differs by more than the tolerance.
"""
import argparse
import os
import sys
import tempfile

import numpy as np

import measure
import models

ISAS = ("avx2", "avx512", "avx512-vnni", "avx512-fp16")
TOLERANCE = {"f32": 1e-4, "int8": 0.03}  # of the largest output: int8 may round a tie the other way


def outputs(model, engine, isa, o, data, out):
    os.environ["MLOPT_ISA"] = isa
    try:
        more = ["--normalize", o.normalize] if o.normalize else []
        measure.mlopt("run", model, "--data", data, "--engine", engine, "--limit", o.limit, "--out", out, *more)
    finally:
        del os.environ["MLOPT_ISA"]
    with np.load(out) as arrays:
        return [arrays[k].astype(np.float64) for k in sorted(arrays.files)]


def accuracy(out, labels):
    return float((out[0].argmax(-1).ravel() == labels[: len(out[0])]).mean())


def compare(name, model, precision, o, data, labels, folder):
    bad, out = 0, os.path.join(folder, "out.npz")
    want = outputs(model, "reference", ISAS[-1], o, data, out)
    said = "" if labels is None else ", accuracy %.4f" % accuracy(want, labels)
    print("%s %s: reference%s" % (name, precision, said))
    for engine, isa in [("cpu", i) for i in ISAS] + [(p, ISAS[-1]) for p in o.peers]:
        try:
            got = outputs(model, engine, isa, o, data, out)
        except RuntimeError as e:
            print("    %-22s %s" % (engine, e))
            bad += engine == "cpu"
            continue
        d, line = measure.deviation(got, want), ""
        wrong = d > TOLERANCE[precision]
        if labels is not None:
            other = int((got[0].argmax(-1) != want[0].argmax(-1)).sum())
            line = ", %d of %d decided otherwise, accuracy %.4f" % (other, len(want[0]), accuracy(got, labels))
            wrong |= precision == "f32" and other > 0
        wrong &= engine == "cpu"
        bad += wrong
        print("    %-22s differs by %.2g of the largest%s%s" % (engine + (" " + isa if engine == "cpu" else ""), d, line, "  WRONG" if wrong else ""))
    sys.stdout.flush()
    return bad


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", nargs="+")
    p.add_argument("--data")
    p.add_argument("--normalize")
    p.add_argument("--limit", type=int, default=4)
    p.add_argument("--int8", action="store_true", help="also what mlopt quantize makes of each model")
    p.add_argument("--peers", type=lambda t: [w for w in t.split(",") if w], default=["ort", "openvino"])
    o = p.parse_args()
    labels, bad = None, 0
    if o.data:
        with np.load(o.data) as arrays:
            labels = arrays["y"] if "y" in arrays.files else None
    with tempfile.TemporaryDirectory() as folder:
        for text in o.model:
            name = os.path.basename(text.split(",")[0])[:-5]
            model = models.adopt(text, name, folder)
            data = o.data or os.path.join(folder, name + "-test.npz")
            bad += compare(name, model, "f32", o, data, labels, folder)
            if o.int8:
                quantized = os.path.join(folder, name + "-int8.onnx")
                more = ["--normalize", o.normalize] if o.normalize else []
                calibration = o.data or os.path.join(folder, name + "-calib.npz")
                try:
                    measure.mlopt("quantize", model, "--data", calibration, "--recipe", "int8-cpu", "--limit", 64 if o.data else 4, "--out", quantized, *more)
                except RuntimeError as e:
                    print("%s int8: %s" % (name, e))
                    continue
                bad += compare(name, quantized, "int8", o, data, labels, folder)
    print("%d wrong" % bad)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
