/* Lowering for the cuda engine: what a graph becomes is computed, step by step on the CPU, and compared with
 * the reference engine. */
#include "tests/unit/engines/cuda_interpreter.h"

static struct cuda_schedule *lower(const struct net *n, int64_t batch)
{
    struct cuda_schedule *s = NULL;
    struct mlo_compile_options o = {.batch = batch};
    MUST(cuda_schedule_new(n->model, &o, 90, &s, err));
    MUST(cuda_memory_verify(s, err));
    return s;
}

static void show(const struct cuda_schedule *s)
{
    struct mlo_buf text = MLO_BUF_INIT;
    cuda_schedule_dump(s, &text);
    print_message("%s", mlo_buf_str(&text));
    mlo_buf_clear(&text);
}

/* Lowers, interprets (and runs the texts of the kernels, when wanted), compares: errors up to `tolerance` of
 * the largest result. The schedule is yours. */
static struct cuda_schedule *agrees(const struct net *n, int64_t batch, bool kernels,
                                    const struct mlo_tensor *inputs, double tolerance, const char *what)
{
    struct mlo_compile_options o = {.batch = batch, .threads = 1};
    struct cuda_schedule *s = lower(n, batch);
    struct mlo_tensor want = run_model("reference", n->model, &o, inputs, NULL);
    double most = 0;
    for (size_t i = 0; i < mlo_tensor_count(&want); i++)
        most = fmax(most, fabs(mlo_tensor_get_f64(&want, i)));
    for (int by_kernels = 0; by_kernels <= kernels; by_kernels++) {
        struct mlo_tensor got[4] = {0};
        if (!interpret_with(s, by_kernels, inputs, got)) {
            print_message("skipped: the kernels' texts, since there is no compiler\n");
            continue;
        }
        assert_true(mlo_tensor_same_shape(&got[0], &want) && got[0].dtype == want.dtype);
        for (size_t i = 0; i < mlo_tensor_count(&want); i++) {
            double a = mlo_tensor_get_f64(&got[0], i), b = mlo_tensor_get_f64(&want, i);
            if (isnan(b) ? !isnan(a) : !(fabs(a - b) <= tolerance * most)) {
                show(s);
                fail_msg("%s%s: element %zu is %.9g, the reference has %.9g (the largest is %g)", what,
                         by_kernels ? " by its kernels" : "", i, a, b, most);
            }
        }
        for (int i = 0; i < 4; i++)
            mlo_tensor_clear(&got[i]);
    }
    mlo_tensor_clear(&want);
    return s;
}

static int count_kind(const struct cuda_schedule *s, enum cuda_step_kind kind)
{
    int n = 0;
    for (int i = 0; i < s->step_count; i++)
        n += s->steps[i].kind == kind;
    return n;
}

static void expect(const struct cuda_schedule *s, int convs, int gemms, int attentions, int chains,
                   int kernels)
{
    int want[] = {convs, gemms, attentions, chains, kernels};
    const enum cuda_step_kind kinds[] = {CUDA_STEP_CONV, CUDA_STEP_GEMM, CUDA_STEP_ATTENTION, CUDA_STEP_CHAIN,
                                         CUDA_STEP_KERNEL};
    for (size_t i = 0; i < MLO_COUNT(kinds); i++)
        if (count_kind(s, kinds[i]) != want[i]) {
            show(s);
            fail_msg("%d steps of kind %d, not %d", count_kind(s, kinds[i]), (int)kinds[i], want[i]);
        }
}

static struct mlo_value *cast_constant(struct net *n, enum mlo_dtype dtype, int rank, const int64_t *dims,
                                       float amplitude)
{
    return net_numbers(n, dtype, rank, dims, -amplitude, amplitude);
}

/* --- convolutional nets
 * -------------------------------------------------------------------------------------- */

static struct mlo_value *conv_of(struct net *n, struct mlo_value *x, enum mlo_dtype dtype,
                                 const struct conv_spec *s)
{
    int64_t w[] = {s->oc, s->ic / s->groups, s->kernel, s->kernel};
    float amplitude = sqrtf(3.0f / (float)(w[1] * w[2] * w[3]));
    struct mlo_value *weights = cast_constant(n, dtype, 4, w, amplitude);
    struct mlo_value *bias = s->bias ? cast_constant(n, dtype, 1, &s->oc, 0.5f) : NULL;
    struct mlo_node *node = net_node(n, "Conv", x, weights, bias);
    net_conv_attrs(node, s);
    return node->outputs[0];
}

static struct mlo_value *norm_of(struct net *n, struct mlo_value *x, enum mlo_dtype dtype, int64_t c)
{
    struct mlo_value *in[] = {x, net_numbers(n, dtype, 1, &c, 0.5, 1.5), cast_constant(n, dtype, 1, &c, 0.5f),
                              cast_constant(n, dtype, 1, &c, 0.5f), net_numbers(n, dtype, 1, &c, 0.5, 1.5)};
    return net_node_of(n, "", "BatchNormalization", in, 5)->outputs[0];
}

