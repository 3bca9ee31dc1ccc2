/* ResNet-50, MobileNetV2 and BERT-base as graphs, as exporters write them; weights are random, and equal
 * shapes share them, so that a test holds a layer of BERT and not twelve. */
#ifndef MLO_TEST_ENGINES_CUDA_NETS_H
#define MLO_TEST_ENGINES_CUDA_NETS_H

#include "tests/unit/engines/helpers.h"

enum { SHARED = 64 };

struct shared_weights {
    struct mlo_value *list[SHARED];
    int count;
};

static inline struct mlo_value *shared_floats(struct net *n, struct shared_weights *w, int rank,
                                              const int64_t *dims, float low, float high)
{
    for (int i = 0; i < w->count; i++) {
        const struct mlo_tensor *t = w->list[i]->constant;
        if (t->rank == rank && memcmp(t->dims, dims, (size_t)rank * sizeof *dims) == 0 &&
            (rank > 1 || (((const float *)t->data)[0] > 0) == (low >= 0)))
            return w->list[i];
    }
    struct mlo_tensor t = {0};
    MUST(mlo_tensor_init(&t, MLO_FLOAT32, rank, dims, err));
    float *to = t.data;
    for (size_t i = 0; i < mlo_tensor_count(&t); i++)
        to[i] = low + (high - low) * (0.5f + 0.5f * net_random(&n->seed));
    to[0] = low >= 0 ? high : low;
    assert_true(w->count < SHARED);
    return w->list[w->count++] = net_take(n, "w", &t);
}

struct layer_spec {
    int64_t from, to, kernel, stride, groups;
    const char *activation; /* NULL: none */
};

static inline struct mlo_value *conv_norm(struct net *n, struct shared_weights *w, struct mlo_value *x,
                                          const struct layer_spec *l)
{
    int64_t dims[] = {l->to, l->from / l->groups, l->kernel, l->kernel}, pad = l->kernel / 2;
    float amplitude = sqrtf(6.0f / (float)(dims[1] * dims[2] * dims[3]));
    struct mlo_node *conv = net_node(n, "Conv", x, shared_floats(n, w, 4, dims, -amplitude, amplitude), NULL);
    assert_true(mlo_node_set_ints(conv, "strides", (int64_t[]){l->stride, l->stride}, 2));
    assert_true(mlo_node_set_ints(conv, "pads", (int64_t[]){pad, pad, pad, pad}, 4));
    assert_true(mlo_node_set_i(conv, "group", l->groups));
    struct mlo_value *plus = shared_floats(n, w, 1, &l->to, 0.5f, 1.5f),
                     *both = shared_floats(n, w, 1, &l->to, -0.2f, 0.2f);
    x = net_node_of(n, "", "BatchNormalization",
                    (struct mlo_value *[]){conv->outputs[0], plus, both, both, plus}, 5)
            ->outputs[0];
    if (!l->activation)
        return x;
    return strcmp(l->activation, "Clip") == 0
               ? net_op(n, "Clip", x, net_scalar(n, MLO_FLOAT32, 0), net_scalar(n, MLO_FLOAT32, 6))
               : net_op(n, l->activation, x, NULL, NULL);
}

static inline void classifier(struct net *n, struct shared_weights *w, struct mlo_value *x, int64_t width)
{
    x = net_op(n, "Flatten", net_op(n, "GlobalAveragePool", x, NULL, NULL), NULL, NULL);
    struct mlo_node *gemm =
        net_node(n, "Gemm", x, shared_floats(n, w, 2, (int64_t[]){1000, width}, -0.05f, 0.05f),
                 shared_floats(n, w, 1, (int64_t[]){1000}, -0.1f, 0.1f));
    assert_true(mlo_node_set_i(gemm, "transB", 1));
    net_finish(n, gemm->outputs[0]);
}

