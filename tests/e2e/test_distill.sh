#!/usr/bin/env bash
# A student next to its teacher without a server: numbers, verdict, page, and what is said about bad input.
set -euo pipefail
. "$(dirname "$0")/e2e.sh"
cd "$work"
test=$images/t10k-images-idx3-ubyte.gz,$images/t10k-labels-idx1-ubyte.gz
read=(--data "$test" --normalize "$normalize" --limit 120)
quick=(--seconds 0.1 --rounds 2)
cp "$(dirname "$model")/fashion_student.onnx" student.onnx # trained by train_student.py beside it

# --- what works -------------------------------------------------------------------------------------------------
python3 -c 'print("\n".join("even" if i % 2 else "odd" for i in range(10000)))' >sides.txt
expect 0 "$MLOPT" distill-eval "$model" student.onnx "${read[@]}" "${quick[@]}" --slices sides.txt --report r.html -o json
cp stdout r.json
holds "d['format'] == 'mlopt-distill-1' and d['samples'] == 120 and d['task'] == 'classes' and d['temperature'] == 4"
holds "d['metrics'][0]['metric'] == 'top1' and 0.7 < d['metrics'][0]['student']['value'] < 0.97"
holds "abs(d['metrics'][0]['student']['value'] - d['metrics'][0]['teacher']['value'] - d['metrics'][0]['difference']['value']) < 1e-12"
holds "{e['metric'] for e in d['distances']} == {'agreement', 'kl', 'cross_entropy', 'cosine', 'mse'}"
holds "len(d['per_class']) == 10 and sum(c['n'] for c in d['per_class']) == 120 and [s['n'] for s in d['per_slice']] == [60, 60]"
holds "0.03 < d['size_ratio'] < 0.04 and d['latency'][0]['ratio_p50']['value'] > 0 and len(d['farthest']) == 16"
holds "d['teacher']['digest'] == 'sha256:' + '$(sha256sum "$model" | cut -d' ' -f1)'"
# the numbers of eval are the same, and none of it depends on batch or threads
expect 0 "$MLOPT" eval student.onnx --against "$model" --metric top1 "${read[@]}" -o json
python3 - r.json stdout <<'PY' || fail "eval and distill-eval differ"
import json, sys
ours, theirs = (json.load(open(p))["metrics"][0] for p in sys.argv[1:])
assert ours["student"] == theirs["estimate"] and ours["teacher"] == theirs["against"] and ours["difference"] == theirs["difference"]
assert ours["mcnemar_p"] == theirs["mcnemar_p"]
PY
expect 0 "$MLOPT" distill-eval "$model" student.onnx "${read[@]}" --no-latency --threads 2 --slices sides.txt -o json
python3 - r.json stdout <<'PY' || fail "two threads make other numbers"
import json, sys
a, b = (json.load(open(p)) for p in sys.argv[1:])
for d in (a, b):
    d.pop("latency", None)
assert a == b
PY
# the page: one file, without scripts or anything from outside, whole as XML but for the doctype
python3 - r.html <<'PY' || fail "the page"
import html.parser, re, sys
text = open(sys.argv[1]).read()
assert "<script" not in text and "http" not in text.replace("http-equiv", "") and " style=" not in text and "src=" not in text
class Parser(html.parser.HTMLParser):
    open_tags = []
    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "br", "rect", "path"):
            self.open_tags.append(tag)
    def handle_endtag(self, tag):
        if tag not in ("rect", "path"):
            assert self.open_tags.pop() == tag, tag
parser = Parser()
parser.feed(text)
assert parser.open_tags == [], parser.open_tags
assert text.count("<svg") == 3 and "By slice" in text and "Holm" in text
PY
expect 0 "$MLOPT" distill-eval "$model" student.onnx "${read[@]}" --no-latency
shows "agreement"
shows "120 samples, the same for both"

# --- the verdict --------------------------------------------------------------------------------------------------
expect 0 "$MLOPT" distill-eval "$model" "$model" "${read[@]}" --no-latency --expect 'distill.drop.top1 <= 3pt' \
    --expect 'distill.kl <= 0' --expect 'distill.agreement >= 95%' -o json
holds "all(v['holds'] for v in d['verdict']) and len(d['verdict']) == 3 and d['metrics'][0]['difference']['value'] == 0"
holds "d['metrics'][0]['mcnemar_p'] == 1 and d['farthest'] == []"
expect 6 "$MLOPT" distill-eval "$model" student.onnx "${read[@]}" --no-latency --expect 'distill.size_ratio <= 1%'
says "its upper bound"
shows "NO"
printf 'name: distilled\ndata: {evaluate: shop/test}\nsteps:\n  - distill-eval: {teacher: shop/big@1, temperature: 2, latency: false}\nexpect:\n  - distill.drop.top1 <= 0.01pt\n' >r.yaml
expect 6 "$MLOPT" distill-eval "$model" student.onnx "${read[@]}" --recipe r.yaml -o json
holds "d['temperature'] == 2 and 'latency' not in d and not d['verdict'][0]['holds']"

read[5]=20
# --- bad input ----------------------------------------------------------------------------------------------------
bad() {
    local code=$1 text=$2
    shift 2
    expect "$code" "$MLOPT" distill-eval "$model" student.onnx --no-latency "$@"
    says "$text"
}
bad 2 "--data"
bad 3 "cannot open the dataset nowhere.npz" --data nowhere.npz
bad 2 "nothing stands for 'source' here" "${read[@]}" --expect 'top1 >= source - 1pt'
bad 1 "did you mean 'top1'" "${read[@]}" --metric top
bad 1 "the teacher has no output 'x'" "${read[@]}" --teacher-output x
bad 1 "the choices are" "${read[@]}" --task ranking
head -3 sides.txt >few.txt
bad 1 "few.txt has 3 lines, and the dataset 10000 samples" "${read[@]}" --slices few.txt
printf 'cat\ndog\n' >two.txt
bad 1 "the student puts out 10 classes, and its labels name 2" "${read[@]}" --student-labels two.txt
seq 0 9 | sed 's/^/class /' >a.txt
sed 's/class 9/other/' a.txt >b.txt
bad 1 "class 9 is 'class 9' for the teacher and 'other' for the student" "${read[@]}" --teacher-labels a.txt --student-labels b.txt
echo '{"teacher": [0, 1, 2], "student": "x"}' >m.json
bad 1 "'student' is no mapping of classes" "${read[@]}" --mapping m.json
echo '{"teacher": [0, 1, 2]}' >m.json
bad 1 "the mapping has 3 entries for the teacher, which has 10 classes" "${read[@]}" --mapping m.json
echo '{"teacher": [0,0,0,0,0,1,0,1,0,1], "student": [0,0,0,0,0,1,0,1,0,1]}' >m.json
bad 1 "out of range" "${read[@]}" --mapping m.json
bad 2 "the name must end in .html or .json" "${read[@]}" --report r.txt