/* Stem, pool, a residual block with a projection, depthwise, mean, classifier. */
static void run_convnet(enum mlo_dtype dtype, double tolerance)
{
    for (int64_t batch = 1; batch <= 3; batch += 2) {
        struct net n = net_new(7);
        struct mlo_value *x = net_input_of(&n, dtype, "x", 4, (int64_t[]){-1, 3, 17, 16});
        x = conv_of(&n, x, dtype, &(struct conv_spec){3, 16, 3, 2, 1, 1, 1, 16, true});
        x = net_op(&n, "Relu", x, NULL, NULL);
        struct mlo_node *pool = net_node(&n, "MaxPool", x, NULL, NULL);
        assert_true(mlo_node_set_ints(pool, "kernel_shape", (int64_t[]){3, 3}, 2));
        assert_true(mlo_node_set_ints(pool, "strides", (int64_t[]){2, 2}, 2));
        assert_true(mlo_node_set_ints(pool, "pads", (int64_t[]){1, 1, 1, 1}, 4));
        x = pool->outputs[0];
        struct mlo_value *a = conv_of(&n, x, dtype, &(struct conv_spec){16, 8, 1, 1, 0, 1, 1, 8, false});
        a = net_op(&n, "Relu", norm_of(&n, a, dtype, 8), NULL, NULL);
        a = conv_of(&n, a, dtype, &(struct conv_spec){8, 32, 3, 1, 1, 1, 1, 8, false});
        a = norm_of(&n, a, dtype, 32);
        struct mlo_value *b = conv_of(&n, x, dtype, &(struct conv_spec){16, 32, 1, 1, 0, 1, 1, 8, false});
        x = net_op(&n, "Relu", net_op(&n, "Add", a, norm_of(&n, b, dtype, 32), NULL), NULL, NULL);
        x = conv_of(&n, x, dtype, &(struct conv_spec){32, 32, 3, 1, 1, 1, 32, 8, true});
        x = net_op(&n, "Clip", x, net_scalar(&n, dtype, 0), net_scalar(&n, dtype, 6));
        x = net_op(&n, "GlobalAveragePool", x, NULL, NULL);
        x = net_op(&n, "Flatten", x, NULL, NULL);
        struct mlo_node *gemm =
            net_node(&n, "Gemm", x, cast_constant(&n, dtype, 2, (int64_t[]){10, 32}, 0.3f),
                     cast_constant(&n, dtype, 1, (int64_t[]){10}, 0.3f));
        assert_true(mlo_node_set_i(gemm, "transB", 1));
        net_finish(&n, gemm->outputs[0]);
        struct mlo_tensor in = random_tensor_of(dtype, 4, (int64_t[]){batch, 3, 17, 16}, 3);
        struct cuda_schedule *s = agrees(&n, batch, batch == 1, &in, tolerance, "a convolutional net");
        /* the stem's picture is made channels last; pool, mean; depthwise by an own kernel */
        expect(s, 4, 1, 0, 2, 2);
        cuda_schedule_free(s);
        mlo_tensor_clear(&in);
        mlo_model_free(n.model);
    }
}

static void test_cuda_plan__convolutional_net(void **state)
{
    MLO_UNUSED(state);
    run_convnet(MLO_FLOAT32, 1e-5);
    run_convnet(MLO_FLOAT16, 4e-3);
}

/* --- transformers
 * -------------------------------------------------------------------------------------------- */

enum { WIDTH = 32, HEADS = 4, DEPTH = WIDTH / HEADS, TOKENS = 6 };

static struct mlo_value *dense(struct net *n, struct mlo_value *x, enum mlo_dtype dtype, int64_t from,
                               int64_t to)
{
    struct mlo_value *w = cast_constant(n, dtype, 2, (int64_t[]){from, to}, sqrtf(3.0f / (float)from));
    return net_op(n, "Add", net_op(n, "MatMul", x, w, NULL), cast_constant(n, dtype, 1, &to, 0.3f), NULL);
}

static struct mlo_value *transposed(struct net *n, struct mlo_value *x, const int64_t *perm)
{
    struct mlo_node *node = net_node(n, "Transpose", x, NULL, NULL);
    assert_true(mlo_node_set_ints(node, "perm", perm, 4));
    return node->outputs[0];
}

static struct mlo_value *heads(struct net *n, struct mlo_value *x, bool keys)
{
    x = net_op(n, "Reshape", x, net_ints(n, 4, (int64_t[]){0, 0, HEADS, DEPTH}), NULL);
    return transposed(n, x, keys ? (int64_t[]){0, 2, 3, 1} : (int64_t[]){0, 2, 1, 3});
}

static struct mlo_value *layer_norm(struct net *n, struct mlo_value *x, enum mlo_dtype dtype, bool spelled)
{
    int64_t w = WIDTH;
    struct mlo_value *g = net_numbers(n, dtype, 1, &w, 0.5, 1.5), *b = cast_constant(n, dtype, 1, &w, 0.3f);
    if (!spelled)
        return net_op(n, "LayerNormalization", x, g, b);
    struct mlo_node *mean = net_node(n, "ReduceMean", x, NULL, NULL);
    assert_true(mlo_node_set_ints(mean, "axes", (int64_t[]){-1}, 1));
    struct mlo_value *d = net_op(n, "Sub", x, mean->outputs[0], NULL);
    struct mlo_node *var =
        net_node(n, "ReduceMean", net_op(n, "Pow", d, net_scalar(n, dtype, 2), NULL), NULL, NULL);
    assert_true(mlo_node_set_ints(var, "axes", (int64_t[]){-1}, 1));
    struct mlo_value *s =
        net_op(n, "Sqrt", net_op(n, "Add", var->outputs[0], net_scalar(n, dtype, 1e-5), NULL), NULL, NULL);
    return net_op(n, "Add", net_op(n, "Mul", net_op(n, "Div", d, s, NULL), g, NULL), b, NULL);
}

static struct mlo_value *gelu_of(struct net *n, struct mlo_value *x, enum mlo_dtype dtype)
{
    struct mlo_value *e =
        net_op(n, "Erf", net_op(n, "Div", x, net_scalar(n, dtype, sqrt(2)), NULL), NULL, NULL);
    e = net_op(n, "Mul", x, net_op(n, "Add", e, net_scalar(n, dtype, 1), NULL), NULL);
    return net_op(n, "Mul", e, net_scalar(n, dtype, 0.5), NULL);
}

