/* mlo_run_dataset: batches, the rest, fixed batches, outputs. An engine that records what it is asked shows
 * how data is cut up, which no result of a real engine would tell; the last case runs the real reference
 * engine. */
#include <stdio.h>

#include "tests/unit/measure/fixture.h"

enum { CALLS = 64 };

static struct {
    int64_t compiled[CALLS];
    int compiles, runs, loaded, plans;
    int64_t rows[CALLS];
    float last_of_batch[CALLS];
    bool shrink, scalar, fail;
    unsigned threads;
} seen;

struct mlo_plan {
    int64_t batch;
};
struct mlo_program {
    struct mlo_plan *plan;
};

static const char *rec_version(void)
{
    return "recording 1";
}

static enum mlo_status rec_probe(struct mlo_error *err)
{
    (void)err;
    return MLO_OK;
}

static enum mlo_status rec_compile(const struct mlo_model *model, const struct mlo_compile_options *o,
                                   struct mlo_plan **plan, struct mlo_error *err)
{
    (void)model;
    (void)err;
    *plan = calloc(1, sizeof **plan);
    assert_non_null(*plan);
    (*plan)->batch = o->batch;
    seen.compiled[seen.compiles++] = o->batch;
    seen.threads = o->threads;
    seen.plans++;
    return MLO_OK;
}

static enum mlo_status rec_load(struct mlo_plan *plan, struct mlo_program **program, struct mlo_error *err)
{
    (void)err;
    *program = calloc(1, sizeof **program);
    assert_non_null(*program);
    (*program)->plan = plan;
    seen.loaded++;
    return MLO_OK;
}

/* Doubles its input [batch, 2]. */
static enum mlo_status rec_run(struct mlo_program *program, const struct mlo_tensor *in,
                               struct mlo_tensor *out, struct mlo_error *err)
{
    int64_t rows = in[0].dims[0], width = seen.shrink && seen.runs ? 1 : 2;
    assert_int_equal(rows, program->plan->batch);
    if (seen.fail && seen.runs == 1)
        return mlo_error_set(err, MLO_EINTERNAL, "as asked");
    if (!out[0].data || out[0].dims[0] != rows) {
        mlo_tensor_clear(&out[0]);
        enum mlo_status status =
            mlo_tensor_init(&out[0], MLO_FLOAT32, seen.scalar ? 0 : 2, DIMS(rows, width), err);
        if (status != MLO_OK)
            return status;
    }
    for (int64_t i = 0; i < (seen.scalar ? 1 : rows * width); i++)
        ((float *)out[0].data)[i] = ((float *)in[0].data)[i] * 2;
    seen.last_of_batch[seen.runs] = ((float *)in[0].data)[rows * 2 - 1];
    seen.rows[seen.runs++] = rows;
    return MLO_OK;
}

static enum mlo_status rec_observe(struct mlo_program *program, const struct mlo_tensor *in,
                                   struct mlo_tensor *out, mlo_observe_fn *fn, void *arg,
                                   struct mlo_error *err)
{
    (void)fn;
    (void)arg;
    return rec_run(program, in, out, err);
}

static enum mlo_status rec_describe(const struct mlo_plan *plan, json_t **out, struct mlo_error *err)
{
    (void)plan;
    (void)err;
    *out = json_object();
    return MLO_OK;
}

static void rec_unload(struct mlo_program *program)
{
    seen.loaded -= program != NULL;
    free(program);
}

static void rec_free(struct mlo_plan *plan)
{
    seen.plans -= plan != NULL;
    free(plan);
}

static const struct mlo_engine recording = {"recording", rec_version, rec_probe,    rec_compile, rec_load,
                                            rec_run,     rec_observe, rec_describe, rec_unload,  rec_free};

static float last_progress;

static void progress(void *arg, double fraction, const char *message)
{
    *(int *)arg += 1;
    last_progress = (float)fraction;
    assert_contains(message, "samples");
}

/* Runs `count` samples [count, 2] of 0, 1, 2… through a model of that input batch (-1: dynamic). */
static enum mlo_status run(int64_t count, int64_t model_batch, int64_t batch, struct mlo_tensor *out,
                           struct mlo_error *err)
{
    struct mlo_dataset *d = NULL;
    struct mlo_model *model = shell_model();
    struct mlo_tensor x = make_tensor(MLO_FLOAT32, 2, DIMS(count, 2), NULL);
    const struct mlo_npz_array arrays[] = {{"x", &x}};
    struct mlo_run_options o = {.engine = &recording, .batch = batch, .threads = 2};
    int calls = 0;
    memset(&seen.compiled, 0, sizeof seen.compiled);
    seen.compiles = seen.runs = 0;
    for (int64_t i = 0; i < count * 2; i++)
        ((float *)x.data)[i] = (float)i;
    shell_input(model, "x", MLO_FLOAT32, 2, DIMS(model_batch, 2));
    shell_output(model, "out", MLO_FLOAT32, 2, DIMS(model_batch, 2));
    assert_int_equal(mlo_npz_write(in_scratch("run.npz"), arrays, 1, err), MLO_OK);
    assert_int_equal(mlo_dataset_open(in_scratch("run.npz"), NULL, &d, err), MLO_OK);
    enum mlo_status status = mlo_run_dataset(model, d, &o, out, progress, &calls, err);
    assert_int_equal(seen.plans, 0);
    assert_int_equal(seen.loaded, 0);
    if (status == MLO_OK) {
        assert_int_equal(seen.threads, 2);
        assert_int_equal(calls, seen.runs);
        assert_true(last_progress == 1);
        assert_int_equal(out->dims[0], count);
        for (int64_t i = 0; i < count * 2; i++)
            assert_true(((float *)out->data)[i] == (float)(2 * i));
    } else {
        assert_null(out->data);
    }
    mlo_tensor_clear(out);
    mlo_tensor_clear(&x);
    mlo_dataset_close(d);
    mlo_model_free(model);
    return status;
}

