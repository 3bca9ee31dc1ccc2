/* Pending nodes become a chain: all that is behind a wanted value as far as it is not computed yet.
 *
 * The index space of a chain has the wanted value's dims as axes, and those that reductions behind it take
 * away. Each value in the chain maps its dims to axes. All reductions of a chain are over the same axes; a
 * node that this does not hold for is *cut*: computed by a chain of its own, before. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engines/cuda/plan/plan_impl.h"

enum { AXES = 16, MEMBERS = 48, RESULTS = 4, EXACT_MOST = 1 << 24 /* of integers in float32 */ };

struct member {
    const struct mlo_node *node;
    int map[MLO_MAX_RANK]; /* of the result's dims to axes; -1: a dim of one element without an axis */
    int reg;
    bool reduces, leaf_only; /* leaf_only: one operand that is there already, and numbers */
};

struct link { /* an operand or result in memory */
    int slot;
    int64_t offset;
    enum mlo_dtype dtype;
    int64_t strides[AXES];
    int reg;
};

struct axis {
    int64_t size;
    bool reduced;
    int rank, dim; /* of a reduction's operand that brought it; -1: the root's */
};

struct chain_builder {
    struct lower *l;
    struct cuda_chain *c;
    struct axis axes[AXES];
    int axis_count;
    struct member members[MEMBERS];
    int member_count;
    struct link operands[CUDA_CHAIN_OPERANDS], results[RESULTS];
    const struct mlo_value *result_values[RESULTS];
    int operand_count, result_count;
    bool reduces, trivial; /* trivial: the reduction at hand is over one element */
    bool full;
    const struct mlo_node *cut;
    enum mlo_status status; /* and err */
    struct mlo_error *err;
};

/* --- instructions
 * -------------------------------------------------------------------------------------------- */

static int append(struct chain_builder *b, const struct cuda_chain_instruction *i)
{
    if (b->c->count == CUDA_CHAIN_REGISTERS) {
        b->full = true;
        return -1;
    }
    b->c->code[b->c->count] = *i;
    return b->c->count++;
}

static bool is_reduction(enum cuda_chain_op op)
{
    return op == CUDA_OP_SUM || op == CUDA_OP_PRODUCT || op == CUDA_OP_REDUCE_MAX || op == CUDA_OP_REDUCE_MIN;
}

int chain_add(struct chain_builder *b, enum cuda_chain_op op, int a, int c2, int c3)
{
    if (a < 0 || c2 < 0 || c3 < 0)
        return -1;
    if (b->trivial && is_reduction(op))
        return a;
    return append(b, &(struct cuda_chain_instruction){.op = op, .a = a, .b = c2, .c = c3});
}

int chain_unary(struct chain_builder *b, enum cuda_math math, int a, float alpha, float beta)
{
    return a < 0 ? -1
                 : append(b, &(struct cuda_chain_instruction){
                                 .op = CUDA_OP_UNARY, .math = math, .a = a, .alpha = alpha, .beta = beta});
}

int chain_number(struct chain_builder *b, double value)
{
    return append(b, &(struct cuda_chain_instruction){.op = CUDA_OP_CONSTANT, .alpha = (float)value});
}

int chain_quantize(struct chain_builder *b, enum cuda_chain_op op, int a, float scale, float zero, float low,
                   float high)
{
    return a < 0 ? -1
                 : append(b, &(struct cuda_chain_instruction){
                                 .op = op, .a = a, .alpha = scale, .beta = zero, .low = low, .high = high});
}

static bool is_integer(enum mlo_dtype dtype)
{
    return dtype == MLO_INT32 || dtype == MLO_INT64;
}