/* One encoder layer as exporters write it. */
static struct mlo_value *layer(struct net *n, struct mlo_value *x, struct mlo_value *mask,
                               enum mlo_dtype dtype, bool spelled)
{
    struct mlo_value *q = heads(n, dense(n, x, dtype, WIDTH, WIDTH), false),
                     *k = heads(n, dense(n, x, dtype, WIDTH, WIDTH), true),
                     *v = heads(n, dense(n, x, dtype, WIDTH, WIDTH), false);
    struct mlo_value *s = net_op(n, "MatMul", q, k, NULL);
    s = net_op(n, "Div", s, net_scalar(n, dtype, sqrt(DEPTH)), NULL);
    s = net_op(n, "Softmax", net_op(n, "Add", s, mask, NULL), NULL, NULL);
    s = transposed(n, net_op(n, "MatMul", s, v, NULL), (int64_t[]){0, 2, 1, 3});
    s = net_op(n, "Reshape", s, net_ints(n, 3, (int64_t[]){0, 0, WIDTH}), NULL);
    x = layer_norm(n, net_op(n, "Add", dense(n, s, dtype, WIDTH, WIDTH), x, NULL), dtype, spelled);
    s = dense(n, gelu_of(n, dense(n, x, dtype, WIDTH, 2 * WIDTH), dtype), dtype, 2 * WIDTH, WIDTH);
    return layer_norm(n, net_op(n, "Add", s, x, NULL), dtype, spelled);
}

static void run_encoder(enum mlo_dtype dtype, int64_t batch, bool spelled, double tolerance)
{
    struct net n = net_new(11);
    struct mlo_value *ids = net_input_of(&n, MLO_INT64, "ids", 2, (int64_t[]){-1, TOKENS});
    struct mlo_value *seen = net_input_of(&n, MLO_INT64, "seen", 2, (int64_t[]){-1, TOKENS});
    struct mlo_value *mask = net_op(&n, "Unsqueeze", seen, net_ints(&n, 2, (int64_t[]){1, 2}), NULL);
    mask = net_op(&n, "Sub", net_scalar(&n, dtype, 1), net_cast(&n, mask, dtype), NULL);
    mask = net_op(&n, "Mul", mask, net_scalar(&n, dtype, -10000), NULL);
    struct mlo_value *x =
        net_op(&n, "Gather", cast_constant(&n, dtype, 2, (int64_t[]){50, WIDTH}, 1), ids, NULL);
    x = net_op(&n, "Add", x, cast_constant(&n, dtype, 3, (int64_t[]){1, TOKENS, WIDTH}, 1), NULL);
    x = layer_norm(&n, x, dtype, spelled);
    x = layer(&n, x, mask, dtype, spelled);
    net_finish(&n, layer(&n, x, mask, dtype, spelled));
    struct mlo_tensor in[2] = {{0}};
    for (int i = 0; i < 2; i++) {
        MUST(mlo_tensor_init(&in[i], MLO_INT64, 2, (int64_t[]){batch, TOKENS}, err));
        for (int64_t k = 0; k < batch * TOKENS; k++)
            ((int64_t *)in[i].data)[k] = i ? k % TOKENS < 4 + k / TOKENS : k * 7 % 50;
    }
    struct cuda_schedule *s = agrees(&n, batch, spelled, in, tolerance, "an encoder");
    if (dtype ==
        MLO_FLOAT16) /* a layer: QKV, attention, product, sum with norm, two products, sum with norm */
        expect(s, 0, 8, 2, 6, 1);
    cuda_schedule_free(s);
    for (int i = 0; i < 2; i++)
        mlo_tensor_clear(&in[i]);
    mlo_model_free(n.model);
}

static void test_cuda_plan__encoder(void **state)
{
    MLO_UNUSED(state);
    run_encoder(MLO_FLOAT32, 1, true, 1e-5);
    run_encoder(MLO_FLOAT32, 2, false, 1e-5);
    run_encoder(MLO_FLOAT16, 1, false, 1e-2);
    run_encoder(MLO_FLOAT16, 3, true, 1e-2);
}

/* --- int8
 * ---------------------------------------------------------------------------------------------------- */

static struct mlo_value *zero8(struct net *n)
{
    return net_scalar(n, MLO_INT8, 0);
}

static struct mlo_value *quantized(struct net *n, struct mlo_value *x, double scale)
{
    struct mlo_value *s = net_scalar(n, MLO_FLOAT32, scale);
    x = net_op(n, "QuantizeLinear", x, s, zero8(n));
    return net_op(n, "DequantizeLinear", x, s, zero8(n));
}

/* int8 weights with a scale for each index of `axis`. */
static struct mlo_value *weights8(struct net *n, int rank, const int64_t *dims, int axis)
{
    int64_t count = dims[axis], fan = 1;
    for (int i = 0; i < rank; i++)
        fan *= i == axis ? 1 : dims[i];
    double step = 1 / (100 * sqrt((double)fan));
    struct mlo_value *q = net_numbers(n, MLO_INT8, rank, dims, -127, 127);
    struct mlo_value *s = net_numbers(n, MLO_FLOAT32, 1, &count, step, 2 * step);
    struct mlo_node *node = net_node(n, "DequantizeLinear", q, s, NULL);
    assert_true(mlo_node_set_i(node, "axis", axis));
    return node->outputs[0];
}

static struct mlo_value *conv8(struct net *n, struct mlo_value *x, const struct conv_spec *s)
{
    struct mlo_value *w = weights8(n, 4, (int64_t[]){s->oc, s->ic / s->groups, s->kernel, s->kernel}, 0);
    struct mlo_node *node = net_node(n, "Conv", x, w, net_floats(n, 1, &s->oc, 0.5f));
    net_conv_attrs(node, s);
    return node->outputs[0];
}

/* int32 sums by the library, all that follows in one chain: also a residual of floats, which is no number of
 * bytes, and a GELU. */
