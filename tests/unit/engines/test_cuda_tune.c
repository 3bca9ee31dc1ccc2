/* The tuner of the cuda engine with a device that is made up: what it tries, drops, chooses and remembers. No
 * GPU, and nothing of CUDA. */
#include <math.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engines/cuda/tune/tune.h"
#include "tests/cm.h"

/* The same with the error of a fixture. */
#define CHECKED(e, expr)                                                                                     \
    do {                                                                                                     \
        if ((expr) != MLO_OK)                                                                                \
            fail_msg("%s: %s [%s]", #expr, e.message, e.where);                                              \
    } while (0)

/* --- a schedule ------------------------------------------------------------------------------------------
 */

enum { STEPS = 512, SLOTS = 2048 };
struct nets {
    struct cuda_schedule schedule;
    struct cuda_slot slots[SLOTS];
    struct cuda_step steps[STEPS];
    struct cuda_conv convs[STEPS];
    struct cuda_gemm gemms[STEPS];
    struct cuda_attention attentions[STEPS];
    struct mlo_node nodes[STEPS];
};

static struct nets *new_net(void)
{
    struct nets *n = calloc(1, sizeof *n);
    assert_non_null(n);
    n->schedule = (struct cuda_schedule){.slots = n->slots, .steps = n->steps};
    return n;
}

static int slot(struct nets *n, enum cuda_slot_kind kind, double bytes)
{
    assert_true(n->schedule.slot_count < SLOTS);
    n->slots[n->schedule.slot_count] = (struct cuda_slot){.kind = kind, .size_bytes = (size_t)bytes};
    return n->schedule.slot_count++;
}

static struct cuda_step *step(struct nets *n, enum cuda_step_kind kind, const char *precision)
{
    assert_true(n->schedule.step_count < STEPS);
    struct cuda_step *s = &n->steps[n->schedule.step_count];
    struct mlo_node *node = &n->nodes[n->schedule.step_count++];
    node->name = "node";
    node->op_type = "Op";
    *s = (struct cuda_step){
        .kind = kind, .precision = precision, .impl = "library", .node = node, .replaces = -1};
    return s;
}

static struct cuda_tensor nhwc(enum mlo_dtype type, int64_t n, int64_t c, int64_t h)
{
    return (struct cuda_tensor){
        .dtype = type, .rank = 4, .dims = {n, c, h, h}, .strides = {h * h * c, 1, h * c, c}};
}

/* bytes: of an element */
static void add_conv(struct nets *n, int bytes, int64_t batch, int64_t in, int64_t out, int64_t h, int64_t k,
                     int64_t stride, bool residual, int64_t groups)
{
    const char *precision = bytes == 2 ? "f16" : "int8";
    enum mlo_dtype type = bytes == 2 ? MLO_FLOAT16 : MLO_INT8;
    struct cuda_step *s = step(n, CUDA_STEP_CONV, precision);
    struct cuda_conv *c = &n->convs[n->schedule.step_count - 1];
    int64_t ho = h / stride;
    *c = (struct cuda_conv){.x = nhwc(type, batch, in, h),
                            .w = nhwc(type, out, in / groups, k),
                            .y = nhwc(type, batch, out, ho),
                            .residual = nhwc(type, batch, out, ho),
                            .spatial = 2,
                            .stride = {stride, stride},
                            .dilation = {1, 1},
                            .groups = groups,
                            .has_residual = residual,
                            .activation = CUDA_ACT_RELU};
    s->conv = c;
    s->in[s->in_count++] = slot(n, CUDA_SLOT_ARENA, (double)(batch * in * h * h * bytes));
    s->in[s->in_count++] = slot(n, CUDA_SLOT_CONST, (double)(out * in / groups * k * k * bytes));
    if (residual)
        s->in[s->in_count++] = slot(n, CUDA_SLOT_ARENA, (double)(batch * out * ho * ho * bytes));
    s->out[s->out_count++] = slot(n, CUDA_SLOT_ARENA, (double)(batch * out * ho * ho * bytes));
}

static void resnet50(struct nets *n, int bytes, int64_t batch)
{
    static const int64_t blocks[] = {3, 4, 6, 3};
    int64_t h = 56, in = 64, width = 64;
    add_conv(n, bytes, batch, 4, 64, 224, 7, 2, false, 1);
    n->convs[0].w.dims[1] = 3; /* channels padded to 4 in memory, not in what is counted */
    n->slots[1].size_bytes = (size_t)(64 * 3 * 49 * bytes);
    for (int stage = 0; stage < 4; stage++, width *= 2) {
        for (int64_t b = 0; b < blocks[stage]; b++) {
            int64_t stride = stage && b == 0 ? 2 : 1;
            add_conv(n, bytes, batch, in, width, h, 1, 1, false, 1);
            add_conv(n, bytes, batch, width, width, h, 3, stride, false, 1);
            if (b == 0)
                add_conv(n, bytes, batch, in, 4 * width, h, 1, stride, false, 1);
            h /= stride;
            add_conv(n, bytes, batch, width, 4 * width, h, 1, 1, true, 1);
            in = 4 * width;
        }
    }
}

static void mobilenet(struct nets *n, int bytes, int64_t batch)
{
    static const int64_t rows[][4] = {{1, 16, 1, 1}, {6, 24, 2, 2},  {6, 32, 3, 2}, {6, 64, 4, 2},
                                      {6, 96, 3, 1}, {6, 160, 3, 2}, {6, 320, 1, 1}};
    int64_t in = 32, h = 112;
    add_conv(n, bytes, batch, 4, 32, 224, 3, 2, false, 1);
    n->convs[0].w.dims[1] = 3;
    n->slots[1].size_bytes = (size_t)(32 * 3 * 9 * bytes);
    for (size_t r = 0; r < MLO_COUNT(rows); r++) {
        for (int64_t i = 0; i < rows[r][2]; i++) {
            int64_t stride = i == 0 ? rows[r][3] : 1, wide = in * rows[r][0], out = rows[r][1];
            if (rows[r][0] != 1)
                add_conv(n, bytes, batch, in, wide, h, 1, 1, false, 1);
            add_conv(n, bytes, batch, wide, wide, h, 3, stride, false, wide);
            h /= stride;
            add_conv(n, bytes, batch, wide, out, h, 1, 1, stride == 1 && in == out, 1);
            in = out;
        }
    }
    add_conv(n, bytes, batch, 320, 1280, 7, 1, 1, false, 1);
}

static void add_gemm(struct nets *net, int bytes, int64_t m, int64_t n, int64_t k, bool residual)
{
    struct cuda_step *s = step(net, CUDA_STEP_GEMM, bytes == 2 ? "f16" : "int8");
    struct cuda_gemm *g = &net->gemms[net->schedule.step_count - 1];
    *g = (struct cuda_gemm){.m = m, .n = n, .k = k, .batch = 1, .has_c = residual, .alpha = 1};
    s->gemm = g;
    s->in[s->in_count++] = slot(net, CUDA_SLOT_ARENA, (double)(m * k * bytes));
    s->in[s->in_count++] = slot(net, CUDA_SLOT_CONST, (double)(k * n * bytes));
    if (residual)
        s->in[s->in_count++] = slot(net, CUDA_SLOT_ARENA, (double)(m * n * bytes));
    s->out[s->out_count++] = slot(net, CUDA_SLOT_ARENA, (double)(m * n * bytes));
}

static void add_norm(struct nets *net, int bytes, int64_t m)
{
    struct cuda_step *s = step(net, CUDA_STEP_KERNEL, "f32");
    s->node = NULL;
    s->in[s->in_count++] = slot(net, CUDA_SLOT_ARENA, (double)(m * 768 * bytes));
    s->out[s->out_count++] = slot(net, CUDA_SLOT_ARENA, (double)(m * 768 * bytes));
}

static void bert(struct nets *net, int bytes, int64_t batch)
{
    int64_t m = 128 * batch;
    enum mlo_dtype type = bytes == 2 ? MLO_FLOAT16 : MLO_INT8;
    for (int layer = 0; layer < 12; layer++) {
        add_gemm(net, bytes, m, 3 * 768, 768, false);
        struct cuda_step *s = step(net, CUDA_STEP_ATTENTION, bytes == 2 ? "f16" : "int8");
        struct cuda_attention *a = &net->attentions[net->schedule.step_count - 1];
        a->q = (struct cuda_tensor){type, 4, {batch, 12, 128, 64}, {128 * 2304, 64, 2304, 1}};
        a->k = a->v = a->q;
        a->o = (struct cuda_tensor){type, 4, {batch, 12, 128, 64}, {128 * 768, 64, 768, 1}};
        s->attention = a;
        s->in[s->in_count++] = slot(net, CUDA_SLOT_ARENA, (double)(m * 2304 * bytes));
        s->in[s->in_count++] = s->in[0];
        s->in[s->in_count++] = s->in[0];
        s->out[s->out_count++] = slot(net, CUDA_SLOT_ARENA, (double)(m * 768 * bytes));
        add_gemm(net, bytes, m, 768, 768, true);
        add_norm(net, bytes, m);
        add_gemm(net, bytes, m, 3072, 768, false);
        add_gemm(net, bytes, m, 768, 3072, true);
        add_norm(net, bytes, m);
    }
}

/* --- floors ----------------------------------------------------------------------------------------------
 */

static json_t *h200(bool measured)
{
    json_t *device =
        json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i}", "deviceName", "NVIDIA H200",
                  "deviceVer", 900, "multiProcessorCount", 132, "smClockRateKHz", 1980000, "memClockRateKHz",
                  3201000, "memoryBusWidth", 6144, "l2CacheSize", 62914560, "maxThreadsPerSM", 2048,
                  "maxRegistersPerSM", 65536, "maxCtasPerSM", 32);
    if (measured)
        json_object_set_new(device, "peaks",
                            json_pack("{s:f, s:f, s:f, s:f}", "f16", 790e12, "int8", 1580e12, "memory",
                                      4.8e12, "launch_us", 2.5));
    return device;
}