static int fresh(void **state)
{
    (void)state;
    memset(&seen, 0, sizeof seen);
    return 0;
}

static void test_run__rest_of_a_dynamic_batch_gets_its_own_plan(void **state)
{
    (void)state;
    struct mlo_error err = {0};
    struct mlo_tensor out;
    assert_ok(run(10, -1, 4, &out, &err));
    assert_int_equal(seen.compiles, 2);
    assert_int_equal(seen.compiled[0], 4);
    assert_int_equal(seen.compiled[1], 2);
    assert_int_equal(seen.runs, 3);
    assert_ok(run(8, -1, 4, &out, &err));
    assert_int_equal(seen.compiles, 1);
    assert_ok(run(3, -1, 0, &out, &err)); /* fewer samples than the batch chosen */
    assert_int_equal(seen.compiles, 1);
    assert_int_equal(seen.compiled[0], 3);
}

static void test_run__fixed_batch_of_one_runs_one_by_one(void **state)
{
    (void)state;
    struct mlo_error err = {0};
    struct mlo_tensor out;
    assert_ok(run(5, 1, 32, &out, &err));
    assert_int_equal(seen.compiles, 1);
    assert_int_equal(seen.runs, 5);
}

static void test_run__fixed_batch_is_filled_with_copies(void **state)
{
    (void)state;
    struct mlo_error err = {0};
    struct mlo_tensor out;
    assert_ok(run(6, 4, 0, &out, &err));
    assert_int_equal(seen.compiles, 1);
    assert_int_equal(seen.runs, 2);
    assert_int_equal(seen.rows[1], 4);
    assert_true(seen.last_of_batch[1] == 11); /* the last sample again */
}

static void test_run__failures_leave_nothing_behind(void **state)
{
    (void)state;
    struct mlo_error err = {0};
    struct mlo_tensor out;
    seen.fail = true;
    assert_int_equal(run(10, -1, 4, &out, &err), MLO_EINTERNAL);
    seen.fail = false;
    seen.scalar = true;
    assert_int_equal(run(10, -1, 4, &out, &err), MLO_EUNSUPPORTED);
    assert_contains(err.message, "no row per sample");
    seen.scalar = false;
    seen.shrink = true;
    assert_int_equal(run(10, -1, 4, &out, &err), MLO_EUNSUPPORTED);
    assert_contains(err.message, "changes its shape");
}

static void test_run__inputs_must_agree_on_the_batch(void **state)
{
    (void)state;
    struct mlo_error err = {0};
    struct mlo_dataset *d = NULL;
    struct mlo_tensor x = make_tensor(MLO_FLOAT32, 2, DIMS(4, 2), NULL), out[1];
    const struct mlo_npz_array arrays[] = {{"a", &x}, {"b", &x}};
    struct mlo_run_options o = {.engine = &recording};
    struct mlo_model *model = shell_model();
    shell_input(model, "a", MLO_FLOAT32, 2, DIMS(2, 2));
    shell_input(model, "b", MLO_FLOAT32, 2, DIMS(4, 2));
    shell_output(model, "out", MLO_FLOAT32, 2, DIMS(2, 2));
    assert_ok(mlo_npz_write(in_scratch("two.npz"), arrays, 2, &err));
    assert_ok(mlo_dataset_open(in_scratch("two.npz"), NULL, &d, &err));
    assert_int_equal(mlo_run_dataset(model, d, &o, out, NULL, NULL, &err), MLO_EUNSUPPORTED);
    assert_contains(err.message, "'a' and 'b' have different batch sizes: 2 and 4");
    mlo_dataset_close(d);
    mlo_tensor_clear(&x);
    mlo_model_free(model);
}

