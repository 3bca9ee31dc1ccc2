/* Which numbers of an attention are one index of a head's width. Q K^T sums over the width, and so does what
 * reads the product behind V: an index can go from Q and K, or from V and its reader, in all heads alike. So
 * values are followed from the weights that make them; of each it is known which columns of the weights its
 * axes count. Anything but moves, a number for all and the two products leaves heads as what can go. */
#include <string.h>

#include "passes/prune_impl.h"

enum { DEPTH_MAX = 64 /* nodes that a value is followed through */ };

struct view {
    const struct mlo_value *value, *split; /* split: what the columns' axis was first made several axes of */
    int maker;                             /* of the analysis' weighted */
    int64_t offset;                        /* column of index 0 */
    int64_t stride[MLO_MAX_RANK];          /* columns that an index of the axis steps by; 0: it counts none */
    bool attended, merged;                 /* behind V's product; heads and width one axis again */
    struct prune_part part;                /* where it is attended */
    int depth;
};

struct walking {
    struct prune *p;
    struct prune_attention *out;
    const struct mlo_stats *stats; /* or NULL */
    bool *claimed;                 /* by column of the maker that is followed: a product reads it */
};

static bool own(const struct prune *p, const struct mlo_value *v)
{
    return v->constant && v->constant->dtype == MLO_FLOAT32 && v->use_count == 1 && !v->is_input &&
           !v->is_output && v->uses[0].node->graph == p->graph;
}

static bool is_number(const struct mlo_value *v)
{
    return v && v->constant && mlo_tensor_count(v->constant) == 1;
}

/* What the node reads was observed in full, where anything was. */
static bool observed(const struct walking *k, const struct prune_weighted *w)
{
    if (!mlo_prune_has_gram(w))
        return false;
    const struct mlo_gram *gram = k->stats ? mlo_stats_find_gram(k->stats, w->node) : NULL;
    return !k->stats || (gram && gram->full && gram->rows > 0 && gram->groups == 1);
}

static int64_t columns_of(const struct prune *p, int maker)
{
    const struct prune_weighted *w = &p->weighted[maker];
    return mlo_prune_dim(w->node->outputs[0], w->out_axis);
}

static int last_axis(const struct mlo_value *v)
{
    return v->type.rank - 1;
}

/* Whether its last axis is all columns that it has, in their order. */
static bool is_flat(const struct view *v)
{
    for (int a = 0; a < last_axis(v->value); a++)
        if (v->stride[a])
            return false;
    return v->stride[last_axis(v->value)] == 1;
}

/* --- moves: what an op does with axes; false: not known -------------------------------------------- */

typedef bool move_fn(const struct prune *p, const struct view *from, const struct mlo_node *node,
                     struct view *to);

static bool move_same(const struct prune *p, const struct view *from, const struct mlo_node *node,
                      struct view *to)
{
    MLO_UNUSED(p);
    memcpy(to->stride, from->stride, sizeof to->stride);
    for (int i = 0; i < node->input_count; i++) /* a product with a number */
        if (node->inputs[i] != from->value && !is_number(node->inputs[i]))
            return false;
    return node->inputs[0] != mlo_node_input(node, 1) && to->value->type.rank == from->value->type.rank;
}

static bool move_div(const struct prune *p, const struct view *from, const struct mlo_node *node,
                     struct view *to)
{
    return node->inputs[0] == from->value && move_same(p, from, node, to);
}

static bool move_transpose(const struct prune *p, const struct view *from, const struct mlo_node *node,
                           struct view *to)
{
    int rank = from->value->type.rank;
    size_t count = 0;
    const int64_t *perm = mlo_node_attr_ints(node, "perm", &count);
    MLO_UNUSED(p);
    if (perm && (int)count != rank)
        return false;
    for (int a = 0; a < rank; a++) {
        int64_t source = perm ? perm[a] : rank - 1 - a;
        if (source < 0 || source >= rank)
            return false;
        to->stride[a] = from->stride[source];
    }
    return true;
}

/* Axes of one index come and go, the others are the same. */
static bool same_axes(const struct view *from, struct view *to)
{
    const struct mlo_type *x = &from->value->type, *y = &to->value->type;
    int i = 0, j = 0;
    while (i < x->rank || j < y->rank) {
        if (i < x->rank && x->dims[i].value == 1) {
            i++;
        } else if (j < y->rank && y->dims[j].value == 1) {
            j++;
        } else {
            if (i >= x->rank || j >= y->rank || !mlo_dim_same(&x->dims[i], &y->dims[j]))
                return false;
            to->stride[j++] = from->stride[i++];
        }
    }
    return true;
}