static struct cuda_peaks peaks_of(json_t *device)
{
    struct cuda_peaks peaks;
    struct mlo_error err = {0};
    assert_ok(cuda_peaks_read(device, &peaks, &err));
    json_decref(device);
    return peaks;
}

/* What was computed by hand for an H200 (790 TFLOP/s in fp16, 4.8 TB/s), to the last digit that was written.
 */
static void test_floors__of_three_nets(void **state)
{
    (void)state;
    static const struct {
        void (*build)(struct nets *, int, int64_t);
        int bytes;
        int64_t batch;
        double us, within;
    } rows[] = {{resnet50, 2, 1, 22, 0.5},    {resnet50, 2, 32, 493, 0.5},  {resnet50, 2, 128, 1971, 0.6},
                {resnet50, 1, 1, 11, 0.5},    {resnet50, 1, 32, 247, 0.5},  {resnet50, 1, 128, 985, 0.8},
                {mobilenet, 2, 1, 6.6, 0.05}, {mobilenet, 2, 32, 184, 0.5}, {mobilenet, 2, 128, 736, 0.5},
                {mobilenet, 1, 1, 3.3, 0.05}, {mobilenet, 1, 32, 92, 0.5},  {mobilenet, 1, 128, 368, 0.5},
                {bert, 2, 1, 48, 0.5},        {bert, 2, 32, 1007, 0.5},     {bert, 2, 128, 4026, 0.5},
                {bert, 1, 1, 24, 0.5},        {bert, 1, 32, 503, 0.5},      {bert, 1, 128, 2013, 0.5}};
    struct cuda_peaks peaks = peaks_of(h200(true));
    for (size_t i = 0; i < MLO_COUNT(rows); i++) {
        struct nets *n = new_net();
        rows[i].build(n, rows[i].bytes, rows[i].batch);
        double us = cuda_schedule_floor_us(&n->schedule, &peaks);
        if (fabs(us - rows[i].us) > rows[i].within)
            fail_msg("row %zu: %.2f us, and not %.2f", i, us, rows[i].us);
        assert_true(cuda_schedule_launch_floor_us(&n->schedule, &peaks) >= n->schedule.step_count * 2.5);
        free(n);
    }
}

