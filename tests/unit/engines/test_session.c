/* Sessions: inputs of any shape, plans in common, several threads. */
#include <pthread.h>

#include "engines/session.h"
#include "helpers.h"

enum { WIDTH = 96, THREADS = 4, CALLS = 24 };

/* x[batch, seq, WIDTH] -> MatMul -> Add -> Relu -> MatMul: rows of sequences of any length. */
static struct net sequence_net(void)
{
    struct net n = net_new(7);
    struct mlo_type type = {.dtype = MLO_FLOAT32, .rank = 3};
    type.dims[0] = (struct mlo_dim){-1, "batch"};
    type.dims[1] = (struct mlo_dim){-1, "seq"};
    type.dims[2] = (struct mlo_dim){WIDTH, NULL};
    struct mlo_value *x = mlo_graph_add_value(n.graph, "x", &type);
    MUST(mlo_graph_add_input(n.graph, x, err));
    struct mlo_value *h = net_op(&n, "MatMul", x, net_floats(&n, 2, (int64_t[]){WIDTH, WIDTH}, 0.2f), NULL);
    h = net_op(&n, "Add", h, net_floats(&n, 1, (int64_t[]){WIDTH}, 0.2f), NULL);
    h = net_op(&n, "Relu", h, NULL, NULL);
    net_finish(&n, net_op(&n, "MatMul", h, net_floats(&n, 2, (int64_t[]){WIDTH, WIDTH}, 0.2f), NULL));
    return n;
}

static struct net image_net(void)
{
    struct net n = net_new(9);
    struct mlo_value *x = net_input(&n, "x", 4, (int64_t[]){-1, 8, 9, 9});
    x = net_conv(&n, x, &(struct conv_spec){8, 32, 3, 1, 1, 1, 1, 9, true});
    x = net_op(&n, "Relu", x, NULL, NULL);
    net_finish(&n, net_conv(&n, x, &(struct conv_spec){32, 32, 3, 2, 1, 1, 1, 9, true}));
    return n;
}

static struct mlo_session *open_session(struct mlo_model *model, const struct mlo_session_options *options)
{
    struct mlo_session *s = NULL;
    MUST(mlo_session_new_take(model, options, &s, err));
    return s;
}

static void check_run(struct mlo_session *session, struct mlo_session *reference, int rank,
                      const int64_t *dims, uint32_t seed)
{
    struct mlo_tensor x = random_tensor(rank, dims, seed), got = {0}, want = {0};
    char what[64];
    MUST(mlo_session_run(session, &x, 1, &got, err));
    MUST(mlo_session_run(reference, &x, 1, &want, err));
    snprintf(what, sizeof what, "batch %lld, dim 1 %lld", (long long)dims[0], (long long)dims[1]);
    assert_close(&got, &want, 1e-4f, what);
    mlo_tensor_clear(&x);
    mlo_tensor_clear(&got);
    mlo_tensor_clear(&want);
}

static const struct mlo_engine *engine(const char *name)
{
    const struct mlo_engine *e = NULL;
    MUST(mlo_engine_find(name, &e, err));
    return e;
}

static void test_session__runs_any_shape(void **state)
{
    MLO_UNUSED(state);
    struct mlo_session_options plain = {.engine = engine("reference")}, options = {0};
    struct mlo_session *s = open_session(sequence_net().model, &options),
                       *r = open_session(sequence_net().model, &plain);
    static const int64_t shapes[][3] = {{1, 5, WIDTH}, {3, 1, WIDTH}, {2, 17, WIDTH}, {1, 5, WIDTH}};
    for (size_t i = 0; i < MLO_COUNT(shapes); i++)
        check_run(s, r, 3, shapes[i], (uint32_t)i + 1);
    struct mlo_session_stats stats;
    mlo_session_stats(s, &stats);
    assert_int_equal(stats.compiled, 3);
    assert_int_equal(stats.plans, 3);
    assert_int_equal(stats.runs, 4);
    mlo_session_free(s);
    mlo_session_free(r);
    s = open_session(image_net().model, &options);
    r = open_session(image_net().model, &plain);
    for (int64_t batch = 1; batch <= 9; batch += 4)
        check_run(s, r, 4, (int64_t[]){batch, 8, 9, 9}, (uint32_t)batch);
    mlo_session_free(s);
    mlo_session_free(r);
}

