/* Summaries of evidence, runs, audit checks, moves: see views.h. */
#include "api/http/views.h"

#include <math.h>
#include <string.h>

#include "api/html/load.h"
#include "api/http/handlers_impl.h"

/* Metrics that say how right a model is, the one shown first first. */
static const char *const ACCURACY_METRICS[] = {"top1", "top5", "cosine", "mse"};

static json_t *interval(const json_t *evidence, const char *value, const char *low, const char *high)
{
    const json_t *v = json_object_get(evidence, value);
    if (!json_is_number(v))
        return json_null();
    json_t *l = json_object_get(evidence, low), *h = json_object_get(evidence, high);
    return json_pack("{s:O, s:O, s:O}", "value", v, "low", l ? l : json_null(), "high", h ? h : json_null());
}

/* The number of the outputs as they are goes before one of what a postprocessing model makes of them, and a
 * newer one before an older. */
static bool goes_before(const json_t *a, const json_t *b)
{
    bool plain_a = !json_object_get(json_object_get(a, "params"), "postprocess"),
         plain_b = !json_object_get(json_object_get(b, "params"), "postprocess");
    return plain_a != plain_b ? plain_a : mlo_json_i64(a, "id", 0) > mlo_json_i64(b, "id", 0);
}

static json_t *accuracy_of(const json_t *evidence)
{
    for (size_t m = 0; m < MLO_COUNT(ACCURACY_METRICS); m++) {
        const json_t *best = NULL;
        json_t *item;
        size_t i;
        json_array_foreach((json_t *)evidence, i,
                           item) if (strcmp(mlo_json_str(item, "metric", ""), ACCURACY_METRICS[m]) == 0 &&
                                     (!best || goes_before(item, best))) best = item;
        if (!best)
            continue;
        json_t *out = interval(best, "value", "low", "high");
        json_object_set_new(out, "metric", json_string(ACCURACY_METRICS[m]));
        json_object_set(out, "n", json_object_get(best, "n"));
        json_object_set(out, "dataset", json_object_get(best, "dataset_name"));
        if (strcmp(mlo_json_str(best, "comparison", ""), "difference") == 0)
            json_object_set_new(out, "difference",
                                interval(best, "comparison_value", "comparison_low", "comparison_high"));
        return out;
    }
    return json_null();
}

/* The row of the load of this evidence, made when it is not there; rows go by batch. */
static json_t *latency_row(json_t *rows, const json_t *evidence)
{
    const json_t *params = json_object_get(evidence, "params");
    size_t i;
    json_t *load = json_pack("{s:I, s:I, s:s, s:n, s:n, s:n}", "batch",
                             (json_int_t)mlo_json_i64(params, "batch", 1), "threads",
                             (json_int_t)mlo_json_i64(params, "threads", 1), "machine_class",
                             mlo_json_str(evidence, "machine_class", ""), "p50_us", "p99_us", "ratio"),
           *row = mlo_load_row(rows, load);
    if (row) {
        json_decref(load);
        return row;
    }
    for (i = 0; i < json_array_size(rows); i++)
        if (mlo_json_i64(json_array_get(rows, i), "batch", 0) > mlo_json_i64(load, "batch", 0))
            break;
    json_array_insert_new(rows, i, load);
    return load;
}

/* Fills a member from evidence unless newer evidence did. */
static void fill(json_t *row, const char *key, const json_t *evidence, json_t *value)
{
    char newest_key[40];
    snprintf(newest_key, sizeof newest_key, ".%s", key);
    int64_t id = mlo_json_i64(evidence, "id", 0);
    if (id < mlo_json_i64(row, newest_key, -1)) {
        json_decref(value);
        return;
    }
    json_object_set_new(row, newest_key, json_integer(id));
    json_object_set_new(row, key, value);
}

static json_t *latency_of(const json_t *evidence)
{
    json_t *rows = json_array(), *item, *row;
    size_t i;
    json_array_foreach((json_t *)evidence, i, item)
    {
        const char *metric = mlo_json_str(item, "metric", "");
        bool p50 = strcmp(metric, "latency.p50") == 0;
        if (!p50 && strcmp(metric, "latency.p99") != 0)
            continue;
        row = latency_row(rows, item);
        fill(row, p50 ? "p50_us" : "p99_us", item, interval(item, "value", "low", "high"));
        if (p50 && strcmp(mlo_json_str(item, "comparison", ""), "ratio") == 0)
            fill(row, "ratio", item, interval(item, "comparison_value", "comparison_low", "comparison_high"));
    }
    json_array_foreach(rows, i, row)
    {
        json_object_del(row, ".p50_us");
        json_object_del(row, ".p99_us");
        json_object_del(row, ".ratio");
    }
    return rows;
}

