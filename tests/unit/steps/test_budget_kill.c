/* The budget of accuracy, killed: the process that searches ends itself by SIGKILL at every point of progress
 * in turn. What it leaves is a decision that can be read and followed, each no worse than the one before, and
 * the search that goes on comes to the very bytes of one that nobody disturbed. Models run in children only:
 * a forked child must not inherit a pool of threads. */
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pipeline/steps/decision.h"
#include "tests/unit/passes/passes_helpers.h"

enum { SAMPLES = 500, FEATURES = 4 };

static char g_dir[64] = "/tmp/mlopt-test-XXXXXX";

static char *path_of(const char *name)
{
    char *path = mlo_fs_join(g_dir, name, NULL);
    assert_non_null(path);
    return path;
}

/* Three layers, of which one scale a tensor ruins the second and third: 1000 stands in a row whose input is
 * always 0. */
static void write_net(void)
{
    struct mlo_error err = {0};
    struct mlo_model *m = new_model(13);
    struct mlo_value *a =
        op(m, "MatMul", "a", input(m, "x", -1, FEATURES),
           floats(m, "wa", LIST(1, 0, 0.1f, 0, 0, 1, 0, 0, 0.1f, 0, 1, 0, 0, 0, 0, 0), 4, 4));
    struct mlo_value *b =
        op(m, "MatMul", "b", a,
           floats(m, "wb", LIST(1, 0.2f, 0, 0, 0, 1, 0.1f, 0, 0, 0, 1, 0, 1000, 0, 0, 0), 4, 4));
    struct mlo_value *c =
        op(m, "MatMul", "c", b,
           floats(m, "wc", LIST(1, 0.1f, 0, 0, 0, 1, 0.1f, 0, 0, 0, 1, 0, 0, 1000, 0, 0), 4, 4));
    finish(m, op(m, "MatMul", "y", c, floats(m, "wy", LIST(1, -1, 0.1f, 0, 0, 0.1f, 0, 0), 4, 2)));
    char *path = path_of("m.onnx");
    assert_ok(mlo_onnx_save(m, path, &err));
    mlo_model_free(m);
    free(path);
}

static void write_data(void)
{
    struct mlo_error err = {0};
    struct mlo_tensor x = {0}, y = {0};
    assert_ok(mlo_tensor_init(&x, MLO_FLOAT32, 2, DIMS(SAMPLES, FEATURES), &err));
    assert_ok(mlo_tensor_init(&y, MLO_INT64, 1, DIMS(SAMPLES), &err));
    for (int64_t i = 0; i < SAMPLES; i++) {
        float *row = (float *)x.data + i * FEATURES;
        row[0] = i % 2 ? -1.0f - (float)(i % 7) * 0.1f : 1.0f + (float)(i % 5) * 0.1f;
        row[1] = (float)(i % 11) * 0.05f;
        row[2] = (float)(i % 13) * -0.05f;
        row[3] = 0;
        ((int64_t *)y.data)[i] = i % 2;
    }
    char *path = path_of("x.npz");
    assert_ok(mlo_npz_write(path, (struct mlo_npz_array[]){{"x", &x}, {"y", &y}}, 2, &err));
    free(path);
    mlo_tensor_clear(&x);
    mlo_tensor_clear(&y);
}

/* Ends the process at the n-th message that says that something is judged or measured. */
static void die_at(void *arg, double fraction, const char *message)
{
    MLO_UNUSED(fraction);
    int *left = arg;
    if (strncmp(message, "judging a mix", 13) != 0 && strncmp(message, "sensitivity", 11) != 0)
        return;
    if (--*left == 0)
        kill(getpid(), SIGKILL);
}

