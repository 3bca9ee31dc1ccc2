/* Primitives of oneDNN in plans' files: what was asked is written as an operation, memory descriptors and
 * attributes of ours, and asked again through oneDNN's own checking functions. The implementation and the
 * layout of the weights that it wants must then be those of before, since the weights are packed for it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engines/cpu/fast/prim_impl.h"

enum { OP_MDS_MAX = 4, POSTS_MAX = 32, SCALES_MAX = 1 << 20 };

/* One shape for all operations that lowerings ask for; each uses some of it. */
struct asked {
    dnnl_primitive_kind_t kind;
    dnnl_alg_kind_t alg;
    dnnl_memory_desc_t md[OP_MDS_MAX]; /* in the order of the function that makes the descriptor */
    dnnl_dims_t strides, dilations, kernel, begin, end;
    float alpha, beta;
    int axis;
};

/* --- what was asked, from a primitive descriptor -------------------------------------------------------- */

static void ask_conv(const void *desc, struct asked *a)
{
    const dnnl_convolution_desc_t *d = desc;
    a->alg = d->alg_kind;
    a->md[0] = d->src_desc, a->md[1] = d->weights_desc, a->md[2] = d->bias_desc, a->md[3] = d->dst_desc;
    memcpy(a->strides, d->strides, sizeof a->strides);
    memcpy(a->dilations, d->dilates, sizeof a->dilations);
    memcpy(a->begin, d->padding[0], sizeof a->begin);
    memcpy(a->end, d->padding[1], sizeof a->end);
}

static void ask_inner(const void *desc, struct asked *a)
{
    const dnnl_inner_product_desc_t *d = desc;
    a->md[0] = d->src_desc, a->md[1] = d->weights_desc, a->md[2] = d->bias_desc, a->md[3] = d->dst_desc;
}

static void ask_pool(const void *desc, struct asked *a)
{
    const dnnl_pooling_desc_t *d = desc;
    a->alg = d->alg_kind;
    a->md[0] = d->src_desc, a->md[1] = d->dst_desc;
    memcpy(a->strides, d->strides, sizeof a->strides);
    memcpy(a->kernel, d->kernel, sizeof a->kernel);
    memcpy(a->begin, d->padding[0], sizeof a->begin);
    memcpy(a->end, d->padding[1], sizeof a->end);
}

static void ask_eltwise(const void *desc, struct asked *a)
{
    const dnnl_eltwise_desc_t *d = desc;
    a->alg = d->alg_kind;
    a->md[0] = d->data_desc;
    a->alpha = d->alpha, a->beta = d->beta;
}

static void ask_softmax(const void *desc, struct asked *a)
{
    const dnnl_softmax_v2_desc_t *d = desc;
    a->alg = d->alg_kind;
    a->md[0] = d->src_desc, a->md[1] = d->dst_desc;
    a->axis = d->softmax_axis;
}

static void ask_binary(const void *desc, struct asked *a)
{
    const dnnl_binary_desc_t *d = desc;
    a->alg = d->alg_kind;
    a->md[0] = d->src_desc[0], a->md[1] = d->src_desc[1], a->md[2] = d->dst_desc;
}

static void ask_matmul(const void *desc, struct asked *a)
{
    const dnnl_matmul_desc_t *d = desc;
    a->md[0] = d->src_desc, a->md[1] = d->weights_desc, a->md[2] = d->bias_desc, a->md[3] = d->dst_desc;
}

/* --- and asked again ------------------------------------------------------------------------------------ */

union op_desc {
    dnnl_convolution_desc_t conv;
    dnnl_inner_product_desc_t inner;
    dnnl_pooling_desc_t pool;
    dnnl_eltwise_desc_t eltwise;
    dnnl_softmax_v2_desc_t softmax;
    dnnl_binary_desc_t binary;
    dnnl_matmul_desc_t matmul;
};

static const dnnl_memory_desc_t *given(const dnnl_memory_desc_t *md)
{
    return md->ndims ? md : NULL;
}

