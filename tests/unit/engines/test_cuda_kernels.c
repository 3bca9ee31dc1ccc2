/* Kernels with fixed bodies: on a CPU against the reference kernels of graph/, and under NVRTC within their
 * registers. MLOPT_CUDA_ALL: every type under NVRTC, on every architecture. Convolutions and pooling:
 * test_cuda_windows.c. */
#include "cuda_kernels.h"

/* --- products ------------------------------------------------------------------------------------------- */

struct product {
    int64_t m, n, k, batch;
    bool ta, tb, c, bias, scale, per_column, shared_b;
    enum mlo_dtype a, d;
    enum cuda_activation activation;
};

static void check_product(const struct product *p)
{
    uint32_t seed = 17;
    const int64_t a_dims[] = {p->batch, p->ta ? p->k : p->m, p->ta ? p->m : p->k};
    const int64_t b_dims[] = {p->shared_b ? 1 : p->batch, p->tb ? p->n : p->k, p->tb ? p->k : p->n};
    const int64_t d_dims[] = {p->batch, p->m, p->n};
    struct mlo_tensor a = numbers(p->a, 3, a_dims, &seed), b = numbers(p->a, 3, b_dims, &seed);
    struct mlo_tensor c = numbers(p->d, 3, d_dims, &seed),
                      bias = numbers(p->scale ? MLO_FLOAT32 : p->d, 1, &p->n, &seed), d = like(&c, p->d);
    struct mlo_tensor scale = numbers(MLO_FLOAT32, 1, &p->n, &seed), want = like(&c, p->d);
    for (int64_t i = 0; i < p->batch; i++)
        for (int64_t m = 0; m < p->m; m++)
            for (int64_t n = 0; n < p->n; n++) {
                double sum = 0;
                for (int64_t k = 0; k < p->k; k++)
                    sum += mlo_tensor_get_f64(
                               &a, (size_t)(i * p->m * p->k + (p->ta ? k * p->m + m : m * p->k + k))) *
                           mlo_tensor_get_f64(&b, (size_t)((p->shared_b ? 0 : i * p->k * p->n) +
                                                           (p->tb ? n * p->k + k : k * p->n + n)));
                size_t at = (size_t)((i * p->m + m) * p->n + n);
                sum *= 0.5;
                sum *= p->scale ? (double)((float *)scale.data)[p->per_column ? n : 0] : 1;
                sum += p->c ? mlo_tensor_get_f64(&c, at) : 0;
                sum += p->bias ? mlo_tensor_get_f64(&bias, (size_t)n) : 0;
                mlo_tensor_set_f64(&want, at, activated(p->activation, sum));
            }
    struct cuda_gemm g = {.m = p->m,
                          .n = p->n,
                          .k = p->k,
                          .batch = p->batch,
                          .ta = p->ta,
                          .tb = p->tb,
                          .lda = a_dims[2],
                          .ldb = b_dims[2],
                          .ldc = p->n,
                          .ldd = p->n,
                          .batch_a = p->m * p->k,
                          .batch_b = p->shared_b ? 0 : p->k * p->n,
                          .batch_c = p->m * p->n,
                          .batch_d = p->m * p->n,
                          .a = p->a,
                          .b = p->a,
                          .c = p->d,
                          .d = p->d,
                          .alpha = 0.5f,
                          .has_c = p->c,
                          .has_bias = p->bias,
                          .has_scale = p->scale,
                          .scale_per_column = p->per_column,
                          .activation = p->activation};
    struct cuda_kernel_use use;
    MUST(cuda_gemm_kernel(&g, &use, err));
    struct mlo_tensor *tensors[6] = {&a, &b};
    int count = 2;
    if (p->c)
        tensors[count++] = &c;
    if (p->bias)
        tensors[count++] = &bias;
    if (p->scale)
        tensors[count++] = &scale;
    tensors[count++] = &d;
    run_use(&use, tensors, count, 1);
    near(&d, &want, slack_of(p->d) + (double)p->k * (p->a == MLO_INT8 ? 0 : 2e-7), "matmul");
    struct mlo_tensor *all[] = {&a, &b, &c, &bias, &d, &scale, &want};
    for (size_t i = 0; i < MLO_COUNT(all); i++)
        mlo_tensor_clear(all[i]);
}

