#!/usr/bin/env bash
# deploy/quickstart.sh with the program of this build: a start, Ctrl-C, a second start, kill -9 of the script and the service, and
# a third start, on one data folder. The folder has a release already: what the example measures, and refuses when the machine is
# busy with something else, is not for a test.
set -euo pipefail
source_dir=${MLOPT_SOURCE_DIR:-$PWD}
# it would install what is missing
(
    . "$source_dir/deploy/packages.sh"
    require_debian12
    # shellcheck disable=SC2086
    dpkg-query -W -f '${db:Status-Status}\n' $PACKAGES_BUILD $PACKAGES_RUN | grep -vqx installed && exit 1
    exit 0
) >/dev/null 2>&1 || { echo "this is not Debian 12 with the packages of quickstart.sh"; exit 77; }
. "$(dirname "$0")/e2e.sh"
export MLOPT_BUILD_DIR=${MLOPT_BINARY_DIR:-$(dirname "$MLOPT")}
[ -f "$MLOPT_BUILD_DIR/build.ninja" ] || { echo "the build is not ninja's"; exit 77; }
script=

# start LOG: in the background, where a shell ignores Ctrl-C for its children unless told otherwise.
start() {
    env --default-signal=INT "$source_dir/deploy/quickstart.sh" --data "$work/data" --listen 127.0.0.1:0 >"$work/$1.log" 2>&1 </dev/null &
    script=$!
    up_pid=$script # what clean_up ends
    wait_until "the service is up" is_up "$1"
}
is_up() {
    grep -q '^The service is up' "$work/$1.log" && return 0
    ! ended "$script" || fail "quickstart.sh ended"
    return 1
}
service_of() { cat /proc/"$1"/task/*/children | tr ' ' '\n' | head -1; }
# ends CODE: waits for the script.
ends() {
    local code=0
    wait "$script" || code=$?
    up_pid=
    [ "$code" = "$1" ] || fail "quickstart.sh ended with $code instead of $1"
}

start_up
expect 0 "$MLOPT" push fashion/cnn "$model"
expect 0 "$MLOPT" promote fashion/cnn@1 --variant source --to production --reason 'practising' --yes
stop_up

start first
grep -q 'login?token=' "$work/first.log" || fail "no link to the pages"
grep -q 'has the example already' "$work/first.log" || fail "the example ran again"
service=$(service_of $script)
kill -INT $script
ends 130
ended "$service" || fail "the service outlives the script"
[ ! -e "$work/data/url" ] || fail "the address is still there"

start second
grep -q 'has the example already' "$work/second.log" || fail "the example ran again"
service=$(service_of $script)
kill -KILL $script "$service"
ends 137
wait_until "the service is gone" ended "$service"

start third
grep -q 'has the example already' "$work/third.log" || fail "the release is lost"
grep -q 'practising' "$work/third.log" || fail "the history is lost"
MLOPT_URL=$(cat "$work/data/url")
MLOPT_TOKEN=$(cat "$work/data/token")
export MLOPT_URL MLOPT_TOKEN
expect 0 "$MLOPT" audit fashion verify
kill -INT $script
ends 130
echo "quickstart: ok"
