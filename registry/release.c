/* Releases: what a stage can hold. And resolving: what a consumer gets of one. */
#include "registry/release_impl.h"

#include <stdlib.h>
#include <string.h>

#include "registry/sql_impl.h"
#include "registry/target.h"

enum { RELEASE_LOCK, RELEASE_FIND, RELEASE_ADD, RELEASE_VARIANT, RELEASE_RESOLVE };

enum { CHOICES_MAX = 64 };

const struct mlo_sql mlo_sql_release[] = {
    [RELEASE_LOCK] = {"release_lock", "SELECT id FROM model WHERE id = $1 FOR NO KEY UPDATE", 1},
    [RELEASE_FIND] = {"release_find", "SELECT id, seq FROM release WHERE model_id = $1 AND content = $2", 2},
    [RELEASE_ADD] = {"release_add",
                     "WITH n AS (UPDATE model SET next_release = next_release + 1 WHERE id = $1 RETURNING "
                     "next_release - 1 "
                     "AS seq) INSERT INTO release (model_id, seq, version_id, content, created_by) "
                     "SELECT $1, n.seq, $2, $3, $4 FROM n RETURNING id, seq",
                     4},
    [RELEASE_VARIANT] = {"release_variant",
                         "INSERT INTO release_variant (release_id, target, variant, artifact, size) "
                         "VALUES ($1, $2, $3, $4, $5)",
                         5},
    [RELEASE_RESOLVE] =
        {"release_resolve",
         "SELECT r.seq, v.number, rv.target, rv.variant, rv.artifact, rv.size, s.generation FROM stage s "
         "JOIN release r ON r.id = s.release_id JOIN version v ON v.id = r.version_id "
         "JOIN release_variant rv ON rv.release_id = r.id WHERE s.model_id = $1 AND s.name = $2 "
         "ORDER BY rv.target",
         2},
};
const size_t mlo_sql_release_count = MLO_COUNT(mlo_sql_release);

static int by_target(const void *a, const void *b)
{
    return strcmp(((const struct mlo_release_item *)a)->target, ((const struct mlo_release_item *)b)->target);
}

/* Finds the variants, sorted by target; *out is the caller's (free). */
static enum mlo_status choose(struct mlo_db_conn *conn, int64_t version_id,
                              const struct mlo_release_choice *choices, size_t count,
                              struct mlo_release_item **out, struct mlo_error *err)
{
    if (count == 0 || count > CHOICES_MAX)
        return mlo_error_set(err, MLO_EINVAL, "a release has 1 to %d variants, one per target", CHOICES_MAX);
    struct mlo_release_item *all = calloc(count, sizeof *all);
    if (!all)
        return mlo_error_nomem(err);
    enum mlo_status status = MLO_OK;
    for (size_t i = 0; i < count; i++)
        MLO_TRY(mlo_variant_ahead(conn, version_id, choices[i].variant ? choices[i].variant : "", err));
    for (size_t i = 0; i < count; i++) {
        all[i].target = choices[i].target && *choices[i].target ? choices[i].target : "any";
        if (!mlo_target_valid(all[i].target)) {
            status = mlo_error_set(err, MLO_EINVAL, "'%.60s' is no target", all[i].target);
            mlo_error_hint(err, "targets are any, cpu:avx2, cpu:avx512-vnni, cuda:sm90 and the like");
            goto out;
        }
        MLO_TRY(mlo_variant_find(conn, version_id, choices[i].variant ? choices[i].variant : "",
                                 &all[i].variant, err));
    }
    qsort(all, count, sizeof *all, by_target);
    for (size_t i = 1; i < count; i++) {
        if (strcmp(all[i - 1].target, all[i].target) == 0) {
            status = mlo_error_set(err, MLO_EINVAL, "two variants for the target %s: %s and %s",
                                   all[i].target, all[i - 1].variant.name, all[i].variant.name);
            goto out;
        }
    }
out:
    if (status == MLO_OK)
        *out = all;
    else
        free(all);
    return status;
}

/* What makes a release itself: its number is not part of it. */
static enum mlo_status describe(int64_t version, struct mlo_release_content *c, struct mlo_error *err)
{
    char text[MLO_DIGEST_TEXT_SIZE];
    json_t *variants = json_array();
    for (size_t i = 0; i < c->count; i++)
        json_array_append_new(variants, json_pack("{s:s, s:s, s:s}", "target", c->items[i].target, "variant",
                                                  c->items[i].variant.name, "artifact",
                                                  mlo_digest_text(&c->items[i].variant.artifact, text)));
    c->json = json_pack("{s:I, s:o}", "version", (json_int_t)version, "variants", variants);
    return c->json ? mlo_json_digest(c->json, &c->digest, err) : mlo_error_nomem(err);
}

enum mlo_status mlo_release_content(struct mlo_db_conn *conn, const struct mlo_version_info *version,
                                    const struct mlo_release_choice *choices, size_t count,
                                    struct mlo_release_content *out, struct mlo_error *err)
{
    memset(out, 0, sizeof *out);
    enum mlo_status status = choose(conn, version->id, choices, count, &out->items, err);
    if (status != MLO_OK)
        return status;
    out->count = count;
    status = describe(version->number, out, err);
    if (status != MLO_OK)
        mlo_release_content_clear(out);
    return status;
}

