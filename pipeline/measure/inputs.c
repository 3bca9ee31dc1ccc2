#include "pipeline/measure/inputs_impl.h"
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