static void test_cuda_plan__int8_product(void **state)
{
    MLO_UNUSED(state);
    for (int with = 0; with < 2; with++) {
        struct net n = net_new(11);
        struct mlo_value *x = net_input(&n, "x", 2, (int64_t[]){5, 32}), *y;
        struct mlo_value *norm =
            net_op(&n, "LayerNormalization", x, net_floats(&n, 1, (int64_t[]){32}, 1), NULL);
        y = net_op(&n, "MatMul", quantized(&n, norm, 0.02), weights8(&n, 2, (int64_t[]){32, 32}, 1), NULL);
        y = net_op(&n, "Add", y, net_floats(&n, 1, (int64_t[]){32}, 0.5f), NULL);
        y = with ? net_op(&n, "Add", norm, y, NULL) : net_op(&n, "Sigmoid", y, NULL, NULL);
        y = quantized(&n, y, 0.03);
        net_finish(&n, net_op(&n, "MatMul", y, weights8(&n, 2, (int64_t[]){32, 16}, 1), NULL));
        struct mlo_tensor in = random_tensor(2, (int64_t[]){5, 32}, 3);
        struct cuda_schedule *s = agrees(&n, 0, true, &in, 0.02, "int8 products");
        expect(s, 0, 2, 0, 3, 0);
        for (int i = 0; i < s->step_count; i++)
            if (s->steps[i].kind == CUDA_STEP_GEMM) {
                assert_true(cuda_gemm_fuses(s->steps[i].gemm));
                assert_string_equal(s->steps[i].impl, "cublasLt");
                assert_string_equal(s->steps[i].precision, "int8");
            }
        cuda_schedule_free(s);
        mlo_tensor_clear(&in);
        mlo_model_free(n.model);
    }
}

/* --- float8
 * -------------------------------------------------------------------------------------------------- */

/* A pair around a value of that float type, which its scale has too. */
static struct mlo_value *pair8(struct net *n, enum mlo_dtype dtype, struct mlo_value *x, double scale)
{
    struct mlo_value *s = net_scalar(n, dtype, scale), *zero = net_scalar(n, MLO_FLOAT8E4M3FN, 0);
    return net_op(n, "DequantizeLinear", net_op(n, "QuantizeLinear", x, s, zero), s, zero);
}

/* Weights with one scale, or one for each column. */
static struct mlo_value *weights_float8(struct net *n, enum mlo_dtype dtype, const int64_t *dims,
                                        bool columns)
{
    int64_t count = columns ? dims[1] : 1;
    double step = 1 / (200 * sqrt((double)dims[0]));
    struct mlo_value *q = net_numbers(n, MLO_FLOAT8E4M3FN, 2, dims, -448, 448);
    struct mlo_value *s =
        columns ? net_numbers(n, dtype, 1, &count, step, 2 * step) : net_scalar(n, dtype, step);
    struct mlo_node *node = net_node(n, "DequantizeLinear", q, s, NULL);
    assert_true(mlo_node_set_i(node, "axis", 1));
    return node->outputs[0];
}

/* In float16 with one scale a tensor, cuBLASLt does all of it; with a scale a column, or in float32, it sums,
 * and a chain does the rest. What is halved after it was quantized has Casts between. */
static void test_cuda_plan__float8_products(void **state)
{
    MLO_UNUSED(state);
    enum { HALF, HALF_COLUMNS, SINGLE, HALVED, FORMS };
    static const struct {
        bool half, columns, casts;
        int gemms, chains;
        enum mlo_dtype sums;
    } forms[FORMS] = {
        [HALF] = {true, false, false, 2, 2, MLO_FLOAT16},
        [HALF_COLUMNS] = {true, true, false, 2, 3, MLO_FLOAT32},
        [SINGLE] = {false, false, false, 2, 3, MLO_FLOAT32},
        [HALVED] = {true, false, true, 2, 2, MLO_FLOAT16},
    };
    for (int f = 0; f < FORMS; f++) {
        struct net n = net_of_opset(19, 11);
        enum mlo_dtype type = forms[f].half ? MLO_FLOAT16 : MLO_FLOAT32,
                       outer = forms[f].casts ? MLO_FLOAT32 : type;
        struct mlo_value *x = net_input_of(&n, type, "x", 2, (int64_t[]){5, 32}), *y;
        y = forms[f].casts ? net_cast(&n, x, MLO_FLOAT32) : x;
        y = pair8(&n, outer, y, 0.01);
        y = forms[f].casts ? net_cast(&n, y, MLO_FLOAT16) : y;
        struct mlo_value *w = weights_float8(&n, outer, (int64_t[]){32, 48}, forms[f].columns);
        w = forms[f].casts ? net_cast(&n, w, MLO_FLOAT16) : w;
        y = net_op(&n, "MatMul", y, w, NULL);
        y = net_op(&n, "Add", y, cast_constant(&n, type, 1, (int64_t[]){48}, 0.5f), NULL);
        y = net_op(&n, "Relu", y, NULL, NULL);
        y = forms[f].casts ? net_cast(&n, y, MLO_FLOAT32) : y;
        y = pair8(&n, outer, y, 0.02);
        y = forms[f].casts ? net_cast(&n, y, MLO_FLOAT16) : y;
        w = weights_float8(&n, outer, (int64_t[]){48, 16}, forms[f].columns);
        w = forms[f].casts ? net_cast(&n, w, MLO_FLOAT16) : w;
        net_finish(&n, net_op(&n, "MatMul", y, w, NULL));
        struct mlo_tensor in = random_tensor_of(type, 2, (int64_t[]){5, 32}, 3);
        /* a tie that rounds to the other side moves a value by an eighth */
        struct cuda_schedule *s = agrees(&n, 0, true, &in, 0.04, "float8 products");
        expect(s, 0, forms[f].gemms, 0, forms[f].chains, 0);
        for (int i = 0; i < s->step_count; i++)
            if (s->steps[i].kind == CUDA_STEP_GEMM) {
                const struct cuda_gemm *g = s->steps[i].gemm;
                assert_true(cuda_gemm_fuses(g));
                assert_string_equal(s->steps[i].impl, "cublasLt");
                assert_string_equal(s->steps[i].precision, "fp8");
                assert_true(g->a == MLO_FLOAT8E4M3FN && g->b == MLO_FLOAT8E4M3FN && g->d == forms[f].sums);
                assert_true(!g->ta && g->tb && g->k % 16 == 0 && g->n % 16 == 0);
                assert_true(i > 1 || g->has_bias == (g->d == MLO_FLOAT16));
            }
        cuda_schedule_free(s);
        mlo_tensor_clear(&in);
        mlo_model_free(n.model);
    }
}

