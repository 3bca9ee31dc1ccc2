#!/usr/bin/env bash
# tests/valgrind.sh BUILD-DIR REGEX: runs the cmocka programs whose name matches under valgrind's memcheck, one more at a time
# than there are processors (some wait), and prints "clean: NAME (N s)", "not clean: NAME" with the report, or "left out: NAME: why".
set -u
here=$(cd "$(dirname "$0")" && pwd)
dir=$(cd "$1" && pwd) pattern=$2
# MLOPT_VALGRIND: with "short" a program may do less of what is only arithmetic; "long" is all of it.
export MLOPT_ISA=avx2 MLOPT_VALGRIND=${MLOPT_VALGRIND:-short}

left_out() { # NAME: prints why valgrind cannot say anything about that program
    case $1 in
    unit.measure.bench) echo "it times child processes, which valgrind does not follow" ;;
    integration.api.upload_memory) echo "it bounds the memory of its process, most of which would be valgrind's" ;;
    esac
}

# One program: what it prints comes out in one piece.
check() { # PROGRAM
    local name log code=0 start=$SECONDS
    name=$(basename "$1")
    log=$(mktemp)
    MLOPT="$dir/mlopt" timeout 7200 valgrind -q --error-exitcode=99 --leak-check=full --errors-for-leak-kinds=definite,indirect \
        --suppressions="$here/valgrind.supp" --vex-guest-max-insns=25 --child-silent-after-fork=yes "$1" >"$log" 2>&1 || code=$?
    (
        flock 9
        if [ $code = 0 ]; then
            echo "clean: $name ($((SECONDS - start)) s)"
        else
            echo "not clean: $name"
            tail -40 "$log"
        fi
    ) 9<"$here/valgrind.supp"
    rm -f "$log"
    [ $code = 0 ]
}

if [ "${3:-}" = --one ]; then
    check "$4"
    exit
fi

# The longest first, by what ctest wrote down when it ran them without valgrind.
costs=$dir/Testing/Temporary/CTestCostData.txt
list=$(mktemp)
trap 'rm -f "$list"' EXIT
for program in "$dir"/tests/*; do
    name=$(basename "$program")
    [ -x "$program" ] && [[ $name =~ ^($pattern) ]] || continue
    why=$(left_out "$name")
    [ -z "$why" ] || { echo "left out: $name: $why"; continue; }
    cost=$(awk -v name="$name" '$1 == name { print $3 }' "$costs" 2>/dev/null)
    printf '%s %s\0' "${cost:-0}" "$program" >>"$list"
done
sort -z -k1,1rg "$list" | sed -z 's/^[^ ]* //' | xargs -0 -r -n 1 -P $(($(nproc) + 1)) "$0" "$dir" "$pattern" --one
