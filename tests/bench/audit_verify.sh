#!/usr/bin/env bash
# How fast `mlopt audit PROJECT verify` goes over a long log, and how much memory it takes:
#   tests/bench/audit_verify.sh BUILD [ENTRIES] [ROUNDS]
# BUILD is a build folder (RelWithDebInfo or Release); 1000000 entries, 3 rounds. Needs psql. The entries are made
# by SQL as the database's owner, in the format of the service, so that their making takes half a minute.
set -euo pipefail
build=$(realpath "$1"); entries=${2:-1000000}; rounds=${3:-3}
work=$(mktemp -d "${TMPDIR:-/tmp}/mlopt-audit-XXXXXX")
server=
finish() { [ -z "$server" ] || { kill "$server"; wait "$server"; } 2>/dev/null || true; rm -rf "$work"; }
trap finish EXIT
chmod 755 "$work"
export XDG_STATE_HOME=$work/state XDG_CONFIG_HOME=$work/config no_proxy='*' PATH=$build:$PATH
mlopt up --data "$work/data" --workers 0 --listen 127.0.0.1:0 >"$work/out" 2>"$work/log" &
server=$!
for _ in $(seq 600); do grep -q '^ready: ' "$work/out" && break; sleep 0.1; done
MLOPT_URL=$(sed -n 's/^ready: *//p' "$work/out"); export MLOPT_URL
MLOPT_TOKEN=$(cat "$work/data/token"); export MLOPT_TOKEN
[ -n "$MLOPT_URL" ] || { cat "$work/log" >&2; exit 1; }
curl -sSf -H "Authorization: Bearer $MLOPT_TOKEN" -H "Content-Type: application/json" -d "{\"name\": \"long\"}" "$MLOPT_URL/v1/projects" >/dev/null
psql -X -q -h "$work/data/pg/socket" -U mlopt_owner -d mlopt -v ON_ERROR_STOP=1 -c "
set search_path = mlopt;
do \$\$
declare
    chain bigint := (select id from project where name = 'long');
    n bigint; h bytea; prev bytea; b bytea;
begin
    select seq, hash into n, h from audit_head where project_id = chain for update;
    for i in 1..$entries loop
        b := convert_to('{\"action\":\"tag.set\",\"address\":\"127.0.0.1\",\"after\":{\"key\":\"owner\",\"value\":\"team ' || i || '\"},\"at\":\"2026-11-22T08:00:00.000Z\",\"before\":null,\"object\":\"long/m@' || i || '\",\"reason\":\"a routine change of a label, number ' || i || '\",\"request_id\":\"' || md5(i::text) || '\",\"token_id\":1,\"via\":\"api\",\"who\":\"pipeline\"}', 'UTF8');
        prev := h; n := n + 1;
        h := sha256(prev || int8send(n) || b);
        insert into audit values (chain, n, prev, b, h);
    end loop;
    update audit_head set seq = n, hash = h where project_id = chain;
end \$\$; analyze audit;"
for round in $(seq "$rounds"); do
    began=$(date +%s.%N)
    /usr/bin/time -f '%M KB' -o "$work/time" mlopt audit long verify >"$work/verified"
    took=$(echo "$(date +%s.%N) - $began" | bc)
    echo "round $round: $(cat "$work/verified"): $(echo "scale=0; $entries * 60 / $took" | bc) entries a minute, $took s; client's memory $(tail -1 "$work/time"), server's peak $(sed -n 's/^VmHWM:[ \t]*//p' "/proc/$server/status")"
done