/* A Clip between what int8 and what float8 holds. */
static void test_cuda_plan__float8_behind_a_clip(void **state)
{
    MLO_UNUSED(state);
    static const double bounds[][2] = {{0, 2}, {-3, 2}};
    for (size_t b = 0; b < MLO_COUNT(bounds); b++) {
        struct net n = net_of_opset(19, 11);
        struct mlo_value *y = pair8(&n, MLO_FLOAT32, net_input(&n, "x", 2, (int64_t[]){5, 32}), 0.01);
        y = net_op(&n, "MatMul", y, weights_float8(&n, MLO_FLOAT32, (int64_t[]){32, 48}, false), NULL);
        y = net_op(&n, "Add", y, net_floats(&n, 1, (int64_t[]){48}, 5.0f), NULL);
        y = net_op(&n, "Clip", y, net_scalar(&n, MLO_FLOAT32, bounds[b][0]),
                   net_scalar(&n, MLO_FLOAT32, bounds[b][1]));
        net_finish(&n, pair8(&n, MLO_FLOAT32, y, 0.0125));
        struct mlo_tensor in = random_tensor(2, (int64_t[]){5, 32}, 3);
        cuda_schedule_free(agrees(&n, 0, true, &in, 0.08, "float8 behind a Clip"));
        mlo_tensor_clear(&in);
        mlo_model_free(n.model);
    }
}

/* Columns that the matrix units do not take are multiplied in floats, and the step says so. */
static void test_cuda_plan__float8_of_odd_columns_is_multiplied_in_floats(void **state)
{
    MLO_UNUSED(state);
    struct net n = net_of_opset(19, 11);
    struct mlo_value *x = net_input(&n, "x", 2, (int64_t[]){5, 32});
    struct mlo_value *w = weights_float8(&n, MLO_FLOAT32, (int64_t[]){32, 10}, false);
    net_finish(&n, net_op(&n, "MatMul", pair8(&n, MLO_FLOAT32, x, 0.01), w, NULL));
    struct mlo_tensor in = random_tensor(2, (int64_t[]){5, 32}, 3);
    struct cuda_schedule *s = agrees(&n, 0, true, &in, 1e-5, "a float8 product of 10 columns");
    expect(s, 0, 1, 0, 1, 0);
    assert_string_equal(s->steps[1].precision, "tf32");
    cuda_schedule_free(s);
    mlo_tensor_clear(&in);
    mlo_model_free(n.model);
}

/* The number of a code of E4M3 ("FP8 Formats for Deep Learning", Micikevicius et al., 2022, table 1). */
static double e4m3(int code)
{
    int exponent = code >> 3 & 15, low = code & 7;
    double size = exponent ? ldexp(8 + low, exponent - 10) : ldexp(low, -9);
    return (code & 0x7f) == 0x7f ? NAN : code & 0x80 ? -size : size;
}

/* The nearest code, of two the even one; beyond the largest the largest. */
static int nearest_e4m3(double x)
{
    int best = 0, sign = signbit(x) ? 0x80 : 0;
    if (isnan(x))
        return 0x7f;
    for (int code = 1; code < 0x7f; code++) {
        double here = fabs(e4m3(code) - fabs(x)), there = fabs(e4m3(best) - fabs(x));
        if (here < there || (here == there && code % 2 == 0))
            best = code;
    }
    return isinf(x) ? 0x7e | sign : best | sign;
}

/* All codes are dequantized exactly; all codes, the middle between any two and both sides of it, what is too
 * large or too small, and NaN are quantized to the code that a search finds. By the kernels' own texts. */
