/* A plan into a file, and back. What is read is hostile until it was checked: every number is held against
 * the slots, and slots against the memory. Images are used where they are mapped; each must have the digest
 * that the plan says. */
#include <stdlib.h>
#include <string.h>

#include "engines/cpu/fields_impl.h"
#include "engines/cuda/device/device_impl.h"
#include "engines/cuda/tune/tune.h"

#define MAGIC 0x5543504cu /* "LPCU" */
enum { SLOTS_MAX = 1 << 20, STEPS_MAX = 1 << 20, ENDS_MAX = 1 << 16, FUSED_MAX = 1 << 12 };
enum { THREADS_MAX = 1024, SHARED_MAX = 232448 };
#define BYTES_MAX ((size_t)1 << 40)

/* --- the interface: a model with the plan's ends and no nodes --------------------------------------------
 */

static enum mlo_status put_ends(const struct mlo_plan *plan, struct cpu_writer *w, struct mlo_error *err)
{
    const struct cuda_schedule *s = plan->schedule;
    struct mlo_model *copy = NULL;
    struct mlo_buf onnx = MLO_BUF_INIT;
    enum mlo_status status;
    MLO_TRY(mlo_model_clone(s->model, &copy, err));
    struct mlo_graph *g = copy->graph;
    for (int n = g->node_count - 1; n >= 0; n--)
        mlo_graph_remove_node(g->nodes[n]);
    mlo_graph_remove_unused_values(g);
    for (int i = 0; i < g->value_count; i++) { /* outputs that nobody makes are fed, to be a valid model */
        struct mlo_value *v = g->values[i];
        if (!v->producer && !v->constant && !v->is_input)
            MLO_TRY(mlo_graph_add_input(g, v, err));
    }
    MLO_TRY(mlo_onnx_serialize(copy, &onnx, err));
    cpu_put_u64(w, onnx.len);
    cpu_put_bytes(w, mlo_buf_str(&onnx), onnx.len);
    cpu_put_u32(w, (uint32_t)plan->input_count);
    for (int i = 0; i < plan->input_count; i++) {
        cpu_put_text(w, plan->inputs[i]->name);
        cpu_put_i32(w, s->input_slots[i]);
    }
    cpu_put_u32(w, (uint32_t)s->model->graph->output_count);
    for (int i = 0; i < s->model->graph->output_count; i++) {
        cpu_put_text(w, s->model->graph->outputs[i]->name);
        cpu_put_i32(w, s->output_slots[i]);
        cpu_put_bytes(w, &s->output_tensors[i], sizeof s->output_tensors[i]);
    }
out:
    mlo_buf_clear(&onnx);
    mlo_model_free(copy);
    return status;
}

/* --- writing -------------------------------------------------------------------------------------------- */

static void put_slots(const struct cuda_schedule *s, struct cpu_writer *w)
{
    cpu_put_u64(w, s->arena_bytes);
    cpu_put_u64(w, s->constant_bytes);
    cpu_put_u32(w, (uint32_t)s->slot_count);
    for (int i = 0; i < s->slot_count; i++) {
        const struct cuda_slot *slot = &s->slots[i];
        cpu_put_u32(w, (uint32_t)slot->kind);
        cpu_put_u64(w, slot->size_bytes);
        cpu_put_u64(w, slot->offset);
        cpu_put_i32(w, slot->input);
        cpu_put_i32(w, slot->root);
        cpu_put_u32(w, slot->is_part);
        if (slot->kind == CUDA_SLOT_CONST && !slot->is_part)
            cpu_put_const(w, slot->data, slot->size_bytes);
    }
}

