#!/usr/bin/env bash
# A backup that is taken while models come in and are promoted is restored to an installation with the same history, bytes
# and ledger; it is incremental; what is damaged in it is found and named; one that is killed leaves the former whole.
set -euo pipefail
. "$(dirname "$0")/e2e.sh"
cd "$work"
start_up --workers 0
backup=$work/backup

# release N: a version of demo/cnn with weights of its own, promoted.
release() {
    head -c 300000 /dev/urandom >"weights-$1.bin"
    "$MLOPT" push demo/cnn "$model" "weights-$1.bin" >>push.log 2>&1 </dev/null || fail "push $1"
    "$MLOPT" promote "demo/cnn@$1" --variant source --to production --yes --reason "number $1" >>push.log 2>&1 </dev/null || fail "promote $1"
}

# commits URL FILE: the ledger's commit ids, by stock git.
commits() {
    rm -rf clone.git
    git clone -q --bare "http://git:$MLOPT_TOKEN@${1#http://}/v1/projects/demo/ledger.git" clone.git
    git -C clone.git rev-list main >"$2"
}

written() {
    expect 0 "$MLOPT" audit demo verify
    grep -q "$1 signed commits" stdout
}

release 1
release 2
release 3
wait_until "the ledger has three commits" written 3

# --- while the service runs, and is written to
(for i in 4 5 6 7; do release $i; done) &
writer=$!
expect 0 "$MLOPT" backup "$backup" --data data -o json
wait $writer || fail "the service could not be written to while the backup ran"
first=$(json "d['snapshot']")
manifest=$(json "d['digest']")
holds "d['blobs'] >= 4 and d['copied'] == d['blobs'] and d['signed_by'].startswith('SHA256:')"
key=$(json "d['signed_by']")
wait_until "the ledger has seven commits" written 7
expect 0 "$MLOPT" backup verify "$backup" --trust "$key"
shows "ok; "
expect 1 "$MLOPT" backup verify "$backup" --trust SHA256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA
says "not signed by"
# stock ssh-keygen checks the signature
"$MLOPT" keys allowed-signers >allowed 2>/dev/null
ssh-keygen -Y verify -f allowed -I ledger@mlopt -n mlopt-backup -s "$backup/snapshots/$first/manifest.json.sig" \
    <"$backup/snapshots/$first/manifest.json" >/dev/null || fail "ssh-keygen refuses the signature"
[ ! -e "$backup/snapshots/$first/keys" ] || fail "private keys without being asked for"
! grep -rqa "$MLOPT_TOKEN" "$backup/snapshots" || fail "the text of a token is in the backup"

