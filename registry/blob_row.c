/* The rows of blobs: which bytes there are, and which projects may see them. A row that is not marked as
 * removed has its bytes; who brings bytes and who removes them meet at the row's lock
 * (migrations/0015_deletion.sql). */
#include "registry/blob_upkeep.h"
#include "registry/models.h"
#include "registry/sql_impl.h"

#include <stdlib.h>
#include <string.h>

enum {
    BLOB_NOTE,
    BLOB_REVIVE,
    BLOB_LINKED,
    BLOB_TOUCH,
    BLOB_DAMAGED,
    BLOB_DAMAGED_LOCK,
    BLOB_HEALED,
    BLOB_GONE,
    BLOB_REPORT,
    BLOB_REPORTED,
    BLOB_LOOKED,
    BLOB_ALONE,
    STORAGE_CHECK
};
/* A delete takes well less than a second; one whose collector was lost is not waited for */
enum { GOING_WAIT_MS = 10000, GOING_LOOK_MS = 50 };

const struct mlo_sql mlo_sql_blob_row[] = {
    [BLOB_NOTE] = {"blob_note", "SELECT blob_note($1, $2, $3, $4)", 4},
    [BLOB_REVIVE] = {"blob_revive", "SELECT blob_revive($1, $2, $3)", 3},
    [BLOB_LINKED] = {"blob_linked",
                     "SELECT b.size, b.removed_why, "
                     "to_char(b.removed_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"') "
                     "FROM project_blob pb JOIN blob b USING (digest) "
                     "WHERE pb.project_id = $1 AND pb.digest = $2",
                     2},
    [BLOB_TOUCH] = {"blob_touch", "SELECT blob_touch($1, $2)", 2},
    [BLOB_DAMAGED] = {"blob_damaged", "SELECT blob_damaged($1)", 1},
    [BLOB_DAMAGED_LOCK] = {"blob_damaged_lock", "SELECT blob_damaged_lock($1)", 1},
    [BLOB_HEALED] = {"blob_healed", "SELECT blob_healed($1)", 1},
    [BLOB_GONE] = {"blob_gone", "SELECT blob_gone($1)", 1},
    [BLOB_REPORT] = {"blob_report", "SELECT blob_report($1)", 1},
    [BLOB_REPORTED] = {"blob_reported", "SELECT 1 FROM blob WHERE digest = $1 AND reported_at IS NOT NULL",
                       1},
    [BLOB_LOOKED] = {"blob_looked", "SELECT blob_looked($1)", 1},
    [BLOB_ALONE] =
        {"blob_alone",
         "SELECT pg_try_advisory_xact_lock(hashtextextended('mlopt damage ' || encode($1, 'hex'), 0))", 1},
    [STORAGE_CHECK] = {"storage_check", "SELECT storage_check($1, $2)", 2},
};
const size_t mlo_sql_blob_row_count = MLO_COUNT(mlo_sql_blob_row);

/* Under the row's lock: are the bytes there that were just stored? Of a damaged blob the damaged ones may
 * still be, so those are read. */
static enum mlo_status bytes_there(struct mlo_blob_store *store, const struct mlo_digest *digest,
                                   const char *why, struct mlo_error *err)
{
    char text[MLO_DIGEST_TEXT_SIZE];
    enum mlo_status status = MLO_ENOTFOUND;
    if (store && strcmp(why, "damaged") == 0)
        status = mlo_blob_check(store, digest, NULL, err);
    else if (store)
        status = mlo_blob_size(store, digest, NULL, err);
    if (status != MLO_ENOTFOUND && status != MLO_EDIGEST)
        return status;
    mlo_error_set(err, MLO_EIO, "the bytes of %s were removed from the store while they were brought",
                  mlo_digest_text(digest, text));
    mlo_error_hint(err, "send them again");
    return MLO_EIO;
}

