/* Which array feeds which model input, and whether it can. */
#include <stdio.h>
#include <string.h>

#include "pipeline/measure/dataset_impl.h"
#include "pipeline/measure/inputs_impl.h"

static const struct mlo_array *only_data_array(const struct mlo_dataset *d)
{
    const struct mlo_array *only = NULL;
    for (size_t i = 0; i < d->arrays.count; i++) {
        if (!mlo_dataset_is_data(d, &d->arrays.items[i]))
            continue;
        if (only)
            return NULL;
        only = &d->arrays.items[i];
    }
    return only;
}

static enum mlo_status no_array(const struct mlo_dataset *d, const struct mlo_value *input,
                                struct mlo_error *err)
{
    char type[160];
    struct mlo_buf there = MLO_BUF_INIT;
    mlo_arrays_describe(&d->arrays, &there);
    mlo_error_set(err, MLO_EINVAL, "no array feeds model input '%s' (%s); the dataset has %s", input->name,
                  mlo_type_describe(&input->type, type, sizeof type), mlo_buf_str(&there));
    mlo_error_where(err, "dataset %s", d->path);
    mlo_error_hint(err, "name an array '%s', or map one: --map %s=ARRAY", input->name, input->name);
    mlo_buf_clear(&there);
    return MLO_EINVAL;
}

static enum mlo_status find_array(const struct mlo_dataset *d, const struct mlo_model *model,
                                  const struct mlo_value *input, struct mlo_array **out,
                                  struct mlo_error *err)
{
    const struct mlo_array *found = NULL;
    bool single = mlo_model_input_count(model) == 1;
    for (size_t i = 0; i < d->map_count && !found; i++)
        if (strcmp(d->map[i].input, input->name) == 0)
            found = mlo_arrays_find(&d->arrays, d->map[i].array);
    if (!found)
        found = mlo_arrays_find(&d->arrays, input->name);
    if (!found && mlo_str_eq(d->manifest.input, input->name))
        found = only_data_array(d);
    if (!found && single)
        found = mlo_arrays_find(&d->arrays, "x");
    if (!found && single)
        found = only_data_array(d);
    if (!found)
        return no_array(d, input, err);
    if (found->dtype == MLO_DTYPE_NONE) {
        if (err)
            *err = found->refusal;
        mlo_error_where(err, "array '%s' of %s", found->name, d->path);
        return found->refusal.status;
    }
    if (found->rank < 1 || found->dims[0] != d->rows) {
        mlo_error_set(err, MLO_EINVAL,
                      "array '%s' for model input '%s' does not have a row for each of the %lld samples",
                      found->name, input->name, (long long)d->rows);
        mlo_error_where(err, "dataset %s", d->path);
        return MLO_EINVAL;
    }
    *out = (struct mlo_array *)found;
    return MLO_OK;
}

/* --- shapes ------------------------------------------------------------------------------------ */

static enum mlo_status shape_mismatch(const struct mlo_dataset *d, const struct mlo_array *a,
                                      const struct mlo_value *input, struct mlo_error *err)
{
    char type[160];
    struct mlo_buf shape = MLO_BUF_INIT;
    for (int i = 1; i < a->rank; i++)
        mlo_buf_printf(&shape, "%s%lld", i > 1 ? "," : "", (long long)a->dims[i]);
    mlo_error_set(err, MLO_EINVAL, "samples of array '%s' have the shape [%s], model input '%s' is %s",
                  a->name, mlo_buf_str(&shape), input->name,
                  mlo_type_describe(&input->type, type, sizeof type));
    mlo_error_where(err, "dataset %s", d->path);
    if (a->rank == 4 && input->type.rank == 4 && a->dims[3] == input->type.dims[1].value)
        mlo_error_hint(err,
                       "channels stand last in the data and first in the model: x.transpose(0, 3, 1, 2)");
    mlo_buf_clear(&shape);
    return MLO_EINVAL;
}

