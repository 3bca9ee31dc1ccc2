"""ResNet-50, MobileNetV2 and BERT-base (128 tokens) with random weights of a fixed seed: as ONNX files, written with numpy alone, and as
PyTorch modules that compute the same. A box with a GPU may have no onnx package."""
import struct
import sys

import numpy as np

FLOAT, INT64, FLOAT16 = 1, 7, 10
TYPES = {np.dtype(np.float32): FLOAT, np.dtype(np.float16): FLOAT16, np.dtype(np.int64): INT64}


# --- protobuf, as much of it as ONNX takes (onnx.proto) -------------------------------------------------------------------------
def varint(n):
    out = b""
    n &= (1 << 64) - 1
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def number(field, n):
    return varint(field << 3) + varint(n)


def text(field, value):
    value = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(value)) + value


def attribute(name, value):
    out = text(1, name)
    if isinstance(value, float):
        return out + varint(2 << 3 | 5) + struct.pack("<f", value) + number(20, 1)
    if isinstance(value, int):
        return out + number(3, value) + number(20, 2)
    return out + b"".join(number(8, v) for v in value) + number(20, 7)


def tensor(name, array):
    return (b"".join(number(1, d) for d in array.shape) + number(2, TYPES[array.dtype]) + text(8, name)
            + text(9, np.ascontiguousarray(array).tobytes()))


def value_info(name, kind, dims):
    shape = b"".join(text(1, text(2, d) if isinstance(d, str) else number(1, d)) for d in dims)
    return text(1, name) + text(2, text(1, number(1, kind) + text(2, shape)))