static void test_products__are_what_their_sums_say(void **state)
{
    MLO_UNUSED(state);
    static const struct product cases[] = {
        {33, 70, 40, 2, .a = MLO_FLOAT32, .d = MLO_FLOAT32},
        {65, 64, 17, 1, .ta = true, .c = true, .a = MLO_FLOAT32, .d = MLO_FLOAT32,
         .activation = CUDA_ACT_RELU},
        {1, 100, 30, 3, .tb = true, .bias = true, .shared_b = true, .a = MLO_FLOAT16, .d = MLO_FLOAT16,
         .activation = CUDA_ACT_GELU},
        {20, 9, 64, 1, .ta = true, .tb = true, .bias = true, .a = MLO_BFLOAT16, .d = MLO_FLOAT32},
        {17, 40, 33, 1, .tb = true, .a = MLO_INT8, .d = MLO_INT32},
        {16, 33, 50, 2, .tb = true, .scale = true, .per_column = true, .a = MLO_INT8, .d = MLO_FLOAT32},
        {1, 1, 1, 1, .scale = true, .a = MLO_FLOAT32, .d = MLO_FLOAT32},
        {4, 5, 0, 1, .bias = true, .a = MLO_FLOAT32, .d = MLO_FLOAT32},
    };
    if (no_compiler())
        return;
    for (size_t i = 0; i < MLO_COUNT(cases); i++)
        check_product(&cases[i]);
}

static void test_attention__is_softmax_between_products(void **state)
{
    MLO_UNUSED(state);
    if (no_compiler())
        return;
    for (int round = 0; round < 3; round++) {
        uint32_t seed = 3;
        bool causal = round == 1, masked = round == 2;
        enum mlo_dtype dtype = round ? MLO_FLOAT32 : MLO_FLOAT16;
        enum { N = 2, H = 3, Q = 5, D = 20, V = 40 };
        const int64_t keys = causal ? Q : 70;
        /* heads behind positions, as a projection leaves them */
        struct mlo_tensor q = numbers(dtype, 4, (int64_t[]){N, Q, H, D}, &seed),
                          k = numbers(dtype, 4, (int64_t[]){N, keys, H, D}, &seed);
        struct mlo_tensor v = numbers(dtype, 4, (int64_t[]){N, keys, H, V}, &seed),
                          mask = numbers(MLO_FLOAT32, 2, (int64_t[]){N, keys}, &seed);
        struct mlo_tensor o = {0}, want = {0};
        MUST(mlo_tensor_init(&o, dtype, 4, (int64_t[]){N, Q, H, V}, err));
        MUST(mlo_tensor_init(&want, dtype, 4, (int64_t[]){N, Q, H, V}, err));
        for (int64_t i = 0; i < keys; i += 3)
            ((float *)mask.data)[i] = -INFINITY;
        for (int n = 0; n < N; n++)
            for (int h = 0; h < H; h++)
                for (int i = 0; i < Q; i++) {
                    double scores[128], total = 0, sums[V] = {0};
                    for (int64_t j = 0; j < keys; j++) {
                        double s = 0;
                        for (int e = 0; e < D; e++)
                            s += mlo_tensor_get_f64(&q, (size_t)(((n * Q + i) * H + h) * D + e)) *
                                 mlo_tensor_get_f64(&k, (size_t)(((n * keys + j) * H + h) * D + e));
                        s = s * 2 + (masked ? (double)((float *)mask.data)[n * keys + j] : 0);
                        scores[j] = causal && j > i ? 0 : exp(s);
                        total += scores[j];
                    }
                    for (int64_t j = 0; j < keys; j++)
                        for (int e = 0; e < V; e++)
                            sums[e] += scores[j] / total *
                                       mlo_tensor_get_f64(&v, (size_t)(((n * keys + j) * H + h) * V + e));
                    for (int e = 0; e < V; e++)
                        mlo_tensor_set_f64(&want, (size_t)(((n * Q + i) * H + h) * V + e), sums[e]);
                }
        struct cuda_attention a = {.q = {dtype, 4, {N, H, Q, D}, {Q * H * D, D, H * D, 1}},
                                   .k = {dtype, 4, {N, H, keys, D}, {keys * H * D, D, H * D, 1}},
                                   .v = {dtype, 4, {N, H, keys, V}, {keys * H * V, V, H * V, 1}},
                                   .o = {dtype, 4, {N, H, Q, V}, {Q * H * V, V, H * V, 1}},
                                   .mask = {MLO_FLOAT32, 4, {N, H, Q, keys}, {keys, 0, 0, 1}},
                                   .has_mask = masked,
                                   .causal = causal,
                                   .scale = 2};
        struct cuda_kernel_use use;
        MUST(cuda_attention_kernel(&a, &use, err));
        struct mlo_tensor *tensors[] = {&q, &k, &v, masked ? &mask : &o, &o};
        run_use(&use, tensors, masked ? 5 : 4, 1);
        near(&o, &want, slack_of(dtype), "attention");
        struct mlo_tensor *all[] = {&q, &k, &v, &mask, &o, &want};
        for (size_t i = 0; i < MLO_COUNT(all); i++)
            mlo_tensor_clear(all[i]);
    }
}

