/* Chains with reductions. Rows are taken by groups of threads (up to a whole block each), which go over them
 * once for each round of reductions and once for the results. What a later round needs again stays in
 * registers where there is room; else it is computed again from what the caches have. Where rows lie next to
 * each other and their elements do not (means over an image, channels last), neighbouring threads take
 * neighbouring rows. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engines/cuda/kernels/chain_impl.h"

enum {
    KEPT_MAX = 64, /* values of a thread that stay between rounds */
    TURNS_MAX = 8,
    WARP = 32,
    COLUMNS = 32,
    LONG_ROW = 4096, /* turns of one thread from which a block of 1024 takes a row */
    BUDGET_KEEPING = 128,
};

/* --- what is done when ---------------------------------------------------------------------------------- */

/* Whether a register is what round `round` is for: reduced in it, or stored in the last one. */
static bool is_root(const struct chain_form *f, int reg, int round)
{
    const struct cuda_chain *c = f->chain;
    if (round < f->rounds) {
        for (int i = 0; i < c->count; i++)
            if (f->used[i] && chain_is_reduction(c->code[i].op) && f->level[i] == round + 1 &&
                c->code[i].a == reg)
                return true;
        return false;
    }
    for (int i = 0; i < c->result_count; i++) {
        int t = c->operand_count + i;
        for (int d = f->kept; d < f->rank; d++)
            if (c->results[i].reg == reg && f->strides[t][d])
                return true;
    }
    return false;
}

/* Varying registers that a round computes; what `have` has is there already. Those of it that are asked for
 * are marked in `asked`. */
static void wanted_in(const struct chain_form *f, int round, const bool *have, bool *wanted, bool *asked)
{
    bool ask[CUDA_CHAIN_REGISTERS] = {false};
    memset(wanted, 0, CUDA_CHAIN_REGISTERS * sizeof *wanted);
    for (int i = f->chain->count - 1; i >= 0; i--) {
        const struct cuda_chain_instruction *in = &f->chain->code[i];
        const int registers[] = {in->a, in->b, in->c};
        if (!f->varies[i] || (!ask[i] && !is_root(f, i, round)))
            continue;
        if (have && have[i]) {
            asked[i] = true;
            continue;
        }
        wanted[i] = true;
        for (int k = 0; k < chain_arguments(in); k++)
            ask[registers[k]] = true;
    }
}

static int keep_what_returns(struct chain_rows *w)
{
    const struct chain_form *f = w->f;
    int times[CUDA_CHAIN_REGISTERS] = {0}, count = 0;
    bool have[CUDA_CHAIN_REGISTERS] = {false}, asked[CUDA_CHAIN_REGISTERS] = {false};
    bool wanted[CUDA_CHAIN_REGISTERS];
    for (int round = 0; round <= f->rounds; round++) {
        wanted_in(f, round, NULL, wanted, NULL);
        for (int i = 0; i < f->chain->count; i++)
            times[i] += wanted[i];
    }
    for (int round = 0; round <= f->rounds; round++) {
        wanted_in(f, round, have, wanted, asked);
        for (int i = 0; i < f->chain->count; i++)
            if (wanted[i] && times[i] > 1 && f->chain->code[i].op != CUDA_OP_INDEX) {
                have[i] = true;
                w->made[i] = round;
            }
    }
    for (int i = 0; i < f->chain->count; i++) {
        w->keep[i] = asked[i];
        count += asked[i];
    }
    return count;
}

static int power_of_two(int64_t n, int most) /* not below n, if it is not above `most` */
{
    int p = 1;
    while (p < n && p < most)
        p *= 2;
    return p;
}

/* Whether the first operand that is read over rows has neighbouring rows next to each other, not elements. */
static bool lies_in_columns(const struct chain_form *f)
{
    for (int t = 0; t < f->chain->operand_count; t++) {
        bool varies = false;
        for (int d = f->kept; d < f->rank; d++)
            varies |= f->strides[t][d] != 0;
        if (varies)
            return f->kept > 0 && llabs(f->strides[t][f->rank - 1]) != 1 &&
                   llabs(f->strides[t][f->kept - 1]) == 1 && f->dims[f->kept - 1] >= 8;
    }
    return false;
}