static void sum_up(json_t *variant)
{
    const json_t *evidence = json_object_get(variant, "evidence");
    json_object_set_new(variant, "accuracy", accuracy_of(evidence));
    json_object_set_new(variant, "latency", latency_of(evidence));
}

enum mlo_status mlo_view_measured(struct mlo_db_conn *conn, int64_t project_id, json_t *const *variants,
                                  size_t count, struct mlo_error *err)
{
    enum mlo_status status = mlo_variant_measured(conn, project_id, variants, count, err);
    for (size_t i = 0; status == MLO_OK && i < count; i++)
        sum_up(variants[i]);
    return status;
}

enum mlo_status mlo_view_variants(struct mlo_db_conn *conn, int64_t version_id, json_t **out,
                                  struct mlo_error *err)
{
    enum mlo_status status = mlo_variant_list(conn, version_id, out, err);
    double source_size = 0;
    json_t *item;
    size_t i;
    if (status != MLO_OK)
        return status;
    json_array_foreach(*out, i, item)
    {
        double size = (double)mlo_json_i64(item, "size", 0);
        if (i == 0)
            source_size = size;
        json_object_set_new(item, "size_ratio",
                            source_size > 0 ? json_real(size / source_size) : json_null());
        sum_up(item);
    }
    return MLO_OK;
}

/* --- runs -------------------------------------------------------------------------------------- */

static void times_end_in_at(json_t *object)
{
    static const char *const names[][2] = {{"created", "created_at"},
                                           {"started", "started_at"},
                                           {"finished", "finished_at"},
                                           {"ended", "ended_at"}};
    for (size_t i = 0; i < MLO_COUNT(names); i++)
        mlo_json_rename(object, names[i][0], names[i][1]);
}

enum mlo_status mlo_view_run(struct mlo_db_conn *conn, int64_t project, int64_t run, json_t **out,
                             struct mlo_error *err)
{
    json_t *job, *attempt;
    size_t i, j;
    enum mlo_status status = mlo_run_get(conn, project, run, out, err);
    if (status != MLO_OK)
        return status;
    times_end_in_at(*out);
    json_array_foreach(json_object_get(*out, "jobs"), i, job)
    {
        times_end_in_at(job);
        json_array_foreach(json_object_get(job, "attempts"), j, attempt) times_end_in_at(attempt);
    }
    return MLO_OK;
}

enum mlo_status mlo_view_runs(struct mlo_db_conn *conn, const struct mlo_run_filter *filter, json_t **out,
                              struct mlo_error *err)
{
    json_t *item;
    size_t i;
    enum mlo_status status = mlo_run_list(conn, filter, out, err);
    if (status != MLO_OK)
        return status;
    json_array_foreach(json_object_get(*out, "items"), i, item) times_end_in_at(item);
    return MLO_OK;
}

/* --- audit ------------------------------------------------------------------------------------- */

enum mlo_status mlo_view_audit_verify(struct mlo_db_conn *conn, int64_t project,
                                      const struct mlo_audit_head *remembered, json_t **out,
                                      struct mlo_error *err)
{
    struct mlo_audit_result result = {0};
    struct mlo_ledger_result ledger = {.intact = true};
    char text[MLO_DIGEST_TEXT_SIZE], id[MLO_GIT_ID_TEXT_SIZE] = "", problem[512] = "";
    enum mlo_status status = mlo_audit_verify(conn, project, remembered, &result, err);
    if (status == MLO_OK && project)
        status = mlo_ledger_verify(conn, project, &ledger, err);
    if (status != MLO_OK)
        return status;
    if (ledger.head.n)
        mlo_git_id_text(&ledger.head.id, id);
    if (!result.intact)
        snprintf(problem, sizeof problem, "%s", result.problem);
    else if (!ledger.intact)
        snprintf(problem, sizeof problem, "the ledger, at commit %lld: %s", (long long)ledger.bad_commit,
                 ledger.problem);
    json_t *commits =
        json_pack("{s:b, s:I, s:s, s:o, s:s?}", "ok", ledger.intact, "commits", (json_int_t)ledger.commits,
                  "head", id, "bad_commit", ledger.bad_commit ? json_integer(ledger.bad_commit) : json_null(),
                  "problem", ledger.intact ? NULL : ledger.problem);
    *out = json_pack("{s:b, s:I, s:I, s:s, s:o, s:s?, s:o}", "ok", result.intact && ledger.intact, "entries",
                     (json_int_t)result.entries, "head_seq", (json_int_t)result.head.seq, "head",
                     mlo_digest_text(&result.head.hash, text), "bad_seq",
                     result.intact ? json_null() : json_integer(result.bad_seq), "problem",
                     *problem ? problem : NULL, "ledger", commits);
    return *out ? MLO_OK : mlo_error_nomem(err);
}

