/* What is computed of a convolution's results while they are in the cache. */
#include "engines/cpu/invariant/post_impl.h"

#include <math.h>
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

void inv_post_tile(const struct inv_post *post, size_t channel, size_t lines, size_t n, size_t columns,
                   const float *x, const struct inv_piece *pieces, int piece_count, const float *adds,
                   float *y, size_t plane, float *buffer)
{
    const struct inv_lanes *lanes = post->lanes;
    const struct inv_act *act = &post->act;
    static const struct inv_tail as_is = {.low = -INFINITY, .high = INFINITY};
    bool clips = post->acts && !act->many;
    const struct inv_tail tail = {.channels = post->channels ? post->channels + channel : NULL,
                                  .adds = adds,
                                  .adds_left = post->adds_left,
                                  .low = clips ? act->low : as_is.low,
                                  .high = clips ? act->high : as_is.high};
    if (!post->acts || !act->many || adds) {
        lanes->finish(&tail, lines, x, n, pieces, piece_count, y, plane);
        for (size_t r = 0; adds && act->many && r < lines; r++)
            for (int i = 0; i < piece_count; i++) {
                float *to = y + r * plane + pieces[i].to;
                memcpy(buffer, to, pieces[i].count * sizeof *to);
                act->many(&act->exact, pieces[i].count, buffer, to);
            }
        return;
    }
    float *out = buffer + lines * n;
    if (post->channels) {
        lanes->finish(&tail, lines, x, n, &(struct inv_piece){0, columns, 0}, 1, buffer, n);
        x = buffer;
    }
    for (size_t r = 0, some; r < lines; r += some) { /* many at once, where there is nothing in between */
        some = columns == n ? lines : 1;
        act->many(&act->exact, (some - 1) * n + columns, x + r * n, out + r * n);
    }
    lanes->finish(&as_is, lines, out, n, pieces, piece_count, y, plane);
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