void chain_rows_plan(struct chain_rows *w, const struct chain_form *f)
{
    int64_t units = f->length / f->vector;
    w->f = f;
    w->threads = CHAIN_BLOCK;
    w->budget = CHAIN_BUDGET;
    memset(w->made, -1, sizeof w->made);
    if (lies_in_columns(f)) {
        w->columns = units >= COLUMNS;
        w->group = w->columns ? CHAIN_BLOCK / COLUMNS : 1;
    } else if (units > WARP * TURNS_MAX || (units > 2 * WARP && f->rows < 512)) {
        w->threads = units > LONG_ROW ? 1024 : CHAIN_BLOCK;
        w->group = w->threads;
    } else {
        w->group = power_of_two(units, WARP);
    }
    w->together = w->threads / w->group;
    int64_t turns = cuda_ceil_div(units, w->group);
    int kept = keep_what_returns(w);
    bool fits = turns <= TURNS_MAX && kept * turns * f->vector <= KEPT_MAX && w->threads == CHAIN_BLOCK;
    w->turns = fits ? (int)turns : 0;
    if (!fits)
        memset(w->keep, 0, sizeof w->keep);
    else if (kept * turns * f->vector > KEPT_MAX / 4)
        w->budget = BUDGET_KEEPING;
}

/* --- text ----------------------------------------------------------------------------------------------- */

/* Registers that do not vary live as long as the row. */
static void name_row(struct mlo_buf *b, const void *arg, int reg)
{
    const struct chain_rows *w = arg;
    mlo_buf_printf(b, w->f->varies[reg] ? "r%d" : "MLK_L(r%d)", reg);
}

static const struct {
    const char *floats, *wholes, *start, *whole_start;
} reductions[CUDA_CHAIN_OPS] = {
    [CUDA_OP_SUM] = {"MLK_ADD", "mlk_add_whole", "0.0f", "0"},
    [CUDA_OP_PRODUCT] = {"MLK_MUL", "mlk_mul_whole", "1.0f", "1"},
    [CUDA_OP_REDUCE_MAX] = {"mlk_max", "mlk_max_whole", "(-MLK_INF)", "MLK_I64_MIN"},
    [CUDA_OP_REDUCE_MIN] = {"mlk_min", "mlk_min_whole", "MLK_INF", "MLK_I64_MAX"},
};

static bool reduced_in(const struct chain_form *f, int reg, int round)
{
    return f->used[reg] && chain_is_reduction(f->chain->code[reg].op) && f->level[reg] == round + 1;
}

static void declare(struct mlo_buf *b, const struct chain_rows *w)
{
    const struct chain_form *f = w->f;
    for (int i = 0; i < f->chain->count; i++)
        if (f->used[i] && !f->varies[i] && f->kind[i] != CHAIN_EITHER)
            mlo_buf_printf(b, "        MLK_LOCAL(%s, r%d);\n", chain_type(f->kind[i]), i);
        else if (w->keep[i])
            mlo_buf_printf(b, "        MLK_LOCALS(%s, k%d, %d);\n", chain_type(f->kind[i]), i,
                           w->turns * f->vector);
    for (int t = 0; t < f->tensors; t++)
        mlo_buf_printf(b, "        MLK_LOCAL(mlk_index, at%d);\n", t);
}

/* `*(in0 + MLK_L(at0) + (d2 * 3))`, from behind the opening parenthesis. */
static void place(struct mlo_buf *b, const struct chain_form *f, int t, bool in_row)
{
    chain_base(b, f, t);
    mlo_buf_printf(b, " + MLK_L(at%d) + (", t);
    if (in_row)
        mlo_buf_puts(b, "0");
    else
        chain_offset(b, f, t, f->kept, f->rank);
    mlo_buf_puts(b, "))");
}

/* Registers of the row that are known before round `level`. */
static void row_registers(struct mlo_buf *b, const struct chain_rows *w, int level)
{
    const struct chain_form *f = w->f;
    for (int i = 0; i < f->chain->count; i++) {
        const struct cuda_chain_instruction *in = &f->chain->code[i];
        if (!f->used[i] || f->varies[i] || f->kind[i] == CHAIN_EITHER || f->level[i] != level ||
            chain_is_reduction(in->op))
            continue;
        mlo_buf_printf(b, "            MLK_L(r%d) = ", i);
        if (in->op == CUDA_OP_LOAD || in->op == CUDA_OP_LOAD_INTEGER) {
            mlo_buf_printf(b, "%s_%s(*(", in->op == CUDA_OP_LOAD ? "mlk_get" : "mlk_whole",
                           cuda_type_name(f->chain->operands[in->a].dtype));
            place(b, f, in->a, true);
            mlo_buf_puts(b, ")");
        } else if (in->op == CUDA_OP_INDEX) {
            int d = f->index_dim[in->a];
            mlo_buf_printf(b, d < 0 ? "0" : "d%d", d);
        } else {
            chain_expression(b, f, i, name_row, w);
        }
        mlo_buf_puts(b, ";\n");
    }
    for (int i = 0; i < f->chain->count; i++)
        if (reduced_in(f, i, level))
            mlo_buf_printf(b, "            MLK_L(r%d) = %s;\n", i,
                           f->kind[i] == CHAIN_WHOLE ? reductions[f->chain->code[i].op].whole_start
                                                     : reductions[f->chain->code[i].op].start);
}

