"""int8 models as the peers' own tools make them, so that each runtime is measured on the int8 it runs best.

ONNX Runtime's quantizer works on the float model with the same calibration samples that `mlopt quantize` gets.
"""
import os
import sys

import numpy as np
import onnx
import onnx.version_converter


class Samples:
    """The calibration reader of onnxruntime.quantization: one sample a call."""

    def __init__(self, path, limit, names=None):
        """`names`: of the model's inputs; other arrays are left out. A single input takes the first array."""
        with np.load(path) as arrays:
            if names and len(names) == 1:
                self.arrays = {names[0]: arrays[arrays.files[0]]}
            else:
                self.arrays = {k: arrays[k] for k in arrays.files if not names or k in names}
        self.count, self.at = min(limit, len(next(iter(self.arrays.values())))), 0

    def get_next(self):
        if self.at == self.count:
            return None
        self.at += 1
        return {k: a[self.at - 1 : self.at] for k, a in self.arrays.items()}

    def __len__(self):
        return self.count

    def set_range(self, start_index, end_index):
        self.at, self.count = start_index, end_index


def input_names(path):
    graph = onnx.load(path, load_external_data=False).graph
    return [i.name for i in graph.input if i.name not in {t.name for t in graph.initializer}]


def _prepared(path, out):
    from onnxruntime.quantization.shape_inference import quant_pre_process

    model = onnx.load(path)
    old = max(o.version for o in model.opset_import if o.domain in ("", "ai.onnx")) < 13  # scales per channel need 13
    if old:
        model = onnx.version_converter.convert_version(model, 17)
    # what old exporters list as inputs too, the quantizer would want samples of
    constants = {t.name for t in model.graph.initializer}
    listed = [i for i in model.graph.input if i.name in constants]
    for i in listed:
        model.graph.input.remove(i)
    if old or listed:
        model.ir_version = max(model.ir_version, 8)
        onnx.save(model, out + ".raised")
        path = out + ".raised"
    quant_pre_process(path, out, skip_symbolic_shape=True)
    if path.endswith(".raised"):
        os.remove(path)
    return out


def _static(path, data, out, limit, symmetric=False):
    from onnxruntime import quantization as q

    kind = q.QuantType.QInt8 if symmetric else q.QuantType.QUInt8
    q.quantize_static(
        path, out, Samples(data, limit), quant_format=q.QuantFormat.QDQ, per_channel=True, activation_type=kind,
        weight_type=q.QuantType.QInt8, extra_options={"ActivationSymmetric": symmetric},
    )


def _dynamic(path, data, out, limit):
    from onnxruntime import quantization as q

    options = {"DefaultTensorType": onnx.TensorProto.FLOAT}  # behind ONNX Runtime's own ops shape inference knows no types
    q.quantize_dynamic(path, out, per_channel=True, weight_type=q.QuantType.QInt8, extra_options=options)


def _fused(path, out):
    """Attention, LayerNormalization and GELU fused by ONNX Runtime's optimizer for transformers."""
    from onnxruntime.transformers import optimizer

    fused = optimizer.optimize_model(path, model_type="bert", num_heads=0, hidden_size=0, opt_level=0)
    if not any(n.op_type == "Attention" for n in fused.model.graph.node):
        raise ValueError("no attention found")
    fused.save_model_to_file(out)


def _fused_dynamic(path, data, out, limit):
    _fused(path, out + ".fused")
    _dynamic(out + ".fused", data, out, limit)
    os.remove(out + ".fused")


RECIPES = {"static": _static, "dynamic": _dynamic, "fused-dynamic": _fused_dynamic}


def _is_transformer(path):
    return any(n.op_type == "Softmax" for n in onnx.load(path, load_external_data=False).graph.node)


def _made(out, make):
    """Whether the file is there, made now if it was not tried before."""
    if not os.path.exists(out) and not os.path.exists(out + ".failed"):
        try:
            make(out + ".part")
            os.replace(out + ".part", out)
        except Exception as e:  # a tool that refuses a model is a peer without that model
            print("note: %s: %s" % (os.path.basename(out), str(e).split("\n")[0][:200]), file=sys.stderr)
            with open(out + ".failed", "w") as f:
                f.write(str(e))
    return os.path.exists(out)


def float_candidates(path, stem):
    """{"mlopt": the model itself, "fused": …}: what ONNX Runtime's own tools make of it."""
    found = {"mlopt": path}
    out = stem + "-ort-fused.onnx"
    if _is_transformer(path) and _made(out, lambda part: _fused(path, part)):
        found["fused"] = out
    return found


def int8_candidates(path, data, stem, limit=4):
    """{"static": path, …}: what ONNX Runtime's quantizer makes of the model; made once."""
    found, prepared = {}, stem + "-prepared.onnx"

    def source(recipe):
        if recipe == "fused-dynamic":
            return path
        return prepared if os.path.exists(prepared) else _prepared(path, prepared)

    for name, make in RECIPES.items():
        out = "%s-ort-%s.onnx" % (stem, name)
        if (name == "static" or _is_transformer(path)) and _made(out, lambda part: make(source(name), data, part, limit)):
            found[name] = out
    if os.path.exists(prepared):
        os.remove(prepared)
    return found
