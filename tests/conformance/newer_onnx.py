#!/usr/bin/env python3
"""Writes the node tests that an ONNX package from PyPI generates, in the layout of its backend tests, for what Debian's
package (of ONNX 1.12) is too old for:

    python3 newer_onnx.py DIR [--opset 23]          in a virtual environment with onnx
    build-dev/tests/conformance.graph.onnx_backend --folder DIR

Tests of a newer opset are stated to be of the given one: ops that a newer opset only added types to pass as well. A check for
developers, not part of the suite.
"""
import argparse
import pathlib
import shutil
import warnings

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case.node import collect_testcases


def tensor(value, info):
    if isinstance(value, onnx.TensorProto):
        return value
    if isinstance(value, list):
        return numpy_helper.from_list(value, info.name)
    if info.type.HasField("optional_type"):
        return numpy_helper.from_optional(value, info.name)
    return numpy_helper.from_array(np.asarray(value), info.name)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=pathlib.Path)
    parser.add_argument("--opset", type=int, default=23)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    written, left = 0, []
    for case in collect_testcases(None):
        folder = args.dir / "node" / case.name
        data = folder / "test_data_set_0"
        data.mkdir(parents=True, exist_ok=True)
        for opset in case.model.opset_import:
            if opset.domain in ("", "ai.onnx"):
                opset.version = min(opset.version, args.opset)
        for function in case.model.functions:
            for opset in function.opset_import:
                if opset.domain in ("", "ai.onnx"):
                    opset.version = min(opset.version, args.opset)
        (folder / "model.onnx").write_bytes(case.model.SerializeToString())
        try:
            inputs, outputs = case.data_sets[0]
            for what, values, infos in (("input", inputs, case.model.graph.input), ("output", outputs, case.model.graph.output)):
                for i, value in enumerate(values):
                    if value is not None:
                        (data / f"{what}_{i}.pb").write_bytes(tensor(value, infos[i]).SerializeToString())
            written += 1
        except Exception as error:
            left.append(f"{case.name}: {error}")
            shutil.rmtree(folder)
    print(f"{written} tests of ONNX {onnx.__version__} in {args.dir}")
    print("\n".join(left))


if __name__ == "__main__":
    main()
