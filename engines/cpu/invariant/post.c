/* What is computed of a convolution's results while they are in the cache. */
#include "engines/cpu/invariant/post_impl.h"

#include <stdlib.h>
#include <string.h>

/* The only reader of a value that nobody else sees. */
static const struct mlo_node *reader_of(const struct mlo_plan *plan, const struct mlo_value *v, int uses,
                                        int i)
{
    if (v->is_output || cpu_is_observed(plan, v) || v->use_count != uses)
        return NULL;
    const struct mlo_node *node = v->uses[i].node;
    return node->graph == plan->model->graph && !plan->done[node->index] ? node : NULL;
}

static void take(struct inv_post *post, const struct mlo_node *node)
{
    post->nodes[post->node_count++] = node;
    post->result = node->outputs[0];
}

static bool find_add(const struct mlo_plan *plan, const struct mlo_node *node, const int64_t *dims,
                     struct inv_post *post)
{
    int64_t other_dims[MLO_MAX_RANK];
    if (!mlo_node_is(node, "Add") || node->input_count != 2)
        return false;
    bool left = node->inputs[1] == post->result;
    const struct mlo_value *other = node->inputs[left ? 0 : 1];
    int rank = post->result->type.rank;
    if (!other || other == post->result || other->type.dtype != MLO_FLOAT32 || other->type.rank != rank ||
        !cpu_value_dims(other, other_dims, NULL) ||
        memcmp(dims, other_dims, (size_t)rank * sizeof *dims) != 0 || cpu_value_plain(plan, other) < 0)
        return false;
    post->adds = other;
    post->adds_left = left;
    return true;
}

/* x * Sigmoid(x) */
static bool find_swish(const struct mlo_plan *plan, struct inv_post *post)
{
    const struct mlo_value *x = post->result;
    const struct mlo_node *a = reader_of(plan, x, 2, 0), *b = reader_of(plan, x, 2, 1);
    const struct mlo_node *sigmoid = a && mlo_node_is(a, "Sigmoid") ? a : b, *mul = sigmoid == a ? b : a;
    if (!a || !b || !mlo_node_is(sigmoid, "Sigmoid") || !mlo_node_is(mul, "Mul") || mul->input_count != 2 ||
        reader_of(plan, sigmoid->outputs[0], 1, 0) != mul || !inv_act_of(post->lanes, sigmoid, &post->act))
        return false;
    post->act.many = post->lanes->swish;
    take(post, sigmoid);
    take(post, mul);
    return true;
}

enum mlo_status inv_post_find(const struct mlo_plan *plan, const struct mlo_node *conv, const int64_t *dims,
                              bool may_add, struct inv_post *out, struct mlo_error *err)
{
    bool failed = false;
    *out = (struct inv_post){.lanes = inv_lanes_for(plan->isa), .result = conv->outputs[0]};
    const struct mlo_node *node = reader_of(plan, out->result, 1, 0);
    if (node && mlo_node_is(node, "BatchNormalization") &&
        (out->channels = inv_channels_of(node, dims, &failed))) {
        take(out, node);
        node = reader_of(plan, out->result, 1, 0);
    }
    if (failed)
        return mlo_error_nomem(err);
    if (node && may_add && find_add(plan, node, dims, out)) {
        take(out, node);
        node = reader_of(plan, out->result, 1, 0);
    }
    if (node && node->output_count == 1 && node->inputs[0] == out->result &&
        inv_act_of(out->lanes, node, &out->act)) {
        take(out, node);
        out->acts = true;
    } else {
        out->acts = find_swish(plan, out);
    }
    return MLO_OK;
}

void inv_post_run(const struct inv_post *post, size_t channel, size_t n, const float *line,
                  const struct inv_piece *pieces, int piece_count, const float *adds, float *y,
                  float *buffers)
{
    float *next = buffers, *other = buffers + n, *swap;
    if (post->channels) {
        post->lanes->affine(n, &post->channels[channel], line, next);
        line = next;
        swap = next, next = other, other = swap;
    }
    if (post->adds) {
        for (int i = 0; i < piece_count; i++) {
            const struct inv_piece *p = &pieces[i];
            const float *a = line + p->at, *b = adds + p->to;
            post->lanes->binary[INV_ADD](p->count, post->adds_left ? b : a, 1, post->adds_left ? a : b, 1,
                                         next + p->at);
        }
        line = next;
        next = other;
    }
    if (post->acts && piece_count == 1) {
        inv_act_run(post->lanes, &post->act, pieces->count, line + pieces->at, y + pieces->to);
        return;
    }
    if (post->acts) {
        inv_act_run(post->lanes, &post->act, n, line, next);
        line = next;
    }
    for (int i = 0; i < piece_count; i++)
        memcpy(y + pieces[i].to, line + pieces[i].at, pieces[i].count * sizeof *y);
}

void inv_post_line(const struct inv_post *post, size_t channel, size_t n, const float *x, float *y,
                   float *buffer)
{
    if (post->channels) {
        float *to = post->acts ? buffer : y;
        post->lanes->affine(n, &post->channels[channel], x, to);
        x = to;
    }
    if (post->acts)
        inv_act_run(post->lanes, &post->act, n, x, y);
}
