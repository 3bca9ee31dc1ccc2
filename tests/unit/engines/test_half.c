/* Models in float16 and bfloat16: the cpu engine computes them in float32, and is nearer to the exact result
 * than the reference, which rounds every value; casts are exact. */
#include "helpers.h"

static const enum mlo_dtype halves[] = {MLO_FLOAT16, MLO_BFLOAT16};

/* Weights of both signs. */
static struct mlo_value *around_0(struct net *n, enum mlo_dtype dtype, int rank, const int64_t *dims,
                                  double amplitude)
{
    return net_numbers(n, dtype, rank, dims, -amplitude, amplitude);
}

static const struct mlo_compile_options one_thread = {.batch = 0, .threads = 1};

/* Conv, Relu, GlobalAveragePool, Flatten, Gemm; fed and delivered in half precision or not. */
static void test_net__runs_in_float32(void **state)
{
    MLO_UNUSED(state);
    for (int i = 0; i < 4; i++) {
        enum mlo_dtype half = halves[i % 2];
        bool edges = i < 2; /* the inputs and outputs are float32 */
        struct net n = net_new((uint32_t)i + 1);
        int64_t xd[] = {2, 3, 12, 12};
        struct mlo_value *x = net_input_of(&n, edges ? MLO_FLOAT32 : half, "x", 4, xd);
        if (edges)
            x = net_cast(&n, x, half);
        struct mlo_node *c = net_node(&n, "Conv", x, around_0(&n, half, 4, (int64_t[]){16, 3, 3, 3}, 0.3),
                                      around_0(&n, half, 1, (int64_t[]){16}, 0.3));
        struct mlo_value *y = net_op(&n, "Relu", c->outputs[0], NULL, NULL);
        y = net_op(&n, "Flatten", net_op(&n, "GlobalAveragePool", y, NULL, NULL), NULL, NULL);
        y = net_op(&n, "Gemm", y, around_0(&n, half, 2, (int64_t[]){16, 10}, 0.5),
                   around_0(&n, half, 1, (int64_t[]){10}, 1));
        net_finish(&n, edges ? net_cast(&n, y, MLO_FLOAT32) : y);
        struct mlo_tensor in = random_tensor_of(edges ? MLO_FLOAT32 : half, 4, xd, 5);
        json_t *d = NULL;
        assert_engines_agree(&n, &one_thread, &in, half == MLO_FLOAT16 ? 3e-3f : 3e-2f, "net", &d);
        if (count_nodes(d, NULL, "precision",
                        half == MLO_FLOAT16 ? "f32 (float16 storage)" : "f32 (bfloat16 storage)") < 3)
            fail_with_plan(d, "net", "it does not run in float32");
        json_decref(d);
        mlo_tensor_clear(&in);
        mlo_model_free(n.model);
    }
}

/* Half-precision values where a node states its type, an input is read twice, a constant is delivered, and
 * the same value goes to both sides. */
static void test_net__nodes_that_keep_their_type(void **state)
{
    MLO_UNUSED(state);
    for (size_t h = 0; h < 2; h++) {
        enum mlo_dtype half = halves[h];
        struct net n = net_new(3);
        int64_t xd[] = {4, 8};
        struct mlo_value *x = net_input_of(&n, half, "x", 2, xd),
                         *w = around_0(&n, half, 2, (int64_t[]){8, 8}, 0.5);
        struct mlo_value *y = net_op(&n, "MatMul", x, w, NULL);
        struct mlo_value *like = net_op(&n, "CastLike", around_0(&n, MLO_FLOAT32, 2, xd, 1), y, NULL);
        struct mlo_value *sum = net_op(&n, "Add", net_op(&n, "Add", y, like, NULL), x, NULL);
        net_output(&n, sum);
        net_output(&n, net_op(&n, "Relu", sum, NULL, NULL)); /* an output that is read again */
        net_finish(&n, x);
        struct mlo_tensor in = random_tensor_of(half, 2, xd, 5);
        assert_engines_agree(&n, &one_thread, &in, half == MLO_FLOAT16 ? 3e-3f : 3e-2f, "types", NULL);
        mlo_tensor_clear(&in);
        mlo_model_free(n.model);
    }
}

/* GELU spelled out with factors that are rounded as all numbers of the model are is one step with what is
 * before it. */
