#include "registry/fsck.h"

#include <stdlib.h>
#include <string.h>

#include "registry/sql_impl.h"
#include "registry/upload.h"

enum { FSCK_ROWS, FSCK_ROW, FSCK_USERS, FSCK_ORPHAN, FSCK_SESSION };

const struct mlo_sql mlo_sql_fsck[] = {
    [FSCK_ROWS] =
        {"fsck_rows",
         "SELECT digest, size, removed_why, bytes_gone_at IS NOT NULL, reported_at IS NOT NULL FROM blob "
         "WHERE digest > $1 AND digest <= $2 ORDER BY digest",
         2},
    [FSCK_ROW] = {"fsck_row", "SELECT removed_why FROM blob WHERE digest = $1", 1},
    [FSCK_USERS] =
        {"fsck_users",
         "SELECT o FROM (SELECT p.name || '/' || m.name || '@' || v.number AS o FROM version_blob x "
         "JOIN version v ON v.id = x.version_id JOIN model m ON m.id = v.model_id "
         "JOIN project p ON p.id = m.project_id WHERE x.digest = $1 AND v.deletion_id IS NULL "
         "UNION SELECT p.name || '/' || m.name || '@' || v.number || '/' || x.name FROM variant x "
         "JOIN version v ON v.id = x.version_id JOIN model m ON m.id = v.model_id "
         "JOIN project p ON p.id = m.project_id WHERE x.artifact = $1 AND x.name <> 'source' "
         "AND v.deletion_id IS NULL AND x.deletion_id IS NULL "
         "UNION SELECT p.name || '/' || d.name || '@' || v.number FROM dataset_blob x "
         "JOIN dataset_version v ON v.id = x.dataset_version_id JOIN dataset d ON d.id = v.dataset_id "
         "JOIN project p ON p.id = d.project_id WHERE x.digest = $1 AND v.deletion_id IS NULL) u "
         "ORDER BY o LIMIT 20",
         1},
    [FSCK_ORPHAN] = {"fsck_orphan", "SELECT blob_orphan($1, $2)", 2},
    [FSCK_SESSION] = {"fsck_session", "SELECT 1 FROM upload WHERE id = $1 AND expires_at > now()", 1},
};
const size_t mlo_sql_fsck_count = MLO_COUNT(mlo_sql_fsck);

struct fsck {
    struct mlo_db_conn *conn;
    const struct mlo_actor *actor;
    const struct mlo_fsck_options *o;
    json_t *problems;
    int64_t blobs, bytes, quarantined, young, orphans, now_us;
    bool backup;
    uint64_t ends_ns; /* 0: never */
    /* Leftovers, in the order of the walk: how many were looked at before this call, are seen, and went. */
    int64_t rest_before, rest_seen, rest_removed;
    bool rest_any, rest_more;    /* one was looked at in this call; time was over before the end */
    struct mlo_blob_entry *seen; /* of the shard, sorted */
    size_t seen_count, seen_room;
};

/* What is known of a digest: a row, bytes, or both. */
struct pair {
    struct mlo_digest digest;
    bool row, bytes, gone;
    bool reported;           /* by a worker, as damaged */
    const char *removed_why; /* NULL: the row says that the bytes are there */
    int64_t size;            /* of the row */
    struct mlo_blob_entry entry;
};

static int64_t age_s(const struct fsck *f, int64_t modified_us)
{
    return f->now_us > modified_us ? (f->now_us - modified_us) / 1000000 : 0;
}

/* --- saying ------------------------------------------------------------------------------------------ */

static enum mlo_status users(struct fsck *f, const struct mlo_digest *digest, json_t **out,
                             struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    mlo_param_digest(&p, digest);
    enum mlo_status status = mlo_db_exec(f->conn, &mlo_sql_fsck[FSCK_USERS], &p, &rows, err);
    *out = json_array();
    for (int r = 0; status == MLO_OK && r < mlo_rows_count(&rows); r++)
        json_array_append_new(*out, json_string(mlo_rows_text(&rows, r, 0)));
    mlo_rows_clear(&rows);
    return status;
}

