/* What every engine does alike: binding the batch, checking inputs, delivering outputs. */
#include <stdlib.h>
#include <string.h>

#include "engines/engines_impl.h"

void *mlo_engine_aligned(size_t size_bytes)
{
    void *p = NULL;
    size_t size = (size_bytes + 127) & ~(size_t)63;
    if (size < size_bytes || posix_memalign(&p, 64, size) != 0)
        return NULL;
    memset(p, 0, size);
    return p;
}

static bool is_fed(const struct mlo_value *value)
{
    return !value->constant;
}

int mlo_engine_inputs(const struct mlo_graph *graph, struct mlo_value **out)
{
    int n = 0;
    for (int i = 0; i < graph->input_count; i++)
        if (is_fed(graph->inputs[i]))
            out[n++] = graph->inputs[i];
    return n;
}

enum mlo_status mlo_engine_bind(const struct mlo_model *model, const struct mlo_compile_options *o,
                                struct mlo_model **out, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_model *copy = NULL;
    if (o->batch < 0)
        return mlo_error_set(err, MLO_EINVAL,
                             "the batch is %lld; it must be positive, or 0 for static inputs",
                             (long long)o->batch);
    MLO_TRY(mlo_isa_check(err));
    MLO_TRY(mlo_graph_check_supported(model->graph, err));
    MLO_TRY(o->constants ? mlo_model_clone_borrowing(model, &copy, err) : mlo_model_clone(model, &copy, err));
    MLO_TRY(o->batch > 0 ? mlo_graph_bind_batch(copy->graph, o->batch, err)
                         : mlo_graph_infer(copy->graph, err));
    for (int i = 0; i < copy->graph->input_count; i++) {
        const struct mlo_value *v = copy->graph->inputs[i];
        char type[256];
        if (!is_fed(v) || mlo_holds_values(v->type.dtype) || mlo_type_static(&v->type, NULL))
            continue;
        status = mlo_error_set(err, MLO_EINVAL, "input '%s' is %s: its shape is not fixed", v->name,
                               mlo_type_describe(&v->type, type, sizeof type));
        mlo_error_where(err, "input '%s'", v->name);
        mlo_error_hint(err, o->batch > 0 ? "bind its other symbolic dims before compiling" : "give a batch");
        goto out;
    }
    *out = copy;
    copy = NULL;
out:
    mlo_model_free(copy);
    return status;
}

enum mlo_status mlo_engine_check_input(const struct mlo_value *value, const struct mlo_tensor *tensor,
                                       struct mlo_error *err)
{
    const struct mlo_type *t = &value->type;
    if (mlo_holds_values(t->dtype) && t->dtype == tensor->dtype)
        return MLO_OK; /* what it holds may have any shape */
    bool same = t->dtype == tensor->dtype && t->rank == tensor->rank;
    for (int i = 0; same && i < t->rank; i++)
        same = t->dims[i].value == tensor->dims[i];
    size_t bytes;
    if (same && mlo_shape_bytes(tensor->dtype, tensor->rank, tensor->dims, &bytes) &&
        bytes == tensor->size_bytes && (tensor->data || !bytes))
        return MLO_OK;
    char want[256], got[256];
    mlo_error_set(err, MLO_EINVAL, "input '%s' is %s; this plan was compiled for %s", value->name,
                  mlo_tensor_describe(tensor, got, sizeof got), mlo_type_describe(t, want, sizeof want));
    mlo_error_where(err, "input '%s'", value->name);
    mlo_error_hint(err, "give data of the plan's shape, or compile for another batch");
    return MLO_EINVAL;
}

enum mlo_status mlo_engine_observed(const struct mlo_graph *graph, const struct mlo_compile_options *o,
                                    struct mlo_value **values, struct mlo_error *err)
{
    for (size_t i = 0; i < o->observe_count; i++) {
        values[i] = mlo_graph_value(graph, o->observe[i]);
        if (!values[i]) {
            mlo_error_set(err, MLO_ENOTFOUND, "no value is named '%s', so it cannot be observed",
                          o->observe[i]);
            mlo_error_where(err, "graph '%s'", graph->name ? graph->name : "");
            return MLO_ENOTFOUND;
        }
    }
    return MLO_OK;
}

enum mlo_status mlo_engine_deliver(const struct mlo_tensor *from, struct mlo_tensor *to,
                                   struct mlo_error *err)
{
    if (to->data && !mlo_holds_values(to->dtype) && to->dtype == from->dtype &&
        mlo_tensor_same_shape(from, to) && to->size_bytes == from->size_bytes) {
        memcpy(to->data, from->data, from->size_bytes);
        return MLO_OK;
    }
    mlo_tensor_clear(to);
    return mlo_tensor_copy(from, to, err);
}

enum mlo_status mlo_engine_show(const char *name, const struct mlo_tensor *value, mlo_observe_fn *fn,
                                void *arg, struct mlo_error *err)
{
    if (value->dtype == MLO_FLOAT32)
        return fn(arg, name, value, err);
    enum mlo_status status;
    struct mlo_tensor f = {0};
    if (value->dtype == MLO_STRING || mlo_holds_values(value->dtype))
        return mlo_error_set(err, MLO_EUNSUPPORTED, "value '%s' is a %s and cannot be observed", name,
                             mlo_dtype_name(value->dtype));
    MLO_TRY(mlo_tensor_init(&f, MLO_FLOAT32, value->rank, value->dims, err));
    size_t n = mlo_tensor_count(value);
    for (size_t i = 0; i < n; i++)
        ((float *)f.data)[i] = (float)mlo_tensor_get_f64(value, i);
    MLO_TRY(fn(arg, name, &f, err));
out:
    mlo_tensor_clear(&f);
    return status;
}
