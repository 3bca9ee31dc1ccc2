#!/usr/bin/env bash
# A large upload that is killed, client or server, goes on where it was: what had arrived is not sent again. So does a
# download whose connection breaks, or which is killed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/e2e.sh"
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
print(round(min(l["fraction"] for l in map(json.loads, sys.stdin) if l["what"] == "weights.bin") * int(sys.argv[1])))' $size <stderr)
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

# uploads METHOD PATH [OPTION…]: asks for it as the client does.
uploads() {
    curl -sf -X "$1" -H "Authorization: Bearer $MLOPT_TOKEN" "${@:3}" "$MLOPT_URL/v1/projects/demo/$2"
}

# an upload whose bytes the store has lost, or that a server of before does not find, while its row says how far it is:
# it is begun again, where the next piece is refused, and where the end is
lost=$(((32 << 20) + 5))
for arrived in 5 $lost; do
    head -c $lost /dev/urandom >lost.bin
    digest=sha256:$(sha256sum lost.bin | cut -d' ' -f1)
    note=$HOME/.local/state/mlopt/uploads/$(printf '%s demo %s' "$MLOPT_URL" "$digest" | sha256sum | cut -c1-32)
    uploads POST uploads >state.json
    id=$(json "d['id']" state.json)
    head -c $arrived lost.bin | uploads PATCH "uploads/$id" --data-binary @- >state.json
    [ "$(json "d['offset']" state.json)" = $arrived ] || fail "$(cat state.json)"
    printf %s "$id" >"$note"
    rm "data/blobs/uploads/$id"
    expect 0 "$MLOPT" push demo/lost "$model" lost.bin
    says "upload $id"
    says "beginning the upload again"
    uploads GET "blobs/$digest" | cmp - lost.bin
    ! uploads GET "uploads/$id" || fail "the upload without bytes is still there"
    [ ! -e "$note" ] || fail "the client still remembers the upload"
done

# cutter BYTES HOW: a proxy in front of the server; sets $through.
cutter() {
    rm -f cutter.port
    python3 "$here/cutter.py" "$address" "$@" >cutter.port &
    cutter_pid=$!
    for ((i = 0; i < 600; i++)); do [ -s cutter.port ] && break; sleep 0.1; done
    through=http://127.0.0.1:$(cat cutter.port)
}
address=${MLOPT_URL#http://} # of the server that was started last

# an upload that is finished while its pusher does not hear of it, by its own request or by another push, is not sent
# again; and a session that another push has begun by now stays remembered
for request in PUT PATCH; do
    head -c $lost /dev/urandom >finished.bin
    digest=sha256:$(sha256sum finished.bin | cut -d' ' -f1)
    uploads POST uploads >state.json
    id=$(json "d['id']" state.json)
    head -c $piece finished.bin | uploads PATCH "uploads/$id" --data-binary @- >state.json
    command="printf another >note"
    [ $request = PUT ] ||
        command+=" && curl -sf -X PUT -H 'Authorization: Bearer $MLOPT_TOKEN' '$MLOPT_URL/v1/projects/demo/uploads/$id?digest=$digest'"
    cutter $((1 << 30)) lose "$request /v1/projects/demo/uploads/$id" "{ $command; } >&2"
    note=$HOME/.local/state/mlopt/uploads/$(printf '%s demo %s' "$through" "$digest" | sha256sum | cut -c1-32)
    printf %s "$id" >"$note"
    ln -sf "$note" note
    expect 0 "$MLOPT" push demo/finished "$model" finished.bin --url "$through"
    ! grep -F "beginning the upload again" stderr || fail "what was finished was sent again"
    uploads GET "blobs/$digest" | cmp - finished.bin
    ! uploads GET "uploads/$id" >state.json || fail "the answer to $request was not lost: $(cat state.json)"
    [ "$(cat "$note")" = another ] || fail "the session of another push is forgotten"
    rm "$note"
    kill $cutter_pid && wait $cutter_pid 2>/dev/null || true
done

# no connection carries more than 60 of the 200 MB: each goes on behind the one before
cutter $((60 << 20)) cut
expect 0 "$MLOPT" pull demo/large --out cut --url "$through"
cmp weights.bin cut/weights.bin
[ "$(grep -c 'going on behind' stderr)" -ge 3 ] || fail "the connection broke less than three times: $(cat stderr)"
[ -z "$(find cut -name '.mlopt-*')" ] || fail "a part stayed: $(ls -A cut)"
kill $cutter_pid && wait $cutter_pid 2>/dev/null || true

# a pull that is killed leaves its part, and the next one goes on with it
cutter $((90 << 20)) stall
"$MLOPT" pull demo/large --out killed --url "$through" >pull.log 2>&1 </dev/null &
pid=$!
part() { find killed -name '.mlopt-*.part' -size +80M 2>/dev/null | grep .; }
wait_until "80 MB arrive" part >/dev/null
kill -KILL $pid && wait $pid 2>/dev/null || true
kill $cutter_pid && wait $cutter_pid 2>/dev/null || true
arrived=$(stat -c %s "$(part)")
expect 0 "$MLOPT" pull demo/large --out killed --progress json
cmp weights.bin killed/weights.bin
# lines of the large file alone: those of the model beside it begin at 0
first=$(python3 -c 'import json, sys
size = int(sys.argv[1])
lines = [json.loads(l) for l in sys.stdin if l.startswith("{")]
print(round(min(l["fraction"] for l in lines if " of %.1f MB" % (size / 1e6) in l["message"]) * size))' $size <stderr)
[ "$first" -ge "$arrived" ] || fail "$arrived bytes were there, and it was fetched from $first on"
echo "after the kill of the client: $arrived of $size bytes were there and were not fetched again"

# what lies there is not believed: a part that is not the beginning of it is thrown away
rm -rf killed && mkdir killed
name=.mlopt-$(sha256sum weights.bin | cut -d' ' -f1).part
head -c $((10 << 20)) /dev/zero >killed/"$name"
expect 0 "$MLOPT" pull demo/large --out killed
cmp weights.bin killed/weights.bin
# nor is one that is as long as it, or longer
for more in 0 5; do
    rm killed/weights.bin && truncate -s $((size + more)) killed/"$name"
    expect 0 "$MLOPT" pull demo/large --out killed
    cmp weights.bin killed/weights.bin
done
# and one that has a second name is not written: the other file stays what it is
rm killed/weights.bin && echo "of somebody" >other && ln other killed/"$name"
expect 0 "$MLOPT" pull demo/large --out killed
cmp weights.bin killed/weights.bin
[ "$(cat other)" = "of somebody" ] || fail "a file with two names was written"
rm killed/"$name"
# and one that is whole needs its name only
rm killed/weights.bin && cp weights.bin killed/"$name"
expect 0 "$MLOPT" pull demo/large --out killed
cmp weights.bin killed/weights.bin
[ -z "$(find killed -name '.mlopt-*')" ] || fail "a part stayed: $(ls -A killed)"
stop_up
