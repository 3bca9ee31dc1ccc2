/* Attention as one step: MatMul(Q, K^T), scaled and masked or not, Softmax, MatMul with V. Found before
 * anything is lowered, so that the Transposes around it are never emitted: heads are read, and written, where
 * they lie. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engines/cpu/fast/attention.h"
#include "engines/cpu/fast/fast_impl.h"
#include "engines/cpu/image_impl.h"

enum { SCRATCH_MAX = 1 << 26 }; /* elements of keys and values of one head */

/* --- values as strided views of others ------------------------------------------------------------------ */

struct view {
    const struct mlo_value *base; /* read in row-major order */
    struct fast_shape shape;
    int64_t strides[MLO_MAX_RANK], offset;
    float factor; /* of a Mul or Div by a constant on the way */
};

static bool contiguous(const struct mlo_value *value, struct view *out)
{
    *out = (struct view){.base = value, .factor = 1.0f};
    if (!fast_shape(value, &out->shape) || out->shape.count == 0)
        return false;
    int64_t stride = 1;
    for (int i = out->shape.rank - 1; i >= 0; i--) {
        out->strides[i] = stride;
        stride *= out->shape.dims[i];
    }
    return true;
}

/* The same elements under other dims, where strides can say so. */
static bool reshape(struct view *v, const struct fast_shape *to)
{
    int64_t strides[MLO_MAX_RANK] = {0};
    int i = 0, k = 0;
    while (i < v->shape.rank || k < to->rank) {
        if (i < v->shape.rank && v->shape.dims[i] == 1) {
            i++;
            continue;
        }
        if (k < to->rank && to->dims[k] == 1) {
            k++;
            continue;
        }
        if (i == v->shape.rank || k == to->rank)
            return false;
        int from = k;
        int64_t a = v->shape.dims[i++], b = to->dims[k++];
        while (a != b) {
            if (a < b && i < v->shape.rank) {
                if (v->shape.dims[i] != 1 && v->strides[i - 1] != v->strides[i] * v->shape.dims[i])
                    return false;
                if (v->shape.dims[i] == 1)
                    return false;
                a *= v->shape.dims[i++];
            } else if (b < a && k < to->rank) {
                b *= to->dims[k++];
            } else {
                return false;
            }
        }
        int64_t stride = v->strides[i - 1];
        for (int j = k - 1; j >= from; j--) {
            strides[j] = stride;
            stride *= to->dims[j];
        }
    }
    v->shape = *to;
    memcpy(v->strides, strides, sizeof strides);
    return true;
}

static bool is_reshape(const struct mlo_node *node)
{
    return mlo_node_is(node, "Reshape") || mlo_node_is(node, "Squeeze") || mlo_node_is(node, "Unsqueeze") ||
           mlo_node_is(node, "Flatten") || mlo_node_is(node, "Identity");
}

static bool scalar(const struct mlo_value *value, float *out)
{
    const struct mlo_tensor *t = value ? fast_initializer(value) : NULL;
    if (!t || t->dtype != MLO_FLOAT32 || mlo_tensor_count(t) != 1)
        return false;
    *out = *(const float *)t->data;
    return true;
}

/* Mul or Div of x by one finite constant. */
static bool scaling(const struct mlo_node *node, const struct mlo_value **x, float *factor)
{
    float c;
    if (mlo_node_is(node, "Mul") && scalar(node->inputs[1], &c))
        *x = node->inputs[0], *factor = c;
    else if (mlo_node_is(node, "Mul") && scalar(node->inputs[0], &c))
        *x = node->inputs[1], *factor = c;
    else if (mlo_node_is(node, "Div") && scalar(node->inputs[1], &c) && c != 0.0f)
        *x = node->inputs[0], *factor = 1.0f / c;
    else
        return false;
    return isfinite(*factor) && (*x)->type.rank == node->outputs[0]->type.rank;
}

