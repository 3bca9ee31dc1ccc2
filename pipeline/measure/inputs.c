#include "pipeline/measure/inputs_impl.h"

#include <stdio.h>
#include <string.h>

#include "pipeline/measure/measure.h"

int mlo_model_input_count(const struct mlo_model *model)
{
    int n = 0;
    for (int i = 0; i < model->graph->input_count; i++)
        n += model->graph->inputs[i]->constant == NULL;
    return n;
}

const struct mlo_value *mlo_model_input(const struct mlo_model *model, int i)
{
    for (int k = 0; k < model->graph->input_count; k++)
        if (!model->graph->inputs[k]->constant && i-- == 0)
            return model->graph->inputs[k];
    return NULL;
}

/* "input:axis", by which an open dim without a name is given. */
static const char *dim_name(const struct mlo_value *input, int axis, char *out, size_t size)
{
    if (input->type.dims[axis].name)
        return input->type.dims[axis].name;
    snprintf(out, size, "%s:%d", input->name, axis);
    return out;
}

/* Binds dims without a name, and checks that every binding is for something. */
static enum mlo_status bind_unnamed(const struct mlo_model *model, const struct mlo_binding *dims,
                                    size_t count, struct mlo_error *err)
{
    for (size_t b = 0; b < count; b++) {
        bool used = false;
        char text[256], known[256] = "";
        for (int i = 0, n = mlo_model_input_count(model); i < n; i++) {
            struct mlo_value *input = (struct mlo_value *)(uintptr_t)mlo_model_input(model, i);
            for (int d = 0; d < input->type.rank; d++) {
                struct mlo_dim *dim = &input->type.dims[d];
                if (dim->value >= 0)
                    continue;
                const char *name = dim_name(input, d, text, sizeof text);
                size_t len = strlen(known);
                if (!strstr(known, name) && len + strlen(name) + 8 < sizeof known)
                    snprintf(known + len, sizeof known - len, "%s'%.200s'", len ? ", " : "", name);
                if (strcmp(name, dims[b].name) != 0)
                    continue;
                used = true;
                if (!dim->name)
                    *dim = (struct mlo_dim){dims[b].value, NULL};
            }
        }
        if (!used) {
            mlo_error_set(err, MLO_EINVAL, "the model has no open dim '%.100s'", dims[b].name);
            mlo_error_hint(err, *known ? "its open dims: %s" : "all its dims are fixed", known);
            return MLO_EINVAL;
        }
    }
    return MLO_OK;
}

/* MLO_EINVAL when a dim is still open; with `unnamed` only those without a name count, and not the batch. */
static enum mlo_status check_open(const struct mlo_model *model, bool unnamed, struct mlo_error *err)
{
    for (int i = 0, n = mlo_model_input_count(model); i < n; i++) {
        const struct mlo_value *input = mlo_model_input(model, i);
        char text[256], name[256];
        for (int d = unnamed; d < input->type.rank; d++) {
            if (input->type.dims[d].value >= 0 || (unnamed && input->type.dims[d].name))
                continue;
            const char *open = dim_name(input, d, name, sizeof name);
            mlo_error_set(err, MLO_EINVAL, "input '%.120s' is %s: how large is '%.80s'?", input->name,
                          mlo_type_describe(&input->type, text, sizeof text), open);
            mlo_error_where(err, "input '%.120s'", input->name);
            mlo_error_hint(err, "give it with --dim '%.100s=N'", open);
            return MLO_EINVAL;
        }
    }
    return MLO_OK;
}

enum mlo_status mlo_model_bind_dims(struct mlo_model *model, const struct mlo_binding *dims, size_t count,
                                    int64_t batch, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    MLO_TRY(bind_unnamed(model, dims, count, err));
    MLO_TRY(check_open(model, true, err));
    if (count) /* the one dim without a name that may be left is the batch */
        MLO_TRY(mlo_graph_bind(model->graph, dims, count, batch, err));
    MLO_TRY(mlo_graph_bind_batch(model->graph, batch, err));
    MLO_TRY(check_open(model, false, err));
out:
    return status;
}

enum mlo_status mlo_model_fixed_batch(const struct mlo_model *model, int64_t *out, struct mlo_error *err)
{
    const struct mlo_value *by = NULL;
    *out = 0;
    for (int i = 0, n = mlo_model_input_count(model); i < n; i++) {
        const struct mlo_value *input = mlo_model_input(model, i);
        if (input->type.rank == 0)
            return mlo_error_set(err, MLO_EUNSUPPORTED, "model input '%s' is a scalar: it has no batch axis",
                                 input->name);
        int64_t batch = input->type.rank > 0 ? input->type.dims[0].value : -1;
        if (batch < 0)
            continue;
        if (batch == 0)
            return mlo_error_set(err, MLO_EUNSUPPORTED, "model input '%s' has a batch of 0", input->name);
        if (by && batch != *out)
            return mlo_error_set(err, MLO_EUNSUPPORTED,
                                 "model inputs '%s' and '%s' have different batch sizes: %lld and %lld",
                                 by->name, input->name, (long long)*out, (long long)batch);
        by = input;
        *out = batch;
    }
    return MLO_OK;
}