static void put_step(const struct mlo_plan *plan, int index, struct cpu_writer *w)
{
    const struct cuda_step *step = &plan->schedule->steps[index];
    cpu_put_u32(w, (uint32_t)step->kind);
    cpu_put_u32(w, (uint32_t)plan->work_of[index]);
    cpu_put_text(w, step->node ? step->node->name : "");
    cpu_put_text(w, step->node ? step->node->op_type : "");
    cpu_put_text(w, step->impl);
    cpu_put_text(w, step->precision);
    cpu_put_u32(w, plan->chosen[index].measured);
    cpu_put_text(w, plan->chosen[index].instead ? plan->chosen[index].instead : "");
    cpu_put_u32(w, (uint32_t)step->fused_count);
    for (int i = 0; i < step->fused_count; i++)
        cpu_put_text(w, step->fused[i]);
    cpu_put_u32(w, (uint32_t)step->in_count);
    cpu_put_u32(w, (uint32_t)step->out_count);
    for (int i = 0; i < step->in_count; i++)
        cpu_put_i32(w, step->in[i]);
    for (int i = 0; i < step->out_count; i++)
        cpu_put_i32(w, step->out[i]);
    switch (step->kind) {
    case CUDA_STEP_CONV:
        cpu_put_bytes(w, step->conv, sizeof *step->conv);
        break;
    case CUDA_STEP_ATTENTION:
        cpu_put_bytes(w, step->attention, sizeof *step->attention);
        break;
    case CUDA_STEP_GEMM:
        cpu_put_bytes(w, step->gemm, sizeof *step->gemm);
        break;
    case CUDA_STEP_COPY:
        cpu_put_u64(w, step->copy_bytes);
        break;
    case CUDA_STEP_CHAIN:
    case CUDA_STEP_KERNEL: { /* all else is in the image */
        struct cuda_cost cost;
        cuda_step_cost(plan->schedule, step, &cost);
        cpu_put_u64(w, (uint64_t)cost.ops);
        break;
    }
    }
}

static void put_work(const struct cuda_work *work, struct cpu_writer *w)
{
    cpu_put_u32(w, (uint32_t)work->kind);
    cpu_put_bytes(w, work->key.bytes, sizeof work->key.bytes);
    cpu_put_bytes(w, work->image_digest.bytes, sizeof work->image_digest.bytes);
    cpu_put_text(w, work->entry);
    cpu_put_bytes(w, work->grid, sizeof work->grid);
    cpu_put_bytes(w, work->block, sizeof work->block);
    cpu_put_u32(w, work->shared_bytes);
    cpu_put_i64(w, work->workspace_bytes);
    cpu_put_text(w, work->choice ? work->choice : "");
    cpu_put_u64(w, work->image_bytes);
    cpu_put_const(w, work->image, work->image_bytes);
}

enum mlo_status cuda_plan_save(const struct mlo_plan *plan, int fd, struct mlo_error *err)
{
    struct cpu_writer w = {0};
    enum mlo_status status = MLO_OK;
    if (plan->observed_count)
        return mlo_error_set(err, MLO_EUNSUPPORTED, "a plan that observes values is not written to a file");
    cpu_put_text(&w, cuda_source_revision);
    cpu_put_u32(&w, (uint32_t)plan->sm);
    cpu_put_text(&w, plan->nvrtc);
    cpu_put_text(&w, plan->cudnn);
    cpu_put_text(&w, plan->gpu);
    MLO_TRY(put_ends(plan, &w, err));
    put_slots(plan->schedule, &w);
    cpu_put_u32(&w, (uint32_t)plan->work_count);
    for (int i = 0; i < plan->work_count; i++)
        put_work(&plan->works[i], &w);
    cpu_put_u32(&w, (uint32_t)plan->schedule->step_count);
    for (int i = 0; i < plan->schedule->step_count; i++)
        put_step(plan, i, &w);
    MLO_TRY(cpu_fields_write(&w, MAGIC, fd, err));
out:
    mlo_buf_clear(&w.fields);
    free(w.constants);
    return status;
}

/* --- reading -------------------------------------------------------------------------------------------- */

struct restorer {
    struct cpu_reader r;
    struct cuda_schedule *schedule;
    struct mlo_plan *plan;
};

