#include "registry/gc.h"

#include <string.h>

#include "registry/sql_impl.h"

enum { GC_PURGE, GC_COLLECT, GC_GOING, GC_GONE, GC_LOCK };
enum { PURGE_BATCH = 100, COLLECT_BATCH = 64, REMOVE_BATCH = 16, ITEMS_MAX = 1000 };

const struct mlo_sql mlo_sql_gc[] = {
    [GC_PURGE] = {"gc_purge", "SELECT which, project, what, seq FROM deletion_purge($1)", 1},
    [GC_COLLECT] = {"gc_collect",
                    "SELECT collected, bytes FROM blob_collect($1, make_interval(secs => $2), $3)", 3},
    [GC_GOING] = {"gc_going", "SELECT going, bytes FROM blob_going($1, $2)", 2},
    [GC_GONE] = {"gc_gone", "SELECT blob_gone($1)", 1},
    [GC_LOCK] = {"gc_lock", "SELECT pg_try_advisory_xact_lock(" MLO_BLOB_HOLD_KEY ")", 0},
};
const size_t mlo_sql_gc_count = MLO_COUNT(mlo_sql_gc);

struct gc {
    struct mlo_db_conn *conn;
    const struct mlo_actor *actor;
    const struct mlo_gc_options *o;
    struct mlo_gc_result *out;
    json_t *items;
    uint64_t ends_ns; /* 0: never */
};

static bool time_over(struct gc *gc)
{
    if (gc->ends_ns && mlo_clock_ns() >= gc->ends_ns)
        gc->out->more = true;
    return gc->out->more;
}

enum mlo_status mlo_bytes_lock(struct mlo_db_conn *conn, bool *got, struct mlo_error *err)
{
    struct mlo_rows rows = {0};
    enum mlo_status status = mlo_db_exec(conn, &mlo_sql_gc[GC_LOCK], NULL, &rows, err);
    *got = status == MLO_OK && mlo_rows_bool(&rows, 0, 0);
    mlo_rows_clear(&rows);
    return status;
}

/* --- 1: deletions ------------------------------------------------------------------------------------ */

static enum mlo_status audit_purge(struct gc *gc, const struct mlo_rows *rows, int row, struct mlo_error *err)
{
    json_t *after = json_pack("{s:I, s:I}", "deletion", (json_int_t)mlo_rows_i64(rows, row, 0), "audit_seq",
                              (json_int_t)mlo_rows_i64(rows, row, 3));
    struct mlo_audit_event event = {
        .action = "deletion.purge", .object = mlo_rows_text(rows, row, 2), .after = after};
    enum mlo_status status =
        after ? mlo_audit_append(gc->conn, mlo_rows_i64(rows, row, 1), gc->actor, &event, NULL, err)
              : mlo_error_nomem(err);
    json_decref(after);
    return status;
}

static enum mlo_status purge_some(struct gc *gc, int *count, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    enum mlo_status status = mlo_db_begin(gc->conn, err);
    if (status != MLO_OK)
        return status;
    mlo_param_i64(&p, PURGE_BATCH);
    MLO_TRY(mlo_db_exec(gc->conn, &mlo_sql_gc[GC_PURGE], &p, &rows, err));
    *count = mlo_rows_count(&rows);
    for (int r = 0; r < *count; r++)
        MLO_TRY(audit_purge(gc, &rows, r, err));
out:
    mlo_rows_clear(&rows);
    status = mlo_db_end(gc->conn, status, err);
    if (status == MLO_OK)
        gc->out->purged += *count;
    return status;
}

static enum mlo_status purge(struct gc *gc, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    for (int count = PURGE_BATCH; status == MLO_OK && count == PURGE_BATCH && !time_over(gc);)
        status = purge_some(gc, &count, err);
    return status;
}

/* --- 2: rows ------------------------------------------------------------------------------------------- */

static enum mlo_status audit_collect(struct gc *gc, json_t *digests, int64_t bytes, struct mlo_error *err)
{
    json_t *after = json_pack("{s:I, s:I, s:I, s:O}", "count", (json_int_t)json_array_size(digests), "bytes",
                              (json_int_t)bytes, "grace_s", (json_int_t)gc->o->grace_s, "digests", digests);
    struct mlo_audit_event event = {.action = "blob.collect", .object = "blobs", .after = after};
    enum mlo_status status =
        after ? mlo_audit_append(gc->conn, 0, gc->actor, &event, NULL, err) : mlo_error_nomem(err);
    json_decref(after);
    return status;
}

static void take_items(struct gc *gc, const struct mlo_rows *rows)
{
    for (int r = 0; gc->items && r < mlo_rows_count(rows) && json_array_size(gc->items) < ITEMS_MAX; r++) {
        struct mlo_digest digest;
        char text[MLO_DIGEST_TEXT_SIZE];
        if (mlo_rows_digest(rows, r, 0, &digest))
            json_array_append_new(gc->items, json_pack("{s:s, s:I}", "digest", mlo_digest_text(&digest, text),
                                                       "size", (json_int_t)mlo_rows_i64(rows, r, 1)));
    }
}