static void test_peaks__follow_from_the_description(void **state)
{
    (void)state;
    struct cuda_peaks p = peaks_of(h200(false));
    assert_int_equal(p.sm, 90);
    assert_true(fabs(p.ops[CUDA_RATE_F16] / (132 * 4096 * 1.98e9) - 1) < 1e-12);
    assert_true(fabs(p.ops[CUDA_RATE_INT8] / p.ops[CUDA_RATE_F16] - 2) < 1e-12);
    assert_true(fabs(p.memory / 4.9167e12 - 1) < 1e-3);
    struct cuda_peaks measured = peaks_of(h200(true));
    assert_true(measured.memory == 4.8e12 && measured.ops[CUDA_RATE_F16] == 790e12);

    struct mlo_error err = {0};
    json_t *bad = h200(false);
    json_object_del(bad, "memoryBusWidth");
    assert_int_equal(cuda_peaks_read(bad, &p, &err), MLO_EFORMAT);
    json_object_set_new(bad, "deviceVer", json_integer(610));
    assert_int_equal(cuda_peaks_read(bad, &p, &err), MLO_EUNSUPPORTED);
    json_object_del(bad, "deviceVer");
    assert_int_equal(cuda_peaks_read(bad, &p, &err), MLO_EFORMAT);
    json_decref(bad);
}

static void test_occupancy__by_the_scarcest(void **state)
{
    (void)state;
    struct cuda_peaks p = peaks_of(h200(true));
    assert_true(cuda_occupancy(&p, 256, 64, 0) == 0.5);      /* registers: 4 blocks of 8 warps */
    assert_true(cuda_occupancy(&p, 256, 32, 0) == 1.0);      /* threads */
    assert_true(cuda_occupancy(&p, 128, 32, 49152) == 0.25); /* shared memory: 4 blocks */
    assert_true(cuda_occupancy(&p, 32, 16, 0) == 0.5);       /* 32 blocks */
    assert_true(cuda_occupancy(&p, 1024, 255, 0) == 0);      /* 32 warps of 8192 registers */
    assert_true(cuda_occupancy(&p, 128, 32, 300000) == 0);
    assert_true(cuda_occupancy(&p, 0, 32, 0) == 0);
}

static void test_report__has_percent_of_the_floor(void **state)
{
    (void)state;
    struct cuda_peaks p = peaks_of(h200(true));
    struct nets *n = new_net();
    json_t *report, *measured = json_pack("[{s:f, s:f}]", "us", 20.0, "occupancy", 0.5);
    struct mlo_error err = {0};
    add_conv(n, 2, 32, 64, 256, 56, 1, 1, true, 1);
    add_conv(n, 2, 1, 64, 64, 7, 1, 1, false, 1);
    assert_ok(cuda_floor_report(&n->schedule, &p, measured, &report, &err));
    const json_t *rows = json_object_get(report, "steps"), *row = json_array_get(rows, 0);
    assert_int_equal(json_array_size(rows), 2);
    double floor_us = mlo_json_f64(row, "floor_us", 0);
    assert_true(fabs(mlo_json_f64(row, "percent", 0) - 5 * floor_us) < 1e-9);
    assert_string_equal(mlo_json_str(row, "bound", ""), "memory");
    assert_true(mlo_json_f64(row, "occupancy", 0) == 0.5);
    assert_string_equal(mlo_json_str(json_array_get(rows, 1), "bound", ""), "launch");
    assert_null(json_object_get(json_array_get(rows, 1), "percent"));
    json_decref(report);
    json_decref(measured);
    free(n);
}

