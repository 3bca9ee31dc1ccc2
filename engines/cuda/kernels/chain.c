/* The text of a chain: how tensors are read and written, and the whole of a chain without reductions, which
 * is a loop over the index space, a few neighbouring elements a thread. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engines/cuda/kernels/chain_impl.h"

const char *chain_type(enum chain_kind kind)
{
    return kind == CHAIN_WHOLE ? "mlk_i64" : "float";
}

static void name_plain(struct mlo_buf *b, const void *arg, int reg)
{
    MLO_UNUSED(arg);
    mlo_buf_printf(b, "r%d", reg);
}

static const char *prefix(const struct cuda_chain *c, int tensor)
{
    return tensor < c->operand_count ? "in" : "out";
}

static int number(const struct cuda_chain *c, int tensor)
{
    return tensor < c->operand_count ? tensor : tensor - c->operand_count;
}

/* `+ d2 * 64 + d3` over dims begin … end-1; the innermost is in elements when `vector` is 1. */
void chain_offset(struct mlo_buf *b, const struct chain_form *f, int tensor, int begin, int end)
{
    bool any = false;
    for (int d = begin; d < end; d++) {
        int64_t s = f->strides[tensor][d];
        if (s)
            mlo_buf_printf(b, s == 1 ? "%sd%d" : "%sd%d * (mlk_index)%lld", any ? " + " : "", d,
                           (long long)s);
        any |= s != 0;
    }
    mlo_buf_puts(b, any ? "" : "0");
}

/* Coordinates of the position `of` in dims begin … end-1; `step`: what the innermost is counted in. */
void chain_coordinates(struct mlo_buf *b, const struct chain_form *f, const char *of, int begin, int end,
                       int step, const char *indent)
{
    if (begin >= end)
        return;
    mlo_buf_printf(b, "%smlk_index rest = %s;\n", indent, of);
    for (int d = end - 1; d >= begin; d--) {
        int64_t size = MLO_MAX(f->dims[d], 1), scale = d == end - 1 ? step : 1;
        if (d == begin)
            mlo_buf_printf(b, "%sconst mlk_index d%d = rest", indent, d);
        else
            mlo_buf_printf(b, "%sconst mlk_index d%d = rest %% %lld", indent, d, (long long)(size / scale));
        if (scale > 1)
            mlo_buf_printf(b, " * %lld", (long long)scale);
        mlo_buf_puts(b, ";\n");
        if (d > begin)
            mlo_buf_printf(b, "%srest /= %lld;\n", indent, (long long)(size / scale));
    }
}

void chain_packs(struct mlo_buf *b, const struct chain_form *f)
{
    for (int t = 0; t < f->tensors; t++)
        if (f->vectored[t])
            mlo_buf_printf(b, "MLK_PACK(pack_%s%d, mlk_t_%s, %d);\n", prefix(f->chain, t),
                           number(f->chain, t), cuda_type_name(chain_tensor(f->chain, t)->dtype), f->vector);
}

/* A base's text: the parameter, moved by the tensor's offset. */
void chain_base(struct mlo_buf *b, const struct chain_form *f, int tensor)
{
    const struct cuda_operand *o = chain_tensor(f->chain, tensor);
    mlo_buf_printf(b, "%s%d", prefix(f->chain, tensor), number(f->chain, tensor));
    if (o->offset)
        mlo_buf_printf(b, " + (mlk_i64)%lldLL", (long long)o->offset);
}

/* Whether a register is stored as the bytes that were loaded. */
static bool is_copy(const struct chain_form *f, int result)
{
    const struct cuda_operand *r = &f->chain->results[result];
    const struct cuda_chain_instruction *in = &f->chain->code[r->reg];
    return in->op == CUDA_OP_LOAD && f->chain->operands[in->a].dtype == r->dtype && !f->reduces;
}

