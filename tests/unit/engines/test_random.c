/* Random small graphs on the fast numerics against the reference engine: convolutions of 1 to 3 dims,
 * products, activations, sums, pools, copies, quantized and not, values read several times, outputs in the
 * middle. MLOPT_TEST_SEED and MLOPT_TEST_ROUNDS choose others; a failure names the seed that repeats it. */
#include "qhelpers.h"

enum { VALUES_MAX = 24, ROUNDS = 60, RANK_MAX = 5 };

struct random_net {
    struct net n;
    uint32_t seed;
    int rank;
    struct {
        struct mlo_value *value;
        int64_t dims[RANK_MAX];
    } pool[VALUES_MAX];
    int count;
    bool quantized; /* somewhere: differences of a quantum may follow */
};

static int any(struct random_net *r, int low, int high)
{
    r->seed = r->seed * 1664525u + 1013904223u;
    return low + (int)((r->seed >> 10) % (uint32_t)(high - low + 1));
}

static void push(struct random_net *r, struct mlo_value *v, const int64_t *dims)
{
    if (r->count == VALUES_MAX)
        return;
    r->pool[r->count].value = v;
    memcpy(r->pool[r->count++].dims, dims, sizeof r->pool[0].dims);
}

/* Mostly the newest: chains are what is fused. */
static int pick(struct random_net *r)
{
    return any(r, 0, 3) ? r->count - 1 : any(r, 0, r->count - 1);
}

static struct mlo_value *quantize(struct random_net *r, struct mlo_value *v, bool small)
{
    static const float scales[] = {0.007f, 0.015625f, 0.03f};
    bool is_signed = any(r, 0, 1);
    int zero = any(r, 0, 2) ? (is_signed ? 0 : 128) : is_signed ? any(r, -128, 127) : any(r, 0, 255);
    r->quantized = true;
    return qdq(&r->n, v, scales[any(r, 0, small ? 1 : 2)], zero, is_signed ? MLO_INT8 : MLO_UINT8);
}

struct geometry {
    int64_t kernel[3], stride[3], dilation[3], pads[6];
};

static bool geometry(struct random_net *r, const int64_t *dims, int64_t *out, struct geometry *g, bool pool)
{
    int spatial = r->rank - 2, form = any(r, 0, 3);
    for (int i = 0; i < spatial; i++) {
        int64_t k = form == 0 ? 1 : form == 1 ? 3 : any(r, 1, 4);
        g->kernel[i] = k;
        g->stride[i] = form == 1 && any(r, 0, 1) ? 1 : any(r, 1, 3);
        g->dilation[i] = form == 3 && !pool ? any(r, 1, 3) : 1;
        for (int e = 0; e < 2; e++)
            g->pads[i + e * spatial] = form == 1      ? 1
                                       : pool         ? any(r, 0, (int)k - 1)
                                       : any(r, 0, 2) ? 0
                                                      : any(r, 0, 4);
        int64_t room = dims[2 + i] + g->pads[i] + g->pads[i + spatial] - (k - 1) * g->dilation[i] - 1;
        if (room < 0)
            return false;
        out[2 + i] = room / g->stride[i] + 1;
    }
    return true;
}

static void set_geometry(struct random_net *r, struct mlo_node *node, const struct geometry *g, bool pool)
{
    int spatial = r->rank - 2;
    assert_true(mlo_node_set_ints(node, "kernel_shape", g->kernel, spatial));
    assert_true(mlo_node_set_ints(node, "strides", g->stride, spatial));
    assert_true(mlo_node_set_ints(node, "pads", g->pads, 2 * spatial));
    if (!pool)
        assert_true(mlo_node_set_ints(node, "dilations", g->dilation, spatial));
}