/* --- moves ---------------------------------------------------------------------------------------------- */

static void test_gather__takes_rows_of_any_type(void **state)
{
    MLO_UNUSED(state);
    static const enum mlo_dtype types[] = {MLO_FLOAT16, MLO_FLOAT32, MLO_UINT8, MLO_INT64};
    if (no_compiler())
        return;
    for (size_t i = 0; i < MLO_COUNT(types); i++) {
        uint32_t seed = 4;
        int64_t inner = i == 1 ? 7 : 24, indices[] = {3, -1, 0, 9, 4, 4, -10};
        struct mlo_tensor x = numbers(types[i], 3, (int64_t[]){2, 10, inner}, &seed), y = {0};
        MUST(mlo_tensor_init(&y, types[i], 3, (int64_t[]){2, 7, inner}, err));
        struct mlo_tensor at = {
            .dtype = MLO_INT64, .rank = 1, .dims = {7}, .data = indices, .size_bytes = sizeof indices};
        struct cuda_kernel_use use = {
            .kernel = cuda_kernel_find("gather"), .n = {2, 10, inner, 7}, .types = {types[i], MLO_INT64}};
        run_use(&use, (struct mlo_tensor *[]){&x, &at, &y}, 3, 1);
        size_t row = (size_t)inner * (mlo_dtype_info(types[i])->bits / 8);
        for (size_t o = 0; o < 2; o++)
            for (size_t k = 0; k < 7; k++)
                assert_memory_equal(
                    (char *)y.data + (o * 7 + k) * row,
                    (char *)x.data + (o * 10 + (size_t)(indices[k] + (indices[k] < 0 ? 10 : 0))) * row, row);
        indices[2] = 10; /* outside: zeros, and nothing read */
        run_use(&use, (struct mlo_tensor *[]){&x, &at, &y}, 3, 1);
        for (size_t k = 0; k < row; k++)
            assert_int_equal(((char *)y.data)[2 * row + k], 0);
        mlo_tensor_clear(&x);
        mlo_tensor_clear(&y);
    }
}

static void test_transpose__turns_matrices(void **state)
{
    MLO_UNUSED(state);
    uint32_t seed = 4;
    if (no_compiler())
        return;
    struct mlo_tensor x = numbers(MLO_FLOAT16, 3, (int64_t[]){2, 45, 70}, &seed),
                      want = permuted(&x, (const int[]){0, 2, 1}), y = like(&want, MLO_FLOAT16);
    struct cuda_kernel_use use = {
        .kernel = cuda_kernel_find("transpose"), .n = {2, 45, 70}, .types = {MLO_FLOAT16}};
    run_use(&use, (struct mlo_tensor *[]){&x, &y}, 2, 1);
    assert_memory_equal(y.data, want.data, want.size_bytes);
    mlo_tensor_clear(&x);
    mlo_tensor_clear(&y);
    mlo_tensor_clear(&want);
}

