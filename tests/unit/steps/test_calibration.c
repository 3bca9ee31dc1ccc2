/* Calibration that is interrupted, cut into shards, or short of memory makes the same model. */
#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pipeline/steps/steps.h"
#include "tests/unit/steps/conv_noise.h"

enum { SAMPLES = 23, SIDE = 12 };

static char *g_dir, *g_data, *g_model, *g_kept;

static char *path_of(const char *name)
{
    char *path = mlo_fs_join(g_dir, name, NULL);
    assert_non_null(path);
    return path;
}

static void write_data(const char *path, int64_t samples, int64_t channels, int64_t side)
{
    struct mlo_error err = {0};
    struct mlo_tensor x = {0};
    assert_ok(mlo_tensor_init(&x, MLO_FLOAT32, 4, DIMS(samples, channels, side, side), &err));
    uint32_t seed = 5;
    for (int64_t i = 0; i < samples * channels * side * side; i++) {
        seed = seed * 1664525u + 1013904223u;
        ((float *)x.data)[i] = ((float)(seed >> 8) / 8388608.0f - 0.5f) * (i % 977 ? 1 : 40);
    }
    struct mlo_npz_array array = {"x", &x};
    assert_ok(mlo_npz_write(path, &array, 1, &err));
    mlo_tensor_clear(&x);
}

static int setup(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    assert_ok(mlo_fs_tempdir(NULL, "mlopt-calibration-", &g_dir, &err));
    g_data = path_of("data.npz");
    g_model = path_of("net.onnx");
    g_kept = path_of("kept");
    write_data(g_data, SAMPLES, 2, SIDE);
    struct mlo_model *m = new_model(13);
    struct mlo_value *x = input(m, "x", -1, 2, SIDE, SIDE);
    x = op(m, "Relu", "r1", conv(m, "c1", x, 2, 6));
    x = op(m, "Relu", "r2", conv(m, "c2", x, 6, 6));
    finish(m, op(m, "GlobalAveragePool", "y", conv(m, "c3", x, 6, 3)));
    assert_ok(mlo_onnx_save(m, g_model, &err));
    mlo_model_free(m);
    return 0;
}

static int teardown(void **state)
{
    MLO_UNUSED(state);
    mlo_fs_remove_tree(g_dir);
    free(g_dir);
    free(g_data);
    free(g_model);
    free(g_kept);
    return 0;
}

/* What progress has been said: the first, and where to be killed. */
struct watch {
    double first, kill_at;
};

static void watch_progress(void *arg, double fraction, const char *message)
{
    struct watch *w = arg;
    if (w->first < 0 && strstr(message, "where it was"))
        w->first = fraction;
    if (w->kill_at > 0 && fraction >= w->kill_at && strcmp(message, "calibrating") == 0)
        raise(SIGKILL);
}

static struct mlo_step_context context(json_t *options, struct watch *watch)
{
    return (struct mlo_step_context){.options = options,
                                     .model_path = g_model,
                                     .source_path = g_model,
                                     .calibrate_path = g_data,
                                     .out_dir = g_dir,
                                     .threads = 1,
                                     .batch = 2,
                                     .progress = watch ? watch_progress : NULL,
                                     .progress_arg = watch};
}

static enum mlo_status run_quantize(const struct mlo_step_context *ctx, struct mlo_digest *digest,
                                    struct mlo_error *err)
{
    struct mlo_step_result result = {0};
    enum mlo_status status = mlo_step_find("quantize")->run(ctx, &result, err);
    if (status == MLO_OK && digest)
        status = mlo_digest_of_file(result.artifact_path, digest, NULL, err);
    mlo_step_result_clear(&result);
    return status;
}

static json_t *options_of(const char *text)
{
    struct mlo_error err = {0};
    json_t *given = json_loads(text, 0, NULL), *resolved = NULL;
    assert_ok(mlo_options_resolve(mlo_step_find("quantize")->options, given, &resolved, &err));
    json_decref(given);
    return resolved;
}

static const char *const calibrators[] = {
    "{\"calibrator\":\"minmax\"}",
    "{\"calibrator\":\"moving_average\"}",
    "{\"calibrator\":\"percentile\"}",
    "{\"calibrator\":\"entropy\"}",
    "{\"calibrator\":\"mse\"}",
    "{\"calibrator\":\"mse\",\"bias_correction\":\"full\"}", /* none of its convolutions has a bias */
};