/* The second shape must not bring a second copy of the weights. */
static void test_session__plans_share_weights(void **state)
{
    MLO_UNUSED(state);
    const size_t weights = 2 * (size_t)WIDTH * WIDTH * sizeof(float);
    struct mlo_session *s = open_session(sequence_net().model, &(struct mlo_session_options){0});
    struct mlo_session_stats one, three;
    struct mlo_tensor x = {.dtype = MLO_FLOAT32, .rank = 3, .dims = {1, 16, WIDTH}}, y = {0};
    MUST(mlo_session_prepare(s, &x, 1, &y, err));
    assert_int_equal(y.rank, 3);
    assert_int_equal(y.dims[1], 16);
    assert_int_equal(y.size_bytes, 16 * WIDTH * sizeof(float));
    assert_null(y.data);
    mlo_session_stats(s, &one);
    assert_true(one.bytes >= weights);
    for (x.dims[1] = 17; x.dims[1] < 19; x.dims[1]++)
        MUST(mlo_session_prepare(s, &x, 1, &y, err));
    mlo_session_stats(s, &three);
    assert_int_equal(three.plans, 3);
    if (three.bytes > one.bytes + weights / 4)
        fail_msg("one plan takes %zu bytes, three take %zu: weights are not shared", one.bytes, three.bytes);
    mlo_session_free(s);
}

static void test_session__keeps_the_most_recent(void **state)
{
    MLO_UNUSED(state);
    struct mlo_session *s = open_session(image_net().model, &(struct mlo_session_options){.max_plans = 2});
    struct mlo_tensor x = {.dtype = MLO_FLOAT32, .rank = 4, .dims = {1, 8, 9, 9}}, y = {0};
    static const int64_t batches[] = {1, 2, 1, 3, 1, 2}; /* 3 evicts 2, then 2 evicts 3 */
    for (size_t i = 0; i < MLO_COUNT(batches); i++) {
        x.dims[0] = batches[i];
        MUST(mlo_session_prepare(s, &x, 1, &y, err));
    }
    struct mlo_session_stats stats;
    mlo_session_stats(s, &stats);
    assert_int_equal(stats.plans, 2);
    assert_int_equal(stats.compiled, 4);
    assert_int_equal(stats.evicted, 2);
    mlo_session_free(s);
    s = open_session(image_net().model, &(struct mlo_session_options){.max_bytes = 1});
    for (x.dims[0] = 1; x.dims[0] < 4; x.dims[0]++)
        MUST(mlo_session_prepare(s, &x, 1, &y, err));
    mlo_session_stats(s, &stats);
    assert_int_equal(stats.plans, 1); /* the last one stays, however small the bound */
    mlo_session_free(s);
}

struct caller {
    struct mlo_session *session;
    const struct mlo_tensor *inputs, *want;
    unsigned first, wrong;
};

static void *call(void *arg)
{
    struct caller *c = arg;
    for (unsigned i = 0; i < CALLS; i++) {
        unsigned k = (c->first + i) % 3;
        struct mlo_tensor y = {0};
        if (mlo_session_run(c->session, &c->inputs[k], 1, &y, NULL) != MLO_OK ||
            y.size_bytes != c->want[k].size_bytes || memcmp(y.data, c->want[k].data, y.size_bytes) != 0)
            c->wrong++;
        mlo_tensor_clear(&y);
    }
    return NULL;
}

