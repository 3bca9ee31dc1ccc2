#!/usr/bin/env bash
# From a fresh Debian 12 machine to a running service with one model quantized, measured, promoted and rolled back.
set -euo pipefail
cd "$(dirname "$0")/.."
. deploy/packages.sh

usage() {
    cat <<'TEXT'
usage: deploy/quickstart.sh [--exit] [--again] [--data DIR] [--listen ADDRESS:PORT]

Installs what is missing (apt), builds mlopt, starts `mlopt up` on a data folder of its own and runs the example:
a Fashion-MNIST classifier is pushed, made int8, measured, promoted to production and rolled back.

  --exit      stop the service when the example is done (default: leave it up until Ctrl-C)
  --again     run the example also when this data folder has it already
  --data DIR  data folder (default: ~/.local/share/mlopt/quickstart, as root /var/lib/mlopt/quickstart)
  --listen A  address of the service (default: 127.0.0.1:8640, or a free port when that is taken)
TEXT
}

leave=no again=no listen= data=
while [ $# -gt 0 ]; do
    case $1 in
    --exit) leave=yes ;;
    --again) again=yes ;;
    --data) data=${2:?--data needs a folder}; shift ;;
    --listen) listen=${2:?--listen needs an address}; shift ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
    esac
    shift
done
if [ -z "$data" ]; then
    if [ "$(id -u)" = 0 ]; then data=/var/lib/mlopt/quickstart; else data=${XDG_DATA_HOME:-$HOME/.local/share}/mlopt/quickstart; fi
fi

require_debian12
# shellcheck disable=SC2086
install_missing $PACKAGES_BUILD $PACKAGES_RUN

log=$(mktemp)
trap 'rm -f "$log"' EXIT
build=${MLOPT_BUILD_DIR:-build} # the test's: a build that is there already
if [ ! -f "$build/build.ninja" ]; then
    echo "configuring a release build in build/"
    cmake --preset release -DMLOPT_TESTS=OFF >"$log" 2>&1 || { tail -30 "$log" >&2; die "cmake failed (its last lines are above)"; }
fi
[ -x "$build/mlopt" ] || echo "building (about a minute on two cores)"
cmake --build "$build" --target mlopt >"$log" 2>&1 || { tail -30 "$log" >&2; die "the build failed (its last lines are above)"; }
mlopt=$(realpath "$build/mlopt")

if [ -z "$listen" ]; then
    listen=127.0.0.1:8640
    if (exec 3<>/dev/tcp/127.0.0.1/8640) 2>/dev/null; then listen=127.0.0.1:0; fi
fi
mkdir -p "$(dirname "$data")"
echo "starting mlopt up --data $data"
"$mlopt" up --data "$data" --listen "$listen" >"$log" 2>&1 &
up=$!
stop() {
    trap - INT TERM
    if kill -0 $up 2>/dev/null; then
        echo "stopping"
        kill -TERM $up 2>/dev/null || true
        wait $up 2>/dev/null || true
    fi
}
trap 'stop; rm -f "$log"' EXIT
trap 'exit 130' INT TERM
for _ in $(seq 3000); do # by its own word: a file in the folder may be of a service that was killed, or still runs
    grep -q '^ready: ' "$log" && break
    kill -0 $up 2>/dev/null || { cat "$log" >&2; die "the service did not start"; }
    sleep 0.1
done
grep -q '^ready: ' "$log" || { cat "$log" >&2; die "the service was not ready within five minutes"; }
MLOPT_URL=$(cat "$data/url")
MLOPT_TOKEN=$(cat "$data/token")
export MLOPT_URL MLOPT_TOKEN

run() { # shows a command as a user would type it, and runs it
    printf '\n$ mlopt'
    local a
    for a in "$@"; do case $a in *[!A-Za-z0-9_./:=@,-]*) printf " '%s'" "$a" ;; *) printf ' %s' "$a" ;; esac; done
    printf '\n'
    "$mlopt" "$@"
}

recipe=int8-cpu why='smaller and faster, accuracy within 0.5pt'
if ! grep -qwE 'avx512_vnni|avx_vnni' /proc/cpuinfo; then
    # the recipe is for CPUs with VNNI; elsewhere this small net is no faster in int8
    recipe=$data/int8-cpu.yaml why='smaller, accuracy within 0.5pt'
    sed 's/, "latency\.[^"]*"//' pipeline/recipes/int8-cpu.yaml >"$recipe"
fi
if [ $again = no ] && "$mlopt" history fashion/cnn >/dev/null 2>&1; then
    echo "this data folder has the example already (--again runs it once more)"
else
    images=/usr/share/datasets/fashion-mnist
    normalize='scale=1/255,mean=0.2860,std=0.3530'
    run push fashion/cnn deploy/models/fashion_cnn.onnx
    run data push fashion/calibration $images/train-images-idx3-ubyte.gz $images/train-labels-idx1-ubyte.gz \
        --count 512 --normalize "$normalize"
    run data push fashion/test $images/t10k-images-idx3-ubyte.gz $images/t10k-labels-idx1-ubyte.gz --normalize "$normalize"
    [ "$recipe" = int8-cpu ] ||
        printf '\nThis CPU has no VNNI: int8 makes this small model smaller here, not faster. What int8-cpu expects of latency is left out.\n'
    run submit fashion/cnn --recipe "$recipe" --wait
    run promote fashion/cnn@1 --variant source --to production --reason 'first release' --yes
    run promote fashion/cnn@1 --variant int8-cpu --to staging --reason "$why" --yes
    run promote fashion/cnn@1 --variant int8-cpu --to production --reason 'staging looked good' --yes
    run rollback fashion/cnn --stage production --reason 'practising the way back' --yes
fi
run variants fashion/cnn
run history fashion/cnn

cat <<TEXT

The pages: $(grep -o 'http[^ ]*login[^ ]*' "$log" | tail -1 || true)
  (or $MLOPT_URL, and sign in with the token in $data/token)

The same with your model:
  export MLOPT_URL=$MLOPT_URL MLOPT_TOKEN=\$(cat $data/token) PATH=${mlopt%/*}:\$PATH
  mlopt push myproject/mymodel model.onnx && mlopt data push myproject/calibration calib.npz && mlopt data push myproject/test test.npz
  mlopt submit myproject/mymodel --recipe $recipe --set data.calibrate=myproject/calibration --set data.evaluate=myproject/test --wait
TEXT
if [ $leave = yes ]; then exit 0; fi
echo
echo "The service is up. Ctrl-C stops it."
wait $up
