"""The benchmark's models, as exporters write them: random but sane weights of a fixed seed, symbolic batch.

The convolutional ones have batch normalisation with the statistics of a few samples, folded into the convolutions as exporters do in
evaluation mode. Without it a random net amplifies each rounding from layer to layer, and int8 engines that all compute the same could
not be told from ones that err.
"""
import math
import os
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Net:
    def __init__(self, name, seed):
        self.name, self.rng, self.count = name, np.random.default_rng(seed), 0
        self.nodes, self.constants, self.inputs, self.samples = [], [], [], {}
        self.normalised = {}  # output of a convolution: the scale of its batch normalisation

    def fresh(self, stem):
        self.count += 1
        return "%s_%d" % (stem, self.count)

    def input(self, name, dtype, dims, sample):
        self.inputs.append(helper.make_tensor_value_info(name, dtype, ["batch"] + dims))
        self.samples[name] = sample
        return name

    def constant(self, array, stem="w"):
        name = self.fresh(stem)
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def normal(self, *dims, scale):
        return self.constant(self.rng.standard_normal(dims, dtype=np.float32) * np.float32(scale))

    def op(self, kind, *inputs, **attributes):
        name = self.fresh(kind)
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    def conv(self, x, ic, oc, k=1, stride=1, groups=1, norm=1.0):
        """norm: the scale of the batch normalisation that follows; None: there is none."""
        fan = ic // groups * k * k
        w = self.normal(oc, ic // groups, k, k, scale=math.sqrt(1 / fan))
        b = self.normal(oc, scale=0.05)
        pad = (k - 1) // 2
        y = self.op("Conv", x, w, b, kernel_shape=[k, k], strides=[stride, stride], pads=[pad] * 4, group=groups)
        if norm:
            self.normalised[y] = norm
        return y

    def linear(self, x, n_in, n_out, gain=1.0):
        y = self.op("MatMul", x, self.normal(n_in, n_out, scale=math.sqrt(gain / n_in)))
        return self.op("Add", y, self.normal(n_out, scale=0.02))

    def classify(self, x, features):
        x = self.op("Flatten", self.op("GlobalAveragePool", x), axis=1)
        w, b = self.normal(1000, features, scale=math.sqrt(1 / features)), self.normal(1000, scale=0.02)
        return self.op("Gemm", x, w, b, transB=1)

    def model(self, output, dims):
        self.nodes[-1].output[0] = "output"
        assert self.nodes[-1].name == output
        info = helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch"] + dims)
        graph = helper.make_graph(self.nodes, self.name, self.inputs, [info], self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], producer_name="mlopt-bench")
        model.ir_version = 8
        if self.normalised:
            normalise(self, model)
        return model


