#!/usr/bin/python3
"""Train the nets that quantization is measured on, and export them as torch does.

    ./train.py --out DIR [--nets mlp,mobilenet_v2,mobilenet_v3,vit] [--threads 1]

mlp            784-192-96-10 with ReLU
mobilenet_v2   inverted residuals: depthwise convolutions, ReLU6, linear bottlenecks
mobilenet_v3   the same with squeeze-and-excitation, hard-swish and hard-sigmoid
vit            16 patches of 7x7, three transformer blocks of width 64, LayerNorm, GELU

Input and output are those of deploy/models/fashion_cnn.onnx: `image`, float32 [batch, 1, 28, 28], a raw byte p
being (p / 255 - 0.2860) / 0.3530, and `logits`, float32 [batch, 10]. The export is torch's own for a net in eval mode,
which folds each BatchNormalization into its convolution.

Each net is trained for a number of epochs that its row fixes; the test images are looked at only at the end. A
checkpoint after each epoch (DIR/NAME.pt) lets a run that was cut off go on where it was, with the same result.
Everything it needs is in Debian: python3-torch, python3-onnx, dataset-fashion-mnist.
"""

import argparse
import hashlib
import math
import os
import sys
import time

here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(here, "..", "..", "deploy", "models"))
from train_fashion_cnn import (DATA_DIR, MEAN, SCALE, STD, augment, check_data, load,  # noqa: E402
                               torch_accuracy)

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402

OPSET = 17


