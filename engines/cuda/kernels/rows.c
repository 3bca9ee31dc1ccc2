/* The table of kernels with fixed bodies. README.md has what their numbers mean. */
#include <string.h>

#include "engines/cuda/kernels/rows_impl.h"

#define GEOMETRY                                                                                             \
    "BATCH", "CHANNELS", "IN_D", "IN_H", "IN_W", "OUT_D", "OUT_H", "OUT_W", "KERNEL_D", "KERNEL_H",          \
        "KERNEL_W", "STRIDE_D", "STRIDE_H", "STRIDE_W", "DILATION_D", "DILATION_H", "DILATION_W", "PAD_D",   \
        "PAD_H", "PAD_W", "PAD_AFTER_D", "PAD_AFTER_H", "PAD_AFTER_W"
#define EPILOGUE "ACTIVATION", "HAS_RESIDUAL", "HAS_BIAS", "HAS_SCALE"
#define PRODUCT GEOMETRY, EPILOGUE, "FILTERS", "GROUPS", "X_ZERO", "BY_FILTER", "BIAS_OF_Y"
#define DEPTHWISE GEOMETRY, EPILOGUE, "X_CLIPPED", NULL, "X_ZERO", NULL, "BIAS_OF_Y"
#define PRODUCT_FLOATS                                                                                       \
    {                                                                                                        \
        "LOW", "HIGH", "RESIDUAL_SCALE", "Y_SCALE", "X_LOW", "X_HIGH"                                        \
    }
#define PRODUCT_TYPES                                                                                        \
    {                                                                                                        \
        "X", "W", "Y", "R"                                                                                   \
    }
#define PRODUCT_PARAMETERS                                                                                   \
    {                                                                                                        \
        {"x", ROW_T0, 0, false}, {"w", ROW_T1, 0, false}, {"residual", ROW_T3, 24, false},                   \
            {"bias", ROW_BIAS, 25, false}, {"scale", ROW_F32, 26, false},                                    \
        {                                                                                                    \
            "y", ROW_T2, 0, true                                                                             \
        }                                                                                                    \
    }

