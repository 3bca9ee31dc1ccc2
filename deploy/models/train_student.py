#!/usr/bin/python3
"""Train a small student of the example classifier by distillation, and export it as ONNX.

    apt install python3-torch python3-onnx python3-numpy dataset-fashion-mnist
    ./train_student.py --out fashion_student.onnx                   # of the teacher fashion_cnn.onnx
    ./train_student.py --train-teacher 10 --teacher my_cnn.onnx     # trains the teacher first
    ./train_student.py --soft 0 --out by_labels.onnx                # the same net, from labels alone

The student learns from the teacher's scores of the training images and from their labels (Hinton, Vinyals and Dean,
2015):

    loss = soft T^2 KL(softmax(teacher / T) || softmax(student / T)) + (1 - soft) cross-entropy(student, label)

The test images are looked at once, at the end, by `mlopt distill-eval` or with the numpy evaluator here. Both nets take
the same normalised pixels: (p / 255 - 0.2860) / 0.3530.
"""
import argparse
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import train_fashion_cnn as base  # noqa: E402  (says what is missing, where something is)

import numpy as np  # noqa: E402
import onnx  # noqa: E402
import torch  # noqa: E402
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from onnx import numpy_helper  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))


class Student(nn.Module):
    """Three convolutions: a hundredth of the teacher's multiply-adds."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 12, 3, 2, 1, bias=False), nn.BatchNorm2d(12)   # 14x14
        self.conv2, self.bn2 = nn.Conv2d(12, 24, 3, 2, 1, bias=False), nn.BatchNorm2d(24)  # 7x7
        self.conv3, self.bn3 = nn.Conv2d(24, 32, 3, 1, 1, bias=False), nn.BatchNorm2d(32)
        self.head = nn.Linear(32, 10)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        x = F.relu(self.bn3(self.conv3(x)))
        return self.head(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


def load_teacher(path):
    """The net of train_fashion_cnn.py with the weights of an exported file."""
    graph = onnx.load(path).graph
    weights = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    for node in graph.node:  # equal tensors are stored once, behind an Identity
        if node.op_type == "Identity" and node.input[0] in weights:
            weights[node.output[0]] = weights[node.input[0]]
    net = base.FashionCNN()
    state = net.state_dict()
    for name in state:
        if name.endswith("num_batches_tracked"):
            continue
        if name not in weights or weights[name].shape != tuple(state[name].shape):
            sys.exit(f"train_student: {path} has no '{name}' of shape {tuple(state[name].shape)}: it is not what "
                     "train_fashion_cnn.py exports")
        state[name] = torch.from_numpy(weights[name].copy())
    net.load_state_dict(state)
    return net.eval()


def scores_of(net, images, batch=250):
    """The teacher's scores of all images, once: nothing of it changes from epoch to epoch."""
    t0, out = time.time(), []
    net = net.to(memory_format=torch.channels_last)
    with torch.no_grad():
        for i in range(0, len(images), batch):
            x = torch.from_numpy(base.normalise(images[i:i + batch]))
            out.append(net(x.contiguous(memory_format=torch.channels_last)))
    print(f"the teacher's scores of {len(images)} images: {time.time() - t0:.0f} s", flush=True)
    return torch.cat(out)


def distill(student, x, y, soft_scores, args, gen):
    """SGD with Nesterov momentum, a warm-up over the first epoch and then a cosine to zero."""
    optimiser = torch.optim.SGD(student.parameters(), lr=args.lr, momentum=0.9, nesterov=True, weight_decay=1e-4)
    per_epoch = len(x) // args.batch
    total = per_epoch * args.epochs
    warm = max(1, min(per_epoch, total // 4))
    rate = lambda i: (i + 1) / warm if i < warm else 0.5 * (1 + np.cos(np.pi * (i - warm) / max(1, total - warm)))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, rate)
    T = args.temperature
    student.train()
    for epoch in range(args.epochs):
        t0, loss_sum, hit = time.time(), 0.0, 0
        order = torch.randperm(len(x), generator=gen)
        for i in range(per_epoch):
            pick = order[i * args.batch:(i + 1) * args.batch]
            out = student(x[pick])
            loss = (1 - args.soft) * F.cross_entropy(out, y[pick])
            if args.soft > 0:
                loss = loss + args.soft * T * T * F.kl_div(F.log_softmax(out / T, 1),
                                                           F.softmax(soft_scores[pick] / T, 1),
                                                           reduction="batchmean")
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
            loss_sum += loss.item()
            hit += (out.argmax(1) == y[pick]).sum().item()
        print(f"epoch {epoch + 1:2d}/{args.epochs}  loss {loss_sum / per_epoch:.4f}  "
              f"train accuracy {100 * hit / (per_epoch * args.batch):.2f}%  {time.time() - t0:.1f} s", flush=True)


def main():
    p = argparse.ArgumentParser(description="Train and export a distilled student of the example classifier.")
    p.add_argument("--teacher", default=os.path.join(HERE, "fashion_cnn.onnx"))
    p.add_argument("--train-teacher", type=int, default=0, metavar="EPOCHS", help="train the teacher first, into --teacher")
    p.add_argument("--out", default=os.path.join(HERE, "fashion_student.onnx"))
    p.add_argument("--temperature", type=float, default=4)
    p.add_argument("--soft", type=float, default=0.9, help="share of the loss that is the teacher's; 0: labels alone")
    p.add_argument("--epochs", type=int, default=12)
    p.add_argument("--samples", type=int, default=60000, help="training images, the first of them")
    p.add_argument("--batch", type=int, default=256)
    p.add_argument("--lr", type=float, default=0.1, help="peak learning rate")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--data", default=base.DATA_DIR, help="folder of the four IDX .gz files")
    args = p.parse_args()
    if args.epochs < 1 or not 1 <= args.batch <= args.samples <= 60000 or not 0 <= args.soft <= 1:
        p.error("--epochs from 1 on, --batch up to --samples, --samples up to 60000, --soft from 0 to 1")
    base.check_data(args.data)
    torch.set_num_threads(args.threads)
    train_x, train_y = base.load(args.data, "train")
    train_x, train_y = train_x[:args.samples], train_y[:args.samples]
    y = torch.from_numpy(train_y.astype(np.int64))
    if args.train_teacher:
        torch.manual_seed(args.seed)
        gen = torch.Generator().manual_seed(args.seed)
        teacher = base.FashionCNN().to(memory_format=torch.channels_last)
        how = argparse.Namespace(epochs=args.train_teacher, batch=args.batch, lr=0.1, weight_decay=5e-4, bf16=False)
        base.train(teacher, torch.from_numpy(train_x.copy()), y, how, gen)
        base.export(teacher, args.teacher)
    soft = scores_of(load_teacher(args.teacher), train_x) if args.soft > 0 else None
    torch.manual_seed(args.seed)
    gen = torch.Generator().manual_seed(args.seed)
    student, t0 = Student(), time.time()
    distill(student, torch.from_numpy(base.normalise(train_x)), y, soft, args, gen)
    print(f"trained in {time.time() - t0:.0f} s with torch {torch.__version__}")
    base.export(student, args.out)
    base.report(args.out)
    test_x, test_y = base.load(args.data, "test")
    print(f"test accuracy of {os.path.basename(args.out)}: "
          f"{100 * base.Evaluator(args.out).accuracy(test_x, test_y, 500):.2f}%")


if __name__ == "__main__":
    main()