static bool trace(const struct mlo_plan *plan, const struct mlo_value *value, int depth, struct view *out)
{
    const struct mlo_node *node = value->producer;
    const struct mlo_value *x;
    struct fast_shape s;
    float factor;
    if (!node || depth == 0 || plan->done[node->index] || value->is_output || cpu_is_observed(plan, value) ||
        !fast_shape(value, &s))
        return contiguous(value, out);
    if (mlo_node_is(node, "Transpose")) {
        struct view in;
        size_t count;
        const int64_t *perm = mlo_node_attr_ints(node, "perm", &count);
        if (!trace(plan, node->inputs[0], depth - 1, &in))
            return false;
        *out = in;
        out->shape = s;
        for (int i = 0; i < s.rank; i++)
            out->strides[i] = in.strides[perm ? perm[i] : s.rank - 1 - i];
        return true;
    }
    if (is_reshape(node) && trace(plan, node->inputs[0], depth - 1, out) && reshape(out, &s))
        return true;
    if (scaling(node, &x, &factor) && mlo_value_sole_user(value) && trace(plan, x, depth - 1, out)) {
        out->factor *= factor;
        return true;
    }
    return contiguous(value, out);
}

/* --- the pattern ---------------------------------------------------------------------------------------- */

struct attention {
    struct view q, k, v;
    const struct mlo_value *mask; /* or NULL */
    float scale;
    const struct mlo_node *nodes[12]; /* besides the last MatMul */
    int node_count;
    struct mlo_value *end; /* what is written, densely; its last two dims but for `swapped` */
    bool swapped;          /* the end is a Transpose that exchanges heads and queries */
    bool quantized, dequantized;
    struct cpu_qparams y_q;
};

static void take(struct attention *a, const struct mlo_node *node)
{
    a->nodes[a->node_count++] = node;
}

static bool last_axis(const struct mlo_node *softmax)
{
    int rank = softmax->inputs[0]->type.rank;
    int64_t axis = mlo_node_attr_i(softmax, "axis", softmax->version < 13 ? 1 : -1);
    return axis == -1 || axis == rank - 1;
}

static bool broadcasts(const struct mlo_value *value, const struct fast_shape *to)
{
    struct fast_shape s;
    if (value->type.dtype != MLO_FLOAT32 || !fast_shape(value, &s) || s.rank > to->rank || s.count == 0)
        return false;
    for (int i = 0; i < s.rank; i++)
        if (s.dims[i] != 1 && s.dims[i] != to->dims[to->rank - s.rank + i])
            return false;
    return true;
}

static bool same_shape(const struct mlo_value *a, const struct mlo_value *b)
{
    struct fast_shape x, y;
    return fast_shape(a, &x) && fast_shape(b, &y) && x.rank == y.rank &&
           memcmp(x.dims, y.dims, (size_t)x.rank * sizeof *x.dims) == 0;
}

/* Back from the Softmax to the product of queries and keys. */
static const struct mlo_node *find_scores(const struct mlo_plan *plan, const struct mlo_node *softmax,
                                          struct attention *a)
{
    const struct mlo_value *x = softmax->inputs[0], *inner;
    struct fast_shape s;
    float factor;
    a->scale = 1.0f;
    if (!fast_shape(x, &s))
        return NULL;
    for (int steps = 0; steps < 3; steps++) {
        const struct mlo_node *node = x->producer;
        if (!node || fast_reader(plan, x) == NULL || plan->done[node->index])
            return NULL;
        if (mlo_node_is(node, "MatMul")) {
            take(a, node);
            return node;
        }
        if (scaling(node, &inner, &factor)) {
            a->scale *= factor;
        } else if (mlo_node_is(node, "Add") && !a->mask && a->scale == 1.0f) {
            int side = node->inputs[0]->producer && !node->inputs[0]->constant &&
                               (mlo_node_is(node->inputs[0]->producer, "MatMul") ||
                                scaling(node->inputs[0]->producer, &inner, &factor))
                           ? 0
                           : 1;
            inner = node->inputs[side];
            a->mask = node->inputs[!side];
            if (!broadcasts(a->mask, &s))
                return NULL;
        } else {
            return NULL;
        }
        take(a, node);
        x = inner;
    }
    return NULL;
}

/* What follows: quantization, and the Transpose that brings queries before heads. */
static void find_end(const struct mlo_plan *plan, const struct mlo_node *product, struct attention *a)
{
    static const int64_t swap[] = {0, 2, 1, 3};
    size_t count = 0;
    a->end = product->outputs[0];
    const struct mlo_node *node = fast_reader(plan, a->end), *q = NULL, *dq = NULL;
    struct cpu_qparams again;
    if (node && mlo_node_is(node, "QuantizeLinear") && node->inputs[0] == a->end &&
        fast_qparams(node, &a->y_q)) {
        q = node;
        a->quantized = true;
        a->end = q->outputs[0];
        take(a, q);
        node = fast_reader(plan, a->end);
        if (node && mlo_node_is(node, "DequantizeLinear") && fast_qparams(node, &again) &&
            fast_same_q(&again, &a->y_q)) {
            dq = node;
            a->dequantized = true;
            a->end = dq->outputs[0];
            take(a, dq);
            node = fast_reader(plan, a->end);
        }
    }
    const int64_t *perm =
        node && mlo_node_is(node, "Transpose") ? mlo_node_attr_ints(node, "perm", &count) : NULL;
    if (perm && count == 4 && memcmp(perm, swap, sizeof swap) == 0) {
        a->swapped = true;
        a->end = node->outputs[0];
        take(a, node);
    }
}