static enum mlo_status under_way(const struct mlo_digest *digest, struct mlo_error *err)
{
    char text[MLO_DIGEST_TEXT_SIZE];
    mlo_error_set(err, MLO_EUNAVAILABLE, "%s is being removed from the store at this moment",
                  mlo_digest_text(digest, text));
    mlo_error_hint(err, "send it again: within minutes the removal has ended, or its time is over");
    return MLO_EUNAVAILABLE;
}

/* *going: a delete of it may be under way. */
static enum mlo_status record_once(struct mlo_db_conn *conn, struct mlo_blob_store *store,
                                   const struct mlo_actor *actor, int64_t project_id,
                                   const struct mlo_digest *digest, uint64_t size_bytes, bool *going,
                                   struct mlo_error *err)
{
    struct mlo_params note = MLO_PARAMS_INIT, revive = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    mlo_param_i64(&note, project_id);
    mlo_param_digest(&note, digest);
    mlo_param_i64(&note, (int64_t)size_bytes);
    mlo_param_text(&note, actor->name);
    *going = false;
    enum mlo_status status = mlo_db_begin(conn, err);
    if (status != MLO_OK)
        return status;
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_blob_row[BLOB_NOTE], &note, &rows, err));
    const char *why = mlo_rows_text(&rows, 0, 0);
    if (strcmp(why, "live") == 0)
        goto out;
    if (strcmp(why, "going") == 0) {
        *going = true;
        status = under_way(digest, err);
        goto out;
    }
    if (strcmp(why, "damaged") == 0)
        MLO_TRY(mlo_db_exec_text(conn, MLO_DB_SLOW_TX, err));
    MLO_TRY(bytes_there(store, digest, why, err));
    mlo_param_i64(&revive, project_id);
    mlo_param_digest(&revive, digest);
    mlo_param_text(&revive, actor->name);
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_blob_row[BLOB_REVIVE], &revive, NULL, err));
out:
    mlo_rows_clear(&rows);
    return mlo_db_end(conn, status, err);
}

enum mlo_status mlo_blob_record_stored(struct mlo_db_conn *conn, struct mlo_blob_store *store,
                                       const struct mlo_actor *actor, int64_t project_id,
                                       const struct mlo_digest *digest, uint64_t size_bytes,
                                       struct mlo_error *err)
{
    uint64_t until = mlo_clock_ns() + (uint64_t)GOING_WAIT_MS * 1000000u;
    bool going, waits = !mlo_db_in_transaction(conn); /* that would keep its collector waiting */
    enum mlo_status status = mlo_actor_require(actor, project_id, MLO_SUBMITTER, err);
    if (status != MLO_OK)
        return status;
    for (;;) {
        status = record_once(conn, store, actor, project_id, digest, size_bytes, &going, err);
        if (!going || !waits || mlo_clock_ns() >= until)
            return status;
        mlo_clock_sleep_ms(GOING_LOOK_MS);
    }
}

enum mlo_status mlo_blob_record(struct mlo_db_conn *conn, const struct mlo_actor *actor, int64_t project_id,
                                const struct mlo_digest *digest, uint64_t size_bytes, struct mlo_error *err)
{
    return mlo_blob_record_stored(conn, NULL, actor, project_id, digest, size_bytes, err);
}

enum mlo_status mlo_storage_check(struct mlo_db_conn *conn, int64_t project_id, uint64_t more_bytes,
                                  struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, project_id);
    mlo_param_i64(&p, (int64_t)MLO_MIN(more_bytes, (uint64_t)1 << 60));
    return mlo_db_exec(conn, &mlo_sql_blob_row[STORAGE_CHECK], &p, NULL, err);
}