static void *take(struct restorer *s, size_t count, size_t size)
{
    void *p = mlo_arena_calloc(s->schedule->arena, count + 1, size);
    cpu_check(&s->r, p != NULL, "there is no memory for it");
    return p;
}

static void get_name(struct restorer *s, char *out, size_t size)
{
    const char *text = cpu_get_text(&s->r);
    if (cpu_check(&s->r, strlen(text) < size, "a name is too long"))
        memcpy(out, text, strlen(text) + 1);
}

/* 0: no type, or one whose elements are no whole bytes. */
static size_t element_bytes(enum mlo_dtype dtype)
{
    const struct mlo_dtype_info *info = (unsigned)dtype < MLO_DTYPE_COUNT ? mlo_dtype_info(dtype) : NULL;
    return info && info->bits % 8 == 0 ? info->bits / 8 : 0;
}

/* What a value covers lies in its slot. */
static bool covers(const struct cuda_schedule *s, int slot, const struct cuda_tensor *t)
{
    uint64_t last = 0;
    size_t count;
    if (slot < 0 || slot >= s->slot_count || t->rank < 0 || t->rank > CUDA_RANK || !element_bytes(t->dtype) ||
        !mlo_shape_count(t->rank, t->dims, &count))
        return false;
    for (int i = 0; i < t->rank; i++) {
        uint64_t step;
        if (t->strides[i] < 0)
            return false;
        if (count && (__builtin_mul_overflow((uint64_t)t->dims[i] - 1, (uint64_t)t->strides[i], &step) ||
                      __builtin_add_overflow(last, step, &last) || last > BYTES_MAX))
            return false;
    }
    return !count || (last + 1) * element_bytes(t->dtype) <= s->slots[slot].size_bytes;
}

static void get_slots(struct restorer *s)
{
    struct cuda_schedule *c = s->schedule;
    c->arena_bytes = (size_t)cpu_get_u64(&s->r);
    c->constant_bytes = (size_t)cpu_get_u64(&s->r);
    int count = cpu_get_count(&s->r, SLOTS_MAX, 32);
    c->slots = take(s, (size_t)count, sizeof *c->slots);
    if (!cpu_check(&s->r, c->arena_bytes <= BYTES_MAX && c->constant_bytes <= BYTES_MAX, "it is too large") ||
        !c->slots)
        return;
    c->slot_count = count;
    for (int i = 0; i < count; i++) {
        struct cuda_slot *slot = &c->slots[i];
        uint32_t kind = cpu_get_u32(&s->r);
        slot->size_bytes = (size_t)cpu_get_u64(&s->r);
        slot->offset = (size_t)cpu_get_u64(&s->r);
        slot->input = cpu_get_i32(&s->r);
        slot->root = cpu_get_i32(&s->r);
        slot->is_part = cpu_get_u32(&s->r) != 0;
        if (!cpu_check(&s->r, kind <= CUDA_SLOT_CONST && slot->root >= 0 && slot->root < count,
                       "a slot is of no known kind"))
            return;
        slot->kind = (enum cuda_slot_kind)kind;
        size_t room = slot->kind == CUDA_SLOT_CONST ? c->constant_bytes : c->arena_bytes;
        if (!cpu_check(&s->r, slot->offset <= room && slot->size_bytes <= room - slot->offset,
                       "a slot lies outside of its memory"))
            return;
        if (slot->kind == CUDA_SLOT_CONST && !slot->is_part)
            slot->data = cpu_get_const(&s->r, slot->size_bytes);
    }
}

/* The model of the ends has outputs among its inputs; only the plan's own stay. */
static void keep_inputs(struct mlo_graph *g, struct mlo_value *const *own, int count)
{
    int kept = 0;
    for (int i = 0; i < g->input_count; i++) {
        bool is_own = false;
        for (int k = 0; k < count; k++)
            is_own |= own[k] == g->inputs[i];
        g->inputs[i]->is_input = is_own;
        if (is_own)
            g->inputs[kept++] = g->inputs[i];
    }
    g->input_count = kept;
}

