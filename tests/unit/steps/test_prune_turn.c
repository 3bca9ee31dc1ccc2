/* Channels and attention heads are turned before they are ranked: the function stays, and what goes is the
 * least of what is read. */
#include "tests/unit/steps/attention_net.h"

/* A stream of six channels, made twice and summed, read by a Conv and behind an average; with an op on it (or
 * a number that is added to all channels) it stays as it is. */
static struct mlo_model *stream(const char *on_it)
{
    struct mlo_model *m = new_model(17);
    struct mlo_value *p = op(m, "Conv", "p", input(m, "x", -1, 3, 5, 5), noise(m, "wp", 0.5f, 1, 6, 3, 1, 1),
                             noise(m, "bp", 0.5f, 2, 6));
    if (strcmp(on_it, "Add") == 0)
        p = op(m, "Add", "on", p, floats(m, "one", LIST(1), 1));
    else if (*on_it)
        p = op(m, on_it, "on", p);
    struct mlo_value *e = op(m, "Relu", "re", op(m, "Conv", "e", p, noise(m, "we", 0.5f, 3, 9, 6, 3, 3)));
    set_ints(e->producer->inputs[0], "pads", 1, 1, 1, 1);
    struct mlo_value *q =
        op(m, "Conv", "q", e, noise(m, "wq", 0.5f, 4, 6, 9, 1, 1), noise(m, "bq", 0.5f, 5, 6));
    struct mlo_value *g = op(m, "GlobalAveragePool", "g", op(m, "Add", "s", p, q));
    finish(m, op(m, "Conv", "y", g, noise(m, "wy", 0.5f, 6, 3, 6, 1, 1)));
    return m;
}

static void test_prune_step__turns_channels_that_nothing_but_sums_touch(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        const char *on_it, *exclude;
        bool turned;
    } CASES[] = {
        {"", "[]", true}, {"", "[\"q_node\"]", false}, {"Relu", "[]", false}, {"Sigmoid", "[]", false}};
    for (size_t i = 0; i < MLO_COUNT(CASES); i++) {
        struct mlo_model *m = stream(CASES[i].on_it);
        struct run r;
        char options[160];
        snprintf(options, sizeof options, "{\"remove\": \"1%%\", \"round\": 1, \"exclude\": %s}",
                 CASES[i].exclude);
        run_step(&r, m, 60, options, 2, 0);
        if (r.status != MLO_OK)
            fail_msg("%s", r.err.message);
        assert_true(has_note(json_object_get(r.result.report, "passes"), "p_node", "6 channels are turned") ==
                    CASES[i].turned);
        clear(&r);
        mlo_model_free(m);
    }
}

/* Gram matrices of all that the options want, of rows without a pattern; `idle`: of eight channels, each is
 * less than the one before, and the last is 0. */
static void observe_noise(const struct mlo_model *m, const json_t *options, bool idle,
                          struct mlo_stats *stats)
{
    struct mlo_error err = {0};
    struct mlo_stats_wants wants = {0};
    mlo_stats_init(stats);
    assert_ok(mlo_prune_wanted(m, options, true, &wants, &err));
    for (size_t w = 0; w < wants.count; w++) {
        const struct mlo_node *node = wants.list[w].gram;
        struct mlo_gram *gram = mlo_stats_get_gram(stats, node, true);
        const struct mlo_type *type = &node->inputs[0]->type;
        int64_t dims[MLO_MAX_RANK] = {1};
        struct mlo_tensor x = {0};
        uint32_t seed = 3; /* what reads the same sees the same */
        for (int d = 1; d < type->rank; d++)
            dims[d] = type->dims[d].value;
        assert_ok(mlo_tensor_init(&x, MLO_FLOAT32, type->rank, dims, &err));
        for (int s = 0; s < 40; s++) {
            for (size_t k = 0; k < mlo_tensor_count(&x); k++)
                ((float *)x.data)[k] = noise_at(&seed) * (idle ? (float)(7 - k % 8) : 1);
            assert_ok(mlo_gram_add(gram, node, &x, NULL, &err));
        }
        mlo_tensor_clear(&x);
    }
    mlo_stats_sort(stats);
    mlo_stats_wants_clear(&wants);
}