/* `repaired`: what was done, NULL: nothing. */
static enum mlo_status problem(struct fsck *f, const char *kind, const struct pair *pair, const char *detail,
                               const char *repaired, struct mlo_error *err)
{
    char text[MLO_DIGEST_TEXT_SIZE];
    json_t *used_by = NULL;
    enum mlo_status status = users(f, &pair->digest, &used_by, err);
    if (status == MLO_OK &&
        json_array_append_new(
            f->problems,
            json_pack("{s:s, s:s, s:I, s:o?, s:s?, s:O, s:s?}", "kind", kind, "digest",
                      mlo_digest_text(&pair->digest, text), "size",
                      (json_int_t)(pair->bytes ? (int64_t)pair->entry.size_bytes : pair->size), "age_s",
                      pair->bytes ? json_integer(age_s(f, pair->entry.modified_us)) : NULL, "detail", detail,
                      "used_by", used_by, "repaired", repaired)) != 0)
        status = mlo_error_nomem(err);
    json_decref(used_by);
    return status;
}

/* --- one digest -------------------------------------------------------------------------------------- */

static enum mlo_status put_aside(struct fsck *f, const char *kind, const struct pair *pair,
                                 const char *detail, struct mlo_error *err)
{
    bool damaged = true;
    char *aside = NULL;
    struct mlo_buf done = MLO_BUF_INIT;
    enum mlo_status status = MLO_OK;
    if (f->o->repair) {
        MLO_TRY(mlo_blob_quarantine(f->conn, f->o->blobs, f->actor, &pair->digest, &damaged, &aside, err));
        mlo_buf_printf(&done, "put aside as %s", aside ? aside : "nothing: the bytes were gone");
    }
    if (damaged) /* else the right bytes came meanwhile */
        MLO_TRY(problem(f, kind, pair, detail, f->o->repair ? mlo_buf_str(&done) : NULL, err));
out:
    mlo_buf_clear(&done);
    free(aside);
    return status;
}

static enum mlo_status check_bytes(struct fsck *f, const struct pair *pair, struct mlo_error *err)
{
    struct mlo_error seen = {0};
    enum mlo_status status = mlo_blob_check(f->o->blobs, &pair->digest, NULL, &seen);
    f->bytes += (int64_t)pair->entry.size_bytes;
    if (status == MLO_OK && pair->reported && f->o->repair) /* and nobody needs to look again */
        return mlo_blob_settle_report(f->conn, f->o->blobs, &pair->digest, err);
    if (status == MLO_OK || status == MLO_ENOTFOUND) /* removed meanwhile: the row will say so */
        return MLO_OK;
    if (status == MLO_EDIGEST)
        return put_aside(f, "damaged", pair, seen.message, err);
    return problem(f, "unreadable", pair, seen.message, NULL, err);
}

/* The row as it is now: the bytes were looked at before it. */
static enum mlo_status still_live(struct fsck *f, const struct mlo_digest *digest, bool *live,
                                  struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    mlo_param_digest(&p, digest);
    enum mlo_status status = mlo_db_exec(f->conn, &mlo_sql_fsck[FSCK_ROW], &p, &rows, err);
    *live = status == MLO_OK && mlo_rows_count(&rows) > 0 && mlo_rows_null(&rows, 0, 0);
    mlo_rows_clear(&rows);
    return status;
}

static enum mlo_status without_bytes(struct fsck *f, const struct pair *pair, struct mlo_error *err)
{
    struct mlo_error seen = {0};
    bool live;
    enum mlo_status status = mlo_blob_size(f->o->blobs, &pair->digest, NULL, &seen);
    if (status == MLO_OK)
        return MLO_OK; /* it came after the walk */
    if (status != MLO_ENOTFOUND)
        return problem(f, "unreadable", pair, seen.message, NULL, err);
    status = still_live(f, &pair->digest, &live, err);
    return status == MLO_OK && live ? problem(f, "missing", pair, NULL, NULL, err) : status;
}

