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

#define MUST(expr)                                                                                           \
    do {                                                                                                     \
        struct mlo_error must_err = {0}, *err = &must_err;                                                   \
        if ((expr) != MLO_OK)                                                                                \
            fail_msg("%s: %s (%s) %s", #expr, err->message, err->where, err->hint);                          \
    } while (0)

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

static inline struct net net_new(uint32_t seed)
{
    struct net n = {.seed = seed};
    MUST(mlo_model_new(17, &n.model, err));
    n.graph = n.model->graph;
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
static inline struct mlo_value *net_input(struct net *n, const char *name, int rank, const int64_t *dims)
{
    struct mlo_type t = net_type(MLO_FLOAT32, rank, dims);
    struct mlo_value *v = mlo_graph_add_value(n->graph, name, &t);
    assert_non_null(v);
    MUST(mlo_graph_add_input(n->graph, v, err));
    return v;
}

static inline struct mlo_value *net_take(struct net *n, const char *name, struct mlo_tensor *t)
{
    struct mlo_value *v = mlo_graph_add_constant_take(n->graph, name, t);
    assert_non_null(v);
    return v;
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

/* A node with one output; inputs end with NULL. */
static inline struct mlo_node *net_node(struct net *n, const char *op, struct mlo_value *a,
                                        struct mlo_value *b, struct mlo_value *c)
{
    struct mlo_value *in[3] = {a, b, c};
    struct mlo_value *out = mlo_graph_add_value(n->graph, op, NULL);
    assert_non_null(out);
    struct mlo_node *node = mlo_graph_add_node(n->graph, NULL, "", op, op, in,
                                               c   ? 3
                                               : b ? 2
                                                   : 1,
                                               (struct mlo_value *const *)&out, 1);
    assert_non_null(node);
    return node;
}

static inline struct mlo_value *net_op(struct net *n, const char *op, struct mlo_value *a,
                                       struct mlo_value *b, struct mlo_value *c)
{
    return net_node(n, op, a, b, c)->outputs[0];
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

static inline struct mlo_tensor random_tensor(int rank, const int64_t *dims, uint32_t seed)
{
    struct mlo_tensor t = {0};
    MUST(mlo_tensor_init(&t, MLO_FLOAT32, rank, dims, err));
    for (size_t i = 0; i < mlo_tensor_count(&t); i++)
        ((float *)t.data)[i] = net_random(&seed);
    return t;
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

#endif
