/* The promise of the invariant numerics: the same bits on every instruction set, thread count and batch. */
#include <unistd.h>

#include "helpers.h"

static struct mlo_tensor run_with(const struct mlo_model *model, enum mlo_isa isa, unsigned threads,
                                  int64_t batch, const struct mlo_tensor *in)
{
    struct mlo_compile_options o = {.batch = batch, .threads = threads, .numerics = MLO_NUMERICS_INVARIANT};
    mlo_isa_override((int)isa);
    struct mlo_tensor out = run_model("cpu", model, &o, in, NULL);
    mlo_isa_override(-1);
    return out;
}

static void assert_same_bits(const struct mlo_tensor *a, const void *b, const char *what)
{
    if (memcmp(a->data, b, a->size_bytes) != 0)
        fail_msg("%s: bits differ", what);
}

/* Every instruction set with 1 and 2 threads gives the bits of the generic one; any batch gives the bits of
 * batch 1. */
static void check(const struct mlo_model *model, int rank, const int64_t *sample, const char *what)
{
    static const int64_t batches[] = {1, 8, 32};
    int64_t dims[MLO_MAX_RANK];
    memcpy(dims, sample, (size_t)rank * sizeof *dims);
    dims[0] = 32;
    struct mlo_tensor all = random_tensor(rank, dims, 17);
    size_t per_in = all.size_bytes / 32;
    char *expected = NULL;
    size_t per_out = 0;
    for (size_t b = 0; b < MLO_COUNT(batches); b++)
        for (int isa = MLO_ISA_GENERIC; isa <= MLO_ISA_AVX512; isa++)
            for (unsigned threads = 1; threads <= 2; threads++) {
                if (isa == MLO_ISA_GENERIC && (threads == 2 || batches[b] == 32))
                    continue; /* slow, and covered by the others */
                dims[0] = batches[b];
                struct mlo_tensor in = all;
                memcpy(in.dims, dims, sizeof in.dims);
                in.size_bytes = per_in * (size_t)batches[b];
                in.owned = false;
                if (!expected) { /* 32 samples, each alone */
                    for (size_t s = 0; s < 32; s++) {
                        struct mlo_tensor one = in;
                        one.data = (char *)all.data + s * per_in;
                        struct mlo_tensor out = run_with(model, MLO_ISA_AVX2, 1, 1, &one);
                        per_out = out.size_bytes;
                        expected = expected ? expected : malloc(32 * per_out);
                        memcpy(expected + s * per_out, out.data, per_out);
                        mlo_tensor_clear(&out);
                    }
                }
                struct mlo_tensor out = run_with(model, (enum mlo_isa)isa, threads, batches[b], &in);
                assert_int_equal(out.size_bytes, per_out * (size_t)batches[b]);
                assert_same_bits(&out, expected, what);
                mlo_tensor_clear(&out);
            }
    free(expected);
    mlo_tensor_clear(&all);
}

static void test_conv__has_the_same_bits_everywhere(void **state)
{
    MLO_UNUSED(state);
    static const struct conv_spec specs[] = {
        {3, 8, 3, 1, 1, 1, 1, 9, true},    {70, 9, 3, 1, 1, 1, 1, 6, true},
        {8, 8, 1, 1, 0, 1, 1, 7, false},   {16, 24, 3, 2, 1, 1, 1, 11, true},
        {3, 5, 5, 1, 2, 1, 1, 10, true},   {8, 12, 3, 1, 2, 2, 1, 12, true},
        {16, 16, 3, 1, 1, 1, 4, 8, true},  {12, 12, 3, 1, 1, 1, 12, 9, true},
        {10, 20, 3, 2, 1, 1, 10, 9, true},
    };
    for (size_t i = 0; i < MLO_COUNT(specs); i++) {
        char what[32];
        snprintf(what, sizeof what, "conv %zu", i);
        struct net n = net_new((uint32_t)i + 1);
        int64_t dims[] = {-1, specs[i].ic, specs[i].size, specs[i].size};
        net_finish(&n, net_conv(&n, net_input(&n, "x", 4, dims), &specs[i]));
        check(n.model, 4, dims, what);
        mlo_model_free(n.model);
    }
}

static void test_net__has_the_same_bits_everywhere(void **state)
{
    MLO_UNUSED(state);
    struct net n = net_new(9);
    struct conv_spec a = {3, 20, 3, 1, 1, 1, 1, 0, true}, b = {20, 20, 3, 1, 1, 1, 1, 0, true};
    int64_t dims[] = {-1, 3, 10, 10};
    struct mlo_value *x = net_op(&n, "Relu", net_conv(&n, net_input(&n, "x", 4, dims), &a), NULL, NULL);
    x = net_op(&n, "Relu", net_op(&n, "Add", net_conv(&n, x, &b), x, NULL), NULL, NULL);
    x = net_op(&n, "Flatten", net_op(&n, "GlobalAveragePool", x, NULL, NULL), NULL, NULL);
    struct mlo_node *g = net_node(&n, "Gemm", x, net_floats(&n, 2, (int64_t[]){7, 20}, 0.3f),
                                  net_floats(&n, 1, (int64_t[]){7}, 0.3f));
    assert_true(mlo_node_set_i(g, "transB", 1));
    net_finish(&n, net_op(&n, "Softmax", g->outputs[0], NULL, NULL));
    check(n.model, 4, dims, "net");
    mlo_model_free(n.model);
}