static void test_rotation__is_twice_the_cache(void **state)
{
    (void)state;
    assert_int_equal(cuda_rotation(60e6, 60e6), 2);
    assert_int_equal(cuda_rotation(1e9, 60e6), 1);
    assert_int_equal(cuda_rotation(100, 60e6), 64);
    assert_int_equal(cuda_rotation(0, 60e6), 1);
}

/* --- keys and ways ---------------------------------------------------------------------------------------
 */

static struct mlo_digest key_of(struct nets *n, int i)
{
    struct mlo_digest key;
    struct mlo_error err = {0};
    assert_ok(cuda_step_key(&n->schedule, &n->steps[i], &key, &err));
    return key;
}

static void test_key__is_of_what_is_computed_alone(void **state)
{
    (void)state;
    struct nets *n = new_net();
    add_conv(n, 2, 8, 64, 64, 56, 3, 1, false, 1);
    add_conv(n, 2, 8, 64, 64, 56, 3, 1, false, 1);
    n->nodes[1].name = "another";
    struct mlo_digest key = key_of(n, 0), other = key_of(n, 1);
    assert_true(mlo_digest_eq(&key, &other));
#define DIFFERS(what)                                                                                        \
    do {                                                                                                     \
        struct cuda_conv was = n->convs[1];                                                                  \
        n->convs[1].what;                                                                                    \
        other = key_of(n, 1);                                                                                \
        assert_false(mlo_digest_eq(&key, &other));                                                           \
        n->convs[1] = was;                                                                                   \
    } while (0)
    DIFFERS(x.dims[0] = 9);
    DIFFERS(x.strides[1] = 2);
    DIFFERS(x.dtype = MLO_INT8);
    DIFFERS(pad_before[0] = 1);
    DIFFERS(pad_after[1] = 1);
    DIFFERS(stride[0] = 2);
    DIFFERS(dilation[0] = 2);
    DIFFERS(groups = 2);
    DIFFERS(has_bias = true);
    DIFFERS(has_scale = true);
    DIFFERS(activation = CUDA_ACT_NONE);
    DIFFERS(high = INFINITY);
    DIFFERS(residual_scale = 0.5f);
    n->slots[n->steps[1].in[0]].offset = 16; /* another alignment may be another kernel */
    other = key_of(n, 1);
    assert_false(mlo_digest_eq(&key, &other));
    free(n);
}

static void test_key__of_every_kind(void **state)
{
    (void)state;
    struct nets *n = new_net();
    static struct cuda_chain chain = {
        .rank = 2, .dims = {4, 8}, .count = 1, .operand_count = 1, .result_count = 1};
    static struct cuda_kernel_use use;
    bert(n, 2, 1);
    step(n, CUDA_STEP_CHAIN, "f32")->chain = &chain;
    for (int i = 0; i < n->schedule.step_count; i++)
        if (n->steps[i].kind == CUDA_STEP_KERNEL)
            n->steps[i].kernel = &use;
    step(n, CUDA_STEP_COPY, NULL)->copy_bytes = 16;
    struct mlo_digest keys[7];
    static const int of[] = {0, 1, 2, 3, 4, 84, 85};
    for (size_t i = 0; i < MLO_COUNT(of); i++)
        keys[i] = key_of(n, of[i]);
    for (size_t i = 0; i < MLO_COUNT(of); i++)
        for (size_t k = 0; k < i; k++)
            assert_false(mlo_digest_eq(&keys[i], &keys[k]));
    chain.code[0].alpha = 2;
    struct mlo_digest other = key_of(n, 84);
    assert_false(mlo_digest_eq(&keys[5], &other));
    free(n);
}

static void test_ways__of_an_engine(void **state)
{
    (void)state;
    struct mlo_error err = {0};
    json_t *ways = json_array();
    const struct cuda_knob knobs[] = {{3, 0, 4, 2}, {7, 1, 2, 1}};
    assert_ok(cuda_ways_engine(ways, 2, NULL, 0, 10, &err));
    assert_int_equal(json_array_size(ways), 1);
    assert_ok(cuda_ways_engine(ways, 5, knobs, 2, 100, &err));
    /* as it is, 3 + 2 alone, 6 together */
    assert_int_equal(json_array_size(ways), 1 + 12);
    json_t *way =
        json_pack("{s:s, s:i, s:{s:i, s:i}}", "library", "cudnn", "engine", 5, "knobs", "3", 4, "7", 2);
    assert_true(cuda_ways_find(ways, way) > 0);
    assert_true(cuda_ways_add(ways, way)); /* it is there */
    assert_int_equal(json_array_size(ways), 1 + 12);
    const struct cuda_knob wide[] = {{1, 0, 99, 1}, {2, 0, 99, 1}, {3, 0, 99, 1}};
    assert_ok(cuda_ways_engine(ways, 6, wide, 3, 50, &err));
    assert_int_equal(json_array_size(ways), 1 + 12 + 50);
    json_decref(ways);
}

