# TensorRT. Written against the Python API of TensorRT 10 with cuda-python; not tested on a machine that has them.
class TensorRtRuntime:
    def hello(self):
        try:
            import numpy  # noqa: F401
            import tensorrt
            from cuda.bindings import runtime as cudart
        except ImportError:
            raise missing("tensorrt or cuda-python", "tensorrt cuda-python") from None
        self.trt, self.cuda = tensorrt, cudart
        return "tensorrt", tensorrt.__version__

    def _check(self, result):
        code, *values = result
        if int(code) != 0:
            raise AdapterError("unavailable", "CUDA: %s" % self.cuda.cudaGetErrorString(code)[1].decode())
        return values[0] if values else None

    def load(self, onnx, threads):
        trt = self.trt
        logger = trt.Logger(trt.Logger.ERROR)
        builder = trt.Builder(logger)
        network = builder.create_network(0)
        parser = trt.OnnxParser(network, logger)
        if not parser.parse(bytes(onnx)):
            raise AdapterError("unsupported", "; ".join(str(parser.get_error(i)) for i in range(parser.num_errors)))
        config = builder.create_builder_config()
        config.clear_flag(trt.BuilderFlag.TF32)
        config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
        plan = builder.build_serialized_network(network, config)
        if plan is None:
            raise AdapterError("unsupported", "TensorRT could not build the network")
        self.engine = trt.Runtime(logger).deserialize_cuda_engine(plan)
        self.context = self.engine.create_execution_context()
        self.stream = self._check(self.cuda.cudaStreamCreate())
        self.arrays, self.device = {}, {}
        import numpy

        for i in range(self.engine.num_io_tensors):
            name = self.engine.get_tensor_name(i)
            dtype = trt.nptype(self.engine.get_tensor_dtype(name))
            self.arrays[name] = numpy.zeros(tuple(self.engine.get_tensor_shape(name)), dtype)
            self.device[name] = self._check(self.cuda.cudaMalloc(max(self.arrays[name].nbytes, 1)))
            self.context.set_tensor_address(name, self.device[name])
        self.outputs = [network.get_output(i).name for i in range(network.num_outputs)]

    def _copy(self, name, to_device):
        a, d = self.arrays[name], self.device[name]
        kind = self.cuda.cudaMemcpyKind
        if to_device:
            self._check(self.cuda.cudaMemcpy(d, a.ctypes.data, a.nbytes, kind.cudaMemcpyHostToDevice))
        else:
            self._check(self.cuda.cudaMemcpy(a.ctypes.data, d, a.nbytes, kind.cudaMemcpyDeviceToHost))

    def _call(self):
        self.context.execute_async_v3(int(self.stream))
        self._check(self.cuda.cudaStreamSynchronize(self.stream))

    def prepare(self, inputs):
        for name, array in inputs.items():
            self.arrays[name][...] = array
            self._copy(name, True)
        return self._call

    def run(self, inputs):
        self.prepare(inputs)()
        for name in self.outputs:
            self._copy(name, False)
        return [(name, self.arrays[name].copy()) for name in self.outputs]

    def describe(self):
        inspector = self.engine.create_engine_inspector()
        layers = json.loads(inspector.get_engine_information(self.trt.LayerInformationFormat.JSON))["Layers"]
        nodes = []
        for layer in layers:
            ins = layer.get("Inputs", []) if isinstance(layer, dict) else []
            kind = ins[0].get("Format/Datatype", "") if ins else ""
            precision = "int8" if "Int8" in kind else "f16" if "Half" in kind or "FP16" in kind else "f32"
            name = layer["Name"] if isinstance(layer, dict) else str(layer)
            op = layer.get("LayerType", "") if isinstance(layer, dict) else ""
            nodes.append({"node": name, "op": op, "impl": "tensorrt", "precision": precision, "fused": []})
        return nodes


serve(TensorRtRuntime())
