#!/usr/bin/env python3
"""libmlopt from Python: ctypes and NumPy, nothing to compile.

    import mlopt_numpy
    session = mlopt_numpy.Session("model.onnx", threads=2)
    outputs = session.run({"x": array})        # {name: array}

As a program: mlopt_numpy.py MODEL.onnx [DATA.npz [OUT.npz]] runs the model on the npz's arrays (zeros without), and
writes or prints the outputs. MLOPT_LIBRARY names the library's file where it is not installed.
"""
import ctypes
import os
import sys

import numpy as np

MAX_RANK = 8


class Error(ctypes.Structure):
    _fields_ = [("status", ctypes.c_int), ("message", ctypes.c_char * 512), ("where", ctypes.c_char * 256),
                ("hint", ctypes.c_char * 384)]


class Tensor(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("rank", ctypes.c_int32), ("dims", ctypes.c_int64 * MAX_RANK),
                ("data", ctypes.c_void_p), ("size_bytes", ctypes.c_size_t), ("owned", ctypes.c_int32)]


class Options(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("engine", ctypes.c_char_p), ("threads", ctypes.c_uint32),
                ("optimize", ctypes.c_uint32), ("max_plans", ctypes.c_uint32), ("max_idle", ctypes.c_uint32),
                ("max_bytes", ctypes.c_uint64), ("trusted_keys", ctypes.c_char_p)]


class Port(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("type", ctypes.c_int32), ("rank", ctypes.c_int32),
                ("dims", ctypes.c_int64 * MAX_RANK), ("dim_names", ctypes.c_char_p * MAX_RANK)]


NUMPY = {1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 9: "bool",
         10: "float16", 11: "float64", 12: "uint32", 13: "uint64"}
NUMBER = {np.dtype(name): number for number, name in NUMPY.items()}


class MloptError(Exception):
    pass


def _open_library():
    lib = ctypes.CDLL(os.environ.get("MLOPT_LIBRARY", "libmlopt.so.1"))
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    lib.mlopt_version.restype = ctypes.c_char_p
    lib.mlopt_session_open.argtypes = [ctypes.c_char_p, pointer, pointer, pointer]
    lib.mlopt_session_close.argtypes = [pointer]
    lib.mlopt_session_close.restype = None
    for name in ("mlopt_session_input_count", "mlopt_session_output_count"):
        getattr(lib, name).argtypes = [pointer]
        getattr(lib, name).restype = size
    for name in ("mlopt_session_input", "mlopt_session_output"):
        getattr(lib, name).argtypes = [pointer, size, pointer]
    lib.mlopt_session_run.argtypes = [pointer, pointer, size, pointer, size, pointer]
    lib.mlopt_tensor_clear.argtypes = [pointer]
    lib.mlopt_tensor_clear.restype = None
    return lib


LIB = _open_library()
VERSION = LIB.mlopt_version().decode()


def _check(status, error):
    if status:
        place = f" ({error.where.decode()})" if error.where else ""
        raise MloptError(f"{error.message.decode()}{place} {error.hint.decode()}".strip())


class Session:
    """A model. Threads may share it: ctypes lets go of the interpreter's lock while a call runs."""

    def __init__(self, path, engine=None, threads=1):
        self._handle = ctypes.c_void_p()
        options = Options(ctypes.sizeof(Options), engine.encode() if engine else None, threads)
        error = Error()
        _check(LIB.mlopt_session_open(os.fsencode(path), ctypes.byref(options), ctypes.byref(self._handle),
                                      ctypes.byref(error)), error)
        self.inputs = self._ports(LIB.mlopt_session_input_count, LIB.mlopt_session_input)
        self.outputs = self._ports(LIB.mlopt_session_output_count, LIB.mlopt_session_output)

    def _ports(self, count, get):
        ports = []
        for i in range(count(self._handle)):
            port = Port()
            get(self._handle, i, ctypes.byref(port))
            shape = [port.dims[d] if port.dims[d] >= 0 else (port.dim_names[d] or b"?").decode()
                     for d in range(max(port.rank, 0))]
            ports.append((port.name.decode(), NUMPY.get(port.type), shape))
        return ports

    def run(self, arrays):
        inputs, outputs = (Tensor * len(self.inputs))(), (Tensor * len(self.outputs))()
        keep = []
        for tensor, (name, dtype, _) in zip(inputs, self.inputs):
            array = np.ascontiguousarray(arrays[name], dtype=dtype)
            keep.append(array)
            tensor.type, tensor.rank = NUMBER[array.dtype], array.ndim
            tensor.dims[: array.ndim] = array.shape
            tensor.data, tensor.size_bytes = array.ctypes.data, array.nbytes
        error = Error()
        _check(LIB.mlopt_session_run(self._handle, inputs, len(inputs), outputs, len(outputs),
                                     ctypes.byref(error)), error)
        results = {}
        for tensor, (name, _, _) in zip(outputs, self.outputs):
            raw = ctypes.string_at(tensor.data, tensor.size_bytes) if tensor.size_bytes else b""
            results[name] = np.frombuffer(raw, NUMPY[tensor.type]).reshape(tensor.dims[: tensor.rank])
            LIB.mlopt_tensor_clear(ctypes.byref(tensor))
        return results

    def close(self):
        LIB.mlopt_session_close(self._handle)
        self._handle = ctypes.c_void_p()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def main(argv):
    if len(argv) < 2:
        sys.exit(__doc__)
    with Session(argv[1]) as session:
        if len(argv) > 2:
            data = dict(np.load(argv[2]))
            if len(session.inputs) == 1:
                data.setdefault(session.inputs[0][0], data.get("x"))
        else:
            data = {name: np.zeros([d if isinstance(d, int) else 1 for d in shape], dtype)
                    for name, dtype, shape in session.inputs}
        outputs = session.run(data)
        if len(argv) > 3:
            np.savez(argv[3], **outputs)
        for name, array in outputs.items():
            print(f"{name}: {array.dtype}{list(array.shape)} {array.ravel()[:5]}")


if __name__ == "__main__":
    try:
        main(sys.argv)
    except MloptError as error:
        sys.exit(f"error: {error}")
