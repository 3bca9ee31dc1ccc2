#!/usr/bin/python3
"""Train the example classifier and export it as ONNX.

A small residual CNN for Fashion-MNIST.  Everything it needs is in Debian:

    apt install python3-torch python3-onnx python3-numpy dataset-fashion-mnist
    ./train_fashion_cnn.py --epochs 10 --out fashion_cnn.onnx

BatchNormalization nodes are left as they are in training, not folded into the
convolutions: folding them is the optimization service's job, and a model that
came folded would show nothing.

The graph takes normalised pixels.  For a raw byte p it expects
(p / 255 - 0.2860) / 0.3530; the normalisation itself is not in the graph.

The last line printed is the test accuracy of the exported file, read back
from disk and run by the numpy evaluator below, which shares no code with
torch.
"""

import argparse
import collections
import concurrent.futures
import gzip
import hashlib
import os
import struct
import sys
import time

DATA_DIR = "/usr/share/datasets/fashion-mnist"
FILES = {
    "train": ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
    "test": ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),
}
SCALE, MEAN, STD = 1.0 / 255.0, 0.2860, 0.3530
OPSET = 17
THREADS = 2

try:
    import numpy as np
    import onnx
    from onnx import numpy_helper
    import torch
    import torch.nn as nn
    import torch.nn.functional as F
except ImportError as e:
    sys.exit(f"train_fashion_cnn: {e}\n"
             "  apt install python3-torch python3-onnx python3-numpy")


# --- data ------------------------------------------------------------------

def read_idx(path, rank):
    """An IDX file of unsigned bytes, as an array of the given rank."""
    with gzip.open(path, "rb") as f:
        raw = f.read()
    head = 4 + 4 * rank
    if len(raw) < head or raw[:4] != bytes((0, 0, 8, rank)):
        sys.exit(f"train_fashion_cnn: {path}: not a rank-{rank} IDX file of bytes")
    shape = struct.unpack(f">{rank}I", raw[4:head])
    data = np.frombuffer(raw, np.uint8, offset=head)
    if data.size != int(np.prod(shape)):
        sys.exit(f"train_fashion_cnn: {path}: {data.size} bytes of data, "
                 f"its header says {shape}")
    return data.reshape(shape)


def load(data_dir, split):
    images, labels = (os.path.join(data_dir, n) for n in FILES[split])
    x, y = read_idx(images, 3), read_idx(labels, 1)
    if x.shape[1:] != (28, 28) or len(x) != len(y):
        sys.exit(f"train_fashion_cnn: {images}: shape {x.shape} does not fit "
                 f"{len(y)} labels of 28x28 images")
    return x, y


def check_data(data_dir):
    for names in FILES.values():
        for n in names:
            p = os.path.join(data_dir, n)
            if not os.path.isfile(p):
                sys.exit(f"train_fashion_cnn: {p} is missing: install the dataset "
                         "(apt install dataset-fashion-mnist) or point --data at "
                         "a folder that holds its four .gz files")


def normalise(u8):
    """Raw bytes [n,28,28] to what the graph takes: float32 [n,1,28,28]."""
    x = (u8.astype(np.float32) * np.float32(SCALE) - np.float32(MEAN)) / np.float32(STD)
    return x[:, None]


def augment(u8, gen):
    """Shift every image by up to two pixels each way and mirror half of them."""
    n = len(u8)
    padded = F.pad(u8, (2, 2, 2, 2))
    span = torch.arange(28)
    rows = torch.randint(0, 5, (n, 1), generator=gen) + span
    cols = torch.randint(0, 5, (n, 1), generator=gen) + span
    mirror = torch.rand(n, 1, generator=gen) < 0.5
    cols = torch.where(mirror, cols.flip(1), cols)
    return padded[torch.arange(n)[:, None, None], rows[:, :, None], cols[:, None, :]]


# --- network ---------------------------------------------------------------

class Block(nn.Module):
    """Conv-BN-ReLU-Conv-BN plus the input (projected when its shape differs)."""

    def __init__(self, cin, cout, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.skip = None
        if cin != cout or stride != 1:
            self.skip = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False),
                                      nn.BatchNorm2d(cout))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + (x if self.skip is None else self.skip(x)))


class FashionCNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 32, 3, 1, 1, bias=False)
        self.stem_bn = nn.BatchNorm2d(32)
        self.stage1 = Block(32, 32)                                    # 28x28
        self.stage2 = nn.Sequential(Block(32, 64, 2), Block(64, 64))   # 14x14
        self.pool = nn.MaxPool2d(2)
        self.stage3 = Block(64, 96)                                    # 7x7
        self.head = nn.Linear(96, 10)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        x = F.relu(self.stem_bn(self.stem(x)))
        x = self.stage3(self.pool(self.stage2(self.stage1(x))))
        return self.head(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


def train(net, x, y, args, gen):
    """SGD with Nesterov momentum: one epoch of warm-up, then a cosine to zero."""
    decay = [p for p in net.parameters() if p.ndim > 1]
    plain = [p for p in net.parameters() if p.ndim <= 1]
    opt = torch.optim.SGD([{"params": decay, "weight_decay": args.weight_decay},
                           {"params": plain, "weight_decay": 0.0}],
                          lr=args.lr, momentum=0.9, nesterov=True)
    per_epoch = len(x) // args.batch
    total = per_epoch * args.epochs
    warm = min(per_epoch, total // 4)
    rate = lambda i: ((i + 1) / warm if i < warm else
                      0.5 * (1 + np.cos(np.pi * (i - warm) / max(1, total - warm))))
    sched = torch.optim.lr_scheduler.LambdaLR(opt, rate)
    net.train()
    for epoch in range(args.epochs):
        t0, loss_sum, hit = time.time(), 0.0, 0
        order = torch.randperm(len(x), generator=gen)
        for i in range(per_epoch):
            pick = order[i * args.batch:(i + 1) * args.batch]
            xb = (augment(x[pick], gen).float() * SCALE - MEAN) / STD
            xb = xb[:, None].contiguous(memory_format=torch.channels_last)
            yb = y[pick]
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.bf16):
                out = net(xb)
            out = out.float()
            loss = F.cross_entropy(out, yb)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            loss_sum += loss.item()
            hit += (out.argmax(1) == yb).sum().item()
        print(f"epoch {epoch + 1:2d}/{args.epochs}  loss {loss_sum / per_epoch:.4f}  "
              f"train accuracy {100 * hit / (per_epoch * args.batch):.2f}%  "
              f"{time.time() - t0:.1f} s", flush=True)


def torch_accuracy(net, images, labels, batch=500):
    net.eval()
    hit = 0
    with torch.no_grad():
        for i in range(0, len(images), batch):
            out = net(torch.from_numpy(normalise(images[i:i + batch])))
            hit += (out.argmax(1).numpy() == labels[i:i + batch]).sum()
    return hit / len(labels)


def export(net, path):
    net = net.to(memory_format=torch.contiguous_format).eval()
    # PRESERVE on a net in eval mode: inference semantics, and yet the exporter
    # does not fuse Conv+BN as it would with TrainingMode.EVAL.
    torch.onnx.export(net, torch.zeros(1, 1, 28, 28), path,
                      training=torch.onnx.TrainingMode.PRESERVE,
                      do_constant_folding=False, opset_version=OPSET,
                      input_names=["image"], output_names=["logits"],
                      dynamic_axes={"image": {0: "batch"}, "logits": {0: "batch"}})


# --- evaluation of the exported file, in numpy -----------------------------

class Evaluator:
    """Runs the few ops this model is made of; refuses any other."""

    def __init__(self, path):
        self.model = onnx.load(path)
        onnx.checker.check_model(self.model, full_check=True)
        g = self.model.graph
        self.weights = {t.name: numpy_helper.to_array(t) for t in g.initializer}
        self.input, self.output = g.input[0].name, g.output[0].name
        self.nodes = [(n.op_type, list(n.input), list(n.output),
                       {a.name: onnx.helper.get_attribute_value(a) for a in n.attribute})
                      for n in g.node]

    def run(self, image):
        """Logits for a batch, and the multiply-adds of Conv and Gemm in it."""
        env, macs = dict(self.weights), 0
        env[self.input] = image
        for op, ins, outs, at in self.nodes:
            a = [env[i] for i in ins]
            if op == "Conv":
                r, m = self.conv(at, *a)
                macs += m
            elif op == "BatchNormalization":
                if at.get("training_mode", 0):
                    raise ValueError("BatchNormalization in training mode")
                x, gamma, beta, mean, var = a
                k = gamma / np.sqrt(var + np.float32(at.get("epsilon", 1e-5)))
                r = x * k[:, None, None] + (beta - mean * k)[:, None, None]
            elif op == "Relu":
                r = np.maximum(a[0], 0)
            elif op == "Add":
                r = a[0] + a[1]
            elif op == "MaxPool":
                kh, kw = at["kernel_shape"]
                if (list(at["strides"]) != [kh, kw] or any(at.get("pads", [])) or
                        at.get("ceil_mode", 0)):
                    raise ValueError("MaxPool with overlap or padding")
                n, c, h, w = a[0].shape
                r = a[0][:, :, :h // kh * kh, :w // kw * kw]
                r = r.reshape(n, c, h // kh, kh, w // kw, kw).max((3, 5))
            elif op == "GlobalAveragePool":
                r = a[0].mean((2, 3), keepdims=True)
            elif op == "Flatten":
                if at.get("axis", 1) != 1:
                    raise ValueError("Flatten with an axis other than 1")
                r = a[0].reshape(len(a[0]), -1)
            elif op == "Gemm":
                if (at.get("transA", 0) or at.get("alpha", 1.0) != 1.0 or
                        at.get("beta", 1.0) != 1.0):
                    raise ValueError("Gemm with transA, alpha or beta")
                w = a[1].T if at.get("transB", 0) else a[1]
                r = a[0] @ w + a[2]
                macs += r.size * w.shape[0]
            elif op == "Identity":
                r = a[0]
            else:
                raise ValueError(f"op {op} is not one this model should hold")
            env[outs[0]] = r
        return env[self.output], macs

    @staticmethod
    def conv(at, x, w, b=None):
        if at.get("group", 1) != 1 or any(d != 1 for d in at.get("dilations", [])):
            raise ValueError("grouped or dilated Conv")
        (n, c, h, wd), (o, _, kh, kw) = x.shape, w.shape
        sy, sx = at.get("strides", (1, 1))
        top, left, bottom, right = at.get("pads", (0, 0, 0, 0))
        x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
        oh = (h + top + bottom - kh) // sy + 1
        ow = (wd + left + right - kw) // sx + 1
        cols = np.empty((n, c, kh, kw, oh, ow), x.dtype)
        for i in range(kh):
            for j in range(kw):
                cols[:, :, i, j] = x[:, :, i:i + sy * (oh - 1) + 1:sy,
                                     j:j + sx * (ow - 1) + 1:sx]
        r = np.matmul(w.reshape(o, -1), cols.reshape(n, c * kh * kw, oh * ow))
        r = r.reshape(n, o, oh, ow)
        if b is not None:
            r = r + b[:, None, None]
        return r, r.size * c * kh * kw

    def accuracy(self, images, labels, batch=50):
        def part(i):
            out, _ = self.run(normalise(images[i:i + batch]))
            return (out.argmax(1) == labels[i:i + batch]).sum()
        with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
            return sum(pool.map(part, range(0, len(images), batch))) / len(labels)


# --- command line ----------------------------------------------------------

def main():
    here = os.path.dirname(os.path.abspath(__file__))
    p = argparse.ArgumentParser(description="Train and export the Fashion-MNIST example model.")
    p.add_argument("--epochs", type=int, default=10)
    p.add_argument("--out", default=os.path.join(here, "fashion_cnn.onnx"))
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--batch", type=int, default=256)
    p.add_argument("--lr", type=float, default=0.1, help="peak learning rate")
    p.add_argument("--weight-decay", type=float, default=5e-4)
    p.add_argument("--data", default=DATA_DIR, help="folder of the four IDX .gz files")
    p.add_argument("--bf16", action="store_true",
                   help="train in bfloat16 (about half the time on a CPU with "
                        "AVX512-BF16, slow elsewhere); the exported weights are float32")
    p.add_argument("--eval", metavar="FILE", help="only measure an already exported file")
    args = p.parse_args()
    if args.epochs < 1:
        p.error("--epochs must be at least 1")
    if args.batch < 1 or args.batch > 60000:
        p.error("--batch must be between 1 and 60000")

    check_data(args.data)
    test_x, test_y = load(args.data, "test")

    path = args.eval or args.out
    if not args.eval:
        torch.set_num_threads(THREADS)
        torch.manual_seed(args.seed)
        np.random.seed(args.seed)
        gen = torch.Generator().manual_seed(args.seed)
        train_x, train_y = load(args.data, "train")
        net = FashionCNN().to(memory_format=torch.channels_last)
        t0 = time.time()
        train(net, torch.from_numpy(train_x.copy()),
              torch.from_numpy(train_y.astype(np.int64)), args, gen)
        print(f"trained in {time.time() - t0:.0f} s with torch {torch.__version__}")
        print(f"test accuracy in torch: {100 * torch_accuracy(net, test_x, test_y):.2f}%")
        export(net, path)
    report(path)
    print("evaluating the file in numpy (a minute or more) ...", flush=True)
    acc = Evaluator(path).accuracy(test_x, test_y)
    print(f"test accuracy of {os.path.basename(path)}: {100 * acc:.2f}%")


def report(path):
    ev = Evaluator(path)
    g = ev.model.graph
    ops = collections.Counter(n.op_type for n in g.node)
    _, macs = ev.run(np.zeros((1, 1, 28, 28), np.float32))
    with open(path, "rb") as f:
        raw = f.read()
    stats = {i for op, ins, _, _ in ev.nodes if op == "BatchNormalization" for i in ins[3:]}
    params = sum(w.size for n, w in ev.weights.items() if n not in stats)
    held = sum(ev.weights[n].size for n in stats if n in ev.weights)
    dims = lambda v: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim]
    print(f"file: {os.path.basename(path)}, {len(raw)} bytes, "
          f"opset {ev.model.opset_import[0].version}, IR {ev.model.ir_version}")
    print(f"sha256: {hashlib.sha256(raw).hexdigest()}")
    print(f"ops: {', '.join(f'{k} {v}' for k, v in sorted(ops.items()))}")
    for kind, vs in (("input", g.input), ("output", g.output)):
        for v in vs:
            print(f"{kind}: {v.name} {dims(v)}")
    print(f"stored values: {params} parameters, {held} running statistics; "
          f"multiply-adds per image: {macs}", flush=True)


if __name__ == "__main__":
    main()