/* The next of them behind *behind, which moves on; *count 0: there are no more. */
static enum mlo_status mark_some(struct gc *gc, struct mlo_digest *behind, int *count, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    struct mlo_digest digest = *behind;
    char text[MLO_DIGEST_TEXT_SIZE];
    int64_t bytes = 0;
    json_t *digests = json_array();
    enum mlo_status status = mlo_db_begin(gc->conn, err);
    if (status != MLO_OK) {
        json_decref(digests);
        return status;
    }
    mlo_param_digest(&p, behind);
    mlo_param_i64(&p, gc->o->grace_s);
    mlo_param_i64(&p, COLLECT_BATCH);
    MLO_TRY(mlo_db_exec(gc->conn, &mlo_sql_gc[GC_COLLECT], &p, &rows, err));
    *count = mlo_rows_count(&rows);
    for (int r = 0; r < *count; r++) {
        mlo_rows_digest(&rows, r, 0, &digest);
        bytes += mlo_rows_i64(&rows, r, 1);
        json_array_append_new(digests, json_string(mlo_digest_text(&digest, text)));
    }
    if (*count)
        MLO_TRY(audit_collect(gc, digests, bytes, err));
    take_items(gc, &rows);
out:
    status = mlo_db_end(gc->conn, status, err);
    if (status == MLO_OK) {
        *behind = digest;
        gc->out->marked += *count;
        gc->out->marked_bytes += bytes;
    }
    mlo_rows_clear(&rows);
    json_decref(digests);
    return status;
}

/* What was marked may have held plans and reports, which come with the next round. */
static enum mlo_status mark(struct gc *gc, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    for (int64_t before = -1; status == MLO_OK && before != gc->out->marked && !time_over(gc);) {
        struct mlo_digest behind = {{0}};
        before = gc->out->marked;
        for (int count = 1; status == MLO_OK && count && !time_over(gc);)
            status = mark_some(gc, &behind, &count, err);
    }
    return status;
}

/* --- 3: bytes ------------------------------------------------------------------------------------------ */

static enum mlo_status remove_some(struct gc *gc, struct mlo_digest *behind, int *count,
                                   struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    struct mlo_digest digest = *behind;
    int64_t bytes = 0;
    bool got = false;
    enum mlo_status status = mlo_db_begin(gc->conn, err);
    if (status != MLO_OK)
        return status;
    *count = 0;
    MLO_TRY(mlo_bytes_lock(gc->conn, &got, err));
    if (!got) {
        gc->out->backup = true;
        goto out;
    }
    mlo_param_digest(&p, behind);
    mlo_param_i64(&p, REMOVE_BATCH);
    MLO_TRY(mlo_db_exec(gc->conn, &mlo_sql_gc[GC_GOING], &p, &rows, err));
    for (int r = 0; r < mlo_rows_count(&rows); r++) {
        struct mlo_params gone = MLO_PARAMS_INIT;
        mlo_rows_digest(&rows, r, 0, &digest);
        MLO_TRY(mlo_blob_remove(gc->o->blobs, &digest, err));
        mlo_param_digest(&gone, &digest);
        MLO_TRY(mlo_db_exec(gc->conn, &mlo_sql_gc[GC_GONE], &gone, NULL, err));
        bytes += mlo_rows_i64(&rows, r, 1);
    }
    *count = mlo_rows_count(&rows);
out:
    mlo_rows_clear(&rows);
    status = mlo_db_end(gc->conn, status, err);
    if (status == MLO_OK) {
        *behind = digest;
        gc->out->removed += *count;
        gc->out->removed_bytes += bytes;
    }
    return status;
}

static enum mlo_status remove_bytes(struct gc *gc, struct mlo_error *err)
{
    struct mlo_digest behind = {{0}};
    enum mlo_status status = MLO_OK;
    for (int count = 1; status == MLO_OK && count && !time_over(gc);)
        status = remove_some(gc, &behind, &count, err);
    return status;
}

/* --- all of it ----------------------------------------------------------------------------------------- */

/* What would happen is what happens, and is then taken back. */
static enum mlo_status try_it(struct gc *gc, struct mlo_error *err)
{
    struct mlo_error ignored = {0};
    enum mlo_status status = mlo_db_begin(gc->conn, err);
    if (status != MLO_OK)
        return status;
    status = purge(gc, err);
    if (status == MLO_OK)
        status = mark(gc, err);
    (void)!mlo_db_end(gc->conn, MLO_ECANCELLED, &ignored);
    return status;
}

static enum mlo_status begin(struct gc *gc, struct mlo_error *err)
{
    memset(gc->out, 0, sizeof *gc->out);
    enum mlo_status status = mlo_actor_require(gc->actor, 0, MLO_ADMIN, err);
    if (status != MLO_OK)
        return status;
    if (gc->o->grace_s < 0 || gc->o->grace_s > MLO_GRACE_MAX_S)
        return mlo_error_set(err, MLO_EINVAL, "a grace period is 0 to %lld seconds", MLO_GRACE_MAX_S);
    if (gc->o->budget_ms)
        gc->ends_ns = mlo_clock_ns() + (uint64_t)gc->o->budget_ms * 1000000u;
    return MLO_OK;
}

enum mlo_status mlo_gc_finish(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                              const struct mlo_gc_options *options, struct mlo_gc_result *out,
                              struct mlo_error *err)
{
    struct gc gc = {.conn = conn, .actor = actor, .o = options, .out = out};
    enum mlo_status status = begin(&gc, err);
    return status == MLO_OK ? remove_bytes(&gc, err) : status;
}

enum mlo_status mlo_gc_run(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                           const struct mlo_gc_options *options, struct mlo_gc_result *out, json_t **items,
                           struct mlo_error *err)
{
    struct gc gc = {.conn = conn, .actor = actor, .o = options, .out = out};
    if (items)
        *items = NULL;
    enum mlo_status status = begin(&gc, err);
    if (status != MLO_OK)
        return status;
    gc.items = items ? json_array() : NULL;
    if (options->dry_run) {
        status = try_it(&gc, err);
    } else {
        MLO_TRY(purge(&gc, err));
        MLO_TRY(mark(&gc, err));
        MLO_TRY(remove_bytes(&gc, err));
    }
out:
    if (status == MLO_OK && items)
        *items = json_incref(gc.items);
    json_decref(gc.items);
    return status;
}