enum mlo_status mlo_blob_linked(struct mlo_db_conn *conn, int64_t project_id, const struct mlo_digest *digest,
                                uint64_t *size_bytes, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    char text[MLO_DIGEST_TEXT_SIZE];
    mlo_param_i64(&p, project_id);
    mlo_param_digest(&p, digest);
    enum mlo_status status = mlo_db_exec(conn, &mlo_sql_blob_row[BLOB_LINKED], &p, &rows, err);
    if (status != MLO_OK)
        goto out;
    if (mlo_rows_count(&rows) == 0) {
        status =
            mlo_error_set(err, MLO_ENOTFOUND, "this project has no blob %s", mlo_digest_text(digest, text));
        mlo_error_hint(err, "upload it to this project first");
    } else if (!mlo_rows_null(&rows, 0, 1)) {
        bool damaged = strcmp(mlo_rows_text(&rows, 0, 1), "damaged") == 0;
        status = mlo_error_set(err, MLO_ENOTFOUND, "blob %s %s on %s", mlo_digest_text(digest, text),
                               damaged ? "was found damaged and put aside" : "was removed",
                               mlo_rows_text(&rows, 0, 2));
        mlo_error_hint(err, "upload the same file again%s", damaged ? ", or restore it from a backup" : "");
    } else if (size_bytes) {
        *size_bytes = (uint64_t)mlo_rows_i64(&rows, 0, 0);
    }
out:
    mlo_rows_clear(&rows);
    return status;
}

enum mlo_status mlo_storage_check_blob(struct mlo_db_conn *conn, int64_t project_id,
                                       const struct mlo_digest *digest, uint64_t size_bytes,
                                       struct mlo_error *err)
{
    struct mlo_error seen = {0};
    enum mlo_status status = mlo_blob_linked(conn, project_id, digest, NULL, &seen);
    if (status == MLO_ENOTFOUND)
        return mlo_storage_check(conn, project_id, size_bytes, err);
    if (status != MLO_OK && err)
        *err = seen;
    return status;
}

enum mlo_status mlo_blob_touch(struct mlo_db_conn *conn, int64_t project_id, const struct mlo_digest *digest,
                               struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_i64(&p, project_id);
    mlo_param_digest(&p, digest);
    return mlo_db_exec(conn, &mlo_sql_blob_row[BLOB_TOUCH], &p, NULL, err);
}

/* --- damage ---------------------------------------------------------------------------------------- */

static enum mlo_status audit_damage(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                                    const char *action, const struct mlo_digest *digest, const char *aside,
                                    struct mlo_error *err)
{
    char text[MLO_DIGEST_TEXT_SIZE];
    json_t *after = json_pack("{s:s?}", "aside", aside);
    struct mlo_audit_event event = {
        .action = action, .object = mlo_digest_text(digest, text), .after = after};
    enum mlo_status status =
        after ? mlo_audit_append(conn, 0, actor, &event, NULL, err) : mlo_error_nomem(err);
    json_decref(after);
    return status;
}

/* Whether nobody else settles it. In a transaction: nobody begins to until it ends. */
static enum mlo_status alone(struct mlo_db_conn *conn, const struct mlo_params *p, bool *out,
                             struct mlo_error *err)
{
    struct mlo_rows rows = {0};
    enum mlo_status status = mlo_db_exec(conn, &mlo_sql_blob_row[BLOB_ALONE], p, &rows, err);
    *out = status == MLO_OK && mlo_rows_bool(&rows, 0, 0);
    mlo_rows_clear(&rows);
    return status;
}

/* The row is marked already, and that is committed: whatever ends this, no row promises what is not there. */
static enum mlo_status settle(struct mlo_db_conn *conn, struct mlo_blob_store *store,
                              const struct mlo_actor *actor, const struct mlo_digest *digest,
                              struct mlo_params *p, bool *damaged, char **aside, struct mlo_error *err)
{
    struct mlo_rows rows = {0};
    struct mlo_error seen = {0};
    bool ignored;
    enum mlo_status status = mlo_db_begin(conn, err);
    if (status != MLO_OK)
        return status;
    MLO_TRY(mlo_db_exec_text(conn, MLO_DB_SLOW_TX, err));
    MLO_TRY(alone(conn, p, &ignored, err)); /* readers are told that somebody is here */
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_blob_row[BLOB_DAMAGED_LOCK], p, &rows, err));
    if (!mlo_rows_bool(&rows, 0, 0))
        goto out; /* it is not marked: the right bytes were brought meanwhile */
    status = mlo_blob_check(store, digest, NULL, &seen);
    if (status == MLO_OK) {
        MLO_TRY(mlo_db_exec(conn, &mlo_sql_blob_row[BLOB_HEALED], p, NULL, err));
        goto out;
    }
    if (status != MLO_EDIGEST && status != MLO_ENOTFOUND) {
        if (err)
            *err = seen;
        goto out;
    }
    if (status == MLO_EDIGEST)
        MLO_TRY(mlo_blob_put_aside(store, digest, aside, err));
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_blob_row[BLOB_GONE], p, NULL, err));
    MLO_TRY(audit_damage(conn, actor, "blob.damaged", digest, *aside, err));
    *damaged = true;