/* The last axis becomes [.., heads, width]. */
static bool split(const struct view *from, struct view *to)
{
    const struct mlo_value *y = to->value;
    int64_t total = mlo_prune_dim(from->value, last_axis(from->value)), inner = 1;
    int a = y->type.rank;
    while (a > 0 && inner < total) {
        int64_t d = mlo_prune_dim(y, --a);
        if (d < 1 || total % d != 0)
            return false;
        to->stride[a] = d > 1 ? inner : 0;
        inner *= d;
    }
    int64_t width = mlo_prune_dim(y, last_axis(y));
    to->split = y;
    return inner == total && width > 1 && width < total;
}

/* [.., heads, width] becomes one axis. */
static bool merge(const struct view *from, struct view *to)
{
    const struct prune_part *part = &from->part;
    int last = last_axis(from->value);
    if (last < 1 || from->stride[last] != 1 || part->heads < 2 || from->stride[last - 1] != part->stride ||
        mlo_prune_dim(to->value, last_axis(to->value)) != part->heads * part->width)
        return false;
    to->stride[last_axis(to->value)] = 1;
    to->merged = true;
    return true;
}

static bool move_reshape(const struct prune *p, const struct view *from, const struct mlo_node *node,
                         struct view *to)
{
    MLO_UNUSED(p);
    if (node->inputs[0] != from->value)
        return false;
    if (same_axes(from, to))
        return true;
    memset(to->stride, 0, sizeof to->stride);
    if (from->attended)
        return !from->merged && merge(from, to);
    return !from->split && is_flat(from) && split(from, to);
}

/* One index of an axis in front of the width. */
static bool move_gather(const struct prune *p, const struct view *from, const struct mlo_node *node,
                        struct view *to)
{
    const struct mlo_tensor *index = mlo_node_fixed(node, 1);
    int rank = from->value->type.rank;
    int64_t axis = mlo_node_attr_i(node, "axis", 0);
    MLO_UNUSED(p);
    axis += axis < 0 ? rank : 0;
    int64_t size = mlo_prune_dim(from->value, (int)axis);
    if (node->inputs[0] != from->value || from->attended || !from->split || !index ||
        mlo_tensor_count(index) != 1 || index->rank > 1 || size < 1)
        return false;
    int64_t at = mlo_tensor_get_i64(index, 0);
    at += at < 0 ? size : 0;
    if (at < 0 || at >= size)
        return false;
    to->offset = from->offset + at * from->stride[axis];
    for (int a = 0, b = 0; a < rank; a++) {
        if (a != axis)
            to->stride[b++] = from->stride[a];
        else if (index->rank == 1)
            to->stride[b++] = 0;
    }
    return true;
}

static bool move_split(const struct prune *p, const struct view *from, const struct mlo_node *node,
                       struct view *to)
{
    int rank = from->value->type.rank;
    int64_t axis = mlo_node_attr_i(node, "axis", 0), begin = 0;
    MLO_UNUSED(p);
    axis += axis < 0 ? rank : 0;
    if (node->inputs[0] != from->value || axis < 0 || axis >= rank || from->attended ||
        (mlo_node_input(node, 1) && !mlo_node_fixed(node, 1)))
        return false;
    for (int i = 0; i < node->output_count && node->outputs[i] != to->value; i++) {
        int64_t d = node->outputs[i] ? mlo_prune_dim(node->outputs[i], (int)axis) : -1;
        if (d < 0)
            return false;
        begin += d;
    }
    int64_t size = mlo_prune_dim(to->value, (int)axis);
    if (size < 1 || begin + size > mlo_prune_dim(from->value, (int)axis))
        return false;
    memcpy(to->stride, from->stride, sizeof to->stride);
    to->offset = from->offset + begin * from->stride[axis];
    if (size == 1)
        to->stride[axis] = 0;
    return true;
}

/* The bias of the weights, on all of their columns. */
static bool move_bias(const struct prune *p, const struct view *from, const struct mlo_node *node,
                      struct view *to)
{
    struct mlo_node *maker = (struct mlo_node *)p->weighted[from->maker].node;
    const struct mlo_value *other = node->inputs[node->inputs[0] == from->value ? 1 : 0];
    if (from->split || mlo_refit_bias_node(maker, &(int){0}) != node || !own(p, other))
        return false;
    memcpy(to->stride, from->stride, sizeof to->stride);
    return to->value->type.rank == from->value->type.rank;
}

