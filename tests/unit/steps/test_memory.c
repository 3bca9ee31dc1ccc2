/* What calibrating and quantizing take of memory: the model, a batch, and 64 MiB. */
#include "../../cm.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pipeline/steps/steps.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { INSTRUMENTED = 1 };
#else
enum { INSTRUMENTED = 0 };
#endif

enum { BLOCKS = 25, SIDE = 1024, SAMPLES = 4, ROOM_MB = 64 };

static struct mlo_value *constant(struct mlo_model *m, const char *name, int rank, const int64_t *dims,
                                  float least, float most)
{
    struct mlo_tensor t;
    struct mlo_error err = {0};
    assert_ok(mlo_tensor_init(&t, MLO_FLOAT32, rank, dims, &err));
    unsigned seed = 1;
    for (size_t i = 0, n = mlo_tensor_count(&t); i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        ((float *)t.data)[i] = least + (most - least) * (float)(seed >> 8) / (1 << 24);
    }
    struct mlo_value *value = mlo_graph_add_constant_take(m->graph, name, &t);
    assert_non_null(value);
    return value;
}

/* Convolutions of 4 MiB of weights each, with BatchNormalization, which folding makes other weights of; names
 * of different lengths put them at every alignment. */
static void write_model(const char *path)
{
    static const int64_t weights[] = {SIDE, SIDE, 1, 1}, vector[] = {SIDE};
    struct mlo_error err = {0};
    struct mlo_model *m = NULL;
    struct mlo_type type = {MLO_FLOAT32, 4, {{-1, "batch"}, {SIDE, NULL}, {2, NULL}, {2, NULL}}};
    assert_ok(mlo_model_new(13, &m, &err));
    struct mlo_value *x = mlo_graph_add_value(m->graph, "x", &type), *y;
    assert_ok(mlo_graph_add_input(m->graph, x, &err));
    for (int i = 0; i < BLOCKS; i++) {
        char name[64];
        snprintf(name, sizeof name, "weight%.*s%d", i % 9, "_________", i);
        struct mlo_value *conv[] = {x, constant(m, name, 4, weights, -0.05f, 0.05f)};
        y = mlo_graph_add_value(m->graph, "convolved", NULL);
        assert_non_null(mlo_graph_add_node(m->graph, NULL, "", "Conv", "conv", conv, 2, &y, 1));
        struct mlo_value *norm[] = {
            y, constant(m, "scale", 1, vector, 0.5f, 1.5f), constant(m, "shift", 1, vector, -0.5f, 0.5f),
            constant(m, "mean", 1, vector, -0.1f, 0.1f), constant(m, "variance", 1, vector, 0.5f, 1.5f)};
        y = mlo_graph_add_value(m->graph, "normalized", NULL);
        assert_non_null(mlo_graph_add_node(m->graph, NULL, "", "BatchNormalization", "norm", norm, 5, &y, 1));
        x = mlo_graph_add_value(m->graph, "y", NULL);
        assert_non_null(mlo_graph_add_node(m->graph, NULL, "", "Relu", "relu", &y, 1, &x, 1));
    }
    assert_ok(mlo_graph_add_output(m->graph, x, &err));
    assert_ok(mlo_graph_infer(m->graph, &err));
    assert_ok(mlo_onnx_save(m, path, &err));
    mlo_model_free(m);
}

static void write_data(const char *path)
{
    static const int64_t dims[] = {SAMPLES, SIDE, 2, 2};
    struct mlo_tensor t;
    struct mlo_error err = {0};
    assert_ok(mlo_tensor_init(&t, MLO_FLOAT32, 4, dims, &err));
    for (size_t i = 0, n = mlo_tensor_count(&t); i < n; i++)
        ((float *)t.data)[i] = (float)(i % 97) / 97;
    assert_ok(mlo_npz_write(path, &(struct mlo_npz_array){"x", &t}, 1, &err));
    mlo_tensor_clear(&t);
}

/* Runs the program where its memory (what is private and writable; the files that it maps are not) can be no
 * more than that: the kernel refuses, so nothing that it reclaims meanwhile counts. Returns the exit code. */
static int run_within(size_t kb, char *const arguments[])
{
    int status = -1;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        const struct rlimit limit = {(rlim_t)kb * 1024, (rlim_t)kb * 1024};
        if (setrlimit(RLIMIT_DATA, &limit) == 0)
            execv(arguments[0], arguments);
        _exit(127);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_quantize__needs_the_model_a_batch_and_64_mb(void **state)
{
    MLO_UNUSED(state);
    const char *program = getenv("MLOPT"), *preload = getenv("LD_PRELOAD");
    struct mlo_error err = {0};
    char *folder = NULL;
    if (INSTRUMENTED || !program || (preload && strstr(preload, "vgpreload")))
        skip();
    assert_ok(mlo_fs_tempdir(NULL, "mlopt-memory", &folder, &err));
    char *model = mlo_fs_join(folder, "m.onnx", NULL), *data = mlo_fs_join(folder, "calib.npz", NULL),
         *out = mlo_fs_join(folder, "q.onnx", NULL), *work = mlo_fs_join(folder, "work", NULL);
    write_model(model);
    write_data(data);
    /* a sample is 16 KiB at every value: the batch is nothing beside it */
    size_t weights = (size_t)BLOCKS * SIDE * SIDE * 4 / 1024;
    char *arguments[] = {(char *)program, "quantize", model, "--data", data,        "--out", out,
                         "--checkpoints", work,       "-o",  "json",   "--threads", "1",     NULL};
    assert_int_equal(run_within(weights + ROOM_MB * 1024, arguments), 0);
    assert_true(mlo_fs_size(out) > (int64_t)weights * 1024 / 4);
    assert_true(mlo_fs_size(out) < (int64_t)weights * 1024 / 3);
    mlo_fs_remove_tree(folder);
    free(model);
    free(data);
    free(out);
    free(work);
    free(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quantize__needs_the_model_a_batch_and_64_mb),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