static void test_cuda_plan__float8_conversions_are_exact(void **state)
{
    MLO_UNUSED(state);
    enum { CODES = 256, MOST = 4 * CODES + 16 };
    static const float scales[] = {1, 0.0078125f, 3};
    float list[MOST];
    for (size_t k = 0; k < MLO_COUNT(scales); k++) {
        int count = 0;
        for (int code = 0; code < 0x7f; code++) {
            float a = (float)e4m3(code), middle = code < 0x7e ? (a + (float)e4m3(code + 1)) / 2 : 464;
            const float at[] = {a, middle, nextafterf(middle, 0), nextafterf(middle, INFINITY)};
            for (size_t i = 0; i < 2 * MLO_COUNT(at) && count < MOST; i++)
                list[count++] = (i % 2 ? -1 : 1) * at[i / 2] * scales[k];
        }
        const float edges[] = {NAN, -NAN, INFINITY, -INFINITY, 1e30f, -1e30f, 1e-30f, -1e-30f};
        memcpy(list + count, edges, sizeof edges);
        count += (int)MLO_COUNT(edges);
        struct net n = net_of_opset(19, 1);
        struct mlo_value *x = net_input(&n, "x", 1, (int64_t[]){count}),
                         *s = net_scalar(&n, MLO_FLOAT32, scales[k]);
        net_finish(&n, net_op(&n, "QuantizeLinear", x, s, net_scalar(&n, MLO_FLOAT8E4M3FN, 0)));
        struct mlo_tensor in = {0}, got[4] = {0};
        MUST(mlo_tensor_init(&in, MLO_FLOAT32, 1, (int64_t[]){count}, err));
        memcpy(in.data, list, (size_t)count * sizeof *list);
        struct cuda_schedule *schedule = lower(&n, 0);
        if (interpret_with(schedule, true, &in, got))
            for (int i = 0; i < count; i++) {
                int code = ((const uint8_t *)got[0].data)[i],
                    want = nearest_e4m3((double)(list[i] / scales[k]));
                if (code != want && !(isnan(list[i]) && (code & 0x7f) == 0x7f))
                    fail_msg("%a / %g becomes %#x, not %#x", (double)list[i], (double)scales[k], code, want);
            }
        mlo_tensor_clear(&got[0]);
        mlo_tensor_clear(&in);
        cuda_schedule_free(schedule);
        mlo_model_free(n.model);

        n = net_of_opset(19, 1);
        x = net_input_of(&n, MLO_FLOAT8E4M3FN, "x", 1, (int64_t[]){CODES});
        net_finish(&n, net_op(&n, "DequantizeLinear", x, net_scalar(&n, MLO_FLOAT32, scales[k]), NULL));
        MUST(mlo_tensor_init(&in, MLO_FLOAT8E4M3FN, 1, (int64_t[]){CODES}, err));
        for (int i = 0; i < CODES; i++)
            ((uint8_t *)in.data)[i] = (uint8_t)i;
        schedule = lower(&n, 0);
        if (interpret_with(schedule, true, &in, got))
            for (int i = 0; i < CODES; i++) {
                float y = ((const float *)got[0].data)[i], want = (float)e4m3(i) * scales[k];
                if (y != want && !(isnan(y) && isnan(want)))
                    fail_msg("code %#x becomes %g, not %g", i, (double)y, (double)want);
            }
        mlo_tensor_clear(&got[0]);
        mlo_tensor_clear(&in);
        cuda_schedule_free(schedule);
        mlo_model_free(n.model);
    }
}

/* A vector has no dim for its row or column in the result. */
static void test_cuda_plan__vectors_and_batches(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        int ra, rb;
        int64_t a[4], b[4];
    } cases[] = {{1, 3, {4}, {3, 4, 5}},
                 {1, 4, {4}, {2, 3, 4, 5}},
                 {1, 4, {4}, {1, 3, 4, 1}},
                 {4, 1, {2, 3, 5, 4}, {4}},
                 {3, 1, {3, 5, 4}, {4}}};
    for (size_t i = 0; i < MLO_COUNT(cases); i++) {
        struct net n = net_new(4);
        struct mlo_value *x = net_input(&n, "x", cases[i].ra, cases[i].a);
        struct mlo_value *w = net_floats(&n, cases[i].rb, cases[i].b, 1);
        net_finish(&n, net_op(&n, "MatMul", x, w, NULL));
        struct mlo_tensor in = random_tensor(cases[i].ra, cases[i].a, 3);
        struct cuda_schedule *s = agrees(&n, 0, true, &in, 1e-5, "a vector and a batch");
        expect(s, 0, 1, 0, 0, 0);
        cuda_schedule_free(s);
        mlo_tensor_clear(&in);
        mlo_model_free(n.model);
    }
}

/* Nothing times alpha 0 is C alone; a negative scale turns a maximum around. */
static void test_cuda_plan__zero_and_negative_factors(void **state)
{
    MLO_UNUSED(state);
    struct net n = net_new(4);
    struct mlo_node *node =
        net_node(&n, "Gemm", net_input(&n, "x", 2, (int64_t[]){3, 8}),
                 net_floats(&n, 2, (int64_t[]){8, 5}, 1), net_floats(&n, 1, (int64_t[]){5}, 1));
    assert_true(mlo_node_set_f(node, "alpha", 0));
    net_finish(&n, node->outputs[0]);
    struct mlo_tensor in = random_tensor(2, (int64_t[]){3, 8}, 3);
    cuda_schedule_free(agrees(&n, 0, true, &in, 1e-6, "a Gemm with alpha 0"));
    mlo_tensor_clear(&in);
    mlo_model_free(n.model);
    n = net_new(4);
    struct mlo_value *x = net_input_of(&n, MLO_INT8, "x", 4, (int64_t[]){1, 2, 4, 4});
    x = net_op(&n, "DequantizeLinear", x, net_scalar(&n, MLO_FLOAT32, -0.5), NULL);
    node = net_node(&n, "MaxPool", x, NULL, NULL);
    assert_true(mlo_node_set_ints(node, "kernel_shape", (int64_t[]){2, 2}, 2));
    net_finish(&n, node->outputs[0]);
    in = random_tensor_of(MLO_INT8, 4, (int64_t[]){1, 2, 4, 4}, 3);
    for (int i = 0; i < 32; i++)
        ((int8_t *)in.data)[i] = (int8_t)(i * 37);
    cuda_schedule_free(agrees(&n, 0, false, &in, 1e-6, "a maximum of what is scaled by less than 0"));
    mlo_tensor_clear(&in);
    mlo_model_free(n.model);
}

