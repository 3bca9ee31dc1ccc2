#include "tests/fuzz/fuzz_data.h"

#include "pipeline/measure/measure.h"
#include "tests/fuzz/fuzz.h"

/* One input float32[n,2,2] and one output of two classes; made once. */
static const struct mlo_model *model(void)
{
    static struct mlo_model *made;
    if (made)
        return made;
    struct mlo_error err = {0};
    struct mlo_type in = {MLO_FLOAT32, 3, {{-1, "n"}, {2, NULL}, {2, NULL}}};
    struct mlo_type out = {MLO_FLOAT32, 2, {{-1, "n"}, {4, NULL}}};
    if (mlo_model_new(13, &made, &err) != MLO_OK)
        fuzz_fail(__FILE__, __LINE__, "%s", err.message);
    struct mlo_value *x = mlo_graph_add_value(made->graph, "x", &in);
    struct mlo_value *y = mlo_graph_add_value(made->graph, "scores", &out);
    FUZZ_CHECK(x && y && mlo_graph_add_input(made->graph, x, &err) == MLO_OK &&
                   mlo_graph_add_node(made->graph, NULL, "", "Flatten", "f", &x, 1, &y, 1) &&
                   mlo_graph_add_output(made->graph, y, &err) == MLO_OK,
               "no model: %s", err.message);
    return made;
}

static volatile int64_t seen; /* so that every label is really read */

void fuzz_dataset(const char *path)
{
    enum { SAMPLES_MAX = 8 };
    struct mlo_error err = {0};
    struct mlo_dataset *dataset = NULL;
    struct mlo_dataset_options options = {0};
    struct mlo_digest digest;
    struct mlo_tensor x = {0};
    if (!fuzz_accepted(mlo_dataset_open(path, &options, &dataset, &err), &err)) {
        FUZZ_CHECK(!dataset, "refused, but a dataset is given");
        return;
    }
    int64_t count = mlo_dataset_count(dataset);
    const int64_t *labels = mlo_dataset_labels(dataset), *groups = mlo_dataset_groups(dataset);
    FUZZ_CHECK(count > 0, "%lld samples", (long long)count);
    for (int64_t i = 0; i < count && (labels || groups); i++)
        seen = (labels ? labels[i] : 0) ^ (groups ? groups[i] : 0);
    for (int64_t i = 0; i < MLO_MIN(count, SAMPLES_MAX); i++)
        if (!fuzz_accepted(mlo_dataset_sample_digest(dataset, i, &digest, &err), &err))
            break;
    if (fuzz_accepted(mlo_dataset_check(dataset, model(), &err), &err)) {
        if (fuzz_accepted(mlo_dataset_read(dataset, model(), 0, MLO_MIN(count, SAMPLES_MAX), &x, &err), &err))
            mlo_tensor_clear(&x);
        if (fuzz_accepted(mlo_dataset_read(dataset, model(), count - 1, 1, &x, &err), &err))
            mlo_tensor_clear(&x);
    }
    mlo_dataset_close(dataset);
}
