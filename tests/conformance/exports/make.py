#!/usr/bin/env python3
"""Writes the models of this folder: modules of every common kind, exported by torch.onnx.export(…, dynamo=True) with
dynamic dims, each with inputs of other sizes than those it was exported with and what PyTorch computes from them.

    python3 make.py OUT_DIR [--keep-metadata] [--unoptimized] [NAME…]     needs torch and onnxscript from PyPI, in a virtual environment

NAME.npz holds the inputs by their names and the outputs as "output:NAME". What exporters note about the source (stack
traces and paths) is left out unless --keep-metadata is given. Weights are random and belong to nobody.
"""
import pathlib
import sys

import numpy as np
import onnx
import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional as F

AUTO = Dim.DYNAMIC


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Dropout(0.3), nn.Linear(8, 5))

    def forward(self, image):
        return self.body(image)


class Inverted(nn.Module):
    def __init__(self, width, out, stride):
        super().__init__()
        self.same = stride == 1 and width == out
        self.layers = nn.Sequential(
            nn.Conv2d(width, 2 * width, 1, bias=False), nn.BatchNorm2d(2 * width), nn.Hardswish(),
            nn.Conv2d(2 * width, 2 * width, 3, stride, 1, groups=2 * width, bias=False), nn.BatchNorm2d(2 * width), nn.ReLU6(),
            nn.Conv2d(2 * width, out, 1, bias=False), nn.BatchNorm2d(out))
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(out, 2, 1), nn.ReLU(), nn.Conv2d(2, out, 1), nn.Hardsigmoid())

    def forward(self, x):
        y = self.layers(x)
        y = y * self.gate(y)
        return x + y if self.same else y


class Mobile(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), Inverted(4, 4, 1), Inverted(4, 6, 2))
        self.head = nn.Linear(6, 4)

    def forward(self, image):
        return self.head(self.body(image).mean((2, 3)))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(30, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 12, activation="gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, ids):
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self.words(ids) + torch.sin(places.float())[None, :, None]
        return self.head(self.layers(x)), x.amax(1)


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(5, 4, 2, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(8, 3, batch_first=True)

    def forward(self, x):
        y, (h, _) = self.rnn(x)
        z, _ = self.gru(y)
        return z, h


class Attention(nn.Module):
    """Causal attention with a mask, grouped heads and rotated positions, by scaled_dot_product_attention."""
    def __init__(self):
        super().__init__()
        self.q, self.kv, self.o, self.norm = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16), nn.RMSNorm(16)

    def rotate(self, x):
        angle = torch.arange(x.shape[2])[:, None] / 10 ** torch.arange(0, 2)[None, :]
        a, b = x.chunk(2, -1)
        return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)

    def forward(self, x, mask):
        b, s, _ = x.shape
        n = self.norm(x)
        q = self.rotate(self.q(n).view(b, s, 4, 4).transpose(1, 2))
        k, v = self.kv(n).view(b, s, 2, 2, 4).permute(2, 0, 3, 1, 4)
        k, v = self.rotate(k).repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        causal = torch.ones(s, s, dtype=torch.bool).tril() & mask[:, None, None, :]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=causal)
        return x + self.o(y.transpose(1, 2).reshape(b, s, 16))


class Tables(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag, self.words = nn.EmbeddingBag(20, 4, mode="mean"), nn.Embedding(20, 6, padding_idx=0)
        self.mix = nn.Bilinear(4, 6, 3)

    def forward(self, ids):
        return self.mix(self.bag(ids), self.words(ids).sum(1))


class Einsums(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 5, 3))

    def forward(self, x, y):
        return torch.einsum("bij,jkl->bikl", x, self.w), torch.einsum("bij,bkj->bik", x, y), torch.einsum("bii->bi", x @ x.mT)


class Branches(nn.Module):
    """torch.cond becomes If."""
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: self.a(x).relu(), lambda x: self.b(x) - 1, (x,))


class Groups(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.GroupNorm(2, 6), nn.InstanceNorm2d(6, affine=True)
        self.up = nn.ConvTranspose2d(6, 4, 3, 2, 1, 1)
        self.last = nn.LayerNorm(8)

    def forward(self, x):
        return self.last(F.mish(self.up(self.second(F.gelu(self.first(x), approximate="tanh")))))


class Resizes(nn.Module):
    def forward(self, x):
        return (F.interpolate(x, scale_factor=2, mode="nearest"), F.interpolate(x, size=(7, 5), mode="bilinear", align_corners=False),
                F.interpolate(x, scale_factor=1.5, mode="bicubic", align_corners=True), F.pixel_shuffle(x, 2),
                F.interpolate(x, size=(3, 3), mode="bilinear", antialias=True))


class Indexing(nn.Module):
    def forward(self, x, at):
        filled = x.clone()
        filled[:, 1:3] = 0.5
        picked = x[torch.arange(x.shape[0])[:, None], at]
        summed = torch.zeros_like(x).scatter_add(1, at[:, :, None].expand(-1, -1, x.shape[2]), x[:, : at.shape[1]])
        best, where = x.topk(2, dim=1)
        return filled, picked, summed, best, where, torch.where(x > 0, x, x.cumsum(1)), x.index_select(1, at[0]), x.argmax(-1)


class Grids(nn.Module):
    def forward(self, x, grid):
        return F.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False), x.roll(1, -1), F.pad(x, (1, 2, 1, 0), "reflect")


