"""Other tools' static quantization, one call a process: quantizers.py TOOL METHOD MODEL.onnx CALIBRATION.npz OUT.onnx THREADS

`quantize.py` starts this in the Python of the environment that has the tool; the files follow that tool's own advice
for the best static int8 (per channel, uint8 activations where it chooses nothing else).
"""
import os
import sys

import peers


def limit_ort(threads):
    """The calibrators of every tool make sessions of ONNX Runtime with every core."""
    import onnxruntime

    first = onnxruntime.InferenceSession.__init__

    def limited(self, model, sess_options=None, *rest, **more):
        sess_options = sess_options or onnxruntime.SessionOptions()
        sess_options.intra_op_num_threads = threads
        first(self, model, sess_options, *rest, **more)

    onnxruntime.InferenceSession.__init__ = limited


def ort(method, path, data, out):
    from onnxruntime import quantization as q

    method, _, bits = method.partition("-")  # seven bits of weights: what its page advises for a CPU without VNNI
    prepared = peers._prepared(path, out + ".prepared")
    samples = peers.Samples(data, 1 << 30, names=peers.input_names(prepared))
    q.quantize_static(prepared, out, samples, quant_format=q.QuantFormat.QDQ, per_channel=True, activation_type=q.QuantType.QUInt8,
                      weight_type=q.QuantType.QInt8, calibrate_method=q.CalibrationMethod[method], reduce_range=bits == "7")
    os.remove(prepared)


def nncf(method, path, data, out):
    """Presets of NNCF; 'accurate' is what its page advises where accuracy falls: full bias correction, mixed preset."""
    import nncf as n
    import onnx

    model = onnx.load(path)
    samples = peers.Samples(data, 1 << 30, names=peers.input_names(path))
    items = list(iter(samples.get_next, None))
    transformer = any(node.op_type == "Softmax" for node in model.graph.node)
    options = {"preset": n.QuantizationPreset.PERFORMANCE if method == "performance" else n.QuantizationPreset.MIXED}
    if method == "accurate":
        options["fast_bias_correction"] = False
    if transformer:
        options["model_type"] = n.ModelType.TRANSFORMER
    onnx.save(n.quantize(model, n.Dataset(items), subset_size=len(items), **options), out)


TOOLS = {"ort": ort, "nncf": nncf}


def main():
    tool, method, path, data, out, threads = sys.argv[1:]
    os.environ["OMP_NUM_THREADS"] = threads
    limit_ort(int(threads))
    TOOLS[tool](method, path, data, out)


if __name__ == "__main__":
    main()