/* float32 has not all integers beyond 2^24: numbers of them are no reason to compute in it. */
static void test_cuda_plan__large_integers(void **state)
{
    MLO_UNUSED(state);
    static const int64_t numbers[] = {(int64_t)1 << 30, (int64_t)1 << 40, INT64_MAX};
    for (size_t i = 0; i < MLO_COUNT(numbers); i++)
        for (int op = 0; op < 3; op++) {
            static const char *const ops[] = {"Add", "Min", "Less"};
            const int64_t from = numbers[i] == INT64_MAX ? INT64_MAX - 9 : numbers[i] - 4;
            struct net n = net_new(4);
            struct mlo_value *x = net_input_of(&n, MLO_INT64, "x", 1, (int64_t[]){8});
            struct mlo_tensor in = {0}, got[4] = {0};
            MUST(mlo_tensor_init(&in, MLO_INT64, 1, (int64_t[]){8}, err));
            for (int k = 0; k < 8; k++)
                ((int64_t *)in.data)[k] = op ? from + k : k - 9;
            net_finish(&n, net_op(&n, ops[op], x, net_ints(&n, 1, &numbers[i]), NULL));
            for (int by_kernels = 0; by_kernels < 2; by_kernels++) {
                struct cuda_schedule *s = lower(&n, 0);
                if (!interpret_with(s, by_kernels, &in, got)) {
                    cuda_schedule_free(s);
                    break;
                }
                for (int k = 0; k < 8; k++) {
                    int64_t a = ((const int64_t *)in.data)[k], b = numbers[i];
                    int64_t want = op == 0 ? a + b : op == 1 ? MLO_MIN(a, b) : a < b;
                    assert_true(mlo_tensor_get_i64(&got[0], (size_t)k) == want);
                }
                mlo_tensor_clear(&got[0]);
                cuda_schedule_free(s);
            }
            mlo_tensor_clear(&in);
            mlo_model_free(n.model);
        }
}

/* Quantization at the edges only: inside, every product reads and writes bytes. Where a tie rounds to the
 * other side, results differ by the last step. */
static void test_cuda_plan__int8(void **state)
{
    MLO_UNUSED(state);
    struct net n = net_new(5);
    struct mlo_value *x = quantized(&n, net_input(&n, "x", 4, (int64_t[]){-1, 3, 12, 12}), 1 / 127.0), *y;
    x = net_op(&n, "Relu", conv8(&n, x, &(struct conv_spec){3, 16, 3, 2, 1, 1, 1, 12, true}), NULL, NULL);
    x = quantized(&n, x, 0.02);
    y = conv8(&n, x, &(struct conv_spec){16, 16, 3, 1, 1, 1, 1, 6, true});
    y = quantized(&n, net_op(&n, "Relu", net_op(&n, "Add", y, x, NULL), NULL, NULL), 0.03);
    y = conv8(&n, y, &(struct conv_spec){16, 16, 3, 1, 1, 1, 16, 6, true});
    y = quantized(&n, net_op(&n, "Clip", y, net_scalar(&n, MLO_FLOAT32, 0), net_scalar(&n, MLO_FLOAT32, 6)),
                  0.03);
    y = net_op(&n, "GlobalAveragePool", y, NULL, NULL);
    y = quantized(&n, net_op(&n, "Flatten", y, NULL, NULL), 0.01);
    y = net_op(&n, "MatMul", y, weights8(&n, 2, (int64_t[]){16, 32}, 1), NULL);
    net_finish(&n, net_op(&n, "Add", y, net_floats(&n, 1, (int64_t[]){32}, 0.5f), NULL));
    struct mlo_tensor in = random_tensor(4, (int64_t[]){2, 3, 12, 12}, 3);
    struct cuda_schedule *s = agrees(&n, 2, true, &in, 0.02, "an int8 net");
    /* quantize; the stem with room for more channels; what is behind a residual; depthwise by an own kernel;
     * the mean; the product, and what makes numbers of its sums */
    expect(s, 2, 1, 0, 4, 1);
    for (int i = 0; i < s->step_count; i++)
        if (s->steps[i].kind != CUDA_STEP_CHAIN)
            assert_string_equal(s->steps[i].precision, "int8");
    cuda_schedule_free(s);
    mlo_tensor_clear(&in);
    mlo_model_free(n.model);
}

/* --- memory and refusals
 * ------------------------------------------------------------------------------------- */

/* Three steps, so that the first result and the last may share memory and the two between may not. */
static struct net small_net(void)
{
    struct net n = net_new(3);
    struct mlo_value *x = net_input(&n, "x", 2, (int64_t[]){4, 64});
    for (int i = 0; i < 3; i++)
        x = net_op(&n, "MatMul", x, net_floats(&n, 2, (int64_t[]){64, 64}, 0.1f), NULL);
    net_finish(&n, x);
    return n;
}

static void test_cuda_plan__wrong_memory_is_found(void **state)
{
    MLO_UNUSED(state);
    struct net n = small_net();
    struct cuda_schedule *s = lower(&n, 0);
    struct mlo_error e = {0};
    assert_int_equal(s->step_count, 3);
    struct cuda_slot *a = &s->slots[s->steps[0].out[0]], *b = &s->slots[s->steps[1].out[0]];
    const struct cuda_slot kept = *b;
    b->offset = a->offset; /* read while it is written */
    assert_int_equal(cuda_memory_verify(s, &e), MLO_EINTERNAL);
    *b = kept;
    b->offset = s->arena_bytes; /* behind the end */
    assert_int_equal(cuda_memory_verify(s, &e), MLO_EINTERNAL);
    *b = kept;
    assert_int_equal(cuda_memory_verify(s, &e), MLO_OK);
    int slot = s->steps[0].in[0];
    s->steps[0].in[0] = s->steps[2].out[0]; /* read before it is written */
    assert_int_equal(cuda_memory_verify(s, &e), MLO_EINTERNAL);
    s->steps[0].in[0] = slot;
    assert_true(s->arena_bytes >= cuda_memory_bound(s) && cuda_memory_bound(s) >= 3 * a->size_bytes);
    cuda_schedule_free(s);
    mlo_model_free(n.model);
}

static void refused(const struct net *n, const char *node, const char *why)
{
    struct mlo_compile_options o = {0};
    struct cuda_schedule *s = NULL;
    struct mlo_error e = {0};
    assert_int_equal(cuda_schedule_new(n->model, &o, 90, &s, &e), MLO_EUNSUPPORTED);
    assert_null(s);
    if (!strstr(e.where, node) || !strstr(e.message, why))
        fail_msg("refused as '%s' (%s)", e.message, e.where);
}

