# What every Python adapter has in common: messages, timing, errors. The engine puts a runtime's own part behind
# this text and runs both with `python3 -c`. docs/external-engines.md describes the protocol.
import json
import os
import random
import struct
import sys
import time

sys.path[:] = [p for p in sys.path if p]  # a module is not taken from the folder that we happen to run in

PROTOCOL = 1


class AdapterError(Exception):
    def __init__(self, code, message, hint=""):
        super().__init__(message)
        self.code, self.hint = code, hint


def _read(source, size):
    data = bytearray(size)
    view, got = memoryview(data), 0
    while got < size:
        n = source.readinto(view[got:])
        if not n:
            sys.exit(0)  # the other side is gone
        got += n
    return data


def _send(sink, header, parts=()):
    header["payload_bytes"] = sum(len(p) for p in parts)
    text = json.dumps(header, separators=(",", ":")).encode()
    sink.write(struct.pack("<I", len(text)) + text)
    for part in parts:
        sink.write(part)
    sink.flush()


def _tensors(header, payload):
    import numpy

    found, at = {}, 0
    for entry in header["tensors"]:
        dtype = numpy.dtype(entry["dtype"])
        count = 1
        for d in entry["dims"]:
            count *= d
        found[entry["name"]] = numpy.frombuffer(payload, dtype, count, at).reshape(entry["dims"])
        at += count * dtype.itemsize
    return found


def _peak_rss_bytes():
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def _bench(call, header):
    clock, kept, calls = time.perf_counter_ns, [], 0
    timer = time.process_time_ns if header.get("cpu_clock") else clock
    choice = random.Random(20260102)
    end = clock() + header["warm_up_seconds"] * 1e9
    n = 0
    while n < header["warm_up_calls"] or clock() < end:
        call()
        n += 1
    end = clock() + header["seconds"] * 1e9
    while calls < header["min_calls"] or clock() < end:
        start = timer()
        call()
        took = (timer() - start) / 1000
        calls += 1
        if len(kept) < header["max_samples"]:
            kept.append(took)
        else:  # reservoir sampling: a uniform choice of all calls
            slot = choice.randrange(calls)
            if slot < len(kept):
                kept[slot] = took
    return {"samples_us": kept, "calls": calls, "peak_rss_bytes": _peak_rss_bytes()}


def serve(runtime):
    """Answers requests until the end of input. `runtime` has hello() -> (name, version), load(onnx, threads),
    run(inputs) -> [(name, array)], prepare(inputs) -> a function that runs once, describe() -> nodes."""
    source = os.fdopen(os.dup(0), "rb", buffering=0)
    sink = os.fdopen(os.dup(1), "wb", buffering=1 << 20)
    os.dup2(2, 1)  # what a library prints must not get between the messages
    while True:
        header = json.loads(bytes(_read(source, struct.unpack("<I", _read(source, 4))[0])))
        payload = _read(source, header.get("payload_bytes", 0))
        verb = header["verb"]
        try:
            parts, reply = [], {}
            if verb == "hello":
                name, version = runtime.hello()
                reply = {"protocol": PROTOCOL, "runtime": name, "version": version}
            elif verb == "load":
                runtime.load(payload, header["threads"])
            elif verb == "run":
                outputs = runtime.run(_tensors(header, payload))
                reply["tensors"] = [
                    {"name": n, "dtype": str(a.dtype), "dims": list(a.shape)} for n, a in outputs
                ]
                parts = [a.tobytes() for _, a in outputs]
            elif verb == "bench":
                reply = _bench(runtime.prepare(_tensors(header, payload)), header)
            elif verb == "describe":
                reply = {"nodes": runtime.describe()}
            elif verb != "quit":
                raise AdapterError("unsupported", "the adapter has no verb '%s'" % verb)
        except AdapterError as e:
            parts, reply = [], {"error": {"code": e.code, "message": str(e), "hint": e.hint}}
        except Exception as e:  # the runtime's own words
            words = " ".join(str(e).split())[:400] or type(e).__name__
            parts, reply = [], {"error": {"code": "unsupported", "message": words, "hint": ""}}
        _send(sink, reply, parts)
        if verb == "quit":
            return


def missing(module, package):
    return AdapterError(
        "unavailable",
        "the Python module %s is not installed for %s" % (module, sys.executable),
        "run: %s -m pip install %s numpy, or set MLOPT_PYTHON to a Python that has it" % (sys.executable, package),
    )