static void hear(void *arg, int group, int groups)
{
    assert_int_equal(group, (*(int *)arg)++);
    assert_true(group < groups);
}

static void test_prune_turn__leaves_the_function_as_it_was(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_model *m = stream(""), *turned = stream("");
    struct mlo_stats stats;
    struct mlo_pass_context ctx = {.notes = json_array()};
    json_t *given = json_object(), *options = NULL;
    struct mlo_arena *arena = mlo_arena_new();
    struct mlo_prune_turned out;
    int heard = 0;
    assert_ok(mlo_options_resolve(mlo_prune_options, given, &options, &err));
    assert_ok(mlo_graph_infer(turned->graph, &err));
    observe_noise(turned, options, false, &stats);
    assert_ok(mlo_prune_turn(turned, options, &stats, &ctx, hear, &heard, arena, &out, &err));
    assert_int_equal(out.groups, 1);
    assert_int_equal(out.count, 0);
    assert_true(heard > 1);
    double off = deviation(m, turned);
    if (!(off < 2e-5))
        fail_msg("the turned model is off by %g", off);
    const float *was = node_named(m, "p_node")->inputs[1]->constant->data,
                *now = node_named(turned, "p_node")->inputs[1]->constant->data;
    assert_true(fabsf(was[0] - now[0]) > 1e-3f);
    mlo_stats_clear(&stats);
    mlo_model_free(turned);
    mlo_model_free(m);
    /* a number for all channels is not one behind the turn */
    m = stream("Add");
    assert_ok(mlo_graph_infer(m->graph, &err));
    observe_noise(m, options, false, &stats);
    assert_ok(mlo_prune_turn(m, options, &stats, &ctx, NULL, NULL, arena, &out, &err));
    assert_int_equal(out.groups, 0);
    /* weights that are no numbers are named as they are, and not by what a turn makes of them */
    ((float *)node_named(m, "q_node")->inputs[1]->constant->data)[3] = NAN;
    assert_int_equal(mlo_prune_turn(m, options, &stats, &ctx, NULL, NULL, arena, &out, &err), MLO_EINVAL);
    assert_non_null(strstr(err.message, "'wq' hold NaN"));
    mlo_stats_clear(&stats);
    mlo_model_free(m);
    mlo_arena_free(arena);
    json_decref(ctx.notes);
    json_decref(options);
    json_decref(given);
}

/* Heads are turned where nothing but moves and numbers stand between weights and products; elsewhere they
 * stay what can go. */
