/* Private to device/dnn_*.c: cuDNN's backend descriptors, made in one scope and destroyed together. */
#ifndef MLO_ENGINES_CUDA_DEVICE_DNN_IMPL_H
#define MLO_ENGINES_CUDA_DEVICE_DNN_IMPL_H

#include "engines/cuda/device/device_impl.h"

#if __has_include(<cudnn.h>)
enum { DNN_OPS_MAX = 10, DNN_SCALARS_MAX = 2 };

/* After a failure every function does nothing, so that a description is checked once, at its end. */
struct dnn_scope {
    const struct cuda_cudnn *api;
    cudnnBackendDescriptor_t *all;
    size_t count, cap;
    bool failed, no_memory;
    cudnnStatus_t status;
    char what[512];
};
MLO_MUST_USE enum mlo_status dnn_scope_init(struct dnn_scope *s, struct mlo_error *err);
void dnn_scope_clear(struct dnn_scope *s);
/* Forgets a failure: the next attempt begins. */
void dnn_scope_retry(struct dnn_scope *s);
/* NULL after a failure. */
cudnnBackendDescriptor_t dnn_new(struct dnn_scope *s, cudnnBackendDescriptorType_t type);
void dnn_set(struct dnn_scope *s, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
             cudnnBackendAttributeType_t type, int64_t count, const void *values);
void dnn_finalize(struct dnn_scope *s, cudnnBackendDescriptor_t d);
/* How many there are; at most `max` are filled in. 0 after a failure, which it does not cause. */
int64_t dnn_get(const struct dnn_scope *s, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t max, void *values);
/* MLO_EUNSUPPORTED (cuDNN does not do that), MLO_ESTALE (another architecture or version), MLO_ENOMEM, or
 * MLO_EIO. */
MLO_MUST_USE enum mlo_status dnn_status(const struct dnn_scope *s, struct mlo_error *err);

/* What a step's tensors are called: inputs by their place, from DNN_UID_IN on. */
enum { DNN_UID_IN = 1, DNN_UID_OUT = 100, DNN_UID_SCALAR = 200, DNN_UID_VIRTUAL = 1000 };

/* Numbers that go with each run, besides the step's slots. */
struct dnn_scalars {
    int count;
    float values[DNN_SCALARS_MAX];
};
/* The step's numbers, which do not depend on a graph. */
void dnn_scalars_of(const struct cuda_step *step, struct dnn_scalars *out);
/* The operation graph of a convolution or attention, finalized. */
MLO_MUST_USE enum mlo_status dnn_graph(struct dnn_scope *s, const struct cuda_schedule *schedule,
                                       const struct cuda_step *step, cudnnBackendDescriptor_t *out,
                                       struct mlo_error *err);
#endif
#endif