static enum mlo_status get_ends(struct restorer *s, struct mlo_error *err)
{
    struct cuda_schedule *c = s->schedule;
    size_t size = (size_t)cpu_get_u64(&s->r);
    const void *onnx = cpu_get_run(&s->r, size);
    enum mlo_status status = cpu_reader_status(&s->r, err);
    if (status == MLO_OK)
        status = mlo_onnx_parse(onnx, size, "the plan's interface", &c->model, err);
    if (status != MLO_OK)
        return status;
    struct mlo_graph *g = c->model->graph;
    int count = cpu_get_count(&s->r, ENDS_MAX, 9);
    struct mlo_value **own = take(s, (size_t)count, sizeof(struct mlo_value *));
    c->input_slots = take(s, (size_t)count, sizeof(int));
    if (!own || !c->input_slots)
        return cpu_reader_status(&s->r, err);
    for (int i = 0; i < count; i++) {
        own[i] = mlo_graph_value(g, cpu_get_text(&s->r));
        c->input_slots[i] = cpu_get_i32(&s->r);
        cpu_check(&s->r, own[i] && own[i]->is_input && !own[i]->constant, "an input is not its own");
    }
    keep_inputs(g, own, count);
    for (int i = 0; i < count; i++)
        cpu_check(&s->r, g->input_count == count && g->inputs[i] == own[i], "inputs are mixed up");
    count = cpu_get_count(&s->r, ENDS_MAX, 9 + sizeof *c->output_tensors);
    c->output_slots = take(s, (size_t)count, sizeof(int));
    c->output_tensors = take(s, (size_t)count, sizeof *c->output_tensors);
    cpu_check(&s->r, count == g->output_count, "outputs are missing");
    for (int i = 0; i < count && !cpu_failed(&s->r); i++) {
        const char *name = cpu_get_text(&s->r);
        cpu_check(&s->r, strcmp(name, g->outputs[i]->name) == 0, "outputs are mixed up");
        c->output_slots[i] = cpu_get_i32(&s->r);
        cpu_get_bytes(&s->r, &c->output_tensors[i], sizeof c->output_tensors[i]);
    }
    return cpu_reader_status(&s->r, err);
}

/* After the slots: what comes in and goes out fits them. */
static void check_ends(struct restorer *s)
{
    const struct cuda_schedule *c = s->schedule;
    const struct mlo_graph *g = c->model->graph;
    size_t bytes, covered;
    int64_t dims[MLO_MAX_RANK];
    for (int i = 0; i < g->input_count; i++) {
        const struct mlo_type *t = &g->inputs[i]->type;
        int slot = c->input_slots[i];
        bool ok =
            mlo_type_static(t, dims) && mlo_shape_bytes(t->dtype, t->rank, dims, &bytes) && slot >= -1 &&
            slot < c->slot_count &&
            (slot < 0 || (c->slots[slot].kind == CUDA_SLOT_INPUT && c->slots[slot].size_bytes == bytes));
        cpu_check(&s->r, ok, "an input fits no slot");
    }
    for (int i = 0; i < g->output_count; i++) {
        const struct cuda_tensor *t = &c->output_tensors[i];
        const struct mlo_type *type = &g->outputs[i]->type;
        if (g->outputs[i]->constant)
            continue;
        /* as many elements as its type has: they are all copied when it is delivered */
        bool ok = mlo_type_static(type, dims) && covers(c, c->output_slots[i], t) &&
                  t->dtype == type->dtype && mlo_shape_bytes(type->dtype, type->rank, dims, &bytes) &&
                  mlo_shape_bytes(t->dtype, t->rank, t->dims, &covered) && bytes == covered &&
                  (c->slots[c->output_slots[i]].kind != CUDA_SLOT_CONST ||
                   c->slots[c->output_slots[i]].data != NULL);
        cpu_check(&s->r, ok, "an output fits no slot");
    }
}

