/* oneDNN: start, descriptors, and primitives as steps. */
#include <omp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engines/cpu/fast/prim_impl.h"

struct prim_state {
    dnnl_exec_arg_t args[PRIM_ARGS_MAX + 1];
    int count;
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static dnnl_engine_t engine;

static void start(void)
{
    static const dnnl_cpu_isa_t limits[] = {dnnl_cpu_isa_sse41, dnnl_cpu_isa_avx2, dnnl_cpu_isa_avx512_core,
                                            dnnl_cpu_isa_all, dnnl_cpu_isa_all};
    dnnl_set_max_cpu_isa(limits[mlo_isa_current()]);
    if (dnnl_engine_create(&engine, dnnl_cpu, 0) != dnnl_success)
        engine = NULL;
}

void cpu_fast_init(void)
{
    pthread_once(&once, start);
}

dnnl_engine_t fast_engine(void)
{
    cpu_fast_init();
    return engine;
}

const char *cpu_fast_version(void)
{
    static char text[64];
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    const dnnl_version_t *v = dnnl_version();
    pthread_mutex_lock(&lock);
    if (!text[0])
        snprintf(text, sizeof text, "cpu 1 (oneDNN %d.%d.%d)", v->major, v->minor, v->patch);
    pthread_mutex_unlock(&lock);
    return text;
}

enum mlo_status fast_failed(dnnl_status_t code, const char *what, struct mlo_error *err)
{
    if (code == dnnl_out_of_memory)
        return mlo_error_nomem(err);
    return mlo_error_set(err, MLO_EINTERNAL, "oneDNN could not %s (status %d)", what, (int)code);
}

bool fast_md(dnnl_memory_desc_t *md, int rank, const int64_t *dims, dnnl_data_type_t type,
             enum cpu_layout layout)
{
    static const dnnl_format_tag_t plain[] = {
        dnnl_format_tag_undef, dnnl_a, dnnl_ab, dnnl_abc, dnnl_abcd, dnnl_abcde, dnnl_abcdef};
    static const dnnl_format_tag_t last[] = {
        dnnl_format_tag_undef, dnnl_a, dnnl_ab, dnnl_acb, dnnl_acdb, dnnl_acdeb, dnnl_abcdef};
    dnnl_dims_t copy = {0};
    if (rank < 1 || rank > 6)
        return false;
    for (int i = 0; i < rank; i++)
        copy[i] = dims[i];
    return dnnl_memory_desc_init_by_tag(md, rank, copy, type,
                                        layout == CPU_LAST ? last[rank] : plain[rank]) == dnnl_success;
}

dnnl_data_type_t fast_dtype(enum mlo_dtype dtype)
{
    switch (dtype) {
    case MLO_FLOAT32:
        return dnnl_f32;
    case MLO_UINT8:
        return dnnl_u8;
    case MLO_INT8:
        return dnnl_s8;
    case MLO_INT32:
        return dnnl_s32;
    default:
        return dnnl_data_type_undef;
    }
}

dnnl_primitive_attr_t fast_attr(void)
{
    dnnl_primitive_attr_t attr = NULL;
    if (dnnl_primitive_attr_create(&attr) != dnnl_success)
        return NULL;
    dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    return attr;
}

bool fast_pd(const_dnnl_op_desc_t desc, dnnl_primitive_attr_t attr, dnnl_primitive_desc_t *pd)
{
    *pd = NULL;
    if (!attr || !fast_engine() || dnnl_primitive_desc_create(pd, desc, attr, engine, NULL) != dnnl_success)
        return false;
    const char *impl = "";
    dnnl_primitive_desc_query(*pd, dnnl_query_impl_info_str, 0, &impl);
    if (strncmp(impl, "ref", 3) != 0)
        return true;
    dnnl_primitive_desc_destroy(*pd);
    *pd = NULL;
    return false;
}

void fast_prim_free(void *data)
{
    struct prim *p = data;
    if (!p)
        return;
    if (p->handle)
        dnnl_primitive_destroy(p->handle);
    free(p);
}

static void prim_unload(void *state)
{
    struct prim_state *s = state;
    for (int i = 0; s && i < s->count; i++)
        dnnl_memory_destroy(s->args[i].memory);
    free(s);
}

static enum mlo_status prim_load(struct mlo_program *program, const struct cpu_step *step, void **state,
                                 struct mlo_error *err)
{
    const struct prim *p = step->data;
    struct prim_state *s = calloc(1, sizeof *s);
    dnnl_status_t code = dnnl_success;
    if (!s)
        return mlo_error_nomem(err);
    *state = s;
    for (int i = 0; i < p->count && code == dnnl_success; i++) {
        void *at = program->at[p->args[i].slot];
        s->args[i].arg = p->args[i].arg;
        code = dnnl_memory_create(&s->args[i].memory, &p->args[i].md, engine, at ? at : DNNL_MEMORY_NONE);
        s->count += code == dnnl_success;
    }
    if (code == dnnl_success && p->has_scratch) {
        s->args[s->count].arg = DNNL_ARG_SCRATCHPAD;
        code = dnnl_memory_create(&s->args[s->count].memory, &p->scratch, engine, program->scratch);
        s->count += code == dnnl_success;
    }
    return code == dnnl_success ? MLO_OK : fast_failed(code, "make its memory objects", err);
}

static enum mlo_status prim_run(struct mlo_program *program, const struct cpu_step *step, void *state,
                                struct mlo_error *err)
{
    const struct prim *p = step->data;
    struct prim_state *s = state;
    for (int i = 0; i < p->count; i++) { /* callers' tensors and tensors of the op table move */
        enum cpu_slot_kind kind = program->plan->slots[p->args[i].slot].kind;
        if (kind == CPU_SLOT_INPUT || kind == CPU_SLOT_TENSOR)
            dnnl_memory_set_data_handle(s->args[i].memory, program->at[p->args[i].slot]);
    }
    dnnl_status_t code = dnnl_primitive_execute(p->handle, program->stream, s->count, s->args);
    return code == dnnl_success ? MLO_OK : fast_failed(code, "run a primitive", err);
}

const struct cpu_step_class fast_prim_class = {.name = "onednn",
                                               .load = prim_load,
                                               .run = prim_run,
                                               .unload = prim_unload,
                                               .free_data = fast_prim_free,
                                               .id = "onednn",
                                               .save = fast_prim_save,
                                               .restore = fast_prim_restore};

dnnl_status_t fast_prim_make(struct prim *p, const_dnnl_primitive_desc_t pd)
{
    const dnnl_memory_desc_t *scratch = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    if (scratch && dnnl_memory_desc_get_size(scratch)) {
        p->has_scratch = true;
        p->scratch = *scratch;
    }
    return dnnl_primitive_create(&p->handle, pd);
}

enum mlo_status fast_step(struct mlo_plan *plan, const struct mlo_node *node, dnnl_primitive_desc_t pd,
                          struct cpu_step **out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const char *impl = "onednn";
    struct prim *p = calloc(1, sizeof *p);
    struct cpu_step *step = p ? cpu_step_new(plan, &fast_prim_class, node, PRIM_ARGS_MAX, 1) : NULL;
    if (!step) {
        free(p);
        status = mlo_error_nomem(err);
        goto out;
    }
    step->data = p;
    step->in_count = 0;
    dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &impl);
    step->impl = mlo_arena_printf(plan->arena, "onednn:%s", impl);
    dnnl_status_t code = fast_prim_make(p, pd);
    if (p->has_scratch)
        plan->scratch_bytes = MLO_MAX(plan->scratch_bytes, dnnl_memory_desc_get_size(&p->scratch));
    if (code != dnnl_success || !step->impl)
        status = fast_failed(code, "make a primitive", err);
    *out = step;
out:
    dnnl_primitive_desc_destroy(pd);
    return status;
}

