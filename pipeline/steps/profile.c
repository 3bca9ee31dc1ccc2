/* Where a variant's time goes: which node runs how in the plan that was measured, and how long each takes. It
 * is kept as the samples of a measurement, since it belongs to a machine like one. */
#include <stdio.h>
#include <stdlib.h>

#include "pipeline/steps/step_impl.h"

/* More nodes are not kept: the fastest go first. */
enum { NODES_MAX = 1000 };

static int slowest_first(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* Bounds the list; what stays keeps its order. Adds {"left_out","left_out_us"} where something went. */
static enum mlo_status bound_nodes(json_t *profile, struct mlo_error *err)
{
    json_t *nodes = json_object_get(profile, "nodes");
    size_t count = json_array_size(nodes), i;
    double *times, gone_us = 0;
    if (count <= NODES_MAX)
        return MLO_OK;
    times = malloc(count * sizeof *times);
    if (!times)
        return mlo_error_nomem(err);
    for (i = 0; i < count; i++)
        times[i] = mlo_json_f64(json_array_get(nodes, i), "us", 0);
    qsort(times, count, sizeof *times, slowest_first);
    double least = times[NODES_MAX - 1];
    free(times);
    for (i = count; i-- > 0 && json_array_size(nodes) > NODES_MAX;) {
        double us = mlo_json_f64(json_array_get(nodes, i), "us", 0);
        if (us > least)
            continue;
        gone_us += us;
        json_array_remove(nodes, i);
    }
    if (json_object_set_new(profile, "left_out",
                            json_integer((json_int_t)(count - json_array_size(nodes)))) ||
        json_object_set_new(profile, "left_out_us", json_real(gone_us)))
        return mlo_error_nomem(err);
    return MLO_OK;
}

static enum mlo_status save(const struct mlo_step_context *ctx, json_t *profile, int64_t batch, char **path,
                            struct mlo_error *err)
{
    char file[64];
    struct mlo_buf text = MLO_BUF_INIT;
    enum mlo_status status;
    snprintf(file, sizeof file, "profile-batch%lld.json", (long long)batch);
    if (!(*path = mlo_fs_join(ctx->out_dir, file, NULL)) ||
        json_object_set_new(profile, "format", json_string("mlopt-profile-1")) ||
        json_object_set_new(profile, "calls", json_integer(MLO_PROFILE_CALLS)))
        return mlo_error_nomem(err);
    MLO_TRY(bound_nodes(profile, err));
    mlo_json_canonical(profile, &text);
    status = mlo_buf_ok(&text) ? mlo_fs_write_atomic(*path, mlo_buf_str(&text), text.len, err)
                               : mlo_error_nomem(err);
out:
    mlo_buf_clear(&text);
    return status;
}

enum mlo_status mlo_step_observe_profile(const struct mlo_step_context *ctx,
                                         const struct mlo_bench_options *bench, json_t *params,
                                         json_t *observations, struct mlo_error *err)
{
    struct mlo_bench_options options = *bench;
    struct mlo_error unable = {0};
    json_t *profile = NULL, *o = NULL;
    char *path = NULL;
    enum mlo_status status;
    options.no_roof = true;
    if (options.threads_b) /* the first side was the source */
        options.threads = options.threads_b;
    status = mlo_profile(ctx->model_path, &options, &profile, &unable);
    if (status == MLO_EUNSUPPORTED) /* the engine does not tell */
        return MLO_OK;
    if (status != MLO_OK) {
        if (err)
            *err = unable;
        return status;
    }
    double total = mlo_json_f64(profile, "total_us", 0);
    const struct mlo_estimate sum = {total, total, total, MLO_PROFILE_CALLS};
    MLO_TRY(save(ctx, profile, bench->batch, &path, err));
    o = mlo_step_observation("variant", "profile.total", params, "us", &sum, MLO_BENCH_PROTOCOL,
                             bench->engine);
    if (!o || json_object_set_new(o, "samples", json_string(path)) || json_array_append(observations, o))
        status = mlo_error_nomem(err);
out:
    json_decref(o);
    json_decref(profile);
    free(path);
    return status;
}
