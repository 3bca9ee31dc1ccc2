#!/usr/bin/env bash
# What a version says about itself: the code by git, datasets, parameters, metrics, tags; and finding it by them.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/e2e.sh"
command -v git >/dev/null || { echo "git is not installed"; exit 77; }
cd "$work"
start_up

# --- the code: a checkout with a remote whose address holds a secret -------------------------------------------------
tree() { git -C tree -c user.name=me -c user.email=me@example.com "$@"; }
mkdir tree
expect 3 "$MLOPT" push fashion/cnn "$model" --code tree
says "in no work tree of git"
git init -q -b main tree
expect 1 "$MLOPT" push fashion/cnn "$model" --code tree
says "has no commit yet"
mkdir tree/train
echo 'print(1)' >tree/train/train.py
tree add . && tree commit -q -m first
tree remote add origin https://me:s3cret@example.com/org/repo.git
commit=$(tree rev-parse HEAD)
cp "$model" tree/model.onnx # not tracked: it does not make the code dirty

expect 0 "$MLOPT" data push fashion/train $images/t10k-images-idx3-ubyte.gz $images/t10k-labels-idx1-ubyte.gz \
    --count 16 --normalize "$normalize" --licence MIT --tag split=train -o json
holds "d['facts'] == {'licence': 'MIT', 'tags': {'split': 'train'}}"
digest=$(json "d['digest']")
expect 0 "$MLOPT" push fashion/cnn "$model" --code tree/train --dataset fashion/train@1 --param lr=0.01 --param opt=sgd \
    --param 'layers="12"' --param amp=true --metric val/top1=0.91 --tag team=vision --tag nightly --licence Apache-2.0 -o json
holds "d['facts']['code'] == {'commit': '$commit', 'dirty': False, 'remote': 'https://example.com/org/repo.git'}"
holds "d['facts']['datasets'] == [{'name': 'train', 'version': 1, 'digest': '$digest'}]"
holds "d['facts']['params'] == {'lr': 0.01, 'opt': 'sgd', 'layers': '12', 'amp': True}"
holds "d['facts']['tags'] == {'team': 'vision', 'nightly': ''} and d['facts']['metrics'] == {'val/top1': 0.91}"
expect 0 "$MLOPT" lineage fashion/cnn@1
shows "trained-on"

echo 'print(2)' >tree/train/train.py
echo '{"metrics": {"val/top1": 0.93, "loss": 0.2}, "tags": {"team": "audio"}}' >facts.json
expect 0 "$MLOPT" push fashion/cnn "$model" --code tree --facts facts.json --metric loss=0.25 -o json
holds "d['version'] == 2 and d['facts']['code']['dirty'] and d['facts']['metrics'] == {'val/top1': 0.93, 'loss': 0.25}"
expect 0 "$MLOPT" push fashion/cnn "$model" -o json
holds "d['version'] == 3 and d['facts'] == {}" # nothing is said that was not asked for

expect 2 "$MLOPT" push fashion/cnn "$model" --metric loss=nan
says "not KEY=NUMBER"
expect 2 "$MLOPT" push fashion/cnn "$model" --dataset other/train
says "another project"
expect 3 "$MLOPT" push fashion/cnn "$model" --dataset train@7
expect 1 "$MLOPT" push fashion/cnn "$model" --tag 'two words=x'
says "facts.tags.two words"
expect 1 "$MLOPT" push fashion/cnn "$model" --facts "$model"

# --- finding them -----------------------------------------------------------------------------------------------------
found() { # FILTER VERSIONS [ARGUMENT…]
    local filter=$1 want=$2
    shift 2
    expect 0 "$MLOPT" search fashion "$filter" "$@" -o json
    holds "[v['version'] for v in d] == $want"
}
found "" "[3, 2, 1]"
found "metric.val/top1 > 0.5" "[1, 2]" --order metric.val/top1:asc
found "metric.val/top1 > 0.5" "[2]" --limit 1
found "commit ~ ${commit:0:7}, dirty = false" "[1]"
found "dataset = train@1 and param.lr <= 0.01" "[1]"
found "!tag.team" "[3]"
found "remote = https://example.com/org/repo.git" "[2, 1]"
expect 0 "$MLOPT" search fashion 'tag.team = vision'
shows "${commit:0:10}"
shows "team=vision"
expect 1 "$MLOPT" search fashion 'top1 > 0.5'
says "filter, column 1"
expect 3 "$MLOPT" search nowhere

# --- answers that are lost: each request is sent again, and happened once -----------------------------------------------
mkfifo hold
python3 "$here/lossy.py" "$MLOPT_URL" <hold >lossy &
exec 3>hold
until grep -q http lossy; do sleep 0.05; done
lossy=$(cat lossy)
expect 0 "$MLOPT" comment fashion/cnn@1 "seen" --url "$lossy"
expect 0 "$MLOPT" push fashion/tagger "$model" --url "$lossy"
expect 0 "$MLOPT" promote fashion/cnn@1 --variant source --to staging --reason "try it" --url "$lossy"
expect 0 "$MLOPT" comment fashion/cnn@1 -o json
holds "len(d) == 1"
expect 0 "$MLOPT" history fashion/cnn -o json
holds "len(d) == 1"

# --- many at once: what fails leaves the others ---------------------------------------------------------------------------
printf 'name: mine\nsteps:\n  - benchmark: {batch: [1]}\n' >mine.yaml
expect 0 "$MLOPT" queue set fashion --pause --reason "so that they wait"
expect 3 "$MLOPT" submit fashion/cnn@1 fashion/tagger fashion/nothing --recipe mine.yaml --url "$lossy" -o json
holds "[(i['model'], i['version'], i['status']) for i in d] == [('cnn', 1, 201), ('tagger', 1, 201), ('nothing', None, 404)]"
says "1 of 3 were not submitted"
ids=$(json "' '.join(str(i['run']['id']) for i in d if 'run' in i)")
expect 2 "$MLOPT" submit fashion/cnn other/cnn --recipe mine.yaml
expect 2 "$MLOPT" submit fashion/cnn fashion/tagger --recipe mine.yaml --wait
expect 0 "$MLOPT" runs -o json
holds "len(d) == 2"
expect 0 "$MLOPT" cancel $ids --reason "not needed" --url "$lossy"
shows "cancelled"
expect 5 "$MLOPT" cancel $ids
says "2 of 2 were not cancelled"
expect 3 "$MLOPT" cancel 7777 8888
exec 3>&-

grep -rq s3cret data && fail "the secret of the remote's address is in the data folder"
stop_up
