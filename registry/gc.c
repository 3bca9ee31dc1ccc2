#include "registry/gc.h"

#include <string.h>

#include "registry/idempotency.h"
#include "registry/sql_impl.h"
#include "registry/upload.h"

enum {
    GC_PURGE,
    GC_DUE,
    GC_UPTO,
    GC_COLLECT,
    GC_COLLECTABLE,
    GC_LEASE,
    GC_LEASED,
    GC_UNLEASE,
    GC_REPORTED,
    GC_COLLECTOR,
    GC_COLLECTOR_END,
    GC_LOCK
};
/* MARK_BATCH: rows that one statement looks at, whether they can go or not */
enum { PURGE_BATCH = 100, MARK_BATCH = 256, REMOVE_BATCH = 16, ITEMS_MAX = 1000, BUSY_MS = 20 };
/* LEASE_S: longer than a delete can be under way in the store that was asked for within LEASE_USED_MS of it
 */
enum { LEASE_S = 300, LEASE_USED_MS = 60000 };
/* How long another collector is waited for that does not end: longer than one turn. */
enum { BUSY_MOST_MS = 2 * LEASE_USED_MS };

const struct mlo_sql mlo_sql_gc[] = {
    [GC_PURGE] = {"gc_purge", "SELECT which, project, what, seq FROM deletion_purge($1)", 1},
    [GC_DUE] = {"gc_due",
                "SELECT count(*) FROM deletion WHERE purge_after <= now() AND undone_at IS NULL AND "
                "purged_at IS NULL",
                0},
    [GC_UPTO] = {"gc_upto",
                 "SELECT digest FROM (SELECT digest FROM blob WHERE digest > $1 ORDER BY digest LIMIT $2) x "
                 "ORDER BY digest DESC LIMIT 1",
                 2},
    [GC_COLLECT] = {"gc_collect",
                    "SELECT collected, bytes FROM blob_collect($1, $2, make_interval(secs => $3))", 3},
    [GC_COLLECTABLE] = {"gc_collectable",
                        "SELECT collected, bytes FROM blob_collectable($1, $2, make_interval(secs => $3))",
                        3},
    [GC_LEASE] = {"gc_lease", "SELECT going, before::text FROM blob_lease($1, $2, make_interval(secs => $3))",
                  3},
    [GC_LEASED] = {"gc_leased", "SELECT blob_leased($1)", 1},
    [GC_UNLEASE] = {"gc_unlease", "SELECT blob_unlease($1, $2::timestamptz, $3)", 3},
    [GC_REPORTED] = {"gc_reported",
                     "SELECT digest FROM blob WHERE digest > $1 AND (reported_at IS NOT NULL OR "
                     "(removed_at IS NOT NULL AND bytes_gone_at IS NULL AND removed_why = 'damaged')) "
                     "ORDER BY digest LIMIT 1",
                     1},
    /* of the session: from the lease to its end */
    [GC_COLLECTOR] = {"gc_collector", "SELECT pg_try_advisory_lock(" MLO_BLOB_COLLECTOR_KEY ")", 0},
    [GC_COLLECTOR_END] = {"gc_collector_end", "SELECT pg_advisory_unlock(" MLO_BLOB_COLLECTOR_KEY ")", 0},
    [GC_LOCK] = {"gc_lock", "SELECT pg_try_advisory_xact_lock(" MLO_BLOB_HOLD_KEY ")", 0},
};
const size_t mlo_sql_gc_count = MLO_COUNT(mlo_sql_gc);

struct gc {
    struct mlo_db_conn *conn;
    const struct mlo_actor *actor;
    const struct mlo_gc_options *o;
    struct mlo_gc_result *out;
    json_t *items;
    uint64_t half_ns, ends_ns; /* 0: never; marking leaves the second half to the removal of bytes */
};

static bool over(uint64_t ends_ns)
{
    return ends_ns && mlo_clock_ns() >= ends_ns;
}