static const struct {
    const char *op;
    move_fn *move;
} MOVES[] = {
    {"Add", move_bias},          {"Div", move_div},         {"Gather", move_gather},
    {"Identity", move_same},     {"Mul", move_same},        {"Reshape", move_reshape},
    {"Split", move_split},       {"Squeeze", move_reshape}, {"Transpose", move_transpose},
    {"Unsqueeze", move_reshape},
};

/* --- products --------------------------------------------------------------------------------------- */

/* Sizes may be what a file says of them. */
static bool is_within(const struct prune_part *part, int64_t columns)
{
    return part->heads >= 1 && part->heads <= columns && part->width >= 1 && part->width <= columns &&
           part->stride >= 0 && part->stride <= columns && part->offset >= 0 && part->offset <= columns &&
           part->offset + (part->heads - 1) * part->stride + part->width <= columns;
}

/* Heads are a batch of the product, the width is that axis; nothing else of the columns is there. */
static bool read_part(const struct walking *k, const struct view *v, int width_axis, struct prune_part *out)
{
    const struct mlo_value *x = v->value;
    int rank = x->type.rank, head = -1;
    if (!v->split || rank < 3 || v->stride[width_axis] != 1)
        return false;
    for (int a = 0; a < rank; a++) {
        if (a == width_axis || !v->stride[a])
            continue;
        if (head >= 0 || a >= rank - 2)
            return false;
        head = a;
    }
    *out = (struct prune_part){.maker = v->maker,
                               .split = v->split,
                               .offset = v->offset,
                               .heads = head < 0 ? 1 : mlo_prune_dim(x, head),
                               .stride = head < 0 ? 0 : v->stride[head],
                               .width = mlo_prune_dim(x, width_axis),
                               .head_axis = head < 0 ? 0 : rank - head};
    if (out->width != mlo_prune_dim(v->split, last_axis(v->split)) || out->width > MLO_PRUNE_TURN_MAX ||
        !is_within(out, columns_of(k->p, v->maker)))
        return false;
    for (int64_t h = 0; h < out->heads; h++)
        for (int64_t i = 0; i < out->width; i++) {
            bool *claimed = &k->claimed[out->offset + h * out->stride + i];
            if (*claimed)
                return false;
            *claimed = true;
        }
    return true;
}

static struct prune_pair *pair_of(struct prune_attention *all, const struct mlo_node *node)
{
    for (int i = 0; i < all->count; i++)
        if (all->pairs[i].node == node)
            return &all->pairs[i];
    struct prune_pair *pair = &all->pairs[all->count++]; /* a node is one pair: there is room for each */
    pair->node = node;
    return pair;
}

static bool read_by_weights(struct walking *k, const struct view *v, const struct mlo_node *node)
{
    const struct prune_weighted *w = mlo_prune_weighted_of(k->p, node);
    if (!w || w->weight != 1 || w->x_axis != last_axis(v->value) || !observed(k, w) ||
        !own(k->p, node->inputs[1]) || !v->attended || !(v->merged || v->part.heads == 1) || !is_flat(v))
        return false;
    for (int i = 0; i < k->out->count; i++) { /* another reads it, too: each would turn it */
        const struct prune_pair *pair = &k->out->pairs[i];
        if (pair->reader && pair->part[0].maker == v->maker && pair->part[0].offset == v->part.offset)
            return false;
    }
    struct prune_pair *pair = pair_of(k->out, node);
    pair->reader = w;
    pair->part[0] = pair->part[1] = v->part;
    return true;
}

/* Whether all that reads scores is a Softmax over their last axis, behind numbers and masks. */
static bool softens(const struct mlo_value *scores, int depth)
{
    if (scores->is_output || !scores->use_count || depth > DEPTH_MAX)
        return false;
    for (int u = 0; u < scores->use_count; u++) {
        const struct mlo_node *node = scores->uses[u].node;
        int64_t axis = mlo_node_attr_i(node, "axis", node->version < 13 ? 1 : -1);
        int at = scores->uses[u].index;
        const struct mlo_value *other = at < 2 ? mlo_node_input(node, 1 - at) : NULL;
        if (mlo_node_is(node, "Softmax") && (axis == -1 || axis == last_axis(scores)))
            continue;
        bool scales = (mlo_node_is(node, "Mul") || mlo_node_is(node, "Div")) && is_number(other) &&
                      (at == 0 || mlo_node_is(node, "Mul"));
        if (!scales && !mlo_node_is(node, "Add") && !mlo_node_is(node, "Where"))
            return false;
        if (!softens(node->outputs[0], depth + 1))
            return false;
    }
    return true;
}

static bool follow(struct walking *k, const struct view *v);