static void test_calibration__shards_make_the_same_model(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        int64_t shards, batch;
        unsigned threads;
    } cuts[] = {{1, 8, 1}, {2, 3, 2}, {5, 1, 1}, {SAMPLES, 32, 2}};
    struct mlo_error err = {0};
    for (size_t k = 0; k < MLO_COUNT(calibrators); k++) {
        json_t *options = options_of(calibrators[k]);
        struct mlo_step_context ctx = context(options, NULL);
        struct mlo_digest expected, got;
        assert_ok(run_quantize(&ctx, &expected, &err));
        for (size_t c = in_short() ? 1 : 0; c < (in_short() ? 3 : MLO_COUNT(cuts)); c++) {
            const char *parts[SAMPLES + 1] = {NULL};
            for (int64_t s = 0; s < cuts[c].shards; s++) {
                char name[32];
                snprintf(name, sizeof name, "part-%d", (int)s);
                char *path = path_of(name);
                parts[cuts[c].shards - 1 - s] = path; /* they come in any order */
                ctx = context(options, NULL);
                ctx.batch = cuts[c].batch;
                ctx.threads = cuts[c].threads;
                ctx.shard = s;
                ctx.shards = cuts[c].shards;
                ctx.statistics_out = path;
                assert_ok(run_quantize(&ctx, NULL, &err));
            }
            ctx = context(options, NULL);
            ctx.statistics = parts;
            assert_ok(run_quantize(&ctx, &got, &err));
            assert_true(mlo_digest_eq(&got, &expected));
            if (cuts[c].shards == 5) { /* one is missing; one is there twice */
                const char *missing[] = {parts[0], parts[2], NULL}, *twice[] = {parts[0], parts[0], NULL};
                ctx.statistics = missing;
                assert_int_equal(run_quantize(&ctx, NULL, &err), MLO_EINVAL);
                assert_contains(err.message, "of 23 samples");
                ctx.statistics = twice;
                assert_int_equal(run_quantize(&ctx, NULL, &err), MLO_EINVAL);
                assert_contains(err.message, "is there twice");
            }
            for (int64_t s = 0; s < cuts[c].shards; s++)
                free((char *)parts[s]);
        }
        json_decref(options);
    }
}

static void test_calibration__statistics_of_something_else_are_refused(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    char *part = path_of("part"), *other = path_of("other.npz");
    const char *parts[] = {part, NULL};
    json_t *options = options_of("{}");
    struct mlo_step_context ctx = context(options, NULL);
    ctx.shards = 1;
    ctx.statistics_out = part;
    assert_ok(run_quantize(&ctx, NULL, &err));
    write_data(other, SAMPLES - 1, 2, SIDE);
    ctx = context(options, NULL);
    ctx.calibrate_path = other;
    ctx.statistics = parts;
    assert_int_equal(run_quantize(&ctx, NULL, &err), MLO_EINVAL);
    assert_contains(err.message, "of other data");
    json_decref(options);

    options = options_of("{\"rounding\":\"gptq\"}");
    ctx = context(options, NULL);
    ctx.shards = 2;
    ctx.statistics_out = part;
    assert_int_equal(run_quantize(&ctx, NULL, &err), MLO_EUNSUPPORTED);
    assert_contains(err.message, "cannot be observed in shards");
    json_decref(options);
    free(part);
    free(other);
}

/* Killed where it says that it is three quarters through; the next attempt begins no earlier than half-way.
 */
static void check_resumed(const char *text, const char *folder)
{
    struct mlo_error err = {0};
    json_t *options = options_of(text);
    struct mlo_digest expected, got;
    struct watch watch = {.first = -1, .kill_at = 0.05 + 0.75 * 0.75};
    struct mlo_step_context ctx = context(options, NULL);
    assert_ok(run_quantize(&ctx, &expected, &err));
    ctx = context(options, &watch);
    ctx.checkpoint_dir = folder;
    ctx.checkpoint_seconds = -1;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        enum mlo_status status = run_quantize(&ctx, &got, &err);
        _exit(status == MLO_OK ? 0 : 1);
    }
    int how;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
    watch.kill_at = 0;
    ctx.batch = 5; /* nor does the batch have to be the same */
    ctx.threads = 2;
    assert_ok(run_quantize(&ctx, &got, &err));
    assert_true(watch.first > 0.05 + 0.75 * 0.6);
    assert_true(mlo_digest_eq(&got, &expected));
    json_decref(options);
}

