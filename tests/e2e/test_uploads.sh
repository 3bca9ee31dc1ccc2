#!/usr/bin/env bash
# A large upload that is killed, client or server, goes on where it was: what had arrived is not sent again.
set -euo pipefail
. "$(dirname "$0")/e2e.sh"
cd "$work"
start_up
address=${MLOPT_URL#http://}
size=$((200 << 20)) piece=$((32 << 20))

# offset ID: where the upload stands, by the server.
offset() {
    curl -sf -H "Authorization: Bearer $MLOPT_TOKEN" "$MLOPT_URL/v1/projects/demo/uploads/$1" >state.json || return 1
    json "d['offset']" state.json
}

# interrupt WHO: pushes until some of it has arrived, then kills WHO. Sets $id and $arrived.
interrupt() {
    local who=$1 try pid
    for try in 1 2 3 4 5; do
        head -c $size /dev/urandom >weights.bin
        "$MLOPT" push demo/large "$model" weights.bin >push.log 2>&1 </dev/null &
        pid=$!
        while kill -0 $pid 2>/dev/null && ! find data -path '*/uploads/*' -size +40M 2>/dev/null | grep -q .; do sleep 0.005; done
        if [ "$who" = client ]; then
            kill -KILL $pid 2>/dev/null || true
        else
            kill -KILL "$up_pid"
        fi
        wait $pid 2>/dev/null && { [ "$who" = client ] && continue; }
        id=$(find data -path '*/uploads/*' -size +40M -printf '%f\n' | head -1)
        if [ "$who" = server ]; then
            wait "$up_pid" 2>/dev/null || true
            start_up
        fi
        [ -n "$id" ] && return 0
    done
    fail "five uploads of $size bytes were all faster than the kill of the $who"
}

# resume: the second push sends what is missing.
resume() {
    local arrived first
    wait_until "the server counts what arrived" offset "$id" >/dev/null
    sleep 0.2
    arrived=$(offset "$id")
    [ "$arrived" -ge $piece ] || fail "only $arrived bytes of the upload count"
    expect 0 "$MLOPT" push demo/large "$model" weights.bin --progress json
    first=$(python3 -c 'import json, sys
print(int(min(l["fraction"] for l in map(json.loads, sys.stdin) if l["what"] == "weights.bin") * int(sys.argv[1])))' $size <stderr)
    [ "$first" -ge "$arrived" ] || fail "$arrived of $size bytes were there, and it was sent from $first on"
    echo "after the kill of the $1: $arrived of $size bytes were there and were not sent again"
    ! find data -path '*/uploads/*' -type f | grep -q . || fail "the session is still there"
    [ -z "$(ls "$HOME"/.local/state/mlopt/uploads)" ] || fail "the client still remembers the session"
    digest=sha256:$(sha256sum weights.bin | cut -d' ' -f1)
    curl -sf -H "Authorization: Bearer $MLOPT_TOKEN" "$MLOPT_URL/v1/projects/demo/blobs/$digest" | cmp - weights.bin
}

interrupt client
resume client
interrupt server
resume server
stop_up
