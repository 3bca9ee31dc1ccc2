/* The knobs of a search: what each may be, and what precisions are made by. */
#include <stdio.h>
#include <string.h>

#include "pipeline/steps/search_impl.h"
#include "pipeline/steps/step_impl.h"

const char *const mlo_search_knob_names[MLO_KNOBS] = {"prune",      "round",    "precision", "sparsity",
                                                      "calibrator", "rounding", "mixed",     "threads"};

static const struct mlo_search_precision PRECISIONS[] = {
    {.name = "float", .bits = 32},
    {.name = "fp16", .step = "to-float16", .options = "{\"type\":\"float16\",\"keep_io\":true}", .bits = 16},
    {.name = "int8",
     .step = "quantize",
     .options = "{\"scheme\":\"int8\",\"form\":\"qdq\",\"per_channel\":true,\"bias_correction\":\"full\"}",
     .calibrates = true,
     .integers = true},
    {.name = "int8-dynamic",
     .step = "quantize-dynamic",
     .options = "{\"type\":\"int8\",\"per_channel\":true}",
     .integers = true},
    {.name = "int8-weights",
     .step = "quantize-weights",
     .options = "{\"type\":\"int8\",\"block\":0}",
     .bits = 8},
    {.name = "int4-weights",
     .step = "quantize-weights",
     .options = "{\"type\":\"int4\",\"block\":32,\"form\":\"qdq\"}",
     .bits = 5},
    {.name = "int4-gptq",
     .step = "round-weights",
     .options = "{\"type\":\"int4\",\"block\":32,\"form\":\"qdq\",\"rounding\":\"gptq\",\"sweeps\":20}",
     .bits = 5},
    /* those of Conv too, which have 8 bits above */
    {.name = "int4-all",
     .step = "round-weights",
     .options = "{\"type\":\"int4\",\"block\":128,\"form\":\"qdq\",\"rounding\":\"gptq\",\"sweeps\":20,"
                "\"convolution_bits\":\"4\"}",
     .bits = 4},
    /* dense kernels multiply zeros like other numbers */
    {.name = "sparse",
     .step = "sparsify",
     .options = "{\"criterion\":\"sparsegpt\",\"storage\":\"bitmap\"}",
     .sparse = true,
     .bits = 1 /* and those that are left */},
};

const struct mlo_search_precision *mlo_search_precision_find(const char *name)
{
    return mlo_named_row(name, PRECISIONS, MLO_COUNT(PRECISIONS), sizeof PRECISIONS[0]);
}

double mlo_search_share(const char *text)
{
    char number[32];
    double share;
    size_t n = strlen(text);
    if (n < 2 || n >= sizeof number || text[n - 1] != '%')
        return -1;
    snprintf(number, sizeof number, "%.*s", (int)n - 1, text);
    return mlo_str_to_f64(number, &share) && share > 0 && share < 100 ? share / 100 : -1;
}

static const char OF_WEIGHTS[] = " of weights";

double mlo_search_pruned(const char *text, bool *of_weights)
{
    char share[32];
    *of_weights = mlo_str_ends(text, OF_WEIGHTS);
    if (strcmp(text, "none") == 0)
        return 0;
    size_t n = strlen(text) - (*of_weights ? strlen(OF_WEIGHTS) : 0);
    if (n >= sizeof share)
        return -1;
    snprintf(share, sizeof share, "%.*s", (int)n, text);
    return mlo_search_share(share);
}

static enum mlo_status bad_value(struct mlo_error *err, enum mlo_search_knob knob, const char *value,
                                 const char *form)
{
    mlo_error_set(err, MLO_EINVAL, "the knob '%s' cannot be '%.60s'", mlo_search_knob_names[knob], value);
    mlo_error_where(err, "option '%s'", mlo_search_knob_names[knob]);
    mlo_error_hint(err, "%s", form);
    return MLO_EINVAL;
}

static enum mlo_status bad_precision(struct mlo_error *err, const char *value)
{
    const char *names[MLO_COUNT(PRECISIONS)];
    struct mlo_buf known = MLO_BUF_INIT;
    for (size_t i = 0; i < MLO_COUNT(PRECISIONS); i++) {
        names[i] = PRECISIONS[i].name;
        mlo_buf_printf(&known, "%s%s", i ? ", " : "known are ", names[i]);
    }
    enum mlo_status status = bad_value(err, MLO_KNOB_PRECISION, value, "");
    if (!mlo_error_suggest(err, value, names, MLO_COUNT(names)))
        mlo_error_hint(err, "%s", mlo_buf_str(&known));
    mlo_buf_clear(&known);
    return status;
}

static bool is_budget(const char *value)
{
    struct mlo_condition budget;
    struct mlo_error ignored = {0};
    char text[96];
    snprintf(text, sizeof text, "accuracy_drop<=%.60s", value);
    return strcmp(value, "none") == 0 ||
           (mlo_str_ends(value, "pt") && mlo_condition_parse(text, &budget, &ignored) == MLO_OK);
}

enum mlo_status mlo_search_check_knob(const json_t *options, enum mlo_search_knob knob, struct mlo_error *err)
{
    const json_t *list = json_object_get(options, mlo_search_knob_names[knob]);
    if (json_array_size(list) == 0)
        return bad_value(err, knob, "", "name one value at least; none, where it should not be used");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *value = json_string_value(json_array_get(list, i));
        bool of_weights;
        if (knob == MLO_KNOB_PRUNE && mlo_search_pruned(value, &of_weights) < 0)
            return bad_value(
                err, knob, value,
                "write none, or the share of the multiply-adds that goes: 30%; or 30% of weights");
        if (knob == MLO_KNOB_PRECISION && !mlo_search_precision_find(value))
            return bad_precision(err, value);
        if (knob == MLO_KNOB_SPARSITY && strcmp(value, "2:4") != 0 && mlo_search_share(value) < 0)
            return bad_value(err, knob, value, "write 2:4, or the share of the weights that are zero: 50%");
        if (knob == MLO_KNOB_MIXED && !is_budget(value))
            return bad_value(err, knob, value, "write none, or points such as 0.3pt");
    }
    return MLO_OK;
}