static void test_prune_turn__turns_what_is_inside_heads(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        unsigned how;
        const char *on;
        int widths, units;
        double most, least; /* share of the first index at least, of the last one at most; 0: any */
        const char *options;
    } CASES[] = {
        {PACKED, "", 1, 4},
        {0, "", 3, 8},
        {PACKED, "Mul", 1, 4},
        {0, "Mul", 3, 8},
        {PACKED, "Tanh", 0, 2},
        {0, "Tanh", 0, 2},
        {PACKED, "Add", 0, 2},
        {0, "Add", 0, 2},
        {0, "", 2, 4, .options = "{\"exclude\": [\"p2_node\"]}"},
        {0, "", 0, 2, .options = "{\"heads\": \"whole\"}"},
        {SPLIT, "", 3, 8},
        {SPLIT | FIFTH, "", 1, 4},
        {SPLIT | SIZES, "", 0, 0},
        {GATE, "", 0, 2},
        {GATE | PACKED, "", 0, 2},
        {EMBED, "", 3, 16},
        {EMBED | PACKED, "", 1, 12},
        {EMBED | IDLE, "", 3, 16, .least = 1e-3},
        {RELU, "", 3, 8},
        {RELU | LEVEL, "", 3, 8, .most = 0.9},
        {ACROSS | LEVEL, "", 3, 8, .most = 0.9},
        {OLD | LEVEL, "", 3, 8, .most = 0.9},
        {LEVEL, "", 3, 8, .least = 1e-9},
        {MASK | LEVEL, "", 3, 8, .least = 1e-9},
        {GEMM, "", 3, 8},
        {GEMM | TRANS_B, "", 3, 8},
        {GEMM | TRANS_B | PACKED, "", 1, 4},
        {GEMM | SPLIT, "", 3, 8},
        {GEMM | ALPHA, "", 0, 2},
        {GEMM | BETA, "", 0, 2},
        {GEMM | ADDS_BACK, "", 2, 4},
        {NUMBERS, "", 3, 8},
        {NUMBERS | PACKED, "Identity", 1, 4},
        {ONE, "", 0, 8}, /* columns that make no axis of heads are channels */
        {ONE | PACKED, "", 1, 8},
        {BARE, "", 3, 8}, /* no weights read its columns; the heads in front are none the worse */
        {CROSS, "", 3, 8},
        {SAME, "", 0, 2},
        {SELF, "", 0, 2},
        {TIED, "", 0, 2},
        {TIED_BIAS, "", 0, 2},
        {LONG, "", 0, 2},
    };
    for (size_t i = 0; i < MLO_COUNT(CASES); i++) {
        struct mlo_error err = {0};
        struct mlo_model *m = attention(CASES[i].how, CASES[i].on, true),
                         *turned = attention(CASES[i].how, CASES[i].on, true);
        struct mlo_arena *arena = mlo_arena_new();
        struct mlo_pass_context ctx = {.notes = json_array()};
        struct mlo_prune_turned out;
        struct mlo_prune_ranking ranking;
        struct mlo_stats stats;
        json_t *given = json_loads(CASES[i].options ? CASES[i].options : "{}", 0, NULL), *options;
        assert_ok(mlo_options_resolve(mlo_prune_options, given, &options, &err));
        assert_ok(mlo_graph_infer(turned->graph, &err));
        observe_noise(turned, options, CASES[i].how & IDLE, &stats);
        assert_ok(mlo_prune_turn(turned, options, &stats, &ctx, NULL, NULL, arena, &out, &err));
        if (out.count != CASES[i].widths)
            fail_msg("case %zu: %d widths, %d turned", i, out.count, out.groups);
        double off = CASES[i].how & SIZES ? 0 : deviation(m, turned);
        if (!(off < 2e-5))
            fail_msg("case %zu: the turned model is off by %g", i, off);
        if (out.count && out.widths[0].seen) { /* of queries and keys, the most is seen of the first */
            const double *seen = out.widths[0].seen;
            int width = CASES[i].how & ONE ? 8 : 4;
            double sum = 0;
            for (int j = 0; j < width; j++) {
                assert_true(j == 0 || seen[j - 1] > seen[j]);
                sum += seen[j];
            }
            assert_true(fabs(sum - 1) < 1e-12);
            if (!(seen[0] >= CASES[i].most) || (CASES[i].least > 0 && !(seen[width - 1] < CASES[i].least)))
                fail_msg("case %zu: of the first %g is seen, of the last %g", i, seen[0], seen[width - 1]);
        }
        int units = 0; /* indices of the width, or heads; none: it says that nothing can go */
        enum mlo_status ranked =
            mlo_prune_rank_model(turned, options, &stats, &out, arena, &ctx, &ranking, &err);
        assert_int_equal(ranked, CASES[i].units ? MLO_OK : MLO_EINVAL);
        for (int g = 0; g < ranking.count; g++)
            units += ranking.groups[g].count;
        if (units != CASES[i].units)
            fail_msg("case %zu: %d units", i, units);
        mlo_stats_clear(&stats);
        mlo_arena_free(arena);
        json_decref(ctx.notes);
        json_decref(options);
        json_decref(given);
        mlo_model_free(m);
        mlo_model_free(turned);
    }
}