static enum mlo_status try_lock(struct gc *gc, int statement, bool *got, struct mlo_error *err)
{
    struct mlo_rows rows = {0};
    enum mlo_status status = mlo_db_exec(gc->conn, &mlo_sql_gc[statement], NULL, &rows, err);
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
    enum mlo_status status;
    int count;
    do {
        status = purge_some(gc, &count, err);
    } while (status == MLO_OK && count == PURGE_BATCH && !over(gc->ends_ns));
    gc->out->more = status == MLO_OK && count == PURGE_BATCH;
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

/* *upto: the last of the rows to look at now; *any false: there are none behind. */
static enum mlo_status read_upto(struct gc *gc, struct mlo_digest *upto, bool *any, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    mlo_param_digest(&p, &gc->out->next);
    mlo_param_i64(&p, MARK_BATCH);
    enum mlo_status status = mlo_db_exec(gc->conn, &mlo_sql_gc[GC_UPTO], &p, &rows, err);
    *any = status == MLO_OK && mlo_rows_count(&rows) && mlo_rows_digest(&rows, 0, 0, upto);
    mlo_rows_clear(&rows);
    return status;
}

/* Those of the rows behind `next` up to there that can go, and what goes with them. */
static enum mlo_status mark_upto(struct gc *gc, const struct mlo_digest *upto, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    struct mlo_digest digest;
    char text[MLO_DIGEST_TEXT_SIZE];
    int64_t bytes = 0;
    int count;
    json_t *digests = json_array();
    enum mlo_status status = MLO_OK;
    mlo_param_digest(&p, &gc->out->next);
    mlo_param_digest(&p, upto);
    mlo_param_i64(&p, gc->o->grace_s);
    MLO_TRY(mlo_db_exec(gc->conn, &mlo_sql_gc[gc->o->dry_run ? GC_COLLECTABLE : GC_COLLECT], &p, &rows, err));
    count = mlo_rows_count(&rows);
    for (int r = 0; r < count; r++) {
        mlo_rows_digest(&rows, r, 0, &digest);
        bytes += mlo_rows_i64(&rows, r, 1);
        json_array_append_new(digests, json_string(mlo_digest_text(&digest, text)));
    }
    if (count && !gc->o->dry_run)
        MLO_TRY(audit_collect(gc, digests, bytes, err));
    take_items(gc, &rows);
    gc->out->marked += count;
    gc->out->marked_bytes += bytes;
out:
    mlo_rows_clear(&rows);
    json_decref(digests);
    return status;
}

static enum mlo_status mark_some(struct gc *gc, bool *any, struct mlo_error *err)
{
    struct mlo_digest upto;
    enum mlo_status status = read_upto(gc, &upto, any, err);
    if (status != MLO_OK || !*any)
        return status;
    if (!gc->o->dry_run) { /* else nothing is written: no transaction, no snapshot that lasts */
        status = mlo_db_begin(gc->conn, err);
        if (status == MLO_OK)
            status = mlo_db_end(gc->conn, mark_upto(gc, &upto, err), err);
    } else {
        status = mark_upto(gc, &upto, err);
    }
    if (status == MLO_OK)
        gc->out->next = upto;
    return status;
}

static enum mlo_status mark(struct gc *gc, uint64_t ends_ns, struct mlo_error *err)
{
    enum mlo_status status;
    bool any;
    do {
        status = mark_some(gc, &any, err);
    } while (status == MLO_OK && any && !over(ends_ns));
    gc->out->more |= status == MLO_OK && any;
    return status;
}

/* --- 3: bytes ------------------------------------------------------------------------------------------ */

enum { BUSY = -1 }; /* instead of a count: another collector removes some at this moment */

/* Whether no backup is being made, and none begins until the transaction ends; else *count is 0. */
static enum mlo_status no_backup(struct gc *gc, bool *mine, int *count, struct mlo_error *err)
{
    enum mlo_status status = try_lock(gc, GC_LOCK, mine, err);
    *count = 0;
    gc->out->backup |= status == MLO_OK && !*mine;
    return status;
}

/* Commits that deletes of some may be under way from now on; rows {digest, until when another's may be}. */
static enum mlo_status lease(struct gc *gc, const struct mlo_digest *behind, struct mlo_rows *rows,
                             int *count, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    bool mine;
    enum mlo_status status = mlo_db_begin(gc->conn, err);
    if (status != MLO_OK)
        return status;
    MLO_TRY(no_backup(gc, &mine, count, err));
    if (!mine)
        goto out;
    mlo_param_digest(&p, behind);
    mlo_param_i64(&p, REMOVE_BATCH);
    mlo_param_i64(&p, LEASE_S);
    MLO_TRY(mlo_db_exec(gc->conn, &mlo_sql_gc[GC_LEASE], &p, rows, err));
    *count = mlo_rows_count(rows);
out:
    return mlo_db_end(gc->conn, status, err);
}

static enum mlo_status unlease(struct gc *gc, const struct mlo_rows *rows, int row, bool gone,
                               struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_digest digest;
    mlo_rows_digest(rows, row, 0, &digest);
    mlo_param_digest(&p, &digest);
    mlo_param_text(&p, mlo_rows_text(rows, row, 1));
    mlo_param_bool(&p, gone);
    return mlo_db_exec(gc->conn, &mlo_sql_gc[GC_UNLEASE], &p, NULL, err);
}

/* The bytes of one that is leased, unless it is not to go any more. */
static enum mlo_status remove_one(struct gc *gc, const struct mlo_rows *rows, int row, int64_t *bytes,
                                  int64_t *removed, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows size = {0};
    struct mlo_digest digest;
    enum mlo_status status;
    mlo_rows_digest(rows, row, 0, &digest);
    mlo_param_digest(&p, &digest);
    MLO_TRY(mlo_db_exec(gc->conn, &mlo_sql_gc[GC_LEASED], &p, &size, err));
    bool there = mlo_rows_count(&size) > 0 && !mlo_rows_null(&size, 0, 0);
    if (there) {
        MLO_TRY(mlo_blob_remove(gc->o->blobs, &digest, err));
        *bytes += mlo_rows_i64(&size, 0, 0);
        ++*removed;
    }
    MLO_TRY(unlease(gc, rows, row, there, err));
out:
    mlo_rows_clear(&size);
    return status;
}

/* The leases of those whose delete is not under way, as far as there is a database. `uncertain`: the one
 * whose delete may be; -1: none. */
static void give_back(struct gc *gc, const struct mlo_rows *rows, int uncertain)
{
    struct mlo_error ignored = {0};
    enum mlo_status status = MLO_OK;
    for (int r = 0; r < mlo_rows_count(rows) && status == MLO_OK; r++)
        if (r != uncertain)
            status = unlease(gc, rows, r, false, &ignored);
}

static enum mlo_status remove_leased(struct gc *gc, struct mlo_digest *behind, int *count,
                                     struct mlo_error *err)
{
    struct mlo_rows rows = {0};
    int64_t bytes = 0, removed = 0;
    int leased, uncertain = -1;
    bool mine = false;
    uint64_t began = mlo_clock_ns();
    enum mlo_status status = lease(gc, behind, &rows, count, err);
    leased = status == MLO_OK ? *count : 0;
    if (leased <= 0 || (status = mlo_db_begin(gc->conn, err)) != MLO_OK) {
        mlo_rows_clear(&rows);
        return status;
    }
    MLO_TRY(mlo_db_exec_text(gc->conn, MLO_DB_SLOW_TX, err));
    MLO_TRY(no_backup(gc, &mine, count, err));
    for (int r = 0; mine && r < leased; r++) {
        bool late = mlo_clock_ns() - began > (uint64_t)LEASE_USED_MS * 1000000u; /* the next round's */
        status = late ? unlease(gc, &rows, r, false, err) : remove_one(gc, &rows, r, &bytes, &removed, err);
        if (status != MLO_OK) {
            uncertain = r;
            goto out;
        }
    }
out:
    status = mlo_db_end(gc->conn, status, err);
    if (status != MLO_OK || !mine) {
        give_back(gc, &rows, uncertain);
    } else {
        *count = leased;
        mlo_rows_digest(&rows, leased - 1, 0, behind);
        gc->out->removed += removed;
        gc->out->removed_bytes += bytes;
    }
    mlo_rows_clear(&rows);
    return status;
}

/* One collector at a time: whoever leases next knows that this one's deletes have ended, or that it is lost.
 */
static enum mlo_status remove_some(struct gc *gc, struct mlo_digest *behind, int *count,
                                   struct mlo_error *err)
{
    struct mlo_error ignored = {0};
    bool mine = false, ended;
    enum mlo_status status = try_lock(gc, GC_COLLECTOR, &mine, err);
    *count = BUSY;
    if (status == MLO_OK && mine)
        status = remove_leased(gc, behind, count, err);
    if (mine && try_lock(gc, GC_COLLECTOR_END, &ended, &ignored) != MLO_OK)
        mlo_db_give_up(gc->conn); /* the turn goes with its session */
    return status;
}

static enum mlo_status remove_bytes(struct gc *gc, struct mlo_error *err)
{
    struct mlo_digest behind = {{0}};
    uint64_t waits_until_ns = 0; /* 0: for nobody */
    enum mlo_status status;
    int count;
    do {
        status = remove_some(gc, &behind, &count, err);
        if (status != MLO_OK || count != BUSY) {
            waits_until_ns = 0;
            continue;
        }
        if (!waits_until_ns) /* without a budget it is not waited for without end either */
            waits_until_ns = mlo_clock_ns() + BUSY_MOST_MS * 1000000ull;
        mlo_clock_sleep_ms(BUSY_MS);
    } while (status == MLO_OK && count && !over(gc->ends_ns) && !over(waits_until_ns));
    gc->out->more |= status == MLO_OK && count;
    return status;
}

/* --- damage that workers reported -----------------------------------------------------------------------
 */

/* Their bytes are put aside, or found to be right. What cannot be read is left for the next run. */
static enum mlo_status settle_damage(struct gc *gc, struct mlo_error *err)
{
    struct mlo_digest at = {{0}};
    enum mlo_status status;
    bool any;
    do {
        struct mlo_params p = MLO_PARAMS_INIT;
        struct mlo_rows rows = {0};
        struct mlo_error failed = {0};
        bool damaged;
        mlo_param_digest(&p, &at);
        status = mlo_db_exec(gc->conn, &mlo_sql_gc[GC_REPORTED], &p, &rows, err);
        any = status == MLO_OK && mlo_rows_count(&rows) && mlo_rows_digest(&rows, 0, 0, &at);
        mlo_rows_clear(&rows);
        if (any &&
            mlo_blob_quarantine(gc->conn, gc->o->blobs, gc->actor, &at, &damaged, NULL, &failed) != MLO_OK)
            mlo_log_error(MLO_LOG_WARN, "a blob that was reported as damaged could not be looked at",
                          &failed);
    } while (status == MLO_OK && any && !over(gc->ends_ns));
    return status;
}

/* --- all of it ----------------------------------------------------------------------------------------- */

static enum mlo_status say_what_would(struct gc *gc, struct mlo_error *err)
{
    static const struct mlo_digest start;
    enum mlo_status status = MLO_OK;
    if (mlo_digest_eq(&gc->o->behind, &start))
        status = mlo_sql_number(gc->conn, &mlo_sql_gc[GC_DUE], NULL, &gc->out->purged, err);
    return status == MLO_OK ? mark(gc, gc->ends_ns, err) : status;
}

/* Uploads that nobody went on with. */
static enum mlo_status sweep_uploads(struct gc *gc, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    for (int removed = 1; status == MLO_OK && removed;) {
        status = mlo_upload_sweep(gc->conn, gc->o->blobs, &removed, err);
        if (over(gc->ends_ns)) {
            gc->out->more |= removed > 0;
            break;
        }
    }
    return status;
}

/* Some of each step, so that no step keeps the others from their turn, however little time there is. All
 * deletions are purged before marking begins: what they held may lie anywhere. */
static enum mlo_status collect(struct gc *gc, struct mlo_error *err)
{
    enum mlo_status status = purge(gc, err);
    if (status == MLO_OK && !gc->out->more)
        status = mark(gc, gc->half_ns, err);
    if (status == MLO_OK)
        status = remove_bytes(gc, err);
    if (status == MLO_OK && !gc->out->more)
        status = settle_damage(gc, err);
    if (status == MLO_OK)
        status = mlo_idempotency_expire(gc->conn, NULL, err);
    return status == MLO_OK ? sweep_uploads(gc, err) : status;
}

static enum mlo_status begin(struct gc *gc, struct mlo_error *err)
{
    memset(gc->out, 0, sizeof *gc->out);
    gc->out->next = gc->o->behind;
    enum mlo_status status = mlo_actor_require(gc->actor, 0, MLO_ADMIN, err);
    if (status != MLO_OK)
        return status;
    if (gc->o->grace_s < 0 || gc->o->grace_s > MLO_GRACE_MAX_S)
        return mlo_error_set(err, MLO_EINVAL, "a grace period is 0 to %lld seconds", MLO_GRACE_MAX_S);
    if (gc->o->budget_ms) {
        uint64_t now = mlo_clock_ns(), budget_ns = (uint64_t)gc->o->budget_ms * 1000000u;
        gc->half_ns = now + budget_ns / 2;
        gc->ends_ns = now + budget_ns;
    }
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
    status = options->dry_run ? say_what_would(&gc, err) : collect(&gc, err);
    if (status == MLO_OK && items)
        *items = json_incref(gc.items);
    json_decref(gc.items);
    return status;
}
