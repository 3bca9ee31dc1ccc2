/* Quantized (QDQ) models for the engines' tests. */
#ifndef MLO_TEST_ENGINES_QHELPERS_H
#define MLO_TEST_ENGINES_QHELPERS_H

#include "helpers.h"

/* Q then DQ with per-tensor parameters; the quantized value's type is uint8 or int8. */
static inline struct mlo_value *qdq(struct net *n, struct mlo_value *x, float scale, int zp,
                                    enum mlo_dtype dtype)
{
    struct mlo_value *s = net_scalar(n, MLO_FLOAT32, (double)scale), *z = net_scalar(n, dtype, zp);
    return net_op(n, "DequantizeLinear", net_op(n, "QuantizeLinear", x, s, z), s, z);
}

/* int8 weights [rows, …] up to `largest` with a scale a row; *scales is borrowed from the graph. */
static inline struct mlo_value *weights(struct net *n, int rank, const int64_t *dims, float amplitude,
                                        float largest, const float **scales)
{
    struct mlo_tensor q = {0}, s = {0}, z = {0};
    MUST(mlo_tensor_init(&q, MLO_INT8, rank, dims, err));
    MUST(mlo_tensor_init(&s, MLO_FLOAT32, 1, dims, err));
    MUST(mlo_tensor_init(&z, MLO_INT8, 1, dims, err));
    for (size_t i = 0; i < mlo_tensor_count(&q); i++)
        ((int8_t *)q.data)[i] = (int8_t)(largest * net_random(&n->seed));
    for (int64_t i = 0; i < dims[0]; i++)
        ((float *)s.data)[i] = amplitude * (1.0f + 0.5f * net_random(&n->seed)) / largest;
    struct mlo_value *sv = net_take(n, "ws", &s);
    *scales = sv->constant->data;
    struct mlo_node *dq = net_node(n, "DequantizeLinear", net_take(n, "wq", &q), sv, net_take(n, "wz", &z));
    assert_true(mlo_node_set_i(dq, "axis", 0));
    return dq->outputs[0];
}

static inline struct mlo_value *bias(struct net *n, int64_t count, float x_scale, const float *w_scales)
{
    struct mlo_tensor q = {0}, s = {0};
    MUST(mlo_tensor_init(&q, MLO_INT32, 1, &count, err));
    MUST(mlo_tensor_init(&s, MLO_FLOAT32, 1, &count, err));
    for (int64_t i = 0; i < count; i++) {
        ((float *)s.data)[i] = x_scale * w_scales[i];
        ((int32_t *)q.data)[i] = (int32_t)(0.5f * net_random(&n->seed) / ((float *)s.data)[i]);
    }
    struct mlo_node *dq = net_node(n, "DequantizeLinear", net_take(n, "bq", &q), net_take(n, "bs", &s), NULL);
    assert_true(mlo_node_set_i(dq, "axis", 0));
    return dq->outputs[0];
}

static inline struct mlo_value *qconv_within(struct net *n, struct mlo_value *x, float x_scale,
                                             const struct conv_spec *s, float largest)
{
    const float *w_scales;
    int64_t w[] = {s->oc, s->ic / s->groups, s->kernel, s->kernel};
    struct mlo_value *wv =
        weights(n, 4, w, 2.0f * sqrtf(1.0f / (float)(w[1] * w[2] * w[3])), largest, &w_scales);
    struct mlo_node *c = net_node(n, "Conv", x, wv, s->bias ? bias(n, s->oc, x_scale, w_scales) : NULL);
    net_conv_attrs(c, s);
    return c->outputs[0];
}

static inline struct mlo_value *qconv(struct net *n, struct mlo_value *x, float x_scale,
                                      const struct conv_spec *s)
{
    return qconv_within(n, x, x_scale, s, 127.0f);
}

/* How many nodes of that op run in int8. */
static inline int int8_ops(const json_t *d, const char *op)
{
    return count_nodes(d, op, "precision", "int8");
}

/* Differences in units of `quantum`: none above one and a bit, hardly any at all. */
static inline void check(const struct net *n, const struct mlo_tensor *in, int64_t batch, float quantum,
                         const char *what, json_t **description)
{
    struct mlo_compile_options o = {.batch = batch, .threads = 1};
    struct mlo_tensor want = run_model("reference", n->model, &o, in, NULL);
    struct mlo_tensor got = run_model("cpu", n->model, &o, in, description);
    size_t off = 0, count = mlo_tensor_count(&got);
    double lowest = INFINITY, highest = -INFINITY;
    assert_true(mlo_tensor_same_shape(&got, &want));
    for (size_t i = 0; i < count; i++) {
        double a = mlo_tensor_get_f64(&got, i), b = mlo_tensor_get_f64(&want, i);
        double quanta = fabs(a - b) / (double)quantum;
        lowest = fmin(lowest, b);
        highest = fmax(highest, b);
        if (quanta > 1.01)
            fail_msg("%s: element %zu is %g, the reference has %g: %g quanta", what, i, a, b, quanta);
        off += quanta > 0.01;
    }
    if ((double)off > 0.002 * (double)count + 1.0)
        fail_msg("%s: %zu of %zu elements are off", what, off, count);
    assert_true(highest - lowest > 10.0 * (double)quantum); /* the test would see something */
    mlo_tensor_clear(&got);
    mlo_tensor_clear(&want);
}

#endif