out:
    mlo_rows_clear(&rows);
    return mlo_db_end(conn, status, err);
}

/* What is to be done about what mlo_blob_check said. */
static enum mlo_status act(struct mlo_db_conn *conn, struct mlo_blob_store *store,
                           const struct mlo_actor *actor, const struct mlo_digest *digest,
                           enum mlo_status seen, bool *damaged, char **aside, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    char *where = NULL;
    enum mlo_status status = MLO_OK;
    mlo_param_digest(&p, digest);
    if (seen == MLO_EDIGEST) /* else: one that is marked may be settled still */
        status = mlo_db_exec(conn, &mlo_sql_blob_row[BLOB_DAMAGED], &p, NULL, err);
    if (status == MLO_OK)
        status = settle(conn, store, actor, digest, &p, damaged, &where, err);
    if (status == MLO_OK) /* what was reported of it is answered */
        status = mlo_db_exec(conn, &mlo_sql_blob_row[BLOB_LOOKED], &p, NULL, err);
    if (status == MLO_OK && aside)
        *aside = where;
    else
        free(where);
    return status;
}

static bool settles(enum mlo_status seen)
{
    return seen == MLO_OK || seen == MLO_EDIGEST || seen == MLO_ENOTFOUND;
}

enum mlo_status mlo_blob_quarantine(struct mlo_db_conn *conn, struct mlo_blob_store *store,
                                    const struct mlo_actor *actor, const struct mlo_digest *digest,
                                    bool *damaged, char **aside, struct mlo_error *err)
{
    struct mlo_error why = {0};
    *damaged = false;
    if (aside)
        *aside = NULL;
    enum mlo_status seen = mlo_blob_check(store, digest, NULL, &why);
    if (settles(seen))
        return act(conn, store, actor, digest, seen, damaged, aside, err);
    if (err)
        *err = why;
    return seen;
}

enum mlo_status mlo_blob_reported(struct mlo_db_conn *conn, const struct mlo_digest *digest, bool *out,
                                  struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    mlo_param_digest(&p, digest);
    enum mlo_status status = mlo_db_exec(conn, &mlo_sql_blob_row[BLOB_REPORTED], &p, &rows, err);
    *out = status == MLO_OK && mlo_rows_count(&rows) > 0;
    mlo_rows_clear(&rows);
    return status;
}

enum mlo_status mlo_blob_replaced(struct mlo_db_conn *conn, const struct mlo_digest *digest,
                                  struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    mlo_param_digest(&p, digest);
    return mlo_db_exec(conn, &mlo_sql_blob_row[BLOB_LOOKED], &p, NULL, err);
}

enum mlo_status mlo_blob_settle_report(struct mlo_db_conn *conn, struct mlo_blob_store *store,
                                       const struct mlo_digest *digest, struct mlo_error *err)
{
    const struct mlo_actor actor = MLO_ACTOR_SYSTEM;
    char text[MLO_DIGEST_TEXT_SIZE], *aside = NULL;
    bool damaged = false, reported;
    enum mlo_status status = mlo_blob_reported(conn, digest, &reported, err);
    if (reported)
        status = mlo_blob_quarantine(conn, store, &actor, digest, &damaged, &aside, err);
    if (damaged)
        mlo_log(MLO_LOG_ERROR, "a blob is damaged", "blob", mlo_digest_text(digest, text), "aside",
                aside ? aside : "-", NULL);
    free(aside);
    return status;
}

