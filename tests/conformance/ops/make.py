#!/usr/bin/env python3
"""Writes the models of this folder: ops that Debian's ONNX tests (of ONNX 1.12) do not know, and those of com.microsoft, with
what ONNX Runtime computes (or, where it has no kernel, ONNX's own reference).

    python3 make.py OUT_DIR [NAME…]         needs onnx and onnxruntime from PyPI, in a virtual environment

NAME.npz holds the inputs by their names, the outputs as "output:NAME", and "tolerance" where it is not the usual one.
"""
import pathlib
import sys

import numpy as np
import onnx
import onnx.reference
import onnxruntime as ort
from onnx import TensorProto as T
from onnx import helper as h

MS = "com.microsoft"
R = np.random.default_rng(5)
ort.set_default_logger_severity(3)


def f(*dims, scale=1.0):
    return (R.standard_normal(dims) * scale).astype(np.float32)


def u8(*dims):
    return R.integers(0, 256, dims).astype(np.uint8)


def i8(*dims):
    return R.integers(-128, 128, dims).astype(np.int8)


def s(v):
    return np.array(v, np.float32)


def z(v, dtype=np.uint8):
    return np.array(v, dtype)


class Case:
    """One node: `feeds` are inputs of the graph, `weights` initializers; `order` names its operands, "" an omitted one."""
    def __init__(self, op, feeds, order, weights=None, outputs=("y",), domain=MS, opset=17, tolerance=None, casts=None, extra=None,
                 **attributes):
        attributes.update(extra or {})
        self.__dict__.update(locals())




