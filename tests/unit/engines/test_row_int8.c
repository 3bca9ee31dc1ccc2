/* Products of one row: the kernels against a plain loop, bit for bit, and nets of them against the reference
 * engine. */
#include "engines/cpu/fast/row_int8_impl.h"
#include "qhelpers.h"

enum { MAX_BLOCKS = 9, GUARD = 0x5a };

static uint32_t seed = 4711;

static int any(int low, int high)
{
    seed = seed * 1664525u + 1013904223u;
    return low + (int)((seed >> 8) % (uint32_t)(high - low + 1));
}

struct sample {
    struct row8 row;
    uint8_t x[ROW8_DEPTH_MAX + 16];
    int8_t w[MAX_BLOCKS * ROW8_COLUMNS][ROW8_DEPTH_MAX];
    char packed[MAX_BLOCKS * ROW8_COLUMNS * ROW8_DEPTH_MAX * 2];
    int32_t numbers[3 * MAX_BLOCKS * ROW8_COLUMNS];
    union {
        uint8_t bytes[MAX_BLOCKS * ROW8_COLUMNS * 4 + 64];
        float floats[MAX_BLOCKS * ROW8_COLUMNS + 16];
    } y, want;
};

static void pack(struct sample *s, size_t each)
{
    memset(s->packed, 0, sizeof s->packed);
    for (size_t o = 0; o < s->row.blocks * ROW8_COLUMNS; o++)
        for (size_t k = 0; k < s->row.depth; k++) {
            size_t at = (o / ROW8_COLUMNS * s->row.groups + k / each) * ROW8_COLUMNS + o % ROW8_COLUMNS;
            if (each == 4)
                ((int8_t *)s->packed)[at * 4 + k % 4] = s->w[o][k];
            else
                ((int16_t *)(void *)s->packed)[at * 2 + k % 2] = s->w[o][k];
        }
}

static void fill(struct sample *s, const struct row8_kernels *k)
{
    const size_t depth = (size_t)(any(0, 3) ? any(1, 80) : any(1, ROW8_DEPTH_MAX)),
                 blocks = (size_t)any(1, MAX_BLOCKS);
    const size_t groups = (depth + k->group_depth - 1) / k->group_depth, columns = blocks * ROW8_COLUMNS;
    const bool extreme = any(0, 3) == 0, powers = any(0, 1) != 0; /* exact products meet ties of rounding */
    const bool is_signed = any(0, 1) != 0;
    memset(&s->row, 0, sizeof s->row);
    for (size_t i = 0; i < sizeof s->x; i++)
        s->x[i] = (uint8_t)(extreme ? any(0, 1) * 255 : any(0, 255));
    for (size_t o = 0; o < columns; o++)
        for (size_t i = 0; i < depth; i++)
            s->w[o][i] = (int8_t)(extreme ? any(0, 1) * 255 - 128 : any(-128, 127));
    float *scales = (float *)(void *)(s->numbers + columns), *biases = scales + columns;
    const float typical = 60.0f / (73.0f * 73.0f * sqrtf((float)depth));
    for (size_t o = 0; o < columns; o++) {
        s->numbers[o] = any(-100000, 100000);
        scales[o] = powers ? ldexpf(1.0f, -any(1, 10)) : typical * (float)any(500, 2000) / 1000.0f;
        biases[o] = powers ? (float)any(-40, 40) * 0.5f : (float)any(-30000, 30000) / 1000.0f;
    }
    s->row = (struct row8){.depth = depth,
                           .groups = (groups + ROW8_GROUPS - 1) / ROW8_GROUPS * ROW8_GROUPS,
                           .blocks = blocks,
                           .flip = any(0, 1) != 0,
                           .x = s->x,
                           .weights = s->packed,
                           .numbers = s->numbers,
                           .floats = any(0, 2) == 0,
                           .low = any(0, 1) ? -INFINITY : -3.0f,
                           .high = any(0, 1) ? INFINITY : 6.0f,
                           .zero_point = is_signed ? any(-128, 127) : any(0, 255),
                           .lowest = is_signed ? -128 : 0,
                           .highest = is_signed ? 127 : 255,
                           .y = &s->y};
    if (any(0, 2) == 0) {
        s->row.lowest = any(0, 20);
        s->row.highest = any(30, 120);
    }
    pack(s, k->group_depth);
}

static void expect(struct sample *s)
{
    const struct row8 *r = &s->row;
    const size_t columns = r->blocks * ROW8_COLUMNS;
    const float *scales = (const float *)(const void *)(s->numbers + columns), *biases = scales + columns;
    for (size_t o = 0; o < columns; o++) {
        int32_t sum = s->numbers[o];
        for (size_t k = 0; k < r->depth; k++)
            sum += (s->x[k] ^ (r->flip ? 0x80 : 0)) * s->w[o][k];
        const float v = fmaf((float)sum, scales[o], biases[o]);
        if (r->floats) {
            s->want.floats[o] = fmaxf(r->low, fminf(r->high, v));
        } else {
            const long q = lrintf(v) + r->zero_point;
            s->want.bytes[o] = (uint8_t)MLO_MAX((long)r->lowest, MLO_MIN((long)r->highest, q));
        }
    }
}