void mlo_release_content_clear(struct mlo_release_content *content)
{
    free(content->items);
    json_decref(content->json);
    memset(content, 0, sizeof *content);
}

static enum mlo_status insert(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                              const struct mlo_version_info *version,
                              const struct mlo_release_content *content, struct mlo_release *out,
                              struct mlo_error *err)
{
    struct mlo_params add = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    enum mlo_status status;
    mlo_param_i64(&add, version->model_id);
    mlo_param_i64(&add, version->id);
    mlo_param_digest(&add, &content->digest);
    mlo_param_text(&add, actor->name);
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_release[RELEASE_ADD], &add, &rows, err));
    out->id = mlo_rows_i64(&rows, 0, 0);
    out->seq = mlo_rows_i64(&rows, 0, 1);
    for (size_t i = 0; i < content->count; i++) {
        const struct mlo_release_item *item = &content->items[i];
        struct mlo_params p = MLO_PARAMS_INIT;
        mlo_param_i64(&p, out->id);
        mlo_param_text(&p, item->target);
        mlo_param_text(&p, item->variant.name);
        mlo_param_digest(&p, &item->variant.artifact);
        mlo_param_i64(&p, (int64_t)item->variant.size_bytes);
        MLO_TRY(mlo_db_queue(conn, &mlo_sql_release[RELEASE_VARIANT], &p, NULL, err));
    }
out:
    mlo_rows_clear(&rows);
    return status;
}

enum mlo_status mlo_release_ahead(struct mlo_db_conn *conn, const struct mlo_version_info *version,
                                  const struct mlo_release_content *content, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, version->model_id);
    mlo_param_digest(&p, &content->digest);
    return mlo_db_ahead(conn, &mlo_sql_release[RELEASE_FIND], &p, err);
}

enum mlo_status mlo_release_ensure(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                   const struct mlo_version_info *version,
                                   const struct mlo_release_content *content, struct mlo_release *out,
                                   struct mlo_error *err)
{
    struct mlo_params lock = MLO_PARAMS_INIT, find = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    enum mlo_status status;
    mlo_param_i64(&lock, version->model_id);
    mlo_param_i64(&find, version->model_id);
    mlo_param_digest(&find, &content->digest);
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_release[RELEASE_FIND], &find, &rows, err));
    if (mlo_rows_count(&rows) == 0) {
        /* releases never go away: only a new one needs the lock, and a second look, also at what was read
         * ahead with the first */
        mlo_db_ahead_clear(conn);
        MLO_TRY(mlo_db_queue(conn, &mlo_sql_release[RELEASE_LOCK], &lock, NULL, err));
        MLO_TRY(mlo_db_exec(conn, &mlo_sql_release[RELEASE_FIND], &find, &rows, err));
    }
    if (mlo_rows_count(&rows) > 0) {
        out->id = mlo_rows_i64(&rows, 0, 0);
        out->seq = mlo_rows_i64(&rows, 0, 1);
        goto out;
    }
    MLO_TRY(insert(conn, actor, version, content, out, err));
out:
    mlo_rows_clear(&rows);
    return status;
}

enum mlo_status mlo_stage_resolve(struct mlo_db_conn *conn, int64_t model_id, const char *stage,
                                  const char *consumer, struct mlo_resolution *out, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    int best = -1;
    memset(out, 0, sizeof *out);
    if (!mlo_stage_valid(stage))
        return mlo_error_set(err, MLO_ENOTFOUND, "there is no stage '%.40s': staging and production are",
                             stage);
    mlo_param_i64(&p, model_id);
    mlo_param_text(&p, stage);
    enum mlo_status status = mlo_db_exec(conn, &mlo_sql_release[RELEASE_RESOLVE], &p, &rows, err);
    for (int r = 0; status == MLO_OK && r < mlo_rows_count(&rows); r++) {
        const char *target = mlo_rows_text(&rows, r, 2);
        if (mlo_target_satisfies(consumer, target) &&
            (best < 0 || mlo_target_rank(target) > mlo_target_rank(mlo_rows_text(&rows, best, 2))))
            best = r;
    }
    if (status == MLO_OK && mlo_rows_count(&rows) == 0)
        status = mlo_error_set(err, MLO_ENOTFOUND, "%s is empty: nothing was promoted to it", stage);
    else if (status == MLO_OK && best < 0) {
        status = mlo_error_set(err, MLO_ENOTFOUND, "the release in %s has no variant for %.100s", stage,
                               consumer ? consumer : "any");
        mlo_error_hint(err, "promote a release that has a variant for the target any");
    }
    if (status == MLO_OK) {
        out->release = mlo_rows_i64(&rows, best, 0);
        out->version = mlo_rows_i64(&rows, best, 1);
        snprintf(out->target, sizeof out->target, "%s", mlo_rows_text(&rows, best, 2));
        snprintf(out->variant, sizeof out->variant, "%s", mlo_rows_text(&rows, best, 3));
        out->size_bytes = (uint64_t)mlo_rows_i64(&rows, best, 5);
        out->generation = mlo_rows_i64(&rows, best, 6);
        if (!mlo_rows_digest(&rows, best, 4, &out->artifact))
            status =
                mlo_error_set(err, MLO_EINTERNAL, "release %lld has no artifact", (long long)out->release);
    }
    mlo_rows_clear(&rows);
    return status;
}