CASES = {
    # com.microsoft
    "fast_gelu": Case("FastGelu", {"x": f(2, 3, 8)}, "xb", {"b": f(8)}),
    "bias_gelu": Case("BiasGelu", {"x": f(2, 3, 8)}, "xb", {"b": f(8)}),
    "ms_gelu": Case("Gelu", {"x": f(2, 9)}, "x"),
    "quick_gelu": Case("QuickGelu", {"x": f(2, 9)}, "x", alpha=1.5),
    "fused_matmul": Case("FusedMatMul", {"a": f(2, 5, 3), "b": f(2, 4, 5)}, "ab", transA=1, transB=1, alpha=0.5),
    "fused_gemm": Case("FusedGemm", {"a": f(3, 4)}, "abc", {"b": f(5, 4), "c": f(5)}, transB=1, alpha=0.5, beta=2.0, activation="LeakyRelu",
                       activation_alpha=0.1),
    "fused_conv": Case("FusedConv", {"x": f(2, 3, 6, 6)}, "xwb", {"w": f(4, 3, 3, 3), "b": f(4)}, pads=[1, 1, 1, 1], strides=[2, 2],
                       activation="Relu"),
    "fused_conv_sum": Case("FusedConv", {"x": f(1, 2, 5, 5), "z": f(1, 3, 3, 3)}, "xwbz", {"w": f(3, 2, 3, 3), "b": f(3)}, activation="Relu"),
    "skip_layer_norm": Case("SkipLayerNormalization", {"x": f(2, 3, 8), "k": f(2, 3, 8)}, "xkgbc", {"g": f(8), "b": f(8), "c": f(8)},
                            epsilon=1e-5),
    "embed_layer_norm": Case("EmbedLayerNormalization",
                             {"i": R.integers(0, 9, (2, 4)).astype(np.int32), "t": R.integers(0, 2, (2, 4)).astype(np.int32),
                              "m": np.array([[1, 1, 1, 0], [1, 1, 1, 1]], np.int32)}, "itwpsgbm",
                             {"w": f(9, 8), "p": f(6, 8), "s": f(2, 8), "g": f(8), "b": f(8)}, outputs=("y", "mask")),
    "ms_attention": Case("Attention", {"x": f(2, 4, 8), "m": np.array([[1, 1, 1, 0], [1, 1, 1, 1]], np.int32)}, "xwbm",
                         {"w": f(8, 24, scale=0.5), "b": f(24)}, num_heads=2),
    "ms_attention_causal": Case("Attention", {"x": f(2, 4, 8)}, "xwb", {"w": f(8, 24, scale=0.5), "b": f(24)}, num_heads=2, unidirectional=1),
    "qattention": Case("QAttention", {"x": u8(2, 4, 8)}, ["x", "w", "b", "xs", "ws", "", "xz", "wz"],
                       {"w": i8(8, 24), "b": f(24), "xs": s(0.02), "ws": s(0.01), "xz": z(120), "wz": z(0, np.int8)}, num_heads=2),
    "matmul_nbits": Case("MatMulNBits", {"a": f(3, 32)}, "abs", {"b": u8(5, 2, 8), "s": f(10, scale=0.1)}, K=32, N=5, bits=4, block_size=16),
    "matmul_nbits_zero": Case("MatMulNBits", {"a": f(3, 32)}, "absz", {"b": u8(5, 2, 8), "s": f(10, scale=0.1), "z": u8(5)}, K=32, N=5, bits=4,
                              block_size=16),
    "dynamic_quantize_matmul": Case("DynamicQuantizeMatMul", {"a": f(3, 8)}, "abszc",
                                    {"b": u8(8, 5), "s": s(0.02), "z": z(128), "c": f(5)}, tolerance=1e-3),
    "matmul_integer_to_float": Case("MatMulIntegerToFloat", {"a": u8(3, 8)}, ["a", "b", "as", "bs", "az", "bz", "c"],
                                    {"b": i8(8, 5), "as": s(0.02), "bs": f(5) ** 2, "az": z(100), "bz": np.zeros(5, np.int8), "c": f(5)}),
    "qgemm": Case("QGemm", {"a": u8(3, 8)}, ["a", "as", "az", "b", "bs", "bz", "c", "ys", "yz"],
                  {"as": s(0.02), "az": z(100), "b": i8(5, 8), "bs": f(5) ** 2 * s(0.02) + s(0.01), "bz": np.zeros(5, np.int8),
                   "c": R.integers(-500, 500, 5).astype(np.int32), "ys": s(0.1), "yz": z(128)}, transB=1, tolerance=4e-3),
    "qgemm_float": Case("QGemm", {"a": u8(3, 8)}, ["a", "as", "az", "b", "bs", "bz"],
                        {"as": s(0.02), "az": z(100), "b": i8(8, 5), "bs": s(0.03), "bz": z(0, np.int8)}),
    "qlinear_add": Case("QLinearAdd", {"a": u8(2, 3, 4), "b": u8(3, 1)}, ["a", "as", "az", "b", "bs", "bz", "ys", "yz"],
                        {"as": s(0.02), "az": z(100), "bs": s(0.05), "bz": z(30), "ys": s(0.06), "yz": z(110)}, tolerance=4e-3),
    "qlinear_mul": Case("QLinearMul", {"a": i8(2, 3, 4), "b": i8(3, 1)}, ["a", "as", "az", "b", "bs", "bz", "ys", "yz"],
                        {"as": s(0.02), "az": z(10, np.int8), "bs": s(0.05), "bz": z(3, np.int8), "ys": s(0.06), "yz": z(-5, np.int8)}, tolerance=1e-2),
    "qlinear_concat": Case("QLinearConcat", {"a": u8(2, 3), "b": u8(2, 4)}, ["ys", "yz", "a", "as", "az", "b", "bs", "bz"],
                           {"ys": s(0.05), "yz": z(110), "as": s(0.02), "az": z(100), "bs": s(0.05), "bz": z(30)}, axis=1, tolerance=4e-3),
    "qlinear_leaky_relu": Case("QLinearLeakyRelu", {"a": u8(2, 9)}, ["a", "as", "az", "ys", "yz"],
                               {"as": s(0.02), "az": z(100), "ys": s(0.02), "yz": z(30)}, alpha=0.1, tolerance=4e-3),
    "qlinear_sigmoid": Case("QLinearSigmoid", {"a": u8(2, 9)}, ["a", "as", "az", "ys", "yz"],
                            {"as": s(0.04), "az": z(128), "ys": s(1 / 256), "yz": z(0)}, tolerance=4e-3),
    "qlinear_softmax": Case("QLinearSoftmax", {"a": u8(2, 9)}, ["a", "as", "az", "ys", "yz"],
                            {"as": s(0.04), "az": z(128), "ys": s(1 / 256), "yz": z(0)}, axis=-1, extra={"opset": 13}, tolerance=1e-2),
    "qlinear_gap": Case("QLinearGlobalAveragePool", {"a": u8(2, 3, 4, 4)}, ["a", "as", "az", "ys", "yz"],
                        {"as": s(0.02), "az": z(100), "ys": s(0.01), "yz": z(90)}, tolerance=4e-3),
    # ai.onnx above opset 17
    "gelu_erf": Case("Gelu", {"x": f(2, 9)}, "x", domain="", opset=20),
    "gelu_tanh": Case("Gelu", {"x": f(2, 9)}, "x", domain="", opset=20, approximate="tanh"),
    "group_norm_18": Case("GroupNormalization", {"x": f(2, 6, 3)}, "xsb", {"s": f(3), "b": f(3)}, domain="", opset=18, num_groups=3),
    "group_norm_21": Case("GroupNormalization", {"x": f(2, 6, 3)}, "xsb", {"s": f(6), "b": f(6)}, domain="", opset=21, num_groups=3),
    "rms_norm": Case("RMSNormalization", {"x": f(2, 3, 8)}, "xs", {"s": f(8)}, domain="", opset=23, epsilon=1e-5),
    "rms_norm_axis": Case("RMSNormalization", {"x": f(2, 3, 4)}, "xs", {"s": f(3, 4)}, domain="", opset=23, axis=1),
    "layer_norm": Case("LayerNormalization", {"x": f(2, 3, 8)}, "xsb", {"s": f(8), "b": f(8)}, outputs=("y", "mean", "dev"), domain="", opset=17),
    "attention_gqa": Case("Attention", {"q": f(2, 4, 3, 8), "k": f(2, 2, 5, 8), "v": f(2, 2, 5, 6), "m": f(3, 5)}, "qkvm", domain="", opset=23),
    "attention_cache": Case("Attention", {"q": f(2, 3, 16), "k": f(2, 3, 16), "v": f(2, 3, 16), "o": f(2, 2, 4, 8), "p": f(2, 2, 4, 8)},
                            ["q", "k", "v", "", "o", "p"], outputs=("y", "ok", "ov"), domain="", opset=23, q_num_heads=2, kv_num_heads=2,
                            softcap=2.0),
    "rotary": Case("RotaryEmbedding", {"x": f(2, 2, 3, 8), "p": R.integers(0, 6, (2, 3)).astype(np.int64)}, "xcsp",
                   {"c": f(6, 4), "s": f(6, 4)}, domain="", opset=23),
    "rotary_interleaved": Case("RotaryEmbedding", {"x": f(2, 3, 16)}, "xcs", {"c": f(2, 3, 3), "s": f(2, 3, 3)}, domain="", opset=23, num_heads=2,
                               interleaved=1, rotary_embedding_dim=6),
    "swish": Case("Swish", {"x": f(2, 9)}, "x", domain="", opset=24, alpha=1.5),
    "mish": Case("Mish", {"x": f(2, 9, scale=3)}, "x", domain="", opset=18),
    "hard_swish": Case("HardSwish", {"x": f(2, 9, scale=3)}, "x", domain="", opset=14),
    "col2im": Case("Col2Im", {"x": f(2, 12, 9)}, "xab", {"a": np.array([4, 4], np.int64), "b": np.array([2, 2], np.int64)}, domain="", opset=18),
    "col2im_dilated": Case("Col2Im", {"x": f(1, 8, 16)}, "xab", {"a": np.array([5, 5], np.int64), "b": np.array([2, 2], np.int64)}, domain="",
                           opset=18, dilations=[2, 2], pads=[1, 1, 0, 0]),
    "dft_real_inverse": Case("DFT", {"x": f(2, 5, 3, 2)}, ["x", "", "a"], {"a": np.array(1, np.int64)}, domain="", opset=20, inverse=1, onesided=1),
    "dft_real_inverse_odd": Case("DFT", {"x": f(2, 4, 3, 2)}, ["x", "n", "a"], {"n": np.array(7, np.int64), "a": np.array(1, np.int64)}, domain="",
                                 opset=20, inverse=1, onesided=1),
    # types, step by step: into the type, through an op, and out again
    "bfloat16": Case("Mul", {"a": f(3, 4), "b": f(4)}, "ab", domain="", opset=19, casts=T.BFLOAT16),
    "float16": Case("MatMul", {"a": f(3, 4), "b": f(4, 2)}, "ab", domain="", opset=19, casts=T.FLOAT16, tolerance=2e-3),
    "float8_e4m3": Case("Identity", {"a": f(4, 8, scale=100)}, "a", domain="", opset=19, casts=T.FLOAT8E4M3FN),
    "float8_e5m2": Case("Identity", {"a": f(4, 8, scale=100)}, "a", domain="", opset=19, casts=T.FLOAT8E5M2),
    "float8_e4m3_fnuz": Case("Identity", {"a": f(4, 8, scale=100)}, "a", domain="", opset=19, casts=T.FLOAT8E4M3FNUZ),
    "int4": Case("Transpose", {"a": np.clip(np.rint(f(4, 8, scale=4)), -8, 7).astype(np.float32)}, "a", domain="", opset=21, casts=T.INT4),
    "uint4": Case("Reshape", {"a": np.clip(np.rint(f(3, 5, scale=4)) + 8, 0, 15).astype(np.float32)}, "as", {"s": np.array([5, 3], np.int64)},
                  domain="", opset=21, casts=T.UINT4),
    "int4_concat": Case("Concat", {"a": np.clip(np.rint(f(2, 3, scale=4)), -8, 7).astype(np.float32),
                                   "b": np.clip(np.rint(f(2, 4, scale=4)), -8, 7).astype(np.float32)}, "ab", domain="", opset=21, casts=T.INT4, axis=1),
    "uint4_slice": Case("Slice", {"a": np.clip(np.rint(f(3, 5, scale=4)) + 8, 0, 15).astype(np.float32)}, "abed",
                        {"b": np.array([1], np.int64), "e": np.array([4], np.int64), "d": np.array([1], np.int64)}, domain="", opset=21,
                        casts=T.UINT4),
    "int4_blocks": Case("DequantizeLinear", {"d": f(2, 8)}, ["w", "s"], {"w": ("int4", R.integers(-8, 8, (8, 4))), "s": f(4, 4, scale=0.1)},
                        domain="", opset=21, axis=0, block_size=2),
    "qlinear_average": Case("QLinearAveragePool", {"a": u8(2, 3, 5, 4)}, ["a", "as", "az", "ys", "yz"],
                            {"as": s(0.02), "az": z(100), "ys": s(0.01), "yz": z(90)}, kernel_shape=[3, 2], strides=[2, 1],
                            pads=[1, 0, 1, 1], tolerance=1e-2),
}