static void test_run__reference_engine_gives_the_same_for_any_batch(void **state)
{
    (void)state;
    struct mlo_error err = {0};
    struct mlo_dataset *d = NULL;
    struct mlo_run_options o = {0};
    struct mlo_tensor x = make_tensor(MLO_FLOAT32, 2, DIMS(7, 3), NULL), out[1];
    for (int i = 0; i < 21; i++)
        ((float *)x.data)[i] = (float)(i - 10);
    const struct mlo_npz_array arrays[] = {{"x", &x}};
    struct mlo_model *model = shell_model();
    struct mlo_type type = make_type(MLO_FLOAT32, 2, DIMS(-1, 3));
    struct mlo_value *in = shell_input(model, "x", MLO_FLOAT32, 2, DIMS(-1, 3));
    struct mlo_value *result = mlo_graph_add_value(model->graph, "result", &type);
    assert_non_null(mlo_graph_add_node(model->graph, NULL, "", "Relu", "relu", &in, 1, &result, 1));
    assert_ok(mlo_graph_add_output(model->graph, result, &err));
    assert_ok(mlo_engine_find("reference", &o.engine, &err));
    assert_ok(mlo_npz_write(in_scratch("relu.npz"), arrays, 1, &err));
    assert_ok(mlo_dataset_open(in_scratch("relu.npz"), NULL, &d, &err));
    for (o.batch = 1; o.batch <= 8; o.batch += o.batch == 1 ? 2 : 5) {
        assert_ok(mlo_run_dataset(model, d, &o, out, NULL, NULL, &err));
        for (int i = 0; i < 21; i++)
            assert_true(((float *)out[0].data)[i] == (float)MLO_MAX(i - 10, 0));
        mlo_tensor_clear(&out[0]);
    }
    mlo_dataset_close(d);
    mlo_tensor_clear(&x);
    mlo_model_free(model);
}

/* Inputs [N, steps] and [N, steps]: the data says how many steps there are, and must say it once. */
static void test_run__open_dims_take_their_size_from_the_data(void **state)
{
    (void)state;
    struct mlo_error err = {0};
    struct mlo_dataset *d = NULL;
    struct mlo_run_options o = {.batch = 2};
    struct mlo_tensor x =
        make_tensor(MLO_FLOAT32, 2, DIMS(3, 4), VALUES(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12));
    struct mlo_tensor short_one = make_tensor(MLO_FLOAT32, 2, DIMS(3, 1), NULL), out[1];
    const struct mlo_npz_array good[] = {{"a", &x}, {"b", &x}}, bad[] = {{"a", &x}, {"b", &short_one}};
    struct mlo_model *model = shell_model();
    struct mlo_value *in[2], *result;
    struct mlo_type type = make_type(MLO_FLOAT32, 2, DIMS(-1, -1));
    for (int i = 0; i < 2; i++) {
        in[i] = shell_input(model, i ? "b" : "a", MLO_FLOAT32, 2, DIMS(-1, -1));
        in[i]->type.dims[1].name = "steps";
    }
    type.dims[1].name = "steps";
    result = mlo_graph_add_value(model->graph, "result", &type);
    assert_non_null(mlo_graph_add_node(model->graph, NULL, "", "Add", "add", in, 2, &result, 1));
    assert_ok(mlo_graph_add_output(model->graph, result, &err));
    assert_ok(mlo_engine_find("reference", &o.engine, &err));
    assert_ok(mlo_npz_write(in_scratch("open.npz"), good, 2, &err));
    assert_ok(mlo_dataset_open(in_scratch("open.npz"), NULL, &d, &err));
    assert_ok(mlo_run_dataset(model, d, &o, out, NULL, NULL, &err));
    assert_int_equal(out[0].dims[1], 4);
    for (int i = 0; i < 12; i++)
        assert_true(((float *)out[0].data)[i] == (float)(2 * (i + 1)));
    assert_int_equal(model->graph->inputs[0]->type.dims[1].value, -1); /* the caller's model stays open */
    mlo_tensor_clear(&out[0]);
    mlo_dataset_close(d);
    assert_ok(mlo_npz_write(in_scratch("open.npz"), bad, 2, &err));
    assert_ok(mlo_dataset_open(in_scratch("open.npz"), NULL, &d, &err));
    assert_int_equal(mlo_run_dataset(model, d, &o, out, NULL, NULL, &err), MLO_EINVAL);
    assert_contains(err.message, "'b' (steps) is 4 by another input, and 1 here");
    mlo_dataset_close(d);
    mlo_tensor_clear(&x);
    mlo_tensor_clear(&short_one);
    mlo_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_run__rest_of_a_dynamic_batch_gets_its_own_plan, fresh),
        cmocka_unit_test_setup(test_run__fixed_batch_of_one_runs_one_by_one, fresh),
        cmocka_unit_test_setup(test_run__fixed_batch_is_filled_with_copies, fresh),
        cmocka_unit_test_setup(test_run__failures_leave_nothing_behind, fresh),
        cmocka_unit_test_setup(test_run__inputs_must_agree_on_the_batch, fresh),
        cmocka_unit_test_setup(test_run__reference_engine_gives_the_same_for_any_batch, fresh),
        cmocka_unit_test_setup(test_run__open_dims_take_their_size_from_the_data, fresh),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
