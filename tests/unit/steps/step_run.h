/* For tests of deriving steps: one run of a step on a model that the test builds, in a folder of its own. */
#ifndef MLO_TESTS_STEP_RUN_H
#define MLO_TESTS_STEP_RUN_H

#include <stdlib.h>
#include <unistd.h>

#include "pipeline/steps/step_impl.h"
#include "tests/unit/passes/passes_helpers.h"

struct run {
    char dir[64];
    struct mlo_step_result result;
    struct mlo_error err;
    enum mlo_status status;
};

/* The next number of a sequence without a pattern, -1 to 1. */
static inline float noise_at(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (float)(*seed >> 8) / 8388608.0f - 1.0f;
}

/* Runs the step on a model (borrowed) and one array (its data NULL: without data), which is for the input of
 * that name. */
static inline void run_on(struct run *r, const char *name, const struct mlo_model *model,
                          struct mlo_npz_array array, const char *options, unsigned threads, int64_t batch)
{
    struct mlo_error err = {0};
    char model_path[96], data_path[96];
    const struct mlo_step *step = mlo_step_find(name);
    json_t *given = json_loads(options, 0, NULL), *resolved = NULL;
    assert_true(given && step);
    *r = (struct run){.dir = "/tmp/mlopt-test-XXXXXX"};
    assert_non_null(mkdtemp(r->dir));
    snprintf(model_path, sizeof model_path, "%s/m.onnx", r->dir);
    snprintf(data_path, sizeof data_path, "%s/x.npz", r->dir);
    assert_ok(mlo_onnx_save(model, model_path, &err));
    if (array.tensor)
        assert_ok(mlo_npz_write(data_path, &array, 1, &err));
    assert_ok(mlo_options_resolve(step->options, given, &resolved, &err));
    const struct mlo_step_context ctx = {.options = resolved,
                                         .model_path = model_path,
                                         .source_path = model_path,
                                         .calibrate_path = array.tensor ? data_path : NULL,
                                         .out_dir = r->dir,
                                         .threads = threads,
                                         .batch = batch};
    r->status = step->run(&ctx, &r->result, &r->err);
    json_decref(given);
    json_decref(resolved);
}

/* The same with `samples` samples without a pattern for the model's first input; 0: without data. */
static inline void run_named(struct run *r, const char *name, const struct mlo_model *model, int64_t samples,
                             const char *options, unsigned threads, int64_t batch)
{
    struct mlo_error err = {0};
    struct mlo_tensor data = {0};
    const struct mlo_value *x = model->graph->inputs[0];
    int64_t dims[MLO_MAX_RANK] = {samples};
    uint32_t seed = 7;
    if (samples) {
        for (int d = 1; d < x->type.rank; d++)
            dims[d] = x->type.dims[d].value;
        assert_ok(mlo_tensor_init(&data, MLO_FLOAT32, x->type.rank, dims, &err));
        for (size_t i = 0; i < mlo_tensor_count(&data); i++)
            ((float *)data.data)[i] = noise_at(&seed);
    }
    run_on(r, name, model, (struct mlo_npz_array){x->name, samples ? &data : NULL}, options, threads, batch);
    mlo_tensor_clear(&data);
}

static inline void clear(struct run *r)
{
    static const char *const FILES[] = {"m.onnx", "x.npz", "model.onnx"};
    char path[96];
    for (size_t i = 0; i < MLO_COUNT(FILES); i++) {
        snprintf(path, sizeof path, "%s/%s", r->dir, FILES[i]);
        unlink(path);
    }
    assert_int_equal(rmdir(r->dir), 0);
    mlo_step_result_clear(&r->result);
}

/* Of the model that a run, which went well, has made. */
static inline void digest_of(const struct run *r, char text[MLO_DIGEST_TEXT_SIZE])
{
    struct mlo_error err = {0};
    struct mlo_digest digest;
    if (r->status != MLO_OK)
        fail_msg("%s (%s)", r->err.message, r->err.where);
    assert_ok(mlo_digest_of_file(r->result.artifact_path, &digest, NULL, &err));
    mlo_digest_text(&digest, text);
}

/* A constant without a pattern, of numbers up to `size`. */
static inline struct mlo_value *noise_of(struct mlo_model *m, const char *name, float size, uint32_t seed,
                                         int rank, const int64_t *dims)
{
    struct mlo_value *v = ramp_of(m, name, 1, rank, dims);
    for (size_t i = 0; i < mlo_tensor_count(v->constant); i++)
        ((float *)v->constant->data)[i] = size * noise_at(&seed);
    return v;
}
#define noise(model, name, size, seed, ...)                                                                  \
    noise_of(model, name, size, seed, RANK(__VA_ARGS__), DIMS(__VA_ARGS__))

#endif