static void test_cuda_plan__refusals_say_why(void **state)
{
    MLO_UNUSED(state);
    struct net n = net_new(1);
    struct mlo_value *x = net_input_of(&n, MLO_FLOAT64, "x", 1, (int64_t[]){4});
    net_finish(&n, net_op(&n, "Relu", x, NULL, NULL));
    refused(&n, "'Relu' (Relu)", "float64");
    mlo_model_free(n.model);
    n = net_new(1);
    x = net_input(&n, "x", 2, (int64_t[]){4, 4});
    net_finish(&n, net_op(&n, "Det", net_op(&n, "Relu", x, NULL, NULL), NULL, NULL));
    refused(&n, "'Det' (Det)", "no kernel computes it");
    mlo_model_free(n.model);
    n = net_new(1);
    x = net_input_of(&n, MLO_UINT8, "x", 1, (int64_t[]){4});
    net_finish(&n, net_op(&n, "Add", x, x, NULL));
    refused(&n, "'Add' (Add)", "wraps around");
    mlo_model_free(n.model);
    n = net_of_opset(19, 1);
    x = net_input(&n, "x", 1, (int64_t[]){4});
    struct mlo_node *cast = net_node(&n, "Cast", x, NULL, NULL);
    assert_true(mlo_node_set_i(cast, "to", MLO_FLOAT8E4M3FN) && mlo_node_set_i(cast, "saturate", 0));
    net_finish(&n, net_cast(&n, cast->outputs[0], MLO_FLOAT32));
    refused(&n, "'Cast' (Cast)", "does not saturate");
    mlo_model_free(n.model);
}

/* Matrix units multiply float8 from sm_89 on; for older ones the first node that has any is named. */
static void test_cuda_plan__float8_needs_sm_89(void **state)
{
    MLO_UNUSED(state);
    struct net n = net_of_opset(19, 1);
    struct mlo_value *x = net_input(&n, "x", 2, (int64_t[]){16, 32});
    struct mlo_value *w = weights_float8(&n, MLO_FLOAT32, (int64_t[]){32, 16}, false);
    net_finish(&n, net_op(&n, "MatMul", pair8(&n, MLO_FLOAT32, x, 0.01), w, NULL));
    struct mlo_compile_options o = {0};
    for (int sm = 80; sm <= 90; sm++) {
        struct cuda_schedule *s = NULL;
        struct mlo_error e = {0};
        enum mlo_status status = cuda_schedule_new(n.model, &o, sm, &s, &e);
        assert_int_equal(status, sm < 89 ? MLO_EUNSUPPORTED : MLO_OK);
        if (sm == 80 && (!strstr(e.message, "float8_e4m3fn") || !strstr(e.message, "sm_80") ||
                         !strstr(e.where, "node '") || !strstr(e.hint, "cuda:sm89")))
            fail_msg("refused as '%s' (%s; %s)", e.message, e.where, e.hint);
        cuda_schedule_free(s);
    }
    mlo_model_free(n.model);
}

/* What is observed is kept, and so is what is delivered in the middle. */
static void test_cuda_plan__observed_values_stay(void **state)
{
    MLO_UNUSED(state);
    struct net n = net_new(9);
    struct mlo_value *x = net_input(&n, "x", 2, (int64_t[]){2, 8});
    struct mlo_value *a = net_op(&n, "Exp", x, NULL, NULL), *b = net_op(&n, "Neg", a, NULL, NULL);
    net_output(&n, b);
    net_finish(&n, net_op(&n, "Tanh", b, NULL, NULL));
    const char *names[] = {a->name};
    struct mlo_compile_options o = {.observe = names, .observe_count = 1};
    struct cuda_schedule *s = NULL;
    MUST(cuda_schedule_new(n.model, &o, 90, &s, err));
    struct mlo_tensor in = random_tensor(2, (int64_t[]){2, 8}, 4), out[2] = {{0}};
    assert_true(interpret(s, &in, out));
    assert_int_equal(s->observed_tensors[0].rank, 2);
    for (int i = 0; i < 16; i++) {
        float want = -expf(((const float *)in.data)[i]);
        assert_true(fabsf(((const float *)out[0].data)[i] - want) < 1e-5f);
        assert_true(fabsf(((const float *)out[1].data)[i] - tanhf(want)) < 1e-5f);
    }
    struct cuda_slot *seen = &s->slots[s->observed_slots[0]];
    assert_true(seen->last == s->step_count);
    mlo_tensor_clear(&in);
    mlo_tensor_clear(&out[0]);
    mlo_tensor_clear(&out[1]);
    cuda_schedule_free(s);
    mlo_model_free(n.model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_plan__convolutional_net),
        cmocka_unit_test(test_cuda_plan__encoder),
        cmocka_unit_test(test_cuda_plan__int8),
        cmocka_unit_test(test_cuda_plan__int8_product),
        cmocka_unit_test(test_cuda_plan__float8_products),
        cmocka_unit_test(test_cuda_plan__float8_behind_a_clip),
        cmocka_unit_test(test_cuda_plan__float8_of_odd_columns_is_multiplied_in_floats),
        cmocka_unit_test(test_cuda_plan__float8_conversions_are_exact),
        cmocka_unit_test(test_cuda_plan__float8_needs_sm_89),
        cmocka_unit_test(test_cuda_plan__vectors_and_batches),
        cmocka_unit_test(test_cuda_plan__zero_and_negative_factors),
        cmocka_unit_test(test_cuda_plan__large_integers),
        cmocka_unit_test(test_cuda_plan__wrong_memory_is_found),
        cmocka_unit_test(test_cuda_plan__refusals_say_why),
        cmocka_unit_test(test_cuda_plan__observed_values_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