static bool is_launchable(const struct cuda_work *w)
{
    uint64_t threads = (uint64_t)w->block[0] * w->block[1] * w->block[2];
    return w->block[0] <= THREADS_MAX && w->block[1] <= THREADS_MAX && w->block[2] <= THREADS_MAX &&
           threads >= 1 && threads <= THREADS_MAX && w->grid[0] >= 1 && w->grid[1] >= 1 && w->grid[2] >= 1 &&
           w->shared_bytes <= SHARED_MAX && w->entry[0] && w->image_bytes;
}

static enum mlo_status get_work(struct restorer *s, struct cuda_work *w, struct mlo_error *err)
{
    struct mlo_digest digest;
    uint32_t kind = cpu_get_u32(&s->r);
    cpu_get_bytes(&s->r, w->key.bytes, sizeof w->key.bytes);
    cpu_get_bytes(&s->r, w->image_digest.bytes, sizeof w->image_digest.bytes);
    get_name(s, w->entry, sizeof w->entry);
    cpu_get_bytes(&s->r, w->grid, sizeof w->grid);
    cpu_get_bytes(&s->r, w->block, sizeof w->block);
    w->shared_bytes = cpu_get_u32(&s->r);
    w->workspace_bytes = cpu_get_i64(&s->r);
    const char *choice = cpu_get_text(&s->r);
    w->image_bytes = (size_t)cpu_get_u64(&s->r);
    w->image = (void *)(uintptr_t)cpu_get_const(&s->r, w->image_bytes);
    cpu_check(&s->r, kind < CUDA_WORK_KINDS, "a work is of no known kind");
    w->kind = (enum cuda_work_kind)kind;
    if (w->kind == CUDA_WORK_KERNEL)
        cpu_check(&s->r, is_launchable(w), "a kernel cannot be started");
    enum mlo_status status = cpu_reader_status(&s->r, err);
    if (status != MLO_OK)
        return status;
    if (choice[0] && !(w->choice = strdup(choice)))
        return mlo_error_nomem(err);
    mlo_digest_of(w->image, w->image_bytes, &digest);
    if (w->image && !mlo_digest_eq(&digest, &w->image_digest))
        return mlo_error_set(err, MLO_EDIGEST,
                             "the plan is damaged: an image has another digest than it should");
    /* The driver takes an image without its size, and trusts what it says of itself. */
    return w->kind == CUDA_WORK_KERNEL
               ? cuda_cubin_read(w->image, w->image_bytes, w->entry, &w->resources, err)
               : MLO_OK;
}

/* A struct out of the file has booleans that are neither. */
static bool is_bool(const bool *b)
{
    unsigned char byte;
    memcpy(&byte, b, 1);
    return byte <= 1;
}

static bool conv_fits(const struct cuda_schedule *s, const struct cuda_step *step)
{
    const struct cuda_conv *c = step->conv;
    if (!is_bool(&c->has_residual) || !is_bool(&c->has_bias) || !is_bool(&c->has_scale) || c->spatial < 1 ||
        c->spatial > 3 || (unsigned)c->activation > CUDA_ACT_SWISH || c->x.rank != c->spatial + 2 ||
        c->w.rank != c->x.rank || c->y.rank != c->x.rank || c->groups < 1 ||
        step->in_count != 2 + c->has_residual + c->has_bias + c->has_scale || step->out_count != 1)
        return false;
    for (int i = 0; i < c->spatial; i++)
        if (c->stride[i] < 1 || c->dilation[i] < 1 || c->pad_before[i] < 0 || c->pad_after[i] < 0)
            return false;
    int at = 2 + c->has_residual;
    size_t channels = covers(s, step->out[0], &c->y) ? (size_t)c->y.dims[1] : SIZE_MAX / 8;
    size_t bias_bytes = c->has_scale ? sizeof(float) : element_bytes(c->y.dtype);
    if (c->has_bias && s->slots[step->in[at++]].size_bytes < bias_bytes * channels)
        return false;
    if (c->has_scale && s->slots[step->in[at]].size_bytes < 4 * channels)
        return false;
    return covers(s, step->in[0], &c->x) && covers(s, step->in[1], &c->w) && covers(s, step->out[0], &c->y) &&
           (!c->has_residual || (c->residual.rank == c->y.rank && covers(s, step->in[2], &c->residual)));
}

