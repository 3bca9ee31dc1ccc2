/* Running calibration data through a model, for the steps that observe it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/steps/checkpoint.h"
#include "pipeline/steps/step_impl.h"

struct feed {
    const struct mlo_step_context *ctx;
    const struct mlo_model *model;
    struct mlo_dataset *dataset;
    int64_t first, at, end; /* samples */
    double from, to;        /* of the step's progress */
    struct mlo_checkpoint *checkpoint;
    const char *origin; /* of the statistics; NULL: nothing is kept */
    struct mlo_stats *stats;
    const struct mlo_stats_wants *wants;
};

static double done_of(const struct feed *f)
{
    return f->end > f->first ? (double)(f->at - f->first) / (double)(f->end - f->first) : 1;
}

/* Statistics of the samples before f->at, with where that is. */
static void keep(struct feed *f)
{
    struct mlo_buf origin = MLO_BUF_INIT;
    struct mlo_stats as = *f->stats;
    mlo_buf_printf(&origin, "%s before sample %lld", f->origin, (long long)f->at);
    as.origin = origin.data;
    bool ok = mlo_buf_ok(&origin) && mlo_stats_save(&as, f->checkpoint->fresh, NULL) == MLO_OK;
    mlo_checkpoint_written(f->checkpoint, done_of(f), ok);
    mlo_buf_clear(&origin);
}

/* Goes on where an earlier attempt was; false: there is nothing to go on with. */
static bool resume(struct feed *f)
{
    struct mlo_stats kept;
    long long at = 0;
    if (!f->checkpoint->path || mlo_stats_load(f->checkpoint->path, &kept, NULL) != MLO_OK)
        return false;
    size_t length = strlen(f->origin);
    bool ok = kept.origin && strncmp(kept.origin, f->origin, length) == 0 &&
              sscanf(kept.origin + length, " before sample %lld", &at) == 1 && at > f->first && at <= f->end;
    if (!ok) {
        mlo_stats_clear(&kept);
        return false;
    }
    mlo_stats_clear(f->stats);
    *f->stats = kept;
    free(f->stats->origin);
    f->stats->origin = NULL;
    f->at = at;
    f->checkpoint->fraction = done_of(f);
    return true;
}

/* Whether the range of an input is asked for: then it must have one. */
static bool is_observed(const struct mlo_stats_wants *wants, const char *name)
{
    for (size_t i = 0; i < wants->count; i++)
        if (wants->list[i].histogram && strcmp(wants->list[i].name, name) == 0)
            return true;
    return false;
}

/* Fills the engine's tensors; where fewer samples are left, the rest of the batch is not counted. */
static enum mlo_status next_batch(void *arg, int64_t batch, struct mlo_tensor *inputs, int64_t *got,
                                  struct mlo_error *err)
{
    enum mlo_status status;
    struct feed *f = arg;
    if (f->at > f->first && mlo_checkpoint_due(f->checkpoint, done_of(f)))
        keep(f);
    *got = MLO_MIN(batch, f->end - f->at);
    if (*got <= 0)
        return MLO_OK;
    int slots = f->model->graph->input_count;
    struct mlo_tensor *read = calloc((size_t)slots + 1, sizeof *read);
    if (!read)
        return mlo_error_nomem(err);
    MLO_TRY(mlo_dataset_read(f->dataset, f->model, f->at, *got, read, err));
    for (int i = 0, n = 0; i < slots; i++) {
        const struct mlo_value *input = f->model->graph->inputs[i];
        if (input->constant)
            continue;
        if (is_observed(f->wants, input->name))
            MLO_TRY(mlo_dataset_check_finite(f->dataset, f->model, input, &read[n], f->at, err));
        n++;
    }
    for (int i = 0; i < slots && read[i].data; i++) {
        if (read[i].size_bytes > inputs[i].size_bytes) {
            status = mlo_error_set(err, MLO_EINTERNAL, "input %d: %zu bytes read for a tensor of %zu", i,
                                   read[i].size_bytes, inputs[i].size_bytes);
            goto out;
        }
        memcpy(inputs[i].data, read[i].data, read[i].size_bytes);
    }
    f->at += *got;
    mlo_step_progress(f->ctx, f->from + (f->to - f->from) * done_of(f), "calibrating");
out:
    for (int i = 0; i < slots; i++)
        mlo_tensor_clear(&read[i]);
    free(read);
    return status;
}