/* He et al., Deep Residual Learning for Image Recognition (2015), with strides in the 3x3 convolutions. */
static inline struct net resnet50(void)
{
    static const int blocks[] = {3, 4, 6, 3};
    struct net n = net_new(50);
    struct shared_weights w = {{0}, 0};
    struct mlo_value *x = net_input(&n, "image", 4, (int64_t[]){-1, 3, 224, 224});
    x = conv_norm(&n, &w, x, &(struct layer_spec){3, 64, 7, 2, 1, "Relu"});
    struct mlo_node *pool = net_node(&n, "MaxPool", x, NULL, NULL);
    assert_true(mlo_node_set_ints(pool, "kernel_shape", (int64_t[]){3, 3}, 2));
    assert_true(mlo_node_set_ints(pool, "strides", (int64_t[]){2, 2}, 2));
    assert_true(mlo_node_set_ints(pool, "pads", (int64_t[]){1, 1, 1, 1}, 4));
    x = pool->outputs[0];
    int64_t from = 64;
    for (int stage = 0; stage < 4; stage++)
        for (int b = 0; b < blocks[stage]; b++) {
            int64_t width = 64 << stage, stride = stage && !b ? 2 : 1;
            struct mlo_value *y = conv_norm(&n, &w, x, &(struct layer_spec){from, width, 1, 1, 1, "Relu"});
            y = conv_norm(&n, &w, y, &(struct layer_spec){width, width, 3, stride, 1, "Relu"});
            y = conv_norm(&n, &w, y, &(struct layer_spec){width, 4 * width, 1, 1, 1, NULL});
            if (!b)
                x = conv_norm(&n, &w, x, &(struct layer_spec){from, 4 * width, 1, stride, 1, NULL});
            x = net_op(&n, "Relu", net_op(&n, "Add", y, x, NULL), NULL, NULL);
            from = 4 * width;
        }
    classifier(&n, &w, x, from);
    return n;
}

/* Sandler et al., MobileNetV2: Inverted Residuals and Linear Bottlenecks (2018). */
static inline struct net mobilenet_v2(void)
{
    static const struct {
        int64_t expand, to, count, stride;
    } stages[] = {{1, 16, 1, 1}, {6, 24, 2, 2},  {6, 32, 3, 2}, {6, 64, 4, 2},
                  {6, 96, 3, 1}, {6, 160, 3, 2}, {6, 320, 1, 1}};
    struct net n = net_new(2);
    struct shared_weights w = {{0}, 0};
    struct mlo_value *x = net_input(&n, "image", 4, (int64_t[]){-1, 3, 224, 224});
    x = conv_norm(&n, &w, x, &(struct layer_spec){3, 32, 3, 2, 1, "Clip"});
    int64_t from = 32;
    for (size_t s = 0; s < MLO_COUNT(stages); s++)
        for (int64_t b = 0; b < stages[s].count; b++) {
            int64_t wide = from * stages[s].expand, stride = b ? 1 : stages[s].stride, to = stages[s].to;
            struct mlo_value *y = x;
            if (wide != from)
                y = conv_norm(&n, &w, y, &(struct layer_spec){from, wide, 1, 1, 1, "Clip"});
            y = conv_norm(&n, &w, y, &(struct layer_spec){wide, wide, 3, stride, wide, "Clip"});
            y = conv_norm(&n, &w, y, &(struct layer_spec){wide, to, 1, 1, 1, NULL});
            x = stride == 1 && from == to ? net_op(&n, "Add", x, y, NULL) : y;
            from = to;
        }
    x = conv_norm(&n, &w, x, &(struct layer_spec){from, 1280, 1, 1, 1, "Clip"});
    classifier(&n, &w, x, 1280);
    return n;
}

enum { BERT_WIDTH = 768, BERT_HEADS = 12, BERT_TOKENS = 128, BERT_LAYERS = 12, BERT_WORDS = 30522 };

static inline struct mlo_value *bert_dense(struct net *n, struct shared_weights *w, struct mlo_value *x,
                                           int64_t from, int64_t to)
{
    x = net_op(n, "MatMul", x, shared_floats(n, w, 2, (int64_t[]){from, to}, -0.04f, 0.04f), NULL);
    return net_op(n, "Add", shared_floats(n, w, 1, &to, -0.1f, 0.1f), x, NULL);
}

static inline struct mlo_value *bert_heads(struct net *n, struct mlo_value *x, const int64_t *perm)
{
    int64_t shape[] = {0, 0, BERT_HEADS, BERT_WIDTH / BERT_HEADS};
    struct mlo_node *t =
        net_node(n, "Transpose", net_op(n, "Reshape", x, net_ints(n, 4, shape), NULL), NULL, NULL);
    assert_true(mlo_node_set_ints(t, "perm", perm, 4));
    return t->outputs[0];
}

static inline struct mlo_value *bert_norm(struct net *n, struct shared_weights *w, struct mlo_value *x)
{
    return net_op(n, "LayerNormalization", x, shared_floats(n, w, 1, (int64_t[]){BERT_WIDTH}, 0.5f, 1.5f),
                  shared_floats(n, w, 1, (int64_t[]){BERT_WIDTH}, -0.1f, 0.1f));
}