static bool shapes_fit(const struct attention *a)
{
    const struct fast_shape *q = &a->q.shape, *k = &a->k.shape, *v = &a->v.shape;
    int r = q->rank;
    if (r < 2 || r > 4 || k->rank != r || v->rank != r || q->dims[r - 1] != k->dims[r - 2] ||
        k->dims[r - 1] != v->dims[r - 2])
        return false;
    for (int i = 0; i < r - 2; i++)
        if (q->dims[i] != k->dims[i] || q->dims[i] != v->dims[i])
            return false;
    /* a score's row must stay in the caches, and in int32 */
    return k->dims[r - 1] <= 16384 && q->dims[r - 1] <= 1024 && v->dims[r - 1] <= 1024;
}

static bool match(const struct mlo_plan *plan, const struct mlo_node *softmax,
                  const struct mlo_node **product, struct attention *a)
{
    *a = (struct attention){0};
    if (!mlo_node_is(softmax, "Softmax") || plan->done[softmax->index] || !last_axis(softmax) ||
        softmax->inputs[0]->type.dtype != MLO_FLOAT32)
        return false;
    const struct mlo_value *p = softmax->outputs[0];
    *product = fast_reader(plan, p);
    if (!*product || !mlo_node_is(*product, "MatMul") || (*product)->inputs[0] != p ||
        (*product)->inputs[1] == p)
        return false;
    take(a, softmax);
    const struct mlo_node *scores = find_scores(plan, softmax, a);
    /* a mask may be what makes more rows or heads of the scores: those have sizes of their own */
    if (!scores || !same_shape(scores->outputs[0], softmax->inputs[0]) ||
        !trace(plan, scores->inputs[0], 8, &a->q) || !trace(plan, scores->inputs[1], 8, &a->k) ||
        !trace(plan, (*product)->inputs[1], 8, &a->v) || !shapes_fit(a))
        return false;
    a->scale *= a->q.factor * a->k.factor;
    if (a->v.factor != 1.0f || !isfinite(a->scale))
        return false;
    find_end(plan, *product, a);
    return true;
}

/* Views that only attention reads are not computed. `absorbed`: by node; `bases`: by value, read where they
 * are. */
static void drop_unread(struct mlo_plan *plan, bool *absorbed, const bool *bases)
{
    const struct mlo_graph *g = plan->model->graph;
    for (int n = g->node_count - 1; n >= 0; n--) {
        const struct mlo_node *node = g->nodes[n];
        const struct mlo_value *x, *v = node->output_count == 1 ? node->outputs[0] : NULL;
        float factor;
        if (plan->done[n] || !v || bases[v->index] || v->use_count == 0 || v->is_output ||
            cpu_is_observed(plan, v) ||
            (!mlo_node_is(node, "Transpose") && !is_reshape(node) && !scaling(node, &x, &factor)))
            continue;
        bool unread = true;
        for (int k = 0; unread && k < v->use_count; k++)
            unread = v->uses[k].node->graph == g && absorbed[v->uses[k].node->index];
        plan->done[n] = absorbed[n] = unread;
    }
}