enum mlo_status mlo_step_open_calibration(const struct mlo_step_context *ctx, const struct mlo_model *model,
                                          struct mlo_dataset **out, struct mlo_error *err)
{
    enum mlo_status status;
    MLO_TRY(
        mlo_step_open_dataset(ctx, ctx->calibrate_path, ctx->reading ? ctx->reading->limit : 0, out, err));
    MLO_TRY(mlo_dataset_check(*out, model, err));
    if (mlo_dataset_count(*out) == 0)
        status = mlo_error_set(err, MLO_EINVAL, "the calibration set is empty");
out:
    return status;
}

static enum mlo_status run_feed(struct feed *f, const struct mlo_stats_wants *wants, struct mlo_error *err)
{
    enum mlo_status status;
    const struct mlo_step_context *ctx = f->ctx;
    struct mlo_model *fitted = NULL;
    int64_t batch;
    f->wants = wants;
    MLO_TRY(mlo_model_fixed_batch(f->model, &batch, err));
    MLO_TRY(mlo_dataset_fit(f->dataset, f->model, &fitted, err));
    MLO_TRY(mlo_engine_observe_wants(fitted ? fitted : f->model, wants, batch ? batch : ctx->batch,
                                     ctx->threads, next_batch, f, f->stats, err));
out:
    mlo_model_free(fitted);
    return status;
}

enum mlo_status mlo_step_observe(const struct mlo_step_context *ctx, const struct mlo_model *model,
                                 struct mlo_dataset *dataset, const struct mlo_stats_wants *wants,
                                 int64_t samples, double from, double to, struct mlo_stats *stats,
                                 struct mlo_error *err)
{
    struct mlo_checkpoint none = {0};
    int64_t count = mlo_dataset_count(dataset);
    struct feed feed = {ctx,  model, dataset, 0,    0,    samples ? MLO_MIN(count, samples) : count,
                        from, to,    &none,   NULL, stats};
    return run_feed(&feed, wants, err);
}

enum mlo_status mlo_step_fed_digest(const struct mlo_model *model, struct mlo_dataset *dataset, bool labelled,
                                    struct mlo_digest *out, struct mlo_error *err)
{
    enum { AT_ONCE = 16 };
    enum mlo_status status = MLO_OK;
    int slots = model->graph->input_count;
    int64_t count = mlo_dataset_count(dataset);
    const int64_t *groups = mlo_dataset_groups(dataset);
    const char *post = mlo_dataset_postprocess(dataset);
    struct mlo_tensor target = {0}, *fed = calloc((size_t)slots + 1, sizeof *fed);
    struct mlo_hasher *hasher = mlo_hasher_new();
    if (!fed || !hasher) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (int64_t at = 0; at < count; at += AT_ONCE) {
        MLO_TRY(mlo_dataset_read(dataset, model, at, MLO_MIN(AT_ONCE, count - at), fed, err));
        for (int i = 0; i < slots; i++) {
            if (fed[i].data)
                mlo_hasher_update(hasher, fed[i].data, fed[i].size_bytes);
            mlo_tensor_clear(&fed[i]);
        }
    }
    if (labelled) {
        MLO_TRY(mlo_dataset_target(dataset, &target, err));
        if (target.data)
            mlo_hasher_update(hasher, target.data, target.size_bytes);
        if (groups)
            mlo_hasher_update(hasher, groups, (size_t)count * sizeof *groups);
        if (post) {
            MLO_TRY(mlo_digest_of_file(post, out, NULL, err));
            mlo_hasher_update(hasher, out, sizeof *out);
        }
    }
    mlo_hasher_final(hasher, out);
out:
    mlo_tensor_clear(&target);
    mlo_hasher_free(hasher);
    free(fed);
    return status;
}

/* Raised when the same samples give other statistics. */
enum { OBSERVED_REVISION = 2 };