/* Runs the step in a child that is killed at its n-th point (0: never). Whether it came to its end. */
static bool run(int n, const char *checkpoints, const char *follow, const char *out, const char *kept)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct mlo_error err = {0};
        struct mlo_step_result result = {0};
        json_t *given = json_loads("{\"per_channel\": false, \"accuracy_drop\": \"0.5pt\"}", 0, NULL),
               *options;
        char *model = path_of("m.onnx"), *data = path_of("x.npz");
        const struct mlo_step_context ctx = {.model_path = model,
                                             .source_path = model,
                                             .calibrate_path = data,
                                             .select_path = follow ? NULL : data,
                                             .out_dir = out,
                                             .threads = 1,
                                             .checkpoint_dir = checkpoints,
                                             .decision_path = follow,
                                             .decision_out = follow ? NULL : kept,
                                             .progress = n ? die_at : NULL,
                                             .progress_arg = &n};
        struct mlo_step_context with = ctx;
        if (mlo_options_resolve(mlo_quantize_options, given, &options, &err) != MLO_OK)
            _exit(3);
        with.options = options;
        enum mlo_status status = mlo_step_find("quantize")->run(&with, &result, &err);
        if (status != MLO_OK)
            fprintf(stderr, "%s\n", err.message);
        mlo_step_result_clear(&result);
        json_decref(given);
        json_decref(options);
        free(model);
        free(data);
        _exit(status == MLO_OK ? 0 : 4);
    }
    int ended;
    assert_int_equal(waitpid(pid, &ended, 0), pid);
    if (WIFSIGNALED(ended) && WTERMSIG(ended) == SIGKILL)
        return false;
    if (!WIFEXITED(ended) || WEXITSTATUS(ended) != 0)
        fail_msg("the child ended with %x", (unsigned)ended);
    return true;
}

static void assert_same_file(const char *a, const char *b)
{
    struct mlo_error err = {0};
    struct mlo_digest x, y;
    assert_ok(mlo_digest_of_file(a, &x, NULL, &err));
    assert_ok(mlo_digest_of_file(b, &y, NULL, &err));
    assert_true(mlo_digest_eq(&x, &y));
}

/* The bound of what was left; 2 where nothing was judged yet. */
static double bound_left(const char *kept, bool *holds)
{
    struct mlo_error err = {0};
    json_t *decision = NULL;
    if (!mlo_fs_exists(kept))
        return 2;
    assert_ok(mlo_json_load_file(kept, &decision, &err)); /* whole, wherever it was killed */
    assert_string_equal(mlo_json_str(decision, "format", ""), MLO_DECISION_FORMAT);
    assert_false(mlo_json_bool(decision, "complete", true));
    *holds = mlo_json_bool(decision, "holds", false);
    double bound = mlo_json_f64(json_object_get(decision, "drop"), "high", 3);
    json_decref(decision);
    return bound;
}

static void test_budget__killed_at_every_point_it_goes_on(void **state)
{
    MLO_UNUSED(state);
    char *quiet = path_of("quiet"), *whole = path_of("quiet.json"), *out = path_of("out"),
         *kept = path_of("kept.json"), *checkpoints = path_of("checkpoints"), *followed = path_of("followed");
    struct mlo_error err = {0};
    const char *const folders[] = {quiet, out, followed};
    for (size_t i = 0; i < MLO_COUNT(folders); i++)
        assert_ok(mlo_fs_mkdirs(folders[i], &err));
    assert_true(run(0, NULL, NULL, quiet, whole));
    double bound = 2;
    int attempts = 1;
    bool holds = false;
    while (!run(2, checkpoints, NULL, out, kept)) { /* each does one thing more and is killed at the next */
        double now = bound_left(kept, &holds);
        assert_true(holds || now <= bound);
        bound = now;
        if (now < 1 && attempts % 3 == 0) { /* the best so far can be followed */
            assert_true(run(0, NULL, kept, followed, NULL));
        }
        assert_true(++attempts < 50);
    }
    assert_true(attempts > 5); /* four nodes were ranked, and several mixes judged */
    assert_same_file(kept, whole);
    char *first = mlo_fs_join(quiet, "model.onnx", NULL), *last = mlo_fs_join(out, "model.onnx", NULL),
         *again = mlo_fs_join(followed, "model.onnx", NULL), *said = mlo_fs_join(out, "decision.json", NULL);
    assert_same_file(first, last);
    assert_same_file(said, whole);
    assert_true(run(0, NULL, whole, followed, NULL));
    assert_same_file(first, again);
    /* and once more: all is known, nothing is judged again */
    assert_true(run(1, checkpoints, NULL, out, kept) || !"something was judged again");
    char *paths[] = {quiet, whole, out, kept, checkpoints, followed, first, last, again, said};
    for (size_t i = 0; i < MLO_COUNT(paths); i++)
        free(paths[i]);
}

static int set_up(void **state)
{
    MLO_UNUSED(state);
    if (!mkdtemp(g_dir))
        return -1;
    write_net();
    write_data();
    return 0;
}

static int tear_down(void **state)
{
    MLO_UNUSED(state);
    mlo_fs_remove_tree(g_dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_budget__killed_at_every_point_it_goes_on)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
