#!/bin/bash
# Runs ONNX's backend tests and prints what passes by category, and what is not supported and why.
#   tests/conformance/report.sh [--check|--write] [BUILD_DIR]
# --write puts it into docs/conformance.md; --check fails when what stands there is not what is measured.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
mode=print
case "${1:-}" in --check | --write) mode=${1#--}; shift ;; esac
build=${1:-${MLOPT_BINARY_DIR:-$root/build-dev}}
program=$build/tests/conformance.graph.onnx_backend
[ -d /usr/share/libonnx-testdata/data/node ] || { echo "libonnx-testdata is not installed"; exit 77; }
[ -x "$program" ] || { echo "$program is not built: cmake --build $build --target conformance.graph.onnx_backend"; exit 1; }

report() {
    cat <<'TEXT'
# Conformance

ONNX comes with tests of every operator and of small models. mlopt runs those that Debian packages (`libonnx-testdata`,
of ONNX 1.12) on its graph evaluator, which is the `reference` engine, with ONNX's own tolerances: 1e-3 relative, 1e-7
absolute, types and shapes exactly. The same tests run on the `cpu` engine, fast and invariant numerics, with the kernels for AVX2,
AVX-512, AVX-512 VNNI and AVX512-FP16 each (`conformance.cpu.*`; FP16 emulated, too, with the models made float16), and on the evaluator after each model was written and read again, optimized, or
raised to opset 13, 17, 21 and 23: what passes and what does not is the same there. `ctest -L conformance` runs
them all; a test that is listed below and begins to pass is an error, so the list only shrinks. `tests/conformance/report.sh --write` makes this page.

Newer ops, and those of com.microsoft, are compared with what ONNX Runtime computes (`tests/conformance/ops/`), models of PyTorch's newer
exporter with PyTorch (`tests/conformance/exports/`), on both engines in the suite. Of the 1,319 node tests up to opset 23 that ONNX 1.23
generates (`tests/conformance/newer_onnx.py`), 1,235 pass; the others are strings, ai.onnx.ml, training, randomness, DeformConv and
ImageDecoder, half precision that rounds the other way, and what is on the list below.

TEXT
    "$program" --table
}

case $mode in
print) "$program" --table ;;
write) report >"$root/docs/conformance.md.new" && mv "$root/docs/conformance.md.new" "$root/docs/conformance.md" ;;
check) report | diff "$root/docs/conformance.md" - || { echo "docs/conformance.md is not what is measured: tests/conformance/report.sh --write"; exit 1; } ;;
esac