# --- again: only what is new is copied
expect 0 "$MLOPT" backup "$backup" --data data -o json
second=$(json "d['snapshot']")
holds "0 < d['blobs'] - d['copied']"
[ "$second" \> "$first" ] || fail "$second is not after $first"
expect 0 "$MLOPT" backup "$backup" --data data -o json --with-keys
holds "d['copied'] == 0 and d['copied_bytes'] == 0"
third=$(json "d['snapshot']")
[ "$(stat -c %a "$backup/snapshots/$third/keys/ledger.key")" = 600 ] || fail "a private key that others may read"
# the installation's audit log tells of each, with its digest
psql=$(ls /usr/lib/postgresql/*/bin/psql | tail -1)
"$psql" -qAt -h "$work/data/pg/socket" -U mlopt_owner mlopt -c \
    "select convert_from(body, 'UTF8')::json #>> '{after,manifest}' from mlopt.audit where project_id = 0 and convert_from(body, 'UTF8')::json ->> 'action' = 'backup.make' order by seq" >audit.txt
[ "$(wc -l <audit.txt)" = 3 ] && [ "$(head -1 audit.txt)" = "$manifest" ] || { cat audit.txt; fail "the audit log does not name three backups"; }

# --- killed somewhere (every step of it: integration.registry.backup), the former ones stay, and the next one is whole
before=$(ls "$backup/snapshots")
"$MLOPT" backup "$backup" --data data >killed.log 2>&1 </dev/null &
pid=$!
wait_until "a backup is being written" test -e "$backup/snapshots/.incoming"
kill -KILL $pid 2>/dev/null || true
wait $pid 2>/dev/null || true
expect 0 "$MLOPT" backup "$backup" --data data
[ ! -e "$backup/snapshots/.incoming" ] || fail "the remains of a killed backup"
for snapshot in $before; do expect 0 "$MLOPT" backup verify "$backup" --snapshot "$snapshot"; done

# --- restored, it is the same, and it runs
expect 0 "$MLOPT" history demo/cnn -o json
cp stdout history.json
commits "$MLOPT_URL" ids
stop_up
expect 5 "$MLOPT" restore "$backup" --data data
says "is not empty"
mv data original
HOME=$work/elsewhere
mkdir "$HOME"
expect 0 "$MLOPT" restore "$backup" --data data --snapshot "$third" --trust "$key" -o json
holds "d['commits'] == 7 and d['projects'] == 1 and d['keys'] == ['ledger.key']"
[ ! -e data.restoring ] || fail "the folder beside is still there"
start_up --workers 0
expect 0 "$MLOPT" audit demo verify
shows "7 signed commits"
expect 0 "$MLOPT" history demo/cnn -o json
cmp stdout history.json
commits "$MLOPT_URL" ids.restored
cmp ids ids.restored
for i in 1 4 7; do
    curl -sf -H "Authorization: Bearer $MLOPT_TOKEN" -o blob \
        "$MLOPT_URL/v1/projects/demo/blobs/sha256:$(sha256sum "weights-$i.bin" | cut -d' ' -f1)" || fail "weights-$i.bin is not there"
    cmp blob "weights-$i.bin"
done
# who had a token has it still: its hash is in the backup
MLOPT_TOKEN=$(cat original/token) expect 0 "$MLOPT" models demo
release 8
wait_until "the restored service writes its ledger on" written 8
stop_up
rm -rf data

# --- without the private key, which is then given by hand; of the first backup, an older moment
expect 3 "$MLOPT" restore "$backup" --data data --snapshot 20000101T000000.000Z
expect 0 "$MLOPT" restore "$backup" --data data --snapshot "$first" --key original/ledger/ledger.key
start_up --workers 0
expect 0 "$MLOPT" models demo
release_number=$("$MLOPT" history demo/cnn -o json | python3 -c 'import json,sys; d=json.load(sys.stdin); print(len(d if isinstance(d, list) else d["items"]))')
[ "$release_number" -ge 3 ] || fail "only $release_number moves in the first backup"
written "$release_number" || { rm -rf "$HOME/.local"; wait_until "the older ledger" written "$release_number"; }
stop_up
rm -rf data

# --- what is damaged is found and named
flip() { # a bit in the middle of FILE
    chmod u+w "$1"
    python3 - "$1" <<'EOF'
import os, sys
f = open(sys.argv[1], "r+b")
at = os.path.getsize(sys.argv[1]) // 2
f.seek(at)
byte = f.read(1)[0] ^ 1
f.seek(at)
f.write(bytes([byte]))
EOF
}
blob=$(sha256sum weights-2.bin | cut -d' ' -f1)
place=$backup/blobs/sha256/${blob:0:2}/${blob:2:2}/$blob
flip "$place"
expect 1 "$MLOPT" backup verify "$backup"
says "$blob"
expect 1 "$MLOPT" restore "$backup" --data data
says "$blob"
[ ! -e data ] || fail "a damaged backup was restored"
expect 0 "$MLOPT" backup "$backup" --data original --check -o json # from a service that does not run
holds "d['copied'] == 1"
expect 0 "$MLOPT" backup verify "$backup"
last=$(ls "$backup/snapshots" | tail -1)
for file in database.dump blobs manifest.json manifest.json.sig; do
    flip "$backup/snapshots/$last/$file"
    expect 1 "$MLOPT" backup verify "$backup"
    grep -q "$file\|manifest" stderr || fail "$file is not named"
    expect 1 "$MLOPT" restore "$backup" --data data
    flip "$backup/snapshots/$last/$file"
done
expect 0 "$MLOPT" backup verify "$backup"

# --- a blob that the service lost is named, and can be left out
place=original/blobs/sha256/${blob:0:2}/${blob:2:2}/$blob
flip "$place"
expect 0 "$MLOPT" backup "$backup" --data original # its bytes are here already
rm -rf fresh
expect 1 "$MLOPT" backup fresh --data original
says "sha256:$blob"
expect 0 "$MLOPT" backup fresh --data original --allow-damaged -o json
holds "d['missing'] == ['sha256:$blob']"
expect 0 "$MLOPT" backup verify fresh
shows "without sha256:$blob"
echo "backup: ok"