enum mlo_status fast_find_attention(struct mlo_plan *plan, struct mlo_error *err)
{
    const struct mlo_graph *g = plan->model->graph;
    bool *absorbed = mlo_arena_calloc(plan->arena, (size_t)g->node_count + 1, sizeof *absorbed);
    bool *bases = mlo_arena_calloc(plan->arena, (size_t)g->value_count + 1, sizeof *bases);
    plan->ahead = mlo_arena_calloc(plan->arena, (size_t)g->node_count + 1, sizeof *plan->ahead);
    if (!absorbed || !bases || !plan->ahead)
        return mlo_error_nomem(err);
    for (int n = 0; n < g->node_count; n++) {
        const struct mlo_node *product;
        struct attention a, *kept;
        if (!match(plan, g->nodes[n], &product, &a))
            continue;
        kept = mlo_arena_alloc(plan->arena, sizeof *kept);
        if (!kept)
            return mlo_error_nomem(err);
        *kept = a;
        plan->ahead[product->index] = kept;
        absorbed[product->index] = true; /* it reads views; it is lowered as the whole */
        for (int i = 0; i < a.node_count; i++)
            plan->done[a.nodes[i]->index] = absorbed[a.nodes[i]->index] = true;
        bases[a.q.base->index] = bases[a.k.base->index] = bases[a.v.base->index] = true;
        if (a.mask) {
            absorbed[n] = true;
            bases[a.mask->index] = true;
        }
    }
    drop_unread(plan, absorbed, bases);
    return MLO_OK;
}

/* --- the step ------------------------------------------------------------------------------------------- */

struct attention_data {
    enum mlo_isa isa;
    size_t outer, heads; /* leading dims of the products */
    struct attention_head head;
    int64_t q_at[2], k_at[2], v_at[2], mask_at[2], y_at[2]; /* strides of outer and heads, in elements */
    int64_t q_offset, k_offset, v_offset;
    size_t scratch_bytes; /* a thread's */
    int masked;           /* or 0; no bool: it may come out of a file */
};

struct attention_call {
    const struct attention_data *d;
    const float *q, *k, *v, *mask;
    char *y, *scratch;
    size_t parts; /* in which the queries of a head are split */
};

static void attention_range(void *arg, size_t begin, size_t end, unsigned worker)
{
    const struct attention_call *c = arg;
    const struct attention_data *d = c->d;
    const struct attention_kernels *kernels = attention_kernels_for(d->isa);
    float *scratch = (float *)(void *)(c->scratch + worker * d->scratch_bytes);
    size_t ready = SIZE_MAX, queries = d->head.queries;
    size_t step = (queries + c->parts - 1) / c->parts;
    step = (step + ATTENTION_ROWS - 1) / ATTENTION_ROWS * ATTENTION_ROWS;
    for (size_t item = begin; item < end; item++) {
        size_t which = item / c->parts, first = item % c->parts * step;
        int64_t o = (int64_t)(which / d->heads), i = (int64_t)(which % d->heads);
        struct attention_head h = d->head;
        if (first >= queries)
            continue;
        h.q = c->q + d->q_offset + o * d->q_at[0] + i * d->q_at[1];
        h.k = c->k + d->k_offset + o * d->k_at[0] + i * d->k_at[1];
        h.v = c->v + d->v_offset + o * d->v_at[0] + i * d->v_at[1];
        h.mask = d->masked ? c->mask + o * d->mask_at[0] + i * d->mask_at[1] : NULL;
        h.y = c->y + (o * d->y_at[0] + i * d->y_at[1]) * (h.quantized ? 1 : (int64_t)sizeof(float));
        if (ready != which)
            kernels->prepare(&h, scratch);
        ready = which;
        kernels->rows(&h, scratch, first, MLO_MIN(first + step, queries));
    }
}

static enum mlo_status attention_load(struct mlo_program *program, const struct cpu_step *step, void **state,
                                      struct mlo_error *err)
{
    const struct attention_data *d = step->data;
    *state = cpu_aligned(cpu_product(d->scratch_bytes, mlo_pool_threads(program->pool), 1));
    return *state ? MLO_OK : mlo_error_nomem(err);
}

static enum mlo_status attention_run(struct mlo_program *program, const struct cpu_step *step, void *state,
                                     struct mlo_error *err)
{
    MLO_UNUSED(err);
    const struct attention_data *d = step->data;
    struct attention_call c = {.d = d,
                               .q = program->at[step->in[0]],
                               .k = program->at[step->in[1]],
                               .v = program->at[step->in[2]],
                               .mask = d->masked ? program->at[step->in[3]] : NULL,
                               .y = program->at[step->out[0]],
                               .scratch = state,
                               .parts = 1};
    enum { SUMS_A_CYCLE = 8 }; /* with the softmax between */
    size_t all = d->outer * d->heads, sums = d->head.keys * (d->head.depth + d->head.width);
    size_t threads =
        fast_sharing(mlo_pool_threads(program->pool), all * d->head.queries * sums / SUMS_A_CYCLE);
    if (all < 2 * threads && threads > 1)
        c.parts = MLO_MIN(2 * threads, (d->head.queries + ATTENTION_ROWS - 1) / ATTENTION_ROWS);
    mlo_pool_run(program->pool, all * c.parts, threads > 1 ? 1 : all, attention_range, &c);
    return MLO_OK;
}