/* The same elements in the same order: equal but for axes of 1, or one side flat. */
static bool same_but_ones(const struct mlo_array *a, const struct mlo_feed *f)
{
    int64_t left[MLO_MAX_RANK], right[MLO_MAX_RANK];
    int n = 0, m = 0;
    size_t have, want;
    for (int i = 1; i < a->rank; i++)
        if (a->dims[i] != 1)
            left[n++] = a->dims[i];
    for (int i = 1; i < f->rank; i++)
        if (f->dims[i] != 1)
            right[m++] = f->dims[i];
    if (!mlo_shape_count(a->rank - 1, a->dims + 1, &have) ||
        !mlo_shape_count(f->rank - 1, f->dims + 1, &want) || have != want)
        return false;
    return n <= 1 || m <= 1 || (n == m && memcmp(left, right, (size_t)n * sizeof *left) == 0);
}

static enum mlo_status match_shape(const struct mlo_dataset *d, struct mlo_feed *f, struct mlo_error *err)
{
    const struct mlo_array *a = f->array;
    const struct mlo_type *type = &f->input->type;
    bool open = type->rank < 0;
    for (int i = 1; i < type->rank; i++)
        open |= type->dims[i].value < 0;
    if (open) { /* the data decides what the model leaves open */
        if (type->rank >= 0 && type->rank != a->rank)
            return shape_mismatch(d, a, f->input, err);
        f->rank = a->rank;
        memcpy(f->dims, a->dims, sizeof f->dims);
        for (int i = 1; i < type->rank; i++)
            if (type->dims[i].value >= 0 && type->dims[i].value != a->dims[i])
                return shape_mismatch(d, a, f->input, err);
    } else {
        f->rank = type->rank;
        for (int i = 1; i < type->rank; i++)
            f->dims[i] = type->dims[i].value;
        if (f->rank < 1 || !same_but_ones(a, f))
            return shape_mismatch(d, a, f->input, err);
    }
    if (!mlo_shape_count(f->rank - 1, f->dims + 1, &f->elements))
        return shape_mismatch(d, a, f->input, err);
    f->channels = f->rank >= 2 ? f->dims[1] : 1;
    return MLO_OK;
}

/* --- types ------------------------------------------------------------------------------------- */

static enum mlo_status match_types(const struct mlo_dataset *d, struct mlo_feed *f, struct mlo_error *err)
{
    enum mlo_dtype from = f->array->dtype, to = f->input->type.dtype;
    const struct mlo_dtype_info *have = mlo_dtype_info(from), *want = mlo_dtype_info(to);
    bool known = want && want->bits >= 8 && to != MLO_COMPLEX64 && to != MLO_COMPLEX128;
    if (!known || (have->is_float && !want->is_float)) {
        mlo_error_set(err, MLO_EINVAL, "array '%s' of %s cannot feed model input '%s' of %s", f->array->name,
                      have->name, f->input->name, mlo_dtype_name(to));
        mlo_error_where(err, "dataset %s", d->path);
        if (known)
            mlo_error_hint(err, "save it as integers: a.astype('%s')", want->name);
        return MLO_EINVAL;
    }
    if (!d->normalize || from != MLO_UINT8 || !want->is_float)
        return MLO_OK;
    const struct mlo_normalize *n = &d->manifest.normalize;
    int per_channel = MLO_MAX(n->mean_count, n->std_count);
    if (per_channel > 1 && per_channel != f->channels) {
        mlo_error_set(err, MLO_EINVAL, "normalize has values for %d channels, model input '%s' has %lld",
                      per_channel, f->input->name, (long long)f->channels);
        mlo_error_where(err, "dataset %s", d->path);
        return MLO_EINVAL;
    }
    f->normalize = n;
    return MLO_OK;
}