static bool multiplied(struct walking *k, const struct view *v, const struct mlo_node *node, int side)
{
    int last = last_axis(v->value);
    if (side > 1) /* added by a Gemm */
        return false;
    const struct mlo_value *other = node->inputs[1 - side], *y = node->outputs[0];
    if (other == v->value || node->inputs[side] != v->value)
        return false;
    if (other->constant || v->attended)
        return side == 0 && read_by_weights(k, v, node);
    if (side == 1 && v->stride[last]) { /* the columns stay: V */
        struct view to = {
            .value = y, .split = v->split, .maker = v->maker, .attended = true, .depth = v->depth + 1};
        int move = y->type.rank - v->value->type.rank;
        if (move < 0 || y->is_output || !read_part(k, v, last, &to.part))
            return false;
        for (int a = 0; a < v->value->type.rank; a++)
            to.stride[a + move] = v->stride[a];
        return follow(k, &to);
    }
    struct prune_pair *pair = pair_of(k->out, node);
    if (pair->part[side].split || last < 1)
        return false;
    pair->softened = softens(y, 0);
    return read_part(k, v, last - side, &pair->part[side]);
}

/* False where something is not understood. */
static bool follow(struct walking *k, const struct view *v)
{
    const struct mlo_value *x = v->value;
    if (x->is_output || x->type.rank < 1 || x->type.rank > MLO_MAX_RANK || v->depth > DEPTH_MAX)
        return false;
    for (int u = 0; u < x->use_count; u++) {
        const struct mlo_node *node = x->uses[u].node;
        move_fn *move = NULL;
        if (node->graph != k->p->graph)
            return false;
        if (mlo_node_is(node, "Shape"))
            continue;
        if (mlo_node_is(node, "MatMul") || mlo_node_is(node, "Gemm")) {
            if (!multiplied(k, v, node, x->uses[u].index))
                return false;
            continue;
        }
        for (size_t i = 0; i < MLO_COUNT(MOVES); i++)
            if (mlo_node_is(node, MOVES[i].op))
                move = MOVES[i].move;
        for (int o = 0; o < node->output_count; o++) {
            struct view to = *v;
            to.value = node->outputs[o];
            to.depth = v->depth + 1;
            memset(to.stride, 0, sizeof to.stride);
            if (!move || !to.value || to.value->type.rank < 1 || !move(k->p, v, node, &to) || !follow(k, &to))
                return false;
        }
    }
    return true;
}

/* --- all of it --------------------------------------------------------------------------------------- */

static bool walk_maker(struct walking *k, int m)
{
    const struct prune_weighted *w = &k->p->weighted[m];
    const struct mlo_value *y = w->node->outputs[0], *bias = mlo_node_input(w->node, 2);
    struct view v = {.value = y, .maker = m};
    int64_t columns = columns_of(k->p, m);
    if (w->weight != 1 || mlo_refit_refuses(w->node) || w->out_axis != last_axis(y) || !observed(k, w) ||
        columns < 2 || !own(k->p, w->node->inputs[1]) || mlo_node_is(w->node, "Conv") ||
        mlo_prune_dim(w->node->inputs[1], w->w_out) != columns)
        return false;
    if (bias && (!own(k->p, bias) || (int64_t)mlo_tensor_count(bias->constant) != columns ||
                 mlo_prune_dim(bias, last_axis(bias)) != columns))
        return false;
    v.stride[w->out_axis] = 1;
    if (!follow(k, &v))
        return false;
    for (int64_t c = 0; c < columns; c++)
        if (!k->claimed[c])
            return false;
    return true;
}

static bool pair_whole(const struct prune_pair *pair, const bool *failed)
{
    const struct prune_part *a = &pair->part[0], *b = &pair->part[1];
    return a->split && b->split && !failed[a->maker] && !failed[b->maker] && a->heads == b->heads &&
           a->width == b->width && a->head_axis == b->head_axis;
}

static struct mlo_prune_width *add_split(struct mlo_prune_turned *list, const struct mlo_value *v)
{
    struct mlo_prune_width *width = mlo_prune_width_of(list, v);
    if (!width) {
        width = &list->widths[list->count++];
        *width = (struct mlo_prune_width){v->name, NULL};
    }
    return width;
}

/* Pairs that are whole stay, and what they split is listed. */
static bool keep_whole(struct prune_attention *all, bool *failed)
{
    for (bool again = true; again;) { /* what makes one part makes others */
        again = false;
        for (int i = 0; i < all->count; i++) {
            struct prune_pair *pair = &all->pairs[i];
            if (pair_whole(pair, failed))
                continue;
            for (int s = 0; s < 2; s++)
                if (pair->part[s].split)
                    failed[pair->part[s].maker] = true;
            *pair = all->pairs[--all->count];
            again = true;
            break;
        }
    }
    return all->count > 0;
}

