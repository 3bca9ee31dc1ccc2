/* Numbers of all kinds, and nets of the invariant numerics compared with the op table to the last bit. */
#ifndef MLO_TEST_ENGINES_INVARIANT_HELPERS_H
#define MLO_TEST_ENGINES_INVARIANT_HELPERS_H

#include "tests/unit/engines/helpers.h"

static const float specials[] = {
    0.0f,       -0.0f,       1.0f,      -1.0f,     0.05f,     -0.05f,       0.5f,          -0.5f,
    3.9192059f, -3.9192059f, 5.9999f,   6.0f,      -6.0f,     22.5f,        -30.0f,        87.5f,
    -87.5f,     88.7228394f, 88.72284f, -103.97f,  -104.0f,   199.0f,       200.0f,        -200.0f,
    201.0f,     700.0f,      -700.0f,   -745.0f,   -10000.0f, 1e30f,        -1e30f,        1e-30f,
    1e-38f,     1e-40f,      -1e-40f,   1e-45f,    -1e-45f,   3.402823e38f, -3.402823e38f, 1.1754944e-38f,
    NAN,        -NAN,        INFINITY,  -INFINITY, 65504.0f,  1.00000012f,  0.99999994f,   0x1p-24f,
    0x1p-12f,   0x1p-149f};

enum { NUMBERS = 6 };
/* What fills an input: numbers of a size, or (4) any bits at all, or (5) the special ones. */
static inline void fill(float *x, size_t n, int kind, uint32_t seed)
{
    static const float amplitude[4] = {1, 8, 100, 1e-3f};
    for (size_t i = 0; i < n; i++) {
        net_random(&seed);
        if (kind == 5) {
            x[i] = specials[(seed >> 8) % MLO_COUNT(specials)];
        } else if (kind == 4) {
            uint32_t bits = seed ^ seed << 13;
            bits |= bits << 1 > 0xff000000u ? 0x400000u : 0; /* no arithmetic results in a signalling NaN */
            memcpy(&x[i], &bits, sizeof bits);
        } else {
            x[i] = amplitude[kind] * net_random(&seed);
        }
    }
}

static inline void assert_bits(const struct mlo_tensor *got, const struct mlo_tensor *want, const char *what,
                               int isa)
{
    assert_true(mlo_tensor_same_shape(got, want) && got->dtype == want->dtype);
    const uint32_t *a = got->data, *b = want->data;
    for (size_t i = 0; i < want->size_bytes / 4; i++)
        if (a[i] != b[i])
            fail_msg("%s on %s: element %zu is %08x (%.9g), not %08x (%.9g)", what,
                     mlo_isa_name((enum mlo_isa)isa), i, a[i], (double)((const float *)got->data)[i], b[i],
                     (double)((const float *)want->data)[i]);
}

static inline struct mlo_tensor invariant(const struct mlo_model *model, int isa, unsigned threads,
                                          const struct mlo_tensor *in, json_t **description)
{
    struct mlo_compile_options o = {.threads = threads, .numerics = MLO_NUMERICS_INVARIANT};
    mlo_isa_override(isa);
    struct mlo_tensor out = run_model("cpu", model, &o, in, description);
    mlo_isa_override(-1);
    return out;
}

/* On every instruction set, with one thread and with two. */
static inline void assert_everywhere(const struct mlo_model *model, const struct mlo_tensor *in,
                                     const struct mlo_tensor *want, const char *what)
{
    for (int isa = MLO_ISA_GENERIC; isa <= MLO_ISA_AVX512; isa++)
        for (unsigned threads = 1; threads <= 2; threads++) {
            struct mlo_tensor got = invariant(model, isa, threads, in, NULL);
            assert_bits(&got, want, what, isa);
            mlo_tensor_clear(&got);
        }
}

/* The net of up to two inputs has the op table's bits for numbers of all kinds, by steps that are called
 * `impl` (NULL: any). */
static inline void check_bits(struct net *n, const char *impl, const char *what)
{
    struct mlo_tensor in[2] = {{0}, {0}};
    int inputs = n->graph->input_count;
    for (int i = 0; i < inputs; i++) {
        const struct mlo_type *t = &n->graph->inputs[i]->type;
        int64_t dims[MLO_MAX_RANK];
        assert_true(mlo_type_static(t, dims));
        MUST(mlo_tensor_init(&in[i], MLO_FLOAT32, t->rank, dims, err));
    }
    for (int kind = 0; kind < NUMBERS; kind++) {
        for (int i = 0; i < inputs; i++)
            fill(in[i].data, mlo_tensor_count(&in[i]), kind, (uint32_t)(kind * 7 + i * 3 + 1));
        struct mlo_compile_options o = {.threads = 1};
        struct mlo_tensor want = run_model("reference", n->model, &o, in, NULL);
        for (int isa = MLO_ISA_GENERIC; isa <= MLO_ISA_AVX512; isa++)
            for (unsigned threads = 1; threads <= 2; threads++) {
                json_t *d = NULL;
                struct mlo_tensor got = invariant(n->model, isa, threads, in, &d);
                assert_bits(&got, &want, what, isa);
                if (impl && count_nodes(d, NULL, "impl", impl) == 0)
                    fail_with_plan(d, what, "no step is the one that is tested");
                json_decref(d);
                mlo_tensor_clear(&got);
            }
        mlo_tensor_clear(&want);
    }
    for (int i = 0; i < inputs; i++)
        mlo_tensor_clear(&in[i]);
    mlo_model_free(n->model);
}

#endif
