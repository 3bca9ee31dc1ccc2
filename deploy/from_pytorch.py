#!/usr/bin/env python3
"""Exports a PyTorch module to ONNX with a dynamic batch, checks that mlopt computes the same, and pushes it.

    from_pytorch.py net.py:Net --weights net.pt --input 'image=float32[1,28,28]' --out net.onnx
    from_pytorch.py net.py:make --input 'ids=int64[16]<1000' --out net.onnx --push text/tagger

SOURCE is FILE.py:NAME, where NAME is a module, a class of modules, or a function that makes one without arguments.
Inputs are given without the batch; '<N' bounds integers. The module is put in eval mode. docs/from-pytorch.md tells more.
"""
import argparse
import importlib.util
import inspect
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

try:
    import numpy as np
    import torch
except ImportError as error:
    sys.exit(f"error: {error}\nhint: install PyTorch, for example Debian's python3-torch")

INPUT = re.compile(r"^(?P<name>[A-Za-z_][\w.]*)=(?P<dtype>\w+)\[(?P<dims>[\d, ]*)\](?:<(?P<high>\d+))?$")
SAMPLES, SEED = 7, 20240229


def fail(message, hint=None):
    sys.exit(f"error: {message}" + (f"\nhint: {hint}" if hint else ""))


def load_module(source, weights):
    path, _, name = source.rpartition(":")
    if not path or not os.path.exists(path):
        fail(f"'{source}' is not FILE.py:NAME of a file that exists")
    sys.path.insert(0, str(pathlib.Path(path).resolve().parent))
    spec = importlib.util.spec_from_file_location(pathlib.Path(path).stem, path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    module = getattr(loaded, name, None)
    if module is None:
        fail(f"{path} has no '{name}'", "names in it: " + ", ".join(n for n in vars(loaded) if n[0] != "_"))
    if not isinstance(module, torch.nn.Module):
        module = module()
    if not isinstance(module, torch.nn.Module):
        fail(f"{source} gives a {type(module).__name__}, not a torch.nn.Module")
    if weights:
        state = torch.load(weights, map_location="cpu")
        module.load_state_dict(state.get("state_dict", state) if isinstance(state, dict) else state.state_dict())
    return module.eval()


class Input:
    def __init__(self, text):
        match = INPUT.match(text)
        if not match:
            fail(f"--input '{text}' is not NAME=DTYPE[DIMS], such as image=float32[3,224,224] or ids=int64[16]<1000")
        self.name = match["name"]
        self.dtype = np.dtype(match["dtype"])
        self.dims = tuple(int(d) for d in match["dims"].split(",") if d.strip())
        self.high = int(match["high"] or 2)

    def samples(self, random, count):
        shape = (count,) + self.dims
        if self.dtype.kind == "f":
            return random.standard_normal(shape).astype(self.dtype)
        return random.integers(0, self.high, shape).astype(self.dtype)


def flatten(result):
    if isinstance(result, dict):
        return [t for value in result.values() for t in flatten(value)]
    if isinstance(result, (list, tuple)):
        return [t for value in result for t in flatten(value)]
    return [] if result is None else [result]


def run_torch(module, arrays):
    with torch.no_grad():
        return [t.numpy() for t in flatten(module(*(torch.from_numpy(a) for a in arrays)))]


def export(module, inputs, arrays, outputs, args):
    options = dict(input_names=[i.name for i in inputs], output_names=outputs, opset_version=args.opset)
    takes = inspect.signature(torch.onnx.export).parameters
    if args.dynamo and "dynamic_shapes" not in takes:
        fail(f"PyTorch {torch.__version__} has no dynamo exporter", "leave out --dynamo, or use PyTorch 2.5 or newer")
    if args.dynamo:
        options.update(dynamo=True, dynamic_shapes=tuple({0: "batch"} for _ in inputs), external_data=False)
    else:
        options.update(dynamic_axes={name: {0: "batch"} for name in [i.name for i in inputs] + outputs}, do_constant_folding=True)
        if "dynamo" in takes:
            options["dynamo"] = False  # the exporter that takes dynamic_axes
    example = tuple(torch.from_numpy(a[:2]) for a in arrays)  # two samples: a batch of one may be taken for a constant
    torch.onnx.export(module, example, args.out, **options)


def run_mlopt(program, model, inputs, arrays, engine, batch, folder):
    data, out = os.path.join(folder, "in.npz"), os.path.join(folder, f"out{batch}.npz")
    np.savez(data, **{i.name: a for i, a in zip(inputs, arrays)})
    command = [program, "run", model, "--data", data, "--out", out, "--engine", engine, "--batch", str(batch), "-q"]
    command += [f"--map={i.name}={i.name}" for i in inputs]
    if subprocess.run(command, stdout=subprocess.DEVNULL).returncode:
        fail("mlopt could not run the exported model (see above)", f"mlopt inspect {model} names what it does not support")
    with np.load(out) as arrays:
        return {name: arrays[name] for name in arrays.files}


def compare(wanted, got, names, tolerance, batch):
    for name, expected in zip(names, wanted):
        actual = got.get(name)
        if actual is None or actual.shape != expected.shape:
            fail(f"output '{name}': PyTorch gives shape {expected.shape}, mlopt {getattr(actual, 'shape', 'nothing')}")
        scale = float(np.abs(expected.astype(np.float64)).max(initial=0)) or 1.0
        worst = float(np.abs(actual.astype(np.float64) - expected.astype(np.float64)).max(initial=0)) / scale
        print(f"batch {batch}: output '{name}' {expected.dtype}{list(expected.shape)}: "
              f"largest difference {worst:.2e} of the largest value")
        if not worst <= tolerance:
            fail(f"output '{name}' differs by {worst:.3e}, more than {tolerance:g}",
                 "the module may be in training mode inside, or depend on Python control flow that tracing fixed")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", metavar="FILE.py:NAME")
    parser.add_argument("--input", action="append", required=True, metavar="NAME=DTYPE[DIMS]", dest="inputs")
    parser.add_argument("--output", action="append", metavar="NAME", dest="outputs", help="names of the outputs")
    parser.add_argument("--weights", metavar="FILE", help="a state dict, as torch.save wrote it")
    parser.add_argument("--out", required=True, metavar="M.onnx")
    parser.add_argument("--opset", type=int, help="17 unless given, or 18 with --dynamo")
    parser.add_argument("--dynamo", action="store_true", help="export by torch.export, which newer PyTorch has")
    parser.add_argument("--tolerance", type=float, default=1e-4, help="relative to the largest value of an output")
    parser.add_argument("--engine", default="cpu", help="of mlopt, for the check")
    parser.add_argument("--push", metavar="PROJECT/MODEL", help="upload it when it is the same")
    args = parser.parse_args()

    program = os.environ.get("MLOPT") or shutil.which("mlopt")
    if not program:
        fail("there is no mlopt program", "put it on PATH, or say where it is by MLOPT=…")
    args.opset = args.opset or (18 if args.dynamo else 17)
    module, inputs = load_module(args.source, args.weights), [Input(text) for text in args.inputs]
    random = np.random.default_rng(SEED)
    arrays = [i.samples(random, SAMPLES) for i in inputs]
    wanted = run_torch(module, arrays)
    outputs = args.outputs or (["output"] if len(wanted) == 1 else [f"output{i}" for i in range(len(wanted))])
    if len(outputs) != len(wanted):
        fail(f"{len(outputs)} names for {len(wanted)} outputs")
    for name, array in zip(outputs, wanted):
        if array.ndim == 0 or array.shape[0] != SAMPLES:
            fail(f"output '{name}' has shape {array.shape} for {SAMPLES} samples: its first dim is no batch")

    with tempfile.TemporaryDirectory() as folder:
        final, args.out = args.out, os.path.join(folder, "model.onnx")
        export(module, inputs, arrays, outputs, args)
        for batch in (1, 3):  # 7 samples: three times three leave a smaller last batch too
            compare(wanted, run_mlopt(program, args.out, inputs, arrays, args.engine, batch, folder), outputs,
                    args.tolerance, batch)
        shutil.copyfile(args.out, final + ".part")
        os.replace(final + ".part", final)
    print(f"{final}: the same as PyTorch {torch.__version__.split('+')[0]}, opset {args.opset}, dynamic batch")
    if args.push:
        sys.exit(subprocess.run([program, "push", args.push, final, "--meta", f"exported-by=pytorch {torch.__version__}"])
                 .returncode)


if __name__ == "__main__":
    main()