static void accumulate(struct mlo_buf *b, const struct chain_rows *w, int round, const char *indent)
{
    const struct chain_form *f = w->f;
    for (int i = 0; i < f->chain->count; i++) {
        bool whole = f->kind[i] == CHAIN_WHOLE;
        if (!reduced_in(f, i, round))
            continue;
        mlo_buf_printf(
            b, "%sMLK_L(r%d) = %s(MLK_L(r%d), ", indent, i,
            whole ? reductions[f->chain->code[i].op].wholes : reductions[f->chain->code[i].op].floats, i);
        chain_value(b, f, f->chain->code[i].a, whole ? CHAIN_WHOLE : CHAIN_FLOAT, name_row, w);
        mlo_buf_puts(b, ");\n");
    }
}

static bool stored_by_element(const struct chain_form *f, int result)
{
    int t = f->chain->operand_count + result;
    for (int d = f->kept; d < f->rank; d++)
        if (f->strides[t][d])
            return true;
    return false;
}

/* One element (one of f->vector) in round `round`. */
static void element(struct mlo_buf *b, const struct chain_rows *w, int round, const bool *wanted,
                    const bool *asked)
{
    const struct chain_form *f = w->f;
    const char *indent = "                    ", *v = f->vector > 1 ? " + v" : "";
    char target[96];
    for (int i = 0; i < f->chain->count; i++)
        if (asked[i])
            mlo_buf_printf(b, "%sconst %s r%d = MLK_L(k%d)[k * %d%s];\n", indent, chain_type(f->kind[i]), i,
                           i, f->vector, v);
        else if (wanted[i] && f->kind[i] != CHAIN_EITHER)
            chain_define(b, f, i, indent, name_row, w);
    for (int i = 0; i < f->chain->count; i++)
        if (wanted[i] && w->keep[i] && w->made[i] == round)
            mlo_buf_printf(b, "%sMLK_L(k%d)[k * %d%s] = r%d;\n", indent, i, f->vector, v, i);
    accumulate(b, w, round, indent);
    for (int i = 0; round == f->rounds && i < f->chain->result_count; i++) {
        if (!stored_by_element(f, i))
            continue;
        if (f->vector > 1)
            snprintf(target, sizeof target, "q%d.v[v]", i);
        else
            snprintf(target, sizeof target, "const mlk_t_%s q%d", cuda_type_name(f->chain->results[i].dtype),
                     i);
        chain_store(b, f, i, target, indent, name_row, w);
    }
}

static void element_stores(struct mlo_buf *b, const struct chain_rows *w)
{
    const struct chain_form *f = w->f;
    for (int i = 0; i < f->chain->result_count; i++) {
        int t = f->chain->operand_count + i;
        if (!stored_by_element(f, i))
            continue;
        mlo_buf_puts(b, f->rows % w->together ? "                if (active)\n    " : "");
        if (f->vectored[t])
            mlo_buf_printf(b, "                *(pack_out%d *)(", i);
        else
            mlo_buf_puts(b, "                *(");
        place(b, f, t, false);
        mlo_buf_printf(b, " = q%d;\n", i);
    }
}

static void active(struct mlo_buf *b, const struct chain_rows *w)
{
    if (w->f->rows % w->together)
        mlo_buf_printf(b, "            const int active = first + %s%d < (mlk_index)%lld;\n",
                       w->columns ? "mlk_tid % " : "mlk_tid / ", w->columns ? w->together : w->group,
                       (long long)w->f->rows);
}