static enum mlo_status list_splits(const struct prune_attention *all, struct mlo_arena *arena,
                                   struct mlo_prune_turned *out, struct mlo_error *err)
{
    out->count = 0;
    for (int i = 0; i < all->count; i++)
        for (int s = 0; s < 2; s++) {
            const struct prune_part *part = &all->pairs[i].part[s];
            struct mlo_prune_width *width = add_split(out, part->split);
            if (all->pairs[i].reader || s || width->seen)
                continue;
            width->seen = mlo_arena_calloc(arena, (size_t)part->width, sizeof *width->seen);
            if (!width->seen)
                return mlo_error_nomem(err);
        }
    return MLO_OK;
}

static int group_at(const struct prune *p, const struct mlo_value *v, int axis, int64_t i)
{
    int unit = mlo_prune_unit_at(p, v, axis, i);
    return unit < 0 ? -1 : p->units[unit].group;
}

/* With widths as what can go, each index of this one is a unit of one group. */
static bool can_go(const struct prune *trial, const struct mlo_value *v)
{
    int axis = last_axis(v), group = group_at(trial, v, axis, 0);
    int64_t width = mlo_prune_dim(v, axis);
    for (int64_t i = 0; i < width; i++)
        if (group < 0 || group_at(trial, v, axis, i) != group)
            return false;
    return trial->groups[group].count == width;
}

/* Whether heads of it are those of something that is split, and whose widths cannot go: they would not
 * either. */
static bool shares_heads(const struct prune *p, const struct mlo_prune_turned *list,
                         const struct mlo_value *v)
{
    for (int n = 0; n < p->graph->node_count; n++) {
        const struct mlo_value *other = p->split[n];
        if (!p->choices[n] || mlo_prune_width_of(list, other))
            continue;
        for (int a = 0; a < last_axis(v); a++)
            for (int64_t i = 0; i < mlo_prune_dim(v, a); i++) {
                int unit = mlo_prune_unit_at(p, v, a, i);
                for (int64_t j = 0; unit >= 0 && j < mlo_prune_dim(other, p->split_axis[n]); j++)
                    if (mlo_prune_unit_at(p, other, p->split_axis[n], j) == unit)
                        return true;
            }
    }
    return false;
}

enum mlo_status mlo_prune_find_attention(struct prune *p, const json_t *exclude,
                                         const struct mlo_stats *stats, struct mlo_arena *arena,
                                         struct prune_attention *out, struct mlo_prune_turned *list,
                                         struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    size_t makers = (size_t)p->weighted_count + 1, nodes = (size_t)p->graph->node_count + 1;
    struct walking k = {.p = p, .out = out, .stats = stats};
    *out = (struct prune_attention){0};
    list->count = 0;
    out->pairs = mlo_arena_calloc(p->arena, nodes, sizeof *out->pairs);
    list->widths = mlo_arena_calloc(arena, 2 * nodes, sizeof *list->widths);
    bool *failed = mlo_arena_calloc(p->arena, makers, sizeof *failed);
    if (!out->pairs || !list->widths || !failed)
        return mlo_error_nomem(err);
    for (int m = 0; m < p->weighted_count; m++) {
        k.claimed = mlo_arena_calloc(p->arena, (size_t)MLO_MAX(columns_of(p, m), 1), sizeof *k.claimed);
        if (!k.claimed)
            return mlo_error_nomem(err);
        failed[m] = !walk_maker(&k, m);
    }
    /* what was observed of a reader is not so any more when it makes parts itself */
    for (int i = 0; i < out->count; i++)
        if (out->pairs[i].reader)
            failed[out->pairs[i].reader - p->weighted] = true;
    for (bool again = true; again;) {
        struct prune *trial;
        again = false;
        if (!keep_whole(out, failed)) {
            list->count = 0;
            break;
        }
        MLO_TRY(list_splits(out, arena, list, err));
        MLO_TRY(mlo_prune_analyse(p->graph, exclude, list, p->arena, &trial, err));
        for (int i = 0; i < out->count; i++)
            for (int s = 0; s < 2; s++) {
                const struct prune_part *part = &out->pairs[i].part[s];
                if (failed[part->maker] ||
                    (can_go(trial, part->split) && !shares_heads(p, list, part->split)))
                    continue;
                failed[part->maker] = again = true;
            }
    }
out:
    return status;
}