/* Rounded once, from double: on every instruction set the bits of the op table's row. */
static void test_batch_norm__has_the_bits_of_the_reference(void **state)
{
    MLO_UNUSED(state);
    struct net n = net_new(4);
    int64_t dims[] = {-1, 5, 7, 3}, five[] = {5};
    struct mlo_value *in[] = {net_input(&n, "x", 4, dims), net_floats(&n, 1, five, 3.0f),
                              net_floats(&n, 1, five, 0.5f), net_floats(&n, 1, five, 0.7f),
                              net_numbers(&n, MLO_FLOAT32, 1, five, 1e-6, 2.0)};
    struct mlo_node *node = net_node_of(&n, "", "BatchNormalization", in, 5);
    assert_true(mlo_node_set_f(node, "epsilon", 1e-3f));
    net_finish(&n, node->outputs[0]);
    check(n.model, 4, dims, "batch norm");
    dims[0] = 9;
    struct mlo_tensor x = random_tensor(4, dims, 3);
    const struct mlo_compile_options o = {.batch = 9, .threads = 1, .numerics = MLO_NUMERICS_INVARIANT};
    struct mlo_tensor want = run_model("reference", n.model, &o, &x, NULL),
                      got = run_with(n.model, MLO_ISA_AVX2, 2, 9, &x);
    assert_int_equal(want.size_bytes, got.size_bytes);
    assert_same_bits(&want, got.data, "the reference");
    mlo_tensor_clear(&x);
    mlo_tensor_clear(&want);
    mlo_tensor_clear(&got);
    mlo_model_free(n.model);
}

/* The bits are those of the documented chain, not merely equal to each other. */
static void test_conv__is_one_chain_in_k_order(void **state)
{
    MLO_UNUSED(state);
    struct net n = net_new(3);
    struct conv_spec s = {5, 4, 3, 1, 0, 1, 1, 3, true};
    struct mlo_value *y = net_conv(&n, net_input(&n, "x", 4, (int64_t[]){1, 5, 3, 3}), &s);
    const float *w = y->producer->inputs[1]->constant->data, *bias = y->producer->inputs[2]->constant->data;
    net_finish(&n, y);
    struct mlo_tensor in = random_tensor(4, (int64_t[]){1, 5, 3, 3}, 5);
    struct mlo_tensor out = run_with(n.model, MLO_ISA_AVX512, 1, 1, &in);
    for (int oc = 0; oc < 4; oc++) {
        float acc = bias[oc];
        for (int k = 0; k < 45; k++)
            acc = fmaf(w[oc * 45 + k], ((const float *)in.data)[k], acc);
        assert_memory_equal(&acc, (const float *)out.data + oc, sizeof acc);
    }
    mlo_tensor_clear(&out);
    mlo_tensor_clear(&in);
    mlo_model_free(n.model);
}

struct feed {
    struct mlo_tensor all;
    int64_t at, total;
};

static enum mlo_status next(void *arg, int64_t batch, struct mlo_tensor *inputs, int64_t *got,
                            struct mlo_error *err)
{
    MLO_UNUSED(err);
    struct feed *f = arg;
    size_t per = f->all.size_bytes / (size_t)f->total;
    *got = MLO_MIN(batch, f->total - f->at);
    memcpy(inputs[0].data, (const char *)f->all.data + (size_t)f->at * per, (size_t)*got * per);
    f->at += *got;
    return MLO_OK;
}

/* They are those that were seen first, to the last digit; *first is kept from there, yours. */
static void expect_stats_take(struct mlo_stats *stats, char **first)
{
    json_t *json = NULL;
    MUST(mlo_stats_to_json(stats, &json, err));
    char *text = json_dumps(json, JSON_SORT_KEYS);
    if (!*first)
        *first = strdup(text);
    assert_string_equal(text, *first);
    free(text);
    json_decref(json);
    mlo_stats_clear(stats);
}

static void test_stats__do_not_depend_on_batch_threads_or_isa(void **state)
{
    MLO_UNUSED(state);
    struct net n = net_new(9);
    struct conv_spec a = {3, 20, 3, 1, 1, 1, 1, 0, true};
    int64_t dims[] = {-1, 3, 10, 10};
    struct mlo_value *x = net_conv(&n, net_input(&n, "x", 4, dims), &a);
    net_finish(&n, net_op(&n, "Relu", x, NULL, NULL));
    const char *names[] = {"x", x->name, n.graph->outputs[0]->name};
    struct feed f = {.all = random_tensor(4, (int64_t[]){11, 3, 10, 10}, 21), .total = 11};
    char *expected = NULL;
    for (int64_t batch = 1; batch <= 8; batch *= 2)
        for (int isa = MLO_ISA_AVX2; isa <= MLO_ISA_AVX512; isa++) {
            struct mlo_stats stats;
            mlo_stats_init(&stats);
            f.at = 0;
            mlo_isa_override(isa);
            MUST(mlo_engine_observe_stats(n.model, names, 3, batch, batch == 4 ? 2 : 1, next, &f, &stats,
                                          err));
            mlo_isa_override(-1);
            assert_int_equal(stats.count, 3);
            assert_int_equal(mlo_stats_find(&stats, "x")->samples, 11);
            assert_int_equal(mlo_stats_find(&stats, "x")->count, 11 * 300);
            expect_stats_take(&stats, &expected);
        }
    free(expected);
    mlo_tensor_clear(&f.all);
    mlo_model_free(n.model);
}

