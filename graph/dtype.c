#include <math.h>
#include <string.h>

#include "graph/dtype_impl.h"
#include "graph/tensor.h"

static const struct mlo_dtype_info dtypes[] = {
    [MLO_FLOAT32] = {MLO_FLOAT32, "float32", 32, true, true, false},
    [MLO_UINT8] = {MLO_UINT8, "uint8", 8, false, false, true},
    [MLO_INT8] = {MLO_INT8, "int8", 8, false, true, true},
    [MLO_UINT16] = {MLO_UINT16, "uint16", 16, false, false, true},
    [MLO_INT16] = {MLO_INT16, "int16", 16, false, true, true},
    [MLO_INT32] = {MLO_INT32, "int32", 32, false, true, true},
    [MLO_INT64] = {MLO_INT64, "int64", 64, false, true, true},
    [MLO_STRING] = {MLO_STRING, "string", 0, false, false, false},
    [MLO_BOOL] = {MLO_BOOL, "bool", 8, false, false, false},
    [MLO_FLOAT16] = {MLO_FLOAT16, "float16", 16, true, true, false},
    [MLO_FLOAT64] = {MLO_FLOAT64, "float64", 64, true, true, false},
    [MLO_UINT32] = {MLO_UINT32, "uint32", 32, false, false, true},
    [MLO_UINT64] = {MLO_UINT64, "uint64", 64, false, false, true},
    [MLO_COMPLEX64] = {MLO_COMPLEX64, "complex64", 64, false, true, false},
    [MLO_COMPLEX128] = {MLO_COMPLEX128, "complex128", 128, false, true, false},
    [MLO_BFLOAT16] = {MLO_BFLOAT16, "bfloat16", 16, true, true, false},
    [MLO_FLOAT8E4M3FN] = {MLO_FLOAT8E4M3FN, "float8_e4m3fn", 8, true, true, false},
    [MLO_FLOAT8E4M3FNUZ] = {MLO_FLOAT8E4M3FNUZ, "float8_e4m3fnuz", 8, true, true, false},
    [MLO_FLOAT8E5M2] = {MLO_FLOAT8E5M2, "float8_e5m2", 8, true, true, false},
    [MLO_FLOAT8E5M2FNUZ] = {MLO_FLOAT8E5M2FNUZ, "float8_e5m2fnuz", 8, true, true, false},
    [MLO_UINT4] = {MLO_UINT4, "uint4", 4, false, false, true},
    [MLO_INT4] = {MLO_INT4, "int4", 4, false, true, true},
};

static const struct mlo_dtype_info sequence_info = {MLO_SEQUENCE, "sequence", 0, false, false, false};
static const struct mlo_dtype_info optional_info = {MLO_OPTIONAL, "optional", 0, false, false, false};

const struct mlo_dtype_info *mlo_dtype_info(enum mlo_dtype dtype)
{
    if (mlo_holds_values(dtype))
        return dtype == MLO_SEQUENCE ? &sequence_info : &optional_info;
    if ((int)dtype <= MLO_DTYPE_NONE || dtype >= MLO_DTYPE_COUNT)
        return NULL;
    return &dtypes[dtype];
}

const char *mlo_dtype_name(enum mlo_dtype dtype)
{
    const struct mlo_dtype_info *info = mlo_dtype_info(dtype);
    return info ? info->name : "unknown";
}

enum mlo_dtype mlo_dtype_parse(const char *name)
{
    for (int i = MLO_FLOAT32; i < MLO_DTYPE_COUNT; i++)
        if (strcmp(dtypes[i].name, name) == 0)
            return dtypes[i].dtype;
    return MLO_DTYPE_NONE;
}

/* The shape of a float below 32 bits. IEEE: the top exponent holds infinities and NaNs. FN: only the all-ones
 * mantissa there is NaN, the rest are numbers. FNUZ: like FN without any NaN but the sign bit alone. */
enum kind { KIND_IEEE, KIND_FN, KIND_FNUZ };

struct minifloat {
    int exp_bits, man_bits, bias;
    enum kind kind;
};

static const struct minifloat half = {5, 10, 15, KIND_IEEE};

static const struct minifloat *float8_of(enum mlo_dtype dtype)
{
    static const struct minifloat rows[] = {
        {4, 3, 7, KIND_FN}, {4, 3, 8, KIND_FNUZ}, {5, 2, 15, KIND_IEEE}, {5, 2, 16, KIND_FNUZ}};
    return &rows[dtype - MLO_FLOAT8E4M3FN];
}