/* Threads that want the same and different plans at once get what one thread gets. */
static void test_session__serves_many_threads(void **state)
{
    MLO_UNUSED(state);
    struct mlo_tensor x[3], want[3] = {{0}};
    struct mlo_session *one = open_session(image_net().model, &(struct mlo_session_options){0});
    for (int i = 0; i < 3; i++) {
        x[i] = random_tensor(4, (int64_t[]){i + 1, 8, 9, 9}, (uint32_t)i);
        MUST(mlo_session_run(one, &x[i], 1, &want[i], err));
    }
    mlo_session_free(one);
    struct mlo_session *s =
        open_session(image_net().model, &(struct mlo_session_options){.max_plans = 2, .max_idle = 2});
    pthread_t threads[THREADS];
    struct caller callers[THREADS];
    for (unsigned i = 0; i < THREADS; i++) {
        callers[i] = (struct caller){s, x, want, i, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, call, &callers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(callers[i].wrong, 0);
    }
    struct mlo_session_stats stats;
    mlo_session_stats(s, &stats);
    assert_int_equal(stats.runs, THREADS * CALLS);
    assert_true(stats.plans <= 2 && stats.programs <= 4);
    mlo_session_free(s);
    for (int i = 0; i < 3; i++) {
        mlo_tensor_clear(&x[i]);
        mlo_tensor_clear(&want[i]);
    }
}

/* The cpu engine, whose runs all wait for each other: as many programs as callers. */
static struct mlo_engine meeting;
static pthread_barrier_t met;

static enum mlo_status run_together(struct mlo_program *program, const struct mlo_tensor *inputs,
                                    struct mlo_tensor *outputs, struct mlo_error *e)
{
    pthread_barrier_wait(&met);
    return engine("cpu")->run(program, inputs, outputs, e);
}

static void *call_once(void *arg)
{
    struct caller *c = arg;
    struct mlo_tensor y = {0};
    c->wrong = mlo_session_run(c->session, c->inputs, 1, &y, NULL) != MLO_OK;
    mlo_tensor_clear(&y);
    return NULL;
}

/* Programs that served the calls of a busy moment do not stay above the bound, also not those of the plan
 * that stays. */
static void test_session__trims_programs_of_the_last_plan(void **state)
{
    MLO_UNUSED(state);
    static const size_t bounds[] = {1, 1 << 30}, kept[] = {1, THREADS};
    struct mlo_tensor x = random_tensor(4, (int64_t[]){2, 8, 9, 9}, 3);
    meeting = *engine("cpu");
    meeting.run = run_together;
    for (size_t k = 0; k < MLO_COUNT(bounds); k++) {
        struct mlo_session_options options = {
            .engine = &meeting, .max_bytes = bounds[k], .max_idle = THREADS};
        struct mlo_session *s = open_session(image_net().model, &options);
        struct mlo_session_stats stats;
        pthread_t threads[THREADS];
        struct caller callers[THREADS];
        assert_int_equal(pthread_barrier_init(&met, NULL, THREADS), 0);
        for (unsigned i = 0; i < THREADS; i++) {
            callers[i] = (struct caller){.session = s, .inputs = &x};
            assert_int_equal(pthread_create(&threads[i], NULL, call_once, &callers[i]), 0);
        }
        for (unsigned i = 0; i < THREADS; i++) {
            pthread_join(threads[i], NULL);
            assert_int_equal(callers[i].wrong, 0);
        }
        pthread_barrier_destroy(&met);
        mlo_session_stats(s, &stats);
        assert_int_equal(stats.plans, 1);
        assert_int_equal(stats.programs, kept[k]); /* one stays for the next call */
        mlo_session_free(s);
    }
    mlo_tensor_clear(&x);
}

static void test_session__refuses_what_the_model_does_not_take(void **state)
{
    MLO_UNUSED(state);
    struct mlo_session *s = open_session(image_net().model, &(struct mlo_session_options){0});
    struct mlo_error e = {0};
    struct mlo_tensor x = {.dtype = MLO_FLOAT32, .rank = 4, .dims = {1, 8, 9, 10}}, y = {0};
    assert_int_equal(mlo_session_prepare(s, &x, 1, &y, &e), MLO_EINVAL);
    assert_non_null(strstr(e.message, "float32[1,8,9,10]"));
    assert_non_null(strstr(e.message, "float32[batch,8,9,9]"));
    assert_non_null(strstr(e.where, "'x'"));
    x.dims[3] = 9;
    x.dtype = MLO_INT32;
    assert_int_equal(mlo_session_prepare(s, &x, 1, &y, &e), MLO_EINVAL);
    assert_int_equal(mlo_session_prepare(s, &x, 2, &y, &e), MLO_EINVAL);
    x.dtype = MLO_FLOAT32;
    x.rank = 99;
    assert_int_equal(mlo_session_prepare(s, &x, 1, &y, &e), MLO_EINVAL);
    struct mlo_session_stats stats;
    mlo_session_stats(s, &stats);
    assert_int_equal(stats.plans, 0);
    mlo_session_free(s);
}

/* Two inputs that share a name for a dim. */
static void test_session__one_name_has_one_size(void **state)
{
    MLO_UNUSED(state);
    struct net n = net_new(3);
    struct mlo_value *a = net_input(&n, "a", 2, (int64_t[]){-1, 4}),
                     *b = net_input(&n, "b", 2, (int64_t[]){-1, 4});
    net_finish(&n, net_op(&n, "Add", a, b, NULL));
    struct mlo_session *s = open_session(n.model, &(struct mlo_session_options){0});
    struct mlo_tensor x[2] = {{.dtype = MLO_FLOAT32, .rank = 2, .dims = {3, 4}},
                              {.dtype = MLO_FLOAT32, .rank = 2, .dims = {5, 4}}};
    struct mlo_tensor y = {0};
    struct mlo_error e = {0};
    assert_int_equal(mlo_session_prepare(s, x, 2, &y, &e), MLO_EINVAL);
    assert_non_null(strstr(e.message, "'batch' is 3 in one place, and 5"));
    x[1].dims[0] = 3;
    MUST(mlo_session_prepare(s, x, 2, &y, err));
    mlo_session_free(s);
}

static void test_session__of_a_plan_file_takes_its_shapes(void **state)
{
    MLO_UNUSED(state);
    char *dir = NULL;
    struct mlo_sign_key *key = NULL;
    struct mlo_plan *plan = NULL;
    struct mlo_plan_file *file = NULL;
    struct mlo_session *s = NULL,
                       *r = open_session(image_net().model,
                                         &(struct mlo_session_options){.engine = engine("reference")});
    struct mlo_error e = {0};
    const struct mlo_engine *cpu = engine("cpu");
    MUST(mlo_fs_tempdir(NULL, "mlopt-session-", &dir, err));
    setenv("XDG_CONFIG_HOME", dir, 1);
    setenv("XDG_CACHE_HOME", dir, 1);
    char *path = mlo_fs_join(dir, "net.plan", NULL);
    struct net n = image_net();
    struct mlo_plan_source source = {.threads = 1, .batch = 2};
    struct mlo_compile_options options = {.batch = 2, .threads = 1};
    mlo_digest_of("a model", 7, &source.model);
    MUST(mlo_plan_own_key(NULL, &key, err));
    MUST(cpu->compile(n.model, &options, &plan, err));
    MUST(mlo_plan_write(cpu, plan, &source, key, path, err));
    cpu->free_plan(plan);
    mlo_model_free(n.model);
    MUST(mlo_plan_open(path, NULL, &file, err));
    MUST(mlo_session_new_plan_take(file, &(struct mlo_session_options){.max_bytes = 1}, &s, err));
    check_run(s, r, 4, (int64_t[]){2, 8, 9, 9}, 4);
    check_run(s, r, 4, (int64_t[]){2, 8, 9, 9}, 5);
    struct mlo_tensor x = random_tensor(4, (int64_t[]){3, 8, 9, 9}, 1), y = {0};
    assert_int_equal(mlo_session_run(s, &x, 1, &y, &e), MLO_EINVAL);
    assert_non_null(strstr(e.message, "this plan was compiled for float32[2,8,9,9]"));
    struct mlo_session_stats stats;
    mlo_session_stats(s, &stats);
    assert_int_equal(stats.plans, 1);
    assert_int_equal(stats.compiled, 0);
    mlo_tensor_clear(&x);
    mlo_session_free(s);
    mlo_session_free(r);
    mlo_sign_key_free(key);
    mlo_fs_remove_tree(dir);
    free(path);
    free(dir);
}

static bool refuse(void *arg, void *out)
{
    MLO_UNUSED(out);
    ++*(int *)arg;
    return false;
}

static bool fill(void *arg, void *out)
{
    ++*(int *)arg;
    memset(out, 0x5a, 100);
    return true;
}

static void test_constants__are_made_once_and_freed_with_the_last(void **state)
{
    MLO_UNUSED(state);
    struct mlo_constants *c = mlo_constants_new();
    struct mlo_digest key, other;
    int made = 0;
    mlo_digest_of("a", 1, &key);
    mlo_digest_of("b", 1, &other);
    assert_null(mlo_constants_get(c, &key, 100, refuse, &made));
    struct mlo_constant *first = mlo_constants_get(c, &key, 100, fill, &made),
                        *second = mlo_constants_get(c, &key, 100, fill, &made),
                        *third = mlo_constants_get(c, &other, 100, fill, &made);
    assert_int_equal(made, 3);
    assert_ptr_equal(first, second);
    assert_ptr_not_equal(first, third);
    assert_int_equal(((const char *)mlo_constant_data(first))[99], 0x5a);
    assert_int_equal(mlo_constants_bytes(c), 200);
    mlo_constant_release(first);
    assert_int_equal(mlo_constants_bytes(c), 200);
    mlo_constant_release(second);
    mlo_constant_release(third);
    assert_int_equal(mlo_constants_bytes(c), 0);
    mlo_constants_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_session__runs_any_shape),
        cmocka_unit_test(test_session__plans_share_weights),
        cmocka_unit_test(test_session__keeps_the_most_recent),
        cmocka_unit_test(test_session__serves_many_threads),
        cmocka_unit_test(test_session__trims_programs_of_the_last_plan),
        cmocka_unit_test(test_session__refuses_what_the_model_does_not_take),
        cmocka_unit_test(test_session__one_name_has_one_size),
        cmocka_unit_test(test_session__of_a_plan_file_takes_its_shapes),
        cmocka_unit_test(test_constants__are_made_once_and_freed_with_the_last),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
