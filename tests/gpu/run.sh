#!/bin/bash
# On a machine with an NVIDIA GPU: builds, tests every kernel and whole models, measures next to torch.compile. See README.md.
#   tests/gpu/run.sh [--out DIR] [--minutes 8] [--built BUILD] [--tune SECONDS] [-- options of compare.py]
# Without a GPU it builds everything, and ends with a line that says so.
set -u
cd "$(dirname "$0")/../.." || exit 1
out=${OUT:-build-gpu/results} minutes=8 built= tune=0
while [ $# -gt 0 ]; do
    case $1 in
    --out) out=$2; shift 2 ;;
    --minutes) minutes=$2; shift 2 ;;
    --built) built=$2; shift 2 ;;
    --tune) tune=$2; shift 2 ;;
    --) shift; break ;;
    *) echo "usage: tests/gpu/run.sh [--out DIR] [--minutes N] [--built BUILD] [--tune SECONDS] [-- options of compare.py]" >&2; exit 2 ;;
    esac
done
begin=$(date +%s) until=$(($(date +%s) + minutes * 60))
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 1
python=${PYTHON:-python3}
failed=0
say() { echo "== $* ($(($(date +%s) - begin)) s)"; }
left() { echo $((until - $(date +%s))); }
# step NAME LIMIT COMMAND…: a failure is noted, and the rest goes on
step() {
    local name=$1 limit=$2 rest
    shift 2
    rest=$(left)
    [ "$limit" -gt "$rest" ] && limit=$rest
    if [ "$limit" -lt 10 ]; then
        say "$name: left out, no time"
        return 0
    fi
    say "$name"
    if timeout -k 5 "$limit" "$@" >"$out/$name.log" 2>&1; then
        tail -n 3 "$out/$name.log"
    else
        echo "FAILED: $name (rc $?)"
        tail -n 25 "$out/$name.log"
        failed=1
    fi
}

# parts NAME LIMIT COMMAND…: a process for each processor, each with its share of the cases (tests/part.h)
parts() {
    local name=$1 limit=$2 rest i bad=0 count
    shift 2
    count=$(nproc) rest=$(left)
    [ "$count" -le 16 ] || count=16
    [ "$limit" -gt "$rest" ] && limit=$rest
    if [ "$limit" -lt 10 ]; then
        say "$name: left out, no time"
        return 0
    fi
    say "$name, in $count parts"
    for i in $(seq "$count"); do
        (MLOPT_PART=$i/$count timeout -k 5 "$limit" "$@"; echo "rc $?") >"$out/$name-$i.log" 2>&1 &
    done
    wait
    for i in $(seq "$count"); do
        case $(tail -n 1 "$out/$name-$i.log") in
        "rc 0") ;;
        *)
            bad=$((bad + 1))
            tail -n 25 "$out/$name-$i.log"
            ;;
        esac
    done
    grep -h "left out\|^no kernel" "$out/$name"-[0-9]*.log >"$out/$name-left-out.txt"
    echo "$((count - bad)) of $count parts passed; $(wc -l <"$out/$name-left-out.txt") cases have no kernel"
    [ $bad = 0 ] || { echo "FAILED: $name"; failed=1; }
}