/* As far as a worker may: it says so, and that is audited. Nothing is hidden by what it says. */
static enum mlo_status report(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                              const struct mlo_digest *digest, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    enum mlo_status status = mlo_db_begin(conn, err);
    if (status != MLO_OK)
        return status;
    mlo_param_digest(&p, digest);
    MLO_TRY(mlo_db_exec(conn, &mlo_sql_blob_row[BLOB_REPORT], &p, &rows, err));
    if (mlo_rows_bool(&rows, 0, 0))
        MLO_TRY(audit_damage(conn, actor, "blob.report", digest, NULL, err));
out:
    mlo_rows_clear(&rows);
    return mlo_db_end(conn, status, err);
}

/* Who reads while another one settles it has nothing to add, and waits for no lock. */
static enum mlo_status settle_alone(struct mlo_db_conn *conn, struct mlo_blob_store *store,
                                    const struct mlo_actor *actor, const struct mlo_digest *digest,
                                    enum mlo_status seen, bool *damaged, char **aside, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    bool mine, is;
    mlo_param_digest(&p, digest);
    enum mlo_status status = alone(conn, &p, &mine, err);
    is = !mine && seen != MLO_OK;
    if (status == MLO_OK && mine)
        status = act(conn, store, actor, digest, seen, &is, aside, err);
    if (status == MLO_OK)
        *damaged = is;
    return status;
}

/* The bytes are read before a connection is leased: it may take long. */
static enum mlo_status tell(struct mlo_db *db, struct mlo_blob_store *store, const struct mlo_actor *actor,
                            const struct mlo_digest *digest, bool settle_it, bool *damaged, char **aside,
                            struct mlo_error *err)
{
    struct mlo_db_conn *conn = NULL;
    struct mlo_error why = {0};
    enum mlo_status seen = mlo_blob_check(store, digest, NULL, &why), status;
    if (!settles(seen) || (!settle_it && seen != MLO_EDIGEST)) {
        *damaged = seen != MLO_OK;
        if (seen != MLO_OK)
            *err = why;
        return seen;
    }
    status = mlo_db_acquire(db, &conn, err);
    if (status == MLO_OK)
        status = settle_it ? settle_alone(conn, store, actor, digest, seen, damaged, aside, err)
                           : report(conn, actor, digest, err);
    mlo_db_release(conn);
    return status;
}

enum mlo_status mlo_blob_report_damage(struct mlo_db *db, struct mlo_blob_store *store,
                                       const struct mlo_actor *actor, const struct mlo_digest *digest,
                                       bool settle_it, struct mlo_error *err)
{
    struct mlo_error failed = {0};
    char text[MLO_DIGEST_TEXT_SIZE], *aside = NULL;
    bool damaged = true;
    enum mlo_status status = tell(db, store, actor, digest, settle_it, &damaged, &aside, &failed);
    mlo_digest_text(digest, text);
    if (status != MLO_OK)
        mlo_log_error(MLO_LOG_ERROR, "a damaged blob could not be marked or put aside", &failed);
    if (!damaged) {
        mlo_error_set(err, MLO_EIO, "blob %s was damaged when it was read, and is right now", text);
        mlo_error_hint(err, "try again");
        return MLO_EIO;
    }
    mlo_log(MLO_LOG_ERROR, "a blob is damaged", "blob", text, "aside", aside ? aside : "-", NULL);
    mlo_error_set(err, MLO_EDIGEST, "blob %s is damaged in the store%s%s", text,
                  aside ? ": its bytes were put aside as " : "", aside ? aside : "");
    mlo_error_hint(err, "push the same file again, or restore it from a backup; mlopt fsck says who uses it");
    free(aside);
    return MLO_EDIGEST;
}