static void add_conv(struct random_net *r)
{
    struct geometry g = {0};
    int at = pick(r);
    int64_t dims[RANK_MAX], w[RANK_MAX], c = r->pool[at].dims[1], groups = 1;
    memcpy(dims, r->pool[at].dims, sizeof dims);
    if (!geometry(r, r->pool[at].dims, dims, &g, false))
        return;
    static const int outs[] = {1, 3, 8, 16, 17, 24, 33, 40, 64, 70};
    dims[1] = outs[any(r, 0, 9)];
    int kind = any(r, 0, 4);
    if (kind == 0) {
        groups = c;
        dims[1] = c * any(r, 1, 2);
    } else if (kind == 1) {
        groups = c % 3 == 0 ? 3 : c % 2 == 0 ? 2 : 1;
        dims[1] = groups * any(r, 1, 24);
    } else if (kind == 2) {
        dims[1] = c; /* a residual fits */
    }
    w[0] = dims[1];
    w[1] = c / groups;
    float terms = (float)w[1];
    for (int i = 2; i < r->rank; i++) {
        w[i] = g.kernel[i - 2];
        terms *= (float)w[i];
    }
    struct mlo_value *x = r->pool[at].value, *weight, *b = NULL;
    float amplitude = sqrtf(3.0f / terms);
    if (r->quantized && any(r, 0, 3)) {
        const float *scales;
        x = quantize(r, x, true);
        weight = weights(&r->n, r->rank, w, amplitude, any(r, 0, 1) ? 127.0f : 63.0f, &scales);
        if (any(r, 0, 1))
            b = bias(&r->n, w[0], 0.015625f, scales);
    } else {
        weight = net_floats(&r->n, r->rank, w, amplitude);
        b = any(r, 0, 2) ? net_floats(&r->n, 1, &dims[1], 0.5f) : NULL;
    }
    struct mlo_node *node = net_node(&r->n, "Conv", x, weight, b);
    set_geometry(r, node, &g, false);
    assert_true(mlo_node_set_i(node, "group", groups));
    push(r, node->outputs[0], dims);
}

static void add_pool(struct random_net *r)
{
    struct geometry g = {0};
    int at = pick(r), kind = any(r, 0, 2);
    int64_t dims[RANK_MAX];
    memcpy(dims, r->pool[at].dims, sizeof dims);
    if (kind == 2) {
        for (int i = 2; i < r->rank; i++)
            dims[i] = 1;
        push(r, net_op(&r->n, "GlobalAveragePool", r->pool[at].value, NULL, NULL), dims);
        return;
    }
    if (!geometry(r, r->pool[at].dims, dims, &g, true))
        return;
    struct mlo_node *node = net_node(&r->n, kind ? "MaxPool" : "AveragePool", r->pool[at].value, NULL, NULL);
    set_geometry(r, node, &g, true);
    push(r, node->outputs[0], dims);
}

static void add_unary(struct random_net *r)
{
    static const char *const ops[] = {"Relu",      "Sigmoid",  "Tanh", "LeakyRelu", "Elu", "HardSigmoid",
                                      "HardSwish", "Softplus", "Erf",  "Identity",  "Abs", "Neg",
                                      "Clip",      "Softmax",  "Relu", "Relu"};
    int at = pick(r), op = any(r, 0, (int)MLO_COUNT(ops) - 1);
    struct mlo_value *low = NULL, *high = NULL;
    if (strcmp(ops[op], "Clip") == 0) {
        low = net_scalar(&r->n, MLO_FLOAT32, any(r, -3, 1) * 0.25);
        high = net_scalar(&r->n, MLO_FLOAT32, any(r, 0, 24) * 0.25);
    }
    push(r, net_op(&r->n, ops[op], r->pool[at].value, low, high), r->pool[at].dims);
    if (any(r, 0, 3) == 0) /* x * f(x) */
        push(r, net_op(&r->n, "Mul", r->pool[at].value, r->pool[r->count - 1].value, NULL), r->pool[at].dims);
}