static bool attention_fits(const struct cuda_schedule *s, const struct cuda_step *step)
{
    const struct cuda_attention *a = step->attention;
    return is_bool(&a->has_mask) && is_bool(&a->causal) && step->in_count == 3 + a->has_mask &&
           step->out_count == 1 && a->q.rank == 4 && a->k.rank == 4 && a->v.rank == 4 && a->o.rank == 4 &&
           covers(s, step->in[0], &a->q) && covers(s, step->in[1], &a->k) && covers(s, step->in[2], &a->v) &&
           covers(s, step->out[0], &a->o) &&
           (!a->has_mask || (a->mask.rank == 4 && covers(s, step->in[3], &a->mask)));
}

/* `rows` rows of `columns`, `leading` apart, `batch` times. */
static bool matrix_fits(const struct cuda_schedule *s, int slot, enum mlo_dtype dtype, int64_t rows,
                        int64_t columns, int64_t leading, int64_t batch, int64_t apart)
{
    struct cuda_tensor t = {.dtype = dtype, .rank = 3};
    t.dims[0] = batch;
    t.dims[1] = rows;
    t.dims[2] = columns;
    t.strides[0] = apart;
    t.strides[1] = leading;
    t.strides[2] = 1;
    return leading >= columns && covers(s, slot, &t);
}

static bool gemm_fits(const struct cuda_schedule *s, const struct cuda_step *step)
{
    const struct cuda_gemm *g = step->gemm;
    if (!is_bool(&g->ta) || !is_bool(&g->tb) || !is_bool(&g->has_c) || !is_bool(&g->has_bias) ||
        !is_bool(&g->has_scale) || !is_bool(&g->scale_per_column) ||
        (unsigned)g->activation > CUDA_ACT_SWISH || (unsigned)g->d >= MLO_DTYPE_COUNT || g->n < 1 ||
        step->in_count != 2 + g->has_c + g->has_bias + g->has_scale || step->out_count != 1)
        return false;
    size_t columns = (size_t)g->n, bias_bytes = g->has_scale ? sizeof(float) : element_bytes(g->d),
           scale_bytes = sizeof(float) * (g->scale_per_column ? columns : 1);
    int bias_at = 2 + g->has_c, scale_at = bias_at + g->has_bias;
    return matrix_fits(s, step->in[0], g->a, g->ta ? g->k : g->m, g->ta ? g->m : g->k, g->lda, g->batch,
                       g->batch_a) &&
           matrix_fits(s, step->in[1], g->b, g->tb ? g->n : g->k, g->tb ? g->k : g->n, g->ldb, g->batch,
                       g->batch_b) &&
           matrix_fits(s, step->out[0], g->d, g->m, g->n, g->ldd, g->batch, g->batch_d) &&
           (!g->has_c || matrix_fits(s, step->in[2], g->c, g->m, g->n, g->ldc, g->batch, g->batch_c)) &&
           (!g->has_bias || s->slots[step->in[bias_at]].size_bytes / columns >= bias_bytes) &&
           (!g->has_scale || s->slots[step->in[scale_at]].size_bytes >= scale_bytes);
}

