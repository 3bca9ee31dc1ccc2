#!/usr/bin/env bash
# check-source: rules of the tree that a compiler does not check.
set -u
cd "${MLOPT_SOURCE_DIR:-$(dirname "$0")/../..}" || exit 1
bad=0
complain() { # title, lines
    [ -n "$2" ] || return 0
    printf '== %s\n%s\n' "$1" "$2"
    bad=1
}
list() { # works in a git checkout and in an unpacked archive
    if git rev-parse --git-dir >/dev/null 2>&1; then git ls-files -co --exclude-standard -- "$@"; else
        for pattern in "$@"; do find . -path ./build\* -prune -o -path "./$pattern" -print | sed 's|^\./||'; done; fi
}
sources=$(list '*.c' '*.h' | grep -v '^build' | while read -r f; do [ -e "$f" ] && echo "$f"; done)
product=$(printf '%s\n' "$sources" | grep -v '^tests/')

# 1. functions that are unsafe, not reentrant, or exit behind the caller's back
complain "banned functions" "$(printf '%s\n' "$sources" | xargs grep -nE \
    '(^|[^a-zA-Z0-9_>.])(strcpy|strcat|sprintf|vsprintf|gets|strtok|atoi|atol|atof|system|popen|alloca|tmpnam|mktemp|rand|srand|localtime|gmtime|asctime|ctime)\(')"
rooms=$(printf '%s\n' "$product" | grep -E '^(base|graph|passes|engines|registry|pipeline)/' | grep -v '^base/log\.c$')
complain "libraries neither print nor exit" "$(printf '%s\n' "$rooms" | xargs grep -nE \
    '(^|[^a-zA-Z0-9_>.])(printf|puts|perror|exit)\(|fprintf\((stderr|stdout)')"

# 2. who may include whom
direction() { # folder, forbidden rooms
    complain "$1 includes what it may not" "$(printf '%s\n' "$sources" | grep "^$1/" | xargs -r grep -nE "#include \"($2)/")"
}
direction base 'graph|passes|engines|registry|pipeline|api'
direction graph 'passes|engines|registry|pipeline|api'
direction passes 'engines|registry|pipeline|api'
direction engines 'passes|registry|pipeline|api'
direction registry 'graph|passes|engines|pipeline|api'
direction pipeline/measure 'registry|pipeline/steps|pipeline/service|api'
direction pipeline/steps 'registry|pipeline/service|api'
direction pipeline/service 'api'
direction api/html 'graph|passes|engines|registry|pipeline|api/http|api/web|api/cli'
direction api/web 'api/cli'
direction api/http 'api/cli'
complain "onnx.pb-c.h belongs to the importer and exporter" "$(printf '%s\n' "$product" | grep -v '^graph/onnx' | xargs grep -n 'onnx\.pb-c\.h')"
complain "private headers are for their own folder" "$(printf '%s\n' "$product" | xargs awk -F'"' '/#include ".*_impl\.h"/ {
    folder = $2; sub(/\/[^\/]*$/, "", folder); split(folder, of, "/"); split(FILENAME, in_, "/")
    if (index(FILENAME, folder "/") != 1 && of[1] != in_[1]) print FILENAME ": " $2
}')"

# 3. style: no tabs in C, no trailing blanks, marks of unfinished work
complain "tabs or trailing blanks" "$(printf '%s\n' "$sources" | xargs grep -nP '\t|[ \t]+$' | head -20)"
complain "typedefs of structs and enums" "$(printf '%s\n' "$product" | xargs grep -nE 'typedef (struct|enum|union) ' | grep -v '_fn(')"
complain "unfinished work" "$(printf '%s\n' "$product" | xargs grep -nE '\b(TODO|FIXME|XXX|HACK)\b' )"

# 4. every header compiles alone
cc=${CC:-cc}
gen=${MLOPT_BINARY_DIR:-build}/generated
for h in $(printf '%s\n' "$product" | grep '\.h$'); do
    printf '#include "%s"\n' "$h" | "$cc" -std=gnu11 -D_GNU_SOURCE -I. -I"$gen" -I/usr/include/postgresql -fsyntax-only -Wall -x c - 2>/tmp/check-source.$$ ||
        complain "$h does not compile alone" "$(head -5 /tmp/check-source.$$)"
done
rm -f /tmp/check-source.$$

# 5. formatting, where the formatter is installed
if command -v clang-format >/dev/null; then
    complain "not formatted (clang-format -i FILE)" "$(printf '%s\n' "$sources" | xargs clang-format --dry-run 2>&1 | grep -oE '^[^:]+:[0-9]+' | sort -u -t: -k1,1 | head -20)"
else
    echo "clang-format is not installed: formatting was not checked"
fi

[ $bad = 0 ] && echo "check-source: ok"
exit $bad
