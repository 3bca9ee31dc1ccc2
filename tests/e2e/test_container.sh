#!/usr/bin/env bash
# The file tree of the container: nothing is missing in it, and a server and a worker run in it as a user who is not root,
# with jobs confined by every layer that the machine has.
set -euo pipefail
[ "$(id -u)" = 0 ] || { echo "only root may give a process another root folder"; exit 77; }
command -v dpkg-query >/dev/null || { echo "this machine has no Debian packages"; exit 77; }
. "$(dirname "$0")/e2e.sh"
source=${MLOPT_SOURCE_DIR:-$PWD}
ldd "$MLOPT" | grep -qE 'lib(asan|tsan)' && { echo "a build with sanitizers needs their libraries too"; exit 77; }
# what is no source goes into no image
{ echo .git; sed 's#^/##; s#/$##' "$source/.gitignore"; } | while IFS= read -r name; do
    sed 's#^\*\*/##' "$source/.dockerignore" | grep -qxF -- "$name" || fail "$name is not in .dockerignore"
done
cd "$work"
"$source/deploy/container/tree.sh" "$work/tree" "$MLOPT" >packages.txt || fail "tree.sh"
echo "$(wc -l <packages.txt) packages, $(du -sm tree | cut -f1) MB"

# inside UID [--bind FROM:TO]... -- COMMAND...
in_tree=(python3 "$source/tests/e2e/in_tree.py" "$work/tree")
inside() { "${in_tree[@]}" "$@"; }
code=0
inside 64800 -- /usr/bin/mlopt --version >stdout 2>stderr || code=$?
[ $code != 77 ] || { cat stderr; echo "this machine lets nobody mount"; exit 77; }
[ $code = 0 ] || fail "mlopt --version in the tree: $code"
cmp stdout <("$MLOPT" --version) || fail "another version"
inside 64800 -- /lib64/ld-linux-x86-64.so.2 --list /usr/bin/mlopt >stdout 2>stderr || fail "ld.so"
! grep "not found" stdout || fail "a library is missing: deploy/packages.sh, PACKAGES_PROGRAM"
# what is in the list is needed: a library of each is loaded (the certificates are read)
for p in $(. "$source/deploy/packages.sh" && echo $PACKAGES_PROGRAM); do
    [ "$p" = ca-certificates ] || dpkg -L "$p" | sed 's#.*/##' | grep -Fxf <(awk '{print $1}' stdout) >/dev/null ||
        fail "$p is not needed"
done
[ -s tree/etc/ssl/certs/ca-certificates.crt ] || fail "no certificates"
# a package less is noticed
gone=$(ls tree/usr/lib/x86_64-linux-gnu/libjansson.so.4*)
mkdir aside && mv $gone aside/
! inside 64800 -- /usr/bin/mlopt --version >/dev/null 2>&1 || fail "it runs without a library"
mv aside/* tree/usr/lib/x86_64-linux-gnu/
# the layers that confine jobs are those of the machine
setpriv --reuid 64800 --regid 64800 --clear-groups tree/usr/bin/mlopt doctor -o json >here.json
inside 64800 -- /usr/bin/mlopt doctor -o json >there.json
cmp here.json there.json || { diff here.json there.json; fail "in the tree jobs are confined otherwise"; }

# A PostgreSQL outside; server and worker in the tree, as the user who may connect to it.
start_up --workers 0
uid=$(stat -c %u "$work/data/pg/socket")
[ "$uid" != 0 ] || fail "PostgreSQL runs as root"
install -d -o "$uid" -m 0700 tree/var/lib/mlopt tree/var/lib/mlopt/blobs tree/var/lib/mlopt/work
socket="host=/run/postgresql port=$(ls -A data/pg/socket | sed -n 's/^\.s\.PGSQL\.\([0-9]*\)$/\1/p') dbname=mlopt"
pids=
stop_inside() {
    for p in $pids; do kill -TERM "$p" 2>/dev/null || true; done
    for p in $pids; do wait "$p" 2>/dev/null || true; done
    pids=
}
trap 'stop_inside; clean_up' EXIT
MLOPT_DATABASE="$socket user=mlopt_server" "${in_tree[@]}" "$uid" --bind "$work/data/pg/socket:/run/postgresql" -- \
    /usr/bin/mlopt server --blobs file:/var/lib/mlopt/blobs --listen 127.0.0.1:0 >server.out 2>server.log </dev/null &
server=$!
pids=$server
wait_until "the server in the tree is ready" grep -q '^ready: ' server.out
MLOPT_DATABASE="$socket user=mlopt_worker" "${in_tree[@]}" "$uid" --bind "$work/data/pg/socket:/run/postgresql" -- \
    /usr/bin/mlopt worker --blobs file:/var/lib/mlopt/blobs --work-dir /var/lib/mlopt/work >worker.log 2>&1 </dev/null &
worker=$!
pids="$server $worker"
MLOPT_URL=$(sed -n 's/^ready: //p' server.out)
[ "$(stat -c %u "/proc/$server")" = "$uid" ] || fail "the server in the tree is not user $uid"
printf 'name: small\ntarget: any\nsteps:\n  - optimize: {}\n' >small.yaml
expect 0 "$MLOPT" push fashion/cnn "$model"
expect 0 "$MLOPT" submit fashion/cnn --recipe small.yaml --wait
expect 0 "$MLOPT" variants fashion/cnn -o json
ls tree/var/lib/mlopt/blobs/sha256 | grep -q . || fail "no blob in the tree"
kill -TERM "$worker" && wait "$worker" || fail "the worker in the tree ended with $?"
kill -TERM "$server" && wait "$server" || fail "the server in the tree ended with $?"
pids=
stop_up
