#!/usr/bin/env bash
# Makes the virtual environment that run.sh uses, with the pinned peers, and with --nncf the one that quantize.py takes NNCF from.
# Needs python3-venv and a package index.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=${MLOPT_BENCH_DIR:-build-bench}
mkdir -p "$folder"
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check -r tests/bench/requirements.txt
if [ "${1:-}" = --nncf ]; then # its dependencies are many: apart from the others
    python3 -m venv "$folder/nncf"
    "$folder/nncf/bin/pip" install --quiet --disable-pip-version-check -r tests/bench/requirements-nncf.txt
fi
"$folder/venv/bin/python" -c 'import onnx, onnxruntime, openvino; print("onnxruntime", onnxruntime.__version__, "openvino", openvino.__version__)'