static void bind(struct cpu_step *step, int arg, int slot, const dnnl_memory_desc_t *md)
{
    struct prim *p = step->data;
    p->args[p->count].arg = arg;
    p->args[p->count].slot = slot;
    p->args[p->count++].md = *md;
}

void fast_reads(struct cpu_step *step, int arg, int slot, const dnnl_memory_desc_t *md)
{
    bind(step, arg, slot, md);
    step->in[step->in_count++] = slot;
}

void fast_writes(struct cpu_step *step, int arg, int slot, const dnnl_memory_desc_t *md)
{
    bind(step, arg, slot, md);
    step->out[0] = slot;
}

int fast_const_floats(struct mlo_plan *plan, const float *data, size_t count)
{
    float *copy = cpu_aligned(count * sizeof *copy);
    if (copy)
        memcpy(copy, data, count * sizeof *copy);
    return cpu_slot_const_take(plan, copy, count * sizeof *copy);
}

void fast_md_key(const dnnl_memory_desc_t *md, struct fast_md_key *key)
{
    memset(key, 0, sizeof *key);
    key->offset = md->offset0;
    key->rank = md->ndims;
    key->type = (int64_t)md->data_type;
    key->kind = (int64_t)md->format_kind;
    key->flags = (int64_t)md->extra.flags;
    if (md->extra.flags & dnnl_memory_extra_flag_compensation_conv_s8s8)
        key->masks[0] = md->extra.compensation_mask;
    if (md->extra.flags & dnnl_memory_extra_flag_scale_adjust)
        key->scale_adjust = md->extra.scale_adjust;
    if (md->extra.flags & dnnl_memory_extra_flag_compensation_conv_asymmetric_src)
        key->masks[1] = md->extra.asymm_compensation_mask;
    for (int i = 0; i < md->ndims && i < 8; i++) {
        key->dims[i] = md->dims[i];
        key->padded[i] = md->padded_dims[i];
        key->strides[i] = md->format_desc.blocking.strides[i];
    }
    key->inner_count = md->format_desc.blocking.inner_nblks;
    for (int i = 0; i < key->inner_count && i < 8; i++) {
        key->inner[i] = md->format_desc.blocking.inner_blks[i];
        key->inner_axes[i] = md->format_desc.blocking.inner_idxs[i];
    }
}