static enum mlo_status attention_save(const struct mlo_plan *plan, const struct cpu_step *step,
                                      struct cpu_writer *w, struct mlo_error *err)
{
    MLO_UNUSED(plan);
    MLO_UNUSED(err);
    cpu_put_bytes(w, step->data, sizeof(struct attention_data));
    return MLO_OK;
}

/* Elements that strides reach, the first one counted; SIZE_MAX when one goes backwards. */
static size_t reach(const struct attention_data *d, int64_t offset, const int64_t at[2], size_t rows,
                    ptrdiff_t row, size_t columns, ptrdiff_t col)
{
    const size_t counts[] = {d->outer, d->heads, rows, columns};
    const int64_t strides[] = {at[0], at[1], row, col};
    size_t end = offset < 0 || (uint64_t)offset > SIZE_MAX / 4 ? SIZE_MAX / 4 : (size_t)offset;
    for (int i = 0; i < 4; i++) {
        size_t far =
            strides[i] < 0 || counts[i] == 0 ? SIZE_MAX : cpu_product(counts[i] - 1, (size_t)strides[i], 1);
        if (far > SIZE_MAX / 8 || end > SIZE_MAX / 8)
            return SIZE_MAX;
        end += far;
    }
    return end + 1;
}

static enum mlo_status attention_restore(struct mlo_plan *plan, struct cpu_step *step, struct cpu_reader *r,
                                         struct mlo_error *err)
{
    struct attention_data *d = calloc(1, sizeof *d);
    if (!d)
        return mlo_error_nomem(err);
    step->data = d;
    cpu_get_bytes(r, d, sizeof *d);
    const struct attention_head *h = &d->head;
    d->isa = plan->isa;
    if (cpu_check(r, step->in_count == 4 && step->out_count == 1, "a step has other operands") &&
        cpu_check(r,
                  h->keys > 0 && h->queries > 0 && h->depth > 0 && h->width > 0 && h->keys <= 1 << 20 &&
                      h->depth <= 1 << 12 && h->width <= 1 << 12 && (h->mask_col == 0 || h->mask_col == 1) &&
                      h->keys * (h->depth + h->width) <= SCRATCH_MAX && d->outer > 0 && d->heads > 0 &&
                      d->scratch_bytes == attention_scratch(h->keys, h->depth, h->width),
                  "attention has impossible sizes") &&
        /* each element is written once: nothing runs for longer than its result is large */
        cpu_slot_holds(
            r, plan, step->out[0],
            cpu_product(cpu_product(d->outer, d->heads, h->queries), h->width, h->quantized ? 1 : 4)) &&
        cpu_slot_holds(
            r, plan, step->in[0],
            cpu_product(reach(d, d->q_offset, d->q_at, h->queries, h->q_row, h->depth, h->q_col), 4, 1)) &&
        cpu_slot_holds(
            r, plan, step->in[1],
            cpu_product(reach(d, d->k_offset, d->k_at, h->keys, h->k_row, h->depth, h->k_col), 4, 1)) &&
        cpu_slot_holds(
            r, plan, step->in[2],
            cpu_product(reach(d, d->v_offset, d->v_at, h->keys, h->v_row, h->width, h->v_col), 4, 1)) &&
        (!d->masked ||
         cpu_slot_holds(
             r, plan, step->in[3],
             cpu_product(reach(d, 0, d->mask_at, h->queries, h->mask_row, h->keys, h->mask_col), 4, 1))))
        cpu_slot_holds(r, plan, step->out[0],
                       cpu_product(reach(d, 0, d->y_at, h->queries, h->y_row, h->width, h->y_col),
                                   h->quantized ? 1 : 4, 1));
    return cpu_reader_status(r, err);
}

const struct cpu_step_class fast_attention_class = {.name = "attention",
                                                    .load = attention_load,
                                                    .run = attention_run,
                                                    .unload = free,
                                                    .free_data = free,
                                                    .id = "attention",
                                                    .save = attention_save,
                                                    .restore = attention_restore};

/* --- lowering ------------------------------------------------------------------------------------------- */