static void test_median__has_an_interval(void **state)
{
    (void)state;
    double few[] = {3, 1, 2}, many[101];
    struct cuda_median m = cuda_median_of(few, 3);
    assert_true(m.value == 2 && m.low == 1 && m.high == 3);
    for (int i = 0; i < 101; i++)
        many[i] = (i * 37) % 101;
    m = cuda_median_of(many, 101);
    assert_true(m.value == 50 && m.low > 38 && m.low < 42 && m.high > 58 && m.high < 63);
    m = cuda_median_of(few, 0);
    assert_int_equal(m.n, 0);
}

/* --- a made-up device -------------------------------------------------------------------------------------
 * Ways are {"id": n}; what they are is in the table. */

struct way {
    double us;
    unsigned spill;
    size_t workspace;
    unsigned threads, registers;
    double work, error;
    bool no_build, no_time, no_check, kills;
};
struct device {
    const struct way *ways;
    size_t count;
    int builds, releases, timings, checks, recovers, asked;
    int timed[16];
    double noise, sleep_ms;
    enum mlo_status end; /* what timing fails with */
    int order[64];       /* steps, as they were asked for */
    const struct cuda_step *first;
};

static int64_t id_of(const json_t *way)
{
    return mlo_json_i64(way, "id", -1);
}

static enum mlo_status fake_ways(void *arg, const struct cuda_step *s, json_t **ways, struct mlo_error *err)
{
    struct device *d = arg;
    (void)err;
    d->order[d->asked++] = (int)(s - d->first);
    *ways = json_array();
    for (size_t i = 0; i < d->count; i++)
        json_array_append_new(*ways, json_pack("{s:i}", "id", (int)i));
    return MLO_OK;
}

static enum mlo_status fake_build(void *arg, const struct cuda_step *s, const json_t *way,
                                  struct cuda_built *out, struct mlo_error *err)
{
    struct device *d = arg;
    const struct way *w = &d->ways[id_of(way)];
    (void)s;
    d->builds++;
    if (w->no_build)
        return mlo_error_set(err, MLO_EUNSUPPORTED, "no such tile");
    *out = (struct cuda_built){.code = (void *)(uintptr_t)(id_of(way) + 1),
                               .spill_bytes = w->spill,
                               .workspace_bytes = w->workspace,
                               .threads = w->threads,
                               .registers = w->registers,
                               .work = w->work};
    return MLO_OK;
}

static void fake_release(void *arg, struct cuda_built *built)
{
    struct device *d = arg;
    assert_non_null(built->code);
    d->releases++;
}

static enum mlo_status fake_time(void *arg, const struct cuda_step *s, const struct cuda_built *built,
                                 int count, double *us, struct mlo_error *err)
{
    struct device *d = arg;
    int id = (int)(uintptr_t)built->code - 1;
    const struct way *w = &d->ways[id];
    (void)s;
    d->timings++;
    d->timed[id] += count;
    if (w->kills)
        _exit(9);
    if (d->end)
        return mlo_error_set(err, d->end, "the GPU fell off the bus");
    if (w->no_time)
        return mlo_error_set(err, MLO_EINTERNAL, "an illegal address");
    if (d->sleep_ms > 0)
        mlo_clock_sleep_ms((uint32_t)d->sleep_ms);
    for (int i = 0; i < count; i++)
        us[i] = w->us * (1 + d->noise * ((i * 7 + d->timings) % 11 - 5) / 5.0);
    return MLO_OK;
}

static enum mlo_status fake_check(void *arg, const struct cuda_step *s, const struct cuda_built *built,
                                  double *error, double *tolerance, struct mlo_error *err)
{
    struct device *d = arg;
    const struct way *w = &d->ways[(uintptr_t)built->code - 1];
    (void)s;
    d->checks++;
    if (w->no_check)
        return mlo_error_set(err, MLO_EINTERNAL, "an illegal instruction");
    *error = w->error;
    *tolerance = 1e-3;
    return MLO_OK;
}

static enum mlo_status fake_recover(void *arg, struct mlo_error *err)
{
    (void)err;
    ((struct device *)arg)->recovers++;
    return MLO_OK;
}

static const struct cuda_tune_ops OPS = {.ways = fake_ways,
                                         .build = fake_build,
                                         .release = fake_release,
                                         .time = fake_time,
                                         .check = fake_check,
                                         .recover = fake_recover};

struct fixture {
    struct nets *net;
    struct device device;
    struct cuda_peaks peaks;
    json_t *machine;
    struct cuda_tuning tuning;
    struct mlo_error err;
};