static const struct cuda_kernel rows[] = {
    {.name = "argmax",
     .text = "kernel_argmax.inc",
     .before = "order.inc",
     .numbers = {"OUTER", "LENGTH", "INNER", "MINIMUM", "LAST"},
     .types = {"X"},
     .parameters = {{"x", ROW_T0, 0, false}, {"y", ROW_I64, 0, true}},
     .budget = 64,
     .plan = row_plan_search,
     .check = row_check_order},
    {.name = "attention",
     .text = "kernel_attention.inc",
     .numbers = {"BATCH", "HEADS", "QUERIES", "KEYS", "DEPTH", "V_DEPTH", "Q_N",      "Q_H",   "Q_I", "Q_E",
                 "K_N",   "K_H",   "K_I",     "K_E",  "V_N",   "V_H",     "V_I",      "V_E",   "O_N", "O_H",
                 "O_I",   "O_E",   "M_N",     "M_H",  "M_I",   "M_E",     "HAS_MASK", "CAUSAL"},
     .floats = {"SCALE"},
     .types = {"X", "MASK"},
     .parameters = {{"q", ROW_T0, 0, false},
                    {"k", ROW_T0, 0, false},
                    {"v", ROW_T0, 0, false},
                    {"mask", ROW_T1, 26, false},
                    {"o", ROW_T0, 0, true}},
     .budget = 96,
     .plan = row_plan_attention},
    {.name = "conv",
     .text = "kernel_conv.inc",
     .before = "epilogue.inc",
     .numbers = {PRODUCT},
     .floats = PRODUCT_FLOATS,
     .types = PRODUCT_TYPES,
     .parameters = PRODUCT_PARAMETERS,
     .budget = 128,
     .plan = row_plan_conv,
     .check = row_check_groups},
    {.name = "conv_transpose",
     .text = "kernel_conv_transpose.inc",
     .before = "epilogue.inc",
     .numbers = {PRODUCT},
     .floats = PRODUCT_FLOATS,
     .types = PRODUCT_TYPES,
     .parameters = PRODUCT_PARAMETERS,
     .budget = 64,
     .plan = row_plan_conv_transpose,
     .check = row_check_groups},
    {.name = "cumsum",
     .text = "kernel_cumsum.inc",
     .numbers = {"OUTER", "LENGTH", "INNER", "EXCLUSIVE", "REVERSE"},
     .types = {"X"},
     .parameters = {{"x", ROW_T0, 0, false}, {"y", ROW_T0, 0, true}},
     .budget = 64,
     .plan = row_plan_lines},
    {.name = "depthwise",
     .text = "kernel_depthwise.inc",
     .before = "epilogue.inc",
     .numbers = {DEPTHWISE},
     .floats = PRODUCT_FLOATS,
     .types = PRODUCT_TYPES,
     .parameters = PRODUCT_PARAMETERS,
     .budget = 128,
     .plan = row_plan_depthwise,
     .check = row_check_window},
    {.name = "embedding",
     .text = "kernel_embedding.inc",
     .numbers = {"ROWS", "WIDTH", "TABLES", "SIZE_0", "SIZE_1", "SIZE_2", "PERIOD_0", "PERIOD_1", "PERIOD_2",
                 "NORM", "HAS_BETA"},
     .floats = {"EPSILON"},
     .types = {"X", "I", "Y", "G"},
     .parameters = {{"indices0", ROW_T1, 0, false},
                    {"table0", ROW_T0, 0, false},
                    {"indices1", ROW_T1, 0, false},
                    {"table1", ROW_T0, 0, false},
                    {"indices2", ROW_T1, 0, false},
                    {"table2", ROW_T0, 0, false},
                    {"gamma", ROW_T3, 9, false},
                    {"beta", ROW_T3, 10, false},
                    {"y", ROW_T2, 0, true}},
     .budget = 128,
     .plan = row_plan_embedding,
     .check = row_check_tables,
     .there = row_embedding_has},
    {.name = "gather",
     .text = "kernel_gather.inc",
     .numbers = {"OUTER", "AXIS", "INNER", "COUNT"},
     .types = {"X", "I"},
     .parameters = {{"x", ROW_T0, 0, false}, {"indices", ROW_T1, 0, false}, {"y", ROW_T0, 0, true}},
     .budget = 64,
     .plan = row_plan_gather},
    {.name = "matmul",
     .text = "kernel_matmul.inc",
     .before = "epilogue.inc",
     .numbers = {"M",          "N",        "K",     "BATCH",    "TA",        "TB",
                 "LDA",        "LDB",      "LDC",   "LDD",      "STRIDE_A",  "STRIDE_B",
                 "STRIDE_C",   "STRIDE_D", "HAS_C", "HAS_BIAS", "HAS_SCALE", "SCALE_PER_COLUMN",
                 "ACTIVATION", "X_ZERO"},
     .floats = {"ALPHA", "LOW", "HIGH", "Y_SCALE"},
     .types = {"X", "W", "Y", "C"},
     .parameters = {{"a", ROW_T0, 0, false},
                    {"b", ROW_T1, 0, false},
                    {"c", ROW_T3, 14, false},
                    {"bias", ROW_BIAS, 15, false},
                    {"scale", ROW_F32, 16, false},
                    {"d", ROW_T2, 0, true}},
     .budget = 64,
     .plan = row_plan_matmul},
    {.name = "pad",
     .text = "kernel_pad.inc",
     .numbers = {"RANK",     "IN_0",     "IN_1",     "IN_2",     "IN_3",     "IN_4",     "IN_5",
                 "BEFORE_0", "BEFORE_1", "BEFORE_2", "BEFORE_3", "BEFORE_4", "BEFORE_5", "OUT_0",
                 "OUT_1",    "OUT_2",    "OUT_3",    "OUT_4",    "OUT_5",    "MODE"},
     .floats = {"VALUE"},
     .types = {"X"},
     .parameters = {{"x", ROW_T0, 0, false}, {"y", ROW_T0, 0, true}},
     .budget = 64,
     .plan = row_plan_pad,
     .check = row_check_pad},
    {.name = "pool",
     .text = "kernel_pool.inc",
     .numbers = {GEOMETRY, "AVERAGE", "COUNT_PADDING", "ZERO"},
     .floats = {"SCALE"},
     .types = {"X", "Y"},
     .parameters = {{"x", ROW_T0, 0, false}, {"y", ROW_T1, 0, true}},
     .budget = 64,
     .plan = row_plan_pool,
     .check = row_check_window},
    {.name = "resize",
     .text = "kernel_resize.inc",
     .numbers = {"BATCH", "CHANNELS", "IN_H", "IN_W", "OUT_H", "OUT_W", "CHANNELS_LAST", "LINEAR",
                 "COORDINATES", "ROUNDING"},
     .floats = {"SCALE_H", "SCALE_W"},
     .types = {"X", "Y"},
     .parameters = {{"x", ROW_T0, 0, false}, {"y", ROW_T1, 0, true}},
     .budget = 64,
     .plan = row_plan_resize,
     .check = row_check_resize},
    {.name = "topk",
     .text = "kernel_topk.inc",
     .before = "order.inc",
     .numbers = {"OUTER", "LENGTH", "INNER", "K", "LARGEST"},
     .types = {"X"},
     .parameters = {{"x", ROW_T0, 0, false}, {"values", ROW_T0, 0, true}, {"places", ROW_I64, 0, true}},
     .budget = 64,
     .plan = row_plan_search,
     .check = row_check_topk},
    {.name = "transpose",
     .text = "kernel_transpose.inc",
     .numbers = {"BATCH", "ROWS", "COLUMNS"},
     .types = {"X"},
     .parameters = {{"x", ROW_T0, 0, false}, {"y", ROW_T0, 0, true}},
     .budget = 64,
     .plan = row_plan_transpose},
};

