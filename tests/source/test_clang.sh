#!/usr/bin/env bash
# source.clang: clang accepts every C file with the flags of this build (warnings are errors where they are in it), so that the
# fuzz targets and people who build with clang find no surprise. It only reads the sources. clang-check reads many in one process:
# of a process each, half of the time is its start.
set -u
commands=${MLOPT_BINARY_DIR:-build}/compile_commands.json
for tool in clang jq; do
    command -v "$tool" >/dev/null || { echo "skipped: $tool is not installed (apt-get install $tool)" && exit 77; }
done
[ -f "$commands" ] || { echo "skipped: there is no $commands" && exit 77; }

without=""
if ! echo '#include <omp.h>' | clang -fopenmp -fsyntax-only -x c - 2>/dev/null; then
    echo "clang has no omp.h (apt-get install libomp-dev): left out are"
    without=$(grep -rlE '#include <omp\.h>' --include=*.c "${MLOPT_SOURCE_DIR:-.}/engines")
    echo "$without"
fi
# What several programs compile alike is looked at once.
once=$(mktemp -d) || exit 1
trap 'rm -rf "$once"' EXIT
jq --arg without "$without" '($without | split("\n")) as $without
    | map(select(.file as $file | any($without[]; . as $part | $file | contains($part)) | not)
        | del(.output) | .command |= sub(" -o [^ ]+ -c "; " -c ")) | unique' "$commands" >"$once/compile_commands.json"
files=$(jq -r '[.[].file] | unique | .[]' "$once/compile_commands.json")
count=$(printf '%s\n' "$files" | wc -l)
[ "$count" -gt 1 ] || { echo "there is no C file in $commands" && exit 1; }
jobs=$(nproc)

quiet="-Wno-unknown-warning-option -Wno-unused-command-line-argument -Wno-ignored-optimization-argument"
if command -v clang-check >/dev/null; then
    extra=()
    for flag in $quiet; do extra+=("--extra-arg=$flag"); done
    share=$(((count + 8 * jobs - 1) / (8 * jobs)))
    printf '%s\n' "$files" | tr '\n' '\0' | xargs -0 -n "$share" -P "$jobs" clang-check -p "$once" "${extra[@]}"
else
    # The build's own commands, with another compiler that writes nothing.
    jq -r --arg clang "clang $quiet -fsyntax-only" '.[]
        | "cd \(.directory | @sh) && \(.command | sub("^.*? -"; $clang + " -"))"' "$once/compile_commands.json" |
        tr '\n' '\0' | xargs -0 -n 1 -P "$jobs" sh -c
fi || {
    echo "clang does not accept some of $count files (above)"
    exit 1
}
echo "clang: ok, $count files"