static void start(struct fixture *f, const struct way *ways, size_t count)
{
    *f = (struct fixture){.net = new_net(), .device = {.ways = ways, .count = count, .noise = 0.01}};
    add_conv(f->net, 2, 8, 64, 64, 56, 3, 1, false, 1);
    f->device.first = f->net->steps;
    f->peaks = peaks_of(h200(true));
    f->machine = json_pack("{s:s, s:s}", "gpu", "NVIDIA H200", "driver", "580");
    f->tuning = (struct cuda_tuning){.schedule = &f->net->schedule,
                                     .machine = f->machine,
                                     .peaks = &f->peaks,
                                     .max_workspace_bytes = 1 << 20,
                                     .ops = &OPS,
                                     .arg = &f->device};
}

static void stop(struct fixture *f)
{
    json_decref(f->machine);
    free(f->net);
}

static json_t *tune(struct fixture *f, struct mlo_tuning_request request)
{
    json_t *out = NULL;
    CHECKED(f->err, cuda_tune(&f->tuning, &request, &out, &f->err));
    CHECKED(f->err, mlo_choices_check(out, "test", &f->err));
    assert_int_equal(f->device.releases, f->device.builds); /* where all of them compile */
    return out;
}

static const json_t *entry(const struct fixture *f, const json_t *choices, int i)
{
    struct mlo_digest key = key_of(f->net, i);
    return mlo_choices_find(choices, &key);
}

static const char *why(const json_t *one, int id)
{
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(one, "dropped"), i, row)
    {
        if (id_of(json_object_get(row, "choice")) == id)
            return mlo_json_str(row, "why", "");
    }
    return "";
}

static void test_tune__fastest_is_chosen(void **state)
{
    (void)state;
    static const struct way ways[] = {{.us = 100}, {.us = 60}, {.us = 80}, {.us = 300}};
    struct fixture f;
    start(&f, ways, MLO_COUNT(ways));
    json_t *choices = tune(&f, (struct mlo_tuning_request){0});
    const json_t *one = entry(&f, choices, 0);
    assert_int_equal(id_of(json_object_get(one, "choice")), 1);
    assert_string_equal(mlo_json_str(one, "by", ""), "measured");
    const json_t *us = json_object_get(one, "us");
    assert_true(fabs(mlo_json_f64(us, "value", 0) - 60) < 1);
    assert_true(mlo_json_f64(us, "low", 0) <= 60.5 && mlo_json_f64(us, "high", 0) >= 59.5);
    assert_true(
        fabs(mlo_json_f64(json_object_get(json_object_get(one, "heuristic"), "us"), "value", 0) - 100) < 2);
    assert_string_equal(why(one, 3), "slower");
    assert_true(f.device.timed[3] < f.device.timed[1]); /* what is clearly slower is not timed on */
    assert_int_equal(f.device.checks, 1);
    assert_ptr_equal(cuda_step_choice(&f.net->schedule, &f.net->steps[0], choices),
                     json_object_get(one, "choice"));
    assert_null(cuda_step_choice(&f.net->schedule, &f.net->steps[0], NULL));
    json_decref(choices);
    stop(&f);
}

static void test_tune__heuristics_stay_without_confidence(void **state)
{
    (void)state;
    static const struct way ways[] = {{.us = 100}, {.us = 99.5}, {.us = 99.8}};
    struct fixture f;
    start(&f, ways, MLO_COUNT(ways));
    f.device.noise = 0.05;
    json_t *choices = tune(&f, (struct mlo_tuning_request){0});
    assert_int_equal(id_of(json_object_get(entry(&f, choices, 0), "choice")), 0);
    json_decref(choices);
    stop(&f);
}

static void test_tune__bad_ways_are_dropped(void **state)
{
    (void)state;
    static const struct way ways[] = {{.us = 100},
                                      {.us = 1, .spill = 8},
                                      {.us = 1, .workspace = 2 << 20},
                                      {.us = 1, .threads = 1024, .registers = 255},
                                      {.us = 1, .error = 0.5},
                                      {.us = 2, .error = NAN},
                                      {.us = 3, .no_check = true},
                                      {.us = 1, .no_time = true},
                                      {.us = 50, .work = 1e6},
                                      {.us = 70}};
    static const char *const reasons[] = {
        "",
        "its registers spill",
        "it needs too much workspace",
        "a block does not fit on the device",
        "it computes something else: the error is: 0.5 where 0.001 is allowed",
        "it computes something else: the error is: nan where 0.001 is allowed",
        "it fails when it is checked: an illegal instruction",
        "it fails: an illegal address",
        "its floor is above what another way took"};
    struct fixture f;
    start(&f, ways, MLO_COUNT(ways));
    json_t *choices = tune(&f, (struct mlo_tuning_request){0});
    const json_t *one = entry(&f, choices, 0);
    assert_int_equal(id_of(json_object_get(one, "choice")), 9);
    for (int i = 1; i < (int)MLO_COUNT(reasons); i++)
        assert_string_equal(why(one, i), reasons[i]);
    assert_int_equal(f.device.timed[1] + f.device.timed[2] + f.device.timed[3] + f.device.timed[8], 0);
    assert_int_equal(f.device.recovers, 2); /* after each failure on the device */
    json_decref(choices);
    stop(&f);
}

