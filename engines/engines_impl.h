/* Private to engines/: what all engines share. */
#ifndef MLO_ENGINES_IMPL_H
#define MLO_ENGINES_IMPL_H

#include "engines/engines.h"

extern const struct mlo_engine mlo_engine_reference, mlo_engine_cpu, mlo_engine_cuda, mlo_engine_external,
    mlo_engine_ort, mlo_engine_openvino, mlo_engine_tensorrt;

/* Makes mlo_isa_current answer `isa` (never more than the machine has) until the next call; negative: ends
 * that. For tests of the invariant numerics; oneDNN keeps what it was first used with. */
void mlo_isa_override(int isa);

/* What the environment variable MLOPT_FP16 asks of the cpu engine, for models in float16 (fixed point: and
 * bfloat16): to compute them in float32 (off), by FP16 instructions where the CPU has them (native), to
 * compute what these give on any (emulate), to take 16-bit fixed point (fixed), or what it does by itself
 * (unset, or a text that mlo_isa_check refuses). */
enum mlo_fp16 { MLO_FP16_DEFAULT, MLO_FP16_OFF, MLO_FP16_NATIVE, MLO_FP16_EMULATE, MLO_FP16_FIXED };
enum mlo_fp16 mlo_fp16_asked(void);
/* For tests: the cpu engine splits work among threads however little it is. */
extern bool mlo_cpu_splits_all;
/* For tests: its convolutions that can be computed line by line are, however small. */
extern bool mlo_cpu_joins_all;

/* 64-byte aligned, zeroed memory (free). One vector may be read beyond its end. NULL: out of memory. */
void *mlo_engine_aligned(size_t size_bytes);

/* One of a mlo_constants, held by a plan. */
struct mlo_constant;
/* Fills `out`: zeroed, 64-byte aligned. False: it failed. */
typedef bool mlo_make_constant_fn(void *arg, void *out);
/* The constant that equal keys stand for; made when it is not there. A thread that wants what another one is
 * making waits. NULL: out of memory, or `make` failed. Release it. */
struct mlo_constant *mlo_constants_get(struct mlo_constants *c, const struct mlo_digest *key,
                                       size_t size_bytes, mlo_make_constant_fn *make, void *arg);
const void *mlo_constant_data(const struct mlo_constant *constant);
void mlo_constant_release(struct mlo_constant *constant); /* NULL is fine */

/* {"vendor","family","model","name"} of the processor. *out is yours. */
MLO_MUST_USE enum mlo_status mlo_cpu_identity(json_t **out, struct mlo_error *err);

/* A private copy of the model with the batch bound and every type inferred; checks that all ops are known and
 * that the inputs are static. *out is yours. */
MLO_MUST_USE enum mlo_status mlo_engine_bind(const struct mlo_model *model,
                                             const struct mlo_compile_options *o, struct mlo_model **out,
                                             struct mlo_error *err);
/* The graph inputs that a caller feeds (no initializer behind them), in order. `out` holds
 * graph->input_count. */
int mlo_engine_inputs(const struct mlo_graph *graph, struct mlo_value **out);
/* The tensor must be of the value's type and shape: the error names both. */
MLO_MUST_USE enum mlo_status mlo_engine_check_input(const struct mlo_value *value,
                                                    const struct mlo_tensor *tensor, struct mlo_error *err);
/* Looks the observed names up; values[i] is that of observe[i]. */
MLO_MUST_USE enum mlo_status mlo_engine_observed(const struct mlo_graph *graph,
                                                 const struct mlo_compile_options *o,
                                                 struct mlo_value **values, struct mlo_error *err);
/* Copies `from` into *to, which is reused when it already owns or borrows memory of that type and shape. */
MLO_MUST_USE enum mlo_status mlo_engine_deliver(const struct mlo_tensor *from, struct mlo_tensor *to,
                                                struct mlo_error *err);
/* Hands a value to an observer as float32. */
MLO_MUST_USE enum mlo_status mlo_engine_show(const char *name, const struct mlo_tensor *value,
                                             mlo_observe_fn *fn, void *arg, struct mlo_error *err);

#endif