/* The element of operand `t` that is at hand, as loaded. */
static void loaded(struct mlo_buf *b, const struct chain_form *f, int t)
{
    mlo_buf_printf(b, f->vectored[t] ? "p%d.v[v]" : "p%d", t);
}

void chain_define(struct mlo_buf *b, const struct chain_form *f, int reg, const char *indent,
                  chain_name_fn *name, const void *arg)
{
    const struct cuda_chain_instruction *in = &f->chain->code[reg];
    mlo_buf_printf(b, "%sconst %s r%d = ", indent, chain_type(f->kind[reg]), reg);
    if (in->op == CUDA_OP_LOAD || in->op == CUDA_OP_LOAD_INTEGER) {
        mlo_buf_printf(b, "%s_%s(", in->op == CUDA_OP_LOAD ? "mlk_get" : "mlk_whole",
                       cuda_type_name(f->chain->operands[in->a].dtype));
        loaded(b, f, in->a);
        mlo_buf_putc(b, ')');
    } else if (in->op == CUDA_OP_INDEX) {
        int d = f->index_dim[in->a];
        if (d < 0)
            mlo_buf_puts(b, "0");
        else
            mlo_buf_printf(b, d == f->rank - 1 && f->vector > 1 ? "d%d + v" : "d%d", d);
    } else {
        chain_expression(b, f, reg, name, arg);
    }
    mlo_buf_puts(b, ";\n");
}

void chain_store(struct mlo_buf *b, const struct chain_form *f, int result, const char *to,
                 const char *indent, chain_name_fn *name, const void *arg)
{
    const struct cuda_operand *r = &f->chain->results[result];
    bool whole = f->kind[r->reg] == CHAIN_WHOLE;
    mlo_buf_printf(b, "%s%s = ", indent, to);
    if (is_copy(f, result)) {
        loaded(b, f, f->chain->code[r->reg].a);
    } else {
        mlo_buf_printf(b, "%s_%s(", whole ? "mlk_put_whole" : "mlk_put", cuda_type_name(r->dtype));
        chain_value(b, f, r->reg, whole ? CHAIN_WHOLE : CHAIN_FLOAT, name, arg);
        mlo_buf_putc(b, ')');
    }
    mlo_buf_puts(b, ";\n");
}

/* Loads operand t at `at` into p%d, a pack where it is vectored. */
void chain_load(struct mlo_buf *b, const struct chain_form *f, int t, const char *indent)
{
    if (f->vectored[t])
        mlo_buf_printf(b, "%sconst pack_in%d p%d = *(const pack_in%d *)(", indent, t, t, t);
    else
        mlo_buf_printf(b, "%sconst mlk_t_%s p%d = *(", indent,
                       cuda_type_name(chain_tensor(f->chain, t)->dtype), t);
}

bool chain_reads(const struct chain_form *f, int operand, const bool *wanted)
{
    for (int i = 0; i < f->chain->count; i++) {
        const struct cuda_chain_instruction *in = &f->chain->code[i];
        if (wanted[i] && (in->op == CUDA_OP_LOAD || in->op == CUDA_OP_LOAD_INTEGER) && in->a == operand)
            return true;
    }
    return false;
}

/* --- without reductions --------------------------------------------------------------------------------- */

