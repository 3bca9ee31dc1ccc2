/* All families in one sorted table, made at first use. */
#include <pthread.h>
#include <stdlib.h>

#include "graph/ops/ops_impl.h"

static const struct mlo_op_family *const families[] = {
    &mlo_ops_unary,          &mlo_ops_binary,       &mlo_ops_compare,   &mlo_ops_conv,
    &mlo_ops_matmul,         &mlo_ops_pool,         &mlo_ops_norm,      &mlo_ops_softmax,
    &mlo_ops_reduce,         &mlo_ops_view,         &mlo_ops_move,      &mlo_ops_slice,
    &mlo_ops_gather,         &mlo_ops_constant,     &mlo_ops_cast,      &mlo_ops_quantize,
    &mlo_ops_qlinear,        &mlo_ops_resize,       &mlo_ops_trig,      &mlo_ops_bits,
    &mlo_ops_scatter,        &mlo_ops_select,       &mlo_ops_sort,      &mlo_ops_legacy,
    &mlo_ops_control,        &mlo_ops_sequence,     &mlo_ops_rnn,       &mlo_ops_einsum,
    &mlo_ops_conv_transpose, &mlo_ops_loss,         &mlo_ops_detect,    &mlo_ops_grid,
    &mlo_ops_norm_more,      &mlo_ops_signal,       &mlo_ops_image,     &mlo_ops_attention,
    &mlo_ops_ms_fused,       &mlo_ops_ms_quantized, &mlo_ops_ms_matmul, &mlo_ops_ms_transformer,
};

enum { TABLE_MAX = 2048 };
static struct mlo_op table[TABLE_MAX];
static size_t table_count, table_wanted;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static int compare(const void *a, const void *b)
{
    const struct mlo_op *x = a, *y = b;
    int c = strcmp(x->domain, y->domain);
    c = c ? c : strcmp(x->name, y->name);
    return c ? c : (x->since > y->since) - (x->since < y->since);
}

static void collect(void)
{
    for (size_t f = 0; f < MLO_COUNT(families); f++)
        for (size_t r = 0; r < families[f]->count; r++) {
            if (table_count < TABLE_MAX)
                table[table_count++] = families[f]->rows[r];
            table_wanted++;
        }
    qsort(table, table_count, sizeof table[0], compare);
}

const struct mlo_op *mlo_op_table(size_t *count)
{
    pthread_once(&once, collect);
    *count = table_count;
    return table;
}

/* The first row that is not below (domain, name, since). */
static size_t lower_bound(const char *domain, const char *name, int since)
{
    size_t low = 0, high, count;
    mlo_op_table(&count);
    high = count;
    struct mlo_op key = {.domain = domain, .name = name, .since = since};
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (compare(&table[mid], &key) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static bool same_op(const struct mlo_op *row, const char *domain, const char *name)
{
    return strcmp(row->domain, domain) == 0 && strcmp(row->name, name) == 0;
}

const struct mlo_op *mlo_op_find(const char *domain, const char *name, int64_t opset)
{
    if (opset < 1)
        return NULL;
    int top = opset > INT32_MAX - 1 ? INT32_MAX - 1 : (int)opset;
    size_t i = lower_bound(domain, name, top + 1);
    return i > 0 && same_op(&table[i - 1], domain, name) ? &table[i - 1] : NULL;
}

bool mlo_op_known(const char *domain, const char *name)
{
    size_t i = lower_bound(domain, name, 0);
    return i < table_count && same_op(&table[i], domain, name);
}

enum mlo_status mlo_op_table_check(struct mlo_error *err)
{
    size_t count;
    mlo_op_table(&count);
    if (table_wanted != table_count)
        return mlo_error_set(err, MLO_EINTERNAL, "the op table holds %d rows, but the families have %zu",
                             TABLE_MAX, table_wanted);
    for (size_t i = 0; i < count; i++) {
        const struct mlo_op *op = &table[i];
        if (!op->infer || !op->eval == !op->eval_in || op->since < 1 || !*op->name)
            return mlo_error_set(err, MLO_EINTERNAL, "op table: the row of '%s' since %d is incomplete",
                                 op->name, op->since);
        if (i > 0 && compare(&table[i - 1], op) >= 0)
            return mlo_error_set(err, MLO_EINTERNAL, "op table: '%s' since %d is there twice", op->name,
                                 op->since);
        if ((op->max_inputs >= 0 && op->max_inputs < op->min_inputs) ||
            (op->max_outputs >= 0 && op->max_outputs < op->min_outputs) || op->min_outputs < 1)
            return mlo_error_set(err, MLO_EINTERNAL, "op table: '%s' since %d has impossible counts",
                                 op->name, op->since);
    }
    return MLO_OK;
}
