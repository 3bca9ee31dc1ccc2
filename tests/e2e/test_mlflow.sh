#!/usr/bin/env bash
# MLflow's stock client (mlflow-skinny, of PyPI) reads this registry: lists, searches, aliases, downloads. integration.api.mlflow sends
# the same requests without it. The virtual environment is made once, in $MLOPT_MLFLOW_VENV (default: in the build folder); in one that
# also has mlflow, onnx and onnxruntime, the models are loaded and run, too.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
binary_dir=${MLOPT_BINARY_DIR:-$(dirname "$(realpath "${MLOPT:?the path of the program}")")}
venv=${MLOPT_MLFLOW_VENV:-$binary_dir/mlflow-venv}
. "$here/venv.sh"
venv_of "$venv" "$here/requirements-mlflow.txt" "MLflow's client" python -c 'import mlflow'
. "$here/e2e.sh"
cd "$work"
printf 'name: folded\ntarget: any\nsteps:\n  - optimize: {}\n' >folded.yaml
start_up --workers 1
expect 0 "$MLOPT" push fashion/cnn "$model" --tag team=vision --description "the first"
expect 0 "$MLOPT" push fashion/cnn "$model" --tag team=edge --description "the second"
expect 0 "$MLOPT" push a.lab/net.v1 "$model"
expect 0 "$MLOPT" submit fashion/cnn@1 --recipe folded.yaml --wait
expect 0 "$MLOPT" promote fashion/cnn@1 --variant folded --to production --reason "it is good" --yes
expect 0 "$MLOPT" promote fashion/cnn@2 --variant source --to staging --reason "to be tried"
expect 0 "$MLOPT" pull fashion/cnn@production --out pulled
OTHER_TOKEN=$(curl -s -H "Authorization: Bearer $MLOPT_TOKEN" --json '{"name": "other", "role": "viewer", "project": "a.lab"}' \
    "$MLOPT_URL/v1/tokens" | python3 -c 'import json, sys; print(json.load(sys.stdin)["token"])')
FOLDED_FILE=$(echo "$work"/pulled/*.onnx)
export OTHER_TOKEN FOLDED_FILE MODEL_FILE=$model
export MLFLOW_TRACKING_URI=$MLOPT_URL MLFLOW_TRACKING_TOKEN=$MLOPT_TOKEN
# nothing leaves this machine, and nothing is asked twice
export MLFLOW_DISABLE_TELEMETRY=true DO_NOT_TRACK=true MLFLOW_HTTP_REQUEST_MAX_RETRIES=0 MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR=false
export NO_PROXY=127.0.0.1 no_proxy=127.0.0.1
"$venv/bin/python" "$here/mlflow_client.py" || fail "MLflow's client"
! grep -F 'request failed' up.log || fail "the server failed at a request"
stop_up