static void elementwise(struct mlo_buf *b, const struct chain_form *f)
{
    const struct cuda_chain *c = f->chain;
    char target[64];
    mlo_buf_printf(b, "MLK_KERNEL\n{\n    MLK_GRID(i, (mlk_index)%lld) {\n",
                   (long long)(f->rows / f->vector));
    chain_coordinates(b, f, "i", 0, f->rank, f->vector, "        ");
    for (int t = 0; t < c->operand_count; t++)
        if (chain_reads(f, t, f->used)) {
            chain_load(b, f, t, "        ");
            chain_base(b, f, t);
            mlo_buf_puts(b, " + (");
            chain_offset(b, f, t, 0, f->rank);
            mlo_buf_puts(b, "));\n");
        }
    for (int i = 0; i < c->result_count; i++)
        if (f->vectored[c->operand_count + i])
            mlo_buf_printf(b, "        pack_out%d q%d;\n", i, i);
    if (f->vector > 1)
        mlo_buf_printf(b, "        MLK_UNROLL for (int v = 0; v < %d; v++) {\n", f->vector);
    const char *indent = f->vector > 1 ? "            " : "        ";
    for (int i = 0; i < c->count; i++)
        if (f->used[i] && f->kind[i] != CHAIN_EITHER)
            chain_define(b, f, i, indent, name_plain, NULL);
    for (int i = 0; i < c->result_count; i++)
        if (f->vectored[c->operand_count + i]) {
            snprintf(target, sizeof target, "q%d.v[v]", i);
            chain_store(b, f, i, target, indent, name_plain, NULL);
        } else {
            mlo_buf_printf(b, "%smlk_t_%s *const y%d = ", indent, cuda_type_name(c->results[i].dtype), i);
            chain_base(b, f, c->operand_count + i);
            mlo_buf_puts(b, " + (");
            chain_offset(b, f, c->operand_count + i, 0, f->rank);
            mlo_buf_puts(b, ");\n");
            snprintf(target, sizeof target, "*y%d", i);
            chain_store(b, f, i, target, indent, name_plain, NULL);
        }
    mlo_buf_puts(b, f->vector > 1 ? "        }\n" : "");
    for (int i = 0; i < c->result_count; i++)
        if (f->vectored[c->operand_count + i]) {
            mlo_buf_printf(b, "        *(pack_out%d *)(", i);
            chain_base(b, f, c->operand_count + i);
            mlo_buf_puts(b, " + (");
            chain_offset(b, f, c->operand_count + i, 0, f->rank);
            mlo_buf_printf(b, ")) = q%d;\n", i);
        }
    mlo_buf_puts(b, "    }\n}\n");
}

enum mlo_status chain_source(const struct cuda_chain *chain, bool aliased, struct cuda_source *out,
                             struct mlo_error *err)
{
    struct mlo_buf b = {0};
    struct chain_form f;
    struct chain_rows rows = {.threads = CHAIN_BLOCK, .budget = CHAIN_BUDGET};
    int64_t furthest = 0;
    enum mlo_status status = chain_form_init(&f, chain, err);
    if (status != MLO_OK)
        return status;
    for (int t = 0; t < f.tensors; t++) {
        int64_t last = 0;
        for (int d = 0; d < f.rank; d++)
            last += MLO_MAX(f.dims[d] - 1, 0) * llabs(f.strides[t][d]);
        furthest = MLO_MAX(furthest, last);
    }
    if (f.reduces)
        chain_rows_plan(&rows, &f);
    struct cuda_frame frame = {.entry = "chain",
                               .threads = rows.threads,
                               .budget = rows.budget,
                               .wide = cuda_is_wide(MLO_MAX(furthest, f.rows * f.length)),
                               .aliased = aliased};
    for (int t = 0; t < f.tensors; t++)
        cuda_frame_parameter(&frame, chain_tensor(chain, t)->dtype, t >= chain->operand_count, "%s%d",
                             prefix(chain, t), number(chain, t));
    cuda_frame_begin(&b, &frame);
    chain_packs(&b, &f);
    if (f.reduces)
        chain_rows_text(&b, &rows);
    else
        elementwise(&b, &f);
    int64_t blocks =
        f.reduces ? cuda_ceil_div(f.rows, rows.together) : cuda_ceil_div(f.rows / f.vector, CHAIN_BLOCK);
    return cuda_frame_end(&b, &frame, blocks, out, err);
}

enum mlo_status cuda_chain_source(const struct cuda_chain *chain, struct cuda_source *out,
                                  struct mlo_error *err)
{
    return chain_source(chain, true, out, err);
}
