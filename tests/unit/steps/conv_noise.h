/* For nets of convolutions whose weights have no pattern. */
#ifndef MLO_TESTS_CONV_NOISE_H
#define MLO_TESTS_CONV_NOISE_H

#include "tests/unit/passes/passes_helpers.h"

/* A 3x3 convolution of that name that keeps height and width. */
static inline struct mlo_value *conv(struct mlo_model *m, const char *name, struct mlo_value *x, int64_t from,
                                     int64_t to)
{
    char w[32];
    struct mlo_tensor t = {0};
    struct mlo_error err = {0};
    uint32_t seed = (uint32_t)(from * 31 + to);
    assert_ok(mlo_tensor_init(&t, MLO_FLOAT32, 4, DIMS(to, from, 3, 3), &err));
    for (int64_t i = 0; i < to * from * 9; i++) {
        seed = seed * 1664525u + 1013904223u;
        ((float *)t.data)[i] = (float)(seed >> 8) / 8388608.0f - 0.9f;
    }
    snprintf(w, sizeof w, "%s_w", name);
    struct mlo_value *y = op(m, "Conv", name, x, constant_take(m, w, &t));
    set_ints(y, "pads", 1, 1, 1, 1);
    return y;
}

#endif
