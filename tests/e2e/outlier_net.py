"""outlier_net.py IN.onnx OUT.onnx: the frozen MLP with the same outputs, but for what eight bits leave of them.

A branch beside the last hidden layer adds large values to eight units more, which the last layer multiplies by 0: the one range of that layer's
input is theirs, and the other units round to few levels. The sum of two branches keeps equalization from undoing it."""
import sys

import numpy as np
import onnx
from onnx import helper, numpy_helper

EXTRA, SIZE = 8, 20.0
model = onnx.load(sys.argv[1])
graph = model.graph
last_relu, last = [n for n in graph.node if n.op_type == "Relu"][-1], [n for n in graph.node if n.op_type == "Gemm"][-1]
before = next(n for n in graph.node if n.output[0] == last_relu.input[0])
flat = next(n for n in graph.node if n.op_type == "Flatten").output[0]


def weights(name):
    return next(t for t in graph.initializer if t.name == name)


def put(name, array):
    weights(name).CopyFrom(numpy_helper.from_array(array.astype(np.float32), name))


def wider(name, axis):
    old = numpy_helper.to_array(weights(name))
    pad = [(0, 0)] * old.ndim
    pad[axis] = (0, EXTRA)
    put(name, np.pad(old, pad))


units, inputs = numpy_helper.to_array(weights(before.input[1])).shape[0], numpy_helper.to_array(weights(graph.node[1].input[1])).shape[1]
wider(before.input[1], 0)
wider(before.input[2], 0)
wider(last.input[1], 1)
large = np.zeros((units + EXTRA, inputs), np.float32)
large[units:] = SIZE
graph.initializer.append(numpy_helper.from_array(large, "large.weight"))
branch = [helper.make_node("Gemm", [flat, "large.weight"], ["large"], name="large", transB=1),
          helper.make_node("Relu", ["large"], ["large_relu"], name="large_relu"),
          helper.make_node("Add", [last_relu.output[0], "large_relu"], ["sum"], name="sum")]
last.input[0], last.name = "sum", "head"
nodes = list(graph.node)
del graph.node[:]
graph.node.extend([n for n in nodes if n is not last] + branch + [last])
del graph.value_info[:]
onnx.checker.check_model(model)
onnx.save(model, sys.argv[2])
