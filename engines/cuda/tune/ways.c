/* The ways to compute a step, as documents; which there are is up to the libraries. */
#include <stdio.h>

#include "engines/cuda/tune/tune.h"

int cuda_ways_find(const json_t *ways, const json_t *way)
{
    for (size_t i = 0; i < json_array_size(ways); i++)
        if (json_equal(json_array_get(ways, i), (json_t *)way))
            return (int)i;
    return -1;
}

bool cuda_ways_add(json_t *ways, json_t *way)
{
    if (way && cuda_ways_find(ways, way) >= 0) {
        json_decref(way);
        return true;
    }
    return json_array_append_new(ways, way) == 0;
}

/* Values that a knob can have. */
static int64_t values_of(const struct cuda_knob *knob)
{
    return knob->stride > 0 && knob->max > knob->min ? (knob->max - knob->min) / knob->stride + 1 : 1;
}

/* `at[i]`: which value of the knob; negative: as the engine likes. */
static bool add(json_t *ways, int64_t engine, const struct cuda_knob *knobs, int count, const int64_t *at)
{
    json_t *set = json_object();
    for (int i = 0; set && i < count; i++) {
        char type[24];
        snprintf(type, sizeof type, "%lld", (long long)knobs[i].type);
        if (at[i] >= 0)
            json_object_set_new(set, type, json_integer(knobs[i].min + at[i] * knobs[i].stride));
    }
    return cuda_ways_add(
        ways, json_pack("{s:s, s:I, s:o}", "library", "cudnn", "engine", (json_int_t)engine, "knobs", set));
}

enum mlo_status cuda_ways_engine(json_t *ways, int64_t engine, const struct cuda_knob *knobs, int count,
                                 int limit, struct mlo_error *err)
{
    int64_t at[CUDA_KNOBS_MAX] = {0};
    size_t before = json_array_size(ways), most = before + (size_t)MLO_MAX(limit, 1);
    bool ok = true;
    double all = 1;
    count = MLO_MIN(count, (int)CUDA_KNOBS_MAX);
    for (int i = 0; i < count; i++) {
        at[i] = -1;
        all *= (double)values_of(&knobs[i]);
    }
    ok = add(ways, engine, knobs, count, at);
    for (int i = 0; i < count; i++) { /* each by itself: the ends of its range, and what lies between */
        for (at[i] = 0; ok && at[i] < values_of(&knobs[i]) && json_array_size(ways) < most; at[i]++)
            ok = add(ways, engine, knobs, count, at);
        at[i] = -1;
    }
    /* All of them when they are few, else by steps that share no factor with the ranges: from everywhere. */
    double room = (double)most - (double)json_array_size(ways),
           step = all > room && room > 0 ? all / room : 1;
    for (double next = 0; ok && next < all && count > 1 && json_array_size(ways) < most; next += step) {
        double rest = (double)(int64_t)next;
        for (int i = 0; i < count; i++) {
            double n = (double)values_of(&knobs[i]), whole = (double)(int64_t)(rest / n);
            at[i] = (int64_t)(rest - whole * n);
            rest = whole;
        }
        ok = add(ways, engine, knobs, count, at);
    }
    return ok ? MLO_OK : mlo_error_nomem(err);
}