static float mini_decode(const struct minifloat *f, unsigned bits)
{
    unsigned man_mask = (1u << f->man_bits) - 1, exp_mask = (1u << f->exp_bits) - 1;
    unsigned man = bits & man_mask, exp = bits >> f->man_bits & exp_mask;
    bool negative = bits >> (f->man_bits + f->exp_bits) & 1;
    if (f->kind == KIND_FNUZ && negative && man == 0 && exp == 0)
        return NAN;
    if (exp == exp_mask && f->kind == KIND_IEEE)
        return man ? NAN : (negative ? -INFINITY : INFINITY);
    if (exp == exp_mask && f->kind == KIND_FN && man == man_mask)
        return negative ? -NAN : NAN;
    float value = exp ? ldexpf((float)(man | 1u << f->man_bits), (int)exp - f->bias - f->man_bits)
                      : ldexpf((float)man, 1 - f->bias - f->man_bits);
    return negative ? -value : value;
}

/* Round to nearest even; what is too large saturates, or becomes infinity, or NaN in a type without
 * infinities. */
static unsigned mini_encode(const struct minifloat *f, float value, bool saturate)
{
    unsigned man_mask = (1u << f->man_bits) - 1, exp_mask = (1u << f->exp_bits) - 1;
    unsigned sign = signbit(value) ? 1u << (f->man_bits + f->exp_bits) : 0;
    unsigned infinity = exp_mask << f->man_bits; /* IEEE only */
    unsigned largest = f->kind == KIND_IEEE ? infinity - 1
                       : f->kind == KIND_FN ? (infinity | man_mask) - 1
                                            : (infinity | man_mask);
    unsigned nan = f->kind == KIND_FNUZ
                       ? 1u << (f->man_bits + f->exp_bits)
                       : sign | infinity | (f->kind == KIND_FN ? man_mask : 1u << (f->man_bits - 1));
    if (isnan(value))
        return nan;
    float magnitude = fabsf(value);
    if (magnitude == 0)
        return f->kind == KIND_FNUZ ? 0 : sign;
    unsigned code;
    if (isinf(magnitude)) {
        code = largest + 1;
    } else {
        int exp = ilogbf(magnitude);
        int low = 1 - f->bias;
        int unit = (exp < low ? low : exp) - f->man_bits; /* exponent of the last place */
        /* exact: |value| / 2^unit has few integer bits; rint is in round-half-even mode */
        double places = rint(ldexp((double)magnitude, -unit));
        if (places == 0)
            return f->kind == KIND_FNUZ ? 0 : sign;
        if (exp < low)
            code = (unsigned)places;
        else if (exp + f->bias > (int)exp_mask + 1)
            code = largest + 1;
        else /* a carry out of the mantissa raises the exponent by itself */
            code = ((unsigned)(exp + f->bias) << f->man_bits) + (unsigned)places - (1u << f->man_bits);
    }
    if (code > largest && !saturate && f->kind != KIND_IEEE)
        return nan;
    if (code > largest)
        code = saturate ? largest : infinity;
    return sign | code;
}

float mlo_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exp = h >> 10 & 31, man = h & 1023, bits;
    if (exp == 0)
        return mini_decode(&half, h);
    bits = exp == 31 ? sign | 0x7f800000u | man << 13 : sign | (exp + 112) << 23 | man << 13;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

uint16_t mlo_f32_to_f16(float f)
{
    return (uint16_t)mini_encode(&half, f, false);
}

float mlo_bf16_to_f32(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

uint16_t mlo_f32_to_bf16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if (isnan(f))
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

bool mlo_dtype_is_float8(enum mlo_dtype dtype)
{
    return dtype >= MLO_FLOAT8E4M3FN && dtype <= MLO_FLOAT8E5M2FNUZ;
}

float mlo_f8_to_f32(enum mlo_dtype dtype, uint8_t bits)
{
    return mini_decode(float8_of(dtype), bits);
}

uint8_t mlo_f32_to_f8_overflow(enum mlo_dtype dtype, float value)
{
    return (uint8_t)mini_encode(float8_of(dtype), value, false);
}

uint8_t mlo_f32_to_f8(enum mlo_dtype dtype, float value)
{
    return (uint8_t)mini_encode(float8_of(dtype), value, true);
}

int64_t mlo_saturate_i64(double value)
{
    if (isnan(value))
        return 0;
    if (value >= 9223372036854775808.0)
        return INT64_MAX;
    return value <= -9223372036854775808.0 ? INT64_MIN : (int64_t)value;
}