static void add_binary(struct random_net *r)
{
    static const char *const ops[] = {"Add", "Add", "Add", "Mul", "Sub", "Max", "Min"};
    int at = pick(r), op = any(r, 0, (int)MLO_COUNT(ops) - 1), other = -1;
    const int64_t *dims = r->pool[at].dims;
    for (int i = 0, from = any(r, 0, r->count - 1); i < r->count && other < 0; i++)
        if (memcmp(r->pool[(from + i) % r->count].dims, dims, sizeof r->pool[0].dims) == 0)
            other = (from + i) % r->count;
    struct mlo_value *a = r->pool[at].value, *b;
    if (any(r, 0, 2)) {
        b = r->pool[other].value;
    } else {
        int64_t shape[RANK_MAX];
        int cut = any(r, 0, 1) ? 0 : any(r, 0, r->rank);
        for (int i = 0; i < r->rank; i++)
            shape[i] = any(r, 0, 1) ? 1 : dims[i];
        if (cut == 0)
            shape[0] = 1;
        b = net_floats(&r->n, r->rank - cut, shape + cut, 1.0f);
    }
    if (strcmp(ops[op], "Max") && strcmp(ops[op], "Min") && r->quantized && any(r, 0, 2) == 0) {
        a = quantize(r, a, false);
        b = b->constant ? b : quantize(r, b, false);
    }
    bool swap = any(r, 0, 1);
    push(r, net_op(&r->n, ops[op], swap ? b : a, swap ? a : b, NULL), dims);
}

static void add_norm(struct random_net *r)
{
    int at = pick(r);
    const int64_t *dims = r->pool[at].dims;
    struct mlo_value *in[5] = {r->pool[at].value};
    for (int i = 1; i < 5; i++) {
        in[i] = net_floats(&r->n, 1, &dims[1], 0.5f);
        float *x = in[i]->constant->data;
        for (int64_t k = 0; k < dims[1] && i == 4; k++)
            x[k] = fabsf(x[k]) + 0.5f;
    }
    struct mlo_value *y = mlo_graph_add_value(r->n.graph, "bn", NULL);
    assert_non_null(mlo_graph_add_node(r->n.graph, NULL, "", "BatchNormalization", "bn", in, 5, &y, 1));
    push(r, y, dims);
}

/* Rows of the last dim times a constant; with more behind it than the pool's own ops. */
static void add_product(struct random_net *r)
{
    int at = pick(r);
    int64_t dims[RANK_MAX], k = r->pool[at].dims[r->rank - 1], n = any(r, 1, 70);
    memcpy(dims, r->pool[at].dims, sizeof dims);
    struct mlo_value *x = r->pool[at].value, *w;
    dims[r->rank - 1] = n;
    float amplitude = sqrtf(3.0f / (float)k);
    if (r->quantized && any(r, 0, 2)) {
        struct mlo_tensor q = {0};
        MUST(mlo_tensor_init(&q, MLO_INT8, 2, (int64_t[]){k, n}, err));
        for (size_t i = 0; i < mlo_tensor_count(&q); i++)
            ((int8_t *)q.data)[i] = (int8_t)(127.0f * net_random(&r->n.seed));
        x = quantize(r, x, true);
        w = net_op(&r->n, "DequantizeLinear", net_take(&r->n, "q", &q),
                   net_scalar(&r->n, MLO_FLOAT32, (double)amplitude / 127), net_scalar(&r->n, MLO_INT8, 0));
    } else {
        w = net_floats(&r->n, 2, (int64_t[]){k, n}, amplitude);
    }
    struct mlo_value *y = net_op(&r->n, "MatMul", x, w, NULL);
    if (any(r, 0, 1))
        y = net_op(&r->n, "Add", y, net_floats(&r->n, 1, &n, 0.5f), NULL);
    push(r, y, dims);
}

