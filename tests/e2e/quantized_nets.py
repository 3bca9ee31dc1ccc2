"""Small nets of the kinds that users quantize, for the tests that run variants in other runtimes; and what those tests share."""
import os
import subprocess

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

MLOPT = os.environ.get("MLOPT", "mlopt")
SAMPLES = 48
RECIPE = "name: check\ntarget: any\ndata: {calibrate: a/b}\nsteps:\n  - optimize: {}\n  - %s: {%s}\n"


class Net:
    """A graph under construction; names of values are those of their nodes."""

    def __init__(self, seed):
        self.random, self.nodes, self.weights, self.count = np.random.default_rng(seed), [], [], 0

    def add(self, op, *inputs, **attributes):
        self.count += 1
        self.nodes.append(h.make_node(op, list(inputs), [f"v{self.count}"], name=f"{op}_{self.count}", **attributes))
        return f"v{self.count}"

    def weight(self, *dims, scale=1.0):
        self.count += 1
        self.weights.append(numpy_helper.from_array((self.random.standard_normal(dims) * scale).astype(np.float32), f"w{self.count}"))
        return f"w{self.count}"

    def ints(self, *numbers):
        self.count += 1
        self.weights.append(numpy_helper.from_array(np.array(numbers, np.int64), f"w{self.count}"))
        return f"w{self.count}"

    def floats(self, *numbers, shape=None):
        self.count += 1
        array = np.array(numbers, np.float32)
        self.weights.append(numpy_helper.from_array(array if shape is None else array.reshape(shape), f"w{self.count}"))
        return f"w{self.count}"

    def split(self, x, parts, **attributes):
        self.count += 1
        outputs = [f"v{self.count}_{i}" for i in range(parts)]
        self.nodes.append(h.make_node("Split", [x], outputs, name=f"Split_{self.count}", **attributes))
        return outputs

    def upsample(self, x):
        return self.add("Resize", x, "", self.floats(1, 1, 2, 2), mode="linear")

    def conv(self, x, of, to, kernel=3, stride=1, group=1):
        fan = of // group * kernel * kernel
        return self.add("Conv", x, self.weight(to, of // group, kernel, kernel, scale=fan**-0.5), self.weight(to, scale=0.1), group=group,
                        pads=[kernel // 2] * 4, strides=[stride] * 2, kernel_shape=[kernel] * 2)

    def gemm(self, x, of, to):
        return self.add("Gemm", x, self.weight(of, to, scale=of**-0.5), self.weight(to, scale=0.1))

    def matmul(self, x, of, to):
        return self.add("Add", self.add("MatMul", x, self.weight(of, to, scale=of**-0.5)), self.weight(to, scale=0.1))

    def model(self, y, shape, classes):
        graph = h.make_graph(self.nodes, "net", [h.make_tensor_value_info("x", T.FLOAT, ["batch", *shape])],
                             [h.make_tensor_value_info(y, T.FLOAT, ["batch", *classes])], self.weights)
        model = h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(model, full_check=True)
        return model


def residual():
    n = Net(1)
    a = n.add("Relu", n.conv("x", 3, 16))
    b = n.add("Relu", n.add("Add", n.conv(n.add("Relu", n.conv(a, 16, 16)), 16, 16), a))
    b = n.add("MaxPool", b, kernel_shape=[2, 2], strides=[2, 2])
    c = n.add("Concat", n.conv(b, 16, 8, 1), n.add("LeakyRelu", n.conv(b, 16, 16)), axis=1)
    c = n.add("AveragePool", n.conv(c, 24, 24), kernel_shape=[2, 2], strides=[2, 2])
    y = n.add("Flatten", n.add("GlobalAveragePool", n.add("Relu", n.conv(c, 24, 32))))
    return n.model(n.gemm(y, 32, 10), (3, 16, 16), [10])


def swish():
    """As in EfficientNet: x * sigmoid(x), depthwise, squeeze and excitation."""
    n = Net(2)

    def silu(x):
        return n.add("Mul", x, n.add("Sigmoid", x))

    a = silu(n.conv("x", 3, 16))
    b = silu(n.conv(a, 16, 16, group=16))
    gate = n.add("Sigmoid", n.conv(silu(n.conv(n.add("GlobalAveragePool", b), 16, 8, 1)), 8, 16, 1))
    b = n.add("Add", n.conv(n.add("Mul", b, gate), 16, 16, 1), a)
    y = n.add("Flatten", n.add("GlobalAveragePool", silu(n.conv(b, 16, 32, 1))))
    return n.model(n.gemm(y, 32, 10), (3, 16, 16), [10])


def transformer():
    n, width, heads = Net(3), 32, 4
    x = n.matmul("x", 16, width)
    y = n.add("LayerNormalization", x, n.weight(width), axis=-1)

    def split(v):
        v = n.add("Reshape", v, n.ints(0, 0, heads, width // heads))
        return v

    q = n.add("Transpose", split(n.matmul(y, width, width)), perm=[0, 2, 1, 3])
    k = n.add("Transpose", split(n.matmul(y, width, width)), perm=[0, 2, 3, 1])
    v = n.add("Transpose", split(n.matmul(y, width, width)), perm=[0, 2, 1, 3])
    a = n.add("MatMul", n.add("Softmax", n.add("MatMul", q, k), axis=-1), v)
    a = n.add("Reshape", n.add("Transpose", a, perm=[0, 2, 1, 3]), n.ints(0, 0, width))
    x = n.add("Add", x, n.matmul(a, width, width))
    y = n.add("LayerNormalization", x, n.weight(width), axis=-1)
    x = n.add("Add", x, n.matmul(n.add("Relu", n.matmul(y, width, 64)), 64, width))
    return n.model(n.gemm(n.add("Flatten", n.add("ReduceMean", x, axes=[1])), width, 10), (8, 16), [10])


def moving():
    """Ops that only move values, upsampling, hard activations and a transposed convolution."""
    n = Net(4)
    a = n.add("HardSwish", n.conv("x", 3, 16))
    a = n.add("Resize", n.conv(a, 16, 16), "", n.floats(1, 1, 2, 2), mode="nearest")
    left, right = n.split(n.conv(a, 16, 16), 2, axis=1)
    b = n.conv(n.add("Concat", n.add("DepthToSpace", n.conv(left, 8, 32), blocksize=2), n.add("Transpose", n.upsample(right), perm=[0, 1, 3, 2]),
                     axis=1), 16, 8)
    b = n.add("ConvTranspose", n.add("Clip", b, n.floats(0, shape=()), n.floats(6, shape=())), n.weight(8, 4, 2, 2, scale=0.3), strides=[2, 2])
    b = n.add("Slice", n.conv(b, 4, 8), n.ints(0, 0), n.ints(16, 16), n.ints(2, 3))
    y = n.add("Squeeze", n.add("GlobalAveragePool", n.conv(n.add("Pad", b, n.ints(0, 0, 1, 1, 0, 0, 1, 1)), 8, 16)), n.ints(2, 3))
    return n.model(n.gemm(y, 16, 10), (3, 8, 8), [10])


def sequence():
    """Convolutions over one dimension, and weights of a MatMul with a batch of their own."""
    n = Net(5)
    a = n.add("Relu", n.add("Conv", "x", n.weight(16, 8, 3, scale=0.2), n.weight(16, scale=0.1), pads=[1, 1], kernel_shape=[3]))
    a = n.add("Conv", a, n.weight(4, 16, 1, scale=0.25), kernel_shape=[1])
    a = n.add("Reshape", a, n.ints(0, 4, 1, 12))
    a = n.add("MatMul", a, n.weight(4, 12, 6, scale=0.3))
    y = n.add("Add", n.add("MatMul", n.add("Flatten", a), n.weight(24, 10, scale=0.2)), n.weight(1, 10, scale=0.1))
    return n.model(y, (8, 12), [10])


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")


def made(folder, step, build, options):
    """(the float model's path, the variant's, its inputs, what mlopt's reference engine makes of them)"""
    at = lambda name: os.path.join(folder, name)  # noqa: E731
    model = build()
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim][1:]
    x = np.random.default_rng(7).standard_normal((SAMPLES, *shape)).astype(np.float32)
    onnx.save(model, at("m.onnx"))
    np.savez(at("x.npz"), x=x)
    with open(at("r.yaml"), "w") as file:
        file.write(RECIPE % (step, options))
    run(MLOPT, "quantize", at("m.onnx"), "--data", at("x.npz"), "--recipe", at("r.yaml"), "--out", at("q.onnx"))
    run(MLOPT, "run", at("q.onnx"), "--data", at("x.npz"), "--out", at("y.npz"), "--engine", "reference", "--batch", str(SAMPLES), "-q")
    with np.load(at("y.npz")) as arrays:
        return at("m.onnx"), at("q.onnx"), x, arrays[arrays.files[0]].astype(np.float32)


def cosine(a, b):
    return float((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()))


def agreement(a, b):
    return float((a.argmax(-1) == b.argmax(-1)).mean())