def cast_model(case):
    """float in -> Cast -> the node -> Cast -> float out."""
    low = [n for n in case.order if n in case.feeds]
    nodes = [h.make_node("Cast", [n], [n + "_low"], to=case.casts) for n in low]
    nodes.append(h.make_node(case.op, [n + "_low" if n in low else n for n in case.order], ["low"], **case.attributes))
    nodes.append(h.make_node("Cast", ["low"], ["y"], to=T.FLOAT))
    return nodes


def weight(name, value):
    if isinstance(value, tuple):
        return h.make_tensor(name, T.INT4, value[1].shape, value[1].ravel().tolist())
    return onnx.numpy_helper.from_array(value, name)


def model_of(case, shapes=None):
    nodes = cast_model(case) if case.casts else [h.make_node(case.op, list(case.order), list(case.outputs), domain=case.domain, **case.attributes)]
    if "d" in case.feeds and case.op == "DequantizeLinear":  # weights of four bits, multiplied with
        nodes[0].output[0] = "wide"
        nodes.append(h.make_node("MatMul", ["d", "wide"], ["y"]))
    inputs = [h.make_tensor_value_info(n, h.np_dtype_to_tensor_dtype(v.dtype), ["batch"] + list(v.shape[1:])) for n, v in case.feeds.items()]
    outputs = [h.make_tensor_value_info(n, *(shapes[n] if shapes else (0, None))) for n in case.outputs]
    if not shapes:
        outputs = [onnx.ValueInfoProto(name=n) for n in case.outputs]
    graph = h.make_graph(nodes, case.op, inputs, outputs, [weight(n, v) for n, v in (case.weights or {}).items()])
    opsets = [h.make_opsetid("", case.opset)] + ([h.make_opsetid(MS, 1)] if case.domain == MS else [])
    return h.make_model(graph, opset_imports=opsets, ir_version={23: 11, 24: 11}.get(case.opset, 10))


