#!/usr/bin/env bash
# A PyTorch module to ONNX: exported with a dynamic batch, the same results, refused where it is not.
set -euo pipefail
/usr/bin/python3 -c 'import torch, numpy' 2>/dev/null || { echo "python3-torch is not installed"; exit 77; }
. "$(dirname "$0")/e2e.sh"
script=${MLOPT_SOURCE_DIR:-$PWD}/deploy/from_pytorch.py
cd "$work"
cat >nets.py <<'PY'
import torch
from torch import nn

class Images(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.5))
        self.head = nn.Linear(8 * 8 * 8, 5)

    def forward(self, x):
        return self.head(torch.flatten(self.body(x), 1))

class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.words, self.places = nn.Embedding(50, 24), nn.Parameter(torch.randn(12, 24))
        self.qkv, self.out, self.norm = nn.Linear(24, 72), nn.Linear(24, 24), nn.LayerNorm(24)
        self.tags, self.kind = nn.Linear(24, 4), nn.Linear(24, 2)

    def forward(self, ids):
        x = self.words(ids) + self.places[: ids.shape[1]]
        b, s, _ = x.shape
        q, k, v = (t.view(b, s, 3, 8).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        mixed = torch.softmax(q @ k.transpose(-1, -2) / 8 ** 0.5, -1) @ v
        x = self.norm(x + self.out(mixed.transpose(1, 2).reshape(b, s, 24)))
        return self.tags(torch.nn.functional.gelu(x)), self.kind(x.mean(1))

class Counts(nn.Module):
    """Tracing fixes how many samples it saw: the export cannot be right for others."""
    def forward(self, x):
        return x * float(len(x.tolist()))

def broken():
    return 3
PY
python=/usr/bin/python3
expect 0 $python "$script" nets.py:Images --input 'image=float32[3,16,16]' --output logits --out images.onnx
shows "batch 3: output 'logits' float32[7, 5]"
expect 0 "$MLOPT" inspect images.onnx -o json
holds "d['inputs'] == [{'name': 'image', 'type': 'float32[batch,3,16,16]'}] and d['opsets']['ai.onnx'] == 17"
holds "d['outputs'][0]['type'] == 'float32[batch,5]'"

expect 0 $python "$script" nets.py:Tokens --input 'ids=int64[12]<50' --out tokens.onnx --opset 14
shows "output 'output0'"
shows "output 'output1'"
expect 0 "$MLOPT" inspect tokens.onnx --graph
! grep -q '?' stdout || fail "the attention is not shaped throughout"

$python - <<'PY'
import torch, nets
torch.save({k: v * 2 for k, v in nets.Images().state_dict().items()}, "twice.pt")
PY
expect 0 $python "$script" nets.py:Images --weights twice.pt --input 'image=float32[3,16,16]' --out twice.onnx --engine reference
cmp -s images.onnx twice.onnx && fail "the weights were not used"

# what cannot be right, or is not there, is refused, and nothing is written
expect 1 $python "$script" nets.py:Counts --input 'x=float32[4]' --out bad.onnx
says "error: output 'output' differs"
expect 1 $python "$script" nets.py:broken --input 'x=float32[4]' --out bad.onnx
says "not a torch.nn.Module"
expect 1 $python "$script" nets.py:Nothing --input 'x=float32[4]' --out bad.onnx
says "has no 'Nothing'"
expect 1 $python "$script" nets.py:Images --input 'x=float32' --out bad.onnx
says "is not NAME=DTYPE[DIMS]"
if $python -c 'import inspect, sys, torch; sys.exit("dynamic_shapes" in inspect.signature(torch.onnx.export).parameters)'; then
    expect 1 $python "$script" nets.py:Images --input 'image=float32[3,16,16]' --out bad.onnx --dynamo
    says "has no dynamo exporter"
fi
[ ! -e bad.onnx ] || fail "a model that differs was written"

# pushed when asked; the program is what uploads
mkdir bin
printf '#!/bin/sh\ncase $1 in push) echo "pushed $*";; *) exec "%s" "$@";; esac\n' "$MLOPT" >bin/mlopt
chmod +x bin/mlopt
MLOPT=$PWD/bin/mlopt expect 0 $python "$script" nets.py:Images --input 'image=float32[3,16,16]' --out images.onnx --push vision/images
shows "pushed push vision/images images.onnx --meta exported-by=pytorch"
echo "from PyTorch: ok"