/* The register with what is there; equal ones are loaded once. */
static int load(struct chain_builder *b, const struct place *p, const int *map, bool integer)
{
    struct link op = {.slot = p->slot, .offset = p->offset, .dtype = p->dtype};
    for (int i = 0; i < p->rank; i++)
        if (p->dims[i] != 1 && map[i] >= 0)
            op.strides[map[i]] = p->strides[i];
    for (int i = 0; i < b->operand_count; i++) {
        const struct link *o = &b->operands[i];
        if (o->slot == op.slot && o->offset == op.offset && o->dtype == op.dtype &&
            memcmp(o->strides, op.strides, sizeof op.strides) == 0)
            return o->reg;
    }
    if (b->operand_count == CUDA_CHAIN_OPERANDS) {
        b->full = true;
        return -1;
    }
    op.reg = append(b, &(struct cuda_chain_instruction){.op = integer ? CUDA_OP_LOAD_INTEGER : CUDA_OP_LOAD,
                                                        .a = b->operand_count});
    b->operands[b->operand_count++] = op;
    return op.reg;
}

/* --- the walk back
 * ------------------------------------------------------------------------------------------- */

static int visit(struct chain_builder *b, const struct mlo_value *v, const int *map);

static int fail(struct chain_builder *b, enum mlo_status status)
{
    if (b->status == MLO_OK)
        b->status = status;
    return -1;
}

static int leaf(struct chain_builder *b, const struct mlo_value *v, const int *map)
{
    struct place p;
    enum mlo_status status = lower_demand(b->l, v, WANT_ANY, &p, b->err);
    return status == MLO_OK ? load(b, &p, map, is_integer(p.dtype)) : fail(b, status);
}

/* The axis that a reduced dim gets when its result has none for it. Equal reductions share one. */
static int new_axis(struct chain_builder *b, int64_t size, int rank, int dim)
{
    for (int i = 0; i < b->axis_count; i++)
        if (b->axes[i].rank == rank && b->axes[i].dim == dim && b->axes[i].size == size)
            return i;
    if (b->axis_count == AXES) {
        b->full = true;
        return -1;
    }
    b->axes[b->axis_count] = (struct axis){.size = size, .rank = rank, .dim = dim};
    return b->axis_count++;
}

/* The map of a reduction's operand. False: the node must be cut (or it failed). */
static bool reduce_map(struct chain_builder *b, const struct mlo_node *node, const struct form *f,
                       const int *map, int *in_map)
{
    int64_t dims[MLO_MAX_RANK];
    bool set[AXES] = {false};
    int rank = node->inputs[0]->type.rank, at = 0, count = 0;
    if (!lower_dims(node->inputs[0], dims))
        return false;
    for (int i = 0; i < rank; i++) {
        bool reduced = f->reduced >> i & 1;
        if (!reduced || f->whole || f->keeps)
            in_map[i] = map[at++];
        else
            in_map[i] = -1;
        if (!reduced)
            continue;
        if (in_map[i] < 0 && dims[i] > 1)
            in_map[i] = new_axis(b, dims[i], rank, i);
        if (b->full)
            return false;
        if (in_map[i] < 0)
            continue;
        if (b->axes[in_map[i]].size != dims[i]) {
            b->cut = node;
            return false;
        }
        set[in_map[i]] = true;
        count++;
    }
    b->trivial = count == 0;
    for (int i = 0; i < b->axis_count && count; i++) {
        if (b->reduces && b->axes[i].reduced != set[i]) {
            b->cut = node;
            return false;
        }
    }
    for (int i = 0; i < b->axis_count && count; i++)
        b->axes[i].reduced = set[i];
    b->reduces |= count > 0;
    return true;
}

static int visit_operand(struct chain_builder *b, const struct mlo_node *node, const struct form *f, int i,
                         const int *map, int rank)
{
    const struct mlo_value *v = node->inputs[i];
    int own[MLO_MAX_RANK];
    double number;
    if (!v || f->skip[i])
        return -1;
    /* larger integers are loaded: registers of numbers are float32 */
    if (lower_number(v, &number) && (!is_integer(v->type.dtype) || fabs(number) <= EXACT_MOST))
        return chain_number(b, number);
    for (int k = 0; k < v->type.rank; k++)
        own[k] = f->align[i] == ALIGN_CHANNEL ? map[f->axis] : map[rank - v->type.rank + k];
    return visit(b, v, own);
}

/* --- views within chains
 * ------------------------------------------------------------------------------------- */