static void test_tune__ways_that_do_not_compile(void **state)
{
    (void)state;
    static const struct way ways[] = {{.no_build = true}, {.us = 70}};
    static const struct way none[] = {{.no_build = true}, {.us = 5, .error = 1}};
    struct fixture f;
    json_t *choices = NULL;
    struct mlo_tuning_request request = {0};
    start(&f, ways, MLO_COUNT(ways));
    CHECKED(f.err, cuda_tune(&f.tuning, &request, &choices, &f.err));
    const json_t *one = entry(&f, choices, 0);
    assert_int_equal(id_of(json_object_get(one, "choice")), 1);
    assert_string_equal(why(one, 0), "it does not compile: no such tile");
    assert_int_equal(f.device.releases, 1);
    json_decref(choices);
    stop(&f);
    start(&f, none, MLO_COUNT(none)); /* nothing is left: nothing is said */
    CHECKED(f.err, cuda_tune(&f.tuning, &request, &choices, &f.err));
    assert_null(entry(&f, choices, 0));
    json_decref(choices);
    stop(&f);
}

static void test_tune__the_device_is_gone(void **state)
{
    (void)state;
    static const struct way ways[] = {{.us = 100}, {.us = 70}};
    struct fixture f;
    json_t *choices = NULL;
    struct mlo_tuning_request request = {0};
    start(&f, ways, MLO_COUNT(ways));
    f.device.end = MLO_EUNAVAILABLE;
    assert_int_equal(cuda_tune(&f.tuning, &request, &choices, &f.err), MLO_EUNAVAILABLE);
    assert_null(choices);
    assert_int_equal(f.device.releases, 2);
    stop(&f);
}

static void test_tune__equal_steps_once_and_heavy_ones_first(void **state)
{
    (void)state;
    static const struct way ways[] = {{.us = 100}, {.us = 70}};
    struct fixture f;
    start(&f, ways, MLO_COUNT(ways));
    add_conv(f.net, 2, 8, 64, 64, 56, 3, 1, false, 1);    /* as the first */
    add_conv(f.net, 2, 8, 256, 256, 112, 3, 1, false, 1); /* heavier than both */
    add_conv(f.net, 2, 1, 8, 8, 7, 1, 1, false, 1);
    json_t *choices = tune(&f, (struct mlo_tuning_request){0});
    assert_int_equal(f.device.asked, 3);
    assert_int_equal(f.device.order[0], 2);
    assert_int_equal(f.device.order[1], 0);
    assert_int_equal(f.device.order[2], 3);
    assert_ptr_equal(entry(&f, choices, 0), entry(&f, choices, 1));
    /* what is known is not measured again; of another machine it is not known */
    f.device.asked = f.device.timings = f.device.builds = f.device.releases = 0;
    json_t *again = tune(&f, (struct mlo_tuning_request){.known = choices});
    assert_int_equal(f.device.asked, 0);
    assert_true(json_equal(again, choices));
    json_decref(again);
    json_object_set_new(f.machine, "driver", json_string("590"));
    again = tune(&f, (struct mlo_tuning_request){.known = choices});
    assert_int_equal(f.device.asked, 3);
    json_decref(again);
    json_decref(choices);
    stop(&f);
}

static void test_tune__prepare_needs_no_device(void **state)
{
    (void)state;
    static const struct way ways[] = {{.us = 100}, {.us = 70}};
    struct fixture f;
    start(&f, ways, MLO_COUNT(ways));
    json_t *choices = tune(&f, (struct mlo_tuning_request){.prepare_only = true});
    assert_int_equal(f.device.builds, 2);
    assert_int_equal(f.device.timings + f.device.checks, 0);
    assert_int_equal(json_object_size(json_object_get(choices, "steps")), 0);
    json_decref(choices);
    stop(&f);
}

static void test_tune__stops_when_its_time_is_over(void **state)
{
    (void)state;
    static const struct way ways[] = {{.us = 100}};
    struct fixture f;
    start(&f, ways, MLO_COUNT(ways));
    add_conv(f.net, 2, 1, 8, 8, 7, 1, 1, false, 1);
    f.device.sleep_ms = 5;
    json_t *choices = tune(&f, (struct mlo_tuning_request){.seconds = 0.001});
    assert_int_equal(json_object_size(json_object_get(choices, "steps")), 1);
    assert_non_null(entry(&f, choices, 0)); /* the heavier one */
    json_decref(choices);
    stop(&f);
}