static dnnl_status_t make_conv(const struct asked *a, union op_desc *d)
{
    return dnnl_dilated_convolution_forward_desc_init(&d->conv, dnnl_forward_inference, a->alg, &a->md[0],
                                                      &a->md[1], given(&a->md[2]), &a->md[3], a->strides,
                                                      a->dilations, a->begin, a->end);
}

static dnnl_status_t make_inner(const struct asked *a, union op_desc *d)
{
    return dnnl_inner_product_forward_desc_init(&d->inner, dnnl_forward_inference, &a->md[0], &a->md[1],
                                                given(&a->md[2]), &a->md[3]);
}

static dnnl_status_t make_pool(const struct asked *a, union op_desc *d)
{
    return dnnl_pooling_forward_desc_init(&d->pool, dnnl_forward_inference, a->alg, &a->md[0], &a->md[1],
                                          a->strides, a->kernel, a->begin, a->end);
}

static dnnl_status_t make_eltwise(const struct asked *a, union op_desc *d)
{
    return dnnl_eltwise_forward_desc_init(&d->eltwise, dnnl_forward_inference, a->alg, &a->md[0], a->alpha,
                                          a->beta);
}

static dnnl_status_t make_softmax(const struct asked *a, union op_desc *d)
{
    return dnnl_softmax_v2_forward_desc_init(&d->softmax, dnnl_forward_inference, a->alg, &a->md[0],
                                             &a->md[1], a->axis);
}

static dnnl_status_t make_binary(const struct asked *a, union op_desc *d)
{
    return dnnl_binary_desc_init(&d->binary, a->alg, &a->md[0], &a->md[1], &a->md[2]);
}

static dnnl_status_t make_matmul(const struct asked *a, union op_desc *d)
{
    return dnnl_matmul_desc_init(&d->matmul, &a->md[0], &a->md[1], given(&a->md[2]), &a->md[3]);
}

static const struct kind {
    dnnl_primitive_kind_t kind;
    int mds;
    void (*ask)(const void *desc, struct asked *a);
    dnnl_status_t (*make)(const struct asked *a, union op_desc *d);
    int args[4]; /* what must be given to run it, one for each descriptor; 0: none */
} kinds[] = {
    {dnnl_convolution, 4, ask_conv, make_conv, {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_BIAS, DNNL_ARG_DST}},
    {dnnl_inner_product,
     4,
     ask_inner,
     make_inner,
     {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_BIAS, DNNL_ARG_DST}},
    {dnnl_matmul, 4, ask_matmul, make_matmul, {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_BIAS, DNNL_ARG_DST}},
    {dnnl_pooling, 2, ask_pool, make_pool, {DNNL_ARG_SRC, DNNL_ARG_DST}},
    {dnnl_eltwise, 1, ask_eltwise, make_eltwise, {DNNL_ARG_SRC, DNNL_ARG_DST}},
    {dnnl_softmax_v2, 2, ask_softmax, make_softmax, {DNNL_ARG_SRC, DNNL_ARG_DST}},
    {dnnl_binary, 3, ask_binary, make_binary, {DNNL_ARG_SRC_0, DNNL_ARG_SRC_1, DNNL_ARG_DST}},
    {dnnl_reorder, 2, NULL, NULL, {DNNL_ARG_FROM, DNNL_ARG_TO}},
};

static const struct kind *find_kind(dnnl_primitive_kind_t kind)
{
    for (size_t i = 0; i < MLO_COUNT(kinds); i++)
        if (kinds[i].kind == kind)
            return &kinds[i];
    return NULL;
}

/* --- memory descriptors ----------------------------------------------------------------------------------
 */

static bool is_plain(const dnnl_memory_desc_t *md)
{
    return md->format_kind == dnnl_blocked && md->format_desc.blocking.inner_nblks == 0 &&
           md->extra.flags == 0 && md->offset0 == 0 &&
           memcmp(md->dims, md->padded_dims, (size_t)md->ndims * sizeof *md->dims) == 0;
}