struct reorder_request {
    const void *data;
    const dnnl_memory_desc_t *from, *to;
};

static bool make_reordered(void *arg, void *out)
{
    const struct reorder_request *r = arg;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_primitive_t prim = NULL;
    dnnl_memory_t src = NULL, dst = NULL;
    dnnl_stream_t stream = NULL;
    bool done = false;
    void *in = cpu_aligned(dnnl_memory_desc_get_size(r->from));
    if (!in)
        return false;
    memcpy(in, r->data, dnnl_memory_desc_get_size(r->from)); /* files' data may be unaligned */
    if (dnnl_reorder_primitive_desc_create(&pd, r->from, engine, r->to, engine, NULL) == dnnl_success &&
        dnnl_primitive_create(&prim, pd) == dnnl_success &&
        dnnl_memory_create(&src, r->from, engine, in) == dnnl_success &&
        dnnl_memory_create(&dst, r->to, engine, out) == dnnl_success &&
        dnnl_stream_create(&stream, engine, dnnl_stream_default_flags) == dnnl_success) {
        dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, src}, {DNNL_ARG_TO, dst}};
        done = dnnl_primitive_execute(prim, stream, 2, args) == dnnl_success &&
               dnnl_stream_wait(stream) == dnnl_success;
    }
    dnnl_stream_destroy(stream);
    dnnl_memory_destroy(dst);
    dnnl_memory_destroy(src);
    dnnl_primitive_destroy(prim);
    dnnl_primitive_desc_destroy(pd);
    free(in);
    return done;
}

int fast_const_reordered(struct mlo_plan *plan, const void *data, const dnnl_memory_desc_t *from,
                         const dnnl_memory_desc_t *to)
{
    struct reorder_request request = {data, from, to};
    struct fast_md_key params[2];
    fast_md_key(from, &params[0]);
    fast_md_key(to, &params[1]);
    struct cpu_const_key key = {.kind = "onednn",
                                .source = data,
                                .source_bytes = dnnl_memory_desc_get_size(from),
                                .params = params,
                                .params_bytes = sizeof params};
    return cpu_shared_const(plan, &key, dnnl_memory_desc_get_size(to), make_reordered, &request);
}

/* --- programs ------------------------------------------------------------------------------------------ */

enum mlo_status cpu_fast_load(struct mlo_program *program, struct mlo_error *err)
{
    dnnl_stream_t stream = NULL;
    dnnl_status_t code =
        fast_engine() ? dnnl_stream_create(&stream, engine, dnnl_stream_default_flags) : dnnl_runtime_error;
    program->stream = stream;
    return code == dnnl_success ? MLO_OK : fast_failed(code, "make a stream", err);
}

void cpu_fast_unload(struct mlo_program *program)
{
    if (program->stream)
        dnnl_stream_destroy(program->stream);
}

int cpu_fast_enter(void)
{
    int before = omp_get_max_threads();
    omp_set_num_threads(1);
    return before;
}

void cpu_fast_leave(int token)
{
    omp_set_num_threads(token);
}
