#!/usr/bin/python3
"""Train tiny classifiers with quantization in the loop and export them as torch does.

    ./train_qat.py --out ../golden/qat

Two files, of a few thousand parameters each, with the forms that exporters write:

per-tensor.onnx   activations 0 to 255, one scale for all weights; BatchNormalization folded before
                  training, scales as they come: Q -> DQ on float weights
per-channel.onnx  the default of torch for x86: activations 0 to 127 (Q -> Clip -> DQ), one scale for
                  each output channel; BatchNormalization in training, so that the graph divides the
                  output of the Conv by what its weights were multiplied by

Beside each file stands a .npz: four images of the test set, and the logits that torch computes of them.
Everything it needs is in Debian: python3-torch, python3-onnx, dataset-fashion-mnist.
"""

import argparse
import os
import sys

here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(here, "..", "..", "deploy", "models"))
from train_fashion_cnn import DATA_DIR, check_data, load, normalise  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.ao.quantization as tq  # noqa: E402
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402

OPSET = 13


def conv(cin, cout, size, stride, groups=1, relu=True):
    parts = [nn.Conv2d(cin, cout, size, stride, size // 2, groups=groups, bias=False), nn.BatchNorm2d(cout)]
    return nn.Sequential(*parts, *([nn.ReLU()] if relu else []))


class Tiny(nn.Module):
    """A stem, a depthwise block with a residual, pooling and a classifier."""

    def __init__(self):
        super().__init__()
        self.quant = tq.QuantStub()
        self.stem = conv(1, 12, 3, 2)
        self.expand = conv(12, 24, 1, 1)
        self.depthwise = conv(24, 24, 3, 1, groups=24)
        self.project = conv(24, 12, 1, 1, relu=False)
        self.add = nn.quantized.FloatFunctional()
        self.down = conv(12, 24, 3, 2)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(24, 10)

    def forward(self, x):
        x = self.stem(self.quant(x))
        x = self.add.add(x, self.project(self.depthwise(self.expand(x))))
        x = self.pool(self.down(x))
        return self.head(torch.flatten(x, 1))

    def fuse_lists(self):
        three = [[f"{n}.0", f"{n}.1", f"{n}.2"] for n in ("stem", "expand", "depthwise", "down")]
        return three + [["project.0", "project.1"]]


def fake(most):
    return tq.FakeQuantize.with_args(observer=tq.MovingAverageMinMaxObserver, quant_min=0, quant_max=most)


def train(net, x, y, steps, rate, gen):
    opt = torch.optim.Adam(net.parameters(), lr=rate)
    for step in range(steps):
        pick = torch.randint(0, len(x), (128,), generator=gen)
        loss = F.cross_entropy(net(x[pick]), y[pick])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if (step + 1) % 50 == 0:
            print(f"  step {step + 1}: loss {loss.item():.3f}", flush=True)


def accuracy(net, x, y):
    with torch.no_grad():
        return sum((net(x[i:i + 500]).argmax(1) == y[i:i + 500]).sum().item()
                   for i in range(0, len(x), 500)) / len(x)


def make(name, per_channel, args, data):
    torch.manual_seed(args.seed)
    gen = torch.Generator().manual_seed(args.seed)
    (x, y), (test_x, test_y) = data
    net = Tiny().train()
    print(f"{name}: float")
    train(net, x, y, args.steps, 4e-3, gen)
    if per_channel:
        net = tq.fuse_modules_qat(net, net.fuse_lists())
        weights = tq.default_per_channel_weight_fake_quant
    else:
        net = tq.fuse_modules(net.eval(), net.fuse_lists()).train()
        weights = tq.default_weight_fake_quant
    net.qconfig = tq.QConfig(activation=fake(127 if per_channel else 255), weight=weights)
    tq.prepare_qat(net, inplace=True)
    print(f"{name}: fake quantization")
    train(net, x, y, args.steps // 2, 1e-3, gen)
    net.apply(tq.disable_observer)
    net.eval()
    print(f"{name}: test accuracy {100 * accuracy(net, test_x, test_y):.2f}%")
    path = os.path.join(args.out, name + ".onnx")
    torch.onnx.export(net, torch.zeros(1, 1, 28, 28), path, opset_version=OPSET, do_constant_folding=False,
                      training=torch.onnx.TrainingMode.PRESERVE, input_names=["image"],
                      output_names=["logits"], dynamic_axes={"image": {0: "batch"}, "logits": {0: "batch"}})
    with torch.no_grad():
        np.savez(os.path.join(args.out, name + ".npz"), image=test_x[:4].numpy(),
                 logits=net(test_x[:4]).numpy(), y=test_y[:4].numpy())
    print(f"{path}: {os.path.getsize(path)} bytes", flush=True)


def main():
    p = argparse.ArgumentParser(description="Train and export tiny models with fake quantization.")
    p.add_argument("--out", default=os.path.join(here, "..", "golden", "qat"))
    p.add_argument("--steps", type=int, default=400)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--data", default=DATA_DIR, help="folder of the four IDX .gz files")
    args = p.parse_args()
    check_data(args.data)
    torch.set_num_threads(1)
    data = []
    for split in ("train", "test"):
        x, y = load(args.data, split)
        x, y = (x[:20000], y[:20000]) if split == "train" else (x, y)
        data.append((torch.from_numpy(normalise(x)), torch.from_numpy(y.astype(np.int64))))
    for name, per_channel in (("per-tensor", False), ("per-channel", True)):
        make(name, per_channel, args, data)


if __name__ == "__main__":
    main()