/* The map of a view's operand: a permutation, or dims of one element that come and go. */
static bool view_map(const struct mlo_node *node, const int *map, int *in_map)
{
    int64_t x[MLO_MAX_RANK], y[MLO_MAX_RANK];
    int rank = node->inputs[0]->type.rank, r = node->outputs[0]->type.rank, k = 0;
    size_t count;
    if (!lower_dims(node->inputs[0], x) || !lower_dims(node->outputs[0], y))
        return false;
    if (mlo_node_is(node, "Transpose")) {
        const int64_t *perm = mlo_node_attr_ints(node, "perm", &count);
        for (int i = 0; i < r && map; i++)
            in_map[perm ? perm[i] : r - 1 - i] = map[i];
        return true;
    }
    if (!mlo_node_is(node, "Reshape") && !mlo_node_is(node, "Flatten") && !mlo_node_is(node, "Squeeze") &&
        !mlo_node_is(node, "Unsqueeze") && !mlo_node_is(node, "Identity"))
        return false;
    for (int i = 0; i < rank; i++) {
        if (map)
            in_map[i] = -1;
        if (x[i] == 1)
            continue;
        while (k < r && y[k] == 1)
            k++;
        if (k == r || y[k] != x[i])
            return false;
        if (map)
            in_map[i] = map[k];
        k++;
    }
    while (k < r && y[k] == 1)
        k++;
    return k == r;
}

bool chain_takes_view(const struct lower *l, const struct mlo_node *node)
{
    const struct mlo_value *x = node->input_count ? node->inputs[0] : NULL;
    return x && x->producer && l->pending[x->producer->index] && !lower_is_placed(l, x) &&
           !lower_is_of_constants(l, x) && lower_loads(x->type.dtype) && view_map(node, NULL, NULL);
}

/* Computes a node's result under the map of its dims. */
static int visit_node(struct chain_builder *b, const struct mlo_node *node, const int *map)
{
    int in[FORM_INPUTS], in_map[MLO_MAX_RANK], rank = node->outputs[0]->type.rank, operands = 0;
    const struct mlo_value *x = node->inputs[0];
    struct form f;
    const char *why;
    for (int i = 0; i < b->member_count; i++)
        if (b->members[i].node == node &&
            (!rank || memcmp(b->members[i].map, map, (size_t)rank * sizeof *map) == 0))
            return b->members[i].reg;
    if (b->member_count < MEMBERS && view_map(node, map, in_map)) {
        struct member view = {.node = node, .leaf_only = true, .reg = visit(b, node->inputs[0], in_map)};
        if (rank)
            memcpy(view.map, map, (size_t)rank * sizeof *map);
        if (b->member_count < MEMBERS)
            b->members[b->member_count++] = view;
        return view.reg;
    }
    if (b->member_count == MEMBERS || !form_of(node, &f, &why)) {
        b->full = true;
        return -1;
    }
    struct member m = {.node = node, .reduces = f.reduced != 0, .leaf_only = f.reduced == 0};
    if (rank)
        memcpy(m.map, map, (size_t)rank * sizeof *map);
    if (f.reduced && !reduce_map(b, node, &f, map, in_map))
        return -1;
    bool trivial = b->trivial;
    for (int i = 0; i < f.input_count; i++) {
        double number;
        in[i] = i == 0 && f.reduced ? visit(b, x, in_map) : visit_operand(b, node, &f, i, map, rank);
        if (b->full || b->cut || b->status != MLO_OK)
            return -1;
        if (node->inputs[i] && !f.skip[i] && !lower_number(node->inputs[i], &number)) {
            operands++;
            m.leaf_only &= lower_is_placed(b->l, node->inputs[i]);
        }
    }
    b->trivial = f.reduced ? trivial : false;
    m.leaf_only &= operands <= 1;
    m.reg = f.emit(b, &f, in);
    b->trivial = false;
    if (b->member_count < MEMBERS) /* operands may have filled it */
        b->members[b->member_count++] = m;
    return m.reg;
}