# --- a net: nodes, constants, one input, one output -----------------------------------------------------------------------------
class Net:
    def __init__(self, name, seed, input_name, input_type, input_dims):
        self.name, self.rng, self.count = name, np.random.default_rng(seed), 0
        self.nodes, self.constants = [], {}
        self.input, self.input_type, self.input_dims = input_name, input_type, input_dims

    def constant(self, array):
        self.count += 1
        name = "w%d" % self.count
        self.constants[name] = np.asarray(array)
        return name

    def normal(self, *dims, scale):
        return self.constant((self.rng.standard_normal(dims) * scale).astype(np.float32))

    def op(self, kind, *inputs, **attributes):
        self.count += 1
        name = "%s_%d" % (kind, self.count)
        self.nodes.append((kind, list(inputs), name, attributes))
        return name

    def conv(self, x, n_in, n_out, k, stride=1, groups=1, gain=2.0):
        pad = (k - 1) // 2
        w = self.normal(n_out, n_in // groups, k, k, scale=(gain / (n_in // groups * k * k)) ** 0.5)
        return self.op("Conv", x, w, self.normal(n_out, scale=0.05), kernel_shape=[k, k], strides=[stride, stride],
                       pads=[pad] * 4, group=groups)

    def linear(self, x, n_in, n_out):
        y = self.op("MatMul", x, self.normal(n_in, n_out, scale=n_in ** -0.5))
        return self.op("Add", y, self.normal(n_out, scale=0.02))

    def classify(self, x, features):
        x = self.op("Flatten", self.op("GlobalAveragePool", x), axis=1)
        return self.op("Gemm", x, self.normal(1000, features, scale=features ** -0.5), self.normal(1000, scale=0.02), transB=1)

    def half(self):
        """The constants as float16, and the input where it is float."""
        self.constants = {k: v.astype(np.float16) if v.dtype == np.float32 else v for k, v in self.constants.items()}
        self.input_type = FLOAT16 if self.input_type == FLOAT else self.input_type
        return self

    def onnx(self, batch="batch"):
        kind = FLOAT16 if any(v.dtype == np.float16 for v in self.constants.values()) else FLOAT
        graph = b""
        for op, inputs, output, attributes in self.nodes:
            node = b"".join(text(1, i) for i in inputs) + text(2, output) + text(3, output) + text(4, op)
            graph += text(1, node + b"".join(text(5, attribute(k, v)) for k, v in attributes.items()))
        graph += text(2, self.name) + b"".join(text(5, tensor(k, v)) for k, v in self.constants.items())
        graph += text(11, value_info(self.input, self.input_type, [batch] + self.input_dims))
        graph += text(12, value_info(self.nodes[-1][2], kind, [batch] + self.output_dims))
        return number(1, 8) + text(8, number(2, 17)) + text(2, "mlopt-gpu-test") + text(7, graph)

    def sample(self, batch, seed=1):
        rng = np.random.default_rng(seed)
        if self.input_type == INT64:
            return rng.integers(0, 30522, [batch] + self.input_dims)
        return rng.standard_normal([batch] + self.input_dims).astype(np.float16 if self.input_type == FLOAT16 else np.float32)


def resnet50():
    net = Net("resnet50", 50, "image", FLOAT, [3, 224, 224])
    x = net.op("Relu", net.conv("image", 3, 64, 7, 2))
    x = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    n = 64
    for stage, (count, width) in enumerate([(3, 64), (4, 128), (6, 256), (3, 512)]):
        for b in range(count):
            stride = 2 if stage and b == 0 else 1
            y = net.op("Relu", net.conv(x, n, width, 1))
            y = net.op("Relu", net.conv(y, width, width, 3, stride))
            y = net.conv(y, width, 4 * width, 1, gain=0.1)  # a residual branch that keeps sums small
            if b == 0:
                x = net.conv(x, n, 4 * width, 1, stride, gain=1.0)
            x, n = net.op("Relu", net.op("Add", y, x)), 4 * width
    net.classify(x, 2048)
    net.output_dims = [1000]
    return net


def mobilenet_v2():
    net = Net("mobilenet_v2", 2, "image", FLOAT, [3, 224, 224])
    low, high = net.constant(np.float32(0)), net.constant(np.float32(6))
    relu6 = lambda x: net.op("Clip", x, low, high)
    x, n = relu6(net.conv("image", 3, 32, 3, 2)), 32
    for t, c, count, s in [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]:
        for i in range(count):
            stride, wide = (s if i == 0 else 1), n * t
            y = relu6(net.conv(x, n, wide, 1)) if t > 1 else x
            y = relu6(net.conv(y, wide, wide, 3, stride, groups=wide))
            y = net.conv(y, wide, c, 1, gain=1.0)
            x, n = (net.op("Add", x, y) if stride == 1 and n == c else y), c
    net.classify(relu6(net.conv(x, 320, 1280, 1)), 1280)
    net.output_dims = [1000]
    return net


def bert_base(tokens=128, layers=12, hidden=768, heads=12):
    net = Net("bert_base", 12, "input_ids", INT64, [tokens])
    size = hidden // heads
    norm = lambda x: net.op("LayerNormalization", x, net.constant(np.ones(hidden, np.float32)),
                            net.constant(np.zeros(hidden, np.float32)), axis=-1, epsilon=1e-5)
    shape = net.constant(np.array([0, tokens, heads, size]))
    flat = net.constant(np.array([0, tokens, hidden]))
    scale, half, one = (net.constant(np.float32(v)) for v in (size ** -0.5, 0.5, 1))
    root = net.constant(np.float32(2 ** -0.5))
    x = net.op("Gather", net.normal(30522, hidden, scale=0.5), "input_ids", axis=0)
    x = norm(net.op("Add", x, net.normal(1, tokens, hidden, scale=0.5)))
    for _ in range(layers):
        q, k, v = (net.op("Reshape", net.linear(x, hidden, hidden), shape) for _ in range(3))
        q, v = (net.op("Transpose", t, perm=[0, 2, 1, 3]) for t in (q, v))
        scores = net.op("Mul", net.op("MatMul", q, net.op("Transpose", k, perm=[0, 2, 3, 1])), scale)
        y = net.op("MatMul", net.op("Softmax", scores, axis=-1), v)
        y = net.op("Reshape", net.op("Transpose", y, perm=[0, 2, 1, 3]), flat)
        x = norm(net.op("Add", net.linear(y, hidden, hidden), x))
        y = net.linear(x, hidden, 4 * hidden)
        y = net.op("Mul", net.op("Mul", y, half), net.op("Add", net.op("Erf", net.op("Mul", y, root)), one))
        x = norm(net.op("Add", net.linear(y, 4 * hidden, hidden), x))
    net.output_dims = [tokens, hidden]
    return net


NETS = {"resnet50": resnet50, "mobilenet_v2": mobilenet_v2, "bert_base": bert_base}


# --- the same in PyTorch --------------------------------------------------------------------------------------------------------
def fuse(nodes, constants):
    """What a PyTorch user would write for spelled-out attention and GELU: one call each. [(function name, inputs, output, attributes)]"""
    made, uses = {n[2]: n for n in nodes}, {}
    for n in nodes:
        for i in n[1]:
            uses[i] = uses.get(i, 0) + 1
    out, gone = [], set()
    for kind, inputs, name, attributes in nodes:
        soft = made.get(inputs[0]) if kind == "MatMul" else None
        if soft and soft[0] == "Softmax":  # softmax(q k^T scale) v
            mul = made[soft[1][0]]
            product = made[mul[1][0]]
            kt = made[product[1][1]]
            gone |= {soft[2], mul[2], product[2], kt[2]}
            out.append(("attention", [product[1][0], kt[1][0], inputs[1]], name, {"scale": float(constants[mul[1][1]])}))
        elif kind == "Mul" and len(inputs) == 2 and made.get(inputs[1], ("",))[0] == "Add" and \
                made.get(made[inputs[1]][1][0], ("",))[0] == "Erf":
            add, left = made[inputs[1]], made[inputs[0]]
            erf = made[add[1][0]]
            gone |= {add[2], left[2], erf[2], erf[1][0]}
            out.append(("gelu", [left[1][0]], name, {}))
        else:
            out.append((kind, inputs, name, attributes))
    return [n for n in out if n[2] not in gone]


def torch_module(net):
    import torch
    import torch.nn.functional as F

    functions = {
        "Conv": lambda a, x, w, b: F.conv2d(x, w, b, a["strides"], a["pads"][0], 1, a["group"]),
        "Relu": lambda a, x: F.relu(x),
        "Clip": lambda a, x, low, high: F.relu6(x),
        "MaxPool": lambda a, x: F.max_pool2d(x, 3, 2, 1),
        "GlobalAveragePool": lambda a, x: F.adaptive_avg_pool2d(x, 1),
        "Flatten": lambda a, x: torch.flatten(x, 1),
        "Gemm": lambda a, x, w, b: F.linear(x, w, b),
        "MatMul": lambda a, x, w: x @ w,
        "Add": lambda a, x, y: x + y,
        "Gather": lambda a, w, i: F.embedding(i, w),
        "LayerNormalization": lambda a, x, w, b: F.layer_norm(x, (x.shape[-1],), w, b, a["epsilon"]),
        "Reshape": lambda a, x, s: x.reshape([x.shape[0] if d == 0 else d for d in s]),
        "Transpose": lambda a, x: x.permute(a["perm"]),
        "gelu": lambda a, x: F.gelu(x),
        "attention": lambda a, q, k, v: F.scaled_dot_product_attention(q, k.transpose(1, 2), v, scale=a["scale"]),
    }
    nodes = fuse(net.nodes, net.constants)

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.shapes = {k: v.tolist() for k, v in net.constants.items() if v.dtype == np.int64}
            for k, v in net.constants.items():
                if v.dtype != np.int64:
                    self.register_buffer(k, torch.from_numpy(np.array(v)))

        def forward(self, x):
            values = dict(self.shapes)
            values[net.input] = x
            for kind, inputs, output, attributes in nodes:
                values[output] = functions[kind](attributes, *(values[i] if i in values else getattr(self, i) for i in inputs))
            return values[nodes[-1][2]]

    return Module().eval()


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in NETS:
        sys.exit("usage: nets.py %s FILE.onnx [fp16]" % "|".join(NETS))
    built = NETS[sys.argv[1]]()
    with open(sys.argv[2], "wb") as f:
        f.write((built.half() if sys.argv[3:] == ["fp16"] else built).onnx())