/* --- along a dim ---------------------------------------------------------------------------------------- */

/* One graph of one node over x (and constants behind it) is what the kernel makes. */
static void check_node(struct net *n, struct mlo_node *node, const struct cuda_kernel_use *use,
                       const struct mlo_tensor *x, enum mlo_dtype stored, int results, double slack,
                       const char *what)
{
    struct mlo_tensor in = converted(x, MLO_FLOAT32), want[2] = {0}, got[2] = {0};
    for (int i = 0; i < node->output_count; i++)
        net_output(n, node->outputs[i]);
    MUST(mlo_graph_infer(n->graph, err));
    MUST(mlo_graph_eval(n->graph, &in, want, err));
    struct mlo_tensor from = *x;
    struct mlo_tensor *tensors[3] = {&from};
    for (int i = 0; i < results; i++) {
        got[i] = like(&want[i], i || want[i].dtype == MLO_INT64 ? MLO_INT64 : stored);
        tensors[1 + i] = &got[i];
    }
    run_use(use, tensors, 1 + results, results);
    for (int i = 0; i < results; i++) {
        near(&got[i], &want[i], i ? 0 : slack, what);
        mlo_tensor_clear(&got[i]);
    }
    for (int i = 0; i < 2; i++)
        mlo_tensor_clear(&want[i]);
    mlo_tensor_clear(&in);
    mlo_model_free(n->model);
}

static void test_searches__are_the_references(void **state)
{
    MLO_UNUSED(state);
    static const struct {
        enum mlo_dtype dtype;
        int axis;
        bool flag, last;
    } cases[] = {{MLO_FLOAT32, 2, false, false},
                 {MLO_FLOAT16, 1, true, true},
                 {MLO_INT8, 2, true, false},
                 {MLO_FLOAT32, 0, false, true}};
    if (no_compiler())
        return;
    for (size_t i = 0; i < MLO_COUNT(cases); i++) {
        uint32_t seed = 11;
        const int64_t dims[] = {3, 5, 60}, k = 3;
        int64_t outer = 1, inner = 1;
        struct mlo_tensor x = numbers(cases[i].dtype, 3, dims, &seed);
        for (size_t e = 0; e < mlo_tensor_count(&x); e++) /* many that are equal */
            mlo_tensor_set_f64(&x, e,
                               cases[i].dtype == MLO_INT8 ? (double)below(&seed, 9)
                                                          : (double)(below(&seed, 9) - 4) * 0.25);
        if (cases[i].dtype != MLO_INT8) {
            mlo_tensor_set_f64(&x, 60, NAN);
            mlo_tensor_set_f64(&x, 130, NAN);
            mlo_tensor_set_f64(&x, 200, -0.0);
            mlo_tensor_set_f64(&x, 300, -INFINITY);
        }
        for (int d = 0; d < 3; d++)
            *(d < cases[i].axis ? &outer : d > cases[i].axis ? &inner : &(int64_t){0}) *= dims[d];
        struct net n = net_new(1);
        struct mlo_node *node =
            net_node(&n, cases[i].flag ? "ArgMin" : "ArgMax", net_input(&n, "x", 3, dims), NULL, NULL);
        assert_true(mlo_node_set_i(node, "axis", cases[i].axis) &&
                    mlo_node_set_i(node, "select_last_index", cases[i].last));
        struct cuda_kernel_use use = {.kernel = cuda_kernel_find("argmax"),
                                      .n = {outer, dims[cases[i].axis], inner, cases[i].flag, cases[i].last},
                                      .types = {cases[i].dtype}};
        check_node(&n, node, &use, &x, MLO_INT64, 1, 0, "argmax");
        n = net_new(1);
        struct mlo_value *outputs[2] = {mlo_graph_add_value(n.graph, "v", NULL),
                                        mlo_graph_add_value(n.graph, "i", NULL)};
        struct mlo_value *in[2] = {net_input(&n, "x", 3, dims), net_ints(&n, 1, &k)};
        node = mlo_graph_add_node(n.graph, NULL, "", "TopK", "TopK", in, 2, outputs, 2);
        assert_true(mlo_node_set_i(node, "axis", cases[i].axis) &&
                    mlo_node_set_i(node, "largest", !cases[i].flag));
        use = (struct cuda_kernel_use){.kernel = cuda_kernel_find("topk"),
                                       .n = {outer, dims[cases[i].axis], inner, k, !cases[i].flag},
                                       .types = {cases[i].dtype}};
        check_node(&n, node, &use, &x, cases[i].dtype, 2, 0, "topk");
        n = net_new(1);
        int64_t axis = cases[i].axis;
        node = net_node(&n, "CumSum", net_input(&n, "x", 3, dims),
                        net_constant(&n, MLO_INT64, 0, NULL, &axis), NULL);
        assert_true(mlo_node_set_i(node, "exclusive", cases[i].flag) &&
                    mlo_node_set_i(node, "reverse", cases[i].last));
        use = (struct cuda_kernel_use){.kernel = cuda_kernel_find("cumsum"),
                                       .n = {outer, dims[cases[i].axis], inner, cases[i].flag, cases[i].last},
                                       .types = {cases[i].dtype}};
        if (cases[i].dtype != MLO_INT8) /* which wraps */
            check_node(&n, node, &use, &x, cases[i].dtype, 1, slack_of(cases[i].dtype), "cumsum");
        else
            mlo_model_free(n.model);
        mlo_tensor_clear(&x);
    }
}