# --- packages that the box lacks: unpacked, not installed ---
root=$PWD/build-gpu/root
if [ -z "$built" ] && ls tests/gpu/packages/*.deb >/dev/null 2>&1; then
    mkdir -p "$root"
    for package in tests/gpu/packages/*.deb; do
        dpkg -x "$package" "$root" || exit 1
    done
    lib=$root/usr/lib/x86_64-linux-gnu
    export PATH=$root/usr/bin:$PATH LD_LIBRARY_PATH=$lib:$root/lib/x86_64-linux-gnu:${LD_LIBRARY_PATH:-}
    export LIBRARY_PATH=$lib:${LIBRARY_PATH:-} CPATH=$root/usr/include:$root/usr/include/x86_64-linux-gnu:${CPATH:-}
    export PKG_CONFIG_PATH=$lib/pkgconfig:$root/usr/share/pkgconfig CMAKE_PREFIX_PATH=$root/usr:${CMAKE_PREFIX_PATH:-}
    # what the .pc files call /usr
    for file in "$lib"/pkgconfig/*.pc; do
        sed -i "s|^prefix=/usr\$|prefix=$root/usr|; s|=/usr/|=$root/usr/|" "$file"
    done
fi

# --- CUDA's headers and libraries: a toolkit, or what PyTorch brought ---
packages=$($python - <<'P' 2>/dev/null
import glob, os, sysconfig
for p in sorted(glob.glob(os.path.join(sysconfig.get_paths()["purelib"], "nvidia", "*"))):
    print(p)
P
)
options=()
find_header() { # NAME FILE
    local place
    for place in "${CUDA_HOME:-/usr/local/cuda}/include" /usr/include $(for p in $packages; do echo "$p/include"; done); do
        if [ -e "$place/$2" ]; then
            options+=("-DMLOPT_$1_INCLUDE=$place")
            return
        fi
    done
}
find_header cuda cuda.h; find_header nvrtc nvrtc.h; find_header cublasLt cublasLt.h; find_header cudnn cudnn.h
for p in $packages; do
    [ -d "$p/lib" ] && MLOPT_CUDA_LIBS=${MLOPT_CUDA_LIBS:+$MLOPT_CUDA_LIBS:}$p/lib
done
export MLOPT_CUDA_LIBS=${MLOPT_CUDA_LIBS:-}

# --- build ---
if [ -z "$built" ]; then
    built=build-gpu/build
    say "building"
    generator=()
    command -v ninja >/dev/null && generator=(-G Ninja)
    cmake -S . -B $built "${generator[@]}" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DMLOPT_SERVICE=OFF -DMLOPT_CUDA=AUTO "${options[@]}" \
        >"$out/configure.log" 2>&1 || { tail -n 30 "$out/configure.log"; echo "FAILED: configuring"; exit 1; }
    grep "cuda engine" "$out/configure.log"
    targets=(mlopt conformance.exports.exports conformance.graph.onnx_backend unit.engines.cuda_tune unit.engines.cuda_found)
    grep -q "plugin is built" "$out/configure.log" && targets+=(mlopt_engine_cuda)
    cmake --build $built -j "$(nproc)" --target "${targets[@]}" >"$out/build.log" 2>&1 ||
        { grep -E "error|FAILED" "$out/build.log" | head -30; echo "FAILED: building"; exit 1; }
fi
built=$(cd "$built" && pwd) || exit 1
mlopt=$built/mlopt
[ -x "$mlopt" ] && [ -x "$built/tests/conformance.exports.exports" ] || { echo "FAILED: $built lacks mlopt or its tests"; exit 1; }
PYTHONPYCACHEPREFIX=$out/pycache $python -m py_compile tests/gpu/nets.py tests/gpu/compare.py || { echo "FAILED: the scripts do not compile"; exit 1; }
say "built"

# --- what is here ---
"$mlopt" engines cuda >"$out/engines.txt" 2>"$out/engines.err"
here=$?
"$mlopt" engines cuda -o json >"$out/engines.json" 2>/dev/null
cat "$out/engines.txt"
if [ $here -eq 9 ]; then
    if nvidia-smi -L 2>/dev/null | grep -q '^GPU '; then # there is one: a green end would say that it was tried
        cat "$out/engines.err"
        echo "FAILED: this machine has a GPU, and the cuda engine cannot use it"
        grep "cuda engine" "$out/configure.log" 2>/dev/null
        exit 1
    fi
    echo "no GPU that can be used: everything was built, nothing was run on a GPU"
    exit 0
elif [ $here -ne 0 ]; then
    cat "$out/engines.err"
    exit 1
fi
sm=$($python -c "import json,sys; print(json.load(open(sys.argv[1]))['found']['gpus'][0]['sm'])" "$out/engines.json") || exit 1

# --- every op: outputs poisoned, against the reference engine's and stored values ---
for folder in ops exports; do
    parts "kernels-$folder" 120 env MLOPT_EXPORTS="$PWD/tests/conformance/$folder" MLOPT_EXPORTS_ENGINE=cuda \
        "$built/tests/conformance.exports.exports"
done
onnx=$root/usr/share/libonnx-testdata/data
[ -d "$onnx" ] || onnx=/usr/share/libonnx-testdata/data
if [ -d "$onnx" ]; then
    parts kernels-onnx 150 env MLOPT_ONNX_DATA="$onnx" "$built/tests/conformance.graph.onnx_backend" --gpu
else
    say "ONNX's own tests: left out, libonnx-testdata is not here"
fi
sanitizer=$(command -v compute-sanitizer || ls "${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer" 2>/dev/null)
if [ -n "$sanitizer" ]; then # graphs off, so that it says which kernel
    parts memcheck 100 env MLOPT_CUDA_GRAPHS=off MLOPT_EXPORTS="$PWD/tests/conformance/ops" MLOPT_EXPORTS_ENGINE=cuda \
        "$sanitizer" --tool memcheck --error-exitcode 9 "$built/tests/conformance.exports.exports"
    parts racecheck 60 env MLOPT_CUDA_GRAPHS=off MLOPT_EXPORTS="$PWD/tests/conformance/exports" MLOPT_EXPORTS_ENGINE=cuda \
        "$sanitizer" --tool racecheck --error-exitcode 9 "$built/tests/conformance.exports.exports"
else
    say "compute-sanitizer: left out, it is not here"
fi

# --- whole models ---
if $python -c "import torch, numpy; assert torch.cuda.is_available()" 2>/dev/null; then
    step models "$(left)" $python tests/gpu/compare.py --mlopt "$mlopt" --work build-gpu/models --out "$out" --target "cuda:sm$sm" \
        --until "$until" --tune "$tune" "$@"
    cat "$out/results.md" 2>/dev/null
else
    say "whole models: left out, there is no PyTorch with CUDA"
fi
say "done: $([ $failed -eq 0 ] && echo "nothing failed" || echo "with failures"), results in $out"
exit $failed
