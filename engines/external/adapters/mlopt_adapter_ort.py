# ONNX Runtime, on its CPU provider with all graph optimisations.
class OrtRuntime:
    INT8_OPS = ("QLinear", "ConvInteger", "MatMulInteger", "DynamicQuantize", "QGemm", "QAttention")

    def hello(self):
        try:
            import numpy  # noqa: F401
            import onnxruntime
        except ImportError:
            raise missing("onnxruntime", "onnxruntime") from None
        self.ort = onnxruntime
        return "onnxruntime", onnxruntime.__version__

    def _session(self, profile=None):
        options = self.ort.SessionOptions()
        options.graph_optimization_level = self.ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.intra_op_num_threads = self.threads
        options.inter_op_num_threads = 1
        options.execution_mode = self.ort.ExecutionMode.ORT_SEQUENTIAL
        options.log_severity_level = 3
        if profile:
            options.enable_profiling = True
            options.profile_file_prefix = profile
        return self.ort.InferenceSession(bytes(self.onnx), options, providers=["CPUExecutionProvider"])

    def load(self, onnx, threads):
        self.onnx, self.threads = onnx, threads
        self.session = self._session()
        self.outputs = [o.name for o in self.session.get_outputs()]

    def run(self, inputs):
        return list(zip(self.outputs, self.session.run(self.outputs, inputs)))

    def prepare(self, inputs):
        # Bound once: inputs and outputs stay where they are, so that nothing but the model is timed.
        session, binding, value_of = self.session, self.session.io_binding(), self.ort.OrtValue.ortvalue_from_numpy
        self.kept = []
        for name, array in inputs.items():
            self.kept.append(value_of(array))
            binding.bind_ortvalue_input(name, self.kept[-1])
        for name, array in self.run(inputs):
            self.kept.append(value_of(array))
            binding.bind_ortvalue_output(name, self.kept[-1])
        return lambda: session.run_with_iobinding(binding)

    def describe(self):
        # A profile of a few calls on zeros: the kernels that really ran, on which types, and for how long.
        import numpy
        import tempfile

        types = {"tensor(float)": "float32", "tensor(double)": "float64"}
        with tempfile.TemporaryDirectory() as folder:
            session = self._session(os.path.join(folder, "p"))
            feeds = {}
            for i in session.get_inputs():
                kind = types.get(i.type, i.type[len("tensor(") : -1])
                feeds[i.name] = numpy.zeros(i.shape, numpy.dtype(kind))
            calls = 5
            for _ in range(calls):
                session.run(None, feeds)
            with open(session.end_profiling()) as profile:
                events = json.load(profile)
        nodes = {}
        for e in events:
            args = e.get("args", {})
            if e.get("cat") != "Node" or not e["name"].endswith("_kernel_time"):
                continue
            name, op = e["name"][: -len("_kernel_time")], args.get("op_name", "")
            ins = [next(iter(t)) for t in args.get("input_type_shape", []) if t]
            precision = {"float": "f32", "float16": "f16"}.get(ins[0], ins[0]) if ins else "f32"
            if op.startswith(self.INT8_OPS) or precision in ("uint8", "int8"):
                precision = "f32" if op == "DequantizeLinear" else "int8"
            node = nodes.setdefault(
                name, {"node": name, "op": op, "impl": "ort", "precision": precision, "fused": [], "us": []}
            )
            node["us"].append(e["dur"])
        for node in nodes.values():
            node["us"] = sorted(node["us"])[len(node["us"]) // 2]
        return list(nodes.values())


serve(OrtRuntime())