static void test_pad__is_the_references(void **state)
{
    MLO_UNUSED(state);
    static const char *const modes[] = {"constant", "reflect", "edge", "wrap"};
    if (no_compiler())
        return;
    for (int m = 0; m < 4; m++) {
        uint32_t seed = 2;
        const int64_t dims[] = {2, 4, 6}, pads[] = {0, 1, 3, 0, 2, 5};
        struct mlo_tensor x = numbers(MLO_FLOAT32, 3, dims, &seed);
        struct net n = net_of_opset(19, 1);
        float value = 1.5f;
        struct mlo_node *node = net_node(&n, "Pad", net_input(&n, "x", 3, dims), net_ints(&n, 6, pads),
                                         net_constant(&n, MLO_FLOAT32, 0, NULL, &value));
        assert_true(mlo_node_set_s(node, "mode", modes[m]));
        struct cuda_kernel_use use = {.kernel = cuda_kernel_find("pad"),
                                      .n = {3, 2, 4, 6, 0, 0, 0, 0, 1, 3, 0, 0, 0, 2, 7, 14, 0, 0, 0, m},
                                      .f = {value},
                                      .types = {MLO_FLOAT32}};
        check_node(&n, node, &use, &x, MLO_FLOAT32, 1, 0, modes[m]);
        mlo_tensor_clear(&x);
    }
}

