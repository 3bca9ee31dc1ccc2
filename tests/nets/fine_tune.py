#!/usr/bin/env python3
"""Trains a pruned ONNX classifier further and writes the same graph with the weights that came of it.

    mlopt pull shop/cnn@1/pruned --out pulled
    tests/nets/fine_tune.py pulled/*.onnx tuned.onnx --epochs 2
    mlopt push shop/cnn tuned.onnx --derived-from cnn@1/pruned

The graph itself is what is trained: torch runs its nodes, its initializers are the parameters, and they go back under
their names, so that nothing else of the file changes. For plain nets (convolutions, products, pooling, elementwise
ops), on Fashion-MNIST, with Debian's python3-torch, python3-onnx and dataset-fashion-mnist. The last tenth of the
training images is kept out and tells how it goes; the test images are never read. Equal arguments on one machine and
one thread give the same file.
"""
import argparse
import gzip
import pathlib
import sys
import time

try:
    import numpy as np
    import onnx
    import torch
    import torch.nn.functional as F
    from onnx import numpy_helper
except ImportError as missing:
    print(f"skipped: {missing} (Debian's python3-torch and python3-onnx are needed)")
    sys.exit(77)

MEAN, STD = 0.2860, 0.3530


def fail(message, hint=None):
    sys.exit(f"error: {message}" + (f"\nhint: {hint}" if hint else ""))


# --- the ops: functions of (inputs, attributes) -------------------------------------------------------------------


def pads(x, a, fill):
    """Pads of ONNX, all at the begin and then all at the end, as torch wants them: the last axis first."""
    given = a.get("pads", [])
    half = len(given) // 2
    flat = [v for i in reversed(range(half)) for v in (given[i], given[half + i])]
    return F.pad(x, flat, value=fill) if any(flat) else x


def conv(i, a):
    if a.get("auto_pad", b"NOTSET") != b"NOTSET" or i[1].dim() != 4:
        fail("only convolutions of two axes with pads that are written down are trained")
    bias = i[2] if len(i) > 2 else None
    return F.conv2d(pads(i[0], a, 0.0), i[1], bias, a.get("strides", 1), 0, a.get("dilations", 1), a.get("group", 1))


def gemm(i, a):
    if a.get("transA", 0):
        fail("a Gemm that transposes its input is not trained")
    y = a.get("alpha", 1.0) * (i[0] @ (i[1].t() if a.get("transB", 0) else i[1]))
    return y + a.get("beta", 1.0) * i[2] if len(i) > 2 else y


def max_pool(i, a):
    if a.get("ceil_mode", 0):
        fail("a MaxPool that rounds up is not trained")
    x = pads(i[0], a, float("-inf"))
    return F.max_pool2d(x, a["kernel_shape"], a.get("strides", 1), 0, a.get("dilations", 1))


def clip(i, a):
    low = i[1] if len(i) > 1 else a.get("min")
    high = i[2] if len(i) > 2 else a.get("max")
    return torch.clamp(i[0], low, high)


OPS = {
    "Add": lambda i, a: i[0] + i[1],
    "Clip": clip,
    "Conv": conv,
    "Flatten": lambda i, a: torch.flatten(i[0], a.get("axis", 1)),
    "Gemm": gemm,
    "GlobalAveragePool": lambda i, a: i[0].mean((2, 3), keepdim=True),
    "HardSigmoid": lambda i, a: torch.clamp(a.get("alpha", 0.2) * i[0] + a.get("beta", 0.5), 0, 1),
    "HardSwish": lambda i, a: F.hardswish(i[0]),
    "Identity": lambda i, a: i[0],
    "MatMul": lambda i, a: i[0] @ i[1],
    "MaxPool": max_pool,
    "Mul": lambda i, a: i[0] * i[1],
    "Relu": lambda i, a: F.relu(i[0]),
    "Sigmoid": lambda i, a: torch.sigmoid(i[0]),
}
TRAINED = {"Conv": (1, 2), "Gemm": (1, 2), "MatMul": (1,), "Add": (0, 1)}  # which inputs are weights


