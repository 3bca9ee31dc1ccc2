/* Small models and data for the engines' tests. */
#ifndef MLO_TEST_ENGINES_HELPERS_H
#define MLO_TEST_ENGINES_HELPERS_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engines/engines_impl.h"
#include "tests/plan_copy.h"

#define MUST(expr)                                                                                           \
    do {                                                                                                     \
        struct mlo_error must_err = {0}, *err = &must_err;                                                   \
        if ((expr) != MLO_OK)                                                                                \
            fail_msg("%s: %s (%s) %s", #expr, err->message, err->where, err->hint);                          \
    } while (0)

/* Nets of tests are small, and are to be split all the same. */
__attribute__((constructor)) static void split_all(void)
{
    mlo_cpu_splits_all = true;
}

struct net {
    struct mlo_model *model;
    struct mlo_graph *graph;
    uint32_t seed;
};

static inline float net_random(uint32_t *seed) /* in [-1, 1) */
{
    *seed = *seed * 1664525u + 1013904223u;
    return (float)(*seed >> 8) / 8388608.0f - 1.0f;
}

static inline struct net net_of_opset(int64_t opset, uint32_t seed)
{
    struct net n = {.seed = seed};
    MUST(mlo_model_new(opset, &n.model, err));
    n.graph = n.model->graph;
    return n;
}

static inline struct net net_new(uint32_t seed)
{
    return net_of_opset(17, seed);
}

/* One that may have nodes of com.microsoft. */
static inline struct net ms_net(int64_t opset, uint32_t seed)
{
    struct net n = net_of_opset(opset, seed);
    struct mlo_opset *sets = mlo_arena_calloc(n.model->arena, 2, sizeof *sets);
    assert_non_null(sets);
    sets[0] = n.model->opsets[0];
    sets[1] = (struct mlo_opset){"com.microsoft", 1};
    n.model->opsets = sets;
    n.model->opset_count = 2;
    return n;
}

static inline struct mlo_type net_type(enum mlo_dtype dtype, int rank, const int64_t *dims)
{
    struct mlo_type t = {.dtype = dtype, .rank = rank};
    for (int i = 0; i < rank; i++)
        t.dims[i] = (struct mlo_dim){dims[i], dims[i] < 0 ? "batch" : NULL};
    return t;
}

/* A dim below 0 is the symbolic "batch". */
static inline struct mlo_value *net_input_of(struct net *n, enum mlo_dtype dtype, const char *name, int rank,
                                             const int64_t *dims)
{
    struct mlo_type t = net_type(dtype, rank, dims);
    struct mlo_value *v = mlo_graph_add_value(n->graph, name, &t);
    assert_non_null(v);
    MUST(mlo_graph_add_input(n->graph, v, err));
    return v;
}

static inline struct mlo_value *net_input(struct net *n, const char *name, int rank, const int64_t *dims)
{
    return net_input_of(n, MLO_FLOAT32, name, rank, dims);
}

static inline struct mlo_value *net_take(struct net *n, const char *name, struct mlo_tensor *t)
{
    struct mlo_value *v = mlo_graph_add_constant_take(n->graph, name, t);
    assert_non_null(v);
    return v;
}

/* A copy of `data`. */
static inline struct mlo_value *net_constant(struct net *n, enum mlo_dtype dtype, int rank,
                                             const int64_t *dims, const void *data)
{
    struct mlo_tensor t = {0};
    MUST(mlo_tensor_init(&t, dtype, rank, dims, err));
    memcpy(t.data, data, t.size_bytes);
    return net_take(n, "c", &t);
}

static inline struct mlo_value *net_ints(struct net *n, int64_t count, const int64_t *values)
{
    return net_constant(n, MLO_INT64, 1, &count, values);
}

/* Numbers of any type between the two, rounded and clamped as the type wants it. */
static inline struct mlo_value *net_numbers(struct net *n, enum mlo_dtype dtype, int rank,
                                            const int64_t *dims, double low, double high)
{
    struct mlo_tensor t = {0};
    MUST(mlo_tensor_init(&t, dtype, rank, dims, err));
    for (size_t i = 0; i < mlo_tensor_count(&t); i++)
        mlo_tensor_set_f64(&t, i, low + (high - low) * (0.5 + 0.5 * (double)net_random(&n->seed)));
    return net_take(n, "numbers", &t);
}

static inline struct mlo_value *net_floats(struct net *n, int rank, const int64_t *dims, float amplitude)
{
    struct mlo_tensor t = {0};
    MUST(mlo_tensor_init(&t, MLO_FLOAT32, rank, dims, err));
    for (size_t i = 0; i < mlo_tensor_count(&t); i++)
        ((float *)t.data)[i] = amplitude * net_random(&n->seed);
    return net_take(n, "c", &t);
}

static inline struct mlo_value *net_scalar(struct net *n, enum mlo_dtype dtype, double value)
{
    struct mlo_tensor t = {0};
    MUST(mlo_tensor_init(&t, dtype, 0, NULL, err));
    mlo_tensor_set_f64(&t, 0, value);
    return net_take(n, "s", &t);
}

/* A node of any domain with one output; an input may be NULL. */
static inline struct mlo_node *net_node_of(struct net *n, const char *domain, const char *op,
                                           struct mlo_value *const *in, int count)
{
    struct mlo_value *out = mlo_graph_add_value(n->graph, op, NULL);
    assert_non_null(out);
    struct mlo_node *node = mlo_graph_add_node(n->graph, NULL, domain, op, op, in, count, &out, 1);
    assert_non_null(node);
    return node;
}

/* The same of ONNX; inputs end with NULL. */
static inline struct mlo_node *net_node(struct net *n, const char *op, struct mlo_value *a,
                                        struct mlo_value *b, struct mlo_value *c)
{
    return net_node_of(n, "", op, (struct mlo_value *[]){a, b, c}, c ? 3 : b ? 2 : 1);
}

static inline struct mlo_value *net_op(struct net *n, const char *op, struct mlo_value *a,
                                       struct mlo_value *b, struct mlo_value *c)
{
    return net_node(n, op, a, b, c)->outputs[0];
}

static inline struct mlo_value *net_cast(struct net *n, struct mlo_value *x, enum mlo_dtype to)
{
    struct mlo_node *cast = net_node(n, "Cast", x, NULL, NULL);
    assert_true(mlo_node_set_i(cast, "to", to));
    return cast->outputs[0];
}

struct conv_spec {
    int64_t ic, oc, kernel, stride, pad, dilation, groups, size;
    bool bias;
};

static inline void net_conv_attrs(struct mlo_node *node, const struct conv_spec *s)
{
    assert_true(mlo_node_set_ints(node, "kernel_shape", (int64_t[]){s->kernel, s->kernel}, 2));
    assert_true(mlo_node_set_ints(node, "strides", (int64_t[]){s->stride, s->stride}, 2));
    assert_true(mlo_node_set_ints(node, "pads", (int64_t[]){s->pad, s->pad, s->pad, s->pad}, 4));
    assert_true(mlo_node_set_ints(node, "dilations", (int64_t[]){s->dilation, s->dilation}, 2));
    assert_true(mlo_node_set_i(node, "group", s->groups));
}

static inline struct mlo_value *net_conv(struct net *n, struct mlo_value *x, const struct conv_spec *s)
{
    int64_t w[] = {s->oc, s->ic / s->groups, s->kernel, s->kernel};
    float amplitude = sqrtf(3.0f / (float)(w[1] * w[2] * w[3]));
    struct mlo_value *weights = net_floats(n, 4, w, amplitude);
    struct mlo_value *bias = s->bias ? net_floats(n, 1, &s->oc, 0.5f) : NULL;
    struct mlo_node *node = net_node(n, "Conv", x, weights, bias);
    net_conv_attrs(node, s);
    return node->outputs[0];
}

static inline void net_output(struct net *n, struct mlo_value *v)
{
    MUST(mlo_graph_add_output(n->graph, v, err));
}

static inline void net_finish(struct net *n, struct mlo_value *v)
{
    net_output(n, v);
    MUST(mlo_graph_infer(n->graph, err));
    MUST(mlo_graph_verify(n->graph, err));
}

static inline struct mlo_tensor random_tensor_of(enum mlo_dtype dtype, int rank, const int64_t *dims,
                                                 uint32_t seed)
{
    struct mlo_tensor t = {0};
    MUST(mlo_tensor_init(&t, dtype, rank, dims, err));
    for (size_t i = 0; i < mlo_tensor_count(&t); i++)
        mlo_tensor_set_f64(&t, i, (double)net_random(&seed));
    return t;
}

static inline struct mlo_tensor random_tensor(int rank, const int64_t *dims, uint32_t seed)
{
    return random_tensor_of(MLO_FLOAT32, rank, dims, seed);
}

/* The plan out of a file gives the same bits. */
static inline void check_saved(const struct mlo_engine *e, const struct mlo_plan *plan, bool all_kinds,
                               const struct mlo_tensor *inputs, const struct mlo_tensor *want, int outputs)
{
    struct plan_copy copy;
    struct mlo_program *program = NULL;
    struct mlo_tensor out[4] = {0};
    json_t *a = NULL, *b = NULL;
    MUST(plan_copy(e, plan, &copy, err));
    if (!copy.plan && all_kinds)
        fail_msg("a kind of step of the fast numerics has no form in a file (cpu/image_impl.h says how)");
    if (!copy.plan)
        return;
    MUST(e->load(copy.plan, &program, err));
    MUST(e->run(program, inputs, out, err));
    MUST(e->run(program, inputs, out, err));
    for (int i = 0; i < outputs; i++) {
        if (!mlo_tensor_same_shape(&out[i], &want[i]) || out[i].dtype != want[i].dtype ||
            (!mlo_holds_values(out[i].dtype) && out[i].dtype != MLO_STRING &&
             memcmp(out[i].data, want[i].data, want[i].size_bytes) != 0))
            fail_msg("output %d of a plan from a file differs", i);
        mlo_tensor_clear(&out[i]);
    }
    MUST(e->describe(plan, &a, err));
    MUST(e->describe(copy.plan, &b, err));
    assert_true(json_equal(a, b));
    json_decref(a);
    json_decref(b);
    e->unload(program);
    plan_copy_free(e, &copy);
}

/* Compiles, runs once and returns the first output; *description (when asked for) is the caller's. */
static inline struct mlo_tensor run_model(const char *engine_name, const struct mlo_model *model,
                                          const struct mlo_compile_options *o,
                                          const struct mlo_tensor *inputs, json_t **description)
{
    const struct mlo_engine *e;
    struct mlo_plan *plan = NULL;
    struct mlo_program *program = NULL;
    struct mlo_tensor out[4] = {0};
    MUST(mlo_engine_find(engine_name, &e, err));
    MUST(e->compile(model, o, &plan, err));
    MUST(e->load(plan, &program, err));
    MUST(e->run(program, inputs, out, err));
    void *first = out[0].data;
    MUST(e->run(program, inputs, out, err)); /* again: nothing may be left over from the first */
    assert_ptr_equal(first, out[0].data);
    if (description)
        MUST(e->describe(plan, description, err));
    e->unload(program);
    if (e->save && !o->observe_count)
        check_saved(e, plan, o->numerics == MLO_NUMERICS_FAST, inputs, out, model->graph->output_count);
    e->free_plan(plan);
    for (int i = 1; i < 4; i++)
        mlo_tensor_clear(&out[i]);
    return out[0];
}

static inline void assert_close(const struct mlo_tensor *got, const struct mlo_tensor *want, float tolerance,
                                const char *what)
{
    if (!mlo_tensor_same_shape(got, want) || got->dtype != want->dtype)
        fail_msg("%s: shapes differ", what);
    size_t n = mlo_tensor_count(got);
    for (size_t i = 0; i < n; i++) {
        double a = mlo_tensor_get_f64(got, i), b = mlo_tensor_get_f64(want, i);
        if (!(fabs(a - b) <= (double)tolerance * (1.0 + fabs(b))))
            fail_msg("%s: element %zu is %.9g, the reference has %.9g", what, i, a, b);
    }
}

/* The cpu engine's first output is near the reference's; *description (when asked for) is the caller's. */
static inline void assert_engines_agree(const struct net *n, const struct mlo_compile_options *o,
                                        const struct mlo_tensor *inputs, float tolerance, const char *what,
                                        json_t **description)
{
    struct mlo_tensor want = run_model("reference", n->model, o, inputs, NULL);
    struct mlo_tensor got = run_model("cpu", n->model, o, inputs, description);
    assert_close(&got, &want, tolerance, what);
    mlo_tensor_clear(&want);
    mlo_tensor_clear(&got);
}

/* How many nodes of a described plan are of the op (NULL: any) and have that text there. */
static inline int count_nodes(const json_t *description, const char *op, const char *key, const char *text)
{
    size_t i;
    json_t *node;
    int count = 0;
    json_array_foreach(json_object_get(description, "nodes"), i, node) count +=
        (!op || strcmp(mlo_json_str(node, "op", ""), op) == 0) &&
        strcmp(mlo_json_str(node, key, ""), text) == 0;
    return count;
}

/* Fails, and shows the plan. */
static inline void fail_with_plan(const json_t *description, const char *what, const char *why)
{
    char *text = json_dumps(description, JSON_INDENT(1));
    print_message("%s\n", text);
    free(text);
    fail_msg("%s: %s", what, why);
}

/* What kernels are chosen by; an override above the machine is the machine. */
static const enum mlo_isa test_isas[] = {MLO_ISA_AVX2, MLO_ISA_AVX512, MLO_ISA_AVX512_VNNI,
                                         MLO_ISA_AVX512_FP16};

static inline void need_isa(enum mlo_isa isa)
{
    if (mlo_isa_current() < isa)
        skip();
}

/* The cpu engine against the reference on every instruction set: errors up to `tolerance` of the largest
 * result, NaN and infinities the same, `nodes` nodes of that precision (NULL: of any). */
static inline void check_on_every_isa(const struct net *n, const struct mlo_tensor *inputs, double tolerance,
                                      const char *precision, int nodes, const char *what)
{
    struct mlo_compile_options o = {.batch = 0, .threads = 2};
    struct mlo_tensor want = run_model("reference", n->model, &o, inputs, NULL);
    size_t count = mlo_tensor_count(&want);
    double most = 0;
    for (size_t i = 0; i < count; i++)
        most = fmax(most, fabs(mlo_tensor_get_f64(&want, i)));
    for (size_t v = 0; v < MLO_COUNT(test_isas); v++) {
        json_t *d = NULL;
        mlo_isa_override((int)test_isas[v]);
        struct mlo_tensor got = run_model("cpu", n->model, &o, inputs, &d);
        mlo_isa_override(-1);
        assert_true(mlo_tensor_same_shape(&got, &want) && got.dtype == want.dtype);
        if (precision && count_nodes(d, NULL, "precision", precision) != nodes)
            fail_with_plan(d, what, "other nodes than wanted are of the precision");
        for (size_t i = 0; i < count; i++) {
            double a = mlo_tensor_get_f64(&got, i), b = mlo_tensor_get_f64(&want, i);
            if (isfinite(b) ? !(fabs(a - b) <= tolerance * most) : isnan(b) ? !isnan(a) : a != b)
                fail_msg("%s on %s: element %zu is %.9g, the reference has %.9g (the largest is %g)", what,
                         mlo_isa_name(test_isas[v]), i, a, b, most);
        }
        json_decref(d);
        mlo_tensor_clear(&got);
    }
    mlo_tensor_clear(&want);
}

#endif