/* Of channels: two values or one value twice; parts of one. */
static void add_copy(struct random_net *r)
{
    int at = pick(r);
    int64_t dims[RANK_MAX];
    memcpy(dims, r->pool[at].dims, sizeof dims);
    if (any(r, 0, 1)) {
        struct mlo_node *node = net_node(&r->n, "Concat", r->pool[at].value, r->pool[at].value, NULL);
        assert_true(mlo_node_set_i(node, "axis", any(r, 0, 1) ? 1 : 1 - r->rank));
        dims[1] *= 2;
        if (dims[1] <= 140)
            push(r, node->outputs[0], dims);
    } else {
        int axis = any(r, 1, r->rank - 1);
        int64_t from = any(r, 0, (int)dims[axis] - 1), to = any(r, (int)from + 1, (int)dims[axis]);
        struct mlo_value *in[] = {r->pool[at].value, net_ints(&r->n, 1, &from), net_ints(&r->n, 1, &to),
                                  net_ints(&r->n, 1, (int64_t[]){axis})};
        struct mlo_value *y = mlo_graph_add_value(r->n.graph, "slice", NULL);
        assert_non_null(mlo_graph_add_node(r->n.graph, NULL, "", "Slice", "slice", in, 4, &y, 1));
        dims[axis] = to - from;
        push(r, y, dims);
    }
}

static void add_quantize(struct random_net *r)
{
    int at = pick(r);
    if (r->quantized)
        push(r, quantize(r, r->pool[at].value, false), r->pool[at].dims);
}

static struct random_net build(uint32_t seed, int64_t *in_dims)
{
    static void (*const adds[])(struct random_net *) = {
        add_conv, add_conv,    add_conv, add_unary, add_unary,    add_binary,  add_binary,
        add_norm, add_product, add_copy, add_pool,  add_quantize, add_quantize};
    struct random_net r = {.n = net_new(seed), .seed = seed * 2654435761u + 1};
    for (int i = 0; i < 4; i++)
        any(&r, 0, 1);
    static const int channels[] = {1, 3, 5, 8, 16, 24, 33, 48, 64};
    r.rank = any(&r, 0, 2) ? 4 : any(&r, 0, 1) ? 3 : 5;
    r.quantized = any(&r, 0, 1);
    memset(in_dims, 0, RANK_MAX * sizeof *in_dims);
    in_dims[0] = any(&r, 1, 3);
    in_dims[1] = channels[any(&r, 0, 8)];
    for (int i = 2; i < r.rank; i++)
        in_dims[i] = any(&r, 1, r.rank == 3 ? 40 : r.rank == 4 ? 13 : 6);
    push(&r, net_input(&r.n, "x", r.rank, in_dims), in_dims);
    for (int more = any(&r, 1, 9); more > 0 && r.count < VALUES_MAX - 2; more--)
        adds[any(&r, 0, (int)MLO_COUNT(adds) - 1)](&r);
    if (r.count == 1)
        push(&r, net_op(&r.n, "Relu", r.pool[0].value, NULL, NULL), in_dims);
    net_output(&r.n, r.pool[r.count - 1].value);
    if (any(&r, 0, 2) == 0 && r.count > 2)
        net_output(&r.n, r.pool[any(&r, 1, r.count - 2)].value);
    MUST(mlo_graph_infer(r.n.graph, err));
    MUST(mlo_graph_verify(r.n.graph, err));
    return r;
}

/* All outputs of a run. */
static void run_all(const char *engine, const struct mlo_model *model, unsigned threads,
                    const struct mlo_tensor *in, struct mlo_tensor out[4])
{
    struct mlo_compile_options o = {.threads = threads};
    const struct mlo_engine *e;
    struct mlo_plan *plan = NULL;
    struct mlo_program *program = NULL;
    MUST(mlo_engine_find(engine, &e, err));
    MUST(e->compile(model, &o, &plan, err));
    if (getenv("MLOPT_TEST_PRINT")) {
        json_t *d = NULL;
        MUST(e->describe(plan, &d, err));
        char *text = json_dumps(json_object_get(d, "nodes"), JSON_INDENT(1));
        print_message("%s\n", text);
        free(text);
        json_decref(d);
    }
    MUST(e->load(plan, &program, err));
    MUST(e->run(program, in, out, err));
    MUST(e->run(program, in, out, err));
    e->unload(program);
    e->free_plan(plan);
}