def conv(cin, cout, size=1, stride=1, groups=1, act=None):
    parts = [nn.Conv2d(cin, cout, size, stride, size // 2, groups=groups, bias=False), nn.BatchNorm2d(cout)]
    return nn.Sequential(*parts, *([act()] if act else []))


class Squeeze(nn.Module):
    """Squeeze-and-excitation: each channel times a gate that its mean decides."""

    def __init__(self, channels):
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.down, self.up = nn.Conv2d(channels, channels // 4, 1), nn.Conv2d(channels // 4, channels, 1)

    def forward(self, x):
        return x * F.hardsigmoid(self.up(F.relu(self.down(self.pool(x)))))


class Inverted(nn.Module):
    """Expand, filter each channel, project; the input is added where the shape allows it."""

    def __init__(self, expand, cin, cout, size, stride, act, squeeze):
        super().__init__()
        wide = expand * cin
        self.body = nn.Sequential(*([conv(cin, wide, act=act)] if expand > 1 else []), conv(wide, wide, size, stride, wide, act),
                                  *([Squeeze(wide)] if squeeze else []), conv(wide, cout))
        self.residual = cin == cout and stride == 1

    def forward(self, x):
        return x + self.body(x) if self.residual else self.body(x)


class MobileNet(nn.Module):
    # expansion, channels, kernel, stride, act, squeeze-and-excitation; the stem leaves 14x14
    V2 = ((1, 16, 3, 1, nn.ReLU6, False), (3, 24, 3, 2, nn.ReLU6, False), (4, 24, 3, 1, nn.ReLU6, False),
          (4, 40, 3, 2, nn.ReLU6, False), (4, 40, 3, 1, nn.ReLU6, False))
    V3 = ((1, 16, 3, 1, nn.ReLU, True), (3, 24, 3, 2, nn.ReLU, False), (4, 24, 3, 1, nn.ReLU, False),
          (4, 40, 5, 2, nn.Hardswish, True), (4, 40, 5, 1, nn.Hardswish, True))

    def __init__(self, rows, act):
        super().__init__()
        blocks, cin = [], 16
        for expand, cout, *rest in rows:
            blocks.append(Inverted(expand, cin, cout, *rest))
            cin = cout
        self.stem, self.blocks = conv(1, 16, 3, 2, act=act), nn.Sequential(*blocks)
        self.last, self.pool, self.head = conv(cin, 4 * cin, act=act), nn.AdaptiveAvgPool2d(1), nn.Linear(4 * cin, 10)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out")

    def forward(self, x):
        return self.head(torch.flatten(self.pool(self.last(self.blocks(self.stem(x)))), 1))


class Layer(nn.Module):
    """Attention and a perceptron, each behind a LayerNorm and beside the input."""

    def __init__(self, dim, heads, tokens):
        super().__init__()
        self.shape, self.scale = (-1, tokens, 3, heads, dim // heads), (dim // heads) ** -0.5
        self.norm1, self.qkv, self.out = nn.LayerNorm(dim), nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.norm2, self.up, self.down = nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).reshape(self.shape).permute(2, 0, 3, 1, 4).unbind(0)
        a = torch.softmax(q @ k.transpose(-2, -1) * self.scale, -1) @ v
        x = x + self.out(a.transpose(1, 2).reshape(-1, *x.shape[1:]))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class ViT(nn.Module):
    def __init__(self, dim=64, depth=3, heads=2, patch=7):
        super().__init__()
        tokens = (28 // patch) ** 2
        self.patches = nn.Conv2d(1, dim, patch, patch)
        self.place = nn.Parameter(0.02 * torch.randn(1, tokens, dim))
        self.layers = nn.Sequential(*(Layer(dim, heads, tokens) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, 10)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2) + self.place
        return self.head(self.norm(self.layers(x)).mean(1))


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 192), nn.ReLU(), nn.Linear(192, 96), nn.ReLU(), nn.Linear(96, 10))


def mirror(u8, gen):
    """Half of the images mirrored: a net without convolutions learns less from shifted ones."""
    return torch.where((torch.rand(len(u8), generator=gen) < 0.5)[:, None, None], u8.flip(2), u8)


# name: what makes it, what changes its images, epochs, peak learning rate of AdamW, weight decay
NETS = {
    "mlp": (mlp, mirror, 16, 2e-3, 0.02),
    "mobilenet_v2": (lambda: MobileNet(MobileNet.V2, nn.ReLU6), augment, 8, 6e-3, 0.02),
    "mobilenet_v3": (lambda: MobileNet(MobileNet.V3, nn.Hardswish), augment, 8, 6e-3, 0.02),
    "vit": (ViT, augment, 12, 3e-3, 0.05),
}


def optimizer(net, rate, weight_decay):
    decay = [p for p in net.parameters() if p.ndim > 1]
    plain = [p for p in net.parameters() if p.ndim <= 1]
    return torch.optim.AdamW([{"params": decay, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}], lr=rate)


def train(name, net, change, epochs, rate, weight_decay, x, y, args):
    """One cycle: a warm-up over a tenth of the steps, then a cosine to zero. Goes on from a checkpoint."""
    opt = optimizer(net, rate, weight_decay)
    per_epoch = len(x) // args.batch
    total, warm = per_epoch * epochs, per_epoch * epochs // 10
    factor = lambda i: (i + 1) / warm if i < warm else 0.5 * (1 + math.cos(math.pi * (i - warm) / (total - warm)))  # noqa: E731
    sched = torch.optim.lr_scheduler.LambdaLR(opt, factor)
    kept, first = os.path.join(args.out, name + ".pt"), 0
    if os.path.exists(kept):
        state = torch.load(kept)
        first = state["epoch"]
        net.load_state_dict(state["net"])
        opt.load_state_dict(state["opt"])
        sched.load_state_dict(state["sched"])
    net.train()
    for epoch in range(first, epochs):
        # a seed of its own for each epoch, so that one that goes on draws what the first run would have drawn
        gen = torch.Generator().manual_seed(1000 * args.seed + epoch)
        begin, loss_sum, hit = time.time(), 0.0, 0
        order = torch.randperm(len(x), generator=gen)
        for i in range(per_epoch):
            pick = order[i * args.batch:(i + 1) * args.batch]
            out = net(((change(x[pick], gen).float() * SCALE - MEAN) / STD)[:, None].contiguous(memory_format=torch.channels_last))
            loss = F.cross_entropy(out, y[pick])
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            loss_sum += loss.item()
            hit += (out.argmax(1) == y[pick]).sum().item()
        torch.save({"epoch": epoch + 1, "net": net.state_dict(), "opt": opt.state_dict(), "sched": sched.state_dict()}, kept + ".part")
        os.replace(kept + ".part", kept)
        print(f"{name}: epoch {epoch + 1:2d}/{epochs}  loss {loss_sum / per_epoch:.4f}  train accuracy "
              f"{100 * hit / (per_epoch * args.batch):.2f}%  {time.time() - begin:.0f} s", flush=True)


def export(net, path):
    torch.onnx.export(net.to(memory_format=torch.contiguous_format).eval(), torch.zeros(2, 1, 28, 28), path, opset_version=OPSET, input_names=["image"],
                      output_names=["logits"], dynamic_axes={"image": {0: "batch"}, "logits": {0: "batch"}})


def make(name, args, data):
    build, change, epochs, rate, weight_decay = NETS[name]
    torch.manual_seed(args.seed)
    net = build().to(memory_format=torch.channels_last)  # faster where convolutions are depthwise
    train(name, net, change, args.epochs or epochs, rate, weight_decay, *data["train"], args)
    path = os.path.join(args.out, name + ".onnx")
    export(net, path)
    with open(path, "rb") as f:
        digest = hashlib.sha256(f.read()).hexdigest()
    print(f"{name}: test accuracy in torch {100 * torch_accuracy(net, *data['test']):.2f}%, "
          f"{sum(p.numel() for p in net.parameters())} parameters, {os.path.getsize(path)} bytes, sha256 {digest}", flush=True)


def main():
    p = argparse.ArgumentParser(description="Train and export the nets that quantization is measured on.")
    p.add_argument("--out", required=True, help="folder of the nets and their checkpoints")
    p.add_argument("--nets", type=lambda text: text.split(","), default=list(NETS))
    p.add_argument("--epochs", type=int, help="other than each net's own, for a try")
    p.add_argument("--batch", type=int, default=192)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--data", default=DATA_DIR, help="folder of the four IDX .gz files")
    args = p.parse_args()
    for name in args.nets:
        if name not in NETS:
            p.error(f"no net is called '{name}'; there are {', '.join(NETS)}")
    check_data(args.data)
    os.makedirs(args.out, exist_ok=True)
    torch.set_num_threads(args.threads)
    train_x, train_y = load(args.data, "train")
    data = {"train": (torch.from_numpy(train_x.copy()), torch.from_numpy(train_y.astype(np.int64))), "test": load(args.data, "test")}
    for name in args.nets:
        make(name, args, data)


if __name__ == "__main__":
    main()