static void test_resize__is_the_references(void **state)
{
    MLO_UNUSED(state);
    static const char *const coordinates[] = {"half_pixel", "asymmetric", "align_corners",
                                              "pytorch_half_pixel"};
    static const char *const roundings[] = {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"};
    static const float factors[][2] = {{2, 2}, {0.5f, 3}, {1.3f, 1}, {1, 0.7f}};
    if (no_compiler())
        return;
    for (int i = 0; i < 8; i++) {
        uint32_t seed = 2;
        bool linear = i >= 4;
        const int64_t dims[] = {2, 8, 6, 10};
        const float scales[] = {1, 1, factors[i % 4][0], factors[i % 4][1]};
        const int64_t four = 4;
        struct mlo_tensor x = numbers(MLO_FLOAT32, 4, dims, &seed), xl = channels_last(&x);
        struct net n = net_new(1);
        struct mlo_value *in[] = {net_input(&n, "x", 4, dims), NULL,
                                  net_constant(&n, MLO_FLOAT32, 1, &four, scales)};
        struct mlo_node *node = net_node_of(&n, "", "Resize", in, 3);
        int how = (i + i / 4) % 4;
        assert_true(mlo_node_set_s(node, "mode", linear ? "linear" : "nearest") &&
                    mlo_node_set_s(node, "coordinate_transformation_mode", coordinates[how]) &&
                    mlo_node_set_s(node, "nearest_mode", roundings[i % 4]));
        struct mlo_tensor want = evaluated(&n, node->outputs[0], &x), wl = channels_last(&want),
                          y = like(&wl, MLO_FLOAT32);
        struct cuda_kernel_use use = {.kernel = cuda_kernel_find("resize"),
                                      .n = {2, 8, 6, 10, want.dims[2], want.dims[3], 1, linear, how, i % 4},
                                      .f = {scales[2], scales[3]},
                                      .types = {MLO_FLOAT32, MLO_FLOAT32}};
        run_use(&use, (struct mlo_tensor *[]){&xl, &y}, 2, 1);
        near(&y, &wl, linear ? 1e-6 : 0, "resize");
        struct mlo_tensor *all[] = {&x, &xl, &want, &wl, &y};
        for (size_t k = 0; k < MLO_COUNT(all); k++)
            mlo_tensor_clear(all[k]);
    }
}

static void test_embedding__adds_and_normalizes(void **state)
{
    MLO_UNUSED(state);
    if (no_compiler())
        return;
    for (int round = 0; round < 2; round++) {
        uint32_t seed = 6;
        enum mlo_dtype dtype = round ? MLO_FLOAT16 : MLO_FLOAT32;
        int64_t width = round ? 64 : 1100, rows = 7, words[7] = {3, 0, 9, -1, 5, 5, 2},
                kinds[7] = {0, 1, 1, 0, 0, 1, 0};
        struct mlo_tensor word = numbers(dtype, 2, (int64_t[]){10, width}, &seed),
                          at = numbers(dtype, 2, (int64_t[]){4, width}, &seed),
                          kind = numbers(dtype, 2, (int64_t[]){2, width}, &seed),
                          gamma = numbers(MLO_FLOAT32, 1, &width, &seed),
                          beta = numbers(MLO_FLOAT32, 1, &width, &seed), y = {0}, want = {0};
        MUST(mlo_tensor_init(&y, dtype, 2, (int64_t[]){rows, width}, err));
        MUST(mlo_tensor_init(&want, dtype, 2, (int64_t[]){rows, width}, err));
        for (int64_t r = 0; r < rows; r++) {
            double *v = calloc((size_t)width, sizeof *v), mean = 0, spread = 0;
            for (int64_t e = 0; e < width; e++) {
                v[e] = mlo_tensor_get_f64(&word,
                                          (size_t)((words[r] < 0 ? words[r] + 10 : words[r]) * width + e)) +
                       mlo_tensor_get_f64(&at, (size_t)(r % 4 * width + e)) +
                       mlo_tensor_get_f64(&kind, (size_t)(kinds[r] * width + e));
                mean += v[e] / (double)width;
            }
            for (int64_t e = 0; e < width; e++)
                spread += (v[e] - mean) * (v[e] - mean) / (double)width;
            for (int64_t e = 0; e < width; e++)
                mlo_tensor_set_f64(&want, (size_t)(r * width + e),
                                   (v[e] - mean) / sqrt(spread + 1e-5) * (double)((float *)gamma.data)[e] +
                                       (double)((float *)beta.data)[e]);
            free(v);
        }
        struct mlo_tensor iw = {.dtype = MLO_INT64, .data = words, .size_bytes = sizeof words},
                          ik = {.dtype = MLO_INT64, .data = kinds, .size_bytes = sizeof kinds};
        struct cuda_kernel_use use = {.kernel = cuda_kernel_find("embedding"),
                                      .n = {rows, width, 3, 10, 4, 2, 0, 4, 0, 1, 1},
                                      .f = {1e-5f},
                                      .types = {dtype, MLO_INT64, dtype, MLO_FLOAT32}};
        run_use(&use, (struct mlo_tensor *[]){&iw, &word, &at, &ik, &kind, &gamma, &beta, &y}, 8, 1);
        near(&y, &want, slack_of(dtype) * 2, "embedding");
        struct mlo_tensor *all[] = {&word, &at, &kind, &gamma, &beta, &y, &want};
        for (size_t k = 0; k < MLO_COUNT(all); k++)
            mlo_tensor_clear(all[k]);
    }
}

/* --- what steps say ------------------------------------------------------------------------------------- */

static void test_steps__give_kernels_that_their_slots_allow(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct cuda_slot slots[] = {{.offset = 256}, {.offset = 512}, {.offset = 1026}};
    struct cuda_schedule schedule = {.slots = slots, .slot_count = 3};
    struct cuda_chain chain = {.rank = 1,
                               .dims = {64},
                               .count = 1,
                               .code = {{.op = CUDA_OP_LOAD}},
                               .operand_count = 1,
                               .result_count = 1,
                               .operands = {{.dtype = MLO_FLOAT16, .strides = {1}}},
                               .results = {{.dtype = MLO_FLOAT16, .strides = {1}}}};
    struct cuda_step step = {.kind = CUDA_STEP_CHAIN,
                             .in = {0},
                             .out = {1},
                             .in_count = 1,
                             .out_count = 1,
                             .replaces = -1,
                             .chain = &chain};
    struct cuda_source source;
    assert_ok(cuda_step_source(&schedule, &step, &source, &err));
    assert_contains(source.text, "MLK_PACK(pack_in0, mlk_t_f16, 8)");
    assert_contains(source.text, "__restrict__ in0");
    cuda_source_clear(&source);
    step.out[0] = 2; /* a part at an odd place */
    step.replaces = 0;
    assert_ok(cuda_step_source(&schedule, &step, &source, &err));
    assert_null(strstr(source.text, "MLK_PACK(pack_in0"));
    assert_null(strstr(source.text, "__restrict__ in0"));
    cuda_source_clear(&source);
    struct cuda_conv conv = {.x = {MLO_FLOAT16, 4, {1, 8, 6, 6}, {8 * 36, 1, 48, 8}},
                             .w = {MLO_FLOAT16, 4, {16, 8, 3, 3}, {72, 1, 24, 8}},
                             .y = {MLO_FLOAT16, 4, {1, 16, 6, 6}, {16 * 36, 1, 96, 16}},
                             .spatial = 2,
                             .pad_before = {1, 1},
                             .pad_after = {1, 1},
                             .stride = {1, 1},
                             .dilation = {1, 1},
                             .groups = 1};
    step = (struct cuda_step){.kind = CUDA_STEP_CONV,
                              .in = {0, 1},
                              .out = {1},
                              .in_count = 2,
                              .out_count = 1,
                              .replaces = -1,
                              .conv = &conv};
    assert_ok(cuda_step_source(&schedule, &step, &source, &err));
    assert_string_equal(source.entry, "conv");
    cuda_source_clear(&source);
    conv.x.strides[1] = 36; /* channels first */
    assert_int_equal(cuda_step_source(&schedule, &step, &source, &err), MLO_EUNSUPPORTED);
    struct cuda_kernel_use use = {.kernel = cuda_kernel_find("conv"), .n = {1}};
    assert_int_equal(cuda_kernel_source(&use, &source, &err), MLO_EUNSUPPORTED); /* no kernel, no strides */
    assert_null(cuda_kernel_find("none"));
}

/* --- NVRTC ---------------------------------------------------------------------------------------------- */

/* Of what nets have; the others are convolutions. */
static const struct {
    const char *name;
    int from;
    enum mlo_dtype second;
    int64_t n[CUDA_KERNEL_NUMBERS];
} shapes[] = {
    {"argmax", 0, 0, {32, 1000, 1}},
    {"attention", 0, 0, {8,     12, 128, 128, 64,    64, 98304, 64, 768, 1, 98304, 64, 768, 1,
                         98304, 64, 768, 1,   98304, 64, 768,   1,  128, 0, 0,     1,  1,   0}},
    {"cumsum", 0, 0, {32, 128, 1}},
    {"embedding", 0, MLO_INT64, {4096, 768, 3, 30522, 512, 2, 0, 512, 0, 1, 1}},
    {"gather", 0, MLO_INT64, {1, 30522, 768, 1024}},
    {"matmul", 0, 0, {128,    768, 3072,  2,     0, 1, 3072, 3072, 768,           768,
                      393216, 0,   98304, 98304, 1, 1, 1,    1,    CUDA_ACT_GELU, 0}},
    {"pad", 0, 0, {4, 8, 56, 56, 64, 0, 0, 0, 1, 1, 0, 0, 0, 8, 58, 58, 64, 0, 0, 1}},
    {"pool", 23, 0, {1, 1, 0}},
    {"resize", 0, 0, {8, 64, 56, 56, 112, 112, 1, 1, 0, 0}},
    {"topk", 0, 0, {32, 1000, 1, 5, 1}},
    {"transpose", 0, 0, {16, 512, 768}},
};

static void check_rows(const struct nvrtc *n, int sm, enum mlo_dtype dtype)
{
    struct mlo_error err = {0};
    struct cuda_source source;
    for (size_t i = 0; cuda_kernel_name(i); i++) {
        const char *name = cuda_kernel_name(i);
        char what[64];
        struct cuda_kernel_use use = {
            .kernel = cuda_kernel_find(name), .f = {1, 1, 1, 1}, .types = {dtype, dtype, dtype, dtype}};
        struct window s = {.kernel = 3, .stride = 1, .pad = 1, .dilation = 1};
        const int64_t x[] = {32, 96, 56, 56};
        snprintf(what, sizeof what, "%s %s", name, mlo_dtype_name(dtype));
        geometry(use.n, x, x, &s);
        const int64_t rest[] = {CUDA_ACT_SWISH, 1, 1, 1, strcmp(name, "depthwise") == 0 ? 1 : 96, 1, 0, 0};
        memcpy(use.n + 23, rest, sizeof rest);
        for (size_t k = 0; k < MLO_COUNT(shapes); k++)
            if (strcmp(name, shapes[k].name) == 0) {
                memset(use.n + shapes[k].from, 0, sizeof use.n - (size_t)shapes[k].from * sizeof *use.n);
                memcpy(use.n + shapes[k].from, shapes[k].n,
                       sizeof use.n - (size_t)shapes[k].from * sizeof *use.n);
                use.types[1] = shapes[k].second ? shapes[k].second : dtype;
            }
        bool searches = strcmp(name, "argmax") == 0 || strcmp(name, "topk") == 0;
        if (searches && dtype == MLO_FLOAT8E4M3FN) {
            assert_int_equal(cuda_kernel_source(&use, &source, &err), MLO_EUNSUPPORTED);
            continue;
        }
        assert_ok(cuda_kernel_source(&use, &source, &err));
        check_nvrtc(n, &source, sm, what);
        cuda_source_clear(&source);
    }
}

static void test_nvrtc__takes_every_row_within_its_registers(void **state)
{
    MLO_UNUSED(state);
    struct nvrtc n;
    if (!nvrtc_open(&n))
        return;
    if (getenv("MLOPT_CUDA_ALL")) {
        static const int architectures[] = {80, 90, 100};
        static const enum mlo_dtype types[] = {MLO_FLOAT32, MLO_FLOAT16, MLO_BFLOAT16, MLO_INT8,
                                               MLO_FLOAT8E4M3FN};
        for (size_t a = 0; a < MLO_COUNT(architectures); a++)
            for (size_t t = 0; t < MLO_COUNT(types); t++)
                check_rows(&n, architectures[a], types[t]);
        return;
    }
    check_rows(&n, 80, MLO_FLOAT32);
    check_rows(&n, 90, MLO_FLOAT16);
    check_rows(&n, 100, MLO_INT8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products__are_what_their_sums_say),
        cmocka_unit_test(test_attention__is_softmax_between_products),
        cmocka_unit_test(test_gather__takes_rows_of_any_type),
        cmocka_unit_test(test_transpose__turns_matrices),
        cmocka_unit_test(test_searches__are_the_references),
        cmocka_unit_test(test_pad__is_the_references),
        cmocka_unit_test(test_resize__is_the_references),
        cmocka_unit_test(test_embedding__adds_and_normalizes),
        cmocka_unit_test(test_steps__give_kernels_that_their_slots_allow),
        cmocka_unit_test(test_nvrtc__takes_every_row_within_its_registers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