enum mlo_status mlo_dataset_feed(const struct mlo_dataset *dataset, const struct mlo_model *model,
                                 const struct mlo_value *input, struct mlo_feed *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    *out = (struct mlo_feed){.input = input};
    MLO_TRY(find_array(dataset, model, input, &out->array, err));
    MLO_TRY(match_shape(dataset, out, err));
    MLO_TRY(match_types(dataset, out, err));
out:
    return status;
}

static bool is_mapped(const struct mlo_dataset *d, const struct mlo_value *input)
{
    for (size_t i = 0; i < d->map_count; i++)
        if (strcmp(d->map[i].input, input->name) == 0)
            return true;
    return mlo_str_eq(d->manifest.input, input->name);
}

enum mlo_status mlo_dataset_feed_note(const struct mlo_dataset *dataset, const struct mlo_model *model,
                                      const struct mlo_value *input, char *text, size_t size,
                                      struct mlo_error *err)
{
    struct mlo_feed feed;
    *text = '\0';
    enum mlo_status status = mlo_dataset_feed(dataset, model, input, &feed, err);
    if (status != MLO_OK)
        return status;
    const char *name = feed.array->name;
    const struct mlo_dtype_info *have = mlo_dtype_info(feed.array->dtype),
                                *want = mlo_dtype_info(input->type.dtype);
    bool other = strcmp(name, input->name) != 0 && strcmp(name, "x") != 0 && !is_mapped(dataset, input);
    bool by_value = have->is_integer && want->is_float && !feed.normalize;
    if (other)
        snprintf(text, size, "the set has no array of this name: '%.80s' feeds it, its only one", name);
    if (by_value) {
        size_t at = strlen(text);
        snprintf(text + at, size - at, "%s'%.80s' is %s and feeds it by value: the set has no normalisation",
                 at ? "; " : "", name, have->name);
    }
    return MLO_OK;
}

/* --- the whole model --------------------------------------------------------------------------- */

static enum mlo_status check_map(const struct mlo_dataset *d, const struct mlo_model *model,
                                 struct mlo_error *err)
{
    for (size_t i = 0; i < d->map_count; i++) {
        bool found = false;
        for (int k = 0, n = mlo_model_input_count(model); k < n; k++)
            found |= strcmp(mlo_model_input(model, k)->name, d->map[i].input) == 0;
        if (found)
            continue;
        mlo_error_set(err, MLO_EINVAL, "the model has no input '%s' to map array '%s' to", d->map[i].input,
                      d->map[i].array);
        if (mlo_model_input_count(model))
            mlo_error_hint(err, "its first input is '%s'", mlo_model_input(model, 0)->name);
        return MLO_EINVAL;
    }
    return MLO_OK;
}

/* Labels against the classes of a classifier: one output [batch, classes]. */
static enum mlo_status check_labels(const struct mlo_dataset *d, const struct mlo_model *model,
                                    struct mlo_error *err)
{
    if (!d->labels || model->graph->output_count != 1 || d->manifest.postprocess)
        return MLO_OK;
    const struct mlo_value *output = model->graph->outputs[0];
    const struct mlo_dtype_info *info = mlo_dtype_info(output->type.dtype);
    int64_t classes = output->type.rank == 2 ? output->type.dims[1].value : -1;
    if (classes <= 1 || !info || !info->is_float)
        return MLO_OK;
    for (int64_t i = 0; i < d->count; i++) {
        if (d->labels[i] >= 0 && d->labels[i] < classes)
            continue;
        mlo_error_set(err, MLO_EINVAL,
                      "label %lld of sample %lld is out of range: output '%s' has %lld classes (0 to %lld)",
                      (long long)d->labels[i], (long long)i, output->name, (long long)classes,
                      (long long)classes - 1);
        mlo_error_where(err, "dataset %s: array 'y'", d->path);
        return MLO_EINVAL;
    }
    return MLO_OK;
}