/* A way that takes the process with it: the next run goes on behind it. */
static void test_tune__goes_on_after_a_kill(void **state)
{
    (void)state;
    static const struct way ways[] = {{.us = 100}, {.us = 20, .kills = true}, {.us = 70}};
    struct fixture f;
    char folder[] = "/tmp/mlopt-tune-XXXXXX";
    assert_non_null(mkdtemp(folder));
    char *path = mlo_fs_join(folder, "choices.json", NULL);
    start(&f, ways, 1);
    add_conv(f.net, 2, 8, 256, 256, 112, 3, 1, false, 1);
    /* the heavy step is done by a run that knew one way only; then there are three */
    f.tuning.schedule =
        &(struct cuda_schedule){.slots = f.net->slots, .steps = f.net->steps + 1, .step_count = 1};
    f.device.first = f.net->steps + 1;
    json_decref(tune(&f, (struct mlo_tuning_request){.keep = path}));
    f.tuning.schedule = &f.net->schedule;
    f.device = (struct device){.ways = ways, .count = 3, .noise = 0.01, .first = f.net->steps};
    pid_t child = fork();
    if (child == 0) {
        json_t *out;
        struct mlo_tuning_request request = {.keep = path};
        (void)!cuda_tune(&f.tuning, &request, &out, &f.err);
        _exit(0);
    }
    int how = 0;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_int_equal(WEXITSTATUS(how), 9);
    json_t *choices = tune(&f, (struct mlo_tuning_request){.keep = path});
    assert_int_equal(f.device.asked, 1); /* the heavy one was known */
    assert_int_equal(f.device.order[0], 0);
    const json_t *one = entry(&f, choices, 0);
    assert_int_equal(id_of(json_object_get(one, "choice")), 2);
    assert_string_equal(why(one, 1), "an earlier run died of it");
    assert_int_equal(f.device.timed[1], 0);
    json_decref(choices);
    /* a file that is no such thing is as none */
    CHECKED(f.err, mlo_fs_write_atomic(path, "{\"choices\":3}", 13, &f.err));
    choices = NULL;
    struct mlo_tuning_request request = {.keep = path, .prepare_only = true};
    CHECKED(f.err, cuda_tune(&f.tuning, &request, &choices, &f.err));
    json_decref(choices);
    mlo_fs_remove_tree(folder);
    free(path);
    stop(&f);
}

static void test_choices__merge_and_share(void **state)
{
    (void)state;
    struct mlo_error err = {0};
    struct mlo_digest a, b;
    mlo_digest_of("a", 1, &a);
    mlo_digest_of("b", 1, &b);
    json_t *here = json_pack("{s:s}", "gpu", "x"), *there = json_pack("{s:s}", "gpu", "y");
    json_t *one = mlo_choices_new(here), *two = mlo_choices_new(here), *other = mlo_choices_new(there);
    assert_ok(mlo_choices_put(one, &a, json_pack("{s:{s:i}, s:[s]}", "choice", "id", 1, "nodes", "n"), &err));
    assert_ok(mlo_choices_put(two, &a, json_pack("{s:{s:i}}", "choice", "id", 2), &err));
    assert_ok(mlo_choices_put(two, &b, json_pack("{s:{s:i}}", "choice", "id", 3), &err));
    assert_ok(mlo_choices_merge(one, two, &err));
    assert_int_equal(id_of(json_object_get(mlo_choices_find(one, &a), "choice")),
                     1); /* what is there stays */
    assert_int_equal(id_of(json_object_get(mlo_choices_find(one, &b), "choice")), 3);
    assert_int_equal(mlo_choices_merge(one, other, &err), MLO_ESTALE);
    assert_non_null(strstr(err.message, "'gpu' differs"));
    json_t *shared = mlo_choices_shareable(one);
    assert_null(json_object_get(mlo_choices_find(shared, &a), "nodes"));
    assert_non_null(json_object_get(mlo_choices_find(one, &a), "nodes"));
    json_object_set_new(json_object_get(one, "steps"), "no digest", json_object());
    assert_int_equal(mlo_choices_check(one, "x", &err), MLO_EFORMAT);
    assert_int_equal(mlo_choices_check(here, "x", &err), MLO_EFORMAT);
    json_decref(shared);
    json_decref(one);
    json_decref(two);
    json_decref(other);
    json_decref(here);
    json_decref(there);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_floors__of_three_nets),
        cmocka_unit_test(test_peaks__follow_from_the_description),
        cmocka_unit_test(test_occupancy__by_the_scarcest),
        cmocka_unit_test(test_report__has_percent_of_the_floor),
        cmocka_unit_test(test_rotation__is_twice_the_cache),
        cmocka_unit_test(test_key__is_of_what_is_computed_alone),
        cmocka_unit_test(test_key__of_every_kind),
        cmocka_unit_test(test_ways__of_an_engine),
        cmocka_unit_test(test_median__has_an_interval),
        cmocka_unit_test(test_tune__fastest_is_chosen),
        cmocka_unit_test(test_tune__heuristics_stay_without_confidence),
        cmocka_unit_test(test_tune__bad_ways_are_dropped),
        cmocka_unit_test(test_tune__ways_that_do_not_compile),
        cmocka_unit_test(test_tune__the_device_is_gone),
        cmocka_unit_test(test_tune__equal_steps_once_and_heavy_ones_first),
        cmocka_unit_test(test_tune__prepare_needs_no_device),
        cmocka_unit_test(test_tune__stops_when_its_time_is_over),
        cmocka_unit_test(test_tune__goes_on_after_a_kill),
        cmocka_unit_test(test_choices__merge_and_share),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
