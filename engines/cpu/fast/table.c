/* Functions of one quantized value with a quantized result, whatever they are made of: 256 results, computed
 * at compile time by the reference kernels, so that they are exact. */
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "engines/cpu/fast/fast_impl.h"
#include "engines/cpu/image_impl.h"

enum { GRAIN = 65536, MAX_NODES = FAST_CHAIN_MAX };

struct table {
    uint8_t to[256];
    void (*look_up)(const uint8_t *table, const uint8_t *x, size_t count, uint8_t *y);
    size_t count;
};

static void look_up(const uint8_t *table, const uint8_t *x, size_t count, uint8_t *y)
{
    for (size_t i = 0; i < count; i++)
        y[i] = table[x[i]];
}

#if defined(__x86_64__)
__attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi"))) static void
look_up_vbmi(const uint8_t *table, const uint8_t *x, size_t count, uint8_t *y)
{
    __m512i t[4];
    for (int i = 0; i < 4; i++)
        t[i] = _mm512_loadu_si512(table + 64 * i);
    for (size_t i = 0; i < count; i += 64) {
        size_t left = count - i;
        __mmask64 m = left < 64 ? ((__mmask64)1 << left) - 1 : ~(__mmask64)0;
        __m512i v = _mm512_maskz_loadu_epi8(m, x + i);
        __m512i low = _mm512_permutex2var_epi8(t[0], v, t[1]), high = _mm512_permutex2var_epi8(t[2], v, t[3]);
        _mm512_mask_storeu_epi8(y + i, m, _mm512_mask_blend_epi8(_mm512_movepi8_mask(v), low, high));
    }
}
#endif

struct call {
    const struct table *t;
    const uint8_t *x;
    uint8_t *y;
};

static void range(void *arg, size_t begin, size_t end, unsigned worker)
{
    MLO_UNUSED(worker);
    const struct call *c = arg;
    c->t->look_up(c->t->to, c->x + begin, end - begin, c->y + begin);
}

static enum mlo_status run(struct mlo_program *program, const struct cpu_step *step, void *state,
                           struct mlo_error *err)
{
    MLO_UNUSED(state);
    MLO_UNUSED(err);
    struct call call = {step->data, program->at[step->in[0]], program->at[step->out[0]]};
    mlo_pool_run(program->pool, call.t->count, GRAIN, range, &call);
    return MLO_OK;
}

static void choose_kernel(struct table *t, enum mlo_isa isa)
{
    t->look_up = look_up;
#if defined(__x86_64__)
    if (isa >= MLO_ISA_AVX512_VNNI && __builtin_cpu_supports("avx512vbmi"))
        t->look_up = look_up_vbmi;
#endif
}

static enum mlo_status table_save(const struct mlo_plan *plan, const struct cpu_step *step,
                                  struct cpu_writer *w, struct mlo_error *err)
{
    MLO_UNUSED(plan);
    MLO_UNUSED(err);
    const struct table *t = step->data;
    cpu_put_bytes(w, t->to, sizeof t->to);
    cpu_put_u64(w, t->count);
    return MLO_OK;
}

static enum mlo_status table_restore(struct mlo_plan *plan, struct cpu_step *step, struct cpu_reader *r,
                                     struct mlo_error *err)
{
    struct table *t = calloc(1, sizeof *t);
    if (!t)
        return mlo_error_nomem(err);
    step->data = t;
    cpu_get_bytes(r, t->to, sizeof t->to);
    t->count = (size_t)cpu_get_u64(r);
    choose_kernel(t, plan->isa);
    if (cpu_check(r, step->in_count == 1 && step->out_count == 1, "a step has other operands") &&
        cpu_slot_holds(r, plan, step->in[0], t->count))
        cpu_slot_holds(r, plan, step->out[0], t->count);
    return cpu_reader_status(r, err);
}

const struct cpu_step_class fast_table_class = {.name = "table",
                                                .run = run,
                                                .free_data = free,
                                                .id = "table",
                                                .save = table_save,
                                                .restore = table_restore};

/* What lies between two quantized values: nodes in order, the last one a QuantizeLinear. */
struct path {
    const struct mlo_node *nodes[MAX_NODES];
    int count;
    struct cpu_qparams q;
};

/* One operand computed at run, any others constants of one element. */
static bool is_unary(const struct mlo_node *node, const struct mlo_value *x)
{
    const struct mlo_value *y = node->output_count == 1 ? node->outputs[0] : NULL;
    struct fast_shape a, b;
    if (!y || !node->op || !node->op->eval || !(node->op->flags & MLO_OP_ELEMENTWISE) ||
        y->type.dtype != MLO_FLOAT32 || !fast_shape(x, &a) || !fast_shape(y, &b) || a.count != b.count ||
        a.rank != b.rank)
        return false;
    for (int i = 0; i < node->input_count; i++) {
        const struct mlo_value *v = node->inputs[i];
        if (v && v != x && (!v->constant || mlo_tensor_count(v->constant) != 1))
            return false;
    }
    return true;
}

