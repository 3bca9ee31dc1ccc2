#!/usr/bin/env bash
# Installs the test packages, builds, and runs the whole suite. The last line is "N passed, N failed".
#   deploy/test.sh            everything: -Werror build, ASan+UBSan build, valgrind on the unit tests of what reads files
#   deploy/test.sh --quick    the -Werror build's tests only
#   deploy/test.sh --long     also valgrind on all other unit tests, on the integration tests and on longer cases, and the long fault campaign
set -uo pipefail
cd "$(dirname "$0")/.."
. deploy/packages.sh

mode=normal
case ${1:-} in
"") ;;
--quick) mode=quick ;;
--long) mode=long ;;
-h | --help) sed -n '2,/^set/{s/^# \{0,1\}//p}' "$0"; exit 0 ;;
*) die "usage: deploy/test.sh [--quick|--long]" ;;
esac

require_debian12
# shellcheck disable=SC2086
install_missing $PACKAGES_BUILD $PACKAGES_RUN $PACKAGES_TEST

jobs=$(nproc)
# Most tests wait for much of their time, for a server's answer or a bound that is to pass: more at a time use that. Beyond some
# eight more than processors, it is memory that they use.
test_jobs=$((jobs * 2 < jobs + 8 ? jobs * 2 : jobs + 8))
# What two of the builds compile alike is compiled once; who has a ccache of one's own keeps it.
if [ -z "${CMAKE_C_COMPILER_LAUNCHER:-}" ] && command -v ccache >/dev/null; then
    export CMAKE_C_COMPILER_LAUNCHER=ccache CCACHE_DIR="$PWD/build-cache" CCACHE_MAXSIZE=2G \
        CCACHE_BASEDIR="$PWD" CCACHE_NOHASHDIR=1 CCACHE_DEPEND=1
fi
passed=0 failed=0 failures="" skipped=""
# Databases and data folders of tests live in memory where there is room and programs may run from it: half of their time
# was the disk's. Room is 400 MB for each that runs at a time, and 6 GB at least. Who has set TMPDIR has chosen.
shm="" shm_kb=$((test_jobs * 400000 > 6000000 ? test_jobs * 400000 : 6000000))
if [ -z "${TMPDIR:-}" ] && [ -w /dev/shm ] && [ "$(df -Pk /dev/shm | awk 'END { print $4 }')" -gt "$shm_kb" ] &&
    ! findmnt -n -o OPTIONS -T /dev/shm | grep -qw noexec; then
    shm=$(mktemp -d /dev/shm/mlopt-test-XXXXXX) && chmod 711 "$shm" && export TMPDIR=$shm
fi
out=$(mktemp -d)
# The cluster that the programs with a database begin with is made once (tests/pg_fixture.h); PostgreSQL's user goes there.
chmod 711 "$out"
export MLOPT_TEST_CLUSTERS=$out/clusters
trap 'rm -rf "$out" ${shm:+"$shm"}' EXIT

# stage NAME: the heading, and how long the one before took.
stage_name="" stage_start=0
stage() {
    [ -z "$stage_name" ] || printf -- '-- %s took %d s\n' "$stage_name" $((SECONDS - stage_start))
    stage_name=$1 stage_start=$SECONDS
    [ -z "$1" ] || printf '== %s\n' "$1"
}

fail() {
    failed=$((failed + 1))
    failures+=" $1"
}

# [targets="NAME…"] build DIR CMAKE-OPTIONS…
build() {
    local dir=$1 targets=${targets:-all}
    shift
    stage "building $dir"
    # shellcheck disable=SC2086
    cmake -S . -B "$dir" -G Ninja -DMLOPT_WERROR=ON "$@" >"$out/log" 2>&1 &&
        cmake --build "$dir" -j "$jobs" --target $targets >>"$out/log" 2>&1 && return 0
    grep -A 20 -E 'error:|FAILED:|CMake Error' "$out/log" | head -60
    tail -5 "$out/log"
    fail "build:$dir"
    return 1
}

# One line a test case of ctest's JUnit report: passed|failed|skipped NAME. A test whose program is missing is "notrun"
# there, as one that skips itself is; only its message tells them apart.
results() {
    awk '
    /<testcase / {
        match($0, /name="[^"]*"/); name = substr($0, RSTART + 6, RLENGTH - 7)
        match($0, /status="[^"]*"/); status = substr($0, RSTART + 8, RLENGTH - 9)
        if (status == "run") print "passed", name
        else if (status == "disabled") print "skipped", name
        else if (status != "notrun") print "failed", name
    }
    status == "notrun" && /<skipped message=/ { print (/SKIP_RETURN_CODE/ ? "skipped" : "failed"), name; status = "" }
    ' "$1"
}