/* --- moves ------------------------------------------------------------------------------------- */

/* A promotion in a transaction of its own, so that a refusal stays recorded. */
static enum mlo_status promote(struct mlo_request *req, const struct mlo_actor *actor,
                               const struct mlo_promotion *promotion, json_t **out, struct mlo_error *err)
{
    struct mlo_move made;
    enum mlo_status status = mlo_stage_promote(req->conn, actor, promotion, &made, err);
    return status == MLO_OK ? mlo_stage_move_get(req->conn, made.id, out, err) : status;
}

/* A move that is undone again. What gates refuse is an answer too: {stage, kind, generation}. */
static enum mlo_status try_out(struct mlo_request *req, const struct mlo_actor *actor,
                               const struct mlo_move_request *move, const struct mlo_promotion *promotion,
                               json_t **out, struct mlo_error *err)
{
    struct mlo_move made;
    enum mlo_status status = mlo_db_begin(req->conn, err);
    if (status != MLO_OK)
        return status;
    status = move->rollback ? mlo_stage_rollback(req->conn, actor, &move->back, &made, err)
                            : mlo_stage_promote(req->conn, actor, promotion, &made, err);
    if (status == MLO_OK)
        status = mlo_stage_move_get(req->conn, made.id, out, err);
    enum mlo_status outcome = status;
    if (promotion->decision && *promotion->decision) { /* it is kept nowhere: these will be another's */
        json_object_del(*promotion->decision, "id");
        json_object_del(*promotion->decision, "audit_seq");
    }
    status =
        mlo_db_end(req->conn, status == MLO_OK ? MLO_ECANCELLED : status, err); /* that is: roll it back */
    if (outcome == MLO_EGATE) {
        *out = json_pack("{s:s, s:s, s:n}", "stage", promotion->stage, "kind", "promotion", "generation");
        return *out ? MLO_OK : mlo_error_nomem(err);
    }
    return outcome == MLO_OK && status == MLO_ECANCELLED ? MLO_OK : status;
}

enum mlo_status mlo_view_move(struct mlo_request *req, const struct mlo_move_request *move, json_t **out,
                              struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    const char *reason = move->rollback ? move->back.reason : move->promotion.reason;
    struct mlo_promotion promotion = move->promotion;
    struct mlo_move made;
    json_t *decision = NULL;
    *out = NULL;
    promotion.decision = &decision;
    enum mlo_status status = mlo_actor_reason(reason, move->rollback ? "a rollback" : "a promotion", err);
    if (status != MLO_OK) {
        mlo_error_hint(err, "say in a sentence why: it is kept in the promotion log");
        return status;
    }
    if (move->dry_run) {
        status = try_out(req, &actor, move, &promotion, out, err);
    } else if (move->rollback) {
        status = mlo_stage_rollback(req->conn, &actor, &move->back, &made, err);
        if (status == MLO_OK)
            status = mlo_stage_move_get(req->conn, made.id, out, err);
    } else {
        status = promote(req, &actor, &promotion, out, err);
    }
    if (status == MLO_OK && !move->dry_run)
        mlo_ledger_kick(mlo_http_options(req->http)->ledger);
    if (status == MLO_OK && decision && json_object_set(*out, "decision", decision) != 0)
        status = mlo_error_nomem(err);
    if (status == MLO_EGATE && decision)
        mlo_reply_member(req, "decision", json_incref(decision));
    json_decref(decision);
    if (status != MLO_OK) {
        json_decref(*out);
        *out = NULL;
    }
    return status;
}