/* What queries and keys see is of what was observed, whether or not the channels in front are turned, too. */
static void test_prune_turn__orders_heads_by_what_was_observed(void **state)
{
    MLO_UNUSED(state);
    static const char *const OPTIONS[] = {"{\"exclude\": [\"e_node\"]}", "{}"};
    double first[4];
    for (int i = 0; i < 2; i++) {
        struct mlo_error err = {0};
        struct mlo_model *m = attention(EMBED | IDLE, "", true);
        struct mlo_arena *arena = mlo_arena_new();
        struct mlo_pass_context ctx = {.notes = json_array()};
        struct mlo_prune_turned out;
        struct mlo_stats stats;
        json_t *given = json_loads(OPTIONS[i], 0, NULL), *options;
        assert_ok(mlo_options_resolve(mlo_prune_options, given, &options, &err));
        observe_noise(m, options, true, &stats);
        assert_ok(mlo_prune_turn(m, options, &stats, &ctx, NULL, NULL, arena, &out, &err));
        assert_int_equal(out.groups, 2 + i); /* queries and keys, values; and the channels in front */
        const double *seen = out.widths[0].seen;
        assert_non_null(seen);
        for (int j = 0; j < 4; j++) {
            if (i && !(fabs(seen[j] - first[j]) < 1e-9))
                fail_msg("of index %d %g is seen, and not %g", j, seen[j], first[j]);
            first[j] = seen[j];
        }
        mlo_stats_clear(&stats);
        mlo_arena_free(arena);
        json_decref(ctx.notes);
        json_decref(options);
        json_decref(given);
        mlo_model_free(m);
    }
}

/* Every index of the heads is in use, and two of four say all: no head and no index could go as they are. */
static void test_prune_step__takes_what_heads_do_not_need(void **state)
{
    MLO_UNUSED(state);
    for (int packed = 0; packed < 2; packed++) {
        struct mlo_model *m = attention(packed, "", false);
        char first[MLO_DIGEST_TEXT_SIZE], text[MLO_DIGEST_TEXT_SIZE];
        for (unsigned threads = 1; threads <= 3; threads += 2) {
            struct run r;
            run_step(&r, m, 40, "{\"remove\": \"50%\", \"damp\": 0}", threads, threads == 1 ? 0 : 7);
            if (r.status != MLO_OK)
                fail_msg("%s", r.err.message);
            digest_of(&r, threads == 1 ? first : text);
            struct mlo_model *pruned = load_result(&r);
            assert_int_equal(node_named(pruned, "y_node")->inputs[1]->type.dims[0].value, 4);
            assert_int_equal(mlo_graph_value(pruned->graph, packed ? "wp" : "w0")->type.dims[1].value,
                             packed ? 12 : 4);
            double worst = deviation(m, pruned);
            if (!(worst < 2e-4))
                fail_msg("outputs differ by %g", worst);
            mlo_model_free(pruned);
            clear(&r);
        }
        assert_string_equal(first, text);
        mlo_model_free(m);
    }
}

/* The channels in front of the heads are turned as well: an index that nothing is seen of is still told. */
static void test_prune_step__turns_heads_and_the_channels_in_front_of_them(void **state)
{
    MLO_UNUSED(state);
    struct mlo_model *m = attention(EMBED | IDLE, "", true);
    struct run r;
    run_step(&r, m, 40, "{\"remove\": \"10%\", \"round\": 1, \"damp\": 0}", 1, 0);
    if (r.status != MLO_OK)
        fail_msg("%s", r.err.message);
    const json_t *passes = json_object_get(r.result.report, "passes");
    assert_true(has_note(passes, "e_node", "8 channels are turned"));
    assert_true(has_note(passes, "p0_node", "queries and keys of 2 heads are turned"));
    struct mlo_model *pruned = load_result(&r);
    assert_int_equal(mlo_graph_value(pruned->graph, "w0")->type.dims[1].value, 6);
    double worst = deviation(m, pruned);
    if (!(worst < 2e-4))
        fail_msg("outputs differ by %g", worst);
    mlo_model_free(pruned);
    clear(&r);
    mlo_model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prune_step__turns_channels_that_nothing_but_sums_touch),
        cmocka_unit_test(test_prune_turn__leaves_the_function_as_it_was),
        cmocka_unit_test(test_prune_turn__turns_what_is_inside_heads),
        cmocka_unit_test(test_prune_turn__orders_heads_by_what_was_observed),
        cmocka_unit_test(test_prune_step__takes_what_heads_do_not_need),
        cmocka_unit_test(test_prune_step__turns_heads_and_the_channels_in_front_of_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