static bool follow(const struct mlo_plan *plan, const struct mlo_node *first, struct path *p)
{
    struct mlo_value *x = first->inputs[0];
    const struct mlo_node *node = first;
    if (mlo_node_is(first, "QuantizeLinear"))
        return false;
    *p = (struct path){.count = 0};
    while (node && p->count < MAX_NODES) {
        struct fast_composite c;
        if (mlo_node_is(node, "QuantizeLinear")) {
            p->nodes[p->count++] = node;
            return node->inputs[0] == x && fast_qparams(node, &p->q);
        }
        if (fast_composite_alone(plan, x, &c) && p->count + c.node_count < MAX_NODES) {
            for (int i = 0; i < c.node_count; i++)
                p->nodes[p->count++] = c.nodes[i];
            x = c.end;
        } else if (is_unary(node, x) && (node == first || fast_reader(plan, x) == node)) {
            p->nodes[p->count++] = node;
            x = node->outputs[0];
        } else {
            return false;
        }
        node = fast_reader(plan, x);
    }
    return false;
}

/* Runs the path over tensor 0; node i's result is tensor i + 1. */
static enum mlo_status evaluate(const struct path *p, const struct mlo_value *x, struct mlo_tensor *t,
                                struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    for (int n = 0; n < p->count; n++) {
        const struct mlo_node *node = p->nodes[n];
        const struct mlo_tensor *in[8] = {0};
        struct mlo_tensor *out = &t[n + 1];
        for (int i = 0; i < node->input_count && i < (int)MLO_COUNT(in); i++) {
            const struct mlo_value *v = node->inputs[i];
            in[i] = !v ? NULL : v->constant ? v->constant : v == x ? &t[0] : NULL;
            for (int k = 0; k < n && v && !in[i]; k++)
                in[i] = p->nodes[k]->outputs[0] == v ? &t[k + 1] : NULL;
        }
        MLO_TRY(mlo_node_eval(node, in, &out, err));
    }
out:
    return status;
}

static enum mlo_status fill(const struct path *p, const struct mlo_value *x, const struct cpu_qparams *q,
                            uint8_t to[256], bool *ok, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_tensor t[MAX_NODES + 1] = {0};
    MLO_TRY(mlo_tensor_init(&t[0], MLO_FLOAT32, 1, (int64_t[]){256}, err));
    for (int i = 0; i < 256; i++) {
        int v = q->dtype == MLO_INT8 ? (int8_t)(uint8_t)i : i;
        ((float *)t[0].data)[i] = (float)(v - q->zero_point) * q->scale;
    }
    MLO_TRY(evaluate(p, x, t, err));
    *ok = t[p->count].size_bytes == 256;
    if (*ok)
        memcpy(to, t[p->count].data, 256);
out:
    for (int i = 0; i <= MAX_NODES; i++)
        mlo_tensor_clear(&t[i]);
    return status;
}

enum mlo_status fast_lower_table(struct mlo_plan *plan, const struct mlo_node *node, bool *done,
                                 struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct path p;
    struct fast_shape s;
    struct table *t = NULL;
    int from;
    bool ok = false;
    const struct mlo_value *x = node->input_count > 0 ? node->inputs[0] : NULL;
    if (!x || x->type.dtype != MLO_FLOAT32 || x->constant || !fast_is_quantized(plan, x) ||
        !fast_shape(x, &s) || s.count == 0 || node->input_count > 8 || !follow(plan, node, &p))
        return MLO_OK;
    t = calloc(1, sizeof *t);
    if (!t)
        return mlo_error_nomem(err);
    MLO_TRY(fill(&p, x, &plan->values[x->index].q, t->to, &ok, err));
    if (!ok)
        goto out;
    t->count = s.count;
    choose_kernel(t, plan->isa);
    enum cpu_layout layout = fast_layout(plan, x, true);
    const struct mlo_value *y = p.nodes[p.count - 1]->outputs[0];
    MLO_TRY(fast_qvalue(plan, x, layout, &from, err));
    int to = fast_new_slot(plan, y, false);
    struct cpu_step *step = to >= 0 ? cpu_step_new(plan, &fast_table_class, node, 1, 1) : NULL;
    if (!step) {
        status = mlo_error_nomem(err);
        goto out;
    }
    step->precision = "int8";
    step->data = t;
    t = NULL;
    step->in[0] = from;
    step->out[0] = to;
    for (int i = 0; i < p.count; i++) {
        fast_mark_done(plan, p.nodes[i]);
        if (p.nodes[i] != node && !cpu_step_fuse(plan, step, p.nodes[i])) {
            status = mlo_error_nomem(err);
            goto out;
        }
    }
    fast_set(plan, y, layout, to);
    *done = true;
out:
    free(t);
    return status;
}