static void test_calibration__goes_on_after_sigkill(void **state)
{
    MLO_UNUSED(state);
    check_resumed("{\"calibrator\":\"moving_average\"}", g_kept);
    check_resumed("{\"calibrator\":\"entropy\",\"rounding\":\"gptq\"}", g_kept); /* matrices, too */
}

/* A file that is broken or of something else is as good as none. */
static void test_calibration__a_broken_checkpoint_is_none(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    char *folder = path_of("broken");
    json_t *options = options_of("{\"calibrator\":\"mse\"}");
    struct mlo_digest expected, got;
    struct watch watch = {.first = -1};
    struct mlo_step_context ctx = context(options, &watch);
    ctx.checkpoint_dir = folder;
    ctx.checkpoint_seconds = -1;
    assert_ok(run_quantize(&ctx, &expected, &err));
    char *path = NULL;
    DIR *list = opendir(folder);
    assert_non_null(list);
    for (struct dirent *entry; (entry = readdir(list));)
        if (mlo_str_ends(entry->d_name, ".checkpoint") && !path)
            path = mlo_fs_join(folder, entry->d_name, NULL);
    closedir(list);
    assert_non_null(path);
    assert_ok(mlo_fs_write_atomic(path, "MLOSTAT1 nonsense", 17, &err));
    assert_ok(run_quantize(&ctx, &got, &err));
    assert_true(watch.first < 0);
    assert_true(mlo_digest_eq(&got, &expected));
    free(path);
    free(folder);
    json_decref(options);
}

/* Values that are observed are not kept: a long net of large values takes little more than one of them for
 * each sample of a batch. 24 layers of 4 x 256 x 256 floats are 25 MB a sample; the batch follows from room
 * for 48. */
static void test_calibration__memory_is_bounded(void **state)
{
    MLO_UNUSED(state);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* shadow memory is no measure */
#endif
    enum { LAYERS = 24, MOST = 120 << 20 };
    const int64_t width = in_short() ? 24 : 256; /* there what is counted is mostly valgrind's own */
    struct mlo_error err = {0};
    char *model = path_of("long.onnx"), *data = path_of("long.npz");
    struct mlo_model *m = new_model(13);
    struct mlo_value *x = input(m, "x", -1, 4, width, width);
    for (int i = 0; i < LAYERS; i++) {
        char name[16];
        snprintf(name, sizeof name, "c%d", i);
        x = conv(m, name, x, 4, 4);
        snprintf(name, sizeof name, "r%d", i);
        x = op(m, "Relu", name, x);
    }
    finish(m, op(m, "GlobalAveragePool", "y", x));
    assert_ok(mlo_onnx_save(m, model, &err));
    mlo_model_free(m);
    write_data(data, 16, 4, width);
    json_t *options = options_of("{\"calibrator\":\"percentile\"}");
    struct mlo_step_context ctx = context(options, NULL);
    ctx.model_path = ctx.source_path = model;
    ctx.calibrate_path = data;
    ctx.batch = 0;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct mlo_digest got;
        struct rusage before, after;
        getrusage(RUSAGE_SELF, &before);
        enum mlo_status status = run_quantize(&ctx, &got, &err);
        getrusage(RUSAGE_SELF, &after);
        _exit(status != MLO_OK ? 1 : after.ru_maxrss - before.ru_maxrss > MOST / 1024 ? 2 : 0);
    }
    int how;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFEXITED(how));
    assert_int_equal(WEXITSTATUS(how), 0);
    json_decref(options);
    free(model);
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calibration__goes_on_after_sigkill),
        cmocka_unit_test(test_calibration__memory_is_bounded),
        cmocka_unit_test(test_calibration__shards_make_the_same_model),
        cmocka_unit_test(test_calibration__statistics_of_something_else_are_refused),
        cmocka_unit_test(test_calibration__a_broken_checkpoint_is_none),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