/* The elements of the row in one round. */
static void over_row(struct mlo_buf *b, const struct chain_rows *w, int round, const bool *have)
{
    const struct chain_form *f = w->f;
    bool wanted[CUDA_CHAIN_REGISTERS], asked[CUDA_CHAIN_REGISTERS] = {false}, stores = false, any = false;
    char part[48];
    int64_t units = f->length / f->vector;
    wanted_in(f, round, have, wanted, asked);
    for (int i = 0; round == f->rounds && i < f->chain->result_count; i++)
        stores |= stored_by_element(f, i);
    for (int i = 0; i < f->chain->count; i++)
        any |= reduced_in(f, i, round);
    if (!stores && !any)
        return;
    snprintf(part, sizeof part, "mlk_tid %s %d", w->columns ? "/" : "%", w->columns ? w->together : w->group);
    if (w->turns) {
        mlo_buf_printf(b,
                       "            MLK_UNROLL for (int k = 0; k < %d; k++) {\n"
                       "                const mlk_index e = %s + k * %d;\n",
                       w->turns, part, w->group);
        if (units % w->group)
            mlo_buf_printf(b, "                if (e < %lld) {\n", (long long)units);
        else
            mlo_buf_puts(b, "                {\n");
    } else {
        mlo_buf_printf(
            b, "            for (mlk_index e = %s; e < (mlk_index)%lld; e += %d) {\n                {\n",
            part, (long long)units, w->group);
    }
    chain_coordinates(b, f, "e", f->kept, f->rank, f->vector, "                ");
    for (int t = 0; t < f->chain->operand_count; t++)
        if (chain_reads(f, t, wanted)) {
            chain_load(b, f, t, "                ");
            place(b, f, t, false);
            mlo_buf_puts(b, ";\n");
        }
    for (int i = 0; stores && i < f->chain->result_count; i++)
        if (f->vectored[f->chain->operand_count + i])
            mlo_buf_printf(b, "                pack_out%d q%d;\n", i, i);
    if (f->vector > 1)
        mlo_buf_printf(b, "                MLK_UNROLL for (int v = 0; v < %d; v++) {\n", f->vector);
    element(b, w, round, wanted, asked);
    mlo_buf_puts(b, f->vector > 1 ? "                }\n" : "");
    if (stores)
        element_stores(b, w);
    mlo_buf_puts(b, "                }\n            }\n");
}

static void reduce(struct mlo_buf *b, const struct chain_rows *w, int round)
{
    const struct chain_form *f = w->f;
    for (int i = 0; w->group > 1 && i < f->chain->count; i++) {
        bool whole = f->kind[i] == CHAIN_WHOLE;
        if (!reduced_in(f, i, round))
            continue;
        mlo_buf_printf(b, "        %s(%s, %s, r%d, %d);\n", w->columns ? "MLK_REDUCE_COLUMNS" : "MLK_REDUCE",
                       chain_type(f->kind[i]),
                       whole ? reductions[f->chain->code[i].op].wholes
                             : reductions[f->chain->code[i].op].floats,
                       i, w->columns ? w->together : w->group);
    }
}

static void row_stores(struct mlo_buf *b, const struct chain_rows *w)
{
    const struct chain_form *f = w->f;
    for (int i = 0; i < f->chain->result_count; i++) {
        if (stored_by_element(f, i))
            continue;
        mlo_buf_printf(b, "            if (mlk_tid %s %d == 0", w->columns ? "/" : "%",
                       w->columns ? w->together : w->group);
        mlo_buf_puts(b, f->rows % w->together ? " && active)\n" : ")\n");
        struct mlo_buf target = {0};
        mlo_buf_puts(&target, "*(");
        place(&target, f, f->chain->operand_count + i, true);
        b->failed |= !mlo_buf_ok(&target);
        chain_store(b, f, i, mlo_buf_str(&target), "                ", name_row, w);
        mlo_buf_clear(&target);
    }
}

void chain_rows_text(struct mlo_buf *b, const struct chain_rows *w)
{
    const struct chain_form *f = w->f;
    bool have[CUDA_CHAIN_REGISTERS];
    char row[96];
    mlo_buf_printf(b,
                   "MLK_KERNEL\n{\n    for (mlk_index first = mlk_block * %d; first < (mlk_index)%lld; "
                   "first += mlk_blocks * %d) {\n",
                   w->together, (long long)f->rows, w->together);
    declare(b, w);
    for (int round = 0; round <= f->rounds; round++) {
        mlo_buf_puts(b, "        MLK_THREADS {\n");
        if (round == 0) {
            snprintf(row, sizeof row, "first + %s%d", w->columns ? "mlk_tid % " : "mlk_tid / ",
                     w->columns ? w->together : w->group);
            mlo_buf_printf(b, "            mlk_index row = %s;\n", row);
            if (f->rows % w->together) /* those without one take the last again, and store nothing */
                mlo_buf_printf(b, "            row = row < %lld ? row : %lld;\n", (long long)f->rows,
                               (long long)f->rows - 1);
            chain_coordinates(b, f, "row", 0, f->kept, 1, "            ");
            for (int t = 0; t < f->tensors; t++) {
                mlo_buf_printf(b, "            MLK_L(at%d) = ", t);
                chain_offset(b, f, t, 0, f->kept);
                mlo_buf_puts(b, ";\n");
            }
        }
        row_registers(b, w, round);
        if (round == f->rounds)
            active(b, w);
        for (int i = 0; i < f->chain->count; i++)
            have[i] = w->keep[i] && w->made[i] < round;
        over_row(b, w, round, have);
        if (round == f->rounds)
            row_stores(b, w);
        mlo_buf_puts(b, "        }\n");
        reduce(b, w, round);
    }
    mlo_buf_puts(b, "    }\n}\n");
}