/* False: a layout that only oneDNN can name. */
static bool put_md(struct cpu_writer *w, const dnnl_memory_desc_t *md)
{
    bool any = md->format_kind == dnnl_format_kind_any;
    cpu_put_u32(w, (uint32_t)md->ndims);
    if (!md->ndims)
        return true;
    cpu_put_u32(w, (uint32_t)md->data_type);
    cpu_put_u32(w, any);
    for (int i = 0; i < md->ndims; i++) {
        cpu_put_i64(w, md->dims[i]);
        cpu_put_i64(w, any ? 0 : md->format_desc.blocking.strides[i]);
    }
    return any || is_plain(md);
}

static void get_md(struct cpu_reader *r, dnnl_memory_desc_t *md)
{
    dnnl_dims_t dims = {0}, strides = {0};
    size_t count = 1;
    memset(md, 0, sizeof *md);
    int rank = (int)cpu_get_u32(r);
    if (!cpu_check(r, rank >= 0 && rank <= 6, "a memory has too many dims") || !rank)
        return;
    dnnl_data_type_t type = (dnnl_data_type_t)cpu_get_u32(r);
    bool any = cpu_get_u32(r) != 0;
    for (int i = 0; i < rank; i++) {
        dims[i] = cpu_get_i64(r);
        strides[i] = cpu_get_i64(r);
        bool ok = dims[i] >= 1 && dims[i] <= INT32_MAX && strides[i] >= 0 && strides[i] <= INT32_MAX;
        if (!cpu_check(r, ok, "a memory has no sizes"))
            return;
        count = cpu_product(count, (size_t)dims[i], 1);
    }
    bool known = type == dnnl_f32 || type == dnnl_u8 || type == dnnl_s8 || type == dnnl_s32;
    if (!cpu_check(r, known && count <= (size_t)1 << 38, "a memory is of no type"))
        return;
    dnnl_status_t code = any ? dnnl_memory_desc_init_by_tag(md, rank, dims, type, dnnl_format_tag_any)
                             : dnnl_memory_desc_init_by_strides(md, rank, dims, type, strides);
    cpu_check(r, code == dnnl_success, "a memory has no layout");
}

static void put_dims(struct cpu_writer *w, const dnnl_dims_t dims)
{
    for (int i = 0; i < 3; i++) /* spatial ones */
        cpu_put_i64(w, dims[i]);
}

static void get_dims(struct cpu_reader *r, dnnl_dims_t dims, int64_t min, int64_t max)
{
    memset(dims, 0, sizeof(dnnl_dims_t));
    for (int i = 0; i < 3; i++) {
        dims[i] = cpu_get_i64(r);
        cpu_check(r, dims[i] >= min && dims[i] <= max, "a window has no size");
    }
}

/* --- attributes ------------------------------------------------------------------------------------------
 */

static bool put_attr(struct cpu_writer *w, const_dnnl_primitive_attr_t attr)
{
    dnnl_dim_t count = 0, zero_count = 0;
    int mask = 0, zero_mask = 0;
    const float *scales = NULL;
    const int32_t *zeros = NULL;
    const_dnnl_post_ops_t posts = NULL;
    if (dnnl_primitive_attr_get_output_scales(attr, &count, &mask, &scales) != dnnl_success ||
        dnnl_primitive_attr_get_zero_points(attr, DNNL_ARG_SRC, &zero_count, &zero_mask, &zeros) !=
            dnnl_success ||
        dnnl_primitive_attr_get_post_ops(attr, &posts) != dnnl_success)
        return false;
    cpu_put_u64(w, (uint64_t)count);
    cpu_put_i32(w, mask);
    cpu_put_bytes(w, scales, (size_t)count * sizeof *scales);
    cpu_put_i32(w, zero_count == 1 && zeros ? *zeros : 0);
    int n = dnnl_post_ops_len(posts);
    cpu_put_u32(w, (uint32_t)n);
    for (int i = 0; i < n; i++) {
        float scale, alpha = 0, beta = 0;
        int32_t zero = 0;
        dnnl_alg_kind_t alg = dnnl_alg_kind_undef;
        dnnl_data_type_t type = dnnl_data_type_undef;
        bool sum = dnnl_post_ops_get_kind(posts, i) == dnnl_sum;
        if (sum ? dnnl_post_ops_get_params_sum_v3(posts, i, &scale, &zero, &type) != dnnl_success
                : dnnl_post_ops_get_params_eltwise(posts, i, &scale, &alg, &alpha, &beta) != dnnl_success)
            return false;
        cpu_put_u32(w, sum);
        cpu_put_f32(w, scale);
        cpu_put_i32(w, zero);
        cpu_put_u32(w, (uint32_t)type);
        cpu_put_u32(w, (uint32_t)alg);
        cpu_put_f32(w, alpha);
        cpu_put_f32(w, beta);
    }
    return zero_count <= 1;
}