/* Strides of the two leading dims; a product of fewer has 0 there. */
static void leading(const int64_t *strides, int rank, int64_t out[2])
{
    out[0] = rank > 3 ? strides[rank - 4] : 0;
    out[1] = rank > 2 ? strides[rank - 3] : 0;
}

static void lay_out(const struct attention *a, struct attention_data *d)
{
    const struct fast_shape *q = &a->q.shape;
    struct attention_head *h = &d->head;
    int r = q->rank;
    h->queries = (size_t)q->dims[r - 2];
    h->depth = (size_t)q->dims[r - 1];
    h->keys = (size_t)a->k.shape.dims[r - 1];
    h->width = (size_t)a->v.shape.dims[r - 1];
    h->scale = a->scale;
    d->outer = r > 3 ? (size_t)q->dims[r - 4] : 1;
    d->heads = r > 2 ? (size_t)q->dims[r - 3] : 1;
    h->q_row = a->q.strides[r - 2], h->q_col = a->q.strides[r - 1];
    h->k_row = a->k.strides[r - 1], h->k_col = a->k.strides[r - 2]; /* it is given as K^T */
    h->v_row = a->v.strides[r - 2], h->v_col = a->v.strides[r - 1];
    leading(a->q.strides, r, d->q_at);
    leading(a->k.strides, r, d->k_at);
    leading(a->v.strides, r, d->v_at);
    d->q_offset = a->q.offset, d->k_offset = a->k.offset, d->v_offset = a->v.offset;
    /* y is [outer, heads, queries, width], or queries before heads */
    int64_t queries = (int64_t)h->queries, heads = (int64_t)d->heads, width = (int64_t)h->width;
    h->y_col = 1;
    h->y_row = a->swapped ? heads * width : width;
    d->y_at[1] = a->swapped ? width : queries * width;
    d->y_at[0] = heads * queries * width;
    h->quantized = a->quantized;
    h->is_signed = a->y_q.dtype == MLO_INT8;
    h->y_scale = a->y_q.scale;
    h->y_zero = (float)a->y_q.zero_point;
    if (a->mask) {
        struct fast_shape s;
        int64_t strides[MLO_MAX_RANK] = {0}, stride = 1;
        fast_shape(a->mask, &s);
        for (int i = s.rank - 1; i >= 0; i--) {
            strides[r - s.rank + i] = s.dims[i] == 1 ? 0 : stride;
            stride *= s.dims[i];
        }
        d->masked = true;
        leading(strides, r, d->mask_at);
        h->mask_row = strides[r - 2];
        h->mask_col = strides[r - 1];
    }
    d->scratch_bytes = attention_scratch(h->keys, h->depth, h->width);
}

enum mlo_status fast_lower_attention(struct mlo_plan *plan, const struct mlo_node *node, bool *done,
                                     struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct attention *a = plan->ahead && mlo_node_is(node, "MatMul") ? plan->ahead[node->index] : NULL;
    int slots[4] = {-1, -1, -1, -1};
    if (!a)
        return MLO_OK;
    MLO_TRY(fast_value(plan, a->q.base, CPU_PLAIN, &slots[0], err));
    MLO_TRY(fast_value(plan, a->k.base, CPU_PLAIN, &slots[1], err));
    MLO_TRY(fast_value(plan, a->v.base, CPU_PLAIN, &slots[2], err));
    if (a->mask)
        MLO_TRY(fast_value(plan, a->mask, CPU_PLAIN, &slots[3], err));
    struct attention_data *d = calloc(1, sizeof *d);
    int to = fast_new_slot(plan, a->end, a->quantized);
    struct cpu_step *step = d && to >= 0 ? cpu_step_new(plan, &fast_attention_class, node, 4, 1) : NULL;
    if (!step) {
        free(d);
        return mlo_error_nomem(err);
    }
    d->isa = plan->isa;
    lay_out(a, d);
    step->data = d;
    memcpy(step->in, slots, sizeof slots);
    step->out[0] = to;
    for (int i = 0; i < a->node_count; i++)
        if (!cpu_step_fuse(plan, step, a->nodes[i])) {
            status = mlo_error_nomem(err);
            goto out;
        }
    if (a->dequantized)
        fast_set_q(plan, a->end, CPU_PLAIN, to, &a->y_q);
    else
        fast_set(plan, a->end, CPU_PLAIN, to);
    *done = true;
out:
    return status;
}