enum mlo_status mlo_dataset_check(const struct mlo_dataset *dataset, const struct mlo_model *model,
                                  struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    bool normalized = false;
    MLO_TRY(check_map(dataset, model, err));
    for (int i = 0, n = mlo_model_input_count(model); i < n; i++) {
        struct mlo_feed feed;
        MLO_TRY(mlo_dataset_feed(dataset, model, mlo_model_input(model, i), &feed, err));
        normalized |= feed.normalize != NULL;
    }
    if (dataset->normalize_asked && !normalized) {
        status = mlo_error_set(err, MLO_EINVAL,
                               "normalize is given, but no uint8 array feeds a float input of the model");
        mlo_error_where(err, "dataset %s", dataset->path);
        mlo_error_hint(err, "leave normalize out, or save the images as uint8");
        goto out;
    }
    MLO_TRY(check_labels(dataset, model, err));
out:
    return status;
}

/* --- open dims --------------------------------------------------------------------------------- */

static bool is_open(const struct mlo_type *type, int d)
{
    return d < type->rank && type->dims[d].value < 0;
}

/* Fixes a named dim wherever it stands; one that is fixed otherwise already was given two sizes. */
static void fix_named(struct mlo_graph *g, const char *name, int64_t size)
{
    for (int i = 0; i < g->input_count; i++) {
        struct mlo_type *type = &g->inputs[i]->type;
        for (int d = 0; d < type->rank; d++)
            if (is_open(type, d) && type->dims[d].name && strcmp(type->dims[d].name, name) == 0)
                type->dims[d] = (struct mlo_dim){size, NULL};
    }
}

static enum mlo_status fit_input(const struct mlo_dataset *d, const struct mlo_model *model, int index,
                                 struct mlo_model *copy, struct mlo_error *err)
{
    struct mlo_feed feed;
    const struct mlo_value *input = mlo_model_input(model, index);
    enum mlo_status status = mlo_dataset_feed(d, model, input, &feed, err);
    if (status != MLO_OK)
        return status;
    struct mlo_value *to = mlo_graph_value(copy->graph, input->name);
    if (to->type.rank < 0) { /* the file does not even tell the rank */
        to->type.rank = feed.rank;
        to->type.dims[0] = (struct mlo_dim){-1, NULL};
        for (int k = 1; k < feed.rank; k++)
            to->type.dims[k] = (struct mlo_dim){feed.dims[k], NULL};
    }
    for (int k = 1; k < to->type.rank; k++) {
        if (is_open(&to->type, k) && to->type.dims[k].name)
            fix_named(copy->graph, to->type.dims[k].name, feed.dims[k]);
        if (is_open(&to->type, k))
            to->type.dims[k] = (struct mlo_dim){feed.dims[k], NULL};
        if (to->type.dims[k].value == feed.dims[k])
            continue;
        mlo_error_set(err, MLO_EINVAL,
                      "dim %d of model input '%s' (%s) is %lld by another input, and %lld here", k,
                      input->name, input->type.dims[k].name ? input->type.dims[k].name : "unnamed",
                      (long long)to->type.dims[k].value, (long long)feed.dims[k]);
        mlo_error_where(err, "dataset %s", d->path);
        return MLO_EINVAL;
    }
    return MLO_OK;
}

enum mlo_status mlo_dataset_fit(const struct mlo_dataset *dataset, const struct mlo_model *model,
                                struct mlo_model **out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_model *copy = NULL;
    bool open = false;
    int n = mlo_model_input_count(model);
    *out = NULL;
    for (int i = 0; i < n; i++) {
        const struct mlo_type *type = &mlo_model_input(model, i)->type;
        open |= type->rank < 0;
        for (int k = 1; k < type->rank; k++)
            open |= is_open(type, k);
    }
    if (!open)
        return MLO_OK;
    MLO_TRY(mlo_model_clone(model, &copy, err));
    for (int i = 0; i < n; i++)
        MLO_TRY(fit_input(dataset, model, i, copy, err));
    *out = copy;
    copy = NULL;
out:
    mlo_model_free(copy);
    return status;
}