const struct cuda_kernel *cuda_kernel_find(const char *name)
{
    for (size_t i = 0; i < MLO_COUNT(rows); i++)
        if (strcmp(rows[i].name, name) == 0)
            return &rows[i];
    return NULL;
}

const char *cuda_kernel_name(size_t i)
{
    return i < MLO_COUNT(rows) ? rows[i].name : NULL;
}

/* A type that was not said is float32: of biases, mostly. */
static enum mlo_dtype type_of(const struct cuda_kernel_use *use, enum row_type type)
{
    if (type == ROW_BIAS)
        type = use->n[CUDA_KERNEL_NUMBERS - 1] ? ROW_T2 : ROW_F32;
    if (type == ROW_F32 || type == ROW_I64)
        return type == ROW_F32 ? MLO_FLOAT32 : MLO_INT64;
    return use->types[type] ? use->types[type] : MLO_FLOAT32;
}

int row_vector(const struct cuda_kernel_use *use, int64_t n, int types)
{
    int vector = 16;
    for (int i = 0; i < ROW_TYPES; i++) {
        int width = (int)mlo_dtype_info(type_of(use, (enum row_type)i))->bits / 8;
        while (types >> i & 1 && vector > 1 &&
               (vector * width > 16 || (use->align_bytes && use->align_bytes % (vector * width))))
            vector /= 2;
    }
    while (vector > 1 && n % vector)
        vector /= 2;
    return vector;
}