class Net(torch.nn.Module):
    """Runs the graph; float initializers that TRAINED nodes read are its parameters."""

    def __init__(self, graph):
        super().__init__()
        unknown = sorted({n.op_type for n in graph.node} - set(OPS))
        if unknown:
            fail(f"nodes of {', '.join(unknown)} are not trained by this script", "fold the model first: mlopt optimize")
        constants = {t.name: torch.from_numpy(numpy_helper.to_array(t).copy()) for t in graph.initializer}
        weights = {n.input[k] for n in graph.node for k in TRAINED.get(n.op_type, ()) if k < len(n.input)}
        self.names = [k for k, v in constants.items() if k in weights and v.dtype == torch.float32 and v.numel() > 0]
        self.weights = torch.nn.ParameterList([torch.nn.Parameter(constants[k]) for k in self.names])
        self.constants = {k: v for k, v in constants.items() if k not in self.names}
        self.nodes = [
            (n, {a.name: onnx.helper.get_attribute_value(a) for a in n.attribute}) for n in graph.node
        ]
        self.input = next(i.name for i in graph.input if i.name not in constants)
        self.output = graph.output[0].name

    def forward(self, x):
        values = {self.input: x, "": None, **self.constants, **dict(zip(self.names, self.weights))}
        for node, attributes in self.nodes:
            values[node.output[0]] = OPS[node.op_type]([values[k] for k in node.input], attributes)
        return values[self.output]


# --- data ---------------------------------------------------------------------------------------------------------


def read(folder, name):
    path = pathlib.Path(folder) / f"{name}-ubyte.gz"
    if not path.exists():
        fail(f"{path} is not there", "install Debian's dataset-fashion-mnist, or say --data FOLDER")
    with gzip.open(path) as f:
        return np.frombuffer(f.read(), np.uint8, offset=16 if "idx3" in name else 8)


def images(folder, count):
    x = read(folder, "train-images-idx3").reshape(-1, 1, 28, 28)[:count].astype(np.float32)
    y = read(folder, "train-labels-idx1")[:count].astype(np.int64)
    return torch.from_numpy((x / 255 - MEAN) / STD), torch.from_numpy(y)


def accuracy(net, x, y):
    net.eval()
    with torch.no_grad():
        return sum(float((net(a).argmax(1) == b).sum()) for a, b in zip(x.split(500), y.split(500))) / max(len(y), 1)


def train(net, x, y, o):
    optimizer = torch.optim.AdamW(net.parameters(), lr=o.rate, weight_decay=o.decay)
    steps = o.epochs * -(-len(x) // o.batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, o.rate, total_steps=max(steps, 2))
    shuffle = torch.Generator().manual_seed(o.seed)
    for epoch in range(o.epochs):
        begin, total = time.monotonic(), 0.0
        net.train()
        for at in torch.randperm(len(x), generator=shuffle).split(o.batch):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x[at]), y[at])
            loss.backward()
            optimizer.step()
            schedule.step()
            total += float(loss) * len(at)
        print(f"epoch {epoch + 1} of {o.epochs}: loss {total / len(x):.4f}, {time.monotonic() - begin:.0f} s", flush=True)


def main():
    p = argparse.ArgumentParser(description="Train a pruned ONNX classifier further, on Fashion-MNIST.")
    p.add_argument("model", help="the ONNX file that was pulled")
    p.add_argument("out", help="the same graph with trained weights")
    p.add_argument("--data", default="/usr/share/datasets/fashion-mnist", help="the folder of the four IDX files")
    p.add_argument("--images", type=int, default=60000, help="training images that are read (60000)")
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--batch", type=int, default=128)
    p.add_argument("--rate", type=float, default=1e-3, help="the highest of the learning rate's one cycle (0.001)")
    p.add_argument("--decay", type=float, default=1e-4)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--threads", type=int, default=1)
    o = p.parse_args()
    torch.manual_seed(o.seed)
    torch.set_num_threads(o.threads)
    model = onnx.load(o.model)
    net = Net(model.graph)
    x, y = images(o.data, o.images)
    held = max(len(x) // 10, 1)
    before = accuracy(net, x[-held:], y[-held:])
    train(net, x[:-held], y[:-held], o)
    after = accuracy(net, x[-held:], y[-held:])
    trained = {name: w.detach().numpy() for name, w in zip(net.names, net.weights)}
    for tensor in model.graph.initializer:
        if tensor.name in trained:
            tensor.CopyFrom(numpy_helper.from_array(trained[tensor.name], tensor.name))
    onnx.checker.check_model(model)
    onnx.save(model, o.out)
    print(f"{len(trained)} weights trained; images kept out: {before:.2%} right before, {after:.2%} after; wrote {o.out}")


if __name__ == "__main__":
    main()