# suite NAME DIR CTEST-OPTIONS…: counts by ctest's report; ctest ending badly without one failed test is a failure too.
suite() {
    local name=$1 dir=$2 report="$out/$1.xml" p f s code=0
    shift 2
    stage "$name"
    (cd "$dir" && timeout 21600 ctest --output-on-failure --no-tests=error --output-junit "$report" "$@") || code=$?
    results "$report" >"$out/results" 2>/dev/null
    p=$(grep -c '^passed ' "$out/results")
    f=$(grep -c '^failed ' "$out/results")
    s=$(grep -c '^skipped ' "$out/results")
    passed=$((passed + p))
    failed=$((failed + f))
    [ "$f" = 0 ] || failures+=" $(sed -n "s/^failed /$name:/p" "$out/results" | tr '\n' ' ')"
    [ "$s" = 0 ] || skipped+=" $(sed -n "s/^skipped /$name:/p" "$out/results" | tr '\n' ' ')"
    if [ $((p + f)) = 0 ] || { [ $code != 0 ] && [ "$f" = 0 ]; }; then fail "$name:ctest-ended-with-$code"; fi
}

# Lines and functions are what valgrind and a debugger's backtrace need; all else that -g writes is the linker's work.
release=(-DCMAKE_BUILD_TYPE=RelWithDebInfo "-DCMAKE_C_FLAGS_RELWITHDEBINFO=-O2 -g1 -DNDEBUG")
# The seconds of changed inputs are spent below, with sanitizers; the corpus is replayed here too, in a moment.
without=()
[ $mode = quick ] || without=(-E '^fuzz[.].*[.]short$')
build build-test "${release[@]}" && suite release build-test -j "$test_jobs" "${without[@]}"

if [ $mode != quick ]; then
    build build-asan -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS_DEBUG="-g1 -O1" -DMLOPT_SANITIZE=address,undefined &&
        suite asan build-asan -j "$test_jobs" -L 'unit|db|fault|conformance|fuzz'
    # Without the service the program is another one, and is started by one unit test. The others hold none of it: they would be
    # the very bytes that were run above.
    targets="mlopt mlopt_shared unit.steps.memory" build build-toolchain "${release[@]}" -DMLOPT_SERVICE=OFF &&
        suite toolchain build-toolchain -R '^unit[.]steps[.]memory$'
    # valgrind sees AVX2 only, and runs code some fifty times slower: here what reads bytes from outside and builds graphs of them
    # or writes them into pages. Arithmetic, and the servers, which the sanitizers have just run, are for the long form.
    label='unit\.(base|graph|html|cli|measure\.(dataset|metric|npz|postprocess|run|synthetic)|passes\.golden'
    label+='|steps\.(quantize_data|recipe|report|signature))'
    [ $mode = long ] && label='unit|integration' && export MLOPT_VALGRIND=long
    stage valgrind
    if [ -x build-test/mlopt ]; then
        tests/valgrind.sh build-test "$label" >"$out/valgrind" 2>&1
        echo "the longest:"
        sed -n 's/^clean: \(.*\) (\([0-9]*\) s)$/\2 \1/p' "$out/valgrind" | sort -rn | head -12
        grep '^left out: ' "$out/valgrind"
        p=$(grep -c '^clean: ' "$out/valgrind")
        f=$(grep -c '^not clean: ' "$out/valgrind")
        [ "$p" -gt 0 ] || f=$((f + 1))
        grep -A 40 '^not clean: ' "$out/valgrind"
        passed=$((passed + p))
        failed=$((failed + f))
        [ "$f" = 0 ] || failures+=" $(grep '^not clean: ' "$out/valgrind" | sed 's/^not clean: /valgrind:/' | tr '\n' ' ')"
    fi
    if [ $mode = long ]; then
        MLOPT_FAULT_SECONDS=1500 suite fault-long build-test -L fault --timeout 7200
    fi
fi

stage ""
[ -z "$skipped" ] || printf 'skipped:%s\n' "$skipped"
[ -z "$failures" ] || printf 'failed:%s\n' "$failures"
printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