/* All that the statistics follow from, but for the part of the samples. */
static enum mlo_status identify(const struct mlo_step_context *ctx, const struct mlo_model *fed,
                                struct mlo_dataset *dataset, const struct mlo_stats_wants *wants,
                                json_t **out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_digest digest;
    char model[MLO_DIGEST_TEXT_SIZE], data[MLO_DIGEST_TEXT_SIZE], key[MLO_GRAM_KEY];
    json_t *values = json_array();
    if (!values) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_digest_of_file(ctx->model_path, &digest, NULL, err));
    mlo_digest_text(&digest, model);
    MLO_TRY(mlo_step_fed_digest(fed, dataset, false, &digest, err));
    mlo_digest_text(&digest, data);
    for (size_t i = 0; i < wants->count; i++) {
        const struct mlo_stats_want *w = &wants->list[i];
        json_array_append_new(values, json_pack("[s,b,i,s,b]", w->name, (int)w->histogram, w->channel_axis,
                                                w->gram ? mlo_gram_key(w->gram, key) : "", (int)w->full));
    }
    *out = json_pack("{s:i,s:s,s:s,s:s,s:O}", "observed", OBSERVED_REVISION, "model", model, "data", data,
                     "numerics", MLO_NUMERICS_ID, "values", values);
    if (!*out || json_array_size(values) != wants->count)
        status = mlo_error_nomem(err);
out:
    json_decref(values);
    return status;
}

/* Merges what others observed; every sample must be there once. */
static enum mlo_status read_parts(const struct mlo_step_context *ctx, const char *origin, int64_t count,
                                  struct mlo_stats *stats, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    for (size_t i = 0; ctx->statistics[i]; i++) {
        struct mlo_stats part;
        MLO_TRY(mlo_stats_load(ctx->statistics[i], &part, err));
        if (!part.origin || strcmp(part.origin, origin) != 0) {
            status = mlo_error_set(
                err, MLO_EINVAL, "these statistics are of another model, of other data or for other options");
            mlo_error_hint(err,
                           "observe every shard with the model, data, recipe and options of this command");
        } else {
            status = mlo_stats_merge(stats, &part, err);
        }
        mlo_stats_clear(&part);
        if (status != MLO_OK) {
            mlo_error_prefix(err, "%s", ctx->statistics[i]);
            goto out;
        }
    }
    for (size_t i = 0; i < stats->count; i++)
        if (stats->tensors[i].samples != (uint64_t)count) {
            status = mlo_error_set(err, MLO_EINVAL, "the statistics are of %llu of %lld samples",
                                   (unsigned long long)stats->tensors[i].samples, (long long)count);
            mlo_error_hint(err, "give the files of all shards, 1/N to N/N");
            goto out;
        }
    mlo_stats_sort(stats);
out:
    return status;
}

static enum mlo_status check_parts(const struct mlo_step_context *ctx, const struct mlo_stats_wants *wants,
                                   int64_t count, struct mlo_error *err)
{
    for (size_t i = 0; i < wants->count; i++)
        if (wants->list[i].gram) {
            mlo_error_set(
                err, MLO_EUNSUPPORTED,
                "rounding by GPTQ or AdaRound and fast bias correction need matrices of inputs, which "
                "cannot be observed in shards");
            mlo_error_hint(err, "observe without shards: it is resumed where it was interrupted");
            return MLO_EUNSUPPORTED;
        }
    if (ctx->shards > count)
        return mlo_error_set(err, MLO_EINVAL, "%lld samples cannot be cut into %lld shards", (long long)count,
                             (long long)ctx->shards);
    return MLO_OK;
}