static void test_net__rounded_gelu_is_one_activation(void **state)
{
    MLO_UNUSED(state);
    for (size_t h = 0; h < 2; h++)
        for (int form = 0; form < 2; form++) {
            enum mlo_dtype half = halves[h];
            struct net n = net_new(3);
            int64_t xd[] = {4, 24};
            struct mlo_value *x = net_op(&n, "MatMul", net_input_of(&n, half, "x", 2, xd),
                                         around_0(&n, half, 2, (int64_t[]){24, 40}, 0.5), NULL);
            struct mlo_value *root = net_scalar(&n, half, form ? sqrt(0.5) : sqrt(2.0));
            struct mlo_value *y =
                net_op(&n, "Erf", net_op(&n, form ? "Mul" : "Div", x, root, NULL), NULL, NULL);
            y = net_op(&n, "Mul", x, net_op(&n, "Add", y, net_scalar(&n, half, 1.0), NULL), NULL);
            net_finish(&n, net_op(&n, "Mul", y, net_scalar(&n, half, 0.5), NULL));
            struct mlo_tensor in = random_tensor_of(half, 2, xd, 5);
            json_t *d = NULL;
            assert_engines_agree(&n, &one_thread, &in, half == MLO_FLOAT16 ? 3e-3f : 3e-2f, "gelu", &d);
            const char *precision = half == MLO_FLOAT16 ? "f32 (float16 storage)" : "f32 (bfloat16 storage)";
            if (count_nodes(d, "MatMul", "precision", precision) != 1 ||
                count_nodes(d, "Mul", "precision", precision) + count_nodes(d, "Div", "precision", precision))
                fail_with_plan(d, "gelu", "it is a step of its own");
            json_decref(d);
            mlo_tensor_clear(&in);
            mlo_model_free(n.model);
        }
}

static void check_cast(struct mlo_tensor *x, enum mlo_dtype to)
{
    struct net n = net_new(1);
    net_finish(&n, net_cast(&n, net_input_of(&n, x->dtype, "x", x->rank, x->dims), to));
    struct mlo_compile_options o = {.batch = 0, .threads = 2};
    json_t *d = NULL;
    struct mlo_tensor want = run_model("reference", n.model, &o, x, NULL);
    struct mlo_tensor got = run_model("cpu", n.model, &o, x, &d);
    assert_int_equal(got.dtype, to);
    if (count_nodes(d, NULL, "impl", "reference"))
        fail_with_plan(d, "cast", "it is the reference itself");
    for (size_t i = 0; i < mlo_tensor_count(&want); i++) {
        double a = mlo_tensor_get_f64(&got, i), b = mlo_tensor_get_f64(&want, i);
        if (a != b && !(isnan(a) && isnan(b)))
            fail_msg("cast of %.9g to %s is %.9g, the reference has %.9g", mlo_tensor_get_f64(x, i),
                     mlo_dtype_name(to), a, b);
    }
    json_decref(d);
    mlo_tensor_clear(&got);
    mlo_tensor_clear(&want);
    mlo_model_free(n.model);
}

static void test_cast__every_half_and_floats_around_them(void **state)
{
    MLO_UNUSED(state);
    for (size_t h = 0; h < 2; h++) {
        struct mlo_tensor t = {0}, f = {0};
        int64_t all = 65536, around = 3 * 65536 + 5;
        MUST(mlo_tensor_init(&t, halves[h], 1, &all, err));
        MUST(mlo_tensor_init(&f, MLO_FLOAT32, 1, &around, err));
        for (int64_t i = 0; i < all; i++) {
            ((uint16_t *)t.data)[i] = (uint16_t)i;
            float v = (float)mlo_tensor_get_f64(&t, (size_t)i), *to = (float *)f.data + 3 * i;
            float next = (float)mlo_tensor_get_f64(&t, (size_t)(i ? i - 1 : 0));
            to[0] = v;
            to[1] = (v + next) * 0.5f; /* a tie */
            to[2] = nextafterf(to[1], INFINITY);
        }
        check_cast(&t, MLO_FLOAT32);
        check_cast(&f, halves[h]);
        mlo_tensor_clear(&t);
        mlo_tensor_clear(&f);
    }
}

int main(void)
{
    if (setenv("MLOPT_FP16", "off", 1) != 0) /* test_tile_f16.c is about what has FP16 */
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_net__runs_in_float32),
        cmocka_unit_test(test_net__nodes_that_keep_their_type),
        cmocka_unit_test(test_net__rounded_gelu_is_one_activation),
        cmocka_unit_test(test_cast__every_half_and_floats_around_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
