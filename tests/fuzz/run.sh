#!/usr/bin/env bash
# Builds the libFuzzer targets and runs them, one after the other:
#   tests/fuzz/run.sh [--seconds N] [TARGET…]      60 seconds each of all of them, unless said otherwise
# What is found is left in build-fuzz/found/TARGET; new inputs that reach new code stay in build-fuzz/work/TARGET
# and are the start of the next run. The last lines say how long each target ran, executions, and findings.
set -euo pipefail
cd "$(dirname "$0")/../.."
seconds=60 build=${MLOPT_FUZZ_BUILD:-build-fuzz}
targets=()
while [ $# -gt 0 ]; do
    case $1 in
    --seconds) seconds=$2 && shift ;;
    -*) echo "usage: tests/fuzz/run.sh [--seconds N] [TARGET…]" >&2 && exit 2 ;;
    *) targets+=("$1") ;;
    esac
    shift
done
if [ ${#targets[@]} -eq 0 ]; then
    for f in tests/fuzz/fuzz_*.c; do targets+=("$(basename "$f" .c | sed 's/^fuzz_//')"); done
fi
for t in "${targets[@]}"; do
    [ -e "tests/fuzz/fuzz_$t.c" ] || { echo "no target '$t': there is no tests/fuzz/fuzz_$t.c" >&2 && exit 2; }
done

command -v clang >/dev/null || { echo "libFuzzer comes with clang, which is not installed (apt-get install clang)" >&2 && exit 2; }
cmake -S . --preset fuzz -B "$build" >"$build.log" 2>&1 || { cat "$build.log" && exit 1; }
cmake --build "$build" -j "${MLOPT_JOBS:-$(nproc)}" -- "${targets[@]/#/fuzz.}" >"$build.log" 2>&1 || { tail -40 "$build.log" && exit 1; }
rm -f "$build.log"

# ONNX's own test models, where they are installed, are the best seeds for models.
seeds=$build/seeds-onnx
if [ ! -d "$seeds" ] && [ -d /usr/share/libonnx-testdata/data ]; then
    mkdir -p "$seeds"
    find /usr/share/libonnx-testdata/data -name model.onnx -size -8k | while read -r f; do
        cp "$f" "$seeds/$(basename "$(dirname "$f")")"
    done
fi

mkdir -p "$seeds" # and newer ops, and what a newer exporter writes
cp -u tests/conformance/ops/*.onnx tests/conformance/exports/*.onnx "$seeds"

export ASAN_OPTIONS="detect_leaks=1:allocator_may_return_null=0" OMP_NUM_THREADS=1
export LSAN_OPTIONS="suppressions=$PWD/tests/lsan.supp:print_suppressions=0"
# Targets of files write one for every input: in memory where that is possible. A process that crashes leaves its folder.
scratch=$(mktemp -d -p "$([ -w /dev/shm ] && echo /dev/shm || echo "${TMPDIR:-/tmp}")" mlopt-fuzz-XXXXXX)
trap 'rm -rf "$scratch"' EXIT
export TMPDIR=$scratch
export UBSAN_OPTIONS=print_stacktrace=1
bad=0 report=""
for t in "${targets[@]}"; do
    work=$build/work/$t found=$build/found/$t
    mkdir -p "$work" "$found"
    options=(-rss_limit_mb=2048 -malloc_limit_mb=512 -timeout=10 -max_total_time="$seconds" -print_final_stats=1
        -artifact_prefix="$found/" -max_len=16384)
    [ ! -e "tests/fuzz/$t.dict" ] || options+=(-dict="tests/fuzz/$t.dict")
    corpora=("$work" "tests/fuzz/corpus/$t")
    case $t in
    eval | onnx)
        corpora+=(tests/fuzz/corpus/onnx)
        [ ! -d "$seeds" ] || corpora+=("$seeds")
        ;;
    esac
    log=$build/$t.log begin=$SECONDS status=0
    "$build/fuzz/fuzz.$t" "${options[@]}" "${corpora[@]}" >"$log" 2>&1 || status=$?
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    report+=$(printf '%-10s %6d s %12s executions  %s' "$t" $((SECONDS - begin)) "${runs:-?}" \
        "$([ $status -eq 0 ] && echo clean || echo "FOUND something: $log, $found")")$'\n'
    [ $status -eq 0 ] || bad=1
done
printf '%s' "$report"
exit $bad