/* All kinds: files of equal bytes. */
static void test_wants__give_the_same_file_everywhere(void **state)
{
    MLO_UNUSED(state);
    struct net n = net_new(9);
    struct conv_spec a = {3, 20, 3, 1, 1, 1, 1, 0, true};
    int64_t dims[] = {-1, 3, 10, 10};
    struct mlo_value *x = net_conv(&n, net_input(&n, "x", 4, dims), &a);
    struct mlo_node *conv = x->producer;
    net_finish(&n, net_op(&n, "Relu", x, NULL, NULL));
    struct mlo_stats_wants wants = {0};
    struct mlo_stats_want list[] = {{.name = "x", .histogram = true, .gram = conv, .full = true},
                                    {.name = x->name, .channel_axis = 1}};
    for (size_t i = 0; i < 2; i++)
        assert_true(mlo_stats_wants_add(&wants, &list[i]));
    struct feed f = {.all = random_tensor(4, (int64_t[]){11, 3, 10, 10}, 21), .total = 11};
    struct mlo_digest first = {{0}}, digest;
    char path[] = "/tmp/mlopt-wants-XXXXXX";
    int fd = mkstemp(path), runs = 0;
    assert_true(fd >= 0);
    close(fd);
    for (int64_t batch = 1; batch <= 32; batch = batch == 1 ? 8 : batch * 4)
        for (int isa = MLO_ISA_AVX2; isa <= MLO_ISA_AVX512; isa++)
            for (unsigned threads = 1; threads <= 2; threads++) {
                struct mlo_stats stats;
                mlo_stats_init(&stats);
                f.at = 0;
                mlo_isa_override(isa);
                MUST(mlo_engine_observe_wants(n.model, &wants, batch, threads, next, &f, &stats, err));
                mlo_isa_override(-1);
                assert_int_equal(stats.grams[0].rows, 11 * 100);
                assert_int_equal(stats.grams[0].dim, 27);
                assert_int_equal(stats.channels[0].channels, 20);
                MUST(mlo_stats_save(&stats, path, err));
                MUST(mlo_digest_of_file(path, &digest, NULL, err));
                if (runs++ == 0)
                    first = digest;
                assert_true(mlo_digest_eq(&first, &digest));
                mlo_stats_clear(&stats);
            }
    assert_int_equal(runs, 12);
    unlink(path);
    mlo_stats_wants_clear(&wants);
    mlo_tensor_clear(&f.all);
    mlo_model_free(n.model);
}

/* [N, T] to [T, N]: with time first, a batch of T rows looks like samples and is none. Every batch must give
 * what samples one by one give, also the batch that equals T, and a last one that is not full. */
static void test_stats__time_first_values_are_observed_sample_by_sample(void **state)
{
    MLO_UNUSED(state);
    enum { SAMPLES = 7, T = 4 };
    struct net n = net_new(5);
    struct mlo_node *t = net_node(&n, "Transpose", net_input(&n, "x", 2, (int64_t[]){-1, T}), NULL, NULL);
    assert_true(mlo_node_set_ints(t, "perm", (int64_t[]){1, 0}, 2));
    const char *names[] = {t->outputs[0]->name};
    net_finish(&n, t->outputs[0]);
    struct feed f = {.all = random_tensor(2, (int64_t[]){SAMPLES, T}, 8), .total = SAMPLES};
    char *expected = NULL;
    for (int64_t batch = 1; batch <= 5; batch++) {
        struct mlo_stats stats;
        mlo_stats_init(&stats);
        f.at = 0;
        MUST(mlo_engine_observe_stats(n.model, names, 1, batch, 1, next, &f, &stats, err));
        assert_int_equal(stats.tensors[0].samples, SAMPLES);
        assert_int_equal(stats.tensors[0].count, SAMPLES * T);
        expect_stats_take(&stats, &expected);
    }
    free(expected);
    mlo_tensor_clear(&f.all);
    mlo_model_free(n.model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conv__has_the_same_bits_everywhere),
        cmocka_unit_test(test_net__has_the_same_bits_everywhere),
        cmocka_unit_test(test_batch_norm__has_the_bits_of_the_reference),
        cmocka_unit_test(test_conv__is_one_chain_in_k_order),
        cmocka_unit_test(test_stats__do_not_depend_on_batch_threads_or_isa),
        cmocka_unit_test(test_wants__give_the_same_file_everywhere),
        cmocka_unit_test(test_stats__time_first_values_are_observed_sample_by_sample),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
