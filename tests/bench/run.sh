#!/usr/bin/env bash
# Builds mlopt and the models, and prints mlopt's speed relative to ONNX Runtime and OpenVINO:
#   tests/bench/setup.sh                 once
#   tests/bench/run.sh [--quick] [--models resnet50,bert] [--threads 1,2] [--peers ort] [--precisions int8] [--model MINE.onnx] …
# Results go to $MLOPT_BENCH_DIR (build-bench): models, results.json, table.md.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=$(realpath -m "${MLOPT_BENCH_DIR:-build-bench}")
[ -x "$folder/venv/bin/python" ] || { echo "run tests/bench/setup.sh first" >&2; exit 1; }
if [ -z "${MLOPT:-}" ]; then
    cmake -S . -B "$folder/mlopt" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DMLOPT_SERVICE=OFF -DMLOPT_TESTS=OFF >/dev/null
    cmake --build "$folder/mlopt" --target mlopt | tail -1
    MLOPT=$(find "$folder/mlopt" -name mlopt -type f -perm -u+x | head -1)
fi
export MLOPT MLOPT_PYTHON="${MLOPT_PYTHON:-$folder/venv/bin/python}"
exec "$folder/venv/bin/python" tests/bench/compare.py --folder "$folder" "$@"