static int visit(struct chain_builder *b, const struct mlo_value *v, const int *map)
{
    const struct mlo_node *node = v->producer;
    if (lower_is_placed(b->l, v) || lower_constant(v) || lower_is_of_constants(b->l, v))
        return leaf(b, v, map);
    if (!node || !b->l->pending[node->index]) {
        return fail(
            b, mlo_error_set(b->err, MLO_EINTERNAL, "value '%s' is read before a step makes it", v->name));
    }
    return visit_node(b, node, map);
}

/* --- what is stored
 * ------------------------------------------------------------------------------------------ */

static bool is_member(const struct chain_builder *b, const struct mlo_node *node)
{
    for (int i = 0; i < b->member_count; i++)
        if (b->members[i].node == node)
            return true;
    return false;
}

/* Whether somebody outside of the chain will want it. */
static bool wanted_outside(const struct chain_builder *b, const struct mlo_value *v)
{
    for (int i = 0; i < v->use_count; i++)
        if (!b->l->done[v->uses[i].node->index] && !is_member(b, v->uses[i].node))
            return true;
    return lower_is_shown(b->l, v);
}

/* The operand that the order of results follows: the one of most elements. */
static const struct link *leader_of(const struct chain_builder *b)
{
    const struct link *best = NULL;
    int64_t most = 0;
    for (int i = 0; i < b->operand_count; i++) {
        int64_t n = 1;
        for (int a = 0; a < b->axis_count; a++)
            n *= b->operands[i].strides[a] ? b->axes[a].size : 1;
        bool constant = b->l->s->slots[b->operands[i].slot].kind == CUDA_SLOT_CONST;
        if (n > most && !(constant && best)) {
            most = n;
            best = &b->operands[i];
        }
    }
    return best;
}

static int64_t magnitude(int64_t x)
{
    return x < 0 ? -x : x;
}

/* Axes from the outermost to the innermost by a list of strides; those without one keep their order. */
static void sort_axes(int *order, int count, const int64_t *strides)
{
    for (int i = 1; i < count; i++)
        for (int k = i; k > 0 && magnitude(strides[order[k]]) > magnitude(strides[order[k - 1]]) &&
                        strides[order[k - 1]] != 0;
             k--) {
            int t = order[k];
            order[k] = order[k - 1];
            order[k - 1] = t;
        }
}

/* A dense place whose dims lie in memory as the leader's do. */
static enum mlo_status follow_leader(struct chain_builder *b, const struct mlo_value *v, const int *map,
                                     struct place *out)
{
    const struct link *leader = leader_of(b);
    int order[MLO_MAX_RANK], count = 0;
    int64_t strides[MLO_MAX_RANK] = {0}, stride = 1;
    enum mlo_status status = lower_place_new(b->l, v, WANT_ROWS, out, b->err);
    if (status != MLO_OK || !leader)
        return status;
    for (int i = 0; i < out->rank; i++) {
        if (map[i] < 0)
            continue;
        strides[i] = leader->strides[map[i]];
        order[count++] = i;
    }
    for (int i = 0; i < count; i++)
        if (!strides[order[i]])
            return MLO_OK; /* the leader does not say where that dim belongs */
    sort_axes(order, count, strides);
    for (int i = count - 1; i >= 0; i--) {
        out->strides[order[i]] = stride;
        stride *= out->dims[order[i]];
    }
    return MLO_OK;
}

static void add_result(struct chain_builder *b, const struct mlo_value *v, const struct place *p,
                       const int *map, int reg)
{
    struct link r = {.slot = p->slot, .offset = p->offset, .dtype = p->dtype, .reg = reg};
    for (int i = 0; i < p->rank; i++)
        if (map[i] >= 0 && p->dims[i] != 1)
            r.strides[map[i]] = p->strides[i];
    b->result_values[b->result_count] = v;
    b->results[b->result_count++] = r;
}

/* Each index of the kept axes must have its own element. */
static bool covers(const struct chain_builder *b, const struct member *m)
{
    bool has[AXES] = {false};
    for (int i = 0; i < m->node->outputs[0]->type.rank; i++)
        if (m->map[i] >= 0 && m->node->outputs[0]->type.dims[i].value != 1)
            has[m->map[i]] = true;
    for (int i = 0; i < b->axis_count; i++)
        if (!has[i] && !b->axes[i].reduced && b->axes[i].size > 1)
            return false;
    return true;
}