static void get_body(struct restorer *s, struct cuda_step *step)
{
    const struct cuda_schedule *c = s->schedule;
    bool ok = true;
    switch (step->kind) {
    case CUDA_STEP_CONV:
        step->conv = take(s, 1, sizeof *step->conv);
        ok = step->conv && cpu_get_bytes(&s->r, step->conv, sizeof *step->conv) && conv_fits(c, step);
        break;
    case CUDA_STEP_ATTENTION:
        step->attention = take(s, 1, sizeof *step->attention);
        ok = step->attention && cpu_get_bytes(&s->r, step->attention, sizeof *step->attention) &&
             attention_fits(c, step);
        break;
    case CUDA_STEP_GEMM:
        step->gemm = take(s, 1, sizeof *step->gemm);
        ok = step->gemm && cpu_get_bytes(&s->r, step->gemm, sizeof *step->gemm) && gemm_fits(c, step);
        break;
    case CUDA_STEP_COPY:
        step->copy_bytes = (size_t)cpu_get_u64(&s->r);
        ok = step->in_count == 1 && step->out_count == 1 &&
             step->copy_bytes <= c->slots[step->in[0]].size_bytes &&
             step->copy_bytes <= c->slots[step->out[0]].size_bytes;
        break;
    case CUDA_STEP_CHAIN:
    case CUDA_STEP_KERNEL:
        step->ops = (double)cpu_get_u64(&s->r);
        break;
    }
    cpu_check(&s->r, ok, "a step does not fit its slots");
}

/* A step's kind, and what may compute it. */
static bool agrees(enum cuda_step_kind step, enum cuda_work_kind work)
{
    switch (work) {
    case CUDA_WORK_KERNEL:
        return step != CUDA_STEP_COPY;
    case CUDA_WORK_CUDNN:
        return step == CUDA_STEP_CONV || step == CUDA_STEP_ATTENTION;
    case CUDA_WORK_CUBLASLT:
        return step == CUDA_STEP_GEMM;
    case CUDA_WORK_COPY:
        return step == CUDA_STEP_COPY;
    case CUDA_WORK_KINDS:
        break;
    }
    return false;
}

static void get_step(struct restorer *s, struct cuda_step *step, int *work_of, struct cuda_chosen *chosen)
{
    const struct cuda_schedule *c = s->schedule;
    uint32_t kind = cpu_get_u32(&s->r), work = cpu_get_u32(&s->r);
    const char *name = cpu_get_text(&s->r), *op = cpu_get_text(&s->r);
    struct mlo_node *node = take(s, 1, sizeof *node);
    if (node) { /* for people only */
        node->name = name;
        node->op_type = op;
        node->domain = "";
    }
    step->node = node;
    step->impl = cpu_get_text(&s->r);
    step->precision = cpu_get_text(&s->r);
    chosen->measured = cpu_get_u32(&s->r) != 0;
    const char *instead = cpu_get_text(&s->r);
    chosen->instead = instead[0] ? strdup(instead) : NULL;
    step->replaces = -1;
    step->fused_count = cpu_get_count(&s->r, FUSED_MAX, 5);
    step->fused = take(s, (size_t)step->fused_count, sizeof *step->fused);
    for (int i = 0; step->fused && i < step->fused_count; i++)
        step->fused[i] = cpu_get_text(&s->r);
    step->in_count = cpu_get_count(&s->r, CUDA_STEP_SLOTS, 4);
    step->out_count = cpu_get_count(&s->r, CUDA_STEP_SLOTS, 4);
    for (int i = 0; i < step->in_count + step->out_count; i++) {
        int slot = cpu_get_i32(&s->r);
        bool is_out = i >= step->in_count;
        if (!cpu_check(&s->r, slot >= 0 && slot < c->slot_count, "a step names a slot that is not there") ||
            !cpu_check(&s->r, !is_out || c->slots[slot].kind != CUDA_SLOT_CONST, "a step writes a constant"))
            return;
        if (is_out)
            step->out[i - step->in_count] = slot;
        else
            step->in[i] = slot;
    }
    if (!cpu_check(&s->r,
                   kind <= CUDA_STEP_COPY && work < (uint32_t)s->plan->work_count &&
                       agrees((enum cuda_step_kind)kind, s->plan->works[work].kind),
                   "a step is of no known kind"))
        return;
    step->kind = (enum cuda_step_kind)kind;
    *work_of = (int)work;
    get_body(s, step);
}

