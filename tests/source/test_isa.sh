#!/usr/bin/env bash
# FP16 instructions stand in the kernels that are chosen on a CPU that has them, and in no other object of the program's engines.
set -u
objects=${MLOPT_BINARY_DIR:-build-dev}/engines/CMakeFiles/mlopt_engines.dir
command -v objdump >/dev/null || { echo "there is no objdump (binutils)" && exit 77; }
[ -f "$objects/cpu/fast/tile_f16_avx512.c.o" ] || { echo "$objects has no kernels: build it" && exit 1; }
# By the operands' type; conversions between halves and floats are older (F16C).
of_fp16() { objdump -d --no-show-raw-insn "$1" | grep -E '[[:space:]](v[a-z0-9]+[sp]h|vmovw)[[:space:]]' | grep -cvE '[[:space:]]vcvtps2ph[[:space:]]'; }
bad=0
while read -r object; do
    found=$(of_fp16 "$object")
    case $object in
    */tile_f16_avx512.c.o) [ "$found" -gt 0 ] || { echo "$object: no FP16 instruction" && bad=1; } ;;
    *) [ "$found" -eq 0 ] || { echo "$object: $found FP16 instructions" && bad=1; } ;;
    esac
done < <(find "$objects/cpu" -name '*.o')
[ $bad = 0 ] && echo "isa: ok"
exit $bad