static enum mlo_status store_others(struct chain_builder *b)
{
    enum mlo_status status = MLO_OK;
    for (int i = 0; i + 1 < b->member_count && b->result_count < RESULTS; i++) {
        const struct member *m = &b->members[i];
        const struct mlo_value *v = m->node->outputs[0];
        struct place p;
        bool again = lower_is_placed(b->l, v) || mlo_node_is(m->node, "DequantizeLinear");
        if (again || m->leaf_only || !wanted_outside(b, v) || !covers(b, m))
            continue;
        MLO_TRY(follow_leader(b, v, m->map, &p));
        add_result(b, v, &p, m->map, m->reg);
        lower_set(b->l, v, &p);
        b->l->done[m->node->index] = true;
    }
out:
    return status;
}

/* --- the step
 * ------------------------------------------------------------------------------------------------ */

/* Whether two neighbours can be walked as one axis. */
static bool merges(const struct chain_builder *b, int outer, int inner)
{
    if (b->axes[outer].reduced != b->axes[inner].reduced)
        return false;
    for (int i = 0; i < b->operand_count + b->result_count; i++) {
        const struct link *l = i < b->operand_count ? &b->operands[i] : &b->results[i - b->operand_count];
        if (l->strides[outer] != l->strides[inner] * b->axes[inner].size)
            return false;
    }
    return true;
}

static int space_of(struct chain_builder *b, int *order)
{
    const struct link *leader = leader_of(b);
    int kept[AXES], reduced[AXES], k = 0, r = 0, count = 0;
    for (int i = 0; i < b->axis_count; i++) {
        if (b->axes[i].size == 1)
            continue;
        if (b->axes[i].reduced)
            reduced[r++] = i;
        else
            kept[k++] = i;
    }
    sort_axes(kept, k, b->results[0].strides);
    if (leader)
        sort_axes(reduced, r, leader->strides);
    for (int i = 0; i < k + r; i++) {
        int a = i < k ? kept[i] : reduced[i - k];
        if (count && merges(b, order[count - 1], a)) {
            b->axes[a].size *= b->axes[order[count - 1]].size;
            order[count - 1] = a;
        } else {
            order[count++] = a;
        }
    }
    return count;
}

static void fill_operand(const struct link *l, const int *order, int rank, struct cuda_operand *out)
{
    *out = (struct cuda_operand){.dtype = l->dtype, .offset = l->offset, .reg = l->reg};
    for (int i = 0; i < rank; i++)
        out->strides[i] = l->strides[order[i]];
}

/* An operand whose memory the first result may take: read and written at the same index only. */
static int replaceable(const struct chain_builder *b)
{
    const struct link *r = &b->results[0];
    for (int i = 0; i < b->operand_count; i++) {
        const struct link *o = &b->operands[i];
        bool same = o->offset == 0 && r->offset == 0 && lower_element(o->dtype) == lower_element(r->dtype) &&
                    b->l->s->slots[o->slot].kind == CUDA_SLOT_ARENA && !b->l->s->slots[o->slot].is_part;
        for (int a = 0; a < b->axis_count && same; a++)
            same = b->axes[a].size == 1 || (o->strides[a] == r->strides[a] && o->strides[a] != 0);
        if (same)
            return i;
    }
    return -1;
}