def main():
    out, names = pathlib.Path(sys.argv[1]), sys.argv[2:]
    out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name, case in CASES.items():
        if names and name not in names:
            continue
        model, by = model_of(case), "ONNX Runtime"
        for i in model.graph.input:  # a dim is only called batch where no other operand says otherwise
            if i.name in "bkvmopz" and len(case.feeds) > 1:
                i.type.tensor_type.shape.dim[0].dim_value = case.feeds[i.name].shape[0]
        try:
            try:
                results = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, case.feeds)
            except Exception as error:
                if case.domain == MS:
                    raise
                by = f"ONNX's reference ({str(error).splitlines()[0][:60]})"
                results = onnx.reference.ReferenceEvaluator(model).run(None, case.feeds)
        except Exception as error:
            print(f"{name}: {str(error)[:300]}")
            failed += 1
            continue
        shapes = {n: (h.np_dtype_to_tensor_dtype(r.dtype), None) for n, r in zip(case.outputs, results)}
        typed = model_of(case, shapes)
        for a, b in zip(typed.graph.input, model.graph.input):
            a.CopyFrom(b)
        (out / f"{name}.onnx").write_bytes(typed.SerializeToString())
        arrays = dict(case.feeds, **{"output:" + n: np.atleast_1d(r) for n, r in zip(case.outputs, results)})
        if case.tolerance:
            arrays["tolerance"] = np.array([case.tolerance], np.float32)
        np.savez_compressed(out / f"{name}.npz", **arrays)
        print(f"{name}: {case.op}, by {by}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
