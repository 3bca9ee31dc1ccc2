/* What is around the body of every kernel: preludes, signature, and the loop over blocks on a CPU. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engines/cuda/kernels/kernels_impl.h"

static const struct {
    enum mlo_dtype dtype;
    const char *name;
    bool whole;
} types[] = {
    {MLO_FLOAT32, "f32", false}, {MLO_FLOAT16, "f16", false},       {MLO_BFLOAT16, "bf16", false},
    {MLO_FLOAT64, "f64", false}, {MLO_FLOAT8E4M3FN, "e4m3", false}, {MLO_FLOAT8E5M2, "e5m2", false},
    {MLO_INT8, "i8", true},      {MLO_UINT8, "u8", true},           {MLO_INT16, "i16", true},
    {MLO_UINT16, "u16", true},   {MLO_INT32, "i32", true},          {MLO_UINT32, "u32", true},
    {MLO_INT64, "i64", true},    {MLO_UINT64, "u64", true},         {MLO_BOOL, "b8", true},
};

const char *cuda_type_name(enum mlo_dtype dtype)
{
    for (size_t i = 0; i < MLO_COUNT(types); i++)
        if (types[i].dtype == dtype)
            return types[i].name;
    return NULL;
}

bool cuda_type_is_whole(enum mlo_dtype dtype)
{
    for (size_t i = 0; i < MLO_COUNT(types); i++)
        if (types[i].dtype == dtype)
            return types[i].whole;
    return false;
}

int64_t cuda_ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b > 0);
}

bool cuda_is_wide(int64_t count)
{
    return count >= (int64_t)1 << 30;
}

void cuda_text_append(struct mlo_buf *b, const char *name)
{
    for (size_t i = 0; i < cuda_kernel_texts_count; i++)
        if (strcmp(cuda_kernel_texts[i].name, name) == 0) {
            mlo_buf_append(b, cuda_kernel_texts[i].text, cuda_kernel_texts[i].size);
            return;
        }
    b->failed = true;
}

void cuda_float_append(struct mlo_buf *b, float v)
{
    if (isnan(v))
        mlo_buf_puts(b, "MLK_NAN");
    else if (isinf(v))
        mlo_buf_puts(b, v > 0 ? "MLK_INF" : "(-MLK_INF)");
    else if (v == floorf(v) && fabsf(v) < 1e6f && !(v == 0 && signbit(v)))
        mlo_buf_printf(b, v < 0 ? "(%.1ff)" : "%.1ff", (double)v);
    else
        mlo_buf_printf(b, v < 0 || signbit(v) ? "(%af)" : "%af", (double)v);
}

void cuda_frame_parameter(struct cuda_frame *f, enum mlo_dtype dtype, bool written, const char *name, ...)
{
    struct cuda_parameter *p = &f->parameters[f->parameter_count++];
    va_list args;
    va_start(args, name);
    vsnprintf(p->name, sizeof p->name, name, args);
    va_end(args);
    p->dtype = dtype;
    p->written = written;
}

static void signature(struct mlo_buf *b, const struct cuda_frame *f, const char *restricted)
{
    for (int i = 0; i < f->parameter_count; i++) {
        const struct cuda_parameter *p = &f->parameters[i];
        mlo_buf_printf(b, "%s%smlk_t_%s *%s%s", i ? ", " : "", p->written ? "" : "const ",
                       cuda_type_name(p->dtype), f->aliased ? "" : restricted, p->name);
    }
}

void cuda_frame_begin(struct mlo_buf *b, const struct cuda_frame *f)
{
    mlo_buf_puts(b, "#ifdef __CUDACC__\n");
    cuda_text_append(b, "prelude_cuda.inc");
    mlo_buf_puts(b, "#else\n");
    cuda_text_append(b, "prelude_cpu.inc");
    mlo_buf_puts(b, "#endif\n");
    cuda_text_append(b, "prelude_common.inc");
    /* so many blocks at once on a multiprocessor, which has 65536 registers: the compiler keeps to it */
    int together = MLO_MAX(1, 65536 / (f->threads * f->budget));
    mlo_buf_printf(b, "#define MLK_BLOCK %d\ntypedef %s mlk_index;\n#ifdef __CUDACC__\n", f->threads,
                   f->wide ? "mlk_i64" : "int");
    mlo_buf_printf(b, "#define MLK_KERNEL extern \"C\" __global__ void __launch_bounds__(%d, %d) %s(",
                   f->threads, together, f->entry);
    signature(b, f, "__restrict__ ");
    mlo_buf_puts(b, ")\n#else\n#define MLK_KERNEL static void mlk_kernel(mlk_index mlk_block, mlk_index "
                    "mlk_blocks");
    mlo_buf_puts(b, f->parameter_count ? ", " : "");
    signature(b, f, "restrict ");
    mlo_buf_puts(b, ")\n#endif\n");
}

enum mlo_status cuda_frame_end(struct mlo_buf *b, const struct cuda_frame *f, int64_t blocks,
                               struct cuda_source *out, struct mlo_error *err)
{
    mlo_buf_printf(b,
                   "#ifndef __CUDACC__\nvoid %s(void *const *mlk_p, unsigned mlk_n, int mlk_backwards)\n{\n"
                   "    mlk_reverse = mlk_backwards;\n    for (unsigned mlk_i = 0; mlk_i < mlk_n; mlk_i++)\n"
                   "        mlk_kernel(mlk_backwards ? mlk_n - 1 - mlk_i : mlk_i, mlk_n",
                   f->entry);
    for (int i = 0; i < f->parameter_count; i++)
        mlo_buf_printf(b, ", mlk_p[%d]", i);
    mlo_buf_puts(b, ");\n    (void)mlk_p;\n}\n#endif\n");
    memset(out, 0, sizeof *out);
    if (!mlo_buf_ok(b)) {
        mlo_buf_clear(b);
        return mlo_error_nomem(err);
    }
    out->text = mlo_buf_take(b);
    snprintf(out->entry, sizeof out->entry, "%s", f->entry);
    out->grid[0] = (unsigned)MLO_MIN(MLO_MAX(blocks, 1), CUDA_GRID_MAX);
    out->grid[1] = out->grid[2] = 1;
    out->block[0] = (unsigned)f->threads;
    out->block[1] = out->block[2] = 1;
    out->register_budget = (unsigned)f->budget;
    return MLO_OK;
}

void cuda_source_clear(struct cuda_source *source)
{
    free(source->text);
    memset(source, 0, sizeof *source);
}