static enum mlo_status finish(struct chain_builder *b, const struct mlo_node *node, bool may_replace)
{
    enum mlo_status status = MLO_OK;
    int order[AXES];
    int replaces = may_replace ? replaceable(b) : -1;
    int rank = space_of(b, order);
    if (rank > CUDA_RANK)
        return lower_unsupported(node, b->err,
                                 "its elements lie in %d dimensions that cannot be merged; a kernel has %d",
                                 rank, CUDA_RANK);
    b->c->rank = rank;
    b->c->reduced = 0;
    for (int i = 0; i < rank; i++) {
        b->c->dims[i] = b->axes[order[i]].size;
        b->c->reduced += b->axes[order[i]].reduced;
    }
    struct cuda_step *step = lower_step(b->l, CUDA_STEP_CHAIN, node, "chain");
    if (!step)
        return mlo_error_nomem(b->err);
    step->chain = b->c;
    step->replaces = replaces;
    step->precision = lower_precision(b->l, b->results[0].dtype, false);
    step->in_count = b->c->operand_count = b->operand_count;
    step->out_count = b->c->result_count = b->result_count;
    for (int i = 0; i < b->operand_count; i++) {
        step->in[i] = b->operands[i].slot;
        fill_operand(&b->operands[i], order, rank, &b->c->operands[i]);
    }
    for (int i = 0; i < b->result_count; i++) {
        step->out[i] = b->results[i].slot;
        fill_operand(&b->results[i], order, rank, &b->c->results[i]);
    }
    for (int i = 0; i < b->member_count; i++)
        MLO_TRY(lower_fuse(b->l, step, b->members[i].node, b->err));
out:
    return status;
}

static enum mlo_status builder_new(struct lower *l, struct mlo_error *err, struct chain_builder **out)
{
    *out = mlo_arena_calloc(l->arena, 1, sizeof **out);
    struct cuda_chain *c = mlo_arena_calloc(l->arena, 1, sizeof *c);
    if (!*out || !c)
        return mlo_error_nomem(err);
    (*out)->l = l;
    (*out)->c = c;
    (*out)->err = err;
    return MLO_OK;
}

static void root_axes(struct chain_builder *b, const int64_t *dims, int rank, int *map)
{
    for (int i = 0; i < rank; i++) {
        map[i] = -1;
        if (dims[i] == 1)
            continue;
        map[i] = b->axis_count;
        b->axes[b->axis_count++] = (struct axis){.size = dims[i], .rank = -1, .dim = i};
    }
}

/* A pending producer of one of the root's operands: what is cut when a chain is too long. */
static const struct mlo_node *pending_operand(const struct lower *l, const struct mlo_node *root)
{
    for (int i = 0; i < root->input_count; i++) {
        const struct mlo_value *v = root->inputs[i];
        if (v && v->producer && !lower_is_placed(l, v) && !lower_constant(v) &&
            l->pending[v->producer->index])
            return v->producer;
    }
    return NULL;
}

enum mlo_status chain_emit(struct lower *l, const struct mlo_value *value, enum want order,
                           const struct place *to, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_node *root = value->producer;
    int64_t dims[MLO_MAX_RANK];
    int map[MLO_MAX_RANK];
    struct chain_builder *b;
    struct place p;
    if (!lower_dims(value, dims))
        return lower_unsupported(root, err, "the shape of its result is not known before it runs");
    for (;;) {
        MLO_TRY(builder_new(l, err, &b));
        root_axes(b, dims, value->type.rank, map);
        int reg = visit_node(b, root, map);
        if (b->status != MLO_OK)
            return b->status;
        const struct mlo_node *cut = b->full ? pending_operand(l, root) : b->cut;
        if (!cut && reg >= 0)
            break;
        if (!cut || cut == root)
            return lower_unsupported(root, err, "it has more operands than a chain (%d)",
                                     CUDA_CHAIN_OPERANDS);
        MLO_TRY(lower_demand(l, cut->outputs[0], WANT_ANY, &p, err));
    }
    if (to)
        p = *to;
    else if (order == WANT_ANY)
        MLO_TRY(follow_leader(b, value, map, &p));
    else
        MLO_TRY(lower_place_new(l, value, order, &p, err));
    add_result(b, value, &p, map, b->members[b->member_count - 1].reg);
    lower_set(l, value, &p);
    l->done[root->index] = true;
    MLO_TRY(store_others(b));
    MLO_TRY(finish(b, root, !to));
out:
    return status;
}

/* --- copies
 * -------------------------------------------------------------------------------------------------- */

enum mlo_status chain_copy(struct lower *l, const struct mlo_node *node, const struct place *from,
                           const struct place *to, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct chain_builder *b;
    int map[MLO_MAX_RANK];
    MLO_TRY(builder_new(l, err, &b));
    root_axes(b, to->dims, to->rank, map);
    int reg = load(b, from, map, is_integer(from->dtype) && from->dtype != to->dtype);
    add_result(b, NULL, to, map, reg);
    MLO_TRY(finish(b, node, false));
out:
    return status;
}