static enum mlo_status check(const struct cuda_kernel_use *use, struct mlo_error *err)
{
    const struct cuda_kernel *k = use->kernel;
    for (int i = 0; i < CUDA_KERNEL_NUMBERS; i++)
        if (use->n[i] < -MLO_MAX_DIM || use->n[i] > MLO_MAX_DIM)
            return mlo_error_set(err, MLO_ETOOBIG, "number %d of kernel '%s' is too large", i, k->name);
    for (int i = 0; i < ROW_TYPES && k->types[i]; i++)
        if (!cuda_type_name(type_of(use, (enum row_type)i)))
            return mlo_error_set(err, MLO_EUNSUPPORTED, "kernel '%s' has no %s", k->name,
                                 mlo_dtype_name(use->types[i]));
    if (k->check && !k->check(use))
        return mlo_error_set(err, MLO_EUNSUPPORTED, "kernel '%s' cannot have such a shape or type", k->name);
    return MLO_OK;
}

static void define_numbers(struct mlo_buf *b, const struct cuda_kernel_use *use, const struct row_plan *p)
{
    const struct cuda_kernel *k = use->kernel;
    for (int i = 0; i < CUDA_KERNEL_NUMBERS; i++)
        if (k->numbers[i])
            mlo_buf_printf(b, "#define %s %lld\n", k->numbers[i], (long long)use->n[i]);
    for (size_t i = 0; i < MLO_COUNT(k->floats); i++)
        if (k->floats[i]) {
            mlo_buf_printf(b, "#define %s ", k->floats[i]);
            cuda_float_append(b, use->f[i]);
            mlo_buf_putc(b, '\n');
        }
    for (int i = 0; i < ROW_TYPES && k->types[i]; i++) {
        enum mlo_dtype dtype = type_of(use, (enum row_type)i);
        const char *as = k->types[i], *type = cuda_type_name(dtype);
        mlo_buf_printf(b,
                       "#define %s_T mlk_t_%s\n#define %s_GET mlk_get_%s\n#define %s_PUT mlk_put_%s\n"
                       "#define %s_WHOLE_OF mlk_whole_%s\n#define %s_PUT_WHOLE mlk_put_whole_%s\n"
                       "#define %s_WHOLE %d\n",
                       as, type, as, type, as, type, as, type, as, type, as, cuda_type_is_whole(dtype));
    }
    mlo_buf_printf(b, "#define BIAS_GET mlk_get_%s\n#define VECTOR %d\n#define TILE %d\n#define ITEMS %lld\n",
                   cuda_type_name(type_of(use, ROW_BIAS)), p->vector, p->tile, (long long)p->items);
}

enum mlo_status kernel_source(const struct cuda_kernel_use *use, bool aliased, struct cuda_source *out,
                              struct mlo_error *err)
{
    const struct cuda_kernel *k = use->kernel;
    struct row_plan p = {.vector = 1, .tile = 1, .threads = 256};
    struct mlo_buf b = {0};
    enum mlo_status status = check(use, err);
    if (status != MLO_OK)
        return status;
    k->plan(use, &p);
    struct cuda_frame frame = {.entry = k->name,
                               .threads = p.threads,
                               .budget = k->budget,
                               .wide = cuda_is_wide(p.furthest),
                               .aliased = aliased};
    for (int i = 0; i < ROW_PARAMETERS && k->parameters[i].name; i++)
        if ((!k->parameters[i].when || use->n[k->parameters[i].when]) && (!k->there || k->there(use, i)))
            cuda_frame_parameter(&frame, type_of(use, k->parameters[i].type), k->parameters[i].written, "%s",
                                 k->parameters[i].name);
    cuda_frame_begin(&b, &frame);
    define_numbers(&b, use, &p);
    if (k->before)
        cuda_text_append(&b, k->before);
    cuda_text_append(&b, k->text);
    return cuda_frame_end(&b, &frame, p.blocks, out, err);
}

enum mlo_status cuda_kernel_source(const struct cuda_kernel_use *use, struct cuda_source *out,
                                   struct mlo_error *err)
{
    return kernel_source(use, false, out, err);
}
