#!/usr/bin/env bash
# The same derivation gives the same bytes: int8 quantization of the example model with the ISA forced to AVX2 and
# AVX-512, with 1 and 2 threads, at batch 1, 8 and 32.
set -euo pipefail
images=/usr/share/datasets/fashion-mnist
[ -e $images/train-images-idx3-ubyte.gz ] || { echo "dataset-fashion-mnist is not installed"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/dataset.json" <<E2
{"format": "idx", "files": {"images": "train-images-idx3-ubyte.gz", "labels": "train-labels-idx1-ubyte.gz"},
 "normalize": "scale=1/255,mean=0.2860,std=0.3530", "count": 64}
E2
ln -s $images/train-images-idx3-ubyte.gz $images/train-labels-idx1-ubyte.gz "$work/"

step() { # step options model threads batch -> the artifact's path
    local dir
    dir=$(mktemp -d "$work/step.XXXXXX")
    cat >"$dir/job.json" <<E2
{"step": "$1", "options": $2, "model": "$3", "source": "$3", "calibrate": "$work/dataset.json", "threads": $4, "batch": $5}
E2
    "$MLOPT" step-exec "$dir" >/dev/null
    grep -q '"status": "ok"' "$dir/result.json" || { cat "$dir/result.json" >&2; exit 1; }
    echo "$dir/model.onnx"
}

source=$PWD/deploy/models/fashion_cnn.onnx
folded=$(step optimize '{}' "$source" 1 0)
options='{"scheme": "int8", "form": "qdq", "calibrator": "percentile", "percentile": 99.99, "per_channel": true}'
isas="avx2"
grep -qw avx512bw /proc/cpuinfo && isas="avx2 avx512"
grep -qw avx512_vnni /proc/cpuinfo && isas="$isas avx512-vnni"
grep -qw avx512_fp16 /proc/cpuinfo && isas="$isas avx512-fp16"
expected="" runs=0
for isa in $isas; do
    for threads in 1 2; do
        for batch in 1 8 32; do
            made=$(MLOPT_ISA=$isa step quantize "$options" "$folded" $threads $batch)
            digest=$(sha256sum "$made" | cut -d' ' -f1)
            echo "$isa threads=$threads batch=$batch $digest"
            [ -n "$expected" ] || expected=$digest
            [ "$digest" = "$expected" ] || { echo "FAILED: another digest"; exit 1; }
            runs=$((runs + 1))
        done
    done
done
# what explains the variant is the same bytes as well
explain() { # threads batch -> the report's path
    local dir
    dir=$(mktemp -d "$work/step.XXXXXX")
    cat >"$dir/job.json" <<E2
{"step": "report", "options": {"samples": 3, "evaluate_samples": 5, "metrics": []}, "model": "$made", "source": "$source", "parent": "$folded",
 "calibrate": "$work/dataset.json", "evaluate": "$work/dataset.json", "threads": $1, "batch": $2}
E2
    "$MLOPT" step-exec "$dir" >/dev/null
    grep -q '"status": "ok"' "$dir/result.json" || { cat "$dir/result.json" >&2; exit 1; }
    echo "$dir/report.json"
}
reports=$(for isa in $isas; do for how in "1 1" "2 32"; do sha256sum "$(MLOPT_ISA=$isa explain $how)" | cut -d' ' -f1; done; done | sort | uniq -c)
echo "reports: $reports"
[ "$(wc -l <<<"$reports")" = 1 ] || { echo "FAILED: reports differ"; exit 1; }
# the digest is no constant: other data give another artifact
sed -i 's/"count": 64/"count": 2/' "$work/dataset.json"
other=$(sha256sum "$(step quantize "$options" "$folded" 1 8)" | cut -d' ' -f1)
[ "$other" != "$expected" ] || { echo "FAILED: the calibration data change nothing"; exit 1; }
echo "$runs runs, one digest"