/* A blob that was found damaged before. */
static enum mlo_status was_damaged(struct fsck *f, const struct pair *pair, struct mlo_error *err)
{
    struct mlo_error seen = {0};
    bool damaged;
    if (!pair->bytes)
        return problem(f, "missing", pair, "it was found damaged before and put aside", NULL, err);
    enum mlo_status status = mlo_blob_check(f->o->blobs, &pair->digest, NULL, &seen);
    if (status == MLO_EDIGEST)
        return put_aside(f, "damaged", pair, seen.message, err);
    if (status != MLO_OK)
        return problem(f, "unreadable", pair, seen.message, NULL, err);
    if (f->o->repair) /* looks again under the lock, and heals it */
        status = mlo_blob_quarantine(f->conn, f->o->blobs, f->actor, &pair->digest, &damaged, NULL, err);
    return status == MLO_OK
               ? problem(f, "returned", pair, NULL, f->o->repair ? "counted as there" : NULL, err)
               : status;
}

static enum mlo_status orphan(struct fsck *f, const struct pair *pair, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    char text[MLO_DIGEST_TEXT_SIZE];
    bool mine = false;
    enum mlo_status status;
    if (age_s(f, pair->entry.modified_us) < f->o->grace_s) {
        f->young++;
        return MLO_OK;
    }
    if (!f->o->repair)
        return problem(f, "orphan", pair, NULL, NULL, err);
    status = mlo_db_begin(f->conn, err);
    if (status != MLO_OK)
        return status;
    mlo_param_digest(&p, &pair->digest);
    mlo_param_i64(&p, (int64_t)pair->entry.size_bytes);
    MLO_TRY(mlo_db_exec(f->conn, &mlo_sql_fsck[FSCK_ORPHAN], &p, &rows, err));
    mine = mlo_rows_bool(&rows, 0, 0);
    if (mine) {
        struct mlo_audit_event event = {.action = "blob.orphan",
                                        .object = mlo_digest_text(&pair->digest, text)};
        MLO_TRY(mlo_audit_append(f->conn, 0, f->actor, &event, NULL, err));
    }
out:
    mlo_rows_clear(&rows);
    status = mlo_db_end(f->conn, status, err);
    if (status != MLO_OK || !mine)
        return status;
    f->orphans++;
    return problem(f, "orphan", pair, NULL, "marked", err);
}

static enum mlo_status look(struct fsck *f, const struct pair *pair, struct mlo_error *err)
{
    char detail[96];
    if (pair->row && !pair->removed_why) {
        f->blobs++;
        if (!pair->bytes)
            return without_bytes(f, pair, err);
        if ((int64_t)pair->entry.size_bytes != pair->size) {
            snprintf(detail, sizeof detail, "%llu bytes, not %lld",
                     (unsigned long long)pair->entry.size_bytes, (long long)pair->size);
            return put_aside(f, "size", pair, detail, err);
        }
        return f->o->bytes || pair->reported ? check_bytes(f, pair, err) : MLO_OK;
    }
    if (pair->row && strcmp(pair->removed_why, "damaged") == 0)
        return was_damaged(f, pair, err);
    if (!pair->bytes || (pair->row && !pair->gone))
        return MLO_OK; /* gc is not done with it yet */
    return orphan(f, pair, err);
}

/* --- a shard ------------------------------------------------------------------------------------------- */

static enum mlo_status take(void *arg, const struct mlo_blob_entry *entry, struct mlo_error *err)
{
    struct fsck *f = arg;
    if (f->seen_count == f->seen_room) {
        size_t room = f->seen_room ? 2 * f->seen_room : 256;
        struct mlo_blob_entry *grown = realloc(f->seen, room * sizeof *grown);
        if (!grown)
            return mlo_error_nomem(err);
        f->seen = grown;
        f->seen_room = room;
    }
    f->seen[f->seen_count++] = *entry;
    return MLO_OK;
}

static int by_digest(const void *a, const void *b)
{
    return memcmp(((const struct mlo_blob_entry *)a)->digest.bytes,
                  ((const struct mlo_blob_entry *)b)->digest.bytes, MLO_DIGEST_SIZE);
}

static bool time_over(const struct fsck *f)
{
    return f->ends_ns && mlo_clock_ns() >= f->ends_ns;
}