/* Devlin et al., BERT (2018): the base model with its pooler, GELU by Erf. */
static inline struct net bert_base(void)
{
    struct net n = net_new(12);
    struct shared_weights w = {{0}, 0};
    int64_t by_token[] = {-1, BERT_TOKENS}, none[] = {1, 2};
    struct mlo_value *ids = net_input_of(&n, MLO_INT64, "input_ids", 2, by_token),
                     *mask = net_input_of(&n, MLO_INT64, "attention_mask", 2, by_token),
                     *types = net_input_of(&n, MLO_INT64, "token_type_ids", 2, by_token);
    mask = net_cast(&n, net_op(&n, "Unsqueeze", mask, net_ints(&n, 2, none), NULL), MLO_FLOAT32);
    mask = net_op(&n, "Mul", net_op(&n, "Sub", net_scalar(&n, MLO_FLOAT32, 1), mask, NULL),
                  net_scalar(&n, MLO_FLOAT32, -10000), NULL);
    struct mlo_value *x = net_op(
        &n, "Gather", shared_floats(&n, &w, 2, (int64_t[]){BERT_WORDS, BERT_WIDTH}, -0.1f, 0.1f), ids, NULL);
    struct mlo_value *kind =
        net_op(&n, "Gather", shared_floats(&n, &w, 2, (int64_t[]){2, BERT_WIDTH}, -0.1f, 0.1f), types, NULL);
    x = net_op(&n, "Add", net_op(&n, "Add", x, kind, NULL),
               shared_floats(&n, &w, 3, (int64_t[]){1, BERT_TOKENS, BERT_WIDTH}, -0.1f, 0.1f), NULL);
    x = bert_norm(&n, &w, x);
    for (int i = 0; i < BERT_LAYERS; i++) {
        struct mlo_value *q =
            bert_heads(&n, bert_dense(&n, &w, x, BERT_WIDTH, BERT_WIDTH), (int64_t[]){0, 2, 1, 3});
        struct mlo_value *k =
            bert_heads(&n, bert_dense(&n, &w, x, BERT_WIDTH, BERT_WIDTH), (int64_t[]){0, 2, 3, 1});
        struct mlo_value *v =
            bert_heads(&n, bert_dense(&n, &w, x, BERT_WIDTH, BERT_WIDTH), (int64_t[]){0, 2, 1, 3});
        struct mlo_value *s = net_op(&n, "Div", net_op(&n, "MatMul", q, k, NULL),
                                     net_scalar(&n, MLO_FLOAT32, sqrt(BERT_WIDTH / BERT_HEADS)), NULL);
        s = net_op(&n, "Softmax", net_op(&n, "Add", s, mask, NULL), NULL, NULL);
        struct mlo_node *back = net_node(&n, "Transpose", net_op(&n, "MatMul", s, v, NULL), NULL, NULL);
        assert_true(mlo_node_set_ints(back, "perm", (int64_t[]){0, 2, 1, 3}, 4));
        s = net_op(&n, "Reshape", back->outputs[0], net_ints(&n, 3, (int64_t[]){0, 0, BERT_WIDTH}), NULL);
        x = bert_norm(&n, &w, net_op(&n, "Add", bert_dense(&n, &w, s, BERT_WIDTH, BERT_WIDTH), x, NULL));
        s = bert_dense(&n, &w, x, BERT_WIDTH, 4 * BERT_WIDTH);
        struct mlo_value *e =
            net_op(&n, "Erf", net_op(&n, "Div", s, net_scalar(&n, MLO_FLOAT32, sqrt(2)), NULL), NULL, NULL);
        e = net_op(&n, "Mul", s, net_op(&n, "Add", e, net_scalar(&n, MLO_FLOAT32, 1), NULL), NULL);
        e = net_op(&n, "Mul", e, net_scalar(&n, MLO_FLOAT32, 0.5), NULL);
        x = bert_norm(&n, &w, net_op(&n, "Add", bert_dense(&n, &w, e, 4 * BERT_WIDTH, BERT_WIDTH), x, NULL));
    }
    struct mlo_node *first = net_node(&n, "Gather", x, net_scalar(&n, MLO_INT64, 0), NULL);
    assert_true(mlo_node_set_i(first, "axis", 1));
    struct mlo_node *pooler =
        net_node(&n, "Gemm", first->outputs[0],
                 shared_floats(&n, &w, 2, (int64_t[]){BERT_WIDTH, BERT_WIDTH}, -0.04f, 0.04f),
                 shared_floats(&n, &w, 1, (int64_t[]){BERT_WIDTH}, -0.1f, 0.1f));
    assert_true(mlo_node_set_i(pooler, "transB", 1));
    net_output(&n, x);
    net_finish(&n, net_op(&n, "Tanh", pooler->outputs[0], NULL, NULL));
    return n;
}

#endif