static void get_posts(struct cpu_reader *r, dnnl_primitive_attr_t attr)
{
    dnnl_post_ops_t posts = NULL;
    uint32_t n = cpu_get_u32(r);
    bool ok = n <= POSTS_MAX && dnnl_post_ops_create(&posts) == dnnl_success;
    for (uint32_t i = 0; ok && i < n; i++) {
        bool sum = cpu_get_u32(r) != 0;
        float scale = cpu_get_f32(r);
        int32_t zero = cpu_get_i32(r);
        dnnl_data_type_t type = (dnnl_data_type_t)cpu_get_u32(r);
        dnnl_alg_kind_t alg = (dnnl_alg_kind_t)cpu_get_u32(r);
        float alpha = cpu_get_f32(r), beta = cpu_get_f32(r);
        ok = (sum ? dnnl_post_ops_append_sum_v3(posts, scale, zero, type)
                  : dnnl_post_ops_append_eltwise(posts, scale, alg, alpha, beta)) == dnnl_success;
    }
    ok = ok && dnnl_primitive_attr_set_post_ops(attr, posts) == dnnl_success;
    cpu_check(r, ok, "what follows an operation is not known");
    dnnl_post_ops_destroy(posts);
}

static bool all_finite(const float *x, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!isfinite(x[i]))
            return false;
    return true;
}

/* `channels`: how many scales there may be but 1. A NaN and the smallest integer would mean to oneDNN that
 * the number is given when the primitive runs. */
static dnnl_primitive_attr_t get_attr(struct cpu_reader *r, int64_t channels)
{
    dnnl_primitive_attr_t attr = fast_attr();
    uint64_t count = cpu_get_u64(r);
    int mask = cpu_get_i32(r);
    bool ok = attr && count >= 1 && count <= SCALES_MAX &&
              (mask ? mask == 2 && (int64_t)count == channels : count == 1);
    float *scales = ok ? malloc((size_t)count * sizeof *scales) : NULL;
    if (cpu_check(r, scales != NULL, "an operation's scales are not its channels'") &&
        cpu_get_bytes(r, scales, (size_t)count * sizeof *scales) &&
        cpu_check(r, all_finite(scales, (size_t)count), "an operation's scales are no numbers") &&
        (count > 1 || mask || scales[0] != 1.0f))
        cpu_check(
            r, dnnl_primitive_attr_set_output_scales(attr, (dnnl_dim_t)count, mask, scales) == dnnl_success,
            "an operation's scales are not known");
    free(scales);
    int32_t zero = cpu_get_i32(r);
    if (!cpu_failed(r) && zero)
        cpu_check(r,
                  zero >= INT8_MIN && zero <= UINT8_MAX &&
                      dnnl_primitive_attr_set_zero_points(attr, DNNL_ARG_SRC, 1, 0, &zero) == dnnl_success,
                  "an operation's zero point is not known");
    if (!cpu_failed(r))
        get_posts(r, attr);
    return attr;
}

/* --- the step --------------------------------------------------------------------------------------------
 */

/* What tells layouts of weights apart. */
static void digest_of_md(const dnnl_memory_desc_t *md, struct mlo_digest *out)
{
    struct fast_md_key key = {0};
    if (md)
        fast_md_key(md, &key);
    mlo_digest_of(&key, sizeof key, out);
}