/* Both lists in order, side by side, behind *at, which is where it came to. */
static enum mlo_status merge(struct fsck *f, const struct mlo_rows *rows, struct mlo_digest *at,
                             struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int r = 0, count = mlo_rows_count(rows);
    size_t s = 0;
    while (s < f->seen_count && memcmp(f->seen[s].digest.bytes, at->bytes, MLO_DIGEST_SIZE) <= 0)
        s++;
    while (status == MLO_OK && (r < count || s < f->seen_count)) {
        struct pair pair = {0};
        struct mlo_digest row = {{0}};
        if (r < count)
            mlo_rows_digest(rows, r, 0, &row);
        int order = r == count           ? 1
                    : s == f->seen_count ? -1
                                         : memcmp(row.bytes, f->seen[s].digest.bytes, MLO_DIGEST_SIZE);
        pair.row = order <= 0;
        pair.bytes = order >= 0;
        pair.digest = pair.row ? row : f->seen[s].digest;
        if (pair.row) {
            pair.size = mlo_rows_i64(rows, r, 1);
            pair.removed_why = mlo_rows_text(rows, r, 2);
            pair.gone = mlo_rows_bool(rows, r, 3);
            pair.reported = mlo_rows_bool(rows, r, 4);
            r++;
        }
        if (pair.bytes)
            pair.entry = f->seen[s++];
        status = look(f, &pair, err);
        *at = pair.digest;
        if (time_over(f)) /* not before the first: each call does something */
            break;
    }
    if (status == MLO_OK && r == count && s == f->seen_count)
        memset(at->bytes + 1, 0xff, MLO_DIGEST_SIZE - 1); /* the shard is done */
    return status;
}

static enum mlo_status shard(struct fsck *f, unsigned number, struct mlo_digest *at, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    struct mlo_digest last;
    enum mlo_status status;
    memset(last.bytes, 0xff, sizeof last.bytes);
    last.bytes[0] = (uint8_t)number;
    f->seen_count = 0;
    MLO_TRY(mlo_blob_list(f->o->blobs, number, take, f, err)); /* before the rows: what has a row has bytes */
    if (f->seen_count)
        qsort(f->seen, f->seen_count, sizeof *f->seen, by_digest);
    mlo_param_digest(&p, at);
    mlo_param_digest(&p, &last);
    MLO_TRY(mlo_db_exec(f->conn, &mlo_sql_fsck[FSCK_ROWS], &p, &rows, err));
    MLO_TRY(merge(f, &rows, at, err));
out:
    mlo_rows_clear(&rows);
    return status;
}

/* --- the rest of the store -------------------------------------------------------------------------------
 */

static enum mlo_status look_at_leftover(struct fsck *f, const struct mlo_blob_leftover *left,
                                        struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    enum mlo_status status = MLO_OK;
    bool removed = false;
    if (left->kind == MLO_LEFTOVER_QUARANTINE) {
        f->quarantined++;
        return MLO_OK;
    }
    if (left->alive || age_s(f, left->modified_us) < f->o->grace_s)
        return MLO_OK;
    if (*left->session) {
        mlo_param_text(&p, left->session);
        status = mlo_sql_number(f->conn, &mlo_sql_fsck[FSCK_SESSION], &p, NULL, err);
        if (status != MLO_ENOTFOUND)
            return status; /* somebody may go on with it */
    }
    struct mlo_blob_leftover looked = *left;
    status = mlo_blob_leftover_look(f->o->blobs, &looked, err);
    if (status != MLO_OK || looked.alive || age_s(f, looked.modified_us) < f->o->grace_s)
        return status == MLO_ENOTFOUND ? MLO_OK : status;
    status = f->o->repair ? mlo_blob_leftover_drop(f->o->blobs, left, &removed, err) : MLO_OK;
    if (status != MLO_OK || (f->o->repair && !removed))
        return status;
    f->rest_removed += removed;
    if (json_array_append_new(f->problems, json_pack("{s:s, s:s, s:I, s:I, s:s?}", "kind",
                                                     mlo_blob_leftover_name(left->kind), "name", left->name,
                                                     "size", (json_int_t)left->size_bytes, "age_s",
                                                     (json_int_t)age_s(f, left->modified_us), "repaired",
                                                     removed ? "removed" : NULL)) != 0)
        status = mlo_error_nomem(err);
    return status;
}