static void test_kernels__equal_a_plain_loop(void **state)
{
    MLO_UNUSED(state);
    static struct sample s;
    for (size_t i = 0; i < MLO_COUNT(test_isas); i++) {
        const struct row8_kernels *k = row8_kernels_for(test_isas[i]);
        if (test_isas[i] > mlo_isa_current())
            continue;
        assert_non_null(k);
        for (int n = 0; n < 400; n++) {
            fill(&s, k);
            memset(&s.y, GUARD, sizeof s.y);
            memset(&s.want, GUARD, sizeof s.want);
            expect(&s);
            k->run(&s.row);
            for (size_t b = 0; b < sizeof s.y; b++)
                if (s.y.bytes[b] != s.want.bytes[b])
                    fail_msg("%s: %zu deep, %zu blocks, %s: byte %zu is %u, wanted %u", k->name, s.row.depth,
                             s.row.blocks, s.row.floats ? "floats" : "bytes", b, s.y.bytes[b],
                             s.want.bytes[b]);
        }
    }
    assert_null(row8_kernels_for(MLO_ISA_GENERIC));
}

/* x -> Gemm [k, n] with int8 weights up to 127, Relu and quantization behind it. */
static struct mlo_value *layer(struct net *n, struct mlo_value *x, float x_scale, int64_t k, int64_t columns)
{
    const float *scales;
    struct mlo_value *w = weights(n, 2, (int64_t[]){columns, k}, 2.0f / sqrtf((float)k), 127.0f, &scales);
    struct mlo_node *gemm = net_node(n, "Gemm", x, w, bias(n, columns, x_scale, scales));
    assert_true(mlo_node_set_i(gemm, "transB", 1));
    return gemm->outputs[0];
}

/* All of a small net is such steps, on every instruction set, for weights that would saturate 16 bits too:
 * and then the sums are exact. */
static void check_net(const int64_t *sizes, int layers, enum mlo_dtype dtype, int zero_point, bool sigmoid)
{
    struct net n = net_new(5);
    struct mlo_value *x = qdq(&n, net_input(&n, "x", 2, (int64_t[]){1, sizes[0]}), 0.008f, zero_point, dtype);
    float scale = 0.008f;
    for (int i = 0; i + 1 < layers; i++) {
        x = net_op(&n, "Relu", layer(&n, x, scale, sizes[i], sizes[i + 1]), NULL, NULL);
        scale = 0.015f;
        x = qdq(&n, x, scale, dtype == MLO_INT8 ? -128 : 0, dtype);
    }
    x = layer(&n, x, scale, sizes[layers - 1], sizes[layers]);
    net_finish(&n, sigmoid ? net_op(&n, "Sigmoid", x, NULL, NULL) : x);
    struct mlo_tensor in = random_tensor(2, (int64_t[]){1, sizes[0]}, 9);
    char what[64];
    snprintf(what, sizeof what, "%d layers of %s, zero point %d", layers, mlo_dtype_name(dtype), zero_point);
    check_on_every_isa(&n, &in, 2e-6, "int8", layers, what);
    json_t *d = NULL;
    struct mlo_tensor got = run_model("cpu", n.model, &(struct mlo_compile_options){.threads = 1}, &in, &d);
    for (size_t i = 0; i < json_array_size(json_object_get(d, "nodes")); i++) {
        const json_t *node = json_array_get(json_object_get(d, "nodes"), i);
        if (strcmp(mlo_json_str(node, "op", ""), "Gemm") == 0)
            assert_memory_equal(mlo_json_str(node, "impl", ""), "row:", 4);
    }
    json_decref(d);
    mlo_tensor_clear(&got);
    mlo_tensor_clear(&in);
    mlo_model_free(n.model);
}

static void test_nets__of_one_row_are_exact(void **state)
{
    MLO_UNUSED(state);
    need_isa(MLO_ISA_AVX2);
    check_net((int64_t[]){64, 32, 16, 8, 1}, 4, MLO_UINT8, 128, true);
    check_net((int64_t[]){64, 32, 16, 8, 1}, 4, MLO_INT8, 3, true);
    check_net((int64_t[]){7, 5, 3}, 2, MLO_UINT8, 100, false);
    check_net((int64_t[]){13, 100, 33}, 2, MLO_INT8, -7, false);
    check_net((int64_t[]){1, 1}, 1, MLO_UINT8, 128, false);
    check_net((int64_t[]){1023, 16, 1000}, 2, MLO_UINT8, 128, false);
}

/* Two rows, or more weights than are few, are no such product. */
static void test_products__that_are_larger_are_not(void **state)
{
    MLO_UNUSED(state);
    struct mlo_plan plan = {.isa = MLO_ISA_AVX2};
    struct tile_product p = {
        .type = TILE_U8S8, .batch = 1, .groups = 1, .in_channels = 64, .out_channels = 32};
    for (int i = 0; i < 3; i++)
        p.in[i] = p.out[i] = p.kernel[i] = p.stride[i] = p.dilation[i] = 1;
    assert_true(row8_supports(&plan, &p));
    p.in[2] = p.out[2] = 2;
    assert_false(row8_supports(&plan, &p));
    p.in[2] = p.out[2] = 1;
    p.out_channels = ROW8_WEIGHTS_MAX / 64 + 1;
    assert_false(row8_supports(&plan, &p));
    p.in_channels = ROW8_DEPTH_MAX + 1;
    p.out_channels = 1;
    assert_false(row8_supports(&plan, &p));
    p.in_channels = ROW8_DEPTH_MAX;
    assert_true(row8_supports(&plan, &p));
    p.type = TILE_F32;
    assert_false(row8_supports(&plan, &p));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kernels__equal_a_plain_loop),
        cmocka_unit_test(test_nets__of_one_row_are_exact),
        cmocka_unit_test(test_products__that_are_larger_are_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
