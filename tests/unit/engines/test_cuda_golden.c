/* What ResNet-50, MobileNetV2 and BERT-base become on a GPU, as text: how many launches, whose, what they
 * take with them, and how near the arena is to the least possible. MLOPT_UPDATE_GOLDEN=1 writes the files of
 * tests/golden/cuda anew. */
#include "tests/unit/engines/cuda_nets.h"

#include "engines/cuda/cuda_impl.h"
#include "passes/passes.h"

static const struct {
    const char *name;
    struct net (*build)(void);
    int steps_f16; /* a floor for who shortens a net: more launches than this fail */
} nets[] = {{"resnet50", resnet50, 57}, {"mobilenet_v2", mobilenet_v2, 55}, {"bert_base", bert_base, 91}};

enum { BERT = 2 };

/* Every float value was seen between -1 and 1: the quantization is not judged here. */
static void see_all(const struct mlo_model *model, struct mlo_stats *stats)
{
    static const float seen[] = {-1, 1};
    mlo_stats_init(stats);
    for (int i = 0; i < model->graph->value_count; i++) {
        const struct mlo_value *v = model->graph->values[i];
        if (v->type.dtype != MLO_FLOAT32 || v->constant)
            continue;
        struct mlo_tensor_stats *t = mlo_stats_get(stats, v->name);
        assert_non_null(t);
        MUST(mlo_tensor_stats_add(t, seen, MLO_COUNT(seen), err));
    }
    mlo_stats_sort(stats);
}

static void run_pass(struct mlo_model *model, const char *name, const char *options)
{
    struct mlo_stats stats;
    json_t *o = options ? json_loads(options, 0, NULL) : NULL;
    struct mlo_pass_request request = {name, o};
    see_all(model, &stats);
    struct mlo_pass_driver driver = {.stats = &stats};
    MUST(mlo_passes_run(model, &request, 1, &driver, err));
    json_decref(driver.report);
    json_decref(o);
    mlo_stats_clear(&stats);
}

static void add_lines(struct mlo_buf *out, const char *text, bool sums_only)
{
    while (*text) {
        size_t length = strcspn(text, "\n") + 1;
        if (!sums_only || *text == '=')
            mlo_buf_append(out, text, length);
        text += length;
    }
}

/* The steps at batch 1, the sums at batch 32. */
static int describe(const struct mlo_model *model, struct mlo_buf *out)
{
    int steps = 0;
    struct mlo_constants *constants = mlo_constants_new(); /* plans borrow the weights */
    assert_non_null(constants);
    for (int64_t batch = 1; batch <= 32; batch += 31) {
        struct mlo_compile_options o = {.batch = batch, .constants = constants};
        struct cuda_schedule *s = NULL;
        struct mlo_buf text = MLO_BUF_INIT;
        MUST(cuda_schedule_new(model, &o, 90, &s, err));
        MUST(cuda_memory_verify(s, err));
        cuda_schedule_dump(s, &text);
        mlo_buf_printf(out, "batch %d\n", (int)batch);
        add_lines(out, mlo_buf_str(&text), batch > 1);
        /* as near to the least possible as the heuristic came */
        if ((double)s->arena_bytes > 1.1 * (double)cuda_memory_bound(s))
            fail_msg("the arena has %zu bytes, and %zu would do", s->arena_bytes, cuda_memory_bound(s));
        steps = s->step_count;
        mlo_buf_clear(&text);
        cuda_schedule_free(s);
    }
    mlo_constants_free(constants);
    return steps;
}

static void compare(const char *net, const char *precision, const struct mlo_buf *got)
{
    struct mlo_buf wanted = MLO_BUF_INIT;
    char path[512];
    snprintf(path, sizeof path, "%s/tests/golden/cuda/%s-%s.txt", MLOPT_SOURCE_DIR, net, precision);
    assert_true(mlo_buf_ok(got));
    if (getenv("MLOPT_UPDATE_GOLDEN"))
        MUST(mlo_fs_write_atomic(path, got->data, got->len, err));
    MUST(mlo_fs_read(path, 1 << 20, &wanted, err));
    if (wanted.len != got->len || memcmp(wanted.data, got->data, got->len) != 0)
        fail_msg("%s differs; now it is:\n%.*s", path, (int)got->len, got->data);
    mlo_buf_clear(&wanted);
}

static void check(const char *precision, const char *pass, const char *options)
{
    bool fp8 = strcmp(precision, "fp8") == 0; /* of products only, and the rest in 16 bits */
    for (size_t i = fp8 ? BERT : 0; i < MLO_COUNT(nets); i++) {
        struct net n = nets[i].build();
        struct mlo_buf text = MLO_BUF_INIT;
        if (pass) {
            run_pass(n.model, "fold-batchnorm", NULL);
            run_pass(n.model, pass, options);
        }
        if (fp8)
            run_pass(n.model, "to-float16", NULL);
        int steps = describe(n.model, &text);
        compare(nets[i].name, precision, &text);
        if (strcmp(precision, "f16") == 0 && steps > nets[i].steps_f16)
            fail_msg("%s has %d launches in float16", nets[i].name, steps);
        mlo_buf_clear(&text);
        mlo_model_free(n.model);
    }
}

static void test_cuda_golden__f32(void **state)
{
    MLO_UNUSED(state);
    check("f32", NULL, NULL);
}

static void test_cuda_golden__f16(void **state)
{
    MLO_UNUSED(state);
    check("f16", "to-float16", NULL);
}

static void test_cuda_golden__int8(void **state)
{
    MLO_UNUSED(state);
    check("int8", "quantize", "{\"target\": \"mlopt-cuda\"}");
}

static void test_cuda_golden__fp8(void **state)
{
    MLO_UNUSED(state);
    check("fp8", "quantize", "{\"target\": \"mlopt-cuda-fp8\"}");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_golden__f32),
        cmocka_unit_test(test_cuda_golden__f16),
        cmocka_unit_test(test_cuda_golden__int8),
        cmocka_unit_test(test_cuda_golden__fp8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