/* Activations as functions of a register; those with bounds take them as alpha and beta. */
static const enum cuda_math activations[] = {
    [CUDA_ACT_RELU] = CUDA_MATH_RELU,       [CUDA_ACT_CLIP] = CUDA_MATH_CLIP,
    [CUDA_ACT_SIGMOID] = CUDA_MATH_SIGMOID, [CUDA_ACT_TANH] = CUDA_MATH_TANH,
    [CUDA_ACT_GELU] = CUDA_MATH_GELU,       [CUDA_ACT_GELU_TANH] = CUDA_MATH_GELU_TANH,
    [CUDA_ACT_SWISH] = CUDA_MATH_SWISH,
};

enum mlo_status chain_product(struct lower *l, const struct mlo_node *node, const struct place *sums,
                              const struct product_numbers *numbers, const struct epilogue *e,
                              const struct place *residual, const struct place *y, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct chain_builder *b;
    int map[MLO_MAX_RANK];
    struct place columns = {.dtype = MLO_FLOAT32, .rank = 1, .strides = {1}};
    MLO_TRY(builder_new(l, err, &b));
    root_axes(b, sums->dims, sums->rank, map);
    const int *last = &map[sums->rank - 1];
    columns.dims[0] = sums->dims[sums->rank - 1];
    columns.slot = numbers->scale;
    int reg = load(b, sums, map, false);
    reg = chain_add(b, CUDA_OP_MUL, reg, load(b, &columns, last, false), 0);
    columns.slot = numbers->bias;
    if (numbers->bias >= 0)
        reg = chain_add(b, CUDA_OP_ADD, reg, load(b, &columns, last, false), 0);
    if (residual)
        reg = chain_add(b, CUDA_OP_ADD, reg, load(b, residual, map, false), 0);
    if (e->activation == CUDA_ACT_CLIP)
        reg = chain_unary(b, CUDA_MATH_CLIP, reg, e->low, e->high);
    else if (e->activation != CUDA_ACT_NONE)
        reg = chain_unary(b, activations[e->activation], reg, 0, 0);
    if (e->quantized && lower_is_float8(y->dtype)) /* storing rounds and saturates */
        reg = chain_add(b, CUDA_OP_DIV, reg, chain_number(b, e->scale), 0);
    else if (e->quantized)
        reg = chain_quantize(b, CUDA_OP_QUANTIZE, reg, e->scale, 0, INT8_MIN, INT8_MAX);
    add_result(b, NULL, y, map, reg);
    MLO_TRY(finish(b, node, true));
out:
    return status;
}

enum mlo_status chain_fill(struct lower *l, const struct mlo_node *node, const struct place *to,
                           double number, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct chain_builder *b;
    int map[MLO_MAX_RANK];
    MLO_TRY(builder_new(l, err, &b));
    root_axes(b, to->dims, to->rank, map);
    add_result(b, NULL, to, map, chain_number(b, number));
    MLO_TRY(finish(b, node, false));
out:
    return status;
}

enum mlo_status chain_interleave(struct lower *l, const struct mlo_node *node, const struct place *from,
                                 const struct place *to, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct chain_builder *b;
    int map[MLO_MAX_RANK];
    struct place in = *from, out = *to;
    MLO_TRY(builder_new(l, err, &b));
    place_slice(&out, 1, 0, 1, 1);
    root_axes(b, out.dims, out.rank, map);
    for (int64_t c = 0; c < to->dims[1] && c < RESULTS; c++) {
        int reg;
        if (c < from->dims[1]) {
            in = *from;
            place_slice(&in, 1, c, 1, 1);
            reg = load(b, &in, map, false);
        } else {
            reg = chain_number(b, 0);
        }
        out = *to;
        place_slice(&out, 1, c, 1, 1);
        add_result(b, NULL, &out, map, reg);
    }
    MLO_TRY(finish(b, node, false));
out:
    return status;
}