/* The graph as text, for who has a failure to look into. */
static void print_graph(const struct mlo_graph *g)
{
    for (int i = 0; i < g->node_count; i++) {
        const struct mlo_node *n = g->nodes[i];
        char line[600];
        size_t used = 0;
        for (int k = -1; k < n->input_count; k++) {
            const struct mlo_value *v = k < 0 ? n->outputs[0] : n->inputs[k];
            if (!v)
                continue;
            used += (size_t)snprintf(line + used, sizeof line - used, " %d%s%s[", v->index,
                                     v->is_output ? "(out)" : "", v->constant ? "c" : "");
            for (int d = 0; d < v->type.rank; d++)
                used += (size_t)snprintf(line + used, sizeof line - used, "%s%lld", d ? "," : "",
                                         (long long)v->type.dims[d].value);
            used += (size_t)snprintf(line + used, sizeof line - used, k < 0 ? "] = %s" : "]%s",
                                     k < 0 ? n->op_type : "");
            if (v->constant && mlo_tensor_count(v->constant) == 1)
                used += (size_t)snprintf(line + used, sizeof line - used, "=%g",
                                         mlo_tensor_get_f64(v->constant, 0));
        }
        print_message("%s\n", line);
    }
}

static void compare_output(const struct mlo_tensor *got, const struct mlo_tensor *want, bool quantized,
                           uint32_t seed, unsigned threads, int output)
{
    size_t count = mlo_tensor_count(want);
    double largest = 0, sum = 0, most = 0;
    if (!mlo_tensor_same_shape(got, want) || got->dtype != want->dtype)
        fail_msg("seed %u: the shape of output %d differs", seed, output);
    for (size_t i = 0; i < count; i++)
        largest = fmax(largest, fabs(mlo_tensor_get_f64(want, i)));
    for (size_t i = 0; i < count; i++) {
        double a = mlo_tensor_get_f64(got, i), b = mlo_tensor_get_f64(want, i), d = fabs(a - b);
        if (isnan(a) != isnan(b) || (!isnan(d) && !quantized && d > 2e-4 * (largest + 0.1)))
            fail_msg("seed %u, %u threads, output %d: element %zu is %.9g, the reference has %.9g", seed,
                     threads, output, i, a, b);
        sum += isnan(d) ? 0 : d;
        most = fmax(most, isnan(d) ? 0 : d);
    }
    if (sum > 0.01 * (double)count * (largest + 0.1) || most > 0.15 * (largest + 0.2))
        fail_msg("seed %u, %u threads, output %d: off by %g on average and %g at most, of %g", seed, threads,
                 output, sum / (double)count, most, largest);
}

static void one_round(uint32_t seed)
{
    int64_t dims[RANK_MAX];
    struct random_net r = build(seed, dims);
    struct mlo_tensor in = random_tensor(r.rank, dims, seed + 1), want[4] = {0};
    run_all("reference", r.n.model, 1, &in, want);
    for (unsigned threads = 1; threads <= 3; threads++) {
        struct mlo_tensor got[4] = {0};
        run_all("cpu", r.n.model, threads, &in, got);
        if (getenv("MLOPT_TEST_PRINT"))
            print_graph(r.n.graph);
        for (int i = 0; i < r.n.graph->output_count; i++)
            compare_output(&got[i], &want[i], r.quantized, seed, threads, i);
        for (int i = 0; i < 4; i++)
            mlo_tensor_clear(&got[i]);
    }
    for (int i = 0; i < 4; i++)
        mlo_tensor_clear(&want[i]);
    mlo_tensor_clear(&in);
    mlo_model_free(r.n.model);
}

static uint32_t number(const char *name, uint32_t otherwise)
{
    const char *text = getenv(name);
    return text ? (uint32_t)strtoul(text, NULL, 10) : otherwise;
}

static void test_graphs__equal_the_reference(void **state)
{
    MLO_UNUSED(state);
    uint32_t seed = number("MLOPT_TEST_SEED", 1), rounds = number("MLOPT_TEST_ROUNDS", ROUNDS);
    for (uint32_t i = 0; i < rounds; i++)
        one_round(seed + i);
}

int main(void)
{
    setenv("MLOPT_CODEGEN", "off", 0); /* compiling kernels would take longer than all the rest */
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_graphs__equal_the_reference)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
