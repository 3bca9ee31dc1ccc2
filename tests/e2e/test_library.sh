#!/usr/bin/env bash
# libmlopt.so as a user gets it: installed, found by pkg-config, with exactly the symbols of the list; the C and
# Python examples give what `mlopt run` gives.
set -eu
source_dir=${MLOPT_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
binary_dir=${MLOPT_BINARY_DIR:-$source_dir/build}
mlopt=${MLOPT:-$binary_dir/mlopt}
model=$source_dir/deploy/models/fashion_cnn.onnx
examples=$source_dir/api/lib/examples
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAIL: $*" >&2; exit 1; }

cmake --install "$binary_dir" --prefix "$work/inst" >"$work/install.log" || fail "cmake --install: $(tail -3 "$work/install.log")"
pc=$(find "$work/inst" -name mlopt.pc)
lib=$(dirname "$(find "$work/inst" -name libmlopt.so)")
[ -f "$pc" ] && [ -f "$work/inst/include/mlopt.h" ] || fail "installed files are missing: $(find "$work/inst" -type f)"
export PKG_CONFIG_PATH=${pc%/*}
for file in man/man1/mlopt.1 bash-completion/completions/mlopt zsh/site-functions/_mlopt fish/vendor_completions.d/mlopt.fish; do
    grep -q promote "$work/inst/share/$file" || fail "share/$file was not installed, or says nothing"
done

# Symbols: what is exported is the list, each with its version; nothing of the rooms shows.
nm -D --defined-only "$lib/libmlopt.so" | awk '$2 != "A" {print $3}' | sort >"$work/symbols"
diff -u "$source_dir/tests/lib/symbols.txt" "$work/symbols" || fail "exported symbols differ from tests/lib/symbols.txt: a release keeps its symbols; new ones get a new version"
readelf -d "$lib/libmlopt.so" | grep -q 'SONAME.*\[libmlopt\.so\.1\]' || fail "the SONAME is not libmlopt.so.1"
grep -oE '\bmlopt_[a-z_]+\(' "$work/inst/include/mlopt.h" | tr -d '(' | sort -u >"$work/declared"
sed 's/@@.*//' "$source_dir/tests/lib/symbols.txt" | sort -u | diff -u "$work/declared" - || fail "mlopt.h and the list differ"

# The header alone, as C99 and as C++ where there is a compiler.
printf '#include <mlopt.h>\nint main(void) { return MLOPT_OK; }\n' >"$work/alone.c"
cc -std=c99 -pedantic -Wall -Wextra -Werror $(pkg-config --cflags mlopt) -fsyntax-only "$work/alone.c"
if command -v c++ >/dev/null; then
    cp "$work/alone.c" "$work/alone.cc"
    c++ -Wall -Wextra -Werror $(pkg-config --cflags mlopt) -fsyntax-only "$work/alone.cc"
fi

if ldd "$lib/libmlopt.so" | grep -qE 'lib(asan|tsan)'; then
    echo "built with a sanitizer: the examples were not run"
    exit 0
fi
export LD_LIBRARY_PATH=$lib
for example in run threads; do
    cc -std=gnu11 -Wall -Wextra -Werror "$examples/$example.c" $(pkg-config --cflags --libs mlopt) -pthread -o "$work/$example"
done
"$work/run" "$model" >"$work/zeros.txt" || fail "the C example ended with $?"
grep -q 'input image: float32\[1,1,28,28\]' "$work/zeros.txt" || fail "$(cat "$work/zeros.txt")"
grep -q 'output logits: float32\[1,10\]' "$work/zeros.txt" || fail "$(cat "$work/zeros.txt")"
"$work/threads" "$model" 2 0.2 >"$work/threads.txt" || fail "the threads example ended with $?"
grep -qE '2 threads: [0-9]+ calls a second; 1 plan, [12] sets of buffers' "$work/threads.txt" || fail "$(cat "$work/threads.txt")"
head -c 100 "$model" >"$work/short.onnx"
if "$work/run" "$work/short.onnx" 2>"$work/short.txt"; then fail "a truncated model ran"; fi
grep -q '^format: ' "$work/short.txt" || fail "no clear error: $(cat "$work/short.txt")"

# A plan: mapped instead of compiled, for its own shapes, and only when its signer is trusted.
export XDG_CONFIG_HOME=$work/config XDG_CACHE_HOME=$work/cache
"$mlopt" compile "$model" --out "$work/m.plan" >/dev/null || fail "mlopt compile"
"$work/run" "$work/m.plan" >"$work/plan.txt" || fail "the plan did not run: $(cat "$work/plan.txt")"
diff <(tail -1 "$work/zeros.txt" | cut -c1-12) <(tail -1 "$work/plan.txt" | cut -c1-12) || fail "the plan gives something else"
if XDG_CONFIG_HOME=$work/stranger "$work/run" "$work/m.plan" 2>"$work/stranger.txt"; then fail "a stranger's plan ran"; fi
grep -q '^refused: ' "$work/stranger.txt" || fail "no clear refusal: $(cat "$work/stranger.txt")"

if ! /usr/bin/python3 -c 'import numpy' 2>/dev/null; then
    echo "python3-numpy is not installed: the Python example was not run"
    exit 77
fi
/usr/bin/python3 - "$work" <<'PY'
import sys
import numpy
numpy.savez(sys.argv[1] + "/in.npz", x=numpy.random.default_rng(1).random((5, 1, 28, 28), dtype=numpy.float32))
PY
export MLOPT_LIBRARY=$lib/libmlopt.so.1
/usr/bin/python3 "$examples/mlopt_numpy.py" "$model" "$work/in.npz" "$work/out.npz" >"$work/python.txt"
"$mlopt" run "$model" --data "$work/in.npz" --out "$work/want.npz" >/dev/null
/usr/bin/python3 - "$work" "$examples" "$model" <<'PY'
import sys
import threading
work, examples, model = sys.argv[1:]
sys.path.insert(0, examples)
import numpy
import mlopt_numpy
got, want = numpy.load(work + "/out.npz")["logits"], numpy.load(work + "/want.npz")["logits"]
assert got.shape == (5, 10) and numpy.allclose(got, want, rtol=1e-4, atol=1e-4), (got, want)
session = mlopt_numpy.Session(model, threads=2)
assert session.inputs == [("image", "float32", ["batch", 1, 28, 28])], session.inputs
x = numpy.load(work + "/in.npz")["x"]
wrong = []
def run(n):
    for _ in range(20):
        if not numpy.allclose(session.run({"image": x[:n]})["logits"], want[:n], rtol=1e-4, atol=1e-4):
            wrong.append(n)
threads = [threading.Thread(target=run, args=(n,)) for n in (1, 2, 5)]
for t in threads:
    t.start()
for t in threads:
    t.join()
assert not wrong, wrong
try:
    session.run({"image": x[:, :, :27]})
    raise SystemExit("a wrong shape ran")
except mlopt_numpy.MloptError as error:
    assert "float32[5,1,27,28]" in str(error), error
session.close()
PY
echo "library: ok"
