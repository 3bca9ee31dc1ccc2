#!/usr/bin/env bash
# tests/valgrind.sh BUILD-DIR REGEX: runs the cmocka programs whose name matches under valgrind's memcheck and prints
# "clean: NAME", "not clean: NAME" with the report, or "left out: NAME: why".
set -u
dir=$1 pattern=$2
here=$(cd "$(dirname "$0")" && pwd)
log=$(mktemp)
trap 'rm -f "$log"' EXIT
bad=0
export MLOPT_ISA=avx2
left_out() { # NAME: prints why valgrind cannot say anything about that program
    case $1 in
    unit.measure.bench) echo "it times child processes, which valgrind does not follow" ;;
    esac
}
for program in "$dir"/tests/*; do
    name=$(basename "$program")
    [ -x "$program" ] && [[ $name =~ ^($pattern) ]] || continue
    why=$(left_out "$name")
    [ -z "$why" ] || { echo "left out: $name: $why"; continue; }
    if MLOPT="$dir/mlopt" MLOPT_VALGRIND=1 timeout 7200 valgrind -q --error-exitcode=99 --leak-check=full --errors-for-leak-kinds=definite,indirect \
        --suppressions="$here/valgrind.supp" --vex-guest-max-insns=25 --child-silent-after-fork=yes "$program" >"$log" 2>&1; then
        echo "clean: $name"
    else
        echo "not clean: $name"
        tail -40 "$log"
        bad=1
    fi
done
exit $bad
