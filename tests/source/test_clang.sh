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

files=$(jq -r '[.[].file] | unique | .[]' "$commands")
if ! echo '#include <omp.h>' | clang -fopenmp -fsyntax-only -x c - 2>/dev/null; then
    echo "clang has no omp.h (apt-get install libomp-dev): left out are"
    without=$(grep -rlE '#include <omp\.h>' --include=*.c "${MLOPT_SOURCE_DIR:-.}/engines")
    echo "$without"
    files=$(printf '%s\n' "$files" | grep -vF "$without")
fi
count=$(printf '%s\n' "$files" | wc -l)
[ "$count" -gt 1 ] || { echo "there is no C file in $commands" && exit 1; }
jobs=$(nproc)

quiet="-Wno-unknown-warning-option -Wno-unused-command-line-argument -Wno-ignored-optimization-argument"
if command -v clang-check >/dev/null; then
    extra=()
    for flag in $quiet; do extra+=("--extra-arg=$flag"); done
    share=$(((count + 8 * jobs - 1) / (8 * jobs)))
    printf '%s\n' "$files" | tr '\n' '\0' | xargs -0 -n "$share" -P "$jobs" clang-check -p "${commands%/*}" "${extra[@]}"
else
    # Each file once: the build's own command, with another compiler that writes nothing.
    jq -r --arg clang "clang $quiet -fsyntax-only" --arg files "$files" '($files | split("\n")) as $wanted
        | unique_by(.file) | .[] | select(.file as $file | $wanted | index($file))
        | "cd \(.directory | @sh) && \(.command | sub("^.*? -"; $clang + " -") | sub(" -o [^ ]+ -c "; " "))"' "$commands" |
        tr '\n' '\0' | xargs -0 -n 1 -P "$jobs" sh -c
fi || {
    echo "clang does not accept some of $count files (above)"
    exit 1
}
echo "clang: ok, $count files"