static enum mlo_status get_works(struct restorer *s, struct mlo_error *err)
{
    int count = cpu_get_count(&s->r, STEPS_MAX, 60);
    enum mlo_status status = cpu_reader_status(&s->r, err);
    if (status != MLO_OK)
        return status;
    s->plan->works = calloc((size_t)count + 1, sizeof *s->plan->works);
    if (!s->plan->works)
        return mlo_error_nomem(err);
    s->plan->work_cap = count + 1;
    for (int i = 0; i < count && status == MLO_OK; i++) {
        s->plan->work_count = i + 1;
        status = get_work(s, &s->plan->works[i], err);
    }
    return status;
}

static enum mlo_status get_steps(struct restorer *s, struct mlo_error *err)
{
    struct cuda_schedule *c = s->schedule;
    int count = cpu_get_count(&s->r, STEPS_MAX, 48);
    c->steps = take(s, (size_t)count, sizeof *c->steps);
    free(s->plan->work_of);
    free(s->plan->chosen);
    s->plan->work_of = calloc((size_t)count + 1, sizeof(int));
    s->plan->chosen = calloc((size_t)count + 1, sizeof *s->plan->chosen);
    if (!c->steps || !s->plan->work_of || !s->plan->chosen)
        return mlo_error_nomem(err);
    for (int i = 0; i < count && !cpu_failed(&s->r); i++) {
        get_step(s, &c->steps[i], &s->plan->work_of[i], &s->plan->chosen[i]);
        c->step_count = i + 1;
    }
    cpu_check(&s->r, s->r.at == s->r.fields_bytes, "there is more behind its end");
    return cpu_reader_status(&s->r, err);
}

enum mlo_status cuda_plan_restore(const void *bytes, size_t size, struct mlo_plan **out,
                                  struct mlo_error *err)
{
    struct restorer s = {0};
    char nvrtc[32] = "", cudnn[32] = "", gpu[128] = "";
    enum mlo_status status;
    MLO_TRY(cpu_fields_open(&s.r, MAGIC, bytes, size, err));
    if (strcmp(cpu_get_text(&s.r), cuda_source_revision) != 0) {
        status = mlo_error_set(err, MLO_ESTALE, "the plan was written by another version of the cuda engine");
        goto out;
    }
    s.schedule = calloc(1, sizeof *s.schedule);
    if (!s.schedule || !(s.schedule->arena = mlo_arena_new())) {
        status = mlo_error_nomem(err);
        goto out;
    }
    uint32_t sm = cpu_get_u32(&s.r);
    get_name(&s, nvrtc, sizeof nvrtc);
    get_name(&s, cudnn, sizeof cudnn);
    get_name(&s, gpu, sizeof gpu);
    cpu_check(&s.r, sm >= 50 && sm < 1000, "it is for no compute capability");
    MLO_TRY(get_ends(&s, err));
    get_slots(&s);
    check_ends(&s);
    MLO_TRY(cpu_reader_status(&s.r, err));
    s.plan = cuda_plan_new_take(s.schedule, (int)sm);
    if (!s.plan) {
        status = mlo_error_nomem(err);
        goto out;
    }
    memcpy(s.plan->nvrtc, nvrtc, sizeof nvrtc);
    memcpy(s.plan->cudnn, cudnn, sizeof cudnn);
    memcpy(s.plan->gpu, gpu, sizeof gpu);
    MLO_TRY(get_works(&s, err));
    MLO_TRY(get_steps(&s, err));
    *out = s.plan;
    s = (struct restorer){0};
out:
    if (s.plan)
        cuda_plan_free(s.plan);
    else if (s.schedule && s.schedule->arena)
        cuda_schedule_free(s.schedule);
    else
        free(s.schedule);
    return status;
}
