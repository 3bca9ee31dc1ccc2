#!/usr/bin/env bash
# api/openapi.yaml against a running server, by schemathesis (PyPI), with all its checks: no finding. The short form sends every
# example and the cases at the borders of every schema, the same each time; the long one also makes up requests, and chains of them:
#   MLOPT=build/mlopt MLOPT_CONTRACT=long [MLOPT_CONTRACT_SECONDS=600] bash tests/e2e/test_contract.sh
# The virtual environment is made once, in $MLOPT_CONTRACT_VENV (default: in the build folder).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
binary_dir=${MLOPT_BINARY_DIR:-$(dirname "$(realpath "${MLOPT:?the path of the program}")")}
venv=${MLOPT_CONTRACT_VENV:-$binary_dir/contract-venv}
. "$here/venv.sh"
venv_of "$venv" "$here/requirements-contract.txt" schemathesis schemathesis --version
. "$here/e2e.sh"
cd "$work"
start_up --workers 0
CONTRACT_TOKEN=$(python3 "$here/contract.py") || fail "the examples' installation could not be made"
export CONTRACT_TOKEN

# A valid request may be refused for what no schema says (a recipe that does not parse, a name that nothing has, a state that is
# against it, a Content-Range that is none); an invalid one must be. 428 is what a missing If-Match gets.
cat >schemathesis.toml <<'TOML'
[auth.openapi.token]
bearer = "${CONTRACT_TOKEN}"
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "3xx", 400, 401, 403, 404, 409, 412, 416, 422, 507]
[checks.negative_data_rejection]
expected-statuses = [400, 401, 403, 404, 405, 409, 412, 413, 415, 416, 422, 428]
[checks.missing_required_header]
expected-statuses = [401, 422, 428]
# by its example alone: a chain of requests that lists tokens and revokes one would end the run with its own
[[operations]]
include-operation-id = "token_revoke"
phases.fuzzing.enabled = false
phases.stateful.enabled = false
TOML
how=(--phases examples,coverage --seed 1 --generation-deterministic)
if [ "${MLOPT_CONTRACT:-short}" = long ]; then
    how=(--phases examples,coverage,fuzzing,stateful --max-time "${MLOPT_CONTRACT_SECONDS:-600}")
fi
code=0
"$venv/bin/schemathesis" --config-file schemathesis.toml run "$MLOPT_URL/v1/openapi.json" --url "$MLOPT_URL" --checks all \
    --continue-on-failure --suppress-health-check all --warnings off --no-color "${how[@]}" >contract.txt 2>&1 || code=$?
sed -n '/ FAILURES /,$p' contract.txt | tail -400
tail -25 contract.txt | grep -E 'Tested:|generated' || true
[ $code = 0 ] || fail "schemathesis ended with $code"
grep -q 'Selected: *\([0-9]*\)/\1$' contract.txt || fail "not every operation was selected"

# what was sent has neither taken the token away, so that all were refused, nor hurt the server
status=$(curl -s -o /dev/null -w '%{http_code}' -H "Authorization: Bearer $CONTRACT_TOKEN" "$MLOPT_URL/v1/me")
[ "$status" = 200 ] || fail "the token was lost on the way: $status"
! grep -F 'request failed' up.log || fail "the server failed at a request"
stop_up