class Scans(nn.Module):
    """torch's while_loop becomes Loop."""
    def forward(self, x):
        from torch._higher_order_ops.while_loop import while_loop
        count, y = while_loop(lambda i, y: i < 4, lambda i, y: (i + 1, torch.tanh(y * 1.5 + 0.1)), (torch.tensor(0), x))
        return y, count


class Halves(nn.Module):
    """bfloat16 and float16 inside."""
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8).to(torch.bfloat16), nn.Linear(8, 3).to(torch.float16)

    def forward(self, x):
        return self.b(F.relu(self.a(x.to(torch.bfloat16))).to(torch.float16)).float()


def ints(high, *dims):
    return torch.randint(0, high, dims)


def cases():
    """name: (module, example inputs, dims that vary, inputs to check with, opset)"""
    r = torch.randn
    return {
        "cnn": (Cnn(), (r(2, 3, 8, 8),), ({0: "batch"},), (r(3, 3, 8, 8),), 18),
        "mobile": (Mobile(), (r(2, 3, 16, 16),), ({0: "batch", 2: AUTO, 3: AUTO},), (r(2, 3, 10, 8),), 20),
        "encoder": (Encoder(), (ints(30, 2, 6),), ({0: "batch", 1: "sequence"},), (ints(30, 3, 9),), 20),
        "lstm": (Lstm(), (r(2, 6, 5),), ({0: "batch"},), (r(3, 6, 5),), 18),
        "attention": (Attention(), (r(2, 5, 16), torch.ones(2, 5, dtype=torch.bool)),
                      ({0: "batch", 1: "sequence"}, {0: "batch", 1: "sequence"}),
                      (r(3, 7, 16), torch.tensor([[True] * 7, [True] * 5 + [False] * 2, [True] * 3 + [False] * 4])), 23),
        "tables": (Tables(), (ints(20, 2, 5),), ({0: "batch"},), (ints(20, 4, 5),), 18),
        "einsums": (Einsums(), (r(2, 3, 4), r(2, 6, 4)), ({0: "batch"}, {0: "batch"}), (r(5, 3, 4), r(5, 6, 4)), 18),
        "branches": (Branches(), (r(2, 4),), ({0: "batch"},), (-torch.ones(3, 4),), 18),
        "groups": (Groups(), (r(2, 6, 4, 4),), ({0: "batch"},), (r(3, 6, 4, 4),), 21),
        "resizes": (Resizes(), (r(2, 4, 5, 6),), ({0: "batch"},), (r(1, 4, 5, 6),), 20),
        "indexing": (Indexing(), (r(2, 5, 3), ints(5, 2, 4)), ({0: "batch"}, {0: "batch"}), (r(3, 5, 3), ints(5, 3, 4)), 18),
        "grids": (Grids(), (r(2, 2, 5, 6), r(2, 3, 4, 2)), ({0: "batch"}, {0: "batch"}), (r(3, 2, 5, 6), r(3, 3, 4, 2)), 20),
        "loops": (Scans(), (r(2, 3),), None, (r(2, 3),), 18),
        "halves": (Halves(), (r(2, 6),), ({0: "batch"},), (r(5, 6),), 18),
    }


def strip(model):
    def graph(g):
        del g.metadata_props[:]
        for entry in [*g.node, *g.value_info, *g.input, *g.output, *g.initializer]:
            del entry.metadata_props[:]
            entry.doc_string = ""
        for node in g.node:
            for attribute in node.attribute:
                attribute.doc_string = ""
                if attribute.type == onnx.AttributeProto.GRAPH:
                    graph(attribute.g)
    graph(model.graph)
    del model.metadata_props[:]
    for function in model.functions:
        del function.metadata_props[:]
        for node in function.node:
            del node.metadata_props[:]
            node.doc_string = ""


def flat(result):
    return [t for r in result for t in flat(r)] if isinstance(result, (list, tuple)) else [result]


def main():
    arguments = [a for a in sys.argv[1:] if not a.startswith("--")]
    keep, optimize = "--keep-metadata" in sys.argv, "--unoptimized" not in sys.argv
    out, names = pathlib.Path(arguments[0]), arguments[1:]
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(20)
    failed = 0
    for name, (module, example, dims, check, opset) in cases().items():
        if names and name not in names:
            continue
        module.eval()
        for m in module.modules():
            if isinstance(m, (nn.BatchNorm2d,)):  # statistics other than 0 and 1
                m.running_mean.normal_()
                m.running_var.uniform_(0.5, 2)
        try:
            with torch.no_grad():
                wanted = flat(module(*check))
                program = torch.onnx.export(module, example, dynamo=True, dynamic_shapes=dims, opset_version=opset,
                                            verbose=False, optimize=optimize)
        except Exception as error:
            print(f"{name}: the exporter fails: {str(error).splitlines()[0][:200]}")
            failed += 1
            continue
        model = program.model_proto
        if not keep:
            strip(model)
        path = out / f"{name}.onnx"
        path.write_bytes(model.SerializeToString())
        arrays = {i.name: t.numpy() for i, t in zip(model.graph.input, check)}
        for o, t in zip(model.graph.output, wanted):
            arrays["output:" + o.name] = np.atleast_1d(t.numpy())
        if name == "halves":
            arrays["tolerance"] = np.array([1e-2], np.float32)
        np.savez_compressed(out / f"{name}.npz", **arrays)
        print(f"{name}: {path.stat().st_size} bytes, opset {model.opset_import[0].version}, {len(model.graph.node)} nodes, "
              f"{len(model.functions)} functions: {', '.join(sorted({n.op_type for n in model.graph.node}))}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