enum mlo_status mlo_step_calibrate(const struct mlo_step_context *ctx, const struct mlo_model *model,
                                   struct mlo_dataset *dataset, const struct mlo_stats_wants *wants,
                                   double from, double to, struct mlo_stats *stats, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_checkpoint checkpoint = {0};
    struct mlo_buf text = MLO_BUF_INIT;
    struct mlo_digest digest;
    char origin[MLO_DIGEST_TEXT_SIZE];
    json_t *identity = NULL;
    int64_t count = mlo_dataset_count(dataset), shards = MLO_MAX(ctx->shards, 1), shard = ctx->shard;
    struct feed feed = {.ctx = ctx,
                        .model = model,
                        .dataset = dataset,
                        .first = count / shards * shard + MLO_MIN(count % shards, shard),
                        .from = from,
                        .to = to,
                        .checkpoint = &checkpoint,
                        .origin = origin,
                        .stats = stats};
    feed.at = feed.first;
    feed.end = feed.first + count / shards + (shard < count % shards);
    if (!ctx->checkpoint_dir && !ctx->shards && !ctx->statistics)
        return run_feed(&feed, wants, err);
    if (ctx->shards || ctx->statistics)
        MLO_TRY(check_parts(ctx, wants, count, err));
    MLO_TRY(identify(ctx, model, dataset, wants, &identity, err));
    mlo_json_canonical(identity, &text);
    if (!mlo_buf_ok(&text) ||
        json_object_set_new(identity, "samples",
                            json_pack("[I,I]", (json_int_t)feed.first, (json_int_t)feed.end)) != 0) {
        status = mlo_error_nomem(err);
        goto out;
    }
    mlo_digest_of(mlo_buf_str(&text), text.len, &digest);
    mlo_digest_text(&digest, origin);
    if (ctx->statistics) {
        MLO_TRY(read_parts(ctx, origin, count, stats, err));
        goto out;
    }
    MLO_TRY(mlo_checkpoint_open(ctx, identity, &checkpoint, err));
    stats->first = (uint64_t)feed.first;
    if (resume(&feed))
        mlo_step_progress(ctx, from + (to - from) * done_of(&feed), "calibrating, where it was");
    MLO_TRY(run_feed(&feed, wants, err));
    stats->origin = strdup(origin);
    if (!stats->origin)
        status = mlo_error_nomem(err);
out:
    mlo_checkpoint_close(&checkpoint);
    mlo_buf_clear(&text);
    json_decref(identity);
    return status;
}

/* Whether a node has more rows in a sample than a Gemm: a Conv, unless its output is one position. */
static bool many_rows(const struct mlo_node *node)
{
    const struct mlo_type *y = &node->outputs[0]->type;
    bool many = y->rank < 3;
    for (int i = 2; i < y->rank; i++)
        many = many || y->dims[i].value != 1;
    return mlo_node_is(node, "Conv") && many;
}

enum mlo_status mlo_step_observe_grams(const struct mlo_step_context *ctx, const struct mlo_model *model,
                                       struct mlo_dataset *dataset, const struct mlo_stats_wants *wants,
                                       double from, double to, struct mlo_stats *stats, struct mlo_error *err)
{
    enum { CONV_SAMPLES = 96 };
    enum mlo_status status = MLO_OK;
    int64_t samples = mlo_json_i64(ctx->options, "samples", 512);
    double middle = from + (to - from) * 3 / 7;
    for (int conv = 0; conv < 2; conv++) {
        struct mlo_stats_wants some = {0};
        for (size_t i = 0; i < wants->count && status == MLO_OK; i++)
            if (many_rows(wants->list[i].gram) == (conv == 1))
                status = mlo_stats_wants_add(&some, &wants->list[i]) ? MLO_OK : mlo_error_nomem(err);
        if (status == MLO_OK && some.count > 0)
            status =
                mlo_step_observe(ctx, model, dataset, &some, conv ? MLO_MIN(samples, CONV_SAMPLES) : samples,
                                 conv ? middle : from, conv ? to : middle, stats, err);
        mlo_stats_wants_clear(&some);
        if (status != MLO_OK)
            return status;
    }
    return status;
}

enum mlo_status mlo_step_run_observed(const struct mlo_step_context *ctx, const char *pass,
                                      mlo_step_wanted_fn *wanted, const char *message,
                                      struct mlo_step_result *out, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_model *model = NULL;
    struct mlo_dataset *dataset = NULL;
    struct mlo_stats_wants wants = {0};
    struct mlo_stats stats;
    struct mlo_pass_request request = {pass, ctx->options};
    struct mlo_step_context whole = *ctx; /* shards are of another step's statistics */
    whole.shards = whole.shard = 0;
    whole.statistics = NULL;
    mlo_stats_init(&stats);
    MLO_TRY(mlo_step_load(ctx->model_path, &model, err));
    MLO_TRY(wanted(model, ctx->options, &wants, err));
    MLO_TRY(mlo_step_open_calibration(ctx, model, &dataset, err));
    if (wants.count > 0)
        MLO_TRY(mlo_step_calibrate(&whole, model, dataset, &wants, 0.05, 0.6, &stats, err));
    mlo_step_progress(ctx, 0.6, message);
    MLO_TRY(mlo_step_run_passes(ctx, model, &request, 1, &stats, out, err));
out:
    mlo_dataset_close(dataset);
    mlo_stats_wants_clear(&wants);
    mlo_stats_clear(&stats);
    mlo_model_free(model);
    return status;
}
