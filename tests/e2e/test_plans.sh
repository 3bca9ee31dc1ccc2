#!/usr/bin/env bash
# Compiled plans: made and run on this machine, and made by a worker beside a variant, pulled and trusted.
set -euo pipefail
. "$(dirname "$0")/e2e.sh"
test=$images/t10k-images-idx3-ubyte.gz,$images/t10k-labels-idx1-ubyte.gz
data=(--data "$test" --normalize "$normalize" --limit 64)
export XDG_CACHE_HOME=$work/cache
cd "$work"

# --- on this machine --------------------------------------------------------------------------------------------
expect 2 "$MLOPT" compile "$model"
expect 0 "$MLOPT" compile "$model" --batch 8 --out m.plan -o json
holds "d['fits_this_machine'] and d['fingerprint']['batch'] == 8 and d['signer'].startswith('ed25519:')"
holds "d['fingerprint']['model'] == 'sha256:' + '$(sha256sum "$model" | cut -d' ' -f1)'"
[ "$(stat -c %a "$HOME/.config/mlopt/plan.key")" = 600 ] || fail "the key can be read by others"
expect 0 "$MLOPT" inspect m.plan
shows "fits this machine"
expect 0 "$MLOPT" run "$model" "${data[@]}" --batch 8 --out model.npz
expect 0 "$MLOPT" run m.plan "${data[@]}" --out plan.npz
cmp model.npz plan.npz || fail "the plan computes something else"
[ "$(stat -c %a "$work/cache/mlopt/plans")" = 700 ] || fail "others can enter the cache"
expect 0 "$MLOPT" eval m.plan "${data[@]}" --metric top1 --against "$model" -o json
holds "d['metrics'][0]['difference']['value'] == 0"
expect 2 "$MLOPT" run m.plan "${data[@]}" --threads 2 --out x.npz
says "compiled for 1 thread"
expect 0 "$MLOPT" bench m.plan --batch 8 --seconds 0.1 --rounds 2 -o json
expect 1 "$MLOPT" bench m.plan --batch 4 --seconds 0.1 --rounds 2
says "fixed at 8"
if [ "$(json "d['machine']['isa']" <("$MLOPT" engines -o json))" != avx2 ]; then
    MLOPT_ISA=avx2 expect 5 "$MLOPT" run m.plan "${data[@]}" --out x.npz
    says "the plan was made for"
    MLOPT_ISA=avx2 expect 0 "$MLOPT" run "$model" --plan m.plan "${data[@]}" --out avx2.npz
    says "compiling the model"
fi
expect 0 "$MLOPT" run "$model" --plan m.plan "${data[@]}" --out again.npz
cmp model.npz again.npz || fail "the plan given beside its model computes something else"

HOME='' XDG_CACHE_HOME='' expect 0 "$MLOPT" run "$model" --plan m.plan "${data[@]}" --out homeless.npz
says "compiling the model: there is no home folder"
mkdir -p "$work/full/mlopt"
echo "no folder" >"$work/full/mlopt/plans"
XDG_CACHE_HOME=$work/full expect 0 "$MLOPT" run "$model" --plan m.plan "${data[@]}" --out uncached.npz
says "warning: the plan is checked each time it is opened: "
[ "$(grep -c warning "$work/stderr")" = 1 ] || fail "the warning is not one line"
cmp model.npz uncached.npz || fail "the plan computes something else without its cache"
(umask 077 && "$MLOPT" compile "$model" --out own.plan >/dev/null)
[ "$(stat -c %a own.plan)" = 600 ] || fail "a plan has rights that the mask takes away"

# --- made by a worker -------------------------------------------------------------------------------------------
cat >compile.yaml <<'YAML'
name: fast
target: cpu:avx2
steps:
  - optimize: {}
  - compile: {batch: [1, 8], threads: 1}
YAML
start_up
expect 0 "$MLOPT" push fashion/cnn "$model"
expect 0 "$MLOPT" submit fashion/cnn --recipe compile.yaml --wait --timeout 1500 -o json
holds "d['run']['state'] == 'succeeded' and d['run']['jobs'][1]['step'] == 'compile'"
expect 0 "$MLOPT" variants fashion/cnn -o json
holds "[len(v['plans']) for v in d] == [0, 2] and sorted(p['made_for']['batch'] for p in d[1]['plans']) == [1, 8]"
signer=$(json "d[1]['plans'][0]['signer']")
mkdir pulled
expect 0 "$MLOPT" pull fashion/cnn@1/fast --plan --batch 8 --out pulled -o json
holds "len(d) == 2 and d[1]['path'].endswith('cnn-fast-batch8.plan')"
plan=pulled/cnn-fast-batch8.plan
variant=$(json "d[0]['path']")
expect 4 "$MLOPT" run $plan "${data[@]}" --out p.npz
says "is not trusted"
expect 0 "$MLOPT" run $plan "${data[@]}" --trust "$signer" --out p.npz
expect 0 "$MLOPT" run "$variant" "${data[@]}" --batch 8 --out v.npz
cmp p.npz v.npz || fail "the worker's plan computes something else"
echo "$signer  our workers" >>"$HOME/.config/mlopt/plan-trust"
chmod 600 "$HOME/.config/mlopt/plan-trust"
expect 0 "$MLOPT" bench $plan --batch 8 --seconds 0.1 --rounds 2
mkdir none
expect 0 "$MLOPT" pull fashion/cnn@1/fast --plan --batch 3 --out none -o json
holds "len(d) == 1"
[ "$(stat -c %a data/work/plan.key)" = 600 ] || fail "the worker's key can be read by others"
stop_up
