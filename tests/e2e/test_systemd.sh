#!/usr/bin/env bash
# The units of deploy/systemd: systemd takes them, what they run is a command of the program with options that it has,
# jobs of a worker keep what they need to be confined, and nothing secret is in a unit.
set -euo pipefail
: "${MLOPT:?the path of the program}"
command -v systemd-analyze >/dev/null || { echo "systemd-analyze is not installed"; exit 77; }
here=${MLOPT_SOURCE_DIR:-$PWD}/deploy/systemd
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }

for unit in "$here"/*.service "$here"/*.timer; do
    sed "s#/usr/bin/mlopt#$MLOPT#g" "$unit" >"$work/$(basename "$unit")"
done
cp "$work/mlopt-worker@.service" "$work/mlopt-worker@1.service"
# all of it at once, each with what it names; what systemd would ignore is a mistake too
systemd-analyze verify --man=no "$work"/mlopt-server.service "$work"/mlopt-worker@1.service "$work"/mlopt-upkeep.service \
    "$work"/mlopt-upkeep.timer >"$work/out" 2>&1 || { cat "$work/out"; fail "systemd-analyze verify"; }
if grep -F "$work" "$work/out"; then fail "systemd finds fault with the units"; fi

# exposure UNIT: systemd's own figure, times ten.
exposure() {
    systemd-analyze security --offline=yes --no-pager "$work/$1" 2>/dev/null | sed -n 's/.*Overall exposure level.*: \([0-9]*\)\.\([0-9]\).*/\1\2/p'
}
for limit in mlopt-server.service:15 mlopt-upkeep.service:15 mlopt-worker@1.service:27; do
    figure=$(exposure "${limit%:*}")
    [ -n "$figure" ] && [ "$figure" -le "${limit#*:}" ] || fail "${limit%:*}: an exposure of $figure, more than ${limit#*:} (tenths)"
    echo "${limit%:*}: $figure tenths"
done

# the commands: each option is one that the program has
grep -hE '^ExecStart=' "$here"/*.service | grep -oE '/usr/bin/mlopt [^;'"'"']*' | while read -r _ verb rest; do
    "$MLOPT" "$verb" --help >"$work/help" || fail "mlopt $verb --help"
    for word in $rest; do
        case $word in --*) grep -qE -- "(^| )$word( |$)" "$work/help" || fail "mlopt $verb has no $word" ;; esac
    done
done

# to be ended gently takes less than systemd waits: --drain and --finish of a server, --drain of a worker
for unit in "$here"/mlopt-server.service "$here"/mlopt-worker@.service; do
    needs=$(grep '^ExecStart=' "$unit" | grep -oE -- '--(drain|finish) [0-9]+' | awk '{ s += $2 } END { print s }')
    waits=$(sed -n 's/^TimeoutStopSec=//p' "$unit")
    [ "$waits" -gt "$needs" ] || fail "${unit##*/}: ended after $waits s, and may take $needs s"
    grep -qx 'KillMode=mixed' "$unit" || fail "${unit##*/}: jobs hear of the signal"
done

# what confines jobs is asked for, and not forbidden
worker=$here/mlopt-worker@.service
for line in 'RestrictNamespaces=user pid net ipc' 'NoNewPrivileges=yes'; do grep -qx "$line" "$worker" || fail "no $line in the worker's unit"; done
grep -q -- '--require-isolation' "$worker" || fail "the worker would start without isolation"
for call in landlock_create_ruleset landlock_add_rule landlock_restrict_self; do grep -qE "^SystemCallFilter=.*$call" "$worker" || fail "no $call"; done
for key in MemoryDenyWriteExecute ProcSubset ProtectProc PrivateNetwork PrivateUsers; do
    ! grep -q "^$key=" "$worker" || fail "$key in the worker's unit"
done

# several on one machine do not know of one another: each is told its part; what units take from files, the recipe sets
grep -q -- ' --memory ${MLOPT_MEMORY} ' "$worker" || fail "each worker offers all of the machine's memory"
grep -hE '^ExecStart=' "$here"/*.service | grep -oE '\$\{MLOPT_[A-Z]*\}' | tr -d '${}' | sort -u | while read -r name; do
    grep -qE "(^|'| )$name=" "$here/../../docs/deploy.md" || fail "docs/deploy.md does not set $name"
done
for file in $(sed -nE 's/^(EnvironmentFile=|LoadCredential=[a-z]*:)//p' "$here"/*.service); do
    grep -qF "$file" "$here/../../docs/deploy.md" || fail "docs/deploy.md does not make $file"
done
grep -q 'fsck --repair' "$here/mlopt-upkeep.service" || fail "what killed writers left fails every night"

# secrets are credentials
! grep -nEi '^(Environment|ExecStart)=.*(password|secret|token)=[^$]' "$here"/*.service || fail "a secret in a unit"
for unit in "$here"/*.service; do grep -q '^LoadCredential=' "$unit" || fail "${unit##*/}: no credential"; done
if command -v systemd-sysusers >/dev/null; then
    mkdir -p "$work/root/etc" "$work/root/usr/lib/sysusers.d"
    cp "$here/mlopt.sysusers" "$work/root/usr/lib/sysusers.d/mlopt.conf"
    systemd-sysusers --root="$work/root" >"$work/out" 2>&1 || { cat "$work/out"; fail "systemd-sysusers"; }
    for unit in "$here"/*.service; do
        grep -q "^$(sed -n 's/^User=//p' "$unit"):" "$work/root/etc/passwd" || fail "${unit##*/}: no such user"
        grep -q "^$(sed -n 's/^Group=//p' "$unit"):" "$work/root/etc/group" || fail "${unit##*/}: no such group"
    done
fi
echo "units hold"
