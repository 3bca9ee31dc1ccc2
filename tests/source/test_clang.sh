#!/usr/bin/env bash
# source.clang: clang accepts every C file with the flags of this build (warnings are errors where they are in it), so that the
# fuzz targets and people who build with clang find no surprise. It only reads the sources: some 20 s on two cores.
set -u
commands=${MLOPT_BINARY_DIR:-build}/compile_commands.json
for tool in clang jq; do
    command -v "$tool" >/dev/null || { echo "skipped: $tool is not installed (apt-get install $tool)" && exit 77; }
done
[ -f "$commands" ] || { echo "skipped: there is no $commands" && exit 77; }

# Each file once: the build's own command, with another compiler that writes nothing.
quiet="-Wno-unknown-warning-option -Wno-unused-command-line-argument -Wno-ignored-optimization-argument"
list=$(jq -r --arg clang "clang $quiet -fsyntax-only" 'unique_by(.file) | .[]
    | "cd \(.directory | @sh) && \(.command | sub("^.*? -"; $clang + " -") | sub(" -o [^ ]+ -c "; " "))"' "$commands")
if ! echo '#include <omp.h>' | clang -fopenmp -fsyntax-only -x c - 2>/dev/null; then
    echo "clang has no omp.h (apt-get install libomp-dev): left out are"
    without=$(grep -rlE '#include <omp\.h>' --include=*.c "${MLOPT_SOURCE_DIR:-.}/engines")
    echo "$without"
    list=$(printf '%s\n' "$list" | grep -vF "$without")
fi
count=$(printf '%s\n' "$list" | wc -l)
[ "$count" -gt 1 ] || { echo "there is no C file in $commands" && exit 1; }
jobs=$(nproc)
if printf '%s\n' "$list" | tr '\n' '\0' | xargs -0 -n 1 -P "$jobs" sh -c; then
    echo "clang: ok, $count files"
else
    echo "clang does not accept some of $count files (above)"
    exit 1
fi
