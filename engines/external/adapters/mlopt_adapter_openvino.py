# OpenVINO, on its CPU plugin, tuned for latency. Float32 stays float32: the plugin would choose bfloat16 by itself
# where the CPU has it.
class OpenVinoRuntime:
    def hello(self):
        try:
            import numpy  # noqa: F401
            import openvino
        except ImportError:
            raise missing("openvino", "openvino") from None
        self.ov = openvino
        return "openvino", openvino.__version__.split("-")[0]

    def load(self, onnx, threads):
        core = self.ov.Core()
        self.model = core.read_model(bytes(onnx))
        config = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": str(threads),
            "INFERENCE_PRECISION_HINT": "f32",
        }
        self.core, self.config = core, config
        self.compiled = core.compile_model(self.model, "CPU", config)
        self.request = self.compiled.create_infer_request()
        self.names = [o.get_any_name() if o.get_names() else str(i) for i, o in enumerate(self.model.outputs)]

    def run(self, inputs):
        self.request.infer(inputs)
        outputs = [self.request.get_output_tensor(i).data.copy() for i in range(len(self.names))]
        return list(zip(self.names, outputs))

    def prepare(self, inputs):
        import numpy

        for name, array in inputs.items():
            tensor = self.request.get_tensor(name)
            numpy.copyto(tensor.data, array)
        request = self.request

        def call():
            request.start_async()
            request.wait()

        return call

    def describe(self):
        import numpy

        compiled = self.core.compile_model(self.model, "CPU", dict(self.config, PERF_COUNT="YES"))
        request = compiled.create_infer_request()
        for i, port in enumerate(compiled.inputs):
            numpy.copyto(request.get_input_tensor(i).data, 0)
        took = {}
        for _ in range(5):
            request.infer()
            for p in request.get_profiling_info():
                took.setdefault(p.node_name, []).append(p.real_time.total_seconds() * 1e6)
        short = {"u8": "int8", "i8": "int8"}
        nodes = []
        for op in compiled.get_runtime_model().get_ordered_ops():
            info = op.get_rt_info()
            value = lambda key: str(info[key].astype(str)) if key in info else ""
            kind = value("layerType")
            if kind in ("Input", "Output", "Constant", "Const", "Parameter", "Result", ""):
                continue
            name, precision = op.get_friendly_name(), value("runtimePrecision")
            times = sorted(took.get(name, [0]))
            nodes.append(
                {
                    "node": name,
                    "op": kind,
                    "impl": value("primitiveType"),
                    "precision": short.get(precision, precision),
                    "fused": [n for n in value("originalLayersNames").split(",") if n and n != name],
                    "us": times[len(times) // 2],
                }
            )
        return nodes


serve(OpenVinoRuntime())
