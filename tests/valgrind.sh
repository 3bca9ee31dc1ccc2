#!/usr/bin/env bash
# tests/valgrind.sh BUILD-DIR REGEX: runs the cmocka programs whose name matches under valgrind's memcheck and prints
# "clean: NAME" or "not clean: NAME" with the report.
set -u
dir=$1 pattern=$2
here=$(cd "$(dirname "$0")" && pwd)
log=$(mktemp)
trap 'rm -f "$log"' EXIT
bad=0
for program in "$dir"/tests/*; do
    name=$(basename "$program")
    [ -x "$program" ] && [[ $name =~ ^($pattern) ]] || continue
    if MLOPT="$dir/mlopt" MLOPT_VALGRIND=1 timeout 900 valgrind -q --error-exitcode=99 --leak-check=full --errors-for-leak-kinds=definite,indirect \
        --suppressions="$here/valgrind.supp" --child-silent-after-fork=yes "$program" >"$log" 2>&1; then
        echo "clean: $name"
    else
        echo "not clean: $name"
        tail -40 "$log"
        bad=1
    fi
done
exit $bad
