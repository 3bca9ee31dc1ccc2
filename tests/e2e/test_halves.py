#!/usr/bin/env python3
"""What `to-float16` makes of models of several opsets is valid ONNX (the checker's full check, which knows what types an op has at an
opset), and nothing stays in float32 that has a half form there.

    MLOPT=build-dev/mlopt [MLOPT_PYTHON=VENV/bin/python] python3 tests/e2e/test_halves.py

Debian's python3-onnx knows opsets to 17, and so no result in bfloat16, which are of opset 22 at least; a Python with a newer onnx from
PyPI, for developers, checks these as well.
"""
import os
import subprocess
import sys
import tempfile

python = os.environ.get("MLOPT_PYTHON")
if python and not os.environ.get("MLOPT_CHECKED"):
    os.execve(python, [python, *sys.argv], dict(os.environ, MLOPT_CHECKED="1"))
try:
    import onnx
    from onnx import TensorProto as T
    from onnx import helper as h
except ImportError:
    print("skipped: python3-onnx is not installed")
    sys.exit(77)

NEWEST = onnx.defs.onnx_opset_version()
NEVER = 1000
TYPES = {"float16": (T.FLOAT16, 13), "bfloat16": (T.BFLOAT16, 22)}
# op, inputs besides x (name, type, numbers), attributes, outputs besides the first, and the opsets it is in each type from on
EVERY, INT64, BOOL = (13, 22), T.INT64, T.BOOL
OPS = [(op, [], {}, [], EVERY) for op in ("Abs", "Atan", "Elu", "Exp", "GlobalAveragePool", "HardSigmoid", "Relu", "Round", "Selu", "Sin",
                                          "Softmax", "Softplus", "Tan", "ThresholdedRelu")]
OPS += [
    ("AveragePool", [], {"kernel_shape": [2, 2]}, [], EVERY),
    ("Conv", [("w", T.FLOAT, [2, 3, 1, 1])], {}, [], EVERY),
    ("Det", [], {}, [], EVERY),
    ("MaxPool", [], {"kernel_shape": [2, 2]}, [], EVERY),
    ("Celu", [], {}, [], (NEVER, NEVER)),
    ("Compress", [("chosen", BOOL, [2])], {"axis": 0}, [], (13, 28)),
    ("Einsum", [], {"equation": "abcd->abdc"}, [], (13, 28)),
    ("ReverseSequence", [("lengths", INT64, [3])], {}, [], (13, 28)),
    ("Shrink", [], {}, [], (13, NEVER)),
    ("TopK", [("k", INT64, [1])], {}, [INT64], (13, 24)),
    ("Unique", [], {}, [], (13, 28)),
]


def model(opset):
    """Each op alone behind the input, with an output of its own; a CastLike of another type where there is one."""
    nodes, outputs, constants = [], [], {}
    for op, more, attributes, others, _ in OPS:
        for name, dtype, dims in more:
            count = 1
            for dim in dims:
                count *= dim
            constants[name] = h.make_tensor(name, dtype, dims, [1] * count)
        names = [op + "_y"] + [f"{op}_{i}" for i in range(len(others))]
        nodes.append(h.make_node(op, ["x"] + [name for name, _, _ in more], names, name=op, **attributes))
        outputs += [h.make_tensor_value_info(n, t, None) for n, t in zip(names, [T.FLOAT, *others])]
    inputs = [h.make_tensor_value_info("x", T.FLOAT, [2, 3, 4, 4])]
    if opset >= 15:
        inputs.append(h.make_tensor_value_info("b", T.BFLOAT16, [2]))
        nodes.append(h.make_node("CastLike", ["b", "x"], ["CastLike_y"], name="CastLike"))
        outputs.append(h.make_tensor_value_info("CastLike_y", T.FLOAT, None))
    graph = h.make_graph(nodes, "halves", inputs, outputs, list(constants.values()))
    made = h.make_model(graph, opset_imports=[h.make_opsetid("", opset)], ir_version=8 if opset < 22 else 10)
    made = onnx.shape_inference.infer_shapes(made)  # states the outputs' shapes, but for old packages that of Compress
    for output in made.graph.output:
        if not output.type.tensor_type.HasField("shape"):
            output.CopyFrom(h.make_tensor_value_info(output.name, T.FLOAT, [None] * 4))
    onnx.checker.check_model(made, full_check=True)
    return made


def read_types(made):
    """By node, the element type of what it reads first."""
    graph = onnx.shape_inference.infer_shapes(made, check_type=True).graph
    types = {v.name: v.type.tensor_type.elem_type for v in [*graph.input, *graph.value_info, *graph.output]}
    return {n.name: types[n.input[0]] for n in graph.node}


def check(folder, opset, kind):
    dtype, raised = TYPES[kind]
    path, recipe, out = (os.path.join(folder, name) for name in ("m.onnx", "r.yaml", "h.onnx"))
    onnx.save(model(opset), path)
    with open(recipe, "w", encoding="utf-8") as file:
        file.write(f"name: halves\ntarget: any\nsteps:\n  - to-float16: {{type: {kind}}}\n")
    subprocess.run([os.environ.get("MLOPT", "mlopt"), "quantize", path, "--recipe", recipe, "--out", out, "-q"], check=True,
                   stdout=subprocess.DEVNULL)
    made = onnx.load(out)
    stated, faults = made.opset_import[0].version, []
    if stated != max(opset, raised):
        faults.append(f"its opset is {stated}")
    try:
        onnx.checker.check_model(made, full_check=True)
    except Exception as error:  # the package's own classes differ by version
        faults.append(str(error).strip())
    types = read_types(made)
    for op, _, _, _, since in OPS:
        wanted = dtype if stated >= since[kind == "bfloat16"] else T.FLOAT
        if types[op] != wanted:
            faults.append(f"{op} is in {T.DataType.Name(types[op])}")
    print(f"{kind:9} opset {opset} -> {stated}: {'; '.join(faults) or 'ok'}", flush=True)
    return not faults


def main():
    good = True
    with tempfile.TemporaryDirectory() as folder:
        for opset in (13, 15, 17, 22, 23, 24, 27, 28):
            for kind, (_, raised) in TYPES.items():
                if max(opset, raised) <= NEWEST:
                    good = check(folder, opset, kind) and good
    if NEWEST < TYPES["bfloat16"][1]:
        print(f"left out: bfloat16, of which onnx {onnx.__version__} knows too little (MLOPT_PYTHON may name a Python with a newer one)")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
