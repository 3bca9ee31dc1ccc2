# Sourced by the scripts here: checks, JSON, a service of its own. Each script works in $work, which is removed, and
# ends only processes that it started.
images=/usr/share/datasets/fashion-mnist
normalize='scale=1/255,mean=0.2860,std=0.3530'
model=${MLOPT_SOURCE_DIR:-$PWD}/deploy/models/fashion_cnn.onnx
[ -e $images/train-images-idx3-ubyte.gz ] || { echo "dataset-fashion-mnist is not installed"; exit 77; }
command -v python3 >/dev/null || { echo "python3 is not installed"; exit 77; }
: "${MLOPT:?the path of the program}"
umask 022
work=$(mktemp -d)
chmod 711 "$work" # PostgreSQL runs as another user when we are root
export HOME=$work/home XDG_STATE_HOME= XDG_CONFIG_HOME= NO_COLOR=1
unset MLOPT_URL MLOPT_TOKEN MLOPT_DATABASE
mkdir "$HOME"
up_pid=
patience=600 # seconds, for a state that comes at once where the machine has nothing else to do

fail() {
    echo "FAILED: $*" >&2
    for f in "$work"/*.log "$work"/*/workers.log "$work"/stderr; do
        [ -s "$f" ] && { echo "--- $f"; tail -25 "$f"; } >&2
    done
    exit 1
}

# expect CODE COMMAND…: the exit code must be that; output in $work/stdout and $work/stderr.
expect() {
    local want=$1 got=0
    shift
    "$@" >"$work/stdout" 2>"$work/stderr" </dev/null || got=$?
    [ "$got" = "$want" ] || fail "$* exited with $got instead of $want"
}

# says TEXT: the last command's error says it.
says() {
    grep -qF -- "$1" "$work/stderr" || fail "no '$1' on stderr"
}

shows() {
    grep -qF -- "$1" "$work/stdout" || { cat "$work/stdout" >&2; fail "no '$1' on stdout"; }
}

# json EXPRESSION [FILE]: prints a Python expression of the JSON document `d` (default: the last command's stdout).
json() {
    python3 -c 'import json, sys
d = json.load(open(sys.argv[2]))
print(eval(sys.argv[1]))' "$1" "${2:-$work/stdout}"
}

# holds EXPRESSION: it must be true of the last command's JSON.
holds() {
    [ "$(json "$1")" = True ] || { cat "$work/stdout" >&2; fail "not so: $1"; }
}

# start_up [ARGUMENT…]: `mlopt up` on $work/data (at $address, where one is set), and the environment for its clients.
start_up() {
    rm -f "$work/data/url"
    "$MLOPT" up --data "$work/data" --listen "${address:-127.0.0.1:0}" "$@" >>"$work/up.log" 2>&1 </dev/null &
    up_pid=$!
    local until=$((SECONDS + patience))
    while [ ! -s "$work/data/url" ]; do
        kill -0 $up_pid 2>/dev/null || fail "mlopt up ended"
        [ $SECONDS -lt $until ] || fail "mlopt up was not ready in $patience seconds"
        sleep 0.1
    done
    MLOPT_URL=$(cat "$work/data/url")
    MLOPT_TOKEN=$(cat "$work/data/token")
    export MLOPT_URL MLOPT_TOKEN
}

# ended PID: it is gone, or nobody has asked how it ended (the init of a container may not).
ended() {
    case $(sed 's/.*) //; s/ .*//' "/proc/$1/stat" 2>/dev/null) in
    '' | Z | X) return 0 ;;
    esac
    return 1
}

# wait_until WHAT COMMAND…: until the command succeeds.
wait_until() {
    local what=$1 until=$((SECONDS + patience))
    shift
    until "$@"; do
        [ $SECONDS -lt $until ] || fail "not within $patience seconds: $what"
        sleep 0.05
    done
}

stop_up() {
    local code=0
    [ -n "$up_pid" ] || return 0
    kill -TERM "$up_pid"
    wait "$up_pid" || code=$?
    up_pid=
    [ $code = 0 ] || fail "mlopt up ended with $code"
}

clean_up() {
    if [ -n "$up_pid" ] && kill -0 "$up_pid" 2>/dev/null; then
        kill -TERM "$up_pid" 2>/dev/null || true
        wait "$up_pid" 2>/dev/null || true
    fi
    jobs -p | xargs -r kill 2>/dev/null || true # what a script that failed left beside it
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

# Pushes the example's model and datasets: N calibration and M test images.
push_example() {
    expect 0 "$MLOPT" push fashion/cnn "$model"
    expect 0 "$MLOPT" data push fashion/calibration $images/train-images-idx3-ubyte.gz $images/train-labels-idx1-ubyte.gz \
        --count "$1" --normalize "$normalize"
    expect 0 "$MLOPT" data push fashion/test $images/t10k-images-idx3-ubyte.gz $images/t10k-labels-idx1-ubyte.gz \
        --count "$2" --normalize "$normalize"
}