def normalise(net, model, count=4):
    """Folds batch normalisation into the convolutions in net.normalised. Its statistics are those of `count` samples, taken in one run
    of a model that normalises by them."""
    import onnxruntime

    trained = onnx.ModelProto()
    trained.CopyFrom(model)
    graph, nodes = trained.graph, []
    epsilon = "epsilon"
    graph.initializer.append(numpy_helper.from_array(np.float32(1e-5), epsilon))
    scales, wanted = {}, []
    for node in graph.node:
        nodes.append(node)
        y = node.output[0]
        if y not in net.normalised:
            continue
        channels = next(i.dims[0] for i in graph.initializer if i.name == node.input[1])
        draw = lambda mean, deviation: (mean + deviation * net.rng.standard_normal(channels, dtype=np.float32)).astype(np.float32)
        scales[y] = (net.normalised[y] * draw(1, 0.1), net.normalised[y] * draw(0.2, 0.2))
        for kind, array in zip(("scale", "shift"), scales[y]):
            graph.initializer.append(numpy_helper.from_array(array.reshape(1, -1, 1, 1), y + kind))
        node.output[0] = y + "raw"
        for op, ins, out in (
            ("ReduceMean", ("raw",), "mean"), ("Sub", ("raw", "mean"), "centred"), ("Mul", ("centred", "centred"), "square"),
            ("ReduceMean", ("square",), "variance"), ("Add", ("variance", None), "safe"), ("Sqrt", ("safe",), "deviation"),
            ("Div", ("centred", "deviation"), "unit"), ("Mul", ("unit", "scale"), "scaled"), ("Add", ("scaled", "shift"), ""),
        ):
            attributes = {"axes": [0, 2, 3], "keepdims": 1} if op == "ReduceMean" else {}
            nodes.append(helper.make_node(op, [epsilon if i is None else y + i for i in ins], [y + out], **attributes))
        wanted += [y + "mean", y + "deviation"]
    del graph.node[:], graph.output[:]
    graph.node.extend(nodes)
    graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in wanted)
    session = onnxruntime.InferenceSession(trained.SerializeToString(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(3)
    found = dict(zip(wanted, session.run(wanted, {k: sample(count, rng) for k, sample in net.samples.items()})))
    constants = {i.name: i for i in model.graph.initializer}
    for node in model.graph.node:
        y = node.output[0]
        if y in scales:
            weights, bias = (constants[i] for i in node.input[1:3])
            factor = scales[y][0] / found[y + "deviation"].ravel()
            w = numpy_helper.to_array(weights) * factor.reshape(-1, 1, 1, 1)
            b = (numpy_helper.to_array(bias) - found[y + "mean"].ravel()) * factor + scales[y][1]
            weights.CopyFrom(numpy_helper.from_array(w.astype(np.float32), weights.name))
            bias.CopyFrom(numpy_helper.from_array(b.astype(np.float32), bias.name))


def image(net, size=224):
    """Smooth-ish noise of unit variance, as normalised pictures have."""

    def sample(count, rng):
        coarse = rng.standard_normal((count, 3, size // 8, size // 8), dtype=np.float32)
        fine = rng.standard_normal((count, 3, size, size), dtype=np.float32)
        return (0.8 * np.kron(coarse, np.ones((1, 1, 8, 8), np.float32)) + 0.6 * fine).astype(np.float32)

    return net.input("image", TensorProto.FLOAT, [3, size, size], sample)


def resnet50():
    net = Net("resnet50", 50)
    x = net.op("Relu", net.conv(image(net), 3, 64, 7, 2))
    x = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    ic = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            s = stride if block == 0 else 1
            skip = x if block else net.conv(x, ic, width * 4, 1, s)
            y = net.op("Relu", net.conv(x, ic, width))
            y = net.op("Relu", net.conv(y, width, width, 3, s))
            x = net.op("Relu", net.op("Add", net.conv(y, width, width * 4, norm=0.5), skip))
            ic = width * 4
    return net, net.model(net.classify(x, ic), [1000])


def mobilenetv2():
    net = Net("mobilenetv2", 2)
    low, high = net.constant(np.float32(0), "low"), net.constant(np.float32(6), "high")

    def relu6(x):
        return net.op("Clip", x, low, high)

    x, ic = relu6(net.conv(image(net), 3, 32, 3, 2)), 32
    for t, oc, blocks, stride in (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ):
        for block in range(blocks):
            s, width = (stride if block == 0 else 1), ic * t
            y = relu6(net.conv(x, ic, width)) if t > 1 else x
            y = relu6(net.conv(y, width, width, 3, s, groups=width))
            y = net.conv(y, width, oc, norm=0.5 if s == 1 and ic == oc else 1.0)
            x, ic = (net.op("Add", x, y) if s == 1 and ic == oc else y), oc
    x = relu6(net.conv(x, ic, 1280))
    return net, net.model(net.classify(x, 1280), [1000])


def efficientnet():
    """EfficientNet-B0's blocks: inverted residuals with squeeze-and-excitation and swish."""
    net = Net("efficientnet", 7)

    def swish(x):
        return net.op("Mul", x, net.op("Sigmoid", x))

    x, ic = swish(net.conv(image(net), 3, 32, 3, 2)), 32
    for t, oc, blocks, stride, k in (
        (1, 16, 1, 1, 3),
        (6, 24, 2, 2, 3),
        (6, 40, 2, 2, 5),
        (6, 80, 3, 2, 3),
        (6, 112, 3, 1, 5),
        (6, 192, 4, 2, 5),
        (6, 320, 1, 1, 3),
    ):
        for block in range(blocks):
            s, width = (stride if block == 0 else 1), ic * t
            y = swish(net.conv(x, ic, width)) if t > 1 else x
            y = swish(net.conv(y, width, width, k, s, groups=width))
            squeezed = max(1, ic // 4)
            g = swish(net.conv(net.op("GlobalAveragePool", y), width, squeezed, norm=None))
            g = net.op("Sigmoid", net.conv(g, squeezed, width, norm=None))
            y = net.conv(net.op("Mul", y, g), width, oc, norm=0.5 if s == 1 and ic == oc else 1.0)
            x, ic = (net.op("Add", x, y) if s == 1 and ic == oc else y), oc
    x = swish(net.conv(x, ic, 1280))
    return net, net.model(net.classify(x, 1280), [1000])


def bert(layers=12, hidden=768, heads=12, length=128, words=30522):
    net = Net("bert", 12)
    head = hidden // heads

    def ids(count, rng):
        return rng.integers(0, words, (count, length), dtype=np.int64)

    def mask(count, rng):
        full = rng.integers(length // 2, length + 1, count)
        return (np.arange(length)[None, :] < full[:, None]).astype(np.int64)

    tokens = net.input("input_ids", TensorProto.INT64, [length], ids)
    attend = net.input("attention_mask", TensorProto.INT64, [length], mask)

    def norm(x):
        scale = net.constant(np.float32(1) + np.float32(0.1) * net.rng.standard_normal(hidden, dtype=np.float32))
        return net.op("LayerNormalization", x, scale, net.normal(hidden, scale=0.05), axis=-1, epsilon=1e-12)

    one, half = net.constant(np.float32(1), "one"), net.constant(np.float32(0.5), "half")
    root2 = net.constant(np.float32(math.sqrt(2)), "root2")
    split = net.constant(np.array([0, 0, heads, head], np.int64), "split")
    join = net.constant(np.array([0, 0, hidden], np.int64), "join")

    def gelu(x):
        erf = net.op("Erf", net.op("Div", x, root2))
        return net.op("Mul", net.op("Mul", x, net.op("Add", erf, one)), half)

    m = net.op("Unsqueeze", attend, net.constant(np.array([1], np.int64), "axes"))
    m = net.op("Unsqueeze", m, net.constant(np.array([2], np.int64), "axes"))
    m = net.op("Sub", one, net.op("Cast", m, to=TensorProto.FLOAT))
    m = net.op("Mul", m, net.constant(np.float32(-10000), "minus"))
    x = net.op("Gather", net.normal(words, hidden, scale=0.5), tokens)
    x = norm(net.op("Add", x, net.normal(length, hidden, scale=0.2)))
    for _ in range(layers):
        q, k, v = (net.op("Reshape", net.linear(x, hidden, hidden), split) for _ in range(3))
        q = net.op("Transpose", q, perm=[0, 2, 1, 3])
        k = net.op("Transpose", k, perm=[0, 2, 3, 1])
        v = net.op("Transpose", v, perm=[0, 2, 1, 3])
        s = net.op("Div", net.op("MatMul", q, k), net.constant(np.float32(math.sqrt(head)), "root"))
        p = net.op("Softmax", net.op("Add", s, m), axis=-1)
        y = net.op("Transpose", net.op("MatMul", p, v), perm=[0, 2, 1, 3])
        x = norm(net.op("Add", net.linear(net.op("Reshape", y, join), hidden, hidden), x))
        y = net.linear(gelu(net.linear(x, hidden, 4 * hidden)), 4 * hidden, hidden)
        x = norm(net.op("Add", y, x))
    return net, net.model(x, [length, hidden])


MODELS = {"resnet50": resnet50, "mobilenetv2": mobilenetv2, "efficientnet": efficientnet, "bert": bert}


def build(name, folder, calibration=8):
    """Writes NAME.onnx, NAME-calib.npz and NAME-test.npz (other samples) unless they are there."""
    path = os.path.join(folder, name + ".onnx")
    if os.path.exists(path):
        return path
    net, model = MODELS[name]()
    for part, count, seed in (("calib", calibration, 1), ("test", 4, 2)):
        rng = np.random.default_rng(seed)
        arrays = {k: sample(count, rng) for k, sample in net.samples.items()}
        np.savez(os.path.join(folder, "%s-%s.npz" % (name, part)), **arrays)
    onnx.save(model, path + ".part")
    os.replace(path + ".part", path)
    return path


def adopt(text, name, folder, calibration=8):
    """A model of one's own, "PATH[,DIM=SIZE…]", under a name in the folder: all dimensions but a first open one get sizes; samples
    are noise, smooth for pictures."""
    source, *sizes = text.split(",")
    sizes = dict(s.split("=") for s in sizes)
    path = os.path.join(folder, name + ".onnx")
    if os.path.exists(path) and os.path.getmtime(path) >= os.path.getmtime(source):
        return path
    model = onnx.load(source)
    for value in [*model.graph.input, *model.graph.output]:
        for d in value.type.tensor_type.shape.dim:
            if d.dim_param in sizes:
                d.dim_value = int(sizes[d.dim_param])
    constants = {i.name for i in model.graph.initializer}
    inputs = [i for i in model.graph.input if i.name not in constants]
    model.ir_version = max(model.ir_version, 8)
    del model.graph.input[:]  # a weight that a caller may replace is no constant to any runtime
    model.graph.input.extend(inputs)
    for part, count, seed in (("calib", calibration, 1), ("test", 4, 2)):
        rng, arrays = np.random.default_rng(seed), {}
        for value in model.graph.input:
            dims = [d.dim_value or 1 for d in value.type.tensor_type.shape.dim]
            shape = [count * dims[0], *dims[1:]]
            if value.type.tensor_type.elem_type != TensorProto.FLOAT:
                arrays[value.name] = rng.integers(0, 2, shape).astype(helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))
            elif len(shape) == 4 and shape[2] % 4 == 0 and shape[3] % 4 == 0:
                coarse = rng.standard_normal((*shape[:2], shape[2] // 4, shape[3] // 4), dtype=np.float32)
                arrays[value.name] = 0.8 * np.kron(coarse, np.ones((1, 1, 4, 4), np.float32)) + 0.6 * rng.standard_normal(shape, dtype=np.float32)
            else:
                arrays[value.name] = rng.standard_normal(shape, dtype=np.float32)
        np.savez(os.path.join(folder, "%s-%s.npz" % (name, part)), **arrays)
    onnx.save(model, path + ".part")
    os.replace(path + ".part", path)
    return path


if __name__ == "__main__":
    for which in sys.argv[2:] or MODELS:
        print(build(which, sys.argv[1]))