/* As far as the time allows, at least one a call. */
static enum mlo_status on_leftover(void *arg, const struct mlo_blob_leftover *left, struct mlo_error *err)
{
    struct fsck *f = arg;
    if (f->rest_seen < f->rest_before) {
        f->rest_seen++;
        return MLO_OK;
    }
    if (f->rest_any && time_over(f)) {
        f->rest_more = true;
        return mlo_error_set(err, MLO_ECANCELLED, "the time of this call is over");
    }
    f->rest_any = true;
    f->rest_seen++;
    return look_at_leftover(f, left, err);
}

static enum mlo_status on_lost(void *arg, const struct mlo_upload *upload, struct mlo_error *err)
{
    struct fsck *f = arg;
    const struct mlo_blob_session *s = &upload->session;
    return json_array_append_new(f->problems, json_pack("{s:s, s:s, s:I, s:n, s:s?}", "kind", "lost", "name",
                                                        s->id, "size", (json_int_t)s->size_bytes, "age_s",
                                                        "repaired", f->o->repair ? "forgotten" : NULL)) == 0
               ? MLO_OK
               : mlo_error_nomem(err);
}

/* What became of those that were marked in this run. */
static enum mlo_status say_removed(struct fsck *f, struct mlo_error *err)
{
    json_t *row;
    size_t i;
    json_array_foreach(f->problems, i, row)
    {
        struct mlo_digest digest;
        struct mlo_error seen = {0};
        if (strcmp(mlo_json_str(row, "kind", ""), "orphan") != 0 ||
            !mlo_digest_parse(mlo_json_str(row, "digest", ""), &digest))
            continue;
        bool gone = mlo_blob_size(f->o->blobs, &digest, NULL, &seen) == MLO_ENOTFOUND;
        const char *what = gone        ? "removed"
                           : f->backup ? "marked; gc removes it after the backup that is being made"
                                       : "marked; gc removes it";
        if (json_object_set_new(row, "repaired", json_string(what)) != 0)
            return mlo_error_nomem(err);
    }
    return MLO_OK;
}

/* Orphans were marked; their bytes go as those of any removed blob, as far as the time allows. */
static enum mlo_status remove_orphans(struct fsck *f, struct mlo_error *err)
{
    const struct mlo_gc_options options = {
        .blobs = f->o->blobs, .grace_s = f->o->grace_s, .budget_ms = f->o->budget_ms};
    struct mlo_gc_result result;
    if (!f->orphans)
        return MLO_OK;
    enum mlo_status status = mlo_gc_finish(f->conn, f->actor, &options, &result, err);
    f->backup = result.backup;
    return status == MLO_OK ? say_removed(f, err) : status;
}

/* --- all of it -------------------------------------------------------------------------------------------
 */

#define CURSOR_UPLOADS "upload:"
#define CURSOR_REST "rest:" /* and how many were looked at and are still there */

static bool upload_cursor(const char *cursor, char id[MLO_BLOB_SESSION_ID_SIZE])
{
    size_t begin = strlen(CURSOR_UPLOADS);
    if (!mlo_str_starts(cursor, CURSOR_UPLOADS) || strlen(cursor) - begin != MLO_BLOB_SESSION_ID_SIZE - 1)
        return false;
    snprintf(id, MLO_BLOB_SESSION_ID_SIZE, "%s", cursor + begin);
    return true;
}

static bool rest_cursor(const char *cursor, int64_t *before)
{
    return mlo_str_starts(cursor, CURSOR_REST) && mlo_str_to_i64(cursor + strlen(CURSOR_REST), before) &&
           *before >= 0;
}

static bool shard_done(const struct mlo_digest *at)
{
    for (size_t i = 1; i < MLO_DIGEST_SIZE; i++)
        if (at->bytes[i] != 0xff)
            return false;
    return true;
}

/* The uploads behind `at`, which are the last that is looked at. */
static enum mlo_status uploads(struct fsck *f, char at[MLO_BLOB_SESSION_ID_SIZE],
                               char next[MLO_DIGEST_TEXT_SIZE], struct mlo_error *err)
{
    const struct mlo_upload_lost_options o = {
        .store = f->o->blobs, .forget = f->o->repair, .ends_ns = f->ends_ns, .fn = on_lost, .arg = f};
    bool done;
    enum mlo_status status = mlo_upload_lost(f->conn, &o, at, &done, err);
    if (status == MLO_OK && !done)
        snprintf(next, MLO_DIGEST_TEXT_SIZE, CURSOR_UPLOADS "%s", at);
    return status;
}

