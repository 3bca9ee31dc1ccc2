#!/usr/bin/env bash
# Installs the test packages, builds, and runs the whole suite. The last line is "N passed, N failed".
#   deploy/test.sh            everything: -Werror build, ASan+UBSan build, valgrind on the unit tests
#   deploy/test.sh --quick    the -Werror build's tests only
#   deploy/test.sh --long     also valgrind on all unit and integration tests, and the long fault campaign
set -uo pipefail
cd "$(dirname "$0")/.."
. deploy/packages.sh

mode=normal
case ${1:-} in
"") ;;
--quick) mode=quick ;;
--long) mode=long ;;
*) die "usage: deploy/test.sh [--quick|--long]" ;;
esac

require_debian12
# shellcheck disable=SC2086
install_missing $PACKAGES_BUILD $PACKAGES_RUN $PACKAGES_TEST

jobs=$(nproc)
passed=0 failed=0 failures=""
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# build DIR CMAKE-OPTIONS…
build() {
    local dir=$1
    shift
    echo "== building $dir"
    cmake -S . -B "$dir" -G Ninja -DMLOPT_WERROR=ON "$@" >"$out/log" 2>&1 && cmake --build "$dir" -j "$jobs" >>"$out/log" 2>&1 && return 0
    tail -60 "$out/log"
    failed=$((failed + 1))
    failures+=" build:$dir"
    return 1
}

# suite NAME DIR CTEST-OPTIONS…: counts by ctest's JUnit report, so that a crash of ctest itself cannot pass.
suite() {
    local name=$1 dir=$2 report="$out/$1.xml" p f
    shift 2
    echo "== $name"
    (cd "$dir" && ctest --output-on-failure --no-tests=error --output-junit "$report" "$@")
    if [ ! -s "$report" ]; then
        failed=$((failed + 1))
        failures+=" $name:no-report"
        return
    fi
    p=$(grep -c '<testcase .*status="run"' "$report")
    f=$(grep -c '<testcase .*status="fail"' "$report")
    passed=$((passed + p))
    failed=$((failed + f))
    [ "$f" = 0 ] || failures+=" $(grep '<testcase .*status="fail"' "$report" | sed "s|.*<testcase name=\"\([^\"]*\)\".*|$name:\1|" | tr '\n' ' ')"
}

build build-test -DCMAKE_BUILD_TYPE=RelWithDebInfo && suite release build-test -j "$jobs"

if [ $mode != quick ]; then
    build build-asan -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS_DEBUG="-g -O1" -DMLOPT_SANITIZE=address,undefined &&
        suite asan build-asan -j "$jobs" -L 'unit|db|fault|conformance'
    build build-toolchain -DCMAKE_BUILD_TYPE=RelWithDebInfo -DMLOPT_SERVICE=OFF && suite toolchain build-toolchain -j "$jobs" -L unit -R 'base|graph'
    # valgrind sees AVX2 only, and runs code some fifty times slower: the unit tests that move memory about
    label='unit\.(base|graph|passes|measure|steps|cli)'
    [ $mode = long ] && label='unit|integration'
    echo "== valgrind"
    if [ -x build-test/mlopt ]; then
        MLOPT_ISA=avx2 tests/valgrind.sh build-test "$label" >"$out/valgrind" 2>&1
        tail -5 "$out/valgrind"
        p=$(grep -c '^clean: ' "$out/valgrind")
        f=$(grep -c '^not clean: ' "$out/valgrind")
        [ "$p" -gt 0 ] || f=$((f + 1))
        grep -A 40 '^not clean: ' "$out/valgrind"
        passed=$((passed + p))
        failed=$((failed + f))
        [ "$f" = 0 ] || failures+=" $(grep '^not clean: ' "$out/valgrind" | sed 's/^not clean: /valgrind:/' | tr '\n' ' ')"
    fi
    if [ $mode = long ]; then
        MLOPT_FAULT_SECONDS=1800 suite fault-long build-test -L fault --timeout 3600
    fi
fi

[ -z "$failures" ] || printf 'failed:%s\n' "$failures"
printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
