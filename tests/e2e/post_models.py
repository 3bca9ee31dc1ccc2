"""Postprocessing models for the tests: flip.onnx (y = -x), same.onnx (y = x), two.onnx (y = a + b, of a model with two outputs)."""
import onnx
from onnx import TensorProto, helper


def save(name, op, *inputs):
    value = lambda n: helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", "classes"])  # noqa: E731
    graph = helper.make_graph([helper.make_node(op, list(inputs), ["y"])], name, [value(i) for i in inputs], [value("y")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), name)


save("flip.onnx", "Neg", "scores")
save("same.onnx", "Identity", "x")
save("two.onnx", "Add", "a", "b")