/* What is beside blobs, then the uploads. The cursor counts what was looked at: where leftovers of before the
 * place went meanwhile by another hand (an upload that ended), as many behind it are skipped, and the next
 * whole check looks at them. */
static enum mlo_status rest(struct fsck *f, char next[MLO_DIGEST_TEXT_SIZE], struct mlo_error *err)
{
    char upload[MLO_BLOB_SESSION_ID_SIZE] = "";
    struct mlo_error why = {0};
    enum mlo_status status = mlo_blob_leftovers(f->o->blobs, on_leftover, f, &why);
    if (!f->rest_more) {
        if (status != MLO_OK && err)
            *err = why;
        return status == MLO_OK ? uploads(f, upload, next, err) : status;
    }
    snprintf(next, MLO_DIGEST_TEXT_SIZE, CURSOR_REST "%lld", (long long)(f->rest_seen - f->rest_removed));
    return MLO_OK;
}

/* The blobs behind *at, then the rest of the store; `next` is the cursor of what is to be done, "" at the
 * end. */
static enum mlo_status run(struct fsck *f, struct mlo_digest *at, char next[MLO_DIGEST_TEXT_SIZE],
                           struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    for (unsigned number = at->bytes[0] + shard_done(at); number < MLO_BLOB_SHARDS; number++) {
        if (number != at->bytes[0]) {
            memset(at->bytes, 0, sizeof at->bytes);
            at->bytes[0] = (uint8_t)number;
        }
        MLO_TRY(shard(f, number, at, err));
        if (time_over(f)) {
            mlo_digest_text(at, next);
            goto out;
        }
    }
    MLO_TRY(rest(f, next, err));
out:
    return status;
}

enum mlo_status mlo_fsck_run(struct mlo_db_conn *conn, const struct mlo_actor *actor,
                             const struct mlo_fsck_options *options, const char *cursor, json_t **out,
                             struct mlo_error *err)
{
    struct fsck f = {.conn = conn, .actor = actor, .o = options, .now_us = mlo_clock_utc_us()};
    struct mlo_digest at;
    char next[MLO_DIGEST_TEXT_SIZE] = "", upload[MLO_BLOB_SESSION_ID_SIZE];
    *out = NULL;
    memset(&at, 0, sizeof at);
    enum mlo_status status = mlo_actor_require(actor, 0, MLO_ADMIN, err);
    if (status != MLO_OK)
        return status;
    if (options->grace_s < 0 || options->grace_s > MLO_GRACE_MAX_S)
        return mlo_error_set(err, MLO_EINVAL, "a grace period is 0 to %lld seconds", MLO_GRACE_MAX_S);
    bool at_uploads = cursor && upload_cursor(cursor, upload),
         at_rest = cursor && rest_cursor(cursor, &f.rest_before);
    if (cursor && *cursor && !at_uploads && !at_rest && !mlo_digest_parse(cursor, &at)) {
        status = mlo_error_set(err, MLO_EINVAL, "the cursor is not one that this check gave");
        mlo_error_where(err, "field 'cursor'");
        goto out;
    }
    if (options->budget_ms)
        f.ends_ns = mlo_clock_ns() + (uint64_t)options->budget_ms * 1000000u;
    f.problems = json_array();
    MLO_TRY(at_uploads ? uploads(&f, upload, next, err)
            : at_rest  ? rest(&f, next, err)
                       : run(&f, &at, next, err));
    MLO_TRY(remove_orphans(&f, err));
    *out =
        json_pack("{s:O, s:I, s:I, s:I, s:I, s:b, s:s?}", "problems", f.problems, "blobs",
                  (json_int_t)f.blobs, "bytes", (json_int_t)f.bytes, "quarantined", (json_int_t)f.quarantined,
                  "young", (json_int_t)f.young, "backup", f.backup, "next", next[0] ? next : NULL);
    if (!*out)
        status = mlo_error_nomem(err);
out:
    json_decref(f.problems);
    free(f.seen);
    return status;
}