static bool ask(const_dnnl_primitive_desc_t pd, struct asked *a)
{
    const void *desc = NULL;
    memset(a, 0, sizeof *a);
    if (dnnl_primitive_desc_query(pd, dnnl_query_primitive_kind, 0, &a->kind) != dnnl_success)
        return false;
    const struct kind *kind = find_kind(a->kind);
    if (!kind)
        return false;
    if (kind->ask) {
        if (dnnl_primitive_desc_query(pd, dnnl_query_op_d, 0, (void *)&desc) != dnnl_success)
            return false;
        kind->ask(desc, a);
        return true;
    }
    a->md[0] = *dnnl_primitive_desc_query_md(pd, dnnl_query_src_md, 0);
    a->md[1] = *dnnl_primitive_desc_query_md(pd, dnnl_query_dst_md, 0);
    return true;
}

enum mlo_status fast_prim_save(const struct mlo_plan *plan, const struct cpu_step *step, struct cpu_writer *w,
                               struct mlo_error *err)
{
    MLO_UNUSED(plan);
    const struct prim *p = step->data;
    const_dnnl_primitive_desc_t pd = NULL;
    const_dnnl_primitive_attr_t attr = NULL;
    struct asked a;
    struct mlo_digest weights;
    bool ok = dnnl_primitive_get_primitive_desc(p->handle, &pd) == dnnl_success &&
              dnnl_primitive_desc_get_attr(pd, &attr) == dnnl_success && ask(pd, &a);
    if (ok) {
        cpu_put_u32(w, (uint32_t)a.kind);
        cpu_put_u32(w, (uint32_t)a.alg);
        for (int i = 0; i < find_kind(a.kind)->mds; i++)
            ok &= put_md(w, &a.md[i]);
        put_dims(w, a.strides);
        put_dims(w, a.dilations);
        put_dims(w, a.kernel);
        put_dims(w, a.begin);
        put_dims(w, a.end);
        cpu_put_f32(w, a.alpha);
        cpu_put_f32(w, a.beta);
        cpu_put_i32(w, a.axis);
        ok = ok && put_attr(w, attr);
    }
    if (!ok) {
        mlo_error_set(err, MLO_EUNSUPPORTED, "a oneDNN primitive (%s) cannot be written into a plan's file",
                      step->impl);
        mlo_error_where(err, "node '%s'", step->node ? step->node->name : "");
        return MLO_EUNSUPPORTED;
    }
    digest_of_md(dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0), &weights);
    cpu_put_bytes(w, &weights, sizeof weights);
    cpu_put_u32(w, (uint32_t)p->count);
    for (int i = 0; i < p->count; i++) {
        cpu_put_i32(w, p->args[i].arg);
        cpu_put_i32(w, p->args[i].slot);
    }
    return MLO_OK;
}

static dnnl_primitive_desc_t describe(const struct asked *a, const struct kind *kind,
                                      dnnl_primitive_attr_t attr)
{
    union op_desc desc;
    dnnl_primitive_desc_t pd = NULL;
    if (!fast_engine())
        return NULL;
    if (kind->make)
        return kind->make(a, &desc) == dnnl_success && fast_pd(&desc, attr, &pd) ? pd : NULL;
    return dnnl_reorder_primitive_desc_create(&pd, &a->md[0], fast_engine(), &a->md[1], fast_engine(),
                                              attr) == dnnl_success
               ? pd
               : NULL;
}

