/* Products in a plan's file. */
#include "engines/cpu/fast/tiling_impl.h"
#include "engines/cpu/image_impl.h"

void tile_product_save(struct cpu_writer *w, const struct tile_product *p)
{
    const struct tile_epilogue *e = &p->epilogue;
    cpu_put_u32(w, (uint32_t)p->type);
    cpu_put_i64(w, p->batch);
    cpu_put_i64(w, p->groups);
    cpu_put_i64(w, p->in_channels);
    cpu_put_i64(w, p->out_channels);
    for (int i = 0; i < 3; i++) {
        int64_t dims[] = {p->in[i], p->out[i], p->kernel[i], p->stride[i], p->dilation[i], p->pad[i]};
        cpu_put_bytes(w, dims, sizeof dims);
    }
    cpu_put_u32(w, p->fill);
    cpu_put_u32(w, p->planar);
    cpu_put_u32(w, p->run);
    cpu_put_f32(w, e->low);
    cpu_put_f32(w, e->high);
    cpu_put_u32(w, e->inner);
    cpu_put_f32(w, e->inner_low);
    cpu_put_f32(w, e->inner_high);
    cpu_put_f32(w, e->inner_scale);
    cpu_put_f32(w, e->residual_scale);
    cpu_put_f32(w, e->residual_shift);
    cpu_put_i32(w, e->residual_zero_point);
    cpu_put_u32(w, (uint32_t)e->residual_dtype);
    cpu_put_u32(w, (uint32_t)e->y_dtype);
    cpu_put_i32(w, e->y_zero_point);
    cpu_put_u32(w, (uint32_t)p->post_count);
    for (int i = 0; i < p->post_count; i++) {
        cpu_put_u32(w, (uint32_t)p->posts[i].fn);
        cpu_put_f32(w, p->posts[i].alpha);
        cpu_put_f32(w, p->posts[i].beta);
    }
    cpu_put_f32(w, p->y_scale);
}

static void get_epilogue(struct cpu_reader *r, struct tile_epilogue *e)
{
    e->low = cpu_get_f32(r);
    e->high = cpu_get_f32(r);
    e->inner = cpu_get_u32(r) != 0;
    e->inner_low = cpu_get_f32(r);
    e->inner_high = cpu_get_f32(r);
    e->inner_scale = cpu_get_f32(r);
    e->residual_scale = cpu_get_f32(r);
    e->residual_shift = cpu_get_f32(r);
    e->residual_zero_point = cpu_get_i32(r);
    e->residual_dtype = (enum mlo_dtype)cpu_get_u32(r);
    e->y_dtype = (enum mlo_dtype)cpu_get_u32(r);
    e->y_zero_point = cpu_get_i32(r);
}

static bool is_number(enum mlo_dtype dtype)
{
    return dtype == MLO_FLOAT32 || dtype == MLO_UINT8 || dtype == MLO_INT8;
}

void tile_product_restore(struct cpu_reader *r, struct tile_product *p)
{
    enum { MOST = 1 << 24 };
    bool ok = true;
    p->type = (enum tile_type)cpu_get_u32(r);
    p->batch = cpu_get_i64(r);
    p->groups = cpu_get_i64(r);
    p->in_channels = cpu_get_i64(r);
    p->out_channels = cpu_get_i64(r);
    int64_t sizes[] = {p->batch, p->groups, p->in_channels, p->out_channels};
    for (size_t i = 0; i < MLO_COUNT(sizes); i++)
        ok &= sizes[i] >= 1 && sizes[i] <= MOST;
    for (int i = 0; i < 3; i++) {
        int64_t dims[6] = {0};
        cpu_get_bytes(r, dims, sizeof dims);
        for (int k = 0; k < 6; k++)
            ok &= dims[k] >= (k < 5) && dims[k] <= MOST;
        p->in[i] = dims[0], p->out[i] = dims[1], p->kernel[i] = dims[2];
        p->stride[i] = dims[3], p->dilation[i] = dims[4], p->pad[i] = dims[5];
    }
    p->fill = (uint8_t)cpu_get_u32(r);
    p->planar = cpu_get_u32(r) != 0;
    p->run = cpu_get_u32(r);
    ok &= p->run > 0 || p->type != TILE_FIXED;
    ok &= !p->planar ||
          (p->type == TILE_F32 && p->groups == 1 && p->in_channels > 1 && p->in_channels <= TILE_PLANES_MAX);
    get_epilogue(r, &p->epilogue);
    uint32_t posts = cpu_get_u32(r);
    ok &= posts <= TILE_POSTS_MAX;
    for (uint32_t i = 0; i < posts && i < TILE_POSTS_MAX; i++) {
        p->posts[i].fn = (enum fast_math)cpu_get_u32(r);
        p->posts[i].alpha = cpu_get_f32(r);
        p->posts[i].beta = cpu_get_f32(r);
        ok &= (uint32_t)p->posts[i].fn < FAST_MATH_COUNT;
    }
    p->post_count = (int)posts;
    p->y_scale = cpu_get_f32(r);
    ok &= (uint32_t)p->type < TILE_TYPES && is_number(p->epilogue.y_dtype) &&
          p->epilogue.y_zero_point >= -128 && p->epilogue.y_zero_point <= 255 &&
          (p->residual < 0) == (p->epilogue.residual_dtype == MLO_DTYPE_NONE) &&
          (p->residual < 0 || is_number(p->epilogue.residual_dtype)) &&
          (!posts || p->epilogue.y_dtype == MLO_FLOAT32 || p->y_scale > 0.0f);
    if (!tile_is_int8(p))
        ok &= p->epilogue.y_dtype == MLO_FLOAT32 &&
              (p->residual < 0 || p->epilogue.residual_dtype == MLO_FLOAT32);
    cpu_check(r, ok, "a product is none that there is");
}

/* Products of sizes, SIZE_MAX when they are larger than any slot. */
size_t tile_volume(const int64_t dims[3], size_t first, size_t second)
{
    size_t pixels = cpu_product((size_t)dims[0], (size_t)dims[1], (size_t)dims[2]);
    return cpu_product(pixels, first, second);
}