/* Every argument that the primitive reads or writes is there once, in a slot of the step that holds it. */
static void get_args(struct cpu_reader *r, const struct mlo_plan *plan, const struct cpu_step *step,
                     struct prim *p, const_dnnl_primitive_desc_t pd, const struct asked *a)
{
    const struct kind *kind = find_kind(a->kind);
    int wanted = kind->kind == dnnl_eltwise ? 2 : kind->mds;
    for (int i = 0; i < kind->mds; i++)
        wanted -= a->md[i].ndims == 0;
    uint32_t count = cpu_get_u32(r);
    if (!cpu_check(r, (int)count == wanted, "an operation's arguments are not there"))
        return;
    for (uint32_t i = 0; i < count && !cpu_failed(r); i++) {
        int arg = cpu_get_i32(r), slot = cpu_get_i32(r);
        bool known = false, once = true, bound = false;
        for (int k = 0; k < 4; k++)
            known |= kind->args[k] == arg && arg != 0;
        for (uint32_t k = 0; k < i; k++)
            once &= p->args[k].arg != arg;
        if (arg == DNNL_ARG_DST || (kind->kind == dnnl_reorder && arg == DNNL_ARG_TO))
            bound = step->out_count == 1 && step->out[0] == slot;
        else
            for (int k = 0; k < step->in_count; k++)
                bound |= step->in[k] == slot;
        const dnnl_memory_desc_t *md = dnnl_primitive_desc_query_md(pd, dnnl_query_exec_arg_md, arg);
        if (!cpu_check(r, known && once && bound && md && md->ndims,
                       "an operation's arguments are mixed up") ||
            !cpu_slot_holds(r, plan, slot, dnnl_memory_desc_get_size(md)))
            return;
        p->args[p->count].arg = arg;
        p->args[p->count].slot = slot;
        p->args[p->count++].md = *md;
    }
}

static enum mlo_status stale(const struct cpu_step *step, const char *what, struct mlo_error *err)
{
    return mlo_error_set(err, MLO_ESTALE,
                         "oneDNN %s for node '%s', which the plan compiled as %s: compile it again", what,
                         step->node ? step->node->name : "", step->impl);
}

enum mlo_status fast_prim_restore(struct mlo_plan *plan, struct cpu_step *step, struct cpu_reader *r,
                                  struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct asked a = {.kind = (dnnl_primitive_kind_t)cpu_get_u32(r), .alg = (dnnl_alg_kind_t)cpu_get_u32(r)};
    struct mlo_digest weights, wanted;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t pd = NULL;
    const char *impl = "";
    const struct kind *kind = find_kind(a.kind);
    struct prim *p = calloc(1, sizeof *p);
    step->data = p;
    if (!p)
        return mlo_error_nomem(err);
    if (!cpu_check(r, kind != NULL, "an operation is not known"))
        return cpu_reader_status(r, err);
    cpu_fast_init();
    for (int i = 0; i < kind->mds; i++)
        get_md(r, &a.md[i]);
    get_dims(r, a.strides, 0, 1 << 20);
    get_dims(r, a.dilations, 0, 1 << 20);
    get_dims(r, a.kernel, 0, 1 << 20);
    get_dims(r, a.begin, 0, 1 << 20);
    get_dims(r, a.end, -(1 << 20), 1 << 20);
    a.alpha = cpu_get_f32(r);
    a.beta = cpu_get_f32(r);
    a.axis = cpu_get_i32(r);
    const dnnl_memory_desc_t *y = &a.md[kind->mds - 1];
    attr = get_attr(r, y->ndims > 1 ? y->dims[1] : 1);
    cpu_get_bytes(r, &weights, sizeof weights);
    MLO_TRY(cpu_reader_status(r, err));
    pd = describe(&a, kind, attr);
    if (!pd) {
        status = stale(step, "has no implementation", err);
        goto out;
    }
    dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &impl);
    digest_of_md(dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0), &wanted);
    if (!mlo_str_starts(step->impl, "onednn:") || strcmp(impl, step->impl + 7) != 0 ||
        !mlo_digest_eq(&weights, &wanted)) {
        status = stale(step, "has another implementation", err);
        goto out;
    }
    get_args(r, plan, step, p, pd, &a);
    MLO_TRY(cpu_reader_status(r, err));
    dnnl_status_t code = fast_prim_make(p, pd);
    if (code != dnnl_success)
        status = fast_failed(code, "make a primitive", err);
    else if (p->has_scratch)
        cpu_check(r, dnnl_memory_desc_get_size(&p->scratch) <= plan->scratch_bytes,
                  "there is no scratch memory");
    if (status == MLO_OK)
        status = cpu_reader_status(r, err);
out:
    dnnl_primitive_desc_destroy(pd);
    dnnl_primitive_attr_destroy(attr);
    return status;
}
